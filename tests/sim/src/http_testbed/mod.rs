//! The HTTP balancer on a SmartNIC in virtual time (Laconic): clients and servers, the card's ports, its flow engine, and
//! cores that cost what a [`SmartNicProfile`] says.
//!
//! **The product's code:** each core runs the event loop and the worker of the data plane with its splice, offload rules,
//! cookies, pool and steering by port, on real frames with real heads; rules rewrite frames as the modelled card
//! ([`crate::nic`]) does everywhere. **Modelled:** the time that a core takes for what its worker did (packets, requests,
//! requests to the engine, by the worker's own counters), a cache that neighbouring cores share, the memory that all packets
//! through cores share, the ports, and hosts. A host is no smoltcp but a light TCP: slow start, congestion avoidance, SACK
//! recovery, a timer; clients acknowledge as receivers that coalesce segments do. Bodies are not written or compared: a client
//! checks that a response is the one that it asked for and has as many bytes as its head says.
//!
//! A packet costs memory [`SharedMemory::passes`] times its bytes. A core is done with an iteration when it has worked for as
//! long as that costs and the memory has moved the bytes of its packets, those of other cores before them. What a worker says
//! to the card and to hosts in an iteration leaves when that is over; requests to the engine go when it begins.
//!
//! Ports are one line each way, as if flows lay evenly on them; hosts are never the limit, and are one [`HostProfile::hop_us`]
//! away.

mod card;
mod client;
mod frames;
mod hosts;
mod line;
mod profile;
mod ranges;
mod run;
mod server;
#[cfg(test)]
mod tests;

pub use frames::wire_factor;
pub use profile::{PortsProfile, SharedCache, SharedMemory, SmartNicProfile, Work, WorkProfile, WorkShares};
pub use run::run;

use crate::nic::CardProfile;
use hairpin_core::time::Duration;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The hosts. All of it is guessed: the paper does not say.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct HostProfile {
    /// From a host to the balancer's port, and back, in microseconds.
    pub hop_us: f64,
    /// What a client takes from the end of a response to its next request, in microseconds.
    pub client_us: f64,
    /// What a server takes from a request to the first segment of its response, in microseconds.
    pub server_us: f64,
    /// A client acknowledges when so many segments have come, 1 to 64.
    pub acknowledge_segments: u32,
    /// Or so long after the first of them, in microseconds.
    pub acknowledge_us: f64,
    /// A client's window, in bytes, up to 8 MB.
    pub window_bytes: u32,
    /// A server's first window, in segments.
    pub initial_segments: u32,
    /// What is not acknowledged for so long is sent again, in microseconds.
    pub retransmit_us: f64,
    /// Bytes that wait in the switch for the balancer's ports at most; more are lost.
    pub buffer_bytes: f64,
}

/// When clients ask.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Load {
    /// Each as soon as it has the response before.
    Closed,
    /// At a rate, all together; each client at even intervals. A request whose client still waits for the response before
    /// goes out later, and its latency counts from when it was due (wrk2).
    Open {
        /// Requests a second.
        requests_per_s: f64,
    },
}

/// The options of a run.
#[derive(Clone, Debug)]
pub struct HttpTestbedOptions {
    /// The SmartNIC.
    pub nic: SmartNicProfile,
    /// Its flow engine, if it is used.
    pub card: Option<CardProfile>,
    /// Bodies of at least so many bytes go to it.
    pub offload_bytes_min: u64,
    /// Cores that run workers, 1 to the profile's most.
    pub cores: u16,
    /// Ports in use, 1 to the profile's count.
    pub ports: u16,
    /// The hosts.
    pub hosts: HostProfile,
    /// Clients' connections, 1 to 16,000.
    pub clients: u32,
    /// Bodies that are asked for, one as often as another; in bytes.
    pub sizes: Arc<[u32]>,
    /// When clients ask.
    pub load: Load,
    /// How long it runs before anything is measured.
    pub warm_up: Duration,
    /// How long it is measured.
    pub measured: Duration,
    /// The seed of everything drawn.
    pub seed: u64,
}

/// What came of a run, of the time in which it was measured.
#[derive(Clone, Debug, Default)]
pub struct HttpResults {
    /// Seconds.
    pub seconds: f64,
    /// Bytes of bodies that clients have got.
    pub body_bytes: u64,
    /// Responses that clients have got whole.
    pub responses: u64,
    /// Packets that cores have received.
    pub core_packets: u64,
    /// Packets that the flow engine has turned round, and their bytes.
    pub engine_packets: u64,
    /// Bytes of those.
    pub engine_bytes: u64,
    /// Rules put in.
    pub rules: u64,
    /// The part of the time in which rules changed, 0 to 1.
    pub changing: f64,
    /// Times of requests, from when they were due until all of the response was there, in nanoseconds, sorted.
    pub latencies: Vec<u32>,
    /// Nanoseconds of each kind of work, of all cores.
    pub work: [f64; Work::COUNT],
    /// The part of the time in which cores were busy, on average, 0 to 1.
    pub busy: f64,
    /// The part of the time in which memory was busy.
    pub memory_busy: f64,
    /// The part of the time in which the line in was busy, and the line out.
    pub lines_busy: [f64; 2],
    /// Packets lost in the switch, in cores' queues, in the card, and on their way out.
    pub lost: [u64; 4],
    /// Packets that workers dropped.
    pub dropped: u64,
    /// Segments that servers sent again, and times that their timers ran out.
    pub repeated: u64,
    /// Times that a server's timer ran out.
    pub timeouts: u64,
    /// What contradicts itself: empty if all is well.
    pub failures: Vec<String>,
}

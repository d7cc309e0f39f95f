//! Traffic mixes: the packets that come to the device, their times and flows.
//!
//! | mix | packets |
//! |---|---|
//! | [`ReplayMix`] | recordings played with ever fresh addresses until there are as many flows as asked for (KTH 2022, 3.2) |
//! | [`Popular`] | each packet's flow drawn by Zipf's law, or all flows in turn |
//! | [`GeneratedMix`] | a trace made from published distributions, both directions, with its own times |
//! | [`Connections`] | connections that come by a Poisson process, each with its size and its own rate, both directions |
//!
//! Each is a function of its numbers and a seed, and can be made again: a second run, or a greedy yardstick's look ahead, sees the
//! same packets. The first two are of one direction and begin in the middle (no SYN), as recordings of a backbone do and as
//! KTH 2022's balancer took them; a balancer picks such flows up.

mod agenda;
mod connections;
mod generated;
mod popular;
mod replay;
mod structure;
#[cfg(test)]
mod tests;

pub use connections::{Connections, ConnectionsOptions, ResponseSize};
pub use generated::GeneratedMix;
pub use popular::{Popular, Zipf};
pub use replay::ReplayMix;
pub use structure::{RecordingUnit, Structure};

use hairpin_core::flow::{Endpoint, FlowKey, Protocol};
use hairpin_sim::testbed::{ModelTraffic, OfferedPacket};
use std::net::Ipv4Addr;

/// Flows of a mix at most: as many as keys can tell apart.
pub const FLOWS_MAX: u32 = 1 << 28;

/// The key of flow `number` of `protocol`: a client of 10.0.0.0/8 towards the service. Distinct below [`FLOWS_MAX`].
fn key(number: u32, protocol: Protocol) -> FlowKey {
    let client = Ipv4Addr::from(0x0a00_0000 | (number & 0x00ff_ffff));
    let port = 32_768 + (number >> 24) as u16;
    FlowKey {
        protocol,
        source: Endpoint::new(std::net::IpAddr::V4(client), port),
        destination: hairpin_sim::testbed::service(),
    }
}

/// Any of them.
pub enum Mix {
    /// Recordings.
    Replay(ReplayMix),
    /// By popularity, or in turn.
    Popular(Popular),
    /// Whole connections.
    Connections(Connections),
    /// A made trace.
    Generated(Box<GeneratedMix>),
}

impl ModelTraffic for Mix {
    #[inline]
    fn next(&mut self) -> Option<OfferedPacket> {
        match self {
            Mix::Replay(mix) => mix.next(),
            Mix::Popular(mix) => mix.next(),
            Mix::Connections(mix) => mix.next(),
            Mix::Generated(mix) => mix.next(),
        }
    }

    fn key(&self, flow: u32) -> FlowKey {
        match self {
            Mix::Replay(mix) => mix.key(flow),
            Mix::Popular(mix) => mix.key(flow),
            Mix::Connections(mix) => mix.key(flow),
            Mix::Generated(mix) => mix.key(flow),
        }
    }

    fn flows(&self) -> u32 {
        match self {
            Mix::Replay(mix) => mix.flows(),
            Mix::Popular(mix) => mix.flows(),
            Mix::Connections(mix) => mix.flows(),
            Mix::Generated(mix) => mix.flows(),
        }
    }
}

/// Packets at even distances: when the next one comes.
#[derive(Clone, Copy, Debug)]
struct EvenPace {
    /// Nanoseconds between two, and how many came.
    gap: f64,
    count: u64,
    /// None from here on, in nanoseconds.
    end: u64,
}

impl EvenPace {
    fn new(packets_per_s: f64, seconds: f64) -> EvenPace {
        EvenPace { gap: 1e9 / packets_per_s.max(1e-3), count: 0, end: (seconds * 1e9) as u64 }
    }

    #[inline]
    fn next(&mut self) -> Option<u64> {
        // From the count and not from the time before: rounding does not add up.
        let at = (self.count as f64 * self.gap) as u64;
        self.count += 1;
        (at < self.end).then_some(at)
    }
}

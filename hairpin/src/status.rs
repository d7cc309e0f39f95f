//! The status model: what `hairpin status -o json` prints. Field names carry their units and stay as they are; new
//! ones may be added.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// An instance at a moment. Totals count from the start of the process, rates are of about the last second.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Hairpin's version.
    pub version: String,
    /// The instance's name.
    pub instance: String,
    /// Its process.
    pub pid: u32,
    /// Seconds since it started.
    pub uptime_s: f64,
    /// The interfaces it works on.
    pub interfaces: Vec<String>,
    /// Its workers.
    pub workers: Vec<WorkerStatus>,
    /// Its services, in the order of the configuration.
    pub services: Vec<ServiceStatus>,
    /// The rules.
    pub offload: OffloadStatus,
    /// Packets dropped, by reason: `kernel.*` in the BPF programs, `worker.*` in a worker, `device.*` on the way
    /// between them. Reasons that never occurred are left out.
    pub drops: BTreeMap<String, Count>,
    /// What else became of packets that no rule carried, by name, like `drops`.
    pub events: BTreeMap<String, Count>,
}

/// A total and its rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Count {
    /// How many there were.
    pub total: u64,
    /// How many there are in a second.
    pub per_s: f64,
}

/// Packets and bytes. Bytes are those of IP packets; a super-packet counts as the segments it stands for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Traffic {
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
    /// Packets per second.
    pub packets_per_s: f64,
    /// Bits per second.
    pub bits_per_s: f64,
}

impl std::ops::AddAssign for Traffic {
    fn add_assign(&mut self, other: Traffic) {
        self.packets += other.packets;
        self.bytes += other.bytes;
        self.packets_per_s += other.packets_per_s;
        self.bits_per_s += other.bits_per_s;
    }
}

/// A worker.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkerStatus {
    /// Its number.
    pub id: u16,
    /// The core it is pinned to.
    pub cpu: usize,
    /// Share of that core it uses, 0 to 1.
    pub busy_share: f64,
    /// Connections it tracks.
    pub connections: u64,
    /// Connections it can track.
    pub connections_max: u64,
    /// Flows it has recognised as the kernel's own.
    pub passes: u64,
    /// Frames it was handed; a super-packet is one frame.
    pub frames: u64,
    /// Frames per second.
    pub frames_per_s: f64,
    /// Frames it sent on.
    pub forwarded: u64,
    /// Frames it gave back to the kernel.
    pub given_back: u64,
    /// Frames it answered itself (RST, ICMP errors).
    pub answered: u64,
    /// ICMP errors it translated.
    pub icmp_errors: u64,
    /// Packets it cut into fragments.
    pub fragmented: u64,
    /// Connections that seemed over and went on.
    pub revived: u64,
    /// Connections given up for newer ones before they were established, because the table was full.
    pub evicted: u64,
}

/// A service.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ServiceStatus {
    /// Its name.
    pub name: String,
    /// Address, port and protocol.
    pub listen: String,
    /// `nat` or `full-nat`.
    pub mode: String,
    /// How it chooses backends.
    pub balance: String,
    /// Connections now.
    pub connections: u64,
    /// Connections so far.
    pub connections_total: u64,
    /// New connections per second.
    pub connections_per_s: f64,
    /// Connections so far that were established.
    pub established_total: u64,
    /// Connections so far that were refused.
    pub refused_total: u64,
    /// What the workers carried.
    pub software: Traffic,
    /// What the kernel carried by itself.
    pub offloaded: Traffic,
    /// Share of all its packets that was offloaded, 0 to 1.
    pub offloaded_share: f64,
    /// Its backends.
    pub backends: Vec<BackendStatus>,
}

/// A backend of a service.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BackendStatus {
    /// Its name.
    pub name: String,
    /// Address and port.
    pub address: String,
    /// Its weight.
    pub weight: u16,
    /// `enabled`, `drain` or `disabled`.
    pub state: String,
    /// Connections now.
    pub connections: u64,
    /// Connections so far.
    pub connections_total: u64,
    /// New connections per second.
    pub connections_per_s: f64,
    /// What the workers carried.
    pub software: Traffic,
    /// What the kernel carried by itself.
    pub offloaded: Traffic,
}

/// The rules in the kernel.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OffloadStatus {
    /// Which connections are offloaded.
    pub policy: String,
    /// Rules in force or asked for.
    pub rules: u64,
    /// Rules there can be, for each address family.
    pub rules_max: u64,
    /// Rules installed so far.
    pub installed_total: u64,
    /// Rules per second.
    pub installed_per_s: f64,
    /// Rules removed so far.
    pub removed_total: u64,
    /// Rules per second.
    pub removed_per_s: f64,
    /// Why rules or connections were not offloaded, and how many. Reasons that never occurred are left out.
    pub not_offloaded: BTreeMap<String, u64>,
}

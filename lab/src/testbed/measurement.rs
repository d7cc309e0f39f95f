//! The results of a trial: the columns of KTH 2022 (table 3.2) and more.

use super::meter::CoreWork;
use super::offload::Offloaded;
use serde::{Deserialize, Serialize};

/// Latencies of a trial, in nanoseconds, from just before a packet's burst is handed to the device's ring or port to just
/// after the burst in which it comes back is received. Never negative. Recorded with two significant digits at least.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LatencySummary {
    /// Packets it was measured of.
    pub count: u64,
    /// The least.
    pub min: u64,
    /// The mean.
    pub mean: f64,
    /// Half of all are not above it.
    pub p50: u64,
    /// 95 of 100 are not above it.
    pub p95: u64,
    /// 99 of 100 are not above it.
    pub p99: u64,
    /// 999 of 1,000 are not above it.
    pub p999: u64,
    /// The most.
    pub max: u64,
    /// The cumulative distribution: nanoseconds, and what share of packets is not above that; both rise. At most some
    /// hundred points.
    pub cumulative: Vec<(u64, f64)>,
}

/// The events of a hundred milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrialSample {
    /// When it began, in seconds since the clock started.
    pub at: f64,
    /// How long it was, in seconds.
    pub length: f64,
    /// Packets sent.
    pub sent: u64,
    /// Packets received.
    pub received: u64,
    /// Bytes received.
    pub received_bytes: u64,
    /// Mean latency of what was received, in nanoseconds; 0 if nothing was.
    pub latency_mean: f64,
}

/// The share of its processor that each side's threads have had while packets were sent, 0 to 1: of the thread that had
/// least. They poll, and want all of it; where a thread slept because nothing came, that does not count.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ran {
    /// The device under test.
    pub device: f64,
    /// Generator and sink.
    pub testers: f64,
}

impl Ran {
    /// With less than this a thread was kept from its work, and a rate shows what kept it, not the device.
    pub const ENOUGH: f64 = 0.95;

    /// Whether all threads have had enough.
    pub fn is_enough(&self) -> bool {
        self.device.min(self.testers) >= Ran::ENOUGH
    }
}

/// The device's time by function, from a sampling profiler.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TimeProfile {
    /// The profiler and its event, for people.
    pub by: String,
    /// Function, and its own share of all samples, 0 to 1; the largest first.
    pub shares: Vec<(String, f64)>,
}

/// One trial, measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// How long the generator sent, in seconds.
    pub seconds: f64,
    /// Packets the generator handed to the device's ring or port.
    pub sent: u64,
    /// Packets the sink got back: never more than were sent. Always `sent` less all of `lost_by_reason`.
    pub received: u64,
    /// The fates of the others, by reason. `generator-behind` is not among them: those were not sent.
    pub lost_by_reason: Vec<(String, u64)>,
    /// Packets that an open loop should have sent and could not, because the generator or the ring behind it was too slow.
    pub behind: u64,
    /// When the generator handed over how many packets, in nanoseconds from its start, where the device's iterations are measured.
    #[serde(skip)]
    pub handed: Vec<(u64, u32)>,
    /// Packets sent per second.
    pub tx_pps: f64,
    /// Packets received per second.
    pub rx_pps: f64,
    /// Bits sent per second, of frames without the frame check sequence.
    pub tx_bps: f64,
    /// Bits received per second, likewise.
    pub rx_bps: f64,
    /// Latency.
    pub latency: LatencySummary,
    /// By hundreds of milliseconds.
    pub over_time: Vec<TrialSample>,
    /// Whether every flow reached one backend only, as far as is known: not where there are `unchecked` packets.
    pub consistent: bool,
    /// Flows whose packets came at more than one backend.
    pub inconsistent_flows: u64,
    /// Packets received of flows that had to give way to others in the sink's table: neither their backend nor their order
    /// was checked. Of a sink that was told how many flows there are, next to none.
    #[serde(default)]
    pub unchecked: u64,
    /// Flows the sink has seen; except those with only `unchecked` packets.
    pub flows_seen: u64,
    /// Backends by address and port, with the packets that reached each.
    pub backend_packets: Vec<(String, u64)>,
    /// The busiest backend's packets over the mean of all backends'; 1 is even, 0 if there is nothing to spread.
    pub backend_spread: f64,
    /// Packets that came after one of their flow that was sent later.
    pub reordered: u64,
    /// Packets that came twice or more, beyond the first time.
    pub duplicates: u64,
    /// Packets whose stamp or checksums were wrong.
    pub corrupted: u64,
    /// The device's time by function, if a profile was taken.
    pub profile: Option<TimeProfile>,
    /// The times of the device's iterations, if they were measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub work: Option<CoreWork>,
    /// Whether the threads had their processors, where that can be told: in processes of their own it cannot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ran: Option<Ran>,
    /// The totals of a card in front of the device, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offloaded: Option<Offloaded>,
}

impl Measurement {
    /// The losses, over all reasons.
    pub fn lost(&self) -> u64 {
        self.lost_by_reason.iter().map(|(_, count)| count).sum()
    }

    /// Whether a thread of the testbed was kept from its processor: then this says nothing of the device.
    pub fn is_starved(&self) -> bool {
        self.ran.is_some_and(|ran| !ran.is_enough())
    }

    /// The share of what was sent that was lost, 0 to 1.
    pub fn loss(&self) -> f64 {
        if self.sent == 0 { 0.0 } else { self.lost() as f64 / self.sent as f64 }
    }
}

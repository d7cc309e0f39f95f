//! Cores that share a connection table, in virtual time: KTH 2020's methods on 1 to 32 cores.
//!
//! ```text
//! arrivals -> queue of a core -> burst: work, look-ups by the method's steps, work -> latency
//!                                        |
//!                 lines that cores share: lock, ring of free places, count of moves
//! ```
//!
//! What cores do to each other is simulated step by step ([`program`](SharingMethod)): a core that takes a lock asks for its
//! cache line, waits until the line comes, finds the lock taken or free, watches it, tries again. How many nanoseconds a line
//! takes from core to core, and what a packet costs where no other core is, a [`SharingProfile`] says; how throughput, waiting
//! and latency go with cores is in no number of it. Packets come at random, work varies, and one packet in so many begins a
//! flow, all drawn from the seed: so the same options give the same results.
//!
//! # What is not modelled
//!
//! Memory bandwidth, sockets (all cores are as far from each other), how full a table is, and lines that two cores share by
//! chance: with many flows a look-up rarely meets an entry that another core has just changed. A table that nothing protects
//! does not corrupt here. Threads that run on one processor in turns are no cores.

mod line;
mod machine;
mod profile;
mod program;
#[cfg(test)]
mod tests;

pub use line::LineCosts;
pub use profile::{MarkingCard, MethodCosts, PacketCosts, SharingProfile};
pub use program::SharingMethod;

use machine::Machine;

/// Cores at most.
pub const CORES_MAX: u16 = 32;
/// Seconds of virtual time at most, of a run and of what is before it.
const SECONDS_MAX: f64 = 10.0;

/// A run.
#[derive(Clone, Debug)]
pub struct SharingOptions {
    /// The device.
    pub profile: SharingProfile,
    /// How connections are found: one that the profile has.
    pub method: SharingMethod,
    /// Cores, 1 to [`CORES_MAX`].
    pub cores: u16,
    /// Packets offered in a second to all cores together; as many as the profile's line carries, if `None`.
    pub offered_pps: Option<f64>,
    /// Seconds of virtual time before anything is counted.
    pub warm_up: f64,
    /// Seconds of virtual time that are counted.
    pub seconds: f64,
    /// The seed of all that is drawn.
    pub seed: u64,
}

/// The outcome of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SharingResults {
    /// Packets in a second, of all cores together.
    pub received_pps: f64,
    /// The part of the packets offered that found a full queue.
    pub lost: f64,
    /// The part of the cores' time in which they waited for a lock: to get it, and to give it back.
    pub waiting: f64,
    /// The part of the cores' time in which they waited for other lines that they share.
    pub transfers: f64,
    /// The part of the cores' time in which they had no packet.
    pub idle: f64,
    /// The part of the packets looked up that a card had marked.
    pub marked: f64,
    /// Through the balancer and back, in nanoseconds.
    pub round_trip: RoundTrip,
}

/// Round trips: the time of a client's packet in the device and that of a backend's, added. In nanoseconds; 0 if there were
/// none.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RoundTrip {
    /// The mean.
    pub mean: f64,
    /// A quarter does not exceed it.
    pub p25: f64,
    /// Half does not exceed it.
    pub p50: f64,
    /// Three quarters do not exceed it.
    pub p75: f64,
    /// 99 of 100 do not exceed it.
    pub p99: f64,
}

/// Simulates a run.
///
/// # Errors
/// The contradictions in the options.
pub fn simulate(options: &SharingOptions) -> Result<SharingResults, String> {
    let SharingOptions { profile, method, cores, offered_pps, warm_up, seconds, .. } = options;
    profile.check()?;
    if !(1..=CORES_MAX).contains(cores) {
        return Err(format!("there are 1 to {CORES_MAX} cores, not {cores}"));
    }
    if !(0.0..=SECONDS_MAX).contains(warm_up) || !(1e-6..=SECONDS_MAX).contains(seconds) {
        return Err(format!("a run takes up to {SECONDS_MAX} s of virtual time, and as much before it"));
    }
    if offered_pps.is_some_and(|pps| !(1.0..=1e12).contains(&pps)) {
        return Err("offered_pps is 1 to 10^12".into());
    }
    if *method == SharingMethod::Marks && profile.card.is_none() {
        return Err(format!("{} needs the profile of a card", method.name()));
    }
    Ok(Machine::new(options)?.run())
}

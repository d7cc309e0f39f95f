//! The highest rate that a device under test forwards with no more loss than allowed.
//!
//! RFC 2544, section 26.1, asks for the highest rate without any loss and finds it by halving. On a machine whose cores
//! are not its own that is a lottery: one stolen millisecond makes a lossless rate a lossy one. So this follows MLRsearch
//! (draft-ietf-bmwg-mlrsearch): several *goals*, each with a loss ratio of its own (0: no-drop; more: partial-drop);
//! the first trial is as fast as the source can, and what then comes through is where the search begins; short trials
//! find the neighbourhood and long ones decide; a load is judged by the majority of several trials, so that a single
//! disturbed one decides nothing; bounds are moved outwards by doubling steps and inwards by halving; the upper bound on
//! which a search would end is judged once more before it does. RFC 2544's own way is [`SearchOptions::rfc2544`]: one trial for
//! each load, and any loss counts.
//!
//! A trial that loses too much while a thread of the testbed was kept from its processor shows nothing of the device: it is
//! made again, so many times for each load.
//!
//! The whole search is repeated ([`repeat`]), and the mean comes with its confidence interval ([`crate::statistics`]).
//! Nothing here knows how packets are sent: a [`Probe`] does.

mod adapter;
mod repeat;
mod search;
#[cfg(test)]
mod tests;

pub use adapter::TestbedProbe;
pub use repeat::{Repeated, repeat};
pub use search::{SearchOptions, SearchOutcome, SearchResult, SearchStage, SearchStep, search};

use std::time::Duration;

/// How fast to send.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OfferedLoad {
    /// As fast as the source can; it may wait for the device.
    Most,
    /// Packets per second; the source does not wait for the device.
    Rate(f64),
}

/// The counts of a trial.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TrialObservation {
    /// Packets per second that the source really sent.
    pub offered: f64,
    /// Packets per second that came through.
    pub forwarded: f64,
    /// Packets sent.
    pub sent: u64,
    /// Packets sent that did not arrive.
    pub lost: u64,
    /// A thread of the testbed was kept from its processor: what was lost need not be for want of speed.
    pub is_starved: bool,
}

impl TrialObservation {
    /// Lost of sent, 0 to 1; 1 if nothing was sent, for nothing was shown.
    pub fn loss_ratio(&self) -> f64 {
        if self.sent == 0 { 1.0 } else { self.lost as f64 / self.sent as f64 }
    }
}

/// Something that can be sent packets at a rate.
pub trait Probe {
    /// Sends for `duration` at `load`.
    ///
    /// # Errors
    /// When the trial itself failed, not when packets were lost.
    fn probe(&mut self, load: OfferedLoad, duration: Duration) -> anyhow::Result<TrialObservation>;
}

//! One trial: a device under test between a generator and a sink, measured once.
//!
//! [`Trial`] says what is to be measured, [`Measurement`] what came out, [`Testbed`] is what measures it: rings in one
//! process, ports, or a model.

pub mod account;
pub mod balancer;
pub mod card;
pub mod cores;
pub mod device;
pub mod ends;
pub mod generator;
mod measurement;
pub mod meter;
pub mod offload;
#[cfg(feature = "dpdk")]
pub mod ports;
#[cfg(feature = "dpdk")]
pub mod rings;
pub mod sources;
pub mod table;
#[cfg(test)]
mod tests;
mod trial;

pub use measurement::{LatencySummary, Measurement, Ran, TimeProfile, TrialSample};
pub use trial::{Arrivals, Device, FrameSize, Masks, PacketSource, SendRate, TransportProtocol, Trial, UnknownWord};

use std::time::Duration;

/// The progress of a trial.
#[derive(Clone, Debug)]
pub enum TrialProgress {
    /// Something before the clock starts: opening, filling the table.
    Preparing {
        /// What, for people.
        what: String,
    },
    /// The clock starts now. The same threads run until the trial is over.
    Started {
        /// Thread numbers (as `gettid` gives them) of the device under test's cores.
        device: Vec<u32>,
    },
    /// It is running; told about ten times a second.
    Running {
        /// Since the clock started.
        elapsed: Duration,
        /// Packets sent so far.
        sent: u64,
        /// Packets received so far.
        received: u64,
    },
}

/// A means of measuring a trial.
pub trait Testbed {
    /// Why it cannot do this trial (too few cores, no such table), for people; `None` if it can.
    fn obstacle(&self, trial: &Trial) -> Option<String>;

    /// Measures once, from an empty table ([`Trial::run`] says how it is filled before the clock starts).
    ///
    /// # Errors
    /// Fails if something could not be set up, or if there are frames that are not accounted for: then there is no
    /// measurement at all.
    fn measure(&mut self, trial: &Trial, progress: &mut dyn FnMut(TrialProgress)) -> anyhow::Result<Measurement>;
}

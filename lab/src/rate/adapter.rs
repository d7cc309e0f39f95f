//! A testbed as something that can be sent packets at a rate.

use super::{OfferedLoad, Probe, TrialObservation};
use crate::testbed::{SendRate, Testbed, Trial, TrialProgress};
use anyhow::Result;
use std::time::Duration;

/// Trials of one kind on a testbed; each has a seed of its own.
pub struct TestbedProbe<'a> {
    testbed: &'a mut dyn Testbed,
    trial: Trial,
    progress: &'a mut dyn FnMut(TrialProgress),
}

impl<'a> TestbedProbe<'a> {
    /// Trials like this one, but for rate, duration and seed, which counts up. `progress` hears of each.
    pub fn new(
        testbed: &'a mut dyn Testbed,
        trial: &Trial,
        progress: &'a mut dyn FnMut(TrialProgress),
    ) -> TestbedProbe<'a> {
        TestbedProbe { testbed, trial: trial.clone(), progress }
    }
}

impl Probe for TestbedProbe<'_> {
    fn probe(&mut self, load: OfferedLoad, duration: Duration) -> Result<TrialObservation> {
        self.trial.rate = match load {
            OfferedLoad::Most => SendRate::Max,
            OfferedLoad::Rate(rate) => SendRate::Packets(rate),
        };
        self.trial.duration = duration;
        let measured = self.testbed.measure(&self.trial, self.progress)?;
        self.trial.seed = self.trial.seed.wrapping_add(1);
        let (offered, forwarded) = (measured.tx_pps, measured.rx_pps);
        let (sent, lost, is_starved) = (measured.sent, measured.lost(), measured.is_starved());
        Ok(TrialObservation { offered, forwarded, sent, lost, is_starved })
    }
}

//! Which processor does what.

use anyhow::{Context, Result};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::time::Duration;

/// Processors this process may use, in order.
///
/// # Errors
/// The kernel does not say.
pub fn allowed() -> Result<Vec<usize>> {
    let set = sched_getaffinity(None).context("cannot find out which processors may be used")?;
    Ok((0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect())
}

/// Keeps the calling thread on `cpu`.
///
/// # Errors
/// It may not run there.
pub fn pin(cpu: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).with_context(|| format!("cannot stay on processor {cpu}"))
}

/// Who runs where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The processor of each of the device's cores.
    pub device: Vec<usize>,
    /// The processor of each lane's generator.
    pub generators: Vec<usize>,
    /// The processor of each lane's sink; the same as its generator's where there are too few for both.
    pub sinks: Vec<usize>,
}

impl Plan {
    /// For `lanes` of the device's cores among `cpus`; `None` if there are too few: one for each lane, and one more.
    pub fn new(cpus: &[usize], lanes: usize) -> Option<Plan> {
        let testers = cpus.len().checked_sub(lanes).filter(|&left| left > 0 && lanes > 0)?;
        let device = cpus[testers..].to_vec();
        let at = |number: usize| cpus[number % testers];
        let generators = (0..lanes).map(at).collect();
        let apart = testers >= 2 * lanes;
        let sinks = (0..lanes).map(|lane| at(if apart { lanes + lane } else { lane })).collect();
        Some(Plan { device, generators, sinks })
    }
}

/// A thread that polls, and sleeps between looks once nothing has come for some milliseconds.
///
/// It leaves the processor to others, and a peer that goes away finds it asleep rather than inside its driver: DPDK's
/// memif driver unmaps the memory that it shared with a peer under whoever is just polling it, so a thread that lost
/// its processor there dies of a segmentation fault.
#[derive(Default)]
pub(super) struct Watch {
    in_vain: u32,
}

impl Watch {
    /// Looks in vain, one after the other, before it sleeps.
    const PATIENCE: u32 = 100_000;
    /// Between looks then.
    const NAP: Duration = Duration::from_micros(50);

    /// After every look, and whether anything came.
    #[inline]
    pub(super) fn looked(&mut self, came: bool) {
        self.in_vain = if came { 0 } else { self.in_vain.saturating_add(1) };
        if self.in_vain > Self::PATIENCE {
            std::thread::sleep(Self::NAP);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_runs_where() {
        let plan = |cpus: usize, lanes| Plan::new(&(0..cpus).collect::<Vec<_>>(), lanes);
        assert_eq!(plan(1, 1), None);
        assert_eq!(plan(2, 2), None);
        assert_eq!(plan(2, 0), None);
        let expected = Plan { device: vec![1], generators: vec![0], sinks: vec![0] };
        assert_eq!(plan(2, 1), Some(expected));
        let expected = Plan { device: vec![2], generators: vec![0], sinks: vec![1] };
        assert_eq!(plan(3, 1), Some(expected));
        let expected = Plan { device: vec![1, 2], generators: vec![0, 0], sinks: vec![0, 0] };
        assert_eq!(plan(3, 2), Some(expected));
        let expected = Plan { device: vec![4, 5], generators: vec![0, 1], sinks: vec![2, 3] };
        assert_eq!(plan(6, 2), Some(expected));
    }
}

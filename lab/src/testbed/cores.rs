//! Which processor does what, and whether it does.

use anyhow::{Context, Result};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::time::{Duration, Instant};

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

/// The cores of all threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CorePlan {
    /// The processor of each of the device's cores.
    pub device: Vec<usize>,
    /// The processor of each lane's generator.
    pub generators: Vec<usize>,
    /// The processor of each lane's sink; the same as its generator's where there are too few for both.
    pub sinks: Vec<usize>,
}

impl CorePlan {
    /// For `lanes` of the device's cores among `cpus`; `None` if there are too few: one for each lane, and one more.
    pub fn new(cpus: &[usize], lanes: usize) -> Option<CorePlan> {
        let testers = cpus.len().checked_sub(lanes).filter(|&left| left > 0 && lanes > 0)?;
        let device = cpus[testers..].to_vec();
        let at = |number: usize| cpus[number % testers];
        let generators = (0..lanes).map(at).collect();
        let apart = testers >= 2 * lanes;
        let sinks = (0..lanes).map(|lane| at(if apart { lanes + lane } else { lane })).collect();
        Some(CorePlan { device, generators, sinks })
    }

    /// A plan also where there are too few processors: threads share processors, and take turns on them.
    pub fn crowded(cpus: &[usize], lanes: usize) -> Option<CorePlan> {
        if cpus.is_empty() || lanes == 0 || cpus.len() > lanes {
            return CorePlan::new(cpus, lanes);
        }
        let from = |first: usize| (first..first + lanes).map(|number| cpus[number % cpus.len()]).collect();
        Some(CorePlan { device: from(0), generators: from(0), sinks: from(1) })
    }
}

/// A thread that polls, and sleeps between polls once nothing has come for some milliseconds.
///
/// It leaves the processor to others, and a peer that goes away finds it asleep rather than inside its driver: DPDK's
/// memif driver unmaps the memory that it shared with a peer under a thread that is just polling it, so a thread that
/// lost its processor there dies of a segmentation fault.
#[derive(Default)]
pub(super) struct CoreWatch {
    in_vain: u32,
    slept: Duration,
}

impl CoreWatch {
    /// Looks in vain, one after the other, before it sleeps.
    const PATIENCE: u32 = 100_000;
    /// The interval of polls then.
    const NAP: Duration = Duration::from_micros(50);
    /// The part of a thread's time that a nap may take by its own choice; time beyond that was taken by others.
    const NAP_MAX: Duration = Duration::from_millis(1);

    /// To be called after every poll, with whether anything came.
    #[inline]
    pub(super) fn polled(&mut self, came: bool) {
        self.in_vain = if came { 0 } else { self.in_vain.saturating_add(1) };
        if self.in_vain > Self::PATIENCE {
            let since = Instant::now();
            std::thread::sleep(Self::NAP);
            self.slept += since.elapsed().min(Self::NAP_MAX);
        }
    }

    /// How long it has slept, by its own choice.
    pub(super) fn slept(&self) -> Duration {
        self.slept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_runs_where() {
        let plan = |cpus: usize, lanes| CorePlan::new(&(0..cpus).collect::<Vec<_>>(), lanes);
        assert_eq!(plan(1, 1), None);
        assert_eq!(plan(2, 2), None);
        assert_eq!(plan(2, 0), None);
        let expected = CorePlan { device: vec![1], generators: vec![0], sinks: vec![0] };
        assert_eq!(plan(2, 1), Some(expected));
        let expected = CorePlan { device: vec![2], generators: vec![0], sinks: vec![1] };
        assert_eq!(plan(3, 1), Some(expected));
        let expected = CorePlan { device: vec![1, 2], generators: vec![0, 0], sinks: vec![0, 0] };
        assert_eq!(plan(3, 2), Some(expected));
        let expected = CorePlan { device: vec![4, 5], generators: vec![0, 1], sinks: vec![2, 3] };
        assert_eq!(plan(6, 2), Some(expected));
        let expected = CorePlan { device: vec![0, 1, 0], generators: vec![0, 1, 0], sinks: vec![1, 0, 1] };
        assert_eq!(CorePlan::crowded(&[0, 1], 3), Some(expected));
        assert_eq!((CorePlan::crowded(&[], 1), CorePlan::crowded(&[0], 0)), (None, None));
        assert_eq!(CorePlan::crowded(&[0, 1, 2], 2), plan(3, 2), "there are enough");
    }
}

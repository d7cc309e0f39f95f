//! The times of a device's iterations, by the number of packets in them: for calibration.
//!
//! A polling core is on the processor all the time, whether there is work or not, so processor time alone does not tell
//! what work costs. The meter reads the clock once per iteration (what that costs is taken off) and adds the iteration to
//! those of its size. An iteration that took [`ITERATION_MAX_NS`] or more, or [`TIMES_MAX`] times as long as those of its
//! size do, was interrupted - by the scheduler or the host - and is left out: so on a machine that others use what remains
//! is what the work takes.

use crate::clock;
use hairpin_core::frame::BATCH_MAX;
use serde::{Deserialize, Serialize};

/// No iteration takes that long by itself: 64 packets at 600 ns are less than half of it.
pub const ITERATION_MAX_NS: u64 = 100_000;
/// No iteration takes so many times as long as the mean of its size by itself.
pub const TIMES_MAX: u64 = 4;
/// Iterations of a size before their mean means anything.
const ITERATIONS_MIN: u64 = 16;
/// Looks at the clock for finding out what one costs.
const CLOCK_READS: u64 = 20_000;

/// Iterations of one size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Iterations {
    /// Packets in each; 0: nothing came.
    pub packets: usize,
    /// Iterations.
    pub count: u64,
    /// Nanoseconds of all of them together.
    pub ns: f64,
}

/// The work of a device's core while it was measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CoreWork {
    /// Iterations by size, rising; sizes that did not occur are not there.
    pub iterations: Vec<Iterations>,
    /// Packets in iterations that were interrupted.
    pub interrupted: u64,
    /// Iterations in which it waited for room to send.
    pub blocked: u64,
}

impl CoreWork {
    /// Packets in iterations that count.
    pub fn packets(&self) -> u64 {
        self.iterations.iter().map(|iterations| iterations.packets as u64 * iterations.count).sum()
    }

    /// Nanoseconds of iterations with packets.
    pub fn busy_ns(&self) -> f64 {
        self.iterations.iter().filter(|iterations| iterations.packets > 0).map(|iterations| iterations.ns).sum()
    }

    /// Nanoseconds for each packet; not a number if there was none.
    pub fn packet_ns(&self) -> f64 {
        self.busy_ns() / self.packets() as f64
    }

    /// Packets of an iteration, on average, of iterations with packets; not a number if there was none.
    pub fn burst(&self) -> f64 {
        let iterations: u64 =
            self.iterations.iter().filter(|iterations| iterations.packets > 0).map(|iterations| iterations.count).sum();
        self.packets() as f64 / iterations as f64
    }

    /// Nanoseconds of an iteration in which nothing came; `None` if there was none.
    pub fn poll_ns(&self) -> Option<f64> {
        self.iterations
            .first()
            .filter(|iterations| iterations.packets == 0 && iterations.count > 0)
            .map(|idle| idle.ns / idle.count as f64)
    }

    /// Adds what another core, or the same in another trial, has done.
    pub fn add(&mut self, other: &CoreWork) {
        for iterations in &other.iterations {
            match self.iterations.binary_search_by_key(&iterations.packets, |own| own.packets) {
                Ok(at) => {
                    self.iterations[at].count += iterations.count;
                    self.iterations[at].ns += iterations.ns;
                }
                Err(at) => self.iterations.insert(at, *iterations),
            }
        }
        self.interrupted += other.interrupted;
        self.blocked += other.blocked;
    }
}

/// Measures a core's iterations.
#[derive(Clone, Debug)]
pub struct CoreMeter {
    iterations: [(u64, u64); BATCH_MAX + 1],
    interrupted: u64,
    blocked: u64,
    clock_read_ns: f64,
    last: u64,
}

impl CoreMeter {
    /// One that has measured nothing, for the calling thread's processor.
    pub fn new() -> CoreMeter {
        CoreMeter {
            iterations: [(0, 0); BATCH_MAX + 1],
            interrupted: 0,
            blocked: 0,
            clock_read_ns: clock_read_ns(),
            last: clock::now(),
        }
    }

    /// Forgets what there was; iterations begin now.
    pub fn restart(&mut self) {
        self.iterations = [(0, 0); BATCH_MAX + 1];
        (self.interrupted, self.blocked) = (0, 0);
        self.last = clock::now();
    }

    /// An iteration has ended that took so many packets in; `None`: it only tried to send again.
    #[inline]
    pub fn iteration(&mut self, packets: Option<usize>) {
        let now = clock::now();
        let took = now.saturating_sub(self.last);
        self.last = now;
        let Some(packets) = packets else {
            self.blocked += 1;
            return;
        };
        let iterations = &mut self.iterations[packets.min(BATCH_MAX)];
        let usual = iterations.0 < ITERATIONS_MIN || took * iterations.0 < iterations.1 * TIMES_MAX;
        if took < ITERATION_MAX_NS && usual {
            iterations.0 += 1;
            iterations.1 += took;
        } else {
            self.interrupted += packets as u64;
        }
    }

    /// Its measurements, without its own reads of the clock.
    pub fn work(&self) -> CoreWork {
        let there = self.iterations.iter().enumerate().filter(|(_, iterations)| iterations.0 > 0);
        let iterations = there.map(|(packets, &(count, ns))| {
            let ns = (ns as f64 - self.clock_read_ns * count as f64).max(0.0);
            Iterations { packets, count, ns }
        });
        CoreWork { iterations: iterations.collect(), interrupted: self.interrupted, blocked: self.blocked }
    }
}

impl Default for CoreMeter {
    fn default() -> CoreMeter {
        CoreMeter::new()
    }
}

/// Nanoseconds of a read of the clock: the least of some tries, as only interruptions make it more.
fn clock_read_ns() -> f64 {
    let tries = (0..5).map(|_| {
        let start = clock::now();
        (1..CLOCK_READS).for_each(|_| _ = std::hint::black_box(clock::now()));
        clock::now().saturating_sub(start) as f64 / CLOCK_READS as f64
    });
    tries.fold(f64::INFINITY, f64::min)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iterations_are_counted_by_size() {
        let mut meter = CoreMeter { clock_read_ns: 0.0, ..CoreMeter::new() };
        let mut iteration = |packets, ns| {
            // The clock has moved on by so much, and a little.
            meter.last = clock::now() - ns;
            meter.iteration(packets);
        };
        iteration(Some(0), 10);
        iteration(Some(3), 1000);
        iteration(Some(3), 3000);
        iteration(Some(64), ITERATION_MAX_NS);
        iteration(None, 50);
        (0..1000).for_each(|_| iteration(Some(7), 1000));
        iteration(Some(7), 90_000);
        let work = meter.work();
        // Another thread on this thread's processor makes it more.
        assert!(work.interrupted >= 71 && work.blocked == 1, "{work:?}");
        let sizes: Vec<_> = work.iterations.iter().map(|iterations| (iterations.packets, iterations.count)).collect();
        assert!(sizes == [(0, 1), (3, 2), (7, 1000)] || work.interrupted > 71, "{work:?}");
        assert!(work.busy_ns() / (work.packets() as f64) < 1000.0);
        meter.restart();
        assert_eq!(meter.work(), CoreWork::default());
    }

    #[test]
    fn works_add_up() {
        let iterations = |packets, count, ns| Iterations { packets, count, ns };
        let mut one = CoreWork {
            iterations: vec![iterations(0, 5, 100.0), iterations(2, 10, 400.0)],
            interrupted: 1,
            blocked: 2,
        };
        one.add(&CoreWork {
            iterations: vec![iterations(1, 1, 30.0), iterations(2, 10, 600.0)],
            interrupted: 2,
            blocked: 0,
        });
        assert_eq!(one.iterations, [iterations(0, 5, 100.0), iterations(1, 1, 30.0), iterations(2, 20, 1000.0)]);
        assert_eq!((one.interrupted, one.blocked, one.packets(), one.poll_ns()), (3, 2, 41, Some(20.0)));
        assert!((one.packet_ns() - 1030.0 / 41.0).abs() < 1e-9);
        assert!(CoreWork::default().packet_ns().is_nan() && CoreWork::default().poll_ns().is_none());
    }
}

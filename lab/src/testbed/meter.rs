//! What a device's turns take, by how many packets are in them: for calibration.
//!
//! A polling core is on the processor all the time, whether there is work or not, so processor time alone does not tell
//! what work costs. The meter looks at the clock once a turn (what that costs is taken off) and adds the turn to those of
//! its size. A turn that took [`TURN_MAX_NS`] or more, or [`TIMES_MAX`] times as long as those of its size do, was
//! interrupted - by the scheduler or the host - and is left out: so on a machine that others use what remains is what the
//! work takes.

use crate::clock;
use hairpin_core::frame::BATCH_MAX;
use serde::{Deserialize, Serialize};

/// No turn takes that long by itself: 64 packets at 600 ns are less than half of it.
pub const TURN_MAX_NS: u64 = 100_000;
/// No turn takes so many times as long as the mean of its size by itself.
pub const TIMES_MAX: u64 = 4;
/// Turns of a size before their mean means anything.
const TURNS_MIN: u64 = 16;
/// Looks at the clock for finding out what one costs.
const LOOKS: u64 = 20_000;

/// Turns of one size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Turns {
    /// Packets in each; 0: nothing came.
    pub packets: usize,
    /// Turns.
    pub count: u64,
    /// Nanoseconds of all of them together.
    pub ns: f64,
}

/// What a device's core has done while it was measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Work {
    /// Turns by size, rising; sizes that did not occur are not there.
    pub turns: Vec<Turns>,
    /// Packets in turns that were interrupted.
    pub interrupted: u64,
    /// Turns in which it waited for room to send.
    pub blocked: u64,
}

impl Work {
    /// Packets in turns that count.
    pub fn packets(&self) -> u64 {
        self.turns.iter().map(|turns| turns.packets as u64 * turns.count).sum()
    }

    /// Nanoseconds of turns with packets.
    pub fn busy_ns(&self) -> f64 {
        self.turns.iter().filter(|turns| turns.packets > 0).map(|turns| turns.ns).sum()
    }

    /// Nanoseconds for each packet; not a number if there was none.
    pub fn packet_ns(&self) -> f64 {
        self.busy_ns() / self.packets() as f64
    }

    /// Packets of a turn, on average, of turns with packets; not a number if there was none.
    pub fn burst(&self) -> f64 {
        let turns: u64 = self.turns.iter().filter(|turns| turns.packets > 0).map(|turns| turns.count).sum();
        self.packets() as f64 / turns as f64
    }

    /// Nanoseconds of a turn in which nothing came; `None` if there was none.
    pub fn poll_ns(&self) -> Option<f64> {
        self.turns.first().filter(|turns| turns.packets == 0 && turns.count > 0).map(|idle| idle.ns / idle.count as f64)
    }

    /// Adds what another core, or the same in another trial, has done.
    pub fn add(&mut self, other: &Work) {
        for turns in &other.turns {
            match self.turns.binary_search_by_key(&turns.packets, |own| own.packets) {
                Ok(at) => {
                    self.turns[at].count += turns.count;
                    self.turns[at].ns += turns.ns;
                }
                Err(at) => self.turns.insert(at, *turns),
            }
        }
        self.interrupted += other.interrupted;
        self.blocked += other.blocked;
    }
}

/// Measures a core's turns.
#[derive(Clone, Debug)]
pub struct Meter {
    turns: [(u64, u64); BATCH_MAX + 1],
    interrupted: u64,
    blocked: u64,
    look_ns: f64,
    last: u64,
}

impl Meter {
    /// One that has measured nothing, for the calling thread's processor.
    pub fn new() -> Meter {
        Meter { turns: [(0, 0); BATCH_MAX + 1], interrupted: 0, blocked: 0, look_ns: look_ns(), last: clock::now() }
    }

    /// Forgets what there was; turns begin now.
    pub fn restart(&mut self) {
        self.turns = [(0, 0); BATCH_MAX + 1];
        (self.interrupted, self.blocked) = (0, 0);
        self.last = clock::now();
    }

    /// A turn has ended that took so many packets in; `None`: it only tried to send again.
    #[inline]
    pub fn turn(&mut self, packets: Option<usize>) {
        let now = clock::now();
        let took = now.saturating_sub(self.last);
        self.last = now;
        let Some(packets) = packets else {
            self.blocked += 1;
            return;
        };
        let turns = &mut self.turns[packets.min(BATCH_MAX)];
        let usual = turns.0 < TURNS_MIN || took * turns.0 < turns.1 * TIMES_MAX;
        if took < TURN_MAX_NS && usual {
            turns.0 += 1;
            turns.1 += took;
        } else {
            self.interrupted += packets as u64;
        }
    }

    /// What it has measured, without its own looks at the clock.
    pub fn work(&self) -> Work {
        let there = self.turns.iter().enumerate().filter(|(_, turns)| turns.0 > 0);
        let turns = there.map(|(packets, &(count, ns))| {
            let ns = (ns as f64 - self.look_ns * count as f64).max(0.0);
            Turns { packets, count, ns }
        });
        Work { turns: turns.collect(), interrupted: self.interrupted, blocked: self.blocked }
    }
}

impl Default for Meter {
    fn default() -> Meter {
        Meter::new()
    }
}

/// Nanoseconds of a look at the clock: the least of some tries, as only interruptions make it more.
fn look_ns() -> f64 {
    let tries = (0..5).map(|_| {
        let start = clock::now();
        (1..LOOKS).for_each(|_| _ = std::hint::black_box(clock::now()));
        clock::now().saturating_sub(start) as f64 / LOOKS as f64
    });
    tries.fold(f64::INFINITY, f64::min)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_counted_by_size_and_interrupted_ones_left_out() {
        let mut meter = Meter { look_ns: 0.0, ..Meter::new() };
        let mut turn = |packets, ns| {
            // The clock has moved on by so much, and a little.
            meter.last = clock::now() - ns;
            meter.turn(packets);
        };
        turn(Some(0), 10);
        turn(Some(3), 1000);
        turn(Some(3), 3000);
        turn(Some(64), TURN_MAX_NS);
        turn(None, 50);
        (0..1000).for_each(|_| turn(Some(7), 1000));
        turn(Some(7), 90_000);
        let work = meter.work();
        // Another thread on this thread's processor makes it more.
        assert!(work.interrupted >= 71 && work.blocked == 1, "{work:?}");
        let sizes: Vec<_> = work.turns.iter().map(|turns| (turns.packets, turns.count)).collect();
        assert!(sizes == [(0, 1), (3, 2), (7, 1000)] || work.interrupted > 71, "{work:?}");
        assert!(work.busy_ns() / (work.packets() as f64) < 1000.0);
        meter.restart();
        assert_eq!(meter.work(), Work::default());
    }

    #[test]
    fn works_add_up() {
        let turns = |packets, count, ns| Turns { packets, count, ns };
        let mut one = Work { turns: vec![turns(0, 5, 100.0), turns(2, 10, 400.0)], interrupted: 1, blocked: 2 };
        one.add(&Work { turns: vec![turns(1, 1, 30.0), turns(2, 10, 600.0)], interrupted: 2, blocked: 0 });
        assert_eq!(one.turns, [turns(0, 5, 100.0), turns(1, 1, 30.0), turns(2, 20, 1000.0)]);
        assert_eq!((one.interrupted, one.blocked, one.packets(), one.poll_ns()), (3, 2, 41, Some(20.0)));
        assert!((one.packet_ns() - 1030.0 / 41.0).abs() < 1e-9);
        assert!(Work::default().packet_ns().is_nan() && Work::default().poll_ns().is_none());
    }
}

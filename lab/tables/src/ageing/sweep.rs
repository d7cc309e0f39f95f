//! A walk over the slab that comes by every position once in a period.
//!
//! It keeps nothing per entry. Each call visits as many positions as the time since the last one asks for, so that
//! the work is spread evenly; it reads the memory of all entries once in a period, whether they are over or not, which
//! makes short periods dear.

use super::{Ageing, BATCH, Deadlines, JUDGED_MAX, judge, nanos};
use arrayvec::ArrayVec;
use hairpin_core::table::Position;
use hairpin_core::time::{Duration, Time};

/// The walk.
///
/// A round takes one period, and covers the positions that had been used when it began. After silence of any length
/// there are at most two rounds to catch up with.
pub struct SlabSweep {
    /// Nanoseconds of a round.
    period: u64,
    /// When the round began, in nanoseconds.
    began: u64,
    /// Positions of this round.
    end: u32,
    /// The next one.
    cursor: u32,
    /// All positions that were ever used are below.
    used: u32,
}

impl SlabSweep {
    /// A walk that comes by once in a `period` (1 ns at least).
    pub fn new(period: Duration) -> SlabSweep {
        SlabSweep { period: nanos(period), began: 0, end: 0, cursor: 0, used: 0 }
    }

    /// Positions of this round that should have been visited at `now`.
    fn wanted(&self, now: u64) -> u32 {
        let elapsed = now.saturating_sub(self.began).min(self.period);
        // At most `end`.
        (u128::from(self.end) * u128::from(elapsed) / u128::from(self.period)) as u32
    }

    /// When the round is over, in nanoseconds.
    fn over(&self) -> u64 {
        self.began.saturating_add(self.period)
    }

    /// Begins another round if this one is over at `now`.
    fn turn(&mut self, now: u64) {
        if self.cursor == self.end && now >= self.over() {
            // Time missed during a silence counts once.
            self.began = self.over().max(now - self.period.min(now));
            self.end = self.used;
            self.cursor = 0;
        }
    }
}

impl Ageing for SlabSweep {
    fn name(&self) -> &'static str {
        "sweep"
    }

    fn bytes(&self) -> usize {
        0
    }

    /// Two periods: one, or two if it was not there yet when the last round began.
    fn late_max(&self) -> Duration {
        Duration::from_nanos(self.period.saturating_mul(2))
    }

    fn started(&mut self, position: Position, _: Time) {
        self.used = self.used.max(position.saturating_add(1));
    }

    fn ended(&mut self, _: Position) {}

    fn due<D: Deadlines, const N: usize>(&mut self, now: Time, entries: &D, out: &mut ArrayVec<Position, N>) -> bool {
        let nanoseconds = now.as_nanos();
        // Once: a call stays within one round, so that it meets no position twice.
        self.turn(nanoseconds);
        let mut budget = JUDGED_MAX as u32;
        loop {
            let behind = self.wanted(nanoseconds).saturating_sub(self.cursor);
            if behind == 0 {
                return self.used > 0 && self.cursor == self.end && nanoseconds >= self.over();
            }
            let count = behind.min(budget).min(BATCH as u32).min(out.remaining_capacity() as u32);
            if count == 0 {
                return true;
            }
            let batch: ArrayVec<Position, BATCH> = (self.cursor..self.cursor + count).collect();
            judge(now, entries, &batch, out, |_, _| {});
            self.cursor += count;
            budget -= count;
        }
    }

    fn next(&self, _: Time) -> Option<Time> {
        if self.used == 0 {
            return None;
        }
        // A call's worth of visits from now, or the end of the round.
        let visits = u64::from(self.cursor) + JUDGED_MAX as u64;
        let share = match visits < u64::from(self.end) {
            true => (u128::from(self.period) * u128::from(visits)).div_ceil(u128::from(self.end)) as u64,
            false => self.period,
        };
        Some(Time::from_nanos(self.began.saturating_add(share)))
    }
}

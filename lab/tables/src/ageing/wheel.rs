//! The timer wheel as a lazy mechanism.

use super::{Ageing, BATCH, Deadlines, JUDGED_MAX, judge};
use crate::wheel::Wheel;
use arrayvec::ArrayVec;
use hairpin_core::table::Position;
use hairpin_core::time::{Duration, Time};

impl Ageing for Wheel {
    fn name(&self) -> &'static str {
        "wheel"
    }

    fn bytes(&self) -> usize {
        Wheel::bytes(self)
    }

    /// Two granularities: one, or two if it was past when it was told.
    fn late_max(&self) -> Duration {
        self.granularity().saturating_mul(2)
    }

    fn started(&mut self, position: Position, deadline: Time) {
        self.schedule(position, deadline);
    }

    fn ended(&mut self, position: Position) {
        self.cancel(position);
    }

    fn due<D: Deadlines, const N: usize>(&mut self, now: Time, entries: &D, out: &mut ArrayVec<Position, N>) -> bool {
        let mut judged = 0;
        while judged < JUDGED_MAX {
            let room = BATCH.min(JUDGED_MAX - judged).min(out.remaining_capacity());
            let mut batch: ArrayVec<Position, BATCH> = ArrayVec::new();
            let more = self.take(now, room, &mut batch);
            judge(now, entries, &batch, out, |position, deadline| self.schedule(position, deadline));
            if !more {
                return false;
            }
            // Fewer than there was room for: it has passed over enough parked ones for one call.
            if batch.len() < room || out.is_full() {
                return true;
            }
            judged += batch.len();
        }
        true
    }

    fn next(&self, now: Time) -> Option<Time> {
        Wheel::next(self, now)
    }
}

//! A timer wheel over slab positions (Varghese and Lauck, "Hashed and hierarchical timing wheels", 1987, scheme 6).
//!
//! Time is cut into ticks of the wheel's granularity; a deadline is due at the first tick that begins at or after it,
//! so nothing is due early, and at most one granularity late (two if it was already past when it was scheduled). Each
//! position has at most one deadline. A deadline beyond the wheel's span is parked in the slot it will fall into and
//! is passed over until its round comes.
//!
//! Work per call is bounded: [`Wheel::expire`] hands out at most what its caller has room for and passes over at most
//! [`PASSED_MAX`] parked entries, then continues where it stopped; empty slots are skipped 64 at a time, and after a
//! pause of any length at most one round of them. Scheduling and cancelling take constant time and nothing allocates
//! after construction.

use arrayvec::ArrayVec;
use hairpin_core::table::Position;
use hairpin_core::table::zeroed::{Zeroable, zeroed};
use hairpin_core::time::{Duration, Time};
use std::boxed::Box;
use std::vec;

/// Parked entries that one call of [`Wheel::expire`] passes over at most.
pub const PASSED_MAX: usize = 64;

/// Place of a position in the list of its slot; all zero when it has no deadline. Neighbours are positions plus one.
#[repr(C)]
struct SlotLink {
    next: u32,
    previous: u32,
    /// The tick at which it is due, plus one; 0: no deadline.
    due: u64,
}

// SAFETY: three integers.
unsafe impl Zeroable for SlotLink {}

/// First and last of a slot's list, plus one; 0 when it is empty.
#[derive(Clone, Copy, Default)]
struct ListEnds {
    first: u32,
    last: u32,
}

/// The wheel.
pub struct Wheel {
    links: Box<[SlotLink]>,
    slots: Box<[ListEnds]>,
    /// One bit per slot: its list is not empty.
    occupied: Box<[u64]>,
    /// Nanoseconds per tick.
    granularity: u64,
    /// The tick whose slot is processed next; all before it are done.
    cursor: u64,
    /// The position to continue from in the cursor's slot (plus one); 0: at its beginning.
    resume: u32,
    len: usize,
}

impl Wheel {
    /// A wheel for positions below `capacity`, of `slots` slots (a power of two, at least 64; rounded up to one) of one
    /// `granularity` (1 ns at least) each.
    pub fn new(capacity: usize, granularity: Duration, slots: usize) -> Wheel {
        let slots = slots.clamp(64, 1 << 24).next_power_of_two();
        Wheel {
            links: zeroed(capacity),
            slots: vec![ListEnds::default(); slots].into_boxed_slice(),
            occupied: vec![0; slots / 64].into_boxed_slice(),
            granularity: u64::try_from(granularity.as_nanos()).unwrap_or(u64::MAX).max(1),
            cursor: 0,
            resume: 0,
            len: 0,
        }
    }

    /// Bytes it takes.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.links) + size_of_val(&*self.slots) + size_of_val(&*self.occupied)
    }

    /// How long a tick is.
    pub fn granularity(&self) -> Duration {
        Duration::from_nanos(self.granularity)
    }

    /// Positions with a deadline.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no position has a deadline.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether `position` has a deadline.
    pub fn is_scheduled(&self, position: Position) -> bool {
        self.links.get(position as usize).is_some_and(|link| link.due != 0)
    }

    /// Gives `position` the deadline `at`, instead of the one it may have.
    ///
    /// # Panics
    /// If `position` is not below the wheel's capacity.
    pub fn schedule(&mut self, position: Position, at: Time) {
        // A tick that is done would come round only after a whole turn.
        let tick = at.as_nanos().div_ceil(self.granularity).clamp(self.cursor, u64::MAX - 1);
        let link = &self.links[position as usize];
        if link.due == tick + 1 {
            return;
        }
        if link.due != 0 {
            self.unlink(position);
        }
        // At the end of the list, so that a walk that has stopped in this slot will still meet it.
        let slot = self.slot(tick);
        let last = self.slots[slot].last;
        self.links[position as usize] = SlotLink { next: 0, previous: last, due: tick + 1 };
        match last {
            0 => {
                self.slots[slot].first = position + 1;
                self.occupied[slot / 64] |= 1 << (slot % 64);
            }
            _ => self.links[last as usize - 1].next = position + 1,
        }
        self.slots[slot].last = position + 1;
        self.len += 1;
    }

    /// Takes the deadline of `position` away, if it has one.
    pub fn cancel(&mut self, position: Position) {
        if self.is_scheduled(position) {
            self.unlink(position);
        }
    }

    /// Adds positions whose deadline is due at `now` to `out`, until it is full; they have no deadline any more.
    /// Returns whether it stopped early, so that another call would go on.
    pub fn expire<const N: usize>(&mut self, now: Time, out: &mut ArrayVec<Position, N>) -> bool {
        self.take(now, N, out)
    }

    /// [`Wheel::expire`] until there are `limit` positions in `out`.
    pub(crate) fn take<const N: usize>(&mut self, now: Time, limit: usize, out: &mut ArrayVec<Position, N>) -> bool {
        let tick = (now.as_nanos() / self.granularity).min(u64::MAX - 2);
        self.skip_rounds(tick);
        let mut passes = PASSED_MAX;
        while self.cursor <= tick {
            let mut at = match self.resume {
                0 => self.slots[self.slot(self.cursor)].first,
                resume => resume,
            };
            while at != 0 {
                let link = &self.links[at as usize - 1];
                let (next, is_due) = (link.next, link.due <= tick + 1);
                if out.len() >= limit || (!is_due && passes == 0) {
                    self.resume = at;
                    return true;
                }
                if is_due {
                    self.unlink(at - 1);
                    out.push(at - 1);
                } else {
                    passes -= 1;
                }
                at = next;
            }
            self.resume = 0;
            self.cursor = match self.occupied_from(self.cursor + 1) {
                Some(occupied) => occupied.min(tick + 1),
                None => tick + 1,
            };
        }
        false
    }

    /// The earliest time at which something may be due, `None` if nothing is scheduled. It may be too early (when the
    /// next slot holds parked entries only, or is not scanned yet), never too late.
    pub fn next(&self, now: Time) -> Option<Time> {
        if self.len == 0 {
            return None;
        }
        let from = self.cursor.max(self.round_before(now.as_nanos() / self.granularity));
        let tick = self.occupied_from(from)?;
        Some(Time::from_nanos(tick.saturating_mul(self.granularity)))
    }

    fn slot(&self, tick: u64) -> usize {
        tick as usize & (self.slots.len() - 1)
    }

    /// The first of the ticks, `tick` the last, that make one round.
    fn round_before(&self, tick: u64) -> u64 {
        tick.saturating_sub(self.slots.len() as u64 - 1)
    }

    /// Whether an entry is due is told by the deadline, not by the cursor: one round of slots up to `tick` finds all of it,
    /// however long ago the last call was.
    fn skip_rounds(&mut self, tick: u64) {
        let from = self.round_before(tick);
        if from > self.cursor {
            self.cursor = from;
            self.resume = 0;
        }
    }

    /// The first tick, `from` or later, whose slot is not empty. Looks at each word of the bitmap once at most (at the
    /// first one twice).
    fn occupied_from(&self, from: u64) -> Option<u64> {
        let start = self.slot(from);
        let words = self.occupied.len();
        for step in 0..=words {
            let word = (start / 64 + step) % words;
            let mut bits = self.occupied[word];
            if step == 0 {
                bits &= u64::MAX << (start % 64);
            }
            if bits != 0 {
                let found = word * 64 + bits.trailing_zeros() as usize;
                let ahead = found.wrapping_sub(start) & (self.slots.len() - 1);
                return from.checked_add(ahead as u64);
            }
        }
        None
    }

    /// Takes `position`, which has a deadline, out of its list.
    fn unlink(&mut self, position: Position) {
        let SlotLink { next, previous, due } = self.links[position as usize];
        let slot = self.slot(due - 1);
        if self.resume == position + 1 {
            // Nothing behind it: an empty resume would begin again, which is slow but right.
            self.resume = next;
        }
        match previous {
            0 => self.slots[slot].first = next,
            _ => self.links[previous as usize - 1].next = next,
        }
        match next {
            0 => self.slots[slot].last = previous,
            _ => self.links[next as usize - 1].previous = previous,
        }
        if self.slots[slot].first == 0 {
            self.occupied[slot / 64] &= !(1 << (slot % 64));
        }
        self.links[position as usize] = SlotLink { next: 0, previous: 0, due: 0 };
        self.len -= 1;
    }
}

#[cfg(test)]
mod tests;

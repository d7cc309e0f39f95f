//! A stamp of 16 bits for each position: the tick at which its entry is to be asked.
//!
//! It is a timer wheel without lists. Time is cut into ticks; when one begins, a sweep goes over the stamps in order of
//! position and takes those that are due. Beside the stamps of each block of 32 positions (one cache line) stands the
//! earliest of them, so that a sweep reads one stamp in 32 and the blocks in which something is due, and no sweep
//! is made for a tick at which nothing is. What is due comes out in order of position, several at a time, which lets
//! the processor fetch their entries together.
//!
//! A stamp reaches 2^14 - 1 ticks ahead (13 minutes, of 50 ms); an entry that is over later is asked, and put off again,
//! each time that has passed. Stamps are compared modulo 2^15 ticks. Should the caller be silent for longer than they
//! reach, the next sweep takes every one of them for due: the entries themselves know better.

use super::{Ageing, BATCH, Deadlines, JUDGED_MAX, judge, nanos};
use crate::table::Position;
use crate::table::zeroed::{Zeroable, zeroed};
use crate::time::{Duration, Time};
use alloc::boxed::Box;
use alloc::vec;
use arrayvec::ArrayVec;

/// Ticks that a stamp reaches ahead.
pub(super) const AHEAD_MAX: u64 = (1 << 14) - 1;

/// Blocks that one call checks in passing.
const BLOCKS_MAX: usize = 1024;

const LANES: usize = 32;

/// Stamps of neighbouring positions. 0: none; else twice the tick, modulo 2^16, plus one.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct StampBlock([u16; LANES]);

// SAFETY: integers.
unsafe impl Zeroable for StampBlock {}

/// The stamps of all positions.
pub struct Stamps {
    blocks: Box<[StampBlock]>,
    /// Not later than the earliest stamp of each block; 0 when there has never been any, or none since it was seen to.
    earliest: Box<[u16]>,
    /// Nanoseconds per tick.
    granularity: u64,
    /// The tick of the sweep; of the last one, when there is none. All stamps were given when it was this or earlier.
    tick: u64,
    /// Whether a sweep is in progress.
    sweeping: bool,
    /// Whether this sweep takes all stamps for due.
    blind: bool,
    /// The block at which the sweep is, and how many of its stamps are done.
    cursor: usize,
    lane: usize,
    /// Blocks that were ever used are below.
    used: usize,
    /// No stamp is earlier, of those that the sweep has passed by.
    soonest: u64,
    /// Stamps there are.
    len: usize,
}

fn encode(tick: u64) -> u16 {
    (tick as u16) << 1 | 1
}

/// Whether `stamp`, which is one, is due at `at`.
#[inline(always)]
fn is_past(stamp: u16, at: u16) -> bool {
    at.wrapping_sub(stamp) < 1 << 15
}

/// The earlier of two stamps, as seen from `at`, which they may be on both sides of; of none and one, that one.
#[inline(always)]
fn earlier(a: u16, b: u16, at: u16) -> u16 {
    let ahead = |stamp: u16| stamp.wrapping_sub(at).cast_signed();
    if b == 0 || (a != 0 && ahead(a) <= ahead(b)) { a } else { b }
}

impl StampBlock {
    /// The lanes with a stamp that is due at `at`; with any stamp, if `blind`.
    #[inline]
    fn due(&self, at: u16, blind: bool) -> u32 {
        let mut mask = 0;
        for (lane, &stamp) in self.0.iter().enumerate() {
            mask |= u32::from(stamp != 0 && (blind || is_past(stamp, at))) << lane;
        }
        mask
    }

    fn earliest(&self, at: u16) -> u16 {
        self.0.iter().fold(0, |earliest, &stamp| earlier(earliest, stamp, at))
    }
}

impl Stamps {
    /// Stamps for positions below `capacity`, with ticks of one `granularity` (1 ns at least).
    pub fn new(capacity: usize, granularity: Duration) -> Stamps {
        let blocks = capacity.div_ceil(LANES);
        Stamps {
            blocks: zeroed(blocks),
            earliest: vec![0; blocks].into_boxed_slice(),
            granularity: nanos(granularity),
            tick: 0,
            sweeping: false,
            blind: false,
            cursor: 0,
            lane: 0,
            used: 0,
            soonest: u64::MAX,
            len: 0,
        }
    }

    /// Entries that are not over, as far as it knows.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether `position` has a stamp.
    pub fn has(&self, position: Position) -> bool {
        let block = self.blocks.get(position as usize / LANES);
        block.is_some_and(|block| block.0[position as usize % LANES] != 0)
    }

    fn put(&mut self, position: Position, deadline: Time) {
        let tick = deadline.as_nanos().div_ceil(self.granularity);
        let tick = tick.clamp(self.tick, self.tick.saturating_add(AHEAD_MAX));
        let (block, lane) = (position as usize / LANES, position as usize % LANES);
        let stamp = encode(tick);
        let place = &mut self.blocks[block].0[lane];
        self.len += usize::from(*place == 0);
        *place = stamp;
        self.earliest[block] = earlier(self.earliest[block], stamp, encode(self.tick));
        self.soonest = self.soonest.min(tick);
        self.used = self.used.max(block + 1);
    }

    /// Moves on to `tick`, if there is no sweep; begins one, if something may be due.
    fn turn(&mut self, tick: u64) {
        if self.sweeping || tick <= self.tick {
            return;
        }
        let passed = tick - self.tick;
        self.tick = tick;
        // Also if there are no stamps left: what is noted as a block's earliest must not grow so old that it looks new.
        if self.soonest <= tick {
            self.sweeping = true;
            self.blind = passed > AHEAD_MAX;
            (self.cursor, self.lane) = (0, 0);
            self.soonest = u64::MAX;
        }
    }

    /// The next block of the sweep in which something may be due, or the end; checks `budget` blocks at most.
    fn seek(&mut self, budget: &mut usize) -> Option<usize> {
        let at = encode(self.tick);
        let end = self.used.min(self.cursor + *budget);
        let mut least = u16::MAX;
        let mut found = None;
        for (block, &stamp) in self.earliest.iter().enumerate().take(end).skip(self.cursor) {
            if stamp != 0 && (self.blind || is_past(stamp, at)) {
                found = Some(block);
                break;
            }
            // Of those that are ahead; none at all counts as further than any.
            let ahead = if stamp == 0 { u16::MAX } else { stamp.wrapping_sub(at) };
            least = least.min(ahead);
        }
        let stop = found.unwrap_or(end);
        *budget -= stop - self.cursor;
        self.cursor = stop;
        self.see(least);
        found
    }

    /// Takes note of a stamp (difference from now) that remains behind the sweep.
    fn see(&mut self, ahead: u16) {
        if ahead != u16::MAX {
            self.soonest = self.soonest.min(self.tick.saturating_add(u64::from(ahead >> 1)));
        }
    }

    /// Takes up to `room` due stamps away and adds their positions to `batch`; whether the sweep goes on.
    fn take(&mut self, room: usize, budget: &mut usize, batch: &mut ArrayVec<Position, BATCH>) -> bool {
        let at = encode(self.tick);
        while let Some(number) = self.seek(budget) {
            let block = &mut self.blocks[number];
            let mut due = block.due(at, self.blind) & u32::MAX << self.lane;
            while due != 0 && batch.len() < room {
                let lane = due.trailing_zeros() as usize;
                due &= due - 1;
                block.0[lane] = 0;
                self.len -= 1;
                batch.push((number * LANES + lane) as Position);
                self.lane = lane + 1;
            }
            let earliest = block.earliest(at);
            self.earliest[number] = earliest;
            if due != 0 {
                return true;
            }
            if earliest != 0 {
                // Past, if it was given behind the sweep's back: then it is for the next tick.
                self.see(if is_past(earliest, at) { 0 } else { earliest.wrapping_sub(at) });
            }
            (self.cursor, self.lane) = (number + 1, 0);
            *budget = budget.saturating_sub(1);
        }
        self.sweeping = self.cursor < self.used;
        self.sweeping
    }
}

impl Ageing for Stamps {
    fn name(&self) -> &'static str {
        "stamps"
    }

    fn bytes(&self) -> usize {
        size_of_val(&*self.blocks) + size_of_val(&*self.earliest)
    }

    /// Two granularities: one, or two if it was past when it was told.
    fn late_max(&self) -> Duration {
        Duration::from_nanos(self.granularity.saturating_mul(2))
    }

    fn started(&mut self, position: Position, deadline: Time) {
        self.put(position, deadline);
    }

    fn ended(&mut self, position: Position) {
        let (block, lane) = (position as usize / LANES, position as usize % LANES);
        if let Some(block) = self.blocks.get_mut(block) {
            self.len -= usize::from(block.0[lane] != 0);
            block.0[lane] = 0;
        }
    }

    fn due<D: Deadlines, const N: usize>(&mut self, now: Time, entries: &D, out: &mut ArrayVec<Position, N>) -> bool {
        let tick = now.as_nanos() / self.granularity;
        let (mut judged, mut budget) = (0, BLOCKS_MAX);
        loop {
            self.turn(tick);
            if !self.sweeping {
                return false;
            }
            let room = BATCH.min(JUDGED_MAX - judged).min(out.remaining_capacity());
            if room == 0 || budget == 0 {
                return true;
            }
            let mut batch: ArrayVec<Position, BATCH> = ArrayVec::new();
            self.take(room, &mut budget, &mut batch);
            judge(now, entries, &batch, out, |position, deadline| self.put(position, deadline));
            judged += batch.len();
        }
    }

    fn next(&self, _: Time) -> Option<Time> {
        if self.len == 0 {
            return None;
        }
        let tick = if self.sweeping { self.tick } else { self.soonest.max(self.tick.saturating_add(1)) };
        Some(Time::from_nanos(tick.saturating_mul(self.granularity)))
    }
}

//! Ageing by stamps in the buckets of `cuckoo++`: the tick at which an entry is to be asked, in 8 bits.
//!
//! The other mechanisms go with any table; this one is of the table (Le Scouarnec, 2017: a stamp in the bucket, which
//! the lookup has brought into the cache anyway). In each tick a sweep goes over all buckets, evenly spread over the
//! tick, and asks the entries whose stamp has come. A stamp reaches [`AHEAD_MAX`] ticks ahead; later deadlines are put off
//! again each time that has passed.
//!
//! Two ways to use it: *lazy*, packets write nothing but their entry; or *on hit*, lookups write
//! [`BucketStamps::stamp`] of now and the shortest timeout, so that entries which go on are not asked at all, at
//! the price of a write to the bucket with every packet.
//!
//! Never early. When it is drained, at most two ticks late, but for entries that an insertion has moved behind the
//! sweep's back: those wait for the next one.

use super::{BATCH, Deadlines, JUDGED_MAX, nanos};
use arrayvec::ArrayVec;
use hairpin_core::table::cuckoo::CuckooPlusPlus;
use hairpin_core::table::{Key, Position};
use hairpin_core::time::{Duration, Time};

/// Ticks that a stamp reaches ahead: with ticks of 250 ms, 31 seconds.
pub const AHEAD_MAX: u64 = 127;

/// Buckets that one call checks.
const BUCKETS_MAX: usize = 256;

/// Entries in a bucket.
const SLOTS: usize = 8;

/// Entries that can say under which key they are in the index.
pub trait Indexed<K>: Deadlines {
    /// The key under which the entry at `position` has the value with stamps; asked of entries that are there.
    fn key(&self, position: Position) -> K;
}

/// The sweep over the buckets.
///
/// A value is a position times two, plus direction. The stamps of direction 0 count; the others mean nothing.
pub struct BucketStamps {
    /// Nanoseconds per tick.
    granularity: u64,
    /// The tick of the sweep, or of the last one.
    tick: u64,
    /// The position to continue the sweep from; `None`: there is none.
    cursor: Option<u32>,
    /// Whether this sweep takes all stamps for due.
    blind: bool,
    /// Whether this sweep is not spread over the tick, because the ticks before had none.
    hurried: bool,
}

impl BucketStamps {
    /// A sweep at each tick of one `granularity` (1 ns at least).
    pub fn new(granularity: Duration) -> BucketStamps {
        BucketStamps { granularity: nanos(granularity), tick: 0, cursor: None, blind: false, hurried: false }
    }

    /// The stamp of an entry that is due at `at`.
    pub fn stamp(&self, at: Time) -> u8 {
        let tick = at.as_nanos().div_ceil(self.granularity);
        tick.clamp(self.tick, self.tick.saturating_add(AHEAD_MAX)) as u8
    }

    /// Adds entries that are over at `now` to `out`, until the work of one call is done or `out` has no room for a
    /// bucket (8 entries, which it must have when it is empty). Returns whether there is more to do at once. Whom it
    /// hands out is still in the index, and comes again at the next tick if it is left there.
    pub fn due<K: Key, E: Indexed<K>, const N: usize>(
        &mut self,
        now: Time,
        table: &mut CuckooPlusPlus,
        entries: &E,
        out: &mut ArrayVec<Position, N>,
    ) -> bool {
        const { assert!(N >= SLOTS) };
        let tick = now.as_nanos() / self.granularity;
        if self.cursor.is_none() && tick > self.tick {
            self.blind = tick - self.tick > AHEAD_MAX;
            self.hurried = tick - self.tick > 1;
            self.tick = tick;
            self.cursor = Some(0);
        }
        let wanted = self.wanted(now, table.slots() / SLOTS);
        let (mut judged, mut budget) = (0, BUCKETS_MAX);
        loop {
            let room = out.remaining_capacity().min(JUDGED_MAX - judged).min(BATCH);
            if room < SLOTS || budget == 0 {
                return true;
            }
            let mut batch: ArrayVec<u32, BATCH> = ArrayVec::new();
            let done = self.take(table, wanted, room, &mut budget, &mut batch);
            batch.iter().for_each(|value| entries.prefetch(value / 2));
            for &value in &batch {
                match entries.deadline(value / 2) {
                    Some(deadline) if deadline > now => {
                        table.restamp(&entries.key(value / 2), value, self.stamp(deadline));
                    }
                    Some(_) => out.push(value / 2),
                    None => {}
                }
            }
            judged += batch.len();
            if done {
                return self.cursor.is_none() && tick > self.tick;
            }
        }
    }

    /// Adds values whose stamp is due to `batch`, up to `room`, from the next buckets; whether all that are wanted have
    /// been looked at.
    fn take(
        &mut self,
        table: &CuckooPlusPlus,
        wanted: usize,
        room: usize,
        budget: &mut usize,
        batch: &mut ArrayVec<u32, BATCH>,
    ) -> bool {
        let (at, blind) = (self.tick as u8, self.blind);
        while batch.len() + SLOTS <= room && *budget > 0 {
            let Some(cursor) = self.cursor.filter(|&cursor| (cursor as usize) < wanted) else { return true };
            self.cursor = table.scan_stamped(cursor, &mut |value, stamp| {
                if value & 1 == 0 && (blind || at.wrapping_sub(stamp) < 128) {
                    batch.push(value);
                }
            });
            *budget -= 1;
        }
        false
    }

    /// The number of buckets, of this many, that should have been checked by now.
    fn wanted(&self, now: Time, buckets: usize) -> usize {
        if self.hurried {
            return buckets;
        }
        let elapsed = now.as_nanos().saturating_sub(self.tick.saturating_mul(self.granularity)).min(self.granularity);
        // At most `buckets`.
        (buckets as u128 * u128::from(elapsed) / u128::from(self.granularity)) as usize
    }
}

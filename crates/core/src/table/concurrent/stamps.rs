//! Stamps: eight bits per entry, by which a caller can tell when the entry was last hit.
//!
//! They stand in the bucket, in the line that a lookup brings in anyway, and are stored blindly: without a lock, and
//! without asking whether the entry is still there. That is harmless, because a stamp is an atomic of its own: storing
//! it touches no tag and no value, so it can neither bring a removed entry back nor damage another one. What it can do
//! is stamp an entry that has just come into the same slot, which is then taken for as new as it is.
//!
//! A stamp is stored only if it is another one, so an entry costs a store once per tick of the caller's stamps,
//! however often it is hit. A refresh is not lost to a displacement: a thread that has stored a stamp searches again, and
//! one that has moved an entry checks whether its stamp has changed meanwhile (see `displace`).
//!
//! Stamps wrap around. A caller that subtracts two of them has to look at every entry more often than they do.

use super::{AWAY, Concurrent, FoundEntry, Full, HashPlace, Key};
use crate::table::Entries;
use crate::table::sync::fence;
use core::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};

/// How often a stamp follows an entry that is displaced meanwhile.
const MOVES_MAX: usize = 8;

impl Concurrent {
    /// [`crate::table::SharedIndex::insert`] with a stamp (it stores 0).
    ///
    /// # Errors
    /// [`Full`] when no room can be made; nothing changed.
    pub fn insert_stamped<K: Key>(&self, key: &K, value: u32, stamp: u8) -> Result<(), Full> {
        self.insert_at(self.place_of(key), value, stamp)?;
        self.count.add(1);
        Ok(())
    }

    /// [`crate::table::Lookup::find_burst`] that also gives all entries it finds this stamp.
    pub fn find_burst_stamped<K: Key, E: Entries<K>>(
        &self,
        keys: &[K],
        entries: &E,
        stamp: u8,
        out: &mut [Option<u32>],
    ) {
        self.search_burst::<true, K, E>(keys, entries, out, |place, found| self.refresh(place, found, stamp));
    }

    /// [`crate::table::SharedIndex::scan`] with stamps; one bucket per step.
    ///
    /// While an entry is being moved, its stamp may be older than it is. [`Concurrent::remove_stamped`] is not
    /// deceived.
    pub fn scan_stamped(&self, from: u32, visit: &mut dyn FnMut(u32, u8)) -> Option<u32> {
        let bucket = self.buckets.get(from as usize)?;
        for slot in bucket.tags().taken() {
            let (value, stamp) = bucket.value_and_stamp(slot);
            visit(value, stamp);
        }
        (from as usize + 1 < self.buckets.len()).then_some(from + 1)
    }

    /// [`crate::table::SharedIndex::remove`], if the entry still has this stamp: for a caller that has found it too old in a
    /// scan. A lookup that hits it at the same instant may come too late.
    pub fn remove_stamped<K: Key>(&self, key: &K, value: u32, stamp: u8) -> bool {
        let place = self.place_of(key);
        let (mut primary, mut secondary) = self.lock_both(place.primary, self.other(place.primary, place.tag));
        let is_removed = if let Some(slot) = primary.position(place.tag, value) {
            let is_old = primary.stamp(slot).load(Relaxed) == stamp;
            if is_old {
                primary.clear(slot);
            }
            is_old
        } else if let Some(slot) = secondary.position(place.tag | AWAY, value) {
            let is_old = secondary.stamp(slot).load(Relaxed) == stamp;
            if is_old {
                secondary.clear(slot);
                primary.left(place.tag);
            }
            is_old
        } else {
            false
        };
        drop((primary, secondary));
        if is_removed {
            self.count.add(-1);
        }
        is_removed
    }

    /// Stamps an entry that was found.
    #[inline]
    pub(super) fn refresh(&self, place: HashPlace, found: FoundEntry, stamp: u8) {
        let (mut at, primary) = (found, self.bucket(place.primary));
        for _ in 0..MOVES_MAX {
            let (bucket, before) = (self.bucket(at.bucket), primary.version());
            let here = bucket.stamp(at.slot);
            if here.load(Acquire) != stamp {
                here.store(stamp, Relaxed);
                fence(SeqCst);
            }
            let tag = if at.bucket == place.primary { place.tag } else { place.tag | AWAY };
            let is_there = bucket.holds(at.slot, tag, at.value);
            // It may have left and come back to the same slot, with the stamp that it had, and what was stored or seen
            // here was another's. Then it has returned to its primary bucket meanwhile, or is just doing so.
            if is_there && here.load(Acquire) == stamp && before.is_same(primary.version()) {
                return;
            }
            // It was moved, replaced or removed.
            let Some(now) = self.search(place, |value| value == at.value) else { return };
            at = now;
        }
    }
}

//! `concurrent`: an optimistic cuckoo table that any number of threads read and change at the same time.
//!
//! Bucketised cuckoo hashing, shared after MemC3 (Fan and others, 2013), CuckooSwitch (Zhou and others, 2013) and
//! libcuckoo (Li and others, 2014): a lookup takes no lock and writes nothing; an insertion looks for a path to
//! a hole first, without locks, and then moves the entries on it one by one, from the hole backwards, each under the
//! locks of the two buckets it concerns. What is new here is how a lookup knows that it has not missed a moving entry.
//!
//! # Layout
//! A bucket is one cache line: 8 tags of 16 bits (0: free), 8 values of 32 bits, 8 stamps of 8 bits, and two words: the
//! lock with the count of returns, and the filter. 8 bytes per slot; [`LOAD_PERCENT`] percent of the slots are taken
//! when the table holds its capacity.
//!
//! The upper half of a hash chooses the entry's *primary* bucket; 15 of its lower bits are its tag. Its *secondary*
//! bucket follows from the primary one and the tag (partial-key cuckoo hashing): it is `g(tag) - primary`, modulo their
//! number, which also leads back. The number is even and `g` odd, so the two are never the same. The tag's 16th bit
//! says that the entry stands in its secondary bucket. So moving an entry needs neither its key nor its hash.
//!
//! The filter of a bucket counts the entries whose primary bucket it is and that stand in their secondary one, in ten
//! counters chosen by tag. Where the counter is 0, a lookup need not go on to the secondary bucket.
//!
//! # Why no lookup misses an entry that is there
//! An entry that moves is copied first and cleared where it was afterwards, so it always stands somewhere. A lookup
//! reads the primary bucket first, the secondary one afterwards:
//! - The entry moves away (primary to secondary) meanwhile: the filter counts it, the copy is made, and only then is
//!   the original cleared; so a reader that has not seen it in the primary bucket sees the filter's count and the copy.
//! - The entry comes back (secondary to primary): a reader that read the primary bucket too early and the secondary one too
//!   late has missed it. Therefore the primary bucket counts returns, between copying and clearing, and a lookup that
//!   found nothing reads that count before and after: if it has changed, it searches again.
//!
//! So a hit needs no check at all (the key is confirmed by [`Entries`]), and a miss one, in the primary bucket's line.
//! This is MemC3's check of the *pair* of buckets: every move between the two that can hide an entry is counted in one
//! of them. The count has 31 bits: a lookup would have to be suspended while exactly a multiple of 2^31 entries return
//! to one bucket to be deceived.
//!
//! # Progress
//! Lookups are lock-free: one is repeated only because another thread's insertion has made a step meanwhile. After
//! [`SEARCHES_MAX`] repetitions it takes the two locks. Insertions, removals and replacements lock at most two buckets at
//! a time, in the order of their numbers, for some dozen instructions without calls. A thread that is suspended with a
//! lock stops those who would change the same bucket.
//!
//! # Bounds
//! An insertion that finds both buckets full searches some hundred buckets, and starts again at most [`TRIES_MAX`]
//! times if others were faster; then it is refused. All memory is touched at construction.
//!
//! # What values lead to
//! A reader may still hold a value that another thread has just removed. Before what it leads to is reused, all
//! readers must have been seen doing something else: [`quiescence`]. [`store::SharedStore`] does so.

mod bucket;
mod burst;
mod check;
mod count;
mod displace;
pub mod quiescence;
mod retired;
mod stamps;
pub mod store;

#[cfg(loom)]
mod model;
#[cfg(loom)]
pub use model::Planted;

pub use check::Broken;

use super::fetch::Fetch;
use super::{Entries, Full, Hash, Hasher, Key, Lookup, SharedIndex};
use crate::table::sync::spin;
use alloc::boxed::Box;
use bucket::{AWAY, Bucket, LockedBucket, SLOTS};
use count::StripedCount;

/// Percent of the slots that are taken when a table holds its capacity.
pub const LOAD_PERCENT: usize = 95;

/// How often a lookup is repeated without locks because entries came back meanwhile.
pub const SEARCHES_MAX: usize = 64;

/// How often an insertion looks for room that others have taken before it came there.
pub const TRIES_MAX: usize = 64;

/// Pairs of buckets beyond what the load asks for. In small tables chance fills a larger share of the buckets.
const PAIRS_SPARE: usize = if cfg!(loom) { 0 } else { 1 };

/// Entries a table can be made for at most: slots are counted in 32 bits.
pub const CAPACITY_MAX: usize = 4_000_000_000;

/// The table.
pub struct Concurrent {
    hasher: Hasher,
    /// An even number, at least 2.
    buckets: Box<[Bucket]>,
    fetch: Fetch,
    capacity: usize,
    count: StripedCount,
    #[cfg(loom)]
    planted: Planted,
}

/// The parts of a hash: its primary bucket, and its tag (15 bits, not 0), from which the secondary bucket follows.
#[derive(Clone, Copy, Debug, Default)]
struct HashPlace {
    primary: u32,
    tag: u16,
}

/// The place where an entry was found.
#[derive(Clone, Copy, Debug, Default)]
struct FoundEntry {
    bucket: u32,
    slot: usize,
    value: u32,
}

impl Concurrent {
    /// An empty table for `capacity` entries, 1 to [`CAPACITY_MAX`].
    pub fn new(capacity: usize, hasher: Hasher) -> Concurrent {
        let capacity = capacity.clamp(1, CAPACITY_MAX);
        let pairs = (capacity * 100).div_ceil(LOAD_PERCENT * SLOTS * 2) + PAIRS_SPARE;
        let buckets = empty(2 * pairs);
        Concurrent {
            hasher,
            fetch: Fetch::index(size_of_val(&*buckets)),
            buckets,
            capacity,
            count: StripedCount::default(),
            #[cfg(loom)]
            planted: Planted::Nothing,
        }
    }

    /// Slots there are, 8 bytes each.
    pub fn slots(&self) -> usize {
        self.buckets.len() * SLOTS
    }

    /// Entries now, as far as one can tell.
    fn entries(&self) -> usize {
        self.count.total()
    }

    #[inline]
    fn place(&self, hash: Hash) -> HashPlace {
        let primary = ((hash.0 >> 32) * self.buckets.len() as u64) >> 32;
        HashPlace { primary: primary as u32, tag: (hash.0 as u16 & !AWAY).max(1) }
    }

    #[inline]
    fn place_of<K: Key>(&self, key: &K) -> HashPlace {
        self.place(key.hash(&self.hasher))
    }

    /// The other bucket of an entry that stands, or could stand, in `bucket`; never `bucket` itself.
    #[inline]
    fn other(&self, bucket: u32, tag: u16) -> u32 {
        let count = self.buckets.len() as u32;
        // Tags are spread over all pairs of buckets by Fibonacci hashing, then scaling.
        let spread = u32::from(tag & !AWAY).wrapping_mul(0x9E37_79B1);
        let sum = 2 * ((u64::from(spread) * u64::from(count / 2)) >> 32) as u32 + 1;
        if sum >= bucket { sum - bucket } else { sum + (count - bucket) }
    }

    #[inline]
    fn bucket(&self, number: u32) -> &Bucket {
        &self.buckets[number as usize]
    }

    /// Locks two different buckets, in the order of their numbers.
    #[inline]
    fn lock_both(&self, a: u32, b: u32) -> (LockedBucket<'_>, LockedBucket<'_>) {
        if a < b {
            let a = self.bucket(a).lock();
            (a, self.bucket(b).lock())
        } else {
            let b = self.bucket(b).lock();
            (self.bucket(a).lock(), b)
        }
    }
}

#[cfg(not(loom))]
fn empty(count: usize) -> Box<[Bucket]> {
    let buckets = super::zeroed::zeroed::<Bucket>(count);
    // A page has 64 of them.
    buckets.iter().step_by(64).for_each(Bucket::touch);
    buckets
}

#[cfg(loom)]
fn empty(count: usize) -> Box<[Bucket]> {
    (0..count).map(|_| Bucket::new()).collect()
}

/// Looking.
impl Concurrent {
    #[inline]
    fn search(&self, place: HashPlace, mut is: impl FnMut(u32) -> bool) -> Option<FoundEntry> {
        for _ in 0..SEARCHES_MAX {
            let primary = self.bucket(place.primary);
            let before = primary.version();
            for slot in primary.tags().with(place.tag) {
                let value = primary.value(slot);
                if is(value) {
                    return Some(FoundEntry { bucket: place.primary, slot, value });
                }
            }
            if primary.may_be_away(place.tag)
                && let Some(found) = self.search_elsewhere(place, &mut is)
            {
                return Some(found);
            }
            if before.is_same(primary.version()) || self.believes_all() {
                return None;
            }
            spin();
        }
        self.search_locked(place, is)
    }

    /// Looks into the secondary bucket.
    #[inline]
    fn search_elsewhere(&self, place: HashPlace, mut is: impl FnMut(u32) -> bool) -> Option<FoundEntry> {
        let number = self.other(place.primary, place.tag);
        let secondary = self.bucket(number);
        secondary.tags().with(place.tag | AWAY).find_map(|slot| {
            let value = secondary.value(slot);
            is(value).then_some(FoundEntry { bucket: number, slot, value })
        })
    }

    /// Asks about what stood in both buckets at one instant.
    #[cold]
    fn search_locked(&self, place: HashPlace, mut is: impl FnMut(u32) -> bool) -> Option<FoundEntry> {
        let other = self.other(place.primary, place.tag);
        let mut candidates = [None; 2 * SLOTS];
        {
            let (primary, secondary) = self.lock_both(place.primary, other);
            let of = |bucket: &Bucket, number, tag| {
                let slots = bucket.tags().with(tag);
                slots.map(move |slot| (number, slot)).zip([(); SLOTS]).map(|(at, ())| at)
            };
            let here = of(&primary, place.primary, place.tag);
            let there = of(&secondary, other, place.tag | AWAY);
            for (candidate, (number, slot)) in candidates.iter_mut().zip(here.chain(there)) {
                *candidate = Some(FoundEntry { bucket: number, slot, value: self.bucket(number).value(slot) });
            }
        }
        candidates.into_iter().flatten().find(|found| is(found.value))
    }

    /// A planted bug: misses are not checked.
    #[inline]
    fn believes_all(&self) -> bool {
        #[cfg(loom)]
        return self.planted == Planted::MissesUnchecked;
        #[cfg(not(loom))]
        false
    }
}

/// Changing.
impl Concurrent {
    /// Adds an entry; does not count it.
    fn insert_at(&self, place: HashPlace, value: u32, stamp: u8) -> Result<(), Full> {
        let secondary = self.other(place.primary, place.tag);
        for _ in 0..TRIES_MAX {
            let is_put = self.put_primary(place, value, stamp)
                || self.send_home(place.primary) && self.put_primary(place, value, stamp)
                || self.put_secondary(place, secondary, value, stamp);
            if is_put {
                return Ok(());
            }
            self.make_room(place.primary, secondary)?;
        }
        Err(Full)
    }

    #[inline]
    fn put_primary(&self, place: HashPlace, value: u32, stamp: u8) -> bool {
        let bucket = self.bucket(place.primary);
        if bucket.free().is_none() {
            return false;
        }
        let mut bucket = bucket.lock();
        let Some(slot) = bucket.free() else { return false };
        bucket.put(slot, place.tag, value, stamp);
        true
    }

    fn put_secondary(&self, place: HashPlace, secondary: u32, value: u32, stamp: u8) -> bool {
        if self.bucket(secondary).free().is_none() {
            return false;
        }
        let (mut primary, mut secondary) = self.lock_both(place.primary, secondary);
        let Some(slot) = secondary.free() else { return false };
        primary.leaves(place.tag);
        secondary.put(slot, place.tag | AWAY, value, stamp);
        true
    }

    /// Runs `change` on the entry of this tag and value, with its bucket locked, and says whether there was one. If
    /// `leaves`, it does not stand there any more afterwards.
    #[inline]
    fn change(
        &self,
        place: HashPlace,
        value: u32,
        leaves: bool,
        change: impl Fn(&mut LockedBucket<'_>, usize),
    ) -> bool {
        let primary = self.bucket(place.primary);
        if primary.position(place.tag, value).is_some() {
            let mut primary = primary.lock();
            if let Some(slot) = primary.position(place.tag, value) {
                change(&mut primary, slot);
                return true;
            }
        }
        self.change_either(place, value, leaves, change)
    }

    /// [`Concurrent::change`], with both buckets locked, so that the entry cannot be on its way.
    fn change_either(
        &self,
        place: HashPlace,
        value: u32,
        leaves: bool,
        change: impl Fn(&mut LockedBucket<'_>, usize),
    ) -> bool {
        let (mut primary, mut secondary) = self.lock_both(place.primary, self.other(place.primary, place.tag));
        if let Some(slot) = secondary.position(place.tag | AWAY, value) {
            change(&mut secondary, slot);
            if leaves {
                primary.left(place.tag);
            }
            return true;
        }
        let slot = primary.position(place.tag, value);
        if let Some(slot) = slot {
            change(&mut primary, slot);
        }
        slot.is_some()
    }

    /// Gives an entry another value.
    #[inline]
    fn replace_at(&self, place: HashPlace, old: u32, new: u32) -> bool {
        self.change(place, old, false, |bucket, slot| bucket.set_value(slot, new))
    }

    /// Takes an entry away; does not count it.
    #[inline]
    fn remove_at(&self, place: HashPlace, value: u32) -> bool {
        self.change(place, value, true, |bucket, slot| bucket.clear(slot))
    }
}

impl<K: Key> Lookup<K> for Concurrent {
    #[inline]
    fn find<E: Entries<K>>(&self, key: &K, entries: &E) -> Option<u32> {
        self.search(self.place_of(key), |value| entries.is(value, key)).map(|found| found.value)
    }

    fn find_burst<E: Entries<K>>(&self, keys: &[K], entries: &E, out: &mut [Option<u32>]) {
        self.search_burst::<false, K, E>(keys, entries, out, |_, _| {});
    }
}

impl<K: Key> SharedIndex<K> for Concurrent {
    fn name(&self) -> &'static str {
        "concurrent"
    }

    fn capacity(&self) -> usize {
        self.capacity
    }

    fn len(&self) -> usize {
        self.entries()
    }

    fn bytes(&self) -> usize {
        size_of_val(&*self.buckets) + self.count.bytes()
    }

    fn insert(&self, key: &K, value: u32) -> Result<(), Full> {
        self.insert_stamped(key, value, 0)
    }

    fn insert_burst(&self, keys: &[K], values: &[u32]) -> usize {
        self.insert_many(keys, values)
    }

    fn remove(&self, key: &K, value: u32) -> bool {
        let is_removed = self.remove_at(self.place_of(key), value);
        if is_removed {
            self.count.add(-1);
        }
        is_removed
    }

    fn remove_burst(&self, keys: &[K], values: &[u32]) -> usize {
        self.remove_many(keys, values)
    }

    fn replace(&self, key: &K, old: u32, new: u32) -> bool {
        self.replace_at(self.place_of(key), old, new)
    }

    fn replace_burst(&self, keys: &[K], old: &[u32], new: &[u32]) -> usize {
        self.replace_many(keys, old, new)
    }

    fn scan(&self, from: u32, visit: &mut dyn FnMut(u32)) -> Option<u32> {
        self.scan_stamped(from, &mut |value, _| visit(value))
    }
}

#[cfg(all(test, not(loom)))]
mod tests;

//! `cuckoo++`: buckets of one cache line, two candidates per hash, and a filter that says which second one to search.
//!
//! Bucketised cuckoo hashing after Le Scouarnec, "Cuckoo++ Hash Tables: High-Performance Hash Tables for Networking
//! Applications" (2017): an entry stands in the *first* bucket of its hash if there is room, else in the second, and
//! the first one keeps a filter of those of its entries that have moved away. So a lookup reads one line if the entry is
//! there, and one line if there is none; only of moved entries it reads two. If both buckets are full, others are
//! moved to make room, so almost all slots can be taken.
//!
//! # Layout
//! 64 bytes: 8 tags of 15 bits (0: free), each with a bit that says whether the entry stands in its second bucket, 8 values
//! of 32 bits, 8 stamps of 8 bits, and the filter. 8 bytes per slot.
//!
//! The other bucket of an entry follows from the bucket in which it stands and its tag (partial-key cuckoo hashing: Fan
//! and others, "MemC3", 2013): `other = (g(tag) - bucket) mod n`. It works for any number of buckets and leads back. The
//! number is even and `g` odd, so the two are never the same. Moving an entry therefore needs neither its key nor its
//! hash, and touches buckets only.
//!
//! # The filter
//! The paper keeps a Bloom filter and a count of moved entries, and clears the filter when the count falls to zero; in
//! a full table whose entries come and go it never does, and the filter fills with what was once there. Here, in the
//! same 64 bits, stand the *prints* (8 bits of the tag) of up to seven moved entries, and beside them how many more there
//! are for whose print there was no room; while there are such, the filter says "perhaps" to everything. Prints can be
//! struck out, so the filter always describes exactly what has moved now, and is wrong about one absent key in 255 per
//! moved entry. An entry belongs to the filter of its *first* bucket, wherever it is found. Of one bucket,
//! [`MOVED_MAX`] entries can have moved; more find no room (no more than chance fills it: it takes an enemy who knows
//! the secret).
//!
//! # Stamps
//! Eight bits per entry, by which a caller can tell when it was last hit ([`CuckooPlusPlus::find_burst_stamped`]):
//! written into the line that the lookup has brought in anyway. Stamps mean nothing to the table; plain insertion
//! writes 0 and nothing else touches them.
//!
//! # Bounds
//! An insertion moves at most a chain of entries that a search of some hundred buckets has found, and is refused if the
//! search finds none; nothing has changed then. All memory is touched at construction, so that the packet path takes
//! no page faults.

mod bucket;
mod burst;
mod check;
mod path;

pub use check::Broken;

use super::fetch::Fetch;
use super::{Entries, Full, Hash, Hasher, Key, Lookup, Table};
use alloc::boxed::Box;
use alloc::vec;
use bucket::{Bucket, BucketEntry, LISTED, MOVED, SLOTS, UNLISTED_MAX};

/// Percent of the slots that are taken when a table holds its capacity.
pub const LOAD_PERCENT: usize = 95;

/// Tables of fewer pairs of buckets get one more than the load asks for: the fewer they are, the larger a share of them
/// chance may fill. Without it, of tables for 30 entries one in 700 refused some of them, of tables for 300 one in
/// 10^5, and of larger ones none; with it none at all (10^5 to 10^6 fillings of each size, and 7.5 M exchanges in full
/// ones).
const PAIRS_FEW: usize = 64;

/// Entries of one first bucket that can stand in their second ones.
pub const MOVED_MAX: usize = LISTED + UNLISTED_MAX as usize;

/// Entries a table can be made for at most: slots are counted in 32 bits.
pub const CAPACITY_MAX: usize = 4_000_000_000;

/// The table.
pub struct CuckooPlusPlus {
    hasher: Hasher,
    /// An even number, at least 2.
    buckets: Box<[Bucket]>,
    fetch: Fetch,
    capacity: usize,
    len: usize,
}

/// The parts of a hash: its first bucket, and its tag, from which the second follows: 15 bits whose lower 8 are not
/// all 0.
#[derive(Clone, Copy, Default)]
struct HashPlace {
    primary: u32,
    tag: u16,
}

/// The place of an entry.
#[derive(Clone, Copy)]
struct FoundEntry {
    bucket: u32,
    slot: usize,
}

impl CuckooPlusPlus {
    /// An empty table for `capacity` entries, 1 to [`CAPACITY_MAX`]. So many find room with certainty for all practical
    /// purposes: filled with random keys, tables refused an entry for the first time at 98.7 percent of their slots (8 M
    /// entries) to 99.5 percent (1,000).
    pub fn new(capacity: usize, hasher: Hasher) -> CuckooPlusPlus {
        let capacity = capacity.clamp(1, CAPACITY_MAX);
        let pairs = (capacity * 100).div_ceil(LOAD_PERCENT * SLOTS * 2);
        let pairs = pairs + usize::from(pairs < PAIRS_FEW);
        let buckets = vec![Bucket::EMPTY; 2 * pairs].into_boxed_slice();
        let fetch = Fetch::index(size_of_val(&*buckets));
        CuckooPlusPlus { hasher, buckets, fetch, capacity, len: 0 }
    }

    /// Slots there are.
    pub fn slots(&self) -> usize {
        self.buckets.len() * SLOTS
    }

    /// Adds an entry with a stamp.
    ///
    /// # Errors
    /// [`Full`] when no room can be made for it; nothing changed.
    pub fn insert_stamped<K: Key>(&mut self, key: &K, value: u32, stamp: u8) -> Result<(), Full> {
        self.insert_at(self.place_of(key), value, stamp)
    }

    /// Stamps the entry of this key and value; whether there was one.
    pub fn restamp<K: Key>(&mut self, key: &K, value: u32, stamp: u8) -> bool {
        let Some(found) = self.position(self.place_of(key), value) else { return false };
        self.bucket_mut(found.bucket).set_stamp(found.slot, stamp);
        true
    }

    /// [`Table::scan`] with stamps; one bucket per step.
    pub fn scan_stamped(&self, from: u32, visit: &mut dyn FnMut(u32, u8)) -> Option<u32> {
        let bucket = self.buckets.get(from as usize)?;
        for slot in bucket.taken() {
            let entry = bucket.entry(slot);
            visit(entry.value, entry.stamp);
        }
        (from as usize + 1 < self.buckets.len()).then_some(from + 1)
    }
}

impl CuckooPlusPlus {
    /// The upper half of the hash chooses the first bucket, by scaling; the lowest 15 bits are the tag.
    #[inline]
    fn place(&self, hash: Hash) -> HashPlace {
        let primary = ((hash.0 >> 32) * self.buckets.len() as u64) >> 32;
        let tag = hash.0 as u16 & !MOVED;
        HashPlace { primary: primary as u32, tag: tag + u16::from(tag as u8 == 0) }
    }

    #[inline]
    fn place_of<K: Key>(&self, key: &K) -> HashPlace {
        self.place(key.hash(&self.hasher))
    }

    /// The other bucket of an entry that stands, or could stand, in `bucket`.
    #[inline]
    fn other(&self, bucket: u32, tag: u16) -> u32 {
        let count = self.buckets.len() as u32;
        // Tags are spread over all pairs of buckets by Fibonacci hashing, then scaling.
        let spread = u32::from(tag).wrapping_mul(0x9E37_79B1);
        let sum = 2 * ((u64::from(spread) * u64::from(count / 2)) >> 32) as u32 + 1;
        if sum >= bucket { sum - bucket } else { sum + (count - bucket) }
    }

    #[inline]
    fn secondary(&self, place: HashPlace) -> u32 {
        self.other(place.primary, place.tag)
    }

    #[inline]
    fn bucket(&self, at: u32) -> &Bucket {
        &self.buckets[at as usize]
    }

    #[inline]
    fn bucket_mut(&mut self, at: u32) -> &mut Bucket {
        &mut self.buckets[at as usize]
    }

    #[inline]
    fn prefetch(&self, at: u32) {
        self.prefetch_by(self.fetch, at);
    }

    #[inline(always)]
    fn prefetch_by(&self, fetch: Fetch, at: u32) {
        fetch.line(self.buckets.as_ptr().wrapping_add(at as usize));
    }

    /// The entry at `place` whose value `is` confirms.
    #[inline]
    fn locate(&self, place: HashPlace, mut is: impl FnMut(u32) -> bool) -> Option<FoundEntry> {
        let primary = self.bucket(place.primary);
        if let Some(slot) = primary.confirm(primary.at_home(place.tag), &mut is) {
            return Some(FoundEntry { bucket: place.primary, slot });
        }
        if !primary.filter.may_have_moved(place.print()) {
            return None;
        }
        let bucket = self.secondary(place);
        let secondary = self.bucket(bucket);
        secondary.confirm(secondary.moved_here(place.tag), &mut is).map(|slot| FoundEntry { bucket, slot })
    }

    #[inline]
    fn position(&self, place: HashPlace, value: u32) -> Option<FoundEntry> {
        self.locate(place, |other| other == value)
    }

    #[inline]
    fn insert_at(&mut self, place: HashPlace, value: u32, stamp: u8) -> Result<(), Full> {
        let primary = self.bucket(place.primary);
        if let Some(slot) = primary.free().first() {
            self.put_at(place, value, stamp, place.primary, slot);
            return Ok(());
        }
        if let Some(slot) = self.send_guest_home(place.primary) {
            self.put_at(place, value, stamp, place.primary, slot);
            return Ok(());
        }
        let primary = self.bucket(place.primary);
        let bucket = self.secondary(place);
        if primary.filter.has_room()
            && let Some(slot) = self.bucket(bucket).free().first()
        {
            self.put_at(place, value, stamp, bucket, slot);
            return Ok(());
        }
        self.insert_displacing(place, value, stamp)
    }

    /// Sends an entry that has moved into this bucket, which is full, back to its first bucket, if there is room; the
    /// slot that it leaves. (Else entries that come and go would drift: at 80 percent of the slots a quarter of them
    /// ends up in second buckets, three times as many as when the table was filled; with this, an eighth.)
    #[inline]
    fn send_guest_home(&mut self, at: u32) -> Option<usize> {
        for slot in self.bucket(at).guests() {
            let home = self.other(at, self.bucket(at).entry(slot).tag);
            if let Some(hole) = self.bucket(home).free().first() {
                self.shift_one((at, slot), (home, hole));
                return Some(slot);
            }
        }
        None
    }

    /// Puts an entry into a free slot of one of its buckets; if that is not the first, the first's filter has room.
    #[inline]
    fn put_at(&mut self, place: HashPlace, value: u32, stamp: u8, bucket: u32, slot: usize) {
        let is_moved = bucket != place.primary;
        if is_moved {
            self.bucket_mut(place.primary).filter.add(place.print());
        }
        self.bucket_mut(bucket).put(slot, BucketEntry { tag: place.tag, value, stamp, is_moved });
        self.len += 1;
    }

    #[inline]
    fn remove_at(&mut self, place: HashPlace, value: u32) -> bool {
        let Some(found) = self.position(place, value) else { return false };
        if self.bucket_mut(found.bucket).take(found.slot).is_moved {
            self.bucket_mut(place.primary).filter.remove(place.print());
        }
        self.len -= 1;
        true
    }

    #[inline]
    fn replace_at(&mut self, place: HashPlace, old: u32, new: u32) -> bool {
        let Some(found) = self.position(place, old) else { return false };
        self.bucket_mut(found.bucket).set_value(found.slot, new);
        true
    }
}

impl<K: Key> Lookup<K> for CuckooPlusPlus {
    #[inline]
    fn find<E: Entries<K>>(&self, key: &K, entries: &E) -> Option<u32> {
        let found = self.locate(self.place_of(key), |value| entries.is(value, key))?;
        Some(self.bucket(found.bucket).value(found.slot))
    }

    fn find_burst<E: Entries<K>>(&self, keys: &[K], entries: &E, out: &mut [Option<u32>]) {
        self.look_up(keys, entries, out, |_, _, _| ());
    }

    #[inline]
    fn guess_burst<E: Entries<K>>(&self, keys: &[K], entries: &E, out: &mut [Option<u32>]) {
        self.guess(keys, entries, out);
    }
}

impl<K: Key> Table<K> for CuckooPlusPlus {
    fn name(&self) -> &'static str {
        "cuckoo++"
    }

    fn capacity(&self) -> usize {
        self.capacity
    }

    fn len(&self) -> usize {
        self.len
    }

    fn bytes(&self) -> usize {
        size_of_val(&*self.buckets)
    }

    fn insert(&mut self, key: &K, value: u32) -> Result<(), Full> {
        self.insert_stamped(key, value, 0)
    }

    fn insert_burst(&mut self, keys: &[K], values: &[u32]) -> usize {
        self.add(keys, values)
    }

    fn remove(&mut self, key: &K, value: u32) -> bool {
        self.remove_at(self.place_of(key), value)
    }

    fn remove_burst(&mut self, keys: &[K], values: &[u32]) -> usize {
        self.take_away(keys, values)
    }

    fn replace(&mut self, key: &K, old: u32, new: u32) -> bool {
        self.replace_at(self.place_of(key), old, new)
    }

    fn replace_burst(&mut self, keys: &[K], old: &[u32], new: &[u32]) -> usize {
        self.exchange(keys, old, new)
    }

    fn scan(&self, from: u32, visit: &mut dyn FnMut(u32)) -> Option<u32> {
        self.scan_stamped(from, &mut |value, _| visit(value))
    }
}

#[cfg(test)]
mod tests;

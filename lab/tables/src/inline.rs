//! `inline`: keys and values stand in the buckets themselves, so that a hit needs one place in memory instead of two.
//!
//! Bucketised cuckoo hashing with a filter, as [`cuckoo++`](hairpin_core::table::cuckoo), but for a caller that wants a
//! small value of a key and nothing else: [`Inline::value`], [`Inline::values`]. Where the value only leads to an entry in
//! a slab, that entry has to be read anyway, and the key in the bucket costs memory and cache lines for nothing. As a
//! [`Table`] it is an index like any other: it confirms what it finds with [`Entries`], which have the key as well.
//!
//! # Layout
//! A bucket has two slots and a head; with keys of 16 bytes and values of 8 it fills one line, with a worker's keys
//! two. An entry has four *choices*: the first bucket of its hash, the neighbour of that, and two more in other places.
//! With so many, buckets of two can be filled to 98 percent and more; and who finds nothing reads one line all the
//! same, since the first bucket's head lists where its entries are that stand elsewhere: tag and choice for each of up
//! to five, and how many more there are. What a head knows are lanes of 16 bits, so one comparison tells whether an
//! entry is at home, moved, or certainly absent.
//!
//! Beside the buckets, 16 bits for each of them: its *screen*, a smaller copy of the head, of which an absent key
//! passes one in thirty. All screens together are a thirtieth of the buckets' size, so of a table larger than the caches
//! they may still lie in one, and who finds nothing need not read a bucket at all. Who finds something would only be
//! delayed by them. So a burst reads the screens first if the one before found little.
//!
//! At 80 percent of the slots a quarter of the entries stand elsewhere, so a hit reads 1.3 lines. With the key at
//! hand, an entry that moves is hashed again; nothing has to be derived from the tag. The upper half of the hash
//! chooses the first bucket; its pair and one of the other two add up to `g(lower half)`, modulo the number of pairs,
//! which is even while `g` is odd: so the two are never the same. (The sum for the last choice is made of the lower half
//! turned by half its bits.)
//!
//! # Bounds
//! As of `cuckoo++`: an insertion searches a bounded number of buckets (at 98 percent of the slots about a hundred), and
//! is refused if there is no way; nothing has changed then. All memory is touched at construction. Of one bucket,
//! [`MOVED_MAX`] entries can stand elsewhere; chance never brings so many there, it takes an enemy who knows the
//! secret.

mod bucket;
mod burst;
mod check;
mod path;

pub use check::Broken;

use bucket::{Bucket, CHOICE, CHOICES, InlineEntry, LISTED, SLOTS, UNLISTED_MAX, mark, screen};
use core::hint::select_unpredictable;
use core::sync::atomic::AtomicBool;
use hairpin_core::table::fetch::Fetch;
use hairpin_core::table::{Entries, Full, Hash, Hasher, Key, Lookup, Table};
use std::boxed::Box;
use std::vec;

/// Percent of the slots that are taken when a table holds its capacity.
pub const LOAD_PERCENT: usize = 98;

/// Tables of fewer groups of two pairs get one more than the load asks for: the fewer they are, the larger a share of
/// them chance may fill. (Of 3,000 to 10,000 fillings of each of nine sizes from 5 to 4,500 entries none was refused one
/// below capacity.)
const GROUPS_FEW: usize = 512;

/// Groups that those get.
const GROUPS_SPARE: usize = 1;

/// Buckets of a group: the number of pairs is even.
const GROUP: usize = 4;

/// Entries of one first bucket that can stand elsewhere, at most.
pub const MOVED_MAX: usize = LISTED + UNLISTED_MAX as usize;

/// Entries a table can be made for at most: slots are counted in 32 bits.
pub const CAPACITY_MAX: usize = 4_000_000_000;

/// The table.
pub struct Inline<K, V> {
    hasher: Hasher,
    /// A multiple of [`GROUP`], at least that.
    buckets: Box<[Bucket<K, V>]>,
    /// [`BucketHead::screen`](bucket::BucketHead::screen) of each bucket.
    screens: Box<[u16]>,
    /// How lines of the buckets and of the screens are asked for.
    fetch: Fetch,
    fetch_screens: Fetch,
    /// Whether the last burst found so little that the next one reads the screens first. A guess: it changes how fast
    /// an answer comes, not what it is.
    expects_misses: AtomicBool,
    capacity: usize,
    len: usize,
}

/// The parts of a hash: its first bucket, and its lower half, from which the other two places and the tag follow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct HashPlace {
    primary: u32,
    low: u32,
}

impl HashPlace {
    /// 13 bits and one that is set, so that it is not 0; the lowest two are left for the choice.
    #[inline]
    fn tag(self) -> u16 {
        (self.low << 2) as u16 | 4
    }
}

/// The place of an entry.
#[derive(Clone, Copy)]
struct FoundEntry {
    bucket: u32,
    slot: usize,
}

/// The parameters it is made of.
impl<K: Key, V: Copy + Default> Inline<K, V> {
    /// An empty table for `capacity` entries, 1 to [`CAPACITY_MAX`]. So many find room with certainty for all practical
    /// purposes: filled with random keys, tables refused an entry for the first time at 98.7 percent of their slots (8 M
    /// entries) to 99.4 percent (1,000).
    pub fn new(capacity: usize, hasher: Hasher) -> Inline<K, V> {
        let capacity = capacity.clamp(1, CAPACITY_MAX);
        let groups = (capacity as u64 * 100).div_ceil((LOAD_PERCENT * SLOTS * GROUP) as u64) as usize;
        let groups = groups + if groups < GROUPS_FEW { GROUPS_SPARE } else { 0 };
        let buckets = vec![Bucket::empty(); GROUP * groups].into_boxed_slice();
        let screens = vec![0; buckets.len()].into_boxed_slice();
        Inline {
            hasher,
            fetch: Fetch::index(size_of_val(&*buckets)),
            fetch_screens: Fetch::index(size_of_val(&*screens)),
            buckets,
            screens,
            expects_misses: AtomicBool::new(false),
            capacity,
            len: 0,
        }
    }

    /// Slots there are.
    pub fn slots(&self) -> usize {
        self.buckets.len() * SLOTS
    }

    /// Bytes it takes; all are allocated when it is made.
    pub fn bytes_taken(&self) -> usize {
        size_of_val(&*self.buckets) + size_of_val(&*self.screens)
    }

    /// Bytes of a bucket.
    pub const fn bucket_bytes() -> usize {
        size_of::<Bucket<K, V>>()
    }

    #[inline]
    fn place(&self, hash: Hash) -> HashPlace {
        let primary = ((hash.0 >> 32) * self.buckets.len() as u64) >> 32;
        HashPlace { primary: primary as u32, low: hash.0 as u32 }
    }

    #[inline]
    fn place_of(&self, key: &K) -> HashPlace {
        self.place(key.hash(&self.hasher))
    }

    /// The bucket of one of an entry's choices, 0 to 3.
    #[inline]
    fn chosen(&self, place: HashPlace, choice: u8) -> u32 {
        let (pair, pairs) = (place.primary / 2, self.buckets.len() as u32 / 2);
        let spread = select_unpredictable(choice & 1 == 0, place.low, place.low.rotate_left(16));
        let sum = 2 * ((u64::from(spread) * u64::from(pairs / 2)) >> 32) as u32 + 1;
        let less = sum.wrapping_sub(pair);
        let other = select_unpredictable(sum >= pair, less, less.wrapping_add(pairs));
        let pair = select_unpredictable(choice & 2 == 0, pair, other);
        2 * pair + (place.primary & 1 ^ u32::from(choice & 1))
    }

    #[inline]
    fn bucket(&self, at: u32) -> &Bucket<K, V> {
        &self.buckets[at as usize]
    }

    #[inline]
    fn bucket_mut(&mut self, at: u32) -> &mut Bucket<K, V> {
        &mut self.buckets[at as usize]
    }
}

/// Finding and changing entries.
impl<K: Key, V: Copy + Default> Inline<K, V> {
    /// The entry at `place` for which `is` says yes.
    #[inline]
    fn locate(&self, place: HashPlace, mut is: impl FnMut(&K, V) -> bool) -> Option<FoundEntry> {
        let primary = self.bucket(place.primary);
        if let Some(slot) = primary.confirm(mark(place.tag(), 0), &mut is) {
            return Some(FoundEntry { bucket: place.primary, slot });
        }
        let mut choices = primary.head.choices(place.tag());
        while choices != 0 {
            let choice = choices.trailing_zeros() as u8;
            choices &= choices - 1;
            let bucket = self.chosen(place, choice);
            if let Some(slot) = self.bucket(bucket).confirm(mark(place.tag(), choice), &mut is) {
                return Some(FoundEntry { bucket, slot });
            }
        }
        None
    }

    #[inline]
    fn entry(&self, found: FoundEntry) -> Option<InlineEntry<K, V>> {
        self.bucket(found.bucket).entry(found.slot)
    }

    /// By which of its choices an entry stands in a bucket of its own.
    #[inline]
    fn choice(&self, place: HashPlace, bucket: u32) -> u8 {
        let choice = ((bucket ^ place.primary) & 1) as u8 | if bucket / 2 == place.primary / 2 { 0 } else { 2 };
        debug_assert_eq!(self.chosen(place, choice), bucket, "an entry stands in a bucket that is not its own");
        choice
    }

    #[inline]
    fn insert_at(&mut self, place: HashPlace, entry: InlineEntry<K, V>) -> Result<(), Full> {
        if let Some(slot) = self.bucket(place.primary).head.free() {
            self.put_at(place, entry, FoundEntry { bucket: place.primary, slot });
            return Ok(());
        }
        if let Some(slot) = self.send_guest_home(place.primary) {
            self.put_at(place, entry, FoundEntry { bucket: place.primary, slot });
            return Ok(());
        }
        if self.may_move(place) {
            for choice in 1..CHOICES {
                let bucket = self.chosen(place, choice);
                if let Some(slot) = self.bucket(bucket).head.free() {
                    self.put_at(place, entry, FoundEntry { bucket, slot });
                    return Ok(());
                }
            }
        }
        self.insert_displacing(place, entry)
    }

    /// Sends an entry that has moved into this bucket, which is full, back to its first bucket, if there is room; the
    /// slot that it leaves. (Else entries that come and go would drift away from their first buckets.)
    fn send_guest_home(&mut self, at: u32) -> Option<usize> {
        let (slot, home, hole) =
            self.guests(at).find_map(|(slot, home)| Some((slot, home, self.bucket(home).head.free()?)))?;
        self.shift_one(FoundEntry { bucket: at, slot }, FoundEntry { bucket: home, slot: hole });
        Some(slot)
    }

    /// The entries in a bucket that are of others: slot and first bucket.
    #[inline]
    fn guests(&self, at: u32) -> impl Iterator<Item = (usize, u32)> {
        let bucket = self.bucket(at);
        let guests = (0..SLOTS).filter(|&slot| bucket.head.marks[slot] & CHOICE != 0);
        guests.filter_map(|slot| Some((slot, self.place_of(bucket.key(slot)?).primary)))
    }

    /// Puts an entry into a free slot of one of its buckets; if that is not the first, the head of the first has room.
    #[inline]
    fn put_at(&mut self, place: HashPlace, entry: InlineEntry<K, V>, found: FoundEntry) {
        let choice = self.choice(place, found.bucket);
        let mark = mark(place.tag(), choice);
        let mut bits = screen(mark);
        if choice != 0 {
            let head = &mut self.bucket_mut(place.primary).head;
            head.add(mark);
            bits |= if head.unlisted == 0 { 0 } else { u16::MAX };
        }
        self.bucket_mut(found.bucket).put(found.slot, mark, entry);
        self.screens[place.primary as usize] |= bits;
        self.len += 1;
    }

    /// Takes away what was found at `place`, and nothing else.
    #[inline]
    fn clear_at(&mut self, place: HashPlace, found: FoundEntry) {
        let mark = core::mem::take(&mut self.bucket_mut(found.bucket).head.marks[found.slot]);
        if mark & CHOICE != 0 {
            self.bucket_mut(place.primary).head.strike(mark);
        }
        self.screens[place.primary as usize] = self.bucket(place.primary).head.screen();
        self.len -= 1;
    }

    /// Takes away what was found at `place`. If an entry of the same bucket stands in the neighbour, it comes home: the
    /// neighbour is at hand, and an entry that stands there by its second choice can be of no other bucket.
    #[inline]
    fn take_at(&mut self, place: HashPlace, found: FoundEntry) {
        self.clear_at(place, found);
        let next = found.bucket ^ 1;
        let guest = self.bucket(next).head.marks.iter().position(|mark| mark & CHOICE == 1);
        if let Some(slot) = guest {
            self.shift_one(FoundEntry { bucket: next, slot }, found);
        }
    }
}

/// For callers that want values only. A key stands in the table once: a caller that inserts searches first.
impl<K: Key, V: Copy + Default> Inline<K, V> {
    /// The value under `key`.
    #[inline]
    pub fn value(&self, key: &K) -> Option<V> {
        let found = self.locate(self.place_of(key), |other, _| other == key)?;
        self.entry(found).map(|entry| entry.value)
    }

    /// Adds an entry.
    ///
    /// # Errors
    /// [`Full`] when no room can be made for it; nothing changed.
    pub fn put(&mut self, key: &K, value: V) -> Result<(), Full> {
        self.insert_at(self.place_of(key), InlineEntry { key: *key, value })
    }

    /// Takes the entry of a key away; its value, if there was one.
    pub fn take(&mut self, key: &K) -> Option<V> {
        let place = self.place_of(key);
        let found = self.locate(place, |other, _| other == key)?;
        let value = self.entry(found)?.value;
        self.take_at(place, found);
        Some(value)
    }

    /// Gives a key that is there another value; whether it was.
    pub fn set(&mut self, key: &K, value: V) -> bool {
        let found = self.locate(self.place_of(key), |other, _| other == key);
        found.is_some_and(|found| self.bucket_mut(found.bucket).set_value(found.slot, value))
    }

    /// Entries now.
    pub fn count(&self) -> usize {
        self.len
    }

    /// Entries it is made for.
    pub fn room(&self) -> usize {
        self.capacity
    }

    /// One bounded step of a walk over all entries, as [`Table::scan`]; one pair of buckets per step, so that a removal
    /// between two steps moves no entry past the walk.
    pub fn walk(&self, from: u32, visit: &mut dyn FnMut(&K, V)) -> Option<u32> {
        let start = (from as usize).checked_mul(2)?;
        let pair = self.buckets.get(start..start + 2)?;
        for entry in pair.iter().flat_map(|bucket| (0..SLOTS).filter_map(|slot| bucket.entry(slot))) {
            visit(&entry.key, entry.value);
        }
        (start + 2 < self.buckets.len()).then_some(from + 1)
    }
}

/// As an index: values lead to entries, which are asked.
impl<K: Key> Lookup<K> for Inline<K, u32> {
    #[inline]
    fn find<E: Entries<K>>(&self, key: &K, entries: &E) -> Option<u32> {
        let is = |other: &K, value| other == key && entries.is(value, key);
        let found = self.locate(self.place_of(key), is)?;
        self.entry(found).map(|entry| entry.value)
    }

    fn find_burst<E: Entries<K>>(&self, keys: &[K], entries: &E, out: &mut [Option<u32>]) {
        self.values(keys, out);
        let count = keys.len().min(out.len());
        let (keys, out) = (&keys[..count], &mut out[..count]);
        out.iter().flatten().for_each(|&value| entries.prefetch(value));
        for (key, found) in keys.iter().zip(out) {
            if found.is_some_and(|value| !entries.is(value, key)) {
                // The key stands in the table twice, or its entry is gone.
                *found = self.find(key, entries);
            }
        }
    }
}

impl<K: Key> Inline<K, u32> {
    #[inline]
    fn position(&self, place: HashPlace, key: &K, value: u32) -> Option<FoundEntry> {
        self.locate(place, |other, there| there == value && other == key)
    }
}

impl<K: Key> Table<K> for Inline<K, u32> {
    fn name(&self) -> &'static str {
        "inline"
    }

    fn capacity(&self) -> usize {
        self.capacity
    }

    fn len(&self) -> usize {
        self.len
    }

    fn bytes(&self) -> usize {
        self.bytes_taken()
    }

    fn insert(&mut self, key: &K, value: u32) -> Result<(), Full> {
        self.put(key, value)
    }

    fn insert_burst(&mut self, keys: &[K], values: &[u32]) -> usize {
        self.put_burst(keys, values)
    }

    fn remove(&mut self, key: &K, value: u32) -> bool {
        let place = self.place_of(key);
        let found = self.position(place, key, value);
        found.inspect(|&found| self.take_at(place, found)).is_some()
    }

    fn remove_burst(&mut self, keys: &[K], values: &[u32]) -> usize {
        self.remove_pairs(keys, values)
    }

    fn replace(&mut self, key: &K, old: u32, new: u32) -> bool {
        let found = self.position(self.place_of(key), key, old);
        found.is_some_and(|found| self.bucket_mut(found.bucket).set_value(found.slot, new))
    }

    fn scan(&self, from: u32, visit: &mut dyn FnMut(u32)) -> Option<u32> {
        self.walk(from, &mut |_, value| visit(value))
    }
}

#[cfg(test)]
mod tests;

//! The per-worker table: buckets of one cache line, two candidates per hash, the emptier one takes an entry.
//!
//! It is d-left hashing with d = 2 (Voecking, "How asymmetry helps load balancing", 1999; Broder and Mitzenmacher,
//! "Using multiple hash functions to improve IP lookups", 2001): one candidate lies in the left half of the buckets,
//! one in the right, and the left one wins ties. Nothing is ever displaced, so an insertion touches two cache lines
//! and a lookup one or two, and positions of entries are stable.
//!
//! A bucket holds 10 entries: a 16-bit tag (0: free) and a 32-bit value each. A table that holds its capacity has
//! [`LOAD_PERCENT`] percent of its slots taken. Measured with random keys, in tables of 1 to 16 M entries: filling, the
//! first refusal came at 70 percent in the smallest tables and 78 to 80 in the others; in steady churn 1 insertion in
//! 10^5 was refused at 70 percent, 1 in 10^7 at 66, none of 75 M at 64. So at 60 percent refusals are practically nil.
//! Beyond its capacity a table goes on accepting what finds room.
//!
//! All memory is touched at construction, so that the packet path takes no page faults: 64 bytes per bucket, about 11
//! bytes per entry of capacity.

use hairpin_core::table::fetch::Fetch;
use hairpin_core::table::{BURST, Entries, Full, Hash, Hasher, Key, Lookup, Table};
use std::boxed::Box;
use std::vec;

/// Entries per bucket.
const SLOTS: usize = 10;

/// Percent of the slots that are taken when a table holds its capacity.
pub const LOAD_PERCENT: usize = 60;

/// Buckets of each half beyond what the load asks for. Small tables need them: the fewer the buckets, the larger a
/// share of them chance may fill.
const HALF_SPARE: usize = 2;

/// One cache line. Tags stand in 12 lanes of 16 bits: slot `s` in word `s % 3`, lane `s / 3`. The last lanes of words 1
/// and 2 would be slots 10 and 11, which do not exist: they stay 0 for ever.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct Bucket {
    tags: [u64; 3],
    values: [u32; SLOTS],
}

const _: () = assert!(size_of::<Bucket>() == 64);

/// A set of slots: slot `s` is bit `16 * (s / 3) + s % 3`.
#[derive(Clone, Copy, Default)]
struct Matches(u64);

const LANES: u64 = 0x0001_0001_0001_0001;
/// The slots that exist, as [`Matches`] counts them.
const EXISTING: u64 = 0x0001_0007_0007_0007;

impl Matches {
    /// Takes the first slot out.
    #[inline]
    fn next(&mut self) -> Option<usize> {
        if self.0 == 0 {
            return None;
        }
        let bit = self.0.trailing_zeros() as usize;
        self.0 &= self.0 - 1;
        Some(3 * (bit >> 4) + (bit & 15))
    }
}

impl Bucket {
    const EMPTY: Bucket = Bucket { tags: [0; 3], values: [0; SLOTS] };

    /// The slots whose tag is `tag`, not 0.
    #[inline]
    fn matching(&self, tag: u16) -> Matches {
        let pattern = u64::from(tag) * LANES;
        let [a, b, c] = self.tags.map(|word| zero_lanes(word ^ pattern));
        Matches(a | b << 1 | c << 2)
    }

    /// The slots that are free.
    #[inline]
    fn free(&self) -> Matches {
        let [a, b, c] = self.tags.map(zero_lanes);
        Matches((a | b << 1 | c << 2) & EXISTING)
    }

    /// Puts `tag` into `slot`; 0 frees it.
    #[inline]
    fn set_tag(&mut self, slot: usize, tag: u16) {
        let shift = 16 * (slot / 3);
        let word = &mut self.tags[slot % 3];
        *word = *word & !(0xffff << shift) | u64::from(tag) << shift;
    }

    /// The first value with `tag` for which `is` says yes.
    #[inline]
    fn find(&self, mut matches: Matches, is: &mut impl FnMut(u32) -> bool) -> Option<u32> {
        while let Some(slot) = matches.next() {
            if let Some(&value) = self.values.get(slot)
                && is(value)
            {
                return Some(value);
            }
        }
        None
    }
}

/// 1 in the lowest bit of every 16-bit lane that is zero, and exactly there (no borrow runs between lanes).
#[inline]
fn zero_lanes(word: u64) -> u64 {
    const LOW: u64 = 0x7fff * LANES;
    let not_zero = ((word & LOW) + LOW) | word | LOW;
    !not_zero >> 15
}

/// The table.
pub struct TwoChoice {
    hasher: Hasher,
    /// The left half, then the right half.
    buckets: Box<[Bucket]>,
    /// Buckets in a half.
    half: u32,
    fetch: Fetch,
    capacity: usize,
    len: usize,
}

/// The parts of a hash: its two buckets and its tag.
#[derive(Clone, Copy)]
struct HashPlace {
    left: usize,
    right: usize,
    tag: u16,
}

impl TwoChoice {
    /// An empty table for `capacity` entries, 1 to 2^32 - 1.
    pub fn new(capacity: usize, hasher: Hasher) -> TwoChoice {
        let capacity = capacity.clamp(1, u32::MAX as usize);
        let half = (capacity * 100).div_ceil(LOAD_PERCENT * SLOTS * 2) + HALF_SPARE;
        let buckets = vec![Bucket::EMPTY; 2 * half].into_boxed_slice();
        let fetch = Fetch::index(size_of_val(&*buckets));
        TwoChoice { hasher, buckets, fetch, half: half as u32, capacity, len: 0 }
    }

    /// The lower 32 bits of the hash choose in the left half and the upper ones in the right, both by scaling, which
    /// uses their upper bits; the tag is made of their lower bits.
    #[inline]
    fn place(&self, hash: Hash) -> HashPlace {
        let (low, high) = (hash.0 as u32, (hash.0 >> 32) as u32);
        let scaled = |x: u32| ((u64::from(x) * u64::from(self.half)) >> 32) as usize;
        let tag = (low & 0xff | (high & 0xff) << 8) as u16;
        HashPlace { left: scaled(low), right: self.half as usize + scaled(high), tag: tag.max(1) }
    }
}

impl TwoChoice {
    #[inline]
    fn place_of<K: Key>(&self, key: &K) -> HashPlace {
        self.place(key.hash(&self.hasher))
    }

    #[inline]
    fn prefetch(&self, place: HashPlace) {
        self.fetch.line(&self.buckets[place.left]);
        self.fetch.line(&self.buckets[place.right]);
    }

    /// The bucket and slot of an entry.
    #[inline]
    fn position(&self, place: HashPlace, value: u32) -> Option<(usize, usize)> {
        [place.left, place.right].into_iter().find_map(|at| {
            let bucket = &self.buckets[at];
            let mut matches = bucket.matching(place.tag);
            while let Some(slot) = matches.next() {
                if bucket.values[slot] == value {
                    return Some((at, slot));
                }
            }
            None
        })
    }

    fn insert_at(&mut self, place: HashPlace, value: u32) -> Result<(), Full> {
        let (mut left, mut right) = (self.buckets[place.left].free(), self.buckets[place.right].free());
        let (bucket, slot) = if left.0.count_ones() >= right.0.count_ones() {
            (place.left, left.next())
        } else {
            (place.right, right.next())
        };
        let slot = slot.ok_or(Full)?;
        let bucket = &mut self.buckets[bucket];
        bucket.values[slot] = value;
        bucket.set_tag(slot, place.tag);
        self.len += 1;
        Ok(())
    }

    fn remove_at(&mut self, place: HashPlace, value: u32) -> bool {
        let Some((bucket, slot)) = self.position(place, value) else { return false };
        self.buckets[bucket].set_tag(slot, 0);
        self.len -= 1;
        true
    }

    /// The places of up to [`BURST`] keys, prefetched.
    #[inline]
    fn places<K: Key>(&self, keys: &[K]) -> [HashPlace; BURST] {
        let mut places = [HashPlace { left: 0, right: 0, tag: 1 }; BURST];
        for (place, key) in places.iter_mut().zip(keys) {
            *place = self.place_of(key);
            self.prefetch(*place);
        }
        places
    }
}

impl<K: Key> Lookup<K> for TwoChoice {
    #[inline]
    fn find<E: Entries<K>>(&self, key: &K, entries: &E) -> Option<u32> {
        let place = self.place_of(key);
        let (left, right) = (&self.buckets[place.left], &self.buckets[place.right]);
        let mut is = |value| entries.is(value, key);
        left.find(left.matching(place.tag), &mut is).or_else(|| right.find(right.matching(place.tag), &mut is))
    }

    fn find_burst<E: Entries<K>>(&self, keys: &[K], entries: &E, out: &mut [Option<u32>]) {
        for (keys, out) in keys.chunks(BURST).zip(out.chunks_mut(BURST)) {
            let places = self.places(keys);
            let mut matches = [(Matches::default(), Matches::default()); BURST];
            for ((left, right), place) in matches.iter_mut().zip(&places).take(keys.len()) {
                let buckets = (&self.buckets[place.left], &self.buckets[place.right]);
                (*left, *right) = (buckets.0.matching(place.tag), buckets.1.matching(place.tag));
                let (mut a, mut b) = (*left, *right);
                let first = a.next().map(|slot| buckets.0.values[slot]);
                if let Some(value) = first.or_else(|| b.next().map(|slot| buckets.1.values[slot])) {
                    entries.prefetch(value);
                }
            }
            for (i, (key, found)) in keys.iter().zip(out).enumerate() {
                let mut is = |value| entries.is(value, key);
                let (left, right) = (&self.buckets[places[i].left], &self.buckets[places[i].right]);
                *found = left.find(matches[i].0, &mut is).or_else(|| right.find(matches[i].1, &mut is));
            }
        }
    }
}

impl<K: Key> Table<K> for TwoChoice {
    fn name(&self) -> &'static str {
        "two-choice"
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
        self.insert_at(self.place_of(key), value)
    }

    fn insert_burst(&mut self, keys: &[K], values: &[u32]) -> usize {
        let mut count = 0;
        for (keys, values) in keys.chunks(BURST).zip(values.chunks(BURST)) {
            let places = self.places(keys);
            for (&place, &value) in places.iter().zip(values).take(keys.len()) {
                if self.insert_at(place, value).is_err() {
                    return count;
                }
                count += 1;
            }
        }
        count
    }

    fn remove(&mut self, key: &K, value: u32) -> bool {
        self.remove_at(self.place_of(key), value)
    }

    fn remove_burst(&mut self, keys: &[K], values: &[u32]) -> usize {
        let mut count = 0;
        for (keys, values) in keys.chunks(BURST).zip(values.chunks(BURST)) {
            let places = self.places(keys);
            let pairs = places.iter().zip(values).take(keys.len());
            count += pairs.filter(|(place, value)| self.remove_at(**place, **value)).count();
        }
        count
    }

    fn replace(&mut self, key: &K, old: u32, new: u32) -> bool {
        let Some((bucket, slot)) = self.position(self.place_of(key), old) else { return false };
        self.buckets[bucket].values[slot] = new;
        true
    }

    fn scan(&self, from: u32, visit: &mut dyn FnMut(u32)) -> Option<u32> {
        let bucket = self.buckets.get(from as usize)?;
        let free = bucket.free().0;
        let mut taken = Matches(EXISTING & !free);
        while let Some(slot) = taken.next() {
            visit(bucket.values[slot]);
        }
        (from as usize + 1 < self.buckets.len()).then_some(from + 1)
    }
}

#[cfg(test)]
mod tests;

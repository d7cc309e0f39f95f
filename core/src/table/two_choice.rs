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

use super::{Full, Hash, Table, prefetch_line};
use alloc::boxed::Box;
use alloc::vec;

/// Entries per bucket.
const SLOTS: usize = 10;

/// Percent of the slots that are taken when a table holds its capacity.
pub const LOAD_PERCENT: usize = 60;

/// Buckets of each half beyond what the load asks for. Small tables need them: the fewer the buckets, the larger a
/// share of them chance may fill.
const HALF_SPARE: usize = 2;

/// Hashes [`Table::find_burst`] handles in one go.
const BURST: usize = 32;

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
    /// The left half, then the right half.
    buckets: Box<[Bucket]>,
    /// Buckets in a half.
    half: u32,
    capacity: usize,
    len: usize,
}

/// What a hash says: its two buckets and its tag.
#[derive(Clone, Copy)]
struct Place {
    left: usize,
    right: usize,
    tag: u16,
}

impl TwoChoice {
    /// An empty table for `capacity` entries, 1 to 2^32 - 1.
    pub fn new(capacity: usize) -> TwoChoice {
        let capacity = capacity.clamp(1, u32::MAX as usize);
        let half = (capacity * 100).div_ceil(LOAD_PERCENT * SLOTS * 2) + HALF_SPARE;
        TwoChoice { buckets: vec![Bucket::EMPTY; 2 * half].into_boxed_slice(), half: half as u32, capacity, len: 0 }
    }

    /// Bytes the table takes.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.buckets)
    }

    /// The lower 32 bits of the hash choose in the left half and the upper ones in the right, both by scaling, which
    /// uses their upper bits; the tag is made of their lower bits.
    #[inline]
    fn place(&self, hash: Hash) -> Place {
        let (low, high) = (hash.0 as u32, (hash.0 >> 32) as u32);
        let scaled = |x: u32| ((u64::from(x) * u64::from(self.half)) >> 32) as usize;
        let tag = (low & 0xff | (high & 0xff) << 8) as u16;
        Place { left: scaled(low), right: self.half as usize + scaled(high), tag: tag.max(1) }
    }
}

impl Table for TwoChoice {
    fn capacity(&self) -> usize {
        self.capacity
    }

    fn len(&self) -> usize {
        self.len
    }

    #[inline]
    fn prefetch(&self, hash: Hash) {
        let place = self.place(hash);
        prefetch_line(&self.buckets[place.left]);
        prefetch_line(&self.buckets[place.right]);
    }

    #[inline]
    fn find(&self, hash: Hash, mut is: impl FnMut(u32) -> bool) -> Option<u32> {
        let place = self.place(hash);
        let (left, right) = (&self.buckets[place.left], &self.buckets[place.right]);
        left.find(left.matching(place.tag), &mut is).or_else(|| right.find(right.matching(place.tag), &mut is))
    }

    fn find_burst(&self, hashes: &[Hash], mut is: impl FnMut(usize, u32) -> bool, out: &mut [Option<u32>]) {
        let bursts = hashes.chunks(BURST).zip(out.chunks_mut(BURST)).enumerate();
        for (burst, (hashes, out)) in bursts {
            let mut matches = [(Matches::default(), Matches::default()); BURST];
            for &hash in hashes {
                self.prefetch(hash);
            }
            for (matches, &hash) in matches.iter_mut().zip(hashes) {
                let place = self.place(hash);
                *matches =
                    (self.buckets[place.left].matching(place.tag), self.buckets[place.right].matching(place.tag));
            }
            for (i, (&hash, found)) in hashes.iter().zip(out).enumerate() {
                let place = self.place(hash);
                let mut is = |value| is(burst * BURST + i, value);
                *found = self.buckets[place.left]
                    .find(matches[i].0, &mut is)
                    .or_else(|| self.buckets[place.right].find(matches[i].1, &mut is));
            }
        }
    }

    fn candidates(&self, hashes: &[Hash], out: &mut [Option<u32>]) {
        for &hash in hashes {
            self.prefetch(hash);
        }
        for (&hash, candidate) in hashes.iter().zip(out) {
            *candidate = self.find(hash, |_| true);
        }
    }

    fn insert(&mut self, hash: Hash, value: u32) -> Result<(), Full> {
        let place = self.place(hash);
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

    fn remove(&mut self, hash: Hash, value: u32) -> bool {
        let place = self.place(hash);
        for bucket in [place.left, place.right] {
            let bucket = &mut self.buckets[bucket];
            let mut matches = bucket.matching(place.tag);
            while let Some(slot) = matches.next() {
                if bucket.values[slot] == value {
                    bucket.set_tag(slot, 0);
                    self.len -= 1;
                    return true;
                }
            }
        }
        false
    }
}

#[cfg(test)]
mod tests;

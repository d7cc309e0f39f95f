//! One bucket: a cache line of atomics. Readers load them; a writer locks the bucket first, and then
//! is the only one to store into it (but for stamps, which any thread may store at any time).

use crate::table::sync::{AtomicU8, AtomicU32, AtomicU64, spin};
use core::array;
use core::ops::Deref;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Entries per bucket.
pub(super) const SLOTS: usize = 8;

/// Set in the tag of an entry that stands in its secondary bucket.
pub(super) const AWAY: u16 = 0x8000;

/// In [`Bucket::state`]: a thread is changing the bucket.
const LOCKED: u32 = 1;
/// In [`Bucket::state`]: one return.
const RETURN: u32 = 2;

/// Counters in [`Bucket::away`], of [`CELL_BITS`] bits each.
const CELLS: u32 = 10;
const CELL_BITS: u32 = 3;
/// A counter that got here stays here.
pub(super) const CELL_MAX: u32 = (1 << CELL_BITS) - 1;

/// A set of slots: slot `s` is bits `2 * s` and `2 * s + 1`, both of them, as comparing lanes of 16 bits tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SlotSet(u16);

impl SlotSet {
    /// Expands a bit for each slot.
    #[cfg(test)]
    pub(super) fn of(bits: u8) -> SlotSet {
        SlotSet((0..SLOTS).filter(|slot| bits >> slot & 1 != 0).fold(0, |slots, slot| slots | 3 << (2 * slot)))
    }
}

impl Iterator for SlotSet {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        if self.0 == 0 {
            return None;
        }
        let bit = self.0.trailing_zeros() as usize;
        // SAFETY: one of 16 bits is set, and they are set in pairs.
        unsafe { core::hint::assert_unchecked(bit < 2 * SLOTS && bit.is_multiple_of(2)) }
        self.0 &= !(3 << bit);
        Some(bit / 2)
    }
}

/// The tags of a bucket at some moment: slot `s` is lane `s % 4` of word `s / 4`. 0: free.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tags(pub(super) [u64; 2]);

impl Tags {
    /// The tag in `slot`.
    #[inline]
    pub(super) fn at(self, slot: usize) -> u16 {
        (self.0[slot >> 2 & 1] >> (16 * (slot & 3))) as u16
    }

    /// The slots that have `tag`; 0 finds free ones.
    #[inline]
    pub(super) fn with(self, tag: u16) -> SlotSet {
        #[cfg(target_arch = "x86_64")]
        return self.with_sse2(tag);
        #[cfg(not(target_arch = "x86_64"))]
        self.with_scalar(tag)
    }

    /// The slots that are taken.
    #[inline]
    pub(super) fn taken(self) -> SlotSet {
        SlotSet(!self.with(0).0)
    }

    /// The slots of entries whose secondary bucket this is.
    #[inline]
    pub(super) fn guests(self) -> SlotSet {
        let away = |slot: &usize| self.at(*slot) & AWAY != 0;
        SlotSet((0..SLOTS).filter(away).fold(0, |slots, slot| slots | 3 << (2 * slot)))
    }

    #[cfg(target_arch = "x86_64")]
    #[inline]
    fn with_sse2(self, tag: u16) -> SlotSet {
        use core::arch::x86_64::{_mm_cmpeq_epi16, _mm_movemask_epi8, _mm_set_epi64x, _mm_set1_epi16};
        let [low, high] = self.0;
        // SAFETY: SSE2 is part of x86-64.
        let mask = unsafe {
            let equal = _mm_cmpeq_epi16(_mm_set_epi64x(high as i64, low as i64), _mm_set1_epi16(tag as i16));
            _mm_movemask_epi8(equal)
        };
        SlotSet(mask as u16)
    }

    #[cfg(any(test, not(target_arch = "x86_64")))]
    #[inline]
    pub(super) fn with_scalar(self, tag: u16) -> SlotSet {
        const LANES: u64 = 0x0001_0001_0001_0001;
        const LOW: u64 = 0x7fff * LANES;
        let [low, high] = self.0.map(|word| {
            let word = word ^ (u64::from(tag) * LANES);
            // 1 in the lowest bit of every lane that is zero, and exactly there: no carry runs between lanes.
            let zero = !(((word & LOW) + LOW) | word | LOW) >> 15;
            let zero = 3 * zero;
            (zero | zero >> 14 | zero >> 28 | zero >> 42) as u16 & 0xff
        });
        SlotSet(low | high << 8)
    }
}

/// The value of [`Bucket::state`]; tells whether an entry has returned since.
#[derive(Clone, Copy, Debug)]
pub(super) struct BucketVersion(u32);

impl BucketVersion {
    /// Whether no entry returned between this and `later`.
    #[inline]
    pub(super) fn is_same(self, later: BucketVersion) -> bool {
        (self.0 ^ later.0) & !LOCKED == 0
    }
}

/// The bucket. All zero is an empty one.
#[repr(C, align(64))]
pub(super) struct Bucket {
    tags: [AtomicU64; 2],
    values: [AtomicU32; SLOTS],
    stamps: [AtomicU8; SLOTS],
    /// Bit 0: locked. The bits above count, modulo 2^31, how often an entry came back to this bucket, its primary one,
    /// from its secondary one.
    state: AtomicU32,
    /// A counting filter of the entries whose primary bucket this is and that stand in their secondary one.
    away: AtomicU32,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Bucket>() == 64);

// SAFETY: zeroes are valid atomic integers.
#[cfg(not(loom))]
unsafe impl crate::table::zeroed::Zeroable for Bucket {}

impl Bucket {
    /// An empty one.
    #[cfg(loom)]
    pub(super) fn new() -> Bucket {
        Bucket {
            tags: array::from_fn(|_| AtomicU64::new(0)),
            values: array::from_fn(|_| AtomicU32::new(0)),
            stamps: array::from_fn(|_| AtomicU8::new(0)),
            state: AtomicU32::new(0),
            away: AtomicU32::new(0),
        }
    }

    /// Has the kernel hand out the page.
    #[cfg(not(loom))]
    pub(super) fn touch(&self) {
        self.away.store(0, Relaxed);
    }

    /// The tags now. What is read afterwards is at least as new, here and in all other buckets.
    #[inline]
    pub(super) fn tags(&self) -> Tags {
        Tags(array::from_fn(|i| self.tags[i].load(Acquire)))
    }

    /// A slot that is free.
    #[inline]
    pub(super) fn free(&self) -> Option<usize> {
        self.tags().with(0).next()
    }

    /// The value in `slot`, and with it what was written into its entry before it was inserted.
    #[inline]
    pub(super) fn value(&self, slot: usize) -> u32 {
        self.values[slot & (SLOTS - 1)].load(Acquire)
    }

    /// The value in `slot` and its stamp, not that of another one that has just come or gone.
    pub(super) fn value_and_stamp(&self, slot: usize) -> (u32, u8) {
        let mut value = self.value(slot);
        let mut stamp = self.stamp(slot).load(Acquire);
        for _ in 0..SLOTS {
            let later = self.value(slot);
            if later == value {
                break;
            }
            (value, stamp) = (later, self.stamp(slot).load(Acquire));
        }
        (value, stamp)
    }

    #[inline]
    pub(super) fn version(&self) -> BucketVersion {
        BucketVersion(self.state.load(Acquire))
    }

    /// Whether entries of this primary bucket with `tag` may stand in their secondary one.
    #[inline]
    pub(super) fn may_be_away(&self, tag: u16) -> bool {
        self.away.load(Acquire) >> cell(tag) & CELL_MAX != 0
    }

    /// Whether `slot` holds this tag and value.
    #[inline]
    pub(super) fn holds(&self, slot: usize, tag: u16, value: u32) -> bool {
        self.tags().at(slot) == tag && self.value(slot) == value
    }

    /// The first slot that holds this tag and value.
    #[inline]
    pub(super) fn position(&self, tag: u16, value: u32) -> Option<usize> {
        self.tags().with(tag).find(|&slot| self.value(slot) == value)
    }

    #[inline]
    pub(super) fn stamp(&self, slot: usize) -> &AtomicU8 {
        &self.stamps[slot & (SLOTS - 1)]
    }

    /// Waits until no other thread changes the bucket.
    #[inline]
    pub(super) fn lock(&self) -> LockedBucket<'_> {
        loop {
            let state = self.state.load(Relaxed);
            if state & LOCKED == 0 && self.state.compare_exchange_weak(state, state | LOCKED, Acquire, Relaxed).is_ok()
            {
                return LockedBucket { bucket: self, state };
            }
            spin();
        }
    }

    /// The counters of the filter, for [`super::check`].
    pub(super) fn cells(&self) -> [u32; CELLS as usize] {
        let away = self.away.load(Relaxed);
        array::from_fn(|i| away >> (CELL_BITS * i as u32) & CELL_MAX)
    }

    pub(super) fn is_locked(&self) -> bool {
        self.state.load(Relaxed) & LOCKED != 0
    }
}

/// The offset of the counter of `tag` in [`Bucket::away`].
#[inline]
fn cell(tag: u16) -> u32 {
    CELL_BITS * cell_number(tag)
}

/// Which counter `tag` has.
#[inline]
pub(super) fn cell_number(tag: u16) -> u32 {
    (u32::from(tag & !AWAY) * CELLS) >> 15
}

/// The right to change a bucket; given back when dropped.
pub(super) struct LockedBucket<'a> {
    bucket: &'a Bucket,
    /// The previous value.
    state: u32,
}

impl Deref for LockedBucket<'_> {
    type Target = Bucket;

    #[inline]
    fn deref(&self) -> &Bucket {
        self.bucket
    }
}

impl Drop for LockedBucket<'_> {
    #[inline]
    fn drop(&mut self) {
        self.bucket.state.store(self.state, Release);
    }
}

impl LockedBucket<'_> {
    /// Puts an entry into a free slot. Who sees the tag sees the rest.
    #[inline]
    pub(super) fn put(&mut self, slot: usize, tag: u16, value: u32, stamp: u8) {
        self.bucket.stamp(slot).store(stamp, Relaxed);
        // Release, not only for the tag's sake: a lookup may have seen the tag of the entry that stood here before and
        // read the value only now.
        self.bucket.values[slot & (SLOTS - 1)].store(value, Release);
        self.set_tag(slot, tag);
    }

    /// Makes a slot free.
    #[inline]
    pub(super) fn clear(&mut self, slot: usize) {
        self.set_tag(slot, 0);
    }

    /// Changes the value in a slot.
    #[inline]
    pub(super) fn set_value(&mut self, slot: usize, value: u32) {
        self.bucket.values[slot & (SLOTS - 1)].store(value, Release);
    }

    #[inline]
    fn set_tag(&mut self, slot: usize, tag: u16) {
        let word = &self.bucket.tags[slot >> 2 & 1];
        let shift = 16 * (slot & 3);
        word.store(word.load(Relaxed) & !(0xffff << shift) | u64::from(tag) << shift, Release);
    }

    /// Counts an entry of this primary bucket that is going to stand in its secondary one.
    #[inline]
    pub(super) fn leaves(&mut self, tag: u16) {
        let away = self.bucket.away.load(Relaxed);
        if away >> cell(tag) & CELL_MAX < CELL_MAX {
            self.bucket.away.store(away + (1 << cell(tag)), Release);
        }
    }

    /// Takes back what [`LockedBucket::leaves`] counted: the entry does not stand there any more.
    #[inline]
    pub(super) fn left(&mut self, tag: u16) {
        let away = self.bucket.away.load(Relaxed);
        let count = away >> cell(tag) & CELL_MAX;
        // A counter that has reached its limit has forgotten how many there are.
        if count < CELL_MAX && count > 0 {
            self.bucket.away.store(away - (1 << cell(tag)), Release);
        }
    }

    /// Tells readers that an entry came back, before it is taken away from where it stood.
    #[inline]
    pub(super) fn came_back(&mut self) {
        self.state = self.state.wrapping_add(RETURN);
        self.bucket.state.store(self.state | LOCKED, Release);
    }
}

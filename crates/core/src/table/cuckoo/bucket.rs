//! One cache line of the table: eight entries, and what is known of this bucket's entries that live elsewhere.

use super::HashPlace;

/// Entries per bucket.
pub(super) const SLOTS: usize = 8;

/// A bucket's part of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BucketEntry {
    /// As in [`HashPlace`].
    pub(super) tag: u16,
    pub(super) value: u32,
    pub(super) stamp: u8,
    /// It stands in the second bucket of its hash.
    pub(super) is_moved: bool,
}

/// Set in the tag of an entry that stands in its second bucket.
pub(super) const MOVED: u16 = 0x8000;

/// A set of slots: slot `s` is bits `2 * s` and `2 * s + 1`, both of them, as comparing lanes of 16 bits tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SlotSet(u16);

impl SlotSet {
    /// Expands a bit for each slot.
    #[cfg(test)]
    pub(super) fn of(bits: u8) -> SlotSet {
        SlotSet((0..SLOTS).filter(|slot| bits >> slot & 1 != 0).fold(0, |slots, slot| slots | 3 << (2 * slot)))
    }

    #[inline]
    pub(super) fn is_empty(self) -> bool {
        self.0 == 0
    }

    #[inline]
    pub(super) fn first(self) -> Option<usize> {
        (self.0 != 0).then(|| {
            let bit = self.0.trailing_zeros() as usize;
            // SAFETY: one of 16 bits is set, and they are set in pairs.
            unsafe { core::hint::assert_unchecked(bit < 2 * SLOTS && bit.is_multiple_of(2)) }
            bit / 2
        })
    }
}

impl Iterator for SlotSet {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        let slot = self.first()?;
        self.0 &= !(3 << (2 * slot));
        Some(slot)
    }
}

/// Eight slots and the filter.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
pub(super) struct Bucket {
    /// 0: the slot is free. With [`MOVED`]: the entry stands here as in its second bucket.
    tags: [u16; SLOTS],
    values: [u32; SLOTS],
    stamps: [u8; SLOTS],
    pub(super) filter: SecondaryFilter,
}

const _: () = assert!(size_of::<Bucket>() == 64);

impl Bucket {
    pub(super) const EMPTY: Bucket =
        Bucket { tags: [0; SLOTS], values: [0; SLOTS], stamps: [0; SLOTS], filter: SecondaryFilter(0) };

    /// The slots whose tag is `tag`; of 0: those that are free.
    #[inline]
    pub(super) fn matching(&self, tag: u16) -> SlotSet {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        return matching_sse2(&self.tags, tag);
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        return matching_words(&self.tags, tag);
    }

    #[inline]
    pub(super) fn free(&self) -> SlotSet {
        self.matching(0)
    }

    #[inline]
    pub(super) fn taken(&self) -> SlotSet {
        SlotSet(!self.free().0)
    }

    /// The slots whose entries have `tag` and this as the first bucket of their hash.
    #[inline]
    pub(super) fn at_home(&self, tag: u16) -> SlotSet {
        self.matching(tag)
    }

    /// The slots whose entries have `tag` and this as the second bucket of their hash.
    #[inline]
    pub(super) fn moved_here(&self, tag: u16) -> SlotSet {
        self.matching(tag | MOVED)
    }

    /// The slots whose entries have this as the second bucket of their hash.
    #[inline]
    pub(super) fn guests(&self) -> SlotSet {
        let moved = self.tags.iter().enumerate().filter(|(_, tag)| **tag & MOVED != 0);
        SlotSet(moved.fold(0, |slots, (slot, _)| slots | 3 << (2 * slot)))
    }

    #[inline]
    pub(super) fn value(&self, slot: usize) -> u32 {
        self.values[slot]
    }

    #[inline]
    pub(super) fn set_value(&mut self, slot: usize, value: u32) {
        self.values[slot] = value;
    }

    #[inline]
    pub(super) fn set_stamp(&mut self, slot: usize, stamp: u8) {
        self.stamps[slot] = stamp;
    }

    /// The contents of a slot; of a free one: nonsense with tag 0.
    #[inline]
    pub(super) fn entry(&self, slot: usize) -> BucketEntry {
        let tag = self.tags[slot];
        let (value, stamp) = (self.values[slot], self.stamps[slot]);
        BucketEntry { tag: tag & !MOVED, value, stamp, is_moved: tag & MOVED != 0 }
    }

    #[inline]
    pub(super) fn put(&mut self, slot: usize, entry: BucketEntry) {
        self.tags[slot] = entry.tag | if entry.is_moved { MOVED } else { 0 };
        self.values[slot] = entry.value;
        self.stamps[slot] = entry.stamp;
    }

    #[inline]
    pub(super) fn take(&mut self, slot: usize) -> BucketEntry {
        let entry = self.entry(slot);
        self.tags[slot] = 0;
        entry
    }

    /// The first of `slots` of whose value `is` says yes.
    #[inline]
    pub(super) fn confirm(&self, mut slots: SlotSet, is: &mut impl FnMut(u32) -> bool) -> Option<usize> {
        slots.find(|&slot| is(self.values[slot]))
    }
}

/// Eight comparisons at once.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(always)]
pub(super) fn matching_sse2(tags: &[u16; SLOTS], tag: u16) -> SlotSet {
    use core::arch::x86_64::{__m128i, _mm_cmpeq_epi16, _mm_loadu_si128, _mm_movemask_epi8, _mm_set1_epi16};
    // SAFETY: SSE2 is part of x86-64; the load reads the 16 bytes of `tags`, wherever they are aligned.
    unsafe {
        let tags = _mm_loadu_si128(tags.as_ptr().cast::<__m128i>());
        let equal = _mm_cmpeq_epi16(tags, _mm_set1_epi16(tag as i16));
        SlotSet(_mm_movemask_epi8(equal) as u16)
    }
}

/// [`matching_sse2`] for all other processors, and for Miri: four comparisons in a word.
#[cfg(any(test, not(target_arch = "x86_64"), miri))]
#[inline]
pub(super) fn matching_words(tags: &[u16; SLOTS], tag: u16) -> SlotSet {
    const LANES: u64 = 0x0001_0001_0001_0001;
    const LOW: u64 = 0x7fff * LANES;
    let half = |tags: [u16; 4]| {
        let word = tags.into_iter().rev().fold(0, |word, tag| word << 16 | u64::from(tag));
        let word = word ^ (u64::from(tag) * LANES);
        // 1 in the lowest bit of every lane that is zero, and exactly there: no carry runs between lanes.
        let zero = !(((word & LOW) + LOW) | word | LOW) >> 15;
        let zero = 3 * zero;
        (zero | zero >> 14 | zero >> 28 | zero >> 42) as u16 & 0xff
    };
    let [a, b, c, d, e, f, g, h] = *tags;
    SlotSet(half([a, b, c, d]) | half([e, f, g, h]) << 8)
}

/// Which entries *of* this bucket (of whose hash it is the first bucket) live in their second one.
///
/// From the low end: seven prints of 8 bits (0: none), and the number of entries for whose print there was no room.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct SecondaryFilter(u64);

/// Prints a filter can list.
pub(super) const LISTED: usize = 7;
/// Entries a filter can count besides.
pub(super) const UNLISTED_MAX: u8 = u8::MAX;

const PRINTS: u64 = (1 << 56) - 1;
const EACH_PRINT: u64 = 0x01_0101_0101_0101;
const UNLISTED_SHIFT: u32 = 56;

impl SecondaryFilter {
    /// The offset of the first `print` among the prints, in bits; of 0: of free room.
    #[inline]
    fn cell(self, print: u8) -> Option<u32> {
        const LOW: u64 = 0x0101_0101_0101_0101;
        let word = (self.0 ^ (u64::from(print) * EACH_PRINT)) | !PRINTS;
        // The lowest byte that this marks is zero; those above may be marked in error.
        let zero = word.wrapping_sub(LOW) & !word & LOW << 7;
        (zero != 0).then(|| zero.trailing_zeros() & !7)
    }

    /// Whether an entry of this bucket with `print` may live in its second bucket. No is certain.
    #[inline]
    pub(super) fn may_have_moved(self, print: u8) -> bool {
        self.unlisted() != 0 || self.cell(print).is_some()
    }

    #[inline]
    pub(super) fn unlisted(self) -> u8 {
        (self.0 >> UNLISTED_SHIFT) as u8
    }

    /// The prints that are listed.
    pub(super) fn listed(self) -> impl Iterator<Item = u8> {
        (0..LISTED).map(move |i| (self.0 >> (8 * i)) as u8).filter(|&print| print != 0)
    }

    /// Whether one more entry may move away.
    #[inline]
    pub(super) fn has_room(self) -> bool {
        self.unlisted() != UNLISTED_MAX || self.cell(0).is_some()
    }

    /// An entry with `print` moves away; the filter [has room](Filter::has_room).
    #[inline]
    pub(super) fn add(&mut self, print: u8) {
        match self.cell(0) {
            Some(shift) => self.0 |= u64::from(print) << shift,
            None => self.0 += 1 << UNLISTED_SHIFT,
        }
    }

    /// An entry with `print` that had moved away is gone or back. What is unlisted stays right also if the print struck
    /// out was that of another entry: as many prints of this kind are left, listed or not, as there are entries.
    #[inline]
    pub(super) fn remove(&mut self, print: u8) {
        match self.cell(print) {
            Some(shift) => self.0 &= !(0xff << shift),
            None => {
                debug_assert!(self.unlisted() != 0, "an entry came back that had not moved");
                self.0 -= 1 << UNLISTED_SHIFT;
            }
        }
    }
}

/// The filter's print of an entry; not 0, as [`HashPlace`] sees to. It is a part of the tag, so that moving an entry
/// does not need its key.
#[inline]
pub(super) fn print(tag: u16) -> u8 {
    tag as u8
}

impl HashPlace {
    /// [`print`] of its tag.
    #[inline]
    pub(super) fn print(self) -> u8 {
        print(self.tag)
    }
}

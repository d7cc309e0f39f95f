//! A bucket: two entries, and a head that says which slots are taken and what is known of entries that live elsewhere.

use core::hint::select_unpredictable;
use core::mem::MaybeUninit;

/// Entries per bucket.
pub(super) const SLOTS: usize = 2;

/// Buckets that an entry may stand in: its first one (0), the neighbour of that (1), and two in other pairs (2 and 3).
pub(super) const CHOICES: u8 = 4;

/// Moved entries a head can list.
pub(super) const LISTED: usize = 5;
/// Moved entries a head can count besides.
pub(super) const UNLISTED_MAX: u16 = u16::MAX;

/// A key and its value.
#[derive(Clone, Copy)]
pub(super) struct InlineEntry<K, V> {
    pub(super) key: K,
    pub(super) value: V,
}

/// A bucket's metadata: of the entries that stand in it, and of those *of* it (of whose hash it is the first bucket)
/// that stand elsewhere. All in lanes of 16 bits, so that one comparison tells all of it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct BucketHead {
    /// For each slot: the [mark] of the entry in it; 0: free.
    pub(super) marks: [u16; SLOTS],
    /// The marks of entries that have moved away; 0: none.
    pub(super) cells: [u16; LISTED],
    /// Moved entries for which there was no cell.
    pub(super) unlisted: u16,
}

/// Lanes of a head.
pub(super) const LANES: usize = SLOTS + LISTED + 1;

const _: () = assert!(size_of::<BucketHead>() == 2 * LANES);

/// The bits of a mark that say by which of its choices the entry stands where it does; the others are its tag.
pub(super) const CHOICE: u16 = CHOICES as u16 - 1;

/// The mark of an entry of this tag.
#[inline]
pub(super) fn mark(tag: u16, choice: u8) -> u16 {
    tag | u16::from(choice)
}

/// The bits of a screen that stand for an entry: one or two of 16.
#[inline]
pub(super) fn screen(mark: u16) -> u16 {
    1 << (mark >> 3 & 15) | 1 << (mark >> 7 & 15)
}

/// Lanes of a head: lane `i` is bits `2 * i` and `2 * i + 1`, both of them, as comparing lanes of 16 bits tells.
const MARKS: u32 = (1 << (2 * SLOTS)) - 1;
const MARKS_AND_CELLS: u32 = (1 << (2 * (SLOTS + LISTED))) - 1;
const UNLISTED: u32 = 1 << (2 * (SLOTS + LISTED));

impl BucketHead {
    /// A slot that is free.
    #[inline]
    pub(super) fn free(&self) -> Option<usize> {
        self.marks.iter().position(|&mark| mark == 0)
    }

    /// By which of its choices the entry in a slot stands here; `None`: there is none.
    #[inline]
    pub(super) fn choice(&self, slot: usize) -> Option<u8> {
        let mark = self.marks[slot];
        (mark != 0).then_some((mark & CHOICE) as u8)
    }

    /// The marks and cells with this tag.
    #[inline]
    pub(super) fn with_tag(&self, tag: u16) -> u32 {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        let equal = with_tag_sse2(self.lanes(), tag);
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        let equal = with_tag_words(self.lanes(), tag);
        equal & MARKS_AND_CELLS
    }

    #[inline]
    pub(super) fn lanes(&self) -> &[u16; LANES] {
        // SAFETY: the head is so many numbers of 16 bits, one after the other, and nothing else.
        unsafe { &*core::ptr::from_ref(self).cast() }
    }

    /// The first place to search for an entry of this bucket with this tag: its mark there. `None`: it is certainly
    /// not in the table. (It may be another entry's mark, or, if there are entries that are not listed, no entry's.)
    #[inline]
    pub(super) fn lead(&self, tag: u16) -> Option<u16> {
        Some(self.mark_of(self.lane(tag)?, tag))
    }

    /// The lane that [`BucketHead::lead`] uses.
    #[inline]
    pub(super) fn lane(&self, tag: u16) -> Option<usize> {
        let equal = self.with_tag(tag);
        (equal | u32::from(self.unlisted) != 0).then(|| ((equal | UNLISTED).trailing_zeros() / 2) as usize)
    }

    /// The mark to which a lane leads.
    #[inline]
    pub(super) fn mark_of(&self, lane: usize, tag: u16) -> u16 {
        tag | self.lanes()[lane % LANES] & CHOICE
    }

    /// By which choices an entry of this bucket with `tag` may have moved away: bit `choice` is set. Others are
    /// certainly none.
    #[inline]
    pub(super) fn choices(&self, tag: u16) -> u8 {
        if self.unlisted != 0 {
            return (1 << CHOICES) - 2;
        }
        if self.with_tag(tag) & !MARKS == 0 {
            return 0;
        }
        let its = self.cells.iter().filter(|&&cell| cell & !CHOICE == tag);
        its.fold(0, |choices, cell| choices | 1 << (cell & CHOICE))
    }

    /// The [bits](screen) of all entries of this bucket, wherever they are. Who lacks one of its own is not there. It is
    /// the head again, in little, for a place where it is read faster.
    #[inline]
    pub(super) fn screen(&self) -> u16 {
        if self.unlisted != 0 {
            return u16::MAX;
        }
        // Told by arithmetic: how many there are and where is nothing that a processor could guess.
        let bits = |mark: u16, counts: bool| screen(mark) * u16::from(counts);
        let at_home = self.marks.iter().fold(0, |all, &mark| all | bits(mark, (mark != 0) & (mark & CHOICE == 0)));
        self.cells.iter().fold(at_home, |all, &cell| all | bits(cell, cell != 0))
    }

    /// The cells in use.
    pub(super) fn listed(&self) -> impl Iterator<Item = u16> {
        self.cells.into_iter().filter(|&cell| cell != 0)
    }

    /// Whether `more` entries may move away.
    #[inline]
    pub(super) fn has_room_for(&self, more: usize) -> bool {
        usize::from(self.unlisted) + more <= usize::from(UNLISTED_MAX)
    }

    /// An entry moves away to where it has this mark; there [is room](Head::has_room_for).
    #[inline]
    pub(super) fn add(&mut self, mark: u16) {
        match self.cells.iter_mut().find(|cell| **cell == 0) {
            Some(cell) => *cell = mark,
            None => self.unlisted += 1,
        }
    }

    /// An entry that [`BucketHead::add`] was told of is gone or back. (What is unlisted stays right also if the cell struck
    /// out was that of another entry: as many of this kind are left, listed or not, as there are entries.)
    #[inline]
    pub(super) fn strike(&mut self, mark: u16) {
        match self.cells.iter_mut().find(|cell| **cell == mark) {
            Some(cell) => *cell = 0,
            None => {
                debug_assert!(self.unlisted != 0, "an entry came back that had not moved");
                self.unlisted = self.unlisted.saturating_sub(1);
            }
        }
    }
}

/// The lanes that have this tag, whatever their choice: all comparisons at once.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(always)]
pub(super) fn with_tag_sse2(lanes: &[u16; LANES], tag: u16) -> u32 {
    use core::arch::x86_64::{
        __m128i, _mm_and_si128, _mm_cmpeq_epi16, _mm_loadu_si128, _mm_movemask_epi8, _mm_set1_epi16,
    };
    // SAFETY: SSE2 is part of x86-64; the load reads the 16 bytes of `lanes`, wherever they are aligned.
    unsafe {
        let lanes = _mm_loadu_si128(lanes.as_ptr().cast::<__m128i>());
        let tags = _mm_and_si128(lanes, _mm_set1_epi16(!CHOICE as i16));
        _mm_movemask_epi8(_mm_cmpeq_epi16(tags, _mm_set1_epi16(tag as i16))) as u32
    }
}

/// [`with_tag_sse2`] for all other processors, and for Miri.
#[cfg(any(test, not(target_arch = "x86_64"), miri))]
#[inline]
pub(super) fn with_tag_words(lanes: &[u16; LANES], tag: u16) -> u32 {
    let equal = |(lane, &mark): (usize, &u16)| (u32::from(mark & !CHOICE == tag) * 3) << (2 * lane);
    lanes.iter().enumerate().map(equal).fold(0, |all, lane| all | lane)
}

/// The head and two slots. A slot whose mark is not 0 holds an entry.
#[repr(C, align(64))]
pub(super) struct Bucket<K, V> {
    /// Marks are set together with entries, in [`Bucket::put`] only.
    pub(super) head: BucketHead,
    keys: [MaybeUninit<K>; SLOTS],
    /// Undefined for a slot without an entry.
    values: [V; SLOTS],
}

impl<K: Copy, V: Copy> Clone for Bucket<K, V> {
    fn clone(&self) -> Bucket<K, V> {
        *self
    }
}

impl<K: Copy, V: Copy> Copy for Bucket<K, V> {}

// Keys of 16 bytes and values of 8: one line.
const _: () = assert!(size_of::<Bucket<[u8; 16], u64>>() == 64);

impl<K: Copy + PartialEq, V: Copy + Default> Bucket<K, V> {
    /// One without entries.
    pub(super) fn empty() -> Bucket<K, V> {
        Bucket { head: BucketHead::default(), keys: [MaybeUninit::uninit(); SLOTS], values: [V::default(); SLOTS] }
    }

    /// The key in a slot, if it is taken.
    #[inline]
    pub(super) fn key(&self, slot: usize) -> Option<&K> {
        // SAFETY: `put` alone sets marks, and writes the key of the slot first; keys are never taken out of their
        // memory, so a slot with a mark holds one.
        (self.head.marks[slot] != 0).then(|| unsafe { self.keys[slot].assume_init_ref() })
    }

    /// The entry in a slot, if it is taken.
    #[inline]
    pub(super) fn entry(&self, slot: usize) -> Option<InlineEntry<K, V>> {
        Some(InlineEntry { key: *self.key(slot)?, value: self.values[slot] })
    }

    /// The value of `key`, if the first slot with this mark holds it.
    #[inline]
    pub(super) fn marked(&self, mark: u16, key: &K) -> Option<V> {
        let slot = usize::from(self.head.marks[0] != mark);
        let is_it = self.head.marks[slot] == mark && self.key(slot).is_some_and(|other| other == key);
        is_it.then_some(self.values[slot])
    }

    /// Whether a [lane](Head::lane) is that of a slot with `key`, and the value there (undefined if it is not).
    /// By arithmetic only.
    ///
    /// # Safety
    /// The head told of that lane, for a tag that is not 0.
    #[inline(always)]
    pub(super) unsafe fn at_lane(&self, lane: usize, key: &K) -> (bool, V) {
        let (slot, is_slot) = (lane % SLOTS, lane < SLOTS);
        debug_assert!(!is_slot || self.head.marks[slot] != 0);
        let there = select_unpredictable(is_slot, self.keys[slot].as_ptr(), core::ptr::from_ref(key));
        // SAFETY: of slots the head tells those only whose mark has the tag, so it is not 0 and the slot holds a key
        // (see `key`); of other lanes it is the one given.
        (is_slot & (unsafe { &*there } == key), self.values[slot])
    }

    /// Fills a slot. The mark is not 0.
    #[inline]
    pub(super) fn put(&mut self, slot: usize, mark: u16, entry: InlineEntry<K, V>) {
        self.keys[slot].write(entry.key);
        self.values[slot] = entry.value;
        self.head.marks[slot] = mark;
    }

    /// Gives the entry of a slot another value; whether there was one.
    #[inline]
    pub(super) fn set_value(&mut self, slot: usize, value: V) -> bool {
        let is_taken = self.head.marks[slot] != 0;
        if is_taken {
            self.values[slot] = value;
        }
        is_taken
    }

    /// The first slot with this mark for whose key and value `is` says yes.
    #[inline]
    pub(super) fn confirm(&self, mark: u16, is: &mut impl FnMut(&K, V) -> bool) -> Option<usize> {
        let mut is_it = |slot: usize| self.key(slot).is_some_and(|key| is(key, self.values[slot]));
        (0..SLOTS).find(|&slot| self.head.marks[slot] == mark && is_it(slot))
    }
}

//! A bucket: two entries, and a head that says which slots are taken and what is known of entries that live elsewhere.

use core::mem::MaybeUninit;

/// Entries per bucket.
pub(super) const SLOTS: usize = 2;

/// Buckets that an entry may stand in: its first one (0), the neighbour of that (1), and another pair (2 and 3).
pub(super) const CHOICES: u8 = 4;

/// Moved entries a head can list.
pub(super) const LISTED: usize = 8;
/// Moved entries a head can count besides.
pub(super) const UNLISTED_MAX: u16 = u16::MAX;

/// A key and its value.
#[derive(Clone, Copy)]
pub(super) struct Entry<K, V> {
    pub(super) key: K,
    pub(super) value: V,
}

/// What a bucket knows: of the entries that stand in it, and of those *of* it (of whose hash it is the first bucket)
/// that stand elsewhere.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Head {
    /// Eight cells of 8 bits: the print (6 bits, not 0) of an entry that has moved away, and by which of its choices
    /// (2 bits); 0: none.
    pub(super) cells: u64,
    /// Of each slot: the tag (14 bits, not 0) and by which of its choices the entry stands here (2 bits); 0: free.
    pub(super) marks: [u16; SLOTS],
    /// Moved entries for which there was no cell.
    pub(super) unlisted: u16,
}

const EACH: u64 = 0x0101_0101_0101_0101;
const CHOICE: u64 = 3 * EACH;

/// The highest bit of each byte of `word` that is 0, and exactly those: no carry runs between bytes.
#[inline]
fn zero_bytes(word: u64) -> u64 {
    const LOW: u64 = 0x7f * EACH;
    !(((word & LOW) + LOW) | word | LOW)
}

/// What [`Head::marks`] say of an entry.
#[inline]
pub(super) fn mark(tag: u16, choice: u8) -> u16 {
    tag << 2 | u16::from(choice)
}

impl Head {
    /// A slot that is free.
    #[inline]
    pub(super) fn free(&self) -> Option<usize> {
        self.marks.iter().position(|&mark| mark == 0)
    }

    /// By which of its choices the entry in a slot stands here; `None`: there is none.
    #[inline]
    pub(super) fn choice(&self, slot: usize) -> Option<u8> {
        let mark = self.marks[slot];
        (mark != 0).then_some((mark & 3) as u8)
    }

    /// The highest bits of the cells with `print`.
    #[inline]
    pub(super) fn with_print(&self, print: u8) -> u64 {
        zero_bytes((self.cells ^ (u64::from(print << 2) * EACH)) & !CHOICE)
    }

    /// Which choice the first of such cells tells.
    #[inline]
    pub(super) fn first_choice(&self, with_print: u64) -> u8 {
        (self.cells >> (with_print.trailing_zeros() & 56) & 3) as u8
    }

    /// By which choices an entry of this bucket with `print` may have moved away: bit `choice` is set. Others are
    /// certainly none.
    #[inline]
    pub(super) fn choices(&self, print: u8) -> u8 {
        if self.unlisted != 0 {
            return (1 << CHOICES) - 2;
        }
        let (mut cells, mut choices) = (self.with_print(print), 0);
        while cells != 0 {
            choices |= 1 << self.first_choice(cells);
            cells &= cells - 1;
        }
        choices
    }

    /// The cells in use: print and choice.
    pub(super) fn listed(&self) -> impl Iterator<Item = (u8, u8)> {
        self.cells.to_le_bytes().into_iter().filter(|&cell| cell != 0).map(|cell| (cell >> 2, cell & 3))
    }

    /// Whether `more` entries may move away.
    #[inline]
    pub(super) fn has_room_for(&self, more: usize) -> bool {
        usize::from(self.unlisted) + more <= usize::from(UNLISTED_MAX)
    }

    /// An entry with `print` moves away; there [is room](Head::has_room_for).
    #[inline]
    pub(super) fn add(&mut self, print: u8, choice: u8) {
        let free = zero_bytes(self.cells);
        match free {
            0 => self.unlisted += 1,
            _ => self.cells |= u64::from(print << 2 | choice) << (free.trailing_zeros() & 56),
        }
    }

    /// An entry that [`Head::add`] was told of is gone or back. (What is unlisted stays right also if the cell struck
    /// out was that of another entry: as many of this kind are left, listed or not, as there are entries.)
    #[inline]
    pub(super) fn strike(&mut self, print: u8, choice: u8) {
        let cells = zero_bytes(self.cells ^ (u64::from(print << 2 | choice) * EACH));
        match cells {
            0 => {
                debug_assert!(self.unlisted != 0, "an entry came back that had not moved");
                self.unlisted = self.unlisted.saturating_sub(1);
            }
            _ => self.cells &= !(0xff << (cells.trailing_zeros() & 56)),
        }
    }
}

/// The head and two slots. A slot whose mark is not 0 holds an entry.
#[repr(C, align(64))]
pub(super) struct Bucket<K, V> {
    /// Marks are set together with entries, in [`Bucket::put`] only.
    pub(super) head: Head,
    entries: [MaybeUninit<Entry<K, V>>; SLOTS],
}

impl<K: Copy, V: Copy> Clone for Bucket<K, V> {
    fn clone(&self) -> Bucket<K, V> {
        *self
    }
}

impl<K: Copy, V: Copy> Copy for Bucket<K, V> {}

// Keys of 16 bytes and values of 8: one line.
const _: () = assert!(size_of::<Bucket<[u8; 16], u64>>() == 64);

impl<K: Copy, V: Copy> Bucket<K, V> {
    pub(super) const EMPTY: Bucket<K, V> =
        Bucket { head: Head { cells: 0, marks: [0; SLOTS], unlisted: 0 }, entries: [MaybeUninit::uninit(); SLOTS] };

    /// What stands in a slot, if it is taken.
    #[inline]
    pub(super) fn entry(&self, slot: usize) -> Option<&Entry<K, V>> {
        // SAFETY: `put` alone sets marks, and writes the entry of the slot first; entries are never taken out of their
        // memory, so a slot with a mark holds one.
        (self.head.marks[slot] != 0).then(|| unsafe { self.entries[slot].assume_init_ref() })
    }

    /// The entry with this mark; if both slots have it, the first.
    #[inline]
    pub(super) fn marked(&self, mark: u16) -> Option<&Entry<K, V>> {
        let slot = usize::from(self.head.marks[0] != mark);
        if self.head.marks[slot] == mark { self.entry(slot) } else { None }
    }

    /// Fills a slot. The mark is not 0.
    #[inline]
    pub(super) fn put(&mut self, slot: usize, mark: u16, entry: Entry<K, V>) {
        self.entries[slot].write(entry);
        self.head.marks[slot] = mark;
    }

    /// Gives the entry of a slot another value; whether there was one.
    #[inline]
    pub(super) fn set_value(&mut self, slot: usize, value: V) -> bool {
        let Some(entry) = self.entry(slot).copied() else { return false };
        self.entries[slot].write(Entry { value, ..entry });
        true
    }

    /// The first slot with this mark for whose entry `is` says yes.
    #[inline]
    pub(super) fn confirm(&self, mark: u16, is: &mut impl FnMut(&Entry<K, V>) -> bool) -> Option<usize> {
        (0..SLOTS).find(|&slot| self.head.marks[slot] == mark && self.entry(slot).is_some_and(&mut *is))
    }
}

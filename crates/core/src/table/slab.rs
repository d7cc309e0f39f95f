//! The connection slab: entries at fixed positions in memory the caller provides.
//!
//! In production the memory is shared memory that outlives the process. Everything needed to find the entries again
//! is in it: each [`Slot`] has a *commit word* that says whether its value is there. The free list is not in it;
//! [`Slab::adopt`] rebuilds that from the commit words. Slots are used for the first time in ascending order, so the
//! first commit word that is zero ends what was ever used, and what lies behind is never touched.
//!
//! # Whole or absent
//! A process killed at any instant leaves what its instructions up to then have stored. The order of stores is:
//! insertion writes the value, then the commit word (release); removal takes the commit word back first, and only a
//! later insertion touches the value again (release fence between them). So wherever the killing comes, a slot whose
//! commit word says "present" holds a whole value.
//!
//! A value changed in place ([`Slab::at_mut`]) is not covered by its commit word. The rule: after insertion, a field is
//! changed only by a store of one aligned machine word, and no two fields may be changed that are only right together
//! (pack such fields into one word). An adopter must accept any mixture of old and new words.
//!
//! # Nothing is believed
//! [`Slab::adopt`] checks the bytes of every entry before it treats them as one ([`Adoptable`]). What no slab can
//! have left is made absent and counted.
//!
//! # Not
//! Safe for two processes or threads at once: a slab has one owner at a time; others may read through a [`SlabView`].
//! Proof against power loss: it is memory.

use super::Position;
use super::entry::Adoptable;
use super::fetch::Fetch;
use super::region::{Array, Region};
use alloc::vec::Vec;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU64, Ordering, fence};

mod view;

pub use view::SlabView;

/// One place for a value. All-zero memory is an absent slot that was never used, so fresh anonymous or shared memory
/// is a slab already.
#[derive(zerocopy::FromBytes)]
#[repr(C)]
pub struct Slot<T> {
    /// Bit 0: the value is present. The bits above: how often the slot has been filled, kept when it is empty, so that
    /// every use of a position has a generation of its own, also across a crash.
    commit: AtomicU64,
    value: MaybeUninit<T>,
}

const PRESENT: u64 = 1;
/// Bytes of a cache line, as far as it matters.
const LINE: usize = 64;

impl<T> Slot<T> {
    fn is_present(&self) -> bool {
        self.commit.load(Ordering::Relaxed) & PRESENT != 0
    }

    /// Says that there is no value any more.
    fn take_back(&self) {
        // A generation of 0 would make the word look as if the slot had never been used.
        let generation = (self.commit.load(Ordering::Relaxed) >> 1).max(1);
        self.commit.store(generation << 1, Ordering::Relaxed);
        // No later store to the value may be made before this one.
        fence(Ordering::Release);
    }

    /// Whether the value's bytes are a value.
    fn is_valid(&self) -> bool
    where
        T: Adoptable,
    {
        // SAFETY: the bytes of a slot have been written (`slots_at`) or are zeroes (`boxed`), and stay so, because a
        // `T: Adoptable` has no padding.
        T::is_valid(unsafe { core::slice::from_raw_parts(self.value.as_ptr().cast(), size_of::<T>()) })
    }
}

/// Memory of this process for `capacity` slots, all absent. Pages are touched as slots are filled.
///
/// It begins at a cache line, as memory that was mapped does: what is used together stands in lines, not across them.
pub fn boxed<T>(capacity: usize) -> Array<Slot<T>>
where
    T: 'static,
{
    Region::own(Region::room::<Slot<T>>(capacity)).take(capacity)
}

/// [`boxed`], but every page is touched now, so that filling a slot for the first time does not wait for one.
pub fn boxed_touched<T>(capacity: usize) -> Array<Slot<T>>
where
    T: 'static,
{
    let slots = boxed(capacity);
    slots.iter().for_each(|slot: &Slot<T>| slot.commit.store(0, Ordering::Relaxed));
    slots
}

/// The `count` slots at `start`, for a slab in memory that was mapped.
///
/// # Safety
/// `start` is aligned for `Slot<T>`, and `count` slots from there on are mapped, readable and writable until the
/// process ends, and nothing else writes them in that time. Their bytes have been written, or are zeroes from the
/// kernel; what they say does not matter.
pub unsafe fn slots_at<T>(start: *mut Slot<T>, count: usize) -> &'static mut [Slot<T>]
where
    T: 'static,
{
    // SAFETY: as the caller promises; any bytes are a valid `Slot`.
    unsafe { core::slice::from_raw_parts_mut(start, count) }
}

/// The slab.
///
/// Free positions are reused last in, first out: the entry freed last is the one most likely in the cache, and the
/// pages in use stay few. Telling a reused position from the one remembered is what [`Slab::generation`] is for.
pub struct Slab<T: 'static> {
    slots: Array<Slot<T>>,
    /// If more positions have ever been used, they are [far](Fetch::Far).
    near_max: usize,
    /// Free positions below `fresh`; never grows beyond its first allocation.
    free: Vec<Position>,
    /// From here on no position has been used. At most the number of slots.
    fresh: Position,
}

impl<T: 'static> Slab<T> {
    /// An empty slab in `memory`, whatever is there. (For memory whose entries are wanted there is [`Slab::adopt`].) Of
    /// more than 2^31 slots the rest stays unused.
    pub fn new(memory: impl Into<Array<Slot<T>>>) -> Slab<T> {
        let slots = memory.into().truncated(1 << 31);
        let near_max = Fetch::near_bytes_max() / size_of::<Slot<T>>();
        Slab { free: Vec::with_capacity(slots.len()), slots, near_max, fresh: 0 }
    }

    /// The slab that another process left in `memory`, and how many of its entries were nonsense. What it holds,
    /// [`Slab::positions`] tells. Entries keep their positions and generations.
    pub fn adopt(memory: impl Into<Array<Slot<T>>>) -> (Slab<T>, usize)
    where
        T: Adoptable,
    {
        let mut slab = Slab::new(memory);
        let invalid = slab.recover();
        (slab, invalid)
    }

    /// Makes a slab into which nothing has been put yet what [`Slab::adopt`] would have made of its memory, and says
    /// how many entries were nonsense. Does nothing to any other slab.
    pub fn recover(&mut self) -> usize
    where
        T: Adoptable,
    {
        if self.fresh != 0 {
            return 0;
        }
        let used = self.slots.iter().position(|slot| slot.commit.load(Ordering::Acquire) == 0);
        self.fresh = used.unwrap_or(self.slots.len()) as Position;
        let mut invalid = 0;
        // Descending, so that the lowest free position is reused first.
        for position in (0..self.fresh).rev() {
            let slot = &self.slots[position as usize];
            if slot.is_present() && !slot.is_valid() {
                slot.take_back();
                invalid += 1;
            }
            if !slot.is_present() {
                self.free.push(position);
            }
        }
        invalid
    }

    /// Shows position and bytes of every entry that another process has left to `judge`, before [`Slab::recover`]. It may
    /// change the bytes; an entry for which it says `false` is made absent. Returns how many these are.
    pub fn mend(&mut self, mut judge: impl FnMut(Position, &mut [u8]) -> bool) -> usize
    where
        T: Adoptable,
    {
        let mut removed = 0;
        for (position, slot) in (0..).zip(self.slots.iter_mut()) {
            if slot.commit.load(Ordering::Acquire) == 0 {
                break;
            }
            if !slot.is_present() {
                continue;
            }
            // SAFETY: the bytes of a slot have been written (`slots_at`) or are zeroes (`boxed`), and stay so, because a
            // `T: Adoptable` has no padding; nothing takes them for a value before `recover` has checked them.
            let bytes = unsafe { core::slice::from_raw_parts_mut(slot.value.as_mut_ptr().cast(), size_of::<T>()) };
            if !judge(position, bytes) {
                slot.take_back();
                removed += 1;
            }
        }
        removed
    }

    /// The memory as it is now: what a process leaves that ends without a word, or what the next slab may use.
    pub fn into_memory(self) -> Array<Slot<T>> {
        self.slots
    }

    /// Positions there are.
    pub fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// Entries there are.
    pub fn len(&self) -> usize {
        self.fresh as usize - self.free.len()
    }

    /// Positions that have ever been used: all entries are below.
    pub fn used(&self) -> Position {
        self.fresh
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Puts `value` somewhere; `None` if the slab is full.
    pub fn insert(&mut self, value: T) -> Option<Position> {
        let position = match self.free.pop() {
            Some(position) => position,
            None if (self.fresh as usize) < self.slots.len() => {
                self.fresh += 1;
                self.end_here();
                self.fresh - 1
            }
            None => return None,
        };
        let slot = &mut self.slots[position as usize];
        let generation = (slot.commit.load(Ordering::Relaxed) >> 1).wrapping_add(1) & (u64::MAX >> 1);
        slot.value.write(value);
        slot.commit.store(generation << 1 | PRESENT, Ordering::Release);
        Some(position)
    }

    /// The position that the next [`Slab::insert`] fills; `None` if the slab is full.
    #[inline]
    pub fn vacant(&self) -> Option<Position> {
        let fresh = Some(self.fresh).filter(|&fresh| (fresh as usize) < self.slots.len());
        self.free.last().copied().or(fresh)
    }

    /// The first position that has not been used looks so to an adopter, too. In memory that was damaged there may be a
    /// commit word: the adopter would take what lies behind it for entries.
    fn end_here(&self) {
        let next = self.slots.get(self.fresh as usize);
        if let Some(next) = next.filter(|next| next.commit.load(Ordering::Relaxed) != 0) {
            next.commit.store(0, Ordering::Relaxed);
            fence(Ordering::Release);
        }
    }

    /// Takes the entry at `position` out.
    ///
    /// # Panics
    /// If there is none.
    pub fn remove(&mut self, position: Position) -> T {
        assert!(self.contains(position), "no entry at position {position}");
        let slot = &mut self.slots[position as usize];
        // SAFETY: as in `at`; once it is taken back, it is not read again.
        let value = unsafe { slot.value.assume_init_read() };
        slot.take_back();
        self.free.push(position);
        value
    }

    /// Makes the entry at `position` absent; whether there was one.
    pub fn forget(&mut self, position: Position) -> bool {
        let is_there = self.contains(position);
        if is_there {
            self.slots[position as usize].take_back();
            self.free.push(position);
        }
        is_there
    }

    /// The entry at `position`.
    ///
    /// # Panics
    /// If there is none.
    #[inline]
    pub fn at(&self, position: Position) -> &T {
        assert!(self.contains(position), "no entry at position {position}");
        let slot = &self.slots[position as usize];
        // SAFETY: the position is one that has been used and the commit word says that the value is there: this slab
        // put it there, or `adopt` has checked it.
        unsafe { slot.value.assume_init_ref() }
    }

    /// The entry at `position`, to change by stores of single words (see "Whole or absent").
    ///
    /// # Panics
    /// If there is none.
    #[inline]
    pub fn at_mut(&mut self, position: Position) -> &mut T {
        assert!(self.contains(position), "no entry at position {position}");
        let slot = &mut self.slots[position as usize];
        // SAFETY: as in `at`.
        unsafe { slot.value.assume_init_mut() }
    }

    /// How often `position` has been filled, modulo 2^32: another number for each use of it. 0 for a position never
    /// used or beyond the end.
    #[inline]
    pub fn generation(&self, position: Position) -> u32 {
        self.slots.get(position as usize).map_or(0, |slot| (slot.commit.load(Ordering::Relaxed) >> 1) as u32)
    }

    /// Whether there is an entry at `position`.
    #[inline]
    pub fn contains(&self, position: Position) -> bool {
        // Bytes beyond the positions used are not believed, whatever they are.
        position < self.fresh && self.slots.get(position as usize).is_some_and(Slot::is_present)
    }

    /// The entry at `position`, if there is one.
    #[inline]
    pub fn entry(&self, position: Position) -> Option<&T> {
        if position >= self.fresh {
            return None;
        }
        // SAFETY: `fresh` is at most the number of slots.
        let slot = unsafe { self.slots.get_unchecked(position as usize) };
        // SAFETY: as in `at`.
        slot.is_present().then(|| unsafe { slot.value.assume_init_ref() })
    }

    /// The entry at `position`, if there is one, to change by stores of single words (see "Whole or absent").
    #[inline]
    pub fn entry_mut(&mut self, position: Position) -> Option<&mut T> {
        if position >= self.fresh {
            return None;
        }
        // SAFETY: `fresh` is at most the number of slots.
        let slot = unsafe { self.slots.get_unchecked_mut(position as usize) };
        // SAFETY: as in `at`.
        slot.is_present().then(|| unsafe { slot.value.assume_init_mut() })
    }

    /// The positions of all entries, ascending. Goes through all slots ever used.
    pub fn positions(&self) -> impl Iterator<Item = Position> + '_ {
        (0..self.fresh).filter(|&position| self.slots[position as usize].is_present())
    }

    #[inline(always)]
    fn fetch(&self) -> Fetch {
        if self.fresh as usize > self.near_max { Fetch::Far } else { Fetch::Near }
    }

    /// Starts to bring the first cache line of `position` into the cache.
    #[inline]
    pub fn prefetch(&self, position: Position) {
        if let Some(slot) = self.slots.get(position as usize) {
            self.fetch().line(slot);
        }
    }

    /// Starts to bring the first `lines` cache lines of `position`'s slot into the cache.
    #[inline(always)]
    pub fn prefetch_lines(&self, position: Position, lines: usize) {
        if let Some(slot) = self.slots.get(position as usize) {
            let start = core::ptr::from_ref(slot).cast::<u8>();
            let fetch = self.fetch();
            for line in 0..lines {
                fetch.line(start.wrapping_add(LINE * line));
            }
        }
    }
}

#[cfg(test)]
mod tests;

//! The connection slab: entries at fixed positions in memory the caller provides.
//!
//! In production the memory is shared memory that outlives the process. Everything needed to find the entries again
//! is in it: each [`Slot`] has a *commit word* that says whether its value is there. The free list is not in it;
//! [`Slab::adopt`] rebuilds that from the commit words.
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
//! # Not
//! Safe for two processes or threads at once: a slab has one owner at a time. Proof against power loss: it is memory.

use super::zeroed::{Zeroable, zeroed};
use super::{Position, prefetch_line};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU64, Ordering, fence};

/// One place for a value. All-zero memory is an absent slot that was never used, so fresh anonymous or shared memory
/// is a slab already.
#[repr(C)]
pub struct Slot<T> {
    /// Bit 0: the value is present. The bits above: how often the slot has been filled, kept when it is empty, so that
    /// every use of a position has a generation of its own, also across a crash.
    commit: AtomicU64,
    value: MaybeUninit<T>,
}

const PRESENT: u64 = 1;

// SAFETY: zero is a valid atomic, and anything is a valid `MaybeUninit`.
unsafe impl<T> Zeroable for Slot<T> {}

impl<T> Slot<T> {
    fn is_present(&self) -> bool {
        self.commit.load(Ordering::Relaxed) & PRESENT != 0
    }
}

/// Memory of this process for `capacity` slots, all absent, that is never given back. Pages are touched as slots are
/// filled.
pub fn boxed<T>(capacity: usize) -> &'static mut [Slot<T>]
where
    T: 'static,
{
    Box::leak(zeroed(capacity))
}

/// The `count` slots at `start`, for a slab in memory that was mapped.
///
/// # Safety
/// `start` is aligned for `Slot<T>`, and `count` slots from there on are mapped, readable and writable until the
/// process ends, and used by nobody else in that time. Their bytes are zero or were left there by slabs of the same
/// `T`.
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
pub struct Slab<T: Copy + 'static> {
    slots: &'static mut [Slot<T>],
    /// Free positions below `fresh`; never grows beyond its first allocation.
    free: Vec<Position>,
    /// From here on no position has been used.
    fresh: Position,
}

impl<T: Copy + 'static> Slab<T> {
    /// An empty slab in `memory`, whose slots are all absent: it comes from [`boxed`], or from [`slots_at`] and is
    /// zero. (For memory that has been used there is [`Slab::adopt`].) Of more than 2^31 slots the rest stays unused.
    pub fn new(memory: &'static mut [Slot<T>]) -> Slab<T> {
        let count = memory.len().min(1 << 31);
        let slots = &mut memory[..count];
        Slab { free: Vec::with_capacity(slots.len()), slots, fresh: 0 }
    }

    /// The slab that another process left in `memory`. What it holds, [`Slab::positions`] tells.
    ///
    /// # Safety
    /// Where a slot's commit word says that a value is present, a slab of the same `T` (same layout, same build or a
    /// version that is checked) has put it there.
    pub unsafe fn adopt(memory: &'static mut [Slot<T>]) -> Slab<T> {
        let mut slab = Slab::new(memory);
        let used = slab.slots.iter().rposition(|slot| slot.commit.load(Ordering::Acquire) != 0);
        slab.fresh = used.map_or(0, |last| last as Position + 1);
        // Descending, so that the lowest free position is reused first.
        let absent = (0..slab.fresh).rev().filter(|&position| !slab.slots[position as usize].is_present());
        slab.free.extend(absent);
        slab
    }

    /// Positions there are.
    pub fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// Entries there are.
    pub fn len(&self) -> usize {
        self.fresh as usize - self.free.len()
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
                self.fresh - 1
            }
            None => return None,
        };
        let slot = &mut self.slots[position as usize];
        let generation = (slot.commit.load(Ordering::Relaxed) >> 1) + 1;
        slot.value.write(value);
        slot.commit.store(generation << 1 | PRESENT, Ordering::Release);
        Some(position)
    }

    /// Takes the entry at `position` out.
    ///
    /// # Panics
    /// If there is none.
    pub fn remove(&mut self, position: Position) -> T {
        let value = *self.at(position);
        let slot = &self.slots[position as usize];
        slot.commit.store(slot.commit.load(Ordering::Relaxed) & !PRESENT, Ordering::Relaxed);
        // No later store to the value may be made before this one.
        fence(Ordering::Release);
        self.free.push(position);
        value
    }

    /// The entry at `position`.
    ///
    /// # Panics
    /// If there is none.
    #[inline]
    pub fn at(&self, position: Position) -> &T {
        let slot = &self.slots[position as usize];
        assert!(slot.is_present(), "no entry at position {position}");
        // SAFETY: the commit word says that the value is there: this slab put it there, or the caller of `adopt`
        // vouches for it.
        unsafe { slot.value.assume_init_ref() }
    }

    /// The entry at `position`, to change by stores of single words (see "Whole or absent").
    ///
    /// # Panics
    /// If there is none.
    #[inline]
    pub fn at_mut(&mut self, position: Position) -> &mut T {
        let slot = &mut self.slots[position as usize];
        assert!(slot.is_present(), "no entry at position {position}");
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
        self.slots.get(position as usize).is_some_and(Slot::is_present)
    }

    /// The positions of all entries, ascending. Goes through all slots ever used.
    pub fn positions(&self) -> impl Iterator<Item = Position> + '_ {
        (0..self.fresh).filter(|&position| self.slots[position as usize].is_present())
    }

    /// Starts to bring the first cache line of `position` into the cache.
    #[inline]
    pub fn prefetch(&self, position: Position) {
        if let Some(slot) = self.slots.get(position as usize) {
            prefetch_line(slot);
        }
    }
}

#[cfg(test)]
mod tests;

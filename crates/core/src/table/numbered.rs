//! A slab whose entries are changed many at a time: each says which operation has changed it last.
//!
//! Layer 4 changes an entry by single words that need not fit each other (see [`slab`](super::slab)). A spliced
//! connection cannot: one segment changes two connections, an exchange and buffers, and they have to fit. So changes are
//! numbered. An *operation* is one segment, timer, completion or step of a sweep. [`NumberedSlab::get_mut`] stores the number of
//! the operation in the entry before it hands out anything to be changed, and [`Done::finish`] stores the number as done after
//! the last change. A process that is killed leaves entries whose numbers are beyond what is done: those that were being
//! changed, which may be torn. All others are whole, and fit each other.

use super::Position;
use super::entry::Adoptable;
use super::region::Array;
use super::slab::{Slab, Slot};
use crate::stored::Stored;
use core::ptr::addr_of_mut;
use core::sync::atomic::{AtomicU64, Ordering, fence};

/// An entry, and the operation that has changed it last.
#[derive(Debug)]
#[repr(C)]
pub struct Numbered<T> {
    operation: u64,
    value: T,
}

impl<T> Numbered<T> {
    /// Where the value begins in its bytes.
    pub(crate) const VALUE_AT: usize = NUMBER;
}

/// Bytes of the number in front of the value.
const NUMBER: usize = size_of::<u64>();

// SAFETY: the number and a value of a type without padding, whose size is checked to leave none between or behind them; the
// number may be any, and the value's bytes are checked.
unsafe impl<T: Stored> Adoptable for Numbered<T> {
    fn is_valid(bytes: &[u8]) -> bool {
        const { assert!(align_of::<T>() <= 8 && size_of::<T>().is_multiple_of(8)) };
        bytes.get(NUMBER..).is_some_and(|bytes| T::try_ref_from_bytes(bytes).is_ok())
    }
}

/// Operations are fewer.
const DONE_MAX: u64 = 1 << 62;

/// The last operation that is done, in the memory of the slabs whose operations it counts.
pub struct Done {
    word: Array<u64>,
    /// The operation at hand.
    operation: u64,
}

impl Done {
    /// As another process has left it in `word`, which has one element.
    pub fn new(word: Array<u64>) -> Done {
        // No process gets so far: in memory that says so any entry may be one that was being changed.
        let operation = word.first().map_or(1, |&done| if done < DONE_MAX { done + 1 } else { 1 });
        Done { word, operation }
    }

    /// The operation at hand.
    #[inline]
    pub fn operation(&self) -> u64 {
        self.operation
    }

    /// The last operation that is done.
    pub fn last(&self) -> u64 {
        self.operation - 1
    }

    /// All changes of the operation at hand have been made: returns the next one.
    #[inline]
    pub fn finish(&mut self) -> u64 {
        if let Some(word) = self.word.first_mut() {
            // SAFETY: aligned, valid, and borrowed alone.
            unsafe { AtomicU64::from_ptr(word) }.store(self.operation, Ordering::Release);
        }
        self.operation += 1;
        self.operation
    }
}

/// What adoption has found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Entries that were being changed, and are fresh ones now.
    pub interrupted: usize,
    /// Entries that made no sense, and are absent now.
    pub invalid: usize,
}

/// A [`Slab`] of numbered entries.
pub struct NumberedSlab<T: 'static> {
    slab: Slab<Numbered<T>>,
    operation: u64,
}

impl<T: Stored> NumberedSlab<T> {
    /// An empty slab in `memory`, whatever is there, for this operation.
    pub fn new(memory: Array<Slot<Numbered<T>>>, operation: u64) -> NumberedSlab<T> {
        NumberedSlab { slab: Slab::new(memory), operation }
    }

    /// Takes over what another process has left in the memory of a slab that nothing was put into yet, up to operation
    /// `done`. Of an entry that was being changed, `renew` makes another by its position and bytes, or says that it makes no
    /// sense.
    pub fn adopt(&mut self, done: u64, mut renew: impl FnMut(Position, &[u8]) -> Option<T>) -> Found {
        let mut found = Found::default();
        let operation = self.operation;
        found.invalid += self.slab.mend(|position, bytes| {
            let Some((number, value)) = bytes.split_first_chunk_mut::<NUMBER>() else { return false };
            if u64::from_ne_bytes(*number) <= done {
                return true;
            }
            let renewed = renew(position, value).filter(|renewed| renewed.as_bytes().len() == value.len());
            let Some(renewed) = renewed else { return false };
            *number = operation.to_ne_bytes();
            value.copy_from_slice(renewed.as_bytes());
            found.interrupted += 1;
            true
        });
        found.invalid += self.slab.recover();
        found
    }

    /// The operation at hand is another one.
    #[inline]
    pub fn begin(&mut self, operation: u64) {
        self.operation = operation;
    }

    /// How many entries there are.
    pub fn len(&self) -> u32 {
        self.slab.len() as u32
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.slab.is_empty()
    }

    /// The position of the entry that is added next; `None` if there is no room.
    #[inline]
    pub fn vacant(&self) -> Option<Position> {
        self.slab.vacant()
    }

    /// Adds an entry; given back if there is no room.
    pub fn insert(&mut self, value: T) -> Result<Position, T> {
        if self.slab.len() == self.slab.capacity() {
            return Err(value);
        }
        #[cfg(test)]
        interrupt::passed();
        match self.slab.insert(Numbered { operation: self.operation, value }) {
            Some(position) => Ok(position),
            None => unreachable!("a slab that is not full has room"),
        }
    }

    /// Makes the entry there absent; whether there was one.
    pub fn forget(&mut self, position: Position) -> bool {
        #[cfg(test)]
        interrupt::passed();
        self.slab.forget(position)
    }

    /// The entry there, if there is one.
    #[inline]
    pub fn get(&self, position: Position) -> Option<&T> {
        self.slab.entry(position).map(|entry| &entry.value)
    }

    /// The entry there, if there is one, to be changed by the operation at hand.
    #[inline]
    pub fn get_mut(&mut self, position: Position) -> Option<&mut T> {
        let entry = self.slab.entry_mut(position)?;
        // SAFETY: aligned, valid, and borrowed alone.
        unsafe { AtomicU64::from_ptr(addr_of_mut!(entry.operation)) }.store(self.operation, Ordering::Relaxed);
        // No change is stored before the number is.
        fence(Ordering::Release);
        #[cfg(test)]
        interrupt::passed();
        Some(&mut entry.value)
    }

    /// The entry there, if there is one, to change what an adopter does not go by: it counts as unchanged.
    #[inline]
    pub fn get_mut_unnumbered(&mut self, position: Position) -> Option<&mut T> {
        self.slab.entry_mut(position).map(|entry| &mut entry.value)
    }

    /// How often `position` has been filled: another number for each use of it.
    pub fn generation(&self, position: Position) -> u32 {
        self.slab.generation(position)
    }

    /// Entries, if there are any, lie at positions below this one.
    pub fn reach(&self) -> Position {
        self.slab.used()
    }

    /// All entries, by position.
    pub fn iter(&self) -> impl Iterator<Item = (Position, &T)> {
        (0..self.reach()).filter_map(|position| Some((position, self.get(position)?)))
    }
}

/// For tests: the memory as a process leaves it that is killed in the midst of an operation.
#[cfg(test)]
pub(crate) mod interrupt {
    use crate::table::region::Image;
    use std::cell::RefCell;
    use std::vec::Vec;

    struct Plan {
        image: Image,
        /// Places that are still passed before.
        left: usize,
        found: Option<Vec<u8>>,
    }

    std::thread_local!(static PLAN: RefCell<Option<Plan>> = const { RefCell::new(None) });

    /// From now on copies the memory at the place number `at` at which this thread begins to change an entry.
    pub(crate) fn arm(image: Image, at: usize) {
        PLAN.set(Some(Plan { image, left: at, found: None }));
    }

    /// The copy, if the place was reached; no more are made.
    pub(crate) fn disarm() -> Option<Vec<u8>> {
        PLAN.take().and_then(|plan| plan.found)
    }

    /// This is such a place.
    pub(super) fn passed() {
        PLAN.with_borrow_mut(|plan| {
            let Some(plan) = plan.as_mut().filter(|plan| plan.found.is_none()) else { return };
            match plan.left.checked_sub(1) {
                Some(left) => plan.left = left,
                None => plan.found = Some(plan.image.copy()),
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::region::Region;
    use std::vec::Vec;

    type Value = [u64; 2];

    /// Memory for `count` entries and the word.
    fn memory(count: usize) -> Region {
        Region::own(Region::room::<u64>(1) + Region::room::<Slot<Numbered<Value>>>(count))
    }

    #[test]
    fn a_name_does_not_outlive_its_entry() {
        let mut region = memory(2);
        let mut slab: NumberedSlab<Value> = NumberedSlab::new(region.take(2), 1);
        let (a, b) = (slab.insert([1; 2]).unwrap(), slab.insert([2; 2]).unwrap());
        assert_eq!(slab.insert([3; 2]), Err([3; 2]), "full");
        let generation = slab.generation(a);
        assert!(slab.forget(a));
        assert_eq!((slab.forget(a), slab.get(a), slab.len()), (false, None, 1));
        assert_eq!(slab.insert([4; 2]), Ok(a));
        assert_ne!(slab.generation(a), generation);
        assert_eq!(slab.iter().map(|(at, &entry)| (at, entry[0])).collect::<Vec<_>>(), [(a, 4), (b, 2)]);
        assert_eq!(slab.get(7), None);
    }

    #[test]
    fn what_an_interrupted_operation_had_in_hand_is_renewed() {
        let mut region = memory(4);
        let mut done = Done::new(region.take(1));
        let mut slab: NumberedSlab<Value> = NumberedSlab::new(region.take(4), done.operation());
        let places: Vec<_> = (0..4).map(|at| slab.insert([at; 2]).unwrap()).collect();
        slab.begin(done.finish());
        slab.forget(places[3]);
        slab.get_mut(places[1]).unwrap()[0] = 7;
        slab.begin(done.finish());
        slab.get_mut(places[2]).unwrap()[0] = 8;
        slab.get_mut_unnumbered(places[0]).unwrap()[1] = 9;
        drop((done, slab));

        let mut region = region.again();
        let done = Done::new(region.take(1));
        assert_eq!(done.last(), 2);
        let mut slab: NumberedSlab<Value> = NumberedSlab::new(region.take(4), done.operation());
        let found = slab.adopt(done.last(), |position, bytes| {
            assert_eq!((position, &bytes[..8]), (places[2], &8u64.to_ne_bytes()[..]));
            Some([5, 5])
        });
        assert_eq!((found.interrupted, found.invalid), (1, 0));
        let entries: Vec<Value> = slab.iter().map(|(_, entry)| *entry).collect();
        assert_eq!(entries, [[0, 9], [7, 1], [5, 5]]);
        assert_eq!(slab.insert([6; 2]), Ok(places[3]), "what was taken out has gone");
        drop((done, slab));

        let mut region = region.again();
        let done = Done::new(region.take(1));
        let mut slab: NumberedSlab<Value> = NumberedSlab::new(region.take(4), done.operation());
        let found = slab.adopt(done.last(), |_, _| None);
        assert_eq!((found.interrupted, found.invalid, slab.len()), (0, 2, 2));
    }
}

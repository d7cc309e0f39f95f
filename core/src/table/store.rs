//! Bare keys and values at fixed positions: what indexes are measured with.
//!
//! Connections do not lie here but in a [`Slab`](super::slab::Slab), whose commit words let entries outlive the process.
//! A store has nothing but the pairs: free positions are chained through their values, so a 16-byte key with an 8-byte
//! value takes 24 bytes.

use super::{Entries, Position, prefetch_line};
use alloc::vec::Vec;

/// A value in whose place the next free position can stand.
pub trait Link: Copy {
    /// `position`, kept as a value.
    fn from_position(position: Position) -> Self;
    /// The position that was kept.
    fn position(self) -> Position;
}

impl Link for u32 {
    fn from_position(position: Position) -> u32 {
        position
    }

    fn position(self) -> Position {
        self
    }
}

impl Link for u64 {
    fn from_position(position: Position) -> u64 {
        u64::from(position)
    }

    fn position(self) -> Position {
        self as Position
    }
}

/// No position: the end of the chain.
const NONE: Position = Position::MAX;

/// Keys and values.
///
/// It does not know which of its positions are free: whoever takes an entry away takes it out of the index first.
pub struct Store<K, V> {
    /// Positions that were used at least once; never grows beyond its first allocation.
    entries: Vec<(K, V)>,
    capacity: usize,
    /// Where the chain of free positions begins.
    free: Position,
    len: usize,
}

impl<K: Copy, V: Link> Store<K, V> {
    /// An empty store of `capacity` positions, at most 2^32 - 1.
    pub fn new(capacity: usize) -> Store<K, V> {
        let capacity = capacity.min(NONE as usize);
        Store { entries: Vec::with_capacity(capacity), capacity, free: NONE, len: 0 }
    }

    /// Positions there are.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Entries there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes the store takes.
    pub fn bytes(&self) -> usize {
        self.capacity * size_of::<(K, V)>()
    }

    /// Puts a pair somewhere, where one was taken away last if there is such a place; `None` if the store is full.
    #[inline]
    pub fn insert(&mut self, key: K, value: V) -> Option<Position> {
        let position = self.free;
        if let Some(entry) = self.entries.get_mut(position as usize) {
            self.free = entry.1.position();
            *entry = (key, value);
            self.len += 1;
            return Some(position);
        }
        let position = self.entries.len();
        if position == self.capacity {
            return None;
        }
        self.entries.push((key, value));
        self.len += 1;
        Some(position as Position)
    }

    /// Takes away the entry at `position`; there has to be one. (If there is none, positions are given out twice; it
    /// is not noticed.)
    ///
    /// # Panics
    /// If the position was never used.
    #[inline]
    pub fn remove(&mut self, position: Position) {
        self.entries[position as usize].1 = V::from_position(self.free);
        self.free = position;
        self.len -= 1;
    }

    /// The value at `position`; of a free one: nonsense.
    ///
    /// # Panics
    /// If the position was never used.
    #[inline]
    pub fn value(&self, position: Position) -> V {
        self.entries[position as usize].1
    }

    /// The value at `position`, to be changed; there has to be one.
    ///
    /// # Panics
    /// If the position was never used.
    #[inline]
    pub fn value_mut(&mut self, position: Position) -> &mut V {
        &mut self.entries[position as usize].1
    }

    /// Starts to bring the entry at `position` into the cache, both lines if it lies across two.
    #[inline]
    pub fn prefetch(&self, position: Position) {
        if let Some(entry) = self.entries.get(position as usize) {
            prefetch_line(&entry.0);
            prefetch_line(&entry.1);
        }
    }
}

/// Positions are the values of the index.
impl<K: Copy + PartialEq, V: Link> Entries<K> for Store<K, V> {
    #[inline]
    fn is(&self, value: u32, key: &K) -> bool {
        self.entries.get(value as usize).is_some_and(|entry| entry.0 == *key)
    }

    #[inline]
    fn prefetch(&self, value: u32) {
        Store::prefetch(self, value);
    }
}

#[cfg(test)]
mod tests {
    use super::Store;
    use crate::table::Entries;

    #[test]
    fn positions_are_used_again_and_the_store_is_bounded() {
        let mut store = Store::<[u8; 16], u64>::new(3);
        let positions = [10, 11, 12].map(|i| store.insert([i; 16], u64::from(i)).expect("there is room"));
        assert_eq!(positions, [0, 1, 2]);
        assert_eq!((store.insert([13; 16], 13), store.len(), store.bytes()), (None, 3, 72));
        store.remove(0);
        store.remove(2);
        assert_eq!(store.len(), 1);
        assert_eq!(store.insert([14; 16], 14), Some(2), "what was freed last comes first");
        assert_eq!(store.insert([15; 16], 15), Some(0));
        assert_eq!((store.insert([16; 16], 16), store.len()), (None, 3));
        *store.value_mut(0) += 1;
        assert_eq!([0, 1, 2].map(|position| store.value(position)), [16, 11, 14]);
        assert!(store.is(0, &[15; 16]) && !store.is(0, &[10; 16]) && !store.is(3, &[15; 16]));
    }
}

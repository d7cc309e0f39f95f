//! Bare keys and values at fixed positions: what indexes are measured with.
//!
//! Connections do not lie here but in a [`Slab`](hairpin_core::table::slab::Slab), whose commit words let entries outlive the process.
//! A store has nothing but the pairs and a bit for each that says whether it is free: a 16-byte key with an 8-byte value
//! takes 24 bytes and an eighth.

use hairpin_core::table::fetch::Fetch;
use hairpin_core::table::{Entries, Position};
use std::boxed::Box;
use std::vec;
use std::vec::Vec;

/// A set of numbers that gives its lowest: bits in words, over them bits that say which words are not zero, and so on
/// up to one word. (A chain through the free entries would need no room, but each link would be a cache miss that the
/// next one has to wait for.)
struct Lowest {
    /// From the bits themselves up to the one word.
    levels: Vec<Box<[u64]>>,
}

impl Lowest {
    fn new(count: usize) -> Lowest {
        let mut levels = Vec::new();
        let mut words = count;
        while levels.is_empty() || words > 1 {
            words = words.div_ceil(64).max(1);
            levels.push(vec![0; words].into_boxed_slice());
        }
        Lowest { levels }
    }

    fn bytes(&self) -> usize {
        self.levels.iter().map(|level| size_of_val(&**level)).sum()
    }

    /// Adds a number below the count.
    #[inline]
    fn add(&mut self, number: usize) {
        let mut at = number;
        for level in &mut self.levels {
            let word = &mut level[at / 64];
            let was_empty = *word == 0;
            *word |= 1 << (at % 64);
            if !was_empty {
                return;
            }
            at /= 64;
        }
    }

    /// Takes the lowest number out.
    #[inline]
    fn take(&mut self) -> Option<usize> {
        let mut at = 0;
        for level in self.levels.iter().rev() {
            let word = level[at];
            if word == 0 {
                return None;
            }
            at = at * 64 + word.trailing_zeros() as usize;
        }
        let mut bit = at;
        for level in &mut self.levels {
            let word = &mut level[bit / 64];
            *word &= !(1 << (bit % 64));
            if *word != 0 {
                break;
            }
            bit /= 64;
        }
        Some(at)
    }
}

/// Keys and values.
///
/// Keys of positions that were freed stay where they are: a caller that takes an entry away takes it out of the index
/// first.
pub struct Store<K, V> {
    /// Positions that were used at least once; never grows beyond its first allocation.
    entries: Vec<(K, V)>,
    fetch: Fetch,
    capacity: usize,
    /// Those of them that are free.
    free: Lowest,
    len: usize,
}

impl<K: Copy, V: Copy> Store<K, V> {
    /// An empty store of `capacity` positions, at most 2^32 - 1.
    pub fn new(capacity: usize) -> Store<K, V> {
        let capacity = capacity.min(Position::MAX as usize);
        let fetch = Fetch::entries(capacity.saturating_mul(size_of::<(K, V)>()));
        Store { entries: Vec::with_capacity(capacity), fetch, capacity, free: Lowest::new(capacity), len: 0 }
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
        self.capacity * size_of::<(K, V)>() + self.free.bytes()
    }

    /// Puts a pair somewhere, at the lowest position that was used and is free if there is one; `None` if the store is
    /// full.
    #[inline]
    pub fn insert(&mut self, key: K, value: V) -> Option<Position> {
        let position = match self.free.take() {
            Some(position) => {
                self.entries[position] = (key, value);
                position
            }
            None if self.entries.len() < self.capacity => {
                self.entries.push((key, value));
                self.entries.len() - 1
            }
            None => return None,
        };
        self.len += 1;
        Some(position as Position)
    }

    /// Takes away the entry at `position`; there has to be one (that there is none goes unnoticed, but spoils
    /// [`Store::len`]).
    ///
    /// # Panics
    /// If the position was never used.
    #[inline]
    pub fn remove(&mut self, position: Position) {
        assert!((position as usize) < self.entries.len(), "position {position} was never used");
        self.free.add(position as usize);
        self.len -= 1;
    }

    /// The value at `position`; of a free one: the last.
    ///
    /// # Panics
    /// If the position was never used.
    #[inline]
    pub fn value(&self, position: Position) -> V {
        self.entries[position as usize].1
    }

    /// Starts to bring the entry at `position` into the cache, both lines if it lies across two.
    #[inline]
    pub fn prefetch(&self, position: Position) {
        let entry = self.entries.as_ptr().wrapping_add(position as usize).cast::<u8>();
        self.fetch.lines([entry, entry.wrapping_add(size_of::<(K, V)>().saturating_sub(1))]);
    }
}

/// Positions are the values of the index.
impl<K: Copy + PartialEq, V: Copy> Entries<K> for Store<K, V> {
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
    use super::{Lowest, Store};
    use hairpin_core::table::Entries;
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use std::vec::Vec;

    #[test]
    fn positions_are_used_again_and_the_store_is_bounded() {
        let mut store = Store::<[u8; 16], u64>::new(3);
        let positions = [10, 11, 12].map(|i| store.insert([i; 16], u64::from(i)));
        assert_eq!(positions, [Some(0), Some(1), Some(2)]);
        assert_eq!((store.insert([13; 16], 13), store.len(), store.bytes()), (None, 3, 72 + 8));
        store.remove(2);
        store.remove(0);
        assert_eq!(store.len(), 1);
        assert_eq!(store.insert([14; 16], 14), Some(0));
        assert_eq!(store.insert([15; 16], 15), Some(2));
        assert_eq!((store.insert([16; 16], 16), store.len()), (None, 3));
        assert_eq!([0, 1, 2].map(|position| store.value(position)), [14, 11, 15]);
        assert!(store.is(2, &[15; 16]) && !store.is(2, &[12; 16]) && !store.is(3, &[15; 16]));
        assert!(Store::<u8, u8>::new(0).insert(1, 1).is_none());
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        #[cfg_attr(miri, ignore = "slow")]
        fn the_lowest_comes_first(
            count in prop_oneof![1usize..200, 4000usize..5000, 262_000usize..263_000],
            ops in prop::collection::vec(prop_oneof![any::<usize>().prop_map(Some), Just(None)], 1..300),
        ) {
            let (mut set, mut model) = (Lowest::new(count), BTreeSet::new());
            for op in ops {
                match op {
                    Some(number) => {
                        set.add(number % count);
                        model.insert(number % count);
                    }
                    None => assert_eq!(set.take(), model.pop_first()),
                }
            }
            let rest: Vec<usize> = core::iter::from_fn(|| set.take()).collect();
            assert!(rest.into_iter().eq(model), "the rest is another");
        }
    }
}

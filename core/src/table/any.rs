//! Any table, chosen by name when the program starts.

use super::two_choice::TwoChoice;
use super::{Entries, Full, Hasher, Key, Lookup, Table};

/// A table of any method; which one is asked once per call (of a burst: once per burst).
pub enum AnyTable {
    /// `two-choice`.
    TwoChoice(TwoChoice),
}

impl AnyTable {
    /// The default method's table for `capacity` entries.
    pub fn new(capacity: usize, hasher: Hasher) -> AnyTable {
        AnyTable::TwoChoice(TwoChoice::new(capacity, hasher))
    }
}

/// The same expression for whichever table it is.
macro_rules! each {
    ($any:expr, $table:ident => $call:expr) => {
        match $any {
            AnyTable::TwoChoice($table) => $call,
        }
    };
}

impl<K: Key> Lookup<K> for AnyTable {
    #[inline]
    fn find<E: Entries<K>>(&self, key: &K, entries: &E) -> Option<u32> {
        each!(self, table => table.find(key, entries))
    }

    #[inline]
    fn find_burst<E: Entries<K>>(&self, keys: &[K], entries: &E, out: &mut [Option<u32>]) {
        each!(self, table => table.find_burst(keys, entries, out))
    }
}

impl<K: Key> Table<K> for AnyTable {
    fn name(&self) -> &'static str {
        each!(self, table => Table::<K>::name(table))
    }

    fn capacity(&self) -> usize {
        each!(self, table => Table::<K>::capacity(table))
    }

    fn len(&self) -> usize {
        each!(self, table => Table::<K>::len(table))
    }

    fn bytes(&self) -> usize {
        each!(self, table => Table::<K>::bytes(table))
    }

    fn insert(&mut self, key: &K, value: u32) -> Result<(), Full> {
        each!(self, table => table.insert(key, value))
    }

    fn insert_burst(&mut self, keys: &[K], values: &[u32]) -> usize {
        each!(self, table => table.insert_burst(keys, values))
    }

    fn remove(&mut self, key: &K, value: u32) -> bool {
        each!(self, table => table.remove(key, value))
    }

    fn remove_burst(&mut self, keys: &[K], values: &[u32]) -> usize {
        each!(self, table => table.remove_burst(keys, values))
    }

    fn replace(&mut self, key: &K, old: u32, new: u32) -> bool {
        each!(self, table => table.replace(key, old, new))
    }

    fn scan(&self, from: u32, visit: &mut dyn FnMut(u32)) -> Option<u32> {
        each!(self, table => Table::<K>::scan(table, from, visit))
    }
}

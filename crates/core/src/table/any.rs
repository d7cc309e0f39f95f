//! Any table, chosen by name when the program starts.

use super::concurrent::Concurrent;
use super::cuckoo::CuckooPlusPlus;
use super::sharded::Sharded;
use super::stateless::Untracked;
use super::{Entries, Full, Hasher, Key, Lookup, LookupMethod, Table};
use alloc::vec::Vec;

/// A worker's table of any method; which one is asked once per call (of a burst: once per burst).
pub enum AnyTable {
    /// `cuckoo++`.
    CuckooPlusPlus(CuckooPlusPlus),
    /// `concurrent`.
    Concurrent(Sharded<Concurrent>),
    /// `stateless` and `maglev`: the table that never holds anything.
    Untracked(Untracked),
}

const _: () = {
    const fn goes_to_another_thread<T: Send>() {}
    goes_to_another_thread::<AnyTable>();
};

impl AnyTable {
    /// The default method's table for `capacity` entries.
    pub fn new(capacity: usize, hasher: Hasher) -> AnyTable {
        AnyTable::of(LookupMethod::DEFAULT, capacity, hasher)
    }

    /// The table of a single worker by `method`, for `capacity` entries, 1 to 2^32 - 1.
    pub fn of(method: LookupMethod, capacity: usize, hasher: Hasher) -> AnyTable {
        match method {
            LookupMethod::CuckooPlusPlus => AnyTable::CuckooPlusPlus(CuckooPlusPlus::new(capacity, hasher)),
            LookupMethod::Concurrent => AnyTable::Concurrent(Sharded::whole(Concurrent::new(capacity, hasher))),
            LookupMethod::Stateless | LookupMethod::Maglev => AnyTable::Untracked(Untracked { method }),
        }
    }

    /// The tables of `workers` workers (at least one) by `method`, each for `capacity_each` entries with values from 0
    /// to 2^32 / `workers` - 1. Of a shared method they are views of one table; else each has its own.
    pub fn for_workers(method: LookupMethod, workers: usize, capacity_each: usize, hasher: Hasher) -> Vec<AnyTable> {
        let workers = workers.max(1);
        let all = capacity_each.saturating_mul(workers);
        match method {
            LookupMethod::Concurrent => {
                let table = Concurrent::new(all, hasher);
                Sharded::split(table, workers).into_iter().map(AnyTable::Concurrent).collect()
            }
            LookupMethod::CuckooPlusPlus | LookupMethod::Stateless | LookupMethod::Maglev => {
                (0..workers).map(|_| AnyTable::of(method, capacity_each, hasher.clone())).collect()
            }
        }
    }
}

/// The same expression for whichever table it is.
macro_rules! each {
    ($any:expr, $table:ident => $call:expr) => {
        match $any {
            AnyTable::CuckooPlusPlus($table) => $call,
            AnyTable::Concurrent($table) => $call,
            AnyTable::Untracked($table) => $call,
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

    // Part of its caller, once a burst, it leaves the worker short of registers for every packet
    // (`make bench-instructions`: 4 to 8 instructions each).
    #[inline(never)]
    fn guess_burst<E: Entries<K>>(&self, keys: &[K], entries: &E, out: &mut [Option<u32>]) {
        each!(self, table => table.guess_burst(keys, entries, out))
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

    fn replace_burst(&mut self, keys: &[K], old: &[u32], new: &[u32]) -> usize {
        each!(self, table => table.replace_burst(keys, old, new))
    }

    fn scan(&self, from: u32, visit: &mut dyn FnMut(u32)) -> Option<u32> {
        each!(self, table => Table::<K>::scan(table, from, visit))
    }
}

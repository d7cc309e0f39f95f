//! Any of our own tables, chosen by name when the program starts.

use crate::OwnMethod;
use crate::global_lock::GlobalLock;
use crate::inline::Inline;
use crate::two_choice::TwoChoice;
use hairpin_core::flow::FlowKey;
use hairpin_core::table::concurrent::Concurrent;
use hairpin_core::table::cuckoo::CuckooPlusPlus;
use hairpin_core::table::sharded::Sharded;
use hairpin_core::table::stateless::Untracked;
use hairpin_core::table::{Entries, Full, Hasher, Key, Lookup, LookupMethod, Table};

/// A worker's table of any method; which one is asked once per call (of a burst: once per burst).
pub enum OwnTable<K = FlowKey> {
    /// `two-choice`.
    TwoChoice(TwoChoice),
    /// `cuckoo++`.
    CuckooPlusPlus(CuckooPlusPlus),
    /// `inline`.
    Inline(Inline<K, u32>),
    /// `global-lock`.
    GlobalLock(Sharded<GlobalLock<CuckooPlusPlus>>),
    /// `concurrent`.
    Concurrent(Sharded<Concurrent>),
    /// `stateless` and `maglev`: the table that never holds anything.
    Untracked(Untracked),
}

const _: () = {
    const fn goes_to_another_thread<T: Send>() {}
    goes_to_another_thread::<OwnTable>();
};

impl<K: Key> OwnTable<K> {
    /// The default method's table for `capacity` entries.
    pub fn new(capacity: usize, hasher: Hasher) -> OwnTable<K> {
        OwnTable::of(OwnMethod::DEFAULT, capacity, hasher)
    }

    /// The table of a single worker by `method`, for `capacity` entries, 1 to 2^32 - 1.
    pub fn of(method: OwnMethod, capacity: usize, hasher: Hasher) -> OwnTable<K> {
        match method {
            OwnMethod::TwoChoice => OwnTable::TwoChoice(TwoChoice::new(capacity, hasher)),
            OwnMethod::CuckooPlusPlus => OwnTable::CuckooPlusPlus(CuckooPlusPlus::new(capacity, hasher)),
            OwnMethod::Inline => OwnTable::Inline(Inline::new(capacity, hasher)),
            OwnMethod::GlobalLock => {
                OwnTable::GlobalLock(Sharded::whole(GlobalLock::new(CuckooPlusPlus::new(capacity, hasher))))
            }
            OwnMethod::Concurrent => OwnTable::Concurrent(Sharded::whole(Concurrent::new(capacity, hasher))),
            OwnMethod::Stateless => OwnTable::Untracked(Untracked { method: LookupMethod::Stateless }),
            OwnMethod::Maglev => OwnTable::Untracked(Untracked { method: LookupMethod::Maglev }),
        }
    }

    /// The tables of `workers` workers (at least one) by `method`, each for `capacity_each` entries with values from 0
    /// to 2^32 / `workers` - 1. Of a shared method they are views of one table; else each has its own.
    pub fn for_workers(method: OwnMethod, workers: usize, capacity_each: usize, hasher: Hasher) -> Vec<OwnTable<K>> {
        let workers = workers.max(1);
        let all = capacity_each.saturating_mul(workers);
        match method {
            OwnMethod::GlobalLock => {
                let table = GlobalLock::new(CuckooPlusPlus::new(all, hasher));
                Sharded::split(table, workers).into_iter().map(OwnTable::GlobalLock).collect()
            }
            OwnMethod::Concurrent => {
                let table = Concurrent::new(all, hasher);
                Sharded::split(table, workers).into_iter().map(OwnTable::Concurrent).collect()
            }
            OwnMethod::TwoChoice
            | OwnMethod::CuckooPlusPlus
            | OwnMethod::Inline
            | OwnMethod::Stateless
            | OwnMethod::Maglev => (0..workers).map(|_| OwnTable::of(method, capacity_each, hasher.clone())).collect(),
        }
    }
}

/// The same expression for whichever table it is.
macro_rules! each {
    ($any:expr, $table:ident => $call:expr) => {
        match $any {
            OwnTable::TwoChoice($table) => $call,
            OwnTable::CuckooPlusPlus($table) => $call,
            OwnTable::Inline($table) => $call,
            OwnTable::GlobalLock($table) => $call,
            OwnTable::Concurrent($table) => $call,
            OwnTable::Untracked($table) => $call,
        }
    };
}

impl<K: Key> Lookup<K> for OwnTable<K> {
    #[inline]
    fn find<E: Entries<K>>(&self, key: &K, entries: &E) -> Option<u32> {
        each!(self, table => table.find(key, entries))
    }

    #[inline]
    fn find_burst<E: Entries<K>>(&self, keys: &[K], entries: &E, out: &mut [Option<u32>]) {
        each!(self, table => table.find_burst(keys, entries, out))
    }

    #[inline]
    fn guess_burst<E: Entries<K>>(&self, keys: &[K], entries: &E, out: &mut [Option<u32>]) {
        each!(self, table => table.guess_burst(keys, entries, out))
    }
}

impl<K: Key> Table<K> for OwnTable<K> {
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

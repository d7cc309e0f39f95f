//! hashbrown (the standard library's map, here one for each thread) and dashmap (shards under locks), both with ahash,
//! the hash of our own tables. Neither has a call for bursts; neither has a bound, they would grow.

use crate::tables::keys::{BenchKey, value};
use crate::tables::subject::{Hands, LookupSum, OwnedTable, TableSharing, TableSize, TableSubject};
use ahash::RandomState;
use anyhow::Result;
use dashmap::DashMap;
use hashbrown::HashMap;

/// A fresh secret.
fn secret() -> RandomState {
    RandomState::with_seeds(fastrand::u64(..), fastrand::u64(..), fastrand::u64(..), fastrand::u64(..))
}

/// The entries that either may hold in that many slots without growing: seven eighths.
fn capacity(size: &TableSize) -> usize {
    size.slots / 8 * 7
}

/// A hashbrown map.
pub(in crate::tables) struct Hashbrown(HashMap<BenchKey, u64, RandomState>);

impl Hashbrown {
    /// An empty one with so many slots, which are a power of two or become one.
    pub(in crate::tables) fn new(size: &TableSize) -> Hashbrown {
        Hashbrown(HashMap::with_capacity_and_hasher(capacity(size), secret()))
    }
}

impl OwnedTable for Hashbrown {
    #[inline]
    fn find(&self, key: &BenchKey) -> Option<u64> {
        self.0.get(key).copied()
    }

    #[inline]
    fn find_burst(&self, keys: &[BenchKey]) -> LookupSum {
        let mut found = LookupSum::default();
        keys.iter().for_each(|key| found.add(self.find(key)));
        found
    }

    fn insert(&mut self, keys: &[BenchKey]) -> usize {
        keys.iter().filter(|key| self.0.insert(**key, u64::from(value(key))).is_none()).count()
    }

    fn remove(&mut self, keys: &[BenchKey]) -> usize {
        keys.iter().filter(|key| self.0.remove(*key).is_some()).count()
    }

    fn bytes(&self) -> usize {
        self.0.allocation_size()
    }
}

/// A dashmap.
pub(in crate::tables) struct Dashmap {
    map: DashMap<BenchKey, u64, RandomState>,
    bytes: usize,
}

impl Dashmap {
    /// An empty one with so many slots, a power of two, in as many shards as it makes by itself.
    pub(in crate::tables) fn new(size: &TableSize) -> Dashmap {
        let map = DashMap::with_capacity_and_hasher(capacity(size), secret());
        // A pair and a control byte per slot; it cannot be asked.
        let bytes = size.slots * (size_of::<(BenchKey, u64)>() + 1);
        Dashmap { map, bytes }
    }
}

impl TableSubject for Dashmap {
    fn sharing(&self) -> TableSharing {
        TableSharing::Any
    }

    fn hands(&self, _: usize, _: usize) -> Result<Box<dyn Hands + '_>> {
        Ok(Box::new(DashmapHands(&self.map)))
    }

    fn bytes(&self) -> usize {
        self.bytes
    }

    fn slots(&self) -> Option<usize> {
        None
    }
}

struct DashmapHands<'a>(&'a DashMap<BenchKey, u64, RandomState>);

impl Hands for DashmapHands<'_> {
    fn find_each(&mut self, keys: &[BenchKey]) -> LookupSum {
        let mut found = LookupSum::default();
        keys.iter().for_each(|key| found.add(self.0.get(key).map(|value| *value)));
        found
    }

    fn find_bursts(&mut self, keys: &[BenchKey]) -> LookupSum {
        self.find_each(keys)
    }

    fn insert(&mut self, keys: &[BenchKey]) -> usize {
        keys.iter().filter(|key| self.0.insert(**key, u64::from(value(key))).is_none()).count()
    }

    fn remove(&mut self, keys: &[BenchKey]) -> usize {
        keys.iter().filter(|key| self.0.remove(*key).is_some()).count()
    }
}

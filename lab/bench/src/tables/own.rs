//! Our own indexes with one owner, each beside a bare store of keys and values: private ones, or one under a lock.

use super::keys::{BenchKey, value};
use super::subject::{BURST, Hands, LookupSum, OwnedTable, TableSharing, TableSize, TableSubject};
use anyhow::Result;
use hairpin_core::table::{Hasher, Lookup, Table};
use hairpin_tables::global_lock::GlobalLock;
use hairpin_tables::inline::Inline;
use hairpin_tables::store::Store;

/// An index and what it leads to.
pub(super) struct IndexedTable<T> {
    index: T,
    store: Store<BenchKey, u64>,
}

impl<T: Table<BenchKey>> IndexedTable<T> {
    /// An empty one; the store has room for what the index is made for, or, of a table to be filled to the brim, for
    /// whatever the index takes.
    pub(super) fn new(index: T, size: &TableSize) -> IndexedTable<T> {
        let store = Store::new(if size.brim { size.slots } else { index.capacity() });
        IndexedTable { index, store }
    }

    /// The keys of a burst. (An array returned would be copied; rte_hash's answers are not either.)
    #[inline]
    fn positions<'a>(&self, keys: &[BenchKey], out: &'a mut [Option<u32>; BURST]) -> &'a [Option<u32>] {
        self.index.find_burst(keys, &self.store, out);
        &out[..keys.len()]
    }

    fn add(&mut self, keys: &[BenchKey]) -> usize {
        let mut positions = [0; BURST];
        let mut room = 0;
        for (position, key) in positions.iter_mut().zip(keys) {
            let Some(stored) = self.store.insert(*key, u64::from(value(key))) else { break };
            *position = stored;
            room += 1;
        }
        let inserted = self.index.insert_burst(&keys[..room], &positions[..room]);
        for position in &positions[inserted..room] {
            self.store.remove(*position);
        }
        inserted
    }
}

impl<T: Table<BenchKey> + Send> OwnedTable for IndexedTable<T> {
    const TAKES_ABSENT: bool = true;

    #[inline]
    fn find(&self, key: &BenchKey) -> Option<u64> {
        self.index.find(key, &self.store).map(|position| self.store.value(position))
    }

    #[inline]
    fn find_burst(&self, keys: &[BenchKey]) -> LookupSum {
        let mut found = LookupSum::default();
        for position in self.positions(keys, &mut [None; BURST]) {
            found.add(position.map(|position| self.store.value(position)));
        }
        found
    }

    fn insert(&mut self, keys: &[BenchKey]) -> usize {
        let mut absent = [[0; 16]; BURST];
        let mut count = 0;
        for (key, found) in keys.iter().zip(self.positions(keys, &mut [None; BURST])) {
            absent[count] = *key;
            count += usize::from(found.is_none());
        }
        self.add(&absent[..count])
    }

    fn insert_absent(&mut self, keys: &[BenchKey]) -> usize {
        self.add(keys)
    }

    fn remove(&mut self, keys: &[BenchKey]) -> usize {
        let (mut there, mut positions) = ([[0; 16]; BURST], [0; BURST]);
        let mut count = 0;
        for (key, found) in keys.iter().zip(self.positions(keys, &mut [None; BURST])) {
            let Some(position) = *found else { continue };
            (there[count], positions[count]) = (*key, position);
            count += 1;
        }
        let removed = self.index.remove_burst(&there[..count], &positions[..count]);
        for position in &positions[..count] {
            self.store.remove(*position);
        }
        removed
    }

    fn bytes(&self) -> usize {
        self.index.bytes() + self.store.bytes()
    }
}

/// A table that has keys and values itself: nothing stands beside it.
impl OwnedTable for Inline<BenchKey, u64> {
    const TAKES_ABSENT: bool = true;

    #[inline]
    fn find(&self, key: &BenchKey) -> Option<u64> {
        self.value(key)
    }

    #[inline]
    fn find_burst(&self, keys: &[BenchKey]) -> LookupSum {
        let (mut found, mut values) = (LookupSum::default(), [None; BURST]);
        self.values(keys, &mut values);
        values[..keys.len()].iter().for_each(|value| found.add(*value));
        found
    }

    fn insert(&mut self, keys: &[BenchKey]) -> usize {
        let (mut there, mut absent, mut count) = ([None; BURST], [[0; 16]; BURST], 0);
        self.values(keys, &mut there);
        for (key, found) in keys.iter().zip(there) {
            absent[count] = *key;
            count += usize::from(found.is_none());
        }
        self.insert_absent(&absent[..count])
    }

    fn insert_absent(&mut self, keys: &[BenchKey]) -> usize {
        let mut values = [0; BURST];
        values.iter_mut().zip(keys).for_each(|(to, key)| *to = u64::from(value(key)));
        self.put_burst(keys, &values[..keys.len()])
    }

    fn remove(&mut self, keys: &[BenchKey]) -> usize {
        self.take_burst(keys)
    }

    fn bytes(&self) -> usize {
        self.bytes_taken()
    }
}

/// One table of any single-owner kind, its store with it, under one spinlock that is taken once per burst.
pub(super) struct SpinlockedTable<O> {
    table: GlobalLock<O>,
    slots: usize,
}

impl<O: OwnedTable> SpinlockedTable<O> {
    /// Shares a table of so many slots.
    pub(super) fn new(table: O, slots: usize) -> SpinlockedTable<O> {
        SpinlockedTable { table: GlobalLock::new(table), slots }
    }
}

impl<O: OwnedTable> TableSubject for SpinlockedTable<O> {
    fn sharing(&self) -> TableSharing {
        TableSharing::Any
    }

    fn hands(&self, _: usize, _: usize) -> Result<Box<dyn Hands + '_>> {
        Ok(Box::new(LockedHands(&self.table)))
    }

    fn takes_absent(&self) -> bool {
        O::TAKES_ABSENT
    }

    fn bytes(&self) -> usize {
        self.table.with(|table| table.bytes())
    }

    fn slots(&self) -> Option<usize> {
        Some(self.slots)
    }
}

struct LockedHands<'a, O>(&'a GlobalLock<O>);

impl<O: OwnedTable> Hands for LockedHands<'_, O> {
    fn find_each(&mut self, keys: &[BenchKey]) -> LookupSum {
        let mut found = LookupSum::default();
        for key in keys {
            found.add(self.0.with(|table| table.find(key)));
        }
        found
    }

    fn find_bursts(&mut self, keys: &[BenchKey]) -> LookupSum {
        let mut found = LookupSum::default();
        for keys in keys.chunks(BURST) {
            found += self.0.with(|table| table.find_burst(keys));
        }
        found
    }

    fn insert(&mut self, keys: &[BenchKey]) -> usize {
        keys.chunks(BURST).map(|keys| self.0.with(|table| table.insert(keys))).sum()
    }

    fn insert_absent(&mut self, keys: &[BenchKey]) -> usize {
        keys.chunks(BURST).map(|keys| self.0.with(|table| table.insert_absent(keys))).sum()
    }

    fn remove(&mut self, keys: &[BenchKey]) -> usize {
        keys.chunks(BURST).map(|keys| self.0.with(|table| table.remove(keys))).sum()
    }
}

/// A method that keeps nothing: every lookup has an answer, and there is nothing to change.
pub(super) struct UntrackedMethod<L>(pub L);

/// No entries: these methods never ask.
struct NeverAsked;

impl hairpin_core::table::Entries<BenchKey> for NeverAsked {
    fn is(&self, _: u32, _: &BenchKey) -> bool {
        false
    }
}

impl<L: Lookup<BenchKey> + Send + Sync> TableSubject for UntrackedMethod<L> {
    fn sharing(&self) -> TableSharing {
        TableSharing::Fixed
    }

    fn hands(&self, _: usize, _: usize) -> Result<Box<dyn Hands + '_>> {
        Ok(Box::new(UntrackedHands(&self.0)))
    }

    fn bytes(&self) -> usize {
        0
    }

    fn slots(&self) -> Option<usize> {
        None
    }
}

struct UntrackedHands<'a, L>(&'a L);

impl<L: Lookup<BenchKey>> Hands for UntrackedHands<'_, L> {
    fn find_each(&mut self, keys: &[BenchKey]) -> LookupSum {
        let mut found = LookupSum::default();
        for key in keys {
            found.add(self.0.find(key, &NeverAsked).map(u64::from));
        }
        found
    }

    fn find_bursts(&mut self, keys: &[BenchKey]) -> LookupSum {
        let mut found = LookupSum::default();
        let mut out = [None; BURST];
        for keys in keys.chunks(BURST) {
            self.0.find_burst(keys, &NeverAsked, &mut out);
            out[..keys.len()].iter().for_each(|backend| found.add(backend.map(u64::from)));
        }
        found
    }

    fn insert(&mut self, _: &[BenchKey]) -> usize {
        0
    }

    fn remove(&mut self, _: &[BenchKey]) -> usize {
        0
    }
}

/// A fresh secret for a table.
pub(super) fn hasher() -> Hasher {
    Hasher::new(std::array::from_fn(|_| fastrand::u64(..)))
}

//! Our own index for many threads, beside a store that reuses positions only when no thread can still read them.

use super::keys::{BenchKey, value};
use super::subject::{BURST, Hands, LookupSum, PATIENCE, TableSharing, TableSize, TableSubject};
use anyhow::{Context, Result};
use hairpin_core::table::SharedIndex;
use hairpin_core::table::concurrent::quiescence::QuiescenceReader;
use hairpin_core::table::concurrent::store::{SharedStore, Writer};
use std::sync::Arc;
use std::time::Instant;

/// Threads that may read at a time.
const READERS_MAX: usize = 64;

type BenchStore = SharedStore<BenchKey, u64>;

/// An index and what it leads to, for many threads.
pub(super) struct IndexWithStore<T> {
    index: T,
    store: Arc<BenchStore>,
    slots: usize,
}

impl<T: SharedIndex<BenchKey>> IndexWithStore<T> {
    /// An empty one; the store has room as that of private tables has.
    pub(super) fn new(index: T, size: &TableSize) -> IndexWithStore<T> {
        let capacity = if size.brim { size.slots } else { index.capacity() };
        IndexWithStore { index, store: Arc::new(BenchStore::new(capacity, READERS_MAX)), slots: size.slots }
    }
}

impl<T: SharedIndex<BenchKey>> TableSubject for IndexWithStore<T> {
    fn sharing(&self) -> TableSharing {
        TableSharing::Any
    }

    fn hands(&self, _: usize, _: usize) -> Result<Box<dyn Hands + '_>> {
        let reader = self.store.reader().context("too many readers")?;
        Ok(Box::new(SharedHands { index: &self.index, store: &self.store, reader, writer: self.store.writer() }))
    }

    fn takes_absent(&self) -> bool {
        true
    }

    fn bytes(&self) -> usize {
        self.index.bytes() + self.store.bytes()
    }

    fn slots(&self) -> Option<usize> {
        Some(self.slots)
    }
}

/// A thread that reads and writes. It says after every burst that it holds nothing any more.
struct SharedHands<'a, T> {
    index: &'a T,
    store: &'a BenchStore,
    reader: QuiescenceReader,
    writer: Writer<BenchKey, u64>,
}

impl<T: SharedIndex<BenchKey>> SharedHands<'_, T> {
    /// The keys of a burst. (An array returned would be copied; rte_hash's answers are not either.)
    #[inline]
    fn positions<'a>(&self, keys: &[BenchKey], out: &'a mut [Option<u32>; BURST]) -> &'a [Option<u32>] {
        self.index.find_burst(keys, self.store, out);
        &out[..keys.len()]
    }

    /// Inserts a burst of keys that are not there.
    fn add(&mut self, keys: &[BenchKey]) -> usize {
        let mut positions = [0; BURST];
        let mut room = 0;
        for (position, key) in positions.iter_mut().zip(keys) {
            let Some(stored) = self.put(key) else { break };
            *position = stored;
            room += 1;
        }
        let inserted = self.index.insert_burst(&keys[..room], &positions[..room]);
        positions[inserted..room].iter().for_each(|&position| self.writer.discard(position));
        inserted
    }

    /// A place for a key. If there is none, some may still wait for readers; of a small table they are many.
    #[inline]
    fn put(&mut self, key: &BenchKey) -> Option<u32> {
        self.writer.put(key, &u64::from(value(key))).or_else(|| self.put_later(key))
    }

    #[cold]
    fn put_later(&mut self, key: &BenchKey) -> Option<u32> {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            self.reader.quiescent();
            self.writer.reclaim();
            if let Some(position) = self.writer.put(key, &u64::from(value(key))) {
                return Some(position);
            }
            std::thread::yield_now();
        }
        None
    }

    fn retire(&mut self, position: u32) {
        while self.writer.retire(position).is_err() {
            // A thread still reads; it must not be this one.
            self.reader.quiescent();
            std::thread::yield_now();
        }
    }

    fn remove_burst(&mut self, keys: &[BenchKey]) -> usize {
        let (mut there, mut positions) = ([[0; 16]; BURST], [0; BURST]);
        let mut count = 0;
        for (key, found) in keys.iter().zip(self.positions(keys, &mut [None; BURST])) {
            let Some(position) = *found else { continue };
            (there[count], positions[count]) = (*key, position);
            count += 1;
        }
        let removed = self.index.remove_burst(&there[..count], &positions[..count]);
        // Each thread has its own keys: fewer means a lost one, and then the measurement ends.
        if removed == count {
            positions[..count].iter().for_each(|&position| self.retire(position));
        }
        removed
    }
}

impl<T: SharedIndex<BenchKey>> Hands for SharedHands<'_, T> {
    fn find_each(&mut self, keys: &[BenchKey]) -> LookupSum {
        let mut found = LookupSum::default();
        for keys in keys.chunks(BURST) {
            for key in keys {
                let position = self.index.find(key, self.store);
                found.add(position.and_then(|position| self.store.value(position)));
            }
            self.reader.quiescent();
        }
        found
    }

    fn find_bursts(&mut self, keys: &[BenchKey]) -> LookupSum {
        let mut found = LookupSum::default();
        for keys in keys.chunks(BURST) {
            for position in self.positions(keys, &mut [None; BURST]) {
                found.add(position.and_then(|position| self.store.value(position)));
            }
            self.reader.quiescent();
        }
        found
    }

    fn insert(&mut self, keys: &[BenchKey]) -> usize {
        let mut inserted = 0;
        for keys in keys.chunks(BURST) {
            let mut absent = [[0; 16]; BURST];
            let mut count = 0;
            for (key, found) in keys.iter().zip(self.positions(keys, &mut [None; BURST])) {
                absent[count] = *key;
                count += usize::from(found.is_none());
            }
            inserted += self.add(&absent[..count]);
            self.reader.quiescent();
        }
        inserted
    }

    fn insert_absent(&mut self, keys: &[BenchKey]) -> usize {
        let mut inserted = 0;
        for keys in keys.chunks(BURST) {
            inserted += self.add(keys);
            self.reader.quiescent();
        }
        inserted
    }

    fn remove(&mut self, keys: &[BenchKey]) -> usize {
        let mut removed = 0;
        for keys in keys.chunks(BURST) {
            removed += self.remove_burst(keys);
            self.reader.quiescent();
        }
        removed
    }

    fn rest(&mut self, rest: &mut dyn FnMut()) {
        self.reader.offline();
        // A thread that stops writing leaves the places that it has to the others.
        self.writer = self.writer.store().writer();
        rest();
        self.reader.online();
    }
}

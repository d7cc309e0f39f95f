//! DPDK's rte_hash in its flag sets, through hairpin-dpdk: one call of C per burst, tables on large pages.
//!
//! Values are 32 bits and stand in its data pointer, which takes eight bytes as everywhere.

use crate::tables::keys::{BenchKey, value};
use crate::tables::methods::{Candidate, private, shared};
use crate::tables::subject::{BURST, Hands, LookupSum, OwnedTable, PATIENCE, TableSharing, TableSize, TableSubject};
use anyhow::{Context, Result, anyhow};
use hairpin_core::table::{Entries, Lookup, Table};
use hairpin_dpdk::{Eal, EalOptions};
use hairpin_tables::rte_hash::{RteHash, RteHashFlags, SharedRteHash, TableHandle};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// EAL, which can be started once in a process.
fn eal() -> Result<&'static Eal> {
    static EAL: OnceLock<Result<Eal, String>> = OnceLock::new();
    let started = EAL.get_or_init(|| Eal::start(EalOptions::default()).map_err(|error| error.to_string()));
    started.as_ref().map_err(|error| anyhow!("{error}"))
}

/// All flag sets that protect what is done to them; those that do not, too, if asked for. Without flags: a private table
/// for each thread.
pub(in crate::tables) fn candidates(unsafe_too: bool) -> Vec<Candidate> {
    // The lock-free ones first: they come next to ours that they are compared with, and have the first claim to DPDK's
    // about 30 heaps.
    let (lock_free, others): (Vec<RteHashFlags>, _) =
        RteHashFlags::ALL.into_iter().partition(|flags| flags.is_lock_free());
    let all = lock_free.into_iter().chain(others);
    let chosen = all.filter(|flags| flags.protects_readers() || unsafe_too);
    let none = private("rte-hash", |size| Some(size.slots), |size| Ok(Private(new(size, RteHashFlags::None)?)));
    chosen.map(|flags| shared(flags.name(), move |size| SharedHash::new(size, flags))).chain([none]).collect()
}

fn new(size: &TableSize, flags: RteHashFlags) -> Result<RteHash<BenchKey>> {
    RteHash::new(eal()?, size.slots, flags, fastrand::u32(..)).with_context(|| format!("making an {flags}"))
}

/// It compares its own copies of the keys.
struct KeyCopies;

impl Entries<BenchKey> for KeyCopies {
    fn is(&self, _: u32, _: &BenchKey) -> bool {
        true
    }
}

/// A burst's lookups of any of them.
#[inline]
fn find_burst(table: &impl Lookup<BenchKey>, keys: &[BenchKey]) -> LookupSum {
    let mut out = [None; BURST];
    let mut found = LookupSum::default();
    table.find_burst(keys, &KeyCopies, &mut out);
    out[..keys.len()].iter().for_each(|value| found.add(value.map(u64::from)));
    found
}

/// A burst's insertions into any of them; it looks for each key by itself.
fn insert_burst(table: &mut impl Table<BenchKey>, keys: &[BenchKey]) -> usize {
    let mut values = [0; BURST];
    keys.iter().zip(&mut values).for_each(|(key, stored)| *stored = value(key));
    table.insert_burst(keys, &values[..keys.len()])
}

/// One with one owner.
struct Private(RteHash<BenchKey>);

impl OwnedTable for Private {
    fn find(&self, key: &BenchKey) -> Option<u64> {
        self.0.find(key, &KeyCopies).map(u64::from)
    }

    fn find_burst(&self, keys: &[BenchKey]) -> LookupSum {
        find_burst(&self.0, keys)
    }

    fn insert(&mut self, keys: &[BenchKey]) -> usize {
        insert_burst(&mut self.0, keys)
    }

    fn remove(&mut self, keys: &[BenchKey]) -> usize {
        self.0.remove_keys(keys)
    }

    fn bytes(&self) -> usize {
        self.0.bytes()
    }
}

/// One that threads share, each by a handle.
struct SharedHash {
    table: Arc<SharedRteHash<BenchKey>>,
    sharing: TableSharing,
    slots: usize,
}

impl SharedHash {
    fn new(size: &TableSize, flags: RteHashFlags) -> Result<SharedHash> {
        let sharing = match (flags.protects_readers(), flags.protects_writers()) {
            (true, true) => TableSharing::Any,
            (true, false) => TableSharing::OneWriter,
            (false, _) => TableSharing::Unprotected,
        };
        let asked = match sharing {
            TableSharing::Unprotected => hairpin_tables::rte_hash::UnprotectedSharing::EvenIfUnsafe,
            _ => hairpin_tables::rte_hash::UnprotectedSharing::OnlyIfSafe,
        };
        let table = Arc::new(new(size, flags)?.share(asked)?);
        if table.is_unprotected() {
            eprintln!("{flags}: {}", hairpin_tables::rte_hash::UNPROTECTED_WARNING);
        }
        Ok(SharedHash { table, sharing, slots: size.slots })
    }
}

impl TableSubject for SharedHash {
    fn sharing(&self) -> TableSharing {
        self.sharing
    }

    fn hands(&self, _: usize, _: usize) -> Result<Box<dyn Hands + '_>> {
        Ok(Box::new(RteHashHands(self.table.handle()?)))
    }

    fn bytes(&self) -> usize {
        hairpin_core::table::SharedIndex::bytes(&*self.table)
    }

    fn slots(&self) -> Option<usize> {
        Some(self.slots)
    }
}

impl RteHashHands {
    /// Inserts the rest of a burst. Of a lock-free table, places that were removed may still wait for readers; if it
    /// is small they are many.
    #[cold]
    fn insert_later(&mut self, keys: &[BenchKey]) -> usize {
        let start = Instant::now();
        let mut inserted = 0;
        let waits = self.0.table().flags().is_lock_free();
        while waits && inserted < keys.len() && start.elapsed() < PATIENCE {
            self.0.quiescent();
            std::thread::yield_now();
            inserted += insert_burst(&mut self.0, &keys[inserted..]);
        }
        inserted
    }
}

/// A thread's handle, which says once a burst that the thread is not reading.
struct RteHashHands(TableHandle<BenchKey>);

impl Hands for RteHashHands {
    fn find_each(&mut self, keys: &[BenchKey]) -> LookupSum {
        let mut found = LookupSum::default();
        keys.iter().for_each(|key| found.add(self.0.find(key, &KeyCopies).map(u64::from)));
        found
    }

    fn find_bursts(&mut self, keys: &[BenchKey]) -> LookupSum {
        let mut found = LookupSum::default();
        keys.chunks(BURST).for_each(|keys| found += find_burst(&self.0, keys));
        found
    }

    fn insert(&mut self, keys: &[BenchKey]) -> usize {
        let mut inserted = 0;
        for keys in keys.chunks(BURST) {
            let now = insert_burst(&mut self.0, keys);
            inserted += if now == keys.len() { now } else { now + self.insert_later(&keys[now..]) };
        }
        inserted
    }

    fn remove(&mut self, keys: &[BenchKey]) -> usize {
        keys.chunks(BURST).map(|keys| self.0.remove_keys(keys)).sum()
    }

    fn rest(&mut self, rest: &mut dyn FnMut()) {
        self.0.offline(rest)
    }
}

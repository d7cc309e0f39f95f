//! The subjects of measurement: a method's tables, and one thread's access to them.

use super::keys::BenchKey;
use anyhow::Result;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Keys of one burst.
pub(super) const BURST: usize = 32;

/// How long readers may take to release a removed place, at most; being put off the processor included.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);

/// How large a table is.
#[derive(Clone, Copy, Debug)]
pub(super) struct TableSize {
    /// Places for entries in the index, of methods that fill them; they are a power of two.
    pub slots: usize,
    /// Entries that come in.
    pub entries: usize,
    /// Whether it is filled until it refuses: then the store has a place for every slot.
    pub brim: bool,
}

impl TableSize {
    /// One thread's share of it.
    pub(super) fn share(&self, threads: usize) -> TableSize {
        let part = |whole: usize| whole.div_ceil(threads);
        TableSize { slots: part(self.slots), entries: part(self.entries), brim: self.brim }
    }
}

/// The results of lookups: their number, and the sum of their values, so that values are really read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LookupSum {
    /// Keys that were there.
    pub count: usize,
    /// The sum of their values.
    pub sum: u64,
}

impl LookupSum {
    /// Counts one lookup.
    #[inline]
    pub(super) fn add(&mut self, value: Option<u64>) {
        if let Some(value) = value {
            self.count += 1;
            self.sum = self.sum.wrapping_add(value);
        }
    }
}

impl std::ops::AddAssign for LookupSum {
    fn add_assign(&mut self, other: LookupSum) {
        self.count += other.count;
        self.sum = self.sum.wrapping_add(other.sum);
    }
}

/// The threads that may use a method's tables at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "dpdk"), allow(dead_code, reason = "some are DPDK's only"))]
pub(super) enum TableSharing {
    /// Each thread has a table of its own with its share of the entries.
    Private,
    /// Each thread has a table of its own with all the entries, and only reads it.
    Copies,
    /// One table: any number read beside one that changes it.
    OneWriter,
    /// One table: any number read and change it.
    Any,
    /// One table that any number read and change although nothing protects it: answers may be wrong.
    Unprotected,
    /// There is nothing to change.
    Fixed,
}

impl TableSharing {
    /// Whether so many threads may change entries, each its own.
    pub(super) fn writers(self, threads: usize) -> bool {
        match self {
            TableSharing::Private | TableSharing::Any | TableSharing::Unprotected => true,
            TableSharing::OneWriter => threads == 1,
            TableSharing::Copies | TableSharing::Fixed => false,
        }
    }

    /// Whether threads may read a table while another changes it.
    pub(super) fn beside_writer(self) -> bool {
        matches!(self, TableSharing::OneWriter | TableSharing::Any | TableSharing::Unprotected)
    }
}

/// A method's tables of one size, as all threads see them.
pub(super) trait TableSubject: Send + Sync {
    /// The threads that may use them at the same time.
    fn sharing(&self) -> TableSharing;

    /// Access for `thread` (0 on) of `threads`. Belongs to the thread that asked for it.
    ///
    /// # Errors
    /// When the thread cannot be registered with the method.
    fn hands(&self, threads: usize, thread: usize) -> Result<Box<dyn Hands + '_>>;

    /// Whether [`Hands::insert_absent`] is there.
    fn takes_absent(&self) -> bool {
        false
    }

    /// Bytes of index, keys and values for one thread.
    fn bytes(&self) -> usize;

    /// Places for entries that the index has for one thread; `None` if it has no such number (it grows, or keeps
    /// nothing).
    fn slots(&self) -> Option<usize>;
}

/// One thread's access. Each call makes whatever reports to the method a worker would make once per burst.
pub(super) trait Hands {
    /// Looks up one key per call.
    fn find_each(&mut self, keys: &[BenchKey]) -> LookupSum;

    /// Looks up [`BURST`] keys per call, where the method has such a call.
    fn find_bursts(&mut self, keys: &[BenchKey]) -> LookupSum;

    /// Inserts keys, with [`super::keys::value`] as their values, after a check whether each is there already. How many
    /// went in.
    fn insert(&mut self, keys: &[BenchKey]) -> usize;

    /// Inserts keys that are known to be absent: of methods that can make use of that; the others search first.
    fn insert_absent(&mut self, keys: &[BenchKey]) -> usize {
        self.insert(keys)
    }

    /// Removes keys; how many were there.
    fn remove(&mut self, keys: &[BenchKey]) -> usize;

    /// Does something that takes no part in the measurement; no thread waits for this one meanwhile.
    fn rest(&mut self, rest: &mut dyn FnMut()) {
        rest();
    }
}

/// A table with one owner; takes bursts of at most [`BURST`] keys.
pub(super) trait OwnedTable: Send {
    /// See [`TableSubject::takes_absent`].
    const TAKES_ABSENT: bool = false;

    /// The value of a key.
    fn find(&self, key: &BenchKey) -> Option<u64>;
    /// Those of a burst.
    fn find_burst(&self, keys: &[BenchKey]) -> LookupSum;
    /// See [`Hands::insert`].
    fn insert(&mut self, keys: &[BenchKey]) -> usize;
    /// See [`Hands::insert_absent`].
    fn insert_absent(&mut self, keys: &[BenchKey]) -> usize {
        self.insert(keys)
    }
    /// See [`Hands::remove`].
    fn remove(&mut self, keys: &[BenchKey]) -> usize;
    /// See [`TableSubject::bytes`].
    fn bytes(&self) -> usize;
}

/// A private table for each thread; the entries are divided among them as flows are among workers.
pub(super) struct PerCore<O> {
    /// For each number of threads, its tables.
    sets: Vec<Vec<Mutex<O>>>,
    slots: Option<usize>,
}

impl<O: OwnedTable> PerCore<O> {
    /// Tables for each of these numbers of threads, made by `make` from each one's size.
    ///
    /// # Errors
    /// Those of `make`.
    pub(super) fn new(
        threads: &[usize],
        size: &TableSize,
        slots: Option<usize>,
        mut make: impl FnMut(&TableSize) -> Result<O>,
    ) -> Result<PerCore<O>> {
        let mut set = |threads: usize| -> Result<Vec<Mutex<O>>> {
            (0..threads).map(|_| Ok(Mutex::new(make(&size.share(threads))?))).collect()
        };
        Ok(PerCore { sets: threads.iter().map(|&threads| set(threads)).collect::<Result<_>>()?, slots })
    }
}

impl<O: OwnedTable> TableSubject for PerCore<O> {
    fn sharing(&self) -> TableSharing {
        TableSharing::Private
    }

    fn hands(&self, threads: usize, thread: usize) -> Result<Box<dyn Hands + '_>> {
        let table = of_thread(&self.sets, threads, thread)?;
        Ok(Box::new(HeldTable(table.lock().unwrap_or_else(PoisonError::into_inner))))
    }

    fn takes_absent(&self) -> bool {
        O::TAKES_ABSENT
    }

    fn bytes(&self) -> usize {
        let one = |table: &Mutex<O>| table.lock().unwrap_or_else(PoisonError::into_inner).bytes();
        self.sets.iter().min_by_key(|set| set.len()).map_or(0, |set| set.iter().map(one).sum())
    }

    fn slots(&self) -> Option<usize> {
        self.slots
    }
}

/// A table of its own for each thread, none of them divided: what sharing one costs is seen beside that.
pub(super) struct TablePerThread<S> {
    /// For each number of threads, its tables.
    sets: Vec<Vec<S>>,
}

impl<S: TableSubject> TablePerThread<S> {
    /// Tables for each of these numbers of threads.
    ///
    /// # Errors
    /// Those of `make`.
    pub(super) fn new(threads: &[usize], make: impl Fn() -> Result<S>) -> Result<TablePerThread<S>> {
        let set = |&threads: &usize| (0..threads).map(|_| make()).collect::<Result<_>>();
        Ok(TablePerThread { sets: threads.iter().map(set).collect::<Result<_>>()? })
    }
}

impl<S: TableSubject> TableSubject for TablePerThread<S> {
    fn sharing(&self) -> TableSharing {
        TableSharing::Copies
    }

    fn hands(&self, threads: usize, thread: usize) -> Result<Box<dyn Hands + '_>> {
        of_thread(&self.sets, threads, thread)?.hands(1, 0)
    }

    fn bytes(&self) -> usize {
        self.sets.first().and_then(|set| set.first()).map_or(0, TableSubject::bytes)
    }

    /// How full copies can be is not measured; how full their original can be is.
    fn slots(&self) -> Option<usize> {
        None
    }
}

/// The part of `thread` of `threads`.
fn of_thread<T>(sets: &[Vec<T>], threads: usize, thread: usize) -> Result<&T> {
    let set = sets.iter().find(|set| set.len() == threads);
    let table = set.and_then(|set| set.get(thread));
    table.ok_or_else(|| anyhow::anyhow!("there is no table for thread {thread} of {threads}"))
}

/// A private table, held.
struct HeldTable<'a, O>(MutexGuard<'a, O>);

impl<O: OwnedTable> Hands for HeldTable<'_, O> {
    fn find_each(&mut self, keys: &[BenchKey]) -> LookupSum {
        let mut found = LookupSum::default();
        for key in keys {
            found.add(self.0.find(key));
        }
        found
    }

    fn find_bursts(&mut self, keys: &[BenchKey]) -> LookupSum {
        let mut found = LookupSum::default();
        for keys in keys.chunks(BURST) {
            found += self.0.find_burst(keys);
        }
        found
    }

    fn insert(&mut self, keys: &[BenchKey]) -> usize {
        keys.chunks(BURST).map(|keys| self.0.insert(keys)).sum()
    }

    fn insert_absent(&mut self, keys: &[BenchKey]) -> usize {
        keys.chunks(BURST).map(|keys| self.0.insert_absent(keys)).sum()
    }

    fn remove(&mut self, keys: &[BenchKey]) -> usize {
        keys.chunks(BURST).map(|keys| self.0.remove(keys)).sum()
    }
}

//! A worker's connection table, where DPDK's stand beside the data plane's own (KTH 2020, section 4.2).

use super::error::Error;
use super::flags::RteHashFlags;
use super::{RteHash, TableView, UnprotectedSharing};
use crate::OwnTable;
use hairpin_core::flow::FlowKey;
use hairpin_core::table::{Entries, Full, Lookup, Table};
use hairpin_dpdk::Eal;

/// A worker's table: of the data plane, or DPDK's.
///
/// An rte_hash holds a key once, whichever worker inserts it; since a flow always goes to the same worker, no worker
/// meets another's.
pub enum WorkerTable {
    /// The data plane's.
    Own(OwnTable),
    /// DPDK's, this worker's alone.
    Alone(RteHash<FlowKey>),
    /// A view of DPDK's for all workers.
    View(TableView),
}

impl WorkerTable {
    /// One of DPDK's for each of `workers` workers, for `capacity_each` entries; `seed` is its hash's.
    ///
    /// # Errors
    /// DPDK could not make it.
    pub fn alone(eal: &Eal, workers: usize, capacity_each: usize, seed: u32) -> Result<Vec<WorkerTable>, Error> {
        let make = |_| RteHash::new(eal, capacity_each, RteHashFlags::None, seed).map(WorkerTable::Alone);
        (0..workers).map(make).collect()
    }

    /// Views of one of DPDK's for all of `workers` workers, for `capacity_each` entries of each.
    ///
    /// # Errors
    /// DPDK could not make it; its flags do not protect it, and that was not consented to; a lock-free one is for more than
    /// 64 workers.
    pub fn views(
        eal: &Eal,
        flags: RteHashFlags,
        workers: usize,
        capacity_each: usize,
        seed: u32,
        sharing: UnprotectedSharing,
    ) -> Result<Vec<WorkerTable>, Error> {
        let shared = RteHash::new(eal, capacity_each.saturating_mul(workers), flags, seed)?.share(sharing)?;
        Ok(shared.into_views(workers)?.into_iter().map(WorkerTable::View).collect())
    }
}

/// The same expression for whichever table it is.
macro_rules! each {
    ($any:expr, $table:ident => $call:expr) => {
        match $any {
            WorkerTable::Own($table) => $call,
            WorkerTable::Alone($table) => $call,
            WorkerTable::View($table) => $call,
        }
    };
}

impl Lookup<FlowKey> for WorkerTable {
    #[inline]
    fn find<E: Entries<FlowKey>>(&self, key: &FlowKey, entries: &E) -> Option<u32> {
        each!(self, table => table.find(key, entries))
    }

    #[inline]
    fn find_burst<E: Entries<FlowKey>>(&self, keys: &[FlowKey], entries: &E, out: &mut [Option<u32>]) {
        each!(self, table => table.find_burst(keys, entries, out))
    }

    #[inline]
    fn guess_burst<E: Entries<FlowKey>>(&self, keys: &[FlowKey], entries: &E, out: &mut [Option<u32>]) {
        each!(self, table => table.guess_burst(keys, entries, out))
    }
}

impl Table<FlowKey> for WorkerTable {
    fn name(&self) -> &'static str {
        each!(self, table => Table::<FlowKey>::name(table))
    }

    fn capacity(&self) -> usize {
        each!(self, table => Table::<FlowKey>::capacity(table))
    }

    fn len(&self) -> usize {
        each!(self, table => Table::<FlowKey>::len(table))
    }

    fn bytes(&self) -> usize {
        each!(self, table => Table::<FlowKey>::bytes(table))
    }

    fn insert(&mut self, key: &FlowKey, value: u32) -> Result<(), Full> {
        each!(self, table => table.insert(key, value))
    }

    fn insert_burst(&mut self, keys: &[FlowKey], values: &[u32]) -> usize {
        each!(self, table => table.insert_burst(keys, values))
    }

    fn remove(&mut self, key: &FlowKey, value: u32) -> bool {
        each!(self, table => table.remove(key, value))
    }

    fn remove_burst(&mut self, keys: &[FlowKey], values: &[u32]) -> usize {
        each!(self, table => table.remove_burst(keys, values))
    }

    fn replace(&mut self, key: &FlowKey, old: u32, new: u32) -> bool {
        each!(self, table => table.replace(key, old, new))
    }

    fn scan(&self, from: u32, visit: &mut dyn FnMut(u32)) -> Option<u32> {
        each!(self, table => Table::<FlowKey>::scan(table, from, visit))
    }
}

//! DPDK's rte_hash as a worker's table (papers/003, section 4.2), to be compared with the data plane's own.
//!
//! A plain `rte-hash` is one table for each worker; with flags it is one for all, of which each worker has a view. An
//! rte_hash holds a key once, whoever inserts it; since a flow always goes to the same worker, none meets another's.

use crate::run::eal;
use anyhow::{Context, Result};
use hairpin_core::flow::FlowKey;
use hairpin_core::table::sharded::Sharded;
use hairpin_core::table::{AnyTable, Entries, Full, Lookup, Table};
use hairpin_dpdk::{EalOptions, Flags, RteHash, SharedRteHash, Sharing};

/// A worker's table: of the data plane, or DPDK's.
pub(crate) enum WorkerTable {
    /// The data plane's.
    Own(AnyTable),
    /// DPDK's, this worker's alone.
    Alone(RteHash<FlowKey>),
    /// A view of DPDK's for all workers.
    View(Sharded<SharedRteHash<FlowKey>>),
}

pub(super) fn own(table: AnyTable) -> WorkerTable {
    WorkerTable::Own(table)
}

/// The tables of `workers` workers by the name of the configuration, each for `capacity_each` entries.
pub(super) fn rte_hash(name: &str, workers: usize, capacity_each: usize, secret: [u64; 4]) -> Result<Vec<WorkerTable>> {
    let eal = eal::started(EalOptions::default())?;
    let flags: Flags = name.parse()?;
    let make = |capacity| {
        RteHash::new(&eal, capacity, flags, secret[0] as u32).with_context(|| format!("cannot make the table {name}"))
    };
    if name == "rte-hash" {
        return (0..workers).map(|_| Ok(WorkerTable::Alone(make(capacity_each)?))).collect();
    }
    // The configuration is taken only with consent to what is unsafe.
    let sharing = if flags.protects_readers() { Sharing::OnlyIfSafe } else { Sharing::EvenIfUnsafe };
    let shared = make(capacity_each.saturating_mul(workers))?.share(sharing)?;
    Ok(Sharded::split(shared, workers).into_iter().map(WorkerTable::View).collect())
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{TableChoice, Word};

    #[test]
    fn the_configuration_names_every_set_of_flags() {
        let mut named: Vec<&str> = TableChoice::WORDS.iter().map(|(_, word)| *word).collect();
        named.retain(|word| word.starts_with("rte-hash"));
        let flags = Flags::ALL.map(Flags::name);
        assert_eq!(named, [&["rte-hash"], &flags[..]].concat());
        for (choice, word) in TableChoice::WORDS {
            if let Ok(flags) = word.parse::<Flags>() {
                let shared = *word != "rte-hash";
                assert_eq!(choice.is_unprotected(), shared && !flags.protects_readers(), "{word}");
            }
        }
    }
}

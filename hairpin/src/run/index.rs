//! Which table each worker gets: one of its own, made on its thread, or its view of one that all share.

#[cfg(feature = "dpdk")]
mod rte;

use crate::config::TableChoice;
use anyhow::Result;
use hairpin_core::flow::Steering;
use hairpin_core::table::{AnyTable, Hasher, Method};
use hairpin_core::worker::Stateless;

/// A worker's table: of the data plane, or DPDK's where that is built in.
#[cfg(not(feature = "dpdk"))]
pub(crate) type WorkerTable = AnyTable;
#[cfg(feature = "dpdk")]
pub(crate) use rte::WorkerTable;

/// A worker's table, or how to make it.
pub(crate) enum Index {
    /// It is there: a view of a table that all workers share, or one that cannot be made on the worker's thread.
    Made(WorkerTable),
    /// A table of its own: for so many entries, hashed so. Made where it is used, so that its memory is near.
    Own(Method, usize, Hasher),
}

impl Index {
    /// Those of `workers` workers, each for `capacity_each` entries.
    ///
    /// # Errors
    /// This build does not have the table, or it could not be made.
    pub(crate) fn of(
        choice: TableChoice,
        workers: usize,
        capacity_each: usize,
        secret: [u64; 4],
    ) -> Result<Vec<Index>> {
        let hasher = Hasher::new(secret);
        match choice {
            TableChoice::Own(method) if method.is_shared() => {
                let views = AnyTable::for_workers(method, workers, capacity_each, hasher);
                Ok(views.into_iter().map(Index::made).collect())
            }
            TableChoice::Own(method) => {
                Ok((0..workers).map(|_| Index::Own(method, capacity_each, hasher.clone())).collect())
            }
            TableChoice::RteHash(name) => {
                Ok(rte_hash(name, workers, capacity_each, secret)?.into_iter().map(Index::Made).collect())
            }
        }
    }

    /// The table itself.
    pub(crate) fn table(self) -> WorkerTable {
        match self {
            Index::Made(table) => table,
            Index::Own(method, capacity, hasher) => own(AnyTable::of(method, capacity, hasher)),
        }
    }

    fn made(table: AnyTable) -> Index {
        Index::Made(own(table))
    }
}

#[cfg(feature = "dpdk")]
use rte::{own, rte_hash};

#[cfg(not(feature = "dpdk"))]
fn own(table: AnyTable) -> WorkerTable {
    table
}

#[cfg(not(feature = "dpdk"))]
fn rte_hash(name: &str, _: usize, _: usize, _: [u64; 4]) -> Result<Vec<WorkerTable>> {
    anyhow::bail!("connection_table \"{name}\" needs a Hairpin built with cargo feature `dpdk`")
}

/// How packets find their backends where connections are not tracked. The secret of the hash is made of the instance's
/// steering key, which outlives processes, so that connections keep their backends across a restart and whatever the
/// number of workers.
pub(crate) fn stateless(choice: TableChoice, steering: &Steering) -> Option<Stateless> {
    let [a, b] = steering.key;
    match choice {
        TableChoice::Own(Method::Stateless) => Some(Stateless::Hash(Hasher::new([a, b, a.rotate_left(32), !b]))),
        TableChoice::Own(Method::Maglev) => Some(Stateless::Maglev),
        TableChoice::Own(_) | TableChoice::RteHash(_) => None,
    }
}

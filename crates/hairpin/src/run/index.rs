//! Which table each worker gets: one of its own, made on its thread, or its view of one that all share.

use crate::config::TableChoice;
use anyhow::Result;
use hairpin_core::flow::Steering;
use hairpin_core::table::{AnyTable, Hasher, Method};
use hairpin_core::worker::Stateless;
#[cfg(feature = "dpdk")]
use {
    anyhow::Context,
    hairpin_dpdk::{EalOptions, Flags, Sharing},
};

/// A worker's table: of the data plane, or DPDK's where that is built in.
#[cfg(not(feature = "dpdk"))]
pub(crate) type WorkerTable = AnyTable;
#[cfg(feature = "dpdk")]
pub(crate) use hairpin_dpdk::WorkerTable;

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

fn own(table: AnyTable) -> WorkerTable {
    #[cfg(feature = "dpdk")]
    let table = WorkerTable::Own(table);
    table
}

/// DPDK's tables by the name of the configuration: one for each worker, or with flags one for all, of which each has a view.
#[cfg(feature = "dpdk")]
fn rte_hash(name: &str, workers: usize, capacity_each: usize, secret: [u64; 4]) -> Result<Vec<WorkerTable>> {
    let eal = super::eal::started(EalOptions::default())?;
    let (flags, seed): (Flags, _) = (name.parse()?, secret[0] as u32);
    // The configuration is taken only with consent to what is unsafe.
    let sharing = if flags.protects_readers() { Sharing::OnlyIfSafe } else { Sharing::EvenIfUnsafe };
    let made = match name {
        "rte-hash" => WorkerTable::alone(&eal, workers, capacity_each, seed),
        _ => WorkerTable::views(&eal, flags, workers, capacity_each, seed, sharing),
    };
    made.with_context(|| format!("cannot make the table {name}"))
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

#[cfg(all(test, feature = "dpdk"))]
mod tests {
    use super::*;
    use crate::config::Word;

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

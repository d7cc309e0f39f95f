//! A balancer's connection table by name: one of ours, or DPDK's rte_hash.

use anyhow::{Result, bail};
use hairpin_core::table::{Hasher, LookupMethod};
use hairpin_tables::{OwnMethod, OwnTable};
#[cfg(feature = "dpdk")]
use {
    anyhow::Context,
    hairpin_dpdk::Eal,
    hairpin_tables::rte_hash::{RteHashFlags, Transactions, UnprotectedSharing},
};

/// A worker's table: one of ours, or DPDK's where that is built in.
#[cfg(not(feature = "dpdk"))]
pub use hairpin_tables::OwnTable as LabTable;
#[cfg(feature = "dpdk")]
pub use hairpin_tables::rte_hash::WorkerTable as LabTable;

/// Which table there is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableChoice {
    /// One of ours.
    Own(OwnMethod),
    /// `rte-hash`: one of DPDK's for each worker.
    #[cfg(feature = "dpdk")]
    Alone,
    /// `rte-hash/<flags>`: one of DPDK's for all workers.
    #[cfg(feature = "dpdk")]
    Shared(RteHashFlags),
}

/// The names of all tables that there are in this build.
pub fn names() -> Vec<&'static str> {
    let own = OwnMethod::ALL.iter().map(|method| method.name());
    #[cfg(feature = "dpdk")]
    let own = own.chain(["rte-hash"]).chain(RteHashFlags::ALL.map(RteHashFlags::name));
    own.collect()
}

impl TableChoice {
    /// The table of this name.
    ///
    /// # Errors
    /// There is none, or not in this build: which there are.
    pub fn named(name: &str) -> Result<TableChoice> {
        if let Ok(method) = name.parse() {
            return Ok(TableChoice::Own(method));
        }
        #[cfg(feature = "dpdk")]
        match name.parse() {
            Ok(_) if name == "rte-hash" => return Ok(TableChoice::Alone),
            Ok(flags) => return Ok(TableChoice::Shared(flags)),
            Err(_) => {}
        }
        #[cfg(not(feature = "dpdk"))]
        if name.starts_with("rte-hash") {
            bail!("table {name:?} needs a build with cargo feature `dpdk`");
        }
        bail!("there is no table {name:?}; there are {}", names().join(", "))
    }

    /// How packets find their backends by themselves, if they do.
    pub fn method(self) -> Option<LookupMethod> {
        match self {
            TableChoice::Own(method) => method.product(),
            #[cfg(feature = "dpdk")]
            TableChoice::Alone | TableChoice::Shared(_) => None,
        }
    }

    /// Whether nothing protects readers from writers. (Where the flags let only one write at a time, workers take turns.)
    fn is_unprotected(self) -> bool {
        match self {
            TableChoice::Own(_) => false,
            #[cfg(feature = "dpdk")]
            TableChoice::Alone => false,
            #[cfg(feature = "dpdk")]
            TableChoice::Shared(flags) => !flags.protects_readers(),
        }
    }

    /// Why this machine cannot do it for `workers` workers, for people.
    pub fn obstacle(self, workers: u16) -> Option<String> {
        if self.is_unprotected() && workers > 1 {
            return Some("on several cores it corrupts its memory: nothing protects readers from writers".to_owned());
        }
        #[cfg(feature = "dpdk")]
        if let TableChoice::Shared(flags) = self
            && flags.is_transactional()
        {
            let found = Transactions::probe();
            return (found != Transactions::Work).then(|| found.to_string());
        }
        None
    }

    /// The tables of `workers` workers, each for `capacity_each` connections in both directions.
    ///
    /// # Errors
    /// DPDK could not make it.
    pub fn tables(
        self,
        workers: usize,
        capacity_each: usize,
        seeds: [u64; 4],
        eal: &MaybeEal,
    ) -> Result<Vec<LabTable>> {
        let entries = capacity_each.saturating_mul(2);
        #[cfg(feature = "dpdk")]
        let (eal, seed) = (|| eal.as_ref().context("DPDK has not been started"), seeds[0] as u32);
        #[cfg(not(feature = "dpdk"))]
        let _ = eal;
        match self {
            TableChoice::Own(method) => {
                let tables = OwnTable::for_workers(method, workers, entries, Hasher::new(seeds));
                #[cfg(feature = "dpdk")]
                let tables = tables.into_iter().map(LabTable::Own).collect();
                Ok(tables)
            }
            #[cfg(feature = "dpdk")]
            TableChoice::Alone => Ok(LabTable::alone(eal()?, workers, entries, seed)?),
            #[cfg(feature = "dpdk")]
            TableChoice::Shared(flags) => {
                // A single worker needs no protection from others, and takes no turns.
                let sharing =
                    if workers > 1 { UnprotectedSharing::OnlyIfSafe } else { UnprotectedSharing::EvenIfUnsafe };
                Ok(LabTable::views(eal()?, flags, workers, entries, seed, sharing)?)
            }
        }
    }
}

/// DPDK, where it is built in and started.
#[cfg(feature = "dpdk")]
pub type MaybeEal = Option<Eal>;
/// DPDK, which is not built in.
#[cfg(not(feature = "dpdk"))]
pub type MaybeEal = Option<std::convert::Infallible>;

//! A balancer's connection table by name: the data plane's own, or DPDK's rte_hash.

use anyhow::{Result, bail};
use hairpin_core::flow::FlowKey;
use hairpin_core::table::{AnyTable, Entries, Full, Hasher, Lookup, Method, Table};
#[cfg(feature = "dpdk")]
use {
    anyhow::Context,
    hairpin_core::table::sharded::Sharded,
    hairpin_dpdk::{Eal, Flags, RteHash, SharedRteHash, Sharing},
};

/// A worker's table.
pub enum LabTable {
    /// The data plane's.
    Own(AnyTable),
    /// DPDK's, this worker's alone.
    #[cfg(feature = "dpdk")]
    Alone(RteHash<FlowKey>),
    /// A view of DPDK's for all workers.
    #[cfg(feature = "dpdk")]
    View(Sharded<SharedRteHash<FlowKey>>),
}

/// Which table there is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// One of the data plane's.
    Own(Method),
    /// `rte-hash`: one of DPDK's for each worker.
    #[cfg(feature = "dpdk")]
    Alone,
    /// `rte-hash/<flags>`: one of DPDK's for all workers.
    #[cfg(feature = "dpdk")]
    Shared(Flags),
}

/// The names of all tables that there are in this build.
pub fn names() -> Vec<&'static str> {
    let own = Method::ALL.iter().map(|method| method.name());
    #[cfg(feature = "dpdk")]
    let own = own.chain(["rte-hash"]).chain(Flags::ALL.map(Flags::name));
    own.collect()
}

impl Choice {
    /// The table of this name.
    ///
    /// # Errors
    /// There is none, or not in this build: which there are.
    pub fn named(name: &str) -> Result<Choice> {
        if let Ok(method) = name.parse() {
            return Ok(Choice::Own(method));
        }
        #[cfg(feature = "dpdk")]
        match name.parse() {
            Ok(_) if name == "rte-hash" => return Ok(Choice::Alone),
            Ok(flags) => return Ok(Choice::Shared(flags)),
            Err(_) => {}
        }
        #[cfg(not(feature = "dpdk"))]
        if name.starts_with("rte-hash") {
            bail!("table {name:?} needs a build with cargo feature `dpdk`");
        }
        bail!("there is no table {name:?}; there are {}", names().join(", "))
    }

    /// How packets find their backends by themselves, if they do.
    pub fn method(self) -> Option<Method> {
        match self {
            Choice::Own(method) => Some(method),
            #[cfg(feature = "dpdk")]
            Choice::Alone | Choice::Shared(_) => None,
        }
    }

    /// Whether several workers with it is an accident waiting to happen: its readers are not protected from writers.
    pub fn is_unsafe_shared(self) -> bool {
        match self {
            Choice::Own(_) => false,
            #[cfg(feature = "dpdk")]
            Choice::Alone => false,
            #[cfg(feature = "dpdk")]
            Choice::Shared(flags) => !(flags.protects_readers() && flags.protects_writers()),
        }
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
        let _ = eal;
        match self {
            Choice::Own(method) => {
                let tables = AnyTable::for_workers(method, workers, entries, Hasher::new(seeds));
                Ok(tables.into_iter().map(LabTable::Own).collect())
            }
            #[cfg(feature = "dpdk")]
            Choice::Alone => (0..workers)
                .map(|_| {
                    let eal = eal.as_ref().context("DPDK has not been started")?;
                    Ok(LabTable::Alone(RteHash::new(eal, entries, Flags::None, seeds[0] as u32)?))
                })
                .collect(),
            #[cfg(feature = "dpdk")]
            Choice::Shared(flags) => {
                let eal = eal.as_ref().context("DPDK has not been started")?;
                let table = RteHash::new(eal, entries.saturating_mul(workers), flags, seeds[0] as u32)?;
                let safe = flags.protects_readers() && flags.protects_writers();
                let shared = table.share(if safe { Sharing::OnlyIfSafe } else { Sharing::EvenIfUnsafe })?;
                Ok(Sharded::split(shared, workers).into_iter().map(LabTable::View).collect())
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

/// The same expression for whichever table it is.
macro_rules! each {
    ($any:expr, $table:ident => $call:expr) => {
        match $any {
            LabTable::Own($table) => $call,
            #[cfg(feature = "dpdk")]
            LabTable::Alone($table) => $call,
            #[cfg(feature = "dpdk")]
            LabTable::View($table) => $call,
        }
    };
}

impl Lookup<FlowKey> for LabTable {
    #[inline]
    fn find<E: Entries<FlowKey>>(&self, key: &FlowKey, entries: &E) -> Option<u32> {
        each!(self, table => table.find(key, entries))
    }

    #[inline]
    fn find_burst<E: Entries<FlowKey>>(&self, keys: &[FlowKey], entries: &E, out: &mut [Option<u32>]) {
        each!(self, table => table.find_burst(keys, entries, out))
    }
}

impl Table<FlowKey> for LabTable {
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

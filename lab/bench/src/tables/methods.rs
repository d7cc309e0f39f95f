//! The methods by name, and how each one's tables are made.

use super::keys::BenchKey;
use super::limit::{Limit, ReadDepth};
use super::own::{IndexedTable, SpinlockedTable, UntrackedMethod, hasher};
#[cfg(feature = "libcuckoo")]
use super::peers::libcuckoo::Libcuckoo;
use super::peers::rust_maps::{Dashmap, Hashbrown};
use super::shared::IndexWithStore;
use super::subject::{OwnedTable, PerCore, TablePerThread, TableSize, TableSubject};
use anyhow::{Context, Result, bail};
use hairpin_core::flow::Endpoint;
use hairpin_core::table::concurrent::Concurrent;
use hairpin_core::table::cuckoo::CuckooPlusPlus;
use hairpin_core::table::stateless::{Maglev, Stateless};
use hairpin_core::table::{AnyTable, LookupMethod, Table};
use hairpin_tables::inline::Inline;
use hairpin_tables::two_choice::{self, TwoChoice};
use std::net::{IpAddr, Ipv4Addr};

/// The load that a cuckoo table promises to reach, in percent of its slots.
const CUCKOO_PERCENT: usize = 95;
/// Backends of the methods that track nothing.
const BACKENDS: u32 = 16;

/// The limit by memory for lookups that find nothing.
pub(super) const ONE_LINE: &str = "limit/one-line";
/// The limit by memory for lookups that find an entry.
pub(super) const TWO_LINES: &str = "limit/two-lines";

/// `concurrent`, not shared: a whole one for each thread.
pub(super) const COPIES: &str = "copies/concurrent";

type MakeSubject = Box<dyn Fn(&TableSize, &[usize]) -> Result<Box<dyn TableSubject>>>;

/// A method under measurement.
pub(super) struct Candidate {
    /// Its name; of private tables `per-core/` and what they are.
    pub name: String,
    /// Tables of the whole size for each number of threads.
    tables: fn(usize) -> usize,
    make: MakeSubject,
}

impl Candidate {
    /// Empty tables of this size, private ones for each of these numbers of threads.
    ///
    /// # Errors
    /// When the method cannot be had on this machine.
    pub(super) fn make(&self, size: &TableSize, threads: &[usize]) -> Result<Box<dyn TableSubject>> {
        (self.make)(size, threads)
    }

    /// As many tables of the whole size as this is, for each of these numbers of threads.
    pub(super) fn tables(&self, threads: &[usize]) -> usize {
        threads.iter().map(|&threads| (self.tables)(threads)).sum::<usize>().max(1)
    }

    /// Whether `name` means this one: its name, or that without `per-core/`.
    fn is_called(&self, name: &str) -> bool {
        self.name == name || self.name.strip_prefix("per-core/") == Some(name)
    }
}

/// The name of our default method here.
pub(super) fn default_name() -> String {
    format!("per-core/{}", LookupMethod::DEFAULT)
}

/// Private tables whose size gives them `slots` slots together.
pub(super) fn private<O: OwnedTable + 'static>(
    name: &str,
    slots: fn(&TableSize) -> Option<usize>,
    make: impl Fn(&TableSize) -> Result<O> + 'static,
) -> Candidate {
    let make: MakeSubject =
        Box::new(move |size, threads| Ok(Box::new(PerCore::new(threads, size, slots(size), &make)?)));
    Candidate { name: format!("per-core/{name}"), tables: |_| 1, make }
}

/// One table for all threads.
pub(super) fn shared<S: TableSubject + 'static>(
    name: &str,
    make: impl Fn(&TableSize) -> Result<S> + 'static,
) -> Candidate {
    let make: MakeSubject = Box::new(move |size, _| Ok(Box::new(make(size)?)));
    Candidate { name: name.to_owned(), tables: |_| 0, make }
}

/// The entries that ours are made for: as many as a cuckoo table with so many slots promises to take.
fn capacity(size: &TableSize) -> usize {
    size.slots * CUCKOO_PERCENT / 100
}

/// Two-choice tables are made for as many entries, and have more slots for them; filled to the brim, they get as many
/// slots as the others.
fn two_choice_capacity(size: &TableSize) -> usize {
    if size.brim { size.slots * two_choice::LOAD_PERCENT / 100 } else { capacity(size) }
}

fn two_choice_slots(size: &TableSize) -> usize {
    two_choice_capacity(size) * 100 / two_choice::LOAD_PERCENT
}

/// One of ours by itself.
fn single<T: Table<BenchKey> + Send + 'static>(name: &str, make: fn(usize) -> T) -> Candidate {
    private(name, |size| Some(size.slots), move |size| Ok(IndexedTable::new(make(capacity(size)), size)))
}

/// One of ours that threads share.
fn concurrent(size: &TableSize) -> Result<IndexWithStore<Concurrent>> {
    Ok(IndexWithStore::new(Concurrent::new(capacity(size), hasher()), size))
}

/// A table that threads share, each with a handle of its own.
fn copies<S: TableSubject + 'static>(name: &str, make: fn(&TableSize) -> Result<S>) -> Candidate {
    let make: MakeSubject = Box::new(move |size, threads| Ok(Box::new(TablePerThread::new(threads, || make(size))?)));
    Candidate { name: name.to_owned(), tables: |threads| threads, make }
}

/// Ours, in the order of the papers.
fn own() -> Vec<Candidate> {
    vec![
        shared("stateless", |_| Ok(UntrackedMethod(Stateless::new(BACKENDS, hasher())))),
        shared("maglev", |_| {
            let address = |i: u32| IpAddr::from(Ipv4Addr::from_bits(0x0a00_0001 + i));
            let backends: Vec<_> = (0..BACKENDS).map(|i| (Endpoint::new(address(i), 80), 1)).collect();
            Ok(UntrackedMethod(Maglev::new(&backends, hasher()).context("no backend has a weight")?))
        }),
        shared("global-lock", |size| {
            let table = AnyTable::new(capacity(size), hasher());
            Ok(SpinlockedTable::new(IndexedTable::new(table, size), size.slots))
        }),
        private(
            "two-choice",
            |size| Some(two_choice_slots(size)),
            |size| Ok(IndexedTable::new(TwoChoice::new(two_choice_capacity(size), hasher()), size)),
        ),
        shared(ONE_LINE, |size| Limit::new(size, ReadDepth::Line)),
        shared(TWO_LINES, |size| Limit::new(size, ReadDepth::Entry)),
        single("cuckoo++", |capacity| CuckooPlusPlus::new(capacity, hasher())),
        private("inline", |size| Some(size.slots), |size| Ok(Inline::<BenchKey, u64>::new(capacity(size), hasher()))),
        shared("concurrent", concurrent),
        copies(COPIES, concurrent),
    ]
}

/// Others', as far as this program was built with them.
fn peers(unsafe_too: bool) -> Vec<Candidate> {
    let mut peers = Vec::new();
    #[cfg(feature = "dpdk")]
    peers.extend(super::peers::rte_hash::candidates(unsafe_too));
    #[cfg(not(feature = "dpdk"))]
    let _ = unsafe_too;
    #[cfg(feature = "libcuckoo")]
    peers.push(shared("libcuckoo", |size| Libcuckoo::new(size.slots)));
    peers.push(shared("dashmap", |size| Ok(Dashmap::new(size))));
    peers.push(private("hashbrown", |_| None, |size| Ok(Hashbrown::new(size))));
    peers
}

/// Peers that this program was built without, and how to get them.
pub(super) fn missing() -> Vec<&'static str> {
    let mut missing = Vec::new();
    if cfg!(not(feature = "dpdk")) {
        missing.push("rte-hash (--features dpdk)");
    }
    if cfg!(not(feature = "libcuckoo")) {
        missing.push("libcuckoo (--features libcuckoo)");
    }
    missing
}

/// All methods, or those of these names.
///
/// # Errors
/// When a name means none.
pub(super) fn candidates(names: &[String], unsafe_too: bool) -> Result<Vec<Candidate>> {
    let mut all = own();
    all.extend(peers(unsafe_too));
    if let Some(unknown) = names.iter().find(|name| !all.iter().any(|candidate| candidate.is_called(name))) {
        let known: Vec<&str> = all.iter().map(|candidate| &*candidate.name).collect();
        bail!("no method \"{unknown}\"; there are {}", known.join(", "));
    }
    all.retain(|candidate| names.is_empty() || names.iter().any(|name| candidate.is_called(name)));
    Ok(all)
}

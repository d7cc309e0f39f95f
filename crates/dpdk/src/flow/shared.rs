//! State that the engine's thread shares with workers and with threads that query rules: counters, as last read.

use super::request::RequestAnswer;
use super::statistics::EngineStatistics;
use hairpin_core::engine::{Completion, Counters};
use hairpin_core::flow::FlowKey;
use hairpin_core::time::Time;
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A rule's counters, as the thread last read them.
#[derive(Debug, Default)]
struct CounterCell {
    generation: AtomicU32,
    packets: AtomicU64,
    bytes: AtomicU64,
    /// Nanoseconds; 0: never.
    last_seen: AtomicU64,
}

/// The traffic that all rules of one slot have forwarded ([`Rule::total`](hairpin_core::engine::Rule::total)).
#[derive(Debug, Default)]
struct SlotTotal {
    packets: AtomicU64,
    bytes: AtomicU64,
}

/// How often an engine has taken everything out of its ports, its own rules and others': handles to rules from before
/// that mean nothing any more. A thread that uses such handles checks first and keeps the lock meanwhile.
#[derive(Clone, Debug, Default)]
pub(super) struct Flushes(Arc<Mutex<u64>>);

impl Flushes {
    pub(super) fn lock(&self) -> MutexGuard<'_, u64> {
        lock(&self.0)
    }
}

pub(super) struct SharedRules {
    pub(super) stop: AtomicBool,
    pub(super) statistics: Mutex<EngineStatistics>,
    cells: Box<[CounterCell]>,
    totals: Box<[SlotTotal]>,
    pub(super) flushes: Flushes,
    /// The place of each installed rule's counters. Only the engine's thread and queries take the lock; no worker.
    places: Mutex<HashMap<FlowKey, (u32, u32)>>,
}

impl fmt::Debug for SharedRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("statistics", &self.statistics).finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SharedRules {
    pub(super) fn new(rules_max: u32, totals: u32) -> SharedRules {
        SharedRules {
            stop: AtomicBool::new(false),
            statistics: Mutex::default(),
            cells: (0..rules_max).map(|_| CounterCell::default()).collect(),
            totals: (0..totals).map(|_| SlotTotal::default()).collect(),
            flushes: Flushes::default(),
            places: Mutex::new(HashMap::new()),
        }
    }

    pub(super) fn statistics(&self) -> MutexGuard<'_, EngineStatistics> {
        lock(&self.statistics)
    }

    /// The thread has read a rule's counters.
    pub(super) fn counted(&self, (place, generation): (u32, u32), counters: &Counters) {
        let Some(cell) = self.cells.get(place as usize) else { return };
        cell.packets.store(counters.packets, Ordering::Relaxed);
        cell.bytes.store(counters.bytes, Ordering::Relaxed);
        cell.last_seen.store(counters.last_seen.map_or(0, |seen| seen.as_nanos().max(1)), Ordering::Relaxed);
        cell.generation.store(generation, Ordering::Release);
    }

    /// A rule of a slot has forwarded so much more. Only the engine's thread adds.
    pub(super) fn forwarded(&self, total: u32, packets: u64, bytes: u64) {
        if let Some(total) = self.totals.get(total as usize) {
            total.packets.fetch_add(packets, Ordering::Relaxed);
            total.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// The thread tells a worker something.
    pub(super) fn told(&self, told: &RequestAnswer) {
        match told.completion {
            Completion::Installed(_) => drop(lock(&self.places).insert(told.key, told.place)),
            Completion::Removed(..) => drop(lock(&self.places).remove(&told.key)),
            Completion::Rejected(..) => {}
        }
    }

    /// The device has no rule any more.
    pub(super) fn forget(&self) {
        lock(&self.places).clear();
    }

    /// The counters of the rule that was the `generation`th in its place; `None` if it is not there any more.
    pub(super) fn counters(&self, (place, generation): (u32, u32)) -> Option<Counters> {
        let cell = self.cells.get(place as usize)?;
        if cell.generation.load(Ordering::Acquire) != generation {
            return None;
        }
        let last_seen = cell.last_seen.load(Ordering::Relaxed);
        Some(Counters {
            packets: cell.packets.load(Ordering::Relaxed),
            bytes: cell.bytes.load(Ordering::Relaxed),
            last_seen: (last_seen != 0).then(|| Time::from_nanos(last_seen)),
        })
    }
}

/// Queries an engine's rules, from any thread. Clones query the same engine.
#[derive(Clone, Debug)]
pub struct OffloadReader(pub(super) Arc<SharedRules>);

impl OffloadReader {
    /// The engine's counters.
    pub fn statistics(&self) -> EngineStatistics {
        *self.0.statistics()
    }

    /// Rules that workers were told of and that have not been taken away: IPv4, IPv6.
    pub fn rules(&self) -> [u64; 2] {
        let places = lock(&self.0.places);
        let ipv4 = places.keys().filter(|key| key.is_ipv4()).count() as u64;
        [ipv4, places.len() as u64 - ipv4]
    }

    /// A rule's counters, up to half a second old, or as long as the device takes to tell those of all rules.
    pub fn counters(&self, key: &FlowKey) -> Option<Counters> {
        let place = *lock(&self.0.places).get(key)?;
        self.0.counters(place)
    }

    /// Packets and bytes that all rules of each slot have forwarded since the engine began.
    pub fn totals(&self) -> Vec<(u64, u64)> {
        let totals = self.0.totals.iter();
        totals.map(|total| (total.packets.load(Ordering::Relaxed), total.bytes.load(Ordering::Relaxed))).collect()
    }
}

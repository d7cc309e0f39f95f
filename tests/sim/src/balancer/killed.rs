//! A process that is killed, and the next one, which takes over the memory that it leaves.

use super::{AfterPackets, BalancerHost, BalancerHostOptions};
use crate::carrier::Carrier;
use crate::engine::SetUpOptions;
use hairpin_core::balance::Loads;
use hairpin_core::config::Snapshot;
use hairpin_core::engine::FlowEngine;
use hairpin_core::flow::{FlowKey, Steering};
use hairpin_core::l4::connection::Connection;
use hairpin_core::l7::cookie::Cookies;
use hairpin_core::l7::splice::SplicedMemory;
use hairpin_core::table::region::Array;
use hairpin_core::table::slab::{Slot, boxed};
use hairpin_core::table::{AnyTable, Hasher};
use hairpin_core::time::{Duration, Time};
use hairpin_core::worker::{Drop, Known, Occupancy, Worker, WorkerOptions};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The options of a worker: the balancer's, its snapshot, its steering, its loads; memory and seeds.
pub(super) fn worker_options(
    (options, snapshot, steering, loads): (&BalancerHostOptions, Arc<Snapshot>, Steering, Loads),
    memory: Array<Slot<Connection>>,
    splices: SplicedMemory,
    seeds: [u64; 4],
) -> WorkerOptions<AfterPackets> {
    let table = AnyTable::new(2 * memory.len(), Hasher::new(seeds));
    let policy = AfterPackets(options.offload_after);
    WorkerOptions {
        steering,
        loads,
        caps: match &options.card {
            None => options.engine.caps,
            Some(profile) => profile.caps(),
        },
        // What a process draws at its start may differ; the keys of its cookies may not.
        cookies: Cookies::new([[steering.key[0], 1], [steering.key[1], 2]]),
        splices,
        ..WorkerOptions::new(snapshot, memory, table, policy, seeds)
    }
}

/// How long a process takes to begin, once it has adopted the connections, at most.
const STARTS_WITHIN: Duration = Duration::from_millis(20);
/// No process is killed after that.
const KILLS_END: Time = Time::from_nanos(300_000_000_000);

impl BalancerHost {
    /// Draws when the process is killed, while there are connections. A process has to last a second before what it was left
    /// can time out, so not for ever: a backend's RST may be lost.
    pub(super) fn draw_end(&mut self, now: Time) {
        let Some(average) = self.options.process_lasts.filter(|_| self.options.card.is_none()) else { return };
        let is_busy = self.event_loop.worker.splices().0 > 0 || self.event_loop.worker.connections().next().is_some();
        if self.killed_at.is_none() && is_busy && now < KILLS_END {
            let lasts = self.fates.u64(..2 * average.as_nanos() as u64);
            self.killed_at = Some(now + Duration::from_nanos(lasts));
        }
    }

    /// The process is killed between two operations. Frames in its queues and answers of the engine are lost; of what was asked
    /// of the engine some was done.
    pub(super) fn die(&mut self, now: Time) {
        self.killed_at = None;
        let Carrier::Kernel(engine) = &mut self.event_loop.engine else { return };
        self.killed += 1;
        engine.lose_process(now);
        self.arrived.clear();
        (self.coalesce_at, self.iterate_at) = (None, None);
        self.event_loop.io.waiting.clear();
        self.event_loop.discard();
        self.successor = Some(Successor::Starts(now + self.pause(|set_up| set_up.away_max)));
    }

    /// Draws how long something lasts, at most as long as the parameters of set-up say; without set-up no time at all.
    fn pause(&mut self, most: impl Fn(&SetUpOptions) -> Duration) -> Duration {
        let most = self.options.set_up.as_ref().map_or(0, |set_up| most(set_up).as_nanos() as u64);
        Duration::from_nanos(if most == 0 { 0 } else { self.fates.u64(..most) })
    }

    /// The next process takes its steps as they come due.
    pub(super) fn succeed(&mut self, now: Time) {
        if matches!(&self.successor, Some(Successor::Starts(due)) if *due <= now) {
            let held = self.adopt(now);
            let due = now + self.pause(|_| STARTS_WITHIN);
            self.successor = Some(Successor::Serves(due, held));
        }
        match self.successor.take() {
            Some(Successor::Serves(due, held)) if due <= now => self.serve(now, &held),
            successor => self.successor = successor,
        }
    }

    /// The next process adopts the connections; the rules that it has found.
    fn adopt(&mut self, now: Time) -> BTreeSet<FlowKey> {
        let held: BTreeSet<FlowKey> = self.event_loop.engine.keys().into_iter().collect();
        let seeds = [(); 4].map(|()| self.fates.u64(..));
        let making = |loads: &Loads| (&self.options, self.snapshot.clone(), self.steering, loads.clone());
        let spare = worker_options(making(&Loads::default()), boxed(1), SplicedMemory::own(0), seeds);
        let old = std::mem::replace(&mut self.event_loop.worker, Worker::new(spare));
        let impossible = old.statistics().drops[Drop::Invariant as usize];
        let (memory, splices) = old.into_memory();
        (self.loads, self.occupancy) = (Loads::default(), Occupancy::default());
        self.cells.iter().for_each(|cell| cell.store(0, Ordering::Relaxed));
        let mut options = worker_options(making(&self.loads), memory, splices, seeds);
        (options.known, options.occupancy) = (Known::new(self.cells), self.occupancy.clone());
        let (mut worker, adopted) = Worker::adopt(options, now, &|key| held.contains(key));
        let lost = adopted.invalid + adopted.misplaced + adopted.without_service + adopted.duplicates;
        let spliced = adopted.splices;
        if lost + spliced.invalid + spliced.interrupted + spliced.misplaced + spliced.without_service + impossible > 0 {
            self.failures.push(format!("{impossible} cases that cannot happen, then {adopted:?}"));
        }
        if let Some(set_up) = self.event_loop.engine.sets_up() {
            worker.set_up_by(set_up);
        }
        self.event_loop.worker = worker;
        held
    }

    /// The next process brings the engine in line and serves: `reconcile` of crates/hairpin/src/run/reconcile.rs. The rules in
    /// `held` were there when it adopted the connections; more may be there now.
    fn serve(&mut self, now: Time, held: &BTreeSet<FlowKey>) {
        let Carrier::Kernel(engine) = &mut self.event_loop.engine else { return };
        self.wakes_at = now;
        let worker = &mut self.event_loop.worker;
        let owned: BTreeSet<FlowKey> = worker.rules_known().collect();
        let mut orphans: BTreeSet<FlowKey> = held.difference(&owned).copied().collect();
        let mut pairs = Vec::new();
        if !orphans.is_empty() {
            let again: BTreeSet<FlowKey> = engine.keys().into_iter().filter(|key| !owned.contains(key)).collect();
            let (found, rest) = engine.pairs(&again);
            orphans.retain(|key| rest.contains(key));
            pairs = found;
        }
        engine.take_away(&orphans);
        let reports = engine.serve(pairs.len() as u64);
        pairs.iter().for_each(|set_up| worker.adopt_set_up(now, set_up));
        reports.iter().for_each(|report| worker.take_report(now, report));
    }
}

/// How far a process that follows another one has come.
pub(super) enum Successor {
    /// It starts then.
    Starts(Time),
    /// It has adopted the connections, when the engine held these rules, and serves from then on.
    Serves(Time, BTreeSet<FlowKey>),
}

impl Successor {
    /// When it takes its next step.
    pub(super) fn due(&self) -> Time {
        match self {
            Successor::Starts(due) | Successor::Serves(due, _) => *due,
        }
    }
}

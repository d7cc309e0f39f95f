//! A process that is killed, and the next one, which takes over the memory that it leaves.

use super::{AfterPackets, BalancerHost, BalancerHostOptions};
use crate::carrier::Carrier;
use hairpin_core::balance::Loads;
use hairpin_core::config::Snapshot;
use hairpin_core::flow::{FlowKey, Steering};
use hairpin_core::l4::connection::Connection;
use hairpin_core::l7::cookie::Cookies;
use hairpin_core::l7::splice::SplicedMemory;
use hairpin_core::table::region::Array;
use hairpin_core::table::slab::{Slot, boxed};
use hairpin_core::table::{AnyTable, Hasher};
use hairpin_core::time::{Duration, Time};
use hairpin_core::worker::{Drop, Worker, WorkerOptions};
use std::collections::BTreeSet;
use std::sync::Arc;

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

    /// The process is killed between two operations, and the next one takes over. Frames in its queues and answers of the
    /// engine are lost; of what was asked of the engine some was done.
    pub(super) fn restart(&mut self, now: Time) {
        self.killed_at = None;
        let Carrier::Kernel(engine) = &mut self.event_loop.engine else { return };
        self.killed += 1;
        engine.lose_process();
        let held: BTreeSet<FlowKey> = engine.keys().into_iter().collect();
        self.arrived.clear();
        (self.coalesce_at, self.iterate_at) = (None, None);
        self.event_loop.io.waiting.clear();
        self.event_loop.discard();
        let seeds = [(); 4].map(|()| self.fates.u64(..));
        let loads = Loads::default();
        let making = |loads: &Loads| (&self.options, self.snapshot.clone(), self.steering, loads.clone());
        let spare = worker_options(making(&loads), boxed(1), SplicedMemory::own(0), seeds);
        let old = std::mem::replace(&mut self.event_loop.worker, Worker::new(spare));
        let impossible = old.statistics().drops[Drop::Invariant as usize];
        let (memory, splices) = old.into_memory();
        self.loads = Loads::default();
        let options = worker_options(making(&self.loads), memory, splices, seeds);
        let (worker, adopted) = Worker::adopt(options, now, &|key| held.contains(key));
        let lost = adopted.invalid + adopted.misplaced + adopted.without_service + adopted.duplicates;
        let spliced = adopted.splices;
        if lost + spliced.invalid + spliced.interrupted + spliced.misplaced + spliced.without_service + impossible > 0 {
            self.failures.push(format!("{impossible} cases that cannot happen, then {adopted:?}"));
        }
        let known: BTreeSet<FlowKey> = worker.rules_known().collect();
        if let Carrier::Kernel(engine) = &mut self.event_loop.engine {
            engine.keep_only(&known);
        }
        self.event_loop.worker = worker;
    }
}

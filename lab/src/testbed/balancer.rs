//! Hairpin's worker as a device under test: one service for TCP and UDP and either family, some backends. What it hands
//! over to a card, if there is one, is in [`super::offload`].
//!
//! A TCP packet of no known connection that is no SYN is taken for one of an established connection and gets a backend by
//! Maglev's table: recordings begin in the middle, and KTH 2022's balancer asks for no handshake either. SYNs and
//! datagrams get theirs in turn (round robin), but where every packet finds its backend by itself.

use super::table::LabTable;
use crate::traffic::flows::{BACKEND_PORT, BACKENDS, SERVICE, SERVICE_PORT, endpoint};
use hairpin_core::balance::{EffectiveWeights, Loads};
use hairpin_core::config::{Algorithm, Backend, Pool, Service, ServiceState, Snapshot, UnknownPacket};
use hairpin_core::engine::EngineCaps;
use hairpin_core::flow::{Protocol, Steering};
use hairpin_core::frame::{Batch, Egress, Frame, FrameIo};
use hairpin_core::l4::connection::Connection;
use hairpin_core::offload::{Never, OffloadPolicy};
use hairpin_core::table::slab::{Slot, boxed};
use hairpin_core::table::{Hasher, Method};
use hairpin_core::time::{Duration, Time};
use hairpin_core::wire::Malformed;
use hairpin_core::worker::{Drop, Occupancy, OffloadStatistics, Stateless, Worker, WorkerOptions};
use std::sync::{Arc, Mutex, PoisonError};

/// Backends of the service at most.
pub const BACKENDS_MAX: u16 = 1024;
/// Connections of a worker at least.
const CONNECTIONS_MIN: usize = 64;
/// Turns between two looks at timeouts.
const TURNS: u32 = 64;

/// A worker, and what is counted beside it.
pub struct Balancer<P = Never> {
    worker: Worker<P, LabTable>,
    turns: u32,
}

/// What all workers of a balancer have in common.
#[derive(Clone)]
pub struct BalancerOptions {
    /// Backends, 1 to [`BACKENDS_MAX`].
    pub backends: u16,
    /// Connections of each worker.
    pub connections_each: usize,
    /// How packets find their backends by themselves, if they do.
    pub method: Option<Method>,
    /// How connections are spread over workers.
    pub steering: Steering,
    /// Seeds of hashes and draws.
    pub seeds: [u64; 4],
}

impl BalancerOptions {
    /// Connections of each worker, as there will be.
    pub fn connections(&self) -> usize {
        self.connections_each.max(CONNECTIONS_MIN)
    }

    /// How packets find their backends by themselves, if they do.
    fn stateless(&self) -> Option<Stateless> {
        match self.method {
            Some(Method::Stateless) => Some(Stateless::Hash(Hasher::new(self.seeds))),
            Some(Method::Maglev) => Some(Stateless::Maglev),
            _ => None,
        }
    }

    /// The services: TCP and UDP of both families, at the same address and port.
    fn snapshot(&self) -> Snapshot {
        let algorithm = if self.method == Some(Method::Maglev) { Algorithm::Maglev } else { Algorithm::RoundRobin };
        let count = self.backends.clamp(1, BACKENDS_MAX);
        let kinds = [(Protocol::Tcp, false), (Protocol::Udp, false), (Protocol::Tcp, true), (Protocol::Udp, true)];
        let services = kinds.iter().enumerate().map(|(place, &(protocol, ipv6))| {
            let backends = (0..count).map(|number| Backend {
                number: place as u16 * BACKENDS_MAX + number,
                name: format!("backend-{place}-{number}").into(),
                endpoint: endpoint(BACKENDS + u32::from(number), BACKEND_PORT, ipv6),
                weight: 100,
                state: hairpin_core::config::BackendState::Enabled,
            });
            Service {
                state: ServiceState::Active,
                name: format!("lab-{place}").into(),
                endpoint: endpoint(SERVICE, SERVICE_PORT, ipv6),
                protocol,
                algorithm,
                unknown: UnknownPacket::PickUp,
                backends: backends.collect(),
                ..Service::vacant()
            }
        });
        let pool =
            Pool { addresses: Box::default(), port_first: 1024, port_last: 65_535, time_wait: Duration::from_secs(60) };
        Snapshot::new(services.collect(), pool)
    }
}

/// The workers of a balancer, with `tables` as many as there are.
pub fn workers(options: &BalancerOptions, tables: Vec<LabTable>) -> Vec<Balancer> {
    let workers = with_engine(options, tables, || Never, EngineCaps::NONE).into_iter();
    workers.map(Balancer::new).collect()
}

/// The bare workers of a balancer, with a policy and what the engine behind them can do.
pub fn with_engine<P: OffloadPolicy>(
    options: &BalancerOptions,
    tables: Vec<LabTable>,
    policy: impl Fn() -> P,
    caps: EngineCaps,
) -> Vec<Worker<P, LabTable>> {
    let snapshot = Arc::new(options.snapshot());
    let (loads, effective_weights, occupancy) = (Loads::default(), EffectiveWeights::new(), Occupancy::default());
    let worker = |(number, table)| {
        Worker::new(WorkerOptions {
            steering: options.steering,
            worker: number as u16,
            stateless: options.stateless(),
            loads: loads.clone(),
            effective_weights: effective_weights.clone(),
            occupancy: occupancy.clone(),
            caps,
            splices_max: 1,
            ..WorkerOptions::new(snapshot.clone(), memory(options.connections()), table, policy(), options.seeds)
        })
    };
    tables.into_iter().enumerate().map(worker).collect()
}

/// A worker is needed no more: the next one of its size uses its memory.
pub fn retire<P: OffloadPolicy>(worker: Worker<P, LabTable>) {
    RETIRED.lock().unwrap_or_else(PoisonError::into_inner).push(worker.into_memory());
}

/// Memory of workers that have been retired: it cannot be given back to the system, so the next worker of that size uses
/// it, and a long row of trials takes no more than one of each size.
static RETIRED: Mutex<Vec<&'static mut [Slot<Connection>]>> = Mutex::new(Vec::new());

/// Memory for so many connections.
fn memory(connections: usize) -> &'static mut [Slot<Connection>] {
    let mut retired = RETIRED.lock().unwrap_or_else(PoisonError::into_inner);
    match retired.iter().position(|memory| memory.len() == connections) {
        Some(place) => retired.swap_remove(place),
        None => boxed(connections),
    }
}

impl<P: OffloadPolicy> Balancer<P> {
    /// A worker that has done nothing.
    pub fn new(worker: Worker<P, LabTable>) -> Balancer<P> {
        Balancer { turns: 0, worker }
    }

    /// Handles a burst. Frames that are not the service's are dropped: there is no kernel to give them to. Whether there was
    /// anything to do.
    #[inline]
    pub fn turn<IO: FrameIo>(
        &mut self,
        now: u64,
        io: &mut IO,
        rx: &mut Batch<IO::Frame>,
        tx: &mut Batch<IO::Frame>,
    ) -> bool {
        let now = Time::from_nanos(now);
        let mut busy = !rx.is_empty();
        if busy {
            let before = self.worker.statistics().to_kernel;
            self.worker.handle_batch(now, io, rx, tx);
            if self.worker.statistics().to_kernel != before {
                tx.retain(|frame| frame.meta().egress != Egress::Kernel);
            }
        }
        self.turns = self.turns.wrapping_add(1);
        if self.turns.is_multiple_of(TURNS) && self.worker.poll_timeout(now).is_some_and(|due| due <= now) {
            self.worker.handle_timeout(now);
            busy = true;
        }
        busy
    }

    /// The worker, for a caller that connects it to an engine.
    pub fn worker(&mut self) -> &mut Worker<P, LabTable> {
        &mut self.worker
    }

    /// The numbers of its rules.
    pub fn offload(&self) -> &OffloadStatistics {
        &self.worker.statistics().offload
    }

    /// It is needed no more: the next one of its size uses its memory.
    pub fn retire(self) {
        retire(self.worker);
    }

    /// Frames dropped, by reason.
    pub fn dropped(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let statistics = self.worker.statistics();
        let drops = Drop::ALL.iter().map(|&reason| (reason.name(), statistics.drops[reason as usize]));
        let malformed = Malformed::ALL.iter().map(|reason| (reason.name(), statistics.malformed[reason.index()]));
        drops.chain(malformed).chain([("not-the-service's", statistics.to_kernel)]).filter(|&(_, count)| count > 0)
    }

    /// Connections it has.
    pub fn connections(&self) -> u64 {
        self.worker.statistics().connections_now
    }

    /// Connections that were given up for newer ones because the table was full.
    pub fn evicted(&self) -> u64 {
        self.worker.statistics().evicted
    }
}

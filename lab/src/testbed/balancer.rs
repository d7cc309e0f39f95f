//! Hairpin's worker as a device under test: one service for TCP and UDP and either family, some backends. What it hands
//! over to a card, if there is one, is in [`super::offload`].
//!
//! A TCP packet of no known connection that is no SYN is taken for one of an established connection and gets a backend by
//! Maglev's table: recordings begin in the middle, and KTH 2022's balancer asks for no handshake either. SYNs and
//! datagrams get theirs in turn (round robin), but where every packet finds its backend by itself.

use super::table::LabTable;
use crate::clock;
use crate::traffic::flows::{BACKEND_PORT, BACKENDS, SERVICE, SERVICE_PORT, endpoint};
use hairpin_core::balance::{EffectiveWeights, Loads};
use hairpin_core::config::{Algorithm, Backend, Pool, Service, ServiceState, Snapshot, UnknownPacket};
use hairpin_core::engine::{EngineCaps, FlowEngine};
use hairpin_core::event_loop::EventLoop;
use hairpin_core::flow::{Protocol, Steering};
use hairpin_core::frame::FrameIo;
use hairpin_core::l4::connection::Connection;
use hairpin_core::l7::splice::SplicedMemory;
use hairpin_core::offload::{Never, OffloadPolicy};
use hairpin_core::table::region::Array;
use hairpin_core::table::slab::{Slot, boxed};
use hairpin_core::table::{Hasher, LookupMethod};
use hairpin_core::time::{Duration, Time};
use hairpin_core::wire::Malformed;
use hairpin_core::worker::{Drop, Occupancy, StatelessMethod, Statistics, Worker, WorkerOptions};
use std::sync::{Arc, Mutex, PoisonError};

/// Backends of the service at most.
pub const BACKENDS_MAX: u16 = 1024;
/// Connections of a worker at least.
const CONNECTIONS_MIN: usize = 64;

/// The common parameters of all workers of a balancer.
#[derive(Clone)]
pub struct BalancerOptions {
    /// Backends, 1 to [`BACKENDS_MAX`].
    pub backends: u16,
    /// Connections of each worker.
    pub connections_each: usize,
    /// How packets find their backends by themselves, if they do.
    pub method: Option<LookupMethod>,
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
    fn stateless(&self) -> Option<StatelessMethod> {
        match self.method {
            Some(LookupMethod::Stateless) => Some(StatelessMethod::Hash(Hasher::new(self.seeds))),
            Some(LookupMethod::Maglev) => Some(StatelessMethod::Maglev),
            _ => None,
        }
    }

    /// The services: TCP and UDP of both families, at the same address and port.
    fn snapshot(&self) -> Snapshot {
        let algorithm =
            if self.method == Some(LookupMethod::Maglev) { Algorithm::Maglev } else { Algorithm::RoundRobin };
        let count = self.backends.clamp(1, BACKENDS_MAX);
        let kinds = [(Protocol::Tcp, false), (Protocol::Udp, false), (Protocol::Tcp, true), (Protocol::Udp, true)];
        let services = kinds.iter().enumerate().map(|(place, &(protocol, ipv6))| {
            let backends = (0..count).map(|number| Backend {
                number: place as u16 * BACKENDS_MAX + number,
                name: format!("backend-{place}-{number}").into(),
                endpoint: endpoint(BACKENDS + u32::from(number), BACKEND_PORT, ipv6),
                weight: 100,
                state: hairpin_core::config::BackendState::Enabled,
                is_backup: false,
                connections_max: 0,
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

/// The workers of a balancer without an engine, with `tables` as many as there are.
pub fn workers(options: &BalancerOptions, tables: Vec<LabTable>) -> Vec<Worker<Never, LabTable>> {
    with_engine(options, tables, || Never, EngineCaps::NONE)
}

/// The workers of a balancer, with a policy and what the engine behind them can do.
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
            splices: SplicedMemory::own(1),
            ..WorkerOptions::new(snapshot.clone(), memory(options.connections()), table, policy(), options.seeds)
        })
    };
    tables.into_iter().enumerate().map(worker).collect()
}

/// A worker is needed no more: the next one of its size uses its memory.
pub fn retire<P: OffloadPolicy>(worker: Worker<P, LabTable>) {
    RETIRED.lock().unwrap_or_else(PoisonError::into_inner).push(worker.into_memory().0);
}

/// Memory of workers that have been retired: the next worker of that size finds its pages touched, so that all trials of a
/// row begin alike but the first.
static RETIRED: Mutex<Vec<Array<Slot<Connection>>>> = Mutex::new(Vec::new());

/// Memory for so many connections.
fn memory(connections: usize) -> Array<Slot<Connection>> {
    let mut retired = RETIRED.lock().unwrap_or_else(PoisonError::into_inner);
    match retired.iter().position(|memory| memory.len() == connections) {
        Some(place) => retired.swap_remove(place),
        None => boxed(connections),
    }
}

/// The time of the device's clock, for a worker's event loop.
pub fn now() -> Time {
    Time::from_nanos(clock::now())
}

/// A worker behind its port, with an engine, in the event loop that every plane has. Services of the testbed answer no
/// requests of their own, so no calendar is needed.
pub fn event_loop<IO: FrameIo, E: FlowEngine, P: OffloadPolicy>(
    worker: Worker<P, LabTable>,
    io: IO,
    engine: E,
) -> EventLoop<IO, E, Worker<P, LabTable>> {
    EventLoop::new(worker, io, engine, now, || Duration::ZERO)
}

/// Frames that a worker has dropped, by reason; those that it left to the kernel are among them.
pub fn dropped(statistics: &Statistics) -> impl Iterator<Item = (&'static str, u64)> {
    let drops = Drop::ALL.iter().map(|&reason| (reason.name(), statistics.drops[reason as usize]));
    let malformed = Malformed::ALL.iter().map(|reason| (reason.name(), statistics.malformed[reason.index()]));
    drops.chain(malformed).chain([("not-the-service's", statistics.to_kernel)]).filter(|&(_, count)| count > 0)
}

//! Choosing a backend for a new connection: one file per algorithm, [`Balancer`] in front of them.
//!
//! A balancer belongs to one worker and one service. It knows weights and availability; how many connections a backend
//! has, it reads from [`Loads`], which all workers share and the worker keeps up to date. Choosing allocates nothing.

mod least_connections;
mod maglev;
mod power_of_two;
mod random;
mod round_robin;
mod smooth_weighted;

#[cfg(test)]
mod tests;

pub use maglev::{TABLE_SIZE, flow_hash, source_hash};

use crate::config::{Algorithm, Backend, BackendState, Service, UnknownPacket};
use crate::flow::FlowKey;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};
use least_connections::LeastConnections;
use maglev::Maglev;
use power_of_two::PowerOfTwo;
use round_robin::RoundRobin;
use smooth_weighted::SmoothWeighted;

/// How many connections each backend of a snapshot has now, over all workers. Clones share the numbers.
///
/// The numbers guide choices and nothing else: reads may be a moment old.
#[derive(Clone, Debug)]
pub struct Loads {
    connections: Arc<[AtomicU32]>,
}

impl Loads {
    /// No connections on any of `backends` backends ([`crate::config::Snapshot::backends`]).
    pub fn new(backends: u32) -> Loads {
        Loads { connections: (0..backends).map(|_| AtomicU32::new(0)).collect() }
    }

    /// A connection of `backend` (its number in the snapshot) begins.
    pub fn add(&self, backend: u32) {
        if let Some(connections) = self.connections.get(backend as usize) {
            connections.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A connection of `backend` has ended.
    pub fn take(&self, backend: u32) {
        if let Some(connections) = self.connections.get(backend as usize) {
            // Stays at zero rather than wrapping to the highest load there is.
            let _ = connections.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |now| now.checked_sub(1));
        }
    }

    /// Connections `backend` has now; 0 for one that does not exist.
    pub fn now(&self, backend: u32) -> u32 {
        self.connections.get(backend as usize).map_or(0, |connections| connections.load(Ordering::Relaxed))
    }
}

/// The weight of each backend of a service as it counts now: 0 if it is not to get connections, for whatever reason.
struct Weights {
    configured: Vec<u16>,
    effective: Vec<u16>,
    total: u64,
}

impl Weights {
    fn new(backends: &[Backend]) -> Weights {
        let configured: Vec<u16> = backends
            .iter()
            .take(usize::from(u16::MAX))
            .map(|backend| if backend.state == BackendState::Enabled { backend.weight } else { 0 })
            .collect();
        let total = configured.iter().map(|&weight| u64::from(weight)).sum();
        Weights { effective: configured.clone(), configured, total }
    }

    /// Whether that changed anything.
    fn set_available(&mut self, index: u16, available: bool) -> bool {
        let Some(&configured) = self.configured.get(usize::from(index)) else { return false };
        let weight = if available { configured } else { 0 };
        let before = core::mem::replace(&mut self.effective[usize::from(index)], weight);
        self.total = self.total - u64::from(before) + u64::from(weight);
        before != weight
    }

    fn len(&self) -> usize {
        self.effective.len()
    }

    /// Index and weight of the backends that may be chosen, beginning with `start` and going round.
    fn open_from(&self, start: usize) -> impl Iterator<Item = (usize, u16)> + '_ {
        let (before, after) = self.effective.split_at(start.min(self.len()));
        let indexed = |first: usize| move |(i, &weight): (usize, &u16)| (first + i, weight);
        let after = after.iter().enumerate().map(indexed(before.len()));
        let before = before.iter().enumerate().map(indexed(0));
        after.chain(before).filter(|&(_, weight)| weight > 0)
    }
}

enum Chooser {
    RoundRobin(RoundRobin),
    SmoothWeighted(SmoothWeighted),
    LeastConnections(LeastConnections),
    PowerOfTwo(PowerOfTwo),
    Hashed,
}

/// Chooses backends of one service for one worker.
pub struct Balancer {
    weights: Weights,
    loads: Loads,
    /// Numbers of the service's backends in the snapshot, and so in `loads`.
    numbers: Box<[u32]>,
    chooser: Chooser,
    /// What a flow is hashed by: the client's address alone, or all of it.
    by_source: bool,
    /// Only where the algorithm or picking up needs it.
    maglev: Option<Maglev>,
}

impl Balancer {
    /// A balancer over the backends of `service` for worker `worker` of `workers`. `seed` is for the draws of
    /// [`Algorithm::PowerOfTwo`] and need not be secret. Backends from the 65536th on get no connections.
    ///
    /// Takes some milliseconds where a Maglev table is built ([`Algorithm::Maglev`], [`Algorithm::SourceHash`] and
    /// [`UnknownPacket::PickUp`]); the table depends on the service alone, so [`Balancer::sibling`] shares it.
    pub fn new(service: &Service, loads: Loads, worker: u16, workers: u16, seed: u64) -> Balancer {
        let hashed = matches!(service.algorithm, Algorithm::Maglev | Algorithm::SourceHash);
        let needs_maglev = hashed || service.unknown == UnknownPacket::PickUp;
        let maglev = needs_maglev.then(|| Maglev::new(&service.backends)).flatten();
        Balancer::with_maglev(service, loads, worker, workers, seed, maglev)
    }

    /// A balancer of the same `service` for another worker, with every backend available again.
    pub fn sibling(&self, service: &Service, worker: u16, workers: u16, seed: u64) -> Balancer {
        Balancer::with_maglev(service, self.loads.clone(), worker, workers, seed, self.maglev.clone())
    }

    fn with_maglev(
        service: &Service,
        loads: Loads,
        worker: u16,
        workers: u16,
        seed: u64,
        maglev: Option<Maglev>,
    ) -> Balancer {
        let weights = Weights::new(&service.backends);
        let share = Share { worker: u32::from(worker), workers: u32::from(workers.max(1)) };
        let chooser = match service.algorithm {
            Algorithm::RoundRobin => Chooser::RoundRobin(RoundRobin::new(&weights, share)),
            Algorithm::WeightedRoundRobin => Chooser::SmoothWeighted(SmoothWeighted::new(&weights, share)),
            Algorithm::LeastConnections => Chooser::LeastConnections(LeastConnections::new(&weights, share)),
            Algorithm::PowerOfTwo => Chooser::PowerOfTwo(PowerOfTwo::new(&weights, random::mix(seed, worker.into()))),
            Algorithm::Maglev | Algorithm::SourceHash => Chooser::Hashed,
        };
        let by_source = service.algorithm == Algorithm::SourceHash;
        let numbers = service.backends.iter().map(|backend| u32::from(backend.number)).collect();
        Balancer { weights, loads, numbers, chooser, by_source, maglev }
    }

    /// The backend (its index in [`Service::backends`]) for a new connection whose client-side flow is `flow`; `None`
    /// if none is enabled and available with a weight above 0. Does not count the connection: the worker does, with
    /// [`Loads::add`], once it exists.
    pub fn choose(&mut self, flow: &FlowKey) -> Option<u16> {
        let Balancer { weights, loads, numbers, .. } = self;
        let load = |index: usize| numbers.get(index).map_or(u32::MAX, |&number| loads.now(number));
        let chosen = match &mut self.chooser {
            Chooser::RoundRobin(chooser) => chooser.choose(weights),
            Chooser::SmoothWeighted(chooser) => chooser.choose(weights),
            Chooser::LeastConnections(chooser) => chooser.choose(weights, load),
            Chooser::PowerOfTwo(chooser) => chooser.choose(weights, load),
            Chooser::Hashed => return self.pick_up(flow),
        };
        chosen.map(|index| index as u16)
    }

    /// The backend that an established connection of an unknown client-side flow is taken to have: Maglev's answer, the
    /// same on every worker and instance with the same service and the same backends available. `None` if no backend is
    /// left, or if the service neither picks up nor balances by hash.
    ///
    /// For a service balanced by source hash it is that algorithm's answer, so that picking up agrees with choosing.
    pub fn pick_up(&self, flow: &FlowKey) -> Option<u16> {
        let hash = if self.by_source { source_hash(&flow.source.address) } else { flow_hash(flow) };
        self.maglev.as_ref()?.choose(&self.weights, hash)
    }

    /// Says whether a backend answers; all do at first. One that does not gets no connections.
    pub fn set_available(&mut self, index: u16, available: bool) {
        if !self.weights.set_available(index, available) {
            return;
        }
        match &mut self.chooser {
            Chooser::SmoothWeighted(chooser) => chooser.weights_changed(&self.weights),
            Chooser::PowerOfTwo(chooser) => chooser.weights_changed(&self.weights),
            Chooser::RoundRobin(_) | Chooser::LeastConnections(_) | Chooser::Hashed => {}
        }
    }
}

/// Which of how many workers: they begin their rounds at different points, so that the sum is even.
#[derive(Clone, Copy)]
struct Share {
    worker: u32,
    workers: u32,
}

impl Share {
    /// This worker's part of the way through `total` steps.
    fn start(self, total: u64) -> u64 {
        let worker = u64::from(self.worker % self.workers);
        (u128::from(worker) * u128::from(total) / u128::from(self.workers)) as u64
    }
}

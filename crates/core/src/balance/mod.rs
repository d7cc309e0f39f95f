//! Choosing a backend for a new connection: one file per algorithm, [`Balancer`] in front of them.
//!
//! A balancer belongs to one worker and one service. It has the weights from the configuration, and the part of them
//! that counts now from [`EffectiveWeights`]; how many connections a backend has, and how soon it answers, it reads from
//! [`Loads`], which the workers keep up to date. All workers share those two. Choosing allocates nothing.

mod effective_weights;
mod latency;
mod least_connections;
pub(crate) mod maglev;
mod power_of_two;
mod random;
mod round_robin;
mod smooth_weighted;
mod weights;

#[cfg(test)]
mod tests;

pub use effective_weights::{EffectiveWeight, EffectiveWeights, Loads, SHARE_FULL};
pub use latency::Latencies;
pub use maglev::{TABLE_SIZE, Tables, bytes_hash, flow_hash, source_hash};

use crate::config::{Algorithm, Backend, Service};
use crate::engine::TURNS_MAX;
use crate::flow::{Endpoint, FlowKey};
use crate::time::Time;
use alloc::boxed::Box;
use alloc::vec::Vec;
use least_connections::LeastConnections;
use maglev::MaglevTable;
use power_of_two::PowerOfTwo;
use round_robin::RoundRobin;
use smooth_weighted::SmoothWeighted;
use weights::Weights;

/// An entry of a schedule that names no backend.
pub const SCHEDULE_NONE: u16 = u16::MAX;

enum Chooser {
    RoundRobin(RoundRobin),
    SmoothWeighted(SmoothWeighted),
    LeastConnections(LeastConnections),
    PowerOfTwo(PowerOfTwo),
    LeastLatency(PowerOfTwo),
    Hashed,
}

/// What a backend is chosen for.
#[derive(Clone, Copy, Debug)]
pub struct Demand<'a> {
    /// The connection's client-side flow.
    pub flow: &'a FlowKey,
    /// The hash of the part of the request that the algorithm goes by ([`bytes_hash`]); `None`: the request has no such part,
    /// or the algorithm asks for none.
    pub hash: Option<u64>,
    /// Now, on the clock of [`Latencies`].
    pub now: Time,
}

/// The rewrite target of a packet of IPv4 to a backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ipv4Target {
    /// The backend's address; the last four bytes of it if it is one of IPv6.
    pub address: [u8; 4],
    /// Its port, host order.
    pub port: u16,
    /// Its number in the snapshot.
    pub number: u16,
}

/// Chooses backends of one service for one worker.
pub struct Balancer {
    weights: Weights,
    loads: Loads,
    /// Numbers of the service's backends in the snapshot, and so in `loads`.
    numbers: Box<[u32]>,
    /// The same backends, side by side: where every packet chooses, each load from elsewhere counts.
    targets: Box<[Ipv4Target]>,
    /// Those of the backends that packets of any connection may go to now.
    open_targets: Vec<Ipv4Target>,
    /// How many connections each may have; empty: none is limited.
    maxima: Box<[u32]>,
    chooser: Chooser,
    /// The key of a flow's hash: the client's address alone, or all of it. Requests have another one, and this if they lack that.
    by_source: bool,
    /// Only where the algorithm or picking up needs it.
    maglev: Option<MaglevTable>,
}

impl Balancer {
    /// A balancer over the backends of `service` for worker `worker` of `workers`. `seed` is for the draws of
    /// [`Algorithm::PowerOfTwo`] and [`Algorithm::LeastLatency`] and need not be secret. Backends from the 65536th on get no connections.
    ///
    /// Takes some milliseconds where a Maglev table is built ([`Algorithm::is_hash`] and
    /// [`UnknownPacket::PickUp`](crate::config::UnknownPacket::PickUp)); [`Balancer::with_table`] takes one that is there.
    pub fn new(service: &Service, loads: Loads, worker: u16, workers: u16, seed: u64) -> Balancer {
        Balancer::with_maglev(service, loads, worker, workers, seed, MaglevTable::of(service))
    }

    /// As [`Balancer::new`], for service `number` of the snapshot that `tables` were made for: takes no time.
    pub fn with_table(
        service: &Service,
        (tables, number): (&Tables, u16),
        loads: Loads,
        (worker, workers): (u16, u16),
        seed: u64,
    ) -> Balancer {
        Balancer::with_maglev(service, loads, worker, workers, seed, tables.of(number))
    }

    fn with_maglev(
        service: &Service,
        loads: Loads,
        worker: u16,
        workers: u16,
        seed: u64,
        maglev: Option<MaglevTable>,
    ) -> Balancer {
        let weights = Weights::new(service);
        let share = WorkerShare { worker: u32::from(worker), workers: u32::from(workers.max(1)) };
        let chooser = match service.algorithm {
            Algorithm::RoundRobin => Chooser::RoundRobin(RoundRobin::new(&weights, share)),
            Algorithm::WeightedRoundRobin => Chooser::SmoothWeighted(SmoothWeighted::new(&weights, share)),
            Algorithm::LeastConnections => Chooser::LeastConnections(LeastConnections::new(&weights, share)),
            Algorithm::PowerOfTwo => Chooser::PowerOfTwo(PowerOfTwo::new(&weights, random::mix(seed, worker.into()))),
            Algorithm::LeastLatency => {
                Chooser::LeastLatency(PowerOfTwo::new(&weights, random::mix(seed, worker.into())))
            }
            Algorithm::Maglev
            | Algorithm::SourceHash
            | Algorithm::HeaderHash
            | Algorithm::CookieHash
            | Algorithm::PathHash => Chooser::Hashed,
        };
        let by_source = service.algorithm.has_affinity();
        let numbers = service.backends.iter().map(|backend| u32::from(backend.number)).collect();
        let target = |backend: &Backend| {
            let Endpoint { address, port } = backend.endpoint;
            Ipv4Target { address: address.ipv4_octets(), port, number: backend.number }
        };
        let targets: Box<[Ipv4Target]> = service.backends.iter().map(target).collect();
        let open_targets = Vec::with_capacity(targets.len());
        let is_limited = service.backends.iter().any(|backend| backend.connections_max > 0);
        let maximum = |backend: &Backend| if backend.connections_max == 0 { u32::MAX } else { backend.connections_max };
        let maxima = service.backends.iter().filter(|_| is_limited).map(maximum).collect();
        let mut balancer =
            Balancer { weights, loads, numbers, targets, open_targets, maxima, chooser, by_source, maglev };
        balancer.aim();
        balancer
    }

    /// The backend (its index in [`Service::backends`]) for a new connection whose client-side flow is `flow`; `None`
    /// if none is enabled and available with a weight above 0, or all that are have as many connections as they may
    /// ([`Balancer::is_full`]). Does not count the connection: the worker does, with
    /// [`Loads::add`], once it exists.
    pub fn choose(&mut self, flow: &FlowKey) -> Option<u16> {
        self.choose_for(&Demand { flow, hash: None, now: Time::ZERO })
    }

    /// [`Balancer::choose`] for a request.
    pub fn choose_for(&mut self, demand: &Demand<'_>) -> Option<u16> {
        let Balancer { weights, loads, numbers, .. } = self;
        let load = |index: usize| numbers.get(index).map_or(u32::MAX, |&number| loads.now(number));
        let chosen = match &mut self.chooser {
            Chooser::RoundRobin(chooser) => chooser.choose(weights),
            Chooser::SmoothWeighted(chooser) => chooser.choose(weights),
            Chooser::LeastConnections(chooser) => chooser.choose(weights, load),
            Chooser::PowerOfTwo(chooser) => chooser.choose(weights, |index| load(index).into()),
            Chooser::LeastLatency(chooser) => {
                let cost = |index: usize| numbers.get(index).map_or(u64::MAX, |&number| loads.cost(number, demand.now));
                chooser.choose(weights, cost)
            }
            Chooser::Hashed => {
                let hash = demand.hash.unwrap_or_else(|| self.hash(demand.flow));
                self.maglev.as_ref()?.choose(&self.weights.effective, hash).map(usize::from)
            }
        };
        self.with_room(chosen? as u16)
    }

    /// Whether a backend (its index) may have another connection.
    #[inline]
    pub fn has_room(&self, index: u16) -> bool {
        let at = usize::from(index);
        let number = || self.numbers.get(at).map_or(u32::MAX, |&number| self.loads.now(number));
        self.maxima.get(at).is_none_or(|&maximum| number() < maximum)
    }

    /// Whether backends take connections, and all of them have as many as they may.
    pub fn is_full(&self) -> bool {
        let open = &self.weights.open;
        !self.maxima.is_empty() && !open.is_empty() && !open.iter().any(|&index| self.has_room(index))
    }

    /// The chosen backend, or the next one that may have another connection.
    #[inline]
    fn with_room(&self, chosen: u16) -> Option<u16> {
        if self.has_room(chosen) {
            return Some(chosen);
        }
        let (before, after) = self.weights.open.split_at(self.weights.open.partition_point(|&index| index <= chosen));
        after.iter().chain(before).copied().find(|&index| self.has_room(index))
    }

    /// The backend that an established connection of an unknown client-side flow is taken to have: Maglev's answer, the
    /// same on every worker and instance with the same service and the same backends known to be down. One for which it is
    /// not settled whether it is up counts as up here. `None` if no backend is left, or if the service neither picks up nor
    /// balances by hash.
    ///
    /// For a service balanced by source hash it is that algorithm's answer, so that picking up agrees with choosing.
    #[inline]
    pub fn pick_up(&self, flow: &FlowKey) -> Option<u16> {
        self.maglev.as_ref()?.choose(&self.weights.members, self.hash(flow))
    }

    #[inline]
    fn hash(&self, flow: &FlowKey) -> u64 {
        if self.by_source { source_hash(&flow.source.address) } else { flow_hash(flow) }
    }

    /// [`Balancer::pick_up`] of a flow of IPv4, in words ([`FlowKey::ipv4_words`]), of a service that does not balance by
    /// source hash.
    #[inline(always)]
    pub(crate) fn pick_up_ipv4(&self, words: [u64; 2]) -> Option<u16> {
        self.maglev.as_ref()?.choose(&self.weights.members, maglev::flow_hash_ipv4(words))
    }

    /// Takes what part of their weight backends have now. One with none gets no connections, unless that is so of all:
    /// then those that are not settled get them, and where there are none of these, all, if the service says
    /// [`UseAll`](crate::config::AllDown::UseAll). In each case backups get them only if no other backend does.
    pub fn refresh(&mut self, effective_weights: &EffectiveWeights) {
        if !self.weights.follow(weights::of(effective_weights, &self.numbers)) {
            return;
        }
        self.aim();
        match &mut self.chooser {
            Chooser::SmoothWeighted(chooser) => chooser.weights_changed(&self.weights),
            Chooser::PowerOfTwo(chooser) | Chooser::LeastLatency(chooser) => chooser.weights_changed(&self.weights),
            Chooser::LeastConnections(chooser) => chooser.weights_changed(&self.weights),
            Chooser::RoundRobin(_) | Chooser::Hashed => {}
        }
    }

    /// Whether a backend (its index) takes connections now.
    pub fn is_open(&self, index: u16) -> bool {
        self.weights.is_open(index)
    }

    /// What [`Balancer::choose`] would answer, for an engine that chooses by itself: by hash, the number of the backend at
    /// each entry of the table, [`SCHEDULE_NONE`] where that takes no connections; in turns, those of one round from here on,
    /// of [`TURNS_MAX`] at most. Empty if nothing can be said beforehand, or no backend takes connections.
    pub fn schedule(&mut self) -> Vec<u16> {
        let Balancer { weights, numbers, chooser, maglev, .. } = self;
        let number = |index: usize| numbers.get(index).map_or(SCHEDULE_NONE, |&number| number as u16);
        let turns = match chooser {
            Chooser::RoundRobin(_) => weights.open.len(),
            Chooser::SmoothWeighted(_) => SmoothWeighted::round(weights).min(TURNS_MAX as u64) as usize,
            Chooser::LeastConnections(_) | Chooser::PowerOfTwo(_) | Chooser::LeastLatency(_) => 0,
            Chooser::Hashed => {
                let entries = maglev.iter().filter(|_| weights.total > 0).flat_map(MaglevTable::entries);
                let open = |index: u16| if weights.is_open(index) { number(index.into()) } else { SCHEDULE_NONE };
                return entries.map(|&index| open(index)).collect();
            }
        };
        let mut turn = || match chooser {
            Chooser::RoundRobin(chooser) => chooser.choose(weights),
            Chooser::SmoothWeighted(chooser) => chooser.choose(weights),
            _ => None,
        };
        (0..turns.min(TURNS_MAX)).filter_map(|_| turn().map(number)).collect()
    }

    /// The backend of this index in [`Service::backends`].
    #[inline]
    pub fn target(&self, index: u16) -> Option<Ipv4Target> {
        self.targets.get(usize::from(index)).copied()
    }

    /// The backends (their indices, ascending) that take connections now.
    #[inline]
    pub fn open(&self) -> &[u16] {
        &self.weights.open
    }

    /// The rewrite targets of the backends that take connections now; a backend that may yet prove to be up is among them.
    #[inline]
    pub fn open_targets(&self) -> &[Ipv4Target] {
        &self.open_targets
    }

    /// Has targets follow what is known of backends.
    fn aim(&mut self) {
        let Balancer { targets, open_targets, weights, .. } = self;
        open_targets.clear();
        let members = targets.iter().zip(&weights.members).filter(|(_, weight)| **weight > 0);
        open_targets.extend(members.map(|(target, _)| *target));
    }

    /// Goes on where `before` is, a balancer of the same service under another snapshot, if nothing has changed that it
    /// goes by: algorithm, backends, weights. Says whether that is so; `before` is of no use any more then.
    pub fn follow(&mut self, before: &mut Balancer) -> bool {
        let same = self.numbers == before.numbers
            && self.weights.is_like(&before.weights)
            && core::mem::discriminant(&self.chooser) == core::mem::discriminant(&before.chooser);
        if same {
            core::mem::swap(&mut self.chooser, &mut before.chooser);
            core::mem::swap(&mut self.weights.effective, &mut before.weights.effective);
            core::mem::swap(&mut self.weights.total, &mut before.weights.total);
            core::mem::swap(&mut self.weights.open, &mut before.weights.open);
            core::mem::swap(&mut self.weights.members, &mut before.weights.members);
            self.aim();
        }
        same
    }
}

/// Whether a service's backups take its new connections, for want of other backends.
pub fn uses_backups(service: &Service, effective_weights: &EffectiveWeights) -> bool {
    if !service.backends.iter().any(|backend| backend.is_backup) {
        return false;
    }
    let numbers: Vec<u32> = service.backends.iter().map(|backend| u32::from(backend.number)).collect();
    let mut weights = Weights::new(service);
    weights.follow(weights::of(effective_weights, &numbers));
    weights.open.first().and_then(|&index| service.backends.get(usize::from(index))).is_some_and(|it| it.is_backup)
}

/// Which of how many workers: they begin their rounds at different points, so that the sum is even.
#[derive(Clone, Copy)]
struct WorkerShare {
    worker: u32,
    workers: u32,
}

impl WorkerShare {
    /// This worker's part of the way through `total` steps.
    fn start(self, total: u64) -> u64 {
        let worker = u64::from(self.worker % self.workers);
        (u128::from(worker) * u128::from(total) / u128::from(self.workers)) as u64
    }
}

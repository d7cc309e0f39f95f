//! The per-core machine: takes bursts of frames, tracks their connections, rewrites them, and keeps the engine's rules
//! in step. It does no I/O and reads no clock.
//!
//! Polling order of a main loop: receive, [`Worker::handle_batch`], transmit, then [`Worker::poll_op`] until it has
//! none, hand those to the engine, [`Worker::handle_completion`] for its answers, [`Worker::poll_samples`] and
//! [`Worker::handle_samples`], and [`Worker::handle_timeout`] when [`Worker::poll_timeout`] is due. Between two bursts
//! [`Worker::reconfigure`] and [`Worker::end_backend`] may be called.
//!
//! Invariants: a connection's slot is free only when the engine holds no rule of it and owes no answer about it; the
//! index holds both keys of every connection that is not pending removal, and nothing else; every frame of a batch is either in
//! the transmit batch afterwards or counted by reason and dropped.

mod access;
mod adopt;
mod ageing;
mod answers;
mod create;
mod ends;
mod fast_path;
mod guess;
mod half_open;
mod known;
mod layer;
mod lifecycle;
mod limiting;
mod marks;
mod occupancy;
mod one_way;
mod packets;
mod passive;
mod set_up;
mod severed;
mod splice;
mod stateless;
mod states;
mod statistics;
mod survey;
mod sweep;
#[cfg(test)]
mod tests;
mod update;
mod views;

/// Bounds of a worker, for programs that list them.
pub mod limits {
    pub use super::PASSES_SHARE;
    pub use super::answers::PER_SECOND as ANSWERS_PER_SECOND;
    pub use super::create::{EVICTION_TRIES_MAX, TRIES_MAX as BACKEND_TRIES_MAX};
    pub use super::guess::UNHEARD_MAX;
    pub use super::lifecycle::{QUEUE_FULL_FOR, REFUSED_FOR};
    pub use super::severed::{ASKING_MAX, ASKS_MAX, PER_SECOND as RESETS_PER_SECOND};
}

pub(crate) use access::is_denied;
pub use adopt::{Adopted, home};
pub use ageing::SampledRules;
pub use known::Known;
pub(crate) use occupancy::ByFamily;
pub use occupancy::Occupancy;
pub use stateless::StatelessMethod;
pub use statistics::{
    BackendStatistics, Drop, LATENCY_BUCKETS, Latency, OffloadStatistics, RequestTimes, SIZE_BUCKETS,
    ServiceStatistics, Sizes, Statistics, class,
};
pub use sweep::Which;
pub use update::{Retired, Update};
pub(crate) use views::volume;

use crate::balance::{Balancer, EffectiveWeights, Loads, Tables};
use crate::config::{BACKENDS_MAX, Snapshot};
use crate::engine::{COMPLETIONS_MAX, EngineCaps, OPS_MAX, RuleId, RuleOp, SetsUp};
use crate::flow::{Direction, FlowKey, Steering};
use crate::frame::BATCH_MAX;
use crate::keys::Secret;
use crate::l4::connection::Connection;
use crate::l4::ports::PortPool;
use crate::l7::cookie::Cookies;
use crate::l7::splice::{SplicedMemory, Splices};
use crate::l7::trace::IdMaker;
use crate::limit::LimitTable;
use crate::offload::OffloadPolicy;
use crate::record::Recorder;
use crate::table::ageing::Stamps;
use crate::table::region::Array;
use crate::table::slab::{Slab, Slot};
use crate::table::{AnyTable, Entries, Hasher, Position, Table};
use crate::time::{Duration, Time};
use adopt::Unfinished;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
pub(crate) use answers::Answers;
use ends::Ends;
use half_open::HalfOpen;
use occupancy::OccupancyShare;
use survey::Survey;
use sweep::Sweep;

/// Connections whose counters are asked for at a time at most.
const SAMPLES_MAX: usize = 256;
/// One in this many entries may be a flow that is the kernel's own.
pub const PASSES_SHARE: usize = 8;
/// Granularity of timeouts.
const TICK: Duration = Duration::from_millis(50);

/// The parts of a worker.
pub struct WorkerOptions<P, T = AnyTable> {
    /// Services, backends, pool.
    pub snapshot: Arc<Snapshot>,
    /// How connections are spread over workers.
    pub steering: Steering,
    /// This worker's number.
    pub worker: u16,
    /// Secret seeds for hashes and draws, fresh for each start.
    pub seeds: [u64; 4],
    /// The memory of connections; its length is the most there can be.
    pub memory: Array<Slot<Connection>>,
    /// The index, empty, with room for twice as many entries.
    pub table: T,
    /// How every packet finds its backend by itself; `None`: connections are tracked, and keep theirs.
    pub stateless: Option<StatelessMethod>,
    /// Connections of every backend, shared by all workers.
    pub loads: Loads,
    /// The effective weights of backends, shared by all workers.
    pub effective_weights: EffectiveWeights,
    /// Cells through which an engine recognises connections that have no rule; shared by all workers, may be empty.
    pub known: Known,
    /// Rules of all workers that share the engine; shared by those.
    pub occupancy: Occupancy,
    /// The engine's capabilities.
    pub caps: EngineCaps,
    /// Which connections go to the engine.
    pub policy: P,
    /// The memory of connections of HTTP and TLS services.
    pub splices: SplicedMemory,
    /// Snapshots of configurations that were in force before this process, with their ids: exchanges that began with one of
    /// them end as it says.
    pub formers: Vec<Arc<Snapshot>>,
    /// The keys of SYN cookies.
    pub cookies: Cookies,
    /// The clients of limits, shared by all workers.
    pub limits: LimitTable,
}

impl<P, T> WorkerOptions<P, T> {
    /// Those of a worker that stands alone: number 0, with nothing shared, no engine, and room for 64 spliced connections.
    /// Steering and SYN cookies follow from `seeds`. A caller that wants something else sets the field.
    pub fn new(
        snapshot: Arc<Snapshot>,
        memory: impl Into<Array<Slot<Connection>>>,
        table: T,
        policy: P,
        seeds: [u64; 4],
    ) -> WorkerOptions<P, T> {
        let [a, b, c, d] = seeds;
        WorkerOptions {
            snapshot,
            steering: Steering::by_hash([a, b], 1),
            worker: 0,
            seeds,
            memory: memory.into(),
            table,
            stateless: None,
            loads: Loads::default(),
            effective_weights: EffectiveWeights::default(),
            known: Known::default(),
            occupancy: Occupancy::default(),
            caps: EngineCaps::NONE,
            policy,
            splices: SplicedMemory::own(64),
            formers: Vec::new(),
            cookies: Cookies::new([[a, b], [c, d]]),
            limits: LimitTable::default(),
        }
    }
}

/// The per-core machine. See the module's documentation.
pub struct Worker<P, T = AnyTable> {
    snapshot: Arc<Snapshot>,
    steering: Steering,
    /// Its number among the workers.
    number: u16,
    table: T,
    stateless: Option<StatelessMethod>,
    /// How often the index has changed: what a probe has found holds as long as this stays the same.
    index_changes: u64,
    slab: Slab<Connection>,
    stamps: Stamps,
    services: Ends,
    backends: Ends,
    /// Of backends' ends, those whose packets of no connection may be a service's that picks up, with the backend's number.
    guessed: Ends,
    balancers: Vec<Balancer>,
    ports: PortPool,
    loads: Loads,
    effective_weights: EffectiveWeights,
    /// The version of `effective_weights` that balancers go by.
    effective_weights_seen: u32,
    /// By backend number: whether they know it to be down.
    down: Box<[bool]>,
    sweep: Sweep,
    known: Known,
    caps: EngineCaps,
    policy: P,
    answers: Answers,
    /// The budget of packets to severed connections, which is no answer to a flood.
    tellings: Answers<{ severed::PER_SECOND }>,
    /// Severed connections, by position and generation, whose ends are to be asked for a packet.
    asking: VecDeque<(Position, u32)>,
    /// The interface that a packet was last received on.
    port: u16,
    ops: VecDeque<RuleOp>,
    sampling: VecDeque<Position>,
    survey: Survey,
    half_open: HalfOpen,
    /// Established connections that may be forged as well (`one_way.rs`): they give way after those.
    yielding: HalfOpen,
    /// Its rules, and what is known of the other workers'.
    rules: OccupancyShare,
    /// Requests that the engine has taken and not answered.
    in_flight: u32,
    passes: usize,
    passes_max: usize,
    unfinished: Unfinished,
    splices: Splices,
    /// How far the clock that clients of spliced services see is ahead of the machine's, in ms.
    clock_ahead: u32,
    statistics: Statistics,
    /// See [`Worker::go_by_marks`].
    marks: bool,
    /// The engine's part that sets connections up.
    sets_up: Option<Box<dyn SetsUp>>,
    /// When that last had a report.
    reported: Time,
    /// By service number, of which services it does that.
    set_up_there: Box<[bool]>,
    /// Where records of exchanges and connections go.
    recorder: Option<Recorder>,
    limits: LimitTable,
    /// Room for the keys of a burst, which would have to be wiped for each if it were not kept.
    keys: Box<[FlowKey]>,
}

impl<P: OffloadPolicy, T: Table<FlowKey>> Worker<P, T> {
    /// A worker without connections. All memory it will ever use is taken here.
    pub fn new(options: WorkerOptions<P, T>) -> Worker<P, T> {
        let WorkerOptions { snapshot, steering, worker, seeds, memory, table, stateless, .. } = options;
        let WorkerOptions {
            loads, effective_weights, known, occupancy, caps, policy, splices, cookies, limits, ..
        } = options;
        let capacity = memory.len();
        let tables = Tables::new(&snapshot, &Tables::default());
        let Update { services, backends, guessed, mut balancers, ports, .. } =
            Update::new(snapshot.clone(), &tables, &loads, &steering, worker, seeds[3]);
        let effective_weights_seen = effective_weights.version();
        let down = (0..BACKENDS_MAX as u16).map(|number| effective_weights.of(number).is_down()).collect();
        balancers.iter_mut().for_each(|balancer| balancer.refresh(&effective_weights));
        // Each worker of a process has numbers of its own.
        let ids = IdMaker::new(Secret::new([seeds[0], seeds[1]]), u64::from(worker) << 48);
        let splices = Splices::new(splices, Hasher::new(seeds), &steering, (cookies, ids));
        let clock_ahead = steering.clock_ahead();
        let mut statistics = Statistics::new(&snapshot, capacity);
        splices.tell(&mut statistics.http);
        Worker {
            ports,
            number: worker,
            table,
            stateless,
            index_changes: 0,
            stamps: Stamps::new(capacity, TICK),
            statistics,
            slab: Slab::new(memory),
            answers: Answers::default(),
            tellings: Answers::default(),
            asking: VecDeque::with_capacity(severed::ASKING_MAX),
            port: 0,
            ops: VecDeque::with_capacity(OPS_MAX + COMPLETIONS_MAX),
            sampling: VecDeque::with_capacity(SAMPLES_MAX),
            survey: Survey::default(),
            half_open: HalfOpen::new(capacity),
            yielding: HalfOpen::new(capacity),
            rules: OccupancyShare::new(occupancy, &caps),
            in_flight: 0,
            passes: 0,
            unfinished: Unfinished::default(),
            splices,
            clock_ahead,
            passes_max: (capacity / PASSES_SHARE).max(1),
            snapshot,
            steering,
            services,
            backends,
            guessed,
            balancers,
            loads,
            effective_weights,
            effective_weights_seen,
            down,
            sweep: Sweep::default(),
            known,
            caps,
            policy,
            marks: false,
            sets_up: None,
            recorder: None,
            limits,
            reported: Time::ZERO,
            set_up_there: Box::default(),
            keys: vec![FlowKey::default(); BATCH_MAX].into(),
        }
    }

    /// The memory that its connections lie in, as a process leaves it that ends without a word: those of layer 4, and
    /// those of HTTP and TLS services.
    pub fn into_memory(self) -> (Array<Slot<Connection>>, SplicedMemory) {
        (self.slab.into_memory(), self.splices.into_memory())
    }

    /// Keeps records of services for which the configuration asks that, and writes them there.
    pub fn record_to(&mut self, recorder: Recorder) {
        self.recorder = Some(recorder);
    }

    /// Its counters so far.
    pub fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    /// The policy's name.
    pub fn policy(&self) -> &'static str {
        self.policy.name()
    }

    /// The connections it has, Pass entries among them, in no particular order.
    pub fn connections(&self) -> impl Iterator<Item = &Connection> {
        self.slab.positions().map(|position| self.slab.at(position))
    }

    /// Rules the engine holds for it, as far as it knows (the offload state), by key.
    pub fn rules_known(&self) -> impl Iterator<Item = FlowKey> {
        let of_connections = self.slab.positions().flat_map(|position| {
            let connection = self.slab.at(position);
            [Direction::FromClient, Direction::FromBackend]
                .into_iter()
                .filter(|&direction| connection.pair.holds(direction))
                .map(|direction| connection.key(direction))
        });
        of_connections.chain(self.splices.rules_known())
    }

    /// The part of [`Worker::rules_known`] that is of connections of HTTP and TLS services.
    pub fn splice_rules_known(&self) -> impl Iterator<Item = FlowKey> {
        self.splices.rules_known()
    }

    /// Finds the connection a flow belongs to.
    fn find(&self, key: &FlowKey) -> Option<(Position, Direction)> {
        self.table.find(key, &ConnectionFlows(&self.slab)).map(parts)
    }

    /// The name of a connection's rule: generation, position and direction.
    fn rule_id(&self, position: Position, direction: Direction) -> RuleId {
        let generation = u64::from(self.slab.generation(position));
        RuleId((generation << 32) | u64::from(value(position, direction)))
    }

    /// The connection and flow a rule belongs to, if it is still there.
    fn rule_of(&self, id: RuleId) -> Option<(Position, Direction)> {
        let (position, direction) = parts(id.0 as u32);
        let there = self.slab.contains(position) && u64::from(self.slab.generation(position)) == id.0 >> 32;
        there.then_some((position, direction))
    }
}

/// The connections' flows, as the index asks for them.
struct ConnectionFlows<'a>(&'a Slab<Connection>);

impl Entries<FlowKey> for ConnectionFlows<'_> {
    #[inline]
    fn is(&self, value: u32, key: &FlowKey) -> bool {
        let (position, direction) = parts(value);
        self.0.entry(position).is_some_and(|connection| connection.is_of(direction, key))
    }

    /// All of it: what carries a packet reads and writes every line.
    #[inline]
    fn prefetch(&self, value: u32) {
        self.0.prefetch_lines(parts(value).0, Connection::LINES_HOT);
    }
}

/// The index's value for one flow of a connection.
#[inline]
fn value(position: Position, direction: Direction) -> u32 {
    position << 1 | direction as u32
}

/// The connection and flow of an index value.
#[inline]
fn parts(value: u32) -> (Position, Direction) {
    let direction = if value & 1 == 0 { Direction::FromClient } else { Direction::FromBackend };
    (value >> 1, direction)
}

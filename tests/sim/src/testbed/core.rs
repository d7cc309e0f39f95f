//! A core of the device under test: its queue, its worker, and what it is doing.

use super::costs::Remembered;
use super::frames::{self, ModelPacket, end};
use super::yardstick::Yardstick;
use super::{BACKENDS_MAX, BalancerSettings, CardAction, CardPolicy, ENTRIES_EACH_MIN, service};
use hairpin_core::balance::{EffectiveWeights, Loads};
use hairpin_core::config::{Algorithm, Backend, BackendState, Pool, Service, ServiceState, Snapshot, UnknownPacket};
use hairpin_core::engine::{Completion, EngineCaps};
use hairpin_core::flow::{Protocol, Steering};
use hairpin_core::l7::splice::SplicedMemory;
use hairpin_core::offload::{AnyPolicy, Choice};
use hairpin_core::table::slab::boxed;
use hairpin_core::table::{AnyTable, Hasher, LookupMethod};
use hairpin_core::time::Duration;
use hairpin_core::worker::{Occupancy, StatelessMethod, Worker, WorkerOptions};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// The data plane's worker, with a policy of its own or one that knows the future.
pub(super) type TestbedWorker = Worker<AnyPolicy<Yardstick>, AnyTable>;

/// The activity of a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Nothing; it checks whether there is something when [`ModelTestbed::until`](super::ModelTestbed) says.
    Idle,
    /// Packets, which leave then.
    Packets,
    /// Rules and timeouts, until then; a worker that waits for the card, until the card has done more of what it waits for.
    Rules,
}

/// A core.
pub(super) struct ModelCore {
    /// Its worker; none of a forwarder.
    pub(super) worker: Option<TestbedWorker>,
    /// Packets that wait.
    pub(super) queue: VecDeque<ModelPacket>,
    pub(super) phase: Phase,
    /// Packets that leave when this iteration is over.
    pub(super) leaving: Vec<ModelPacket>,
    /// Requests that the card has not answered yet.
    pub(super) unanswered: u64,
    /// The card forwards packets of flows that it has rules for, and so their entries are not in use here.
    forwards: bool,
    /// Answers of the card for its worker.
    pub(super) inbox: VecDeque<Completion>,
    /// When timeouts are checked next.
    pub(super) polls_at: u64,
    /// Connections made so far, and there, at the last check.
    counted: (u64, u64),
    pub(super) costs: Remembered,
    pub(super) busy_ns: u64,
}

impl ModelCore {
    pub(super) fn new(worker: Option<TestbedWorker>) -> ModelCore {
        ModelCore {
            worker,
            queue: VecDeque::new(),
            phase: Phase::Idle,
            leaving: Vec::new(),
            unanswered: 0,
            forwards: true,
            inbox: VecDeque::new(),
            polls_at: 0,
            counted: (0, 0),
            costs: Remembered::default(),
            busy_ns: 0,
        }
    }

    /// Connections that have begun and ended since this was last asked, and those that are in use by software.
    pub(super) fn changes(&mut self) -> (u64, u64, u32) {
        let Some(worker) = &self.worker else { return (0, 0, 0) };
        let statistics = worker.statistics();
        let created = statistics.services.iter().map(|service| service.created).sum();
        let now = statistics.connections_now;
        let (created_before, before) = std::mem::replace(&mut self.counted, (created, now));
        let new = created - created_before;
        let elsewhere = if self.forwards { statistics.offload.rules / 2 } else { 0 };
        let in_use = now.saturating_sub(elsewhere);
        (new, (before + new).saturating_sub(now), in_use as u32)
    }
}

/// The services: TCP and UDP at the same address and port.
fn snapshot(balancer: &BalancerSettings) -> Snapshot {
    let algorithm = if balancer.table == LookupMethod::Maglev { Algorithm::Maglev } else { Algorithm::RoundRobin };
    let kinds = [Protocol::Tcp, Protocol::Udp];
    let services = kinds.iter().enumerate().map(|(place, &protocol)| Service {
        state: ServiceState::Active,
        name: format!("testbed-{place}").into(),
        endpoint: service(),
        protocol,
        algorithm,
        unknown: UnknownPacket::PickUp,
        timeouts: balancer.timeouts,
        backends: (0..balancer.backends)
            .map(|number| Backend {
                number: place as u16 * BACKENDS_MAX + number,
                name: format!("backend-{place}-{number}").into(),
                endpoint: end(frames::BACKENDS + u32::from(number), frames::BACKEND_PORT),
                weight: 100,
                state: BackendState::Enabled,
                is_backup: false,
                connections_max: 0,
            })
            .collect(),
        ..Service::vacant()
    });
    let time_wait = Duration::from_secs(60);
    let pool = Pool { addresses: Box::default(), port_first: 1024, port_last: 65_535, time_wait };
    Snapshot::new(services.collect(), pool)
}

/// The cores of a balancer.
pub(super) fn balancers(
    balancer: &BalancerSettings,
    cores: u16,
    steering: Steering,
    seeds: [u64; 4],
    (caps, began): (Option<EngineCaps>, &Arc<AtomicU64>),
) -> Vec<ModelCore> {
    let snapshot = Arc::new(snapshot(balancer));
    let (loads, effective_weights, occupancy) = (Loads::default(), EffectiveWeights::new(), Occupancy::default());
    let each = (balancer.entries as usize / usize::from(cores)).max(ENTRIES_EACH_MIN);
    let tables = AnyTable::for_workers(balancer.table, usize::from(cores), 2 * each, Hasher::new(seeds));
    let stateless = || match balancer.table {
        LookupMethod::Stateless => Some(StatelessMethod::Hash(Hasher::new(seeds))),
        LookupMethod::Maglev => Some(StatelessMethod::Maglev),
        _ => None,
    };
    let policy = || match balancer.offload.as_ref().map(|offload| &offload.policy) {
        None => AnyPolicy::new(Choice::Never, each),
        Some(CardPolicy::Choice(choice)) => AnyPolicy::new(choice.clone(), each),
        Some(CardPolicy::Yardstick(plan)) => AnyPolicy::Other(Yardstick::new(plan.clone(), began.clone())),
    };
    let worker = |(number, table)| {
        Worker::new(WorkerOptions {
            steering,
            worker: number as u16,
            stateless: stateless(),
            loads: loads.clone(),
            effective_weights: effective_weights.clone(),
            occupancy: occupancy.clone(),
            caps: caps.unwrap_or(EngineCaps::NONE),
            splices: SplicedMemory::own(1),
            ..WorkerOptions::new(snapshot.clone(), boxed(each), table, policy(), seeds)
        })
    };
    let forwards = balancer.offload.as_ref().is_none_or(|offload| offload.action == CardAction::Forward);
    let core = |place| ModelCore { forwards, ..ModelCore::new(Some(worker(place))) };
    tables.into_iter().enumerate().map(core).collect()
}

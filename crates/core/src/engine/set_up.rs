//! Engines that set connections up by themselves: what they tell a worker, and which services they may do it for.
//!
//! Such an engine answers the first packets of a connection's client and backend without a worker, and makes both rules once
//! the client has shown that it hears the backend. The worker hears of it afterwards. Until then the engine keeps what is
//! half-open, which is no connection of the worker's, and gives it up when the worker asks for it.
//!
//! Of direct server return only the client's packets pass, and nothing proves that it hears its backend. There the worker
//! hears of a connection twice: when the client has gone on after its SYN, from when on the connection is in the worker's
//! table among those that give way, and when the client has sent as much as the worker demands before a rule is made.
//!
//! Segments with SYN, FIN or RST that its rules take go by the rules too, and the worker is told their flags: it counts
//! connections' ends without having seen them.

use crate::config::{Algorithm, Backend, Forwarding, Service, ServiceState, Snapshot};
use crate::flow::{Endpoint, FlowKey, Protocol};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// Services whose connections an engine sets up at most.
pub const SET_UP_SERVICES_MAX: usize = 64;
/// The longest list of turns.
pub const TURNS_MAX: usize = 8192;

/// A connection that the engine has set up: its rules are in force, both, or of direct server return the client's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetUp {
    /// The client's flow.
    pub key: FlowKey,
    /// The number of its backend.
    pub backend: u16,
    /// Whether the backend has answered. Of TCP it has; of direct server return that says nothing.
    pub answered: bool,
}

/// What the engine tells a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// It has set up a connection.
    SetUp(SetUp),
    /// Of direct server return: the client has gone on after its SYN. The engine sends its packets on without a rule until it
    /// has sent enough of them.
    Begun {
        /// The client's flow.
        key: FlowKey,
        /// What has begun.
        begun: Begun,
    },
    /// A TCP segment with SYN, FIN or RST has been sent on, by a rule or as one of a connection that has begun.
    Segment {
        /// Its flow, as it arrived.
        key: FlowKey,
        /// Its TCP flags ([`wire::tcp`](crate::wire::tcp)).
        flags: u8,
    },
}

/// A connection that has begun in the engine, which has given it up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Begun {
    /// The number of its backend.
    pub backend: u16,
    /// Whether the backend has answered; of direct server return, whether the client has gone on after its SYN.
    pub answered: bool,
    /// TCP, if it has: what a client that has got the answer acknowledges at least. Of direct server return: the number that
    /// follows the SYN's.
    pub proof: u32,
    /// UDP, and direct server return: packets of the client so far.
    pub sent: u8,
}

/// An engine that sets connections up, as one worker sees it.
pub trait SetsUp: Send {
    /// The oldest report; `None`: there is none now. It comes again, also in another process, unless [`SetsUp::done`] is
    /// called.
    fn next(&mut self) -> Option<Report>;
    /// The worker has followed what [`SetsUp::next`] has told.
    fn done(&mut self);
    /// What has begun under the client's flow `key`; the engine has it no longer.
    fn take(&mut self, key: &FlowKey) -> Option<Begun>;
    /// The worker has room for so many connections more.
    fn grant(&mut self, room: u32);
}

/// Why the engine sets up no connections of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotSetUp {
    /// It has none, or is of layer 7.
    Kind,
    /// Its mode is neither `nat` nor `dsr`.
    Mode,
    /// Its algorithm looks at connections.
    Algorithm,
    /// It limits connections of clients, which workers count.
    Limits,
    /// A backend of it has a limit on connections, which workers count.
    BackendLimits,
    /// An end of it is an end of another service.
    Shared,
    /// There are [`SET_UP_SERVICES_MAX`] before it.
    Many,
}

impl NotSetUp {
    /// For people.
    pub fn words(self) -> &'static str {
        match self {
            NotSetUp::Kind => "it is no service of layer 4",
            NotSetUp::Mode => "its mode is neither nat nor dsr",
            NotSetUp::Algorithm => "its algorithm counts connections",
            NotSetUp::Limits => "workers count its clients' connections, which it limits",
            NotSetUp::BackendLimits => "workers count its backends' connections, which it limits",
            NotSetUp::Shared => "a backend of it serves another service, too",
            NotSetUp::Many => "the engine has as many services before it as it takes",
        }
    }
}

/// How a service's backends are chosen by an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScheduleKind {
    /// By [`flow_hash`](crate::balance::flow_hash).
    Flow,
    /// By [`source_hash`](crate::balance::source_hash).
    Source,
    /// One after the other.
    Turns,
}

impl ScheduleKind {
    /// That of an algorithm; `None`: it looks at connections.
    pub fn of(algorithm: Algorithm) -> Option<ScheduleKind> {
        match algorithm {
            Algorithm::Maglev => Some(ScheduleKind::Flow),
            Algorithm::SourceHash => Some(ScheduleKind::Source),
            Algorithm::RoundRobin | Algorithm::WeightedRoundRobin => Some(ScheduleKind::Turns),
            Algorithm::LeastConnections
            | Algorithm::PowerOfTwo
            | Algorithm::HeaderHash
            | Algorithm::CookieHash
            | Algorithm::PathHash
            | Algorithm::LeastLatency => None,
        }
    }
}

/// Backends whose packets pass, by their own ends. Those of direct server return answer clients by another way, as the VIP.
fn that_answer_here(service: &Service) -> &[Backend] {
    if service.forwarding == Forwarding::Direct { &[] } else { &service.backends }
}

/// For each service of a snapshot, the number of its schedule in the engine, or why it has none.
pub fn set_up_services(snapshot: &Snapshot) -> Vec<Result<u16, NotSetUp>> {
    let mut ends: BTreeMap<(Endpoint, Protocol), u32> = BTreeMap::new();
    let is_there = |service: &&Service| service.state != ServiceState::Vacant;
    for service in snapshot.services.iter().filter(is_there) {
        if !service.kind.is_group() {
            *ends.entry((service.endpoint, service.protocol)).or_default() += 1;
        }
        for backend in that_answer_here(service) {
            *ends.entry((backend.endpoint, service.protocol)).or_default() += 1;
        }
    }
    let mut count = 0;
    let judge = |service: &Service| {
        let is_forwarded = !service.kind.is_layer7() && !service.kind.is_group();
        if service.state != ServiceState::Active || !is_forwarded {
            return Err(NotSetUp::Kind);
        }
        if !matches!(service.forwarding, Forwarding::Nat | Forwarding::Direct) {
            return Err(NotSetUp::Mode);
        }
        if ScheduleKind::of(service.algorithm).is_none() {
            return Err(NotSetUp::Algorithm);
        }
        if service.limits_connections() {
            return Err(NotSetUp::Limits);
        }
        if service.backends.iter().any(|backend| backend.connections_max > 0) {
            return Err(NotSetUp::BackendLimits);
        }
        let of_backends = that_answer_here(service).iter().map(|backend| backend.endpoint);
        let mut own = of_backends.chain([service.endpoint]).map(|end| (end, service.protocol));
        if own.any(|end| ends.get(&end).is_some_and(|&times| times > 1)) {
            return Err(NotSetUp::Shared);
        }
        if usize::from(count) == SET_UP_SERVICES_MAX {
            return Err(NotSetUp::Many);
        }
        count += 1;
        Ok(count - 1)
    };
    snapshot.services.iter().map(judge).collect()
}

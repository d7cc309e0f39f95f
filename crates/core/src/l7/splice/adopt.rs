//! A worker takes over the spliced connections that another process has left.
//!
//! A connection that the last process was changing when it ended is not believed, nor is its partner: both ends are reset,
//! by numbers that the ends say themselves (`stages/reset.rs`). All other connections fit each other (`table::numbered`)
//! and go on. Index, timers, idle lists, free buffers, ports in use and loads follow from them. The engine says which rules
//! there are; the caller takes away those that [`Splices::rules_known`] does not name.
//!
//! Bytes that no process of this layout can have left are no connection: they are forgotten without a word to either
//! end, and what was joined to them is reset. An address that was damaged into another is not recognised.

use super::Splices;
use super::state::buffers::Claims;
use super::state::entry::{BackendConn, BackendConnState, ClientConn, ClientConnState, TcpKey};
use super::state::peer::Peer;
use super::tcp::segment::Abilities;
use crate::balance::Loads;
use crate::config::{BackendState, ServiceState, Snapshot};
use crate::engine::RuleOp;
use crate::flow::{Direction, FlowKey, Steering};
use crate::l4::ports::PortPool;
use crate::l7::config::Kind;
use crate::offload::{OffloadState, RulePair};
use crate::stored::{Optional, OptionalNumber, OptionalPosition};
use crate::time::{Duration, Time};
use crate::worker::{Known, Statistics};
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::mem::offset_of;
use zerocopy::TryFromBytes;

/// A packet that arrived while no process was there gets so long to be repeated.
const GRACE: Duration = Duration::from_secs(1);
/// No backend's number: of a connection whose backend has gone.
const NO_BACKEND: u16 = u16::MAX;

/// The fate of the spliced connections that another process left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AdoptedSplices {
    /// Clients' connections that go on.
    pub client_conns: u64,
    /// Connections to backends that go on.
    pub backend_conns: u64,
    /// Clients' connections that the engine carries.
    pub offloaded: u64,
    /// Connections that are reset because they, or those that they were joined to, were being changed.
    pub interrupted: u64,
    /// Connections that are reset because their service has gone or become another; or forgotten, if they were being
    /// changed too.
    pub without_service: u64,
    /// Connections of other workers, which are reset.
    pub misplaced: u64,
    /// Entries that made no sense. Always zero after a crash; anything else means that something wrote into the memory.
    pub invalid: u64,
}

impl AdoptedSplices {
    /// Adds those of another worker.
    pub fn add(&mut self, other: &AdoptedSplices) {
        self.client_conns += other.client_conns;
        self.backend_conns += other.backend_conns;
        self.offloaded += other.offloaded;
        self.interrupted += other.interrupted;
        self.without_service += other.without_service;
        self.misplaced += other.misplaced;
        self.invalid += other.invalid;
    }
}

/// The parts of a worker that adoption needs.
pub(crate) struct Adoption<'a> {
    pub(crate) now: Time,
    /// The worker's number.
    pub(crate) worker: u16,
    pub(crate) snapshot: &'a Snapshot,
    /// Snapshots of configurations that were in force before.
    pub(crate) formers: &'a [Arc<Snapshot>],
    pub(crate) ports: &'a mut PortPool,
    pub(crate) loads: &'a Loads,
    pub(crate) known: &'a Known,
    pub(crate) steering: &'a Steering,
    pub(crate) statistics: &'a mut Statistics,
    /// Requests to the engine.
    pub(crate) ops: &'a mut VecDeque<RuleOp>,
    /// Whether the engine can bring packets to another worker than theirs.
    pub(crate) diverts: bool,
    /// Whether the engine holds the rule of a flow.
    pub(crate) engine: &'a dyn Fn(&FlowKey) -> bool,
}

/// Reads a field of an entry that may be torn; the field is one that never changes.
fn field<T: TryFromBytes>(bytes: &[u8], at: usize) -> Option<T> {
    T::try_read_from_bytes(bytes.get(at..at + size_of::<T>())?).ok()
}

/// An end of which nothing is known.
fn unknown_peer() -> Peer {
    Peer::new(0, 0, &Abilities { mss: u16::MAX, scale: None, sack: false })
}

impl ClientConn {
    /// One to be reset, in the place of one that may be torn.
    fn renewed(now: Time, bytes: &[u8]) -> Option<ClientConn> {
        let key: TcpKey = field(bytes, offset_of!(ClientConn, key))?;
        let service = field(bytes, offset_of!(ClientConn, service))?;
        let mut renewed = ClientConn {
            port: field(bytes, offset_of!(ClientConn, port))?,
            first: field(bytes, offset_of!(ClientConn, first))?,
            is_tls: field(bytes, offset_of!(ClientConn, is_tls))?,
            is_unknown: true,
            ..ClientConn::new(now, &key.flow(), service, unknown_peer())
        };
        renewed.become_reset(now);
        Some(renewed)
    }

    /// From now on whatever its client sends is answered with RST, and its client is asked for a packet at once. It has
    /// no backend connection any more; its buffers are not released.
    pub(super) fn become_reset(&mut self, now: Time) {
        self.state = ClientConnState::Resetting;
        (self.is_open, self.is_clamped) = (false, false);
        (self.asks, self.reset_with) = (0, OptionalNumber::default());
        (self.deadline, self.challenge_after) = (now, now);
        (self.backend_conn, self.left) = (OptionalPosition::NONE, OptionalPosition::NONE);
        (self.input, self.again, self.peer.owned) = (Optional::NONE, Optional::NONE, Optional::NONE);
        self.framing = super::state::framing::Framing::default();
    }

    /// Whether this process could have left it.
    fn is_plausible(&self) -> bool {
        let joined = !matches!(self.state, ClientConnState::Spliced) || self.backend_conn.get().is_some();
        joined
            && self.peer.is_plausible()
            && self.exchange.is_plausible()
            && self.key.is_plausible()
            && self.rule_key.is_plausible()
            && self.framing.is_plausible()
    }
}

impl BackendConn {
    /// One to be reset, in the place of one that may be torn.
    fn renewed(now: Time, bytes: &[u8]) -> Option<BackendConn> {
        let key: TcpKey = field(bytes, offset_of!(BackendConn, key))?;
        let number = field(bytes, offset_of!(BackendConn, number))?;
        let mut renewed = BackendConn {
            port: field(bytes, offset_of!(BackendConn, port))?,
            is_unknown: true,
            ..BackendConn::new(now, &key.flow(), number, unknown_peer())
        };
        renewed.become_reset(now);
        Some(renewed)
    }

    /// From now on whatever its backend sends is answered with RST, and its backend is asked for a packet at once.
    pub(super) fn become_reset(&mut self, now: Time) {
        self.state = BackendConnState::Resetting;
        (self.tries, self.reset_with, self.again, self.deadline) = (0, OptionalNumber::default(), now, now);
        self.is_counted = false;
        self.client_conn = OptionalPosition::NONE;
        (self.input, self.peer.owned) = (Optional::NONE, Optional::NONE);
    }

    /// Whether this process could have left it.
    fn is_plausible(&self) -> bool {
        let joined = match self.state {
            BackendConnState::Attached | BackendConnState::Connecting => self.client_conn.get().is_some(),
            BackendConnState::Idle => self.client_conn.is_none(),
            _ => true,
        };
        joined && self.peer.is_plausible() && self.key.is_plausible()
    }
}

impl Splices {
    /// Takes over what another process has left in the memory of this one, into which nothing has been put yet.
    pub(crate) fn adopt(&mut self, mut cx: Adoption<'_>) -> AdoptedSplices {
        self.configurations.adopt(cx.snapshot.id, cx.formers);
        let (mut adopted, now) = (self.believe(cx.now), cx.now);
        // Each entry is an operation of its own: a process that is killed meanwhile leaves one that is not believed.
        for position in 0..self.client_conns.reach() {
            self.take_in_client(&mut cx, position, &mut adopted);
            self.finish_operation();
        }
        let mut idle = Vec::new();
        for position in 0..self.backend_conns.reach() {
            idle.extend(self.take_in_backend(&mut cx, position, &mut adopted).map(|deadline| (deadline, position)));
            self.finish_operation();
        }
        idle.sort_unstable();
        idle.iter().for_each(|&(_, position)| self.idle.push(&mut self.backend_conns, position));
        for (released, port) in self.resting.at(now, cx.snapshot.pool.time_wait) {
            let mut backends = cx.snapshot.services.iter().flat_map(|service| &service.backends);
            if let Some(backend) = backends.find(|backend| backend.endpoint == port.backend) {
                let number = backend.number.into();
                let is_marked = cx.ports.mark(number, port.source);
                // Another worker's connection has it, and this worker does not hear of its end: it stays marked.
                let _ = is_marked && port.is_lent == 0 && cx.ports.release(released, number, port.source, true);
            }
        }
        self.tell(&mut cx.statistics.http);
        adopted
    }

    /// Finds the entries that can be believed, and makes all others such as are to be reset, or none.
    pub(super) fn believe(&mut self, now: Time) -> AdoptedSplices {
        let mut adopted = AdoptedSplices::default();
        let done = self.done.last();
        let client_conns = self.client_conns.adopt(done, |bytes| ClientConn::renewed(now, bytes));
        let backend_conns = self.backend_conns.adopt(done, |bytes| BackendConn::renewed(now, bytes));
        adopted.invalid += (client_conns.invalid + backend_conns.invalid) as u64;
        adopted.interrupted += (client_conns.interrupted + backend_conns.interrupted) as u64;
        self.finish_operation();
        self.forget_nonsense(&mut adopted);
        self.part_strangers(now, &mut adopted);
        adopted
    }

    /// Forgets entries that this program cannot have left, and claims the buffers of all others.
    fn forget_nonsense(&mut self, adopted: &mut AdoptedSplices) {
        let mut claims = Claims::new(&self.buffers);
        for position in 0..self.client_conns.reach() {
            let Some(client_conn) = self.client_conns.get(position) else { continue };
            if !client_conn.is_plausible() || !claims.claim(&client_conn.buffers()) {
                self.client_conns.forget(position);
                adopted.invalid += 1;
            }
        }
        for position in 0..self.backend_conns.reach() {
            let Some(backend_conn) = self.backend_conns.get(position) else { continue };
            if !backend_conn.is_plausible() || !claims.claim(&backend_conn.buffers()) {
                self.backend_conns.forget(position);
                adopted.invalid += 1;
            }
        }
        self.buffers.adopt(&claims);
    }

    /// Resets connections that are joined to one that does not know them.
    fn part_strangers(&mut self, now: Time, adopted: &mut AdoptedSplices) {
        for position in 0..self.client_conns.reach() {
            let Some(client_conn) = self.client_conns.get(position) else { continue };
            let knows = |backend_conn: &BackendConn| {
                backend_conn.client_conn.get() == Some(position)
                    && matches!(backend_conn.state, BackendConnState::Connecting | BackendConnState::Attached)
            };
            let joined = client_conn.backend_conn.get();
            if joined.is_some_and(|joined| !self.backend_conns.get(joined).is_some_and(knows)) {
                adopted.interrupted += 1;
                self.reset_client_later(now, position);
                self.finish_operation();
            }
        }
        for position in 0..self.backend_conns.reach() {
            let Some(backend_conn) = self.backend_conns.get(position) else { continue };
            let knows = |client_conn: &ClientConn| client_conn.backend_conn.get() == Some(position);
            let joined = backend_conn.client_conn.get();
            if joined.is_some_and(|joined| !self.client_conns.get(joined).is_some_and(knows)) {
                adopted.interrupted += 1;
                self.reset_backend_later(now, position);
                self.finish_operation();
            }
        }
    }

    /// Has a client reset by its timer.
    fn reset_client_later(&mut self, now: Time, position: u32) {
        self.release_buffers(position);
        if let Some(client_conn) = self.client_conns.get_mut(position) {
            client_conn.become_reset(now);
        }
    }

    /// Has a backend reset by its timer.
    fn reset_backend_later(&mut self, now: Time, position: u32) {
        let Some(backend_conn) = self.backend_conns.get_mut(position) else { return };
        backend_conn.peer.disown(&mut self.buffers);
        if let Some(input) = backend_conn.input.take() {
            self.buffers.release(input);
        }
        backend_conn.become_reset(now);
    }

    /// Makes an entry a client connection of this worker's.
    fn take_in_client(&mut self, cx: &mut Adoption<'_>, position: u32, adopted: &mut AdoptedSplices) {
        let Some(client_conn) = self.client_conns.get(position) else { return };
        let (key, now) = (client_conn.key.flow(), cx.now);
        let is_over = matches!(client_conn.state, ClientConnState::Resetting | ClientConnState::PendingRemoval);
        let is_misplaced = cx.steering.worker(&key.source) != cx.worker;
        let is_served_now = is_served(cx.snapshot, client_conn);
        let is_idle = client_conn.state == ClientConnState::Reading && client_conn.input.is_none();
        let closes = is_idle && !is_misplaced && !is_served_now && !client_conn.is_unknown;
        if closes {
            adopted.without_service += 1;
        } else if !is_over && (is_misplaced || !is_served_now) {
            let backend_conn = client_conn.backend_conn.get();
            *(if is_misplaced { &mut adopted.misplaced } else { &mut adopted.without_service }) += 1;
            self.reset_client_later(now, position);
            backend_conn.into_iter().for_each(|backend_conn| self.reset_backend_later(now, backend_conn));
        }
        let Some(client_conn) = self.client_conns.get_mut(position) else { return };
        if client_conn.is_unknown && !is_served(cx.snapshot, client_conn) {
            // Only a service vouches for the ends of one that may be torn: no packet goes to other ends.
            adopted.without_service += 1;
            self.client_conns.forget(position);
            return;
        }
        let keys = [key, client_conn.rule_key.flow()];
        // Of one that may be torn the engine keeps nothing; and the backend connection that one in software had rules for
        // may be another client's now.
        let held = match client_conn.is_unknown || client_conn.pair.state() == OffloadState::Software {
            true => 0,
            false => (0..2).filter(|&at| (cx.engine)(&keys[at])).fold(0, |held, at| held | 1 << at),
        };
        let is_refused = held == 0 && client_conn.pair.state() != OffloadState::Software;
        client_conn.pair = RulePair::holding(held);
        self.rules[usize::from(!key.is_ipv4())] += held.count_ones();
        let is_removed = client_conn.state == ClientConnState::PendingRemoval;
        if is_removed && held == 0 {
            self.client_conns.forget(position);
            return;
        }
        if !is_removed {
            if self.find(&key).is_some() || !self.index(&key, position, Direction::FromClient) {
                self.release_buffers(position);
                self.client_conns.forget(position);
                adopted.invalid += 1;
                return;
            }
            cx.known.add(cx.steering.hash(&key.source));
        }
        let Some(client_conn) = self.client_conns.get_mut(position) else { return };
        client_conn.wake(now);
        if closes {
            // It waits for its next request: its timer closes it in order.
            client_conn.deadline = now;
        }
        let owned = client_conn.peer.owned.as_ref().map_or(client_conn.deadline, |owned| owned.due);
        let next = client_conn.deadline.min(owned);
        if client_conn.is_open
            && let Some(service) = cx.statistics.services.get_mut(usize::from(client_conn.service))
        {
            service.client_conns_now += 1;
        }
        if !closes && !matches!(client_conn.state, ClientConnState::Resetting | ClientConnState::PendingRemoval) {
            adopted.client_conns += 1;
            adopted.offloaded += u64::from(held != 0);
        }
        let connecting = client_conn.backend_conn.get().and_then(|joined| self.backend_conns.get(joined));
        let connecting = connecting.is_some_and(|joined| joined.state == BackendConnState::Connecting);
        if client_conn.waits_for_engine() && !connecting {
            // It has its answer now.
            self.ready.push_back(position);
        }
        if is_refused {
            self.release_clamp_later(position);
        }
        self.stamp_client(position, next);
    }

    /// Makes an entry a backend connection of this worker's. Returns the deadline of one that is idle.
    fn take_in_backend(&mut self, cx: &mut Adoption<'_>, position: u32, adopted: &mut AdoptedSplices) -> Option<Time> {
        let entry = self.backend_conns.get_mut(position)?;
        let (key, now) = (entry.key.flow(), cx.now);
        let target = entry.target();
        let named = cx.snapshot.backend(entry.number).map(|(_, backend)| backend);
        let is_same = named.is_some_and(|backend| backend.endpoint == target);
        if !is_same && entry.is_unknown {
            // Only a backend vouches for the ends of one that may be torn: no packet goes to other ends.
            adopted.without_service += 1;
            self.backend_conns.forget(position);
            return None;
        }
        if !is_same {
            entry.number = NO_BACKEND;
            if entry.state == BackendConnState::Idle {
                // Idle ones are listed by backend.
                entry.become_reset(now);
            }
        }
        entry.is_diverted = cx.steering.worker(&entry.own_end()) != cx.worker;
        // It is closed after its exchange, so that its rule goes.
        entry.is_spent |= entry.is_diverted;
        if entry.is_diverted && !cx.diverts && entry.state != BackendConnState::Resetting {
            let client_conn = entry.client_conn.get();
            adopted.misplaced += 1;
            client_conn.into_iter().for_each(|client_conn| self.reset_client_later(now, client_conn));
            self.reset_backend_later(now, position);
        }
        let entry = self.backend_conns.get_mut(position)?;
        let is_wanted = is_same && named.is_some_and(|backend| backend.state != BackendState::Disabled);
        let is_over = matches!(entry.state, BackendConnState::TimeWait | BackendConnState::Resetting);
        if !is_wanted && !is_over {
            (entry.is_unwanted, entry.deadline) = (true, now);
        }
        entry.wake(now);
        let (number, source, counted, state) = (entry.number, entry.own_end(), entry.is_counted, entry.state);
        let (deadline, client_conn) = (entry.deadline, entry.client_conn.get());
        let next = entry.due();
        if self.find(&key).is_some() || !self.index(&key, position, Direction::FromBackend) {
            let client_conn = self.backend_conns.get(position).and_then(|entry| entry.client_conn.get());
            client_conn.into_iter().for_each(|client_conn| self.reset_client_later(now, client_conn));
            self.reset_backend_later(now, position);
            self.backend_conns.forget(position);
            adopted.invalid += 1;
            return None;
        }
        cx.ports.mark(u32::from(number), source);
        let carries =
            |client_conn: &ClientConn| client_conn.pair.holds(Direction::FromBackend) && client_conn.rule_key.is(&key);
        if !client_conn.and_then(|position| self.client_conns.get(position)).is_some_and(carries) {
            self.divert(position, &mut |op| cx.ops.push_back(op));
        }
        cx.known.add(cx.steering.hash(&source));
        if counted {
            cx.loads.add(u32::from(number));
        }
        if let Some(backend) = cx.statistics.backends.get_mut(usize::from(number)) {
            backend.connections_now += 1;
            backend.open_now += u64::from(state != BackendConnState::TimeWait);
        }
        adopted.backend_conns += u64::from(!matches!(state, BackendConnState::Resetting));
        next.into_iter().for_each(|next| self.stamp_backend(position, next));
        (state == BackendConnState::Idle).then_some(deadline)
    }
}

impl ClientConn {
    /// Its times, for a process that begins now.
    fn wake(&mut self, now: Time) {
        self.stamped = Time::from_nanos(u64::MAX);
        for time in [&mut self.created, &mut self.last_seen, &mut self.taken, &mut self.looked] {
            *time = (*time).min(now);
        }
        if self.state != ClientConnState::Resetting {
            self.deadline = self.deadline.max(now + GRACE);
        }
        self.offer_after = self.offer_after.min(now + GRACE);
        self.challenge_after = self.challenge_after.min(now + GRACE);
        self.peer.wake(now);
    }

    /// Whether rules that the engine holds of it are not those that it wants now.
    pub(super) fn has_unwanted_rules(&self) -> bool {
        use super::state::exchange::Message;
        let is_endless = matches!(self.exchange.response.get(), Message::Endless);
        self.pair.held() != self.wanted
            || self.is_offloaded_down_only() && self.state != ClientConnState::Spliced
            || is_endless && (self.peer.has_closed || self.peer.was_closed)
            || matches!(self.state, ClientConnState::PendingRemoval | ClientConnState::Waiting)
            || self.peer.was_closed && self.is_between_exchanges()
            || self.backend_conn.is_none()
    }

    /// Whether it may have waited for an answer of the engine, which does not owe it any more.
    fn waits_for_engine(&self) -> bool {
        let settles = self.is_between_exchanges() && self.backend_conn.get().is_some();
        settles || self.state == ClientConnState::Waiting || self.is_to_leave_engine()
    }

    /// Whether the engine holds rules of it, owes no answer, and should hold them no longer.
    pub(super) fn is_to_leave_engine(&self) -> bool {
        self.pair.state() == OffloadState::Offloaded && self.has_unwanted_rules()
    }
}

impl BackendConn {
    /// Its times, for a process that begins now.
    fn wake(&mut self, now: Time) {
        self.stamped = Time::from_nanos(u64::MAX);
        self.created = self.created.min(now);
        (self.next_idle, self.previous_idle) = (OptionalPosition::NONE, OptionalPosition::NONE);
        if self.state != BackendConnState::Resetting && !self.is_unwanted {
            self.deadline = self.deadline.max(now + GRACE);
        }
        self.peer.wake(now);
    }
}

/// Whether the snapshot has the connection's service under its number, of the kind that it was.
fn is_served(snapshot: &Snapshot, client_conn: &ClientConn) -> bool {
    let Some(service) = snapshot.services.get(usize::from(client_conn.service)) else { return false };
    service.state != ServiceState::Vacant
        && service.endpoint == client_conn.key.destination
        && match service.kind {
            Kind::Http(_) => !client_conn.is_tls,
            Kind::Tls(_) => client_conn.is_tls,
            _ => false,
        }
}

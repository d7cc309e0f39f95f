//! A worker takes over the spliced connections that another process has left.
//!
//! A connection that the last process was changing when it ended is not believed, nor is its partner: both ends are reset,
//! by numbers that the ends say themselves (`stages/reset.rs`). All other connections fit each other (`table::numbered`)
//! and go on. Index, timers, idle lists, free buffers, ports in use and loads follow from them. The engine says which rules
//! there are; the caller takes away those that [`Splices::rules_known`] does not name.
//!
//! Bytes that no process of this layout can have left are no connection: they are forgotten without a word to either
//! end, and what was joined to them is reset. Seals (`state/seal.rs`) tell whether an entry's ends are those it began with,
//! and whether a client connection and a backend connection are each other's.

use super::Splices;
use super::adopt_entry::{NO_BACKEND, longest_of_backends};
use super::limiting::count_for_limits;
use super::stalled::Stalled;
use super::state::buffers::Claims;
use super::state::entry::{BackendConn, BackendConnState, ClientConn, ClientConnState};
use crate::balance::Loads;
use crate::config::{BackendState, ServiceState, Snapshot};
use crate::engine::RuleOp;
use crate::flow::{Direction, FlowKey, Steering};
use crate::l4::ports::PortPool;
use crate::l7::config::Kind;
use crate::limit::LimitTable;
use crate::offload::{OffloadState, RulePair};
use crate::record;
use crate::time::{Duration, Time};
use crate::worker::{Known, Statistics};
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;

/// The fate of the spliced connections that another process left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AdoptedSplices {
    /// Clients' connections that go on.
    pub client_conns: u64,
    /// Connections to backends that go on.
    pub backend_conns: u64,
    /// Clients' connections that the engine carries.
    pub offloaded: u64,
    /// Connections that are reset because they, or those that they were joined to, were being changed or are forgotten.
    pub interrupted: u64,
    /// Connections that are reset because their service has gone or become another.
    pub without_service: u64,
    /// Connections of other workers, which are reset.
    pub misplaced: u64,
    /// Entries that are forgotten because their bytes are no connection, in whatever state.
    ///
    /// This and the next three are always zero after a crash; anything else means that something else wrote into the
    /// memory, or that it is of another steering key.
    pub invalid: u64,
    /// Entries that are forgotten because their ends, or what they lead to, are not those that they were sealed with.
    pub unsealed: u64,
    /// Entries that are forgotten because a buffer is not theirs.
    pub without_buffer: u64,
    /// Entries that are forgotten because another one has their ends.
    pub duplicates: u64,
    /// Ports that should rest and may be used at once, because there were more than are written down: at least so many.
    pub resting_overwritten: u64,
}

impl AdoptedSplices {
    /// Entries that are forgotten without a word to their ends.
    pub fn forgotten(&self) -> u64 {
        self.invalid + self.unsealed + self.without_buffer + self.duplicates
    }

    /// Adds those of another worker.
    pub fn add(&mut self, other: &AdoptedSplices) {
        self.client_conns += other.client_conns;
        self.backend_conns += other.backend_conns;
        self.offloaded += other.offloaded;
        self.interrupted += other.interrupted;
        self.without_service += other.without_service;
        self.misplaced += other.misplaced;
        self.invalid += other.invalid;
        self.unsealed += other.unsealed;
        self.without_buffer += other.without_buffer;
        self.duplicates += other.duplicates;
        self.resting_overwritten += other.resting_overwritten;
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
    /// The clients of limits.
    pub(crate) limits: &'a LimitTable,
    /// Requests to the engine.
    pub(crate) ops: &'a mut VecDeque<RuleOp>,
    /// Whether the engine can bring packets to another worker than theirs.
    pub(crate) diverts: bool,
    /// Whether the engine holds the rule of a flow.
    pub(crate) engine: &'a dyn Fn(&FlowKey) -> bool,
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
        let (mut idle, longest) = (Vec::new(), longest_of_backends(cx.snapshot));
        for position in 0..self.backend_conns.reach() {
            idle.extend(
                self.take_in_backend(&mut cx, position, longest, &mut adopted).map(|deadline| (deadline, position)),
            );
            self.finish_operation();
        }
        idle.sort_unstable();
        idle.iter().for_each(|&(_, position)| self.idle.push(&mut self.backend_conns, position));
        adopted.resting_overwritten = self.resting.overwritten(now, cx.snapshot.pool.time_wait);
        for (released, port) in self.resting.at(now, cx.snapshot.pool.time_wait) {
            let mut backends = cx.snapshot.services.iter().flat_map(|service| &service.backends);
            if let Some(backend) = backends.find(|backend| backend.endpoint == port.backend) {
                let number = backend.number.into();
                let is_marked = cx.ports.mark(number, port.source);
                // Another worker's connection has it, and this worker does not hear of its end: it stays marked.
                let _ = is_marked && port.is_lent == 0 && cx.ports.release(released, number, port.source, true);
            }
        }
        let has_stalled = self.client_conns.iter().any(|(_, client_conn)| client_conn.may_be_stalled(now));
        self.stalled = has_stalled.then(|| Stalled::new(now));
        self.tell(&mut cx.statistics.http);
        adopted
    }

    /// Finds the entries that can be believed, and makes all others such as are to be reset, or none.
    pub(super) fn believe(&mut self, now: Time) -> AdoptedSplices {
        let mut adopted = AdoptedSplices::default();
        let done = self.done.last();
        let (seals, mut unsealed) = (&self.seals, 0);
        let client_conns = self.client_conns.adopt(done, |position, bytes| {
            let renewed = ClientConn::renewed(now, bytes)?;
            let is_sealed = renewed.is_sealed(seals, position);
            unsealed += usize::from(!is_sealed);
            is_sealed.then_some(renewed)
        });
        let backend_conns = self.backend_conns.adopt(done, |position, bytes| {
            let mut renewed = BackendConn::renewed(now, bytes)?;
            let is_sealed = renewed.is_sealed(seals, position);
            unsealed += usize::from(!is_sealed);
            is_sealed.then_some(renewed)
        });
        adopted.unsealed += unsealed as u64;
        adopted.invalid += (client_conns.invalid + backend_conns.invalid - unsealed) as u64;
        adopted.interrupted += (client_conns.interrupted + backend_conns.interrupted) as u64;
        self.finish_operation();
        self.forget_nonsense(&mut adopted);
        self.part_strangers(now, &mut adopted);
        adopted
    }

    /// Forgets entries that this program cannot have left, and has the buffers of all others.
    fn forget_nonsense(&mut self, adopted: &mut AdoptedSplices) {
        let mut claims = Claims::new(&self.buffers);
        self.client_conns.iter().for_each(|(_, client_conn)| claims.claim(&client_conn.buffers()));
        self.backend_conns.iter().for_each(|(_, backend_conn)| claims.claim(&backend_conn.buffers()));
        for position in 0..self.client_conns.reach() {
            let Some(client_conn) = self.client_conns.get(position) else { continue };
            let reason = match () {
                _ if !client_conn.is_sealed(&self.seals, position) => &mut adopted.unsealed,
                _ if !client_conn.is_plausible() => &mut adopted.invalid,
                _ if !claims.grant(&self.buffers, &client_conn.buffers()) => &mut adopted.without_buffer,
                _ => continue,
            };
            *reason += 1;
            self.client_conns.forget(position);
        }
        for position in 0..self.backend_conns.reach() {
            let Some(backend_conn) = self.backend_conns.get_mut_unnumbered(position) else { continue };
            let is_sealed =
                backend_conn.is_sealed(&self.seals, position) && backend_conn.is_idle_as_sealed(&self.seals);
            let reason = match () {
                _ if !is_sealed => &mut adopted.unsealed,
                _ if !backend_conn.is_plausible() => &mut adopted.invalid,
                _ if !claims.grant(&self.buffers, &backend_conn.buffers()) => &mut adopted.without_buffer,
                _ => continue,
            };
            *reason += 1;
            self.backend_conns.forget(position);
        }
        self.buffers.adopt(&claims);
    }

    /// Resets connections that are joined to one that does not know them.
    fn part_strangers(&mut self, now: Time, adopted: &mut AdoptedSplices) {
        for position in 0..self.client_conns.reach() {
            let Some(client_conn) = self.client_conns.get(position) else { continue };
            let knows = |backend_conn: &BackendConn| {
                backend_conn.client_conn.get() == Some(position)
                    && backend_conn.pairing == self.seals.pair(Some(client_conn.seal), backend_conn.seal)
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
            let knows = |client_conn: &ClientConn| {
                client_conn.backend_conn.get() == Some(position)
                    && backend_conn.pairing == self.seals.pair(Some(client_conn.seal), backend_conn.seal)
            };
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
                adopted.duplicates += 1;
                return;
            }
            cx.known.add(cx.steering.hash(&key.source));
        }
        let Some(client_conn) = self.client_conns.get_mut(position) else { return };
        client_conn.wake(now, cx.snapshot);
        if client_conn.exchange.record != 0 {
            client_conn.exchange.record = record::ADOPTED;
        }
        if client_conn.exchange.trace != 0 {
            // The ids of its number are another request's in this process.
            client_conn.exchange.trace = self.ids.next_number();
        }
        if closes {
            // It waits for its next request: its timer closes it in order.
            client_conn.deadline = now;
        }
        let owned = client_conn.peer.owned.as_ref().map_or(client_conn.deadline, |owned| owned.due);
        let next = client_conn.deadline.min(owned);
        if client_conn.is_open {
            count_for_limits(cx.snapshot, cx.limits, (client_conn.service, &client_conn.key.source.address), true);
            if let Some(service) = cx.statistics.services.get_mut(usize::from(client_conn.service)) {
                service.client_conns_now += 1;
            }
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
    fn take_in_backend(
        &mut self,
        cx: &mut Adoption<'_>,
        position: u32,
        longest: Duration,
        adopted: &mut AdoptedSplices,
    ) -> Option<Time> {
        let entry = self.backend_conns.get_mut(position)?;
        let (key, now) = (entry.key.flow(), cx.now);
        let target = entry.target();
        let named = cx.snapshot.backend(entry.number).map(|(_, backend)| backend);
        let is_same = named.is_some_and(|backend| backend.endpoint == target);
        if !is_same && entry.number != NO_BACKEND {
            entry.become_orphan(&self.seals, position);
        }
        if !is_same && entry.state == BackendConnState::Idle {
            // Idle ones are listed by backend.
            entry.become_reset(now);
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
        entry.wake(now, longest);
        let (number, source, counted, state) = (entry.number, entry.own_end(), entry.is_counted, entry.state);
        let (deadline, client_conn) = (entry.deadline, entry.client_conn.get());
        let next = entry.due();
        if self.find(&key).is_some() || !self.index(&key, position, Direction::FromBackend) {
            let client_conn = self.backend_conns.get(position).and_then(|entry| entry.client_conn.get());
            client_conn.into_iter().for_each(|client_conn| self.reset_client_later(now, client_conn));
            self.reset_backend_later(now, position);
            self.backend_conns.forget(position);
            adopted.duplicates += 1;
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

//! Connections' beginning and end: creation, Pass entries, removal.

use super::half_open::HalfOpen;
use super::{Drop, Worker, passive, value};
use crate::config::{Forwarding, Service, UnknownPacket, WhenFull};
use crate::flow::{Direction, Endpoint, FlowKey, Protocol};
use crate::frame::{Batch, Frame};
use crate::l4::connection::{Connection, Flags, State, Volume};
use crate::offload::OffloadPolicy;
use crate::offload::OffloadState;
use crate::record::{Ending, Record, flags};
use crate::table::ageing::Ageing;
use crate::table::{Position, Table};
use crate::time::Time;
use crate::wire::Transport;
use crate::wire::tcp::{ACK, SYN};

/// Backends tried for a new connection before it is refused because its way to each is taken.
pub const TRIES_MAX: usize = 4;
/// Connections looked at for one to give up when the table is full.
pub const EVICTION_TRIES_MAX: usize = 32;

impl<P: OffloadPolicy, T: Table<FlowKey>> Worker<P, T> {
    /// A packet to a service that belongs to no connection: the first of one, or a stray.
    pub(super) fn new_flow<F: Frame>(&mut self, now: Time, frame: F, at: Transport, service: u16, tx: &mut Batch<F>) {
        if self.denies(service, &at) {
            return self.drop_frame(Drop::Denied);
        }
        let settings = &self.snapshot.services[usize::from(service)];
        let (unknown, forwarding) = (settings.unknown, settings.forwarding);
        let first = at.key.protocol == Protocol::Udp || at.tcp_flags & (SYN | ACK) == SYN;
        if first && passive::is_broken(&frame, &at) {
            return self.drop_frame(Drop::Checksum);
        }
        let address = at.key.source.address;
        if first && let Some(limited) = self.begin_limited(now, service, &address) {
            self.statistics.services[usize::from(service)].refused += 1;
            return self.refuse_limited(now, frame, &at, limited, tx);
        }
        let made = match (first, unknown, forwarding) {
            (true, _, _) => self.create(now, &at.key, service, false),
            (false, UnknownPacket::PickUp, Forwarding::Nat | Forwarding::Direct) => {
                self.create(now, &at.key, service, true)
            }
            (false, UnknownPacket::Reset, _) => return self.refuse(now, frame, &at, Drop::Unknown, tx),
            (false, _, _) => return self.drop_frame(Drop::Unknown),
        };
        if first {
            self.end_beginning(service, &address);
        }
        match made {
            Ok(position) => {
                self.excuse_odd(position, frame.bytes(), &at);
                self.forward(now, frame, at, position, Direction::FromClient, tx)
            }
            Err(reason) => {
                self.statistics.services[usize::from(service)].refused += 1;
                match reason {
                    Drop::NoBackend | Drop::BackendsFull | Drop::PoolExhausted => {
                        self.refuse(now, frame, &at, reason, tx)
                    }
                    Drop::TableFull if self.snapshot.when_full == WhenFull::Reset => {
                        self.refuse(now, frame, &at, reason, tx)
                    }
                    // the client tries again by itself, and there may be room then
                    _ => self.drop_frame(reason),
                }
            }
        }
    }

    /// A connection of which a packet of its backend came first, if it is one ([`guess`](super::guess)): the client flow `key`
    /// to the backend at `index` of `service`.
    pub(super) fn create_guessed(
        &mut self,
        now: Time,
        key: &FlowKey,
        service: u16,
        index: usize,
    ) -> Result<Position, Drop> {
        if self.slab.len() >= self.slab.capacity() && !self.make_room(now) {
            return Err(Drop::TableFull);
        }
        let mut connection = self.draft(now, key, service, index, true)?;
        // Until its client speaks a forged packet may have made it, and how it began is not known.
        connection.state = State::SynReceived;
        connection.flags.set(Flags::GUESSED);
        connection.flags.set(Flags::JUDGED);
        self.admit(now, connection)
    }

    /// Makes a connection of the client flow `key` to a backend of `service`.
    fn create(&mut self, now: Time, key: &FlowKey, service: u16, picked_up: bool) -> Result<Position, Drop> {
        if self.slab.len() >= self.slab.capacity() && !self.make_room(now) {
            return Err(Drop::TableFull);
        }
        for _ in 0..TRIES_MAX {
            let balancer = &mut self.balancers[usize::from(service)];
            let chosen = if picked_up { balancer.pick_up(key) } else { balancer.choose(key) };
            let Some(index) = chosen.map(usize::from) else {
                return Err(if !picked_up && balancer.is_full() { Drop::BackendsFull } else { Drop::NoBackend });
            };
            let connection = self.draft(now, key, service, index, picked_up)?;
            let is_one_way = connection.flags.has(Flags::DIRECT);
            if is_one_way || self.clear_way(now, &connection.key(Direction::FromBackend)) {
                return self.admit(now, connection);
            }
            self.return_port(now, &connection);
            if picked_up {
                break;
            }
        }
        Err(Drop::TupleConflict)
    }

    /// Whether access rules of `service` refuse the connection that a packet would begin.
    pub(super) fn denies(&mut self, service: u16, at: &Transport) -> bool {
        super::is_denied(&self.snapshot, &self.caps, &mut self.statistics, (service, at))
    }

    /// Ends the oldest connection that a forged packet may have made, if one is found soon: a flood of first packets pushes
    /// itself out, never a connection that has been established.
    pub(super) fn make_room(&mut self, now: Time) -> bool {
        self.evict(now, |worker| &worker.half_open) || self.evict(now, |worker| &worker.yielding)
    }

    /// Ends the oldest connection of a list that can be ended now.
    fn evict(&mut self, now: Time, list: impl Fn(&Self) -> &HalfOpen) -> bool {
        let mut oldest = list(self).first();
        for _ in 0..EVICTION_TRIES_MAX {
            let Some(position) = oldest else { return false };
            oldest = list(self).after(position);
            if self.begin_removal(now, position) {
                self.statistics.evicted += 1;
                // one that began anew with its rules in force takes a while to go
                if self.slab.len() < self.slab.capacity() {
                    return true;
                }
            }
        }
        false
    }

    /// A connection as it will lie in the slab, its source port taken from the pool if it needs one.
    #[inline(always)]
    pub(super) fn draft(
        &mut self,
        now: Time,
        key: &FlowKey,
        service: u16,
        index: usize,
        picked_up: bool,
    ) -> Result<Connection, Drop> {
        let settings = &self.snapshot.services[usize::from(service)];
        let backend = &settings.backends[index];
        let backend_number = backend.number;
        let mut flags = Flags::default();
        let source = match settings.forwarding {
            Forwarding::Nat => key.source,
            Forwarding::Direct => {
                // The backend's SYN-ACK does not pass here, so a connection that fails says nothing of its backend.
                flags.set(Flags::DIRECT);
                flags.set(Flags::JUDGED);
                key.source
            }
            Forwarding::FullNat => {
                flags.set(Flags::FULL_NAT);
                self.ports.take(now, u32::from(backend_number)).map_err(|_| Drop::PoolExhausted)?
            }
        };
        let state = match key.protocol {
            Protocol::Udp => State::UdpNew,
            Protocol::Tcp if picked_up => State::Established,
            Protocol::Tcp => State::SynSent,
        };
        let ends = [key.source, key.destination, backend.endpoint, source];
        let begun = Connection::new(now, key.protocol, state, ends);
        Ok(Connection { flags, service, backend_number, ..begun })
    }

    /// Makes sure that no entry holds the backend flow `key`: a Pass entry and a connection that is over give way.
    pub(super) fn clear_way(&mut self, now: Time, key: &FlowKey) -> bool {
        let Some((holder, _)) = self.find(key) else { return true };
        let state = self.slab.at(holder).state;
        (state == State::Pass || state.is_over()) && self.begin_removal(now, holder)
    }

    /// Puts a connection into slab and index, with a stamp of its deadline, and counts it.
    pub(super) fn admit(&mut self, now: Time, connection: Connection) -> Result<Position, Drop> {
        let Some(position) = self.slab.insert(connection) else {
            self.return_port(now, &connection);
            return Err(Drop::TableFull);
        };
        if !self.index(position, &connection) {
            self.slab.remove(position);
            self.return_port(now, &connection);
            return Err(Drop::TableFull);
        }
        self.stamps.started(position, now + self.timeout(&connection));
        self.remember_half_open(position);
        let number = self.backend_number(position);
        self.statistics.services[usize::from(connection.service)].created += 1;
        self.statistics.backends[number].connections += 1;
        self.count_in(position);
        self.count(position, true);
        if connection.state.is_established() {
            self.established(position);
        }
        Ok(position)
    }

    /// Counts a connection that is there now, new or adopted; [`Worker::release`] counts it out.
    pub(super) fn count_in(&mut self, position: Position) {
        self.note_known(self.slab.at(position), true);
        let number = self.backend_number(position);
        let statistics = &mut self.statistics;
        statistics.connections_now += 1;
        statistics.connections_peak = statistics.connections_peak.max(statistics.connections_now);
        statistics.backends[number].connections_now += 1;
    }

    /// Remembers a connection that a forged packet may have made as the youngest of those that give way when the table is full.
    pub(super) fn remember_half_open(&mut self, position: Position) {
        let connection = self.slab.at(position);
        if connection.flags.has(Flags::DIRECT) {
            // Only such a connection is ever in `yielding`, and may change from one list to the other.
            let is_established = connection.state.is_established();
            self.forget_half_open(position);
            if is_established {
                return self.yielding.push(position);
            }
        }
        self.half_open.push(position);
        self.statistics.half_open_now = self.half_open.len().into();
    }

    /// It does not give way (any more).
    pub(super) fn forget_half_open(&mut self, position: Position) {
        self.half_open.remove(position);
        self.yielding.remove(position);
        self.statistics.half_open_now = self.half_open.len().into();
    }

    /// Adds its flows to the index, or none.
    pub(super) fn index(&mut self, position: Position, connection: &Connection) -> bool {
        let from_client = connection.key(Direction::FromClient);
        let from_backend = connection.key(Direction::FromBackend);
        self.index_changes += 1;
        if self.table.insert(&from_client, value(position, Direction::FromClient)).is_err() {
            return false;
        }
        let is_one_way = connection.flags.has(Flags::DIRECT);
        if !is_one_way && self.table.insert(&from_backend, value(position, Direction::FromBackend)).is_err() {
            self.table.remove(&from_client, value(position, Direction::FromClient));
            return false;
        }
        true
    }

    /// Makes an entry for a flow that belongs to the kernel.
    pub(super) fn insert_pass(&mut self, now: Time, key: &FlowKey) -> Option<Position> {
        let ends = [key.destination, Endpoint::default(), key.source, key.destination];
        let position = self.slab.insert(Connection::new(now, key.protocol, State::Pass, ends))?;
        self.index_changes += 1;
        if self.table.insert(key, value(position, Direction::FromBackend)).is_err() {
            self.slab.remove(position);
            return None;
        }
        let timeout = self.timeout(self.slab.at(position));
        self.stamps.started(position, now + timeout);
        self.passes += 1;
        self.statistics.passes_now += 1;
        Some(position)
    }

    /// Whether the backend of a connection that is over would take a new one.
    pub(super) fn takes_connections(&self, position: Position) -> bool {
        let place = self.snapshot.place(self.slab.at(position).backend_number);
        let balancer = |service| self.balancers.get(usize::from(service));
        place.is_some_and(|(service, index)| balancer(service).is_some_and(|balancer| balancer.is_open(index)))
    }

    /// Ends a connection: out of the index at once, out of the slab as soon as the engine holds no rule of it.
    ///
    /// `false`, and nothing happens, while the engine owes answers about it or the queue to the engine is full: a new
    /// connection with the same keys must not ask for its rules before the removal of these is asked for.
    pub(super) fn begin_removal(&mut self, now: Time, position: Position) -> bool {
        let connection = *self.slab.at(position);
        match connection.pair.state() {
            OffloadState::Software => {}
            OffloadState::Offloaded if self.queue_has_room() => {}
            _ => return false,
        }
        self.index_changes += 1;
        for &direction in connection.directions() {
            self.table.remove(&connection.key(direction), value(position, direction));
        }
        self.count(position, false);
        self.forget_half_open(position);
        self.slab.at_mut(position).flags.set(Flags::PENDING_REMOVAL);
        if connection.pair.state() == OffloadState::Software {
            self.release(now, position);
        } else {
            self.stamps.ended(position);
            self.remove_rules(now, position);
        }
        true
    }

    /// Counts a connection that was over and begins anew between the same ends, with the same backend.
    pub(super) fn restart(&mut self, now: Time, position: Position) {
        let number = self.backend_number(position);
        self.record(now, &self.slab.at(position).clone());
        let connection = self.slab.at_mut(position);
        if connection.pair.state() == OffloadState::Software {
            // Counters of rules that are in force go on.
            (connection.forwarded, connection.carried) = ([Volume::default(); 2], 0);
        }
        connection.created = now;
        connection.proof = 0;
        // Of direct server return the backend's answer is not seen, and packets of the client's end prove nothing.
        let was_proven = connection.flags.0 & (Flags::PROVEN | Flags::DIRECT) == Flags::PROVEN;
        connection.flags.put(Flags::REVIVED, was_proven);
        connection.flags.clear(Flags::PROVEN | Flags::CHALLENGED);
        connection.flags.clear(Flags::BACKEND_CLOSED_FIRST | Flags::JUDGED | Flags::REPORTED | Flags::TOLD);
        connection.flags.put(Flags::JUDGED, connection.flags.has(Flags::DIRECT));
        let service = usize::from(connection.service);
        self.remember_half_open(position);
        self.statistics.services[service].created += 1;
        self.statistics.backends[number].connections += 1;
    }

    /// Frees a connection pending removal of which the engine holds nothing.
    pub(super) fn release(&mut self, now: Time, position: Position) {
        self.stamps.ended(position);
        self.tell_end(now, position);
        let number = self.backend_number(position);
        let connection = self.slab.remove(position);
        if connection.state == State::Pass {
            self.passes -= 1;
            self.statistics.passes_now -= 1;
            return;
        }
        self.statistics.connections_now -= 1;
        self.statistics.backends[number].connections_now -= 1;
        self.note_known(&connection, false);
        self.return_port(now, &connection);
        self.record(now, &connection);
    }

    /// Writes the record of a connection that is over, if its service keeps records.
    fn record(&mut self, now: Time, connection: &Connection) {
        let is_recorded = |service: &Service| service.is_recorded;
        // A forged packet makes a half-open one.
        if connection.state.is_half_open()
            || !self.snapshot.services.get(usize::from(connection.service)).is_some_and(is_recorded)
        {
            return;
        }
        let is_late = now >= self.deadline(connection);
        let Some(recorder) = &mut self.recorder else { return };
        let mut record = Record::new(connection.created, connection.client, connection.vip, connection.service);
        let until = if connection.state.is_over() { connection.changed } else { connection.last_seen };
        record.took = until.since(connection.created).as_nanos() as u64;
        record.packets = connection.forwarded.map(|volume| volume.packets);
        record.bytes = connection.forwarded.map(|volume| volume.bytes);
        (record.backend, record.group, record.tries) = (connection.backend_number, connection.service, 1);
        let ending = match connection.state {
            _ if connection.flags.has(Flags::SEVERED) => Ending::Removed,
            State::Closed => Ending::Done,
            State::Reset => Ending::Reset,
            _ if is_late => Ending::Timeout,
            _ => Ending::Removed,
        };
        record.ending = ending as u8;
        record.flags = if connection.carried > 0 { flags::ENGINE } else { 0 };
        recorder.end(&record);
    }

    /// Gives a full-NAT source port back. It rests if TIME_WAIT is, or may be, at the backend.
    fn return_port(&mut self, now: Time, connection: &Connection) {
        if !connection.flags.has(Flags::FULL_NAT) {
            return;
        }
        let clean = matches!(connection.state, State::Closed) && !connection.flags.has(Flags::BACKEND_CLOSED_FIRST);
        let untouched = connection.forwarded[0].packets == 0;
        let rest = connection.protocol == Protocol::Tcp && !clean && !untouched && connection.state != State::Reset;
        self.ports.release(now, u32::from(connection.backend_number), connection.source, rest);
    }

    /// Tells the engine that packets of this connection are expected, or no longer.
    fn note_known(&self, connection: &Connection, there: bool) {
        let client = self.steering.hash(&connection.client);
        let source = self.steering.hash(&connection.source);
        let note = |hash| if there { self.known.add(hash) } else { self.known.remove(hash) };
        note(client);
        if connection.flags.has(Flags::FULL_NAT) {
            note(source);
        }
    }

    /// Counts a connection towards its backend's load and the connections that are open, or takes it off: from its first
    /// packet until it is over. What is kept of it after that does not count.
    pub(super) fn count(&mut self, position: Position, there: bool) {
        let number = self.backend_number(position);
        let connection = self.slab.at(position);
        if connection.state == State::Pass || connection.flags.has(Flags::COUNTED) == there {
            return;
        }
        self.count_for_limits(position, there);
        let connection = self.slab.at_mut(position);
        let statistics = &mut self.statistics;
        let open = [&mut statistics.open_now, &mut statistics.backends[number].open_now];
        if there {
            connection.flags.set(Flags::COUNTED);
            self.loads.add(number as u32);
            open.into_iter().for_each(|count| *count += 1);
        } else {
            connection.flags.clear(Flags::COUNTED);
            self.loads.take(number as u32);
            open.into_iter().for_each(|count| *count = count.saturating_sub(1));
        }
    }

    /// The number of a connection's backend among all backends; 0 for a Pass entry, which has none.
    pub(super) fn backend_number(&self, position: Position) -> usize {
        usize::from(self.slab.at(position).backend_number)
    }
}

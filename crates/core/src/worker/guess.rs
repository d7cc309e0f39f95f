//! Connections of another balancer of which a packet of the backend comes first: a download whose client has nothing to say
//! (`unknown = "pick-up"`).
//!
//! Such a packet may as well be of a host that talks to the backend directly. So it is taken for a connection's only where
//! one service can be meant, and only if that service's Maglev table, or source hash, names this backend for the client: the
//! answer that a packet of the client would get. Both say who has the connection, and nothing else does. Who began a direct
//! connection earlier is known by its SYN-ACK and has a Pass entry, which lives as long as a connection.
//!
//! Whether the guess is right its client says. Its first ACK confirms it. A RST that answers one of these packets (it carries
//! the number that the packet acknowledged; RFC 9293, 3.5.2) or no word for [`UNHEARD_MAX`], while the backend goes on, means
//! that it is wrong: the flow is the kernel's from then on, and the backend, which never sees that RST, sends again what was
//! not acknowledged. Until then it is not offloaded, gives way when the table is full, and no FIN moves it.

use super::ageing::PASS_IDLE;
use super::ends::Ends;
use super::{Drop, Worker};
use crate::config::{BackendState, Forwarding, Service, ServiceState, Snapshot, UnknownPacket};
use crate::flow::{Direction, Endpoint, FlowKey, Protocol};
use crate::frame::{Batch, Frame};
use crate::l4::connection::{Connection, Flags};
use crate::offload::OffloadPolicy;
use crate::table::ageing::Ageing;
use crate::table::{Position, Table};
use crate::time::{Duration, Time};
use crate::wire::Transport;
use crate::wire::tcp::{ACK, ACKNOWLEDGEMENT, FIN, RST, SEQUENCE, SYN};
use alloc::collections::BTreeMap;

/// How long a client may say nothing to packets of a backend before they are taken for a direct connection's. Routes towards
/// clients may change later than those towards backends.
pub const UNHEARD_MAX: Duration = Duration::from_secs(10);

/// The ends of backends that serve one service only, if that picks up, with the backend's number. Services whose connections
/// have their source from the pool do not count, nor those of direct server return: no packet from such an end to a client's
/// address is theirs.
pub(super) fn ends(snapshot: &Snapshot) -> Ends {
    let mut serving: BTreeMap<(Endpoint, Protocol), Option<u16>> = BTreeMap::new();
    let is_of_clients =
        |service: &&Service| service.state != ServiceState::Vacant && !answers_clients_otherwise(service);
    for service in snapshot.services.iter().filter(is_of_clients) {
        let picks_up = service.unknown == UnknownPacket::PickUp
            && service.state == ServiceState::Active
            && service.protocol == Protocol::Tcp;
        for backend in &service.backends {
            let number = (picks_up && backend.state != BackendState::Removed).then_some(backend.number);
            let end = (backend.endpoint, service.protocol);
            serving.entry(end).and_modify(|held| *held = None).or_insert(number);
        }
    }
    Ends::from(&serving.into_iter().filter_map(|(end, number)| Some((end, number?))).collect())
}

fn answers_clients_otherwise(service: &Service) -> bool {
    service.forwarding != Forwarding::Nat || service.kind.is_spliced() || service.kind.is_group()
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|word| word.try_into().ok()).map_or(0, u32::from_be_bytes)
}

impl<P: OffloadPolicy, T: Table<FlowKey>> Worker<P, T> {
    /// The connection that a packet of a backend, of no known connection, belongs to, if it may be one that another balancer
    /// began.
    pub(super) fn guess(&mut self, now: Time, at: &Transport) -> Option<Position> {
        if at.tcp_flags & (SYN | ACK | RST) != ACK {
            return None;
        }
        let number = self.guessed.at(&at.key.source, at.key.protocol)?;
        if self.snapshot.pool.addresses.contains(&at.key.destination.address) {
            return None;
        }
        let (service, index) = self.snapshot.place(number)?;
        let settings = self.snapshot.services.get(usize::from(service))?;
        let key = FlowKey { source: at.key.destination, destination: settings.endpoint, protocol: at.key.protocol };
        let named = self.balancers.get(usize::from(service))?.pick_up(&key);
        if named != Some(index) || self.find(&key).is_some() {
            return None;
        }
        self.create_guessed(now, &key, service, usize::from(index)).ok()
    }

    /// Whether a backend accepts a connection that did not begin here, where later packets of it could be taken for those of
    /// a connection to be picked up.
    pub(super) fn begins_elsewhere(&self, at: &Transport) -> bool {
        at.tcp_flags & (SYN | ACK | RST) == SYN | ACK && self.guessed.at(&at.key.source, at.key.protocol).is_some()
    }

    /// How long a Pass entry is kept in silence: where its flow would be taken for a connection to be picked up, as long as
    /// one, unless the backend has closed it.
    pub(super) fn pass_timeout(&self, pass: &Connection) -> Duration {
        let guessed = self.guessed.at(&pass.backend, pass.protocol).and_then(|number| self.snapshot.backend(number));
        match guessed {
            Some((service, _)) if !pass.flags.has(Flags::BACKEND_CLOSED_FIRST) => service.timeouts.tcp_established,
            _ => PASS_IDLE,
        }
    }

    /// A packet of a flow that is the kernel's.
    pub(super) fn see_passing(&mut self, now: Time, position: Position, at: &Transport) {
        let pass = self.slab.at_mut(position);
        pass.last_seen = now;
        let closes = pass.protocol == Protocol::Tcp && at.tcp_flags & (FIN | RST) != 0;
        if closes && !pass.flags.has(Flags::BACKEND_CLOSED_FIRST) {
            pass.flags.set(Flags::BACKEND_CLOSED_FIRST);
            self.stamps.started(position, now + PASS_IDLE);
        }
    }

    /// Whether its client has not confirmed it.
    pub(super) fn is_guessed(&self, position: Position) -> bool {
        self.slab.at(position).flags.has(Flags::GUESSED)
    }

    /// Remembers what a RST that answers a packet of the backend would carry.
    pub(super) fn note_answer(&mut self, position: Position, at: &Transport, bytes: &[u8]) {
        self.slab.at_mut(position).proof = word(bytes, at.l4 + ACKNOWLEDGEMENT);
    }

    /// Whether its client has spoken.
    pub(super) fn confirm_guess(&mut self, position: Position, at: &Transport) -> bool {
        let confirms = at.tcp_flags & (SYN | ACK | RST) == ACK;
        if confirms {
            let connection = self.slab.at_mut(position);
            connection.flags.clear(Flags::GUESSED);
            connection.proof = 0;
            self.prove(position);
        }
        confirms
    }

    /// Whether a packet shows that a guess was wrong.
    pub(super) fn is_wrongly_guessed(
        &self,
        now: Time,
        position: Position,
        direction: Direction,
        at: &Transport,
        bytes: &[u8],
    ) -> bool {
        let connection = self.slab.at(position);
        if !connection.flags.has(Flags::GUESSED) {
            return false;
        }
        match direction {
            Direction::FromClient => at.tcp_flags & RST != 0 && word(bytes, at.l4 + SEQUENCE) == connection.proof,
            Direction::FromBackend => now.since(connection.created) > UNHEARD_MAX,
        }
    }

    /// Leaves the flow of a wrong guess to the kernel. The client's RST was meant for what it knows nothing of.
    pub(super) fn give_up_guess<F: Frame>(
        &mut self,
        now: Time,
        frame: F,
        position: Position,
        direction: Direction,
        tx: &mut Batch<F>,
    ) {
        let key = self.slab.at(position).key(Direction::FromBackend);
        // Nothing of it is with the engine, so it goes at once.
        if self.begin_removal(now, position) {
            self.pass(now, &key);
        }
        match direction {
            Direction::FromClient => self.drop_frame(Drop::Unknown),
            Direction::FromBackend => self.pass_to_kernel(frame, tx),
        }
    }
}

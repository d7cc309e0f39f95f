//! What adoption does with an entry by itself: checks it, makes another of one that may be torn, sets its times.

use crate::config::Snapshot;
use crate::l7::config::Kind;
use crate::l7::splice::stages::remove::IDLE_TIMEOUT;
use crate::l7::splice::stages::reset::ASKS_MAX;
use crate::l7::splice::state::buffers::Buffer;
use crate::l7::splice::state::entry::{BackendConn, BackendConnState, ClientConn, ClientConnState, TcpKey};
use crate::l7::splice::state::exchange::Message;
use crate::l7::splice::state::framing::Framing;
use crate::l7::splice::state::peer::Peer;
use crate::l7::splice::state::seal::Seals;
use crate::l7::splice::tcp::segment::Abilities;
use crate::l7::splice::tcp::timestamps::Timestamps;
use crate::l7::splice::timers::{OFFLOADED_FOR, body_timeout};
use crate::offload::OffloadState;
use crate::stored::{Optional, OptionalNumber, OptionalPosition};
use crate::time::{Duration, Time};
use core::mem::offset_of;
use core::sync::atomic::{Ordering, fence};
use zerocopy::TryFromBytes;

/// A packet that arrived while no process was there gets so long to be repeated.
const GRACE: Duration = Duration::from_secs(1);
/// No backend's number: of a connection whose backend has gone.
pub(super) const NO_BACKEND: u16 = u16::MAX;

/// Reads a field of an entry that may be torn; the field is one that never changes.
fn field<T: TryFromBytes>(bytes: &[u8], at: usize) -> Option<T> {
    T::try_read_from_bytes(bytes.get(at..at + size_of::<T>())?).ok()
}

/// A peer whose numbers and abilities are not known. One that has agreed on timestamps may not answer segments without, and
/// answers those with old ones (RFC 7323, 3.2 and 5.3); one that has not does not look at them.
fn unknown_peer() -> Peer {
    let timestamps = Some(Timestamps { value: 0, echo: 0 });
    Peer::new(0, 0, &Abilities { mss: u16::MAX, scale: None, sack: false, timestamps })
}

/// The longest time until a deadline of a backend connection.
pub(super) fn longest_of_backends(snapshot: &Snapshot) -> Duration {
    let connect = snapshot.services.iter().map(|service| match &service.kind {
        Kind::Http(http) => http.limits.connect_timeout,
        Kind::Tls(tls) => tls.connect_timeout,
        Kind::Forward | Kind::Terminated(_) | Kind::Group => Duration::ZERO,
    });
    connect.fold(IDLE_TIMEOUT, Duration::max)
}

impl ClientConn {
    /// An entry to be reset, made of the constant fields of an entry that may be torn.
    pub(super) fn renewed(now: Time, bytes: &[u8]) -> Option<ClientConn> {
        let key: TcpKey = field(bytes, offset_of!(ClientConn, key))?;
        let service = field(bytes, offset_of!(ClientConn, service))?;
        let mut renewed = ClientConn {
            port: field(bytes, offset_of!(ClientConn, port))?,
            first: field(bytes, offset_of!(ClientConn, first))?,
            is_tls: field(bytes, offset_of!(ClientConn, is_tls))?,
            created: field(bytes, offset_of!(ClientConn, created))?,
            seal: field(bytes, offset_of!(ClientConn, seal))?,
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
        self.framing = Framing::default();
    }

    /// Whether its fields fit each other, as they do in every entry that a worker leaves.
    pub(super) fn is_plausible(&self) -> bool {
        let joined = !matches!(self.state, ClientConnState::Spliced) || self.backend_conn.get().is_some();
        joined
            && self.asks <= ASKS_MAX
            && self.peer.is_plausible()
            && self.exchange.is_plausible()
            && self.up.is_plausible()
            && self.down.is_plausible()
            && self.key.is_plausible()
            && self.framing.is_plausible()
    }

    /// The buffers that it has.
    pub(super) fn buffers(&self) -> [Option<&Buffer>; 4] {
        let owned = self.peer.owned.as_ref().and_then(|owned| owned.buffer.as_ref());
        let again = self.again.as_ref().map(|again| &again.buffer);
        [self.input.as_ref(), again, self.framing.records(), owned]
    }

    /// [`ClientConn::buffers`], to be changed.
    pub(super) fn buffers_mut(&mut self) -> [Option<&mut Buffer>; 4] {
        let owned = self.peer.owned.as_mut().and_then(|owned| owned.buffer.as_mut());
        let again = self.again.as_mut().map(|again| &mut again.buffer);
        [self.input.as_mut(), again, self.framing.records_mut(), owned]
    }

    /// Whether its ends are those that it began with, and its rules lead where they were installed to.
    pub(super) fn is_sealed(&self, seals: &Seals, position: u32) -> bool {
        let has_rules = self.pair.state() != OffloadState::Software;
        self.seal == seals.client(position, self)
            && (!has_rules || self.rule_seal == seals.rule(self.seal, &self.rule_key))
    }
}

impl BackendConn {
    /// An entry to be reset, made of the constant fields of an entry that may be torn.
    pub(super) fn renewed(now: Time, bytes: &[u8]) -> Option<BackendConn> {
        let key: TcpKey = field(bytes, offset_of!(BackendConn, key))?;
        let number = field(bytes, offset_of!(BackendConn, number))?;
        let mut renewed = BackendConn {
            port: field(bytes, offset_of!(BackendConn, port))?,
            created: field(bytes, offset_of!(BackendConn, created))?,
            seal: field(bytes, offset_of!(BackendConn, seal))?,
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

    /// Whether its fields fit each other, as they do in every entry that a worker leaves.
    pub(super) fn is_plausible(&self) -> bool {
        let joined = match self.state {
            BackendConnState::Attached | BackendConnState::Connecting => self.client_conn.get().is_some(),
            BackendConnState::Idle => self.client_conn.is_none(),
            _ => true,
        };
        let is_asked = self.state != BackendConnState::Resetting || self.tries <= ASKS_MAX;
        joined && is_asked && self.peer.is_plausible() && self.key.is_plausible()
    }

    /// The buffers that it has.
    pub(super) fn buffers(&self) -> [Option<&Buffer>; 2] {
        let owned = self.peer.owned.as_ref().and_then(|owned| owned.buffer.as_ref());
        [self.input.as_ref(), owned]
    }

    /// [`BackendConn::buffers`], to be changed.
    pub(super) fn buffers_mut(&mut self) -> [Option<&mut Buffer>; 2] {
        [self.input.as_mut(), self.peer.owned.as_mut().and_then(|owned| owned.buffer.as_mut())]
    }

    /// Whether its ends are those that it began with. A connection whose backend has gone is sealed again with
    /// [`NO_BACKEND`]; if the last process was killed between the two stores, the number is mended here.
    pub(super) fn is_sealed(&mut self, seals: &Seals, position: u32) -> bool {
        if self.seal == seals.backend(position, self, self.number) {
            return true;
        }
        let is_orphan = self.seal == seals.backend(position, self, NO_BACKEND);
        if is_orphan {
            self.number = NO_BACKEND;
        }
        is_orphan
    }

    /// Marks a connection whose backend is not in this configuration.
    pub(super) fn become_orphan(&mut self, seals: &Seals, position: u32) {
        self.seal = seals.backend(position, self, NO_BACKEND);
        // Stored in this order: the old seal would not do for the new number.
        fence(Ordering::Release);
        self.number = NO_BACKEND;
    }

    /// Whether it is idle, if it says so: no client connection has had it since.
    pub(super) fn is_idle_as_sealed(&self, seals: &Seals) -> bool {
        self.state != BackendConnState::Idle || self.pairing == seals.pair(None, self.seal)
    }
}

impl ClientConn {
    /// The longest time until its deadline.
    fn longest(&self, snapshot: &Snapshot) -> Duration {
        let body = body_timeout(snapshot, self).max(OFFLOADED_FOR);
        match snapshot.services.get(usize::from(self.service)).map(|service| &service.kind) {
            Some(Kind::Http(http)) => {
                let limits = &http.limits;
                let others = [limits.head_timeout, limits.idle_timeout, limits.send_timeout, limits.response_timeout];
                others.into_iter().fold(body, Duration::max)
            }
            Some(Kind::Tls(tls)) => body.max(tls.hello_timeout),
            _ => body,
        }
    }

    /// Brings its times into the range that they can have in a process that begins now. Damage may have made them anything.
    pub(super) fn wake(&mut self, now: Time, snapshot: &Snapshot) {
        self.stamped = Time::from_nanos(u64::MAX);
        self.deadline = self.deadline.min(now + self.longest(snapshot));
        for time in [&mut self.last_seen, &mut self.taken, &mut self.looked] {
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
    pub(in crate::l7::splice) fn has_unwanted_rules(&self) -> bool {
        let is_endless = matches!(self.exchange.response.get(), Message::Endless);
        self.pair.held() != self.wanted
            || self.is_offloaded_down_only() && self.state != ClientConnState::Spliced
            || is_endless && (self.peer.has_closed || self.peer.was_closed)
            || matches!(self.state, ClientConnState::PendingRemoval | ClientConnState::Waiting)
            || self.peer.was_closed && self.is_between_exchanges()
            || self.backend_conn.is_none()
    }

    /// Whether it may have waited for an answer of the engine, which does not owe it any more.
    pub(super) fn waits_for_engine(&self) -> bool {
        let settles = self.is_between_exchanges() && self.backend_conn.get().is_some();
        settles || self.state == ClientConnState::Waiting || self.is_to_leave_engine()
    }

    /// Whether the engine holds rules of it, owes no answer, and should hold them no longer.
    pub(in crate::l7::splice) fn is_to_leave_engine(&self) -> bool {
        self.pair.state() == OffloadState::Offloaded && self.has_unwanted_rules()
    }
}

impl BackendConn {
    /// Brings its times into the range that they can have in a process that begins now, deadlines within `longest`. Damage may
    /// have made them anything.
    pub(super) fn wake(&mut self, now: Time, longest: Duration) {
        self.stamped = Time::from_nanos(u64::MAX);
        self.deadline = self.deadline.min(now + longest);
        self.again = self.again.min(now + GRACE);
        (self.next_idle, self.previous_idle) = (OptionalPosition::NONE, OptionalPosition::NONE);
        if self.state != BackendConnState::Resetting && !self.is_unwanted {
            self.deadline = self.deadline.max(now + GRACE);
        }
        self.peer.wake(now);
    }
}

//! How connections end.

use super::buffers::Buffer;
use super::entry::{BackendConn, BackendConnState, ClientConn, ClientConnState, Exchange, Message};
use super::numbers::{before, beyond, later};
use super::peer::Owned;
use super::read::CLOSING_TIMEOUT;
use super::segment::Segment;
use super::timers::TIME_WAIT;
use super::{Context, Fault, Refused, Splices};
use crate::config::{BackendState as BackendAllowed, Snapshot};
use crate::flow::Direction;
use crate::frame::FrameIo;
use crate::l4::connection::OffloadState;
use crate::l7::config::Kind;
use crate::table::ageing::Ageing;
use crate::time::{Duration, Time};
use crate::wire::tcp::{FIN, RST};
use crate::worker::Drop;
use arrayvec::ArrayVec;

/// How long an idle connection to a backend is kept.
pub(super) const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// Connections reset per call at most when a process ends.
const ABANDONED_MAX: usize = 16;

/// How long a client is not asked again whether it has reset its connection.
const CHALLENGE_AGAIN_AFTER: Duration = Duration::from_millis(500);

/// What becomes of a backend connection whose client connection lets go of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// Others may have it.
    Keep,
    /// It is closed.
    Close,
    /// It is in the middle of something: reset.
    Reset,
}

impl Splices {
    /// Sends a response of ours: the first `length` bytes of the scratch buffer.
    pub(super) fn reply<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, position: u32, length: usize, close: bool) {
        // Between two requests its backend connection is in the middle of nothing.
        let spliced =
            self.client_conns.get(position).is_some_and(|client_conn| client_conn.state == ClientConnState::Spliced);
        self.detach(cx, position, if close && spliced { Fate::Reset } else { Fate::Keep });
        let Some(mut buffer) = self.buffers.take(length) else { return self.abandon(cx, position) };
        self.buffers.append(&mut buffer, &self.scratch[..length]);
        cx.statistics.http.replies += 1;
        if let Some(client_conn) = self.client_conns.get_mut(position) {
            client_conn.requests += 1;
        }
        self.deliver(cx, position, buffer, close);
    }

    /// Sends a client what there is in `buffer`, the whole of a response.
    pub(super) fn deliver<IO: FrameIo>(
        &mut self,
        cx: &mut Context<'_, IO>,
        position: u32,
        buffer: Buffer,
        close: bool,
    ) {
        let Some(client_conn) = self.client_conns.get_mut(position) else { return self.buffers.release(buffer) };
        client_conn.framing.clear(&mut self.buffers);
        client_conn.peer.owned = Some(Owned::new(cx.now, client_conn.peer.sent, Some(buffer), close));
        client_conn.peer.was_closed |= close;
        client_conn.state = if close { ClientConnState::Closing } else { ClientConnState::Replying };
        client_conn.deadline = cx.now + CLOSING_TIMEOUT;
        client_conn.exchange = Exchange { close_client: close, ..Exchange::default() };
        let deadline = client_conn.deadline;
        self.stamp_client(position, deadline);
        self.send_owned_client(cx, position);
    }

    /// Closes a client's connection in order. Its backend connection is others' to take, if need be as soon as the engine
    /// has let go of it.
    pub(super) fn close_client<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, position: u32) {
        match self.client_conns.get(position).map(|client_conn| client_conn.offload_state) {
            Some(OffloadState::Software) => self.detach(cx, position, Fate::Keep),
            _ => self.remove_rules(cx, position),
        }
        let Some(client_conn) = self.client_conns.get_mut(position) else { return };
        // It may have had FIN with the last that it was sent: that is ours from now on.
        let start = client_conn.peer.sent.wrapping_sub(u32::from(client_conn.peer.was_closed));
        let is_said = client_conn.peer.was_closed;
        if before(client_conn.peer.acknowledged, start.wrapping_add(1)) {
            client_conn.peer.owned = Some(Owned::new(cx.now, start, None, true));
            client_conn.peer.has_sent(client_conn.peer.sent);
        }
        client_conn.peer.was_closed = true;
        client_conn.state = ClientConnState::Closing;
        client_conn.deadline = cx.now + CLOSING_TIMEOUT;
        let (deadline, input) = (client_conn.deadline, client_conn.input.take());
        if let Some(input) = input {
            self.buffers.release(input);
        }
        self.stamp_client(position, deadline);
        let Some(client_conn) = self.client_conns.get(position) else { return };
        let due = client_conn.peer.owned.as_ref().map(|owned| owned.due);
        if is_said && before(client_conn.peer.told, client_conn.peer.expected) {
            // What has come since then, FIN among it, no FIN of ours acknowledges.
            self.acknowledge_client(cx, position);
        }
        match due {
            Some(due) if is_said => self.stamp_client(position, due),
            Some(_) => self.send_owned_client(cx, position),
            None => self.closing(cx, position),
        }
    }

    /// Goes on with a client connection whose client has something of ours to acknowledge.
    pub(super) fn closing<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, position: u32) {
        let Some(client_conn) = self.client_conns.get_mut(position) else { return };
        if !client_conn.peer.is_settled() {
            return;
        }
        match client_conn.state {
            ClientConnState::Replying => {
                client_conn.state = ClientConnState::Reading;
                client_conn.deadline = cx.now + super::conclude::idle_timeout(cx.kind(client_conn.service));
                let deadline = client_conn.deadline;
                self.stamp_client(position, deadline);
                self.read(cx, position);
            }
            ClientConnState::Closing if client_conn.peer.has_closed => {
                // Its FIN, should it come again, is acknowledged for a while.
                client_conn.state = ClientConnState::TimeWait;
                client_conn.deadline = cx.now + TIME_WAIT;
                cx.count_out(client_conn);
                let deadline = client_conn.deadline;
                self.stamp_client(position, deadline);
            }
            _ => {}
        }
    }

    /// Resets a client's connection, and the backend's with it.
    pub(super) fn abandon<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, position: u32) {
        self.detach(cx, position, Fate::Reset);
        self.reset_client(cx, position);
        match self.client_conns.get(position).is_some_and(ClientConn::is_ahead_of_software) {
            true => self.begin_reset(cx, position),
            false => self.remove_client(cx, position),
        }
    }

    /// Something is wrong in the middle of an exchange: both ends are reset.
    pub(super) fn break_off<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, position: u32) {
        self.abandon(cx, position);
    }

    /// The client has reset its connection.
    pub(super) fn reset_by_client<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, segment: &Segment, position: u32) {
        let Some(client_conn) = self.client_conns.get(position) else { return };
        if client_conn.state == ClientConnState::Resetting {
            return self.remove_client(cx, position);
        }
        // Only the very number expected resets; another in the window may have been guessed (RFC 5961, 3.2).
        let expected = [client_conn.peer.expected, client_conn.peer.told, client_conn.peer.highest];
        if !client_conn.uploads_by_engine() && !expected.contains(&segment.sequence) {
            return self.challenge(cx, position);
        }
        let idle = client_conn.is_between_exchanges();
        self.detach(cx, position, if idle { Fate::Keep } else { Fate::Reset });
        self.remove_client(cx, position);
    }

    /// Asks a client whether it has reset its connection: if so, it has none, and says that with the right number. At most
    /// twice a second, as Linux does, so that an attacker cannot tell from how often others are asked that its guess
    /// was near; and no more often than answers are sent in all (RFC 5961, 7).
    fn challenge<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, position: u32) {
        let Some(client_conn) = self.client_conns.get_mut(position) else { return };
        if cx.now < client_conn.challenge_after || !cx.answers.admits(cx.now) {
            return cx.drop(Drop::AnswerLimit);
        }
        client_conn.challenge_after = cx.now + CHALLENGE_AGAIN_AFTER;
        self.acknowledge_client(cx, position);
    }

    /// The backend has reset its connection, or closed it before it answered.
    pub(super) fn lost_backend<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, backend_conn: u32) {
        let Some(entry) = self.backend_conns.get(backend_conn) else { return };
        let (position, number) = (entry.client_conn, entry.number);
        let is_stale = entry.is_stale();
        let again = self.unanswered(backend_conn);
        // While the engine leads to its port, no other connection may have that port.
        let ruled = position
            .and_then(|position| self.client_conns.get(position))
            .is_some_and(|client_conn| client_conn.rules != 0);
        self.remove_backend(cx, backend_conn, ruled);
        let Some(client_conn) = position.and_then(|position| self.client_conns.get_mut(position)) else { return };
        let Some(position) = position else { return };
        client_conn.backend_conn = None;
        if let Some(again) = again {
            client_conn.again = Some(again);
            client_conn.state = ClientConnState::Waiting;
            client_conn.exchange.backend = number;
            cx.statistics.http.retries += 1;
            if client_conn.offload_state == OffloadState::Software {
                return self.connect(cx, position);
            }
            return self.remove_rules(cx, position);
        }
        if client_conn.is_between_exchanges() || client_conn.state == ClientConnState::Waiting {
            return self.remove_rules(cx, position);
        }
        if client_conn.state != ClientConnState::Spliced || !matches!(client_conn.exchange.response, Message::Head) {
            return self.abandon(cx, position);
        }
        if !matches!(cx.kind(client_conn.service), Kind::Http(_)) {
            return self.abandon(cx, position);
        }
        if !is_stale {
            cx.failed_request(number, Fault::Lost);
        }
        if client_conn.exchange.has_begun {
            return self.abandon(cx, position);
        }
        client_conn.peer.expected = later(client_conn.peer.expected, client_conn.exchange.request_floor);
        self.refuse(cx, position, 502, Refused::BackendClosed);
    }

    /// The request that a backend connection was sent, with the bytes of the client's it stands for, if the backend cannot
    /// have seen it: the connection had been used before, and was closed while the request was on its way (RFC 9112,
    /// 9.3.1).
    fn unanswered(&mut self, backend_conn: u32) -> Option<(Buffer, u32)> {
        let entry = self.backend_conns.get_mut(backend_conn)?;
        let client_conn = self.client_conns.get(entry.client_conn?)?;
        let exchange = &client_conn.exchange;
        let unseen = entry.peer.owned.as_ref().is_some_and(|owned| entry.peer.acknowledged == owned.start);
        // A body that went through is its sender's, who would not know that it has to be sent again.
        let fresh = client_conn.state == ClientConnState::Spliced
            && !exchange.has_begun
            && matches!(exchange.response, Message::Head)
            && exchange.request.is_done()
            && exchange.request_end == Some(exchange.request_floor)
            && exchange.is_idempotent;
        if !unseen || !fresh || entry.requests < 2 {
            return None;
        }
        let taken = client_conn.up.edits().first()?.taken;
        Some((entry.peer.owned.take()?.buffer?, taken))
    }

    /// Takes the backend connection from a client connection.
    pub(super) fn detach<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, position: u32, fate: Fate) {
        let Some(client_conn) = self.client_conns.get_mut(position) else { return };
        let Some(backend_conn) = client_conn.backend_conn.take() else { return };
        let ruled = client_conn.offload_state != OffloadState::Software;
        let Some(entry) = self.backend_conns.get_mut(backend_conn) else { return };
        entry.client_conn = None;
        let open = entry.state == BackendConnState::Attached && !entry.peer.has_closed;
        match fate {
            // The engine may still lead the client's packets to it.
            Fate::Keep if open && !ruled => {
                client_conn.left = Some((backend_conn, self.backend_conns.generation(backend_conn)));
                self.rest(cx, backend_conn);
            }
            Fate::Keep | Fate::Close if entry.state == BackendConnState::Attached => {
                self.close_backend(cx, backend_conn)
            }
            _ => self.drop_backend(cx, backend_conn),
        }
    }

    /// Puts a backend connection among the idle ones, if there is room.
    pub(super) fn rest<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, backend_conn: u32) {
        let Some(entry) = self.backend_conns.get_mut(backend_conn) else { return };
        let number = entry.number;
        if before(entry.peer.told, entry.peer.expected) {
            self.acknowledge_backend(cx, backend_conn);
        }
        let enabled = |state| state == BackendAllowed::Enabled;
        let takes = cx.snapshot.backend(number).is_some_and(|(_, backend)| enabled(backend.state));
        let Some(entry) = self.backend_conns.get_mut(backend_conn) else { return };
        let limit = if takes && !entry.is_unwanted && !entry.is_spent { entry.idle_max } else { 0 };
        if !entry.peer.is_settled() || entry.input.is_some() || limit == 0 {
            return self.close_backend(cx, backend_conn);
        }
        if self.idle.count(number) >= limit
            && let Some(oldest) = self.idle.oldest(&self.backend_conns, number)
        {
            self.close_backend(cx, oldest);
        }
        let Some(entry) = self.backend_conns.get_mut(backend_conn) else { return };
        entry.state = BackendConnState::Idle;
        self.count_backend(cx, backend_conn, false);
        let Some(entry) = self.backend_conns.get_mut(backend_conn) else { return };
        entry.deadline = cx.now + IDLE_TIMEOUT;
        let deadline = entry.deadline;
        self.idle.push(&mut self.backend_conns, backend_conn);
        self.stamp_backend(backend_conn, deadline);
    }

    /// Closes a connection to a backend in order.
    pub(super) fn close_backend<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, backend_conn: u32) {
        let Some(entry) = self.backend_conns.get_mut(backend_conn) else { return };
        if entry.state == BackendConnState::Idle {
            self.idle.remove(&mut self.backend_conns, backend_conn);
        }
        let Some(entry) = self.backend_conns.get_mut(backend_conn) else { return };
        if entry.peer.owned.is_some() || !entry.peer.is_settled() {
            self.reset_backend(cx, backend_conn);
            return self.remove_backend(cx, backend_conn, true);
        }
        entry.peer.owned = Some(Owned::new(cx.now, entry.peer.sent, None, true));
        entry.peer.was_closed = true;
        entry.state = BackendConnState::Closing;
        entry.deadline = cx.now + CLOSING_TIMEOUT;
        let deadline = entry.deadline;
        self.stamp_backend(backend_conn, deadline);
        self.send_owned_backend(cx, backend_conn);
    }

    /// A packet of a backend connection that has no exchange.
    pub(super) fn backend_alone<IO: FrameIo>(
        &mut self,
        cx: &mut Context<'_, IO>,
        segment: &Segment,
        backend_conn: u32,
    ) {
        let Some(entry) = self.backend_conns.get_mut(backend_conn) else { return };
        if segment.has(RST) {
            let near = beyond(entry.peer.told, segment.sequence) <= super::send::RECEIVE_WINDOW
                && !before(segment.sequence, entry.peer.told);
            return if near { self.lost_backend(cx, backend_conn) } else { cx.drop(Drop::Unknown) };
        }
        if entry.peer.hear(cx.now, segment, &mut self.buffers).is_none() {
            return cx.drop(Drop::Unknown);
        }
        let closes = segment.has(FIN) && segment.payload_end() == entry.peer.expected && !entry.peer.has_closed;
        let surplus = segment.payload > 0 && before(entry.peer.expected, segment.payload_end());
        if surplus {
            // No client has asked for it: the client that is to get the next response would get this instead.
            self.reset_backend(cx, backend_conn);
            return self.lost_backend(cx, backend_conn);
        }
        if closes {
            entry.peer.has_closed = true;
            entry.closed_first = entry.state != BackendConnState::Closing;
            entry.peer.expected = entry.peer.expected.wrapping_add(1);
            entry.peer.highest = later(entry.peer.highest, entry.peer.expected);
        }
        let again = !closes && (segment.has(FIN) || beyond(segment.sequence, entry.peer.expected) > 0);
        match entry.state {
            BackendConnState::Closing if entry.peer.has_closed && entry.peer.is_settled() => {
                if closes {
                    self.acknowledge_backend(cx, backend_conn);
                }
                self.backend_over(cx, backend_conn);
            }
            BackendConnState::Closing if closes => self.acknowledge_backend(cx, backend_conn),
            BackendConnState::Attached | BackendConnState::Idle if closes => {
                let position = entry.client_conn.take();
                if let Some(client_conn) = position.and_then(|position| self.client_conns.get_mut(position)) {
                    client_conn.backend_conn = None;
                }
                self.close_backend(cx, backend_conn);
                position.into_iter().for_each(|position| self.remove_rules(cx, position));
            }
            _ if again => self.acknowledge_backend(cx, backend_conn),
            _ => {}
        }
    }

    /// Both ends of a backend connection have closed.
    fn backend_over<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, backend_conn: u32) {
        let Some(entry) = self.backend_conns.get_mut(backend_conn) else { return };
        if entry.closed_first {
            return self.remove_backend(cx, backend_conn, true);
        }
        entry.state = BackendConnState::TimeWait;
        entry.deadline = cx.now + TIME_WAIT;
        if let Some(backend) = cx.statistics.backends.get_mut(usize::from(entry.number)) {
            backend.open_now = backend.open_now.saturating_sub(1);
        }
        let deadline = entry.deadline;
        self.stamp_backend(backend_conn, deadline);
    }

    /// Counts a backend connection towards its backend's load, or takes it off.
    pub(super) fn count_backend<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, backend_conn: u32, there: bool) {
        let Some(entry) = self.backend_conns.get_mut(backend_conn).filter(|entry| entry.is_counted != there) else {
            return;
        };
        entry.is_counted = there;
        match there {
            true => cx.loads.add(u32::from(entry.number)),
            false => cx.loads.take(u32::from(entry.number)),
        }
    }

    /// Forgets a backend connection. Its port rests if the backend may still remember it.
    pub(super) fn remove_backend<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, backend_conn: u32, rest: bool) {
        if self.backend_conns.get(backend_conn).is_some_and(|entry| entry.state == BackendConnState::Idle) {
            self.idle.remove(&mut self.backend_conns, backend_conn);
        }
        self.count_backend(cx, backend_conn, false);
        let Some(mut entry) = self.backend_conns.remove(backend_conn) else { return };
        self.unindex(&entry.key, backend_conn, Direction::FromBackend);
        self.stamps.ended(self.fronts_max + backend_conn);
        entry.peer.disown(&mut self.buffers);
        if let Some(input) = entry.input.take() {
            self.buffers.release(input);
        }
        let source = entry.own_end();
        cx.known.remove(cx.steering.hash(&source));
        cx.ports.release(cx.now, u32::from(entry.number), source, rest);
        if let Some(backend) = cx.statistics.backends.get_mut(usize::from(entry.number)) {
            backend.connections_now = backend.connections_now.saturating_sub(1);
            // One in TIME_WAIT has been counted out.
            backend.open_now = backend.open_now.saturating_sub((entry.state != BackendConnState::TimeWait).into());
        }
        self.tell(&mut cx.statistics.http);
    }

    /// Forgets a client connection, as soon as the engine holds no rule of it.
    pub(super) fn remove_client<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, position: u32) {
        self.detach(cx, position, Fate::Keep);
        let Some(client_conn) = self.client_conns.get_mut(position) else { return };
        let (key, was, first) = (client_conn.key, client_conn.state, client_conn.first);
        client_conn.state = ClientConnState::PendingRemoval;
        cx.count_out(client_conn);
        let offload_state = client_conn.offload_state;
        self.release_buffers(position);
        if was != ClientConnState::PendingRemoval {
            self.unindex(&key, position, Direction::FromClient);
            self.ended.add(cx.now, &key, first);
            cx.known.remove(cx.steering.hash(&key.source));
        }
        if offload_state != OffloadState::Software {
            return self.remove_rules(cx, position);
        }
        self.release_client(position);
        self.tell(&mut cx.statistics.http);
    }

    /// Ends every connection to a backend: those that are idle at once, the others with what they are doing.
    pub(crate) fn end_backend(&mut self, now: Time, number: u16) {
        for backend_conn in 0..self.backend_conns.reach() {
            let wanted =
                |entry: &&mut BackendConn| entry.number == number && entry.state != BackendConnState::Resetting;
            let Some(entry) = self.backend_conns.get_mut(backend_conn).filter(wanted) else { continue };
            entry.is_unwanted = true;
            entry.deadline = now;
            self.stamp_backend(backend_conn, now);
        }
    }

    /// Closes the idle connections of all backends that get no more requests.
    pub(crate) fn end_idle(&mut self, now: Time, snapshot: &Snapshot) {
        for backend_conn in 0..self.backend_conns.reach() {
            let Some(entry) =
                self.backend_conns.get_mut(backend_conn).filter(|entry| entry.state == BackendConnState::Idle)
            else {
                continue;
            };
            let enabled = |state| state == BackendAllowed::Enabled;
            if !snapshot.backend(entry.number).is_some_and(|(_, backend)| enabled(backend.state)) {
                entry.deadline = now;
                self.stamp_backend(backend_conn, now);
            }
        }
    }

    /// Resets a bounded number of connections, each once, for a process that ends; says whether there are more. Those
    /// whose clients are still asked for a packet stay for a while ([`ClientConnState::Resetting`]).
    pub(crate) fn abandon_some<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>) -> bool {
        self.is_ending = true;
        let end = self.abandoned.saturating_add(ABANDONED_MAX as u32).min(self.client_conns.reach());
        for position in self.abandoned..end {
            let state = self.client_conns.get(position).map(|client_conn| client_conn.state);
            if state.is_some_and(|state| !matches!(state, ClientConnState::Resetting | ClientConnState::PendingRemoval))
            {
                self.abandon(cx, position);
            }
        }
        self.abandoned = end;
        let rest = self
            .backend_conns
            .iter()
            .filter(|(_, backend_conn)| backend_conn.state != BackendConnState::Resetting)
            .map(|(at, _)| at);
        let rest: ArrayVec<u32, ABANDONED_MAX> = rest.take(ABANDONED_MAX).collect();
        for &backend_conn in &rest {
            self.reset_backend(cx, backend_conn);
            self.remove_backend(cx, backend_conn, true);
        }
        self.abandoned < self.client_conns.reach() || rest.is_full()
    }

    /// Frees a client connection's place.
    pub(super) fn release_client(&mut self, position: u32) {
        self.client_conns.remove(position);
        self.stamps.ended(position);
    }
}

//! How connections end.

use super::buffers::Buffer;
use super::entry::{Back, BackState, Exchange, Front, FrontState, Message};
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

/// What becomes of a back whose front lets go of it.
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
        // Between two requests its back is in the middle of nothing.
        let joined = self.fronts.get(position).is_some_and(|front| front.state == FrontState::Joined);
        self.detach(cx, position, if close && joined { Fate::Reset } else { Fate::Keep });
        let Some(mut buffer) = self.buffers.take(length) else { return self.abandon(cx, position) };
        self.buffers.append(&mut buffer, &self.scratch[..length]);
        cx.statistics.http.replies += 1;
        if let Some(front) = self.fronts.get_mut(position) {
            front.requests += 1;
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
        let Some(front) = self.fronts.get_mut(position) else { return self.buffers.release(buffer) };
        front.framing.clear(&mut self.buffers);
        front.peer.owned = Some(Owned::new(cx.now, front.peer.sent, Some(buffer), close));
        front.peer.was_closed |= close;
        front.state = if close { FrontState::Closing } else { FrontState::Replying };
        front.deadline = cx.now + CLOSING_TIMEOUT;
        front.exchange = Exchange { close_front: close, ..Exchange::default() };
        let deadline = front.deadline;
        self.stamp_front(position, deadline);
        self.send_owned_front(cx, position);
    }

    /// Closes a client's connection in order. Its back is others' to take, if need be as soon as the engine has let go of it.
    pub(super) fn close_front<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, position: u32) {
        match self.fronts.get(position).map(|front| front.offload_state) {
            Some(OffloadState::Software) => self.detach(cx, position, Fate::Keep),
            _ => self.remove_rules(cx, position),
        }
        let Some(front) = self.fronts.get_mut(position) else { return };
        // It may have had FIN with the last that it was sent: that is ours from now on.
        let start = front.peer.sent.wrapping_sub(u32::from(front.peer.was_closed));
        let is_said = front.peer.was_closed;
        if before(front.peer.acknowledged, start.wrapping_add(1)) {
            front.peer.owned = Some(Owned::new(cx.now, start, None, true));
            front.peer.has_sent(front.peer.sent);
        }
        front.peer.was_closed = true;
        front.state = FrontState::Closing;
        front.deadline = cx.now + CLOSING_TIMEOUT;
        let (deadline, input) = (front.deadline, front.input.take());
        if let Some(input) = input {
            self.buffers.release(input);
        }
        self.stamp_front(position, deadline);
        let Some(front) = self.fronts.get(position) else { return };
        let due = front.peer.owned.as_ref().map(|owned| owned.due);
        if is_said && before(front.peer.told, front.peer.expected) {
            // What has come since then, FIN among it, no FIN of ours acknowledges.
            self.acknowledge_front(cx, position);
        }
        match due {
            Some(due) if is_said => self.stamp_front(position, due),
            Some(_) => self.send_owned_front(cx, position),
            None => self.closing(cx, position),
        }
    }

    /// Goes on with a front whose client has something of ours to acknowledge.
    pub(super) fn closing<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, position: u32) {
        let Some(front) = self.fronts.get_mut(position) else { return };
        if !front.peer.is_settled() {
            return;
        }
        match front.state {
            FrontState::Replying => {
                front.state = FrontState::Reading;
                front.deadline = cx.now + super::conclude::idle_timeout(cx.kind(front.service));
                let deadline = front.deadline;
                self.stamp_front(position, deadline);
                self.read(cx, position);
            }
            FrontState::Closing if front.peer.has_closed => {
                // Its FIN, should it come again, is acknowledged for a while.
                front.state = FrontState::TimeWait;
                front.deadline = cx.now + TIME_WAIT;
                cx.count_out(front);
                let deadline = front.deadline;
                self.stamp_front(position, deadline);
            }
            _ => {}
        }
    }

    /// Resets a client's connection, and the backend's with it.
    pub(super) fn abandon<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, position: u32) {
        self.detach(cx, position, Fate::Reset);
        self.reset_front(cx, position);
        match self.fronts.get(position).is_some_and(Front::is_ahead_of_software) {
            true => self.begin_reset(cx, position),
            false => self.remove_front(cx, position),
        }
    }

    /// Something is wrong in the middle of an exchange: both ends are reset.
    pub(super) fn break_off<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, position: u32) {
        self.abandon(cx, position);
    }

    /// The client has reset its connection.
    pub(super) fn reset_by_client<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, segment: &Segment, position: u32) {
        let Some(front) = self.fronts.get(position) else { return };
        if front.state == FrontState::Resetting {
            return self.remove_front(cx, position);
        }
        // Only the very number expected resets; another in the window may have been guessed (RFC 5961, 3.2).
        let expected = [front.peer.expected, front.peer.told, front.peer.highest];
        if !front.uploads_by_engine() && !expected.contains(&segment.sequence) {
            return self.challenge(cx, position);
        }
        let idle = front.is_between_exchanges();
        self.detach(cx, position, if idle { Fate::Keep } else { Fate::Reset });
        self.remove_front(cx, position);
    }

    /// Asks a client whether it has reset its connection: if so, it has none, and says that with the right number. At most
    /// twice a second, as Linux does, so that an attacker cannot tell from how often others are asked that its guess
    /// was near; and no more often than answers are sent in all (RFC 5961, 7).
    fn challenge<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, position: u32) {
        let Some(front) = self.fronts.get_mut(position) else { return };
        if cx.now < front.challenge_after || !cx.answers.admits(cx.now) {
            return cx.drop(Drop::AnswerLimit);
        }
        front.challenge_after = cx.now + CHALLENGE_AGAIN_AFTER;
        self.acknowledge_front(cx, position);
    }

    /// The backend has reset its connection, or closed it before it answered.
    pub(super) fn lost_back<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, back: u32) {
        let Some(entry) = self.backs.get(back) else { return };
        let (position, number) = (entry.front, entry.number);
        let is_stale = entry.is_stale();
        let again = self.unanswered(back);
        // While the engine leads to its port, no other connection may have that port.
        let ruled = position.and_then(|position| self.fronts.get(position)).is_some_and(|front| front.rules != 0);
        self.remove_back(cx, back, ruled);
        let Some(front) = position.and_then(|position| self.fronts.get_mut(position)) else { return };
        let Some(position) = position else { return };
        front.back = None;
        if let Some(again) = again {
            front.again = Some(again);
            front.state = FrontState::Waiting;
            front.exchange.backend = number;
            cx.statistics.http.retries += 1;
            if front.offload_state == OffloadState::Software {
                return self.connect(cx, position);
            }
            return self.remove_rules(cx, position);
        }
        if front.is_between_exchanges() || front.state == FrontState::Waiting {
            return self.remove_rules(cx, position);
        }
        if front.state != FrontState::Joined || !matches!(front.exchange.response, Message::Head) {
            return self.abandon(cx, position);
        }
        if !matches!(cx.kind(front.service), Kind::Http(_)) {
            return self.abandon(cx, position);
        }
        if !is_stale {
            cx.failed_request(number, Fault::Lost);
        }
        if front.exchange.has_begun {
            return self.abandon(cx, position);
        }
        front.peer.expected = later(front.peer.expected, front.exchange.request_floor);
        self.refuse(cx, position, 502, Refused::BackendClosed);
    }

    /// The request that a back was sent, with the bytes of the client's it stands for, if the backend cannot have seen it:
    /// the connection had been used before, and was closed while the request was on its way (RFC 9112, 9.3.1).
    fn unanswered(&mut self, back: u32) -> Option<(Buffer, u32)> {
        let entry = self.backs.get_mut(back)?;
        let front = self.fronts.get(entry.front?)?;
        let exchange = &front.exchange;
        let unseen = entry.peer.owned.as_ref().is_some_and(|owned| entry.peer.acknowledged == owned.start);
        // A body that went through is its sender's, who would not know that it has to be sent again.
        let fresh = front.state == FrontState::Joined
            && !exchange.has_begun
            && matches!(exchange.response, Message::Head)
            && exchange.request.is_done()
            && exchange.request_end == Some(exchange.request_floor)
            && exchange.is_idempotent;
        if !unseen || !fresh || entry.requests < 2 {
            return None;
        }
        let taken = front.up.edits().first()?.taken;
        Some((entry.peer.owned.take()?.buffer?, taken))
    }

    /// Takes the back from a front.
    pub(super) fn detach<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, position: u32, fate: Fate) {
        let Some(front) = self.fronts.get_mut(position) else { return };
        let Some(back) = front.back.take() else { return };
        let ruled = front.offload_state != OffloadState::Software;
        let Some(entry) = self.backs.get_mut(back) else { return };
        entry.front = None;
        let open = entry.state == BackState::Attached && !entry.peer.has_closed;
        match fate {
            // The engine may still lead the client's packets to it.
            Fate::Keep if open && !ruled => {
                front.left = Some((back, self.backs.generation(back)));
                self.rest(cx, back);
            }
            Fate::Keep | Fate::Close if entry.state == BackState::Attached => self.close_back(cx, back),
            _ => self.drop_back(cx, back),
        }
    }

    /// Puts a back among the idle ones, if there is room.
    pub(super) fn rest<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, back: u32) {
        let Some(entry) = self.backs.get_mut(back) else { return };
        let number = entry.number;
        if before(entry.peer.told, entry.peer.expected) {
            self.acknowledge_back(cx, back);
        }
        let enabled = |state| state == BackendAllowed::Enabled;
        let takes = cx.snapshot.backend(number).is_some_and(|(_, backend)| enabled(backend.state));
        let Some(entry) = self.backs.get_mut(back) else { return };
        let limit = if takes && !entry.is_unwanted && !entry.is_spent { entry.idle_max } else { 0 };
        if !entry.peer.is_settled() || entry.input.is_some() || limit == 0 {
            return self.close_back(cx, back);
        }
        if self.idle.count(number) >= limit
            && let Some(oldest) = self.idle.oldest(&self.backs, number)
        {
            self.close_back(cx, oldest);
        }
        let Some(entry) = self.backs.get_mut(back) else { return };
        entry.state = BackState::Idle;
        self.count_back(cx, back, false);
        let Some(entry) = self.backs.get_mut(back) else { return };
        entry.deadline = cx.now + IDLE_TIMEOUT;
        let deadline = entry.deadline;
        self.idle.push(&mut self.backs, back);
        self.stamp_back(back, deadline);
    }

    /// Closes a connection to a backend in order.
    pub(super) fn close_back<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, back: u32) {
        let Some(entry) = self.backs.get_mut(back) else { return };
        if entry.state == BackState::Idle {
            self.idle.remove(&mut self.backs, back);
        }
        let Some(entry) = self.backs.get_mut(back) else { return };
        if entry.peer.owned.is_some() || !entry.peer.is_settled() {
            self.reset_back(cx, back);
            return self.remove_back(cx, back, true);
        }
        entry.peer.owned = Some(Owned::new(cx.now, entry.peer.sent, None, true));
        entry.peer.was_closed = true;
        entry.state = BackState::Closing;
        entry.deadline = cx.now + CLOSING_TIMEOUT;
        let deadline = entry.deadline;
        self.stamp_back(back, deadline);
        self.send_owned_back(cx, back);
    }

    /// A packet of a back that has no exchange.
    pub(super) fn back_alone<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, segment: &Segment, back: u32) {
        let Some(entry) = self.backs.get_mut(back) else { return };
        if segment.has(RST) {
            let near = beyond(entry.peer.told, segment.sequence) <= super::send::RECEIVE_WINDOW
                && !before(segment.sequence, entry.peer.told);
            return if near { self.lost_back(cx, back) } else { cx.drop(Drop::Unknown) };
        }
        if entry.peer.hear(cx.now, segment, &mut self.buffers).is_none() {
            return cx.drop(Drop::Unknown);
        }
        let closes = segment.has(FIN) && segment.payload_end() == entry.peer.expected && !entry.peer.has_closed;
        let surplus = segment.payload > 0 && before(entry.peer.expected, segment.payload_end());
        if surplus {
            // No client has asked for it: the client that is to get the next response would get this instead.
            self.reset_back(cx, back);
            return self.lost_back(cx, back);
        }
        if closes {
            entry.peer.has_closed = true;
            entry.closed_first = entry.state != BackState::Closing;
            entry.peer.expected = entry.peer.expected.wrapping_add(1);
            entry.peer.highest = later(entry.peer.highest, entry.peer.expected);
        }
        let again = !closes && (segment.has(FIN) || beyond(segment.sequence, entry.peer.expected) > 0);
        match entry.state {
            BackState::Closing if entry.peer.has_closed && entry.peer.is_settled() => {
                if closes {
                    self.acknowledge_back(cx, back);
                }
                self.back_over(cx, back);
            }
            BackState::Closing if closes => self.acknowledge_back(cx, back),
            BackState::Attached | BackState::Idle if closes => {
                let position = entry.front.take();
                if let Some(front) = position.and_then(|position| self.fronts.get_mut(position)) {
                    front.back = None;
                }
                self.close_back(cx, back);
                position.into_iter().for_each(|position| self.remove_rules(cx, position));
            }
            _ if again => self.acknowledge_back(cx, back),
            _ => {}
        }
    }

    /// Both ends of a back have closed.
    fn back_over<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, back: u32) {
        let Some(entry) = self.backs.get_mut(back) else { return };
        if entry.closed_first {
            return self.remove_back(cx, back, true);
        }
        entry.state = BackState::TimeWait;
        entry.deadline = cx.now + TIME_WAIT;
        if let Some(backend) = cx.statistics.backends.get_mut(usize::from(entry.number)) {
            backend.open_now = backend.open_now.saturating_sub(1);
        }
        let deadline = entry.deadline;
        self.stamp_back(back, deadline);
    }

    /// Counts a back towards its backend's load, or takes it off.
    pub(super) fn count_back<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, back: u32, there: bool) {
        let Some(entry) = self.backs.get_mut(back).filter(|entry| entry.is_counted != there) else { return };
        entry.is_counted = there;
        match there {
            true => cx.loads.add(u32::from(entry.number)),
            false => cx.loads.take(u32::from(entry.number)),
        }
    }

    /// Forgets a back. Its port rests if the backend may still remember it.
    pub(super) fn remove_back<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, back: u32, rest: bool) {
        if self.backs.get(back).is_some_and(|entry| entry.state == BackState::Idle) {
            self.idle.remove(&mut self.backs, back);
        }
        self.count_back(cx, back, false);
        let Some(mut entry) = self.backs.remove(back) else { return };
        self.unindex(&entry.key, back, Direction::FromBackend);
        self.stamps.ended(self.fronts_max + back);
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
            backend.open_now = backend.open_now.saturating_sub((entry.state != BackState::TimeWait).into());
        }
        self.tell(&mut cx.statistics.http);
    }

    /// Forgets a front, as soon as the engine holds no rule of it.
    pub(super) fn remove_front<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, position: u32) {
        self.detach(cx, position, Fate::Keep);
        let Some(front) = self.fronts.get_mut(position) else { return };
        let (key, was, first) = (front.key, front.state, front.first);
        front.state = FrontState::PendingRemoval;
        cx.count_out(front);
        let offload_state = front.offload_state;
        self.release_buffers(position);
        if was != FrontState::PendingRemoval {
            self.unindex(&key, position, Direction::FromClient);
            self.ended.add(cx.now, &key, first);
            cx.known.remove(cx.steering.hash(&key.source));
        }
        if offload_state != OffloadState::Software {
            return self.remove_rules(cx, position);
        }
        self.release_front(position);
        self.tell(&mut cx.statistics.http);
    }

    /// Ends every connection to a backend: those that are idle at once, the others with what they are doing.
    pub(crate) fn end_backend(&mut self, now: Time, number: u16) {
        for back in 0..self.backs.reach() {
            let wanted = |entry: &&mut Back| entry.number == number && entry.state != BackState::Resetting;
            let Some(entry) = self.backs.get_mut(back).filter(wanted) else { continue };
            entry.is_unwanted = true;
            entry.deadline = now;
            self.stamp_back(back, now);
        }
    }

    /// Closes the idle connections of all backends that get no more requests.
    pub(crate) fn end_idle(&mut self, now: Time, snapshot: &Snapshot) {
        for back in 0..self.backs.reach() {
            let Some(entry) = self.backs.get_mut(back).filter(|entry| entry.state == BackState::Idle) else { continue };
            let enabled = |state| state == BackendAllowed::Enabled;
            if !snapshot.backend(entry.number).is_some_and(|(_, backend)| enabled(backend.state)) {
                entry.deadline = now;
                self.stamp_back(back, now);
            }
        }
    }

    /// Resets a bounded number of connections, each once, for a process that ends; says whether there are more. Those
    /// whose clients are still asked for a packet stay for a while ([`FrontState::Resetting`]).
    pub(crate) fn abandon_some<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>) -> bool {
        self.is_ending = true;
        let end = self.abandoned.saturating_add(ABANDONED_MAX as u32).min(self.fronts.reach());
        for position in self.abandoned..end {
            let state = self.fronts.get(position).map(|front| front.state);
            if state.is_some_and(|state| !matches!(state, FrontState::Resetting | FrontState::PendingRemoval)) {
                self.abandon(cx, position);
            }
        }
        self.abandoned = end;
        let rest = self.backs.iter().filter(|(_, back)| back.state != BackState::Resetting).map(|(at, _)| at);
        let rest: ArrayVec<u32, ABANDONED_MAX> = rest.take(ABANDONED_MAX).collect();
        for &back in &rest {
            self.reset_back(cx, back);
            self.remove_back(cx, back, true);
        }
        self.abandoned < self.fronts.reach() || rest.is_full()
    }

    /// Frees a front's place.
    pub(super) fn release_front(&mut self, position: u32) {
        self.fronts.remove(position);
        self.stamps.ended(position);
    }
}

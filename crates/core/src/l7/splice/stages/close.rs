//! How connections end.

use super::read::CLOSING_TIMEOUT;
use super::remove::Detach;
use crate::frame::FrameIo;
use crate::l7::splice::state::entry::ClientConnState;
use crate::l7::splice::state::peer::Owned;
use crate::l7::splice::tcp::numbers::before;
use crate::l7::splice::tcp::segment::Segment;
use crate::l7::splice::timers::TIME_WAIT;
use crate::l7::splice::{Context, End, Next, Splices};
use crate::offload::OffloadState;
use crate::record::Ending;
use crate::time::Duration;
use crate::worker::Drop;

/// How long a client is not asked again whether it has reset its connection.
const CHALLENGE_AGAIN_AFTER: Duration = Duration::from_millis(500);

impl Splices {
    /// Closes a client's connection in order. Its backend connection is others' to take, if need be as soon as the engine
    /// has let go of it.
    pub(in crate::l7::splice) fn close_client<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, position: u32) {
        match self.client_conns.get(position).map(|client_conn| client_conn.pair.state()) {
            Some(OffloadState::Software) => self.detach(cx, position, Detach::Keep),
            _ => self.remove_rules(cx, position),
        }
        let Some(client_conn) = self.client_conns.get_mut(position) else { return cx.impossible() };
        // It may have had FIN with the last that it was sent: that is ours from now on.
        let start = client_conn.peer.sent.wrapping_sub(u32::from(client_conn.peer.was_closed));
        let is_said = client_conn.peer.was_closed;
        if before(client_conn.peer.acknowledged, start.wrapping_add(1)) {
            client_conn.peer.owned = Owned::new(cx.now, start, None, true).into();
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
        let Some(client_conn) = self.client_conns.get(position) else { return cx.impossible() };
        let due = client_conn.peer.owned.as_ref().map(|owned| owned.due);
        if is_said && before(client_conn.peer.told, client_conn.peer.expected) {
            // What has come since then, FIN among it, no FIN of ours acknowledges.
            self.acknowledge(cx, End::Client(position));
        }
        match due {
            Some(due) if is_said => self.stamp_client(position, due),
            Some(_) => self.send_all(cx, End::Client(position)),
            None => self.closed(cx, position),
        }
    }

    /// Goes on with a client connection whose client has something of ours to acknowledge.
    pub(in crate::l7::splice) fn closing<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, position: u32) -> Next {
        let Some(client_conn) = self.client_conns.get_mut(position) else { return cx.impossible() };
        match client_conn.state {
            ClientConnState::Replying if client_conn.peer.is_settled() => {
                client_conn.state = ClientConnState::Reading;
                client_conn.deadline = cx.now + super::conclude::idle_timeout(cx.kind(client_conn.service));
                let deadline = client_conn.deadline;
                self.stamp_client(position, deadline);
                Next::Read(position)
            }
            ClientConnState::Closing => {
                let exchange = &mut client_conn.exchange;
                // A response that `take_last` has taken in has no end in the backend's numbers. That of an exchange that was
                // concluded has one, or the engine has carried it.
                let is_taken =
                    exchange.has_begun && exchange.response.is_done() && exchange.response_end.get().is_none();
                if is_taken && client_conn.peer.owned.is_none() {
                    exchange.has_begun = false;
                    cx.exchange_is_done(client_conn);
                }
                self.closed(cx, position);
                Next::Done
            }
            _ => Next::Done,
        }
    }

    /// Goes on with a client connection that we have closed: it is over when its client has closed too.
    fn closed<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, position: u32) {
        let Some(client_conn) = self.client_conns.get_mut(position) else { return cx.impossible() };
        if client_conn.peer.has_closed && client_conn.peer.is_settled() {
            // Its FIN, should it come again, is acknowledged for a while.
            client_conn.state = ClientConnState::TimeWait;
            client_conn.deadline = cx.now + TIME_WAIT;
            cx.count_out(client_conn);
            let deadline = client_conn.deadline;
            self.stamp_client(position, deadline);
        }
    }

    /// The client has reset its connection.
    pub(in crate::l7::splice) fn reset_by_client<IO: FrameIo>(
        &mut self,
        cx: &mut Context<'_, IO>,
        segment: &Segment,
        position: u32,
    ) {
        let Some(client_conn) = self.client_conns.get(position) else { return cx.impossible() };
        if client_conn.state == ClientConnState::Resetting {
            return self.remove_client(cx, position);
        }
        // Only the very number expected resets; another in the window may have been guessed (RFC 5961, 3.2).
        let expected = [client_conn.peer.expected, client_conn.peer.told, client_conn.peer.highest];
        if !client_conn.uploads_by_engine() && !expected.contains(&segment.sequence) {
            return self.challenge(cx, position);
        }
        let idle = client_conn.is_between_exchanges();
        self.ends_by(position, Ending::Client);
        self.detach(cx, position, if idle { Detach::Keep } else { Detach::Reset });
        self.remove_client(cx, position);
    }

    /// Asks a client whether it has reset its connection: if so, it has none, and says that with the right number. At most
    /// twice a second, as Linux does, so that an attacker cannot tell from how often others are asked that its guess
    /// was near; and no more often than answers are sent in all (RFC 5961, 7).
    fn challenge<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, position: u32) {
        let Some(client_conn) = self.client_conns.get_mut(position) else { return cx.impossible() };
        if cx.now < client_conn.challenge_after || !cx.answers.admits(cx.now) {
            return cx.drop(Drop::AnswerLimit);
        }
        client_conn.challenge_after = cx.now + CHALLENGE_AGAIN_AFTER;
        self.acknowledge(cx, End::Client(position));
    }
}

//! Resets that their ends believe.
//!
//! A client believes a RST only with the very number that it expects next (RFC 5961, 3.2). The network may lose a RST, and of
//! what the engine has forwarded software knows at most a part. But each packet of a client says that number: its
//! acknowledgement. So its client connection stays for a while, and each of its packets is answered with RST (RFC 9293,
//! 3.10.7.1). A client that only receives sends none once nothing more comes; it is asked for one, by an acknowledgement
//! with a number that it has acknowledged already, which it answers with what it expects (RFC 9293, 3.10.7.4). A client that
//! has believed the RST answers the next such question with a RST of its own, and is forgotten. Backends in the middle of
//! an upload by the engine are reset in the same way.

use super::conclude::idle_timeout;
use super::remove::Detach;
use crate::frame::FrameIo;
use crate::l7::splice::state::entry::{BackendConn, BackendConnState, ClientConn, ClientConnState};
use crate::l7::splice::tcp::numbers::{before, beyond};
use crate::l7::splice::tcp::segment::{Own, Segment};
use crate::l7::splice::tcp::send::emit;
use crate::l7::splice::{Context, End, Splices};
use crate::offload::OffloadState;
use crate::stored::OptionalNumber;
use crate::time::Duration;
use crate::wire::tcp::{ACK, RST};
use arrayvec::ArrayVec;

/// How long after the first question a client is asked again; doubled each time.
pub(in crate::l7::splice) const ASK_AGAIN_AFTER: Duration = Duration::from_millis(100);
/// Questions to a client at most: it is forgotten 3.1 s after the first.
pub const ASKS_MAX: u8 = 5;

/// Connections reset per call at most when a process ends.
const ABANDONED_MAX: usize = 16;

impl ClientConn {
    /// Whether the engine may have forwarded more to the client than software knows.
    pub(in crate::l7::splice) fn is_ahead_of_software(&self) -> bool {
        before(self.peer.sent, self.peer.reach)
    }

    /// Whether the whole response may have been sent to the client, by software or by the engine.
    fn may_have_its_response(&self) -> bool {
        let sent = if self.is_ahead_of_software() { self.peer.reach } else { self.peer.sent };
        self.state == ClientConnState::Spliced
            && self.exchange.request.is_done()
            && self.exchange_ends().is_some_and(|(_, response)| !before(sent, response))
    }
}

impl BackendConn {
    /// Whether the engine may have forwarded more to the backend than software knows. One number beyond that may be the
    /// acknowledgement of the engine's last byte.
    pub(in crate::l7::splice) fn is_ahead_of_software(&self) -> bool {
        beyond(self.peer.sent, self.peer.reach) > 1
    }
}

impl Splices {
    /// Resets a client's connection, and the backend's with it. The client connection stays until its client has
    /// believed that.
    pub(in crate::l7::splice) fn abandon<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, position: u32) {
        self.detach(cx, position, Detach::Reset);
        self.send_reset(cx, End::Client(position));
        self.begin_reset(cx, position);
    }

    /// Resets a client's connection, and the backend's with it, and forgets both at once: for a client that has not
    /// answered for long, and for one between exchanges, which hears of a RST that was lost when it sends its next request.
    pub(in crate::l7::splice) fn give_up<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, position: u32) {
        self.detach(cx, position, Detach::Reset);
        self.send_reset(cx, End::Client(position));
        self.remove_client(cx, position);
    }

    /// Ends the exchange of a client whose backend was taken away: the client is reset. But one that may have got all of its
    /// response takes the exchange for over, and would lose its next request: it is asked first.
    pub(in crate::l7::splice) fn end_exchange<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, position: u32) {
        if !self.client_conns.get(position).is_some_and(ClientConn::may_have_its_response) {
            return self.abandon(cx, position);
        }
        self.detach(cx, position, Detach::Reset);
        if let Some(client_conn) = self.client_conns.get_mut(position) {
            client_conn.may_go_on = true;
        }
        self.begin_reset(cx, position);
    }

    /// Whether a segment of a client that is to be reset says that it has got all of its response: it goes on, then.
    pub(in crate::l7::splice) fn has_its_response<IO: FrameIo>(
        &mut self,
        cx: &mut Context<'_, IO>,
        segment: &Segment,
        position: u32,
    ) -> bool {
        let Some(client_conn) = self.client_conns.get_mut(position).filter(|client_conn| client_conn.may_go_on) else {
            return false;
        };
        let ends = client_conn.exchange_ends().filter(|(_, response)| *response == segment.acknowledgement);
        let Some(ends) = ends else { return false };
        let deadline = cx.now + idle_timeout(cx.kind(client_conn.service));
        client_conn.end_exchange(ends, deadline);
        cx.exchange_is_done(client_conn);
        (client_conn.may_go_on, client_conn.asks) = (false, 0);
        client_conn.peer.reach = client_conn.peer.sent;
        client_conn.framing.clear(&mut self.buffers);
        let (deadline, close_client) = (client_conn.deadline, client_conn.closes_after_exchange());
        self.stamp_client(position, deadline);
        if close_client {
            self.close_client(cx, position);
        }
        true
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
                self.finish_operation();
            }
        }
        self.abandoned = end;
        // Those of clients whose turn has not come are reset with their clients.
        let waits =
            |entry: &BackendConn| entry.client_conn.get().is_none() && entry.state != BackendConnState::Resetting;
        let rest = self.backend_conns.iter().filter(|(_, entry)| waits(entry)).map(|(at, _)| at);
        let rest: ArrayVec<u32, ABANDONED_MAX> = rest.take(ABANDONED_MAX).collect();
        for &backend_conn in &rest {
            self.send_reset(cx, End::Backend(backend_conn));
            self.remove_backend(cx, backend_conn, true);
            self.finish_operation();
        }
        self.abandoned < self.client_conns.reach() || rest.is_full()
    }

    /// Begins to answer all that a client sends with RST. The client is asked for a packet as soon as the engine holds no
    /// rule of it; after a while, if software knows the number of the RST that it was sent.
    pub(in crate::l7::splice) fn begin_reset<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, position: u32) {
        if self.client_conns.get(position).is_some_and(|client_conn| !client_conn.may_go_on) {
            self.release_buffers(position);
        }
        let Some(client_conn) = self.client_conns.get_mut(position) else { return cx.impossible() };
        client_conn.state = ClientConnState::Resetting;
        if !client_conn.may_go_on {
            cx.count_out(client_conn);
        }
        (client_conn.asks, client_conn.reset_with) = (0, OptionalNumber::default());
        client_conn.challenge_after = cx.now;
        client_conn.is_clamped = false;
        if client_conn.may_go_on || client_conn.is_ahead_of_software() {
            return self.ask(cx, position);
        }
        client_conn.deadline = cx.now + ASK_AGAIN_AFTER;
        let deadline = client_conn.deadline;
        self.stamp_client(position, deadline);
        self.remove_rules(cx, position);
    }

    /// Asks a client that is to be reset for a packet, or forgets it if it was asked often enough.
    pub(in crate::l7::splice) fn ask<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, position: u32) {
        self.remove_rules(cx, position);
        let Some(client_conn) = self.client_conns.get(position) else { return cx.impossible() };
        if client_conn.asks == ASKS_MAX {
            return self.remove_client(cx, position);
        }
        // What it sends while the engine has rules of it may go to its backend.
        let may_ask = client_conn.pair.state() == OffloadState::Software;
        if may_ask {
            self.acknowledge_below(cx, End::Client(position));
        }
        let Some(client_conn) = self.client_conns.get_mut(position) else { return cx.impossible() };
        client_conn.deadline = cx.now + ASK_AGAIN_AFTER * (1 << client_conn.asks);
        client_conn.asks += u8::from(may_ask);
        let deadline = client_conn.deadline;
        self.stamp_client(position, deadline);
    }

    /// Answers a packet of a client that is to be reset: once for each number that it expects, and now and then again.
    pub(in crate::l7::splice) fn answer_with_reset<IO: FrameIo>(
        &mut self,
        cx: &mut Context<'_, IO>,
        segment: &Segment,
        position: u32,
    ) {
        let Some(client_conn) = self.client_conns.get_mut(position) else { return cx.impossible() };
        let number = segment.acknowledgement;
        if client_conn.reset_with.get() == Some(number) && cx.now < client_conn.challenge_after {
            return;
        }
        client_conn.reset_with = Some(number).into();
        client_conn.challenge_after = cx.now + ASK_AGAIN_AFTER;
        let own = Own {
            source: client_conn.key.destination,
            destination: client_conn.key.source,
            sequence: number,
            acknowledgement: 0,
            flags: RST,
            window: 0,
            port: client_conn.port,
            mss: client_conn.peer.mss,
            abilities: None,
            timestamps: None,
        };
        emit(cx, &own, [&[], &[]]);
    }

    /// Asks a backend that is to be reset for a packet, or forgets its connection if it was asked often enough.
    pub(in crate::l7::splice) fn ask_backend<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, backend_conn: u32) {
        let Some(entry) = self.backend_conns.get_mut(backend_conn) else { return cx.impossible() };
        if entry.tries == ASKS_MAX {
            return self.remove_backend(cx, backend_conn, true);
        }
        entry.tries += 1;
        entry.deadline = cx.now + ASK_AGAIN_AFTER * (1 << entry.tries);
        let deadline = entry.deadline;
        self.stamp_backend(backend_conn, deadline);
        self.acknowledge_below(cx, End::Backend(backend_conn));
    }

    /// A packet of a backend that is to be reset.
    pub(in crate::l7::splice) fn answer_backend_with_reset<IO: FrameIo>(
        &mut self,
        cx: &mut Context<'_, IO>,
        segment: &Segment,
        backend_conn: u32,
    ) {
        if segment.has(RST) {
            return self.remove_backend(cx, backend_conn, true);
        }
        let Some(entry) = self.backend_conns.get_mut(backend_conn).filter(|_| segment.has(ACK)) else {
            return cx.drop(super::read::USELESS);
        };
        let number = segment.acknowledgement;
        if entry.reset_with.get() == Some(number) && cx.now < entry.again {
            return;
        }
        (entry.reset_with, entry.again) = (Some(number).into(), cx.now + ASK_AGAIN_AFTER);
        self.reset_unopened(cx, backend_conn, number);
    }
}

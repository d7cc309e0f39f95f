//! Backend connections that end by themselves, or are heard of while no exchange is under way.

use crate::frame::FrameIo;
use crate::l7::config::Kind;
use crate::l7::splice::state::entry::Again;
use crate::l7::splice::state::entry::{BackendConnState, ClientConnState};
use crate::l7::splice::state::exchange::Message;
use crate::l7::splice::tcp::numbers::{before, beyond, later};
use crate::l7::splice::tcp::segment::Segment;
use crate::l7::splice::timers::TIME_WAIT;
use crate::l7::splice::{Context, End, Fault, Refused, Splices};
use crate::offload::OffloadState;
use crate::record::Ending;
use crate::wire::tcp::{FIN, RST};
use crate::worker::Drop;

impl Splices {
    /// The backend has reset its connection, or closed it before it answered.
    pub(in crate::l7::splice) fn lost_backend<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, backend_conn: u32) {
        let Some(entry) = self.backend_conns.get(backend_conn) else { return cx.impossible() };
        let (position, number) = (entry.client_conn.get(), entry.number);
        let is_stale = entry.is_stale();
        let again = self.unanswered(backend_conn);
        // While the engine leads to its port, no other connection may have that port.
        let ruled = position
            .and_then(|position| self.client_conns.get(position))
            .is_some_and(|client_conn| client_conn.pair.held() != 0);
        self.remove_backend(cx, backend_conn, ruled);
        // An idle one has no client connection.
        let Some(position) = position else { return };
        let Some(client_conn) = self.client_conns.get_mut(position) else { return cx.impossible() };
        client_conn.backend_conn = None.into();
        if let Some(again) = again {
            client_conn.again = again.into();
            client_conn.state = ClientConnState::Waiting;
            client_conn.exchange.backend = number;
            cx.statistics.http.retries += 1;
            if client_conn.pair.state() == OffloadState::Software {
                let next = self.connect(cx, position);
                return self.follow(cx, next);
            }
            return self.remove_rules(cx, position);
        }
        if client_conn.is_between_exchanges() || client_conn.state == ClientConnState::Waiting {
            return self.remove_rules(cx, position);
        }
        client_conn.exchange.ending = Ending::Backend as u8;
        if client_conn.state != ClientConnState::Spliced
            || !matches!(client_conn.exchange.response.get(), Message::Head)
        {
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
    fn unanswered(&mut self, backend_conn: u32) -> Option<Again> {
        let entry = self.backend_conns.get_mut(backend_conn)?;
        let client_conn = self.client_conns.get(entry.client_conn.get()?)?;
        let exchange = &client_conn.exchange;
        let unseen = entry.peer.owned.as_ref().is_some_and(|owned| entry.peer.acknowledged == owned.start);
        // A body that went through is its sender's, who would not know that it has to be sent again.
        let fresh = client_conn.state == ClientConnState::Spliced
            && !exchange.has_begun
            && matches!(exchange.response.get(), Message::Head)
            && exchange.request.is_done()
            && exchange.request_end.get() == Some(exchange.request_floor)
            && exchange.is_idempotent;
        if !unseen || !fresh || entry.requests < 2 {
            return None;
        }
        let taken = client_conn.up.edits().first()?.taken;
        Some(Again { buffer: entry.peer.owned.take()?.buffer.take()?, bytes: taken })
    }

    /// A packet of a backend connection that has no exchange.
    pub(in crate::l7::splice) fn backend_alone<IO: FrameIo>(
        &mut self,
        cx: &mut Context<'_, IO>,
        segment: &Segment,
        backend_conn: u32,
    ) {
        let Some(entry) = self.backend_conns.get_mut(backend_conn) else { return cx.impossible() };
        if segment.has(RST) {
            let near = beyond(entry.peer.told, segment.sequence) <= crate::l7::splice::tcp::send::RECEIVE_WINDOW
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
            self.send_reset(cx, End::Backend(backend_conn));
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
                    self.acknowledge(cx, End::Backend(backend_conn));
                }
                self.backend_over(cx, backend_conn);
            }
            BackendConnState::Closing if closes => self.acknowledge(cx, End::Backend(backend_conn)),
            BackendConnState::Attached | BackendConnState::Idle if closes => {
                let position = entry.client_conn.take();
                if let Some(client_conn) = position.and_then(|position| self.client_conns.get_mut(position)) {
                    client_conn.backend_conn = None.into();
                }
                self.close_backend(cx, backend_conn);
                position.into_iter().for_each(|position| self.remove_rules(cx, position));
            }
            _ if again => self.acknowledge(cx, End::Backend(backend_conn)),
            _ => {}
        }
    }

    /// Both ends of a backend connection have closed.
    fn backend_over<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, backend_conn: u32) {
        let Some(entry) = self.backend_conns.get_mut(backend_conn) else { return cx.impossible() };
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
}

//! When an exchange is over: the response is delivered, the request acknowledged, and nothing of either is on its way.

use super::remove::Detach;
use crate::frame::FrameIo;
use crate::l7::config::Kind;
use crate::l7::splice::state::entry::{BackendConn, ClientConnState};
use crate::l7::splice::state::joined::{joined, joined_mut};
use crate::l7::splice::tcp::numbers::{before, later};
use crate::l7::splice::{Context, End, Splices, stamp};
use crate::offload::OffloadState;
use crate::time::Duration;

impl Splices {
    /// Ends the exchange of a spliced client connection if it is over, and goes on with what the client has sent meanwhile.
    pub(in crate::l7::splice) fn conclude<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, position: u32) {
        let Splices { client_conns, backend_conns, buffers, stamps, .. } = self;
        let Some(client_conn) = client_conns.get(position) else { return cx.impossible() };
        if client_conn.state != ClientConnState::Spliced {
            return;
        }
        let Some((request, delivered)) = client_conn.exchange_ends() else {
            return self.conclude_endless(cx, position);
        };
        if before(client_conn.peer.acknowledged, delivered) || client_conn.peer.owned.is_some() {
            return;
        }
        let Some((client_conn, backend_conn)) = joined_mut(client_conns, backend_conns, position) else { return };
        let response = delivered.wrapping_sub(client_conn.down.delta_at_end());
        if before(backend_conn.peer.acknowledged, request.wrapping_add(client_conn.up.delta_at_end()))
            || backend_conn.peer.owned.is_some()
        {
            return;
        }
        client_conn.end_exchange((request, delivered), cx.now + idle_timeout(cx.kind(client_conn.service)));
        cx.exchange_is_done(client_conn);
        backend_conn.peer.expected =
            later(response, if backend_conn.peer.has_closed { response.wrapping_add(1) } else { response });
        backend_conn.peer.highest = later(backend_conn.peer.highest, backend_conn.peer.expected);
        let close_backend = client_conn.exchange.close_backend || backend_conn.peer.has_closed;
        let close_client = client_conn.closes_after_exchange();
        client_conn.framing.clear(buffers);
        stamp(stamps, &mut client_conn.stamped, position, client_conn.deadline);
        let client_waits = client_conn.waiting() == 0;
        // What has nothing left to say to its backend is others' to take meanwhile.
        let is_quiet =
            backend_conn.peer.told == backend_conn.peer.expected && client_conn.pair.state() == OffloadState::Software;
        let is_carried = client_conn.is_offloaded_down_only();
        // While a rule without a guard leads from it to the client, what it acknowledges would get there.
        backend_conn.is_spent |= close_backend && is_carried;
        if is_carried {
            self.remove_rules(cx, position);
        } else if close_backend {
            self.detach(cx, position, Detach::Close);
        } else if is_quiet && client_waits {
            self.detach(cx, position, Detach::Keep);
        }
        if close_client {
            return self.close_client(cx, position);
        }
        if !client_waits {
            self.read(cx, position);
        }
    }

    /// Ends the exchange where the ends close, if it is over: both have sent FIN and acknowledged the other's.
    fn conclude_endless<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, position: u32) {
        let Splices { client_conns, backend_conns, .. } = self;
        let Some((client_conn, backend_conn)) = joined(client_conns, backend_conns, position) else { return };
        if !client_conn.peer.has_closed || !backend_conn.peer.has_closed || !client_conn.peer.is_settled() {
            return;
        }
        let Some(client_conn) = client_conns.get_mut(position) else { return cx.impossible() };
        client_conn.exchange.ends_well();
        let Some((_, backend_conn)) = joined(client_conns, backend_conns, position) else { return };
        if !backend_conn.peer.was_closed {
            // The client's FIN came with its request and was ours to keep: the backend gets one of ours.
            self.detach(cx, position, Detach::Close);
            let Some(client_conn) = self.client_conns.get_mut(position) else { return cx.impossible() };
            client_conn.state = ClientConnState::TimeWait;
            client_conn.deadline = cx.now + crate::l7::splice::timers::TIME_WAIT;
            cx.count_out(client_conn);
            self.acknowledge(cx, End::Client(position));
        } else if backend_conn.peer.is_settled() {
            // What either sends again is passed on for a while.
            let Some(client_conn) = client_conns.get_mut(position) else { return cx.impossible() };
            client_conn.deadline = client_conn.deadline.min(cx.now + crate::l7::splice::timers::TIME_WAIT);
            cx.count_out(client_conn);
        }
        let Some(deadline) = self.client_conns.get(position).map(|client_conn| client_conn.deadline) else {
            return cx.impossible();
        };
        self.stamp_client(position, deadline);
    }

    /// Acknowledges to a backend connection what its last exchange has left unacknowledged, if nothing else does.
    pub(in crate::l7::splice) fn settle_backend<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, position: u32) {
        let Some(client_conn) = self.client_conns.get(position) else { return };
        let Some(backend_conn) = client_conn.backend_conn.get() else { return };
        let is_quiet = client_conn.is_between_exchanges()
            && client_conn.waiting() == 0
            && client_conn.pair.state() == OffloadState::Software;
        let owes = |entry: &BackendConn| before(entry.peer.told, entry.peer.expected);
        if self.backend_conns.get(backend_conn).is_some_and(owes) {
            self.acknowledge(cx, End::Backend(backend_conn));
        }
        if is_quiet {
            // A client that has nothing to ask now, or has closed, needs no backend.
            self.detach(cx, position, Detach::Keep);
        }
    }
}

/// How long a client may wait with its next request.
pub(in crate::l7::splice) fn idle_timeout(kind: &Kind) -> Duration {
    match kind {
        Kind::Http(http) => http.limits.idle_timeout,
        _ => Duration::from_secs(60),
    }
}

//! Time: what we own is sent again, and nothing lasts for ever.

use super::{Context, End, Fault, Refused, Splices};
use crate::config::Snapshot;
use crate::frame::FrameIo;
use crate::l7::config::Kind;
use crate::l7::splice::stages::remove::Detach;
use crate::l7::splice::stalled::Stalled;
use crate::l7::splice::state::entry::{BackendConn, BackendConnState, ClientConn, ClientConnState};
use crate::l7::splice::state::exchange::Message;
use crate::offload::OffloadState;
use crate::record::Ending;
use crate::table::Position;
use crate::table::ageing::Ageing;
use crate::table::ageing::Deadlines;
use crate::time::{Duration, Time};
use arrayvec::ArrayVec;

/// How long what an end sends again after both have closed is answered: its FIN comes again after 1 s, and 2 s after that,
/// if our acknowledgement was lost (RFC 6298, 2.1 and 5.5).
pub const TIME_WAIT: Duration = Duration::from_secs(5);
/// How often a client that was too slow with its head is told again: one that has not acknowledged it after 3 s in all
/// is most likely gone, and holds a buffer.
pub const SLOW_RETRANSMITS_MAX: u8 = 3;
/// Entries looked at per call at most.
const DUE_MAX: usize = 32;
/// How long an offloaded exchange lasts before software looks at its counters.
pub(super) const OFFLOADED_FOR: Duration = Duration::from_secs(30);

/// Every entry decides by itself when it is due.
struct Stamped;

impl Deadlines for Stamped {
    fn deadline(&self, _: Position) -> Option<Time> {
        Some(Time::ZERO)
    }
}

/// How long a body may pause; a tunnel as long as any connection.
pub(super) fn body_timeout(snapshot: &Snapshot, client_conn: &ClientConn) -> Duration {
    let is_tunnel = matches!(client_conn.exchange.request.get(), Message::Endless);
    match snapshot.services.get(usize::from(client_conn.service)).map(|service| (&service.kind, &service.timeouts)) {
        Some((Kind::Http(http), _)) if !is_tunnel => http.limits.body_timeout,
        Some((_, timeouts)) => timeouts.tcp_established,
        None => Duration::from_secs(60),
    }
}

impl BackendConn {
    /// When it next has to be looked at.
    pub(super) fn due(&self) -> Option<Time> {
        let owned = self.peer.owned.as_ref().map(|owned| owned.due);
        let deadline = match self.state {
            // It ends with its client connection.
            BackendConnState::Attached => Some(self.deadline).filter(|_| self.is_unwanted),
            BackendConnState::Connecting => Some(self.again.min(self.deadline)),
            BackendConnState::Idle
            | BackendConnState::Closing
            | BackendConnState::TimeWait
            | BackendConnState::Resetting => Some(self.deadline),
        };
        [owned, deadline].into_iter().flatten().min()
    }
}

impl Splices {
    /// When [`Splices::handle_timeout`] next has something to do.
    pub(crate) fn poll_timeout(&self, now: Time) -> Option<Time> {
        let stalled = self.stalled.as_ref().map(Stalled::due);
        if self.ready.is_empty() { self.stamps.next(now).into_iter().chain(stalled).min() } else { Some(now) }
    }

    /// Does what is due, a bounded amount.
    pub(crate) fn handle_timeout<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>) {
        for _ in 0..DUE_MAX {
            let Some(position) = self.ready.pop_front() else { break };
            self.go_on(cx, position);
            self.finish_operation();
        }
        let mut due: ArrayVec<Position, DUE_MAX> = ArrayVec::new();
        self.stamps.due(cx.now, &Stamped, &mut due);
        for position in due {
            match position.checked_sub(self.client_conns_max) {
                None => self.client_due(cx, position),
                Some(backend_conn) => self.backend_due(cx, backend_conn),
            }
            self.finish_operation();
        }
        self.tell_stalled(cx);
        self.tell(&mut cx.statistics.http);
    }

    /// The engine has answered what a client connection waited for: it holds no rule of it any more, or carries its response.
    fn go_on<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, position: u32) {
        // One that was adopted may have gone meanwhile.
        let Some(client_conn) = self.client_conns.get(position) else { return };
        if client_conn.is_to_leave_engine() {
            return self.remove_rules(cx, position);
        }
        if client_conn.state == ClientConnState::Spliced
            && client_conn.pair.state() == OffloadState::Software
            && self.ask_ends(cx, position)
        {
            return;
        }
        let Some(client_conn) = self.client_conns.get(position) else { return cx.impossible() };
        if let (ClientConnState::Spliced, Some(backend_conn)) = (client_conn.state, client_conn.backend_conn.get()) {
            return self.acknowledge(cx, End::Backend(backend_conn));
        }
        if client_conn.is_between_exchanges() {
            return self.settle_backend(cx, position);
        }
        if client_conn.state == ClientConnState::Resetting {
            return self.ask(cx, position);
        }
        if client_conn.state == ClientConnState::Waiting
            && client_conn.pair.state() == OffloadState::Software
            && client_conn.pair.answers_due() == 0
        {
            let connecting = client_conn
                .backend_conn
                .get()
                .and_then(|backend_conn| self.backend_conns.get(backend_conn))
                .is_some_and(|backend_conn| backend_conn.state == BackendConnState::Connecting);
            if !connecting {
                let next = self.go(cx, position);
                self.follow(cx, next);
            }
        }
    }

    fn client_due<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, position: u32) {
        // What was due at the same time may have taken it along.
        let Some(client_conn) = self.client_conns.get_mut(position) else { return };
        client_conn.stamped = Time::from_nanos(u64::MAX);
        if client_conn.peer.owned.as_ref().is_some_and(|owned| owned.due <= cx.now) {
            if !client_conn.peer.backend_off(cx.now) {
                cx.statistics.http.refused[Refused::Vanished as usize] += 1;
                self.ends_by(position, Ending::Timeout);
                return self.give_up(cx, position);
            }
            cx.statistics.http.retransmitted += 1;
            self.send_all(cx, End::Client(position));
        }
        let Some(client_conn) = self.client_conns.get(position) else { return cx.impossible() };
        if client_conn.deadline <= cx.now {
            self.client_late(cx, position);
        }
        let look = self.judge_client(cx, position);
        let Some(client_conn) = self.client_conns.get(position) else { return };
        let owned = client_conn.peer.owned.as_ref().map(|owned| owned.due);
        let next = [owned, look].into_iter().flatten().fold(client_conn.deadline, Time::min);
        self.stamp_client(position, next);
    }

    /// A client connection's state has lasted too long.
    fn client_late<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, position: u32) {
        let Some(client_conn) = self.client_conns.get_mut(position) else { return cx.impossible() };
        match client_conn.state {
            ClientConnState::Reading if client_conn.input.is_none() => self.close_client(cx, position),
            ClientConnState::Reading => {
                self.refuse(cx, position, 408, Refused::Slow);
                if let Some(owned) =
                    self.client_conns.get_mut(position).and_then(|client_conn| client_conn.peer.owned.as_mut())
                {
                    owned.tries_max = SLOW_RETRANSMITS_MAX;
                }
            }
            // Its backend connection has a deadline of its own; this is for a request that waits for the engine.
            ClientConnState::Waiting => client_conn.deadline = cx.now + Duration::from_secs(1),
            ClientConnState::Spliced if client_conn.pair.state() != OffloadState::Software => {
                self.look_at_rules(cx, position)
            }
            ClientConnState::Spliced if client_conn.outlasts(cx.snapshot) => {
                client_conn.deadline = cx.now + body_timeout(cx.snapshot, client_conn);
            }
            ClientConnState::Spliced => self.exchange_late(cx, position),
            ClientConnState::Replying | ClientConnState::Closing => {
                // What of ours it did not take within that time, or its FIN, is not waited for any longer.
                let waits = u64::from(client_conn.peer.owned.is_some() && client_conn.peer.window == 0);
                cx.statistics.http.refused[Refused::SendTimeout as usize] += waits;
                client_conn.exchange.ending = Ending::Timeout as u8;
                self.abandon(cx, position);
            }
            ClientConnState::TimeWait => self.remove_client(cx, position),
            ClientConnState::Resetting => self.ask(cx, position),
            ClientConnState::PendingRemoval => client_conn.deadline = cx.now + Duration::from_secs(1),
        }
    }

    fn exchange_late<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, position: u32) {
        let Some(client_conn) = self.client_conns.get_mut(position) else { return cx.impossible() };
        let exchange = &client_conn.exchange;
        let closed = client_conn.peer.has_closed
            && client_conn
                .backend_conn
                .get()
                .and_then(|backend_conn| self.backend_conns.get(backend_conn))
                .is_some_and(|backend_conn| backend_conn.peer.has_closed);
        if closed {
            // Both ends have closed in order; nothing has to be said.
            if let Some(backend_conn) = client_conn.backend_conn.take() {
                self.remove_backend(cx, backend_conn, true);
            }
            if let Some(client_conn) = self.client_conns.get_mut(position) {
                client_conn.exchange.ends_well();
            }
            return self.remove_client(cx, position);
        }
        match exchange.response.get() {
            Message::Head if !exchange.has_begun && exchange.request.is_done() => {
                cx.failed_request(exchange.backend, Fault::Silent);
                self.refuse(cx, position, 504, Refused::ResponseTimeout);
            }
            Message::Head if !exchange.has_begun => self.refuse(cx, position, 408, Refused::Slow),
            _ => {
                self.ends_by(position, Ending::Timeout);
                self.abandon(cx, position)
            }
        }
    }

    /// A backend connection whose backend was taken away.
    fn backend_unwanted<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, backend_conn: u32) {
        let client_conn = self.backend_conns.get(backend_conn).and_then(|entry| entry.client_conn.get());
        match client_conn.and_then(|client_conn| Some((client_conn, self.client_conns.get(client_conn)?.state))) {
            Some((client_conn, ClientConnState::Spliced)) => {
                self.ends_by(client_conn, Ending::Removed);
                self.end_exchange(cx, client_conn)
            }
            // Its request has not been sent: it gets another backend.
            Some((_, ClientConnState::Waiting)) => {
                self.send_reset(cx, End::Backend(backend_conn));
                match self.backend_conns.get(backend_conn).map(|entry| entry.state) {
                    Some(BackendConnState::Connecting) => {
                        let next = self.unconnected(cx, backend_conn, Refused::ConnectTimeout);
                        self.follow(cx, next);
                    }
                    _ => self.lost_backend(cx, backend_conn),
                }
            }
            Some((client_conn, _)) => self.detach(cx, client_conn, Detach::Reset),
            None => {
                self.send_reset(cx, End::Backend(backend_conn));
                self.remove_backend(cx, backend_conn, true);
            }
        }
    }

    fn backend_due<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, backend_conn: u32) {
        // What was due at the same time may have taken it along.
        let Some(entry) = self.backend_conns.get_mut(backend_conn) else { return };
        entry.stamped = Time::from_nanos(u64::MAX);
        if entry.peer.owned.as_ref().is_some_and(|owned| owned.due <= cx.now) {
            if !entry.peer.backend_off(cx.now) {
                cx.statistics.http.refused[Refused::Vanished as usize] += 1;
                self.send_reset(cx, End::Backend(backend_conn));
                return self.lost_backend(cx, backend_conn);
            }
            cx.statistics.http.retransmitted += 1;
            self.send_all(cx, End::Backend(backend_conn));
        }
        let Some(entry) = self.backend_conns.get(backend_conn) else { return cx.impossible() };
        let late = entry.deadline <= cx.now;
        if entry.is_unwanted && late && !matches!(entry.state, BackendConnState::TimeWait | BackendConnState::Resetting)
        {
            return self.backend_unwanted(cx, backend_conn);
        }
        match entry.state {
            BackendConnState::Connecting if late => {
                let next = self.unconnected(cx, backend_conn, Refused::ConnectTimeout);
                return self.follow(cx, next);
            }
            BackendConnState::Connecting if entry.again <= cx.now => return self.connect_again(cx, backend_conn),
            BackendConnState::Idle if late => self.close_backend(cx, backend_conn),
            // A backend that has heard of none of our FINs would keep the connection: it is told until it has heard of a RST.
            BackendConnState::Closing if late => {
                self.send_reset(cx, End::Backend(backend_conn));
                return self.begin_backend_reset(cx, backend_conn);
            }
            BackendConnState::TimeWait if late => return self.remove_backend(cx, backend_conn, false),
            BackendConnState::Resetting if late => return self.ask_backend(cx, backend_conn),
            _ => {}
        }
        let Some(entry) = self.backend_conns.get(backend_conn) else { return cx.impossible() };
        let next = entry.due();
        next.into_iter().for_each(|next| self.stamp_backend(backend_conn, next));
    }
}

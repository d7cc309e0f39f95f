//! Taking connections apart: a backend connection leaves its client connection, is kept for others, closed or reset, and
//! what is over is forgotten.

use super::read::CLOSING_TIMEOUT;
use super::reset::ASK_AGAIN_AFTER;
use crate::config::BackendState as BackendAllowed;
use crate::config::Snapshot;
use crate::flow::Direction;
use crate::frame::FrameIo;
use crate::l7::splice::state::entry::{BackendConn, BackendConnState, ClientConnState};
use crate::l7::splice::state::peer::Owned;
use crate::l7::splice::tcp::numbers::before;
use crate::l7::splice::{Context, End, Splices, stamp};
use crate::offload::OffloadState;
use crate::stored::OptionalNumber;
use crate::table::ageing::Ageing;
use crate::time::{Duration, Time};

/// How long an idle connection to a backend is kept.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// What becomes of a backend connection whose client connection lets go of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::l7::splice) enum Detach {
    /// Others may have it.
    Keep,
    /// It is closed.
    Close,
    /// It is in the middle of something: reset.
    Reset,
}

impl BackendConn {
    /// Counts it towards its backend's load, or takes it off.
    #[inline]
    pub(in crate::l7::splice) fn count<IO: FrameIo>(&mut self, cx: &Context<'_, IO>, there: bool) {
        if self.is_counted == there {
            return;
        }
        self.is_counted = there;
        match there {
            true => cx.loads.add(u32::from(self.number)),
            false => cx.loads.take(u32::from(self.number)),
        }
    }
}

impl Splices {
    /// Takes the backend connection from a client connection.
    pub(in crate::l7::splice) fn detach<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, position: u32, how: Detach) {
        let Some(client_conn) = self.client_conns.get_mut(position) else { return cx.impossible() };
        let Some(backend_conn) = client_conn.backend_conn.take() else { return };
        let ruled = client_conn.pair.state() != OffloadState::Software;
        let Some(entry) = self.backend_conns.get_mut(backend_conn) else { return cx.impossible() };
        entry.client_conn = None.into();
        let open = entry.state == BackendConnState::Attached && !entry.peer.has_closed;
        match how {
            // The engine may still lead the client's packets to it.
            Detach::Keep if open && !ruled => {
                client_conn.left = Some(backend_conn).into();
                client_conn.left_generation = self.backend_conns.generation(backend_conn);
                self.rest(cx, backend_conn);
            }
            Detach::Keep | Detach::Close if entry.state == BackendConnState::Attached => {
                self.close_backend(cx, backend_conn)
            }
            _ => self.drop_backend(cx, backend_conn),
        }
    }

    /// Puts a backend connection among the idle ones, if there is room.
    pub(in crate::l7::splice) fn rest<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, backend_conn: u32) {
        let Some(entry) = self.backend_conns.get(backend_conn) else { return cx.impossible() };
        let number = entry.number;
        let enabled = |state| state == BackendAllowed::Enabled;
        let takes = cx.snapshot.backend(number).is_some_and(|(_, backend)| enabled(backend.state));
        // A sender keeps the congestion window that losses on another client's way have left it (RFC 5681, 3.1).
        let retires = takes && !entry.is_unwanted && !entry.is_spent && entry.has_repeated;
        cx.statistics.http.retired += u64::from(retires);
        let limit = if takes && !entry.is_unwanted && !entry.is_spent && !retires { entry.idle_max } else { 0 };
        let may_rest = entry.peer.is_settled() && entry.input.is_none() && limit > 0;
        if before(entry.peer.told, entry.peer.expected) {
            self.acknowledge(cx, End::Backend(backend_conn));
        }
        if !may_rest {
            return self.close_backend(cx, backend_conn);
        }
        if self.idle.count(number) >= limit
            && let Some(oldest) = self.idle.oldest(&self.backend_conns, number)
        {
            self.close_backend(cx, oldest);
        }
        let Some(entry) = self.backend_conns.get_mut(backend_conn) else { return cx.impossible() };
        entry.state = BackendConnState::Idle;
        entry.has_probed = false;
        entry.pairing = self.seals.pair(None, entry.seal);
        entry.count(cx, false);
        entry.deadline = cx.now + IDLE_TIMEOUT;
        stamp(&mut self.stamps, &mut entry.stamped, self.client_conns_max + backend_conn, entry.deadline);
        self.idle.push(&mut self.backend_conns, backend_conn);
    }

    /// Closes a connection to a backend in order.
    pub(in crate::l7::splice) fn close_backend<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, backend_conn: u32) {
        let Some(entry) = self.backend_conns.get(backend_conn) else { return cx.impossible() };
        if entry.state == BackendConnState::Idle {
            self.idle.remove(&mut self.backend_conns, backend_conn);
        }
        let Some(entry) = self.backend_conns.get_mut(backend_conn) else { return cx.impossible() };
        if entry.peer.owned.is_some() || !entry.peer.is_settled() {
            self.send_reset(cx, End::Backend(backend_conn));
            return self.remove_backend(cx, backend_conn, true);
        }
        entry.peer.owned = Owned::new(cx.now, entry.peer.sent, None, true).into();
        entry.peer.was_closed = true;
        entry.state = BackendConnState::Closing;
        entry.deadline = cx.now + CLOSING_TIMEOUT;
        let deadline = entry.deadline;
        self.stamp_backend(backend_conn, deadline);
        self.send_all(cx, End::Backend(backend_conn));
    }

    /// Forgets a backend connection. Its port rests if the backend may still remember it.
    pub(in crate::l7::splice) fn remove_backend<IO: FrameIo>(
        &mut self,
        cx: &mut Context<'_, IO>,
        backend_conn: u32,
        rest: bool,
    ) {
        if self.backend_conns.get(backend_conn).is_some_and(|entry| entry.state == BackendConnState::Idle) {
            self.idle.remove(&mut self.backend_conns, backend_conn);
        }
        self.end_diversion(cx, backend_conn);
        let Some(entry) = self.backend_conns.get_mut(backend_conn) else { return cx.impossible() };
        entry.count(cx, false);
        entry.peer.disown(&mut self.buffers);
        if let Some(input) = entry.input.take() {
            self.buffers.release(input);
        }
        let (key, number, source, target) = (entry.key.flow(), entry.number, entry.own_end(), entry.target());
        let was_open = entry.state != BackendConnState::TimeWait;
        self.unindex(&key, backend_conn, Direction::FromBackend);
        self.stamps.ended(self.client_conns_max + backend_conn);
        if rest {
            self.resting.add(cx.now, cx.snapshot.pool.time_wait, source, target);
        }
        self.backend_conns.forget(backend_conn);
        cx.known.remove(cx.steering.hash(&source));
        cx.ports.release(cx.now, u32::from(number), source, rest);
        if let Some(backend) = cx.statistics.backends.get_mut(usize::from(number)) {
            backend.connections_now = backend.connections_now.saturating_sub(1);
            // One in TIME_WAIT has been counted out.
            backend.open_now = backend.open_now.saturating_sub(was_open.into());
        }
        self.tell(&mut cx.statistics.http);
    }

    /// Forgets a client connection, as soon as the engine holds no rule of it.
    pub(in crate::l7::splice) fn remove_client<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, position: u32) {
        self.detach(cx, position, Detach::Keep);
        let Some(client_conn) = self.client_conns.get_mut(position) else { return cx.impossible() };
        let (key, was, first) = (client_conn.key, client_conn.state, client_conn.first);
        client_conn.state = ClientConnState::PendingRemoval;
        cx.count_out(client_conn);
        let offload_state = client_conn.pair.state();
        self.release_buffers(position);
        if was != ClientConnState::PendingRemoval {
            self.unindex(&key.flow(), position, Direction::FromClient);
            self.ended.add(cx.now, &key.flow(), first);
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
            let wanted = |entry: &BackendConn| entry.number == number && entry.state != BackendConnState::Resetting;
            if !self.backend_conns.get(backend_conn).is_some_and(wanted) {
                continue;
            }
            if let Some(entry) = self.backend_conns.get_mut(backend_conn) {
                (entry.is_unwanted, entry.deadline) = (true, now);
            }
            self.stamp_backend(backend_conn, now);
            self.finish_operation();
        }
    }

    /// Closes the idle connections of all backends that get no more requests.
    pub(crate) fn end_idle(&mut self, now: Time, snapshot: &Snapshot) {
        for backend_conn in 0..self.backend_conns.reach() {
            let idle = |entry: &&BackendConn| entry.state == BackendConnState::Idle;
            let Some(entry) = self.backend_conns.get(backend_conn).filter(idle) else { continue };
            let enabled = |state| state == BackendAllowed::Enabled;
            if snapshot.backend(entry.number).is_some_and(|(_, backend)| enabled(backend.state)) {
                continue;
            }
            if let Some(entry) = self.backend_conns.get_mut(backend_conn) {
                entry.deadline = now;
            }
            self.stamp_backend(backend_conn, now);
            self.finish_operation();
        }
    }

    /// Resets a backend's connection and forgets it, as soon as its backend has been told.
    pub(in crate::l7::splice) fn drop_backend<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, backend_conn: u32) {
        self.send_reset(cx, End::Backend(backend_conn));
        let ahead = |entry: &BackendConn| entry.state == BackendConnState::Attached && entry.is_ahead_of_software();
        if !self.backend_conns.get(backend_conn).is_some_and(ahead) {
            return self.remove_backend(cx, backend_conn, true);
        }
        self.begin_backend_reset(cx, backend_conn);
    }

    /// Begins to answer all that a backend sends with RST, and to ask it for a packet: the RST that it was sent may be lost,
    /// or may not have the number that the backend expects.
    pub(in crate::l7::splice) fn begin_backend_reset<IO: FrameIo>(
        &mut self,
        cx: &mut Context<'_, IO>,
        backend_conn: u32,
    ) {
        let Some(entry) = self.backend_conns.get_mut(backend_conn) else { return cx.impossible() };
        entry.count(cx, false);
        entry.peer.disown(&mut self.buffers);
        if let Some(input) = entry.input.take() {
            self.buffers.release(input);
        }
        entry.state = BackendConnState::Resetting;
        (entry.tries, entry.reset_with, entry.again) = (0, OptionalNumber::default(), cx.now);
        // Until then the engine's rules have gone: what it sends before goes to its client.
        entry.deadline = cx.now + ASK_AGAIN_AFTER;
        let deadline = entry.deadline;
        self.stamp_backend(backend_conn, deadline);
    }

    /// Lets go of all buffers of a client connection.
    pub(in crate::l7::splice) fn release_buffers(&mut self, position: u32) {
        let Some(client_conn) = self.client_conns.get_mut(position) else { return };
        client_conn.peer.disown(&mut self.buffers);
        let kept = [client_conn.input.take(), client_conn.again.take().map(|again| again.buffer)];
        kept.into_iter().flatten().for_each(|buffer| self.buffers.release(buffer));
        client_conn.framing.clear(&mut self.buffers);
    }
}

//! Time: what we own is sent again, and nothing lasts for ever.

use super::close::Fate;
use super::entry::{BackState, Front, FrontState, Message};
use super::{Context, Fault, Refused, Splices};
use crate::config::Snapshot;
use crate::frame::FrameIo;
use crate::l4::connection::OffloadState;
use crate::l7::config::Kind;
use crate::table::Position;
use crate::table::ageing::{Ageing, Deadlines};
use crate::time::{Duration, Time};
use arrayvec::ArrayVec;

/// How long what an end sends again after both have closed is answered: its FIN comes again after 1 s, and 2 s after that,
/// if our acknowledgement was lost (RFC 6298, 2.1 and 5.5).
pub(super) const TIME_WAIT: Duration = Duration::from_secs(5);
/// How often a client that was too slow with its head is told again: one that has not acknowledged it after 3 s in all
/// is most likely gone, and holds a buffer.
const SLOW_RETRANSMITS_MAX: u8 = 3;
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
pub(super) fn body_timeout(snapshot: &Snapshot, front: &Front) -> Duration {
    let is_tunnel = matches!(front.exchange.request, Message::Endless);
    match snapshot.services.get(usize::from(front.service)).map(|service| (&service.kind, &service.timeouts)) {
        Some((Kind::Http(http), _)) if !is_tunnel => http.limits.body_timeout,
        Some((_, timeouts)) => timeouts.tcp_established,
        None => Duration::from_secs(60),
    }
}

impl Splices {
    /// When [`Splices::handle_timeout`] next has something to do.
    pub(crate) fn poll_timeout(&self, now: Time) -> Option<Time> {
        if self.ready.is_empty() { self.stamps.next(now) } else { Some(now) }
    }

    /// Does what is due, a bounded amount.
    pub(crate) fn handle_timeout<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>) {
        for _ in 0..DUE_MAX {
            let Some(position) = self.ready.pop_front() else { break };
            self.go_on(cx, position);
        }
        let mut due: ArrayVec<Position, DUE_MAX> = ArrayVec::new();
        self.stamps.due(cx.now, &Stamped, &mut due);
        for position in due {
            match position.checked_sub(self.fronts_max) {
                None => self.front_due(cx, position),
                Some(back) => self.back_due(cx, back),
            }
        }
        self.tell(&mut cx.statistics.http);
    }

    /// The engine has answered what a front waited for: it holds no rule of it any more, or carries its response.
    fn go_on<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, position: u32) {
        let Some(front) = self.fronts.get(position) else { return };
        if front.state == FrontState::Joined && front.asks > 0 && front.offload_state == OffloadState::Software {
            return self.acknowledge_below(cx, position);
        }
        if let (FrontState::Joined, Some(back)) = (front.state, front.back) {
            return self.acknowledge_back(cx, back);
        }
        if front.is_between_exchanges() {
            return self.settle_back(cx, position);
        }
        if front.state == FrontState::Resetting {
            return self.ask(cx, position);
        }
        if front.state == FrontState::Waiting && front.offload_state == OffloadState::Software && front.answers_due == 0
        {
            let connecting = front
                .back
                .and_then(|back| self.backs.get(back))
                .is_some_and(|back| back.state == BackState::Connecting);
            if !connecting {
                self.go(cx, position);
            }
        }
    }

    fn front_due<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, position: u32) {
        let Some(front) = self.fronts.get_mut(position) else { return };
        front.stamped = Time::from_nanos(u64::MAX);
        if front.peer.owned.as_ref().is_some_and(|owned| owned.due <= cx.now) {
            if !front.peer.back_off(cx.now) {
                cx.statistics.http.refused[Refused::Vanished as usize] += 1;
                return self.abandon(cx, position);
            }
            cx.statistics.http.retransmitted += 1;
            self.send_owned_front(cx, position);
        }
        let Some(front) = self.fronts.get(position) else { return };
        if front.deadline <= cx.now {
            self.front_late(cx, position);
        }
        let look = self.look_at_client(cx, position);
        let Some(front) = self.fronts.get(position) else { return };
        let owned = front.peer.owned.as_ref().map(|owned| owned.due);
        let next = [owned, look].into_iter().flatten().fold(front.deadline, Time::min);
        self.stamp_front(position, next);
    }

    /// A front's state has lasted too long.
    fn front_late<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, position: u32) {
        let Some(front) = self.fronts.get_mut(position) else { return };
        match front.state {
            FrontState::Reading if front.input.is_none() => self.close_front(cx, position),
            FrontState::Reading => {
                self.refuse(cx, position, 408, Refused::Slow);
                if let Some(owned) = self.fronts.get_mut(position).and_then(|front| front.peer.owned.as_mut()) {
                    owned.tries_max = SLOW_RETRANSMITS_MAX;
                }
            }
            // Its back has a deadline of its own; this is for a request that waits for the engine.
            FrontState::Waiting => front.deadline = cx.now + Duration::from_secs(1),
            FrontState::Joined if front.offload_state != OffloadState::Software => self.look_at_rules(cx, position),
            FrontState::Joined if front.outlasts(cx.snapshot) => {
                front.deadline = cx.now + body_timeout(cx.snapshot, front);
            }
            FrontState::Joined => self.exchange_late(cx, position),
            FrontState::Replying | FrontState::Closing => {
                // What of ours it did not take within that time, or its FIN, is not waited for any longer.
                let waits = u64::from(front.peer.owned.is_some() && front.peer.window == 0);
                cx.statistics.http.refused[Refused::SendTimeout as usize] += waits;
                self.abandon(cx, position);
            }
            FrontState::TimeWait => self.remove_front(cx, position),
            FrontState::Resetting => self.ask(cx, position),
            FrontState::PendingRemoval => front.deadline = cx.now + Duration::from_secs(1),
        }
    }

    fn exchange_late<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, position: u32) {
        let Some(front) = self.fronts.get_mut(position) else { return };
        let exchange = &front.exchange;
        let closed = front.peer.has_closed
            && front.back.and_then(|back| self.backs.get(back)).is_some_and(|back| back.peer.has_closed);
        if closed {
            // Both ends have closed in order; nothing has to be said.
            if let Some(back) = front.back.take() {
                self.remove_back(cx, back, true);
            }
            return self.remove_front(cx, position);
        }
        match exchange.response {
            Message::Head if !exchange.has_begun && exchange.request.is_done() => {
                cx.failed_request(exchange.backend, Fault::Silent);
                self.refuse(cx, position, 504, Refused::ResponseTimeout);
            }
            Message::Head if !exchange.has_begun => self.refuse(cx, position, 408, Refused::Slow),
            _ => self.abandon(cx, position),
        }
    }

    /// A back whose backend was taken away.
    fn back_unwanted<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, back: u32) {
        let front = self.backs.get(back).and_then(|entry| entry.front);
        match front.and_then(|front| Some((front, self.fronts.get(front)?.state))) {
            Some((front, FrontState::Joined | FrontState::Waiting)) => self.abandon(cx, front),
            Some((front, _)) => self.detach(cx, front, Fate::Reset),
            None => {
                self.reset_back(cx, back);
                self.remove_back(cx, back, true);
            }
        }
    }

    fn back_due<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, back: u32) {
        let Some(entry) = self.backs.get_mut(back) else { return };
        entry.stamped = Time::from_nanos(u64::MAX);
        if entry.peer.owned.as_ref().is_some_and(|owned| owned.due <= cx.now) {
            if !entry.peer.back_off(cx.now) {
                cx.statistics.http.refused[Refused::Vanished as usize] += 1;
                self.reset_back(cx, back);
                return self.lost_back(cx, back);
            }
            cx.statistics.http.retransmitted += 1;
            self.send_owned_back(cx, back);
        }
        let Some(entry) = self.backs.get(back) else { return };
        let late = entry.deadline <= cx.now;
        if entry.is_unwanted && late && !matches!(entry.state, BackState::TimeWait | BackState::Resetting) {
            return self.back_unwanted(cx, back);
        }
        match entry.state {
            BackState::Connecting if late => return self.unconnected(cx, back, Refused::ConnectTimeout),
            BackState::Connecting if entry.again <= cx.now => return self.connect_again(cx, back),
            BackState::Idle if late => self.close_back(cx, back),
            BackState::Closing if late => {
                self.reset_back(cx, back);
                return self.remove_back(cx, back, true);
            }
            BackState::TimeWait if late => return self.remove_back(cx, back, false),
            BackState::Resetting if late => return self.ask_back(cx, back),
            _ => {}
        }
        let Some(entry) = self.backs.get(back) else { return };
        let owned = entry.peer.owned.as_ref().map(|owned| owned.due);
        let deadline = match entry.state {
            BackState::Attached => None,
            BackState::Connecting => Some(entry.again.min(entry.deadline)),
            BackState::Idle | BackState::Closing | BackState::TimeWait | BackState::Resetting => Some(entry.deadline),
        };
        let next = [owned, deadline].into_iter().flatten().min();
        next.into_iter().for_each(|next| self.stamp_back(back, next));
    }
}

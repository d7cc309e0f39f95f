//! When an exchange is over: the response is delivered, the request acknowledged, and nothing of either is on its way.

use super::close::Fate;
use super::numbers::{before, later};
use super::{Context, FrontState, Splices};
use crate::frame::FrameIo;
use crate::l4::connection::OffloadState;
use crate::l7::config::Kind;
use crate::time::Duration;

impl Splices {
    /// Ends the exchange of a joined front if it is over, and goes on with what the client has sent meanwhile.
    pub(super) fn conclude<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, position: u32) {
        let Some(front) = self.fronts.get_mut(position) else { return };
        let exchange = &front.exchange;
        if front.state != FrontState::Joined {
            return;
        }
        let (Some(request), Some(response)) =
            (exchange.request.end(exchange.request_end), exchange.response.end(exchange.response_end))
        else {
            return self.conclude_endless(cx, position);
        };
        let delivered = response.wrapping_add(front.down.delta_at_end());
        if before(front.peer.acknowledged, delivered) || front.peer.owned.is_some() {
            return;
        }
        let Some(back) = front.back.and_then(|back| self.backs.get_mut(back)) else { return };
        if before(back.peer.acknowledged, request.wrapping_add(front.up.delta_at_end())) || back.peer.owned.is_some() {
            return;
        }
        front.peer.expected = later(front.peer.expected, request);
        front.peer.highest = later(front.peer.highest, front.peer.expected);
        front.peer.sent = later(front.peer.sent, delivered);
        back.peer.expected = later(response, if back.peer.has_closed { response.wrapping_add(1) } else { response });
        back.peer.highest = later(back.peer.highest, back.peer.expected);
        let close_back = exchange.close_back || back.peer.has_closed;
        // A client that has closed may have requests waiting here.
        let close_front = exchange.close_front || front.peer.has_closed && front.waiting() == 0;
        front.framing.clear(&mut self.buffers);
        front.state = FrontState::Reading;
        front.deadline = cx.now + idle_timeout(cx.kind(front.service));
        let (deadline, front_waits) = (front.deadline, front.waiting() == 0);
        // What has nothing left to say to its backend is others' to take meanwhile.
        let is_quiet = back.peer.told == back.peer.expected && front.offload_state == OffloadState::Software;
        let is_carried = front.is_carried_down_only();
        // While a rule without a guard leads from it to the client, what it acknowledges would get there.
        back.is_spent |= close_back && is_carried;
        if is_carried {
            self.remove_rules(cx, position);
        } else if close_back {
            self.detach(cx, position, Fate::Close);
        } else if is_quiet && front_waits {
            self.detach(cx, position, Fate::Keep);
        }
        self.stamp_front(position, deadline);
        if close_front {
            return self.close_front(cx, position);
        }
        self.read(cx, position);
    }

    /// Ends the exchange where the ends close, if it is over: both have sent FIN and acknowledged the other's.
    fn conclude_endless<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, position: u32) {
        let Some(front) = self.fronts.get_mut(position) else { return };
        let Some(back) = front.back.and_then(|back| self.backs.get(back)) else { return };
        if !front.peer.has_closed || !back.peer.has_closed || !front.peer.is_settled() {
            return;
        }
        if !back.peer.was_closed {
            // The client's FIN came with its request and was ours to keep: the backend gets one of ours.
            self.detach(cx, position, Fate::Close);
            let Some(front) = self.fronts.get_mut(position) else { return };
            front.state = FrontState::TimeWait;
            front.deadline = cx.now + super::timers::TIME_WAIT;
            cx.count_out(front);
            self.acknowledge_front(cx, position);
        } else if back.peer.is_settled() {
            // What either sends again is passed on for a while.
            front.deadline = front.deadline.min(cx.now + super::timers::TIME_WAIT);
            cx.count_out(front);
        }
        let Some(deadline) = self.fronts.get(position).map(|front| front.deadline) else { return };
        self.stamp_front(position, deadline);
    }
}

/// How long a client may wait with its next request.
pub(super) fn idle_timeout(kind: &Kind) -> Duration {
    match kind {
        Kind::Http(http) => http.limits.idle_timeout,
        _ => Duration::from_secs(60),
    }
}

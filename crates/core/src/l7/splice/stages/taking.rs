//! Clients that take nothing of the response they are sent: `send_timeout`.
//!
//! What counts is what a client acknowledges, and that its window opens. While the engine carries a response, software
//! sees neither: every half of the limit the rules go, and the client is asked for a packet. What it may have taken
//! until then is unknown and counts for it, so no client is reset early.

use crate::config::Snapshot;
use crate::frame::FrameIo;
use crate::l7::config::Kind;
use crate::l7::splice::state::entry::{ClientConn, ClientConnState};
use crate::l7::splice::state::exchange::Message;
use crate::l7::splice::timers::{OFFLOADED_FOR, body_timeout};
use crate::l7::splice::{Context, End, Refused, Splices};
use crate::offload::OffloadState;
use crate::record::Ending;
use crate::time::{Duration, Time};

/// How long a client may take nothing. `None`: a service without such a limit.
fn limit(snapshot: &Snapshot, client_conn: &ClientConn) -> Option<Duration> {
    match &snapshot.services.get(usize::from(client_conn.service))?.kind {
        Kind::Http(http) => Some(http.limits.send_timeout),
        _ => None,
    }
}

impl ClientConn {
    /// Whether its exchange may last although nothing moves: as long as the client may take nothing.
    pub(in crate::l7::splice) fn outlasts(&self, snapshot: &Snapshot) -> bool {
        self.is_sent_to() && self.is_waited_for() && limit(snapshot, self).is_some()
    }

    /// Whether a response has begun that the client may not have all of.
    fn is_sent_to(&self) -> bool {
        self.state == ClientConnState::Spliced && !matches!(self.exchange.response.get(), Message::Head)
    }

    /// Whether the client is waited for: it has not acknowledged all that it was sent, or takes nothing now, or has not
    /// said since the engine forwarded its response.
    fn is_waited_for(&self) -> bool {
        self.asks > 0 || self.peer.acknowledged != self.peer.sent || self.peer.window == 0
    }

    /// A segment of the client's was heard, which had acknowledged `acknowledged` and had such a window before.
    pub(in crate::l7::splice) fn has_heard(
        &mut self,
        now: Time,
        snapshot: &Snapshot,
        (acknowledged, window): (u32, u32),
    ) {
        if self.state == ClientConnState::Resetting {
            return;
        }
        self.asks = 0;
        if self.peer.acknowledged == acknowledged && (window > 0 || self.peer.window == 0) {
            return;
        }
        self.taken = now;
        if self.is_sent_to() {
            // Its backend may send again from now on.
            self.deadline = self.deadline.max(now + body_timeout(snapshot, self));
        }
    }

    /// The client is about to be sent something, and has taken all before: it has its time from now on.
    pub(in crate::l7::splice) fn is_sent_more(&mut self, now: Time) {
        if self.peer.acknowledged == self.peer.sent && self.peer.window > 0 {
            self.taken = now;
        }
    }

    /// A response begins. Returns when to look whether the client takes it.
    pub(in crate::l7::splice) fn begin_taking(&mut self, now: Time, snapshot: &Snapshot) -> Option<Time> {
        self.taken = now;
        limit(snapshot, self).map(|limit| now + limit / 2)
    }
}

impl Splices {
    /// Looks whether a client takes its response; says when to look again. One that has taken nothing for too long is
    /// reset.
    pub(in crate::l7::splice) fn judge_client<IO: FrameIo>(
        &mut self,
        cx: &mut Context<'_, IO>,
        position: u32,
    ) -> Option<Time> {
        let client_conn = self.client_conns.get_mut(position).filter(|client_conn| client_conn.is_sent_to())?;
        let limit = limit(cx.snapshot, client_conn)?;
        let again = cx.now + limit / 2;
        if client_conn.pair.state() != OffloadState::Software {
            if client_conn.taken + limit / 2 <= cx.now {
                self.look_at_rules(cx, position);
            }
            return Some(again);
        }
        let due = client_conn.taken + limit;
        if !client_conn.is_waited_for() || cx.now < due {
            return Some(if cx.now < due { again.min(due) } else { again });
        }
        if client_conn.asks > 0 {
            // Whether it took something until its rules went is not known.
            client_conn.asks = 0;
            client_conn.taken = client_conn.looked;
            self.acknowledge_below(cx, End::Client(position));
            return Some(again);
        }
        cx.statistics.http.refused[Refused::SendTimeout as usize] += 1;
        self.ends_by(position, Ending::Timeout);
        self.abandon(cx, position);
        None
    }

    /// An end has closed: when its FIN is acknowledged, software has to see it, so the rules go. An acknowledgement that the engine
    /// forwards until then is asked for again.
    pub(in crate::l7::splice) fn follow_end<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, position: u32) {
        if let Some(client_conn) = self.client_conns.get_mut(position)
            && client_conn.pair.state() != OffloadState::Software
            && client_conn.is_sent_to()
            && !client_conn.peer.is_settled()
        {
            (client_conn.asks, client_conn.looked) = (1, cx.now);
        }
        self.remove_rules(cx, position);
    }

    /// Asks the ends of an exchange that the engine carries no more for what software may have missed. Whether there was any.
    pub(in crate::l7::splice) fn ask_ends<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, position: u32) -> bool {
        let Some(client_conn) = self.client_conns.get(position) else { return false };
        let (asks_client, backend_conn) = (client_conn.asks > 0, client_conn.backend_conn.get());
        if asks_client {
            self.acknowledge_below(cx, End::Client(position));
        }
        let owes_last =
            |&backend_conn: &u32| self.backend_conns.get(backend_conn).is_some_and(|entry| entry.peer.owes_last());
        let Some(backend_conn) = backend_conn.filter(owes_last) else { return asks_client };
        self.acknowledge_below(cx, End::Backend(backend_conn));
        true
    }

    /// An exchange that the engine carries has lasted: its rules go, and what its ends send next tells whether it goes on.
    /// A client that only receives is asked.
    pub(in crate::l7::splice) fn look_at_rules<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, position: u32) {
        if let Some(client_conn) = self.client_conns.get_mut(position) {
            client_conn.deadline = cx.now + OFFLOADED_FOR;
            if client_conn.is_sent_to() {
                (client_conn.asks, client_conn.looked) = (1, cx.now);
                client_conn.deadline = client_conn.deadline.max(cx.now + body_timeout(cx.snapshot, client_conn));
            }
        }
        self.remove_rules(cx, position);
    }
}

//! Senders that repeat what met no process.
//!
//! While no process is there, the packets that software would forward are dropped. Their senders repeat them, each time after
//! twice as long, and return to a short time only when they have measured a round trip, which needs data that was not
//! repeated (RFC 6298, 3 and 5.7). So a sender that a process has been missing for may go on waiting long after another has
//! begun. A message that the segment found no route to its destination takes one doubling back, and has the sender repeat
//! the segment at once if its time has passed then (RFC 6069; in Linux `tcp_ld_RTO_revert`). It is believed if it quotes
//! the first byte that is not acknowledged; a sender that waits for no timer takes it for a soft error (RFC 1122, 4.2.3.9).
//! A new process sends such messages to the ends of exchanges that are not with the engine, unless nothing has been heard
//! of either end for so long that no timer is running: an idle tunnel.

use super::state::entry::{BackendConn, ClientConn, ClientConnState};
use super::state::peer::Peer;
use super::tcp::segment::Own;
use super::{Context, Splices};
use crate::flow::Endpoint;
use crate::frame::{Frame, FrameIo};
use crate::l4::answer::{Notice, notice};
use crate::offload::OffloadState;
use crate::time::{Duration, Time};
use crate::wire::tcp::ACK;
use crate::wire::{Parsed, parse};
use crate::worker::Drop;

/// How long after it has begun a process sends the messages: neighbours are resolved by then.
const AFTER: Duration = Duration::from_millis(100);
/// Doublings that are taken back: from 12.8 s to 0.2 s, the least that Linux waits.
const DOUBLINGS: usize = 6;
/// An end that repeats was heard of within this time before the process was missing: no timer is longer (RFC 6298, 2.5; Linux
/// `TCP_RTO_MAX`).
const QUIET: Duration = Duration::from_secs(120);
/// Client connections looked at per call at most.
const LOOKED_MAX: u32 = 256;
/// Client connections whose ends are told per call at most: 48 messages.
const TOLD_MAX: usize = 4;

/// How far the sweep that sends the messages has come.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stalled {
    /// The next client connection's position.
    next: u32,
    due: Time,
}

impl Stalled {
    /// The sweep of a process that begins now.
    pub(super) fn new(now: Time) -> Stalled {
        Stalled { next: 0, due: now + AFTER }
    }

    /// When the next message is due.
    pub(super) fn due(&self) -> Time {
        self.due
    }
}

impl ClientConn {
    /// Whether either end may repeat what software has to forward.
    pub(super) fn may_be_stalled(&self, now: Time) -> bool {
        self.pair.state() == OffloadState::Software
            && now.since(self.last_seen) < QUIET
            && (self.awaits_client() || self.awaits_backend())
    }

    /// Whether software waits for something of its client's.
    fn awaits_client(&self) -> bool {
        match self.state {
            ClientConnState::Reading => self.input.is_some(),
            ClientConnState::Waiting | ClientConnState::Spliced => !self.exchange.request.is_done(),
            _ => false,
        }
    }

    /// Whether software waits for something of its backend's.
    fn awaits_backend(&self) -> bool {
        self.state == ClientConnState::Spliced && !self.exchange.response.is_done()
    }

    /// The segment that its client repeats.
    fn repeated_by_client(&self) -> Own {
        repeated(&self.peer, [self.key.source, self.key.destination], self.port)
    }
}

impl BackendConn {
    /// The segment that its backend repeats.
    fn repeated_by_backend(&self) -> Own {
        repeated(&self.peer, [self.target(), self.own_end()], self.port)
    }
}

/// The segment with the first byte of a peer's that is not acknowledged, as a message quotes it.
fn repeated(peer: &Peer, [source, destination]: [Endpoint; 2], port: u16) -> Own {
    Own {
        source,
        destination,
        sequence: peer.told,
        acknowledgement: peer.sent,
        flags: ACK,
        window: 0,
        port,
        mss: peer.mss,
        abilities: None,
        timestamps: None,
    }
}

impl Splices {
    /// Sends messages to the ends of some exchanges that another process has left.
    pub(super) fn tell_stalled<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>) {
        let Some(Stalled { next, due }) = self.stalled.filter(|stalled| stalled.due <= cx.now) else { return };
        let end = next.saturating_add(LOOKED_MAX).min(self.client_conns.reach());
        let (mut at, mut told) = (next, 0);
        while at < end && told < TOLD_MAX {
            let client_conn = self.client_conns.get(at);
            at += 1;
            let Some(client_conn) = client_conn.filter(|client_conn| client_conn.may_be_stalled(cx.now)) else {
                continue;
            };
            let backend_conn =
                client_conn.backend_conn.get().and_then(|backend_conn| self.backend_conns.get(backend_conn));
            let backend_conn = backend_conn.filter(|_| client_conn.awaits_backend());
            let client = client_conn.awaits_client().then(|| client_conn.repeated_by_client());
            let segments = [client, backend_conn.map(BackendConn::repeated_by_backend)];
            told += 1;
            cx.statistics.http.reminded += segments.iter().flatten().count() as u64;
            segments.iter().flatten().for_each(|segment| tell(cx, segment));
        }
        self.stalled = (at < self.client_conns.reach()).then_some(Stalled { next: at, due });
    }
}

/// Tells the sender of a segment that it found no route.
fn tell<IO: FrameIo>(cx: &mut Context<'_, IO>, segment: &Own) {
    for _ in 0..DOUBLINGS {
        let Some(mut frame) = cx.io.allocate() else { return cx.drop(Drop::NoFrame) };
        if !segment.write(&mut frame, [&[], &[]]) {
            return cx.drop(Drop::NoFrame);
        }
        let Ok(Parsed::Transport(at)) = parse(frame.bytes()) else { return cx.impossible() };
        if !notice(&mut frame, &at, Notice::NoRoute, segment.destination.address) {
            return cx.drop(Drop::NoFrame);
        }
        cx.send(frame);
    }
}

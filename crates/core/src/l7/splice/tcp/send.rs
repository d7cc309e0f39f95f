//! What Hairpin sends of its own: acknowledgements, what it owns, resets.

use super::numbers::{before, beyond, later};
use super::segment::{Abilities, Own};
use super::timestamps::Timestamps;
use crate::frame::FrameIo;
use crate::l7::cookie;
use crate::l7::splice::state::entry::{BackendConn, BackendConnState, ClientConn, ClientConnState};
use crate::l7::splice::state::exchange::Message;
use crate::l7::splice::state::peer::{Heard, Peer};
use crate::l7::splice::{Context, End, Splices, stamp};
use crate::wire::tcp::{ACK, FIN, PSH, RST, SYN};

/// Bytes of a client's that are taken in before they can go on.
pub(in crate::l7::splice) const RECEIVE_WINDOW: u32 = 65_535;
/// Payload of one frame at most; a super-packet is 64 KiB with its headers.
const PAYLOAD_MAX: u32 = 65_000;

/// What of what we own is sent.
#[derive(Clone, Copy, Debug)]
enum Part {
    /// All that is not acknowledged.
    All,
    /// What was never sent.
    Unsent,
}

/// Payload of one frame at most: a super-packet's, or as many whole segments as there is room for where the plane's frames
/// are shorter.
fn payload_max<IO: FrameIo>(cx: &Context<'_, IO>, own: &Own) -> u32 {
    let room = cx.io.room().saturating_sub(own.headers()).clamp(1, PAYLOAD_MAX as usize);
    let mss = usize::from(own.payload_max());
    match room {
        room if room == PAYLOAD_MAX as usize || room < mss => room as u32,
        room => (room - room % mss) as u32,
    }
}

/// Sends a segment of our own, or counts that it could not be sent.
pub(in crate::l7::splice) fn emit<IO: FrameIo>(cx: &mut Context<'_, IO>, own: &Own, payload: [&[u8]; 2]) {
    let Some(mut frame) = cx.io.allocate() else { return cx.drop(crate::worker::Drop::NoFrame) };
    if own.write(&mut frame, payload) {
        cx.send(frame);
    } else {
        cx.drop(crate::worker::Drop::NoFrame);
    }
}

impl ClientConn {
    /// Beside this acknowledgement number, what the backend is shown of a window of the client's, in bytes: no more than
    /// its hold until the response's head is read, nothing more then until it is let go.
    pub(in crate::l7::splice) fn window_for(
        &self,
        backend_conn: &BackendConn,
        acknowledgement: u32,
        window: u32,
    ) -> u32 {
        match self.exchange.response.get() {
            Message::Head => window.min(backend_conn.window_clamp),
            _ if self.state != ClientConnState::Spliced => window.min(backend_conn.window_clamp),
            _ if self.is_clamped => window.min(beyond(acknowledgement, backend_conn.peer.edge)),
            _ => window,
        }
    }
}

impl Splices {
    /// What a client connection's client may send beyond what it is told was received, in bytes.
    fn window_for_client(&self, client_conn: &ClientConn) -> u32 {
        let backend_conn = client_conn.backend_conn.get().and_then(|backend_conn| self.backend_conns.get(backend_conn));
        match (client_conn.state, backend_conn) {
            (ClientConnState::Spliced, Some(backend_conn)) => {
                backend_conn.peer.window.min(client_conn.most_for_client(client_conn.peer.told))
            }
            (ClientConnState::Waiting, _) => {
                RECEIVE_WINDOW.saturating_sub(beyond(client_conn.input_start(), client_conn.peer.told))
            }
            _ => RECEIVE_WINDOW.saturating_sub(client_conn.waiting() as u32),
        }
    }

    fn own_of_client(&self, client_conn: &ClientConn, flags: u8, sequence: u32) -> Own {
        let acknowledgement = match client_conn.state {
            // What goes through is acknowledged by the backend alone.
            ClientConnState::Spliced => client_conn.peer.told,
            // Nor what waits for one: the part that does not fit behind a longer head is sent again.
            ClientConnState::Waiting => client_conn.peer.told,
            _ => later(client_conn.peer.told, client_conn.peer.expected),
        };
        Own {
            source: client_conn.key.destination,
            destination: client_conn.key.source,
            sequence,
            acknowledgement,
            flags,
            window: client_conn.peer.field(acknowledgement, self.window_for_client(client_conn)),
            port: client_conn.port,
            mss: client_conn.peer.mss,
            abilities: None,
            timestamps: client_conn.peer.timestamps(),
        }
    }

    fn own_of_backend(&self, backend_conn: &BackendConn, flags: u8, sequence: u32) -> Own {
        let client_conn = backend_conn.client_conn.get().and_then(|client_conn| self.client_conns.get(client_conn));
        let reads_in_order = backend_conn.input.is_some()
            || !matches!(client_conn, Some(client_conn) if client_conn.state == ClientConnState::Spliced);
        let acknowledgement = if reads_in_order {
            later(backend_conn.peer.told, backend_conn.peer.expected)
        } else {
            backend_conn.peer.told
        };
        let window = match client_conn {
            Some(client_conn) if client_conn.state == ClientConnState::Spliced => {
                client_conn.window_for(backend_conn, acknowledgement, client_conn.peer.window)
            }
            _ => RECEIVE_WINDOW.min(backend_conn.window_clamp),
        };
        Own {
            source: backend_conn.own_end(),
            destination: backend_conn.target(),
            sequence,
            acknowledgement,
            flags,
            window: backend_conn.peer.field(acknowledgement, window),
            port: backend_conn.port,
            mss: backend_conn.peer.mss,
            abilities: None,
            timestamps: backend_conn.peer.timestamps(),
        }
    }

    /// An end, and a segment of Hairpin's own to it, without payload, behind all that it was sent.
    fn own(&self, end: End, flags: u8) -> Option<(&Peer, Own)> {
        Some(match end {
            End::Client(position) => {
                let client_conn = self.client_conns.get(position)?;
                (&client_conn.peer, self.own_of_client(client_conn, flags, client_conn.peer.sent))
            }
            End::Backend(position) => {
                let backend_conn = self.backend_conns.get(position)?;
                (&backend_conn.peer, self.own_of_backend(backend_conn, flags, backend_conn.peer.sent))
            }
        })
    }

    /// Acknowledges to an end what was received.
    pub(in crate::l7::splice) fn acknowledge<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, end: End) {
        let Some((_, own)) = self.own(end, ACK) else { return cx.impossible() };
        emit(cx, &own, [&[], &[]]);
        if let Some(peer) = self.peer_mut(end) {
            peer.tell(own.acknowledgement, own.window);
        }
    }

    /// Sends an end an acknowledgement whose sequence number the end has acknowledged already: it answers with its present
    /// numbers (RFC 9293, 3.10.7.4).
    ///
    /// Where timestamps were agreed on, software may not know the latest that the engine has forwarded, and the acknowledgement
    /// has an older one. RFC 7323, 5.3 asks for an answer to that, too; Linux from 6.14 on drops it (its commit 124c4c32e9f3). Linux
    /// answers an acknowledgement without timestamps, which others may drop (RFC 7323, 3.2). So an end gets both.
    pub(in crate::l7::splice) fn acknowledge_below<IO: FrameIo>(&self, cx: &mut Context<'_, IO>, end: End) {
        let Some((peer, own)) = self.own(end, ACK) else { return cx.impossible() };
        // Of two numbers half their space apart one is outside any window.
        let both = [peer.acknowledged, peer.acknowledged.wrapping_add(1 << 31)];
        let known = [peer.acknowledged.wrapping_sub(1)];
        let numbers = if self.is_unknown(end) { &both[..] } else { &known };
        for &sequence in numbers {
            emit(cx, &Own { sequence, ..own }, [&[], &[]]);
            if own.timestamps.is_some() {
                emit(cx, &Own { sequence, timestamps: None, ..own }, [&[], &[]]);
            }
        }
    }

    /// Sends an end what Hairpin owns, from the first byte that is not acknowledged, as far as its window goes.
    pub(in crate::l7::splice) fn send_all<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, end: End) {
        self.send_part(cx, end, Part::All);
    }

    /// Sends an end what Hairpin owns, all or the part not sent yet, if what the end has just said calls for it.
    pub(in crate::l7::splice) fn send_more<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, end: End, heard: Heard) {
        if heard.again {
            cx.statistics.http.retransmitted += 1;
            self.send_part(cx, end, Part::All);
        } else if heard.more {
            self.send_part(cx, end, Part::Unsent);
        } else if heard.progress {
            self.stamp_owned(end);
        }
    }

    /// Has the timer of what Hairpin owns to an end run.
    fn stamp_owned(&mut self, end: End) {
        let due = self.peer(end).and_then(|peer| Some(peer.owned.as_ref()?.due));
        due.into_iter().for_each(|due| self.stamp(end, due));
    }

    fn send_part<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, end: End, part: Part) {
        let Some((peer, own)) = self.own(end, ACK) else { return cx.impossible() };
        let Some(last) = self.send_owned(cx, peer, own, part) else { return };
        let Splices { client_conns, backend_conns, stamps, client_conns_max, .. } = self;
        let (peer, stamped, place) = match end {
            End::Client(position) => {
                let Some(client_conn) = client_conns.get_mut(position) else { return cx.impossible() };
                (&mut client_conn.peer, &mut client_conn.stamped, position)
            }
            End::Backend(position) => {
                let Some(backend_conn) = backend_conns.get_mut(position) else { return cx.impossible() };
                (&mut backend_conn.peer, &mut backend_conn.stamped, *client_conns_max + position)
            }
        };
        peer.has_sent(last);
        peer.tell(own.acknowledgement, own.window);
        if let Some(owned) = peer.owned.as_ref() {
            stamp(stamps, stamped, place, owned.due);
        }
    }

    /// Sends it in as few frames as it fits into; returns one past the last number sent.
    fn send_owned<IO: FrameIo>(&self, cx: &mut Context<'_, IO>, peer: &Peer, own: Own, part: Part) -> Option<u32> {
        let owned = peer.owned.as_ref()?;
        let bytes = owned.buffer.as_ref().map_or(&[][..], |buffer| self.buffers.bytes(buffer));
        let first = match part {
            Part::All => peer.acknowledged,
            Part::Unsent => later(peer.acknowledged, owned.sent),
        };
        let mut from = beyond(owned.start, first).min(owned.length);
        // A closed window is probed with one byte.
        let limit = peer.acknowledged.wrapping_add(peer.window.max(1));
        let end = owned.length.min(beyond(owned.start, limit));
        let mut last = owned.start.wrapping_add(from);
        let most = payload_max(cx, &own);
        loop {
            let length = end.saturating_sub(from).min(most);
            let is_last = from + length >= owned.length;
            let mut flags = own.flags;
            if is_last {
                flags |= if owned.fin { FIN } else { 0 } | if owned.length > 0 { PSH } else { 0 };
            }
            if length == 0 && !(is_last && owned.fin) {
                break;
            }
            let segment = Own { sequence: owned.start.wrapping_add(from), flags, ..own };
            emit(cx, &segment, [&bytes[from as usize..(from + length) as usize], &[]]);
            from += length;
            last = owned.start.wrapping_add(from).wrapping_add(u32::from(flags & FIN != 0));
            if is_last || from >= end {
                break;
            }
        }
        Some(last)
    }

    /// Resets an end's connection.
    pub(in crate::l7::splice) fn send_reset<IO: FrameIo>(&self, cx: &mut Context<'_, IO>, end: End) {
        let Some((peer, own)) = self.own(end, RST | ACK) else { return cx.impossible() };
        // The number that the end expects next is the last that it has acknowledged, or one that is on its way.
        let sequence = later(peer.acknowledged, peer.sent);
        let own = Own { sequence, ..own };
        emit(cx, &own, [&[], &[]]);
        if before(peer.acknowledged, sequence) {
            emit(cx, &Own { sequence: peer.acknowledged, ..own }, [&[], &[]]);
        }
    }

    /// Resets what the backend takes a connection for, whether that is one of ours or not. Without ACK, for nothing of the
    /// backend's is acknowledged: what counts is `sequence`, the number that it expects.
    pub(in crate::l7::splice) fn reset_unopened<IO: FrameIo>(
        &mut self,
        cx: &mut Context<'_, IO>,
        position: u32,
        sequence: u32,
    ) {
        let Some(backend_conn) = self.backend_conns.get(position) else { return cx.impossible() };
        let own = Own { acknowledgement: 0, window: 0, ..self.own_of_backend(backend_conn, RST, sequence) };
        emit(cx, &own, [&[], &[]]);
    }

    /// Sends a connection's SYN to its backend.
    pub(in crate::l7::splice) fn send_syn<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, position: u32) {
        let Some(backend_conn) = self.backend_conns.get(position) else { return cx.impossible() };
        debug_assert_eq!(backend_conn.state, BackendConnState::Connecting);
        let timestamps = Timestamps { value: backend_conn.peer.timestamp_sent, echo: 0 };
        let (mss, scale) = (backend_conn.asked, Some(cookie::SCALE));
        let own = Own {
            source: backend_conn.own_end(),
            destination: backend_conn.target(),
            sequence: backend_conn.peer.sent.wrapping_sub(1),
            acknowledgement: 0,
            flags: SYN,
            window: u16::MAX,
            port: backend_conn.port,
            mss: u16::MAX,
            abilities: Some(Abilities { mss, scale, sack: true, timestamps: None }),
            timestamps: backend_conn.offers_timestamps.then_some(timestamps),
        };
        emit(cx, &own, [&[], &[]]);
    }
}

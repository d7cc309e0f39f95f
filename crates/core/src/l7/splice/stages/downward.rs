//! What a backend sends.

use super::delivery::Arrived;
use super::read::USELESS;
use crate::flow::Direction;
use crate::frame::{Frame, FrameIo};
use crate::l7::splice::state::exchange::Message;
use crate::l7::splice::tcp::numbers::{before, earlier, later};
use crate::l7::splice::tcp::pass::pass;
use crate::l7::splice::tcp::segment::{Abilities, Segment};
use crate::l7::splice::{Context, End, Refused, Splices};
use crate::wire::Transport;
use crate::wire::tcp::{ACK, FIN, RST, SYN};

impl Splices {
    /// An answer to our SYN.
    pub(in crate::l7::splice) fn handshake<IO: FrameIo>(
        &mut self,
        cx: &mut Context<'_, IO>,
        frame: &IO::Frame,
        at: &Transport,
        segment: &Segment,
        backend_conn: u32,
    ) {
        let Some(entry) = self.backend_conns.get(backend_conn) else { return cx.impossible() };
        let answers = segment.has(ACK) && segment.acknowledgement == entry.peer.sent;
        match segment.flags & (SYN | RST) {
            SYN if answers => {
                let abilities = Abilities::of(frame.bytes(), at);
                if self.would_rather(cx, backend_conn, &abilities) {
                    let next = self.skip_backend(cx, backend_conn);
                    return self.follow(cx, next);
                }
                let expected = segment.sequence.wrapping_add(1);
                let next = self.connected(cx, backend_conn, expected, &abilities, segment.window);
                self.follow(cx, next);
            }
            RST if answers => {
                let next = self.unconnected(cx, backend_conn, Refused::Unreachable);
                self.follow(cx, next);
            }
            0 if segment.has(ACK) => {
                // It remembers an older connection between the same ends: RST, and our SYN comes again (RFC 9293, 3.5.1).
                self.reset_unopened(cx, backend_conn, segment.acknowledgement);
            }
            _ => cx.drop(USELESS),
        }
    }

    /// A backend's segment while client and backend connection are spliced.
    pub(in crate::l7::splice) fn downward<IO: FrameIo>(
        &mut self,
        cx: &mut Context<'_, IO>,
        arrived: Arrived<'_, IO::Frame>,
    ) {
        let Arrived { segment, position, backend_conn, .. } = arrived;
        let Splices { client_conns, backend_conns, buffers, .. } = self;
        let (Some(client_conn), Some(entry)) = (client_conns.get_mut(position), backend_conns.get_mut(backend_conn))
        else {
            return cx.impossible();
        };
        if segment.has(RST) {
            // What the engine has forwarded, software does not know of; this number tells.
            let forwarded = client_conn.downloads_by_engine();
            let window = if forwarded { (1 << 24) + (1 << 30) } else { 1 << 24 };
            let is_near = segment.sequence.wrapping_sub(entry.peer.told).wrapping_add(window) <= 2 * window;
            if is_near && forwarded {
                let out = segment.sequence.wrapping_add(client_conn.down.delta_at_end());
                client_conn.peer.sent = later(client_conn.peer.sent, out);
            }
            return if is_near { self.lost_backend(cx, backend_conn) } else { cx.drop(USELESS) };
        }
        let Some(heard) = entry.peer.hear(cx.now, segment, buffers) else { return cx.drop(USELESS) };
        client_conn.last_seen = cx.now;
        client_conn.up.settle(entry.peer.acknowledged);
        let (is_head, is_next) = (client_conn.exchange.response.is_head(), entry.peer.expected == segment.sequence);
        self.send_more(cx, End::Backend(backend_conn), heard);
        match (segment.payload > 0, segment.has(FIN)) {
            (false, false) => self.acknowledgement_downward(cx, arrived),
            (true, _) if is_head => self.response(cx, arrived),
            (false, true) if is_head && is_next => self.lost_backend(cx, backend_conn),
            (false, true) if is_head => cx.drop(USELESS),
            _ => self.body_downward(cx, arrived, None),
        }
    }

    fn acknowledgement_downward<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, arrived: Arrived<'_, IO::Frame>) {
        let Arrived { frame, at, segment, position, backend_conn } = arrived;
        let Splices { client_conns, backend_conns, .. } = self;
        let (Some(client_conn), Some(entry)) = (client_conns.get_mut(position), backend_conns.get_mut(backend_conn))
        else {
            return;
        };
        let floor = client_conn.exchange.response_floor;
        // Of a head that is not complete, the client knows nothing.
        let gathered = entry.input.is_some() && before(segment.sequence, entry.peer.expected);
        if before(segment.sequence, floor) || gathered {
            // A keep-alive probe, or an old one.
            return self.acknowledge(cx, End::Backend(backend_conn));
        }
        if entry.peer.holds(segment.acknowledgement) {
            return;
        }
        let mut sequence = segment.sequence.wrapping_add(client_conn.down.delta_at_end());
        if client_conn.peer.was_closed {
            // FIN has a number, and may be ours.
            sequence = later(sequence, client_conn.peer.sent);
        }
        if matches!(client_conn.exchange.response.get(), Message::Head | Message::Chunked(_) | Message::Done) {
            // What of a message that is read in order lies behind a gap has not gone on.
            sequence = earlier(sequence, client_conn.peer.sent);
        }
        let both = (client_conn, entry);
        pass(cx, (frame, at, segment), both, Direction::FromBackend, (sequence, ACK));
        self.conclude(cx, position);
    }
}

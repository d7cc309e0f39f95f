//! What a backend sends.

use super::entry::{BackendConnState, ClientConnState, Inadmissible, Message};
use super::numbers::{before, beyond, earlier, follow, later};
use super::read::USELESS;
use super::segment::{Abilities, Segment};
use super::upward::trim;
use super::{Context, Refused, Splices};
use crate::flow::Direction;
use crate::frame::{Frame, FrameIo};
use crate::wire::Transport;
use crate::wire::tcp::{ACK, FIN, PSH, RST, SYN};
use crate::worker::Drop;

/// A backend's segment while client and backend connection are spliced.
pub(super) struct Arrived<'a, F> {
    pub(super) frame: F,
    /// Where things are in the frame.
    pub(super) at: &'a Transport,
    pub(super) segment: &'a Segment,
    /// The client connection's position, and the backend connection's.
    pub(super) position: u32,
    pub(super) backend_conn: u32,
}

impl Splices {
    /// A packet of a backend.
    pub(super) fn handle_backend<IO: FrameIo>(
        &mut self,
        cx: &mut Context<'_, IO>,
        frame: IO::Frame,
        at: &Transport,
        backend_conn: u32,
    ) {
        let segment = Segment::of(frame.bytes(), at);
        let Some(entry) = self.backend_conns.get_mut(backend_conn) else { return cx.drop(USELESS) };
        if at.ttl <= 1 {
            return cx.drop(Drop::TimeToLive);
        }
        if entry.state == BackendConnState::Resetting {
            return self.answer_backend_with_reset(cx, &segment, backend_conn);
        }
        if entry.state == BackendConnState::Connecting {
            return self.handshake(cx, &frame, at, &segment, backend_conn);
        }
        if segment.has(SYN) {
            // Its SYN-ACK again: our acknowledgement was lost.
            if !cx.answers.admits(cx.now) {
                return cx.drop(Drop::AnswerLimit);
            }
            return match entry.peer.owned {
                Some(_) => self.send_owned_backend(cx, backend_conn),
                None => self.acknowledge_backend(cx, backend_conn),
            };
        }
        let spliced = entry.client_conn.filter(|&client_conn| {
            self.client_conns.get(client_conn).is_some_and(|client_conn| client_conn.state == ClientConnState::Spliced)
        });
        if !segment.has(ACK) && !segment.has(RST) {
            return cx.drop(USELESS);
        }
        match spliced {
            Some(position) => self.downward(cx, Arrived { frame, at, segment: &segment, position, backend_conn }),
            None => self.backend_alone(cx, &segment, backend_conn),
        }
    }

    /// An answer to our SYN.
    fn handshake<IO: FrameIo>(
        &mut self,
        cx: &mut Context<'_, IO>,
        frame: &IO::Frame,
        at: &Transport,
        segment: &Segment,
        backend_conn: u32,
    ) {
        let Some(entry) = self.backend_conns.get(backend_conn) else { return };
        let answers = segment.has(ACK) && segment.acknowledgement == entry.peer.sent;
        match segment.flags & (SYN | RST) {
            SYN if answers => {
                let abilities = Abilities::of(frame.bytes(), at);
                if self.would_rather(cx, backend_conn, &abilities) {
                    return self.skip_backend(cx, backend_conn);
                }
                self.connected(cx, backend_conn, segment.sequence.wrapping_add(1), &abilities, segment.window);
            }
            RST if answers => self.unconnected(cx, backend_conn, Refused::Unreachable),
            0 if segment.has(ACK) => {
                // It remembers an older connection between the same ends: RST, and our SYN comes again (RFC 9293, 3.5.1).
                self.reset_unopened(cx, backend_conn, segment.acknowledgement);
            }
            _ => cx.drop(USELESS),
        }
    }

    /// A backend's segment while client and backend connection are spliced.
    fn downward<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, arrived: Arrived<'_, IO::Frame>) {
        let Arrived { frame, at, segment, position, backend_conn } = arrived;
        let Some(entry) = self.backend_conns.get_mut(backend_conn) else { return };
        if segment.has(RST) {
            let Some(client_conn) = self.client_conns.get_mut(position) else { return };
            // What the engine has carried, software does not know of; this number tells.
            let carried = client_conn.downloads_by_engine();
            let window = if carried { (1 << 24) + (1 << 30) } else { 1 << 24 };
            let is_near = segment.sequence.wrapping_sub(entry.peer.told).wrapping_add(window) <= 2 * window;
            if is_near && carried {
                let out = segment.sequence.wrapping_add(client_conn.down.delta_at_end());
                client_conn.peer.sent = later(client_conn.peer.sent, out);
            }
            return if is_near { self.lost_backend(cx, backend_conn) } else { cx.drop(USELESS) };
        }
        let Some(heard) = entry.peer.hear(cx.now, segment, &mut self.buffers) else { return cx.drop(USELESS) };
        let acknowledged = entry.peer.acknowledged;
        self.go_on_to_backend(cx, backend_conn, heard);
        let Some(client_conn) = self.client_conns.get_mut(position) else { return };
        client_conn.last_seen = cx.now;
        client_conn.up.settle(acknowledged);
        if segment.payload == 0 && !segment.has(FIN) {
            return self.acknowledgement_downward(cx, Arrived { frame, at, segment, position, backend_conn });
        }
        match client_conn.exchange.response {
            Message::Head if segment.payload > 0 => {
                self.response(cx, Arrived { frame, at, segment, position, backend_conn })
            }
            Message::Head => {
                let is_next =
                    self.backend_conns.get(backend_conn).is_some_and(|entry| entry.peer.expected == segment.sequence);
                if is_next { self.lost_backend(cx, backend_conn) } else { cx.drop(USELESS) }
            }
            _ => self.body_downward(cx, Arrived { frame, at, segment, position, backend_conn }, None),
        }
    }

    fn acknowledgement_downward<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, arrived: Arrived<'_, IO::Frame>) {
        let Arrived { frame, at, segment, position, backend_conn } = arrived;
        let (Some(client_conn), Some(entry)) = (self.client_conns.get(position), self.backend_conns.get(backend_conn))
        else {
            return;
        };
        let floor = client_conn.exchange.response_floor;
        // Of a head that is not complete, the client knows nothing.
        let gathered = entry.input.is_some() && before(segment.sequence, entry.peer.expected);
        if before(segment.sequence, floor) || gathered {
            // A keep-alive probe, or an old one.
            return self.acknowledge_backend(cx, backend_conn);
        }
        if entry.peer.holds(segment.acknowledgement) {
            return;
        }
        let mut sequence = segment.sequence.wrapping_add(client_conn.down.delta_at_end());
        if client_conn.peer.was_closed {
            // FIN has a number, and may be ours.
            sequence = later(sequence, client_conn.peer.sent);
        }
        if matches!(client_conn.exchange.response, Message::Head | Message::Chunked(_) | Message::Done) {
            // What of a message that is read in order lies behind a gap has not gone on.
            sequence = earlier(sequence, client_conn.peer.sent);
        }
        self.pass(cx, frame, at, segment, (position, Direction::FromBackend), (sequence, ACK));
        self.conclude(cx, position);
    }

    /// The backend's FIN has come, with number `end`, behind all it had to say. Returns the flag that goes to the client.
    pub(super) fn closed_by_backend(&mut self, position: u32, backend_conn: u32, end: u32) -> u8 {
        let (Some(client_conn), Some(entry)) =
            (self.client_conns.get_mut(position), self.backend_conns.get_mut(backend_conn))
        else {
            return 0;
        };
        entry.peer.has_closed = true;
        entry.closed_first = !entry.peer.was_closed;
        let exchange = &mut client_conn.exchange;
        exchange.close_backend = true;
        if exchange.response.end(exchange.response_end) == Some(end) {
            // Where the response ends, whether all of it has come by here or not.
            (exchange.response, exchange.response_end) = (Message::Done, Some(end));
        }
        if exchange.response.is_done() {
            // Acknowledged when the client has it all.
            return 0;
        }
        // Its end is the response's, or it was cut short: then the client is to see that. What is not of this request still
        // does not go to the backend, which may go on reading.
        exchange.response = Message::Endless;
        exchange.close_client = true;
        client_conn.peer.was_closed = true;
        FIN
    }

    /// A part of a response behind its head, or (`head`: its bytes) from its head on.
    pub(super) fn body_downward<IO: FrameIo>(
        &mut self,
        cx: &mut Context<'_, IO>,
        arrived: Arrived<'_, IO::Frame>,
        head: Option<u32>,
    ) {
        let Arrived { mut frame, at, segment, position, backend_conn } = arrived;
        let (Some(client_conn), Some(entry)) =
            (self.client_conns.get_mut(position), self.backend_conns.get_mut(backend_conn))
        else {
            return;
        };
        let exchange = &mut client_conn.exchange;
        let skip = beyond(segment.sequence, exchange.response_floor).min(segment.payload);
        let start = segment.sequence.wrapping_add(skip);
        let payload = frame.bytes().get(at.payload..at.end).unwrap_or_default();
        let head = head.unwrap_or(0);
        let mine = &payload[(skip + head) as usize..];
        let first = start.wrapping_add(head);
        let admitted = exchange.response.admit(&mut exchange.response_end, &mut entry.peer.expected, first, mine);
        let admitted = match admitted {
            Ok(admitted) => admitted + head as usize,
            Err(Inadmissible::OutOfOrder) => {
                cx.statistics.http.out_of_order += 1;
                return self.acknowledge_backend(cx, backend_conn);
            }
            Err(Inadmissible::Broken(_)) => {
                cx.statistics.http.refused[Refused::BadResponse as usize] += 1;
                return self.break_off(cx, position);
            }
        };
        let all = admitted == mine.len() + head as usize;
        exchange.close_backend |= !all;
        entry.peer.highest = later(entry.peer.highest, start.wrapping_add(admitted as u32));
        follow(&mut exchange.response_floor, entry.peer.highest);
        let out = start.wrapping_add(client_conn.down.delta_at_end());
        let mut flags = ACK | segment.flags & PSH;
        let closes = segment.has(FIN) && all;
        if closes {
            flags |= self.closed_by_backend(position, backend_conn, segment.payload_end());
        }
        if admitted == 0 && flags & FIN == 0 {
            // All of it is ours, or was there before.
            self.acknowledge_backend(cx, backend_conn);
            return self.conclude(cx, position);
        }
        if flags & FIN == 0 {
            flags |= self.last_flag(position, backend_conn, start.wrapping_add(admitted as u32));
        }
        let cut = (skip as usize, skip as usize + admitted);
        let Some((at, segment)) = trim(&mut frame, at, segment, cut) else { return cx.drop(Drop::NoFrame) };
        if let Some(client_conn) = self.client_conns.get_mut(position) {
            let timeout = super::timers::body_timeout(cx.snapshot, client_conn);
            client_conn.deadline = client_conn.deadline.max(cx.now + timeout);
        }
        self.pass(cx, frame, &at, &segment, (position, Direction::FromBackend), (out, flags));
        if closes {
            // Who closes has to see what is acknowledged.
            self.remove_rules(cx, position);
            return self.conclude(cx, position);
        }
        self.offer(cx, position);
    }
}

//! A response on its way to the client: what follows its head.

use crate::flow::Direction;
use crate::frame::{Frame, FrameIo};
use crate::l7::body::Length;
use crate::l7::splice::state::buffers::Buffers;
use crate::l7::splice::state::entry::{BackendConn, ClientConn};
use crate::l7::splice::state::exchange::{Inadmissible, Message};
use crate::l7::splice::tcp::numbers::{before, beyond, follow, later};
use crate::l7::splice::tcp::pass::pass;
use crate::l7::splice::tcp::segment::{Segment, replace_payload};
use crate::l7::splice::timers::body_timeout;
use crate::l7::splice::{Context, End, Refused, Splices, stamp};
use crate::record::{Ending, IS_KEPT};
use crate::table::ageing::Stamps;
use crate::wire::Transport;
use crate::wire::tcp::{ACK, FIN, PSH};
use crate::worker::Drop;
use crate::worker::class;

/// A backend's segment while client and backend connection are spliced.
pub(in crate::l7::splice) struct Arrived<'a, F> {
    pub(in crate::l7::splice) frame: F,
    /// Where things are in the frame.
    pub(in crate::l7::splice) at: &'a Transport,
    pub(in crate::l7::splice) segment: &'a Segment,
    /// The client connection's position, and the backend connection's.
    pub(in crate::l7::splice) position: u32,
    pub(in crate::l7::splice) backend_conn: u32,
}

impl Splices {
    /// A final response is on its way.
    pub(in crate::l7::splice) fn answered<IO: FrameIo>(
        cx: &mut Context<'_, IO>,
        (stamps, buffers): (&mut Stamps, &mut Buffers),
        (position, client_conn): (u32, &mut ClientConn),
        message: Length,
        status: u16,
    ) {
        cx.responded(client_conn.exchange.backend, class(status));
        client_conn.exchange.status = status;
        if IS_KEPT {
            client_conn.exchange.response_in_us = cx.timed(client_conn, |times| &mut times.to_response);
        }
        cx.measured(&client_conn.exchange);
        cx.answered_with(client_conn.exchange.backend, client_conn.exchange.group, status);
        if message == Length::Tunnel {
            client_conn.exchange.request.set(Message::Endless);
            client_conn.exchange.request_end = None.into();
        }
        if client_conn.exchange.response.is_endless() {
            client_conn.exchange.close_backend = true;
            client_conn.exchange.close_client = true;
        }
        client_conn.deadline = cx.now + body_timeout(cx.snapshot, client_conn);
        if let Some(when) = client_conn.begin_taking(cx.now, cx.snapshot) {
            stamp(stamps, &mut client_conn.stamped, position, when);
        }
        if message == Length::Tunnel {
            client_conn.unread(buffers);
        }
    }

    /// A part of a response behind its head, or (`head`: its bytes) from its head on.
    pub(in crate::l7::splice) fn body_downward<IO: FrameIo>(
        &mut self,
        cx: &mut Context<'_, IO>,
        arrived: Arrived<'_, IO::Frame>,
        head: Option<u32>,
    ) {
        let Arrived { mut frame, at, segment, position, backend_conn } = arrived;
        let Splices { client_conns, backend_conns, .. } = self;
        let (Some(client_conn), Some(entry)) = (client_conns.get_mut(position), backend_conns.get_mut(backend_conn))
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
                entry.peer.misses(segment.payload_end());
                return self.acknowledge(cx, End::Backend(backend_conn));
            }
            Err(Inadmissible::Broken(_)) => {
                cx.statistics.http.refused[Refused::BadResponse as usize] += 1;
                exchange.ending = Ending::Backend as u8;
                return self.abandon(cx, position);
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
            flags |= client_conn.closed_by_backend(entry, segment.payload_end());
        }
        if admitted == 0 && flags & FIN == 0 {
            // All of it is ours, or was there before.
            self.acknowledge(cx, End::Backend(backend_conn));
            return self.conclude(cx, position);
        }
        if flags & FIN == 0 {
            flags |= client_conn.last_flag(entry, start.wrapping_add(admitted as u32));
        }
        let cut = (skip as usize, skip as usize + admitted);
        let Some((at, segment)) = trim(&mut frame, at, segment, cut) else { return cx.drop(Drop::NoFrame) };
        client_conn.deadline = client_conn.deadline.max(cx.now + body_timeout(cx.snapshot, client_conn));
        pass(cx, (frame, &at, &segment), (client_conn, entry), Direction::FromBackend, (out, flags));
        if closes {
            self.follow_end(cx, position);
            return self.conclude(cx, position);
        }
        self.offer(cx, position);
    }
}

impl ClientConn {
    /// The backend's FIN has come, with number `end`, behind all it had to say. Returns the flag that goes to the client.
    pub(in crate::l7::splice) fn closed_by_backend(&mut self, backend_conn: &mut BackendConn, end: u32) -> u8 {
        backend_conn.peer.has_closed = true;
        backend_conn.closed_first = !backend_conn.peer.was_closed;
        let exchange = &mut self.exchange;
        exchange.close_backend = true;
        if exchange.response.end(exchange.response_end.get()) == Some(end) {
            // Where the response ends, whether all of it has come by here or not.
            exchange.response.set(Message::Done);
            exchange.response_end = Some(end).into();
        }
        if exchange.response.is_done() {
            // Acknowledged when the client has it all.
            return 0;
        }
        // Its end is the response's, or it was cut short: then the client is to see that. What is not of this request still
        // does not go to the backend, which may go on reading.
        if !exchange.response.is_endless() {
            exchange.ending = Ending::Backend as u8;
        }
        exchange.response.set(Message::Endless);
        exchange.close_client = true;
        self.peer.was_closed = true;
        FIN
    }

    /// FIN, if there is nothing for the client behind the number `end` of its backend's, to which a segment goes that is about
    /// to be passed on; nothing otherwise.
    pub(in crate::l7::splice) fn last_flag(&mut self, backend_conn: &BackendConn, end: u32) -> u8 {
        let exchange = &self.exchange;
        let is_last = exchange.close_client && exchange.response.is_done() && exchange.response_end.get() == Some(end);
        let is_quiet = self.waiting() == 0 && !self.peer.has_closed && !self.is_offloaded_down_only();
        if !is_last || !is_quiet || backend_conn.peer.owned.is_some() || !self.is_request_received(backend_conn) {
            return 0;
        }
        // A client cuts off what its window has no room for, FIN too; some count that FIN all the same (smoltcp 0.14).
        let takes = self.peer.acknowledged.wrapping_add(self.peer.window);
        let is_known = !self.is_ahead_of_software();
        if is_known && !before(end.wrapping_add(self.down.delta_at_end()), takes) {
            return 0;
        }
        self.peer.was_closed = true;
        FIN
    }

    /// What was read of a client's is not read in order any more: it comes again, and goes through. (Bytes that a client
    /// sends before it knows of a tunnel are few, and not acknowledged yet.)
    fn unread(&mut self, buffers: &mut Buffers) {
        let start = self.input_start();
        if let Some(input) = self.input.take() {
            buffers.release(input);
            self.peer.expected = start;
        }
    }
}

/// Keeps only a part of a segment's payload.
pub(in crate::l7::splice) fn trim<F: Frame>(
    frame: &mut F,
    at: &Transport,
    segment: &Segment,
    (from, to): (usize, usize),
) -> Option<(Transport, Segment)> {
    if from == 0 && to == segment.payload as usize {
        return Some((*at, *segment));
    }
    let at = replace_payload(frame, at, (from, to), &[])?;
    let payload = (at.end - at.payload) as u32;
    let gso_size = u32::from(frame.meta().gso_size);
    if payload <= gso_size {
        frame.meta_mut().gso_size = 0;
    }
    Some((at, Segment { payload, ..*segment }))
}

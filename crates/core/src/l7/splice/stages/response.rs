//! Responses' heads: found, edited, and delivered.

use super::connect::{facts, no_route};
use super::delivery::Arrived;
use super::last::Head;
use crate::flow::Direction;
use crate::frame::{Frame, FrameIo};
use crate::l7::body::{Chunks, Length};
use crate::l7::edit;
use crate::l7::head::{self, Parsed, Version};
use crate::l7::sequence::SequenceMap;
use crate::l7::splice::state::peer::{Heard, Owned, Peer};
use crate::l7::splice::tcp::numbers::{before, beyond, later};
use crate::l7::splice::tcp::segment::{Segment, has_room, replace_payload};
use crate::l7::splice::{Context, End, HEAD_ROOM, Refused, Splices};
use crate::wire::tcp::{ACK, FIN, PSH};
use crate::worker::Drop;

/// What a super-packet can carry at most, beside its headers.
const PAYLOAD_MAX: usize = 65_000;

/// What the bytes of a response are.
enum Seen {
    /// A head that is not complete.
    Partial,
    /// An interim response's head of so many bytes; `written`: as for the last one.
    Interim { length: usize, written: Option<usize> },
    /// The response's head of so many bytes; `written`: the new one in the scratch buffer, if it is to be another.
    Final { length: usize, written: Option<usize>, message: Length, status: u16, closes: bool },
    /// No response that can be passed on.
    Bad,
}

impl Splices {
    /// Bytes of a response whose head is not complete.
    pub(in crate::l7::splice) fn response<IO: FrameIo>(
        &mut self,
        cx: &mut Context<'_, IO>,
        arrived: Arrived<'_, IO::Frame>,
    ) {
        let Arrived { frame, at, segment, position, backend_conn } = arrived;
        let Some(entry) = self.backend_conns.get(backend_conn) else { return cx.impossible() };
        if before(entry.peer.expected, segment.sequence) {
            cx.statistics.http.out_of_order += 1;
            return self.acknowledge(cx, End::Backend(backend_conn));
        }
        if !self.takes_more(position, HEAD_ROOM) {
            // It is sent again, and there is room when the client has acknowledged what is before it.
            return drop(frame);
        }
        let Some(entry) = self.backend_conns.get(backend_conn) else { return cx.impossible() };
        let skip = beyond(segment.sequence, entry.peer.expected) as usize;
        let payload = frame.bytes().get(at.payload..at.end).unwrap_or_default();
        let Some(fresh) = payload.get(skip..).filter(|fresh| !fresh.is_empty()) else {
            return self.acknowledge(cx, End::Backend(backend_conn));
        };
        if entry.input.is_none() {
            let seen = self.see(cx, position, Some(fresh), backend_conn);
            match seen {
                Seen::Final { .. } => {
                    return self.head(cx, Arrived { frame, at, segment, position, backend_conn }, (skip, seen));
                }
                Seen::Bad => return self.bad_response(cx, position),
                // An interim response is ours to deliver too: as long as no head follows, only we can tell where in the
                // client's numbers it lies.
                Seen::Partial | Seen::Interim { .. } => {}
            }
        }
        // No head is longer; what is not taken comes again.
        let some = &fresh[..fresh.len().min(HEAD_ROOM)];
        if !self.gather(backend_conn, some) {
            return self.bad_response(cx, position);
        }
        if self.gathered(cx, (position, backend_conn)) {
            return self.body_downward(cx, Arrived { frame, at, segment, position, backend_conn }, None);
        }
        drop(frame);
        let Some(entry) = self.backend_conns.get(backend_conn) else { return };
        if segment.has(FIN) && segment.payload_end() == entry.peer.expected {
            return self.lost_backend(cx, backend_conn);
        }
        if entry.input.is_some() {
            self.acknowledge(cx, End::Backend(backend_conn));
        }
    }

    /// Whether there is room for so many bytes more that are ours to deliver to a client. A backend may answer with any
    /// number of interim responses (RFC 9110, 15.2): what the client has not acknowledged of them is bounded by bytes.
    fn takes_more(&self, position: u32, bytes: usize) -> bool {
        let owned = self.client_conns.get(position).and_then(|client_conn| client_conn.peer.owned.as_ref());
        let buffer = owned.and_then(|owned| owned.buffer.as_ref());
        buffer.is_none_or(|buffer| self.buffers.has_room(buffer, bytes))
    }

    /// There is no room for the head that has been gathered: the acknowledged part is kept, the rest comes again.
    fn let_wait(&mut self, backend_conn: u32) {
        let Some(entry) = self.backend_conns.get_mut(backend_conn) else { return };
        let Some(mut input) = entry.input.take() else { return };
        let start = entry.peer.expected.wrapping_sub(input.len() as u32);
        self.buffers.truncate(&mut input, beyond(start, entry.peer.told) as usize);
        entry.peer.expected = start.wrapping_add(input.len() as u32);
        match input.len() {
            0 => self.buffers.release(input),
            _ => entry.input = input.into(),
        }
    }

    /// Adds bytes to those of a head that is not complete.
    fn gather(&mut self, backend_conn: u32, bytes: &[u8]) -> bool {
        let Some(entry) = self.backend_conns.get_mut(backend_conn) else { return false };
        if entry.input.is_none() {
            entry.input = self.buffers.take(bytes.len()).into();
        }
        let Some(input) = entry.input.as_mut() else { return false };
        let stored = self.buffers.append(input, bytes);
        entry.peer.expected = entry.peer.expected.wrapping_add(stored as u32);
        entry.peer.highest = later(entry.peer.highest, entry.peer.expected);
        stored == bytes.len()
    }

    /// Goes on with a head that came in pieces, or behind another: it is ours to send. Returns whether the response's body
    /// follows.
    fn gathered<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, (position, backend_conn): (u32, u32)) -> bool {
        loop {
            let seen = self.see(cx, position, None, backend_conn);
            let room = match &seen {
                Seen::Interim { length, written } | Seen::Final { length, written, .. } => written.unwrap_or(*length),
                Seen::Partial | Seen::Bad => 0,
            };
            if room > 0 && !self.takes_more(position, room) {
                self.let_wait(backend_conn);
                return false;
            }
            let Splices { client_conns, backend_conns, buffers, scratch, .. } = self;
            let (Some(client_conn), Some(entry)) =
                (client_conns.get_mut(position), backend_conns.get_mut(backend_conn))
            else {
                return false;
            };
            let Some(mut input) = entry.input.take() else { return false };
            let start = entry.peer.expected.wrapping_sub(input.len() as u32);
            match seen {
                Seen::Partial => {
                    entry.input = Some(input).into();
                    return false;
                }
                Seen::Bad => {
                    buffers.release(input);
                    self.bad_response(cx, position);
                    return false;
                }
                Seen::Interim { length, written } => {
                    cx.responded(client_conn.exchange.backend, 0);
                    let put = match (client_conn.exchange.version, written) {
                        // An HTTP/1.0 client knows no interim responses (RFC 9110, 15.2).
                        (Version::Http10, _) => 0,
                        (Version::Http11, Some(written)) => written,
                        (Version::Http11, None) => {
                            scratch[..length].copy_from_slice(&buffers.bytes(&input)[..length]);
                            length
                        }
                    };
                    let edited = put_in(&mut client_conn.down, start, length, put);
                    buffers.consume(&mut input, length);
                    match input.len() {
                        0 => buffers.release(input),
                        _ => entry.input = input.into(),
                    }
                    client_conn.exchange.response_floor = start.wrapping_add(length as u32);
                    if !edited.is_some_and(|output| self.own_for_client(cx, position, output, put)) {
                        self.bad_response(cx, position);
                        return false;
                    }
                }
                Seen::Final { length, written, message, status, closes } => {
                    let head = written.unwrap_or_else(|| {
                        scratch[..length].copy_from_slice(&buffers.bytes(&input)[..length]);
                        length
                    });
                    // Where it ends is only now known: what lies behind it comes by itself.
                    let body_start = start.wrapping_add(length as u32);
                    entry.peer.expected = body_start;
                    let exchange = &mut client_conn.exchange;
                    exchange.begin_body(message, body_start, closes);
                    exchange.response_floor = body_start;
                    let edited = put_in(&mut client_conn.down, start, length, head);
                    buffers.release(input);
                    if !edited.is_some_and(|output| self.own_for_client(cx, position, output, head)) {
                        self.bad_response(cx, position);
                        return false;
                    }
                    self.answered(cx, position, message, status);
                    return true;
                }
            }
        }
    }

    /// Makes the first bytes of the scratch buffer ours to deliver to the client, from its number `output` on, behind what
    /// already is.
    fn own_for_client<IO: FrameIo>(
        &mut self,
        cx: &mut Context<'_, IO>,
        position: u32,
        output: u32,
        length: usize,
    ) -> bool {
        if !self.keep_for_client(cx, position, output, length) {
            return false;
        }
        self.send_more(cx, End::Client(position), Heard { more: true, ..Heard::default() });
        true
    }

    /// Makes the first bytes of the scratch buffer ours as [`Splices::own_for_client`] does, but sends nothing.
    fn keep_for_client<IO: FrameIo>(
        &mut self,
        cx: &mut Context<'_, IO>,
        position: u32,
        output: u32,
        length: usize,
    ) -> bool {
        let Splices { client_conns, buffers, scratch, .. } = self;
        let Some(client_conn) = client_conns.get_mut(position) else { return false };
        let bytes = &scratch[..length];
        if bytes.is_empty() {
            return true;
        }
        client_conn.exchange.has_begun = true;
        match client_conn.peer.owned.as_mut() {
            Some(owned) => {
                let follows = !owned.fin && owned.start.wrapping_add(owned.length) == output;
                let Some(buffer) = owned.buffer.as_mut().filter(|_| follows) else { return false };
                let fits = buffers.append(buffer, bytes) == bytes.len();
                owned.length = buffer.len() as u32;
                fits
            }
            None => {
                let Some(mut buffer) = buffers.take(length) else { return false };
                buffers.append(&mut buffer, bytes);
                client_conn.peer.owned = Owned::new(cx.now, output, Some(buffer), false).into();
                true
            }
        }
    }

    /// Reads a response's head: `fresh`, or what has been gathered.
    fn see<IO: FrameIo>(
        &mut self,
        cx: &Context<'_, IO>,
        position: u32,
        fresh: Option<&[u8]>,
        backend_conn: u32,
    ) -> Seen {
        let Splices { client_conns, backend_conns, buffers, scratch, configurations, .. } = self;
        let (Some(client_conn), Some(entry)) = (client_conns.get(position), backend_conns.get(backend_conn)) else {
            return Seen::Bad;
        };
        let Some((http, route)) = configurations.of(cx.snapshot, client_conn) else { return Seen::Bad };
        let bytes = match (fresh, entry.input.as_ref()) {
            (Some(fresh), _) => fresh,
            (None, Some(input)) => buffers.bytes(input),
            (None, None) => return Seen::Partial,
        };
        let bounds = http.limits.head_bounds();
        let exchange = &client_conn.exchange;
        let response = match head::response(bytes, &bounds, exchange.method) {
            Ok(Parsed::Partial) => return Seen::Partial,
            Ok(Parsed::Complete(response)) => response,
            Err(_) => return Seen::Bad,
        };
        let length = response.bytes.len();
        let is_interim = response.status < 200 && response.status != 101;
        // Behind a 101 nothing is read any more: one that the client has not asked for would let it past the routes.
        let is_unasked = response.status == 101 && !exchange.upgrade;
        if is_unasked || !edit::can_go_to(&response, exchange.version) {
            return Seen::Bad;
        }
        let none;
        let route = match route {
            Some(route) => route,
            None => {
                none = no_route();
                &none
            }
        };
        // Where both ends close behind it, the end of the last chunk need not be found.
        let is_last = exchange.close_client && !response.keep_alive;
        let message = if is_last && response.body == Length::Chunked { Length::UntilClose } else { response.body };
        let behind = bytes.get(length..).unwrap_or_default();
        if message == Length::Chunked && !is_interim && Chunks::of_response().feed(behind).is_err() {
            return Seen::Bad;
        }
        let facts = facts(cx, client_conn, exchange.sets_sticky.then_some(exchange.sticky));
        match edit::response_head(&mut scratch[..HEAD_ROOM], &response, exchange.version, http, route, &facts) {
            Ok(written) if is_interim => Seen::Interim { length, written },
            Ok(written) => {
                Seen::Final { length, written, message, status: response.status, closes: !response.keep_alive }
            }
            Err(_) => Seen::Bad,
        }
    }

    /// A whole head, at the beginning of a segment.
    fn head<IO: FrameIo>(
        &mut self,
        cx: &mut Context<'_, IO>,
        arrived: Arrived<'_, IO::Frame>,
        (skip, seen): (usize, Seen),
    ) {
        let Seen::Final { length, written, message, status, closes } = seen else { return cx.impossible() };
        let head = Head { length, skip, written, body: message, closes, status };
        if self.take_last(cx, &arrived, &head) {
            return;
        }
        let Arrived { mut frame, at, segment, position, backend_conn } = arrived;
        let (Some(client_conn), Some(entry)) =
            (self.client_conns.get_mut(position), self.backend_conns.get_mut(backend_conn))
        else {
            return;
        };
        let start = segment.sequence.wrapping_add(skip as u32);
        let body_start = start.wrapping_add(length as u32);
        entry.peer.expected = body_start;
        let exchange = &mut client_conn.exchange;
        exchange.begin_body(message, body_start, closes);
        exchange.has_begun = true;
        let Some(written) = written else {
            // As it is: only its end has to be found.
            exchange.response_floor = start;
            self.answered(cx, position, message, status);
            return self.body_downward(cx, Arrived { frame, at, segment, position, backend_conn }, Some(length as u32));
        };
        exchange.response_floor = body_start;
        let edited = put_in(&mut client_conn.down, start, length, written);
        let kept = edited.filter(|&output| self.keep_for_client(cx, position, output, written));
        let Some(out) = kept else { return self.bad_response(cx, position) };
        self.answered(cx, position, message, status);
        let behind = skip + length;
        let rest = segment.payload as usize - behind;
        if written + rest > PAYLOAD_MAX
            || !has_room(&mut frame, at.payload + written + rest)
            || self.client_conns.get(position).is_none_or(|client_conn| is_crowded(&client_conn.peer, out, written))
        {
            self.send_more(cx, End::Client(position), Heard { more: true, ..Heard::default() });
            return self.body_downward(cx, Arrived { frame, at, segment, position, backend_conn }, None);
        }
        let Some(client_conn) = self.client_conns.get_mut(position) else { return cx.impossible() };
        let exchange = &mut client_conn.exchange;
        let payload = frame.bytes().get(at.payload + behind..at.end).unwrap_or_default();
        let Some(entry) = self.backend_conns.get_mut(backend_conn) else { return cx.impossible() };
        let admitted =
            exchange.response.admit(&mut exchange.response_end, &mut entry.peer.expected, body_start, payload);
        let Ok(admitted) = admitted else { return self.abandon(cx, position) };
        exchange.close_backend |= admitted < rest;
        entry.peer.highest = later(entry.peer.highest, entry.peer.expected);
        let mut flags = ACK | PSH;
        if segment.has(FIN) && admitted == rest {
            flags |= self.closed_by_backend(position, backend_conn, segment.payload_end());
        }
        if flags & FIN == 0 {
            flags |= self.last_flag(position, backend_conn, body_start.wrapping_add(admitted as u32));
        }
        let Some(client_conn) = self.client_conns.get(position) else { return cx.impossible() };
        let put = &self.scratch[..written];
        let Some(at) = replace_payload(&mut frame, at, (behind, behind + admitted), put) else {
            return cx.drop(Drop::NoFrame);
        };
        let total = (written + admitted) as u32;
        let mss = client_conn.peer.mss.min(match frame.meta().gso_size {
            0 => u16::MAX,
            size => size,
        });
        frame.meta_mut().gso_size = if total > u32::from(mss) { mss } else { 0 };
        let due = client_conn.peer.owned.as_ref().map(|owned| owned.due);
        let segment = Segment { payload: total, ..*segment };
        self.pass(cx, frame, &at, &segment, (position, Direction::FromBackend), (out, flags));
        if let Some(client_conn) = self.client_conns.get_mut(position) {
            client_conn.peer.has_sent(out.wrapping_add(written as u32));
        }
        due.into_iter().for_each(|due| self.stamp_client(position, due));
        self.offer(cx, position);
    }

    /// What the backend says is no response: the client gets 502, or sees its connection break if a part is there.
    fn bad_response<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, position: u32) {
        let Some(client_conn) = self.client_conns.get_mut(position) else { return cx.impossible() };
        if client_conn.exchange.has_begun {
            cx.statistics.http.refused[Refused::BadResponse as usize] += 1;
            return self.abandon(cx, position);
        }
        client_conn.peer.expected = later(client_conn.peer.expected, client_conn.exchange.request_floor);
        self.refuse(cx, position, 502, Refused::BadResponse);
    }
}

/// Notes that `put` bytes stand for `length` of the backend's. Where heads follow each other faster than the client
/// acknowledges them, they count as one.
fn put_in(down: &mut SequenceMap, start: u32, length: usize, put: usize) -> Option<u32> {
    let (length, put) = (length as u32, put as u32);
    down.edit(start, length, put).or_else(|| down.extend(start, length, put))
}

/// Whether what we want to put in front of a segment, from number `out` on, does not fit into what the client takes now, or
/// waits behind something else that did not.
fn is_crowded(peer: &Peer, out: u32, written: usize) -> bool {
    let limit = peer.acknowledged.wrapping_add(peer.window);
    beyond(out, limit) < written as u32 || peer.owned.as_ref().is_some_and(|owned| before(owned.sent, out))
}

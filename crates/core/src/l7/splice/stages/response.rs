//! Responses' heads: found, edited, and delivered.

use super::connect::{facts, no_route};
use super::delivery::Arrived;
use super::last::{Head, is_last};
use crate::flow::Direction;
use crate::frame::{Frame, FrameIo};
use crate::l7::body::{Chunks, Length};
use crate::l7::edit;
use crate::l7::head::{self, ParseStatus, Version};
use crate::l7::sequence::SequenceMap;
use crate::l7::splice::state::buffers::Buffers;
use crate::l7::splice::state::configurations::Configurations;
use crate::l7::splice::state::entry::{BackendConn, ClientConn};
use crate::l7::splice::state::peer::{Heard, Owned, Peer};
use crate::l7::splice::tcp::numbers::{before, beyond, later};
use crate::l7::splice::tcp::pass::pass;
use crate::l7::splice::tcp::segment::{Segment, has_room, replace_payload};
use crate::l7::splice::{Context, End, HEAD_ROOM, Refused, Splices, stamp};
use crate::record::Ending;
use crate::time::Time;
use crate::wire::tcp::{ACK, FIN, PSH};
use crate::worker::Drop;

/// What a super-packet can carry at most, beside its headers.
const PAYLOAD_MAX: usize = 65_000;

/// What the bytes of a response begin with.
enum ResponseStart {
    /// A head that is not complete.
    Partial,
    /// An interim response's head of so many bytes; `written`: as for the last one.
    Interim { length: usize, written: Option<usize> },
    /// The response's head.
    Final(Head),
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
        let Arrived { at, segment, position, backend_conn, .. } = arrived;
        let Splices { client_conns, backend_conns, buffers, scratch, configurations, .. } = self;
        let (Some(client_conn), Some(entry)) = (client_conns.get(position), backend_conns.get_mut(backend_conn)) else {
            return cx.impossible();
        };
        if before(entry.peer.expected, segment.sequence) {
            cx.statistics.http.out_of_order += 1;
            entry.peer.misses(segment.payload_end());
            return self.acknowledge(cx, End::Backend(backend_conn));
        }
        if !takes_more(buffers, client_conn, HEAD_ROOM) {
            // It is sent again, and there is room when the client has acknowledged what is before it.
            return;
        }
        let skip = beyond(segment.sequence, entry.peer.expected) as usize;
        let payload = arrived.frame.bytes().get(at.payload..at.end).unwrap_or_default();
        let Some(fresh) = payload.get(skip..).filter(|fresh| !fresh.is_empty()) else {
            return self.acknowledge(cx, End::Backend(backend_conn));
        };
        if entry.input.is_none() {
            match read_start(cx, (scratch, configurations), client_conn, fresh) {
                ResponseStart::Final(head) => {
                    let head = Head { skip, ..head };
                    let is_last = is_last(client_conn, entry, segment, &head);
                    return self.head(cx, arrived, &head, is_last);
                }
                ResponseStart::Bad => return self.bad_response(cx, position),
                // An interim response is ours to deliver too: as long as no head follows, only we can tell where in the
                // client's numbers it lies.
                ResponseStart::Partial | ResponseStart::Interim { .. } => {}
            }
        }
        // No head is longer; what is not taken comes again.
        let some = &fresh[..fresh.len().min(HEAD_ROOM)];
        if !self.gather(backend_conn, some) {
            return self.bad_response(cx, position);
        }
        if self.gathered(cx, (position, backend_conn)) {
            return self.body_downward(cx, arrived, None);
        }
        drop(arrived.frame);
        let Some(entry) = self.backend_conns.get(backend_conn) else { return };
        if segment.has(FIN) && segment.payload_end() == entry.peer.expected {
            return self.lost_backend(cx, backend_conn);
        }
        if entry.input.is_some() {
            self.acknowledge(cx, End::Backend(backend_conn));
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
    fn gathered<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, both: (u32, u32)) -> bool {
        let (position, backend_conn) = both;
        loop {
            let Splices { client_conns, backend_conns, buffers, scratch, configurations, .. } = self;
            let (Some(client_conn), Some(entry)) =
                (client_conns.get_mut(position), backend_conns.get_mut(backend_conn))
            else {
                return false;
            };
            let Some(input) = entry.input.as_ref() else { return false };
            let start = read_start(cx, (scratch, configurations), client_conn, buffers.bytes(input));
            let room = match &start {
                ResponseStart::Interim { length, written } => written.unwrap_or(*length),
                ResponseStart::Final(head) => head.written.unwrap_or(head.length),
                ResponseStart::Partial | ResponseStart::Bad => 0,
            };
            if room > 0 && !takes_more(buffers, client_conn, room) {
                entry.let_wait(buffers);
                return false;
            }
            match start {
                ResponseStart::Partial => return false,
                ResponseStart::Bad => {
                    entry.input.take().into_iter().for_each(|input| buffers.release(input));
                    self.bad_response(cx, position);
                    return false;
                }
                ResponseStart::Interim { length, written } => {
                    if !self.gathered_interim(cx, both, length, written) {
                        self.bad_response(cx, position);
                        return false;
                    }
                }
                ResponseStart::Final(head) => {
                    let is_ours = self.gathered_final(cx, both, &head);
                    if !is_ours {
                        self.bad_response(cx, position);
                    }
                    return is_ours;
                }
            }
        }
    }

    /// Delivers the interim response that the gathered bytes begin with. `false`: it cannot be.
    fn gathered_interim<IO: FrameIo>(
        &mut self,
        cx: &mut Context<'_, IO>,
        (position, backend_conn): (u32, u32),
        length: usize,
        written: Option<usize>,
    ) -> bool {
        let Splices { client_conns, backend_conns, buffers, scratch, .. } = self;
        let (Some(client_conn), Some(entry)) = (client_conns.get_mut(position), backend_conns.get_mut(backend_conn))
        else {
            return cx.impossible();
        };
        let Some(mut input) = entry.input.take() else { return cx.impossible() };
        let start = entry.peer.expected.wrapping_sub(input.len() as u32);
        cx.responded(client_conn.exchange.backend, 0);
        let put = match (client_conn.exchange.version, written) {
            // An HTTP/1.0 client knows no interim responses (RFC 9110, 15.2).
            (Version::Http10, _) => 0,
            (Version::Http11, written) => written.unwrap_or_else(|| {
                scratch[..length].copy_from_slice(&buffers.bytes(&input)[..length]);
                length
            }),
        };
        let edited = put_in(&mut client_conn.down, start, length, put);
        buffers.consume(&mut input, length);
        match input.len() {
            0 => buffers.release(input),
            _ => entry.input = input.into(),
        }
        client_conn.exchange.response_floor = start.wrapping_add(length as u32);
        let is_kept = edited.is_some_and(|output| client_conn.keep(cx.now, buffers, output, &scratch[..put]));
        if is_kept {
            self.send_more(cx, End::Client(position), Heard { more: true, ..Heard::default() });
        }
        is_kept
    }

    /// Delivers the response's head that the gathered bytes begin with. `false`: it cannot be.
    fn gathered_final<IO: FrameIo>(
        &mut self,
        cx: &mut Context<'_, IO>,
        (position, backend_conn): (u32, u32),
        head: &Head,
    ) -> bool {
        let Splices { client_conns, backend_conns, buffers, scratch, .. } = self;
        let (Some(client_conn), Some(entry)) = (client_conns.get_mut(position), backend_conns.get_mut(backend_conn))
        else {
            return cx.impossible();
        };
        let Some(input) = entry.input.take() else { return cx.impossible() };
        let start = entry.peer.expected.wrapping_sub(input.len() as u32);
        let put = head.written.unwrap_or_else(|| {
            scratch[..head.length].copy_from_slice(&buffers.bytes(&input)[..head.length]);
            head.length
        });
        // Where it ends is only now known: what lies behind it comes by itself.
        let body_start = start.wrapping_add(head.length as u32);
        entry.peer.expected = body_start;
        client_conn.exchange.begin_body(head.body, body_start, head.closes);
        client_conn.exchange.response_floor = body_start;
        let edited = put_in(&mut client_conn.down, start, head.length, put);
        buffers.release(input);
        if !edited.is_some_and(|output| client_conn.keep(cx.now, buffers, output, &scratch[..put])) {
            return false;
        }
        self.send_more(cx, End::Client(position), Heard { more: true, ..Heard::default() });
        let Splices { client_conns, buffers, stamps, .. } = self;
        let Some(client_conn) = client_conns.get_mut(position) else { return cx.impossible() };
        Self::answered(cx, (stamps, buffers), (position, client_conn), head.body, head.status);
        true
    }

    /// A whole head, at the beginning of a segment; `is_last`: the segment has all of the client's last response.
    fn head<IO: FrameIo>(
        &mut self,
        cx: &mut Context<'_, IO>,
        mut arrived: Arrived<'_, IO::Frame>,
        head: &Head,
        is_last: bool,
    ) {
        if is_last && self.take_last(cx, &arrived, head) {
            return;
        }
        let Arrived { at, segment, position, backend_conn, .. } = arrived;
        let Splices { client_conns, backend_conns, buffers, scratch, stamps, .. } = self;
        let (Some(client_conn), Some(entry)) = (client_conns.get_mut(position), backend_conns.get_mut(backend_conn))
        else {
            return;
        };
        let start = segment.sequence.wrapping_add(head.skip as u32);
        let body_start = start.wrapping_add(head.length as u32);
        entry.peer.expected = body_start;
        let exchange = &mut client_conn.exchange;
        exchange.begin_body(head.body, body_start, head.closes);
        exchange.has_begun = true;
        let Some(written) = head.written else {
            // As it is: only its end has to be found.
            exchange.response_floor = start;
            Self::answered(cx, (stamps, buffers), (position, client_conn), head.body, head.status);
            return self.body_downward(cx, arrived, Some(head.length as u32));
        };
        exchange.response_floor = body_start;
        let edited = put_in(&mut client_conn.down, start, head.length, written);
        let kept = edited.filter(|&output| client_conn.keep(cx.now, buffers, output, &scratch[..written]));
        let Some(out) = kept else { return self.bad_response(cx, position) };
        Self::answered(cx, (stamps, buffers), (position, client_conn), head.body, head.status);
        let rest = segment.payload as usize - head.skip - head.length;
        if written + rest > PAYLOAD_MAX
            || !has_room(&mut arrived.frame, at.payload + written + rest)
            || is_crowded(&client_conn.peer, out, written)
        {
            self.send_more(cx, End::Client(position), Heard { more: true, ..Heard::default() });
            return self.body_downward(cx, arrived, None);
        }
        self.pass_with_head(cx, arrived, (head.skip + head.length, written), out);
    }

    /// Passes a segment on with another head in the place of its first `cut` bytes: the first `written` bytes of the scratch
    /// buffer, which are kept for the client from its number `out` on.
    fn pass_with_head<IO: FrameIo>(
        &mut self,
        cx: &mut Context<'_, IO>,
        arrived: Arrived<'_, IO::Frame>,
        (cut, written): (usize, usize),
        out: u32,
    ) {
        let Arrived { mut frame, at, segment, position, backend_conn } = arrived;
        let Splices { client_conns, backend_conns, scratch, stamps, .. } = self;
        let (Some(client_conn), Some(entry)) = (client_conns.get_mut(position), backend_conns.get_mut(backend_conn))
        else {
            return cx.impossible();
        };
        let body_start = segment.sequence.wrapping_add(cut as u32);
        let body = frame.bytes().get(at.payload + cut..at.end).unwrap_or_default();
        let exchange = &mut client_conn.exchange;
        let admitted = exchange.response.admit(&mut exchange.response_end, &mut entry.peer.expected, body_start, body);
        let Ok(admitted) = admitted else { return self.abandon(cx, position) };
        let is_whole = admitted == segment.payload as usize - cut;
        exchange.close_backend |= !is_whole;
        entry.peer.highest = later(entry.peer.highest, entry.peer.expected);
        let mut flags = ACK | PSH;
        if segment.has(FIN) && is_whole {
            flags |= client_conn.closed_by_backend(entry, segment.payload_end());
        }
        if flags & FIN == 0 {
            flags |= client_conn.last_flag(entry, body_start.wrapping_add(admitted as u32));
        }
        let Some(at) = replace_payload(&mut frame, at, (cut, cut + admitted), &scratch[..written]) else {
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
        pass(cx, (frame, &at, &segment), (client_conn, entry), Direction::FromBackend, (out, flags));
        client_conn.peer.has_sent(out.wrapping_add(written as u32));
        due.into_iter().for_each(|due| stamp(stamps, &mut client_conn.stamped, position, due));
        self.offer(cx, position);
    }

    /// What the backend says is no response: the client gets 502, or sees its connection break if a part is there.
    fn bad_response<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, position: u32) {
        let Some(client_conn) = self.client_conns.get_mut(position) else { return cx.impossible() };
        if client_conn.exchange.has_begun {
            cx.statistics.http.refused[Refused::BadResponse as usize] += 1;
            client_conn.exchange.ending = Ending::Backend as u8;
            return self.abandon(cx, position);
        }
        client_conn.peer.expected = later(client_conn.peer.expected, client_conn.exchange.request_floor);
        self.refuse(cx, position, 502, Refused::BadResponse);
    }
}

impl ClientConn {
    /// Makes bytes ours to deliver to the client, from its number `output` on, behind what already is. `false`: they do not
    /// follow that, or there is no room.
    fn keep(&mut self, now: Time, buffers: &mut Buffers, output: u32, bytes: &[u8]) -> bool {
        if bytes.is_empty() {
            return true;
        }
        self.exchange.has_begun = true;
        match self.peer.owned.as_mut() {
            Some(owned) => {
                let follows = !owned.fin && owned.start.wrapping_add(owned.length) == output;
                let Some(buffer) = owned.buffer.as_mut().filter(|_| follows) else { return false };
                let fits = buffers.append(buffer, bytes) == bytes.len();
                owned.length = buffer.len() as u32;
                fits
            }
            None => {
                let Some(mut buffer) = buffers.take(bytes.len()) else { return false };
                buffers.append(&mut buffer, bytes);
                self.peer.owned = Owned::new(now, output, Some(buffer), false).into();
                true
            }
        }
    }
}

impl BackendConn {
    /// There is no room for the head that has been gathered: the acknowledged part is kept, the rest comes again.
    fn let_wait(&mut self, buffers: &mut Buffers) {
        let Some(mut input) = self.input.take() else { return };
        let start = self.peer.expected.wrapping_sub(input.len() as u32);
        buffers.truncate(&mut input, beyond(start, self.peer.told) as usize);
        self.peer.expected = start.wrapping_add(input.len() as u32);
        match input.len() {
            0 => buffers.release(input),
            _ => self.input = input.into(),
        }
    }
}

/// Whether there is room for so many bytes more that are ours to deliver to a client. A backend may answer with any number
/// of interim responses (RFC 9110, 15.2): what the client has not acknowledged of them is bounded by bytes.
fn takes_more(buffers: &Buffers, client_conn: &ClientConn, bytes: usize) -> bool {
    let buffer = client_conn.peer.owned.as_ref().and_then(|owned| owned.buffer.as_ref());
    buffer.is_none_or(|buffer| buffers.has_room(buffer, bytes))
}

/// Reads the head at the beginning of a response's `bytes`, and writes the one that goes on into the scratch buffer.
fn read_start<IO: FrameIo>(
    cx: &Context<'_, IO>,
    (scratch, configurations): (&mut [u8], &Configurations),
    client_conn: &ClientConn,
    bytes: &[u8],
) -> ResponseStart {
    let Some((http, route)) = configurations.of(cx.snapshot, client_conn) else { return ResponseStart::Bad };
    let exchange = &client_conn.exchange;
    // Not moved: its fields take a kilobyte.
    let read = head::response(bytes, &http.limits.head_bounds(), exchange.method);
    let response = match &read {
        Ok(ParseStatus::Partial) => return ResponseStart::Partial,
        Ok(ParseStatus::Complete(response)) => response,
        Err(_) => return ResponseStart::Bad,
    };
    let length = response.bytes.len();
    let is_interim = response.status < 200 && response.status != 101;
    // Behind a 101 nothing is read any more: one that the client has not asked for would let it past the routes.
    let is_unasked = response.status == 101 && !exchange.upgrade;
    if is_unasked || !edit::can_go_to(response, exchange.version) {
        return ResponseStart::Bad;
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
    let body = if is_last && response.body == Length::Chunked { Length::UntilClose } else { response.body };
    let behind = bytes.get(length..).unwrap_or_default();
    if body == Length::Chunked && !is_interim && Chunks::of_response().feed(behind).is_err() {
        return ResponseStart::Bad;
    }
    let facts = facts(cx, client_conn, (exchange.sets_sticky.then_some(exchange.sticky), None));
    match edit::response_head(&mut scratch[..HEAD_ROOM], response, exchange.version, http, route, &facts) {
        Ok(written) if is_interim => ResponseStart::Interim { length, written },
        Ok(written) => {
            let (status, closes) = (response.status, !response.keep_alive);
            ResponseStart::Final(Head { length, skip: 0, written, body, closes, status })
        }
        Err(_) => ResponseStart::Bad,
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

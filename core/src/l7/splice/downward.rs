//! What a backend sends.

use super::connect::{facts, no_route, route_of};
use super::entry::{BackState, FrontState, Inadmissible, Message};
use super::numbers::{before, beyond, earlier, follow, later};
use super::peer::{Heard, Owned, Peer};
use super::read::USELESS;
use super::segment::{Abilities, Own, Segment, replace_payload};
use super::upward::trim;
use super::{Context, HEAD_ROOM, Refused, Splices};
use crate::flow::Direction;
use crate::frame::{Frame, FrameIo};
use crate::l7::body::Length;
use crate::l7::config::Kind;
use crate::l7::edit;
use crate::l7::head::{self, Parsed, Version};
use crate::wire::Transport;
use crate::wire::tcp::{ACK, FIN, PSH, RST, SYN};
use crate::worker::Drop;

/// What a super-packet can carry at most, beside its headers.
const PAYLOAD_MAX: usize = 65_000;

/// What the bytes of a response are.
enum Seen {
    /// A head that is not complete.
    Partial,
    /// An interim response of so many bytes.
    Interim { length: usize },
    /// The response's head of so many bytes; `written`: the new one in the scratch buffer, if it is to be another.
    Final { length: usize, written: Option<usize>, message: Length, status: u16, closes: bool },
    /// No response that can be passed on.
    Bad,
}

impl Splices {
    /// A packet of a backend.
    pub(super) fn handle_backend<IO: FrameIo>(
        &mut self,
        cx: &mut Context<'_, IO>,
        frame: IO::Frame,
        at: &Transport,
        back: u32,
    ) {
        let segment = Segment::of(frame.bytes(), at);
        let Some(entry) = self.backs.get_mut(back) else { return cx.drop(USELESS) };
        if at.ttl <= 1 {
            return cx.drop(Drop::TimeToLive);
        }
        if entry.state == BackState::Connecting {
            return self.handshake(cx, &frame, at, &segment, back);
        }
        if segment.has(SYN) {
            // Its SYN-ACK again: our acknowledgement was lost.
            if !cx.answers.admits(cx.now) {
                return cx.drop(Drop::AnswerLimit);
            }
            return match entry.peer.owned {
                Some(_) => self.send_owned_back(cx, back),
                None => self.acknowledge_back(cx, back),
            };
        }
        let joined =
            entry.front.filter(|&front| self.fronts.get(front).is_some_and(|front| front.state == FrontState::Joined));
        if !segment.has(ACK) && !segment.has(RST) {
            return cx.drop(USELESS);
        }
        match joined {
            Some(position) => self.downward(cx, frame, at, &segment, (position, back)),
            None => self.back_alone(cx, &segment, back),
        }
    }

    /// An answer to our SYN.
    fn handshake<IO: FrameIo>(
        &mut self,
        cx: &mut Context<'_, IO>,
        frame: &IO::Frame,
        at: &Transport,
        segment: &Segment,
        back: u32,
    ) {
        let Some(entry) = self.backs.get(back) else { return };
        let answers = segment.has(ACK) && segment.acknowledgement == entry.peer.sent;
        match segment.flags & (SYN | RST) {
            SYN if answers => {
                let abilities = Abilities::of(frame.bytes(), at);
                self.connected(cx, back, segment.sequence.wrapping_add(1), &abilities, segment.window);
            }
            RST if answers => self.unconnected(cx, back, Refused::Unreachable),
            0 if segment.has(ACK) => {
                // It remembers an older connection between the same ends: RST, and our SYN comes again (RFC 9293, 3.5.1).
                let own = Own {
                    source: entry.own_end(),
                    destination: entry.target(),
                    sequence: segment.acknowledgement,
                    acknowledgement: 0,
                    flags: RST,
                    window: 0,
                    port: entry.port,
                    mss: u16::MAX,
                    abilities: None,
                };
                super::send::emit(cx, &own, [&[], &[]]);
            }
            _ => cx.drop(USELESS),
        }
    }

    /// A backend's segment while front and back are joined.
    fn downward<IO: FrameIo>(
        &mut self,
        cx: &mut Context<'_, IO>,
        frame: IO::Frame,
        at: &Transport,
        segment: &Segment,
        (position, back): (u32, u32),
    ) {
        let Some(entry) = self.backs.get_mut(back) else { return };
        if segment.has(RST) {
            let Some(front) = self.fronts.get_mut(position) else { return };
            // What the engine has carried, software does not know of; this number tells.
            let carried = front.downloads_by_engine();
            let window = if carried { (1 << 24) + (1 << 30) } else { 1 << 24 };
            let is_near = segment.sequence.wrapping_sub(entry.peer.told).wrapping_add(window) <= 2 * window;
            if is_near && carried {
                let out = segment.sequence.wrapping_add(front.down.delta_at_end());
                front.peer.sent = later(front.peer.sent, out);
            }
            return if is_near { self.lost_back(cx, back) } else { cx.drop(USELESS) };
        }
        let Some(heard) = entry.peer.hear(cx.now, segment, &mut self.buffers) else { return cx.drop(USELESS) };
        let acknowledged = entry.peer.acknowledged;
        self.go_on_to_back(cx, back, heard);
        let Some(front) = self.fronts.get_mut(position) else { return };
        front.last_seen = cx.now;
        front.up.settle(acknowledged);
        if segment.payload == 0 && !segment.has(FIN) {
            return self.acknowledgement_downward(cx, frame, at, segment, (position, back));
        }
        match front.exchange.response {
            Message::Head if segment.payload > 0 => self.response(cx, frame, at, segment, (position, back)),
            Message::Head => {
                let is_next = self.backs.get(back).is_some_and(|entry| entry.peer.expected == segment.sequence);
                if is_next { self.lost_back(cx, back) } else { cx.drop(USELESS) }
            }
            _ => self.body_downward(cx, frame, at, segment, (position, back), None),
        }
    }

    fn acknowledgement_downward<IO: FrameIo>(
        &mut self,
        cx: &mut Context<'_, IO>,
        frame: IO::Frame,
        at: &Transport,
        segment: &Segment,
        (position, back): (u32, u32),
    ) {
        let (Some(front), Some(entry)) = (self.fronts.get(position), self.backs.get(back)) else { return };
        let floor = front.exchange.response_floor;
        // Of a head that is not complete, the client knows nothing.
        let gathered = entry.input.is_some() && before(segment.sequence, entry.peer.expected);
        if before(segment.sequence, floor) || gathered {
            // A keep-alive probe, or an old one.
            return self.acknowledge_back(cx, back);
        }
        if entry.peer.holds(segment.acknowledgement) {
            return;
        }
        let mut sequence = segment.sequence.wrapping_add(front.down.delta_at_end());
        if matches!(front.exchange.response, Message::Head | Message::Chunked(_) | Message::Done) {
            // What of a message that is read in order lies behind a gap has not gone on.
            sequence = earlier(sequence, front.peer.sent);
        }
        self.pass(cx, frame, at, segment, (position, Direction::FromBackend), (sequence, ACK));
        self.conclude(cx, position);
    }

    /// Bytes of a response whose head is not complete.
    fn response<IO: FrameIo>(
        &mut self,
        cx: &mut Context<'_, IO>,
        frame: IO::Frame,
        at: &Transport,
        segment: &Segment,
        (position, back): (u32, u32),
    ) {
        let Some(entry) = self.backs.get_mut(back) else { return };
        if before(entry.peer.expected, segment.sequence) {
            cx.statistics.http.out_of_order += 1;
            return self.acknowledge_back(cx, back);
        }
        let skip = beyond(segment.sequence, entry.peer.expected) as usize;
        let payload = frame.bytes().get(at.payload..at.end).unwrap_or_default();
        let Some(fresh) = payload.get(skip..).filter(|fresh| !fresh.is_empty()) else {
            return self.acknowledge_back(cx, back);
        };
        if entry.input.is_none() {
            let seen = self.see(cx, position, Some(fresh), back);
            match seen {
                Seen::Final { .. } => {
                    return self.head(cx, frame, at, segment, (position, back), (skip, seen));
                }
                Seen::Bad => return self.bad_response(cx, position),
                // An interim response is ours to deliver too: as long as no head follows, nobody else could tell where
                // in the client's numbers it lies.
                Seen::Partial | Seen::Interim { .. } => {}
            }
        }
        // No head is longer; what is not taken comes again.
        let some = &fresh[..fresh.len().min(HEAD_ROOM)];
        if !self.gather(back, some) {
            return self.bad_response(cx, position);
        }
        if self.gathered(cx, (position, back)) {
            return self.body_downward(cx, frame, at, segment, (position, back), None);
        }
        drop(frame);
        let Some(entry) = self.backs.get(back) else { return };
        if segment.has(FIN) && segment.payload_end() == entry.peer.expected {
            return self.lost_back(cx, back);
        }
        if entry.input.is_some() {
            self.acknowledge_back(cx, back);
        }
    }

    /// Adds bytes to those of a head that is not complete.
    fn gather(&mut self, back: u32, bytes: &[u8]) -> bool {
        let Some(entry) = self.backs.get_mut(back) else { return false };
        if entry.input.is_none() {
            entry.input = self.buffers.take(bytes.len());
        }
        let Some(input) = &mut entry.input else { return false };
        let stored = self.buffers.append(input, bytes);
        entry.peer.expected = entry.peer.expected.wrapping_add(stored as u32);
        entry.peer.highest = later(entry.peer.highest, entry.peer.expected);
        stored == bytes.len()
    }

    /// Goes on with a head that came in pieces, or behind another: it is ours to send. Returns whether the response's body
    /// follows.
    fn gathered<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, (position, back): (u32, u32)) -> bool {
        loop {
            let seen = self.see(cx, position, None, back);
            let Splices { fronts, backs, buffers, scratch, .. } = self;
            let (Some(front), Some(entry)) = (fronts.get_mut(position), backs.get_mut(back)) else { return false };
            let Some(mut input) = entry.input.take() else { return false };
            let start = entry.peer.expected.wrapping_sub(input.len() as u32);
            match seen {
                Seen::Partial => {
                    entry.input = Some(input);
                    return false;
                }
                Seen::Bad => {
                    buffers.release(input);
                    self.bad_response(cx, position);
                    return false;
                }
                Seen::Interim { length } => {
                    cx.statistics.http.responses[0] += 1;
                    // An HTTP/1.0 client knows no interim responses (RFC 9110, 15.2).
                    let put = if front.exchange.version == Version::Http11 { length } else { 0 };
                    scratch[..put].copy_from_slice(&buffers.bytes(&input)[..put]);
                    let edited = front.down.edit(start, length as u32, put as u32);
                    buffers.consume(&mut input, length);
                    match input.len() {
                        0 => buffers.release(input),
                        _ => entry.input = Some(input),
                    }
                    front.exchange.response_floor = start.wrapping_add(length as u32);
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
                    let exchange = &mut front.exchange;
                    exchange.response = Message::of(message, body_start);
                    exchange.response_end = exchange.response.is_done().then_some(body_start);
                    exchange.close_back |= closes;
                    exchange.response_floor = body_start;
                    let edited = front.down.edit(start, length as u32, head as u32);
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
        self.go_on_to_front(cx, position, Heard { more: true, ..Heard::default() });
        true
    }

    /// The same without sending it.
    fn keep_for_client<IO: FrameIo>(
        &mut self,
        cx: &mut Context<'_, IO>,
        position: u32,
        output: u32,
        length: usize,
    ) -> bool {
        let Splices { fronts, buffers, scratch, .. } = self;
        let Some(front) = fronts.get_mut(position) else { return false };
        let bytes = &scratch[..length];
        if bytes.is_empty() {
            return true;
        }
        front.exchange.has_begun = true;
        match &mut front.peer.owned {
            Some(Owned { buffer: Some(buffer), length: owned, start, fin: false, .. })
                if start.wrapping_add(*owned) == output =>
            {
                let fits = buffers.append(buffer, bytes) == bytes.len();
                *owned = buffer.len() as u32;
                fits
            }
            Some(_) => false,
            none => {
                let Some(mut buffer) = buffers.take(length) else { return false };
                buffers.append(&mut buffer, bytes);
                *none = Some(Owned::new(cx.now, output, Some(buffer), false));
                true
            }
        }
    }

    /// Reads a response's head: `fresh`, or what has been gathered.
    fn see<IO: FrameIo>(&mut self, cx: &Context<'_, IO>, position: u32, fresh: Option<&[u8]>, back: u32) -> Seen {
        let Splices { fronts, backs, buffers, scratch, generation, .. } = self;
        let (Some(front), Some(entry)) = (fronts.get(position), backs.get(back)) else { return Seen::Bad };
        let Kind::Http(http) = cx.kind(front.service) else { return Seen::Bad };
        let bytes = match (fresh, &entry.input) {
            (Some(fresh), _) => fresh,
            (None, Some(input)) => buffers.bytes(input),
            (None, None) => return Seen::Partial,
        };
        let bounds = http.limits.head_bounds();
        let exchange = &front.exchange;
        let response = match head::response(bytes, &bounds, exchange.method) {
            Ok(Parsed::Partial) => return Seen::Partial,
            Ok(Parsed::Complete(response)) => response,
            Err(_) => return Seen::Bad,
        };
        let length = response.bytes.len();
        if response.status < 200 && response.status != 101 {
            return Seen::Interim { length };
        }
        if !edit::can_go_to(&response, exchange.version) {
            return Seen::Bad;
        }
        let none;
        let route = match route_of(http, exchange, *generation) {
            Some(route) => route,
            None => {
                none = no_route();
                &none
            }
        };
        let facts = facts(cx, front, exchange.sticky);
        match edit::response_head(&mut scratch[..HEAD_ROOM], &response, exchange.version, http, route, &facts) {
            Ok(written) => Seen::Final {
                length,
                written,
                message: response.body,
                status: response.status,
                closes: !response.keep_alive,
            },
            Err(_) => Seen::Bad,
        }
    }

    /// A whole head, at the beginning of a segment.
    fn head<IO: FrameIo>(
        &mut self,
        cx: &mut Context<'_, IO>,
        mut frame: IO::Frame,
        at: &Transport,
        segment: &Segment,
        (position, back): (u32, u32),
        (skip, seen): (usize, Seen),
    ) {
        let Seen::Final { length, written, message, status, closes } = seen else { return };
        let (Some(front), Some(entry)) = (self.fronts.get_mut(position), self.backs.get_mut(back)) else { return };
        let start = segment.sequence.wrapping_add(skip as u32);
        let body_start = start.wrapping_add(length as u32);
        entry.peer.expected = body_start;
        let exchange = &mut front.exchange;
        exchange.response = Message::of(message, body_start);
        exchange.response_end = exchange.response.is_done().then_some(body_start);
        exchange.close_back |= closes;
        exchange.has_begun = true;
        let Some(written) = written else {
            // As it is: only its end has to be found.
            exchange.response_floor = start;
            self.answered(cx, position, message, status);
            return self.body_downward(cx, frame, at, segment, (position, back), Some(length as u32));
        };
        exchange.response_floor = body_start;
        let edited = front.down.edit(start, length as u32, written as u32);
        let kept = edited.filter(|&output| self.keep_for_client(cx, position, output, written));
        let Some(out) = kept else { return self.bad_response(cx, position) };
        self.answered(cx, position, message, status);
        let behind = skip + length;
        let rest = segment.payload as usize - behind;
        if written + rest > PAYLOAD_MAX
            || self.fronts.get(position).is_none_or(|front| is_crowded(&front.peer, out, written))
        {
            self.go_on_to_front(cx, position, Heard { more: true, ..Heard::default() });
            return self.body_downward(cx, frame, at, segment, (position, back), None);
        }
        let Some(front) = self.fronts.get_mut(position) else { return };
        let exchange = &mut front.exchange;
        let payload = frame.bytes().get(at.payload + behind..at.end).unwrap_or_default();
        let Some(entry) = self.backs.get_mut(back) else { return };
        let admitted =
            exchange.response.admit(&mut exchange.response_end, &mut entry.peer.expected, body_start, payload);
        let Ok(admitted) = admitted else { return self.break_off(cx, position) };
        exchange.close_back |= admitted < rest;
        entry.peer.highest = later(entry.peer.highest, entry.peer.expected);
        let mut flags = ACK | PSH;
        if segment.has(FIN) && admitted == rest {
            flags |= self.closed_by_backend(position, back, segment.payload_end());
        }
        let Some(front) = self.fronts.get(position) else { return };
        let put = &self.scratch[..written];
        let Some(at) = replace_payload(&mut frame, at, (behind, behind + admitted), put) else {
            return cx.drop(Drop::NoFrame);
        };
        let total = (written + admitted) as u32;
        let mss = front.peer.mss.min(match frame.meta().gso_size {
            0 => u16::MAX,
            size => size,
        });
        frame.meta_mut().gso_size = if total > u32::from(mss) { mss } else { 0 };
        let due = front.peer.owned.as_ref().map(|owned| owned.due);
        let segment = Segment { payload: total, ..*segment };
        self.pass(cx, frame, &at, &segment, (position, Direction::FromBackend), (out, flags));
        if let Some(front) = self.fronts.get_mut(position) {
            front.peer.has_sent(out.wrapping_add(written as u32));
        }
        due.into_iter().for_each(|due| self.stamp_front(position, due));
        self.offer(cx, position);
    }

    /// A final response is on its way.
    fn answered<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, position: u32, message: Length, status: u16) {
        let class = usize::from(status / 100).saturating_sub(1).min(4);
        cx.statistics.http.responses[class] += 1;
        let Some(front) = self.fronts.get_mut(position) else { return };
        cx.answered_with(front.exchange.backend, front.exchange.group, status);
        if message == Length::Tunnel {
            front.exchange.request = Message::Endless;
            front.exchange.request_end = None;
        }
        if matches!(front.exchange.response, Message::Endless) {
            front.exchange.close_back = true;
            front.exchange.close_front = true;
        }
        front.deadline = cx.now + super::timers::body_timeout(cx.snapshot, front);
        if message == Length::Tunnel {
            self.unread(position);
        }
    }

    /// What was read of a client's is not read in order any more: it comes again, and goes through. (Bytes that a client
    /// sends before it knows of a tunnel are few, and not acknowledged yet.)
    fn unread(&mut self, position: u32) {
        let Some(front) = self.fronts.get_mut(position) else { return };
        let start = front.input_start();
        if let Some(input) = front.input.take() {
            self.buffers.release(input);
            front.peer.expected = start;
        }
    }

    /// The backend's FIN has come, with number `end`, behind all it had to say. Returns the flag that goes to the client.
    fn closed_by_backend(&mut self, position: u32, back: u32, end: u32) -> u8 {
        let (Some(front), Some(entry)) = (self.fronts.get_mut(position), self.backs.get_mut(back)) else { return 0 };
        entry.peer.has_closed = true;
        entry.closed_first = !entry.peer.was_closed;
        let exchange = &mut front.exchange;
        exchange.close_back = true;
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
        exchange.close_front = true;
        front.peer.was_closed = true;
        FIN
    }

    /// A part of a response behind its head, or (`head`: its bytes) from its head on.
    fn body_downward<IO: FrameIo>(
        &mut self,
        cx: &mut Context<'_, IO>,
        mut frame: IO::Frame,
        at: &Transport,
        segment: &Segment,
        (position, back): (u32, u32),
        head: Option<u32>,
    ) {
        let (Some(front), Some(entry)) = (self.fronts.get_mut(position), self.backs.get_mut(back)) else { return };
        let exchange = &mut front.exchange;
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
                return self.acknowledge_back(cx, back);
            }
            Err(Inadmissible::Broken) => {
                cx.statistics.http.refused[Refused::BadResponse as usize] += 1;
                return self.break_off(cx, position);
            }
        };
        let all = admitted == mine.len() + head as usize;
        exchange.close_back |= !all;
        entry.peer.highest = later(entry.peer.highest, start.wrapping_add(admitted as u32));
        follow(&mut exchange.response_floor, entry.peer.highest);
        let out = start.wrapping_add(front.down.delta_at_end());
        let mut flags = ACK | segment.flags & PSH;
        let closes = segment.has(FIN) && all;
        if closes {
            flags |= self.closed_by_backend(position, back, segment.payload_end());
        }
        if admitted == 0 && flags & FIN == 0 {
            // All of it is ours, or was there before.
            self.acknowledge_back(cx, back);
            return self.conclude(cx, position);
        }
        let cut = (skip as usize, skip as usize + admitted);
        let Some((at, segment)) = trim(&mut frame, at, segment, cut) else { return cx.drop(Drop::NoFrame) };
        if let Some(front) = self.fronts.get_mut(position) {
            let timeout = super::timers::body_timeout(cx.snapshot, front);
            front.deadline = front.deadline.max(cx.now + timeout);
        }
        self.pass(cx, frame, &at, &segment, (position, Direction::FromBackend), (out, flags));
        if closes {
            // Who closes has to see what is acknowledged.
            self.remove_rules(cx, position);
            return self.conclude(cx, position);
        }
        self.offer(cx, position);
    }

    /// What the backend says is no response: the client gets 502, or sees its connection break if a part is there.
    fn bad_response<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, position: u32) {
        let Some(front) = self.fronts.get_mut(position) else { return };
        if front.exchange.has_begun {
            cx.statistics.http.refused[Refused::BadResponse as usize] += 1;
            return self.break_off(cx, position);
        }
        front.peer.expected = later(front.peer.expected, front.exchange.request_floor);
        self.refuse(cx, position, 502, Refused::BadResponse);
    }
}

/// Whether what we want to put in front of a segment, from number `out` on, does not fit into what the client takes now, or
/// waits behind something else that did not.
fn is_crowded(peer: &Peer, out: u32, written: usize) -> bool {
    let limit = peer.acknowledged.wrapping_add(peer.window);
    beyond(out, limit) < written as u32 || peer.owned.as_ref().is_some_and(|owned| before(owned.sent, out))
}

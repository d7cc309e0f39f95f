//! What a client sends.

use super::delivery::trim;
use super::read::{USELESS, store};
use crate::flow::Direction;
use crate::frame::{Frame, FrameIo};
use crate::l7::splice::state::buffers::Buffers;
use crate::l7::splice::state::entry::{BackendConn, BackendConnState, ClientConn, ClientConnState};
use crate::l7::splice::state::exchange::{Inadmissible, Message};
use crate::l7::splice::state::joined::{joined, joined_mut};
use crate::l7::splice::tcp::numbers::{before, beyond, earlier, follow, later};
use crate::l7::splice::tcp::pass::pass;
use crate::l7::splice::tcp::segment::Segment;
use crate::l7::splice::tcp::timestamps;
use crate::l7::splice::timers::body_timeout;
use crate::l7::splice::{Context, End, Refused, Splices};
use crate::record::Ending;
use crate::wire::tcp::{ACK, FIN, PSH};
use crate::wire::{Transport, tcp};
use crate::worker::Drop;

impl Splices {
    /// A client's segment when no exchange is under way. That the client got something twice (RFC 2883) is for the backend to
    /// know, also when all is acknowledged: without it, it would take its probe for the cure of a loss, and slow down.
    pub(in crate::l7::splice) fn behind<IO: FrameIo>(
        &mut self,
        cx: &mut Context<'_, IO>,
        frame: IO::Frame,
        at: &Transport,
        segment: &Segment,
        position: u32,
    ) {
        // A number before the one expected is a keep-alive probe's, and ours to answer.
        if segment.payload == 0 && !segment.has(FIN) && at.payload - at.l4 > tcp::HEADER {
            if self.may_report(segment, position)
                && let Some((client_conn, backend_conn)) =
                    joined_mut(&mut self.client_conns, &mut self.backend_conns, position)
            {
                let sent = backend_conn.peer.sent;
                let both = (client_conn, backend_conn);
                return pass(cx, (frame, at, segment), both, Direction::FromClient, (sent, ACK));
            }
            self.report(cx, frame.bytes(), at, position);
        }
        self.take(cx, frame, at, segment, position);
    }

    /// Whether a report of what came twice may go on to the backend as it is: the client connection still has it, and both
    /// ends speak of such.
    fn may_report(&self, segment: &Segment, position: u32) -> bool {
        joined(&self.client_conns, &self.backend_conns, position).is_some_and(|(client_conn, backend_conn)| {
            client_conn.state == ClientConnState::Reading
                && !before(segment.sequence, client_conn.peer.expected)
                && backend_conn.state == BackendConnState::Attached
                && client_conn.peer.sack
                && backend_conn.peer.sack
        })
    }

    /// Lets the backend know that the client got something twice, if the client connection has left its backend connection
    /// to others. Numbers of this client's mean nothing there any more, but an acknowledgement that says nothing new is
    /// enough for a backend to know that its probe was needless (RFC 8985, 7.4.2).
    fn report<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, bytes: &[u8], at: &Transport, position: u32) {
        let Some(client_conn) = self.client_conns.get(position) else { return };
        let (Some(backend_conn), generation) = (client_conn.left.get(), client_conn.left_generation) else { return };
        let options = bytes.get(at.l4 + tcp::HEADER..at.payload).unwrap_or_default();
        let reports = tcp::Options::new(options).any(|option| option.kind == tcp::OPTION_SACK);
        let is_there = self.backend_conns.generation(backend_conn) == generation
            && self.backend_conns.get(backend_conn).is_some_and(|backend_conn| {
                matches!(backend_conn.state, BackendConnState::Idle | BackendConnState::Attached)
            });
        if reports && is_there {
            self.acknowledge(cx, End::Backend(backend_conn));
        }
    }

    /// A client's segment while client and backend connection are spliced.
    pub(in crate::l7::splice) fn upward<IO: FrameIo>(
        &mut self,
        cx: &mut Context<'_, IO>,
        frame: IO::Frame,
        at: &Transport,
        segment: &Segment,
        position: u32,
    ) {
        let Splices { client_conns, backend_conns, .. } = self;
        if let Some((client_conn, backend_conn)) = joined_mut(client_conns, backend_conns, position) {
            client_conn.catch_up(backend_conn);
            timestamps::catch_up(client_conn, backend_conn);
        }
        self.conclude(cx, position);
        let Splices { client_conns, backend_conns, .. } = self;
        let Some(client_conn) = client_conns.get(position) else { return cx.impossible() };
        if client_conn.state != ClientConnState::Spliced {
            self.behind(cx, frame, at, segment, position);
            return self.settle_backend(cx, position);
        }
        if segment.payload > 0 || segment.has(FIN) {
            return self.body_upward(cx, frame, at, segment, position);
        }
        if before(segment.sequence, client_conn.exchange.request_floor) {
            // A keep-alive probe.
            return self.acknowledge(cx, End::Client(position));
        }
        if client_conn.peer.holds(segment.acknowledgement) {
            return;
        }
        let Some((client_conn, backend_conn)) = joined_mut(client_conns, backend_conns, position) else { return };
        // A number beyond the request's end is that of requests that wait here.
        let number = match client_conn.exchange.request_end.get() {
            Some(end) if before(end, segment.sequence) => end,
            _ => segment.sequence,
        };
        let mut sequence = number.wrapping_add(client_conn.up.delta_at_end());
        if client_conn.exchange.request.is_chunked() {
            // What of a body that is read in order lies behind a gap has not gone on.
            sequence = earlier(sequence, backend_conn.peer.sent);
        }
        client_conn.down.settle(segment.acknowledgement);
        // It may acknowledge what of ours the engine could not be offered the body for.
        let is_clamped = client_conn.is_clamped;
        let both = (client_conn, backend_conn);
        pass(cx, (frame, at, segment), both, Direction::FromClient, (sequence, ACK));
        if is_clamped {
            self.offer(cx, position);
        }
        self.conclude(cx, position);
    }

    /// A part of a request's body, the next request, the client's FIN, or any of these together.
    fn body_upward<IO: FrameIo>(
        &mut self,
        cx: &mut Context<'_, IO>,
        frame: IO::Frame,
        at: &Transport,
        segment: &Segment,
        position: u32,
    ) {
        let Splices { client_conns, backend_conns, buffers, .. } = self;
        let Some((client_conn, backend_conn)) = joined_mut(client_conns, backend_conns, position) else { return };
        client_conn.down.settle(client_conn.peer.acknowledged);
        let had_before = client_conn.peer.expected;
        let skip = beyond(segment.sequence, client_conn.exchange.request_floor).min(segment.payload);
        let start = segment.sequence.wrapping_add(skip);
        let payload = frame.bytes().get(at.payload..at.end).unwrap_or_default();
        let mine = &payload[skip as usize..];
        if !agrees_with_framing(cx, buffers, (client_conn, backend_conn), start, mine) {
            return self.acknowledge(cx, End::Client(position));
        }
        let exchange = &mut client_conn.exchange;
        let admitted =
            match exchange.request.admit(&mut exchange.request_end, &mut client_conn.peer.expected, start, mine) {
                Ok(admitted) => admitted,
                Err(why) => return self.not_admitted(cx, position, segment, why),
            };
        client_conn.peer.highest = later(client_conn.peer.highest, start.wrapping_add(admitted as u32));
        follow(&mut client_conn.exchange.request_floor, client_conn.peer.highest);
        let out = start.wrapping_add(client_conn.up.delta_at_end());
        let mut flags = ACK | segment.flags & PSH;
        if let Some(behind) = mine.get(admitted..).filter(|behind| !behind.is_empty()) {
            client_conn.store_behind(buffers, start.wrapping_add(admitted as u32), behind);
        } else if segment.has(FIN) {
            match client_conn.closes(segment.payload_end()) {
                ClientFin::Through => {
                    flags |= FIN;
                    backend_conn.peer.was_closed = true;
                }
                // The acknowledgement of the response's end has to come by here.
                ClientFin::Kept => self.remove_rules(cx, position),
                ClientFin::TooEarly => {
                    client_conn.exchange.ending = Ending::Client as u8;
                    return self.abandon(cx, position);
                }
                ClientFin::Overtakes => {}
            }
        }
        let part = UpwardPart { cut: (skip as usize, skip as usize + admitted), out, flags, had_before };
        self.pass_upward(cx, (frame, at, segment), position, &part);
    }

    /// Passes on the part of a segment's payload that belongs to the request at hand, and its FIN.
    fn pass_upward<IO: FrameIo>(
        &mut self,
        cx: &mut Context<'_, IO>,
        (mut frame, at, segment): (IO::Frame, &Transport, &Segment),
        position: u32,
        part: &UpwardPart,
    ) {
        let Splices { client_conns, backend_conns, .. } = self;
        let Some((client_conn, backend_conn)) = joined_mut(client_conns, backend_conns, position) else { return };
        let (is_progress, closes) = (client_conn.peer.expected != part.had_before, part.flags & FIN != 0);
        if part.cut.0 == part.cut.1 && !closes {
            // Sent again by a client that does not know that it was received, or its way to ask whether we are there
            // (RFC 9293, 3.8.4), or behind something that is missing: it gets to know where we are.
            return self.acknowledgement_upward(cx, (frame, at, segment), position, !is_progress);
        }
        if is_progress {
            // What comes again is no progress.
            client_conn.deadline = client_conn.deadline.max(cx.now + body_timeout(cx.snapshot, client_conn));
        }
        let Some((at, segment)) = trim(&mut frame, at, segment, part.cut) else { return cx.drop(Drop::NoFrame) };
        let both = (client_conn, backend_conn);
        pass(cx, (frame, &at, &segment), both, Direction::FromClient, (part.out, part.flags));
        if closes {
            self.follow_end(cx, position);
        } else {
            self.offer(cx, position);
        }
        self.conclude(cx, position);
    }

    /// A client's bytes cannot go on.
    fn not_admitted<IO: FrameIo>(
        &mut self,
        cx: &mut Context<'_, IO>,
        position: u32,
        segment: &Segment,
        why: Inadmissible,
    ) {
        let broken = match why {
            Inadmissible::OutOfOrder => {
                cx.statistics.http.out_of_order += 1;
                if let Some(client_conn) = self.client_conns.get_mut(position) {
                    client_conn.peer.misses(segment.payload_end());
                }
                return self.acknowledge(cx, End::Client(position));
            }
            Inadmissible::Broken(broken) => broken,
        };
        let (status, why) = Refused::of_chunks(broken);
        let Some(client_conn) = self.client_conns.get(position) else { return cx.impossible() };
        if !client_conn.exchange.has_begun {
            return self.refuse(cx, position, status, why);
        }
        cx.statistics.http.refused[why as usize] += 1;
        self.ends_by(position, Ending::Client);
        self.abandon(cx, position);
    }

    /// A segment with no payload left to forward: its acknowledgement may still be news to the backend.
    fn acknowledgement_upward<IO: FrameIo>(
        &mut self,
        cx: &mut Context<'_, IO>,
        (mut frame, at, segment): (IO::Frame, &Transport, &Segment),
        position: u32,
        asks: bool,
    ) {
        let Splices { client_conns, backend_conns, .. } = self;
        let Some((client_conn, backend_conn)) = joined_mut(client_conns, backend_conns, position) else { return };
        let translated = client_conn.down.acknowledgement(segment.acknowledgement);
        // That there is room again where there was none is said once, maybe with what is ours to keep: a FIN.
        let opens = backend_conn.peer.shown == 0 && segment.window > 0;
        let is_news = before(backend_conn.peer.told, translated) || opens;
        if is_news && !client_conn.peer.holds(segment.acknowledgement) {
            let Some((at, segment)) = trim(&mut frame, at, segment, (0, 0)) else { return cx.drop(Drop::NoFrame) };
            let (sent, both) = (backend_conn.peer.sent, (client_conn, backend_conn));
            pass(cx, (frame, &at, &segment), both, Direction::FromClient, (sent, ACK));
        } else if asks {
            self.acknowledge(cx, End::Client(position));
        }
        self.conclude(cx, position);
    }
}

/// The part of a client's segment that goes on.
struct UpwardPart {
    /// The bytes of its payload from the first number to before the second.
    cut: (usize, usize),
    /// The backend's number of the first.
    out: u32,
    flags: u8,
    /// The number that was expected of the client before it came.
    had_before: u32,
}

/// What becomes of a client's FIN.
enum ClientFin {
    /// It goes on to the backend, behind all that the client has said.
    Through,
    /// It stands behind the request, and is acknowledged when the exchange is over.
    Kept,
    /// It has overtaken a part of the request's body, and comes again.
    Overtakes,
    /// The rest of the request's body will never come.
    TooEarly,
}

impl ClientConn {
    /// A request's body that the engine has forwarded is over once the backend has acknowledged its end. Of a response that it
    /// carries, the client's acknowledgements tell how far it has come, if they come by here.
    fn catch_up(&mut self, backend_conn: &mut BackendConn) {
        if self.is_offloaded_down_only() {
            self.catch_up_downwards(backend_conn);
        }
        let exchange = &mut self.exchange;
        if let (Message::Bytes { .. }, Some(end)) = (exchange.request.get(), exchange.request.end(None))
            && !before(backend_conn.peer.acknowledged, end.wrapping_add(self.up.delta_at_end()))
        {
            exchange.request.set(Message::Done);
            exchange.request_end = Some(end).into();
            self.peer.expected = later(self.peer.expected, end);
            self.peer.highest = later(self.peer.highest, end);
        }
    }

    /// The client's FIN has come behind the bytes before number `end`, which all belong to the request at hand.
    fn closes(&mut self, end: u32) -> ClientFin {
        match self.exchange.request.get() {
            Message::Endless => {
                self.peer.has_closed = true;
                ClientFin::Through
            }
            Message::Done if end == self.peer.expected => {
                // Acknowledged when the exchange is over, with all that came before it.
                self.peer.has_closed = true;
                self.peer.expected = self.peer.expected.wrapping_add(1);
                self.exchange.close_client |= self.waiting() == 0;
                ClientFin::Kept
            }
            Message::Done => ClientFin::Overtakes,
            // At the body's end it has overtaken the rest of it; before that, there will be no rest.
            message if message.end(None).is_none_or(|whole| before(end, whole)) => ClientFin::TooEarly,
            _ => ClientFin::Overtakes,
        }
    }

    /// Stores what lies behind a request, from number `next` on, if it is the next in order: the next request, or a part of
    /// one, to be used when this exchange is over.
    fn store_behind(&mut self, buffers: &mut Buffers, next: u32, bytes: &[u8]) {
        let had = beyond(next, self.peer.expected) as usize;
        if self.exchange.request.is_done() && next.wrapping_add(had as u32) == self.peer.expected {
            let stored = store(buffers, self, bytes.get(had..).unwrap_or_default());
            self.peer.expected = self.peer.expected.wrapping_add(stored as u32);
            self.peer.highest = later(self.peer.highest, self.peer.expected);
        }
    }
}

/// Whether bytes of a request, which begin with number `start`, agree with what was read of its framing before, and can be
/// remembered if they are new. Bytes that differ may be a question whether we are there, with a byte that means nothing
/// (RFC 9293, 3.8.4).
fn agrees_with_framing<IO: FrameIo>(
    cx: &mut Context<'_, IO>,
    buffers: &mut Buffers,
    (client_conn, backend_conn): (&mut ClientConn, &BackendConn),
    start: u32,
    mine: &[u8],
) -> bool {
    let had = (beyond(start, client_conn.peer.expected) as usize).min(mine.len());
    if !client_conn.framing.agrees(buffers, start, &mine[..had]) {
        cx.drop(USELESS);
        return false;
    }
    if let (Message::Chunked(chunks), false) =
        (client_conn.exchange.request.get(), before(client_conn.peer.expected, start))
    {
        let fresh = (start.wrapping_add(had as u32), &mine[had..]);
        let acknowledged = backend_conn.peer.acknowledged.wrapping_sub(client_conn.up.delta_at_end());
        if !client_conn.framing.note(buffers, chunks, fresh, acknowledged) {
            cx.statistics.http.unrecorded += 1;
            return false;
        }
    }
    true
}

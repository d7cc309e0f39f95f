//! What a client sends.

use super::delivery::trim;
use super::read::{USELESS, store};
use crate::flow::Direction;
use crate::frame::{Frame, FrameIo};
use crate::l7::splice::state::entry::{BackendConnState, ClientConn, ClientConnState};
use crate::l7::splice::state::exchange::{Inadmissible, Message};
use crate::l7::splice::tcp::numbers::{before, beyond, earlier, follow, later};
use crate::l7::splice::tcp::segment::Segment;
use crate::l7::splice::{Context, End, Refused, Splices};
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
        let reports = segment.payload == 0 && !segment.has(FIN) && at.payload - at.l4 > tcp::HEADER;
        // A number before that is a keep-alive probe, and ours to answer.
        let is_probe = |client_conn: &ClientConn| before(segment.sequence, client_conn.peer.expected);
        let sent = self
            .client_conns
            .get(position)
            .filter(|client_conn| reports && client_conn.state == ClientConnState::Reading && !is_probe(client_conn))
            .and_then(|client_conn| {
                let backend_conn = self.backend_conns.get(client_conn.backend_conn.get()?)?;
                (backend_conn.state == BackendConnState::Attached && client_conn.peer.sack && backend_conn.peer.sack)
                    .then_some(backend_conn.peer.sent)
            });
        if let Some(sent) = sent {
            return self.pass(cx, frame, at, segment, (position, Direction::FromClient), (sent, ACK));
        }
        if reports {
            self.report(cx, frame.bytes(), at, position);
        }
        self.take(cx, frame, at, segment, position);
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
        self.catch_up(position);
        self.conclude(cx, position);
        let Some(client_conn) = self.client_conns.get_mut(position) else { return cx.impossible() };
        if client_conn.state != ClientConnState::Spliced {
            self.behind(cx, frame, at, segment, position);
            return self.settle_backend(cx, position);
        }
        if segment.payload == 0 && !segment.has(FIN) {
            let is_probe = before(segment.sequence, client_conn.exchange.request_floor);
            // A number beyond the request's end is that of requests that wait here.
            let number = match client_conn.exchange.request_end.get() {
                Some(end) if before(end, segment.sequence) => end,
                _ => segment.sequence,
            };
            let mut sequence = number.wrapping_add(client_conn.up.delta_at_end());
            if matches!(client_conn.exchange.request.get(), Message::Chunked(_))
                && let Some(backend_conn) =
                    client_conn.backend_conn.get().and_then(|backend_conn| self.backend_conns.get(backend_conn))
            {
                // What of a body that is read in order lies behind a gap has not gone on.
                sequence = earlier(sequence, backend_conn.peer.sent);
            }
            if is_probe {
                return self.acknowledge(cx, End::Client(position));
            }
            if client_conn.peer.holds(segment.acknowledgement) {
                return;
            }
            client_conn.down.settle(segment.acknowledgement);
            self.pass(cx, frame, at, segment, (position, Direction::FromClient), (sequence, ACK));
            if self.client_conns.get(position).is_some_and(|client_conn| client_conn.is_clamped) {
                // It may have acknowledged what of ours the engine could not be offered the body for.
                self.offer(cx, position);
            }
            return self.conclude(cx, position);
        }
        client_conn.down.settle(client_conn.peer.acknowledged);
        self.body_upward(cx, frame, at, segment, position);
    }

    /// A request's body that the engine has forwarded is over once the backend has acknowledged its end. Of a response that it
    /// carries, the client's acknowledgements tell how far it has come, if they come by here.
    fn catch_up(&mut self, position: u32) {
        let Some(client_conn) = self.client_conns.get_mut(position) else { return };
        let Some(backend_conn) =
            client_conn.backend_conn.get().and_then(|backend_conn| self.backend_conns.get_mut(backend_conn))
        else {
            return;
        };
        if client_conn.is_offloaded_down_only() {
            client_conn.catch_up_downwards(backend_conn);
        }
        let exchange = &mut client_conn.exchange;
        if let (Message::Bytes { .. }, Some(end)) = (exchange.request.get(), exchange.request.end(None))
            && !before(backend_conn.peer.acknowledged, end.wrapping_add(client_conn.up.delta_at_end()))
        {
            exchange.request.set(Message::Done);
            exchange.request_end = Some(end).into();
            client_conn.peer.expected = later(client_conn.peer.expected, end);
            client_conn.peer.highest = later(client_conn.peer.highest, end);
        }
    }

    /// A part of a request's body, the next request, the client's FIN, or any of these together.
    fn body_upward<IO: FrameIo>(
        &mut self,
        cx: &mut Context<'_, IO>,
        mut frame: IO::Frame,
        at: &Transport,
        segment: &Segment,
        position: u32,
    ) {
        let Some(client_conn) = self.client_conns.get_mut(position) else { return cx.impossible() };
        let had_before = client_conn.peer.expected;
        let exchange = &mut client_conn.exchange;
        let skip = beyond(segment.sequence, exchange.request_floor).min(segment.payload);
        let start = segment.sequence.wrapping_add(skip);
        let payload = frame.bytes().get(at.payload..at.end).unwrap_or_default();
        let mine = &payload[skip as usize..];
        let had = (beyond(start, client_conn.peer.expected) as usize).min(mine.len());
        if !self.agrees_with_framing(cx, position, start, (mine, had)) {
            return self.acknowledge(cx, End::Client(position));
        }
        let Some(client_conn) = self.client_conns.get_mut(position) else { return cx.impossible() };
        let exchange = &mut client_conn.exchange;
        let admitted = exchange.request.admit(&mut exchange.request_end, &mut client_conn.peer.expected, start, mine);
        let admitted = match admitted {
            Ok(admitted) => admitted,
            Err(Inadmissible::OutOfOrder) => {
                cx.statistics.http.out_of_order += 1;
                return self.acknowledge(cx, End::Client(position));
            }
            Err(Inadmissible::Broken(why)) => {
                let (status, why) = Refused::of_chunks(why);
                if !exchange.has_begun {
                    return self.refuse(cx, position, status, why);
                }
                cx.statistics.http.refused[why as usize] += 1;
                return self.abandon(cx, position);
            }
        };
        client_conn.peer.highest = later(client_conn.peer.highest, start.wrapping_add(admitted as u32));
        follow(&mut client_conn.exchange.request_floor, client_conn.peer.highest);
        let exchange = &client_conn.exchange;
        let rest = admitted < mine.len();
        let ends = segment.has(FIN) && !rest;
        let is_endless = matches!(exchange.request.get(), Message::Endless);
        let is_done = exchange.request.is_done();
        let out = start.wrapping_add(client_conn.up.delta_at_end());
        let mut flags = ACK | segment.flags & PSH;
        if ends && is_endless {
            flags |= FIN;
            client_conn.peer.has_closed = true;
            if let Some(backend_conn) =
                client_conn.backend_conn.get().and_then(|backend_conn| self.backend_conns.get_mut(backend_conn))
            {
                backend_conn.peer.was_closed = true;
            }
        }
        if rest {
            let next = start.wrapping_add(admitted as u32);
            self.store_behind(position, next, &mine[admitted..]);
        }
        let Some(client_conn) = self.client_conns.get_mut(position) else { return cx.impossible() };
        if ends && is_done && segment.payload_end() == client_conn.peer.expected {
            // Acknowledged when the exchange is over, with all that came before it.
            client_conn.peer.has_closed = true;
            client_conn.peer.expected = client_conn.peer.expected.wrapping_add(1);
            client_conn.exchange.close_client |= client_conn.waiting() == 0;
            // The acknowledgement of the response's end has to come by here.
            self.remove_rules(cx, position);
        } else if ends && !is_done && !is_endless {
            // At the body's end it has overtaken the rest of it, and comes again; before that, there will be no rest.
            let exchange = &client_conn.exchange;
            if exchange.request.end(exchange.request_end.get()).is_none_or(|end| before(segment.payload_end(), end)) {
                return self.abandon(cx, position);
            }
        }
        let Some(client_conn) = self.client_conns.get_mut(position) else { return cx.impossible() };
        if admitted == 0 && flags & FIN == 0 {
            // Sent again by a client that does not know that it was received, or its way to ask whether we are there
            // (RFC 9293, 3.8.4), or behind something that is missing: it gets to know where we are.
            let asks = client_conn.peer.expected == had_before;
            return self.acknowledgement_upward(cx, frame, at, segment, position, asks);
        }
        if client_conn.peer.expected != had_before {
            // What comes again is no progress.
            client_conn.deadline =
                client_conn.deadline.max(cx.now + crate::l7::splice::timers::body_timeout(cx.snapshot, client_conn));
        }
        let cut = (skip as usize, skip as usize + admitted);
        let Some((at, segment)) = trim(&mut frame, at, segment, cut) else { return cx.drop(Drop::NoFrame) };
        self.pass(cx, frame, &at, &segment, (position, Direction::FromClient), (out, flags));
        if flags & FIN != 0 {
            self.remove_rules(cx, position);
        } else {
            self.offer(cx, position);
        }
        self.conclude(cx, position);
    }

    /// Whether bytes of a request agree with what was read of its framing before, and can be remembered if they are new.
    /// `mine` begins with number `start`, and the first `had` of its bytes came before. Bytes that differ may be a question
    /// whether we are there, with a byte that means nothing (RFC 9293, 3.8.4).
    fn agrees_with_framing<IO: FrameIo>(
        &mut self,
        cx: &mut Context<'_, IO>,
        position: u32,
        start: u32,
        (mine, had): (&[u8], usize),
    ) -> bool {
        let Splices { client_conns, backend_conns, buffers, .. } = self;
        let Some(client_conn) = client_conns.get_mut(position) else { return cx.impossible() };
        if !client_conn.framing.agrees(buffers, start, &mine[..had]) {
            cx.drop(USELESS);
            return false;
        }
        if let (Message::Chunked(chunks), false) =
            (client_conn.exchange.request.get(), before(client_conn.peer.expected, start))
        {
            let fresh = (start.wrapping_add(had as u32), &mine[had..]);
            let backend_conn = client_conn.backend_conn.get().and_then(|backend_conn| backend_conns.get(backend_conn));
            let acknowledged = backend_conn.map_or(start, |backend_conn| {
                backend_conn.peer.acknowledged.wrapping_sub(client_conn.up.delta_at_end())
            });
            if !client_conn.framing.note(buffers, chunks, fresh, acknowledged) {
                cx.statistics.http.unrecorded += 1;
                return false;
            }
        }
        true
    }

    /// Stores what lies behind a request, from number `next` on, if it is the next in order: the next request, or a part of
    /// one, to be used when this exchange is over.
    fn store_behind(&mut self, position: u32, next: u32, bytes: &[u8]) {
        let Splices { client_conns, buffers, .. } = self;
        let Some(client_conn) = client_conns.get_mut(position) else { return };
        let had = beyond(next, client_conn.peer.expected) as usize;
        if client_conn.exchange.request.is_done() && next.wrapping_add(had as u32) == client_conn.peer.expected {
            let stored = store(buffers, client_conn, bytes.get(had..).unwrap_or_default());
            client_conn.peer.expected = client_conn.peer.expected.wrapping_add(stored as u32);
            client_conn.peer.highest = later(client_conn.peer.highest, client_conn.peer.expected);
        }
    }

    /// A segment with no payload left to forward: its acknowledgement may still be news to the backend.
    fn acknowledgement_upward<IO: FrameIo>(
        &mut self,
        cx: &mut Context<'_, IO>,
        mut frame: IO::Frame,
        at: &Transport,
        segment: &Segment,
        position: u32,
        asks: bool,
    ) {
        let Some(client_conn) = self.client_conns.get(position) else { return cx.impossible() };
        let backend_conn = client_conn.backend_conn.get().and_then(|backend_conn| self.backend_conns.get(backend_conn));
        let translated = client_conn.down.acknowledgement(segment.acknowledgement);
        // That there is room again where there was none is said once, maybe with what is ours to keep: a FIN.
        let opens = |shown: u16| shown == 0 && segment.window > 0;
        let is_news = backend_conn
            .is_some_and(|backend_conn| before(backend_conn.peer.told, translated) || opens(backend_conn.peer.shown));
        if is_news && !client_conn.peer.holds(segment.acknowledgement) {
            let sent = client_conn
                .backend_conn
                .get()
                .and_then(|backend_conn| self.backend_conns.get(backend_conn))
                .map_or(0, |backend_conn| backend_conn.peer.sent);
            let Some((at, segment)) = trim(&mut frame, at, segment, (0, 0)) else { return cx.drop(Drop::NoFrame) };
            self.pass(cx, frame, &at, &segment, (position, Direction::FromClient), (sent, ACK));
            return self.conclude(cx, position);
        }
        if asks {
            self.acknowledge(cx, End::Client(position));
        }
        self.conclude(cx, position);
    }
}

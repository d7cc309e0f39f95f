//! The dispatcher: which stage a segment goes to, by the state of its connection. What time brings is dispatched by
//! `timers.rs`.

use super::{Context, End, Splices};
use crate::flow::Direction;
use crate::frame::{Frame, FrameIo};
use crate::l7::splice::stages::delivery::Arrived;
use crate::l7::splice::stages::read::USELESS;
use crate::l7::splice::state::entry::{BackendConnState, ClientConnState};
use crate::l7::splice::tcp::numbers::before;
use crate::l7::splice::tcp::segment::Segment;
use crate::wire::Transport;
use crate::wire::tcp::{ACK, RST, SYN};
use crate::worker::Drop;

/// How far from what a client has sent a number may be that is not of an older connection between the same ends.
const NEAR: u32 = 1 << 24;

/// [`NEAR`] while the engine carries packets that software does not see: a guard's longest range more.
const NEAR_OFFLOADED: u32 = NEAR + (1 << 30);

impl Splices {
    /// Handles a segment of the client or backend connection that [`Splices::find`] has found.
    pub(crate) fn handle_segment<IO: FrameIo>(
        &mut self,
        cx: &mut Context<'_, IO>,
        frame: IO::Frame,
        at: &Transport,
        (position, direction): (u32, Direction),
    ) {
        match direction {
            Direction::FromClient => self.handle_client(cx, frame, at, position),
            Direction::FromBackend => self.handle_backend(cx, frame, at, position),
        }
    }

    /// A packet of a client.
    fn handle_client<IO: FrameIo>(
        &mut self,
        cx: &mut Context<'_, IO>,
        frame: IO::Frame,
        at: &Transport,
        position: u32,
    ) {
        let segment = Segment::of(frame.bytes(), at);
        let Some(client_conn) = self.client_conns.get(position) else { return cx.drop(USELESS) };
        if at.ttl <= 1 {
            return cx.drop(Drop::TimeToLive);
        }
        let service = client_conn.service;
        if segment.has(SYN) {
            return self.new_flow(cx, frame, at, service);
        }
        let resets = client_conn.state == ClientConnState::Resetting;
        if client_conn.is_unknown {
            return self.handle_unknown(cx, frame, at, &segment, position);
        }
        let near = if client_conn.uploads_by_engine() || resets { NEAR_OFFLOADED } else { NEAR };
        let apart = segment.sequence.wrapping_sub(client_conn.peer.highest).wrapping_add(near);
        let is_near = apart <= 2 * near;
        if segment.has(RST) {
            return if is_near { self.reset_by_client(cx, &segment, position) } else { cx.drop(USELESS) };
        }
        if !segment.has(ACK) {
            return cx.drop(USELESS);
        }
        // The number that the ends of a new connection agree on may be near the old one's: the client closed, and soon took
        // the same port again (RFC 6528: its numbers go on with a clock).
        let peer = &client_conn.peer;
        let is_known = !before(segment.acknowledgement, peer.acknowledged.wrapping_sub(NEAR))
            && (client_conn.pair.held() != 0 || !before(peer.sent, segment.acknowledgement));
        if segment.payload > 0 && (peer.has_closed || resets || !is_known) && self.begins(cx, at, &segment, position) {
            return self.another(cx, frame, at, &segment, position);
        }
        let Some(client_conn) = self.client_conns.get_mut(position) else { return cx.impossible() };
        let before = (client_conn.peer.acknowledged, client_conn.peer.window);
        let heard = match is_near {
            true => client_conn.peer.hear(cx.now, &segment, &mut self.buffers),
            false => None,
        };
        let Some(heard) = heard else { return self.another(cx, frame, at, &segment, position) };
        client_conn.has_heard(cx.now, cx.snapshot, before);
        client_conn.last_seen = cx.now;
        let state = client_conn.state;
        self.send_more(cx, End::Client(position), heard);
        match state {
            ClientConnState::Resetting if !self.has_its_response(cx, &segment, position) => {
                self.answer_with_reset(cx, &segment, position)
            }
            ClientConnState::Spliced => self.upward(cx, frame, at, &segment, position),
            _ => self.behind(cx, frame, at, &segment, position),
        }
    }

    /// A packet of a client that is to be reset and whose numbers are not known.
    fn handle_unknown<IO: FrameIo>(
        &mut self,
        cx: &mut Context<'_, IO>,
        frame: IO::Frame,
        at: &Transport,
        segment: &Segment,
        position: u32,
    ) {
        match (segment.has(RST), segment.has(ACK)) {
            (true, _) => self.remove_client(cx, position),
            // The acknowledgement that ends its handshake is dropped, and the data behind that begins it.
            (_, true) if self.is_of_another(cx, at, segment, position) => {
                self.another(cx, frame, at, segment, position)
            }
            (_, true) => self.answer_with_reset(cx, segment, position),
            _ => cx.drop(USELESS),
        }
    }

    /// A packet of a backend.
    fn handle_backend<IO: FrameIo>(
        &mut self,
        cx: &mut Context<'_, IO>,
        frame: IO::Frame,
        at: &Transport,
        backend_conn: u32,
    ) {
        let segment = Segment::of(frame.bytes(), at);
        let Some(entry) = self.backend_conns.get(backend_conn) else { return cx.drop(USELESS) };
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
            return match entry.peer.owned.as_ref() {
                Some(_) => self.send_all(cx, End::Backend(backend_conn)),
                None => self.acknowledge(cx, End::Backend(backend_conn)),
            };
        }
        let spliced = entry.client_conn.get().filter(|&client_conn| {
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
}

//! A request on its way from a client's input to what is ours to send to its backend.

use super::connect::facts;
use crate::frame::FrameIo;
use crate::l7::body::{Chunks, Length};
use crate::l7::config::Kind;
use crate::l7::edit;
use crate::l7::head::{self, Parsed};
use crate::l7::proxy_protocol;
use crate::l7::splice::state::buffers::Buffer;
use crate::l7::splice::state::entry::ClientConn;
use crate::l7::splice::state::exchange::Message;
use crate::l7::splice::tcp::numbers::before;
use crate::l7::splice::{Context, HEAD_ROOM, REMEMBERED_MAX, Refused, Splices};

/// A request made ready to be sent: so many bytes in the scratch buffer, and what is still to come of it.
pub(in crate::l7::splice) struct Ready {
    /// Bytes of the new head, with what stands before it.
    pub(in crate::l7::splice) written: usize,
    /// Bytes of input that it stands for.
    pub(in crate::l7::splice) used: usize,
    /// Of the input behind it, so many go with it as they are.
    pub(in crate::l7::splice) body: usize,
    pub(in crate::l7::splice) request: Message,
    /// More of it is there, and has no room.
    pub(in crate::l7::splice) is_cut: bool,
}

impl Splices {
    /// Makes a request that is ready one of ours to send: where it lies, unless there is another behind it. What has no room
    /// then is forgotten, to be sent again. `None`: the client was told that it was received.
    pub(in crate::l7::splice) fn own_request(&mut self, position: u32, ready: &Ready) -> Option<Buffer> {
        let Splices { client_conns, buffers, scratch, .. } = self;
        let client_conn = client_conns.get_mut(position)?;
        let (taken, written) = (ready.used + ready.body, &scratch[..ready.written]);
        let behind = client_conn.waiting().checked_sub(taken)?;
        if behind > 0
            && !ready.is_cut
            && let Some(mut owned) = buffers.take(written.len() + ready.body)
        {
            let input = client_conn.input.as_mut()?;
            buffers.append(&mut owned, written);
            buffers.copy(input, ready.used..taken, &mut owned);
            buffers.consume(input, taken);
            return Some(owned);
        }
        if behind > 0 && !client_conn.forget_behind(taken as u32) {
            return None;
        }
        let mut owned = client_conn.input.take()?;
        buffers.truncate(&mut owned, taken);
        buffers.replace(&mut owned, ready.used, written);
        Some(owned)
    }

    /// Writes the head that goes on into the scratch buffer, and finds out how much goes with it. If it cannot, or the body's
    /// framing is broken: the status that the client gets.
    pub(in crate::l7::splice) fn prepare<IO: FrameIo>(
        &mut self,
        cx: &Context<'_, IO>,
        position: u32,
    ) -> Result<Ready, (u16, Refused)> {
        const BAD: (u16, Refused) = (400, Refused::Malformed);
        let (written, used, length) = self.write_request(cx, position).ok_or(BAD)?;
        let Splices { client_conns, buffers, .. } = self;
        let client_conn = client_conns.get_mut(position).ok_or(BAD)?;
        let start = client_conn.input_start().wrapping_add(used as u32);
        let input = client_conn.input.as_mut().ok_or(BAD)?;
        let there = input.len() - used;
        let room = buffers.grow(input, written + there).checked_sub(written).ok_or((503, Refused::NoRoom))?;
        let rest = &buffers.bytes(input)[used..used + there.min(room)];
        let (body, request) = match (length, cx.kind(client_conn.service)) {
            // All that there is goes with it.
            (Length::UntilClose, _) => (rest.len(), Message::Endless),
            (Length::Chunked, Kind::Http(http)) => {
                let mut chunks = Chunks::at_most(http.limits.body_bound());
                let fed = chunks.feed(rest).map_err(Refused::of_chunks)?;
                (fed, if chunks.is_done() { Message::Done } else { Message::Chunked(chunks) })
            }
            (Length::Bytes(length), _) => {
                let body = usize::try_from(length).unwrap_or(usize::MAX).min(rest.len());
                let left = length - body as u64;
                let next = start.wrapping_add(body as u32);
                (body, if left == 0 { Message::Done } else { Message::Bytes { next, left } })
            }
            (other, _) => (0, Message::of(other, start)),
        };
        let is_cut = body == rest.len() && body < there && !request.is_done();
        Ok(Ready { written, used, body, request, is_cut })
    }

    /// Writes the head that goes on into the scratch buffer: its bytes, those it stands for, and its body's length; of a TLS
    /// connection, everything is body. `None`: it cannot.
    fn write_request<IO: FrameIo>(&mut self, cx: &Context<'_, IO>, position: u32) -> Option<(usize, usize, Length)> {
        let Splices { client_conns, backend_conns, buffers, scratch, configurations, remembered, .. } = self;
        let client_conn = client_conns.get(position)?;
        let backend_conn = client_conn.backend_conn.get().and_then(|backend_conn| backend_conns.get(backend_conn))?;
        let bytes = client_conn.input.as_ref().map_or(&[][..], |input| buffers.bytes(input));
        let is_fresh = backend_conn.requests == 0;
        let mut preface = |version| match version {
            Some(version) if is_fresh => {
                proxy_protocol::write(scratch, version, client_conn.key.source, client_conn.key.destination).ok()
            }
            _ => Some(0),
        };
        match cx.kind(client_conn.service) {
            Kind::Http(http) => {
                let before = preface(http.proxy_protocol)?;
                let head_of = (position, client_conns.generation(position), client_conn.requests);
                let request =
                    match remembered[position as usize % REMEMBERED_MAX].as_ref().filter(|(of, _)| *of == head_of) {
                        Some((_, places)) => {
                            let request = places.in_bytes(bytes)?;
                            debug_assert!(request.is_what_is_read(bytes, &http.limits.head_bounds()));
                            request
                        }
                        // Another client's request was read while this one waited for its backend.
                        None => match head::request(bytes, &http.limits.head_bounds()) {
                            Ok(Parsed::Complete(request)) => request,
                            _ => return None,
                        },
                    };
                let (_, route) = configurations.of(cx.snapshot, client_conn)?;
                let facts = facts(cx, client_conn, None);
                let out = &mut scratch[before..before + HEAD_ROOM];
                let written = before + edit::request_head(out, &request, http, route?, &facts).ok()?;
                Some((written, request.bytes.len(), request.body))
            }
            Kind::Tls(tls) => Some((preface(tls.proxy_protocol)?, 0, Length::UntilClose)),
            Kind::Forward | Kind::Group => None,
        }
    }
}

impl ClientConn {
    /// Of what waits, only the first `kept` bytes are to be known: the rest is sent again, FIN behind it too. `false`, and
    /// nothing has changed: the client was told that it was received.
    fn forget_behind(&mut self, kept: u32) -> bool {
        let end = self.peer.expected.wrapping_sub(u32::from(self.peer.has_closed));
        let expected = end.wrapping_sub(self.waiting() as u32).wrapping_add(kept);
        let may = !before(expected, self.peer.told);
        if may {
            self.peer.expected = expected;
            self.peer.has_closed = false;
        }
        may
    }
}

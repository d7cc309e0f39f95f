//! A request on its way from a client's input to what is ours to send to its backend.

use super::connect::facts;
use crate::frame::FrameIo;
use crate::l7::body::{Chunks, Length};
use crate::l7::config::{Http, Kind};
use crate::l7::edit;
use crate::l7::head::{self, ParseStatus, RememberedRequest, Request};
use crate::l7::proxy_protocol;
use crate::l7::splice::state::buffers::{Buffer, Buffers};
use crate::l7::splice::state::entry::{BackendConn, ClientConn};
use crate::l7::splice::state::exchange::Message;
use crate::l7::splice::tcp::numbers::before;
use crate::l7::splice::{Context, HEAD_ROOM, Refused};
use crate::l7::trace::{IdMaker, TraceContext};
use crate::record::IS_KEPT;

/// A request made ready to be sent: so many bytes in the scratch buffer, and what is still to come of it.
struct Ready {
    /// Bytes of the new head, with what stands before it.
    written: usize,
    /// Bytes of input that it stands for.
    used: usize,
    /// Of the input behind it, so many go with it as they are.
    body: usize,
    request: Message,
    /// More of it is there, and has no room.
    is_cut: bool,
}

/// What a request is made ready with.
pub(in crate::l7::splice) struct RequestWriter<'a> {
    pub(in crate::l7::splice) buffers: &'a mut Buffers,
    pub(in crate::l7::splice) scratch: &'a mut [u8],
    pub(in crate::l7::splice) ids: &'a IdMaker,
    /// Its head, if it is remembered: where its parts are in the client connection's input. The configuration is still the
    /// one that it was read under.
    pub(in crate::l7::splice) remembered: Option<&'a RememberedRequest>,
}

impl RequestWriter<'_> {
    /// Makes the request in a client connection's input one of ours to send. Returns the bytes that its backend is sent, how
    /// many of the client's they stand for, and what is still to come of it. If it cannot be sent, or its body's framing is
    /// broken: the status that the client gets.
    pub(in crate::l7::splice) fn prepare<IO: FrameIo>(
        &mut self,
        cx: &Context<'_, IO>,
        client_conn: &mut ClientConn,
        backend_conn: &BackendConn,
    ) -> Result<(Buffer, u32, Message), (u16, Refused)> {
        let ready = self.rewrite(cx, client_conn, backend_conn)?;
        let taken = (ready.used + ready.body) as u32;
        let owned = self.own(client_conn, &ready).ok_or((503, Refused::NoRoom))?;
        let is_whole = matches!(ready.request, Message::Done | Message::Endless);
        if !is_whole && client_conn.peer.has_closed {
            // The rest of its body will never come.
            self.buffers.release(owned);
            return Err((400, Refused::Malformed));
        }
        Ok((owned, taken, ready.request))
    }

    /// Makes a request that is ready one of ours to send: where it lies, unless there is another behind it. What has no room
    /// then is forgotten, to be sent again. `None`: the client was told that it was received.
    fn own(&mut self, client_conn: &mut ClientConn, ready: &Ready) -> Option<Buffer> {
        let RequestWriter { buffers, scratch, .. } = self;
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
        // A client of a TCP service may have sent nothing.
        let mut owned = client_conn.input.take().or_else(|| buffers.take(ready.written))?;
        buffers.truncate(&mut owned, taken);
        buffers.replace(&mut owned, ready.used, written);
        Some(owned)
    }

    /// Writes the head that goes on into the scratch buffer, and finds out how much goes with it.
    fn rewrite<IO: FrameIo>(
        &mut self,
        cx: &Context<'_, IO>,
        client_conn: &mut ClientConn,
        backend_conn: &BackendConn,
    ) -> Result<Ready, (u16, Refused)> {
        const BAD: (u16, Refused) = (400, Refused::Malformed);
        let (written, used, length) = self.write(cx, client_conn, backend_conn).ok_or(BAD)?;
        let start = client_conn.input_start().wrapping_add(used as u32);
        let Some(input) = client_conn.input.as_mut() else {
            let is_plain = cx.kind(client_conn.service).is_plain();
            let ready = Ready { written, used, body: 0, request: Message::Endless, is_cut: false };
            return if is_plain { Ok(ready) } else { Err(BAD) };
        };
        let there = input.len() - used;
        let room = self.buffers.grow(input, written + there).checked_sub(written).ok_or((503, Refused::NoRoom))?;
        let rest = &self.buffers.bytes(input)[used..used + there.min(room)];
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
    fn write<IO: FrameIo>(
        &mut self,
        cx: &Context<'_, IO>,
        client_conn: &ClientConn,
        backend_conn: &BackendConn,
    ) -> Option<(usize, usize, Length)> {
        let RequestWriter { buffers, scratch, ids, remembered } = self;
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
                let out = &mut scratch[before..before + HEAD_ROOM];
                // Neither request is moved: its fields take a kilobyte.
                let (written, used, length) = match remembered {
                    Some(places) => {
                        let again = places.in_bytes(bytes);
                        let request = again.as_ref()?;
                        debug_assert!(request.is_what_is_read(bytes, &http.limits.head_bounds()));
                        write_head(cx, out, (http, request), (client_conn, ids))?
                    }
                    // Another client's request was read while this one waited for its backend.
                    None => {
                        let anew = head::request(bytes, &http.limits.head_bounds());
                        let Ok(ParseStatus::Complete(request)) = &anew else { return None };
                        write_head(cx, out, (http, request), (client_conn, ids))?
                    }
                };
                Some((before + written, used, length))
            }
            Kind::Tls(tls) => Some((preface(tls.proxy_protocol)?, 0, Length::UntilClose)),
            Kind::Forward | Kind::Terminated(_) | Kind::Group => None,
        }
    }
}

/// Writes the head that goes on: its bytes, those it stands for, and its body's length. `None`: it cannot.
fn write_head<IO: FrameIo>(
    cx: &Context<'_, IO>,
    out: &mut [u8],
    (http, request): (&Http, &Request<'_>),
    (client_conn, ids): (&ClientConn, &IdMaker),
) -> Option<(usize, usize, Length)> {
    let exchange = &client_conn.exchange;
    let route = http.routes.get(usize::from(exchange.route))?;
    let trace = (IS_KEPT && exchange.trace != 0)
        .then(|| TraceContext::of(http, request, &client_conn.key.source.address, &ids.ids(exchange.trace)));
    let facts = facts(cx, client_conn, (None, trace.as_ref()));
    let written = edit::request_head(out, request, http, route, &facts).ok()?;
    Some((written, request.bytes.len(), request.body))
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

//! The last response of a client's connection has Hairpin's FIN behind its last byte: the client has one packet less to
//! take, and does not come to close first, which would leave its port resting.
//!
//! If the response is short and all there in one segment, Hairpin takes it in, as it does with heads, and delivers it
//! itself; the backend is others' at once. Of others FIN goes with the last segment that the backend has sent, and is ours
//! to send again once all before it is acknowledged.

use super::delivery::Arrived;
use super::remove::Detach;
use crate::flow::Direction;
use crate::frame::{Frame, FrameIo};
use crate::l7::body::Length;
use crate::l7::splice::state::buffers::SIZES;
use crate::l7::splice::state::entry::{BackendConn, ClientConn};
use crate::l7::splice::state::exchange::{Exchange, Message};
use crate::l7::splice::tcp::numbers::{beyond, later};
use crate::l7::splice::tcp::segment::Segment;
use crate::l7::splice::{Context, Splices};
use crate::offload::OffloadState;
use crate::wire::tcp::FIN;
use crate::worker::volume;

/// Head and body together are no longer than that, so that any connection's buffer will do.
const BYTES_MAX: usize = SIZES[0];

/// A response's head, and what is known of its body.
#[derive(Clone, Copy, Debug)]
pub(in crate::l7::splice) struct Head {
    /// Bytes of it, as the backend has sent it, behind so many bytes of the segment that are not of it.
    pub(in crate::l7::splice) length: usize,
    pub(in crate::l7::splice) skip: usize,
    /// Bytes of the one that is in the scratch buffer in its place; `None`: it stays as it is.
    pub(in crate::l7::splice) written: Option<usize>,
    pub(in crate::l7::splice) body: Length,
    /// The backend's connection ends with it.
    pub(in crate::l7::splice) closes: bool,
    pub(in crate::l7::splice) status: u16,
}

/// Whether the segment that has this head is a client's last response as a whole, and nothing else is to be waited for.
pub(in crate::l7::splice) fn is_last(
    client_conn: &ClientConn,
    backend_conn: &BackendConn,
    segment: &Segment,
    head: &Head,
) -> bool {
    let exchange = &client_conn.exchange;
    if !exchange.close_client {
        return false;
    }
    let body = segment.payload as usize - head.skip - head.length;
    let is_whole = match head.body {
        Length::None => body == 0,
        Length::Bytes(length) => length == body as u64,
        _ => false,
    };
    let start = segment.sequence.wrapping_add(head.skip as u32).wrapping_add(client_conn.down.delta_at_end());
    let length = head.written.unwrap_or(head.length) + body;
    let takes = beyond(start, client_conn.peer.acknowledged.wrapping_add(client_conn.peer.window)) as usize;
    let owns = client_conn.peer.owned.is_some() || backend_conn.peer.owned.is_some();
    is_whole
        && client_conn.is_request_received(backend_conn)
        && !owns
        && client_conn.waiting() == 0
        && client_conn.pair.state() == OffloadState::Software
        && start == client_conn.peer.sent
        && !segment.has(FIN)
        && length <= BYTES_MAX.min(takes)
}

impl Splices {
    /// Takes a response in for which [`is_last`] holds, and delivers it. `false`: there is no buffer for it, and nothing has
    /// changed.
    pub(in crate::l7::splice) fn take_last<IO: FrameIo>(
        &mut self,
        cx: &mut Context<'_, IO>,
        arrived: &Arrived<'_, IO::Frame>,
        head: &Head,
    ) -> bool {
        let Arrived { frame, at, position, backend_conn, segment } = arrived;
        let payload = frame.bytes().get(at.payload + head.skip..at.end).unwrap_or_default();
        let Some((old, body)) = payload.split_at_checked(head.length) else { return false };
        let Splices { client_conns, backend_conns, buffers, scratch, stamps, .. } = self;
        let (Some(client_conn), Some(entry)) = (client_conns.get_mut(*position), backend_conns.get_mut(*backend_conn))
        else {
            return false;
        };
        let written = head.written.map_or(old, |written| &scratch[..written]);
        let Some(mut buffer) = buffers.take(written.len() + body.len()) else { return false };
        buffers.append(&mut buffer, written);
        buffers.append(&mut buffer, body);
        let number = entry.number;
        entry.peer.expected = segment.payload_end();
        entry.peer.highest = later(entry.peer.highest, entry.peer.expected);
        if let Some(end) = client_conn.exchange.request_end.get() {
            client_conn.peer.expected = later(client_conn.peer.expected, end);
            client_conn.peer.highest = later(client_conn.peer.highest, client_conn.peer.expected);
        }
        let down = Direction::FromBackend as usize;
        let (packets, bytes) = volume(frame.meta(), at);
        client_conn.forwarded[down].add(packets, bytes);
        if let Some(backend) = cx.statistics.backends.get_mut(usize::from(number)) {
            backend.software[down].add(packets, bytes);
        }
        let closes = head.closes || client_conn.exchange.close_backend;
        Self::answered(cx, (stamps, buffers), (*position, client_conn), head.body, head.status);
        let exchange = client_conn.exchange.clone();
        self.detach(cx, *position, if closes { Detach::Close } else { Detach::Keep });
        self.deliver(cx, *position, buffer, true);
        if let Some(client_conn) = self.client_conns.get_mut(*position) {
            // All of it has come; what remains is that the client gets it.
            client_conn.exchange = Exchange {
                request: Message::Done.into(),
                response: Message::Done.into(),
                response_end: None.into(),
                close_client: true,
                has_begun: true,
                ..exchange
            };
        }
        true
    }
}

//! Responses of ours: errors, redirects and texts that the configuration gives, and short last responses that are delivered
//! whole.

use super::read::CLOSING_TIMEOUT;
use super::remove::Detach;
use crate::frame::FrameIo;
use crate::l7::config::Kind;
use crate::l7::head::Method;
use crate::l7::reply;
use crate::l7::reply::Reply;
use crate::l7::splice::state::buffers::Buffer;
use crate::l7::splice::state::entry::ClientConnState;
use crate::l7::splice::state::exchange::Exchange;
use crate::l7::splice::state::peer::Owned;
use crate::l7::splice::{Context, End, HEAD_ROOM, Refused, Splices};

impl Splices {
    /// Answers the request at hand with an error and closes: what follows it cannot be told from its body.
    pub(in crate::l7::splice) fn refuse<IO: FrameIo>(
        &mut self,
        cx: &mut Context<'_, IO>,
        position: u32,
        status: u16,
        why: Refused,
    ) {
        cx.statistics.http.refused[why as usize] += 1;
        let Some(client_conn) = self.client_conns.get(position) else { return cx.impossible() };
        if !matches!(cx.kind(client_conn.service), Kind::Http(_)) {
            return self.abandon(cx, position);
        }
        let head_only = client_conn.exchange.method == Method::Head && client_conn.state != ClientConnState::Reading;
        let retry_after_s = reply::retry_after_s(status);
        let (date, location) = (self.date, None);
        let answer =
            Reply { status, date, retry_after_s, location, challenge: None, body: &[], head_only, close: true };
        match reply::write(&mut self.scratch[..HEAD_ROOM], &answer) {
            Ok(length) => {
                let all = client_conn.waiting();
                self.consume(position, all);
                self.reply(cx, position, length, true, (status, Some(why)));
            }
            Err(_) => self.abandon(cx, position),
        }
    }

    /// Sends a response of ours: the first `length` bytes of the scratch buffer.
    pub(in crate::l7::splice) fn reply<IO: FrameIo>(
        &mut self,
        cx: &mut Context<'_, IO>,
        position: u32,
        length: usize,
        close: bool,
        (status, why): (u16, Option<Refused>),
    ) {
        // Between two requests its backend connection is in the middle of nothing.
        let spliced =
            self.client_conns.get(position).is_some_and(|client_conn| client_conn.state == ClientConnState::Spliced);
        self.detach(cx, position, if close && spliced { Detach::Reset } else { Detach::Keep });
        let Some(mut buffer) = self.buffers.take(length) else { return self.abandon(cx, position) };
        self.buffers.append(&mut buffer, &self.scratch[..length]);
        if let Some(client_conn) = self.client_conns.get_mut(position) {
            cx.count_reply(client_conn.service, status);
            cx.record_answer(client_conn, (status, why), length);
            client_conn.requests = client_conn.requests.wrapping_add(1);
        }
        self.deliver(cx, position, buffer, close);
    }

    /// Sends a client what there is in `buffer`, the whole of a response.
    pub(in crate::l7::splice) fn deliver<IO: FrameIo>(
        &mut self,
        cx: &mut Context<'_, IO>,
        position: u32,
        buffer: Buffer,
        close: bool,
    ) {
        let Some(client_conn) = self.client_conns.get_mut(position) else { return self.buffers.release(buffer) };
        client_conn.framing.clear(&mut self.buffers);
        client_conn.peer.owned = Owned::new(cx.now, client_conn.peer.sent, Some(buffer), close).into();
        client_conn.peer.was_closed |= close;
        client_conn.state = if close { ClientConnState::Closing } else { ClientConnState::Replying };
        client_conn.deadline = cx.now + CLOSING_TIMEOUT;
        client_conn.exchange = Exchange { close_client: close, ..Exchange::default() };
        let deadline = client_conn.deadline;
        self.stamp_client(position, deadline);
        self.send_all(cx, End::Client(position));
    }

    /// Takes the first bytes of a client connection's input away.
    pub(in crate::l7::splice) fn consume(&mut self, position: u32, count: usize) {
        let Some(client_conn) = self.client_conns.get_mut(position) else { return };
        let Some(mut input) = client_conn.input.take() else { return };
        if count < input.len() {
            self.buffers.consume(&mut input, count);
            client_conn.input = Some(input).into();
        } else {
            self.buffers.release(input);
        }
    }
}

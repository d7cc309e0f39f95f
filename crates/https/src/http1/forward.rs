//! An exchange of a client that speaks HTTP/1.1 with a backend.

use super::{After, TUNNEL_SILENCE, refuse};
use crate::backend::BackendConn;
use crate::client_stream::ClientStream;
use crate::deadline::Deadline;
use crate::exchange::{self, Answered, Exchange};
use crate::local::Local;
use crate::pump::{self, BodyEnd, Patience, Pump, Stopped, Watch};
use hairpin_core::l7::body::{Chunks, Length};
use hairpin_core::l7::config::HttpLimits;
use hairpin_core::l7::head::ParseStatus;
use hairpin_core::l7::splice::{Fault, Refused};
use hairpin_core::record::Ending;
use std::rc::Rc;
use std::task::Poll;
use tokio::io::AsyncWrite;

/// An exchange with a backend.
pub(super) struct Forwarding<'a, S> {
    pub(super) local: &'a Rc<Local>,
    pub(super) io: &'a mut S,
    /// The request's head and what was read behind it.
    pub(super) input: &'a mut Vec<u8>,
    pub(super) deadline: &'a mut Deadline,
    pub(super) limits: HttpLimits,
}

/// A request on its way to its backend.
struct Sending {
    up: Pump,
    watch: Watch,
    /// The backend takes no more of it. It may have answered before.
    is_broken: bool,
    /// All of it has gone, and the time that the backend has to answer runs.
    is_awaited: bool,
}

/// Why no more of a response comes.
enum NoResponse {
    /// The backend closed or reset the connection.
    Lost,
    Silent,
    /// The client broke off, or what it sends is no body.
    Client(Stopped),
}

impl<S: ClientStream> Forwarding<'_, S> {
    /// Sends the request, and delivers the response.
    pub(super) async fn forward(mut self, mut exchange: Exchange) -> After {
        let mut end = BodyEnd::of(exchange.body, Chunks::at_most(self.limits.body_bound()));
        // The part of the body that has been read is sent with the head. It is kept, so that it can be sent again.
        let behind = &self.input[exchange.head_bytes..];
        let body = match end.feed(behind) {
            Ok(body) => body,
            Err(bad) => return self.refused(&exchange, Refused::of_chunks(bad)).await,
        };
        let mut conn = match exchange.acquire(self.local).await {
            Ok(conn) => conn,
            Err(why) => return self.refused(&exchange, why).await,
        };
        loop {
            let is_reused = conn.requests > 0;
            let Some(mut sent) = exchange.request_head(self.local, self.input, &conn) else {
                return self.refused(&exchange, (400, Refused::Malformed)).await;
            };
            conn.requests += 1;
            sent.extend_from_slice(&self.input[exchange.head_bytes..exchange.head_bytes + body]);
            let patience = Patience { source: self.limits.body_timeout, sink: self.limits.response_timeout };
            let (up, watch) = (Pump::new(end, sent), Watch::new(patience));
            let mut sending = Sending { up, watch, is_broken: false, is_awaited: false };
            let mut response = Vec::new();
            let begun = self.more(&mut conn, &mut sending, &mut response).await;
            // A backend may close an idle connection just as a request is sent on it: the request is not at fault.
            let may_again = exchange.may_go_again(&conn, is_reused, sending.up.moved == 0);
            match begun {
                Ok(()) => {
                    let answered = match self.answered(&exchange, &mut conn, &mut sending, &mut response).await {
                        Ok(answered) => answered,
                        Err(after) => return after,
                    };
                    if !exchange.retries(self.local, answered.status, sending.up.moved == 0) {
                        self.input.drain(..exchange.head_bytes + body);
                        return self.deliver((exchange, body as u64), conn, sending, (answered, response)).await;
                    }
                    exchange.keep(self.local, conn, answered.leaves_clean(&response) && sending.up.is_finished());
                    match exchange.acquire(self.local).await {
                        Ok(other) => conn = other,
                        Err(why) => return self.refused(&exchange, why).await,
                    }
                }
                Err(NoResponse::Lost) if may_again => match exchange.connect_again(self.local).await {
                    Ok(again) => conn = again,
                    Err(why) => return self.refused(&exchange, why).await,
                },
                Err(NoResponse::Lost) if let Some(unfit) = conn.stream.unfit() => {
                    return self.refused(&exchange, exchange::unfit(unfit)).await;
                }
                Err(why) => return self.not_answered(&exchange, why, is_reused).await,
            }
        }
    }

    async fn refused(&mut self, exchange: &Exchange, (status, why): (u16, Refused)) -> After {
        self.local.counts.refused(why);
        let response = exchange.refused(self.local, status, why);
        refuse(self.local, exchange.service(), self.io, (status, &response), self.deadline).await
    }

    /// Answers a request that its backend did not answer. `is_reused`: it was sent on a kept connection.
    async fn not_answered(&mut self, exchange: &Exchange, why: NoResponse, is_reused: bool) -> After {
        let (fault, why) = match why {
            NoResponse::Lost => ((!is_reused).then_some(Fault::Lost), (502, Refused::BackendClosed)),
            NoResponse::Silent => (Some(Fault::Silent), (504, Refused::ResponseTimeout)),
            NoResponse::Client(Stopped::Malformed(bad)) => (None, Refused::of_chunks(bad)),
            NoResponse::Client(Stopped::Silent) => (None, (408, Refused::Slow)),
            NoResponse::Client(_) => {
                exchange.ends(Ending::Client, [0; 2]);
                return After::Abort;
            }
        };
        fault.into_iter().for_each(|fault| exchange.failed(self.local, fault));
        self.refused(exchange, why).await
    }

    /// Reads more of a response, while the rest of its request goes on. The time that the backend has to answer begins with the
    /// last byte of the request.
    async fn more(
        &mut self,
        conn: &mut BackendConn,
        sending: &mut Sending,
        response: &mut Vec<u8>,
    ) -> Result<(), NoResponse> {
        let Forwarding { local, io, input, limits, deadline } = self;
        let Sending { up, watch, is_broken, is_awaited } = sending;
        let more = std::future::poll_fn(|cx| {
            if !*is_awaited && !*is_broken {
                match up.poll(cx, local, (&mut **io, &mut conn.stream), input) {
                    Poll::Ready(Ok(())) => {
                        *is_awaited = true;
                        deadline.set(limits.response_timeout);
                    }
                    Poll::Ready(Err(Stopped::Sink)) => *is_broken = true,
                    Poll::Ready(Err(stopped)) => return Poll::Ready(Err(NoResponse::Client(stopped))),
                    Poll::Pending => {}
                }
            }
            match pump::poll_read(cx, local, &mut conn.stream, response) {
                Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(Err(NoResponse::Lost)),
                Poll::Ready(Ok(_)) => return Poll::Ready(Ok(())),
                // Of a broken connection's answer, or end, the runtime may not have heard yet.
                Poll::Pending => {}
            }
            if *is_awaited {
                return deadline.poll(cx).map(|()| Err(NoResponse::Silent));
            }
            watch.poll(cx, up, 0).map(|stopped| match stopped {
                Stopped::Stuck => Err(NoResponse::Silent),
                stopped => Err(NoResponse::Client(stopped)),
            })
        })
        .await;
        if matches!(more, Err(NoResponse::Silent)) {
            conn.stream.retire();
        }
        more
    }

    /// Waits for the head of the response, of which `response` has begun, while the rest of the request goes on. Interim
    /// responses go to the client.
    async fn answered(
        &mut self,
        exchange: &Exchange,
        conn: &mut BackendConn,
        sending: &mut Sending,
        response: &mut Vec<u8>,
    ) -> Result<Answered, After> {
        const BAD: (u16, Refused) = (502, Refused::BadResponse);
        let answered = loop {
            match exchange.response_head(self.local, response) {
                Ok(ParseStatus::Complete(answered)) if answered.is_interim() => {
                    let behind = response.split_off(answered.head_bytes);
                    let head = answered.written.as_deref().unwrap_or(response);
                    if !exchange.is_http10()
                        && pump::write(self.io, head, self.deadline, self.limits.send_timeout).await.is_err()
                    {
                        return Err(After::Abort);
                    }
                    if sending.is_awaited {
                        self.deadline.set(self.limits.response_timeout);
                    }
                    *response = behind;
                    continue;
                }
                Ok(ParseStatus::Complete(answered)) => break answered,
                Ok(ParseStatus::Partial) => {}
                Err(()) => return Err(self.refused(exchange, BAD).await),
            }
            if let Err(why) = self.more(conn, sending, response).await {
                return Err(self.not_answered(exchange, why, false).await);
            }
        };
        // The rest of the request would become the tunnel's first bytes.
        if answered.body == Length::Tunnel && !sending.up.is_finished() {
            return Err(self.refused(exchange, BAD).await);
        }
        Ok(answered)
    }

    /// Delivers a response whose head is known, `response` being what was read of it. `sent_body`: bytes of the request's body
    /// that were read with its head.
    async fn deliver(
        self,
        (exchange, sent_body): (Exchange, u64),
        mut conn: BackendConn,
        sending: Sending,
        (answered, response): (Answered, Vec<u8>),
    ) -> After {
        let Forwarding { local, io, input, limits, .. } = self;
        exchange.responded(local, answered.status);
        let mut end = BodyEnd::of(answered.body, Chunks::of_response());
        let body = match end.feed(&response[answered.head_bytes..]) {
            Ok(body) => body,
            // The client has seen nothing, but bytes of this body could be taken for another response.
            Err(_) => {
                local.counts.refused(Refused::BadResponse);
                return After::Abort;
            }
        };
        let mut excess = response[answered.head_bytes + body..].to_vec();
        let (keep_alive, length) = (answered.keep_alive, answered.body);
        let first = first_bytes(answered, response, body);
        let first_down = first.len() as u64;
        let is_tunnel = length == Length::Tunnel;
        let ends = matches!(length, Length::UntilClose | Length::Tunnel);
        // A tunnel's client sends no requests any more; its first bytes may have been read with the request.
        let mut up = if is_tunnel { Pump::new(BodyEnd::Close, std::mem::take(input)) } else { sending.up };
        let (mut up_broken, mut up_done) = (sending.is_broken, sending.is_awaited && !is_tunnel);
        let mut down = Pump::new(end, first);
        if exchange.close_client && !ends {
            down.leave_unflushed();
        }
        let silence = if is_tunnel { limits.idle_timeout.max(TUNNEL_SILENCE) } else { limits.body_timeout };
        let mut watch = Watch::new(Patience { source: silence, sink: limits.send_timeout });
        let delivered = std::future::poll_fn(|cx| {
            if !up_broken && !up_done {
                match up.poll(cx, local, (&mut *io, &mut conn.stream), input) {
                    // A tunnel with one side is of no use.
                    Poll::Ready(Err(stopped)) if is_tunnel => return Poll::Ready(Err(stopped)),
                    Poll::Ready(Err(_)) => up_broken = true,
                    Poll::Ready(Ok(())) if is_tunnel => {
                        // The client has closed its side: so the backend is told.
                        up_done = std::pin::Pin::new(&mut conn.stream).poll_shutdown(cx).is_ready();
                    }
                    Poll::Ready(Ok(())) => up_done = true,
                    Poll::Pending => {}
                }
            }
            match down.poll(cx, local, (&mut conn.stream, &mut *io), &mut excess) {
                Poll::Pending => watch.poll(cx, &down, up.moved).map(Err),
                ready => ready,
            }
        })
        .await;
        let ending = match &delivered {
            Ok(()) => Ending::Done,
            Err(_) if is_tunnel => Ending::Done,
            Err(Stopped::Stuck | Stopped::Silent) => Ending::Timeout,
            Err(Stopped::Sink) => Ending::Client,
            Err(_) => Ending::Backend,
        };
        let bytes = [sent_body + up.moved, first_down + down.moved];
        exchange.ends(ending, bytes);
        match delivered {
            Ok(()) => {}
            Err(Stopped::Stuck) => {
                local.counts.refused(Refused::SendTimeout);
                return After::Abort;
            }
            Err(stopped) => {
                if !is_tunnel && !matches!(stopped, Stopped::Sink) {
                    local.counts.refused(Refused::BackendClosed);
                }
                return After::Abort;
            }
        }
        exchange.delivered(local, length, bytes);
        let is_whole = up.is_finished() && !up_broken;
        if is_whole && excess.is_empty() {
            exchange.keep(local, conn, keep_alive && length != Length::UntilClose);
        }
        if exchange.close_client || ends || !is_whole { After::Close } else { After::Next }
    }
}

/// The bytes that the client is sent first: the head, and the first `body` bytes of the body.
fn first_bytes(answered: Answered, mut response: Vec<u8>, body: usize) -> Vec<u8> {
    let end = answered.head_bytes + body;
    match answered.written {
        Some(mut head) => {
            head.extend_from_slice(&response[answered.head_bytes..end]);
            head
        }
        None => {
            response.truncate(end);
            response
        }
    }
}

//! A client that speaks HTTP/1.1: request after request on one connection.

use crate::backend::BackendConn;
use crate::client_stream::ClientStream;
use crate::deadline::Deadline;
use crate::exchange::{self, Answered, Client, Exchange, Judged};
use crate::local::Local;
use crate::pump::{self, BodyEnd, Patience, Pump, Stopped, Watch};
use crate::recording;
use hairpin_core::l7::body::{Chunks, Length};
use hairpin_core::l7::config::HttpLimits;
use hairpin_core::l7::decision;
use hairpin_core::l7::head::{self, Method, ParseStatus};
use hairpin_core::l7::splice::limits::CLOSING_TIMEOUT;
use hairpin_core::l7::splice::{Fault, Refused};
use hairpin_core::record::Ending;
use std::io;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};

/// Bytes of a client that are read and thrown away while it reads its last response.
pub const LINGER_BYTES_MAX: usize = 1 << 20;

/// The next step after an exchange.
enum After {
    /// The next request.
    Next,
    /// Its connection is closed, so that the client reads all that it was sent.
    Close,
    /// Its connection is broken off, so that the client does not take a part of the response for the whole.
    Abort,
}

/// The outcome of the head of a request.
enum Found {
    Forward(Box<Exchange>),
    Answer {
        status: u16,
        response: Vec<u8>,
        head_bytes: usize,
        close: bool,
    },
    Refuse {
        status: u16,
        why: Refused,
    },
    /// The client has closed, or said nothing for too long.
    Gone,
}

/// Serves a client until one of both closes. `input` has what was read already.
pub(crate) async fn serve<S: ClientStream>(local: &Rc<Local>, client: &Client, io: &mut S, mut input: Vec<u8>) {
    let mut deadline = Deadline::default();
    let mut requests = 0;
    loop {
        let setup = local.setup();
        let Some(limits) = setup.http(client.service).map(|http| http.limits) else {
            return close(local, io, &mut deadline, CLOSING_TIMEOUT).await;
        };
        drop(setup);
        let after = match find(local, client, io, &mut input, requests, &limits, &mut deadline).await {
            Found::Gone => After::Close,
            Found::Refuse { status, why } => {
                local.counts.refused(why);
                recording::refusal_of_input(local, client, &input, (status, why));
                refuse(local, client.service, io, (status, false), &mut deadline).await
            }
            Found::Answer { status, response, head_bytes, close } => {
                client.control.count_request();
                local.counts.request(client.service);
                local.counts.reply(client.service, status);
                input.drain(..head_bytes);
                match pump::write_and(io, &response, (&mut deadline, CLOSING_TIMEOUT), !close).await {
                    Ok(()) if close => After::Close,
                    Ok(()) => After::Next,
                    Err(_) => After::Abort,
                }
            }
            Found::Forward(exchange) => {
                client.control.count_request();
                local.counts.request(client.service);
                // Boxed, so that a connection between two requests is small.
                let limits = exchange.limits().unwrap_or(limits);
                let forwarding = Forwarding { local, io, input: &mut input, deadline: &mut deadline, limits };
                Box::pin(forwarding.forward(*exchange)).await
            }
        };
        requests += 1;
        if input.is_empty() {
            input = Vec::new();
        }
        match after {
            After::Next => {}
            After::Close => return close(local, io, &mut deadline, limits.send_timeout).await,
            After::Abort => return io.reset(),
        }
    }
}

/// Reads a head, and judges it.
async fn find<S: AsyncRead + Unpin>(
    local: &Rc<Local>,
    client: &Client,
    io: &mut S,
    input: &mut Vec<u8>,
    requests: u32,
    limits: &HttpLimits,
    deadline: &mut Deadline,
) -> Found {
    deadline.set(if input.is_empty() { limits.idle_timeout } else { limits.head_timeout });
    let mut is_worth_reading = true;
    loop {
        if is_worth_reading
            && !input.is_empty()
            && let Some(found) = examine(local, client, input, requests, limits)
        {
            return found;
        }
        let (was_empty, had) = (input.is_empty(), input.len());
        // A client that has just connected is about to ask: its connection ends with its first request.
        let control = (was_empty && requests > 0).then_some(&*client.control);
        match pump::read_unless(local, io, input, deadline, control).await {
            Ok(0) => return Found::Gone,
            Ok(_) => {
                if was_empty {
                    deadline.set(limits.head_timeout);
                }
                // A head ends with a line, or is too long. One that comes byte by byte is not read as often.
                let is_full = input.len() >= usize::from(limits.head_bytes_max);
                is_worth_reading = is_full || input[had..].contains(&b'\n');
            }
            Err(error) if error.kind() == io::ErrorKind::TimedOut && !was_empty => {
                return Found::Refuse { status: 408, why: Refused::Slow };
            }
            Err(_) => return Found::Gone,
        }
    }
}

/// The outcome of the bytes of a client. `None`: more are needed.
fn examine(local: &Local, client: &Client, input: &[u8], requests: u32, limits: &HttpLimits) -> Option<Found> {
    let read = head::request(input, &limits.head_bounds());
    let request = match &read {
        Ok(ParseStatus::Partial) => return None,
        Ok(ParseStatus::Complete(request)) => request,
        Err(bad) => {
            let (status, why) = decision::of_bad_head(*bad);
            return Some(Found::Refuse { status, why });
        }
    };
    Some(match exchange::judge(local, client, request, requests) {
        Judged::Forward(exchange) => Found::Forward(exchange),
        Judged::Answer { status, response, close } => {
            Found::Answer { status, response, head_bytes: request.bytes.len(), close }
        }
        Judged::Refuse { status, why } => Found::Refuse { status, why },
    })
}

/// Answers with a refusal.
async fn refuse<S: AsyncWrite + Unpin>(
    local: &Local,
    service: u16,
    io: &mut S,
    (status, head_only): (u16, bool),
    deadline: &mut Deadline,
) -> After {
    let response = exchange::refusal(local, status, head_only);
    local.counts.reply(service, status);
    // The response leaves with the end of the stream.
    match pump::write_and(io, &response, (deadline, CLOSING_TIMEOUT), false).await {
        Ok(()) => After::Close,
        Err(_) => After::Abort,
    }
}

/// Closes a client's connection. What it still sends is read for a while: the kernel would answer it with RST, which can
/// take the last response from a client that has not read it.
pub(crate) async fn close<S: AsyncRead + AsyncWrite + Unpin>(
    local: &Local,
    io: &mut S,
    deadline: &mut Deadline,
    send_timeout: Duration,
) {
    // The last of a response may still have to leave.
    deadline.set(send_timeout.max(CLOSING_TIMEOUT));
    let shut = std::future::poll_fn(|cx| match std::pin::Pin::new(&mut *io).poll_shutdown(cx) {
        Poll::Pending => deadline.poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into())),
        ready => ready,
    });
    if shut.await.is_err() {
        return;
    }
    deadline.set(CLOSING_TIMEOUT);
    let (mut thrown_away, mut input) = (0, Vec::new());
    while thrown_away < LINGER_BYTES_MAX {
        match pump::read(local, io, &mut input, deadline).await {
            Ok(0) | Err(_) => return,
            Ok(count) => thrown_away += count,
        }
        input.clear();
    }
}

/// An exchange with a backend.
struct Forwarding<'a, S> {
    local: &'a Rc<Local>,
    io: &'a mut S,
    /// The request's head and what was read behind it.
    input: &'a mut Vec<u8>,
    deadline: &'a mut Deadline,
    limits: HttpLimits,
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
    async fn forward(mut self, mut exchange: Exchange) -> After {
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
        let head_only = exchange.method == Method::Head;
        self.local.counts.refused(why);
        exchange.refused(self.local, status, why);
        refuse(self.local, exchange.service(), self.io, (status, head_only), self.deadline).await
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

/// How long a tunnel may be silent.
pub const TUNNEL_SILENCE: Duration = Duration::from_secs(3600);

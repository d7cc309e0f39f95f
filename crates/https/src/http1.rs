//! A client that speaks HTTP/1.1: request after request on one connection.

use crate::backend::BackendConn;
use crate::deadline::Deadline;
use crate::exchange::{self, Answered, Client, Exchange, Judged};
use crate::local::Local;
use crate::pump::{self, BodyEnd, Patience, Pump, Stopped, Watch};
use hairpin_core::l7::body::{Chunks, Length};
use hairpin_core::l7::config::HttpLimits;
use hairpin_core::l7::decision;
use hairpin_core::l7::head::{self, Method, ParseStatus};
use hairpin_core::l7::splice::limits::CLOSING_TIMEOUT;
use hairpin_core::l7::splice::{Fault, Refused};
use std::io;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};

/// Bytes of a client that are read and thrown away while it reads its last response.
const LINGER_BYTES_MAX: usize = 1 << 20;

/// What comes after an exchange.
enum After {
    /// The next request.
    Next,
    /// Its connection is closed, so that the client reads all that it was sent.
    Close,
    /// Its connection is broken off, so that the client does not take what it was sent for all.
    Abort,
}

/// What comes of the head of a request.
enum Found {
    Forward(Box<Exchange>),
    Answer {
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
pub(crate) async fn serve<S>(local: &Rc<Local>, client: &Client, io: &mut S, mut input: Vec<u8>)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut deadline = Deadline::default();
    let mut requests = 0;
    loop {
        let setup = local.setup();
        let Some(limits) = setup.http(client.service).map(|http| http.limits) else { return };
        drop(setup);
        let after = match find(local, client, io, &mut input, requests, &limits, &mut deadline).await {
            Found::Gone => After::Close,
            Found::Refuse { status, why } => {
                local.counts.refused(why);
                refuse(local, io, status, false, &mut deadline).await
            }
            Found::Answer { response, head_bytes, close } => {
                count(local, client);
                local.counts.change(|statistics| statistics.http.replies += 1);
                input.drain(..head_bytes);
                match pump::write_and(io, &response, (&mut deadline, CLOSING_TIMEOUT), !close).await {
                    Ok(()) if close => After::Close,
                    Ok(()) => After::Next,
                    Err(_) => After::Abort,
                }
            }
            Found::Forward(exchange) => {
                count(local, client);
                // In memory of its own: a connection between two requests is small.
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
            After::Abort => return,
        }
    }
}

fn count(local: &Local, client: &Client) {
    local.counts.change(|statistics| statistics.http.requests += 1);
    local.counts.service(client.service, |service| service.requests += 1);
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
    loop {
        if !input.is_empty()
            && let Some(found) = examine(local, client, input, requests, limits)
        {
            return found;
        }
        let was_empty = input.is_empty();
        // A client that has just connected is about to ask: its connection ends with its first request.
        let control = (was_empty && requests > 0).then_some(&*client.control);
        match pump::read_unless(local, io, input, deadline, control).await {
            Ok(0) => return Found::Gone,
            Ok(_) if was_empty => deadline.set(limits.head_timeout),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::TimedOut && !was_empty => {
                return Found::Refuse { status: 408, why: Refused::Slow };
            }
            Err(_) => return Found::Gone,
        }
    }
}

/// What comes of the bytes of a client. `None`: more are needed.
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
        Judged::Forward(exchange) => Found::Forward(Box::new(exchange)),
        Judged::Answer { response, close } => Found::Answer { response, head_bytes: request.bytes.len(), close },
        Judged::Refuse { status, why } => Found::Refuse { status, why },
    })
}

/// Answers with a refusal.
async fn refuse<S: AsyncWrite + Unpin>(
    local: &Local,
    io: &mut S,
    status: u16,
    head_only: bool,
    deadline: &mut Deadline,
) -> After {
    let response = exchange::refusal(local, status, head_only);
    local.counts.change(|statistics| statistics.http.replies += 1);
    // It leaves with the end of the stream.
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

/// A response that has begun, or why none has.
enum Begun {
    /// What was read of it; no byte of it has been used.
    Response(Vec<u8>),
    /// The backend closed or reset the connection before.
    Lost,
    Silent,
    /// The client broke off, or what it sends is no body.
    Client(Stopped),
}

impl<S: AsyncRead + AsyncWrite + Unpin> Forwarding<'_, S> {
    async fn forward(mut self, mut exchange: Exchange) -> After {
        let head_only = exchange.method == Method::Head;
        let mut end = BodyEnd::of(exchange.body, Chunks::at_most(self.limits.body_bound()));
        // What of the body has been read goes with the head. It stays, so that it can be sent once more.
        let behind = &self.input[exchange.head_bytes..];
        let body = match end.feed(behind) {
            Ok(body) => body,
            Err(bad) => {
                let (status, why) = Refused::of_chunks(bad);
                return self.refused(status, why, head_only).await;
            }
        };
        let mut conn = match exchange.acquire(self.local).await {
            Ok(conn) => conn,
            Err((status, why)) => return self.refused(status, why, head_only).await,
        };
        loop {
            let is_reused = conn.requests > 0;
            let Some(mut sent) = exchange.request_head(self.local, self.input, &conn) else {
                return self.refused(400, Refused::Malformed, head_only).await;
            };
            conn.requests += 1;
            sent.extend_from_slice(&self.input[exchange.head_bytes..exchange.head_bytes + body]);
            let mut up = Pump::new(end, sent);
            let begun = self.begin(&mut conn, &mut up).await;
            // A kept connection that its backend closes while the next request is on its way says nothing of the request.
            let may_again = is_reused && exchange.is_idempotent && up.moved == 0;
            match begun {
                Begun::Response(response) => {
                    self.input.drain(..exchange.head_bytes + body);
                    return self.respond(exchange, conn, up, response).await;
                }
                Begun::Lost if may_again => match exchange.connect_again(self.local).await {
                    Ok(again) => conn = again,
                    Err(_) => return self.refused(502, Refused::Unreachable, head_only).await,
                },
                Begun::Lost => {
                    if !is_reused {
                        exchange.failed(self.local, Fault::Lost);
                    }
                    return self.refused(502, Refused::BackendClosed, head_only).await;
                }
                Begun::Silent => {
                    exchange.failed(self.local, Fault::Silent);
                    return self.refused(504, Refused::ResponseTimeout, head_only).await;
                }
                Begun::Client(Stopped::Malformed(bad)) => {
                    let (status, why) = Refused::of_chunks(bad);
                    return self.refused(status, why, head_only).await;
                }
                Begun::Client(Stopped::Silent) => return self.refused(408, Refused::Slow, head_only).await,
                Begun::Client(_) => return After::Abort,
            }
        }
    }

    async fn refused(&mut self, status: u16, why: Refused, head_only: bool) -> After {
        self.local.counts.refused(why);
        refuse(self.local, self.io, status, head_only, self.deadline).await
    }

    /// Sends a request until its response begins.
    async fn begin(&mut self, conn: &mut BackendConn, up: &mut Pump) -> Begun {
        let Forwarding { local, io, input, limits, deadline } = self;
        let mut response = Vec::new();
        let mut watch = Watch::new(Patience { source: limits.body_timeout, sink: limits.response_timeout });
        let (mut is_sent, mut is_broken) = (false, false);
        std::future::poll_fn(|cx| {
            if !is_sent && !is_broken {
                match up.poll(cx, local, (&mut **io, &mut conn.tcp), input) {
                    Poll::Ready(Ok(())) => {
                        is_sent = true;
                        deadline.set(limits.response_timeout);
                    }
                    // It may have answered before it closed.
                    Poll::Ready(Err(Stopped::Sink)) => is_broken = true,
                    Poll::Ready(Err(stopped)) => return Poll::Ready(Begun::Client(stopped)),
                    Poll::Pending => {}
                }
            }
            match pump::poll_read(cx, local, &mut conn.tcp, &mut response) {
                Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(Begun::Lost),
                Poll::Ready(Ok(_)) => return Poll::Ready(Begun::Response(std::mem::take(&mut response))),
                Poll::Pending if is_broken => return Poll::Ready(Begun::Lost),
                Poll::Pending => {}
            }
            if is_sent {
                return deadline.poll(cx).map(|()| Begun::Silent);
            }
            watch.poll(cx, up).map(|stopped| match stopped {
                Stopped::Stuck => Begun::Silent,
                stopped => Begun::Client(stopped),
            })
        })
        .await
    }

    /// Delivers the response that begins with `response`, while the rest of the request goes on.
    async fn respond(
        mut self,
        exchange: Exchange,
        mut conn: BackendConn,
        mut up: Pump,
        mut response: Vec<u8>,
    ) -> After {
        let head_only = exchange.method == Method::Head;
        let mut has_begun = false;
        let answered = loop {
            match exchange.response_head(self.local, &response) {
                Ok(ParseStatus::Complete(answered)) if answered.is_interim() => {
                    let behind = response.split_off(answered.head_bytes);
                    let head = answered.written.as_deref().unwrap_or(&response);
                    if !exchange.is_http10()
                        && pump::write(self.io, head, self.deadline, self.limits.send_timeout).await.is_err()
                    {
                        return After::Abort;
                    }
                    has_begun |= !exchange.is_http10();
                    response = behind;
                    continue;
                }
                Ok(ParseStatus::Complete(answered)) => break answered,
                Ok(ParseStatus::Partial) => {}
                Err(()) if has_begun => return After::Abort,
                Err(()) => return self.refused(502, Refused::BadResponse, head_only).await,
            }
            match self.more(&mut conn, &mut up, &mut response).await {
                Ok(()) => {}
                Err(_) if has_begun => return After::Abort,
                Err((fault, status, why)) => {
                    fault.into_iter().for_each(|fault| exchange.failed(self.local, fault));
                    return self.refused(status, why, head_only).await;
                }
            }
        };
        self.deliver(exchange, conn, up, (answered, response)).await
    }

    /// Reads more of a response's head, while the rest of the request goes on.
    async fn more(
        &mut self,
        conn: &mut BackendConn,
        up: &mut Pump,
        response: &mut Vec<u8>,
    ) -> Result<(), (Option<Fault>, u16, Refused)> {
        let Forwarding { local, io, input, limits, deadline } = self;
        deadline.set(limits.response_timeout);
        let mut is_broken = false;
        let read = std::future::poll_fn(|cx| {
            if !is_broken
                && !up.is_finished()
                && let Poll::Ready(Err(_)) = up.poll(cx, local, (&mut **io, &mut conn.tcp), input)
            {
                is_broken = true;
            }
            match pump::poll_read(cx, local, &mut conn.tcp, response) {
                Poll::Pending => deadline.poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into())),
                ready => ready,
            }
        });
        match read.await {
            Ok(0) => Err((Some(Fault::Lost), 502, Refused::BackendClosed)),
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                Err((Some(Fault::Silent), 504, Refused::ResponseTimeout))
            }
            Err(_) => Err((Some(Fault::Lost), 502, Refused::BackendClosed)),
        }
    }

    /// Delivers a response whose head is known, `response` being what was read of it.
    async fn deliver(
        self,
        exchange: Exchange,
        mut conn: BackendConn,
        mut up: Pump,
        (answered, response): (Answered, Vec<u8>),
    ) -> After {
        let Forwarding { local, io, input, limits, .. } = self;
        let mut end = BodyEnd::of(answered.body, Chunks::of_response());
        let body = match end.feed(&response[answered.head_bytes..]) {
            Ok(body) => body,
            // The client has seen nothing, but what of the body was there cannot be told from another response.
            Err(_) => {
                local.counts.refused(Refused::BadResponse);
                return After::Abort;
            }
        };
        let mut excess = response[answered.head_bytes + body..].to_vec();
        let first = match answered.written {
            Some(mut head) => {
                head.extend_from_slice(&response[answered.head_bytes..answered.head_bytes + body]);
                head
            }
            None => {
                let mut whole = response;
                whole.truncate(answered.head_bytes + body);
                whole
            }
        };
        let is_tunnel = answered.body == Length::Tunnel;
        if is_tunnel {
            // What the client sends is no request any more, and may have been read with it.
            up = Pump::new(BodyEnd::Close, std::mem::take(input));
        }
        let ends = matches!(answered.body, Length::UntilClose | Length::Tunnel);
        let mut down = Pump::new(end, first);
        if exchange.close_client && !ends {
            down.leave_unflushed();
        }
        let silence = if is_tunnel { limits.idle_timeout.max(TUNNEL_SILENCE) } else { limits.response_timeout };
        let mut watch = Watch::new(Patience { source: silence, sink: limits.send_timeout });
        let mut up_broken = false;
        let delivered = std::future::poll_fn(|cx| {
            if !up_broken && !up.is_finished() {
                match up.poll(cx, local, (&mut *io, &mut conn.tcp), input) {
                    Poll::Ready(Err(_)) => up_broken = true,
                    Poll::Ready(Ok(())) if is_tunnel => {
                        // The client has closed its side: so the backend is told.
                        let _ = std::pin::Pin::new(&mut conn.tcp).poll_shutdown(cx);
                    }
                    _ => {}
                }
            }
            match down.poll(cx, local, (&mut conn.tcp, &mut *io), &mut excess) {
                Poll::Pending => watch.poll(cx, &down).map(Err),
                ready => ready,
            }
        })
        .await;
        match delivered {
            Ok(()) => {}
            Err(Stopped::Stuck) => {
                local.counts.refused(Refused::SendTimeout);
                return After::Abort;
            }
            Err(_) => return After::Abort,
        }
        let is_whole = up.is_finished() && !up_broken;
        if is_whole && excess.is_empty() {
            exchange.keep(local, conn, answered.keep_alive && answered.body != Length::UntilClose);
        }
        if exchange.close_client || ends || !is_whole { After::Close } else { After::Next }
    }
}

/// How long a tunnel may be silent.
pub(crate) const TUNNEL_SILENCE: Duration = Duration::from_secs(3600);

//! The exchange of a stream with a backend: the request is sent while the response is waited for and delivered.

use super::download::{self, Download};
use super::stream::{Failed, TRANSLATED};
use super::upload::{self, Upload, Waits};
use crate::backend::BackendConn;
use crate::deadline::Deadline;
use crate::exchange::{self, Answered, Exchange};
use crate::http1::TUNNEL_SILENCE;
use crate::local::Local;
use crate::{pump, translate};
use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use hairpin_core::l7::body::Length;
use hairpin_core::l7::config::HttpLimits;
use hairpin_core::l7::head::{self, ParseStatus};
use hairpin_core::l7::splice::{Fault, Refused};
use hairpin_core::record::Ending;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::AsyncWrite;

const BAD: Failed = Failed::Refused(502, Refused::BadResponse);
/// Interim responses that a backend may send before its response.
pub const INTERIM_MAX: u32 = 100;

/// An exchange with a backend.
pub(super) struct Forwarding<'a> {
    pub(super) local: &'a Local,
    pub(super) respond: &'a mut SendResponse<Bytes>,
    pub(super) exchange: &'a mut Exchange,
    pub(super) limits: HttpLimits,
    /// The client's side of a WebSocket that it asks for.
    pub(super) tunnel: Option<RecvStream>,
    /// The backend's proof that it has understood the request for a WebSocket, which was made here.
    pub(super) accept: Option<String>,
    /// Bytes of the response that wait for the client.
    pub(super) send_buffer: usize,
}

/// The outcome of waiting for a response.
enum Begun {
    /// Some of it.
    Some,
    /// The backend closed or reset the connection before.
    Lost,
    Silent,
}

impl Forwarding<'_> {
    /// Sends the request whose head is `head`, and delivers the response.
    pub(super) async fn forward(mut self, head: Vec<u8>, up: &mut Upload) -> Result<(), Failed> {
        let local = self.local;
        let acquired = unless_reset(self.respond, self.exchange.acquire(local)).await?;
        let mut conn = acquired.map_err(|(status, why)| Failed::Refused(status, why))?;
        let mut response = Vec::new();
        let answered = loop {
            let is_reused = conn.requests > 0;
            let sent = self.exchange.request_head(local, &head, &conn);
            up.begin(sent.ok_or(Failed::Refused(400, Refused::Malformed))?);
            conn.requests += 1;
            // A backend may close an idle connection just as a request is sent on it: the request is not at fault.
            match self.begin(&mut conn, up, &mut response).await? {
                Begun::Some => {
                    if up.is_broken() {
                        up.stop();
                    }
                    let answered = self.answered(&mut conn, up, &mut response).await?;
                    if !self.exchange.retries(local, answered.status, up.is_untouched()) {
                        break answered;
                    }
                    self.exchange.keep(local, conn, answered.leaves_clean(&response) && up.is_complete());
                    response.clear();
                    let acquired = unless_reset(self.respond, self.exchange.acquire(local)).await?;
                    conn = acquired.map_err(|(status, why)| Failed::Refused(status, why))?;
                }
                Begun::Lost if self.exchange.may_go_again(&conn, is_reused, up.is_untouched()) => {
                    let again = unless_reset(self.respond, self.exchange.connect_again(local)).await?;
                    conn = again.map_err(|_| Failed::Refused(502, Refused::Unreachable))?;
                }
                Begun::Lost if let Some(unfit) = conn.stream.unfit() => {
                    let (status, why) = exchange::unfit(unfit);
                    return Err(Failed::Refused(status, why));
                }
                Begun::Lost if is_reused => return Err(Failed::Refused(502, Refused::BackendClosed)),
                begun => return Err(self.failed(&begun)),
            }
        };
        // Heads take no memory while a body is delivered.
        drop(head);
        self.deliver(conn, up, answered, response).await
    }

    /// The backend has failed the request.
    fn failed(&self, begun: &Begun) -> Failed {
        let (fault, status, why) = match begun {
            Begun::Silent => (Fault::Silent, 504, Refused::ResponseTimeout),
            Begun::Some | Begun::Lost => (Fault::Lost, 502, Refused::BackendClosed),
        };
        self.exchange.failed(self.local, fault);
        Failed::Refused(status, why)
    }

    /// Waits for more of a response, while the request is sent. The response's time begins behind the request's last byte;
    /// before that, the body's time is the client's.
    async fn begin(
        &mut self,
        conn: &mut BackendConn,
        up: &mut Upload,
        response: &mut Vec<u8>,
    ) -> Result<Begun, Failed> {
        let Forwarding { local, respond, limits, .. } = self;
        let (mut read, mut write) = conn.stream.split();
        let mut stall = Stall::default();
        let begun = std::future::poll_fn(|cx| {
            if respond.poll_reset(cx).is_ready() {
                return Poll::Ready(Err(Failed::Gone));
            }
            if !up.is_broken() {
                match up.poll(cx, &mut write) {
                    Poll::Ready(Err(upload::Broken::Client)) => return Poll::Ready(Err(Failed::Gone)),
                    Poll::Ready(Err(upload::Broken::Refused(status, why))) => {
                        return Poll::Ready(Err(Failed::Refused(status, why)));
                    }
                    // The backend may have answered before it closed, and the runtime may not have been told yet.
                    Poll::Ready(Err(upload::Broken::Backend) | Ok(())) | Poll::Pending => {}
                }
            }
            match pump::poll_read(cx, local, &mut read, response) {
                Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(Ok(Begun::Lost)),
                Poll::Ready(Ok(_)) => return Poll::Ready(Ok(Begun::Some)),
                Poll::Pending => {}
            }
            let waits = up.waits();
            let patience = if waits == Waits::Client { limits.body_timeout } else { limits.response_timeout };
            ready!(stall.poll(cx, (up.moved, waits == Waits::Client, waits == Waits::Nothing), patience));
            Poll::Ready(match waits {
                Waits::Client => Err(Failed::Refused(408, Refused::Slow)),
                Waits::Backend | Waits::Nothing => Ok(Begun::Silent),
            })
        })
        .await;
        if matches!(begun, Ok(Begun::Silent)) {
            conn.stream.retire();
        }
        begun
    }

    /// Waits for the head of the response, of which `response` has begun. Interim responses go to the client.
    async fn answered(
        &mut self,
        conn: &mut BackendConn,
        up: &mut Upload,
        response: &mut Vec<u8>,
    ) -> Result<Answered, Failed> {
        let mut interim = 0;
        loop {
            match self.exchange.response_head(self.local, response) {
                Ok(ParseStatus::Complete(answered)) if answered.is_interim() => {
                    interim += 1;
                    if interim > INTERIM_MAX {
                        return Err(BAD);
                    }
                    let out = self.translated(&answered, response)?;
                    self.respond.send_informational(out).map_err(|_| Failed::Gone)?;
                    response.drain(..answered.head_bytes);
                    continue;
                }
                Ok(ParseStatus::Complete(answered)) => return Ok(answered),
                Ok(ParseStatus::Partial) => {}
                Err(()) => return Err(BAD),
            }
            match self.begin(conn, up, response).await? {
                Begun::Some => {}
                begun => return Err(self.failed(&begun)),
            }
        }
    }

    /// The HTTP/2 form of a response's head.
    fn translated(&self, answered: &Answered, response: &[u8]) -> Result<http::Response<()>, Failed> {
        let head = answered.written.as_deref().unwrap_or(response);
        let parsed = head::response(head, &TRANSLATED, self.exchange.method);
        let Ok(ParseStatus::Complete(parsed)) = &parsed else { return Err(BAD) };
        // The end that has made the key compares (RFC 6455, 4.1); the client of HTTP/2 has none.
        let is_accepted = || {
            let said = parsed.fields.iter().find(|(name, _)| name.eq_ignore_ascii_case(b"sec-websocket-accept"));
            said.map(|(_, value)| value) == self.accept.as_deref().map(str::as_bytes)
        };
        if parsed.status == 101 && !is_accepted() {
            return Err(BAD);
        }
        translate::response(parsed).ok_or(BAD)
    }

    /// Delivers a response whose head is known, `response` being what was read of it, while the rest of the request goes on.
    async fn deliver(
        mut self,
        mut conn: BackendConn,
        up: &mut Upload,
        answered: Answered,
        response: Vec<u8>,
    ) -> Result<(), Failed> {
        let is_tunnel = answered.body == Length::Tunnel;
        match self.tunnel.take() {
            Some(body) if is_tunnel => *up = Upload::new(Some(body), None),
            // To a client that asked for a tunnel, success says that it is there.
            Some(_) if matches!(answered.status, 200..300) => return Err(BAD),
            None if is_tunnel => return Err(BAD),
            Some(_) | None => {}
        }
        let out = self.translated(&answered, &response)?;
        self.exchange.responded(self.local, answered.status);
        let length = answered.body;
        let is_whole = length == Length::None;
        let head_bytes = answered.written.as_ref().map_or(answered.head_bytes, Vec::len) as u64;
        let mut stream = self.respond.send_response(out, is_whole).map_err(|_| Failed::Gone)?;
        let mut keep = answered.keep_alive && !is_tunnel && answered.body != Length::UntilClose;
        let bytes;
        if is_whole {
            keep &= response.len() == answered.head_bytes;
            bytes = [up.read(), head_bytes];
            self.exchange.ends(Ending::Done, bytes);
        } else {
            let first = Download::new(answered.body, &response[answered.head_bytes..], &mut stream, self.send_buffer);
            let mut down = first.map_err(|_| Failed::Reset(Reason::INTERNAL_ERROR))?;
            drop((response, answered));
            let delivery = Delivery { local: self.local, limits: &self.limits, stream: &mut stream, is_tunnel };
            let delivered = delivery.run(&mut conn, up, &mut down).await;
            let ending = if delivered.is_ok() || is_tunnel { Ending::Done } else { Ending::Aborted };
            bytes = [up.read(), head_bytes + down.moved()];
            self.exchange.ends(ending, bytes);
            delivered?;
            keep &= down.is_clean();
        }
        self.exchange.delivered(self.local, length, bytes);
        self.exchange.keep(self.local, conn, keep && up.is_complete());
        Ok(())
    }
}

/// A body that is delivered.
struct Delivery<'a> {
    local: &'a Local,
    limits: &'a HttpLimits,
    stream: &'a mut SendStream<Bytes>,
    is_tunnel: bool,
}

impl Delivery<'_> {
    /// Delivers a response's body, while the rest of the request goes on.
    async fn run(self, conn: &mut BackendConn, up: &mut Upload, down: &mut Download) -> Result<(), Failed> {
        let Delivery { local, limits, stream, is_tunnel } = self;
        let silence = |silence: Duration| if is_tunnel { silence.max(TUNNEL_SILENCE) } else { silence };
        let (mut read, mut write) = conn.stream.split();
        let mut stall = Stall::default();
        std::future::poll_fn(|cx| {
            match up.poll(cx, &mut write) {
                Poll::Ready(Err(upload::Broken::Client)) => return Poll::Ready(Err(Failed::Gone)),
                Poll::Ready(Err(upload::Broken::Refused(_, why))) => {
                    local.counts.refused(why);
                    let is_malformed = why == Refused::Malformed;
                    let reason = if is_malformed { Reason::PROTOCOL_ERROR } else { Reason::CANCEL };
                    return Poll::Ready(Err(Failed::Reset(reason)));
                }
                // A backend may answer a request that it does not read to its end.
                Poll::Ready(Err(upload::Broken::Backend)) => up.stop(),
                // The client has closed its side: so the backend is told.
                Poll::Ready(Ok(())) if is_tunnel => drop(Pin::new(&mut write).poll_shutdown(cx)),
                Poll::Ready(Ok(())) | Poll::Pending => {}
            }
            match down.poll(cx, local, &mut read, stream) {
                Poll::Ready(Ok(())) => return Poll::Ready(Ok(())),
                Poll::Ready(Err(download::Broken::Client)) => return Poll::Ready(Err(Failed::Gone)),
                Poll::Ready(Err(download::Broken::Backend)) => {
                    return Poll::Ready(Err(Failed::Reset(Reason::INTERNAL_ERROR)));
                }
                Poll::Pending => {}
            }
            let waits = up.waits();
            let (moved, patience, why, reason) = match down.waits_for_client() {
                true => (down.moved(), limits.send_timeout, Refused::SendTimeout, Reason::CANCEL),
                // Either direction keeps the other alive.
                false if waits == Waits::Client => {
                    let patience = silence(limits.body_timeout.max(limits.response_timeout));
                    (down.moved() + up.moved, patience, Refused::Slow, Reason::CANCEL)
                }
                false => {
                    let moved = down.moved() + up.moved;
                    (moved, silence(limits.response_timeout), Refused::ResponseTimeout, Reason::INTERNAL_ERROR)
                }
            };
            let state = (moved, down.waits_for_client(), waits == Waits::Client);
            ready!(stall.poll(cx, state, patience));
            local.counts.refused(why);
            Poll::Ready(Err(Failed::Reset(reason)))
        })
        .await
    }
}

/// Watches that something moves.
#[derive(Default)]
struct Stall {
    deadline: Deadline,
    /// The bytes moved, and the end waited for, when the deadline was set.
    seen: Option<(u64, bool, bool)>,
}

impl Stall {
    /// Ready when nothing has changed for so long.
    fn poll(&mut self, cx: &mut Context<'_>, now: (u64, bool, bool), patience: Duration) -> Poll<()> {
        if self.seen != Some(now) {
            self.seen = Some(now);
            self.deadline.set(patience);
        }
        self.deadline.poll(cx)
    }
}

/// Waits for `future`, unless the client resets the stream, to which no response was sent, or the connection ends.
async fn unless_reset<T>(respond: &mut SendResponse<Bytes>, future: impl Future<Output = T>) -> Result<T, Failed> {
    let mut future = pin!(future);
    std::future::poll_fn(|cx| match respond.poll_reset(cx) {
        Poll::Ready(_) => Poll::Ready(Err(Failed::Gone)),
        Poll::Pending => future.as_mut().poll(cx).map(Ok),
    })
    .await
}

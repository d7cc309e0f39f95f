//! One stream: its request is judged, and answered or forwarded.

use super::download::{Broken, Outgoing};
use super::forward::Forwarding;
use super::grpc;
use super::upload::Upload;
use crate::deadline::Deadline;
use crate::exchange::{self, Client, Judged};
use crate::local::Local;
use crate::pages::Place;
use crate::recording;
use crate::translate;
use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream};
use hairpin_core::l7::body::Length;
use hairpin_core::l7::decision;
use hairpin_core::l7::head::{self, Bounds, FIELDS_MAX, Method, ParseStatus, Request};
use hairpin_core::l7::splice::Refused;
use hairpin_core::record::{self, Ending};
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;
use tokio::time::timeout;

/// Bounds of a head that was written from a header block, whose size HTTP/2 has bounded already.
pub(super) const TRANSLATED: Bounds = Bounds { bytes_max: 64 * 1024, fields_max: FIELDS_MAX, target_bytes_max: 8192 };

/// How long the end of a stream may take whose request says that it has no body: 408.
const END_WITHIN: Duration = Duration::from_secs(2);

/// One stream.
pub(super) struct Stream {
    local: Rc<Local>,
    client: Client,
    /// Its key among the core's connections and streams.
    pub(super) key: u64,
    respond: SendResponse<Bytes>,
    /// Bytes of its response that wait for the client.
    send_buffer: usize,
    /// Whether its request is a call of gRPC, whose errors are statuses of gRPC.
    is_call: bool,
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.local.controls.remove(self.key);
    }
}

/// Why an exchange did not come to its end.
pub(super) enum Failed {
    /// Nothing was sent: the client is answered so.
    Refused(u16, Refused),
    /// The stream is reset.
    Reset(Reason),
    /// The client has reset the stream, or its connection has ended.
    Gone,
}

impl Stream {
    pub(super) fn new(local: &Rc<Local>, client: &Client, respond: SendResponse<Bytes>, send_buffer: usize) -> Stream {
        let (key, control) = local.controls.add_stream(&client.control);
        Stream {
            local: Rc::clone(local),
            client: Client { control, http2: true, ..client.clone() },
            key,
            respond,
            send_buffer,
            is_call: false,
        }
    }

    pub(super) async fn serve(mut self, request: http::Request<RecvStream>) {
        let (parts, mut body) = request.into_parts();
        let is_whole = body.is_end_stream();
        let Ok(head) = translate::request_head(&parts, is_whole) else {
            self.local.counts.refused(Refused::Malformed);
            return self.respond.send_reset(Reason::PROTOCOL_ERROR);
        };
        let is_websocket = translate::is_websocket(&parts);
        let is_empty = parts.headers.get("content-length").is_some_and(|length| length == "0");
        if is_empty && !is_whole && !is_websocket {
            match timeout(END_WITHIN, has_no_data(&mut body)).await {
                Ok(true) => {}
                Ok(false) => {
                    self.local.counts.refused(Refused::Malformed);
                    return self.respond.send_reset(Reason::PROTOCOL_ERROR);
                }
                Err(_) => {
                    let response = self.response(method_of(&head), 408);
                    return self.refuse((408, Refused::Slow), &response, method_of(&head)).await;
                }
            }
        }
        self.is_call = grpc::is_call(&parts.headers);
        let time = grpc::timeout(&parts.headers).filter(|_| self.is_call);
        drop(parts);
        let read = head::request(&head, &self.bounds());
        let judged = match &read {
            // Its length is given, and there is no body.
            Ok(ParseStatus::Complete(request)) if is_whole && request.body != Length::None => {
                self.local.counts.refused(Refused::Malformed);
                return self.respond.send_reset(Reason::PROTOCOL_ERROR);
            }
            Ok(ParseStatus::Complete(request)) if request.method == Method::Connect => {
                self.refusal(&head, Some(request), (501, Refused::Tunnel))
            }
            Ok(ParseStatus::Complete(request)) => {
                exchange::judge(&self.local, &self.client, request, (0, is_websocket))
            }
            Ok(ParseStatus::Partial) => self.refusal(&head, None, (400, Refused::Malformed)),
            Err(bad) => self.refusal(&head, None, decision::of_bad_head(*bad)),
        };
        drop(read);
        match judged {
            Judged::Drop => self.respond.send_reset(Reason::ENHANCE_YOUR_CALM),
            Judged::Refuse { status, why, response } => {
                self.refuse((status, why), &response, method_of(&head)).await;
                Upload::new(Some(body), None).discard().await;
            }
            Judged::Answer { status, response, .. } => {
                self.local.counts.request(self.client.service);
                self.local.counts.reply(self.client.service, status);
                self.answer(&response, method_of(&head)).await;
                Upload::new(Some(body), None).discard().await;
            }
            Judged::Forward(exchange) => match time {
                None => self.forward(*exchange, head, body, is_websocket).await,
                Some(time) => {
                    if timeout(time, self.forward(*exchange, head, body, is_websocket)).await.is_err() {
                        self.expire();
                    }
                }
            },
        }
    }

    /// A request that is refused before it is judged.
    fn refusal(&self, head: &[u8], request: Option<&Request<'_>>, (status, why): (u16, Refused)) -> Judged {
        let response = self.response(method_of(head), status);
        recording::refusal(&self.local, &self.client, request, record::NONE, (status, why, response.len()));
        Judged::Refuse { status, why, response }
    }

    /// The HTTP/1.1 response to a request that is refused before it has a route.
    fn response(&self, method: Method, status: u16) -> Vec<u8> {
        let setup = self.local.setup();
        let place = Place { setup: &setup, service: self.client.service, route: record::NONE };
        exchange::refusal(&self.local, place, status, method == Method::Head, None)
    }

    /// The client's deadline has passed: it is told so, unless the response has begun. The backend's stream is reset.
    fn expire(&mut self) {
        self.local.counts.refused(Refused::ResponseTimeout);
        self.local.counts.reply(self.client.service, 504);
        let response = grpc::failure(grpc::DEADLINE_EXCEEDED, "the deadline of the call has passed");
        if self.respond.send_response(response, true).is_err() {
            self.respond.send_reset(Reason::CANCEL);
        }
    }

    async fn forward(&mut self, mut exchange: exchange::Exchange, head: Vec<u8>, body: RecvStream, is_websocket: bool) {
        self.local.counts.request(self.client.service);
        let method = exchange.method;
        let Some(limits) = exchange.limits() else {
            let response = exchange.refused(&self.local, 503, Refused::NoBackend);
            return self.refuse((503, Refused::NoBackend), &response, method).await;
        };
        let mut tunnel = None;
        let mut up = match exchange.body {
            Length::None => {
                tunnel = is_websocket.then_some(body);
                Upload::new(None, None)
            }
            Length::Chunked => Upload::new(Some(body), Some(limits.body_bound())),
            _ => Upload::new(Some(body), None),
        };
        let local = Rc::clone(&self.local);
        let forwarding = Forwarding {
            local: &local,
            respond: &mut self.respond,
            exchange: &mut exchange,
            limits,
            tunnel,
            accept: translate::expected_accept(&head).filter(|_| is_websocket),
            send_buffer: self.send_buffer,
        };
        // In memory of its own, freed before a refusal is sent.
        let forwarded = Box::pin(forwarding.forward(head, &mut up)).await;
        let mut response = Vec::new();
        match &forwarded {
            Ok(()) => {}
            Err(Failed::Refused(status, why)) => response = exchange.refused(&self.local, *status, *why),
            Err(Failed::Gone) => exchange.broken_off(Ending::Client),
            // As `Delivery` resets it.
            Err(Failed::Reset(Reason::CANCEL)) => exchange.broken_off(Ending::Timeout),
            Err(Failed::Reset(Reason::PROTOCOL_ERROR)) => exchange.broken_off(Ending::Client),
            Err(Failed::Reset(_)) => exchange.broken_off(Ending::Backend),
        }
        // It counts as its backend's load; what is left of the request is none.
        drop(exchange);
        match forwarded {
            Ok(()) => {}
            Err(Failed::Gone) => return,
            Err(Failed::Refused(status, why)) => self.refuse((status, why), &response, method).await,
            Err(Failed::Reset(reason)) => return self.respond.send_reset(reason),
        }
        up.discard().await;
    }

    /// Bounds of the head that a header block is written as: those of the service, but for its bytes.
    fn bounds(&self) -> Bounds {
        let setup = self.local.setup();
        let limits = setup.http(self.client.service).map(|http| http.limits.head_bounds());
        limits.map_or(TRANSLATED, |limits| Bounds { bytes_max: TRANSLATED.bytes_max, ..limits })
    }

    async fn refuse(&mut self, (status, why): (u16, Refused), response: &[u8], method: Method) {
        self.local.counts.refused(why);
        self.local.counts.reply(self.client.service, status);
        self.answer(response, method).await;
    }

    /// Answers with an HTTP/1.1 response of Hairpin's own.
    async fn answer(&mut self, response: &[u8], method: Method) {
        let read = head::response(response, &TRANSLATED, method);
        let Ok(ParseStatus::Complete(read)) = &read else { return self.respond.send_reset(Reason::INTERNAL_ERROR) };
        let Some(out) = translate::response(read) else { return self.respond.send_reset(Reason::INTERNAL_ERROR) };
        if self.is_call && read.status >= 400 {
            let message = String::from_utf8_lossy(read.reason);
            // The client is gone if it cannot be sent.
            let _ = self.respond.send_response(grpc::failure(grpc::status_of(read.status), &message), true);
            return;
        }
        let body = &response[read.bytes.len()..];
        // The client is gone if it cannot be sent.
        let Ok(mut stream) = self.respond.send_response(out, body.is_empty()) else { return };
        if body.is_empty() {
            return;
        }
        let limits = self.local.setup().http(self.client.service).map(|http| http.limits).unwrap_or_default();
        let mut out = Outgoing::new(Bytes::copy_from_slice(body), &mut stream);
        let mut deadline = Deadline::default();
        deadline.set(limits.send_timeout);
        let sent = std::future::poll_fn(|cx| {
            if stream.poll_reset(cx).is_ready() {
                return Poll::Ready(Some(Err(Broken::Client)));
            }
            match out.poll(cx, &mut stream, true) {
                Poll::Pending => deadline.poll(cx).map(|()| None),
                Poll::Ready(sent) => Poll::Ready(Some(sent)),
            }
        });
        if sent.await.is_none() {
            self.local.counts.refused(Refused::SendTimeout);
            self.respond.send_reset(Reason::CANCEL);
        }
    }
}

/// What a response to the request with this head is read for: HEAD gets no body.
fn method_of(head: &[u8]) -> Method {
    if head.starts_with(b"HEAD ") { Method::Head } else { Method::Get }
}

/// Waits for the end of a stream whose length is 0: whether it came without data, as it must (RFC 9113, 8.1.1).
async fn has_no_data(body: &mut RecvStream) -> bool {
    while let Some(data) = body.data().await {
        if !data.is_ok_and(|data| data.is_empty()) {
            return false;
        }
    }
    true
}

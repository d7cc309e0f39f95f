//! A client that speaks HTTP/2: its streams, each of them an exchange with a backend over HTTP/1.1.

use crate::backend::BackendConn;
use crate::deadline::Deadline;
use crate::exchange::{self, Answered, Client, Exchange, Judged};
use crate::local::Local;
use crate::pump::{self, BodyEnd};
use crate::translate;
use crate::unchunk::Unchunker;
use bytes::Bytes;
use h2::server::{Builder, Connection, SendResponse};
use h2::{Reason, RecvStream, SendStream};
use hairpin_core::l7::body::{Chunks, Length};
use hairpin_core::l7::config::HttpLimits;
use hairpin_core::l7::decision;
use hairpin_core::l7::head::{self, Bounds, FIELDS_MAX, Method, ParseStatus};
use hairpin_core::l7::splice::{Fault, Refused};
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::time::timeout;

/// Bytes that a client may send on one stream before they have gone on to a backend.
const STREAM_WINDOW: u32 = 256 * 1024;
/// Bytes that it may send on all its streams.
const CONNECTION_WINDOW: u32 = 1 << 20;
/// Bytes of responses that wait for a client, on one stream.
const SEND_BUFFER: usize = 256 * 1024;
/// Streams that a client has reset and that are still remembered at most; beyond that the connection ends
/// (ENHANCE_YOUR_CALM): what a client gains by resetting at once is bounded (CVE-2023-44487).
const RESET_STREAMS_MAX: usize = 50;
/// Bytes of the largest frame that a client may send.
const FRAME_BYTES_MAX: u32 = 16 * 1024;
/// Bounds of a head that was written from a header block, whose size HTTP/2 has bounded already.
const TRANSLATED: Bounds = Bounds { bytes_max: 64 * 1024, fields_max: FIELDS_MAX, target_bytes_max: 8192 };

/// Serves a client until one of both closes.
pub(crate) async fn serve<S>(local: &Rc<Local>, client: &Client, streams_max: u32, io: S)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let Some(limits) = local.setup().http(client.service).map(|http| http.limits) else { return };
    let mut builder = Builder::new();
    builder
        .max_concurrent_streams(streams_max)
        .max_header_list_size(limits.head_bytes_max.into())
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buffer_size(SEND_BUFFER)
        .max_frame_size(FRAME_BYTES_MAX)
        .max_concurrent_reset_streams(RESET_STREAMS_MAX)
        .max_pending_accept_reset_streams(RESET_STREAMS_MAX);
    let Ok(Ok(mut connection)) = timeout(limits.head_timeout, builder.handshake(io)).await else { return };
    let open = Rc::new(());
    let mut deadline = Deadline::default();
    deadline.set(limits.idle_timeout);
    while let Some((request, respond)) = next(&mut connection, (client, &open), &mut deadline, &limits).await {
        let (key, control) = local.controls.add_stream(&client.control);
        let client = Client { control, ..client.clone() };
        let stream = Stream { local: Rc::clone(local), client, key, respond, _open: Rc::clone(&open) };
        let task = tokio::task::spawn_local(stream.serve(request));
        local.controls.set_task(key, task.abort_handle());
    }
}

/// The next request. `None`: the connection is over.
async fn next<S: AsyncRead + AsyncWrite + Unpin>(
    connection: &mut Connection<S, Bytes>,
    (client, open): (&Client, &Rc<()>),
    deadline: &mut Deadline,
    limits: &HttpLimits,
) -> Option<(http::Request<RecvStream>, SendResponse<Bytes>)> {
    let mut is_told = false;
    std::future::poll_fn(|cx| {
        loop {
            if !is_told && client.control.poll_draining(cx) {
                // GOAWAY: the client sends its next requests elsewhere.
                is_told = true;
                connection.graceful_shutdown();
            }
            match connection.poll_accept(cx) {
                Poll::Ready(Some(Ok(accepted))) => {
                    deadline.set(limits.idle_timeout);
                    return Poll::Ready(Some(accepted));
                }
                Poll::Ready(_) => return Poll::Ready(None),
                Poll::Pending => {}
            }
            if deadline.poll(cx).is_pending() {
                return Poll::Pending;
            }
            // Each stream has a share of `open`.
            if Rc::strong_count(open) == 1 {
                connection.graceful_shutdown();
            }
            deadline.set(limits.idle_timeout);
        }
    })
    .await
}

/// One stream.
struct Stream {
    local: Rc<Local>,
    client: Client,
    /// Its key among the core's connections and streams.
    key: u64,
    respond: SendResponse<Bytes>,
    _open: Rc<()>,
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.local.controls.remove(self.key);
    }
}

/// Why an exchange did not come to its end.
enum Failed {
    /// Nothing was sent: the client is answered so.
    Refused(u16, Refused),
    /// The stream is reset.
    Reset(Reason),
}

impl Stream {
    async fn serve(mut self, request: http::Request<RecvStream>) {
        let (parts, body) = request.into_parts();
        let is_whole = body.is_end_stream();
        let Ok(head) = translate::request_head(&parts, is_whole) else {
            self.local.counts.refused(Refused::Malformed);
            return self.respond.send_reset(Reason::PROTOCOL_ERROR);
        };
        drop(parts);
        let read = head::request(&head, &self.bounds());
        let judged = match &read {
            // Its length is given, and there is no body.
            Ok(ParseStatus::Complete(request)) if is_whole && request.body != Length::None => {
                self.local.counts.refused(Refused::Malformed);
                return self.respond.send_reset(Reason::PROTOCOL_ERROR);
            }
            Ok(ParseStatus::Complete(request)) if request.method == Method::Connect => {
                Judged::Refuse { status: 501, why: Refused::Tunnel }
            }
            Ok(ParseStatus::Complete(request)) => exchange::judge(&self.local, &self.client, request, 0),
            Ok(ParseStatus::Partial) => Judged::Refuse { status: 400, why: Refused::Malformed },
            Err(bad) => {
                let (status, why) = decision::of_bad_head(*bad);
                Judged::Refuse { status, why }
            }
        };
        drop(read);
        match judged {
            Judged::Refuse { status, why } => self.refuse(status, why, Method::Get),
            Judged::Answer { response, .. } => {
                self.count();
                self.local.counts.change(|statistics| statistics.http.replies += 1);
                let method = if head.starts_with(b"HEAD ") { Method::Head } else { Method::Get };
                self.answer(&response, method);
            }
            Judged::Forward(mut exchange) => {
                self.count();
                let method = exchange.method;
                match Box::pin(self.forward(&mut exchange, &head, body)).await {
                    Ok(()) => {}
                    Err(Failed::Refused(status, why)) => self.refuse(status, why, method),
                    Err(Failed::Reset(reason)) => self.respond.send_reset(reason),
                }
            }
        }
    }

    /// Bounds of the head that a header block is written as: those of the service, but for its bytes.
    fn bounds(&self) -> Bounds {
        let setup = self.local.setup();
        let limits = setup.http(self.client.service).map(|http| http.limits.head_bounds());
        limits.map_or(TRANSLATED, |limits| Bounds { bytes_max: TRANSLATED.bytes_max, ..limits })
    }

    fn count(&self) {
        self.local.counts.change(|statistics| statistics.http.requests += 1);
        self.local.counts.service(self.client.service, |service| service.requests += 1);
    }

    fn refuse(&mut self, status: u16, why: Refused, method: Method) {
        self.local.counts.refused(why);
        self.local.counts.change(|statistics| statistics.http.replies += 1);
        let response = exchange::refusal(&self.local, status, method == Method::Head);
        self.answer(&response, method);
    }

    /// Answers with an HTTP/1.1 response of Hairpin's own.
    fn answer(&mut self, response: &[u8], method: Method) {
        let read = head::response(response, &TRANSLATED, method);
        let Ok(ParseStatus::Complete(read)) = &read else { return self.respond.send_reset(Reason::INTERNAL_ERROR) };
        let Some(out) = translate::response(read) else { return self.respond.send_reset(Reason::INTERNAL_ERROR) };
        let body = &response[read.bytes.len()..];
        // The client is gone if it cannot be sent.
        if let Ok(mut stream) = self.respond.send_response(out, body.is_empty())
            && !body.is_empty()
        {
            let _ = stream.send_data(Bytes::copy_from_slice(body), true);
        }
    }

    async fn forward(&mut self, exchange: &mut Exchange, head: &[u8], mut body: RecvStream) -> Result<(), Failed> {
        let limits = exchange.http().map(|http| http.limits).ok_or(Failed::Refused(503, Refused::NoBackend))?;
        let local = Rc::clone(&self.local);
        let mut conn = exchange.acquire(&local).await.map_err(|(status, why)| Failed::Refused(status, why))?;
        loop {
            let is_reused = conn.requests > 0;
            let sent = exchange.request_head(&local, head, &conn);
            let sent = sent.ok_or(Failed::Refused(400, Refused::Malformed))?;
            conn.requests += 1;
            let mut deadline = Deadline::default();
            let has_body = exchange.body != Length::None;
            let (mut read, mut write) = conn.tcp.split();
            let begun = match pump::write(&mut write, &sent, &mut deadline, limits.response_timeout).await {
                Err(_) => Err(io::ErrorKind::ConnectionReset.into()),
                Ok(()) if has_body => return self.with_body(exchange, conn, &mut body, &limits).await,
                Ok(()) => begin(&local, &mut read, &mut deadline, &limits).await,
            };
            match begun {
                Ok(response) => {
                    let mut incoming = Incoming { response, deadline };
                    let keep = self.respond(exchange, &mut read, &mut incoming, &limits).await?;
                    exchange.keep(&local, conn, keep);
                    return Ok(());
                }
                // A kept connection that its backend closes while the next request is on its way says nothing of it.
                Err(error) if is_reused && exchange.is_idempotent && !has_body && !is_timeout(&error) => {
                    let again = exchange.connect_again(&local).await;
                    conn = again.map_err(|(status, why)| Failed::Refused(status, why))?;
                }
                Err(error) => return Err(lost(&local, exchange, &error, is_reused)),
            }
        }
    }

    /// A request with a body, whose head has been sent.
    async fn with_body(
        &mut self,
        exchange: &mut Exchange,
        mut conn: BackendConn,
        body: &mut RecvStream,
        limits: &HttpLimits,
    ) -> Result<(), Failed> {
        let local = Rc::clone(&self.local);
        let (keep, is_whole) = self.both_ways(exchange, &mut conn, body, limits).await?;
        exchange.keep(&local, conn, keep && is_whole);
        Ok(())
    }

    /// Sends a request's body while the response is waited for and delivered: whether the backend keeps the connection, and
    /// whether all of the body has been sent.
    async fn both_ways(
        &mut self,
        exchange: &Exchange,
        conn: &mut BackendConn,
        body: &mut RecvStream,
        limits: &HttpLimits,
    ) -> Result<(bool, bool), Failed> {
        let local = Rc::clone(&self.local);
        let is_reused = conn.requests > 1;
        let (mut read, mut write) = conn.tcp.split();
        let is_chunked = exchange.body == Length::Chunked;
        let mut up = pin!(upload(body, &mut write, is_chunked, limits));
        let mut uploaded = None;
        let mut deadline = Deadline::default();
        let mut response = Vec::new();
        let begun = std::future::poll_fn(|cx| {
            if uploaded.is_none()
                && let Poll::Ready(done) = up.as_mut().poll(cx)
            {
                uploaded = Some(done);
                // A body may take any time, as long as some of it comes; the response's time begins behind it.
                deadline.set(limits.response_timeout);
            }
            if let Some(failed) = failed(&uploaded) {
                return Poll::Ready(Err(failed));
            }
            let read = match pump::poll_read(cx, &local, &mut read, &mut response) {
                Poll::Pending => deadline.poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into())),
                Poll::Ready(Ok(0)) => Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                ready => ready,
            };
            read.map_err(|error| lost(&local, exchange, &error, is_reused))
        });
        begun.await?;
        let mut incoming = Incoming { response, deadline };
        let mut down = pin!(self.respond(exchange, &mut read, &mut incoming, limits));
        let keep = std::future::poll_fn(|cx| {
            if uploaded.is_none()
                && let Poll::Ready(done) = up.as_mut().poll(cx)
            {
                uploaded = Some(done);
            }
            down.as_mut().poll(cx)
        })
        .await?;
        Ok((keep, matches!(uploaded, Some(Ok(())))))
    }

    /// Delivers a response that has begun. Whether the backend's connection can be kept.
    async fn respond(
        &mut self,
        exchange: &Exchange,
        read: &mut ReadHalf<'_>,
        incoming: &mut Incoming,
        limits: &HttpLimits,
    ) -> Result<bool, Failed> {
        const BAD: Failed = Failed::Refused(502, Refused::BadResponse);
        let local = &self.local;
        let answered = loop {
            match exchange.response_head(local, &incoming.response) {
                Ok(ParseStatus::Complete(answered)) if answered.is_interim() => {
                    incoming.response.drain(..answered.head_bytes);
                    continue;
                }
                Ok(ParseStatus::Complete(answered)) => break answered,
                Ok(ParseStatus::Partial) => {}
                Err(()) => return Err(BAD),
            }
            incoming.deadline.set(limits.response_timeout);
            match pump::read(local, read, &mut incoming.response, &mut incoming.deadline).await {
                Ok(0) => return Err(lost(local, exchange, &io::ErrorKind::UnexpectedEof.into(), false)),
                Ok(_) => {}
                Err(error) => return Err(lost(local, exchange, &error, false)),
            }
        };
        if answered.body == Length::Tunnel {
            return Err(BAD);
        }
        let head = answered.written.as_deref().unwrap_or(&incoming.response);
        let parsed = head::response(head, &TRANSLATED, exchange.method);
        let Ok(ParseStatus::Complete(parsed)) = &parsed else { return Err(BAD) };
        let out = translate::response(parsed).ok_or(BAD)?;
        let is_whole = answered.body == Length::None;
        let Ok(mut stream) = self.respond.send_response(out, is_whole) else {
            return Err(Failed::Reset(Reason::CANCEL));
        };
        if is_whole {
            return Ok(answered.keep_alive && incoming.response.len() == answered.head_bytes);
        }
        let mut download = Download { local, read, stream: &mut stream, limits, deadline: &mut incoming.deadline };
        match download.run(&answered, &incoming.response[answered.head_bytes..]).await {
            Ok(is_clean) => Ok(answered.keep_alive && is_clean && answered.body != Length::UntilClose),
            Err(reason) => {
                stream.send_reset(reason);
                Err(Failed::Reset(reason))
            }
        }
    }
}

/// What was read of a response.
struct Incoming {
    response: Vec<u8>,
    deadline: Deadline,
}

fn is_timeout(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::TimedOut
}

/// A backend has failed a request before its response was there.
fn lost(local: &Local, exchange: &Exchange, error: &io::Error, is_reused: bool) -> Failed {
    if is_timeout(error) {
        exchange.failed(local, Fault::Silent);
        return Failed::Refused(504, Refused::ResponseTimeout);
    }
    if !is_reused {
        exchange.failed(local, Fault::Lost);
    }
    Failed::Refused(502, Refused::BackendClosed)
}

/// Waits for the first bytes of a response to a request that has been sent.
async fn begin(
    local: &Local,
    read: &mut ReadHalf<'_>,
    deadline: &mut Deadline,
    limits: &HttpLimits,
) -> io::Result<Vec<u8>> {
    deadline.set(limits.response_timeout);
    begin_when(local, read, deadline).await
}

async fn begin_when(local: &Local, read: &mut ReadHalf<'_>, deadline: &mut Deadline) -> io::Result<Vec<u8>> {
    let mut response = Vec::new();
    match pump::read(local, read, &mut response, deadline).await? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(response),
    }
}

/// Why a request's body did not get to its backend.
enum Upload {
    /// The client has reset the stream, or sends nothing any more.
    Client,
    /// The client is answered so.
    Refused(u16, Refused),
    /// The backend takes no more of it.
    Backend,
}

/// What an upload that has ended means for a request whose response has not begun. A backend that takes no more of it may have
/// answered before it closed.
fn failed(uploaded: &Option<Result<(), Upload>>) -> Option<Failed> {
    match uploaded {
        Some(Err(Upload::Refused(status, why))) => Some(Failed::Refused(*status, *why)),
        Some(Err(Upload::Client)) => Some(Failed::Reset(Reason::CANCEL)),
        Some(Ok(()) | Err(Upload::Backend)) | None => None,
    }
}

/// Sends a request's body on; in chunks, if its length is not known.
async fn upload(
    body: &mut RecvStream,
    write: &mut WriteHalf<'_>,
    is_chunked: bool,
    limits: &HttpLimits,
) -> Result<(), Upload> {
    // It also reads what is written here: trailers have its bounds, and its forbidden names.
    let mut chunks = Chunks::at_most(limits.body_bound());
    let mut deadline = Deadline::default();
    loop {
        let data = match timeout(limits.body_timeout, body.data()).await {
            Err(_) => return Err(Upload::Refused(408, Refused::Slow)),
            Ok(Some(Err(_))) => return Err(Upload::Client),
            Ok(Some(Ok(data))) => data,
            Ok(None) => break,
        };
        let length = data.len();
        if length == 0 {
            continue;
        }
        if is_chunked {
            let size = format!("{length:x}\r\n");
            let fed = chunks.feed(size.as_bytes()).and_then(|_| chunks.feed(&data)).and_then(|_| chunks.feed(b"\r\n"));
            fed.map_err(|bad| {
                let (status, why) = Refused::of_chunks(bad);
                Upload::Refused(status, why)
            })?;
            let chunk = [size.as_bytes(), &data, b"\r\n"].concat();
            put(write, &chunk, &mut deadline, limits).await?;
        } else {
            put(write, &data, &mut deadline, limits).await?;
        }
        let _ = body.flow_control().release_capacity(length);
    }
    let trailers = body.trailers().await.map_err(|_| Upload::Client)?;
    if is_chunked {
        let lines = trailers.as_ref().map(translate::trailer_lines).unwrap_or_default();
        let last = [b"0\r\n", &lines[..], b"\r\n"].concat();
        chunks.feed(&last).map_err(|bad| {
            let (status, why) = Refused::of_chunks(bad);
            Upload::Refused(status, why)
        })?;
        put(write, &last, &mut deadline, limits).await?;
    }
    Ok(())
}

async fn put(
    write: &mut WriteHalf<'_>,
    bytes: &[u8],
    deadline: &mut Deadline,
    limits: &HttpLimits,
) -> Result<(), Upload> {
    pump::write(write, bytes, deadline, limits.response_timeout).await.map_err(|_| Upload::Backend)
}

/// A response's body on its way to a stream.
struct Download<'a, 'b> {
    local: &'a Local,
    read: &'a mut ReadHalf<'b>,
    stream: &'a mut SendStream<Bytes>,
    limits: &'a HttpLimits,
    deadline: &'a mut Deadline,
}

impl Download<'_, '_> {
    /// Whether nothing was read behind the body.
    ///
    /// # Errors
    /// The reason with which the stream is reset.
    async fn run(&mut self, answered: &Answered, first: &[u8]) -> Result<bool, Reason> {
        if answered.body == Length::Chunked {
            return self.chunked(first).await;
        }
        let mut end = BodyEnd::of(answered.body, Chunks::of_response());
        let taken = end.feed(first).map_err(|_| Reason::INTERNAL_ERROR)?;
        let mut rest = &first[..taken];
        while !rest.is_empty() {
            let room = self.room(rest.len()).await?;
            let (now, later) = rest.split_at(room.min(rest.len()));
            rest = later;
            self.send(now, rest.is_empty() && end.is_reached())?;
        }
        while !end.is_reached() {
            let most = match end {
                BodyEnd::Bytes(left) => usize::try_from(left).unwrap_or(usize::MAX).min(SEND_BUFFER),
                _ => SEND_BUFFER,
            };
            let room = self.room(most).await?;
            let data = self.some(room.min(most)).await?;
            if data.is_empty() {
                // Only a body that its sender's end ends may end here.
                let is_end = matches!(end, BodyEnd::Close);
                return if is_end { self.send(&[], true).map(|()| false) } else { Err(Reason::INTERNAL_ERROR) };
            }
            end.feed(&data).map_err(|_| Reason::INTERNAL_ERROR)?;
            self.stream.send_data(data, end.is_reached()).map_err(|_| Reason::CANCEL)?;
        }
        Ok(taken == first.len())
    }

    async fn chunked(&mut self, first: &[u8]) -> Result<bool, Reason> {
        let mut unchunker = Unchunker::default();
        let mut bytes = Bytes::copy_from_slice(first);
        let mut data = Vec::new();
        loop {
            let taken = unchunker.feed(&bytes, &mut data).map_err(|_| Reason::INTERNAL_ERROR)?;
            let is_done = unchunker.is_done();
            let trailers = if is_done { unchunker.trailers().ok_or(Reason::INTERNAL_ERROR)? } else { None };
            let mut rest = &data[..];
            while !rest.is_empty() {
                let room = self.room(rest.len()).await?;
                let (now, later) = rest.split_at(room.min(rest.len()));
                rest = later;
                self.send(now, rest.is_empty() && is_done && trailers.is_none())?;
            }
            match trailers {
                Some(trailers) => self.stream.send_trailers(trailers).map_err(|_| Reason::CANCEL)?,
                None if is_done && data.is_empty() => self.send(&[], true)?,
                None => {}
            }
            if is_done {
                return Ok(taken == bytes.len());
            }
            data.clear();
            bytes = self.some(SEND_BUFFER / 4).await?;
            if bytes.is_empty() {
                return Err(Reason::INTERNAL_ERROR);
            }
        }
    }

    fn send(&mut self, data: &[u8], is_last: bool) -> Result<(), Reason> {
        self.stream.send_data(Bytes::copy_from_slice(data), is_last).map_err(|_| Reason::CANCEL)
    }

    /// Waits until the stream takes some of `wanted` bytes: how many.
    async fn room(&mut self, wanted: usize) -> Result<usize, Reason> {
        let Download { stream, deadline, limits, local, .. } = self;
        stream.reserve_capacity(wanted);
        let mut is_set = false;
        std::future::poll_fn(|cx| {
            let capacity = stream.capacity();
            if capacity > 0 {
                return Poll::Ready(Ok(capacity));
            }
            match stream.poll_capacity(cx) {
                Poll::Ready(Some(Ok(capacity))) if capacity > 0 => return Poll::Ready(Ok(capacity)),
                Poll::Ready(Some(Ok(_))) => {}
                Poll::Ready(_) => return Poll::Ready(Err(Reason::CANCEL)),
                Poll::Pending => {}
            }
            if !is_set {
                deadline.set(limits.send_timeout);
                is_set = true;
            }
            deadline.poll(cx).map(|()| {
                local.counts.refused(Refused::SendTimeout);
                Err(Reason::CANCEL)
            })
        })
        .await
    }

    /// The next bytes of the backend, at most so many; none: it has closed.
    async fn some(&mut self, most: usize) -> Result<Bytes, Reason> {
        let Download { read, deadline, limits, local, stream } = self;
        deadline.set(limits.response_timeout);
        std::future::poll_fn(|cx| {
            // A client that has reset the stream wants no more of it.
            if stream.poll_reset(cx).is_ready() {
                return Poll::Ready(Err(Reason::CANCEL));
            }
            let mut copied = local.copied.borrow_mut();
            let most = most.min(copied.len());
            let mut buffer = ReadBuf::new(&mut copied[..most]);
            match std::pin::Pin::new(&mut **read).poll_read(cx, &mut buffer) {
                Poll::Ready(Ok(())) => Poll::Ready(Ok(Bytes::copy_from_slice(buffer.filled()))),
                Poll::Ready(Err(_)) => Poll::Ready(Err(Reason::INTERNAL_ERROR)),
                Poll::Pending => deadline.poll(cx).map(|()| Err(Reason::INTERNAL_ERROR)),
            }
        })
        .await
    }
}

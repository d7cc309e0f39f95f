//! Backends that speak HTTP/2: connections of one core that many requests share, each on a stream.
//!
//! | module | what it is |
//! |---|---|
//! | [`stream`] | a stream, as a request's side of HTTP/1.1 |
//! | [`translated`] | heads of HTTP/1.1 as header blocks, and the other way round |
//!
//! A stream takes the bytes of an HTTP/1.1 request and gives those of an HTTP/1.1 response. So clients of both protocols reach
//! such backends by the code that reaches all others, and what comes from a backend is read by the one strict reader.
//!
//! The h2 crate keeps to HTTP/2 and to flow control. A connection's window has room for the windows of all its streams, so a
//! client that does not read its response stops no other stream.

mod stream;
mod translated;

/// Bounds of a connection to a backend; `hairpin limits` lists them.
pub mod limits {
    pub use super::{HEADER_LIST_MAX, SEND_BUFFER, STREAM_WINDOW, STREAMS_MAX};
}

pub(crate) use stream::Http2Stream;
pub(crate) use translated::Unfit;

use crate::backend::{Counted, count_failed, open};
use crate::backend_stream::BackendStream;
use crate::backend_tls::BackendTls;
use crate::local::Counts;
use bytes::Bytes;
use h2::Ping;
use h2::client::{Builder, SendRequest};
use hairpin_core::flow::Endpoint;
use hairpin_core::l7::splice::limits::CLOSING_TIMEOUT;
use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep, timeout_at};

/// Streams of one connection at a time: further requests go over another connection. A backend may allow fewer.
pub const STREAMS_MAX: usize = 100;
/// Bytes of one response that a backend may send before they have gone on to the client.
pub const STREAM_WINDOW: u32 = 128 * 1024;
/// Bytes of all responses of a connection.
const CONNECTION_WINDOW: u32 = STREAM_WINDOW * STREAMS_MAX as u32;
/// Bytes of a request that wait for its backend at most.
pub const SEND_BUFFER: usize = 128 * 1024;
/// Bytes of the header list of a response, or of its trailers, at most, 32 bytes added for each field (RFC 9113, 6.5.2).
pub const HEADER_LIST_MAX: u32 = 64 * 1024;

/// How a connection to a backend is made.
pub(crate) struct Ways<'a> {
    pub(crate) endpoint: Endpoint,
    /// TLS whose ALPN is `h2`; `None`: HTTP/2 in clear text, by prior knowledge (RFC 9113, 3.3).
    pub(crate) tls: Option<&'a Rc<BackendTls>>,
    /// How long it may take.
    pub(crate) within: Duration,
}

/// A connection, held by the pool and by its streams.
pub(crate) struct Http2Conn {
    send: SendRequest<Bytes>,
    tls: Option<Rc<BackendTls>>,
    /// Streams that requests have.
    streams: Cell<usize>,
    /// Since when it has had none.
    idle_since: Cell<Instant>,
    /// The connection gets no further requests: the backend did not answer one.
    is_retired: Cell<bool>,
    /// Requests that it was sent.
    requests: Cell<u32>,
    counts: Rc<Counts>,
    /// Dropped with the last of those that hold it: then its task has `CLOSING_TIMEOUT` to close it.
    _held: oneshot::Sender<()>,
}

impl Http2Conn {
    /// Connects, and waits until the backend has shown that it speaks HTTP/2.
    async fn connect(counts: &Rc<Counts>, number: u16, ways: &Ways<'_>) -> io::Result<Rc<Http2Conn>> {
        let end = Instant::now() + ways.within;
        let (stream, counted) = open(counts, number, ways.endpoint, (ways.tls, b""), ways.within).await?;
        let greeted = match ways.tls.is_some() && !stream.has_agreed_on_http2() {
            true => Err(io::Error::new(io::ErrorKind::InvalidData, "the backend does not offer HTTP/2 (ALPN)")),
            false => {
                timeout_at(end, greet(stream, counted)).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
            }
        };
        let (send, held) = greeted.inspect_err(|error| count_failed(counts, number, error))?;
        counts.change(|statistics| statistics.http.idle_now += 1);
        Ok(Rc::new(Http2Conn {
            send,
            tls: ways.tls.cloned(),
            streams: Cell::new(0),
            idle_since: Cell::new(Instant::now()),
            is_retired: Cell::new(false),
            requests: Cell::new(0),
            counts: Rc::clone(counts),
            _held: held,
        }))
    }

    /// Whether another request can go over it at once.
    fn has_room(&self, tls: Option<&Rc<BackendTls>>) -> bool {
        let most = STREAMS_MAX.min(self.send.current_max_send_streams());
        self.streams.get() < most && self.tls.as_ref() == tls && !self.is_retired.get()
    }

    /// Whether the backend closes it, or it gets no more requests.
    fn is_over(&self) -> bool {
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        self.is_retired.get() || matches!(self.send.clone().poll_ready(&mut cx), std::task::Poll::Ready(Err(_)))
    }

    /// A stream for a request.
    fn stream(self: &Rc<Http2Conn>, endpoint: Endpoint) -> Http2Stream {
        if self.streams.replace(self.streams.get() + 1) == 0 {
            self.counts.change(|statistics| statistics.http.idle_now -= 1);
        }
        self.requests.set(self.requests.get().saturating_add(1));
        Http2Stream::new(StreamHold(Rc::clone(self)), endpoint)
    }
}

impl Drop for Http2Conn {
    fn drop(&mut self) {
        // Streams hold it, so it has none.
        self.counts.change(|statistics| statistics.http.idle_now -= 1);
    }
}

/// Holds a connection for a stream of it.
struct StreamHold(Rc<Http2Conn>);

impl Drop for StreamHold {
    fn drop(&mut self) {
        let streams = self.0.streams.get() - 1;
        self.0.streams.set(streams);
        if streams == 0 {
            self.0.idle_since.set(Instant::now());
            self.0.counts.change(|statistics| statistics.http.idle_now += 1);
        }
    }
}

/// The connections to one backend.
#[derive(Default)]
pub(crate) struct Http2Conns {
    conns: RefCell<Vec<Rc<Http2Conn>>>,
    /// Connections that are being made.
    connecting: Cell<usize>,
    /// Requests that wait for one of these.
    waiting: Cell<usize>,
    /// A connection has been made, or could not be.
    changed: Notify,
}

impl Http2Conns {
    /// A stream on a connection with room, on a new one if there is none; and how many requests its connection had before.
    /// Requests that come while a connection is being made wait for it.
    ///
    /// # Errors
    /// As those of [`open`].
    pub(crate) async fn stream(
        &self,
        counts: &Rc<Counts>,
        number: u16,
        ways: &Ways<'_>,
    ) -> io::Result<(Http2Stream, u32)> {
        let end = Instant::now() + ways.within;
        loop {
            if let Some(conn) = self.with_room(ways.tls) {
                let before = conn.requests.get();
                return Ok((conn.stream(ways.endpoint), before));
            }
            if self.waiting.get() >= self.connecting.get() * STREAMS_MAX {
                let _connecting = Connecting::new(self);
                let conn = Http2Conn::connect(counts, number, ways).await?;
                let stream = conn.stream(ways.endpoint);
                self.conns.borrow_mut().push(conn);
                return Ok((stream, 0));
            }
            let _waiting = Waiting::new(self);
            let changed = timeout_at(end, self.changed.notified()).await;
            changed.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?;
        }
    }

    /// The fullest connection with room: so that the others become idle. Those that are over are forgotten.
    fn with_room(&self, tls: Option<&Rc<BackendTls>>) -> Option<Rc<Http2Conn>> {
        let mut conns = self.conns.borrow_mut();
        conns.retain(|conn| !conn.is_over());
        let conn = conns.iter().filter(|conn| conn.has_room(tls)).max_by_key(|conn| conn.streams.get())?;
        conn.counts.change(|statistics| statistics.http.reused += 1);
        Some(Rc::clone(conn))
    }

    /// Forgets connections that are over, or were idle for longer than `longest`; whether any is left.
    pub(crate) fn sweep(&self, longest: Duration) -> bool {
        let mut conns = self.conns.borrow_mut();
        let is_idle = |conn: &Http2Conn| conn.streams.get() == 0 && conn.idle_since.get().elapsed() > longest;
        conns.retain(|conn| !conn.is_over() && !is_idle(conn));
        !conns.is_empty() || self.connecting.get() > 0
    }

    /// Forgets all connections: they close when their streams have ended.
    pub(crate) fn clear(&self) {
        self.conns.borrow_mut().clear();
    }
}

/// A request that makes a connection. When it is dropped, those that wait look again.
struct Connecting<'a>(&'a Http2Conns);

impl Connecting<'_> {
    fn new(conns: &Http2Conns) -> Connecting<'_> {
        conns.connecting.set(conns.connecting.get() + 1);
        Connecting(conns)
    }
}

impl Drop for Connecting<'_> {
    fn drop(&mut self) {
        self.0.connecting.set(self.0.connecting.get() - 1);
        self.0.changed.notify_waiters();
    }
}

/// A request that waits for a connection.
struct Waiting<'a>(&'a Http2Conns);

impl Waiting<'_> {
    fn new(conns: &Http2Conns) -> Waiting<'_> {
        conns.waiting.set(conns.waiting.get() + 1);
        Waiting(conns)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.set(self.0.waiting.get() - 1);
    }
}

/// Begins HTTP/2 on a stream, whose task goes on until both have closed it. The backend has shown that it speaks HTTP/2, and its
/// settings are known: it answers a PING behind them (RFC 9113, 3.4).
async fn greet(stream: BackendStream, counted: Counted) -> io::Result<(SendRequest<Bytes>, oneshot::Sender<()>)> {
    let mut builder = Builder::new();
    builder
        .enable_push(false)
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buffer_size(SEND_BUFFER)
        .max_header_list_size(HEADER_LIST_MAX);
    let (send, mut connection) = builder.handshake(stream).await.map_err(failed)?;
    let ping = connection.ping_pong();
    let (held, let_go) = oneshot::channel::<()>();
    tokio::task::spawn_local(async move {
        let patience = async {
            let _ = let_go.await;
            sleep(CLOSING_TIMEOUT).await;
        };
        tokio::select! {
            _ = connection => {}
            () = patience => {}
        }
        drop(counted);
    });
    if let Some(mut ping) = ping {
        ping.ping(Ping::opaque()).await.map_err(failed)?;
    }
    Ok((send, held))
}

/// The reason why a connection of HTTP/2 has failed.
fn failed(error: h2::Error) -> io::Error {
    match error.is_io() {
        true => error.into_io().unwrap_or_else(|| io::ErrorKind::ConnectionReset.into()),
        false => io::Error::new(io::ErrorKind::InvalidData, error),
    }
}

//! A client that speaks HTTP/2: its streams, each of them an exchange with a backend over HTTP/1.1.
//!
//! | module | what it is |
//! |---|---|
//! | [`stream`] | a stream: its request is judged, answered or forwarded |
//! | [`forward`] | an exchange with a backend |
//! | [`grpc`] | deadlines and errors of gRPC |
//! | [`upload`], [`download`] | the bodies of request and response |
//! | [`watched`], [`scanner`] | the client's stream below the h2 crate, and the frames in it |
//!
//! The h2 crate keeps to HTTP/2 and to flow control. Time is kept here: a connection ends if it has no stream for too long, if
//! a header block does not end, if the client reads nothing, and for certain a while after GOAWAY. Its streams end with it.

mod download;
mod forward;
mod grpc;
mod scanner;
mod stream;
mod upload;
mod watched;

/// Bounds of a client's connection; `hairpin limits` lists them.
pub mod limits {
    pub use super::forward::INTERIM_MAX;
    pub use super::upload::{DISCARDED_MAX, DISCARDED_WITHIN};
    pub use super::watched::{COUNTED_FOR, IDLE_FRAMES_EACH, IDLE_FRAMES_MAX, RESETS_MAX};
    pub use super::{CONNECTION_WINDOW, FRAME_BYTES_MAX, RESET_STREAMS_MAX, SEND_BUFFER, SEND_BUFFERS, STREAM_WINDOW};
}

use self::stream::Stream;
use self::watched::{Seen, SendProgress, Watched};
use crate::deadline::Deadline;
use crate::exchange::Client;
use crate::http1;
use crate::local::Local;
use bytes::Bytes;
use h2::server::{Builder, Connection, SendResponse};
use h2::{Reason, RecvStream};
use hairpin_core::l7::config::HttpLimits;
use hairpin_core::l7::splice::Refused;
use hairpin_core::l7::splice::limits::CLOSING_TIMEOUT;
use std::cell::RefCell;
use std::rc::Rc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

/// Bytes that a client may send on one stream before they have gone on to a backend.
pub const STREAM_WINDOW: u32 = 256 * 1024;
/// Bytes that it may send on all its streams.
pub const CONNECTION_WINDOW: u32 = 1 << 20;
/// Bytes of responses that wait for a client, on one stream at most ...
pub const SEND_BUFFER: usize = 64 * 1024;
/// ... and at least ...
const SEND_BUFFER_MIN: usize = 16 * 1024;
/// ... and on as many streams as a connection may have.
pub const SEND_BUFFERS: usize = 8 << 20;
/// Streams that were reset and are still remembered, either so that frames that were on their way are ignored, or because they
/// have not been accepted here. More of the second kind end the connection (ENHANCE_YOUR_CALM). Streams that were accepted and
/// then reset are bounded by `watched`, and their tasks by the number of streams.
pub const RESET_STREAMS_MAX: usize = 50;
/// Bytes of the largest frame that a client may send.
pub const FRAME_BYTES_MAX: u32 = 16 * 1024;

/// A request, and where its response goes.
type Accepted = (http::Request<RecvStream>, SendResponse<Bytes>);

/// How a connection has ended.
enum Ended {
    /// All bytes for the client have left, or the client has closed.
    Closed,
    /// The connection is broken off.
    Broken,
}

/// Serves a client until one of both closes.
pub(crate) async fn serve<S>(local: &Rc<Local>, client: &Client, streams_max: u32, mut io: S)
where
    S: AsyncRead + AsyncWrite + SendProgress + Unpin,
{
    let http = local.setup().http(client.service).map(|http| (http.limits, http.upgrade));
    let Some((limits, upgrade)) = http else { return };
    let mut builder = Builder::new();
    builder
        .max_concurrent_streams(streams_max)
        .max_header_list_size(limits.head_bytes_max.into())
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buffer_size(send_buffer(streams_max))
        .max_frame_size(FRAME_BYTES_MAX)
        .max_concurrent_reset_streams(RESET_STREAMS_MAX)
        .max_pending_accept_reset_streams(RESET_STREAMS_MAX);
    if upgrade {
        // WebSockets (RFC 8441).
        builder.enable_connect_protocol();
    }
    let seen = Seen::new(&local.counts);
    let watched = Watched::new(&mut io, Rc::clone(&seen));
    let ended = match timeout(limits.head_timeout, builder.handshake(watched)).await {
        Ok(Ok(connection)) => {
            let serving = Serving {
                local,
                client,
                limits,
                streams_max: usize::try_from(streams_max).unwrap_or(usize::MAX),
                connection,
                seen,
                streams: JoinSet::new(),
                held: None,
                send_buffer: send_buffer(streams_max),
                requests: 0,
                idle_since: None,
                leaving_since: None,
                is_abrupt: false,
                deadline: Deadline::default(),
            };
            serving.run().await
        }
        Ok(Err(error)) => {
            local.counts.change(|statistics| statistics.http2_malformed += u64::from(!error.is_io()));
            Ended::Closed
        }
        Err(_) => {
            local.counts.change(|statistics| statistics.http2_slow += 1);
            Ended::Broken
        }
    };
    if matches!(ended, Ended::Closed) {
        http1::close(local, &mut io, &mut Deadline::default(), limits.send_timeout).await;
    }
}

/// Bytes of a response that wait for a client, on one of so many streams: twice as many, those in h2's queue and those that
/// have been read and wait for room in it.
fn send_buffer(streams_max: u32) -> usize {
    let share = usize::try_from(streams_max).ok().and_then(|streams| SEND_BUFFERS.checked_div(streams));
    share.unwrap_or(SEND_BUFFER).clamp(SEND_BUFFER_MIN, SEND_BUFFER)
}

/// A connection that is served. Its streams end with it.
struct Serving<'a, S> {
    local: &'a Rc<Local>,
    client: &'a Client,
    limits: HttpLimits,
    streams_max: usize,
    connection: Connection<Watched<'a, S>, Bytes>,
    seen: Rc<RefCell<Seen>>,
    /// The tasks of its streams.
    streams: JoinSet<()>,
    /// A request for which there are too many of them, or which comes too late.
    held: Option<Accepted>,
    /// Bytes of a stream's response that wait for the client.
    send_buffer: usize,
    requests: u32,
    /// Since when it has had no stream.
    idle_since: Option<Instant>,
    /// Since when the client has been told to go.
    leaving_since: Option<Instant>,
    /// Its streams do not keep it from closing.
    is_abrupt: bool,
    deadline: Deadline,
}

/// The event that a connection has waited for too long.
enum Expired {
    /// A request.
    Idle,
    /// The end of a header block.
    Block,
    /// The client's taking what it is sent.
    Send,
    /// The client's closing.
    Closing,
}

impl<S: AsyncRead + AsyncWrite + SendProgress + Unpin> Serving<'_, S> {
    async fn run(mut self) -> Ended {
        std::future::poll_fn(|cx| self.poll(cx)).await
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Ended> {
        loop {
            self.reap(cx);
            if let Some((request, mut respond)) = self.held.take() {
                if self.is_full() || self.is_late() {
                    respond.send_reset(Reason::REFUSED_STREAM);
                } else {
                    self.accept(request, respond);
                }
            }
            if self.leaving_since.is_none() && self.client.control.poll_draining(cx) {
                self.leave();
            }
            if self.seen.borrow().is_excessive {
                self.break_off();
            }
            match self.connection.poll_accept(cx) {
                // The h2 crate counts streams that are open. The task of one that was reset ends when it has run.
                Poll::Ready(Some(Ok(accepted))) if self.is_full() || self.is_late() => {
                    self.held = Some(accepted);
                    cx.waker().wake_by_ref();
                }
                Poll::Ready(Some(Ok((request, respond)))) => {
                    self.accept(request, respond);
                    continue;
                }
                Poll::Ready(Some(Err(error))) if error.is_io() => return Poll::Ready(Ended::Broken),
                Poll::Ready(_) => return Poll::Ready(Ended::Closed),
                Poll::Pending => {}
            }
            if self.seen.borrow().is_excessive && !self.is_abrupt {
                continue;
            }
            let Some((until, expired)) = self.expiry() else { return Poll::Pending };
            self.deadline.set(until.saturating_duration_since(Instant::now()));
            if self.deadline.poll(cx).is_pending() {
                return Poll::Pending;
            }
            match expired {
                // GOAWAY: the client sends its next requests elsewhere.
                Expired::Idle => self.leave(),
                Expired::Block => {
                    self.local.counts.change(|statistics| statistics.http2_slow += 1);
                    self.break_off();
                }
                Expired::Send => {
                    self.local.counts.refused(Refused::SendTimeout);
                    return Poll::Ready(Ended::Broken);
                }
                Expired::Closing => {
                    self.local.counts.change(|statistics| statistics.http2_unclosed += 1);
                    return Poll::Ready(Ended::Broken);
                }
            }
        }
    }

    /// Forgets the streams that have ended.
    fn reap(&mut self, cx: &mut Context<'_>) {
        while let Poll::Ready(Some(_)) = self.streams.poll_join_next(cx) {}
        if self.streams.is_empty() {
            self.idle_since.get_or_insert_with(Instant::now);
        } else {
            self.idle_since = None;
        }
    }

    /// The event that the connection waits for first, and until when.
    fn expiry(&self) -> Option<(Instant, Expired)> {
        let (seen, limits) = (self.seen.borrow(), &self.limits);
        let block = seen.block_since.filter(|_| !self.is_abrupt);
        let idle_since = if self.is_abrupt { self.leaving_since } else { self.idle_since };
        let end = idle_since.map(|idle| match self.leaving_since {
            Some(leaving) => (leaving.max(idle) + CLOSING_TIMEOUT, Expired::Closing),
            None => (idle + limits.idle_timeout, Expired::Idle),
        });
        let waits = [
            block.map(|since| (since + limits.head_timeout, Expired::Block)),
            seen.stuck_since.map(|since| (since + limits.send_timeout, Expired::Send)),
            end,
        ];
        waits.into_iter().flatten().min_by_key(|(until, _)| *until)
    }

    /// Tells the client to send no further request.
    fn leave(&mut self) {
        if self.leaving_since.is_none() {
            self.leaving_since = Some(Instant::now());
            self.connection.graceful_shutdown();
        }
    }

    /// Ends the connection, its streams with it.
    fn break_off(&mut self) {
        if !self.is_abrupt {
            self.is_abrupt = true;
            self.leaving_since = Some(Instant::now());
            self.seen.borrow_mut().is_counted = true;
            self.connection.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
        }
    }

    /// Whether the client was told long ago to send its requests elsewhere.
    fn is_late(&self) -> bool {
        self.leaving_since.is_some_and(|since| since.elapsed() >= CLOSING_TIMEOUT)
    }

    fn is_full(&self) -> bool {
        self.streams.len() >= self.streams_max
    }

    fn accept(&mut self, request: http::Request<RecvStream>, respond: SendResponse<Bytes>) {
        self.requests += 1;
        let max = self.limits.requests_max;
        if max > 0 && self.requests >= max {
            self.leave();
        }
        let stream = Stream::new(self.local, self.client, respond, self.send_buffer);
        // The runtime moves a task several times: a pointer is moved sooner than what the task has.
        let (key, task) = (stream.key, self.streams.spawn_local(Box::pin(stream.serve(request))));
        self.local.controls.set_task(key, task);
    }
}

//! One connection: requests in, answers out, all of it bounded.
//!
//! A head has its time and size, and so has the silence before it; an exchange, from the whole head to the last byte handed to the
//! kernel, has its time; a connection gets so many requests and so long, then it ends with the exchange it is in.

use super::{Answerer, Closed};
use hyper::header::{CONNECTION, HeaderValue};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite};

/// How often times are looked at.
const TICK: Duration = Duration::from_secs(1);

/// How far a connection is.
#[derive(Debug, Default)]
pub(super) struct Exchange {
    requests: AtomicU32,
    /// When the request that is being answered was there; `None` between requests.
    since: Mutex<Option<Instant>>,
    /// Its answer is made and only has to be sent.
    answered: AtomicBool,
}

impl Exchange {
    /// Whether a request is being answered.
    pub(super) fn is_open(&self) -> bool {
        self.since().is_some()
    }

    fn since(&self) -> Option<Instant> {
        *self.since.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_since(&self, since: Option<Instant>) {
        *self.since.lock().unwrap_or_else(PoisonError::into_inner) = since;
    }

    /// A request is there; whether its connection may go on after it.
    fn begin(&self, requests_max: u32) -> bool {
        self.set_since(Some(Instant::now()));
        self.requests.fetch_add(1, Ordering::Relaxed) + 1 < requests_max
    }

    fn answered(&self) {
        self.answered.store(true, Ordering::Release);
    }

    /// Everything written so far is in the kernel's hands.
    fn flushed(&self) {
        if self.answered.swap(false, Ordering::AcqRel) {
            self.set_since(None);
        }
    }

    fn is_overdue(&self, patience: Duration) -> bool {
        self.since().is_some_and(|since| since.elapsed() >= patience)
    }
}

/// Serves the client behind `stream` until it or a bound ends it.
pub(super) async fn serve<S, P, A>(stream: S, peer: P, exchange: Arc<Exchange>, answers: Arc<A>)
where
    S: AsyncRead + AsyncWrite + Unpin,
    A: Answerer<P>,
{
    let service = service_fn(|request| {
        let (exchange, answers, peer) = (&exchange, &answers, &peer);
        async move {
            let may_go_on = exchange.begin(A::BOUNDS.requests_max);
            let mut response = answers.respond(request, peer).await;
            if !may_go_on {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            answers.counts().answer(response.status().as_u16());
            exchange.answered();
            Ok::<_, Infallible>(response)
        }
    });
    let io = Watched { stream: TokioIo::new(stream), exchange: Arc::clone(&exchange) };
    let mut connection = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(A::BOUNDS.head_patience)
            .max_buf_size(A::BOUNDS.head_bytes_max)
            .max_headers(A::BOUNDS.headers_max)
            .serve_connection(io, service)
    );
    let began = Instant::now();
    loop {
        match tokio::time::timeout(TICK, connection.as_mut()).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => {
                if let Some(why) = judged(&error, &exchange) {
                    answers.counts().close(why);
                }
                return;
            }
            Err(_) if exchange.is_overdue(A::BOUNDS.exchange_patience) => {
                return answers.counts().close(Closed::Timeout);
            }
            Err(_) if began.elapsed() >= A::BOUNDS.connection_patience => connection.as_mut().graceful_shutdown(),
            Err(_) => {}
        }
    }
}

/// Why a connection has ended; `None`: in order.
fn judged(error: &hyper::Error, exchange: &Exchange) -> Option<Closed> {
    match () {
        // Silence after an answer is the ordinary end.
        () if error.is_timeout() && exchange.requests.load(Ordering::Relaxed) > 0 => None,
        () if error.is_timeout() => Some(Closed::Timeout),
        () if error.is_parse() => Some(Closed::Malformed),
        () => Some(Closed::Broken),
    }
}

/// A stream that tells when an answer has left.
struct Watched<S> {
    stream: TokioIo<S>,
    exchange: Arc<Exchange>,
}

impl<S: AsyncRead + Unpin> Read for Watched<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, into)
    }
}

impl<S: AsyncWrite + Unpin> Write for Watched<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// hyper flushes only once it has nothing left to write.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        if matches!(flushed, Poll::Ready(Ok(()))) {
            self.exchange.flushed();
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

//! One connection: requests in, answers out, all of it bounded.
//!
//! A head has 5 s and 16 KiB, and so has the silence before it; an exchange, from the whole head to the last byte
//! handed to the kernel, has 10 s; a connection gets 100 requests and 30 s, then it ends with the exchange it is in.
//! Requests with a body are refused and their connection closed, so there is never a question where the next one
//! begins (RFC 9112, 11.2: request smuggling).

use super::Answers;
use super::counts::Closed;
use super::page;
use super::source::Format;
use crate::status::Status;
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::{Body, Incoming};
use hyper::header::{
    ACCEPT, ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, HeaderName, HeaderValue,
    REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::io::{self, IoSlice};
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::net::TcpStream;

/// Bytes of a request's head at most.
pub(crate) const HEAD_BYTES_MAX: usize = 16 << 10;
/// Lines of a request's head at most.
pub(crate) const HEADERS_MAX: usize = 64;
/// How long a client may take to send a head.
pub(crate) const HEAD_PATIENCE: Duration = Duration::from_secs(5);
/// How long an exchange may take from there.
pub(crate) const EXCHANGE_PATIENCE: Duration = Duration::from_secs(10);
/// Requests on a connection at most.
pub(crate) const REQUESTS_MAX: u32 = 100;
/// How long a connection may take requests.
pub(crate) const CONNECTION_PATIENCE: Duration = Duration::from_secs(30);
/// How often these times are looked at.
const TICK: Duration = Duration::from_secs(1);

const PATHS: &str = "there is / (a page), /metrics, /status, /offload, /events, /healthz and /ready\n";
const MISDIRECTED: &str = "this is not answered for the host of this URL: use an address or localhost, such as \
    http://127.0.0.1:9560/, or name the host in `hosts` of [metrics]; a proxy in front may send `Host: localhost` instead\n";

/// Fields of every answer. Nothing is kept, nothing but files of the page runs in it, no other site frames or embeds what is
/// here or reads it, and no other site learns from links what it is.
const GUARDS: [(HeaderName, &str); 6] = [
    (CACHE_CONTROL, "no-store"),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (X_FRAME_OPTIONS, "DENY"),
    (REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (
        CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
    ),
];

/// How far a connection is.
#[derive(Debug, Default)]
pub(super) struct MetricsExchange {
    requests: AtomicU32,
    /// When the request that is being answered was there; `None` between requests.
    since: Mutex<Option<Instant>>,
    /// Its answer is made and only has to be sent.
    answered: AtomicBool,
}

impl MetricsExchange {
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
    fn begin(&self) -> bool {
        self.set_since(Some(Instant::now()));
        self.requests.fetch_add(1, Ordering::Relaxed) + 1 < REQUESTS_MAX
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

    fn is_overdue(&self) -> bool {
        self.since().is_some_and(|since| since.elapsed() >= EXCHANGE_PATIENCE)
    }
}

/// Serves the client behind `stream` until it or a bound ends it.
pub(super) async fn serve(stream: TcpStream, exchange: Arc<MetricsExchange>, answers: Arc<Answers>) {
    let service = service_fn(|request| {
        let (exchange, answers) = (&exchange, &answers);
        async move {
            let may_go_on = exchange.begin();
            let response = respond(&request, answers, may_go_on).await;
            answers.status.counts().answer(response.status().as_u16());
            exchange.answered();
            Ok::<_, Infallible>(response)
        }
    });
    let io = Watched { stream: TokioIo::new(stream), exchange: Arc::clone(&exchange) };
    let mut connection = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_PATIENCE)
            .max_buf_size(HEAD_BYTES_MAX)
            .max_headers(HEADERS_MAX)
            .serve_connection(io, service)
    );
    let began = Instant::now();
    loop {
        match tokio::time::timeout(TICK, connection.as_mut()).await {
            Ok(ended) => return account(ended, &exchange, &answers),
            Err(_) if exchange.is_overdue() => return answers.status.counts().close(Closed::Timeout),
            Err(_) if began.elapsed() >= CONNECTION_PATIENCE => connection.as_mut().graceful_shutdown(),
            Err(_) => {}
        }
    }
}

fn account(ended: hyper::Result<()>, exchange: &MetricsExchange, answers: &Answers) {
    let Err(error) = ended else { return };
    let why = match () {
        // Silence after an answer is the ordinary end.
        () if error.is_timeout() && exchange.requests.load(Ordering::Relaxed) > 0 => return,
        () if error.is_timeout() => Closed::Timeout,
        () if error.is_parse() => Closed::Malformed,
        () => Closed::Broken,
    };
    answers.status.counts().close(why);
}

/// The answer; `may_go_on`: whether the client may send another request on this connection.
async fn respond(request: &Request<Incoming>, answers: &Answers, may_go_on: bool) -> Response<Full<Bytes>> {
    let has_body = !request.body().is_end_stream();
    let mut response = if has_body {
        plain(StatusCode::PAYLOAD_TOO_LARGE, "requests with a body are refused\n")
    } else if !may_be_for(request, answers) {
        plain(StatusCode::MISDIRECTED_REQUEST, MISDIRECTED)
    } else {
        answer(request, answers).await
    };
    let headers = response.headers_mut();
    for (name, value) in GUARDS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    if has_body || !may_go_on {
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// Whether a request may be answered for its host: an address, a name without a dot such as `localhost`, one of `hosts`, or none.
/// Another name may be one that a site on the Internet has pointed here, so that its script, which runs in the operator's browser,
/// may read what is here (DNS rebinding). Where other machines may connect, what monitoring asks for is answered for any host.
fn may_be_for(request: &Request<Incoming>, answers: &Answers) -> bool {
    if !answers.is_loopback && ["/metrics", "/healthz", "/ready"].contains(&request.uri().path()) {
        return true;
    }
    let fields = request.headers().get_all(HOST).iter().map(|value| value.to_str().unwrap_or("."));
    fields.chain(request.uri().authority().map(|authority| authority.as_str())).all(|host| {
        let name = match host.strip_prefix('[') {
            Some(rest) => rest.split(']').next().unwrap_or_default(),
            None => host.split(':').next().unwrap_or_default(),
        };
        let is_ours = || answers.hosts.iter().any(|ours| ours.eq_ignore_ascii_case(name));
        !name.contains(['.', '@']) || name.parse::<IpAddr>().is_ok() || is_ours()
    })
}

async fn answer(request: &Request<Incoming>, answers: &Answers) -> Response<Full<Bytes>> {
    let path = request.uri().path();
    let file = page::file(path);
    if file.is_none() && !["/metrics", "/status", "/offload", "/events", "/healthz", "/ready"].contains(&path) {
        return plain(StatusCode::NOT_FOUND, PATHS);
    }
    // HEAD is answered like GET; hyper leaves the body out.
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut response = plain(StatusCode::METHOD_NOT_ALLOWED, "use GET\n");
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    if let Some((content_type, text)) = file {
        return with_type(StatusCode::OK, content_type, Bytes::from_static(text.as_bytes()));
    }
    let (what, format, made) = match path {
        "/ready" => return ready(answers.status.status().await),
        "/events" => ("events", Format::Json, answers.recent.events().await),
        "/offload" => {
            let made = match answers.status.status().await {
                Ok(status) => answers.recent.offload(status).await,
                Err(reason) => Err(reason),
            };
            ("offload", Format::Json, made)
        }
        "/metrics" => {
            let format = metrics_format(request);
            ("status", format, answers.status.written(format).await)
        }
        _ => ("status", Format::Json, answers.status.written(Format::Json).await),
    };
    match made {
        Ok(_) if path == "/healthz" => plain(StatusCode::OK, "the instance answers\n"),
        Ok(text) => with_type(StatusCode::OK, format.content_type(), text),
        Err(reason) => plain(StatusCode::SERVICE_UNAVAILABLE, format!("no {what}: {reason}\n")),
    }
}

/// Whether all services are ready; groups count in their service.
fn ready(status: Result<Arc<Status>, String>) -> Response<Full<Bytes>> {
    let status = match status {
        Ok(status) => status,
        Err(reason) => return plain(StatusCode::SERVICE_UNAVAILABLE, format!("no status: {reason}\n")),
    };
    let services = status.not_ready().filter(|(service, _)| service.group_of.is_none());
    let lines: String =
        services.map(|(service, why)| format!("not ready: service {}: {why}\n", service.name)).collect();
    match lines.is_empty() {
        true => plain(StatusCode::OK, "ready\n"),
        false => plain(StatusCode::SERVICE_UNAVAILABLE, lines),
    }
}

fn plain(code: StatusCode, text: impl Into<Bytes>) -> Response<Full<Bytes>> {
    with_type(code, "text/plain; charset=utf-8", text.into())
}

fn with_type(code: StatusCode, content_type: &'static str, body: Bytes) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = code;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// The format that the client prefers (RFC 9110, 12.5.1). Without a request for OpenMetrics 1.0 it gets the older text,
/// which every scraper understands.
fn metrics_format(request: &Request<Incoming>) -> Format {
    let accepted = request.headers().get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    preferred(accepted)
}

fn preferred<'a>(accepted: impl Iterator<Item = &'a str>) -> Format {
    let (mut open_metrics, mut text) = (0.0, 0.0f32);
    for range in accepted.flat_map(|line| line.split(',')) {
        let mut parts = range.split(';').map(str::trim);
        let media_type = parts.next().unwrap_or_default();
        let (mut quality, mut version) = (1.0f32, "1.0.0");
        for (name, value) in parts.filter_map(|part| part.split_once('=')) {
            match name.trim() {
                "q" => quality = value.trim().parse().unwrap_or(0.0),
                "version" => version = value.trim().trim_matches('"'),
                _ => {}
            }
        }
        if media_type.eq_ignore_ascii_case("application/openmetrics-text") && version == "1.0.0" {
            open_metrics = quality.max(open_metrics);
        } else if ["text/plain", "text/*"].iter().any(|known| media_type.eq_ignore_ascii_case(known)) {
            text = quality.max(text);
        }
    }
    if open_metrics > 0.0 && open_metrics >= text { Format::OpenMetrics } else { Format::Prometheus }
}

/// A stream that tells when an answer has left.
struct Watched {
    stream: TokioIo<TcpStream>,
    exchange: Arc<MetricsExchange>,
}

impl Read for Watched {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, into)
    }
}

impl Write for Watched {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_client_gets_the_form_it_likes_best() {
        let prometheus = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,\
            application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=1.0.0;q=0.3,\
            text/plain;version=0.0.4;q=0.2,*/*;q=0.1";
        for (accept, format) in [
            (&[prometheus][..], Format::OpenMetrics),
            (&["text/plain", "application/openmetrics-text; version=\"1.0.0\""], Format::OpenMetrics),
            (&["Application/OpenMetrics-Text"], Format::OpenMetrics),
            (&[], Format::Prometheus),
            (&["*/*"], Format::Prometheus),
            (&["text/plain;version=0.0.4"], Format::Prometheus),
            (&["application/openmetrics-text;q=0.2,text/plain;q=0.3"], Format::Prometheus),
            (&["application/openmetrics-text;version=0.0.1"], Format::Prometheus),
            (&["application/openmetrics-text;q=0"], Format::Prometheus),
            (&["application/openmetrics-text;q=NaN"], Format::Prometheus),
            (&["application/openmetrics-text;q=often"], Format::Prometheus),
            (&[",,;;==;q"], Format::Prometheus),
        ] {
            assert_eq!(preferred(accept.iter().copied()), format, "{accept:?}");
        }
    }
}

//! What the server answers.
//!
//! A head has 5 s and 16 KiB, and so has the silence before it; an exchange, from the whole head to the last byte
//! handed to the kernel, has 10 s; a connection gets 100 requests and 30 s, then it ends with the exchange it is in.
//! Requests with a body are refused and their connection closed, so there is never a question where the next one
//! begins (RFC 9112, 11.2: request smuggling).

use super::Answers;
use super::page;
use super::source::Format;
use crate::http_server::{Answerer, ServerBounds, ServerCounts};
use crate::status::Status;
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::{Body, Incoming};
use hyper::header::{
    ACCEPT, ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, HeaderName, HeaderValue,
    REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use hyper::{Method, Request, Response, StatusCode};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// Connections at a time at most.
pub(crate) const CONNECTIONS_MAX: usize = 32;
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

impl Answerer<()> for Answers {
    const BOUNDS: ServerBounds = ServerBounds {
        connections_max: CONNECTIONS_MAX,
        head_bytes_max: HEAD_BYTES_MAX,
        headers_max: HEADERS_MAX,
        head_patience: HEAD_PATIENCE,
        exchange_patience: EXCHANGE_PATIENCE,
        requests_max: REQUESTS_MAX,
        connection_patience: CONNECTION_PATIENCE,
    };

    async fn respond(&self, request: Request<Incoming>, _: &()) -> Response<Full<Bytes>> {
        respond(&request, self).await
    }

    fn counts(&self) -> &ServerCounts {
        &self.status.counts().server
    }
}

async fn respond(request: &Request<Incoming>, answers: &Answers) -> Response<Full<Bytes>> {
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
    if has_body {
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

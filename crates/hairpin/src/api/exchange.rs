//! Requests of the API and their answers.
//!
//! Clients of the Unix socket are known by the kernel; those of TCP by TLS, or by a token, before anything of a body is read.
//!
//! A head has 5 s and 16 KiB, a body 10 s and 16 MiB; a connection gets 1000 requests and 10 minutes, then it ends with the exchange
//! it is in. Bodies are JSON in which no field stands twice and nothing is nested deeper than a configuration is.

use super::answer::Refused;
use super::change::{Operation, WriteRequest};
use super::json;
use super::openapi::openapi;
use super::remote::Refusals;
use super::resource::{Action, Target};
use super::tokens::Tokens;
use super::{ApiSources, Document, certificates, limits};
use crate::http_server::{Answerer, ServerBounds, ServerCounts};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Body, Incoming};
use hyper::header::{
    ACCEPT, ALLOW, AUTHORIZATION, CACHE_CONTROL, CONNECTION, CONTENT_TYPE, ETAG, HeaderMap, HeaderValue, IF_MATCH,
    WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
};
use hyper::{Method, Request, Response, StatusCode};
use serde_json::Value;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UnixStream;

/// Connections at a time at most.
pub(crate) const CONNECTIONS_MAX: usize = 8;
/// Bytes of a request's head at most.
pub(crate) const HEAD_BYTES_MAX: usize = 16 << 10;
/// Lines of a request's head at most.
pub(crate) const HEADERS_MAX: usize = 64;
/// How long a client may take to send a head.
pub(crate) const HEAD_PATIENCE: Duration = Duration::from_secs(5);
/// How long a client may take to send a body.
pub(crate) const BODY_PATIENCE: Duration = Duration::from_secs(10);
/// How long an exchange may take behind the head: a body, a change of the configuration, and the answer.
pub(crate) const EXCHANGE_PATIENCE: Duration = Duration::from_secs(80);
/// Requests on a connection at most.
pub(crate) const REQUESTS_MAX: u32 = 1000;
/// How long a connection may take requests.
pub(crate) const CONNECTION_PATIENCE: Duration = Duration::from_secs(600);
/// Changes of a transaction at most.
pub(crate) const OPERATIONS_MAX: usize = 1024;
/// Objects and lists in each other at most: a condition of a route of a service has 6.
pub(crate) const DEPTH_MAX: usize = 16;

/// The status codes there are answers with.
pub(crate) const CODES: [u16; 14] = [200, 201, 400, 401, 404, 405, 408, 409, 412, 413, 415, 422, 428, 503];

/// The prefix of the paths of objects.
pub(super) const VERSION: &str = "/v1";
/// The path of several changes at once.
pub(super) const TRANSACTIONS: &str = "/v1/transactions";
const PATHS: &str =
    "there is /v1/config, /v1/services and what is below, /v1/transactions, /v1/certificates, and /openapi.json";
const PROBLEM: &str = "application/problem+json";

/// Who is at the other end.
pub(super) enum ApiPeer {
    /// A process of this machine, as the kernel says.
    Local {
        /// Its user.
        uid: u32,
        /// Its number.
        pid: Option<i32>,
    },
    /// A client by TLS.
    Remote {
        /// Where it is.
        address: SocketAddr,
        /// The certificate that it has shown and TLS has verified.
        certificate: Option<String>,
    },
}

/// Asks the kernel who is at the other end.
pub(super) fn peer(stream: &UnixStream) -> io::Result<ApiPeer> {
    let credentials = stream.peer_cred()?;
    Ok(ApiPeer::Local { uid: credentials.uid(), pid: credentials.pid() })
}

/// What the API answers from.
pub(super) struct Answers {
    sources: Arc<ApiSources>,
    /// Of clients by TLS that show no certificate; `None`: there are none.
    tokens: Option<Tokens>,
    refusals: Arc<Refusals>,
}

impl Answers {
    pub(super) fn new(sources: ApiSources, tokens: Option<Tokens>, refusals: Arc<Refusals>) -> Answers {
        Answers { sources: Arc::new(sources), tokens, refusals }
    }

    /// The client, for the log.
    fn known(&self, peer: &ApiPeer, headers: &HeaderMap) -> Result<String, Refused> {
        let address = match peer {
            ApiPeer::Local { uid, pid } => {
                let pid = pid.map_or_else(|| "unknown".to_owned(), |pid| pid.to_string());
                return Ok(format!("uid {uid}, pid {pid}"));
            }
            ApiPeer::Remote { address, certificate: Some(certificate) } => {
                return Ok(format!("{certificate}, from {}", address.ip().to_canonical()));
            }
            ApiPeer::Remote { address, certificate: None } => address,
        };
        let token = bearer(headers);
        match token.and_then(|token| self.tokens.as_ref()?.name_of(token)) {
            Some(name) => Ok(format!("token \"{name}\", from {}", address.ip().to_canonical())),
            None => {
                let why = if token.is_some() { "a wrong token" } else { "neither certificate nor token" };
                self.refusals.tell(*address, why);
                Err(Refused::Unknown(token.is_some()))
            }
        }
    }

    async fn answered(&self, request: Request<Incoming>, peer: &ApiPeer) -> Result<Response<Full<Bytes>>, Refused> {
        let (head, body) = request.into_parts();
        let who = self.known(peer, &head.headers)?;
        let body = read_body(body).await?;
        let sources = Arc::clone(&self.sources);
        let answer = move || answer(&sources, &head.method, head.uri.path(), &head.headers, &body, who);
        let made = tokio::task::spawn_blocking(answer).await;
        made.unwrap_or_else(|_| Err(Refused::Busy("making the answer failed".to_owned())))
    }
}

/// The token that a head has (RFC 6750, 2.1).
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let (scheme, token) = values.next()?.as_bytes().split_at_checked(b"Bearer ".len())?;
    (values.next().is_none() && scheme.eq_ignore_ascii_case(b"Bearer ")).then(|| token.trim_ascii())
}

impl Answerer<ApiPeer> for Answers {
    const BOUNDS: ServerBounds = ServerBounds {
        connections_max: CONNECTIONS_MAX,
        head_bytes_max: HEAD_BYTES_MAX,
        headers_max: HEADERS_MAX,
        head_patience: HEAD_PATIENCE,
        exchange_patience: EXCHANGE_PATIENCE,
        requests_max: REQUESTS_MAX,
        connection_patience: CONNECTION_PATIENCE,
    };

    async fn respond(&self, request: Request<Incoming>, peer: &ApiPeer) -> Response<Full<Bytes>> {
        let answer = self.answered(request, peer).await;
        let is_unread = matches!(answer, Err(Refused::Large(_) | Refused::Slow | Refused::Unknown(_)));
        let mut response = answer.unwrap_or_else(|refused| refusal(&refused));
        let headers = response.headers_mut();
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        if is_unread {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }

    fn counts(&self) -> &ServerCounts {
        &self.sources.counts
    }
}

async fn read_body(body: Incoming) -> Result<Bytes, Refused> {
    let max = limits::BODY_BYTES_MAX;
    if body.size_hint().lower() > max {
        return Err(Refused::Large(max));
    }
    match tokio::time::timeout(BODY_PATIENCE, Limited::new(body, max as usize).collect()).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => Err(Refused::Large(max)),
        Ok(Err(_)) => Err(Refused::Form("the body is not framed as its head says".to_owned())),
        Err(_) => Err(Refused::Slow),
    }
}

fn answer(
    sources: &ApiSources,
    method: &Method,
    path: &str,
    headers: &HeaderMap,
    body: &[u8],
    who: String,
) -> Result<Response<Full<Bytes>>, Refused> {
    let is_read = matches!(*method, Method::GET | Method::HEAD);
    if path == "/openapi.json" {
        require(is_read, "GET, HEAD")?;
        return Ok(with_type(StatusCode::OK, "application/json", openapi().into()));
    }
    if path == TRANSACTIONS {
        require(*method == Method::POST, "POST")?;
        require_json(headers)?;
        let operations = transaction(json::read(body).map_err(Refused::Form)?)?;
        return write(sources, (method, path, headers), (operations, true), who);
    }
    if let Some(rest) = path.strip_prefix(certificates::PATH).filter(|rest| rest.is_empty() || rest.starts_with('/')) {
        return certificates::answer(sources, (method, headers, rest), body, who);
    }
    let target = path.strip_prefix(VERSION).and_then(Target::parse).ok_or_else(|| Refused::Absent(PATHS.to_owned()))?;
    if is_read {
        let document = (sources.read)().map_err(Refused::Busy)?;
        return shown(&document, &target, headers);
    }
    let action = target.actions().iter().find(|action| action.method() == method);
    let action = *action.ok_or(Refused::Method(methods(&target)))?;
    let body = match action {
        Action::Delete if body.is_empty() => Value::Null,
        Action::Delete => return Err(Refused::Form("DELETE has no body".to_owned())),
        Action::Put | Action::Patch => {
            require_json(headers)?;
            json::read(body).map_err(Refused::Form)?
        }
    };
    write(sources, (method, path, headers), (vec![Operation { action, target, body }], false), who)
}

/// An object as the client likes it best: JSON, or of the whole configuration TOML.
fn shown(document: &Document, target: &Target, headers: &HeaderMap) -> Result<Response<Full<Bytes>>, Refused> {
    let is_toml = *target == Target::Configuration
        && headers.get_all(ACCEPT).iter().any(|value| value.as_bytes().starts_with(b"application/toml"));
    let mut response = match is_toml {
        true => with_type(StatusCode::OK, "application/toml", document.text().to_owned().into()),
        false => with_type(StatusCode::OK, "application/json", line(&target.read(document.tree())?)),
    };
    tag(&mut response, document.version());
    Ok(response)
}

fn write(
    sources: &ApiSources,
    (method, path, headers): (&Method, &str, &HeaderMap),
    (operations, is_transaction): (Vec<Operation>, bool),
    who: String,
) -> Result<Response<Full<Bytes>>, Refused> {
    let versions = versions(headers)?;
    let applied =
        (sources.write)(WriteRequest { who, what: format!("{method} {path}"), versions, operations, is_transaction })?;
    let code = if applied.is_new && !is_transaction { StatusCode::CREATED } else { StatusCode::OK };
    let mut response = with_type(code, "application/json", line(&applied.body()));
    tag(&mut response, &applied.version);
    Ok(response)
}

/// The versions that `If-Match` names (RFC 9110, 13.1.1). `*` names none: it would undo what others have done.
pub(super) fn versions(headers: &HeaderMap) -> Result<Vec<String>, Refused> {
    let mut versions = Vec::new();
    for value in headers.get_all(IF_MATCH) {
        let text = value.to_str().map_err(|_| Refused::Form("`If-Match` is not ASCII".to_owned()))?;
        for tag in text.split(',').map(str::trim).filter(|tag| !tag.is_empty() && *tag != "*") {
            let version = tag.strip_prefix('"').and_then(|tag| tag.strip_suffix('"'));
            let version = version.ok_or_else(|| {
                Refused::Form(format!("`If-Match` has {tag}; write the ETag of an answer, with its quotes"))
            })?;
            versions.push(version.to_owned());
        }
    }
    Ok(versions)
}

/// The changes of a transaction: `{"changes": [{"method": "PUT", "path": "/services/web", "body": {...}}]}`.
fn transaction(body: Value) -> Result<Vec<Operation>, Refused> {
    let form = |what: &str| Refused::Form(what.to_owned());
    let Value::Object(mut fields) = body else { return Err(form("the body is not an object")) };
    let Some(Value::Array(changes)) = fields.remove("changes") else {
        return Err(form("the body has no list `changes`"));
    };
    if let Some(other) = fields.keys().next() {
        return Err(form(&format!("the body has the unknown field `{other}`")));
    }
    if changes.is_empty() || changes.len() > OPERATIONS_MAX {
        return Err(form(&format!("the body has {} changes: have 1 to {OPERATIONS_MAX}", changes.len())));
    }
    let operation = |(index, change): (usize, Value)| {
        read_change(change).map_err(|what| Refused::Form(format!("change {}: {what}", index + 1)))
    };
    changes.into_iter().enumerate().map(operation).collect()
}

fn read_change(change: Value) -> Result<Operation, String> {
    let Value::Object(mut fields) = change else { return Err("it is not an object".to_owned()) };
    let mut text = |name: &str| match fields.remove(name) {
        Some(Value::String(text)) => Ok(text),
        _ => Err(format!("it has no text `{name}`")),
    };
    let (method, path) = (text("method")?, text("path")?);
    let body = fields.remove("body");
    if let Some(other) = fields.keys().next() {
        return Err(format!("it has the unknown field `{other}`"));
    }
    let target =
        Target::parse(path.strip_prefix(VERSION).unwrap_or(&path)).ok_or(format!("{path} is no object's path"))?;
    let action = target.actions().iter().find(|action| *action.method() == *method);
    let action = *action.ok_or_else(|| format!("{path} has no method {method}: use {}", methods(&target)))?;
    match (action, body) {
        (Action::Delete, None) => Ok(Operation { action, target, body: Value::Null }),
        (Action::Delete, Some(_)) => Err("DELETE has no body".to_owned()),
        (_, Some(body)) => Ok(Operation { action, target, body }),
        (_, None) => Err(format!("{method} has a `body`")),
    }
}

impl Action {
    /// The method that asks for it.
    pub(super) fn method(self) -> &'static Method {
        match self {
            Action::Put => &Method::PUT,
            Action::Patch => &Method::PATCH,
            Action::Delete => &Method::DELETE,
        }
    }
}

/// The methods of an object.
fn methods(target: &Target) -> &'static str {
    match target.actions() {
        [] => "GET, HEAD",
        [_] => "GET, HEAD, PUT",
        _ => "GET, HEAD, PUT, PATCH, DELETE",
    }
}

fn require(is_right: bool, methods: &'static str) -> Result<(), Refused> {
    if is_right { Ok(()) } else { Err(Refused::Method(methods)) }
}

pub(super) fn require_json(headers: &HeaderMap) -> Result<(), Refused> {
    let is_json = |value: &HeaderValue| {
        let essence = value.to_str().ok().and_then(|text| text.split(';').next()).unwrap_or_default().trim();
        ["application/json", "application/merge-patch+json"].iter().any(|known| essence.eq_ignore_ascii_case(known))
    };
    if headers.get(CONTENT_TYPE).is_none_or(is_json) { Ok(()) } else { Err(Refused::Type) }
}

fn refusal(refused: &Refused) -> Response<Full<Bytes>> {
    let code = StatusCode::from_u16(refused.code()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = with_type(code, PROBLEM, line(&refused.body()));
    let header = match refused {
        Refused::Method(methods) => Some((ALLOW, *methods)),
        Refused::Unknown(false) => Some((WWW_AUTHENTICATE, "Bearer realm=\"hairpin\"")),
        Refused::Unknown(true) => Some((WWW_AUTHENTICATE, "Bearer realm=\"hairpin\", error=\"invalid_token\"")),
        _ => None,
    };
    if let Some((name, value)) = header {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

pub(super) fn tag(response: &mut Response<Full<Bytes>>, version: &str) {
    if let Ok(value) = HeaderValue::from_str(&format!("\"{version}\"")) {
        response.headers_mut().insert(ETAG, value);
    }
}

pub(super) fn line(value: &Value) -> Bytes {
    format!("{value}\n").into()
}

pub(super) fn with_type(code: StatusCode, content_type: &'static str, body: Bytes) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = code;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

//! Between HTTP/2 and HTTP/1.1: a request's header block is written as a head, and a response's head is read as a block
//! (RFC 9113, 8.2 and 8.3).
//!
//! What is written is read by `hairpin_core::l7::head`, which refuses whatever two readers could read in two ways. So nothing
//! here needs to guess what a backend would make of a name or value.

use hairpin_core::l7::body::Length;
use hairpin_core::l7::head::Response;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use http::{Method, StatusCode};

/// Fields that an HTTP/2 message must not have (RFC 9113, 8.2.2).
const OF_A_CONNECTION: [&str; 5] = ["connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"];

/// A header block that no HTTP/1.1 head says the same as: the stream is refused with PROTOCOL_ERROR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Untranslatable;

/// Writes a request as the head of an HTTP/1.1 request. `is_whole`: no body follows.
///
/// # Errors
/// The block is malformed (RFC 9113, 8.1.1).
pub(crate) fn request_head(parts: &Parts, is_whole: bool) -> Result<Vec<u8>, Untranslatable> {
    let mut head = Vec::with_capacity(512);
    let mut put = |text: &[u8]| head.extend_from_slice(text);
    let uri = &parts.uri;
    let host = host(parts)?;
    put(parts.method.as_str().as_bytes());
    put(b" ");
    match (&parts.method, uri.path_and_query()) {
        (&Method::CONNECT, _) => put(uri.authority().ok_or(Untranslatable)?.as_str().as_bytes()),
        // A path of HTTP/2 is never empty (RFC 9113, 8.3.1).
        (_, Some(path)) if !path.as_str().is_empty() => put(path.as_str().as_bytes()),
        _ => return Err(Untranslatable),
    }
    put(b" HTTP/1.1\r\n");
    if let Some(host) = host {
        put(b"Host: ");
        put(host);
        put(b"\r\n");
    }
    let mut cookies = parts.headers.get_all(header::COOKIE).iter();
    if let Some(first) = cookies.next() {
        // They may come in several fields; HTTP/1.1 has one (RFC 9113, 8.2.3).
        put(b"Cookie: ");
        put(first.as_bytes());
        for more in cookies {
            put(b"; ");
            put(more.as_bytes());
        }
        put(b"\r\n");
    }
    for (name, value) in &parts.headers {
        let name = name.as_str();
        if OF_A_CONNECTION.contains(&name) || name == "te" && value != "trailers" {
            return Err(Untranslatable);
        }
        if name != "host" && name != "cookie" {
            put(name.as_bytes());
            put(b": ");
            put(value.as_bytes());
            put(b"\r\n");
        }
    }
    if !is_whole && !parts.headers.contains_key(header::CONTENT_LENGTH) && parts.method != Method::CONNECT {
        put(b"Transfer-Encoding: chunked\r\n");
    }
    put(b"\r\n");
    Ok(head)
}

/// The host of a request: `:authority`, or `Host` where there is none. They must not differ (RFC 9113, 8.3.1).
fn host(parts: &Parts) -> Result<Option<&[u8]>, Untranslatable> {
    let authority = parts.uri.authority().map(|authority| authority.as_str().as_bytes());
    let mut hosts = parts.headers.get_all(header::HOST).iter().map(HeaderValue::as_bytes);
    let said = hosts.next();
    if hosts.next().is_some() {
        return Err(Untranslatable);
    }
    match (authority, said) {
        (Some(authority), Some(said)) if !authority.eq_ignore_ascii_case(said) => Err(Untranslatable),
        (authority, said) => Ok(authority.or(said)),
    }
}

/// The HTTP/2 form of a response's head. `None`: it has a field that HTTP/2 cannot carry.
pub(crate) fn response(response: &Response<'_>) -> Option<http::Response<()>> {
    let mut out = http::Response::new(());
    *out.status_mut() = StatusCode::from_u16(response.status).ok()?;
    let headers = out.headers_mut();
    for (name, value) in response.fields.iter() {
        if !response.fields.is_hop_by_hop(name) {
            headers.append(HeaderName::from_bytes(name).ok()?, HeaderValue::from_bytes(value).ok()?);
        }
    }
    if response.body == Length::Chunked {
        headers.remove(header::CONTENT_LENGTH);
    }
    Some(out)
}

/// The fields of trailers, each line with its CRLF. `None`: one cannot be carried.
pub(crate) fn trailers(lines: &[u8]) -> Option<HeaderMap> {
    let mut trailers = HeaderMap::new();
    for line in lines.split(|&byte| byte == b'\n') {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.is_empty() {
            continue;
        }
        let colon = line.iter().position(|&byte| byte == b':')?;
        let name = HeaderName::from_bytes(&line[..colon]).ok()?;
        trailers.append(name, HeaderValue::from_bytes(line[colon + 1..].trim_ascii()).ok()?);
    }
    Some(trailers)
}

/// Trailers as lines of HTTP/1.1.
pub(crate) fn trailer_lines(trailers: &HeaderMap) -> Vec<u8> {
    let mut lines = Vec::new();
    for (name, value) in trailers {
        lines.extend_from_slice(name.as_str().as_bytes());
        lines.extend_from_slice(b": ");
        lines.extend_from_slice(value.as_bytes());
        lines.extend_from_slice(b"\r\n");
    }
    lines
}

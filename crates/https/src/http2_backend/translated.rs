//! Heads between HTTP/1.1 and HTTP/2, towards backends (RFC 9113, 8.3): a request's head, which was written here, as a header
//! block, and the block of a response as a head.
//!
//! The head that is written of a response is read by `hairpin_core::l7::head` as any backend's: nothing needs to be guessed here.

use super::Http2Conn;
use crate::translate::{OF_A_CONNECTION, put_field, websocket_accept};
use hairpin_core::flow::Endpoint;
use hairpin_core::l7::head::{Method, Request, Version};
use http::header::{self, HeaderName, HeaderValue};
use http::response::Parts;
use http::uri::{Authority, PathAndQuery, Scheme};
use std::io;

/// The facts about a request that the head of its response depends on.
pub(super) struct Asked {
    pub(super) method: Method,
    /// The client reads no chunks (HTTP/1.0).
    is_http10: bool,
    /// The key of a WebSocket that is asked for.
    websocket_key: Option<Vec<u8>>,
}

/// Why a request cannot go by HTTP/2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unfit {
    /// Its head has something that HTTP/2 has no form for.
    Head,
    /// The request asks for a WebSocket, and the backend takes no extended CONNECT (RFC 8441).
    WebSocket,
}

/// How a response's body goes on behind its head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framed {
    /// There is none.
    None,
    /// As it is: its length is given, or the end of the stream ends it.
    Plain,
    /// In chunks.
    Chunked,
}

/// The header block of a request, and what its response depends on. `end`: the backend's, which stands for a missing host.
///
/// # Errors
/// The request cannot go to this backend.
pub(super) fn request(
    conn: &Http2Conn,
    end: Endpoint,
    request: &Request<'_>,
) -> Result<(http::Request<()>, Asked), Unfit> {
    let field = |name: &[u8]| request.fields.find(name).next();
    let is_websocket =
        request.upgrade && field(b"upgrade").is_some_and(|value| value.eq_ignore_ascii_case(b"websocket"));
    if is_websocket && !conn.send.is_extended_connect_protocol_enabled() {
        return Err(Unfit::WebSocket);
    }
    let mut out = http::Request::new(());
    *out.version_mut() = http::Version::HTTP_2;
    *out.method_mut() = match is_websocket {
        true => http::Method::CONNECT,
        false => http::Method::from_bytes(request.method_bytes).map_err(no_form)?,
    };
    *out.uri_mut() = uri(conn, end, request)?;
    let headers = out.headers_mut();
    headers.reserve(request.fields.iter().count() + 1);
    for (name, value) in request.fields.iter() {
        let is = |own: &str| name.eq_ignore_ascii_case(own.as_bytes());
        let is_of_http1 = is("host") || is("te") || OF_A_CONNECTION.into_iter().any(is);
        if !(is_of_http1 || is_websocket && is("sec-websocket-key")) {
            let name = HeaderName::from_bytes(name).map_err(no_form)?;
            headers.append(name, HeaderValue::from_bytes(value).map_err(no_form)?);
        }
    }
    // Trailers go through to the client; servers of gRPC insist on hearing so.
    headers.insert(header::TE, HeaderValue::from_static("trailers"));
    let websocket_key = field(b"sec-websocket-key").filter(|_| is_websocket).map(<[u8]>::to_vec);
    if is_websocket {
        out.extensions_mut().insert(h2::ext::Protocol::from_static("websocket"));
    }
    Ok((out, Asked { method: request.method, is_http10: request.version == Version::Http10, websocket_key }))
}

fn uri(conn: &Http2Conn, end: Endpoint, request: &Request<'_>) -> Result<http::Uri, Unfit> {
    let is_tunnel = request.method == Method::Connect;
    let authority = match request.host {
        _ if is_tunnel => Authority::try_from(request.target.whole),
        Some(host) => Authority::try_from(host),
        None => Authority::try_from(end.to_string()),
    };
    let mut parts = http::uri::Parts::default();
    parts.authority = Some(authority.map_err(no_form)?);
    if !is_tunnel {
        parts.scheme = Some(if conn.tls.is_some() { Scheme::HTTPS } else { Scheme::HTTP });
        parts.path_and_query = Some(PathAndQuery::try_from(request.target.whole).map_err(no_form)?);
    }
    http::Uri::from_parts(parts).map_err(no_form)
}

fn no_form<E>(_: E) -> Unfit {
    Unfit::Head
}

/// The head of a response, and how its body goes on. `is_whole`: no body follows.
///
/// # Errors
/// The response has a status or field that HTTP/2 forbids (RFC 9113, 8.2.2 and 8.6).
pub(super) fn response(asked: &Asked, parts: &Parts, is_whole: bool) -> io::Result<(Vec<u8>, Framed)> {
    let forbidden = || Err(io::ErrorKind::InvalidData.into());
    let mut status = parts.status.as_u16();
    if status == 101 {
        return forbidden();
    }
    let tunnels = asked.websocket_key.is_some() || asked.method == Method::Connect;
    let is_tunnel = tunnels && matches!(status, 200..300);
    let mut fields = Vec::with_capacity(256);
    for (name, value) in &parts.headers {
        if OF_A_CONNECTION.contains(&name.as_str()) {
            return forbidden();
        }
        put_field(&mut fields, name, value);
    }
    let has_length = parts.headers.contains_key(header::CONTENT_LENGTH);
    let has_none = asked.method == Method::Head || matches!(status, ..200 | 204 | 304);
    let framed = match () {
        () if is_tunnel => Framed::Plain,
        () if has_none => Framed::None,
        () if is_whole && !has_length => {
            fields.extend_from_slice(b"Content-Length: 0\r\n");
            Framed::None
        }
        () if is_whole => Framed::None,
        () if has_length => Framed::Plain,
        () if asked.is_http10 => {
            fields.extend_from_slice(b"Connection: close\r\n");
            Framed::Plain
        }
        () => {
            fields.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
            Framed::Chunked
        }
    };
    if let Some(key) = asked.websocket_key.as_ref().filter(|_| is_tunnel) {
        status = 101;
        fields.extend_from_slice(b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: ");
        fields.extend_from_slice(websocket_accept(key).as_bytes());
        fields.extend_from_slice(b"\r\n");
    }
    Ok(([format!("HTTP/1.1 {status} \r\n").as_bytes(), &fields, b"\r\n"].concat(), framed))
}

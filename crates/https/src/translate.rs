//! Between HTTP/2 and HTTP/1.1: a request's header block is written as a head, and a response's head is read as a block
//! (RFC 9113, 8.2 and 8.3).
//!
//! The head that is written is read by `hairpin_core::l7::head`, which refuses whatever two readers could read in two ways. So
//! nothing here needs to guess what a backend would make of a name or value.

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use base64::prelude::{BASE64_STANDARD, Engine};
use hairpin_core::l7::body::Length;
use hairpin_core::l7::head::Response;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use http::uri::Scheme;
use http::{Method, StatusCode};

/// Fields that an HTTP/2 message must not have (RFC 9113, 8.2.2).
pub(crate) const OF_A_CONNECTION: [&str; 5] =
    ["connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"];

/// A header block that no HTTP/1.1 head says the same as: the stream is refused with PROTOCOL_ERROR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Untranslatable;

/// Whether a request asks for a WebSocket (RFC 8441, 4): over HTTP/1.1 it is a GET that asks for an upgrade (RFC 6455, 4.1).
pub(crate) fn is_websocket(parts: &Parts) -> bool {
    let protocol = parts.extensions.get::<h2::ext::Protocol>();
    parts.method == Method::CONNECT && protocol.is_some_and(|protocol| protocol.as_str() == "websocket")
}

/// Writes a request as the head of an HTTP/1.1 request. `is_whole`: no body follows.
///
/// # Errors
/// The block is malformed (RFC 9113, 8.1.1).
pub(crate) fn request_head(parts: &Parts, is_whole: bool) -> Result<Vec<u8>, Untranslatable> {
    let mut head = Vec::with_capacity(512);
    let mut put = |text: &[u8]| head.extend_from_slice(text);
    let uri = &parts.uri;
    // The h2 crate forgets the scheme of a request without `:authority`.
    if uri.scheme().is_some_and(|scheme| *scheme != Scheme::HTTPS && *scheme != Scheme::HTTP) {
        return Err(Untranslatable);
    }
    let host = host(parts)?;
    let is_websocket = is_websocket(parts);
    let method = if is_websocket { &Method::GET } else { &parts.method };
    put(method.as_str().as_bytes());
    put(b" ");
    match (method, uri.path_and_query()) {
        (&Method::CONNECT, _) => put(uri.authority().ok_or(Untranslatable)?.as_str().as_bytes()),
        // A path of HTTP/2 is never missing or empty (RFC 9113, 8.3.1). Of a path with a fragment, which must have none,
        // `http::Uri` has cut the fragment off before it is seen here; of one that is all fragment it leaves `/`.
        (_, Some(path)) if !uri.path().is_empty() => put(path.as_str().as_bytes()),
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
        // Cookies may come in several fields; HTTP/1.1 has one (RFC 9113, 8.2.3).
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
        let is_made = is_websocket && name == "sec-websocket-key";
        if name != "host" && name != "cookie" && !is_made {
            put(name.as_bytes());
            put(b": ");
            put(value.as_bytes());
            put(b"\r\n");
        }
    }
    let has_length = parts.headers.contains_key(header::CONTENT_LENGTH);
    if is_websocket {
        // The bytes of a tunnel are no body.
        if has_length {
            return Err(Untranslatable);
        }
        put(b"Connection: Upgrade\r\nUpgrade: websocket\r\n");
        put(WEBSOCKET_KEY);
        put(websocket_key()?.as_bytes());
        put(b"\r\n");
        if !parts.headers.contains_key(header::SEC_WEBSOCKET_VERSION) {
            put(b"Sec-WebSocket-Version: 13\r\n");
        }
    } else if !is_whole && !has_length && parts.method != Method::CONNECT {
        put(b"Transfer-Encoding: chunked\r\n");
    }
    put(b"\r\n");
    Ok(head)
}

/// The beginning of the line with the key of a WebSocket, in heads that are written here.
const WEBSOCKET_KEY: &[u8] = b"Sec-WebSocket-Key: ";

/// What a backend has to answer to the key in a head that [`request_head`] has written; `None`: the head asks for no WebSocket.
pub(crate) fn expected_accept(head: &[u8]) -> Option<String> {
    let key = head.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(WEBSOCKET_KEY))?;
    Some(websocket_accept(key.trim_ascii_end()))
}

/// The answer to a WebSocket's key (RFC 6455, 4.2.2).
pub(crate) fn websocket_accept(key: &[u8]) -> String {
    const OF_THE_PROTOCOL: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
    let hash = digest(&SHA1_FOR_LEGACY_USE_ONLY, &[key, OF_THE_PROTOCOL].concat());
    BASE64_STANDARD.encode(hash)
}

/// A nonce of 16 bytes in base64 (RFC 6455, 4.1).
fn websocket_key() -> Result<String, Untranslatable> {
    let mut nonce = [0; 16];
    aws_lc_rs::rand::fill(&mut nonce).map_err(|_| Untranslatable)?;
    Ok(BASE64_STANDARD.encode(nonce))
}

/// Adds a field's line to a head of HTTP/1.1.
pub(crate) fn put_field(head: &mut Vec<u8>, name: &HeaderName, value: &HeaderValue) {
    head.extend_from_slice(name.as_str().as_bytes());
    head.extend_from_slice(b": ");
    head.extend_from_slice(value.as_bytes());
    head.extend_from_slice(b"\r\n");
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
        (Some(authority), Some(said)) if !is_same_host(authority, said, parts.uri.scheme()) => Err(Untranslatable),
        (authority, said) => Ok(authority.or(said)),
    }
}

/// Whether two authorities are the same one, which may leave out its scheme's port (RFC 9110, 4.2.3).
fn is_same_host(one: &[u8], other: &[u8], scheme: Option<&Scheme>) -> bool {
    let port: &[u8] = if scheme == Some(&Scheme::HTTP) { b":80" } else { b":443" };
    let without = |host: &[u8]| host.strip_suffix(port).unwrap_or(host).to_ascii_lowercase();
    without(one) == without(other)
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
    if response.status == 101 {
        // The tunnel is there (RFC 8441, 5), and its key was made here.
        headers.remove(header::SEC_WEBSOCKET_ACCEPT);
        *out.status_mut() = StatusCode::OK;
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
    trailers.iter().for_each(|(name, value)| put_field(&mut lines, name, value));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use hairpin_core::l7::head::{self, Bounds, ParseStatus, Request};
    use http::Request as Http2Request;
    use proptest::prelude::*;

    const BOUNDS: Bounds = Bounds { bytes_max: 16_384, fields_max: 100, target_bytes_max: 8192 };

    fn parts(request: Http2Request<()>) -> Parts {
        request.into_parts().0
    }

    fn translated(request: Http2Request<()>, is_whole: bool) -> Result<String, Untranslatable> {
        request_head(&parts(request), is_whole).map(|head| String::from_utf8(head).unwrap())
    }

    /// The facts that decisions go by.
    fn seen(request: &Request<'_>) -> impl PartialEq + std::fmt::Debug + use<> {
        let mut fields: Vec<(String, Vec<u8>)> = request
            .fields
            .iter()
            .map(|(name, value)| (String::from_utf8_lossy(name).to_ascii_lowercase(), value.to_vec()))
            .filter(|(name, _)| name != "transfer-encoding")
            .collect();
        fields.sort();
        let target = (request.target.path.to_vec(), request.target.query.map(<[u8]>::to_vec));
        (request.method_bytes.to_vec(), target, request.host.map(<[u8]>::to_vec), fields, request.body)
    }

    #[test]
    fn head_has_the_authority_as_its_host_and_one_cookie() {
        let request = Http2Request::get("https://a.test:8443/x?y=z")
            .header("cookie", "a=1")
            .header("accept", "*/*")
            .header("cookie", "b=2")
            .body(())
            .unwrap();
        let head = translated(request, true).unwrap();
        assert_eq!(head, "GET /x?y=z HTTP/1.1\r\nHost: a.test:8443\r\nCookie: a=1; b=2\r\naccept: */*\r\n\r\n");
    }

    #[test]
    fn body_without_a_length_comes_in_chunks() {
        let post = || Http2Request::post("https://a.test/");
        let head = translated(post().body(()).unwrap(), false).unwrap();
        assert!(head.contains("\r\nTransfer-Encoding: chunked\r\n"), "{head}");
        let head = translated(post().header("content-length", "5").body(()).unwrap(), false).unwrap();
        assert!(!head.contains("Transfer-Encoding") && head.contains("content-length: 5\r\n"), "{head}");
    }

    #[test]
    fn fields_of_a_connection_and_two_hosts_are_malformed() {
        for (name, value) in [
            ("connection", "close"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "h2c"),
            ("keep-alive", "5"),
            ("proxy-connection", "close"),
            ("te", "gzip"),
            ("host", "b.test"),
        ] {
            let request = Http2Request::get("https://a.test/").header(name, value).body(()).unwrap();
            assert_eq!(translated(request, true), Err(Untranslatable), "{name}");
        }
        let request = Http2Request::get("https://a.test/").header("host", "A.test").header("te", "trailers");
        assert!(translated(request.body(()).unwrap(), true).is_ok());
    }

    #[test]
    fn websocket_is_a_get_that_asks_for_an_upgrade() {
        let request = |field: &str| {
            let request = Http2Request::connect("https://a.test/chat").header(field, "x").body(()).unwrap();
            let (mut parts, ()) = request.into_parts();
            parts.extensions.insert(h2::ext::Protocol::from_static("websocket"));
            request_head(&parts, false).map(|head| String::from_utf8(head).unwrap())
        };
        let (one, two) = (request("sec-websocket-key").unwrap(), request("sec-websocket-protocol").unwrap());
        assert!(one.starts_with("GET /chat HTTP/1.1\r\nHost: a.test\r\nConnection: Upgrade\r\n"), "{one}");
        assert!(one.ends_with("==\r\nSec-WebSocket-Version: 13\r\n\r\n"), "{one}");
        assert!(two.contains("\r\nsec-websocket-protocol: x\r\n"), "{two}");
        let key = |head: &str| head.split_once("Sec-WebSocket-Key: ").unwrap().1[..24].to_string();
        assert_ne!(key(&one), key(&two));
        assert_eq!(request("content-length"), Err(Untranslatable));
    }

    #[test]
    fn hosts_that_differ_by_their_default_port_are_the_same() {
        for (uri, host, is_same) in [
            ("https://a.test/", "A.test:443", true),
            ("https://a.test:443/", "a.test", true),
            ("http://a.test/", "a.test:80", true),
            ("https://a.test/", "a.test:80", false),
            ("http://a.test/", "a.test:443", false),
            ("https://a.test:444/", "a.test", false),
        ] {
            let request = Http2Request::get(uri).header("host", host).body(()).unwrap();
            assert_eq!(translated(request, true).is_ok(), is_same, "{uri} {host}");
        }
    }

    #[test]
    fn request_without_a_path_or_with_another_scheme_is_malformed() {
        let request = Http2Request::get(http::Uri::from_parts(http::uri::Parts::default()).unwrap()).body(()).unwrap();
        assert_eq!(translated(request, true), Err(Untranslatable));
        let request = Http2Request::get("ftp://a.test/").body(()).unwrap();
        assert_eq!(translated(request, true), Err(Untranslatable));
        assert!(translated(Http2Request::options("*").header("host", "a").body(()).unwrap(), true).is_ok());
    }

    #[test]
    fn response_keeps_the_fields_that_are_for_the_client() {
        let head = b"HTTP/1.1 200 OK\r\nX-One: 1\r\nConnection: x-two, close\r\nX-Two: 2\r\nSet-Cookie: a\r\nSet-Cookie: b\r\n\
            Transfer-Encoding: chunked\r\nKeep-Alive: 5\r\n\r\n";
        let Ok(ParseStatus::Complete(read)) = head::response(head, &BOUNDS, head::Method::Get) else { panic!() };
        let out = response(&read).unwrap();
        let names: Vec<_> = out.headers().keys().map(|name| name.as_str()).collect();
        assert_eq!(names, ["x-one", "set-cookie"]);
        assert_eq!(out.headers().get_all("set-cookie").iter().count(), 2);
    }

    proptest! {
        /// A request is the same to decisions and backends, whether it came by HTTP/1.1 or HTTP/2.
        #[test]
        fn request_is_the_same_by_both_protocols(
            method in "GET|HEAD|POST|PUT|DELETE|OPTIONS|PATCH|BREW",
            path in "(/[a-zA-Z0-9._~!$&'()*+,;=:@%-]{0,8}){1,5}",
            query in prop::option::of("[a-zA-Z0-9._~!$&'()*+,;=:@%/?-]{0,20}"),
            host in "[a-z0-9.-]{1,20}(:[1-9][0-9]{0,3})?",
            fields in prop::collection::vec(
                ("x-[a-z0-9-]{1,10}|accept|user-agent|authorization|referer|x_y|te", "[!-~]([ -~]{0,20}[!-~])?"), 0..12),
            has_length in any::<bool>(),
        ) {
            let target = format!("{path}{}", query.as_ref().map(|query| format!("?{query}")).unwrap_or_default());
            let Ok(uri) = format!("https://{host}{target}").parse::<http::Uri>() else { return Ok(()) };
            let mut text = format!("{method} {target} HTTP/1.1\r\nHost: {host}\r\n");
            let mut request = Http2Request::builder().method(&*method).uri(uri);
            for (name, value) in &fields {
                let value = if name == "te" { "trailers" } else { value };
                text.push_str(&format!("{name}: {value}\r\n"));
                request = request.header(name, value);
            }
            if has_length {
                text.push_str("Content-Length: 7\r\n");
                request = request.header("content-length", "7");
            }
            text.push_str("\r\n");
            let own = translated(request.body(()).unwrap(), !has_length).unwrap();
            let (one, two) = (head::request(text.as_bytes(), &BOUNDS), head::request(own.as_bytes(), &BOUNDS));
            match (&one, &two) {
                (Ok(ParseStatus::Complete(one)), Ok(ParseStatus::Complete(two))) => {
                    prop_assert_eq!(seen(one), seen(two));
                }
                (Err(one), Err(two)) => prop_assert_eq!(one, two),
                _ => prop_assert!(false, "{text:?} is {one:?}, {own:?} is {two:?}"),
            }
        }
    }
}

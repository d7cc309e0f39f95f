use super::super::body::Length;
use super::super::head::{self, Bounds, Method, ParseStatus};
use super::*;
use std::string::String;

const BOUNDS: Bounds = Bounds { bytes_max: 16_384, fields_max: 128, target_bytes_max: 8192 };

/// The usual answer with `status`: its name is its body.
fn of_status(status: u16, head_only: bool, close: bool) -> Reply<'static> {
    Reply {
        status,
        date: None,
        location: None,
        retry_after_s: None,
        challenge: None,
        body: text(status).as_bytes(),
        head_only,
        close,
    }
}

/// The bytes of `reply`; also checks the error when the room is a byte too small.
fn written(reply: &Reply<'_>) -> String {
    let mut out = [0; 8192];
    let length = write(&mut out, reply).unwrap();
    for room in [0, 1, length / 2, length - 1] {
        assert_eq!(write(&mut out[..room], reply), Err(NoRoom));
    }
    let mut exact = std::vec![0; length];
    assert_eq!(write(&mut exact, reply), Ok(length));
    String::from_utf8(exact).unwrap()
}

#[test]
fn refusal_has_reason_and_connection_close() {
    assert_eq!(
        written(&of_status(404, false, false)),
        "HTTP/1.1 404 Not Found\r\nContent-Type: text/plain\r\nContent-Length: 14\r\n\r\n404 Not Found\n"
    );
    assert_eq!(
        written(&of_status(400, false, true)),
        "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: 16\r\nConnection: close\r\n\r\n\
         400 Bad Request\n"
    );
    assert_eq!(
        written(&of_status(502, true, false)),
        "HTTP/1.1 502 Bad Gateway\r\nContent-Type: text/plain\r\nContent-Length: 16\r\n\r\n"
    );
}

#[test]
fn a_reply_says_when_it_was_written() {
    let reply = Reply { date: Some(Date::new(784_111_777)), body: b"", ..of_status(204, false, false) };
    assert_eq!(written(&reply), "HTTP/1.1 204 No Content\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\n\r\n");
}

#[test]
fn a_redirect_says_where_to() {
    let reply = Reply { location: Some(b"https://a/"), ..of_status(308, false, false) };
    assert_eq!(
        written(&reply),
        "HTTP/1.1 308 Permanent Redirect\r\nContent-Type: text/plain\r\nContent-Length: 23\r\n\
         Location: https://a/\r\n\r\n308 Permanent Redirect\n"
    );
}

#[test]
fn refused_client_is_told_when_to_come_again() {
    let reply = Reply { retry_after_s: Some(60), body: b"", ..of_status(429, false, true) };
    assert_eq!(
        written(&reply),
        "HTTP/1.1 429 Too Many Requests\r\nContent-Length: 0\r\nRetry-After: 60\r\nConnection: close\r\n\r\n"
    );
}

#[test]
fn what_has_no_body_has_none() {
    let reply = |status| Reply { body: b"x", ..of_status(status, false, false) };
    assert_eq!(written(&reply(204)), "HTTP/1.1 204 No Content\r\n\r\n");
    assert_eq!(written(&reply(304)), "HTTP/1.1 304 Not Modified\r\n\r\n");
    let empty = Reply { body: b"", ..reply(200) };
    assert_eq!(written(&empty), "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    assert_eq!(written(&reply(599)), "HTTP/1.1 599 \r\nContent-Type: text/plain\r\nContent-Length: 1\r\n\r\nx");
}

#[test]
fn every_reply_can_be_read() {
    assert!(TEXTS.is_sorted_by_key(|&(status, _)| status));
    for status in 200..600 {
        for close in [false, true] {
            let reply = Reply { body: b"body", ..of_status(status, false, close) };
            let bytes = written(&reply);
            let Ok(ParseStatus::Complete(read)) = head::response(bytes.as_bytes(), &BOUNDS, Method::Get) else {
                panic!("{bytes}");
            };
            assert_eq!((read.status, read.keep_alive), (status, !close));
            let expected = if matches!(status, 204 | 304) { Length::None } else { Length::Bytes(4) };
            assert_eq!(read.body, expected);
            assert_eq!(text(status).is_empty(), read.reason.is_empty());
        }
    }
    for refusal in head::BadHead::ALL {
        assert!(!text(refusal.status()).is_empty(), "{refusal:?}");
    }
}

#[test]
fn locations_are_filled_in() {
    for (template, line, https, expected) in [
        (
            "https://{host}{path}{query}",
            "/a%20b?c HTTP/1.1\r\nHost: a.example:80",
            false,
            Ok("https://a.example/a%20b?c"),
        ),
        ("{scheme}://www.{authority}{path}", "/ HTTP/1.1\r\nHost: a:8080", true, Ok("https://www.a:8080/")),
        ("http://b{path}{query}", "http://a?q HTTP/1.1\r\nHost: a", false, Ok("http://b/?q")),
        ("{path}x{{}}", "//evil.example/ HTTP/1.1\r\nHost: a", false, Ok("/evil.example/x{}")),
        ("/x{path}", "//a HTTP/1.1\r\nHost: a", false, Ok("/x//a")),
        ("/new", "/ HTTP/1.0", false, Ok("/new")),
        ("{host}", "/ HTTP/1.0", false, Err(NoRoom)),
        ("{authority}", "/ HTTP/1.0", false, Err(NoRoom)),
        ("https://{host}{path}", "/evil.example/ HTTP/1.1\r\nHost: .", false, Err(NoRoom)),
        ("http://b{path}", "* HTTP/1.1\r\nHost: a", false, Ok("http://b/")),
    ] {
        let method = if line.starts_with('*') { "OPTIONS" } else { "GET" };
        let head = std::format!("{method} {line}\r\n\r\n");
        let Ok(ParseStatus::Complete(request)) = head::request(head.as_bytes(), &BOUNDS) else { panic!("{head}") };
        let mut out = [0; 256];
        let found = location(&mut out, template.as_bytes(), &request, https);
        assert_eq!(found.map(|length| core::str::from_utf8(&out[..length]).unwrap()), expected, "{template} {line}");
        let is_named = line.contains("Host: a");
        let refused = if is_named { (414, Refused::TooLarge) } else { (400, Refused::Malformed) };
        assert_eq!(without_location(&request), refused, "{line}");
        if let Ok(length) = found {
            assert_eq!(location(&mut out[..length - 1], template.as_bytes(), &request, https), Err(NoRoom));
        }
    }
}

#[test]
fn challenge_says_which_credentials_are_asked_for() {
    let reply = Reply { challenge: Some(b"Basic realm=\"a\""), body: b"", ..of_status(401, false, false) };
    assert_eq!(
        written(&reply),
        "HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nWWW-Authenticate: Basic realm=\"a\"\r\n\r\n"
    );
}

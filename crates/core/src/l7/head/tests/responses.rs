//! Responses: the table of those that are refused, and what the others say.

use super::super::{FramingFields, Version};
use super::*;
use crate::l7::body::Length;
use std::format;

fn judge(bytes: &[u8]) -> Result<ParseStatus<()>, BadHead> {
    verdict(response(bytes, &BOUNDS, Method::Get))
}

#[test]
fn what_is_ambiguous_is_refused() {
    use BadHead::*;
    refused(
        &[
            (
                "length and chunked",
                "HTTP/1.1 200 OK\r\nContent-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n",
                TwoLengths,
            ),
            ("two lengths", "HTTP/1.1 200 OK\r\nContent-Length: 6\r\nContent-Length: 7\r\n\r\n", ContentLength),
            ("list of lengths", "HTTP/1.1 200 OK\r\nContent-Length: 6,7\r\n\r\n", ContentLength),
            ("list that ends early", "HTTP/1.1 200 OK\r\nContent-Length: 6,\r\n\r\n", ContentLength),
            ("identity and chunked", "HTTP/1.1 200 OK\r\nTransfer-Encoding: identity, chunked\r\n\r\n", Coding),
            (
                "two lengths, identity",
                "HTTP/1.1 204 \r\nContent-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n",
                TwoLengths,
            ),
            ("bad length though none counts", "HTTP/1.1 304 \r\nContent-Length: x\r\n\r\n", ContentLength),
            ("length of 100", "HTTP/1.1 100 \r\nContent-Length: 5\r\n\r\n", ContentLength),
            ("chunked 103", "HTTP/1.1 103 \r\nTransfer-Encoding: chunked\r\n\r\n", TransferEncoding),
            ("chunked in 1.0", "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", TransferEncoding),
            ("gzip", "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", TransferEncoding),
            ("gzip, chunked", "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", Coding),
            ("underscored length", "HTTP/1.1 200 OK\r\nContent_Length: 5\r\n\r\n", Lookalike),
            ("dotted coding", "HTTP/1.1 200 OK\r\nTransfer.Encoding: chunked\r\n\r\n", Lookalike),
            ("folded", "HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n", Folded),
            ("space before colon", "HTTP/1.1 200 OK\r\nA : b\r\n\r\n", FieldName),
            ("NUL in value", "HTTP/1.1 200 OK\r\nA: \0\r\n\r\n", FieldValue),
            ("bare LF behind status line", "HTTP/1.1 200 OK\nA: b\r\n\r\n", LineEnd),
            ("bare LF without reason", "HTTP/1.1 200\nA: b\r\n\r\n", LineEnd),
            ("bare CR in reason", "HTTP/1.1 200 O\rK\r\nA: b\r\n\r\n", LineEnd),
            ("bare LF as last line", "HTTP/1.1 200 OK\r\nA: b\r\n\n", LineEnd),
            ("control in reason", "HTTP/1.1 200 \x1b[2J\r\n\r\n", StatusLine),
            ("empty line first", "\r\nHTTP/1.1 200 OK\r\n\r\n", StatusLine),
            ("status of two digits", "HTTP/1.1 20 OK\r\n\r\n", StatusLine),
            ("status of four digits", "HTTP/1.1 2000 OK\r\n\r\n", StatusLine),
            ("status 099", "HTTP/1.1 099 OK\r\n\r\n", StatusLine),
            ("status with letter", "HTTP/1.1 2x0 OK\r\n\r\n", StatusLine),
            ("two spaces", "HTTP/1.1  200 OK\r\n\r\n", StatusLine),
            ("lower case", "http/1.1 200 OK\r\n\r\n", StatusLine),
            ("HTTP/0.9", "<html>", StatusLine),
            ("version 2.0", "HTTP/2.0 200 OK\r\n\r\n", Version),
            ("version 1.2", "HTTP/1.2 200 OK\r\n\r\n", Version),
            ("ICY", "ICY 200 OK\r\n\r\n", StatusLine),
        ],
        judge,
    );
}

#[test]
fn bodies() {
    let length = |text: &str, asked| answered(text, asked).body;
    let plain = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n";
    assert_eq!(length(plain, Method::Get), Length::Bytes(5));
    assert_eq!(length(plain, Method::Head), Length::None);
    assert_eq!(length(plain, Method::Connect), Length::Tunnel);
    let chunked = "HTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\n\r\n";
    assert_eq!(length(chunked, Method::Get), Length::Chunked);
    assert_eq!(length(chunked, Method::Head), Length::None);
    assert_eq!(length(chunked, Method::Connect), Length::Chunked);
    let closed = "HTTP/1.1 200 OK\r\n\r\n";
    assert_eq!(length(closed, Method::Post), Length::UntilClose);
    assert_eq!(length(closed, Method::Head), Length::None);
    assert_eq!(length("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", Method::Get), Length::None);
    assert_eq!(length("HTTP/1.1 101 Switching Protocols\r\n\r\n", Method::Get), Length::Tunnel);
    for status in [100, 102, 103, 199, 204, 304] {
        assert_eq!(length(&format!("HTTP/1.1 {status} \r\n\r\n"), Method::Get), Length::None, "{status}");
    }
    assert_eq!(length("HTTP/1.1 304 \r\nContent-Length: 7\r\n\r\n", Method::Get), Length::None);
    assert_eq!(length("HTTP/1.1 304 \r\nTransfer-Encoding: chunked\r\n\r\n", Method::Get), Length::None);
    assert_eq!(length("HTTP/1.1 204 \r\nContent-Length: 0\r\n\r\n", Method::Get), Length::None);
    assert_eq!(length("HTTP/1.1 205 \r\n\r\n", Method::Get), Length::UntilClose);
    assert_eq!(length("HTTP/1.1 300 \r\n\r\n", Method::Connect), Length::UntilClose);
    assert_eq!(length("HTTP/1.1 299 \r\n\r\n", Method::Connect), Length::Tunnel);
}

#[test]
fn framing_that_is_clear_once_written_anew_is_taken() {
    let framed = |text: &str, asked| {
        let response = answered(text, asked);
        (response.body, response.framing, response.keep_alive)
    };
    let get = |text: &str| framed(&format!("HTTP/1.1 {text}\r\n\r\n"), Method::Get);
    let five = Length::Bytes(5);
    assert_eq!(get("200 \r\nContent-Length: 5"), (five, FramingFields::AsSaid, true));
    assert_eq!(get("200 \r\nContent-Length: 5\r\nContent-Length: 5"), (five, FramingFields::Length(5), true));
    assert_eq!(get("200 \r\nContent-Length: 5, 5,5"), (five, FramingFields::Length(5), true));
    assert_eq!(get("200 \r\nContent-Length: 0005"), (five, FramingFields::Length(5), true));
    assert_eq!(get("200 \r\nContent-Length: 000"), (Length::None, FramingFields::Length(0), true));
    assert_eq!(get("204 \r\nContent-Length: 5"), (Length::None, FramingFields::Without, false));
    assert_eq!(get("204 \r\nTransfer-Encoding: chunked"), (Length::None, FramingFields::Without, false));
    assert_eq!(get("204 \r\nContent-Length: 0"), (Length::None, FramingFields::AsSaid, true));
    let identity = "200 \r\nTransfer-Encoding: identity";
    assert_eq!(get(identity), (Length::UntilClose, FramingFields::Without, false));
    assert_eq!(get(&format!("{identity}\r\nContent-Length: 5")), (five, FramingFields::Length(5), false));
    let head = framed(&format!("HTTP/1.0 {identity}\r\nContent-Length: 5\r\n\r\n"), Method::Head);
    assert_eq!(head, (Length::None, FramingFields::Length(5), false));
    for status in [600, 999] {
        assert_eq!(answered(&format!("HTTP/1.1 {status} \r\n\r\n"), Method::Get).status, status);
    }
}

#[test]
fn connections() {
    let kept = |text: &str| answered(text, Method::Get).keep_alive;
    assert!(kept("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"));
    assert!(!kept("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\n"));
    assert!(!kept("HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\n"));
    assert!(kept("HTTP/1.0 200 OK\r\nContent-Length: 5\r\nConnection: keep-alive\r\n\r\n"));
    assert!(!kept("HTTP/1.1 200 OK\r\n\r\n"), "its end is the connection's");
    assert!(!kept("HTTP/1.1 101 \r\nConnection: upgrade\r\n\r\n"));
}

#[test]
fn status_lines() {
    let text = "HTTP/1.0 599 \u{fc}\tber\r\nHost: a\r\nHost: b\r\nExpect: x\r\nUpgrade: h2c\r\n\r\nbody";
    let response = answered(text, Method::Get);
    assert_eq!((response.status, response.version), (599, Version::Http10));
    assert_eq!(response.reason, "\u{fc}\tber".as_bytes());
    assert_eq!(response.bytes.len(), text.len() - 4);
    assert_eq!(response.fields.len(), 4);
    for text in ["HTTP/1.1 200\r\n\r\n", "HTTP/1.1 200 \r\n\r\n"] {
        let response = answered(text, Method::Get);
        assert_eq!((response.status, response.reason, response.bytes), (200, &b""[..], text.as_bytes()));
        assert_eq!(response.version, Version::Http11);
    }
}

#[test]
fn bounds_hold() {
    let bounds = Bounds { bytes_max: 60, fields_max: 2, target_bytes_max: 0 };
    let judge = |text: &str| verdict(response(text.as_bytes(), &bounds, Method::Get));
    let head = |bytes: usize| format!("HTTP/1.1 200 OK\r\nA: {}\r\n\r\n", "a".repeat(bytes - 24));
    assert_eq!(judge(&head(60)), Ok(ParseStatus::Complete(())));
    assert_eq!(judge(&head(61)), Err(BadHead::TooLarge));
    assert_eq!(judge(&head(61)[..59]), Ok(ParseStatus::Partial));
    assert_eq!(judge(&head(61)[..60]), Err(BadHead::TooLarge));
    assert_eq!(judge("HTTP/1.1 200 OK\r\nA: b\r\nC: d\r\n\r\n"), Ok(ParseStatus::Complete(())));
    assert_eq!(judge("HTTP/1.1 200 OK\r\nA: b\r\nC: d\r\nE: f\r\n"), Err(BadHead::TooManyFields));
}

//! Requests: the table of those that are refused, and what the others say.

use super::super::Form;
use super::*;
use crate::l7::body::Length;
use std::format;
use std::string::String;

fn judge(bytes: &[u8]) -> Result<ParseStatus<()>, BadHead> {
    verdict(request(bytes, &BOUNDS))
}

#[test]
fn what_is_smuggled_is_refused() {
    use BadHead::*;
    refused(
        &[
            (
                "length and chunked",
                "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n",
                TwoLengths,
            ),
            (
                "chunked and length",
                "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 6\r\n\r\n",
                TwoLengths,
            ),
            (
                "chunked and length 0",
                "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n",
                TwoLengths,
            ),
            (
                "two lengths",
                "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 6\r\nContent-Length: 5\r\n\r\n",
                ContentLength,
            ),
            (
                "two equal lengths",
                "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n",
                ContentLength,
            ),
            ("list of lengths", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5, 5\r\n\r\n", ContentLength),
            ("length with sign", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +5\r\n\r\n", ContentLength),
            ("negative length", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", ContentLength),
            ("hexadecimal length", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0x10\r\n\r\n", ContentLength),
            ("octal length", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 010\r\n\r\n", ContentLength),
            ("length with spaces in it", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1 0\r\n\r\n", ContentLength),
            ("length with exponent", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1e3\r\n\r\n", ContentLength),
            ("empty length", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length:\r\n\r\n", ContentLength),
            (
                "length of 2^63",
                "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9223372036854775808\r\n\r\n",
                ContentLength,
            ),
            (
                "length of 2^64",
                "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 18446744073709551616\r\n\r\n",
                ContentLength,
            ),
            ("underscored length", "POST / HTTP/1.1\r\nHost: a\r\nContent_Length: 5\r\n\r\n", Lookalike),
            ("dotted length", "POST / HTTP/1.1\r\nHost: a\r\nContent.Length: 5\r\n\r\n", Lookalike),
            ("underscored coding", "POST / HTTP/1.1\r\nHost: a\r\nTransfer_Encoding: chunked\r\n\r\n", Lookalike),
            ("space before colon", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding : chunked\r\n\r\n", FieldName),
            ("tab before colon", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding\t: chunked\r\n\r\n", FieldName),
            (
                "vertical tab before value",
                "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:\x0bchunked\r\n\r\n",
                FieldValue,
            ),
            (
                "form feed before value",
                "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:\x0cchunked\r\n\r\n",
                FieldValue,
            ),
            ("NUL in value", "POST / HTTP/1.1\r\nHost: a\r\nX: a\0b\r\n\r\n", FieldValue),
            ("DEL in value", "POST / HTTP/1.1\r\nHost: a\r\nX: a\x7fb\r\n\r\n", FieldValue),
            ("NUL in name", "POST / HTTP/1.1\r\nHost: a\r\nX\0: a\r\n\r\n", FieldName),
            ("no name", "POST / HTTP/1.1\r\nHost: a\r\n: a\r\n\r\n", FieldName),
            ("no colon", "POST / HTTP/1.1\r\nHost: a\r\nX\r\n\r\n", FieldName),
            ("non-ASCII name", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encodin\u{e7}: chunked\r\n\r\n", FieldName),
            ("folded value", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:\r\n chunked\r\n\r\n", TransferEncoding),
            ("folded with tab", "POST / HTTP/1.1\r\nHost: a\r\nX: a\r\n\tb\r\n\r\n", Folded),
            ("space before first field", "POST / HTTP/1.1\r\n Host: a\r\n\r\n", Folded),
            ("bare LF behind request line", "GET / HTTP/1.1\nHost: a\r\n\r\n", LineEnd),
            ("bare LF behind field", "GET / HTTP/1.1\r\nHost: a\nX: b\r\n\r\n", LineEnd),
            ("bare LF behind name", "GET / HTTP/1.1\r\nHost: a\r\nX\n\r\n", LineEnd),
            ("bare LF as last line", "GET / HTTP/1.1\r\nHost: a\r\n\n", LineEnd),
            ("bare CR in value", "GET / HTTP/1.1\r\nHost: a\r\nX: a\rTransfer-Encoding: chunked\r\n\r\n", LineEnd),
            ("two CR", "GET / HTTP/1.1\r\nHost: a\r\r\n\r\n", LineEnd),
            ("bare CR as last line", "GET / HTTP/1.1\r\nHost: a\r\n\rX", LineEnd),
            ("bare CR behind version", "GET / HTTP/1.1\rHost: a\r\n\r\n", LineEnd),
            ("bare CR first", "\rGET / HTTP/1.1\r\nHost: a\r\n\r\n", LineEnd),
            ("bare LF first", "\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", LineEnd),
            ("two empty lines first", "\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", RequestLine),
            (
                "chunked is not last",
                "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, gzip\r\n\r\n",
                TransferEncoding,
            ),
            (
                "chunked twice",
                "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, chunked\r\n\r\n",
                TransferEncoding,
            ),
            (
                "chunked in two fields",
                "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
                TransferEncoding,
            ),
            (
                "chunked, then identity",
                "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n",
                TransferEncoding,
            ),
            ("xchunked", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n", TransferEncoding),
            (
                "quoted chunked",
                "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: \"chunked\"\r\n\r\n",
                TransferEncoding,
            ),
            (
                "chunked with parameter",
                "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked;a=b\r\n\r\n",
                TransferEncoding,
            ),
            (
                "chunked in an empty list",
                "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: ,chunked\r\n\r\n",
                TransferEncoding,
            ),
            (
                "chunked behind another word",
                "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: x chunked\r\n\r\n",
                TransferEncoding,
            ),
            ("no coding", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:\r\n\r\n", TransferEncoding),
            ("identity", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: identity\r\n\r\n", TransferEncoding),
            ("gzip only", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n", TransferEncoding),
            ("chunked in 1.0", "POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", TransferEncoding),
            ("gzip, chunked", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", Coding),
            (
                "gzip, chunked in two fields",
                "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n",
                Coding,
            ),
            ("connection names host", "GET / HTTP/1.1\r\nHost: a\r\nConnection: close, Host\r\n\r\n", Connection),
            ("connection names length", "GET / HTTP/1.1\r\nHost: a\r\nConnection: content-length\r\n\r\n", Connection),
            (
                "connection is no list of tokens",
                "GET / HTTP/1.1\r\nHost: a\r\nConnection: keep-alive close\r\n\r\n",
                Connection,
            ),
            ("unknown expectation", "POST / HTTP/1.1\r\nHost: a\r\nExpect: 200-ok\r\n\r\n", Expectation),
            (
                "expectation twice",
                "POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nExpect: 100-continue\r\n\r\n",
                Expectation,
            ),
        ],
        judge,
    );
}

#[test]
fn request_lines_are_exact() {
    use BadHead::*;
    let cases: &[(&str, &str, BadHead)] = &[
        ("two spaces", "GET  / HTTP/1.1", RequestLine),
        ("two spaces before version", "GET /  HTTP/1.1", RequestLine),
        ("space at the end", "GET / HTTP/1.1 ", RequestLine),
        ("space first", " GET / HTTP/1.1", RequestLine),
        ("tab", "GET\t/ HTTP/1.1", RequestLine),
        ("tab behind target", "GET /\tHTTP/1.1", Target),
        ("no target", "GET HTTP/1.1", RequestLine),
        ("HTTP/0.9", "GET /", RequestLine),
        ("method only", "GET", RequestLine),
        ("method with colon", "GET: / HTTP/1.1", RequestLine),
        ("method of 33 bytes", "ABCDEFGHIJKLMNOPQRSTUVWXYZABCDEFG / HTTP/1.1", RequestLine),
        ("TLS", "\x16\x03\x01\x02", RequestLine),
        ("lower-case version", "GET / http/1.1", RequestLine),
        ("version without minor", "GET / HTTP/1", RequestLine),
        ("version with three digits", "GET / HTTP/1.10", RequestLine),
        ("version 1.2", "GET / HTTP/1.2", Version),
        ("version 2.0", "GET / HTTP/2.0", Version),
        ("version 0.9", "GET / HTTP/0.9", Version),
        ("HTTP/2 preface", "PRI * HTTP/2.0", Version),
        ("fragment", "GET /a#b HTTP/1.1", Target),
        ("non-ASCII", "GET /\u{e4} HTTP/1.1", Target),
        ("control", "GET /\x01 HTTP/1.1", Target),
        ("DEL", "GET /\x7f HTTP/1.1", Target),
        ("asterisk of GET", "GET * HTTP/1.1", Target),
        ("asterisk and more", "OPTIONS *a HTTP/1.1", Target),
        ("relative", "GET a HTTP/1.1", Target),
        ("query only", "GET ?a HTTP/1.1", Target),
        ("authority of GET", "GET a:80 HTTP/1.1", Target),
        ("origin of CONNECT", "CONNECT / HTTP/1.1", Target),
        ("absolute of CONNECT", "CONNECT http://a/ HTTP/1.1", Target),
        ("CONNECT without port", "CONNECT a HTTP/1.1", Target),
        ("CONNECT to IPv6 without port", "CONNECT [::1] HTTP/1.1", Target),
        ("CONNECT with empty port", "CONNECT a: HTTP/1.1", Target),
        ("CONNECT with user", "CONNECT u@a:80 HTTP/1.1", Target),
        ("other scheme", "GET ftp://a/ HTTP/1.1", Target),
        ("scheme without authority", "GET http:/a HTTP/1.1", Target),
        ("empty authority", "GET http:///a HTTP/1.1", Target),
        ("user information", "GET http://u:p@a/ HTTP/1.1", Target),
        ("bad port", "GET http://a:x/ HTTP/1.1", Target),
        ("backslash in authority", "GET http://a\\b/ HTTP/1.1", Target),
    ];
    for (name, line, why) in cases {
        refused(&[(name, &format!("{line}\r\nHost: a\r\n\r\n"), *why)], judge);
    }
}

#[test]
fn hosts() {
    let bad = [
        "",
        "a b",
        "a,b c",
        "a/b",
        "a@b",
        "a:",
        "a:b",
        "a:65536",
        "a:000080",
        ":80",
        "[::1",
        "[::1]a",
        "[::1]:",
        "[]",
        "[1.2.3.4]",
        "[::1%25eth0]",
        "[v1.a]",
        "a%",
        "a%4",
        "a%4g",
        "a?b",
        "a#b",
        "http://a",
        "\u{e4}",
        "a\"",
        "[::1]:99999",
        "a:80:80",
        "::1",
        "\\a",
        "<a>",
        "a|b",
        "{a}",
    ];
    for host in bad {
        let text = format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
        assert_eq!(judge(text.as_bytes()), Err(BadHead::Host), "{host:?}");
        let text = format!("GET http://b/ HTTP/1.0\r\nHost: {host}\r\n\r\n");
        assert_eq!(judge(text.as_bytes()), Err(BadHead::Host), "{host:?}, though there is an authority");
    }
    for host in [
        "a",
        "a.b-c_d~e",
        "a:80",
        "a:0",
        "192.0.2.1:65535",
        "[2001:db8::1]",
        "[::ffff:192.0.2.1]:8080",
        "a%20",
        "A.",
        "a,b",
    ] {
        let text = format!("GET / HTTP/1.1\r\nHost:\t {host} \t\r\n\r\n");
        assert_eq!(read(&text).host, Some(host.as_bytes()), "{host}");
    }
    for (text, why) in [
        ("GET / HTTP/1.1\r\n\r\n", "none"),
        ("GET http://a/ HTTP/1.1\r\n\r\n", "none, though there is an authority"),
        ("GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", "two"),
        ("GET / HTTP/1.0\r\nHost: a\r\nhost: b\r\n\r\n", "two in 1.0"),
        ("GET / HTTP/1.1\r\nHost: a\r\nHost:\r\n\r\n", "a second, empty one"),
    ] {
        assert_eq!(judge(text.as_bytes()), Err(BadHead::Host), "{why}");
    }
    assert_eq!(read("GET / HTTP/1.0\r\n\r\n").host, None);
    // The target wins.
    assert_eq!(read("GET http://b:81/ HTTP/1.1\r\nHost: a\r\n\r\n").host, Some(&b"b:81"[..]));
    assert_eq!(read("CONNECT b:81 HTTP/1.1\r\nHost: a\r\n\r\n").host, Some(&b"b:81"[..]));
    assert_eq!(read("GET http://b/ HTTP/1.0\r\n\r\n").host, Some(&b"b"[..]));
}

#[test]
fn targets() {
    let check = |line: &str, form, authority: Option<&str>, path: &str, query: Option<&str>| {
        let text = format!("{line} HTTP/1.1\r\nHost: h\r\n\r\n");
        let target = read(&text).target;
        assert_eq!(target.whole, line.split(' ').nth(1).unwrap().as_bytes(), "{line}");
        assert_eq!(target.form, form, "{line}");
        assert_eq!(target.authority, authority.map(str::as_bytes), "{line}");
        assert_eq!(target.path, path.as_bytes(), "{line}");
        assert_eq!(target.query, query.map(str::as_bytes), "{line}");
    };
    check("GET /", Form::Origin, None, "/", None);
    check("GET //a/../b;c=%2f", Form::Origin, None, "//a/../b;c=%2f", None);
    check("GET /a?b?c=/d", Form::Origin, None, "/a", Some("b?c=/d"));
    check("GET /?", Form::Origin, None, "/", Some(""));
    check("GET /a\"<>\\^`{|}~", Form::Origin, None, "/a\"<>\\^`{|}~", None);
    check("GET http://a", Form::Absolute, Some("a"), "/", None);
    check("GET HTTPS://a:443/b/c?d", Form::Absolute, Some("a:443"), "/b/c", Some("d"));
    check("GET http://a?d/e", Form::Absolute, Some("a"), "/", Some("d/e"));
    check("GET http://[::1]:8/", Form::Absolute, Some("[::1]:8"), "/", None);
    check("OPTIONS http://a", Form::Absolute, Some("a"), "*", None);
    check("OPTIONS http://a/", Form::Absolute, Some("a"), "/", None);
    check("OPTIONS http://a?", Form::Absolute, Some("a"), "/", Some(""));
    check("OPTIONS *", Form::Asterisk, None, "*", None);
    check("OPTIONS /a", Form::Origin, None, "/a", None);
    check("CONNECT a.example:443", Form::Authority, Some("a.example:443"), "", None);
    check("CONNECT [::1]:443", Form::Authority, Some("[::1]:443"), "", None);
}

#[test]
fn methods() {
    for (name, method, idempotent) in [
        ("GET", Method::Get, true),
        ("HEAD", Method::Head, true),
        ("POST", Method::Post, false),
        ("PUT", Method::Put, true),
        ("DELETE", Method::Delete, true),
        ("OPTIONS", Method::Options, true),
        ("TRACE", Method::Trace, true),
        ("PATCH", Method::Patch, false),
        ("get", Method::Other, false),
        ("PROPFIND", Method::Other, false),
        ("M-SEARCH!#$%&'*+.^_`|~0", Method::Other, false),
        ("ABCDEFGHIJKLMNOPQRSTUVWXYZABCDEF", Method::Other, false),
    ] {
        let text = format!("{name} / HTTP/1.1\r\nHost: a\r\n\r\n");
        let request = read(&text);
        assert_eq!((request.method, request.method_bytes), (method, name.as_bytes()));
        assert_eq!(method.is_idempotent(), idempotent, "{name}");
    }
    assert_eq!(read("CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n").method, Method::Connect);
    assert!(!Method::Connect.is_idempotent());
}

#[test]
fn bodies() {
    let check = |head: &str, body| assert_eq!(read(&format!("{head}Host: a\r\n\r\n")).body, body, "{head:?}");
    check("GET / HTTP/1.1\r\n", Length::None);
    check("POST / HTTP/1.1\r\n", Length::None);
    check("POST / HTTP/1.0\r\n", Length::None);
    check("POST / HTTP/1.1\r\nContent-Length: 0\r\n", Length::None);
    check("POST / HTTP/1.1\r\ncontent-length:17\r\n", Length::Bytes(17));
    check("GET / HTTP/1.0\r\nContent-Length: \t9223372036854775807 \r\n", Length::Bytes(i64::MAX as u64));
    check("TRACE / HTTP/1.1\r\nContent-Length: 1\r\n", Length::Bytes(1));
    check("PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n", Length::Chunked);
    check("PUT / HTTP/1.1\r\ntRANSFER-eNCODING:Chunked  \r\n", Length::Chunked);
    check("CONNECT a:1 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n", Length::Chunked);
}

#[test]
fn connections() {
    let read = |version: &str, fields: &str| {
        let text = format!("GET / HTTP/{version}\r\nHost: a\r\n{fields}\r\n");
        let request = read(&text);
        (request.keep_alive, request.upgrade, request.expects_continue)
    };
    assert_eq!(read("1.1", ""), (true, false, false));
    assert_eq!(read("1.0", ""), (false, false, false));
    assert_eq!(read("1.0", "Connection: Keep-Alive\r\n"), (true, false, false));
    assert_eq!(read("1.0", "Connection: Keep-Alive, close\r\n"), (false, false, false));
    assert_eq!(read("1.1", "Connection: x, ,\tCLOSE\r\n"), (false, false, false));
    assert_eq!(read("1.1", "Connection: keep-alive\r\nConnection: close\r\n"), (false, false, false));
    assert_eq!(read("1.1", "Proxy-Connection: close\r\n"), (true, false, false));
    assert_eq!(read("1.1", "Upgrade: websocket\r\nConnection: keep-alive, Upgrade\r\n"), (true, true, false));
    assert_eq!(read("1.1", "Connection: upgrade\r\n"), (true, false, false));
    assert_eq!(read("1.1", "Upgrade: websocket\r\n"), (true, false, false));
    assert_eq!(read("1.0", "Connection: upgrade\r\nUpgrade: websocket\r\n"), (false, false, false));
    for tunnelled in ["h2c", "H2C, websocket", "websocket, h2c", "HTTP/2.0", "TLS/1.3", "", "a b", "h2"] {
        let fields = format!("Connection: upgrade\r\nUpgrade: {tunnelled}\r\n");
        assert_eq!(read("1.1", &fields), (true, false, false), "{tunnelled}");
    }
    assert!(!read("1.1", "Connection: upgrade\r\nUpgrade: websocket\r\nUpgrade: h2c\r\n").1);
    assert!(!read("1.1", "Connection: upgrade\r\nUpgrade: h2c\r\nUpgrade: websocket\r\n").1);
    assert_eq!(read("1.1", "Expect: 100-Continue\r\n"), (true, false, true));
    assert_eq!(read("1.0", "Expect: 100-continue\r\n"), (false, false, false));
}

#[test]
fn fields() {
    let text = "GET / HTTP/1.1\r\nHost: a\r\nX-A:\t 1 \t\r\nx-a:2\r\nEmpty: \t \r\nNone:\r\nConnection: x-b , ,close\r\n\
                X-B: \u{fc}, \ty\r\nconnection: Te2\r\n\r\nGET";
    let request = read(text);
    assert_eq!(request.bytes, &text.as_bytes()[..text.len() - 3]);
    assert_eq!((request.fields.len(), request.fields.is_empty()), (8, false));
    let fields: Vec<(&[u8], &[u8])> = request.fields.iter().collect();
    assert_eq!(fields[1], (&b"X-A"[..], &b"1"[..]));
    assert_eq!(fields[3..5], [(&b"Empty"[..], &b""[..]), (b"None", b"")]);
    assert_eq!(fields[6].1, "\u{fc}, \ty".as_bytes());
    assert_eq!(request.fields.find(b"x-a").collect::<Vec<_>>(), [b"1", b"2"]);
    assert_eq!(request.fields.find(b"x-").count(), 0);
    for name in ["te", "Upgrade", "CONNECTION", "Keep-Alive", "proxy-connection", "Transfer-Encoding", "X-b", "tE2"] {
        assert!(request.fields.is_hop_by_hop(name.as_bytes()), "{name}");
    }
    for name in ["", "host", "x-a", "content-length", "trailer", "proxy-authorization"] {
        assert!(!request.fields.is_hop_by_hop(name.as_bytes()), "{name}");
    }
    assert!(read("GET / HTTP/1.0\r\n\r\n").fields.is_empty());
}

#[test]
fn an_empty_line_may_come_first() {
    let text = "\r\nGET /a HTTP/1.1\r\nHost: b\r\nX: c\r\n\r\n";
    let request = read(text);
    assert_eq!((request.bytes, request.target.path), (text.as_bytes(), &b"/a"[..]));
    assert_eq!(request.fields.iter().nth(1), Some((&b"X"[..], &b"c"[..])));
    assert_eq!(judge(b"\r\n"), Ok(ParseStatus::Partial));
}

#[test]
fn bounds_hold_and_are_told_early() {
    let bounds = Bounds { bytes_max: 100, fields_max: 3, target_bytes_max: 10 };
    let judge = |text: &str| verdict(request(text.as_bytes(), &bounds));
    // Bytes.
    let head = |bytes: usize| format!("GET / HTTP/1.1\r\nHost: {}\r\n\r\n", "a".repeat(bytes - 26));
    assert_eq!(head(100).len(), 100);
    assert_eq!(judge(&head(100)), Ok(ParseStatus::Complete(())));
    assert_eq!(judge(&(head(100) + "more")), Ok(ParseStatus::Complete(())));
    assert_eq!(judge(&head(101)), Err(BadHead::TooLarge));
    assert_eq!(judge(&head(101)[..99]), Ok(ParseStatus::Partial));
    assert_eq!(judge(&head(101)[..100]), Err(BadHead::TooLarge));
    // The bytes beyond are not read, whatever they are.
    assert_eq!(judge(&(String::from(&head(101)[..100]) + "\0")), Err(BadHead::TooLarge));
    // Fields.
    let fields = "GET / HTTP/1.1\r\nHost: a\r\nA: b\r\nC: d\r\n";
    assert_eq!(judge(&format!("{fields}\r\n")), Ok(ParseStatus::Complete(())));
    assert_eq!(judge(&format!("{fields}E: ")), Ok(ParseStatus::Partial));
    assert_eq!(judge(&format!("{fields}E: f\r\n")), Err(BadHead::TooManyFields));
    // Targets.
    assert_eq!(judge("GET /123456789 HTTP/1.1\r\nHost: a\r\n\r\n"), Ok(ParseStatus::Complete(())));
    assert_eq!(judge("GET /123456789"), Ok(ParseStatus::Partial));
    assert_eq!(judge("GET /1234567890"), Err(BadHead::TargetTooLong));
    assert_eq!(judge("GET /1234567890 HTTP/1.1\r\nHost: a\r\n\r\n"), Err(BadHead::TargetTooLong));
    // Absurd bounds.
    let none = Bounds { bytes_max: 0, fields_max: 0, target_bytes_max: 0 };
    assert_eq!(verdict(request(b"", &none)), Err(BadHead::TooLarge));
    let all = Bounds { bytes_max: usize::MAX, fields_max: usize::MAX, target_bytes_max: usize::MAX };
    let field = "A: b\r\n";
    let many = |fields: usize| format!("GET / HTTP/1.0\r\n{}\r\n", field.repeat(fields));
    assert_eq!(verdict(request(many(128).as_bytes(), &all)), Ok(ParseStatus::Complete(())));
    assert_eq!(verdict(request(many(129).as_bytes(), &all)), Err(BadHead::TooManyFields));
    let long = |bytes: usize| format!("GET / HTTP/1.0\r\nA:{}\r\n\r\n", "b".repeat(bytes - 22));
    assert_eq!(verdict(request(long(65_535).as_bytes(), &all)), Ok(ParseStatus::Complete(())));
    assert_eq!(verdict(request(long(65_536).as_bytes(), &all)), Err(BadHead::TooLarge));
}

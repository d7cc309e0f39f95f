//! What spans say.

use super::super::span;
use super::{STARTED_NS, facts, record, shown, texts};
use crate::access_log::RecordNames;
use hairpin_core::l7::splice::Refused;
use hairpin_core::record::{Ending, Record, TEXT_BYTES_MAX, Texts, flags};
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;

fn of(record: &Record, texts: &Texts<'_>) -> Span {
    span::of(&facts(1, record, texts))
}

/// One attribute of the span of a request; none: it has none.
fn attribute(texts: Texts<'_>, record: Record, key: &str) -> Option<String> {
    shown(&of(&record, &texts).attributes).remove(key)
}

#[test]
fn span_of_an_exchange_has_all_that_is_known() {
    let record = Record {
        flags: flags::EXCHANGE | flags::TLS | flags::HTTP2 | flags::ENGINE,
        bytes: [105, 10_486_079],
        to_backend_us: 338,
        to_response_us: 692,
        ..record()
    };
    let names = RecordNames {
        service: Some("web"),
        route: Some(2),
        group: Some("static"),
        backend: Some("server1"),
        backend_address: Some("10.0.1.2:80"),
    };
    let span = span::of(&span::SpanFacts { names, ..facts(1, &record, &texts()) });
    let expected = [
        ("client.address", "10.0.200.7"),
        ("client.port", "4000"),
        ("hairpin.backend", "server1"),
        ("hairpin.backend_address", "10.0.1.2:80"),
        ("hairpin.bytes_in", "105"),
        ("hairpin.bytes_out", "10486079"),
        ("hairpin.carrier", "engine"),
        ("hairpin.ending", "done"),
        ("hairpin.group", "static"),
        ("hairpin.route", "2"),
        ("hairpin.service", "web"),
        ("hairpin.to_backend_us", "338"),
        ("hairpin.to_response_us", "692"),
        ("hairpin.tries", "1"),
        ("http.request.method", "GET"),
        ("http.response.status_code", "200"),
        ("network.local.address", "192.0.2.1"),
        ("network.local.port", "80"),
        ("network.peer.address", "10.0.200.7"),
        ("network.peer.port", "4000"),
        ("network.protocol.version", "2"),
        ("server.address", "example.org"),
        ("server.port", "443"),
        ("url.path", "/a"),
        ("url.query", "b=c"),
        ("url.scheme", "https"),
        ("user_agent.original", "curl/8"),
    ];
    let attributes = shown(&span.attributes);
    let attributes: Vec<(&str, &str)> = attributes.iter().map(|(key, value)| (&**key, &**value)).collect();
    assert_eq!(attributes, expected);
    assert_eq!((&*span.name, span.kind, span.flags), ("GET", SpanKind::Server as i32, 0x301));
    assert_eq!((span.trace_id, span.span_id, span.parent_span_id), (vec![0xa1; 16], vec![0xb1; 8], vec![0xc1; 8]));
    assert_eq!(span.start_time_unix_nano, STARTED_NS);
    assert_eq!(span.end_time_unix_nano, STARTED_NS + 1_234_567);
    assert_eq!(span.status.unwrap().code, StatusCode::Unset as i32);
}

#[test]
fn span_that_begins_a_trace_has_no_parent() {
    let span = span::of(&span::SpanFacts { parent_id: None, ..facts(1, &record(), &texts()) });
    assert_eq!((span.parent_span_id, span.flags), (vec![], 0x101));
}

#[test]
fn unknown_method_is_told_apart_from_the_name() {
    for (line, name, method, original) in [
        (&b"PATCH /"[..], "PATCH", "PATCH", None),
        (b"PROPFIND /", "HTTP", "_OTHER", Some("PROPFIND")),
        (b"get /", "HTTP", "_OTHER", Some("get")),
        // Adopted from a process before: its texts are not known.
        (b"", "HTTP", "_OTHER", None),
    ] {
        let span = of(&record(), &Texts { line, ..Texts::default() });
        let attributes = shown(&span.attributes);
        assert_eq!((&*span.name, &*attributes["http.request.method"]), (name, method));
        assert_eq!(attributes.get("http.request.method_original").map(String::as_str), original);
    }
}

#[test]
fn target_is_told_as_path_and_query_without_secrets() {
    for (line, path, query) in [
        ("GET /a/b", Some("/a/b"), None),
        ("GET /a?", Some("/a"), Some("")),
        (
            "GET /?sig=abc&q=1&X-Amz-Signature=f%00&Sig=x",
            Some("/"),
            Some("sig=REDACTED&q=1&X-Amz-Signature=REDACTED&Sig=x"),
        ),
        ("GET /?AWSAccessKeyId=A&Signature=b=c&sig", Some("/"), Some("AWSAccessKeyId=REDACTED&Signature=REDACTED&sig")),
        (
            "GET /?X-Goog-Signature=&X-Amz-Credential=1",
            Some("/"),
            Some("X-Goog-Signature=REDACTED&X-Amz-Credential=REDACTED"),
        ),
        ("GET /?%73ig=abc&s%69%67=d&%73%69%g=e", Some("/"), Some("%73ig=REDACTED&s%69%67=REDACTED&%73%69%g=e")),
        ("GET http://user:pw@a.test/b?c", Some("/b"), Some("c")),
        ("GET http://a.test", Some("/"), None),
        ("GET /redirect?to=http://a.test/x", Some("/redirect"), Some("to=http://a.test/x")),
        ("OPTIONS *", Some("*"), None),
        ("CONNECT a.test:443", None, None),
        ("", None, None),
    ] {
        let texts = Texts { line: line.as_bytes(), ..Texts::default() };
        assert_eq!(attribute(texts, record(), "url.path").as_deref(), path, "{line}");
        assert_eq!(attribute(texts, record(), "url.query").as_deref(), query, "{line}");
    }
    let texts = Texts { line: b"GET /\xff?\xfe\n", agent: b"\xc3\xa9\xff", ..Texts::default() };
    assert_eq!(attribute(texts, record(), "url.path").unwrap(), "/\u{fffd}");
    assert_eq!(attribute(texts, record(), "url.query").unwrap(), "\u{fffd}\n");
    assert_eq!(attribute(texts, record(), "user_agent.original").unwrap(), "\u{e9}\u{fffd}");
}

#[test]
fn server_is_the_host_that_was_asked_for() {
    for (host, tls, address, port) in [
        (&b"a.test:8080"[..], false, "a.test", "8080"),
        (b"a.test", true, "a.test", "443"),
        (b"[2001:db8::1]:81", false, "2001:db8::1", "81"),
        (b"[::1]", false, "::1", "80"),
        (b"a.test:x", false, "a.test", "80"),
        // None: it is the VIP.
        (b"", true, "192.0.2.1", "80"),
        (b":80", false, "192.0.2.1", "80"),
    ] {
        let texts = Texts { host, ..texts() };
        let record = Record { flags: if tls { flags::TLS } else { 0 }, ..record() };
        assert_eq!(attribute(texts, record, "server.address").unwrap(), address);
        assert_eq!(attribute(texts, record, "server.port").unwrap(), port);
    }
}

#[test]
fn error_is_a_server_s_status_or_a_broken_exchange() {
    let why = Refused::ALL.iter().position(|why| *why == Refused::NoBackend).unwrap() as u8;
    for (ending, status, why, expected) in [
        (Ending::Done, 200, 255, None),
        (Ending::Done, 404, 255, None),
        (Ending::Answered, 301, 255, None),
        (Ending::Done, 502, 255, Some("502")),
        (Ending::Answered, 503, why, Some(Refused::NoBackend.name())),
        (Ending::Client, 200, 255, Some("client")),
        (Ending::Timeout, 0, 255, Some("timeout")),
    ] {
        let record = Record { ending: ending as u8, status, why, ..record() };
        let span = of(&record, &texts());
        let attributes = shown(&span.attributes);
        assert_eq!(attributes.get("error.type").map(String::as_str), expected, "{ending:?} {status}");
        let code = if expected.is_some() { StatusCode::Error } else { StatusCode::Unset };
        assert_eq!(span.status.unwrap().code, code as i32, "{ending:?} {status}");
        assert_eq!(attributes.contains_key("http.response.status_code"), status != 0);
    }
}

/// Bytes of memory, without what the allocator adds.
fn bytes(span: &Span) -> usize {
    let ids = [&span.trace_id, &span.span_id, &span.parent_span_id].map(Vec::capacity);
    let texts = span.attributes.iter().map(|attribute| {
        let value = match attribute.value.as_ref().and_then(|value| value.value.as_ref()) {
            Some(Value::StringValue(text)) => text.capacity(),
            _ => 0,
        };
        attribute.key.capacity() + value
    });
    let list = span.attributes.capacity() * size_of::<KeyValue>();
    size_of::<Span>() + ids.iter().sum::<usize>() + span.name.capacity() + list + texts.sum::<usize>()
}

/// The reference of `queue` says so.
#[test]
fn span_takes_no_more_memory_than_is_said() {
    let usual = bytes(&of(&record(), &texts()));
    assert!((2500..4096).contains(&usual), "{usual}");
    // Each byte becomes the three of U+FFFD.
    let [line, host, agent, referer, ..] = TEXT_BYTES_MAX.map(|count| vec![0xff; count]);
    let texts = Texts {
        line: &[&b"\xff \xff?"[..], &line[4..]].concat(),
        host: &host,
        agent: &agent,
        referer: &referer,
        ..Texts::default()
    };
    let most = bytes(&of(&record(), &texts));
    assert!((9000..13 << 10).contains(&most), "{most}");
}

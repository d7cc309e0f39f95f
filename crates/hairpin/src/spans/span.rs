//! The span of an exchange, by OpenTelemetry's semantic conventions for HTTP servers
//! (<https://opentelemetry.io/docs/specs/semconv/http/http-spans/>); what they have no word for is under `hairpin.`, named as in
//! the access log.

use crate::access_log::RecordNames;
use hairpin_core::flow::Endpoint;
use hairpin_core::record::{Ending, NEVER_US, Record, Texts, flags};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{Span, Status};
use percent_encoding::percent_decode_str;
use std::borrow::Cow;
use std::net::IpAddr;

/// What a span is made of.
pub(crate) struct SpanFacts<'a> {
    /// The trace.
    pub(crate) trace_id: [u8; 16],
    /// This span.
    pub(crate) span_id: [u8; 8],
    /// The client's span; `None`: the trace begins here.
    pub(crate) parent_id: Option<[u8; 8]>,
    /// When it began, in nanoseconds since 1970.
    pub(crate) started_ns: u64,
    /// The exchange.
    pub(crate) record: &'a Record,
    /// What its request says of itself.
    pub(crate) texts: &'a Texts<'a>,
    /// What the record's numbers stand for.
    pub(crate) names: RecordNames<'a>,
}

/// Methods that the conventions know: those of RFC 9110, PATCH (RFC 5789) and QUERY.
const METHODS: [&[u8]; 10] =
    [b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"CONNECT", b"OPTIONS", b"TRACE", b"PATCH", b"QUERY"];
/// What stands for any other method.
const OTHER_METHOD: &str = "_OTHER";
/// Parameters of a query whose values the conventions redact: those of 1.42 and those of versions before.
const SECRETS: [&str; 7] = [
    "X-Amz-Signature",
    "X-Amz-Credential",
    "X-Amz-Security-Token",
    "sig",
    "X-Goog-Signature",
    "AWSAccessKeyId",
    "Signature",
];
/// What stands in their place.
const REDACTED: &str = "REDACTED";

/// `flags` of a span: the trace is sampled; it is known whether the parent is of another process; it is.
const SAMPLED: u32 = 1;
const REMOTE_KNOWN: u32 = 0x100;
const REMOTE: u32 = 0x200;

/// The span of an exchange.
pub(super) fn of(facts: &SpanFacts<'_>) -> Span {
    let mut attributes = Attributes(Vec::with_capacity(32));
    let name = attributes.add_request(facts);
    attributes.add_ends(facts);
    attributes.add_own(facts);
    let error = error(facts.record);
    attributes.text("error.type", error.as_deref());
    let code = if error.is_some() { StatusCode::Error } else { StatusCode::Unset };
    Span {
        trace_id: facts.trace_id.into(),
        span_id: facts.span_id.into(),
        parent_span_id: facts.parent_id.map(Vec::from).unwrap_or_default(),
        flags: SAMPLED | REMOTE_KNOWN | if facts.parent_id.is_some() { REMOTE } else { 0 },
        name: name.to_owned(),
        kind: SpanKind::Server as i32,
        start_time_unix_nano: facts.started_ns,
        end_time_unix_nano: facts.started_ns.saturating_add(facts.record.took),
        attributes: attributes.0,
        status: Some(Status { message: String::new(), code: code as i32 }),
        ..Span::default()
    }
}

/// The class of the error that the exchange ended with: how it was broken off, why Hairpin has answered with an error, or the
/// backend's status. A client's mistake (4xx) is none.
fn error(record: &Record) -> Option<String> {
    let ending = Ending::of(record.ending);
    match ending {
        Ending::Done | Ending::Answered if record.status < 500 => None,
        Ending::Done => Some(record.status.to_string()),
        Ending::Answered => Some(record.why().map_or_else(|| record.status.to_string(), |why| why.name().to_owned())),
        _ => Some(ending.name().to_owned()),
    }
}

struct Attributes(Vec<KeyValue>);

impl Attributes {
    fn add(&mut self, key: &str, value: Value) {
        self.0.push(KeyValue {
            key: key.to_owned(),
            value: Some(AnyValue { value: Some(value) }),
            ..KeyValue::default()
        });
    }

    fn text(&mut self, key: &str, text: Option<&str>) {
        if let Some(text) = text {
            self.add(key, Value::StringValue(text.to_owned()));
        }
    }

    /// What a client says; it may say nothing, or what is no UTF-8.
    fn said(&mut self, key: &str, said: &[u8]) {
        self.text(key, Some(&*String::from_utf8_lossy(said)).filter(|said| !said.is_empty()));
    }

    fn number(&mut self, key: &str, number: impl TryInto<i64>) {
        self.add(key, Value::IntValue(number.try_into().unwrap_or(i64::MAX)));
    }

    /// What is known of the request and its response; returns the span's name.
    fn add_request(&mut self, facts: &SpanFacts<'_>) -> &'static str {
        let (record, texts) = (facts.record, facts.texts);
        let method = METHODS.iter().find(|method| **method == texts.method());
        let method = method.and_then(|method| std::str::from_utf8(method).ok());
        self.text("http.request.method", Some(method.unwrap_or(OTHER_METHOD)));
        if method.is_none() {
            self.said("http.request.method_original", texts.method());
        }
        self.text("url.scheme", Some(if record.has(flags::TLS) { "https" } else { "http" }));
        let (path, query) = path_and_query(texts.target());
        self.said("url.path", path);
        self.text("url.query", query.map(redacted).as_deref());
        self.said("user_agent.original", texts.agent);
        let version = match () {
            () if record.has(flags::HTTP2) => "2",
            () if record.has(flags::HTTP10) => "1.0",
            () => "1.1",
        };
        self.text("network.protocol.version", Some(version));
        if record.status != 0 {
            self.number("http.response.status_code", record.status);
        }
        method.unwrap_or("HTTP")
    }

    /// Who speaks to whom.
    fn add_ends(&mut self, facts: &SpanFacts<'_>) {
        let Record { client, vip, .. } = facts.record;
        let default_port = if facts.record.has(flags::TLS) { 443 } else { 80 };
        match host_and_port(facts.texts.host) {
            Some((host, port)) => {
                self.text("server.address", Some(&host));
                self.number("server.port", port.unwrap_or(default_port));
            }
            None => self.end("server", vip),
        }
        self.end("client", client);
        self.end("network.peer", client);
        self.end("network.local", vip);
    }

    fn end(&mut self, what: &str, end: &Endpoint) {
        self.text(&format!("{what}.address"), Some(&IpAddr::from(end.address).to_string()));
        self.number(&format!("{what}.port"), end.port);
    }

    /// What the conventions have no word for.
    fn add_own(&mut self, facts: &SpanFacts<'_>) {
        let SpanFacts { record, names, .. } = facts;
        self.text("hairpin.service", names.service);
        names.route.iter().for_each(|route| self.number("hairpin.route", *route));
        self.text("hairpin.group", names.group);
        self.text("hairpin.backend", names.backend);
        self.text("hairpin.backend_address", names.backend_address);
        self.number("hairpin.bytes_in", record.bytes[0]);
        self.number("hairpin.bytes_out", record.bytes[1]);
        for (key, micros) in
            [("hairpin.to_backend_us", record.to_backend_us), ("hairpin.to_response_us", record.to_response_us)]
        {
            if micros != NEVER_US {
                self.number(key, micros);
            }
        }
        self.number("hairpin.tries", record.tries);
        self.text("hairpin.carrier", Some(if record.has(flags::ENGINE) { "engine" } else { "software" }));
        self.text("hairpin.ending", Some(Ending::of(record.ending).name()));
        self.text("hairpin.reason", record.why().map(|why| why.name()));
    }
}

/// Path and query of a target (RFC 9112, 3.2). That of `CONNECT` has neither.
fn path_and_query(target: &[u8]) -> (&[u8], Option<Cow<'_, str>>) {
    let (before, query) = match memchr::memchr(b'?', target) {
        Some(place) => (&target[..place], Some(String::from_utf8_lossy(&target[place + 1..]))),
        None => (target, None),
    };
    let path = match before.first() {
        Some(b'/' | b'*') | None => before,
        // A request to a proxy has the whole URL.
        Some(_) => match memchr::memmem::find(before, b"://") {
            Some(scheme) => {
                let authority = &before[scheme + 3..];
                memchr::memchr(b'/', authority).map_or(&b"/"[..], |slash| &authority[slash..])
            }
            None => &[],
        },
    };
    (path, query)
}

/// The query without the values of parameters that are known to be secret.
fn redacted(query: Cow<'_, str>) -> String {
    let pairs = query.split('&').map(|pair| match pair.split_once('=') {
        Some((key, _)) if is_secret(key) => format!("{key}={REDACTED}"),
        _ => pair.to_owned(),
    });
    pairs.collect::<Vec<_>>().join("&")
}

/// Whether a parameter of this name is known to be secret, however the name is encoded.
fn is_secret(key: &str) -> bool {
    SECRETS.iter().any(|secret| percent_decode_str(key).eq(secret.bytes()))
}

/// Name and port of a host; `None`: it has no name.
fn host_and_port(host: &[u8]) -> Option<(String, Option<u16>)> {
    let host = String::from_utf8_lossy(host);
    let (name, port) = match host.rfind(':') {
        // An address of IPv6 stands in brackets.
        Some(colon) if !host[colon..].contains(']') => (&host[..colon], host[colon + 1..].parse().ok()),
        _ => (&*host, None),
    };
    let name = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(name);
    (!name.is_empty()).then(|| (name.to_owned(), port))
}

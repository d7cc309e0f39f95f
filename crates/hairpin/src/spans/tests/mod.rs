//! Spans by the conventions, and their way to collectors of every kind.

mod collector;
mod content;
mod delivery;
mod server;

use super::export::Pace;
use super::{CollectorSettings, Shared, SpanFacts, SpanQueue, Spans, TracingSettings};
use crate::access_log::RecordNames;
use hairpin_core::flow::Endpoint;
use hairpin_core::l7::trace::Parents;
use hairpin_core::record::{Record, Texts, flags};
use hairpin_core::time::Time;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// 2026-11-30T07:38:44.000042Z
const STARTED_NS: u64 = 1_796_024_324_000_042_000;
/// Nothing here takes so long; what would never come fails the test.
const LONG: Duration = Duration::from_secs(60);
/// Of an exporter that does not wait.
const QUICK: Pace =
    Pace { batch_every: Duration::from_millis(1), backoff_min: Duration::from_millis(1), retry_for: LONG };

/// An exchange that has gone well.
fn record() -> Record {
    let end = |address: [u8; 4], port| Endpoint::new(IpAddr::from(address), port);
    let record = Record::new(Time::ZERO, end([10, 0, 200, 7], 4000), end([192, 0, 2, 1], 80), 0);
    Record { flags: flags::EXCHANGE, status: 200, took: 1_234_567, tries: 1, ..record }
}

fn texts() -> Texts<'static> {
    Texts {
        line: b"GET /a?b=c",
        host: b"example.org",
        agent: b"curl/8",
        referer: b"http://elsewhere/",
        ..Texts::default()
    }
}

/// Facts of one that has begun in a client's span; `number` tells it from others.
fn facts<'a>(number: u8, record: &'a Record, texts: &'a Texts<'a>) -> SpanFacts<'a> {
    let names = RecordNames { service: Some("web"), ..RecordNames::default() };
    let (trace_id, span_id, parent_id) = ([0xa0 | number; 16], [0xb0 | number; 8], Some([0xc0 | number; 8]));
    SpanFacts { trace_id, span_id, parent_id, started_ns: STARTED_NS, record, texts, names }
}

/// Pushes spans with these numbers.
fn push(queue: &SpanQueue, numbers: impl IntoIterator<Item = u8>) {
    numbers.into_iter().for_each(|number| queue.push(&facts(number, &record(), &texts())));
}

fn settings(endpoint: &str) -> TracingSettings {
    let token = HeaderMap::from_iter([(HeaderName::from_static("x-token"), HeaderValue::from_static("secret"))]);
    TracingSettings {
        collector: CollectorSettings {
            endpoint: endpoint.parse().unwrap(),
            headers: token,
            headers_file: None,
            roots: "/nowhere".into(),
            timeout: LONG,
        },
        service_name: "edge".into(),
        queue: 1000,
        sample: 1.0,
        parents: Parents::Trusted,
    }
}

/// An exporter of this patience.
fn spans(pace: Pace, settings: &TracingSettings) -> Spans {
    let spans = Spans(Arc::new(Shared { pace, ..Shared::default() }));
    spans.configure(Some(settings), "test");
    spans
}

/// Waits until it is so.
#[track_caller]
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < LONG, "{what}: it never came");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Attributes as texts.
fn shown(attributes: &[KeyValue]) -> BTreeMap<String, String> {
    let text = |attribute: &KeyValue| match attribute.value.as_ref().and_then(|value| value.value.as_ref()) {
        Some(Value::StringValue(text)) => text.clone(),
        Some(Value::IntValue(number)) => number.to_string(),
        other => panic!("{other:?}"),
    };
    let all: BTreeMap<_, _> = attributes.iter().map(|attribute| (attribute.key.clone(), text(attribute))).collect();
    assert_eq!(all.len(), attributes.len(), "one is there twice");
    all
}

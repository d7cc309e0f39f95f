//! What is noted of exchanges: sizes, and the traces that requests belong to.

use crate::fixture::{Site, block_on, http, server};
use crate::http1::ask;
use hairpin_core::l7::config::Http;
use hairpin_core::l7::trace::{Parents, SAMPLE_ALL, TraceContext, Tracing};
use hairpin_core::record::{Ending, Message, Record, Records};
use std::time::Duration;

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331";

fn traced(parents: Parents, sample: u64) -> Http {
    Http { tracing: Some(Tracing { parents, sample }), ..http() }
}

/// The next record, with its trace. A client may have all of a response before there is one.
async fn record(site: &Site) -> (Record, TraceContext) {
    loop {
        if let Some(found) = whole(&mut site.records.lock().unwrap()) {
            return found;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The last record that the rings have.
fn whole(rings: &mut [Records]) -> Option<(Record, TraceContext)> {
    let mut found = None;
    for records in rings {
        records.read(|message| match message {
            Message::Whole(record, texts) => found = Some((record, texts.trace().expect("it is traced"))),
            other => panic!("{other:?}"),
        });
    }
    found
}

fn hex(octets: &[u8]) -> String {
    octets.iter().map(|octet| format!("{octet:02x}")).collect()
}

#[test]
fn sizes_are_those_of_the_messages_with_their_heads() {
    block_on(async {
        let site = Site::new(traced(Parents::None, SAMPLE_ALL), server().await);
        let mut stream = site.connect(&[]).await;
        let mut sums = [0, 0];
        for (target, count) in [("/bytes/10", 1), ("/bytes/100000", 2), ("/head", 3)] {
            let request = format!("GET {target} HTTP/1.1\r\nHost: web.test\r\n\r\n");
            let (head, body) = ask(&mut stream, &request).await;
            let bytes = [request.len() as u64, (head.len() + body.len()) as u64];
            let (record, _) = record(&site).await;
            assert_eq!(record.bytes, bytes, "{target}");
            assert_eq!((record.status, Ending::of(record.ending)), (200, Ending::Done), "{target}");
            sums = [sums[0] + bytes[0], sums[1] + bytes[1]];
            let sizes = site.counted().statistics.services[0].sizes;
            assert_eq!(sizes.map(|sizes| sizes.sum), sums, "{target}");
            assert_eq!(sizes.map(|sizes| (sizes.count, sizes.buckets.iter().sum())), [(count, count); 2], "{target}");
        }
    });
}

#[test]
fn request_has_the_trace_of_its_record() {
    for (parents, goes_on) in [(Parents::None, false), (Parents::Trusted, false), (Parents::All, true)] {
        block_on(async {
            let site = Site::new(traced(parents, SAMPLE_ALL), server().await);
            let mut stream = site.connect(&[]).await;
            let request =
                format!("GET /head HTTP/1.1\r\nHost: web.test\r\ntraceparent: {PARENT}-01\r\ntracestate: a=b\r\n\r\n");
            let (_, body) = ask(&mut stream, &request).await;
            let body = String::from_utf8(body).unwrap();
            let (_, trace) = record(&site).await;
            let parent = format!("traceparent: 00-{}-{}-01", hex(&trace.trace), hex(&trace.span));
            assert!(body.lines().any(|line| line == parent), "{parent}: {body}");
            assert_eq!(body.matches("traceparent").count(), 1, "{body}");
            assert_eq!(trace.has_parent(), goes_on, "{parents:?}");
            assert_eq!(hex(&trace.trace) == PARENT[3..35], goes_on, "{parents:?}");
            // What vendors say of a trace goes on with that trace only.
            assert_eq!(body.contains("tracestate"), goes_on, "{body}");
        });
    }
}

#[test]
fn request_of_a_trace_that_is_not_sampled_has_no_record() {
    block_on(async {
        let site = Site::new(traced(Parents::All, SAMPLE_ALL), server().await);
        let mut stream = site.connect(&[]).await;
        for (target, flags) in [("/head", "00"), ("/head?sampled", "01")] {
            let request = format!("GET {target} HTTP/1.1\r\nHost: web.test\r\ntraceparent: {PARENT}-{flags}\r\n\r\n");
            let (_, body) = ask(&mut stream, &request).await;
            let line = format!("-{flags}");
            let body = String::from_utf8(body).unwrap();
            let parent = body.lines().find(|line| line.starts_with("traceparent: ")).expect("a traceparent");
            assert!(parent.ends_with(&line), "{parent}");
        }
        // Only one has come, and it is the second: exchanges of a connection end one after another.
        let (record, _) = record(&site).await;
        assert_eq!(
            record.bytes[0],
            format!("GET /head?sampled HTTP/1.1\r\nHost: web.test\r\ntraceparent: {PARENT}-01\r\n\r\n").len() as u64
        );
    });
}

//! What becomes of spans, whatever the collector does.

use super::server::{self, status};
use super::{LONG, Pace, QUICK, push, settings, shown, spans, wait_until};
use crate::spans::{Lost, PATIENCE, Spans, TracingSettings};
use hyper::Response;
use opentelemetry_proto::tonic::collector::trace::v1::{ExportTracePartialSuccess, ExportTraceServiceResponse};
use prost::Message;
use socket2::{Domain, Socket, Type};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant, SystemTime};

/// Waits until so many are exported and lost for each reason, and none waits.
#[track_caller]
fn becomes(spans: &Spans, exported: u64, lost: [u64; Lost::ALL.len()]) {
    let begun = Instant::now();
    loop {
        let reading = spans.reading();
        if (reading.exported, reading.lost, reading.waiting) == (exported, lost, 0) {
            return;
        }
        assert!(begun.elapsed() < LONG, "{reading:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn at(server: &server::Server) -> TracingSettings {
    settings(&format!("http://{}", server.address))
}

/// An answer of OTLP that refuses so many spans.
fn refusing(count: i64) -> Response<http_body_util::Full<bytes::Bytes>> {
    let partial_success = Some(ExportTracePartialSuccess { rejected_spans: count, error_message: "no".into() });
    let body = ExportTraceServiceResponse { partial_success }.encode_to_vec();
    Response::builder().header("content-type", "application/x-protobuf").body(bytes::Bytes::from(body).into()).unwrap()
}

#[test]
fn spans_arrive_with_their_ids_resource_and_headers() {
    let server = server::start(|_| Some(refusing(0)));
    let spans = spans(QUICK, &at(&server));
    push(&spans.queue(), [1, 2]);
    becomes(&spans, 2, [0; 3]);
    push(&spans.queue(), [3]);
    becomes(&spans, 3, [0; 3]);
    assert_eq!(server.seen.numbers(), [1, 2, 3]);
    assert_eq!(server.seen.connections.load(Ordering::Relaxed), 1, "it is kept");
    let requests = server.seen.requests.lock().unwrap();
    let (request, resource) = (&requests[0], &requests[0].resource);
    let header = |name: &str| request.headers.get(name).and_then(|value| value.to_str().ok());
    assert_eq!((&*request.path, header("content-type")), ("/v1/traces", Some("application/x-protobuf")));
    assert_eq!((header("x-token"), header("host")), (Some("secret"), Some(&*server.address.to_string())));
    assert!(header("user-agent").unwrap().starts_with("hairpin/"));
    let attributes = shown(&resource.resource.as_ref().unwrap().attributes);
    let host = &attributes["host.name"];
    assert_eq!((&*attributes["service.name"], &*attributes["service.version"]), ("edge", env!("CARGO_PKG_VERSION")));
    assert_eq!(attributes["service.instance.id"], format!("test@{host}"));
    let span = &resource.scope_spans[0].spans[0];
    assert_eq!(
        (&*span.trace_id, &*span.span_id, &*span.parent_span_id),
        (&[0xa1; 16][..], &[0xb1; 8][..], &[0xc1; 8][..])
    );
}

#[test]
fn a_full_queue_loses_spans_and_holds_nothing_up() {
    let (release, released) = (Arc::new(AtomicBool::new(false)), LONG);
    let held = Arc::clone(&release);
    // It answers nothing until it is told to: what is pushed meanwhile has the queue alone.
    let server = server::start(move |_| {
        let begun = Instant::now();
        while !held.load(Ordering::Relaxed) && begun.elapsed() < released {
            std::thread::sleep(Duration::from_millis(1));
        }
        Some(status(200))
    });
    let spans = spans(QUICK, &TracingSettings { queue: 16, ..at(&server) });
    let queue = spans.queue();
    push(&queue, [1]);
    wait_until("the first batch", || server.seen.count() == 1);
    push(&queue, (0..100).map(|number| number % 16));
    let reading = spans.reading();
    assert_eq!((reading.lost, reading.waiting), ([84, 0, 0], 17));
    release.store(true, Ordering::Relaxed);
    becomes(&spans, 17, [84, 0, 0]);
}

#[test]
fn a_busy_collector_is_asked_again_when_it_says() {
    for code in [429, 502, 503, 504] {
        let server = server::start(move |number| match number {
            0 => Some(Response::builder().status(code).header("retry-after", "1").body(Default::default()).unwrap()),
            _ => Some(status(200)),
        });
        // Its own pause would be longer than the test.
        let spans = spans(Pace { backoff_min: 10 * LONG, ..QUICK }, &at(&server));
        push(&spans.queue(), [1, 2]);
        becomes(&spans, 2, [0; 3]);
        assert_eq!(server.seen.count(), 2, "{code}");
    }
}

#[test]
fn pause_of_the_collector_may_outlast_the_tries() {
    let date = || httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(2));
    for asked in ["1".to_owned(), date()] {
        let shown = asked.clone();
        let busy = move || Response::builder().status(503).header("retry-after", &asked).body(Default::default());
        let server = server::start(move |number| Some(if number == 0 { busy().unwrap() } else { status(200) }));
        let spans = spans(Pace { retry_for: Duration::from_millis(1), ..QUICK }, &at(&server));
        push(&spans.queue(), [1, 2]);
        becomes(&spans, 2, [0; 3]);
        assert_eq!(server.seen.count(), 2, "{shown}");
    }
}

#[test]
fn another_collector_is_tried_without_a_pause() {
    let busy = || Response::builder().status(503).header("retry-after", "300").body(Default::default()).unwrap();
    let before = server::start(move |_| Some(busy()));
    // Neither this pause nor its own would be over within the test.
    let spans = spans(Pace { backoff_min: 10 * LONG, ..QUICK }, &at(&before));
    push(&spans.queue(), [1]);
    wait_until("the first try", || before.seen.count() == 1);
    let server = server::start(|_| Some(status(200)));
    spans.configure(Some(&at(&server)), "test");
    becomes(&spans, 1, [0; 3]);
    assert_eq!((before.seen.count(), server.seen.numbers()), (1, vec![1]));
}

#[test]
fn a_collector_that_stays_busy_loses_spans_in_the_end() {
    let server = server::start(|_| Some(status(503)));
    let spans = spans(Pace { retry_for: Duration::from_millis(50), ..QUICK }, &at(&server));
    push(&spans.queue(), [1, 2]);
    becomes(&spans, 0, [0, 2, 0]);
    assert!(server.seen.count() > 1);
}

#[test]
fn what_a_collector_refuses_is_not_sent_again() {
    for (answer, code) in [(400, "400"), (401, "401"), (404, "404"), (500, "500"), (301, "301")] {
        let server = server::start(move |number| Some(status(if number == 0 { answer } else { 200 })));
        let spans = spans(QUICK, &at(&server));
        push(&spans.queue(), [1]);
        becomes(&spans, 0, [0, 0, 1]);
        push(&spans.queue(), [2]);
        becomes(&spans, 1, [0, 0, 1]);
        assert_eq!(server.seen.numbers(), [1, 2], "{code}");
    }
}

#[test]
fn a_part_that_is_refused_is_counted() {
    let server = server::start(|_| Some(refusing(2)));
    let pace = Pace { batch_every: LONG, ..QUICK };
    let spans = spans(pace, &at(&server));
    push(&spans.queue(), [1, 2, 3]);
    spans.end();
    becomes(&spans, 1, [0, 0, 2]);
    assert_eq!(server.seen.count(), 1);
}

#[test]
fn a_server_that_is_no_collector_has_taken_nothing() {
    let page = || Response::builder().header("content-type", "text/html").body("<html>".into()).unwrap();
    let server = server::start(move |_| Some(page()));
    let spans = spans(QUICK, &at(&server));
    push(&spans.queue(), [1]);
    becomes(&spans, 0, [0, 0, 1]);
}

#[test]
fn a_dead_collector_loses_spans_after_a_while() {
    // Bound, so that no other program gets the port, and not listening.
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    let pace = Pace { retry_for: Duration::from_millis(50), ..QUICK };
    let spans = spans(pace, &settings(&format!("http://{address}")));
    push(&spans.queue(), [1, 2]);
    becomes(&spans, 0, [0, 2, 0]);
    // A collector that comes back gets what comes then.
    let server = server::start(|_| Some(status(200)));
    spans.configure(Some(&at(&server)), "test");
    push(&spans.queue(), [3]);
    becomes(&spans, 1, [0, 2, 0]);
    assert_eq!(server.seen.numbers(), [3]);
}

#[test]
fn a_silent_collector_loses_spans_after_a_while() {
    let server = server::start(|_| None);
    let mut settings = at(&server);
    settings.collector.timeout = Duration::from_millis(50);
    let spans = spans(Pace { retry_for: Duration::from_millis(100), ..QUICK }, &settings);
    push(&spans.queue(), [1]);
    becomes(&spans, 0, [0, 1, 0]);
    assert!(server.seen.count() > 1);
}

#[test]
fn connection_that_was_closed_meanwhile_is_made_again() {
    let closing = || Response::builder().header("connection", "close").body(Default::default()).unwrap();
    let server = server::start(move |_| Some(closing()));
    let spans = spans(QUICK, &at(&server));
    for number in [1, 2, 3] {
        push(&spans.queue(), [number]);
        becomes(&spans, number.into(), [0; 3]);
    }
    assert_eq!(server.seen.connections.load(Ordering::Relaxed), 3);
}

#[test]
fn batches_have_512_spans_at_most() {
    let server = server::start(|_| Some(status(200)));
    let spans = spans(Pace { batch_every: LONG, ..QUICK }, &TracingSettings { queue: 5000, ..at(&server) });
    push(&spans.queue(), (0..1100).map(|number| (number % 16) as u8));
    spans.end();
    becomes(&spans, 1100, [0; 3]);
    let requests = server.seen.requests.lock().unwrap();
    let sizes: Vec<usize> = requests.iter().map(|request| request.resource.scope_spans[0].spans.len()).collect();
    assert_eq!((sizes.iter().sum::<usize>(), sizes.iter().max()), (1100, Some(&512)), "{sizes:?}");
}

#[test]
fn end_exports_what_is_left_without_a_pause() {
    let server = server::start(|number| Some(status(if number == 0 { 503 } else { 200 })));
    // The pause after the failure would not be over within the test.
    let spans = spans(Pace { backoff_min: 10 * LONG, retry_for: 100 * LONG, ..QUICK }, &at(&server));
    push(&spans.queue(), [1]);
    wait_until("the first batch", || server.seen.count() == 1);
    push(&spans.queue(), [2]);
    spans.end();
    becomes(&spans, 2, [0; 3]);
}

#[test]
fn end_waits_for_no_silent_collector() {
    let server = server::start(|_| None);
    let spans = spans(QUICK, &at(&server));
    push(&spans.queue(), [1]);
    wait_until("the first batch", || server.seen.count() == 1);
    let (done, is_done) = mpsc::channel();
    let ending = spans.clone();
    std::thread::spawn(move || {
        ending.end();
        done.send(()).unwrap();
    });
    is_done.recv_timeout(20 * PATIENCE).expect("the end waits for the collector");
    assert_eq!(spans.reading().waiting, 1);
}

#[test]
fn without_tracing_no_span_waits() {
    let server = server::start(|_| Some(status(200)));
    let spans = spans(Pace { batch_every: LONG, ..QUICK }, &at(&server));
    push(&spans.queue(), [1]);
    spans.configure(None, "test");
    push(&spans.queue(), [2]);
    spans.end();
    // What was there is still exported.
    becomes(&spans, 1, [1, 0, 0]);
}

#[test]
fn https_collector_is_verified() {
    let certificate = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    let file = std::env::temp_dir().join(format!("hairpin-otlp-{}.pem", std::process::id()));
    std::fs::write(&file, certificate.cert.pem()).unwrap();
    let key = rustls::pki_types::PrivatePkcs8KeyDer::from(certificate.signing_key.serialize_der());
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config =
        config.with_no_client_auth().with_single_cert(vec![certificate.cert.der().clone()], key.into()).unwrap();
    let server = server::start_with(Some(config), |_| Some(status(200)));
    let mut settings = settings(&format!("https://{}", server.address));
    let pace = Pace { retry_for: Duration::from_millis(50), ..QUICK };
    settings.collector.roots = file.clone();
    let trusting = spans(pace, &settings);
    push(&trusting.queue(), [1]);
    becomes(&trusting, 1, [0; 3]);
    let other = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    std::fs::write(&file, other.cert.pem()).unwrap();
    let doubting = spans(pace, &settings);
    push(&doubting.queue(), [2]);
    becomes(&doubting, 0, [0, 1, 0]);
    assert_eq!(server.seen.numbers(), [1]);
    std::fs::remove_file(file).unwrap();
}

//! Spans in a real OpenTelemetry collector (`make test-otlp`, which builds tests/e2e/collector).

use super::{LONG, Pace, QUICK, push, settings, spans, wait_until};
use serde_json::{Value, json};
use socket2::{Domain, Socket, Type};
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A running collector, and the directory of its files.
struct Collector {
    process: Child,
    directory: PathBuf,
    port: u16,
}

impl Drop for Collector {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

impl Collector {
    fn start() -> Collector {
        let program = std::env::var_os("HAIRPIN_COLLECTOR").expect("HAIRPIN_COLLECTOR, the collector's program");
        // Bound while the collector starts, so that no other program gets the port: it may be bound twice as long as only
        // one listens.
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.set_reuse_address(true).unwrap();
        socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).unwrap();
        let port = socket.local_addr().unwrap().as_socket().unwrap().port();
        let directory = std::env::temp_dir().join(format!("hairpin-collector-{}-{port}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let spans = directory.join("spans.json");
        let text = format!(
            "receivers: {{otlp: {{protocols: {{http: {{endpoint: \"127.0.0.1:{port}\"}}}}}}}}\n\
             exporters: {{file: {{path: {spans:?}}}}}\n\
             service:\n  telemetry: {{metrics: {{level: none}}}}\n  \
             pipelines: {{traces: {{receivers: [otlp], exporters: [file]}}}}\n"
        );
        let config = directory.join("collector.yaml");
        std::fs::write(&config, text).unwrap();
        let log = std::fs::File::create(directory.join("log")).unwrap();
        let mut command = Command::new(program);
        command.arg("--config").arg(&config).stdout(Stdio::null()).stderr(log);
        let collector = Collector { process: command.spawn().unwrap(), directory, port };
        let begun = Instant::now();
        while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
            assert!(begun.elapsed() < LONG, "{}", collector.log());
            std::thread::sleep(Duration::from_millis(20));
        }
        collector
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.directory.join("log")).unwrap_or_default()
    }

    /// What it has written: requests, each a line.
    fn written(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.directory.join("spans.json")).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }
}

fn attributes(of: &Value) -> BTreeMap<&str, &Value> {
    let all = of["attributes"].as_array().unwrap().iter();
    all.map(|attribute| (attribute["key"].as_str().unwrap(), &attribute["value"])).collect()
}

#[test]
#[ignore = "needs a collector: make test-otlp"]
fn real_collector_takes_spans_as_they_are() {
    let collector = Collector::start();
    let settings = settings(&format!("http://127.0.0.1:{}", collector.port));
    let spans = spans(QUICK, &settings);
    push(&spans.queue(), [1]);
    let begun = Instant::now();
    while collector.written().is_empty() {
        assert!(begun.elapsed() < LONG, "{:?} {}", spans.reading(), collector.log());
        std::thread::sleep(Duration::from_millis(20));
    }
    let [written] = &collector.written()[..] else { panic!("{:?}", collector.written()) };
    let resource = &written["resourceSpans"][0];
    let facts = attributes(&resource["resource"]);
    assert_eq!(facts["service.name"], &json!({"stringValue": "edge"}));
    assert_eq!(resource["scopeSpans"][0]["scope"]["name"], "hairpin");
    let span = &resource["scopeSpans"][0]["spans"][0];
    for (key, expected) in [
        ("traceId", json!("a1".repeat(16))),
        ("spanId", json!("b1".repeat(8))),
        ("parentSpanId", json!("c1".repeat(8))),
        ("name", json!("GET")),
        ("kind", json!(2)),
        ("startTimeUnixNano", json!("1796024324000042000")),
        ("endTimeUnixNano", json!("1796024324001276567")),
    ] {
        assert_eq!(span[key], expected, "{key}: {span}");
    }
    let said = attributes(span);
    assert_eq!(said["url.query"], &json!({"stringValue": "b=c"}));
    assert_eq!(said["http.response.status_code"], &json!({"intValue": "200"}));
    assert_eq!(spans.reading().lost, [0; 3]);
}

#[test]
#[ignore = "needs a collector: make test-otlp"]
fn real_collector_takes_every_span_of_many_batches() {
    let collector = Collector::start();
    let mut settings = settings(&format!("http://127.0.0.1:{}", collector.port));
    settings.queue = 10_000;
    let spans = spans(Pace::default(), &settings);
    push(&spans.queue(), (0..5000).map(|number| (number % 16) as u8));
    wait_until("all of them", || spans.reading().exported == 5000);
    assert_eq!((spans.reading().lost, spans.reading().waiting), ([0; 3], 0), "{}", collector.log());
    let count = |request: &Value| request["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().unwrap().len();
    let begun = Instant::now();
    while collector.written().iter().map(count).sum::<usize>() < 5000 {
        assert!(begun.elapsed() < LONG, "{}", collector.log());
        std::thread::sleep(Duration::from_millis(20));
    }
}

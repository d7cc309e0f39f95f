//! A server of OTLP over HTTP in the client's namespace: OpenTelemetry's collector, built from `tests/e2e/collector`, if
//! `HAIRPIN_COLLECTOR` names it; otherwise a thread that reads the same protobuf.

use super::{START_TIMEOUT, listening};
use crate::process::{Process, patience};
use crate::tool::inside;
use crate::topology::{Family, Topology, client_address};
use anyhow::{Context, Result};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, any_value};
use opentelemetry_proto::tonic::trace::v1::Span as WireSpan;
use prost::Message;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, sleep};
use std::time::Duration;

const PORT: u16 = 4318;
/// How often the thread looks whether it is to end.
const STEP: Duration = Duration::from_millis(20);

/// A span as it came: ids in hexadecimal digits, values of attributes as text.
#[derive(Clone, Debug)]
pub struct Span {
    /// The trace.
    pub trace: String,
    /// The span itself.
    pub id: String,
    /// Its parent; empty: it has none.
    pub parent: String,
    attributes: BTreeMap<String, String>,
}

impl Span {
    /// The value of an attribute; empty: it has none.
    pub fn attribute(&self, name: &str) -> &str {
        self.attributes.get(name).map_or("", |value| value)
    }
}

/// A running collector.
pub enum Collector {
    /// OpenTelemetry's, and the file that it writes.
    Real(Process, PathBuf),
    /// The thread.
    Stub(Stub),
}

/// A thread that takes spans.
pub struct Stub {
    spans: Arc<Mutex<Vec<Span>>>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Drop for Stub {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        // Why a test has failed, if it waited for spans that never came.
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(Err(error))) => eprintln!("the collector has ended early: {error:#}"),
            Some(Err(_)) => eprintln!("the collector's thread has panicked"),
            Some(Ok(Ok(()))) | None => {}
        }
    }
}

/// The table of the configuration that sends spans to it.
pub fn table() -> String {
    format!("[tracing]\nendpoint = \"http://{}:{PORT}\"\n", client_address(Family::V4))
}

impl Collector {
    /// Starts it.
    pub fn start(topology: &Topology) -> Result<Collector> {
        match std::env::var_os("HAIRPIN_COLLECTOR") {
            Some(program) => real(topology, &PathBuf::from(program)),
            None => stub(topology),
        }
    }

    /// The spans that it has got.
    pub fn spans(&self) -> Vec<Span> {
        match self {
            Collector::Real(_, file) => {
                let text = std::fs::read_to_string(file).unwrap_or_default();
                // The last line may not be whole yet.
                let requests = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
                requests.flat_map(|request| of_json(&request)).collect()
            }
            Collector::Stub(stub) => stub.spans.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }
}

fn real(topology: &Topology, program: &std::path::Path) -> Result<Collector> {
    let spans = topology.scratch.file("spans.json");
    let text = format!(
        "receivers: {{otlp: {{protocols: {{http: {{endpoint: \"0.0.0.0:{PORT}\"}}}}}}}}\n\
         exporters: {{file: {{path: {spans:?}, append: true}}}}\n\
         service:\n  telemetry: {{metrics: {{level: none}}}}\n  \
         pipelines: {{traces: {{receivers: [otlp], exporters: [file]}}}}\n"
    );
    let config = topology.scratch.write("collector.yaml", &text)?;
    let mut command = topology.client.command(&program.display().to_string());
    command.arg("--config").arg(config);
    let mut process = topology.client.start(command, &topology.scratch.file("collector.log"))?;
    process
        .wait_until(patience(START_TIMEOUT), || listening(topology.client.name(), &[PORT]))
        .context("the collector does not listen")?;
    Ok(Collector::Real(process, spans))
}

/// The spans of a request as the collector writes it.
fn of_json(request: &Value) -> Vec<Span> {
    let list = |of: &Value, key: &str| of[key].as_array().cloned().unwrap_or_default();
    let scopes = list(request, "resourceSpans").into_iter().flat_map(|resource| list(&resource, "scopeSpans"));
    let spans = scopes.flat_map(|scope| list(&scope, "spans"));
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let value = |value: &Value| [&value["stringValue"], &value["intValue"]].map(text).concat();
    let of = |span: Value| Span {
        trace: text(&span["traceId"]),
        id: text(&span["spanId"]),
        parent: text(&span["parentSpanId"]),
        attributes: list(&span, "attributes").iter().map(|one| (text(&one["key"]), value(&one["value"]))).collect(),
    };
    spans.map(of).collect()
}

fn stub(topology: &Topology) -> Result<Collector> {
    let listener = inside::run(&topology.client, || Ok(TcpListener::bind(("0.0.0.0", PORT))?))?;
    listener.set_nonblocking(true)?;
    let (spans, ends) = (Arc::default(), Arc::<AtomicBool>::default());
    let (taken, is_over) = (Arc::clone(&spans), Arc::clone(&ends));
    let thread = std::thread::spawn(move || {
        while !is_over.load(Ordering::Relaxed) {
            match listener.accept() {
                // Hairpin has one connection at a time.
                Ok((stream, _)) => serve(stream, &taken, &is_over)?,
                Err(error) if error.kind() == ErrorKind::WouldBlock => sleep(STEP),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    });
    Ok(Collector::Stub(Stub { spans, ends, thread: Some(thread) }))
}

/// Takes the requests of a connection until it ends.
fn serve(mut stream: TcpStream, spans: &Mutex<Vec<Span>>, ends: &AtomicBool) -> Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(STEP))?;
    let mut input = Vec::new();
    let mut part = [0; 65_536];
    while !ends.load(Ordering::Relaxed) {
        match stream.read(&mut part) {
            Ok(0) => break,
            Ok(length) => input.extend_from_slice(&part[..length]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => continue,
            Err(_) => break,
        }
        while let Some((body, end)) = whole(&input) {
            let request = ExportTraceServiceRequest::decode(&input[body..end])?;
            input.drain(..end);
            let scopes = request.resource_spans.into_iter().flat_map(|resource| resource.scope_spans);
            let got = scopes.flat_map(|scope| scope.spans).map(of_wire);
            spans.lock().unwrap_or_else(PoisonError::into_inner).extend(got);
            let answer = "HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\nContent-Length: 0\r\n\r\n";
            stream.write_all(answer.as_bytes())?;
        }
    }
    Ok(())
}

/// Where the body of the first request begins and ends, if all of it is there.
fn whole(input: &[u8]) -> Option<(usize, usize)> {
    let body = input.windows(4).position(|bytes| bytes == b"\r\n\r\n")? + 4;
    let head = std::str::from_utf8(&input[..body]).ok()?.to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:"))?;
    let end = body + length.trim().parse::<usize>().ok()?;
    (input.len() >= end).then_some((body, end))
}

fn of_wire(span: WireSpan) -> Span {
    let hexadecimal = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let value = |value: Option<AnyValue>| match value.and_then(|value| value.value) {
        Some(any_value::Value::StringValue(text)) => text,
        Some(any_value::Value::IntValue(number)) => number.to_string(),
        _ => String::new(),
    };
    Span {
        trace: hexadecimal(&span.trace_id),
        id: hexadecimal(&span.span_id),
        parent: hexadecimal(&span.parent_span_id),
        attributes: span.attributes.into_iter().map(|one| (one.key, value(one.value))).collect(),
    }
}

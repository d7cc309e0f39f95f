//! Hairpin's control socket, asked directly: quicker than starting the program for every question. The fields of
//! its answers that tests and benchmarks read are declared here once more, on purpose: renaming a field there breaks these.

use super::status::Status;
use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// How long an answer is waited for.
const PATIENCE: Duration = Duration::from_secs(30);

/// Connections of a page.
const PAGE: u32 = 10_000;

/// Sends one request to the instance behind `socket` and returns its answer; fails if that is an error.
pub fn ask(socket: &Path, request: &Value) -> Result<Value> {
    let mut stream =
        UnixStream::connect(socket).with_context(|| format!("no instance answers at {}", socket.display()))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(format!("{request}\n").as_bytes())?;
    let mut line = String::new();
    BufReader::new(&stream).read_line(&mut line).with_context(|| format!("no answer to {request}"))?;
    let answer: Value = serde_json::from_str(&line).with_context(|| format!("{request} was answered {line:?}"))?;
    match answer.get("error").and_then(Value::as_str) {
        Some(error) => bail!("{error}"),
        None => Ok(answer),
    }
}

fn part<T: serde::de::DeserializeOwned>(mut answer: Value, name: &str) -> Result<T> {
    let value = answer.get_mut(name).map(Value::take).with_context(|| format!("no {name} in {answer}"))?;
    serde_json::from_value(value).with_context(|| format!("{name} has an unknown form"))
}

/// The status of the instance behind `socket`.
pub fn status(socket: &Path) -> Result<Status> {
    part(ask(socket, &json!({"request": "status"}))?, "status")
}

/// A connection.
#[derive(Clone, Debug, Deserialize)]
pub struct ConnectionView {
    /// Service's name.
    pub service: String,
    /// The client's end.
    pub client: String,
    /// The end the client connected to.
    pub vip: String,
    /// Backend's name.
    pub backend: String,
    /// The source that the backend sees, if it is not the client.
    pub source: Option<String>,
    /// State (`established`, `syn-sent`, ...).
    pub state: String,
    /// Whether the engine forwards it.
    pub offloaded: bool,
    /// Why it is, or is not, with the engine.
    pub offload: String,
    /// Packets from the client and from the backend, by workers and engine.
    pub packets: [u64; 2],
    /// Bytes from the client and from the backend.
    pub bytes: [u64; 2],
    /// Seconds since it began.
    pub age_s: f64,
    /// Seconds since its last packet.
    pub idle_s: f64,
}

#[derive(Debug, Deserialize)]
struct Page {
    connections: Vec<ConnectionView>,
    matched: u64,
    next: Option<u64>,
}

/// All connections that `filter` (fields of the request, such as `{"service": "http4"}`) lets through, page by page.
pub fn connections(socket: &Path, filter: &Value) -> Result<Vec<ConnectionView>> {
    let mut all = Vec::new();
    let mut cursor = None;
    loop {
        let page = page(socket, filter, cursor, PAGE)?;
        all.extend(page.connections);
        cursor = page.next;
        if cursor.is_none() {
            return Ok(all);
        }
    }
}

/// How many connections `filter` lets through.
pub fn count(socket: &Path, filter: &Value) -> Result<u64> {
    let mut matched = 0;
    let mut cursor = None;
    loop {
        let page = page(socket, filter, cursor, 0)?;
        matched += page.matched;
        cursor = page.next;
        if cursor.is_none() {
            return Ok(matched);
        }
    }
}

fn page(socket: &Path, filter: &Value, cursor: Option<u64>, limit: u32) -> Result<Page> {
    let mut request = json!({"request": "connections", "limit": limit, "cursor": cursor});
    if let (Value::Object(request), Value::Object(filter)) = (&mut request, filter) {
        request.extend(filter.clone());
    }
    part(ask(socket, &request)?, "connections")
}

/// The engine, and what it holds.
#[derive(Clone, Debug, Deserialize)]
pub struct OffloadView {
    /// Rules by family, as counted in the engine: IPv4, IPv6.
    pub rules: [u64; 2],
    /// Rules that leave a flow to the kernel.
    pub passes: u64,
    /// Rules installed so far.
    pub installed_total: u64,
    /// Connections offloaded now.
    pub offloaded: u64,
}

impl OffloadView {
    /// Rules in the engine that no connection and no Pass entry accounts for (negative: that are missing).
    pub fn unaccounted(&self) -> i64 {
        self.rules.iter().sum::<u64>() as i64 - 2 * self.offloaded as i64 - self.passes as i64
    }
}

/// The engine's contents.
pub fn offload(socket: &Path) -> Result<OffloadView> {
    part(ask(socket, &json!({"request": "offload"}))?, "offload")
}

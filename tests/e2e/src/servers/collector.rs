//! An OpenTelemetry collector, built from `tests/e2e/collector`, in the client's namespace.

use super::{START_TIMEOUT, listening};
use crate::process::{Process, patience};
use crate::topology::{Family, Topology, client_address};
use anyhow::{Context, Result};
use serde_json::Value;
use std::path::PathBuf;

const PORT: u16 = 4318;

/// A running collector.
#[derive(Debug)]
pub struct Collector {
    /// Its process.
    pub process: Process,
    spans: PathBuf,
}

/// The program: `HAIRPIN_COLLECTOR`, which `make test-otlp` sets. `None`: there is none.
pub fn program() -> Option<PathBuf> {
    std::env::var_os("HAIRPIN_COLLECTOR").map(PathBuf::from)
}

/// The table of the configuration that sends spans to it.
pub fn table() -> String {
    format!("[tracing]\nendpoint = \"http://{}:{PORT}\"\n", client_address(Family::V4))
}

impl Collector {
    /// Starts it. One that was there before must have ended; its spans are still listed.
    pub fn start(topology: &Topology) -> Result<Collector> {
        let spans = topology.scratch.file("spans.json");
        let text = format!(
            "receivers: {{otlp: {{protocols: {{http: {{endpoint: \"0.0.0.0:{PORT}\"}}}}}}}}\n\
             exporters: {{file: {{path: {spans:?}, append: true}}}}\n\
             service:\n  telemetry: {{metrics: {{level: none}}}}\n  \
             pipelines: {{traces: {{receivers: [otlp], exporters: [file]}}}}\n"
        );
        let config = topology.scratch.write("collector.yaml", &text)?;
        let program = program().context("there is no collector (make test-otlp, or HAIRPIN_COLLECTOR)")?;
        let mut command = topology.client.command(&program.display().to_string());
        command.arg("--config").arg(config);
        let mut process = topology.client.start(command, &topology.scratch.file("collector.log"))?;
        process
            .wait_until(patience(START_TIMEOUT), || listening(topology.client.name(), &[PORT]))
            .context("the collector does not listen")?;
        Ok(Collector { process, spans })
    }

    /// The spans that it has got, as JSON of OTLP (ids in hexadecimal digits). It writes them a moment after it has taken them.
    pub fn spans(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(&self.spans).unwrap_or_default();
        // The last line may not be whole yet.
        let requests = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let list = |of: &Value, key: &str| of[key].as_array().cloned().unwrap_or_default();
        let resources = requests.flat_map(|request| list(&request, "resourceSpans"));
        let scopes = resources.flat_map(|resource| list(&resource, "scopeSpans"));
        scopes.flat_map(|scope| list(&scope, "spans")).collect()
    }
}

/// The value of a span's attribute: a text or a number, which JSON of OTLP writes as a text too; empty: it has none.
pub fn attribute<'a>(span: &'a Value, key: &str) -> &'a str {
    let all = span["attributes"].as_array().into_iter().flatten();
    let found = all.into_iter().find(|attribute| attribute["key"] == key).map(|attribute| &attribute["value"]);
    let texts = found.into_iter().flat_map(|value| [value["stringValue"].as_str(), value["intValue"].as_str()]);
    texts.flatten().next().unwrap_or_default()
}

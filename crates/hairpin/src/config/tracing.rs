//! Reads `[tracing]`.

use super::instance::absolute_path;
use super::reader::TomlTable;
use super::reference;
use super::secret_file::{self, SecretFileError};
use crate::spans::{CollectorSettings, Endpoint, TracingSettings};
use hairpin_core::l7::trace::Parents;
use hairpin_diagnostics::Sink;
use hairpin_https::SYSTEM_ROOTS;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use std::path::PathBuf;

/// Headers of the file at most.
pub(crate) const HEADERS_MAX: usize = 16;
/// Bytes of the service's name at most.
const SERVICE_NAME_MAX: usize = 255;
/// The word for the CAs that the system has.
const SYSTEM: &str = "system";
/// The port of OTLP over gRPC.
const GRPC_PORT: u16 = 4317;
const HEADERS_FORM: &str = "write a header a line, as \"Authorization: Bearer TOKEN\"";
/// Headers that are the exporter's own.
const OWN_HEADERS: [&str; 11] = [
    "accept-encoding",
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "expect",
    "host",
    "keep-alive",
    "te",
    "transfer-encoding",
    "upgrade",
];

/// The settings; `None`: the file asks for no tracing, or it is wrong. All mistakes are reported.
pub(super) fn read(sink: &Sink<'_>, top: &TomlTable<'_>) -> Option<TracingSettings> {
    if !top.has("tracing") {
        return None;
    }
    let table = top.table("tracing", &reference::TRACING);
    let endpoint = read_endpoint(&table);
    let roots = match table.text("endpoint_roots") {
        Some(text) if text.value == SYSTEM => Some(PathBuf::from(SYSTEM_ROOTS)),
        Some(text) => {
            let path = absolute_path(sink, &table, "endpoint_roots");
            // It is read for each connection, so it may come later.
            if let Some(Err(error)) = path.as_ref().map(std::fs::File::open) {
                let what = format!("`endpoint_roots` \"{}\" cannot be read: {error}", text.value);
                table.warning(
                    &text.span,
                    what,
                    "put the CAs' certificates there, in PEM; until then no span is exported",
                );
            }
            path
        }
        None => None,
    };
    let headers_file =
        if table.has("headers_file") { absolute_path(sink, &table, "headers_file").map(Some) } else { Some(None) };
    let headers = match &headers_file {
        Some(Some(path)) => match secret_file::read(path, "headers", HEADERS_FORM).and_then(|bytes| parse(&bytes)) {
            Ok(headers) => Some(headers),
            Err((what, remedy)) => {
                let what = format!("`headers_file` \"{}\": {what}", path.display());
                table.error(&table.span_of("headers_file"), what, remedy);
                None
            }
        },
        _ => Some(HeaderMap::new()),
    };
    let service_name = read_service_name(&table);
    let parents: Option<Parents> = table.choice("parents");
    let (queue, sample) = (table.integer("queue").and_then(|spans| usize::try_from(spans).ok()), table.share("sample"));
    let timeout = table.duration("timeout");
    let (endpoint, headers, headers_file, roots) = (endpoint?, headers?, headers_file?, roots?);
    let collector = CollectorSettings { endpoint, headers, headers_file, roots, timeout };
    Some(TracingSettings { collector, service_name: service_name?, queue: queue?, sample, parents: parents? })
}

fn read_endpoint(table: &TomlTable<'_>) -> Option<Endpoint> {
    if !table.has("endpoint") {
        table.missing("endpoint");
    }
    let text = table.text("endpoint")?;
    let remedy = "write \"http://127.0.0.1:4318\" or \"https://otlp.example.com/v1/traces\"; what is secret goes into a \
                  `headers_file`";
    match text.value.parse::<Endpoint>() {
        Ok(endpoint) => {
            if endpoint.port == GRPC_PORT {
                let what = format!("`endpoint` has port {GRPC_PORT}, which collectors use for OTLP over gRPC");
                table.warning(&text.span, what, "Hairpin speaks OTLP over HTTP, for which they use 4318");
            }
            Some(endpoint)
        }
        Err(what) => {
            table.error(&text.span, format!("`endpoint`: {what}"), remedy);
            None
        }
    }
}

fn read_service_name(table: &TomlTable<'_>) -> Option<String> {
    let text = table.text("service_name")?;
    if text.value.is_empty() || text.value.len() > SERVICE_NAME_MAX || text.value.chars().any(char::is_control) {
        let remedy = format!("use 1 to {SERVICE_NAME_MAX} bytes without control characters");
        table.error(&text.span, "`service_name` cannot be the name of a service", remedy);
        return None;
    }
    Some(text.value)
}

fn parse(bytes: &[u8]) -> Result<HeaderMap, SecretFileError> {
    let mut headers = HeaderMap::new();
    for (line, number) in secret_file::lines(bytes) {
        let form = || (format!("line {number} is no header"), HEADERS_FORM.to_string());
        let colon = line.iter().position(|byte| *byte == b':').ok_or_else(form)?;
        let name = HeaderName::from_bytes(&line[..colon]).map_err(|_| form())?;
        let mut value = HeaderValue::from_bytes(line[colon + 1..].trim_ascii()).map_err(|_| form())?;
        // Nothing prints it.
        value.set_sensitive(true);
        if OWN_HEADERS.contains(&name.as_str()) {
            return Err((
                format!("line {number} has `{name}`, which Hairpin writes itself"),
                "leave it out".to_string(),
            ));
        }
        if headers.insert(name.clone(), value).is_some() {
            return Err((format!("line {number} has `{name}` again"), "leave one out".to_string()));
        }
    }
    if headers.is_empty() {
        return Err(("it has no header".to_string(), HEADERS_FORM.to_string()));
    }
    if headers.len() > HEADERS_MAX {
        return Err((format!("it has {} headers", headers.len()), format!("have {HEADERS_MAX} at most")));
    }
    Ok(headers)
}

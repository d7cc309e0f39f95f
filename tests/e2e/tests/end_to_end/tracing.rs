//! Tracing: spans of exchanges, exported by OTLP.

use super::network::test;
use anyhow::{Context, Result, ensure};
use hairpin_e2e::peer::{Hairpin, HairpinOptions, PeerService};
use hairpin_e2e::servers::collector::{self, Collector, Span};
use hairpin_e2e::servers::web::certificate;
use hairpin_e2e::servers::{HTTP_PORT, Servers};
use hairpin_e2e::topology::{Family, Topology, TopologyOptions, vip};
use libtest_mimic::Trial;
use serde_json::Value;
use std::thread::sleep;
use std::time::{Duration, Instant};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("tracing: a reload changes it, and nothing tells secrets", reloads),
        test("tracing: spans are of the traces that backends see", spans),
        test("tracing: a dead collector changes nothing for traffic", dead_collector),
    ]
}

fn options(tables: &str) -> HairpinOptions {
    HairpinOptions { tables: tables.to_owned(), ..HairpinOptions::default() }
}

/// `tracing` of the status; null: there is none.
fn status(hairpin: &Hairpin, topology: &Topology) -> Result<Value> {
    let status: Value = serde_json::from_str(&hairpin.tell(topology, &["status", "-o", "json"])?)?;
    Ok(status["tracing"].clone())
}

fn reloads() -> Result<()> {
    let topology = Topology::create(TopologyOptions::default())?;
    let services = [PeerService { server_port: HTTP_PORT, ..PeerService::http("web", 80) }];
    let mut hairpin = Hairpin::start(&topology, &services, &options(""))?;
    ensure!(status(&hairpin, &topology)?.is_null(), "there is none");
    hairpin.configure(&topology, &services, &options(&collector::table()))?;
    hairpin.tell(&topology, &["reload"])?;
    let shown = status(&hairpin, &topology)?;
    ensure!(shown["spans_exported_total"] == 0 && shown["spans_waiting"] == 0, "{shown}");
    ensure!(shown["spans_lost_total"]["queue-full"] == 0, "{shown}");
    let headers = topology.scratch.write("headers", "Authorization: Bearer s3cr3t\n")?;
    std::fs::set_permissions(&headers, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
    let table = format!("[tracing]\nendpoint = \"https://collector.test/x\"\nheaders_file = {headers:?}\n");
    hairpin.configure(&topology, &services, &options(&table))?;
    let file = hairpin.file().display().to_string();
    // It fails where there are changes.
    let differs = hairpin.command(&topology, &["diff", &file])?.output()?;
    let differs = String::from_utf8_lossy(&differs.stdout).into_owned();
    ensure!(differs.contains("[tracing] headers_file: none -> ") && differs.contains("(authorization)"), "{differs}");
    hairpin.tell(&topology, &["reload"])?;
    let table = hairpin.status_table()?;
    ensure!(table.contains("\ntracing: 0 spans to https://collector.test/x, 0 waiting\n"), "{table}");
    hairpin.configure(&topology, &services, &options(""))?;
    hairpin.tell(&topology, &["reload"])?;
    ensure!(status(&hairpin, &topology)?.is_null(), "there is none again");
    hairpin.stop(true)?;
    let logs = hairpin.logs();
    for text in [&differs, &table, &logs] {
        ensure!(!text.contains("s3cr3t"), "{text}");
    }
    Ok(())
}

/// Waits until the collector has this many spans.
fn received(collector: &Collector, count: usize) -> Result<Vec<Span>> {
    let start = Instant::now();
    loop {
        let spans = collector.spans();
        if spans.len() >= count {
            ensure!(spans.len() == count, "{} spans, not {count}: {spans:#?}", spans.len());
            return Ok(spans);
        }
        ensure!(start.elapsed() < Duration::from_secs(20), "{} of {count} spans: {spans:#?}", spans.len());
        sleep(Duration::from_millis(50));
    }
}

/// What the backend sees of the request: `traceparent`, and `tracestate` behind a space if there is one.
fn fetch(topology: &Topology, scheme: &str, arguments: &[&str], target: &str) -> Result<String> {
    let mut curl = topology.client.command("curl");
    curl.args(["--silent", "--insecure", "--max-time", "20"]).args(arguments);
    let output = curl.arg(format!("{scheme}://{}{target}", vip(Family::V4))).output()?;
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

fn spans() -> Result<()> {
    let topology = Topology::create(TopologyOptions::default())?;
    let _servers = Servers::start(&topology)?;
    let collector = Collector::start(&topology)?;
    let pem = certificate(&topology, "tracing.pem", &["web.test"])?;
    let quiet = PeerService { tables: "[service.http]\ntracing = false\n".into(), ..PeerService::http("quiet", 81) };
    let services = [
        PeerService { server_port: HTTP_PORT, ..PeerService::http("web", 80) },
        PeerService { server_port: HTTP_PORT, ..quiet },
        PeerService::https("secure", 443, &pem),
    ];
    let log = topology.scratch.file("access.log");
    let tables = |parents: &str| {
        let log = format!("[access_log]\nto = {log:?}\nfields = [\"trace_id\"]\n");
        options(&format!("{log}{}parents = \"{parents}\"\n", collector::table()))
    };
    let mut hairpin = Hairpin::start(&topology, &services, &tables("all"))?;
    let (sampled, unsampled) =
        (format!("traceparent: 00-{TRACE}-{PARENT}-01"), format!("traceparent: 00-{TRACE}-{PARENT}-00"));
    let mut all = 0;
    for (scheme, version) in [("http", "--http1.1"), ("https", "--http1.1"), ("https", "--http2")] {
        // Of the client's trace.
        let seen =
            fetch(&topology, scheme, &[version, "--header", &sampled, "--header", "tracestate: a=b"], "/marks?q=1")?;
        all += 1;
        let span = received(&collector, all)?.pop().context("no span")?;
        ensure!(span.trace == TRACE && span.parent == PARENT, "{span:?}");
        ensure!(seen == format!("00-{TRACE}-{}-01 a=b", span.id), "{version}: the backend saw {seen:?}: {span:?}");
        let service = if scheme == "http" { "web" } else { "secure" };
        for (name, value) in [
            ("http.request.method", "GET"),
            ("url.path", "/marks"),
            ("url.query", "q=1"),
            ("url.scheme", scheme),
            ("http.response.status_code", "200"),
            ("hairpin.service", service),
        ] {
            ensure!(span.attribute(name) == value, "{name}: {span:?}");
        }
        ensure!(span.attribute("hairpin.backend").starts_with("server"), "{span:?}");
        // Of one that begins here.
        let seen = fetch(&topology, scheme, &[version], "/marks")?;
        all += 1;
        let spans = received(&collector, all)?;
        let span = spans.last().context("no span")?;
        ensure!(span.parent.is_empty() && seen == format!("00-{}-{}-01", span.trace, span.id), "{seen:?}: {span:?}");
        ensure!(span.trace.len() == 32 && span.trace != TRACE, "{span:?}");
        // An answer of Hairpin's own has a span as well.
        fetch(&topology, scheme, &[version, "--request", "TRACE", "--header", "Max-Forwards: 0"], "/marks")?;
        all += 1;
        let spans = received(&collector, all)?;
        let refusal = spans.last().context("no span")?;
        ensure!(refusal.attribute("http.response.status_code") == "501", "{refusal:?}");
        ensure!(refusal.attribute("hairpin.ending") == "answered", "{refusal:?}");
        // Its parent is not sampled.
        let seen = fetch(&topology, scheme, &[version, "--header", &unsampled], "/marks")?;
        ensure!(seen.starts_with(&format!("00-{TRACE}-")) && seen.ends_with("-00"), "{seen}");
        ensure!(!seen.contains(PARENT), "{seen}");
    }
    let seen = fetch(&topology, "http", &["--connect-to", "::10.0.100.1:81", "--header", &sampled], "/marks")?;
    ensure!(seen == format!("00-{TRACE}-{PARENT}-01"), "a service that is not traced changes it: {seen}");
    // The clients are not trusted.
    hairpin.configure(&topology, &services, &tables("trusted"))?;
    hairpin.tell(&topology, &["reload"])?;
    let seen = fetch(&topology, "http", &["--header", &sampled, "--header", "tracestate: a=b"], "/marks")?;
    all += 1;
    let spans = received(&collector, all)?;
    let span = spans.last().context("no span")?;
    ensure!(span.parent.is_empty() && seen == format!("00-{}-{}-01", span.trace, span.id), "{seen:?}: {span:?}");
    // The end of the process exports what is left, and the log has all of the traces.
    fetch(&topology, "http", &[], "/marks")?;
    hairpin.stop(true)?;
    let spans = received(&collector, all + 1)?;
    let text = std::fs::read_to_string(&log)?;
    let lines: Vec<Value> = text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    ensure!(lines.len() == spans.len() + 3 + 1, "{} lines, {} spans: {text}", lines.len(), spans.len());
    for span in &spans {
        ensure!(lines.iter().any(|line| line["trace_id"] == span.trace), "{span:?}: {text}");
    }
    Ok(())
}

fn dead_collector() -> Result<()> {
    let topology = Topology::create(TopologyOptions::default())?;
    let _servers = Servers::start(&topology)?;
    let services = [PeerService { server_port: HTTP_PORT, ..PeerService::http("web", 80) }];
    // Nothing listens there.
    let table = format!("{}queue = 16\n", collector::table());
    let hairpin = Hairpin::start(&topology, &services, &options(&table))?;
    for _ in 0..20 {
        let seen = fetch(&topology, "http", &[], "/marks?[1-20]")?;
        ensure!(seen.split_whitespace().filter(|seen| seen.ends_with("-01")).count() == 20, "{seen}");
    }
    let start = Instant::now();
    loop {
        let shown = status(&hairpin, &topology)?;
        let number = |name: &str| shown[name].as_u64().unwrap_or(0);
        let full = shown["spans_lost_total"]["queue-full"].as_u64().unwrap_or(0);
        if full + number("spans_waiting") == 400 {
            ensure!(full > 300 && number("spans_exported_total") == 0, "{shown}");
            break;
        }
        ensure!(start.elapsed() < Duration::from_secs(10), "{shown}");
        sleep(Duration::from_millis(50));
    }
    let start = Instant::now();
    while !hairpin.logs().contains("tracing loses spans") {
        ensure!(start.elapsed() < Duration::from_secs(20), "the log says nothing: {}", hairpin.logs());
        sleep(Duration::from_millis(100));
    }
    Ok(())
}

//! How long requests take: what status and metrics say of services whose connections are spliced, and of those that end here.

use super::network::test;
use anyhow::{Context, Result, ensure};
use hairpin_e2e::command;
use hairpin_e2e::peer::{Hairpin, HairpinOptions, PeerService};
use hairpin_e2e::servers::web::certificate;
use hairpin_e2e::servers::{HTTP_PORT, Servers};
use hairpin_e2e::topology::{Family, Topology, TopologyOptions, vip};
use libtest_mimic::Trial;
use serde_json::Value;
use std::thread::sleep;
use std::time::Duration;

pub(crate) fn tests() -> Vec<Trial> {
    vec![test("times: requests of http and https services are timed", timed)]
}

/// The requests of each service.
const REQUESTS: u64 = 20;
/// Enough for counters to be published.
const PUBLISHED: Duration = Duration::from_secs(3);

fn timed() -> Result<()> {
    let topology = Topology::create(TopologyOptions::default())?;
    let _servers = Servers::start(&topology)?;
    let pem = certificate(&topology, "times.pem", &["web.test"])?;
    // Large pages come from a group.
    let group = "[[service.group]]\nname = \"large\"\nbackends = [\"10.0.3.2:80\"]\n\
                 [[service.route]]\npath = \"/10m\"\ngroup = \"large\"\n";
    let plain = PeerService { server_port: HTTP_PORT, tables: group.into(), ..PeerService::http("plain", 80) };
    let services = [plain, PeerService::https("secure", 443, &pem)];
    let options =
        HairpinOptions { tables: "[metrics]\nlisten = \"127.0.0.1:9560\"\n".into(), ..HairpinOptions::default() };
    let hairpin = Hairpin::start(&topology, &services, &options)?;
    // A small page and one that the engine carries, over one connection each.
    for (end, version) in [("http", "--http1.1"), ("https", "--http1.1"), ("https", "--http2")] {
        let mut curl = topology.client.command("curl");
        curl.args([
            "--silent",
            "--show-error",
            "--fail",
            "--insecure",
            "--max-time",
            "20",
            version,
            "--output",
            "/dev/null",
        ]);
        let pages = format!("{end}://{}/{{1k,10m}}?[1-{}]", vip(Family::V4), REQUESTS / 2);
        command::output(curl.args(["--output", "/dev/null", &pages]))?;
    }
    sleep(PUBLISHED);
    let status: Value = serde_json::from_str(&hairpin.tell(&topology, &["status", "-o", "json"])?)?;
    for (name, count) in [("plain", REQUESTS), ("secure", 2 * REQUESTS)] {
        let service = status["services"].as_array().into_iter().flatten().find(|service| service["name"] == name);
        let times = service.map(|service| service["times"].clone()).unwrap_or_default();
        let all = ["to_backend_us", "to_response_us", "in_all_us"];
        ensure!(all.iter().all(|time| times[time]["count"] == count), "{name}: {times}");
        let p99 = |time: &str| times[time]["p99"].as_f64();
        ensure!(p99("in_all_us") >= p99("to_response_us") && p99("to_response_us") > Some(0.0), "{name}: {times}");
        let metrics = topology.balancer.script("curl --silent --fail http://127.0.0.1:9560/metrics")?;
        let series = format!("hairpin_http_request_seconds_count{{service=\"{name}\"}} {count}");
        ensure!(metrics.lines().any(|line| line == series), "no {series}");
    }
    let of = |name: &str| -> Result<Value> {
        let services = status["services"].as_array().into_iter().flatten();
        Ok(services.into_iter().find(|service| service["name"] == name).context("no such service")?.clone())
    };
    let (plain, large, secure) = (of("plain")?, of("plain/large")?, of("secure")?);
    ensure!(large["times"]["in_all_us"]["count"] == REQUESTS / 2, "{large}");
    let sizes = &plain["sizes"];
    // Upper ends of buckets: 1 KB with its head is less than 4 KiB, 10 MB is less than 16 MiB.
    ensure!(sizes["response_bytes"]["p50"] == 4096.0 && sizes["response_bytes"]["max"] == 16_777_216.0, "{sizes}");
    ensure!(sizes["request_bytes"]["max"] == 256.0 && sizes["request_bytes"]["count"] == REQUESTS, "{sizes}");
    ensure!(large["sizes"]["response_bytes"]["p50"] == 16_777_216.0, "{large}");
    ensure!(secure["sizes"]["response_bytes"]["count"] == 2 * REQUESTS, "{secure}");
    ensure!(secure["times"]["tls_handshake_us"]["count"] == 2, "two connections: {secure}");
    let metrics = topology.balancer.script("curl --silent --fail http://127.0.0.1:9560/metrics")?;
    for series in [
        format!("hairpin_http_group_request_seconds_count{{service=\"plain\",group=\"large\"}} {}", REQUESTS / 2),
        "hairpin_https_handshake_seconds_count{service=\"secure\"} 2".to_string(),
        "hairpin_http_service_replies_total{service=\"plain\",class=\"4xx\"} 0".to_string(),
    ] {
        ensure!(metrics.lines().any(|line| line == series), "no {series}");
    }
    let table = hairpin.status_table()?;
    for text in ["with the client", "TLS handshake", "of the response", "16 MiB"] {
        ensure!(table.contains(text), "no {text:?}: {table}");
    }
    Ok(())
}

//! Tracing: spans of exchanges, exported by OTLP.

use super::network::test;
use anyhow::{Result, ensure};
use hairpin_e2e::peer::{Hairpin, HairpinOptions, PeerService};
use hairpin_e2e::servers::HTTP_PORT;
use hairpin_e2e::servers::collector;
use hairpin_e2e::topology::{Topology, TopologyOptions};
use libtest_mimic::Trial;
use serde_json::Value;

pub(crate) fn tests() -> Vec<Trial> {
    vec![test("tracing: a reload changes it, and nothing tells secrets", reloads)]
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

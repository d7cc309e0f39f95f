//! Copies of requests to a second group.

use crate::network::test;
use anyhow::{Result, ensure};
use hairpin_e2e::command;
use hairpin_e2e::peer::{Hairpin, HairpinOptions, PeerService};
use hairpin_e2e::process::patience;
use hairpin_e2e::servers::web;
use hairpin_e2e::tool::inside;
use hairpin_e2e::tool::recorder::{RecordedRequest, Recorder};
use hairpin_e2e::topology::{Family, Topology, TopologyOptions, end, server_address, vip};
use libtest_mimic::Trial;
use serde_json::Value;
use std::net::TcpListener;
use std::path::Path;
use std::time::{Duration, Instant};

pub(crate) fn tests() -> Vec<Trial> {
    vec![test("mirror: copies go to a group, and no client waits", mirrored)]
}

const PORT: u16 = 443;
const RECORDER_PORT: u16 = 8090;
/// Of a server that takes connections, and never answers.
const SILENT_PORT: u16 = 8099;
const PATIENCE: Duration = Duration::from_secs(10);

/// Requests of one curl, each with its arguments: their statuses.
fn ask(topology: &Topology, certificate: &Path, paths: &[&str], arguments: &[&str]) -> Result<String> {
    let mut curl = topology.client.command("curl");
    curl.args(["--silent", "--show-error", "--max-time", "20", "--write-out", "%{http_code} ", "--cacert"]);
    curl.arg(certificate).args(["--resolve", &format!("web.test:{PORT}:{}", vip(Family::V4))]).args(arguments);
    for path in paths {
        curl.args(["--output", "/dev/null"]).arg(format!("https://web.test/{path}"));
    }
    command::output(&mut curl)
}

/// A counter of what becomes of copies.
fn counted(hairpin: &Hairpin, topology: &Topology, event: &str) -> Result<u64> {
    let status: Value = serde_json::from_str(&hairpin.tell(topology, &["status", "-o", "json"])?)?;
    Ok(status["https"]["events"][event]["total"].as_u64().unwrap_or_default())
}

fn await_count(hairpin: &Hairpin, topology: &Topology, event: &str, count: u64) -> Result<()> {
    let begun = Instant::now();
    while counted(hairpin, topology, event)? != count {
        let is = counted(hairpin, topology, event)?;
        ensure!(begun.elapsed() < patience(PATIENCE), "{event}: {is} instead of {count}\n{}", hairpin.logs());
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

fn mirrored() -> Result<()> {
    let topology = Topology::create(TopologyOptions::default())?;
    let own = Recorder::start(&topology.servers[0], RECORDER_PORT, "own")?;
    let shadow = Recorder::start(&topology.servers[1], RECORDER_PORT, "shadow")?;
    let certificate = web::certificate(&topology, "web.pem", &["web.test"])?;
    let https = PeerService::https("web", PORT, &certificate);
    let service = |port: u16, mirror: &str| PeerService {
        servers: vec![1],
        server_port: RECORDER_PORT,
        tables: format!(
            "[[service.group]]\nname = \"shadow\"\nbackends = [\"{}\"]\n[service.http.limits]\nresponse_timeout = \
             \"2s\"\n[[service.route]]\npath_prefix = \"/own/\"\n[[service.route]]\nmirror = {{ group = \"shadow\"\
             {mirror} }}\n{}",
            end(server_address(Family::V4, 2), port),
            https.tables
        ),
        ..https.clone()
    };
    let options = HairpinOptions { top: "workers = 1".to_owned(), ..HairpinOptions::default() };
    let mut hairpin = Hairpin::start(&topology, &[service(RECORDER_PORT, "")], &options)?;
    // By both protocols; not what has a body, nor what takes another route.
    for version in ["--http1.1", "--http2"] {
        let met = ask(&topology, &certificate, &["a?q=1", "own/b", "c"], &[version, "--header", "X-Own: yes"])?;
        ensure!(met == "200 200 200 ", "{version}: {met}");
        let met = ask(&topology, &certificate, &["d"], &[version, "--data", "body"])?;
        ensure!(met == "200 ", "{version}: {met}");
    }
    await_count(&hairpin, &topology, "mirrored", 4)?;
    let begun = Instant::now();
    while shadow.heard().len() < 4 && begun.elapsed() < patience(PATIENCE) {
        std::thread::sleep(Duration::from_millis(20));
    }
    let lines = |heard: &[RecordedRequest]| heard.iter().map(|one| one.line().to_owned()).collect::<Vec<_>>();
    let copies = shadow.heard();
    let expected = ["/a?q=1", "/c", "/a?q=1", "/c"].map(|path| format!("GET {path} HTTP/1.1"));
    ensure!(lines(&copies) == expected, "{:?}", lines(&copies));
    for name in ["Host", "X-Own", "X-Forwarded-For", "X-Forwarded-Proto"] {
        let originals = own.heard();
        let original = originals.iter().find(|one| one.line() == expected[0]).and_then(|one| one.field(name));
        ensure!(original.is_some() && original == copies[0].field(name), "{name}: {original:?}, {}", copies[0].head);
    }
    // Half of them go to a server that never answers: no client waits, and more copies than may be are not made.
    let silent = inside::run(&topology.servers[1], || Ok(TcpListener::bind(("0.0.0.0", SILENT_PORT))?))?;
    let change = |hairpin: &Hairpin, service: PeerService| -> Result<()> {
        hairpin.configure(&topology, &[service], &options)?;
        hairpin.tell(&topology, &["reload"]).map(drop)
    };
    change(&hairpin, service(SILENT_PORT, ", percent = 50, concurrent = 2"))?;
    let met = ask(&topology, &certificate, &["stuck"; 8], &["--http2"])?;
    ensure!(met == "200 ".repeat(8), "{met}");
    let made = [counted(&hairpin, &topology, "mirrored")?, counted(&hairpin, &topology, "mirror-dropped")?];
    ensure!(made[0] > 4 && made[0] + made[1] == 8, "{made:?}");
    await_count(&hairpin, &topology, "mirror-failed", made[0] - 4)?;
    drop(silent);
    change(&hairpin, service(RECORDER_PORT, ", percent = 50"))?;
    shadow.forget();
    let met = ask(&topology, &certificate, &["half"; 8], &["--http2"])?;
    ensure!(met == "200 ".repeat(8), "{met}");
    let begun = Instant::now();
    while shadow.heard().len() < 4 && begun.elapsed() < patience(PATIENCE) {
        std::thread::sleep(Duration::from_millis(20));
    }
    ensure!(shadow.heard().len() == 4, "{:?}", lines(&shadow.heard()));
    hairpin.process().check()
}

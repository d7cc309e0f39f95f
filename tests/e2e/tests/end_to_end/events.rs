//! `hairpin events`: what has happened to an instance, told by its files, whichever process wrote them.

use super::network::test;
use anyhow::{Context, Result, ensure};
use hairpin_e2e::peer::{Hairpin, HairpinOptions, PeerService, rebuilt_program};
use hairpin_e2e::process::patience;
use hairpin_e2e::servers::{HTTP_PORT, Servers};
use hairpin_e2e::topology::{Topology, TopologyOptions};
use libtest_mimic::Trial;
use nix::sys::signal::Signal;
use serde_json::Value;
use std::thread::sleep;
use std::time::{Duration, Instant};

pub(crate) fn tests() -> Vec<Trial> {
    vec![test("events: what happens is kept across restart and crash", events)]
}

/// A service with one backend that has a server and one that has none.
fn service(weight: u32) -> PeerService {
    let tables = format!(
        "[service.health]\ninterval = \"200ms\"\ntimeout = \"100ms\"\nfall = 1\ncheck = \"tcp\"\n[[service.backend]]\nname = \
         \"gone\"\naddress = \"10.0.2.2:9\"\nweight = {weight}\n"
    );
    PeerService { servers: vec![1], server_port: HTTP_PORT, tables, ..PeerService::http("web", 80) }
}

fn read(topology: &Topology, hairpin: &Hairpin, arguments: &[&str]) -> Result<Vec<Value>> {
    let lines = hairpin.tell(topology, &[&["events", "-o", "json"], arguments].concat())?;
    lines.lines().map(|line| serde_json::from_str(line).context("an event")).collect()
}

fn count(events: &[Value], kind: &str, said: &str) -> usize {
    let is_it =
        |event: &&Value| event["kind"] == kind && event["message"].as_str().is_some_and(|text| text.contains(said));
    events.iter().filter(is_it).count()
}

fn events() -> Result<()> {
    let topology = Topology::create(TopologyOptions::default())?;
    let _servers = Servers::start(&topology)?;
    let options = HairpinOptions::default();
    let mut hairpin = Hairpin::start(&topology, &[service(1)], &options)?;
    let since = Instant::now();
    while count(&read(&topology, &hairpin, &["--kind", "health"])?, "health", "backend gone is down") == 0 {
        ensure!(since.elapsed() < patience(Duration::from_secs(10)), "health is no event:\n{}", hairpin.logs());
        sleep(Duration::from_millis(100));
    }
    hairpin.configure(&topology, &[service(7)], &options)?;
    hairpin.tell(&topology, &["reload"])?;
    topology.scratch.write("hairpin.toml", "services = 7\n")?;
    ensure!(hairpin.tell(&topology, &["reload"]).is_err(), "a file with a mistake was taken");
    // From here on the log has warnings alone, as JSON; events are all kept.
    let log = "[log]\nformat = \"json\"\nlevel = \"warning\"\n".to_owned();
    hairpin.configure(&topology, &[service(7)], &HairpinOptions { tables: log, ..options.clone() })?;
    hairpin.tell(&topology, &["reload"])?;
    hairpin.tell(&topology, &["backend", "drain", "web", "server1"])?;
    let program = rebuilt_program(&topology, 1)?;
    hairpin.upgrade(&topology, &program)?;
    hairpin.end(Signal::SIGKILL)?;

    // No process lives now.
    let before = read(&topology, &hairpin, &[])?;
    let kinds = [
        ("start", "web on"),
        ("reload", "1 change"),
        ("refusal", "reload refused"),
        ("backend", "server1"),
        ("upgrade", "starting a new process"),
        ("upgrade", "serves now"),
        ("start", "took over"),
    ];
    for (kind, said) in kinds {
        ensure!(count(&before, kind, said) > 0, "no event of {kind} says \"{said}\": {before:#?}");
    }
    let places = |event: &Value| before.iter().position(|other| other == event);
    let refusal = before.iter().find(|event| event["kind"] == "refusal").context("none")?;
    ensure!(refusal["level"] == "warning" && places(refusal) > Some(0), "{refusal}");
    let is_down = |event: &&Value| event["message"].as_str().is_some_and(|text| text.contains("is down"));
    let down = before.iter().find(is_down).context("none")?;
    ensure!(down["level"] == "warning", "{down}");
    let times: Vec<&str> = before.iter().filter_map(|event| event["time"].as_str()).collect();
    ensure!(times.is_sorted() && times.len() == before.len(), "{times:?}");

    hairpin.start_again(&topology, &[])?;
    let after = read(&topology, &hairpin, &[])?;
    ensure!(after.starts_with(&before), "a restart has lost events");
    ensure!(count(&after, "start", "web on") == count(&before, "start", "web on") + 1, "{after:#?}");
    let log = hairpin.logs();
    ensure!(!log.contains("draining") && count(&after, "backend", "server1") == 1, "information was logged: {log}");
    topology.scratch.write("hairpin.toml", "services = 7\n")?;
    ensure!(hairpin.tell(&topology, &["reload"]).is_err(), "a file with a mistake was taken");
    let log = hairpin.logs();
    let lines: Vec<Value> = log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    ensure!(count(&lines, "refusal", "reload refused") == 1, "no line is JSON: {log}");
    let of_events = |line: &Value| line["schema_version"] == 1 && line["level"] == "warning";
    ensure!(lines.iter().all(of_events), "{lines:#?}");
    let warnings = read(&topology, &hairpin, &["--warnings", "--since", "1h", "-n", "1"])?;
    ensure!(warnings.len() == 1 && warnings[0]["level"] == "warning", "{warnings:?}");
    let text = hairpin.tell(&topology, &["events", "--kind", "refusal"])?;
    ensure!(text.lines().next().is_some_and(|line| line.contains(" warning refusal ")), "{text}");
    Ok(())
}

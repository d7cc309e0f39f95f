//! Ended and started again, over and over, with connections that go on: there is no more of anything at the end than at
//! the beginning.

use crate::combination::{Combination, Way};
use crate::network::test;
use crate::{direct, network};
use anyhow::{Context, Result, ensure};
use hairpin_e2e::peer::{Hairpin, HairpinOptions, PeerService};
use hairpin_e2e::servers::Servers;
use hairpin_e2e::tool::requests::Sessions;
use hairpin_e2e::topology::Topology;
use hairpin_e2e::{command, remnants};
use libtest_mimic::Trial;
use nix::sys::signal::Signal;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

pub(crate) fn tests() -> Vec<Trial> {
    let mut tests = vec![
        test("leaks: restarted over and over", || restarts(Combination::usual(false))),
        test("leaks: restarted over and over, set up in the engine", || restarts(Combination::usual(true))),
    ];
    // `make restarts`.
    tests.extend(Combination::tests("leaks: restarted", "HAIRPIN_RESTARTS", restarts));
    tests
}

/// How often it is restarted, unless `HAIRPIN_RESTARTS` says otherwise; a quarter of that with set-up in the engine.
const RESTARTS: usize = 40;

/// The name of the count of file descriptors.
const DESCRIPTORS: &str = "descriptors";

/// Counts of everything that could leak, by name.
type Census = BTreeMap<String, u64>;

fn restarts(combination: Combination) -> Result<()> {
    let tables = combination.tables();
    let usual = if tables.is_empty() { RESTARTS } else { RESTARTS / 4 };
    let count = std::env::var("HAIRPIN_RESTARTS").ok().map_or(Ok(usual), |text| text.parse())?;
    let (topology, _openers, service) = combination.network()?;
    let (services, of_sessions) = match combination.way {
        Way::Nat => (network::services(), ["http4", "full-http6"]),
        Way::Direct(None) => (direct::services(""), ["http4", "http6"]),
        Way::Direct(Some(tunnel)) => (tunnel.services(""), ["http4", "http6"]),
    };
    let _servers = Servers::start(&topology)?;
    let options = HairpinOptions { service, tables, ..HairpinOptions::default() };
    let mut hairpin = Hairpin::start(&topology, &services, &options)?;
    let ends: Vec<_> =
        services.iter().filter(|service| of_sessions.contains(&service.name)).map(PeerService::listen).collect();
    let ends = ends.iter().map(|end| end.parse()).collect::<Result<Vec<_>, _>>()?;
    let long = Duration::from_secs(30);
    let sessions = Sessions::start(&topology.client, &ends, 8, "1k", Duration::from_millis(300), long)?;
    // The first restart may make what the first start does not need.
    restart(&topology, &mut hairpin, 1)?;
    let first = census(&topology, &mut hairpin)?;
    let memory = hairpin.process().resident_bytes()?;
    for number in 2..=count {
        restart(&topology, &mut hairpin, number).with_context(|| format!("restart {number}"))?;
        if number % 10 == 0 || number == count {
            let mut now = census(&topology, &mut hairpin)?;
            // A check of a backend's health may have had its socket at the first count.
            if let (Some(descriptors), Some(before)) = (now.get_mut(DESCRIPTORS), first.get(DESCRIPTORS)) {
                *descriptors = (*descriptors).max(*before);
            }
            ensure!(now == first, "after restart {number}: {}", difference(&first, &now));
        }
    }
    let now = hairpin.process().resident_bytes()?;
    // The first process has not touched all of its code either.
    ensure!(
        now < memory + memory / 4 + (16 << 20),
        "{memory} bytes were resident, and {now} are after {count} restarts"
    );
    for session in sessions.stop()? {
        ensure!(session.failed.is_none() && session.servers.len() == 1, "{session:?}");
    }
    let instance = hairpin.instance().to_owned();
    hairpin.stop(true)?;
    let left = remnants::of(&instance);
    ensure!(left.is_empty(), "after stop --flush there is {left:?}");
    Ok(())
}

fn restart(topology: &Topology, hairpin: &mut Hairpin, number: usize) -> Result<()> {
    // Both ways to end that leave everything.
    let status = hairpin.end(if number.is_multiple_of(2) { Signal::SIGTERM } else { Signal::SIGKILL })?;
    ensure!(number % 2 == 1 || status.success(), "SIGTERM ended it with {status}");
    hairpin.start_again(topology, &[])?;
    let status = hairpin.status()?;
    // What the BPF programs have set up, and no worker had heard of, is found by its rules.
    ensure!(status.began == "restart" && status.connections().0 >= 8, "{status:?}");
    Ok(())
}

fn difference(before: &Census, after: &Census) -> String {
    let names = before.keys().chain(after.keys());
    let mut lines: Vec<String> = names
        .filter(|name| before.get(*name) != after.get(*name))
        .map(|name| format!("{name}: {:?}, now {:?}", before.get(name), after.get(name)))
        .collect();
    lines.sort_unstable();
    lines.dedup();
    lines.join("; ")
}

fn census(topology: &Topology, hairpin: &mut Hairpin) -> Result<Census> {
    let mut census = Census::new();
    let instance = hairpin.instance().to_owned();
    let interfaces = topology.balancer.interfaces()?;
    census.insert("network devices".into(), interfaces.len() as u64);
    census.insert("files in shared memory".into(), remnants::memory(&instance).len() as u64);
    census.insert("bytes of shared memory".into(), remnants::memory(&instance).iter().map(|file| bytes(file)).sum());
    for directory in remnants::of(&instance).iter().filter(|path| path.is_dir()) {
        census.insert(format!("pins in {}", directory.display()), files(directory)?);
    }
    let directory = hairpin.socket().parent().context("no directory")?.to_owned();
    let logs = files_named(&directory, "log-")?;
    census.insert("files beside the socket".into(), files(&directory)? - logs);
    census.insert(DESCRIPTORS.into(), settled(|| Ok(hairpin.process().descriptors()? as u64))?);
    census.insert("attached programs".into(), attached(topology)?);
    let (programs, maps, memory) = objects(&instance)?;
    census.insert("pinned programs".into(), programs);
    census.insert("their maps".into(), maps);
    census.insert("bytes of their maps".into(), memory);
    Ok(census)
}

/// The smallest of several values: connections to the control socket and health checks come and go.
fn settled(mut value: impl FnMut() -> Result<u64>) -> Result<u64> {
    let mut least = u64::MAX;
    for _ in 0..10 {
        least = least.min(value()?);
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(least)
}

fn bytes(file: &Path) -> u64 {
    file.metadata().map_or(0, |metadata| metadata.len())
}

fn files(directory: &Path) -> Result<u64> {
    let mut count = 0;
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        count += if entry.file_type()?.is_dir() { files(&entry.path())? } else { 1 };
    }
    Ok(count)
}

fn files_named(directory: &Path, prefix: &str) -> Result<u64> {
    let names = std::fs::read_dir(directory)?.flatten().map(|entry| entry.file_name());
    Ok(names.filter(|name| name.to_string_lossy().starts_with(prefix)).count() as u64)
}

/// Programs that work on the balancer's devices.
fn attached(topology: &Topology) -> Result<u64> {
    let text = command::output(topology.balancer.command("bpftool").args(["--json", "net", "show"]))?;
    let all: Vec<Value> = serde_json::from_str(&text)?;
    Ok(all.iter().flat_map(|of| of["tc"].as_array()).map(|programs| programs.len() as u64).sum())
}

/// Programs pinned for the instance, the maps they use, and the memory of those.
fn objects(instance: &str) -> Result<(u64, u64, u64)> {
    let show = |kind: &str| -> Result<Vec<Value>> {
        let text = command::output(Command::new("bpftool").args(["--bpffs", "--json", kind, "show"]))?;
        Ok(serde_json::from_str(&text)?)
    };
    let ours = |object: &Value| {
        let paths = object["pinned"].as_array().into_iter().flatten().filter_map(Value::as_str);
        paths.into_iter().any(|path| path.split('/').any(|part| part == instance))
    };
    let programs: Vec<Value> = show("prog")?.into_iter().filter(ours).collect();
    let used =
        |id: &Value| programs.iter().flat_map(|program| program["map_ids"].as_array()).flatten().any(|m| m == id);
    let maps: Vec<Value> = show("map")?.into_iter().filter(|map| ours(map) || used(&map["id"])).collect();
    let memory = maps.iter().filter_map(|map| map["bytes_memlock"].as_u64()).sum();
    Ok((programs.len() as u64, maps.len() as u64, memory))
}

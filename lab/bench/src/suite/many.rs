//! A million connections, filled with real packets: what they take of memory, how long it takes to list, count and
//! forget them.

use super::report::{Bar, ReportRow};
use super::samples::RepeatedValues;
use super::{SuitePlan, progress};
use anyhow::{Context, Result, bail, ensure};
use hairpin_e2e::command;
use hairpin_e2e::peer::control;
use hairpin_e2e::peer::{Hairpin, HairpinOptions, PeerService};
use hairpin_e2e::servers::HTTP_PORT;
use hairpin_e2e::tool::blast::SOURCES;
use hairpin_e2e::tool::frames::LinkEnds;
use hairpin_e2e::tool::handshakes::{self, Responders};
use hairpin_e2e::topology::{Cards, Family, SERVERS, Topology, TopologyOptions, client_address, server_address, vip};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Connections, and those of a quick run.
const CONNECTIONS: usize = 1_000_000;
const CONNECTIONS_QUICK: usize = 100_000;
/// SYNs per second at most.
const PER_SECOND: u32 = 100_000;
/// Memory in all, in bytes.
const MEMORY_MAX: f64 = 600e6;
/// How long silent connections are remembered here: longer than it takes to fill the table and look at it.
const SILENCE: Duration = Duration::from_secs(120);
/// No longer than that after the last one's time they have to be gone.
const FORGETTING_MAX: Duration = Duration::from_secs(120);

/// Fills the table, measures, waits until it is empty.
pub(super) fn connections(plan: &SuitePlan) -> Result<Vec<ReportRow>> {
    let count = if plan.quick { CONNECTIONS_QUICK } else { CONNECTIONS };
    let topology = network()?;
    let responders = Responders::start(&topology.servers, count);
    let mut hairpin = Hairpin::start(&topology, &[PeerService::tcp("http", Family::V4, HTTP_PORT)], &options(count))?;
    let empty = memory(&mut hairpin)?;
    let link = LinkEnds { to: topology.balancer.mac("client0")?, from: topology.client.mac("eth0")? };
    let target = SocketAddr::new(vip(Family::V4), HTTP_PORT);
    let shake = handshakes::HandshakePlan { link, target, count, per_second: PER_SECOND };
    let filled = handshakes::establish(&topology.client, "eth0", shake, &responders)?;
    let last = Instant::now();
    let per_s = filled.connections as f64 / filled.took.as_secs_f64();
    progress("million filled", "hairpin", per_s, "/s", &format!("{} SYNs for {count} connections", filled.syns));
    let mut rows = held(&mut hairpin, count, &empty)?;
    rows.extend(listed(&topology, &hairpin, count)?);
    let forgotten = forgotten(&hairpin, last)?;
    let about = format!("after {} s of silence", SILENCE.as_secs());
    progress("million forgotten", "hairpin", forgotten, "s", &about);
    let limit = FORGETTING_MAX.as_secs_f64();
    rows.push(value("million forgotten", "s", forgotten, "120 s", limit));
    hairpin.process().check()?;
    Ok(rows)
}

fn options(count: usize) -> HairpinOptions {
    HairpinOptions {
        tables: format!(
            // Steering shares connections out by chance: a little more room than there are.
            "[limits]\nconnections_max = {}\nrules_max = {}\n[timeouts]\ntcp_established = \"{}s\"\n",
            count + count / 20,
            2 * count,
            SILENCE.as_secs(),
        ),
        ..HairpinOptions::default()
    }
}

/// A network in which no host answers by itself: hosts drop what arrives, and the balancer knows every host's address.
fn network() -> Result<Topology> {
    let topology = Topology::create(TopologyOptions { cards: Cards::Wire, ..TopologyOptions::default() })?;
    let mut lines = format!("ip route add {SOURCES} via {}\n", client_address(Family::V4));
    let mut know = |address: std::net::IpAddr, mac: [u8; 6], device: &str| {
        let mac = mac.map(|byte| format!("{byte:02x}")).join(":");
        lines += &format!("ip neigh replace {address} lladdr {mac} dev {device} nud permanent\n");
    };
    know(client_address(Family::V4), topology.client.mac("eth0")?, "client0");
    for server in 1..=SERVERS {
        let mac = topology.servers[server - 1].mac("eth0")?;
        know(server_address(Family::V4, server), mac, &format!("server{server}"));
    }
    topology.balancer.script(&lines)?;
    for host in topology.servers.iter().chain([&topology.client]) {
        host.drop_arrivals("eth0")?;
    }
    Ok(topology)
}

/// Bytes.
struct MemoryBytes {
    /// Memory of the kernel's maps.
    maps: u64,
    /// Resident in the process, each page once, without the kernel's maps.
    process: u64,
}

fn memory(hairpin: &mut Hairpin) -> Result<MemoryBytes> {
    let instance = hairpin.instance().to_owned();
    let text = command::output(Command::new("bpftool").args(["--bpffs", "--json", "map", "show"]))?;
    let maps: Vec<Value> = serde_json::from_str(&text)?;
    let ours = |map: &&Value| {
        let paths = map["pinned"].as_array().into_iter().flatten().filter_map(Value::as_str);
        paths.into_iter().any(|path| path.split('/').any(|part| part == instance))
    };
    let maps: u64 = maps.iter().filter(ours).filter_map(|map| map["bytes_memlock"].as_u64()).sum();
    ensure!(maps > 0, "no pinned maps of instance {instance}");
    Ok(MemoryBytes { maps, process: hairpin.process().own_bytes()? })
}

/// All are there and offloaded; what they take.
fn held(hairpin: &mut Hairpin, count: usize, empty: &MemoryBytes) -> Result<Vec<ReportRow>> {
    let start = Instant::now();
    let view = loop {
        let view = hairpin.offload()?;
        if view.offloaded >= count as u64 {
            break view;
        }
        if start.elapsed() > Duration::from_secs(20) {
            bail!("of {count} connections {} are offloaded: {view:?}", view.offloaded);
        }
        sleep(Duration::from_millis(200));
    };
    ensure!(view.rules[0] >= 2 * count as u64, "rules are missing: {view:?}");
    let full = memory(hairpin)?;
    let sum = (full.maps + full.process) as f64;
    let mega = |bytes: u64| bytes as f64 / 1e6;
    let about = format!(
        "kernel's maps {:.0} MB, process with its shared memory {:.0} MB (empty: {:.0} and {:.0} MB)",
        mega(full.maps),
        mega(full.process),
        mega(empty.maps),
        mega(empty.process)
    );
    progress("million memory", "hairpin", sum, "B", &about);
    let each = sum / count as f64;
    progress("million memory each", "hairpin", each, "B", "");
    Ok(vec![
        value("million memory", "B", sum, "600 MB", MEMORY_MAX),
        value("million memory each", "B", each, "600 B", MEMORY_MAX / CONNECTIONS as f64),
    ])
}

fn listed(topology: &Topology, hairpin: &Hairpin, count: usize) -> Result<Vec<ReportRow>> {
    let start = Instant::now();
    let counted = control::count(&hairpin.socket(), &json!({}))?;
    let counting = start.elapsed().as_secs_f64();
    ensure!(counted >= count as u64, "{counted} connections are counted, not {count}");
    progress("million counted", "hairpin", counting, "s", "");
    let mut list = hairpin.command(topology, &["connections", "--all", "-o", "json"])?;
    let file = topology.scratch.file("connections.json");
    let start = Instant::now();
    let status = list.stdin(Stdio::null()).stdout(std::fs::File::create(&file)?).status()?;
    let listing = start.elapsed().as_secs_f64();
    ensure!(status.success(), "connections --all ended with {status}");
    let lines = command::output(Command::new("wc").arg("-l").arg(&file))?;
    let lines: usize = lines.split_whitespace().next().and_then(|word| word.parse().ok()).context("no line count")?;
    ensure!(lines >= count, "{lines} connections are listed, not {count}");
    progress("million listed", "hairpin", listing, "s", &format!("{lines} lines of JSON"));
    Ok(vec![value("million counted", "s", counting, "5 s", 5.0), value("million listed", "s", listing, "60 s", 60.0)])
}

/// Seconds from the time at which the last connection has been silent for long enough until all of them are gone.
fn forgotten(hairpin: &Hairpin, last: Instant) -> Result<f64> {
    let due = last + SILENCE;
    loop {
        let (connections, view) = (hairpin.status()?.connections().0, hairpin.offload()?);
        if connections == 0 && view.rules == [0, 0] {
            return Ok(Instant::now().saturating_duration_since(due).as_secs_f64());
        }
        if Instant::now() > due + FORGETTING_MAX {
            bail!("{connections} connections and {:?} rules are left {FORGETTING_MAX:?} after their time", view.rules);
        }
        sleep(Duration::from_millis(200));
    }
}

/// A single value against a limit it has to keep.
fn value(case: &str, unit: &'static str, ours: f64, against: &str, limit: f64) -> ReportRow {
    ReportRow::against_value(case, unit, &RepeatedValues::from(vec![ours]), against, limit, Bar::AtMost(1.0))
}

//! `hairpin validate --live`: each finding is made to happen, is told with what and where, and goes with its cause.

use crate::network::test;
use anyhow::{Context, Result, bail, ensure};
use hairpin_e2e::command;
use hairpin_e2e::peer::{Hairpin, HairpinOptions, PeerService, hairpin_program};
use hairpin_e2e::servers::{HTTP_PORT, Servers};
use hairpin_e2e::tool::inside;
use hairpin_e2e::topology::{Family, Topology, TopologyOptions, pool_address};
use libtest_mimic::Trial;
use nix::sys::signal::Signal;
use serde_json::Value;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("live: every finding happens, is told, and goes", findings),
        test("live: ipv6 full nat needs an answer for its pool address", pool),
    ]
}

/// The program says it after a link has gone, and the kernel takes a moment for that.
const ATTEMPTS: usize = 100;

fn services() -> Vec<PeerService> {
    let web = PeerService { servers: vec![1, 4], ..PeerService::tcp("web", Family::V4, HTTP_PORT) };
    let of_ipv6 = PeerService::tcp("web6", Family::V6, 8080);
    vec![web, PeerService { server_port: HTTP_PORT, full_nat: true, servers: vec![1], ..of_ipv6 }]
}

fn start(topology: &Topology) -> Result<Hairpin> {
    let options = HairpinOptions { more_interfaces: vec!["flood0"], ..HairpinOptions::default() };
    Hairpin::start(topology, &services(), &options)
}

/// The exit status and the findings, a line each.
fn validate(topology: &Topology, file: &Path) -> Result<(Option<i32>, Vec<String>)> {
    let mut validate = topology.balancer.command(&hairpin_program()?.to_string_lossy());
    let output = validate.args(["validate", "--live", "-o", "json", "-c"]).arg(file).output()?;
    let said: Value = serde_json::from_slice(&output.stdout)
        .with_context(|| format!("no JSON; it said {}", String::from_utf8_lossy(&output.stderr)))?;
    let line = |finding: &Value| {
        let part = |name: &str| finding[name].as_str().unwrap_or_default();
        [part("severity"), part("subject"), part("what"), part("remedy")].join(": ")
    };
    Ok((output.status.code(), said["findings"].as_array().context("no findings")?.iter().map(line).collect()))
}

/// Waits until one finding has all of these words, or until there is none at all where none are given. The status is 1 if
/// one is an error.
fn expect(topology: &Topology, file: &Path, words: &[&str]) -> Result<()> {
    let mut said = (None, Vec::new());
    for _ in 0..ATTEMPTS {
        said = validate(topology, file)?;
        let (code, lines) = &said;
        let has_error = lines.iter().any(|line| line.starts_with("error"));
        ensure!(*code == Some(i32::from(has_error)), "it exits with {code:?}: {lines:#?}");
        let is_there = words.is_empty() || lines.iter().any(|line| words.iter().all(|word| line.contains(word)));
        if is_there && lines.is_empty() == words.is_empty() {
            return Ok(());
        }
        sleep(Duration::from_millis(100));
    }
    bail!("{words:?} is not what was found: {said:#?}")
}

/// A change on the balancer, the finding that follows, and the command that undoes it.
type Case<'a> = (&'a str, &'a [&'a str], &'a str);

const CASES: &[Case<'_>] = &[
    (
        "ip link set dev flood0 down",
        &["error: interface flood0: it is down", "ip link set dev flood0 up"],
        "ip link set dev flood0 up",
    ),
    (
        "ip address del 10.0.100.1/32 dev lo",
        &["warning: VIP 10.0.100.1 (service web): no interface", "by a route of another machine"],
        "ip address add 10.0.100.1/32 dev lo",
    ),
    (
        "ip address del 10.0.100.1/32 dev lo\nip address add 10.0.100.9/24 dev client0",
        &["warning: VIP 10.0.100.1 (service web): no interface", "ask for it by ARP", "dev client0"],
        "ip address del 10.0.100.9/24 dev client0\nip address add 10.0.100.1/32 dev lo",
    ),
    (
        "ip address add fd00:100::9/64 dev client0",
        &["warning: VIP fd00:100::1 (service web6): it is on lo", "IPv6 neighbour solicitation", "dev client0"],
        "ip address del fd00:100::9/64 dev client0",
    ),
    (
        "ip route add unreachable 10.0.4.2/32",
        &["error: backend 10.0.4.2 (web/server4): there is no route", "ip route add"],
        "ip route del unreachable 10.0.4.2/32",
    ),
    (
        "ip link add aside0 type veth peer name aside1\nip link set dev aside0 up\nip route add 10.0.4.2/32 dev aside0",
        &["error: backend 10.0.4.2 (web/server4): ", "leads out by aside0", "add \"aside0\" to `interfaces`"],
        "ip link del aside0",
    ),
    (
        "ip address add 10.0.4.2/32 dev lo",
        &["error: backend 10.0.4.2 (web/server4): it is an address of this host"],
        "ip address del 10.0.4.2/32 dev lo",
    ),
];

fn findings() -> Result<()> {
    let topology = Topology::create(TopologyOptions::default())?;
    let hairpin = start(&topology)?;
    let file = hairpin.file();
    expect(&topology, file, &[])?;
    for (cause, words, undo) in CASES {
        topology.balancer.script(&format!("{cause}\n"))?;
        expect(&topology, file, words).with_context(|| (*cause).to_string())?;
        topology.balancer.script(&format!("{undo}\n"))?;
        expect(&topology, file, &[]).with_context(|| (*undo).to_string())?;
    }
    topology.flooder.script("ip link set dev eth0 down\n")?;
    expect(&topology, file, &["error: interface flood0: it has no link"])?;
    topology.flooder.script("ip link set dev eth0 up\n")?;
    expect(&topology, file, &[])?;
    sockets(&topology, file)?;
    // Files that differ from that of the instance which runs.
    let text = std::fs::read_to_string(file)?;
    let missing = topology.scratch.write("missing.toml", &text.replace("\"flood0\"", "\"flood1\""))?;
    expect(&topology, &missing, &["error: interface flood1: there is no interface flood1; did you mean flood0?"])?;
    let name = format!("instance = \"{}\"", hairpin.instance());
    let other = topology.scratch.write("other.toml", &text.replace(&name, "instance = \"other\""))?;
    let running = format!("error: instance {}: process ", hairpin.instance());
    expect(&topology, &other, &[&running, "10.0.100.1:80/tcp on client0", "hairpin stop -i"])
}

fn sockets(topology: &Topology, file: &Path) -> Result<()> {
    let own = format!("process {} (", std::process::id());
    for (end, service) in [("10.0.100.1:80", "web"), ("0.0.0.0:80", "web"), ("[::]:8080", "web6")] {
        let to: SocketAddr = end.parse()?;
        let listener = inside::run(&topology.balancer, move || Ok(TcpListener::bind(to)?))?;
        let listens = format!("listens on {end}/tcp");
        expect(topology, file, &[&format!("warning: service {service}: {own}"), &listens])?;
        drop(listener);
        expect(topology, file, &[])?;
    }
    Ok(())
}

/// A pool address on the loopback device, of the network of the backend: the start warns, requests time out, and each of the
/// two remedies helps.
fn pool() -> Result<()> {
    let topology = Topology::create(TopologyOptions::default())?;
    let _servers = Servers::start(&topology)?;
    topology.balancer.script("ip address add fd00:1::9/128 dev lo\n")?;
    let mut hairpin = start(&topology)?;
    ensure!(!hairpin.logs().contains("warning: pool address"), "it warns of nothing:\n{}", hairpin.logs());
    hairpin.end(Signal::SIGINT)?;
    // It has removed its directory, which is to have the next log.
    std::fs::create_dir_all(hairpin.socket().parent().context("no directory")?)?;
    let text = std::fs::read_to_string(hairpin.file())?;
    std::fs::write(hairpin.file(), text.replace(&pool_address(Family::V6).to_string(), "fd00:1::9"))?;
    hairpin.start_again(&topology, &[])?;
    let logs = hairpin.logs();
    ensure!(logs.contains("pool address fd00:1::9: it is on lo: backend fd00:1::2"), "it does not warn:\n{logs}");
    let to = format!("http://{}/1k", services()[1].listen());
    let get = |seconds: &str| {
        let mut curl = topology.client.command("curl");
        command::output(curl.args(["--silent", "--fail", "--output", "/dev/null", "--max-time", seconds, &to]))
    };
    let found = ["error: pool address fd00:1::9: it is on lo", "full NAT times out", "add proxy fd00:1::9 dev server1"];
    for (remedy, undo) in [
        ("ip address add fd00:1::9/128 dev server1", "ip address del fd00:1::9/128 dev server1"),
        ("sysctl -qw net.ipv6.conf.server1.proxy_ndp=1\nip -6 neigh add proxy fd00:1::9 dev server1", ""),
    ] {
        expect(&topology, hairpin.file(), &found)?;
        topology.servers[0].script("ip -6 neigh flush dev eth0\n")?;
        ensure!(get("3").is_err(), "the server found the pool address");
        topology.balancer.script(&format!("{remedy}\n"))?;
        expect(&topology, hairpin.file(), &[])?;
        get("60").with_context(|| format!("after {remedy}"))?;
        topology.balancer.script(&format!("{undo}\n"))?;
    }
    Ok(())
}

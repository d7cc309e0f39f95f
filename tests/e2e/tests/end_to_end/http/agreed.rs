//! Backends under Linux's SYN cookies: its kernel agrees to window scale and SACK only where timestamps remember them.

use super::http_network::PATIENCE;
use crate::network::test;
use anyhow::{Context, Result, ensure};
use hairpin_e2e::namespace::Namespace;
use hairpin_e2e::peer::{Hairpin, HairpinOptions, PeerService};
use hairpin_e2e::servers::{HTTP_PORT, Servers};
use hairpin_e2e::tool::http::HttpConnection;
use hairpin_e2e::tool::inside;
use hairpin_e2e::topology::{Cards, Family, Topology, TopologyOptions, vip};
use libtest_mimic::Trial;
use std::collections::BTreeMap;
use std::net::SocketAddr;

pub(super) fn tests() -> Vec<Trial> {
    vec![
        test("http: backends under SYN cookies are skipped", skipped),
        test("http: timestamps reach both ends (gso)", || stamped(Cards::Gso, true)),
        test("http: timestamps reach both ends (software)", || stamped(Cards::Gso, false)),
        test("http: backends that decline timestamps are served", declined),
    ]
}

/// The servers that answer that many requests of separate clients.
fn ask(topology: &Topology, count: usize) -> Result<BTreeMap<String, usize>> {
    inside::run(&topology.client, move || {
        let mut servers = BTreeMap::new();
        for i in 0..count {
            let mut connection = HttpConnection::open(SocketAddr::new(vip(Family::V4), HTTP_PORT), PATIENCE)?;
            let answer = connection.get("1k", true, PATIENCE).with_context(|| format!("request {i}"))?;
            ensure!(answer.status == 200, "request {i}: {}", answer.head());
            *servers.entry(answer.server()?.to_owned()).or_default() += 1;
        }
        Ok(servers)
    })
}

fn skipped() -> Result<()> {
    let topology = Topology::create(TopologyOptions::default())?;
    let _servers = Servers::start(&topology)?;
    let service = |timestamps: bool| {
        let tables = format!("[service.http]\nreuse = false\ntimestamps = {timestamps}\n");
        [PeerService { servers: vec![1, 2], tables, ..PeerService::http("web", HTTP_PORT) }]
    };
    let mut hairpin = Hairpin::start(&topology, &service(true), &HairpinOptions::default())?;
    let skipped = |hairpin: &Hairpin| Ok::<_, anyhow::Error>(hairpin.status()?.http.context("no HTTP")?.skipped_total);
    // 2: cookies for every SYN.
    let cookies = |server: usize| topology.servers[server - 1].script("sysctl -qw net.ipv4.tcp_syncookies=2\n");
    let both = ask(&topology, 12)?;
    ensure!(both.len() == 2 && skipped(&hairpin)? == 0, "{both:?}");
    cookies(1)?;
    let both = ask(&topology, 12)?;
    ensure!(both.len() == 2 && skipped(&hairpin)? == 0, "with timestamps: {both:?}");
    hairpin.configure(&topology, &service(false), &HairpinOptions::default())?;
    hairpin.tell(&topology, &["reload"])?;
    let one = ask(&topology, 12)?;
    ensure!(one == BTreeMap::from([("server2".to_owned(), 12)]), "{one:?}");
    ensure!((1..=12).contains(&skipped(&hairpin)?), "{} skipped", skipped(&hairpin)?);
    cookies(2)?;
    let before = skipped(&hairpin)?;
    let all: usize = ask(&topology, 12)?.values().sum();
    // Three tries; the last one is served.
    ensure!(all == 12 && skipped(&hairpin)? == before + 24, "{} before, {} after", before, skipped(&hairpin)?);
    hairpin.process().check()
}

/// Counters of `nstat` in a namespace.
fn counted(namespace: &Namespace, name: &str) -> Result<u64> {
    let text = namespace.script(&format!("nstat -asz {name} | tail -1\n"))?;
    text.split_whitespace().nth(1).and_then(|value| value.parse().ok()).with_context(|| format!("{name}: {text}"))
}

/// Downloads so often over one connection, and says what `ss` says of the client's socket then.
fn download(topology: &Topology, count: usize) -> Result<String> {
    let _connection = inside::run(&topology.client, move || {
        let mut connection = HttpConnection::open(SocketAddr::new(vip(Family::V4), HTTP_PORT), PATIENCE)?;
        for i in 0..count {
            let answer = connection.get("10m", false, PATIENCE).with_context(|| format!("download {i}"))?;
            ensure!(answer.status == 200 && answer.body.len() == 10 << 20, "download {i}: {}", answer.head());
        }
        Ok(connection)
    })?;
    topology.client.script(&format!("ss -tin state established 'dport = {HTTP_PORT}'\n"))
}

/// Whether `ss` tells of segments with twelve bytes less than an Ethernet frame's 1,460.
fn has_timestamps(told: &str) -> bool {
    told.split_whitespace().any(|word| word == "mss:1448")
}

/// The kernel's own ends agree on timestamps, and take no segment of a download for an old one.
fn stamped(cards: Cards, offloads: bool) -> Result<()> {
    let topology = Topology::create(TopologyOptions { cards, ..TopologyOptions::default() })?;
    let _servers = Servers::start(&topology)?;
    let policy = if offloads { "always" } else { "never" };
    let tables = format!("[offload]\npolicy = \"{policy}\"\n");
    let options = HairpinOptions { tables, ..HairpinOptions::default() };
    let service = PeerService { servers: vec![1], ..PeerService::http("web", HTTP_PORT) };
    let mut hairpin = Hairpin::start(&topology, &[service], &options)?;
    let told = download(&topology, 4)?;
    ensure!(has_timestamps(&told), "no timestamps: {told}");
    ensure!(counted(&topology.client, "TcpExtPAWSEstab")? == 0, "the client has refused segments");
    // Hairpin's word that the rules are in force may come behind the client's acknowledgements: one a response.
    let refused = counted(&topology.servers[0], "TcpExtPAWSEstab")?;
    ensure!(refused <= if offloads { 4 } else { 0 }, "the server has refused {refused} segments");
    let http = hairpin.status()?.http.context("no HTTP")?;
    ensure!((http.offloaded_total > 0) == offloads && http.timestamps_declined_total == 0, "{http:?}");
    hairpin.process().check()
}

/// Segments get and lose their timestamps in the worker.
fn declined() -> Result<()> {
    let topology = Topology::create(TopologyOptions::default())?;
    let _servers = Servers::start(&topology)?;
    topology.servers[0].script("sysctl -qw net.ipv4.tcp_timestamps=0\n")?;
    let service = PeerService { servers: vec![1], ..PeerService::http("web", HTTP_PORT) };
    let mut hairpin = Hairpin::start(&topology, &[service], &HairpinOptions::default())?;
    let told = download(&topology, 2)?;
    ensure!(has_timestamps(&told), "no timestamps: {told}");
    let http = hairpin.status()?.http.context("no HTTP")?;
    ensure!(http.timestamps_declined_total > 0 && http.offloaded_total == 0, "{http:?}");
    hairpin.process().check()
}

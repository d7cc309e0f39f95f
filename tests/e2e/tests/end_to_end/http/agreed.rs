//! Backends whose kernel agrees to nothing but an MSS, as Linux does under its SYN cookies.

use super::http_network::PATIENCE;
use crate::network::test;
use anyhow::{Context, Result, ensure};
use hairpin_e2e::peer::{Hairpin, HairpinOptions, PeerService};
use hairpin_e2e::servers::{HTTP_PORT, Servers};
use hairpin_e2e::tool::http::HttpConnection;
use hairpin_e2e::tool::inside;
use hairpin_e2e::topology::{Family, Topology, TopologyOptions, vip};
use libtest_mimic::Trial;
use std::collections::BTreeMap;
use std::net::SocketAddr;

pub(super) fn tests() -> Vec<Trial> {
    vec![test("http: backends under SYN cookies are skipped", skipped)]
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
    let tables = "[service.http]\nreuse = false\n".to_owned();
    let service = PeerService { servers: vec![1, 2], tables, ..PeerService::http("web", HTTP_PORT) };
    let mut hairpin = Hairpin::start(&topology, &[service], &HairpinOptions::default())?;
    let skipped = |hairpin: &Hairpin| Ok::<_, anyhow::Error>(hairpin.status()?.http.context("no HTTP")?.skipped_total);
    // 2: cookies for every SYN.
    let cookies = |server: usize| topology.servers[server - 1].script("sysctl -qw net.ipv4.tcp_syncookies=2\n");
    let both = ask(&topology, 12)?;
    ensure!(both.len() == 2 && skipped(&hairpin)? == 0, "{both:?}");
    cookies(1)?;
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

//! HTTP requests: on connections that stay, and on one connection each.

use super::report::{Bar, Row};
use super::samples::{Samples, interleaved};
use super::tcp::medians;
use super::{Plan, progress};
use anyhow::Result;
use hairpin_e2e::command;
use hairpin_e2e::load::{self, WrkOptions};
use hairpin_e2e::peer::{self, Kind, Service};
use hairpin_e2e::servers::{HTTP_PORT, Servers};
use hairpin_e2e::topology::{Cards, Family, Options, Topology};
use std::collections::BTreeMap;

/// Connections of all clients together.
const CONNECTIONS: usize = 64;

/// One service of all servers.
fn spread() -> Vec<Service> {
    vec![Service::tcp("http", Family::V4, HTTP_PORT)]
}

/// A service for each server.
fn pairs() -> Vec<Service> {
    let one = |(i, name): (u16, &'static str)| Service {
        servers: vec![1 + usize::from(i)],
        server_port: HTTP_PORT,
        ..Service::tcp(name, Family::V4, 8001 + i)
    };
    (0_u16..).zip(["http-1", "http-2", "http-3", "http-4"]).map(one).collect()
}

/// Requests per second, each peer in turn.
fn measure(
    plan: &Plan,
    case: &str,
    cards: Cards,
    kinds: &[Kind],
    services: &[Service],
    close: bool,
) -> Result<BTreeMap<Kind, Samples>> {
    let options = WrkOptions { page: "1k", connections: CONNECTIONS, duration: plan.duration, close };
    interleaved(kinds, plan.repetitions, |kind| {
        // A network of its own for each: servers remember in TIME_WAIT the ports and time stamps that clients had by
        // way of another peer, and take their next SYNs for old ones.
        let topology = Topology::create(Options { cards, ..Options::default() })?;
        let _servers = Servers::start(&topology)?;
        let mut peer = peer::start(kind, &topology, services)?;
        let targets: Vec<String> = services.iter().flat_map(|service| peer.targets(service)).collect();
        let result = load::wrk(&topology, &targets, &options)?;
        peer.check()?;
        let line = command::display(&load::wrk_command(&topology.client, &targets[0], targets.len(), &options));
        let rest = format!("p99 {:.1} ms, {} errors; {} x {line}", result.p99_ms, result.errors, targets.len());
        progress(case, kind.name(), result.requests_per_s, "/s", &rest);
        Ok(result.requests_per_s)
    })
}

/// Keep-alive requests of 1 KB, beside the kernel's routing: four clients, each with a server of its own, and four
/// clients that all talk to all servers.
pub(super) fn keep_alive(plan: &Plan) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for cards in [Cards::Gso, Cards::Wire] {
        for (name, services, routed) in [("pairs", pairs(), Kind::Routed), ("spread", spread(), Kind::Multipath)] {
            let case = format!("wrk {} 1 KB, {name}", cards.name());
            let mut samples = measure(plan, &case, cards, &[Kind::Hairpin, routed], &services, false)?;
            let ours = samples.remove(&Kind::Hairpin).unwrap_or_default();
            rows.push(Row::new(case, "/s", &ours, &medians(&samples), routed.name(), Bar::AtLeast(0.9)));
        }
    }
    Ok(rows)
}

/// New connections, beside the proxies and nftables.
pub(super) fn connections(plan: &Plan) -> Result<Vec<Row>> {
    let kinds = [Kind::Hairpin, Kind::Nftables, Kind::Haproxy, Kind::NginxStream, Kind::Multipath];
    let bars = [(Kind::Haproxy, 1.15), (Kind::NginxStream, 1.15), (Kind::Nftables, 0.8)];
    let mut rows = Vec::new();
    for cards in [Cards::Gso, Cards::Wire] {
        let case = format!("new connections {}", cards.name());
        let mut samples = measure(plan, &case, cards, &kinds, &spread(), true)?;
        let ours = samples.remove(&Kind::Hairpin).unwrap_or_default();
        let beside = medians(&samples);
        for (peer, bar) in bars {
            rows.push(Row::new(case.clone(), "/s", &ours, &beside, peer.name(), Bar::AtLeast(bar)));
        }
    }
    Ok(rows)
}

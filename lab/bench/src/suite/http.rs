//! HTTP requests: on connections that stay, and on one connection each.

use super::report::{Bar, ReportRow};
use super::samples::{RepeatedValues, interleaved};
use super::tcp::medians;
use super::{SuitePlan, progress};
use anyhow::Result;
use hairpin_e2e::command;
use hairpin_e2e::load::{self, WrkOptions};
use hairpin_e2e::peer::{self, PeerKind, PeerService};
use hairpin_e2e::servers::{HTTP_PORT, Servers};
use hairpin_e2e::topology::{Cards, Family, Topology, TopologyOptions};
use std::collections::BTreeMap;

/// Connections of all clients together.
const CONNECTIONS: usize = 64;

/// One service of all servers.
fn spread() -> Vec<PeerService> {
    vec![PeerService::tcp("http", Family::V4, HTTP_PORT)]
}

/// A service for each server.
fn pairs() -> Vec<PeerService> {
    let one = |(i, name): (u16, &'static str)| PeerService {
        servers: vec![1 + usize::from(i)],
        server_port: HTTP_PORT,
        ..PeerService::tcp(name, Family::V4, 8001 + i)
    };
    (0_u16..).zip(["http-1", "http-2", "http-3", "http-4"]).map(one).collect()
}

/// Requests per second, each peer in turn.
fn measure(
    plan: &SuitePlan,
    case: &str,
    cards: Cards,
    kinds: &[PeerKind],
    services: &[PeerService],
    close: bool,
) -> Result<BTreeMap<PeerKind, RepeatedValues>> {
    let options = WrkOptions { page: "1k", connections: CONNECTIONS, duration: plan.duration, close };
    interleaved(kinds, plan.repetitions, |kind| {
        // A network of its own for each: servers remember in TIME_WAIT the ports and time stamps that clients had by
        // way of another peer, and take their next SYNs for old ones.
        let topology = Topology::create(TopologyOptions { cards, ..TopologyOptions::default() })?;
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

/// The program that is linked statically, if there is one to measure.
fn linked_statically() -> Result<Vec<PeerKind>> {
    Ok(peer::static_program()?.map(|_| PeerKind::HairpinStatic).into_iter().collect())
}

/// The row of the program that is linked statically, beside the other one; takes its samples out.
fn beside_static(
    case: &str,
    samples: &mut BTreeMap<PeerKind, RepeatedValues>,
    other: &RepeatedValues,
) -> Option<ReportRow> {
    let own = samples.remove(&PeerKind::HairpinStatic)?;
    let beside = BTreeMap::from([(PeerKind::Hairpin.name().to_owned(), other.median())]);
    let case = format!("{case}, linked statically");
    Some(ReportRow::new(case, "/s", &own, &beside, PeerKind::Hairpin.name(), Bar::AtLeast(0.95)))
}

/// Keep-alive requests of 1 KB, beside the kernel's routing: four clients, each with a server of its own, and four
/// clients that all talk to all servers.
pub(super) fn keep_alive(plan: &SuitePlan) -> Result<Vec<ReportRow>> {
    let mut rows = Vec::new();
    for cards in [Cards::Gso, Cards::Wire] {
        for (name, services, routed) in
            [("pairs", pairs(), PeerKind::Routed), ("spread", spread(), PeerKind::Multipath)]
        {
            let case = format!("wrk {} 1 KB, {name}", cards.name());
            let kinds = [&[PeerKind::Hairpin, routed][..], &linked_statically()?].concat();
            let mut samples = measure(plan, &case, cards, &kinds, &services, false)?;
            let ours = samples.remove(&PeerKind::Hairpin).unwrap_or_default();
            rows.extend(beside_static(&case, &mut samples, &ours));
            rows.push(ReportRow::new(case, "/s", &ours, &medians(&samples), routed.name(), Bar::AtLeast(0.9)));
        }
    }
    Ok(rows)
}

/// New connections, beside the proxies, nftables and routing; set up by workers, and by the BPF programs.
pub(super) fn connections(plan: &SuitePlan) -> Result<Vec<ReportRow>> {
    let ours = [PeerKind::Hairpin, PeerKind::HairpinSetUp];
    let others = [PeerKind::Nftables, PeerKind::Haproxy, PeerKind::NginxStream, PeerKind::Multipath];
    let kinds = [&ours[..], &linked_statically()?, &others].concat();
    let by_workers = [(PeerKind::Haproxy, 1.15), (PeerKind::NginxStream, 1.15), (PeerKind::Nftables, 0.8)];
    let by_programs = [(PeerKind::Multipath, 0.9), (PeerKind::Haproxy, 1.5), (PeerKind::NginxStream, 1.5)];
    let mut rows = Vec::new();
    for cards in [Cards::Gso, Cards::Wire] {
        let case = format!("new connections {}", cards.name());
        let mut samples = measure(plan, &case, cards, &kinds, &spread(), true)?;
        let of_ours = ours.map(|kind| samples.remove(&kind).unwrap_or_default());
        rows.extend(beside_static(&case, &mut samples, &of_ours[0]));
        let beside = medians(&samples);
        let cases = [case.clone(), format!("{case}, set_up = engine")];
        for ((case, ours), bars) in cases.iter().zip(&of_ours).zip([by_workers, by_programs]) {
            for (peer, bar) in bars {
                rows.push(ReportRow::new(case.clone(), "/s", ours, &beside, peer.name(), Bar::AtLeast(bar)));
            }
        }
    }
    Ok(rows)
}

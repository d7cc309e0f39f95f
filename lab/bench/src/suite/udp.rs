//! Small UDP packets over many flows.
//!
//! Sender, flows and counting are the same for all: every flow is opened and answered first, then its packets come as
//! fast as both cores can send them, and the servers' cards count what arrives (and drop it there, so that the servers'
//! work is the same small one for all).

use super::report::{Bar, ReportRow};
use super::samples::interleaved;
use super::tcp::medians;
use super::{SuitePlan, progress};
use anyhow::{Result, bail};
use hairpin_e2e::peer::{self, PeerKind, PeerService, RunningPeer};
use hairpin_e2e::servers::{ECHO_PORT, Servers};
use hairpin_e2e::tool::blast::{Blast, SOURCES};
use hairpin_e2e::tool::frames::LinkEnds;
use hairpin_e2e::topology::{Cards, Family, Topology, TopologyOptions, client_address};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Flows opened per second: what the echo servers answer without loss on a busy machine.
const OPEN_PER_SECOND: u32 = 15_000;
/// How long the sender runs before counting begins.
const WARM_UP: Duration = Duration::from_millis(500);

/// Packets per second that arrive, over 1 k and 100 k flows, beside plain routing and nftables.
pub(super) fn small_packets(plan: &SuitePlan) -> Result<Vec<ReportRow>> {
    let mut rows = Vec::new();
    for (flows, routed, nftables) in [(1_000, 1.2, 1.2), (100_000, 0.85, 1.2)] {
        let case = format!("udp {flows} flows");
        let kinds = [PeerKind::Hairpin, PeerKind::Routed, PeerKind::Nftables];
        let mut samples = interleaved(&kinds, plan.repetitions, |kind| {
            // A network of its own for each: connection tracking forgets nothing when its rules go.
            let topology = Topology::create(TopologyOptions { cards: Cards::Wire, ..TopologyOptions::default() })?;
            let servers = Servers::start(&topology)?;
            let (rate, rest) = once(plan, &topology, &servers, kind, flows)?;
            progress(&case, kind.name(), rate, "packet/s", &rest);
            Ok(rate)
        })?;
        let ours = samples.remove(&PeerKind::Hairpin).unwrap_or_default();
        let beside = medians(&samples);
        for (peer, bar) in [(PeerKind::Routed, routed), (PeerKind::Nftables, nftables)] {
            rows.push(ReportRow::new(case.clone(), "packet/s", &ours, &beside, peer.name(), Bar::AtLeast(bar)));
        }
    }
    Ok(rows)
}

/// One measurement: packets that arrive per second, and words about it.
fn once(
    plan: &SuitePlan,
    topology: &Topology,
    servers: &Servers,
    kind: PeerKind,
    flows: usize,
) -> Result<(f64, String)> {
    topology.balancer.script(&format!("ip route add {SOURCES} via {}\n", client_address(Family::V4)))?;
    let service = PeerService::udp("echo", Family::V4, ECHO_PORT);
    let mut peer = peer::start(kind, topology, std::slice::from_ref(&service))?;
    let targets: Vec<SocketAddr> = peer.targets(&service).iter().map(|end| end.parse()).collect::<Result<_, _>>()?;
    let link = LinkEnds { to: topology.balancer.mac("client0")?, from: topology.client.mac("eth0")? };
    let blast = Blast::new(link, flows, &targets);
    let opened = open(&blast, topology, servers, &peer, flows)?;
    for server in &topology.servers {
        server.drop_arrivals("eth0")?;
    }
    let sending = blast.fire(&topology.client, "eth0");
    std::thread::sleep(WARM_UP);
    let (before, start) = (arrived(topology)?, Instant::now());
    std::thread::sleep(plan.duration);
    let (after, took) = (arrived(topology)?, start.elapsed());
    let sent = sending.stop()?;
    peer.check()?;
    Ok(((after - before) as f64 / took.as_secs_f64(), format!("of {:.2} Mpps sent; {opened}", sent / 1e6)))
}

fn arrived(topology: &Topology) -> Result<u64> {
    topology.servers.iter().map(|server| server.received_packets("eth0")).sum()
}

/// Opens every flow and waits until it has been answered and, with Hairpin, offloaded.
fn open(blast: &Blast, topology: &Topology, servers: &Servers, peer: &RunningPeer<'_>, flows: usize) -> Result<String> {
    // The second round reaches what the first has lost.
    for _ in 0..2 {
        blast.open(&topology.client, "eth0", OPEN_PER_SECOND)?;
    }
    let answered: u64 = servers.echoed().iter().sum();
    if answered < flows as u64 * 19 / 10 {
        bail!("of {flows} flows opened twice only {answered} datagrams were answered");
    }
    let Some(hairpin) = peer.hairpin() else {
        return Ok(format!("{answered} answers before"));
    };
    let start = Instant::now();
    let rules = loop {
        let rules = hairpin.status()?.offload.rules;
        if rules >= 2 * flows as u64 || start.elapsed() > Duration::from_secs(5) {
            break rules;
        }
        std::thread::sleep(Duration::from_millis(100));
    };
    if rules < flows as u64 * 19 / 10 {
        bail!("of {flows} flows only {} are offloaded", rules / 2);
    }
    Ok(format!("{answered} answers before, {rules} rules"))
}

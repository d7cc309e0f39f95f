//! TCP in bulk: beside plain routing, and under a flood.

use super::report::{Bar, ReportRow};
use super::samples::{RepeatedValues, interleaved};
use super::{SuitePlan, progress};
use anyhow::{Result, ensure};
use hairpin_e2e::command;
use hairpin_e2e::load::{self, Amount, IperfOptions};
use hairpin_e2e::peer::{self, Hairpin, HairpinOptions, PeerKind, PeerService};
use hairpin_e2e::servers::{ECHO_PORT, HTTP_PORT, IPERF_PORTS, Servers};
use hairpin_e2e::tool::flood::{self, FloodKind};
use hairpin_e2e::tool::frames::LinkEnds;
use hairpin_e2e::topology::{Cards, Family, Topology, TopologyOptions, server_address, vip};
use std::collections::BTreeMap;
use std::time::Duration;

fn service() -> PeerService {
    PeerService { servers: vec![1], ..PeerService::tcp("iperf", Family::V4, IPERF_PORTS[0]) }
}

fn options(plan: &SuitePlan, streams: usize) -> IperfOptions {
    IperfOptions { streams, amount: Amount::For(plan.duration), udp_mbit_s: None, reverse: false }
}

/// iperf3 through `nat` to one server, beside the same server's own address routed by the kernel.
pub(super) fn bulk(plan: &SuitePlan) -> Result<Vec<ReportRow>> {
    let mut rows = Vec::new();
    for cards in [Cards::Gso, Cards::Wire] {
        let topology = Topology::create(TopologyOptions { cards, ..TopologyOptions::default() })?;
        let _servers = Servers::start(&topology)?;
        for streams in [1, 8] {
            let case = format!("tcp {} {streams} stream(s)", cards.name());
            let options = options(plan, streams);
            let mut samples = interleaved(&[PeerKind::Hairpin, PeerKind::Routed], plan.repetitions, |kind| {
                let to = if kind == PeerKind::Routed { server_address(Family::V4, 1) } else { vip(Family::V4) };
                let mut peer = peer::start(kind, &topology, &[service()])?;
                let result = load::iperf(&topology, to, IPERF_PORTS[0], &options)?;
                peer.check()?;
                let line = command::display(&load::iperf_command(&topology.client, to, IPERF_PORTS[0], &options));
                progress(&case, kind.name(), result.bits_per_s, "bit/s", &line);
                Ok(result.bits_per_s)
            })?;
            let ours = samples.remove(&PeerKind::Hairpin).unwrap_or_default();
            let beside = medians(&samples);
            let bar = Bar::AtLeast(if streams == 8 { 0.95 } else { 0.9 });
            rows.push(ReportRow::new(case, "bit/s", &ours, &beside, PeerKind::Routed.name(), bar));
        }
    }
    Ok(rows)
}

/// The medians by peer's name.
pub(super) fn medians(samples: &BTreeMap<PeerKind, RepeatedValues>) -> BTreeMap<String, f64> {
    samples.iter().map(|(kind, samples)| (kind.name().to_owned(), samples.median())).collect()
}

/// Frames per second of each sending thread of the second flood: low enough for both to be met in full.
const FLOOD_PER_SECOND: u32 = 100_000;

/// iperf3 through Hairpin while a flood at its services comes in on another interface: once met by Hairpin, once by a BPF program that
/// drops everything. Once as fast as the machine can make it - a flood that costs more per packet then is a smaller one -
/// and once at a rate that is the same for both. A mixed flood has datagrams for a UDP service, whose backends answer each;
/// a balancer cannot know them from those of real clients, and what their way there and back costs is in the figure. One of
/// TCP alone shows what it costs to refuse.
pub(super) fn under_flood(plan: &SuitePlan) -> Result<Vec<ReportRow>> {
    let topology = Topology::create(TopologyOptions::default())?;
    let _servers = Servers::start(&topology)?;
    let floods = [
        ("tcp under flood", FloodKind::Mixed, None),
        ("tcp under the same rate of flood", FloodKind::Mixed, Some(FLOOD_PER_SECOND)),
        ("tcp under the same rate of TCP flood", FloodKind::Tcp, Some(FLOOD_PER_SECOND)),
    ];
    let mut rows = Vec::new();
    for (case, kind, per_second) in floods {
        let (mut ours, mut bare) = (RepeatedValues::default(), RepeatedValues::default());
        for _ in 0..plan.repetitions {
            for (met_by, samples) in [("hairpin", &mut ours), ("bare drop", &mut bare)] {
                samples.push(flooded(plan, &topology, (case, met_by), (kind, per_second))?);
            }
        }
        let beside = BTreeMap::from([("bare drop".to_owned(), bare.median())]);
        rows.push(ReportRow::new(case, "bit/s", &ours, &beside, "bare drop", Bar::AtLeast(0.95)));
    }
    Ok(rows)
}

/// The goodput in bit/s of one transfer under a flood.
fn flooded(
    plan: &SuitePlan,
    topology: &Topology,
    (case, met_by): (&str, &str),
    (kind, per_second): (FloodKind, Option<u32>),
) -> Result<f64> {
    let link = LinkEnds { to: topology.balancer.mac("flood0")?, from: topology.flooder.mac("eth0")? };
    let services = [
        service(),
        PeerService::tcp("http4", Family::V4, HTTP_PORT),
        PeerService::tcp("http6", Family::V6, HTTP_PORT),
        PeerService::udp("echo4", Family::V4, ECHO_PORT),
    ];
    let by_hairpin = met_by == "hairpin";
    let more_interfaces = if by_hairpin { vec!["flood0"] } else { Vec::new() };
    let hairpin_options = HairpinOptions { more_interfaces, ..HairpinOptions::default() };
    let mut hairpin = Hairpin::start(topology, &services, &hairpin_options)?;
    if !by_hairpin {
        topology.balancer.drop_arrivals("flood0")?;
    }
    let cpus: Vec<usize> = (0..std::thread::available_parallelism()?.get()).collect();
    let targets = if kind == FloodKind::Tcp { flood::tcp_services() } else { flood::services() };
    let flood = flood::start((&topology.flooder, "eth0"), link, (kind, &targets), 1, &cpus, per_second);
    // The policer's rate settles, and the transfer is established under the flood.
    std::thread::sleep(Duration::from_secs(1));
    let result = load::iperf(topology, vip(Family::V4), IPERF_PORTS[0], &options(plan, 1));
    let flood_rate = flood.stop()?;
    if !by_hairpin {
        topology.balancer.admit_arrivals("flood0")?;
    }
    hairpin.process().check()?;
    let result = result?;
    let rest = format!("under {:.2} Mpps; dropped: {:?}", flood_rate / 1e6, hairpin.status()?.drops);
    progress(case, met_by, result.bits_per_s, "bit/s", &rest);
    Ok(result.bits_per_s)
}

/// Connections the table takes under the flood of SYNs, and sources of that flood.
const SYN_TABLE: u64 = 20_000;
const SYN_SOURCES: usize = 10 * SYN_TABLE as usize;
/// Sources of the flood at services that limit clients: four times as many as limits remember.
const LIMITED_SOURCES: usize = 1_000_000;
/// SYNs a second, of all threads.
const SYNS_PER_SECOND: u32 = 100_000;

/// iperf3, established before the flood, while 100,000 SYNs a second come from ten times as many sources as the table
/// has entries: met by Hairpin, and by a BPF program that drops everything. Then from a million sources, with limits of clients.
pub(super) fn under_syns(plan: &SuitePlan) -> Result<Vec<ReportRow>> {
    let topology = Topology::create(TopologyOptions::default())?;
    let _servers = Servers::start(&topology)?;
    let limits = "[[service.limit]]\nconnections = 10\nipv6_prefix = 128\n[[service.limit]]\nconcurrent = 100\nipv6_prefix = 128\n";
    let floods = [("tcp under SYNs", SYN_SOURCES, ""), ("tcp under SYNs, clients limited", LIMITED_SOURCES, limits)];
    floods.into_iter().map(|flood| under_syns_of(plan, &topology, flood)).collect()
}

fn under_syns_of(plan: &SuitePlan, topology: &Topology, flood: (&'static str, usize, &str)) -> Result<ReportRow> {
    let case = flood.0;
    let (mut ours, mut bare) = (RepeatedValues::default(), RepeatedValues::default());
    for repetition in 0..plan.repetitions {
        let mut order = [("hairpin", &mut ours), ("bare drop", &mut bare)];
        if repetition % 2 == 1 {
            order.reverse();
        }
        for (met_by, samples) in order {
            samples.push(under_syns_once(plan, topology, flood, met_by)?);
        }
    }
    let beside = BTreeMap::from([("bare drop".to_owned(), bare.median())]);
    Ok(ReportRow::new(case, "bit/s", &ours, &beside, "bare drop", Bar::AtLeast(0.95)))
}

/// The goodput in bit/s of the transfer while the flood lasts.
fn under_syns_once(
    plan: &SuitePlan,
    topology: &Topology,
    (case, sources, limits): (&str, usize, &str),
    met_by: &str,
) -> Result<f64> {
    let link = LinkEnds { to: topology.balancer.mac("flood0")?, from: topology.flooder.mac("eth0")? };
    let by_hairpin = met_by == "hairpin";
    let services =
        [service(), PeerService::tcp("http4", Family::V4, HTTP_PORT), PeerService::tcp("http6", Family::V6, HTTP_PORT)];
    let services = services.map(|service| PeerService { tables: limits.into(), ..service });
    let hairpin_options = HairpinOptions {
        more_interfaces: if by_hairpin { vec!["flood0"] } else { Vec::new() },
        tables: format!("[limits]\nconnections_max = {SYN_TABLE}\n"),
        ..HairpinOptions::default()
    };
    let mut hairpin = Hairpin::start(topology, &services, &hairpin_options)?;
    if !by_hairpin {
        topology.balancer.drop_arrivals("flood0")?;
    }
    let cpus: Vec<usize> = (0..std::thread::available_parallelism()?.get()).collect();
    // Established before: the flood begins a second later and ends after it.
    let iperf = load::iperf_command(&topology.client, vip(Family::V4), IPERF_PORTS[0], &options(plan, 1));
    let mut iperf = topology.client.start(iperf, &topology.scratch.file("iperf3-syns"))?;
    std::thread::sleep(Duration::from_secs(1));
    let targets = [(vip(Family::V4), HTTP_PORT), (vip(Family::V6), HTTP_PORT)];
    let targets = targets.map(|(address, port)| std::net::SocketAddr::new(address, port));
    let each = SYNS_PER_SECOND / cpus.len() as u32;
    let flood = flood::syns(&topology.flooder, "eth0", link, &targets, sources, &cpus, each);
    let ended = iperf.wait(plan.duration + Duration::from_secs(30));
    let flood_rate = flood.stop()?;
    if !by_hairpin {
        topology.balancer.admit_arrivals("flood0")?;
    }
    ensure!(ended?.success(), "iperf3 failed: {}", iperf.log());
    hairpin.process().check()?;
    let goodput = load::goodput_after(&iperf.log(), 1.0)?;
    let status = hairpin.status()?;
    let (connections, room) = status.connections();
    ensure!(connections <= room && room <= SYN_TABLE + 64, "{connections} connections of {room}");
    let capacity = &status.capacity;
    let rest = format!(
        "under {:.0} k SYN/s; {connections} of {room} connections, {} evicted, {} refused",
        flood_rate / 1e3,
        capacity.evicted_total,
        capacity.table_full_total
    );
    progress(case, met_by, goodput, "bit/s", &rest);
    Ok(goodput)
}

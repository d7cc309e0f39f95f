//! `make demo`: the same traffic once routed by the kernel and once balanced by Hairpin, with its status live;
//! then HTTP (`http.rs`) and HTTPS (`https.rs`), and the page on the admin address (`page.rs`).

mod http;
mod https;
mod page;

use crate::suite::report::metric;
use crate::suite::samples::RepeatedValues;
use anyhow::{Context, Result, ensure};
use comfy_table::presets::UTF8_BORDERS_ONLY;
use comfy_table::{CellAlignment, Table};
use hairpin_e2e::load::{self, Amount, IperfOptions, WrkOptions};
use hairpin_e2e::peer::status::ServiceStatus;
use hairpin_e2e::peer::{self, PeerKind, PeerService, RunningPeer, TransportProtocol};
use hairpin_e2e::servers::{ECHO_PORT, HTTP_PORT, IPERF_PORTS, Servers};
use hairpin_e2e::tool::echo;
use hairpin_e2e::topology::{Family, Topology, TopologyOptions, end, server_address, vip};
use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// How long each service is driven.
const DURATION: Duration = Duration::from_secs(4);
/// How often, by turns with the kernel's routing, and how long each time, where it takes all that the machine has. What other
/// work does to single measurements of that, half a minute apart, is more than what either of both does.
const TURNS: usize = 3;
const TURN: Duration = Duration::from_secs(2);
/// The rate of iperf3's UDP, in Mbit/s.
const UDP_MBIT_S: u32 = 200;

/// How a service is driven.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DemoLoad {
    /// wrk, keep-alive, this page.
    Wrk(&'static str),
    /// iperf3, TCP or UDP as the service says.
    Iperf,
    /// Datagrams, one after the other on each of 64 sockets.
    Echo,
    /// Nothing: iperf3's control connection, the companion of a UDP service.
    Control,
}

/// The outcome of one service.
#[derive(Clone, Copy, Debug, Default)]
struct ServiceOutcome {
    requests_per_s: Option<f64>,
    bits_per_s: Option<f64>,
    /// What the kernel's routing to the same server carried, by turns with Hairpin.
    routed_bits_per_s: Option<f64>,
    p99_ms: Option<f64>,
}

fn services() -> Vec<(PeerService, DemoLoad)> {
    let full = |name, family| PeerService {
        server_port: HTTP_PORT,
        full_nat: true,
        balance: "least-connections",
        ..PeerService::tcp(name, family, 8080)
    };
    // iperf3 needs one server for all connections of a test: each client has its server.
    let iperf = |name, family| PeerService { balance: "source-hash", ..PeerService::tcp(name, family, IPERF_PORTS[0]) };
    let udp = |service: PeerService| PeerService { servers: vec![2], ..service };
    vec![
        (PeerService::tcp("http-ipv4", Family::V4, HTTP_PORT), DemoLoad::Wrk("1k")),
        (
            PeerService { balance: "maglev", ..PeerService::tcp("http-ipv6", Family::V6, HTTP_PORT) },
            DemoLoad::Wrk("1k"),
        ),
        (full("http-full-nat-ipv4", Family::V4), DemoLoad::Wrk("128k")),
        (iperf("iperf3-tcp-ipv4", Family::V4), DemoLoad::Iperf),
        (iperf("iperf3-tcp-ipv6", Family::V6), DemoLoad::Iperf),
        (udp(PeerService::udp("iperf3-udp-ipv4", Family::V4, IPERF_PORTS[1])), DemoLoad::Iperf),
        (udp(PeerService::udp("iperf3-udp-ipv6", Family::V6, IPERF_PORTS[1])), DemoLoad::Iperf),
        (PeerService::udp("echo-udp-ipv4", Family::V4, ECHO_PORT), DemoLoad::Echo),
        (
            PeerService { balance: "power-of-two", ..PeerService::udp("echo-udp-ipv6", Family::V6, ECHO_PORT) },
            DemoLoad::Echo,
        ),
        (udp(PeerService::tcp("iperf3-control-ipv4", Family::V4, IPERF_PORTS[1])), DemoLoad::Control),
        (udp(PeerService::tcp("iperf3-control-ipv6", Family::V6, IPERF_PORTS[1])), DemoLoad::Control),
    ]
}

/// Runs the demo: less than two minutes, or until Ctrl-C if it is to `stay`.
pub fn run(stay: bool) -> Result<()> {
    println!("A client, a balancer and four servers, each a network namespace, joined by virtual cards.");
    let topology = Topology::create(TopologyOptions::default())?;
    let _servers = Servers::start(&topology)?;
    let services = services();
    let all: Vec<PeerService> = services.iter().map(|(service, _)| service.clone()).collect();

    println!("\nFirst without a balancer: the same traffic, routed to the servers by the kernel.");
    // The VIP on every server, and a multipath route: the same pattern of who talks to whom.
    let same_ports: Vec<PeerService> =
        all.iter().filter(|service| service.port == service.server_port).cloned().collect();
    let mut routed = peer::start(PeerKind::Multipath, &topology, &same_ports)?;
    let before = drive(&topology, &mut routed, &services)?;
    drop(routed);

    println!("\nNow through Hairpin (iperf3 over TCP by turns with routing):");
    let mut ours = peer::start(PeerKind::Hairpin, &topology, &all)?;
    let socket = ours.hairpin().context("hairpin was started")?.socket();
    check_pages(&topology, &services)?;
    let (done, until) = channel();
    let live = std::thread::spawn(move || show_live(&socket, &until));
    let after = drive(&topology, &mut ours, &services);
    drop(done);
    live.join().ok().context("the live status panicked")?;
    let after = after?;
    // The last counters of the engine are read once a second.
    std::thread::sleep(Duration::from_millis(1200));
    let status = ours.hairpin().context("hairpin was started")?.status()?;
    println!("{}", table(&services, &after, &before, &status.services));
    drop(ours);
    http::run(&topology)?;
    https::run(&topology)?;
    page::run(&topology, stay)
}

/// One page through each HTTP service must be what the servers have.
fn check_pages(topology: &Topology, services: &[(PeerService, DemoLoad)]) -> Result<()> {
    let sent = std::fs::read(topology.scratch.file("pages/10m"))?;
    for (service, _) in services.iter().filter(|(_, load)| matches!(load, DemoLoad::Wrk(_))) {
        let page = load::curl(&topology.client, topology, &service.listen(), "10m", "page")?;
        ensure!(std::fs::read(&page.body)? == sent, "10 MB through {} arrived changed", service.name);
        let server = page.header("x-server").unwrap_or("a server");
        println!("  curl http://{}/10m: 10 MB from {server}, unchanged", service.listen());
    }
    Ok(())
}

fn drive(
    topology: &Topology,
    peer: &mut RunningPeer<'_>,
    services: &[(PeerService, DemoLoad)],
) -> Result<Vec<ServiceOutcome>> {
    let mut outcomes = Vec::new();
    for (service, load) in services {
        let start = Instant::now();
        let bulk = *load == DemoLoad::Iperf && service.transport == TransportProtocol::Tcp;
        if bulk && peer.kind() != PeerKind::Hairpin {
            outcomes.push(ServiceOutcome::default());
            continue;
        }
        let outcome = match load {
            DemoLoad::Wrk(page) => wrk(topology, peer, service, page),
            DemoLoad::Iperf if bulk => iperf_by_turns(topology, service),
            DemoLoad::Iperf => iperf_udp(topology, peer, service),
            DemoLoad::Echo => echo(topology, peer, service),
            DemoLoad::Control => Ok(ServiceOutcome::default()),
        };
        let outcome = outcome.with_context(|| format!("{} ({})", service.name, peer.kind().name()))?;
        if *load != DemoLoad::Control {
            let (requests, bits) = (optional(outcome.requests_per_s, "/s"), optional(outcome.bits_per_s, "bit/s"));
            let seconds = start.elapsed().as_secs_f64();
            println!("  {:20} {requests:>10} {bits:>15}   ({seconds:.1} s)", service.name);
        }
        outcomes.push(outcome);
        peer.check()?;
    }
    Ok(outcomes)
}

fn wrk(
    topology: &Topology,
    peer: &RunningPeer<'_>,
    service: &PeerService,
    page: &'static str,
) -> Result<ServiceOutcome> {
    let options = WrkOptions { page, connections: 64, duration: DURATION, close: false };
    // Without Hairpin ports are not translated.
    let port = if peer.kind() == PeerKind::Hairpin { service.port } else { service.server_port };
    let target = end(vip(service.family), port);
    let wrk = load::wrk(topology, &vec![target; service.servers.len()], &options)?;
    ensure!(wrk.errors == 0, "wrk had {} errors", wrk.errors);
    Ok(ServiceOutcome {
        requests_per_s: Some(wrk.requests_per_s),
        bits_per_s: Some(wrk.bits_per_s),
        p99_ms: Some(wrk.p99_ms),
        ..ServiceOutcome::default()
    })
}

fn iperf_udp(topology: &Topology, peer: &RunningPeer<'_>, service: &PeerService) -> Result<ServiceOutcome> {
    let to = match peer.kind() {
        PeerKind::Hairpin => vip(service.family),
        _ => server_address(service.family, service.servers[0]),
    };
    let udp_mbit_s = Some(UDP_MBIT_S);
    let options = IperfOptions { streams: 4, amount: Amount::For(DURATION), udp_mbit_s, reverse: false };
    let iperf = load::iperf(topology, to, service.port, &options)?;
    Ok(ServiceOutcome { bits_per_s: Some(iperf.bits_per_s), ..ServiceOutcome::default() })
}

/// TCP through Hairpin, and to a server's own address, which is no service's: the kernel routes that.
fn iperf_by_turns(topology: &Topology, service: &PeerService) -> Result<ServiceOutcome> {
    let options = IperfOptions { streams: 4, amount: Amount::For(TURN), udp_mbit_s: None, reverse: false };
    let (mut ours, mut routed) = (RepeatedValues::default(), RepeatedValues::default());
    for _ in 0..TURNS {
        let own = server_address(service.family, service.servers[0]);
        for (to, values) in [(vip(service.family), &mut ours), (own, &mut routed)] {
            values.push(load::iperf(topology, to, service.port, &options)?.bits_per_s);
        }
    }
    Ok(ServiceOutcome {
        bits_per_s: Some(ours.median()),
        routed_bits_per_s: Some(routed.median()),
        ..ServiceOutcome::default()
    })
}

fn echo(topology: &Topology, peer: &RunningPeer<'_>, service: &PeerService) -> Result<ServiceOutcome> {
    let ends = match peer.kind() {
        PeerKind::Hairpin => vec![service.listen()],
        // An echo on a VIP would answer from the server's own address.
        _ => service.server_ends(),
    };
    let to: Vec<SocketAddr> = ends.iter().map(|end| end.parse()).collect::<Result<_, _>>()?;
    let echo = echo::ask(&topology.client, &to, 0, 64, 512, DURATION)?;
    ensure!(echo.answered > 0, "no datagram was answered");
    ensure!(echo.wrong == 0, "{} datagrams came back changed", echo.wrong);
    Ok(ServiceOutcome {
        requests_per_s: Some(echo.rate),
        p99_ms: Some(echo.p99_us / 1000.0),
        ..ServiceOutcome::default()
    })
}

/// Shows `hairpin status` every two seconds on a terminal, every ten elsewhere, until the other side is dropped.
fn show_live(socket: &Path, until: &Receiver<()>) {
    let terminal = std::io::stdout().is_terminal();
    let every = Duration::from_secs(if terminal { 2 } else { 10 });
    while let Err(RecvTimeoutError::Timeout) = until.recv_timeout(every) {
        match peer::status_table(socket) {
            Ok(status) => println!("\n-- hairpin status, without its lines of backends --\n{}\n", short(&status)),
            Err(error) => println!("no status: {error:#}"),
        }
    }
}

/// A status without the lines of single backends, which are indented.
fn short(status: &str) -> String {
    status.trim_end().lines().filter(|line| !line.starts_with("  ")).collect::<Vec<_>>().join("\n")
}

fn optional(value: Option<f64>, unit: &str) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{}{unit}", metric(value)))
}

fn table(
    services: &[(PeerService, DemoLoad)],
    ours: &[ServiceOutcome],
    routed: &[ServiceOutcome],
    status: &[ServiceStatus],
) -> String {
    let mut table = Table::new();
    table.load_style(UTF8_BORDERS_ONLY);
    table.set_header([
        "service",
        "mode",
        "requests/s",
        "routed",
        "bit/s",
        "routed",
        "p99 ms",
        "routed",
        "offloaded",
        "connections per backend",
    ]);
    let milliseconds = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2}"));
    for (((service, load), ours), routed) in services.iter().zip(ours).zip(routed) {
        let status = status.iter().find(|status| status.name == service.name);
        if *load == DemoLoad::Control {
            continue;
        }
        let backends = status.map(|status| {
            let counts = status.backends.iter().map(|backend| backend.connections_total.to_string());
            counts.collect::<Vec<_>>().join(" / ")
        });
        table.add_row([
            service.name.to_owned(),
            format!("{}, {}", if service.full_nat { "full-nat" } else { "nat" }, service.balance),
            optional(ours.requests_per_s, ""),
            optional(routed.requests_per_s, ""),
            optional(ours.bits_per_s, ""),
            optional(ours.routed_bits_per_s.or(routed.bits_per_s), ""),
            milliseconds(ours.p99_ms),
            milliseconds(routed.p99_ms),
            status.map_or_else(|| "-".to_owned(), |status| format!("{:.1} %", status.offloaded_share * 100.0)),
            backends.unwrap_or_else(|| "-".to_owned()),
        ]);
    }
    for column in 2..9 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.to_string()
}

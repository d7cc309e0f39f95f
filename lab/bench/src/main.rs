//! `hairpin-bench`: the demo, the benchmarks, and the network they run in.

#![forbid(unsafe_code)]

use anyhow::Result;
use clap::{Parser, Subcommand};
use hairpin_bench::suite::{self, SuitePlan};
use hairpin_bench::{ageing, calibrate, demo, https, instructions, l4, l7, monitor, tables, user_stack, xdp};
use hairpin_e2e::differential::{self, Differential};
use hairpin_e2e::peer::{self, PeerKind, PeerService};
use hairpin_e2e::servers::{ECHO_PORT, HTTP_PORT, IPERF_PORTS, Servers};
use hairpin_e2e::topology::{Cards, Family, Topology, TopologyOptions};
use hairpin_e2e::{cleanup, namespace, soak};
use hairpin_linux::large_pages::LargePages;
use std::path::PathBuf;

/// Tables are measured with the memory they have in `hairpin`.
#[global_allocator]
static ALLOCATOR: LargePages = LargePages;

/// Network-namespace topologies with real peers: the demo and the benchmarks of Hairpin. Needs root; all traffic stays
/// inside namespaces, which disappear at the end.
#[derive(Debug, Parser)]
#[command(name = "hairpin-bench", version)]
struct CommandLine {
    #[command(subcommand)]
    command: CliCommand,
}

#[derive(Debug, Subcommand)]
enum CliCommand {
    /// Drives curl, wrk, iperf3 and UDP through Hairpin and, beside that, through plain routing.
    Demo {
        /// The last network stays up, with traffic, until Ctrl-C, so that its page can be looked at.
        #[arg(long)]
        stay: bool,
    },
    /// Makes the network, starts servers and a balancer, and waits for Ctrl-C: for trying things by hand.
    Up {
        /// The forwarder in the balancer: routed, multipath, nftables, haproxy, nginx-stream or hairpin.
        #[arg(default_value = "hairpin", value_parser = kind)]
        peer: PeerKind,
        /// Packets as on a wire: no segmentation or checksum offload on the virtual cards.
        #[arg(long)]
        wire: bool,
    },
    /// Measures, beside real peers: the cases of `make bench`. Prints a table; writes one JSON file per benchmark.
    Run {
        /// Which benchmarks; all if none is named.
        names: Vec<String>,
        /// A quick run: two seconds, one repetition.
        #[arg(long)]
        quick: bool,
        /// The directory for the JSON files.
        #[arg(long, default_value = "target/bench")]
        directory: PathBuf,
        /// Lists the benchmarks.
        #[arg(long)]
        list: bool,
    },
    /// Measures connection tables beside their peers: `make bench-tables`. Needs no root and makes no network.
    Tables(tables::TablesArgs),
    /// Measures mechanisms of ageing beside the same work without any: `make bench-ageing`. Needs no root.
    Ageing(ageing::AgeingArgs),
    /// Measures packets a second through one core: `make bench-l4`. Needs no network.
    L4(l4::L4Args),
    /// Counts the worker's instructions for packets, connections and requests: `make bench-instructions`. Needs no root.
    Instructions(instructions::InstructionsArgs),
    /// Simulates what real packets over rings are measured to do, beside it: `make bench-calibrate`. Needs no root.
    Calibrate(calibrate::CalibrateArgs),
    /// Measures HTTP services beside nginx, HAProxy and no balancer, on two cores: `make bench-l7`.
    L7(l7::L7Args),
    /// Measures HTTPS services beside nginx and HAProxy, on two cores: `make bench-https`.
    Https(https::HttpsArgs),
    /// Measures bodies sealed by the kernel beside bodies sealed by the process: `make bench-kernel-tls`. Needs no root.
    KernelTls(https::kernel_tls::KernelTlsArgs),
    /// Measures forwarding in XDP beside tc and the kernel's routing: `make bench-xdp`.
    Xdp(xdp::XdpArgs),
    /// Measures a monitor's processor time beside softflowd's: `make bench-monitor`.
    Monitor(monitor::MonitorArgs),
    /// Measures what Laconic shows in its figures and tables: `make bench-laconic`.
    L7Figures(l7::figures::FiguresArgs),
    /// Measures 8,000 connections beside a proxy on a user-level TCP stack, nginx and HAProxy: `make bench-middleboxes`.
    MiddleboxFigures(l7::figures::middleboxes::MiddleboxArgs),
    /// A proxy on a user-level TCP stack, to compare with. Other commands start it.
    UserStack(user_stack::UserStackArgs),
    /// Sends a corpus of requests through Hairpin, nginx and HAProxy, and prints where they differ.
    Differential {
        /// Requests by HTTP/2 over TLS.
        #[arg(long)]
        http2: bool,
    },
    /// Sends mixed HTTP traffic through Hairpin while it is reloaded and backends come and go: `make soak`.
    Soak(soak::SoakArgs),
    /// Removes what killed runs have left: namespaces, their processes and scratch directories.
    Clean {
        /// Also those of runs that are still going.
        #[arg(long)]
        all: bool,
    },
}

fn kind(name: &str) -> Result<PeerKind, String> {
    let kinds = [
        PeerKind::Routed,
        PeerKind::Multipath,
        PeerKind::Nftables,
        PeerKind::Haproxy,
        PeerKind::NginxStream,
        PeerKind::Hairpin,
        PeerKind::HairpinSetUp,
        PeerKind::HairpinStatic,
    ];
    kinds.into_iter().find(|kind| kind.name() == name).ok_or_else(|| {
        let names = kinds.map(PeerKind::name).join(", ");
        format!("no such peer; there are {names}")
    })
}

fn main() -> Result<()> {
    let arguments = CommandLine::parse();
    cleanup::on_signal()?;
    match arguments.command {
        CliCommand::Demo { stay } => {
            namespace::clean(false)?;
            demo::run(stay)
        }
        CliCommand::Up { peer, wire } => up(peer, if wire { Cards::Wire } else { Cards::Gso }),
        CliCommand::Run { list: true, .. } => {
            suite::names().for_each(|(name, about)| println!("{name:12} {about}"));
            Ok(())
        }
        CliCommand::Run { names, quick, directory, .. } => {
            namespace::clean(false)?;
            suite::run(&names, &if quick { SuitePlan::quick() } else { SuitePlan::full() }, &directory)
        }
        CliCommand::Tables(arguments) => tables::run(&arguments),
        CliCommand::Ageing(arguments) => ageing::run(&arguments),
        CliCommand::L4(arguments) => l4::run(&arguments),
        CliCommand::Instructions(arguments) => instructions::run(&arguments),
        CliCommand::Calibrate(arguments) => calibrate::run(&arguments),
        CliCommand::L7(arguments) => {
            namespace::clean(false)?;
            l7::run(&arguments)
        }
        CliCommand::Https(arguments) => {
            namespace::clean(false)?;
            https::run(&arguments)
        }
        CliCommand::KernelTls(arguments) => https::kernel_tls::run(&arguments),
        CliCommand::Monitor(arguments) => {
            namespace::clean(false)?;
            monitor::run(&arguments)
        }
        CliCommand::Xdp(arguments) => {
            namespace::clean(false)?;
            xdp::run(&arguments)
        }
        CliCommand::L7Figures(arguments) => {
            if !arguments.is_report() {
                namespace::clean(false)?;
            }
            l7::figures::run(&arguments)
        }
        CliCommand::MiddleboxFigures(arguments) => {
            if !arguments.is_report() {
                namespace::clean(false)?;
            }
            l7::figures::middleboxes::run(&arguments)
        }
        CliCommand::UserStack(arguments) => user_stack::run(&arguments),
        CliCommand::Differential { http2 } => {
            namespace::clean(false)?;
            let protocol = if http2 { Differential::Http2 } else { Differential::Http1 };
            print!("{}", differential::document(protocol, &differential::compare(protocol)?)?);
            Ok(())
        }
        CliCommand::Soak(arguments) => {
            namespace::clean(false)?;
            soak::run(&arguments)
        }
        CliCommand::Clean { all } => {
            for name in namespace::clean(all)? {
                println!("removed {name}");
            }
            Ok(())
        }
    }
}

fn up(kind: PeerKind, cards: Cards) -> Result<()> {
    namespace::clean(false)?;
    let topology = Topology::create(TopologyOptions { cards, routers: false })?;
    let _servers = Servers::start(&topology)?;
    let mut services =
        vec![PeerService::tcp("http4", Family::V4, HTTP_PORT), PeerService::tcp("http6", Family::V6, HTTP_PORT)];
    if !matches!(kind, PeerKind::Haproxy | PeerKind::NginxStream) {
        services.push(PeerService::udp("echo4", Family::V4, ECHO_PORT));
        services.push(PeerService::udp("echo6", Family::V6, ECHO_PORT));
    }
    services.push(PeerService { servers: vec![1], ..PeerService::tcp("iperf4", Family::V4, IPERF_PORTS[0]) });
    let peer = peer::start(kind, &topology, &services)?;
    println!("{} in namespaces {}-*; for example:", kind.name(), topology.name);
    for service in &services {
        println!("  {:8} {}/{}", service.name, peer.targets(service)[0], service.transport.name());
    }
    let (client, target) = (topology.client.name(), services[0].listen());
    println!("  nsenter --net=/run/netns/{client} -- curl -si http://{target}/1k -o /dev/null -D -");
    if let Some(hairpin) = peer.hairpin() {
        println!("  hairpin status --socket {}", hairpin.socket().display());
    }
    println!("Ctrl-C removes all of it.");
    loop {
        std::thread::park();
    }
}

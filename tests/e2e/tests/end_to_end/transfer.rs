//! The bytes sent are the bytes received: large pages, many clients at once, UDP; and it is offloaded.

use super::network::{Network, Networks, Which, service};
use anyhow::{Context, Result, bail, ensure};
use hairpin_e2e::command;
use hairpin_e2e::load::{self, Amount, IperfOptions, WrkOptions};
use hairpin_e2e::servers::IPERF_PORTS;
use hairpin_e2e::tool::echo;
use hairpin_e2e::topology::{Family, Topology, vip};
use libtest_mimic::Trial;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

const HTTP: [&str; 4] = ["http4", "http6", "full-http4", "full-http6"];
const ECHO: [&str; 4] = ["echo4", "echo6", "full-echo4", "full-echo6"];
/// Long enough for a hundred datagrams, on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) fn tests(networks: &Arc<Networks>) -> Vec<Trial> {
    let mut tests = Vec::new();
    for which in [Which::Dpdk, Which::Software, Which::Xdp, Which::Wire, Which::Gso] {
        for name in HTTP {
            tests.push(networks.test(&format!("transfer 100 mb {name}"), which, move |network| large(network, name)));
        }
        for name in HTTP {
            tests.push(networks.test(&format!("transfer 200 clients {name}"), which, move |n| many(n, name)));
        }
        for name in ECHO {
            tests.push(networks.test(&format!("transfer udp {name}"), which, move |network| udp(network, name)));
        }
        let share = if matches!(which, Which::Software | Which::Dpdk) { 0.0..=0.0 } else { 0.9..=1.0 };
        for (name, family) in [("iperf4", Family::V4), ("iperf6", Family::V6)] {
            let share = share.clone();
            tests.push(networks.test(&format!("transfer iperf3 {name}"), which, move |network| {
                bulk(&network.topology, name, family)?;
                let status = network.hairpin.status()?;
                let service = status.service(name).context("no such service in the status")?;
                ensure!(
                    share.contains(&service.offloaded_share),
                    "{:.3} of {name}'s packets were offloaded, not {share:?}: {service:?}",
                    service.offloaded_share
                );
                Ok(())
            }));
        }
    }
    tests
}

fn sha256(path: &Path) -> Result<String> {
    let text = command::output(Command::new("sha256sum").arg(path))?;
    Ok(text.split_whitespace().next().context("no checksum")?.to_owned())
}

fn large(network: &mut Network, name: &str) -> Result<()> {
    let topology = &network.topology;
    let page = load::curl(&topology.client, topology, &service(name).listen(), "100m", "body")?;
    let (got, sent) = (sha256(&page.body)?, sha256(&topology.scratch.file("pages/100m"))?);
    ensure!(got == sent, "100 MB through {name} arrived with checksum {got}, not {sent}");
    Ok(())
}

/// 200 clients get a page each, all at once; then 200 connections ask for small pages for a while.
fn many(network: &mut Network, name: &str) -> Result<()> {
    const CLIENTS: usize = 200;
    let topology = &network.topology;
    let target = service(name).listen();
    let bodies = topology.scratch.file(format!("bodies-{name}"));
    std::fs::create_dir_all(&bodies)?;
    let mut curl = topology.client.command("curl");
    curl.args(["--silent", "--show-error", "--fail", "--max-time", "60", "--no-keepalive", "--header"]);
    curl.args(["Connection: close", "--parallel", "--parallel-immediate", "--parallel-max", &CLIENTS.to_string()]);
    curl.arg("--output").arg(bodies.join("#1")).arg(format!("http://{target}/128k?[1-{CLIENTS}]"));
    command::output(&mut curl)?;
    let sent = std::fs::read(topology.scratch.file("pages/128k"))?;
    for client in 1..=CLIENTS {
        let got = std::fs::read(bodies.join(client.to_string())).with_context(|| format!("client {client}"))?;
        ensure!(got == sent, "client {client} of {name} got other bytes ({} of them)", got.len());
    }
    std::fs::remove_dir_all(&bodies)?;
    let options = WrkOptions { page: "1k", connections: CLIENTS, duration: Duration::from_secs(2), close: false };
    let wrk = load::wrk(topology, &vec![target; 4], &options)?;
    ensure!(wrk.requests > CLIENTS as u64, "wrk got only {} answers through {name}", wrk.requests);
    ensure!(wrk.errors == 0, "wrk through {name}: {wrk:?}");
    Ok(())
}

/// Asks a service by so many flows until at least `least` datagrams are answered; all have to be.
pub(crate) fn echoes(topology: &Topology, name: &str, flows: usize, length: usize, least: u64) -> Result<()> {
    let to = service(name).listen().parse()?;
    let (begun, mut answered) = (Instant::now(), 0);
    // Once is enough unless others have the processors.
    while answered < least {
        ensure!(begun.elapsed() < PATIENCE, "{name} answered only {answered} datagrams of {length} bytes");
        let result = echo::ask(&topology.client, &[to], 0, flows, length, Duration::from_millis(500))?;
        ensure!(result.lost == 0 && result.wrong == 0, "{name}, {length} bytes: {result:?}");
        answered += result.answered;
    }
    Ok(())
}

fn udp(network: &mut Network, name: &str) -> Result<()> {
    let before: Vec<u64> = network.servers.echoed();
    for length in [1, 1400] {
        echoes(&network.topology, name, 64, length, 101)?;
    }
    for (server, (before, after)) in before.iter().zip(network.servers.echoed()).enumerate() {
        if after == *before {
            bail!("server{} got no datagram of 128 flows through {name}", server + 1);
        }
    }
    Ok(())
}

/// TCP both ways, and UDP, through the services of iperf3.
pub(crate) fn bulk(topology: &Topology, name: &str, family: Family) -> Result<()> {
    for reverse in [false, true] {
        let options = IperfOptions { streams: 2, amount: Amount::Megabytes(200), udp_mbit_s: None, reverse };
        load::iperf(topology, vip(family), IPERF_PORTS[0], &options).with_context(|| format!("TCP through {name}"))?;
    }
    let options = IperfOptions { streams: 1, amount: Amount::Megabytes(2), udp_mbit_s: Some(20), reverse: false };
    let udp =
        load::iperf(topology, vip(family), IPERF_PORTS[0], &options).with_context(|| format!("UDP through {name}"))?;
    // The server's socket has room for a hundred; on a machine that others use it may be some time until they are read.
    ensure!(udp.lost < 0.5, "UDP through {name}: {udp:?}");
    Ok(())
}

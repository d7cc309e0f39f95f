//! Two nodes; one of them has the VIP and the backends' gateway: examples/keepalived.

use super::network::{Network, Node, Plan, Port, replace};
use super::traffic::{Traffic, new_connections};
use super::{PATIENCE, is_installed, wait_until};
use crate::network::test;
use anyhow::{Context, Result, ensure};
use hairpin_e2e::tool::{http, inside};
use libtest_mimic::Trial;
use nix::sys::signal::Signal;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

const KEEPALIVED: &str = include_str!("../../../../../examples/keepalived/keepalived.conf");
const HAIRPIN: &str = include_str!("../../../../../examples/keepalived/hairpin.toml");
/// The moving part: interface and address.
const MOVES: [(&str, &str); 5] = [
    ("eth0", "192.0.2.10/"),
    ("eth0", "2001:db8::10/"),
    ("eth1", "10.0.2.1/"),
    ("eth1", "10.0.2.9/"),
    ("eth1", "fd00:2::1/"),
];
/// The example's interval times fall, less a check that may have failed just before.
const FALL: Duration = Duration::from_secs(8);

pub(super) fn tests() -> Vec<Trial> {
    vec![
        test("availability: keepalived, a restart of Hairpin moves nothing", restart),
        test("availability: keepalived, the other node takes over", take_over),
        test("availability: keepalived, no node ready, nothing moves", none_ready),
    ]
}

fn vips() -> Result<Vec<SocketAddr>> {
    Ok(vec!["192.0.2.10:80".parse()?, "[2001:db8::10]:80".parse()?])
}

fn plan() -> Plan<'static> {
    let port = |interface, bridge, addresses, routes| Port { interface, bridge, addresses, routes };
    Plan {
        configuration: HAIRPIN,
        client: port("eth0", "outside", vec!["192.0.2.100/24".into(), "2001:db8::100/64".into()], vec![]),
        node: |number| {
            let host = number + 1;
            let addresses = |v4: &str, v6: &str| vec![format!("{v4}.{host}/24"), format!("{v6}::{host}/64")];
            let port = |interface, bridge, addresses| Port { interface, bridge, addresses, routes: vec![] };
            vec![
                port("eth0", "outside", addresses("192.0.2", "2001:db8")),
                port("eth1", "inside", addresses("10.0.2", "fd00:2")),
            ]
        },
        server: |number| Port {
            interface: "eth0",
            bridge: "inside",
            addresses: vec![format!("10.0.2.1{number}/24"), format!("fd00:2::1{number}/64")],
            routes: vec!["default via 10.0.2.1", "default via fd00:2::1"],
        },
    }
}

/// Both nodes with keepalived, one of them with the addresses; `None` without keepalived.
fn start() -> Result<Option<(Network, usize)>> {
    if !is_installed("keepalived", "keepalived") {
        return Ok(None);
    }
    let mut network = Network::new(&plan())?;
    for node in &mut network.nodes {
        let program = node.scratch.file("hairpin");
        let text = replace(KEEPALIVED, "/usr/bin/hairpin", &program.to_string_lossy())?;
        let file = node.scratch.write("keepalived.conf", &text)?;
        let mut arguments: Vec<String> =
            ["--dont-fork", "--log-console", "--log-detail", "--vrrp"].map(str::to_owned).to_vec();
        for (option, file) in
            [("--use-file", file), ("--pid", node.scratch.file("pid")), ("--vrrp_pid", node.scratch.file("pid-vrrp"))]
        {
            arguments.push(format!("{option}={}", file.display()));
        }
        node.daemon("keepalived", &arguments)?;
    }
    let begun = network.await_health().and_then(|()| settled(&network));
    let begun = begun.and_then(|owner| network.await_service(&vips()?).map(|()| owner));
    match begun {
        Ok(owner) => Ok(Some((network, owner))),
        Err(error) => Err(network.judge(Err(error)).err().context("an error")?),
    }
}

/// Whether a node has all of the addresses, or none of them; `None`: something in between.
fn has(node: &Node) -> Result<Option<bool>> {
    let mut count = 0;
    for (interface, address) in MOVES {
        let shown = node.namespace.script(&format!("ip address show dev {interface}\n"))?;
        count += usize::from(shown.contains(&format!(" {address}")));
    }
    Ok(match count {
        0 => Some(false),
        _ if count == MOVES.len() => Some(true),
        _ => None,
    })
}

/// Which node has the addresses, if just one does.
fn owner(network: &Network) -> Result<Option<usize>> {
    Ok(match (has(&network.nodes[0])?, has(&network.nodes[1])?) {
        (Some(true), Some(false)) => Some(0),
        (Some(false), Some(true)) => Some(1),
        _ => None,
    })
}

/// Waits until one node has the addresses; which.
fn settled(network: &Network) -> Result<usize> {
    wait_until("one node has the addresses", || Ok(owner(network)?.is_some()))?;
    owner(network)?.context("the addresses move on")
}

/// Waits until that node has them.
fn moves_to(network: &Network, node: usize) -> Result<()> {
    wait_until(&format!("node {} has the addresses", node + 1), || Ok(owner(network)? == Some(node)))
}

fn restart() -> Result<()> {
    let Some((mut network, owner)) = start()? else { return Ok(()) };
    let result = restarted(&mut network, owner);
    network.judge(result)
}

fn restarted(network: &mut Network, node: usize) -> Result<()> {
    let traffic = Traffic::start(&network.client, &network.scratch, &vips()?)?;
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        let begun = Instant::now();
        network.nodes[node].end_hairpin(signal)?;
        network.nodes[node].start_hairpin()?;
        let took = begun.elapsed();
        network.await_health()?;
        new_connections(&network.client, &network.scratch, &vips()?, 5).with_context(|| format!("after {signal}"))?;
        // On a machine that is so slow it would be right to move them.
        ensure!(took > FALL || owner(network)? == Some(node), "the addresses have moved after {signal} and {took:?}");
    }
    traffic.judge()
}

fn take_over() -> Result<()> {
    let Some((mut network, owner)) = start()? else { return Ok(()) };
    let result = taken_over(&mut network, owner);
    network.judge(result)
}

fn taken_over(network: &mut Network, first: usize) -> Result<()> {
    let second = 1 - first;
    let site: SocketAddr = "192.0.2.10:8080".parse()?;
    let mut kept = inside::run(&network.client, move || {
        let mut kept = http::HttpConnection::open(site, PATIENCE)?;
        kept.get("1k", false, PATIENCE)?;
        Ok(kept)
    })?;
    let traffic = Traffic::start(&network.client, &network.scratch, &vips()?)?;
    network.nodes[first].end_hairpin(Signal::SIGKILL)?;
    moves_to(network, second).context("Hairpin has ended, and does not come back")?;
    new_connections(&network.client, &network.scratch, &vips()?, 10)?;
    new_connections(&network.client, &network.scratch, &[site], 10).context("full NAT")?;
    // Connections that no node can take over end, and are reset.
    let told = kept.get("1k", false, PATIENCE).err().context("an HTTP connection went on at another node")?;
    ensure!(format!("{told:#}").contains("reset"), "an HTTP connection that cannot go on ended with {told:#}");
    traffic.judge().context("Hairpin has ended, and does not come back")?;

    network.nodes[first].start_hairpin()?;
    network.await_health()?;
    ensure!(owner(network)? == Some(second), "the addresses went back by themselves");

    let traffic = Traffic::start(&network.client, &network.scratch, &vips()?)?;
    network.nodes[second].cables("down")?;
    moves_to_living(network, first).context("the node is dead")?;
    new_connections(&network.client, &network.scratch, &vips()?, 10)?;
    traffic.judge().context("the node is dead")
}

/// Waits until a node has the addresses, where the other node cannot hear that it has lost them.
fn moves_to_living(network: &Network, node: usize) -> Result<()> {
    wait_until(&format!("node {} has the addresses", node + 1), || Ok(has(&network.nodes[node])? == Some(true)))
}

fn none_ready() -> Result<()> {
    let Some((mut network, owner)) = start()? else { return Ok(()) };
    let result = nothing_moved(&mut network, owner);
    network.judge(result)
}

fn nothing_moved(network: &mut Network, node: usize) -> Result<()> {
    let traffic = Traffic::start(&network.client, &network.scratch, &vips()?)?;
    // Offloaded: the kernel forwards it without the process.
    network.nodes[1 - node].end_hairpin(Signal::SIGKILL)?;
    network.nodes[node].end_hairpin(Signal::SIGKILL)?;
    for index in 0..2 {
        wait_until("keepalived has noticed", || {
            Ok(network.nodes[index].daemons[0].log().contains("Changing effective priority from 100 to 50"))
        })?;
    }
    ensure!(owner(network)? == Some(node), "the addresses have moved, to where nothing is better");
    traffic.judge()?;
    network.nodes[node].start_hairpin()?;
    new_connections(&network.client, &network.scratch, &vips()?, 5)
}

//! Path MTU: a 1400-byte link somewhere, segments of 1460 bytes, and transfers that have to complete (RFC 1191,
//! RFC 8201).

use super::network::{Network, Networks, RECORDER_PORT, Which, service};
use anyhow::{Result, ensure};
use hairpin_e2e::command;
use hairpin_e2e::load::{self, Amount, IperfOptions};
use hairpin_e2e::namespace::Namespace;
use hairpin_e2e::servers::IPERF_PORTS;
use hairpin_e2e::tool::recorder::{Recorder, SUM_OF_NOTHING, sum};
use hairpin_e2e::topology::{Family, Topology, vip};
use libtest_mimic::Trial;
use std::sync::Arc;

const NARROW: u16 = 1400;
const WIDE: u16 = 1500;

/// The place of the narrow link. Both of its ends are narrow (a virtual card takes nothing larger than its own MTU, except
/// super-packets), and neither is an end of a connection, so that the ends announce segments of 1460 bytes.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// Between the balancer and the router at the client.
    BalancerToClient,
    /// Between the balancer and the router at the server.
    BalancerToServer,
    /// Between the router and the client, whose own card stays wide.
    RouterToClient,
    /// Between the router and the server, whose own card stays wide.
    RouterToServer,
}

impl Place {
    fn interfaces(self, topology: &Topology) -> Vec<(&Namespace, &'static str)> {
        let (client, server) = topology.routers.as_ref().expect("this network has routers");
        match self {
            Place::BalancerToClient => vec![(&topology.balancer, "client0"), (client, "outer")],
            Place::BalancerToServer => vec![(&topology.balancer, "server1"), (server, "outer")],
            // Here it is the kernel that forwards, and it keeps to its own card's MTU.
            Place::RouterToClient => vec![(client, "inner")],
            Place::RouterToServer => vec![(server, "inner")],
        }
    }
}

pub(crate) fn tests(networks: &Arc<Networks>) -> Vec<Trial> {
    let mut tests = Vec::new();
    for which in [Which::GsoRouters, Which::WireRouters] {
        for place in [Place::BalancerToClient, Place::RouterToClient] {
            for name in ["http4", "http6", "full-http4", "full-http6", "web4", "web6"] {
                let title = format!("mtu 1400 {place:?}: download {name}");
                tests.push(networks.test(&title, which, move |network| download(network, place, name)));
            }
        }
        for place in [Place::BalancerToServer, Place::RouterToServer] {
            for family in [Family::V4, Family::V6] {
                let title = format!("mtu 1400 {place:?}: upload {}", family.name());
                tests.push(networks.test(&title, which, move |network| upload(network, place, family)));
                let title = format!("mtu 1400 {place:?}: upload {} by HTTP", family.name());
                tests.push(networks.test(&title, which, move |network| post(network, place, family)));
            }
        }
    }
    tests
}

/// Runs `body` with a narrow link at `place`.
fn narrow(network: &mut Network, place: Place, body: impl FnOnce(&mut Network) -> Result<()>) -> Result<()> {
    let set = |network: &Network, mtu| {
        let mut interfaces = place.interfaces(&network.topology).into_iter();
        interfaces.try_for_each(|(namespace, interface)| network.topology.set_mtu(namespace, interface, mtu))
    };
    set(network, NARROW)?;
    let result = body(network);
    set(network, WIDE)?;
    result
}

fn download(network: &mut Network, place: Place, name: &str) -> Result<()> {
    narrow(network, place, |network| {
        let topology = &network.topology;
        let page = load::curl(&topology.client, topology, &service(name).listen(), "10m", "mtu")?;
        let same = std::fs::read(page.body)? == std::fs::read(topology.scratch.file("pages/10m"))?;
        ensure!(same, "10 MB through {name} arrived changed");
        Ok(())
    })
}

fn upload(network: &mut Network, place: Place, family: Family) -> Result<()> {
    narrow(network, place, |network| {
        // A transfer whose large segments vanish stands still, and would take longer than it is waited for.
        let options = IperfOptions { streams: 1, amount: Amount::Megabytes(50), udp_mbit_s: None, reverse: false };
        load::iperf(&network.topology, vip(family), IPERF_PORTS[0], &options).map(drop)
    })
}

/// Segments that went through the splice are too big for what lies behind it: the client learns it, in its own numbers.
fn post(network: &mut Network, place: Place, family: Family) -> Result<()> {
    narrow(network, place, |network| upload_by_http(&network.topology, family, "10m"))
}

/// Sends a page to the recorder of server1 through an HTTP service of the network, and compares what has arrived.
pub(crate) fn upload_by_http(topology: &Topology, family: Family, page: &str) -> Result<()> {
    let _recorder = Recorder::start(&topology.servers[0], RECORDER_PORT, "one")?;
    let page = topology.scratch.file(format!("pages/{page}"));
    let up = service(if family == Family::V4 { "up4" } else { "up6" });
    let mut curl = topology.client.command("curl");
    curl.args(["--silent", "--show-error", "--fail", "--globoff", "--max-time", "60", "--output", "/dev/null"]);
    curl.args(["--dump-header", "-", "--upload-file"]).arg(&page).arg(format!("http://{}/up", up.listen()));
    let said = command::output(&mut curl)?;
    let sent = std::fs::read(&page)?;
    let expected = format!("X-Body: {}:{:016x}", sent.len(), sum(SUM_OF_NOTHING, &sent));
    ensure!(said.contains(&expected), "{} bytes went up as {said}, not {expected}", sent.len());
    Ok(())
}

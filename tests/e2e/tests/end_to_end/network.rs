//! Networks the tests share.

use crate::dpdk::{PORTS, is_built_in, whole};
use crate::lane;
use anyhow::{Result, anyhow, bail};
use hairpin_e2e::peer::{Hairpin, HairpinOptions, PeerService};
use hairpin_e2e::servers::{ECHO_PORT, HTTP_PORT, IPERF_PORTS, Servers};
use hairpin_e2e::topology::{Cards, Family, Topology, TopologyOptions};
use libtest_mimic::Trial;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A network with a Hairpin in it. (Dropped in this order.)
pub(crate) struct Network {
    pub(crate) hairpin: Hairpin,
    pub(crate) servers: Servers,
    pub(crate) topology: Topology,
}

/// The network a test needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    /// Offloading cards.
    Gso,
    /// Plain cards.
    Wire,
    /// Plain cards that take redirected frames; programs in XDP.
    Xdp,
    /// Offloading cards, and nothing offloaded to the kernel engine.
    Software,
    /// DPDK's ports over packet sockets; plain cards.
    Dpdk,
    /// Routers in the middle, offloading cards.
    GsoRouters,
    /// Routers in the middle, plain cards.
    WireRouters,
}

/// The networks made so far; one at a time exists.
#[derive(Default)]
pub(crate) struct Networks(Mutex<Option<(Which, Network)>>);

impl Networks {
    /// Runs `body` with the network `which`, making it if it is not there.
    pub(crate) fn with(&self, which: Which, body: impl FnOnce(&mut Network) -> Result<()>) -> Result<()> {
        if which == Which::Dpdk && !is_built_in()? {
            return Ok(());
        }
        let mut current: MutexGuard<'_, Option<(Which, Network)>> =
            self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if current.as_ref().is_none_or(|(have, _)| *have != which) {
            // The old one goes before the new one comes.
            *current = None;
            *current = Some((which, Network::create(which)?));
        }
        let (_, network) = current.as_mut().ok_or_else(|| anyhow!("no network"))?;
        let result = body(network).and_then(|()| network.hairpin.process().check());
        let result = result.and_then(|()| if which == Which::Dpdk { whole(&network.hairpin) } else { Ok(()) });
        network.servers.check()?;
        if let Err(error) = result {
            let status = network.hairpin.status_table().unwrap_or_else(|error| format!("no status: {error:#}"));
            let log = network.hairpin.process().log();
            // The next test gets a fresh one.
            *current = None;
            // The error comes last: of a long output the end is what is kept and read.
            bail!("hairpin printed:\n{log}\nhairpin status:\n{status}\n{error:#}");
        }
        Ok(())
    }

    /// A test in one of the networks.
    pub(crate) fn test(
        self: &Arc<Networks>,
        name: &str,
        which: Which,
        body: impl FnOnce(&mut Network) -> Result<()> + Send + 'static,
    ) -> Trial {
        let networks = self.clone();
        lane::SHARED.test(format!("{name} ({which:?})").to_lowercase(), move || networks.with(which, body))
    }
}

impl Network {
    fn create(which: Which) -> Result<Network> {
        let cards = match which {
            Which::Wire | Which::WireRouters | Which::Dpdk => Cards::Wire,
            Which::Xdp => Cards::Xdp,
            Which::Gso | Which::Software | Which::GsoRouters => Cards::Gso,
        };
        let routers = matches!(which, Which::GsoRouters | Which::WireRouters);
        let topology = Topology::create(TopologyOptions { cards, routers })?;
        let servers = Servers::start(&topology)?;
        let policy = if matches!(which, Which::Software | Which::Dpdk) { "never" } else { "always" };
        let attach = if which == Which::Xdp { ATTACH_XDP } else { "" };
        let tables = format!("[offload]\npolicy = \"{policy}\"\n{attach}");
        let dpdk = if which == Which::Dpdk { PORTS } else { "" };
        let options = HairpinOptions { tables, dpdk, ..HairpinOptions::default() };
        let mut services = services();
        if routers || which == Which::Xdp {
            services.extend(http_services());
        }
        // Behind the router is server1 alone.
        if routers {
            services.iter_mut().for_each(|service| service.servers = vec![1]);
        }
        let hairpin = Hairpin::start(&topology, &services, &options)?;
        Ok(Network { hairpin, servers, topology })
    }
}

/// A test that makes what it needs itself.
pub(crate) fn test(name: &str, body: impl FnOnce() -> Result<()> + Send + 'static) -> Trial {
    lane::OWN.test(name, body)
}

/// [`test`] with DPDK.
pub(crate) fn dpdk_test(name: &str, body: fn() -> Result<()>) -> Trial {
    lane::DPDK.test(name, body)
}

/// Programs in XDP.
pub(crate) const ATTACH_XDP: &str = "[linux]\nattach = \"xdp\"\n";

/// The full-NAT services' ports.
pub(crate) const FULL_NAT_HTTP_PORT: u16 = 8080;
/// The full-NAT services' ports.
pub(crate) const FULL_NAT_ECHO_PORT: u16 = 8007;

/// All services of the shared networks.
pub(crate) fn services() -> Vec<PeerService> {
    let mut services = Vec::new();
    for (family, names) in [
        (Family::V4, ["http4", "full-http4", "echo4", "full-echo4", "iperf4", "iperf-udp4"]),
        (Family::V6, ["http6", "full-http6", "echo6", "full-echo6", "iperf6", "iperf-udp6"]),
    ] {
        let [http, full_http, echo, full_echo, iperf, iperf_udp] = names;
        services.push(PeerService::tcp(http, family, HTTP_PORT));
        services.push(PeerService {
            server_port: HTTP_PORT,
            full_nat: true,
            ..PeerService::tcp(full_http, family, FULL_NAT_HTTP_PORT)
        });
        services.push(PeerService::udp(echo, family, ECHO_PORT));
        services.push(PeerService {
            server_port: ECHO_PORT,
            full_nat: true,
            ..PeerService::udp(full_echo, family, FULL_NAT_ECHO_PORT)
        });
        services.push(PeerService { servers: vec![1], ..PeerService::tcp(iperf, family, IPERF_PORTS[0]) });
        services.push(PeerService { servers: vec![1], ..PeerService::udp(iperf_udp, family, IPERF_PORTS[0]) });
    }
    services.extend(super::balance::services());
    services
}

/// HTTP services of the networks with routers and in XDP: to a web server, and to a [recorder](RECORDER_PORT) for what goes up.
pub(crate) fn http_services() -> Vec<PeerService> {
    let of = |family, name, port, server_port| PeerService {
        family,
        server_port,
        servers: vec![1],
        ..PeerService::http(name, port)
    };
    vec![
        of(Family::V4, "web4", 8081, HTTP_PORT),
        of(Family::V6, "web6", 8081, HTTP_PORT),
        of(Family::V4, "up4", 8082, RECORDER_PORT),
        of(Family::V6, "up6", 8082, RECORDER_PORT),
    ]
}

/// The address of server1's recorder for tests that start one.
pub(crate) const RECORDER_PORT: u16 = 8090;

/// The service of that name.
pub(crate) fn service(name: &str) -> PeerService {
    services()
        .into_iter()
        .chain(http_services())
        .find(|service| service.name == name)
        .expect("trials name services there are")
}

//! Hairpin, nginx and HAProxy, each of which ends TLS on one core.

use crate::l7::peers::{BALANCER_CPU, OTHER_CPU, server, steer_all};
use anyhow::{Context, Result};
use hairpin_e2e::peer::{Hairpin, HairpinOptions, PeerService};
use hairpin_e2e::process::Process;
use hairpin_e2e::servers::web::certificate;
use hairpin_e2e::servers::{HTTP_PORT, listening};
use hairpin_e2e::topology::{Cards, Family, Topology, TopologyOptions, end, server_address, vip};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

const START_TIMEOUT: Duration = Duration::from_secs(20);
/// The name that clients ask for.
pub(super) const NAME: &str = "web.test";

/// The process that ends TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Terminator {
    Hairpin,
    Nginx,
    Haproxy,
}

impl Terminator {
    pub(super) const ALL: [Terminator; 3] = [Terminator::Hairpin, Terminator::Nginx, Terminator::Haproxy];

    /// Its name in results.
    pub(super) fn name(self) -> &'static str {
        match self {
            Terminator::Hairpin => "hairpin",
            Terminator::Nginx => "nginx",
            Terminator::Haproxy => "haproxy",
        }
    }

    fn port(self) -> u16 {
        match self {
            Terminator::Hairpin => 8443,
            Terminator::Nginx => 8444,
            Terminator::Haproxy => 8445,
        }
    }

    /// The address that clients connect to.
    pub(super) fn target(self) -> SocketAddr {
        SocketAddr::new(vip(Family::V4), self.port())
    }
}

/// The network with its server.
pub(super) struct HttpsNetwork {
    _server: Process,
    pub(super) certificate: PathBuf,
    pub(super) topology: Topology,
}

/// A peer that runs; gone when dropped.
pub(super) enum RunningTerminator {
    Process(Process),
    Hairpin(Box<Hairpin>),
}

impl RunningTerminator {
    /// Its process. (nginx: the one that serves.)
    pub(super) fn process(&mut self) -> &mut Process {
        match self {
            RunningTerminator::Process(process) => process,
            RunningTerminator::Hairpin(hairpin) => hairpin.process(),
        }
    }
}

impl HttpsNetwork {
    /// Makes it.
    pub(super) fn create() -> Result<HttpsNetwork> {
        let topology = Topology::create(TopologyOptions { cards: Cards::Gso, ..TopologyOptions::default() })?;
        steer_all(&topology)?;
        let certificate = certificate(&topology, "web.pem", &[NAME])?;
        let (server, _) = server(&topology)?;
        Ok(HttpsNetwork { _server: server, certificate, topology })
    }

    /// Starts a peer on the balancer's core.
    pub(super) fn start(&self, peer: Terminator) -> Result<RunningTerminator> {
        let topology = &self.topology;
        let configured = |text: &str, name: &str| {
            let directory = topology.scratch.file(format!("https-{}", peer.name()));
            std::fs::create_dir_all(&directory)?;
            let text = text
                .replace("LISTEN", &peer.target().to_string())
                .replace("SERVER", &end(server_address(Family::V4, 1), HTTP_PORT))
                .replace("CERTIFICATE", &self.certificate.display().to_string())
                .replace("DIRECTORY", &directory.display().to_string());
            topology.scratch.write(name, &text)
        };
        let command = match peer {
            Terminator::Hairpin => {
                let service =
                    PeerService { servers: vec![1], ..PeerService::https("https", peer.port(), &self.certificate) };
                let options = HairpinOptions { cpus: BALANCER_CPU, ..HairpinOptions::default() };
                return Ok(RunningTerminator::Hairpin(Box::new(Hairpin::start(topology, &[service], &options)?)));
            }
            Terminator::Nginx => {
                let mut nginx = topology.balancer.command_on(BALANCER_CPU, "nginx");
                nginx.arg("-c").arg(configured(include_str!("nginx.conf"), "https-nginx.conf")?);
                nginx.arg("-e").arg(topology.scratch.file("https-nginx.error.log"));
                nginx
            }
            Terminator::Haproxy => {
                let mut haproxy = topology.balancer.command_on(BALANCER_CPU, "haproxy");
                haproxy.arg("-db").arg("-f").arg(configured(include_str!("haproxy.cfg"), "https-haproxy.cfg")?);
                haproxy
            }
        };
        let log = topology.scratch.file(format!("https-{}.log", peer.name()));
        let mut process = topology.balancer.start(command, &log)?;
        let name = topology.balancer.name().to_owned();
        process.wait_until(START_TIMEOUT, || listening(&name, &[peer.port()])).context(peer.name())?;
        Ok(RunningTerminator::Process(process))
    }

    /// The client's core.
    pub(super) fn client_cpu() -> &'static str {
        OTHER_CPU
    }
}

//! Hairpin, nginx, HAProxy and nothing at all, each as good as it can be on one core.

use super::pages;
use anyhow::{Context, Result};
use hairpin_e2e::command;
use hairpin_e2e::namespace::Namespace;
use hairpin_e2e::peer::{Hairpin, HairpinOptions, PeerService};
use hairpin_e2e::process::Process;
use hairpin_e2e::servers::{HTTP_PORT, listening};
use hairpin_e2e::topology::{Cards, Family, Topology, TopologyOptions, end, server_address, vip};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// The balancer's core, and that of client and server.
pub(crate) const BALANCER_CPU: &str = "1";
/// The client's and the server's.
pub(crate) const OTHER_CPU: &str = "0";

/// The address of the user-level stack, which the balancer's kernel routes to its device; and that device.
const USER_STACK_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 102, 1));
const USER_STACK_DEVICE: &str = "user-stack";

const START_TIMEOUT: Duration = Duration::from_secs(20);
/// Connections that the peers' configurations have room for as they are.
const CONNECTIONS_USUAL: usize = 4000;

/// The process between clients and servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Intermediary {
    Hairpin,
    Nginx,
    Haproxy,
    /// The kernel routes to the server.
    Direct,
    /// Hairpin with an access log.
    Logged,
    /// A proxy on a user-level TCP stack ([`crate::user_stack`]).
    UserStack,
}

impl Intermediary {
    pub(super) const ALL: [Intermediary; 4] =
        [Intermediary::Hairpin, Intermediary::Nginx, Intermediary::Haproxy, Intermediary::Direct];

    /// Its name in results.
    pub(super) fn name(self) -> &'static str {
        match self {
            Intermediary::Hairpin => "hairpin",
            Intermediary::Nginx => "nginx",
            Intermediary::Haproxy => "haproxy",
            Intermediary::Direct => "none",
            Intermediary::Logged => "logged",
            Intermediary::UserStack => "user-stack",
        }
    }

    fn port(self) -> u16 {
        match self {
            Intermediary::Hairpin => 8000,
            Intermediary::Nginx => 8001,
            Intermediary::Haproxy => 8002,
            Intermediary::Direct => HTTP_PORT,
            Intermediary::Logged => 8003,
            Intermediary::UserStack => 8004,
        }
    }

    /// The address that clients connect to.
    pub(super) fn target(self) -> SocketAddr {
        let address = match self {
            Intermediary::Direct => server_address(Family::V4, 1),
            Intermediary::UserStack => USER_STACK_ADDRESS,
            _ => vip(Family::V4),
        };
        SocketAddr::new(address, self.port())
    }
}

/// The network with its server.
pub(super) struct BenchNetwork {
    _server: Process,
    pub(super) topology: Topology,
    /// The script of the mix.
    pub(super) mix: PathBuf,
}

/// A peer that runs; gone when dropped.
pub(super) enum RunningIntermediary {
    Process(Process),
    Hairpin(Box<Hairpin>),
    Direct,
}

impl RunningIntermediary {
    /// Fails, with what it printed, if its program has ended.
    pub(super) fn check(&mut self) -> Result<()> {
        match self {
            RunningIntermediary::Process(process) => process.check(),
            RunningIntermediary::Hairpin(hairpin) => hairpin.process().check(),
            RunningIntermediary::Direct => Ok(()),
        }
    }

    /// Ends it, and waits for its end.
    pub(super) fn stop(&mut self) -> Result<()> {
        match self {
            RunningIntermediary::Process(process) => process.stop().map(drop),
            RunningIntermediary::Hairpin(hairpin) => hairpin.process().stop().map(drop),
            RunningIntermediary::Direct => Ok(()),
        }
    }
}

impl BenchNetwork {
    /// Makes it.
    pub(super) fn create(cards: Cards) -> Result<BenchNetwork> {
        let topology = Topology::create(TopologyOptions { cards, ..TopologyOptions::default() })?;
        steer_all(&topology)?;
        let (server, mix) = server(&topology)?;
        Ok(BenchNetwork { _server: server, topology, mix })
    }

    /// Starts a peer on the balancer's core.
    pub(super) fn start(&self, peer: Intermediary) -> Result<RunningIntermediary> {
        self.start_for(peer, CONNECTIONS_USUAL, &[])
    }

    /// [`BenchNetwork::start`] with room for so many clients' connections, by the command `before`, if there is one: `env`,
    /// `valgrind` or the like (of Hairpin it is left out).
    pub(super) fn start_for(
        &self,
        peer: Intermediary,
        connections: usize,
        before: &[&str],
    ) -> Result<RunningIntermediary> {
        let topology = &self.topology;
        let room = connections.max(CONNECTIONS_USUAL);
        let listen = peer.target().to_string();
        let server = end(server_address(Family::V4, 1), HTTP_PORT);
        let configured = |text: &str, name: &str| {
            let directory = topology.scratch.file(format!("l7-{}", peer.name()));
            std::fs::create_dir_all(&directory)?;
            let text = text.replace("LISTEN", &listen).replace("SERVER", &server);
            let text = text.replace(&format!("maxconn {CONNECTIONS_USUAL}"), &format!("maxconn {room}"));
            // What is started by another program, which looks at one process, is that process.
            let one = if before.is_empty() { "daemon off;" } else { "daemon off; master_process off;" };
            let text = text.replace("daemon off;", one);
            let text =
                text.replace("worker_connections 16384;", &format!("worker_connections {};", 16384.max(3 * room)));
            topology.scratch.write(name, &text.replace("DIRECTORY", &directory.display().to_string()))
        };
        let program = |name: &str| {
            let mut command = topology.balancer.command("prlimit");
            command.arg(format!("--nofile={}", 3 * room + 4096)).args(["taskset", "-c", BALANCER_CPU]);
            command.args(before).arg(name);
            command
        };
        let command = match peer {
            Intermediary::Direct => return Ok(RunningIntermediary::Direct),
            Intermediary::Hairpin | Intermediary::Logged => {
                let service =
                    PeerService { servers: vec![1], server_port: HTTP_PORT, ..PeerService::http("l7", peer.port()) };
                let log = topology.scratch.file("l7-access.log");
                // What is measured is not the disk, on which earlier runs' logs would pile up.
                let _ = std::fs::remove_file(&log);
                let is_logged = peer == Intermediary::Logged;
                let tables =
                    if is_logged { format!("[access_log]\nto = \"{}\"\n", log.display()) } else { String::new() };
                let options = HairpinOptions { cpus: BALANCER_CPU, tables, ..HairpinOptions::default() };
                return Ok(RunningIntermediary::Hairpin(Box::new(Hairpin::start(topology, &[service], &options)?)));
            }
            Intermediary::Nginx => {
                let mut nginx = program("nginx");
                nginx.arg("-c").arg(configured(hairpin_e2e::differential::NGINX, "l7-nginx.conf")?);
                nginx.arg("-e").arg(topology.scratch.file("l7-nginx.error.log"));
                nginx
            }
            Intermediary::Haproxy => {
                let mut haproxy = program("haproxy");
                haproxy.arg("-db").arg("-f").arg(configured(hairpin_e2e::differential::HAPROXY, "l7-haproxy.cfg")?);
                haproxy
            }
            Intermediary::UserStack => {
                let own = std::env::current_exe().context("this program")?;
                let mut proxy = program(&own.to_string_lossy());
                proxy.args(["user-stack", "--device", USER_STACK_DEVICE, "--listen", &listen, "--backend", &server]);
                proxy
            }
        };
        let log = topology.scratch.file(format!("l7-{}.log", peer.name()));
        let mut process = topology.balancer.start(command, &log)?;
        let name = topology.balancer.name().to_owned();
        if peer == Intermediary::UserStack {
            let device =
                || topology.balancer.interfaces().is_ok_and(|all| all.iter().any(|name| name == USER_STACK_DEVICE));
            process.wait_until(START_TIMEOUT, device).context(peer.name())?;
            let to = USER_STACK_ADDRESS;
            topology.balancer.script(&format!(
                "ip link set dev {USER_STACK_DEVICE} mtu 1500 txqueuelen 10000 up\nip route replace {to} dev {USER_STACK_DEVICE}\n"
            ))?;
        } else {
            process.wait_until(START_TIMEOUT, || listening(&name, &[peer.port()])).context(peer.name())?;
        }
        Ok(RunningIntermediary::Process(process))
    }
}

/// Has the balancer's core do the work on what arrives at the balancer, and the other core the rest.
pub(crate) fn steer_all(topology: &Topology) -> Result<()> {
    for namespace in topology.namespaces() {
        let is_balancer = namespace.name() == topology.balancer.name();
        steer(namespace, if is_balancer { BALANCER_CPU } else { OTHER_CPU })?;
    }
    Ok(())
}

/// nginx with the pages on server1, and the script of the mix.
pub(crate) fn server(topology: &Topology) -> Result<(Process, PathBuf)> {
    let directory = topology.scratch.file("l7-pages");
    let mix = pages::write(topology, &directory)?;
    let text = include_str!("server.conf").replace("DIRECTORY", &directory.display().to_string());
    let file = topology.scratch.write("l7-server.conf", &text)?;
    let mut nginx = topology.servers[0].command_on(OTHER_CPU, "nginx");
    nginx.arg("-c").arg(file).arg("-e").arg(topology.scratch.file("l7-server.error.log"));
    let mut server = topology.servers[0].start(nginx, &topology.scratch.file("l7-server.log"))?;
    let name = topology.servers[0].name().to_owned();
    server.wait_until(START_TIMEOUT, || listening(&name, &[HTTP_PORT])).context("the server")?;
    Ok((server, mix))
}

/// Has one core do the work on all that arrives at a namespace's interfaces, from any sender (a virtual card's arrivals
/// are otherwise the work of the core that sends).
fn steer(namespace: &Namespace, cpu: &str) -> Result<()> {
    let mask = format!("{:x}", 1_u32 << cpu.parse::<u32>()?);
    // Its own /sys is needed, which only `ip netns exec` mounts.
    let lines = format!("for queue in /sys/class/net/*/queues/rx-*/rps_cpus; do echo {mask} >$queue; done");
    let mut ip = Command::new("ip");
    ip.args(["netns", "exec", namespace.name(), "sh", "-ec", &lines]);
    command::output(&mut ip)?;
    Ok(())
}

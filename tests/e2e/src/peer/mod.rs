//! The peers between client and servers: nothing but routing, nftables, HAProxy, nginx or Hairpin, for the same
//! services, started through one function, so that whatever is compared is set up alike.

pub mod control;
mod hairpin;
mod proxy;
pub mod status;

pub use hairpin::{
    Hairpin, HairpinOptions, laboratory, program as hairpin_program, rebuilt_program, static_program, status_table,
};

use crate::process::Process;
use crate::servers::HTTP_PORT;
use crate::topology::{Family, Topology, end, server_address, vip};
use anyhow::{Context, Result, bail};
use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

/// Longest time a balancer may take to listen.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// The transport protocol of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransportProtocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// HTTP over TCP, request by request. Only Hairpin.
    Http,
    /// TLS over TCP, by the server's name. Only Hairpin.
    Tls,
    /// HTTP/1.1 and HTTP/2 over TLS, which ends at the balancer. Only Hairpin.
    Https,
}

impl TransportProtocol {
    /// Its name as configurations write it.
    pub fn name(self) -> &'static str {
        match self {
            TransportProtocol::Tcp => "tcp",
            TransportProtocol::Udp => "udp",
            TransportProtocol::Http => "http",
            TransportProtocol::Tls => "tls",
            TransportProtocol::Https => "https",
        }
    }
}

/// A service all peers can offer.
#[derive(Clone, Debug)]
pub struct PeerService {
    /// Its name.
    pub name: &'static str,
    /// The family of the VIP and, unless `is_mixed`, of the servers.
    pub family: Family,
    /// Whether the servers' addresses are of the other family. Only Hairpin.
    pub is_mixed: bool,
    /// The transport protocol.
    pub transport: TransportProtocol,
    /// The VIP's port.
    pub port: u16,
    /// The servers' port.
    pub server_port: u16,
    /// The servers, 1 to 4, that are its backends `server1` to `server4`.
    pub servers: Vec<usize>,
    /// Whether the client's address is replaced, too. Only Hairpin (proxies always do; nftables never here).
    pub full_nat: bool,
    /// Hairpin's algorithm (empty: it is not told any); the others take turns (nftables: at random).
    pub balance: &'static str,
    /// The servers' weights, for Hairpin; 1 each if empty.
    pub weights: Vec<u16>,
    /// Lines of TOML that follow its backends, for Hairpin: tables such as `[service.health]`.
    pub tables: String,
}

impl PeerService {
    /// A TCP service of all four servers by NAT and round robin, the same port on both sides.
    pub fn tcp(name: &'static str, family: Family, port: u16) -> PeerService {
        PeerService {
            name,
            family,
            is_mixed: false,
            transport: TransportProtocol::Tcp,
            port,
            server_port: port,
            servers: vec![1, 2, 3, 4],
            full_nat: false,
            balance: "round-robin",
            weights: Vec::new(),
            tables: String::new(),
        }
    }

    /// A UDP service, else as [`PeerService::tcp`].
    pub fn udp(name: &'static str, family: Family, port: u16) -> PeerService {
        PeerService { transport: TransportProtocol::Udp, ..PeerService::tcp(name, family, port) }
    }

    /// An HTTP service over IPv4, else as [`PeerService::tcp`].
    pub fn http(name: &'static str, port: u16) -> PeerService {
        PeerService { transport: TransportProtocol::Http, ..PeerService::tcp(name, Family::V4, port) }
    }

    /// An HTTPS service over IPv4 with this certificate and key, else as [`PeerService::tcp`]; its servers speak HTTP.
    pub fn https(name: &'static str, port: u16, certificate: &Path) -> PeerService {
        let tables = format!("[service.https]\ncertificates = {certificate:?}\n");
        let transport = TransportProtocol::Https;
        PeerService { transport, server_port: HTTP_PORT, tables, ..PeerService::tcp(name, Family::V4, port) }
    }

    /// `address:port` of the VIP.
    pub fn listen(&self) -> String {
        end(vip(self.family), self.port)
    }

    /// `address:port` of every server.
    pub fn server_ends(&self) -> Vec<String> {
        let family = if self.is_mixed { self.family.other() } else { self.family };
        self.servers.iter().map(|&server| end(server_address(family, server), self.server_port)).collect()
    }
}

/// The kinds of peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PeerKind {
    /// No balancer: the client talks to the servers' own addresses, which the balancer's kernel routes.
    Routed,
    /// No balancer either: the VIP is an address of every server, and the balancer's kernel routes it to all of them by
    /// a multipath route that hashes ports. The traffic looks as balanced traffic does: every client talks to every
    /// server. (The assignment matters when all share two cores: fixed pairs wake each other less.)
    Multipath,
    /// nftables: DNAT with a random map, by connection tracking.
    Nftables,
    /// HAProxy in TCP mode.
    Haproxy,
    /// nginx's stream module.
    NginxStream,
    /// Hairpin.
    Hairpin,
    /// Hairpin with `set_up = "engine"`: the BPF programs set connections up and follow their ends.
    HairpinSetUp,
    /// Hairpin, linked statically with musl ([`static_program`]).
    HairpinStatic,
}

impl PeerKind {
    /// Its name in results.
    pub fn name(self) -> &'static str {
        match self {
            PeerKind::Routed => "routed",
            PeerKind::Multipath => "multipath",
            PeerKind::Nftables => "nftables",
            PeerKind::Haproxy => "haproxy",
            PeerKind::NginxStream => "nginx-stream",
            PeerKind::Hairpin => "hairpin",
            PeerKind::HairpinSetUp => "hairpin-set-up",
            PeerKind::HairpinStatic => "hairpin-static",
        }
    }
}

/// A running peer, gone when dropped.
#[derive(Debug)]
pub struct RunningPeer<'a> {
    topology: &'a Topology,
    kind: PeerKind,
    process: Option<Process>,
    hairpin: Option<Hairpin>,
}

/// Starts a peer for these services and waits until it serves them.
pub fn start<'a>(kind: PeerKind, topology: &'a Topology, services: &[PeerService]) -> Result<RunningPeer<'a>> {
    let mut peer = RunningPeer { topology, kind, process: None, hairpin: None };
    match kind {
        PeerKind::Routed => {}
        PeerKind::Multipath => multipath(topology, services)?,
        PeerKind::Nftables => {
            topology.balancer.script(&format!("nft -f - <<'END'\n{}END\n", nftables(services)?))?;
        }
        PeerKind::Haproxy => peer.process = Some(proxy::haproxy(topology, services)?),
        PeerKind::NginxStream => peer.process = Some(proxy::nginx_stream(topology, services)?),
        PeerKind::Hairpin => peer.hairpin = Some(Hairpin::start(topology, services, &HairpinOptions::default())?),
        PeerKind::HairpinSetUp => {
            let tables = "[offload]\nset_up = \"engine\"\n".into();
            let options = HairpinOptions { tables, ..HairpinOptions::default() };
            peer.hairpin = Some(Hairpin::start(topology, services, &options)?);
        }
        PeerKind::HairpinStatic => {
            let program =
                Some(static_program()?.context("no static program: make static, and name it in HAIRPIN_STATIC")?);
            let options = HairpinOptions { program, ..HairpinOptions::default() };
            peer.hairpin = Some(Hairpin::start(topology, services, &options)?);
        }
    }
    Ok(peer)
}

impl RunningPeer<'_> {
    /// Which kind it is.
    pub fn kind(&self) -> PeerKind {
        self.kind
    }

    /// The addresses that clients of a service connect to, one for every server: the VIP each time, or the servers
    /// themselves if nothing stands between.
    pub fn targets(&self, service: &PeerService) -> Vec<String> {
        match self.kind {
            PeerKind::Routed => service.server_ends(),
            _ => vec![service.listen(); service.servers.len()],
        }
    }

    /// Hairpin, if it is that.
    pub fn hairpin(&self) -> Option<&Hairpin> {
        self.hairpin.as_ref()
    }

    /// Fails, with what it printed, if its program has ended.
    pub fn check(&mut self) -> Result<()> {
        match (&mut self.process, &mut self.hairpin) {
            (Some(process), _) => process.check(),
            (_, Some(hairpin)) => hairpin.process().check(),
            _ => Ok(()),
        }
    }
}

impl Drop for RunningPeer<'_> {
    fn drop(&mut self) {
        let result = match self.kind {
            PeerKind::Nftables => self.topology.balancer.script("nft flush ruleset\n").map(drop),
            PeerKind::Multipath => end_multipath(self.topology),
            _ => Ok(()),
        };
        if let Err(error) = result {
            eprintln!("{error:#}");
        }
    }
}

/// Moves the VIPs from the balancer to the servers and routes them there. Ports are not translated: services whose
/// servers listen elsewhere are refused.
fn multipath(topology: &Topology, services: &[PeerService]) -> Result<()> {
    if let Some(service) = services.iter().find(|service| service.port != service.server_port) {
        bail!("routing cannot translate the port of service {}", service.name);
    }
    for family in [Family::V4, Family::V6] {
        let (vip, bits) = (vip(family), if family == Family::V4 { 32 } else { 128 });
        let option = if family == Family::V4 { "-4" } else { "-6" };
        let mut route = format!("ip address del {vip}/{bits} dev lo\nip {option} route add {vip}/{bits}");
        for (i, server) in (1..).zip(&topology.servers) {
            server.script(&format!("ip address add {vip}/{bits} dev lo\n"))?;
            write!(route, " nexthop via {}", server_address(family, i))?;
        }
        topology.balancer.script(&(route + "\n"))?;
    }
    let by_ports = "sysctl -qw net.ipv4.fib_multipath_hash_policy=1 net.ipv6.fib_multipath_hash_policy=1\n";
    topology.balancer.script(by_ports)?;
    Ok(())
}

fn end_multipath(topology: &Topology) -> Result<()> {
    for family in [Family::V4, Family::V6] {
        let (vip, bits) = (vip(family), if family == Family::V4 { 32 } else { 128 });
        let option = if family == Family::V4 { "-4" } else { "-6" };
        topology
            .balancer
            .script(&format!("ip {option} route del {vip}/{bits}\nip address add {vip}/{bits} dev lo\n"))?;
        for server in &topology.servers {
            server.script(&format!("ip address del {vip}/{bits} dev lo\n"))?;
        }
    }
    Ok(())
}

fn nftables(services: &[PeerService]) -> Result<String> {
    let mut rules = String::new();
    for (family, table, version) in [(Family::V4, "ip", "ip"), (Family::V6, "ip6", "ip6")] {
        writeln!(rules, "table {table} balance {{\n  chain services {{")?;
        writeln!(rules, "    type nat hook prerouting priority dstnat; policy accept;")?;
        for service in services.iter().filter(|service| service.family == family) {
            let servers: Vec<String> = service
                .servers
                .iter()
                .enumerate()
                .map(|(i, &server)| format!("{i} : {} . {}", server_address(family, server), service.server_port))
                .collect();
            writeln!(
                rules,
                "    {version} daddr {} {} dport {} dnat to numgen random mod {} map {{ {} }}",
                vip(family),
                service.transport.name(),
                service.port,
                servers.len(),
                servers.join(", ")
            )?;
        }
        writeln!(rules, "  }}\n}}")?;
    }
    Ok(rules)
}

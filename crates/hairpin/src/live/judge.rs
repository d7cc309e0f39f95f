//! The meaning of facts for a file.

use super::facts::{ConfiguredLink, HostFacts, LocalRoute};
use super::{FindingSeverity, HostFinding};
use hairpin_core::config::{BackendState, Forwarding, Service, ServiceState, Snapshot};
use hairpin_core::flow::{Address, Protocol};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

/// Names of services or backends in one finding at most.
const NAMED_MAX: usize = 3;

/// The address that a service listens on.
pub(super) struct ListenEnd<'a> {
    service: &'a str,
    pub(super) address: SocketAddr,
    pub(super) is_udp: bool,
}

/// The addresses of the services that depend on the machine.
#[derive(Default)]
pub(super) struct Services<'a> {
    pub(super) ends: Vec<ListenEnd<'a>>,
    /// The services of each VIP.
    pub(super) vips: BTreeMap<IpAddr, Vec<&'a str>>,
    /// The backends at each address, as SERVICE/BACKEND; disabled ones are left out.
    pub(super) backends: BTreeMap<IpAddr, Vec<String>>,
    /// Those that workers forward to: Hairpin must see what they answer. Sockets connect to the others.
    forwarded_to: BTreeSet<IpAddr>,
    /// Backends that see pool addresses.
    full_nat: BTreeSet<IpAddr>,
    pool: Vec<IpAddr>,
}

impl<'a> Services<'a> {
    pub(super) fn of(snapshot: &'a Snapshot) -> Services<'a> {
        let pool = snapshot.pool.addresses.iter().copied().map(IpAddr::from).collect();
        let mut all = Services { pool, ..Services::default() };
        let mut is_terminated = false;
        for service in snapshot.services.iter().filter(|service| service.state == ServiceState::Active) {
            // Groups are behind their service in a snapshot of the file.
            if !service.kind.is_group() {
                is_terminated = service.kind.is_terminated();
            }
            all.add(service, is_terminated);
        }
        all
    }

    /// `is_terminated`: whether the service's connections, or those of the service that has this group, end at sockets.
    fn add(&mut self, service: &'a Service, is_terminated: bool) {
        if !service.kind.is_group() {
            let address = SocketAddr::new(service.endpoint.address.into(), service.endpoint.port);
            let is_udp = service.protocol == Protocol::Udp;
            // What listens at the end of a terminated service is Hairpin itself.
            if !is_terminated {
                self.ends.push(ListenEnd { service: &service.name, address, is_udp });
            }
            self.vips.entry(address.ip()).or_default().push(&service.name);
        }
        for backend in service.backends.iter().filter(|backend| backend.state != BackendState::Disabled) {
            let address: Address = backend.endpoint.address;
            self.backends.entry(address.into()).or_default().push(format!("{}/{}", service.name, backend.name));
            // Spliced services may lead to the backends of a terminated one.
            if !is_terminated || service.forwarding == Forwarding::FullNat {
                self.forwarded_to.insert(address.into());
            }
            if service.forwarding == Forwarding::FullNat {
                self.full_nat.insert(address.into());
            }
        }
    }
}

/// Everything on the machine that is not as required. `interfaces`: the configured ones.
pub(super) fn judge(interfaces: &[String], services: &Services<'_>, facts: &HostFacts) -> Vec<HostFinding> {
    let links = facts.links.iter().filter_map(|(name, link)| self::link(name, link));
    let vips = services.vips.iter().filter_map(|(vip, names)| self::vip(*vip, names, interfaces, facts));
    let pool = services.pool.iter().flat_map(|address| self::pool(*address, interfaces, services, facts));
    let backends = services.backends.iter().filter_map(|(address, names)| {
        backend((*address, services.forwarded_to.contains(address)), names, interfaces, facts)
    });
    let sockets = services.ends.iter().flat_map(|end| sockets(end, interfaces, facts));
    links.chain(vips).chain(pool).chain(backends).chain(sockets).collect()
}

fn link(name: &str, link: &ConfiguredLink) -> Option<HostFinding> {
    let (what, remedy) = match link {
        ConfiguredLink::Good => return None,
        ConfiguredLink::Missing(said) => (said.clone(), "make it, or correct `interfaces`".into()),
        ConfiguredLink::NotEthernet => {
            ("it is not Ethernet".into(), "name an Ethernet interface: Hairpin works on no others".into())
        }
        ConfiguredLink::Down => ("it is down".into(), format!("run `ip link set dev {name} up`")),
        ConfiguredLink::Unlinked => {
            let remedy =
                "see to its cable or the port of the switch; of a veth, bridge or bond, to what is at its other end";
            ("it has no link".into(), remedy.into())
        }
    };
    Some(HostFinding { severity: FindingSeverity::Error, subject: format!("interface {name}"), what, remedy })
}

/// Hosts on the network of an interface ask each other by ARP or neighbour solicitation.
fn vip(vip: IpAddr, names: &[&str], interfaces: &[String], facts: &HostFacts) -> Option<HostFinding> {
    let deaf = interfaces.iter().find(|name| is_deaf(name, vip, None, facts));
    let (what, remedy) = match (facts.owner(vip), deaf) {
        (Some(_), None) => return None,
        (Some(owner), Some(interface)) => (
            format!(
                "it is on {owner}: hosts on the network of {interface}, to which it belongs, ask {}",
                in_vain(vip, interface)
            ),
            answers(vip, interface),
        ),
        (None, Some(interface)) => (
            format!(
                "no interface of this host has it: hosts on the network of {interface}, to which it belongs, get no answer \
                     when they ask for it by {}",
                question(vip)
            ),
            format!(
                "run `ip address add {vip}/{} dev {interface}`; a backup of VRRP gets it when it takes over",
                bits(vip)
            ),
        ),
        (None, None) if is_proxied(vip, interfaces, facts) => return None,
        (None, None) => (
            "no interface of this host has it: clients reach it only by a route of another machine to this host".into(),
            format!(
                "where there is no such route, run `ip address add {vip}/{} dev {}`; a backup of VRRP gets it when it takes over",
                bits(vip),
                interfaces.first().map_or("INTERFACE", String::as_str)
            ),
        ),
    };
    let plural = if names.len() == 1 { "" } else { "s" };
    let subject = format!("VIP {vip} (service{plural} {})", listed(names));
    Some(HostFinding { severity: FindingSeverity::Warning, subject, what, remedy })
}

/// A pool address is asked for by backends on the network it belongs to, or by the router that leads to them.
fn pool<'a>(
    address: IpAddr,
    interfaces: &'a [String],
    services: &'a Services<'_>,
    facts: &'a HostFacts,
) -> impl Iterator<Item = HostFinding> + 'a {
    let first = move |name: &String| {
        services.full_nat.iter().find_map(|backend| match facts.routes.get(backend)? {
            LocalRoute::Out { interface, gateway } if interface == name => {
                let hop = gateway.unwrap_or(*backend);
                is_deaf(name, address, Some(hop), facts).then_some((*backend, hop))
            }
            _ => None,
        })
    };
    interfaces.iter().filter_map(move |name| {
        let (backend, hop) = first(name)?;
        let who =
            if hop == backend { format!("backend {backend}") } else { format!("router {hop} (to backend {backend})") };
        let place = match facts.owner(address) {
            Some(owner) => format!("it is on {owner}"),
            None => "no interface of this host has it".into(),
        };
        let what = format!(
            "{place}: {who} on the network of {name}, to which it belongs, asks {}: full NAT times out",
            in_vain(address, name)
        );
        let subject = format!("pool address {address}");
        Some(HostFinding { severity: FindingSeverity::Error, subject, what, remedy: answers(address, name) })
    })
}

/// Whether a host on the network of `interface` asks there for `address`, and this one does not answer. `hop`: only if this
/// neighbour does.
fn is_deaf(interface: &str, address: IpAddr, hop: Option<IpAddr>, facts: &HostFacts) -> bool {
    let own = || facts.held.iter().filter(|held| held.interface == interface);
    // From a link-local address it cannot be told which networks a neighbour takes to be its own.
    let hop = hop.filter(|hop| !matches!(hop, IpAddr::V6(hop) if hop.is_unicast_link_local()));
    let is_near = own().any(|held| {
        let is_within = |one| is_within(one, held.address, held.prefix);
        is_within(address) && hop.is_none_or(is_within)
    });
    let answered = match address {
        _ if own().any(|held| held.address == address) => true,
        IpAddr::V4(_) => facts.owner(address).is_some() && !facts.arp_own.contains(interface),
        IpAddr::V6(_) => facts.proxies.iter().any(|(name, proxied)| name == interface && *proxied == address),
    };
    is_near && !answered
}

fn is_proxied(address: IpAddr, interfaces: &[String], facts: &HostFacts) -> bool {
    facts.proxies.iter().any(|(name, proxied)| *proxied == address && interfaces.contains(name))
}

fn question(address: IpAddr) -> &'static str {
    if address.is_ipv4() { "ARP" } else { "IPv6 neighbour solicitation" }
}

/// A neighbour's query, and the reason why it gets no answer.
fn in_vain(address: IpAddr, interface: &str) -> String {
    match address {
        IpAddr::V4(_) => format!("for it by ARP, which {interface} answers only for its own addresses (arp_ignore)"),
        IpAddr::V6(_) => {
            format!(
                "for it by IPv6 neighbour solicitation, which the kernel answers only for {interface}'s own addresses"
            )
        }
    }
}

/// How to have it answered.
fn answers(address: IpAddr, interface: &str) -> String {
    let add = format!("run `ip address add {address}/{} dev {interface}`", bits(address));
    if address.is_ipv4() {
        return add;
    }
    format!(
        "{add}, or `sysctl -w net.ipv6.conf.{interface}.proxy_ndp=1` and `ip -6 neigh add proxy {address} dev {interface}`"
    )
}

fn backend(
    (address, is_forwarded_to): (IpAddr, bool),
    names: &[String],
    interfaces: &[String],
    facts: &HostFacts,
) -> Option<HostFinding> {
    let (what, remedy) = match facts.routes.get(&address)? {
        LocalRoute::Out { .. } | LocalRoute::Local if !is_forwarded_to => return None,
        LocalRoute::Out { interface, .. } if interfaces.contains(interface) => return None,
        LocalRoute::Out { interface, .. } => (
            format!("the route to it leads out by {interface}, on which Hairpin does not see what it answers"),
            format!("add \"{interface}\" to `interfaces`, or change the route"),
        ),
        LocalRoute::Local => (
            "it is an address of this host: packets go to it by loopback, where Hairpin does not see what it answers"
                .into(),
            "run the server on another machine, or in a network namespace with an interface of its own".into(),
        ),
        LocalRoute::None(said) => {
            (format!("there is no route to it ({said})"), "add a route (`ip route add`), or correct the address".into())
        }
    };
    let subject = format!("backend {address} ({})", listed(names));
    Some(HostFinding { severity: FindingSeverity::Error, subject, what, remedy })
}

/// Sockets that clients of the service do not reach, where the host has the VIP.
fn sockets<'a>(
    end: &'a ListenEnd<'_>,
    interfaces: &'a [String],
    facts: &'a HostFacts,
) -> impl Iterator<Item = HostFinding> + 'a {
    let vip = end.address.ip();
    let fits = move |address: IpAddr, takes_ipv4: bool| match address {
        IpAddr::V6(all) if all.is_unspecified() => vip.is_ipv6() || takes_ipv4,
        IpAddr::V4(all) if all.is_unspecified() => vip.is_ipv4(),
        one => one == vip,
    };
    let is_owned = facts.owner(vip).is_some();
    let mut seen = BTreeSet::new();
    facts.sockets.iter().filter_map(move |socket| {
        let is_here = socket.interface.as_ref().is_none_or(|name| interfaces.contains(name));
        let is_its = socket.is_udp == end.is_udp && socket.port == end.address.port();
        // Several processes share one port, each with a socket.
        let is_first =
            is_owned && is_here && is_its && fits(socket.address, socket.takes_ipv4) && seen.insert(socket.address);
        is_first.then(|| {
            let at = SocketAddr::new(socket.address, socket.port);
            let protocol = if socket.is_udp { "udp" } else { "tcp" };
            HostFinding {
                severity: FindingSeverity::Warning,
                subject: format!("service {}", end.service),
                what: format!(
                    "{} listens on {at}/{protocol}: what clients send to {} goes to the service, and not to this socket",
                    socket.process, end.address
                ),
                remedy: "if clients are to reach this socket, give the service another address or port; if not, have its \
                         program listen elsewhere"
                    .into(),
            }
        })
    })
}

/// The length of the prefix of an address alone.
fn bits(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// Whether the first `prefix` bits of two addresses are equal.
fn is_within(one: IpAddr, other: IpAddr, prefix: u8) -> bool {
    let (one, other, bits) = match (one, other) {
        (IpAddr::V4(one), IpAddr::V4(other)) => (u128::from(one.to_bits()), u128::from(other.to_bits()), 32),
        (IpAddr::V6(one), IpAddr::V6(other)) => (one.to_bits(), other.to_bits(), 128),
        _ => return false,
    };
    (one ^ other).checked_shr(bits - u32::from(prefix).min(bits)).unwrap_or(0) == 0
}

/// The first names, and how many more there are.
fn listed(names: &[impl AsRef<str>]) -> String {
    let first: Vec<&str> = names.iter().take(NAMED_MAX).map(AsRef::as_ref).collect();
    let first = first.join(", ");
    match names.len().saturating_sub(NAMED_MAX) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

#[cfg(test)]
#[path = "judge_tests.rs"]
mod tests;

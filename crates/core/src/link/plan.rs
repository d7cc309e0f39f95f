//! The addresses of this host and its routes: made from the configuration once, and shared.

use super::discovery;
use super::outer::{DirectBackend, DirectTarget};
use super::routes::{LinkRoute, LinkRoutes, is_within};
use crate::flow::Address;
use crate::wire::{ipv4, ipv6};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Ports at most.
pub const PORTS_MAX: usize = 64;
/// Addresses of ours at most, those of ports included.
pub const ADDRESSES_MAX: usize = 65_536;
/// Routes at most, those to connected networks included.
pub const ROUTES_MAX: usize = 4_096;
/// The least MTU: IPv6 needs it (RFC 8200, 5), and ICMP errors are no longer.
pub const MTU_MIN: u16 = 1280;

/// A port's own addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortAddresses {
    /// Its Ethernet address.
    pub mac: [u8; 6],
    /// Largest IP packet it takes, in bytes; [`MTU_MIN`] to 65,535.
    pub mtu: u16,
    /// Its IP addresses, each with the length of its network's prefix in bits: hosts in the network are neighbours.
    pub networks: Vec<(IpAddr, u8)>,
    /// Default gateways, in order of preference: the first that is not known to be dead is used. Each in one
    /// of `networks`, or link-local.
    pub gateways: Vec<IpAddr>,
}

/// The configuration of a link layer. Ports are counted as the plane counts them ([`Meta::port`](crate::frame::Meta::port)).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkOptions {
    /// The ports, 1 to [`PORTS_MAX`].
    pub ports: Vec<PortAddresses>,
    /// Addresses of ours beside the ports': VIPs, the full-NAT pool. Each is answered for on the ports one of whose
    /// networks it is in; on all of them if it is in none.
    pub local: Vec<IpAddr>,
    /// Routes beside those to connected networks and gateways.
    pub routes: Vec<LinkRoute>,
    /// Addresses whose next hops are known before the first packet, and never give way to others: backends. Gateways are
    /// among them anyway.
    pub kept: Vec<IpAddr>,
    /// Backends of direct server return: where [`Egress::Direct`](crate::frame::Egress::Direct) leads. One that is not wrapped
    /// is at a connected network, without a gateway, else what is sent there is dropped.
    pub direct: Vec<DirectBackend>,
}

/// Why there is no plan of these options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkError {
    /// No port, or more than [`PORTS_MAX`].
    Ports,
    /// The Ethernet address of this port is a group's or zero.
    Mac(u16),
    /// The MTU of this port is less than [`MTU_MIN`].
    Mtu(u16),
    /// More bits of prefix than the address has.
    Prefix(IpAddr, u8),
    /// No host can have this address.
    NotAHost(IpAddr),
    /// A route leaves by a port that there is not.
    RoutePort(u16),
    /// No network of the port has this gateway in it.
    Gateway(IpAddr, u16),
    /// More than [`ADDRESSES_MAX`] addresses.
    Addresses,
    /// More than [`ROUTES_MAX`] routes.
    Routes,
}

impl fmt::Display for LinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LinkError::Ports => write!(f, "1 to {PORTS_MAX} ports are needed"),
            LinkError::Mac(port) => write!(f, "the Ethernet address of port {port} is no single station's"),
            LinkError::Mtu(port) => write!(f, "the MTU of port {port} is less than {MTU_MIN}"),
            LinkError::Prefix(address, prefix) => write!(f, "{address} has no prefix of {prefix} bits"),
            LinkError::NotAHost(address) => write!(f, "no host can have the address {address}"),
            LinkError::RoutePort(port) => write!(f, "a route leaves by port {port}, which there is not"),
            LinkError::Gateway(address, port) => write!(f, "the gateway {address} is in no network of port {port}"),
            LinkError::Addresses => write!(f, "more than {ADDRESSES_MAX} addresses"),
            LinkError::Routes => write!(f, "more than {ROUTES_MAX} routes"),
        }
    }
}

impl core::error::Error for LinkError {}

/// A port as the link layer uses it.
#[derive(Clone, Debug)]
pub(super) struct LinkPort {
    pub(super) mac: [u8; 6],
    /// The Ethernet address as the lower six bytes of a number, to be compared at once.
    pub(super) mac_word: u64,
    pub(super) mtu: u16,
    networks: Box<[(IpAddr, u8)]>,
    /// The address made of its Ethernet address (RFC 4291, appendix A).
    link_local: Address,
}

/// Addresses, ports and routes of a running link layer; immutable.
#[derive(Clone, Debug)]
pub struct LinkPlan {
    pub(super) ports: Box<[LinkPort]>,
    pub(super) routes: LinkRoutes,
    /// Sorted; with the ports that answer for each, as bits.
    local: Box<[(Address, u64)]>,
    /// Broadcast addresses of connected networks, sorted.
    broadcasts: Box<[Address]>,
    /// Which values the last 6 bits of `local` and `broadcasts` have: most senders are told apart by that.
    suffixes: u64,
    /// Next hops that are always to be known, and the ports they are at.
    pub(super) kept: Box<[(Address, u16)]>,
    /// Backends of direct server return, sorted by number.
    direct: Box<[DirectTarget]>,
}

/// The bit of an address's last six bits, in a set of 64.
fn suffix(address: &Address) -> u64 {
    1 << (address.0[15] & 63)
}

fn is_host(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => ipv4::is_host(address.octets()),
        // not what is mapped: it would pass for IPv4
        IpAddr::V6(address) => ipv6::is_host(&Address(address.octets())),
    }
}

/// Whether `address` is one that every port has a network of its own for (fe80::/10).
#[inline(always)]
pub(super) fn is_link_local(address: &Address) -> bool {
    address.0[0] == 0xfe && address.0[1] & 0xc0 == 0x80
}

/// The broadcast address of an IPv4 network that has one.
fn broadcast((address, prefix): (IpAddr, u8)) -> Option<Address> {
    match address {
        IpAddr::V4(address) if (1..31).contains(&prefix) => {
            Some(IpAddr::V4(Ipv4Addr::from_bits(address.to_bits() | u32::MAX >> prefix)).into())
        }
        _ => None,
    }
}

fn link_local(mac: [u8; 6]) -> Address {
    let [a, b, c, d, e, f] = mac;
    let [high, low] = [u16::from_be_bytes([a ^ 2, b]), u16::from_be_bytes([c, 0xff])];
    let address = Ipv6Addr::new(0xfe80, 0, 0, 0, high, low, u16::from_be_bytes([0xfe, d]), u16::from_be_bytes([e, f]));
    IpAddr::V6(address).into()
}

impl LinkPort {
    fn new(number: u16, port: &PortAddresses) -> Result<LinkPort, LinkError> {
        if port.mac[0] & 1 != 0 || port.mac == [0; 6] {
            return Err(LinkError::Mac(number));
        }
        if port.mtu < MTU_MIN {
            return Err(LinkError::Mtu(number));
        }
        for &(address, prefix) in &port.networks {
            check_prefix(address, prefix)?;
            if !is_host(address) {
                return Err(LinkError::NotAHost(address));
            }
        }
        let networks: Box<[(IpAddr, u8)]> = port.networks.clone().into();
        let [a, b, c, d, e, f] = port.mac;
        let mac_word = u64::from_le_bytes([a, b, c, d, e, f, 0, 0]);
        Ok(LinkPort { mac: port.mac, mac_word, mtu: port.mtu, networks, link_local: link_local(port.mac) })
    }

    fn contains(&self, address: IpAddr) -> bool {
        self.networks.iter().any(|&(own, prefix)| is_within(address, own, prefix))
    }

    /// Whether a host that says to be at `address` can be a neighbour at this port.
    pub(super) fn is_near(&self, address: &Address) -> bool {
        is_link_local(address) || self.contains((*address).into())
    }

    /// In whose name to ask for `target`: the port's own address in the target's network, else another of its family.
    pub(super) fn asks_as(&self, target: &Address) -> Address {
        let wanted = IpAddr::from(*target);
        if is_link_local(target) {
            return self.link_local;
        }
        let near = self.networks.iter().find(|&&(own, prefix)| is_within(wanted, own, prefix));
        let any = self.networks.iter().find(|(own, _)| own.is_ipv4() == wanted.is_ipv4());
        match near.or(any) {
            Some((own, _)) => (*own).into(),
            // a port without an IPv4 address asks as 0.0.0.0 (RFC 5227, 2.1.1)
            None if target.is_ipv4() => Address::from_ipv4([0; 4]),
            None => self.link_local,
        }
    }
}

fn check_prefix(address: IpAddr, prefix: u8) -> Result<(), LinkError> {
    let bits = if address.is_ipv4() { 32 } else { 128 };
    if prefix > bits { Err(LinkError::Prefix(address, prefix)) } else { Ok(()) }
}

fn check_gateway(ports: &[LinkPort], gateway: IpAddr, port: u16) -> Result<(), LinkError> {
    let there = ports.get(usize::from(port)).ok_or(LinkError::RoutePort(port))?;
    if !is_host(gateway) {
        return Err(LinkError::NotAHost(gateway));
    }
    if there.is_near(&gateway.into()) { Ok(()) } else { Err(LinkError::Gateway(gateway, port)) }
}

impl LinkPlan {
    /// Checks the options and makes a plan of them.
    pub fn new(options: &LinkOptions) -> Result<LinkPlan, LinkError> {
        let LinkOptions { ports, local, routes, kept, direct } = options;
        if ports.is_empty() || ports.len() > PORTS_MAX {
            return Err(LinkError::Ports);
        }
        let numbered = || (0u16..).zip(ports);
        let made =
            numbered().map(|(number, port)| LinkPort::new(number, port)).collect::<Result<Box<[LinkPort]>, _>>()?;
        let routes = all_routes(ports, &made, routes)?;
        if let Some(&other) = local.iter().chain(kept).find(|address| !is_host(**address)) {
            return Err(LinkError::NotAHost(other));
        }
        let local = local_addresses(&made, local)?;
        let broadcasts = ports.iter().flat_map(|port| port.networks.iter().copied().filter_map(broadcast));
        let mut broadcasts: Vec<Address> = broadcasts.collect();
        broadcasts.sort_unstable();
        let special = local.iter().map(|(address, _)| address).chain(&broadcasts);
        let suffixes = special.map(suffix).fold(0, |all, one| all | one);
        let table = LinkRoutes::new(&routes);
        let next_hop = |address: &IpAddr| {
            let address = Address::from(*address);
            let hop = table.find(&address).first()?;
            Some((hop.gateway.unwrap_or(address), hop.port))
        };
        let gateways = routes.iter().filter_map(|route| Some((route.gateway?.into(), route.port)));
        let mut kept: Vec<(Address, u16)> = gateways.chain(kept.iter().filter_map(next_hop)).collect();
        kept.retain(|(address, _)| local.binary_search_by_key(address, |(own, _)| *own).is_err());
        kept.sort_unstable();
        kept.dedup();
        let (broadcasts, kept) = (broadcasts.into(), kept.into());
        let plan = LinkPlan { ports: made, routes: table, local, broadcasts, suffixes, kept, direct: [].into() };
        Ok(plan.with_direct(direct))
    }

    /// A copy of the plan in which the backends `direct` of direct server return are added to, or replace, those that it has.
    pub fn with_direct(&self, direct: &[DirectBackend]) -> LinkPlan {
        let had = self.direct.iter().filter(|known| direct.iter().all(|other| other.number != known.number));
        let hosts = direct.iter().filter(|backend| is_host(backend.address));
        let mut all: Vec<DirectTarget> = had.copied().chain(hosts.map(|backend| self.target(backend))).collect();
        all.sort_unstable_by_key(|target| target.number);
        all.dedup_by_key(|target| target.number);
        LinkPlan { direct: all.into(), ..self.clone() }
    }

    /// A backend, with the source address of its outer headers: as configured, else that of the port which leads there.
    fn target(&self, backend: &DirectBackend) -> DirectTarget {
        let address = Address::from(backend.address);
        let port = self.routes.find(&address).first().and_then(|hop| self.ports.get(usize::from(hop.port)));
        let of_port = port.map(|port| port.asks_as(&address));
        let of_port = of_port.filter(|own| is_host((*own).into()) && !is_link_local(own));
        let all = self.ports.iter().flat_map(|port| &port.networks).map(|(own, _)| *own);
        let any = || all.clone().find(|own| own.is_ipv4() == backend.address.is_ipv4()).map(Address::from);
        let source = backend.outer.source_for(&address).or(of_port).or_else(any);
        DirectTarget { number: backend.number, address, outer: backend.outer, source }
    }

    /// The backend `number` of direct server return.
    pub(super) fn direct(&self, number: u16) -> Option<&DirectTarget> {
        let at = self.direct.binary_search_by_key(&number, |known| known.number).ok()?;
        self.direct.get(at)
    }

    /// The longest IP packet that reaches `address` on its first hop; 0: there is no route.
    pub(super) fn mtu_to(&self, address: &Address) -> usize {
        let ports = self.routes.find(address).iter().filter_map(|hop| self.ports.get(usize::from(hop.port)));
        ports.map(|port| usize::from(port.mtu)).min().unwrap_or_default()
    }

    /// The ports that answer for `address`, as bits; 0: it is not ours.
    pub(super) fn answering(&self, address: &Address) -> u64 {
        if self.suffixes & suffix(address) == 0 {
            return 0;
        }
        let found = self.local.binary_search_by_key(address, |(own, _)| *own);
        found.ok().and_then(|at| self.local.get(at)).map_or(0, |(_, ports)| *ports)
    }

    /// Whether one of our ports has this Ethernet address.
    pub(super) fn is_own_mac(&self, mac: &[u8; 6]) -> bool {
        self.ports.iter().any(|port| port.mac == *mac)
    }

    /// Whether `address` is one of ours.
    pub(super) fn is_local(&self, address: &Address) -> bool {
        self.answering(address) != 0
    }

    /// Whether no other host can have sent from `address`: it is ours, or a whole network's.
    #[inline(always)]
    pub(super) fn is_no_source(&self, address: &Address) -> bool {
        self.suffixes & suffix(address) != 0 && self.is_ours_or_broadcast(address)
    }

    /// [`LinkPlan::is_no_source`] of an IPv4 address.
    #[inline(always)]
    pub(super) fn is_no_source_v4(&self, address: [u8; 4]) -> bool {
        self.suffixes >> (address[3] & 63) & 1 != 0 && self.is_ours_or_broadcast(&Address::from_ipv4(address))
    }

    #[cold]
    fn is_ours_or_broadcast(&self, address: &Address) -> bool {
        self.is_local(address) || self.is_broadcast(address)
    }

    /// Whether `address` is the broadcast address of a connected network.
    pub(super) fn is_broadcast(&self, address: &Address) -> bool {
        self.broadcasts.binary_search(address).is_ok()
    }

    /// The address of ours at `position` and the ports that answer for it, as bits: for announcements.
    pub(super) fn own(&self, position: usize) -> Option<(Address, u64)> {
        self.local.get(position).copied()
    }
}

/// Connected networks, gateways, what else is wanted.
fn all_routes(ports: &[PortAddresses], made: &[LinkPort], wanted: &[LinkRoute]) -> Result<Vec<LinkRoute>, LinkError> {
    let mut routes = Vec::new();
    for (number, port) in (0u16..).zip(ports) {
        let connected = port.networks.iter();
        routes.extend(connected.map(|&(network, prefix)| LinkRoute { network, prefix, port: number, gateway: None }));
    }
    for route in wanted {
        check_prefix(route.network, route.prefix)?;
        match route.gateway {
            Some(gateway) => check_gateway(made, gateway, route.port)?,
            None if usize::from(route.port) >= ports.len() => return Err(LinkError::RoutePort(route.port)),
            None => {}
        }
        routes.push(*route);
    }
    for (number, port) in (0u16..).zip(ports) {
        for &gateway in &port.gateways {
            check_gateway(made, gateway, number)?;
            let network = match gateway {
                IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
                IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
            };
            routes.push(LinkRoute { network, prefix: 0, port: number, gateway: Some(gateway) });
        }
    }
    if routes.len() > ROUTES_MAX { Err(LinkError::Routes) } else { Ok(routes) }
}

/// Every address of ours and the ports that answer for it.
fn local_addresses(ports: &[LinkPort], others: &[IpAddr]) -> Result<Box<[(Address, u64)]>, LinkError> {
    let every = u64::MAX >> (PORTS_MAX - ports.len());
    let mut local: Vec<(Address, u64)> = Vec::new();
    for (number, port) in ports.iter().enumerate() {
        local.push((port.link_local, 1 << number));
        local.extend(port.networks.iter().map(|(own, _)| (Address::from(*own), 1 << number)));
    }
    for &address in others {
        let near = ports.iter().enumerate().filter(|(_, port)| port.contains(address));
        let near = near.fold(0, |all, (number, _)| all | 1 << number);
        local.push((address.into(), if near == 0 { every } else { near }));
    }
    local.sort_unstable();
    local.dedup_by(|later, first| {
        let same = later.0 == first.0;
        first.1 |= if same { later.1 } else { 0 };
        same
    });
    if local.len() > ADDRESSES_MAX { Err(LinkError::Addresses) } else { Ok(local.into()) }
}

/// The group and its Ethernet address that a request for `address` goes to.
pub(super) fn asked_at(address: &Address) -> (Address, [u8; 6]) {
    let group = discovery::solicited_node(address);
    (group, discovery::group_mac(&group))
}

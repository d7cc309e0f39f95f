//! The kernel's state of this network namespace: its addresses, routes, proxy entries and listening sockets.

pub mod device_route;
pub mod local_route;
pub mod path_mtu;

use crate::device::netlink::{HEADER_BYTES, Netlink, acknowledged, attribute, message_type, refusal};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// `struct ifaddrmsg`: family, length of the prefix, flags, scope, interface (4).
const ADDRESS_BYTES: usize = 8;
/// `struct rtmsg`: family, lengths of two prefixes, type of service, table, protocol, scope, type, flags (4).
const ROUTE_BYTES: usize = 12;
/// `struct ndmsg`: family, padding (3), interface (4), state (2), flags, type.
const NEIGHBOUR_BYTES: usize = 12;
/// `struct inet_diag_req_v2`: family, protocol, extensions, padding, states (4), socket (48).
const SOCKETS_BYTES: usize = 56;
/// `struct inet_diag_msg`: family, state, timer, retransmissions, socket (48), five numbers of four bytes.
const SOCKET_BYTES: usize = 72;
/// `SOCK_DIAG_BY_FAMILY` of linux/sock_diag.h.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// `NETLINK_SOCK_DIAG` of linux/netlink.h.
const NETLINK_SOCK_DIAG: i32 = 4;
/// `RTA_VIA` of linux/rtnetlink.h, which libc does not name with musl.
const RTA_VIA: u16 = 18;
/// `INET_DIAG_SKV6ONLY` of linux/inet_diag.h.
const INET_DIAG_SKV6ONLY: u16 = 11;
/// `TCP_LISTEN` and `TCP_CLOSE` of net/tcp_states.h; a UDP socket without a peer is in the latter.
const LISTEN: u32 = 10;
const CLOSE: u32 = 7;

/// An address of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterfaceAddress {
    /// The interface's number.
    pub interface: u32,
    /// The address.
    pub address: IpAddr,
    /// Bits of it that all addresses of its network have in common.
    pub prefix: u8,
}

/// The route of the host's own packets to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostRoute {
    /// To this host itself.
    Local,
    /// Out by an interface, to a gateway if one is named.
    Out {
        /// The interface's number.
        interface: u32,
        /// The next hop, unless it is the address itself.
        gateway: Option<IpAddr>,
    },
}

/// A socket that takes what arrives for its port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortListener {
    /// The address that it listens on; unspecified: all addresses.
    pub address: IpAddr,
    /// Its port.
    pub port: u16,
    /// Whether an unspecified IPv6 address stands for IPv4 as well.
    pub takes_ipv4: bool,
    /// The only interface it takes packets from; 0: all.
    pub interface: u32,
    /// The number by which `/proc/PID/fd` names it.
    pub inode: u32,
}

/// All addresses of all interfaces.
pub fn addresses() -> io::Result<Vec<InterfaceAddress>> {
    let mut found = Vec::new();
    let request = list(libc::RTM_GETADDR, &[0; ADDRESS_BYTES]);
    Netlink::open(libc::NETLINK_ROUTE)?.dump(&request, |message| found.extend(held(message)))?;
    Ok(found)
}

fn held(message: &[u8]) -> Option<InterfaceAddress> {
    let (body, attributes) = parts(message, libc::RTM_NEWADDR, ADDRESS_BYTES)?;
    // Of a point-to-point link the other is the peer's address.
    let bytes = attribute(attributes, libc::IFA_LOCAL).or_else(|| attribute(attributes, libc::IFA_ADDRESS))?;
    Some(InterfaceAddress { interface: number(body, 4)?, address: address(&bytes)?, prefix: body[1] })
}

/// Looks routes up.
pub struct RouteLookup(Netlink);

impl RouteLookup {
    /// Of the network namespace of this thread.
    pub fn open() -> io::Result<RouteLookup> {
        Netlink::open(libc::NETLINK_ROUTE).map(RouteLookup)
    }

    /// The route of the host's own packets to `to`. Errors: what the kernel tells a sender, such as `ENETUNREACH`.
    pub fn to(&self, to: IpAddr) -> io::Result<HostRoute> {
        let octets = octets(to);
        let mut body = vec![0; ROUTE_BYTES];
        body[0] = family(to);
        body[1] = 8 * octets.len() as u8;
        body.extend_from_slice(&(4 + octets.len() as u16).to_ne_bytes());
        body.extend_from_slice(&libc::RTA_DST.to_ne_bytes());
        body.extend_from_slice(&octets);
        let mut room = [0; 4096];
        route(self.0.ask(&message(libc::RTM_GETROUTE, libc::NLM_F_REQUEST, &body), &mut room)?)
    }
}

fn route(answer: &[u8]) -> io::Result<HostRoute> {
    if i32::from(message_type(answer)) == libc::NLMSG_ERROR {
        return Err(refusal(answer).unwrap_or_else(|| io::ErrorKind::InvalidData.into()));
    }
    let invalid = || io::Error::from(io::ErrorKind::InvalidData);
    let (body, attributes) = parts(answer, libc::RTM_NEWROUTE, ROUTE_BYTES).ok_or_else(invalid)?;
    match body[7] {
        libc::RTN_LOCAL => Ok(HostRoute::Local),
        libc::RTN_UNICAST => {
            let interface =
                attribute(attributes, libc::RTA_OIF).and_then(|bytes| number(&bytes, 0)).ok_or_else(invalid)?;
            let gateway = attribute(attributes, libc::RTA_GATEWAY);
            // A gateway of the other family stands behind the number of its family.
            let other = || attribute(attributes, RTA_VIA).and_then(|bytes| bytes.get(2..).map(<[u8]>::to_vec));
            Ok(HostRoute::Out { interface, gateway: gateway.or_else(other).and_then(|bytes| address(&bytes)) })
        }
        libc::RTN_BROADCAST | libc::RTN_MULTICAST | libc::RTN_ANYCAST => {
            Err(io::Error::other("not the address of one host"))
        }
        _ => Err(io::Error::from_raw_os_error(libc::EHOSTUNREACH)),
    }
}

/// IPv6 addresses for which the host answers neighbour solicitations as a proxy, each with the interface's number.
pub fn proxies() -> io::Result<Vec<(u32, IpAddr)>> {
    let mut body = [0; NEIGHBOUR_BYTES];
    body[0] = libc::AF_INET6 as u8;
    body[10] = libc::NTF_PROXY;
    let mut found = Vec::new();
    let proxy = |message: &[u8]| -> Option<(u32, IpAddr)> {
        let (body, attributes) = parts(message, libc::RTM_NEWNEIGH, NEIGHBOUR_BYTES)?;
        Some((number(body, 4)?, address(&attribute(attributes, libc::NDA_DST)?)?))
    };
    let request = list(libc::RTM_GETNEIGH, &body);
    Netlink::open(libc::NETLINK_ROUTE)?.dump(&request, |message| found.extend(proxy(message)))?;
    Ok(found)
}

/// TCP sockets that listen, or UDP sockets without a peer, of both families.
pub fn listeners(is_udp: bool) -> io::Result<Vec<PortListener>> {
    let (protocol, state) = if is_udp { (libc::IPPROTO_UDP, CLOSE) } else { (libc::IPPROTO_TCP, LISTEN) };
    let netlink = Netlink::open(NETLINK_SOCK_DIAG)?;
    let mut found = Vec::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        let mut body = [0; SOCKETS_BYTES];
        body[0] = family as u8;
        body[1] = protocol as u8;
        body[4..8].copy_from_slice(&(1u32 << state).to_ne_bytes());
        netlink.dump(&list(SOCK_DIAG_BY_FAMILY, &body), |message| found.extend(listener(message)))?;
    }
    Ok(found)
}

fn listener(message: &[u8]) -> Option<PortListener> {
    let (body, attributes) = parts(message, SOCK_DIAG_BY_FAMILY, SOCKET_BYTES)?;
    let is_ipv4 = i32::from(body[0]) == libc::AF_INET;
    let own = address(&body[8..if is_ipv4 { 12 } else { 24 }])?;
    let is_v6_only = attribute(attributes, INET_DIAG_SKV6ONLY).is_some_and(|bytes| bytes.first() == Some(&1));
    Some(PortListener {
        address: own,
        port: u16::from_be_bytes([body[4], body[5]]),
        takes_ipv4: is_ipv4 || !is_v6_only,
        interface: number(body, 40)?,
        inode: number(body, 68)?,
    })
}

/// The body of a message of the type `wanted`, which has `bytes` at least, and its attributes.
fn parts(message: &[u8], wanted: u16, bytes: usize) -> Option<(&[u8], &[u8])> {
    if message_type(message) != wanted {
        return None;
    }
    message.get(HEADER_BYTES..)?.split_at_checked(bytes)
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).ok().map(|octets| Ipv4Addr::from(octets).into()),
        16 => <[u8; 16]>::try_from(bytes).ok().map(|octets| Ipv6Addr::from(octets).into()),
        _ => None,
    }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

fn family(address: IpAddr) -> u8 {
    (if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 }) as u8
}

/// The value of a route's field `protocol` that says that Hairpin has made it; no routing daemon has this number.
const PROTOCOL: u8 = 104;

/// Makes or removes the route to `address` alone; `class`: its table, scope and type.
fn change_route(
    kind: u16,
    flags: i32,
    address: IpAddr,
    (table, scope, route): (u8, u8, u8),
    attributes: &[(u16, &[u8])],
) -> io::Result<()> {
    let bits = 8 * octets(address).len() as u8;
    // Lengths of the destination's and the source's prefix, type of service; at the end four bytes of flags.
    let mut body = vec![family(address), bits, 0, 0, table, PROTOCOL, scope, route, 0, 0, 0, 0];
    for (attribute, value) in attributes {
        body.extend_from_slice(&(4 + value.len() as u16).to_ne_bytes());
        body.extend_from_slice(&attribute.to_ne_bytes());
        body.extend_from_slice(value);
    }
    acknowledged(&message(kind, flags, &body))
}

fn list(kind: u16, body: &[u8]) -> Vec<u8> {
    message(kind, libc::NLM_F_REQUEST | libc::NLM_F_DUMP, body)
}

/// `nlmsghdr`: length (4), type (2), flags (2), sequence number and port (8), which the kernel's answer repeats.
fn message(kind: u16, flags: i32, body: &[u8]) -> Vec<u8> {
    let length = (HEADER_BYTES + body.len()) as u32;
    [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), &(flags as u16).to_ne_bytes(), &[0; 8], body].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, UdpSocket};

    #[test]
    fn loopback_has_its_address_and_routes_to_itself() {
        let own = IpAddr::from(Ipv4Addr::LOCALHOST);
        assert!(addresses().unwrap().iter().any(|held| held.address == own && held.prefix == 8));
        assert_eq!(RouteLookup::open().unwrap().to(own).unwrap(), HostRoute::Local);
        assert!(RouteLookup::open().unwrap().to(Ipv4Addr::BROADCAST.into()).is_err());
        proxies().unwrap();
    }

    #[test]
    fn sockets_that_listen_are_found() {
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let udp = UdpSocket::bind("0.0.0.0:0").unwrap();
        for (is_udp, end) in [(false, tcp.local_addr().unwrap()), (true, udp.local_addr().unwrap())] {
            let all = listeners(is_udp).unwrap();
            let found = all.iter().find(|one| one.address == end.ip() && one.port == end.port());
            let found = found.unwrap_or_else(|| panic!("{end} is not among {all:?}"));
            assert!(found.takes_ipv4 && found.inode > 0 && found.interface == 0, "{found:?}");
        }
    }

    #[test]
    fn short_messages_are_no_answers() {
        assert!(route(&[]).is_err() && route(&message(libc::RTM_NEWROUTE, 0, &[0; 4])).is_err());
        assert_eq!(held(&message(libc::RTM_NEWADDR, 0, &[0; 8])), None);
        assert_eq!(listener(&message(SOCK_DIAG_BY_FAMILY, 0, &[0; 71])), None);
    }
}

//! Routes that make an address this host's own although no interface has it: `ip route add local ADDRESS dev lo`. The
//! kernel then delivers packets to it to sockets. For an IPv4 address it also answers ARP, unless `arp_ignore` is set.

use super::{HostRoute, RouteLookup, family, message, octets};
use crate::device::index_of;
use crate::device::netlink::acknowledged;
use std::io;
use std::net::IpAddr;

/// The value of a route's field `protocol` that says that Hairpin has made it; no routing daemon has this number.
const PROTOCOL: u8 = 104;

/// Whether the kernel delivers packets to `address` to sockets of this host: an interface has it, or a route of type
/// `local` leads to it.
pub fn is_local(address: IpAddr) -> io::Result<bool> {
    match RouteLookup::open()?.to(address) {
        Ok(route) => Ok(route == HostRoute::Local),
        // The answers where there is no route, and to routes of the types unreachable, prohibit and blackhole.
        Err(error) => match error.raw_os_error() {
            Some(libc::ENETUNREACH | libc::EHOSTUNREACH | libc::EACCES | libc::EINVAL) => Ok(false),
            _ => Err(error),
        },
    }
}

/// Makes a route of type `local` to `address`. One that is there already is no error. Needs CAP_NET_ADMIN.
pub fn add(address: IpAddr) -> io::Result<()> {
    let flags = libc::NLM_F_REQUEST | libc::NLM_F_ACK | libc::NLM_F_CREATE | libc::NLM_F_EXCL;
    unless(libc::EEXIST, change(libc::RTM_NEWROUTE, flags, address))
}

/// Removes the route that [`add`] has made, and none of another program. One that is not there is no error. Needs
/// CAP_NET_ADMIN.
pub fn remove(address: IpAddr) -> io::Result<()> {
    unless(libc::ESRCH, change(libc::RTM_DELROUTE, libc::NLM_F_REQUEST | libc::NLM_F_ACK, address))
}

fn unless(expected: i32, result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.raw_os_error() == Some(expected) => Ok(()),
        result => result,
    }
}

fn change(kind: u16, flags: i32, address: IpAddr) -> io::Result<()> {
    let octets = octets(address);
    let (bits, table) = (8 * octets.len() as u8, libc::RT_TABLE_LOCAL);
    // Lengths of the destination's and the source's prefix, type of service; at the end four bytes of flags.
    let mut body = vec![family(address), bits, 0, 0, table, PROTOCOL, libc::RT_SCOPE_HOST, libc::RTN_LOCAL, 0, 0, 0, 0];
    for (attribute, value) in [(libc::RTA_DST, &octets[..]), (libc::RTA_OIF, &index_of("lo")?.to_ne_bytes())] {
        body.extend_from_slice(&(4 + value.len() as u16).to_ne_bytes());
        body.extend_from_slice(&attribute.to_ne_bytes());
        body.extend_from_slice(value);
    }
    acknowledged(&message(kind, flags, &body))
}

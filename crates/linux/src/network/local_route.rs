//! Routes that make an address this host's own although no interface has it: `ip route add local ADDRESS dev lo`. The
//! kernel then delivers packets to it to sockets. For an IPv4 address it also answers ARP, unless `arp_ignore` is set.

use super::{HostRoute, RouteLookup, change_route, octets};
use crate::device::index_of;
use std::io;
use std::net::IpAddr;

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
    let attributes = [(libc::RTA_DST, &octets(address)[..]), (libc::RTA_OIF, &index_of("lo")?.to_ne_bytes())];
    let class = (libc::RT_TABLE_LOCAL, libc::RT_SCOPE_HOST, libc::RTN_LOCAL);
    change_route(kind, flags, address, class, &attributes)
}

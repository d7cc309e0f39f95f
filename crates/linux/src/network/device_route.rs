//! Routes to single addresses by a device of this program's own.

use super::{change_route, octets};
use std::io;
use std::net::IpAddr;

/// Makes the route to `address` by the interface `ifindex`, in the main table, or replaces it. `source`: the source address of
/// packets from this host, which it must have. It goes with the interface. Needs CAP_NET_ADMIN.
pub fn put(address: IpAddr, ifindex: u32, source: Option<IpAddr>) -> io::Result<()> {
    let flags = libc::NLM_F_REQUEST | libc::NLM_F_ACK | libc::NLM_F_CREATE | libc::NLM_F_REPLACE;
    let (to, interface, source) = (octets(address), ifindex.to_ne_bytes(), source.map(octets));
    let mut attributes = vec![(libc::RTA_DST, &to[..]), (libc::RTA_OIF, &interface[..])];
    attributes.extend(source.iter().map(|source| (libc::RTA_PREFSRC, &source[..])));
    let class = (libc::RT_TABLE_MAIN, libc::RT_SCOPE_LINK, libc::RTN_UNICAST);
    change_route(libc::RTM_NEWROUTE, flags, address, class, &attributes)
}

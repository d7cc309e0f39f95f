//! The current next hop of an address, for a flow engine that forwards packets itself.

use super::neighbours::NeighbourFound;
use super::plan::is_link_local;
use super::{LinkPlan, LinkSegment, Neighbours};
use crate::flow::Address;

/// A next hop whose Ethernet address is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    /// The port that leads there.
    pub port: u16,
    /// That port's Ethernet address.
    pub own: [u8; 6],
    /// The next hop's.
    pub mac: [u8; 6],
}

/// The next hop of untagged packets to `address`: the same as a [`Link`](super::Link) of this plan would take. `None` if
/// there is no route, or the neighbour is not known now; it is not asked for. Addresses that only mean something on one
/// link have none.
pub fn hop(plan: &LinkPlan, neighbours: &Neighbours, address: &Address) -> Option<Hop> {
    if is_link_local(address) || plan.is_local(address) || plan.is_broadcast(address) {
        return None;
    }
    for hop in plan.routes.find(address) {
        let port = plan.ports.get(usize::from(hop.port))?;
        let next = hop.gateway.unwrap_or(*address);
        match neighbours.find(&next, LinkSegment::untagged(hop.port)) {
            NeighbourFound::At { mac, .. } => return Some(Hop { port: hop.port, own: port.mac, mac }),
            // Another gateway may do, as for packets.
            NeighbourFound::Failed => {}
            NeighbourFound::Asked | NeighbourFound::Busy | NeighbourFound::Unknown => return None,
        }
    }
    None
}

/// Changes whenever an answer of [`hop`] for the same plan may have.
pub fn hops_version(neighbours: &Neighbours) -> u64 {
    neighbours.version()
}

#[cfg(test)]
mod tests {
    use super::super::neighbours::Claim;
    use super::super::{LinkOptions, LinkRoute, PortAddresses};
    use super::*;
    use crate::time::Time;
    use core::net::IpAddr;

    fn ip(address: &str) -> IpAddr {
        address.parse().unwrap()
    }

    fn plan() -> LinkPlan {
        let port = |number: u8, network: &str| PortAddresses {
            mac: [2, 0, 0, 0, 0, number],
            mtu: 1500,
            networks: [(ip(network), 24)].into(),
            gateways: [].into(),
        };
        let routes = ["10.1.0.8", "10.1.0.9"].map(|gateway| LinkRoute {
            network: ip("172.16.0.0"),
            prefix: 12,
            port: 1,
            gateway: Some(ip(gateway)),
        });
        let ports = [port(1, "10.0.0.1"), port(2, "10.1.0.1")].into();
        LinkPlan::new(&LinkOptions { ports, routes: routes.into(), ..LinkOptions::default() }).unwrap()
    }

    fn hear(neighbours: &Neighbours, address: &str, port: u16, last: u8) {
        let (address, segment) = (ip(address).into(), LinkSegment::untagged(port));
        let _ = neighbours.need(Time::from_nanos(1), &address, segment);
        let mac = Some([2, 0, 0, 0, 1, last]);
        let claim = Claim { address, segment, mac, solicited: true, overrides: true, learn: false };
        assert!(neighbours.hear(Time::from_nanos(2), &claim));
    }

    #[test]
    fn a_hop_is_known_once_its_neighbour_is() {
        let (plan, neighbours) = (plan(), Neighbours::new(64, [1, 2, 3, 4]));
        let find = |address: &str| hop(&plan, &neighbours, &ip(address).into());
        assert_eq!(find("10.0.0.7"), None);
        let before = hops_version(&neighbours);
        hear(&neighbours, "10.0.0.7", 0, 7);
        assert_ne!(hops_version(&neighbours), before);
        let expected = Hop { port: 0, own: [2, 0, 0, 0, 0, 1], mac: [2, 0, 0, 0, 1, 7] };
        assert_eq!(find("10.0.0.7"), Some(expected));
        assert_eq!(find("172.16.0.1"), None, "the gateway's Ethernet address is unknown");
        hear(&neighbours, "10.1.0.8", 1, 8);
        assert_eq!(find("172.16.0.1").map(|hop| (hop.port, hop.mac[5])), Some((1, 8)));
        for nowhere in ["10.0.0.1", "10.0.0.255", "192.0.2.1", "fe80::1"] {
            assert_eq!(find(nowhere), None, "{nowhere}");
        }
    }
}

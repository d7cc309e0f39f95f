//! Routes: which port, and whom there, a packet goes to by its destination. Longest prefix first.

use crate::flow::Address;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::net::IpAddr;
use core::ops::Range;

/// A route as the configuration names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Destinations: addresses whose first `prefix` bits are these; the others are ignored.
    pub network: IpAddr,
    /// 0 to 32 (IPv4), 0 to 128 (IPv6).
    pub prefix: u8,
    /// The port packets leave by.
    pub port: u16,
    /// Who takes them on; `None`: the destinations are neighbours themselves.
    pub gateway: Option<IpAddr>,
}

/// Bits of an IPv4-mapped address before the IPv4 address.
const MAPPED_BITS: u8 = 96;

/// One way to a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Way {
    network: u128,
    /// The port packets leave by.
    pub(super) port: u16,
    /// Who takes them on, if it is not the destination itself.
    pub(super) gateway: Option<Address>,
}

impl Way {
    /// To whom is at `port` himself.
    pub(super) const fn to_neighbours(port: u16) -> Way {
        Way { network: 0, port, gateway: None }
    }
}

/// Prefixes of one length.
#[derive(Clone, Debug)]
struct Length {
    mask: u128,
    ways: Range<usize>,
    ipv4: bool,
}

/// All routes. IPv4 ones are held as those of mapped addresses, 96 bits longer, and apart from IPv6's by `ipv4`.
#[derive(Clone, Debug, Default)]
pub(super) struct Routes {
    lengths: Box<[Length]>,
    ways: Box<[Way]>,
}

fn mask(bits: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0)
}

/// The first `prefix` bits of `address`, and how many that is among 128.
fn masked(address: IpAddr, prefix: u8) -> (u128, u8) {
    let bits = if address.is_ipv4() { MAPPED_BITS + prefix } else { prefix };
    (u128::from_be_bytes(Address::from(address).0) & mask(bits), bits)
}

/// Whether `address` is in the network of `other` and `prefix`.
pub(super) fn is_within(address: IpAddr, other: IpAddr, prefix: u8) -> bool {
    address.is_ipv4() == other.is_ipv4() && masked(address, prefix) == masked(other, prefix)
}

impl Routes {
    /// The table of `routes`, whose prefixes are in range. Of several to one network, the first that works is taken.
    pub(super) fn new(routes: &[Route]) -> Routes {
        let mut sorted: Vec<(bool, u8, Way)> = routes
            .iter()
            .map(|route| {
                let (network, bits) = masked(route.network, route.prefix);
                let gateway = route.gateway.map(Address::from);
                (route.network.is_ipv4(), bits, Way { network, port: route.port, gateway })
            })
            .collect();
        // stable: routes to one network keep their order
        sorted.sort_by_key(|(ipv4, bits, way)| (core::cmp::Reverse((*ipv4, *bits)), way.network));
        let mut lengths: Vec<(Length, u8)> = Vec::new();
        for (at, &(ipv4, bits, _)) in sorted.iter().enumerate() {
            match lengths.last_mut() {
                Some((last, of)) if last.ipv4 == ipv4 && *of == bits => last.ways.end = at + 1,
                _ => lengths.push((Length { mask: mask(bits), ways: at..at + 1, ipv4 }, bits)),
            }
        }
        Routes {
            lengths: lengths.into_iter().map(|(length, _)| length).collect(),
            ways: sorted.into_iter().map(|(_, _, way)| way).collect(),
        }
    }

    /// The ways to the longest prefix that `destination` is in, in order of preference; none: nobody knows.
    #[inline]
    pub(super) fn find(&self, destination: &Address) -> &[Way] {
        let address = u128::from_be_bytes(destination.0);
        let ipv4 = destination.is_ipv4();
        for length in self.lengths.iter().filter(|length| length.ipv4 == ipv4) {
            let network = address & length.mask;
            let ways = self.ways.get(length.ways.clone()).unwrap_or_default();
            let first = if ways.len() <= 8 {
                ways.iter().position(|way| way.network == network)
            } else {
                let at = ways.partition_point(|way| way.network < network);
                ways.get(at).filter(|way| way.network == network).map(|_| at)
            };
            if let Some(first) = first {
                let found = &ways[first..];
                let count = found.iter().position(|way| way.network != network).unwrap_or(found.len());
                return &found[..count];
            }
        }
        &[]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec;

    fn route(network: &str, prefix: u8, port: u16, gateway: Option<&str>) -> Route {
        let gateway = gateway.map(|gateway| gateway.parse().unwrap());
        Route { network: network.parse().unwrap(), prefix, port, gateway }
    }

    fn port(routes: &Routes, to: &str) -> Vec<u16> {
        routes.find(&to.parse::<IpAddr>().unwrap().into()).iter().map(|way| way.port).collect()
    }

    #[test]
    fn the_longest_prefix_wins_and_families_stay_apart() {
        let routes = Routes::new(&[
            route("0.0.0.0", 0, 1, Some("10.0.0.254")),
            route("10.0.0.7", 24, 2, None),
            route("10.0.0.8", 32, 3, None),
            route("::", 0, 4, Some("fe80::1")),
            route("2001:db8::", 32, 5, None),
        ]);
        assert_eq!(port(&routes, "192.0.2.1"), [1]);
        assert_eq!(port(&routes, "10.0.0.9"), [2]);
        assert_eq!(port(&routes, "10.0.0.8"), [3]);
        assert_eq!(port(&routes, "2001:db9::1"), [4]);
        assert_eq!(port(&routes, "2001:db8::1"), [5]);
        assert_eq!(port(&Routes::new(&[route("::", 0, 4, None)]), "10.0.0.1"), []);
        assert_eq!(port(&Routes::new(&[route("0.0.0.0", 0, 4, None)]), "::1"), []);
        assert_eq!(port(&Routes::default(), "10.0.0.1"), []);
    }

    #[test]
    fn several_ways_to_one_network_keep_their_order() {
        let ways = [route("0.0.0.0", 0, 3, None), route("10.0.0.0", 8, 9, None), route("0.0.0.0", 0, 1, None)];
        assert_eq!(port(&Routes::new(&ways), "192.0.2.1"), [3, 1]);
    }

    proptest! {
        #[test]
        fn as_looking_at_every_route(
            routes in prop::collection::vec((any::<[u8; 4]>(), 0u8..=32, 0u16..9), 0..40),
            near in 0usize..40, noise in any::<u32>(),
        ) {
            // destinations near the networks, else only the shortest prefixes are ever tried
            let base = routes.get(near).map_or(0, |(network, ..)| u32::from_be_bytes(*network));
            let to = base ^ noise.checked_shr(noise & 31).unwrap_or(0);
            let bits = |prefix: u8| u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
            let matches = |(network, prefix, _): &&([u8; 4], u8, u16)|
                u32::from_be_bytes(*network) & bits(*prefix) == to & bits(*prefix);
            let longest = routes.iter().filter(matches).map(|route| route.1).max();
            let expected: Vec<u16> = routes.iter().filter(matches)
                .filter(|route| Some(route.1) == longest).map(|route| route.2).collect();
            let table: Vec<Route> = routes.iter()
                .map(|&(network, prefix, port)| Route { network: network.into(), prefix, port, gateway: None })
                .collect();
            let found = Routes::new(&table);
            let found: Vec<u16> = found.find(&Address::from_ipv4(to.to_be_bytes())).iter().map(|way| way.port).collect();
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn many_routes_of_one_length() {
        let routes: Vec<Route> = (0..=255u8)
            .map(|n| Route { network: [10, n, 0, 0].into(), prefix: 16, port: u16::from(n), gateway: None })
            .collect();
        let routes = Routes::new(&routes);
        assert_eq!(port(&routes, "10.77.1.2"), vec![77]);
        assert_eq!(port(&routes, "11.77.1.2"), []);
    }
}

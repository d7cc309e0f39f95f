//! Routes: the port and next hop of a packet, by its destination. Longest prefix first.

use crate::flow::Address;
use alloc::boxed::Box;
use alloc::vec::Vec;
use arrayvec::ArrayVec;
use core::cmp::Reverse;
use core::net::IpAddr;
use core::ops::Range;

/// A route as the configuration names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkRoute {
    /// Destinations: addresses whose first `prefix` bits are these; the others are ignored.
    pub network: IpAddr,
    /// 0 to 32 (IPv4), 0 to 128 (IPv6).
    pub prefix: u8,
    /// The port packets leave by.
    pub port: u16,
    /// The gateway; `None`: the destinations are neighbours themselves.
    pub gateway: Option<IpAddr>,
}

/// One next hop of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NextHop {
    /// The port packets leave by.
    pub(super) port: u16,
    /// The gateway; `None`: the destination is a neighbour.
    pub(super) gateway: Option<Address>,
}

impl NextHop {
    /// The next hop of destinations that are neighbours at `port`.
    pub(super) const fn on_link(port: u16) -> NextHop {
        NextHop { port, gateway: None }
    }
}

/// Prefixes of one length, longest first; `N`: addresses of the family as numbers.
#[derive(Clone, Debug)]
struct PrefixesOfLength<N> {
    mask: N,
    hops: Range<usize>,
}

/// The routes of one family.
#[derive(Clone, Debug)]
struct FamilyRoutes<N> {
    lengths: Box<[PrefixesOfLength<N>]>,
    /// By length, then by number.
    networks: Box<[N]>,
    /// The next hop of each network, at the same position.
    hops: Box<[NextHop]>,
}

/// All routes.
#[derive(Clone, Debug)]
pub(super) struct LinkRoutes {
    ipv4: FamilyRoutes<u32>,
    ipv6: FamilyRoutes<u128>,
    few: FewRoutes,
}

/// IPv4 routes that are few enough for a linear search, longest first: the usual case.
pub(super) type FewRoutes = ArrayVec<FewRoute, FEW_MAX>;
/// Routes that a linear search takes at most.
pub(super) const FEW_MAX: usize = 8;

/// One of few routes: the only route to its network.
#[derive(Clone, Copy, Debug)]
pub(super) struct FewRoute {
    network: u32,
    mask: u32,
    /// The port packets leave by.
    pub(super) port: u16,
    /// Whether packets go to a gateway.
    pub(super) has_gateway: bool,
}

/// Networks of one length up to which a linear search is used; above it, a binary search.
const LINEAR_MAX: usize = 8;

impl<N: Copy + Ord + core::ops::BitAnd<Output = N>> FamilyRoutes<N> {
    /// Takes networks, masks, lengths in bits and next hops; those to one network are in order of preference.
    fn new(mut routes: Vec<(N, N, u8, NextHop)>) -> FamilyRoutes<N> {
        // stable: routes to one network keep their order
        routes.sort_by_key(|(network, _, bits, _)| (Reverse(*bits), *network));
        let mut lengths: Vec<(u8, PrefixesOfLength<N>)> = Vec::new();
        for (at, &(_, mask, bits, _)) in routes.iter().enumerate() {
            match lengths.last_mut() {
                Some((of, last)) if *of == bits => last.hops.end = at + 1,
                _ => lengths.push((bits, PrefixesOfLength { mask, hops: at..at + 1 })),
            }
        }
        FamilyRoutes {
            lengths: lengths.into_iter().map(|(_, length)| length).collect(),
            networks: routes.iter().map(|(network, ..)| *network).collect(),
            hops: routes.iter().map(|(.., hop)| *hop).collect(),
        }
    }

    #[inline(always)]
    fn find(&self, address: N) -> &[NextHop] {
        for length in &self.lengths {
            let network = address & length.mask;
            let networks = self.networks.get(length.hops.clone()).unwrap_or_default();
            let first = match networks.len() {
                ..=LINEAR_MAX => networks.iter().position(|other| *other == network),
                _ => Some(networks.partition_point(|other| *other < network)),
            };
            let Some(first) = first.filter(|first| networks.get(*first) == Some(&network)) else { continue };
            let count = networks[first..].iter().take_while(|other| **other == network).count();
            let from = length.hops.start + first;
            return self.hops.get(from..from + count).unwrap_or_default();
        }
        &[]
    }
}

/// The routes, if they are few and of different networks; none if not.
fn few(ipv4: &FamilyRoutes<u32>) -> FewRoutes {
    let mut few = FewRoutes::new();
    for length in &ipv4.lengths {
        for at in length.hops.clone() {
            let (Some(&network), Some(hop)) = (ipv4.networks.get(at), ipv4.hops.get(at)) else { continue };
            let route = FewRoute { network, mask: length.mask, port: hop.port, has_gateway: hop.gateway.is_some() };
            let again = few.last().is_some_and(|last| last.network == network && last.mask == length.mask);
            if again || few.try_push(route).is_err() {
                return FewRoutes::new();
            }
        }
    }
    few
}

/// The first `bits` bits of an address.
fn mask_v4(bits: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0)
}

fn mask_v6(bits: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0)
}

/// Whether `address` is in the network of `other` and `prefix`.
pub(super) fn is_within(address: IpAddr, other: IpAddr, prefix: u8) -> bool {
    match (address, other) {
        (IpAddr::V4(a), IpAddr::V4(b)) => (a.to_bits() ^ b.to_bits()) & mask_v4(prefix) == 0,
        (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits() ^ b.to_bits()) & mask_v6(prefix) == 0,
        _ => false,
    }
}

impl LinkRoutes {
    /// The table of `routes`, whose prefixes are in range. Of several to one network, the first that works is taken.
    pub(super) fn new(routes: &[LinkRoute]) -> LinkRoutes {
        let (mut ipv4, mut ipv6) = (Vec::new(), Vec::new());
        for route in routes {
            let hop = NextHop { port: route.port, gateway: route.gateway.map(Address::from) };
            let bits = route.prefix;
            match route.network {
                IpAddr::V4(network) => {
                    let mask = mask_v4(bits);
                    ipv4.push((network.to_bits() & mask, mask, bits, hop));
                }
                IpAddr::V6(network) => {
                    let mask = mask_v6(bits);
                    ipv6.push((network.to_bits() & mask, mask, bits, hop));
                }
            }
        }
        let ipv4 = FamilyRoutes::new(ipv4);
        LinkRoutes { few: few(&ipv4), ipv4, ipv6: FamilyRoutes::new(ipv6) }
    }

    /// The position of the route to `destination` among the few there are; `None`: there is none, or there are many.
    #[inline(always)]
    pub(super) fn find_few(&self, destination: [u8; 4]) -> Option<(usize, &FewRoute)> {
        let address = u32::from_be_bytes(destination);
        self.few.iter().enumerate().find(|(_, route)| (address ^ route.network) & route.mask == 0)
    }

    /// Positions of the few routes that use this gateway at this port.
    pub(super) fn few_by(&self, gateway: &Address, port: u16) -> impl Iterator<Item = usize> {
        let hops = self.ipv4.hops.iter().take(self.few.len()).enumerate();
        hops.filter(move |(_, hop)| hop.port == port && hop.gateway.as_ref() == Some(gateway)).map(|(at, _)| at)
    }

    /// The next hops for the longest prefix that `destination` is in, in order of preference; none: there is no route.
    pub(super) fn find(&self, destination: &Address) -> &[NextHop] {
        match destination.is_ipv4() {
            true => self.ipv4.find(u32::from_be_bytes(destination.ipv4_octets())),
            false => self.ipv6.find(u128::from_be_bytes(destination.0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec;

    fn route(network: &str, prefix: u8, port: u16, gateway: Option<&str>) -> LinkRoute {
        let gateway = gateway.map(|gateway| gateway.parse().unwrap());
        LinkRoute { network: network.parse().unwrap(), prefix, port, gateway }
    }

    fn port(routes: &LinkRoutes, to: &str) -> Vec<u16> {
        routes.find(&to.parse::<IpAddr>().unwrap().into()).iter().map(|hop| hop.port).collect()
    }

    #[test]
    fn the_longest_prefix_wins_and_families_stay_apart() {
        let routes = LinkRoutes::new(&[
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
        assert_eq!(port(&LinkRoutes::new(&[route("::", 0, 4, None)]), "10.0.0.1"), []);
        assert_eq!(port(&LinkRoutes::new(&[route("0.0.0.0", 0, 4, None)]), "::1"), []);
        assert_eq!(port(&LinkRoutes::new(&[]), "10.0.0.1"), []);
    }

    #[test]
    fn routes_to_one_network_keep_their_order() {
        let hops = [route("0.0.0.0", 0, 3, None), route("10.0.0.0", 8, 9, None), route("0.0.0.0", 0, 1, None)];
        assert_eq!(port(&LinkRoutes::new(&hops), "192.0.2.1"), [3, 1]);
    }

    proptest! {
        #[test]
        fn lookup_matches_linear_search(
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
            let table: Vec<LinkRoute> = routes.iter()
                .map(|&(network, prefix, port)| LinkRoute { network: network.into(), prefix, port, gateway: None })
                .collect();
            let routes = LinkRoutes::new(&table);
            let found: Vec<u16> = routes.find(&Address::from_ipv4(to.to_be_bytes())).iter().map(|hop| hop.port).collect();
            prop_assert_eq!(&found, &expected);
            if let Some((_, few)) = routes.find_few(to.to_be_bytes()) {
                prop_assert_eq!(&[few.port][..], &expected[..]);
            } else {
                prop_assert!(expected.is_empty() || routes.few.is_empty());
            }
        }
    }

    #[test]
    fn many_routes_of_one_length() {
        let routes: Vec<LinkRoute> = (0..=255u8)
            .map(|n| LinkRoute { network: [10, n, 0, 0].into(), prefix: 16, port: u16::from(n), gateway: None })
            .collect();
        let routes = LinkRoutes::new(&routes);
        assert_eq!(port(&routes, "10.77.1.2"), vec![77]);
        assert_eq!(port(&routes, "11.77.1.2"), []);
    }
}

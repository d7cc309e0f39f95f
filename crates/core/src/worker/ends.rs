//! The service or backend at an end: looked up once or twice for every packet of no connection, and for every packet where
//! none are tracked.

use crate::flow::{Endpoint, Protocol};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec;

/// Numbers by (end, protocol). Made once from a configuration, so that no sender of packets chooses what is in it: open
/// addressing in a power of two of places of which at most half are taken, and none is ever taken away.
pub(super) struct Ends {
    places: Box<[Option<EndEntry>]>,
}

#[derive(Clone, Copy)]
struct EndEntry {
    end: Endpoint,
    protocol: Protocol,
    number: u16,
}

impl From<&BTreeMap<(Endpoint, Protocol), u16>> for Ends {
    fn from(numbers: &BTreeMap<(Endpoint, Protocol), u16>) -> Ends {
        let mut places: Box<[Option<EndEntry>]> = vec![None; (2 * numbers.len()).next_power_of_two().max(2)].into();
        for (&(end, protocol), &number) in numbers {
            let mut at = place(&end, protocol, places.len());
            while places[at].is_some() {
                at = (at + 1) & (places.len() - 1);
            }
            places[at] = Some(EndEntry { end, protocol, number });
        }
        Ends { places }
    }
}

impl Ends {
    /// The number at an end, if there is one.
    #[inline(always)]
    pub(super) fn at(&self, end: &Endpoint, protocol: Protocol) -> Option<u16> {
        let mut at = place(end, protocol, self.places.len());
        // Some place is free, so this ends.
        while let Some(Some(entry)) = self.places.get(at) {
            if is_same(&entry.end, end) && entry.protocol == protocol {
                return Some(entry.number);
            }
            at = (at + 1) & (self.places.len() - 1);
        }
        None
    }
}

#[inline(always)]
fn is_same(one: &Endpoint, other: &Endpoint) -> bool {
    let ([a, b], [c, d]) = (one.address.words(), other.address.words());
    a ^ c | b ^ d | u64::from(one.port ^ other.port) == 0
}

/// The first place to search among `places`, a power of two: the halves of a product, one into the other, since what
/// differs may stand anywhere in it.
#[inline]
fn place(end: &Endpoint, protocol: Protocol, places: usize) -> usize {
    let [a, b] = end.address.words();
    let tail = u64::from(end.port) << 8 | protocol as u64;
    let x = b.rotate_left(20) ^ tail ^ a.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let product = u128::from(x) * 0xD6E8_FEB8_6659_FD93;
    ((product >> 64) as u64 ^ product as u64) as usize & (places - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
    use proptest::prelude::*;

    fn end() -> impl Strategy<Value = (Endpoint, Protocol)> {
        let v4 = (0u32..40).prop_map(|n| IpAddr::from(Ipv4Addr::from(0x0a00_0000 + n)));
        let v6 = (0u128..40).prop_map(|n| IpAddr::from(Ipv6Addr::from((0x2001 << 112) + n)));
        let protocol = prop_oneof![Just(Protocol::Tcp), Just(Protocol::Udp)];
        (prop_oneof![v4, v6], 80u16..84, protocol).prop_map(|(ip, port, protocol)| (Endpoint::new(ip, port), protocol))
    }

    proptest! {
        #[test]
        fn agrees_with_a_plain_map(
            there in prop::collection::btree_map(end(), any::<u16>(), 0..200),
            asked in prop::collection::vec(end(), 0..100),
        ) {
            let ends = Ends::from(&there);
            for (end, protocol) in there.keys().copied().chain(asked) {
                prop_assert_eq!(ends.at(&end, protocol), there.get(&(end, protocol)).copied());
            }
        }
    }

    #[test]
    fn neighbours_do_not_crowd() {
        // As configurations have them: one address and many ports, one port and many addresses.
        let ports = (0..16_384).map(|n| (Ipv4Addr::new(10, 0, 0, 1), 1000 + n));
        let addresses = (0..16_384u16).map(|n| (Ipv4Addr::new(10, 1, (n >> 8) as u8, n as u8), 80));
        for many in [ports.collect::<alloc::vec::Vec<_>>(), addresses.collect()] {
            let key = |&(address, port): &(Ipv4Addr, u16)| (Endpoint::new(IpAddr::from(address), port), Protocol::Tcp);
            let ends = Ends::from(&many.iter().map(|end| (key(end), 7)).collect());
            let runs = ends.places.split(|place| place.is_none());
            let longest = runs.map(<[_]>::len).max();
            assert!(longest < Some(100), "{longest:?} in a row");
        }
    }
}

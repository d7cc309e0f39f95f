//! Reading what nearly all packets are: Ethernet without tags, IPv4 without options, TCP or UDP, whole and in order. One
//! look at headers whose places are known beforehand, instead of [`parse`](super::parse)'s way from header to header.

use super::checksum::Sum;
use super::{Transport, ethernet, ipv4, tcp, udp};
use crate::flow::{Address, Endpoint, FlowKey, Protocol};
use core::num::NonZeroU8;

/// Offset of the IPv4 header.
pub(crate) const L3: usize = ethernet::HEADER;
/// Offset of the transport header.
pub(crate) const L4: usize = L3 + ipv4::HEADER;
/// Offset of the hops left.
pub(crate) const HOPS: usize = L3 + 8;
/// Offset of the IPv4 header's checksum.
pub(crate) const HEADER_CHECKSUM: usize = L3 + 10;
/// Offset of the source address; the destination's is behind it.
pub(crate) const SOURCE: usize = L3 + 12;
/// Bytes that are looked at, whatever the transport is; a frame with fewer is not plain.
pub(crate) const HEAD: usize = L4 + tcp::HEADER;

/// The first bytes of a plain packet's frame.
pub(crate) type Head = [u8; HEAD];

/// A plain packet, but for its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plain {
    /// Offset of the end of the IP packet.
    pub(crate) end: u32,
    /// Offset of what the transport carries.
    payload: NonZeroU8,
    /// TCP's flags; 0 for UDP.
    pub(crate) tcp_flags: u8,
    /// Hops left.
    pub(crate) ttl: u8,
}

// So many stand in an array for each burst.
const _: () = assert!(size_of::<Option<Plain>>() == 8);

impl Plain {
    /// The packet in `frame`, its flow in `key`; `None`, and no matter what is in `key`, if it is not a plain one, for
    /// whatever reason. Where there is an answer, [`parse`](super::parse) has the same.
    #[inline(always)]
    pub(crate) fn of(frame: &[u8], key: &mut FlowKey) -> Option<Plain> {
        let head: &Head = frame.first_chunk()?;
        // In words, as they stand: taken byte by byte it would be twice the work.
        let word = |at: usize| u32::from_ne_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let words = [word(L3), word(L3 + 4), word(L3 + 8), word(L3 + 12), word(L3 + 16)];
        let [first, second, third, ..] = words.map(u32::from_be);
        let ethertype = u16::from_be_bytes([head[L3 - 2], head[L3 - 1]]);
        let whole = second & u32::from(ipv4::MORE_FRAGMENTS | ipv4::FRAGMENT_OFFSET) == 0;
        let end = L3 + (first & 0xffff) as usize;
        let known = ethertype == ethernet::IPV4 && first >> 24 == 0x45;
        if !known || !whole || end > frame.len() || !Sum::is_right(words) {
            return None;
        }
        let [source, destination] = [words[3], words[4]].map(u32::to_ne_bytes);
        if !is_plain_host(source) || !is_plain_host(destination) {
            return None;
        }
        let (protocol, payload, tcp_flags) = match third >> 16 & 0xff {
            6 => {
                let length = usize::from(head[L4 + 12] >> 4) * 4;
                if length < tcp::HEADER || L4 + length > end {
                    return None;
                }
                (Protocol::Tcp, L4 + length, head[L4 + tcp::FLAGS])
            }
            17 => {
                let length = usize::from(u16::from_be_bytes([head[L4 + udp::LENGTH], head[L4 + udp::LENGTH + 1]]));
                if length < udp::HEADER || L4 + length > end {
                    return None;
                }
                (Protocol::Udp, L4 + udp::HEADER, 0)
            }
            _ => return None,
        };
        let ports = [head[L4], head[L4 + 1], head[L4 + 2], head[L4 + 3]];
        // Some packets from an address to itself are made to loop.
        if source == destination {
            return None;
        }
        let end_of = |address, port| Endpoint { address: mapped(address), port: u16::from_be_bytes(port) };
        *key = FlowKey {
            source: end_of(source, [ports[0], ports[1]]),
            destination: end_of(destination, [ports[2], ports[3]]),
            protocol,
        };
        let payload = NonZeroU8::new(payload as u8)?;
        Some(Plain { end: end as u32, payload, tcp_flags, ttl: (third >> 24) as u8 })
    }

    /// The same as [`parse`](super::parse) tells it; `key` is what came with it.
    #[inline]
    pub(crate) fn transport(self, key: FlowKey) -> Transport {
        let Plain { end, payload, tcp_flags, ttl } = self;
        Transport { key, l3: L3, l4: L4, payload: usize::from(payload.get()), end: end as usize, tcp_flags, ttl }
    }

    /// Bytes of the IP packet.
    #[inline]
    pub(crate) fn length(self) -> u32 {
        self.end - L3 as u32
    }
}

/// [`Address::from_ipv4`] in two words, as whoever hashes it reads them: a processor hands on what it has just written only
/// to reads of no more than one write.
#[inline(always)]
fn mapped(address: [u8; 4]) -> Address {
    let word = 0xffff << 80 | u128::from(u32::from_le_bytes(address)) << 96;
    Address(word.to_le_bytes())
}

/// Addresses of 1.0.0.0 to 223.255.255.255 but for 127.0.0.0/8: all that are somebody's today.
#[inline(always)]
fn is_plain_host(address: [u8; 4]) -> bool {
    address[0].wrapping_sub(1) < 223 && address[0] != 127
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Parsed, parse};
    use alloc::vec::Vec;
    use proptest::prelude::*;

    /// A frame in order, of so many bytes from the transport header on.
    fn frame(protocol: u8, length: usize) -> Vec<u8> {
        let mut frame = std::vec![0; L4 + length];
        frame[12..15].copy_from_slice(&[8, 0, 0x45]);
        frame[16..18].copy_from_slice(&((20 + length) as u16).to_be_bytes());
        (frame[22], frame[23]) = (64, protocol);
        frame[26..34].copy_from_slice(&[192, 0, 2, 1, 198, 51, 100, 2]);
        frame[34..38].copy_from_slice(&[1, 2, 3, 4]);
        match protocol {
            6 => (frame[46], frame[47]) = (5 << 4, tcp::ACK),
            _ => frame[38..40].copy_from_slice(&(length as u16).to_be_bytes()),
        }
        ipv4::fill_checksum(&mut frame[14..34]);
        frame
    }

    #[test]
    fn nearly_all_packets_are_plain() {
        for (protocol, length) in [(6, 20), (6, 26), (17, 20), (17, 1400)] {
            let frame = frame(protocol, length);
            let mut key = FlowKey::default();
            let plain = Plain::of(&frame, &mut key).expect("plain");
            assert_eq!(Ok(Parsed::Transport(plain.transport(key))), parse(&frame));
        }
    }

    #[test]
    fn addresses_are_the_same_in_words() {
        for address in [[1, 2, 3, 4], [0xff, 0, 0x80, 0x7f]] {
            assert_eq!(mapped(address), Address::from_ipv4(address));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]

        #[test]
        fn whoever_is_plain_is_what_parsing_says(
            (protocol, length, padding) in (prop_oneof![Just(6u8), Just(17), Just(1)], 20usize..80, 0usize..8),
            changes in proptest::collection::vec((0usize..60, any::<u8>()), 0..3),
            (right, cut) in (any::<bool>(), 0usize..70),
        ) {
            let mut frame = frame(protocol, length);
            frame.resize(frame.len() + padding, 0);
            for (at, byte) in changes {
                if let Some(place) = frame.get_mut(at) {
                    *place = byte;
                }
            }
            if right {
                ipv4::fill_checksum(&mut frame[14..34]);
            }
            if cut < 8 {
                frame.truncate(frame.len() - cut);
            }
            let mut key = FlowKey::default();
            if let Some(plain) = Plain::of(&frame, &mut key) {
                let at = plain.transport(key);
                prop_assert_eq!(Ok(Parsed::Transport(at)), parse(&frame));
                prop_assert_eq!(plain.length() as usize, at.end - at.l3);
            }
        }
    }
}

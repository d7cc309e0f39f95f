//! Reading what nearly all packets are: Ethernet without tags, IPv4 without options, TCP or UDP, whole and in order. One
//! look at headers whose places are known beforehand, instead of [`parse`](super::parse)'s way from header to header.

use super::bytes::array_at;
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

/// A plain packet's flow, in words: addresses as they stand in packets, ports and protocol as [`FlowKey`] has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ends {
    source: u32,
    /// The address it goes to.
    pub(crate) destination: u32,
    source_port: u16,
    pub(crate) destination_port: u16,
    pub(crate) protocol: Protocol,
}

impl Ends {
    /// The same as others know it.
    #[inline(always)]
    pub(crate) fn key(self) -> FlowKey {
        FlowKey {
            source: Endpoint { address: mapped(self.source), port: self.source_port },
            destination: Endpoint { address: mapped(self.destination), port: self.destination_port },
            protocol: self.protocol,
        }
    }
}

impl Plain {
    /// The packet in `frame` and its flow; `None` if it is not a plain one, for whatever reason. Where there is an answer,
    /// [`parse`](super::parse) has the same.
    #[inline(always)]
    pub(crate) fn of(frame: &[u8]) -> Option<(Plain, Ends)> {
        let head: &Head = frame.first_chunk()?;
        // In words, as they stand: taken byte by byte it would be twice the work.
        let (first, second) = (u64::from_le_bytes(array_at(head, L3)?), u64::from_le_bytes(array_at(head, L3 + 8)?));
        let destination = u32::from_le_bytes(array_at(head, L3 + 16)?);
        // The EtherType, and version and length of the IPv4 header.
        let known = u32::from_le_bytes(array_at(head, L3 - 2)?) & 0x00ff_ffff == 0x0045_0008;
        let whole = (first >> 48) as u16 & (ipv4::MORE_FRAGMENTS | ipv4::FRAGMENT_OFFSET).swap_bytes() == 0;
        let end = L3 + usize::from(((first >> 16) as u16).swap_bytes());
        if !known || !whole || end > frame.len() || !Sum::is_right(first, second, destination) {
            return None;
        }
        let source = (second >> 32) as u32;
        // Some packets from an address to itself are made to loop.
        let hosts = ipv4::is_usual_host(source as u8) && ipv4::is_usual_host(destination as u8);
        if !hosts || source == destination {
            return None;
        }
        let (protocol, payload, tcp_flags) = match (second >> 8) as u8 {
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
        let [source_port, destination_port] = [L4, L4 + 2].map(|at| u16::from_be_bytes([head[at], head[at + 1]]));
        let payload = NonZeroU8::new(payload as u8)?;
        let plain = Plain { end: end as u32, payload, tcp_flags, ttl: second as u8 };
        Some((plain, Ends { source, destination, source_port, destination_port, protocol }))
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

/// The transport protocol of a plain packet.
#[inline(always)]
pub(crate) fn protocol(head: &Head) -> Protocol {
    if head[L3 + 9] == Protocol::Udp as u8 { Protocol::Udp } else { Protocol::Tcp }
}

/// Bytes of a plain IP packet.
#[inline(always)]
pub(crate) fn length(head: &Head) -> u16 {
    u16::from_be_bytes([head[L3 + 2], head[L3 + 3]])
}

/// [`Address::from_ipv4`] of an address as it stands, in two words, as whoever hashes it reads them: a processor hands on what it has just written only
/// to reads of no more than one write.
#[inline(always)]
fn mapped(address: u32) -> Address {
    let word = 0xffff << 80 | u128::from(address) << 96;
    Address(word.to_le_bytes())
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
            let (plain, ends) = Plain::of(&frame).expect("plain");
            assert_eq!(Ok(Parsed::Transport(plain.transport(ends.key()))), parse(&frame));
        }
    }

    #[test]
    fn addresses_are_the_same_in_words() {
        for address in [[1, 2, 3, 4], [0xff, 0, 0x80, 0x7f]] {
            assert_eq!(mapped(u32::from_le_bytes(address)), Address::from_ipv4(address));
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
            if let Some((plain, ends)) = Plain::of(&frame) {
                let at = plain.transport(ends.key());
                prop_assert_eq!(Ok(Parsed::Transport(at)), parse(&frame));
                prop_assert_eq!(plain.length() as usize, at.end - at.l3);
            }
        }
    }
}

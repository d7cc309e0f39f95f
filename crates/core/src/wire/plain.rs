//! Reading what nearly all packets are: Ethernet without tags, IPv4 without options, TCP or UDP, whole and in order. One
//! read headers at known places, instead of [`parse`](super::parse)'s path from header to header.

use super::bytes::array_at;
use super::checksum::Sum;
use super::{Transport, ethernet, ipv4, tcp, udp};
use crate::flow::{Address, Endpoint, FlowKey, Protocol};
use core::num::NonZeroU8;

/// [`Protocol::Tcp`], as packets have it.
pub(crate) const TCP: u8 = Protocol::Tcp as u8;
/// [`Protocol::Udp`], as packets have it.
pub(crate) const UDP: u8 = Protocol::Udp as u8;
/// Offset of the IPv4 header.
pub(crate) const L3: usize = ethernet::HEADER;
/// Offset of the transport header.
pub(crate) const L4: usize = L3 + ipv4::HEADER;
/// Offset of the hops left.
pub(crate) const HOPS: usize = L3 + 8;
/// Bytes that are read, whatever the transport is; a frame with fewer is not plain.
pub(crate) const HEAD: usize = L4 + tcp::HEADER;

/// The bits that mark a fragment, as they are in the header's word.
const FRAGMENT: u64 = (ipv4::MORE_FRAGMENTS | ipv4::FRAGMENT_OFFSET).swap_bytes() as u64;

/// The first bytes of a plain packet's frame.
pub(crate) type PlainHead = [u8; HEAD];

/// A plain packet, but for its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlainPacket {
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
const _: () = assert!(size_of::<Option<PlainPacket>>() == 8);

/// A plain packet's flow, in the words in which it stands in the packet: hops, protocol, checksum and source; destination
/// and ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlainEnds {
    words: [u64; 2],
    pub(crate) protocol: Protocol,
}

/// The IP header of a plain packet.
#[derive(Clone, Copy)]
pub(crate) struct PlainNetwork<'a> {
    head: &'a PlainHead,
    /// Offset of the end of the IP packet.
    end: u32,
    words: [u64; 2],
}

/// The words of [`PlainEnds`].
#[inline(always)]
pub(crate) fn words(head: &PlainHead) -> Option<[u64; 2]> {
    let word = |at| array_at(head, at).map(u64::from_le_bytes);
    Some([word(HOPS)?, word(HOPS + 8)?])
}

impl PlainEnds {
    /// The end that it goes to, and the protocol, in a word that is not 0.
    #[inline(always)]
    pub(crate) fn destination(self) -> u64 {
        self.words[1] & !0x0000_ffff_0000_0000 | (self.protocol as u64) << 32
    }

    /// The ends and the protocol as a [`FlowKey`].
    #[inline(always)]
    pub(crate) fn key(self) -> FlowKey {
        let PlainEnds { words, protocol } = self;
        let [source, destination] = [words[0] >> 32, words[1]].map(|word| mapped(word as u32));
        let [source_port, destination_port] = [words[1] >> 32, words[1] >> 48].map(|word| (word as u16).swap_bytes());
        FlowKey {
            source: Endpoint { address: source, port: source_port },
            destination: Endpoint { address: destination, port: destination_port },
            protocol,
        }
    }

    /// [`FlowKey::ipv4_words`] of it.
    #[inline(always)]
    pub(crate) fn ipv4_words(self) -> [u64; 2] {
        let ports = ((self.words[1] >> 32) as u32).swap_bytes();
        [self.words[0] >> 32 | self.words[1] << 32, u64::from(ports) | (self.protocol as u64) << 32]
    }
}

impl<'a> PlainNetwork<'a> {
    /// The header of the packet in `frame`, if that may be a plain one.
    #[inline(always)]
    pub(crate) fn of(frame: &'a [u8]) -> Option<PlainNetwork<'a>> {
        let head: &PlainHead = frame.first_chunk()?;
        // In words, as they stand: taken byte by byte it would be twice the work.
        let first = u64::from_le_bytes(array_at(head, L3)?);
        let words = words(head)?;
        let [source, destination] = [(words[0] >> 32) as u32, words[1] as u32];
        let ethertype = u16::from_be_bytes(array_at(head, ethernet::HEADER - 2)?);
        // Version and length of the header; whether it is a fragment.
        let usual = first & (FRAGMENT << 48 | 0xff) == 0x45;
        let end = L3 + usize::from(((first >> 16) as u16).swap_bytes());
        if ethertype != ethernet::IPV4 || !usual || end > frame.len() || !Sum::is_right(first, words[0], destination) {
            return None;
        }
        // Some packets from an address to itself are made to loop.
        let hosts = ipv4::is_usual_host(source as u8) && ipv4::is_usual_host(destination as u8);
        (hosts && source != destination).then_some(PlainNetwork { head, end: end as u32, words })
    }

    /// [`PlainNetwork::of`] without its checks but the EtherType's, for a frame that has passed them.
    #[inline(always)]
    pub(crate) fn examined(frame: &'a [u8]) -> Option<PlainNetwork<'a>> {
        let head: &PlainHead = frame.first_chunk()?;
        let ethertype = u16::from_be_bytes(array_at(head, ethernet::HEADER - 2)?);
        let end = L3 as u32 + u32::from(u16::from_be_bytes(array_at(head, L3 + 2)?));
        (ethertype == ethernet::IPV4).then_some(PlainNetwork { head, end, words: words(head)? })
    }

    /// The number of the protocol that it carries.
    #[inline(always)]
    pub(crate) fn protocol(self) -> u8 {
        (self.words[0] >> 8) as u8
    }

    /// Hops left.
    #[inline(always)]
    pub(crate) fn ttl(self) -> u8 {
        self.words[0] as u8
    }

    /// The packet and its flow, if its transport header, of this protocol, is in order too.
    #[inline(always)]
    pub(crate) fn with(self, protocol: Protocol) -> Option<(PlainPacket, PlainEnds)> {
        let PlainNetwork { head, end, words } = self;
        let (header, least, tcp_flags) = match protocol {
            Protocol::Tcp => {
                let length = usize::from(head[L4 + 12] >> 4) * 4;
                (length, tcp::HEADER, head[L4 + tcp::FLAGS])
            }
            Protocol::Udp => {
                let length = usize::from(u16::from_be_bytes([head[L4 + udp::LENGTH], head[L4 + udp::LENGTH + 1]]));
                (length, udp::HEADER, 0)
            }
        };
        if header < least || L4 + header > end as usize {
            return None;
        }
        let payload = L4 + if protocol == Protocol::Udp { udp::HEADER } else { header };
        let payload = NonZeroU8::new(payload as u8)?;
        Some((PlainPacket { end, payload, tcp_flags, ttl: self.ttl() }, PlainEnds { words, protocol }))
    }

    /// [`PlainNetwork::with`], if an honest packet may have its flags.
    #[inline(always)]
    pub(crate) fn honest(self, protocol: Protocol) -> Option<(PlainPacket, PlainEnds)> {
        let found = self.with(protocol)?;
        (protocol == Protocol::Udp || !tcp::are_impossible(found.0.tcp_flags)).then_some(found)
    }
}

/// The plain packet in `frame`, with flags that an honest one may have, and its flow.
#[inline(always)]
pub(crate) fn honest(frame: &[u8]) -> Option<(PlainPacket, PlainEnds)> {
    honest_of(PlainNetwork::of(frame)?)
}

/// [`honest`] of a frame of which it is known that [`PlainNetwork::of`] has a header, if its EtherType is IPv4.
#[inline(always)]
pub(crate) fn examined(frame: &[u8]) -> Option<(PlainPacket, PlainEnds)> {
    honest_of(PlainNetwork::examined(frame)?)
}

#[inline(always)]
fn honest_of(network: PlainNetwork<'_>) -> Option<(PlainPacket, PlainEnds)> {
    match network.protocol() {
        TCP => network.honest(Protocol::Tcp),
        UDP => network.honest(Protocol::Udp),
        _ => None,
    }
}

impl PlainPacket {
    /// The packet in `frame` and its flow; `None` if it is not a plain one, for whatever reason. Where there is an answer,
    /// [`parse`](super::parse) has the same.
    #[cfg(test)]
    fn of(frame: &[u8]) -> Option<(PlainPacket, PlainEnds)> {
        let network = PlainNetwork::of(frame)?;
        match network.protocol() {
            TCP => network.with(Protocol::Tcp),
            UDP => network.with(Protocol::Udp),
            _ => None,
        }
    }

    /// The packet as [`parse`](super::parse) tells it; `key` is what came with it.
    #[inline]
    pub(crate) fn transport(self, key: FlowKey) -> Transport {
        let PlainPacket { end, payload, tcp_flags, ttl } = self;
        Transport { key, l3: L3, l4: L4, payload: usize::from(payload.get()), end: end as usize, tcp_flags, ttl }
    }

    /// Bytes of the IP packet.
    #[inline]
    pub(crate) fn length(self) -> u32 {
        self.end - L3 as u32
    }
}

/// [`Address::from_ipv4`] of an address as it stands, in two words, as they are read for hashing: a processor hands on
/// what it has just written only to reads of no more than one write.
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
            let (plain, ends) = PlainPacket::of(&frame).expect("plain");
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
        fn plain_packets_are_those_that_parsing_names(
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
            if let Some((plain, ends)) = PlainPacket::of(&frame) {
                let at = plain.transport(ends.key());
                prop_assert_eq!(Ok(Parsed::Transport(at)), parse(&frame));
                prop_assert_eq!(plain.length() as usize, at.end - at.l3);
                prop_assert_eq!(Some(ends.ipv4_words()), ends.key().ipv4_words());
                prop_assert_ne!(ends.destination(), 0);
            }
        }
    }
}

//! Frames prepared as far as they can be: what differs from packet to packet - ends, stamp, length - is filled in, and the
//! checksums with it, without summing the payload again.

use super::stamp::{self, BYTES};
use hairpin_core::flow::Protocol;
use hairpin_core::wire::checksum::Sum;
use hairpin_core::wire::{ethernet, ipv4, ipv6, tcp, udp};

/// The ends of a packet. Of an IPv6 address it is the last four bytes; the others are the template's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PacketEnds {
    /// Source address.
    pub source: u32,
    /// Destination address.
    pub destination: u32,
    /// Source port.
    pub source_port: u16,
    /// Destination port.
    pub destination_port: u16,
}

/// Ethernet addresses of the generator's side of a link: destination and source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkAddresses {
    /// The device's.
    pub destination: [u8; 6],
    /// The generator's.
    pub source: [u8; 6],
}

impl Default for LinkAddresses {
    /// Locally administered addresses; between rings no code looks at them.
    fn default() -> LinkAddresses {
        LinkAddresses { destination: [2, 0, 0, 0, 0, 2], source: [2, 0, 0, 0, 0, 1] }
    }
}

/// The first 12 bytes of every IPv6 address: 2001:db8::/96, which is for documentation (RFC 3849).
pub const IPV6_PREFIX: [u8; 12] = [0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0];

/// Hops that packets start with.
const TTL: u8 = 64;

/// The kind of packet that a template makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketKind {
    /// TCP or UDP.
    pub protocol: Protocol,
    /// IPv6 instead of IPv4.
    pub ipv6: bool,
    /// TCP's flags; of UDP nothing.
    pub tcp_flags: u8,
}

impl PacketKind {
    /// Bytes of the IP header.
    fn network(&self) -> usize {
        if self.ipv6 { ipv6::HEADER } else { ipv4::HEADER }
    }

    /// Bytes of all headers.
    pub fn headers(&self) -> usize {
        let transport = match self.protocol {
            Protocol::Tcp => tcp::HEADER,
            Protocol::Udp => udp::HEADER,
        };
        ethernet::HEADER + self.network() + transport
    }

    /// Bytes of payload that the stamp takes.
    fn stamped(&self) -> usize {
        match self.protocol {
            Protocol::Tcp => stamp::TCP_PAYLOAD,
            Protocol::Udp => BYTES,
        }
    }

    /// Bytes of the shortest frame that has room for a stamp.
    pub fn shortest(&self) -> usize {
        self.headers() + self.stamped()
    }
}

/// A frame, all but ends, stamp and length. Its bytes are in a store that many share.
#[derive(Clone, Copy, Debug)]
pub struct PacketTemplate {
    start: usize,
    length: u16,
    kind: PacketKind,
    /// Sum of the segment and its pseudo-header, without what is filled in.
    segment: u32,
    /// Sum of the IPv4 header, likewise.
    header: u32,
}

impl PacketTemplate {
    /// Appends a frame of `length` bytes to `store`, with `payload` behind its headers and stamp, cut or padded with
    /// zeros. It is made longer if a stamp would not fit.
    pub fn new(
        store: &mut Vec<u8>,
        kind: PacketKind,
        link: &LinkAddresses,
        payload: &[u8],
        length: u16,
    ) -> PacketTemplate {
        let length = usize::from(length).max(kind.shortest());
        let start = store.len();
        let l4 = ethernet::HEADER + kind.network();
        store.extend_from_slice(&link.destination);
        store.extend_from_slice(&link.source);
        store.extend_from_slice(&if kind.ipv6 { ethernet::IPV6 } else { ethernet::IPV4 }.to_be_bytes());
        match kind.ipv6 {
            true => {
                store.extend_from_slice(&[0x60, 0, 0, 0, 0, 0, kind.protocol as u8, TTL]);
                for _ in 0..2 {
                    store.extend_from_slice(&IPV6_PREFIX);
                    store.extend_from_slice(&[0; 4]);
                }
            }
            false => {
                let [a, b] = ipv4::DONT_FRAGMENT.to_be_bytes();
                store.extend_from_slice(&[0x45, 0, 0, 0, 0, 0, a, b, TTL, kind.protocol as u8]);
                store.extend_from_slice(&[0; 10]);
            }
        }
        let mut transport = [0; tcp::HEADER];
        if kind.protocol == Protocol::Tcp {
            transport[12] = 5 << 4;
            transport[tcp::FLAGS] = kind.tcp_flags;
        }
        let transport_length = kind.headers() - l4;
        store.extend_from_slice(&transport[..transport_length]);
        store.resize(start + kind.shortest(), 0);
        let behind = payload.get(kind.stamped()..).unwrap_or_default();
        store.extend_from_slice(&behind[..behind.len().min(length - kind.shortest())]);
        store.resize(start + length, 0);
        let frame = &store[start..];
        let prefixes = if kind.ipv6 { Sum::of(&frame[ethernet::HEADER + 8..l4]) } else { Sum::default() };
        let segment = Sum::of(&frame[l4..]) + prefixes;
        PacketTemplate {
            start,
            length: length as u16,
            kind,
            segment: u32::from(segment.folded()) + u32::from(kind.protocol as u8),
            header: u32::from(Sum::of(&frame[ethernet::HEADER..l4]).folded()),
        }
    }

    /// Bytes of the frames it makes, at most.
    pub fn length(&self) -> usize {
        usize::from(self.length)
    }

    /// The kind of packet.
    pub fn kind(&self) -> PacketKind {
        self.kind
    }

    /// Makes a packet of all the bytes of `frame`, which are as many as [`PacketTemplate::length`] or, of a template whose
    /// payload is zeros, fewer, but not fewer than [`PacketKind::shortest`].
    #[inline]
    pub fn make(&self, store: &[u8], frame: &mut [u8], ends: &PacketEnds, stamp: &[u8; BYTES]) {
        let Some(whole) = store.get(self.start..self.start + frame.len()) else { return };
        frame.copy_from_slice(whole);
        let l3 = ethernet::HEADER;
        let l4 = l3 + self.kind.network();
        let segment_length = (frame.len() - l4) as u32;
        let addresses = u64::from(ends.source) + u64::from(ends.destination);
        if self.kind.ipv6 {
            frame[l3 + 4..l3 + 6].copy_from_slice(&(segment_length as u16).to_be_bytes());
            frame[l3 + 20..l3 + 24].copy_from_slice(&ends.source.to_be_bytes());
            frame[l3 + 36..l3 + 40].copy_from_slice(&ends.destination.to_be_bytes());
        } else {
            let total = segment_length + ipv4::HEADER as u32;
            frame[l3 + 2..l3 + 4].copy_from_slice(&(total as u16).to_be_bytes());
            frame[l3 + 12..l3 + 16].copy_from_slice(&ends.source.to_be_bytes());
            frame[l3 + 16..l3 + 20].copy_from_slice(&ends.destination.to_be_bytes());
            let sum = !folded(u64::from(self.header) + u64::from(total) + addresses);
            frame[l3 + 10..l3 + 12].copy_from_slice(&sum.to_be_bytes());
        }
        let segment = &mut frame[l4..];
        segment[..2].copy_from_slice(&ends.source_port.to_be_bytes());
        segment[2..4].copy_from_slice(&ends.destination_port.to_be_bytes());
        stamp::write(segment, self.kind.protocol, stamp);
        let ports = u64::from(ends.source_port) + u64::from(ends.destination_port);
        let mut sum = u64::from(self.segment) + addresses + ports + stamp::sum(stamp) + u64::from(segment_length);
        match self.kind.protocol {
            Protocol::Udp => {
                segment[udp::LENGTH..udp::LENGTH + 2].copy_from_slice(&(segment_length as u16).to_be_bytes());
                sum += u64::from(segment_length);
                let sum = udp::mangled(!folded(sum));
                segment[udp::CHECKSUM..udp::CHECKSUM + 2].copy_from_slice(&sum.to_be_bytes());
            }
            Protocol::Tcp => segment[tcp::CHECKSUM..tcp::CHECKSUM + 2].copy_from_slice(&(!folded(sum)).to_be_bytes()),
        }
    }
}

/// The sum in 16 bits, carries added back in.
#[inline]
fn folded(sum: u64) -> u16 {
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff) + ((sum >> 16) & 0xffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traffic::stamp::Stamp;
    use hairpin_core::flow::{Address, Endpoint};
    use hairpin_core::frame::Checksum;
    use hairpin_core::rewrite::Rewrite;
    use hairpin_core::wire::tcp::{ACK, PSH};
    use hairpin_core::wire::{Parsed, Transport, parse};
    use proptest::prelude::*;

    fn transport(frame: &[u8]) -> Transport {
        match parse(frame) {
            Ok(Parsed::Transport(at)) => at,
            other => panic!("{other:?}"),
        }
    }

    fn checked(frame: &[u8], at: &Transport) {
        let field = at.checksum_offset();
        let there = u16::from_be_bytes([frame[field], frame[field + 1]]);
        // Both zeros of one's complement are right for TCP.
        let right = at.transport_checksum(frame).unwrap();
        assert!(there == right || (there, right) == (0, 0xffff) || (there, right) == (0xffff, 0), "{there} {right}");
    }

    proptest! {
        #[test]
        fn packets_are_right_and_stamps_survive_translation(
            udp: bool, ipv6: bool, length in 60..1514u16, cut in 0..200usize, flow: u32, sequence in 0..stamp::MODULUS,
            time in 0..stamp::MODULUS, source in 0x0a00_0000..0x0aff_ffffu32, source_port in 1..=u16::MAX,
            port in 1..=u16::MAX, payload in prop::collection::vec(any::<u8>(), 0..1500),
        ) {
            let protocol = if udp { Protocol::Udp } else { Protocol::Tcp };
            let kind = PacketKind { protocol, ipv6, tcp_flags: ACK | PSH };
            let mut store = vec![1, 2, 3];
            let payload: &[u8] = if cut == 0 { &payload } else { &[] };
            let template = PacketTemplate::new(&mut store, kind, &LinkAddresses::default(), payload, length);
            let length = template.length().saturating_sub(cut).max(kind.shortest());
            let mut frame = vec![0xee; length];
            let ends = PacketEnds { source, destination: 0xc000_0201, source_port, destination_port: 80 };
            let sent = Stamp { flow, sequence, time };
            template.make(&store, &mut frame, &ends, &sent.bytes(99));
            let at = transport(&frame);
            checked(&frame, &at);
            prop_assert_eq!(at.end, frame.len());
            prop_assert_eq!(at.key.source.port, source_port);
            let read = |frame: &[u8], at| stamp::read(frame, at).and_then(|bytes| Stamp::of(&bytes, 99));
            prop_assert_eq!(read(&frame, &at), Some(sent));

            let address = if ipv6 { Address([0x20; 16]) } else { Address::from_ipv4([198, 18, 0, 1]) };
            let destination = Endpoint { address, port };
            Rewrite { source: at.key.source, destination, ..Rewrite::default() }.apply(&mut frame, &at, Checksum::Complete);
            let after = transport(&frame);
            prop_assert_eq!(after.key.destination, destination);
            checked(&frame, &after);
            prop_assert_eq!(read(&frame, &after), Some(sent));

            stamp::retime(&mut frame, 99, time + 5);
            checked(&frame, &after);
            prop_assert_eq!(read(&frame, &after).map(|stamp| stamp.age(time + 5)), Some(Some(0)));
        }
    }

    #[test]
    fn a_payload_is_kept_behind_the_stamp() {
        let kind = PacketKind { protocol: Protocol::Udp, ipv6: false, tcp_flags: 0 };
        let mut store = Vec::new();
        let payload: Vec<u8> = (0..100).collect();
        let template = PacketTemplate::new(&mut store, kind, &LinkAddresses::default(), &payload, 42 + 90);
        let mut frame = vec![0; template.length()];
        let stamp = Stamp { flow: 1, sequence: 2, time: 3 }.bytes(0);
        template.make(
            &store,
            &mut frame,
            &PacketEnds { source: 0x0a00_0001, destination: 0x0a00_0002, ..PacketEnds::default() },
            &stamp,
        );
        assert_eq!(frame[42..60], stamp);
        assert_eq!(frame[60..], payload[18..90]);
    }
}

//! Parsing: what is right is found, what is wrong is refused for its reason, and nothing panics.

use crate::packets::{Packet, add_words, packet, transport};
use hairpin_core::flow::{Address, Endpoint, Protocol};
use hairpin_core::frame::Checksum;
use hairpin_core::wire::{Malformed, Parsed, parse};
use proptest::prelude::*;
use std::net::{IpAddr, Ipv4Addr};

use crate::packets::Layer4;

/// Offsets are within the frame and in order.
fn check_offsets(frame: &[u8]) {
    match parse(frame) {
        Ok(Parsed::Transport(at)) => {
            assert!(at.l3 < at.l4 && at.l4 < at.payload && at.payload <= at.end && at.end <= frame.len(), "{at:?}");
        }
        Ok(Parsed::IcmpError(error)) => {
            assert!(error.l3 < error.l4 && error.l4 < error.quoted_l3 && error.quoted_l3 < error.quoted_l4);
            assert!(error.quoted_l4 + 8 <= error.end && error.end <= frame.len(), "{error:?}");
        }
        Ok(Parsed::Fragment | Parsed::Other) | Err(_) => {}
    }
}

proptest! {
    #[test]
    fn finds_every_valid_packet(packet in packet()) {
        let bytes = packet.bytes();
        let at = transport(&bytes);
        prop_assert_eq!(at.key, packet.key());
        prop_assert_eq!(at.l3, packet.l3());
        prop_assert_eq!(at.end, bytes.len() - packet.padding);
        prop_assert_eq!(&bytes[at.payload..at.end], &packet.payload[..]);
        prop_assert_eq!(at.ttl, packet.hops);
        match packet.layer4 {
            Layer4::Tcp { flags, .. } => prop_assert_eq!(at.tcp_flags, flags),
            Layer4::Udp { .. } => prop_assert_eq!(at.tcp_flags, 0),
        }
    }

    #[test]
    fn agrees_with_etherparse(mut packet in packet()) {
        packet.checksum = Checksum::Complete;
        packet.padding = 0;
        // etherparse wants IPv6 extension headers each once and in one order.
        packet.extensions.clear();
        let bytes = packet.bytes();
        let at = transport(&bytes);
        let sliced = etherparse::SlicedPacket::from_ethernet(&bytes).unwrap();
        let (source, destination): (IpAddr, IpAddr) = match sliced.net.as_ref().unwrap() {
            etherparse::NetSlice::Ipv4(ip) => {
                prop_assert_eq!(ip.header().header_checksum(), ip.header().to_header().calc_header_checksum());
                (ip.header().source_addr().into(), ip.header().destination_addr().into())
            }
            etherparse::NetSlice::Ipv6(ip) => (ip.header().source_addr().into(), ip.header().destination_addr().into()),
            etherparse::NetSlice::Arp(_) => panic!("ARP"),
        };
        prop_assert_eq!((at.key.source.address, at.key.destination.address), (source.into(), destination.into()));
        let checksum = u16::from_be_bytes([bytes[at.checksum_offset()], bytes[at.checksum_offset() + 1]]);
        let (ports, theirs) = match sliced.transport.as_ref().unwrap() {
            etherparse::TransportSlice::Tcp(tcp) => {
                prop_assert_eq!(at.payload - at.l4, tcp.header_slice().len());
                let checksum = match (source, destination) {
                    (IpAddr::V4(s), IpAddr::V4(d)) => tcp.calc_checksum_ipv4(s.octets(), d.octets()),
                    (IpAddr::V6(s), IpAddr::V6(d)) => tcp.calc_checksum_ipv6(s.octets(), d.octets()),
                    _ => panic!("families"),
                };
                ((tcp.source_port(), tcp.destination_port()), checksum.unwrap())
            }
            etherparse::TransportSlice::Udp(udp) => {
                let (header, payload) = (udp.to_header(), udp.payload());
                let checksum = match (source, destination) {
                    (IpAddr::V4(s), IpAddr::V4(d)) => header.calc_checksum_ipv4_raw(s.octets(), d.octets(), payload),
                    (IpAddr::V6(s), IpAddr::V6(d)) => header.calc_checksum_ipv6_raw(s.octets(), d.octets(), payload),
                    _ => panic!("families"),
                };
                ((udp.source_port(), udp.destination_port()), checksum.unwrap())
            }
            other => panic!("{other:?}"),
        };
        prop_assert_eq!((at.key.source.port, at.key.destination.port), ports);
        prop_assert_eq!(at.transport_checksum(&bytes), Some(theirs));
        let without = matches!(packet.layer4, Layer4::Udp { without_checksum: true });
        prop_assert!(checksum == theirs || without);
    }

    #[test]
    fn survives_truncation_and_mutation(packet in packet(), cut in any::<prop::sample::Index>(),
                                        changes in proptest::collection::vec((0usize..120, any::<u8>()), 0..6),
                                        right_header in any::<bool>()) {
        let mut bytes = packet.bytes();
        for (at, byte) in changes {
            if let Some(old) = bytes.get_mut(at) {
                *old = byte;
            }
        }
        let l3 = packet.l3();
        if right_header && packet.source.address.is_ipv4() {
            // Past the header checksum, into the rest of the parser.
            let length = usize::from(bytes[l3] & 15) * 4;
            if let Some(header) = bytes.get_mut(l3..l3 + length).filter(|header| header.len() >= 20) {
                header[10..12].fill(0);
                let checksum = !(add_words(0, header) as u16);
                header[10..12].copy_from_slice(&checksum.to_be_bytes());
            }
        }
        check_offsets(&bytes);
        check_offsets(&bytes[..cut.index(bytes.len() + 1)]);
    }

    #[test]
    fn survives_random_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..200),
                             start in prop_oneof![Just([0x08, 0, 0x45]), Just([0x86, 0xdd, 0x60])]) {
        check_offsets(&bytes);
        let mut frame = vec![2; 12];
        frame.extend(start);
        frame.extend(bytes);
        check_offsets(&frame);
    }

    #[test]
    fn a_cut_packet_is_truncated(packet in packet(), cut in any::<prop::sample::Index>()) {
        let bytes = packet.bytes();
        let whole = bytes.len() - packet.padding;
        prop_assert_eq!(parse(&bytes[..cut.index(whole)]), Err(Malformed::Truncated));
    }
}

pub(crate) fn simple(ipv4: bool, layer4: Layer4) -> Packet {
    let end = |host: u8, port| match ipv4 {
        true => Endpoint { address: Address::from_ipv4([192, 0, 2, host]), port },
        false => {
            let mut octets = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
            octets[15] = host;
            Endpoint { address: Address(octets), port }
        }
    };
    Packet {
        tags: Vec::new(),
        source: end(1, 40_000),
        destination: end(2, 80),
        hops: 64,
        identification: 77,
        dont_fragment: true,
        ip_options: Vec::new(),
        extensions: Vec::new(),
        layer4,
        payload: b"hello".to_vec(),
        checksum: Checksum::Complete,
        padding: 0,
    }
}

pub(crate) fn tcp(ipv4: bool, flags: u8) -> Packet {
    simple(ipv4, Layer4::Tcp { sequence: 1000, acknowledgement: 2000, flags, window: 0x1234, options: Vec::new() })
}

pub(crate) fn udp(ipv4: bool) -> Packet {
    simple(ipv4, Layer4::Udp { without_checksum: false })
}

/// The IPv4 packet with `change` made to its IP header and the header checksum made right again.
fn changed(packet: &Packet, change: impl Fn(&mut [u8])) -> Vec<u8> {
    let mut bytes = packet.bytes();
    change(&mut bytes[14..]);
    bytes[24..26].fill(0);
    let length = usize::from(bytes[14] & 15) * 4;
    let checksum = !(add_words(0, &bytes[14..14 + length]) as u16);
    bytes[24..26].copy_from_slice(&checksum.to_be_bytes());
    bytes
}

#[test]
fn names_what_is_wrong_with_ipv4() {
    let packet = tcp(true, 0x10);
    assert_eq!(parse(&changed(&packet, |ip| ip[0] = 0x65)), Err(Malformed::Version));
    assert_eq!(parse(&changed(&packet, |ip| ip[0] = 0x44)), Err(Malformed::HeaderLength));
    assert_eq!(parse(&changed(&packet, |ip| ip[2..4].fill(0))), Err(Malformed::TotalLength));
    assert_eq!(parse(&changed(&packet, |ip| ip[3] = 19)), Err(Malformed::TotalLength));
    assert_eq!(parse(&changed(&packet, |ip| ip[3] += 1)), Err(Malformed::Truncated));
    assert_eq!(parse(&changed(&packet, |ip| ip[3] = 39)), Err(Malformed::Truncated), "no room for a TCP header");
    assert_eq!(parse(&changed(&packet, |ip| ip[32] = 0x40)), Err(Malformed::TcpOffset));
    assert_eq!(parse(&changed(&packet, |ip| ip[32] = 0x70)), Err(Malformed::TcpOffset));
    let mut bytes = packet.bytes();
    bytes[24] ^= 1;
    assert_eq!(parse(&bytes), Err(Malformed::HeaderChecksum));
    let packet = udp(true);
    assert_eq!(parse(&changed(&packet, |ip| ip[25] = 7)), Err(Malformed::UdpLength));
    assert_eq!(parse(&changed(&packet, |ip| ip[25] += 1)), Err(Malformed::UdpLength));
}

#[test]
fn refuses_addresses_of_no_host() {
    let packet = udp(true);
    for source in [[0, 0, 0, 0], [0, 1, 2, 3], [127, 0, 0, 1], [224, 0, 0, 1], [255, 255, 255, 255]] {
        let bytes = changed(&packet, |ip| ip[12..16].copy_from_slice(&source));
        assert_eq!(parse(&bytes), Err(Malformed::Addresses), "{source:?}");
    }
    for destination in [[0, 0, 0, 0], [127, 0, 0, 1]] {
        let bytes = changed(&packet, |ip| ip[16..20].copy_from_slice(&destination));
        assert_eq!(parse(&bytes), Err(Malformed::Addresses), "{destination:?}");
    }
    for destination in [[224, 0, 0, 251], [255, 255, 255, 255]] {
        let bytes = changed(&packet, |ip| ip[16..20].copy_from_slice(&destination));
        assert_eq!(parse(&bytes), Ok(Parsed::Other), "{destination:?}");
    }
    let mut land = udp(true);
    land.destination = land.source;
    assert_eq!(parse(&land.bytes()), Err(Malformed::Addresses));

    let mapped = Address::from(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)));
    for bad in [mapped, Address([0; 16]), Address(1u128.to_be_bytes())] {
        let packet = udp(false);
        let mut bytes = packet.bytes();
        bytes[22..38].copy_from_slice(&bad.0);
        assert_eq!(parse(&bytes), Err(Malformed::Addresses), "from {bad:?}");
        let mut bytes = packet.bytes();
        bytes[38..54].copy_from_slice(&bad.0);
        assert_eq!(parse(&bytes), Err(Malformed::Addresses), "to {bad:?}");
    }
}

#[test]
fn tells_fragments_and_other_packets() {
    let packet = udp(true);
    assert_eq!(parse(&changed(&packet, |ip| ip[6] = 0x20)), Ok(Parsed::Fragment), "the first");
    assert_eq!(parse(&changed(&packet, |ip| ip[7] = 1)), Ok(Parsed::Fragment), "a later one");
    assert_eq!(parse(&changed(&packet, |ip| ip[9] = 47)), Ok(Parsed::Other), "GRE");
    assert_eq!(parse(&changed(&packet, |ip| ip[9] = 1)), Ok(Parsed::Other), "an ICMP message that is no error");
    let mut packet = udp(false);
    packet.extensions = vec![(60, 0), (44, 0)];
    assert_eq!(parse(&packet.bytes()), Ok(Parsed::Fragment));
    packet.extensions = vec![(50, 0)];
    assert_eq!(parse(&packet.bytes()), Ok(Parsed::Other), "ESP");
    packet.extensions = vec![(43, 0)];
    let mut bytes = packet.bytes();
    bytes[57] = 1;
    assert_eq!(parse(&bytes), Ok(Parsed::Other), "segments left");
    let mut packet = udp(true);
    packet.tags = vec![0x88a8, 0x8100, 0x8100];
    assert_eq!(parse(&packet.bytes()), Ok(Parsed::Other), "a third tag");
    let arp = [&[0xff; 6][..], &[2; 6], &[8, 6], &[0; 28]].concat();
    assert_eq!(parse(&arp), Ok(Parsed::Other));
}

#[test]
fn bounds_extension_headers() {
    let mut packet = udp(false);
    packet.extensions = vec![(60, 0); 8];
    assert_eq!(transport(&packet.bytes()).key.protocol, Protocol::Udp);
    packet.extensions = vec![(60, 0); 9];
    assert_eq!(parse(&packet.bytes()), Err(Malformed::ExtensionHeaders), "too many");
    packet.extensions = vec![(60, 0), (0, 0)];
    assert_eq!(parse(&packet.bytes()), Err(Malformed::ExtensionHeaders), "hop-by-hop behind another");
    packet.extensions = vec![(60, 0)];
    let mut bytes = packet.bytes();
    bytes[55] = 200;
    assert_eq!(parse(&bytes), Err(Malformed::ExtensionHeaders), "out of the packet");
}

#[test]
fn takes_super_packets_past_64_kib() {
    for ipv4 in [true, false] {
        let mut packet = tcp(ipv4, 0x10);
        packet.payload = vec![7; 100_000];
        let mut bytes = packet.bytes();
        match ipv4 {
            true => bytes = changed(&packet, |ip| ip[2..4].fill(0)),
            false => bytes[18..20].fill(0),
        }
        let at = transport(&bytes);
        assert_eq!(at.end, bytes.len());
        assert_eq!(at.end - at.payload, 100_000);
    }
    let mut packet = tcp(false, 0x10);
    packet.payload = vec![7; 65_535 - 20];
    assert_eq!(transport(&packet.bytes()).end, 14 + 40 + 65_535);
}

#[test]
fn malformed_reasons_are_numbered_and_named() {
    for (position, reason) in Malformed::ALL.iter().enumerate() {
        assert_eq!(reason.index(), position);
        assert!(Malformed::ALL.iter().filter(|other| other.name() == reason.name()).count() == 1);
    }
}

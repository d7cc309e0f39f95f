//! Inbound frames: answered, checked, passed on.

use super::stations::*;
use crate::frame::{Egress, Frame, VecFrame};
use crate::link::arp::{ArpOperation, ArpPacket, ETHERTYPE};
use crate::link::{LinkDrop, LinkOptions, LinkSegment, discovery, header, inward};
use crate::time::Duration;
use crate::wire::checksum::Sum;
use crate::wire::{self, Parsed, ipv4, ipv6};
use discovery::NeighbourMessage;
use etherparse::{Icmpv4Type, Icmpv6Type, PacketBuilder, SlicedPacket, TransportSlice};
use proptest::prelude::*;
use std::vec::Vec;

/// Two ports and addresses beside theirs: 10.0.0.80 and 2001:db8::80 near port 0, 192.0.2.80 near none.
fn balancer() -> Station {
    Station::new(&LinkOptions {
        ports: [port(1, &[("10.0.0.1", 24), ("2001:db8::1", 64)], &[]), port(2, &[("10.1.0.1", 24)], &["10.1.0.254"])]
            .into(),
        local: ["10.0.0.80", "192.0.2.80", "2001:db8::80"].map(ip).into(),
        ..LinkOptions::default()
    })
}

fn arp(
    operation: ArpOperation,
    sender: ([u8; 6], [u8; 4]),
    target: [u8; 4],
    to: [u8; 6],
    segment: LinkSegment,
) -> Vec<u8> {
    let mut frame = VecFrame::default();
    let packet = ArpPacket { operation, sender_mac: sender.0, sender: sender.1, target_mac: [0; 6], target };
    let length = segment.header_length() + 28;
    assert!(inward::write(&mut frame, segment, length, (to, sender.0, ETHERTYPE), &packet.bytes()));
    frame.data
}

fn who_has(target: [u8; 4]) -> Vec<u8> {
    arp(ArpOperation::Request, (mac(9), [10, 0, 0, 9]), target, [0xff; 6], LinkSegment::default())
}

#[test]
fn arp_is_answered_for_our_addresses_where_they_are() {
    let mut a = balancer();
    for (port, target, answered) in [
        (0, [10, 0, 0, 1], true),
        (0, [10, 0, 0, 80], true),
        (0, [192, 0, 2, 80], true),
        (1, [192, 0, 2, 80], true),
        (1, [10, 1, 0, 1], true),
        (1, [10, 0, 0, 80], false),
        (0, [10, 1, 0, 1], false),
        (0, [10, 0, 0, 2], false),
    ] {
        assert!(a.arrives(port, &who_has(target)).is_empty());
        let sent = a.sent();
        assert_eq!(sent.len(), usize::from(answered), "{port} {target:?}");
        let Some(reply) = sent.first() else { continue };
        let own = mac(port as u8 + 1);
        assert_eq!((ends(reply), reply.meta.port, reply.bytes().len()), ((mac(9), own), port, 60));
        let expected = ArpPacket {
            operation: ArpOperation::Reply,
            sender_mac: own,
            sender: target,
            target_mac: mac(9),
            target: [10, 0, 0, 9],
        };
        assert_eq!(ArpPacket::read(reply.bytes(), 14), Some(expected));
        assert_eq!(reply.bytes()[42..], [0; 18]);
    }
    assert_eq!((a.link.statistics().answered, a.dropped(LinkDrop::ArpOther)), (5, 3));
}

#[test]
fn arp_probes_are_answered_and_not_remembered() {
    let mut a = balancer();
    a.arrives(0, &arp(ArpOperation::Request, (mac(9), [0; 4]), [10, 0, 0, 80], [0xff; 6], LinkSegment::default()));
    assert_eq!(ArpPacket::read(a.sent()[0].bytes(), 14).unwrap().target, [0; 4]);
    assert!(a.neighbours.entries().all(|neighbour| neighbour.kept));
}

#[test]
fn arp_that_is_none() {
    let mut a = balancer();
    let good = who_has([10, 0, 0, 1]);
    for (at, value) in [(14, 1), (15, 6), (16, 9), (18, 8), (19, 16), (20, 1), (21, 3), (21, 0), (22, 1), (28, 127)] {
        let mut bad = good.clone();
        bad[at] = value;
        a.arrives(0, &bad);
        assert_eq!(a.sent().len(), 0, "byte {at}");
    }
    a.arrives(0, &good[..41]);
    assert_eq!(a.dropped(LinkDrop::ArpMalformed), 11);
    assert_eq!(a.sent().len(), 0);
}

fn solicitation(source: &str, destination: &str, target: &str, from: Option<[u8; 6]>) -> Vec<u8> {
    let message = NeighbourMessage::Solicitation { target: at(target), mac: from };
    let packet = discovery::DiscoveryPacket { source: at(source), destination: at(destination), message };
    let mut bytes = packet.bytes().to_vec();
    if from.is_none() {
        // no option
        bytes.truncate(ipv6::HEADER + 24);
        bytes[4..6].copy_from_slice(&24u16.to_be_bytes());
        checksum_icmp(&mut bytes, 0);
    }
    let mut frame = VecFrame::default();
    let to = if destination.starts_with("ff") { discovery::group_mac(&at(destination)) } else { mac(1) };
    assert!(inward::write(&mut frame, LinkSegment::default(), 14 + bytes.len(), (to, mac(9), 0x86dd), &bytes));
    frame.data
}

/// Makes the ICMPv6 checksum of the packet at `l3` right.
fn checksum_icmp(bytes: &mut [u8], l3: usize) {
    let (header, message) = bytes[l3..].split_at_mut(ipv6::HEADER);
    message[2..4].fill(0);
    let pseudo = Sum::pseudo_header(&header[8..24], &header[24..40], 58, message.len());
    let checksum = (pseudo + Sum::of(message)).checksum();
    message[2..4].copy_from_slice(&checksum.to_be_bytes());
}

fn advertised(frame: &VecFrame) -> (discovery::DiscoveryPacket, [u8; 6]) {
    let header = header::check_ipv6(frame.bytes(), 14).unwrap();
    (discovery::DiscoveryPacket::read(frame.bytes(), &header).unwrap(), ends(frame).0)
}

#[test]
fn solicitations_are_answered() {
    let group = "ff02::1:ff00:80";
    for (source, destination, option, to) in [
        ("2001:db8::9", group, Some(mac(9)), ("2001:db8::9", mac(9), true)),
        ("2001:db8::9", "2001:db8::80", Some(mac(8)), ("2001:db8::9", mac(8), true)),
        // without the option the answer goes to who sent the frame
        ("2001:db8::9", "2001:db8::80", None, ("2001:db8::9", mac(9), true)),
        ("fe80::9", group, Some(mac(9)), ("fe80::9", mac(9), true)),
        // who wants the address for itself
        ("::", group, None, ("ff02::1", [0x33, 0x33, 0, 0, 0, 1], false)),
    ] {
        let mut a = balancer();
        assert!(a.arrives(0, &solicitation(source, destination, "2001:db8::80", option)).is_empty());
        let (packet, ethernet) = advertised(&a.sent()[0]);
        let (target, overrides) = (at("2001:db8::80"), true);
        let message = NeighbourMessage::Advertisement { target, mac: Some(mac(1)), solicited: to.2, overrides };
        assert_eq!(packet, discovery::DiscoveryPacket { source: target, destination: at(to.0), message });
        assert_eq!(ethernet, to.1);
        assert_eq!(a.neighbour(source).map(|neighbour| neighbour.mac), option);
    }
}

#[test]
fn solicitations_for_others_are_not() {
    let mut a = balancer();
    a.arrives(0, &solicitation("2001:db8::9", "ff02::1:ff00:81", "2001:db8::81", Some(mac(9))));
    // the address is not at this port
    let mut frame = solicitation("2001:db8::9", "ff02::1:ff00:80", "2001:db8::80", Some(mac(9)));
    a.arrives(1, &frame);
    assert_eq!((a.dropped(LinkDrop::DiscoveryOther), a.sent().len()), (2, 0));
    // every port has a link-local address
    let own = "fe80::ff:fe00:1";
    frame = solicitation("fe80::9", "ff02::1:ff00:1", own, Some(mac(9)));
    a.arrives(0, &frame);
    assert_eq!(advertised(&a.sent()[0]).0.source, at(own));
}

#[test]
fn discovery_that_breaks_the_rules() {
    let good = solicitation("2001:db8::9", "ff02::1:ff00:80", "2001:db8::80", Some(mac(9)));
    let changed = |at: usize, value: u8| {
        let mut bad = good.clone();
        bad[at] = value;
        checksum_icmp(&mut bad, 14);
        bad
    };
    let mut wrong = good.clone();
    wrong[57] ^= 1;
    let mut short = good[..good.len() - 8].to_vec();
    short[14 + 5] = 24 - 1;
    let unspecified = solicitation("::", "ff02::1:ff00:80", "2001:db8::80", Some(mac(9)));
    let not_the_group = solicitation("::", "2001:db8::80", "2001:db8::80", None);
    let cases = [
        ("hop limit", changed(21, 254)),
        ("code", changed(55, 1)),
        ("option of length 0", changed(79, 0)),
        ("option cut off", changed(79, 2)),
        ("a group's address", changed(62, 0xff)),
        ("checksum", wrong),
        ("an unspecified source with an Ethernet address", unspecified),
        ("an unspecified source that asks no group", not_the_group),
    ];
    let mut a = balancer();
    for (number, (name, frame)) in (1..).zip(cases) {
        assert!(a.arrives(0, &frame).is_empty());
        assert_eq!((a.sent().len(), a.dropped(LinkDrop::DiscoveryMalformed)), (0, number), "{name}");
    }
    a.arrives(0, &short);
    assert_eq!(a.sent().len(), 0);
    assert!(a.neighbour("2001:db8::9").is_none());
    a.arrives(0, &good);
    assert_eq!(a.sent().len(), 1);
}

fn ping_v4(source: [u8; 4], destination: [u8; 4]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let builder = PacketBuilder::ethernet2(mac(9), mac(1)).ipv4(source, destination, 9).icmpv4_echo_request(7, 8);
    builder.write(&mut bytes, b"echo of an odd length").unwrap();
    bytes
}

fn ping_v6(destination: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let builder = PacketBuilder::ethernet2(mac(9), mac(1))
        .ipv6(at("2001:db9::5").0, at(destination).0, 9)
        .icmpv6_echo_request(7, 8);
    builder.write(&mut bytes, b"echo of an odd length").unwrap();
    bytes
}

#[test]
fn echo_requests_are_answered_for_every_address_of_ours() {
    let mut a = balancer();
    for destination in [[10, 0, 0, 1], [10, 0, 0, 80], [192, 0, 2, 80], [10, 1, 0, 1]] {
        assert!(a.arrives(0, &ping_v4([198, 51, 100, 7], destination)).is_empty());
        let sent = a.sent().pop().unwrap();
        assert_eq!(ends(&sent), (mac(9), mac(1)));
        let checked = header::check_ipv4(sent.bytes(), 14).unwrap();
        assert_eq!(
            (checked.source, checked.destination),
            (destination_of(destination), destination_of([198, 51, 100, 7]))
        );
        let packet = SlicedPacket::from_ethernet(sent.bytes()).unwrap();
        let Some(TransportSlice::Icmpv4(icmp)) = packet.transport else { panic!("{packet:?}") };
        assert!(matches!(icmp.icmp_type(), Icmpv4Type::EchoReply(echo) if (echo.id, echo.seq) == (7, 8)));
        assert_eq!(icmp.payload(), b"echo of an odd length");
        assert_eq!(Sum::of(icmp.slice()).folded(), 0xffff);
    }
    for destination in ["2001:db8::1", "2001:db8::80"] {
        assert!(a.arrives(0, &ping_v6(destination)).is_empty());
        let sent = a.sent().pop().unwrap();
        let packet = SlicedPacket::from_ethernet(sent.bytes()).unwrap();
        let Some(TransportSlice::Icmpv6(icmp)) = packet.transport else { panic!("{packet:?}") };
        assert!(matches!(icmp.icmp_type(), Icmpv6Type::EchoReply(echo) if (echo.id, echo.seq) == (7, 8)));
        assert!(icmp.is_checksum_valid(at(destination).0, at("2001:db9::5").0));
        assert_eq!(sent.bytes()[21], 64);
    }
    assert_eq!(a.link.statistics().echoed, 6);
}

fn destination_of(octets: [u8; 4]) -> crate::flow::Address {
    crate::flow::Address::from_ipv4(octets)
}

#[test]
fn echo_requests_for_others_are_the_workers_odd_ones_dropped() {
    let mut a = balancer();
    assert_eq!(a.arrives(0, &ping_v4([198, 51, 100, 7], [10, 0, 0, 9])).len(), 1);
    let mut wrong = ping_v4([198, 51, 100, 7], [10, 0, 0, 1]);
    wrong[37] ^= 1;
    a.arrives(0, &wrong);
    assert_eq!(a.dropped(LinkDrop::EchoMalformed), 1);
    let mut part = ping_v4([198, 51, 100, 7], [10, 0, 0, 1]);
    part[20] |= 0x20;
    ipv4::fill_checksum(&mut part[14..34]);
    a.arrives(0, &part);
    assert_eq!(a.dropped(LinkDrop::IcmpFragment), 1);
    // a timestamp request
    let mut other = ping_v4([198, 51, 100, 7], [10, 0, 0, 1]);
    other[34] = 13;
    a.arrives(0, &other);
    assert_eq!(a.dropped(LinkDrop::Icmp), 1);
    // an unreachable, however wrong, is the worker's
    other[34] = 3;
    assert_eq!(a.arrives(0, &other).len(), 1);
    // to a network's broadcast address, or by Ethernet broadcast
    a.arrives(0, &ping_v4([198, 51, 100, 7], [10, 0, 0, 255]));
    let mut everybody = ping_v4([198, 51, 100, 7], [10, 0, 0, 1]);
    everybody[..6].fill(0xff);
    a.arrives(0, &everybody);
    assert_eq!(a.dropped(LinkDrop::Group), 2);
    assert_eq!(a.sent().len(), 0);
}

#[test]
fn echo_answers_are_limited() {
    let mut a = balancer();
    let ping = ping_v4([198, 51, 100, 7], [10, 0, 0, 1]);
    for _ in 0..1500 {
        a.arrives(0, &ping);
    }
    assert_eq!((a.link.statistics().echoed, a.dropped(LinkDrop::EchoLimit)), (1000, 500));
    a.sent();
    a.wait(Duration::from_millis(500));
    for _ in 0..1000 {
        a.arrives(0, &ping);
    }
    assert_eq!(a.link.statistics().echoed, 1500);
}

#[test]
fn headers_are_checked_and_the_reason_counted() {
    let good = datagram_to_us();
    let fixed = |change: fn(&mut [u8])| {
        let mut bad = good.clone();
        change(&mut bad[14..34]);
        ipv4::fill_checksum(&mut bad[14..34]);
        bad
    };
    let mut wrong = good.clone();
    wrong[24] ^= 1;
    let mut other = good.clone();
    other[..6].copy_from_slice(&mac(7));
    let mut group = good.clone();
    group[6] |= 1;
    let mut unknown = good.clone();
    unknown[12..14].copy_from_slice(&[0x88, 0xcc]);
    let mut v6 = datagram("2001:db8::9", "2001:db8::80", 100).data;
    v6[..6].copy_from_slice(&mac(1));
    let v6_bad = |at: usize, value: u8| {
        let mut bad = v6.clone();
        bad[at] = value;
        bad
    };
    for (reason, frame) in [
        (LinkDrop::Truncated, good[..33].to_vec()),
        (LinkDrop::Truncated, good[..13].to_vec()),
        (LinkDrop::Truncated, std::vec::Vec::new()),
        (LinkDrop::Version, fixed(|ip| ip[0] = 0x65)),
        (LinkDrop::HeaderLength, fixed(|ip| ip[0] = 0x44)),
        (LinkDrop::TotalLength, fixed(|ip| ip[2..4].copy_from_slice(&19u16.to_be_bytes()))),
        (LinkDrop::TotalLength, fixed(|ip| ip[2..4].copy_from_slice(&101u16.to_be_bytes()))),
        (LinkDrop::HeaderChecksum, wrong),
        (LinkDrop::Source, fixed(|ip| ip[12] = 0)),
        (LinkDrop::Source, fixed(|ip| ip[12] = 127)),
        (LinkDrop::Source, fixed(|ip| ip[12] = 224)),
        (LinkDrop::Source, fixed(|ip| ip[12..16].fill(255))),
        // ours, and networks' broadcast addresses
        (LinkDrop::Source, fixed(|ip| ip[12..16].copy_from_slice(&[192, 0, 2, 80]))),
        (LinkDrop::Source, fixed(|ip| ip[12..16].copy_from_slice(&[10, 1, 0, 255]))),
        (LinkDrop::OtherHost, other),
        (LinkDrop::OtherHost, group),
        (LinkDrop::EtherType, unknown),
        (LinkDrop::Version, v6_bad(14, 0x40)),
        (LinkDrop::Truncated, v6[..53].to_vec()),
        (LinkDrop::TotalLength, v6_bad(19, 61)),
        (LinkDrop::Source, v6_bad(22, 0xff)),
    ] {
        let mut a = balancer();
        assert!(a.arrives(0, &frame).is_empty(), "{reason:?}");
        assert_eq!(a.dropped(reason), 1, "{reason:?} {:?}", a.link.statistics().drops);
    }
    let mut a = balancer();
    assert_eq!(a.arrives(0, &good).len(), 1);
    assert_eq!(a.arrives(0, &v6).len(), 1);
    a.arrives(2, &good);
    assert_eq!(a.dropped(LinkDrop::Port), 1);
}

fn datagram_to_us() -> Vec<u8> {
    let mut frame = datagram("198.51.100.7", "10.0.0.80", 100);
    frame.data[..6].copy_from_slice(&mac(1));
    frame.data[6..12].copy_from_slice(&mac(9));
    frame.data
}

#[test]
fn a_batch_keeps_its_order_around_what_is_answered() {
    let mut a = balancer();
    let mut frames = Vec::new();
    for number in 0..20u8 {
        let mut own = datagram_to_us();
        own[41] = number;
        frames.push(own);
        frames.push(who_has([10, 0, 0, 80]));
        frames.push(who_has([10, 0, 0, 81]));
    }
    for bytes in &frames {
        a.wire.arriving.borrow_mut().push_back(VecFrame::new(bytes));
    }
    let got: Vec<u8> = a.receive().iter().map(|frame| frame.bytes()[41]).collect();
    assert_eq!(got, (0..20).collect::<Vec<u8>>());
    assert_eq!(a.sent().len(), 20);
}

#[test]
fn tags_are_kept() {
    let mut a = balancer();
    // a datagram under a tag is the worker's as it is
    let frame = tagged(&VecFrame::new(&datagram_to_us()), 0x2007);
    assert_eq!(a.arrives(0, frame.bytes())[0].bytes(), frame.bytes());
    // a question under a tag is answered under it, and who asked is known there only
    let request = tagged(&VecFrame::new(&who_has([10, 0, 0, 80])), 7);
    a.arrives(0, request.bytes());
    let reply = a.sent().pop().unwrap();
    assert_eq!(reply.bytes()[12..18], [0x81, 0, 0, 7, 8, 6]);
    assert_eq!(ArpPacket::read(reply.bytes(), 18).unwrap().sender, [10, 0, 0, 80]);
    let known: Vec<_> = a.neighbours.entries().filter(|neighbour| !neighbour.kept).collect();
    assert_eq!(known.len(), 1);
    assert_eq!(std::format!("{}", known[0].segment), "0.7");
    let ping = tagged(&VecFrame::new(&ping_v4([198, 51, 100, 7], [10, 0, 0, 1])), 7);
    a.arrives(0, ping.bytes());
    assert_eq!(a.sent()[0].bytes()[12..18], [0x81, 0, 0, 7, 8, 0]);
}

#[test]
fn what_the_worker_gives_back_ends_here() {
    let mut a = balancer();
    let mut frame = datagram("198.51.100.7", "10.0.0.9", 100);
    frame.meta.egress = Egress::Kernel;
    assert!(a.send(&[frame]).is_empty());
    assert_eq!((a.dropped(LinkDrop::NotOurs), a.sent().len()), (1, 0));
}

proptest! {
    /// A frame on the short path would have passed every check, and no ordinary frame is checked twice.
    #[test]
    fn quick_check_agrees_with_the_full_one(
        ipv6 in any::<bool>(), changes in prop::collection::vec((0usize..64, any::<u8>()), 0..3), refill in any::<bool>(),
        from in 0usize..6, cut in prop_oneof![Just(0usize), 0usize..120],
    ) {
        let (a, b) = if ipv6 { ("2001:db8::9", "2001:db8::80") } else { ("198.51.100.7", "10.0.0.80") };
        let mut frame = datagram(a, b, 100);
        frame.data[..6].copy_from_slice(&mac(1));
        frame.data[6..12].copy_from_slice(&mac(9));
        for (at, value) in changes {
            frame.data[at] = value;
        }
        if !ipv6 && from > 0 {
            let source = [[0, 1, 2, 3], [127, 0, 0, 1], [255; 4], [10, 0, 0, 80], [10, 1, 0, 255]][from - 1];
            frame.data[26..30].copy_from_slice(&source);
        }
        if !ipv6 && refill {
            ipv4::fill_checksum(&mut frame.data[14..34]);
        }
        frame.data.truncate(frame.data.len() - cut.min(frame.data.len()));
        let mut station = balancer();
        let plan = station.link.plan.clone();
        let look = inward::look(&plan, &frame);
        let usual = look != inward::Look::Unusual;
        if look == inward::Look::Examined {
            let parsed = wire::parse(&frame.data).map_err(|malformed| TestCaseError::fail(malformed.name()))?;
            prop_assert_eq!(Some(parsed), wire::examined(&frame.data).map(Parsed::Transport));
        }
        let plain = frame.data.len() >= 34 && (frame.data[12..14] == [0x86, 0xdd] || frame.data[14] == 0x45)
            && matches!(frame.data[if frame.data[12..14] == [8, 0] { 23 } else { 20 }], 6 | 17);
        let passes = station.link.unusual(&mut frame.clone(), 0) == inward::InwardFate::Worker;
        if usual {
            prop_assert!(passes);
        } else if plain && frame.data[12] != 0x81 && frame.data[12] != 0x88 && (ipv6 || frame.data[26] < 240) {
            // only tags, options, other protocols and sources of 240.0.0.0/4 need the full check
            prop_assert!(!passes, "{:?}", frame.data);
        }
    }
}

//! Outbound frames: routed, held, handed back; nothing without bound.

use super::stations::*;
use crate::config::{Encapsulation, Outer};
use crate::flow::Address;
use crate::frame::{Arrival, Checksum, Egress, Frame, VecFrame};
use crate::l4::answer::{self, Notice};
use crate::link::arp::{ArpOperation, ArpPacket, ETHERTYPE};
use crate::link::neighbours::Claim;
use crate::link::{
    DirectBackend, HELD_EACH, HELD_MAX, LinkDrop, LinkOptions, LinkPlan, LinkRoute, LinkSegment, inward,
};
use crate::time::Duration;
use crate::wire::{Parsed, parse};
use proptest::prelude::*;
use std::vec::Vec;

/// Port 0: 10.0.0.1/24, gateway .254 (Ethernet address 54). Port 1: 10.1.0.1/24, MTU 1400, neighbour .9 (19).
fn balancer() -> Station {
    let mut second = port(2, &[("10.1.0.1", 24), ("2001:db8:1::1", 64)], &[]);
    second.mtu = 1400;
    let options = LinkOptions {
        ports: [port(1, &[("10.0.0.1", 24)], &["10.0.0.254"]), second].into(),
        local: [ip("10.0.0.80")].into(),
        routes: [
            LinkRoute { network: ip("172.16.0.0"), prefix: 12, port: 1, gateway: Some(ip("10.1.0.9")) },
            LinkRoute { network: ip("10.99.0.0"), prefix: 16, port: 1, gateway: None },
        ]
        .into(),
        ..LinkOptions::default()
    };
    let mut a = Station::settled(&options, 4096);
    a.arrives(0, &answer(0, [10, 0, 0, 254], 54));
    a.arrives(1, &answer(1, [10, 1, 0, 9], 19));
    a
}

fn answer(port: u16, address: [u8; 4], number: u8) -> Vec<u8> {
    answer_under(LinkSegment::untagged(port), address, number)
}

fn answer_under(segment: LinkSegment, sender: [u8; 4], number: u8) -> Vec<u8> {
    let (own, to) = (mac(number), mac(segment.port() as u8 + 1));
    let packet = ArpPacket { operation: ArpOperation::Reply, sender_mac: own, sender, target_mac: to, target: [0; 4] };
    let mut frame = VecFrame::default();
    assert!(inward::write(&mut frame, segment, 60, (to, own, ETHERTYPE), &packet.bytes()));
    frame.data
}

#[test]
fn the_route_names_port_and_next_hop() {
    let mut a = balancer();
    for (to, next, out) in [
        ("192.0.2.1", mac(54), 0),
        ("10.1.0.9", mac(19), 1),
        ("172.16.5.5", mac(19), 1),
        ("172.31.255.255", mac(19), 1),
        ("172.32.0.1", mac(54), 0),
    ] {
        // where it came in does not matter
        for came in [0, 1] {
            let mut frame = datagram("10.0.0.80", to, 100);
            frame.meta.port = came;
            assert!(a.send(&[frame.clone()]).is_empty());
            let sent = a.sent().pop().unwrap();
            assert_eq!((ends(&sent), sent.meta.port), ((next, mac(out as u8 + 1)), out), "{to}");
            assert_eq!(sent.bytes()[12..], frame.bytes()[12..]);
        }
    }
}

/// [`balancer`] with backends of direct server return: 10.1.0.9, one behind a router, a host that has never answered.
fn direct_balancer() -> Station {
    let second = port(2, &[("10.1.0.1", 24)], &[]);
    let options = LinkOptions {
        ports: [port(1, &[("10.0.0.1", 24)], &["10.0.0.254"]), second].into(),
        local: [ip("10.0.0.80")].into(),
        direct: [(7, "10.1.0.9"), (3, "192.0.2.7"), (9, "10.1.0.10")].map(near).into(),
        ..LinkOptions::default()
    };
    let mut a = Station::settled(&options, 4096);
    a.arrives(0, &answer(0, [10, 0, 0, 254], 54));
    let _ = a.neighbours.need(a.now, &at("10.1.0.9"), LinkSegment::untagged(1));
    a.arrives(1, &answer(1, [10, 1, 0, 9], 19));
    a
}

fn near((number, address): (u16, &str)) -> DirectBackend {
    DirectBackend { number, address: ip(address), outer: Outer::default() }
}

fn to_backend(number: u16, length: usize) -> VecFrame {
    let mut frame = datagram("198.51.100.7", "10.0.0.80", length);
    frame.meta.egress = Egress::Direct(number);
    frame
}

#[test]
fn direct_frames_go_to_their_backend_as_they_are() {
    let mut a = direct_balancer();
    // The next hop of the second is cached.
    for _ in 0..2 {
        let frame = to_backend(7, 100);
        assert!(a.send(core::slice::from_ref(&frame)).is_empty());
        let sent = a.sent().pop().unwrap();
        assert_eq!((ends(&sent), sent.meta.port), ((mac(19), mac(2)), 1));
        assert_eq!(sent.bytes()[12..], frame.bytes()[12..]);
    }
    // A router would send it back, and there is no backend 8.
    a.send(&[to_backend(3, 100), to_backend(8, 100)]);
    assert_eq!((a.sent().len(), a.dropped(LinkDrop::NoRoute)), (0, 2));
    // One that is not known is asked for, and the frame waits.
    a.send(&[to_backend(9, 100)]);
    assert_eq!((a.link.waiting(), a.sent().len()), (1, 1));
    a.arrives(1, &answer(1, [10, 1, 0, 10], 20));
    a.iterate();
    assert_eq!(a.sent().iter().map(ends).collect::<Vec<_>>(), [(mac(20), mac(2))]);
    // What is too big comes back to the worker, which knows where it was to go.
    a.send(&[to_backend(7, 1501)]);
    let back = a.receive().pop().unwrap();
    assert_eq!((back.meta.arrival, back.meta.egress), (Arrival::too_big(1500), Egress::Direct(7)));
    // Frames that are routed find no backend by the number.
    a.send(&[datagram("10.0.0.80", "10.1.0.9", 100)]);
    assert_eq!(a.sent().len(), 1);
}

#[test]
fn direct_frames_to_far_backends_are_wrapped() {
    for (encapsulation, protocol, overhead) in [(Encapsulation::Ipip, 4, 20), (Encapsulation::Gue, 17, 28)] {
        let outer = |source| Outer { encapsulation, port: 6080, source };
        let far = |number, source| DirectBackend { number, address: ip("192.0.2.7"), outer: outer(source) };
        let options = LinkOptions {
            ports: [port(1, &[("10.0.0.1", 24), ("2001:db8::1", 64)], &["10.0.0.254", "2001:db8::fe"])].into(),
            local: [ip("10.0.0.80")].into(),
            direct: [far(7, None), far(8, Some(at("10.0.0.80")))].into(),
            ..LinkOptions::default()
        };
        let mut a = Station::settled(&options, 4096);
        a.arrives(0, &answer(0, [10, 0, 0, 254], 54));
        for (number, source) in [(7, [10, 0, 0, 1]), (8, [10, 0, 0, 80])] {
            for length in [40, 1500 - overhead] {
                let mut frame = to_backend(number, length);
                frame.data.resize((14 + length).max(60), 0);
                a.send(&[frame.clone()]);
                let sent = a.sent().pop().unwrap();
                let bytes = sent.bytes();
                assert_eq!((ends(&sent), bytes.len()), ((mac(54), mac(1)), (14 + length + overhead).max(60)));
                assert_eq!(bytes[14 + overhead..][..length], frame.data[14..14 + length], "unchanged inside");
                let header = crate::link::header::check_ipv4(bytes, 14).unwrap();
                assert_eq!((header.source, header.destination), (Address::from_ipv4(source), at("192.0.2.7")));
                assert_eq!((header.protocol, header.hops, header.end), (protocol, 64, 14 + length + overhead));
                if protocol == 17 {
                    assert_eq!(bytes[36..38], 6080u16.to_be_bytes());
                    assert_eq!(bytes[38..42], [((length + 8) >> 8) as u8, (length + 8) as u8, 0, 0]);
                    assert!(bytes[34] >= 0xc0);
                }
            }
        }
        // The worker hears how much room there is inside, and has the packet as it was.
        let long = to_backend(7, 1501 - overhead);
        a.send(core::slice::from_ref(&long));
        let back = a.receive().pop().unwrap();
        assert_eq!((back.meta.arrival, back.bytes()), (Arrival::too_big(1500 - overhead as u16), long.bytes()));
        assert_eq!(back.meta.egress, Egress::Direct(7));
        // Nothing is put in that is to be cut up or summed up later.
        let (mut cut, mut open) = (to_backend(7, 100), to_backend(7, 100));
        cut.meta.gso_size = 50;
        open.meta.checksum = Checksum::Partial;
        a.send(&[cut, open]);
        assert_eq!((a.sent().len(), a.dropped(LinkDrop::NotWrapped)), (0, 2));
    }
}

#[test]
fn direct_frames_of_ipv6_are_wrapped_in_ipv6() {
    for (encapsulation, next, overhead) in [(Encapsulation::Ipip, 41, 40), (Encapsulation::Gue, 17, 48)] {
        let outer = Outer { encapsulation, port: 6080, source: None };
        let options = LinkOptions {
            ports: [port(1, &[("2001:db8::1", 64)], &[])].into(),
            direct: [DirectBackend { number: 1, address: ip("2001:db8::7"), outer }].into(),
            ..LinkOptions::default()
        };
        let mut a = Station::settled(&options, 4096);
        let mut frame = datagram("2001:db8:1::7", "2001:db8:2::80", 100);
        frame.meta.egress = Egress::Direct(1);
        a.send(&[frame.clone()]);
        // It waits, wrapped, for its next hop: that of the outer header.
        assert!(a.neighbour("2001:db8::7").is_some());
        assert_eq!((a.link.waiting(), a.sent().len()), (1, 1));
        let (address, segment, mac) = (at("2001:db8::7"), LinkSegment::untagged(0), Some(mac(7)));
        let claim = Claim { address, segment, mac, solicited: true, overrides: true, learn: false };
        assert!(a.neighbours.hear(a.now, &claim));
        a.iterate();
        let held = a.sent().pop().unwrap().data;
        assert_eq!(held[14 + overhead..], frame.data[14..]);
        let header = crate::link::header::check_ipv6(&held, 14).unwrap();
        assert_eq!((header.source, header.destination), (at("2001:db8::1"), at("2001:db8::7")));
        assert_eq!((header.protocol, header.hops), (next, 64));
        assert_eq!(held[14..18], frame.data[14..18], "traffic class and flow label");
    }
}

#[test]
fn direct_frames_are_wrapped_in_headers_of_the_other_family() {
    for (encapsulation, udp) in [(Encapsulation::Ipip, None), (Encapsulation::Gue, Some(17))] {
        let outer = Outer { encapsulation, port: 6080, source: None };
        let far = |number, address| DirectBackend { number, address: ip(address), outer };
        let options = LinkOptions {
            ports: [port(1, &[("10.0.0.1", 24), ("2001:db8::1", 64)], &["10.0.0.254"])].into(),
            direct: [far(1, "10.0.0.254"), far(2, "2001:db8::7")].into(),
            ..LinkOptions::default()
        };
        let mut a = Station::settled(&options, 4096);
        a.arrives(0, &answer(0, [10, 0, 0, 254], 54));
        let (address, segment) = (at("2001:db8::7"), LinkSegment::untagged(0));
        let claim = Claim { address, segment, mac: Some(mac(7)), solicited: true, overrides: true, learn: true };
        assert!(a.neighbours.hear(a.now, &claim));
        let mut six = datagram("2001:db8:1::7", "2001:db8:2::80", 100);
        let mut four = to_backend(2, 100);
        six.meta.egress = Egress::Direct(1);
        // Traffic class and TOS, with the sum of IPv4's header.
        six.data[14..16].copy_from_slice(&[0x6b, 0x82]);
        four.data[15] = 0xb8;
        let sum = u16::from_be_bytes([four.data[24], four.data[25]]) - 0xb8;
        four.data[24..26].copy_from_slice(&sum.to_be_bytes());
        a.send(&[six.clone(), four.clone()]);
        let mut sent = a.sent();
        // The link layer asks for neighbours meanwhile.
        sent.retain(|frame| frame.data.len() > 114);
        sent.sort_by_key(|frame| frame.data[12]);
        let [in_four, in_six] = &sent[..] else { panic!("{} frames", sent.len()) };
        let header = crate::link::header::check_ipv4(&in_four.data, 14).unwrap();
        assert_eq!((header.source, header.destination), (at("10.0.0.1"), at("10.0.0.254")));
        assert_eq!((header.protocol, in_four.data[15]), (udp.unwrap_or(41), 0xb8));
        assert!(in_four.data.ends_with(&six.data[14..]), "unchanged inside");
        let header = crate::link::header::check_ipv6(&in_six.data, 14).unwrap();
        assert_eq!((header.source, header.destination), (at("2001:db8::1"), at("2001:db8::7")));
        assert_eq!((header.protocol, &in_six.data[14..18]), (udp.unwrap_or(4), &[0x6b, 0x80, 0, 0][..]));
        assert!(in_six.data.ends_with(&four.data[14..]), "unchanged inside");
    }
}

#[test]
fn plan_takes_other_backends_and_keeps_those_it_has() {
    let options = LinkOptions {
        ports: [port(1, &[("10.0.0.1", 24)], &[])].into(),
        direct: [(1, "10.0.0.7"), (2, "10.0.0.8")].map(near).into(),
        ..LinkOptions::default()
    };
    let plan = LinkPlan::new(&options).unwrap();
    let plan = plan.with_direct(&[(2, "10.0.0.9"), (5, "10.0.0.10")].map(near));
    let found = [1, 2, 3, 5].map(|number| plan.direct(number).map(|target| target.address));
    assert_eq!(found, [Some(at("10.0.0.7")), Some(at("10.0.0.9")), None, Some(at("10.0.0.10"))]);
}

#[test]
fn no_route() {
    let mut a = balancer();
    let frames = [
        datagram("2001:db8:1::1", "2001:db8:2::1", 100), // no route
        datagram("10.0.0.1", "10.0.0.80", 100),          // to ourselves
        datagram("10.0.0.1", "10.0.0.255", 100),         // broadcast
        datagram("10.0.0.1", "10.0.0.0", 100),           // a host like others, which does not answer
    ];
    a.send(&frames);
    assert_eq!((a.dropped(LinkDrop::NoRoute), a.link.waiting()), (3, 1));
    a.send(&[
        VecFrame::new(&[0; 60]),
        VecFrame::new(&[0; 6]),
        VecFrame::new(&datagram("10.0.0.1", "10.0.0.9", 100).data[..33]),
    ]);
    assert_eq!(a.dropped(LinkDrop::NotIp), 3);
}

#[test]
fn link_local_destinations_are_at_the_port_that_the_frame_names() {
    let mut a = balancer();
    let mut frame = datagram("fe80::1", "fe80::2", 100);
    frame.meta.port = 1;
    a.send(&[frame]);
    let known = a.neighbour("fe80::2").unwrap();
    assert_eq!(known.segment, LinkSegment::untagged(1));
    let asked = a.sent();
    assert_eq!((asked.len(), asked[0].meta.port), (1, 1));
    // in the name of the port's own link-local address
    assert_eq!(asked[0].bytes()[22..38], at("fe80::ff:fe00:2").0);
}

#[test]
fn too_big_comes_back_to_the_worker_unchanged() {
    let mut a = balancer();
    let frame = datagram("10.0.0.80", "10.1.0.9", 1401);
    assert!(a.send(&[frame.clone(), datagram("10.0.0.80", "10.1.0.9", 1400)]).is_empty());
    assert_eq!(a.sent().len(), 1);
    let mut back = a.receive().pop().unwrap();
    assert_eq!(back.meta.arrival, Arrival::too_big(1400));
    assert_eq!(back.bytes(), frame.bytes());
    assert_eq!(a.link.statistics().too_big, 1);
    // what the worker makes of it finds its way: pieces forward, or word back to the sender
    let Ok(Parsed::Transport(at)) = parse(back.bytes()) else { panic!() };
    let mut told = back.clone();
    told.meta.arrival = Arrival::Received;
    assert!(answer::notice(&mut told, &at, Notice::TooBig { mtu: 1400 }, at.key.destination.address));
    // the source was ours only in this test
    told.data[14 + 16..14 + 20].copy_from_slice(&[192, 0, 2, 9]);
    back.meta.arrival = Arrival::Received;
    back.data[20] = 0;
    let mut pieces = Vec::new();
    assert!(answer::fragment(&mut back, &at, 1400, || Some(VecFrame::default()), |piece| pieces.push(piece)));
    pieces.push(back);
    pieces.push(told);
    a.send(&pieces);
    let sent: Vec<_> = a.sent().iter().map(|frame| ends(frame).0).collect();
    assert_eq!(sent, [mac(19), mac(19), mac(54)]);
}

#[test]
fn super_packets_are_judged_by_their_segments() {
    let mut a = balancer();
    let mut frame = datagram("10.0.0.80", "10.1.0.9", 3000);
    frame.meta.gso_size = 1372;
    a.send(&[frame.clone()]);
    assert_eq!(a.sent().len(), 1);
    frame.meta.gso_size = 1373;
    a.send(&[frame]);
    assert_eq!((a.sent().len(), a.receive().len()), (0, 1));
}

#[test]
fn time_exceeded_goes_back_where_the_packet_came_from() {
    let mut a = balancer();
    let mut frame = datagram("192.0.2.9", "10.0.0.80", 100);
    frame.data[..6].copy_from_slice(&mac(1));
    let mut got = a.arrives(0, frame.bytes()).pop().unwrap();
    let Ok(Parsed::Transport(at)) = parse(got.bytes()) else { panic!() };
    assert!(answer::notice(&mut got, &at, Notice::TimeExceeded, at.key.destination.address));
    a.send(&[got]);
    let sent = a.sent().pop().unwrap();
    assert_eq!(ends(&sent), (mac(54), mac(1)));
    assert!(matches!(parse(sent.bytes()), Ok(Parsed::IcmpError(_))));
}

#[test]
fn trailing_bytes_are_cut_except_padding() {
    let mut a = balancer();
    let mut padded = datagram("10.0.0.80", "10.1.0.9", 30);
    padded.data.resize(60, 0);
    let mut long = datagram("10.0.0.80", "10.1.0.9", 100);
    long.data.resize(1600, 7);
    a.send(&[padded, long]);
    let lengths: Vec<usize> = a.sent().iter().map(|frame| frame.bytes().len()).collect();
    assert_eq!(lengths, [60, 114]);
}

#[test]
fn neighbours_under_different_tags_are_different() {
    let mut a = balancer();
    let plain = datagram("10.0.0.80", "10.1.0.9", 100);
    // the same address under a tag is asked for under the tag
    a.send(&[tagged(&plain, 0x6007)]);
    let asked = a.sent();
    assert_eq!((asked.len(), a.link.waiting()), (1, 1));
    assert_eq!(asked[0].bytes()[12..18], [0x81, 0, 0, 7, 8, 6]);
    // an answer elsewhere does not count
    a.now = a.now + Duration::from_secs(2);
    a.arrives(1, &answer(1, [10, 1, 0, 9], 77));
    a.iterate();
    assert_eq!(a.link.waiting(), 1);
    let mut under = LinkSegment::of(tagged(&plain, 7).bytes(), 1).unwrap().0;
    assert_eq!(under.tags().collect::<Vec<_>>(), [(0x8100, 7)]);
    under = under.at(1);
    a.arrives(1, &answer_under(under, [10, 1, 0, 9], 20));
    a.iterate();
    let sent = a.sent();
    let sent: Vec<_> = sent.iter().filter(|frame| frame.bytes()[16..18] == [8, 0]).collect();
    assert_eq!((ends(sent[0]).0, &sent[0].bytes()[12..16]), (mac(20), &[0x81, 0, 0x60, 7][..]));
}

#[test]
fn no_more_than_so_many_wait() {
    let mut a = balancer();
    let numbered = |to: u8, number: usize| datagram("10.0.0.80", &std::format!("10.0.0.{to}"), 100 + number);
    for number in 0..HELD_EACH + 2 {
        a.send(&[numbered(100, number)]);
    }
    assert_eq!((a.link.waiting(), a.dropped(LinkDrop::HoldFull)), (HELD_EACH, 2));
    a.arrives(0, &answer(0, [10, 0, 0, 100], 99));
    a.sent();
    a.iterate();
    // the newest, in order
    let lengths: Vec<usize> = a.sent().iter().map(|frame| frame.bytes().len() - 114).collect();
    assert_eq!(lengths, [2, 3, 4, 5]);
    for to in 101..101 + HELD_MAX as u8 {
        a.send(&[numbered(to, 0)]);
    }
    assert_eq!((a.link.waiting(), a.dropped(LinkDrop::HoldFull)), (HELD_MAX, 2));
    a.send(&[numbered(101 + HELD_MAX as u8, 0)]);
    assert_eq!((a.link.waiting(), a.dropped(LinkDrop::HoldFull)), (HELD_MAX, 3));
    a.wait(Duration::from_secs(10));
    assert_eq!(a.link.waiting(), 0);
}

#[test]
fn frames_without_room_stay_in_order() {
    let mut a = balancer();
    let frames: Vec<VecFrame> = (0..10).map(|number| datagram("10.0.0.80", "10.1.0.9", 100 + number)).collect();
    a.wire.room.set(4);
    let left = a.send(&frames);
    assert_eq!((left.len(), a.sent().len()), (6, 4));
    assert_eq!(a.link.statistics().taken, 4);
    a.wire.room.set(usize::MAX);
    assert!(a.send(&left).is_empty());
    let lengths: Vec<usize> = a.sent().iter().map(|frame| frame.bytes().len() - 114).collect();
    assert_eq!(lengths, [4, 5, 6, 7, 8, 9]);
}

#[test]
fn held_frames_leave_first_through_small_mtu() {
    let mut a = balancer();
    a.send(&(0..3).map(|number| datagram("10.0.0.80", "10.0.0.7", 100 + number)).collect::<Vec<_>>());
    a.sent();
    a.arrives(0, &answer(0, [10, 0, 0, 7], 7));
    a.wire.room.set(2);
    let left = a.send(&[datagram("10.0.0.80", "10.0.0.7", 103)]);
    assert_eq!(left.len(), 1);
    a.wire.room.set(usize::MAX);
    a.send(&left);
    let lengths: Vec<usize> = a.sent().iter().map(|frame| frame.bytes().len() - 114).collect();
    assert_eq!(lengths, [0, 1, 2, 3]);
}

#[test]
fn our_own_frames_wait_for_room_within_bounds() {
    let mut a = balancer();
    a.wire.room.set(0);
    for number in 0..100u8 {
        let request = ArpPacket {
            operation: ArpOperation::Request,
            sender_mac: mac(9),
            sender: [10, 0, 0, number + 100],
            target_mac: [0; 6],
            target: [10, 0, 0, 80],
        };
        let mut frame = VecFrame::default();
        assert!(inward::write(
            &mut frame,
            LinkSegment::default(),
            60,
            ([0xff; 6], mac(9), ETHERTYPE),
            &request.bytes()
        ));
        a.arrives(0, frame.bytes());
    }
    assert_eq!((a.link.waiting(), a.dropped(LinkDrop::Backlog)), (64, 36));
    a.wire.room.set(usize::MAX);
    a.iterate();
    assert_eq!((a.link.waiting(), a.sent().len()), (0, 64));
}

#[test]
fn too_many_too_big_ones_are_dropped() {
    let mut a = balancer();
    let frames: Vec<VecFrame> = (0..60).map(|_| datagram("10.0.0.80", "10.1.0.9", 1401)).collect();
    a.send(&frames);
    a.send(&frames);
    assert_eq!((a.link.waiting(), a.dropped(LinkDrop::TooBig)), (64, 56));
    assert_eq!(a.receive().len(), 64);
}

proptest! {
    /// Cached and looked-up next hops give the same frames, and a batch keeps its order whatever is dropped from it.
    #[test]
    fn by_heart_or_not(kinds in prop::collection::vec(0usize..7, 1..60), once in any::<bool>()) {
        let made = |kind: usize, number: usize| match kind {
            0 => datagram("10.0.0.80", "192.0.2.1", 100 + number),
            1 => datagram("10.0.0.80", "10.1.0.9", 100 + number),
            2 => datagram("10.0.0.80", "172.16.0.1", 100 + number),
            3 => {
                let mut padded = datagram("10.0.0.80", "10.1.0.9", 30);
                padded.data.resize(60, number as u8);
                padded
            }
            4 => datagram("10.0.0.80", "10.1.0.9", 1401 + number),
            5 => datagram("10.0.0.80", "10.1.0.77", 100 + number),
            _ => datagram("2001:db8:1::80", "2001:db8:1::9", 100 + number),
        };
        let mut a = balancer();
        let frames: Vec<VecFrame> = kinds.iter().enumerate().map(|(number, kind)| made(*kind, number)).collect();
        let batch = a.send(&frames);
        prop_assert!(batch.is_empty());
        let together: Vec<_> = a.sent().into_iter().filter(|frame| ends(frame).0[0] == 2).map(|frame| frame.data).collect();
        let mut b = balancer();
        for frame in &frames {
            if once {
                b.link.forget();
            }
            b.send(core::slice::from_ref(frame));
        }
        let apart: Vec<_> = b.sent().into_iter().filter(|frame| ends(frame).0[0] == 2).map(|frame| frame.data).collect();
        prop_assert_eq!(&together, &apart);
        let expected = kinds.iter().filter(|kind| **kind < 4).count();
        prop_assert_eq!(together.len(), expected);
        prop_assert_eq!(a.link.statistics().drops, b.link.statistics().drops);
    }
}

//! Two ends find each other; every state of a neighbour, by the clock.

use super::stations::*;
use crate::flow::Address;
use crate::frame::{Frame, VecFrame};
use crate::link::arp::{ArpOperation, ArpPacket, ETHERTYPE};
use crate::link::neighbours::{FAILED, FAILED_KEPT, NeighbourState, REACHABLE, STALE};
use crate::link::{LinkDrop, LinkOptions, LinkPlan, LinkSegment, discovery};
use crate::time::Duration;
use alloc::sync::Arc;
use std::vec;
use std::vec::Vec;

fn pair() -> (Station, Station) {
    let options = |number, v4, v6| LinkOptions {
        ports: [port(number, &[(v4, 24), (v6, 64)], &[])].into(),
        ..LinkOptions::default()
    };
    (Station::new(&options(1, "10.0.0.1", "2001:db8::1")), Station::new(&options(2, "10.0.0.2", "2001:db8::2")))
}

fn converse(from: &str, to: &str) {
    let (mut a, mut b) = pair();
    assert!(a.send(&[datagram(from, to, 100)]).is_empty());
    assert_eq!(a.link.waiting(), 1);
    assert_eq!(a.neighbour(to).unwrap().state, NeighbourState::Incomplete);
    // the question
    assert_eq!(transfer(&mut a, 0, &mut b, 0), 1);
    assert!(b.receive().is_empty());
    assert_eq!(b.link.statistics().answered, 1);
    let back = b.neighbour(from).unwrap();
    assert_eq!((back.state, back.mac), (NeighbourState::Stale, mac(1)));
    // the answer
    assert_eq!(transfer(&mut b, 0, &mut a, 0), 1);
    assert!(a.receive().is_empty());
    let known = a.neighbour(to).unwrap();
    assert_eq!((known.state, known.mac, known.segment), (NeighbourState::Reachable, mac(2), LinkSegment::untagged(0)));
    // what waited goes
    a.iterate();
    assert_eq!(a.link.waiting(), 0);
    assert_eq!(transfer(&mut a, 0, &mut b, 0), 1);
    let arrived = b.receive();
    assert_eq!(arrived.len(), 1);
    assert_eq!(ends(&arrived[0]), (mac(2), mac(1)));
    assert_eq!(arrived[0].bytes()[12..], datagram(from, to, 100).bytes()[12..]);
    // and back, by what the question told: usable at once, confirmed beside it
    assert!(b.send(&[datagram(to, from, 100)]).is_empty());
    assert_eq!(b.neighbour(from).unwrap().state, NeighbourState::Probe);
    assert_eq!(transfer(&mut b, 0, &mut a, 0), 2);
    assert_eq!(a.receive().len(), 1);
    transfer(&mut a, 0, &mut b, 0);
    b.receive();
    assert_eq!(b.neighbour(from).unwrap().state, NeighbourState::Reachable);
    assert_eq!(a.link.statistics().drops, [0; LinkDrop::ALL.len()]);
    assert_eq!(b.link.statistics().drops, [0; LinkDrop::ALL.len()]);
}

#[test]
fn over_ipv4() {
    converse("10.0.0.1", "10.0.0.2");
}

#[test]
fn over_ipv6() {
    converse("2001:db8::1", "2001:db8::2");
}

/// One port, 10.0.0.1/24 and 2001:db8::1/64, gateways as told.
fn lone(gateways: &[&str]) -> LinkOptions {
    let networks = [("10.0.0.1", 24), ("2001:db8::1", 64)];
    LinkOptions { ports: [port(1, &networks, gateways)].into(), ..LinkOptions::default() }
}

/// The requests sent since the last call: the address they ask for, and the Ethernet address they go to.
fn requests(station: &Station) -> Vec<(Address, [u8; 6])> {
    let read = |frame: &VecFrame| {
        let to = ends(frame).0;
        match frame.bytes()[12..14] {
            [8, 6] => {
                let packet = ArpPacket::read(frame.bytes(), 14).unwrap();
                assert_eq!((packet.operation, packet.sender_mac), (ArpOperation::Request, mac(1)));
                assert_eq!(packet.sender, [10, 0, 0, 1]);
                Some((Address::from_ipv4(packet.target), to))
            }
            [0x86, 0xdd] if frame.bytes()[20] == 58 => {
                let header = crate::link::header::check_ipv6(frame.bytes(), 14).unwrap();
                let packet = discovery::DiscoveryPacket::read(frame.bytes(), &header).unwrap();
                assert_eq!(packet.source, at("2001:db8::1"));
                match packet.message {
                    discovery::NeighbourMessage::Solicitation { target, mac: from } => {
                        assert_eq!(from, Some(mac(1)));
                        let unicast = packet.destination == target;
                        assert!(unicast || packet.destination == discovery::solicited_node(&target));
                        assert_eq!(unicast, to[0] & 1 == 0);
                        Some((target, to))
                    }
                    other => panic!("{other:?}"),
                }
            }
            _ => None,
        }
    };
    station.sent().iter().filter_map(read).collect()
}

/// An answer of `address` at the Ethernet address `number` to our only port.
fn answer(address: &str, number: u8) -> Vec<u8> {
    let mut frame = VecFrame::default();
    let segment = LinkSegment::untagged(0);
    let address = at(address);
    let own = mac(number);
    if address.is_ipv4() {
        let operation = ArpOperation::Reply;
        let sender = address.ipv4_octets();
        let packet = ArpPacket { operation, sender_mac: own, sender, target_mac: mac(1), target: [10, 0, 0, 1] };
        assert!(crate::link::inward::write(&mut frame, segment, 60, (mac(1), own, ETHERTYPE), &packet.bytes()));
    } else {
        let message = discovery::NeighbourMessage::Advertisement {
            target: address,
            mac: Some(own),
            solicited: true,
            overrides: true,
        };
        let packet = discovery::DiscoveryPacket { source: address, destination: at("2001:db8::1"), message };
        assert!(crate::link::inward::write(&mut frame, segment, 86, (mac(1), own, 0x86dd), &packet.bytes()));
    }
    frame.data
}

const ABSENT: [(&str, &str); 2] = [("10.0.0.1", "10.0.0.9"), ("2001:db8::1", "2001:db8::9")];

fn everybody(address: &str) -> [u8; 6] {
    let address = at(address);
    if address.is_ipv4() { [0xff; 6] } else { discovery::group_mac(&discovery::solicited_node(&address)) }
}

#[test]
fn incomplete_asks_three_times_then_fails_for_three_seconds() {
    for (from, to) in ABSENT {
        let mut a = Station::new(&lone(&[]));
        a.send(&[datagram(from, to, 100)]);
        assert_eq!(requests(&a), [(at(to), everybody(to))]);
        a.wait(Duration::from_millis(900));
        assert_eq!(requests(&a), []);
        a.wait(Duration::from_millis(300));
        assert_eq!(requests(&a), [(at(to), everybody(to))]);
        a.wait(Duration::from_millis(1000));
        assert_eq!(requests(&a), [(at(to), everybody(to))]);
        assert_eq!((a.neighbour(to).unwrap().state, a.link.waiting()), (NeighbourState::Incomplete, 1));
        a.wait(Duration::from_millis(1200));
        assert_eq!((a.neighbour(to).unwrap().state, a.link.waiting()), (NeighbourState::Failed, 0));
        assert_eq!(a.dropped(LinkDrop::Unreachable), 1);
        // it is left alone for a while
        a.send(&[datagram(from, to, 100)]);
        assert_eq!((a.dropped(LinkDrop::Unreachable), a.link.waiting()), (2, 0));
        assert_eq!(requests(&a), []);
        a.wait(FAILED);
        assert_eq!(a.neighbour(to), None);
        a.send(&[datagram(from, to, 100)]);
        assert_eq!(requests(&a), [(at(to), everybody(to))]);
    }
}

#[test]
fn a_late_answer_serves_what_still_waits() {
    for (from, to) in ABSENT {
        let mut a = Station::new(&lone(&[]));
        a.send(&[datagram(from, to, 100), datagram(from, to, 101)]);
        a.wait(Duration::from_millis(2500));
        assert_eq!(requests(&a).len(), 3);
        a.arrives(0, &answer(to, 9));
        a.iterate();
        let sent = a.sent();
        assert_eq!(sent.iter().map(|frame| frame.bytes().len()).collect::<Vec<_>>(), [114, 115]);
        assert_eq!(ends(&sent[0]), (mac(9), mac(1)));
    }
}

/// A station that knows its neighbour `to`.
fn acquainted(from: &str, to: &str) -> Station {
    let mut a = Station::new(&lone(&[]));
    a.send(&[datagram(from, to, 100)]);
    a.arrives(0, &answer(to, 9));
    a.iterate();
    assert_eq!(a.neighbour(to).unwrap().state, NeighbourState::Reachable);
    a.sent();
    a
}

#[test]
fn reachable_turns_stale_and_is_forgotten_unless_used() {
    for (from, to) in ABSENT {
        let mut a = acquainted(from, to);
        a.wait(REACHABLE - Duration::from_secs(1));
        a.send(&[datagram(from, to, 100)]);
        assert_eq!((a.neighbour(to).unwrap().state, requests(&a)), (NeighbourState::Reachable, vec![]));
        a.wait(Duration::from_millis(1200));
        assert_eq!(a.neighbour(to).unwrap().state, NeighbourState::Stale);
        a.wait(STALE + Duration::from_millis(500));
        assert_eq!((a.neighbour(to), requests(&a)), (None, vec![]));
    }
}

#[test]
fn a_stale_one_is_used_and_asked_after() {
    for (from, to) in ABSENT {
        let mut a = acquainted(from, to);
        a.wait(REACHABLE + Duration::from_secs(5));
        a.send(&[datagram(from, to, 100), datagram(from, to, 101)]);
        let sent = a.sent();
        // both frames and one question, to it alone
        assert_eq!(sent.len(), 3);
        assert!(sent.iter().all(|frame| ends(frame).0 == mac(9)));
        assert_eq!(a.neighbour(to).unwrap().state, NeighbourState::Probe);
        a.arrives(0, &answer(to, 9));
        assert_eq!(a.neighbour(to).unwrap().state, NeighbourState::Reachable);
        a.send(&[datagram(from, to, 100)]);
        assert_eq!(a.sent().len(), 1);
    }
}

#[test]
fn expired_neighbour_is_probed_by_next_frame() {
    let (from, to) = ABSENT[0];
    let mut a = acquainted(from, to);
    // from now on it is cached
    a.send(&[datagram(from, to, 100)]);
    assert_eq!(requests(&a), []);
    a.now = a.now + REACHABLE;
    // the clock alone, as for a worker that others sweep for
    a.link.now = a.now;
    a.send(&[datagram(from, to, 100)]);
    assert_eq!(a.neighbour(to).unwrap().state, NeighbourState::Probe);
    assert_eq!(requests(&a), [(at(to), mac(9))]);
}

#[test]
fn who_moves_is_found_again() {
    for (from, to) in ABSENT {
        let mut a = acquainted(from, to);
        a.wait(REACHABLE + Duration::from_secs(1));
        a.send(&[datagram(from, to, 100)]);
        a.sent();
        a.wait(Duration::from_millis(1900));
        a.send(&[datagram(from, to, 100)]);
        // in use until three questions have gone unanswered
        assert_eq!(ends(&a.sent().pop().unwrap()).0, mac(9));
        assert_eq!(a.neighbour(to).unwrap().state, NeighbourState::Probe);
        a.wait(Duration::from_millis(1500));
        assert_eq!(a.neighbour(to).unwrap().state, NeighbourState::Incomplete);
        assert_eq!(requests(&a).last(), Some(&(at(to), everybody(to))));
        a.send(&[datagram(from, to, 100)]);
        assert_eq!(a.sent().len(), 0);
        a.arrives(0, &answer(to, 7));
        a.iterate();
        assert_eq!((a.neighbour(to).unwrap().state, a.neighbour(to).unwrap().mac), (NeighbourState::Reachable, mac(7)));
        assert_eq!(ends(&a.sent()[0]).0, mac(7));
    }
}

#[test]
fn kept_ones_are_known_before_they_are_needed() {
    let mut options = lone(&["10.0.0.254", "fe80::1"]);
    options.kept = ["10.0.0.8", "198.51.100.7"].map(ip).into();
    let mut a = Station::fresh(&options);
    a.neighbours.takes_announcement();
    a.iterate();
    a.iterate();
    // 198.51.100.7 is behind the gateway
    let mut asked: Vec<Address> = a.sent().iter().map(target).collect();
    asked.sort();
    let mut expected = ["10.0.0.8", "10.0.0.254", "fe80::1"].map(at);
    expected.sort();
    assert_eq!(asked, expected);
    a.arrives(0, &answer("10.0.0.8", 9));
    a.wait(REACHABLE + Duration::from_millis(200));
    assert_eq!(a.neighbour("10.0.0.8").unwrap().state, NeighbourState::Probe);
    // the gateway is tried again and again
    assert!(matches!(a.neighbour("10.0.0.254").unwrap().state, NeighbourState::Failed | NeighbourState::Incomplete));
    a.sent();
    a.wait(FAILED_KEPT + Duration::from_secs(4));
    assert!(a.sent().iter().any(|frame| target(frame) == at("10.0.0.254")));
    // another plan
    let plan = Arc::new(LinkPlan::new(&lone(&[])).unwrap());
    a.link.set_plan(plan);
    a.wait(FAILED_KEPT + Duration::from_secs(20));
    assert_eq!(a.neighbour("10.0.0.254"), None);
}

/// The address that a request asks for.
fn target(frame: &VecFrame) -> Address {
    match ArpPacket::read(frame.bytes(), 14) {
        Some(packet) => Address::from_ipv4(packet.target),
        None => Address(frame.bytes()[62..78].try_into().unwrap()),
    }
}

#[test]
fn the_next_gateway_serves_when_the_first_is_dead() {
    let mut a = Station::new(&lone(&["10.0.0.253", "10.0.0.254"]));
    a.iterate();
    a.arrives(0, &answer("10.0.0.254", 9));
    a.send(&[datagram("10.0.0.1", "192.0.2.1", 100)]);
    // it is not known yet that the first is dead
    assert_eq!(a.link.waiting(), 1);
    a.wait(Duration::from_secs(4));
    assert_eq!(a.neighbour("10.0.0.253").unwrap().state, NeighbourState::Failed);
    a.sent();
    a.send(&[datagram("10.0.0.1", "192.0.2.1", 100)]);
    assert_eq!(ends(&a.sent()[0]).0, mac(9));
    a.wait(FAILED_KEPT);
    a.arrives(0, &answer("10.0.0.253", 8));
    a.sent();
    a.send(&[datagram("10.0.0.1", "192.0.2.1", 100)]);
    assert_eq!(ends(&a.sent()[0]).0, mac(8));
}

#[test]
fn an_answer_that_one_worker_gets_serves_the_other() {
    let (from, to) = ABSENT[0];
    let plan = Arc::new(LinkPlan::new(&lone(&[])).unwrap());
    let neighbours = Arc::new(crate::link::Neighbours::new(64, [5; 4]));
    neighbours.takes_announcement();
    let mut a = Station::beside(plan.clone(), neighbours.clone());
    let mut b = Station::beside(plan, neighbours);
    a.iterate();
    b.iterate();
    a.send(&[datagram(from, to, 100)]);
    b.send(&[datagram(from, to, 100)]);
    // one question is enough
    assert_eq!((requests(&a).len(), requests(&b).len()), (1, 0));
    b.arrives(0, &answer(to, 9));
    a.iterate();
    b.iterate();
    assert_eq!((a.sent().len(), b.sent().len()), (1, 1));
}

#[test]
fn own_addresses_are_announced_three_times_by_one_worker() {
    let mut options = lone(&[]);
    options.local = ["10.0.0.80", "192.0.2.80", "2001:db8::80"].map(ip).into();
    let plan = Arc::new(LinkPlan::new(&options).unwrap());
    let neighbours = Arc::new(crate::link::Neighbours::new(64, [5; 4]));
    let mut a = Station::beside(plan.clone(), neighbours.clone());
    let mut b = Station::beside(plan, neighbours.clone());
    // no frame is lent at first
    a.wire.frames.set(0);
    a.iterate();
    b.iterate();
    assert_eq!((a.sent().len(), a.link.statistics().no_frame), (0, 1));
    a.wire.frames.set(usize::MAX);
    a.wait(Duration::from_secs(5));
    b.wait(Duration::from_secs(5));
    assert_eq!(b.sent().len(), 0);
    let sent = a.sent();
    // six addresses: the port's two, its link-local one, the three others
    assert_eq!((sent.len(), a.link.statistics().announced), (18, 18));
    let arp: Vec<ArpPacket> = sent.iter().filter_map(|frame| ArpPacket::read(frame.bytes(), 14)).collect();
    assert_eq!(arp.len(), 9);
    for packet in arp {
        assert_eq!(
            (packet.operation, packet.sender_mac, packet.sender),
            (ArpOperation::Request, mac(1), packet.target)
        );
    }
    for frame in sent.iter().filter(|frame| frame.bytes()[12..14] == [0x86, 0xdd]) {
        let header = crate::link::header::check_ipv6(frame.bytes(), 14).unwrap();
        let packet = discovery::DiscoveryPacket::read(frame.bytes(), &header).unwrap();
        let target = packet.source;
        let (mac, solicited, overrides) = (Some(mac(1)), false, true);
        assert_eq!(packet.message, discovery::NeighbourMessage::Advertisement { target, mac, solicited, overrides });
        assert_eq!(ends(frame).0, [0x33, 0x33, 0, 0, 0, 1]);
    }
    neighbours.announce();
    b.wait(Duration::from_secs(5));
    assert_eq!(b.sent().len(), 18);
}

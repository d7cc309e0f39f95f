//! Neighbours that lie, scan and flood.

use super::stations::*;
use crate::frame::{Frame, VecFrame};
use crate::link::arp::{ArpOperation, ArpPacket, ETHERTYPE};
use crate::link::discovery::NeighbourMessage;
use crate::link::neighbours::{LOCK_TIME, NeighbourState};
use crate::link::{LinkDrop, LinkError, LinkOptions, LinkPlan, LinkRoute, LinkSegment, discovery, inward};
use crate::time::Duration;
use proptest::prelude::*;
use std::vec;
use std::vec::Vec;

fn options() -> LinkOptions {
    LinkOptions {
        ports: [port(1, &[("10.0.0.1", 16), ("2001:db8::1", 64)], &["10.0.0.254"]), port(2, &[("10.9.0.1", 24)], &[])]
            .into(),
        local: [ip("10.0.0.80"), ip("2001:db8::80")].into(),
        ..LinkOptions::default()
    }
}

fn arp(operation: ArpOperation, sender: ([u8; 6], [u8; 4]), target: [u8; 4], to: [u8; 6]) -> Vec<u8> {
    let mut frame = VecFrame::default();
    let packet = ArpPacket { operation, sender_mac: sender.0, sender: sender.1, target_mac: [0; 6], target };
    assert!(inward::write(&mut frame, LinkSegment::default(), 60, (to, sender.0, ETHERTYPE), &packet.bytes()));
    frame.data
}

fn reply(sender: [u8; 4], number: u8) -> Vec<u8> {
    arp(ArpOperation::Reply, (mac(number), sender), [10, 0, 0, 1], mac(1))
}

fn advertisement(target: &str, number: Option<u8>, solicited: bool, overrides: bool) -> Vec<u8> {
    let mac_of = number.map(mac);
    let message = NeighbourMessage::Advertisement { target: at(target), mac: mac_of, solicited, overrides };
    let destination = if solicited { at("2001:db8::1") } else { discovery::ALL_NODES };
    let packet = discovery::DiscoveryPacket { source: at(target), destination, message };
    let mut frame = VecFrame::default();
    let to = if solicited { mac(1) } else { discovery::group_mac(&destination) };
    let from = mac(number.unwrap_or(3));
    assert!(inward::write(&mut frame, LinkSegment::default(), 86, (to, from, 0x86dd), &packet.bytes()));
    frame.data
}

fn state(station: &Station, address: &str) -> Option<(NeighbourState, [u8; 6])> {
    station.neighbour(address).map(|neighbour| (neighbour.state, neighbour.mac))
}

#[test]
fn an_announcement_makes_no_neighbour() {
    let mut a = Station::new(&options());
    a.arrives(0, &reply([10, 0, 0, 9], 9));
    a.arrives(0, &arp(ArpOperation::Request, (mac(9), [10, 0, 0, 9]), [10, 0, 0, 9], [0xff; 6]));
    a.arrives(0, &arp(ArpOperation::Request, (mac(9), [10, 0, 0, 9]), [10, 0, 0, 77], [0xff; 6]));
    a.arrives(0, &advertisement("2001:db8::9", Some(9), true, true));
    a.arrives(0, &advertisement("2001:db8::9", Some(9), false, true));
    assert_eq!((state(&a, "10.0.0.9"), state(&a, "2001:db8::9")), (None, None));
    // nor is a host outside the port's networks that asks for us
    a.arrives(0, &arp(ArpOperation::Request, (mac(9), [192, 0, 2, 9]), [10, 0, 0, 80], [0xff; 6]));
    assert_eq!((state(&a, "192.0.2.9"), a.sent().len()), (None, 1));
}

#[test]
fn an_answer_counts_at_the_port_that_was_asked_only() {
    let mut a = Station::new(&options());
    a.send(&[datagram("10.0.0.80", "10.0.0.9", 100)]);
    let mut frame = reply([10, 0, 0, 9], 9);
    frame[..6].copy_from_slice(&mac(2));
    a.arrives(1, &frame);
    assert_eq!(state(&a, "10.0.0.9").unwrap().0, NeighbourState::Incomplete);
    a.arrives(0, &reply([10, 0, 0, 9], 9));
    assert_eq!(state(&a, "10.0.0.9"), Some((NeighbourState::Reachable, mac(9))));
}

#[test]
fn the_first_answer_stands_for_a_second() {
    let mut a = Station::new(&options());
    a.send(&[datagram("10.0.0.80", "10.0.0.9", 100)]);
    a.arrives(0, &reply([10, 0, 0, 9], 9));
    a.arrives(0, &reply([10, 0, 0, 9], 66));
    assert_eq!(state(&a, "10.0.0.9"), Some((NeighbourState::Reachable, mac(9))));
    a.wait(LOCK_TIME);
    // then a host that announces itself is believed until it has been asked: a gateway may have been relieved
    a.arrives(0, &arp(ArpOperation::Request, (mac(66), [10, 0, 0, 9]), [10, 0, 0, 9], [0xff; 6]));
    assert_eq!(state(&a, "10.0.0.9"), Some((NeighbourState::Stale, mac(66))));
    a.send(&[datagram("10.0.0.80", "10.0.0.9", 100)]);
    assert_eq!(state(&a, "10.0.0.9"), Some((NeighbourState::Probe, mac(66))));
}

#[test]
fn advertisements_change_what_rfc_4861_says() {
    let to = "2001:db8::9";
    let known = || {
        let mut a = Station::new(&options());
        a.send(&[datagram("2001:db8::80", to, 100)]);
        // without an Ethernet address it says nothing to a host that has none
        a.arrives(0, &advertisement_without_mac(to));
        assert_eq!(state(&a, to).unwrap().0, NeighbourState::Incomplete);
        a.arrives(0, &advertisement(to, Some(9), true, false));
        assert_eq!(state(&a, to), Some((NeighbourState::Reachable, mac(9))));
        a.wait(LOCK_TIME);
        a
    };
    // another address, not to override: doubt, but no change
    let mut a = known();
    a.arrives(0, &advertisement(to, Some(8), false, false));
    assert_eq!(state(&a, to), Some((NeighbourState::Stale, mac(9))));
    a.arrives(0, &advertisement(to, Some(8), true, false));
    assert_eq!(state(&a, to), Some((NeighbourState::Stale, mac(9))));
    // to override: taken over, to be asked after; solicited ones are sure only where we asked
    let mut a = known();
    a.arrives(0, &advertisement(to, Some(8), false, true));
    assert_eq!(state(&a, to), Some((NeighbourState::Stale, mac(8))));
    // the same, unsolicited: no news
    let mut a = known();
    a.arrives(0, &advertisement(to, Some(9), false, true));
    assert_eq!(state(&a, to), Some((NeighbourState::Reachable, mac(9))));
    // asked after, answered without the address: confirmed
    a.wait(Duration::from_secs(30));
    a.send(&[datagram("2001:db8::80", to, 100)]);
    assert_eq!(state(&a, to), Some((NeighbourState::Probe, mac(9))));
    a.arrives(0, &advertisement_without_mac(to));
    assert_eq!(state(&a, to), Some((NeighbourState::Reachable, mac(9))));
}

/// A solicited advertisement whose option is of an unknown type.
fn advertisement_without_mac(target: &str) -> Vec<u8> {
    let mut frame = advertisement(target, Some(9), true, true);
    let option = 14 + 40 + 24;
    frame[option] = 200;
    let sum = u16::from_be_bytes([frame[56], frame[57]]);
    let mut difference = crate::wire::checksum::Difference::NONE;
    difference.word(0x0201, 0xc801);
    frame[56..58].copy_from_slice(&difference.update(sum).to_be_bytes());
    frame
}

#[test]
fn a_scan_evicts_no_neighbour_that_answers() {
    let mut options = options();
    options.kept = vec![ip("10.0.0.20")];
    let mut a = Station::new(&options);
    let peers: Vec<std::string::String> = (0..20u8).map(|n| std::format!("10.0.1.{n}")).collect();
    for (number, peer) in (0u8..).zip(&peers) {
        a.send(&[datagram("10.0.0.80", peer, 100)]);
        a.arrives(0, &reply([10, 0, 1, number], 100 + number));
    }
    a.arrives(0, &reply([10, 0, 0, 254], 54));
    a.iterate();
    a.sent();
    // forged clients make us answer to 20,000 addresses that no host has
    for n in 0..20_000u32 {
        let to = std::format!("10.0.{}.{}", 100 + n / 256 % 100, n % 256);
        a.send(&[datagram("10.0.0.80", &to, 100)]);
        if n % 100 == 0 {
            a.now = a.now + Duration::from_millis(20);
            a.iterate();
        }
    }
    let unresolved = a.neighbours.entries().filter(|n| !n.state.is_usable() && !n.kept).count();
    assert!(unresolved > 0, "{unresolved}");
    // and there is always room for another
    assert_eq!(a.dropped(LinkDrop::NeighboursFull), 0);
    for peer in &peers {
        assert_eq!(state(&a, peer).map(|found| found.0), Some(NeighbourState::Reachable), "{peer}");
    }
    assert_eq!(state(&a, "10.0.0.254"), Some((NeighbourState::Reachable, mac(54))));
    assert!(a.neighbour("10.0.0.20").is_some());
    // a thousand a second, a thousand at once, whatever is asked of us
    let asked = a.link.statistics().asked;
    assert!(asked < 1000 + 4 * 1000 + 3 * 1000, "{asked}");
    assert!(a.dropped(LinkDrop::AskLimit) > 0);
    a.wait(Duration::from_secs(12));
    assert_eq!(a.link.waiting(), 0);
    assert_eq!(a.neighbours.entries().filter(|n| !n.state.is_usable() && !n.kept).count(), 0);
}

#[test]
fn who_asks_us_fills_a_share_at_most() {
    let mut a = Station::new(&options());
    for n in 0..10_000u32 {
        let sender = [10, 0, (n / 256) as u8, (n % 256) as u8];
        a.arrives(0, &arp(ArpOperation::Request, (mac(9), sender), [10, 0, 0, 80], [0xff; 6]));
    }
    let learnt = a.neighbours.entries().filter(|neighbour| !neighbour.kept).count();
    assert!(learnt > 0 && learnt <= a.neighbours.capacity() / 2, "{learnt}");
    // and there is room for whom we need
    let mut lacking = 0;
    for n in 0..100u8 {
        a.send(&[datagram("10.0.0.80", &std::format!("10.0.200.{n}"), 100)]);
        lacking += usize::from(a.neighbour(&std::format!("10.0.200.{n}")).is_none());
    }
    assert_eq!((lacking, a.dropped(LinkDrop::NeighboursFull)), (0, 0));
}

#[test]
fn kept_neighbours_evict_others_and_stay() {
    let mut options = options();
    options.kept = (0..200u8).map(|n| std::net::IpAddr::from([10, 0, 50, n])).collect();
    let mut a = Station::fresh(&options);
    for n in 0..255u8 {
        a.send(&[datagram("10.0.0.80", &std::format!("10.0.7.{n}"), 100)]);
    }
    a.iterate();
    let kept = a.neighbours.entries().filter(|neighbour| neighbour.kept).count();
    // 201 of 256 places: nearly all find one, and none is taken from them
    assert!(kept > 195, "{kept}");
    for n in 0..255u8 {
        a.send(&[datagram("10.0.0.80", &std::format!("10.0.8.{n}"), 100)]);
    }
    assert_eq!(a.neighbours.entries().filter(|neighbour| neighbour.kept).count(), kept);
    assert!(a.dropped(LinkDrop::NeighboursFull) > 0);
}

#[test]
fn address_conflict_is_counted_and_defended_every_10_s() {
    let mut a = Station::new(&options());
    a.arrives(0, &arp(ArpOperation::Request, (mac(66), [10, 0, 0, 80]), [10, 0, 0, 80], [0xff; 6]));
    a.arrives(0, &advertisement("2001:db8::80", Some(66), false, true));
    assert_eq!(a.link.statistics().conflicts, 2);
    a.wait(Duration::from_secs(3));
    let first = a.link.statistics().announced;
    assert!(first > 0);
    a.arrives(0, &arp(ArpOperation::Reply, (mac(66), [10, 0, 0, 80]), [10, 0, 0, 1], mac(1)));
    a.wait(Duration::from_secs(3));
    assert_eq!((a.link.statistics().conflicts, a.link.statistics().announced), (3, first));
    a.wait(Duration::from_secs(5));
    a.arrives(0, &arp(ArpOperation::Reply, (mac(66), [10, 0, 0, 80]), [10, 0, 0, 1], mac(1)));
    a.wait(Duration::from_secs(3));
    assert_eq!(a.link.statistics().announced, 2 * first);
    // our own words, come back
    a.arrives(0, &arp(ArpOperation::Request, (mac(2), [10, 0, 0, 80]), [10, 0, 0, 80], [0xff; 6]));
    assert_eq!(a.link.statistics().conflicts, 4);
}

#[test]
fn impossible_options_are_refused() {
    let with = |change: fn(&mut LinkOptions)| {
        let mut options = options();
        change(&mut options);
        LinkPlan::new(&options).map(|_| ())
    };
    assert_eq!(with(|_| {}), Ok(()));
    assert_eq!(with(|o| o.ports.clear()), Err(LinkError::Ports));
    assert_eq!(with(|o| o.ports = vec![o.ports[0].clone(); 65]), Err(LinkError::Ports));
    assert_eq!(with(|o| o.ports = vec![o.ports[0].clone(); 64]), Ok(()));
    assert_eq!(with(|o| o.ports[1].mac = [1, 0, 0, 0, 0, 0]), Err(LinkError::Mac(1)));
    assert_eq!(with(|o| o.ports[1].mac = [0; 6]), Err(LinkError::Mac(1)));
    assert_eq!(with(|o| o.ports[0].mtu = 1279), Err(LinkError::Mtu(0)));
    assert_eq!(with(|o| o.ports[0].networks[0].1 = 33), Err(LinkError::Prefix(ip("10.0.0.1"), 33)));
    assert_eq!(with(|o| o.ports[0].networks[1].1 = 129), Err(LinkError::Prefix(ip("2001:db8::1"), 129)));
    assert_eq!(with(|o| o.ports[0].networks[0].0 = ip("224.0.0.1")), Err(LinkError::NotAHost(ip("224.0.0.1"))));
    assert_eq!(with(|o| o.local = vec![ip("::1")]), Err(LinkError::NotAHost(ip("::1"))));
    assert_eq!(with(|o| o.kept = vec![ip("::ffff:1.2.3.4")]), Err(LinkError::NotAHost(ip("::ffff:1.2.3.4"))));
    assert_eq!(with(|o| o.ports[1].gateways = vec![ip("10.8.0.1")]), Err(LinkError::Gateway(ip("10.8.0.1"), 1)));
    let route = |o: &mut LinkOptions, prefix, port, gateway| {
        o.routes = vec![LinkRoute { network: ip("192.0.2.0"), prefix, port, gateway }];
    };
    let with_route = |prefix, port, gateway| {
        let mut options = options();
        route(&mut options, prefix, port, gateway);
        LinkPlan::new(&options).map(|_| ())
    };
    assert_eq!(with_route(24, 1, Some(ip("10.9.0.2"))), Ok(()));
    assert_eq!(with_route(24, 1, Some(ip("fe80::2"))), Ok(()));
    assert_eq!(with_route(24, 2, None), Err(LinkError::RoutePort(2)));
    assert_eq!(with_route(24, 2, Some(ip("10.9.0.2"))), Err(LinkError::RoutePort(2)));
    assert_eq!(with_route(33, 1, None), Err(LinkError::Prefix(ip("192.0.2.0"), 33)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Whatever comes, no frame gets lost and nothing goes out but what is ours to send.
    #[test]
    fn anything_may_arrive(
        steps in prop::collection::vec((0u8..8, any::<u8>(), any::<u8>(), any::<u8>(), any::<u16>()), 1..200),
    ) {
        let mut a = Station::with_places(&options(), 64);
        a.wire.frames.set(50);
        for (what, x, y, z, place) in steps {
            let mut frame = match what {
                0 => reply([10, 0, 0, x & 15], y),
                1 => arp(ArpOperation::Request, (mac(y), [10, 0, 0, x & 15]), [10, 0, 0, if z & 1 == 0 { 80 } else { z }], [0xff; 6]),
                2 => advertisement(&std::format!("2001:db8::{:x}", x & 15), Some(y), z & 1 == 0, z & 2 == 0),
                3 => { a.now = a.now + Duration::from_millis(u64::from(place)); a.iterate(); continue }
                4 => { a.wire.room.set(usize::from(x & 7)); continue }
                5 | 6 => {
                    let to = if y & 1 == 0 { std::format!("10.0.0.{}", x & 15) } else { std::format!("2001:db8::{:x}", x & 15) };
                    let from = if y & 1 == 0 { "10.0.0.80" } else { "2001:db8::80" };
                    a.send(&[datagram(from, &to, 100 + usize::from(place) % 1600)]);
                    continue
                }
                _ => { let mut frame = datagram("10.0.0.7", "10.0.0.80", 100); frame.data[..6].copy_from_slice(&mac(1)); frame.data }
            };
            if z & 4 != 0 {
                let at = usize::from(place) % frame.len();
                frame[at] = x;
            }
            if z & 8 != 0 {
                frame.truncate(usize::from(place) % frame.len());
            }
            a.arrives(u16::from(z & 1), &frame);
            prop_assert!(a.link.waiting() <= 64 + 64 + 64);
        }
        for frame in a.sent() {
            // from us, to one station or, of ARP and discovery, to a group
            prop_assert!(ends(&frame).1 == mac(1) || ends(&frame).1 == mac(2));
        }
        a.wire.room.set(usize::MAX);
        a.wait(Duration::from_secs(10));
        a.receive();
        prop_assert_eq!(a.link.waiting(), 0);
    }
}

#[test]
fn a_frame_without_room_for_the_answer_is_counted() {
    #[derive(Default)]
    struct Tight(VecFrame);
    impl Frame for Tight {
        fn bytes(&self) -> &[u8] {
            &self.0.data
        }
        fn bytes_mut(&mut self) -> &mut [u8] {
            &mut self.0.data
        }
        fn resize(&mut self, length: usize) -> bool {
            length <= self.0.data.len() && self.0.resize(length)
        }
        fn meta(&self) -> &crate::frame::Meta {
            &self.0.meta
        }
        fn meta_mut(&mut self) -> &mut crate::frame::Meta {
            &mut self.0.meta
        }
    }
    let mut short = Tight(VecFrame::new(&reply([10, 0, 0, 9], 9)[..42]));
    let before = short.0.data.clone();
    assert!(!inward::write(&mut short, LinkSegment::default(), 60, (mac(1), mac(2), ETHERTYPE), &[1; 28]));
    assert_eq!(short.0.data, before);
}

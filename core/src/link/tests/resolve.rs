//! Two ends find each other.

use super::world::*;
use crate::frame::Frame;
use crate::link::neighbours::State;
use crate::link::{Drop, LinkOptions, Segment};

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
    assert_eq!(a.neighbour(to).unwrap().state, State::Incomplete);
    // the question
    assert_eq!(carry(&mut a, 0, &mut b, 0), 1);
    assert!(b.receive().is_empty());
    assert_eq!(b.link.statistics().answered, 1);
    let back = b.neighbour(from).unwrap();
    assert_eq!((back.state, back.mac), (State::Stale, mac(1)));
    // the answer
    assert_eq!(carry(&mut b, 0, &mut a, 0), 1);
    assert!(a.receive().is_empty());
    let known = a.neighbour(to).unwrap();
    assert_eq!((known.state, known.mac, known.segment), (State::Reachable, mac(2), Segment::untagged(0)));
    // what waited goes
    a.turn();
    assert_eq!(a.link.waiting(), 0);
    assert_eq!(carry(&mut a, 0, &mut b, 0), 1);
    let arrived = b.receive();
    assert_eq!(arrived.len(), 1);
    assert_eq!(ends(&arrived[0]), (mac(2), mac(1)));
    assert_eq!(arrived[0].bytes()[12..], datagram(from, to, 100).bytes()[12..]);
    // and back, by what the question told: usable at once, confirmed beside it
    assert!(b.send(&[datagram(to, from, 100)]).is_empty());
    assert_eq!(b.neighbour(from).unwrap().state, State::Probe);
    assert_eq!(carry(&mut b, 0, &mut a, 0), 2);
    assert_eq!(a.receive().len(), 1);
    carry(&mut a, 0, &mut b, 0);
    b.receive();
    assert_eq!(b.neighbour(from).unwrap().state, State::Reachable);
    assert_eq!(a.link.statistics().drops, [0; Drop::ALL.len()]);
    assert_eq!(b.link.statistics().drops, [0; Drop::ALL.len()]);
}

#[test]
fn over_ipv4() {
    converse("10.0.0.1", "10.0.0.2");
}

#[test]
fn over_ipv6() {
    converse("2001:db8::1", "2001:db8::2");
}

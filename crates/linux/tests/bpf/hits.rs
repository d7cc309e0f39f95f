//! Packets that a rule matches.

use crate::packet::{ACK, FIN, Packet, RST, SYN, parsed, v4, v6};
use crate::rig::{BACKEND, BACKEND_MAC, Buffer, CLIENT, OK, REDIRECT, Rig, SHOT, VIP, command, in_namespace};
use hairpin_core::engine::{Fate, Rule};
use hairpin_core::flow::{Endpoint, FlowKey, Protocol};
use hairpin_core::rewrite::Rewrite;
use hairpin_linux::abi::RULE_ACTIVE;
use hairpin_linux::programs::Absent;

fn key() -> FlowKey {
    v4(CLIENT, 40_000, VIP, 80, Protocol::Tcp)
}

/// From the client to the backend, the client's address kept.
fn forward(key: FlowKey) -> Rule {
    let destination = match key.is_ipv4() {
        true => v4(CLIENT, 1, BACKEND, 8080, key.protocol).destination,
        false => v6("fd01::2", 1, "fd02::2", 8080, key.protocol).destination,
    };
    let rewrite = Rewrite { source: key.source, destination, ..Rewrite::default() };
    Rule { key, rewrite, total: 5, ..Rule::default() }
}

fn active(rig: &Rig, rule: &Rule) {
    rig.put(rule, 0, |head| head.flags |= RULE_ACTIVE);
}

#[test]
fn egress_is_looked_up_and_cached() {
    in_namespace(|| {
        let rig = Rig::new(1, |_| ());
        for key in [key(), v6("fd01::2", 40_000, "2001:db8::10", 80, Protocol::Udp)] {
            active(&rig, &forward(key));
            let frame = Packet::new(key).to(rig.left.mac).frame();
            // The kernel fills in the MACs of the first itself, by its neighbour entry.
            let first = rig.ingress(&frame);
            assert_eq!((first.verdict, &first.frame[..12]), (REDIRECT, &frame[..12]));
            let head = rig.head(&key);
            let next_hop = rig.next_hop(&head).expect("it has been found");
            assert_eq!((next_hop.egress, next_hop.mtu, next_hop.wrapped), (rig.right.index, 1500, 0));
            assert_eq!(next_hop.addresses[..6], BACKEND_MAC);
            assert_eq!(next_hop.addresses[6..], rig.right.mac);
            let second = rig.ingress(&frame);
            assert_eq!((second.verdict, &second.frame[..12]), (REDIRECT, &next_hop.addresses[..]));
            assert_eq!(parsed(&second.frame).key.destination.port, 8080);
            let head = rig.head(&key);
            assert_eq!((head.packets, head.bytes), (2, 2 * (frame.len() as u64 - 14)));
            assert!(head.last_seen != 0);
        }
        let total = rig.plane.totals(6).unwrap()[5];
        assert_eq!(total.packets, 4);
        assert_eq!(rig.plane.totals(7).unwrap()[5], total);
    });
}

#[test]
fn the_routes_mtu_counts_and_neighbours_need_not_be_known() {
    in_namespace(|| {
        let rig = Rig::new(1, |_| ());
        // As when the kernel forwards: only a locked MTU of a route counts.
        command("ip", &["route", "add", "10.7.0.0/16", "via", "10.2.0.2", "dev", "right", "mtu", "lock", "1400"]);
        command("ip", &["route", "add", "10.8.0.0/16", "via", "10.2.0.77", "dev", "right", "mtu", "lock", "1300"]);
        for (to, mtu, cached) in [([10, 7, 0, 1], 1400, true), ([10, 8, 0, 1], 1300, false)] {
            let mut rule = forward(key());
            rule.rewrite.destination = v4(CLIENT, 1, to, 8080, Protocol::Tcp).destination;
            active(&rig, &rule);
            let frame = Packet::new(key()).to(rig.left.mac).frame();
            assert_eq!(rig.ingress(&frame).verdict, REDIRECT);
            assert_eq!(rig.ingress(&frame).verdict, REDIRECT);
            let head = rig.head(&key());
            let found = rig.next_hop(&head).map(|next_hop| next_hop.mtu);
            assert_eq!((head.packets, found), (2, cached.then_some(mtu)), "{to:?}");
            let whole = Packet { payload: vec![0; usize::from(mtu) - 39], ..Packet::new(key()) };
            let (_, counted) = rig.counted(|| rig.ingress(&whole.to(rig.left.mac).frame()));
            assert!(counted.contains_key("rule-mtu"), "{to:?}: {counted:?}");
        }
    });
}

#[test]
fn no_route_goes_to_the_worker() {
    in_namespace(|| {
        let rig = Rig::new(1, |_| ());
        command("ip", &["route", "add", "blackhole", "10.7.0.0/16"]);
        let mut rule = forward(key());
        rule.rewrite.destination = v4(CLIENT, 1, [10, 7, 0, 1], 8080, Protocol::Tcp).destination;
        active(&rig, &rule);
        let frame = Packet::new(key()).to(rig.left.mac).frame();
        let (run, counted) = rig.counted(|| rig.ingress(&frame));
        to_worker(&run, &frame);
        assert_eq!(counted, [("rule-no-route", 1), ("to-worker", 1)].into());
    });
}

/// Marked, and otherwise as it was.
fn to_worker(run: &crate::rig::Run, frame: &[u8]) {
    assert_eq!(run.verdict, REDIRECT);
    assert_eq!(run.frame[..2], [0x0a, 0], "received, slot 0");
    assert_eq!(run.frame[6..], frame[6..]);
}

#[test]
fn syn_fin_rst_and_spent_ttl_are_the_workers() {
    in_namespace(|| {
        let rig = Rig::new(1, |_| ());
        active(&rig, &forward(key()));
        let packet = Packet::new(key()).to(rig.left.mac);
        for flags in [SYN, FIN, RST, SYN | ACK, FIN | ACK, RST | ACK] {
            let frame = Packet { flags, ..packet.clone() }.frame();
            let (run, counted) = rig.counted(|| rig.ingress(&frame));
            to_worker(&run, &frame);
            assert_eq!(counted, [("rule-flags", 1), ("to-worker", 1)].into());
        }
        for ttl in [1, 0] {
            let frame = Packet { ttl, ..packet.clone() }.frame();
            let (run, counted) = rig.counted(|| rig.ingress(&frame));
            to_worker(&run, &frame);
            assert_eq!(counted, [("rule-ttl", 1), ("to-worker", 1)].into());
        }
        assert_eq!(rig.head(&key()).packets, 0);
        assert_eq!(rig.ingress(&Packet { ttl: 2, ..packet }.frame()).verdict, REDIRECT);
        assert_eq!(rig.head(&key()).packets, 1);
    });
}

#[test]
fn rules_forward_fin_without_a_process() {
    in_namespace(|| {
        let rig = Rig::new(1, |options| options.when_absent = Absent::Drop);
        active(&rig, &forward(key()));
        rig.stop_beating();
        let fin = Packet { flags: FIN | ACK, ..Packet::new(key()).to(rig.left.mac) };
        assert_eq!(rig.ingress(&fin.frame()).verdict, REDIRECT);
        assert_eq!(rig.head(&key()).packets, 1);
        let spent = Packet { ttl: 1, ..fin };
        let (run, counted) = rig.counted(|| rig.ingress(&spent.frame()));
        assert_eq!(run.verdict, SHOT);
        assert_eq!(counted, [("absent-drop", 1), ("rule-ttl", 1)].into());
    });
}

#[test]
fn what_is_too_big_is_the_workers_by_segment() {
    in_namespace(|| {
        let rig = Rig::new(1, |_| ());
        active(&rig, &forward(key()));
        let of = |payload: usize| Packet { payload: vec![7; payload], ..Packet::new(key()).to(rig.left.mac) }.frame();
        assert_eq!(rig.ingress(&of(1460)).verdict, REDIRECT);
        let (run, counted) = rig.counted(|| rig.ingress(&of(1461)));
        to_worker(&run, &of(1461));
        assert_eq!(counted, [("rule-mtu", 1), ("to-worker", 1)].into());
        assert_eq!(rig.head(&key()).packets, 1);

        let gso = |gso_size, gso_segs| Buffer { gso_size, gso_segs, ..Buffer::default() };
        rig.ingress_as(&of(3000), gso(1460, 3)).unwrap();
        let head = rig.head(&key());
        assert_eq!((head.packets, head.bytes), (4, 1500 + 3000 + 3 * 40));
        // A guest does not say how many segments there are.
        rig.ingress_as(&of(3000), gso(1000, 0)).unwrap();
        let head = rig.head(&key());
        assert_eq!((head.packets, head.bytes), (7, 1500 + 3120 + 3000 + 3 * 40));
        let (run, counted) = rig.counted(|| rig.ingress_as(&of(3000), gso(1461, 3)).unwrap());
        to_worker(&run, &of(3000));
        assert_eq!(counted, [("rule-mtu", 1), ("to-worker", 1)].into());
    });
}

#[test]
fn pass_rules_leave_packets_alone_and_count_them() {
    in_namespace(|| {
        let rig = Rig::new(1, |_| ());
        let key = v4(BACKEND, 8080, CLIENT, 40_000, Protocol::Tcp);
        rig.put(&Rule { key, fate: Fate::Pass, ..Rule::default() }, 0, |_| ());
        let frame = Packet::new(key).to(rig.left.mac).frame();
        let (run, counted) = rig.counted(|| rig.ingress(&frame));
        assert_eq!((run.verdict, run.frame), (OK, frame.clone()));
        assert_eq!(counted, [("pass-rule", 1)].into());
        assert_eq!(rig.head(&key).packets, 1);
        let fin = Packet { flags: FIN, ..Packet::new(key).to(rig.left.mac) }.frame();
        to_worker(&rig.ingress(&fin), &fin);
    });
}

#[test]
fn packets_for_others_or_from_the_worker_are_left_alone() {
    in_namespace(|| {
        let rig = Rig::new(1, |_| ());
        active(&rig, &forward(key()));
        let other = Packet::new(key()).to([2, 9, 9, 9, 9, 9]).frame();
        let (run, counted) = rig.counted(|| rig.ingress(&other));
        assert_eq!((run.verdict, run.frame, counted.len()), (OK, other, 0));

        let frame = Packet::new(key()).to(rig.left.mac).frame();
        let other = rig.ingress_as(&frame, Buffer { mark: 77, ..Buffer::default() }).unwrap();
        assert_eq!((other.verdict, other.mark), (REDIRECT, 77), "another program's mark is kept");
        // The mark is read off a frame that a worker passes to the kernel.
        let mut back = frame.clone();
        back[..6].copy_from_slice(&[0x16, 0, 0, 0, 0, 0]);
        let given = rig.worker(&back);
        assert_eq!((given.verdict, &given.frame), (REDIRECT, &frame));
        assert_ne!(given.mark, 0);
        let (again, counted) =
            rig.counted(|| rig.ingress_as(&frame, Buffer { mark: given.mark, ..Buffer::default() }).unwrap());
        assert_eq!((again.verdict, again.mark, again.frame, counted.len()), (OK, 0, frame, 0));
    });
}

/// Ends unlike the key's, in case a rule's and a key's are mixed up.
#[test]
fn full_nat_rewrites_both_ends_of_both_directions() {
    in_namespace(|| {
        let rig = Rig::new(1, |_| ());
        let forward = v4(CLIENT, 40_000, VIP, 81, Protocol::Tcp);
        let to = v4([10, 3, 0, 1], 20_001, BACKEND, 8081, Protocol::Tcp);
        for (key, new) in [(forward, to), (to.reversed(), forward.reversed())] {
            let (source, destination): (Endpoint, Endpoint) = (new.source, new.destination);
            let rewrite = Rewrite { source, destination, ..Rewrite::default() };
            active(&rig, &Rule { key, rewrite, ..Rule::default() });
            let run = rig.ingress(&Packet::new(key).to(rig.left.mac).frame());
            let at = parsed(&run.frame);
            assert_eq!((run.verdict, at.key), (REDIRECT, new));
            let field = at.checksum_offset();
            let checksum = u16::from_be_bytes([run.frame[field], run.frame[field + 1]]);
            assert_eq!(Some(checksum), at.transport_checksum(&run.frame));
        }
    });
}

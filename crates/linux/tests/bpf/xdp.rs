//! The XDP program, one packet at a time: beside the program at tc ingress, and what it leaves to that.

use crate::differential::{case, ticks};
use crate::packet::{ACK, FIN, Packet, RST, SYN, v4, v6};
use crate::rig::{
    BACKEND, CLIENT, LOOPBACK, NEXT_HOP, REDIRECT, Rig, SHOT, VIP, XDP_DROP, XDP_PASS, XDP_REDIRECT, XDP_TX,
    in_namespace,
};
use hairpin_core::engine::{Fate, Rule};
use hairpin_core::flow::{FlowKey, Protocol, Steering};
use hairpin_core::rewrite::Rewrite;
use hairpin_linux::abi::{Bytes, FlowV4, RuleHead, RuleV4, SequenceChange};
use libbpf_rs::MapCore;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use std::cell::Cell;

/// A rule in force whose route is fresh and leads to the loopback device.
pub(crate) fn settled(rig: &Rig) -> impl Fn(&mut RuleHead) + use<> {
    rig.settled(LOOPBACK, 1500, false)
}

fn counters(rig: &Rig, rule: &Rule) -> [u64; 4] {
    let head = rig.head(&rule.key);
    let total = rig.plane.totals(rule.total + 1).unwrap()[rule.total as usize];
    [head.packets, head.bytes, total.packets, total.bytes]
}

/// What a run adds to the counters of a rule that has just been put in.
fn added<T>(rig: &Rig, rule: &Rule, run: impl FnOnce() -> T) -> (T, [u64; 4]) {
    rig.put(rule, 0, settled(rig));
    let before = counters(rig, rule);
    let result = run();
    let after = counters(rig, rule);
    (result, [0, 1, 2, 3].map(|i| after[i] - before[i]))
}

/// Drawn frames by both programs: the same bytes and the same counters, or passed with nothing changed or counted.
#[test]
fn xdp_and_tc_change_the_same_bytes() {
    in_namespace(|| {
        let rig = Rig::new(1, |_| ());
        rig.write("devices", &LOOPBACK, &LOOPBACK);
        let (sent, passed, direct_sent, numbered_sent) = (Cell::new(0), Cell::new(0), Cell::new(0), Cell::new(0));
        type Drawn = ((Packet, Rewrite), bool, bool, bool);
        let compare = |((mut packet, mut rewrite), bare, numbered, direct): Drawn| {
            // Most that is drawn has a tag or an extension header.
            if bare {
                packet.tags.clear();
                packet.extensions.clear();
            }
            if !numbered || direct {
                let (source, destination) = (rewrite.source, rewrite.destination);
                rewrite = Rewrite { source, destination, ..Rewrite::default() };
            }
            let frame = packet.clone().to(rig.left.mac).frame();
            let fate = if direct { Fate::Direct } else { Fate::Forward };
            let rule = Rule { key: crate::packet::parsed(&frame).key, rewrite, fate, total: 5, ..Rule::default() };
            let (xdp, xdp_counted) = added(&rig, &rule, || rig.xdp(&frame, false));
            if xdp.verdict == XDP_PASS {
                prop_assert!(!bare, "left to tc: {:?}", packet);
                passed.set(passed.get() + 1);
                prop_assert_eq!(xdp_counted, [0; 4]);
                prop_assert_eq!(&xdp.frame, &frame);
                return Ok(());
            }
            sent.set(sent.get() + 1);
            direct_sent.set(direct_sent.get() + u32::from(direct));
            numbered_sent.set(numbered_sent.get() + u32::from(rewrite.sequence_delta != 0));
            let (tc, tc_counted) = added(&rig, &rule, || rig.ingress(&frame));
            prop_assert_eq!((xdp.verdict, tc.verdict), (XDP_REDIRECT, REDIRECT));
            prop_assert_eq!(&xdp.frame, &tc.frame, "xdp left, tc right; before: {:?}", frame);
            prop_assert_eq!(xdp_counted, tc_counted);
            Ok::<(), TestCaseError>(())
        };
        let mut runner = TestRunner::new(Config { failure_persistence: None, ..Config::with_cases(4000) });
        runner.run(&(case(), any::<bool>(), any::<bool>(), any::<bool>()), compare).unwrap();
        assert!(direct_sent.get() > 100, "{} by rules of direct server return", direct_sent.get());
        assert!(numbered_sent.get() > 100, "{} with new sequence numbers", numbered_sent.get());
        assert!(sent.get() > 400 && passed.get() > 400, "{} sent, {} passed", sent.get(), passed.get());
    });
}

fn tcp() -> FlowKey {
    v4(CLIENT, 40_000, VIP, 80, Protocol::Tcp)
}

fn udp() -> FlowKey {
    v6("fd01::2", 40_000, "2001:db8::10", 53, Protocol::Udp)
}

fn rule(key: FlowKey) -> Rule {
    let destination = match key.is_ipv4() {
        true => v4(CLIENT, 1, BACKEND, 8080, key.protocol).destination,
        false => v6("fd01::2", 1, "fd02::2", 8080, key.protocol).destination,
    };
    Rule { key, rewrite: Rewrite { source: key.source, destination, ..Rewrite::default() }, ..Rule::default() }
}

#[test]
fn xdp_sends_back_or_redirects_and_counts_it() {
    in_namespace(|| {
        let rig = Rig::new(1, |_| ());
        for key in [tcp(), udp()] {
            rig.put(&rule(key), 0, settled(&rig));
            let frame = Packet::new(key).to(rig.left.mac).frame();
            // Neither is possible: no device that XDP may send by.
            assert_eq!(rig.xdp(&frame, false).verdict, XDP_PASS);
            let (run, counted) = rig.counted(|| rig.xdp(&frame, true));
            assert_eq!((run.verdict, counted), (XDP_TX, [("xdp-sent", 1)].into()));
            assert_eq!(run.frame[..12], NEXT_HOP);
            rig.put(&rule(key), 0, rig.settled(rig.right.index, 1500, false));
            assert_eq!(rig.xdp(&frame, true).verdict, XDP_PASS, "to a device that XDP may not send by");
            rig.write("devices", &rig.right.index, &rig.right.index);
            let (run, counted) = rig.counted(|| rig.xdp(&frame, true));
            assert_eq!((run.verdict, counted), (XDP_REDIRECT, [("xdp-sent", 1)].into()));
            rig.plane.maps().named("devices").unwrap().delete(rig.right.index.bytes()).unwrap();
        }
    });
}

#[test]
fn what_rules_do_not_take_as_they_stand_passes() {
    in_namespace(|| {
        let rig = Rig::new(1, |_| ());
        let plain = || Packet::new(tcp()).to(rig.left.mac);
        let run = |packet: Packet, what: &str, change: &dyn Fn(&mut RuleHead)| {
            let of = Rule { key: packet.key, ..rule(packet.key) };
            rig.put(&of, 0, |head| {
                settled(&rig)(head);
                change(head);
            });
            let frame = packet.frame();
            let (run, counted) = rig.counted(|| rig.xdp(&frame, true));
            if run.verdict == XDP_PASS {
                assert_eq!((&run.frame, counted.len()), (&frame, 0), "{what}");
                assert_eq!(rig.head(&packet.key).packets, 0, "{what}");
            }
            run.verdict
        };
        let same = |_: &mut RuleHead| ();
        assert_eq!(run(plain(), "plain", &same), XDP_TX);
        assert_eq!(run(Packet { ip_options: vec![1; 4], ..plain() }, "options of IPv4", &same), XDP_TX);
        for flag in [SYN, FIN, RST] {
            assert_eq!(run(Packet { flags: ACK | flag, ..plain() }, "flags", &same), XDP_PASS);
        }
        assert_eq!(run(Packet { ttl: 1, ..plain() }, "TTL", &same), XDP_PASS);
        assert_eq!(run(Packet { tags: vec![[0x81, 0, 0, 5]], ..plain() }, "a tag", &same), XDP_PASS);
        assert_eq!(run(plain().to([2; 6]), "another host's", &same), XDP_PASS);
        let behind = Packet { extensions: vec![17, 0, 1, 4, 0, 0, 0, 0], ..Packet::new(udp()).to(rig.left.mac) };
        assert_eq!(run(behind, "an extension header", &same), XDP_PASS);
        assert_eq!(run(plain(), "not in force", &|head| head.flags = 0), XDP_PASS);
        assert_eq!(run(plain(), "an old route", &|head| head.until = ticks().wrapping_sub(10)), XDP_PASS);
        assert_eq!(run(plain(), "no route", &|head| head.next_hop = 0), XDP_PASS);
        assert_eq!(run(plain(), "the MTU", &rig.settled(LOOPBACK, 46, false)), XDP_PASS);
        assert_eq!(run(plain(), "the MTU exactly", &rig.settled(LOOPBACK, 47, false)), XDP_TX);
        let mut fragment = plain().frame();
        fragment[20] |= 0x20;
        assert_eq!(rig.xdp(&fragment, true).verdict, XDP_PASS);
        let whole = plain().frame();
        for length in [14, 33, 34, 53, whole.len() - 1] {
            assert_eq!(rig.xdp(&whole[..length], true).verdict, XDP_PASS, "{length} bytes");
        }
        rig.put(&Rule { fate: Fate::Pass, ..rule(tcp()) }, 0, settled(&rig));
        assert_eq!(rig.xdp(&whole, true).verdict, XDP_PASS);
        // Without a process connections may end; without a rule it is a miss.
        rig.stop_beating();
        assert_eq!(run(Packet { flags: ACK | FIN, ..plain() }, "no process", &same), XDP_TX);
        let strange = v4(CLIENT, 7, BACKEND, 7, Protocol::Udp);
        assert_eq!(rig.xdp(&Packet::new(strange).to(rig.left.mac).frame(), true).verdict, XDP_PASS);
    });
}

#[test]
fn a_sequence_change_that_is_not_the_rules_passes() {
    in_namespace(|| {
        let rig = Rig::new(1, |_| ());
        let numbered = |delta, destination| {
            let source = tcp().source;
            Rule {
                rewrite: Rewrite { source, destination, sequence_delta: delta, ..Rewrite::default() },
                ..rule(tcp())
            }
        };
        let (own, other) = (rule(tcp()).rewrite.destination, v4(CLIENT, 1, BACKEND, 1, Protocol::Tcp).destination);
        let frame = Packet::new(tcp()).to(rig.left.mac).frame();
        rig.put(&numbered(1, own), 0, settled(&rig));
        assert_eq!(rig.xdp(&frame, true).verdict, XDP_TX);
        let change = SequenceChange::of(&numbered(2, other), &RuleV4::of(&numbered(2, other), 0));
        rig.write("sequence_v4", &FlowV4::of(&tcp()), &change);
        assert_eq!(rig.xdp(&frame, true).verdict, XDP_PASS);
        rig.plane.maps().named("sequence_v4").unwrap().delete(FlowV4::of(&tcp()).bytes()).unwrap();
        let run = rig.xdp(&frame, true);
        assert_eq!((run.verdict, run.frame), (XDP_PASS, frame));
    });
}

#[test]
fn xdp_drops_what_the_policer_would() {
    in_namespace(|| {
        let rig = Rig::new(1, |_| ());
        let frame = |flags| Packet { flags, ..Packet::new(tcp()).to(rig.left.mac) }.frame();
        let udp = Packet::new(v4(CLIENT, 40_000, VIP, 80, Protocol::Udp)).to(rig.left.mac).frame();
        for frame in [&frame(SYN), &frame(ACK), &udp] {
            assert_eq!(rig.xdp(frame, true).verdict, XDP_PASS, "no limit");
        }
        for service in 0..2 {
            rig.plane.control().set_client_rate(service, 0);
        }
        let (verdicts, counted) =
            rig.counted(|| [frame(SYN), frame(ACK), udp.clone()].map(|f| rig.xdp(&f, true).verdict));
        assert_eq!((verdicts, counted), ([XDP_DROP; 3], [("policed-client", 3)].into()));
        // Bare looks take no tokens: all that the bucket holds are there for tc.
        rig.plane.control().set_client_rate(0, 640);
        std::thread::sleep(std::time::Duration::from_millis(200));
        for _ in 0..1000 {
            assert_eq!(rig.xdp(&frame(SYN), true).verdict, XDP_PASS);
        }
        let (_, counted) = rig.counted(|| (0..64).for_each(|_| drop(rig.ingress(&frame(SYN)))));
        assert_eq!(counted.get("policed-client"), None, "{counted:?}");
        // Known connections are exempt, but not their SYNs, once the bucket is empty.
        rig.plane.control().set_client_rate(0, 0);
        while rig.ingress(&frame(SYN)).verdict != SHOT {}
        let hash = Steering::by_hash(crate::rig::KEY, 1).hash(&tcp().source);
        let known = rig.plane.control().known();
        known[hash as usize & (known.len() - 1)].store(1, std::sync::atomic::Ordering::Relaxed);
        assert_eq!([ACK, SYN].map(|flags| rig.xdp(&frame(flags), true).verdict), [XDP_PASS, XDP_DROP]);
    });
}

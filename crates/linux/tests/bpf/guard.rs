//! Guards: which packets a rule takes is what core says, and a rule that is replaced is never half of one and half of the
//! other.

use crate::packet::{ACK, Packet, packet, parsed, v4, v6};
use crate::rig::{
    BACKEND, Buffer, CLIENT, LOOPBACK, NEXT_HOP, REDIRECT, Rig, Run, VIP, XDP_PASS, XDP_TX, in_namespace, other_cpu,
};
use hairpin_core::engine::{
    Completion, Completions, Counters, Fate, FlowEngine, Guard, Refusal, Rule, RuleId, RuleOp, Samples,
};
use hairpin_core::flow::{FlowKey, Protocol};
use hairpin_core::frame::Checksum;
use hairpin_core::rewrite::Rewrite;
use hairpin_linux::abi::{Bytes, FlowV4, RULE_ACTIVE, SequenceChange};
use hairpin_linux::cpu;
use hairpin_linux::engine::KernelEngine;
use libbpf_rs::{MapCore, MapFlags};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::sync::atomic::{AtomicBool, Ordering};

/// In force, with a way out.
fn active(rig: &Rig, rule: &Rule) {
    rig.put(rule, 0, rig.settled(LOOPBACK, 4000, false));
}

/// Distances from the edge of a range: on it, beside it, far from it.
fn near() -> impl Strategy<Value = u32> {
    prop_oneof![9 => Just(0), 6 => (-2i32..3).prop_map(|by| by as u32), 1 => Just(1 << 31), 1 => any::<u32>()]
}

/// A TCP packet, and a guard one of whose edges, or more, it comes near. SACK blocks come near the guard's, too.
fn case() -> impl Strategy<Value = (Packet, Guard)> {
    let lengths = prop_oneof![Just(0u32), 1u32..100, Just(4000), Just(1 << 20), Just((1 << 31) - 1)];
    let ranges = (near(), lengths.clone(), any::<bool>(), near(), lengths, any::<bool>());
    let blocks = prop_oneof![Just(Vec::new()), proptest::collection::vec((near(), any::<bool>()), 0..=6)];
    let flags = prop_oneof![8 => Just(ACK), 1 => Just(0)];
    let body = prop_oneof![Just(0usize), 0usize..100, 0usize..3000];
    (packet(), ranges, blocks, body, flags).prop_map(|(packet, ranges, blocks, payload, flags)| {
        let key = FlowKey { protocol: Protocol::Tcp, ..packet.key };
        let extensions = packet.extensions.clone();
        let mut packet = Packet { key, flags, payload: vec![7; payload], tags: Vec::new(), ..packet };
        if !extensions.is_empty() {
            // The header after the last extension is TCP now.
            let last = extensions.len() - 8;
            packet.extensions[last] = Protocol::Tcp as u8;
        }
        let (from_sequence, sequence_length, to_its_end, from_acknowledgement, acknowledgement_length, at_the_end) =
            ranges;
        let length = packet.payload.len() as u32;
        let sequence = match to_its_end {
            true => packet.sequence.wrapping_add(length).wrapping_sub(sequence_length),
            false => packet.sequence,
        };
        let acknowledgement = match at_the_end {
            true => packet.acknowledgement.wrapping_sub(acknowledgement_length),
            false => packet.acknowledgement,
        };
        let guard = Guard {
            sequence: sequence.wrapping_add(from_sequence),
            sequence_length,
            acknowledgement: acknowledgement.wrapping_add(from_acknowledgement),
            acknowledgement_length,
        };
        if blocks.len() > 1 {
            let edge = |(by, above): &(u32, bool)| {
                let above = if *above { acknowledgement_length } else { 0 };
                guard.acknowledgement.wrapping_add(above).wrapping_add(*by)
            };
            let edges: Vec<u8> = blocks[..blocks.len() / 2 * 2].iter().flat_map(|b| edge(b).to_be_bytes()).collect();
            let aligned = [1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8];
            let before = if length.is_multiple_of(2) && edges.len() <= 24 { &aligned[..] } else { &[] };
            packet.tcp_options = [before, &[1, 1, 5, 2 + edges.len() as u8], &edges[..]].concat();
        }
        (packet, guard)
    })
}

/// To the worker, with nothing but the mark changed.
fn diverted(run: &Run, frame: &[u8]) -> bool {
    run.verdict == REDIRECT && run.frame[..2] == [0x0a, 0] && run.frame[6..] == frame[6..]
}

#[test]
fn bpf_admits_what_core_admits() {
    in_namespace(|| {
        let rig = Rig::new(1, |_| ());
        let mut within = [0u32; 2];
        let mut runner = TestRunner::new(Config { failure_persistence: None, ..Config::with_cases(6000) });
        let within_cell = std::cell::RefCell::new(&mut within);
        let outcome = runner.run(&case(), |(packet, guard)| {
            // So many take longer on a busy machine than it goes without a heartbeat.
            rig.heartbeat();
            let frame = packet.clone().to(rig.left.mac).frame();
            let at = parsed(&frame);
            let new = at.key.reversed();
            let rewrite = Rewrite {
                source: new.source,
                destination: new.destination,
                sequence_delta: 7,
                acknowledgement_delta: 9,
                window_shift: -2,
                timestamp_delta: 11,
                echo_delta: 13,
            };
            active(&rig, &Rule { key: at.key, rewrite, guard: Some(guard), ..Rule::default() });
            let in_driver = rig.xdp(&frame, true);
            // A super-packet of segments, for all the program at tc knows.
            let buffer = Buffer { gso_size: 1000, ..Buffer::default() };
            let (run, counted) = rig.counted(|| rig.ingress_as(&frame, buffer).unwrap());
            let admitted = guard.admits_packet(&frame, &at);
            within_cell.borrow_mut()[usize::from(admitted)] += 1;
            let has_extensions = !packet.key.is_ipv4() && !packet.extensions.is_empty();
            if !admitted || has_extensions {
                prop_assert_eq!((in_driver.verdict, &in_driver.frame), (XDP_PASS, &frame), "outside {:?}", guard);
            }
            if !admitted {
                prop_assert!(diverted(&run, &frame), "outside {:?}, yet {:?}", guard, run);
                prop_assert_eq!(counted, [("rule-guard", 1), ("to-worker", 1)].into());
                return Ok(());
            }
            let mut expected = frame.clone();
            rewrite.apply(&mut expected, &at, Checksum::Complete);
            expected[..12].copy_from_slice(&NEXT_HOP);
            prop_assert_eq!(run.verdict, REDIRECT);
            prop_assert_eq!(&run.frame, &expected, "within {:?}", guard);
            prop_assert_eq!(counted.len(), 0);
            if !has_extensions {
                prop_assert_eq!((in_driver.verdict, &in_driver.frame), (XDP_TX, &expected), "within {:?}", guard);
            }
            Ok(())
        });
        outcome.unwrap();
        assert!(within.iter().all(|count| *count > 300), "the cases are one-sided: {within:?}");
    });
}

fn key() -> FlowKey {
    v4(CLIENT, 40_000, VIP, 80, Protocol::Tcp)
}

/// The client's packets of `key()` to a backend's port, numbers moved by `delta`.
fn rule(port: u16, delta: u32, guard: Option<Guard>) -> Rule {
    let to = v4(CLIENT, 40_000, BACKEND, port, Protocol::Tcp);
    let (source, destination) = (to.source, to.destination);
    let rewrite = Rewrite { source, destination, sequence_delta: delta, ..Rewrite::default() };
    Rule { id: RuleId(1), key: key(), rewrite, guard, total: u32::from(port), ..Rule::default() }
}

const WIDE: Guard =
    Guard { sequence: 0, sequence_length: 1 << 30, acknowledgement: 0, acknowledgement_length: 1 << 30 };

fn execute(engine: &mut KernelEngine, ops: impl IntoIterator<Item = RuleOp>) -> Vec<Completion> {
    for op in ops {
        engine.submit(cpu::now(), op).expect("there is room");
    }
    engine.flush(cpu::now());
    let mut some = Completions::new();
    engine.poll(cpu::now(), &mut some);
    some.into_iter().collect()
}

fn install(engine: &mut KernelEngine, rule: Rule) {
    let answers = execute(engine, [RuleOp::Install(rule)]);
    assert!(matches!(answers[..], [Completion::Installed(id)] if id == rule.id), "{answers:?}");
}

fn counters(engine: &mut KernelEngine) -> Counters {
    let mut samples = Samples::new();
    engine.sample(&[(RuleId(1), key())], &mut samples);
    samples[0].expect("there is a rule")
}

/// The fate of a packet with sequence number 1000: the worker's, with CPU and ticket, or on its way to a port with a
/// number.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Worker(u8, u32),
    Sent(u16, u32),
}

fn send(rig: &Rig) -> Outcome {
    let run = rig.ingress(&Packet::new(key()).to(rig.left.mac).frame());
    assert_eq!(run.verdict, REDIRECT);
    match run.frame[..] {
        [0x0a, 0, cpu, a, b, c, ..] => Outcome::Worker(cpu, u32::from_be_bytes([0, a, b, c])),
        _ => {
            let at = parsed(&run.frame);
            assert_eq!(at.transport_checksum(&run.frame).map(u16::to_be_bytes), Some(checksum(&run.frame)));
            let sequence = u32::from_be_bytes(run.frame[at.l4 + 4..at.l4 + 8].try_into().unwrap());
            Outcome::Sent(at.key.destination.port, sequence)
        }
    }
}

fn checksum(frame: &[u8]) -> [u8; 2] {
    let field = parsed(frame).checksum_offset();
    [frame[field], frame[field + 1]]
}

#[test]
fn a_rule_is_replaced_in_every_way_and_counts_on() {
    in_namespace(|| {
        let rig = Rig::new(1, |_| ());
        let mut engine = rig.plane.engine(0).unwrap();
        let change = || rig.plane.maps().named("sequence_v4").unwrap().keys().count();
        let narrow = Guard { sequence: 5000, sequence_length: 10, ..WIDE };
        let mut sent = 0;
        for (step, (rule, expected)) in [
            (rule(1, 0, None), Some((1, 1000))),
            // numbers in place of none, others in place of some, with another guard, to another end, none again
            (rule(1, 5, None), Some((1, 1005))),
            (rule(1, 6, Some(WIDE)), Some((1, 1006))),
            (rule(1, 7, Some(narrow)), None),
            (rule(2, 8, Some(WIDE)), Some((2, 1008))),
            (rule(2, 0, Some(narrow)), None),
            (rule(3, 0, None), Some((3, 1000))),
            (rule(4, 0, None), Some((4, 1000))),
            (rule(4, 9, None), Some((4, 1009))),
            (rule(4, 0, None), Some((4, 1000))),
            (rule(4, 0, None), Some((4, 1000))),
        ]
        .into_iter()
        .enumerate()
        {
            install(&mut engine, rule);
            assert_eq!(rig.head(&key()).flags & RULE_ACTIVE, 0, "step {step}: hand-over starts anew");
            let outcome = send(&rig);
            match (expected, outcome) {
                (Some((port, sequence)), outcome) => assert_eq!(outcome, Outcome::Sent(port, sequence), "step {step}"),
                (None, Outcome::Worker(cpu, ticket)) => rig.plane.control().publish(0, cpu, ticket),
                (None, outcome) => panic!("step {step}: {outcome:?}"),
            }
            sent += u64::from(expected.is_some());
            assert_eq!(counters(&mut engine).packets, sent, "step {step}");
            let there = rule.guard.is_some() || rule.rewrite.sequence_delta != 0;
            assert_eq!(change(), usize::from(there), "step {step}");
            assert_eq!(rig.head(&key()).total, rule.total as u16);
        }
        let answers = execute(&mut engine, [RuleOp::Remove { id: RuleId(1), key: key() }]);
        assert!(matches!(answers[..], [Completion::Removed(_, Some(Counters { packets, .. }))] if packets == sent));
        assert_eq!(change(), 0);
    });
}

#[test]
fn an_update_waits_for_the_packets_inside_the_worker() {
    in_namespace(|| {
        let rig = Rig::new(1, |options| options.handover_bound = std::time::Duration::from_secs(3600));
        let mut engine = rig.plane.engine(0).unwrap();
        let narrow = Guard { sequence: 5000, sequence_length: 10, ..WIDE };
        install(&mut engine, rule(1, 5, Some(narrow)));
        let Outcome::Worker(cpu, first) = send(&rig) else { panic!("outside the guard") };
        install(&mut engine, rule(1, 6, Some(WIDE)));
        let Outcome::Worker(_, second) = send(&rig) else { panic!("the first is still inside the worker") };
        rig.plane.control().publish(0, cpu, first);
        let Outcome::Worker(_, third) = send(&rig) else { panic!("the second is still inside the worker") };
        assert!(first < second && second < third);
        rig.plane.control().publish(0, cpu, third);
        assert_eq!(send(&rig), Outcome::Sent(1, 1006));
    });
}

#[test]
fn a_rule_that_needs_no_hand_over_holds_at_once() {
    in_namespace(|| {
        let rig = Rig::new(1, |options| options.handover_bound = std::time::Duration::from_secs(3600));
        let mut engine = rig.plane.engine(0).unwrap();
        assert!(matches!(send(&rig), Outcome::Worker(..)), "of another flow, for all the engine knows");
        let at_once = |port, delta| Rule { at_once: true, ..rule(port, delta, Some(WIDE)) };
        install(&mut engine, at_once(1, 5));
        assert_eq!(send(&rig), Outcome::Sent(1, 1005), "new");
        install(&mut engine, at_once(1, 6));
        assert_eq!(send(&rig), Outcome::Sent(1, 1006), "changed");
        install(&mut engine, at_once(2, 7));
        assert_eq!(send(&rig), Outcome::Sent(2, 1007), "with other ends");
        install(&mut engine, rule(2, 8, Some(WIDE)));
        assert!(matches!(send(&rig), Outcome::Worker(..)), "a hand-over that waits");
        install(&mut engine, at_once(2, 9));
        assert_eq!(send(&rig), Outcome::Sent(2, 1009), "and one that does not, in its place");
    });
}

#[test]
fn what_cannot_be_replaced_stays_as_it_was() {
    in_namespace(|| {
        let rig = Rig::new(1, |options| options.rules_v4_max = 4);
        let mut engine = rig.plane.engine(0).unwrap();
        install(&mut engine, rule(1, 0, None));
        assert_eq!(send(&rig), Outcome::Sent(1, 1000));
        // The test takes all the room that numbers have.
        let stray = |n: u16| FlowV4::of(&v4(CLIENT, n, VIP, 80, Protocol::Tcp));
        let value = SequenceChange::zeroed();
        let maps = rig.plane.maps();
        let full = (1..200).find(|n| {
            maps.named("sequence_v4").unwrap().update(stray(*n).bytes(), value.bytes(), MapFlags::ANY).is_err()
        });
        let full = full.expect("the map has an end");
        let answers = execute(&mut engine, [RuleOp::Install(Rule { id: RuleId(2), ..rule(2, 5, Some(WIDE)) })]);
        assert!(matches!(answers[..], [Completion::Rejected(RuleId(2), Refusal::Full)]), "{answers:?}");
        assert_eq!(send(&rig), Outcome::Sent(1, 1000));
        assert_eq!(counters(&mut engine).packets, 2);
        for n in 1..full {
            maps.named("sequence_v4").unwrap().delete(stray(n).bytes()).unwrap();
        }
        install(&mut engine, rule(2, 5, Some(WIDE)));
        assert_eq!(send(&rig), Outcome::Sent(2, 1005));
    });
}

#[test]
fn only_tcp_rules_that_forward_have_guards() {
    in_namespace(|| {
        let rig = Rig::new(1, |_| ());
        let mut engine = rig.plane.engine(0).unwrap();
        let udp = Rule { key: FlowKey { protocol: Protocol::Udp, ..key() }, ..rule(1, 0, Some(WIDE)) };
        let udp6 = Rule { key: v6("fd01::2", 1, "2001:db8::10", 80, Protocol::Udp), ..udp };
        let pass = Rule { fate: Fate::Pass, ..rule(1, 0, Some(WIDE)) };
        let answers = execute(&mut engine, [udp, udp6, pass].map(RuleOp::Install));
        assert_eq!(answers.len(), 3);
        assert!(answers.iter().all(|a| matches!(a, Completion::Rejected(_, Refusal::Unsupported))), "{answers:?}");
        assert!(rig.plane.installed().unwrap().is_empty());
        assert!(engine.caps().checks_guards && engine.caps().rewrites_window);
    });
}

/// States that a packet can meet in the middle of an update, and that only an update can bring about.
#[test]
fn foreign_sequence_change_is_not_used() {
    in_namespace(|| {
        let rig = Rig::new(1, |_| ());
        let right = rule(1, 5, Some(WIDE));
        let put = |change: Option<SequenceChange>| {
            active(&rig, &right);
            match change {
                Some(change) => rig.write("sequence_v4", &FlowV4::of(&key()), &change),
                None => rig.plane.maps().named("sequence_v4").unwrap().delete(FlowV4::of(&key()).bytes()).unwrap(),
            }
            let (outcome, counted) = rig.counted(|| send(&rig));
            if let Outcome::Worker(..) = outcome {
                assert_eq!(counted, [("rule-guard", 1), ("to-worker", 1)].into());
            }
            outcome
        };
        active(&rig, &right);
        let maps = rig.plane.maps();
        let bytes =
            maps.named("sequence_v4").unwrap().lookup(FlowV4::of(&key()).bytes(), MapFlags::ANY).unwrap().unwrap();
        let change = SequenceChange::from_bytes(&bytes).unwrap();
        assert_eq!(put(Some(change)), Outcome::Sent(1, 1005));
        assert!(matches!(put(None), Outcome::Worker(..)), "being removed");
        for changed in [
            SequenceChange { check: 0, ..change },
            SequenceChange { sequence_delta: 6, ..change },
            SequenceChange { acknowledgement_delta: 1, ..change },
            SequenceChange { sequence: 1, ..change },
            SequenceChange { sequence_length: 1 << 29, ..change },
            SequenceChange { acknowledgement: 1, ..change },
            SequenceChange { acknowledgement_length: 1 << 29, ..change },
            SequenceChange { window_shift: 1, ..change },
            SequenceChange { guarded: 0, ..change },
            SequenceChange { timestamp_delta: 1, ..change },
            SequenceChange { echo_delta: 1, ..change },
        ] {
            assert!(matches!(put(Some(changed)), Outcome::Worker(..)), "{changed:?}");
        }
        for other in [rule(2, 5, Some(WIDE)), Rule { total: 7, ..right }] {
            let value = hairpin_linux::abi::RuleV4::of(&other, 0);
            assert!(
                matches!(put(Some(SequenceChange::of(&other, &value))), Outcome::Worker(..)),
                "other ends: {other:?}"
            );
        }
    });
}

struct SetWhenDropped<'a>(&'a AtomicBool);

impl Drop for SetWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// One CPU replaces the rule over and over while another sends packets: every packet goes to the port that its number
/// belongs to, or to the worker, and each is counted once.
#[test]
fn no_packet_meets_a_mixture() {
    in_namespace(|| {
        let rig = Rig::new(1, |_| ());
        let mut engine = rig.plane.engine(0).unwrap();
        let rules = [
            rule(1, 100, Some(WIDE)),
            rule(1, 200, Some(Guard { sequence: 999, ..WIDE })),
            rule(2, 300, Some(WIDE)),
            rule(2, 400, None),
            rule(3, 0, None),
        ];
        let right = [(1, 1100), (1, 1200), (2, 1300), (2, 1400), (3, 1000)];
        install(&mut engine, rules[0]);
        let done = AtomicBool::new(false);
        let rounds: u32 = std::env::var("HAIRPIN_UPDATES").ok().and_then(|n| n.parse().ok()).unwrap_or(40_000);
        let (sent, met) = std::thread::scope(|scope| {
            let sender = scope.spawn(|| {
                if let Some(other) = other_cpu() {
                    cpu::pin(other).unwrap();
                }
                let (mut sent, mut met) = (0u64, [0u64; 5]);
                while !done.load(Ordering::Relaxed) {
                    rig.heartbeat();
                    match send(&rig) {
                        Outcome::Worker(cpu, ticket) => rig.plane.control().publish(0, cpu, ticket),
                        Outcome::Sent(port, sequence) => {
                            sent += 1;
                            let which = right.iter().position(|known| *known == (port, sequence));
                            met[which.unwrap_or_else(|| panic!("port {port} with number {sequence}"))] += 1;
                        }
                    }
                }
                (sent, met)
            });
            // The sender ends, too, if a rule is refused.
            let end = SetWhenDropped(&done);
            let mut state = 1u32;
            for _ in 0..rounds {
                // In no order, and not in step with the sender (xorshift).
                state ^= state << 13;
                state ^= state >> 17;
                state ^= state << 5;
                install(&mut engine, rules[state as usize % 5]);
                (0..state % 256).for_each(|_| std::hint::spin_loop());
            }
            drop(end);
            sender.join().unwrap()
        });
        assert!(met.iter().all(|count| *count > 0) || rounds < 1000, "not all were met: {met:?}");
        let counted = counters(&mut engine).packets;
        // If the element is a new one, a packet between the two may go uncounted: one for each round at most.
        assert!(counted <= sent && sent - counted <= sent / 20 + 10, "{counted} of {sent} counted");
    });
}

#[test]
fn a_super_packet_is_within_as_a_whole() {
    in_namespace(|| {
        let rig = Rig::new(1, |_| ());
        let packet = Packet { payload: vec![1; 2500], ..Packet::new(key()).to(rig.left.mac) };
        let frame = packet.frame();
        let run = |guard: Guard| {
            active(&rig, &rule(1, 5, Some(guard)));
            let run = rig.ingress_as(&frame, Buffer { gso_size: 1000, gso_segs: 3, ..Buffer::default() }).unwrap();
            run.frame[..12] == NEXT_HOP
        };
        let just = Guard { sequence: 1000, sequence_length: 2500, acknowledgement: 2000, acknowledgement_length: 0 };
        assert!(run(just));
        assert!(!run(Guard { sequence_length: 2499, ..just }));
        assert!(!run(Guard { sequence: 1001, ..just }));
        assert!(!run(Guard { acknowledgement: 2001, ..just }));
        assert!(!run(Guard { acknowledgement: 1999, ..just }));
    });
}

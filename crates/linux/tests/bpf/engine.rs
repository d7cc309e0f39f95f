//! The flow engine: rules go in and out, answers come back, offload state and engine agree.

use crate::packet::{Packet, v4, v6};
use crate::rig::{REDIRECT, Rig, in_namespace};
use hairpin_core::engine::{Completion, Completions, Counters, FlowEngine, Refusal, Rule, RuleId, RuleOp, Samples};
use hairpin_core::flow::{FlowKey, Protocol};
use hairpin_core::rewrite::Rewrite;
use hairpin_linux::abi::{Bytes, FlowV4, SequenceChange};
use hairpin_linux::cpu;
use hairpin_linux::engine::KernelEngine;
use libbpf_rs::{MapCore, MapFlags};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

fn key(number: u16) -> FlowKey {
    match number % 3 {
        0 => v6("fd01::2", number, "2001:db8::10", 80, Protocol::Tcp),
        1 => v4([10, 1, 0, 2], number, [192, 0, 2, 10], 80, Protocol::Tcp),
        _ => v4([10, 1, 0, 2], number, [192, 0, 2, 10], 80, Protocol::Udp),
    }
}

fn install(id: u64, number: u16) -> RuleOp {
    let to = key(number).reversed();
    let rewrite = Rewrite { source: to.source, destination: to.destination, ..Rewrite::default() };
    RuleOp::Install(Rule { id: RuleId(id), key: key(number), rewrite, ..Rule::default() })
}

fn remove(id: u64, number: u16) -> RuleOp {
    RuleOp::Remove { id: RuleId(id), key: key(number) }
}

/// Submits, flushes and takes all answers.
pub(crate) fn execute(engine: &mut KernelEngine, ops: impl IntoIterator<Item = RuleOp>) -> Vec<Completion> {
    for op in ops {
        engine.submit(cpu::now(), op).expect("there is room");
    }
    engine.flush(cpu::now());
    answers(engine)
}

fn answers(engine: &mut KernelEngine) -> Vec<Completion> {
    let mut all = Vec::new();
    loop {
        let mut some = Completions::new();
        engine.poll(cpu::now(), &mut some);
        if some.is_empty() {
            return all;
        }
        all.extend(some);
    }
}

fn held(rig: &Rig) -> BTreeSet<FlowKey> {
    rig.plane.installed().unwrap().into_iter().collect()
}

#[test]
fn rules_go_in_count_and_come_out_with_their_counters() {
    in_namespace(|| {
        let rig = Rig::new(1, |_| ());
        let mut engine = rig.plane.engine(0).unwrap();
        let done = execute(&mut engine, (0..600).map(|n| install(u64::from(n), n)));
        assert_eq!(done.len(), 600);
        assert!(done.iter().all(|answer| matches!(answer, Completion::Installed(_))));
        assert_eq!(held(&rig), (0..600).map(key).collect());

        let to_right = v4([10, 1, 0, 2], 1, [10, 2, 0, 2], 8080, Protocol::Tcp);
        let rewrite = Rewrite { source: to_right.source, destination: to_right.destination, ..Rewrite::default() };
        let rule = Rule { id: RuleId(1), key: key(1), rewrite, ..Rule::default() };
        execute(&mut engine, [RuleOp::Install(rule)]);
        let before = cpu::now();
        let frame = Packet::new(key(1)).to(rig.left.mac).frame();
        for _ in 0..3 {
            assert_eq!(rig.ingress(&frame).verdict, REDIRECT);
        }

        let asked: Vec<_> =
            (0..400).map(|n| (RuleId(u64::from(n)), key(n))).chain([(RuleId(9999), key(9999))]).collect();
        let mut samples = Samples::new();
        engine.sample(&asked, &mut samples);
        assert_eq!(samples.len(), 401);
        assert_eq!(samples[0], Some(Counters::default()));
        assert_eq!(samples[400], None);
        let hit = samples[1].unwrap();
        assert_eq!((hit.packets, hit.bytes), (3, 3 * (frame.len() as u64 - 14)));
        let age = before.since(hit.last_seen.unwrap());
        assert!(age.as_millis() < 20, "last seen {age:?} before it was hit");

        let done = execute(&mut engine, (0..600).chain([9999]).map(|n| remove(u64::from(n), n)));
        let removed: BTreeMap<RuleId, Option<Counters>> = done
            .iter()
            .map(|answer| match answer {
                Completion::Removed(id, counters) => (*id, *counters),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(removed.len(), 601);
        assert_eq!(removed[&RuleId(1)].unwrap().packets, 3);
        assert_eq!(removed[&RuleId(2)], Some(Counters::default()));
        assert_eq!(removed[&RuleId(9999)], None);
        assert!(held(&rig).is_empty());
    });
}

#[test]
fn a_full_map_refuses_and_takes_again() {
    in_namespace(|| {
        let rig = Rig::new(1, |options| options.rules_v4_max = 8);
        let mut engine = rig.plane.engine(0).unwrap();
        let v4_numbers: Vec<u16> = (0..40).filter(|n| n % 3 != 0).collect();
        let done = execute(&mut engine, v4_numbers.iter().map(|n| install(u64::from(*n), *n)));
        let refused: Vec<_> = done.iter().filter(|a| matches!(a, Completion::Rejected(_, Refusal::Full))).collect();
        let installed = done.iter().filter(|a| matches!(a, Completion::Installed(_))).count();
        assert_eq!(installed + refused.len(), v4_numbers.len());
        assert_eq!(held(&rig).len(), installed);
        assert!((8..16).contains(&installed), "{installed}");
        // IPv6 has room of its own; and replacing needs none.
        assert!(matches!(execute(&mut engine, [install(1, 3)])[..], [Completion::Installed(_)]));
        assert!(matches!(execute(&mut engine, [install(1, 1)])[..], [Completion::Installed(_)]));
        execute(&mut engine, [remove(1, 1)]);
        let Completion::Rejected(id, _) = refused[0] else { unreachable!() };
        let done = execute(&mut engine, [install(id.0, id.0 as u16)]);
        assert!(matches!(done[..], [Completion::Installed(_)]), "{done:?}");
    });
}

#[test]
fn the_queue_has_an_end() {
    in_namespace(|| {
        let rig = Rig::new(1, |_| ());
        let mut engine = rig.plane.engine(0).unwrap();
        let most = engine.caps().ops_in_flight_max;
        for n in 0..most {
            engine.submit(cpu::now(), install(u64::from(n), n as u16)).unwrap();
        }
        let back = engine.submit(cpu::now(), install(7, 7)).unwrap_err();
        assert!(matches!(back, RuleOp::Install(rule) if rule.id == RuleId(7)));
        engine.flush(cpu::now());
        assert!(engine.submit(cpu::now(), install(7, 7)).is_err(), "the answers are not taken yet");
        assert_eq!(answers(&mut engine).len(), most as usize);
        engine.submit(cpu::now(), install(7, 7)).unwrap();
    });
}

#[test]
fn a_worker_has_one_engine() {
    in_namespace(|| {
        let rig = Rig::new(2, |_| ());
        let engine = rig.plane.engine(0).unwrap();
        assert!(rig.plane.engine(0).is_err());
        let _other = rig.plane.engine(1).unwrap();
        assert!(rig.plane.engine(200).is_err());
        drop(engine);
        rig.plane.engine(0).unwrap();
    });
}

#[test]
fn sequence_change_lives_as_long_as_its_rule() {
    in_namespace(|| {
        let rig = Rig::new(1, |_| ());
        let mut engine = rig.plane.engine(0).unwrap();
        let rewrite = Rewrite { sequence_delta: 5, acknowledgement_delta: 6, ..Rewrite::default() };
        let rule = Rule { id: RuleId(1), key: key(1), rewrite, ..Rule::default() };
        let change = || {
            let maps = rig.plane.maps();
            maps.named("sequence_v4").unwrap().lookup(FlowV4::of(&key(1)).bytes(), MapFlags::ANY).unwrap()
        };
        execute(&mut engine, [RuleOp::Install(rule)]);
        let written = SequenceChange::from_bytes(&change().unwrap()).unwrap();
        assert_eq!((written.sequence_delta, written.acknowledgement_delta, written.guarded), (5, 6, 0));
        execute(&mut engine, [RuleOp::Install(rule), remove(1, 1), install(2, 2)]);
        assert_eq!(change(), None);
    });
}

/// Any sequence of requests, flushed anywhere: every one is answered once, in order for each flow, and what the kernel
/// holds in the end is what a plain set holds.
#[test]
fn requests_for_a_flow_keep_their_order() {
    in_namespace(|| {
        let rig = Rig::new(1, |_| ());
        let engine = RefCell::new(rig.plane.engine(0).unwrap());
        let op = (any::<bool>(), 0u16..6, prop::bool::weighted(0.2));
        let mut runner = TestRunner::new(Config { failure_persistence: None, ..Config::with_cases(300) });
        let outcome = runner.run(&prop::collection::vec(op, 0..40), |ops| {
            let mut engine = engine.borrow_mut();
            let mut model: BTreeSet<FlowKey> = rig.plane.installed().unwrap().into_iter().collect();
            let mut expected: BTreeMap<RuleId, Option<bool>> = BTreeMap::new();
            for (id, (add, number, flush)) in ops.iter().enumerate() {
                let id = id as u64;
                let there = match add {
                    true => {
                        model.insert(key(*number));
                        None
                    }
                    false => Some(model.remove(&key(*number))),
                };
                expected.insert(RuleId(id), there);
                let op = if *add { install(id, *number) } else { remove(id, *number) };
                prop_assert!(engine.submit(cpu::now(), op).is_ok());
                if *flush {
                    engine.flush(cpu::now());
                }
            }
            engine.flush(cpu::now());
            let answered: Vec<_> = answers(&mut engine);
            prop_assert_eq!(answered.len(), ops.len());
            for answer in answered {
                let (id, there) = match answer {
                    Completion::Installed(id) => (id, None),
                    Completion::Removed(id, counters) => (id, Some(counters.is_some())),
                    Completion::Rejected(id, why) => return Err(TestCaseError::fail(format!("{id:?}: {why:?}"))),
                };
                prop_assert_eq!(expected.remove(&id), Some(there), "{:?}", id);
            }
            prop_assert_eq!(held(&rig), model);
            Ok(())
        });
        outcome.unwrap();
    });
}

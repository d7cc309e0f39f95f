//! The engine as workers see it, with its thread.

use super::fake::{self, FakeOptions};
use super::world::{BOTH_WAYS, TERMS, TestHops, alone, connection, ports};
use crate::flow::{Offload, OffloadError, OffloadOptions, RteFlowEngine, Trial, Way, trial};
use hairpin_core::engine::{Completion, Completions, FlowEngine, Refusal, RuleOp, Samples};
use hairpin_core::time::Time;
use std::time::Duration;

fn options(way: Way, rules_max: u32, workers: u16) -> OffloadOptions {
    let clock = || Time::from_nanos(1);
    OffloadOptions { ports: ports(), rules_max, workers, terms: TERMS, way, clock, eal: None }
}

fn start(way: Way, rules_max: u32, workers: u16) -> (Offload, Vec<RteFlowEngine>) {
    Offload::start(options(way, rules_max, workers), Box::new(TestHops::default())).expect("the fake takes it")
}

/// Waits for so many answers.
fn answers(engine: &mut RteFlowEngine, count: usize) -> Vec<Completion> {
    let mut all = Vec::new();
    for _ in 0..20_000 {
        let mut some = Completions::new();
        engine.poll(Time::ZERO, &mut some);
        all.extend(some);
        if all.len() >= count {
            return all;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("{} answers instead of {count}", all.len());
}

fn install(engine: &mut RteFlowEngine, number: u16) {
    for rule in connection(number) {
        engine.submit(Time::ZERO, RuleOp::Install(rule)).expect("there is room");
    }
}

#[test]
fn several_workers_and_nothing_left() {
    for way in BOTH_WAYS {
        let _alone = alone(&FakeOptions { delay: 2, ..FakeOptions::default() });
        let (offload, mut engines) = start(way, 1000, 3);
        let standing = fake::state().live;
        for (worker, engine) in engines.iter_mut().enumerate() {
            for number in 0..100 {
                install(engine, (worker * 100 + number) as u16);
            }
            engine.flush(Time::ZERO);
        }
        for engine in &mut engines {
            let all = answers(engine, 200);
            assert!(all.iter().all(|one| matches!(one, Completion::Installed(_))), "{all:?}");
        }
        assert_eq!(fake::state().live, standing + 600);
        let sampled: Vec<_> = connection(0).iter().map(|rule| (rule.id, rule.key)).collect();
        let mut samples = Samples::new();
        engines[0].sample(&sampled, &mut samples);
        assert!(samples.len() == 2 && samples.iter().all(Option::is_some), "{samples:?}");
        engines[1].sample(&sampled, &mut samples);
        assert!(samples.iter().all(Option::is_none), "another worker's");
        for rule in connection(0) {
            engines[0].submit(Time::ZERO, RuleOp::Remove { id: rule.id, key: rule.key }).expect("there is room");
        }
        engines[0].flush(Time::ZERO);
        let gone = answers(&mut engines[0], 2);
        assert!(gone.iter().all(|one| matches!(one, Completion::Removed(_, Some(_)))), "{gone:?}");
        engines[0].sample(&sampled, &mut samples);
        assert!(samples.iter().all(Option::is_none));
        for _ in 0..2000 {
            if offload.statistics().rules == 598 {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(offload.statistics().rules, 598);
        drop(offload);
        let state = fake::state();
        assert_eq!((state.live, state.templates, state.violations), (0, 0, 0), "{}", state.first_violation());
        // Nobody is there any more.
        install(&mut engines[2], 999);
        engines[2].flush(Time::ZERO);
        let refused = answers(&mut engines[2], 2);
        assert!(refused.iter().all(|one| matches!(one, Completion::Rejected(_, Refusal::Failed))), "{refused:?}");
    }
}

/// A worker may always submit until it is told that there is no room, and what it was told has room is answered.
#[test]
fn queues_are_bounded() {
    for way in BOTH_WAYS {
        let _alone = alone(&FakeOptions { delay: 1, ..FakeOptions::default() });
        let (_offload, mut engines) = start(way, 64, 1);
        let engine = &mut engines[0];
        // An odd number, so that the last pair does not fit by one.
        let unknown = connection(20_000)[0];
        engine.submit(Time::ZERO, RuleOp::Remove { id: unknown.id, key: unknown.key }).expect("there is room");
        let mut taken = 0;
        'full: for number in 0..10_000 {
            for rule in connection(number) {
                if engine.submit(Time::ZERO, RuleOp::Install(rule)).is_err() {
                    break 'full;
                }
                taken += 1;
            }
        }
        // Room is kept for the second of a pair, so that what is refused is always a first one.
        assert_eq!(taken, engine.caps().ops_in_flight_max as usize - 2);
        engine.flush(Time::ZERO);
        let mut all = answers(engine, taken + 1);
        all.retain(|one| !matches!(one, Completion::Removed(id, None) if *id == unknown.id));
        let (installed, refused): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|one| matches!(one, Completion::Installed(_)));
        assert_eq!((installed.len(), refused.len()), (64, taken - 64));
        install(engine, 9999);
        engine.flush(Time::ZERO);
        assert_eq!(answers(engine, 2).len(), 2);
    }
}

#[test]
fn what_cannot_stand_before_ends_it() {
    let faulty = FakeOptions { refuse_does: crate::flow::Does::JUMP, ..FakeOptions::default() };
    for way in BOTH_WAYS {
        let _alone = alone(&faulty);
        let failed = Offload::start(options(way, 16, 1), Box::new(TestHops::default()));
        assert!(matches!(failed, Err(OffloadError::Device { .. })), "{failed:?}");
        let state = fake::state();
        assert_eq!((state.live, state.templates, state.violations), (0, 0, 0), "{}", state.first_violation());
    }
    let _alone = alone(&FakeOptions { no_templates: 1, ..FakeOptions::default() });
    let failed = Offload::start(options(Way::Templates, 16, 1), Box::new(TestHops::default()));
    assert!(matches!(failed, Err(OffloadError::Device { .. })), "{failed:?}");
}

#[test]
fn a_trial_leaves_nothing() {
    for way in BOTH_WAYS {
        let _alone = alone(&FakeOptions { capacity: 1000, delay: 1, ..FakeOptions::default() });
        let port = (&ports()[0], [2, 0, 0, 0, 1, 0]);
        for batch in [1, 16, 300] {
            let (terms, found) = ((TERMS, way), trial(None, port, (TERMS, way), (600, batch)).expect("it starts"));
            let Trial { installed, counted, removed, silent, refusal, .. } = found;
            assert_eq!(
                (installed, counted, removed, silent, refusal),
                (600, 600, 600, false, None),
                "{terms:?} {batch}"
            );
        }
        let full = trial(None, port, (TERMS, way), (1200, 300)).expect("it starts");
        assert_eq!(full.refusal, Some(Refusal::Full));
        assert!(full.installed < 1000 && full.removed == full.installed, "{full:?}");
        let state = fake::state();
        assert_eq!((state.live, state.templates, state.violations), (0, 0, 0), "{}", state.first_violation());
    }
}

//! The engine as workers see it, with its thread.

use super::fake::{self, FakeOptions, PORTS};
use super::fixture::{ALONE, BOTH_SUBMISSIONS, TERMS, TestHops, alone, connection, one_port, ports};
use crate::flow::description::{Description, Does};
use crate::flow::device::{DeviceOutcome, DeviceRule, FlowError, RuleDevice, Synchronous, Templates};
use crate::flow::raw::RawCount;
use crate::flow::{
    DeviceTerms, OffloadError, OffloadOptions, OffloadThread, RteFlowEngine, Submission, TrialResult, trial,
};
use hairpin_core::engine::{Completion, Completions, FlowEngine, Refusal, RuleOp, Samples};
use hairpin_core::time::Time;
use std::time::Duration;

fn options(submission: Submission, rules_max: u32, workers: u16) -> OffloadOptions {
    let clock = || Time::from_nanos(1);
    OffloadOptions { ports: ports(), rules_max, totals: 8, workers, terms: TERMS, submission, clock, eal: None }
}

fn start(submission: Submission, rules_max: u32, workers: u16) -> (OffloadThread, Vec<RteFlowEngine>) {
    OffloadThread::start(options(submission, rules_max, workers), Box::new(TestHops::default()))
        .expect("the fake takes it")
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
    for submission in BOTH_SUBMISSIONS {
        let _alone = alone(&FakeOptions { delay: 2, ..FakeOptions::default() });
        let (offload, mut engines) = start(submission, 1000, 3);
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
        // The engine's thread is not there any more.
        install(&mut engines[2], 999);
        engines[2].flush(Time::ZERO);
        let refused = answers(&mut engines[2], 2);
        assert!(refused.iter().all(|one| matches!(one, Completion::Rejected(_, Refusal::Failed))), "{refused:?}");
    }
}

/// A worker may always submit until it is told that there is no room, and what it was told has room is answered.
#[test]
fn queues_are_bounded() {
    for submission in BOTH_SUBMISSIONS {
        let _alone = alone(&FakeOptions { delay: 1, ..FakeOptions::default() });
        let (_offload, mut engines) = start(submission, 64, 1);
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
    for submission in BOTH_SUBMISSIONS {
        let _alone = alone(&faulty);
        let failed = OffloadThread::start(options(submission, 16, 1), Box::new(TestHops::default()));
        assert!(matches!(failed, Err(OffloadError::Device { .. })), "{failed:?}");
        let state = fake::state();
        assert_eq!((state.live, state.templates, state.violations), (0, 0, 0), "{}", state.first_violation());
    }
    let _alone = alone(&FakeOptions { no_templates: 1, ..FakeOptions::default() });
    let failed = OffloadThread::start(options(Submission::Templates, 16, 1), Box::new(TestHops::default()));
    assert!(matches!(failed, Err(OffloadError::Device { .. })), "{failed:?}");
}

/// The fake, until it has had so many requests: then each request panics, as in an unforeseen failure.
struct Brittle {
    device: Synchronous,
    left: u32,
}

impl Brittle {
    fn wear(&mut self) {
        self.left = self.left.checked_sub(1).expect("it breaks here, as it should");
    }
}

impl RuleDevice for Brittle {
    fn room(&self) -> usize {
        self.device.room()
    }
    fn create(&mut self, port: u16, rule: &Description, ticket: u64) -> Result<(), FlowError> {
        self.wear();
        self.device.create(port, rule, ticket)
    }
    fn destroy(&mut self, port: u16, flow: DeviceRule, ticket: u64) -> Result<(), FlowError> {
        self.wear();
        self.device.destroy(port, flow, ticket)
    }
    fn is_waiting(&self) -> bool {
        self.device.is_waiting()
    }
    fn push(&mut self) {}
    fn pull(&mut self) -> Option<DeviceOutcome> {
        self.device.pull()
    }
    fn query(&mut self, port: u16, flow: DeviceRule, does: u32) -> Option<RawCount> {
        self.device.query(port, flow, does)
    }
    fn close(&mut self, ports: &[u16]) {
        self.device.close(ports);
    }
}

/// Wherever the thread breaks: every request is answered once, nothing is left in the device, and what is asked for later
/// is refused.
#[test]
fn failed_engine_removes_rules_and_answers() {
    // Two ports have 7 rules each before the flows.
    for breaks_after in 14..38 {
        let _alone = alone(&FakeOptions::default());
        let device = Brittle { device: Synchronous::default(), left: breaks_after };
        let (offload, mut engines) =
            OffloadThread::run(options(Submission::Synchronous, 1000, 2), Box::new(TestHops::default()), device)
                .expect("it starts");
        let mut asked = [0; 2];
        for (worker, engine) in engines.iter_mut().enumerate() {
            for number in 0..6 {
                install(engine, (worker * 100 + number) as u16);
                asked[worker] += 2;
            }
            engine.flush(Time::ZERO);
            for rule in connection((worker * 100) as u16) {
                engine.submit(Time::ZERO, RuleOp::Remove { id: rule.id, key: rule.key }).expect("there is room");
                asked[worker] += 1;
            }
            engine.flush(Time::ZERO);
        }
        for (worker, engine) in engines.iter_mut().enumerate() {
            let all = answers(engine, asked[worker]);
            assert_eq!(all.len(), asked[worker], "{breaks_after}: {all:?}");
            for number in 0..6 {
                let ids = connection((worker * 100 + number) as u16).map(|rule| rule.id);
                let due = if number == 0 { 2 } else { 1 };
                for id in ids {
                    let named = |one: &&Completion| match one {
                        Completion::Installed(of) | Completion::Rejected(of, _) | Completion::Removed(of, _) => {
                            *of == id
                        }
                    };
                    assert_eq!(all.iter().filter(named).count(), due, "{breaks_after}: {id:?} in {all:?}");
                }
            }
        }
        let failed = (0..2000).any(|_| {
            std::thread::sleep(Duration::from_millis(1));
            offload.statistics().failed == 1
        });
        assert!(failed, "{breaks_after}: it breaks after fewer requests than that");
        let state = fake::state();
        assert_eq!((state.live, state.violations), (0, 0), "{}", state.first_violation());
        assert_eq!((offload.reader().rules(), offload.statistics().rules), ([0; 2], 0));
        for engine in &mut engines {
            install(engine, 999);
            engine.flush(Time::ZERO);
            let refused = answers(engine, 2);
            assert!(refused.iter().all(|one| matches!(one, Completion::Rejected(_, Refusal::Failed))), "{refused:?}");
        }
    }
}

/// Traffic that rules have forwarded can be seen by rule and by slot, and stays when the rules go.
#[test]
fn rule_traffic_is_summed() {
    for submission in BOTH_SUBMISSIONS {
        let _alone = alone(&FakeOptions { ticks: 9, ..FakeOptions::default() });
        let clock = || Time::from_nanos(super::fixture::ticking());
        let options = OffloadOptions { clock, ..options(submission, 64, 1) };
        let (offload, mut engines) = OffloadThread::start(options, Box::new(TestHops::default())).expect("it starts");
        let reader = offload.reader();
        for (total, rule) in (0..).zip(connection(1)) {
            let rule = hairpin_core::engine::Rule { total: 2 + total, ..rule };
            engines[0].submit(Time::ZERO, RuleOp::Install(rule)).expect("there is room");
        }
        engines[0].flush(Time::ZERO);
        answers(&mut engines[0], 2);
        assert_eq!(reader.rules(), [2, 0]);
        let counted = (0..5000).any(|_| {
            std::thread::sleep(Duration::from_millis(1));
            connection(1).iter().all(|rule| reader.counters(&rule.key).is_some_and(|counters| counters.packets > 1))
        });
        assert!(counted, "{:?}", connection(1).map(|rule| reader.counters(&rule.key)));
        for rule in connection(1) {
            engines[0].submit(Time::ZERO, RuleOp::Remove { id: rule.id, key: rule.key }).expect("there is room");
        }
        engines[0].flush(Time::ZERO);
        let gone = answers(&mut engines[0], 2);
        let totals = reader.totals();
        for answer in gone {
            let Completion::Removed(id, Some(counters)) = answer else { panic!("{answer:?}") };
            let slot = 2 + usize::from(id == connection(1)[1].id);
            assert_eq!(totals[slot], (counters.packets, counters.bytes));
        }
        assert_eq!((totals[0], totals[1], totals.len()), ((0, 0), (0, 0), 8));
        assert_eq!((reader.rules(), reader.counters(&connection(1)[0].key)), ([0; 2], None));
    }
}

/// Rules that a killed process left in a card would match before the new rules.
#[test]
fn what_is_left_in_the_ports_goes_first() {
    for submission in BOTH_SUBMISSIONS {
        let _alone = alone(&FakeOptions::default());
        let (offload, mut engines) = start(submission, 64, 1);
        install(&mut engines[0], 1);
        engines[0].flush(Time::ZERO);
        answers(&mut engines[0], 2);
        let state = fake::state();
        // It dies without a word.
        std::mem::forget(offload);
        let (_offload, _engines) = start(Submission::Synchronous, 64, 1);
        assert_eq!(fake::state().live, state.live - 2, "the rules before the flows' are there, flows are not");
    }
}

#[test]
fn a_trial_leaves_nothing() {
    for submission in BOTH_SUBMISSIONS {
        let _alone = alone(&FakeOptions { capacity: 1000, delay: 1, ..FakeOptions::default() });
        let port = (&one_port(), [2, 0, 0, 0, 1, 0]);
        for batch in [1, 16, 300] {
            let (terms, found) =
                ((ALONE, submission), trial(None, port, (ALONE, submission), (600, batch)).expect("it starts"));
            let TrialResult { installed, counted, removed, silent, refusal, .. } = found;
            assert_eq!(
                (installed, counted, removed, silent, refusal),
                (600, 600, 600, false, None),
                "{terms:?} {batch}"
            );
        }
        let full = trial(None, port, (ALONE, submission), (1200, 300)).expect("it starts");
        assert_eq!(full.refusal, Some(Refusal::Full));
        assert!(full.installed < 1000 && full.removed == full.installed, "{full:?}");
        let state = fake::state();
        assert_eq!((state.live, state.templates, state.violations), (0, 0, 0), "{}", state.first_violation());
    }
}

/// Templates get no more counters and ageing objects than were asked for.
#[test]
fn as_many_count_as_were_asked_for() {
    for (counts, other) in [(Does::COUNT, Does::AGE), (Does::AGE, Does::COUNT)] {
        for ages_by_counters in [0, 1] {
            let _alone = alone(&FakeOptions { refuse_does: other, ages_by_counters, ..FakeOptions::default() });
            let (port, terms) = ((&one_port(), [2, 0, 0, 0, 1, 0]), DeviceTerms { counts, ..ALONE });
            let found = trial(None, port, (terms, Submission::Templates), (600, 64)).expect("it starts");
            assert_eq!((found.installed, found.removed, found.refusal), (600, 600, None), "{counts:?}");
        }
    }
}

#[test]
fn what_was_not_asked_for_is_not_there() {
    for counts in [Does::COUNT, Does::AGE] {
        let _alone = alone(&FakeOptions::default());
        let mut device = Templates::open(&PORTS, 64, Does::NONE).expect("the fake has templates");
        let rule = Description { does: Does::QUEUE | counts, age_seconds: 10, ..Description::default() };
        let refused = device.create(PORTS[0], &rule, 0).expect_err("nothing to count with");
        assert_eq!(refused.refusal(), Refusal::Full);
        device.close(&PORTS);
    }
}

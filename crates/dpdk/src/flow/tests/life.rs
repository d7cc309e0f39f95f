//! Rules' lives, one fault at a time.

use super::fake::{self, FakeOptions, Held};
use super::fixture::{BOTH_SUBMISSIONS, EngineFixture, connection, remove};
use crate::flow::Submission;
use crate::flow::machine::RETRY;
use crate::flow::request::DeviceRuleRequest;
use hairpin_core::engine::{Completion, Counters, Fate, Guard, Refusal, Rule, RuleId};
use hairpin_core::time::{Duration, Time};

fn installed(completions: &[Completion]) -> Vec<RuleId> {
    completions.iter().filter_map(|one| if let Completion::Installed(id) = one { Some(*id) } else { None }).collect()
}

fn rejected(completions: &[Completion]) -> Vec<(RuleId, Refusal)> {
    let refusal = |one: &Completion| match one {
        Completion::Rejected(id, why) => Some((*id, *why)),
        _ => None,
    };
    completions.iter().filter_map(refusal).collect()
}

fn removed(completions: &[Completion]) -> Vec<(RuleId, Option<Counters>)> {
    let gone = |one: &Completion| match one {
        Completion::Removed(id, counters) => Some((*id, *counters)),
        _ => None,
    };
    completions.iter().filter_map(gone).collect()
}

#[test]
fn a_pair_comes_and_goes() {
    for submission in BOTH_SUBMISSIONS {
        let mut fixture = EngineFixture::new(submission, &FakeOptions { delay: 2, ..FakeOptions::default() }, 16);
        let rules = connection(1);
        assert!(fixture.ask(DeviceRuleRequest::Pair(rules)));
        if submission == Submission::Templates {
            fixture.settle();
            assert!(fixture.told().is_empty(), "nothing was confirmed yet");
        }
        fixture.after(Duration::ZERO);
        assert_eq!(installed(&fixture.told()), [rules[0].id, rules[1].id]);
        assert_eq!(rules.map(|rule| fixture.holds(&rule)), [Held::Yes; 2]);
        assert!(fixture.ask(remove(&rules[0])) && fixture.ask(remove(&rules[1])));
        fixture.after(Duration::ZERO);
        let told = fixture.told();
        assert_eq!(removed(&told).iter().map(|(id, _)| *id).collect::<Vec<_>>(), [rules[0].id, rules[1].id]);
        assert_eq!((fixture.fake().live, fixture.machine.rules()), (0, 0));
        assert!(fixture.ask(remove(&rules[0])));
        assert_eq!(removed(&fixture.told()), [(rules[0].id, None)]);
    }
}

/// Half a pair is not reported, whichever half the device confirms first.
#[test]
fn half_a_pair_is_not_reported() {
    for slow in fake::PORTS {
        let mut fixture = EngineFixture::new(Submission::Templates, &FakeOptions::default(), 16);
        fake::change_port(slow, &FakeOptions { delay: 5, ..FakeOptions::default() });
        let rules = connection(1);
        fixture.ask(DeviceRuleRequest::Pair(rules));
        let mut halves = 0;
        loop {
            fixture.settle();
            let told = fixture.told();
            let live = rules.map(|rule| fixture.holds(&rule) == Held::Yes);
            if live == [true; 2] {
                assert_eq!(installed(&told).len(), 2);
                break;
            }
            assert!(told.is_empty(), "{told:?} with {live:?}");
            halves += usize::from(live != [false; 2]);
        }
        assert!(halves > 0, "one half was in before the other");
    }
}

#[test]
fn a_refused_half_takes_the_other_back() {
    // Creating is counted port by port, and each port has one half.
    for (submission, late) in [(Submission::Synchronous, 0), (Submission::Templates, 0), (Submission::Templates, 1)] {
        for refusing in fake::PORTS {
            let mut fixture = EngineFixture::new(submission, &FakeOptions { delay: 1, ..FakeOptions::default() }, 16);
            let faulty = FakeOptions { delay: 1, refuse_create_every: 1, refuse_late: late, ..FakeOptions::default() };
            fake::change_port(refusing, &faulty);
            let rules = connection(1);
            assert!(fixture.ask(DeviceRuleRequest::Pair(rules)));
            fixture.after(Duration::ZERO);
            let mut told = rejected(&fixture.told());
            told.sort_by_key(|(id, _)| *id);
            assert_eq!(told, rules.map(|rule| (rule.id, Refusal::Failed)), "{submission:?} {late} {refusing}");
            assert_eq!((fixture.fake().live, fixture.fake().pending, fixture.machine.rules()), (0, 0, 0));
            // And its ids may be used again.
            fake::change(&FakeOptions::default());
            assert!(fixture.ask(DeviceRuleRequest::Pair(rules)));
            fixture.after(Duration::ZERO);
            assert_eq!(installed(&fixture.told()).len(), 2);
        }
    }
}

#[test]
fn what_is_full_says_so() {
    for submission in BOTH_SUBMISSIONS {
        // The device is full, port by port.
        let mut fixture = EngineFixture::new(submission, &FakeOptions { capacity: 2, ..FakeOptions::default() }, 16);
        for number in 0..3 {
            assert!(fixture.ask(DeviceRuleRequest::Pair(connection(number))));
        }
        fixture.after(Duration::ZERO);
        let told = fixture.told();
        let last = connection(2).map(|rule| (rule.id, Refusal::Full));
        assert_eq!((installed(&told).len(), rejected(&told)), (4, last.to_vec()));
        assert_eq!((fixture.fake().live, fixture.machine.rules()), (4, 4));
        drop(fixture);
        // The engine is: of three places, a pair has two.
        let mut fixture = EngineFixture::new(submission, &FakeOptions::default(), 3);
        for number in 0..2 {
            assert!(fixture.ask(DeviceRuleRequest::Pair(connection(number))));
        }
        fixture.after(Duration::ZERO);
        let told = fixture.told();
        assert_eq!((installed(&told).len(), rejected(&told).len()), (2, 2));
        // One more fits by itself.
        assert!(fixture.ask(DeviceRuleRequest::Install(connection(7)[0])));
        fixture.after(Duration::ZERO);
        assert_eq!(installed(&fixture.told()), [connection(7)[0].id]);
    }
}

#[test]
fn removal_waits_for_what_is_pending() {
    let mut fixture =
        EngineFixture::new(Submission::Templates, &FakeOptions { delay: 3, ..FakeOptions::default() }, 16);
    let rules = connection(1);
    assert!(fixture.ask(DeviceRuleRequest::Pair(rules)));
    fixture.settle();
    assert!(!fixture.ask(remove(&rules[0])), "it is on its way in");
    assert!(!fixture.ask(DeviceRuleRequest::Install(rules[1])), "likewise");
    while !fixture.ask(remove(&rules[0])) {
        assert!(installed(&fixture.told()).is_empty());
        fixture.settle();
    }
    assert_eq!(installed(&fixture.told()).len(), 2);
    assert!(!fixture.ask(DeviceRuleRequest::Install(rules[0])), "it is on its way out");
    fixture.after(Duration::ZERO);
    assert_eq!(removed(&fixture.told()).len(), 1);
    assert_eq!((fixture.holds(&rules[0]), fixture.holds(&rules[1])), (Held::No, Held::Yes));
}

#[test]
fn a_new_rule_takes_the_place_of_the_old_one() {
    for submission in BOTH_SUBMISSIONS {
        let mut fixture = EngineFixture::new(submission, &FakeOptions::default(), 16);
        let [old, _] = connection(1);
        let mut new = Rule { id: RuleId(99), ..old };
        new.rewrite.destination.port = 8081;
        fixture.ask(DeviceRuleRequest::Install(old));
        fixture.after(Duration::ZERO);
        assert_eq!(fixture.hit(&old, 5, 500), Held::Yes);
        assert!(fixture.ask(DeviceRuleRequest::Install(new)));
        fixture.after(Duration::ZERO);
        assert_eq!(installed(&fixture.told()), [old.id, new.id]);
        assert_eq!(fixture.hit(&new, 3, 300), Held::Yes);
        // Under either id, and with what both forwarded.
        fixture.ask(DeviceRuleRequest::Remove { id: old.id, key: old.key });
        fixture.after(Duration::ZERO);
        let told = removed(&fixture.told());
        let (id, counters) = told[0];
        let counters = counters.expect("it was there");
        assert_eq!((id, counters.packets, counters.bytes), (old.id, 8, 800));
        assert_eq!(fixture.fake().live, 0);
    }
}

#[test]
fn a_refused_change_leaves_the_old_rule() {
    for (submission, late) in [(Submission::Synchronous, 0), (Submission::Templates, 0), (Submission::Templates, 1)] {
        let mut fixture = EngineFixture::new(submission, &FakeOptions::default(), 16);
        let [old, _] = connection(1);
        let mut new = Rule { id: RuleId(99), ..old };
        new.rewrite.destination.port = 8081;
        fixture.ask(DeviceRuleRequest::Install(old));
        fixture.after(Duration::ZERO);
        fixture.hit(&old, 5, 500);
        fake::change(&FakeOptions { refuse_create_every: 1, refuse_late: late, ..FakeOptions::default() });
        assert!(fixture.ask(DeviceRuleRequest::Install(new)));
        fixture.after(Duration::ZERO);
        let told = fixture.told();
        assert_eq!(
            (installed(&told).as_slice(), rejected(&told)),
            ([old.id].as_slice(), vec![(new.id, Refusal::Failed)])
        );
        // The device takes nothing: software continues, and the old rule is tried again.
        fake::change(&FakeOptions::default());
        fixture.after(RETRY);
        assert_eq!(fixture.holds(&old), Held::Yes, "{submission:?} {late}");
        assert!(fixture.told().is_empty(), "no event is reported twice");
        fixture.ask(remove(&old));
        fixture.after(Duration::ZERO);
        assert_eq!(removed(&fixture.told())[0].1.map(|counters| counters.packets), Some(5));
        // A change that the device could never make is refused with the old rule untouched.
        fixture.ask(DeviceRuleRequest::Install(old));
        fixture.after(Duration::ZERO);
        let destroyed = fixture.fake().destroyed;
        fixture.ask(DeviceRuleRequest::Install(Rule { guard: Some(Guard::default()), ..new }));
        fixture.after(Duration::ZERO);
        assert_eq!(rejected(&fixture.told()), [(new.id, Refusal::Unsupported)]);
        assert_eq!((fixture.fake().destroyed, fixture.holds(&old)), (destroyed, Held::Yes));
    }
}

#[test]
fn what_does_not_go_is_not_said_to_be_gone() {
    for submission in BOTH_SUBMISSIONS {
        let mut fixture = EngineFixture::new(submission, &FakeOptions::default(), 16);
        let rules = connection(1);
        fixture.ask(DeviceRuleRequest::Pair(rules));
        fixture.after(Duration::ZERO);
        fixture.told();
        fake::change(&FakeOptions { refuse_destroy_every: 1, ..FakeOptions::default() });
        assert!(fixture.ask(remove(&rules[0])));
        for _ in 0..3 {
            fixture.after(RETRY);
            assert!(fixture.told().is_empty());
            assert!(!fixture.ask(DeviceRuleRequest::Install(rules[0])), "its key is not free");
        }
        assert_eq!(fixture.machine.statistics.stuck, 4);
        fake::change(&FakeOptions::default());
        fixture.after(RETRY);
        assert_eq!(removed(&fixture.told()).len(), 1);
        assert_eq!(fixture.fake().live, 1);
    }
}

/// A removal that the device answers with an error leaves no handle to ask again with, and a rule that may be there.
#[test]
fn what_is_lost_keeps_its_name() {
    let mut fixture = EngineFixture::new(Submission::Templates, &FakeOptions::default(), 16);
    let rules = connection(1);
    fixture.ask(DeviceRuleRequest::Pair(rules));
    fixture.after(Duration::ZERO);
    fixture.told();
    fake::change(&FakeOptions { lose_every: 1, ..FakeOptions::default() });
    assert!(fixture.ask(remove(&rules[0])));
    fake::change(&FakeOptions::default());
    fixture.after(RETRY).after(RETRY);
    assert!(fixture.told().is_empty(), "it is not said to be gone");
    assert_eq!((fixture.machine.statistics.lost, fixture.machine.rules()), (1, 2));
    // Nothing waits for it: others go on, and its flow stays in software.
    assert!(fixture.ask(DeviceRuleRequest::Install(rules[0])));
    assert_eq!(rejected(&fixture.told()), [(rules[0].id, Refusal::Failed)]);
    assert!(fixture.ask(remove(&rules[1])) && fixture.ask(DeviceRuleRequest::Pair(connection(2))));
    fixture.after(Duration::ZERO);
    let told = fixture.told();
    assert_eq!((removed(&told).len(), installed(&told).len()), (1, 2));
    // Lost on the way to a change: the change is refused.
    fake::change(&FakeOptions { lose_every: 1, ..FakeOptions::default() });
    let changed = Rule { id: RuleId(99), ..connection(2)[0] };
    assert!(fixture.ask(DeviceRuleRequest::Install(changed)));
    fixture.after(Duration::ZERO);
    assert_eq!(rejected(&fixture.told()), [(RuleId(99), Refusal::Failed)]);
    assert_eq!(fixture.machine.statistics.lost, 2);
}

#[test]
fn rules_follow_route_changes() {
    for submission in BOTH_SUBMISSIONS {
        let mut fixture = EngineFixture::new(submission, &FakeOptions::default(), 16);
        let rules = connection(1);
        fixture.hops.backends_known = false;
        fixture.ask(DeviceRuleRequest::Pair(rules));
        assert_eq!(rejected(&fixture.told()), rules.map(|rule| (rule.id, Refusal::Failed)));
        fixture.hops.backends_known = true;
        fixture.ask(DeviceRuleRequest::Pair(rules));
        fixture.after(Duration::ZERO);
        fixture.told();
        fixture.hit(&rules[0], 5, 500);
        let before = fixture.placed(&rules[0]);
        // The backends' neighbour is another one.
        (fixture.hops.backend, fixture.hops.generation) = (2, 2);
        fixture.after(Duration::ZERO).after(Duration::ZERO);
        assert_ne!(fixture.placed(&rules[0]), before);
        assert_eq!(rules.map(|rule| fixture.holds(&rule)), [Held::Yes; 2]);
        assert_eq!(fixture.fake().destroyed, 1, "the way to clients is as it was");
        // It is not known any more: the rules are out, and packets go to software.
        (fixture.hops.backends_known, fixture.hops.generation) = (false, 3);
        fixture.after(Duration::ZERO).after(Duration::ZERO).after(RETRY);
        assert_eq!((fixture.fake().live, fixture.machine.rules()), (0, 2));
        // Even so it can be taken away, with what it forwarded.
        fixture.ask(remove(&rules[1]));
        assert_eq!(removed(&fixture.told()).len(), 1);
        (fixture.hops.backends_known, fixture.hops.generation) = (true, 4);
        fixture.after(RETRY).after(RETRY);
        assert_eq!((fixture.holds(&rules[0]), fixture.fake().live), (Held::Yes, 1));
        fixture.ask(remove(&rules[0]));
        fixture.after(Duration::ZERO);
        assert_eq!(removed(&fixture.told())[0].1.map(|counters| counters.packets), Some(5));
    }
}

/// A change of the way while a rule is on its way in.
#[test]
fn late_rule_uses_the_new_route() {
    let mut fixture =
        EngineFixture::new(Submission::Templates, &FakeOptions { delay: 3, ..FakeOptions::default() }, 16);
    let rules = connection(1);
    fixture.ask(DeviceRuleRequest::Pair(rules));
    fixture.settle();
    (fixture.hops.backend, fixture.hops.generation) = (2, 2);
    fixture.machine.tend(fixture.now, &fixture.hops, &mut fixture.heard);
    fixture.after(Duration::ZERO);
    assert_eq!(installed(&fixture.told()).len(), 2);
    assert_eq!(rules.map(|rule| fixture.holds(&rule)), [Held::Yes; 2]);
}

#[test]
fn counters_are_read() {
    for submission in BOTH_SUBMISSIONS {
        let mut fixture = EngineFixture::new(submission, &FakeOptions::default(), 600);
        let rules = connection(1);
        fixture.ask(DeviceRuleRequest::Pair(rules));
        fixture.after(Duration::ZERO);
        let counters = |fixture: &EngineFixture| fixture.heard.counters[&fixture.heard.places[&rules[0].key]];
        assert_eq!(counters(&fixture), Counters::default());
        fixture.hit(&rules[0], 7, 700);
        fixture.after(Duration::from_secs(1));
        let seen = fixture.now;
        assert_eq!(counters(&fixture), Counters { packets: 7, bytes: 700, last_seen: Some(seen) });
        fixture.after(Duration::from_secs(1));
        assert_eq!(counters(&fixture).last_seen, Some(seen), "it was not hit again");
        assert!(seen > Time::ZERO);
    }
}

#[test]
fn what_no_device_can_do_is_refused() {
    let mut fixture = EngineFixture::new(Submission::Synchronous, &FakeOptions::default(), 16);
    let [rule, _] = connection(1);
    let mut window = rule;
    window.rewrite.window_shift = 1;
    for wrong in [Rule { fate: Fate::Pass, ..rule }, Rule { guard: Some(Guard::default()), ..rule }, window] {
        fixture.ask(DeviceRuleRequest::Install(wrong));
        assert_eq!(rejected(&fixture.told()), [(rule.id, Refusal::Unsupported)]);
    }
    assert_eq!(fixture.fake().created, 0);
}

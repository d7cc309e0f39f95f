//! Rules' lives, one fault at a time.

use super::fake::{self, FakeOptions, Held};
use super::world::{BOTH_WAYS, World, connection, remove};
use crate::flow::Way;
use crate::flow::machine::{RETRY, Request};
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
    for way in BOTH_WAYS {
        let mut world = World::new(way, &FakeOptions { delay: 2, ..FakeOptions::default() }, 16);
        let rules = connection(1);
        assert!(world.ask(Request::Pair(rules)));
        if way == Way::Templates {
            world.settle();
            assert!(world.told().is_empty(), "nothing was confirmed yet");
        }
        world.after(Duration::ZERO);
        assert_eq!(installed(&world.told()), [rules[0].id, rules[1].id]);
        assert_eq!(rules.map(|rule| world.holds(&rule)), [Held::Yes; 2]);
        assert!(world.ask(remove(&rules[0])) && world.ask(remove(&rules[1])));
        world.after(Duration::ZERO);
        let told = world.told();
        assert_eq!(removed(&told).iter().map(|(id, _)| *id).collect::<Vec<_>>(), [rules[0].id, rules[1].id]);
        assert_eq!((world.fake().live, world.machine.rules()), (0, 0));
        assert!(world.ask(remove(&rules[0])));
        assert_eq!(removed(&world.told()), [(rules[0].id, None)]);
    }
}

/// Half a pair is not reported, whichever half the device confirms first.
#[test]
fn half_a_pair_is_not_reported() {
    for slow in fake::PORTS {
        let mut world = World::new(Way::Templates, &FakeOptions::default(), 16);
        fake::change_port(slow, &FakeOptions { delay: 5, ..FakeOptions::default() });
        let rules = connection(1);
        world.ask(Request::Pair(rules));
        let mut halves = 0;
        loop {
            world.settle();
            let told = world.told();
            let live = rules.map(|rule| world.holds(&rule) == Held::Yes);
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
    for (way, late) in [(Way::Synchronous, 0), (Way::Templates, 0), (Way::Templates, 1)] {
        for refusing in fake::PORTS {
            let mut world = World::new(way, &FakeOptions { delay: 1, ..FakeOptions::default() }, 16);
            let faulty = FakeOptions { delay: 1, refuse_create_every: 1, refuse_late: late, ..FakeOptions::default() };
            fake::change_port(refusing, &faulty);
            let rules = connection(1);
            assert!(world.ask(Request::Pair(rules)));
            world.after(Duration::ZERO);
            let mut told = rejected(&world.told());
            told.sort_by_key(|(id, _)| *id);
            assert_eq!(told, rules.map(|rule| (rule.id, Refusal::Failed)), "{way:?} {late} {refusing}");
            assert_eq!((world.fake().live, world.fake().pending, world.machine.rules()), (0, 0, 0));
            // And its ids may be used again.
            fake::change(&FakeOptions::default());
            assert!(world.ask(Request::Pair(rules)));
            world.after(Duration::ZERO);
            assert_eq!(installed(&world.told()).len(), 2);
        }
    }
}

#[test]
fn what_is_full_says_so() {
    for way in BOTH_WAYS {
        // The device is full, port by port.
        let mut world = World::new(way, &FakeOptions { capacity: 2, ..FakeOptions::default() }, 16);
        for number in 0..3 {
            assert!(world.ask(Request::Pair(connection(number))));
        }
        world.after(Duration::ZERO);
        let told = world.told();
        let last = connection(2).map(|rule| (rule.id, Refusal::Full));
        assert_eq!((installed(&told).len(), rejected(&told)), (4, last.to_vec()));
        assert_eq!((world.fake().live, world.machine.rules()), (4, 4));
        drop(world);
        // The engine is: of three places, a pair has two.
        let mut world = World::new(way, &FakeOptions::default(), 3);
        for number in 0..2 {
            assert!(world.ask(Request::Pair(connection(number))));
        }
        world.after(Duration::ZERO);
        let told = world.told();
        assert_eq!((installed(&told).len(), rejected(&told).len()), (2, 2));
        // One more fits by itself.
        assert!(world.ask(Request::Install(connection(7)[0])));
        world.after(Duration::ZERO);
        assert_eq!(installed(&world.told()), [connection(7)[0].id]);
    }
}

#[test]
fn removal_waits_for_what_is_pending() {
    let mut world = World::new(Way::Templates, &FakeOptions { delay: 3, ..FakeOptions::default() }, 16);
    let rules = connection(1);
    assert!(world.ask(Request::Pair(rules)));
    world.settle();
    assert!(!world.ask(remove(&rules[0])), "it is on its way in");
    assert!(!world.ask(Request::Install(rules[1])), "likewise");
    while !world.ask(remove(&rules[0])) {
        assert!(installed(&world.told()).is_empty());
        world.settle();
    }
    assert_eq!(installed(&world.told()).len(), 2);
    assert!(!world.ask(Request::Install(rules[0])), "it is on its way out");
    world.after(Duration::ZERO);
    assert_eq!(removed(&world.told()).len(), 1);
    assert_eq!((world.holds(&rules[0]), world.holds(&rules[1])), (Held::No, Held::Yes));
}

#[test]
fn a_new_rule_takes_the_place_of_the_old_one() {
    for way in BOTH_WAYS {
        let mut world = World::new(way, &FakeOptions::default(), 16);
        let [old, _] = connection(1);
        let mut new = Rule { id: RuleId(99), ..old };
        new.rewrite.destination.port = 8081;
        world.ask(Request::Install(old));
        world.after(Duration::ZERO);
        assert_eq!(world.hit(&old, 5, 500), Held::Yes);
        assert!(world.ask(Request::Install(new)));
        world.after(Duration::ZERO);
        assert_eq!(installed(&world.told()), [old.id, new.id]);
        assert_eq!(world.hit(&new, 3, 300), Held::Yes);
        // Under either id, and with what both carried.
        world.ask(Request::Remove { id: old.id, key: old.key });
        world.after(Duration::ZERO);
        let told = removed(&world.told());
        let (id, counters) = told[0];
        let counters = counters.expect("it was there");
        assert_eq!((id, counters.packets, counters.bytes), (old.id, 8, 800));
        assert_eq!(world.fake().live, 0);
    }
}

#[test]
fn a_refused_change_leaves_the_old_rule() {
    for (way, late) in [(Way::Synchronous, 0), (Way::Templates, 0), (Way::Templates, 1)] {
        let mut world = World::new(way, &FakeOptions::default(), 16);
        let [old, _] = connection(1);
        let mut new = Rule { id: RuleId(99), ..old };
        new.rewrite.destination.port = 8081;
        world.ask(Request::Install(old));
        world.after(Duration::ZERO);
        world.hit(&old, 5, 500);
        fake::change(&FakeOptions { refuse_create_every: 1, refuse_late: late, ..FakeOptions::default() });
        assert!(world.ask(Request::Install(new)));
        world.after(Duration::ZERO);
        let told = world.told();
        assert_eq!(
            (installed(&told).as_slice(), rejected(&told)),
            ([old.id].as_slice(), vec![(new.id, Refusal::Failed)])
        );
        // The device takes nothing: software carries on, and the old rule is tried again.
        fake::change(&FakeOptions::default());
        world.after(RETRY);
        assert_eq!(world.holds(&old), Held::Yes, "{way:?} {late}");
        assert!(world.told().is_empty(), "no event is reported twice");
        world.ask(remove(&old));
        world.after(Duration::ZERO);
        assert_eq!(removed(&world.told())[0].1.map(|counters| counters.packets), Some(5));
        // What the device could never do is refused with the old rule untouched.
        world.ask(Request::Install(old));
        world.after(Duration::ZERO);
        let destroyed = world.fake().destroyed;
        world.ask(Request::Install(Rule { guard: Some(Guard::default()), ..new }));
        world.after(Duration::ZERO);
        assert_eq!(rejected(&world.told()), [(new.id, Refusal::Unsupported)]);
        assert_eq!((world.fake().destroyed, world.holds(&old)), (destroyed, Held::Yes));
    }
}

#[test]
fn what_does_not_go_is_not_said_to_be_gone() {
    for way in BOTH_WAYS {
        let mut world = World::new(way, &FakeOptions::default(), 16);
        let rules = connection(1);
        world.ask(Request::Pair(rules));
        world.after(Duration::ZERO);
        world.told();
        fake::change(&FakeOptions { refuse_destroy_every: 1, ..FakeOptions::default() });
        assert!(world.ask(remove(&rules[0])));
        for _ in 0..3 {
            world.after(RETRY);
            assert!(world.told().is_empty());
            assert!(!world.ask(Request::Install(rules[0])), "its key is not free");
        }
        assert_eq!(world.machine.statistics.stuck, 4);
        fake::change(&FakeOptions::default());
        world.after(RETRY);
        assert_eq!(removed(&world.told()).len(), 1);
        assert_eq!(world.fake().live, 1);
    }
}

/// A removal that the device answers with an error leaves no handle to ask again with, and a rule that may be there.
#[test]
fn what_is_lost_keeps_its_name() {
    let mut world = World::new(Way::Templates, &FakeOptions::default(), 16);
    let rules = connection(1);
    world.ask(Request::Pair(rules));
    world.after(Duration::ZERO);
    world.told();
    fake::change(&FakeOptions { lose_every: 1, ..FakeOptions::default() });
    assert!(world.ask(remove(&rules[0])));
    fake::change(&FakeOptions::default());
    world.after(RETRY).after(RETRY);
    assert!(world.told().is_empty(), "it is not said to be gone");
    assert_eq!((world.machine.statistics.lost, world.machine.rules()), (1, 2));
    // Nothing waits for it: others go on, and its flow stays in software.
    assert!(world.ask(Request::Install(rules[0])));
    assert_eq!(rejected(&world.told()), [(rules[0].id, Refusal::Failed)]);
    assert!(world.ask(remove(&rules[1])) && world.ask(Request::Pair(connection(2))));
    world.after(Duration::ZERO);
    let told = world.told();
    assert_eq!((removed(&told).len(), installed(&told).len()), (1, 2));
    // Lost on the way to a change: the change is refused.
    fake::change(&FakeOptions { lose_every: 1, ..FakeOptions::default() });
    let changed = Rule { id: RuleId(99), ..connection(2)[0] };
    assert!(world.ask(Request::Install(changed)));
    world.after(Duration::ZERO);
    assert_eq!(rejected(&world.told()), [(RuleId(99), Refusal::Failed)]);
    assert_eq!(world.machine.statistics.lost, 2);
}

#[test]
fn rules_follow_their_packets_way() {
    for way in BOTH_WAYS {
        let mut world = World::new(way, &FakeOptions::default(), 16);
        let rules = connection(1);
        world.hops.backends_known = false;
        world.ask(Request::Pair(rules));
        assert_eq!(rejected(&world.told()), rules.map(|rule| (rule.id, Refusal::Failed)));
        world.hops.backends_known = true;
        world.ask(Request::Pair(rules));
        world.after(Duration::ZERO);
        world.told();
        world.hit(&rules[0], 5, 500);
        let before = world.placed(&rules[0]);
        // The backends' neighbour is another one.
        (world.hops.backend, world.hops.generation) = (2, 2);
        world.after(Duration::ZERO).after(Duration::ZERO);
        assert_ne!(world.placed(&rules[0]), before);
        assert_eq!(rules.map(|rule| world.holds(&rule)), [Held::Yes; 2]);
        assert_eq!(world.fake().destroyed, 1, "the way to clients is as it was");
        // It is not known any more: the rules are out, and packets go to software.
        (world.hops.backends_known, world.hops.generation) = (false, 3);
        world.after(Duration::ZERO).after(Duration::ZERO).after(RETRY);
        assert_eq!((world.fake().live, world.machine.rules()), (0, 2));
        // Even so it can be taken away, with what it carried.
        world.ask(remove(&rules[1]));
        assert_eq!(removed(&world.told()).len(), 1);
        (world.hops.backends_known, world.hops.generation) = (true, 4);
        world.after(RETRY).after(RETRY);
        assert_eq!((world.holds(&rules[0]), world.fake().live), (Held::Yes, 1));
        world.ask(remove(&rules[0]));
        world.after(Duration::ZERO);
        assert_eq!(removed(&world.told())[0].1.map(|counters| counters.packets), Some(5));
    }
}

/// A change of the way while a rule is on its way in.
#[test]
fn a_late_rule_goes_the_new_way() {
    let mut world = World::new(Way::Templates, &FakeOptions { delay: 3, ..FakeOptions::default() }, 16);
    let rules = connection(1);
    world.ask(Request::Pair(rules));
    world.settle();
    (world.hops.backend, world.hops.generation) = (2, 2);
    world.machine.tend(world.now, &world.hops, &mut world.heard);
    world.after(Duration::ZERO);
    assert_eq!(installed(&world.told()).len(), 2);
    assert_eq!(rules.map(|rule| world.holds(&rule)), [Held::Yes; 2]);
}

#[test]
fn counters_are_read() {
    for way in BOTH_WAYS {
        let mut world = World::new(way, &FakeOptions::default(), 600);
        let rules = connection(1);
        world.ask(Request::Pair(rules));
        world.after(Duration::ZERO);
        let counters = |world: &World| world.heard.counters[&world.heard.places[&rules[0].key]];
        assert_eq!(counters(&world), Counters::default());
        world.hit(&rules[0], 7, 700);
        world.after(Duration::from_secs(1));
        let seen = world.now;
        assert_eq!(counters(&world), Counters { packets: 7, bytes: 700, last_seen: Some(seen) });
        world.after(Duration::from_secs(1));
        assert_eq!(counters(&world).last_seen, Some(seen), "it was not hit again");
        assert!(seen > Time::ZERO);
    }
}

#[test]
fn what_no_device_can_do_is_refused() {
    let mut world = World::new(Way::Synchronous, &FakeOptions::default(), 16);
    let [rule, _] = connection(1);
    let mut window = rule;
    window.rewrite.window_shift = 1;
    for wrong in [Rule { fate: Fate::Pass, ..rule }, Rule { guard: Some(Guard::default()), ..rule }, window] {
        world.ask(Request::Install(wrong));
        assert_eq!(rejected(&world.told()), [(rule.id, Refusal::Unsupported)]);
    }
    assert_eq!(world.fake().created, 0);
}

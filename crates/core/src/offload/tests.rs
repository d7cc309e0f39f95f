//! Policies on made-up traffic: an engine of so much room, connections with so many packets each at so many a second.

use super::*;
use crate::time::{Duration, Time};
use std::collections::BTreeSet;
use std::vec::Vec;

extern crate std;

const MS: u64 = 1_000_000;

fn flow(position: u32, created: Time, packets: u64) -> FlowStats {
    FlowStats {
        position,
        protocol: Protocol::Tcp,
        packets,
        bytes: packets.saturating_mul(1000),
        created,
        length: 1000,
        direction: Direction::FromBackend,
        client: Endpoint::default(),
        service: Endpoint::default(),
    }
}

fn room(rules: u32) -> EngineRoom {
    EngineRoom { rules, own: rules, rules_max: 1000, waiting: 0, waiting_max: 100, unanswered: 0 }
}

#[test]
fn the_naive_one_takes_what_comes_first_and_no_more() {
    let mut policy = FirstN { connections: 10 };
    let one = flow(0, Time::ZERO, 1);
    assert_eq!(policy.on_packet(Time::ZERO, &one, room(18)), Verdict::Offload);
    assert_eq!(policy.on_packet(Time::ZERO, &one, room(20)), Verdict::Keep(Reason::Room));
    let full = EngineRoom { rules_max: 4, ..room(3) };
    assert_eq!(policy.on_packet(Time::ZERO, &one, full), Verdict::Keep(Reason::Room));
}

#[test]
fn a_heavy_hitter_has_reached_one_threshold_or_all() {
    let base = HeavyHitter { packets: Some(10), bytes: Some(50_000), duration: None, combine: Combine::Any };
    let at = |policy: HeavyHitter, packets, ms: u64| {
        let mut policy = policy;
        policy.on_packet(Time::from_nanos(ms * MS), &flow(0, Time::ZERO, packets), room(0))
    };
    assert_eq!(at(base, 9, 0), Verdict::Keep(Reason::Small));
    assert_eq!(at(base, 10, 0), Verdict::Offload);
    let all = HeavyHitter { combine: Combine::All, ..base };
    assert_eq!(at(all, 49, 0), Verdict::Keep(Reason::Small));
    assert_eq!(at(all, 50, 0), Verdict::Offload);
    let long = HeavyHitter { packets: None, bytes: None, duration: Some(Duration::from_secs(1)), ..base };
    assert_eq!((at(long, 9999, 999), at(long, 2, 1000)), (Verdict::Keep(Reason::Small), Verdict::Offload));
    assert_eq!(at(HeavyHitter::default(), 1, 0), Verdict::Offload);
    assert_eq!(at(HeavyHitter { combine: Combine::All, ..HeavyHitter::default() }, 1, 0), Verdict::Offload);
}

/// A flow of the made-up traffic: packets so far, and per millisecond.
struct Source {
    created: u64,
    packets: u64,
    /// Packets in all.
    total: u64,
    every_ms: u64,
    step: u64,
    from_ms: u64,
}

/// An engine with room for so many connections, and what a policy lets it forward of some sources in so many milliseconds:
/// packets in software, packets in the engine, installations.
fn play(policy: &mut dyn OffloadPolicy, sources: &mut [Source], capacity: u32, ms: u64) -> (u64, u64, u64) {
    let mut held: BTreeSet<u32> = BTreeSet::new();
    let (mut software, mut engine, mut installed) = (0, 0, 0);
    for tick in 0..ms {
        let now = Time::from_nanos((tick + 1) * MS);
        for (position, source) in sources.iter_mut().enumerate() {
            let position = position as u32;
            if tick < source.from_ms || tick % source.every_ms != u64::from(position) % source.every_ms {
                continue;
            }
            let room = EngineRoom { rules_max: capacity * 2, ..room(held.len() as u32 * 2) };
            source.packets += source.step;
            let stats = flow(position, Time::from_nanos(source.created), source.packets);
            if held.contains(&position) {
                engine += source.step;
            } else {
                software += source.step;
                if policy.on_packet(now, &stats, room) == Verdict::Offload {
                    held.insert(position);
                    installed += 1;
                }
            }
            if source.packets >= source.total {
                held.remove(&position);
                policy.on_end(now, &stats);
                (source.created, source.packets) = (now.as_nanos() + 1, 0);
            }
        }
        if policy.samples_within().is_some_and(|within| tick % (within.as_millis() as u64 / 4) == 0) {
            let positions: Vec<u32> = held.iter().copied().collect();
            for position in positions {
                let source = &sources[position as usize];
                let room = EngineRoom { rules_max: capacity * 2, ..room(held.len() as u32 * 2) };
                let stats = flow(position, Time::from_nanos(source.created), source.packets);
                if matches!(policy.on_sample(now, &stats, room), Verdict::Evict(_)) {
                    held.remove(&position);
                }
            }
        }
    }
    (software, engine, installed)
}

/// 200 slow endless connections that come first, then 50 fast ones.
fn tortoises_and_hares() -> Vec<Source> {
    let slow = (0..200).map(|_| Source { created: 0, packets: 0, total: u64::MAX, every_ms: 100, step: 1, from_ms: 0 });
    let fast = (0..50).map(|_| Source { created: 0, packets: 0, total: u64::MAX, every_ms: 2, step: 2, from_ms: 500 });
    slow.chain(fast).collect()
}

fn share((software, engine, _): (u64, u64, u64)) -> f64 {
    engine as f64 / (engine + software) as f64
}

#[test]
fn fastest_flows_displace_slow_ones_when_full() {
    let naive = share(play(&mut Always, &mut tortoises_and_hares(), 60, 20_000));
    let fastest = share(play(&mut FastestFlow::new(0, 250), &mut tortoises_and_hares(), 60, 20_000));
    let auto = share(play(&mut Auto::new(250), &mut tortoises_and_hares(), 60, 20_000));
    assert!(fastest > naive + 0.5 && fastest > 0.8, "fastest-flow {fastest}, always {naive}");
    assert!(auto > naive + 0.5 && auto > 0.8, "auto {auto}, always {naive}");
}

/// Mice of four packets, many, and a few elephants.
fn mice_and_elephants() -> Vec<Source> {
    let mice = (0..200).map(|_| Source { created: 0, packets: 0, total: 4, every_ms: 4, step: 1, from_ms: 0 });
    let elephants = (0..10).map(|_| Source { created: 0, packets: 0, total: 50_000, every_ms: 1, step: 5, from_ms: 0 });
    mice.chain(elephants).collect()
}

#[test]
fn rules_are_not_made_for_what_ends_at_once() {
    let costs = Costs::default();
    let worth = |(_, engine, installed): (u64, u64, u64)| {
        engine as f64 * f64::from(costs.packet_ns) - installed as f64 * f64::from(costs.pair_ns)
    };
    let naive = play(&mut Always, &mut mice_and_elephants(), 1000, 10_000);
    let auto = play(&mut Auto::new(210), &mut mice_and_elephants(), 1000, 10_000);
    assert!(naive.2 > 50_000, "{naive:?}");
    assert!(auto.2 < naive.2 / 20, "{auto:?}");
    assert!(worth(auto) > worth(naive), "{auto:?} {naive:?}");
    assert!(auto.1 > 400_000, "the elephants are offloaded: {auto:?}");
}

#[test]
fn slow_engine_gets_only_the_largest_savings() {
    let mut policy = Auto::new(10);
    let (slow, less) = (EngineRoom { unanswered: 64, ..room(0) }, EngineRoom { unanswered: 10, ..room(0) });
    let one = flow(0, Time::ZERO, 40);
    assert_eq!(policy.on_packet(Time::from_nanos(MS), &one, less), Verdict::Offload);
    assert_eq!(policy.on_packet(Time::from_nanos(MS), &one, slow), Verdict::Keep(Reason::Room));
    for ms in (0..20_000).step_by(100) {
        policy.on_packet(Time::from_nanos(ms * MS), &one, slow);
        policy.on_packet(Time::from_nanos(ms * MS), &flow(1, Time::ZERO, 50_000_000), slow);
    }
    let now = Time::from_nanos(20_000 * MS);
    assert_eq!(policy.on_packet(now, &one, less), Verdict::Keep(Reason::Unprofitable));
    for ms in (20_000..60_000).step_by(100) {
        policy.on_packet(Time::from_nanos(ms * MS), &one, room(0));
    }
    let lively = flow(2, Time::from_nanos(59_900 * MS), 40);
    assert_eq!(policy.on_packet(Time::from_nanos(60_000 * MS), &lively, room(0)), Verdict::Offload);
}

#[test]
fn as_many_are_asked_for_as_are_answered_soon() {
    let busy = EngineRoom { unanswered: 100, ..room(0) };
    let now = Time::from_nanos(100_000 * MS);
    let ask = |policy: &mut Auto| policy.on_packet(now, &flow(0, Time::ZERO, 1000), busy);
    let mut policy = Auto::new(10);
    assert_eq!(ask(&mut policy), Verdict::Keep(Reason::Room));
    (0..50).for_each(|_| policy.on_installed(now, Duration::from_millis(1)));
    assert_eq!(ask(&mut policy), Verdict::Offload);
    (0..500).for_each(|_| policy.on_installed(now, Duration::from_millis(80)));
    assert_eq!(ask(&mut policy), Verdict::Keep(Reason::Room));
}

#[test]
fn no_packet_of_a_burst_waits_for_the_rules_of_many() {
    let mut policy = Auto::new(10);
    let mut ask = |at: u64, position| {
        let now = Time::from_nanos(100_000 * MS + at);
        policy.on_packet(now, &flow(position, Time::ZERO, 1000), room(0))
    };
    assert_eq!(ask(0, 0), Verdict::Offload);
    assert_eq!(ask(0, 1), Verdict::Keep(Reason::Room));
    assert_eq!(ask(0, 2), Verdict::Keep(Reason::Room));
    assert_eq!(ask(1, 1), Verdict::Offload);
    assert_eq!(ask(2, 2), Verdict::Offload);
}

#[test]
fn whatever_it_is_told_any_policy_answers() {
    for choice in [
        Choice::Always,
        Choice::Never,
        Choice::FirstN(FirstN { connections: 0 }),
        Choice::HeavyHitter(HeavyHitter::default()),
        Choice::FastestFlow { packets_per_s: u32::MAX },
        Choice::DecisionTree(Tree::parse(tree::BUILT_IN).unwrap().into()),
        Choice::Auto,
    ] {
        let mut policy: AnyPolicy = AnyPolicy::new(choice.clone(), 2);
        policy.set_costs(Costs { packet_ns: 0, pair_ns: u32::MAX });
        for (position, packets, rules, rules_max) in
            [(0, 0, 0, 0), (9, u64::MAX, u32::MAX, 1), (1, 1, 0, u32::MAX), (u32::MAX, 1 << 40, 5, 5)]
        {
            let room =
                EngineRoom { rules, own: rules, rules_max, waiting: u32::MAX, waiting_max: 0, unanswered: u32::MAX };
            for at in [0, u64::MAX, 7] {
                let (now, flow) = (Time::from_nanos(at), flow(position, Time::from_nanos(at / 2), packets));
                let flow = FlowStats { bytes: packets, ..flow };
                let verdict = policy.on_packet(now, &flow, room);
                assert!(rules < rules_max || verdict != Verdict::Offload, "{} offers what has no room", policy.name());
                policy.on_sample(now, &flow, room);
                policy.on_refused(now);
                policy.on_end(now, &flow);
            }
        }
        assert_eq!(policy.offloads(), !matches!(choice, Choice::Never));
    }
}

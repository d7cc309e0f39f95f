use super::*;
use hairpin_sim::testbed::ModelTraffic as _;
use std::collections::BTreeMap;

fn profile() -> CoreProfile {
    CoreProfile::parse(include_str!("../../../profiles/cores/xeon-5217.toml")).unwrap()
}

/// The machine of [`profile`], slower by the factor `times`.
fn slower(times: f64) -> CoreProfile {
    let mut profile = profile();
    (profile.forwarder.burst_ns, profile.forwarder.packet_ns) =
        (profile.forwarder.burst_ns * times, profile.forwarder.packet_ns * times);
    for point in profile.method.iter_mut().flat_map(|method| &mut method.known) {
        (point.burst_ns, point.packet_ns) = (point.burst_ns * times, point.packet_ns * times);
    }
    profile
}

#[test]
fn a_profile_that_is_off_by_a_factor_of_two_is_flagged() {
    let differ = [0, 3, 12, 16].map(|at| CheckCase { flows: 1000, ..CheckCase::all().remove(at) });
    assert!(differ.iter().any(|case| case.moving) && differ.iter().any(|case| case.table == LookupMethod::Stateless));
    for case in differ {
        let pps = 2.0 * capacity(&profile(), &case);
        let true_one = simulate(&profile(), &case, OfferedTimes::in_bursts(pps), 20_000).unwrap();
        assert_eq!(compare(&true_one, &true_one), (1.0, true));
        let nearly = simulate(&slower(1.1), &case, OfferedTimes::in_bursts(pps), 20_000).unwrap();
        assert!(compare(&nearly, &true_one).1, "{case}: {nearly:?} {true_one:?}");
        for times in [0.5, 2.0] {
            let wrong = simulate(&slower(times), &case, OfferedTimes::in_bursts(pps), 20_000).unwrap();
            let (ratio, held) = compare(&wrong, &true_one);
            assert!(!held && !(0.7..=1.4).contains(&ratio), "{case}, costs times {times}: {ratio}");
        }
    }
    let nothing = RunOutcome { busy_pps: f64::NAN, pps: 0.0, idle: 1.0 };
    assert!(!compare(&nothing, &nothing).1);
}

#[test]
fn what_turns_cost_by_the_profile() {
    let iterations = |packets, count| crate::testbed::meter::Iterations { packets, count, ns: 1.0 };
    let work =
        CoreWork { iterations: vec![iterations(0, 99), iterations(1, 10), iterations(32, 5)], ..CoreWork::default() };
    let (profile, case) = (profile(), CheckCase::all().remove(0));
    let busy = 10.0 * profile.forward_ns(1) + 160.0 * profile.forward_ns(32);
    assert!((of_iterations(&profile, &case, &work) / (170e9 / busy) - 1.0).abs() < 1e-9);
}

#[test]
fn full_speed_is_the_limit_and_a_tenth_of_it_leaves_time() {
    let case = |load| CheckCase { load, ..CheckCase::all().remove(4) };
    let limit = capacity(&profile(), &case(CheckLoad::Full));
    let full = simulate(&profile(), &case(CheckLoad::Full), OfferedTimes::in_bursts(2.0 * limit), 20_000).unwrap();
    assert!(full.idle < 0.02 && (0.95..1.02).contains(&(full.pps / limit)), "{full:?}, {limit}");
    for (load, idle) in [(CheckLoad::Half, 0.0..0.6), (CheckLoad::Tenth, 0.3..0.95)] {
        let pps = limit * load.part().unwrap();
        let part = simulate(&profile(), &case(load), OfferedTimes::Evenly(pps, 1), 20_000).unwrap();
        assert!((0.98..1.02).contains(&(part.pps / pps)) && idle.contains(&part.idle), "{part:?}");
        assert!(part.busy_pps <= full.busy_pps, "{part:?} {full:?}");
        // Several at a time cost less each, and leave more time.
        let handed: Vec<(u64, u32)> = (1..=200_u64).map(|n| (n * (8e9 / pps) as u64, 4 + n as u32 % 2 * 8)).collect();
        let together = simulate(&profile(), &case(load), OfferedTimes::Recorded(&handed), 20_000).unwrap();
        assert!((0.98..1.02).contains(&(together.pps / pps)), "{together:?}");
        assert!(together.busy_pps > 1.05 * part.busy_pps && together.idle > part.idle, "{together:?} {part:?}");
    }
}

#[test]
fn replay_repeats_the_recorded_times() {
    let handed = [(100, 2), (150, 1), (400, 3)];
    let mut times = PacketTimes::new(OfferedTimes::Recorded(&handed));
    let came: Vec<u64> = (0..9).map(|_| times.next().as_nanos()).collect();
    // 133 ns between two on average.
    assert_eq!(came, [100, 100, 150, 400, 400, 400, 634, 634, 684]);
    let mut nothing = PacketTimes::new(OfferedTimes::Recorded(&[]));
    assert!(nothing.next() < nothing.next());
}

#[test]
fn one_in_a_hundred_begins_and_one_ends() {
    let case = CheckCase { moving: true, flows: 1000, ..CheckCase::all().remove(4) };
    let mut steady = Steady::new(&case, 500_000, OfferedTimes::in_bursts(1e6), 3);
    let mut parts: BTreeMap<u32, Vec<bed::FlowPart>> = BTreeMap::new();
    let (mut last, mut new) = (Time::ZERO, 0);
    while let Some(offered) = steady.next() {
        assert!(offered.at >= last && offered.flow < steady.flows());
        last = offered.at;
        new += u32::from(offered.part == bed::FlowPart::First);
        parts.entry(offered.flow).or_default().push(offered.part);
    }
    assert!((4000..7000).contains(&new), "{new}");
    for parts in parts.values() {
        assert_eq!(parts.iter().position(|part| *part == bed::FlowPart::First), Some(0));
        assert!(parts.iter().rposition(|part| *part == bed::FlowPart::Last).is_none_or(|at| at + 1 == parts.len()));
        assert!(parts.len() <= 152);
    }
}

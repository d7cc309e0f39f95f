use super::*;

/// 100 ns of a packet for itself, 50 of a look-up; a line takes 100 ns from core to core.
fn profile() -> SharingProfile {
    let method = |table| MethodCosts {
        table,
        lookup_ns: if table == SharingMethod::Stateless { 0.0 } else { 50.0 },
        other_ns: 0.0,
        change_ns: 100.0,
        keys_per_lock: 1,
        moves: 0.05,
        source: "a test".to_owned(),
    };
    SharingProfile {
        name: "test".to_owned(),
        source: "a test".to_owned(),
        line: LineCosts {
            held_ns: 5.0,
            transfer_ns: 100.0,
            clean_ns: 40.0,
            pause_ns: 10.0,
            source: "a test".to_owned(),
        },
        packets: PacketCosts {
            frame: 64,
            gbit_s: 1000.0,
            queue: 256,
            burst: 32,
            burst_ns: 0.0,
            packet_ns: 100.0,
            before: 0.5,
            varies: 0.2,
            new: 0.0,
            flows: 100_000,
            returns_look_up: true,
            source: "a test".to_owned(),
        },
        method: SharingMethod::ALL.map(method).to_vec(),
        card: Some(MarkingCard {
            marked_ns: 10.0,
            rule_ns: 100.0,
            rules_per_s: 500_000.0,
            waits: false,
            source: "a test".to_owned(),
        }),
    }
}

fn run_of(profile: SharingProfile, method: SharingMethod, cores: u16, seed: u64) -> SharingResults {
    let options = SharingOptions { profile, method, cores, offered_pps: None, warm_up: 0.000_2, seconds: 0.002, seed };
    simulate(&options).unwrap()
}

fn run(method: SharingMethod, cores: u16) -> SharingResults {
    run_of(profile(), method, cores, 1)
}

/// The rate of one core by its costs, in packets a second.
fn alone(ns: f64) -> f64 {
    1e9 / ns
}

#[track_caller]
fn assert_near(value: f64, wanted: f64, part: f64) {
    assert!((value / wanted - 1.0).abs() <= part, "{value}, wanted {wanted}");
}

#[test]
fn one_core_waits_for_no_other() {
    for method in SharingMethod::ALL {
        let results = run(method, 1);
        let lookup = match method {
            SharingMethod::Stateless => 0.0,
            SharingMethod::Marks => 10.0,
            _ => 50.0,
        };
        // Two atomic changes at most for each packet.
        let (fastest, slowest) = (alone(100.0 + lookup), alone(100.0 + lookup + 12.0));
        assert!((slowest * 0.98..fastest * 1.02).contains(&results.received_pps), "{method}: {results:?}");
        assert!(results.waiting < 0.05 && results.lost > 0.5, "{method}: {results:?}");
    }
}

#[test]
fn what_is_not_shared_grows_with_cores() {
    for method in [SharingMethod::Stateless, SharingMethod::PerCore] {
        let one = run(method, 1).received_pps;
        assert_near(run(method, 8).received_pps, 8.0 * one, 0.01);
    }
}

/// Never more than one core is within the spinlock: whatever the number of cores, not more than fit one after the other.
#[test]
fn spinlock_excludes() {
    let mut busy = profile();
    busy.packets.packet_ns = 1.0;
    for cores in [2, 4, 8, 16] {
        let results = run_of(busy.clone(), SharingMethod::GlobalLock, cores, 1);
        assert!(results.received_pps < alone(50.0) * 1.02, "{cores} cores: {results:?}");
        assert!(results.waiting > 0.3, "{cores} cores: {results:?}");
    }
    let (two, eight) = (run(SharingMethod::GlobalLock, 2), run(SharingMethod::GlobalLock, 8));
    assert!(eight.waiting > two.waiting && eight.round_trip.mean > two.round_trip.mean, "{two:?} {eight:?}");
}

/// A writer has the table to itself: with nothing but changes the reader-writer lock is no better than one core.
#[test]
fn writers_exclude_all() {
    let mut busy = profile();
    (busy.packets.new, busy.packets.packet_ns) = (1.0, 1.0);
    let rate = |cores| run_of(busy.clone(), SharingMethod::MultiWriterRwConcurrency, cores, 1).received_pps;
    // Half of the packets are clients', so half of them change the table.
    assert!(rate(8) < alone(0.5 * 100.0), "{}", rate(8));
}

/// It is the lines that cost: where they come at once, readers do not get in each other's way.
#[test]
fn readers_share_where_lines_are_free() {
    let mut free = profile();
    (free.line.transfer_ns, free.line.clean_ns) = (1.0, 1.0);
    free.line.held_ns = 1.0;
    let rate = |profile: &SharingProfile, cores| {
        run_of(profile.clone(), SharingMethod::MultiWriterRwConcurrency, cores, 1).received_pps
    };
    assert_near(rate(&free, 4), 4.0 * rate(&free, 1), 0.1);
    assert!(rate(&profile(), 4) < 2.5 * rate(&profile(), 1));
}

#[test]
fn order_of_methods_on_eight_cores() {
    let mut with_changes = profile();
    with_changes.packets.new = 0.02;
    let rate = |method| run_of(with_changes.clone(), method, 8, 1).received_pps;
    let methods = [
        SharingMethod::Stateless,
        SharingMethod::PerCore,
        SharingMethod::MultiWriterLockFree,
        SharingMethod::MultiWriterRwConcurrency,
        SharingMethod::GlobalLock,
    ];
    let rates = methods.map(rate);
    assert!(rates.is_sorted_by(|more, less| more > less), "{rates:?}");
}

#[test]
fn same_seed_same_results() {
    let of = |seed| run_of(profile(), SharingMethod::GlobalLock, 4, seed);
    assert_eq!(of(7), of(7));
    assert_ne!(of(7), of(8));
}

#[test]
fn light_load_is_not_lost_and_waits_little() {
    let options = SharingOptions {
        profile: profile(),
        method: SharingMethod::PerCore,
        cores: 2,
        offered_pps: Some(1e6),
        warm_up: 0.001,
        seconds: 0.01,
        seed: 3,
    };
    let results = simulate(&options).unwrap();
    assert_near(results.received_pps, 1e6, 0.05);
    assert!(results.lost == 0.0 && results.idle > 0.8, "{results:?}");
    // Two packets of 150 ns, and little before them.
    assert!((250.0..600.0).contains(&results.round_trip.mean), "{results:?}");
    assert!(results.round_trip.p25 <= results.round_trip.p50 && results.round_trip.p75 <= results.round_trip.p99);
}

#[test]
fn cards_mark_what_they_had_time_for() {
    assert_eq!(run(SharingMethod::Marks, 2).marked, 1.0);
    let with_new = |rules_per_s, waits| {
        let mut profile = profile();
        profile.packets.new = 0.05;
        if let Some(card) = &mut profile.card {
            (card.rules_per_s, card.waits) = (rules_per_s, waits);
        }
        run_of(profile, SharingMethod::Marks, 2, 1)
    };
    let (fast, slow) = (with_new(1e9, false), with_new(1e4, false));
    assert!(fast.marked > 0.94 && fast.marked < 1.0 && slow.marked < fast.marked, "{fast:?} {slow:?}");
    assert!(with_new(1e5, true).received_pps < 0.2 * with_new(1e5, false).received_pps);
}

#[test]
fn wrong_options_are_refused() {
    let options = |method, cores| SharingOptions {
        profile: profile(),
        method,
        cores,
        offered_pps: None,
        warm_up: 0.0,
        seconds: 0.001,
        seed: 1,
    };
    assert!(simulate(&options(SharingMethod::PerCore, 0)).unwrap_err().contains("1 to 32 cores"));
    let mut wrong = options(SharingMethod::Marks, 1);
    wrong.profile.card = None;
    assert!(simulate(&wrong).unwrap_err().contains("card"));
    let mut wrong = options(SharingMethod::GlobalLock, 1);
    wrong.profile.method.clear();
    assert!(simulate(&wrong).unwrap_err().contains("no method global-lock"));
    let mut wrong = options(SharingMethod::PerCore, 1);
    wrong.profile.packets.before = 1.5;
    assert!(simulate(&wrong).unwrap_err().contains("packets.before is a part"));
    wrong.profile.packets.before = 0.5;
    wrong.profile.line.source.clear();
    assert!(simulate(&wrong).unwrap_err().contains("line does not say"));
}

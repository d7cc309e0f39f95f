//! The statistical promises of each algorithm, with fixed seeds.

mod backups;
mod limits;
mod requests;
mod shares;

use super::{Balancer, EffectiveWeights, Loads, SHARE_FULL, TABLE_SIZE};
use crate::config::{Algorithm, Backend, BackendState, Forwarding, Service, Timeouts, UnknownPacket};
use crate::flow::{Endpoint, FlowKey, Protocol};
use crate::l7::config::Kind;
use core::net::{IpAddr, Ipv4Addr};
use std::boxed::Box;
use std::vec;
use std::vec::Vec;

const ALL: [Algorithm; 7] = [
    Algorithm::RoundRobin,
    Algorithm::WeightedRoundRobin,
    Algorithm::LeastConnections,
    Algorithm::PowerOfTwo,
    Algorithm::Maglev,
    Algorithm::SourceHash,
    Algorithm::LeastLatency,
];

/// Number of the first backend: not 0, so that numbers and positions differ.
const NUMBER_FIRST: u16 = 3;

fn end(a: u8, b: u8, port: u16) -> Endpoint {
    Endpoint::new(IpAddr::from(Ipv4Addr::new(10, a, 0, b)), port)
}

fn service(algorithm: Algorithm, weights: &[u16]) -> Service {
    let backend = |(i, &weight): (usize, &u16)| Backend {
        number: NUMBER_FIRST + i as u16,
        name: Box::from("backend"),
        endpoint: end((i / 250) as u8, (i % 250) as u8, 80),
        weight,
        state: BackendState::Enabled,
        is_backup: false,
        connections_max: 0,
    };
    Service {
        state: Default::default(),
        name: Box::from("service"),
        endpoint: end(255, 1, 80),
        protocol: Protocol::Tcp,
        kind: Kind::Forward,
        forwarding: Forwarding::Nat,
        outer: Default::default(),
        algorithm,
        hash_name: Default::default(),
        unknown: UnknownPacket::PickUp,
        access: None,
        limits: Default::default(),
        timeouts: Timeouts::default(),
        drain_limit: Default::default(),
        all_down: Default::default(),
        faulty: Default::default(),
        is_recorded: false,
        backends: weights.iter().enumerate().map(backend).collect(),
    }
}

/// Flow number `i`: as alike as clients are.
fn flow(i: u32) -> FlowKey {
    let client = Ipv4Addr::from(0xac10_0000 + i / 100);
    let source = Endpoint::new(IpAddr::from(client), 30_000 + (i % 100) as u16);
    FlowKey { source, destination: end(255, 1, 80), protocol: Protocol::Tcp }
}

/// Which of the backends of `service` answer.
struct Checks(EffectiveWeights);

impl Checks {
    fn new() -> Checks {
        Checks(EffectiveWeights::new())
    }

    fn set_available(&self, balancer: &mut Balancer, index: u16, available: bool) {
        self.0.set(NUMBER_FIRST + index, if available { SHARE_FULL } else { 0 });
        balancer.refresh(&self.0);
    }
}

fn balancer(service: &Service) -> (Balancer, Loads) {
    let loads = Loads::new(u32::from(NUMBER_FIRST) + service.backends.len() as u32);
    (Balancer::new(service, loads.clone(), 0, 1, 42), loads)
}

/// Makes `count` connections that stay, and counts them per backend.
fn spread(service: &Service, count: u32) -> Vec<u32> {
    let (mut balancer, loads) = balancer(service);
    let mut counts = vec![0; service.backends.len()];
    for i in 0..count {
        let chosen = balancer.choose(&flow(i)).expect("a backend");
        counts[usize::from(chosen)] += 1;
        loads.add(u32::from(NUMBER_FIRST + chosen));
    }
    counts
}

/// Pearson's chi-square of `counts` against shares by `weights`.
fn chi_square(counts: &[u32], weights: &[u16]) -> f64 {
    let (total, sum) =
        (f64::from(counts.iter().sum::<u32>()), f64::from(weights.iter().map(|&w| u32::from(w)).sum::<u32>()));
    let term = |(&count, &weight): (&u32, &u16)| {
        let expected = total * f64::from(weight) / sum;
        (f64::from(count) - expected).powi(2) / expected
    };
    counts.iter().zip(weights).filter(|(_, weight)| **weight > 0).map(term).sum()
}

#[test]
fn no_backend_is_chosen_when_none_is_eligible() {
    for algorithm in ALL {
        let mut services = [service(algorithm, &[]), service(algorithm, &[0, 0]), service(algorithm, &[1, 1])];
        services[2].backends[0].state = BackendState::Draining;
        services[2].backends[1].state = BackendState::Disabled;
        for service in &services {
            let (mut balancer, _) = balancer(service);
            assert_eq!((balancer.choose(&flow(0)), balancer.pick_up(&flow(0))), (None, None), "{algorithm:?}");
        }
        let (mut balancer, _) = balancer(&service(algorithm, &[1, 1]));
        let checks = Checks::new();
        (0..3).for_each(|index| checks.set_available(&mut balancer, index, false));
        assert_eq!((balancer.choose(&flow(0)), balancer.pick_up(&flow(0))), (None, None), "{algorithm:?}");
        checks.set_available(&mut balancer, 1, true);
        assert_eq!((balancer.choose(&flow(0)), balancer.pick_up(&flow(0))), (Some(1), Some(1)), "{algorithm:?}");
    }
}

/// Weight 0, draining, disabled and unavailable backends get nothing; the others share by weight, before and after.
#[test]
fn closed_backends_get_nothing() {
    for algorithm in ALL {
        let mut service = service(algorithm, &[1, 1, 0, 1, 1, 1]);
        service.backends[0].state = BackendState::Draining;
        service.backends[4].state = BackendState::Disabled;
        let (mut balancer, loads) = balancer(&service);
        let checks = Checks::new();
        let mut rounds = [[0u32; 6]; 3];
        for (round, counts) in rounds.iter_mut().enumerate() {
            checks.set_available(&mut balancer, 3, round != 1);
            for i in 0..3000 {
                let chosen = balancer.choose(&flow(i)).expect("a backend");
                counts[usize::from(chosen)] += 1;
                loads.add(3 + u32::from(chosen));
            }
            (0..6).for_each(|b| (0..counts[b]).for_each(|_| loads.take(3 + b as u32)));
        }
        for (round, counts) in rounds.iter().enumerate() {
            assert_eq!([counts[0], counts[2], counts[4]], [0; 3], "{algorithm:?} {counts:?}");
            if round == 1 {
                assert_eq!((counts[3], counts[1] + counts[5]), (0, 3000), "{algorithm:?}");
            }
            // Source hash sees 30 clients only.
            let least = if algorithm == Algorithm::SourceHash { 100 } else { 800 };
            assert!(counts[1] > least && counts[5] > least, "{algorithm:?} {counts:?}");
            assert!(round == 1 || counts[3] > least, "{algorithm:?} {counts:?}");
        }
    }
}

#[test]
fn round_robin_is_exact() {
    assert_eq!(spread(&service(Algorithm::RoundRobin, &[1, 9, 1]), 300), [100, 100, 100], "weights are ignored");
    let mut service = service(Algorithm::RoundRobin, &[1; 4]);
    service.backends[1].state = BackendState::Disabled;
    assert_eq!(spread(&service, 300), [100, 0, 100, 100], "the neighbour of a closed backend gets one turn, not two");
}

/// Workers that make few connections each still spread them evenly together.
#[test]
fn workers_start_apart() {
    for algorithm in [Algorithm::RoundRobin, Algorithm::WeightedRoundRobin, Algorithm::LeastConnections] {
        let service = service(algorithm, &[1; 8]);
        let loads = Loads::new(11);
        let mut counts = [0; 8];
        for worker in 0..4 {
            let mut balancer = Balancer::new(&service, loads.clone(), worker, 4, 0);
            for i in 0..2 {
                counts[usize::from(balancer.choose(&flow(i)).expect("a backend"))] += 1;
            }
        }
        assert_eq!(counts, [1; 8], "{algorithm:?}");
    }
}

#[test]
fn weighted_round_robin_is_exact_and_smooth() {
    let service = service(Algorithm::WeightedRoundRobin, &[5, 1, 1]);
    let (mut balancer, _) = balancer(&service);
    let order: Vec<u16> = (0..7).filter_map(|i| balancer.choose(&flow(i))).collect();
    assert_eq!(order, [0, 0, 1, 0, 2, 0, 0], "the sequence in nginx's commit message");

    let weights = [100, 50, 25, 0, 7];
    assert_eq!(spread(&self::service(Algorithm::WeightedRoundRobin, &weights), 182 * 5), [500, 250, 125, 0, 35]);
    let heaviest = [u16::MAX; 3];
    assert_eq!(spread(&self::service(Algorithm::WeightedRoundRobin, &heaviest), 300), [100; 3]);
}

#[test]
fn least_connections_keeps_connections_per_weight_level() {
    let weights = [1, 2, 4, 8];
    let service = service(Algorithm::LeastConnections, &weights);
    let (mut balancer, loads) = balancer(&service);
    let mut open: Vec<u16> = Vec::new();
    let mut state = 1u64;
    for i in 0..5000 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let now: Vec<u64> = (0..4).map(|b| u64::from(loads.now(3 + b))).collect();
        if state >> 62 == 0 && !open.is_empty() {
            let ended = open.swap_remove((state >> 33) as usize % open.len());
            loads.take(3 + u32::from(ended));
            continue;
        }
        let chosen = usize::from(balancer.choose(&flow(i)).expect("a backend"));
        for other in 0..4 {
            let (mine, theirs) = (now[chosen] * u64::from(weights[other]), now[other] * u64::from(weights[chosen]));
            assert!(mine <= theirs, "{chosen} was chosen with loads {now:?}");
        }
        loads.add(3 + chosen as u32);
        open.push(chosen as u16);
    }
    assert_eq!(spread(&self::service(Algorithm::LeastConnections, &weights), 1500), [100, 200, 400, 800]);
    assert_eq!(spread(&self::service(Algorithm::LeastConnections, &[1; 3]), 300), [100; 3]);
}

/// At low load no backend has a connection when the next one comes.
#[test]
fn idle_backends_share_connections_by_weight() {
    for algorithm in [Algorithm::LeastConnections, Algorithm::PowerOfTwo] {
        let (mut balancer, loads) = balancer(&service(algorithm, &[2, 1]));
        let mut counts = [0u32; 2];
        for i in 0..3000 {
            let chosen = balancer.choose(&flow(i)).expect("a backend");
            loads.add(3 + u32::from(chosen));
            loads.take(3 + u32::from(chosen));
            counts[usize::from(chosen)] += 1;
        }
        // Random draws leave a standard deviation of 26.
        let bound = if algorithm == Algorithm::LeastConnections { 0 } else { 150 };
        assert!(counts[0].abs_diff(2000) <= bound, "{algorithm:?} {counts:?}");
    }
}

#[test]
fn least_connections_fills_up_who_has_few() {
    let service = service(Algorithm::LeastConnections, &[1, 1]);
    let (mut balancer, loads) = balancer(&service);
    (0..10).for_each(|_| loads.add(3));
    for i in 0..9 {
        assert_eq!(balancer.choose(&flow(i)), Some(1));
        loads.add(4);
    }
}

#[test]
fn power_of_two_balances_better_than_one_draw() {
    let counts = spread(&service(Algorithm::PowerOfTwo, &[1; 16]), 16_000);
    // One random draw leaves a standard deviation of 31; two leave a gap of about log log n.
    let (least, most) = (counts.iter().min().copied(), counts.iter().max().copied());
    assert!(least > Some(985) && most < Some(1015), "{counts:?}");
    let counts = spread(&service(Algorithm::PowerOfTwo, &[1, 2, 4, 8, 0, 1]), 16_000);
    for (count, share) in counts.iter().zip([1000u32, 2000, 4000, 8000, 0, 1000]) {
        assert!(count.abs_diff(share) <= 100, "{counts:?}");
    }
}

/// With nothing to tell the backends apart (no connection is counted), what is left are the draws, by weight.
#[test]
fn power_of_two_draws_by_weight() {
    let weights = [1u16; 8];
    let service = service(Algorithm::PowerOfTwo, &weights);
    let (mut balancer, _) = balancer(&service);
    let mut counts = [0; 8];
    for i in 0..80_000 {
        counts[usize::from(balancer.choose(&flow(i)).expect("a backend"))] += 1;
    }
    let chi_square = chi_square(&counts, &weights);
    assert!(chi_square < 24.3, "{chi_square}: 7 degrees of freedom, p = 0.001; {counts:?}");
}

#[test]
fn power_of_two_never_takes_the_more_loaded_of_two() {
    let (mut balancer, loads) = balancer(&service(Algorithm::PowerOfTwo, &[1, 1]));
    loads.add(3);
    assert!((0..100).all(|i| balancer.choose(&flow(i)) == Some(1)), "two draws are of two different backends");
}

#[test]
fn maglev_spreads_flows_by_weight() {
    for weights in [&[1u16; 10][..], &[1, 2, 3, 4, 0, 10], &[100; 200]] {
        let counts = spread(&service(Algorithm::Maglev, weights), 200_000);
        let freedom = weights.iter().filter(|&&weight| weight > 0).count() as f64 - 1.0;
        let chi_square = chi_square(&counts, weights);
        // Mean + 5 standard deviations, and what the table's own unevenness (a percent) adds.
        assert!(chi_square < freedom + 5.0 * (2.0 * freedom).sqrt() + 20.0, "{chi_square}: {counts:?}");
    }
}

#[test]
fn maglev_entries_follow_weights() {
    let weights = [1u16, 2, 3, 4, 0, 10];
    let (balancer, _) = balancer(&service(Algorithm::Maglev, &weights));
    let entries = balancer.maglev.as_ref().expect("a table").entries();
    let mut counts = [0usize; 6];
    entries.iter().for_each(|&index| counts[usize::from(index)] += 1);
    for (count, weight) in counts.into_iter().zip(weights) {
        let share = TABLE_SIZE as f64 * f64::from(weight) / 20.0;
        assert!((count as f64 - share).abs() <= share * 0.01 + 1.0, "{counts:?}");
    }
}

fn pick_ups(balancer: &Balancer, count: u32) -> Vec<Option<u16>> {
    (0..count).map(|i| balancer.pick_up(&flow(i))).collect()
}

#[test]
fn maglev_is_the_same_everywhere_and_in_any_order() {
    let service = service(Algorithm::Maglev, &[3, 1, 4, 1, 5, 9, 2, 6]);
    let (balancer, _) = balancer(&service);
    let elsewhere = Balancer::new(&service, Loads::new(100), 7, 8, 999);
    assert_eq!(pick_ups(&balancer, 5000), pick_ups(&elsewhere, 5000));

    let mut turned = service.clone();
    turned.backends.reverse();
    let turned = self::balancer(&turned).0;
    // Whole tables: the order of turns decides about few entries only, those that two want in one round.
    let entries = |balancer: &Balancer| balancer.maglev.as_ref().expect("a table").entries().to_vec();
    let back: Vec<u16> = entries(&turned).into_iter().map(|index| 7 - index).collect();
    assert!(entries(&balancer) == back, "the order of the configuration changes the table");

    // Every balancer of every version has to give these answers.
    let fixed: Vec<Option<u16>> = pick_ups(&balancer, 2000).into_iter().step_by(200).collect();
    assert_eq!(fixed, FIXED.map(Some));
}

/// The message of version 0.1.0.
const FIXED: [u16; 10] = [4, 4, 0, 7, 6, 7, 7, 2, 2, 7];

/// The paper (section 5.3) and the bound by which "minimal disruption" is meant here: beside the flows of the backend
/// that goes, at most 3 percent of the others move.
#[test]
fn maglev_disrupts_little() {
    for weights in [[1u16; 20], [1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 1, 2, 3, 4, 5]] {
        let whole = service(Algorithm::Maglev, &weights);
        let before = pick_ups(&balancer(&whole).0, 50_000);
        for gone in [0, 7, 19] {
            let mut smaller = whole.clone();
            smaller.backends[gone].state = BackendState::Disabled;
            let after = pick_ups(&balancer(&smaller).0, 50_000);
            let moved = before.iter().zip(&after).filter(|(b, a)| **b != Some(gone as u16) && a != b).count();
            assert!(moved < 1500, "{moved} of 50000 flows of other backends move");
            assert!(!after.contains(&Some(gone as u16)));
        }
    }
}

/// A backend that stops answering moves its own flows only, and over all the others.
#[test]
fn maglev_moves_only_flows_of_unavailable_backends() {
    let service = service(Algorithm::Maglev, &[1; 10]);
    let (mut balancer, _) = balancer(&service);
    let before = pick_ups(&balancer, 50_000);
    let checks = Checks::new();
    checks.set_available(&mut balancer, 4, false);
    let after = pick_ups(&balancer, 50_000);
    let mut heirs = [0u32; 10];
    for (before, after) in before.iter().zip(&after) {
        match before {
            Some(4) => heirs[usize::from(after.expect("a backend"))] += 1,
            _ => assert_eq!(before, after),
        }
    }
    heirs.swap(4, 9);
    let chi_square = chi_square(&heirs[..9], &[1; 9]);
    assert!(heirs[9] == 0 && chi_square < 40.0, "{chi_square}: {heirs:?}");
    checks.set_available(&mut balancer, 4, true);
    assert_eq!(pick_ups(&balancer, 50_000), before);
}

#[test]
fn with_all_but_one_unavailable_that_one_is_found() {
    let service = service(Algorithm::Maglev, &[1; 200]);
    let (mut balancer, _) = balancer(&service);
    let checks = Checks::new();
    (0..199).for_each(|index| checks.set_available(&mut balancer, index, false));
    assert!((0..2000).all(|i| balancer.choose(&flow(i)) == Some(199)));
}

#[test]
fn source_hash_keeps_a_client_on_one_backend() {
    let service = service(Algorithm::SourceHash, &[1, 1, 2]);
    let (mut balancer, _) = balancer(&service);
    let mut counts = [0; 3];
    for client in 0..4000 {
        let first = balancer.choose(&flow(client * 100)).expect("a backend");
        assert!((1..100).all(|port| balancer.choose(&flow(client * 100 + port)) == Some(first)));
        assert_eq!(balancer.pick_up(&flow(client * 100 + 5)), Some(first), "picking up agrees with choosing");
        counts[usize::from(first)] += 1;
    }
    assert!(chi_square(&counts, &[1, 1, 2]) < 13.8, "2 degrees of freedom, p = 0.001: {counts:?}");
}

#[test]
fn picking_up_does_not_depend_on_the_algorithm() {
    let picked = |algorithm| pick_ups(&balancer(&service(algorithm, &[1, 2, 3])).0, 1000);
    for algorithm in [Algorithm::RoundRobin, Algorithm::LeastConnections, Algorithm::PowerOfTwo] {
        assert_eq!(picked(algorithm), picked(Algorithm::Maglev));
    }
    let mut service = service(Algorithm::RoundRobin, &[1]);
    service.unknown = UnknownPacket::Drop;
    assert_eq!(balancer(&service).0.pick_up(&flow(1)), None);
}

#[test]
fn loads_are_counted_and_never_wrap() {
    let loads = Loads::new(2);
    let shared = loads.clone();
    loads.add(1);
    shared.add(1);
    loads.take(1);
    assert_eq!((shared.now(0), shared.now(1), shared.now(2)), (0, 1, 0));
    loads.take(0);
    loads.take(9);
    loads.add(9);
    assert_eq!(loads.now(0), 0);
}

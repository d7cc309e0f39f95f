//! Parts of weights, and what is kept from one snapshot to the next.

use super::super::{Balancer, EffectiveWeight, EffectiveWeights, Loads, Tables};
use super::{ALL, NUMBER_FIRST, balancer, flow, pick_ups, service};
use crate::config::{Algorithm, AllDown, BackendState, Pool, Service, ServiceState, Snapshot};
use crate::time::Duration;
use std::boxed::Box;
use std::vec;
use std::vec::Vec;

fn counts(balancer: &mut Balancer, flows: u32) -> Vec<u32> {
    let mut counts = vec![0; 4];
    for i in 0..flows {
        counts[usize::from(balancer.choose(&flow(i)).expect("a backend"))] += 1;
    }
    counts
}

#[test]
fn fraction_of_weight_one_gets_that_fraction() {
    let effective_weights = EffectiveWeights::new();
    let (mut balancer, _) = balancer(&service(Algorithm::WeightedRoundRobin, &[1, 1, 1]));
    effective_weights.set(NUMBER_FIRST + 1, 16);
    balancer.refresh(&effective_weights);
    assert_eq!(counts(&mut balancer, 330), [160, 10, 160, 0]);
    let (mut drawn, _) = super::balancer(&service(Algorithm::PowerOfTwo, &[1, 1, 1]));
    effective_weights.set(NUMBER_FIRST + 2, 0);
    drawn.refresh(&effective_weights);
    // The backend drawn second has a turn only if its load per weight is less.
    let counts = counts(&mut drawn, 1000);
    assert!(counts[0] > counts[1] && counts[2] == 0, "{counts:?}");
}

#[test]
fn a_slow_start_does_not_begin_the_round_anew() {
    let effective_weights = EffectiveWeights::new();
    let (mut balancer, _) = balancer(&service(Algorithm::WeightedRoundRobin, &[3, 2, 1]));
    let mut counts = [0; 3];
    for i in 0..6000 {
        // as often as there are choices: a round begun anew would always go to the first
        effective_weights.set(NUMBER_FIRST + 2, 128 + (i % 2) as u16);
        balancer.refresh(&effective_weights);
        counts[usize::from(balancer.choose(&flow(i)).expect("a backend"))] += 1;
    }
    let expected = [3.0, 2.0, 0.5].map(|weight| weight / 5.5 * 6000.0);
    let close = counts.iter().zip(expected).all(|(&count, expected)| (f64::from(count) - expected).abs() < 60.0);
    assert!(close, "{counts:?} against {expected:?}");
}

#[test]
fn the_round_survives_falling_weights() {
    let effective_weights = EffectiveWeights::new();
    let (mut balancer, _) = balancer(&service(Algorithm::WeightedRoundRobin, &[u16::MAX, 1, 1]));
    (0..1000).for_each(|i| {
        balancer.choose(&flow(i));
    });
    effective_weights.set(NUMBER_FIRST, 0);
    balancer.refresh(&effective_weights);
    assert_eq!(counts(&mut balancer, 100)[1..3], [50, 50], "what they had gained is not paid out at once");
}

#[test]
fn all_down_is_as_none_or_as_all() {
    for algorithm in ALL {
        for all_down in [AllDown::Refuse, AllDown::UseAll] {
            let mut service = service(algorithm, &[1, 1, 1, 0]);
            service.backends[2].state = BackendState::Draining;
            service.all_down = all_down;
            let effective_weights = EffectiveWeights::new();
            let (mut balancer, _) = balancer(&service);
            (0..4).for_each(|index| effective_weights.set(NUMBER_FIRST + index, 0));
            balancer.refresh(&effective_weights);
            match all_down {
                AllDown::Refuse => assert_eq!(balancer.choose(&flow(0)), None, "{algorithm:?}"),
                AllDown::UseAll => {
                    let counts = counts(&mut balancer, 3000);
                    assert!(counts[0] > 900 && counts[1] > 900 && counts[2] + counts[3] == 0, "{counts:?}");
                    assert!(balancer.is_open(0) && !balancer.is_open(2));
                }
            }
            effective_weights.set(NUMBER_FIRST + 1, 1);
            balancer.refresh(&effective_weights);
            assert_eq!(counts(&mut balancer, 100)[1], 100, "{algorithm:?}: one is up");
        }
    }
}

#[test]
fn effective_weights_tell_of_changes_only() {
    let effective_weights = EffectiveWeights::new();
    let before = effective_weights.version();
    effective_weights.set(5, 256);
    effective_weights.set(5, 999);
    effective_weights.set(u16::MAX, 0);
    assert_eq!(
        (effective_weights.version(), effective_weights.of(5).share, effective_weights.of(u16::MAX).share),
        (before, 256, 0)
    );
    effective_weights.clone().set(5, 7);
    assert_ne!(effective_weights.version(), before);
    assert_eq!(effective_weights.of(5).share, 7);
}

#[test]
fn an_unchanged_service_goes_on_where_it_was() {
    for algorithm in ALL {
        let service = service(algorithm, &[3, 1, 2]);
        let make = |service: &Service| Balancer::new(service, Loads::new(9), 0, 1, 42);
        let (mut before, mut uninterrupted) = (make(&service), make(&service));
        for i in 0..2 {
            assert_eq!(before.choose(&flow(i)), uninterrupted.choose(&flow(i)));
        }
        let mut after = make(&service);
        assert!(after.follow(&mut before));
        for i in 2..20 {
            assert_eq!(after.choose(&flow(i)), uninterrupted.choose(&flow(i)), "{algorithm:?}");
        }
        let mut heavier = service.clone();
        heavier.backends[0].weight = 4;
        assert!(!make(&heavier).follow(&mut after), "{algorithm:?}");
    }
    let other = service(Algorithm::LeastConnections, &[3, 1, 2]);
    let (mut before, _) = balancer(&service(Algorithm::RoundRobin, &[3, 1, 2]));
    assert!(!Balancer::new(&other, Loads::new(9), 0, 1, 42).follow(&mut before));
}

#[test]
fn maglev_tables_are_rebuilt_only_on_change() {
    let snapshot = |services: Vec<Service>| {
        let pool = Pool { addresses: Box::default(), port_first: 1, port_last: 1, time_wait: Duration::ZERO };
        Snapshot::new(services.into(), pool)
    };
    let services = vec![service(Algorithm::Maglev, &[1, 2, 3]), service(Algorithm::SourceHash, &[1, 1])];
    let first = Tables::new(&snapshot(services.clone()), &Tables::default());
    let mut changed = services.clone();
    changed[1].backends[0].weight = 2;
    let second = Tables::new(&snapshot(changed.clone()), &first);
    let is_shared = |n| first.of(n).is_some_and(|a| second.of(n).is_some_and(|b| a.shares_with(&b)));
    assert_eq!([is_shared(0), is_shared(1)], [true, false]);
    for (n, service) in changed.iter().enumerate() {
        let made = Balancer::with_table(service, (&second, n as u16), Loads::new(9), (0, 1), 1);
        let alone = Balancer::new(service, Loads::new(9), 0, 1, 1);
        assert_eq!(pick_ups(&made, 1000), pick_ups(&alone, 1000));
    }
    changed[0].state = ServiceState::Removed;
    assert!(Tables::new(&snapshot(changed), &second).of(0).is_none(), "a removed service gets no client");
}

#[test]
fn a_removed_service_has_no_backend_to_choose() {
    for algorithm in ALL {
        let mut service = service(algorithm, &[1, 1]);
        service.state = ServiceState::Removed;
        service.all_down = AllDown::UseAll;
        let (mut balancer, _) = balancer(&service);
        assert_eq!((balancer.choose(&flow(0)), balancer.pick_up(&flow(0))), (None, None), "{algorithm:?}");
    }
}

/// A node that takes over has to find every connection where it is, and its first checks may have gone wrong.
#[test]
fn pick_up_uses_configured_weights_until_settled() {
    let effective_weights = EffectiveWeights::new();
    let (mut maglev, _) = balancer(&service(Algorithm::Maglev, &[1, 1, 1]));
    let before = pick_ups(&maglev, 3000);
    let failing = EffectiveWeight { share: 0, settled: false };
    effective_weights.put(NUMBER_FIRST + 1, failing);
    maglev.refresh(&effective_weights);
    assert_eq!(pick_ups(&maglev, 3000), before, "one check that has failed is no verdict");
    assert_eq!(maglev.open_targets().len(), 3);
    let chosen: Vec<_> = (0..3000).map(|i| maglev.choose(&flow(i))).collect();
    assert!(!chosen.contains(&Some(1)) && chosen.contains(&Some(0)), "new connections go where checks succeed");

    effective_weights.set(NUMBER_FIRST + 1, 0);
    maglev.refresh(&effective_weights);
    assert!(!pick_ups(&maglev, 3000).contains(&Some(1)), "now it is known to be down");
}

#[test]
fn new_connections_go_to_backends_that_are_not_known_to_be_down() {
    let effective_weights = EffectiveWeights::new();
    for algorithm in ALL {
        let (mut balancer, _) = balancer(&service(algorithm, &[1, 1, 1]));
        effective_weights.set(NUMBER_FIRST, 0);
        (1..3).for_each(|number| {
            effective_weights.put(NUMBER_FIRST + number, EffectiveWeight { share: 0, settled: false })
        });
        balancer.refresh(&effective_weights);
        let counts = counts(&mut balancer, 300);
        // All flows have one source.
        let spreads = algorithm != Algorithm::SourceHash;
        assert!(counts[0] == 0 && (!spreads || counts[1] > 0 && counts[2] > 0), "{algorithm:?}: {counts:?}");
    }
}

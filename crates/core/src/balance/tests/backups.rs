//! Backups get connections only while no other backend does.

use super::{ALL, Checks, NUMBER_FIRST, balancer, flow, service};
use crate::balance::{Balancer, EffectiveWeight, Loads, uses_backups};
use crate::config::{Algorithm, AllDown, BackendState, Service};
use std::vec::Vec;

/// Two backends and two backups.
fn with_backups(algorithm: Algorithm) -> Service {
    let mut service = service(algorithm, &[1, 2, 1, 1]);
    service.backends[2..].iter_mut().for_each(|backend| backend.is_backup = true);
    service
}

/// Which of the backends 300 flows choose.
fn chosen(balancer: &mut Balancer) -> Vec<u16> {
    let mut all: Vec<u16> = (0..300).filter_map(|i| balancer.choose(&flow(100 * i))).collect();
    all.sort_unstable();
    all.dedup();
    all
}

#[test]
fn backups_are_used_for_want_of_others() {
    for algorithm in ALL {
        let service = with_backups(algorithm);
        let (mut balancer, _) = balancer(&service);
        let checks = Checks::new();
        let is = |checks: &Checks, balancer: &mut Balancer, expected: &[u16], why: &str| {
            assert_eq!(chosen(balancer), expected, "{algorithm:?}: {why}");
            assert_eq!(balancer.open(), expected, "{algorithm:?}: {why}");
            assert_eq!(uses_backups(&service, &checks.0), expected.first().is_some_and(|first| *first >= 2), "{why}");
        };
        is(&checks, &mut balancer, &[0, 1], "all are up");
        checks.set_available(&mut balancer, 0, false);
        is(&checks, &mut balancer, &[1], "one is down");
        checks.set_available(&mut balancer, 1, false);
        is(&checks, &mut balancer, &[2, 3], "all but the backups are down");
        assert!((0..300).all(|i| balancer.pick_up(&flow(100 * i)) >= Some(2)), "what others began is theirs, too");
        checks.set_available(&mut balancer, 3, false);
        is(&checks, &mut balancer, &[2], "a backup is down, too");
        checks.set_available(&mut balancer, 2, false);
        is(&checks, &mut balancer, &[], "none is up");
        checks.set_available(&mut balancer, 1, true);
        is(&checks, &mut balancer, &[1], "one is back");
    }
}

#[test]
fn checks_without_a_verdict_do_not_take_from_backups() {
    let service = with_backups(Algorithm::RoundRobin);
    let (mut balancer, _) = balancer(&service);
    let checks = Checks::new();
    let failing = EffectiveWeight { share: 0, settled: false };
    (0..2).for_each(|index| checks.0.put(NUMBER_FIRST + index, failing));
    balancer.refresh(&checks.0);
    assert_eq!(chosen(&mut balancer), [2, 3], "first checks fail, and a backup is up");
    (2..4).for_each(|index| checks.0.put(NUMBER_FIRST + index, failing));
    balancer.refresh(&checks.0);
    assert_eq!(chosen(&mut balancer), [0, 1], "all fail so far");
}

#[test]
fn backups_serve_where_others_are_disabled_and_as_last_of_all() {
    let mut service = with_backups(Algorithm::WeightedRoundRobin);
    service.all_down = AllDown::UseAll;
    let (mut all_down, _) = balancer(&service);
    let checks = Checks::new();
    (0..4).for_each(|index| checks.set_available(&mut all_down, index, false));
    assert_eq!(chosen(&mut all_down), [0, 1], "as if all were up");
    service.backends[0].state = BackendState::Disabled;
    service.backends[1].weight = 0;
    let (mut without, _) = balancer(&service);
    assert_eq!(chosen(&mut without), [2, 3]);
}

#[test]
fn balancer_of_other_backups_begins_anew() {
    let before = with_backups(Algorithm::RoundRobin);
    let mut after = before.clone();
    after.backends[1].is_backup = true;
    let make = |service: &Service| Balancer::new(service, Loads::new(9), 0, 1, 42);
    assert!(make(&before).follow(&mut make(&before)));
    assert!(!make(&after).follow(&mut make(&before)));
}

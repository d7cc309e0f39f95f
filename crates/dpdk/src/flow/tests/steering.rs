//! Rules that bring packets to their worker: which packets each takes, and how they come and go in a device that refuses.

use super::fake::{self, FakeOptions, Held, PORTS};
use super::fixture::{ALONE, address, alone, end, one_port};
use crate::flow::description::{Description, Match, octets};
use crate::flow::steering::{SteeredStream, SteeringRules, steering_rules};
use crate::flow::{Hops, OffloadOptions, OffloadThread, RouteHop, Submission};
use hairpin_core::flow::{Address, Endpoint, Protocol, SteerBy, Steering};
use hairpin_core::time::Time;
use std::collections::BTreeSet;

fn steering(workers: u16) -> Steering {
    Steering { by: SteerBy::Port, ..Steering::by_hash([1, 2], workers) }
}

/// A service for each of `names` with a backend, and the pool.
fn streams(names: &[u8]) -> BTreeSet<(SteeredStream, Protocol)> {
    let mut all = BTreeSet::from([(SteeredStream::ToPool(address("192.168.0.1")), Protocol::Tcp)]);
    for name in names {
        all.insert((SteeredStream::ToService(end(&format!("203.0.113.{name}"), 80)), Protocol::Tcp));
        all.insert((SteeredStream::FromBackend(end(&format!("192.168.0.{name}"), 8080)), Protocol::Tcp));
    }
    all
}

fn wanted(names: &[u8]) -> Vec<(u16, Description)> {
    let rules = steering_rules(&streams(names), &steering(2), None);
    PORTS.iter().flat_map(|port| rules.iter().map(|rule| (*port, *rule))).collect()
}

/// The queues of all rules that a packet matches.
fn queues(rules: &[Description], source: Endpoint, destination: Endpoint) -> Vec<u16> {
    let address = |rule: &Description, of: Match, its: &[u8; 16], end: &Endpoint| {
        !rule.matches.has(of) || *its == octets(&end.address)
    };
    let port = |rule: &Description, of: Match, (its, bits): (u16, u16), end: &Endpoint| {
        !rule.matches.has(of) || (its ^ end.port) & (if bits == 0 { u16::MAX } else { bits }) == 0
    };
    let takes = |rule: &&Description| {
        address(rule, Match::SOURCE, &rule.source, &source)
            && address(rule, Match::DESTINATION, &rule.destination, &destination)
            && port(rule, Match::SOURCE_PORT, (rule.source_port, rule.source_port_bits), &source)
            && port(rule, Match::DESTINATION_PORT, (rule.destination_port, rule.destination_port_bits), &destination)
    };
    rules.iter().filter(takes).map(|rule| rule.queue).collect()
}

#[test]
fn both_directions_come_to_the_queue_of_their_worker() {
    for workers in [2, 3, 4, 7, 16] {
        let steering = steering(workers);
        let rules = steering_rules(&streams(&[7]), &steering, None);
        let (vip, backend) = (end("203.0.113.7", 80), end("192.168.0.7", 8080));
        let mut seen = BTreeSet::new();
        for port in (1024..=u16::MAX).step_by(7) {
            let (client, pool) = (end("10.0.0.9", port), end("192.168.0.1", port));
            let worker = steering.worker(&client);
            assert_eq!(queues(&rules, client, vip), [worker]);
            assert_eq!(queues(&rules, backend, client), [worker]);
            assert_eq!(queues(&rules, backend, pool).first(), Some(&steering.worker(&pool)));
            // A backend that is a client, other ends of theirs, and a flow that no rule takes.
            let (asking, ssh) = (end("192.168.0.7", port | 0x8000), end("203.0.113.7", 22));
            assert_eq!(queues(&rules, asking, vip), [steering.worker(&asking)]);
            assert_eq!(queues(&rules, client, ssh), []);
            assert_eq!(queues(&rules, asking, ssh), []);
            seen.insert(worker);
        }
        assert_eq!(seen.len(), usize::from(workers));
    }
}

/// Whether each rule is in its port.
fn in_force(wanted: &[(u16, Description)]) -> usize {
    wanted.iter().filter(|(port, rule)| fake::hit(*port, rule, 0, 0) == Held::Yes).count()
}

fn nothing_forbidden() -> fake::FakeState {
    let state = fake::state();
    assert_eq!(state.violations, 0, "{}", state.first_violation());
    state
}

#[test]
fn steering_update_keeps_rules_and_adds_first() {
    let _alone = alone(&FakeOptions::default());
    let mut rules = SteeringRules::new(None);
    let (before, after) = (wanted(&[1, 2]), wanted(&[2, 3]));
    assert_eq!(before.len(), 2 * 2 * 5);
    assert_eq!(rules.replace(&before), Ok(()));
    assert_eq!((rules.count(), in_force(&before), nothing_forbidden().created), (20, 20, 20));
    assert_eq!(rules.replace(&before), Ok(()));
    assert_eq!(nothing_forbidden().created, 20);
    assert_eq!(rules.replace(&after), Ok(()));
    assert_eq!((rules.count(), in_force(&after)), (20, 20));
    let state = nothing_forbidden();
    assert_eq!((state.created, state.destroyed, state.live), (28, 8, 20));
    drop(rules);
    assert_eq!(nothing_forbidden().live, 0);
}

#[test]
fn full_device_replaces_old_rules_first() {
    let _alone = alone(&FakeOptions { capacity: 10, ..FakeOptions::default() });
    let mut rules = SteeringRules::new(None);
    assert_eq!(rules.replace(&wanted(&[1, 2])), Ok(()));
    assert_eq!(rules.replace(&wanted(&[3, 4])), Ok(()));
    assert_eq!((rules.count(), in_force(&wanted(&[3, 4]))), (20, 20));
    // And where there is none at all, as many as go in, until there is.
    let refused = rules.replace(&wanted(&[3, 4, 5])).expect_err("there is no room");
    assert!((refused.port, refused.error.code) == (PORTS[0], libc::ENOSPC), "{refused:?}");
    assert_eq!(rules.count(), in_force(&wanted(&[3, 4, 5])));
    fake::change(&FakeOptions::default());
    assert_eq!(rules.replace(&wanted(&[3, 4, 5])), Ok(()));
    assert_eq!(rules.count(), 28);
    drop(rules);
    assert_eq!(nothing_forbidden().live, 0);
}

#[test]
fn a_device_that_cannot_leaves_nothing_behind() {
    use crate::flow::Does;
    let _alone = alone(&FakeOptions { refuse_does: Does::QUEUE, ..FakeOptions::default() });
    let mut rules = SteeringRules::new(None);
    let refused = rules.replace(&wanted(&[1])).expect_err("it cannot");
    assert_eq!(refused.error.code, libc::ENOTSUP);
    assert_eq!((rules.count(), nothing_forbidden().live), (0, 0));
}

#[test]
fn what_is_not_let_go_is_asked_for_again() {
    let _alone = alone(&FakeOptions { refuse_destroy_every: 1, ..FakeOptions::default() });
    let mut rules = SteeringRules::new(None);
    assert_eq!(rules.replace(&wanted(&[1])), Ok(()));
    assert_eq!(rules.replace(&wanted(&[2])), Ok(()));
    assert_eq!((rules.count(), nothing_forbidden().live), (12 + 8, 12 + 8));
    fake::change(&FakeOptions::default());
    assert_eq!(rules.replace(&wanted(&[2])), Ok(()));
    assert_eq!((rules.count(), nothing_forbidden().live), (12, 12));
}

/// No next hop is known.
struct Nowhere;

impl Hops for Nowhere {
    fn hop(&self, _: &Address) -> Option<RouteHop> {
        None
    }

    fn generation(&self) -> u64 {
        0
    }
}

#[test]
fn an_engine_that_ends_takes_them_along() {
    let _alone = alone(&FakeOptions::default());
    let options = OffloadOptions {
        ports: vec![one_port()],
        rules_max: 16,
        totals: 0,
        workers: 1,
        terms: ALONE,
        submission: Submission::Synchronous,
        clock: || Time::from_nanos(1),
        eal: None,
    };
    let (offload, _engines) = OffloadThread::start(options, Box::new(Nowhere)).expect("it starts");
    let standing = nothing_forbidden().live;
    let mut rules = SteeringRules::new(Some(&offload));
    let beside: Vec<_> =
        steering_rules(&streams(&[1]), &steering(2), Some(&ALONE)).into_iter().map(|rule| (PORTS[0], rule)).collect();
    assert_eq!(rules.replace(&beside), Ok(()));
    assert_eq!((rules.count(), nothing_forbidden().live), (6, standing + 6));
    drop(offload);
    // The handles are worth nothing now, and are not used.
    assert_eq!((rules.count(), nothing_forbidden().live), (0, 0));
    assert_eq!(rules.replace(&beside), Ok(()));
    assert_eq!((rules.count(), nothing_forbidden().live), (6, 6));
    drop(rules);
    assert_eq!(nothing_forbidden().live, 0);
}

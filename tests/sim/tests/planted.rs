//! Every checker finds the mistake it is there for: bugs planted in the middle are found within a few seeds.

use hairpin_core::config::Forwarding;
use hairpin_sim::balancer::Bug;
use hairpin_sim::engine::EngineBug;
use hairpin_sim::http;
use hairpin_sim::scenario::{Between, streams};

/// Seeds tried before a bug counts as not found.
const SEEDS: u64 = 60;

/// The failure of the first seed in which the bug shows.
fn found(bug: Bug, forwarding: Forwarding) -> String {
    let failures = (0..SEEDS).filter_map(|seed| streams(seed, Between::Layer4(forwarding), Some(bug)).err());
    let failure = failures.into_iter().next().unwrap_or_else(|| panic!("{bug:?} was not found"));
    assert!(!failure.trace.is_empty());
    failure.wrong.join("\n")
}

#[test]
fn changed_bytes_are_found() {
    let wrong = found(Bug::ChangesPayload, Forwarding::Nat);
    assert!(wrong.contains("byte ") && wrong.contains(", not "), "{wrong}");
}

#[test]
fn segments_out_of_order_within_a_super_packet_are_found() {
    let wrong = found(Bug::SwapsSegments, Forwarding::FullNat);
    assert!(wrong.contains("byte "), "{wrong}");
}

#[test]
fn a_lost_fin_is_found() {
    let wrong = found(Bug::LosesFin, Forwarding::FullNat);
    assert!(wrong.contains("not over"), "{wrong}");
}

#[test]
fn a_frame_that_is_not_given_back_is_found() {
    let wrong = found(Bug::LeaksFrame, Forwarding::Nat);
    assert!(wrong.contains("1 frames were not given back"), "{wrong}");
}

#[test]
fn a_packet_to_another_backend_is_found() {
    let wrong = found(Bug::OtherBackend, Forwarding::Nat);
    assert!(wrong.contains("went to"), "{wrong}");
}

#[test]
fn a_rule_that_is_off_by_one_is_found() {
    let wrong = found(Bug::Engine(EngineBug::OffByOne), Forwarding::Nat);
    assert!(wrong.contains("byte ") || wrong.contains("not over"), "{wrong}");
}

#[test]
fn rules_that_are_not_removed_are_found() {
    let wrong = found(Bug::Engine(EngineBug::KeepsRules), Forwarding::Nat);
    assert!(wrong.contains("the engine"), "{wrong}");
}

#[test]
fn rules_that_lead_to_another_port_are_found() {
    found(Bug::Engine(EngineBug::WrongPort), Forwarding::Nat);
}

#[test]
fn guards_that_are_not_looked_at_are_found() {
    let bug = Some(Bug::Engine(EngineBug::IgnoresGuards));
    let mut failures = (0..SEEDS).filter_map(|seed| http::run(seed, Between::Layer7, bug).err());
    assert!(failures.next().is_some(), "rules without guards were not found");
}

#[test]
fn a_run_is_a_function_of_its_seed() {
    for seed in 0..10 {
        let run = || format!("{:?}", streams(seed, Between::Layer4(Forwarding::FullNat), None));
        assert_eq!(run(), run());
    }
}

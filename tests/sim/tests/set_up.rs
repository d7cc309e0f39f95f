//! Connections that the engine sets up (`set_up = "engine"`), in virtual time. `HAIRPIN_SIM_SEEDS` says how many seeds.

use hairpin_core::time::Duration;
use hairpin_sim::balancer::Bug;
use hairpin_sim::engine::EngineBug;
use hairpin_sim::scenario::{seeds, set_up};

#[test]
fn set_up_delivers_every_byte() {
    let all = seeds(0, 150, |seed| set_up(seed, None, None));
    println!("{all:?}");
    let done = all.set_up;
    assert!(done.made > 100 && done.followed > 100 && done.deferred > 0, "{all:?}");
    assert!(done.taken > 0 && done.reports_full > 0, "{all:?}");
}

#[test]
fn killed_processes_lose_no_set_up_connection() {
    let all = seeds(0, 100, |seed| set_up(seed, None, Some(Duration::from_secs(1))));
    println!("{all:?}");
    assert!(all.killed > 100 && all.set_up.made_absent > 0 && all.set_up.found > 0, "{all:?}");
}

/// Seed 59: a forged SYN, which the engine sent on to another backend while no process was there, and a packet of that backend:
/// the worker had two connections of the client's end, of which one was established.
#[test]
fn forged_syn_without_a_process_doubles_no_connection() {
    for lasts in [Duration::from_millis(1_000), Duration::from_millis(50)] {
        set_up(59, None, Some(lasts)).unwrap_or_else(|failure| panic!("{failure}"));
    }
}

/// Seed 137: a table that was full when the engine left a half-open connection to the worker, which took it and forgot it.
#[test]
fn half_open_connection_waits_for_room() {
    set_up(137, None, None).unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn set_up_connections_that_are_not_told_are_found() {
    let bug = Some(Bug::Engine(EngineBug::ForgetsReports));
    let failure = (0..20).find_map(|seed| set_up(seed, bug, None).err()).expect("the bug was not found");
    assert!(failure.wrong.iter().any(|wrong| wrong.contains("the engine holds")), "{failure}");
}

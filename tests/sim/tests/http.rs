//! HTTP in virtual time. Over a router and a layer-4 service it proves peers and checkers; over an HTTP service, the splice.
//! `HAIRPIN_SIM_SEEDS` says how many seeds, `HAIRPIN_SIM_FIRST` the first.

use hairpin_core::config::Forwarding;
use hairpin_core::time::Duration;
use hairpin_sim::http::{run, run_killed};
use hairpin_sim::scenario::{Between, seeds};

#[test]
fn peers_agree_without_a_balancer() {
    let all = seeds(0, 60, |seed| run(seed, Between::Nothing, None));
    println!("{all:?}");
}

#[test]
fn peers_agree_over_layer_4() {
    let all = seeds(0, 100, |seed| run(seed, Between::Layer4(Forwarding::FullNat), None));
    println!("{all:?}");
}

#[test]
fn every_byte_and_every_field_comes_through_the_splice() {
    let all = seeds(0, 300, |seed| run(seed, Between::Layer7, None));
    println!("{all:?}");
    assert!(all.offloaded > 0 && all.guarded > 0 && all.by_cards > 0 && all.unguarded > 0, "{all:?}");
}

/// Seed 5022: a bit of a request flipped on its way to the balancer, and another one behind it, which hid the first.
#[test]
fn one_flipped_bit_a_packet_at_most() {
    run(5022, Between::Layer4(Forwarding::FullNat), None).unwrap_or_else(|failure| panic!("{failure}"));
}

/// Seed 3667: a client whose window has no room for the end of its last response counted the FIN that was cut off with it,
/// as smoltcp 0.14 does, and took the connection for over.
#[test]
fn a_window_without_room_for_our_fin() {
    run(3667, Between::Layer7, None).unwrap_or_else(|failure| panic!("{failure}"));
}

/// Seed 22436: six FINs to a backend found no frame, and the RST that followed was lost. The backend kept the connection.
#[test]
fn a_backend_hears_that_its_connection_is_given_up() {
    run(22436, Between::Layer7, None).unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn killed_processes_break_no_exchange() {
    for lasts in [Duration::from_millis(300), Duration::from_millis(30)] {
        let all = seeds(0, 100, |seed| run_killed(seed, Between::Layer7, None, Some(lasts)));
        println!("{all:?}");
        assert!(all.killed > 100 && all.offloaded > 0 && all.guarded > 0, "{all:?}");
    }
}

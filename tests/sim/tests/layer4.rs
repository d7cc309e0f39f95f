//! Layer 4 in virtual time: hundreds of seeds, each a network of its own. `HAIRPIN_SIM_SEEDS` says how many.

use hairpin_core::config::Forwarding;
use hairpin_sim::scenario::{Between, seeds, streams};

#[test]
fn peers_and_checkers_agree_without_a_balancer() {
    let all = seeds(0, 60, |seed| streams(seed, Between::Nothing, None));
    println!("{all:?}");
}

#[test]
fn nat_delivers_every_byte() {
    let all = seeds(0, 150, |seed| streams(seed, Between::Layer4(Forwarding::Nat), None));
    println!("{all:?}");
    assert!(all.offloaded > 0 && all.by_cards > 0 && all.frames > 0, "{all:?}");
}

#[test]
fn full_nat_delivers_every_byte() {
    let all = seeds(0, 150, |seed| streams(seed, Between::Layer4(Forwarding::FullNat), None));
    println!("{all:?}");
    assert!(all.offloaded > 0 && all.by_cards > 0 && all.frames > 0, "{all:?}");
}

//! The soak, for half a minute. The whole of it: `make soak`.

use super::network::test;
use anyhow::Result;
use hairpin_e2e::soak::{self, SoakArgs};
use libtest_mimic::Trial;
use std::time::Duration;

pub(crate) fn tests() -> Vec<Trial> {
    vec![test("soak: no byte is wrong, no operation fails", short)]
}

fn short() -> Result<()> {
    soak::run(&SoakArgs::of(Duration::from_secs(25), 24))
}

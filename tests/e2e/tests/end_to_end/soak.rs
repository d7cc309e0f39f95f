//! The soak, for half a minute. The whole of it: `make soak`.

use super::network::test;
use anyhow::Result;
use hairpin_e2e::soak::{self, SoakArgs, SoakDeaths};
use hairpin_e2e::topology::Cards;
use libtest_mimic::Trial;
use std::time::Duration;

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("soak: no byte is wrong, no operation fails", short),
        test("soak: processes end and others take over (gso)", || deaths(Cards::Gso)),
        test("soak: processes end and others take over (wire)", || deaths(Cards::Wire)),
    ]
}

/// A kill may break one operation of each worker; nothing else may break, and no client may hang. `make crashes` does more.
fn deaths(cards: Cards) -> Result<()> {
    let deaths = SoakDeaths { restarts: 3, workers: 4, upgrades: 2, kills: 4 };
    soak::run(&SoakArgs::of_deaths(deaths, 24, cards))
}

fn short() -> Result<()> {
    soak::run(&SoakArgs::of(Duration::from_secs(25), 24))
}

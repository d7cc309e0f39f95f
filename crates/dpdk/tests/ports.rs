//! Pools, rings and ports of every virtual kind, with the kernel and with other processes at their other ends. EAL starts
//! once per process, so all cases are in this one binary; what needs another start is this program once more.
//!
//! Every case ends with all mbufs back in their pools.

#[path = "ports/mod.rs"]
mod cases;

use cases::{Case, child};
use hairpin_dpdk::{Eal, EalOptions, EalPages};
use libtest_mimic::{Arguments, Failed, Trial};
use std::sync::OnceLock;

static EAL: OnceLock<Eal> = OnceLock::new();

/// DPDK, started before the first case.
pub(crate) fn eal() -> &'static Eal {
    EAL.get().expect("main starts it")
}

pub(crate) fn start(pages: EalPages) {
    let options = EalOptions { memory_mib: 512, pages, ..EalOptions::default() };
    let eal = Eal::start(options).unwrap_or_else(|error| panic!("{error}"));
    EAL.get_or_init(|| eal);
}

fn main() {
    if child::is_one() {
        return child::run();
    }
    let mut arguments = Arguments::from_args();
    // Cases spin on their ports: more of them at a time than cores only wait for each other.
    arguments.test_threads.get_or_insert(1);
    if !arguments.list {
        start(EalPages::None);
    }
    let trials = cases::all().into_iter().map(|(name, run): Case| {
        Trial::test(name, move || -> Result<(), Failed> {
            run();
            Ok(())
        })
    });
    libtest_mimic::run(&arguments, trials.collect()).exit();
}

//! rte_hash behind the traits. EAL starts once per process, so all cases are in this one binary.

mod cases;

use cases::{attack, model, rest, threads};
use hairpin_dpdk::{Eal, EalOptions};
use hairpin_tables::rte_hash::{RteHashFlags, Transactions};
use libtest_mimic::{Arguments, Failed, Trial};
use std::sync::OnceLock;

static EAL: OnceLock<Eal> = OnceLock::new();

/// DPDK, started before the first case.
pub(crate) fn eal() -> &'static Eal {
    EAL.get().expect("main starts it")
}

/// The flag sets that this machine can do.
pub(crate) fn possible() -> impl Iterator<Item = RteHashFlags> {
    let transactions = Transactions::probe() == Transactions::Work;
    RteHashFlags::ALL.into_iter().filter(move |flags| transactions || !flags.is_transactional())
}

fn main() {
    let mut arguments = Arguments::from_args();
    // Cases with threads spin: more of them at a time than cores only wait for each other.
    arguments.test_threads.get_or_insert(1);
    let before = rest::standing();
    let eal = Eal::start(EalOptions::default()).unwrap_or_else(|error| panic!("{error}"));
    let after = rest::standing();
    EAL.get_or_init(|| eal);
    let mut trials = vec![case("starting leaves the thread and the process alone".into(), move || {
        (before == after).then_some(()).ok_or_else(|| format!("{before:?} became {after:?}").into())
    })];
    trials.extend(rest::all().into_iter().map(|(name, run)| case(name.into(), move || done(run))));
    trials.extend(attack::all().into_iter().map(|(name, run)| case(name.into(), move || done(run))));
    for flags in possible() {
        trials.push(case(format!("{flags}: like a map"), move || done(|| model::all(flags))));
        trials
            .push(case(format!("{flags}: full at its capacity, and room again"), move || done(|| model::fill(flags))));
        if flags.protects_readers() {
            trials.push(case(format!("{flags}: threads"), move || done(|| threads::churn(flags))));
        }
        if flags.is_lock_free() {
            let run = move || done(|| threads::positions_wait_for_readers(flags));
            trials.push(case(format!("{flags}: positions wait for readers"), run));
        }
    }
    libtest_mimic::run(&arguments, trials).exit();
}

fn case(name: String, run: impl FnOnce() -> Result<(), Failed> + Send + 'static) -> Trial {
    Trial::test(name, run)
}

/// A case fails by panicking.
fn done(run: impl FnOnce()) -> Result<(), Failed> {
    run();
    Ok(())
}

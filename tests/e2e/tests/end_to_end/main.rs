//! Hairpin in a network of namespaces, with real clients and servers. Needs root and a built `hairpin`
//! (`HAIRPIN_BIN`, or the workspace's build); prints why and skips everything if not root.
//!
//! Trials run in lanes ([`lane`]) and share networks, which are made when first needed and removed at the end.

#![forbid(unsafe_code)]

mod absence;
mod availability;
mod balance;
mod commands;
mod crash;
mod dpdk;
mod health;
mod hostile;
mod http;
mod intruders;
mod lab;
mod lane;
mod leaks;
mod lifecycle;
mod live;
mod manager;
mod memif;
mod mtu;
mod network;
mod not_ours;
mod policy;
mod restart;
mod rules;
mod scale;
mod soak;
mod survival;
mod tables;
mod takeover;
mod told;
mod transfer;

use hairpin_e2e::{cleanup, namespace};
use libtest_mimic::{Arguments, Trial};
use network::Networks;
use std::collections::BTreeSet;
use std::process::ExitCode;
use std::sync::Arc;

/// Survival tests have more clients than the 1,024 files that Debian allows a process unless it asks for more. No more than
/// they need: HAProxy sizes its tables by the limit.
fn raise_limit_of_files() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    const FILES: u64 = 16_384;
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("the limit of open files can be read");
    let raised = soft.max(FILES.min(hard));
    setrlimit(Resource::RLIMIT_NOFILE, raised, hard).expect("the limit of open files can be raised up to the hard one");
}

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    let root = nix::unistd::geteuid().is_root();
    raise_limit_of_files();
    if root && !arguments.list {
        cleanup::on_signal().expect("signals can be caught");
        if let Err(error) = namespace::clean(false) {
            eprintln!("what an earlier run left could not be removed: {error:#}");
        }
    } else if !root {
        println!("skipped: network namespaces need root (run: sudo make test)");
    }
    let networks = Arc::new(Networks::default());
    let trials = [
        absence::trials(),
        transfer::trials(&networks),
        balance::trials(&networks),
        told::trials(&networks),
        commands::trials(&networks),
        not_ours::trials(&networks),
        mtu::trials(&networks),
        hostile::trials(),
        lifecycle::trials(),
        live::trials(),
        restart::trials(),
        manager::trials(),
        health::trials(),
        intruders::trials(),
        survival::trials(),
        soak::trials(),
        availability::trials(),
        tables::trials(),
        takeover::trials(),
        policy::trials(),
        http::trials(),
        crash::trials(),
        leaks::trials(),
        dpdk::trials(),
        memif::trials(),
        rules::trials(),
        lab::trials(),
    ];
    let trials: Vec<Trial> = trials.into_iter().flatten().map(|trial| trial.with_ignored_flag(!root)).collect();
    let trials = named(with_check_of_selection(trials));
    // All of them wait at once, each for its turn; one thread runs them in order.
    arguments.test_threads.get_or_insert(trials.len());
    let conclusion = libtest_mimic::run(&arguments, trials);
    drop(networks);
    conclusion.exit_code()
}

/// The tests that guests with other kernels run are chosen by name (`tests/kernels/selection`): all of them exist.
fn with_check_of_selection(mut trials: Vec<Trial>) -> Vec<Trial> {
    let known: BTreeSet<&str> = trials.iter().map(Trial::name).collect();
    let text = include_str!("../../../../tests/kernels/selection").lines().filter(|line| !line.starts_with('#'));
    let unknown: Vec<&str> = text.filter(|line| !line.is_empty() && !known.contains(line)).collect();
    trials.push(Trial::test("the selection for guests names tests that exist", move || {
        if unknown.is_empty() { Ok(()) } else { Err(format!("tests/kernels/selection: {unknown:#?}").into()) }
    }));
    trials
}

/// Of the trials those that the file `HAIRPIN_TESTS` names, one a line, if it is set. A name without a trial is a mistake.
fn named(mut trials: Vec<Trial>) -> Vec<Trial> {
    let Some(path) = std::env::var_os("HAIRPIN_TESTS") else { return trials };
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("HAIRPIN_TESTS, {path:?}: {error}"));
    let names: BTreeSet<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    trials.retain(|trial| names.contains(trial.name()));
    let known: BTreeSet<&str> = trials.iter().map(Trial::name).collect();
    let unknown: Vec<_> = names.difference(&known).collect();
    assert!(unknown.is_empty(), "HAIRPIN_TESTS names tests that do not exist: {unknown:#?}");
    trials
}

//! Hairpin in a network of namespaces, with real clients and servers. Needs root and a built `hairpin`
//! (`HAIRPIN_BIN`, or the workspace's build); prints why and skips everything if not root.
//!
//! Tests run in lanes ([`lane`]) and share networks, which are made when first needed and removed at the end.

#![forbid(unsafe_code)]

mod absence;
mod access;
mod access_log;
mod acme;
mod api;
mod authentication;
mod availability;
mod backends;
mod balance;
mod combination;
mod commands;
mod crash;
mod direct;
mod dpdk;
mod encapsulated;
mod events;
mod functions;
mod grpc;
mod health;
mod hostile;
mod http;
mod https;
mod https_draining;
mod intruders;
mod lab;
mod lane;
mod leaks;
mod lifecycle;
mod limits;
mod live;
mod manager;
mod memif;
mod mirror;
mod monitor;
mod mtu;
mod names;
mod network;
mod not_ours;
mod page;
mod policy;
mod prometheus;
mod proxied;
mod responses;
mod restart;
mod rules;
mod scale;
mod setup;
mod setup_direct;
mod soak;
mod survival;
mod tables;
mod takeover;
mod times;
mod told;
mod top;
mod tracing;
mod transfer;
mod xdp;

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
    let tests = [
        absence::tests(),
        access::tests(),
        acme::tests(),
        transfer::tests(&networks),
        balance::tests(&networks),
        backends::tests(),
        proxied::tests(),
        mirror::tests(),
        responses::tests(),
        told::tests(&networks),
        commands::tests(&networks),
        not_ours::tests(&networks),
        mtu::tests(&networks),
        monitor::tests(),
        names::tests(),
        hostile::tests(),
        lifecycle::tests(),
        events::tests(),
        api::tests(),
        functions::tests(),
        times::tests(),
        top::tests(),
        live::tests(),
        restart::tests(),
        manager::tests(),
        health::tests(),
        intruders::tests(),
        access_log::tests(),
        prometheus::tests(),
        tracing::tests(),
        survival::tests(),
        soak::tests(),
        availability::tests(),
        tables::tests(),
        takeover::tests(),
        page::tests(),
        policy::tests(),
        http::tests(),
        grpc::tests(),
        https::tests(),
        authentication::tests(),
        https_draining::tests(),
        crash::tests(),
        leaks::tests(),
        limits::tests(),
        direct::tests(),
        encapsulated::tests(),
        setup::tests(),
        setup_direct::tests(),
        dpdk::tests(),
        memif::tests(),
        rules::tests(),
        lab::tests(),
        xdp::tests(&networks),
    ];
    let tests: Vec<Trial> = tests.into_iter().flatten().map(|test| test.with_ignored_flag(!root)).collect();
    let tests = named(with_checks_of_names(tests));
    // All of them wait at once, each for its turn; one thread runs them in order.
    arguments.test_threads.get_or_insert(tests.len());
    let conclusion = libtest_mimic::run(&arguments, tests);
    drop(networks);
    conclusion.exit_code()
}

/// Characters of a test's name (`scripts/check-names` has the limit for test functions).
const NAME_MAX: usize = 60;

/// Names fit the limit, and the tests that guests with other kernels run (`tests/kernels/selection`) exist.
fn with_checks_of_names(mut tests: Vec<Trial>) -> Vec<Trial> {
    let known: BTreeSet<&str> = tests.iter().map(Trial::name).collect();
    let long: Vec<String> = known.iter().filter(|name| name.len() > NAME_MAX).map(|name| (*name).to_owned()).collect();
    let text = include_str!("../../../../tests/kernels/selection").lines().filter(|line| !line.starts_with('#'));
    let unknown: Vec<&str> = text.filter(|line| !line.is_empty() && !known.contains(line)).collect();
    tests.push(Trial::test("the selection for guests names tests that exist", move || {
        if unknown.is_empty() { Ok(()) } else { Err(format!("tests/kernels/selection: {unknown:#?}").into()) }
    }));
    tests.push(Trial::test("names of end-to-end tests fit the limit", move || {
        if long.is_empty() { Ok(()) } else { Err(format!("over {NAME_MAX} characters: {long:#?}").into()) }
    }));
    tests
}

/// The tests that the file `HAIRPIN_TESTS` names, one a line; all of them if it is not set. An unknown name is an error.
/// Without those that have `HAIRPIN_TESTS_SKIP` in their names.
fn named(mut tests: Vec<Trial>) -> Vec<Trial> {
    if let Ok(skipped) = std::env::var("HAIRPIN_TESTS_SKIP") {
        tests.retain(|test| skipped.is_empty() || !test.name().contains(&skipped));
    }
    let Some(path) = std::env::var_os("HAIRPIN_TESTS") else { return tests };
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("HAIRPIN_TESTS, {path:?}: {error}"));
    let names: BTreeSet<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    tests.retain(|test| names.contains(test.name()));
    let known: BTreeSet<&str> = tests.iter().map(Trial::name).collect();
    let unknown: Vec<_> = names.difference(&known).collect();
    assert!(unknown.is_empty(), "HAIRPIN_TESTS names tests that do not exist: {unknown:#?}");
    tests
}

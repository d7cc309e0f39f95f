//! The smoke scenario over rings, from file to page. One test, since DPDK starts once in a process and the threads want
//! processors of their own.
#![allow(missing_docs)]

use hairpin_dpdk::{Eal, EalOptions};
use hairpin_lab::experiment::{Came, Experiment, Kind, Plan, Results, Store, perform};
use hairpin_lab::testbed::Testbed;
use hairpin_lab::testbed::rings::RingTestbed;
use hairpin_lab::{profile, report};
use std::path::Path;

#[test]
fn from_a_file_to_a_page() {
    let file = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../scenarios/smoke.toml"));
    let experiment = Experiment::load(file).unwrap_or_else(|problems| panic!("{problems}"));
    let eal = Eal::start(EalOptions { memory_mib: 256, ..EalOptions::default() }).unwrap();
    let mut testbed = RingTestbed::new(eal);
    let mut plan = Plan::new(&experiment, &|trial| testbed.obstacle(trial)).unwrap();
    if profile::obstacle().is_some() {
        plan.tasks.retain(|task| task.kind != Kind::Profile);
    }
    if plan.tasks.is_empty() {
        return eprintln!("skipped: {}", plan.skipped[0].reason);
    }
    let directory = std::env::temp_dir().join(format!("hairpin-lab-scenario-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&directory);
    let machine = report::machine();
    let mut store = Store::open(&directory, &machine.name).unwrap();
    perform(&experiment, &plan, &mut testbed, &mut store, &mut |_| ()).unwrap();
    for record in store.records() {
        match &record.came {
            Came::Measured(measured) => {
                assert!(measured.received > 0 && measured.corrupted == 0, "{}: {measured:?}", record.cell);
                assert!(measured.consistent && measured.duplicates == 0, "{}: {measured:?}", record.cell);
                assert_eq!(measured.sent, measured.received + measured.lost(), "{}", record.cell);
            }
            Came::Profiled(profile) => {
                let all: f64 = profile.shares.iter().map(|(_, share)| share).sum();
                assert!((all - 1.0).abs() < 1e-6, "{profile:?}");
            }
            // On a machine that others use perf may see too little of a short trial.
            Came::Failed(reason) => assert!(record.kind == Kind::Profile, "{}: {reason}", record.cell),
            Came::Searched(_) => unreachable!("the file has no searches"),
        }
    }
    let results = Results::new(&experiment, &plan, &store);
    let written = report::write(&results, &machine, &directory).unwrap();
    let page = std::fs::read_to_string(&written.page).unwrap();
    for subject in &experiment.subjects {
        assert!(page.contains(&subject.name), "{}", subject.name);
    }
    assert!(written.figures > 0 && page.contains("<svg"));
    std::fs::remove_dir_all(&directory).unwrap();
}

//! The smoke scenario over rings, from file to page, and the one of modelled cards, shortened. One test, since DPDK starts once in a process and the threads want
//! processors of their own.
#![allow(missing_docs)]

use hairpin_dpdk::{Eal, EalOptions};
use hairpin_lab::experiment::{
    CellKind, Experiment, Plan, PlanResults, RecordOutcome, ResultRecord, ResultStore, perform,
};
use hairpin_lab::testbed::rings::RingTestbed;
use hairpin_lab::testbed::{Measurement, Testbed};
use hairpin_lab::{profile, report};
use std::path::Path;
use std::time::Duration;

#[test]
fn from_a_file_to_a_page() {
    let eal = Eal::start(EalOptions { memory_mib: 256, ..EalOptions::default() }).unwrap();
    let mut testbed = RingTestbed::new(eal);
    perform_one(&mut testbed, load("smoke"));
    let mut offload = load("offload");
    offload.shorten(Duration::from_millis(300)).unwrap();
    offload.repeat(1);
    // There is not time for more to come into force.
    offload.flows.truncate(1);
    perform_one(&mut testbed, offload);
}

fn load(name: &str) -> Experiment {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("scenarios/{name}.toml"));
    Experiment::load(&file).unwrap_or_else(|problems| panic!("{problems}"))
}

/// The invariants of a device behind a card.
fn check_card(record: &ResultRecord, measured: &Measurement) {
    let policy = record.cell.subject.policy.as_str();
    let Some(card) = &measured.offloaded else { return assert_eq!(policy, "never", "{}: no card", record.cell) };
    assert!(card.packets <= card.arrived && card.arrived <= measured.sent, "{}: {card:?}", record.cell);
    assert_eq!(measured.reordered, 0, "{}: at hand-over no packet overtakes another", record.cell);
    assert_eq!(card.refused(), 0, "{}: {card:?}", record.cell);
    match policy {
        "never" => assert_eq!((card.packets, card.rules_peak), (0, 0), "{}", record.cell),
        // Each flow is a connection from its eighth packet on; on a busy machine there may be none.
        "always" => assert!(card.packets > 0 || card.arrived < 50_000, "{}: {card:?}", record.cell),
        _ => assert!(card.packets == 0 || card.installed > 0, "{}: {card:?}", record.cell),
    }
    eprintln!("{}: {:.1} % of {} packets turned round, {card:?}", record.cell, 100.0 * card.share(), card.arrived);
}

fn perform_one(testbed: &mut RingTestbed, experiment: Experiment) {
    let mut plan = Plan::new(&experiment, &|trial| testbed.obstacle(trial)).unwrap();
    if profile::obstacle().is_some() {
        plan.tasks.retain(|task| task.kind != CellKind::Profile);
    }
    if plan.tasks.is_empty() {
        return eprintln!("skipped: {}", plan.skipped[0].reason);
    }
    let name = &experiment.name;
    let directory = std::env::temp_dir().join(format!("hairpin-lab-scenario-{}-{name}", std::process::id()));
    let _ = std::fs::remove_dir_all(&directory);
    let machine = report::machine();
    let mut store = ResultStore::open(&directory, &machine.name).unwrap();
    perform(&experiment, &plan, testbed, &mut store, &mut |_| ()).unwrap();
    for record in store.records() {
        match &record.came {
            RecordOutcome::Measured(measured) => {
                assert!(measured.received > 0 && measured.corrupted == 0, "{}: {measured:?}", record.cell);
                assert!(measured.consistent && measured.duplicates == 0, "{}: {measured:?}", record.cell);
                assert_eq!(measured.sent, measured.received + measured.lost(), "{}", record.cell);
                check_card(record, measured);
            }
            RecordOutcome::Profiled(profile) => {
                let all: f64 = profile.shares.iter().map(|(_, share)| share).sum();
                assert!((all - 1.0).abs() < 1e-6, "{profile:?}");
            }
            // On a machine that others use perf may see too little of a short trial.
            RecordOutcome::Failed(reason) => assert!(record.kind == CellKind::Profile, "{}: {reason}", record.cell),
            RecordOutcome::Searched(_) => unreachable!("the file has no searches"),
        }
    }
    let results = PlanResults::new(&experiment, &plan, &store);
    let written = report::write(&results, &machine, &directory).unwrap();
    let page = std::fs::read_to_string(&written.page).unwrap();
    for subject in &experiment.subjects {
        assert!(page.contains(&subject.name), "{}", subject.name);
    }
    assert!(written.figures > 0 && page.contains("<svg"));
    assert_eq!(page.contains("<h2>Cards</h2>"), !experiment.offloads.is_empty());
    let table = std::fs::read_to_string(directory.join("results.csv")).unwrap();
    for column in ["offloaded_share", "rules_peak", "rules_refused", "worker_busy", "card_busy"] {
        assert!(table.lines().next().unwrap().split(',').any(|there| there == column), "{column}");
    }
    std::fs::remove_dir_all(&directory).unwrap();
}

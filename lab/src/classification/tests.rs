use super::*;
use crate::virtual_time::finding::CaseVerdict;
use std::path::Path;

fn experiment() -> ClassificationExperiment {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    ClassificationExperiment::load(&root.join("classification.toml"), &root.join("profiles/sharing")).unwrap()
}

fn rows(experiment: &ClassificationExperiment) -> Vec<CaseRow> {
    let results = Path::new(env!("CARGO_MANIFEST_DIR")).join("results/classification.csv");
    read_rows(&results, experiment).unwrap()
}

fn verdicts(experiment: &ClassificationExperiment, rows: &[CaseRow]) -> Vec<CaseVerdict> {
    let judge = |finding| {
        let finding: &ClassificationFinding = finding;
        let seen = Sharing::of(rows, experiment.device_of(finding), 1.0);
        finding.rule.judge(&seen, &experiment.cores).verdict
    };
    experiment.finding.iter().map(judge).collect()
}

/// Results that turn the paper's world upside down turn every verdict that agrees: no verdict is set by hand.
#[test]
fn planted_results_turn_verdicts() {
    let experiment = experiment();
    let measured = rows(&experiment);
    let before = verdicts(&experiment, &measured);
    let mut planted = measured;
    for row in &mut planted {
        let rank = experiment.methods.iter().position(|method| method.name() == row.method).unwrap() as f64;
        // The slowest is the fastest, no core waits for the lock, and more cores carry less.
        row.gbit = (1.0 + rank) * 3.0 / f64::from(row.cores);
        (row.rtt, row.waiting) = (1.0 / (1.0 + rank), 0.0);
    }
    let after = verdicts(&experiment, &planted);
    assert!(before.contains(&CaseVerdict::Agrees), "{before:?}");
    for ((finding, before), after) in experiment.finding.iter().zip(&before).zip(&after) {
        assert!(*before != CaseVerdict::Agrees || *after != CaseVerdict::Agrees, "{} agrees with anything", finding.id);
    }
}

/// One method that is too fast, and its finding alone turns.
#[test]
fn a_single_wrong_cell_turns_the_verdict_on_it() {
    let experiment = experiment();
    let mut planted = rows(&experiment);
    let at = experiment.finding.iter().position(|finding| finding.id == "kth2020-order-eight-cores").unwrap();
    assert_eq!(verdicts(&experiment, &planted)[at], CaseVerdict::Agrees);
    let is_it = |row: &&mut CaseRow| row.device == "kth-2020" && row.method == "global-lock" && row.cores == 8;
    planted.iter_mut().filter(is_it).for_each(|row| row.gbit = 84.0);
    assert_eq!(verdicts(&experiment, &planted)[at], CaseVerdict::InPart);
}

#[test]
fn nothing_to_compare_is_not_measured() {
    let experiment = experiment();
    assert!(verdicts(&experiment, &[]).iter().all(|verdict| *verdict == CaseVerdict::NotMeasured));
}

#[test]
fn every_disagreement_is_explained() {
    let experiment = experiment();
    let verdicts = verdicts(&experiment, &rows(&experiment));
    for (finding, verdict) in experiment.finding.iter().zip(verdicts) {
        let reason = if verdict == CaseVerdict::Agrees { &finding.why } else { &finding.why_not };
        assert!(!reason.trim().is_empty(), "{}: {} needs a reason", finding.id, verdict.text());
    }
}

/// The results in the repository are what this program simulates.
#[test]
fn results_are_of_this_model() {
    let experiment = experiment();
    let rows = rows(&experiment);
    let cases = experiment.cases();
    let chosen = |case: &ClassificationCase| case.seed == 1 && case.line == 1.0 && [2, 7].contains(&case.cores);
    let mut compared = 0;
    for (case, row) in cases.iter().zip(&rows).filter(|(case, _)| chosen(case)) {
        assert_eq!(experiment.simulate(case).unwrap(), *row, "{case:?}: run `hairpin-lab classify`");
        compared += 1;
    }
    assert_eq!(compared, experiment.devices.len() * experiment.methods.len() * 2);
}

/// A page that is written from the results in the repository is the one there, figures and all.
#[test]
fn page_is_what_results_say() {
    let experiment = experiment();
    let rows = rows(&experiment);
    let scratch = std::env::temp_dir().join(format!("hairpin-classification-{}", std::process::id()));
    let page = scratch.join("classification.md");
    let more = sections(&Path::new(env!("CARGO_MANIFEST_DIR")).join("results")).unwrap();
    write(&PageParts { experiment: &experiment, rows: &rows, more: &more }, &page).unwrap();
    let there = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/evidence");
    let files = std::fs::read_dir(scratch.join("figures")).unwrap();
    let figures: Vec<_> = files.map(|entry| Path::new("figures").join(entry.unwrap().file_name())).collect();
    assert!(figures.len() >= 10, "{figures:?}");
    for file in figures.into_iter().chain([Path::new("classification.md").to_owned()]) {
        let (written, kept) = (std::fs::read(scratch.join(&file)).unwrap(), std::fs::read(there.join(&file)));
        let is_same = kept.is_ok_and(|kept| kept == written);
        assert!(is_same, "docs/evidence/{}: run `hairpin-lab classify --report`", file.display());
    }
    std::fs::remove_dir_all(scratch).unwrap();
}

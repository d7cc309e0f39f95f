//! The pages in docs/evidence are what the program writes from the results in lab/results, and another result would give
//! another verdict.

use hairpin_lab::evidence::{self, EvidenceSources, document};
use hairpin_lab::records::{keep_lines, kept_lines};
use hairpin_lab::virtual_time::finding::{AgreementRule, CaseFinding, CaseVerdict, SeenRun, Where};
use hairpin_lab::virtual_time::outcome::{Outcome, metric};
use hairpin_lab::virtual_time::{
    CaseContext, CaseOutcome, CaseRecord, CaseStore, Circumstances, Gathered, ModelExperiment, OtherScale, Sensitivity,
    write_evidence,
};
use std::fs;
use std::path::{Path, PathBuf};

/// Lines of a page and bytes of a figure at most.
const LINES_MAX: usize = 350;
const FIGURE_BYTES_MAX: u64 = 60_000;
/// Page, scale, seeds.
const PAGES: [(&str, f64, u32); 2] = [("reproduction", 0.1, 5), ("reproduction-full", 1.0, 1)];
/// Verdicts with other constants.
const SENSITIVITY: &str = "lab/results/sensitivity.csv";

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("hairpin-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// The results of a scale, a line for each case.
fn lines(name: &str) -> String {
    kept_lines(&root().join(format!("lab/results/{name}.jsonl.gz"))).unwrap().unwrap()
}

fn experiments(seeds: u32) -> Vec<ModelExperiment> {
    let all = ModelExperiment::load_all(&root().join("lab/experiments")).unwrap();
    all.into_iter().map(|experiment| experiment.repeated(seeds)).collect()
}

fn bench(scale: f64) -> CaseContext {
    CaseContext::load(scale, &root().join("lab/profiles"), None).unwrap()
}

fn command(scale: f64, seeds: u32) -> String {
    let seeds = if seeds > 1 { format!(" --seeds {seeds}") } else { String::new() };
    format!("hairpin-lab reproduce --scale {scale}{seeds}")
}

#[test]
fn evidence_pages_are_what_results_say() {
    let scratch = Scratch::new("evidence");
    let loaded = PAGES.map(|(name, scale, seeds)| (experiments(seeds), bench(scale), CaseStore::of(&lines(name))));
    let gathered: Vec<Vec<Gathered<'_>>> = loaded
        .iter()
        .map(|(experiments, bench, store)| experiments.iter().map(|one| Gathered::new(one, bench, store)).collect())
        .collect();
    let kept = root().join(SENSITIVITY);
    let sensitivity = kept.exists().then(|| Sensitivity::load(&kept).unwrap());
    // Paths on the page are those of a run in the repository's root.
    std::env::set_current_dir(&scratch.0).unwrap();
    let mut written = String::new();
    for (index, (name, scale, seeds)) in PAGES.into_iter().enumerate() {
        let failures: Vec<_> = gathered[index].iter().flat_map(Gathered::failures).collect();
        // Not all is simulated again after each change of the model: the page says what it lacks.
        let is_missing = |why: &str| why == "not performed";
        assert!(
            failures.iter().all(|(_, why)| is_missing(why)),
            "results are not of these experiments and profiles: {failures:?}"
        );
        let circumstances = Circumstances { scale, command: command(scale, seeds), ..Circumstances::default() };
        let beside = OtherScale { scale: PAGES[1 - index].1, gathered: &gathered[1 - index] };
        let (page, tables) = (PathBuf::from(format!("docs/evidence/{name}.md")), format!("lab/results/{name}"));
        fs::create_dir_all("docs/evidence").unwrap();
        let constants = sensitivity.as_ref().filter(|_| index == 0);
        write_evidence(&gathered[index], (Some(beside), constants), &circumstances, &page, Some(Path::new(&tables)))
            .unwrap();
        written += &fs::read_to_string(&page).unwrap();
    }
    let mut compared = 0;
    for directory in
        ["docs/evidence", "docs/evidence/figures", "lab/results/reproduction", "lab/results/reproduction-full"]
    {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                continue;
            }
            let (here, there) = (fs::read(&path).unwrap(), fs::read(root().join(&path)));
            assert!(there.is_ok_and(|there| there == here), "{}: run `make reproduce-pages`", path.display());
            let lines = here.iter().filter(|byte| **byte == b'\n').count();
            assert!(path.extension().is_none_or(|ending| ending != "md") || lines <= LINES_MAX, "{lines} lines");
            compared += 1;
        }
    }
    assert!(compared > 30, "{compared} files");
    for entry in fs::read_dir(root().join("docs/evidence/figures")).unwrap() {
        let entry = entry.unwrap();
        assert!(entry.metadata().unwrap().len() <= FIGURE_BYTES_MAX, "{:?}", entry.path());
    }
    // A reason that is on no page explains what has not been seen.
    let written = written.split_whitespace().collect::<Vec<_>>().join(" ");
    let is_whole =
        |name: &str| gathered.iter().flatten().all(|one| one.experiment.name != name || one.failures().is_empty());
    for experiment in loaded[0].0.iter().filter(|experiment| is_whole(&experiment.name)) {
        for finding in &experiment.findings {
            let reason = finding.why_not.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(written.contains(&reason), "no page has why_not of {}: {reason}", finding.id);
        }
    }
}

/// Sets what a metric is of.
fn set(outcome: &mut Outcome, name: &str, value: f64) {
    match name {
        "throughput" => outcome.received_pps = value * 1e6,
        "variation" => outcome.variation = value / 100.0,
        "loss" => outcome.loss = value / 100.0,
        "latency" => outcome.latency_mean = value * 1e3,
        "p99" => outcome.latency_p99 = value * 1e3,
        "cpu" => outcome.cpu_ns = value,
        "inserted" => outcome.inserted_per_s = value * 1e3,
        "offloaded" => outcome.offloaded_packets = value / 100.0,
        "surplus" => outcome.surplus = value / 100.0,
        "negative" => outcome.negative = value as u64,
        other => panic!("`set` does not know {other}"),
    }
    let is = (metric(name).unwrap().of)(outcome);
    assert!((is - value).abs() <= 1e-9 * value.abs(), "{name}: {is}, not {value}");
}

/// What is planted at a place, so that a finding is so or is not.
fn planted(finding: &CaseFinding, seen: &SeenRun<'_>, agrees: bool, axes: &[(String, Vec<String>)]) -> f64 {
    let is_at =
        |place: &Where| place.iter().all(|(axis, values)| values.iter().any(|value| seen.on(axis) == Some(value)));
    let is_first = is_at(&finding.more);
    match finding.rule {
        AgreementRule::More | AgreementRule::NoLess => {
            if is_first == agrees {
                90.0
            } else {
                1.0
            }
        }
        AgreementRule::Alike => {
            if is_first && !agrees {
                90.0
            } else {
                1.0
            }
        }
        AgreementRule::AtMost => {
            if agrees {
                0.0
            } else {
                1e6
            }
        }
        AgreementRule::Narrows => {
            let (_, values) = axes.iter().find(|(name, _)| *name == finding.along).unwrap();
            let begins = seen.on(&finding.along) == values.first().map(String::as_str);
            if is_first && begins == agrees { 90.0 } else { 1.0 }
        }
    }
}

#[test]
fn planted_results_turn_every_verdict() {
    let (experiments, bench) = (experiments(1), bench(0.1));
    let store = CaseStore::of(&lines("reproduction"));
    let mut turned = 0;
    for experiment in &experiments {
        let kept = Gathered::new(experiment, &bench, &store).seen();
        // What nothing has been measured for has no place to plant a result at.
        let is_measured =
            |finding: &&CaseFinding| finding.judge(&kept, &experiment.axes).verdict != CaseVerdict::NotMeasured;
        for finding in experiment.findings.iter().filter(is_measured) {
            for agrees in [true, false] {
                let outcomes: Vec<Vec<(u64, Outcome)>> = kept
                    .iter()
                    .map(|seen| {
                        let value = planted(finding, seen, agrees, &experiment.axes);
                        let plant = |(seed, outcome): &(u64, &Outcome)| {
                            let mut outcome = (*outcome).clone();
                            set(&mut outcome, &finding.metric, value);
                            (*seed, outcome)
                        };
                        seen.outcomes.iter().map(plant).collect()
                    })
                    .collect();
                let seen: Vec<SeenRun<'_>> = kept
                    .iter()
                    .zip(&outcomes)
                    .map(|(seen, outcomes)| {
                        let outcomes = outcomes.iter().map(|(seed, outcome)| (*seed, outcome)).collect();
                        SeenRun { outcomes, ..seen.clone() }
                    })
                    .collect();
                let wanted = if agrees { CaseVerdict::Agrees } else { CaseVerdict::Disagrees };
                let judgement = finding.judge(&seen, &experiment.axes);
                assert_eq!(judgement.verdict, wanted, "{}: {judgement:?}", finding.id);
                turned += 1;
            }
        }
    }
    assert!(turned > 70, "{turned} verdicts");
}

/// Lines in which the basic forwarder forwards a tenth of what it did.
fn slower_forwarder(lines: &str) -> String {
    let changed = |line: &str| {
        let mut record: CaseRecord = serde_json::from_str(line).unwrap();
        if let (true, CaseOutcome::Runs(runs)) = (record.name.contains("device=BF"), &mut record.came) {
            runs.iter_mut().for_each(|run| run.received_pps /= 10.0);
        }
        serde_json::to_string(&record).unwrap() + "\n"
    };
    lines.lines().map(changed).collect()
}

#[test]
fn planted_result_is_on_the_page() {
    let scratch = Scratch::new("planted-page");
    let (experiments, bench) = (experiments(1), bench(0.1));
    let kept = lines("reproduction");
    let line_of = |name: &str, lines: &str| {
        let store = CaseStore::of(lines);
        let gathered: Vec<Gathered<'_>> = experiments.iter().map(|one| Gathered::new(one, &bench, &store)).collect();
        let page = scratch.0.join(name).join("page.md");
        let circumstances = Circumstances { scale: 0.1, ..Circumstances::default() };
        write_evidence(&gathered, (None, None), &circumstances, &page, None).unwrap();
        let page = fs::read_to_string(page).unwrap();
        page.lines().find(|line| line.contains("The basic forwarder has the highest throughput")).unwrap().to_owned()
    };
    let (before, after) = (line_of("kept", &kept), line_of("changed", &slower_forwarder(&kept)));
    assert!(before.contains("| agrees |") && !before.contains("**does not agree**"), "{before}");
    assert!(after.contains("| **does not agree** |"), "{after}");
}

#[test]
fn index_is_what_results_say() {
    let sources = EvidenceSources { root: root(), results: &root().join("lab/results") };
    let text = document(&sources).unwrap();
    let there = fs::read_to_string(root().join(evidence::PAGE)).unwrap_or_default();
    assert!(text == there, "{}: run `make evidence`", evidence::PAGE);
}

/// Lines of JSON, each with its number of a path changed.
fn scaled(lines: &str, path: &[&str], factor: f64) -> String {
    let changed = |line: &str| {
        let mut record: serde_json::Value = serde_json::from_str(line).unwrap();
        if let Some(value) = path.iter().try_fold(&mut record, |value, step| value.get_mut(*step)) {
            *value = (value.as_f64().unwrap() * factor).into();
        }
        record.to_string() + "\n"
    };
    lines.lines().map(changed).collect()
}

/// Lines of a table, those that begin so with another number in a column.
fn replaced(table: &str, begins: &str, column: usize, number: &str) -> String {
    let changed = |line: &str| {
        let mut cells: Vec<&str> = line.split(',').collect();
        if line.starts_with(begins) {
            cells[column] = number;
        }
        cells.join(",") + "\n"
    };
    table.lines().map(changed).collect()
}

#[test]
fn planted_wrong_results_turn_verdicts_of_the_index() {
    let scratch = Scratch::new("planted-index");
    let kept = root().join("lab/results");
    let planted = scratch.0.as_path();
    fs::create_dir_all(planted.join("laconic")).unwrap();
    // Cards have a tenth of their goodput; nothing is slower than stateless; rules cost 100 us in the largest batch.
    keep_lines(&planted.join("reproduction.jsonl.gz"), &slower_forwarder(&lines("reproduction"))).unwrap();
    let cards = scaled(&lines("laconic-cards"), &["came", "Ok", "goodput"], 0.1);
    keep_lines(&planted.join("laconic-cards.jsonl.gz"), &cards).unwrap();
    let table = |name: &str| fs::read_to_string(kept.join(name)).unwrap();
    fs::write(
        planted.join("classification.csv"),
        replaced(&table("classification.csv"), "kth-2020,stateless,", 6, "0.001"),
    )
    .unwrap();
    let mut measured = table("laconic/measurements.csv");
    for series in ["1 k rules", "100 k rules"] {
        measured = replaced(&measured, &format!("rules,,{series},256,"), 6, "100");
    }
    fs::write(planted.join("laconic/measurements.csv"), measured).unwrap();
    fs::copy(kept.join("laconic/context.json"), planted.join("laconic/context.json")).unwrap();

    let [before, after] =
        [kept.as_path(), planted].map(|results| document(&EvidenceSources { root: root(), results }).unwrap());
    for (statement, by) in [
        ("The basic forwarder has the highest throughput", "matrix"),
        ("All cores of a BlueField-2 reach 150 Gbit/s", "laconic-cards"),
        ("Stateless is faster than every stateful method", "classification"),
        ("Updates of rules become cheaper with the batch", "l7-figures"),
    ] {
        let row = |page: &str| {
            let is_it = |line: &&str| line.contains(statement) && line.contains(&format!("`{by}`"));
            page.lines().find(is_it).unwrap_or_default().to_owned()
        };
        let (before, after) = (row(&before), row(&after));
        assert!(before.contains("| agrees") && !before.contains("| **does not agree**"), "{before}");
        assert!(after.contains("| **does not agree**"), "{after}");
    }
}

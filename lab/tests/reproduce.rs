//! `hairpin-lab reproduce` at a hundredth of the scale, a few cases of it: the main findings' directions, every file.

use hairpin_lab::records::Provenance;
use hairpin_lab::virtual_time::finding::CaseVerdict;
use hairpin_lab::virtual_time::{
    Case, CaseContext, CaseStore, CasesSummary, Circumstances, Gathered, ModelExperiment, PerformOptions, perform,
    write, write_evidence,
};
use std::fs;
use std::path::Path;
use std::time::Duration;

/// KTH 2022's findings in small: flows by Zipf's law, so that no recordings are needed.
const MATRIX: &str = r#"
name = "smoke-matrix"
title = "Directions"
table = ["throughput", "loss"]
finding = [
    { text = "the forwarder forwards more than the balancer", source = "5.1", metric = "throughput",
      more = { device = ["BF"] }, than = { device = ["LB"] }, where = { cores = ["1"] }, share = 1 },
    { text = "a table that is too small loses", source = "5.1", metric = "loss",
      more = { entries = ["1 M"] }, than = { entries = ["4 M"] },
      where = { device = ["LB"], run = ["2"] }, beyond = 1, share = 1 },
    { text = "naive offloading is better in run 2 than in run 1", source = "5.1", metric = "throughput",
      more = { run = ["2"] }, than = { run = ["1"] }, where = { device = ["naive"], cores = ["1"] }, share = 1 },
    { text = "in run 1 naive offloading that waits for the card is worse than none", source = "5.1", metric = "throughput",
      more = { device = ["LB", "selective", "naive-async"] }, than = { device = ["naive"] },
      where = { run = ["1"], cores = ["1"], entries = ["4 M"] }, share = 1 },
    { text = "in run 2 offloading is better than none", source = "5.1", metric = "throughput",
      more = { device = ["selective", "naive-async"] }, than = { device = ["LB"] },
      where = { run = ["2"], cores = ["1"], entries = ["4 M"] }, share = 1 },
    { text = "marks save less than forwarding", source = "Hairpin", metric = "cpu",
      more = { device = ["naive-mark"] }, than = { device = ["naive"] },
      where = { run = ["2"], cores = ["1"], entries = ["4 M"] }, share = 1 },
    { text = "loss is highest at one core", source = "5.2", metric = "loss",
      more = { cores = ["1"] }, than = { cores = ["2"] }, where = { device = ["LB"], entries = ["4 M"] }, share = 1 },
    { text = "no latency is negative", source = "5.5", metric = "negative", rule = "at-most", more = {}, share = 1 },
    { text = "nothing is received that was not sent", source = "5.5", metric = "surplus", rule = "at-most",
      more = {}, share = 1 },
    { text = "the balancer forwards more than the forwarder, which it does not", source = "invented", metric = "throughput",
      more = { device = ["LB"] }, than = { device = ["BF"] }, where = { cores = ["1"] }, share = 1 },
]
[settings]
mix = "zipf"
exponent = 0.8
flows = 2_000_000
seconds = 1.5
runs = 2
pps = 8_100_000
core = "xeon-5217"
[[axis]]
name = "entries"
values = [1_000_000, 4_000_000]
[[axis]]
name = "cores"
values = [1, 2]
[[axis]]
name = "device"
values = [
    { as = "BF", device = "forwarder" },
    { as = "LB" },
    { as = "naive", policy = "always", card = "connectx-5-waiting", waits = true },
    { as = "selective", policy = "heavy-hitter", bytes = 15_000, card = "connectx-5-waiting", waits = true },
    { as = "naive-mark", policy = "always", card = "connectx-5-waiting", waits = true, marks = true },
    { as = "naive-async", policy = "always" },
]
[[without]]
device = ["BF"]
entries = ["1 M"]
[[without]]
device = ["selective", "naive-async", "naive", "naive-mark"]
entries = ["1 M"]
[[figure]]
across = "cores"
lines = "device"
metrics = ["throughput"]
[[figure]]
across = "time"
lines = "device"
metrics = ["throughput"]
"#;

const POLICIES: &str = r#"
name = "smoke-policies"
title = "Policies"
comparison = "policy"
[settings]
mix = "frames"
frames = 40
mbit_s = [50, 100]
seconds = 1
load = 0.5
core = "xeon-5217"
[[axis]]
name = "policy"
values = ["never", "always", "heavy-hitter", "auto", "yardstick", "bound"]
[[finding]]
text = "what the card forwards costs no core"
source = "ours"
metric = "cpu"
more = { policy = ["never"] }
than = { policy = ["always", "yardstick"] }
share = 1
"#;

#[test]
fn directions_hold_and_every_file_is_written() {
    let directory = std::env::temp_dir().join(format!("hairpin-reproduce-{}", std::process::id()));
    let _ = fs::remove_dir_all(&directory);
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let experiments = [MATRIX, POLICIES].map(|text| ModelExperiment::parse(text).unwrap());
    let bench = CaseContext::load(0.01, &root.join("profiles"), None).unwrap();
    let cases: Vec<&Case> = experiments.iter().flat_map(|experiment| &experiment.cases).collect();
    let made = Provenance { machine: "here".into(), date: "today".into(), program: "this".into() };
    let effort = PerformOptions { jobs: 2, case_max: Duration::from_secs(300), made };
    let mut store = CaseStore::open(&directory).unwrap();
    let done = perform(&bench, &cases, &effort, &mut store, &mut |_| ()).unwrap();
    let again = perform(&bench, &cases, &effort, &mut store, &mut |_| ()).unwrap();
    let gathered: Vec<Gathered<'_>> =
        experiments.iter().map(|experiment| Gathered::new(experiment, &bench, &store)).collect();
    let failures: Vec<_> = gathered.iter().flat_map(Gathered::failures).collect();
    assert_eq!((done.failed, failures), (0, Vec::new()));
    assert_eq!(again, CasesSummary { kept: cases.len(), ..CasesSummary::default() }, "what came is not done again");
    for one in &gathered {
        let seen = one.seen();
        assert!(
            seen.iter().all(|seen| seen.first().is_some_and(|outcome| outcome.unfaithful == 0)),
            "one backend for each flow"
        );
        for finding in &one.experiment.findings {
            let judgement = finding.judge(&seen, &one.experiment.axes);
            let wanted = if finding.source == "invented" { CaseVerdict::Disagrees } else { CaseVerdict::Agrees };
            assert_eq!(judgement.verdict, wanted, "{}: {judgement:?}", finding.text);
        }
    }
    let circumstances = Circumstances { scale: bench.scale, ..Circumstances::default() };
    let written = write(&gathered, &circumstances, &directory).unwrap();
    // Throughput by cores for each number of entries and run, over time for each of those and each number of cores.
    assert_eq!(written.figures, 2 * 2 + 2 * 2 * 2, "{written:?}");
    let page = fs::read_to_string(&written.page).unwrap();
    assert!(page.contains("<svg") && page.contains("loss is highest at one core") && !page.contains("<script"));
    let (document, tables) = (directory.join("evidence/page.md"), directory.join("tables"));
    write_evidence(&gathered, (None, None), &circumstances, &document, Some(&tables)).unwrap();
    let document = fs::read_to_string(&document).unwrap();
    for text in [
        "**does not agree**",
        "| yardstick |",
        "| here | today | this | 20 |",
        "profiles/connectx-5-waiting.toml",
        "No policy is above the bound.",
    ] {
        assert!(document.contains(text), "{text}");
    }
    let lines = |name: &str| fs::read_to_string(directory.join(name)).unwrap().lines().count();
    assert_eq!(lines("smoke-matrix/cases.csv"), 1 + 2 * 14);
    assert_eq!(lines("smoke-policies/cases.csv"), 1 + 5);
    assert!(lines("smoke-matrix/time.csv") > 24 * 50);
    let rows = |name: &str| fs::read_to_string(tables.join(name)).unwrap().lines().count();
    assert_eq!(
        (rows("smoke-matrix.csv"), rows("smoke-policies.csv"), rows("findings.csv")),
        (1 + 2 * 14, 1 + 6, 1 + 11)
    );
    let figures = fs::read_dir(directory.join("smoke-matrix/figures")).unwrap().count();
    assert_eq!(figures, 2 * written.figures, "an SVG and a PNG of each");
    fs::remove_dir_all(&directory).unwrap();
}

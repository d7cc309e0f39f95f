//! A whole report of made-up results.

use super::*;
use crate::experiment::{Experiment, FindingVerdict, Plan, ResultStore, perform};
use crate::testbed::{Device, LatencySummary, Measurement, Ran, SendRate, Testbed, Trial, TrialProgress, TrialSample};

const FILE_TEXT: &str = r#"
name = "x"
title = "Figures & <tables>"
repetitions = 3
duration = "10ms"
cores = [1, 2, 3]
flows = [1000]
rates = ["max", "search"]
loss_ratios = [0.01]
[search]
resolution = 0.1
trials = 1
[[device]]
kind = "forwarder"
[[device]]
table = "cuckoo++"
[[device]]
table = "global-lock"
[[finding]]
text = "forwarder above cuckoo++"
metric = "throughput"
devices = ["forwarder", "cuckoo++"]
[[finding]]
text = "forwarder below cuckoo++"
metric = "throughput"
devices = ["cuckoo++", "forwarder"]
[[finding]]
text = "alike"
metric = "throughput"
devices = ["cuckoo++", "global-lock"]
within = 0.5
[[finding]]
text = "one is faster"
metric = "throughput"
devices = ["cuckoo++", "global-lock"]
[[finding]]
text = "alike, which they are not"
metric = "throughput"
devices = ["forwarder", "global-lock"]
within = 0.5
[[finding]]
text = "on many cores"
metric = "throughput"
devices = ["cuckoo++", "global-lock"]
cores = 3
"#;

/// Forwards two million a second for each core, balances about one.
struct Model {
    trials: u64,
    starves: bool,
}

impl Testbed for Model {
    fn obstacle(&self, trial: &Trial) -> Option<String> {
        (trial.cores > 2).then(|| "too few cores & so on".to_owned())
    }

    fn measure(&mut self, trial: &Trial, _: &mut dyn FnMut(TrialProgress)) -> Result<Measurement> {
        self.trials += 1;
        let each = match (trial.device, trial.table.as_str()) {
            (Device::Balancer, "cuckoo++") => 1e6 + 1e4 * ((self.trials * 7) % 5) as f64,
            (Device::Balancer, _) => 1e6 + 1e4 * ((self.trials * 3) % 5) as f64,
            _ => 2e6,
        };
        let tx_pps = match trial.rate {
            SendRate::Packets(rate) => rate,
            _ => 9e6,
        };
        let rx_pps = tx_pps.min(each * f64::from(trial.cores));
        let (sent, received) = ((tx_pps / 100.0) as u64, (rx_pps / 100.0) as u64);
        let cumulative = vec![(1000, 0.5), (2000, 0.99), (9000, 1.0)];
        let latency = LatencySummary {
            count: received,
            mean: 1200.0,
            p50: 1000,
            p95: 1900,
            p99: 2000,
            p999: 9000,
            max: 9000,
            cumulative,
            ..LatencySummary::default()
        };
        let sample = |i| TrialSample {
            at: f64::from(i) * 0.005,
            length: 0.005,
            sent: sent / 2,
            received: received / 2,
            ..TrialSample::default()
        };
        let over_time = (0..2).map(sample).collect();
        let lost_by_reason = vec![("ring-full".to_owned(), sent - received)];
        Ok(Measurement {
            seconds: 0.01,
            sent,
            received,
            lost_by_reason,
            tx_pps,
            rx_pps,
            latency,
            over_time,
            unchecked: if self.starves { 7 } else { 0 },
            ran: Some(Ran { device: if self.starves { 0.4 } else { 0.998 }, testers: 1.0 }),
            ..Measurement::default()
        })
    }
}

#[test]
fn report_has_tables_figures_and_missing_results() {
    let directory = std::env::temp_dir().join(format!("hairpin-lab-report-{}", std::process::id()));
    let _ = fs::remove_dir_all(&directory);
    let experiment = Experiment::parse("x.toml", FILE_TEXT, Path::new("")).unwrap();
    let mut model = Model { trials: 0, starves: false };
    let plan = Plan::new(&experiment, &|trial| model.obstacle(trial)).unwrap();
    let mut store = ResultStore::open(&directory, "m").unwrap();
    perform(&experiment, &plan, &mut model, &mut store, &mut |_| ()).unwrap();
    let results = PlanResults::new(&experiment, &plan, &store);
    let verdicts: Vec<FindingVerdict> = experiment.findings.iter().map(|finding| results.judge(finding)).collect();
    assert!(
        matches!(&verdicts[0], FindingVerdict::Confirmed(figures) if figures.contains("2 core(s)")),
        "{verdicts:?}"
    );
    assert!(matches!(verdicts[1], FindingVerdict::Refuted(_)), "{verdicts:?}");
    assert!(matches!(verdicts[2], FindingVerdict::Confirmed(_)), "{verdicts:?}");
    assert!(matches!(verdicts[3], FindingVerdict::Undecided(_)), "{verdicts:?}");
    assert!(matches!(verdicts[4], FindingVerdict::Refuted(_)), "{verdicts:?}");
    assert!(matches!(verdicts[5], FindingVerdict::NotMeasured(_)), "{verdicts:?}");

    let machine = Machine { name: "a <machine>".to_owned(), notes: vec!["quiet".to_owned()] };
    let written = write(&results, &machine, &directory).unwrap();
    assert!(written.figures >= 8, "{written:?}");
    let page = fs::read_to_string(&written.page).unwrap();
    for text in [
        "Figures &amp; &lt;tables&gt;",
        "a &lt;machine&gt;",
        "too few cores &amp; so on",
        "confirmed",
        "not so",
        "<svg",
    ] {
        assert!(page.contains(text), "{text}");
    }
    assert!(!page.contains("<script") && !page.contains("src=") && !page.contains("href="), "it needs nothing else");
    let lines = |name: &str| fs::read_to_string(directory.join(name)).unwrap().lines().count();
    // Three devices, two numbers of cores, three repetitions, three metrics; and the head.
    assert_eq!((lines("results.csv"), lines("search.csv"), lines("summary.csv")), (1 + 18, 1 + 18, 1 + 18));
    assert_eq!(lines("skipped.csv"), 1 + 6);
    let head = fs::read_to_string(directory.join("results.csv")).unwrap();
    for column in [
        "time_s",
        "tx_count",
        "rx_count",
        "tx_pps",
        "rx_pps",
        "loss",
        "latency_mean_ns",
        "latency_p95_ns",
        "latency_p99_ns",
        "device_ran",
        "unchecked",
    ] {
        assert!(head.lines().next().unwrap().split(',').any(|there| there == column), "{column}");
    }
    for entry in fs::read_dir(directory.join("figures")).unwrap() {
        let path = entry.unwrap().path();
        let bytes = fs::read(&path).unwrap();
        let right =
            if path.extension().unwrap() == "png" { bytes.starts_with(b"\x89PNG") } else { bytes.starts_with(b"<svg") };
        assert!(right, "{}", path.display());
    }
    assert!(page.contains("99.8, 100.0") && !page.contains("decide about no finding"));
    // Once more over what is there.
    assert_eq!(write(&results, &machine, &directory).unwrap(), written);
    fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn a_page_says_of_which_cells_nothing_can_be_said() {
    let directory = std::env::temp_dir().join(format!("hairpin-lab-starved-{}", std::process::id()));
    let _ = fs::remove_dir_all(&directory);
    let experiment = Experiment::parse("x.toml", FILE_TEXT, Path::new("")).unwrap();
    let mut model = Model { trials: 0, starves: true };
    let plan = Plan::new(&experiment, &|trial| model.obstacle(trial)).unwrap();
    let mut store = ResultStore::open(&directory, "m").unwrap();
    perform(&experiment, &plan, &mut model, &mut store, &mut |_| ()).unwrap();
    let results = PlanResults::new(&experiment, &plan, &store);
    let written = write(&results, &Machine { name: "m".to_owned(), notes: Vec::new() }, &directory).unwrap();
    let page = fs::read_to_string(&written.page).unwrap();
    assert!(page.contains("decide about no finding") && page.contains("40.0, 100.0"), "{page}");
    assert!(!page.contains("<td>confirmed") && !page.contains("<td>not so"), "no finding is decided");
    // Seven in each of three repetitions.
    assert!(page.contains("0, 21 packets not checked"), "{page}");
    fs::remove_dir_all(&directory).unwrap();
}

//! Files, plans, and whole experiments on a modelled testbed.

use super::*;
use crate::testbed::offload::{OffloadSetting, PolicySetting};
use crate::testbed::{
    Device, FrameSize, LatencySummary, Measurement, Ran, SendRate, Testbed, Trial, TrialProgress, TrialSample,
};
use anyhow::{Result, bail};
use hairpin_diagnostics::{Problem, Problems};
use std::path::{Path, PathBuf};
use std::time::Duration;

const FILE_TEXT: &str = r#"
name = "small"
title = "A small one"
repetitions = 2
duration = "100ms"
runs = [1, 2]
cores = [1, 4]
table_entries = [1_000, 2_000]
flows = [100]
packet_sizes = [64, "natural"]
rates = ["50%", "max", "search"]
loss_ratios = [0.0]
profile = false

[search]
resolution = 0.05
trials = 1

[source]
kind = "synthetic"
transport = "tcp"

[[device]]
kind = "forwarder"

[[device]]
table = "cuckoo++"

[[device]]
name = "offloaded"
engine = "rte-flow"
policy = "first-n"

[[finding]]
text = "the forwarder is faster"
metric = "throughput"
devices = ["forwarder", "cuckoo++"]
"#;

fn parse(text: &str) -> Result<Experiment, Problems> {
    Experiment::parse("x.toml", text, Path::new("/nowhere"))
}

/// Carries so many packets a second for each core, and has four of them; keeps an account of what it was asked for.
#[derive(Default)]
struct Model {
    trials: Vec<Trial>,
    /// Fails after so many trials.
    fails_after: Option<usize>,
    /// Says that more came than was sent.
    lies: bool,
    /// The device's share of its processor, in each trial by its number.
    ran: Option<fn(usize) -> f64>,
}

impl Testbed for Model {
    fn obstacle(&self, trial: &Trial) -> Option<String> {
        (trial.cores > 2).then(|| format!("{} cores asked for, 2 there", trial.cores))
    }

    fn measure(&mut self, trial: &Trial, progress: &mut dyn FnMut(TrialProgress)) -> Result<Measurement> {
        if self.fails_after.is_some_and(|most| self.trials.len() >= most) {
            bail!("the model is broken");
        }
        self.trials.push(trial.clone());
        progress(TrialProgress::Started { device: Vec::new() });
        let limit = if trial.device == Device::Forwarder { 2e6 } else { 1e6 } * f64::from(trial.cores);
        let tx_pps = match trial.rate {
            SendRate::Packets(rate) => rate,
            _ => 4e6,
        };
        let rx_pps = tx_pps.min(limit);
        let seconds = trial.duration.as_secs_f64();
        let (sent, received) = ((tx_pps * seconds) as u64, (rx_pps * seconds) as u64);
        let lost_by_reason = vec![("device-behind".to_owned(), sent - received)];
        let cumulative = vec![(500, 0.5), (1000, 1.0)];
        let latency = LatencySummary {
            count: received,
            min: 400,
            mean: 600.0,
            p50: 500,
            p95: 900,
            p99: 990,
            p999: 999,
            max: 1000,
            cumulative,
        };
        let over_time = vec![TrialSample {
            at: 0.0,
            length: seconds,
            sent,
            received,
            received_bytes: 64 * received,
            latency_mean: 600.0,
        }];
        let received = if self.lies { sent + 1 } else { received };
        let ran = self.ran.map(|of| Ran { device: of(self.trials.len()), testers: 1.0 });
        // Without its processor a device does nothing.
        let rx_pps = rx_pps * ran.map_or(1.0, |ran| ran.device);
        Ok(Measurement {
            ran,
            seconds,
            sent,
            received,
            lost_by_reason,
            tx_pps,
            rx_pps,
            latency,
            over_time,
            ..Measurement::default()
        })
    }
}

/// A directory of its own, gone at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("hairpin-lab-test-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn plan(experiment: &Experiment) -> Plan {
    Plan::new(experiment, &|trial| Model::default().obstacle(trial)).unwrap()
}

fn run(experiment: &Experiment, model: &mut Model, store: &mut ResultStore) -> Result<PlanSummary> {
    perform(experiment, &plan(experiment), model, store, &mut |_| ())
}

#[test]
fn a_file_is_read() {
    let experiment = parse(FILE_TEXT).unwrap();
    assert_eq!(experiment.packet_sizes, [FrameSize::Fixed(64), FrameSize::Natural]);
    assert_eq!(experiment.rates, [RateSetting::Share(0.5), RateSetting::Rate(SendRate::Max), RateSetting::Search]);
    assert_eq!(experiment.duration, Duration::from_millis(100));
    let names: Vec<_> = experiment.subjects.iter().map(|subject| subject.name.as_str()).collect();
    assert_eq!(names, ["forwarder", "cuckoo++", "offloaded"]);
    assert_eq!((experiment.search.resolution, experiment.search.trials), (0.05, 1));
    assert_eq!(experiment.findings[0].devices, ["forwarder", "cuckoo++"]);
}

/// Every mistake is told, with its line and what would be right.
#[test]
fn mistakes_are_told_with_their_lines() {
    let told = |line: &str, text: &str| {
        let problems = parse(text).unwrap_err();
        let told = |one: &Problem| format!("{}:{}: {}; {}", one.file, one.line, one.what, one.remedy).contains(line);
        assert!(problems.0.iter().any(told), "{line}\nnot in\n{problems}");
    };
    let with = |old: &str, new: &str| {
        assert!(FILE_TEXT.contains(old), "{old}");
        FILE_TEXT.replacen(old, new, 1)
    };
    told(
        "x.toml:4: unknown field `repetition` in the file's first part; did you mean `repetitions`?",
        &with("repetitions", "repetition"),
    );
    told(
        "x.toml:5: `duration` is the number 100, not a duration; write a number and its unit",
        &with("\"100ms\"", "100"),
    );
    told("x.toml:6: `runs` is 3, out of range; use 1 to 2", &with("[1, 2]", "[1, 3]"));
    told("x.toml:7: `cores` has 0 entries", &with("[1, 4]", "[]"));
    told("x.toml:7: an entry of `cores` stands twice", &with("[1, 4]", "[1, 1]"));
    told("x.toml:10: an entry of `packet_sizes`; \"63\" is not a frame size", &with("[64,", "[63,"));
    told("x.toml:11: `rates` has a percentage but not \"max\"", &with("\"max\", ", ""));
    told("x.toml:11: an entry of `rates`; \"fast\" is not a rate such as", &with("\"max\"", "\"fast\""));
    told("x.toml:13: `profile` is the text \"no\", not true or false", &with("profile = false", "profile = \"no\""));
    told("x.toml:16: `resolution` is 2, out of range", &with("0.05", "2.0"));
    told("x.toml:20: `kind` is \"synthetc\"; did you mean \"synthetic\"?", &with("\"synthetic\"", "\"synthetc\""));
    told("x.toml:21: `transport` does not belong to a replay source", &with("\"synthetic\"", "\"replay\""));
    told("`file` is missing in [source]", &with("\"synthetic\"", "\"replay\""));
    told("x.toml:27: `table` is \"cuckoo\"", &with("cuckoo++", "cuckoo"));
    told("two devices are named \"cuckoo++\"", &with("name = \"offloaded\"", "name = \"cuckoo++\""));
    told("x.toml:32: policy \"first-n\" with engine \"none\"", &with("engine = \"rte-flow\"\n", "\n"));
    told(
        "`devices` names \"wire\"; the file's devices are forwarder, cuckoo++, offloaded",
        &with("[\"forwarder\", \"c", "[\"wire\", \"c"),
    );
    told("x.toml:2: ", &with("name = \"small\"", "name = \"small"));
    told("`name` is missing", &with("name = \"small\"", ""));
    told("there are 0 devices under test", "name = \"x\"");
    told("the finding is about rate \"10%\", which is not measured", &with("metric = ", "rate = \"10%\"\nmetric = "));
    // All at once.
    let both = with("[1, 2]", "[3]").replacen("0.05", "9", 1);
    assert_eq!(parse(&both).unwrap_err().0.len(), 2);
}

/// A device behind a modelled card, and the mistakes that can be made with one.
#[test]
fn a_modelled_card_is_read() {
    let scenarios = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/scenarios"));
    let with = |device: &str| {
        let head = "name = \"x\"\ncores = [1, 2]\n[source]\ntransport = \"udp\"\n[[device]]\ntable = \"cuckoo++\"\n";
        Experiment::parse("x.toml", &format!("{head}{device}"), scenarios)
    };
    let card = "engine = \"modelled\"\ncard = \"../profiles/connectx-5.toml\"\n";
    let plain = with(card).unwrap();
    assert_eq!(
        (plain.subjects[0].engine.as_str(), plain.subjects[0].policy.as_str()),
        ("modelled:connectx-5", "always")
    );
    let whole = &plain.offloads["cuckoo++"];
    assert_eq!((whole.card.tables.rules_max, &whole.policy), (2_000_000, &PolicySetting::Always));
    let scaled = with(&format!("{card}card_scale = 0.01\npolicy = \"heavy-hitter\"\nduration = \"5ms\"\n")).unwrap();
    let small = &scaled.offloads["cuckoo++"];
    assert_eq!((small.card.tables.rules_max, small.card.updates.waiting_max), (20_000, 64));
    let heavy = PolicySetting::HeavyHitter { packets: None, bytes: None, duration: Some(Duration::from_millis(5)) };
    assert_eq!(small.policy, heavy);
    // Another card is another measurement.
    let key = |experiment: &Experiment| plan(experiment).tasks[0].key(experiment);
    assert_ne!(key(&plain), key(&scaled));
    let of_trial = &plan(&plain).tasks[0].cell.trial(&plain, 0, SendRate::Max).offload;
    assert_eq!(of_trial.as_ref(), Some(whole));
    let text = serde_json::to_string(of_trial).unwrap();
    assert_eq!(&serde_json::from_str::<Option<OffloadSetting>>(&text).unwrap(), of_trial);
    for (device, told) in [
        ("engine = \"modelled\"\n", "`card` is missing"),
        ("engine = \"modelled\"\ncard = \"x.toml\"\n", "`card` \"x.toml\": cannot read it"),
        ("engine = \"modelled\"\ncard = \"smoke.toml\"\n", "`card` \"smoke.toml\": "),
        ("card_scale = 0.5\n", "`card_scale` is of a modelled card, and the engine is \"none\""),
        (&format!("{card}card_scale = 2\n"), "`card_scale` is 2, out of range"),
        (&format!("{card}packets = 5\n"), "`packets` means nothing with engine \"modelled\" and policy \"always\""),
        (&format!("{card}policy = \"content-length\"\n"), "is about HTTP"),
        (&format!("{card}policy = \"decision-tree\"\nmodel = \"smoke.toml\"\n"), "model "),
        (&format!("kind = \"forwarder\"\n{card}"), "there are no connections"),
    ] {
        let problems = with(device).unwrap_err();
        assert!(problems.0.iter().any(|one| one.what.contains(told)), "{told}\nnot in\n{problems}");
    }
}

#[test]
fn rates_are_words() {
    for word in ["max", "search", "80%", "2500000pps"] {
        assert_eq!(word.parse::<RateSetting>().unwrap().to_string(), word);
    }
    for word in ["", "%", "0%", "300%", "NaN%", "x"] {
        assert!(word.parse::<RateSetting>().is_err(), "{word}");
    }
}

#[test]
fn unmeasurable_cases_are_left_out_with_reason() {
    let experiment = parse(FILE_TEXT).unwrap();
    let plan = plan(&experiment);
    // Forwarder: 3 rates, 2 sizes, 1 core number of two; cuckoo++ the same with 2 runs and 2 table sizes.
    assert_eq!(plan.tasks.len(), 2 * (3 * 2 + 3 * 2 * 2 * 2));
    let reasons = |name: &'static str| plan.skipped.iter().filter(move |skipped| skipped.cell.subject.name == name);
    assert!(
        reasons("offloaded").count() > 0 && reasons("offloaded").all(|skipped| skipped.reason.contains("rte-flow"))
    );
    assert!(reasons("cuckoo++").all(|skipped| skipped.cell.cores == 4 && skipped.reason.contains("4 cores")));
    assert!(plan.tasks.iter().all(|task| task.cell.cores == 1));
}

#[test]
fn plan_interleaves_and_orders_part_speeds() {
    let experiment = parse(FILE_TEXT).unwrap();
    let tasks = plan(&experiment).tasks;
    let repetitions: Vec<u32> = tasks.iter().map(|task| task.repetition).collect();
    assert!(repetitions.is_sorted());
    for repetition in 0..2 {
        let of: Vec<_> = tasks.iter().filter(|task| task.repetition == repetition).collect();
        let at = |asked: RateSetting| of.iter().position(|task| task.cell.asked == asked).unwrap();
        let last_max = of.iter().rposition(|task| task.cell.asked == RateSetting::Rate(SendRate::Max)).unwrap();
        assert!(last_max < at(RateSetting::Share(0.5)) && at(RateSetting::Share(0.5)) < at(RateSetting::Search));
    }
    let first = |repetition| tasks.iter().find(|task| task.repetition == repetition).unwrap().cell.subject.name.clone();
    assert_ne!(first(0), first(1), "the second repetition goes backwards");
    let keys: std::collections::BTreeSet<String> = tasks.iter().map(|task| task.key(&experiment)).collect();
    assert_eq!(keys.len(), tasks.len(), "every task has a key of its own");
}

#[test]
fn plan_runs_once_part_speed_is_per_device() {
    let scratch = Scratch::new("whole");
    let experiment = parse(FILE_TEXT).unwrap();
    let (mut model, mut store) = (Model::default(), ResultStore::open(&scratch.0, "m").unwrap());
    let (mut begun, mut ended, mut lefts) = (0, 0, Vec::new());
    let plan = plan(&experiment);
    let done = perform(&experiment, &plan, &mut model, &mut store, &mut |event| match event {
        PlanEvent::Begin { done, total, left, .. } => {
            assert_eq!((done, total), (begun, plan.tasks.len()));
            begun += 1;
            lefts.push(left);
        }
        PlanEvent::End(_) => ended += 1,
        _ => {}
    });
    assert_eq!(done.unwrap(), PlanSummary { kept: 0, new: plan.tasks.len(), failed: 0 });
    assert_eq!((begun, ended, store.records().len()), (plan.tasks.len(), plan.tasks.len(), plan.tasks.len()));
    assert!(lefts.iter().all(|left| *left > Duration::ZERO));
    let half =
        |record: &&ResultRecord| record.cell.asked == RateSetting::Share(0.5) && record.cell.subject.name == "cuckoo++";
    let halves: Vec<_> = store.records().iter().filter(half).collect();
    assert!(!halves.is_empty());
    for record in halves {
        let RecordOutcome::Measured(measured) = &record.came else { panic!("{record:?}") };
        assert_eq!(measured.tx_pps, 5e5);
    }
    let found = store.records().iter().filter_map(|record| match (&record.came, record.cell.subject.device) {
        (RecordOutcome::Searched(outcome), Device::Balancer) => outcome.found.rate(),
        _ => None,
    });
    assert!(found.clone().count() > 0 && found.clone().all(|rate| (0.9e6..=1.001e6).contains(&rate)));
}

#[test]
fn a_run_that_was_killed_goes_on() {
    let scratch = Scratch::new("resume");
    let experiment = parse(&FILE_TEXT.replacen(", \"search\"", "", 1)).unwrap();
    let total = plan(&experiment).tasks.len();
    // Killed: the program ends in the middle of a line.
    let mut store = ResultStore::open(&scratch.0, "m").unwrap();
    let mut short = plan(&experiment);
    short.tasks.truncate(7);
    perform(&experiment, &short, &mut Model::default(), &mut store, &mut |_| ()).unwrap();
    drop(store);
    let file = scratch.0.join(FILE);
    let mut text = std::fs::read_to_string(&file).unwrap();
    text.push_str("{\"Ended\":{\"key\":\"12");
    std::fs::write(&file, text).unwrap();
    let (mut model, mut store) = (Model::default(), ResultStore::open(&scratch.0, "m").unwrap());
    let done = run(&experiment, &mut model, &mut store).unwrap();
    assert_eq!((done.kept, done.new, model.trials.len()), (7, total - 7, total - 7));
    // Once more: nothing is left to do. A longer duration is another measurement.
    drop(store);
    let (mut model, mut store) = (Model::default(), ResultStore::open(&scratch.0, "m").unwrap());
    assert_eq!(run(&experiment, &mut model, &mut store).unwrap(), PlanSummary { kept: total, new: 0, failed: 0 });
    let longer = Experiment { duration: Duration::from_millis(200), ..experiment };
    assert_eq!(run(&longer, &mut model, &mut store).unwrap().new, total);
    drop(store);
    let refused = ResultStore::open(&scratch.0, "another").unwrap_err();
    assert!(format!("{refused:#}").contains("another machine"), "{refused:#}");
}

#[test]
fn failures_are_kept_with_their_reason_and_tried_again() {
    let scratch = Scratch::new("failures");
    let experiment = parse(&FILE_TEXT.replacen(", \"search\"", "", 1)).unwrap();
    let total = plan(&experiment).tasks.len();
    let mut store = ResultStore::open(&scratch.0, "m").unwrap();
    let mut model = Model { fails_after: Some(3), ..Model::default() };
    let refused = run(&experiment, &mut model, &mut store).unwrap_err().to_string();
    assert!(refused.contains("10 in a row") && refused.contains("the model is broken"), "{refused}");
    let failed = store.records().iter().filter(|record| matches!(record.came, RecordOutcome::Failed(_)));
    assert_eq!((failed.count(), store.records().len()), (10, 13));
    let done = run(&experiment, &mut Model::default(), &mut store).unwrap();
    assert_eq!(done, PlanSummary { kept: 3, new: total - 3, failed: 0 });
    assert_eq!(store.records().len(), total);
}

/// Repetitions in which the device had its processor count; the others do not.
#[test]
fn starved_device_is_not_called_slow() {
    let experiment = parse(&FILE_TEXT.replacen(", \"search\"", "", 1)).unwrap();
    let plan = plan(&experiment);
    let with = |name: &str, ran: fn(usize) -> f64| {
        let scratch = Scratch::new(name);
        let mut store = ResultStore::open(&scratch.0, "m").unwrap();
        run(&experiment, &mut Model { ran: Some(ran), ..Model::default() }, &mut store).unwrap();
        let results = PlanResults::new(&experiment, &plan, &store);
        let most = RateSetting::Rate(SendRate::Max);
        let rates = results.cells.iter().filter(|(cell, _)| cell.asked == most).flat_map(|(cell, all)| {
            let device = cell.subject.device;
            all.iter().map(move |measured| (device, measured.rx_pps))
        });
        let verdict = results.judge(&experiment.findings[0]);
        (results.starved, results.starved_cells(), rates.collect::<Vec<_>>(), verdict)
    };
    // The second repetition is that of the second half.
    let half = plan.tasks.len() / 2;
    assert_eq!(half, 20);
    let (starved, cells, rates, _) = with("half", |trial| if trial > 20 { 0.3 } else { 0.99 });
    assert_eq!((starved, cells), (20, 0));
    assert!(rates.iter().all(|(device, rate)| *rate > if *device == Device::Forwarder { 1.9e6 } else { 0.9e6 }));
    let (starved, cells, rates, verdict) = with("never", |_| 0.3);
    assert_eq!((starved, cells, rates.len()), (0, 20, 20));
    assert!(
        matches!(&verdict, FindingVerdict::Undecided(said) if said.contains("kept from its processor")),
        "{verdict:?}"
    );
}

#[test]
fn a_file_is_measured_shorter_and_says_so() {
    let mut experiment = parse(FILE_TEXT).unwrap();
    assert!(experiment.shorten(Duration::from_millis(1)).is_err() && experiment.otherwise.is_empty());
    experiment.shorten(Duration::from_millis(50)).unwrap();
    experiment.repeat(1);
    assert_eq!((experiment.duration, experiment.repetitions), (Duration::from_millis(50), 1));
    assert!(experiment.search.first <= experiment.duration && experiment.search.last <= experiment.duration);
    assert_eq!(experiment.otherwise, ["trials of 50ms instead of 100ms", "1 repetition(s) instead of 2"]);
}

#[test]
fn a_measurement_that_does_not_add_up_is_none() {
    let scratch = Scratch::new("sums");
    let experiment = parse(&FILE_TEXT.replacen(", \"search\"", "", 1)).unwrap();
    let mut store = ResultStore::open(&scratch.0, "m").unwrap();
    let mut model = Model { lies: true, ..Model::default() };
    assert!(run(&experiment, &mut model, &mut store).is_err());
    let lies = |record: &ResultRecord| matches!(&record.came, RecordOutcome::Failed(reason) if reason.contains("packets received of"));
    assert!(store.records().iter().all(lies));
}

#[test]
fn crashing_case_is_not_retried_forever() {
    let scratch = Scratch::new("ends");
    let experiment = parse(&FILE_TEXT.replacen(", \"search\"", "", 1)).unwrap();
    // The last one: nothing is a part of it.
    let key = plan(&experiment).tasks.last().unwrap().key(&experiment);
    for _ in 0..3 {
        ResultStore::open(&scratch.0, "m").unwrap().begin(&key).unwrap();
    }
    let (mut model, mut store) = (Model::default(), ResultStore::open(&scratch.0, "m").unwrap());
    let done = run(&experiment, &mut model, &mut store).unwrap();
    assert_eq!((done.failed, done.new), (1, plan(&experiment).tasks.len() - 1));
    assert!(
        matches!(&store.of(&key).unwrap().came, RecordOutcome::Failed(reason) if reason.contains("ended the whole program"))
    );
}

#[test]
fn the_scenarios_are_right() {
    let directory = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/scenarios"));
    let mut seen = 0;
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "toml") {
            let experiment = Experiment::load(&path).unwrap_or_else(|problems| panic!("{problems}"));
            assert!(!experiment.title.is_empty() && !experiment.notes.is_empty(), "{}", path.display());
            Plan::new(&experiment, &|_| None).unwrap();
            seen += 1;
        }
    }
    assert!(seen >= 3, "{seen}");
}

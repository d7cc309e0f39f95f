//! Files, rules, stores, comparisons: without a testbed. Whole runs are in tests/reproduce.rs.

use super::comparison::{PromiseKept, Scenario};
use super::file::{Case, CasePlace, ModelExperiment};
use super::finding::{CaseFinding, CaseVerdict, Judgement, SeenRun};
use super::outcome::{Outcome, OutcomeBound};
use super::sensitivity::Variation;
use super::settings::{DeviceKind, PolicyKind};
use super::*;
use std::path::Path;
use std::time::Duration;

const FILE_TEXT: &str = r#"
name = "x"
title = "X"
[settings]
flows = 1000
[[axis]]
name = "device"
values = [{ as = "BF", device = "forwarder" }, { as = "LB" }, { as = "naive", policy = "always" }]
[[axis]]
name = "cores"
values = [1, 2, 4]
[[axis]]
name = "entries"
values = [2_000_000, 4_000_000]
[[without]]
device = ["BF"]
entries = ["4 M"]
[[figure]]
across = "cores"
lines = "device"
metrics = ["throughput", "loss"]
"#;

fn experiment() -> ModelExperiment {
    ModelExperiment::parse(FILE_TEXT).unwrap()
}

#[test]
fn every_combination_that_is_not_left_out_is_a_case() {
    let experiment = experiment();
    assert_eq!(experiment.cases.len(), 3 + 6 + 6);
    let case = |place: [&str; 3]| -> Option<&Case> {
        let is = |case: &&Case| case.place.iter().zip(place).all(|((_, value), wanted)| value == wanted);
        experiment.cases.iter().find(is)
    };
    assert_eq!(case(["BF", "1", "4 M"]), None);
    let naive = &case(["naive", "4", "4 M"]).unwrap().settings;
    assert_eq!((naive.policy, naive.cores, naive.entries, naive.flows), (PolicyKind::Always, 4, 4_000_000, 1000));
    assert_eq!(case(["BF", "2", "2 M"]).unwrap().settings.device, DeviceKind::Forwarder);
    let mut names: Vec<String> = experiment.cases.iter().map(Case::name).collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 15, "names are unique");
}

#[test]
fn mistakes_in_files_are_found() {
    for (from, to, says) in [
        ("flows = 1000", "flow = 1000", "unknown field"),
        ("[1, 2, 4]", "[1, 2, 2]", "twice"),
        ("[1, 2, 4]", "[]", "no values"),
        ("[1, 2, 4]", "[0]", "cores is 0"),
        ("as = \"LB\"", "is = \"LB\"", "as ="),
        ("across = \"cores\"", "across = \"core\"", "no axis `core`"),
        ("\"loss\"", "\"los\"", "no metric `los`"),
        ("policy = \"always\"", "policy = \"sometimes\"", "unknown variant"),
        ("device = \"forwarder\"", "device = \"forwarder\", policy = \"auto\"", "forwarder has no policy"),
        ("name = \"x\"", "name = \"x/y\"", "letters"),
    ] {
        let text = FILE_TEXT.replacen(from, to, 1);
        assert_ne!(text, FILE_TEXT, "{from}");
        let error = format!("{:#}", ModelExperiment::parse(&text).expect_err(to));
        assert!(error.contains(says), "{to}: {error}");
    }
}

#[test]
fn the_files_that_come_along_are_right() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let experiments = ModelExperiment::load_all(&root.join("experiments")).unwrap();
    let names: Vec<&str> = experiments.iter().map(|experiment| experiment.name.as_str()).collect();
    for name in ["matrix", "policies", "thresholds", "rates", "insertion", "lifetimes", "expiry", "mixes"] {
        assert!(names.contains(&name), "{name} is not among {names:?}");
    }
    // Every case's profiles are there.
    let bench = CaseContext::load(0.1, &root.join("profiles"), None).unwrap();
    for case in experiments.iter().flat_map(|experiment| &experiment.cases) {
        assert!(bench.knows(&case.settings), "{}", case.name());
    }
}

/// Places on the axes of `FILE_TEXT`, throughput in Mpps for each.
fn judged(finding: &str, throughputs: &[(&str, &str, &str, u8, f64)]) -> Judgement {
    let outcomes: Vec<(CasePlace, u8, Outcome)> = throughputs
        .iter()
        .map(|(device, cores, entries, run, mpps)| {
            let place = [("device", device), ("cores", cores), ("entries", entries)];
            let place = place.map(|(axis, value)| (axis.to_owned(), (*value).to_owned()));
            (place.to_vec(), *run, Outcome { received_pps: mpps * 1e6, ..Outcome::default() })
        })
        .collect();
    let seen: Vec<SeenRun<'_>> = outcomes
        .iter()
        .map(|(place, run, outcome)| SeenRun { place, run: *run, outcomes: vec![(1, outcome)] })
        .collect();
    let finding: CaseFinding =
        toml::from_str(&format!("text = \"t\"\nsource = \"s\"\nmetric = \"throughput\"\n{finding}")).unwrap();
    finding.check().unwrap();
    finding.judge(&seen, &experiment().axes)
}

#[test]
fn findings_compare_what_stands_at_the_same_place() {
    let measured = [
        ("BF", "1", "2 M", 1, 8.0),
        ("LB", "1", "2 M", 1, 5.0),
        ("LB", "1", "4 M", 1, 9.0),
        ("BF", "2", "2 M", 1, 9.5),
        ("LB", "2", "2 M", 1, 9.0),
        // Of another run: not to be compared with the rest.
        ("LB", "2", "2 M", 2, 20.0),
    ];
    let forwarder = "more = { device = [\"BF\"] }\nthan = { device = [\"LB\"] }\n";
    let judgement = judged(forwarder, &measured);
    assert_eq!(judgement.verdict, CaseVerdict::Agrees, "{judgement:?}");
    assert!(judgement.figures.starts_with("2 of 2 pairs"), "{judgement:?}");
    // With any table: 8 against 9 is not so.
    let judgement = judged(&format!("{forwarder}any = [\"entries\"]"), &measured);
    assert_eq!(judgement.verdict, CaseVerdict::InPart);
    assert_eq!(judgement.exceptions, ["device BF, cores 1, entries 2 M, run 1 (8.00 and 9.00)"]);
    assert_eq!(judged(&format!("{forwarder}any = [\"entries\"]\nshare = 0.6"), &measured).verdict, CaseVerdict::Agrees);
    assert_eq!(judged(&format!("{forwarder}by = 0.1"), &measured).verdict, CaseVerdict::InPart);
    let turned = "more = { device = [\"LB\"] }\nthan = { device = [\"BF\"] }\n";
    assert_eq!(judged(turned, &measured).verdict, CaseVerdict::Disagrees);
    assert_eq!(judged(&format!("{turned}where = {{ cores = [\"4\"] }}"), &measured).verdict, CaseVerdict::NotMeasured);
}

#[test]
fn rules_are_what_they_say() {
    let measured = [
        ("BF", "1", "2 M", 1, 8.0),
        ("LB", "1", "2 M", 1, 5.0),
        ("BF", "4", "2 M", 1, 9.0),
        ("LB", "4", "2 M", 1, 8.9),
    ];
    let pair = "more = { device = [\"LB\"] }\nthan = { device = [\"BF\"] }\n";
    let verdict = |rest: &str| judged(&format!("{pair}{rest}"), &measured).verdict;
    assert_eq!(verdict("rule = \"no-less\""), CaseVerdict::Disagrees);
    assert_eq!(verdict("rule = \"no-less\"\nby = 0.02"), CaseVerdict::InPart);
    assert_eq!(verdict("rule = \"no-less\"\nby = 0.4"), CaseVerdict::Agrees);
    assert_eq!(verdict("rule = \"no-less\"\nbeyond = 3"), CaseVerdict::Agrees);
    assert_eq!(verdict("rule = \"alike\"\nby = 0.02"), CaseVerdict::InPart);
    assert_eq!(verdict("rule = \"alike\"\nby = 0.4"), CaseVerdict::Agrees);
    assert_eq!(verdict("rule = \"narrows\"\nalong = \"cores\""), CaseVerdict::Agrees);
    assert_eq!(verdict("rule = \"narrows\"\nalong = \"cores\"\nby = 0.99"), CaseVerdict::Disagrees);
    let most = |most: f64| judged(&format!("rule = \"at-most\"\nmore = {{}}\nbeyond = {most}"), &measured).verdict;
    assert_eq!((most(9.0), most(8.5), most(1.0)), (CaseVerdict::Agrees, CaseVerdict::InPart, CaseVerdict::Disagrees));
}

#[test]
fn pairs_within_the_seeds_intervals_are_open() {
    let place = |device: &str, cores: &str| -> CasePlace {
        let place = [("device", device), ("cores", cores), ("entries", "2 M")];
        place.map(|(axis, value)| (axis.to_owned(), value.to_owned())).to_vec()
    };
    // At one core the same with every seed, at two cores it depends on the seed.
    let outcomes: Vec<(CasePlace, Vec<Outcome>)> = [
        ("BF", "1", [9.0, 9.1, 9.0]),
        ("LB", "1", [8.0, 8.1, 8.0]),
        ("BF", "2", [9.0, 9.0, 9.0]),
        ("LB", "2", [8.0, 9.9, 9.0]),
    ]
    .map(|(device, cores, mpps)| {
        let outcome = |mpps: f64| Outcome { received_pps: mpps * 1e6, ..Outcome::default() };
        (place(device, cores), mpps.map(outcome).to_vec())
    })
    .to_vec();
    let seen: Vec<SeenRun<'_>> = outcomes
        .iter()
        .map(|(place, outcomes)| SeenRun { place, run: 1, outcomes: (1..).zip(outcomes).collect() })
        .collect();
    let judged = |share: f64| {
        let text = format!(
            "text = \"t\"\nsource = \"s\"\nmetric = \"throughput\"\nshare = {share}\n\
             more = {{ device = [\"BF\"] }}\nthan = {{ device = [\"LB\"] }}\n"
        );
        toml::from_str::<CaseFinding>(&text).unwrap().judge(&seen, &experiment().axes)
    };
    let all = judged(1.0);
    assert_eq!((all.verdict, all.is_open), (CaseVerdict::Agrees, true), "{all:?}");
    assert_eq!(all.said(), "agrees, open");
    assert!(all.figures.starts_with("2 of 2 pairs, 1 open; received, Mpps: 9.02 ±"), "{}", all.figures);
    // One pair is enough here, and that one is sure.
    let half = judged(0.5);
    assert_eq!((half.verdict, half.is_open), (CaseVerdict::Agrees, false), "{half:?}");
}

#[test]
fn stand_ins_are_judged_in_place_of_others() {
    let text = FILE_TEXT.replacen(
        "[[figure]]",
        "[instead]\ntitle = \"other\"\naxis = \"device\"\nvalues = { LB = \"naive\" }\n[[figure]]",
        1,
    );
    let experiment = ModelExperiment::parse(&text).unwrap();
    let by = experiment.instead.as_ref().unwrap();
    let finding = |more: &str, than: &str| -> CaseFinding {
        let text = format!(
            "text = \"t\"\nsource = \"s\"\nmetric = \"loss\"\n\
             more = {{ device = [\"{more}\"] }}\nthan = {{ device = [\"{than}\"] }}\n"
        );
        toml::from_str(&text).unwrap()
    };
    assert_eq!(finding("BF", "LB").instead(by), Some(finding("BF", "naive")));
    assert_eq!(finding("BF", "naive").instead(by), None);
    let wrong = text.replacen("LB = \"naive\"", "LB = \"nave\"", 1);
    assert!(format!("{:#}", ModelExperiment::parse(&wrong).unwrap_err()).contains("no value `nave`"));
}

#[test]
fn repetitions_have_seeds_and_names_of_their_own() {
    let once = experiment();
    let thrice = experiment().repeated(3);
    assert_eq!(thrice.cases.len(), 3 * once.cases.len());
    assert_eq!(thrice.cases[..once.cases.len()], once.cases, "the first seed's cases are what they were");
    let seeds: Vec<u64> = thrice.cases.iter().step_by(once.cases.len()).map(|case| case.settings.seed).collect();
    assert_eq!(seeds, [1, 2, 3]);
    let mut names: Vec<String> = thrice.cases.iter().map(Case::name).collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), thrice.cases.len());
}

#[test]
fn constant_at_another_value_is_another_case_where_it_matters() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let variations = Variation::load_all(&root.join("sensitivity.toml")).unwrap();
    assert!(variations.len() > 10);
    let load = |variation| CaseContext::load_varied(0.1, &root.join("profiles"), None, variation).unwrap();
    let plain = load(None);
    let text = FILE_TEXT.replacen("flows = 1000", "flows = 1000\ncore = \"xeon-5217\"", 1);
    let experiment = ModelExperiment::parse(&text).unwrap();
    let case = |device: &str| experiment.cases.iter().find(|case| case.place[0].1 == device).unwrap();
    let mut marking = case("naive").clone();
    marking.settings.marks = true;
    for variation in &variations {
        let varied = load(Some(variation));
        let differs = |case: &Case| plain.fingerprint(case) != varied.fingerprint(case);
        let (alone, forwards, marks) = (differs(case("LB")), differs(case("naive")), differs(&marking));
        let wanted = match variation.name.as_str() {
            name if name.starts_with("card") => (false, true, true),
            name if name.starts_with("mark") => (false, false, true),
            _ => (true, true, true),
        };
        assert_eq!((alone, forwards, marks), wanted, "{} {}", variation.name, variation.value);
    }
}

#[test]
fn auto_keeps_its_promises() {
    // Processor time, p99, loss, packets offloaded.
    let outcome = |cpu_ns: f64, latency_p99: f64, loss: f64, offloaded_packets: f64| Outcome {
        cpu_ns,
        latency_p99,
        loss,
        offloaded_packets,
        offered_pps: 1e6,
        received_pps: 1e6,
        ..Outcome::default()
    };
    let compared = |auto: Outcome, most: f64| {
        let bound = Outcome { bound: Some(OutcomeBound { saved: most, rule_packets: 2.0 }), ..Outcome::default() };
        let policies = [
            ("never", outcome(200.0, 1000.0, 0.0, 0.0)),
            ("always", outcome(120.0, 900.0, 0.0, 0.4)),
            ("auto", auto),
            ("yardstick", outcome(100.0, 900.0, 0.0, 0.5)),
        ];
        let place = |policy: &str| vec![("mix".to_owned(), "m".to_owned()), ("policy".to_owned(), policy.to_owned())];
        let places: Vec<CasePlace> = policies.iter().map(|(policy, _)| place(policy)).collect();
        let seen = policies.iter().zip(&places);
        let seen = seen.map(|((_, outcome), place)| SeenRun { place, run: 1, outcomes: vec![(1, outcome)] }).collect();
        let at_bound = place("bound");
        let bounds = vec![SeenRun { place: &at_bound, run: 1, outcomes: vec![(1, &bound)] }];
        let scenarios = Scenario::all(seen, bounds, "policy");
        assert_eq!((scenarios.len(), scenarios[0].best()), (1, Some(("always", 40.0))));
        PromiseKept::of(&scenarios)
    };
    let good = compared(outcome(108.0, 1005.0, 0.0, 0.46), 0.5);
    assert_eq!((good.best_of, good.bound_of, good.never_of), (1, 1, 1));
    assert!(good.not_best.is_empty() && good.not_near.is_empty() && good.worse.is_empty(), "{good:?}");
    assert!(good.above.is_empty(), "{good:?}");
    // Requests cost 2 packets each: of 0.46 saved, 0.06 are left.
    let dear = compared(Outcome { inserted_per_s: 2e5, ..outcome(108.0, 1005.0, 0.0, 0.46) }, 0.5);
    assert_eq!(dear.not_near, ["mix m: auto 6.0 %, bound 50.0 %"]);
    let bad = compared(outcome(130.0, 1100.0, 0.001, 0.4), 0.5);
    assert_eq!((bad.not_best.len(), bad.not_near.len(), bad.worse.len()), (1, 1, 2), "{bad:?}");
    assert_eq!((good.near_share(), bad.near_share()), (1.0, 0.0));
    let none = compared(outcome(108.0, 1005.0, 0.0, 0.46), 0.45);
    assert_eq!(none.above.len(), 2, "auto and the yardstick save more: {none:?}");
}

/// A directory that goes when the test does.
struct Scratch(std::path::PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("hairpin-virtual-time-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn record_counts_with_the_recordings_at_hand() {
    let recordings = |units| Some(Recordings { units, packets: 10, flows: 2 });
    let record = |came: CaseOutcome, units| CaseRecord {
        name: "a".to_owned(),
        fingerprint: "1".to_owned(),
        took: 1.0,
        worked: None,
        made: None,
        recordings: recordings(units),
        came,
    };
    let runs = CaseOutcome::Runs(vec![Outcome { loss: 0.5, ..Outcome::default() }]);
    let records = [record(runs, 1), record(CaseOutcome::Failed("why".to_owned()), 2)];
    let store = CaseStore::of(&records.each_ref().map(|record| serde_json::to_string(record).unwrap()).join("\n"));
    assert_eq!(store.find("a", "1", recordings(1)), Some(&records[0]));
    assert_eq!(store.find("a", "1", None), Some(&records[1]), "without recordings at hand the last one");
    assert_eq!((store.find("a", "1", recordings(3)), store.find("a", "2", None)), (None, None));
}

#[test]
fn a_case_that_fails_is_reported_and_the_others_go_on() {
    let scratch = Scratch::new("failing");
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = "name = \"x\"\ntitle = \"X\"\n[settings]\nflows = 100\npps = 1000\nseconds = 0.01\ncore = \"xeon-5217\"\n\
                [[axis]]\nname = \"core\"\nvalues = [\"xeon-5217\", \"none-such\"]\n";
    let experiments = [ModelExperiment::parse(text).unwrap()];
    let bench = CaseContext::load(1.0, &root.join("profiles"), None).unwrap();
    let cases: Vec<&Case> = experiments[0].cases.iter().collect();
    let made = crate::records::Provenance { machine: "here".into(), date: "today".into(), program: "this".into() };
    let effort = PerformOptions { jobs: 2, case_max: Duration::from_secs(60), made };
    let mut store = CaseStore::open(&scratch.0).unwrap();
    let mut heard = 0;
    let done = perform(&bench, &cases, &effort, &mut store, &mut |event| {
        heard += u32::from(matches!(event, CasesEvent::Done(_)));
    });
    let done = done.unwrap();
    assert_eq!((done.new, done.failed, done.kept, heard), (1, 1, 0, 2));
    // Once more: what came is kept.
    let done = perform(&bench, &cases, &effort, &mut store, &mut |_| ()).unwrap();
    assert_eq!((done.new, done.failed, done.kept), (0, 1, 1));
    let gathered = [Gathered::new(&experiments[0], &bench, &store)];
    assert_eq!(gathered[0].seen().len(), 1);
    let circumstances = Circumstances { scale: 1.0, ..Circumstances::default() };
    let parts = document::DocumentParts {
        gathered: &gathered,
        beside: None,
        sensitivity: None,
        circumstances: &circumstances,
        figures: &[],
        prefix: "",
        tables: "",
    };
    let text = document::document(&parts);
    assert!(text.contains("1 of 2 cases have no result") && text.contains("no core profile none-such"), "{text}");
}

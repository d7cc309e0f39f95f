use super::finding::{CardFinding, SeenCase};
use super::outcome::CardOutcome;
use super::*;
use crate::virtual_time::finding::CaseVerdict;
use std::path::PathBuf;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn bench() -> CardBench {
    CardBench::load(&root().join("laconic/cards.toml"), &root().join("profiles")).unwrap()
}

fn case(cores: u16, offload: &str, seed: u64) -> LaconicCase {
    LaconicCase {
        nic: "bluefield-2".into(),
        ports: 2,
        cores,
        size: "1 MB".into(),
        offload: offload.into(),
        latency: false,
        seed,
        vary: None,
    }
}

fn verdict(finding: &str, goodputs: &[(u16, &str, u64, f64)]) -> CaseVerdict {
    let cases: Vec<(LaconicCase, CardOutcome)> = goodputs
        .iter()
        .map(|&(cores, offload, seed, goodput)| {
            (case(cores, offload, seed), CardOutcome { goodput, ..CardOutcome::default() })
        })
        .collect();
    let seen: Vec<SeenCase<'_>> = cases.iter().map(|(case, outcome)| SeenCase { case, outcome }).collect();
    let finding: CardFinding =
        toml::from_str(&format!("id = \"laconic-line-rate\"\nmetric = \"goodput\"\n{finding}")).unwrap();
    finding.check().unwrap();
    finding.judge(&seen, &bench()).verdict
}

#[test]
fn verdicts_follow_from_what_came() {
    let all = "at = { cores = [\"7\"], offload = [\"none\"] }\n";
    let came = |goodput| [(7, "none", 1, goodput)];
    let at_least = format!("{all}rule = \"at-least\"\nvalue = 150");
    assert_eq!(verdict(&at_least, &came(151.0)), CaseVerdict::Agrees);
    // A planted wrong result turns it.
    assert_eq!(verdict(&at_least, &came(149.0)), CaseVerdict::Disagrees);
    assert_eq!(verdict(&format!("{at_least}\nby = 0.05"), &came(149.0)), CaseVerdict::Agrees);
    let near = format!("{all}over_value = 10\nrule = \"near\"\nvalue = 8\nby = 0.1");
    assert_eq!(verdict(&near, &came(80.0)), CaseVerdict::Agrees);
    assert_eq!(verdict(&near, &came(90.0)), CaseVerdict::Disagrees);
    assert_eq!(verdict(&near, &[]), CaseVerdict::NotMeasured);
    let seeds = [(7, "none", 1, 151.0), (7, "none", 2, 149.0)];
    assert_eq!(verdict(&at_least, &seeds), CaseVerdict::InPart);
}

#[test]
fn a_place_is_compared_with_its_own_seed() {
    let finding = "at = { cores = [\"7\"], offload = [\"none\"] }\nover = { cores = [\"1\"] }\n";
    let seen = |seven: f64| [(1, "none", 1, 10.0), (1, "none", 2, 40.0), (1, "all", 1, 1.0), (7, "none", 1, seven)];
    let at_most = format!("{finding}rule = \"at-most\"\nvalue = 3.5");
    assert_eq!(verdict(&at_most, &seen(30.0)), CaseVerdict::Agrees);
    assert_eq!(verdict(&at_most, &seen(36.0)), CaseVerdict::Disagrees);
    let linear = format!("{finding}linear = true\nrule = \"at-least\"\nvalue = 1\nby = 0.1");
    assert_eq!(verdict(&linear, &seen(69.0)), CaseVerdict::Agrees);
    assert_eq!(verdict(&linear, &seen(60.0)), CaseVerdict::Disagrees);
    // Seven times 40 is more than two ports carry.
    let full = [(1, "none", 1, 40.0), (7, "none", 1, 185.0)];
    assert_eq!(verdict(&linear, &full), CaseVerdict::Agrees);
}

#[test]
fn the_file_is_sound() {
    let bench = bench();
    let cases = bench.experiment.cases();
    let varied = bench.experiment.varied();
    assert!(cases.len() > 200 && varied.len() > 50, "{} cases, {} varied", cases.len(), varied.len());
    let mut names: Vec<String> = cases.iter().chain(&varied).map(LaconicCase::name).collect();
    let mut fingerprints: Vec<String> = cases.iter().chain(&varied).map(|case| bench.fingerprint(case)).collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), cases.len() + varied.len());
    fingerprints.sort();
    fingerprints.dedup();
    // A guess without effect in a case leaves it as it is, but every case of its own has its own.
    assert!(fingerprints.len() > cases.len(), "{} of {}", fingerprints.len(), names.len());
    for finding in bench.experiment.finding.iter().filter(|finding| finding.linear || !finding.over.is_empty()) {
        let needed = cases.iter().filter(|case| finding.needs(case)).count();
        assert!(needed > 1, "{} is divided by nothing", finding.id);
    }
}

#[test]
fn nonsense_in_the_file_is_refused() {
    let text = std::fs::read_to_string(root().join("laconic/cards.toml")).unwrap();
    for (from, to, why) in [
        ("id = \"laconic-line-rate\"", "id = \"laconic-no-such\"", "no finding laconic-no-such"),
        ("metric = \"goodput\"\nat", "metric = \"speed\"\nat", "no metric `speed`"),
        (
            "size = [\"16 MB\"], offload = [\"1 MB\"] }\nover_value",
            "size = [\"17 MB\"], offload = [\"1 MB\"] }\nover_value",
            "no case is at its place",
        ),
        ("number = \"l2.factor\"", "number = \"l2.size\"", "no number is called l2.size"),
        ("seeds = [1, 2, 3]", "seeds = []", "there is no seed"),
    ] {
        let changed = text.replacen(from, to, 1);
        assert_ne!(text, changed, "{from}");
        let wrong = format!("{:#}", CardExperiment::parse(&changed).unwrap_err());
        assert!(wrong.contains(why), "{wrong}");
    }
}

/// The profile's calibration: table 3, each row performed anew, within a few percent.
#[test]
fn calibrated_points_are_reproduced() {
    let bench = bench();
    for (size, paper) in document::TABLE_3.into_iter().take(4) {
        let case = LaconicCase { ports: 1, size: size.to_owned(), ..case(1, "none", 1) };
        let outcome = bench.perform(&case, &mut |_| {}).unwrap();
        let off = outcome.core_mpps / paper - 1.0;
        assert!(off.abs() < 0.07, "{size}: {} Mpps, {paper} in the paper: {outcome:?}", outcome.core_mpps);
    }
}

#[test]
fn page_says_what_is_missing() {
    let bench = bench();
    let store = CardStore::of("");
    let page = CardsPage::new(&bench, &store);
    assert!(
        page.summary().ends_with(&format!("{} not measured", bench.experiment.finding.len())),
        "{}",
        page.summary()
    );
    assert_eq!(page.failures().len(), bench.experiment.cases().len() + bench.experiment.varied().len());
}

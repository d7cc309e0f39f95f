use super::*;
use std::path::Path;

const GOOD: &str = r#"
name = "made-up"
source = "made up for this test"
poll = { ns = 20, source = "made up" }
io = { burst_ns = 30, packet_ns = 8, source = "made up" }
forwarder = { burst_ns = 40, packet_ns = 20, source = "made up" }
end = { ns = 90, source = "made up" }
rule = { ns = 150, source = "made up" }
mark = { saves = 0.5, source = "made up" }

[[method]]
table = "cuckoo++"
source = "made up"
known = [
    { flows = 1000, burst_ns = 60, packet_ns = 40 },
    { flows = 100000, burst_ns = 80, packet_ns = 60 },
    { flows = 1000000, burst_ns = 200, packet_ns = 100 },
]
new = [{ flows = 1000, ns = 300 }, { flows = 1000000, ns = 600, iteration_ns = 80 }]

[[method]]
table = "stateless"
source = "made up"
known = [{ flows = 1, burst_ns = 50, packet_ns = 30 }]
"#;

fn good() -> CoreProfile {
    CoreProfile::parse(GOOD).unwrap()
}

/// By name and file.
fn those_that_come_along() -> Vec<(String, CoreProfile)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../lab/profiles/cores");
    let mut profiles = Vec::new();
    for file in std::fs::read_dir(directory).expect("profiles/cores/") {
        let path = file.expect("an entry").path();
        let text = std::fs::read_to_string(&path).expect("a text");
        let profile = CoreProfile::parse(&text).unwrap_or_else(|wrong| panic!("{}: {wrong}", path.display()));
        profiles.push((path.file_stem().unwrap().to_str().unwrap().to_owned(), profile));
    }
    profiles
}

#[test]
fn the_profiles_that_come_along_are_right() {
    let profiles = those_that_come_along();
    for (name, profile) in &profiles {
        assert_eq!(*name, profile.name);
        assert!(profile.source.len() > 40, "{name}: where are the numbers from?");
        // Receiving and sending costs more than the work alone, and tracking connections more than forwarding.
        assert!(profile.forward_ns(32) >= each(profile.io.burst_ns, profile.io.packet_ns, 32), "{name}");
        assert!(profile.known_ns(LookupMethod::DEFAULT, 4e6, 32) >= profile.forward_ns(32), "{name}");
        assert!(profile.new_ns(LookupMethod::DEFAULT, 1e6).0 > 0.0, "{name}");
    }
    assert!(profiles.iter().any(|(name, _)| name == "this-machine"));
}

#[test]
fn what_is_written_is_read_again_as_it_was() {
    for profile in those_that_come_along().into_iter().map(|(_, profile)| profile).chain([good()]) {
        assert_eq!(CoreProfile::parse(&profile.text()), Ok(profile));
    }
    let odd = CoreProfile { name: "a \"b\" \\ c".into(), source: "one\ntwo \"three\"".into(), ..good() };
    let again = CoreProfile::parse(&odd.text()).unwrap();
    assert_eq!((again.name, again.source.replace('\n', " ")), (odd.name, "one two \"three\"".to_owned()));
}

#[test]
fn points_are_met_and_between_them_the_logarithm_counts() {
    let profile = good();
    let known = |flows, burst| profile.known_ns(LookupMethod::CuckooPlusPlus, flows, burst);
    for (flows, burst_ns, packet_ns) in [(1e3, 60.0, 40.0), (1e5, 80.0, 60.0), (1e6, 200.0, 100.0)] {
        for burst in [1, 2, 32] {
            assert!((known(flows, burst) - (packet_ns + burst_ns / burst as f64)).abs() < 1e-9);
        }
    }
    // 10,000 lies in the middle of 1,000 and 100,000.
    assert!((known(1e4, 1) - 120.0).abs() < 1e-9);
    assert_eq!((known(1.0, 8), known(0.0, 8), known(f64::NAN, 8)), (known(1e3, 8), known(1e3, 8), known(1e3, 8)));
    assert_eq!((known(1e9, 8), known(f64::INFINITY, 8)), (known(1e6, 8), known(1e6, 8)));
    assert_eq!(known(1e3, 0), known(1e3, 1));
    let (new, iteration) = profile.new_ns(LookupMethod::CuckooPlusPlus, 10f64.powf(4.5));
    assert!((new - 450.0).abs() < 1e-6 && (iteration - 40.0).abs() < 1e-6);
    assert_eq!((profile.forward_ns(1), profile.forward_ns(40)), (60.0, 21.0));
    assert_eq!((profile.poll_ns(), profile.end_ns(), profile.rule_ns()), (20.0, 90.0, 150.0));
}

#[test]
fn mark_saves_its_part_of_the_look_up() {
    let mut profile = good();
    // At 100,000 flows a packet costs 60 ns, and 30 ns without a table.
    let saves = |profile: &CoreProfile| profile.marked_saves_ns(LookupMethod::CuckooPlusPlus, 1e5);
    assert!((saves(&profile) - 15.0).abs() < 1e-6);
    profile.mark = None;
    assert_eq!(saves(&profile), 0.0);
}

#[test]
fn between_rising_points_it_rises_without_a_jump() {
    let profile = good();
    let mut last = profile.known_ns(LookupMethod::DEFAULT, 500.0, 32);
    let mut flows = 500.0;
    while flows < 2e6 {
        flows *= 1.01;
        let next = profile.known_ns(LookupMethod::DEFAULT, flows, 32);
        assert!((last..last + 1.0).contains(&next), "{flows} flows: {last} ns, then {next}");
        last = next;
    }
    for burst in 1..64 {
        assert!(
            profile.known_ns(LookupMethod::DEFAULT, 1e4, burst + 1)
                < profile.known_ns(LookupMethod::DEFAULT, 1e4, burst)
        );
    }
}

#[test]
fn unmeasured_table_costs_as_the_nearest_kind() {
    let profile = good();
    let at = |method| profile.known_ns(method, 1e4, 32);
    assert_eq!(at(LookupMethod::Concurrent), at(LookupMethod::CuckooPlusPlus));
    assert_eq!(at(LookupMethod::Maglev), at(LookupMethod::Stateless));
    assert_eq!((profile.has(LookupMethod::Stateless), profile.has(LookupMethod::Maglev)), (true, false));
    assert_eq!(profile.new_ns(LookupMethod::Maglev, 1e4), (0.0, 0.0));
}

#[test]
fn what_makes_no_sense_is_refused() {
    for (from, to, why) in [
        ("name =", "nom =", "unknown field"),
        ("cuckoo++", "maglev", "no [[method]] with table = \"cuckoo++\""),
        ("\"stateless\"", "\"cuckoo++\"", "twice"),
        ("\"stateless\"", "\"hash\"", "hash"),
        ("flows = 100000,", "flows = 1000,", "rise"),
        ("flows = 100000,", "flows = nan,", "rise"),
        ("flows = 1,", "flows = 0,", "1 or more"),
        ("packet_ns = 40", "packet_ns = 0", "above 0"),
        ("packet_ns = 40", "packet_ns = -4", "0 to 1000000"),
        ("packet_ns = 40", "packet_ns = nan", "0 to 1000000"),
        ("ns = 20,", "ns = 0,", "above 0"),
        ("ns = 90,", "ns = inf,", "0 to 1000000"),
        ("saves = 0.5", "saves = 1.5", "a part, 0 to 1"),
        ("ns = 150, source = \"made up\"", "ns = 150, source = \" \"", "where its numbers are from"),
        ("known = [{ flows = 1, burst_ns = 50, packet_ns = 30 }]", "known = []", "no point"),
    ] {
        let text = GOOD.replacen(from, to, 1);
        assert_ne!(text, GOOD, "{from}");
        let wrong = CoreProfile::parse(&text).expect_err(to);
        assert!(wrong.contains(why), "{to}: {wrong}");
    }
}

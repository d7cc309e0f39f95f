use super::*;
use crate::findings;
use crate::virtual_time::finding::CaseVerdict;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

#[test]
fn without_results_nothing_is_measured() {
    let empty = std::env::temp_dir().join(format!("hairpin-no-results-{}", std::process::id()));
    let sources = EvidenceSources { root: root(), results: &empty };
    assert_eq!(sources.checks().unwrap(), []);
    let text = document(&sources).unwrap();
    for listed in findings::all() {
        assert!(text.contains(listed.statement.as_str()), "{}", listed.id);
    }
    assert!(!text.contains("| agrees"), "{text}");
    let checks: usize = findings::all().iter().map(|listed| listed.by.len()).sum();
    assert_eq!(text.matches("| not measured | no results").count(), checks);
}

#[test]
fn every_verdict_is_of_a_listed_finding_and_its_check() {
    let sources = EvidenceSources { root: root(), results: &root().join("lab/results") };
    let checks = sources.checks().unwrap();
    for check in &checks {
        let listed = findings::find(&check.id).unwrap();
        assert!(listed.by.contains(&check.by), "{check:?}");
        assert!(!check.why.is_empty() && !check.why.contains('\n'), "{check:?}");
    }
    let measured = checks.iter().filter(|check| check.verdict != Some(CaseVerdict::NotMeasured)).count();
    assert!(measured > 60, "{measured} verdicts");
}

//! Devices that lack something, and what is made of it.

use super::fake::{self, FakeOptions};
use super::world::{alone, ports};
use crate::flow::{Depth, Does, Findings, How, Match, Subject, Turn, probe};

fn probed(options: &FakeOptions, depth: Depth) -> Findings {
    let _alone = alone(options);
    let findings = probe(&ports()[0], depth);
    let state = fake::state();
    assert_eq!((state.live, state.violations), (0, 0), "{}", state.first_violation());
    findings
}

fn reason(findings: &Findings, service: &str) -> Option<String> {
    findings.services().into_iter().find(|(name, _)| *name == service).and_then(|(_, why)| why)
}

#[test]
fn a_device_that_can_do_everything() {
    for depth in [Depth::Validate, Depth::Create] {
        let findings = probed(&FakeOptions::default(), depth);
        let terms = findings.terms.expect("it can");
        assert_eq!((terms.turn, terms.how, terms.counts), (Turn::Hairpin, How::NONE, Does::COUNT));
        assert!(terms.jumps && terms.options && findings.templates);
        assert_eq!((terms.numbers, terms.carries), (Does::NUMBERS, [true; 4]));
        assert_eq!(findings.missing().count(), 0);
        let services = findings.services();
        let software: Vec<_> = services.iter().filter(|(_, why)| why.is_some()).map(|(name, _)| *name).collect();
        assert_eq!(software, ["HTTP and TLS"]);
    }
}

#[test]
fn what_is_missing_is_done_without() {
    let with = |does| FakeOptions { refuse_does: does, ..FakeOptions::default() };
    let without = |does| probed(&with(does), Depth::Create).terms;
    assert_eq!(without(Does::QUEUE).map(|terms| terms.turn), None, "not even to software");
    assert_eq!(without(Does::COUNT).map(|terms| terms.counts), Some(Does::AGE));
    assert_eq!(without(Does::JUMP).map(|terms| terms.jumps), Some(false));
    assert_eq!(without(Does::ACKNOWLEDGEMENT).map(|terms| terms.numbers), Some(Does::SEQUENCE));
    assert_eq!(without(Does::MARK).map(|terms| terms.turn), Some(Turn::Hairpin));
    assert_eq!(without(Does::SOURCE_MAC).map(|terms| terms.how), Some(How::MODIFY));
    assert_eq!(without(Does::COUNT | Does::AGE).map(|terms| terms.turn), Some(Turn::Mark));
    let names = FakeOptions { refuse_names: 1, refuse_modify: 1, ..FakeOptions::default() };
    assert_eq!(probed(&names, Depth::Create).terms.map(|terms| terms.turn), Some(Turn::Mark));
    let options = FakeOptions { refuse_match: Match::NO_OPTIONS, ..FakeOptions::default() };
    assert_eq!(probed(&options, Depth::Create).terms.map(|terms| terms.options), Some(false));
}

#[test]
fn what_would_be_wrong_is_not_done() {
    for (missing, subject) in
        [(Match::NO_CONTROL, Subject::NoControl), (Match::WHOLE, Subject::Whole), (Match::LAST_HOP, Subject::LastHop)]
    {
        let findings = probed(&FakeOptions { refuse_match: missing, ..FakeOptions::default() }, Depth::Validate);
        assert_eq!(findings.terms.map(|terms| terms.turn), Some(Turn::Mark), "{subject}");
        let why = reason(&findings, "TCP over IPv4").expect("it stays in software");
        assert!(why.starts_with(&subject.to_string()) && why.contains("cannot match"), "{why}");
    }
}

#[test]
fn one_family_may_go_without_the_other() {
    let findings = probed(&FakeOptions { refuse_ipv6: 1, ..FakeOptions::default() }, Depth::Create);
    assert_eq!(findings.terms.map(|terms| terms.carries), Some([true, true, false, false]));
    assert!(reason(&findings, "UDP over IPv6").expect("why").contains("no IPv6 here"));
    assert_eq!(reason(&findings, "UDP over IPv4"), None);
}

#[test]
fn a_device_without_templates() {
    let findings = probed(&FakeOptions { no_templates: 1, ..FakeOptions::default() }, Depth::Validate);
    assert!(!findings.templates && findings.terms.is_some());
    assert_eq!(findings.missing().map(|attempt| attempt.subject).collect::<Vec<_>>(), [Subject::Templates]);
}

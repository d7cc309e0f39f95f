//! Devices that lack something, and what is made of it.

use super::fake::{self, FakeOptions, PORTS};
use super::fixture::{TERMS, TestHops, alone, connection, one_port, ports};
use crate::flow::translate::{EnginePort, place};
use crate::flow::{Agreement, Does, EgressAction, Family, Findings, How, Match, ProbeDepth, ProbeSubject, probe};

fn found(options: &FakeOptions, port: &EnginePort, others: &[u16], depth: ProbeDepth) -> Findings {
    let _alone = alone(options);
    let findings = probe(port, others, depth);
    let state = fake::state();
    assert_eq!((state.live, state.violations), (0, 0), "{}", state.first_violation());
    findings
}

/// Probes a single port, with a hairpin queue.
fn probed(options: &FakeOptions, depth: ProbeDepth) -> Findings {
    found(options, &one_port(), &[], depth)
}

/// Probes two ports, each with an unused hairpin queue.
fn both(options: &FakeOptions) -> [Findings; 2] {
    [(0, 1), (1, 0)].map(|(number, other)| {
        let port = EnginePort { hairpins: vec![(number, 1)], ..ports()[usize::from(number)].clone() };
        found(options, &port, &[PORTS[other]], ProbeDepth::Create)
    })
}

fn reason(findings: &Findings, service: &str) -> Option<String> {
    findings.services().into_iter().find(|(name, _)| *name == service).and_then(|(_, why)| why)
}

#[test]
fn a_device_that_can_do_everything() {
    for depth in [ProbeDepth::Validate, ProbeDepth::Create] {
        let findings = probed(&FakeOptions::default(), depth);
        let terms = findings.terms.expect("it can");
        assert_eq!((terms.egress, terms.how, terms.counts), (EgressAction::Hairpin, How::NONE, Does::COUNT));
        assert!(terms.jumps && terms.options && findings.templates);
        assert_eq!((terms.sequence_numbers, terms.supports), (Does::SEQUENCE_NUMBERS, [true; 4]));
        assert_eq!(findings.missing().count(), 0);
        let services = findings.services();
        let software: Vec<_> = services.iter().filter(|(_, why)| why.is_some()).map(|(name, _)| *name).collect();
        assert_eq!(software, ["HTTP otherwise, TLS"]);
    }
}

/// The backends' packets of large responses are offloaded exactly where the engine says that it can be.
#[test]
fn http_bodies_need_sequence_and_options() {
    let bodies = |does, matches| {
        let options = FakeOptions { refuse_does: does, refuse_match: matches, ..FakeOptions::default() };
        let findings = probed(&options, ProbeDepth::Create);
        assert!(findings.terms.is_some());
        (findings.terms.is_some_and(|terms| terms.joins()), reason(&findings, "bodies of large HTTP responses"))
    };
    assert_eq!(bodies(Does::NONE, Match::NONE), (true, None));
    for (does, matches, what) in [
        (Does::SEQUENCE, Match::NONE, "set: sequence number"),
        (Does::ACKNOWLEDGEMENT, Match::NONE, "set: acknowledgement number"),
        (Does::NONE, Match::NO_OPTIONS, "match TCP without options"),
    ] {
        let (joins, why) = bodies(does, matches);
        assert!(!joins && why.as_ref().is_some_and(|why| why.starts_with(what)), "{what}: {why:?}");
    }
    let (_, why) = bodies(Does::COUNT | Does::AGE, Match::NONE);
    assert!(why.is_some_and(|why| why.starts_with("count")), "marks forward nothing");
}

/// A hairpin queue leads back out of its own port: between two the switch is the way, whatever queues there are.
#[test]
fn two_ports_get_rules_that_lead_from_one_to_the_other() {
    for (does, egress) in [(Does::NONE, EgressAction::RepresentedPort), (Does::REPRESENTED_PORT, EgressAction::PortId)]
    {
        let findings = both(&FakeOptions { hairpin_queues: 4, refuse_does: does, ..FakeOptions::default() });
        let agreed = Agreement::of(&findings).expect("both can");
        assert_eq!((agreed.terms.egress, agreed.takes_part), (egress, vec![true; 2]));
        assert!(findings.iter().all(|findings| reason(findings, "TCP over IPv4").is_none()));
        for rule in connection(1) {
            assert!(place(&agreed.terms, &ports(), &TestHops::default(), &rule, 0).is_ok(), "{rule:?}");
        }
    }
    let [first, _] = both(&FakeOptions::default());
    assert_eq!(first.terms, Some(TERMS));
}

/// A flow that could only leave by its ingress port is not offloaded, and a message says so.
#[test]
fn two_ports_without_egress_between_them() {
    let findings = both(&FakeOptions { hairpin_queues: 4, refuse_others: 1, ..FakeOptions::default() });
    assert_eq!(Agreement::of(&findings).expect("marks").terms.egress, EgressAction::Mark);
    for findings in &findings {
        let why = reason(findings, "UDP over IPv6").expect("it stays in software");
        assert!(why.starts_with("send out: represented port") && why.contains("does not lead there"), "{why}");
    }
    let alone = probed(&FakeOptions { refuse_others: 1, ..FakeOptions::default() }, ProbeDepth::Create);
    assert_eq!(alone.terms.map(|terms| terms.egress), Some(EgressAction::Hairpin));
}

/// A driver may say that there are hairpin queues, and give the port none.
#[test]
fn hairpin_queues_that_there_are_not() {
    let options = FakeOptions { hairpin_queues: 4, ..FakeOptions::default() };
    let findings = found(&options, &ports()[0], &[], ProbeDepth::Create);
    assert_eq!((findings.hairpin_queues, findings.has(ProbeSubject::EgressAction(EgressAction::Hairpin))), (4, false));
    assert_eq!(findings.terms.map(|terms| terms.egress), Some(EgressAction::RepresentedPort));
}

#[test]
fn what_is_missing_is_done_without() {
    let with = |does| FakeOptions { refuse_does: does, ..FakeOptions::default() };
    let without = |does| probed(&with(does), ProbeDepth::Create).terms;
    assert_eq!(without(Does::QUEUE).map(|terms| terms.egress), None, "not even to software");
    assert_eq!(without(Does::COUNT).map(|terms| terms.counts), Some(Does::AGE));
    assert_eq!(without(Does::JUMP).map(|terms| terms.jumps), Some(false));
    assert_eq!(without(Does::ACKNOWLEDGEMENT).map(|terms| terms.sequence_numbers), Some(Does::SEQUENCE));
    assert_eq!(without(Does::MARK).map(|terms| terms.egress), Some(EgressAction::Hairpin));
    assert_eq!(without(Does::SOURCE_MAC).map(|terms| terms.how), Some(How::MODIFY));
    assert_eq!(without(Does::COUNT | Does::AGE).map(|terms| terms.egress), Some(EgressAction::Mark));
    let names = FakeOptions { refuse_names: 1, refuse_modify: 1, ..FakeOptions::default() };
    assert_eq!(probed(&names, ProbeDepth::Create).terms.map(|terms| terms.egress), Some(EgressAction::Mark));
    let options = FakeOptions { refuse_match: Match::NO_OPTIONS, ..FakeOptions::default() };
    assert_eq!(probed(&options, ProbeDepth::Create).terms.map(|terms| terms.options), Some(false));
}

#[test]
fn what_would_be_wrong_is_not_done() {
    for (missing, subject) in [
        (Match::NO_CONTROL, ProbeSubject::NoControl),
        (Match::WHOLE, ProbeSubject::Whole),
        (Match::LAST_HOP, ProbeSubject::LastHop),
    ] {
        let findings = probed(&FakeOptions { refuse_match: missing, ..FakeOptions::default() }, ProbeDepth::Validate);
        assert_eq!(findings.terms.map(|terms| terms.egress), Some(EgressAction::Mark), "{subject}");
        let why = reason(&findings, "TCP over IPv4").expect("it stays in software");
        assert!(why.starts_with(&subject.to_string()) && why.contains("cannot match"), "{why}");
    }
}

#[test]
fn one_family_may_go_without_the_other() {
    let findings = probed(&FakeOptions { refuse_ipv6: 1, ..FakeOptions::default() }, ProbeDepth::Create);
    assert_eq!(findings.terms.map(|terms| terms.supports), Some([true, true, false, false]));
    assert!(reason(&findings, "UDP over IPv6").expect("why").contains("no IPv6 here"));
    assert_eq!(reason(&findings, "UDP over IPv4"), None);
    assert!(findings.has(ProbeSubject::Steer(Family::V4)) && !findings.has(ProbeSubject::Steer(Family::V6)));
}

#[test]
fn a_device_without_templates() {
    let findings = probed(&FakeOptions { no_templates: 1, ..FakeOptions::default() }, ProbeDepth::Validate);
    assert!(!findings.templates && findings.terms.is_some());
    assert_eq!(findings.missing().map(|attempt| attempt.subject).collect::<Vec<_>>(), [ProbeSubject::Templates]);
}

/// Ports of one plane that are not alike.
#[test]
fn ports_agree_on_what_all_of_them_can() {
    let with = |does| probed(&FakeOptions { refuse_does: does, ..FakeOptions::default() }, ProbeDepth::Create);
    let (all, no_ipv6) = (
        with(Does::NONE),
        probed(&FakeOptions { refuse_ipv6: 1, no_templates: 1, ..FakeOptions::default() }, ProbeDepth::Create),
    );
    let [nothing, marks, no_jump] = [Does::QUEUE, Does::COUNT | Does::AGE, Does::JUMP].map(with);
    assert_eq!(nothing.terms, None);
    assert_eq!(Agreement::of(&[]), None);
    assert_eq!(Agreement::of(&[nothing.clone(), nothing.clone()]), None);
    // Marks are not worth a rule that turns packets round.
    let agreed = Agreement::of(&[marks.clone(), all.clone(), nothing.clone()]).expect("one can");
    assert_eq!((agreed.terms, agreed.takes_part), (all.terms.expect("terms"), vec![false, true, false]));
    assert!(agreed.templates);
    let agreed = Agreement::of(&[nothing, marks]).expect("one can mark");
    assert_eq!((agreed.terms.egress, agreed.takes_part), (EgressAction::Mark, vec![false, true]));
    let agreed = Agreement::of(&[all, no_ipv6, no_jump]).expect("they can");
    assert_eq!((agreed.takes_part, agreed.templates), (vec![true; 3], false));
    assert_eq!((agreed.terms.supports, agreed.terms.jumps), ([true, true, false, false], false));
}

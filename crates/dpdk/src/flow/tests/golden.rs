//! The arrays of every shape of rule, as they stand in `tests/golden`; `HAIRPIN_GOLDEN=write` writes those.

use super::fixture::{ALONE, TERMS, TestHops, address, end, one_port, ports, rules};
use crate::flow::description::{Description, Does, How, NoText};
use crate::flow::steering::{SteeredStream, steering_rules};
use crate::flow::translate::{DeviceTerms, EgressAction, EnginePort, place, standing};
use hairpin_core::engine::Rule;
use hairpin_core::flow::{Protocol, SteerBy, Steering};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::PathBuf;

fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(format!("{name}.txt"))
}

fn compare(name: &str, found: &str) {
    if std::env::var_os("HAIRPIN_GOLDEN").is_some_and(|value| value == "write") {
        std::fs::write(file(name), found).expect("a golden file can be written");
    }
    let expected = std::fs::read_to_string(file(name)).unwrap_or_default();
    assert!(expected == found, "{name}: expected\n{expected}\nfound\n{found}");
}

/// The arrays, which are the same after rte_flow_conv.
fn arrays(rule: &Description) -> String {
    let text = rule.arrays(false).expect("it does not contradict itself");
    assert_eq!(rule.converted().expect("rte_flow_conv takes it"), text);
    text
}

/// A rule written in each form; backends are behind the last port.
fn all_forms(rule: &Rule, terms: &DeviceTerms, ports: &[EnginePort]) -> String {
    let mut text = String::new();
    for (title, how) in [("by names", How::NONE), ("by names, deltas signed", How::SIGNED), ("by fields", How::MODIFY)]
    {
        if how == How::SIGNED && (rule.rewrite.sequence_delta | rule.rewrite.acknowledgement_delta) == 0 {
            continue;
        }
        let terms = DeviceTerms { how, ..*terms };
        let hops = TestHops { backends_port: ports.len() as u16 - 1, ..TestHops::default() };
        let description = place(&terms, ports, &hops, rule, 7).expect("it can be placed").description;
        let _ = write!(text, "# {title}\n{}", arrays(&description));
        if how == How::MODIFY {
            let masks = description.shape().arrays(true).expect("a shape has arrays");
            let _ = write!(text, "# its template\n{masks}");
        }
    }
    text
}

#[test]
fn a_pair_keeps_the_client() {
    let v4 = [end("10.0.0.9", 40000), end("203.0.113.1", 80), end("10.0.0.9", 40000), end("192.168.0.7", 8080)];
    let v6 = [end("2001:db8::9", 40000), end("2001:db8:1::1", 80), end("2001:db8::9", 40000), end("fd00::7", 8080)];
    for (name, protocol, ends) in [
        ("tcp4", Protocol::Tcp, v4),
        ("udp4", Protocol::Udp, v4),
        ("tcp6", Protocol::Tcp, v6),
        ("udp6", Protocol::Udp, v6),
    ] {
        let [there, back] = rules(protocol, ends, 6);
        compare(&format!("{name}-from-client"), &all_forms(&there, &TERMS, &ports()));
        compare(&format!("{name}-from-backend"), &all_forms(&back, &TERMS, &ports()));
    }
}

#[test]
fn a_pair_with_full_translation() {
    let ends = [end("10.0.0.9", 40000), end("203.0.113.1", 80), end("10.0.0.1", 50000), end("192.168.0.7", 8080)];
    let [there, back] = rules(Protocol::Tcp, ends, 6);
    compare("full-from-client", &all_forms(&there, &TERMS, &ports()));
    compare("full-from-backend", &all_forms(&back, &TERMS, &ports()));
}

#[test]
fn splice_rule_translates_sequence_numbers() {
    let ends = [end("10.0.0.9", 40000), end("203.0.113.1", 80), end("10.0.0.1", 50000), end("192.168.0.7", 8080)];
    let [mut there, _] = rules(Protocol::Tcp, ends, 6);
    there.rewrite.sequence_delta = 0xffff_fff0; // 16 less
    there.rewrite.acknowledgement_delta = 0x7fff_ffff;
    let back = Rule {
        key: there.rewrite.rewritten(&there.key).reversed(),
        rewrite: there.rewrite.reversed(&there.key),
        ..there
    };
    assert_eq!((back.rewrite.sequence_delta, back.rewrite.acknowledgement_delta), (0x8000_0001, 16));
    compare("splice-from-client", &all_forms(&there, &TERMS, &ports()));
    compare("splice-from-backend", &all_forms(&back, &TERMS, &ports()));
    // Only one number: the other's action is not there.
    there.rewrite.acknowledgement_delta = 0;
    compare("splice-sequence-only", &all_forms(&there, &TERMS, &ports()));
}

#[test]
fn other_egress() {
    let ends = [end("10.0.0.9", 40000), end("203.0.113.1", 80), end("10.0.0.9", 40000), end("192.168.0.7", 8080)];
    let [there, _] = rules(Protocol::Tcp, ends, 6);
    compare("port-id", &all_forms(&there, &DeviceTerms { egress: EgressAction::PortId, ..TERMS }, &ports()));
    compare("hairpin-queue", &all_forms(&there, &ALONE, &[one_port()]));
}

#[test]
fn one_group_and_age() {
    let ends = [end("10.0.0.9", 40000), end("203.0.113.1", 80), end("10.0.0.9", 40000), end("192.168.0.7", 8080)];
    let [there, _] = rules(Protocol::Tcp, ends, 6);
    compare("one-group-age", &all_forms(&there, &DeviceTerms { jumps: false, counts: Does::AGE, ..TERMS }, &ports()));
}

#[test]
fn marks() {
    let ends = [end("10.0.0.9", 40000), end("203.0.113.1", 80), end("10.0.0.9", 40000), end("192.168.0.7", 8080)];
    let [there, _] = rules(Protocol::Udp, ends, 0x5_0000_0011);
    let terms = DeviceTerms { egress: EgressAction::Mark, counts: Does::NONE, ..TERMS };
    let hops = TestHops::default();
    let one = place(&terms, &ports(), &hops, &there, 7).expect("it can be placed");
    assert_eq!(one.description.mark, 0x12);
    compare("mark-one-queue", &arrays(&one.description));
    let spread: Vec<EnginePort> =
        ports().into_iter().map(|port| EnginePort { queues: 3, rss_types: 0x38, ..port }).collect();
    let several = place(&terms, &spread, &hops, &there, 7).expect("it can be placed");
    compare("mark-several-queues", &arrays(&several.description));
}

#[test]
fn what_stands_before() {
    let all = |terms: &DeviceTerms, port: &EnginePort| {
        standing(terms, port).iter().map(arrays).collect::<Vec<_>>().join("--\n")
    };
    let port = &one_port();
    compare("standing", &all(&ALONE, port));
    compare("standing-one-group", &all(&DeviceTerms { jumps: false, ..ALONE }, port));
    compare("standing-tcp4", &all(&DeviceTerms { supports: [true, false, false, false], ..ALONE }, port));
    compare("standing-switch", &all(&TERMS, port));
    let spread = EnginePort { queues: 4, rss_types: 0x38, ..port.clone() };
    compare("standing-several-queues", &all(&ALONE, &spread));
    compare("standing-mark", &all(&DeviceTerms { egress: EgressAction::Mark, ..ALONE }, port));
}

#[test]
fn what_brings_packets_to_their_worker() {
    let streams = |protocol, [vip, backend, pool]: [&str; 3]| {
        let all = [
            SteeredStream::ToService(end(vip, 80)),
            SteeredStream::FromBackend(end(backend, 8080)),
            SteeredStream::ToPool(address(pool)),
        ];
        all.into_iter().map(|stream| (stream, protocol)).collect::<BTreeSet<_>>()
    };
    let v4 = streams(Protocol::Tcp, ["203.0.113.1", "192.168.0.7", "192.168.0.1"]);
    let v6 = streams(Protocol::Udp, ["2001:db8:1::1", "fd00::7", "fd00::1"]);
    let steering = Steering { by: SteerBy::Port, ..Steering::by_hash([1, 2], 2) };
    let text = |streams: &BTreeSet<_>, terms: Option<&DeviceTerms>| {
        let rules: Vec<String> = steering_rules(streams, &steering, terms).iter().map(arrays).collect();
        rules.join("--\n")
    };
    compare("steering-tcp4", &text(&v4, None));
    compare("steering-udp6", &text(&v6, None));
    // Beside flows' rules: after them, in their group, if there is one and these packets come there.
    compare("steering-beside-flows", &text(&v4, Some(&ALONE)));
    compare("steering-one-group", &text(&v4, Some(&DeviceTerms { jumps: false, ..ALONE })));
    let terms = DeviceTerms { supports: [false, true, true, true], ..ALONE };
    assert_eq!(text(&v4, Some(&terms)), text(&v4, Some(&DeviceTerms { jumps: false, ..ALONE })));
    // The switch's rules are elsewhere.
    assert_eq!(text(&v4, Some(&TERMS)), text(&v4, None));
}

#[test]
fn contradictions_have_no_arrays() {
    let rule = Description { does: Does::QUEUE, ..Description::default() };
    assert!(rule.arrays(false).is_ok());
    for wrong in [
        Description { does: Does::NONE, ..rule },
        Description { does: Does::QUEUE | Does::JUMP, ..rule },
        Description { protocol: 6, ..rule },
        Description { does: Does::QUEUE | Does::TTL, ..rule },
        Description { does: Does::RSS, queue: 0, ..rule },
        Description { does: Does::RSS, queue: 65, ..rule },
        Description { protocol: 1, family: crate::flow::Family::V4, ..rule },
    ] {
        assert_eq!(wrong.arrays(false), Err(NoText { code: libc::EINVAL }), "{wrong:?}");
        assert_eq!(wrong.converted(), Err(NoText { code: libc::EINVAL }), "{wrong:?}");
    }
}

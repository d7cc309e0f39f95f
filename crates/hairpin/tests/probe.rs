//! `hairpin probe` on virtual devices: all that there are without a card.
#![cfg(feature = "dpdk")]

use serde_json::Value;
use std::process::{Command, Output};

fn probe(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_hairpin")).arg("probe").args(arguments).output().expect("hairpin starts")
}

fn json(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}{}", String::from_utf8_lossy(&output.stderr)))
}

#[test]
fn a_device_without_rules() {
    let found = json(&probe(&["net_null0", "-o", "json"]));
    assert_eq!((&found["driver"], &found["engine"]), (&"net_null".into(), &Value::Null));
    let services = found["services"].as_array().expect("services");
    assert_eq!(services.len(), 6);
    assert!(services.iter().all(|service| service["offloaded"] == false && service["why_not"].is_string()));
    let output = probe(&["net_null0", "--rate", "100"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("the driver has no rules"), "{text}");
}

/// It has rules, through tc's flower filter, and none that rewrites. Whether the kernel has flower shows only when one is
/// put in.
#[test]
fn a_tap_device_takes_some() {
    let bin = env!("CARGO_BIN_EXE_hairpin");
    let in_namespace = |more: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["--net", bin, "probe", "net_tap0,iface=probed", "-o", "json"]).args(more);
        command.output().expect("unshare starts")
    };
    let asked = in_namespace(&[]);
    if String::from_utf8_lossy(&asked.stderr).contains("Operation not permitted") {
        eprintln!("skipped: no namespace without root");
        return;
    }
    let works = |found: &Value, what: &str| {
        let tried = found["tried"].as_array().expect("attempts");
        tried.iter().find(|attempt| attempt["what"] == what).map(|attempt| attempt["works"] == true)
    };
    let asked = json(&asked);
    assert_eq!(works(&asked, "match flows: TCP over IPv4"), Some(true));
    assert_eq!(works(&asked, "set: source address"), Some(false));
    assert!(asked["services"].as_array().expect("services").iter().all(|service| service["offloaded"] == false));
    let created = json(&in_namespace(&["--create"]));
    let refused = created["tried"][0]["refusal"].as_str().unwrap_or_default();
    assert!(works(&created, "match flows: TCP over IPv4") == Some(true) || refused.contains("flower"), "{refused}");
}

/// With the device that only tests have, which takes everything that it is not told to refuse.
#[cfg(feature = "fake-flow")]
#[test]
fn a_device_that_takes_rules() {
    let faked = |faults: &str, more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hairpin"));
        command.args(["probe", "net_null0"]).args(more).env("HAIRPIN_FAKE_FLOW", faults);
        command.output().expect("hairpin starts")
    };
    let found = json(&faked("", &["-o", "json", "--create"]));
    let software: Vec<_> =
        found["services"].as_array().expect("services").iter().filter(|s| s["offloaded"] == false).collect();
    assert_eq!((software.len(), &software[0]["kind"]), (1, &"HTTP otherwise, TLS".into()));
    let said = faked("no_templates,refuse_ipv6", &["--rate", "100"]);
    let text = String::from_utf8_lossy(&said.stdout);
    let engine = "packets leave by represented port; changes by SET; flows in a group of their own; counters: COUNT; \
                  translates TCP sequence numbers; one rule at a time";
    assert!(text.contains(engine) && text.contains("100 of 100 in, 100 counted, 100 out"), "{text}");
    assert!(text.contains("TCP over IPv6: in software"), "{text}");
    // It says that it has hairpin queues, and the port gets none.
    let said = faked("hairpin_queues=1", &["--rate", "10"]);
    let text = String::from_utf8_lossy(&said.stdout);
    assert!(text.contains("hairpin queues: 1 at most") && text.contains("leave by represented port"), "{text}");
    assert!(text.contains("10 of 10 in, 10 counted, 10 out") && !text.contains("refused"), "{text}");
    assert!(!faked("nonsense", &[]).status.success());
}

#[test]
fn no_device() {
    let output = probe(&["nonsense"]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("cannot open nonsense"), "{text}");
}

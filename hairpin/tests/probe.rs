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
    assert_eq!(services.len(), 5);
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

#[test]
fn no_device() {
    let output = probe(&["nonsense"]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("cannot open nonsense"), "{text}");
}

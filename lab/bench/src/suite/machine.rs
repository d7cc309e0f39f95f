//! The cost of Hairpin by itself: its BPF program, rule installation, idleness.

use super::report::{Bar, ReportRow};
use super::samples::RepeatedValues;
use super::{SuitePlan, progress};
use anyhow::Result;
use hairpin_e2e::peer::{Hairpin, HairpinOptions, PeerService};
use hairpin_e2e::servers::{ECHO_PORT, HTTP_PORT};
use hairpin_e2e::topology::{Family, Topology, TopologyOptions};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Rules in the maps, per measurement.
const RULES: [usize; 4] = [1, 1_000, 100_000, 1_000_000];
/// Rules a second that have to go in.
const INSTALLS_PER_S: f64 = 800_000.0;

/// The cost of the ingress program for a packet, beside a program that looks the same map up and rewrites only the key; and
/// how fast rules are installed.
pub(super) fn bpf(plan: &SuitePlan) -> Result<Vec<ReportRow>> {
    let mut rows = Vec::new();
    let mut installs = Vec::new();
    for rules in RULES {
        let cost = hairpin_linux::cost::measure(rules, plan.repetitions)?;
        let (ours, reference) = (RepeatedValues::from(cost.ours_ns), RepeatedValues::from(cost.reference_ns));
        let case = format!("bpf {rules} rule(s)");
        progress(&case, "hairpin", ours.median(), "ns/packet", "");
        progress(&case, "reference", reference.median(), "ns/packet", "");
        let beside = BTreeMap::from([("reference".to_owned(), reference.median())]);
        rows.push(ReportRow::new(case, "ns/packet", &ours, &beside, "reference", Bar::AtMost(2.0)));
        installs = cost.installs_per_s;
    }
    let installs = RepeatedValues::from(installs);
    progress("rule installation", "hairpin", installs.median(), "rule/s", &format!("{} rules", RULES[3]));
    rows.push(ReportRow::against_value(
        "rule installation",
        "rule/s",
        &installs,
        "800 k",
        INSTALLS_PER_S,
        Bar::AtLeast(1.0),
    ));
    Ok(rows)
}

/// Processor time of a Hairpin that has nothing to do, as a share of one core.
pub(super) fn idle(plan: &SuitePlan) -> Result<Vec<ReportRow>> {
    let topology = Topology::create(TopologyOptions::default())?;
    let services = [PeerService::tcp("http", Family::V4, HTTP_PORT), PeerService::udp("echo", Family::V6, ECHO_PORT)];
    let mut hairpin = Hairpin::start(&topology, &services, &HairpinOptions::default())?;
    std::thread::sleep(Duration::from_secs(2));
    let mut samples = RepeatedValues::default();
    for _ in 0..plan.repetitions {
        let (before, start) = (hairpin.process().cpu_seconds()?, Instant::now());
        std::thread::sleep(if plan.quick { plan.duration } else { Duration::from_secs(10) });
        let share = (hairpin.process().cpu_seconds()? - before) / start.elapsed().as_secs_f64();
        progress("idle", "hairpin", share * 100.0, "% of a core", "");
        samples.push(share * 100.0);
    }
    hairpin.process().check()?;
    Ok(vec![ReportRow::against_value("idle", "% of a core", &samples, "2 %", 2.0, Bar::AtMost(1.0))])
}

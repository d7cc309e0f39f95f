//! The counters by reason, and the list of reasons.

use super::families::Emit;
use hairpin_core::l7::splice::{Fault, Refused};
use hairpin_core::wire::Malformed;
use hairpin_core::worker::Drop;
use hairpin_linux::abi;
use std::collections::BTreeMap;

/// Why frames are dropped on the way between kernel and worker, as the status calls it.
const DEVICE_REASONS: [&str; 7] = [
    "device.queue-full",
    "device.unmarked",
    "device.malformed",
    "device.refused",
    "device.no-memory",
    "device.down",
    "device.write-failed",
];
/// The worker events that the status reports.
const WORKER_EVENTS: [&str; 2] = ["worker.evicted", "worker.revived"];
/// Why rules or connections are not offloaded, as the status calls it.
const OFFLOAD_REASONS: [&str; 6] =
    ["engine-full", "engine-unsupported", "engine-failed", "queue-full", "passes-full", "rule-lost"];

/// A series for every reason in `counted`, and a zero for every `known` one that never occurred: a rate needs to have
/// seen it at zero to notice the first time.
pub(super) fn reasons<T>(
    emit: &mut Emit<'_>,
    before: &[&str],
    counted: &BTreeMap<String, T>,
    known: impl IntoIterator<Item = String>,
    total: fn(&T) -> u64,
) {
    let mut all: BTreeMap<String, u64> = known.into_iter().map(|reason| (reason, 0)).collect();
    all.extend(counted.iter().map(|(reason, count)| (reason.clone(), total(count))));
    for (reason, count) in &all {
        let values: Vec<&str> = before.iter().copied().chain([reason.as_str()]).collect();
        emit(&values, (*count).into());
    }
}

fn kernel_events(dropped: bool) -> impl Iterator<Item = String> {
    let events = abi::EVENTS.iter().filter(move |(_, is_drop)| *is_drop == dropped);
    events.map(|(name, _)| format!("kernel.{name}"))
}

/// Every reason for a drop.
pub(super) fn drop_reasons() -> impl Iterator<Item = String> {
    let worker = Drop::ALL.iter().map(|reason| format!("worker.{}", reason.name()));
    let malformed = Malformed::ALL.iter().map(|reason| format!("worker.malformed.{}", reason.name()));
    worker.chain(malformed).chain(DEVICE_REASONS.map(String::from)).chain(kernel_events(true))
}

/// Everything else that is counted by name.
pub(super) fn event_names() -> impl Iterator<Item = String> {
    kernel_events(false).chain(WORKER_EVENTS.map(String::from))
}

/// Every reason why something is not offloaded.
pub(super) fn offload_reasons() -> impl Iterator<Item = String> {
    OFFLOAD_REASONS.into_iter().map(String::from)
}

/// Every reason why a request is refused.
pub(super) fn refusals() -> impl Iterator<Item = String> {
    Refused::ALL.iter().map(|reason| reason.name().to_string())
}

/// Every way in which a backend can fail a request.
pub(super) fn faults() -> impl Iterator<Item = String> {
    Fault::ALL.iter().map(|fault| fault.name().to_string())
}

/// The values of a label that a list of limits may name; none if the series has no such label.
#[cfg(test)]
pub(crate) fn values_of(series: &str, label: &str) -> Vec<String> {
    use super::counts::CODES;
    use crate::http_server::Closed;
    use hairpin_core::link;
    let has_label = super::families::all().any(|family| family.series() == series && family.labels.contains(&label));
    let words = |words: &[&str]| words.iter().map(|word| word.to_string()).collect();
    match (series, label) {
        _ if !has_label => Vec::new(),
        ("hairpin_drops_total", _) => {
            let ports =
                link::LinkDrop::ALL.iter().map(|reason| reason.name()).chain([crate::run::limits::dpdk::HANDOVER_FULL]);
            drop_reasons().chain(ports.map(|reason| format!("device.{reason}"))).collect()
        }
        ("hairpin_events_total", _) => event_names().collect(),
        ("hairpin_rule_refusals_total", "reason") => offload_reasons().collect(),
        ("hairpin_http_refusals_total", _) => refusals().collect(),
        ("hairpin_metrics_connections_closed_total", _) => {
            Closed::CLEAR_TEXT.iter().map(|why| why.name().to_string()).collect()
        }
        ("hairpin_api_connections_closed_total", _) => Closed::ALL.iter().map(|why| why.name().to_string()).collect(),
        ("hairpin_api_answers_total", _) => crate::api::CODES.iter().map(u16::to_string).collect(),
        ("hairpin_metrics_answers_total", _) => CODES.iter().map(u16::to_string).collect(),
        ("hairpin_health_checks_total" | "hairpin_acme_orders_total" | "hairpin_name_changes_total", "result")
        | ("hairpin_reloads_total", _) => words(&["success", "failure"]),
        ("hairpin_name_lookups_total", "result") => words(&["found", "empty", "failure"]),
        ("hairpin_name_addresses", "state") => words(&["used", "refused"]),
        ("hairpin_spans_lost_total", "reason") => {
            let reasons = crate::spans::Lost::ALL.iter().map(|why| why.name()).chain([crate::spans::RING_FULL]);
            reasons.map(str::to_string).collect()
        }
        ("hairpin_limit_decisions_total", "decision") => words(&["admitted", "refused", "would-refuse", "displaced"]),
        ("hairpin_port_drops_total", "reason") => words(&["missed", "no-mbuf"]),
        ("hairpin_port_steering_rules", "state") => words(&["in", "missing"]),
        _ => Vec::new(),
    }
}

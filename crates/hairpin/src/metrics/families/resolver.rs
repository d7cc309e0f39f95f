//! The metrics of backends by name. Without any, there are no samples.

use super::{MetricFamily, MetricKind, family};

/// All of them, in the order in which they are written.
pub(super) const FAMILIES: &[MetricFamily] = &[
    family!(
        Counter,
        "name_lookups",
        &["result"],
        "Look-ups of backends' names, by what came of them: found (addresses), empty (the name has none) or failure (no answer: the one \
         before holds).",
        |view, emit| {
            if let Some(resolver) = &view.status.resolver {
                emit(&["found"], resolver.lookups_found_total.into());
                emit(&["empty"], resolver.lookups_empty_total.into());
                emit(&["failure"], resolver.lookups_failed_total.into());
            }
        }
    ),
    family!(
        Counter,
        "name_changes",
        &["result"],
        "Changes of backends that other answers have made, by whether they came into force at once: success or failure.",
        |view, emit| {
            if let Some(resolver) = &view.status.resolver {
                emit(&["success"], resolver.changes_applied_total.into());
                emit(&["failure"], resolver.changes_refused_total.into());
            }
        }
    ),
    family!(
        Gauge,
        "name_addresses",
        &["name", "records", "state"],
        "Addresses of a name's answer in force, by whether they are used: used or refused (they cannot be backends, or are beyond \
         `addresses_max`).",
        |view, emit| {
            for name in view.status.resolver.iter().flat_map(|resolver| &resolver.names) {
                let refused = name.refused.min(name.addresses.len() as u64);
                emit(&[&name.name, &name.records, "used"], (name.addresses.len() as u64 - refused).into());
                emit(&[&name.name, &name.records, "refused"], name.refused.into());
            }
        }
    ),
    family!(
        Gauge,
        "name_failures",
        &["name", "records"],
        "Look-ups of a name that have failed since the last one that did not.",
        |view, emit| {
            for name in view.status.resolver.iter().flat_map(|resolver| &resolver.names) {
                emit(&[&name.name, &name.records], u64::from(name.failures).into());
            }
        }
    ),
];

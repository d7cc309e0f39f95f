//! The metrics of automatic certificates. Without any, there are no samples.

use super::{MetricFamily, MetricKind, family};

/// All of them, in the order in which they are written.
pub(super) const FAMILIES: &[MetricFamily] = &[
    family!(
        Counter,
        "acme_orders",
        &["result"],
        "Orders of certificates by ACME since the process began, by what came of them: success or failure.",
        |view, emit| {
            if let Some(acme) = &view.status.acme {
                emit(&["success"], acme.obtained_total.into());
                emit(&["failure"], acme.failed_total.into());
            }
        }
    ),
    family!(
        Gauge,
        "acme_order_failures",
        &["name"],
        "Orders of a name's certificate that have failed since the last one that did not.",
        |view, emit| {
            for name in view.status.acme.iter().flat_map(|acme| &acme.names) {
                emit(&[&name.name], u64::from(name.failures).into());
            }
        }
    ),
    family!(
        Gauge,
        "acme_next_order_seconds",
        &["name"],
        "When a name's certificate is ordered next, in seconds since 1970.",
        |view, emit| {
            for name in view.status.acme.iter().flat_map(|acme| &acme.names) {
                emit(&[&name.name], u64::try_from(name.next_order_unix_s).unwrap_or(0).into());
            }
        }
    ),
];

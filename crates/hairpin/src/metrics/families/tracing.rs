//! The metrics of tracing. Without any, there are no samples.

use super::{MetricFamily, MetricKind, NONE, family};

/// All of them, in the order in which they are written.
pub(super) const FAMILIES: &[MetricFamily] = &[
    family!(
        Counter,
        "spans_exported",
        NONE,
        "Spans that the collector has taken, if there is tracing.",
        |view, emit| {
            view.status.tracing.iter().for_each(|tracing| emit(&[], tracing.spans_exported_total.into()));
        }
    ),
    family!(
        Counter,
        "spans_lost",
        &["reason"],
        "Spans lost: queue-full (they come faster than the collector takes them), unreachable (it could not be reached, or was \
         busy for too long) or refused (by its answer). ring-full: messages about exchanges that found a worker's ring full, \
         those of exchanges that are only logged among them.",
        |view, emit| {
            for (why, count) in view.status.tracing.iter().flat_map(|tracing| &tracing.spans_lost_total) {
                emit(&[why], (*count).into());
            }
        }
    ),
    family!(Gauge, "spans_waiting", NONE, "Spans that wait for their export.", |view, emit| {
        view.status.tracing.iter().for_each(|tracing| emit(&[], tracing.spans_waiting.into()));
    }),
];

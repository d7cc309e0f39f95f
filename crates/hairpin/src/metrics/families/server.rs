//! Metrics of the metrics server itself.

use super::{MetricFamily, MetricKind, family};

/// All of them.
pub(super) const FAMILIES: &[MetricFamily] = &[
    family!(
        Counter,
        "metrics_answers",
        &["code"],
        "Requests to the metrics server, by the status code of the answer.",
        |view, emit| view.counts.server.answers().for_each(|(code, count)| emit(&[&code.to_string()], count.into()))
    ),
    family!(
        Counter,
        "metrics_connections_closed",
        &["reason"],
        "Connections to the metrics server that ended out of order, by reason.",
        |view, emit| view.counts.server.closed().for_each(|(reason, count)| emit(&[reason], count.into()))
    ),
];

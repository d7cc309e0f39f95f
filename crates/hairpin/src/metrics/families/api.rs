//! Metrics of the API. Without one, there are no samples.

use super::{MetricFamily, MetricKind, NONE, family};

/// All of them, in the order in which they are written.
pub(super) const FAMILIES: &[MetricFamily] = &[
    family!(
        Gauge,
        "api_differs_from_file",
        NONE,
        "Whether the configuration in force has changes by the API that the file lacks: 1 or 0.",
        |view, emit| view.status.api.iter().for_each(|api| emit(&[], api.differs_from_file.into()))
    ),
    family!(Counter, "api_writes", NONE, "Writes of the API that came into force.", |view, emit| {
        view.status.api.iter().for_each(|api| emit(&[], api.writes_total.into()));
    }),
    family!(
        Counter,
        "api_answers",
        &["code"],
        "Requests to the API, by the status code of the answer.",
        |view, emit| {
            let answers = view.status.api.iter().flat_map(|api| &api.answers_total);
            answers.for_each(|(code, count)| emit(&[code], (*count).into()));
        }
    ),
    family!(
        Counter,
        "api_connections_closed",
        &["reason"],
        "Connections to the API that ended out of order, by reason.",
        |view, emit| {
            let closed = view.status.api.iter().flat_map(|api| &api.connections_closed_total);
            closed.for_each(|(reason, count)| emit(&[reason], (*count).into()));
        }
    ),
];

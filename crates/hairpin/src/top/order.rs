//! The order of services and backends.

use super::interval::{ResponseRates, ServiceInterval};
use super::model::TopRow;
use crate::control::LatencyView;
use clap::ValueEnum;
use std::cmp::Ordering;

/// The column that services, and the backends of each, are sorted by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum SortOrder {
    /// As in the configuration.
    #[default]
    Configuration,
    /// By name.
    Name,
    /// What is down first.
    State,
    /// Most connections first.
    Connections,
    /// Most new connections per second first.
    New,
    /// Most requests per second first.
    Requests,
    /// Most responses of class 5xx per second first.
    Errors,
    /// Longest median time of requests first.
    P50,
    /// Longest 99th percentile of the time of requests first.
    P99,
    /// Most traffic in software first.
    Software,
    /// Most offloaded traffic first.
    Offloaded,
}

impl SortOrder {
    /// The next one to the right, or to the left; those of HTTP only where there is HTTP.
    pub(super) fn next(self, back: bool, has_http: bool) -> SortOrder {
        let all: Vec<SortOrder> =
            Self::value_variants().iter().copied().filter(|order| has_http || !order.is_http()).collect();
        let at = all.iter().position(|order| *order == self).unwrap_or(0);
        let step = if back { all.len() - 1 } else { 1 };
        all[(at + step) % all.len()]
    }

    /// Whether only HTTP services have it.
    fn is_http(self) -> bool {
        matches!(self, SortOrder::Requests | SortOrder::Errors | SortOrder::P50 | SortOrder::P99)
    }

    /// Its name, as `--sort` takes it.
    pub(super) fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_string()).unwrap_or_default()
    }

    /// Which of two rows comes first: greatest first, names from A to Z, or the other way round.
    pub(super) fn compare(self, reversed: bool, a: &TopRow<'_>, b: &TopRow<'_>) -> Ordering {
        let natural = match self {
            SortOrder::Configuration => Ordering::Equal,
            SortOrder::Name => a.name().cmp(b.name()),
            _ => self.value(b).total_cmp(&self.value(a)),
        };
        if reversed { natural.reverse() } else { natural }
    }

    /// The number to sort by.
    fn value(self, row: &TopRow<'_>) -> f64 {
        match self {
            SortOrder::Configuration | SortOrder::Name => 0.0,
            SortOrder::State => row.trouble(),
            SortOrder::Connections => row.connections() as f64,
            SortOrder::New => row.connections_per_s(),
            SortOrder::Requests => row.requests_per_s().unwrap_or(-1.0),
            SortOrder::Errors => row.responses().map_or(-1.0, ResponseRates::errors),
            SortOrder::P50 => latency(row, |times| times.p50),
            SortOrder::P99 => latency(row, |times| times.p99),
            SortOrder::Software => row.software().bits_per_s,
            SortOrder::Offloaded => row.offloaded().bits_per_s,
        }
    }
}

/// Rows without such a time come behind those with one.
fn latency(row: &TopRow<'_>, of: fn(LatencyView) -> f64) -> f64 {
    row.interval().and_then(ServiceInterval::in_all).map_or(-1.0, of)
}

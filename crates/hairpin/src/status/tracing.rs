//! The status of tracing.

use crate::spans::{Lost, RING_FULL, SpansReading, TracingSettings};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The export of spans.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TracingStatus {
    /// The URL that spans are posted to.
    pub endpoint: String,
    /// Spans that the collector has taken.
    pub spans_exported_total: u64,
    /// Spans lost, by reason: `queue-full`, `unreachable` or `refused`; `ring-full`: messages about exchanges that found a worker's
    /// ring full, those of exchanges that are only logged among them.
    pub spans_lost_total: BTreeMap<String, u64>,
    /// Spans that wait for their export.
    pub spans_waiting: u64,
}

impl TracingStatus {
    pub(crate) fn new(settings: &TracingSettings, reading: &SpansReading, records_lost: u64) -> TracingStatus {
        let lost = Lost::ALL.iter().zip(reading.lost).map(|(why, count)| (why.name().to_owned(), count));
        let lost = lost.chain([(RING_FULL.to_owned(), records_lost)]);
        TracingStatus {
            endpoint: settings.collector.endpoint.to_string(),
            spans_exported_total: reading.exported,
            spans_lost_total: lost.collect(),
            spans_waiting: reading.waiting,
        }
    }
}

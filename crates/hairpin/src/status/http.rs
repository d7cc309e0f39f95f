//! The status of HTTP and TLS services, and how long their requests took.

use super::Count;
use crate::control::{LatencyView, SizeView};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// HTTP and TLS services, all together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HttpStatus {
    /// Clients' connections now.
    pub clients: u64,
    /// Those, and those that are over and kept for a while.
    #[serde(default)]
    pub clients_entries: u64,
    /// The most of all these there were.
    pub clients_peak: u64,
    /// The most there can be.
    pub clients_max: u64,
    /// Connections to backends now, idle ones among them.
    pub backend_connections: u64,
    /// Idle ones.
    pub backend_connections_idle: u64,
    /// Requests whose head was complete and in order, and ClientHellos.
    pub requests: Count,
    /// Responses of backends, by class: `1xx` to `5xx`.
    pub responses: BTreeMap<String, Count>,
    /// Responses of Hairpin's own: of routes that reply or redirect, and refusals.
    pub replies: Count,
    /// Requests that were refused, and connections that were reset, by reason. Reasons that never occurred are left out.
    pub refused: BTreeMap<String, Count>,
    /// Requests that went over a connection to the backend that was there already.
    pub reused_total: u64,
    /// Requests for which another backend was tried.
    pub retries_total: u64,
    /// Backends that agreed to no window scale or no SACK, and were skipped for another.
    #[serde(default)]
    pub skipped_total: u64,
    /// Connections to backends that were closed rather than kept for other clients, because the backend had to send something
    /// again.
    #[serde(default)]
    pub retired_total: u64,
    /// Connections that backends took up without the TCP timestamps that they were offered.
    #[serde(default)]
    pub timestamps_declined_total: u64,
    /// Senders of bodies that were told after a start that they need not wait for timers that have grown.
    #[serde(default)]
    pub reminded_total: u64,
    /// Bodies that were handed to the engine.
    pub offloaded_total: u64,
    /// From how many bytes on that is done, where the configuration does not say; the mean of all workers.
    #[serde(default)]
    pub offload_bytes_min: u64,
    /// The value behind that: microseconds that a pair of rules costs a worker. 0: not measured yet.
    #[serde(default)]
    pub rule_pair_us: f64,
    /// Microseconds that a frame of a body costs a worker. 0: not measured yet.
    #[serde(default)]
    pub body_frame_us: f64,
    /// Bytes of such a frame.
    #[serde(default)]
    pub body_frame_bytes: u64,
    /// Segments of Hairpin's own that were sent again.
    pub retransmitted_total: u64,
    /// Segments dropped because they came out of order where order is needed.
    pub out_of_order_total: u64,
    /// Segments of chunked requests dropped because there was no room to remember what they say until the backend has it.
    #[serde(default)]
    pub unrecorded_total: u64,
    /// Bare acknowledgements that did not go on because the next of a burst said more.
    #[serde(default)]
    pub acknowledgements_superseded_total: u64,
    /// Buffers in use.
    pub buffers: u64,
    /// Buffers there are.
    pub buffers_max: u64,
    /// How often there was none.
    pub buffers_exhausted_total: u64,
    /// SYNs that workers have answered with a cookie; those that the kernel has answered are among the events.
    pub cookies_sent_total: u64,
    /// First data with a wrong or expired cookie, dropped.
    pub cookies_invalid_total: u64,
    /// First data that came again when its connection had ended, answered with RST.
    #[serde(default)]
    pub cookies_used_total: u64,
    /// Connections that had ended and were forgotten, to make room for others, while their cookies were still good.
    #[serde(default)]
    pub ended_overwritten_total: u64,
}

/// Connections of HTTP and TLS services that the process before had, and what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdoptedHttpStatus {
    /// Clients' connections that go on.
    pub clients: u64,
    /// Connections to backends that go on.
    pub backend_connections: u64,
    /// Clients' connections that the engine carried meanwhile.
    pub offloaded: u64,
    /// Connections that were reset because the process before ended in the middle of changing them.
    pub interrupted: u64,
    /// Connections that were reset because their service or backend is not in the configuration any more, or serves
    /// something else.
    pub without_service: u64,
    /// Connections that were reset because they belong to another worker now.
    pub misplaced: u64,
    /// Entries that made no sense, and were forgotten: something else has written into the memory.
    pub invalid: u64,
    /// Ports of the pool that may be used too early, because the memory had no place for all that rest: at least so many.
    pub ports_overwritten: u64,
}

/// How long requests took that went to a backend, from when their head was read, in microseconds; 67 s stands for 34 s and more.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RequestTimesStatus {
    /// Until there was a connection to a backend.
    pub to_backend_us: LatencyView,
    /// Until the head of the final response had come.
    pub to_response_us: LatencyView,
    /// Until the client had all of the response; of those that end with their connection, none.
    pub in_all_us: LatencyView,
    /// The histogram behind the first of them: upper end of each bucket in seconds, and how many requests took no longer than it
    /// and longer than the one before, since the process began. Empty buckets are left out. Of two answers, the differences are
    /// the requests between them.
    #[serde(default)]
    pub to_backend_buckets: Vec<(f64, u64)>,
    /// That behind the second, likewise.
    #[serde(default)]
    pub to_response_buckets: Vec<(f64, u64)>,
    /// That behind the third, likewise.
    #[serde(default)]
    pub in_all_buckets: Vec<(f64, u64)>,
    /// How long clients' TLS handshakes took that were completed, from when their connection was accepted. Only https.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls_handshake_us: Option<LatencyView>,
    /// The histograms of these four times, in this order, for metrics.
    #[serde(skip)]
    pub histograms: [Histogram; 4],
}

/// How many bytes requests had that `in_all_us` counts, and their responses, with their heads.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RequestSizesStatus {
    /// The request.
    pub request_bytes: SizeView,
    /// The response.
    pub response_bytes: SizeView,
    /// The histograms of these two, for metrics.
    #[serde(skip)]
    pub histograms: [Histogram; 2],
}

/// A distribution of times or sizes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Histogram {
    /// Upper end of each bucket, in seconds or bytes, and how many are in it and not in the one before.
    pub buckets: Vec<(f64, u64)>,
    /// Sum of all of them, in seconds or bytes.
    pub sum: f64,
}

//! The sections about backends that are left out, and about requests that wait for them.

use super::Fallback::Value;
use super::{DAY_MS, ReferenceSection, ValueForm, field};

/// `[service.outlier]`
pub const OUTLIER: ReferenceSection = ReferenceSection {
    header: "[service.outlier]",
    doc: "Outlier ejection: a backend that does worse than the others gets no new connections for a while; those that it has go on. \
          With this table, clients' connections and requests are judged, beside checks and `passive`. Never the last backend that \
          takes connections is ejected, and where all others go down, all return. Groups have the same unless they have \
          a table of their own. Ejections end with the process.",
    fields: &[
        field(
            "enabled",
            ValueForm::Boolean,
            Value("true"),
            "false",
            "Whether backends are ejected. `false` is for a group of a service whose other backends are.",
        ),
        field(
            "consecutive",
            ValueForm::Integer { min: 0, max: 1000 },
            Value("5"),
            "10",
            "Failures in a row that eject a backend: connections that cannot be made, and of an HTTP service requests without \
             a response and responses from 500 on. 0: none do.",
        ),
        field(
            "error_percent",
            ValueForm::Integer { min: 0, max: 100 },
            Value("50"),
            "20",
            "Failures among a hundred outcomes of an interval that eject a backend; 0: none do.",
        ),
        field(
            "latency_factor",
            ValueForm::Integer { min: 0, max: 1000 },
            Value("0"),
            "5",
            "HTTP services: a backend is ejected whose mean latency in an interval is more than so many times the median of the \
             others; 0: none is. The latency is that from a request's connection to the head of its response.",
        ),
        field(
            "latency_min",
            ValueForm::Duration { min_ms: 0, max_ms: DAY_MS },
            Value("10ms"),
            "\"100ms\"",
            "Mean latency below which no backend is ejected for that.",
        ),
        field(
            "requests_min",
            ValueForm::Integer { min: 1, max: 1_000_000 },
            Value("20"),
            "100",
            "Outcomes of a backend that an interval must have for `error_percent` and `latency_factor`.",
        ),
        field(
            "interval",
            ValueForm::Duration { min_ms: 1000, max_ms: 3_600_000 },
            Value("10s"),
            "\"30s\"",
            "From one look at ratios and latencies to the next. Failures in a row are looked at several times a second.",
        ),
        field(
            "ejection_time",
            ValueForm::Duration { min_ms: 1000, max_ms: DAY_MS },
            Value("30s"),
            "\"10s\"",
            "How long a backend's first ejection lasts; the second one twice that, the third one three times, and so on. Each \
             interval without an ejection counts one back.",
        ),
        field(
            "ejection_time_max",
            ValueForm::Duration { min_ms: 1000, max_ms: DAY_MS },
            Value("5m"),
            "\"10m\"",
            "How long an ejection lasts at most; not shorter than `ejection_time`.",
        ),
        field(
            "max_ejected_percent",
            ValueForm::Integer { min: 0, max: 100 },
            Value("50"),
            "10",
            "Of a hundred backends of the service or group, how many may be ejected at a time. One always may be, if there is \
             another one.",
        ),
    ],
};

/// `[service.queue]`
pub const QUEUE: ReferenceSection = ReferenceSection {
    header: "[service.queue]",
    doc: "http and https: requests wait while all backends of the service or group have as many requests as `connections_max` \
          allows. Without this table they are answered with 503 at once. A service with protocol http ends connections at this \
          host's sockets then, as `http2` of [service.http] has it. Groups have the same unless they have a table of their own.",
    fields: &[
        field(
            "requests_max",
            ValueForm::Integer { min: 1, max: 100_000 },
            Value("100"),
            "1000",
            "Requests that wait at a time on each core; further ones are answered with 503.",
        ),
        field(
            "timeout",
            ValueForm::Duration { min_ms: 10, max_ms: 3_600_000 },
            Value("1s"),
            "\"5s\"",
            "How long a request waits; then it is answered with 503.",
        ),
    ],
};

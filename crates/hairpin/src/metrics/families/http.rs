//! The metrics of HTTP and TLS services. Without any, there are no samples.

use super::{Emit, MetricFamily, MetricKind, MetricView, NONE, SampleValue, family};
use crate::metrics::reasons::{faults, reasons, refusals};
use crate::status::{Count, Histogram, HttpStatus};

/// All of them, in the order in which they are written.
pub(super) const FAMILIES: &[MetricFamily] = &[
    family!(
        Counter,
        "http_requests",
        &["service"],
        "Requests to an HTTP service, ClientHellos to a TLS service.",
        |view, emit| services(view, &mut |name, _, requests| emit(&[name], requests.total.into()))
    ),
    family!(
        Gauge,
        "http_clients",
        &["service"],
        "Clients' connections to an HTTP or TLS service now: its service_connections.",
        |view, emit| {
            services(view, &mut |name, clients, _| emit(&[name], clients.into()));
        }
    ),
    family!(
        Gauge,
        "http_clients_entries",
        NONE,
        "Clients' connections, and those that are over and kept for a while.",
        |view, emit| {
            number(view, emit, |http| http.clients_entries);
        }
    ),
    family!(Gauge, "http_clients_peak", NONE, "The most http_clients_entries there were.", |view, emit| {
        number(view, emit, |http| http.clients_peak);
    }),
    family!(Gauge, "http_clients_max", NONE, "The most http_clients_entries there can be.", |view, emit| {
        number(view, emit, |http| http.clients_max);
    }),
    family!(
        Gauge,
        "http_backend_connections",
        &["state"],
        "Connections of HTTP and TLS services to backends: idle ones wait for a request, the others are busy.",
        |view, emit| {
            if let Some(http) = &view.status.http {
                let idle = http.backend_connections_idle;
                emit(&["busy"], http.backend_connections.saturating_sub(idle).into());
                emit(&["idle"], idle.into());
            }
        }
    ),
    family!(
        Histogram,
        "http_request_to_backend_seconds",
        &["service"],
        "From the end of a request's head until there was a connection to a backend. `service` may be a group, also below.",
        |view, emit| times(view, emit, 0, (7, 3))
    ),
    family!(
        Histogram,
        "http_request_to_response_seconds",
        &["service"],
        "From the end of a request's head until the head of its backend's response had come.",
        |view, emit| times(view, emit, 1, (6, 1))
    ),
    family!(
        Histogram,
        "http_request_seconds",
        &["service"],
        "From the end of a request's head until the client had all of its backend's response. Those that end with their \
         connection, and tunnels, do not count.",
        |view, emit| times(view, emit, 2, (6, 1))
    ),
    family!(
        Histogram,
        "http_request_bytes",
        &["service"],
        "Bytes of requests that http_request_seconds counts, with their heads.",
        |view, emit| sizes(view, emit, 0)
    ),
    family!(
        Histogram,
        "http_response_bytes",
        &["service"],
        "Bytes of the responses to them, with their heads.",
        |view, emit| sizes(view, emit, 1)
    ),
    family!(
        Histogram,
        "https_handshake_seconds",
        &["service"],
        "How long clients' TLS handshakes took that were completed, from when their connection was accepted.",
        |view, emit| times(view, emit, 3, (8, 2))
    ),
    family!(
        Counter,
        "http_service_replies",
        &["service", "class"],
        "Responses of Hairpin's own to clients of an HTTP service, by class: refusals, redirects, texts.",
        |view, emit| {
            for ((name, _), service) in view.names.services.iter().zip(&view.status.services) {
                service.replies.iter().for_each(|(class, count)| emit(&[name, class], (*count).into()));
            }
        }
    ),
    family!(
        Counter,
        "http_responses",
        &["service", "group", "backend", "class"],
        "Responses of backends, by class: 1xx to 5xx. The group of a service's own backends is empty.",
        responses
    ),
    family!(
        Counter,
        "http_replies",
        NONE,
        "Responses of Hairpin's own: of routes that reply or redirect, and refusals.",
        |view, emit| number(view, emit, |http| http.replies.total)
    ),
    family!(
        Counter,
        "http_refusals",
        &["reason"],
        "Requests that were refused and connections that were reset, by reason.",
        |view, emit| {
            if let Some(http) = &view.status.http {
                reasons(emit, &[], &http.refused, refusals(), |count: &Count| count.total);
            }
        }
    ),
    family!(
        Counter,
        "http_requests_failed",
        &["service", "backend", "reason"],
        "Requests that a backend of an HTTP service has failed: its connection was lost before the response, it was silent for \
         too long, or it answered with one of `passive_status`.",
        requests_failed
    ),
    family!(
        Counter,
        "http_requests_reused",
        NONE,
        "Requests that went over a connection to the backend that was there already.",
        |view, emit| number(view, emit, |http| http.reused_total)
    ),
    family!(Counter, "http_retries", NONE, "Requests for which another backend was tried.", |view, emit| {
        number(view, emit, |http| http.retries_total);
    }),
    family!(
        Counter,
        "http_backends_retired",
        NONE,
        "Connections to backends that were closed rather than kept for other clients, because the backend had to send \
         something again: its congestion window is that of a lossy path.",
        |view, emit| number(view, emit, |http| http.retired_total)
    ),
    family!(
        Counter,
        "http_timestamps_declined",
        NONE,
        "Connections that backends took up without the TCP timestamps that they were offered: what they carry stays in software.",
        |view, emit| number(view, emit, |http| http.timestamps_declined_total)
    ),
    family!(
        Counter,
        "http_senders_reminded",
        NONE,
        "Senders of bodies that were told after a start, by ICMP (RFC 6069), that they need not wait for timers that have grown \
         while no process was there.",
        |view, emit| number(view, emit, |http| http.reminded_total)
    ),
    family!(
        Counter,
        "http_backends_skipped",
        NONE,
        "Backends that agreed to no window scale or no SACK, and were skipped for another.",
        |view, emit| number(view, emit, |http| http.skipped_total)
    ),
    family!(Counter, "http_bodies_offloaded", NONE, "Bodies that were handed to the engine.", |view, emit| {
        number(view, emit, |http| http.offloaded_total);
    }),
    family!(
        Gauge,
        "http_offload_threshold_bytes",
        NONE,
        "From how many bytes on bodies are handed to the engine, where the configuration does not say.",
        |view, emit| number(view, emit, |http| http.offload_bytes_min)
    ),
    family!(Counter, "http_retransmitted", NONE, "Segments of Hairpin's own that were sent again.", |view, emit| {
        number(view, emit, |http| http.retransmitted_total);
    }),
    family!(
        Counter,
        "http_out_of_order",
        NONE,
        "Segments dropped because they came out of order where order is needed.",
        |view, emit| number(view, emit, |http| http.out_of_order_total)
    ),
    family!(
        Counter,
        "http_unrecorded",
        NONE,
        "Segments of chunked requests dropped because there was no room to remember what they say.",
        |view, emit| number(view, emit, |http| http.unrecorded_total)
    ),
    family!(
        Counter,
        "http_acknowledgements_superseded",
        NONE,
        "Bare acknowledgements that did not go on because the next of a burst said more.",
        |view, emit| number(view, emit, |http| http.acknowledgements_superseded_total)
    ),
    family!(Gauge, "http_buffers", NONE, "Buffers in use, for heads and what else Hairpin keeps.", |view, emit| {
        number(view, emit, |http| http.buffers);
    }),
    family!(Gauge, "http_buffers_max", NONE, "Buffers there are.", |view, emit| {
        number(view, emit, |http| http.buffers_max);
    }),
    family!(Counter, "http_buffers_exhausted", NONE, "How often there was no buffer.", |view, emit| {
        number(view, emit, |http| http.buffers_exhausted_total);
    }),
    family!(
        Counter,
        "http_cookies_sent",
        NONE,
        "SYNs that workers answered with a cookie; those that the kernel answered are among the events.",
        |view, emit| number(view, emit, |http| http.cookies_sent_total)
    ),
    family!(
        Counter,
        "http_cookies_invalid",
        NONE,
        "First data of a connection with a wrong or expired cookie, dropped.",
        |view, emit| number(view, emit, |http| http.cookies_invalid_total)
    ),
    family!(
        Counter,
        "http_cookies_used",
        NONE,
        "First data that came again when its connection had ended; answered with RST.",
        |view, emit| number(view, emit, |http| http.cookies_used_total)
    ),
    family!(
        Counter,
        "http_ended_overwritten",
        NONE,
        "Connections that had ended and were forgotten, to make room for others, while their cookies were still good.",
        |view, emit| number(view, emit, |http| http.ended_overwritten_total)
    ),
];

/// Counters and gauges alike: their suffix makes the difference.
fn number(view: &MetricView<'_>, emit: &mut Emit<'_>, value: fn(&HttpStatus) -> u64) {
    if let Some(http) = &view.status.http {
        emit(&[], value(http).into());
    }
}

fn responses(view: &MetricView<'_>, emit: &mut Emit<'_>) {
    let services = &view.status.services;
    let of_http = |name: &str| services.iter().any(|service| service.name == name && service.is_http());
    for (service, (name, names)) in services.iter().zip(&view.names.services) {
        if !service.is_http() && !service.group_of.as_deref().is_some_and(of_http) {
            continue;
        }
        // Groups are named after their service.
        let of = service.group_of.as_deref();
        let group = of.map(|of| name.strip_prefix(of).and_then(|rest| rest.strip_prefix('/')).unwrap_or(name));
        for (backend, backend_name) in service.backends.iter().zip(names) {
            for (class, count) in &backend.responses {
                emit(&[of.unwrap_or(name), group.unwrap_or(""), backend_name, class], (*count).into());
            }
        }
    }
}

fn requests_failed(view: &MetricView<'_>, emit: &mut Emit<'_>) {
    let services = &view.status.services;
    let of_http = |name: &str| services.iter().any(|service| service.name == name && service.is_http());
    for (service, (name, names)) in services.iter().zip(&view.names.services) {
        if service.is_http() || service.group_of.as_deref().is_some_and(of_http) {
            for (backend, backend_name) in service.backends.iter().zip(names) {
                let failed = &backend.health.requests_failed;
                reasons(emit, &[name, backend_name], failed, faults(), |count: &u64| *count);
            }
        }
    }
}

/// One of the three times of HTTP services.
/// One of the histograms of times, with a bound for some of its buckets: the first one, and each so many further.
fn times(view: &MetricView<'_>, emit: &mut Emit<'_>, which: usize, (first, step): (usize, usize)) {
    for ((name, _), service) in view.names.services.iter().zip(&view.status.services) {
        let Some(histogram) = service.times.as_ref().map(|times| &times.histograms[which]) else { continue };
        let has_seen = service.group_of.is_none() || histogram.buckets.iter().any(|(_, count)| *count > 0);
        if !histogram.buckets.is_empty() && has_seen {
            let buckets = merged(&histogram.buckets, first, step);
            emit(&[name], SampleValue::Histogram { sum: histogram.sum, buckets: &buckets });
        }
    }
}

fn sizes(view: &MetricView<'_>, emit: &mut Emit<'_>, which: usize) {
    for ((name, _), service) in view.names.services.iter().zip(&view.status.services) {
        let Some(Histogram { buckets, sum }) = service.sizes.as_ref().map(|sizes| &sizes.histograms[which]) else {
            continue;
        };
        if service.group_of.is_none() || buckets.iter().any(|(_, count)| *count > 0) {
            emit(&[name], SampleValue::Histogram { sum: *sum, buckets });
        }
    }
}

/// Of buckets that are counted finely, fewer: a service may have 120 series in all.
fn merged(buckets: &[(f64, u64)], first: usize, step: usize) -> Vec<(f64, u64)> {
    let mut merged = Vec::new();
    let mut count = 0;
    for (at, (upper, own)) in buckets.iter().enumerate() {
        count += own;
        if at + 1 == buckets.len() || at >= first && (at - first).is_multiple_of(step) {
            merged.push((*upper, core::mem::take(&mut count)));
        }
    }
    merged
}

/// HTTP and TLS services: name, clients' connections, requests.
fn services(view: &MetricView<'_>, each: &mut dyn FnMut(&str, u64, Count)) {
    for (service, (name, _)) in view.status.services.iter().zip(&view.names.services) {
        if let Some(requests) = service.requests {
            each(name, service.connections, requests);
        }
    }
}

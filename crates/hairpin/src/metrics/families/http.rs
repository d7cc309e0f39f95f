//! The metrics of HTTP and TLS services. Without any, there are no samples.

use super::{Emit, MetricFamily, MetricKind, MetricView, NONE, SampleValue, family};
use crate::metrics::reasons::{faults, reasons, refusals};
use crate::status::{Count, Histogram, HttpStatus, ServiceStatus};
use std::collections::HashSet;

const GROUP: &[&str] = &["service", "group"];
/// Bounds of times: from 128 us on, each eight times the one before.
const COARSE: (usize, usize) = (7, 3);
/// From 64 us on, each twice the one before.
const FINE: (usize, usize) = (6, 1);
/// All that there are.
const ALL: (usize, usize) = (0, 1);

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
        "From the end of a request's head until there was a connection to a backend.",
        |view, emit| histograms(view, emit, |service| time(service, 0), COARSE)
    ),
    family!(
        Histogram,
        "http_request_to_response_seconds",
        &["service"],
        "From the end of a request's head until the head of its backend's response had come.",
        |view, emit| histograms(view, emit, |service| time(service, 1), FINE)
    ),
    family!(
        Histogram,
        "http_request_seconds",
        &["service"],
        "From the end of a request's head until the client had all of its backend's response. Those that end with their \
         connection, and tunnels, do not count.",
        |view, emit| histograms(view, emit, |service| time(service, 2), FINE)
    ),
    family!(
        Histogram,
        "http_request_bytes",
        &["service"],
        "Bytes of requests that http_request_seconds counts, with their heads.",
        |view, emit| histograms(view, emit, |service| size(service, 0), ALL)
    ),
    family!(
        Histogram,
        "http_response_bytes",
        &["service"],
        "Bytes of the responses to them, with their heads.",
        |view, emit| histograms(view, emit, |service| size(service, 1), ALL)
    ),
    family!(
        Histogram,
        "http_group_request_to_backend_seconds",
        GROUP,
        "http_request_to_backend_seconds of the requests that went to a group. A group without requests has no series of this family and of the next four.",
        |view, emit| of_groups(view, emit, |group| time(group, 0), COARSE)
    ),
    family!(
        Histogram,
        "http_group_request_to_response_seconds",
        GROUP,
        "http_request_to_response_seconds of the requests that went to a group.",
        |view, emit| of_groups(view, emit, |group| time(group, 1), FINE)
    ),
    family!(
        Histogram,
        "http_group_request_seconds",
        GROUP,
        "http_request_seconds of the requests that went to a group.",
        |view, emit| of_groups(view, emit, |group| time(group, 2), FINE)
    ),
    family!(
        Histogram,
        "http_group_request_bytes",
        GROUP,
        "http_request_bytes of the requests that went to a group.",
        |view, emit| of_groups(view, emit, |group| size(group, 0), ALL)
    ),
    family!(
        Histogram,
        "http_group_response_bytes",
        GROUP,
        "http_response_bytes of the responses to them.",
        |view, emit| of_groups(view, emit, |group| size(group, 1), ALL)
    ),
    family!(
        Histogram,
        "https_handshake_seconds",
        &["service"],
        "How long clients' TLS handshakes took that were completed, from when their connection was accepted.",
        |view, emit| histograms(view, emit, |service| time(service, 3), (8, 2))
    ),
    family!(
        Counter,
        "http_service_replies",
        &["service", "class"],
        "Responses of Hairpin's own to clients of an HTTP service, by class: refusals, redirects, texts. Those to gRPC calls count by the status that grpc-status stands for.",
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
        "Responses of backends that went to clients, by class: 1xx to 5xx. The group of a service's own backends is empty.",
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

/// An HTTP service, or a group of one.
struct HttpPart<'a> {
    status: &'a ServiceStatus,
    /// What tells it apart from all other services and groups.
    name: &'a str,
    /// The service, and the group; empty: the service itself.
    labels: [&'a str; 2],
    backends: &'a [String],
}

fn http_parts<'a>(view: &'a MetricView<'_>) -> Vec<HttpPart<'a>> {
    let status = view.status;
    let of_http: HashSet<&str> =
        status.services.iter().filter(|service| service.is_http()).map(|service| &*service.name).collect();
    let part = |(status, (name, backends)): (&'a ServiceStatus, &'a (String, Vec<String>))| {
        // Groups are named after their service.
        let labels = match status.group_of.as_deref() {
            None if status.is_http() => [&**name, ""],
            Some(of) if of_http.contains(of) => {
                [of, name.strip_prefix(of).and_then(|rest| rest.strip_prefix('/')).unwrap_or(name)]
            }
            _ => return None,
        };
        Some(HttpPart { status, name, labels, backends })
    };
    status.services.iter().zip(&view.names.services).filter_map(part).collect()
}

fn responses(view: &MetricView<'_>, emit: &mut Emit<'_>) {
    for part in http_parts(view) {
        let [service, group] = part.labels;
        for (backend, backend_name) in part.status.backends.iter().zip(part.backends) {
            for (class, count) in &backend.responses {
                emit(&[service, group, backend_name, class], (*count).into());
            }
        }
    }
}

fn requests_failed(view: &MetricView<'_>, emit: &mut Emit<'_>) {
    for part in http_parts(view) {
        for (backend, backend_name) in part.status.backends.iter().zip(part.backends) {
            let failed = &backend.health.requests_failed;
            reasons(emit, &[part.name, backend_name], failed, faults(), |count: &u64| *count);
        }
    }
}

/// A histogram of each service, with a bound for some of its buckets: the first one, and each so many further.
fn histograms(
    view: &MetricView<'_>,
    emit: &mut Emit<'_>,
    of: impl Fn(&ServiceStatus) -> Option<&Histogram>,
    bounds: (usize, usize),
) {
    for part in http_parts(view).iter().filter(|part| part.labels[1].is_empty()) {
        if let Some(histogram) = of(part.status).filter(|histogram| !histogram.buckets.is_empty()) {
            let buckets = merged(&histogram.buckets, bounds);
            emit(&part.labels[..1], SampleValue::Histogram { sum: histogram.sum, buckets: &buckets });
        }
    }
}

/// A histogram of each group that had requests.
fn of_groups(
    view: &MetricView<'_>,
    emit: &mut Emit<'_>,
    of: impl Fn(&ServiceStatus) -> Option<&Histogram>,
    bounds: (usize, usize),
) {
    for part in http_parts(view).iter().filter(|part| !part.labels[1].is_empty()) {
        let histogram = of(part.status).filter(|one| one.buckets.iter().any(|(_, count)| *count > 0));
        if let Some(histogram) = histogram {
            let buckets = merged(&histogram.buckets, bounds);
            emit(&part.labels, SampleValue::Histogram { sum: histogram.sum, buckets: &buckets });
        }
    }
}

fn time(service: &ServiceStatus, which: usize) -> Option<&Histogram> {
    service.times.as_ref().map(|times| &times.histograms[which])
}

fn size(service: &ServiceStatus, which: usize) -> Option<&Histogram> {
    service.sizes.as_ref().map(|sizes| &sizes.histograms[which])
}

/// Of buckets that are counted finely, fewer: a service may have 120 series in all.
fn merged(buckets: &[(f64, u64)], (first, step): (usize, usize)) -> Vec<(f64, u64)> {
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

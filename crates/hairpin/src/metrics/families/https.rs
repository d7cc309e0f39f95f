//! The metrics of services whose TLS ends here. Without any, there are no samples.

use super::{Emit, MetricFamily, MetricKind, MetricView, NONE, family};
use std::collections::BTreeMap;

/// All of them, in the order in which they are written.
pub(super) const FAMILIES: &[MetricFamily] = &[
    family!(
        Counter,
        "https_handshakes",
        &["kind"],
        "TLS handshakes completed: full ones, and those that resumed a session.",
        |view, emit| {
            if let Some(https) = &view.status.https {
                let resumed = https.resumed.total;
                emit(&["full"], https.handshakes.total.saturating_sub(resumed).into());
                emit(&["resumed"], resumed.into());
            }
        }
    ),
    family!(
        Counter,
        "https_events",
        &["event"],
        "What else happened to connections of HTTPS services, by name: failed and slow handshakes, HTTP/2 connections and what \
         they were refused for.",
        |view, emit| {
            for (event, count) in view.status.https.iter().flat_map(|https| &https.events) {
                emit(&[event], count.total.into());
            }
        }
    ),
    family!(
        Gauge,
        "https_draining_processes",
        NONE,
        "Processes that have handed over in an upgrade, and still serve connections of HTTPS services.",
        |view, emit| {
            if view.status.https.is_some() {
                emit(&[], (view.status.draining.len() as u64).into());
            }
        }
    ),
    family!(
        Gauge,
        "https_draining_connections",
        NONE,
        "Clients' connections that such processes still have; other metrics do not count them.",
        |view, emit| {
            if view.status.https.is_some() {
                emit(&[], view.status.draining.iter().map(|process| process.connections).sum::<u64>().into());
            }
        }
    ),
    family!(Gauge, "https_certificates", NONE, "Certificates that are served.", |view, emit| {
        if let Some(https) = &view.status.https {
            emit(&[], (https.certificates.len() as u64).into());
        }
    }),
    family!(
        Gauge,
        "https_certificate_expiry_seconds",
        &["service"],
        "When the first of a service's certificates expires, in seconds since 1970; 0 as long as one that signs itself is served.",
        expiry
    ),
];

fn expiry(view: &MetricView<'_>, emit: &mut Emit<'_>) {
    let mut first: BTreeMap<&str, i64> = BTreeMap::new();
    for certificate in view.status.https.iter().flat_map(|https| &https.certificates) {
        // Clients trust no placeholder: it is as good as expired.
        let expires = if certificate.placeholder { 0 } else { certificate.valid_until_unix_s };
        let until = first.entry(&certificate.service).or_insert(expires);
        *until = (*until).min(expires);
    }
    for (service, (name, _)) in view.status.services.iter().zip(&view.names.services) {
        if let Some(until) = first.get(service.name.as_str()) {
            emit(&[name], u64::try_from(*until).unwrap_or(0).into());
        }
    }
}

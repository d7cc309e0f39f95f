//! HTTP and TLS services, as tables.

use super::units::{brief, bytes};
use super::{add, aligned, number};
use crate::status::{Count, HttpStatus, ServiceStatus};
use comfy_table::Table;

/// The numbers of connections and buffers, and their limits.
pub(super) fn room(http: &HttpStatus) -> Table {
    let mut table = aligned(&["HTTP AND TLS"], &["NOW", "PEAK", "MAX"]);
    let numbers = |numbers: [Option<u64>; 3]| numbers.map(|n| n.map_or_else(String::new, |n| number(n as f64)));
    let entries = [Some(http.clients_entries), Some(http.clients_peak), Some(http.clients_max)];
    add(&mut table, &["clients' connections"], &numbers([Some(http.clients), None, None]));
    add(&mut table, &["  with those that are over"], &numbers(entries));
    add(&mut table, &["connections to backends"], &numbers([Some(http.backend_connections), None, None]));
    add(&mut table, &["  idle"], &numbers([Some(http.backend_connections_idle), None, None]));
    add(&mut table, &["buffers"], &numbers([Some(http.buffers), None, Some(http.buffers_max)]));
    table
}

/// How long the requests of services took since the process began; `None`: there were none.
pub(super) fn times(services: &[ServiceStatus]) -> Option<Table> {
    let mut table = aligned(&["REQUESTS", "UNTIL"], &["P50", "P90", "P99", "MAX", "COUNT"]);
    for service in services {
        let Some(times) = &service.times else { continue };
        let all = [
            ("connected to a backend", times.to_backend_us),
            ("answered by it", times.to_response_us),
            ("with the client", times.in_all_us),
            ("TLS handshake", times.tls_handshake_us.unwrap_or_default()),
        ];
        for (until, view) in all.into_iter().filter(|(_, view)| view.count > 0) {
            let percentiles = [view.p50, view.p90, view.p99, view.max].map(brief);
            let numbers: Vec<String> = percentiles.into_iter().chain([number(view.count as f64)]).collect();
            add(&mut table, &[&service.name, until], &numbers);
        }
    }
    (table.row_count() > 0).then_some(table)
}

/// How many bytes requests and responses had since the process began; `None`: there were none.
pub(super) fn sizes(services: &[ServiceStatus]) -> Option<Table> {
    let mut table = aligned(&["REQUESTS", "BYTES"], &["P50", "P90", "P99", "MAX", "COUNT"]);
    for service in services {
        let Some(sizes) = &service.sizes else { continue };
        for (what, view) in [("of the request", sizes.request_bytes), ("of the response", sizes.response_bytes)] {
            if view.count > 0 {
                let percentiles = [view.p50, view.p90, view.p99, view.max].map(bytes);
                let numbers: Vec<String> = percentiles.into_iter().chain([number(view.count as f64)]).collect();
                add(&mut table, &[&service.name, what], &numbers);
            }
        }
    }
    (table.row_count() > 0).then_some(table)
}

/// The totals so far. Those that are zero are left out, except requests and responses.
pub(super) fn counts(http: &HttpStatus) -> Table {
    let mut table = aligned(&["SO FAR"], &["TOTAL", "/s"]);
    let mut row = |name: &str, count: &Count| {
        add(&mut table, &[name], &[number(count.total as f64), number(count.per_s)]);
    };
    row("requests", &http.requests);
    for (class, count) in http.responses.iter().filter(|(class, count)| *class == "2xx" || count.total > 0) {
        row(&format!("responses {class}"), count);
    }
    if http.replies.total > 0 {
        row("replies of Hairpin's own", &http.replies);
    }
    for (reason, count) in &http.refused {
        row(&format!("refused: {reason}"), count);
    }
    let totals = [
        ("requests over a connection that was there", http.reused_total),
        ("tried on another backend", http.retries_total),
        ("backends skipped that agreed to less", http.skipped_total),
        ("backends' connections closed after losses", http.retired_total),
        ("backends' connections without timestamps", http.timestamps_declined_total),
        ("senders told after a start not to wait", http.reminded_total),
        ("bodies handed to the engine", http.offloaded_total),
        ("sent again", http.retransmitted_total),
        ("dropped out of order", http.out_of_order_total),
        ("dropped as no record of chunks had room", http.unrecorded_total),
        ("acknowledgements superseded by the next", http.acknowledgements_superseded_total),
        ("no buffer", http.buffers_exhausted_total),
        ("cookies sent by workers", http.cookies_sent_total),
        ("cookies invalid", http.cookies_invalid_total),
        ("cookies used before", http.cookies_used_total),
        ("ended connections forgotten early", http.ended_overwritten_total),
    ];
    for (name, total) in totals.into_iter().filter(|(_, total)| *total > 0) {
        add(&mut table, &[name], &[number(total as f64), String::new()]);
    }
    table
}

/// From how many bytes on bodies are handed to the engine, and why.
pub(super) fn threshold(http: &HttpStatus) -> String {
    let bytes = size(http.offload_bytes_min);
    let of_rules = match http.rule_pair_us {
        0.0 => "what rules cost is not measured yet".to_string(),
        us => format!("a pair of rules costs a worker {us:.1} us"),
    };
    let of_frames = match http.body_frame_us {
        0.0 => "what frames of bodies cost is not measured yet".to_string(),
        us => format!("a frame of a body, {} on average, {us:.1} us", size(http.body_frame_bytes)),
    };
    format!("bodies are handed to the engine from {bytes} on, unless configured otherwise: {of_rules}; {of_frames}")
}

fn size(bytes: u64) -> String {
    match bytes {
        0..10_240 => format!("{bytes} bytes"),
        _ => format!("{} KiB", bytes >> 10),
    }
}

#[cfg(test)]
mod tests {
    use super::super::squeezed;
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn what_never_happened_is_left_out() {
        let count = |total, per_s| Count { total, per_s };
        let responses = ["1xx", "2xx", "3xx", "4xx", "5xx"].map(|class| (class.to_string(), Count::default()));
        let mut http = HttpStatus {
            clients: 3,
            clients_entries: 8,
            clients_peak: 12,
            clients_max: 65_536,
            backend_connections: 5,
            backend_connections_idle: 4,
            requests: count(1234, 12.0),
            responses: BTreeMap::from(responses),
            buffers: 2,
            buffers_max: 70_000,
            reused_total: 1000,
            ..HttpStatus::default()
        };
        http.responses.insert("5xx".into(), count(4, 1.0));
        http.refused.insert("no-route".into(), count(7, 0.0));
        let room = squeezed(&room(&http).to_string());
        assert_eq!(
            room,
            [
                "HTTP AND TLS NOW PEAK MAX",
                "clients' connections 3",
                "with those that are over 8 12 65536",
                "connections to backends 5",
                "idle 4",
                "buffers 2 70000",
            ]
        );
        let counts = squeezed(&counts(&http).to_string());
        assert_eq!(
            counts,
            [
                "SO FAR TOTAL /s",
                "requests 1234 12",
                "responses 2xx 0 0",
                "responses 5xx 4 1",
                "refused: no-route 7 0",
                "requests over a connection that was there 1000",
            ]
        );
    }

    #[test]
    fn the_threshold_comes_with_its_reasons() {
        let mut http = HttpStatus { offload_bytes_min: 262_144, ..HttpStatus::default() };
        let start = "bodies are handed to the engine from 256 KiB on, unless configured otherwise: ";
        let unknown = "what rules cost is not measured yet; what frames of bodies cost is not measured yet";
        assert_eq!(threshold(&http), format!("{start}{unknown}"));
        (http.rule_pair_us, http.body_frame_us, http.body_frame_bytes) = (8.25, 1.5, 1514);
        let known = "a pair of rules costs a worker 8.2 us; a frame of a body, 1514 bytes on average, 1.5 us";
        assert_eq!(threshold(&http), format!("{start}{known}"));
    }
}

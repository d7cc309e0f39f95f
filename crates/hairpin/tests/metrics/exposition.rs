//! The numbers of a status as Prometheus sees them.

use crate::client::{get, get_with, server};
use crate::parser::{Format, Page, parse};
use hairpin::metrics::families;
use hairpin::status::*;
use std::collections::{BTreeMap, BTreeSet};

const OPEN_METRICS: &str = "Accept: application/openmetrics-text; version=1.0.0\r\n";

/// Both forms of the metrics of `status`.
fn pages(status: &Status) -> [Page; 2] {
    let server = server(status.clone());
    let open_metrics = get_with(server.address(), "/metrics", OPEN_METRICS);
    let content_type = open_metrics.header("content-type");
    assert_eq!(content_type, Some("application/openmetrics-text; version=1.0.0; charset=utf-8"));
    let prometheus = get(server.address(), "/metrics");
    assert_eq!(prometheus.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    let read = |format, text: &str| parse(format, text).unwrap_or_else(|wrong| panic!("{wrong}\n{text}"));
    [read(Format::OpenMetrics, &open_metrics.body), read(Format::Prometheus, &prometheus.body)]
}

fn traffic(packets: u64, bytes: u64) -> Traffic {
    Traffic { packets, bytes, ..Traffic::default() }
}

pub(crate) fn backend(name: &str, address: &str) -> BackendStatus {
    BackendStatus { name: name.into(), address: address.into(), state: "enabled".into(), ..BackendStatus::default() }
}

/// What a service or group with requests has.
fn times() -> RequestTimesStatus {
    let buckets = |bucket: i32| (2f64.powi(bucket) / 1e6, u64::from(bucket == 9) * 5);
    let histograms = [0.25, 0.5, 1.0, 0.125].map(|sum| Histogram { buckets: (0..27).map(buckets).collect(), sum });
    RequestTimesStatus { histograms, ..RequestTimesStatus::default() }
}

/// Likewise.
fn sizes() -> RequestSizesStatus {
    let buckets = (0..14).map(|bucket: i32| (4f64.powi(bucket + 3), u64::from(bucket == 2)));
    let sizes = Histogram { buckets: buckets.collect(), sum: 900.0 };
    RequestSizesStatus { histograms: [sizes.clone(), sizes], ..RequestSizesStatus::default() }
}

/// A status that has something to say about everything.
pub(crate) fn full_status() -> Status {
    let health = HealthStatus {
        settling: false,
        state: "down".into(),
        reason: "connection refused".into(),
        since_unix_s: 1_700_000_000.5,
        checks_total: 10,
        failed_total: 3,
        last_duration_s: 0.25,
        weight_share: 0.5,
        passive_failed_total: 4,
        requests_failed: BTreeMap::new(),
    };
    let web_1 = BackendStatus {
        weight: 3,
        health,
        connections: 5,
        connections_total: 50,
        software: traffic(100, 1000),
        offloaded: traffic(900, 90_000),
        ..backend("web1", "10.0.0.1:80")
    };
    let web_2 = BackendStatus { state: "drain".into(), connections: 1, ..backend("web2", "10.0.0.2:80") };
    let service = ServiceStatus {
        name: "web".into(),
        listen: "192.0.2.1:80/tcp".into(),
        established_total: 49,
        refused_total: 2,
        access: vec![AccessStatus { rule: 1, action: "deny".into(), packets_total: 3 }],
        limits: vec![LimitStatus { limit: 1, admitted_total: 7, refused_total: 4, ..LimitStatus::default() }],
        backends: vec![web_1, web_2],
        ..ServiceStatus::default()
    };
    let count = |total| Count { total, per_s: 0.0 };
    let failing = HealthStatus {
        passive_failed_total: 9,
        requests_failed: BTreeMap::from([("lost".into(), 2), ("status".into(), 6)]),
        ..HealthStatus::default()
    };
    let responses = BTreeMap::from([("2xx".into(), 27), ("5xx".into(), 1)]);
    let ejection =
        Some(EjectionStatus { ejected: true, ejections_total: 2, prevented_total: 1, ..EjectionStatus::default() });
    let failing = BackendStatus { health: failing, ejection, responses, ..backend("shop1", "10.0.0.3:80") };
    let of_group = BackendStatus { responses: [("2xx".into(), 5)].into(), ..backend("files1", "10.0.0.4:80") };
    let files = ServiceStatus {
        name: "shop/files".into(),
        protocol: "group".into(),
        group_of: Some("shop".into()),
        backends: vec![of_group],
        times: Some(times()),
        sizes: Some(sizes()),
        ..ServiceStatus::default()
    };
    let shop = ServiceStatus {
        name: "shop".into(),
        listen: "192.0.2.1:8080/http".into(),
        protocol: "http".into(),
        backends: vec![failing],
        connections: 4,
        requests: Some(count(31)),
        times: Some(times()),
        sizes: Some(sizes()),
        replies: ["2xx", "3xx", "4xx", "5xx"].map(|class| (class.to_string(), 2)).into(),
        ..ServiceStatus::default()
    };
    let http = HttpStatus {
        clients_peak: 7,
        clients_max: 512,
        backend_connections: 9,
        backend_connections_idle: 6,
        responses: BTreeMap::from([("2xx".into(), count(27)), ("5xx".into(), count(1))]),
        replies: count(3),
        refused: BTreeMap::from([("no-route".into(), count(2))]),
        offloaded_total: 13,
        buffers_max: 640,
        ..HttpStatus::default()
    };
    let certificate =
        CertificateStatus { service: "shop".into(), valid_until_unix_s: 1_800_000_000, ..CertificateStatus::default() };
    let https = HttpsStatus {
        handshakes: count(6),
        resumed: count(2),
        events: BTreeMap::from([("clear-text".into(), count(1))]),
        certificates: vec![certificate.clone(), CertificateStatus { valid_until_unix_s: 1_700_000_000, ..certificate }],
    };
    let worker = WorkerStatus { busy_s: 1.5, connections: 6, connections_max: 100, ..WorkerStatus::default() };
    Status {
        version: "1.2.3".into(),
        instance: "edge".into(),
        connection_table: "concurrent".into(),
        uptime_s: 61.5,
        workers: vec![worker, WorkerStatus { id: 1, frames: 7, ..WorkerStatus::default() }],
        services: vec![service, shop, files],
        http: Some(http),
        https: Some(https),
        draining: vec![DrainingStatus { pid: 7, connections: 3, ..DrainingStatus::default() }; 2],
        api: Some(ApiStatus {
            writes_total: 2,
            answers_total: BTreeMap::from([("200".to_owned(), 5)]),
            connections_closed_total: BTreeMap::from([("busy".to_owned(), 1)]),
            ..ApiStatus::default()
        }),
        access_log: Some(AccessLogStatus { to: "stdout".into(), lines_total: 9, ..AccessLogStatus::default() }),
        tracing: Some(TracingStatus {
            spans_exported_total: 8,
            spans_lost_total: BTreeMap::from([("queue-full".into(), 2)]),
            ..TracingStatus::default()
        }),
        monitors: vec![MonitorStatus {
            name: "edge".into(),
            flows_max: 64,
            reports_total: BTreeMap::from([("end".into(), 4)]),
            ..MonitorStatus::default()
        }],
        resolver: Some(ResolverStatus { names: vec![NameStatus::default()], ..ResolverStatus::default() }),
        acme: Some(AcmeStatus {
            obtained_total: 3,
            failed_total: 1,
            names: vec![AcmeNameStatus {
                name: "a.test".into(),
                failures: 1,
                next_order_unix_s: 9,
                ..Default::default()
            }],
            ..AcmeStatus::default()
        }),
        offload: OffloadStatus {
            engine_counts: [("refused".to_string(), 3)].into(),
            rules: 12,
            rules_max: 1000,
            installed_total: 40,
            removed_total: 28,
            not_offloaded: BTreeMap::from([("engine-full".into(), 3)]),
            latency: vec![(0.000_001, 1), (0.001, 2), (1.0, 4)],
            latency_sum_s: 2.5,
            ..OffloadStatus::default()
        },
        drops: BTreeMap::from([
            ("worker.table-full".into(), Count { total: 9, per_s: 0.0 }),
            ("kernel.new-in-this-version".into(), Count { total: 1, per_s: 0.0 }),
        ]),
        capacity: CapacityStatus {
            connections: 6,
            entries: 9,
            connections_peak: 60,
            connections_max: 200,
            table_full_total: 9,
            evicted_total: 8,
            rules_state: "nearly-full".into(),
            ..CapacityStatus::default()
        },
        reloads: ReloadStatus {
            succeeded_total: 2,
            failed_total: 1,
            last_unix_s: 1_700_000_100,
            ..ReloadStatus::default()
        },
        adopted_connections: 11,
        adopted_http: AdoptedHttpStatus { clients: 12, interrupted: 3, ..AdoptedHttpStatus::default() },
        ports: vec![PortStatus {
            device: "net_memif0,role=client".into(),
            received: 5,
            missed: 2,
            ..PortStatus::default()
        }],
        ..Status::default()
    }
}

#[test]
fn numbers_are_where_they_belong() {
    let web_1 = [("service", "web"), ("backend", "web1")];
    let with = |name, value| [web_1[0], web_1[1], (name, value)];
    let kernel = ("engine", "kernel");
    for page in pages(&full_status()) {
        assert_eq!(page.value("hairpin_build_info", &[("version", "1.2.3"), ("name", "edge")]), 1.0);
        assert_eq!(page.value("hairpin_connection_table_info", &[("method", "concurrent")]), 1.0);
        assert_eq!(page.value("hairpin_uptime_seconds", &[]), 61.5);
        assert_eq!(page.value("hairpin_adopted_connections", &[]), 11.0);
        let adopted = |fate| page.value("hairpin_adopted_http_connections", &[("fate", fate)]);
        assert_eq!((adopted("client"), adopted("interrupted"), adopted("misplaced")), (12.0, 3.0, 0.0));
        assert_eq!(page.value("hairpin_table_connections", &[]), 6.0);
        assert_eq!(page.value("hairpin_table_entries", &[]), 9.0);
        assert_eq!(page.value("hairpin_table_connections_peak", &[]), 60.0);
        assert_eq!(page.value("hairpin_table_connections_max", &[]), 200.0);
        assert_eq!(page.value("hairpin_table_insert_failures_total", &[]), 9.0);
        assert_eq!(page.value("hairpin_evictions_total", &[("reason", "table-full")]), 8.0);
        assert_eq!(page.value("hairpin_engine_rules_total", &[("event", "refused")]), 3.0);
        assert_eq!(page.value("hairpin_connections", &web_1), 5.0);
        assert_eq!(page.value("hairpin_connections_opened_total", &web_1), 50.0);
        assert_eq!(page.value("hairpin_connections_established_total", &[web_1[0]]), 49.0);
        assert_eq!(page.value("hairpin_connections_refused_total", &[web_1[0]]), 2.0);
        assert_eq!(page.value("hairpin_packets_total", &with("path", "software")), 100.0);
        assert_eq!(page.value("hairpin_bytes_total", &with("path", "offloaded")), 90_000.0);
        assert_eq!(page.value("hairpin_backend_weight", &web_1), 3.0);
        assert_eq!(page.value("hairpin_backend_state", &with("state", "enabled")), 1.0);
        assert_eq!(page.value("hairpin_backend_state", &with("state", "drain")), 0.0);
        assert_eq!(page.value("hairpin_backend_draining", &[web_1[0], ("backend", "web2")]), 1.0);
        assert_eq!(page.value("hairpin_backend_up", &web_1), 0.0);
        assert_eq!(page.value("hairpin_backend_health_changed_timestamp_seconds", &web_1), 1_700_000_000.5);
        assert_eq!(page.value("hairpin_backend_weight_share", &web_1), 0.5);
        assert_eq!(page.value("hairpin_health_checks_total", &with("result", "success")), 7.0);
        assert_eq!(page.value("hairpin_health_checks_total", &with("result", "failure")), 3.0);
        assert_eq!(page.value("hairpin_health_check_duration_seconds", &web_1), 0.25);
        assert_eq!(page.value("hairpin_backend_handshakes_failed_total", &web_1), 4.0);
        assert_eq!(page.value("hairpin_worker_busy_seconds_total", &[("worker", "0")]), 1.5);
        assert_eq!(page.value("hairpin_worker_frames_total", &[("worker", "1")]), 7.0);
        assert_eq!(page.value("hairpin_rules", &[kernel]), 12.0);
        assert_eq!(page.value("hairpin_rules_max", &[kernel]), 1000.0);
        assert_eq!(page.value("hairpin_rules_full", &[kernel]), 1.0);
        assert_eq!(page.value("hairpin_rules_installed_total", &[kernel]), 40.0);
        assert_eq!(page.value("hairpin_rules_removed_total", &[kernel]), 28.0);
        assert_eq!(page.value("hairpin_rule_refusals_total", &[kernel, ("reason", "engine-full")]), 3.0);
        assert_eq!(page.value("hairpin_rule_refusals_total", &[kernel, ("reason", "queue-full")]), 0.0);
        assert_eq!(page.value("hairpin_rule_insertion_seconds_sum", &[kernel]), 2.5);
        assert_eq!(page.value("hairpin_rule_insertion_seconds_count", &[kernel]), 7.0);
        let bucket = |upper: f64| {
            let of = |labels: &BTreeMap<String, String>| labels["le"].parse::<f64>().unwrap();
            page.named("hairpin_rule_insertion_seconds_bucket").find(|(labels, _)| of(labels) == upper).unwrap().1
        };
        assert_eq!([0.000_001, 0.001, 1.0, f64::INFINITY].map(bucket), [1.0, 3.0, 7.0, 7.0]);
        assert_eq!(page.value("hairpin_drops_total", &[("reason", "worker.table-full")]), 9.0);
        assert_eq!(page.value("hairpin_drops_total", &[("reason", "kernel.new-in-this-version")]), 1.0);
        let shop = [("service", "shop")];
        assert_eq!(page.value("hairpin_http_requests_total", &shop), 31.0);
        let failed = |reason| [("service", "shop"), ("backend", "shop1"), ("reason", reason)];
        let failed = ["lost", "silent", "status"]
            .map(|reason| page.value("hairpin_http_requests_failed_total", &failed(reason)));
        assert_eq!(failed, [2.0, 0.0, 6.0]);
        assert_eq!(page.named("hairpin_http_requests_failed_total").count(), 6, "no other service speaks HTTP");
        let shop_1 = [("service", "shop"), ("backend", "shop1")];
        assert_eq!(page.value("hairpin_backend_handshakes_failed_total", &shop_1), 1.0);
        assert_eq!(page.value("hairpin_backend_ejected", &shop_1), 1.0);
        let ejections = |result| [shop_1[0], shop_1[1], ("result", result)];
        let ejections = ["done", "prevented"].map(|it| page.value("hairpin_backend_ejections_total", &ejections(it)));
        assert_eq!(ejections, [2.0, 1.0]);
        assert_eq!(page.named("hairpin_backend_ejected").count(), 1, "no other service ejects");
        assert_eq!(page.value("hairpin_http_clients", &shop), 4.0);
        assert_eq!(page.named("hairpin_http_clients").count(), 1, "no other service speaks HTTP");
        assert_eq!([7.0, 512.0], ["peak", "max"].map(|what| page.value(&format!("hairpin_http_clients_{what}"), &[])));
        assert_eq!(page.value("hairpin_http_backend_connections", &[("state", "busy")]), 3.0);
        assert_eq!(page.value("hairpin_http_backend_connections", &[("state", "idle")]), 6.0);
        let responses = |group, backend| {
            let labels = [("service", "shop"), ("group", group), ("backend", backend), ("class", "2xx")];
            page.value("hairpin_http_responses_total", &labels)
        };
        assert_eq!([responses("", "shop1"), responses("files", "files1")], [27.0, 5.0]);
        assert_eq!(page.named("hairpin_http_responses_total").count(), 3, "no other service speaks HTTP");
        assert_eq!(page.value("hairpin_http_replies_total", &[]), 3.0);
        assert_eq!(page.value("hairpin_http_refusals_total", &[("reason", "no-route")]), 2.0);
        assert_eq!(page.value("hairpin_http_refusals_total", &[("reason", "vanished")]), 0.0);
        assert_eq!(page.value("hairpin_http_bodies_offloaded_total", &[]), 13.0);
        assert_eq!(page.value("hairpin_http_buffers_max", &[]), 640.0);
        assert_eq!(page.value("hairpin_reloads_total", &[("result", "success")]), 2.0);
        assert_eq!(page.value("hairpin_reloads_total", &[("result", "failure")]), 1.0);
        assert_eq!(page.value("hairpin_last_reload_timestamp_seconds", &[]), 1_700_000_100.0);
        assert_eq!(page.value("hairpin_last_reload_successful", &[]), 0.0);
    }
}

/// A Prometheus that scrapes a large instance has a bound on what it takes.
#[test]
fn series_of_services_and_backends_are_bounded() {
    let [_, page] = pages(&full_status());
    let mut counts = BTreeMap::new();
    for (_, labels) in page.series.keys() {
        let of = |name: &str| labels.get(name).map_or("", |value| value);
        *counts.entry((of("service"), of("group"), of("backend"))).or_insert(0) += 1;
    }
    assert!(counts[&("shop", "", "")] > 90, "it has histograms");
    for ((service, group, backend), count) in counts {
        let most = if backend.is_empty() { 120 } else { 40 };
        assert!(service.is_empty() || count <= most, "{count} series of {service} {group} {backend}");
    }
    assert_eq!(page.value("hairpin_http_request_seconds_sum", &[("service", "shop")]), 1.0);
}

#[test]
fn both_forms_have_the_same_series_and_every_family_has_some() {
    let [open_metrics, prometheus] = pages(&full_status());
    let series = |page: &Page| page.series.keys().cloned().collect::<BTreeSet<_>>();
    assert_eq!(series(&open_metrics), series(&prometheus));
    assert_eq!(open_metrics.families.len(), families::all().count());
    for (family, (kind, help)) in &prometheus.families {
        let base = if kind == "histogram" { format!("{family}_count") } else { family.clone() };
        assert!(prometheus.named(&base).next().is_some(), "{family} has no sample");
        assert!(family.starts_with("hairpin_") && help.ends_with('.'), "{family}: {help}");
        assert_eq!(kind == "counter", family.ends_with("_total"), "{family}");
    }
}

#[test]
fn a_status_with_nothing_in_it_is_fine() {
    let [page, _] = pages(&Status::default());
    assert_eq!(page.value("hairpin_rule_insertion_seconds_count", &[("engine", "kernel")]), 0.0);
    assert_eq!(page.named("hairpin_backend_up").count(), 0);
    assert_eq!(page.named("hairpin_last_reload_timestamp_seconds").count(), 0);
    assert_eq!(page.named("hairpin_http_replies_total").count(), 0);
    // A rate over these sees the first one only if it has seen them at zero.
    assert_eq!(page.value("hairpin_drops_total", &[("reason", "worker.table-full")]), 0.0);
    assert_eq!(page.value("hairpin_drops_total", &[("reason", "kernel.policed-client")]), 0.0);
    assert_eq!(page.value("hairpin_drops_total", &[("reason", "worker.malformed.ip-version")]), 0.0);
    assert_eq!(page.value("hairpin_events_total", &[("event", "kernel.to-worker")]), 0.0);
}

#[test]
fn odd_names_come_through_whole() {
    let odd = "we\"ird\\na\\me}\n# EOF\n{a=\"1\",} 2 ümläut \u{1f980}\t\r";
    let mut status = full_status();
    status.services[0].name = odd.into();
    status.services[0].backends[0].name = odd.into();
    status.instance = odd.into();
    for page in pages(&status) {
        assert_eq!(page.value("hairpin_connections", &[("service", odd), ("backend", odd)]), 5.0);
        assert_eq!(page.value("hairpin_build_info", &[("version", "1.2.3"), ("name", odd)]), 1.0);
    }
}

#[test]
fn a_backend_that_drains_may_have_the_name_of_its_successor() {
    let mut status = full_status();
    let twin = BackendStatus { state: "removed".into(), connections: 4, ..backend("web1", "10.0.0.9:80") };
    status.services[0].backends.push(twin);
    let removed = status.services[0].clone();
    status.services.push(ServiceStatus { listen: "192.0.2.9:80/tcp".into(), state: "removed".into(), ..removed });
    for page in pages(&status) {
        let connections =
            |service, backend| page.value("hairpin_connections", &[("service", service), ("backend", backend)]);
        assert_eq!(connections("web", "web1"), 5.0);
        assert_eq!(connections("web", "web1 (10.0.0.9:80)"), 4.0);
        assert_eq!(connections("web (192.0.2.9:80/tcp)", "web1"), 5.0);
    }
}

#[test]
fn numbers_that_are_none_are_left_out() {
    let mut status = full_status();
    status.uptime_s = f64::NAN;
    status.services[0].backends[0].health.weight_share = f64::INFINITY;
    for page in pages(&status) {
        assert_eq!(page.named("hairpin_uptime_seconds").count(), 0);
        assert_eq!(page.named("hairpin_backend_weight_share").count(), 0);
    }
}

#[test]
fn the_json_is_the_status() {
    let server = server(full_status());
    let response = get(server.address(), "/status");
    assert_eq!(response.header("content-type"), Some("application/json"));
    let mut expected = full_status();
    // Histograms are for metrics alone.
    for service in &mut expected.services {
        service.times.iter_mut().for_each(|times| times.histograms = Default::default());
        service.sizes.iter_mut().for_each(|sizes| sizes.histograms = Default::default());
    }
    assert_eq!(serde_json::from_str::<Status>(&response.body).unwrap(), expected);
}

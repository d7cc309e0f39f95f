//! The tables of a status.

use super::super::squeezed;
use super::*;
use crate::status::{
    AdoptedHttpStatus, BackendStatus, CapacityStatus, HealthStatus, OffloadStatus, ReloadStatus, ServiceStatus,
    WorkerStatus,
};

#[test]
fn a_status_is_rendered_with_units() {
    let traffic = |packets| Traffic { packets, bytes: packets * 1000, packets_per_s: 1500.0, bits_per_s: 12e6 };
    let backend = BackendStatus {
        name: "web-1".into(),
        address: "10.0.2.11:8080".into(),
        weight: 2,
        state: "enabled".into(),
        connections: 7,
        connections_total: 70,
        connections_per_s: 3.0,
        software: traffic(10),
        offloaded: traffic(90),
        ..BackendStatus::default()
    };
    let service = ServiceStatus {
        name: "web".into(),
        listen: "192.0.2.10:80/tcp".into(),
        mode: "nat".into(),
        balance: "maglev".into(),
        connections: 7,
        connections_total: 70,
        software: traffic(10),
        offloaded: traffic(90),
        offloaded_share: 0.9,
        backends: vec![backend],
        ..ServiceStatus::default()
    };
    let all = Status {
        version: "1.2.3".into(),
        instance: "edge".into(),
        pid: 42,
        uptime_s: 61.5,
        interfaces: vec!["eth0".into(), "eth1".into()],
        workers: vec![WorkerStatus { id: 0, cpu: 1, busy_share: 0.125, frames: 200_000, ..WorkerStatus::default() }],
        services: vec![service],
        offload: OffloadStatus {
            policy: "always".into(),
            rules: 14,
            rules_max: 262_144,
            not_offloaded: BTreeMap::from([("engine-full".to_string(), 3)]),
            ..OffloadStatus::default()
        },
        drops: BTreeMap::from([("kernel.policed-client".to_string(), Count { total: 1234, per_s: 9.6 })]),
        events: BTreeMap::new(),
        ..Status::default()
    };
    let text = status(&all, None);
    assert_eq!(
        squeezed(&text),
        [
            "hairpin 1.2.3, instance edge, process 42, up 1m 1s, on eth0, eth1",
            "",
            "SERVICE LISTEN MODE BALANCE WEIGHT STATE CONNS TOTAL NEW/s SOFTWARE OFFLOADED SHARE",
            "web 192.0.2.10:80/tcp nat maglev 7 70 0 1.50 kpacket/s 12.0 Mbit/s 1.50 kpacket/s 12.0 Mbit/s 90.0 %",
            "web-1 10.0.2.11:8080 2 enabled 7 70 3 1.50 kpacket/s 12.0 Mbit/s 1.50 kpacket/s 12.0 Mbit/s 90.0 %",
            "",
            "WORKER CORE BUSY CONNS ENTRIES MAX PASSES FRAMES FRAMES/s FORWARDED TO KERNEL ANSWERED",
            "0 1 12.5 % 0 0 0 0 200 k 0 0 0 0",
            "",
            "POLICY RULES MAX INSTALLED /s REMOVED /s",
            "always 14 262 k 0 0 0 0",
            "not offloaded: engine-full 3",
            "",
            "DROPPED PACKETS /s",
            "kernel.policed-client 1234 10",
        ]
    );
    let narrow = status(&all, Some(80));
    assert!(narrow.lines().all(|line| line.chars().count() <= 80), "{narrow}");
    let lines = squeezed(&narrow);
    assert_eq!(lines[2], "SERVICE LISTEN STATE CONNS NEW/s OFFLOADED SHARE");
    assert_eq!(lines[3], "web 192.0.2.10:80/tcp 7 0 1.50 kpacket/s 90.0 %");
    assert_eq!(lines[4], "web-1 10.0.2.11:8080 enabled 7 3 1.50 kpacket/s 90.0 %");
    assert_eq!(status(&all, Some(300)), text);
}

#[test]
fn health_and_overrides_are_shown() {
    let backend = |name: &str, state: &str, health: HealthStatus, overridden| BackendStatus {
        name: name.into(),
        state: state.into(),
        overridden,
        health,
        ..BackendStatus::default()
    };
    let health = |state: &str, reason: &str, since_unix_s, weight_share| HealthStatus {
        settling: false,
        state: state.into(),
        reason: reason.into(),
        since_unix_s,
        checks_total: 10,
        failed_total: 3,
        last_duration_s: 0.0125,
        weight_share,
        passive_failed_total: 2,
        requests_failed: BTreeMap::new(),
    };
    let backends = vec![
        backend("web-1", "enabled", health("down", "connection refused", 900.0, 1.0), false),
        backend("web-2", "drain", health("up", "", 400.0, 0.25), true),
        backend("web-3", "enabled", HealthStatus { state: "unchecked".into(), ..HealthStatus::default() }, false),
    ];
    let removed = ServiceStatus { name: "web".into(), state: "removed".into(), backends, ..ServiceStatus::default() };
    let text = status_at(&Status { services: vec![removed], ..Status::default() }, 1000.0, None);
    let lines = squeezed(&text);
    let starts = |start: &str| lines.iter().any(|line| line.starts_with(start));
    assert!(starts("web removed 0 0"), "{text}");
    assert!(starts("web-1 0 enabled, down 0"), "{text}");
    assert!(starts("web-2 0 drain (override) 0"), "{text}");
    assert!(starts("web-3 0 enabled 0"), "{text}");
    assert!(lines.contains(&"BACKEND SERVICE HEALTH SINCE CHECKS FAILED TOOK PASSIVE WEIGHT REASON".into()), "{text}");
    assert!(lines.contains(&"web-1 web down 1m40s ago 10 3 12.5 ms 2 100 % connection refused".into()), "{text}");
    assert!(lines.contains(&"web-2 web up 10m00s ago 10 3 12.5 ms 2 25 %".into()), "{text}");
    assert!(!starts("web-3 web"), "{text}");
}

#[test]
fn what_is_full_is_said_in_words() {
    let mut all = Status {
        capacity: CapacityStatus {
            connections: 900,
            entries: 950,
            connections_peak: 990,
            connections_max: 1000,
            connections_state: "nearly-full".into(),
            rules_state: "ok".into(),
            ..CapacityStatus::default()
        },
        ..Status::default()
    };
    let line = |all: &Status| squeezed(&status_at(all, 0.0, None))[1].clone();
    all.services = vec![ServiceStatus { connections: 907, ..ServiceStatus::default() }];
    let expected =
        "connections: 907; connection table: 950 of 1000 entries, at most 990 so far; THE TABLE IS NEARLY FULL";
    assert_eq!(line(&all), expected);
    all.capacity.connections_state = "full".into();
    all.capacity.evicted_total = 7;
    assert!(line(&all).contains("THE TABLE IS FULL: "), "{}", line(&all));
    assert!(line(&all).ends_with("for want of room 7 have given way, 0 were refused"), "{}", line(&all));
    all.capacity.rules_state = "full".into();
    let text = status_at(&all, 0.0, None);
    assert!(text.contains("\nTHE RULES ARE FULL: further connections stay in software\n"), "{text}");
}

#[test]
fn the_beginning_and_the_last_reload_are_told() {
    let all = Status {
        began: "restart".into(),
        adopted_connections: 1234,
        adopted_http: AdoptedHttpStatus { clients: 56, backend_connections: 7, interrupted: 2, ..Default::default() },
        reloads: ReloadStatus {
            succeeded_total: 3,
            failed_total: 1,
            last_unix_s: 940,
            last_succeeded: false,
            last_error: "x.toml:1:1: error: odd\n".into(),
        },
        ..Status::default()
    };
    let lines = squeezed(&status_at(&all, 1000.0, None));
    assert_eq!(
        lines[1],
        "began by a restart: adopted 1234 TCP and UDP connections, 56 of HTTP and TLS services; 2 interrupted by its end"
    );
    assert_eq!(lines[2], "reloads: 3 applied, 1 refused; the last, 1m00s ago, was refused: x.toml:1:1: error: odd");
    assert_eq!(squeezed(&status_at(&Status { began: "fresh".into(), ..Status::default() }, 0.0, None))[1], "");
}

#[test]
fn processes_that_drain_are_told() {
    let draining = DrainingStatus { pid: 7, since_unix_s: 90, ends_unix_s: 150, connections: 1234 };
    let text = status_at(&Status { draining: vec![draining], ..Status::default() }, 100.0, None);
    let line = "process 7 handed over 10s ago: 1234 HTTPS connections are left, and end within 50s";
    assert!(text.lines().any(|shown| shown.replace(' ', "") == line.replace(' ', "")), "{text}");
}

#[test]
fn json_keeps_its_field_names() {
    let value = serde_json::to_value(Status { services: vec![ServiceStatus::default()], ..Status::default() });
    let text = value.unwrap().to_string();
    for name in ["uptime_s", "offloaded_share", "connections_per_s", "packets_per_s", "bits_per_s", "rules_max"] {
        assert!(text.contains(&format!("\"{name}\"")), "{name}: {text}");
    }
}

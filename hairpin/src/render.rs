//! Status for people: tables with units.

use crate::status::{Count, Status, Traffic};
use comfy_table::{Cell, CellAlignment, Table, presets};
use std::collections::BTreeMap;
use std::fmt::Write;

/// The whole status as tables.
pub fn status(status: &Status) -> String {
    let mut out = String::new();
    let uptime = humantime::format_duration(std::time::Duration::from_secs(status.uptime_s as u64));
    let _ = writeln!(
        out,
        "hairpin {}, instance {}, process {}, up {uptime}, on {}",
        status.version,
        status.instance,
        status.pid,
        status.interfaces.join(", ")
    );
    let _ = writeln!(out, "\n{}", services(status));
    let _ = writeln!(out, "\n{}", workers(status));
    let _ = writeln!(out, "\n{}", offload(status));
    if let Some(table) = counts("DROPPED", &status.drops) {
        let _ = writeln!(out, "\n{table}");
    }
    if let Some(table) = counts("EVENT", &status.events) {
        let _ = writeln!(out, "\n{table}");
    }
    trimmed(&out)
}

/// Without the spaces that a table has at its sides.
fn trimmed(text: &str) -> String {
    let line = |line: &str| format!("{}\n", line.strip_prefix(' ').unwrap_or(line).trim_end());
    text.lines().map(line).collect()
}

fn services(status: &Status) -> Table {
    let mut table = aligned(
        &["SERVICE", "LISTEN", "MODE", "BALANCE", "WEIGHT", "STATE"],
        &["CONNS", "TOTAL", "NEW/s", "SOFTWARE", "", "OFFLOADED", "", "SHARE"],
    );
    for service in &status.services {
        let words = [&*service.name, &service.listen, &service.mode, &service.balance, "", ""];
        let share = format!("{:.1} %", service.offloaded_share * 100.0);
        let connections = (service.connections, service.connections_total, service.connections_per_s);
        add(&mut table, &words, &traffic_cells(connections, &service.software, &service.offloaded, share));
        for backend in &service.backends {
            let name = format!("  {}", backend.name);
            let weight = backend.weight.to_string();
            let words = [&*name, &backend.address, "", "", &*weight, &backend.state];
            let all = backend.software.packets + backend.offloaded.packets;
            let share = match all {
                0 => String::new(),
                all => format!("{:.1} %", backend.offloaded.packets as f64 * 100.0 / all as f64),
            };
            let connections = (backend.connections, backend.connections_total, backend.connections_per_s);
            add(&mut table, &words, &traffic_cells(connections, &backend.software, &backend.offloaded, share));
        }
    }
    table
}

fn traffic_cells(
    (now, total, per_s): (u64, u64, f64),
    software: &Traffic,
    offloaded: &Traffic,
    share: String,
) -> [String; 8] {
    [
        number(now as f64),
        number(total as f64),
        number(per_s),
        format!("{}packet/s", scaled(software.packets_per_s)),
        format!("{}bit/s", scaled(software.bits_per_s)),
        format!("{}packet/s", scaled(offloaded.packets_per_s)),
        format!("{}bit/s", scaled(offloaded.bits_per_s)),
        share,
    ]
}

fn workers(status: &Status) -> Table {
    let mut table = aligned(
        &["WORKER", "CORE"],
        &["BUSY", "CONNS", "MAX", "PASSES", "FRAMES", "FRAMES/s", "FORWARDED", "GIVEN BACK", "ANSWERED"],
    );
    for worker in &status.workers {
        let id = worker.id.to_string();
        let cpu = worker.cpu.to_string();
        let numbers = [
            format!("{:.1} %", worker.busy_share * 100.0),
            number(worker.connections as f64),
            number(worker.connections_max as f64),
            number(worker.passes as f64),
            number(worker.frames as f64),
            number(worker.frames_per_s),
            number(worker.forwarded as f64),
            number(worker.given_back as f64),
            number(worker.answered as f64),
        ];
        add(&mut table, &[&id, &cpu], &numbers);
    }
    table
}

fn offload(status: &Status) -> Table {
    let offload = &status.offload;
    let mut table = aligned(&["POLICY"], &["RULES", "MAX", "INSTALLED", "/s", "REMOVED", "/s"]);
    let numbers = [
        number(offload.rules as f64),
        number(offload.rules_max as f64),
        number(offload.installed_total as f64),
        number(offload.installed_per_s),
        number(offload.removed_total as f64),
        number(offload.removed_per_s),
    ];
    add(&mut table, &[&offload.policy], &numbers);
    for (reason, count) in &offload.not_offloaded {
        let row = format!("not offloaded: {reason}");
        add(&mut table, &[&row], &[number(*count as f64)]);
    }
    table
}

fn counts(title: &str, counts: &BTreeMap<String, Count>) -> Option<Table> {
    if counts.is_empty() {
        return None;
    }
    let mut table = aligned(&[title], &["PACKETS", "/s"]);
    for (reason, count) in counts {
        add(&mut table, &[reason], &[number(count.total as f64), number(count.per_s)]);
    }
    Some(table)
}

/// A table without borders: words to the left, numbers to the right.
fn aligned(words: &[&str], numbers: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let numbers = numbers.iter().map(|title| Cell::new(title).set_alignment(CellAlignment::Right));
    table.set_header(words.iter().map(Cell::new).chain(numbers));
    table
}

fn add(table: &mut Table, words: &[&str], numbers: &[String]) {
    let numbers = numbers.iter().map(|text| Cell::new(text).set_alignment(CellAlignment::Right));
    table.add_row(words.iter().map(Cell::new).chain(numbers));
}

/// A count: whole below 100,000, with a prefix above.
fn number(value: f64) -> String {
    if value.round() < 100_000.0 { format!("{value:.0}") } else { scaled(value).trim_end().to_string() }
}

/// Three digits and an SI prefix, ready for a unit: `1.23 G`, `45.6 k`, `789 `.
fn scaled(value: f64) -> String {
    let mut value = value.max(0.0);
    for prefix in ["", "k", "M", "G", "T"] {
        let decimals = match value {
            v if prefix.is_empty() || v >= 99.95 => 0,
            v if v >= 9.995 => 1,
            _ => 2,
        };
        if value < 999.5 || prefix == "T" {
            return format!("{value:.decimals$} {prefix}");
        }
        value /= 1000.0;
    }
    String::new()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::{BackendStatus, OffloadStatus, ServiceStatus, WorkerStatus};

    #[test]
    fn numbers_have_three_digits_and_a_prefix() {
        let texts = [0.0, 0.4, 999.4, 999.6, 1234.0, 45_600.0, 999_499.0, 999_600.0, 7.89e9, 1e13, 2e16].map(scaled);
        let expected =
            ["0 ", "0 ", "999 ", "1.00 k", "1.23 k", "45.6 k", "999 k", "1.00 M", "7.89 G", "10.0 T", "20000 T"];
        assert_eq!(texts, expected);
        assert_eq!([0.0, 99_999.4, 99_999.6, 1e6].map(number), ["0", "99999", "100 k", "1.00 M"]);
    }

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
            workers: vec![WorkerStatus {
                id: 0,
                cpu: 1,
                busy_share: 0.125,
                frames: 200_000,
                ..WorkerStatus::default()
            }],
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
        let text = status(&all);
        let squeezed: Vec<String> =
            text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(
            squeezed,
            [
                "hairpin 1.2.3, instance edge, process 42, up 1m 1s, on eth0, eth1",
                "",
                "SERVICE LISTEN MODE BALANCE WEIGHT STATE CONNS TOTAL NEW/s SOFTWARE OFFLOADED SHARE",
                "web 192.0.2.10:80/tcp nat maglev 7 70 0 1.50 kpacket/s 12.0 Mbit/s 1.50 kpacket/s 12.0 Mbit/s 90.0 %",
                "web-1 10.0.2.11:8080 2 enabled 7 70 3 1.50 kpacket/s 12.0 Mbit/s 1.50 kpacket/s 12.0 Mbit/s 90.0 %",
                "",
                "WORKER CORE BUSY CONNS MAX PASSES FRAMES FRAMES/s FORWARDED GIVEN BACK ANSWERED",
                "0 1 12.5 % 0 0 0 200 k 0 0 0 0",
                "",
                "POLICY RULES MAX INSTALLED /s REMOVED /s",
                "always 14 262 k 0 0 0 0",
                "not offloaded: engine-full 3",
                "",
                "DROPPED PACKETS /s",
                "kernel.policed-client 1234 10",
            ]
        );
    }

    #[test]
    fn json_keeps_its_field_names() {
        let value = serde_json::to_value(Status { services: vec![ServiceStatus::default()], ..Status::default() });
        let text = value.unwrap().to_string();
        for name in ["uptime_s", "offloaded_share", "connections_per_s", "packets_per_s", "bits_per_s", "rules_max"] {
            assert!(text.contains(&format!("\"{name}\"")), "{name}: {text}");
        }
    }
}

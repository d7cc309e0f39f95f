//! The status as tables.

#[cfg(test)]
mod tests;

use super::{acme, http, https, monitor, not_ready, ports, resolver};
use super::{add, aligned, bare, fitted, number, percent, right, scaled, span, trimmed, wrapped};
use crate::status::{
    AccessLogStatus, ApiStatus, BackendStatus, Count, DrainingStatus, OffloadStatus, Status, TracingStatus, Traffic,
};
use comfy_table::{Cell, Table};
use hairpin_core::table::LookupMethod;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::{SystemTime, UNIX_EPOCH};

/// Columns of the services that a narrow terminal goes without, the first one first.
const SERVICES_SPARED: [usize; 9] = [3, 2, 7, 10, 12, 4, 9, 8, 5];
/// Those of the workers.
const WORKERS_SPARED: [usize; 5] = [10, 6, 11, 5, 7];
/// Those of the backends' health.
const HEALTH_SPARED: [usize; 5] = [8, 7, 6, 4, 1];

/// The whole status as tables, on lines of at most `width` characters if that is given.
pub fn status(status: &Status, width: Option<usize>) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
    status_at(status, now, width)
}

/// A sentence about the access log.
fn access_log(log: &AccessLogStatus) -> String {
    let mut told = format!("access log: {} lines to {}", log.lines_total, log.to);
    let lost =
        [(log.lines_lost_total, "lines that could not be written"), (log.records_lost_total, "records (full ring)")];
    for (count, what) in lost.into_iter().filter(|(count, _)| *count > 0) {
        let _ = write!(told, "; lost {count} {what}");
    }
    told
}

/// A sentence about the API, and whether the file lacks what it changed.
fn api(api: &ApiStatus) -> String {
    let mut told = match api.serves {
        true => format!("API: {} writes by {}", api.writes_total, api.socket),
        false => "API: not served; the log says why".to_owned(),
    };
    if !api.listen.is_empty() {
        let _ = write!(told, "; by TLS at {}", api.listen);
        told += if api.serves_tls { "" } else { ": not served; the log says why" };
    }
    if api.differs_from_file {
        told += "; the file lacks what it changed (`hairpin config --running` prints the configuration in force)";
    }
    told
}

/// A sentence about the export of spans.
fn spans(tracing: &TracingStatus) -> String {
    let TracingStatus { endpoint, spans_exported_total, spans_lost_total, spans_waiting } = tracing;
    let mut told = format!("tracing: {spans_exported_total} spans to {endpoint}, {spans_waiting} waiting");
    for (why, count) in spans_lost_total.iter().filter(|(_, count)| **count > 0) {
        let _ = write!(told, "; lost {count} ({why})");
    }
    told
}

/// The whole status as tables, at the time `now`, in seconds since 1970.
fn status_at(status: &Status, now: f64, width: Option<usize>) -> String {
    let mut out = String::new();
    let uptime = humantime::format_duration(std::time::Duration::from_secs(status.uptime_s as u64));
    let _ = writeln!(
        out,
        "hairpin {}, instance {}, process {}, up {uptime}, on {}",
        status.version,
        status.instance,
        status.pid,
        if status.interfaces.is_empty() { "no interface".to_string() } else { status.interfaces.join(", ") }
    );
    for sentence in [not_ready(status), beginning(status), reloads(status, now), capacity(status)].into_iter().flatten()
    {
        let _ = writeln!(out, "{sentence}");
    }
    if let Some(api) = &status.api {
        let _ = writeln!(out, "{}", self::api(api));
    }
    if let Some(log) = &status.access_log {
        let _ = writeln!(out, "{}", access_log(log));
    }
    if let Some(tracing) = &status.tracing {
        let _ = writeln!(out, "{}", spans(tracing));
    }
    for monitor in &status.monitors {
        let _ = writeln!(out, "{}", monitor::sentence(monitor));
    }
    for process in &status.draining {
        let _ = writeln!(out, "{}", draining(process, now));
    }
    let _ = writeln!(out, "\n{}", fitted(services(status), width, &SERVICES_SPARED));
    for table in [access(status), limits(status)].into_iter().flatten() {
        let _ = writeln!(out, "\n{}", fitted(table, width, &[]));
    }
    if let Some(table) = ejections(status, now) {
        let _ = writeln!(out, "\n{}", fitted(table, width, &[]));
    }
    if let Some(table) = health(status, now) {
        let _ = writeln!(out, "\n{}", fitted(table, width, &HEALTH_SPARED));
    }
    let _ = writeln!(out, "\n{}", fitted(workers(status), width, &WORKERS_SPARED));
    if !status.ports.is_empty() {
        let _ = writeln!(out, "\n{}", ports::ports(&status.ports, status.mbufs.as_ref(), width));
    }
    let _ = writeln!(out, "\n{}", offload(status));
    if let Some(text) = engine(&status.offload) {
        let _ = writeln!(out, "\n{text}");
    }
    if let Some(http) = &status.http {
        let _ = writeln!(out, "\n{}\n\n{}", http::room(http), http::counts(http));
        if let Some(table) = http::times(&status.services) {
            let _ = writeln!(out, "\n{}", fitted(table, width, &[]));
        }
        if let Some(table) = http::sizes(&status.services) {
            let _ = writeln!(out, "\n{}", fitted(table, width, &[]));
        }
        let _ = writeln!(out, "{}", http::threshold(http));
    }
    if let Some(https) = &status.https {
        let _ = writeln!(out, "\n{}\n\n{}", fitted(https::certificates(https, now), width, &[2]), https::counts(https));
    }
    if let Some(acme) = &status.acme {
        let _ = writeln!(out, "\n{}", acme::acme(acme, now, width));
    }
    if let Some(names) = &status.resolver {
        let _ = writeln!(out, "\n{}", resolver::resolver(names, width));
    }
    if let Some(table) = counts("DROPPED", &status.drops) {
        let _ = writeln!(out, "\n{table}");
    }
    if let Some(table) = counts("EVENT", &status.events) {
        let _ = writeln!(out, "\n{table}");
    }
    match width {
        Some(width) => wrapped(&trimmed(&out), width),
        None => trimmed(&out),
    }
}

/// How the process began, if it did not begin from nothing.
fn beginning(status: &Status) -> Option<String> {
    let (http, others) = (&status.adopted_http, number(status.adopted_connections as f64));
    let mut adopted = format!("{others} TCP and UDP connections");
    if http.clients + http.backend_connections > 0 {
        let _ = write!(adopted, ", {} of HTTP and TLS services", number(http.clients as f64));
    }
    for (count, why) in [
        (http.interrupted, "interrupted by its end"),
        (http.without_service, "without a service now"),
        (http.misplaced, "another worker's"),
        (http.invalid, "senseless"),
    ] {
        if count > 0 {
            let _ = write!(adopted, "; {} {why}", number(count as f64));
        }
    }
    match &*status.began {
        "" | "fresh" => None,
        "restart" => Some(format!("began by a restart: adopted {adopted}")),
        "upgrade" => Some(format!("began by an upgrade: took over {adopted}")),
        other => Some(format!("began by {other}: adopted {adopted}")),
    }
}

/// A process that has handed over, in words.
fn draining(process: &DrainingStatus, now: f64) -> String {
    let DrainingStatus { pid, since_unix_s, ends_unix_s, connections } = process;
    format!(
        "process {pid} handed over {} ago: {} HTTPS connections are left, and end within {}",
        span(now - *since_unix_s as f64),
        number(*connections as f64),
        span((*ends_unix_s as f64 - now).max(0.0))
    )
}

fn reloads(status: &Status, now: f64) -> Option<String> {
    let reloads = &status.reloads;
    if reloads.last_unix_s == 0 {
        return None;
    }
    let ago = span(now - reloads.last_unix_s as f64);
    let last = match reloads.last_succeeded {
        true => "applied".to_string(),
        false => format!("refused: {}", reloads.last_error.trim_end()),
    };
    Some(format!(
        "reloads: {} applied, {} refused; the last, {ago} ago, was {last}",
        reloads.succeeded_total, reloads.failed_total
    ))
}

/// How full the tables are, in words.
fn capacity(status: &Status) -> Option<String> {
    let capacity = &status.capacity;
    if capacity.connections_max == 0 {
        return None;
    }
    let [connections, entries, peak, max, evicted, refused] = [
        status.connections(),
        capacity.entries,
        capacity.connections_peak,
        capacity.connections_max,
        capacity.evicted_total,
        capacity.table_full_total,
    ]
    .map(|count| number(count as f64));
    let table = &status.connection_table;
    if !tracks_connections(table) {
        return Some(format!("connections are not tracked: every packet finds its backend by {table}"));
    }
    let mut out = format!("connections: {connections}; connection table");
    if !table.is_empty() {
        let _ = write!(out, " {table}");
    }
    let _ = write!(out, ": {entries} of {max} entries, at most {peak} so far");
    match &*capacity.connections_state {
        "nearly-full" => out.push_str("; THE TABLE IS NEARLY FULL"),
        "full" => out.push_str("; THE TABLE IS FULL: the oldest not established give way, else new ones are refused"),
        _ => {}
    }
    if capacity.evicted_total + capacity.table_full_total > 0 {
        let _ = write!(out, "; for want of room {evicted} have given way, {refused} were refused");
    }
    match &*capacity.rules_state {
        "nearly-full" => out.push_str("\nTHE RULES ARE NEARLY FULL"),
        "full" => out.push_str("\nTHE RULES ARE FULL: further connections stay in software"),
        _ => {}
    }
    Some(out)
}

/// Whether connections are tracked by the table of this name. (Names that are not known here track them.)
fn tracks_connections(table: &str) -> bool {
    table.parse().map_or(true, LookupMethod::tracks_connections)
}

/// Backends that are checked. The reason comes last: it may be long.
fn health(status: &Status, now: f64) -> Option<Table> {
    let mut table = bare();
    let words = ["BACKEND", "SERVICE", "HEALTH"].iter().map(Cell::new);
    let numbers = ["SINCE", "CHECKS", "FAILED", "TOOK", "PASSIVE", "WEIGHT"].iter().map(right);
    table.set_header(words.chain(numbers).chain([Cell::new("REASON")]));
    for service in &status.services {
        for backend in service.backends.iter().filter(|backend| is_checked(backend)) {
            let health = &backend.health;
            let since = match health.since_unix_s {
                0.0 => String::new(),
                since => format!("{} ago", span(now - since)),
            };
            let numbers = [
                since,
                number(health.checks_total as f64),
                number(health.failed_total as f64),
                format!("{:.1} ms", health.last_duration_s * 1e3),
                number(health.passive_failed_total as f64),
                format!("{:.0} %", health.weight_share * 100.0),
            ];
            let words = [&*backend.name, &service.name, &health.state];
            let cells = words.iter().map(Cell::new).chain(numbers.iter().map(right));
            table.add_row(cells.chain([Cell::new(&health.reason)]));
        }
    }
    (table.row_count() > 0).then_some(table)
}

fn is_checked(backend: &BackendStatus) -> bool {
    !matches!(&*backend.health.state, "" | "unchecked")
}

/// Backends that are ejected, or were.
fn ejections(status: &Status, now: f64) -> Option<Table> {
    let mut table = bare();
    let words = ["BACKEND", "SERVICE", "EJECTED"].iter().map(Cell::new);
    table.set_header(words.chain(["TIMES", "PREVENTED"].iter().map(right)).chain([Cell::new("REASON")]));
    for service in &status.services {
        for backend in &service.backends {
            let Some(ejection) = &backend.ejection else { continue };
            if ejection.ejections_total + ejection.prevented_total == 0 {
                continue;
            }
            let how = match ejection.ejected {
                true => format!("for {} more", span((ejection.until_unix_s - now).max(0.0))),
                false => "no".to_string(),
            };
            let words = [&*backend.name, &service.name, &how];
            let numbers = [ejection.ejections_total, ejection.prevented_total].map(|count| number(count as f64));
            let cells = words.iter().map(Cell::new).chain(numbers.iter().map(right));
            table.add_row(cells.chain([Cell::new(&ejection.reason)]));
        }
    }
    (table.row_count() > 0).then_some(table)
}

/// A backend's state, what its health makes of it, and whether it is overridden.
fn state(backend: &BackendStatus) -> String {
    let mut state = backend.state.clone();
    if backend.backup {
        state.push_str(", backup");
    }
    if backend.connections_max > 0 && backend.load >= backend.connections_max {
        state.push_str(", full");
    }
    if backend.health.state == "down" {
        state.push_str(", down");
    }
    if backend.ejection.as_ref().is_some_and(|ejection| ejection.ejected) {
        state.push_str(", ejected");
    }
    if backend.overridden {
        state.push_str(" (override)");
    }
    state
}

fn services(status: &Status) -> Table {
    let mut table = aligned(
        &["SERVICE", "LISTEN", "MODE", "BALANCE", "WEIGHT", "STATE"],
        &["CONNS", "TOTAL", "NEW/s", "SOFTWARE", "", "OFFLOADED", "", "SHARE"],
    );
    for service in &status.services {
        let standing = match &*service.state {
            "removed" => "removed",
            _ if service.uses_backups => "on backups",
            _ => "",
        };
        let (listen, mode) = match (&service.group_of, &service.encapsulation) {
            (Some(_), _) => ("group", String::new()),
            (None, Some(encapsulation)) => (&*service.listen, format!("{}/{encapsulation}", service.mode)),
            (None, None) => (&*service.listen, service.mode.clone()),
        };
        let words = [&*service.name, listen, &*mode, &service.balance, "", standing];
        let share = percent(service.offloaded_share);
        let connections = (service.connections, service.connections_total, service.connections_per_s);
        add(&mut table, &words, &traffic_cells(connections, &service.software, &service.offloaded, share));
        for backend in &service.backends {
            let name = format!("  {}", backend.name);
            let weight = backend.weight.to_string();
            let state = state(backend);
            let words = [&*name, &backend.address, "", "", &*weight, &*state];
            let all = backend.software.packets + backend.offloaded.packets;
            let share = match all {
                0 => String::new(),
                all => percent(backend.offloaded.packets as f64 / all as f64),
            };
            let connections = (backend.connections, backend.connections_total, backend.connections_per_s);
            add(&mut table, &words, &traffic_cells(connections, &backend.software, &backend.offloaded, share));
        }
    }
    table
}

/// What access rules have refused or counted.
fn access(status: &Status) -> Option<Table> {
    let mut table = aligned(&["ACCESS", "RULE", "ACTION"], &["PACKETS"]);
    for service in &status.services {
        for rule in &service.access {
            let words = [&*service.name, &rule.rule.to_string(), &rule.action];
            add(&mut table, &words, &[number(rule.packets_total as f64)]);
        }
    }
    (table.row_count() > 0).then_some(table)
}

/// What limits of clients have decided.
fn limits(status: &Status) -> Option<Table> {
    let mut table =
        aligned(&["LIMITED", "LIMIT", "COUNTS", "ACTION"], &["ADMITTED", "REFUSED", "WOULD REFUSE", "DISPLACED"]);
    for service in &status.services {
        for limit in &service.limits {
            let action = if limit.dry_run { "dry run" } else { &*limit.action };
            let words = [&*service.name, &limit.limit.to_string(), &limit.counts, action];
            let counts = [limit.admitted_total, limit.refused_total, limit.would_refuse_total, limit.displaced_total];
            add(&mut table, &words, &counts.map(|count| number(count as f64)));
        }
    }
    (table.row_count() > 0).then_some(table)
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
        &["BUSY", "CONNS", "ENTRIES", "MAX", "PASSES", "FRAMES", "FRAMES/s", "FORWARDED", "TO KERNEL", "ANSWERED"],
    );
    for worker in &status.workers {
        let id = worker.id.to_string();
        let cpu = worker.cpu.to_string();
        let numbers = [
            percent(worker.busy_share),
            number(worker.connections as f64),
            number(worker.entries as f64),
            number(worker.connections_max as f64),
            number(worker.passes as f64),
            number(worker.frames as f64),
            number(worker.frames_per_s),
            number(worker.forwarded as f64),
            number(worker.to_kernel as f64),
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
    for (what, counts) in [("times kept in software", &offload.kept), ("taken back", &offload.evicted)] {
        for (reason, count) in counts {
            add(&mut table, &[&format!("{what}: {reason}")], &[number(*count as f64)]);
        }
    }
    table
}

/// The engine in words, where it has some: how it does it, what it has done, what it cannot take.
fn engine(offload: &OffloadStatus) -> Option<String> {
    if offload.engine_detail.is_empty() {
        return None;
    }
    let mut out = format!("engine {}: {}", offload.engine, offload.engine_detail);
    let counts: Vec<String> = offload.engine_counts.iter().map(|(name, count)| format!("{name} {count}")).collect();
    if !counts.is_empty() {
        let _ = write!(out, "\nrules: {}", counts.join(", "));
    }
    for (kind, why) in &offload.engine_lacks {
        let _ = write!(out, "\nin software: {kind}: {why}");
    }
    Some(out)
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

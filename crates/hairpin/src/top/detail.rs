//! A service in detail: its groups and backends, its requests, who forwards its connections, and why not the engine.

use super::columns::{self, BACKENDS};
use super::interval::ServiceInterval;
use super::model::{Model, TopRow, backends};
use super::order::SortOrder;
use super::poll::Carriers;
use super::view::fitted;
use crate::control::LatencyView;
use crate::render::{brief, cut, number, percent, scaled, span};
use crate::status::{BackendStatus, OffloadStatus, ServiceStatus, Status, Traffic};
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::Line;
use std::collections::BTreeMap;

/// The lines of the service that the detail is of, on a screen of this width, at the time `now` in seconds since 1970.
pub(super) fn lines(model: &Model, width: usize, now: f64) -> Vec<Line<'static>> {
    let (Some(key), Some(status)) = (&model.detail, &model.status) else { return Vec::new() };
    let all = || status.services.iter().zip(&model.interval.services);
    let Some((service, interval)) = all().find(|(service, _)| key.is(service)) else {
        return vec![Line::from(format!(" {} is not there any more; Esc leads back", key.name)).fg(Color::Yellow)];
    };
    let mut lines = facts(service, interval, width);
    let carriers = model.carriers.as_ref().filter(|carriers| carriers.service == service.name);
    lines.extend(carried(status, carriers, width));
    lines.extend(times(service, interval, model.interval.seconds, width));
    // Groups stand behind their service.
    let groups = all().skip_while(|(one, _)| !key.is(one)).skip(1).take_while(|(one, _)| one.group_of.is_some());
    let groups = groups.filter(|_| service.group_of.is_none());
    for (service, interval) in std::iter::once((service, interval)).chain(groups) {
        lines.extend(backend_lines(TopRow::Service(service, interval), model, width, now));
    }
    lines.extend(why_not(&status.offload, width));
    lines
}

fn told(name: &str, pieces: Vec<String>, width: usize) -> impl Iterator<Item = Line<'static>> {
    let mut pieces = pieces.into_iter();
    let first = format!(" {name:<12} {}", pieces.next().unwrap_or_default());
    fitted(std::iter::once(first).chain(pieces).collect(), width).map(Line::from)
}

fn facts(service: &ServiceStatus, interval: &ServiceInterval, width: usize) -> Vec<Line<'static>> {
    let listen = match &service.group_of {
        Some(of) => format!("group of {of}"),
        None => service.listen.clone(),
    };
    let mode = match &service.encapsulation {
        Some(encapsulation) => format!("{}/{encapsulation}", service.mode),
        None => service.mode.clone(),
    };
    let mut what = vec![listen, format!(", {mode}"), format!(", {}", service.balance)];
    if service.state == "removed" {
        what.push(", removed from the configuration".to_string());
    }
    let mut lines: Vec<Line<'static>> = told("service", what, width).collect();
    if !service.ready && !service.not_ready.is_empty() {
        let why = told("NOT READY", vec![service.not_ready.clone()], width);
        lines.extend(why.map(|line| line.fg(Color::Red).bold()));
    }
    let [now, total, established, refused] =
        [service.connections, service.connections_total, service.established_total, service.refused_total]
            .map(|count| number(count as f64));
    let mut connections = vec![format!("{now} now"), format!(", {} new/s", number(service.connections_per_s))];
    connections.push(format!(", so far {total}"));
    // Workers that end connections count no handshakes.
    if service.requests.is_none() && service.group_of.is_none() {
        connections.push(format!(", {established} of them established"));
    }
    if service.refused_total > 0 {
        connections.push(format!(", {refused} refused"));
    }
    lines.extend(told("connections", connections, width));
    lines.extend(requests(service, interval, width));
    let path = |traffic: &Traffic| {
        let [packets, bits] = [traffic.packets_per_s, traffic.bits_per_s].map(scaled);
        format!("{packets}packet/s, {bits}bit/s")
    };
    lines.extend(told("software", vec![path(&service.software)], width));
    let share = format!("; {} of all packets so far", percent(service.offloaded_share));
    lines.extend(told("offloaded", vec![path(&service.offloaded), share], width));
    lines
}

fn requests(service: &ServiceStatus, interval: &ServiceInterval, width: usize) -> Vec<Line<'static>> {
    let mut lines = Vec::new();
    let rate = interval.requests_per_s.map_or_else(|| "-".to_string(), number);
    let so_far = service.requests.map(|requests| format!(", so far {}", number(requests.total as f64)));
    if service.requests.is_some() || interval.requests_per_s.is_some() {
        lines.extend(told("requests", std::iter::once(rate + "/s").chain(so_far).collect(), width));
    }
    if let Some(responses) = interval.responses {
        let classes = responses.by_class().filter(|(class, rate)| *class == "2xx" || *rate > 0.0);
        let classes = classes
            .enumerate()
            .map(|(at, (class, rate))| format!("{}{class} {}/s", if at == 0 { "" } else { ", " }, number(rate)));
        let share = format!("; {} are 5xx", percent(responses.error_share()));
        lines.extend(told("responses", classes.chain(std::iter::once(share)).collect(), width));
    }
    lines
}

/// Who forwards its connections.
fn carried(status: &Status, carriers: Option<&Carriers>, width: usize) -> Vec<Line<'static>> {
    let Some(carriers) = carriers else { return Vec::new() };
    let engine = match &*status.offload.engine {
        "rte_flow" => "card",
        "" | "none" => "engine",
        engine => engine,
    };
    let [offloaded, software] = [carriers.engine, carriers.software].map(|count| number(count as f64));
    let least = if carriers.is_part { "at least " } else { "" };
    let by = vec![format!("{engine} {least}{offloaded}"), format!(", software {least}{software}")];
    let mut lines: Vec<Line<'static>> = told("carried by", by, width).collect();
    let of: u64 = carriers.reasons.values().sum();
    let mut reasons = listed(&carriers.reasons);
    if of < carriers.software {
        reasons.push(format!(" (of {} that were asked)", number(of as f64)));
    }
    if of > 0 {
        lines.extend(told("in software", reasons, width));
    }
    lines
}

/// Names with their counts, in pieces.
fn listed(counts: &BTreeMap<String, u64>) -> Vec<String> {
    let one = |(at, (name, count)): (usize, (&String, &u64))| {
        format!("{}{name} {}", if at == 0 { "" } else { ", " }, number(*count as f64))
    };
    counts.iter().enumerate().map(one).collect()
}

/// How long requests took: in the interval, and since the process began.
fn times(service: &ServiceStatus, interval: &ServiceInterval, seconds: f64, width: usize) -> Vec<Line<'static>> {
    let Some(all) = &service.times else { return Vec::new() };
    let row = |name: &str, view: &LatencyView| {
        let cells = [view.p50, view.p90, view.p99, view.max].map(|time| match view.count {
            0 => "-".to_string(),
            _ => brief(time),
        });
        let count = number(view.count as f64);
        let [p50, p90, p99, max] = cells;
        cut(&format!(" {name:<24} {p50:>9} {p90:>9} {p99:>9} {max:>9} {count:>8}"), width)
    };
    let names = ["  connected to a backend", "  answered by it", "  with the client"];
    let header =
        format!(" {:<24} {:>9} {:>9} {:>9} {:>9} {:>8}", "REQUESTS UNTIL", "P50", "P90", "P99", "MAX", "COUNT");
    let mut lines = vec![Line::default(), Line::from(cut(&header, width)).bold()];
    if let Some(views) = &interval.times {
        lines.push(Line::from(cut(&format!(" in the last {seconds:.1} s"), width)));
        lines.extend(names.iter().zip(views).map(|(name, view)| Line::from(row(name, view))));
    }
    lines.push(Line::from(" so far"));
    let views = [&all.to_backend_us, &all.to_response_us, &all.in_all_us];
    lines.extend(names.iter().zip(views).map(|(name, view)| Line::from(row(name, view))));
    lines
}

/// The backends of a service or group, in the order of the table, each with its health and responses below it.
fn backend_lines(service: TopRow<'_>, model: &Model, width: usize, now: f64) -> Vec<Line<'static>> {
    let mut rows = backends(service);
    if rows.is_empty() {
        return Vec::new();
    }
    rows.sort_by(|a, b| model.order.compare(model.reversed, a, b));
    let kind = if service.service().group_of.is_some() { "group" } else { "backends of" };
    let title = format!(" {kind} {}, {}", service.name(), service.service().balance);
    let mut lines = vec![Line::default(), Line::from(cut(&title, width)).bold()];
    let table = columns::table(&rows, &BACKENDS, model.has_http(), (SortOrder::Configuration, false), Some(width));
    lines.push(Line::from(table.header).bold());
    for (row, line) in rows.iter().zip(table.rows) {
        let style = columns::style(row);
        lines.push(Line::styled(line, style));
        if let TopRow::Backend(_, backend, _) = row {
            lines.extend(below(backend, width, now).map(|line| line.style(Style::new().patch(style))));
        }
    }
    lines
}

/// What a backend's line has no room for: health and why, and responses by class.
fn below(backend: &BackendStatus, width: usize, now: f64) -> impl Iterator<Item = Line<'static>> {
    let health = &backend.health;
    let mut pieces = Vec::new();
    if !matches!(&*health.state, "" | "unchecked") {
        pieces.push(health.state.clone());
        if health.since_unix_s > 0.0 {
            pieces.push(format!(" for {}", span(now - health.since_unix_s)));
        }
        if !health.reason.is_empty() {
            pieces.push(format!(": {}", health.reason));
        }
        let [checks, failed] = [health.checks_total, health.failed_total].map(|count| number(count as f64));
        pieces.push(format!("; {failed} of {checks} checks failed"));
        pieces.push(format!(", the last took {}", brief(health.last_duration_s * 1e6)));
        if health.weight_share > 0.0 && health.weight_share < 1.0 {
            pieces.push(format!("; starts slowly with {} of its weight", percent(health.weight_share)));
        }
    }
    if health.passive_failed_total > 0 {
        let failed = number(health.passive_failed_total as f64);
        pieces.push(format!("; failed clients' connections and requests: {failed}"));
    }
    let responses: Vec<String> = backend
        .responses
        .iter()
        .filter(|(_, count)| **count > 0)
        .map(|(class, count)| format!("{class} {}", number(*count as f64)))
        .collect();
    if !responses.is_empty() {
        pieces.push(format!("; responses so far: {}", responses.join(", ")));
    }
    if let Some(first) = pieces.first_mut() {
        *first = format!("    {}", first.trim_start_matches([';', ' ']));
    }
    fitted(pieces, width).map(Line::from)
}

/// Why rules and connections of the instance were not offloaded.
fn why_not(offload: &OffloadStatus, width: usize) -> Vec<Line<'static>> {
    let mut lines = Vec::new();
    for (name, counts) in [
        ("refused", listed(&offload.not_offloaded)),
        ("kept", listed(&offload.kept)),
        ("taken back", listed(&offload.evicted)),
    ] {
        if !counts.is_empty() {
            lines.extend(told(name, counts, width));
        }
    }
    for (kind, why) in &offload.engine_lacks {
        lines.extend(told("cannot take", vec![kind.clone(), format!(": {why}")], width));
    }
    if !lines.is_empty() {
        let title = format!(" not offloaded, of all services so far (policy {})", offload.policy);
        lines.splice(0..0, [Line::default(), Line::from(cut(&title, width)).bold()]);
    }
    lines
}

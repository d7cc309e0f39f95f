//! Reads `[service.health]`.

use super::reader::TomlTable;
use super::words::Spoken;
use super::{CheckKind, HealthSettings};
use crate::health::{Check, CheckTarget, HttpCheck, Passive, StatusRanges};
use hairpin_core::flow::Protocol;
use hairpin_diagnostics::{At, Sink};
use std::net::{Ipv4Addr, SocketAddr};

const HTTP_FIELDS: [&str; 5] = ["method", "path", "host", "status", "body"];
const UDP_FIELDS: [&str; 4] = ["send", "send_hex", "expect", "expect_hex"];
/// Fields that mean something with any check, but nothing without one.
const CHECK_FIELDS: [&str; 5] = ["interval", "timeout", "rise", "fall", "port"];

/// The settings, as far as they are right; all mistakes are reported.
pub(super) fn read(sink: &Sink<'_>, table: &TomlTable<'_>, spoken: Option<Spoken>) -> HealthSettings {
    let protocol = spoken.map(Spoken::transport);
    let chosen: Option<CheckKind> = table.choice("check");
    let kind = chosen.unwrap_or_default();
    let (http, udp) = (read_http(sink, table), read_udp(sink, table, kind));
    let check = match kind {
        CheckKind::None => Check::None,
        CheckKind::Tcp => Check::Tcp,
        CheckKind::Http => Check::Http(http),
        CheckKind::Https => Check::Https(http),
        CheckKind::Grpc => {
            Check::Grpc { service: table.text("grpc_service").map(|text| text.value).unwrap_or_default() }
        }
        CheckKind::Udp => udp,
    };
    let settings = HealthSettings {
        check,
        interval: table.duration("interval"),
        timeout: table.duration("timeout"),
        rise: number(table, "rise"),
        fall: number(table, "fall"),
        port: table.integer("port").and_then(|port| u16::try_from(port).ok()),
        passive: read_passive(table),
        passive_status: read_statuses(sink, table, "passive_status"),
        slow_start: table.duration("slow_start"),
    };
    if chosen.is_some() {
        superfluous(sink, table, &settings);
    }
    if kind != CheckKind::None && settings.timeout > settings.interval {
        let given = if table.has("timeout") { "timeout" } else { "interval" };
        let [timeout, interval] = [settings.timeout, settings.interval].map(humantime::format_duration);
        let what = format!("`timeout` ({timeout}) is longer than `interval` ({interval})");
        sink.error(&table.span_of(given), what, "a check ends before the next begins: shorten the one or the other");
    }
    let transport = if kind == CheckKind::Udp { Protocol::Udp } else { Protocol::Tcp };
    if kind != CheckKind::None && protocol.is_some_and(|protocol| protocol != transport) && settings.port.is_none() {
        let [checked, served] = if transport == Protocol::Udp { ["UDP", "TCP"] } else { ["TCP", "UDP"] };
        let what = format!("the check goes over {checked} to the port of a {served} service");
        sink.warning(&table.span_of("check"), what, "name the port that answers it with `port`");
    }
    judged(sink, table, &settings, spoken);
    validate(sink, table, &settings);
    settings
}

/// Reports statuses that cannot speak against a backend, or mean nothing.
fn judged(sink: &Sink<'_>, table: &TomlTable<'_>, settings: &HealthSettings, spoken: Option<Spoken>) {
    let Some(statuses) = &settings.passive_status else { return };
    let span = table.span_of("passive_status");
    if (100..500).any(|status| statuses.contains(status)) {
        let what = format!("`passive_status` is \"{statuses}\"");
        sink.error(&span, what, "statuses below 500 say something of the request: write numbers from 500 to 599");
    }
    if settings.passive.is_none() {
        let remedy = "set `passive`, or leave it out";
        sink.warning(&span, "`passive_status` means nothing while `passive` is 0", remedy);
    }
    if spoken.is_some_and(|spoken| !spoken.is_http()) {
        let what = "`passive_status` means nothing to a service that is not HTTP";
        sink.warning(&span, what, "leave it out");
    }
}

/// Bounds of the check's parts, which the checker knows: each part by itself, so that it can be pointed at, then all.
fn validate(sink: &Sink<'_>, table: &TomlTable<'_>, settings: &HealthSettings) {
    let mut parts = Vec::new();
    match &settings.check {
        Check::None | Check::Tcp => {}
        Check::Http(check) | Check::Https(check) => {
            let HttpCheck { method, path, host, status: _, body } = check;
            let part = || HttpCheck {
                method: "GET".to_string(),
                path: "/".to_string(),
                host: None,
                status: StatusRanges::default(),
                body: None,
            };
            parts.push(("method", Check::Http(HttpCheck { method: method.clone(), ..part() })));
            parts.push(("path", Check::Http(HttpCheck { path: path.clone(), ..part() })));
            parts.push(("host", Check::Http(HttpCheck { host: host.clone(), ..part() })));
            parts.push(("body", Check::Http(HttpCheck { body: body.clone(), ..part() })));
        }
        Check::Grpc { service } => parts.push(("grpc_service", Check::Grpc { service: service.clone() })),
        Check::Udp { send, expect } => {
            parts.push(("send", Check::Udp { send: send.clone(), expect: None }));
            parts.push(("expect", Check::Udp { send: Vec::new(), expect: expect.clone() }));
        }
    }
    parts.push(("check", settings.check.clone()));
    for (name, check) in parts {
        if let Err(error) = target(settings, check).validate() {
            let hex = format!("{name}_hex");
            let name = if UDP_FIELDS.contains(&hex.as_str()) && table.has(&hex) { &hex } else { name };
            sink.error(&table.span_of(name), format!("`{name}`: {}", error.root_cause()), "");
            return;
        }
    }
}

fn target(settings: &HealthSettings, check: Check) -> CheckTarget {
    let (service, name) = (String::new(), String::new());
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
    HealthSettings { check, ..settings.clone() }.aimed(0, service, name, address)
}

/// Reports fields that belong to another check than the chosen one.
fn superfluous(sink: &Sink<'_>, table: &TomlTable<'_>, settings: &HealthSettings) {
    let kind = settings.kind();
    let others = |fields: &'static [&'static str], of: &[CheckKind]| match of.contains(&kind) {
        true => [].iter(),
        false => fields.iter(),
    };
    let foreign = others(&HTTP_FIELDS, &[CheckKind::Http, CheckKind::Https]).map(|name| (*name, "http"));
    let foreign = foreign.chain(others(&["grpc_service"], &[CheckKind::Grpc]).map(|name| (*name, "grpc")));
    let foreign = foreign.chain(others(&UDP_FIELDS, &[CheckKind::Udp]).map(|name| (*name, "udp")));
    for (name, check) in foreign.filter(|(name, _)| table.has(name)) {
        let span = table.span_of(name);
        if table.has("check") {
            let what = format!("`{name}` means nothing beside check = {}", quoted(table, "check"));
            sink.warning(&span, what, format!("leave it out, or set check = \"{check}\""));
        } else {
            sink.error(&span, format!("`{name}` is given, but no check"), format!("add check = \"{check}\""));
        }
    }
    if kind == CheckKind::None {
        for name in CHECK_FIELDS.into_iter().filter(|name| table.has(name)) {
            let what = format!("`{name}` means nothing without a check");
            sink.warning(&table.span_of(name), what, "add one, such as check = \"tcp\"");
        }
    }
    let passive = settings.passive.is_some();
    if table.has("passive_retry") && (!passive || kind != CheckKind::None) {
        let (why, remedy) = match passive {
            true => ("where a check brings backends back", "leave it out"),
            false => ("while `passive` is 0", "set `passive`, or leave it out"),
        };
        sink.warning(&table.span_of("passive_retry"), format!("`passive_retry` means nothing {why}"), remedy);
    }
    if !settings.slow_start.is_zero() && kind == CheckKind::None && !passive {
        let what = "`slow_start` means nothing where no backend is ever taken down";
        sink.warning(&table.span_of("slow_start"), what, "add a check, such as check = \"tcp\"");
    }
}

fn quoted(table: &TomlTable<'_>, name: &str) -> String {
    format!("\"{}\"", table.text(name).map(|text| text.value).unwrap_or_default())
}

fn read_http(sink: &Sink<'_>, table: &TomlTable<'_>) -> HttpCheck {
    let status = read_statuses(sink, table, "status");
    let text = |name| table.text(name).map(|text| text.value);
    HttpCheck {
        method: text("method").unwrap_or_default(),
        path: text("path").unwrap_or_default(),
        host: text("host"),
        status: status.unwrap_or_default(),
        body: text("body"),
    }
}

fn read_statuses(sink: &Sink<'_>, table: &TomlTable<'_>, name: &str) -> Option<StatusRanges> {
    let text = table.text(name)?;
    let parsed = text.value.parse::<StatusRanges>();
    parsed.map_err(|wrong| sink.error(&text.span, format!("`{name}`: {wrong}"), "")).ok()
}

fn read_udp(sink: &Sink<'_>, table: &TomlTable<'_>, kind: CheckKind) -> Check {
    let send = read_bytes(sink, table, "send", "send_hex");
    if kind == CheckKind::Udp && !table.has("send") && !table.has("send_hex") {
        let remedy = "add send = \"...\" or send_hex = \"...\" with something that the server answers";
        sink.error(&table.span_of("check"), "the check has nothing to send", remedy);
    }
    Check::Udp { send: send.unwrap_or_default(), expect: read_bytes(sink, table, "expect", "expect_hex") }
}

/// Bytes that are given as text or in hexadecimal digits.
fn read_bytes(sink: &Sink<'_>, table: &TomlTable<'_>, text: &str, hex: &str) -> Option<Vec<u8>> {
    if table.has(text) && table.has(hex) {
        sink.error(&table.span_of(hex), format!("both `{text}` and `{hex}` are given"), "leave one out");
    }
    if let Some(text) = table.text(text) {
        return Some(text.value.into_bytes());
    }
    let digits = table.text(hex)?;
    let bytes = from_hex(&digits);
    if bytes.is_none() {
        let what = format!("`{hex}` is \"{}\"", digits.value);
        sink.error(&digits.span, what, "write two hexadecimal digits for each byte, such as \"00 01 0a ff\"");
    }
    bytes
}

fn from_hex(text: &At<String>) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    for word in text.value.split_ascii_whitespace() {
        let digits: Vec<u32> = word.chars().map(|c| c.to_digit(16)).collect::<Option<_>>()?;
        let (pairs, rest) = digits.as_chunks::<2>();
        if !rest.is_empty() {
            return None;
        }
        bytes.extend(pairs.iter().map(|[high, low]| (high * 16 + low) as u8));
    }
    Some(bytes)
}

fn read_passive(table: &TomlTable<'_>) -> Option<Passive> {
    let failures = number(table, "passive");
    let retry = table.duration("passive_retry");
    (failures > 0).then_some(Passive { failures, retry })
}

/// A number that the reference keeps far below `u32::MAX`.
fn number(table: &TomlTable<'_>, name: &str) -> u32 {
    table.integer(name).and_then(|number| u32::try_from(number).ok()).unwrap_or_default()
}

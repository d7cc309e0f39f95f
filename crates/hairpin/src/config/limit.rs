//! Reads the limits of a service's clients.

use super::l7::{bounded, header_name};
use super::reader::TomlTable;
use super::reference;
use super::words::{SettingWord, Spoken};
use hairpin_core::limit::{AHEAD_MAX, LIMITS_MAX, Limit, LimitKind, PER_SECOND_MAX, Rate};
use std::sync::Arc;
use std::time::Duration;

/// The fields of which a limit has one.
const KINDS: [&str; 3] = ["requests", "connections", "concurrent"];

/// The limits of the service with this name, and how they are written.
pub(super) fn read(service: &TomlTable<'_>, spoken: Spoken, name: &str) -> (Box<[Limit]>, Vec<String>) {
    let tables = service.tables("limit", &reference::LIMIT);
    bounded(service, "limit", tables.len(), LIMITS_MAX);
    let mut limits: Vec<Limit> = Vec::new();
    for (table, number) in tables.iter().zip(1..) {
        if !spoken.is_http() && !counts_no_requests(table, spoken) {
            continue;
        }
        let Some(limit) = read_one(table, name) else { continue };
        if let Some(same) = limits.iter().position(|other| other.id == limit.id) {
            let what = format!(
                "limit {number} counts what limit {} counts: for the same clients, within the same time",
                same + 1
            );
            table.error(&table.span, what, "leave one of them out");
        }
        limits.push(limit);
    }
    (limits.into(), tables.iter().map(TomlTable::written).collect())
}

/// Whether a limit of a service without requests counts none.
fn counts_no_requests(table: &TomlTable<'_>, spoken: Spoken) -> bool {
    if table.has("requests") {
        let what = format!("`requests` is given, but the service is {}", spoken.word());
        table.error(
            &table.span_of("requests"),
            what,
            "nothing of a request can be seen: limit `connections` or `concurrent`",
        );
    }
    !table.has("requests")
}

fn read_one(table: &TomlTable<'_>, name: &str) -> Option<Limit> {
    let number = |field: &str| table.integer(field).and_then(|number| u32::try_from(number).ok());
    let given: Vec<&str> = KINDS.into_iter().filter(|field| table.has(field)).collect();
    let [field] = given[..] else {
        let what = format!("the limit has {} of `requests`, `connections` and `concurrent`", given.len());
        table.error(&table.span, what, "give one of them: each limit counts one thing");
        return None;
    };
    let [ipv4_prefix, ipv6_prefix] =
        ["ipv4_prefix", "ipv6_prefix"].map(|field| number(field).and_then(|bits| u8::try_from(bits).ok()));
    let (most, within, prefixes) = (number(field)?, table.duration("within"), [ipv4_prefix?, ipv6_prefix?]);
    let header = read_header(table, field);
    let kind = match field {
        "concurrent" => {
            for other in ["within", "burst"].into_iter().filter(|other| table.has(other)) {
                let what = format!("`{other}` is given beside `concurrent`");
                table.error(&table.span_of(other), what, "connections at a time have neither: leave it out");
            }
            LimitKind::Concurrent(most)
        }
        field => {
            let burst = number("burst").unwrap_or(most);
            let Some(rate) = Rate::new(most, within, burst) else {
                report(table, field, (most, within, burst));
                return None;
            };
            if field == "requests" { LimitKind::Requests(rate) } else { LimitKind::Connections(rate) }
        }
    };
    let within = if field == "concurrent" { Duration::ZERO } else { within };
    Some(Limit {
        id: id(name, field, (within, header.as_deref()), prefixes),
        kind,
        ipv4_prefix: prefixes[0],
        ipv6_prefix: prefixes[1],
        header,
        action: table.choice("action").unwrap_or_default(),
        is_dry_run: table.boolean("dry_run"),
    })
}

/// The field by whose value requests are counted.
fn read_header(table: &TomlTable<'_>, counts: &str) -> Option<Arc<[u8]>> {
    let name = table.text("header").filter(|_| table.has("header"))?;
    if counts != "requests" {
        let what = format!("`header` is given beside `{counts}`");
        table.error(&name.span, what, "connections have no fields: leave it out, or limit `requests`");
        return None;
    }
    if let Err(remedy) = header_name(&name.value) {
        table.error(&name.span, format!("`header` is \"{}\"", name.value), remedy);
        return None;
    }
    Some(name.value.to_ascii_lowercase().into_bytes().into())
}

/// Says why there is no such rate.
fn report(table: &TomlTable<'_>, field: &str, (most, within, burst): (u32, Duration, u32)) {
    if f64::from(most) / within.as_secs_f64() > f64::from(PER_SECOND_MAX) {
        let what = format!("{most} {field} within {} are too many", humantime::format_duration(within));
        table.error(&table.span_of(field), what, format!("have {PER_SECOND_MAX} a second at most"));
    } else {
        let takes = within.mul_f64(f64::from(burst) / f64::from(most));
        let what = format!(
            "a burst of {burst} takes {} to come back",
            humantime::format_duration(Duration::from_secs(takes.as_secs()))
        );
        let most = format!("{} at most: lower `burst`", humantime::format_duration(AHEAD_MAX));
        table.error(&table.span_of("burst"), what, format!("that may take {most}"));
    }
}

/// [`Limit::id`]: FNV-1a of what a limit counts, so that its clients keep their entries when it admits more or fewer, or stands
/// elsewhere.
fn id(name: &str, field: &str, (within, header): (Duration, Option<&[u8]>), prefixes: [u8; 2]) -> u64 {
    let within = within.as_nanos().to_le_bytes();
    let bytes = name.bytes().chain([0]).chain(field.bytes()).chain([0]).chain(within).chain(prefixes);
    let bytes = bytes.chain(header.unwrap_or_default().iter().copied());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

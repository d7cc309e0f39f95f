//! Records as lines of JSON.

use super::flows::{FlowRecord, Reason};
use super::settings::{MonitorField, MonitorSettings};
use serde::Serialize;
use std::net::IpAddr;
use std::time::{Duration, UNIX_EPOCH};

/// The version of the fields' meanings.
const SCHEMA: u32 = 1;

/// A line. docs/guide/monitor.md says what its fields mean.
#[derive(Debug, Serialize)]
struct Line<'a> {
    schema: u32,
    time: String,
    monitor: &'a str,
    interface: &'a str,
    reason: &'static str,
    protocol: Protocol,
    far: IpAddr,
    #[serde(skip_serializing_if = "Option::is_none")]
    far_port: Option<u16>,
    near: IpAddr,
    #[serde(skip_serializing_if = "Option::is_none")]
    near_port: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    icmp_type: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    icmp_code: Option<u8>,
    started: String,
    duration_ms: u64,
    packets_in: u64,
    bytes_in: u64,
    packets_out: u64,
    bytes_out: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    flags_in: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    flags_out: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    resent_in: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    resent_out: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    opened_by: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    server_round_trip_us: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    client_round_trip_us: Option<u64>,
}

/// A name, or a number.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Protocol {
    Name(&'static str),
    Number(u8),
}

/// IP protocols with a name, which is also the configuration's.
pub(crate) const PROTOCOLS: [(&str, u8); 4] = [("tcp", 6), ("udp", 17), ("icmp", 1), ("icmpv6", 58)];

/// The letters of TCP's flags, from the lowest bit on.
const FLAGS: &[u8; 8] = b"FSRPAUEC";

fn flags(bits: u8) -> String {
    (0..8).filter(|bit| bits >> bit & 1 != 0).map(|bit| char::from(FLAGS[bit])).collect()
}

/// `at` in nanoseconds since 1970.
fn time(at: u64) -> String {
    humantime::format_rfc3339_micros(UNIX_EPOCH + Duration::from_nanos(at)).to_string()
}

/// Appends the line of a record, unless there is nothing to tell; whether there is. `epoch`: when the kernel's clock began; both
/// times in nanoseconds since 1970.
pub(super) fn write(
    settings: &MonitorSettings,
    interface: &str,
    record: &FlowRecord,
    (epoch, now): (u64, u64),
    out: &mut Vec<u8>,
) -> bool {
    let FlowRecord { ends, count, reason } = record;
    let (inward, outward) = (&count.inward, &count.outward);
    if *reason == Reason::Active && inward.packets + outward.packets == 0 {
        return false;
    }
    let is_tcp = ends.protocol == 6;
    let has_ports = is_tcp || ends.protocol == 17;
    let icmp = matches!(ends.protocol, 1 | 58).then(|| ends.near_port().to_be_bytes());
    let [has_flags, has_times, has_resent] =
        [MonitorField::Flags, MonitorField::RoundTrip, MonitorField::Resent].map(|field| is_tcp && settings.has(field));
    let microseconds = |nanoseconds: Option<u64>| nanoseconds.filter(|_| has_times).map(|time| time / 1000);
    let name = PROTOCOLS.iter().find(|(_, number)| *number == ends.protocol);
    let line = Line {
        schema: SCHEMA,
        time: time(now),
        monitor: &settings.name,
        interface,
        reason: reason.word(),
        protocol: name.map_or(Protocol::Number(ends.protocol), |(name, _)| Protocol::Name(name)),
        far: ends.far().into(),
        far_port: has_ports.then(|| ends.far_port()),
        near: ends.near().into(),
        near_port: has_ports.then(|| ends.near_port()),
        icmp_type: icmp.map(|[kind, _]| kind),
        icmp_code: icmp.map(|[_, code]| code),
        started: time(epoch.saturating_add(count.first())),
        duration_ms: count.last().saturating_sub(count.first()) / 1_000_000,
        packets_in: inward.packets,
        bytes_in: inward.bytes,
        packets_out: outward.packets,
        bytes_out: outward.bytes,
        flags_in: has_flags.then(|| flags(inward.tcp_flags())),
        flags_out: has_flags.then(|| flags(outward.tcp_flags())),
        resent_in: has_resent.then_some(inward.resent),
        resent_out: has_resent.then_some(outward.resent),
        opened_by: count.is_opened_inward().filter(|_| has_times).map(|inward| if inward { "far" } else { "near" }),
        server_round_trip_us: microseconds(count.server_round_trip()),
        client_round_trip_us: microseconds(count.client_round_trip()),
    };
    let start = out.len();
    // Into memory: it cannot fail.
    if serde_json::to_writer(&mut *out, &line).is_err() {
        out.truncate(start);
        return false;
    }
    out.push(b'\n');
    true
}

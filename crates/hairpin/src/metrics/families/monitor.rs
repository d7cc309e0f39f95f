//! The metrics of monitors. Without any, there are no samples. Talkers have none: their addresses are not bounded.

use super::{MetricFamily, MetricKind, family};

const MONITOR: &[&str] = &["monitor"];

macro_rules! count {
    ($kind:ident, $name:literal, $help:literal, $field:ident) => {
        family!($kind, $name, MONITOR, $help, |view, emit| {
            view.status.monitors.iter().for_each(|monitor| emit(&[&monitor.name], monitor.$field.into()));
        })
    };
}

/// All of them, in the order in which they are written.
pub(super) const FAMILIES: &[MetricFamily] = &[
    family!(
        Gauge,
        "monitor_up",
        MONITOR,
        "1: the monitor works; 0: it does not, and the status says why.",
        |view, emit| {
            view.status.monitors.iter().for_each(|monitor| emit(&[&monitor.name], monitor.error.is_empty().into()));
        }
    ),
    count!(Gauge, "monitor_flows", "Flows that the kernel counts, when all were looked at last.", flows),
    count!(Gauge, "monitor_flows_max", "Flows that a monitor counts at most.", flows_max),
    family!(
        Counter,
        "monitor_reports",
        &["monitor", "reason"],
        "Reports of flows: idle (no packets for the idle timeout), active (the flow goes on), end (closed or reset) or stop (the \
         monitor ended).",
        |view, emit| {
            for monitor in &view.status.monitors {
                monitor
                    .reports_total
                    .iter()
                    .for_each(|(reason, count)| emit(&[&monitor.name, reason], (*count).into()));
            }
        }
    ),
    count!(Counter, "monitor_packets", "Packets in reports of flows.", packets_total),
    count!(Counter, "monitor_bytes", "Bytes of IP packets in reports of flows.", bytes_total),
    count!(Counter, "monitor_no_room_packets", "Packets of flows that found no room.", no_room_packets_total),
    count!(Counter, "monitor_no_room_bytes", "Bytes of IP packets of flows that found no room.", no_room_bytes_total),
    count!(
        Counter,
        "monitor_malformed_packets",
        "IP packets that a monitor did not count, as their headers are impossible or truncated.",
        malformed_packets_total
    ),
    count!(
        Counter,
        "monitor_merged",
        "Connections that were reported with the one before of the same ends, as there was no time to tell them apart.",
        merged_total
    ),
    count!(
        Counter,
        "monitor_records_exported",
        "Records of IPFIX that were sent to the collector.",
        records_exported_total
    ),
    count!(
        Counter,
        "monitor_records_lost",
        "Records of IPFIX that could not be sent to the collector.",
        records_lost_total
    ),
    count!(Counter, "monitor_lines", "Lines of JSON written.", lines_total),
    count!(Counter, "monitor_lines_lost", "Lines of JSON that could not be written.", lines_lost_total),
];

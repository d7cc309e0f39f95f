//! Monitors, as sentences and tables.

use super::{add, aligned, fitted, number};
use crate::status::MonitorStatus;
use std::fmt::Write;

/// A sentence about a monitor.
pub(super) fn sentence(monitor: &MonitorStatus) -> String {
    let MonitorStatus { name, interfaces, flows, flows_max, .. } = monitor;
    let mut told = format!("monitor {name} on {}", interfaces.join(", "));
    if !monitor.error.is_empty() {
        let _ = write!(told, " does not work: {}", monitor.error);
        return told;
    }
    let [packets, bytes] = [monitor.packets_total, monitor.bytes_total].map(|count| count as f64);
    let _ = write!(
        told,
        ": {flows} flows of {flows_max}, {} packets and {} bytes reported",
        number(packets),
        number(bytes)
    );
    for (count, end) in [(monitor.records_exported_total, &monitor.collector), (monitor.lines_total, &monitor.file)] {
        if !end.is_empty() {
            let _ = write!(told, ", {count} records to {end}");
        }
    }
    for (count, what) in [
        (monitor.no_room_packets_total, "packets of flows without room"),
        (monitor.records_lost_total, "records lost"),
        (monitor.lines_lost_total, "lines lost"),
    ] {
        if count > 0 {
            let _ = write!(told, "; {count} {what}");
        }
    }
    told
}

/// Monitors with their top talkers, on lines of at most `width` characters if that is given.
pub fn monitors(monitors: &[MonitorStatus], width: Option<usize>) -> String {
    let mut out = String::new();
    for monitor in monitors {
        let gap = if out.is_empty() { "" } else { "\n" };
        let _ = writeln!(out, "{gap}{}", sentence(monitor));
        if monitor.top.is_empty() {
            continue;
        }
        let mut table = aligned(&["FAR END"], &["BYTES", "TOO HIGH BY AT MOST", "SHARE"]);
        for talker in &monitor.top {
            let share = talker.bytes as f64 / (monitor.bytes_total as f64).max(1.0);
            let [bytes, error] = [talker.bytes, talker.error_bytes].map(|bytes| number(bytes as f64));
            add(&mut table, &[&talker.address], &[bytes, error, format!("{:.1}%", share * 100.0)]);
        }
        let _ = writeln!(out, "\n{}", super::trimmed(&fitted(table, width, &[2, 3]).to_string()));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::squeezed;
    use super::*;
    use crate::status::TalkerStatus;

    #[test]
    fn monitors_are_told_with_what_they_lost() {
        let talker = |address: &str, bytes| TalkerStatus { address: address.into(), bytes, error_bytes: 0 };
        let edge = MonitorStatus {
            name: "edge".into(),
            interfaces: vec!["eth0".into(), "eth1".into()],
            flows: 3,
            flows_max: 64,
            packets_total: 1200,
            bytes_total: 2000,
            collector: "udp:10.0.0.5:4739".into(),
            records_exported_total: 12,
            no_room_packets_total: 7,
            top: vec![talker("10.1.0.2", 1500), talker("fd01::2", 500)],
            ..MonitorStatus::default()
        };
        let broken = MonitorStatus { name: "b".into(), error: "no".into(), ..MonitorStatus::default() };
        let lines = squeezed(&monitors(&[edge, broken], None));
        let first = "monitor edge on eth0, eth1: 3 flows of 64, 1200 packets and 2000 bytes reported, 12 records to \
                     udp:10.0.0.5:4739; 7 packets of flows without room";
        assert_eq!(lines[0], first);
        assert!(lines.contains(&"10.1.0.2 1500 0 75.0%".to_string()), "{lines:?}");
        assert!(lines.contains(&"monitor b on does not work: no".to_string()), "{lines:?}");
    }
}

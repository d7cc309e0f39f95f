//! The status of monitors.

use crate::monitor::{MonitorReading, MonitorSettings, REASONS};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A monitor. Totals count from its start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MonitorStatus {
    /// Its name.
    pub name: String,
    /// The interfaces whose packets it counts.
    pub interfaces: Vec<String>,
    /// Why it does not work; empty if it does.
    pub error: String,
    /// Flows that the kernel counts, when all were looked at last.
    pub flows: u64,
    /// Flows at most.
    pub flows_max: u64,
    /// Reports of flows, by reason: `idle`, `active`, `end` (closed or reset) or `stop` (the monitor ended).
    pub reports_total: BTreeMap<String, u64>,
    /// Packets in these reports.
    pub packets_total: u64,
    /// Bytes of IP packets in these reports.
    pub bytes_total: u64,
    /// Packets of flows that found no room, and are in no report.
    pub no_room_packets_total: u64,
    /// Their bytes.
    pub no_room_bytes_total: u64,
    /// IP packets with impossible or truncated headers.
    pub malformed_packets_total: u64,
    /// Connections that were reported with the one before of the same ends, as there was no time to tell them apart.
    pub merged_total: u64,
    /// Where IPFIX goes; empty: nowhere.
    pub collector: String,
    /// Records of IPFIX that were sent, one for each direction of a flow.
    pub records_exported_total: u64,
    /// Records of IPFIX that could not be sent.
    pub records_lost_total: u64,
    /// Where lines of JSON go; empty: nowhere.
    pub file: String,
    /// Lines written.
    pub lines_total: u64,
    /// Lines that could not be written.
    pub lines_lost_total: u64,
    /// Far ends by bytes in reports, the largest first.
    pub top: Vec<TalkerStatus>,
}

/// A top talker.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TalkerStatus {
    /// Its address.
    pub address: String,
    /// Bytes of IP packets from and to it, at most.
    pub bytes: u64,
    /// By how much `bytes` may be too high: it counts in bounded memory.
    pub error_bytes: u64,
}

impl MonitorStatus {
    pub(crate) fn new(settings: &MonitorSettings, reading: &MonitorReading) -> MonitorStatus {
        let incidents = &reading.incidents;
        let talker = |talker: &crate::monitor::Talker| TalkerStatus {
            address: talker.address.to_string(),
            bytes: talker.bytes,
            error_bytes: talker.error,
        };
        MonitorStatus {
            name: settings.name.clone(),
            interfaces: settings.interfaces.clone(),
            error: reading.error.clone(),
            flows: reading.flows,
            flows_max: settings.flows_max.into(),
            reports_total: REASONS.iter().map(|word| word.to_string()).zip(reading.reports).collect(),
            packets_total: reading.packets,
            bytes_total: reading.bytes,
            no_room_packets_total: incidents.no_room_packets,
            no_room_bytes_total: incidents.no_room_bytes,
            malformed_packets_total: incidents.malformed,
            merged_total: incidents.merged,
            collector: settings.collector.map(|end| end.to_string()).unwrap_or_default(),
            records_exported_total: reading.exported,
            records_lost_total: reading.lost,
            file: settings.file.as_ref().map(|file| file.to_string()).unwrap_or_default(),
            lines_total: reading.lines,
            lines_lost_total: reading.lines_lost,
            top: reading.top.iter().map(talker).collect(),
        }
    }
}

//! Bounds of monitors.

use super::Bound::{Number, Option, Time};
use super::{Counter, Group, limit, series};
use crate::config::reference::MONITOR;
use crate::monitor::limits as monitor;
use hairpin_linux::monitor::NEWS_BYTES;

const NO_ROOM: &[Counter] = &[series("hairpin_monitor_no_room_packets_total")];
const MERGED: &[Counter] = &[series("hairpin_monitor_merged_total")];
const RECORDS_LOST: &[Counter] = &[series("hairpin_monitor_records_lost_total")];

pub(super) const MONITORS: Group = Group {
    title: "Monitors",
    doc: "",
    limits: &[
        limit(
            "flows of a monitor",
            Option(&MONITOR, "flows_max", "flows"),
            NO_ROOM,
            "Packets of further flows are counted together, and are in no report. Flows that are there go on.",
        ),
        limit(
            "what the kernel tells of connections that have ended and the monitor has not read",
            Number(NEWS_BYTES as u64, "bytes"),
            MERGED,
            "The end is found later, when all flows are looked at; a new connection of the same ends is counted with the one before.",
        ),
        limit(
            "top talkers of a monitor",
            Option(&MONITOR, "top", "addresses"),
            &[],
            "16 times as many are counted; a further one takes the place of the smallest, and its count says how much of it may be that \
             one's.",
        ),
        limit("message of IPFIX", Number(monitor::MESSAGE_BYTES_MAX as u64, "bytes"), &[], "Another message begins."),
        limit(
            "records that a monitor collects before it sends them",
            Number(monitor::BATCH as u64, "reports"),
            &[],
            "They are sent, and then the next ones are collected.",
        ),
        limit("time between templates of IPFIX over UDP", Time(monitor::TEMPLATES_EVERY), &[], "They are sent again."),
        limit(
            "wait for a collector of IPFIX that has failed",
            Time(monitor::RETRY_AFTER),
            RECORDS_LOST,
            "Records are lost meanwhile; a warning once a minute.",
        ),
        limit(
            "time for the reports that are left when a monitor ends",
            Time(monitor::PATIENCE),
            &[],
            "Reports that are left are lost.",
        ),
    ],
};

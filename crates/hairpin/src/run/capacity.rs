//! The fill level of the tables: reported in the status, and logged once a minute while they are nearly full.

use super::reading::Reading;
use super::tell;
use crate::events::EventKind;
use crate::status::CapacityStatus;
use std::time::{Duration, Instant};

/// A table counts as nearly full from this share on, in percent.
const NEARLY_FULL_PERCENT: u64 = 90;
/// How often a full table is complained about.
const EVERY: Duration = Duration::from_secs(60);

/// How full something is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fill {
    /// There is room.
    #[default]
    Ok,
    /// There is little.
    NearlyFull,
    /// There is none.
    Full,
}

impl Fill {
    /// The fill level: `now` of at most `max`.
    pub(crate) fn of(now: u64, max: u64) -> Fill {
        match now {
            // A table without places is never full: rules without an engine.
            _ if max == 0 => Fill::Ok,
            _ if now >= max => Fill::Full,
            _ if now * 100 >= max * NEARLY_FULL_PERCENT => Fill::NearlyFull,
            _ => Fill::Ok,
        }
    }

    /// Its word in the status.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Fill::Ok => "ok",
            Fill::NearlyFull => "nearly-full",
            Fill::Full => "full",
        }
    }
}

/// The use of a table in a reading; the caller keeps the peak. Workers do not lend each other room, so the fullest one
/// counts.
pub(crate) fn status(reading: &Reading, rules_max: u64, peak: u64) -> CapacityStatus {
    let statistics = || reading.workers.iter().map(|worker| &worker.statistics);
    let fill = statistics().map(|s| Fill::of(s.connections_now + s.passes_now, s.connections_max)).max();
    let rules = statistics().map(|s| s.offload.rules).sum();
    CapacityStatus {
        connections: statistics().map(|s| s.open_now).sum(),
        entries: statistics().map(|s| s.connections_now).sum(),
        connections_peak: peak.max(statistics().map(|s| s.connections_peak).sum()),
        connections_max: statistics().map(|s| s.connections_max).sum(),
        connections_state: fill.unwrap_or_default().name().to_string(),
        table_full_total: statistics().map(|s| s.drops[hairpin_core::worker::Drop::TableFull as usize]).sum(),
        evicted_total: statistics().map(|s| s.evicted).sum(),
        rules_state: Fill::of(rules, rules_max).name().to_string(),
    }
}

/// Complains about full tables, at most once a minute about each.
#[derive(Debug, Default)]
pub(crate) struct CapacityWatch {
    peak: u64,
    refused: u64,
    connections_at: Option<Instant>,
    rules_at: Option<Instant>,
}

impl CapacityWatch {
    /// The most connections there were.
    pub(crate) fn peak(&self) -> u64 {
        self.peak
    }

    /// Takes a reading's word.
    pub(crate) fn query(&mut self, status: &CapacityStatus) {
        self.peak = self.peak.max(status.connections_peak);
        let due = |at: &mut Option<Instant>| {
            let due = at.is_none_or(|at| at.elapsed() >= EVERY);
            if due {
                *at = Some(Instant::now());
            }
            due
        };
        if status.connections_state != Fill::Ok.name() && due(&mut self.connections_at) {
            let lost = status.table_full_total + status.evicted_total;
            let told = format!(
                "warning: the connection table is {}: {} of {} entries (the fullest worker counts); {} given up or \
                 refused since the last such line; raise [limits] connections_max",
                status.connections_state.replace('-', " "),
                status.entries,
                status.connections_max,
                lost - self.refused.min(lost)
            );
            tell(EventKind::Limit, &told);
            self.refused = lost;
        }
        if status.rules_state != Fill::Ok.name() && due(&mut self.rules_at) {
            let told = format!(
                "warning: the rules are {}: connections stay with the workers; raise [limits] rules_max",
                status.rules_state.replace('-', " ")
            );
            tell(EventKind::Limit, &told);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearly_full_begins_at_nine_tenths() {
        let fills: Vec<Fill> = [0, 89, 90, 99, 100, 101].map(|now| Fill::of(now, 100)).to_vec();
        let expected = [Fill::Ok, Fill::Ok, Fill::NearlyFull, Fill::NearlyFull, Fill::Full, Fill::Full];
        assert_eq!(fills, expected);
        assert_eq!(Fill::of(0, 0), Fill::Ok);
    }

    #[test]
    fn a_full_table_is_complained_about_once_a_minute() {
        let mut watch = CapacityWatch::default();
        let full = CapacityStatus {
            connections_peak: 5,
            connections_state: Fill::Full.name().into(),
            rules_state: Fill::Ok.name().into(),
            ..CapacityStatus::default()
        };
        watch.query(&full);
        let first = watch.connections_at;
        assert!(first.is_some());
        watch.query(&full);
        assert_eq!(watch.connections_at, first);
        assert_eq!(watch.rules_at, None);
        assert_eq!(watch.peak(), 5);
    }
}

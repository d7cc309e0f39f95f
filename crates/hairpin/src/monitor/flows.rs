//! From the kernel's counts to records: when a flow is reported, and how much of it is new.
//!
//! A flow is reported when its connection has ended and last packets have had time to come, when it has been silent for the idle
//! timeout, and while it goes on once in an active timeout; then with what is new since its last report. So the sums over all records
//! are those of the packets.

use super::settings::MonitorSettings;
use anyhow::Result;
use hairpin_linux::monitor::{FlowCount, FlowEnds, FlowEvent, FlowMonitor};
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

/// How long a connection that has ended is kept for last packets.
pub(super) const LINGER: Duration = Duration::from_secs(2);
/// All flows are looked at so often at least, and at most.
const SWEEP_EVERY: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(5)];

/// The flows of the kernel.
pub(super) trait FlowTable {
    /// Calls `each` for every flow.
    fn each(&self, each: &mut dyn FnMut(&FlowEnds, &FlowCount)) -> Result<()>;
    /// The flow between `ends`.
    fn find(&self, ends: &FlowEnds) -> Result<Option<FlowCount>>;
    /// Takes the flow between `ends` out.
    fn take(&self, ends: &FlowEnds) -> Result<Option<FlowCount>>;
}

impl FlowTable for FlowMonitor {
    fn each(&self, each: &mut dyn FnMut(&FlowEnds, &FlowCount)) -> Result<()> {
        FlowMonitor::each(self, each)
    }

    fn find(&self, ends: &FlowEnds) -> Result<Option<FlowCount>> {
        FlowMonitor::find(self, ends)
    }

    fn take(&self, ends: &FlowEnds) -> Result<Option<FlowCount>> {
        FlowMonitor::take(self, ends)
    }
}

/// Why a flow is reported: `flowEndReason` (IANA 136).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Reason {
    /// No packet came for the idle timeout.
    Idle = 1,
    /// It goes on.
    Active = 2,
    /// The connection has ended.
    End = 3,
    /// The monitor ends.
    Stop = 4,
}

impl Reason {
    /// Its word in lines and in the status.
    pub(super) fn word(self) -> &'static str {
        match self {
            Reason::Idle => "idle",
            Reason::Active => "active",
            Reason::End => "end",
            Reason::Stop => "stop",
        }
    }
}

/// A flow, with what has passed since its last report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FlowRecord {
    pub(super) ends: FlowEnds,
    /// Packets, bytes and resent packets are those since the last report, flags and times of the whole flow; but each direction's
    /// `first` is when what is reported began.
    pub(super) count: FlowCount,
    pub(super) reason: Reason,
}

/// What is known of flows beside the kernel's counts.
#[derive(Debug)]
pub(super) struct FlowTracker {
    active_ns: u64,
    idle_ns: u64,
    sweep_every: Duration,
    room: usize,
    /// Flows that have been reported and go on, as they were then, and when that was.
    reported: HashMap<FlowEnds, (FlowCount, u64)>,
    /// Connections that have ended, and when they are to be reported; in the order of that.
    ended: VecDeque<(u64, FlowEnds)>,
    swept: Option<u64>,
    /// Flows that the last sweep found.
    pub(super) flows: u64,
}

impl FlowTracker {
    pub(super) fn new(settings: &MonitorSettings) -> FlowTracker {
        let [shortest, longest] = SWEEP_EVERY;
        FlowTracker {
            active_ns: nanos(settings.active_timeout),
            idle_ns: nanos(settings.idle_timeout),
            sweep_every: (settings.idle_timeout.min(settings.active_timeout) / 4).clamp(shortest, longest),
            room: settings.flows_max as usize,
            reported: HashMap::new(),
            ended: VecDeque::new(),
            swept: None,
            flows: 0,
        }
    }

    /// Reports what is to be reported at `now`, in nanoseconds of the kernel's clock; whether it has looked at all flows.
    pub(super) fn step(
        &mut self,
        table: &impl FlowTable,
        news: Vec<FlowEvent>,
        now: u64,
        mut report: impl FnMut(FlowRecord),
    ) -> Result<bool> {
        for event in news {
            match event {
                FlowEvent::Former(ends, count) => self.conclude(ends, count, Reason::End, &mut report),
                // One that finds no room here is found by a sweep.
                FlowEvent::Ended(ends) if self.ended.len() < self.room => {
                    self.ended.push_back((now + nanos(LINGER), ends));
                }
                FlowEvent::Ended(_) => {}
            }
        }
        while self.ended.front().is_some_and(|(due, _)| *due <= now) {
            let Some((_, ends)) = self.ended.pop_front() else { break };
            // Its ends may have begun another one, or a sweep has reported it.
            let Some(count) = table.find(&ends)?.filter(FlowCount::is_ended) else { continue };
            if count.last() + nanos(LINGER) > now {
                self.ended.push_back((now + nanos(LINGER), ends));
            } else if let Some(count) = table.take(&ends)? {
                self.conclude(ends, count, Reason::End, &mut report);
            }
        }
        if self.swept.is_some_and(|swept| now < swept + nanos(self.sweep_every)) {
            return Ok(false);
        }
        self.swept = Some(now);
        self.sweep(table, now, &mut report)?;
        Ok(true)
    }

    fn sweep(&mut self, table: &impl FlowTable, now: u64, report: &mut impl FnMut(FlowRecord)) -> Result<()> {
        let (mut over, mut flows) = (Vec::new(), 0);
        table.each(&mut |ends, count| {
            flows += 1;
            let silent = now.saturating_sub(count.last());
            if count.is_ended() && silent >= nanos(LINGER) {
                over.push((*ends, Reason::End));
            } else if silent >= self.idle_ns {
                over.push((*ends, Reason::Idle));
            } else {
                let since = self.reported.get(ends).map_or(count.first(), |(_, at)| *at);
                if now.saturating_sub(since) >= self.active_ns {
                    let record = self.record(*ends, *count, Reason::Active);
                    self.reported.insert(*ends, (*count, now));
                    report(record);
                }
            }
        })?;
        self.flows = flows - over.len() as u64;
        for (ends, reason) in over {
            if let Some(count) = table.take(&ends)? {
                self.conclude(ends, count, reason, report);
            }
        }
        Ok(())
    }

    /// Reports everything that is left.
    pub(super) fn end(&mut self, table: &impl FlowTable, mut report: impl FnMut(FlowRecord)) -> Result<()> {
        table.each(&mut |ends, count| report(self.record(*ends, *count, Reason::Stop)))
    }

    /// The last report of a flow.
    fn conclude(&mut self, ends: FlowEnds, count: FlowCount, reason: Reason, report: &mut impl FnMut(FlowRecord)) {
        let record = self.record(ends, count, reason);
        self.reported.remove(&ends);
        report(record);
    }

    /// What is new of a flow.
    fn record(&self, ends: FlowEnds, mut count: FlowCount, reason: Reason) -> FlowRecord {
        if let Some((before, at)) = self.reported.get(&ends) {
            for (half, before) in [(&mut count.inward, &before.inward), (&mut count.outward, &before.outward)] {
                half.packets = half.packets.saturating_sub(before.packets);
                half.bytes = half.bytes.saturating_sub(before.bytes);
                half.resent = half.resent.saturating_sub(before.resent);
                half.first = half.first.max(*at).min(half.last);
            }
        }
        FlowRecord { ends, count, reason }
    }
}

pub(super) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

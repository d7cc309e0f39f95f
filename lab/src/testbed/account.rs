//! The accounts of a trial: every packet sent has been received or is lost for a named reason.

use super::device::Handled;
use super::generator::SentCounts;
use super::{LatencySummary, Measurement};
use crate::sink::timeline::Timeline;
use crate::sink::{PacketSink, SinkCounts};
use anyhow::{Result, ensure};

/// The counts of a trial, over all lanes.
pub struct Books<'a> {
    /// By the generators.
    pub sent: SentCounts,
    /// The reason given for a packet that found no room.
    pub full: &'static str,
    /// Packets due and not sent.
    pub behind: u64,
    /// When the generators sent.
    pub timeline: Timeline,
    /// By the device.
    pub handled: Handled,
    /// By whatever is between: ports' own counts of frames dropped. By reason.
    pub between: Vec<(String, u64)>,
    /// By the sinks.
    pub sink: &'a PacketSink,
    /// How long the generators sent, in nanoseconds.
    pub duration: u64,
}

impl Books<'_> {
    /// The measurement, if the accounts are right.
    ///
    /// # Errors
    /// More has been received than sent, or something is missing for no reason.
    pub fn close(self) -> Result<Measurement> {
        let lost = self.lost();
        self.close_with(lost)
    }

    /// The measurement, if these losses, by reason, make the accounts right.
    ///
    /// # Errors
    /// As [`Books::close`].
    pub fn close_with(self, lost: Vec<(String, u64)>) -> Result<Measurement> {
        let counts = self.sink.counts();
        ensure!(
            counts.received <= self.sent.packets,
            "{} packets received of {} sent: other packets are counted",
            counts.received,
            self.sent.packets
        );
        let unexplained = self.handled.unexplained();
        ensure!(unexplained == 0, "the device does not say what became of {unexplained} frames");
        let explained: u64 = lost.iter().map(|(_, count)| count).sum();
        ensure!(
            self.sent.packets == counts.received + explained,
            "{} packets sent, {} received, {explained} lost for known reasons: the accounts are {} off ({lost:?})",
            self.sent.packets,
            counts.received,
            self.sent.packets.abs_diff(counts.received + explained)
        );
        Ok(self.measurement(lost))
    }

    fn lost(&self) -> Vec<(String, u64)> {
        let seen = [(self.full, self.sent.refused)].into_iter().chain(seen_otherwise(self.sink.counts()));
        let seen = seen.map(|(name, count)| (name.to_owned(), count));
        let all = seen.chain(self.handled.dropped.iter().cloned()).chain(self.between.iter().cloned());
        all.filter(|&(_, count)| count > 0).collect()
    }

    fn measurement(self, lost_by_reason: Vec<(String, u64)>) -> Measurement {
        let (sink, counts) = (self.sink, self.sink.counts());
        let mut timeline = self.timeline;
        timeline.merge(sink.timeline());
        let over_time = timeline.samples(self.duration);
        let seconds = self.duration as f64 / 1e9;
        let per_second = |count: u64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
        // The packets that came in while the generators sent; the rest had waited in queues.
        let (received, bytes) =
            over_time.iter().fold((0, 0), |sum, at| (sum.0 + at.received, sum.1 + at.received_bytes));
        let latency: LatencySummary = sink.latency().summary();
        Measurement {
            seconds,
            sent: self.sent.packets,
            received: counts.received,
            lost_by_reason,
            behind: self.behind,
            handed: Vec::new(),
            tx_pps: per_second(self.sent.packets),
            rx_pps: per_second(received),
            tx_bps: per_second(self.sent.bytes * 8),
            rx_bps: per_second(bytes * 8),
            latency,
            over_time,
            consistent: sink.flows().moved() == 0 && sink.flows().unchecked() == 0,
            inconsistent_flows: sink.flows().moved(),
            unchecked: sink.flows().unchecked(),
            flows_seen: sink.flows().seen(),
            backend_packets: sink.backends().packets(),
            backend_spread: sink.backends().spread(),
            reordered: counts.reordered,
            duplicates: counts.duplicates,
            corrupted: counts.corrupted,
            profile: None,
            work: None,
            ran: None,
            offloaded: self.handled.offloaded,
        }
    }
}

/// The packets that came and do not count as received, by reason.
pub fn seen_otherwise(counts: &SinkCounts) -> [(&'static str, u64); 3] {
    [("corrupted", counts.corrupted), ("too-late-to-tell", counts.late), ("from-the-future", counts.from_the_future)]
}

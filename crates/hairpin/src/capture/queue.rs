//! Packets that wait for the next list of connections.

use super::chosen::{CaptureVerdict, Chosen};
use super::source::SeenPacket;
use hairpin_core::flow::FlowKey;

/// Bytes that wait at most.
pub(crate) const BYTES_MAX: usize = 64 << 20;
/// Packets that wait at most.
pub(crate) const PACKETS_MAX: usize = 1 << 17;

/// Packets seen, of all interfaces, until it is known whether they are wanted.
#[derive(Debug, Default)]
pub(super) struct CaptureQueue {
    waiting: Vec<(FlowKey, SeenPacket)>,
    bytes: usize,
    given_up: u64,
}

impl CaptureQueue {
    /// Adds a packet. Whether there is room for more.
    #[must_use]
    pub(super) fn push(&mut self, flow: FlowKey, seen: SeenPacket) -> bool {
        self.bytes += seen.bytes.len();
        self.waiting.push((flow, seen));
        self.bytes < BYTES_MAX && self.waiting.len() < PACKETS_MAX
    }

    /// Takes out the packets up to `until`, in order of time, without those that are not wanted.
    pub(super) fn settle(&mut self, until: std::time::Duration, chosen: &Chosen) -> Vec<SeenPacket> {
        // Nearly in order already: each interface's are.
        self.waiting.sort_by_key(|(_, seen)| seen.timestamp);
        let full = self.bytes >= BYTES_MAX || self.waiting.len() >= PACKETS_MAX;
        let end = self.waiting.partition_point(|(_, seen)| seen.timestamp <= until);
        let mut wanted = Vec::new();
        for (flow, seen) in self.waiting.drain(..end) {
            self.bytes -= seen.bytes.len();
            match chosen.judge(&flow) {
                CaptureVerdict::Yes => wanted.push(seen),
                CaptureVerdict::Perhaps if full => self.given_up += 1,
                CaptureVerdict::Perhaps | CaptureVerdict::No => {}
            }
        }
        wanted
    }

    /// Packets so far that could not wait for an answer.
    pub(super) fn given_up(&self) -> u64 {
        self.given_up
    }
}

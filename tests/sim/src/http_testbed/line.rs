//! One direction of all ports together.

use super::frames::{BedFrame, on_wire};
use std::collections::VecDeque;

/// Frames go out one after the other, and arrive some time later.
pub(super) struct Line {
    ns_per_byte: f64,
    /// The longest that a frame may wait for others, in nanoseconds.
    waits_max: f64,
    latency: f64,
    free_from: f64,
    queue: VecDeque<(u64, BedFrame)>,
    pub(super) busy_ns: f64,
    pub(super) lost: u64,
}

impl Line {
    pub(super) fn new(gbit_s: f64, buffer_bytes: f64, latency_ns: f64) -> Line {
        let ns_per_byte = 8.0 / gbit_s;
        Line {
            ns_per_byte,
            waits_max: buffer_bytes * ns_per_byte,
            latency: latency_ns,
            free_from: 0.0,
            queue: VecDeque::new(),
            busy_ns: 0.0,
            lost: 0,
        }
    }

    /// A frame is there to be sent; it is lost if too much waits. Times never descend.
    pub(super) fn send(&mut self, at: f64, frame: BedFrame) {
        let begins = self.free_from.max(at);
        if begins - at > self.waits_max {
            self.lost += 1;
            return;
        }
        let takes = on_wire(&frame) * self.ns_per_byte;
        self.free_from = begins + takes;
        self.busy_ns += takes;
        self.queue.push_back(((self.free_from + self.latency).ceil() as u64, frame));
    }

    /// When the next frame arrives.
    pub(super) fn next(&self) -> u64 {
        self.queue.front().map_or(u64::MAX, |(at, _)| *at)
    }

    /// The next frame, if it has arrived.
    pub(super) fn arrived(&mut self, now: u64) -> Option<BedFrame> {
        self.queue.front().filter(|(at, _)| *at <= now)?;
        self.queue.pop_front().map(|(_, frame)| frame)
    }
}

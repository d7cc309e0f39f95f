//! One direction of the port's line.

use std::collections::VecDeque;

/// Bytes of a packet on the wire beyond the frame: preamble, checksum, gap.
const BESIDE: u64 = 24;
/// Parts of a nanosecond in which the line's time is kept: at 100 Gbit/s the smallest packet takes 6.72 ns.
const PARTS: u64 = 1024;

/// A packet that has left, or will.
#[derive(Clone, Copy, Debug)]
pub(super) struct Departure {
    /// When its last bit leaves.
    pub(super) at: u64,
    /// The time spent elsewhere.
    pub(super) beside: u64,
    /// When it was offered.
    pub(super) offered: u64,
    /// Bytes of the frame.
    pub(super) length: u16,
}

/// A line, and the packets in front of it.
pub(super) struct Wire {
    /// Of a byte, in parts of a nanosecond.
    byte: f64,
    /// When all that has been sent is through, in parts of a nanosecond.
    free_from: u64,
    /// Packets that may wait.
    room: usize,
    leaving: VecDeque<Departure>,
}

impl Wire {
    /// A line of so many Gbit/s.
    pub(super) fn new(gbit_s: f64, room: usize) -> Wire {
        Wire { byte: 8.0 * PARTS as f64 / gbit_s, free_from: 0, room, leaving: VecDeque::new() }
    }

    /// When a packet is through that is sent now.
    pub(super) fn through(&mut self, now: u64, length: u16) -> u64 {
        let takes = ((u64::from(length) + BESIDE) as f64 * self.byte) as u64;
        self.free_from = self.free_from.max(now * PARTS) + takes;
        self.free_from.div_ceil(PARTS)
    }

    /// A packet is to be sent; `false`: too many wait already. What has left before `now` must have been taken.
    pub(super) fn send(&mut self, now: u64, offered: u64, length: u16, beside: u64) -> bool {
        if self.leaving.len() >= self.room {
            return false;
        }
        let at = self.through(now, length);
        self.leaving.push_back(Departure { at, beside, offered, length });
        true
    }

    /// The next packet that has left by then.
    #[inline]
    pub(super) fn left(&mut self, by: u64) -> Option<Departure> {
        self.leaving.front().filter(|first| first.at <= by)?;
        self.leaving.pop_front()
    }

    /// Whether nothing is still to leave.
    pub(super) fn is_empty(&self) -> bool {
        self.leaving.is_empty()
    }
}

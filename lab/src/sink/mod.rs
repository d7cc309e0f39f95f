//! The sink of packets that come back: every packet is parsed, its checksums and its stamp are checked, and it is told
//! whether it is the first of its kind, in order, how long it took, and to which backend it went.
//!
//! Memory is bounded and taken at the start: a [window](order) of sequence numbers for each generator, a table of
//! [flows], a [histogram](latency), a [counter for each hundred milliseconds](timeline), and a list of
//! [backends].

pub mod backends;
pub mod flows;
pub mod latency;
pub mod order;
pub mod timeline;

use crate::traffic::stamp::{self, Stamp};
use backends::Backends;
use flows::{PacketNotice, SinkFlows};
use hairpin_core::frame::Frame;
use hairpin_core::wire::{Parsed, Transport, parse};
use latency::LatencyHistogram;
use order::{PacketArrival, PacketOrder};
use timeline::Timeline;

/// Generators that a sink tells apart at most.
pub const GENERATORS_MAX: u16 = 256;

/// A sink's expectations.
#[derive(Clone, Copy, Debug)]
pub struct SinkOptions {
    /// The session whose packets count.
    pub session: u64,
    /// Generators there are: their numbers are below this.
    pub generators: u16,
    /// Flows there are, or that are open at a time: room is taken for so many.
    pub flows: usize,
    /// Whether destinations are backends: each flow should reach one.
    pub balanced: bool,
    /// How long it is measured, in nanoseconds.
    pub duration: u64,
}

/// Counts of a sink. Every frame is one of received, duplicate, late, corrupted, from the future and foreign.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SinkCounts {
    /// Frames of any kind.
    pub frames: u64,
    /// Packets of the session, each counted once.
    pub received: u64,
    /// Bytes of their frames.
    pub bytes: u64,
    /// Packets that had come before.
    pub duplicates: u64,
    /// Packets so far behind that the sink does not know whether they had come before; they do not count as received.
    pub late: u64,
    /// Packets received after one of their flow that was sent later.
    pub reordered: u64,
    /// Packets with a wrong checksum or malformed headers.
    pub corrupted: u64,
    /// Packets that say they have not been sent yet, each counted once; they do not count as received. With one clock there
    /// are none.
    pub from_the_future: u64,
    /// Frames of no session, or of another session.
    pub foreign: u64,
}

/// The state of a sink.
pub struct PacketSink {
    options: SinkOptions,
    counts: SinkCounts,
    order: Vec<PacketOrder>,
    flows: SinkFlows,
    backends: Backends,
    latency: LatencyHistogram,
    timeline: Timeline,
}

/// The kind of a frame.
enum FrameKind {
    Ours(Stamp, Transport),
    Corrupted,
    Foreign,
}

impl PacketSink {
    /// A sink that has seen nothing; the clock starts at `start` (nanoseconds).
    pub fn new(options: SinkOptions, start: u64) -> PacketSink {
        PacketSink {
            counts: SinkCounts::default(),
            order: (0..options.generators.min(GENERATORS_MAX)).map(|_| PacketOrder::new()).collect(),
            flows: SinkFlows::new(options.flows),
            backends: Backends::default(),
            latency: LatencyHistogram::new(),
            timeline: Timeline::new(start, options.duration),
            options,
        }
    }

    /// The clock starts at `start`, not when it was made.
    pub fn start(&mut self, start: u64) {
        self.timeline = Timeline::new(start, self.options.duration);
    }

    /// Takes note of `frames`, received at `now`.
    pub fn take<F: Frame>(&mut self, now: u64, frames: &[F]) {
        let before = self.counts;
        let mut latencies = 0;
        for frame in frames {
            let bytes = frame.bytes();
            self.counts.frames += 1;
            match self.view(bytes) {
                FrameKind::Ours(stamp, at) => latencies += self.ours(now, &stamp, &at, bytes.len()),
                FrameKind::Corrupted => self.counts.corrupted += 1,
                FrameKind::Foreign => self.counts.foreign += 1,
            }
        }
        let (packets, bytes) = (self.counts.received - before.received, self.counts.bytes - before.bytes);
        self.timeline.received(now, packets, bytes, latencies);
    }

    #[inline]
    fn view(&self, frame: &[u8]) -> FrameKind {
        let at = match parse(frame) {
            Ok(Parsed::Transport(at)) => at,
            Ok(_) => return FrameKind::Foreign,
            Err(_) => return FrameKind::Corrupted,
        };
        let whole = is_whole(frame, &at);
        let stamp = stamp::read(frame, &at).and_then(|bytes| Stamp::of(&bytes, self.options.session));
        match stamp {
            _ if !whole => FrameKind::Corrupted,
            Some(stamp) if stamp.sequence >> 40 < self.order.len() as u64 => FrameKind::Ours(stamp, at),
            _ => FrameKind::Foreign,
        }
    }

    /// A packet of the session. Its latency, if it counts as received.
    #[inline]
    fn ours(&mut self, now: u64, stamp: &Stamp, at: &Transport, length: usize) -> u64 {
        let Some(order) = self.order.get_mut((stamp.sequence >> 40) as usize) else { return 0 };
        match order.arrived(stamp.sequence % stamp::SEQUENCES) {
            PacketArrival::Twice => {
                self.counts.duplicates += 1;
                return 0;
            }
            PacketArrival::Late => {
                self.counts.late += 1;
                return 0;
            }
            PacketArrival::First => {}
        }
        let Some(latency) = stamp.age(now) else {
            self.counts.from_the_future += 1;
            return 0;
        };
        self.counts.received += 1;
        self.counts.bytes += length as u64;
        self.latency.record(latency);
        let backend = if self.options.balanced { self.backends.count(&at.key.destination) } else { 0 };
        if self.flows.tell(stamp.flow, stamp.sequence, backend) == PacketNotice::Reordered {
            self.counts.reordered += 1;
        }
        latency
    }

    /// Its counts.
    pub fn counts(&self) -> &SinkCounts {
        &self.counts
    }

    /// Packets that must have been sent, by the highest number of each generator's that has come.
    pub fn numbered(&self) -> u64 {
        self.order.iter().map(PacketOrder::numbered).sum()
    }

    /// Those of them that have not come, or came too late to tell.
    pub fn missing(&self) -> u64 {
        self.order.iter().map(PacketOrder::missing).sum()
    }

    /// The flows it has seen.
    pub fn flows(&self) -> &SinkFlows {
        &self.flows
    }

    /// The backends it has seen.
    pub fn backends(&self) -> &Backends {
        &self.backends
    }

    /// The latencies.
    pub fn latency(&self) -> &LatencyHistogram {
        &self.latency
    }

    /// The frames received over time.
    pub fn timeline(&self) -> &Timeline {
        &self.timeline
    }

    /// Adds what another sink, of other flows of the same session, has seen.
    pub fn merge(&mut self, other: &PacketSink) {
        let (mine, its) = (&mut self.counts, &other.counts);
        mine.frames += its.frames;
        mine.received += its.received;
        mine.bytes += its.bytes;
        mine.duplicates += its.duplicates;
        mine.late += its.late;
        mine.reordered += its.reordered;
        mine.corrupted += its.corrupted;
        mine.from_the_future += its.from_the_future;
        mine.foreign += its.foreign;
        self.order.iter_mut().zip(&other.order).for_each(|(mine, its)| mine.merge(its));
        self.flows.merge(&other.flows);
        self.backends.merge(&other.backends);
        self.latency.merge(&other.latency);
        self.timeline.merge(&other.timeline);
    }
}

/// Whether the transport checksum is right. A UDP packet without one is not ours.
#[inline]
fn is_whole(frame: &[u8], at: &Transport) -> bool {
    let field = at.checksum_offset();
    let Some(&[a, b]) = frame.get(field..field + 2) else { return false };
    // 0 and 0xffff are the same sum; which of them is sent differs from implementation to implementation.
    let same = |right: u16| right % 0xffff == u16::from_be_bytes([a, b]) % 0xffff;
    at.transport_checksum(frame).is_some_and(same)
}

#[cfg(test)]
mod tests;

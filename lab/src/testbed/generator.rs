//! The generator: a source, paced, before an outlet.

use super::SendRate;
use super::ends::Outlet;
use crate::clock;
use crate::sink::timeline::Timeline;
use crate::traffic::pace::Pace;
use crate::traffic::{TrafficSource, stamp};
use hairpin_core::frame::{Batch, Frame};

/// Packets of a burst at most.
const BURST: usize = 32;

/// The counts of a generator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SentCounts {
    /// Packets made and handed over, those that found no room among them.
    pub packets: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Packets that found no room and were dropped.
    pub refused: u64,
    /// Times that the pool had no frame when a packet was due.
    pub no_frame: u64,
}

impl SentCounts {
    /// Adds what another generator has done.
    pub fn add(&mut self, other: &SentCounts) {
        self.packets += other.packets;
        self.bytes += other.bytes;
        self.refused += other.refused;
        self.no_frame += other.no_frame;
    }
}

/// A source before an outlet. Its clock is [`clock::now`].
pub struct Generator<O: Outlet, T: TrafficSource> {
    outlet: O,
    traffic: T,
    pace: Pace,
    session: u64,
    /// Made, and not yet taken.
    held: Batch<O::Frame>,
    started: u64,
    until: u64,
    stopped: u64,
    introduced: u64,
    /// Packets that were due at the end, and not sent any more.
    left: u64,
    sent: SentCounts,
    timeline: Timeline,
    /// When it handed over how many, up to the capacity.
    handed: Vec<(u64, u32)>,
}

impl<O: Outlet, T: TrafficSource> Generator<O, T> {
    /// One that has not been started.
    pub fn new(outlet: O, traffic: T, session: u64) -> Generator<O, T> {
        let (pace, timeline) = (Pace::new(SendRate::Max, 1.0, 0), Timeline::new(0, 0));
        Generator {
            outlet,
            traffic,
            pace,
            session,
            held: Batch::new(),
            started: 0,
            until: 0,
            stopped: u64::MAX,
            introduced: 0,
            left: 0,
            sent: SentCounts::default(),
            timeline,
            handed: Vec::new(),
        }
    }

    /// Has it keep when it hands over how many packets, the first so many times.
    pub fn record(&mut self, most: usize) {
        // Memory that has been written to: sending is not to wait for it.
        self.handed = vec![(1, 1); most];
    }

    /// Sends a burst of what makes the flows known; `false` once all have been sent.
    pub fn introduce(&mut self) -> bool {
        if self.held.is_empty() {
            if !self.outlet.has_room(BURST) {
                return true;
            }
            self.outlet.lend(&mut self.held, BURST);
            if self.held.is_empty() {
                // Those that are under way come back.
                return true;
            }
            let filled = self.traffic.introduce(clock::now(), &mut self.held);
            let mut rest: Batch<O::Frame> = self.held.drain(filled.packets..).collect();
            self.outlet.release(&mut rest);
            if filled.packets == 0 {
                return false;
            }
        }
        let before = self.held.len();
        self.outlet.send(&mut self.held);
        self.introduced += (before - self.held.len()) as u64;
        true
    }

    /// Packets sent to make flows known.
    pub fn introduced(&self) -> u64 {
        self.introduced
    }

    /// The clock starts at `start`: sends `share` of `rate` for `duration` (all in nanoseconds).
    pub fn start(&mut self, rate: SendRate, share: f64, start: u64, duration: u64) {
        self.pace = Pace::new(rate, share, start);
        self.timeline = Timeline::new(start, duration);
        self.started = start;
        self.until = start + duration;
        self.stopped = u64::MAX;
        self.sent = SentCounts::default();
        self.handed.clear();
        self.left = 0;
    }

    /// Sends what is due.
    pub fn step(&mut self) {
        let now = clock::now();
        if !self.held.is_empty() {
            return self.try_again(now);
        }
        let before = self.until.min(now);
        let due = self.pace.due(before, self.traffic.mean_length(), BURST);
        if now >= self.until || due == 0 || self.pace.is_unlimited() && !self.outlet.has_room(due) {
            return;
        }
        self.outlet.lend(&mut self.held, due);
        if self.held.len() < due {
            self.sent.no_frame += 1;
        }
        let filled = self.traffic.fill(now, &mut self.held);
        if filled.packets < self.held.len() {
            let mut rest: Batch<O::Frame> = self.held.drain(filled.packets..).collect();
            self.outlet.release(&mut rest);
        }
        self.pace.sent(filled.packets, filled.bytes);
        self.sent.packets += filled.packets as u64;
        self.sent.bytes += filled.bytes as u64;
        if filled.packets > 0 && self.handed.len() < self.handed.capacity() {
            self.handed.push((now - self.started, filled.packets as u32));
        }
        self.timeline.sent(now, filled.packets as u64);
        if !self.held.is_empty() {
            self.outlet.send(&mut self.held);
        }
        if !self.held.is_empty() && !self.pace.is_unlimited() {
            self.refuse();
        }
    }

    /// A packet sent as fast as the device takes them waits, and is stamped when it goes.
    fn try_again(&mut self, now: u64) {
        for frame in &mut self.held {
            stamp::retime(frame.bytes_mut(), self.session, now);
        }
        self.outlet.send(&mut self.held);
    }

    /// The packets in hand have found no room.
    fn refuse(&mut self) {
        self.sent.refused += self.held.len() as u64;
        self.outlet.release(&mut self.held);
    }

    /// Whether its time is over and nothing is in hand.
    pub fn is_done(&self) -> bool {
        self.held.is_empty() && clock::now() >= self.until
    }

    /// Its time is over: what is in hand is dropped, and counted, and what was still due.
    pub fn stop(&mut self) {
        self.refuse();
        self.stopped = clock::now();
        self.until = self.until.min(self.stopped);
        if !self.pace.is_unlimited() {
            self.left = self.pace.due(self.until, self.traffic.mean_length(), usize::MAX) as u64;
        }
    }

    /// Lets the outlet's driver finish what it has taken.
    pub fn flush(&mut self) {
        self.outlet.send(&mut Batch::new());
    }

    /// For how long it has sent, in nanoseconds: until it was stopped, if that was before its time.
    pub fn ran(&self) -> u64 {
        self.stopped.min(self.until).saturating_sub(self.started)
    }

    /// Its counts.
    pub fn sent(&self) -> &SentCounts {
        &self.sent
    }

    /// Packets that were due and could not be sent.
    pub fn behind(&self) -> u64 {
        self.pace.behind(self.traffic.mean_length()) + self.left
    }

    /// When it handed over how many packets, in nanoseconds from the start, if that was to be kept.
    pub fn handed(&self) -> &[(u64, u32)] {
        &self.handed
    }

    /// When it has sent how much.
    pub fn timeline(&self) -> &Timeline {
        &self.timeline
    }

    /// Its source.
    pub fn traffic(&self) -> &T {
        &self.traffic
    }
}

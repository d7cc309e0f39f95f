//! Frames that wait for their next hop's Ethernet address: few, and not for long.

use super::neighbours::{ASK_INTERVAL, ASKS_MAX};
use super::segment::LinkSegment;
use crate::flow::Address;
use crate::time::{Duration, Time};
use arrayvec::ArrayVec;

/// Frames that wait in all at most.
pub const HELD_MAX: usize = 64;
/// Frames that wait for one neighbour at most.
pub const HELD_EACH: usize = 4;
/// How long a frame waits at most: all requests, and then some.
pub const HELD_FOR: Duration = Duration::from_secs(ASK_INTERVAL.as_secs() * (ASKS_MAX as u64 + 1));

/// A frame that waits.
pub(super) struct HeldFrame<F> {
    pub(super) next: Address,
    pub(super) segment: LinkSegment,
    pub(super) until: Time,
    pub(super) frame: F,
}

/// The frames that wait, oldest first.
pub(super) struct Hold<F> {
    frames: ArrayVec<HeldFrame<F>, HELD_MAX>,
}

impl<F> Hold<F> {
    pub(super) fn new() -> Hold<F> {
        Hold { frames: ArrayVec::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.frames.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Until when the oldest waits.
    pub(super) fn oldest_until(&self) -> Option<Time> {
        self.frames.first().map(|held| held.until)
    }

    /// Keeps a frame; what has to give way for it comes back: the oldest for the same neighbour, else the oldest.
    pub(super) fn keep(&mut self, now: Time, next: Address, segment: LinkSegment, frame: F) -> Option<F> {
        let is_same = |held: &&HeldFrame<F>| held.next == next && held.segment == segment;
        let evicted = if self.frames.iter().filter(is_same).count() >= HELD_EACH {
            self.frames.iter().position(|held| is_same(&held))
        } else {
            self.frames.is_full().then_some(0)
        };
        let evicted = evicted.and_then(|at| self.frames.pop_at(at));
        self.frames.push(HeldFrame { next, segment, until: now + HELD_FOR, frame });
        evicted.map(|held| held.frame)
    }

    /// Shows all of them, oldest first, to `judge`, which hands back what is to wait on.
    pub(super) fn sift(&mut self, mut judge: impl FnMut(HeldFrame<F>) -> Option<HeldFrame<F>>) {
        for held in core::mem::take(&mut self.frames) {
            self.frames.extend(judge(held));
        }
    }
}

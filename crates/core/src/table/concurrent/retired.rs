//! Positions between their removal and their reuse.

use super::quiescence::{Grace, Quiescence};
use crate::table::Position;
use alloc::boxed::Box;

/// Positions that go together.
pub(super) const BATCH: usize = 64;

/// Positions on their way from removal to reuse: a ring of batches, each with its grace period.
pub(super) struct RetiredPositions {
    batches: Box<[RetiredBatch]>,
    /// The oldest batch.
    first: usize,
    /// Batches whose grace period has begun; the one behind them is being filled.
    closed: usize,
    /// In the batch that is being filled.
    open: usize,
    /// Up to here grace periods are known to have passed.
    passed: Option<Grace>,
}

/// Positions whose grace period is one.
#[derive(Clone, Copy)]
pub(super) struct RetiredBatch {
    grace: Option<Grace>,
    count: usize,
    positions: [Position; BATCH],
}

impl RetiredBatch {
    /// The positions.
    pub(super) fn positions(&self) -> &[Position] {
        &self.positions[..self.count]
    }
}

impl RetiredPositions {
    /// For so many batches.
    pub(super) fn new(batches: usize) -> RetiredPositions {
        let batch = RetiredBatch { grace: None, count: 0, positions: [0; BATCH] };
        RetiredPositions { batches: alloc::vec![batch; batches].into(), first: 0, closed: 0, open: 0, passed: None }
    }

    /// The batch that is being filled.
    fn last(&mut self) -> &mut RetiredBatch {
        let at = self.first + self.closed;
        let count = self.batches.len();
        &mut self.batches[if at >= count { at - count } else { at }]
    }

    /// Whether nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.closed == 0 && self.open == 0
    }

    /// Notes a position, if there is room.
    pub(super) fn push(&mut self, position: Position) -> bool {
        let is_room = self.closed < self.batches.len();
        if is_room {
            let open = self.open;
            self.last().positions[open] = position;
            self.open += 1;
        }
        is_room
    }

    /// Whether the batch that is being filled is full: it has to be closed before the next [`RetiredPositions::push`].
    pub(super) fn is_batch_full(&self) -> bool {
        self.open == BATCH
    }

    /// Begins a grace period for the batch that is being filled, unless it is empty.
    pub(super) fn close(&mut self, quiescence: &Quiescence) {
        if self.open == 0 {
            return;
        }
        let count = core::mem::take(&mut self.open);
        let batch = self.last();
        batch.count = count;
        batch.grace = Some(quiescence.begin());
        self.closed += 1;
    }

    /// The oldest batch, if its grace period has passed.
    pub(super) fn pop(&mut self, quiescence: &Quiescence) -> Option<RetiredBatch> {
        if self.closed == 0 {
            return None;
        }
        let grace = self.batches[self.first].grace;
        if grace > self.passed {
            self.passed = Some(quiescence.oldest());
            if grace > self.passed {
                return None;
            }
        }
        let batch = self.batches[self.first];
        self.first = if self.first + 1 == self.batches.len() { 0 } else { self.first + 1 };
        self.closed -= 1;
        Some(batch)
    }
}

//! Round robin: one backend after the other, whatever its weight (if it is above 0).

use super::WorkerShare;
use super::weights::Weights;

pub(super) struct RoundRobin {
    /// The backend whose turn it is.
    next: usize,
}

impl RoundRobin {
    pub(super) fn new(weights: &Weights, share: WorkerShare) -> RoundRobin {
        RoundRobin { next: share.start(weights.len() as u64) as usize }
    }

    /// The turn goes on from the backend chosen, not from the one skipped: otherwise the neighbour of a closed backend
    /// would get two turns.
    pub(super) fn choose(&mut self, weights: &Weights) -> Option<usize> {
        let (index, _) = weights.open_from(self.next).next()?;
        self.next = (index + 1) % weights.len();
        Some(index)
    }
}

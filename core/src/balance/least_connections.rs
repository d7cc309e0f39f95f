//! Least connections: the backend that would have the fewest connections per weight with one more.
//!
//! Counting the one to come makes an idle backend of weight 10 come before an idle one of weight 1. Ties go round, from
//! a different start on every worker, so that workers that read the same loads do not all choose the same backend.

use super::Share;
use super::weights::{Weight, Weights};

pub(super) struct LeastConnections {
    /// Where to begin to look.
    turn: usize,
}

impl LeastConnections {
    pub(super) fn new(weights: &Weights, share: Share) -> LeastConnections {
        LeastConnections { turn: share.start(weights.len() as u64) as usize }
    }

    pub(super) fn choose(&mut self, weights: &Weights, load: impl Fn(usize) -> u32) -> Option<usize> {
        let mut best: Option<(usize, Pressure)> = None;
        for (index, weight) in weights.open_from(self.turn) {
            let pressure = Pressure::new(load(index), weight);
            if best.is_none_or(|(_, least)| pressure.is_below(least)) {
                best = Some((index, pressure));
            }
        }
        let (index, _) = best?;
        self.turn = (index + 1) % weights.len();
        Some(index)
    }
}

/// Connections per weight, with one more connection: a fraction, compared exactly.
#[derive(Clone, Copy)]
pub(super) struct Pressure {
    connections: u64,
    weight: u64,
}

impl Pressure {
    pub(super) fn new(load: u32, weight: Weight) -> Pressure {
        Pressure { connections: u64::from(load) + 1, weight: u64::from(weight) }
    }

    pub(super) fn is_below(self, other: Pressure) -> bool {
        self.connections * other.weight < other.connections * self.weight
    }
}

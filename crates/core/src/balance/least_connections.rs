//! Least connections: the backend with the fewest connections per weight, as nginx (`least_conn`) and IPVS (`wlc`) do.
//!
//! Ties are broken by weight. At low load ties are common, because most backends have no connection: if the heaviest
//! always won, the others would never get one.
//! Workers start at different places, so that those that read the same loads do not all choose the same backend.

use super::WorkerShare;
use super::smooth_weighted::SmoothWeighted;
use super::weights::{Weight, Weights};

pub(super) struct LeastConnections {
    /// Chooses among backends that have equally many connections per weight.
    ties: SmoothWeighted,
}

impl LeastConnections {
    pub(super) fn new(weights: &Weights, share: WorkerShare) -> LeastConnections {
        LeastConnections { ties: SmoothWeighted::new(weights, share) }
    }

    pub(super) fn choose(&mut self, weights: &Weights, load: impl Fn(usize) -> u32) -> Option<usize> {
        let mut best: Option<(usize, Pressure)> = None;
        for (index, weight) in weights.open_from(0) {
            let pressure = Pressure::new(load(index).into(), weight);
            if best.is_none_or(|(_, least)| pressure.is_below(least)) {
                best = Some((index, pressure));
            }
        }
        let (index, least) = best?;
        // Other workers change loads meanwhile: then perhaps none of them is as low any more.
        let is_tied = |index: usize, weight| !least.is_below(Pressure::new(load(index).into(), weight));
        self.ties.choose_among(weights, is_tied).or(Some(index))
    }

    pub(super) fn weights_changed(&mut self, weights: &Weights) {
        self.ties.weights_changed(weights);
    }
}

/// Load per weight: a fraction, compared exactly.
#[derive(Clone, Copy)]
pub(super) struct Pressure {
    load: u64,
    weight: u64,
}

impl Pressure {
    /// The highest load that is told from others: times the highest weight, 2^24, it has room.
    pub(super) const LOAD_MAX: u64 = 1 << 39;

    pub(super) fn new(load: u64, weight: Weight) -> Pressure {
        Pressure { load: load.min(Pressure::LOAD_MAX), weight: u64::from(weight) }
    }

    pub(super) fn is_below(self, other: Pressure) -> bool {
        self.load * other.weight < other.load * self.weight
    }
}

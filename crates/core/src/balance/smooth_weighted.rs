//! Smooth weighted round robin, as nginx does it (`ngx_http_upstream_get_peer`; commit 52327e0627f4, 2012): every
//! backend gains its weight, and the one with the highest sum is chosen and pays the total of the weights. Within every
//! `sum / gcd` choices each backend gets exactly its share, spread as evenly as can be.
//!
//! A choice compares all backends: some tens of nanoseconds at 64, a microsecond at 1000, beside the cost of setting a
//! connection up.

use super::WorkerShare;
use super::weights::{Weight, Weights};
use alloc::vec;
use alloc::vec::Vec;

/// Choices another worker's start may lie ahead, at most: enough to be spread, few enough to be made at once.
const START_STEPS_MAX: u64 = 1024;

pub(super) struct SmoothWeighted {
    /// The credit of each backend; below the sum of weights (2^40) either way.
    current: Vec<i64>,
    /// The sum of weights under which that was.
    total: u64,
}

impl SmoothWeighted {
    pub(super) fn new(weights: &Weights, share: WorkerShare) -> SmoothWeighted {
        let mut chooser = SmoothWeighted { current: vec![0; weights.len()], total: weights.total };
        for _ in 0..share.start(SmoothWeighted::round(weights).min(START_STEPS_MAX)) {
            chooser.choose(weights);
        }
        chooser
    }

    /// Choices after which they repeat themselves.
    pub(super) fn round(weights: &Weights) -> u64 {
        let divisor = weights.effective.iter().fold(0, |a, &b| greatest_common_divisor(a, b)).max(1);
        weights.total / u64::from(divisor)
    }

    pub(super) fn choose(&mut self, weights: &Weights) -> Option<usize> {
        self.choose_among(weights, |_, _| true)
    }

    /// Chooses among the backends for which `may` says so, by index and weight: they share out their own weights.
    pub(super) fn choose_among(&mut self, weights: &Weights, may: impl Fn(usize, Weight) -> bool) -> Option<usize> {
        let mut best: Option<(usize, i64)> = None;
        let mut total = 0;
        for (index, (current, &weight)) in self.current.iter_mut().zip(&weights.effective).enumerate() {
            if weight == 0 || !may(index, weight) {
                continue;
            }
            total += i64::from(weight);
            *current += i64::from(weight);
            if best.is_none_or(|(_, most)| *current > most) {
                best = Some((index, *current));
            }
        }
        let (index, _) = best?;
        self.current[index] -= total;
        Some(index)
    }

    /// Credit gained under other weights is worth as much of the new sum as it was of the old: the round goes on. (To begin
    /// anew would favour the first, and weights change all the time while a backend starts slowly.) A backend that gets
    /// nothing now has gained nothing when it comes back.
    pub(super) fn weights_changed(&mut self, weights: &Weights) {
        let (new, old) = (i128::from(weights.total), i128::from(self.total.max(1)));
        for (current, &weight) in self.current.iter_mut().zip(&weights.effective) {
            *current = if weight == 0 { 0 } else { (i128::from(*current) * new / old) as i64 };
        }
        self.total = weights.total;
    }
}

fn greatest_common_divisor(a: Weight, b: Weight) -> Weight {
    let (mut a, mut b) = (a, b);
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

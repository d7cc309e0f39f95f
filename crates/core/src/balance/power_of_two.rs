//! Power of two choices: the less loaded of two different backends drawn by weight (Mitzenmacher, "The power of two
//! choices in randomized load balancing", 2001).
//!
//! Reads two loads for any number of backends, and workers with the same, slightly old view do not run in herds.

use super::least_connections::Pressure;
use super::random::Random;
use super::weights::Weights;
use alloc::vec;
use alloc::vec::Vec;

pub(super) struct PowerOfTwo {
    random: Random,
    /// Sums of the weights up to and with each backend.
    sums: Vec<u64>,
}

impl PowerOfTwo {
    pub(super) fn new(weights: &Weights, seed: u64) -> PowerOfTwo {
        let mut chooser = PowerOfTwo { random: Random::new(seed), sums: vec![0; weights.len()] };
        chooser.weights_changed(weights);
        chooser
    }

    pub(super) fn weights_changed(&mut self, weights: &Weights) {
        let mut sum = 0;
        for (to, &weight) in self.sums.iter_mut().zip(&weights.effective) {
            sum += u64::from(weight);
            *to = sum;
        }
    }

    /// `load`: what a backend has to bear, up to [`Pressure::LOAD_MAX`].
    pub(super) fn choose(&mut self, weights: &Weights, load: impl Fn(usize) -> u64) -> Option<usize> {
        if weights.total == 0 {
            return None;
        }
        let point = self.random.below(weights.total);
        let first = self.at(point);
        let weight = u64::from(weights.effective[first]);
        if weight == weights.total {
            return Some(first);
        }
        // The second is drawn from what is left when the first one's range is cut out.
        let drawn = self.random.below(weights.total - weight);
        let start = self.sums[first] - weight;
        let second = self.at(if drawn < start { drawn } else { drawn + weight });
        let pressure = |index: usize| Pressure::new(load(index), weights.effective[index]);
        Some(if pressure(second).is_below(pressure(first)) { second } else { first })
    }

    /// The backend in whose range of the sums `point`, below the total, lies.
    fn at(&self, point: u64) -> usize {
        self.sums.partition_point(|&sum| sum <= point)
    }
}

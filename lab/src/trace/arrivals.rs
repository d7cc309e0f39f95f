//! When connections come.

use super::distribution::normal;
use fastrand::Rng;
use serde::Deserialize;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// How connections come.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", tag = "kind")]
pub enum Arrivals {
    /// By a Poisson process.
    Poisson,
    /// With gaps between them that are lognormal, with this standard deviation of the logarithm.
    Lognormal {
        /// 0 to 4; the coefficient of variation is the square root of `exp(sigma^2) - 1`.
        sigma: f64,
    },
    /// By sources that are on and off for times of Pareto's law, and send by a Poisson process while they are on. All of them
    /// together are self-similar, with a Hurst parameter of `(3 - shape) / 2` (Willinger and others, 1997).
    OnOff {
        /// How many.
        sources: u32,
        /// Of both times, above 1 (they have a mean) and below 2 (they have no variance).
        shape: f64,
        /// Seconds on, on average.
        on_s: f64,
        /// Seconds off, on average.
        off_s: f64,
    },
}

impl Arrivals {
    /// Whether its numbers make sense.
    pub(super) fn is_sound(&self) -> bool {
        match *self {
            Arrivals::Poisson => true,
            Arrivals::Lognormal { sigma } => (0.0..=4.0).contains(&sigma),
            Arrivals::OnOff { sources, shape, on_s, off_s } => {
                let is_time = |seconds: f64| (1e-6..=1e6).contains(&seconds);
                (1..=1_000_000).contains(&sources) && shape > 1.0 && shape < 2.0 && is_time(on_s) && is_time(off_s)
            }
        }
    }
}

/// Nanoseconds since the beginning, as an order for a heap.
type At = Reverse<(u64, u32)>;

/// The sources that are on and off.
struct Switching {
    shape: f64,
    /// Mean nanoseconds off and on.
    means: [f64; 2],
    is_on: Vec<bool>,
    on: u32,
    /// When each is switched.
    switches: BinaryHeap<At>,
    /// New connections per nanosecond of a source that is on.
    rate: f64,
}

enum Process {
    /// The mean gap in nanoseconds.
    Poisson(f64),
    /// The median gap, and the standard deviation of its logarithm.
    Lognormal(f64, f64),
    Switching(Switching),
}

/// The times of arrivals, one after the other.
pub(super) struct ArrivalTimes {
    process: Process,
    now: f64,
    random: Rng,
}

impl ArrivalTimes {
    /// So many a second, on average.
    pub(super) fn new(arrivals: &Arrivals, per_second: f64, mut random: Rng) -> ArrivalTimes {
        let mean = 1e9 / per_second;
        let process = match *arrivals {
            Arrivals::Poisson => Process::Poisson(mean),
            Arrivals::Lognormal { sigma } => Process::Lognormal(mean * (-sigma * sigma / 2.0).exp(), sigma),
            Arrivals::OnOff { sources, shape, on_s, off_s } => {
                let part = on_s / (on_s + off_s);
                let mut switching = Switching {
                    shape,
                    means: [off_s * 1e9, on_s * 1e9],
                    is_on: (0..sources).map(|_| random.f64() < part).collect(),
                    on: 0,
                    switches: BinaryHeap::new(),
                    rate: 1.0 / (mean * part * f64::from(sources)),
                };
                switching.on = switching.is_on.iter().filter(|&&is_on| is_on).count() as u32;
                for source in 0..sources {
                    // Somewhere within the time that it is on or off.
                    let after = switching.time(source, &mut random) * random.f64();
                    switching.switches.push(Reverse((after as u64, source)));
                }
                Process::Switching(switching)
            }
        };
        ArrivalTimes { process, now: 0.0, random }
    }

    /// When the next one comes, in nanoseconds.
    pub(super) fn next(&mut self) -> u64 {
        match &mut self.process {
            Process::Poisson(mean) => self.now += exponential(&mut self.random) * *mean,
            Process::Lognormal(median, sigma) => {
                self.now += *median * (*sigma * normal(&mut self.random)).exp();
            }
            Process::Switching(switching) => self.now = switching.next(self.now, &mut self.random),
        }
        self.now as u64
    }
}

impl Switching {
    /// How long a source stays as it is, in nanoseconds.
    fn time(&self, source: u32, random: &mut Rng) -> f64 {
        let is_on = self.is_on.get(source as usize).copied().unwrap_or_default();
        let least = self.means[usize::from(is_on)] * (self.shape - 1.0) / self.shape;
        least * (1.0 - random.f64()).powf(-1.0 / self.shape)
    }

    /// The time of the next arrival after `now`. As the exponential distribution has no memory, the wait begins anew at each
    /// switch.
    fn next(&mut self, mut now: f64, random: &mut Rng) -> f64 {
        loop {
            let wait = match self.on {
                0 => f64::INFINITY,
                on => exponential(random) / (self.rate * f64::from(on)),
            };
            let Some(&Reverse((at, source))) = self.switches.peek() else { return now + wait };
            if now + wait <= at as f64 {
                return now + wait;
            }
            now = now.max(at as f64);
            self.switches.pop();
            if let Some(is_on) = self.is_on.get_mut(source as usize) {
                *is_on = !*is_on;
                if *is_on { self.on += 1 } else { self.on -= 1 }
            }
            let after = self.time(source, random);
            self.switches.push(Reverse(((now + after) as u64, source)));
        }
    }
}

/// A value of the exponential distribution with a mean of 1.
fn exponential(random: &mut Rng) -> f64 {
    -(1.0 - random.f64()).ln()
}

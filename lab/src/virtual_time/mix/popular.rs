//! Flows that are there all the time: in turn, or the more popular ones more often.

use super::{EvenPace, key};
use fastrand::Rng;
use hairpin_core::flow::Direction;
use hairpin_core::flow::{FlowKey, Protocol};
use hairpin_core::time::Time;
use hairpin_sim::testbed::{FlowPart, ModelTraffic, OfferedPacket};

/// Ranks from 1 on, each with a probability in proportion to `1 / rank^exponent`.
///
/// By rejection-inversion (Hörmann and Derflinger, "Rejection-inversion to generate variates from monotone discrete
/// distributions", 1996): no table, a number or two drawn for each rank.
#[derive(Clone, Copy, Debug)]
pub struct Zipf {
    ranks: f64,
    exponent: f64,
    /// The integral up to the first rank's end, and the last one's.
    first: f64,
    last: f64,
    /// So close to its rank nothing is rejected.
    sure: f64,
}

impl Zipf {
    /// So many ranks, 1 or more; an exponent of 0 (all alike) to 10.
    pub fn new(ranks: u32, exponent: f64) -> Zipf {
        let exponent = exponent.clamp(0.0, 10.0);
        let mut zipf = Zipf { ranks: f64::from(ranks.max(1)), exponent, first: 0.0, last: 0.0, sure: 0.0 };
        zipf.first = zipf.integral(1.5) - 1.0;
        zipf.last = zipf.integral(zipf.ranks + 0.5);
        zipf.sure = 2.0 - zipf.inverse(zipf.integral(2.5) - zipf.weight(2.0));
        zipf
    }

    fn weight(&self, x: f64) -> f64 {
        (-self.exponent * x.ln()).exp()
    }

    fn integral(&self, x: f64) -> f64 {
        let log = x.ln();
        let t = (1.0 - self.exponent) * log;
        // (e^t - 1) / t, which is 1 at 0.
        let ratio = if t.abs() > 1e-8 { t.exp_m1() / t } else { 1.0 + t / 2.0 };
        ratio * log
    }

    fn inverse(&self, x: f64) -> f64 {
        let t = (x * (1.0 - self.exponent)).max(-1.0);
        let ratio = if t.abs() > 1e-8 { t.ln_1p() / t } else { 1.0 - t / 2.0 };
        (ratio * x).exp()
    }

    /// Draws a rank.
    pub fn draw(&self, random: &mut Rng) -> u32 {
        loop {
            let u = self.last + random.f64() * (self.first - self.last);
            let x = self.inverse(u);
            let rank = x.round().clamp(1.0, self.ranks);
            if rank - x <= self.sure || u >= self.integral(rank + 0.5) - self.weight(rank) {
                return rank as u32;
            }
        }
    }
}

/// Packets of flows that are there all the time, at even distances, of one direction.
pub struct Popular {
    /// `None`: in turn.
    zipf: Option<Zipf>,
    next: u32,
    flows: u32,
    length: u16,
    pace: EvenPace,
    random: Rng,
}

impl Popular {
    /// `flows` flows, in turn or by Zipf's law with this exponent; frames of `length` bytes.
    pub fn new(flows: u32, exponent: Option<f64>, packets_per_s: f64, seconds: f64, length: u16, seed: u64) -> Popular {
        let zipf = exponent.map(|exponent| Zipf::new(flows, exponent));
        let pace = EvenPace::new(packets_per_s, seconds);
        Popular { zipf, next: 0, flows: flows.max(1), length, pace, random: Rng::with_seed(seed) }
    }
}

impl ModelTraffic for Popular {
    #[inline]
    fn next(&mut self) -> Option<OfferedPacket> {
        let at = Time::from_nanos(self.pace.next()?);
        let flow = match &self.zipf {
            Some(zipf) => zipf.draw(&mut self.random) - 1,
            None => {
                let flow = self.next;
                self.next = if flow + 1 < self.flows { flow + 1 } else { 0 };
                flow
            }
        };
        Some(OfferedPacket { at, flow, length: self.length, direction: Direction::FromClient, part: FlowPart::Middle })
    }

    fn key(&self, flow: u32) -> FlowKey {
        key(flow, Protocol::Tcp)
    }

    fn flows(&self) -> u32 {
        self.flows
    }
}

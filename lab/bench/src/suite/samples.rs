//! Repeated measurements.

use anyhow::Result;
use hairpin_e2e::peer::PeerKind;
use std::collections::BTreeMap;

/// The values of one thing, measured several times.
#[derive(Clone, Debug, Default)]
pub struct RepeatedValues(Vec<f64>);

impl From<Vec<f64>> for RepeatedValues {
    fn from(values: Vec<f64>) -> RepeatedValues {
        RepeatedValues(values)
    }
}

impl RepeatedValues {
    /// Adds one.
    pub fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    /// The middle one (of an even number, the mean of the two in the middle); NaN if there is none.
    pub fn median(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        match sorted.len() {
            0 => f64::NAN,
            n if n % 2 == 1 => sorted[n / 2],
            n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
        }
    }

    /// All of them, as they came.
    pub fn values(&self) -> &[f64] {
        &self.0
    }

    /// All of them, divided by `divisor`: in another unit.
    #[must_use]
    pub fn divided_by(&self, divisor: f64) -> RepeatedValues {
        RepeatedValues(self.0.iter().map(|value| value / divisor).collect())
    }

    /// Each divided by the other's of the same round: what made both slow or fast is not in it.
    #[must_use]
    pub fn beside(&self, other: &RepeatedValues) -> RepeatedValues {
        RepeatedValues(self.0.iter().zip(&other.0).map(|(own, other)| own / other).collect())
    }

    /// The smallest and the largest; NaN twice if there is none.
    pub fn range(&self) -> (f64, f64) {
        let fold = |pick: fn(f64, f64) -> f64| self.0.iter().copied().fold(f64::NAN, pick);
        (fold(f64::min), fold(f64::max))
    }

    /// Half the distance between the smallest and the largest, as a share of the median.
    pub fn spread(&self) -> f64 {
        let (low, high) = self.0.iter().fold((f64::MAX, f64::MIN), |(low, high), v| (low.min(*v), high.max(*v)));
        if self.0.len() < 2 { 0.0 } else { (high - low) / 2.0 / self.median() }
    }
}

/// Measures every kind `repetitions` times, in turn (a, b, c, c, b, a, a, ...), so that what drifts - heat, neighbours -
/// falls on all alike.
pub fn interleaved(
    kinds: &[PeerKind],
    repetitions: usize,
    mut once: impl FnMut(PeerKind) -> Result<f64>,
) -> Result<BTreeMap<PeerKind, RepeatedValues>> {
    let mut samples: BTreeMap<PeerKind, RepeatedValues> = BTreeMap::new();
    for repetition in 0..repetitions {
        let mut order = kinds.to_vec();
        if repetition % 2 == 1 {
            order.reverse();
        }
        for kind in order {
            samples.entry(kind).or_default().push(once(kind)?);
        }
    }
    Ok(samples)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(RepeatedValues(vec![3.0, 1.0, 2.0]).median(), 2.0);
        assert_eq!(RepeatedValues(vec![4.0, 1.0, 2.0, 3.0]).median(), 2.5);
        assert!(RepeatedValues(vec![]).median().is_nan());
        assert_eq!(RepeatedValues(vec![8.0, 10.0, 12.0]).spread(), 0.2);
        assert_eq!(RepeatedValues(vec![10.0, 8.0, 12.0]).range(), (8.0, 12.0));
        assert_eq!(RepeatedValues(vec![10.0, 8.0]).beside(&RepeatedValues(vec![5.0, 2.0])).values(), [2.0, 4.0]);
    }

    #[test]
    fn order_alternates() {
        let mut order = Vec::new();
        let samples = interleaved(&[PeerKind::Hairpin, PeerKind::Routed], 2, |kind| {
            order.push(kind);
            Ok(1.0)
        })
        .unwrap();
        assert_eq!(order, [PeerKind::Hairpin, PeerKind::Routed, PeerKind::Routed, PeerKind::Hairpin]);
        assert_eq!(samples.len(), 2);
    }
}

//! Repeated measurements.

use anyhow::Result;
use hairpin_e2e::peer::PeerKind;
pub use hairpin_lab::statistics::RepeatedValues;
use std::collections::BTreeMap;

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

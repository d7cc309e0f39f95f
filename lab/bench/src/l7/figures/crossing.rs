//! From which size of response on offloading is the cheaper way, as measured.

use super::load::{THROUGHPUT, Variant};
use super::results::{
    CROSSING as PART, CROSSING_BYTES as BYTES, CROSSING_IS_THERE as IS_THERE, FigureResults, HAIRPIN, ResultPlace,
};
use crate::suite::samples::RepeatedValues;

/// The crossing point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Crossing {
    /// From the smallest size measured on.
    Everywhere,
    /// Not even at the largest.
    Nowhere,
    /// In between: the median of the repetitions, the smallest and the largest of them.
    At { bytes: f64, low: f64, high: f64 },
}

fn place(setting: &str) -> ResultPlace<'_> {
    ResultPlace { part: PART, setting, series: HAIRPIN, x: 0 }
}

/// Compares what a response costs the balancer's core, repetition by repetition, and keeps what comes of it.
pub(super) fn record(results: &mut FigureResults, setting: &str) {
    let places = results.places(THROUGHPUT, setting);
    let cost = |variant: Variant, x: u64| {
        results.samples(ResultPlace { part: THROUGHPUT, setting, series: variant.name(), x }, "core_us_per_response")
    };
    let both: Vec<(u64, RepeatedValues, RepeatedValues)> = places
        .into_iter()
        .filter_map(|x| Some((x, cost(Variant::Software, x)?, cost(Variant::Offloaded, x)?)))
        .collect();
    let repetitions = both.iter().map(|(_, a, b)| a.values().len().min(b.values().len())).min().unwrap_or(0);
    for repetition in 0..repetitions {
        let gains = both.iter().map(|(x, software, offloaded)| {
            // How many times offloading costs less, as a logarithm.
            (*x as f64, (software.values()[repetition] / offloaded.values()[repetition]).ln())
        });
        let crossing = crossing(&gains.collect::<Vec<_>>());
        results.add(place(setting), repetition, &[(IS_THERE, f64::from(u8::from(crossing.is_some())))]);
        if let Some(bytes) = crossing {
            results.add(place(setting), repetition, &[(BYTES, bytes)]);
        }
    }
}

/// The result of [`record`]; `None` if nothing was compared.
pub(super) fn of(results: &FigureResults, setting: &str) -> Option<Crossing> {
    let all = results.samples(place(setting), IS_THERE)?.values().len();
    let Some(there) = results.samples(place(setting), BYTES).filter(|there| there.values().len() * 2 >= all) else {
        return Some(Crossing::Nowhere);
    };
    let (low, high) = there.range();
    Some(match results.places(THROUGHPUT, setting).first() {
        Some(least) if there.median() <= *least as f64 => Crossing::Everywhere,
        _ => Crossing::At { bytes: there.median(), low, high },
    })
}

/// The size from which on gains stay positive, between sizes on a logarithmic scale; `None` if the last is none. Sizes
/// are in order.
fn crossing(gains: &[(f64, f64)]) -> Option<f64> {
    gains.last().filter(|(_, gain)| *gain >= 0.0)?;
    let Some(before) = gains.iter().rposition(|(_, gain)| *gain < 0.0) else { return gains.first().map(|(x, _)| *x) };
    let ((low, loss), (high, gain)) = (gains[before], *gains.get(before + 1)?);
    let share = loss / (loss - gain);
    Some((low.ln() + share * (high.ln() - low.ln())).exp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn between_sizes_the_scale_is_logarithmic() {
        assert_eq!(crossing(&[(1e3, 0.1), (1e4, 0.2)]), Some(1e3));
        assert_eq!(crossing(&[(1e3, -0.1), (1e4, -0.2)]), None);
        let at = crossing(&[(1e2, -0.5), (1e4, 0.5), (1e6, 2.0)]).unwrap();
        assert!((at - 1e3).abs() < 1e-6, "{at}");
        // The last change of sign counts.
        let at = crossing(&[(1e0, 0.5), (1e2, -0.5), (1e4, 0.5)]).unwrap();
        assert!((at - 1e3).abs() < 1e-6, "{at}");
    }

    #[test]
    fn repetitions_are_compared_one_by_one() {
        let mut results = FigureResults::default();
        let mut add = |variant: Variant, x, costs: [f64; 3]| {
            for (repetition, cost) in costs.into_iter().enumerate() {
                let place = ResultPlace { part: THROUGHPUT, setting: "gso", series: variant.name(), x };
                results.add(place, repetition, &[("core_us_per_response", cost)]);
            }
        };
        add(Variant::Software, 1 << 10, [1.0, 1.0, 1.0]);
        add(Variant::Offloaded, 1 << 10, [2.0, 2.0, 2.0]);
        add(Variant::Software, 1 << 14, [2.0, 2.0, 1.0]);
        add(Variant::Offloaded, 1 << 14, [1.0, 1.0, 2.0]);
        record(&mut results, "gso");
        record(&mut results, "wire");
        let Some(Crossing::At { bytes, low, high }) = of(&results, "gso") else { panic!("no crossing") };
        assert!([bytes, low, high].iter().all(|at| (at - 4096.0).abs() < 1e-6), "{bytes} {low} {high}");
        assert_eq!(of(&results, "wire"), None);
    }
}

//! The statistics of repeated measurements: mean, and the interval in which the true mean is to be expected; and the values themselves.
//!
//! The interval is Student's: it takes repetitions as independent and roughly normal, which means of seconds of packets
//! are. With one repetition there is none, and the code that draws or prints one says so instead of inventing a width.

/// Two-sided 95 % quantiles of Student's t for 1 to 30 degrees of freedom.
const T_95: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
];

/// The quantile that has 2.5 % of Student's distribution above it; 0 degrees of freedom have none.
///
/// Above 30 degrees by the first terms of the expansion around the normal one (Abramowitz and Stegun, 26.7.5), right to
/// three digits.
pub fn student_95(degrees: usize) -> f64 {
    match degrees {
        0 => f64::INFINITY,
        1..=30 => T_95[degrees - 1],
        _ => {
            let (z, n) = (1.959_964_f64, degrees as f64);
            z + (z.powi(3) + z) / (4.0 * n) + (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / (96.0 * n * n)
        }
    }
}

/// A mean and how far it can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Summary {
    /// Measurements.
    pub count: usize,
    /// Their mean.
    pub mean: f64,
    /// The middle one; of an even number the mean of the two in the middle.
    pub median: f64,
    /// The smallest.
    pub least: f64,
    /// The largest.
    pub most: f64,
    /// Standard deviation of the sample; 0 for one measurement.
    pub deviation: f64,
    /// Half the width of the 95 % confidence interval of the mean; `None` for one measurement.
    pub half_width: Option<f64>,
}

impl Summary {
    /// The summary of these values; `None` if there are none. Values that are not numbers are left out.
    pub fn of(values: &[f64]) -> Option<Summary> {
        let mut sorted: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
        sorted.sort_by(f64::total_cmp);
        let count = sorted.len();
        let (least, most) = (*sorted.first()?, *sorted.last()?);
        let mean = sorted.iter().sum::<f64>() / count as f64;
        let median = (sorted[(count - 1) / 2] + sorted[count / 2]) / 2.0;
        if count == 1 {
            return Some(Summary { count, mean, median, least, most, deviation: 0.0, half_width: None });
        }
        let squares: f64 = sorted.iter().map(|value| (value - mean).powi(2)).sum();
        let deviation = (squares / (count - 1) as f64).sqrt();
        let half_width = Some(student_95(count - 1) * deviation / (count as f64).sqrt());
        Some(Summary { count, mean, median, least, most, deviation, half_width })
    }

    /// The 95 % confidence interval of the mean; of one measurement the measurement itself, twice.
    pub fn interval(&self) -> (f64, f64) {
        let half = self.half_width.unwrap_or(0.0);
        (self.mean - half, self.mean + half)
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_known_sample() {
        // Mean 5, squares 32 over 7: deviation 2.138; t(7) is 2.365.
        let summary = Summary::of(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]).unwrap();
        assert_eq!((summary.count, summary.mean, summary.median), (8, 5.0, 4.5));
        assert_eq!((summary.least, summary.most), (2.0, 9.0));
        assert!((summary.deviation - 2.138).abs() < 1e-3);
        assert!((summary.half_width.unwrap() - 1.788).abs() < 1e-3);
    }

    #[test]
    fn one_sample_has_no_interval() {
        let one = Summary::of(&[3.0, f64::NAN]).unwrap();
        assert_eq!((one.count, one.half_width, one.interval()), (1, None, (3.0, 3.0)));
        assert_eq!(Summary::of(&[]), None);
    }

    #[test]
    fn medians_and_ranges_of_repetitions() {
        assert_eq!(RepeatedValues(vec![3.0, 1.0, 2.0]).median(), 2.0);
        assert_eq!(RepeatedValues(vec![4.0, 1.0, 2.0, 3.0]).median(), 2.5);
        assert!(RepeatedValues(vec![]).median().is_nan());
        assert_eq!(RepeatedValues(vec![8.0, 10.0, 12.0]).spread(), 0.2);
        assert_eq!(RepeatedValues(vec![10.0, 8.0, 12.0]).range(), (8.0, 12.0));
        assert_eq!(RepeatedValues(vec![10.0, 8.0]).beside(&RepeatedValues(vec![5.0, 2.0])).values(), [2.0, 4.0]);
    }

    #[test]
    fn t_quantiles_continue_to_normal() {
        assert!((student_95(31) - 2.0395).abs() < 1e-3);
        assert!((student_95(60) - 2.0003).abs() < 1e-3);
        assert!((student_95(1_000_000) - 1.96).abs() < 1e-3);
        assert!(student_95(1).is_finite() && student_95(0).is_infinite());
    }

    /// 95 intervals of 100 hold the true mean, for few repetitions too: that is what the quantile is for.
    #[test]
    fn intervals_cover_the_mean_at_their_level() {
        let mut state = 7_u64;
        let mut uniform = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 11) as f64 / (1_u64 << 53) as f64
        };
        let held = (0..4000).filter(|_| {
            // Twelve uniform ones make a normal one of mean 6 and deviation 1.
            let values: Vec<f64> = (0..5).map(|_| (0..12).map(|_| uniform()).sum()).collect();
            let (low, high) = Summary::of(&values).unwrap().interval();
            (low..=high).contains(&6.0)
        });
        let held = held.count();
        assert!((3740..=3860).contains(&held), "{held} of 4000");
    }
}

//! Latencies in an HDR histogram.

use crate::testbed::LatencySummary;
use hdrhistogram::Histogram;

/// The longest told apart, in nanoseconds: a minute.
const LONGEST: u64 = 60_000_000_000;
/// Significant digits of what is between.
const DIGITS: u8 = 2;
/// Points of a distribution at most.
const POINTS_MAX: usize = 400;

/// Latencies in nanoseconds.
#[derive(Clone, Debug)]
pub struct LatencyHistogram {
    /// `None` cannot be: the bounds are constants that it takes. It counts nothing then.
    histogram: Option<Histogram<u64>>,
    count: u64,
    sum: u64,
    min: u64,
    max: u64,
}

impl Default for LatencyHistogram {
    fn default() -> LatencyHistogram {
        LatencyHistogram::new()
    }
}

impl LatencyHistogram {
    /// None yet.
    pub fn new() -> LatencyHistogram {
        let histogram = Histogram::new_with_bounds(1, LONGEST, DIGITS).ok();
        LatencyHistogram { histogram, count: 0, sum: 0, min: u64::MAX, max: 0 }
    }

    /// One of so many nanoseconds.
    #[inline]
    pub fn record(&mut self, nanoseconds: u64) {
        self.count += 1;
        self.sum = self.sum.saturating_add(nanoseconds);
        self.min = self.min.min(nanoseconds);
        self.max = self.max.max(nanoseconds);
        if let Some(histogram) = &mut self.histogram {
            histogram.saturating_record(nanoseconds.max(1));
        }
    }

    /// Adds another's.
    pub fn merge(&mut self, other: &LatencyHistogram) {
        self.count += other.count;
        self.sum = self.sum.saturating_add(other.sum);
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
        if let (Some(histogram), Some(other)) = (&mut self.histogram, &other.histogram) {
            // Both have the same bounds.
            let _ = histogram.add(other);
        }
    }

    /// All that is said of them.
    pub fn summary(&self) -> LatencySummary {
        let Some(histogram) = self.histogram.as_ref().filter(|_| self.count > 0) else {
            return LatencySummary::default();
        };
        // A bucket's upper end may be beyond the largest that was ever recorded.
        let at = |quantile| histogram.value_at_quantile(quantile).clamp(self.min, self.max);
        LatencySummary {
            count: self.count,
            min: self.min,
            mean: self.sum as f64 / self.count as f64,
            p50: at(0.5),
            p95: at(0.95),
            p99: at(0.99),
            p999: at(0.999),
            max: self.max,
            cumulative: self.cumulative(histogram),
        }
    }

    fn cumulative(&self, histogram: &Histogram<u64>) -> Vec<(u64, f64)> {
        let (mut seen, mut points) = (0, Vec::new());
        for step in histogram.iter_recorded() {
            seen += step.count_since_last_iteration();
            let value = step.value_iterated_to().clamp(self.min, self.max);
            points.push((value, seen as f64 / histogram.len() as f64));
        }
        let every = points.len().div_ceil(POINTS_MAX).max(1);
        let last = points.len().saturating_sub(1);
        let kept = points.iter().enumerate().filter(|(number, _)| number % every == 0 || *number == last);
        kept.map(|(_, &point)| point).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_says_what_was_recorded() {
        let mut latency = LatencyHistogram::new();
        let mut other = LatencyHistogram::new();
        for nanoseconds in 1..=10_000u64 {
            if nanoseconds % 2 == 0 { &mut latency } else { &mut other }.record(nanoseconds * 100);
        }
        latency.merge(&other);
        let summary = latency.summary();
        assert_eq!((summary.count, summary.min, summary.max), (10_000, 100, 1_000_000));
        assert!((summary.mean - 500_050.0).abs() < 1.0);
        for (quantile, value) in
            [(500_000.0, summary.p50), (950_000.0, summary.p95), (990_000.0, summary.p99), (999_000.0, summary.p999)]
        {
            assert!((value as f64 / quantile - 1.0).abs() < 0.02, "{quantile}: {value}");
        }
        let cumulative = &summary.cumulative;
        assert!(cumulative.len() <= POINTS_MAX + 1 && cumulative.len() > 50);
        assert!(cumulative.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1));
        assert_eq!(cumulative.last(), Some(&(1_000_000, 1.0)));
    }

    #[test]
    fn none_is_all_zeros() {
        assert_eq!(LatencyHistogram::new().summary(), LatencySummary::default());
    }

    #[test]
    fn what_is_off_the_scale_counts() {
        let mut latency = LatencyHistogram::new();
        latency.record(0);
        latency.record(u64::MAX);
        assert_eq!((latency.summary().min, latency.summary().max), (0, u64::MAX));
    }
}

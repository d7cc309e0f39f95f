//! The results of a run.

use super::wire::Departure;
use hairpin_core::time::Duration;

/// One interval of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct IntervalRow {
    /// When it began, from the beginning of the run.
    pub at: Duration,
    /// Packets offered in it, and their bytes.
    pub offered: u64,
    /// Bytes of those, from the Ethernet header on.
    pub offered_bytes: u64,
    /// Packets that have left in it.
    pub received: u64,
    /// Bytes of those.
    pub received_bytes: u64,
    /// Packets lost in it, for whatever reason.
    pub lost: u64,
    /// Bytes of those.
    pub lost_bytes: u64,
    /// Rules in the card at its end.
    pub rules: u32,
    /// Latency of the packets that have left in it, in nanoseconds: the mean.
    pub latency_mean: f64,
    /// The 95th percentile.
    pub latency_p95: f64,
    /// The 99th percentile.
    pub latency_p99: f64,
}

/// How long packets took, from when they were offered until their last bit was sent, in nanoseconds of virtual time (see
/// the module about scale). Percentiles are within 0.5%.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PacketLatency {
    /// The mean.
    pub mean: f64,
    /// The median.
    pub p50: f64,
    /// The 95th percentile.
    pub p95: f64,
    /// The 99th percentile.
    pub p99: f64,
    /// The 99.9th percentile.
    pub p999: f64,
    /// The longest.
    pub max: f64,
}

/// The results of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunResults {
    /// One for each interval.
    pub rows: Vec<IntervalRow>,
    /// Packets offered.
    pub offered: u64,
    /// Packets that have reached the sink.
    pub received: u64,
    /// Packets lost, by reason; none that is 0.
    pub lost: Vec<(&'static str, u64)>,
    /// Bytes received, from the Ethernet header on.
    pub received_bytes: u64,
    /// Until the last packet had left.
    pub duration: Duration,
    /// How long packets took.
    pub latency: PacketLatency,
    /// Packets that the card turned round.
    pub offloaded_packets: u64,
    /// Packets that the card marked for a core.
    pub marked_packets: u64,
    /// Bytes of those.
    pub offloaded_bytes: u64,
    /// Rules in the card, on average over time.
    pub rules_mean: f64,
    /// The most rules in it at a time.
    pub rules_peak: u32,
    /// Rules put in.
    pub inserted: u64,
    /// Rules taken out.
    pub deleted: u64,
    /// Rules that the card refused, for whatever reason.
    pub refused: u64,
    /// How long each core was busy: with packets, rules, timeouts.
    pub busy: Vec<Duration>,
    /// How often the policy has kept a flow, by reason; none that is 0.
    pub kept: Vec<(&'static str, u64)>,
    /// How often it has taken one back, by reason; none that is 0.
    pub evicted: Vec<(&'static str, u64)>,
    /// Connections established.
    pub established: u64,
    /// Packets that reached another backend than those of their flow before them: 0, unless flows were given up for others
    /// because the table was full, or were silent for too long, and went on.
    pub unfaithful: u64,
    /// The defects of the run itself: packets that are nowhere, rules that only one side knows of. Must be empty.
    pub failures: Vec<String>,
}

/// Buckets below this are one nanosecond wide; above, so many make up each doubling.
const FINE: u64 = 256;
/// Their number in bits, less one: a bucket is at most 1/128 of what it stands for, so its middle at most 0.4% off.
const SHARP: u32 = 7;
/// Enough for 2^64 nanoseconds.
const BUCKETS: usize = (64 - SHARP as usize) << SHARP;

/// Counts by latency.
pub(super) struct Histogram {
    buckets: Box<[u64]>,
    sum: u128,
    count: u64,
    max: u64,
    /// The lowest and highest bucket in use.
    used: (usize, usize),
}

impl Histogram {
    pub(super) fn new() -> Histogram {
        Histogram { buckets: vec![0; BUCKETS].into(), sum: 0, count: 0, max: 0, used: (BUCKETS, 0) }
    }

    fn bucket(ns: u64) -> usize {
        if ns < FINE {
            return ns as usize;
        }
        let shift = 63 - ns.leading_zeros() - SHARP;
        ((u64::from(shift) << SHARP) + (ns >> shift)) as usize
    }

    /// A bucket's value: its middle.
    fn middle(bucket: usize) -> f64 {
        if bucket < FINE as usize {
            return bucket as f64;
        }
        let shift = (bucket >> SHARP) as u32 - 1;
        let first = (bucket as u64 - (u64::from(shift) << SHARP)) << shift;
        first as f64 + ((1u64 << shift) - 1) as f64 / 2.0
    }

    #[inline]
    pub(super) fn add(&mut self, ns: u64) {
        let bucket = Histogram::bucket(ns);
        self.buckets[bucket] += 1;
        self.sum += u128::from(ns);
        self.count += 1;
        self.max = self.max.max(ns);
        self.used = (self.used.0.min(bucket), self.used.1.max(bucket));
    }

    /// Adds all of `other`, and empties it.
    pub(super) fn take(&mut self, other: &mut Histogram) {
        if other.count == 0 {
            return;
        }
        let (first, last) = other.used;
        for (here, there) in self.buckets[first..=last].iter_mut().zip(&mut other.buckets[first..=last]) {
            *here += std::mem::take(there);
        }
        self.sum += std::mem::take(&mut other.sum);
        self.count += std::mem::take(&mut other.count);
        self.max = self.max.max(std::mem::take(&mut other.max));
        self.used = (self.used.0.min(first), self.used.1.max(last));
        other.used = (BUCKETS, 0);
    }

    pub(super) fn mean(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.sum as f64 / self.count as f64 }
    }

    /// The values below which these parts (rising) of all are.
    pub(super) fn percentiles<const N: usize>(&self, parts: [f64; N]) -> [f64; N] {
        let mut values = [0.0; N];
        if self.count == 0 {
            return values;
        }
        let (mut below, mut next) = (0, 0);
        for bucket in self.used.0..=self.used.1 {
            below += self.buckets[bucket];
            while next < N && below as f64 >= (parts[next] * self.count as f64).max(1.0) {
                values[next] = Histogram::middle(bucket).min(self.max as f64);
                next += 1;
            }
        }
        values
    }

    pub(super) fn latency(&self) -> PacketLatency {
        let [p50, p95, p99, p999] = self.percentiles([0.5, 0.95, 0.99, 0.999]);
        PacketLatency { mean: self.mean(), p50, p95, p99, p999, max: self.max as f64 }
    }
}

/// Rows, as they come to be.
pub(super) struct IntervalRows {
    pub(super) rows: Vec<IntervalRow>,
    interval: u64,
    /// When the run began.
    began: u64,
    /// When the row at hand ends.
    pub(super) ends: u64,
    /// Rows that are complete.
    closed: usize,
    /// Latencies of the row at hand, and of all before.
    at_hand: Histogram,
    before: Histogram,
}

impl IntervalRows {
    pub(super) fn new(began: u64, interval: Duration) -> IntervalRows {
        let interval = u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX);
        let ends = began.saturating_add(interval);
        let (at_hand, before) = (Histogram::new(), Histogram::new());
        IntervalRows { rows: Vec::new(), interval, began, ends, closed: 0, at_hand, before }
    }

    /// The row of a point in time.
    #[inline]
    fn row(&mut self, at: u64) -> &mut IntervalRow {
        let at_hand = at < self.ends && at.saturating_add(self.interval) >= self.ends;
        let place = if at_hand { self.closed } else { (at.saturating_sub(self.began) / self.interval) as usize };
        while self.rows.len() <= place {
            let at = Duration::from_nanos(self.rows.len() as u64 * self.interval);
            self.rows.push(IntervalRow { at, ..IntervalRow::default() });
        }
        &mut self.rows[place]
    }

    pub(super) fn offered(&mut self, at: u64, length: u16) {
        let row = self.row(at);
        row.offered += 1;
        row.offered_bytes += u64::from(length);
    }

    pub(super) fn lost(&mut self, at: u64, length: u16) {
        let row = self.row(at);
        row.lost += 1;
        row.lost_bytes += u64::from(length);
    }

    pub(super) fn received(&mut self, left: &Departure) {
        let row = self.row(left.at);
        row.received += 1;
        row.received_bytes += u64::from(left.length);
        self.at_hand.add((left.at + left.beside).saturating_sub(left.offered));
    }

    /// The row at hand is over.
    pub(super) fn close(&mut self, rules: u32) {
        let [p95, p99] = self.at_hand.percentiles([0.95, 0.99]);
        let mean = self.at_hand.mean();
        let row = self.row(self.ends - 1);
        (row.rules, row.latency_mean, row.latency_p95, row.latency_p99) = (rules, mean, p95, p99);
        self.before.take(&mut self.at_hand);
        self.closed += 1;
        self.ends = self.ends.saturating_add(self.interval);
    }

    /// All rows, and all latencies.
    pub(super) fn finish(mut self) -> (Vec<IntervalRow>, PacketLatency) {
        self.before.take(&mut self.at_hand);
        (self.rows, self.before.latency())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fastrand::Rng;

    #[test]
    fn percentiles_are_within_half_a_percent() {
        let mut random = Rng::with_seed(3);
        let (mut histogram, mut part) = (Histogram::new(), Histogram::new());
        let mut all = Vec::new();
        for number in 0..200_000 {
            let ns = 2f64.powf(random.f64() * 40.0) as u64;
            part.add(ns);
            all.push(ns);
            if number % 1000 == 0 {
                histogram.take(&mut part);
            }
        }
        histogram.take(&mut part);
        all.sort();
        let latency = histogram.latency();
        for (value, rank) in [(latency.p50, 0.5), (latency.p95, 0.95), (latency.p99, 0.99), (latency.p999, 0.999)] {
            let right = all[(rank * all.len() as f64) as usize - 1] as f64;
            assert!((value / right - 1.0).abs() < 0.005, "{rank}: {value}, not {right}");
        }
        let mean = all.iter().sum::<u64>() as f64 / all.len() as f64;
        assert!((latency.mean / mean - 1.0).abs() < 1e-9 && latency.max == *all.last().unwrap() as f64);
    }

    #[test]
    fn every_bucket_is_where_its_middle_is() {
        for bucket in 0..BUCKETS - (1 << SHARP) {
            assert_eq!(Histogram::bucket(Histogram::middle(bucket) as u64), bucket);
        }
    }
}

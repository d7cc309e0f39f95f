//! The outcome of a case, in numbers of the whole testbed: rates and counts are scaled up again, latencies down.

use hairpin_sim::testbed::{IntervalRow, RunResults};
use serde::{Deserialize, Serialize};

/// Intervals in which a run's samples are kept at most; longer runs have several taken together.
pub const SAMPLES_MAX: usize = 100;

/// The events of an interval of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct IntervalSample {
    /// Its beginning, in seconds.
    pub at: f64,
    /// Packets per second that were offered and received.
    pub offered_pps: f64,
    /// Packets per second that came back.
    pub received_pps: f64,
    /// The part of packets lost.
    pub loss: f64,
    /// Mean latency, in nanoseconds.
    pub latency_mean: f64,
    /// The latency that 95 and 99 of 100 packets do not exceed, in nanoseconds.
    pub latency_p95: f64,
    /// See `latency_p95`.
    pub latency_p99: f64,
    /// Rules in the card at its end.
    pub rules: f64,
}

/// A run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Seconds of virtual time.
    pub seconds: f64,
    /// Packets that were simulated: offered, not scaled up.
    pub simulated: u64,
    /// Packets per second.
    pub offered_pps: f64,
    /// Packets per second.
    pub received_pps: f64,
    /// Bits per second that came back, frames without what is between them.
    pub received_bps: f64,
    /// The part of packets lost by the device.
    pub loss: f64,
    /// Packets lost by reason, as simulated.
    pub lost: Vec<(String, u64)>,
    /// Nanoseconds: mean, and what 50, 95, 99 and 99.9 of 100 packets do not exceed.
    pub latency_mean: f64,
    /// See `latency_mean`.
    pub latency_p50: f64,
    /// See `latency_mean`.
    pub latency_p95: f64,
    /// See `latency_mean`.
    pub latency_p99: f64,
    /// See `latency_mean`.
    pub latency_p999: f64,
    /// Coefficient of variation of `received_pps` over intervals: deviation by mean.
    pub variation: f64,
    /// Received packets per second in the first and the last tenth of the run.
    pub first_pps: f64,
    /// See `first_pps`.
    pub last_pps: f64,
    /// The part of received packets that the card forwarded.
    pub offloaded_packets: f64,
    /// The part of received bytes that it forwarded.
    pub offloaded_bytes: f64,
    /// Rules on average over time.
    pub rules_mean: f64,
    /// Rules at most.
    pub rules_peak: f64,
    /// Rules per second that were inserted, deleted, refused.
    pub inserted_per_s: f64,
    /// See `inserted_per_s`.
    pub deleted_per_s: f64,
    /// See `inserted_per_s`.
    pub refused_per_s: f64,
    /// The part of the cores' time that was work.
    pub busy: f64,
    /// The cores' work for each packet received, in nanoseconds.
    pub cpu_ns: f64,
    /// Connections that were established, as simulated.
    pub established: u64,
    /// Packets that reached another backend than their flow's first.
    pub unfaithful: u64,
    /// Received beyond what was offered, as a part of that.
    pub surplus: f64,
    /// Intervals whose mean latency was negative.
    pub negative: u64,
    /// Why flows stayed with the worker: verdicts by reason, as simulated.
    pub kept: Vec<(String, u64)>,
    /// Why they came back, likewise.
    pub evicted: Vec<(String, u64)>,
    /// The part of packets offered that the card marked for a core.
    #[serde(default)]
    pub marked_packets: f64,
    /// What any policy can save at most; then nothing was simulated, and all else is 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bound: Option<OutcomeBound>,
    /// Over time; of the first seed only.
    pub samples: Vec<IntervalSample>,
}

/// The most that any policy can save.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OutcomeBound {
    /// Packets saved, net of requests for rules, as a part of those offered.
    pub saved: f64,
    /// A request for a rule costs the core as much as so many packets.
    pub rule_packets: f64,
}

/// Not the device's loss: nothing of the flow had come through, so its backend could not send.
const NO_BACKEND: &str = "no-backend-yet";

impl Outcome {
    /// From a run at a scale on this many cores, in which packets were offered for `seconds`. (The last that was received
    /// may be much earlier than the last that was offered.)
    pub fn of(results: &RunResults, scale: f64, cores: u16, seconds: f64) -> Outcome {
        let seconds = results.duration.as_secs_f64().max(seconds).max(1e-9);
        let rate = |count: u64| count as f64 / seconds / scale;
        let part = |part: f64, of: f64| if of > 0.0 { part / of } else { 0.0 };
        let lost: u64 = results.lost.iter().filter(|(reason, _)| *reason != NO_BACKEND).map(|(_, count)| count).sum();
        let none: u64 = results.lost.iter().filter(|(reason, _)| *reason == NO_BACKEND).map(|(_, count)| count).sum();
        let busy: f64 = results.busy.iter().map(|busy| busy.as_secs_f64()).sum();
        let named = |list: &[(&'static str, u64)]| list.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect();
        let samples = samples(results, scale);
        let rates: Vec<f64> = samples.iter().map(|sample| sample.received_pps).collect();
        let tenth = (rates.len() / 10).max(1);
        let mean = |rates: &[f64]| rates.iter().sum::<f64>() / rates.len().max(1) as f64;
        let latency = &results.latency;
        Outcome {
            seconds,
            simulated: results.offered,
            offered_pps: rate(results.offered),
            received_pps: rate(results.received),
            received_bps: 8.0 * rate(results.received_bytes),
            loss: part(lost as f64, results.offered.saturating_sub(none) as f64),
            lost: named(&results.lost),
            latency_mean: latency.mean * scale,
            latency_p50: latency.p50 * scale,
            latency_p95: latency.p95 * scale,
            latency_p99: latency.p99 * scale,
            latency_p999: latency.p999 * scale,
            variation: variation(&rates),
            first_pps: mean(&rates[..tenth.min(rates.len())]),
            last_pps: mean(&rates[rates.len().saturating_sub(tenth)..]),
            offloaded_packets: part(results.offloaded_packets as f64, results.received as f64),
            offloaded_bytes: part(results.offloaded_bytes as f64, results.received_bytes as f64),
            rules_mean: results.rules_mean / scale,
            rules_peak: f64::from(results.rules_peak) / scale,
            inserted_per_s: rate(results.inserted),
            deleted_per_s: rate(results.deleted),
            refused_per_s: rate(results.refused),
            busy: busy / seconds / f64::from(cores.max(1)),
            // A core's times are as much longer as the scale is smaller.
            cpu_ns: part(busy * 1e9 * scale, results.received as f64),
            established: results.established,
            unfaithful: results.unfaithful,
            surplus: part(results.received.saturating_sub(results.offered) as f64, results.offered as f64),
            negative: results.rows.iter().filter(|row| row.latency_mean < 0.0).count() as u64,
            kept: named(&results.kept),
            evicted: named(&results.evicted),
            marked_packets: part(results.marked_packets as f64, results.offered as f64),
            bound: None,
            samples,
        }
    }

    /// The part of packets offered that the card forwarded, less what the requests for rules cost the core, in packets.
    pub fn net_saved(&self, rule_packets: f64) -> f64 {
        let requests = self.inserted_per_s + self.deleted_per_s + self.refused_per_s;
        let forwarded = self.offloaded_packets * self.received_pps;
        if self.offered_pps > 0.0 { (forwarded - requests * rule_packets) / self.offered_pps } else { 0.0 }
    }
}

/// The run's rows, several taken together if there are too many. What is left of the last ones is left out: an interval
/// that is shorter than others says nothing of rates.
fn samples(results: &RunResults, scale: f64) -> Vec<IntervalSample> {
    let (Some(first), Some(second)) = (results.rows.first(), results.rows.get(1)) else { return Vec::new() };
    let interval = second.at.saturating_sub(first.at).as_secs_f64();
    let together = results.rows.len().div_ceil(SAMPLES_MAX).max(1);
    let whole = results.rows.chunks_exact(together);
    let sample = |rows: &[IntervalRow]| {
        let seconds = interval * together as f64;
        let (offered, received): (u64, u64) =
            (rows.iter().map(|row| row.offered).sum(), rows.iter().map(|row| row.received).sum());
        let lost: u64 = rows.iter().map(|row| row.lost).sum();
        // Means by packets; of quantiles the largest, which is no less than the true one.
        let mean = rows.iter().map(|row| row.latency_mean * row.received as f64).sum::<f64>() / received.max(1) as f64;
        let largest = |of: fn(&IntervalRow) -> f64| rows.iter().map(of).fold(0.0, f64::max);
        IntervalSample {
            at: rows[0].at.as_secs_f64(),
            offered_pps: offered as f64 / seconds / scale,
            received_pps: received as f64 / seconds / scale,
            loss: lost as f64 / offered.max(1) as f64,
            latency_mean: mean * scale,
            latency_p95: largest(|row| row.latency_p95) * scale,
            latency_p99: largest(|row| row.latency_p99) * scale,
            rules: f64::from(rows[rows.len() - 1].rules) / scale,
        }
    };
    let mut samples: Vec<IntervalSample> = whole.map(sample).collect();
    // The last row has what is left of the run.
    if together == 1 && samples.len() > 1 {
        samples.pop();
    }
    samples
}

fn variation(rates: &[f64]) -> f64 {
    let count = rates.len() as f64;
    let mean = rates.iter().sum::<f64>() / count.max(1.0);
    if rates.len() < 2 || mean <= 0.0 {
        return 0.0;
    }
    (rates.iter().map(|rate| (rate - mean).powi(2)).sum::<f64>() / (count - 1.0)).sqrt() / mean
}

/// A quantity of an outcome that is compared and drawn.
#[derive(Clone, Copy, Debug)]
pub struct OutcomeMetric {
    /// Its name in experiment files.
    pub name: &'static str,
    /// Its meaning and unit, for people.
    pub text: &'static str,
    /// Its value, in that unit.
    pub of: fn(&Outcome) -> f64,
    /// Digits behind the point.
    pub digits: usize,
    /// Its value over time, where there is one.
    pub over_time: Option<fn(&IntervalSample) -> f64>,
}

/// All of them.
pub const METRICS: [OutcomeMetric; 24] = [
    OutcomeMetric::new("throughput", "received, Mpps", |o| o.received_pps / 1e6, 2)
        .over_time(|sample| sample.received_pps / 1e6),
    OutcomeMetric::new("gbit", "received, Gbit/s", |o| o.received_bps / 1e9, 1),
    OutcomeMetric::new("offered", "offered, Mpps", |o| o.offered_pps / 1e6, 2),
    OutcomeMetric::new("loss", "lost, %", |o| o.loss * 100.0, 3).over_time(|sample| sample.loss * 100.0),
    OutcomeMetric::new("latency", "mean latency, us", |o| o.latency_mean / 1e3, 1)
        .over_time(|sample| sample.latency_mean / 1e3),
    OutcomeMetric::new("p50", "median latency, us", |o| o.latency_p50 / 1e3, 1),
    OutcomeMetric::new("p95", "95 % of latencies, us", |o| o.latency_p95 / 1e3, 1)
        .over_time(|sample| sample.latency_p95 / 1e3),
    OutcomeMetric::new("p99", "99 % of latencies, us", |o| o.latency_p99 / 1e3, 1)
        .over_time(|sample| sample.latency_p99 / 1e3),
    OutcomeMetric::new("p999", "99.9 % of latencies, us", |o| o.latency_p999 / 1e3, 1),
    OutcomeMetric::new("variation", "variation of throughput, %", |o| o.variation * 100.0, 2),
    OutcomeMetric::new("first", "received in the first tenth, Mpps", |o| o.first_pps / 1e6, 2),
    OutcomeMetric::new("last", "received in the last tenth, Mpps", |o| o.last_pps / 1e6, 2),
    OutcomeMetric::new("offloaded", "packets offloaded, %", |o| o.offloaded_packets * 100.0, 1),
    OutcomeMetric::new("offloaded-bytes", "bytes offloaded, %", |o| o.offloaded_bytes * 100.0, 1),
    OutcomeMetric::new("rules", "rules, thousands", |o| o.rules_mean / 1e3, 2).over_time(|sample| sample.rules / 1e3),
    OutcomeMetric::new("rules-peak", "rules at most, thousands", |o| o.rules_peak / 1e3, 2),
    OutcomeMetric::new("inserted", "rules inserted, thousands/s", |o| o.inserted_per_s / 1e3, 2),
    OutcomeMetric::new("refused", "rules refused, thousands/s", |o| o.refused_per_s / 1e3, 2),
    OutcomeMetric::new("cpu", "CPU, ns per packet", |o| o.cpu_ns, 1),
    OutcomeMetric::new("surplus", "received beyond what was offered, %", |o| o.surplus * 100.0, 3),
    OutcomeMetric::new("negative", "intervals with a negative latency", |o| o.negative as f64, 0),
    OutcomeMetric::new("unfaithful", "packets to another backend", |o| o.unfaithful as f64, 0),
    OutcomeMetric::new("marked", "packets marked, %", |o| o.marked_packets * 100.0, 1),
    OutcomeMetric::new("busy", "cores busy, %", |o| o.busy * 100.0, 1),
];

impl OutcomeMetric {
    const fn new(name: &'static str, text: &'static str, of: fn(&Outcome) -> f64, digits: usize) -> OutcomeMetric {
        OutcomeMetric { name, text, of, digits, over_time: None }
    }

    const fn over_time(mut self, of: fn(&IntervalSample) -> f64) -> OutcomeMetric {
        self.over_time = Some(of);
        self
    }

    /// A value of it for people.
    pub fn said(&self, value: f64) -> String {
        format!("{value:.*}", self.digits)
    }
}

/// The metric of this name.
pub fn metric(name: &str) -> Option<&'static OutcomeMetric> {
    METRICS.iter().find(|metric| metric.name == name)
}

//! What came of a case.

use hairpin_sim::http_testbed::{HttpResults, Work};
use serde::{Deserialize, Serialize};

/// Under full load, and latency at half of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CardOutcome {
    /// Bodies that clients got, Gbit/s.
    pub goodput: f64,
    /// Responses a second.
    pub requests: f64,
    /// Packets that each core received, Mpps.
    pub core_mpps: f64,
    /// The part of the time in which cores were busy.
    pub busy: f64,
    /// The part of the time in which memory was busy.
    pub memory: f64,
    /// The part of the time in which the busier direction of the ports was.
    pub ports: f64,
    /// The part of the time in which rules changed.
    pub changing: f64,
    /// The part of the bytes that the flow engine turned round.
    pub offloaded: f64,
    /// Rules put in, a second.
    pub rules: f64,
    /// Of packets that came in, the part that found a queue full.
    pub lost: f64,
    /// Of segments that servers sent, the part that they had sent before.
    pub repeated: f64,
    /// Parts of the cores' work, by [`Work::ALL`].
    pub work: [f64; Work::COUNT],
    /// Mean latency at half load, microseconds.
    pub latency: f64,
    /// Its 99th percentile.
    pub latency_p99: f64,
    /// Requests whose latency was measured.
    pub measured: u64,
}

impl CardOutcome {
    /// Of a run under full load on so many cores.
    pub fn of(results: &HttpResults, cores: u16) -> CardOutcome {
        let seconds = results.seconds.max(1e-9);
        let part = |part: f64, of: f64| if of > 0.0 { part / of } else { 0.0 };
        let worked: f64 = results.work.iter().sum();
        let came = (results.core_packets + results.engine_packets) as f64;
        let lost: u64 = results.lost.iter().sum();
        let segments = results.body_bytes as f64 / 1460.0;
        CardOutcome {
            goodput: results.body_bytes as f64 * 8.0 / seconds / 1e9,
            requests: results.responses as f64 / seconds,
            core_mpps: results.core_packets as f64 / seconds / f64::from(cores.max(1)) / 1e6,
            busy: results.busy,
            memory: results.memory_busy,
            ports: results.lines_busy[0].max(results.lines_busy[1]),
            changing: results.changing,
            offloaded: part(results.engine_bytes as f64, results.body_bytes as f64).min(1.0),
            rules: results.rules as f64 / seconds,
            lost: part(lost as f64, came + lost as f64),
            repeated: part(results.repeated as f64, segments + results.repeated as f64),
            work: results.work.map(|work| part(work, worked)),
            ..CardOutcome::default()
        }
    }

    /// Adds latency, from a run at half load.
    pub fn at_half(&mut self, results: &HttpResults) {
        let all = &results.latencies;
        if all.is_empty() {
            return;
        }
        self.latency = all.iter().map(|&ns| f64::from(ns)).sum::<f64>() / all.len() as f64 / 1e3;
        self.latency_p99 = f64::from(all[(all.len() * 99 / 100).min(all.len() - 1)]) / 1e3;
        self.measured = all.len() as u64;
    }

    /// What was busiest, for people: why there was no more.
    pub fn limit(&self) -> String {
        let all =
            [("ports", self.ports), ("memory", self.memory), ("changes of rules", self.changing), ("cores", self.busy)];
        let (name, part) = all.into_iter().max_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or(("nothing", 0.0));
        format!("{name} {:.0} %", part * 100.0)
    }
}

/// A quantity that is compared and drawn.
#[derive(Clone, Copy, Debug)]
pub struct CardMetric {
    /// Its name in the file.
    pub name: &'static str,
    /// Its meaning and unit, for people.
    pub text: &'static str,
    /// Its value, in that unit.
    pub of: fn(&CardOutcome) -> f64,
}

/// All of them.
pub const METRICS: [CardMetric; 4] = [
    CardMetric { name: "goodput", text: "goodput, Gbit/s", of: |outcome| outcome.goodput },
    CardMetric { name: "mpps", text: "packets of a core, Mpps", of: |outcome| outcome.core_mpps },
    CardMetric { name: "latency", text: "mean latency at half load, us", of: |outcome| outcome.latency },
    CardMetric { name: "p99", text: "99 % of latencies at half load, us", of: |outcome| outcome.latency_p99 },
];

/// The metric of this name.
pub fn metric(name: &str) -> Option<&'static CardMetric> {
    METRICS.iter().find(|metric| metric.name == name)
}

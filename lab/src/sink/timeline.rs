//! Packets sent and received over time, by hundreds of milliseconds.

use crate::testbed::TrialSample;

/// Length of a step, in nanoseconds.
pub const STEP: u64 = 100_000_000;
/// Steps beyond a trial's duration: what is still under way when the generator stops.
const BEYOND: usize = 20;
/// Steps at most: 100 days.
const STEPS_MAX: usize = 86_400_000;

#[derive(Clone, Copy, Debug, Default)]
struct TimelineStep {
    sent: u64,
    received: u64,
    bytes: u64,
    latencies: u64,
}

/// Counters for each step; what comes after the last one counts there.
#[derive(Clone, Debug)]
pub struct Timeline {
    start: u64,
    steps: Vec<TimelineStep>,
}

impl Timeline {
    /// Nothing yet; the clock starts at `start`, and `duration` are measured (nanoseconds).
    pub fn new(start: u64, duration: u64) -> Timeline {
        let steps = (duration.div_ceil(STEP) as usize).min(STEPS_MAX) + BEYOND;
        Timeline { start, steps: vec![TimelineStep::default(); steps] }
    }

    #[inline]
    fn step(&mut self, now: u64) -> Option<&mut TimelineStep> {
        let last = self.steps.len() - 1;
        self.steps.get_mut(((now.saturating_sub(self.start) / STEP) as usize).min(last))
    }

    /// So many packets were sent.
    #[inline]
    pub fn sent(&mut self, now: u64, packets: u64) {
        if let Some(step) = self.step(now) {
            step.sent += packets;
        }
    }

    /// So many packets of so many bytes were received; their latencies sum up to so many nanoseconds.
    #[inline]
    pub fn received(&mut self, now: u64, packets: u64, bytes: u64, latencies: u64) {
        if let Some(step) = self.step(now) {
            step.received += packets;
            step.bytes += bytes;
            step.latencies = step.latencies.saturating_add(latencies);
        }
    }

    /// Adds another's counts, of the same start.
    pub fn merge(&mut self, other: &Timeline) {
        for (mine, its) in self.steps.iter_mut().zip(&other.steps) {
            mine.sent += its.sent;
            mine.received += its.received;
            mine.bytes += its.bytes;
            mine.latencies = mine.latencies.saturating_add(its.latencies);
        }
    }

    /// The steps that begin within `duration` nanoseconds; the last is as long as is left.
    pub fn samples(&self, duration: u64) -> Vec<TrialSample> {
        let steps = self.steps.iter().take(duration.div_ceil(STEP) as usize).enumerate();
        let sample = |(number, step): (usize, &TimelineStep)| {
            let at = number as u64 * STEP;
            TrialSample {
                at: at as f64 / 1e9,
                length: (duration - at).min(STEP) as f64 / 1e9,
                sent: step.sent,
                received: step.received,
                received_bytes: step.bytes,
                latency_mean: if step.received == 0 { 0.0 } else { step.latencies as f64 / step.received as f64 },
            }
        };
        steps.map(sample).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_go_where_their_time_is() {
        let mut timeline = Timeline::new(1000, 250_000_000);
        timeline.sent(1000, 5);
        timeline.sent(1000 + STEP - 1, 1);
        timeline.received(1000 + STEP, 4, 400, 40);
        timeline.received(u64::MAX, 1, 100, 7);
        let samples = timeline.samples(250_000_000);
        assert_eq!(samples.len(), 3);
        assert_eq!((samples[0].sent, samples[0].received), (6, 0));
        assert_eq!((samples[1].received, samples[1].received_bytes, samples[1].latency_mean), (4, 400, 10.0));
        assert!((samples[2].length - 0.05).abs() < 1e-9 && (samples[2].at - 0.2).abs() < 1e-9);
        timeline.merge(&timeline.clone());
        assert_eq!(timeline.samples(100_000_000)[0].sent, 12);
    }
}

//! An open loop: how much is to be sent by now.

use crate::testbed::SendRate;

/// The time that a delayed generator may make up for at once, in nanoseconds of its rate.
const CATCH_UP: f64 = 2_000_000.0;

/// Meters packets or bits by the clock. What cannot be made up for is counted, and not sent: a burst of all that a pause
/// has left would measure the device's queues.
#[derive(Clone, Debug)]
pub struct Pace {
    /// Units per nanosecond; 0: no limit.
    rate: f64,
    bits: bool,
    /// Units that may be sent; below zero after a packet that was larger than what was left.
    credit: f64,
    credit_max: f64,
    last: u64,
    lost: f64,
}

impl Pace {
    /// Metered at `share` of `rate` from `now` on (nanoseconds).
    pub fn new(rate: SendRate, share: f64, now: u64) -> Pace {
        let (per_second, bits) = match rate {
            SendRate::Max => (0.0, false),
            SendRate::Packets(rate) => (rate * share, false),
            SendRate::Bits(rate) => (rate * share, true),
        };
        let rate = per_second / 1e9;
        // At low rates one packet at least, or none would ever be due.
        let least = if bits { 12_000.0 } else { 1.0 };
        Pace { rate, bits, credit: 0.0, credit_max: (rate * CATCH_UP).max(least), last: now, lost: 0.0 }
    }

    /// How many packets of about `length` bytes are due at `now`, at most `most`.
    #[inline]
    pub fn due(&mut self, now: u64, length: usize, most: usize) -> usize {
        if self.rate == 0.0 {
            return most;
        }
        self.credit += now.saturating_sub(self.last) as f64 * self.rate;
        self.last = self.last.max(now);
        if self.credit > self.credit_max {
            self.lost += self.credit - self.credit_max;
            self.credit = self.credit_max;
        }
        let cost = if self.bits { (length.max(1) * 8) as f64 } else { 1.0 };
        // A whole packet has to be due. The rest of a billionth is what sums of fractions are off by.
        ((self.credit / cost + 1e-9).max(0.0) as usize).min(most)
    }

    /// `packets` of `bytes` together have been sent.
    #[inline]
    pub fn sent(&mut self, packets: usize, bytes: usize) {
        if self.rate != 0.0 {
            self.credit -= if self.bits { bytes as f64 * 8.0 } else { packets as f64 };
        }
    }

    /// Packets (of `length` bytes) that were due and could not be made up for.
    pub fn behind(&self, length: usize) -> u64 {
        let cost = if self.bits { (length.max(1) * 8) as f64 } else { 1.0 };
        (self.lost / cost).round() as u64
    }

    /// Whether there is no limit.
    pub fn is_unlimited(&self) -> bool {
        self.rate == 0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends for a second, checking every `step` nanoseconds.
    fn second(mut pace: Pace, step: u64, length: usize) -> (usize, Pace) {
        let mut sent = 0;
        for now in (0..=1_000_000_000u64).step_by(step as usize) {
            loop {
                let due = pace.due(now, length, 32);
                pace.sent(due, due * length);
                sent += due;
                if due < 32 {
                    break;
                }
            }
        }
        (sent, pace)
    }

    #[test]
    fn a_second_has_as_many_packets_as_asked_for() {
        for (rate, step) in [(1.0, 1000), (999.0, 1000), (1_000_000.0, 777), (3_333_333.0, 100_000)] {
            let (sent, pace) = second(Pace::new(SendRate::Packets(rate), 1.0, 0), step, 64);
            assert!((sent as f64 - rate).abs() <= 1.0 + rate * step as f64 / 1e9, "{rate}: {sent}");
            assert_eq!(pace.behind(64), 0);
        }
    }

    #[test]
    fn bits_are_the_frames() {
        let (sent, _) = second(Pace::new(SendRate::Bits(8_000_000.0), 0.5, 0), 1000, 500);
        assert!((999..=1001).contains(&sent), "{sent}");
    }

    #[test]
    fn what_a_pause_has_left_is_counted_and_not_sent() {
        let mut pace = Pace::new(SendRate::Packets(1_000_000.0), 1.0, 0);
        assert_eq!(pace.due(1_000_000_000, 64, usize::MAX), 2000);
        assert_eq!(pace.behind(64), 998_000);
    }

    #[test]
    fn time_that_goes_back_sends_nothing() {
        let mut pace = Pace::new(SendRate::Packets(1e6), 1.0, 1000);
        assert_eq!(pace.due(500, 64, 32), 0);
        assert_eq!(pace.due(2000, 64, 32), 1);
    }
}

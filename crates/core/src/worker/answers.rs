//! How many answers of our own (RST, ICMP errors) a worker sends: a token bucket, so that no sender can have Hairpin
//! answer a flood one for one (RFC 1812, 4.3.2.8; RFC 4443, 2.4 f).

use crate::time::Time;

/// Answers per second in the long run, per worker, as the kernel's `icmp_msgs_per_sec`.
pub const PER_SECOND: u64 = 1000;

/// The bucket, full at first: when it would have been empty, had answers been sent at their rate. A burst is at most what
/// it lets through in a second.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Answers<const RATE: u64 = PER_SECOND> {
    spent_until: u64,
}

impl<const RATE: u64> Answers<RATE> {
    /// Nanoseconds that one answer costs.
    const COST: u64 = 1_000_000_000 / RATE;

    /// Whether one more may be sent; if so, it counts.
    pub(crate) fn admits(&mut self, now: Time) -> bool {
        let from = self.spent_until.max(now.as_nanos().saturating_sub(RATE * Self::COST));
        let admits = from + Self::COST <= now.as_nanos();
        if admits {
            self.spent_until = from + Self::COST;
        }
        admits
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Duration;

    #[test]
    fn a_burst_then_the_rate() {
        let mut answers = <Answers>::default();
        let start = Time::from_nanos(10_000_000_000);
        assert_eq!((0..5000).filter(|_| answers.admits(start)).count() as u64, PER_SECOND);
        let later = (1..=1000).filter(|ms| answers.admits(start + Duration::from_millis(*ms))).count() as u64;
        assert_eq!(later, PER_SECOND);
        assert_eq!((0..5000).filter(|_| answers.admits(start + Duration::from_secs(60))).count() as u64, PER_SECOND);
    }
}

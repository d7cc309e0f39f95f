//! Peak EWMA: the latency of each backend as the choice of the next request's sees it.
//!
//! After Finagle's and Linkerd's load metric of that name: a latency above the mean replaces it at once, one below it moves the
//! mean, the more the longer ago the mean was that. So a backend that becomes slow is left within one response, and is believed
//! again after some seconds. A request costs the mean times the requests that the backend would have with it.
//!
//! The mean decays also while nothing is measured: a backend that gets no requests because it was slow gets some after a while.
//! One of which nothing is known gets its first request at once, and the next one when that is answered.

use crate::time::Time;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering};

/// The time after which a latency counts half, in milliseconds. (Finagle's mean decays to 1/e in 10 s.)
const HALF_LIFE_MS: u64 = 7000;

/// The latency, in microseconds, that a request counts as which its backend failed: such a backend is quick, and of no use.
const FAILED_US: u32 = 1_000_000;

/// The cost of a request to a backend that has requests and has answered none: beyond those of backends that answer.
const UNKNOWN: u64 = 1 << 38;

/// The latency of each backend, over all workers, by number. Clones share the numbers.
///
/// An entry is the mean in units of 64 ns, and the millisecond in which it was that, each in half of a word. Of two workers
/// that measure at one time one may lose: the numbers guide choices and nothing else.
#[derive(Clone, Debug)]
pub struct Latencies {
    entries: Arc<[AtomicU64]>,
}

impl Latencies {
    pub(super) fn new(backends: u32) -> Latencies {
        Latencies { entries: (0..backends).map(|_| AtomicU64::new(0)).collect() }
    }

    /// A request of `backend` (its number in the snapshot) was answered `us` microseconds after it was sent.
    pub fn measured(&self, backend: u32, now: Time, us: u32) {
        let Some(entry) = self.entries.get(backend as usize) else { return };
        let (mean, at) = halves(entry.load(Ordering::Relaxed));
        let stamp = millis(now);
        // 0 means that nothing is known.
        let latency = u32::try_from((u64::from(us) * 125).div_ceil(8)).unwrap_or(u32::MAX).max(1);
        let mean = latency + decay(mean.saturating_sub(latency), stamp, at);
        entry.store(u64::from(stamp) << 32 | u64::from(mean), Ordering::Relaxed);
    }

    /// `backend` failed a request.
    pub fn failed(&self, backend: u32, now: Time) {
        self.measured(backend, now, FAILED_US);
    }

    /// The latency of `backend` in units of 64 ns; 0: nothing is known of it, or nothing any more.
    pub(super) fn now(&self, backend: u32, now: Time) -> u32 {
        let Some(entry) = self.entries.get(backend as usize) else { return 0 };
        let (mean, at) = halves(entry.load(Ordering::Relaxed));
        decay(mean, millis(now), at)
    }

    /// The latency of `backend` in microseconds; 0: nothing is known of it, or nothing any more.
    pub fn now_us(&self, backend: u32, now: Time) -> u32 {
        (u64::from(self.now(backend, now)) * 8).div_ceil(125) as u32
    }
}

/// What one more request costs a backend of this latency that has `requests`.
pub(super) fn cost(latency: u32, requests: u32) -> u64 {
    match (latency, requests) {
        (0, 0) => 0,
        (0, requests) => UNKNOWN + u64::from(requests),
        (latency, requests) => (u64::from(latency) * (u64::from(requests) + 1)).min(UNKNOWN - 1),
    }
}

/// Mean and millisecond.
fn halves(entry: u64) -> (u32, u32) {
    (entry as u32, (entry >> 32) as u32)
}

/// Wraps after 49 days.
fn millis(now: Time) -> u32 {
    (now.as_nanos() / 1_000_000) as u32
}

/// What is left in millisecond `now` of a value of millisecond `at`: half after each half-life. Between two of them 2^-x is
/// taken to be 1 - 0.6931 x + 0.1931 x^2, which has its slope at 0, so that many short steps lose what one long one does. At
/// least one unit is lost in each millisecond, so that it ends.
fn decay(value: u32, now: u32, at: u32) -> u32 {
    // Another worker's clock may be a moment ahead.
    let elapsed = u64::from((now.wrapping_sub(at) as i32).max(0).unsigned_abs());
    let halved = u64::from(value) >> (elapsed / HALF_LIFE_MS).min(63);
    let part = elapsed % HALF_LIFE_MS;
    let lost = u128::from(halved) * u128::from(part * (6931 * HALF_LIFE_MS - 1931 * part));
    (halved - lost.div_ceil(u128::from(10_000 * HALF_LIFE_MS * HALF_LIFE_MS)) as u64) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Time {
        Time::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn latency_rises_at_once_and_falls_slowly() {
        let latencies = Latencies::new(2);
        assert_eq!(latencies.now_us(0, at(5)), 0, "nothing is known");
        latencies.measured(0, at(1000), 1000);
        assert_eq!(latencies.now_us(0, at(1000)), 1000);
        latencies.measured(0, at(1001), 50_000);
        assert_eq!(latencies.now_us(0, at(1001)), 50_000, "a peak counts at once");
        for ms in 1002..1102 {
            latencies.measured(0, at(ms), 1000);
        }
        let soon = latencies.now_us(0, at(1101));
        assert!((48_000..50_000).contains(&soon), "{soon}");
        for ms in 1102..60_000 {
            latencies.measured(0, at(ms), 1000);
        }
        let late = latencies.now_us(0, at(60_000));
        assert!((990..1200).contains(&late), "{late}");
        assert_eq!(latencies.now_us(1, at(60_000)), 0, "the other one's are its own");
        latencies.measured(9, at(1), 1);
        assert_eq!(latencies.now_us(9, at(1)), 0, "a number that cannot be");
    }

    #[test]
    fn latency_without_measurements_is_forgotten() {
        let latencies = Latencies::new(1);
        latencies.measured(0, at(10), 64_000);
        assert_eq!(latencies.now_us(0, at(10 + HALF_LIFE_MS)), 32_000);
        assert_eq!(latencies.now_us(0, at(10 + 3 * HALF_LIFE_MS)), 8000);
        assert_eq!(latencies.now_us(0, at(10 + 30 * HALF_LIFE_MS)), 0);
        assert_eq!(latencies.now_us(0, at(5)), 64_000, "a clock that is behind");
        // Over the end of the milliseconds.
        let end = u64::from(u32::MAX);
        latencies.measured(0, at(end), 64_000);
        assert_eq!(latencies.now_us(0, at(end + HALF_LIFE_MS)), 32_000);
    }

    #[test]
    fn failed_request_counts_as_a_slow_one() {
        let latencies = Latencies::new(1);
        latencies.measured(0, at(10), 10);
        latencies.failed(0, at(10));
        assert_eq!(latencies.now_us(0, at(10)), FAILED_US);
        latencies.measured(0, at(11), u32::MAX);
        assert!(latencies.now_us(0, at(11)) > 200_000_000, "the longest there is");
    }

    #[test]
    fn cost_is_latency_by_requests() {
        assert_eq!(cost(0, 0), 0, "one of which nothing is known is tried");
        assert!(cost(0, 1) > cost(u32::MAX, u32::MAX), "and once at a time");
        assert!(cost(100, 1) == cost(200, 0) && cost(100, 2) > cost(200, 0));
    }
}

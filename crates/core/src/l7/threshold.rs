//! The size from which a body is worth a pair of rules: the cost of moving it through the worker against the cost of the
//! rules (Laconic, 3.5.2: B >= P / T * MSS).
//!
//! Both are measured where the worker runs, all the time: P from the requests it makes of the engine, T from the frames it
//! handles, as many of each as there are. Frames that carry bodies and those that carry requests cost different amounts,
//! so only batches with at least half large frames count for T, and a frame's bytes are used in place of the MSS: where
//! frames are super-packets, software forwards a body in a few of them. Old measurements count less and less. What takes
//! longer than `ONE_MAX` was interrupted, and does not count.
//!
//! The kernel's cost of bringing a frame to the worker is not in T, so the threshold is rather too high than too low.

use crate::offload::Costs;
use crate::time::Duration;

/// The threshold as long as nothing was measured (low enough that something soon is), and its bounds, in bytes.
pub const BYTES_MIN_DEFAULT: u64 = 32 << 10;
/// A smaller body has passed before its rules are in place.
pub const BYTES_MIN_LEAST: u64 = 16 << 10;
/// Beyond this a body is worth any price.
pub const BYTES_MIN_MOST: u64 = 4 << 20;

/// Bytes from which on a frame is large.
const LARGE: usize = 1000;
/// Requests to the engine that a pair of rules takes in its life: two installations, two removals.
const OPS_PER_PAIR: u64 = 4;
/// So many of each are measured before they count.
const OPS_LEAST: u64 = 16;
const FRAMES_LEAST: u64 = 32;
/// So many frames of any size are news.
const ANY_LEAST: u64 = 4096;
/// When there are so many, all that was measured counts half.
const OPS_MOST: u64 = 1 << 13;
const FRAMES_MOST: u64 = 1 << 17;
/// The longest that one measurement may take.
const ONE_MAX: Duration = Duration::from_millis(2);

/// The measurements, and the threshold that follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Threshold {
    /// Bytes from which on a body is offered to the engine, where the configuration does not say.
    pub bytes_min: u64,
    /// P: what a pair of rules costs the worker in its life, in nanoseconds; 0 before it was measured.
    pub pair_ns: u64,
    /// T: what a frame that carries a body costs the worker, in nanoseconds; 0 before it was measured.
    pub frame_ns: u64,
    /// Bytes of such a frame; 0 before that was measured.
    pub frame_bytes: u64,
}

impl Default for Threshold {
    fn default() -> Threshold {
        Threshold { bytes_min: BYTES_MIN_DEFAULT, pair_ns: 0, frame_ns: 0, frame_bytes: 0 }
    }
}

/// Frames of a batch.
#[derive(Clone, Copy, Debug, Default)]
pub struct Frames {
    count: u64,
    large: u64,
    bytes: u64,
}

impl Frames {
    /// Adds a frame of `length` bytes.
    #[inline]
    pub fn add(&mut self, length: usize) {
        self.count += 1;
        self.large += u64::from(length >= LARGE);
        self.bytes += length as u64;
    }
}

/// Measures. The clock is the caller's.
#[derive(Clone, Debug, Default)]
pub struct Meter {
    ops: u64,
    ops_ns: u64,
    frames: u64,
    frames_ns: u64,
    frames_bytes: u64,
    /// Frames of any size.
    any: u64,
    any_ns: u64,
    /// Measurements from which no conclusion has been drawn yet.
    news: u64,
    any_news: u64,
}

impl Meter {
    /// The engine has taken `ops` requests, which took so long.
    pub fn ops(&mut self, ops: usize, took: Duration) {
        if ops == 0 || took > ONE_MAX {
            return;
        }
        self.ops += ops as u64;
        self.ops_ns += took.as_nanos() as u64;
        self.news += ops as u64;
        if self.ops > OPS_MOST {
            (self.ops, self.ops_ns) = (self.ops / 2, self.ops_ns / 2);
        }
    }

    /// A batch was received, handled and sent on, which took so long.
    pub fn frames(&mut self, frames: &Frames, took: Duration) {
        if frames.count == 0 || took > ONE_MAX {
            return;
        }
        self.any += frames.count;
        self.any_ns += took.as_nanos() as u64;
        self.any_news += frames.count;
        if self.any > FRAMES_MOST {
            (self.any, self.any_ns) = (self.any / 2, self.any_ns / 2);
        }
        if frames.large * 2 < frames.count {
            return;
        }
        self.frames += frames.count;
        self.frames_ns += took.as_nanos() as u64;
        self.frames_bytes += frames.bytes;
        self.news += frames.count;
        if self.frames > FRAMES_MOST {
            self.frames /= 2;
            self.frames_ns /= 2;
            self.frames_bytes /= 2;
        }
    }

    /// The new threshold, if there are enough new measurements.
    pub fn conclude(&mut self) -> Option<Threshold> {
        if self.news < FRAMES_LEAST && self.any_news < ANY_LEAST {
            return None;
        }
        (self.news, self.any_news) = (0, 0);
        let mut threshold = Threshold::default();
        if self.ops >= OPS_LEAST {
            threshold.pair_ns = self.ops_ns * OPS_PER_PAIR / self.ops;
        }
        if self.frames >= FRAMES_LEAST {
            threshold.frame_ns = self.frames_ns / self.frames;
            threshold.frame_bytes = self.frames_bytes / self.frames;
        }
        if threshold.pair_ns > 0 && threshold.frame_ns > 0 {
            let bytes = threshold.pair_ns.saturating_mul(threshold.frame_bytes) / threshold.frame_ns;
            threshold.bytes_min = bytes.clamp(BYTES_MIN_LEAST, BYTES_MIN_MOST);
        }
        Some(threshold)
    }

    /// The cost of packets and rules, as far as it was measured. (What the kernel spends on bringing a packet to the worker
    /// is not in it.)
    pub fn costs(&self) -> Costs {
        let unmeasured = Costs::default();
        let mean = |total: u64, count: u64| u32::try_from(total / count).unwrap_or(u32::MAX);
        Costs {
            packet_ns: if self.any < FRAMES_LEAST { unmeasured.packet_ns } else { mean(self.any_ns, self.any) },
            pair_ns: match self.ops < OPS_LEAST {
                true => unmeasured.pair_ns,
                false => mean(self.ops_ns * OPS_PER_PAIR, self.ops),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(lengths: &[usize]) -> Frames {
        let mut frames = Frames::default();
        lengths.iter().for_each(|&length| frames.add(length));
        frames
    }

    #[test]
    fn costs_start_at_defaults_then_are_measured() {
        let mut meter = Meter::default();
        assert_eq!(meter.costs(), Costs::default());
        for _ in 0..100 {
            meter.frames(&batch(&[64; 32]), Duration::from_nanos(32 * 200));
            meter.frames(&batch(&[64; 32]), ONE_MAX * 2);
        }
        assert_eq!(meter.costs(), Costs { packet_ns: 200, ..Costs::default() });
        assert!(meter.conclude().is_none(), "3200 small frames are no news");
        (0..100).for_each(|_| meter.ops(2, Duration::from_nanos(3000)));
        assert_eq!(meter.costs(), Costs { packet_ns: 200, pair_ns: 6000 });
        assert_eq!(meter.conclude().expect("rules are").frame_ns, 0);
    }

    fn measured(op_ns: u64, frame_ns: u64, length: usize) -> Threshold {
        let mut meter = Meter::default();
        for _ in 0..100 {
            meter.ops(4, Duration::from_nanos(4 * op_ns));
            meter.frames(&batch(&[length; 4]), Duration::from_nanos(4 * frame_ns));
        }
        meter.conclude().expect("enough was measured")
    }

    #[test]
    fn the_threshold_is_where_rules_pay() {
        // A pair costs 40 us, a packet of 1500 bytes 1 us: 40 packets.
        let threshold = measured(10_000, 1000, 1500);
        let expected = Threshold { bytes_min: 60_000, pair_ns: 40_000, frame_ns: 1000, frame_bytes: 1500 };
        assert_eq!(threshold, expected);
        assert_eq!(measured(100, 10_000, 1500).bytes_min, BYTES_MIN_LEAST);
        assert_eq!(measured(200_000, 10, 60_000).bytes_min, BYTES_MIN_MOST);
    }

    #[test]
    fn nothing_is_concluded_from_little() {
        let mut meter = Meter::default();
        assert_eq!(meter.conclude(), None);
        for _ in 0..FRAMES_LEAST {
            meter.frames(&batch(&[1500]), Duration::from_nanos(1000));
        }
        let threshold = meter.conclude().expect("there is news");
        assert_eq!((threshold.bytes_min, threshold.pair_ns, threshold.frame_ns), (BYTES_MIN_DEFAULT, 0, 1000));
        assert_eq!(meter.conclude(), None, "nothing is new");
    }

    #[test]
    fn requests_and_interruptions_do_not_count() {
        let mut meter = Meter::default();
        for _ in 0..100 {
            meter.ops(4, Duration::from_nanos(4000));
            meter.frames(&batch(&[1500; 4]), Duration::from_nanos(4000));
            meter.frames(&batch(&[200, 200, 1500]), Duration::from_nanos(1));
            meter.frames(&batch(&[1500]), Duration::from_millis(5));
            meter.ops(1, Duration::from_millis(5));
        }
        let threshold = meter.conclude().expect("enough was measured");
        assert_eq!((threshold.pair_ns, threshold.frame_ns, threshold.frame_bytes), (4000, 1000, 1500));
    }

    #[test]
    fn what_is_old_counts_less_and_less() {
        let mut meter = Meter::default();
        let mut after = |count: u64, ns: u64| {
            for _ in 0..count {
                meter.frames(&batch(&[1500; 64]), Duration::from_nanos(64 * ns));
            }
            meter.conclude().map_or(0, |threshold| threshold.frame_ns)
        };
        assert_eq!(after(10_000, 1000), 1000);
        assert!(after(20_000, 3000) > 2990);
    }
}

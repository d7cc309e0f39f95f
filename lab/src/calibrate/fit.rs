//! What a turn costs for itself and what for each packet, from turns of all sizes.

use crate::testbed::meter::{Turns, Work};

/// Turns of a size that are too few to say anything.
const TURNS_MIN: u64 = 20;
/// Turns of a size beyond which more of them do not count more.
const TURNS_FULL: f64 = 1000.0;

/// Nanoseconds of a turn, and of each packet in it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Line {
    /// For itself; not below 0.
    pub burst_ns: f64,
    /// For each packet; above 0.
    pub packet_ns: f64,
}

impl Line {
    /// The line that comes nearest to the turns that were measured, by the squares of what it is off by as a part of what
    /// was measured: so small turns and large ones count alike. `None` if there were none.
    pub fn of(work: &Work) -> Option<Line> {
        let there = || work.turns.iter().filter(|turns| turns.packets > 0 && turns.ns > 0.0);
        let enough = there().any(|turns| turns.count >= TURNS_MIN);
        let points = there().filter(|turns| !enough || turns.count >= TURNS_MIN).map(point);
        let (mut ww, mut wx, mut wy, mut wxx, mut wxy, mut least, mut packets) = (0., 0., 0., 0., 0., f64::MAX, 0.0);
        for (x, y, weight) in points {
            // Divided by the square of y: what it is off by counts as a part.
            let w = weight / (y * y);
            (ww, wx, wy) = (ww + w, wx + w * x, wy + w * y);
            (wxx, wxy) = (wxx + w * x * x, wxy + w * x * y);
            (least, packets) = (least.min(y / x), packets + weight);
        }
        if packets == 0.0 {
            return None;
        }
        let determinant = ww * wxx - wx * wx;
        let packet_ns = (ww * wxy - wx * wy) / determinant;
        let burst_ns = (wy - packet_ns * wx) / ww;
        if determinant > 1e-9 * ww * wxx && packet_ns > 0.0 && burst_ns >= 0.0 {
            return Some(Line { burst_ns, packet_ns });
        }
        // All turns of one size: all of it is the packets'. Or noise has tilted the line: a packet costs no more than where
        // it was cheapest, and the rest is the turns'.
        let tilted = packet_ns <= 0.0 && determinant > 1e-9 * ww * wxx;
        let packet_ns = if tilted { least } else { wxy / wxx };
        let burst_ns = if tilted { ((wy - packet_ns * wx) / ww).max(0.0) } else { 0.0 };
        Some(Line { burst_ns, packet_ns })
    }

    /// Nanoseconds of a packet in turns of so many.
    pub fn each(&self, burst: f64) -> f64 {
        self.packet_ns + self.burst_ns / burst.max(1.0)
    }
}

/// Packets, nanoseconds of a turn, weight.
fn point(turns: &Turns) -> (f64, f64, f64) {
    let count = turns.count as f64;
    (turns.packets as f64, turns.ns / count, count.min(TURNS_FULL))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn work(turns: &[(usize, u64, f64)]) -> Work {
        let turns = turns.iter().map(|&(packets, count, each)| Turns { packets, count, ns: each * count as f64 });
        Work { turns: turns.collect(), ..Work::default() }
    }

    proptest! {
        #[test]
        fn a_line_is_found_again(burst in 0.0f64..500.0, packet in 5.0f64..300.0, sizes in proptest::sample::subsequence((1..=64usize).collect::<Vec<_>>(), 2..20)) {
            let turns: Vec<_> = sizes.iter().map(|&n| (n, 100 + n as u64, burst + packet * n as f64)).collect();
            let line = Line::of(&work(&turns)).unwrap();
            prop_assert!((line.burst_ns - burst).abs() < 1e-3 * (1.0 + burst), "{line:?}");
            prop_assert!((line.packet_ns - packet).abs() < 1e-3 * packet, "{line:?}");
        }

        #[test]
        fn whatever_is_measured_the_line_makes_sense(turns in proptest::collection::vec((0usize..=64, 0u64..3000, 0.0f64..1e5), 0..30)) {
            if let Some(line) = Line::of(&work(&turns)) {
                prop_assert!(line.burst_ns >= 0.0 && line.burst_ns.is_finite());
                prop_assert!(line.packet_ns > 0.0 && line.packet_ns.is_finite());
            }
        }
    }

    #[test]
    fn few_turns_and_empty_ones_do_not_count() {
        let turns = [(0, 100_000, 20.0), (1, 500, 110.0), (2, 3, 9000.0), (32, 500, 3300.0)];
        let line = Line::of(&work(&turns)).unwrap();
        assert!((line.burst_ns - 7.1).abs() < 0.1 && (line.packet_ns - 102.9).abs() < 0.1, "{line:?}");
        assert_eq!(Line::of(&work(&[(0, 9, 20.0)])), None);
        // A packet of a large turn seems to cost less than nothing.
        let line = Line::of(&work(&[(1, 500, 400.0), (32, 500, 320.0)])).unwrap();
        assert!(line.packet_ns == 10.0 && line.burst_ns > 0.0, "{line:?}");
        // Of one size only: who knows what is whose.
        assert_eq!(Line::of(&work(&[(32, 500, 3200.0)])), Some(Line { burst_ns: 0.0, packet_ns: 100.0 }));
    }
}

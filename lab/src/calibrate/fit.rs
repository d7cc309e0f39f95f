//! The cost of an iteration for itself and for each packet, from iterations of all sizes.

use crate::testbed::meter::{CoreWork, Iterations};

/// Packets of a small iteration at most.
const SMALL_MAX: usize = 4;
/// Packets of a large iteration at least.
const LARGE_MIN: usize = 16;

/// Nanoseconds of an iteration, and of each packet in it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FittedLine {
    /// For itself; not below 0.
    pub burst_ns: f64,
    /// For each packet; above 0.
    pub packet_ns: f64,
}

impl FittedLine {
    /// The line through what small iterations take on average and what large ones do: it is right at both ends, full speed
    /// and a packet at a time, and how many iterations of each there were makes no difference. `None` if there were no
    /// packets.
    pub fn of(work: &CoreWork) -> Option<FittedLine> {
        let (count, packets, ns) = sums(work.iterations.iter(), 1, usize::MAX)?;
        let all = FittedLine { burst_ns: 0.0, packet_ns: ns / packets };
        let small = sums(work.iterations.iter(), 1, SMALL_MAX);
        let large = sums(work.iterations.iter(), LARGE_MIN, usize::MAX);
        // Of one kind only: who knows what is whose.
        let (Some((few, less, short)), Some((many, more, long))) = (small, large) else { return Some(all) };
        let packet_ns = (long / many - short / few) / (more / many - less / few);
        let burst_ns = short / few - packet_ns * less / few;
        if packet_ns > 0.0 && burst_ns >= 0.0 {
            return Some(FittedLine { burst_ns, packet_ns });
        }
        // Noise has tilted it: the large ones are right, and the turn itself costs nothing, or nearly everything.
        let packet_ns = if packet_ns > 0.0 { long / more } else { long / more / 2.0 };
        Some(FittedLine { burst_ns: (ns / count - packet_ns * packets / count).max(0.0), packet_ns })
    }

    /// The line through what iterations of one packet take, and each packet of iterations of `many`; neither is below 0.
    /// Noise may have tilted it: then the turn itself costs nothing, or nearly everything.
    pub fn through(one: f64, (many, each): (f64, f64)) -> FittedLine {
        let packet_ns = ((many * each - one) / (many - 1.0)).clamp(each / 16.0, each);
        FittedLine { burst_ns: (each - packet_ns) * many, packet_ns }
    }

    /// Nanoseconds of a packet in iterations of so many.
    pub fn each(&self, burst: f64) -> f64 {
        self.packet_ns + self.burst_ns / burst.max(1.0)
    }
}

/// Iterations of `least` to `most` packets: how many, their packets, their nanoseconds; `None` if they are none.
fn sums<'a>(iterations: impl Iterator<Item = &'a Iterations>, least: usize, most: usize) -> Option<(f64, f64, f64)> {
    let of_size = iterations.filter(|iterations| (least..=most).contains(&iterations.packets) && iterations.ns > 0.0);
    let sums = of_size.fold((0.0, 0.0, 0.0), |sums, iterations| {
        let count = iterations.count as f64;
        (sums.0 + count, sums.1 + count * iterations.packets as f64, sums.2 + iterations.ns)
    });
    (sums.0 > 0.0).then_some(sums)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn work(iterations: &[(usize, u64, f64)]) -> CoreWork {
        let iterations =
            iterations.iter().map(|&(packets, count, each)| Iterations { packets, count, ns: each * count as f64 });
        CoreWork { iterations: iterations.collect(), ..CoreWork::default() }
    }

    proptest! {
        #[test]
        fn a_line_is_found_again(burst in 0.0f64..500.0, packet in 5.0f64..300.0, sizes in proptest::sample::subsequence((2..=64usize).collect::<Vec<_>>(), 2..20)) {
            let iterations: Vec<_> = [1, 40].iter().chain(&sizes).map(|&n| (n, 100 + n as u64, burst + packet * n as f64)).collect();
            let line = FittedLine::of(&work(&iterations)).unwrap();
            prop_assert!((line.burst_ns - burst).abs() < 1e-3 * (1.0 + burst), "{line:?}");
            prop_assert!((line.packet_ns - packet).abs() < 1e-3 * packet, "{line:?}");
        }

        #[test]
        fn a_line_goes_through_what_it_says_itself(burst in 0.0f64..500.0, packet in 5.0f64..300.0) {
            let line = FittedLine { burst_ns: burst, packet_ns: packet };
            let again = FittedLine::through(line.each(1.0), (32.0, line.each(32.0)));
            prop_assert!((again.burst_ns - burst).abs() < 1e-6 && (again.packet_ns - packet).abs() < 1e-6, "{again:?}");
        }

        #[test]
        fn whatever_is_measured_the_line_makes_sense(iterations in proptest::collection::vec((0usize..=64, 0u64..3000, 0.0f64..1e5), 0..30)) {
            if let Some(line) = FittedLine::of(&work(&iterations)) {
                prop_assert!(line.burst_ns >= 0.0 && line.burst_ns.is_finite());
                prop_assert!(line.packet_ns > 0.0 && line.packet_ns.is_finite());
            }
        }
    }

    #[test]
    fn fit_uses_small_and_large_iterations_only() {
        let iterations = [(0, 100_000, 20.0), (1, 10, 110.0), (8, 9000, 1.0), (32, 5000, 3210.0)];
        assert_eq!(FittedLine::of(&work(&iterations)), Some(FittedLine { burst_ns: 10.0, packet_ns: 100.0 }));
        assert_eq!(FittedLine::of(&work(&[(0, 9, 20.0)])), None);
        // Of one size only: who knows what is whose.
        assert_eq!(FittedLine::of(&work(&[(32, 500, 3200.0)])), Some(FittedLine { burst_ns: 0.0, packet_ns: 100.0 }));
        // A packet of a large iteration seems to cost less than nothing.
        let line = FittedLine::of(&work(&[(1, 500, 400.0), (32, 500, 320.0)])).unwrap();
        assert!(line.packet_ns == 5.0 && line.burst_ns > 0.0, "{line:?}");
    }
}

//! How many packets connections have, as observed; and so, what one that has had some may still have.

/// Classes: of class `k` are connections of 2^k packets or more and fewer than 2^(k+1), of the last all above.
const CLASSES: usize = 32;
/// Connections that are taken for seen at the beginning, half of them of one packet, a quarter of two or three, and so on up
/// to `PRIOR_CLASSES`: so that the first ones do not decide everything.
const PRIOR: f32 = 16.0;
const PRIOR_CLASSES: usize = 20;
/// When so many were seen, all of them count half: old ones less and less.
const SEEN_MOST: f32 = 65_536.0;
/// How many are added before sums are made anew.
const FRESH_MOST: u32 = 64;

/// The observed distribution.
#[derive(Clone, Debug)]
pub(super) struct Sizes {
    /// Connections of each class, and their packets.
    classes: [(f32, f32); CLASSES],
    /// The same of each class and all above it.
    above: [(f32, f32); CLASSES + 1],
    seen: f32,
    fresh: u32,
}

impl Sizes {
    pub(super) fn new() -> Sizes {
        let mut sizes =
            Sizes { classes: [(0.0, 0.0); CLASSES], above: [(0.0, 0.0); CLASSES + 1], seen: PRIOR, fresh: 0 };
        for (class, place) in sizes.classes.iter_mut().enumerate().take(PRIOR_CLASSES) {
            let least = (1u64 << class) as f32;
            let count = PRIOR / (2.0 * least);
            *place = (count, count * 1.5 * least);
        }
        sizes.sum();
        sizes
    }

    /// A connection of so many packets has ended.
    pub(super) fn add(&mut self, packets: u64) {
        let (count, sum) = &mut self.classes[class(packets)];
        *count += 1.0;
        *sum += packets.max(1) as f32;
        self.seen += 1.0;
        self.fresh += 1;
        if self.seen > SEEN_MOST {
            self.classes.iter_mut().for_each(|(count, sum)| (*count, *sum) = (*count / 2.0, *sum / 2.0));
            self.seen /= 2.0;
        }
        if self.fresh >= FRESH_MOST {
            self.sum();
        }
    }

    fn sum(&mut self) {
        self.fresh = 0;
        let mut total = (0.0, 0.0);
        for class in (0..CLASSES).rev() {
            total = (total.0 + self.classes[class].0, total.1 + self.classes[class].1);
            self.above[class] = total;
        }
    }

    /// How many more packets one that has had so many may be expected to have. Within its class sizes are taken for evenly
    /// spread. One larger than all others may be expected to have as many again.
    pub(super) fn remaining(&self, packets: u64) -> f32 {
        let (packets, class) = (packets.max(1), class(packets));
        let (least, most) = ((1u64 << class) as f32, (1u64 << (class + 1)) as f32);
        let so_far = (packets as f32).min(most);
        let part = (most - so_far) / least * self.classes[class].0;
        let (count, sum) = self.above[class + 1];
        let (count, sum) = (count + part, sum + part * (so_far + most) / 2.0);
        if count < 1e-3 { packets as f32 } else { (sum / count - packets as f32).max(0.0) }
    }
}

fn class(packets: u64) -> usize {
    (packets.max(1).ilog2() as usize).min(CLASSES - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn mice_end_soon_and_elephants_go_on() {
        let mut sizes = Sizes::new();
        for round in 0..20_000 {
            sizes.add(if round % 100 == 0 { 10_000 } else { 4 });
        }
        let (young, old) = (sizes.remaining(2), sizes.remaining(20));
        assert!((80.0..140.0).contains(&young), "a hundredth of 10,000: {young}");
        assert!(old > 5_000.0, "{old}");
        (0..200_000).for_each(|_| sizes.add(4));
        assert!(sizes.remaining(2) < 10.0, "what was is forgotten: {}", sizes.remaining(2));
    }

    #[test]
    fn before_anything_is_known_what_has_lasted_is_expected_to_last() {
        let sizes = Sizes::new();
        for packets in [1u64, 10, 100, 1000, 10_000] {
            let remaining = sizes.remaining(packets);
            assert!(remaining >= packets as f32 / 2.0, "{packets}: {remaining}");
        }
        assert_eq!(sizes.remaining(1 << 40), (1u64 << 40) as f32);
    }

    proptest! {
        #[test]
        fn it_is_the_mean_of_what_is_left_of_those_that_got_so_far(
            seen in proptest::collection::vec(1u64..5000, 200..600), packets in 1u64..4000,
        ) {
            let mut sizes = Sizes::new();
            (0..50).for_each(|_| seen.iter().for_each(|&one| sizes.add(one)));
            let left: Vec<f64> = seen.iter().filter(|&&one| one > packets).map(|&one| (one - packets) as f64).collect();
            prop_assume!(left.len() > 20);
            let mean = left.iter().sum::<f64>() / left.len() as f64;
            let estimate = f64::from(sizes.remaining(packets));
            // Classes are coarse.
            prop_assert!((0.5 * mean - 64.0..2.0 * mean + 64.0).contains(&estimate), "{} for {}", estimate, mean);
        }
    }

    extern crate std;
    use std::vec::Vec;
}

//! The observed sizes of connections in packets, and from them the expected rest of a connection.
//!
//! Counting only ended connections would count mostly short ones while the long ones go on. So this counts how many
//! connections reach each class of sizes, and how many of them reach the next. A connection counts as staying in its class
//! until it leaves it, so that idle endless connections delay nothing.

/// Classes: of class `k` are connections of 2^k packets or more and fewer than 2^(k+1), of the last all above.
const CLASSES: usize = 32;
/// Connections that are taken to have reached each class at the beginning, half of them the next, so that the first ones do
/// not decide everything: what has lasted is expected to last.
const PRIOR: f32 = 8.0;
/// From this class on no connection is taken to have passed.
const PRIOR_CLASSES: usize = 20;
/// When so many have reached a class, they count half: old ones less and less.
const SEEN_MOST: f32 = 16_384.0;
/// How many are added before sums are made anew.
const FRESH_MOST: u32 = 64;

/// Connections that reached a class, and those of them that reached the next or ended in this one.
#[derive(Clone, Copy, Debug, Default)]
struct Class {
    reached: f32,
    passed: f32,
    ended: f32,
    /// Packets that those that ended had in the class.
    within: f32,
}

impl Class {
    /// The part of those that reach the class that reach the next.
    fn passing(self) -> f32 {
        (self.passed / self.reached).min(1.0)
    }

    /// How far those that end in it get in it, on average.
    fn ending(self) -> f32 {
        self.within / self.ended
    }
}

/// The observed sizes.
#[derive(Clone, Debug)]
pub(super) struct ObservedSizes {
    classes: [Class; CLASSES],
    /// The expected further packets of a connection that has just reached the class.
    ahead: [f32; CLASSES + 1],
    /// The value of acting then or later, whichever is better, and only if it gets there: see [`ObservedSizes::awaited`].
    worth: [f32; CLASSES + 1],
    /// The cost of acting, in packets.
    cost: f32,
    fresh: u32,
}

impl ObservedSizes {
    pub(super) fn new() -> ObservedSizes {
        let passed = |class| if class < PRIOR_CLASSES { PRIOR / 2.0 } else { 0.0 };
        let ended = PRIOR / 2.0;
        let classes = core::array::from_fn(|class| Class {
            reached: PRIOR,
            passed: passed(class),
            ended,
            within: ended * size(class) / 2.0,
        });
        let (ahead, worth) = ([0.0; CLASSES + 1], [0.0; CLASSES + 1]);
        let mut sizes = ObservedSizes { classes, ahead, worth, cost: 0.0, fresh: 0 };
        sizes.sum();
        sizes
    }

    /// A connection that has had so many packets is watched from now on.
    pub(super) fn come(&mut self, packets: u64) {
        self.note(class(packets), |class| class.reached += 1.0);
    }

    /// It is not watched any more, and may go on or not.
    pub(super) fn leave(&mut self, packets: u64) {
        self.note(class(packets), |class| class.reached = (class.reached - 1.0).max(1.0));
    }

    /// A connection that had so many packets when it was last sampled has so many now, and goes on.
    #[inline]
    pub(super) fn grow(&mut self, before: u64, now: u64) {
        let (from, to) = (class(before), class(now));
        if from < to {
            self.pass(from, to);
        }
    }

    /// A connection of so many packets, which was watched, has ended.
    pub(super) fn end(&mut self, packets: u64) {
        let class = class(packets);
        let within = (packets as f32 - size(class)).clamp(0.0, size(class));
        self.note(class, |class| (class.ended, class.within) = (class.ended + 1.0, class.within + within));
    }

    fn pass(&mut self, from: usize, to: usize) {
        for class in from..to {
            self.note(class, |class| class.passed += 1.0);
            self.note(class + 1, |class| class.reached += 1.0);
        }
    }

    fn note(&mut self, class: usize, add: impl FnOnce(&mut Class)) {
        let Some(class) = self.classes.get_mut(class) else { return };
        add(class);
        if class.reached > SEEN_MOST {
            let Class { reached, passed, ended, within } = *class;
            *class = Class { reached: reached / 2.0, passed: passed / 2.0, ended: ended / 2.0, within: within / 2.0 };
        }
        self.fresh += 1;
        if self.fresh >= FRESH_MOST {
            self.sum();
        }
    }

    fn sum(&mut self) {
        self.fresh = 0;
        self.ahead[CLASSES] = size(CLASSES);
        for class in (0..CLASSES).rev() {
            self.ahead[class] = self.expected(class, 1.0);
        }
        self.weigh();
    }

    fn weigh(&mut self) {
        for class in (0..CLASSES).rev() {
            let later = self.classes[class].passing() * self.worth[class + 1];
            self.worth[class] = later.max(self.ahead[class] - self.cost);
        }
    }

    /// Acting on a connection costs so many packets.
    pub(super) fn set_cost(&mut self, packets: f32) {
        if (packets - self.cost).abs() > self.cost / 16.0 {
            self.cost = packets;
            self.weigh();
        }
    }

    /// The expected further packets of a connection that has this part of the class before it. Of those that end there as
    /// many are taken to be left.
    fn expected(&self, class: usize, left: f32) -> f32 {
        let (passing, mean) = (self.passing(class, left), self.classes[class].ending());
        let rest = left * size(class);
        let ending = (mean - (size(class) - rest)).max(left * mean);
        passing * (rest + self.ahead[class + 1]) + (1.0 - passing) * ending
    }

    /// The part of those with this part of the class before them that reach the next.
    fn passing(&self, class: usize, left: f32) -> f32 {
        let passing = self.classes[class].passing();
        passing / (passing + (1.0 - passing) * left)
    }

    /// How many more packets one that has had so many may be expected to have.
    pub(super) fn remaining(&self, packets: u64) -> f32 {
        let (packets, class) = (packets.max(1), class(packets));
        if class == CLASSES - 1 {
            // Larger ones are not known.
            return packets as f32;
        }
        self.expected(class, left(packets, class))
    }

    /// The value, in packets, of waiting to see whether one that has had so many gets to the next class, and of acting
    /// then or later, if no more than `most` packets count from now on. Those that end before cost nothing; of those that
    /// do not, what they have until then is lost.
    pub(super) fn awaited(&self, packets: u64, most: f32) -> f32 {
        let (packets, class) = (packets.max(1), class(packets));
        let until = size(class + 1) - packets as f32;
        self.passing(class, left(packets, class)) * self.worth[class + 1].min(most - until - self.cost)
    }
}

/// The part of its class that one with so many packets has before it.
fn left(packets: u64, class: usize) -> f32 {
    (2.0 - packets as f32 / size(class)).clamp(1e-3, 1.0)
}

/// Packets with which a class begins.
fn size(class: usize) -> f32 {
    (1u64 << class) as f32
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
        let mut sizes = ObservedSizes::new();
        for round in 0..20_000 {
            live(&mut sizes, if round % 100 == 0 { 10_000 } else { 4 });
        }
        let (young, old) = (sizes.remaining(2), sizes.remaining(20));
        assert!((80.0..140.0).contains(&young), "a hundredth of 10,000: {young}");
        assert!(old > 5_000.0, "{old}");
        (0..200_000).for_each(|_| live(&mut sizes, 4));
        assert!(sizes.remaining(2) < 10.0, "what was is forgotten: {}", sizes.remaining(2));
    }

    #[test]
    fn without_data_long_flows_are_expected_to_last() {
        let sizes = ObservedSizes::new();
        for packets in [1u64, 10, 100, 1000, 10_000] {
            let remaining = sizes.remaining(packets);
            assert!(remaining >= packets as f32 / 2.0, "{packets}: {remaining}");
        }
        assert_eq!(sizes.remaining(1 << 40), (1u64 << 40) as f32);
    }

    #[test]
    fn who_goes_on_counts_before_it_has_ended() {
        let mut sizes = ObservedSizes::new();
        for round in 0..2000 {
            if round % 10 == 0 {
                sizes.come(1);
                sizes.grow(1, 1000);
            } else {
                live(&mut sizes, 4)
            }
        }
        assert!(sizes.remaining(2) > 50.0, "a tenth has had 1000 already: {}", sizes.remaining(2));
        assert!(sizes.remaining(16) > 800.0, "flows of more than four packets: {}", sizes.remaining(16));
    }

    #[test]
    fn a_flow_that_may_end_at_once_is_waited_for() {
        let mut sizes = ObservedSizes::new();
        // Nine of ten end after one packet or two, the others have ten thousand.
        for round in 0..20_000 {
            live(&mut sizes, if round % 10 == 0 { 10_000 } else { 1 + round % 2 });
        }
        let acts =
            |sizes: &ObservedSizes, packets, cost| sizes.remaining(packets) - cost >= sizes.awaited(packets, f32::MAX);
        sizes.set_cost(20.0);
        assert!(sizes.remaining(1) > 900.0, "worth it at once, if there were no choice");
        assert!(!acts(&sizes, 1, 20.0) && !acts(&sizes, 2, 20.0));
        assert!(acts(&sizes, 4, 20.0) && acts(&sizes, 100, 20.0));
        sizes.set_cost(0.01);
        assert!(acts(&sizes, 1, 0.01), "what costs nothing is done at once");
    }

    /// A connection from its first packet to its last.
    fn live(sizes: &mut ObservedSizes, packets: u64) {
        sizes.come(1);
        sizes.grow(1, packets);
        sizes.end(packets);
    }

    proptest! {
        #[test]
        fn expected_rest_is_the_mean_of_survivors(
            seen in proptest::collection::vec(1u64..5000, 200..600), packets in 1u64..4000,
        ) {
            let mut sizes = ObservedSizes::new();
            (0..50).for_each(|_| seen.iter().for_each(|&one| live(&mut sizes, one)));
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

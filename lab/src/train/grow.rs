//! Growing a tree: CART's way (binary splits, the largest drop of Gini's impurity, if it cannot be chance), then
//! C4.5's pessimistic pruning.
//!
//! The reason why this is not one of the existing crates: packets come one after the other. A split on the fifth packet is
//! a decision to wait for it, and connections that end before it came are never judged at all: they stay in software, which
//! is right, since they are short. Such a split has three sides, the third without an error; and what a connection has left
//! depends on how long its way down took.

use super::TrainingFlow;
use anyhow::{Result, ensure};
use hairpin_core::offload::tree::{DEPTH_MAX, EXPECTED_MAX, Feature, Leaf, NODES_MAX, Node, PACKETS_MAX, Tree};

/// How far above what was seen a leaf's error rate is taken to be, in standard deviations: of a confidence of 25 %, which
/// is C4.5's.
const DEVIATIONS: f64 = 0.6925;
/// How probable it may be that the best of all splits there are to choose from is as good as it is by chance alone.
const CHANCE: f64 = 0.05;

/// The bounds of a tree.
#[derive(Clone, Debug)]
pub struct TreeBounds {
    /// How many first packets it may consider: 1 to 8.
    pub packets: u8,
    /// A long connection has so many packets after those, at least.
    pub more: u32,
    /// Splits above a leaf at most.
    pub depth: usize,
    /// Nodes at most.
    pub nodes: usize,
    /// Connections that each side of a split has at least.
    pub leaf: usize,
    /// From which share of long ones on a leaf says "long".
    pub threshold: f64,
    /// The features it may use.
    pub features: Vec<Feature>,
}

impl TreeBounds {
    fn check(&self) -> Result<()> {
        ensure!((1..=PACKETS_MAX).contains(&usize::from(self.packets)), "packets: use 1 to {PACKETS_MAX}");
        ensure!(self.more > 0, "a long connection has at least one packet more");
        ensure!((1..=DEPTH_MAX).contains(&self.depth), "depth: use 1 to {DEPTH_MAX}");
        ensure!((1..=NODES_MAX).contains(&self.nodes), "nodes: use 1 to {NODES_MAX}");
        ensure!(self.leaf > 0, "a leaf has at least one connection");
        ensure!((0.0..=1.0).contains(&self.threshold), "the threshold is a share, from 0 to 1");
        Ok(())
    }
}

/// A node that knows which connections got to it.
struct Grown {
    flows: usize,
    long: usize,
    /// Packets that they had left, together.
    left: u64,
    /// How much the split lowers the impurity, times connections.
    gain: f64,
    split: Option<Box<Split>>,
}

struct Split {
    feature: Feature,
    most: u32,
    below: Grown,
    above: Grown,
}

/// Makes a tree of these connections.
///
/// # Errors
/// There are none, or the bounds are out of range.
pub fn grow(flows: &[&TrainingFlow], bounds: &TreeBounds) -> Result<Tree> {
    bounds.check()?;
    ensure!(!flows.is_empty(), "no connections to learn from");
    let mut root = Grower { bounds }.node(flows, 1, 0);
    root.prune(bounds);
    while root.count() > bounds.nodes {
        root.drop_least();
    }
    let mut nodes = Vec::new();
    root.write(bounds, &mut nodes);
    Tree::new(nodes, bounds.more).map_err(|unsound| anyhow::anyhow!("node {}: {}", unsound.node, unsound.what))
}

struct Grower<'a> {
    bounds: &'a TreeBounds,
}

/// Gini's impurity of so many connections, times their number.
fn impurity(flows: usize, long: usize) -> f64 {
    if flows == 0 {
        return 0.0;
    }
    2.0 * long as f64 * (flows - long) as f64 / flows as f64
}

impl Grower<'_> {
    /// The tree of connections that all have had `known` packets.
    fn node(&self, flows: &[&TrainingFlow], known: u8, depth: usize) -> Grown {
        let long = flows.iter().filter(|flow| flow.is_long(self.bounds)).count();
        let left = flows.iter().map(|flow| flow.seen.saturating_sub(known.into())).sum();
        let mut grown = Grown { flows: flows.len(), long, left, gain: 0.0, split: None };
        if depth >= self.bounds.depth || long == 0 || long == flows.len() {
            return grown;
        }
        let Some((gain, feature, most)) = self.best(flows, long) else { return grown };
        let side = |is_above: bool| -> Vec<&TrainingFlow> {
            let is_there = |flow: &&&TrainingFlow| value(flow, feature).is_some_and(|value| (value > most) == is_above);
            flows.iter().filter(is_there).copied().collect()
        };
        let known = known.max(feature.packets());
        let (below, above) = (self.node(&side(false), known, depth + 1), self.node(&side(true), known, depth + 1));
        grown.gain = gain;
        grown.split = Some(Box::new(Split { feature, most, below, above }));
        grown
    }

    /// The split that lowers the impurity most, and that is no matter of chance; the first of those that do.
    fn best(&self, flows: &[&TrainingFlow], long: usize) -> Option<(f64, Feature, u32)> {
        let before = impurity(flows.len(), long);
        let mut best = None;
        let (mut most, mut tried) = (0.0, 0);
        for &feature in &self.bounds.features {
            let mut values: Vec<(u32, bool)> =
                flows.iter().filter_map(|flow| Some((value(flow, feature)?, flow.is_long(self.bounds)))).collect();
            values.sort_unstable();
            let all_long = values.iter().filter(|(_, long)| *long).count();
            let mut below_long = 0;
            for below in 1..values.len() {
                let (last, next) = (values[below - 1], values[below].0);
                below_long += usize::from(last.1);
                let above = values.len() - below;
                if last.0 == next || below < self.bounds.leaf || above < self.bounds.leaf {
                    continue;
                }
                tried += 1;
                let after = impurity(below, below_long) + impurity(above, all_long - below_long);
                if before - after > most {
                    most = before - after;
                    let told = chi_squared(impurity(values.len(), all_long), after, values.len(), all_long);
                    best = Some((told, (most, feature, last.0 + (next - last.0) / 2)));
                }
            }
        }
        // The tail of the distribution with one degree of freedom is below exp(-x / 2); Bonferroni's bound over all tried.
        let least = 2.0 * (f64::from(tried) / CHANCE).ln();
        best.filter(|(told, _)| *told >= least).map(|(_, split)| split)
    }
}

/// Pearson's statistic of a split of those that have had the packet, from the impurity before and after it. (What ended
/// before the packet makes any split look good, and says nothing of this one.)
fn chi_squared(before: f64, after: f64, flows: usize, long: usize) -> f64 {
    let share = long as f64 / flows.max(1) as f64;
    let spread = 2.0 * share * (1.0 - share);
    if spread > 0.0 { (before - after) / spread } else { 0.0 }
}

fn value(flow: &TrainingFlow, feature: Feature) -> Option<u32> {
    flow.first.value(feature, flow.protocol, flow.port)
}

impl Grown {
    fn is_long(&self, bounds: &TreeBounds) -> bool {
        self.long as f64 >= bounds.threshold * self.flows as f64 && self.long > 0
    }

    /// How many errors it may be expected to make as a leaf.
    fn errors(&self, bounds: &TreeBounds) -> f64 {
        let wrong = if self.is_long(bounds) { self.flows - self.long } else { self.long };
        let (flows, z) = (self.flows.max(1) as f64, DEVIATIONS);
        let rate = wrong as f64 / flows;
        let spread = (rate * (1.0 - rate) / flows + z * z / (4.0 * flows * flows)).sqrt();
        flows * (rate + z * z / (2.0 * flows) + z * spread) / (1.0 + z * z / flows)
    }

    /// Makes leaves of splits that may be expected to be no better; how many errors what remains may be expected to make.
    fn prune(&mut self, bounds: &TreeBounds) -> f64 {
        let own = self.errors(bounds);
        let Some(split) = &mut self.split else { return own };
        // A connection that ends before it is judged is no error.
        let theirs = split.below.prune(bounds) + split.above.prune(bounds);
        if own <= theirs + 0.1 {
            self.split = None;
            return own;
        }
        theirs
    }

    fn count(&self) -> usize {
        1 + self.split.as_ref().map_or(0, |split| split.below.count() + split.above.count())
    }

    /// The smallest gain of a split between two leaves.
    fn least(&self) -> Option<f64> {
        let split = self.split.as_ref()?;
        let below = [split.below.least(), split.above.least()].into_iter().flatten();
        Some(below.reduce(f64::min).unwrap_or(self.gain))
    }

    /// Makes a leaf of the split between two leaves that gains least.
    fn drop_least(&mut self) {
        let Some(split) = &mut self.split else { return };
        match (split.below.least(), split.above.least()) {
            (None, None) => self.split = None,
            (Some(below), Some(above)) if below <= above => split.below.drop_least(),
            (Some(_), None) => split.below.drop_least(),
            (_, Some(_)) => split.above.drop_least(),
        }
    }

    fn write(&self, bounds: &TreeBounds, nodes: &mut Vec<Node>) {
        let Some(split) = &self.split else {
            let share = |sum: f64| sum / self.flows.max(1) as f64;
            return nodes.push(Node::Leaf(Leaf {
                is_long: self.is_long(bounds),
                probability: (share(self.long as f64) * 1e3).round() as f32 / 1e3,
                expected: ((share(self.left as f64) * 10.0).round() as f32 / 10.0).min(EXPECTED_MAX),
                flows: u32::try_from(self.flows).unwrap_or(u32::MAX),
            }));
        };
        let at = nodes.len();
        nodes.push(Node::Split { feature: split.feature, most: split.most, above: 0 });
        split.below.write(bounds, nodes);
        let other = nodes.len();
        if let Some(Node::Split { above, .. }) = nodes.get_mut(at) {
            *above = u8::try_from(other).unwrap_or(u8::MAX);
        }
        split.above.write(bounds, nodes);
    }
}

//! How good a tree is on connections: as a classification, and by what the policy saves with it.

use super::{TrainingFlow, TrainingOptions};
use hairpin_core::offload::tree::{Tree, TreeStep};
use serde::Serialize;

/// Packets that make a heavy hitter, in the comparison: what `policy = "heavy-hitter"` has unless told otherwise.
const HEAVY_PACKETS: u64 = 16;

/// The share that a policy hands over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HandedShare {
    /// Packets that the engine forwards.
    pub packets: u64,
    /// Pairs of rules made for that.
    pub pairs: u64,
}

impl HandedShare {
    fn add(&mut self, packets: u64) {
        self.packets += packets;
        self.pairs += 1;
    }

    /// Packets saved, what the rules cost taken off.
    pub fn saved(&self, cost: f64) -> f64 {
        self.packets as f64 - cost * self.pairs as f64
    }

    fn plus(self, other: HandedShare) -> HandedShare {
        HandedShare { packets: self.packets + other.packets, pairs: self.pairs + other.pairs }
    }
}

/// How connections were judged, and what came of it. Room and time for rules are taken to be plenty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Score {
    /// Long ones, taken for long.
    pub long_long: u64,
    /// Short ones, taken for long.
    pub short_long: u64,
    /// Long ones, taken for short.
    pub long_short: u64,
    /// Short ones, taken for short, or over before they were judged.
    pub short_short: u64,
    /// Of the latter: connections that ended before they were judged.
    pub unjudged: u64,
    /// Taken for what they are if all that have the first packets are taken for long.
    pub waited: u64,
    /// Packets of them all.
    pub packets: u64,
    /// The policy with this tree: what it takes for short and goes on is handed over later.
    pub tree: HandedShare,
    /// `always`.
    pub always: HandedShare,
    /// `heavy-hitter`, of 16 packets.
    pub heavy_hitter: HandedShare,
    /// An oracle that knows how many packets a connection will have.
    pub oracle: HandedShare,
}

impl std::ops::Add for Score {
    type Output = Score;
    fn add(self, other: Score) -> Score {
        Score {
            long_long: self.long_long + other.long_long,
            short_long: self.short_long + other.short_long,
            long_short: self.long_short + other.long_short,
            short_short: self.short_short + other.short_short,
            unjudged: self.unjudged + other.unjudged,
            waited: self.waited + other.waited,
            packets: self.packets + other.packets,
            tree: self.tree.plus(other.tree),
            always: self.always.plus(other.always),
            heavy_hitter: self.heavy_hitter.plus(other.heavy_hitter),
            oracle: self.oracle.plus(other.oracle),
        }
    }
}

/// A score in the report; shares from 0 to 1, 0 where there is nothing to share.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Figures {
    /// Connections.
    pub flows: u64,
    /// Long ones among them.
    pub long: u64,
    /// Over before they were judged.
    pub unjudged: u64,
    /// Precision: the share of connections predicted long that were.
    pub precision: f64,
    /// Recall: the share of long connections that were predicted long.
    pub recall: f64,
    /// The share that was taken for what it was.
    pub accuracy: f64,
    /// The accuracy if all are taken for what most of them are.
    pub majority: f64,
    /// The accuracy without features: all that have as many packets as the tree may consider are taken for long.
    pub waiting: f64,
    /// Packets of them all.
    pub packets: u64,
    /// The share that the policy hands over.
    pub tree: HandedShare,
    /// The share with `always`.
    pub always: HandedShare,
    /// The share with `heavy-hitter`.
    pub heavy_hitter: HandedShare,
    /// The share with an oracle.
    pub oracle: HandedShare,
    /// Saved packets, rules' cost taken off, as a share of what the oracle saves: the policy, `always`, `heavy-hitter`.
    pub of_oracle: [f64; 3],
}

impl Score {
    /// The figures of this score; a pair of rules costs as much as `cost` packets.
    pub fn figures(&self, cost: f64) -> Figures {
        let flows = self.long_long + self.short_long + self.long_short + self.short_short;
        let long = self.long_long + self.long_short;
        let share = |part: u64, of: u64| if of == 0 { 0.0 } else { part as f64 / of as f64 };
        let best = self.oracle.saved(cost);
        let of_oracle = |handed: HandedShare| if best > 0.0 { handed.saved(cost) / best } else { 0.0 };
        Figures {
            flows,
            long,
            unjudged: self.unjudged,
            precision: share(self.long_long, self.long_long + self.short_long),
            recall: share(self.long_long, long),
            accuracy: share(self.long_long + self.short_short, flows),
            majority: share(long.max(flows - long), flows),
            waiting: share(self.waited, flows),
            packets: self.packets,
            tree: self.tree,
            always: self.always,
            heavy_hitter: self.heavy_hitter,
            oracle: self.oracle,
            of_oracle: [self.tree, self.always, self.heavy_hitter].map(of_oracle),
        }
    }
}

/// When a tree judges a connection, and how: after how many packets, and whether it is long.
pub fn judge(tree: &Tree, flow: &TrainingFlow) -> Option<(u8, bool)> {
    (1..=flow.first.seen()).find_map(|count| {
        let step = tree.walk(flow.protocol, flow.port, &flow.first.first(count));
        match step {
            TreeStep::Leaf(leaf) => Some((count, tree.leaf(leaf)?.is_long)),
            TreeStep::Wait => None,
        }
    })
}

/// The score of a tree on these connections.
pub fn score(tree: &Tree, flows: &[&TrainingFlow], options: &TrainingOptions) -> Score {
    let mut score = Score::default();
    for flow in flows {
        score.packets += flow.seen;
        let judged = judge(tree, flow);
        score.unjudged += u64::from(judged.is_none());
        let has_them = flow.seen >= u64::from(options.bounds.packets);
        score.waited += u64::from(has_them == flow.is_long(&options.bounds));
        let place = match (flow.is_long(&options.bounds), judged.is_some_and(|(_, long)| long)) {
            (true, true) => &mut score.long_long,
            (false, true) => &mut score.short_long,
            (true, false) => &mut score.long_short,
            (false, false) => &mut score.short_short,
        };
        *place += 1;
        // After how many of the packets it is shown each policy hands it over.
        let refuted = u64::from(tree.more());
        let at = judged.map(|(count, long)| u64::from(count) + if long { 0 } else { refuted });
        if let Some(at) = at.filter(|at| *at <= flow.seen) {
            score.tree.add(flow.seen - at);
        }
        score.always.add(flow.seen - 1);
        let heavy = HEAVY_PACKETS.saturating_sub(flow.before).max(1);
        if heavy <= flow.seen {
            score.heavy_hitter.add(flow.seen - heavy);
        }
        if (flow.seen - 1) as f64 > options.cost {
            score.oracle.add(flow.seen - 1);
        }
    }
    score
}

//! `decision-tree`: what a connection's first packets look like says whether it is going to be long (KTH 2022, section
//! 2.3, of Durner and Kellerer's J48).
//!
//! The tree ([`Tree`]) is a text that `hairpin-lab train` writes. A connection is judged once, as soon as those of
//! its first packets have come that its way down the tree takes: it is long, and goes to the engine, or short, and stays.
//! A short one that has had, since then, as many packets as make a long one has refuted that, and goes as well; so does,
//! after as many, one whose first packets were not seen (they came to another process, or on another worker).
//!
//! While room in the engine is short, a price in packets rises, and only what is expected to have more goes.

mod model;
mod packets;
mod text;

#[cfg(test)]
mod tests;

pub use model::{DEPTH_MAX, EXPECTED_MAX, Feature, Leaf, NODES_MAX, Node, Tree, TreeFeature, TreeStep, Unsound};
pub use packets::{FirstPackets, PACKETS_MAX};
pub use text::{TEXT_MAX, TreeTextError};

use super::fastest_flow::{is_plenty, is_short};
use super::price::Price;
use super::{EngineRoom, FlowStats, OffloadPolicy, Reason, Verdict};
use crate::time::Time;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec;

/// The text of the built-in model, with what is known of how good it is.
pub const BUILT_IN: &str = include_str!("default.tree");
/// A connection that has had more packets than this when it is first seen was not seen from its beginning. (Some come
/// before it is established, eight datagrams at most; a super-packet counts as what it is made of.)
const FIRST_AT_MOST: u64 = 64;
/// A leaf that is none: nothing is known of the first packets.
const UNKNOWN: u8 = u8::MAX;
const _: () = assert!(NODES_MAX <= UNKNOWN as usize);

/// The state of one connection: a cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct TreeRow {
    /// When it began, to tell it from one that had its position before.
    created: Time,
    state: TreeState,
}

#[derive(Clone, Copy, Debug)]
enum TreeState {
    /// Its first packets, so far.
    Watched(FirstPackets),
    /// It got to this leaf, or to none, when it had had so many packets.
    Judged { leaf: u8, at: u64 },
}

const _: () = assert!(size_of::<TreeRow>() == 64);

impl TreeRow {
    const NONE: TreeRow = TreeRow { created: Time::ZERO, state: TreeState::Watched(FirstPackets::NONE) };
}

/// The policy.
pub struct DecisionTree {
    tree: Arc<Tree>,
    rows: Box<[TreeRow]>,
    /// In packets.
    room: Price,
}

impl DecisionTree {
    /// For so many connections of the worker: 64 bytes each.
    pub fn new(tree: Arc<Tree>, capacity: usize) -> DecisionTree {
        DecisionTree { tree, rows: vec![TreeRow::NONE; capacity].into_boxed_slice(), room: Price::new(1.0) }
    }

    /// How many packets more the connection is expected to have, if it is taken for a long one; else why it stays.
    fn expected(&mut self, now: Time, flow: &FlowStats) -> Result<f32, Reason> {
        let row = self.rows.get_mut(flow.position as usize).ok_or(Reason::Small)?;
        if row.created != flow.created {
            let state = match flow.packets {
                0..=FIRST_AT_MOST => TreeState::Watched(FirstPackets::NONE),
                at => TreeState::Judged { leaf: UNKNOWN, at },
            };
            *row = TreeRow { created: flow.created, state };
        }
        if let TreeState::Watched(packets) = &mut row.state {
            if flow.length > 0 {
                packets.add(flow.length, flow.direction, now.since(flow.created));
            }
            match self.tree.walk(flow.protocol, flow.service.port, packets) {
                TreeStep::Wait => return Err(Reason::Small),
                TreeStep::Leaf(leaf) => row.state = TreeState::Judged { leaf, at: flow.packets },
            }
        }
        let TreeState::Judged { leaf, at } = row.state else { return Err(Reason::Small) };
        let since = flow.packets.saturating_sub(at);
        match self.tree.leaf(leaf) {
            Some(leaf) if leaf.is_long => Ok(leaf.expected),
            // A connection that has lasted is expected to last.
            _ if since >= u64::from(self.tree.more()) => Ok(since as f32),
            Some(_) => Err(Reason::Short),
            None => Err(Reason::Small),
        }
    }
}

impl OffloadPolicy for DecisionTree {
    fn name(&self) -> &'static str {
        "decision-tree"
    }
    fn on_packet(&mut self, now: Time, flow: &FlowStats, room: EngineRoom) -> Verdict {
        let expected = self.expected(now, flow);
        // At no price at all everything long is wanted, however little it is expected to have.
        let wanted = matches!(expected, Ok(packets) if packets >= self.room.asked());
        self.room.follow(now, wanted && is_short(room), is_plenty(room));
        match (expected, room.has_room()) {
            (Err(reason), _) => Verdict::Keep(reason),
            (Ok(_), _) if !wanted => Verdict::Keep(Reason::Unprofitable),
            (Ok(_), false) => Verdict::Keep(Reason::Room),
            (Ok(_), true) => Verdict::Offload,
        }
    }
    fn on_end(&mut self, _: Time, flow: &FlowStats) {
        // One that begins in the same nanosecond, in its place, is another.
        if let Some(row) = self.rows.get_mut(flow.position as usize) {
            *row = TreeRow::NONE;
        }
    }
    fn on_refused(&mut self, now: Time) {
        self.room.follow(now, true, false);
    }
}

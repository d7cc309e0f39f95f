//! The model: a binary tree whose inner nodes compare a number of a connection's first packets with a limit, and whose
//! leaves say how connections that get there have gone on.
//!
//! Nodes lie in preorder: what is not above the limit is right behind its split, so that every way down is one of rising
//! indexes and ends. [`Tree::new`] lets nothing else through, so walking one neither fails nor allocates.

use super::packets::{FirstPackets, PACKETS_MAX};
use crate::flow::Protocol;
use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

/// Nodes of a tree at most.
pub const NODES_MAX: usize = 255;
/// Splits above a leaf at most.
pub const DEPTH_MAX: usize = 16;
/// Packets a leaf may expect at most.
pub const EXPECTED_MAX: f32 = 1e9;

/// Features of a packet, or of the first packets together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TreeFeature {
    /// Bytes of the packet, from the IP header on.
    Length,
    /// Microseconds since the packet before it; none of the first.
    Gap,
    /// 1 if it comes from the backend, else 0.
    Backend,
    /// Bytes of all up to it.
    Bytes,
    /// How many up to it came from the backend.
    BackendPackets,
    /// Bytes of those.
    BackendBytes,
    /// Microseconds from the connection's beginning to it.
    Elapsed,
}

impl TreeFeature {
    /// All of them.
    pub const ALL: [TreeFeature; 7] = [
        TreeFeature::Length,
        TreeFeature::Gap,
        TreeFeature::Backend,
        TreeFeature::Bytes,
        TreeFeature::BackendPackets,
        TreeFeature::BackendBytes,
        TreeFeature::Elapsed,
    ];

    /// Its name in a model; the packet's number follows.
    pub fn name(self) -> &'static str {
        match self {
            TreeFeature::Length => "length",
            TreeFeature::Gap => "gap",
            TreeFeature::Backend => "backend",
            TreeFeature::Bytes => "bytes",
            TreeFeature::BackendPackets => "backend-packets",
            TreeFeature::BackendBytes => "backend-bytes",
            TreeFeature::Elapsed => "elapsed",
        }
    }
}

/// A feature of a connection that a split compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Feature {
    /// 1 for UDP, 0 for TCP.
    Udp,
    /// The service's port.
    Port,
    /// A feature of one of its first packets, from 1 to [`PACKETS_MAX`].
    Of(TreeFeature, u8),
}

impl Feature {
    /// All of them that a connection's first `packets` packets have.
    pub fn all(packets: u8) -> impl Iterator<Item = Feature> {
        let of = (1..=packets.min(PACKETS_MAX as u8))
            .flat_map(|packet| TreeFeature::ALL.map(|told| Feature::Of(told, packet)));
        [Feature::Udp, Feature::Port].into_iter().chain(of).filter(|feature| feature.is_any())
    }

    /// The feature of that name.
    pub fn from_name(name: &str) -> Option<Feature> {
        match name {
            "udp" => return Some(Feature::Udp),
            "port" => return Some(Feature::Port),
            _ => {}
        }
        let (told, packet) = name.rsplit_once('-')?;
        let told = *TreeFeature::ALL.iter().find(|known| known.name() == told)?;
        // One digit, so that no two texts mean the same.
        let packet = packet.parse().ok().filter(|_| packet.len() == 1)?;
        Some(Feature::Of(told, packet)).filter(|feature| feature.is_any())
    }

    /// How many packets it takes to know it.
    pub fn packets(self) -> u8 {
        match self {
            Feature::Udp | Feature::Port => 0,
            Feature::Of(_, packet) => packet,
        }
    }

    /// The largest value it can have.
    pub fn largest(self) -> u32 {
        match self {
            Feature::Udp | Feature::Of(TreeFeature::Backend, _) => 1,
            Feature::Port | Feature::Of(TreeFeature::Length, _) => u32::from(u16::MAX),
            Feature::Of(TreeFeature::BackendPackets, packet) => u32::from(packet),
            Feature::Of(TreeFeature::Bytes | TreeFeature::BackendBytes, packet) => {
                u32::from(packet) * u32::from(u16::MAX)
            }
            Feature::Of(TreeFeature::Gap | TreeFeature::Elapsed, _) => u32::MAX,
        }
    }

    fn is_any(self) -> bool {
        match self {
            Feature::Udp | Feature::Port => true,
            Feature::Of(told, packet) => {
                // Of one packet alone, sums are the packet's own.
                let is_sum = matches!(
                    told,
                    TreeFeature::Gap | TreeFeature::Bytes | TreeFeature::BackendPackets | TreeFeature::BackendBytes
                );
                (1 + u8::from(is_sum)..=PACKETS_MAX as u8).contains(&packet)
            }
        }
    }
}

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Feature::Udp => f.write_str("udp"),
            Feature::Port => f.write_str("port"),
            Feature::Of(told, packet) => write!(f, "{}-{packet}", told.name()),
        }
    }
}

/// How connections that got to a leaf have gone on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Leaf {
    /// Such connections go to the engine.
    pub is_long: bool,
    /// The share of them that were long, 0 to 1.
    pub probability: f32,
    /// Packets they had left on average, 0 to [`EXPECTED_MAX`].
    pub expected: f32,
    /// How many of them there were in training.
    pub flows: u32,
}

/// A node of a tree.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Node {
    /// A value of at most `most` continues at the next node, a larger one at the node of that index.
    Split {
        /// The compared feature.
        feature: Feature,
        /// With what.
        most: u32,
        /// The node to go to if it is more.
        above: u8,
    },
    /// An end.
    Leaf(Leaf),
}

/// The result of a way down a tree.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TreeStep {
    /// It depends on a packet that has not come yet.
    Wait,
    /// The leaf of this index.
    Leaf(u8),
}

/// The defect of a model, and the node that has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsound {
    /// Index of the node.
    pub node: usize,
    /// The defect.
    pub what: String,
}

/// A sound tree.
#[derive(Clone, Debug, PartialEq)]
pub struct Tree {
    nodes: Box<[Node]>,
    more: u32,
}

impl Tree {
    /// A tree of these nodes, in preorder. `more`: how many packets after its prediction a connection must have had to be
    /// a long one.
    ///
    /// # Errors
    /// It is not one tree in preorder, is too large or too deep, has a split that separates nothing, or a number out of
    /// range.
    pub fn new(nodes: Vec<Node>, more: u32) -> Result<Tree, Unsound> {
        let unsound = |node, what| Err(Unsound { node, what });
        if nodes.len() > NODES_MAX {
            return unsound(NODES_MAX, format!("more than {NODES_MAX} nodes"));
        }
        if more == 0 {
            return unsound(0, String::from("a long connection has at least one packet more"));
        }
        let end = Walk { nodes: &nodes, limits: Vec::new() }.check(0)?;
        if end != nodes.len() {
            return unsound(end, String::from("the tree is complete before this"));
        }
        Ok(Tree { nodes: nodes.into_boxed_slice(), more })
    }

    /// Its nodes, in preorder.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// How many packets more a long connection has at least.
    pub fn more(&self) -> u32 {
        self.more
    }

    /// Packets it considers at most.
    pub fn packets(&self) -> u8 {
        let packets = self.nodes.iter().map(|node| match node {
            Node::Split { feature, .. } => feature.packets(),
            Node::Leaf(_) => 0,
        });
        packets.max().unwrap_or(0)
    }

    /// The leaf of a connection with these first packets.
    pub fn walk(&self, protocol: Protocol, port: u16, packets: &FirstPackets) -> TreeStep {
        let mut at = 0;
        // Indexes rise, so that there are no more rounds than nodes.
        while let Some(Node::Split { feature, most, above }) = self.nodes.get(at) {
            match packets.value(*feature, protocol, port) {
                None => return TreeStep::Wait,
                Some(value) if value <= *most => at += 1,
                Some(_) => at = usize::from(*above),
            }
        }
        TreeStep::Leaf(at as u8)
    }

    /// The leaf of that index.
    pub fn leaf(&self, index: u8) -> Option<&Leaf> {
        match self.nodes.get(usize::from(index)) {
            Some(Node::Leaf(leaf)) => Some(leaf),
            _ => None,
        }
    }
}

/// Looks at a tree's nodes one after the other.
struct Walk<'a> {
    nodes: &'a [Node],
    /// Splits above the node: feature, and the smallest and largest value that gets here.
    limits: Vec<(Feature, u32, u32)>,
}

impl Walk<'_> {
    /// Checks the tree that begins at a node; the index behind it.
    fn check(&mut self, at: usize) -> Result<usize, Unsound> {
        let unsound = |what| Err(Unsound { node: at, what });
        let (feature, most, above) = match self.nodes.get(at) {
            None => return unsound(String::from("the tree ends before it is complete")),
            Some(Node::Leaf(leaf)) => return leaf.check().map_or(Ok(at + 1), unsound),
            Some(Node::Split { feature, most, above }) => (*feature, *most, usize::from(*above)),
        };
        if !feature.is_any() {
            return unsound(format!("there is no feature {feature}"));
        }
        if self.limits.len() >= DEPTH_MAX {
            return unsound(format!("more than {DEPTH_MAX} splits deep"));
        }
        let earlier = self.limits.iter().rev().find(|(known, _, _)| *known == feature);
        let (least, largest) = earlier.map_or((0, feature.largest()), |&(_, least, largest)| (least, largest));
        if most < least || most >= largest {
            let what = format!("`{feature} <= {most}` separates nothing: {feature} is from {least} to {largest} here");
            return unsound(what);
        }
        self.limits.push((feature, least, most));
        let middle = self.check(at + 1)?;
        if above != middle {
            return unsound(format!("its other side is node {above}, not {middle}"));
        }
        self.limits.pop();
        self.limits.push((feature, most + 1, largest));
        let end = self.check(middle)?;
        self.limits.pop();
        Ok(end)
    }
}

impl Leaf {
    /// Its defect.
    fn check(&self) -> Option<String> {
        if !(0.0..=1.0).contains(&self.probability) {
            return Some(format!("a probability of {}: use 0 to 1", self.probability));
        }
        if !(0.0..=EXPECTED_MAX).contains(&self.expected) {
            return Some(format!("{} expected packets: use 0 to {EXPECTED_MAX}", self.expected));
        }
        None
    }
}

//! Training of the policy `decision-tree`: from connections that were recorded or made up to a model, and how good it is on
//! connections it was not made from.
//!
//! A connection is seen as the policy is shown it ([`trace`]): TCP from the end of its handshake to its first FIN, UDP from
//! when the client has answered the backend. It is a *long* one if it has at least `more` packets after the first `packets`
//! of those. [`grow`] makes the tree; [`score`] judges it, always on what was held out: a fifth of all connections at a
//! time, and whole sources at a time - the stricter way, since what comes from one source is alike.
//!
//! Everything is a function of the files, the options and the seed.

pub mod grow;
pub mod mix;
pub mod score;
pub mod text;
pub mod trace;

#[cfg(test)]
mod tests;

use crate::traffic::sizes::FlowSizes;
use anyhow::{Result, ensure};
use fastrand::Rng;
use grow::TreeBounds;
use hairpin_core::flow::Protocol;
use hairpin_core::offload::tree::{Feature, FirstPackets, Tree};
use score::Score;
use std::collections::BTreeMap;
use std::path::Path;

/// Parts that all connections are dealt into; each is held out once.
pub const FOLDS: usize = 5;
/// Sources at most.
pub const SOURCES_MAX: usize = 256;

/// A connection as training sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TrainingFlow {
    /// TCP or UDP.
    pub protocol: Protocol,
    /// The service's port.
    pub port: u16,
    /// The first packets the policy is shown.
    pub first: FirstPackets,
    /// Packets before those.
    pub before: u64,
    /// All packets the policy is shown if the connection stays in software: what an engine can forward.
    pub seen: u64,
}

impl TrainingFlow {
    /// One that has not had a packet.
    pub fn new(protocol: Protocol, port: u16) -> TrainingFlow {
        TrainingFlow { protocol, port, first: FirstPackets::NONE, before: 0, seen: 0 }
    }

    /// Whether it is a long one.
    pub fn is_long(&self, bounds: &TreeBounds) -> bool {
        self.seen >= u64::from(bounds.packets) + u64::from(bounds.more)
    }
}

/// Connections of one origin.
#[derive(Clone, Debug)]
pub struct Origin {
    /// Its name: the file's.
    pub name: String,
    /// Those that the policy is shown something of.
    pub flows: Vec<TrainingFlow>,
    /// Connections that it is shown nothing of, and packets of none, by reason.
    pub left_out: BTreeMap<&'static str, u64>,
}

impl Origin {
    /// The connections of a capture file.
    ///
    /// # Errors
    /// It cannot be read, or is none.
    pub fn trace(path: &Path) -> Result<Origin> {
        let (flows, left_out) = trace::read(path)?;
        Ok(Origin { name: name_of(path), flows, left_out })
    }

    /// So many made-up connections of sizes drawn from a file; of the two that share a seed, each has its own.
    ///
    /// # Errors
    /// The file cannot be read, or is no distribution.
    pub fn mix(path: &Path, flows: u32, seed: u64) -> Result<Origin> {
        let sizes = FlowSizes::read(path)?;
        let name = name_of(path);
        let own = name.bytes().fold(seed, |seed, byte| seed.wrapping_mul(0x100_0000_01b3) ^ u64::from(byte));
        let mut random = Rng::with_seed(own);
        let flows = (0..flows).map(|_| mix::connection(sizes.draw(&mut random), &mut random)).collect();
        Ok(Origin { name, flows, left_out: BTreeMap::new() })
    }
}

fn name_of(path: &Path) -> String {
    path.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned())
}

/// A tree's limits, and the criterion of its training.
#[derive(Clone, Debug)]
pub struct TrainingOptions {
    /// The bounds of a tree.
    pub bounds: TreeBounds,
    /// The cost of a pair of rules, in packets in software.
    pub cost: f64,
    /// The seed by which connections are dealt.
    pub seed: u64,
}

/// How good trees of these bounds are on one part, made from all others.
#[derive(Clone, Debug)]
pub struct HeldOut {
    /// Which part.
    pub name: String,
    /// On it.
    pub score: Score,
}

/// A model and how good it is.
#[derive(Clone, Debug)]
pub struct Trained {
    /// The model, made from everything.
    pub tree: Tree,
    /// A fifth of the connections held out at a time: all five together.
    pub by_flows: Score,
    /// Each origin held out.
    pub by_origin: Vec<HeldOut>,
    /// All of those together; none if there is one origin only.
    pub by_origins: Option<Score>,
}

/// Makes a model of all connections, and judges models made in the same way of parts of them on the rest.
///
/// # Errors
/// There is not enough to learn from, or the options contradict each other.
pub fn train(origins: &[Origin], options: &TrainingOptions) -> Result<Trained> {
    let bounds = &options.bounds;
    ensure!(!origins.is_empty(), "nothing to learn from: name capture files or files of flow sizes");
    ensure!(origins.len() <= SOURCES_MAX, "{} files: {SOURCES_MAX} at most", origins.len());
    let all: Vec<&TrainingFlow> = origins.iter().flat_map(|origin| &origin.flows).collect();
    let long = all.iter().filter(|flow| flow.is_long(bounds)).count();
    ensure!(all.len() >= 2 * FOLDS, "{} connections: at least {} are needed", all.len(), 2 * FOLDS);
    ensure!(
        long > 0 && long < all.len(),
        "{long} of {} connections have {} packets more: there is nothing to tell apart; choose another number",
        all.len(),
        bounds.more
    );
    let tree = grow::grow(&all, bounds)?;
    let by_flows = by_flows(&all, options)?;
    let by_origin = by_origin(origins, options)?;
    let together = || by_origin.iter().fold(Score::default(), |sum, part| sum + part.score);
    let by_origins = (by_origin.len() > 1).then(together);
    Ok(Trained { tree, by_flows, by_origin, by_origins })
}

fn by_flows(all: &[&TrainingFlow], options: &TrainingOptions) -> Result<Score> {
    let mut folds: Vec<usize> = (0..all.len()).map(|number| number % FOLDS).collect();
    Rng::with_seed(options.seed).shuffle(&mut folds);
    let mut sum = Score::default();
    for fold in 0..FOLDS {
        let part = |held: bool| -> Vec<&TrainingFlow> {
            all.iter().zip(&folds).filter(|(_, of)| (**of == fold) == held).map(|(flow, _)| *flow).collect()
        };
        let tree = grow::grow(&part(false), &options.bounds)?;
        sum = sum + score::score(&tree, &part(true), options);
    }
    Ok(sum)
}

fn by_origin(origins: &[Origin], options: &TrainingOptions) -> Result<Vec<HeldOut>> {
    if origins.len() < 2 {
        return Ok(Vec::new());
    }
    let held_out = |held: usize| {
        let others = origins.iter().enumerate().filter(|(number, _)| *number != held);
        let others: Vec<&TrainingFlow> = others.flat_map(|(_, origin)| &origin.flows).collect();
        let own: Vec<&TrainingFlow> = origins[held].flows.iter().collect();
        let tree = grow::grow(&others, &options.bounds)?;
        Ok(HeldOut { name: origins[held].name.clone(), score: score::score(&tree, &own, options) })
    };
    (0..origins.len()).map(held_out).collect()
}

/// Features that a tree may use: all of its first packets but those named, each by its whole name or by the part before
/// the packet's number.
///
/// # Errors
/// There is no feature of a name.
pub fn features(packets: u8, without: &[String]) -> Result<Vec<Feature>> {
    let names = |feature: &Feature, name: &str| {
        let whole = feature.to_string();
        let kind = whole.rsplit_once('-').map_or(whole.as_str(), |(kind, _)| kind);
        whole == name || matches!(feature, Feature::Of(..)) && kind == name
    };
    for name in without {
        let known = Feature::all(u8::MAX).any(|feature| names(&feature, name));
        ensure!(
            known,
            "there is no feature \"{name}\" to leave out; there are udp, port, length, gap, backend, bytes, \
                 backend-packets, backend-bytes and elapsed, all but the first two also with a packet, such as gap-3"
        );
    }
    let features = Feature::all(packets).filter(|feature| !without.iter().any(|name| names(feature, name)));
    let features: Vec<Feature> = features.collect();
    ensure!(!features.is_empty(), "no feature is left to look at");
    Ok(features)
}

//! The seam to a flow engine: whatever takes (match, rewrite, fate) rules and then turns packets round by itself.

use crate::flow::FlowKey;
use crate::rewrite::Rewrite;
use crate::time::Time;
use arrayvec::ArrayVec;

/// Names a rule from its installation until its removal is confirmed; reused only after that (invariant 2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleId(pub u64);

/// What happens to a packet that matches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fate {
    /// Rewrite and forward.
    #[default]
    Forward,
    /// Not ours after all: leave it to the kernel, untouched.
    Pass,
}

/// The packets of a TCP flow for which a rule's deltas hold; all others go to software, whatever they are: a head sent
/// again, the next response's head, an acknowledgement of bytes that Hairpin has put in (design section 4).
///
/// A packet is within if its acknowledgement number is, and either all its payload is, or it has none and its sequence
/// number is at most one below the range and at most at its end (a bare acknowledgement, a keep-alive). All of a
/// super-packet's payload counts. Numbers are those of the packet as it arrives and wrap; lengths are below 2^31.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Guard {
    /// The first sequence number of the range.
    pub sequence: u32,
    /// Bytes of the range; 0: no payload at all.
    pub sequence_length: u32,
    /// The lowest acknowledgement number.
    pub acknowledgement: u32,
    /// How far above that an acknowledgement number may be.
    pub acknowledgement_length: u32,
}

/// Match + rewrite + fate for one flow. SYN, FIN and RST never match a rule: they go to software.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rule {
    /// Its name.
    pub id: RuleId,
    /// What it matches.
    pub key: FlowKey,
    /// What it changes.
    pub rewrite: Rewrite,
    /// TCP: for which packets it holds; `None`: for all.
    pub guard: Option<Guard>,
    /// What then happens.
    pub fate: Fate,
    /// Which slot of the engine's totals its packets are added to (a backend's number times two, plus direction).
    pub total: u32,
}

/// A request to an engine.
#[derive(Clone, Copy, Debug)]
pub enum RuleOp {
    /// Add the rule; one that already matches the same key is replaced.
    Install(Rule),
    /// Take the rule away and report its last counters.
    Remove {
        /// Its name.
        id: RuleId,
        /// What it matches.
        key: FlowKey,
    },
}

/// What an engine can do.
#[derive(Clone, Copy, Debug)]
pub struct EngineCaps {
    /// Rules it holds at most.
    pub rules_max: u32,
    /// Requests under way at most.
    pub ops_in_flight_max: u32,
    /// Whether it can add to sequence and acknowledgement numbers.
    pub rewrites_sequence: bool,
    /// Whether it translates SACK blocks.
    pub rewrites_sack: bool,
    /// Whether it can shift windows.
    pub rewrites_window: bool,
    /// Whether it checks guards. One that does not gets no rule with numbers while a packet outside could come.
    pub checks_guards: bool,
    /// Whether it counts packets and bytes and knows when a rule was last hit.
    pub counts: bool,
}

/// What a rule has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets (segments of a super-packet counted one by one).
    pub packets: u64,
    /// Bytes of IP packets, headers of each segment included.
    pub bytes: u64,
    /// When it was last hit; `None` if never.
    pub last_seen: Option<Time>,
}

/// Why an engine refused a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No room left.
    Full,
    /// The engine cannot do what the rule asks.
    Unsupported,
    /// The engine failed; it may work later.
    Failed,
}

/// An engine's answer.
#[derive(Clone, Copy, Debug)]
pub enum Completion {
    /// The rule is in force.
    Installed(RuleId),
    /// The rule was not installed.
    Rejected(RuleId, Refusal),
    /// The rule is gone; these are its last counters (`None` if it was not there).
    Removed(RuleId, Option<Counters>),
}

/// Answers taken from an engine at a time at most.
pub const COMPLETIONS_MAX: usize = 512;
/// A burst of answers.
pub type Completions = ArrayVec<Completion, COMPLETIONS_MAX>;
/// Counters of the rules asked for, in the same order; `None` for a rule the engine does not hold.
pub type Samples = ArrayVec<Option<Counters>, COMPLETIONS_MAX>;

/// A flow engine. Asynchronous by nature: completions come late, reordered, or as refusals. A worker never waits.
pub trait FlowEngine {
    /// What it can do.
    fn caps(&self) -> EngineCaps;
    /// Queues a request; given back when the queue is full.
    fn submit(&mut self, now: Time, op: RuleOp) -> Result<(), RuleOp>;
    /// Hands queued requests to the engine.
    fn flush(&mut self, now: Time);
    /// Takes the answers that are there.
    fn poll(&mut self, now: Time, out: &mut Completions);
    /// Reads counters of up to [`COMPLETIONS_MAX`] rules; they may be a little stale.
    fn sample(&mut self, rules: &[(RuleId, FlowKey)], out: &mut Samples);
}

//! The interface to a flow engine: a device or kernel program that takes (match, rewrite, fate) rules and forwards matching
//! packets by itself.

mod set_up;

pub use set_up::{
    Begun, NotSetUp, Report, SET_UP_SERVICES_MAX, ScheduleKind, SetUp, SetsUp, TURNS_MAX, set_up_services,
};

use crate::flow::{FlowKey, Protocol};
use crate::rewrite::Rewrite;
use crate::time::Time;
use crate::wire::bytes::{array_at, u32_at};
use crate::wire::{Transport, tcp};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use arrayvec::ArrayVec;

/// Names a rule from its installation until its removal is confirmed; reused only after that (invariant 2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleId(pub u64);

/// The fate of a packet that matches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fate {
    /// Rewrite and forward.
    #[default]
    Forward,
    /// Lower the hops and change nothing else, and send it to the neighbour that has the rewrite's new destination.
    Direct,
    /// Not ours after all: leave it to the kernel, untouched.
    Pass,
}

/// The packets of a TCP flow for which a rule's deltas hold; all others go to software, whatever they are: a head sent
/// again, the next response's head, an acknowledgement of bytes that Hairpin has put in.
///
/// A packet is within if its acknowledgement number is, and either all its payload is, or it has none and its sequence
/// number is at most one below the range and at most at its end (a bare acknowledgement, a keep-alive). All of a
/// super-packet's payload counts. Numbers are those of the packet as it arrives and wrap; lengths are below 2^31.
///
/// A packet without ACK acknowledges nothing and is outside (RFC 9293, 3.10.7.4: it would be dropped). So is one with a
/// SACK block that reaches out of the acknowledgement range, since one delta translates all of a packet's edges: a block
/// above it reports bytes that follow a later edit (the client lacks the end of one response and has the next one's
/// head), a duplicate's block below it (RFC 2883) bytes before an earlier one. Everything else in a packet within is of
/// one offload range.
///
/// [`Guard::admits`] and [`Guard::admits_options`] are the definition; `crates/linux/bpf/rewrite.h` does the same.
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

impl Guard {
    /// Whether a packet with ACK and these numbers, and `payload` bytes after its headers, is within.
    #[inline]
    pub fn admits(&self, sequence: u32, payload: u32, acknowledgement: u32) -> bool {
        let start = sequence.wrapping_sub(self.sequence);
        let sequence_within = match payload {
            // One below the range is 0 here.
            0 => start.wrapping_add(1) <= self.sequence_length.saturating_add(1),
            _ => start <= self.sequence_length && payload <= self.sequence_length - start,
        };
        sequence_within && self.acknowledges_within(acknowledgement)
    }

    /// Whether every edge of every SACK block in `options`, a TCP header's bytes from the 20th on, is within.
    pub fn admits_options(&self, options: &[u8]) -> bool {
        tcp::sack_edges(options).all(|edge| u32_at(options, edge).is_some_and(|edge| self.acknowledges_within(edge)))
    }

    /// Both of it for the TCP packet [`parse`](crate::wire::parse) found `at` in `frame`; `false` for any other.
    pub fn admits_packet(&self, frame: &[u8], at: &Transport) -> bool {
        let Some(header) = array_at::<{ tcp::HEADER }>(frame, at.l4) else { return false };
        let Some(options) = frame.get(at.l4 + tcp::HEADER..at.payload) else { return false };
        let number = |offset| u32_at(&header, offset).unwrap_or_default();
        at.key.protocol == Protocol::Tcp
            && header[tcp::FLAGS] & tcp::ACK != 0
            && self.admits(
                number(tcp::SEQUENCE),
                at.end.saturating_sub(at.payload) as u32,
                number(tcp::ACKNOWLEDGEMENT),
            )
            && self.admits_options(options)
    }

    #[inline]
    fn acknowledges_within(&self, number: u32) -> bool {
        number.wrapping_sub(self.acknowledgement) <= self.acknowledgement_length
    }
}

/// Match + rewrite + fate for one flow. SYN, FIN and RST never match a rule: they go to software.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rule {
    /// Its name.
    pub id: RuleId,
    /// The match.
    pub key: FlowKey,
    /// The rewrite. Of [`Fate::Direct`]: its new destination is the backend.
    pub rewrite: Rewrite,
    /// TCP and [`Fate::Forward`] only: for which packets it holds; `None`: for all.
    pub guard: Option<Guard>,
    /// The fate after the rewrite.
    pub fate: Fate,
    /// Which slot of the engine's totals its packets are added to (a backend's number times two, plus direction).
    pub total: u32,
    /// None of its packets is inside the worker or on the way there, so there is nothing that others could overtake: it
    /// holds as soon as it is in, without hand-over.
    pub at_once: bool,
}

/// A request to an engine.
#[derive(Clone, Copy, Debug)]
pub enum RuleOp {
    /// Add the rule; one that already matches the same key is updated to it.
    ///
    /// No packet meets a mixture: each is rewritten by the old rule, in whole, or by the new one, or goes to the worker.
    /// Hand-over starts anew ([`Rule::at_once`]: there is none), so that no packet overtakes those of its flow that are
    /// still inside the worker. The rule's counters go on: what both forwarded is in the counters of
    /// [`Completion::Removed`] and in samples, each packet once. After [`Completion::Rejected`] the old rule is in force as
    /// before. [`Completion::Installed`] and `Rejected` name the new rule; the old one's id is not answered again. Removing
    /// goes by the key, under either id.
    Install(Rule),
    /// Take the rule away and report its last counters.
    Remove {
        /// Its name.
        id: RuleId,
        /// The match.
        key: FlowKey,
    },
}

/// The abilities of an engine.
#[derive(Clone, Copy, Debug)]
pub struct EngineCaps {
    /// Rules it holds at most.
    pub rules_max: u32,
    /// Whether it has room for so many of IPv4 and as many of IPv6; else that is for both together.
    pub families_apart: bool,
    /// Requests under way at most.
    pub ops_in_flight_max: u32,
    /// Whether it can add to sequence and acknowledgement numbers.
    pub rewrites_sequence: bool,
    /// Whether it translates SACK blocks.
    pub rewrites_sack: bool,
    /// Whether it can shift windows.
    pub rewrites_window: bool,
    /// Whether it can add to timestamps.
    pub rewrites_timestamps: bool,
    /// Whether it checks guards. One that does not gets no rule with numbers while a packet outside could come.
    pub checks_guards: bool,
    /// Whether it counts packets and bytes and knows when a rule was last hit.
    pub counts: bool,
    /// Whether it applies services' access rules to packets that would begin a connection: it drops what they refuse, and counts
    /// what they count.
    pub judges_access: bool,
}

impl EngineCaps {
    /// There is no engine.
    pub const NONE: EngineCaps = EngineCaps {
        rules_max: 0,
        families_apart: false,
        ops_in_flight_max: 0,
        rewrites_sequence: false,
        rewrites_sack: false,
        rewrites_window: false,
        rewrites_timestamps: false,
        checks_guards: false,
        counts: false,
        judges_access: false,
    };

    /// An engine that can do everything, with room for `rules_max` rules and 1,000 requests at a time.
    pub const fn full(rules_max: u32) -> EngineCaps {
        EngineCaps {
            rules_max,
            families_apart: false,
            ops_in_flight_max: 1000,
            rewrites_sequence: true,
            rewrites_sack: true,
            rewrites_window: true,
            rewrites_timestamps: true,
            checks_guards: true,
            counts: true,
            judges_access: true,
        }
    }
}

/// The counters of a rule.
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

impl Completion {
    /// Of an answer after which a rule is not in force: the rule, and what it has carried.
    pub fn ended(&self) -> Option<(RuleId, Counters)> {
        match *self {
            Completion::Installed(_) => None,
            Completion::Rejected(id, _) => Some((id, Counters::default())),
            Completion::Removed(id, counters) => Some((id, counters.unwrap_or_default())),
        }
    }
}

/// Requests of a worker that wait for its engine at most, and requests in progress in an engine.
pub const OPS_MAX: usize = 4096;
/// Answers taken from an engine at a time at most.
pub const COMPLETIONS_MAX: usize = 512;
/// A burst of answers.
pub type Completions = ArrayVec<Completion, COMPLETIONS_MAX>;
/// Counters of the rules asked for, in the same order; `None` for a rule the engine does not hold.
pub type Samples = ArrayVec<Option<Counters>, COMPLETIONS_MAX>;

/// A flow engine. Asynchronous by nature: completions come late, reordered, or as refusals. A worker never waits.
pub trait FlowEngine {
    /// The engine's capabilities.
    fn caps(&self) -> EngineCaps;
    /// Queues a request; given back when the queue is full.
    fn submit(&mut self, now: Time, op: RuleOp) -> Result<(), RuleOp>;
    /// Hands queued requests to the engine.
    fn flush(&mut self, now: Time);
    /// Takes the answers that are there.
    fn poll(&mut self, now: Time, out: &mut Completions);
    /// Reads counters of up to [`COMPLETIONS_MAX`] rules; they may be a little stale.
    fn sample(&mut self, rules: &[(RuleId, FlowKey)], out: &mut Samples);
    /// Its part that sets connections up, for the worker; `None` if it does not, or has given it away.
    fn sets_up(&mut self) -> Option<Box<dyn SetsUp>> {
        None
    }
}

/// An engine without room. Workers ask it only for rules that no policy decides (to pass flows of no connection), and
/// are refused.
#[derive(Debug, Default)]
pub struct NoEngine {
    answers: VecDeque<Completion>,
}

impl FlowEngine for NoEngine {
    fn caps(&self) -> EngineCaps {
        EngineCaps::NONE
    }

    fn submit(&mut self, _: Time, op: RuleOp) -> Result<(), RuleOp> {
        if self.answers.len() >= OPS_MAX {
            return Err(op);
        }
        self.answers.push_back(match op {
            RuleOp::Install(rule) => Completion::Rejected(rule.id, Refusal::Unsupported),
            RuleOp::Remove { id, .. } => Completion::Removed(id, None),
        });
        Ok(())
    }

    fn flush(&mut self, _: Time) {}

    fn poll(&mut self, _: Time, out: &mut Completions) {
        let room = out.remaining_capacity().min(self.answers.len());
        out.extend(self.answers.drain(..room));
    }

    fn sample(&mut self, rules: &[(RuleId, FlowKey)], out: &mut Samples) {
        out.extend(rules.iter().map(|_| None));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The words of [`Guard`]'s documentation, byte by byte, on a number line that does not wrap.
    fn slowly(guard: &Guard, sequence: u32, payload: u32, acknowledgement: u32) -> bool {
        let within = |number: u32, first: u32, length: u32| {
            (0..=i64::from(length)).any(|offset| first.wrapping_add(offset as u32) == number)
        };
        let bytes = |at: u32| (0..guard.sequence_length).any(|offset| guard.sequence.wrapping_add(offset) == at);
        let sequence_within = match payload {
            0 => within(sequence, guard.sequence.wrapping_sub(1), guard.sequence_length + 1),
            _ => (0..payload).all(|offset| bytes(sequence.wrapping_add(offset))),
        };
        sequence_within && within(acknowledgement, guard.acknowledgement, guard.acknowledgement_length)
    }

    fn first() -> impl Strategy<Value = u32> {
        prop_oneof![any::<u32>(), (0u32..12).prop_map(|back| 5u32.wrapping_sub(back))]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]

        #[test]
        fn admits_what_its_words_say(
            (sequence, sequence_length, acknowledgement, acknowledgement_length) in (first(), 0u32..40, first(), 0u32..9),
            (start, payload, acknowledged) in (-3i64..44, 0u32..45, -3i64..12),
        ) {
            let guard = Guard { sequence, sequence_length, acknowledgement, acknowledgement_length };
            let start = sequence.wrapping_add(start as u32);
            let acknowledged = acknowledgement.wrapping_add(acknowledged as u32);
            prop_assert_eq!(
                guard.admits(start, payload, acknowledged),
                slowly(&guard, start, payload, acknowledged)
            );
        }

        #[test]
        fn sack_edges_are_acknowledgement_numbers(
            (acknowledgement, length) in (first(), 0u32..9),
            edges in proptest::collection::vec(-3i64..12, 2..=8),
        ) {
            let guard = Guard { acknowledgement, acknowledgement_length: length, ..Guard::default() };
            let edges = &edges[..edges.len() / 2 * 2];
            let mut options = std::vec![1, 5, 2 + 4 * edges.len() as u8];
            for edge in edges {
                options.extend(acknowledgement.wrapping_add(*edge as u32).to_be_bytes());
            }
            let within = edges.iter().all(|edge| (0..=i64::from(length)).contains(edge));
            prop_assert_eq!(guard.admits_options(&options), within);
        }
    }

    #[test]
    fn the_edges_of_a_range() {
        let guard = Guard { sequence: 100, sequence_length: 50, acknowledgement: 7, acknowledgement_length: 3 };
        for (sequence, payload, acknowledgement, within) in [
            (100, 50, 7, true),
            (100, 51, 7, false),
            (99, 1, 7, false),
            (99, 0, 7, true),
            (98, 0, 7, false),
            (150, 0, 10, true),
            (151, 0, 10, false),
            (149, 1, 10, true),
            (150, 1, 10, false),
            (100, 0, 6, false),
            (100, 0, 11, false),
            (100, u32::MAX, 7, false),
        ] {
            assert_eq!(
                guard.admits(sequence, payload, acknowledgement),
                within,
                "{sequence} {payload} {acknowledgement}"
            );
        }
        let all = Guard { sequence_length: u32::MAX, ..guard };
        assert!(all.admits(98, 0, 7) && all.admits(0, 99, 7));
        let none = Guard { sequence_length: 0, ..guard };
        assert!(none.admits(100, 0, 7) && none.admits(99, 0, 7) && !none.admits(100, 1, 7) && !none.admits(101, 0, 7));
    }
}

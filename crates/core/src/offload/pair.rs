//! The life cycle of a connection's pair of rules: Software -> Installing -> Offloaded -> Removing -> Software.
//!
//! Both layers keep one `RulePair` for each connection: layer 4 in the slab, layer 7 with a client connection. The pair is
//! asked for together and goes together; an engine that takes one direction only gets one rule. What a refusal means, what
//! the rules say and when they are worth it is the caller's. The caller releases a connection only in
//! [`OffloadState::Software`] (invariant 2).

use crate::engine::{RuleId, RuleOp};
use crate::flow::{Direction, FlowKey};
use crate::stored::stored_leaf;
use zerocopy::{Immutable, IntoBytes, KnownLayout, TryFromBytes};

/// Both directions, in the order of the bits of [`RulePair::held`].
pub(crate) const BOTH: [Direction; 2] = [Direction::FromClient, Direction::FromBackend];

/// The state of a connection's pair of rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, TryFromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(u8)]
pub enum OffloadState {
    /// The engine holds nothing.
    Software,
    /// Asked for; not all answers are in.
    Installing,
    /// The engine holds all rules of it.
    Offloaded,
    /// Their removal is asked for; not all answers are in.
    Removing,
}

/// An engine's answer about one rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It is in force.
    Installed,
    /// It was refused. If it was to update one that is in force, that one is in force as before.
    Rejected,
    /// It is gone.
    Removed,
}

/// The rules of one connection, as far as is known what the engine holds. One byte, which is whole at every instant in shared
/// memory, and leaves room for what a packet needs in the first cache lines of a connection.
///
/// Bits 0 and 1: the [`OffloadState`]. Bit 2: the rule of the client's flow is in force; bit 3: the backend's. Bits 4 and 5:
/// answers of the engine that are still to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TryFromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(transparent)]
pub struct RulePair(u8);

stored_leaf!(RulePair: 2);

/// Where the parts begin, and how wide each is.
const HELD: u32 = 2;
const ANSWERS_DUE: u32 = 4;
const PART: u8 = 0b11;

impl Default for RulePair {
    fn default() -> RulePair {
        RulePair::of(OffloadState::Software, 0, 0)
    }
}

impl RulePair {
    fn of(state: OffloadState, held: u8, answers_due: u8) -> RulePair {
        RulePair(state as u8 | (held & PART) << HELD | (answers_due & PART) << ANSWERS_DUE)
    }

    /// A pair of which the engine is known to hold `held`, and to owe no answer.
    pub fn holding(held: u8) -> RulePair {
        let state = if held & PART == 0 { OffloadState::Software } else { OffloadState::Offloaded };
        RulePair::of(state, held, 0)
    }

    /// A value that no pair has.
    #[cfg(test)]
    pub(crate) fn impossible() -> RulePair {
        RulePair(u8::MAX)
    }

    /// Whether a pair may have this value.
    pub fn is_plausible(&self) -> bool {
        self.answers_due() <= 2 && self.0 >> (ANSWERS_DUE + 2) == 0
    }

    /// Its state.
    #[inline(always)]
    pub fn state(&self) -> OffloadState {
        match self.0 & PART {
            0 => OffloadState::Software,
            1 => OffloadState::Installing,
            2 => OffloadState::Offloaded,
            _ => OffloadState::Removing,
        }
    }

    /// Which rules the engine holds: bit 0 of the client's flow, bit 1 of the backend's.
    #[inline(always)]
    pub fn held(&self) -> u8 {
        self.0 >> HELD & PART
    }

    /// Whether the engine holds the rule of one direction.
    #[inline]
    pub fn holds(&self, direction: Direction) -> bool {
        self.held() & 1 << direction as u8 != 0
    }

    /// Answers of the engine that are still to come.
    pub fn answers_due(&self) -> u8 {
        self.0 >> ANSWERS_DUE & PART
    }

    /// The rules `wanted` (bits as of [`RulePair::held`]) have been asked for, new ones or updates. Returns how many of them
    /// are new.
    pub fn ask(&mut self, wanted: u8) -> u32 {
        let held = self.held();
        *self = RulePair::of(OffloadState::Installing, held, wanted.count_ones() as u8);
        (wanted & !held).count_ones()
    }

    /// Asks for the removal of every rule in force: `ops` gets the requests, `name` says id and key of a rule. If there is
    /// none, the pair is in software at once. Returns how many requests there are.
    pub fn remove(&mut self, name: impl Fn(Direction) -> (RuleId, FlowKey), mut ops: impl FnMut(RuleOp)) -> u8 {
        for direction in BOTH.into_iter().filter(|&direction| self.holds(direction)) {
            let (id, key) = name(direction);
            ops(RuleOp::Remove { id, key });
        }
        let held = self.held();
        let state = if held == 0 { OffloadState::Software } else { OffloadState::Removing };
        *self = RulePair::of(state, held, held.count_ones() as u8);
        self.answers_due()
    }

    /// Takes an answer. Returns whether it was the last one due: then the pair is in software, or the engine holds some of
    /// its rules, and the caller decides whether those are the ones it wants.
    pub fn answer(&mut self, direction: Direction, answer: Answer) -> bool {
        let held = match answer {
            Answer::Installed => self.held() | 1 << direction as u8,
            Answer::Rejected => self.held(),
            Answer::Removed => self.held() & !(1 << direction as u8),
        };
        let left = self.answers_due().saturating_sub(1);
        *self = if left > 0 { RulePair::of(self.state(), held, left) } else { RulePair::holding(held) };
        left == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::{Address, Endpoint, Protocol};
    use alloc::vec::Vec;

    fn name(direction: Direction) -> (RuleId, FlowKey) {
        let end = Endpoint::new(Address::from_ipv4([192, 0, 2, 1]), 80 + direction as u16);
        (RuleId(direction as u64), FlowKey { source: end, destination: end, protocol: Protocol::Tcp })
    }

    fn remove(pair: &mut RulePair) -> Vec<u64> {
        let mut ids = Vec::new();
        pair.remove(name, |op| match op {
            RuleOp::Remove { id, key } => {
                assert_eq!(key, name(BOTH[id.0 as usize]).1);
                ids.push(id.0);
            }
            RuleOp::Install(_) => panic!("a removal installs"),
        });
        ids
    }

    #[test]
    fn pair_whole_life() {
        let mut pair = RulePair::default();
        assert_eq!((pair.ask(0b11), pair.state(), pair.answers_due()), (2, OffloadState::Installing, 2));
        assert!(!pair.answer(Direction::FromBackend, Answer::Installed));
        assert_eq!((pair.state(), pair.held()), (OffloadState::Installing, 0b10));
        assert!(pair.answer(Direction::FromClient, Answer::Installed));
        assert_eq!((pair.state(), pair.held()), (OffloadState::Offloaded, 0b11));
        assert_eq!((remove(&mut pair), pair.state()), (alloc::vec![0, 1], OffloadState::Removing));
        assert!(!pair.answer(Direction::FromClient, Answer::Removed));
        assert!(pair.answer(Direction::FromBackend, Answer::Removed));
        assert_eq!(pair, RulePair::default());
    }

    #[test]
    fn pair_half_refused_leaves_the_other_half() {
        let mut pair = RulePair::default();
        pair.ask(0b11);
        pair.answer(Direction::FromClient, Answer::Rejected);
        assert!(pair.answer(Direction::FromBackend, Answer::Installed));
        assert_eq!((pair.state(), pair.held()), (OffloadState::Offloaded, 0b10));
        assert_eq!(remove(&mut pair), [1]);
    }

    #[test]
    fn pair_wholly_refused_is_in_software() {
        let mut pair = RulePair::default();
        pair.ask(0b11);
        pair.answer(Direction::FromClient, Answer::Rejected);
        assert!(pair.answer(Direction::FromBackend, Answer::Rejected));
        assert_eq!(pair, RulePair::default());
        assert!(remove(&mut pair).is_empty());
        assert_eq!(pair, RulePair::default());
    }

    #[test]
    fn pair_update_refused_keeps_the_old_rule() {
        let mut pair = RulePair::holding(0b10);
        assert_eq!((pair.ask(0b10), pair.state()), (0, OffloadState::Installing));
        assert!(pair.answer(Direction::FromBackend, Answer::Rejected));
        assert_eq!(pair, RulePair::holding(0b10));
    }

    #[test]
    fn pair_any_byte_valid_or_refused() {
        let pairs = (0..=u8::MAX).filter_map(|byte| RulePair::try_read_from_bytes(&[byte]).ok());
        assert_eq!(pairs.filter(RulePair::is_plausible).count(), 4 * 4 * 3);
    }

    #[test]
    fn pair_any_answers_end_settled() {
        // Every sequence of up to six answers: once as many have come as were due, the pair is settled and says so once.
        for case in 0..6u32.pow(6) {
            let mut pair = RulePair::holding((case % 4) as u8);
            pair.ask(0b11);
            let mut rest = case;
            let settled = (0..2).map(|_| {
                let answer = [Answer::Installed, Answer::Rejected, Answer::Removed][(rest % 3) as usize];
                let direction = BOTH[(rest / 3 % 2) as usize];
                rest /= 6;
                pair.answer(direction, answer)
            });
            assert_eq!(settled.collect::<Vec<_>>(), [false, true]);
            assert_eq!(pair, RulePair::holding(pair.held()));
        }
    }
}

//! How rules translate sequence and acknowledgement numbers, and which they admit, as the maps store it.

use super::{Bytes, RuleHead};
#[cfg(doc)]
use hairpin_core::engine::Guard;
use hairpin_core::engine::{Fate, Rule};
use hairpin_core::flow::Protocol;
use hairpin_core::rewrite::Rewrite;
use std::mem::{offset_of, size_of};

/// Value of `sequence_v4` and `sequence_v6`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct SequenceChange {
    /// Added to sequence numbers.
    pub sequence_delta: u32,
    /// Added to acknowledgement numbers and SACK edges.
    pub acknowledgement_delta: u32,
    /// [`Guard::sequence`].
    pub sequence: u32,
    /// [`Guard::sequence_length`].
    pub sequence_length: u32,
    /// [`Guard::acknowledgement`].
    pub acknowledgement: u32,
    /// [`Guard::acknowledgement_length`].
    pub acknowledgement_length: u32,
    /// -16 to 16: what windows are shifted by, to the left if positive.
    pub window_shift: i32,
    /// 0: there is no guard.
    pub guarded: u32,
    /// Added to a timestamp's value.
    pub timestamp_delta: u32,
    /// Added to its echo.
    pub echo_delta: u32,
    /// By which a program knows that all of this was written together, and for the rule it has found.
    pub check: u64,
}

// SAFETY: `repr(C)`, integers only, and the assertion below leaves no room for padding.
unsafe impl Bytes for SequenceChange {}

const _: () = assert!(size_of::<SequenceChange>() == 48 && offset_of!(SequenceChange, check) == 40);

/// Whether a rule translates sequence numbers, or checks them.
pub(super) fn changes_sequence(rule: &Rule) -> bool {
    let Rewrite { sequence_delta, acknowledgement_delta, window_shift, .. } = rule.rewrite;
    let changes =
        (sequence_delta, acknowledgement_delta, window_shift) != (0, 0, 0) || rule.rewrite.changes_timestamps();
    rule.key.protocol == Protocol::Tcp && rule.fate == Fate::Forward && (changes || rule.guard.is_some())
}

/// `SEQUENCE_CHECK` of the header.
const SEQUENCE_CHECK: u64 = 0x9e37_79b9_7f4a_7c15;

impl SequenceChange {
    /// Those of `rule`, which lies in its map as `value`: a [`RuleV4`](super::RuleV4) or [`RuleV6`](super::RuleV6) made of
    /// it.
    pub fn of(rule: &Rule, value: &impl Bytes) -> SequenceChange {
        let guard = rule.guard.unwrap_or_default();
        let mut change = SequenceChange {
            sequence_delta: rule.rewrite.sequence_delta,
            acknowledgement_delta: rule.rewrite.acknowledgement_delta,
            sequence: guard.sequence,
            sequence_length: guard.sequence_length,
            acknowledgement: guard.acknowledgement,
            acknowledgement_length: guard.acknowledgement_length,
            window_shift: i32::from(rule.rewrite.window_shift).clamp(-16, 16),
            guarded: u32::from(rule.guard.is_some()),
            timestamp_delta: rule.rewrite.timestamp_delta,
            echo_delta: rule.rewrite.echo_delta,
            check: 0,
        };
        let ends = &value.bytes()[offset_of!(RuleHead, source_port)..];
        // An IPv6 rule ends in zeros, which add nothing.
        let words = change.bytes()[..offset_of!(SequenceChange, check)]
            .as_chunks::<8>()
            .0
            .iter()
            .chain(ends.as_chunks::<8>().0);
        let mut factor = 1u64;
        change.check = words.fold(0, |sum: u64, word| {
            factor = factor.wrapping_mul(SEQUENCE_CHECK);
            sum.wrapping_add(u64::from_ne_bytes(*word).wrapping_mul(factor))
        });
        change
    }
}

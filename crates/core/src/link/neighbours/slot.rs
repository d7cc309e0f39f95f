//! One neighbour's place: six words that are read without a lock.
//!
//! A sequence number counts changes and is odd during one; a reader that finds it odd, or changed behind its back, reads
//! again. Writers take turns by the table's lock.

use super::NeighbourState;
use crate::flow::Address;
use crate::link::segment::LinkSegment;
use crate::time::Time;
use core::sync::atomic::{AtomicU64, Ordering, fence};

/// Times a reader tries again at most: a change is a handful of stores, but its thread may be held up in between.
const READS_MAX: usize = 1000;
const WORDS: usize = 6;

const STATE_SHIFT: u32 = 48;
const TRIES_SHIFT: u32 = 52;
const KEPT: u64 = 1 << 56;
const LEARNT: u64 = 1 << 57;
const MAC_MASK: u64 = (1 << 48) - 1;

/// The contents of a place. Default: nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct NeighbourEntry {
    pub(super) address: Address,
    pub(super) segment: LinkSegment,
    pub(super) mac: [u8; 6],
    /// `None`: the place is free.
    pub(super) state: Option<NeighbourState>,
    /// Requests sent since the state began, 0 to 15.
    pub(super) tries: u8,
    /// Never gives way, and is always asked after.
    pub(super) kept: bool,
    /// Known because it asked us, not because we asked it.
    pub(super) learnt: bool,
    /// When it was last known to be right; before that, when the entry was made.
    pub(super) confirmed: Time,
    /// When something is to happen to it.
    pub(super) due: Time,
}

/// A place; a cache line of its own.
#[repr(align(64))]
#[derive(Default)]
pub(super) struct NeighbourSlot {
    sequence: AtomicU64,
    words: [AtomicU64; WORDS],
}

impl NeighbourEntry {
    fn words(&self) -> [u64; WORDS] {
        let address = u128::from_be_bytes(self.address.0);
        let [a, b, c, d, e, f] = self.mac;
        let state = self.state.map_or(0, |state| state as u64 + 1) << STATE_SHIFT;
        let tries = u64::from(self.tries & 15) << TRIES_SHIFT;
        let flags = if self.kept { KEPT } else { 0 } | if self.learnt { LEARNT } else { 0 };
        let packed = u64::from_be_bytes([0, 0, a, b, c, d, e, f]) | state | tries | flags;
        [
            (address >> 64) as u64,
            address as u64,
            self.segment.packed(),
            packed,
            self.confirmed.as_nanos(),
            self.due.as_nanos(),
        ]
    }

    fn of([high, low, segment, packed, confirmed, due]: [u64; WORDS]) -> NeighbourEntry {
        let [_, _, mac @ ..] = (packed & MAC_MASK).to_be_bytes();
        NeighbourEntry {
            address: Address((u128::from(high) << 64 | u128::from(low)).to_be_bytes()),
            segment: LinkSegment::unpacked(segment),
            mac,
            state: NeighbourState::ALL.get(((packed >> STATE_SHIFT & 15) as usize).wrapping_sub(1)).copied(),
            tries: (packed >> TRIES_SHIFT & 15) as u8,
            kept: packed & KEPT != 0,
            learnt: packed & LEARNT != 0,
            confirmed: Time::from_nanos(confirmed),
            due: Time::from_nanos(due),
        }
    }

    pub(super) fn is(&self, address: &Address, segment: LinkSegment) -> bool {
        self.state.is_some() && self.address == *address && self.segment == segment
    }
}

impl NeighbourSlot {
    /// Its contents; `None` if it is being changed all the time.
    #[inline]
    pub(super) fn read(&self) -> Option<NeighbourEntry> {
        for _ in 0..READS_MAX {
            let before = self.sequence.load(Ordering::Acquire);
            let words = core::array::from_fn(|at| self.words[at].load(Ordering::Relaxed));
            fence(Ordering::Acquire);
            if before & 1 == 0 && self.sequence.load(Ordering::Relaxed) == before {
                return Some(NeighbourEntry::of(words));
            }
            core::hint::spin_loop();
        }
        None
    }

    /// Its contents, for the holder of the table's lock: no other thread changes it.
    pub(super) fn owned(&self) -> NeighbourEntry {
        NeighbourEntry::of(core::array::from_fn(|at| self.words[at].load(Ordering::Relaxed)))
    }

    /// Changes it; only with the table's lock.
    pub(super) fn write(&self, entry: &NeighbourEntry) {
        let before = self.sequence.load(Ordering::Relaxed);
        self.sequence.store(before.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        for (word, value) in self.words.iter().zip(entry.words()) {
            word.store(value, Ordering::Relaxed);
        }
        self.sequence.store(before.wrapping_add(2), Ordering::Release);
    }
}

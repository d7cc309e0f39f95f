//! Connections that clients have now, beside the times of their requests in the same [`LimitTable`].
//!
//! An entry is one word here, too: a part of its client's hash, who counts, which limit, and how many connections. Workers count
//! together, and a process that takes over counts theirs anew when it adopts them. The runtimes of a process count for
//! themselves, because they go on while the process drains. What a process counted that has ended is forgotten by the next one.
//! An entry without connections is free. Where a set has no free entry, a connection is admitted and not counted: none that is
//! counted can be forgotten before it ends.

use super::table::{LimitKey, LimitTable, Set, Shared};
use super::{ENTRIES_OF_SET, TRIES_MAX};
use core::sync::atomic::{AtomicU64, Ordering};

/// Connections at a time that a limit may admit at most.
pub const CONCURRENT_MAX: u32 = 1_000_000;

const TAG_SHIFT: u32 = 40;
const LANE_SHIFT: u32 = 36;
const LIMIT_SHIFT: u32 = 24;
const COUNT_MASK: u64 = (1 << LIMIT_SHIFT) - 1;
/// Lanes of runtimes: 1 to so many. Two processes drain at most.
const LANES: u64 = 15;
/// The lane of workers.
pub(super) const WORKERS: u8 = 0;

/// What became of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hold {
    /// It is counted.
    Held,
    /// It is admitted, and not counted: there is no room.
    Uncounted,
    /// It would be one too many.
    Refused,
}

fn lane(word: u64) -> u8 {
    (word >> LANE_SHIFT) as u8 & 0xf
}

fn limit(word: u64) -> u16 {
    (word >> LIMIT_SHIFT) as u16 & 0xfff
}

/// The lane of the runtimes of the process with this number.
pub(super) fn lane_of(process: u64) -> u8 {
    (process % LANES) as u8 + 1
}

impl LimitTable {
    /// Counts a connection of a client, if it has fewer than `most`.
    pub(super) fn hold(&self, key: LimitKey, most: u32) -> Hold {
        let Some(set) = self.held_set(key) else { return Hold::Uncounted };
        let fresh = self.fresh(key);
        for _ in 0..TRIES_MAX {
            let (mut sum, mut own, mut free) = (0, None, None);
            for (at, entry) in set.words().iter().enumerate() {
                let word = entry.load(Ordering::Relaxed);
                if word == 0 {
                    free = free.or(Some((at, word, fresh | 1)));
                } else if word >> TAG_SHIFT == fresh >> TAG_SHIFT {
                    sum += word & COUNT_MASK;
                    if word & !COUNT_MASK == fresh {
                        own = own.or(Some((at, word, word + 1)));
                    }
                }
            }
            if sum >= u64::from(most) {
                return Hold::Refused;
            }
            let Some((at, word, new)) = own.filter(|(_, word, _)| word & COUNT_MASK < COUNT_MASK).or(free) else {
                return Hold::Uncounted;
            };
            if set.words()[at].compare_exchange(word, new, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                return Hold::Held;
            }
        }
        Hold::Uncounted
    }

    /// A connection of a client has ended.
    pub(super) fn release(&self, key: LimitKey) {
        let Some(set) = self.held_set(key) else { return };
        let fresh = self.fresh(key);
        for entry in set.words() {
            let less = |word: u64| match word & COUNT_MASK {
                _ if word & !COUNT_MASK != fresh => None,
                0 | 1 => Some(0),
                _ => Some(word - 1),
            };
            if entry.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok() {
                return;
            }
        }
    }

    /// Forgets the connections of workers, which are counted anew as they are adopted.
    pub fn forget_workers(&self) {
        self.forget(|word| lane(word) == WORKERS);
    }

    /// Forgets the connections that runtimes of other processes have counted, once: those that begin later take over from this one.
    /// To be called when none of them is left.
    pub fn forget_processes(&self) {
        let Some(shared) = &self.shared else { return };
        if shared.has_others.swap(false, Ordering::Relaxed) {
            self.forget(|word| ![WORKERS, shared.lane].contains(&lane(word)));
        }
    }

    /// Forgets the connections of all limits but these, by [`Limit::id`](super::Limit::id): they are not counted out any more.
    pub fn forget_limits_but(&self, ids: &[u64]) {
        self.forget(|word| !ids.iter().any(|id| mark(*id) == limit(word)));
    }

    fn forget(&self, is_gone: impl Fn(u64) -> bool) {
        let Some(shared) = &self.shared else { return };
        for entry in shared.held.iter().flat_map(Set::words) {
            let empty = |word| (word != 0 && is_gone(word)).then_some(0);
            let _ = entry.fetch_update(Ordering::Relaxed, Ordering::Relaxed, empty);
        }
    }

    fn held_set(&self, key: LimitKey) -> Option<&Set> {
        self.shared.as_ref().and_then(|shared| Shared::set(&shared.held, key))
    }

    /// The entry of a client without connections.
    fn fresh(&self, key: LimitKey) -> u64 {
        key.tag() << TAG_SHIFT | u64::from(self.lane) << LANE_SHIFT | u64::from(mark(key.limit)) << LIMIT_SHIFT
    }
}

/// The part of a limit's id that its entries have.
fn mark(id: u64) -> u16 {
    id as u16 & 0xfff
}

impl Set {
    fn words(&self) -> &[AtomicU64; ENTRIES_OF_SET] {
        &self.0
    }
}

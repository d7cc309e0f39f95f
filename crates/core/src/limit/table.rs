//! The table of clients, which all workers and runtimes share.
//!
//! An entry is one word: a part of its client's hash, and the time from which on the client owes nothing. An entry whose time has
//! come says no more than one that is empty, so it is free, and nothing needs to be removed. Entries lie in sets of a cache line,
//! and a client's entry may be anywhere in the set that its hash names. Every change is one compare-and-exchange of one word:
//! a process that is killed leaves no entry half-written, and two workers that change one entry at the same time both count.
//!
//! # When a set is full
//! The client that owes least gives way to one that comes. It has its whole burst again then; that is least for the one that owes
//! least. So clients that send one request each, such as a flood from forged addresses, displace each other, and those who are
//! at their limit stay.
//!
//! # What is not exact
//! - Two clients of one set whose 24 bits of hash are the same share an entry: one pair in 17 million.
//! - Two workers that see another entry of a set become free at the same moment may each give their client one. The first one
//!   counts from then on.

use super::held::{WORKERS, lane_of};
use super::{Rate, UNIT_BITS, units};
use crate::keys::{Purpose, Secret};
use crate::table::region::{Array, Region};
use crate::time::{Duration, Time};
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use zerocopy::FromBytes;

/// How far ahead of the clock a client's time may be: how long a burst may take to come back.
pub const AHEAD_MAX: Duration = Duration::from_secs(3600);
/// Entries of a set.
pub const ENTRIES_OF_SET: usize = 8;
/// How often an entry is tried that other workers change meanwhile. After that the request is admitted.
pub const TRIES_MAX: usize = 64;

/// Bits of an entry that have its time: 4.9 hours of it. What is more than [`AHEAD_MAX`] ahead has passed.
const TIME_BITS: u32 = 40;
const TIME_MASK: u64 = (1 << TIME_BITS) - 1;
const AHEAD_UNITS: u64 = units(AHEAD_MAX.as_nanos() as u64);
/// A time that has passed looks like one to come when the clock has gone round. [`LimitTable::tend`] has emptied it before.
const _: () = assert!(2 * AHEAD_UNITS < TIME_MASK / 2);
/// Calls of [`LimitTable::tend`] after which it has looked at every set.
const TENDS: usize = 600;

#[derive(FromBytes)]
#[repr(C, align(64))]
pub(super) struct Set(pub(super) [AtomicU64; ENTRIES_OF_SET]);

/// Where a client's entry may be, and what it is known by there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitKey {
    hash: u64,
    /// [`Limit::id`](super::Limit::id).
    pub(super) limit: u64,
}

impl LimitKey {
    /// Never 0, which no entry has that has a client.
    pub(super) fn tag(self) -> u64 {
        (self.hash & ((1 << (64 - TIME_BITS)) - 1)).max(1)
    }
}

/// The outcome of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// `Some`: it is beyond the limit, for so long.
    pub refused_for: Option<Duration>,
    /// Its client has the place of another one that still owed.
    pub is_displacing: bool,
}

/// The clients of all limits. Clones share the memory.
#[derive(Clone, Default)]
pub struct LimitTable {
    pub(super) shared: Option<Arc<Shared>>,
    /// Who counts connections: see [`held`](super::held).
    pub(super) lane: u8,
}

pub(super) struct Shared {
    secret: Secret,
    sets: Array<Set>,
    /// Connections: see [`held`](super::held).
    pub(super) held: Array<Set>,
    /// That of this process's runtimes.
    pub(super) lane: u8,
    /// There may be connections that runtimes of other processes have counted.
    pub(super) has_others: AtomicBool,
    /// One: its first word is when the table was tended last, in nanoseconds; its second is how many processes have begun with it.
    head: Array<Set>,
    /// The set that is tended next.
    next: AtomicUsize,
    /// Entries in use that this pass over the sets has found, and those that the last one has.
    found: [AtomicUsize; 2],
}

/// What a client's set has for it.
enum Place {
    /// Its entry.
    Own,
    /// A free one.
    Free,
    /// That of the client that owes least.
    Displaced,
}

/// How far ahead of `now` the time of an entry is; 0 if it has passed.
fn ahead(word: u64, now: u64) -> u64 {
    let ahead = word.wrapping_sub(now) & TIME_MASK;
    if word == 0 || ahead > AHEAD_UNITS { 0 } else { ahead }
}

impl LimitTable {
    /// One without room, which admits everything.
    pub(super) const fn none() -> LimitTable {
        LimitTable { shared: None, lane: WORKERS }
    }

    /// Another number for each other meaning of a table's bytes.
    pub const LAYOUT: u64 = 2;

    const fn sets(clients: u32) -> usize {
        (clients as usize).div_ceil(ENTRIES_OF_SET)
    }

    /// Bytes that a table for so many clients takes.
    pub const fn bytes(clients: u32) -> usize {
        Region::room::<Set>(1) + 2 * Region::room::<Set>(LimitTable::sets(clients))
    }

    /// The table in `region`, which another process may have left or may have in use. The `secret` is that of all its processes.
    /// What was not tended for longer than [`AHEAD_MAX`] is emptied.
    ///
    /// # Panics
    /// The region has less than [`LimitTable::bytes`].
    pub fn new(mut region: Region, clients: u32, secret: Secret, now: Time) -> LimitTable {
        let head = region.take::<Set>(1);
        let [sets, held] = [(); 2].map(|()| region.take::<Set>(LimitTable::sets(clients)));
        let tended = &head[0].0[0];
        let before = Time::from_nanos(tended.swap(now.as_nanos(), Ordering::Relaxed));
        // A time to come was of another clock.
        if before > now || now.since(before) > AHEAD_MAX {
            sets.iter().flat_map(|set| &set.0).for_each(|word| word.store(0, Ordering::Relaxed));
        }
        let lane = lane_of(head[0].0[1].fetch_add(1, Ordering::Relaxed));
        let (next, found, has_others) = (AtomicUsize::new(0), Default::default(), AtomicBool::new(true));
        let shared = Shared { secret, sets, held, lane, has_others, head, next, found };
        LimitTable { shared: Some(Arc::new(shared)), lane: WORKERS }
    }

    /// The table of limits as the runtimes of this process have it, which count connections of their own.
    pub fn of_runtimes(&self) -> LimitTable {
        let lane = self.shared.as_ref().map_or(WORKERS, |shared| shared.lane);
        LimitTable { shared: self.shared.clone(), lane }
    }

    /// A table of this process alone.
    pub fn own(clients: u32, secret: Secret) -> LimitTable {
        LimitTable::new(Region::own(LimitTable::bytes(clients)), clients, secret, Time::ZERO)
    }

    /// The key of a client of the limit with this id.
    pub fn key(&self, limit: u64, client: &[u8]) -> LimitKey {
        let hash = self.shared.as_ref().map_or(0, |shared| shared.secret.of_client(Purpose::Limits, limit, client));
        LimitKey { hash, limit }
    }

    /// Counts one for a client.
    pub fn take(&self, key: LimitKey, rate: &Rate, now: Time) -> Taken {
        let Some(shared) = &self.shared else { return Taken::default() };
        let Some(set) = Shared::set(&shared.sets, key) else { return Taken::default() };
        let now = units(now.as_nanos()) & TIME_MASK;
        for _ in 0..TRIES_MAX {
            let (place, at, word) = set.find(key.tag(), now);
            let owed = if matches!(place, Place::Own) { ahead(word, now) } else { 0 };
            let owes = owed + rate.interval;
            if owes > rate.ahead {
                let beyond = Duration::from_nanos((owes - rate.ahead) << UNIT_BITS);
                return Taken { refused_for: Some(beyond), is_displacing: false };
            }
            let new = key.tag() << TIME_BITS | (now + owes) & TIME_MASK;
            if set.0[at].compare_exchange(word, new, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                return Taken { refused_for: None, is_displacing: matches!(place, Place::Displaced) };
            }
        }
        Taken::default()
    }

    /// Empties entries whose time has passed, in a part of the table, before the clock goes round. To be called ten times a second
    /// by one thread of the process that serves.
    pub fn tend(&self, now: Time) {
        let Some(shared) = &self.shared else { return };
        shared.head[0].0[0].store(now.as_nanos(), Ordering::Relaxed);
        let now = units(now.as_nanos()) & TIME_MASK;
        let (all, [found, last]) = (shared.sets.len(), &shared.found);
        let first = shared.next.load(Ordering::Relaxed);
        let behind = (first + all / TENDS + 1).min(all);
        let words = shared.sets.get(first..behind).unwrap_or_default().iter().flat_map(|set| &set.0);
        for entry in words {
            let word = entry.load(Ordering::Relaxed);
            if ahead(word, now) > 0 {
                found.fetch_add(1, Ordering::Relaxed);
            } else if word != 0 {
                // One that has changed is in use.
                let _ = entry.compare_exchange(word, 0, Ordering::Relaxed, Ordering::Relaxed);
            }
        }
        let is_whole = behind >= all;
        shared.next.store(if is_whole { 0 } else { behind }, Ordering::Relaxed);
        if is_whole {
            last.store(found.swap(0, Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// Clients that owed something when the table was gone through last, which is a minute ago at most; and how many it has room
    /// for.
    pub fn clients(&self) -> (usize, usize) {
        let Some(shared) = &self.shared else { return (0, 0) };
        (shared.found[1].load(Ordering::Relaxed), shared.sets.len() * ENTRIES_OF_SET)
    }
}

impl Shared {
    /// That of a client.
    pub(super) fn set(sets: &[Set], key: LimitKey) -> Option<&Set> {
        // The upper half of the hash, as a fraction; the tag is of the lower half.
        let at = ((key.hash >> 32) * sets.len() as u64) >> 32;
        sets.get(at as usize)
    }
}

impl Set {
    /// The place for the client known by `tag`: which entry, and its word.
    fn find(&self, tag: u64, now: u64) -> (Place, usize, u64) {
        let mut free = None;
        let mut least = (u64::MAX, 0, 0);
        for (at, entry) in self.0.iter().enumerate() {
            let word = entry.load(Ordering::Relaxed);
            if word >> TIME_BITS == tag {
                return (Place::Own, at, word);
            }
            let owed = ahead(word, now);
            if owed == 0 {
                free = free.or(Some((at, word)));
            } else if owed < least.0 {
                least = (owed, at, word);
            }
        }
        match free {
            Some((at, word)) => (Place::Free, at, word),
            None => (Place::Displaced, least.1, least.2),
        }
    }
}

//! The Ethernet addresses of neighbours: a bounded table, shared by all workers, read without a lock.
//!
//! # States (RFC 4861, 7.3.2, simplified; the same for ARP)
//!
//! | state | meant | leaves it |
//! |---|---|---|
//! | incomplete | asked for by broadcast or multicast; nothing is sent | an answer: reachable; 3 requests, a second apart, without one: failed |
//! | reachable | answered within the last 30 s | 30 s: stale (kept ones: probe) |
//! | stale | usable; the next frame asks after it | a frame: probe; 10 minutes without one: gone |
//! | probe | usable; asked for by unicast | an answer: reachable; 3 requests without one: incomplete |
//! | failed | not to be asked for yet | 3 s, or its port's link is back: gone (kept ones, 5 s: incomplete) |
//!
//! RFC 4861's state *delay* is missing: nothing here knows from upper layers that a neighbour hears us, so waiting for
//! that is of no use. Times are fixed, not drawn.
//!
//! # Who is believed
//! An entry comes into being because a frame of ours needs it, because the plan names it (*kept*), or because a neighbour
//! asked for us (*learnt*: in at most a quarter of its places, none instead of an entry that a frame needed). What
//! answers or announces changes existing entries only, of the same address in the same [`LinkSegment`]. Within a second of
//! an answer no other one is believed, so that of two answers to one request the first counts.
//!
//! # When it is full
//! An address has two buckets of [`BUCKET_SIZE`] places each, by a keyed hash, so that a table half full has room for
//! everybody. A new entry takes a free place, else that of the entry longest failed, longest incomplete where half of
//! the places have no Ethernet address, longest stale; else there is none. Reachable entries do not give way, except to
//! kept ones; kept ones never. So a host that makes us send to addresses that no host has (a scan of a connected
//! network) drives out other such addresses, and at worst neighbours that nothing has been sent to for long.
//!
//! # Concurrency
//! Readers see whole entries or none (`slot.rs`). A writer takes the table's lock by compare-and-swap; one that does not
//! get it in a bounded number of tries gives up, and says so. A version of the table changes behind every change of an
//! entry, so that a reader may remember what it has read.

mod change;
mod slot;
#[cfg(test)]
mod tests;

use super::segment::LinkSegment;
use crate::flow::Address;
use crate::table::{Hasher, Key};
use crate::time::{Duration, Time};
use alloc::boxed::Box;
use arrayvec::ArrayVec;
use change::Writing;
use core::net::IpAddr;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use slot::{NeighbourEntry, NeighbourSlot};

/// How long an answer counts.
pub const REACHABLE: Duration = Duration::from_secs(30);
/// Between two requests.
pub const ASK_INTERVAL: Duration = Duration::from_secs(1);
/// Requests without an answer that are enough.
pub const ASKS_MAX: u8 = 3;
/// How long who did not answer is not asked for again.
pub const FAILED: Duration = Duration::from_secs(3);
/// [`FAILED`] for kept entries, which are asked for without being needed.
pub const FAILED_KEPT: Duration = Duration::from_secs(5);
/// How long an entry that no frame uses stays.
pub const STALE: Duration = Duration::from_secs(600);
/// How long the first answer stands against others.
pub const LOCK_TIME: Duration = Duration::from_secs(1);
/// Places in a bucket; an address may have any of two buckets.
pub const BUCKET_SIZE: usize = 8;
/// Entries there can be at most.
pub const CAPACITY_MAX: usize = 1 << 20;

/// The interval of the sweep for what is due.
const SWEEP_INTERVAL: Duration = Duration::from_millis(100);
/// Places that the sweep takes in one iteration.
const SWEEP_PLACES: usize = 256;
/// Tries to get the lock, each some nanoseconds; its holder needs less than a microsecond unless it is held up.
const LOCK_TRIES: usize = 2000;

/// The state of a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum NeighbourState {
    /// Asked for, never answered.
    Incomplete,
    /// Answered not long ago.
    Reachable,
    /// Usable, but it is long since it answered, or it only said so.
    Stale,
    /// Usable, asked after.
    Probe,
    /// Does not answer.
    Failed,
}

impl NeighbourState {
    /// All of them, in order.
    pub const ALL: [NeighbourState; 5] = [
        NeighbourState::Incomplete,
        NeighbourState::Reachable,
        NeighbourState::Stale,
        NeighbourState::Probe,
        NeighbourState::Failed,
    ];

    /// Its name in status.
    pub const fn name(self) -> &'static str {
        match self {
            NeighbourState::Incomplete => "incomplete",
            NeighbourState::Reachable => "reachable",
            NeighbourState::Stale => "stale",
            NeighbourState::Probe => "probe",
            NeighbourState::Failed => "failed",
        }
    }

    /// Whether frames can be sent to its Ethernet address.
    pub const fn is_usable(self) -> bool {
        matches!(self, NeighbourState::Reachable | NeighbourState::Stale | NeighbourState::Probe)
    }
}

/// A neighbour, as it is listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// Its IP address.
    pub address: IpAddr,
    /// Its place.
    pub segment: LinkSegment,
    /// Its Ethernet address, if its state is usable.
    pub mac: [u8; 6],
    /// Its state.
    pub state: NeighbourState,
    /// Whether the plan names it.
    pub kept: bool,
    /// When it was last known to be right, or since when it is asked for.
    pub confirmed: Time,
}

/// No time that comes.
const FAR: Time = Time::from_nanos(u64::MAX);

/// A reader's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NeighbourFound {
    /// Send there. From `until` on it has to be asked after ([`Neighbours::need`]).
    At { mac: [u8; 6], until: Time },
    /// Wait: it is asked for.
    Asked,
    /// It does not answer.
    Failed,
    /// It is not known: [`Neighbours::need`] it.
    Unknown,
    /// The entry changes all the time.
    Busy,
}

/// The outcome of needing a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NeedOutcome {
    /// It is to be asked for.
    Ask(Ask),
    /// There is an entry already, and nothing is to be asked.
    Known,
    /// There is no room for it.
    Full,
    /// Another worker has had the lock for too long.
    Busy,
}

/// A request to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ask {
    pub(super) address: Address,
    pub(super) segment: LinkSegment,
    /// The host to ask; `None`: the broadcast or multicast address.
    pub(super) mac: Option<[u8; 6]>,
}

/// Requests made in one go at most.
pub(super) const ASKS_AT_ONCE: usize = 16;
pub(super) type Asks = ArrayVec<Ask, ASKS_AT_ONCE>;

/// A host's message about an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) address: Address,
    pub(super) segment: LinkSegment,
    /// `None`: the known address.
    pub(super) mac: Option<[u8; 6]>,
    /// Whether it says so because it was asked.
    pub(super) solicited: bool,
    /// Whether it is to be believed against what is known.
    pub(super) overrides: bool,
    /// Whether it may be remembered though no frame has needed it.
    pub(super) learn: bool,
}

/// The places that an address may have.
#[derive(Clone, Copy)]
struct AddressPlaces<'a>(&'a [NeighbourSlot], &'a [NeighbourSlot]);

impl<'a> AddressPlaces<'a> {
    fn iter(self) -> impl Iterator<Item = &'a NeighbourSlot> {
        self.0.iter().chain(self.1)
    }

    fn len(self) -> usize {
        self.0.len() + self.1.len()
    }
}

/// The table.
pub struct Neighbours {
    slots: Box<[NeighbourSlot]>,
    hasher: Hasher,
    writer: AtomicU32,
    version: AtomicU64,
    /// When the next sweep begins, in nanoseconds.
    sweep_due: AtomicU64,
    /// The position to continue from.
    cursor: AtomicU64,
    /// Rounds of announcements wanted so far, and begun.
    announcements: AtomicU64,
    announced: AtomicU64,
    contended: AtomicU64,
}

impl Neighbours {
    /// A table of at least `capacity` places, 8 to [`CAPACITY_MAX`], a multiple of 64 bytes times a power of two; twice
    /// as many as neighbours are expected is a good number. `secret` has to be random.
    pub fn new(capacity: usize, secret: [u64; 4]) -> Neighbours {
        let capacity = capacity.clamp(BUCKET_SIZE, CAPACITY_MAX).next_power_of_two();
        Neighbours {
            slots: (0..capacity).map(|_| NeighbourSlot::default()).collect(),
            hasher: Hasher::new(secret),
            writer: AtomicU32::new(0),
            version: AtomicU64::new(0),
            sweep_due: AtomicU64::new(0),
            cursor: AtomicU64::new(0),
            announcements: AtomicU64::new(1),
            announced: AtomicU64::new(0),
            contended: AtomicU64::new(0),
        }
    }

    /// Places there are.
    pub fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// The neighbours, in no particular order; from any thread.
    pub fn entries(&self) -> impl Iterator<Item = Neighbour> {
        self.slots.iter().filter_map(|slot| {
            let entry = slot.read()?;
            Some(Neighbour {
                address: entry.address.into(),
                segment: entry.segment,
                mac: entry.mac,
                state: entry.state?,
                kept: entry.kept,
                confirmed: entry.confirmed,
            })
        })
    }

    /// Times a worker gave up on the lock.
    pub fn contended(&self) -> u64 {
        self.contended.load(Ordering::Relaxed)
    }

    /// Has our addresses announced again, by whichever worker comes first: from any thread, where another balancer has
    /// been relieved.
    pub fn announce(&self) {
        self.announcements.fetch_add(1, Ordering::Relaxed);
    }

    /// A port's link is back: who was asked for in vain meanwhile is asked for anew. From any thread. (What a worker holds
    /// the lock against stays as it is: its time ends soon anyway.)
    pub fn ask_anew(&self, now: Time, port: u16) {
        let in_vain = |entry: &NeighbourEntry| {
            let unanswered = matches!(entry.state, Some(NeighbourState::Incomplete | NeighbourState::Failed));
            unanswered && entry.segment.port() == port
        };
        for slot in self.slots.iter().filter(|slot| slot.read().is_none_or(|entry| in_vain(&entry))) {
            if let Some(writing) = self.lock(LOCK_TRIES)
                && in_vain(&slot.owned())
            {
                writing.begin_anew(now, slot);
            }
        }
    }

    /// Whether announcements are wanted; to one worker only.
    pub(super) fn takes_announcement(&self) -> bool {
        let (wanted, begun) = (self.announcements.load(Ordering::Relaxed), self.announced.load(Ordering::Relaxed));
        wanted != begun && self.announced.compare_exchange(begun, wanted, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Changes behind every change of an entry.
    #[inline(always)]
    pub(super) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    fn places(&self, address: &Address, segment: LinkSegment) -> AddressPlaces<'_> {
        let mut key = [0; 24];
        key[..16].copy_from_slice(&address.0);
        key[16..].copy_from_slice(&segment.packed().to_le_bytes());
        let hash = key.hash(&self.hasher).0;
        let mask = self.slots.len() / BUCKET_SIZE - 1;
        let (first, second) = (hash as usize & mask, (hash >> 32) as usize & mask);
        let bucket =
            |number: usize| self.slots.get(number * BUCKET_SIZE..(number + 1) * BUCKET_SIZE).unwrap_or_default();
        match first == second {
            false => AddressPlaces(bucket(first), bucket(second)),
            true if mask > 0 => AddressPlaces(bucket(first), bucket(first ^ 1)),
            true => AddressPlaces(bucket(first), &[]),
        }
    }

    /// The state of a neighbour.
    pub(super) fn find(&self, address: &Address, segment: LinkSegment) -> NeighbourFound {
        for slot in self.places(address, segment).iter() {
            let Some(entry) = slot.read() else { return NeighbourFound::Busy };
            if entry.is(address, segment) {
                return match entry.state {
                    Some(NeighbourState::Reachable) => {
                        NeighbourFound::At { mac: entry.mac, until: entry.confirmed + REACHABLE }
                    }
                    Some(NeighbourState::Stale) => NeighbourFound::At { mac: entry.mac, until: Time::ZERO },
                    Some(NeighbourState::Probe) => NeighbourFound::At { mac: entry.mac, until: FAR },
                    Some(NeighbourState::Incomplete) => NeighbourFound::Asked,
                    Some(NeighbourState::Failed) | None => NeighbourFound::Failed,
                };
            }
        }
        NeighbourFound::Unknown
    }

    fn lock(&self, tries: usize) -> Option<Writing<'_>> {
        for _ in 0..tries {
            if self.writer.compare_exchange_weak(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return Some(Writing(self));
            }
            core::hint::spin_loop();
        }
        self.contended.fetch_add(1, Ordering::Relaxed);
        None
    }

    /// A frame goes there: sees to it that it is known, or asked for.
    pub(super) fn need(&self, now: Time, address: &Address, segment: LinkSegment) -> NeedOutcome {
        let Some(writing) = self.lock(LOCK_TRIES) else { return NeedOutcome::Busy };
        writing.need(now, address, segment, false)
    }

    /// The next hops that are always to be known, and no others; sorted. New ones are asked for as time allows. `false`: it
    /// did not get the lock every time, and has to be called again.
    pub(super) fn keep(&self, now: Time, kept: &[(Address, u16)]) -> bool {
        let mut done = true;
        for slot in &self.slots {
            let is_kept = |entry: &NeighbourEntry| kept.binary_search(&(entry.address, entry.segment.port())).is_ok();
            let outdated = |entry: &NeighbourEntry| entry.state.is_some() && entry.kept && !is_kept(entry);
            if slot.read().is_some_and(|entry| !outdated(&entry)) {
                continue;
            }
            match self.lock(LOCK_TRIES) {
                Some(writing) if outdated(&slot.owned()) => {
                    writing.write(slot, &NeighbourEntry { kept: false, ..slot.owned() });
                }
                Some(_) => {}
                None => done = false,
            }
        }
        for (address, port) in kept {
            match self.lock(LOCK_TRIES) {
                Some(writing) => {
                    // what is new is due at once: the next sweep asks
                    writing.need(now, address, LinkSegment::untagged(*port), true);
                }
                None => done = false,
            }
        }
        done
    }

    /// Takes in what a host says. Returns whether that changed anything that a frame may wait for.
    pub(super) fn hear(&self, now: Time, claim: &Claim) -> bool {
        let known = self.places(&claim.address, claim.segment).iter().any(|slot| {
            // one that cannot be read is read under the lock
            slot.read().is_none_or(|entry| entry.is(&claim.address, claim.segment))
        });
        if !known && (!claim.learn || claim.mac.is_none()) {
            return false;
        }
        match self.lock(LOCK_TRIES) {
            Some(writing) => writing.hear(now, claim),
            None => false,
        }
    }

    /// When [`Neighbours::sweep`] has something to do.
    pub(super) fn sweep_due(&self) -> Time {
        Time::from_nanos(self.sweep_due.load(Ordering::Relaxed))
    }

    /// Looks for what is due at some places: states end, requests are repeated. Every worker may call it; one of them at a
    /// time does it.
    pub(super) fn sweep(&self, now: Time, asks: &mut Asks) {
        if now < self.sweep_due() {
            return;
        }
        // the worker that has the lock may well be doing this
        let locked = self.writer.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok();
        if locked {
            Writing(self).sweep(now, asks);
        }
    }
}

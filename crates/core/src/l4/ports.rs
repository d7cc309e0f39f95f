//! Source addresses and ports for full NAT.
//!
//! A worker only ever uses (address, port) pairs that [`Steering`] gives to itself, so that what a backend answers
//! arrives where the connection is. A pair may serve one connection per backend end and protocol at a time: a 5-tuple
//! is unique per remote end. Backends of several services that are the same end and protocol therefore share one
//! *queue*.
//!
//! Within a queue, pairs never used come first (from a random start), then the one released longest ago; one released
//! with `rest` is left alone for the pool's `time_wait`, because its last 5-tuple may be in TIME_WAIT at the backend
//! (RFC 9293, 3.6.1; RFC 6056 discusses the choice of ports).
//!
//! Everything is O(1) and nothing is allocated after construction. A queue takes 8 bytes per pair of its family, in
//! pages that are touched as pairs are used for the first time.

use crate::config::{Backend, Forwarding, Pool, Snapshot};
use crate::flow::{Address, Endpoint, Protocol, Steering};
use crate::time::{Duration, Time};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

#[cfg(test)]
mod tests;

/// Every pair that this worker may use with the backend is in use or resting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exhausted;

impl core::fmt::Display for Exhausted {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("no source port of the pool is free")
    }
}

impl core::error::Error for Exhausted {}

/// Times are kept as `ns >> TICK_SHIFT` (about a millisecond) in 32 bits, which wrap after 52 days: a pair that has
/// rested for 52 days may be taken to rest once more.
const TICK_SHIFT: u32 = 20;

/// Addresses of a pool at most; more are not used. Keeps pair numbers below 2^30.
pub const ADDRESSES_MAX: usize = 1 << 14;

const NONE: u32 = u32::MAX;

/// One worker's part of the pool.
pub struct PortPool {
    families: [FamilyPairs; 2],
    queues: Vec<PairQueue>,
    /// The queue of each backend end and protocol.
    ends: BTreeMap<(Endpoint, Protocol), u32>,
    /// The queue of each backend of the snapshot, or [`NONE`].
    queue_of: Box<[u32]>,
    /// The ticks a pair rests.
    rest: u32,
}

/// The pairs of one family that are this worker's.
struct FamilyPairs {
    /// Sorted.
    addresses: Vec<Address>,
    port_first: u16,
    ports: u32,
    /// Every pair of ours as `address index * ports + port - port_first`, ascending.
    codes: Box<[u32]>,
    /// The place of each code in `codes`; [`NONE`] for one that is another worker's.
    places: Box<[u32]>,
}

impl FamilyPairs {
    fn new(pool: &Pool, is_ipv4: bool, steering: &Steering, worker: u16) -> FamilyPairs {
        let mut addresses: Vec<Address> =
            pool.addresses.iter().copied().filter(|address| address.is_ipv4() == is_ipv4).collect();
        addresses.sort_unstable();
        addresses.dedup();
        addresses.truncate(ADDRESSES_MAX);
        let port_first = pool.port_first.max(1);
        let ports = (u32::from(pool.port_last) + 1).saturating_sub(u32::from(port_first));
        let mut family = FamilyPairs { addresses, port_first, ports, codes: Box::default(), places: Box::default() };
        let count = family.addresses.len() as u32 * ports;
        let codes: Vec<u32> = (0..count).filter(|&code| steering.worker(&family.end(code)) == worker).collect();
        let mut places = vec![NONE; count as usize];
        for (place, &code) in codes.iter().enumerate() {
            places[code as usize] = place as u32;
        }
        family.codes = codes.into();
        family.places = places.into();
        family
    }

    /// Whether places mean the same pairs in both.
    fn is_like(&self, other: &FamilyPairs) -> bool {
        self.addresses == other.addresses
            && (self.port_first, self.ports, self.codes.len()) == (other.port_first, other.ports, other.codes.len())
    }

    fn end(&self, code: u32) -> Endpoint {
        let address = self.addresses[(code / self.ports) as usize];
        Endpoint { address, port: self.port_first + (code % self.ports) as u16 }
    }

    /// The place of `end`, if it is one of our pairs.
    fn place(&self, end: &Endpoint) -> Option<u32> {
        let port = u32::from(end.port).checked_sub(u32::from(self.port_first)).filter(|&port| port < self.ports)?;
        let address = self.addresses.binary_search(&end.address).ok()? as u32;
        self.places.get((address * self.ports + port) as usize).copied().filter(|&place| place != NONE)
    }
}

/// The state of a pair in a queue; all zero: never used.
#[derive(Clone, Copy, PartialEq, Eq)]
struct QueuedPair(u64);

/// The two top bits of a [`QueuedPair`]'s upper half.
const IN_USE: u32 = 1 << 31;
const RELEASED: u32 = 1 << 30;

impl QueuedPair {
    const IN_USE: QueuedPair = QueuedPair((IN_USE as u64) << 32);

    /// Released at `tick`, nothing behind it in its line.
    fn released(tick: u32) -> QueuedPair {
        QueuedPair(u64::from(RELEASED | LAST) << 32 | u64::from(tick))
    }

    fn is_unused(self) -> bool {
        self.0 == 0
    }

    fn tick(self) -> u32 {
        self.0 as u32
    }

    fn next(self) -> Option<u32> {
        Some((self.0 >> 32) as u32 & LAST).filter(|&next| next != LAST)
    }

    fn with_next(self, next: u32) -> QueuedPair {
        QueuedPair(u64::from(RELEASED | next) << 32 | u64::from(self.tick()))
    }
}

/// The place behind the last pair in a line.
const LAST: u32 = RELEASED - 1;

/// A line of released pairs, in the order of their release.
#[derive(Clone, Copy, Default)]
struct ReleasedLine {
    /// First and last place.
    ends: Option<(u32, u32)>,
}

impl ReleasedLine {
    fn push(&mut self, pairs: &mut [u64], place: u32, tick: u32) {
        pairs[place as usize] = QueuedPair::released(tick).0;
        let first = match self.ends {
            Some((first, last)) => {
                let before = &mut pairs[last as usize];
                *before = QueuedPair(*before).with_next(place).0;
                first
            }
            None => place,
        };
        self.ends = Some((first, place));
    }

    fn first(&self, pairs: &[u64]) -> Option<(u32, u32)> {
        self.ends.map(|(first, _)| (first, QueuedPair(pairs[first as usize]).tick()))
    }

    fn pop(&mut self, pairs: &[u64]) {
        self.ends =
            self.ends.and_then(|(first, last)| QueuedPair(pairs[first as usize]).next().map(|next| (next, last)));
    }
}

/// The pairs as one backend end sees them.
struct PairQueue {
    family: usize,
    /// A [`QueuedPair`] for each of the family's pairs, as plain numbers so that they come as untouched zero pages.
    pairs: Vec<u64>,
    /// The start of the round of unused pairs.
    start: u32,
    /// Pairs of that round that have been looked at.
    looked_at: u32,
    /// Released, free to be used again.
    free: ReleasedLine,
    /// Released, to rest first.
    resting: ReleasedLine,
    in_use: u32,
}

impl PairQueue {
    /// The next pair that was never used. Pairs marked in use are passed over, each once in the queue's life.
    fn take_unused(&mut self) -> Option<u32> {
        let count = self.pairs.len() as u32;
        while self.looked_at < count {
            let place = (u64::from(self.start) + u64::from(self.looked_at)) % u64::from(count);
            self.looked_at += 1;
            if QueuedPair(self.pairs[place as usize]).is_unused() {
                return Some(place as u32);
            }
        }
        None
    }

    /// The pair released longest ago that need not rest (any more).
    fn take_released(&mut self, tick: u32, rest: u32) -> Option<u32> {
        let free = self.free.first(&self.pairs);
        let rested = self.resting.first(&self.pairs).filter(|&(_, since)| tick.wrapping_sub(since) > rest);
        let age = |(_, since): (u32, u32)| tick.wrapping_sub(since);
        let (line, place) = match (free, rested) {
            (Some(a), Some(b)) if age(a) < age(b) => (&mut self.resting, b.0),
            (Some(a), _) => (&mut self.free, a.0),
            (None, Some(b)) => (&mut self.resting, b.0),
            (None, None) => return None,
        };
        line.pop(&self.pairs);
        Some(place)
    }
}

impl PortPool {
    /// The part of `pool` that is worker `worker`'s, for the backends (end and protocol, by their numbers in the
    /// snapshot).
    pub fn new(pool: &Pool, steering: &Steering, worker: u16, backends: &[(Endpoint, Protocol)]) -> PortPool {
        let numbered = (0..).zip(backends.iter().copied());
        PortPool::build(pool, steering, (worker, 0), backends.len(), numbered)
    }

    /// The part of the snapshot's pool that is worker `worker`'s, for all backends of its services that use full NAT.
    /// `seed`, another one for each process, says with the steering secret where to begin: what is at rest is not known
    /// to the next process, which had better not begin with the same pairs.
    pub fn for_snapshot(snapshot: &Snapshot, steering: &Steering, worker: u16, seed: u64) -> PortPool {
        let services = snapshot.services.iter().filter(|service| service.forwarding == Forwarding::FullNat);
        let backends = services.flat_map(|service| {
            let numbered = |backend: &Backend| (usize::from(backend.number), (backend.endpoint, service.protocol));
            service.backends.iter().map(numbered)
        });
        PortPool::build(&snapshot.pool, steering, (worker, seed), snapshot.backends() as usize, backends)
    }

    fn build(
        pool: &Pool,
        steering: &Steering,
        (worker, seed): (u16, u64),
        count: usize,
        backends: impl Iterator<Item = (usize, (Endpoint, Protocol))>,
    ) -> PortPool {
        let families = [false, true].map(|is_ipv4| FamilyPairs::new(pool, is_ipv4, steering, worker));
        let mut queues: Vec<PairQueue> = Vec::new();
        let mut ends = BTreeMap::new();
        let mut queue_of = vec![NONE; count];
        for (number, (end, protocol)) in backends {
            queue_of[number] = *ends.entry((end, protocol)).or_insert_with(|| {
                let family = usize::from(end.address.is_ipv4());
                let count = families[family].codes.len();
                // The steering secret makes the start one that outsiders cannot know.
                let draw = seed ^ steering.hash(&end).rotate_left(u32::from(protocol as u8) + u32::from(worker));
                let start = ((u128::from(draw) * count as u128) >> 64) as u32;
                queues.push(PairQueue::new(family, count, start));
                queues.len() as u32 - 1
            });
        }
        PortPool { queue_of: queue_of.into(), families, queues, ends, rest: rest_ticks(pool.time_wait) }
    }

    /// Goes on where `before` is, the same worker's part under another snapshot, if addresses and ports are the same:
    /// whatever backend ends both have, their pairs stay in use and rest as they do, and `before` is left with what is of
    /// no use any more. Otherwise says `false` and does nothing; pairs in use must then be told with [`PortPool::mark`], and
    /// those that rest are forgotten.
    ///
    /// Allocates nothing; takes time in proportion to the backends.
    pub fn follow(&mut self, before: &mut PortPool) -> bool {
        if self.families.iter().zip(&before.families).any(|(family, old)| !family.is_like(old)) {
            return false;
        }
        for (end, &queue) in &self.ends {
            if let Some(&old) = before.ends.get(end) {
                core::mem::swap(&mut self.queues[queue as usize], &mut before.queues[old as usize]);
            }
        }
        true
    }

    /// A source for a new connection to `backend` (its number).
    ///
    /// # Errors
    /// [`Exhausted`] if none is left, or the backend is not one of those the pool was made for.
    pub fn take(&mut self, now: Time, backend: u32) -> Result<Endpoint, Exhausted> {
        let queue = queue_at(&self.queue_of, &mut self.queues, backend).ok_or(Exhausted)?;
        let place = queue.take_unused().or_else(|| queue.take_released(tick_at(now), self.rest)).ok_or(Exhausted)?;
        queue.pairs[place as usize] = QueuedPair::IN_USE.0;
        queue.in_use += 1;
        let family = &self.families[queue.family];
        Ok(family.end(family.codes[place as usize]))
    }

    /// Gives the source `end` of a connection to `backend` back; it rests first if `rest`. Returns whether it was in
    /// use (and does nothing if it was not).
    pub fn release(&mut self, now: Time, backend: u32, end: Endpoint, rest: bool) -> bool {
        let Some(queue) = queue_at(&self.queue_of, &mut self.queues, backend) else { return false };
        let Some(place) = self.families[queue.family].place(&end) else { return false };
        if QueuedPair(queue.pairs[place as usize]) != QueuedPair::IN_USE {
            return false;
        }
        let line = if rest { &mut queue.resting } else { &mut queue.free };
        line.push(&mut queue.pairs, place, tick_at(now));
        queue.in_use -= 1;
        true
    }

    /// Says that a connection to `backend` uses the source `end` already: for connections that are older than this pool
    /// (adopted, or from before a reload), before the pool is first used. Returns whether that is so now: `false` if it
    /// is not a pair of this worker, or was in use or released before.
    pub fn mark(&mut self, backend: u32, end: Endpoint) -> bool {
        let Some(queue) = queue_at(&self.queue_of, &mut self.queues, backend) else { return false };
        let Some(place) = self.families[queue.family].place(&end) else { return false };
        let pair = &mut queue.pairs[place as usize];
        if !QueuedPair(*pair).is_unused() {
            return false;
        }
        *pair = QueuedPair::IN_USE.0;
        queue.in_use += 1;
        true
    }

    /// Whether `end` is one of this worker's pairs.
    pub fn owns(&self, end: &Endpoint) -> bool {
        self.families[usize::from(end.address.is_ipv4())].place(end).is_some()
    }

    /// Pairs in use with `backend` and all that share its end.
    pub fn in_use(&self, backend: u32) -> u32 {
        self.queue(backend).map_or(0, |queue| queue.in_use)
    }

    /// Pairs this worker may use with `backend`.
    pub fn capacity(&self, backend: u32) -> u32 {
        self.queue(backend).map_or(0, |queue| queue.pairs.len() as u32)
    }

    fn queue(&self, backend: u32) -> Option<&PairQueue> {
        self.queues.get(*self.queue_of.get(backend as usize)? as usize)
    }
}

impl PairQueue {
    fn new(family: usize, count: usize, start: u32) -> PairQueue {
        PairQueue {
            family,
            pairs: vec![0; count],
            start,
            looked_at: 0,
            free: ReleasedLine::default(),
            resting: ReleasedLine::default(),
            in_use: 0,
        }
    }
}

fn queue_at<'a>(queue_of: &[u32], queues: &'a mut [PairQueue], backend: u32) -> Option<&'a mut PairQueue> {
    queues.get_mut(*queue_of.get(backend as usize)? as usize)
}

fn tick_at(now: Time) -> u32 {
    (now.as_nanos() >> TICK_SHIFT) as u32
}

/// At least `time_wait`, also when release and use fall on the edges of their ticks: a pair has rested when more ticks
/// than these have begun.
fn rest_ticks(time_wait: Duration) -> u32 {
    let ticks = time_wait.as_nanos().div_ceil(1 << TICK_SHIFT);
    u32::try_from(ticks).unwrap_or(u32::MAX / 2).min(u32::MAX / 2)
}

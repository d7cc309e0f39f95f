//! Maglev hashing with weights (Eisenbud et al., "Maglev: a fast and reliable software network load balancer", NSDI
//! 2016, section 3.4).
//!
//! Every backend has a permutation of the table's entries, made from a hash of its endpoint; in turn each takes the
//! next entry of its permutation that is still free, until none is. Weights follow Katran (`MaglevHashV2.cpp`): in
//! each round a backend gains its weight and takes a turn when that reaches the highest weight. A backend that comes
//! or goes changes few entries beside its own.
//!
//! Hashes here have no secret: every worker and every balancer in front of the same backends has to give the same
//! answer. So a client can choose its backend; it cannot do more with that than by opening many connections.
//!
//! A backend that is not available keeps its entries; flows that meet it go on, each along its own sequence of entries,
//! until they meet one that is. So only its flows move, they spread over all the others, and nothing is rebuilt on the
//! packet path.

use super::random::mix;
use super::weights::{Weight, open_from};
use crate::config::{BackendState, Service, ServiceState, Snapshot, UnknownPacket};
use crate::flow::{Address, Endpoint, FlowKey};
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

/// Entries of the table: a prime. With up to 655 backends of equal weight no share is off by more than 1 percent (the
/// paper's rule: 100 entries per backend).
pub const TABLE_SIZE: usize = 65_537;

/// Entries tried before the search for an available backend goes through all of them in order.
const ATTEMPTS: u64 = 16;

const OFFSET: u64 = 0x6f66_6673_6574_3a31;
const SKIP: u64 = 0x736b_6970_3a76_3031;
const FLOW: u64 = 0x666c_6f77_3a76_3031;
const SOURCE: u64 = 0x736f_7572_6365_3a31;
const BYTES: u64 = 0x6279_7465_733a_7631;

/// A table; clones share it.
#[derive(Clone)]
pub(crate) struct MaglevTable {
    entries: Arc<[u16]>,
    /// The backends it was made from.
    open: Arc<[OpenBackend]>,
}

/// A backend that has entries: its end, its index in the service, its weight.
type OpenBackend = (Endpoint, u16, u16);

/// The tables of a snapshot's services, made once for all workers. Clones share them.
#[derive(Clone, Default)]
pub struct Tables {
    by_service: Vec<Option<MaglevTable>>,
}

impl Tables {
    /// Those that the services of `snapshot` need, each of which takes some milliseconds to make. One that `before` has
    /// for a service of the same number whose backends have not changed is taken from there.
    pub fn new(snapshot: &Snapshot, before: &Tables) -> Tables {
        let table = |(number, service): (usize, &Service)| {
            let held = before.by_service.get(number).and_then(Option::as_ref);
            match held.filter(|held| needs(service) && *held.open == *open(service)) {
                Some(held) => Some(held.clone()),
                None => MaglevTable::of(service),
            }
        };
        Tables { by_service: snapshot.services.iter().enumerate().map(table).collect() }
    }

    pub(super) fn of(&self, service: u16) -> Option<MaglevTable> {
        self.by_service.get(usize::from(service)).cloned().flatten()
    }
}

/// Whether a service's backends are chosen by a table, be it only for picking up.
fn needs(service: &Service) -> bool {
    let hashed = service.algorithm.is_hash();
    service.state == ServiceState::Active && (hashed || service.unknown == UnknownPacket::PickUp)
}

/// The enabled backends with weights above 0, at most 65535, in an order that the configuration's does not matter to.
fn open(service: &Service) -> Vec<OpenBackend> {
    let mut open: Vec<OpenBackend> = (0..u16::MAX)
        .zip(&service.backends)
        .filter(|(_, backend)| backend.state == BackendState::Enabled && backend.weight > 0)
        .map(|(index, backend)| (backend.endpoint, index, backend.weight))
        .collect();
    open.sort_unstable();
    open
}

/// A backend on its way through its permutation.
struct Permutation {
    index: u16,
    weight: u32,
    gained: u32,
    position: usize,
    skip: usize,
}

impl MaglevTable {
    /// The table of a service that needs one; `None` if it does not, or has no enabled backend with a weight above 0.
    pub(super) fn of(service: &Service) -> Option<MaglevTable> {
        if needs(service) { MaglevTable::new(open(service)) } else { None }
    }

    /// The table of backends with these ends and weights, named by their place in `backends`: up to 65535 of them, the
    /// rest has no entries. `None` if none has a weight above 0.
    pub(crate) fn of_backends(backends: &[(Endpoint, u16)]) -> Option<MaglevTable> {
        let named = (0..u16::MAX).zip(backends);
        let mut open: Vec<OpenBackend> = named.map(|(index, &(end, weight))| (end, index, weight)).collect();
        open.retain(|&(_, _, weight)| weight > 0);
        open.sort_unstable();
        MaglevTable::new(open)
    }

    /// The backend at the entry of a flow of this hash, available or not.
    #[inline]
    pub(crate) fn at(&self, hash: u64) -> u16 {
        self.entries[scale(hash, TABLE_SIZE)]
    }

    /// Bytes of the table.
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.entries)
    }

    fn new(open: Vec<OpenBackend>) -> Option<MaglevTable> {
        let highest = open.iter().map(|&(_, _, weight)| u32::from(weight)).max()?;
        let mut candidates: Vec<Permutation> = open.iter().map(Permutation::new).collect();

        const FREE: u16 = u16::MAX;
        let mut entries = vec![FREE; TABLE_SIZE];
        let mut left = TABLE_SIZE;
        while left > 0 {
            for candidate in &mut candidates {
                candidate.gained += candidate.weight;
                if candidate.gained < highest {
                    continue;
                }
                candidate.gained -= highest;
                while entries[candidate.position] != FREE {
                    candidate.step();
                }
                entries[candidate.position] = candidate.index;
                candidate.step();
                left -= 1;
                if left == 0 {
                    break;
                }
            }
        }
        Some(MaglevTable { entries: entries.into(), open: open.into() })
    }

    /// Whether the two are one table in memory.
    #[cfg(test)]
    pub(super) fn shares_with(&self, other: &MaglevTable) -> bool {
        Arc::ptr_eq(&self.entries, &other.entries)
    }

    /// The backend of each entry.
    pub(super) fn entries(&self) -> &[u16] {
        &self.entries
    }

    /// The backend for a flow of this hash, of those with a weight above 0.
    #[inline(always)]
    pub(super) fn choose(&self, weights: &[Weight], hash: u64) -> Option<u16> {
        let index = self.at(hash);
        if is_open(weights, index) { Some(index) } else { self.next_available(weights, hash) }
    }

    /// [`MaglevTable::choose`], where the first backend that it meets is not available.
    #[cold]
    #[inline(never)]
    fn next_available(&self, weights: &[Weight], hash: u64) -> Option<u16> {
        let mut point = mix(hash, 0);
        for attempt in 1..ATTEMPTS {
            let index = self.at(point);
            if is_open(weights, index) {
                return Some(index);
            }
            point = mix(hash, attempt);
        }
        let start = scale(point, weights.len());
        open_from(weights, start).next().map(|(index, _)| index as u16)
    }
}

#[inline(always)]
fn is_open(weights: &[Weight], index: u16) -> bool {
    weights.get(usize::from(index)).is_some_and(|&weight| weight > 0)
}

impl Permutation {
    fn new(&(endpoint, index, weight): &OpenBackend) -> Permutation {
        let position = scale(end_hash(OFFSET, &endpoint), TABLE_SIZE);
        let skip = scale(end_hash(SKIP, &endpoint), TABLE_SIZE - 1) + 1;
        Permutation { index, weight: u32::from(weight), gained: 0, position, skip }
    }

    fn step(&mut self) {
        self.position += self.skip;
        if self.position >= TABLE_SIZE {
            self.position -= TABLE_SIZE;
        }
    }
}

/// A point below `limit`, by the upper bits of `hash`.
#[inline]
fn scale(hash: u64, limit: usize) -> usize {
    ((u128::from(hash) * limit as u128) >> 64) as usize
}

#[inline]
fn address_hash(seed: u64, address: &Address) -> u64 {
    let word = u128::from_be_bytes(address.0);
    mix(mix(seed, (word >> 64) as u64), word as u64)
}

#[inline]
fn end_hash(seed: u64, end: &Endpoint) -> u64 {
    mix(address_hash(seed, &end.address), u64::from(end.port))
}

/// The hash of a client-side flow by which Maglev's table is read. The same on every machine, with no secret. Two
/// addresses of IPv4 are one word, ports and protocol another.
#[inline]
pub fn flow_hash(flow: &FlowKey) -> u64 {
    match flow.ipv4_words() {
        Some(words) => flow_hash_ipv4(words),
        None => mix(end_hash(end_hash(FLOW, &flow.source), &flow.destination), flow.protocol as u64),
    }
}

/// [`flow_hash`] of a flow of IPv4, given in words ([`FlowKey::ipv4_words`]).
#[inline(always)]
pub(crate) fn flow_hash_ipv4([addresses, rest]: [u64; 2]) -> u64 {
    mix(mix(FLOW, addresses.swap_bytes()), rest)
}

/// The hash of a client's address, for source hashing. The same on every machine, with no secret.
pub fn source_hash(source: &Address) -> u64 {
    address_hash(SOURCE, source)
}

/// The hash of a part of a request: a field's value, a cookie's, a path. The same on every machine, with no secret.
pub fn bytes_hash(bytes: &[u8]) -> u64 {
    // Words of which the last is filled up with zeros: the length tells them apart.
    let word = |chunk: &[u8]| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    };
    bytes.chunks(8).fold(mix(BYTES, bytes.len() as u64), |hash, chunk| mix(hash, word(chunk)))
}

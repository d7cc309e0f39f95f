//! Connection tables: an index from flow keys to positions, the slab that holds the connections, the timer wheel.
//!
//! A table *indexes*, it does not own: connections live in a [`slab::Slab`] at a [`Position`], and a [`Table`] leads
//! from the keyed hash of a flow to a `u32` value, which the caller confirms by comparing keys. So a table can be
//! rebuilt from the slab at any time, and tables can be exchanged for each other.
//!
//! This is the only room of `core` with `unsafe` and atomics. It knows nothing of packets or policy.
#![allow(unsafe_code)]

pub mod entry;
pub mod slab;
pub mod two_choice;
pub mod wheel;
mod zeroed;

#[cfg(test)]
mod tests;

use crate::flow::{Address, Endpoint, FlowKey};
use ahash::RandomState;
use core::hash::{BuildHasher, Hasher as _};

/// Where a connection stands in the slab: 0 to its capacity, exclusive.
pub type Position = u32;

/// The keyed hash of a flow. Tables accept any value, also one chosen by an enemy: that costs room, never correctness.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hash(pub u64);

/// Hashes flow keys under a secret, so that nobody outside can choose which flows collide.
#[derive(Clone, Debug)]
pub struct Hasher {
    state: RandomState,
}

impl Hasher {
    /// A hasher under `secret`, which has to be random and stays on this machine.
    pub fn new(secret: [u64; 4]) -> Hasher {
        let [k0, k1, k2, k3] = secret;
        Hasher { state: RandomState::with_seeds(k0, k1, k2, k3) }
    }

    /// The hash of `key`: of its two addresses and one word with ports and protocol, never of padding.
    #[inline]
    pub fn hash(&self, key: &FlowKey) -> Hash {
        let FlowKey { source, destination, protocol } = key;
        let word = u64::from(source.port) | u64::from(destination.port) << 16 | (*protocol as u64) << 32;
        let mut hasher = self.state.build_hasher();
        hasher.write_u128(address_word(&source.address));
        hasher.write_u128(address_word(&destination.address));
        hasher.write_u64(word);
        Hash(hasher.finish())
    }

    /// The hash of one end, for tables that are not keyed by flows.
    #[inline]
    pub fn hash_end(&self, end: &Endpoint) -> Hash {
        let mut hasher = self.state.build_hasher();
        hasher.write_u128(address_word(&end.address));
        hasher.write_u64(u64::from(end.port));
        Hash(hasher.finish())
    }
}

fn address_word(address: &Address) -> u128 {
    u128::from_le_bytes(address.0)
}

/// There was no room for an entry; nothing changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

impl core::fmt::Display for Full {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("no room in the connection table")
    }
}

impl core::error::Error for Full {}

/// An index from keyed hashes to `u32` values (of a worker: position times two, plus direction).
///
/// Several entries may have the same hash; which one is meant, the caller's `is` decides. An entry is one (hash, value)
/// pair; inserting the same pair twice makes two entries, so look first.
pub trait Table {
    /// Entries the table is made for; so many fit, for all practical purposes always (each table says with what
    /// certainty).
    fn capacity(&self) -> usize;

    /// Entries now; may pass [`Table::capacity`].
    fn len(&self) -> usize;

    /// Whether there is no entry.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Starts to bring into the cache what [`Table::find`] will look at.
    fn prefetch(&self, hash: Hash);

    /// The first value under `hash` for which `is` says yes. `is` is also asked about a few values of other hashes
    /// (whose tags agree), so it has to compare keys.
    fn find(&self, hash: Hash, is: impl FnMut(u32) -> bool) -> Option<u32>;

    /// [`Table::find`] for a burst, in passes, so that cache misses overlap: `out[i]` becomes what is found for
    /// `hashes[i]`, and `is` is asked as `is(i, value)`. Handles as many as the shorter of the two slices has.
    fn find_burst(&self, hashes: &[Hash], is: impl FnMut(usize, u32) -> bool, out: &mut [Option<u32>]);

    /// The first value, not confirmed, that [`Table::find_burst`] would ask about for each hash, after prefetching:
    /// with these the caller can prefetch its own entries before it calls `find_burst`.
    fn candidates(&self, hashes: &[Hash], out: &mut [Option<u32>]);

    /// Adds an entry.
    ///
    /// # Errors
    /// [`Full`] when both places `hash` allows are taken; nothing changed.
    fn insert(&mut self, hash: Hash, value: u32) -> Result<(), Full>;

    /// Takes one entry of this hash and value away; whether there was one.
    fn remove(&mut self, hash: Hash, value: u32) -> bool;
}

/// Starts to bring the cache line of `target` into the cache; nothing on processors other than x86-64.
#[inline(always)]
pub(crate) fn prefetch_line<T>(target: &T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: prefetching never faults and reads nothing into the program; SSE is part of x86-64.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(core::ptr::from_ref(target).cast()) }
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    {
        let _ = target;
    }
}

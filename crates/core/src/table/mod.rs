//! Connection tables: indexes from flow keys to positions, the slab that holds the connections, ageing.
//!
//! A table *indexes*, it does not own: connections live in a [`slab::Slab`] at a [`Position`], and a [`Table`] leads
//! from a key to a `u32` value (of a worker: position times two, plus direction). Tables do not store keys; they ask the
//! [`Entries`] whether a value is the one meant. So a table can be rebuilt from the slab at any time, and tables can be
//! exchanged for each other. Other tables to compare these with are in the laboratory (`lab/tables`).
//!
//! A table has one owner ([`Table`], `&mut self` to change it: *per core*) or many ([`SharedIndex`], `&self`). An
//! [`Arc`] of a shared one is a table like any other, so whatever takes a [`Table`] takes both.
//!
//! # Example
//! An index over connections that lie in a `Vec`. A worker does the same with a slab, and with two keys for each
//! connection: one for each direction.
//!
//! ```
//! use hairpin_core::flow::{Endpoint, FlowKey, Protocol};
//! use hairpin_core::table::{AnyTable, Entries, Hasher, Lookup, Table};
//! use std::net::IpAddr;
//!
//! /// The entries behind the values of the table: value 1 is the connection at position 1.
//! struct Connections(Vec<FlowKey>);
//!
//! impl Entries<FlowKey> for Connections {
//!     fn is(&self, value: u32, key: &FlowKey) -> bool {
//!         self.0.get(value as usize) == Some(key)
//!     }
//! }
//!
//! let key = |port| FlowKey {
//!     source: Endpoint::new(IpAddr::from([198, 51, 100, 7]), port),
//!     destination: Endpoint::new(IpAddr::from([192, 0, 2, 1]), 80),
//!     protocol: Protocol::Tcp,
//! };
//! let connections = Connections(vec![key(40_000), key(40_001)]);
//!
//! // Room for 1,000 entries. In production the secret is random, so that no client can choose keys that collide.
//! let mut table = AnyTable::new(1000, Hasher::new([1, 2, 3, 4]));
//! table.insert(&key(40_000), 0)?;
//! table.insert(&key(40_001), 1)?;
//! assert_eq!(table.find(&key(40_001), &connections), Some(1));
//! assert_eq!(table.find(&key(40_002), &connections), None);
//!
//! // A burst is looked up in passes, so that cache misses overlap.
//! let mut found = [None; 2];
//! table.find_burst(&[key(40_001), key(40_000)], &connections, &mut found);
//! assert_eq!(found, [Some(1), Some(0)]);
//!
//! // An entry is one pair of key and value: both are needed to remove it.
//! assert!(table.remove(&key(40_000), 0));
//! assert_eq!(table.find(&key(40_000), &connections), None);
//! assert_eq!(Table::<FlowKey>::len(&table), 1);
//! # Ok::<(), hairpin_core::table::Full>(())
//! ```
//!
//! This is the only room of `core` with `unsafe` and atomics. It knows nothing of packets or policy.
#![allow(unsafe_code)]

pub mod ageing;
mod any;
pub mod concurrent;
pub mod cuckoo;
pub mod entry;
pub mod fetch;
mod key;
mod method;
pub mod numbered;
pub mod region;
pub mod sharded;
pub mod slab;
pub mod stateless;
#[cfg(all(test, target_os = "linux", target_arch = "x86_64", not(miri)))]
pub(crate) mod stepped;
pub(crate) mod sync;
pub mod zeroed;

pub use any::AnyTable;
pub use key::{Hash, Hasher, Key};
pub use method::{LookupMethod, UnknownMethod};

use alloc::sync::Arc;

/// The position of a connection in the slab: 0 to its capacity, exclusive.
pub type Position = u32;

/// Keys that tables handle in one pass of a burst; longer bursts are handled in pieces of so many.
pub const BURST: usize = 32;

/// There was no room for an entry; nothing changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

impl core::fmt::Display for Full {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("no room in the connection table")
    }
}

impl core::error::Error for Full {}

/// The entries that a table's values lead to.
pub trait Entries<K> {
    /// Whether the entry that `value` names is there and has this key. A table may ask about any value that was ever
    /// inserted, and asks about a few of other keys (whose tags agree).
    fn is(&self, value: u32, key: &K) -> bool;

    /// Starts to bring into the cache what [`Entries::is`] will read.
    fn prefetch(&self, _value: u32) {}
}

/// The reading half of a table.
pub trait Lookup<K> {
    /// The value under `key`.
    fn find<E: Entries<K>>(&self, key: &K, entries: &E) -> Option<u32>;

    /// [`Lookup::find`] for a burst, in passes (hash and prefetch; compare tags and prefetch entries; confirm), so that
    /// cache misses overlap: `out[i]` becomes what is found for `keys[i]`. Handles as many as the shorter of the two
    /// slices has.
    fn find_burst<E: Entries<K>>(&self, keys: &[K], entries: &E, out: &mut [Option<u32>]) {
        for (key, found) in keys.iter().zip(out) {
            *found = self.find(key, entries);
        }
    }

    /// [`Lookup::find_burst`] without its last pass, if the table can do without: nothing is found for a key that is not
    /// there, or something that [`Entries::is`] does not confirm, and then [`Lookup::find`] knows. For a caller that
    /// confirms what there is for one key while the entries of those behind it are still on their way into the cache.
    fn guess_burst<E: Entries<K>>(&self, keys: &[K], entries: &E, out: &mut [Option<u32>]) {
        self.find_burst(keys, entries, out);
    }
}

/// An index from keys to `u32` values, with one owner.
///
/// A key stands in it once: a caller that inserts searches first. An entry is one (key, value) pair.
pub trait Table<K>: Lookup<K> {
    /// The method's name, as configuration and reports call it.
    fn name(&self) -> &'static str;

    /// Entries the table is made for; so many fit, for all practical purposes always (each table says with what
    /// certainty).
    fn capacity(&self) -> usize;

    /// Entries now; may pass [`Table::capacity`].
    fn len(&self) -> usize;

    /// Whether there is no entry.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes the table takes; all are allocated when it is made.
    fn bytes(&self) -> usize;

    /// Adds an entry.
    ///
    /// # Errors
    /// [`Full`] when no room can be made for it; nothing changed.
    fn insert(&mut self, key: &K, value: u32) -> Result<(), Full>;

    /// Adds entries in order until one finds no room; how many were added.
    fn insert_burst(&mut self, keys: &[K], values: &[u32]) -> usize {
        let pairs = keys.iter().zip(values);
        pairs.take_while(|(key, value)| self.insert(key, **value).is_ok()).count()
    }

    /// Takes the entry of this key and value away; whether there was one.
    fn remove(&mut self, key: &K, value: u32) -> bool;

    /// Takes entries away; how many of them there were.
    fn remove_burst(&mut self, keys: &[K], values: &[u32]) -> usize {
        keys.iter().zip(values).filter(|(key, value)| self.remove(key, **value)).count()
    }

    /// Makes `new` the value of the entry of this key and value; whether there was one.
    fn replace(&mut self, key: &K, old: u32, new: u32) -> bool;

    /// Gives entries other values, `new[i]` instead of `old[i]`; how many of them there were.
    fn replace_burst(&mut self, keys: &[K], old: &[u32], new: &[u32]) -> usize {
        keys.iter().zip(old).zip(new).filter(|((key, old), new)| self.replace(key, **old, **new)).count()
    }

    /// One bounded step of a walk over all values, from `from` (0: the beginning) on; where to go on, `None` at the
    /// end. An entry that is there during the whole walk and is not moved is met exactly once; an insertion between two
    /// steps may move others, which are then met once, twice or not at all. (Who must meet each walks over the slab.)
    fn scan(&self, from: u32, visit: &mut dyn FnMut(u32)) -> Option<u32>;
}

/// An index that any number of threads may read and change at the same time.
///
/// The entries behind the values are shared as well: see the implementations for who may reuse an entry when.
pub trait SharedIndex<K>: Lookup<K> + Send + Sync {
    /// [`Table::name`].
    fn name(&self) -> &'static str;
    /// [`Table::capacity`].
    fn capacity(&self) -> usize;
    /// [`Table::len`], which may be out of date at once.
    fn len(&self) -> usize;
    /// [`Table::is_empty`], which may be out of date at once.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// [`Table::bytes`].
    fn bytes(&self) -> usize;
    /// [`Table::insert`]. Two threads that insert the same key at the same time make two entries.
    ///
    /// # Errors
    /// [`Full`] when no room can be made for it; nothing changed.
    fn insert(&self, key: &K, value: u32) -> Result<(), Full>;
    /// [`Table::insert_burst`].
    fn insert_burst(&self, keys: &[K], values: &[u32]) -> usize {
        let pairs = keys.iter().zip(values);
        pairs.take_while(|(key, value)| self.insert(key, **value).is_ok()).count()
    }
    /// [`Table::remove`].
    fn remove(&self, key: &K, value: u32) -> bool;
    /// [`Table::remove_burst`].
    fn remove_burst(&self, keys: &[K], values: &[u32]) -> usize {
        keys.iter().zip(values).filter(|(key, value)| self.remove(key, **value)).count()
    }
    /// [`Table::replace`].
    fn replace(&self, key: &K, old: u32, new: u32) -> bool;
    /// [`Table::replace_burst`].
    fn replace_burst(&self, keys: &[K], old: &[u32], new: &[u32]) -> usize {
        keys.iter().zip(old).zip(new).filter(|((key, old), new)| self.replace(key, **old, **new)).count()
    }
    /// [`Table::scan`].
    fn scan(&self, from: u32, visit: &mut dyn FnMut(u32)) -> Option<u32>;
}

impl<K, T: Lookup<K>> Lookup<K> for Arc<T> {
    #[inline]
    fn find<E: Entries<K>>(&self, key: &K, entries: &E) -> Option<u32> {
        (**self).find(key, entries)
    }

    #[inline]
    fn find_burst<E: Entries<K>>(&self, keys: &[K], entries: &E, out: &mut [Option<u32>]) {
        (**self).find_burst(keys, entries, out)
    }

    #[inline]
    fn guess_burst<E: Entries<K>>(&self, keys: &[K], entries: &E, out: &mut [Option<u32>]) {
        (**self).guess_burst(keys, entries, out)
    }
}

impl<K, T: SharedIndex<K>> Table<K> for Arc<T> {
    fn name(&self) -> &'static str {
        (**self).name()
    }

    fn capacity(&self) -> usize {
        (**self).capacity()
    }

    fn len(&self) -> usize {
        (**self).len()
    }

    fn bytes(&self) -> usize {
        (**self).bytes()
    }

    fn insert(&mut self, key: &K, value: u32) -> Result<(), Full> {
        (**self).insert(key, value)
    }

    fn insert_burst(&mut self, keys: &[K], values: &[u32]) -> usize {
        (**self).insert_burst(keys, values)
    }

    fn remove(&mut self, key: &K, value: u32) -> bool {
        (**self).remove(key, value)
    }

    fn remove_burst(&mut self, keys: &[K], values: &[u32]) -> usize {
        (**self).remove_burst(keys, values)
    }

    fn replace(&mut self, key: &K, old: u32, new: u32) -> bool {
        (**self).replace(key, old, new)
    }

    fn replace_burst(&mut self, keys: &[K], old: &[u32], new: &[u32]) -> usize {
        (**self).replace_burst(keys, old, new)
    }

    fn scan(&self, from: u32, visit: &mut dyn FnMut(u32)) -> Option<u32> {
        (**self).scan(from, visit)
    }
}

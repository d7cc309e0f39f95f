//! Methods that track no connections: a packet's 5-tuple alone says which backend it goes to.
//!
//! There is nothing to insert, to age or to fill. But connections in progress move to other backends whenever the set
//! of backends changes: about half of them with [`Stateless`], hardly any beside those of the backend concerned with
//! [`Maglev`]. The value found is the number of a backend, and every key has one.

use super::{Entries, Full, Hash, Hasher, Key, Lookup, LookupMethod, Table};
use crate::balance::maglev;
use crate::flow::Endpoint;

/// `stateless` (KTH 2020, section 2.1.1): the keyed hash of the 5-tuple, scaled to the number of backends.
///
/// Backend `i` of `n` has the hashes from `i / n` to `(i + 1) / n` of all there are; the bounds shift with `n`. So when
/// a backend comes or goes at the end of the list, half of all flows move whatever their number (by the remainder of a
/// division it would be all but one in `n`).
#[derive(Clone, Debug)]
pub struct Stateless {
    hasher: Hasher,
    backends: u32,
}

impl Stateless {
    /// Over `backends` backends, numbered from 0; with none, nothing is found.
    pub fn new(backends: u32, hasher: Hasher) -> Stateless {
        Stateless { hasher, backends }
    }

    /// The number of the backend, of `backends`, that a key of this hash has; 0, which is none, if there are none.
    #[inline]
    pub fn place(hash: Hash, backends: u32) -> u32 {
        (((hash.0 >> 32) * u64::from(backends)) >> 32) as u32
    }

    /// How many backends there are.
    pub fn backends(&self) -> u32 {
        self.backends
    }
}

impl<K: Key> Lookup<K> for Stateless {
    #[inline]
    fn find<E: Entries<K>>(&self, key: &K, _: &E) -> Option<u32> {
        (self.backends > 0).then(|| Stateless::place(key.hash(&self.hasher), self.backends))
    }
}

/// `maglev`: the keyed hash of the 5-tuple, read off a Maglev table (Eisenbud et al., NSDI 2016, section 3.4).
///
/// Weights are respected. Balancers that are to agree need the same secret; where there is none to share, a
/// [`Balancer`](crate::balance::Balancer) answers by [`flow_hash`](crate::balance::flow_hash), which has none.
#[derive(Clone)]
pub struct Maglev {
    hasher: Hasher,
    table: maglev::MaglevTable,
}

impl Maglev {
    /// Over backends of these ends and weights (relative to each other), numbered in this order; up to 65535 of them,
    /// the rest gets nothing. Takes some milliseconds. `None` if no weight is above 0.
    pub fn new(backends: &[(Endpoint, u16)], hasher: Hasher) -> Option<Maglev> {
        Some(Maglev { hasher, table: maglev::MaglevTable::of_backends(backends)? })
    }

    /// Bytes the table takes.
    pub fn bytes(&self) -> usize {
        self.table.bytes()
    }
}

impl<K: Key> Lookup<K> for Maglev {
    #[inline]
    fn find<E: Entries<K>>(&self, key: &K, _: &E) -> Option<u32> {
        Some(u32::from(self.table.at(key.hash(&self.hasher).0)))
    }
}

/// The table of a method that tracks no connections: nothing is in it, and nothing fits in.
#[derive(Clone, Copy, Debug)]
pub struct Untracked {
    /// The method of the table.
    pub method: LookupMethod,
}

impl<K> Lookup<K> for Untracked {
    #[inline]
    fn find<E: Entries<K>>(&self, _: &K, _: &E) -> Option<u32> {
        None
    }
}

impl<K> Table<K> for Untracked {
    fn name(&self) -> &'static str {
        self.method.name()
    }

    fn capacity(&self) -> usize {
        0
    }

    fn len(&self) -> usize {
        0
    }

    fn bytes(&self) -> usize {
        0
    }

    fn insert(&mut self, _: &K, _: u32) -> Result<(), Full> {
        Err(Full)
    }

    fn remove(&mut self, _: &K, _: u32) -> bool {
        false
    }

    fn replace(&mut self, _: &K, _: u32, _: u32) -> bool {
        false
    }

    fn scan(&self, _: u32, _: &mut dyn FnMut(u32)) -> Option<u32> {
        None
    }
}

//! State of backends that workers share: the number of connections of each, its latency, and the part of its weight that
//! counts now.

use super::latency::{Latencies, cost};
use crate::config::BACKENDS_MAX;
use crate::time::Time;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU16, AtomicU32, Ordering};

/// How many connections each backend has now, and how soon it answers, over all workers, by number. Clones share the numbers.
///
/// The numbers guide choices and nothing else: reads may be a moment old.
#[derive(Clone, Debug)]
pub struct Loads {
    connections: Arc<[AtomicU32]>,
    latencies: Latencies,
}

impl Default for Loads {
    /// For all the backends there can be ([`BACKENDS_MAX`]), so that it serves every snapshot to come.
    fn default() -> Loads {
        Loads::new(BACKENDS_MAX)
    }
}

impl Loads {
    /// No connections on any of the backends numbered below `backends`. Others always count as idle.
    pub fn new(backends: u32) -> Loads {
        Loads { connections: (0..backends).map(|_| AtomicU32::new(0)).collect(), latencies: Latencies::new(backends) }
    }

    /// How soon the backends answer.
    pub fn latencies(&self) -> &Latencies {
        &self.latencies
    }

    /// What one more request of `backend` costs: its latency times the requests that it would have.
    pub(super) fn cost(&self, backend: u32, now: Time) -> u64 {
        cost(self.latencies.now(backend, now), self.now(backend))
    }

    /// A connection of `backend` (its number in the snapshot) begins.
    pub fn add(&self, backend: u32) {
        if let Some(connections) = self.connections.get(backend as usize) {
            connections.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A connection of `backend` has ended.
    pub fn take(&self, backend: u32) {
        if let Some(connections) = self.connections.get(backend as usize) {
            // Stays at zero rather than wrapping to the highest load there is.
            let _ = connections.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |now| now.checked_sub(1));
        }
    }

    /// Connections `backend` has now; 0 for one that does not exist.
    pub fn now(&self, backend: u32) -> u32 {
        self.connections.get(backend as usize).map_or(0, |connections| connections.load(Ordering::Relaxed))
    }
}

/// The share of a backend that is up and has had its slow start, in 1/256 of its weight.
pub const SHARE_FULL: u16 = 256;

/// Beside a share: whether the backend is up is not settled yet.
const UNSETTLED: u16 = 1 << 15;

/// The state of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EffectiveWeight {
    /// The effective part of its weight, in 1/256: 0 if it is down or its first checks have failed so far.
    pub share: u16,
    /// Whether that is a verdict. Until it is one, connections that may have begun elsewhere are taken to be the backend's
    /// whatever the share, and new ones go to it only if no other backend has a share.
    pub settled: bool,
}

impl EffectiveWeight {
    /// It is up.
    pub const FULL: EffectiveWeight = EffectiveWeight { share: SHARE_FULL, settled: true };

    /// Whether it is known to be down.
    pub fn is_down(self) -> bool {
        self.share == 0 && self.settled
    }
}

/// How much of each backend's weight counts now, by number: nothing while it is down, a growing part while it starts
/// slowly. Clones share the numbers. The thread that checks the backends writes them; workers look at
/// [`EffectiveWeights::version`] once per burst and read the rest when it has changed.
#[derive(Clone, Debug)]
pub struct EffectiveWeights {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    version: AtomicU32,
    shares: [AtomicU16; BACKENDS_MAX as usize],
}

impl Default for EffectiveWeights {
    fn default() -> EffectiveWeights {
        EffectiveWeights::new()
    }
}

impl EffectiveWeights {
    /// Every backend there can be has its full share.
    pub fn new() -> EffectiveWeights {
        let shares = [const { AtomicU16::new(SHARE_FULL) }; BACKENDS_MAX as usize];
        EffectiveWeights { inner: Arc::new(Inner { version: AtomicU32::new(0), shares }) }
    }

    /// Sets what part of its weight backend `number` has, in 1/256: 0 if it is down, [`SHARE_FULL`] (or more, which is
    /// taken as that) for all of it. A number that cannot be is ignored.
    pub fn set(&self, number: u16, share: u16) {
        self.put(number, EffectiveWeight { share, settled: true });
    }

    /// Sets what is known of backend `number`; as [`EffectiveWeights::set`].
    pub fn put(&self, number: u16, effective_weight: EffectiveWeight) {
        let Some(held) = self.inner.shares.get(usize::from(number)) else { return };
        let word = effective_weight.share.min(SHARE_FULL) | if effective_weight.settled { 0 } else { UNSETTLED };
        if held.swap(word, Ordering::Relaxed) != word {
            // A worker that sees the new version sees the share too.
            self.inner.version.fetch_add(1, Ordering::Release);
        }
    }

    /// The state of backend `number`; one that cannot be is down.
    pub fn of(&self, number: u16) -> EffectiveWeight {
        let word = self.inner.shares.get(usize::from(number)).map_or(0, |share| share.load(Ordering::Relaxed));
        EffectiveWeight { share: word & !UNSETTLED, settled: word & UNSETTLED == 0 }
    }

    /// Another number after every change.
    pub fn version(&self) -> u32 {
        self.inner.version.load(Ordering::Acquire)
    }
}

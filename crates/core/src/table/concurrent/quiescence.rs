//! When may what a thread has removed be used again? When all readers have been seen quiescent.
//!
//! Quiescent-state-based reclamation (McKenney and Slingwine, "Read-copy update", 1998; DPDK's `rte_rcu_qsbr`): threads
//! that read register, and say between two bursts that they hold nothing they have found ([`QuiescenceReader::quiescent`]). Who
//! has removed something begins a *grace period* ([`Quiescence::begin`]); it has passed ([`Quiescence::has_passed`])
//! once every registered reader has said so since, or was offline. No thread ever waits for another one: a reader that
//! says nothing delays the reuse of memory, so their number is bounded and they are expected to go offline before they
//! sleep.
//!
//! # How
//! There is one counter of grace periods. A reader copies it into a slot of its own whenever it is quiescent; only if
//! it has changed, so that slots stay in the caches of those who ask. A period has passed when no slot shows an older
//! count. A thread that begins a period counts up after it has removed something; so a reader that has seen the new
//! count sees the removal (release and acquire). A reader that comes online and a thread that asks about slots both
//! pass a full fence, so the one sees the removal or the other the slot.

use crate::table::sync::{Apart, AtomicU64, Ordering, fence};
use alloc::boxed::Box;
use alloc::sync::Arc;

/// A slot that no reader has.
const VACANT: u64 = 0;
/// A slot whose reader is offline.
const OFFLINE: u64 = 1;
/// The first count.
const FIRST: u64 = 2;

/// Readers and grace periods.
pub struct Quiescence {
    /// Grace periods that have begun.
    begun: Apart<AtomicU64>,
    /// Each reader's last value of the epoch, or [`VACANT`], or [`OFFLINE`].
    slots: Box<[Apart<AtomicU64>]>,
}

/// A grace period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Grace(u64);

/// A reader: registered from the beginning to the end of its life, and online at first.
pub struct QuiescenceReader {
    quiescence: Arc<Quiescence>,
    slot: usize,
    /// The value of the slot.
    seen: u64,
}

impl Quiescence {
    /// For at most `readers_max` readers at a time.
    pub fn new(readers_max: usize) -> Quiescence {
        Quiescence {
            begun: Apart(AtomicU64::new(FIRST)),
            slots: (0..readers_max).map(|_| Apart(AtomicU64::new(VACANT))).collect(),
        }
    }

    /// Registers a reader; `None` if there are as many as there may be.
    pub fn register(self: &Arc<Quiescence>) -> Option<QuiescenceReader> {
        let claim = |slot: &Apart<AtomicU64>| {
            slot.compare_exchange(VACANT, OFFLINE, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        };
        let slot = self.slots.iter().position(claim)?;
        let mut reader = QuiescenceReader { quiescence: Arc::clone(self), slot, seen: OFFLINE };
        reader.online();
        Some(reader)
    }

    /// Begins a grace period, for everything that the caller has removed so far.
    pub fn begin(&self) -> Grace {
        Grace(self.begun.fetch_add(1, Ordering::AcqRel) + 1)
    }

    /// Whether no reader can still hold anything that was removed before `grace` began. Once true, always true.
    pub fn has_passed(&self, grace: Grace) -> bool {
        self.oldest() >= grace
    }

    /// The youngest of the periods that have passed: they have passed up to this one.
    pub fn oldest(&self) -> Grace {
        fence(Ordering::SeqCst);
        let begun = self.begun.load(Ordering::Relaxed);
        let seen = self.slots.iter().map(|slot| slot.load(Ordering::Acquire));
        Grace(seen.filter(|&seen| seen >= FIRST).min().unwrap_or(begun).min(begun))
    }
}

impl QuiescenceReader {
    /// Says that nothing is held that was found before now.
    #[inline]
    pub fn quiescent(&mut self) {
        let begun = self.quiescence.begun.load(Ordering::Acquire);
        if begun != self.seen && self.seen != OFFLINE {
            self.say(begun);
        }
    }

    /// Says that nothing is held, and that nothing will be read until [`QuiescenceReader::online`].
    pub fn offline(&mut self) {
        self.say(OFFLINE);
    }

    /// Ends [`QuiescenceReader::offline`].
    pub fn online(&mut self) {
        if self.seen == OFFLINE {
            let begun = self.quiescence.begun.load(Ordering::Acquire);
            self.say(begun);
            fence(Ordering::SeqCst);
        }
    }

    fn say(&mut self, seen: u64) {
        self.seen = seen;
        self.quiescence.slots[self.slot].store(seen, Ordering::Release);
    }
}

impl Drop for QuiescenceReader {
    fn drop(&mut self) {
        self.quiescence.slots[self.slot].store(VACANT, Ordering::Release);
    }
}

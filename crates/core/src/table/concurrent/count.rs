//! How many entries there are, counted without a line that all threads write.

use crate::table::sync::Apart;
use alloc::boxed::Box;
use core::sync::atomic::{AtomicIsize, Ordering};

/// Counters; a thread mostly keeps to one of them.
const STRIPES: usize = 16;

/// A count, as the sum of some that threads keep apart. (Always of the processor's atomics: nothing depends on their
/// order, and a model checker would only have more orders to try.)
#[derive(Default)]
pub(super) struct StripedCount {
    stripes: Box<[Apart<AtomicIsize>; STRIPES]>,
}

impl StripedCount {
    /// Adds `change`. There is no number of the thread to be had here, but each has a stack of its own, and where that
    /// lies is as good: which counter is taken matters to speed only.
    #[inline]
    pub(super) fn add(&self, change: isize) {
        let here = 0u8;
        // Stacks are some MiB apart; a thread's depth of calls moves less.
        let stack = (core::ptr::from_ref(&here).addr() >> 21) as u32;
        let stripe = stack.wrapping_mul(0x9E37_79B1) >> 28;
        self.stripes[stripe as usize % STRIPES].fetch_add(change, Ordering::Relaxed);
    }

    /// The sum; may be out of date, never below 0.
    pub(super) fn total(&self) -> usize {
        self.stripes.iter().map(|stripe| stripe.load(Ordering::Relaxed)).sum::<isize>().max(0) as usize
    }

    /// Bytes taken.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.stripes)
    }
}

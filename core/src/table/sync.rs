//! Atomics, through one door: the processor's, or those of `loom` when a model is checked (`--cfg loom`), which runs a
//! test under every order that the memory model allows.

#[cfg(not(loom))]
pub(super) use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence};
#[cfg(loom)]
pub(super) use loom::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence};

use alloc::boxed::Box;
use core::ops::Deref;

/// To be called whenever a thread waits for another one.
#[inline]
pub(super) fn spin() {
    #[cfg(not(loom))]
    core::hint::spin_loop();
    #[cfg(loom)]
    loom::thread::yield_now();
}

/// Something in a cache line of its own (two of them: neighbours are fetched in pairs).
#[repr(align(128))]
#[derive(Default)]
pub(super) struct Apart<T>(pub(super) T);

impl<T> Deref for Apart<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.0
    }
}

/// `count` words of zero, in pages that the kernel hands out as they are touched.
#[cfg(not(loom))]
pub(super) fn words(count: usize) -> Box<[AtomicU64]> {
    super::zeroed::zeroed(count)
}

/// `count` words of zero.
#[cfg(loom)]
pub(super) fn words(count: usize) -> Box<[AtomicU64]> {
    (0..count).map(|_| AtomicU64::new(0)).collect()
}

// SAFETY: an atomic integer is represented like the integer, and zero is one.
#[cfg(not(loom))]
unsafe impl super::zeroed::Zeroable for AtomicU64 {}

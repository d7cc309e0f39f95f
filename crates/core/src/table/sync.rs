//! Atomics, through one door: the processor's, or those of `loom` when a model is checked (`--cfg loom`), which runs a
//! test under every order that the memory model allows.

#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence};
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence};

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
pub(crate) struct Apart<T>(pub(crate) T);

impl<T> Deref for Apart<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.0
    }
}

/// Words of a cache line.
pub(super) const LINE: usize = 8;

/// Words, the first of them at the beginning of a cache line.
#[cfg(not(loom))]
pub(crate) struct Words {
    /// Enough for so many.
    lines: Box<[CacheLine]>,
    count: usize,
}

#[cfg(not(loom))]
#[repr(C, align(64))]
struct CacheLine([AtomicU64; LINE]);

#[cfg(not(loom))]
const _: () = assert!(size_of::<CacheLine>() == size_of::<[AtomicU64; LINE]>());

// SAFETY: an atomic integer is represented like the integer, and zero is one.
#[cfg(not(loom))]
unsafe impl super::zeroed::Zeroable for CacheLine {}

#[cfg(not(loom))]
impl Words {
    /// `count` words of zero, in pages that the kernel hands out as they are touched.
    pub(crate) fn new(count: usize) -> Words {
        Words { lines: super::zeroed::zeroed(count.div_ceil(LINE)), count }
    }
}

#[cfg(not(loom))]
impl Deref for Words {
    type Target = [AtomicU64];

    #[inline]
    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: lines are `LINE` words each, without anything between them (asserted above), there are enough for
        // `count`, and they are borrowed as long as the words.
        unsafe { core::slice::from_raw_parts(self.lines.as_ptr().cast(), self.count) }
    }
}

/// Words.
#[cfg(loom)]
pub(crate) struct Words(Box<[AtomicU64]>);

#[cfg(loom)]
impl Words {
    /// `count` words of zero.
    pub(crate) fn new(count: usize) -> Words {
        Words((0..count).map(|_| AtomicU64::new(0)).collect())
    }
}

#[cfg(loom)]
impl Deref for Words {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        &self.0
    }
}

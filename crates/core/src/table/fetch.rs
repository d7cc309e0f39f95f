//! Bringing lines into the cache before they are read.
//!
//! A burst of lookups mostly waits for memory, and a core can wait for a bounded number of lines at a time. A line that is
//! asked for into the first cache takes one of that cache's few places for misses until it has come (AMD's Zen: about two
//! dozen, and a burst asks for more); one that is asked for into the second cache only does not, and is read from there a
//! dozen cycles later.
//!
//! Measured on an EPYC with Zen 4, `cuckoo++` beside itself, 8 Mi slots: 1.31 times as many hits and 1.40 times as many
//! misses per second; at 1 Mi slots 1.19 times as many hits; at 128 Ki, which the second cache mostly holds, 0.95. On
//! Intel's Xeon it was worth 1.04 for entries of 256 MiB, and lost a sixth for those of 32 MiB.

/// Arrays of more bytes are too large for the second cache, where that is what counts.
const NEAR_BYTES_MAX: usize = 6 << 20;
/// Entries of more bytes are mostly not even in the last cache.
const ENTRIES_BYTES_MAX: usize = 160 << 20;

/// How lines of an array are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fetch {
    /// Into the first cache.
    Near,
    /// Into the second cache only.
    Far,
}

impl Fetch {
    /// From an array of so many bytes in which lookups begin.
    pub fn index(bytes: usize) -> Fetch {
        if bytes > NEAR_BYTES_MAX && waits_for_few() { Fetch::Far } else { Fetch::Near }
    }

    /// From an array of so many bytes to which an index leads.
    pub fn entries(bytes: usize) -> Fetch {
        if bytes > Fetch::near_bytes_max() { Fetch::Far } else { Fetch::Near }
    }

    /// Bytes of entries that are not yet [far](Fetch::Far).
    pub fn near_bytes_max() -> usize {
        if waits_for_few() { NEAR_BYTES_MAX } else { ENTRIES_BYTES_MAX }
    }

    /// Starts to bring the line of `target` into a cache; nothing on processors other than x86-64. It need not point to
    /// anything.
    #[inline(always)]
    pub fn line<T>(self, target: *const T) {
        self.lines([target]);
    }

    /// [`Fetch::line`] of several.
    #[inline(always)]
    pub fn lines<T, const N: usize>(self, targets: [*const T; N]) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        {
            use core::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};
            // SAFETY: prefetching never faults and reads nothing into the program; SSE is part of x86-64.
            unsafe {
                match self {
                    Fetch::Near => targets.iter().for_each(|target| _mm_prefetch::<_MM_HINT_T0>(target.cast())),
                    Fetch::Far => targets.iter().for_each(|target| _mm_prefetch::<_MM_HINT_T1>(target.cast())),
                }
            }
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        {
            let _ = (self, targets);
        }
    }
}

/// Whether the processor is one whose first cache waits for few lines at a time, and whose second one for more. (Asked
/// when arrays are made: to ask a virtual processor takes microseconds.)
#[cfg(all(target_arch = "x86_64", not(miri)))]
fn waits_for_few() -> bool {
    // SAFETY: every x86-64 processor has the instruction. (Newer compilers know that, and want no `unsafe`.)
    #[allow(unused_unsafe)]
    let asked = unsafe { core::arch::x86_64::__cpuid(0) };
    let name = [asked.ebx, asked.edx, asked.ecx].map(u32::to_le_bytes);
    [*b"AuthenticAMD", *b"HygonGenuine"].iter().any(|known| name.as_flattened() == known)
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
fn waits_for_few() -> bool {
    false
}

//! Memory for one table, on large pages where they can be had, lent to rte_malloc as a heap of its own.
//!
//! Without a reserve of hugepages EAL has only small ones (a memfd), on which a table of millions of entries is slowed
//! down by address translation: the peer deserves better.

use super::error::Error;
use super::ffi;
use hairpin_dpdk::memory::{LARGE, Mapping, Pages};
use std::ffi::CString;

/// A heap of rte_malloc's in memory of ours.
#[derive(Debug)]
pub(crate) struct RteHeap {
    name: CString,
    mapping: Mapping,
    socket: i32,
}

impl RteHeap {
    /// A heap with room for `bytes`. There are at most about 30 at a time (`RTE_MAX_HEAPS`).
    pub(crate) fn new(name: CString, bytes: usize) -> Result<RteHeap, Error> {
        let mapping = Mapping::new(bytes).map_err(|source| Error::Memory { bytes, source })?;
        let length = mapping.length;
        let mut socket = 0;
        // SAFETY: the mapping is ours, as long as said and aligned to large pages; it stays until the heap is gone.
        let code = unsafe {
            ffi::hairpin_heap_create(name.as_ptr(), mapping.address.as_ptr(), length, LARGE, &raw mut socket)
        };
        Error::of(code, "lending memory to DPDK (about 30 tables at a time)")?;
        Ok(RteHeap { name, mapping, socket })
    }

    /// The socket that allocations name.
    pub(crate) fn socket(&self) -> i32 {
        self.socket
    }

    pub(crate) fn pages(&self) -> Pages {
        self.mapping.pages
    }

    /// Bytes allocated now, with rte_malloc's headers.
    pub(crate) fn used(&self) -> usize {
        // SAFETY: reads the statistics of a heap that is there.
        unsafe { ffi::hairpin_heap_used(self.socket) }
    }
}

impl Drop for RteHeap {
    fn drop(&mut self) {
        // SAFETY: the name, address and length are those it was made with.
        let code = unsafe {
            ffi::hairpin_heap_destroy(self.name.as_ptr(), self.mapping.address.as_ptr(), self.mapping.length)
        };
        // DPDK still has something there: the memory stays.
        self.mapping.kept = code != 0;
    }
}

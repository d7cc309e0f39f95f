//! libcuckoo (Debian's libcuckoo-dev), a concurrent cuckoo table with fine-grained locks, in C++.
//!
//! Its keyed hash is described in `shim/libcuckoo.cc`. It has no call for bursts: those are loops in C++, so that the
//! way there costs it nothing that shows.
#![allow(unsafe_code)]

use crate::tables::keys::BenchKey;
use crate::tables::subject::{Hands, LookupSum, TableSharing, TableSubject};
use anyhow::{Context, Result};
use std::ffi::c_void;
use std::ptr::NonNull;

unsafe extern "C" {
    fn hairpin_libcuckoo_new(slots: usize, secret_low: u64, secret_high: u64) -> *mut c_void;
    fn hairpin_libcuckoo_free(table: *mut c_void);
    fn hairpin_libcuckoo_bytes(table: *const c_void) -> usize;
    fn hairpin_libcuckoo_slots(table: *const c_void) -> usize;
    fn hairpin_libcuckoo_find(table: *const c_void, keys: *const BenchKey, count: usize, sum: *mut u64) -> usize;
    fn hairpin_libcuckoo_insert(table: *mut c_void, keys: *const BenchKey, count: usize) -> usize;
    fn hairpin_libcuckoo_remove(table: *mut c_void, keys: *const BenchKey, count: usize) -> usize;
}

/// One map.
pub(in crate::tables) struct Libcuckoo(NonNull<c_void>);

// SAFETY: the map belongs to no thread, and it is made for any number of them at the same time (but for making and
// freeing, which have `self` to themselves).
unsafe impl Send for Libcuckoo {}
// SAFETY: the same.
unsafe impl Sync for Libcuckoo {}

impl Libcuckoo {
    /// A map of so many slots, a power of two, that does not grow.
    ///
    /// # Errors
    /// When there is no memory.
    pub(in crate::tables) fn new(slots: usize) -> Result<Libcuckoo> {
        // SAFETY: it takes any numbers and throws nothing.
        let table = unsafe { hairpin_libcuckoo_new(slots, fastrand::u64(..), fastrand::u64(..)) };
        NonNull::new(table).map(Libcuckoo).context("no memory for libcuckoo's table")
    }
}

impl Drop for Libcuckoo {
    fn drop(&mut self) {
        // SAFETY: the map came from `hairpin_libcuckoo_new` and has no other owner.
        unsafe { hairpin_libcuckoo_free(self.0.as_ptr()) }
    }
}

impl TableSubject for Libcuckoo {
    fn sharing(&self) -> TableSharing {
        TableSharing::Any
    }

    fn hands(&self, _: usize, _: usize) -> Result<Box<dyn Hands + '_>> {
        Ok(Box::new(LibcuckooHands(self)))
    }

    fn bytes(&self) -> usize {
        // SAFETY: the map lives as long as `self`.
        unsafe { hairpin_libcuckoo_bytes(self.0.as_ptr()) }
    }

    fn slots(&self) -> Option<usize> {
        // SAFETY: the map lives as long as `self`.
        Some(unsafe { hairpin_libcuckoo_slots(self.0.as_ptr()) })
    }
}

struct LibcuckooHands<'a>(&'a Libcuckoo);

impl Hands for LibcuckooHands<'_> {
    fn find_each(&mut self, keys: &[BenchKey]) -> LookupSum {
        let mut sum = 0;
        // SAFETY: the map lives as long as the borrow, the keys and the sum as long as the call.
        let count = unsafe { hairpin_libcuckoo_find(self.0.0.as_ptr(), keys.as_ptr(), keys.len(), &mut sum) };
        LookupSum { count, sum }
    }

    fn find_bursts(&mut self, keys: &[BenchKey]) -> LookupSum {
        self.find_each(keys)
    }

    fn insert(&mut self, keys: &[BenchKey]) -> usize {
        // SAFETY: as in `find_each`; the map takes changes from any number of threads.
        unsafe { hairpin_libcuckoo_insert(self.0.0.as_ptr(), keys.as_ptr(), keys.len()) }
    }

    fn remove(&mut self, keys: &[BenchKey]) -> usize {
        // SAFETY: as in `insert`.
        unsafe { hairpin_libcuckoo_remove(self.0.0.as_ptr(), keys.as_ptr(), keys.len()) }
    }
}

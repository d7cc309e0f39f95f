//! One table for all threads, one spinlock around it: the plainest way to share (KTH 2020, section 4.2.2), here to be
//! compared with.
//!
//! The lock is taken once per burst of [`BURST`] keys, not once per key. A thread that waits spins (test and
//! test-and-set) and never sleeps; there is no order among those who wait, and a thread that is descheduled while it
//! holds the lock stops all others for so long. KTH 2020 measured 12 percent of the processor's time spent waiting at
//! two cores and 80 at eight.
//!
//! [`Entries`] are asked, and what [`SharedIndex::scan`] meets is shown, while the lock is held: neither may call the table.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use hairpin_core::table::{BURST, Entries, Full, Lookup, SharedIndex, Table};

/// A word in a cache line of its own (two of them: neighbours are fetched in pairs).
#[repr(align(128))]
struct Apart<T>(T);

/// The table `T`, shared under one lock.
pub struct GlobalLock<T> {
    taken: Apart<AtomicBool>,
    contended: Apart<AtomicU64>,
    table: UnsafeCell<T>,
}

// SAFETY: the table is reached through a `LockedTable` only, and while there is one no other thread gets one. So threads never
// use it at the same time, and it is enough that it may go from one to the other.
unsafe impl<T: Send> Sync for GlobalLock<T> {}

/// The lock, held.
struct LockedTable<'a, T>(&'a GlobalLock<T>);

impl<T> GlobalLock<T> {
    /// Shares `table`.
    pub fn new(table: T) -> GlobalLock<T> {
        GlobalLock {
            taken: Apart(AtomicBool::new(false)),
            contended: Apart(AtomicU64::new(0)),
            table: UnsafeCell::new(table),
        }
    }

    /// How often a thread had to wait for the lock; not kept when no thread has to, so it costs nothing then.
    pub fn contended(&self) -> u64 {
        self.contended.0.load(Ordering::Relaxed)
    }

    /// The table, to do anything with.
    pub fn with<R>(&self, act: impl FnOnce(&mut T) -> R) -> R {
        act(&mut self.lock())
    }

    #[inline]
    fn lock(&self) -> LockedTable<'_, T> {
        if !self.try_take() {
            self.wait();
        }
        LockedTable(self)
    }

    #[inline]
    fn try_take(&self) -> bool {
        !self.taken.0.swap(true, Ordering::Acquire)
    }

    #[cold]
    fn wait(&self) {
        self.contended.0.fetch_add(1, Ordering::Relaxed);
        loop {
            // Reading leaves the cache line shared among waiting threads, and only a thread that has seen it free tries to get it.
            while self.taken.0.load(Ordering::Relaxed) {
                core::hint::spin_loop();
            }
            if self.try_take() {
                return;
            }
        }
    }
}

impl<T> Deref for LockedTable<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: there is one `LockedTable` at a time, and this borrows it.
        unsafe { &*self.0.table.get() }
    }
}

impl<T> DerefMut for LockedTable<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: there is one `LockedTable` at a time, and this borrows it exclusively.
        unsafe { &mut *self.0.table.get() }
    }
}

impl<T> Drop for LockedTable<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.0.taken.0.store(false, Ordering::Release);
    }
}

impl<K, T: Table<K>> Lookup<K> for GlobalLock<T> {
    #[inline]
    fn find<E: Entries<K>>(&self, key: &K, entries: &E) -> Option<u32> {
        self.lock().find(key, entries)
    }

    #[inline]
    fn find_burst<E: Entries<K>>(&self, keys: &[K], entries: &E, out: &mut [Option<u32>]) {
        for (keys, out) in keys.chunks(BURST).zip(out.chunks_mut(BURST)) {
            self.lock().find_burst(keys, entries, out);
        }
    }
}

impl<K, T: Table<K> + Send> SharedIndex<K> for GlobalLock<T> {
    fn name(&self) -> &'static str {
        "global-lock"
    }

    fn capacity(&self) -> usize {
        self.lock().capacity()
    }

    fn len(&self) -> usize {
        self.lock().len()
    }

    fn bytes(&self) -> usize {
        self.lock().bytes() + size_of::<Self>() - size_of::<T>()
    }

    fn insert(&self, key: &K, value: u32) -> Result<(), Full> {
        self.lock().insert(key, value)
    }

    fn insert_burst(&self, keys: &[K], values: &[u32]) -> usize {
        let mut count = 0;
        for (keys, values) in keys.chunks(BURST).zip(values.chunks(BURST)) {
            let added = self.lock().insert_burst(keys, values);
            count += added;
            if added < keys.len().min(values.len()) {
                break;
            }
        }
        count
    }

    fn remove(&self, key: &K, value: u32) -> bool {
        self.lock().remove(key, value)
    }

    fn remove_burst(&self, keys: &[K], values: &[u32]) -> usize {
        let bursts = keys.chunks(BURST).zip(values.chunks(BURST));
        bursts.map(|(keys, values)| self.lock().remove_burst(keys, values)).sum()
    }

    fn replace(&self, key: &K, old: u32, new: u32) -> bool {
        self.lock().replace(key, old, new)
    }

    fn replace_burst(&self, keys: &[K], old: &[u32], new: &[u32]) -> usize {
        let bursts = keys.chunks(BURST).zip(old.chunks(BURST)).zip(new.chunks(BURST));
        bursts.map(|((keys, old), new)| self.lock().replace_burst(keys, old, new)).sum()
    }

    fn scan(&self, from: u32, visit: &mut dyn FnMut(u32)) -> Option<u32> {
        self.lock().scan(from, visit)
    }
}

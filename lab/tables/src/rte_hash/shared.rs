//! An rte_hash that several threads use.

use super::error::Error;
use super::ffi::{self, RawQsbr};
use super::flags::RteHashFlags;
use super::key::PackedKey;
use super::{BURST, Raw, RteHash, whole_bursts};
use hairpin_core::table::{Entries, Full, Lookup, SharedIndex, Table};
use hairpin_dpdk::memory::Pages;
use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Handles of one table at a time.
pub(crate) const HANDLES_MAX: usize = 64;

/// Whether a table may be shared that its flags do not protect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnprotectedSharing {
    /// Only if readers may work beside writers. Where the flags allow one writer at a time, writers take turns, by a
    /// lock around each burst.
    OnlyIfSafe,
    /// In any case, and without taking turns: **entries may get lost, be found under other keys or stand in the table
    /// for ever**. For measuring what protection costs, with traffic that may get lost. A caller that asks for it
    /// prints [`UNPROTECTED_WARNING`] if [`SharedRteHash::is_unprotected`].
    EvenIfUnsafe,
}

/// The message for a caller that shares an unprotected table.
pub const UNPROTECTED_WARNING: &str = "warning: this rte_hash is shared by threads that its flags do not protect from \
                                       each other; it can corrupt: connections may get lost or reach wrong backends";

/// An rte_hash for any number of threads.
///
/// Each thread had better use it through a [`TableHandle`]. The table itself can be used as well; of a lock-free one, each
/// call then signs on as a reader and off again, which costs more than the lookup.
pub struct SharedRteHash<K> {
    pub(super) raw: Raw<K>,
    len: AtomicUsize,
    /// Writers take turns, where the flags allow one at a time.
    write_lock: Option<Mutex<()>>,
    unprotected: bool,
    /// The readers' numbers that handles have taken.
    handles: AtomicU64,
    /// Those that single calls have taken; they come after [`HANDLES_MAX`].
    calls: AtomicU64,
    /// Each caller has signed on by itself: there are only [`TableView`](super::TableView)s.
    pub(super) viewed: bool,
}

impl<K: PackedKey> RteHash<K> {
    /// The same table for several threads.
    ///
    /// # Errors
    /// [`Error::Unprotected`] if its flags protect no readers, unless that is asked for.
    pub fn share(self, sharing: UnprotectedSharing) -> Result<SharedRteHash<K>, Error> {
        let RteHash { raw, len } = self;
        let flags = raw.flags;
        if sharing == UnprotectedSharing::OnlyIfSafe && !flags.protects_readers() {
            return Err(Error::Unprotected(flags));
        }
        let protected = flags.protects_readers() && flags.protects_writers();
        let lock_writes = sharing == UnprotectedSharing::OnlyIfSafe && !protected;
        Ok(SharedRteHash {
            raw,
            len: AtomicUsize::new(len),
            write_lock: lock_writes.then(Mutex::default),
            unprotected: !protected && !lock_writes,
            handles: AtomicU64::new(0),
            calls: AtomicU64::new(0),
            viewed: false,
        })
    }
}

impl<K: PackedKey> SharedRteHash<K> {
    /// A handle for one thread.
    ///
    /// # Errors
    /// [`Error::TooManyHandles`] when 64 are there.
    pub fn handle(self: &Arc<Self>) -> Result<TableHandle<K>, Error> {
        let number = take_number(&self.handles).ok_or(Error::TooManyHandles)?;
        let mut handle = TableHandle { table: Arc::clone(self), number, reader: None, unreported: Cell::new(0) };
        if let Some(qsbr) = self.raw.qsbr {
            // SAFETY: the table is kept by the handle, and no other reader has this number.
            handle.reader = Some(unsafe { TableReader::register(qsbr, number) }?);
        }
        Ok(handle)
    }

    /// The flags it was made with.
    pub fn flags(&self) -> RteHashFlags {
        self.raw.flags
    }

    /// The kind of its pages.
    pub fn pages(&self) -> Pages {
        self.raw.heap.pages()
    }

    /// Whether it can corrupt, since several threads may do what its flags do not protect.
    pub fn is_unprotected(&self) -> bool {
        self.unprotected
    }

    /// [`RteHash::remove_keys`].
    pub fn remove_keys(&self, keys: &[K]) -> usize {
        let mut removed = 0;
        for keys in keys.chunks(BURST) {
            let _lock = self.lock_writes();
            removed += self.raw.remove_keys(keys);
        }
        self.len.fetch_sub(removed, Ordering::Relaxed);
        removed
    }

    /// The writer's lock, if the flags allow one writer at a time: until it is dropped, no other writes.
    #[inline]
    fn lock_writes(&self) -> Option<MutexGuard<'_, ()>> {
        // A writer that panicked did so outside of DPDK's code, so its table is whole.
        self.write_lock.as_ref().map(|write_lock| write_lock.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn insert_whole(&self, keys: &[K], values: &[u32]) -> usize {
        // Counted first, so that no thread that removes takes the count below zero.
        self.len.fetch_add(keys.len().min(values.len()), Ordering::Relaxed);
        let inserted = whole_bursts(keys, values, |keys, values| {
            let _lock = self.lock_writes();
            self.raw.insert(keys, values)
        });
        self.len.fetch_sub(keys.len().min(values.len()) - inserted, Ordering::Relaxed);
        inserted
    }

    fn remove_all(&self, keys: &[K], values: &[u32]) -> usize {
        let mut removed = 0;
        for (keys, values) in keys.chunks(BURST).zip(values.chunks(BURST)) {
            let _lock = self.lock_writes();
            removed += self.raw.remove(keys, values);
        }
        self.len.fetch_sub(removed, Ordering::Relaxed);
        removed
    }

    fn exchange(&self, key: &K, old: u32, new: u32) -> bool {
        let _lock = self.lock_writes();
        self.raw.find(key) == Some(old) && self.raw.insert(std::slice::from_ref(key), &[new]) == 1
    }

    /// Does something as a reader of a lock-free table for just this once; of others, just does it.
    fn as_reader<R>(&self, call: impl FnOnce() -> R) -> R {
        let Some(qsbr) = self.raw.qsbr.filter(|_| !self.viewed) else { return call() };
        let number = loop {
            match take_number(&self.calls) {
                Some(number) => break number,
                // 64 threads are within calls, which are short.
                None => std::thread::yield_now(),
            }
        };
        let reader = TableReader { qsbr, number: number + HANDLES_MAX as u32 };
        // SAFETY: no other reader has this number, which is below the 128 there are; so it cannot fail.
        unsafe { ffi::hairpin_reader_register(qsbr.as_ptr(), reader.number) };
        let result = call();
        drop(reader);
        give_number(&self.calls, number);
        result
    }
}

/// The lowest bit that was not set, set.
fn take_number(taken: &AtomicU64) -> Option<u32> {
    let free = |taken: u64| (taken != u64::MAX).then(|| taken | (taken + 1));
    taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, free).ok().map(|before| before.trailing_ones())
}

fn give_number(taken: &AtomicU64, number: u32) {
    taken.fetch_and(!(1 << number), Ordering::AcqRel);
}

/// A reader of a lock-free table, registered and online.
pub(super) struct TableReader {
    qsbr: NonNull<RawQsbr>,
    number: u32,
}

impl TableReader {
    /// One of this number, within the table.
    ///
    /// # Errors
    /// There is no such number.
    ///
    /// # Safety
    /// `qsbr` outlives it, and no other reader has the number.
    pub(super) unsafe fn register(qsbr: NonNull<RawQsbr>, number: u32) -> Result<TableReader, Error> {
        // SAFETY: as the caller says.
        let code = unsafe { ffi::hairpin_reader_register(qsbr.as_ptr(), number) };
        Error::of(code, "registering a reader of an rte_hash")?;
        Ok(TableReader { qsbr, number })
    }

    /// Within a call from now on: positions of entries that are removed stay theirs.
    #[inline]
    pub(super) fn enter(&self) {
        // SAFETY: registered, of a table that is there, and used by one thread at a time: this is not Sync.
        unsafe { ffi::hairpin_reader_online(self.qsbr.as_ptr(), self.number) }
    }

    /// Outside of calls from now on: no thread waits for it.
    #[inline]
    pub(super) fn leave(&self) {
        // SAFETY: as above.
        unsafe { ffi::hairpin_reader_offline(self.qsbr.as_ptr(), self.number) }
    }
}

// SAFETY: a reader's number belongs to no thread, only to one thread at a time, and this is neither Clone nor Sync.
unsafe impl Send for TableReader {}

impl Drop for TableReader {
    fn drop(&mut self) {
        // SAFETY: registered under this number, of a table that is there: its owner keeps it.
        unsafe { ffi::hairpin_reader_unregister(self.qsbr.as_ptr(), self.number) }
    }
}

impl<K: PackedKey> Lookup<K> for SharedRteHash<K> {
    fn find<E: Entries<K>>(&self, key: &K, _: &E) -> Option<u32> {
        self.as_reader(|| self.raw.find(key))
    }

    fn find_burst<E: Entries<K>>(&self, keys: &[K], _: &E, out: &mut [Option<u32>]) {
        for (keys, out) in keys.chunks(BURST).zip(out.chunks_mut(BURST)) {
            self.as_reader(|| self.raw.find_burst(keys, out));
        }
    }
}

impl<K: PackedKey> SharedIndex<K> for SharedRteHash<K> {
    fn name(&self) -> &'static str {
        self.raw.flags.name()
    }

    fn capacity(&self) -> usize {
        self.raw.capacity
    }

    fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    fn bytes(&self) -> usize {
        self.raw.bytes
    }

    fn insert(&self, key: &K, value: u32) -> Result<(), Full> {
        if self.insert_whole(std::slice::from_ref(key), &[value]) == 1 { Ok(()) } else { Err(Full) }
    }

    fn insert_burst(&self, keys: &[K], values: &[u32]) -> usize {
        self.insert_whole(keys, values)
    }

    fn remove(&self, key: &K, value: u32) -> bool {
        self.as_reader(|| self.remove_all(std::slice::from_ref(key), &[value]) == 1)
    }

    fn remove_burst(&self, keys: &[K], values: &[u32]) -> usize {
        self.as_reader(|| self.remove_all(keys, values))
    }

    fn replace(&self, key: &K, old: u32, new: u32) -> bool {
        self.as_reader(|| self.exchange(key, old, new))
    }

    fn scan(&self, from: u32, visit: &mut dyn FnMut(u32)) -> Option<u32> {
        self.as_reader(|| self.raw.scan(from, visit))
    }
}

/// One thread's access to a shared table, and itself a [`Table`].
///
/// For a lock-free table it is a registered reader: positions of removed entries become free once every handle has been
/// quiescent, which it reports by itself after each [`BURST`] keys that it handled. A handle that rests for long while
/// others write has to rest [`TableHandle::offline`], else the table fills up. It reports also before it writes, so that it
/// never waits for itself.
pub struct TableHandle<K: PackedKey> {
    // Dropped in this order: the reader leaves before the table may go.
    reader: Option<TableReader>,
    table: Arc<SharedRteHash<K>>,
    number: u32,
    /// Keys handled since the last report.
    unreported: Cell<usize>,
}

impl<K: PackedKey> TableHandle<K> {
    /// The table.
    pub fn table(&self) -> &Arc<SharedRteHash<K>> {
        &self.table
    }

    /// Says that this thread is not within a lookup, as it never is between two calls. Rarely needed: see the type.
    #[inline]
    pub fn quiescent(&self) {
        if let Some(reader) = &self.reader {
            // SAFETY: registered and online, and used by this thread only (the handle is not Sync).
            unsafe { ffi::hairpin_reader_quiescent(reader.qsbr.as_ptr(), reader.number) }
        }
        self.unreported.set(0);
    }

    /// Does something that does not use the table and may take long; no other thread waits for this one meanwhile.
    pub fn offline<R>(&mut self, rest: impl FnOnce() -> R) -> R {
        let Some(reader) = &self.reader else { return rest() };
        /// Comes back also when `rest` panics.
        struct Offline<'a>(&'a TableReader);
        impl Drop for Offline<'_> {
            fn drop(&mut self) {
                // SAFETY: registered, by the thread that has the handle.
                unsafe { ffi::hairpin_reader_online(self.0.qsbr.as_ptr(), self.0.number) }
            }
        }
        // SAFETY: registered, by the thread that has the handle.
        unsafe { ffi::hairpin_reader_offline(reader.qsbr.as_ptr(), reader.number) };
        let _offline = Offline(reader);
        rest()
    }

    /// [`RteHash::remove_keys`].
    pub fn remove_keys(&mut self, keys: &[K]) -> usize {
        self.quiescent();
        self.table.remove_keys(keys)
    }

    #[inline]
    fn handled(&self, keys: usize) {
        let unreported = self.unreported.get() + keys;
        self.unreported.set(unreported);
        if unreported >= BURST {
            self.quiescent();
        }
    }
}

impl<K: PackedKey> Drop for TableHandle<K> {
    fn drop(&mut self) {
        self.reader = None;
        give_number(&self.table.handles, self.number);
    }
}

impl<K: PackedKey> Lookup<K> for TableHandle<K> {
    #[inline]
    fn find<E: Entries<K>>(&self, key: &K, _: &E) -> Option<u32> {
        let found = self.table.raw.find(key);
        self.handled(1);
        found
    }

    fn find_burst<E: Entries<K>>(&self, keys: &[K], _: &E, out: &mut [Option<u32>]) {
        for (keys, out) in keys.chunks(BURST).zip(out.chunks_mut(BURST)) {
            self.table.raw.find_burst(keys, out);
            self.handled(keys.len());
        }
    }
}

impl<K: PackedKey> Table<K> for TableHandle<K> {
    fn name(&self) -> &'static str {
        self.table.raw.flags.name()
    }

    fn capacity(&self) -> usize {
        self.table.raw.capacity
    }

    fn len(&self) -> usize {
        SharedIndex::len(&*self.table)
    }

    fn bytes(&self) -> usize {
        self.table.raw.bytes
    }

    fn insert(&mut self, key: &K, value: u32) -> Result<(), Full> {
        self.quiescent();
        SharedIndex::insert(&*self.table, key, value)
    }

    fn insert_burst(&mut self, keys: &[K], values: &[u32]) -> usize {
        self.quiescent();
        self.table.insert_whole(keys, values)
    }

    fn remove(&mut self, key: &K, value: u32) -> bool {
        self.quiescent();
        self.table.remove_all(std::slice::from_ref(key), &[value]) == 1
    }

    fn remove_burst(&mut self, keys: &[K], values: &[u32]) -> usize {
        self.quiescent();
        self.table.remove_all(keys, values)
    }

    fn replace(&mut self, key: &K, old: u32, new: u32) -> bool {
        self.quiescent();
        self.table.exchange(key, old, new)
    }

    fn scan(&self, from: u32, visit: &mut dyn FnMut(u32)) -> Option<u32> {
        let next = self.table.raw.scan(from, visit);
        self.quiescent();
        next
    }
}

//! Tables of DPDK's rte_hash (22.11): a cuckoo table with buckets of eight, which copies its keys.
//!
//! [`RteHash`] is a table with one owner, of any [`RteHashFlags`]; [`SharedRteHash`] one that any number of threads use,
//! through a [`TableHandle`] each; [`WorkerTable`] either of them or one of ours.
//!
//! Room: an rte_hash has as many positions for keys as its capacity (with several writers about 8,000 more, for their
//! caches), and buckets for the next power of two.

mod error;
mod ffi;
mod flags;
mod heap;
mod key;
mod shared;
mod transactions;
mod view;
mod worker;

pub use error::Error;
pub use flags::{HashFunction, RteHashFlags, UnknownFlags};
pub use key::PackedKey;
pub use transactions::Transactions;

pub(crate) use shared::HANDLES_MAX;
pub use shared::{SharedRteHash, TableHandle, UNPROTECTED_WARNING, UnprotectedSharing};
pub use view::TableView;
pub use worker::WorkerTable;

use ffi::{RawHash, RawQsbr};
use hairpin_core::table::{BURST, Entries, Full, Lookup, Table};
use hairpin_dpdk::memory::Pages;
use hairpin_dpdk::{Eal, ensure_registered};
use heap::RteHeap;
use std::ffi::CString;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// The smallest capacity: one bucket.
pub(crate) const CAPACITY_MIN: usize = 8;
/// The largest that positions of several writers fit into, below RTE_HASH_ENTRIES_MAX.
pub(crate) const CAPACITY_MAX: usize = 1 << 29;

/// Entries that one step of a walk meets, at most.
const SCAN: usize = 64;

/// A table with one owner.
///
/// An rte_hash compares its own copies of the keys, so the entries that the traits hand over are not asked. Where it
/// knows less than the traits promise:
/// - Inserting a key that is there gives it the new value; [`Table::len`] then counts it twice.
/// - There is no compare-and-delete: `remove` and `replace` look the value up first, and in a shared table another thread
///   may change it in between.
/// - `Full` comes at the capacity or, where that is (nearly) a power of two, at 95 to 99 percent of it.
/// - One step of [`Table::scan`] meets at most 64 entries, but passes over any number of free slots.
pub struct RteHash<K> {
    raw: Raw<K>,
    len: usize,
}

impl<K: PackedKey> RteHash<K> {
    /// An empty table for `capacity` entries, 8 to 2^29. `secret` seeds the hash, CRC; see [`HashFunction`] for why that
    /// keeps no enemy away. All its memory is taken and touched now.
    ///
    /// # Errors
    /// [`Error::Capacity`], [`Error::Memory`]; [`Error::NoTransactions`] for a transactional one where the processor has
    /// no working transactions; [`Error::Call`] when DPDK refuses.
    pub fn new(eal: &Eal, capacity: usize, flags: RteHashFlags, secret: u32) -> Result<RteHash<K>, Error> {
        RteHash::with_hash(eal, capacity, flags, secret, HashFunction::Crc)
    }

    /// [`RteHash::new`] with another hash function.
    ///
    /// # Errors
    /// As of [`RteHash::new`].
    pub fn with_hash(
        _: &Eal,
        capacity: usize,
        flags: RteHashFlags,
        secret: u32,
        function: HashFunction,
    ) -> Result<RteHash<K>, Error> {
        Ok(RteHash { raw: Raw::new(capacity, flags, secret, function)?, len: 0 })
    }

    /// The flags it was made with.
    pub fn flags(&self) -> RteHashFlags {
        self.raw.flags
    }

    /// The kind of its pages.
    pub fn pages(&self) -> Pages {
        self.raw.heap.pages()
    }

    /// Takes entries away whatever their values, as DPDK's users do; how many there were. [`Table::remove_burst`]
    /// looks all values up first, at the price of that.
    pub fn remove_keys(&mut self, keys: &[K]) -> usize {
        let removed = keys.chunks(BURST).map(|keys| self.raw.remove_keys(keys)).sum();
        self.len -= removed;
        removed
    }
}

impl<K: PackedKey> Lookup<K> for RteHash<K> {
    #[inline]
    fn find<E: Entries<K>>(&self, key: &K, _: &E) -> Option<u32> {
        self.raw.find(key)
    }

    fn find_burst<E: Entries<K>>(&self, keys: &[K], _: &E, out: &mut [Option<u32>]) {
        for (keys, out) in keys.chunks(BURST).zip(out.chunks_mut(BURST)) {
            self.raw.find_burst(keys, out);
        }
    }
}

impl<K: PackedKey> Table<K> for RteHash<K> {
    fn name(&self) -> &'static str {
        self.raw.flags.name()
    }

    fn capacity(&self) -> usize {
        self.raw.capacity
    }

    fn len(&self) -> usize {
        self.len
    }

    fn bytes(&self) -> usize {
        self.raw.bytes
    }

    fn insert(&mut self, key: &K, value: u32) -> Result<(), Full> {
        if self.insert_burst(std::slice::from_ref(key), &[value]) == 1 { Ok(()) } else { Err(Full) }
    }

    fn insert_burst(&mut self, keys: &[K], values: &[u32]) -> usize {
        let inserted = whole_bursts(keys, values, |keys, values| self.raw.insert(keys, values));
        self.len += inserted;
        inserted
    }

    fn remove(&mut self, key: &K, value: u32) -> bool {
        self.remove_burst(std::slice::from_ref(key), &[value]) == 1
    }

    fn remove_burst(&mut self, keys: &[K], values: &[u32]) -> usize {
        let bursts = keys.chunks(BURST).zip(values.chunks(BURST));
        let removed = bursts.map(|(keys, values)| self.raw.remove(keys, values)).sum();
        self.len -= removed;
        removed
    }

    fn replace(&mut self, key: &K, old: u32, new: u32) -> bool {
        self.raw.find(key) == Some(old) && self.raw.insert(std::slice::from_ref(key), &[new]) == 1
    }

    fn scan(&self, from: u32, visit: &mut dyn FnMut(u32)) -> Option<u32> {
        self.raw.scan(from, visit)
    }
}

/// Sums what `insert` did with each burst, up to the first that was not done whole.
fn whole_bursts<K>(keys: &[K], values: &[u32], mut insert: impl FnMut(&[K], &[u32]) -> usize) -> usize {
    let mut inserted = 0;
    for (keys, values) in keys.chunks(BURST).zip(values.chunks(BURST)) {
        let count = insert(keys, values);
        inserted += count;
        if count < keys.len().min(values.len()) {
            break;
        }
    }
    inserted
}

/// An rte_hash and its memory. Its methods take `&self`; who may call which of them at the same time is up to who owns
/// it and to the flags. Bursts are of at most [`BURST`] keys; more are left out.
struct Raw<K> {
    hash: NonNull<RawHash>,
    /// For a lock-free table.
    qsbr: Option<NonNull<RawQsbr>>,
    flags: RteHashFlags,
    capacity: usize,
    bytes: usize,
    heap: RteHeap,
    key: PhantomData<K>,
}

// SAFETY: an rte_hash knows no thread but by the lcore id of who writes, which is asked for at each write.
unsafe impl<K: Send> Send for Raw<K> {}
// SAFETY: what runs at the same time is decided by the owners: RteHash reads with `&self` and writes with `&mut self`
// only, and SharedRteHash holds back what the flags do not protect.
unsafe impl<K: Sync> Sync for Raw<K> {}

impl<K> Drop for Raw<K> {
    fn drop(&mut self) {
        // Freeing empties the defer queue, into the cache of the calling thread's lcore: without an lcore id DPDK would
        // write anywhere. Where there is none to be had, the table stays.
        if self.flags.protects_writers() && ensure_registered().is_err() {
            return;
        }
        let qsbr = self.qsbr.map_or(std::ptr::null_mut(), NonNull::as_ptr);
        // SAFETY: both were made together and are used no more: every reader borrows or shares the table. The thread has
        // an lcore id, if they are asked for.
        unsafe { ffi::hairpin_hash_free(self.hash.as_ptr(), qsbr) }
    }
}

impl<K: PackedKey> Raw<K> {
    fn new(capacity: usize, flags: RteHashFlags, seed: u32, function: HashFunction) -> Result<Raw<K>, Error> {
        if !(CAPACITY_MIN..=CAPACITY_MAX).contains(&capacity) {
            return Err(Error::Capacity(capacity));
        }
        if flags.is_transactional() {
            match Transactions::probe() {
                Transactions::Work => {}
                found => return Err(Error::NoTransactions(flags, found)),
            }
        }
        let (entries, length) = (capacity as u32, K::LENGTH as u32);
        let name = unique_name();
        // SAFETY: computes from the numbers.
        let memory = unsafe { ffi::hairpin_hash_memory(entries, length, flags.bits()) };
        let heap = RteHeap::new(name.clone(), memory)?;
        let (mut hash, mut qsbr, mut queue) = (std::ptr::null_mut(), std::ptr::null_mut(), 0);
        // SAFETY: the name is copied, the heap is there, and the results have room.
        let code = unsafe {
            ffi::hairpin_hash_create(
                name.as_ptr(),
                entries,
                length,
                seed,
                i32::from(function == HashFunction::Jhash),
                flags.bits(),
                heap.socket(),
                &raw mut hash,
                &raw mut qsbr,
                &raw mut queue,
            )
        };
        const WHAT: &str = "making an rte_hash (a lock-free one needs 16 bytes per entry of EAL's own memory as well)";
        Error::of(code, WHAT)?;
        let hash =
            NonNull::new(hash).ok_or(Error::Dpdk(hairpin_dpdk::Error::Call { what: WHAT, code: libc::EINVAL }))?;
        let bytes = heap.used() + queue;
        Ok(Raw { hash, qsbr: NonNull::new(qsbr), flags, capacity, bytes, heap, key: PhantomData })
    }

    #[inline]
    fn find(&self, key: &K) -> Option<u32> {
        let mut value = 0;
        let found = K::packed(std::slice::from_ref(key), |bytes| {
            // SAFETY: the table is there, and the key is as long as it was made for.
            unsafe { ffi::hairpin_hash_find_one(self.hash.as_ptr(), bytes.as_ptr(), &raw mut value) }
        });
        (found != 0).then_some(value)
    }

    fn find_burst(&self, keys: &[K], out: &mut [Option<u32>]) {
        let count = keys.len().min(out.len()).min(BURST);
        if count == 0 {
            return;
        }
        let mut values = [0; BURST];
        let hits = K::packed(&keys[..count], |bytes| {
            let (length, count) = (K::LENGTH as u32, count as u32);
            // SAFETY: `count` packed keys of the table's length, at most BURST, and as much room for values.
            unsafe { ffi::hairpin_hash_find(self.hash.as_ptr(), bytes.as_ptr(), length, count, values.as_mut_ptr()) }
        });
        for (i, (out, value)) in out.iter_mut().zip(values).take(count).enumerate() {
            *out = (hits >> i & 1 != 0).then_some(value);
        }
    }

    /// How many of a burst were added, in order.
    fn insert(&self, keys: &[K], values: &[u32]) -> usize {
        self.write(keys, values.len(), |per_lcore, bytes, count| {
            let (hash, length) = (self.hash.as_ptr(), K::LENGTH as u32);
            // SAFETY: `count` packed keys and no fewer values.
            unsafe { ffi::hairpin_hash_insert(hash, per_lcore, bytes.as_ptr(), length, values.as_ptr(), count) }
        })
    }

    /// How many of a burst were there with these values and have been removed.
    fn remove(&self, keys: &[K], values: &[u32]) -> usize {
        self.write(keys, values.len(), |per_lcore, bytes, count| {
            let (hash, length) = (self.hash.as_ptr(), K::LENGTH as u32);
            // SAFETY: `count` packed keys, at most BURST, and no fewer values.
            unsafe { ffi::hairpin_hash_remove(hash, per_lcore, bytes.as_ptr(), length, values.as_ptr(), count) }
        })
    }

    fn remove_keys(&self, keys: &[K]) -> usize {
        self.write(keys, keys.len(), |per_lcore, bytes, count| {
            let (hash, length) = (self.hash.as_ptr(), K::LENGTH as u32);
            // SAFETY: `count` packed keys.
            unsafe { ffi::hairpin_hash_remove_keys(hash, per_lcore, bytes.as_ptr(), length, count) }
        })
    }

    /// Lets `call` write a burst of at most `limit` keys, as who it has to be: 0 when this thread can get no lcore id.
    #[inline]
    fn write(&self, keys: &[K], limit: usize, call: impl Fn(i32, &[u8], u32) -> i32) -> usize {
        let count = keys.len().min(limit).min(BURST);
        if count == 0 {
            return 0;
        }
        let per_lcore = i32::from(self.flags.protects_writers());
        K::packed(&keys[..count], |bytes| {
            let mut done = call(per_lcore, bytes, count as u32);
            if done == ffi::NOT_REGISTERED && ensure_registered().is_ok() {
                done = call(per_lcore, bytes, count as u32);
            }
            usize::try_from(done).unwrap_or(0)
        })
    }

    fn scan(&self, from: u32, visit: &mut dyn FnMut(u32)) -> Option<u32> {
        let mut values = [0; SCAN];
        let mut next = from;
        // SAFETY: any position is accepted, and there is room for so many values.
        let seen = unsafe {
            ffi::hairpin_hash_scan(self.hash.as_ptr(), &raw mut next, values.as_mut_ptr(), SCAN as u32) as usize
        };
        values.iter().take(seen).for_each(|&value| visit(value));
        (seen == SCAN).then_some(next)
    }
}

/// DPDK finds tables, rings and heaps by name; 19 letters at most, so that it cuts none off.
fn unique_name() -> CString {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    CString::new(format!("hairpin{:x}", number & 0xffff_ffff)).unwrap_or_default()
}

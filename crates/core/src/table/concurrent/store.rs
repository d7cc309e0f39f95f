//! Bare keys and values for any number of threads, at positions that are reused only when no reader can be reading
//! them: what the values of a [`super::Concurrent`] can lead to where there is no connection slab, above all when
//! tables are measured. The counterpart of `rte_hash` with `rte_hash_rcu_qsbr_add`.
//!
//! # Life of a position
//! A [`Writer`] takes a free one, writes key and value ([`Writer::put`]), and its caller inserts it into an index.
//! Later it is removed from the index first and [retired](Writer::retire) then. When a grace period has passed, it is
//! free again.
//!
//! # Bounds
//! A writer keeps retired positions up to an eighth of the capacity ([`SharedStore::retired_max`]; some milliseconds of
//! removals at full speed, so that a reader may lose its processor for as long); if readers have not let any of them go
//! by then, the next one is refused, and the writer keeps it and tries again later. It keeps up to 192 free ones to
//! itself; all others lie in a common pool, from which and to which they go 64 at a time. An entry takes the size of
//! its key and value, each rounded up to 8 bytes, together to a power of two, so that none lies across two lines that
//! finds room in one (a key of 16 bytes and a value of 8: 32), and nothing else: free positions are chained through
//! their own first words.
//!
//! # Safe in any case
//! Entries are read and written as atomic words, so that even a caller that breaks the rules (reads without being
//! registered, or asks about a position found long ago) gets nonsense at worst, not undefined behaviour.

use super::quiescence::{Quiescence, QuiescenceReader};
use super::retired::{BATCH, RetiredBatch, RetiredPositions};
use crate::table::fetch::Fetch;
use crate::table::sync::{Apart, AtomicU32, AtomicU64, LINE, Ordering, Words, spin};
use crate::table::{Entries, Position};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::UnsafeCell;
use core::marker::PhantomData;
use core::mem::MaybeUninit;
use core::ops::Range;

/// Batches of retired positions that a writer keeps: at least, and at most.
const BATCHES: (usize, usize) = (128, 16_384);
/// Entries that a store can have at most.
pub const CAPACITY_MAX: usize = 1 << 31;
/// No position.
const NONE: u32 = u32::MAX;

/// A type that is its bytes.
///
/// # Safety
/// It has no padding, and any bytes are a valid value of it.
pub unsafe trait PlainData: Copy + Send + Sync + 'static {}

// SAFETY: an array of bytes.
unsafe impl<const N: usize> PlainData for [u8; N] {}
// SAFETY: an integer.
unsafe impl PlainData for u32 {}
// SAFETY: an integer.
unsafe impl PlainData for u64 {}

/// There is no room for another retired position: readers may still read those there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StillRead;

impl core::fmt::Display for StillRead {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("too many removed entries wait for their readers")
    }
}

impl core::error::Error for StillRead {}

/// A value that is put in and read out again.
type Of<K, V> = fn(K, V) -> (K, V);

/// The store.
pub struct SharedStore<K, V> {
    words: Words,
    fetch: Fetch,
    capacity: usize,
    /// From here on no position was ever used.
    fresh: Apart<AtomicU32>,
    pool: ChainPool,
    quiescence: Arc<Quiescence>,
    of: PhantomData<Of<K, V>>,
}

/// The words of a `T`.
const fn words_of<T>() -> usize {
    size_of::<T>().div_ceil(8)
}

impl<K: PlainData, V: PlainData> SharedStore<K, V> {
    /// Words of an entry: at least one, for the chain of free ones; a power of two.
    const WORDS: usize = (words_of::<K>() + words_of::<V>()).next_power_of_two();

    /// A store of `capacity` entries, at most [`CAPACITY_MAX`], for at most `readers_max` readers at a time.
    pub fn new(capacity: usize, readers_max: usize) -> SharedStore<K, V> {
        let capacity = capacity.min(CAPACITY_MAX);
        let words = Words::new(capacity * Self::WORDS);
        SharedStore {
            fetch: Fetch::entries(size_of_val(&*words)),
            words,
            capacity,
            fresh: Apart(AtomicU32::new(0)),
            pool: ChainPool::default(),
            quiescence: Arc::new(Quiescence::new(readers_max)),
            of: PhantomData,
        }
    }

    /// Entries for which there is room.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Bytes taken.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.words)
    }

    /// Retired positions that a writer keeps at most: an eighth of the capacity, 8,192 to 1,048,576.
    pub fn retired_max(&self) -> usize {
        (self.capacity / 8 / BATCH).clamp(BATCHES.0, BATCHES.1) * BATCH
    }

    /// Registers a reader; `None` if there are as many as there may be.
    pub fn reader(&self) -> Option<QuiescenceReader> {
        self.quiescence.register()
    }

    /// Readers, and what was retired.
    pub fn quiescence(&self) -> &Arc<Quiescence> {
        &self.quiescence
    }

    /// A writer.
    pub fn writer(self: &Arc<Self>) -> Writer<K, V> {
        Writer {
            store: Arc::clone(self),
            fresh: 0..0,
            here: Chain::EMPTY,
            spare: Chain::EMPTY,
            retired: RetiredPositions::new(self.retired_max() / BATCH),
        }
    }

    /// The key at `position`; nonsense if none was put there. `None` beyond the end.
    #[inline]
    pub fn key(&self, position: Position) -> Option<K> {
        Some(load(self.entry(position)?))
    }

    /// The value at `position`; nonsense if none was put there. `None` beyond the end.
    #[inline]
    pub fn value(&self, position: Position) -> Option<V> {
        self.entry(position)?.get(words_of::<K>()..).map(load)
    }

    #[inline]
    fn entry(&self, position: Position) -> Option<&[AtomicU64]> {
        let start = (position as usize).checked_mul(Self::WORDS)?;
        self.words.get(start..start.checked_add(Self::WORDS)?)
    }

    /// The first word of a free entry: what is next to it in its chain.
    fn link(&self, position: Position) -> Option<&AtomicU64> {
        self.entry(position)?.first()
    }

    /// Takes up to [`BATCH`] positions that were never used.
    fn take_fresh(&self) -> Range<u32> {
        let end = |start: u32| (start as usize + BATCH).min(self.capacity) as u32;
        let taken = self.fresh.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |start| {
            ((start as usize) < self.capacity).then(|| end(start))
        });
        taken.map_or(0..0, |start| start..end(start))
    }
}

impl<K: PlainData + PartialEq, V: PlainData> Entries<K> for SharedStore<K, V> {
    #[inline]
    fn is(&self, value: u32, key: &K) -> bool {
        self.key(value).is_some_and(|there| there == *key)
    }

    #[inline]
    fn prefetch(&self, value: u32) {
        let first = self.words.as_ptr().wrapping_add((value as usize).wrapping_mul(Self::WORDS));
        if Self::WORDS > LINE {
            self.fetch.line(first.wrapping_add(Self::WORDS - 1));
        }
        self.fetch.line(first);
    }
}

/// Reads a `T` from the words it was stored to.
#[inline]
fn load<T: PlainData>(words: &[AtomicU64]) -> T {
    let mut value = MaybeUninit::<T>::uninit();
    let bytes = value.as_mut_ptr().cast::<u8>();
    for (i, word) in words.iter().take(words_of::<T>()).enumerate() {
        let word = word.load(Ordering::Relaxed).to_ne_bytes();
        let count = (size_of::<T>() - 8 * i).min(8);
        // SAFETY: `count` bytes from `8 * i` on lie within the value, because `i` is below the number of its words.
        unsafe { core::ptr::copy_nonoverlapping(word.as_ptr(), bytes.add(8 * i), count) }
    }
    assert!(words.len() >= words_of::<T>());
    // SAFETY: all bytes have been written, and any bytes are a `T: Plain`.
    unsafe { value.assume_init() }
}

/// Writes a `T`.
#[inline]
fn store<T: PlainData>(words: &[AtomicU64], value: &T) {
    let bytes = core::ptr::from_ref(value).cast::<u8>();
    for (i, place) in words.iter().take(words_of::<T>()).enumerate() {
        let mut word = [0; 8];
        let count = (size_of::<T>() - 8 * i).min(8);
        // SAFETY: `count` bytes from `8 * i` on lie within the value, and are initialized: a `T: Plain` has no padding.
        unsafe { core::ptr::copy_nonoverlapping(bytes.add(8 * i), word.as_mut_ptr(), count) }
        place.store(u64::from_ne_bytes(word), Ordering::Relaxed);
    }
}

/// Free positions, each with the next one in its first word (lower half), up to [`BATCH`] of them.
#[derive(Clone, Copy)]
struct Chain {
    first: u32,
    /// At least as many as there are.
    count: usize,
}

impl Chain {
    const EMPTY: Chain = Chain { first: NONE, count: 0 };
}

/// Chains that no writer has, one after the other (upper halves of their first words), and what writers have left.
#[derive(Default)]
struct ChainPool {
    taken: Apart<AtomicU32>,
    chains: UnsafeCell<ChainHeap>,
}

struct ChainHeap {
    first: u32,
    left: Vec<RetiredPositions>,
}

impl Default for ChainHeap {
    fn default() -> ChainHeap {
        ChainHeap { first: NONE, left: Vec::new() }
    }
}

// SAFETY: the heap is reached through `ChainPool::with` only, which lets one in at a time; it may go from thread to thread.
unsafe impl Sync for ChainPool {}

impl ChainPool {
    fn with<R>(&self, act: impl FnOnce(&mut ChainHeap) -> R) -> R {
        struct Give<'a>(&'a AtomicU32);
        impl Drop for Give<'_> {
            fn drop(&mut self) {
                self.0.store(0, Ordering::Release);
            }
        }
        while self.taken.compare_exchange_weak(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            spin();
        }
        let _give = Give(&self.taken);
        // SAFETY: the word was 0 and is 1 now, and any other thread finds it so until `_give` is dropped, after
        // `act`.
        act(unsafe { &mut *self.chains.get() })
    }
}

/// A writer, which puts entries into a [`SharedStore`] and retires them.
pub struct Writer<K: PlainData, V: PlainData> {
    store: Arc<SharedStore<K, V>>,
    /// Never used, and this writer's.
    fresh: Range<u32>,
    /// Free; from this one they are taken, and to it they are added.
    here: Chain,
    /// Free; full or empty.
    spare: Chain,
    retired: RetiredPositions,
}

impl<K: PlainData, V: PlainData> Writer<K, V> {
    /// The store.
    pub fn store(&self) -> &Arc<SharedStore<K, V>> {
        &self.store
    }

    /// Writes an entry, which is in no index yet; `None` if there is no free position. (Other writers may have some.)
    #[inline]
    pub fn put(&mut self, key: &K, value: &V) -> Option<Position> {
        let position = self.take()?;
        let entry = self.store.entry(position)?;
        store(entry, key);
        store(entry.get(words_of::<K>()..)?, value);
        Some(position)
    }

    /// Says that `position` is in no index any more. It is reused when no reader can still read it.
    ///
    /// # Errors
    /// [`StillRead`] if [`SharedStore::retired_max`] others wait and none can be reused yet: nothing is changed, to be
    /// tried again.
    #[inline]
    pub fn retire(&mut self, position: Position) -> Result<(), StillRead> {
        if !self.retired.push(position) {
            self.reclaim();
            if !self.retired.push(position) {
                return Err(StillRead);
            }
        }
        if self.retired.is_batch_full() {
            self.retired.close(&self.store.quiescence);
            self.reclaim();
        }
        Ok(())
    }

    /// Frees a position that was put and never inserted into an index.
    pub fn discard(&mut self, position: Position) {
        self.free(position);
    }

    /// Frees what readers have released; how many positions.
    pub fn reclaim(&mut self) -> usize {
        let mut count = 0;
        while let Some(batch) = self.retired.pop(&self.store.quiescence) {
            self.free_batch(&batch);
            count += batch.positions().len();
        }
        count
    }

    fn free_batch(&mut self, batch: &RetiredBatch) {
        for &position in batch.positions() {
            self.free(position);
        }
    }

    #[inline]
    fn free(&mut self, position: Position) {
        if self.here.count == BATCH {
            let full = core::mem::replace(&mut self.spare, self.here);
            self.here = Chain::EMPTY;
            if full.count > 0 {
                self.give(full);
            }
        }
        if let Some(link) = self.store.link(position) {
            link.store(u64::from(self.here.first), Ordering::Relaxed);
            self.here = Chain { first: position, count: self.here.count + 1 };
        }
    }

    #[inline]
    fn take(&mut self) -> Option<Position> {
        if self.here.first == NONE {
            if let Some(position) = self.fresh.next() {
                return Some(position);
            }
            self.refill();
        }
        if self.here.first == NONE {
            return self.fresh.next();
        }
        let position = self.here.first;
        self.here.first = self.store.link(position)?.load(Ordering::Relaxed) as u32;
        self.here.count -= 1;
        Some(position)
    }

    /// Gets positions from wherever there are some: the spare chain, the pool, those never used, those that were
    /// retired here, and those that writers have left behind.
    #[cold]
    fn refill(&mut self) {
        self.here = core::mem::replace(&mut self.spare, Chain::EMPTY);
        if self.here.first == NONE {
            self.here = self.take_from_pool();
        }
        if self.here.first == NONE {
            self.fresh = self.store.take_fresh();
        }
        if self.here.first == NONE && self.fresh.is_empty() {
            self.retired.close(&self.store.quiescence);
            if self.reclaim() == 0 {
                self.inherit();
            }
        }
    }

    fn give(&mut self, chain: Chain) {
        let store = &self.store;
        store.pool.with(|heap| {
            if let Some(link) = store.link(chain.first) {
                let next = link.load(Ordering::Relaxed) & u64::from(u32::MAX);
                link.store(next | u64::from(heap.first) << 32, Ordering::Relaxed);
                heap.first = chain.first;
            }
        });
    }

    fn take_from_pool(&mut self) -> Chain {
        let store = &self.store;
        store.pool.with(|heap| {
            let first = heap.first;
            let Some(link) = store.link(first) else { return Chain::EMPTY };
            heap.first = (link.load(Ordering::Relaxed) >> 32) as u32;
            Chain { first, count: BATCH }
        })
    }

    /// Frees a batch that a writer has left and that readers have released.
    fn inherit(&mut self) {
        let store = &self.store;
        let batch = store.pool.with(|heap| {
            let batch = heap.left.iter_mut().find_map(|left| left.pop(&store.quiescence));
            heap.left.retain(|left| !left.is_empty());
            batch
        });
        if let Some(batch) = batch {
            self.free_batch(&batch);
        }
    }
}

/// A writer's free positions go to the pool; those that wait for readers are left to the other writers.
impl<K: PlainData, V: PlainData> Drop for Writer<K, V> {
    fn drop(&mut self) {
        for position in self.fresh.clone() {
            self.free(position);
        }
        for chain in [self.here, self.spare] {
            if chain.first != NONE {
                self.give(chain);
            }
        }
        self.retired.close(&self.store.quiescence);
        if !self.retired.is_empty() {
            let left = core::mem::replace(&mut self.retired, RetiredPositions::new(0));
            self.store.pool.with(|heap| heap.left.push(left));
        }
    }
}

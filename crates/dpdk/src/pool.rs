//! Pools of mbufs.

use crate::eal::Eal;
use crate::error::Error;
use crate::ffi::port::{self, RawPool};
use crate::mbuf::{Chains, Mbuf};
use crate::memory::Mapping;
use hairpin_core::frame::Batch;
use std::ffi::CString;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The parameters of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolOptions {
    /// Its name in messages.
    pub name: String,
    /// How many mbufs, 1 to 2^30. A power of two less one wastes least.
    pub mbufs: u32,
    /// Bytes of a frame at most, 128 to 65,000: with an MTU of 1500, 1522 at least. DPDK's own default is 2048.
    pub data_room: u16,
    /// Mbufs that each lcore keeps for itself, 0 to 512, at most two thirds of all. A thread that is registered with EAL
    /// ([`Eal::register_thread`]) takes from its own and gives back to its own, without a word to others, who cannot have
    /// these: up to one and a half times as many for each such thread, until it ends.
    pub cache: u16,
}

impl Default for PoolOptions {
    fn default() -> PoolOptions {
        PoolOptions { name: "frames".into(), mbufs: 16_383, data_room: 2048, cache: 256 }
    }
}

/// A pool of mbufs (`rte_mempool`), of a fixed number.
///
/// If EAL has neither hugepages nor devices that would have to know (`pci`), the mbufs stand in memory of their own, on
/// large pages as far as the kernel has some ([`Pages`](crate::memory::Pages)): a pool is read all over.
///
/// Clones are the same pool; any thread may use it. The last one to go leaves the pool to the next
/// [`MbufPool::create`] that asks for the same: its memory is never unmapped, so that a frame may outlive its pool.
#[derive(Clone, Debug)]
pub struct MbufPool(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    options: PoolOptions,
    raw: RawMempool,
}

#[derive(Clone, Copy, Debug)]
struct RawMempool(NonNull<RawPool>);

// SAFETY: a mempool is made to be used by several threads.
unsafe impl Send for RawMempool {}
// SAFETY: as above.
unsafe impl Sync for RawMempool {}

/// Pools that are no longer in use.
static RETIRED: Mutex<Vec<(PoolOptions, RawMempool)>> = Mutex::new(Vec::new());
/// Names them apart for DPDK.
static NEXT: AtomicU32 = AtomicU32::new(0);

impl MbufPool {
    /// A pool, all its mbufs free. Its memory is taken now.
    ///
    /// # Errors
    /// [`Error::Call`] when there is not that much memory ([`EalOptions`](crate::EalOptions)), or the numbers make no
    /// sense.
    pub fn create(eal: &Eal, options: PoolOptions) -> Result<MbufPool, Error> {
        let raw = match retired(&options) {
            Some(raw) => raw,
            None => make(eal, &options)?,
        };
        Ok(MbufPool(Arc::new(Inner { options, raw })))
    }

    /// The parameters it was made with.
    pub fn options(&self) -> &PoolOptions {
        &self.0.options
    }

    /// How many mbufs it has.
    pub fn size(&self) -> u32 {
        self.0.options.mbufs
    }

    /// How many of them are not in the pool: frames, and what drivers hold in their queues. Exact while no thread takes or
    /// gives any.
    pub fn in_use(&self) -> u32 {
        in_use(self.0.raw)
    }

    /// An empty frame, if there is one left.
    pub fn allocate(&self) -> Option<Mbuf> {
        let mut one = Batch::new();
        self.allocate_burst(&mut one, 1);
        one.pop()
    }

    /// Adds up to `count` empty frames to `out`, as far as there is room in it, and returns how many.
    pub fn allocate_burst(&self, out: &mut Batch<Mbuf>, count: usize) -> usize {
        let pool = self.raw();
        // SAFETY: the shim gives as many mbufs as it says, at most as many as it is told.
        unsafe {
            Mbuf::append_fresh(out, (0, count), &mut Chains::default(), |first, most| {
                port::hairpin_pool_allocate(pool, first, most)
            })
        }
    }

    pub(crate) fn raw(&self) -> *mut RawPool {
        self.0.raw.0.as_ptr()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let mut retired = RETIRED.lock().unwrap_or_else(PoisonError::into_inner);
        retired.push((self.options.clone(), self.raw));
    }
}

fn in_use(pool: RawMempool) -> u32 {
    // SAFETY: mempools are never freed.
    unsafe { port::hairpin_pool_in_use(pool.0.as_ptr()) }
}

/// A pool that was left behind whole and is of this make.
fn retired(wanted: &PoolOptions) -> Option<RawMempool> {
    let same = |options: &PoolOptions| {
        (options.mbufs, options.data_room, options.cache) == (wanted.mbufs, wanted.data_room, wanted.cache)
    };
    let mut retired = RETIRED.lock().unwrap_or_else(PoisonError::into_inner);
    let found = retired.iter().position(|(options, raw)| same(options) && in_use(*raw) == 0)?;
    Some(retired.swap_remove(found).1)
}

fn make(eal: &Eal, options: &PoolOptions) -> Result<RawMempool, Error> {
    const WHAT: &str = "making a pool of mbufs (the cache at most 512 and two thirds of them)";
    if !(128..=65_000).contains(&options.data_room) {
        return Err(Error::Call { what: "a pool's data room is 128 to 65,000 bytes", code: libc::EINVAL });
    }
    let name = CString::new(format!("frames-{}", NEXT.fetch_add(1, Ordering::Relaxed))).unwrap_or_default();
    let mut memory = match eal.has_good_memory() {
        true => None,
        false => {
            // SAFETY: computes from the numbers.
            let bytes = unsafe { port::hairpin_pool_memory(options.mbufs, options.data_room) };
            let no_memory =
                |error: io::Error| Error::Call { what: WHAT, code: error.raw_os_error().unwrap_or(libc::EIO) };
            Some(Mapping::new(bytes).map_err(no_memory)?)
        }
    };
    let (address, length) = memory.as_ref().map_or((std::ptr::null_mut(), 0), |m| (m.address.as_ptr(), m.length));
    let mut pool = std::ptr::null_mut();
    // SAFETY: the name is a C string; the memory is ours, as long as said; the pool is written when 0 is returned.
    let code = unsafe {
        let (mbufs, cache, data_room) = (options.mbufs, options.cache, options.data_room);
        port::hairpin_pool_create(name.as_ptr(), mbufs, cache, data_room, address, length, &raw mut pool)
    };
    Error::of(code, WHAT)?;
    let pool = NonNull::new(pool).ok_or(Error::Call { what: WHAT, code: libc::EIO })?;
    // From here on it is the pool's, which stays.
    if let Some(memory) = &mut memory {
        memory.kept = true;
    }
    Ok(RawMempool(pool))
}

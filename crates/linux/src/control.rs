//! The memory that the programs and the process share: heartbeat, tickets, known connections, policer rates.
//!
//! Reading and writing it costs no system call. It stays mapped as long as the process lives, so that threads may keep
//! references whatever becomes of the [`LoadedPlane`](crate::programs::LoadedPlane).

use crate::abi::{self, CPUS_MAX, ControlBlock, KNOWN_CELLS, RuleQuery, SERVICES_MAX, WORKERS_MAX};
use crate::programs::Maps;
use anyhow::{Context, Result};
use hairpin_core::keys::Secret;
use hairpin_core::l7::cookie::{Cookies, EpochKeys};
use hairpin_core::time::Time;
use libbpf_rs::{MapCore, MapHandle};
use std::io;
use std::mem::{offset_of, size_of};
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

/// Elements of the map `queries`: one per worker and one for all other threads.
const QUERIES: usize = WORKERS_MAX + 1;

/// [`ControlBlock`] as it is shared: programs read it at any time, so every field is written whole.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct SharedControlBlock {
    pub(crate) abi_version: AtomicU32,
    pub(crate) abi_layout: AtomicU32,
    pub(crate) steering_key: [AtomicU64; 2],
    pub(crate) workers: AtomicU32,
    pub(crate) absent_drop: AtomicU32,
    pub(crate) heartbeat_ns: AtomicU64,
    pub(crate) heartbeat_timeout_ns: AtomicU64,
    pub(crate) policer_backend_pps: AtomicU32,
    pub(crate) handover_ms: AtomicU32,
    pub(crate) programs: AtomicU64,
    pub(crate) to_kernel_mark: AtomicU32,
    pub(crate) network: AtomicU32,
    pub(crate) cookie_keys: [[AtomicU64; 2]; 2],
    pub(crate) cookie_epoch: AtomicU64,
    pub(crate) cookie_ahead_ns: AtomicU64,
    pub(crate) clock_ahead: AtomicU32,
    pub(crate) direct: AtomicU32,
    pub(crate) follow: AtomicU32,
    pub(crate) serve_ms: AtomicU32,
    pub(crate) check_device: AtomicU32,
    pub(crate) rule_buckets: AtomicU32,
    pub(crate) rule_keys: [AtomicU64; 5],
    pub(crate) rules_v4_max: AtomicU32,
    spill_buckets: AtomicU32,
}

const _: () = {
    assert!(size_of::<SharedControlBlock>() == size_of::<ControlBlock>());
    assert!(offset_of!(SharedControlBlock, abi_version) == 0 && offset_of!(SharedControlBlock, abi_layout) == 4);
    assert!(offset_of!(SharedControlBlock, workers) == offset_of!(ControlBlock, workers));
    assert!(offset_of!(SharedControlBlock, heartbeat_ns) == offset_of!(ControlBlock, heartbeat_ns));
    assert!(offset_of!(SharedControlBlock, handover_ms) == offset_of!(ControlBlock, handover_ms));
    assert!(offset_of!(SharedControlBlock, programs) == offset_of!(ControlBlock, programs));
    assert!(offset_of!(SharedControlBlock, to_kernel_mark) == offset_of!(ControlBlock, to_kernel_mark));
    assert!(offset_of!(SharedControlBlock, cookie_keys) == offset_of!(ControlBlock, cookie_keys));
    assert!(offset_of!(SharedControlBlock, cookie_epoch) == offset_of!(ControlBlock, cookie_epoch));
    assert!(offset_of!(SharedControlBlock, cookie_ahead_ns) == offset_of!(ControlBlock, cookie_ahead_ns));
    assert!(offset_of!(SharedControlBlock, rule_keys) == offset_of!(ControlBlock, rule_keys));
};

/// The shared memory.
#[derive(Debug)]
pub struct Control {
    block: &'static SharedControlBlock,
    processed: &'static [AtomicU32],
    known: &'static [AtomicU8],
    client_pps: &'static [AtomicU32],
    queries: NonNull<RuleQuery>,
    queries_taken: [AtomicBool; QUERIES],
}

// SAFETY: `queries` points to memory that is never unmapped; an element is used only through the one [`QuerySlot`] that
// may exist for it.
unsafe impl Send for Control {}
// SAFETY: as above.
unsafe impl Sync for Control {}

impl Control {
    pub(crate) fn map(maps: &Maps) -> Result<Control> {
        Ok(Control {
            block: block(maps.named("control")?)?,
            processed: words(maps.named("processed")?, WORKERS_MAX * CPUS_MAX)?,
            known: words(maps.named("known")?, KNOWN_CELLS)?,
            client_pps: words(maps.named("policer_rates")?, SERVICES_MAX)?,
            queries: map(maps.named("queries")?, QUERIES * size_of::<RuleQuery>())?.cast(),
            queries_taken: [const { AtomicBool::new(false) }; QUERIES],
        })
    }

    /// Says that the process serves its workers. Without it for longer than the timeout, the programs do without them.
    pub fn heartbeat(&self, now: Time) {
        self.block.heartbeat_ns.store(now.as_nanos(), Ordering::Relaxed);
    }

    /// The control block.
    pub(crate) fn block(&self) -> &'static SharedControlBlock {
        self.block
    }

    /// Says that `worker` has finished with every packet up to the one with `ticket` (24 bits) that `cpu` handed to it:
    /// each has been sent or dropped.
    pub fn publish(&self, worker: usize, cpu: u8, ticket: u32) {
        if let Some(cell) = self.processed.get(worker * CPUS_MAX + usize::from(cpu)) {
            // Frames sent by the worker must be seen as sent first.
            cell.store(ticket & ((1 << abi::TICKET_BITS) - 1), Ordering::Release);
        }
    }

    /// Counters of live connections by steering hash, for [`hairpin_core::worker`]: a packet whose counter (the hash
    /// modulo their number) is not zero is not policed.
    pub fn known(&self) -> &'static [AtomicU8] {
        self.known
    }

    /// Sets all of [`Control::known`] to zero, when the workers are about to count anew: at adoption, while no worker
    /// of any process counts. Packets of connections that are not counted again yet are policed.
    ///
    /// Nothing else of what a dead process has left needs to be reset. The frames that waited in its TAP devices died
    /// with it, so the last tickets of each worker and CPU will not be published. That holds a fresh rule up only for
    /// as long as any other outstanding ticket would: every packet that finds its rule's fence not reached goes to the
    /// worker with a later ticket, which is published when that packet is done, and the fence moves there; `until`
    /// bounds it in any case. A publication is of the last packet, not one more packet, so lost ones are not missed
    /// later. And the 24 bits tell before from after as long as fewer than 2^23 packets of a worker and CPU are lost in
    /// a row; with more, a rule takes over at once, which is right, as there is no packet left to wait for.
    pub fn forget_known(&self) {
        for cell in self.known {
            // Reading first leaves memory that is zero already alone.
            if cell.load(Ordering::Relaxed) != 0 {
                cell.store(0, Ordering::Relaxed);
            }
        }
    }

    /// The secrets of SYN cookies: of even epochs and of odd ones.
    pub fn cookie_keys(&self) -> [[u64; 2]; 2] {
        [0, 1].map(|epoch: usize| [0, 1].map(|word: usize| self.block.cookie_keys[epoch][word].load(Ordering::Relaxed)))
    }

    /// Makes and checks the same SYN cookies as the programs. The secrets change about once an hour, the clock when it
    /// is set: workers that check cookies take them anew every minute or more often.
    pub fn cookies(&self) -> Cookies {
        Cookies::new(self.cookie_keys()).ahead(self.block.cookie_ahead_ns.load(Ordering::Relaxed))
    }

    /// Draws the key of the next epoch of SYN cookies, once it is time ([`Cookies::renewal`]); to be called every few
    /// minutes or more often. Whether it has. Until the next epoch begins that key is not used, so it does not matter
    /// that it is not written at once, nor that two processes may do so. If an epoch passes without a call, as while
    /// there is no process, the key of the one before the last is used again: it is as secret as it was. Keys that were
    /// shared ([`Control::share_cookies`]) give way to own ones at once.
    pub fn renew_cookie_key(&self, now: Time) -> io::Result<bool> {
        if self.block.cookie_ahead_ns.load(Ordering::Relaxed) != 0 {
            let keys = EpochKeys { keys: [draw()?, draw()?], last: Cookies::epoch(now) + 1 };
            self.put_cookies(&keys, 0);
            return Ok(true);
        }
        let Some(next) = Cookies::renewal(now) else { return Ok(false) };
        if self.block.cookie_epoch.load(Ordering::Relaxed) >= next {
            return Ok(false);
        }
        for (shared, word) in self.block.cookie_keys[(next % 2) as usize].iter().zip(draw()?) {
            shared.store(word, Ordering::Relaxed);
        }
        self.block.cookie_epoch.store(next, Ordering::Relaxed);
        Ok(true)
    }

    /// The keys of SYN cookies are made of `secret`, and they use real time, which is `ahead_ns` ahead of
    /// [`cpu::now`](crate::cpu::now), modulo 2^64. To be called as often as [`Control::renew_cookie_key`] in its place.
    /// Cookies of another shared secret stay valid for the rest of its epoch, keys of this process's own do not.
    pub fn share_cookies(&self, secret: &Secret, now: Time, ahead_ns: u64) {
        let was_shared = self.block.cookie_ahead_ns.load(Ordering::Relaxed) != 0;
        let real = Time::from_nanos(now.as_nanos().wrapping_add(ahead_ns));
        let held = EpochKeys { keys: self.cookie_keys(), last: self.block.cookie_epoch.load(Ordering::Relaxed) };
        let keys = if was_shared { held.renewed(secret, real) } else { EpochKeys::of(secret, real) };
        // 0 says that they are not shared; a nanosecond does not matter.
        self.put_cookies(&keys, ahead_ns.max(1));
    }

    fn put_cookies(&self, keys: &EpochKeys, ahead_ns: u64) {
        let words = keys.keys.as_flattened();
        for (shared, word) in self.block.cookie_keys.as_flattened().iter().zip(words) {
            shared.store(*word, Ordering::Relaxed);
        }
        self.block.cookie_epoch.store(keys.last, Ordering::Relaxed);
        self.block.cookie_ahead_ns.store(ahead_ns, Ordering::Relaxed);
    }

    /// How many packets of unknown connections each CPU admits per second towards service number `service`;
    /// [`u32::MAX`]: all; 0, which is what it starts with: none, once what it had left is used up.
    pub fn set_client_rate(&self, service: usize, packets_per_s: u32) {
        if let Some(rate) = self.client_pps.get(service) {
            rate.store(packets_per_s, Ordering::Relaxed);
        }
    }

    /// Takes element `index` of `queries`, unless it is taken.
    pub(crate) fn query_slot(self: &std::sync::Arc<Control>, index: usize) -> Option<QuerySlot> {
        let taken = self.queries_taken.get(index)?;
        if taken.swap(true, Ordering::Acquire) {
            return None;
        }
        Some(QuerySlot { control: self.clone(), index })
    }
}

/// A secret from the kernel.
pub(crate) fn draw() -> io::Result<[u64; 2]> {
    let mut bytes = [0; 16];
    // SAFETY: as many bytes as are asked for lie there. So few come all at once (getrandom(2)).
    let drawn = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if drawn != bytes.len() as isize {
        return Err(io::Error::last_os_error());
    }
    let [low, high] = [0, 8].map(|at| u64::from_ne_bytes(std::array::from_fn(|byte| bytes[at + byte])));
    Ok([low, high])
}

/// The right to use an element of `queries`.
#[derive(Debug)]
pub(crate) struct QuerySlot {
    control: std::sync::Arc<Control>,
    index: usize,
}

impl QuerySlot {
    pub(crate) fn index(&self) -> u32 {
        self.index as u32
    }

    fn element(&self) -> *mut RuleQuery {
        // SAFETY: `index` is below QUERIES (`query_slot`), and that many elements are mapped.
        unsafe { self.control.queries.add(self.index).as_ptr() }
    }

    /// Writes the keys of the next query, as many as fit.
    pub(crate) fn write_keys(&mut self, keys: &[u8]) {
        // SAFETY: within the element; no other thread uses it, and the kernel only while a query runs.
        unsafe {
            let into = (&raw mut (*self.element()).keys).cast::<u8>();
            std::ptr::copy_nonoverlapping(keys.as_ptr(), into, keys.len().min(size_of_val(&(*self.element()).keys)));
        }
    }

    /// Writes the values of the next query's rules, as many as fit, beside their keys.
    pub(crate) fn write_rules(&mut self, rules: &[u8]) {
        // SAFETY: within the element; no other thread uses it, and the kernel only while a query runs.
        unsafe {
            let into = (&raw mut (*self.element()).rules).cast::<u8>();
            std::ptr::copy_nonoverlapping(rules.as_ptr(), into, rules.len().min(size_of_val(&(*self.element()).rules)));
        }
    }

    /// Writes the sequence change of rule `index` of the next query.
    pub(crate) fn write_change(&mut self, index: usize, change: &abi::SequenceChange) {
        let index = index.min(abi::RULE_OPS_MAX - 1);
        // SAFETY: within the element; no other thread uses it, and the kernel only while a query runs.
        unsafe { (&raw mut (*self.element()).changes[index]).write(*change) }
    }

    /// The answer of the last query for its rule number `index`.
    pub(crate) fn counters(&self, index: usize) -> abi::RuleCounters {
        let index = index.min(abi::RULE_OPS_MAX - 1);
        // SAFETY: within the element; no other thread uses it, and no query runs; any value is valid.
        unsafe { (&raw const (*self.element()).counters[index]).read_volatile() }
    }
}

impl Drop for QuerySlot {
    fn drop(&mut self) {
        self.control.queries_taken[self.index].store(false, Ordering::Release);
    }
}

/// The element of the map `control`.
fn block(control: &MapHandle) -> Result<&'static SharedControlBlock> {
    let start = map(control, size_of::<ControlBlock>())?;
    // SAFETY: that many bytes are mapped for good, at a page's start; any value is valid for atomic integers, and from
    // here on they are only used as such.
    Ok(unsafe { start.cast::<SharedControlBlock>().as_ref() })
}

/// Integers that programs and process both write.
trait SharedInteger {}
impl SharedInteger for AtomicU8 {}
impl SharedInteger for AtomicU32 {}

/// The only element of `map_`, as `count` atomics.
fn words<T: SharedInteger>(map_: &MapHandle, count: usize) -> Result<&'static [T]> {
    let start = map(map_, count * size_of::<T>())?;
    // SAFETY: that many bytes are mapped for good, at a page's start, and any value is valid for an atomic integer;
    // from here on they are only used as such, by both sides.
    Ok(unsafe { std::slice::from_raw_parts(start.cast::<T>().as_ptr(), count) })
}

/// Maps the first `length` bytes of an array map, for good.
pub(crate) fn map(map: &MapHandle, length: usize) -> Result<NonNull<u8>> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let fd = map.as_fd().as_raw_fd();
    // SAFETY: a fresh mapping, which overlaps nothing.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, libc::MAP_SHARED, fd, 0) };
    if start == libc::MAP_FAILED {
        let error = io::Error::last_os_error();
        return Err(error).with_context(|| format!("cannot map {length} bytes of map {:?}", map.name()));
    }
    NonNull::new(start.cast()).context("a map was mapped at address 0")
}

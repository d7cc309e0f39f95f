//! DPDK's environment (EAL): started once, without files, and threads' membership in it.

use crate::error::Error;
use crate::ffi;
use std::cell::RefCell;
use std::ffi::{CStr, c_char};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// How EAL starts.
#[derive(Clone, Copy, Debug)]
pub struct EalOptions {
    /// Address space for EAL's own heap in MiB, 64 or more; memory is taken only as it is used. Tables bring their own,
    /// except that the defer queue of a lock-free one stands here: 16 bytes for each of more positions than it has,
    /// rounded up to a power of two (8,000,000 entries: 128 MiB; 2^23: 256 MiB).
    pub memory_mib: u32,
    /// The kind of pages that EAL's own heap is on.
    pub pages: EalPages,
    /// Whether PCI devices are probed: those that are bound to a driver for user space, or that share theirs with the
    /// kernel. Virtual devices are there in any case.
    pub pci: bool,
}

/// The kind of pages that EAL's own heap is on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EalPages {
    /// Reserved hugepages (`vm.nr_hugepages`) where enough are free, else as without.
    Auto,
    /// Reserved hugepages; without them EAL does not start. They are taken as they are needed, whatever `memory_mib` says.
    Huge,
    /// Ordinary ones.
    #[default]
    None,
}

impl Default for EalOptions {
    fn default() -> EalOptions {
        EalOptions { memory_mib: 2048, pages: EalPages::None, pci: false }
    }
}

/// DPDK, started. It stays so until the process ends. Copies are the same.
#[derive(Clone, Copy, Debug)]
pub struct Eal {
    /// EAL's memory is as good as any, or the only one that devices know.
    good_memory: bool,
}

static STARTED: AtomicBool = AtomicBool::new(false);

impl Eal {
    /// Starts EAL, without files that stay and without telemetry. By default also without hugepages (`--no-huge`, and on
    /// 22.11 that excludes `--in-memory`) and PCI devices. Pools bring memory of their own, on large pages where there
    /// are any; see [`memory`](crate::memory).
    ///
    /// The calling thread keeps its CPU affinity and signal mask: EAL starts on a thread of its own. No signal handler
    /// stays, and afterwards DPDK says only what is critical, on standard error.
    ///
    /// # Errors
    /// [`Error::AlreadyStarted`] the second time, [`Error::Start`] with EAL's messages when it fails.
    pub fn start(options: EalOptions) -> Result<Eal, Error> {
        if STARTED.swap(true, Ordering::SeqCst) {
            return Err(Error::AlreadyStarted);
        }
        let starter = std::thread::Builder::new().name("eal".into()).spawn(move || start(options));
        match starter {
            Ok(starter) => starter.join().unwrap_or(Err(Error::Start { code: libc::EIO, log: String::new() })),
            Err(error) => Err(Error::Start { code: error.raw_os_error().unwrap_or(libc::EAGAIN), log: String::new() }),
        }
    }

    /// Whether EAL's own memory is what large things should stand in: hugepages, or known to devices that fetch from it.
    pub(crate) fn has_good_memory(&self) -> bool {
        self.good_memory
    }

    /// Does something and returns what DPDK and its drivers said meanwhile, warnings and worse.
    pub(crate) fn listen<R>(&self, what: impl FnOnce() -> R) -> (R, String) {
        listen(what)
    }

    /// Gives the calling thread an lcore id, of which there are 128, until what is returned is dropped. Tables with
    /// several writers need one for each writer; they take it themselves, at the first write of a thread, if this was
    /// not called.
    ///
    /// # Errors
    /// [`Error::Call`] when all ids are taken.
    pub fn register_thread(&self) -> Result<Registration, Error> {
        ensure_registered()?;
        Ok(Registration { this_thread: PhantomData })
    }
}

/// As [`Eal::listen`].
fn listen<R>(what: impl FnOnce() -> R) -> (R, String) {
    static LISTENER: Mutex<()> = Mutex::new(());
    let _alone = LISTENER.lock().unwrap_or_else(PoisonError::into_inner);
    let mut log = vec![0u8; 16 << 10];
    // SAFETY: one listener at a time.
    unsafe { ffi::hairpin_log_listen() };
    let result = what();
    // SAFETY: the buffer is as long as is said.
    unsafe { ffi::hairpin_log_heard(log.as_mut_ptr().cast::<c_char>(), log.len()) };
    let log = CStr::from_bytes_until_nul(&log).unwrap_or_default().to_string_lossy().into_owned();
    (result, log)
}

fn start(options: EalOptions) -> Result<Eal, Error> {
    let huge = match options.pages {
        EalPages::None => false,
        EalPages::Huge => true,
        EalPages::Auto => free_hugepages_mib() >= HUGE_LEAST_MIB,
    };
    let memory_mib = options.memory_mib.max(64);
    // SAFETY: this thread does nothing else afterwards.
    let start = || unsafe { ffi::hairpin_eal_start(memory_mib, i32::from(huge), i32::from(options.pci)) };
    match listen(start) {
        (0, _) => Ok(Eal { good_memory: huge || options.pci }),
        (code, log) => Err(Error::Start { code, log }),
    }
}

/// So much must be free in hugepages for [`EalPages::Auto`] to take them, in MiB: room for a pool and some tables.
const HUGE_LEAST_MIB: u64 = 256;

/// The free memory in hugepages of all sizes, in MiB.
fn free_hugepages_mib() -> u64 {
    let Ok(sizes) = std::fs::read_dir("/sys/kernel/mm/hugepages") else { return 0 };
    let free = sizes.flatten().filter_map(|size| {
        // `hugepages-2048kB`
        let name = size.file_name().into_string().ok()?;
        let kib: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
        let free: u64 = std::fs::read_to_string(size.path().join("free_hugepages")).ok()?.trim().parse().ok()?;
        Some(free.saturating_mul(kib) >> 10)
    });
    free.sum()
}

/// The calling thread is registered with EAL; it no longer is once this is dropped.
#[derive(Debug)]
pub struct Registration {
    this_thread: PhantomData<*const ()>,
}

impl Drop for Registration {
    fn drop(&mut self) {
        let _ = REGISTERED.try_with(|registered| registered.borrow_mut().take());
    }
}

/// Unregisters its thread when it ends.
struct RegisteredThread;

impl Drop for RegisteredThread {
    fn drop(&mut self) {
        // SAFETY: made only after this thread was registered; unregistering it twice does nothing.
        unsafe { ffi::hairpin_thread_unregister() }
    }
}

thread_local! {
    static REGISTERED: RefCell<Option<RegisteredThread>> = const { RefCell::new(None) };
}

/// Registers the calling thread until it ends, if it is not registered. DPDK has to be started.
///
/// # Errors
/// [`Error::Call`] when all 128 ids are taken.
#[cold]
pub fn ensure_registered() -> Result<(), Error> {
    const WHAT: &str = "registering a thread with DPDK (an lcore id)";
    let registered = REGISTERED.try_with(|registered| {
        let mut registered = registered.borrow_mut();
        if registered.is_none() {
            // SAFETY: EAL is started, since tables and `Eal` exist only then.
            Error::of(unsafe { ffi::hairpin_thread_register() }, WHAT)?;
            *registered = Some(RegisteredThread);
        }
        Ok(())
    });
    // The thread is ending and has left already.
    registered.unwrap_or(Err(Error::Call { what: WHAT, code: libc::ESRCH }))
}

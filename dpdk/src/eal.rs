//! DPDK's environment (EAL): started once, without files, and threads' membership in it.

use crate::error::Error;
use crate::ffi;
use std::cell::RefCell;
use std::ffi::{CStr, c_char};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, Ordering};

/// How EAL starts.
#[derive(Clone, Copy, Debug)]
pub struct EalOptions {
    /// Address space for EAL's own heap in MiB, 64 or more; memory is taken only as it is used. Tables bring their own,
    /// except that the defer queue of a lock-free one stands here: 16 bytes for each of more positions than it has,
    /// rounded up to a power of two (8,000,000 entries: 128 MiB; 2^23: 256 MiB).
    pub memory_mib: u32,
}

impl Default for EalOptions {
    fn default() -> EalOptions {
        EalOptions { memory_mib: 2048 }
    }
}

/// DPDK, started. It stays so until the process ends.
#[derive(Debug)]
pub struct Eal(());

static STARTED: AtomicBool = AtomicBool::new(false);

impl Eal {
    /// Starts EAL without hugepages, files, telemetry and PCI devices. (`--no-huge`, and on 22.11 that excludes
    /// `--in-memory`. Tables bring memory of their own, on large pages where there are any; see
    /// [`Pages`](crate::Pages).)
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
        let starter = std::thread::Builder::new().name("eal".into()).spawn(move || start(options.memory_mib.max(64)));
        match starter {
            Ok(starter) => starter.join().unwrap_or(Err(Error::Start { code: libc::EIO, log: String::new() })),
            Err(error) => Err(Error::Start { code: error.raw_os_error().unwrap_or(libc::EAGAIN), log: String::new() }),
        }
    }

    /// Gives the calling thread an lcore id, of which there are 128, until what is returned is dropped. Tables with
    /// several writers need one of who writes; they see to it themselves, at the first write of a thread, if this was
    /// not called.
    ///
    /// # Errors
    /// [`Error::Call`] when all ids are taken.
    pub fn register_thread(&self) -> Result<Registration, Error> {
        ensure_registered()?;
        Ok(Registration { this_thread: PhantomData })
    }
}

fn start(memory_mib: u32) -> Result<Eal, Error> {
    let mut log = vec![0u8; 16 << 10];
    // SAFETY: the buffer is as long as is said; this thread does nothing else afterwards.
    let code = unsafe { ffi::hairpin_eal_start(memory_mib, log.as_mut_ptr().cast::<c_char>(), log.len()) };
    if code == 0 {
        return Ok(Eal(()));
    }
    let log = CStr::from_bytes_until_nul(&log).unwrap_or_default().to_string_lossy().into_owned();
    Err(Error::Start { code, log })
}

/// The calling thread is registered with EAL; it no longer is once this is dropped.
#[derive(Debug)]
pub struct Registration {
    this_thread: PhantomData<*const ()>,
}

impl Drop for Registration {
    fn drop(&mut self) {
        let _ = MEMBER.try_with(|member| member.borrow_mut().take());
    }
}

/// Unregisters its thread when it ends.
struct Member;

impl Drop for Member {
    fn drop(&mut self) {
        // SAFETY: made only after this thread was registered; unregistering it twice does nothing.
        unsafe { ffi::hairpin_thread_unregister() }
    }
}

thread_local! {
    static MEMBER: RefCell<Option<Member>> = const { RefCell::new(None) };
}

/// Registers the calling thread until it ends, if it is not registered.
#[cold]
pub(crate) fn ensure_registered() -> Result<(), Error> {
    const WHAT: &str = "registering a thread with DPDK (an lcore id)";
    let registered = MEMBER.try_with(|member| {
        let mut member = member.borrow_mut();
        if member.is_none() {
            // SAFETY: EAL is started, since tables and `Eal` exist only then.
            Error::of(unsafe { ffi::hairpin_thread_register() }, WHAT)?;
            *member = Some(Member);
        }
        Ok(())
    });
    // The thread is ending and has left already.
    registered.unwrap_or(Err(Error::Call { what: WHAT, code: libc::ESRCH }))
}

//! The cases, and what they share.

pub(crate) mod child;
mod devices;
mod memif;
mod memory;
mod packets;
mod wire;

use crate::eal;
use hairpin_core::frame::{Batch, Frame};
use hairpin_dpdk::{Mbuf, MbufPool, PoolOptions, PortQueue};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// A case and its name. It fails by panicking.
pub(crate) type Case = (&'static str, fn());

pub(crate) fn all() -> Vec<Case> {
    [memory::all(), wire::all(), devices::all(), memif::all()].concat()
}

/// How long something that has to happen is waited for.
const PATIENCE: Duration = Duration::from_secs(10);

/// A pool that must be whole in the end, but for as many mbufs as a driver is known to keep.
struct Whole(MbufPool, u32);

impl Whole {
    fn new(mbufs: u32, data_room: u16) -> Whole {
        let options = PoolOptions { mbufs, data_room, cache: 32, ..PoolOptions::default() };
        Whole(MbufPool::create(eal(), options).unwrap_or_else(|error| panic!("{error}")), 0)
    }

    fn but(mut self, kept: u32) -> Whole {
        self.1 = kept;
        self
    }
}

impl Drop for Whole {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert_eq!(self.0.in_use(), self.1, "mbufs are missing");
        }
    }
}

/// A frame of these bytes.
fn frame(pool: &MbufPool, bytes: &[u8]) -> Mbuf {
    let mut frame = pool.allocate().expect("an mbuf");
    assert!(frame.resize(bytes.len()));
    frame.bytes_mut().copy_from_slice(bytes);
    frame
}

/// Receives until `enough` of what was wanted is there, or time is up.
fn receive(queue: &mut PortQueue, mut wanted: impl FnMut(&Mbuf) -> bool, enough: usize) -> Batch<Mbuf> {
    let mut found: Batch<Mbuf> = Batch::new();
    let mut batch = Batch::new();
    let start = Instant::now();
    while found.len() < enough {
        assert!(start.elapsed() < PATIENCE, "{} of {enough} frames", found.len());
        queue.receive(&mut batch);
        found.extend(batch.drain(..).filter(|frame| wanted(frame)).take(enough - found.len()));
    }
    found
}

/// Sends all there is, again and again if need be.
fn send(queue: &mut PortQueue, batch: &mut Batch<Mbuf>) {
    let start = Instant::now();
    while !batch.is_empty() {
        assert!(start.elapsed() < PATIENCE, "{} frames cannot be sent", batch.len());
        queue.transmit(batch);
    }
}

/// Runs `test` on a thread with a network namespace of its own, which is gone when it returns.
fn in_namespace(test: impl FnOnce() + Send + 'static) {
    let outcome = std::thread::spawn(move || {
        // SAFETY: changes this thread alone.
        if unsafe { libc::unshare(libc::CLONE_NEWNET) } < 0 {
            eprintln!("skipped: needs root ({})", std::io::Error::last_os_error());
            return;
        }
        command("ip link set lo up");
        test();
    });
    if let Err(panic) = outcome.join() {
        std::panic::resume_unwind(panic);
    }
}

/// Runs a command of words in this thread's namespace and returns what it says.
fn command(line: &str) -> String {
    let mut words = line.split(' ');
    let output = Command::new(words.next().unwrap_or_default()).args(words).output();
    let output = output.unwrap_or_else(|error| panic!("{line}: {error}"));
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A device's name that no other case has.
fn device(driver: &str, arguments: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("{driver}{},{arguments}", NEXT.fetch_add(1, Ordering::Relaxed))
}

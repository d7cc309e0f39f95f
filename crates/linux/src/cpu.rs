//! Processors, threads on them, and the clock.

use core::time::Duration;
use hairpin_core::time::Time;
use std::io;

/// Processors this thread may run on, in ascending order.
pub fn allowed() -> io::Result<Vec<usize>> {
    let mut set = empty();
    // SAFETY: the size and the pointer describe `set`; 0 names the calling thread.
    let result = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `CPU_ISSET` is asked only about processors the set has bits for.
    Ok((0..libc::CPU_SETSIZE as usize).filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) }).collect())
}

/// Keeps the calling thread on processor `cpu`. `InvalidInput`: there is none of that number, or it is not allowed.
pub fn pin(cpu: usize) -> io::Result<()> {
    if cpu >= libc::CPU_SETSIZE as usize {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("no processor {cpu}")));
    }
    let mut set = empty();
    // SAFETY: `cpu` is below the number of bits of the set.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    // SAFETY: the size and the pointer describe `set`; 0 names the calling thread.
    let result = unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The calling thread's sleeps end when they should: otherwise the kernel lets them last up to 50 us longer, to end
/// several by one timer.
pub fn sleep_exactly() {
    // SAFETY: the request passes no memory. It cannot fail with this number.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1 as libc::c_ulong) };
}

/// While it exists, no signal interrupts the calling thread; signals to the process go to other threads, if any takes
/// them. The thread must drop it itself.
pub struct SignalsBlocked {
    before: libc::sigset_t,
    _of_this_thread: core::marker::PhantomData<*const ()>,
}

impl SignalsBlocked {
    /// Blocks every signal that can be blocked.
    #[allow(clippy::new_without_default)] // it is a change, not a value
    pub fn new() -> Self {
        // SAFETY: a set is an array of integers; all zero is the empty set.
        let mut before: libc::sigset_t = unsafe { std::mem::zeroed() };
        // SAFETY: as above.
        let mut all: libc::sigset_t = unsafe { std::mem::zeroed() };
        // SAFETY: `all` is a set to fill.
        unsafe { libc::sigfillset(&mut all) };
        // SAFETY: both are sets; the call fails only with another first argument.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &all, &mut before) };
        Self { before, _of_this_thread: core::marker::PhantomData }
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        // SAFETY: the set is the one that this thread had; the old one is not asked for.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, std::ptr::null_mut()) };
    }
}

/// One more than the highest number a processor of this machine can have, online or not, as BPF's per-CPU maps count
/// them (`/sys/devices/system/cpu/possible`).
pub fn possible() -> io::Result<usize> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible")?;
    let last = text.trim().rsplit([',', '-']).next().and_then(|last| last.parse::<usize>().ok());
    last.map(|last| last + 1)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no list of possible processors"))
}

/// Now, by `CLOCK_MONOTONIC`: the clock of `bpf_ktime_get_ns`, read without a system call.
pub fn now() -> Time {
    Time::from_nanos(clock(libc::CLOCK_MONOTONIC))
}

/// How long ago 1970 began, by `CLOCK_REALTIME`, which may be set; read without a system call.
pub fn time_of_day() -> Duration {
    Duration::from_nanos(clock(libc::CLOCK_REALTIME))
}

/// The lead of [`time_of_day`] over [`now`], in nanoseconds, modulo 2^64; as exact as this thread is not interrupted.
pub fn real_ahead() -> u64 {
    (time_of_day().as_nanos() as u64).wrapping_sub(now().as_nanos())
}

/// Processor time the calling thread has used so far.
pub fn thread_time() -> Duration {
    Duration::from_nanos(clock(libc::CLOCK_THREAD_CPUTIME_ID))
}

fn clock(which: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid place for the answer. Both clocks exist on every Linux, so the call cannot fail; if it
    // did, the time would be zero.
    unsafe { libc::clock_gettime(which, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn empty() -> libc::cpu_set_t {
    // SAFETY: a set is an array of integers; all zero is the empty set.
    unsafe { std::mem::zeroed() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_thread_is_allowed_on_that_processor_only() {
        let last = *allowed().unwrap().last().unwrap();
        assert!(last < possible().unwrap());
        std::thread::spawn(move || {
            pin(last).unwrap();
            assert_eq!(allowed().unwrap(), [last]);
        })
        .join()
        .unwrap();
        assert!(pin(1 << 20).is_err());
        assert!(pin(libc::CPU_SETSIZE as usize - 1).is_err());
    }

    #[test]
    fn clocks_go_forward_and_count_work() {
        let (before, busy) = (now(), thread_time());
        let mut sum = 0u64;
        while now().since(before) < Duration::from_millis(5) {
            sum = std::hint::black_box(sum + 1);
        }
        assert!(thread_time() > busy);
    }
}

//! The one clock of generator and sink: the kernel's monotonic one, which all processes of a machine share. And how much
//! of a processor a thread has had.

use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// Nanoseconds since some moment of this machine's own; the same moment in all its processes until it is started again.
#[inline]
pub fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
}

/// The processor time of the calling thread so far.
pub fn of_thread() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

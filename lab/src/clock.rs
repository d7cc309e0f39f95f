//! The one clock of generator and sink: the kernel's monotonic one, which all processes of a machine share.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds since some moment of this machine's own; the same moment in all its processes until it is started again.
#[inline]
pub fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
}

//! Points in time, given by the caller: nanoseconds since an arbitrary start, the same for every worker.

use crate::stored::stored_leaf;
pub use core::time::Duration;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A point in time, in nanoseconds of a clock that never goes back (`CLOCK_MONOTONIC` on the linux plane, virtual time
/// in the simulator).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(transparent)]
pub struct Time(u64);

stored_leaf!(Time: 1);

impl Time {
    /// The clock's zero.
    pub const ZERO: Time = Time(0);

    /// The point `nanoseconds` after the clock's zero.
    pub const fn from_nanos(nanoseconds: u64) -> Time {
        Time(nanoseconds)
    }

    /// Nanoseconds since the clock's zero.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Whole microseconds since `earlier`, 0 if it is not earlier; `u32::MAX` past 71 minutes.
    pub const fn micros_since(self, earlier: Time) -> u32 {
        let micros = self.0.saturating_sub(earlier.0) / 1000;
        if micros > u32::MAX as u64 { u32::MAX } else { micros as u32 }
    }

    /// How long ago `earlier` was, in nanoseconds; 0 if it is not earlier.
    pub const fn nanos_since(self, earlier: Time) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// How long ago `earlier` was; zero if it is not earlier.
    pub const fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl core::ops::Add<Duration> for Time {
    type Output = Time;
    fn add(self, after: Duration) -> Time {
        Time(self.0.saturating_add(u64::try_from(after.as_nanos()).unwrap_or(u64::MAX)))
    }
}

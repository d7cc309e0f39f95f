//! Whether a thread that polls has its processor for itself.

use crate::clock;
use std::time::Duration;

/// How much of its processor the calling thread gets from now on: one that polls wants all of it.
pub(super) struct Presence {
    since: u64,
    had: Duration,
}

impl Presence {
    /// From now on.
    pub(super) fn begin() -> Presence {
        Presence { since: clock::now(), had: clock::of_thread() }
    }

    /// The share it has had, 0 to 1, of the time in which it did not sleep by its own choice; for the same thread.
    pub(super) fn share(&self, slept: Duration) -> f64 {
        let wanted = Duration::from_nanos(clock::now().saturating_sub(self.since)).saturating_sub(slept);
        let had = clock::of_thread().saturating_sub(self.had);
        if wanted.is_zero() { 1.0 } else { (had.as_secs_f64() / wanted.as_secs_f64()).min(1.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_waits_is_not_there() {
        let presence = Presence::begin();
        std::thread::sleep(Duration::from_millis(50));
        assert!(presence.share(Duration::ZERO) < 0.5);
        // Time slept by its own choice was not wanted.
        assert!(presence.share(Duration::from_secs(1)) == 1.0);
    }
}

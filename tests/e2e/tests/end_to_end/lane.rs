//! Lanes: tests of one lane begin in the order in which they were made, one at a time or as many as the lane is wide;
//! lanes run beside each other. Most tests wait most of the time, for timeouts, checks, a second of traffic; and what two
//! of them have (namespaces, Hairpin's instance, files) has nothing in common but the cores. Those that need these for
//! themselves (a flood; hundreds of requests a second that must not go long without a process) run without others
//! ([`alone`]), after the others: each of them would let all lanes wait for the longest test that runs.

use anyhow::Result;
use libtest_mimic::{Completion, Failed, Trial};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// Tests that share networks, those of tables, and HTTP services over DPDK.
pub(crate) static SHARED: Lane = Lane::new(1);
/// Tests that share HTTP services.
pub(crate) static HTTP: Lane = Lane::new(1);
/// Tests that make what they need themselves. With the two lanes before, five tests at a time load two cores well.
pub(crate) static OWN: Lane = Lane::new(3);
/// Those of them with DPDK, whose workers poll.
pub(crate) static DPDK: Lane = Lane::new(1);
/// Tests beside which no other runs.
static ALONE: Lane = Lane::new(1);
/// What tests of [`ALONE`] wait for.
static BESIDE_OTHERS: [&Lane; 4] = [&SHARED, &HTTP, &OWN, &DPDK];
/// Time between two looks at whether these are empty: above what starting the threads of all tests takes.
const LOOK: Duration = Duration::from_millis(200);

thread_local! {
    /// Why the test that runs on this thread cannot be performed on this machine.
    static SKIPPED: Cell<Option<String>> = const { Cell::new(None) };
}

/// The test that runs on this thread is reported as ignored, with this reason, once it returns without an error.
pub(crate) fn skip(why: impl Into<String>) {
    SKIPPED.set(Some(why.into()));
}

/// Whether `HAIRPIN_TESTS_SECONDS` have passed since the first test: after that none begins.
fn out_of_time() -> bool {
    static BEGAN: OnceLock<Instant> = OnceLock::new();
    let began = *BEGAN.get_or_init(Instant::now);
    let limit = std::env::var("HAIRPIN_TESTS_SECONDS").ok().and_then(|text| text.parse().ok());
    limit.is_some_and(|limit| began.elapsed() > Duration::from_secs(limit))
}

/// Held by every test that runs, exclusively by one that runs alone.
static MACHINE: RwLock<()> = RwLock::new(());

/// A lane. Each of its tests has a thread, which waits until the lane admits it.
pub(crate) struct Lane {
    made: AtomicUsize,
    /// Tests at a time.
    width: usize,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    running: usize,
    waiting: BTreeSet<usize>,
}

impl Lane {
    const fn new(width: usize) -> Lane {
        let state = State { running: 0, waiting: BTreeSet::new() };
        Lane { made: AtomicUsize::new(0), width, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// The next test of the lane.
    pub(crate) fn test(
        &'static self,
        name: impl Into<String>,
        body: impl FnOnce() -> Result<()> + Send + 'static,
    ) -> Trial {
        self.queued(name, move || {
            let _beside_others = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
            body()
        })
    }

    fn queued(&'static self, name: impl Into<String>, body: impl FnOnce() -> Result<()> + Send + 'static) -> Trial {
        let number = self.made.fetch_add(1, Ordering::Relaxed);
        Trial::ignorable_test(name, move || {
            let _slot = self.admit(number);
            if out_of_time() {
                return Ok(Completion::ignored_with("no time was left for it"));
            }
            SKIPPED.set(None);
            body().map_err(|error| Failed::from(format!("{error:#}")))?;
            Ok(SKIPPED.take().map_or(Completion::Completed, Completion::ignored_with))
        })
    }

    /// Whether a test of the lane runs or waits.
    fn is_busy(&self) -> bool {
        let state = self.state();
        state.running > 0 || !state.waiting.is_empty()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the lane has room and no earlier test waits. (A test that has been filtered out never waits.)
    fn admit(&'static self, number: usize) -> LaneSlot {
        let mut state = self.state();
        state.waiting.insert(number);
        while state.running >= self.width || state.waiting.first() != Some(&number) {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.waiting.remove(&number);
        state.running += 1;
        drop(state);
        self.changed.notify_all();
        LaneSlot(self)
    }
}

/// A test beside which no other runs. It begins when no test waits that may run beside others.
pub(crate) fn alone(name: &str, body: impl FnOnce() -> Result<()> + Send + 'static) -> Trial {
    ALONE.queued(name, move || {
        std::thread::sleep(LOOK);
        while BESIDE_OTHERS.iter().any(|lane| lane.is_busy()) {
            std::thread::sleep(LOOK);
        }
        let _without_others = MACHINE.write().unwrap_or_else(PoisonError::into_inner);
        body()
    })
}

/// Ends when dropped, also by a panic.
struct LaneSlot(&'static Lane);

impl Drop for LaneSlot {
    fn drop(&mut self) {
        self.0.state().running -= 1;
        self.0.changed.notify_all();
    }
}

//! The thread `health`, which makes the checks, and the handle to it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use anyhow::{Context, Result};
use tokio::runtime;
use tokio::sync::Notify;
use tokio::time::timeout_at;

use super::probe::{CheckOutcome, probe};
use super::record::{BackendHealth, HealthState, Moment, ObservedTotals, Saved};
use super::schedule::{Change, CheckTotals, Job, Schedule};
use super::target::CheckTarget;

/// Checks targets on a thread of its own until it is dropped.
///
/// No method waits for the network; each holds a lock that is never held for longer than a walk over the targets.
#[derive(Debug)]
pub struct Checker {
    shared: Arc<CheckerShared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct CheckerShared {
    inner: Mutex<Inner>,
    /// Wakes the thread: something has happened that may give it work.
    wake: Notify,
}

#[derive(Debug)]
struct Inner {
    schedule: Schedule,
    stop: bool,
}

impl CheckerShared {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic elsewhere cannot have left it half changed in a way that makes checks unsafe; they go on.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Checker {
    /// Starts checking `targets`. The first checks begin at once, spread over at most a second. `links_down`: see
    /// [`Checker::set_links`].
    ///
    /// `on_change` is called on the thread `health`, with no lock held, with each backend whose health is another than
    /// it was told last. It must be quick: while it runs no check goes on. It may call the checker.
    ///
    /// # Errors
    /// A target breaks a bound of [`CheckTarget`], two have one number, or the thread cannot be started.
    pub fn start(
        targets: Vec<CheckTarget>,
        links_down: Option<String>,
        on_change: impl Fn(Vec<Change>) + Send + 'static,
    ) -> Result<Self> {
        let mut schedule = Schedule::new(Instant::now());
        schedule.set_links(links_down, Instant::now());
        schedule.update(targets, Moment::now())?;
        let runtime = runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()
            .context("health checks cannot be started: no event loop; see the limit on open files (ulimit -n)")?;
        let shared =
            Arc::new(CheckerShared { inner: Mutex::new(Inner { schedule, stop: false }), wake: Notify::new() });
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("health".into())
            .spawn(move || runtime.block_on(run(of_thread, on_change)))
            .context("health checks cannot be started: no thread; see the limit on processes (ulimit -u)")?;
        Ok(Checker { shared, thread: Some(thread) })
    }

    /// Replaces the targets. Those with the same number, address and check keep state and phase, whatever else changed;
    /// the others begin anew as unknown. That a backend began anew is not told to `on_change`.
    ///
    /// # Errors
    /// A target breaks a bound of [`CheckTarget`], or two have one number; then nothing has changed.
    pub fn update(&self, targets: Vec<CheckTarget>) -> Result<()> {
        self.shared.lock().schedule.update(targets, Moment::now())?;
        self.shared.wake.notify_one();
        Ok(())
    }

    /// Learns which interfaces are down, in words; `None`: none is. While one is down, and for half a minute after the
    /// start at most, first checks that fail say nothing about their backends.
    pub fn set_links(&self, down: Option<String>) {
        self.shared.lock().schedule.set_links(down, Instant::now());
    }

    /// Takes in running totals of clients' connections, by backend number. To be called a few times a second: failures
    /// count as being in a row if no success is seen in the same call or between. Totals that went back begin anew;
    /// the first ones of a backend only serve for comparison. Unknown numbers are ignored.
    pub fn observe(&self, observations: impl IntoIterator<Item = (u16, ObservedTotals)>) {
        let now = Moment::now();
        let mut inner = self.shared.lock();
        for (backend, observed) in observations {
            inner.schedule.observe(backend, observed, now);
        }
        drop(inner);
        self.shared.wake.notify_one();
    }

    /// Whether and how much each backend is to be used, by number. Shares grow in slow start: ask again a few times a
    /// second while one is below 256.
    pub fn backends_health(&self) -> Vec<BackendHealth> {
        self.shared.lock().schedule.backends_health(Instant::now())
    }

    /// The health of each backend, by number.
    pub fn states(&self) -> Vec<HealthState> {
        self.shared.lock().schedule.states()
    }

    /// The states that a later process can give to [`Checker::restore`].
    pub fn saved(&self) -> Vec<Saved> {
        self.shared.lock().schedule.saved()
    }

    /// Gives back the states of an earlier process, where number and address are still those and no check has come to
    /// a verdict yet. To be called right after the start; `on_change` is not told.
    pub fn restore(&self, saved: &[Saved]) {
        self.shared.lock().schedule.restore(saved, Moment::now());
        self.shared.wake.notify_one();
    }

    /// Totals over all targets since the start.
    pub fn totals(&self) -> CheckTotals {
        self.shared.lock().schedule.totals()
    }
}

impl Drop for Checker {
    /// Ends the thread and closes every socket. Waits for an `on_change` under way, so the caller must not hold what
    /// that waits for.
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.wake.notify_one();
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != std::thread::current().id()
        {
            // A panic of `on_change` has been printed where it happened.
            let _ = thread.join();
        }
    }
}

async fn run(shared: Arc<CheckerShared>, on_change: impl Fn(Vec<Change>)) {
    loop {
        let iteration = {
            let mut inner = shared.lock();
            if inner.stop {
                // With the runtime all checks in flight are dropped.
                return;
            }
            inner.schedule.iterate(Moment::now())
        };
        for job in iteration.jobs {
            tokio::spawn(check(RunningCheck { job, shared: Arc::clone(&shared) }));
        }
        if !iteration.changes.is_empty() {
            on_change(iteration.changes);
        }
        let woken = shared.wake.notified();
        match iteration.next {
            // Either way it is time for the next iteration.
            Some(next) => drop(timeout_at(next.into(), woken).await),
            None => woken.await,
        }
    }
}

async fn check(running: RunningCheck) {
    let begun = Instant::now();
    let outcome = probe(&running.job.target).await;
    running.result(outcome, begun);
}

/// A check in flight; its end frees the slot, however it comes about.
struct RunningCheck {
    job: Job,
    shared: Arc<CheckerShared>,
}

impl RunningCheck {
    fn result(&self, outcome: CheckOutcome, begun: Instant) {
        let now = Moment::now();
        let took = now.instant.saturating_duration_since(begun);
        self.shared.lock().schedule.result(&self.job, outcome, took, now);
    }
}

impl Drop for RunningCheck {
    fn drop(&mut self) {
        self.shared.lock().schedule.end(&self.job, Instant::now());
        self.shared.wake.notify_one();
    }
}

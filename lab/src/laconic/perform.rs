//! All cases, several at a time, each kept as soon as it is there. A case that fails, or panics, is a record that says so; the
//! others go on.

use super::case::{CardBench, LaconicCase};
use super::store::{CardRecord, CardStore};
use crate::clock::of_thread;
use crate::records::Provenance;
use anyhow::Result;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// How far it is.
#[derive(Clone, Debug)]
pub enum CardEvent<'a> {
    /// Now and then.
    Running {
        /// Cases that are done, those kept from before among them.
        done: usize,
        /// All cases.
        cases: usize,
        /// Cases that are done now.
        new: usize,
        /// How long it has taken.
        elapsed: Duration,
    },
    /// A case is done.
    Done(&'a CardRecord),
}

/// The work done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CardSummary {
    /// Cases that were there already.
    pub kept: usize,
    /// Cases that came now.
    pub new: usize,
    /// Cases that failed now.
    pub failed: usize,
}

/// Performs all cases that are not in the store, `jobs` at a time.
///
/// # Errors
/// The store cannot be written. What becomes of a case is no error.
pub fn perform(
    bench: &CardBench,
    cases: &[LaconicCase],
    (jobs, made): (usize, &Provenance),
    store: &mut CardStore,
    hear: &mut dyn FnMut(CardEvent<'_>),
) -> Result<CardSummary> {
    let is_there = |case: &LaconicCase| {
        store.find(&case.name(), &bench.fingerprint(case)).is_some_and(|record| record.came.is_ok())
    };
    let mut wanted: Vec<&LaconicCase> = cases.iter().filter(|case| !is_there(case)).collect();
    let mut done = CardSummary { kept: cases.len() - wanted.len(), ..CardSummary::default() };
    // The longest ones first, so that no core is left alone with one at the end.
    wanted.sort_by_key(|case| std::cmp::Reverse(case.cores));
    let (next, began) = (AtomicUsize::new(0), Instant::now());
    let (sender, receiver) = mpsc::channel::<CardRecord>();
    std::thread::scope(|scope| {
        for _ in 0..jobs.clamp(1, 256) {
            let (sender, wanted, next) = (sender.clone(), &wanted, &next);
            scope.spawn(move || {
                while let Some(case) = wanted.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if sender.send(attempt(bench, case, made)).is_err() {
                        break;
                    }
                }
            });
        }
        drop(sender);
        for record in receiver {
            match &record.came {
                Ok(_) => done.new += 1,
                Err(_) => done.failed += 1,
            }
            hear(CardEvent::Done(&record));
            if let Err(error) = store.add(record) {
                // No further case is begun: its result could not be kept.
                next.store(usize::MAX / 2, Ordering::Relaxed);
                return Err(error);
            }
            let new = done.new + done.failed;
            hear(CardEvent::Running { done: done.kept + new, cases: cases.len(), new, elapsed: began.elapsed() });
        }
        Ok(())
    })?;
    Ok(done)
}

/// A case, whatever becomes of it.
fn attempt(bench: &CardBench, case: &LaconicCase, made: &Provenance) -> CardRecord {
    let had = of_thread();
    // Nothing that a panic leaves half done is used again: a case has everything to itself.
    let came = match catch_unwind(AssertUnwindSafe(|| bench.perform(case, &mut |_| {}))) {
        Ok(came) => came.map_err(|error| format!("{error:#}")),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
            Err(format!("it panicked: {}", text.unwrap_or("for no reason it told")))
        }
    };
    let worked = (of_thread() - had).as_secs_f64();
    CardRecord { name: case.name(), fingerprint: bench.fingerprint(case), worked, made: made.clone(), came }
}

//! All cases, several at a time, each kept as soon as it is there.
//!
//! A case that fails, or panics, or takes too long, is a record that says so; the others go on.

use super::case::CaseContext;
use super::file::Case;
use super::store::{CaseOutcome, CaseRecord, CaseStore};
use crate::clock::of_thread;
use crate::records::Provenance;
use anyhow::Result;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// How often one hears how far it is.
const TICK: Duration = Duration::from_millis(200);

/// How far it is.
#[derive(Clone, Debug)]
pub enum CasesEvent<'a> {
    /// Now and then.
    Running {
        /// Cases that are done, those kept from before among them, and all.
        done: usize,
        /// See `done`.
        cases: usize,
        /// Packets that this run has simulated.
        packets: u64,
        /// How long it has taken.
        elapsed: Duration,
        /// How long it will take, about; `None` until something can be said.
        left: Option<Duration>,
    },
    /// A case is done.
    Done(&'a CaseRecord),
}

/// The work done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CasesSummary {
    /// Cases that were there already.
    pub kept: usize,
    /// Cases that came now.
    pub new: usize,
    /// Cases that failed now.
    pub failed: usize,
    /// Packets simulated now.
    pub packets: u64,
}

/// How it is done.
#[derive(Clone, Debug)]
pub struct PerformOptions {
    /// Cases at a time.
    pub jobs: usize,
    /// The longest a case may take.
    pub case_max: Duration,
    /// The place and date.
    pub made: Provenance,
}

/// A case took longer than it may.
struct TooLong;

/// Performs all cases that are not in the store.
///
/// # Errors
/// The store cannot be written. What becomes of a case is no error.
pub fn perform(
    bench: &CaseContext,
    cases: &[&Case],
    effort: &PerformOptions,
    store: &mut CaseStore,
    hear: &mut dyn FnMut(CasesEvent<'_>),
) -> Result<CasesSummary> {
    let is_there = |case: &Case| {
        let record = store.find(&case.name(), &bench.fingerprint(case), bench.recordings_of(case));
        record.is_some_and(|record| matches!(record.came, CaseOutcome::Runs(_)))
    };
    let mut wanted: Vec<(&Case, f64)> =
        cases.iter().filter(|case| !is_there(case)).map(|case| (*case, bench.packets(case))).collect();
    let mut done = CasesSummary { kept: cases.len() - wanted.len(), ..CasesSummary::default() };
    let all: f64 = wanted.iter().map(|(_, packets)| packets).sum();
    // One seed after the other, so that what is there at any time has as many seeds everywhere; of a seed the longest ones
    // first, so that no core is left alone with one at the end.
    wanted.sort_by(|a, b| a.0.repetition.cmp(&b.0.repetition).then(b.1.total_cmp(&a.1)));
    let (next, simulated, began) = (AtomicUsize::new(0), AtomicU64::new(0), Instant::now());
    let (sender, receiver) = mpsc::channel::<(CaseRecord, f64)>();
    std::thread::scope(|scope| {
        for _ in 0..effort.jobs.clamp(1, 256) {
            let (sender, wanted, next, simulated) = (sender.clone(), &wanted, &next, &simulated);
            scope.spawn(move || {
                while let Some((case, packets)) = wanted.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let record = attempt(bench, case, effort, simulated);
                    if sender.send((record, *packets)).is_err() {
                        break;
                    }
                }
            });
        }
        drop(sender);
        let mut finished = 0.0;
        loop {
            match receiver.recv_timeout(TICK) {
                Ok((record, packets)) => {
                    finished += packets;
                    match record.came {
                        CaseOutcome::Runs(_) => done.new += 1,
                        CaseOutcome::Failed(_) => done.failed += 1,
                    }
                    hear(CasesEvent::Done(&record));
                    if let Err(error) = store.add(record) {
                        // No further case is begun: its result could not be kept.
                        next.store(usize::MAX / 2, Ordering::Relaxed);
                        return Err(error);
                    }
                }
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => return Ok(()),
            }
            let (elapsed, packets) = (began.elapsed(), simulated.load(Ordering::Relaxed));
            let share = (finished.max(packets as f64) / all.max(1.0)).min(1.0);
            let left = (share > 0.01).then(|| elapsed.mul_f64((1.0 - share) / share));
            let count = done.kept + done.new + done.failed;
            hear(CasesEvent::Running { done: count, cases: cases.len(), packets, elapsed, left });
        }
    })?;
    done.packets = simulated.into_inner();
    Ok(done)
}

/// A case, whatever becomes of it.
fn attempt(bench: &CaseContext, case: &Case, effort: &PerformOptions, simulated: &AtomicU64) -> CaseRecord {
    let PerformOptions { case_max: most, made, .. } = effort;
    let (began, had) = (Instant::now(), of_thread());
    let mut seen = 0;
    let mut progress = |packets: u64| {
        simulated.fetch_add(packets.saturating_sub(seen), Ordering::Relaxed);
        seen = packets;
        if began.elapsed() > *most {
            resume_unwind(Box::new(TooLong));
        }
    };
    // Nothing that a panic leaves half done is used again: a case has everything to itself.
    let came = match catch_unwind(AssertUnwindSafe(|| bench.perform(case, &mut progress))) {
        Ok(Ok(runs)) => CaseOutcome::Runs(runs),
        Ok(Err(error)) => CaseOutcome::Failed(format!("{error:#}")),
        Err(panic) => CaseOutcome::Failed(reason(&*panic, *most)),
    };
    let fingerprint = bench.fingerprint(case);
    let worked = Some((of_thread() - had).as_secs_f64());
    CaseRecord {
        name: case.name(),
        fingerprint,
        took: began.elapsed().as_secs_f64(),
        worked,
        made: Some(made.clone()),
        recordings: bench.recordings_of(case),
        came,
    }
}

fn reason(panic: &(dyn std::any::Any + Send), most: Duration) -> String {
    if panic.is::<TooLong>() {
        return format!("it took longer than {} s", most.as_secs());
    }
    let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
    format!("it panicked: {}", text.unwrap_or("for no reason it told"))
}

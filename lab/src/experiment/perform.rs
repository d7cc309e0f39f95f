//! Does what a plan says, one thing after the other, and keeps every result at once.

use super::file::{Experiment, RateSetting};
use super::plan::{CellKind, MatrixCell, Plan, Task, profile_duration};
use super::results::without_starved;
use super::store::{RecordOutcome, ResultRecord, ResultStore};
use crate::profile::Profiler;
use crate::rate::{self, SearchStep, TestbedProbe};
use crate::testbed::{Measurement, SendRate, Testbed, TrialProgress};
use anyhow::{Result, bail, ensure};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A measurement that fails this many times in a row will go on failing.
const FAILURES_MAX: u32 = 10;
/// The time of a measurement for each second of packets, until some have been seen.
const OVERHEAD: f64 = 1.3;

/// An event.
#[derive(Debug)]
pub enum PlanEvent<'a> {
    /// Something is begun.
    Begin {
        /// What.
        task: &'a Task,
        /// How many are done, those of earlier runs included.
        done: usize,
        /// How many there are.
        total: usize,
        /// How long it will all take, about.
        left: Duration,
    },
    /// A trial goes on.
    Trial(&'a TrialProgress),
    /// A search has made a trial.
    Search(&'a SearchStep),
    /// There is a result. All of them are in the store.
    End(&'a ResultStore),
}

/// The work done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlanSummary {
    /// Results that were there before.
    pub kept: usize,
    /// New ones.
    pub new: usize,
    /// The failures.
    pub failed: usize,
}

/// Measures all that is not in the store yet.
///
/// A failure is kept as a result, with its reason, and the rest goes on.
///
/// # Errors
/// When results cannot be kept, or ten in a row fail.
pub fn perform(
    experiment: &Experiment,
    plan: &Plan,
    testbed: &mut dyn Testbed,
    store: &mut ResultStore,
    progress: &mut dyn FnMut(PlanEvent<'_>),
) -> Result<PlanSummary> {
    let mut done = PlanSummary::default();
    let mut pace = PaceEstimate::default();
    let keys: Vec<String> = plan.tasks.iter().map(|task| task.key(experiment)).collect();
    let mut open: Vec<(&Task, &str)> = Vec::new();
    for (task, key) in plan.tasks.iter().zip(&keys) {
        match store.of(key) {
            Some(record) if store.is_done(key) => {
                done.kept += 1;
                pace.saw(task.kind, task.nominal(experiment), record.took);
            }
            _ => open.push((task, key)),
        }
    }
    let mut in_a_row = 0;
    for (at, (task, key)) in open.iter().enumerate() {
        let left = pace.left(open[at..].iter().map(|(task, _)| (task.kind, task.nominal(experiment))));
        progress(PlanEvent::Begin { task, done: done.kept + at, total: plan.tasks.len(), left });
        let begun = Instant::now();
        let came = if store.ends_the_program(key) {
            RecordOutcome::Failed("it has ended the whole program each time it was begun".to_owned())
        } else {
            store.begin(key)?;
            let came = attempt(experiment, task, testbed, store, progress);
            came.unwrap_or_else(|error| RecordOutcome::Failed(format!("{error:#}")))
        };
        let took = begun.elapsed().as_secs_f64();
        let failed = matches!(came, RecordOutcome::Failed(_));
        if failed {
            (done.failed, in_a_row) = (done.failed + 1, in_a_row + 1);
        } else {
            (done.new, in_a_row) = (done.new + 1, 0);
            pace.saw(task.kind, task.nominal(experiment), took);
        }
        let stop = (in_a_row >= FAILURES_MAX).then(|| format!("{FAILURES_MAX} in a row failed; the last: {came:?}"));
        store.add(record(task, key, took, came))?;
        progress(PlanEvent::End(store));
        if let Some(reason) = stop {
            bail!("{reason}");
        }
    }
    Ok(done)
}

fn record(task: &Task, key: &str, took: f64, came: RecordOutcome) -> ResultRecord {
    let at = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (cell, kind, repetition) = (task.cell.clone(), task.kind, task.repetition);
    ResultRecord { key: key.to_owned(), cell, kind, repetition, at, took, came }
}

fn attempt(
    experiment: &Experiment,
    task: &Task,
    testbed: &mut dyn Testbed,
    store: &ResultStore,
    progress: &mut dyn FnMut(PlanEvent<'_>),
) -> Result<RecordOutcome> {
    match task.kind {
        CellKind::Measure => {
            let rate = rate_of(&task.cell, store)?;
            let trial = task.cell.trial(experiment, task.repetition, rate);
            let measured = testbed.measure(&trial, &mut |step| progress(PlanEvent::Trial(&step)))?;
            check(&measured)?;
            Ok(RecordOutcome::Measured(Box::new(measured)))
        }
        CellKind::Search(goal) => {
            let trial = task.cell.trial(experiment, task.repetition, SendRate::Max);
            let mut quiet = |_| ();
            let mut probe = TestbedProbe::new(testbed, &trial, &mut quiet);
            let search = &experiment.search;
            let outcome = rate::search(&mut probe, goal, None, search, &mut |step| progress(PlanEvent::Search(step)))?;
            Ok(RecordOutcome::Searched(outcome))
        }
        CellKind::Profile => {
            let mut trial = task.cell.trial(experiment, task.repetition, rate_of(&task.cell, store)?);
            trial.duration = profile_duration(experiment);
            let mut profiler: Option<Result<Profiler>> = None;
            let measured = testbed.measure(&trial, &mut |step| {
                if let TrialProgress::Started { device } = &step {
                    profiler = Some(Profiler::start(device));
                }
                progress(PlanEvent::Trial(&step));
            });
            let profiler = profiler.transpose()?;
            check(&measured?)?;
            match profiler {
                Some(profiler) => Ok(RecordOutcome::Profiled(profiler.finish()?)),
                None => bail!("the testbed does not say which threads its device runs on"),
            }
        }
    }
}

/// The rate of a cell as the testbed wants it.
fn rate_of(cell: &MatrixCell, store: &ResultStore) -> Result<SendRate> {
    match cell.asked {
        RateSetting::Rate(rate) => Ok(rate),
        RateSetting::Search => Ok(SendRate::Max),
        RateSetting::Share(share) => {
            let most = cell.at(RateSetting::Rate(SendRate::Max));
            let of_most = store.records().iter().filter(|record| record.cell == most);
            let mut measured: Vec<&Measurement> = of_most
                .filter_map(|record| match &record.came {
                    RecordOutcome::Measured(measured) => Some(&**measured),
                    _ => None,
                })
                .collect();
            without_starved(&mut measured);
            let rates: Vec<f64> = measured.iter().map(|measured| measured.rx_pps).collect();
            ensure!(!rates.is_empty(), "nothing of {most} has been measured, of which this is a part");
            Ok(SendRate::Packets((share * rates.iter().sum::<f64>() / rates.len() as f64).max(1.0)))
        }
    }
}

/// The invariants of every measurement: each packet sent arrived or was lost for a named reason, nothing arrived that
/// was not sent, no latency is above a later one's bound.
pub(crate) fn check(measured: &Measurement) -> Result<()> {
    let (sent, received, lost) = (measured.sent, measured.received, measured.lost());
    ensure!(received <= sent, "{received} packets received of {sent} sent");
    ensure!(sent == received + lost, "{sent} packets sent, {received} received and {lost} lost for a known reason");
    let latency = &measured.latency;
    let rising = [latency.min, latency.p50, latency.p95, latency.p99, latency.p999];
    ensure!(rising.is_sorted(), "latencies that do not rise: {rising:?}");
    ensure!(latency.cumulative.is_sorted(), "a cumulative distribution that falls");
    let rates = [measured.tx_pps, measured.rx_pps, measured.tx_bps, measured.rx_bps, latency.mean, measured.seconds];
    ensure!(rates.iter().all(|rate| rate.is_finite() && *rate >= 0.0), "figures that are none: {rates:?}");
    Ok(())
}

/// How much longer things take than the packets in them.
#[derive(Default)]
struct PaceEstimate {
    /// By kind: seconds of packets, seconds in all.
    seen: [(f64, f64); 3],
}

impl PaceEstimate {
    fn index(kind: CellKind) -> usize {
        match kind {
            CellKind::Measure => 0,
            CellKind::Search(_) => 1,
            CellKind::Profile => 2,
        }
    }

    fn saw(&mut self, kind: CellKind, nominal: Duration, took: f64) {
        let (packets, all) = &mut self.seen[PaceEstimate::index(kind)];
        *packets += nominal.as_secs_f64();
        *all += took;
    }

    fn left(&self, tasks: impl Iterator<Item = (CellKind, Duration)>) -> Duration {
        let factor = |kind| match self.seen[PaceEstimate::index(kind)] {
            (packets, all) if packets > 0.0 => all / packets,
            _ => OVERHEAD,
        };
        let seconds: f64 = tasks.map(|(kind, nominal)| nominal.as_secs_f64() * factor(kind)).sum();
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
    }
}

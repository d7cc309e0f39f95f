//! Two real cores beside two modelled ones: locks and tables that threads share, and the splice, of which they share nothing.

use super::CalibrateArgs;
use crate::suite::report::{Bar, ReportRow, metric};
use crate::suite::samples::RepeatedValues;
use anyhow::{Context, Result, anyhow};
use hairpin_dpdk::Eal;
use hairpin_instructions::SplicedRequests;
use hairpin_lab::calibrate::lines::pair;
use hairpin_lab::calibrate::pairs::{BOUND, PairCase, PairOutcome, RAN_ENOUGH};
use hairpin_lab::classification::{TwoCoresRow, today, write_measured};
use hairpin_lab::clock::{now, of_thread};
use hairpin_lab::testbed::cores::pin;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Barrier;
use std::time::Duration;

/// How long each part of a case is measured.
const DURATION: Duration = Duration::from_millis(150);
/// Rounds of requests of a recording.
const ROUNDS: usize = 100;
/// How often a recording is played.
const PLAYED: usize = 8;

/// A case by name, and how it came out in each repetition.
pub(super) struct PairRuns(Vec<(String, Vec<PairOutcome>)>);

/// Measures all cases in turn, every other repetition backwards.
pub(super) fn run(arguments: &CalibrateArgs, eal: Eal, repetitions: usize) -> Result<PairRuns> {
    let cpus = pair()?;
    let wanted =
        |name: &str| arguments.only.is_empty() || arguments.only.iter().any(|word| name.contains(word.as_str()));
    let cases: Vec<PairCase> = PairCase::all().into_iter().filter(|case| wanted(&case.to_string())).collect();
    let splice = "splice, requests for 1 KB, kept connections";
    let mut runs: Vec<(String, Vec<PairOutcome>)> = cases.iter().map(|case| (case.to_string(), Vec::new())).collect();
    let recorded = wanted(splice).then(|| SplicedRequests::record(ROUNDS));
    if recorded.is_some() {
        runs.push((splice.to_owned(), Vec::new()));
    }
    for repetition in 0..repetitions {
        let mut order: Vec<usize> = (0..runs.len()).collect();
        if repetition % 2 == 1 {
            order.reverse();
        }
        for at in order {
            let came = match (cases.get(at), &recorded) {
                (Some(case), _) => case.measure(&Some(eal), cpus, DURATION).with_context(|| case.to_string())?,
                (None, Some(recorded)) => spliced(recorded, cpus)?,
                (None, None) => continue,
            };
            let (name, all) = &mut runs[at];
            println!(
                "  [{}/{repetitions}] {name}: one thread {}, two {}, modelled {}{}",
                repetition + 1,
                metric(came.one),
                metric(came.two),
                metric(came.model),
                if came.ran < RAN_ENOUGH { ", starved" } else { "" }
            );
            all.push(came);
        }
    }
    Ok(PairRuns(runs))
}

/// Requests of one worker, and of two, each on a processor of its own; the model is twice the one, as they share nothing.
fn spliced(recorded: &SplicedRequests, cpus: [usize; 2]) -> Result<PairOutcome> {
    let rate = |threads: usize| -> Result<(f64, f64)> {
        let barrier = Barrier::new(threads);
        let barrier = &barrier;
        let done: Vec<(f64, f64)> = std::thread::scope(|scope| {
            let spawn = |cpu: usize| {
                scope.spawn(move || -> Result<(f64, f64)> {
                    let pinned = pin(cpu);
                    let (mut took, mut had) = (0, Duration::ZERO);
                    recorded.prepare().play();
                    barrier.wait();
                    pinned?;
                    for _ in 0..PLAYED {
                        let prepared = recorded.prepare();
                        let (began, before) = (now(), of_thread());
                        prepared.play();
                        (took, had) = (took + now() - began, had + of_thread() - before);
                    }
                    let requests = (PLAYED * recorded.requests()) as f64;
                    Ok((requests * 1e9 / took as f64, had.as_nanos() as f64 / took as f64))
                })
            };
            let threads: Vec<_> = cpus.into_iter().take(threads).map(spawn).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|_| Err(anyhow!("a thread panicked"))))
                .collect::<Result<_>>()
        })?;
        Ok((done.iter().map(|(rate, _)| rate).sum(), done.iter().map(|(_, ran)| *ran).fold(1.0, f64::min)))
    };
    let (one, alone) = rate(1)?;
    let (two, ran) = rate(2)?;
    let one = one / alone.max(1e-6);
    Ok(PairOutcome { one, two, model: 2.0 * one, ran })
}

impl PairRuns {
    /// A row for each case: that of the repetition whose ratio is in the middle, of those that had their processors.
    pub(super) fn rows(&self) -> Result<Vec<ReportRow>> {
        self.0.iter().map(|(name, all)| row(name, all)).collect()
    }

    /// All repetitions, for the page on flow classification.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn write(&self, path: &Path) -> Result<()> {
        let (machine, date) = (hairpin_lab::report::machine().name, today());
        let mut rows = Vec::new();
        for (case, all) in &self.0 {
            for (repetition, came) in (0..).zip(all) {
                let (case, machine, date) = (case.clone(), machine.clone(), date.clone());
                let [one, two, model] = [came.one, came.two, came.model].map(f64::round);
                let ran = (came.ran * 1e3).round() / 1e3;
                rows.push(TwoCoresRow { case, repetition, one, two, model, ran, machine, date });
            }
        }
        write_measured(path, &rows)
    }
}

fn row(name: &str, all: &[PairOutcome]) -> Result<ReportRow> {
    let ratio = |came: &PairOutcome| came.model / came.two;
    let undisturbed: Vec<&PairOutcome> = all.iter().filter(|came| came.ran >= RAN_ENOUGH).collect();
    let is_starved = undisturbed.is_empty();
    let mut counted: Vec<&PairOutcome> = if is_starved { all.iter().collect() } else { undisturbed };
    counted.sort_by(|one, other| ratio(one).total_cmp(&ratio(other)));
    let middle = counted.get(counted.len() / 2).with_context(|| format!("{name} was not measured"))?;
    let title = format!("two cores: {name}{}", if is_starved { " (starved)" } else { "" });
    let beside = BTreeMap::from([("measured".to_owned(), middle.two), ("one thread".to_owned(), middle.one)]);
    let ours = RepeatedValues::from(vec![middle.model]);
    let row = ReportRow::new(title, "operation/s", &ours, &beside, "measured", Bar::Within(BOUND));
    let spread = RepeatedValues::from(counted.iter().map(|came| ratio(came)).collect::<Vec<f64>>()).spread();
    Ok(ReportRow { spread, ..row })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(two: f64, model: f64, ran: f64) -> PairOutcome {
        PairOutcome { one: 1.0, two, model, ran }
    }

    #[test]
    fn middle_of_the_undisturbed_repetitions_counts() {
        let starved = outcome(1.0, 2.0, 0.5);
        let all = [outcome(2.0, 2.0, 1.0), starved, outcome(2.0, 2.2, 1.0), outcome(2.0, 3.0, 0.99), starved];
        let row_of = row("a lock", &all).unwrap();
        assert!(row_of.held && (row_of.ratio - 1.1).abs() < 1e-9, "{row_of:?}");
        let wrong = row("a lock", &[outcome(2.0, 2.4, 1.0)]).unwrap();
        assert!(!wrong.held);
        assert!(row("a lock", &[starved]).unwrap().case.contains("starved"));
        assert!(row("a lock", &[]).is_err());
    }
}

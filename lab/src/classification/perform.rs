//! Cases, simulated, and their results as rows of a CSV file.

use super::file::{ClassificationCase, ClassificationExperiment};
use anyhow::{Context, Result, anyhow, ensure};
use hairpin_sim::sharing::{SharingOptions, SharingProfile, SharingResults, simulate};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A case and its results, rounded to what is written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CaseRow {
    /// The device.
    pub device: String,
    /// The method, by name.
    pub method: String,
    /// Cores.
    pub cores: u16,
    /// The factor of the lines' costs.
    pub line: f64,
    /// The seed.
    pub seed: u64,
    /// Packets in a second, in millions.
    pub mpps: f64,
    /// Bits in a second, in Gbit, of frames.
    pub gbit: f64,
    /// Percent of the cores' time spent in waiting for a lock.
    pub waiting: f64,
    /// Percent of the cores' time spent in waiting for other shared lines.
    pub transfers: f64,
    /// Percent of the cores' time without a packet.
    pub idle: f64,
    /// Percent of the packets offered that were lost.
    pub lost: f64,
    /// Percent of the look-ups that a card's mark spared.
    pub marked: f64,
    /// Round trips in microseconds: mean.
    pub rtt: f64,
    /// A quarter of them does not exceed it.
    pub rtt_p25: f64,
    /// Half does not.
    pub rtt_p50: f64,
    /// Three quarters do not.
    pub rtt_p75: f64,
    /// 99 of 100 do not.
    pub rtt_p99: f64,
}

impl CaseRow {
    fn of(case: &ClassificationCase, profile: &SharingProfile, results: &SharingResults) -> CaseRow {
        let rounded = |value: f64, places: i32| {
            let factor = 10_f64.powi(places);
            (value * factor).round() / factor
        };
        let percent = |part: f64| rounded(part * 100.0, 2);
        let microseconds = |ns: f64| rounded(ns / 1e3, 2);
        let trip = &results.round_trip;
        CaseRow {
            device: case.device.clone(),
            method: case.method.name().to_owned(),
            cores: case.cores,
            line: case.line,
            seed: case.seed,
            mpps: rounded(results.received_pps / 1e6, 4),
            gbit: rounded(results.received_pps * f64::from(profile.packets.frame) * 8.0 / 1e9, 3),
            waiting: percent(results.waiting),
            transfers: percent(results.transfers),
            idle: percent(results.idle),
            lost: percent(results.lost),
            marked: percent(results.marked),
            rtt: microseconds(trip.mean),
            rtt_p25: microseconds(trip.p25),
            rtt_p50: microseconds(trip.p50),
            rtt_p75: microseconds(trip.p75),
            rtt_p99: microseconds(trip.p99),
        }
    }
}

impl ClassificationExperiment {
    /// Simulates a case.
    ///
    /// # Errors
    /// The simulation refuses it.
    pub fn simulate(&self, case: &ClassificationCase) -> Result<CaseRow> {
        let profile = self.profile(&case.device).with_context(|| format!("there is no device {}", case.device))?;
        let mut scaled = profile.clone();
        scaled.line.transfer_ns *= case.line;
        scaled.line.clean_ns *= case.line;
        let options = SharingOptions {
            profile: scaled,
            method: case.method,
            cores: case.cores,
            offered_pps: None,
            warm_up: self.warm_up,
            seconds: self.seconds,
            seed: case.seed,
        };
        let results = simulate(&options).map_err(|wrong| anyhow!("{case:?}: {wrong}"))?;
        Ok(CaseRow::of(case, profile, &results))
    }
}

/// Simulates all cases, so many at a time; rows come in the order of the cases. `progress` hears how many are done.
///
/// # Errors
/// The first case that fails.
pub fn perform(
    experiment: &ClassificationExperiment,
    jobs: usize,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Vec<CaseRow>> {
    let cases = experiment.cases();
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let rows: Mutex<Vec<(usize, Result<CaseRow>)>> = Mutex::new(Vec::with_capacity(cases.len()));
    std::thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            scope.spawn(|| {
                while let Some(at) = Some(next.fetch_add(1, Ordering::Relaxed)).filter(|at| *at < cases.len()) {
                    let row = experiment.simulate(&cases[at]);
                    rows.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push((at, row));
                    progress(done.fetch_add(1, Ordering::Relaxed) + 1, cases.len());
                }
            });
        }
    });
    let mut rows = rows.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    rows.sort_by_key(|(at, _)| *at);
    rows.into_iter().map(|(_, row)| row).collect()
}

/// Writes rows to a file.
///
/// # Errors
/// It cannot be written.
pub fn write_rows(path: &Path, rows: &[CaseRow]) -> Result<()> {
    let named = || format!("could not write {}", path.display());
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory).with_context(named)?;
    }
    let mut lines = csv::Writer::from_path(path).with_context(named)?;
    rows.iter().try_for_each(|row| lines.serialize(row)).with_context(named)?;
    lines.flush().with_context(named)
}

/// Reads the rows of a file; each is a case of the experiment, and all of them are there.
///
/// # Errors
/// It cannot be read, or has the rows of another experiment.
pub fn read_rows(path: &Path, experiment: &ClassificationExperiment) -> Result<Vec<CaseRow>> {
    let named = || path.display().to_string();
    let mut lines = csv::Reader::from_path(path).with_context(named)?;
    let rows: Vec<CaseRow> = lines.deserialize().collect::<Result<_, _>>().with_context(named)?;
    let cases = experiment.cases();
    let is_of = |(row, case): (&CaseRow, &ClassificationCase)| {
        let place = (row.device.as_str(), row.method.as_str(), row.cores, row.line, row.seed);
        place == (case.device.as_str(), case.method.name(), case.cores, case.line, case.seed)
    };
    ensure!(
        rows.len() == cases.len() && rows.iter().zip(&cases).all(is_of),
        "{} has results of another experiment: simulate it again",
        path.display()
    );
    Ok(rows)
}

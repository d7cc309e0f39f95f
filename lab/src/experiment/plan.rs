//! The plan of a file: every measurement in its order, and those that cannot be made here.

use super::file::{DeviceSubject, Experiment, RateSetting};
use crate::testbed::{Device, FrameSize, SendRate, Trial};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// Measurements of a file at most.
const TASKS_MAX: usize = 1_000_000;
/// Trials that a search takes, about, until some have been seen.
const SEARCH_TRIALS: f64 = 35.0;
/// The least time a profile is taken for.
const PROFILE_MIN: Duration = Duration::from_secs(1);

/// One cell of the matrix.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MatrixCell {
    /// The device under test.
    pub subject: DeviceSubject,
    /// Its cores.
    pub cores: u16,
    /// Connections it has room for; 0 of a device without a table.
    pub table_entries: u32,
    /// Flows.
    pub flows: u32,
    /// Frame size.
    pub packet_size: FrameSize,
    /// How fast packets come.
    pub asked: RateSetting,
    /// 1: from empty tables; 2: on warm ones.
    pub run: u8,
}

impl MatrixCell {
    /// This cell, at another rate.
    pub fn at(&self, asked: RateSetting) -> MatrixCell {
        MatrixCell { asked, ..self.clone() }
    }

    /// The trial that measures it.
    pub fn trial(&self, experiment: &Experiment, repetition: u32, rate: SendRate) -> Trial {
        Trial {
            device: self.subject.device,
            table: self.subject.table.clone(),
            offload: experiment.offloads.get(&self.subject.name).cloned(),
            cores: self.cores,
            table_entries: self.table_entries,
            flows: self.flows,
            backends: experiment.backends,
            packet_size: self.packet_size,
            rate,
            duration: experiment.duration,
            source: experiment.source.clone(),
            run: self.run,
            round_trip: experiment.round_trip,
            // Far enough apart for searches, which count on from theirs.
            seed: experiment.seed.wrapping_add(u64::from(repetition) << 32),
        }
    }
}

impl fmt::Display for MatrixCell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {} core(s), ", self.subject.name, self.cores)?;
        if self.table_entries > 0 {
            write!(f, "{} entries, ", self.table_entries)?;
        }
        write!(f, "{} flows, {} B, {}", self.flows, self.packet_size, self.asked)?;
        if self.run == 2 { f.write_str(", run 2") } else { Ok(()) }
    }
}

/// The measurement of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum CellKind {
    /// It is measured once.
    Measure,
    /// The highest rate with at most this loss ratio is searched once.
    Search(f64),
    /// It is profiled.
    Profile,
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq)]
pub struct Task {
    /// With which cell.
    pub cell: MatrixCell,
    /// What.
    pub kind: CellKind,
    /// For which time, from 0.
    pub repetition: u32,
}

impl Task {
    /// The identity that tells it from all others, and from the same one under other circumstances: sixteen hexadecimal digits.
    pub fn key(&self, experiment: &Experiment) -> String {
        let trial = self.cell.trial(experiment, self.repetition, SendRate::Max);
        let search = matches!(self.kind, CellKind::Search(_)).then(|| format!("{:?}", experiment.search));
        let all = serde_json::to_string(&(&self.cell, &self.kind, &trial, search)).unwrap_or_default();
        // FNV-1a: stable everywhere, and an operator makes no collisions against their own experiment.
        let hash = all
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
        format!("{hash:016x}")
    }

    /// How long packets are sent for, about.
    pub fn nominal(&self, experiment: &Experiment) -> Duration {
        match self.kind {
            CellKind::Measure => experiment.duration,
            CellKind::Profile => profile_duration(experiment),
            CellKind::Search(_) => experiment.search.last.mul_f64(SEARCH_TRIALS),
        }
    }
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            CellKind::Measure => write!(f, "{} (repetition {})", self.cell, self.repetition + 1),
            CellKind::Search(goal) => {
                write!(f, "{} with {}% loss (repetition {})", self.cell, goal * 100.0, self.repetition + 1)
            }
            CellKind::Profile => write!(f, "{} (profile)", self.cell),
        }
    }
}

/// How long a profile is taken for.
pub(super) fn profile_duration(experiment: &Experiment) -> Duration {
    experiment.duration.max(PROFILE_MIN)
}

/// A cell that cannot be measured here, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Skipped {
    /// The cell.
    pub cell: MatrixCell,
    /// The reason, for people.
    pub reason: String,
}

/// All that is to be done, in order.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Plan {
    /// One after the other.
    pub tasks: Vec<Task>,
    /// The cells left out.
    pub skipped: Vec<Skipped>,
}

impl Plan {
    /// The plan of a file. `obstacle` says why the testbed cannot do a trial, if it cannot.
    ///
    /// Repetitions are outermost, so that what drifts - heat, neighbours - falls on all cells alike; devices innermost, so
    /// that what is compared stands next to each other. Every repetition begins with another device, and every other one
    /// goes backwards. Within one, full speed comes before parts of it, and searches last.
    ///
    /// # Errors
    /// When it is more than a million measurements.
    pub fn new(experiment: &Experiment, obstacle: &dyn Fn(&Trial) -> Option<String>) -> anyhow::Result<Plan> {
        let per_repetition = cells(experiment);
        let goals = experiment.loss_ratios.len().max(1);
        let count = per_repetition.len().saturating_mul(experiment.repetitions as usize).saturating_mul(goals);
        anyhow::ensure!(count <= TASKS_MAX, "the file asks for {count} measurements, more than {TASKS_MAX}");
        let mut plan = Plan::default();
        let mut possible = Vec::new();
        for cell in per_repetition {
            match reason(experiment, &cell, obstacle) {
                Some(reason) => plan.skipped.push(Skipped { cell, reason }),
                None => possible.push(cell),
            }
        }
        for repetition in 0..experiment.repetitions {
            for cell in ordered(&possible, experiment, repetition) {
                let kinds: Vec<CellKind> = match cell.asked {
                    RateSetting::Search => experiment.loss_ratios.iter().map(|goal| CellKind::Search(*goal)).collect(),
                    RateSetting::Rate(_) | RateSetting::Share(_) => vec![CellKind::Measure],
                };
                plan.tasks.extend(kinds.into_iter().map(|kind| Task { cell: cell.clone(), kind, repetition }));
            }
        }
        if experiment.profile {
            let first = experiment.rates.iter().find(|asked| matches!(asked, RateSetting::Rate(_)));
            let chosen = possible.iter().filter(|cell| Some(&cell.asked) == first);
            plan.tasks.extend(chosen.map(|cell| Task { cell: cell.clone(), kind: CellKind::Profile, repetition: 0 }));
        }
        Ok(plan)
    }
}

/// Every cell once. Those without a table do not differ by its entries, nor by run.
fn cells(experiment: &Experiment) -> Vec<MatrixCell> {
    let mut cells: Vec<MatrixCell> = Vec::new();
    let mut rates = experiment.rates.clone();
    rates.sort_by_key(|asked| match asked {
        RateSetting::Rate(_) => 0,
        RateSetting::Share(_) => 1,
        RateSetting::Search => 2,
    });
    for &asked in &rates {
        for (&run, &packet_size) in pairs(&experiment.runs, &experiment.packet_sizes) {
            for (&flows, &table_entries) in pairs(&experiment.flows, &experiment.table_entries) {
                for (&cores, subject) in pairs(&experiment.cores, &experiment.subjects) {
                    let subject = subject.clone();
                    let has_table = subject.device == Device::Balancer;
                    let (table_entries, run) = if has_table { (table_entries, run) } else { (0, 1) };
                    let cell = MatrixCell { subject, cores, table_entries, flows, packet_size, asked, run };
                    let repeated = !has_table && cells.contains(&cell);
                    if !repeated {
                        cells.push(cell);
                    }
                }
            }
        }
    }
    cells
}

fn pairs<'a, A, B>(a: &'a [A], b: &'a [B]) -> impl Iterator<Item = (&'a A, &'a B)> {
    a.iter().flat_map(move |a| b.iter().map(move |b| (a, b)))
}

/// The cells in the order of a repetition: groups that differ by device only are turned round, each by itself.
fn ordered(cells: &[MatrixCell], experiment: &Experiment, repetition: u32) -> Vec<MatrixCell> {
    let same = |a: &MatrixCell, b: &MatrixCell| {
        (a.asked, a.run, a.packet_size, a.flows, a.table_entries.max(1), a.cores)
            == (b.asked, b.run, b.packet_size, b.flows, b.table_entries.max(1), b.cores)
            || ((a.table_entries == 0 || b.table_entries == 0)
                && (a.asked, a.packet_size, a.flows, a.cores) == (b.asked, b.packet_size, b.flows, b.cores))
    };
    let mut ordered = Vec::new();
    for group in cells.chunk_by(same) {
        let mut group = group.to_vec();
        let turns = (repetition as usize / 2) % experiment.subjects.len().max(1);
        let turns = turns % group.len();
        group.rotate_left(turns);
        if repetition % 2 == 1 {
            group.reverse();
        }
        ordered.extend(group);
    }
    ordered
}

/// Why a cell cannot be measured.
fn reason(experiment: &Experiment, cell: &MatrixCell, obstacle: &dyn Fn(&Trial) -> Option<String>) -> Option<String> {
    let trial = cell.trial(experiment, 0, SendRate::Max);
    if cell.subject.engine != "none" && trial.offload.is_none() {
        let engine = &cell.subject.engine;
        return Some(format!("engine {engine}: this testbed has no flow engine to hand connections to"));
    }
    obstacle(&trial)
}

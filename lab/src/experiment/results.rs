//! The results of a plan, by cell.

use super::file::{Experiment, Finding, FindingMetric, RateSetting};
use super::plan::{CellKind, MatrixCell, Plan};
use super::store::{RecordOutcome, ResultRecord, ResultStore};
use crate::rate::Repeated;
use crate::statistics::Summary;
use crate::testbed::{LatencySummary, Measurement, TimeProfile};

/// The results of a plan; what a store has beyond it is left out.
#[derive(Debug)]
pub struct PlanResults<'a> {
    /// The file.
    pub experiment: &'a Experiment,
    /// The plan.
    pub plan: &'a Plan,
    /// Every record of it, in the plan's order.
    pub records: Vec<&'a ResultRecord>,
    /// Measured cells in the order of the matrix, with their repetitions: without those in which a thread was kept from its
    /// processor, unless that is so of all.
    pub cells: Vec<(MatrixCell, Vec<&'a Measurement>)>,
    /// Searched cells by loss ratio.
    pub searches: Vec<(MatrixCell, Repeated)>,
    /// Profiles.
    pub profiles: Vec<(MatrixCell, &'a TimeProfile)>,
    /// Repetitions that `cells` is without.
    pub starved: usize,
}

/// Whether a finding was found here, too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FindingVerdict {
    /// Yes; the figures.
    Confirmed(String),
    /// No; the figures.
    Refuted(String),
    /// The confidence intervals overlap, or there is one repetition only, or a thread was kept from its processor; the
    /// figures.
    Undecided(String),
    /// The missing cells.
    NotMeasured(String),
}

impl<'a> PlanResults<'a> {
    /// Those of this plan in this store.
    pub fn new(experiment: &'a Experiment, plan: &'a Plan, store: &'a ResultStore) -> PlanResults<'a> {
        let keys = plan.tasks.iter().map(|task| task.key(experiment));
        let records: Vec<&ResultRecord> = keys.filter_map(|key| store.of(&key)).collect();
        let mut cells: Vec<(MatrixCell, Vec<&Measurement>)> = Vec::new();
        let mut searches: Vec<(MatrixCell, f64, Vec<_>)> = Vec::new();
        let mut profiles = Vec::new();
        for record in &records {
            let cell = &record.cell;
            match (&record.came, record.kind) {
                (RecordOutcome::Measured(measured), _) => match cells.iter_mut().find(|(other, _)| other == cell) {
                    Some((_, all)) => all.push(measured),
                    None => cells.push((cell.clone(), vec![measured])),
                },
                (RecordOutcome::Searched(outcome), CellKind::Search(goal)) => {
                    match searches.iter_mut().find(|(other, at, _)| other == cell && *at == goal) {
                        Some((_, _, all)) => all.push(outcome.clone()),
                        None => searches.push((cell.clone(), goal, vec![outcome.clone()])),
                    }
                }
                (RecordOutcome::Profiled(profile), _) => profiles.push((cell.clone(), profile)),
                (RecordOutcome::Searched(_) | RecordOutcome::Failed(_), _) => {}
            }
        }
        let searches = searches.into_iter().map(|(cell, goal, all)| (cell, Repeated::of(goal, all))).collect();
        let starved = cells.iter_mut().map(|(_, all)| without_starved(all)).sum();
        PlanResults { experiment, plan, records, cells, searches, profiles, starved }
    }

    /// Cells in all of whose repetitions a thread was kept from its processor: they say nothing of the device.
    pub fn starved_cells(&self) -> usize {
        self.cells.iter().filter(|(_, all)| is_starved(all)).count()
    }

    /// The failures, with their reasons.
    pub fn failures(&self) -> impl Iterator<Item = (&'a ResultRecord, &'a str)> {
        self.records.iter().filter_map(|record| match &record.came {
            RecordOutcome::Failed(reason) => Some((*record, reason.as_str())),
            _ => None,
        })
    }

    /// A device's cells at a rate.
    fn at<'b>(
        &'b self,
        rate: RateSetting,
        name: &'b str,
    ) -> impl Iterator<Item = &'b (MatrixCell, Vec<&'a Measurement>)> {
        self.cells.iter().filter(move |(cell, _)| cell.subject.name == name && cell.asked == rate)
    }

    /// Judges a finding: wherever all the devices were measured at its rate, everything else being equal.
    /// One place that refutes it refutes it; what confirms it must do so everywhere.
    pub fn judge(&self, finding: &Finding) -> FindingVerdict {
        let of = |name| self.at(finding.rate, name);
        let (Some(first), Some(last)) = (finding.devices.first(), finding.devices.last()) else {
            return FindingVerdict::NotMeasured("it names no devices".to_owned());
        };
        let cores = finding.cores.or_else(|| of(first).map(|(cell, _)| cell.cores).max());
        let mut places: Vec<(String, Option<bool>)> = Vec::new();
        // A device without a table stands in all places that differ by table only.
        let anchors = finding.devices.iter().max_by_key(|name| of(name).count()).unwrap_or(last);
        for (anchor, _) in of(anchors).filter(|(cell, _)| Some(cell.cores) == cores) {
            let found = finding.devices.iter().map(|name| of(name).find(|(cell, _)| alike(cell, anchor)));
            let Some(found) = found.collect::<Option<Vec<_>>>() else { continue };
            let values = found.iter().map(|(_, all)| summary(finding.metric, all)).collect::<Option<Vec<_>>>();
            if let Some(values) = values {
                let starved = found.iter().any(|(_, all)| is_starved(all));
                let verdict = if starved { None } else { compare(finding, &values) };
                let said = if starved { " (a thread was kept from its processor)" } else { "" };
                places.push((told(finding, anchor, &values) + said, verdict));
            }
        }
        let texts = |wanted: &dyn Fn(&Option<bool>) -> bool| {
            let of_them = places.iter().filter(|(_, verdict)| wanted(verdict));
            of_them.map(|(text, _)| text.as_str()).collect::<Vec<_>>().join("; ")
        };
        if places.is_empty() {
            let cores = cores.map_or("any number of".to_owned(), |cores| cores.to_string());
            return FindingVerdict::NotMeasured(format!("no result of all its devices on {cores} core(s)"));
        }
        if places.iter().any(|(_, verdict)| *verdict == Some(false)) {
            return FindingVerdict::Refuted(texts(&|verdict| *verdict == Some(false)));
        }
        if places.iter().any(|(_, verdict)| verdict.is_none()) {
            return FindingVerdict::Undecided(texts(&Option::is_none));
        }
        FindingVerdict::Confirmed(texts(&|_| true))
    }
}

/// Takes out the repetitions in which a thread was kept from its processor, if there are others; how many.
pub(super) fn without_starved(all: &mut Vec<&Measurement>) -> usize {
    let before = all.len();
    if all.iter().any(|measured| !measured.is_starved()) {
        all.retain(|measured| !measured.is_starved());
    }
    before - all.len()
}

/// Whether these repetitions of a cell are no good: a thread was kept from its processor in one, as [`PlanResults`] has them in
/// all of them.
pub fn is_starved(all: &[&Measurement]) -> bool {
    all.iter().any(|measured| measured.is_starved())
}

/// Whether two cells differ by device only; a device without a table is like every other as to entries and run.
pub fn alike(a: &MatrixCell, b: &MatrixCell) -> bool {
    let tableless = a.table_entries == 0 || b.table_entries == 0;
    (a.cores, a.flows, a.packet_size, a.asked) == (b.cores, b.flows, b.packet_size, b.asked)
        && (tableless || (a.table_entries, a.run) == (b.table_entries, b.run))
}

/// A metric over repetitions: packets per second, nanoseconds, a ratio. `None` where there is nothing of it: repetitions in
/// which no packet came have no latency.
pub fn summary(metric: FindingMetric, all: &[&Measurement]) -> Option<Summary> {
    match metric {
        FindingMetric::Throughput => Summary::of(&all.iter().map(|measured| measured.rx_pps).collect::<Vec<_>>()),
        FindingMetric::Latency => latency(all, |latency| latency.mean),
        FindingMetric::Loss => Summary::of(&all.iter().map(|measured| measured.loss()).collect::<Vec<_>>()),
    }
}

/// A figure of latency over the repetitions in which packets came.
pub fn latency(all: &[&Measurement], of: impl Fn(&LatencySummary) -> f64) -> Option<Summary> {
    let there = all.iter().map(|measured| &measured.latency).filter(|latency| latency.count > 0);
    Summary::of(&there.map(of).collect::<Vec<_>>())
}

/// Whether the finding holds; `None` if it cannot be told.
fn compare(finding: &Finding, values: &[Summary]) -> Option<bool> {
    let trusted = |value: &Summary| value.half_width.is_some();
    if let Some(within) = finding.within {
        let ends = values.iter().map(Summary::interval);
        let lows = ends.clone().map(|(low, _)| low);
        let highs = ends.map(|(_, high)| high);
        let over = |f: fn(f64, f64) -> f64, all: &mut dyn Iterator<Item = f64>| all.reduce(f).unwrap_or(0.0);
        let (least, greatest_low) = (over(f64::min, &mut lows.clone()), over(f64::max, &mut lows.clone()));
        let (most, least_high) = (over(f64::max, &mut highs.clone()), over(f64::min, &mut highs.clone()));
        // As far apart as the intervals allow, and as near.
        return match values.iter().all(trusted) {
            true if most <= least * (1.0 + within) => Some(true),
            true if greatest_low > least_high * (1.0 + within) => Some(false),
            _ => None,
        };
    }
    let mut decided = Some(true);
    for pair in values.windows(2) {
        let (more, less) = (pair[0], pair[1]);
        let both = trusted(&more) && trusted(&less);
        if both && more.interval().1 < less.interval().0 {
            return Some(false);
        }
        if !both || more.interval().0 <= less.interval().1 {
            decided = None;
        }
    }
    decided
}

/// The figures of one place, for people.
fn told(finding: &Finding, place: &MatrixCell, values: &[Summary]) -> String {
    let (scale, unit) = match finding.metric {
        FindingMetric::Throughput => (1e6, "Mpps"),
        FindingMetric::Latency => (1e3, "us"),
        FindingMetric::Loss => (0.01, "%"),
    };
    let figure = |(name, value): (&String, &Summary)| {
        let half = value.half_width.map_or(String::new(), |half| format!(" ± {:.2}", half / scale));
        format!("{name} {:.2}{half}", value.mean / scale)
    };
    let figures = finding.devices.iter().zip(values).map(figure).collect::<Vec<_>>().join(", ");
    let mut at = format!("{} core(s), {} flows, {} B, {}", place.cores, place.flows, place.packet_size, place.asked);
    if place.table_entries > 0 {
        at.push_str(&format!(", {} entries, run {}", place.table_entries, place.run));
    }
    format!("{at}: {figures} {unit}")
}

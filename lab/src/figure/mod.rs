//! Figures of an experiment's results: throughput, latency and loss by cores (and by table entries, flows and frame sizes,
//! where several were measured), cumulative distributions of latency, throughput over time, where time goes.
//!
//! Error bars are 95 % confidence intervals of the mean over repetitions; one repetition has none. Drawn once, as SVG;
//! [`Raster`] makes PNG of it.

pub(crate) mod chart;
mod raster;

pub use raster::Raster;

use crate::experiment::{MatrixCell, PlanResults, alike};
use crate::profile::{DeviceStage, by_stage};
use crate::statistics::Summary;
use crate::testbed::Measurement;
use anyhow::Result;
use chart::{Curve, Curves, PlacedValues, Series, Shares};

/// Figures of an experiment at most; the rest is said to be left out.
const FIGURES_MAX: usize = 400;
/// Points of a curve at most.
const POINTS_MAX: usize = 120;

/// A figure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Figure {
    /// Its file's name, without ending.
    pub name: String,
    /// Under which heading it belongs.
    pub heading: &'static str,
    /// Its subject.
    pub title: String,
    /// The drawing.
    pub svg: String,
}

/// The drawn quantity of a measurement.
struct Quantity {
    heading: &'static str,
    /// In files' names.
    word: &'static str,
    axis: &'static str,
    /// Not a number: there is nothing of it.
    of: fn(&Measurement) -> f64,
}

/// Nanoseconds of latency in microseconds, if packets came.
fn came(measured: &Measurement, ns: f64) -> f64 {
    if measured.latency.count > 0 { ns / 1e3 } else { f64::NAN }
}

const QUANTITIES: [Quantity; 4] = [
    Quantity { heading: "Throughput", word: "throughput", axis: "Mpps received", of: |m| m.rx_pps / 1e6 },
    Quantity { heading: "Latency", word: "latency", axis: "mean latency, us", of: |m| came(m, m.latency.mean) },
    Quantity {
        heading: "Latency, 99 %",
        word: "latency-p99",
        axis: "99 % of packets, us",
        of: |m| came(m, m.latency.p99 as f64),
    },
    Quantity { heading: "Loss", word: "loss", axis: "percent lost", of: |m| m.loss() * 100.0 },
];

/// The axis below a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Axis {
    Cores,
    Entries,
    Flows,
    Size,
}

impl Axis {
    const ALL: [Axis; 4] = [Axis::Cores, Axis::Entries, Axis::Flows, Axis::Size];

    fn name(self) -> &'static str {
        match self {
            Axis::Cores => "core(s)",
            Axis::Entries => "table entries",
            Axis::Flows => "flows",
            Axis::Size => "bytes per frame",
        }
    }

    fn word(self) -> &'static str {
        match self {
            Axis::Cores => "cores",
            Axis::Entries => "entries",
            Axis::Flows => "flows",
            Axis::Size => "size",
        }
    }

    /// The cell's place on it.
    fn label(self, cell: &MatrixCell) -> String {
        match self {
            Axis::Cores => cell.cores.to_string(),
            Axis::Entries => count(cell.table_entries),
            Axis::Flows => count(cell.flows),
            Axis::Size => cell.packet_size.to_string(),
        }
    }

    /// The cell somewhere else on it.
    fn at(self, cell: &MatrixCell, place: &MatrixCell) -> MatrixCell {
        let mut moved = cell.clone();
        match self {
            Axis::Cores => moved.cores = place.cores,
            Axis::Entries => moved.table_entries = place.table_entries,
            Axis::Flows => moved.flows = place.flows,
            Axis::Size => moved.packet_size = place.packet_size,
        }
        moved
    }
}

/// A number as people say it.
pub(crate) fn count(number: u32) -> String {
    match number {
        n if n >= 1_000_000 && n % 100_000 == 0 => format!("{} M", f64::from(n) / 1e6),
        n if n >= 1 << 20 && n % (1 << 20) == 0 => format!("{} Mi", n >> 20),
        n if n >= 1 << 12 && n % (1 << 10) == 0 => format!("{} Ki", n >> 10),
        n if n >= 1000 && n % 100 == 0 => format!("{} k", f64::from(n) / 1e3),
        n => n.to_string(),
    }
}

/// All figures there are, and how many more there would be.
///
/// # Errors
/// When one cannot be drawn.
pub fn figures(results: &PlanResults<'_>) -> Result<(Vec<Figure>, usize)> {
    let mut wanted: Vec<(String, &'static str, String, Drawing)> = Vec::new();
    // Cells with a table stand for the places; others are drawn wherever they fit.
    let mut anchors: Vec<&MatrixCell> =
        results.cells.iter().map(|(cell, _)| cell).filter(|cell| cell.table_entries > 0).collect();
    if anchors.is_empty() {
        anchors = results.cells.iter().map(|(cell, _)| cell).collect();
    }
    for axis in Axis::ALL {
        let places = distinct(anchors.iter().copied(), |a, b| axis.label(a) == axis.label(b));
        let needed = axis == Axis::Cores && (places.len() > 1 || is_single(&anchors));
        if !(needed || axis != Axis::Cores && places.len() > 1) {
            continue;
        }
        for context in distinct(anchors.iter().copied(), |a, b| alike(&axis.at(a, b), b)) {
            for quantity in &QUANTITIES {
                let drawing = Drawing::Places(by_place(results, quantity, axis, &places, context));
                let name = format!("{}-by-{}-{}", quantity.word, axis.word(), file_words(context, Some(axis)));
                let title = title(quantity.heading, context, Some(axis));
                wanted.push((name, quantity.heading, title, drawing));
            }
        }
    }
    for context in distinct(anchors.iter().copied(), alike) {
        let words = file_words(context, None);
        let cumulative = Drawing::Curves(cumulative(results, context));
        let heading = "Latency, cumulative distribution";
        wanted.push((format!("latency-cdf-{words}"), heading, title(heading, context, None), cumulative));
        let heading = "Throughput over time";
        let over_time = Drawing::Curves(over_time(results, context));
        wanted.push((format!("time-{words}"), heading, title(heading, context, None), over_time));
    }
    // Those with a table first: they name the place.
    let mut profiled: Vec<&MatrixCell> = results.profiles.iter().map(|(cell, _)| cell).collect();
    profiled.sort_by_key(|cell| cell.table_entries == 0);
    for context in distinct(profiled.into_iter(), alike) {
        let heading = "Where time goes";
        let name = format!("profile-{}", file_words(context, None));
        wanted.push((name, heading, title(heading, context, None), Drawing::Shares(shares(results, context))));
    }
    let more = wanted.len().saturating_sub(FIGURES_MAX);
    let mut figures = Vec::new();
    for (name, heading, title, mut drawing) in wanted.into_iter().take(FIGURES_MAX) {
        if let Some(svg) = drawing.svg(&title)? {
            figures.push(Figure { name, heading, title, svg });
        }
    }
    // By heading, in the order in which headings came up.
    let headings: Vec<&str> = figures.iter().map(|figure| figure.heading).collect();
    figures.sort_by_key(|figure| headings.iter().position(|heading| *heading == figure.heading));
    Ok((figures, more))
}

/// Whether the cells differ by device and rate at most: then one figure, by cores, shows them all.
fn is_single(cells: &[&MatrixCell]) -> bool {
    let first = cells.first();
    cells
        .iter()
        .all(|cell| first.is_some_and(|first| Axis::ALL.iter().all(|axis| axis.label(first) == axis.label(cell))))
}

enum Drawing {
    Places(PlacedValues),
    Curves(Curves),
    Shares(Shares),
}

impl Drawing {
    fn svg(&mut self, title: &str) -> Result<Option<String>> {
        match self {
            Drawing::Places(places) => {
                title.clone_into(&mut places.title);
                places.svg()
            }
            Drawing::Curves(curves) => {
                title.clone_into(&mut curves.title);
                curves.svg()
            }
            Drawing::Shares(shares) => {
                title.clone_into(&mut shares.title);
                shares.svg()
            }
        }
    }
}

/// The first of each kind, in order.
fn distinct<'a>(
    cells: impl Iterator<Item = &'a MatrixCell>,
    same: impl Fn(&MatrixCell, &MatrixCell) -> bool,
) -> Vec<&'a MatrixCell> {
    let mut all: Vec<&MatrixCell> = Vec::new();
    for cell in cells {
        if !all.iter().any(|other| same(cell, other)) {
            all.push(cell);
        }
    }
    all
}

/// The settings common to all of a figure, for people; without those on its axis.
fn title(heading: &str, context: &MatrixCell, axis: Option<Axis>) -> String {
    let mut parts = Vec::new();
    for other in Axis::ALL.into_iter().filter(|other| Some(*other) != axis) {
        if other != Axis::Entries || context.table_entries > 0 {
            parts.push(format!("{} {}", other.label(context), other.name()));
        }
    }
    parts.push(format!("rate {}", context.asked));
    parts.push(format!("run {}", context.run));
    format!("{heading}: {}", parts.join(", "))
}

fn file_words(context: &MatrixCell, axis: Option<Axis>) -> String {
    let others = Axis::ALL.into_iter().filter(|other| Some(*other) != axis);
    let words = others.map(|other| format!("{}-{}", other.word(), other.label(context)));
    let all = words.chain([context.asked.to_string(), format!("run{}", context.run)]).collect::<Vec<_>>().join("-");
    all.chars().filter(|c| *c != ' ').map(|c| if c == '%' { 'p' } else { c }).collect()
}

/// Each device that has something at this place, with its number among all devices: colors stay the same.
fn by_device<'a>(
    results: &'a PlanResults<'_>,
    context: &'a MatrixCell,
) -> impl Iterator<Item = (usize, &'a str, &'a [&'a Measurement])> {
    results.experiment.subjects.iter().enumerate().filter_map(move |(index, subject)| {
        let found = results.cells.iter().find(|(cell, _)| cell.subject == *subject && alike(cell, context));
        found.map(|(_, all)| (index, subject.name.as_str(), all.as_slice()))
    })
}

fn by_place(
    results: &PlanResults<'_>,
    quantity: &Quantity,
    axis: Axis,
    places: &[&MatrixCell],
    context: &MatrixCell,
) -> PlacedValues {
    let mut series = Vec::new();
    for (color, subject) in results.experiment.subjects.iter().enumerate() {
        let mut points = Vec::new();
        for (place, at) in places.iter().enumerate() {
            let moved = axis.at(context, at);
            let found = results.cells.iter().find(|(cell, _)| cell.subject == *subject && alike(cell, &moved));
            let values = found.map(|(_, all)| all.iter().map(|measured| (quantity.of)(measured)).collect::<Vec<_>>());
            if let Some(summary) = values.and_then(|values| Summary::of(&values)) {
                points.push((place, summary));
            }
        }
        if !points.is_empty() {
            series.push(Series { name: subject.name.clone(), color, points });
        }
    }
    let labels = places.iter().map(|cell| axis.label(cell)).collect();
    let colors = results.experiment.subjects.len();
    let (below, beside) = (axis.name(), quantity.axis);
    PlacedValues { title: String::new(), below, beside, labels, is_joined: true, colors, series }
}

/// The median repetition at each share of packets.
fn cumulative(results: &PlanResults<'_>, context: &MatrixCell) -> Curves {
    let mut curves = Vec::new();
    for (color, name, all) in by_device(results, context) {
        let shares = (1..=POINTS_MAX).map(|i| 1.0 - (1.0 - i as f64 / POINTS_MAX as f64).powf(2.0));
        let points: Vec<(f64, f64)> = shares
            .filter_map(|share| {
                let at = all.iter().filter_map(|measured| {
                    let points = &measured.latency.cumulative;
                    points.iter().find(|(_, reached)| *reached >= share - 1e-9).map(|(ns, _)| *ns as f64 / 1e3)
                });
                Some((Summary::of(&at.collect::<Vec<_>>())?.median, share))
            })
            .collect();
        curves.push(Curve { name: name.to_owned(), color, is_detail: false, points });
    }
    let (below, beside) = ("latency, us", "share of packets");
    let colors = results.experiment.subjects.len();
    Curves { title: String::new(), below, beside, logarithmic: true, colors, curves }
}

/// The mean of all repetitions, and each of them.
fn over_time(results: &PlanResults<'_>, context: &MatrixCell) -> Curves {
    let mut curves = Vec::new();
    for (color, name, all) in by_device(results, context) {
        let name = name.to_owned();
        let rate = |sample: &crate::testbed::TrialSample| sample.received as f64 / sample.length.max(1e-9) / 1e6;
        let most = all.iter().map(|measured| measured.over_time.len()).max().unwrap_or(0);
        let step = most.div_ceil(POINTS_MAX).max(1);
        let mut mean = Vec::new();
        for index in (0..most).step_by(step) {
            let there = all.iter().filter_map(|measured| measured.over_time.get(index));
            let (at, rates): (Vec<f64>, Vec<f64>) = there.map(|sample| (sample.at, rate(sample))).unzip();
            if let (Some(at), Some(rate)) = (Summary::of(&at), Summary::of(&rates)) {
                mean.push((at.mean, rate.mean));
            }
        }
        if all.len() > 1 {
            for measured in all {
                let points = measured.over_time.iter().step_by(step).map(|sample| (sample.at, rate(sample))).collect();
                curves.push(Curve { name: name.clone(), color, is_detail: true, points });
            }
        }
        curves.push(Curve { name, color, is_detail: false, points: mean });
    }
    let (below, beside) = ("seconds", "Mpps received");
    let colors = results.experiment.subjects.len();
    Curves { title: String::new(), below, beside, logarithmic: false, colors, curves }
}

fn shares(results: &PlanResults<'_>, context: &MatrixCell) -> Shares {
    let here = results.profiles.iter().filter(|(cell, _)| alike(cell, context));
    let rows = here.map(|(cell, profile)| {
        let stages = by_stage(profile);
        let share = |stage| stages.iter().find(|(other, _)| *other == stage).map_or(0.0, |(_, share)| *share);
        (cell.subject.name.clone(), DeviceStage::ALL.into_iter().map(share).collect())
    });
    Shares { title: String::new(), parts: DeviceStage::ALL.map(DeviceStage::name).to_vec(), rows: rows.collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_as_people_say_them() {
        let said = [7, 1000, 4096, 2_000_000, 2_500_000, 1 << 21].map(count);
        assert_eq!(said, ["7", "1 k", "4 Ki", "2 M", "2.5 M", "2 Mi"]);
    }
}

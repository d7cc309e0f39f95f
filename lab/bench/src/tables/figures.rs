//! Figures: throughput by threads, by entries and by load factor, as SVG. Of methods that track connections: the others
//! are so much faster that nothing else could be seen.

use super::case::TablesCase;
use super::results::{TableResults, size_name};
use super::series;
use crate::suite::samples::RepeatedValues;
use anyhow::{Result, anyhow};
use plotters::prelude::*;
use std::path::Path;

/// Width and height.
const SIZE: (u32, u32) = (1000, 620);
/// The common part of every figure.
const CASES: [(TablesCase, &str); 4] = [
    (TablesCase::Hits, "hits"),
    (TablesCase::Misses, "misses"),
    (TablesCase::Inserts, "inserts"),
    (TablesCase::Deletes, "deletes"),
];

/// The methods that track nothing.
const UNTRACKED: [&str; 2] = ["stateless", "maglev"];

/// One method's values: where, and what.
struct MethodLine {
    method: String,
    points: Vec<(f64, RepeatedValues)>,
}

/// The text of the axis below.
struct AxisText<'a> {
    title: &'a str,
    /// The places of values, from 0 on in steps of halves, and their labels.
    at: Vec<(f64, String)>,
}

/// Draws all there are figures for into `directory`.
///
/// # Errors
/// When a file cannot be written.
pub(super) fn draw(
    results: &TableResults,
    sizes: &[usize],
    threads: &[usize],
    machine: &str,
    directory: &Path,
) -> Result<()> {
    for (case, name) in CASES {
        let of = |title: &str| format!("{} in bursts of 32, {title} ({machine})", case.name());
        if let Some(&slots) = sizes.last() {
            let axis = AxisText::even("threads", threads, ToString::to_string);
            let lines =
                lines(results, &axis, threads, |method, &threads| results.samples(method, case, slots, threads));
            let title = of(&format!("{} slots 80 % full", size_name(slots)));
            chart(&title, &axis, case.unit(), lines, &directory.join(format!("threads-{name}.svg")))?;
        }
        if let Some(&threads) = threads.first() {
            let axis = AxisText::even("slots, 80 % full", sizes, |slots| size_name(*slots));
            let lines = lines(results, &axis, sizes, |method, &slots| results.samples(method, case, slots, threads));
            let title = of(&format!("{threads} thread(s)"));
            chart(&title, &axis, case.unit(), lines, &directory.join(format!("entries-{name}.svg")))?;
        }
        let at = series::LOADS.map(|percent| ((percent - series::LOADS[0]) as f64 / 10.0, format!("{percent} %")));
        let axis = AxisText { title: "load factor", at: at.to_vec() };
        let lines = lines(results, &axis, &series::LOADS, |method, &percent| {
            results.at_load(method, case, series::entries(percent))
        });
        let title = of(&format!("{} slots, 1 thread", size_name(series::SLOTS)));
        chart(&title, &axis, case.unit(), lines, &directory.join(format!("load-{name}.svg")))?;
    }
    Ok(())
}

impl AxisText<'_> {
    /// One with these values at equal distances.
    fn even<'a, P>(title: &'a str, places: &[P], label: impl Fn(&P) -> String) -> AxisText<'a> {
        AxisText { title, at: places.iter().enumerate().map(|(i, place)| (i as f64, label(place))).collect() }
    }
}

/// Every method's values at `places`, which stand on the axis in this order.
fn lines<P>(
    results: &TableResults,
    axis: &AxisText<'_>,
    places: &[P],
    value: impl Fn(&str, &P) -> Option<RepeatedValues>,
) -> Vec<MethodLine> {
    let mut lines = Vec::new();
    for method in results.methods().into_iter().filter(|method| !UNTRACKED.contains(method)) {
        let places = axis.at.iter().zip(places);
        let points: Vec<_> = places.filter_map(|((x, _), place)| Some((*x, value(method, place)?))).collect();
        if !points.is_empty() {
            lines.push(MethodLine { method: method.to_owned(), points });
        }
    }
    lines
}

/// Whether a method is another project's: those have thin lines.
fn is_peer(method: &str) -> bool {
    ["rte-hash", "hashbrown", "dashmap", "libcuckoo"].iter().any(|peer| method.contains(peer))
}

/// One figure; nothing if there is nothing to draw.
fn chart(title: &str, axis: &AxisText<'_>, unit: &str, lines: Vec<MethodLine>, path: &Path) -> Result<()> {
    let most = lines.iter().flat_map(|line| &line.points).map(|(_, samples)| samples.range().1).fold(0.0, f64::max);
    if most <= 0.0 {
        return Ok(());
    }
    // A drawing's error has a type of its own for every backend.
    let failed = |error: &dyn std::fmt::Display| anyhow!("could not draw {}: {error}", path.display());
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    root.fill(&WHITE).map_err(|error| failed(&error))?;
    let last = axis.at.last().map_or(0.0, |(x, _)| *x);
    let mut chart = ChartBuilder::on(&root)
        .caption(title, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(42)
        .y_label_area_size(64)
        .build_cartesian_2d(-0.1..last * 1.45 + 0.9, 0.0..most / 1e6 * 1.05)
        .map_err(|error| failed(&error))?;
    let label = |x: &f64| {
        let there = axis.at.iter().find(|(at, _)| (x - at).abs() < 0.01);
        there.map_or_else(String::new, |(_, label)| label.clone())
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .label_style(("sans-serif", 15))
        .x_labels((2.0 * (last * 1.45 + 1.0)) as usize + 2)
        .x_label_formatter(&label)
        .x_desc(axis.title)
        .y_desc(format!("M {unit}"))
        .draw()
        .map_err(|error| failed(&error))?;
    let count = lines.len();
    for (i, MethodLine { method, points }) in lines.into_iter().enumerate() {
        let color = HSLColor(i as f64 / count as f64, 0.85, 0.42);
        let style = color.stroke_width(if is_peer(&method) { 1 } else { 3 });
        let medians = points.iter().map(|(x, samples)| (*x, samples.median() / 1e6));
        let ranges = points.iter().map(|(x, samples)| {
            let (low, high) = samples.range();
            PathElement::new(vec![(*x, low / 1e6), (*x, high / 1e6)], color.stroke_width(1))
        });
        let ends: Vec<_> = medians.clone().map(|point| Circle::new(point, 3, color.filled())).collect();
        chart.draw_series(ranges).map_err(|error| failed(&error))?;
        chart.draw_series(ends).map_err(|error| failed(&error))?;
        chart
            .draw_series(LineSeries::new(medians, style))
            .map_err(|error| failed(&error))?
            .label(method)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.8))
        .label_font(("sans-serif", 15))
        .draw()
        .map_err(|error| failed(&error))?;
    root.present().map_err(|error| failed(&error))
}

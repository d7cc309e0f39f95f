//! Figures: a quantity by cores with intervals, and whiskers of all methods on one number of cores, as in the paper.

use super::file::ClassificationExperiment;
use super::perform::CaseRow;
use super::rule::{Sharing, SharingMetric};
use crate::figure::chart::{PlacedValues, Series};
use crate::statistics::Summary;
use anyhow::{Result, anyhow};
use plotters::prelude::*;

/// Width of a figure of whiskers, and height of a method in it.
const WIDTH: u32 = 960;
const ROW: u32 = 34;

/// A quantity of all methods by cores, on one device.
pub(super) fn by_cores(
    experiment: &ClassificationExperiment,
    seen: &Sharing<'_>,
    metric: SharingMetric,
    title: String,
    beside: &'static str,
) -> Result<Option<String>> {
    let mut series = Vec::new();
    for (color, &method) in experiment.methods.iter().enumerate() {
        let at = |(place, &cores): (usize, &u16)| Some((place, seen.summary(metric, method, cores)?));
        let points: Vec<(usize, Summary)> = experiment.cores.iter().enumerate().filter_map(at).collect();
        if !points.is_empty() {
            series.push(Series { name: method.name().to_owned(), color, points });
        }
    }
    let labels = experiment.cores.iter().map(u16::to_string).collect();
    let colors = experiment.methods.len();
    PlacedValues { title, below: "cores", beside, labels, is_joined: true, colors, series }.svg()
}

/// A method's five numbers: least, a quarter, half, three quarters, most.
pub(super) struct Whiskers {
    pub(super) name: String,
    pub(super) numbers: [f64; 5],
}

impl Whiskers {
    /// Those of a sample: quartiles between the values next to them.
    pub(super) fn of(name: &str, values: &[f64]) -> Option<Whiskers> {
        let mut sorted: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
        sorted.sort_by(f64::total_cmp);
        let last = sorted.len().checked_sub(1)? as f64;
        let at = |part: f64| {
            let place = part * last;
            let (low, high) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
            low + (high - low) * place.fract()
        };
        Some(Whiskers { name: name.to_owned(), numbers: [0.0, 0.25, 0.5, 0.75, 1.0].map(at) })
    }

    /// Of round trips: quartiles as they were simulated, on average over the seeds, and 99 of 100 for the most.
    pub(super) fn of_round_trips<'a>(name: &str, rows: impl Iterator<Item = &'a CaseRow>) -> Option<Whiskers> {
        let rows: Vec<&CaseRow> = rows.collect();
        let mean = |of: fn(&CaseRow) -> f64| Summary::of(&rows.iter().map(|row| of(row)).collect::<Vec<_>>());
        let [p25, p50] = [mean(|row| row.rtt_p25)?.mean, mean(|row| row.rtt_p50)?.mean];
        let [p75, p99] = [mean(|row| row.rtt_p75)?.mean, mean(|row| row.rtt_p99)?.mean];
        Some(Whiskers { name: name.to_owned(), numbers: [p25, p25, p50, p75, p99] })
    }
}

/// Whiskers below each other, the first on top; `None` if there are none.
pub(super) fn whiskers(title: &str, below: &str, all: &[Whiskers]) -> Result<Option<String>> {
    let Some(most) = all.iter().map(|one| one.numbers[4]).reduce(f64::max) else { return Ok(None) };
    let mut svg = String::new();
    draw(&mut svg, (title, below), all, if most > 0.0 { most * 1.08 } else { 1.0 })
        .map_err(|error| anyhow!("could not draw {title}: {error}"))?;
    Ok(Some(svg))
}

fn draw(
    svg: &mut String,
    (title, below): (&str, &str),
    all: &[Whiskers],
    most: f64,
) -> Result<(), Box<dyn std::error::Error>> {
    let rows = all.len();
    let root = SVGBackend::with_string(svg, (WIDTH, 110 + ROW * rows as u32)).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption(title, ("sans-serif", 18))
        .margin(12)
        .margin_right(30)
        .x_label_area_size(42)
        .y_label_area_size(240)
        .build_cartesian_2d(0.0..most, -0.5..rows as f64 - 0.5)?;
    let name = |y: &f64| {
        let near = y.round();
        let is_row = (y - near).abs() < 0.01 && near >= 0.0;
        let row = is_row.then(|| (rows - 1).checked_sub(near as usize)).flatten();
        row.map_or(String::new(), |row| all[row].name.clone())
    };
    chart
        .configure_mesh()
        .disable_y_mesh()
        .light_line_style(WHITE)
        .label_style(("sans-serif", 13))
        .y_labels(2 * rows + 2)
        .y_label_formatter(&name)
        .x_desc(below)
        .draw()?;
    for (index, Whiskers { numbers: [least, low, middle, high, most], .. }) in all.iter().enumerate() {
        let y = (rows - 1 - index) as f64;
        let blue = RGBColor(0x00, 0x72, 0xb2);
        let line = |from: (f64, f64), to: (f64, f64)| PathElement::new(vec![from, to], blue.stroke_width(1));
        let corners = [(*low, y - 0.3), (*high, y + 0.3)];
        chart.draw_series([Rectangle::new(corners, blue.mix(0.3).filled())])?;
        chart.draw_series([Rectangle::new(corners, blue.stroke_width(1))])?;
        chart.draw_series([
            line((*least, y), (*low, y)),
            line((*high, y), (*most, y)),
            line((*least, y - 0.15), (*least, y + 0.15)),
            line((*most, y - 0.15), (*most, y + 0.15)),
        ])?;
        let median = PathElement::new(vec![(*middle, y - 0.3), (*middle, y + 0.3)], BLACK.stroke_width(2));
        chart.draw_series([median])?;
    }
    root.present()?;
    Ok(())
}

//! Throughput over time, one line per mechanism: the counterpart of KTH 2020, figure 6.1.

use super::{Course, WINDOW};
use anyhow::{Result, anyhow};
use plotters::prelude::*;
use std::path::Path;

const COLOURS: [RGBColor; 7] = [
    RGBColor(0x77, 0x77, 0x77),
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0x56, 0xb4, 0xe9),
    RGBColor(0xd5, 0x5e, 0x00),
];

/// Draws them all into one SVG file.
pub(super) fn draw(path: &Path, courses: &[Course], packets: usize) -> Result<()> {
    chart(path, courses, packets).map_err(|error| anyhow!("could not draw {}: {error}", path.display()))
}

fn chart(path: &Path, courses: &[Course], packets: usize) -> Result<(), Box<dyn std::error::Error>> {
    let lines: Vec<Vec<(f64, f64)>> = courses.iter().map(|course| line(course, packets)).collect();
    let (mut right, mut top) = (1.0f64, 1.0f64);
    for &(seconds, rate) in lines.iter().flatten() {
        (right, top) = (right.max(seconds), top.max(rate));
    }
    let root = SVGBackend::new(path, (1000, 500)).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption("throughput while all flows are exchanged once per timeout", ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(60)
        .build_cartesian_2d(0.0..right, 0.0..top * 1.25)?;
    chart
        .configure_mesh()
        .x_desc("traffic (s), each point 100 ms of it")
        .y_desc("million packets per second of processor time")
        .light_line_style(WHITE)
        .draw()?;
    for ((course, line), colour) in courses.iter().zip(lines).zip(COLOURS) {
        chart
            .draw_series(LineSeries::new(line, colour.stroke_width(1)))?
            .label(course.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(3)));
    }
    chart.configure_series_labels().background_style(WHITE).border_style(BLACK).draw()?;
    root.present()?;
    Ok(())
}

/// Seconds of traffic and million packets a second.
fn line(course: &Course, packets: usize) -> Vec<(f64, f64)> {
    let windows = course.windows.iter().enumerate();
    windows
        .map(|(number, window)| (number as f64 * WINDOW.as_secs_f64(), packets as f64 / window.cpu.as_secs_f64() / 1e6))
        .collect()
}

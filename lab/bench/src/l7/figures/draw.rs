//! Figures as SVG: a line for each series, medians with the range of the repetitions.

use super::load::Variant;
use super::results::{FigureResults, ResultPlace};
use crate::suite::samples::RepeatedValues;
use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::drawing::DrawingAreaErrorKind;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::path::Path;

/// The result of drawing a part of a figure.
type Drawn = std::result::Result<(), DrawingAreaErrorKind<std::io::Error>>;
type FigureChart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

/// Width and height.
const SIZE: (u32, u32) = (900, 520);
/// Room on the right for the legend, as a share of the axis.
const LEGEND: f64 = 0.42;

const COLOURS: [RGBColor; 7] = [
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0x77, 0x77, 0x77),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x56, 0xb4, 0xe9),
];

/// The contents of a figure.
#[derive(Clone, Copy, Debug)]
pub(super) struct FigureSpec<'a> {
    pub(super) part: &'static str,
    pub(super) setting: &'a str,
    /// The name of the values, and what they are divided by.
    pub(super) what: &'static str,
    pub(super) divisor: f64,
    pub(super) title: &'a str,
    pub(super) x_title: &'a str,
    pub(super) y_title: &'a str,
    /// Whether the axis of values is logarithmic.
    pub(super) logarithmic: bool,
    /// Only these series; all if empty.
    pub(super) only: &'a [&'a str],
}

struct ChartLine {
    name: String,
    points: Vec<(f64, RepeatedValues)>,
}

/// Draws one whose places stand at equal distances; nothing if there are no values.
///
/// # Errors
/// When the file cannot be written.
pub(super) fn by_place(
    results: &FigureResults,
    figure: &FigureSpec<'_>,
    label: fn(u64) -> String,
    path: &Path,
) -> Result<()> {
    let places = results.places(figure.part, figure.setting);
    let line = |series: String| {
        let points = places.iter().enumerate().filter_map(|(at, &x)| {
            let place = ResultPlace { part: figure.part, setting: figure.setting, series: &series, x };
            Some((at as f64, results.samples(place, figure.what)?.divided_by(figure.divisor)))
        });
        let points = points.collect();
        ChartLine { name: series, points }
    };
    let lines = lines(results, figure, line);
    let ticks: Vec<(f64, String)> = places.iter().enumerate().map(|(at, &x)| (at as f64, label(x))).collect();
    let last = places.len().saturating_sub(1) as f64;
    chart(figure, lines, (0.0, last), &ticks, path)
}

/// Draws the distribution of values whose places are percent: values below, on a logarithmic axis, percent upwards.
///
/// # Errors
/// When the file cannot be written.
pub(super) fn distribution(results: &FigureResults, figure: &FigureSpec<'_>, path: &Path) -> Result<()> {
    let line = |series: String| {
        let points = results.places(figure.part, figure.setting).into_iter().filter_map(|percent| {
            let place = ResultPlace { part: figure.part, setting: figure.setting, series: &series, x: percent };
            let value = results.median(place, figure.what)? / figure.divisor;
            (value > 0.0).then(|| (value.log10(), RepeatedValues::from(vec![percent as f64])))
        });
        let points = points.collect();
        ChartLine { name: series, points }
    };
    let lines = lines(results, figure, line);
    let all = || lines.iter().flat_map(|line| &line.points).map(|(x, _)| *x);
    let (low, high) = (all().fold(f64::MAX, f64::min).floor(), all().fold(f64::MIN, f64::max).ceil());
    if low >= high {
        return Ok(());
    }
    let steps = (low as i32..=high as i32).map(|power| (f64::from(power), power_of_ten(f64::from(power))));
    let ticks: Vec<(f64, String)> = steps.collect();
    chart(figure, lines, (low, high), &ticks, path)
}

fn lines(results: &FigureResults, figure: &FigureSpec<'_>, line: impl Fn(String) -> ChartLine) -> Vec<ChartLine> {
    let series = results.series(figure.part, figure.setting).into_iter();
    let series = series.filter(|name| figure.only.is_empty() || figure.only.contains(&name.as_str()));
    series.map(line).filter(|line| !line.points.is_empty()).collect()
}

fn power_of_ten(power: f64) -> String {
    let value = 10f64.powf(power);
    if power < 0.0 { format!("{value:.*}", (-power).ceil() as usize) } else { format!("{value:.0}") }
}

/// Draws lines over an axis from `from` to `to`, with labels at some places; nothing if there are no lines.
fn chart(
    figure: &FigureSpec<'_>,
    lines: Vec<ChartLine>,
    axis: (f64, f64),
    ticks: &[(f64, String)],
    path: &Path,
) -> Result<()> {
    let ranges = || lines.iter().flat_map(|line| &line.points).map(|(_, samples)| samples.range());
    let most = ranges().map(|(_, high)| figure.height(high)).fold(f64::MIN, f64::max);
    let least = ranges().map(|(low, _)| figure.height(low)).fold(f64::MAX, f64::min);
    if lines.is_empty() || !most.is_finite() {
        return Ok(());
    }
    let bottom = if figure.logarithmic { least.floor() } else { 0.0 };
    let top = if figure.logarithmic { most + 0.1 } else { (most * 1.08).max(1e-9) };
    draw(figure, lines, axis, (bottom, top), ticks, path)
        .map_err(|error| anyhow!("could not draw {}: {error}", path.display()))
}

impl FigureSpec<'_> {
    /// The place of `value` on the vertical axis.
    fn height(&self, value: f64) -> f64 {
        if self.logarithmic { value.max(1e-9).log10() } else { value }
    }
}

fn draw(
    figure: &FigureSpec<'_>,
    lines: Vec<ChartLine>,
    (from, to): (f64, f64),
    (bottom, top): (f64, f64),
    ticks: &[(f64, String)],
    path: &Path,
) -> Drawn {
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let width = (to - from).max(1.0);
    let mut chart = ChartBuilder::on(&root)
        .caption(figure.title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(42)
        .y_label_area_size(64)
        .build_cartesian_2d(from - 0.03 * width..to + LEGEND * width, bottom..top)?;
    let values = |value: &f64| match figure.logarithmic {
        true if (value - value.round()).abs() > 0.01 => String::new(),
        true => power_of_ten(value.round()),
        false if top < 10.0 => format!("{value:.1}"),
        false => format!("{value:.0}"),
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .disable_x_axis()
        .label_style(("sans-serif", 14))
        .x_labels(0)
        .y_labels(if figure.logarithmic { 30 } else { 10 })
        .y_label_formatter(&values)
        .light_line_style(WHITE)
        .y_desc(figure.y_title)
        .x_desc(figure.x_title)
        .draw()?;
    for (at, text) in ticks {
        draw_tick(&root, chart.backend_coord(&(*at, bottom)), text)?;
    }
    for (number, line) in lines.into_iter().enumerate() {
        // A series in several figures has the same colour in all of them.
        let number = Variant::ALL.iter().position(|variant| variant.name() == line.name).unwrap_or(number);
        draw_line(&mut chart, figure, line, COLOURS[number % COLOURS.len()], 0.008 * width)?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.8))
        .label_font(("sans-serif", 14))
        .draw()?;
    root.present()
}

/// Draws a label below the axis. (plotters chooses the places of labels by itself; these are where there are values.)
fn draw_tick(root: &DrawingArea<SVGBackend<'_>, Shift>, (x, y): (i32, i32), text: &str) -> Drawn {
    let style = TextStyle::from(("sans-serif", 14).into_font()).pos(Pos::new(HPos::Center, VPos::Top)).color(&BLACK);
    root.draw(&PathElement::new([(x, y), (x, y + 5)], BLACK))?;
    root.draw(&Text::new(text.to_string(), (x, y + 7), style))
}

/// Draws the medians of a series as a line, and the ranges of its repetitions as bars with caps of `cap` to each side.
fn draw_line(
    chart: &mut FigureChart<'_, '_>,
    figure: &FigureSpec<'_>,
    ChartLine { name, points }: ChartLine,
    colour: RGBColor,
    cap: f64,
) -> Drawn {
    let style = colour.stroke_width(2);
    let medians: Vec<(f64, f64)> = points.iter().map(|(x, samples)| (*x, figure.height(samples.median()))).collect();
    let ranges = points.iter().filter(|(_, samples)| samples.values().len() > 1).map(|(x, samples)| {
        let (low, high) = samples.range();
        let (low, high) = (figure.height(low), figure.height(high));
        let ends = [low, high].map(|y| vec![(x - cap, y), (x + cap, y)]);
        [vec![(*x, low), (*x, high)], ends[0].clone(), ends[1].clone()]
    });
    let ranges = ranges.flatten().map(|path| PathElement::new(path, colour.stroke_width(1)));
    chart.draw_series(ranges.collect::<Vec<_>>())?;
    if medians.len() < 40 {
        let circles: Vec<_> = medians.iter().map(|point| Circle::new(*point, 3, colour.filled())).collect();
        chart.draw_series(circles)?;
    }
    chart
        .draw_series(LineSeries::new(medians, style))?
        .label(name)
        .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_has_its_lines_and_labels() {
        let mut results = FigureResults::default();
        for (x, value) in [(1024, 1.0), (4096, 20.0)] {
            let place = ResultPlace { part: "throughput", setting: "gso", series: "nginx", x };
            results.add(place, 0, &[("gbit_per_s", value)]);
            results.add(place, 1, &[("gbit_per_s", value * 1.2)]);
        }
        let figure = FigureSpec {
            part: "throughput",
            setting: "gso",
            what: "gbit_per_s",
            divisor: 1.0,
            title: "goodput",
            x_title: "response",
            y_title: "Gbit/s",
            logarithmic: true,
            only: &[],
        };
        let path = std::env::temp_dir().join(format!("hb-figure-{}.svg", std::process::id()));
        by_place(&results, &figure, |x| format!("{} KB", x >> 10), &path).unwrap();
        let svg = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        for text in ["nginx", "1 KB", "4 KB", "goodput", "Gbit/s"] {
            assert!(svg.contains(text), "{text}");
        }
        assert!(svg.matches("<circle").count() == 2, "one for each place");
    }
}

//! Charts as SVG.

use crate::statistics::Summary;
use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;

/// Width and height.
const SIZE: (u32, u32) = (960, 560);
/// Height of a row of a chart of bars.
const ROW: u32 = 26;
/// Characters of a name that stands beside a bar, at most.
const NAME_MAX: usize = 40;

/// One device's values at places on the axis below.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Series {
    /// Its name.
    pub(crate) name: String,
    /// Which color.
    pub(crate) color: usize,
    /// Which place, and its value.
    pub(crate) points: Vec<(usize, Summary)>,
}

/// Values at places, with error bars: lines between places, bars if there is one place only.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PlacedValues {
    pub(crate) title: String,
    pub(crate) below: &'static str,
    pub(crate) beside: &'static str,
    /// The labels of the places.
    pub(crate) labels: Vec<String>,
    /// Whether a line joins the values of neighbouring places.
    pub(crate) is_joined: bool,
    /// How many colors there are.
    pub(crate) colors: usize,
    pub(crate) series: Vec<Series>,
}

/// Curves over a number.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Curves {
    pub(crate) title: String,
    pub(crate) below: &'static str,
    pub(crate) beside: &'static str,
    /// Logarithmic below.
    pub(crate) logarithmic: bool,
    /// How many colors there are.
    pub(crate) colors: usize,
    pub(crate) curves: Vec<Curve>,
}

/// One of them.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Curve {
    pub(crate) name: String,
    /// Which color.
    pub(crate) color: usize,
    /// Thin, and not in the legend.
    pub(crate) is_detail: bool,
    pub(crate) points: Vec<(f64, f64)>,
}

/// Shares of a whole, a row each.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Shares {
    pub(crate) title: String,
    /// Names of the parts.
    pub(crate) parts: Vec<&'static str>,
    /// Name, and each part's share, 0 to 1.
    pub(crate) rows: Vec<(String, Vec<f64>)>,
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// A drawing's error has a type of its own for every backend.
/// A number on an axis, to six places at most and without zeros behind the point.
fn plain(x: f64) -> String {
    let text = format!("{x:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn failed(error: &dyn std::fmt::Display) -> anyhow::Error {
    anyhow!("could not draw: {error}")
}

fn draw(size: (u32, u32), paint: impl FnOnce(&Area<'_>) -> Result<()>) -> Result<String> {
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        root.fill(&WHITE).map_err(|error| failed(&error))?;
        paint(&root)?;
        root.present().map_err(|error| failed(&error))?;
    }
    Ok(svg)
}

/// One color for each, as different as can be.
fn color(index: usize, count: usize) -> HSLColor {
    let lightness = if index.is_multiple_of(2) { 0.42 } else { 0.58 };
    HSLColor(index as f64 / count.max(1) as f64, 0.75, lightness)
}

impl PlacedValues {
    /// The highest value, error bars included; `None` if there is nothing to draw.
    fn most(&self) -> Option<f64> {
        let highest = self.series.iter().flat_map(|series| &series.points).map(|(_, value)| value.interval().1);
        highest.reduce(f64::max).map(|most| if most > 0.0 { most * 1.06 } else { 1.0 })
    }

    /// Draws it; `None` if there is nothing to draw.
    pub(crate) fn svg(&self) -> Result<Option<String>> {
        let Some(most) = self.most() else { return Ok(None) };
        if self.labels.len() == 1 { self.bars(most).map(Some) } else { self.lines(most).map(Some) }
    }

    fn lines(&self, most: f64) -> Result<String> {
        draw(SIZE, |root| {
            let last = (self.labels.len() - 1) as f64;
            let from = if self.is_joined { -0.15 } else { -0.45 };
            let mut chart = ChartBuilder::on(root)
                .caption(&self.title, ("sans-serif", 18))
                .margin(12)
                .x_label_area_size(42)
                .y_label_area_size(70)
                .build_cartesian_2d(from..last * 1.5 + 0.6, 0.0..most)
                .map_err(|error| failed(&error))?;
            let label = |x: &f64| {
                let near = x.round();
                let is_place = (x - near).abs() < 0.01 && near >= 0.0;
                let label = is_place.then(|| self.labels.get(near as usize)).flatten();
                label.cloned().unwrap_or_default()
            };
            chart
                .configure_mesh()
                .disable_x_mesh()
                .light_line_style(WHITE)
                .label_style(("sans-serif", 14))
                .x_labels((2.0 * (last * 1.5 + 0.8)) as usize + 2)
                .x_label_formatter(&label)
                .x_desc(self.below)
                .y_desc(self.beside)
                .draw()
                .map_err(|error| failed(&error))?;
            for (index, series) in self.series.iter().enumerate() {
                let color = color(series.color, self.colors);
                let style = color.stroke_width(2);
                // Beside each other, so that error bars can be told apart.
                let apart = if self.is_joined { 0.012 } else { 0.06 };
                let aside = (index as f64 - (self.series.len() - 1) as f64 / 2.0) * apart;
                let at = |place: usize| place as f64 + aside;
                let means: Vec<_> = series.points.iter().map(|(place, value)| (at(*place), value.mean)).collect();
                let bars = series.points.iter().flat_map(|(place, value)| error_bar(at(*place), value, color));
                chart.draw_series(bars).map_err(|error| failed(&error))?;
                let ends =
                    means.iter().map(|point| Circle::new(*point, if self.is_joined { 3 } else { 5 }, color.filled()));
                chart.draw_series(ends).map_err(|error| failed(&error))?;
                let joined = if self.is_joined { means } else { Vec::new() };
                chart
                    .draw_series(LineSeries::new(joined, style))
                    .map_err(|error| failed(&error))?
                    .label(&series.name)
                    .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
            }
            legend(&mut chart)
        })
    }

    fn bars(&self, most: f64) -> Result<String> {
        let rows = self.series.len();
        draw((SIZE.0, 110 + ROW * rows as u32), |root| {
            let title = format!("{} ({} {})", self.title, self.labels[0], self.below);
            let mut chart = ChartBuilder::on(root)
                .caption(title, ("sans-serif", 18))
                .margin(12)
                .margin_right(30)
                .x_label_area_size(42)
                .y_label_area_size(280)
                .build_cartesian_2d(0.0..most, (0..rows - 1).into_segmented())
                .map_err(|error| failed(&error))?;
            rows_mesh(&mut chart, self.beside, rows, &|row| self.series[row].name.clone())?;
            for (index, series) in self.series.iter().enumerate() {
                // The first one on top.
                let row = rows - 1 - index;
                let color = color(series.color, self.colors);
                for (_, value) in &series.points {
                    let (low, high) = (SegmentValue::Exact(row), end_of(row, rows));
                    let mut bar = Rectangle::new([(0.0, low), (value.mean, high)], color.filled());
                    bar.set_margin(4, 4, 0, 0);
                    chart.draw_series([bar]).map_err(|error| failed(&error))?;
                    let (least, most) = value.interval();
                    let middle = SegmentValue::CenterOf(row);
                    let reach = PathElement::new(vec![(least.max(0.0), middle.clone()), (most, middle)], BLACK);
                    chart.draw_series([reach]).map_err(|error| failed(&error))?;
                }
            }
            Ok(())
        })
    }
}

/// A 95 % confidence interval: a line with ends; nothing for one measurement.
fn error_bar(x: f64, value: &Summary, color: HSLColor) -> Vec<PathElement<(f64, f64)>> {
    if value.half_width.is_none() {
        return Vec::new();
    }
    let (low, high) = value.interval();
    let low = low.max(0.0);
    let style = color.stroke_width(1);
    let end = |y: f64| PathElement::new(vec![(x - 0.02, y), (x + 0.02, y)], style);
    vec![PathElement::new(vec![(x, low), (x, high)], style), end(low), end(high)]
}

type Chart<'a, 'b, X, Y> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<X, Y>>;

fn legend<'a, 'b: 'a, X, Y>(chart: &mut Chart<'a, 'b, X, Y>) -> Result<()>
where
    X: Ranged<ValueType = f64>,
    Y: Ranged<ValueType = f64>,
{
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.8))
        .label_font(("sans-serif", 13))
        .draw()
        .map_err(|error| failed(&error))
}

/// The end of a row.
fn end_of(row: usize, rows: usize) -> SegmentValue<usize> {
    if row + 1 < rows { SegmentValue::Exact(row + 1) } else { SegmentValue::Last }
}

type RowCoordinates = plotters::coord::ranged1d::SegmentedCoord<plotters::coord::types::RangedCoordusize>;

/// The mesh of a chart with a row for each name, the first on top.
fn rows_mesh(
    chart: &mut Chart<'_, '_, plotters::coord::types::RangedCoordf64, RowCoordinates>,
    below: &str,
    rows: usize,
    name: &dyn Fn(usize) -> String,
) -> Result<()> {
    let label = |value: &SegmentValue<usize>| match value {
        SegmentValue::CenterOf(row) if *row < rows => {
            let name = name(rows - 1 - row);
            name.chars().take(NAME_MAX).collect()
        }
        _ => String::new(),
    };
    chart
        .configure_mesh()
        .disable_y_mesh()
        .light_line_style(WHITE)
        .label_style(("sans-serif", 13))
        .y_labels(rows + 1)
        .y_label_formatter(&label)
        .x_desc(below)
        .draw()
        .map_err(|error| failed(&error))
}

impl Curves {
    /// Draws it; `None` if there is nothing to draw.
    pub(crate) fn svg(&self) -> Result<Option<String>> {
        let points = || self.curves.iter().flat_map(|curve| &curve.points);
        let (Some(least), Some(most)) =
            (points().map(|point| point.0).reduce(f64::min), points().map(|point| point.0).reduce(f64::max))
        else {
            return Ok(None);
        };
        let highest = points().map(|point| point.1).fold(0.0, f64::max);
        let highest = if highest > 0.0 { highest * 1.03 } else { 1.0 };
        let svg = draw(SIZE, |root| {
            let mut builder = ChartBuilder::on(root);
            builder.caption(&self.title, ("sans-serif", 18)).margin(12).margin_right(24);
            builder.x_label_area_size(42).y_label_area_size(70);
            // The legend stands right of the curves.
            if self.logarithmic {
                let least = least.max(1e-3);
                let most = most.max(least * 1.01);
                let room = least..most * (most / least).powf(0.42).max(1.5);
                let chart = builder.build_cartesian_2d(room.log_scale(), 0.0..highest);
                self.paint(&mut chart.map_err(|error| failed(&error))?)
            } else {
                let most = most.max(least + 1e-9);
                let chart = builder.build_cartesian_2d(least..most + (most - least) * 0.42, 0.0..highest);
                self.paint(&mut chart.map_err(|error| failed(&error))?)
            }
        })?;
        Ok(Some(svg))
    }

    fn paint<'a, 'b: 'a, X, Y>(&self, chart: &mut Chart<'a, 'b, X, Y>) -> Result<()>
    where
        X: Ranged<ValueType = f64> + plotters::coord::ranged1d::ValueFormatter<f64>,
        Y: Ranged<ValueType = f64> + plotters::coord::ranged1d::ValueFormatter<f64>,
    {
        chart
            .configure_mesh()
            .label_style(("sans-serif", 14))
            .light_line_style(WHITE)
            .x_label_formatter(&|x| plain(*x))
            .x_desc(self.below)
            .y_desc(self.beside)
            .draw()
            .map_err(|error| failed(&error))?;
        for curve in &self.curves {
            let color = color(curve.color, self.colors);
            let style = if curve.is_detail { color.mix(0.3).stroke_width(1) } else { color.stroke_width(2) };
            let line = LineSeries::new(curve.points.iter().copied(), style);
            let drawn = chart.draw_series(line).map_err(|error| failed(&error))?;
            if !curve.is_detail {
                drawn.label(&curve.name).legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
            }
        }
        legend(chart)
    }
}

impl Shares {
    /// Draws it; `None` if there is nothing to draw.
    pub(crate) fn svg(&self) -> Result<Option<String>> {
        let rows = self.rows.len();
        if rows == 0 {
            return Ok(None);
        }
        let legend_height = 20 * self.parts.len().div_ceil(2) as u32;
        let svg = draw((SIZE.0, 110 + legend_height + ROW * rows as u32), |root| {
            let (upper, lower) = root.split_vertically(110 + ROW * rows as u32);
            let mut chart = ChartBuilder::on(&upper)
                .caption(&self.title, ("sans-serif", 18))
                .margin(12)
                .margin_right(30)
                .x_label_area_size(42)
                .y_label_area_size(280)
                .build_cartesian_2d(0.0..100.0, (0..rows - 1).into_segmented())
                .map_err(|error| failed(&error))?;
            rows_mesh(&mut chart, "percent of the device's time", rows, &|row| self.rows[row].0.clone())?;
            for (index, (_, shares)) in self.rows.iter().enumerate() {
                let row = rows - 1 - index;
                let mut from = 0.0;
                for (part, share) in shares.iter().enumerate() {
                    let to = from + 100.0 * share;
                    let corners = [(from, SegmentValue::Exact(row)), (to, end_of(row, rows))];
                    let mut bar = Rectangle::new(corners, color(part, self.parts.len()).filled());
                    bar.set_margin(3, 3, 0, 0);
                    chart.draw_series([bar]).map_err(|error| failed(&error))?;
                    from = to;
                }
            }
            for (part, name) in self.parts.iter().enumerate() {
                let (x, y) = (40 + 450 * (part % 2) as i32, 4 + 20 * (part / 2) as i32);
                let patch = Rectangle::new([(x, y), (x + 12, y + 12)], color(part, self.parts.len()).filled());
                lower.draw(&patch).map_err(|error| failed(&error))?;
                let text = Text::new(*name, (x + 20, y), ("sans-serif", 13).into_font());
                lower.draw(&text).map_err(|error| failed(&error))?;
            }
            Ok(())
        })?;
        Ok(Some(svg))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(labels: &[&str], series: &[(&str, &[&[f64]])]) -> PlacedValues {
        let series = series.iter().map(|(name, values)| {
            let points = values.iter().enumerate().filter_map(|(i, all)| Some((i, Summary::of(all)?))).collect();
            Series { name: (*name).to_owned(), color: 0, points }
        });
        let labels = labels.iter().map(|label| (*label).to_owned()).collect();
        PlacedValues {
            title: "t <&>".to_owned(),
            below: "cores",
            beside: "Mpps",
            labels,
            is_joined: true,
            colors: 1,
            series: series.collect(),
        }
    }

    #[test]
    fn lines_have_names_places_and_error_bars() {
        let one = places(&["1", "2"], &[("cuckoo++", &[&[1.0, 1.2], &[2.0, 2.4]]), ("rte-hash", &[&[0.9], &[]])]);
        let svg = one.svg().unwrap().unwrap();
        assert!(svg.contains("cuckoo++") && svg.contains("rte-hash") && svg.contains("cores"));
        let bars = |values: &[f64]| error_bar(0.0, &Summary::of(values).unwrap(), color(0, 1)).len();
        assert_eq!((bars(&[1.0, 1.2]), bars(&[0.9])), (3, 0), "one measurement has no error bar");
    }

    #[test]
    fn one_place_is_a_chart_of_bars() {
        let svg = places(&["1"], &[("a", &[&[1.0, 1.2]]), ("b", &[&[0.0]])]).svg().unwrap().unwrap();
        assert!(svg.contains("<rect") && svg.contains('a') && svg.contains("t &lt;&amp;&gt; (1 cores)"), "{svg}");
    }

    #[test]
    fn nothing_is_not_drawn() {
        assert_eq!(places(&["1", "2"], &[("a", &[&[], &[]])]).svg().unwrap(), None);
        let curves =
            Curves { title: String::new(), below: "", beside: "", logarithmic: true, colors: 0, curves: Vec::new() };
        assert_eq!(curves.svg().unwrap(), None);
        assert_eq!(Shares { title: String::new(), parts: Vec::new(), rows: Vec::new() }.svg().unwrap(), None);
    }

    #[test]
    fn curves_with_one_point_or_none_above_zero_are_drawn() {
        for (logarithmic, points) in
            [(true, vec![(0.0, 0.0)]), (false, vec![(5.0, 0.0)]), (true, vec![(1.0, 0.5), (1e6, 1.0)])]
        {
            let curve = Curve { name: "x".to_owned(), color: 0, is_detail: false, points };
            let curves = Curves {
                title: "t".to_owned(),
                below: "us",
                beside: "share",
                logarithmic,
                colors: 1,
                curves: vec![curve],
            };
            assert!(curves.svg().unwrap().unwrap().contains("<polyline"));
        }
    }

    #[test]
    fn shares_have_a_row_each_and_all_parts_in_the_legend() {
        let rows = vec![("a".to_owned(), vec![0.4, 0.6]), ("b".to_owned(), vec![1.0, 0.0])];
        let svg = Shares { title: "t".to_owned(), parts: vec!["table", "loop"], rows }.svg().unwrap().unwrap();
        assert!(svg.contains("table") && svg.contains("loop"));
    }
}

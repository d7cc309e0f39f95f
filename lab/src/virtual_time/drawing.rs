//! Figures of an experiment, as its file asks for them.

use super::file::FigureRequest as Asked;
use super::finding::SeenRun;
use super::outcome::{OutcomeMetric, metric};
use super::results::Gathered;
use crate::figure::Figure;
use crate::figure::chart::{Curve, Curves, PlacedValues, Series};
use crate::statistics::Summary;
use anyhow::Result;

/// Figures of an experiment at most.
const FIGURES_MAX: usize = 120;

/// The figures of the evidence page, or else all others, and how many more there would be.
///
/// # Errors
/// One cannot be drawn.
pub(super) fn figures(gathered: &Gathered<'_>, for_page: bool) -> Result<(Vec<Figure>, usize)> {
    let seen = gathered.seen();
    let (mut figures, mut more) = (Vec::new(), 0);
    for asked in gathered.experiment.figures.iter().filter(|asked| asked.page == for_page) {
        for metric in asked.metrics.iter().filter_map(|name| metric(name)) {
            for context in contexts(gathered, asked, &seen) {
                if figures.len() >= FIGURES_MAX {
                    more += 1;
                    continue;
                }
                figures.extend(drawn(gathered, asked, metric, &context, &seen)?);
            }
        }
    }
    Ok((figures, more))
}

/// The fixed settings of a figure: values of the other axes, the run among them.
type FixedAxes = Vec<(String, String)>;

fn contexts(gathered: &Gathered<'_>, asked: &Asked, seen: &[SeenRun<'_>]) -> Vec<FixedAxes> {
    let names = gathered.experiment.axes.iter().map(|(name, _)| name.as_str()).chain(["run"]);
    let others: Vec<&str> = names.filter(|name| *name != asked.across && *name != asked.lines).collect();
    let mut contexts: Vec<FixedAxes> = Vec::new();
    let is_wanted = |seen: &&SeenRun<'_>| {
        asked.at.iter().all(|(axis, values)| seen.on(axis).is_some_and(|here| values.iter().any(|value| value == here)))
    };
    for seen in seen.iter().filter(is_wanted) {
        let at = |axis: &&str| ((*axis).to_owned(), seen.on(axis).unwrap_or_default().to_owned());
        let context: FixedAxes = others.iter().map(at).collect();
        if !contexts.contains(&context) {
            contexts.push(context);
        }
    }
    contexts
}

fn drawn(
    gathered: &Gathered<'_>,
    asked: &Asked,
    metric: &'static OutcomeMetric,
    context: &FixedAxes,
    seen: &[SeenRun<'_>],
) -> Result<Option<Figure>> {
    let here: Vec<&SeenRun<'_>> =
        seen.iter().filter(|seen| context.iter().all(|(axis, value)| seen.on(axis) == Some(value))).collect();
    let experiment = gathered.experiment;
    let lines = experiment.axes.iter().find(|(name, _)| *name == asked.lines).map_or(&[][..], |(_, values)| values);
    let said = context.iter().map(|(axis, value)| format!("{axis} {value}")).collect::<Vec<_>>().join(", ");
    let title = if said.is_empty() { metric.text.to_owned() } else { format!("{}: {said}", metric.text) };
    let svg = if asked.across == "time" {
        curves(asked, metric, lines, &here, title.clone()).svg()?
    } else {
        let labels = experiment.axes.iter().find(|(name, _)| *name == asked.across).map(|(_, values)| values.clone());
        places(asked, metric, lines, labels.unwrap_or_default(), &here, title.clone()).svg()?
    };
    let words = context.iter().map(|(axis, value)| format!("-{axis}-{value}")).collect::<String>();
    let name = format!("{}-{}-by-{}{words}", experiment.name, metric.name, asked.across);
    let name = name.chars().filter(|c| *c != ' ').map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    Ok(svg.map(|svg| Figure { name, heading: metric.text, title, svg }))
}

fn places(
    asked: &Asked,
    metric: &'static OutcomeMetric,
    lines: &[String],
    labels: Vec<String>,
    here: &[&SeenRun<'_>],
    title: String,
) -> PlacedValues {
    let mut series = Vec::new();
    for (color, line) in lines.iter().enumerate() {
        let of_line = || here.iter().filter(|seen| seen.on(&asked.lines) == Some(line));
        let mut points = Vec::new();
        for (index, label) in labels.iter().enumerate() {
            let values: Vec<f64> = of_line()
                .filter(|seen| seen.on(&asked.across) == Some(label))
                .flat_map(|seen| seen.outcomes.iter().map(|(_, outcome)| (metric.of)(outcome)))
                .collect();
            points.extend(Summary::of(&values).map(|summary| (index, summary)));
        }
        if !points.is_empty() {
            series.push(Series { name: line.clone(), color, points });
        }
    }
    // Between names there is nothing that a line could show.
    let is_joined = labels.iter().all(|label| label.starts_with(|first: char| first.is_ascii_digit()));
    let below = below(&asked.across);
    PlacedValues { title, below, beside: metric.text, labels, is_joined, colors: lines.len(), series }
}

fn curves(
    asked: &Asked,
    metric: &'static OutcomeMetric,
    lines: &[String],
    here: &[&SeenRun<'_>],
    title: String,
) -> Curves {
    let mut curves = Vec::new();
    for (color, line) in lines.iter().enumerate() {
        let Some(seen) = here.iter().find(|seen| seen.on(&asked.lines) == Some(line)) else { continue };
        let Some(of) = metric.over_time else { continue };
        let points = seen
            .first()
            .into_iter()
            .flat_map(|outcome| &outcome.samples)
            .map(|sample| (sample.at, of(sample)))
            .collect();
        curves.push(Curve { name: line.clone(), color, is_detail: false, points });
    }
    Curves { title, below: "seconds", beside: metric.text, logarithmic: false, colors: lines.len(), curves }
}

/// The name of an axis below a figure.
fn below(axis: &str) -> &'static str {
    match axis {
        "cores" => "core(s)",
        "entries" => "table entries",
        "flows" => "flows",
        "threshold" => "threshold",
        "cost" => "cost of an insertion, times the card's",
        "frames" => "frames of a connection on average",
        "idle" => "milliseconds of silence after which a connection is forgotten",
        "rules" => "room in the card, rules",
        "flow_pps" => "least packets per second of a flow",
        "mix" => "traffic",
        _ => "value",
    }
}

//! Figures of the page, as the file asks for them.

use super::document::CardsPage;
use super::file::FigureRequest;
use super::finding::{NGINX, SeenCase};
use super::outcome::metric;
use crate::figure::Figure;
use crate::figure::chart::{PlacedValues, Series};
use crate::statistics::Summary;
use anyhow::Result;

/// Draws all of them.
///
/// # Errors
/// One cannot be drawn.
pub(super) fn figures(page: &CardsPage<'_>) -> Result<Vec<Figure>> {
    let seen = page.seen();
    page.bench.experiment.figure.iter().filter_map(|request| drawn(request, &seen).transpose()).collect()
}

/// Values of an axis among cases, in the order in which they come.
fn values(seen: &[&SeenCase<'_>], axis: &str) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for value in seen.iter().filter_map(|one| one.case.on(axis)) {
        if !all.contains(&value) {
            all.push(value);
        }
    }
    all
}

fn drawn(request: &FigureRequest, seen: &[SeenCase<'_>]) -> Result<Option<Figure>> {
    let Some(metric) = metric(&request.metric) else { return Ok(None) };
    let here: Vec<&SeenCase<'_>> = seen.iter().filter(|one| one.case.is_at(&request.at)).collect();
    let (labels, lines) = (values(&here, &request.across), values(&here, &request.lines));
    let colors = lines.len() + usize::from(request.nginx);
    let mut series: Vec<Series> = Vec::new();
    for (color, line) in lines.iter().enumerate() {
        let points = labels.iter().enumerate().filter_map(|(place, label)| {
            let at = |one: &&&SeenCase<'_>| {
                one.case.on(&request.across).as_ref() == Some(label)
                    && one.case.on(&request.lines).as_ref() == Some(line)
            };
            let values: Vec<f64> = here.iter().filter(at).map(|one| (metric.of)(one.outcome)).collect();
            let values: Vec<f64> = values.into_iter().filter(|value| *value > 0.0).collect();
            Some((place, Summary::of(&values)?))
        });
        let name = match request.lines.as_str() {
            "cores" => format!("{line} cores"),
            "offload" => format!("offload: {line}"),
            _ => line.clone(),
        };
        series.push(Series { name, color, points: points.collect() });
    }
    if request.nginx {
        let points = labels.iter().enumerate().filter_map(|(place, label)| {
            let (_, gbit_s) = NGINX.iter().find(|(size, _)| size == label)?;
            Some((place, Summary::of(&[*gbit_s])?))
        });
        let name = "nginx, one x86 core: the paper's table 1".to_owned();
        series.push(Series { name, color: colors - 1, points: points.collect() });
    }
    let below = if request.across == "cores" { "cores" } else { "response" };
    let title = request.title.clone();
    let chart =
        PlacedValues { title: title.clone(), below, beside: metric.text, labels, is_joined: true, colors, series };
    let name = request.name.clone();
    Ok(chart.svg()?.map(|svg| Figure { name, heading: "", title, svg }))
}

//! Dashboards of Grafana: their queries with values in place of variables, and what Grafana 10 and later need to show them.

use super::server::Prometheus;
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::collections::BTreeSet;

/// Columns of Grafana's grid.
const COLUMNS: u64 = 24;
/// What Grafana puts in place of its own variables, close enough.
const RATE_INTERVAL: &str = "1m";

/// One query, and where it stands.
#[derive(Debug)]
pub(super) struct DashboardQuery {
    pub(super) place: String,
    pub(super) expression: String,
    /// The labels that its legend names.
    pub(super) legend: BTreeSet<String>,
    /// Whether it has no answer as long as nothing happens.
    pub(super) is_of_events: bool,
}

/// All queries of a dashboard, for services of this name where it shows one service.
pub(super) fn queries(prometheus: &Prometheus<'_>, dashboard: &Value, service: &str) -> Result<Vec<DashboardQuery>> {
    let title = text(dashboard, "title")?;
    let mut values = Vec::new();
    for variable in array(&dashboard["templating"]["list"])? {
        values.push((text(variable, "name")?, value(prometheus, variable, &values, service)?));
    }
    let mut queries = Vec::new();
    for panel in array(&dashboard["panels"])?.iter().filter(|panel| panel["type"] != "row") {
        for target in array(&panel["targets"])? {
            queries.push(DashboardQuery {
                place: format!("dashboard \"{title}\", panel \"{}\"", text(panel, "title")?),
                expression: substituted(text(target, "expr")?, &values)?,
                legend: labels(text(target, "legendFormat")?),
                is_of_events: false,
            });
        }
    }
    for annotation in array(&dashboard["annotations"]["list"])? {
        queries.push(DashboardQuery {
            place: format!("dashboard \"{title}\", annotation \"{}\"", text(annotation, "name")?),
            expression: substituted(text(annotation, "expr")?, &values)?,
            legend: labels(text(annotation, "textFormat")?),
            is_of_events: true,
        });
    }
    Ok(queries)
}

/// What a variable stands for: of one with several values all of them, as Grafana writes them in a regular expression.
fn value(prometheus: &Prometheus<'_>, variable: &Value, before: &[(&str, String)], service: &str) -> Result<String> {
    if variable["type"] == "datasource" {
        return Ok(String::new());
    }
    let query = substituted(text(&variable["query"], "query")?, before)?;
    let inside = query.strip_prefix("label_values(").and_then(|rest| rest.strip_suffix(')'));
    let (selector, label) = inside.and_then(|inside| inside.rsplit_once(", ")).context("not label_values()")?;
    let found = prometheus.label_values(selector, label)?;
    ensure!(!found.is_empty(), "variable {} has no values: {query}", text(variable, "name")?);
    if variable["multi"] == true {
        return Ok(format!("({})", found.join("|")));
    }
    ensure!(found.iter().any(|value| value == service), "variable {}: {found:?}", text(variable, "name")?);
    Ok(service.to_owned())
}

fn substituted(expression: &str, values: &[(&str, String)]) -> Result<String> {
    let mut text = expression.replace("$__rate_interval", RATE_INTERVAL);
    for (name, value) in values {
        text = text.replace(&format!("${name}"), value);
    }
    match text.contains('$') {
        true => bail!("{expression}: there is no such variable"),
        false => Ok(text),
    }
}

/// The labels between double braces.
pub(super) fn labels(template: &str) -> BTreeSet<String> {
    let names = template.split("{{").skip(1).filter_map(|rest| rest.split_once("}}"));
    names.map(|(name, _)| name.trim().to_owned()).collect()
}

/// What Grafana would show wrong without a word: panels of one number or one place, and those that ask a data source of their
/// own, have no unit or do not say what they show.
pub(super) fn is_well_formed(dashboard: &Value) -> Result<()> {
    ensure!(dashboard["schemaVersion"].as_u64() >= Some(36), "schemaVersion {}", dashboard["schemaVersion"]);
    let (mut numbers, mut taken) = (BTreeSet::new(), BTreeSet::new());
    for panel in array(&dashboard["panels"])? {
        let title = text(panel, "title")?;
        ensure!(numbers.insert(panel["id"].as_u64()), "panel \"{title}\" has the number of another one");
        let place = &panel["gridPos"];
        let [x, y, w, h] = ["x", "y", "w", "h"].map(|side| place[side].as_u64().unwrap_or_default());
        ensure!(w > 0 && h > 0 && x + w <= COLUMNS, "panel \"{title}\" has no place: {place}");
        let free = (x..x + w).all(|x| (y..y + h).all(|y| taken.insert((x, y))));
        ensure!(free, "panel \"{title}\" lies over another one: {place}");
        if panel["type"] != "row" {
            ensure!(!text(panel, "description")?.is_empty(), "panel \"{title}\" does not say what it shows");
            text(&panel["fieldConfig"]["defaults"], "unit").with_context(|| format!("panel \"{title}\""))?;
        }
    }
    for part in ["panels", "templating", "annotations"] {
        asks_the_chosen_source(&dashboard[part])?;
    }
    Ok(())
}

fn asks_the_chosen_source(part: &Value) -> Result<()> {
    let parts: Vec<&Value> = match part {
        Value::Array(all) => all.iter().collect(),
        Value::Object(all) => all.values().collect(),
        _ => return Ok(()),
    };
    if let Some(source) = part.get("datasource") {
        ensure!(
            source["uid"] == "${datasource}" && source["type"] == "prometheus",
            "it has a data source of its own: {part}"
        );
    }
    parts.into_iter().try_for_each(asks_the_chosen_source)
}

fn text<'a>(value: &'a Value, name: &str) -> Result<&'a str> {
    value[name].as_str().with_context(|| format!("no text {name} in {value}"))
}

fn array(value: &Value) -> Result<&Vec<Value>> {
    value.as_array().with_context(|| format!("no list: {value}"))
}

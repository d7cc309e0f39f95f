//! The guide's page: its example of a configuration, its queries with their answers, its table of alerts.

use super::server::Sample;
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Where it is.
pub(super) const PATH: &str = "docs/guide/monitoring.md";

const QUERY: &str = "```promql\n";
const ANSWER: &str = "```text\n";
const END: &str = "```\n";
const ALERTS: [&str; 2] =
    ["<!-- alerts: written from packaging/prometheus/hairpin.rules.yml -->\n", "<!-- end of alerts -->\n"];

/// The page's configuration of Prometheus, for these rules and a scrape each second.
pub(super) fn configuration(page: &str, rules: &str) -> Result<String> {
    let example = page.split("```yaml\n").nth(1).and_then(|rest| rest.split(END).next()).context("no configuration")?;
    let replaced = |text: &str, old: &str, new: &str| -> Result<String> {
        ensure!(text.contains(old), "{PATH}: the configuration of Prometheus has no {old}");
        Ok(text.replace(old, new))
    };
    let text = replaced(example, "/usr/share/hairpin/prometheus/hairpin.rules.yml", rules)?;
    replaced(&text, "_interval: 15s", "_interval: 1s")
}

/// Its queries, each with the answer that stands below it.
pub(super) fn queries(page: &str) -> Result<Vec<(&str, &str)>> {
    let parts = page.split(QUERY).skip(1);
    let both = parts.map(|part| {
        let (query, rest) = part.split_once(END).context("a query without an end")?;
        let answer = rest.split_once(ANSWER).and_then(|(_, rest)| rest.split_once(END)).context("no answer")?;
        Ok((query, answer.0))
    });
    both.collect()
}

/// An answer as the page shows it: a line for each series, its labels without those of the target.
pub(super) fn answer(samples: &[Sample]) -> String {
    let mut lines: Vec<String> = samples.iter().map(line).collect();
    lines.sort();
    lines.concat()
}

fn line(sample: &Sample) -> String {
    let shown = sample.labels.iter().filter(|(name, _)| *name != "job" && *name != "instance");
    let labels: Vec<String> = shown.map(|(name, value)| format!("{name}=\"{value}\"")).collect();
    format!("{{{}}} {}\n", labels.join(", "), number(sample.value))
}

/// Three digits and more.
fn number(value: f64) -> String {
    if !value.is_finite() || value == 0.0 {
        return value.to_string();
    }
    let digits = (2 - value.abs().log10().floor() as i32).clamp(0, 9) as usize;
    let text = format!("{value:.digits$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

/// The labels of an answer, line by line.
pub(super) fn labels(answer: &str) -> Vec<&str> {
    answer.lines().filter_map(|line| Some(line.rsplit_once(' ')?.0)).collect()
}

/// The page with other answers, by query.
pub(super) fn with_answers(page: &str, answers: &BTreeMap<String, String>) -> Result<String> {
    let mut text = page.to_owned();
    for (query, old) in queries(page)? {
        let new = answers.get(query).context("a query that was not asked")?;
        let (before, from) = text.split_once(&format!("{QUERY}{query}")).context("a query is gone")?;
        let from = from.replacen(&format!("{ANSWER}{old}"), &format!("{ANSWER}{new}"), 1);
        text = format!("{before}{QUERY}{query}{from}");
    }
    Ok(text)
}

/// The page with the table of these alerts.
pub(super) fn with_alerts(page: &str, alerts: &[&Value]) -> Result<String> {
    let (before, rest) = page.split_once(ALERTS[0]).context("no table of alerts")?;
    let (_, after) = rest.split_once(ALERTS[1]).context("the table of alerts has no end")?;
    let mut table = "| alert | severity | after | what to do |\n|---|---|---|---|\n".to_owned();
    for alert in alerts {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let seconds = alert["duration"].as_f64().unwrap_or_default();
        let after = match seconds as u64 {
            0 => "at once".to_owned(),
            seconds if seconds % 60 == 0 => format!("{} min", seconds / 60),
            seconds => format!("{seconds} s"),
        };
        let (severity, remedy) = (text(&alert["labels"]["severity"]), text(&alert["annotations"]["description"]));
        writeln!(table, "| `{}` | {severity} | {after} | {remedy} |", text(&alert["name"]))?;
    }
    Ok(format!("{before}{}{table}{}{after}", ALERTS[0], ALERTS[1]))
}

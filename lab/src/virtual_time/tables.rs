//! Results as CSV: `cases.csv` has a row for each run and seed (what KTH 2022, table 3.2, has, and more), `time.csv` for each
//! interval of it. [`page`] and [`findings`] are what the page in docs/evidence has no room for.

use super::comparison::Scenario;
use super::document::{judgements, policy_columns, policy_row};
use super::outcome::{METRICS, metric};
use super::results::Gathered;
use crate::statistics::Summary;
use anyhow::{Context, Result};
use csv::Writer;

/// Every run of an experiment: its place, all metrics, reasons.
///
/// # Errors
/// Never, but for the memory.
pub(super) fn cases(gathered: &Gathered<'_>) -> Result<Vec<u8>> {
    let mut table = Writer::from_writer(Vec::new());
    let axes = gathered.experiment.axes.iter().map(|(name, _)| name.as_str());
    let metrics = METRICS.iter().map(|metric| metric.name);
    let reasons = ["simulated_packets", "established", "lost_by_reason", "kept_by_reason", "evicted_by_reason"];
    let head: Vec<&str> = axes.clone().chain(["run", "seed", "seconds"]).chain(metrics).chain(reasons).collect();
    table.write_record(&head).context("a table")?;
    for seen in gathered.seen() {
        for (seed, outcome) in &seen.outcomes {
            let mut row: Vec<String> = axes.clone().map(|axis| seen.on(axis).unwrap_or_default().to_owned()).collect();
            row.extend([seen.run.to_string(), seed.to_string(), format!("{:.4}", outcome.seconds)]);
            row.extend(METRICS.iter().map(|metric| format!("{:.6}", (metric.of)(outcome))));
            row.extend([outcome.simulated, outcome.established].map(|count| count.to_string()));
            row.extend([&outcome.lost, &outcome.kept, &outcome.evicted].map(|list| reasons_of(list)));
            table.write_record(&row).context("a table")?;
        }
    }
    table.into_inner().context("a table")
}

fn reasons_of(list: &[(String, u64)]) -> String {
    list.iter().map(|(reason, count)| format!("{reason}={count}")).collect::<Vec<_>>().join(";")
}

/// Every interval of every run.
///
/// # Errors
/// Never, but for the memory.
pub(super) fn over_time(gathered: &Gathered<'_>) -> Result<Vec<u8>> {
    let mut table = Writer::from_writer(Vec::new());
    let axes = gathered.experiment.axes.iter().map(|(name, _)| name.as_str());
    let columns =
        ["run", "time_s", "tx_pps", "rx_pps", "loss", "latency_mean_ns", "latency_p95_ns", "latency_p99_ns", "rules"];
    table.write_record(axes.clone().chain(columns)).context("a table")?;
    for seen in gathered.seen() {
        let place: Vec<String> = axes.clone().map(|axis| seen.on(axis).unwrap_or_default().to_owned()).collect();
        for sample in seen.first().into_iter().flat_map(|outcome| &outcome.samples) {
            let mut row = place.clone();
            row.extend([seen.run.to_string(), format!("{:.4}", sample.at)]);
            row.extend([sample.offered_pps, sample.received_pps].map(|rate| format!("{rate:.0}")));
            row.push(format!("{:.6}", sample.loss));
            let latencies = [sample.latency_mean, sample.latency_p95, sample.latency_p99];
            row.extend(latencies.map(|ns| format!("{ns:.0}")));
            row.push(format!("{:.0}", sample.rules));
            table.write_record(&row).context("a table")?;
        }
    }
    table.into_inner().context("a table")
}

/// Every run with the metrics that the experiment's file asks for, or every policy; `None` if it asks for nothing.
///
/// # Errors
/// Never, but for the memory.
pub(super) fn page(gathered: &Gathered<'_>) -> Result<Option<Vec<u8>>> {
    let mut table = Writer::from_writer(Vec::new());
    let experiment = gathered.experiment;
    let axes = experiment.axes.iter().map(|(name, _)| name.as_str());
    if let Some(axis) = &experiment.comparison {
        let place = axes.filter(|name| name != axis);
        table.write_record(place.chain(policy_columns())).context("a table")?;
        for scenario in Scenario::all(gathered.seen(), gathered.bounds(), axis) {
            for (policy, seen) in &scenario.policies {
                let place = scenario.place.iter().map(|(_, value)| value.clone());
                table.write_record(place.chain(policy_row(&scenario, policy, seen))).context("a table")?;
            }
            if let Some(bound) = scenario.net_bound() {
                let place = scenario.place.iter().map(|(_, value)| value.clone());
                let nothing = policy_columns().into_iter().skip(3).map(|_| "-".to_owned());
                let row = ["bound".to_owned(), "-".to_owned(), with_width(&bound, 1)];
                table.write_record(place.chain(row).chain(nothing)).context("a table")?;
            }
        }
        return table.into_inner().context("a table").map(Some);
    }
    let metrics: Vec<_> = experiment.table.iter().filter_map(|name| metric(name)).collect();
    if metrics.is_empty() {
        return Ok(None);
    }
    table
        .write_record(axes.clone().chain(["run", "seeds"]).chain(metrics.iter().map(|metric| metric.text)))
        .context("a table")?;
    for seen in gathered.seen() {
        let place = axes.clone().chain(["run"]).map(|axis| seen.on(axis).unwrap_or_default().to_owned());
        let values = metrics
            .iter()
            .map(|metric| seen.summary(metric.of).map_or(String::new(), |all| with_width(&all, metric.digits)));
        table.write_record(place.chain([seen.outcomes.len().to_string()]).chain(values)).context("a table")?;
    }
    table.into_inner().context("a table").map(Some)
}

/// A mean with half the width of its 95 % interval, where there is one.
pub(super) fn with_width(all: &Summary, digits: usize) -> String {
    let width = all.half_width.map_or(String::new(), |half| format!(" ±{half:.digits$}"));
    format!("{:.digits$}{width}", all.mean)
}

/// Every finding, its verdict, what it rests on and what contradicts it.
///
/// # Errors
/// Never, but for the memory.
pub(super) fn findings(gathered: &[Gathered<'_>]) -> Result<Vec<u8>> {
    let mut table = Writer::from_writer(Vec::new());
    table
        .write_record(["experiment", "id", "finding", "source", "verdict", "figures", "exceptions", "why", "why_not"])
        .context("a table")?;
    for one in gathered {
        for (finding, judgement, why) in judgements(one) {
            let verdict = judgement.said().replace("**", "");
            let exceptions = judgement.exceptions.join("; ");
            let row = [
                one.experiment.name.as_str(),
                &finding.id,
                &finding.text,
                &finding.source,
                &verdict,
                &judgement.figures,
                &exceptions,
                why.so,
                why.not_so,
            ];
            table.write_record(row).context("a table")?;
        }
    }
    table.into_inner().context("a table")
}

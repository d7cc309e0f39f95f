//! Results as CSV: `cases.csv` has a row for each run (what KTH 2022, table 3.2, has, and more), `time.csv` for each
//! interval of it.

use super::outcome::METRICS;
use super::results::Gathered;
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
    let head: Vec<&str> = axes.clone().chain(["run", "seconds"]).chain(metrics).chain(reasons).collect();
    table.write_record(&head).context("a table")?;
    for seen in gathered.seen() {
        let outcome = seen.outcome;
        let mut row: Vec<String> = axes.clone().map(|axis| seen.on(axis).unwrap_or_default().to_owned()).collect();
        row.extend([seen.run.to_string(), format!("{:.4}", outcome.seconds)]);
        row.extend(METRICS.iter().map(|metric| format!("{:.6}", (metric.of)(outcome))));
        row.extend([outcome.simulated, outcome.established].map(|count| count.to_string()));
        row.extend([&outcome.lost, &outcome.kept, &outcome.evicted].map(|list| reasons_of(list)));
        table.write_record(&row).context("a table")?;
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
        for sample in &seen.outcome.samples {
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

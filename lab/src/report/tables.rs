//! Results as CSV.

use crate::experiment::{FindingMetric, MatrixCell, PlanResults, RecordOutcome, is_starved, summary};
use crate::profile::by_stage;
use crate::rate::SearchResult;
use crate::testbed::Measurement;
use anyhow::{Context, Result};
use csv::Writer;

/// The first columns of every row.
const CELL: [&str; 9] =
    ["device", "table", "engine", "policy", "cores", "table_entries", "flows", "packet_size", "rate"];

/// A table's file name and text.
type NamedTable = (&'static str, Vec<u8>);

/// All tables.
///
/// # Errors
/// Never, but for the memory.
pub(super) fn all(results: &PlanResults<'_>) -> Result<Vec<NamedTable>> {
    Ok(vec![
        ("results.csv", measurements(results)?),
        ("time.csv", over_time(results)?),
        ("latency.csv", latency(results)?),
        ("summary.csv", means(results)?),
        ("search.csv", searches(results)?),
        ("profile.csv", profiles(results)?),
        ("skipped.csv", skipped(results)?),
    ])
}

fn begin(columns: &[&str]) -> Result<Writer<Vec<u8>>> {
    let mut table = Writer::from_writer(Vec::new());
    let head = CELL.iter().chain(&["run"]).chain(columns);
    table.write_record(head).context("a table")?;
    Ok(table)
}

fn row(table: &mut Writer<Vec<u8>>, cell: &MatrixCell, values: &[String]) -> Result<()> {
    let of_cell = [
        cell.subject.name.clone(),
        cell.subject.table.clone(),
        cell.subject.engine.clone(),
        cell.subject.policy.clone(),
        cell.cores.to_string(),
        cell.table_entries.to_string(),
        cell.flows.to_string(),
        cell.packet_size.to_string(),
        cell.asked.to_string(),
        cell.run.to_string(),
    ];
    table.write_record(of_cell.iter().chain(values)).context("a table")
}

fn end(table: Writer<Vec<u8>>) -> Result<Vec<u8>> {
    table.into_inner().context("a table")
}

/// Every record that is a measurement.
fn measured<'a>(results: &'a PlanResults<'_>) -> impl Iterator<Item = (&'a MatrixCell, u32, u64, &'a Measurement)> {
    results.records.iter().filter_map(|record| match &record.came {
        RecordOutcome::Measured(measured) => Some((&record.cell, record.repetition + 1, record.at, &**measured)),
        _ => None,
    })
}

fn measurements(results: &PlanResults<'_>) -> Result<Vec<u8>> {
    let mut table = begin(&[
        "repetition",
        "unix_time",
        "time_s",
        "tx_count",
        "rx_count",
        "tx_pps",
        "rx_pps",
        "tx_bps",
        "rx_bps",
        "loss",
        "latency_mean_ns",
        "latency_min_ns",
        "latency_p50_ns",
        "latency_p95_ns",
        "latency_p99_ns",
        "latency_p999_ns",
        "latency_max_ns",
        "behind",
        "reordered",
        "duplicates",
        "corrupted",
        "flows_seen",
        "consistent",
        "inconsistent_flows",
        "unchecked",
        "backend_spread",
        "lost_by_reason",
        "device_ran",
        "testers_ran",
        "offloaded_share",
        "rules",
        "rules_peak",
        "rules_installed",
        "rules_removed",
        "rules_refused",
        "kept_no_room",
        "rule_wait_mean_ns",
        "worker_busy",
        "card_busy",
    ])?;
    for (cell, repetition, at, m) in measured(results) {
        let reasons = m.lost_by_reason.iter().filter(|(_, count)| *count > 0);
        let reasons = reasons.map(|(reason, count)| format!("{reason}={count}")).collect::<Vec<_>>().join(";");
        let l = &m.latency;
        let mut values = vec![repetition.to_string(), at.to_string(), format!("{:.4}", m.seconds)];
        values.extend([m.sent, m.received].map(|count| count.to_string()));
        values.extend([m.tx_pps, m.rx_pps, m.tx_bps, m.rx_bps].map(|rate| format!("{rate:.0}")));
        values.extend([format!("{:.6}", m.loss()), some(l.count, format!("{:.0}", l.mean))]);
        values.extend([l.min, l.p50, l.p95, l.p99, l.p999, l.max].map(|ns| some(l.count, ns.to_string())));
        values.extend([m.behind, m.reordered, m.duplicates, m.corrupted, m.flows_seen].map(|count| count.to_string()));
        values.extend([m.consistent.to_string(), m.inconsistent_flows.to_string(), m.unchecked.to_string()]);
        values.extend([format!("{:.4}", m.backend_spread), reasons]);
        let ran = m.ran.map_or([None, None], |ran| [Some(ran.device), Some(ran.testers)]);
        values.extend(ran.map(|share| share.map_or(String::new(), |share| format!("{share:.4}"))));
        values.extend(of_card(m));
        row(&mut table, cell, &values)?;
    }
    end(table)
}

/// The totals of a card; empty if there was none.
fn of_card(m: &Measurement) -> [String; 10] {
    let Some(card) = &m.offloaded else { return Default::default() };
    let busy = |ns: u64| format!("{:.4}", ns as f64 / 1e9 / m.seconds.max(1e-9));
    [
        format!("{:.6}", card.share()),
        card.rules.to_string(),
        card.rules_peak.to_string(),
        card.installed.to_string(),
        card.removed.to_string(),
        card.refused().to_string(),
        card.no_room.to_string(),
        card.mean_wait_ns().map_or(String::new(), |ns| format!("{ns:.0}")),
        busy(card.worker_ns),
        busy(card.card_ns),
    ]
}

/// A latency, if packets came: without any there is none, and a 0 would be the best of all.
fn some(count: u64, latency: String) -> String {
    if count > 0 { latency } else { String::new() }
}

/// Table 3.2 of KTH 2022, as counts go up.
fn over_time(results: &PlanResults<'_>) -> Result<Vec<u8>> {
    let columns = ["repetition", "time_s", "tx_count", "rx_count", "tx_pps", "rx_pps", "rx_bps", "latency_mean_ns"];
    let mut table = begin(&columns)?;
    for (cell, repetition, _, measured) in measured(results) {
        let (mut sent, mut received) = (0, 0);
        for sample in &measured.over_time {
            sent += sample.sent;
            received += sample.received;
            let per_second = |count: u64| format!("{:.0}", count as f64 / sample.length.max(1e-9));
            let values = [
                repetition.to_string(),
                format!("{:.4}", sample.at + sample.length),
                sent.to_string(),
                received.to_string(),
                per_second(sample.sent),
                per_second(sample.received),
                per_second(8 * sample.received_bytes),
                some(sample.received, format!("{:.0}", sample.latency_mean)),
            ];
            row(&mut table, cell, &values)?;
        }
    }
    end(table)
}

fn latency(results: &PlanResults<'_>) -> Result<Vec<u8>> {
    let mut table = begin(&["repetition", "latency_ns", "share"])?;
    for (cell, repetition, _, measured) in measured(results) {
        for (ns, share) in &measured.latency.cumulative {
            row(&mut table, cell, &[repetition.to_string(), ns.to_string(), format!("{share:.6}")])?;
        }
    }
    end(table)
}

fn means(results: &PlanResults<'_>) -> Result<Vec<u8>> {
    let columns = ["metric", "unit", "repetitions", "mean", "half_width_95", "median", "least", "most", "starved"];
    let mut table = begin(&columns)?;
    for (cell, all) in &results.cells {
        for (metric, name, unit) in [
            (FindingMetric::Throughput, "received", "pps"),
            (FindingMetric::Latency, "latency_mean", "ns"),
            (FindingMetric::Loss, "loss", "ratio"),
        ] {
            let Some(summary) = summary(metric, all) else { continue };
            let mut values = vec![name.to_owned(), unit.to_owned(), summary.count.to_string()];
            values.push(summary.mean.to_string());
            values.push(summary.half_width.map_or(String::new(), |half| half.to_string()));
            values.extend([summary.median, summary.least, summary.most].map(|value| value.to_string()));
            values.push(is_starved(all).to_string());
            row(&mut table, cell, &values)?;
        }
    }
    end(table)
}

fn searches(results: &PlanResults<'_>) -> Result<Vec<u8>> {
    let mut table = begin(&[
        "loss_ratio",
        "search",
        "found",
        "lower_pps",
        "upper_pps",
        "forwarded_pps",
        "trials",
        "settled",
        "starved",
    ])?;
    for (cell, repeated) in &results.searches {
        for (index, outcome) in repeated.outcomes.iter().enumerate() {
            let rate = |rate: f64| format!("{rate:.0}");
            let (found, lower, upper) = match outcome.found {
                SearchResult::Between { lower, upper } => ("between", rate(lower), rate(upper)),
                SearchResult::Below(lowest) => ("below", String::new(), rate(lowest)),
                SearchResult::AtLeast(most) => ("at-least", rate(most), String::new()),
            };
            let values = [
                repeated.goal.to_string(),
                (index + 1).to_string(),
                found.to_owned(),
                lower,
                upper,
                rate(outcome.forwarded),
                outcome.trials.to_string(),
                outcome.settled.to_string(),
                outcome.starved.to_string(),
            ];
            row(&mut table, cell, &values)?;
        }
    }
    end(table)
}

fn profiles(results: &PlanResults<'_>) -> Result<Vec<u8>> {
    let mut table = begin(&["of", "name", "share"])?;
    for (cell, profile) in &results.profiles {
        for (stage, share) in by_stage(profile) {
            row(&mut table, cell, &["stage".to_owned(), stage.name().to_owned(), format!("{share:.4}")])?;
        }
        for (function, share) in &profile.shares {
            row(&mut table, cell, &["function".to_owned(), function.clone(), format!("{share:.4}")])?;
        }
    }
    end(table)
}

fn skipped(results: &PlanResults<'_>) -> Result<Vec<u8>> {
    let mut table = begin(&["reason"])?;
    for skipped in &results.plan.skipped {
        row(&mut table, &skipped.cell, std::slice::from_ref(&skipped.reason))?;
    }
    for (record, reason) in results.failures() {
        row(&mut table, &record.cell, &[format!("failed: {reason}")])?;
    }
    end(table)
}

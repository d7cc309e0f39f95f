//! What `hairpin-lab run lab/scenarios/kth-2020.toml` has measured on real packets, for the page: rows of CSV files that are
//! kept in the repository, and the section that is written from them.

use super::figure::{Whiskers, whiskers};
use super::sections::{Sections, read};
use crate::experiment::{Experiment, FindingVerdict, Plan, PlanResults, RecordOutcome, ResultStore};
use crate::profile::by_stage;
use crate::statistics::Summary;
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Measurements, in the directory of results.
const PACKETS: &str = "classification-packets.csv";
/// Where time went.
const PROFILES: &str = "classification-profiles.csv";
/// Verdicts by the rules of the scenario.
const VERDICTS: &str = "classification-verdicts.csv";

/// One repetition of one cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PacketsRow {
    /// The device.
    pub device: String,
    /// Its cores.
    pub cores: u16,
    /// Flows.
    pub flows: u32,
    /// How fast packets were to come.
    pub asked: String,
    /// From 0.
    pub repetition: u32,
    /// Packets received in a second, in millions.
    pub mpps: f64,
    /// Mean round trip, in microseconds.
    pub rtt: f64,
    /// What 99 of 100 round trips do not exceed, in microseconds.
    pub rtt_p99: f64,
    /// A thread was kept from its processor: then it says nothing of the device.
    pub starved: bool,
    /// Where.
    pub machine: String,
    /// When.
    pub date: String,
}

/// A part of a device's time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProfileRow {
    /// The device.
    pub device: String,
    /// Its cores.
    pub cores: u16,
    /// Flows.
    pub flows: u32,
    /// What it did.
    pub stage: String,
    /// Percent of its time.
    pub percent: f64,
}

/// A finding, judged by the scenario's rule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VerdictRow {
    /// The finding.
    pub text: String,
    /// Whether it is so.
    pub verdict: String,
    /// Our figures, or what is missing.
    pub figures: String,
}

/// All that is kept of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PacketResults {
    /// Measurements.
    pub rows: Vec<PacketsRow>,
    /// Profiles.
    pub profiles: Vec<ProfileRow>,
    /// Verdicts.
    pub verdicts: Vec<VerdictRow>,
}

fn rounded(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

impl PacketResults {
    /// Those of a run of a scenario, whose results are in `directory`.
    ///
    /// # Errors
    /// The scenario or its results cannot be read, or there are none.
    pub fn of(scenario: &Path, directory: &Path, machine: &str) -> Result<PacketResults> {
        let experiment = Experiment::load(scenario).map_err(|problems| anyhow::anyhow!("{problems}"))?;
        let plan = Plan::new(&experiment, &|_| None)?;
        let store = ResultStore::open(directory, machine)?;
        let results = PlanResults::new(&experiment, &plan, &store);
        ensure!(!results.records.is_empty(), "{} has no results of {}", directory.display(), scenario.display());
        let mut kept = PacketResults::default();
        for record in &results.records {
            let RecordOutcome::Measured(measured) = &record.came else { continue };
            let at = std::time::UNIX_EPOCH + std::time::Duration::from_secs(record.at);
            let date = humantime::format_rfc3339_seconds(at).to_string();
            kept.rows.push(PacketsRow {
                device: record.cell.subject.name.clone(),
                cores: record.cell.cores,
                flows: record.cell.flows,
                asked: record.cell.asked.to_string(),
                repetition: record.repetition,
                mpps: rounded(measured.rx_pps / 1e6),
                rtt: rounded(measured.latency.mean / 1e3),
                rtt_p99: rounded(measured.latency.p99 as f64 / 1e3),
                starved: measured.is_starved(),
                machine: machine.to_owned(),
                date: date.get(..10).unwrap_or_default().to_owned(),
            });
        }
        for (cell, profile) in &results.profiles {
            let row = |(stage, share): (crate::profile::DeviceStage, f64)| ProfileRow {
                device: cell.subject.name.clone(),
                cores: cell.cores,
                flows: cell.flows,
                stage: stage.name().to_owned(),
                percent: rounded(share * 100.0),
            };
            kept.profiles.extend(by_stage(profile).into_iter().map(row));
        }
        for finding in &experiment.findings {
            let (verdict, figures) = match results.judge(finding) {
                FindingVerdict::Confirmed(figures) => ("agrees", figures),
                FindingVerdict::Refuted(figures) => ("**does not agree**", figures),
                FindingVerdict::Undecided(figures) => ("undecided", figures),
                FindingVerdict::NotMeasured(missing) => ("not measured", missing),
            };
            kept.verdicts.push(VerdictRow { text: finding.text.clone(), verdict: verdict.to_owned(), figures });
        }
        Ok(kept)
    }

    /// Writes them into the directory of results.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn write(&self, results: &Path) -> Result<()> {
        super::sections::write_measured(&results.join(PACKETS), &self.rows)?;
        super::sections::write_measured(&results.join(PROFILES), &self.profiles)?;
        super::sections::write_measured(&results.join(VERDICTS), &self.verdicts)
    }

    /// Those in the directory of results; none, if they are not there.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn read(results: &Path) -> Result<PacketResults> {
        Ok(PacketResults {
            rows: read(&results.join(PACKETS))?,
            profiles: read(&results.join(PROFILES))?,
            verdicts: read(&results.join(VERDICTS))?,
        })
    }

    /// The section of the page.
    ///
    /// # Errors
    /// A figure cannot be drawn.
    pub(super) fn section(&self, all: &mut Sections) -> Result<()> {
        let Some(first) = self.rows.first() else { return Ok(()) };
        all.text.push_str("## Real packets\n\n");
        all.text.push_str(&format!(
            "`hairpin-lab run lab/scenarios/kth-2020.toml` and `hairpin-lab classify --report --packets lab-results/kth-2020`,\n\
             {}, {}. Packets of 64 bytes go to a backend and back, so a balancer handles\n\
             each twice. Generator and sink share the other core. Mean of the repetitions, ± half of the 95 % interval; `starved`\n\
             marks cells in which a thread was kept from its processor, which say nothing of the device.\n\n",
            first.date, first.machine
        ));
        all.text.push_str("| finding | here | figures |\n|---|---|---|\n");
        for row in &self.verdicts {
            let figures = row.figures.replace('|', "\\|");
            all.text.push_str(&format!("| {} | {} | {figures} |\n", row.text.replace('|', "\\|"), row.verdict));
        }
        all.text
            .push_str("\n| device | cores | flows | rate | Mpps | round trip, us | 99 % | table, % of its time | |\n");
        all.text.push_str("|---|---:|---:|---|---:|---:|---:|---:|---|\n");
        let cells = self.cells();
        for cell in &cells {
            all.text.push_str(&self.line(cell)?);
        }
        all.text.push('\n');
        for (flows, word) in [(1000, "1k"), (1_000_000, "1M")] {
            let of = |row: &&&PacketsRow| row.flows == flows && row.asked == "max" && row.cores == 1;
            let drawn: Vec<Whiskers> = cells
                .iter()
                .filter(of)
                .filter_map(|cell| {
                    let values: Vec<f64> = self.of_cell(cell).map(|row| row.mpps).collect();
                    Whiskers::of(&cell.device, &values)
                })
                .collect();
            let title = format!("Real packets: throughput on one core, {flows} flows");
            if let Some(svg) = whiskers(&title, "Mpps there and back, by repetition", &drawn)? {
                let name = format!("packets-{word}");
                all.text.push_str(&format!("![{title}](figures/classification-{name}.svg)\n"));
                all.figures.push((name, title, svg));
            }
        }
        all.text.push('\n');
        Ok(())
    }

    /// A row of each cell, the first.
    fn cells(&self) -> Vec<&PacketsRow> {
        let mut cells: Vec<&PacketsRow> = Vec::new();
        for row in &self.rows {
            if !cells.iter().any(|other| is_same(other, row)) {
                cells.push(row);
            }
        }
        cells
    }

    /// The repetitions of a cell that count: undisturbed ones, if there are any.
    fn of_cell<'a>(&'a self, cell: &'a PacketsRow) -> impl Iterator<Item = &'a PacketsRow> {
        let same = move |row: &&PacketsRow| is_same(row, cell);
        let starved = self.rows.iter().filter(same).all(|row| row.starved);
        self.rows.iter().filter(same).filter(move |row| starved || !row.starved)
    }

    fn line(&self, cell: &PacketsRow) -> Result<String> {
        let of = |value: fn(&PacketsRow) -> f64| {
            Summary::of(&self.of_cell(cell).map(value).collect::<Vec<_>>()).context("a cell without measurements")
        };
        let (rate, trip, p99) = (of(|row| row.mpps)?, of(|row| row.rtt)?, of(|row| row.rtt_p99)?);
        let said = |value: &Summary| match value.half_width {
            Some(half) => format!("{:.2} ± {half:.2}", value.mean),
            None => format!("{:.2}", value.mean),
        };
        let is_profile = |row: &&ProfileRow| {
            (&row.device, row.cores, row.flows) == (&cell.device, cell.cores, cell.flows) && row.stage.contains("table")
        };
        let table = self.profiles.iter().find(is_profile).map_or("-".to_owned(), |row| format!("{:.0}", row.percent));
        let starved = if self.of_cell(cell).any(|row| row.starved) { "starved" } else { "" };
        let PacketsRow { device, cores, flows, asked, .. } = cell;
        let (rate, trip, p99) = (said(&rate), said(&trip), said(&p99));
        Ok(format!("| {device} | {cores} | {flows} | {asked} | {rate} | {trip} | {p99} | {table} | {starved} |\n"))
    }
}

fn is_same(one: &PacketsRow, other: &PacketsRow) -> bool {
    (&one.device, one.cores, one.flows, &one.asked) == (&other.device, other.cores, other.flows, &other.asked)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(device: &str, mpps: f64, starved: bool) -> PacketsRow {
        PacketsRow {
            device: device.to_owned(),
            cores: 1,
            flows: 1000,
            asked: "max".to_owned(),
            repetition: 0,
            mpps,
            rtt: 100.0,
            rtt_p99: 200.0,
            starved,
            machine: "a machine".to_owned(),
            date: "2026-01-31".to_owned(),
        }
    }

    #[test]
    fn starved_repetitions_are_left_out_and_said() {
        let rows = vec![row("a", 5.0, false), row("a", 1.0, true), row("a", 5.2, false), row("b", 2.0, true)];
        let profile = ProfileRow {
            device: "a".to_owned(),
            cores: 1,
            flows: 1000,
            stage: "connection table: hash".to_owned(),
            percent: 12.3,
        };
        let results = PacketResults { rows, profiles: vec![profile], verdicts: Vec::new() };
        let mut all = Sections::default();
        results.section(&mut all).unwrap();
        assert!(
            all.text.contains("| a | 1 | 1000 | max | 5.10 ± 1.27 | 100.00 ± 0.00 | 200.00 ± 0.00 | 12 |  |"),
            "{}",
            all.text
        );
        assert!(all.text.contains("| b | 1 | 1000 | max | 2.00 | 100.00 | 200.00 | - | starved |"), "{}", all.text);
        assert_eq!(all.figures.len(), 1);
    }

    #[test]
    fn nothing_measured_is_no_section() {
        let mut all = Sections::default();
        PacketResults::default().section(&mut all).unwrap();
        assert_eq!(all, Sections::default());
    }
}

//! `hairpin-lab run`: a whole experiment from a file.

use super::progress::{ProgressOutput, about};
use super::{Output, print};
use super::{bed, remove_results};
use anyhow::{Context, Result};
use clap::Args;
use comfy_table::{CellAlignment, Table, presets};
use hairpin_lab::experiment::{
    Experiment, FILE, FindingMetric, Plan, PlanEvent, PlanResults, PlanSummary, RecordOutcome, ResultRecord,
    ResultStore, Skipped, is_starved, latency, perform, summary,
};
use hairpin_lab::profile;
use hairpin_lab::report::{self, Machine, WrittenReport};
use hairpin_lab::testbed::{self, Ran};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// How often tables are written while it runs.
const TABLES_EVERY: Duration = Duration::from_secs(60);
/// Reasons for what is left out that are printed.
const REASONS_MAX: usize = 20;

/// The experiment to measure.
#[derive(Args, Debug)]
pub(crate) struct RunArguments {
    /// The experiment file; lab/scenarios/ has some.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The directory for results; lab-results and the experiment's name, unless given.
    #[arg(long, value_name = "DIRECTORY")]
    out: Option<PathBuf>,
    /// Begin anew: results that are there are removed.
    #[arg(long, conflicts_with = "report")]
    fresh: bool,
    /// Only say what would be measured, how long it would take, and what cannot be measured here.
    #[arg(long, conflicts_with_all = ["fresh", "report"])]
    plan: bool,
    /// Measure nothing: write tables, figures and the page of what is there.
    #[arg(long)]
    report: bool,
    /// Let each trial take so long instead of what the file says, and those of searches no longer: for a quick run.
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    duration: Option<Duration>,
    /// Measure everything so often instead of as the file says.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    repetitions: Option<u32>,
    /// Say nothing until the end.
    #[arg(short, long)]
    quiet: bool,
    /// The output format: a table, or JSON.
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    output: Output,
}

impl RunArguments {
    /// Measures it all. It fails if a measurement did; what is left out is no failure.
    pub(crate) fn perform(self) -> Result<ExitCode> {
        let mut experiment = Experiment::load(&self.file)?;
        if let Some(duration) = self.duration {
            experiment.shorten(duration)?;
        }
        if let Some(repetitions) = self.repetitions {
            experiment.repeat(repetitions);
        }
        let out = self.out.clone().unwrap_or_else(|| Path::new("lab-results").join(&experiment.name));
        // A report needs it only to say what is left out.
        let mut bed = if self.report { bed::start().ok() } else { Some(bed::start()?) };
        let mut plan = match &bed {
            Some(bed) => Plan::new(&experiment, &|trial| bed.obstacle(trial))?,
            None => Plan::new(&experiment, &|_| None)?,
        };
        without_profiles(&mut plan, profile::obstacle);
        if self.plan {
            return self.print_plan(&experiment, &plan).map(|()| ExitCode::SUCCESS);
        }
        if self.fresh {
            remove_results(&out.join(FILE))?;
        }
        let machine = report::machine();
        let mut store = ResultStore::open(&out, &machine.name)
            .with_context(|| "use --fresh to begin anew, or --out for another directory".to_owned())?;
        let done = match &mut bed {
            Some(bed) if !self.report => self.measure(&experiment, &plan, &mut **bed, &mut store, &out),
            _ => Ok(PlanSummary { kept: store.records().len(), ..PlanSummary::default() }),
        };
        // The results so far are shown, even if the rest could not be measured.
        let results = PlanResults::new(&experiment, &plan, &store);
        let written = report::write(&results, &machine, &out)?;
        let done = done?;
        self.print_results(&results, &machine, &done, &written)?;
        Ok(if done.failed > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }

    fn measure(
        &self,
        experiment: &Experiment,
        plan: &Plan,
        bed: &mut dyn testbed::Testbed,
        store: &mut ResultStore,
        out: &Path,
    ) -> Result<PlanSummary> {
        let mut progress = ProgressOutput::new(self.quiet);
        for (reason, count) in reasons(&plan.skipped) {
            progress.line(&format!("left out, {count}: {reason}"));
        }
        let (mut current, mut tables) = (String::new(), Instant::now());
        perform(experiment, plan, bed, store, &mut |event| match event {
            PlanEvent::Begin { task, done, total, left } => {
                current = format!("[{}/{total}, {} left] {task}", done + 1, about(left));
                progress.state(|| current.clone());
            }
            PlanEvent::Trial(testbed::TrialProgress::Running { elapsed, sent, received }) => progress.state(|| {
                let rate = *received as f64 / elapsed.as_secs_f64().max(1e-3) / 1e6;
                format!("{current}: {:.1} s, {sent} sent, {rate:.2} Mpps", elapsed.as_secs_f64())
            }),
            PlanEvent::Trial(_) => {}
            PlanEvent::Search(step) => progress.state(|| {
                let rate = step.observed.offered / 1e6;
                format!(
                    "{current}: trial {}, {rate:.3} Mpps, {:.3} % lost",
                    step.trials,
                    100.0 * step.observed.loss_ratio()
                )
            }),
            PlanEvent::End(store) => {
                if let Some(ResultRecord { came: RecordOutcome::Failed(reason), cell, .. }) = store.records().last() {
                    progress.line(&format!("failed: {cell}: {reason}"));
                }
                if tables.elapsed() > TABLES_EVERY {
                    tables = Instant::now();
                    // They are written again at the end, where an error is told.
                    let _ = report::write_tables(&PlanResults::new(experiment, plan, store), out);
                }
            }
        })
    }

    fn print_plan(&self, experiment: &Experiment, plan: &Plan) -> Result<()> {
        let seconds: f64 = plan.tasks.iter().map(|task| task.nominal(experiment).as_secs_f64()).sum();
        if self.output == Output::Json {
            let tasks: Vec<String> = plan.tasks.iter().map(ToString::to_string).collect();
            let skipped: Vec<_> = plan.skipped.iter().map(|s| (s.cell.to_string(), s.reason.as_str())).collect();
            let plan = serde_json::json!({ "tasks": tasks, "seconds_of_packets": seconds, "skipped": skipped });
            return print(&format!("{plan}\n"));
        }
        let mut text = String::new();
        for task in &plan.tasks {
            text.push_str(&format!("{task}\n"));
        }
        for (reason, count) in reasons(&plan.skipped) {
            text.push_str(&format!("left out, {count}: {reason}\n"));
        }
        let time = about(Duration::from_secs_f64(seconds));
        text.push_str(&format!(
            "{} measurements, {time} of packets and more for what is around them\n",
            plan.tasks.len()
        ));
        print(&text)
    }

    fn print_results(
        &self,
        results: &PlanResults<'_>,
        machine: &Machine,
        done: &PlanSummary,
        written: &WrittenReport,
    ) -> Result<()> {
        if self.output == Output::Json {
            let cells: Vec<_> = results
                .cells
                .iter()
                .map(|(cell, all)| {
                    let of = |metric| summary(metric, all);
                    serde_json::json!({ "cell": cell, "received_pps": of(FindingMetric::Throughput),
                        "latency_ns": of(FindingMetric::Latency), "loss": of(FindingMetric::Loss), "starved": is_starved(all) })
                })
                .collect();
            let all = serde_json::json!({ "machine": machine.name, "page": written.page, "figures": written.figures,
                "kept": done.kept, "new": done.new, "failed": done.failed, "skipped": results.plan.skipped.len(),
                "starved": results.starved, "cells": cells });
            return print(&format!("{all}\n"));
        }
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        table.set_header(["CELL", "N", "Mpps", "±", "LOSS %", "LATENCY us", "P99 us", ""]);
        for (cell, all) in &results.cells {
            let scaled = |metric, scale: f64| {
                let summary = summary(metric, all);
                let half = summary
                    .and_then(|summary| summary.half_width)
                    .map_or("-".to_owned(), |half| format!("{:.3}", half / scale));
                (summary.map_or("-".to_owned(), |summary| format!("{:.3}", summary.mean / scale)), half)
            };
            let (rate, half) = scaled(FindingMetric::Throughput, 1e6);
            let p99 = latency(all, |latency| latency.p99 as f64);
            let (loss, mean) = (scaled(FindingMetric::Loss, 0.01).0, scaled(FindingMetric::Latency, 1e3).0);
            table.add_row([
                cell.to_string(),
                all.len().to_string(),
                rate,
                half,
                loss,
                mean,
                p99.map_or("-".to_owned(), |p99| format!("{:.1}", p99.mean / 1e3)),
                if is_starved(all) { "starved".to_owned() } else { String::new() },
            ]);
        }
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        let counts = format!(
            "{} measured now, {} before, {} failed, {} cells left out",
            done.new,
            done.kept,
            done.failed,
            results.plan.skipped.len()
        );
        let starved = starved(results);
        print(&format!("{table}\n{counts}\n{starved}{}: {} figures\n", written.page.display(), written.figures))
    }
}

/// Names the measurements that are invalid, or were left out, because other threads had the processors; empty if the
/// processors were free.
fn starved(results: &PlanResults<'_>) -> String {
    let (repetitions, cells) = (results.starved, results.starved_cells());
    if repetitions + cells == 0 {
        return String::new();
    }
    format!(
        "a thread had less than {} % of its processor: {repetitions} repetitions are left out, and {cells} cells have no \
         other (\"starved\": not the device's figures)\n",
        100.0 * Ran::ENOUGH
    )
}

/// Leaves profiles out if there can be none, and says why.
fn without_profiles(plan: &mut Plan, obstacle: impl Fn() -> Option<String>) {
    let is_profile = |task: &hairpin_lab::experiment::Task| task.kind == hairpin_lab::experiment::CellKind::Profile;
    if !plan.tasks.iter().any(is_profile) {
        return;
    }
    if let Some(reason) = obstacle() {
        let (profiles, rest) = std::mem::take(&mut plan.tasks).into_iter().partition(is_profile);
        plan.tasks = rest;
        let left_out =
            |task: hairpin_lab::experiment::Task| Skipped { cell: task.cell, reason: format!("no profile: {reason}") };
        plan.skipped.extend(Vec::into_iter(profiles).map(left_out));
    }
}

/// Each reason and how many cells it leaves out, in order, as many as one wants to read.
fn reasons(skipped: &[Skipped]) -> Vec<(&str, usize)> {
    let mut reasons: Vec<(&str, usize)> = Vec::new();
    for skipped in skipped {
        match reasons.iter_mut().find(|(reason, _)| *reason == skipped.reason) {
            Some((_, count)) => *count += 1,
            None => reasons.push((&skipped.reason, 1)),
        }
    }
    let more: usize = reasons.iter().skip(REASONS_MAX).map(|(_, count)| count).sum();
    reasons.truncate(REASONS_MAX);
    if more > 0 {
        reasons.push(("other reasons (skipped.csv has all)", more));
    }
    reasons
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE_TEXT: &str = "name = \"x\"\nprofile = true\ncores = [1, 2]\n[[device]]\nkind = \"forwarder\"\n";

    #[test]
    fn profiles_are_left_out_where_there_can_be_none() {
        let experiment = Experiment::parse("x", FILE_TEXT, Path::new("")).unwrap();
        let obstacle = |trial: &testbed::Trial| (trial.cores > 1).then(|| "too few cores".to_owned());
        let mut plan = Plan::new(&experiment, &obstacle).unwrap();
        let all = plan.tasks.len();
        without_profiles(&mut plan, || None);
        assert_eq!((plan.tasks.len(), plan.skipped.len()), (all, 1));
        without_profiles(&mut plan, || Some("no perf".to_owned()));
        assert_eq!((plan.tasks.len(), plan.skipped.len()), (all - 1, 2));
        assert_eq!(reasons(&plan.skipped), [("too few cores", 1), ("no profile: no perf", 1)]);
    }
}

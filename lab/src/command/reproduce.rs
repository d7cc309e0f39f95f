//! `hairpin-lab reproduce`: KTH 2022's experiments in virtual time.

use super::print;
use super::progress::{Progress, about};
use super::remove_results;
use anyhow::{Context, Result, ensure};
use clap::Args;
use hairpin_lab::report;
use hairpin_lab::virtual_time::{
    Bench, Came, Case, Circumstances, Done, Effort, Event, Experiment, FILE, Gathered, Store, perform, write,
};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// What is reproduced.
#[derive(Args, Debug)]
pub(crate) struct ReproduceArguments {
    /// The part of the paper's rates, flows, tables and rules that is simulated, 0.0001 to 1.
    #[arg(long, default_value_t = 0.1)]
    scale: f64,
    /// Only the experiments of these names.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
    /// Where results go.
    #[arg(long, value_name = "DIRECTORY", default_value = "lab-results/reproduce")]
    output: PathBuf,
    /// Cases at a time; as many as the machine has cores, unless given.
    #[arg(long, value_name = "NUMBER")]
    jobs: Option<usize>,
    /// Experiment files.
    #[arg(long, value_name = "DIRECTORY", default_value = "lab/experiments")]
    experiments: PathBuf,
    /// Profiles of cards, and of cores in its directory `cores`.
    #[arg(long, value_name = "DIRECTORY", default_value = "lab/profiles")]
    profiles: PathBuf,
    /// Recordings (*.pcap) that cases replay, such as those of nDPI's tests; HAIRPIN_TRACES, unless given.
    #[arg(long, value_name = "DIRECTORY")]
    traces: Option<PathBuf>,
    /// Also write what was found to this file (docs/evidence/reproduction.md).
    #[arg(long, value_name = "FILE")]
    document: Option<PathBuf>,
    /// The longest a case may take, in seconds; what takes longer is given up and reported.
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    case_seconds: u64,
    /// Begin anew: results that are there are removed.
    #[arg(long, conflicts_with = "report")]
    fresh: bool,
    /// Only say which cases there are.
    #[arg(long, conflicts_with_all = ["fresh", "report"])]
    plan: bool,
    /// Simulate nothing: write tables, figures and pages of what is there.
    #[arg(long)]
    report: bool,
    /// Say nothing until the end.
    #[arg(short, long)]
    quiet: bool,
}

impl ReproduceArguments {
    /// Does it all. It fails if a case did; findings that are not so are no failure.
    pub(crate) fn perform(self) -> Result<ExitCode> {
        let began = Instant::now();
        let mut experiments = Experiment::load_all(&self.experiments)?;
        for name in &self.only {
            let known: Vec<&str> = experiments.iter().map(|experiment| experiment.name.as_str()).collect();
            ensure!(known.contains(&name.as_str()), "there is no experiment {name}; there are {}", known.join(", "));
        }
        experiments.retain(|experiment| self.only.is_empty() || self.only.contains(&experiment.name));
        let traces = self.traces.clone().or_else(|| std::env::var_os("HAIRPIN_TRACES").map(PathBuf::from));
        let bench = Bench::load(self.scale, &self.profiles, traces.as_deref())?;
        let cases: Vec<&Case> = experiments.iter().flat_map(|experiment| &experiment.cases).collect();
        if self.plan {
            return print_plan(&bench, &cases).map(|()| ExitCode::SUCCESS);
        }
        if self.fresh {
            remove_results(&self.output.join(FILE))?;
        }
        let mut store = Store::open(&self.output)?;
        let jobs = self.jobs.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from)).max(1);
        let done = if self.report { Ok(Done::default()) } else { self.perform_cases(&bench, &cases, jobs, &mut store) };
        // What there is is shown, even if the rest could not be kept.
        let gathered: Vec<Gathered<'_>> =
            experiments.iter().map(|experiment| Gathered::new(experiment, &bench, &store)).collect();
        let circumstances = Circumstances {
            scale: self.scale,
            machine: report::machine().name,
            jobs,
            elapsed: began.elapsed(),
            kept: done.as_ref().map_or(0, |done| done.kept),
            recordings: bench.recordings(),
            command: self.command(),
        };
        let written = write(&gathered, &circumstances, &self.output)?;
        if let Some(document) = &self.document {
            std::fs::copy(&written.document, document)
                .with_context(|| format!("could not write {}", document.display()))?;
        }
        let done = done?;
        let missing: usize = gathered.iter().map(|one| one.failures().len()).sum();
        print(&format!(
            "{} cases performed, {} kept from before, {} failed, {missing} without a result; {:.2} billion packets in {}\n\
             {}: {} figures\n{}\n",
            done.new,
            done.kept,
            done.failed,
            done.packets as f64 / 1e9,
            about(began.elapsed()),
            written.page.display(),
            written.figures,
            self.document.as_ref().unwrap_or(&written.document).display()
        ))?;
        Ok(if done.failed > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }

    fn perform_cases(&self, bench: &Bench, cases: &[&Case], jobs: usize, store: &mut Store) -> Result<Done> {
        let mut progress = Progress::new(self.quiet);
        let effort = Effort { jobs, case_max: Duration::from_secs(self.case_seconds) };
        perform(bench, cases, effort, store, &mut |event| match event {
            Event::Running { done, cases, packets, elapsed, left } => progress.state(|| {
                let left = left.map_or("?".to_owned(), about);
                let rate = packets as f64 / elapsed.as_secs_f64().max(1e-3) / 1e6;
                format!("[{done}/{cases}, {left} left] {:.0} million packets, {rate:.2} a second", packets as f64 / 1e6)
            }),
            Event::Done(record) => {
                if let Came::Failed(reason) = &record.came {
                    progress.line(&format!("failed: {}: {reason}", record.name));
                }
            }
        })
    }

    /// As one would type it again.
    fn command(&self) -> String {
        let mut command = format!("hairpin-lab reproduce --scale {}", self.scale);
        if !self.only.is_empty() {
            command.push_str(&format!(" --only {}", self.only.join(",")));
        }
        command
    }
}

fn print_plan(bench: &Bench, cases: &[&Case]) -> Result<()> {
    let mut text = String::new();
    let mut all = 0.0;
    for case in cases {
        let packets = bench.packets(case);
        all += packets;
        text.push_str(&format!("{}: {:.2} million packets\n", case.name(), packets / 1e6));
    }
    text.push_str(&format!("{} cases, {:.2} billion packets\n", cases.len(), all / 1e9));
    print(&text)
}

//! `hairpin-lab reproduce`: KTH 2022's experiments in virtual time.

use super::print;
use super::progress::{PartOfAll, ProgressOutput, about};
use super::remove_results;
use anyhow::{Context, Result, ensure};
use clap::Args;
use hairpin_lab::records::{Provenance, StoredRecord};
use hairpin_lab::report;
use hairpin_lab::virtual_time::{
    Case, CaseContext, CaseOutcome, CaseRecord, CaseStore, CasesEvent, CasesSummary, Circumstances, Gathered,
    ModelExperiment, OtherScale, PerformOptions, Sensitivity, SensitivityInput, Variation, examine, perform,
    sensitivity_page, write, write_evidence,
};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

/// The experiments to reproduce.
#[derive(Args, Debug)]
pub(crate) struct ReproduceArguments {
    /// The part of the paper's rates, flows, tables and rules that is simulated, 0.0001 to 1.
    #[arg(long, default_value_t = 0.1)]
    scale: f64,
    /// Only the experiments of these names.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
    /// The directory for results.
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
    /// Also write the page of verdicts to this file, and its figures to `figures` beside it (docs/evidence/reproduction.md).
    #[arg(long, value_name = "FILE")]
    document: Option<PathBuf>,
    /// The file for tables of all runs that the page of verdicts has no room for.
    #[arg(long, value_name = "DIRECTORY", requires = "document")]
    tables: Option<PathBuf>,
    /// Results at another scale, whose verdicts stand beside: SCALE=DIRECTORY.
    #[arg(long, value_name = "SCALE=DIRECTORY", requires = "document", value_parser = beside)]
    beside: Option<(f64, PathBuf)>,
    /// Seeds of each case, 1 to 100: the first for all of them, then the next.
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    seeds: u32,
    /// Judge all findings with each of these constants at other values, and write the table to --tables and the page to --document.
    #[arg(long, value_name = "FILE", requires_all = ["document", "tables"], conflicts_with_all = ["beside", "plan", "report"])]
    sensitivity: Option<PathBuf>,
    /// The table of an earlier --sensitivity, to say beside disagreements what they hang on.
    #[arg(long, value_name = "FILE", requires = "document")]
    constants: Option<PathBuf>,
    /// The longest a case may take, in seconds; what takes longer is given up and reported.
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    case_seconds: u64,
    /// Begin anew: results that are there are removed.
    #[arg(long, conflicts_with = "report")]
    fresh: bool,
    /// Only say which cases there are.
    #[arg(long, conflicts_with_all = ["fresh", "report"])]
    plan: bool,
    /// Simulate nothing: write tables, figures and pages of the results in the output directory.
    #[arg(long)]
    report: bool,
    /// Say nothing until the end.
    #[arg(short, long)]
    quiet: bool,
    /// Whether it is one of several commands.
    #[clap(skip)]
    pub(super) part: Option<PartOfAll>,
}

impl ReproduceArguments {
    /// Does it all. It fails if a case did; findings that are not so are no failure.
    pub(crate) fn perform(self) -> Result<ExitCode> {
        let began = Instant::now();
        let mut experiments = ModelExperiment::load_all(&self.experiments)?;
        for name in &self.only {
            let known: Vec<&str> = experiments.iter().map(|experiment| experiment.name.as_str()).collect();
            ensure!(known.contains(&name.as_str()), "there is no experiment {name}; there are {}", known.join(", "));
        }
        experiments.retain(|experiment| self.only.is_empty() || self.only.contains(&experiment.name));
        let traces = self.traces.clone().or_else(|| std::env::var_os("HAIRPIN_TRACES").map(PathBuf::from));
        if let Some(constants) = &self.sensitivity {
            return self.examine(&experiments, constants, traces.as_deref());
        }
        let experiments: Vec<ModelExperiment> =
            experiments.into_iter().map(|experiment| experiment.repeated(self.seeds)).collect();
        let bench = CaseContext::load(self.scale, &self.profiles, traces.as_deref())?;
        let cases: Vec<&Case> = experiments.iter().flat_map(|experiment| &experiment.cases).collect();
        if self.plan {
            return print_plan(&bench, &cases).map(|()| ExitCode::SUCCESS);
        }
        if self.fresh {
            remove_results(&self.output.join(CaseRecord::FILE))?;
        }
        let mut store = CaseStore::open(&self.output)?;
        let jobs = self.jobs();
        let done =
            if self.report { Ok(CasesSummary::default()) } else { self.carry_out(&bench, &cases, jobs, &mut store) };
        // The results so far are shown, even if the rest could not be kept.
        let gathered = gather(&experiments, &bench, &store);
        let circumstances = Circumstances {
            scale: self.scale,
            command: self.command(),
            run: self.run_of(jobs, began.elapsed(), done.as_ref().map_or(0, |done| done.kept)),
        };
        let written = write(&gathered, &circumstances, &self.output)?;
        self.write_document(&experiments, &gathered, &circumstances)?;
        let done = done?;
        let missing: usize = gathered.iter().map(|one| one.failures().len()).sum();
        print(&format!(
            "{} cases carried out, {} kept from before, {} failed, {missing} without a result; {:.2} billion packets in {}\n\
             {}: {} figures\n{}",
            done.new,
            done.kept,
            done.failed,
            done.packets as f64 / 1e9,
            about(began.elapsed()),
            written.page.display(),
            written.figures,
            self.document.as_ref().map_or(String::new(), |document| format!("{}\n", document.display()))
        ))?;
        Ok(if done.failed > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }

    fn jobs(&self) -> usize {
        self.jobs.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from)).max(1)
    }

    /// Judges with each constant at other values.
    fn examine(&self, experiments: &[ModelExperiment], constants: &Path, traces: Option<&Path>) -> Result<ExitCode> {
        let (Some(document), Some(tables)) = (&self.document, &self.tables) else { return Ok(ExitCode::FAILURE) };
        let variations = Variation::load_all(constants)?;
        if self.fresh {
            remove_results(&self.output.join(CaseRecord::FILE))?;
        }
        let mut store = CaseStore::open(&self.output)?;
        let mut progress = ProgressOutput::new(self.quiet);
        let case_max = Duration::from_secs(self.case_seconds);
        let effort = PerformOptions { jobs: self.jobs(), case_max, made: made(&self.experiments) };
        let input = SensitivityInput { scale: self.scale, profiles: &self.profiles, traces, variations: &variations };
        let all = examine(experiments, input, &effort, &mut store, &mut |variation, event| {
            if let CasesEvent::Running { done, cases, left, .. } = event {
                progress
                    .state(|| format!("[{variation}: {done}/{cases}, {} left]", left.map_or("?".to_owned(), about)));
            }
        })?;
        std::fs::create_dir_all(tables).with_context(|| format!("could not make {}", tables.display()))?;
        let table = tables.join("sensitivity.csv");
        std::fs::write(&table, all.table()?).with_context(|| format!("could not write {}", table.display()))?;
        let command = format!("{} --sensitivity {}", self.command(), constants.display());
        std::fs::write(document, sensitivity_page(&all, &command))
            .with_context(|| format!("could not write {}", document.display()))?;
        print(&format!("{} verdicts with {} constants\n{}\n", all.rows.len(), variations.len(), document.display()))?;
        Ok(ExitCode::SUCCESS)
    }

    /// The circumstances of this run, for people.
    fn run_of(&self, jobs: usize, elapsed: Duration, kept: usize) -> String {
        if self.report {
            return String::new();
        }
        let machine = report::machine().name;
        format!(
            "This run took {}, {jobs} cases at a time, on {machine}; {kept} cases were there before.",
            about(elapsed)
        )
    }

    fn write_document(
        &self,
        experiments: &[ModelExperiment],
        gathered: &[Gathered<'_>],
        circumstances: &Circumstances,
    ) -> Result<()> {
        let Some(document) = &self.document else { return Ok(()) };
        let other = match &self.beside {
            Some((scale, directory)) => {
                ensure!(directory.join(CaseRecord::FILE).exists(), "there are no results in {}", directory.display());
                // A result counts with whatever recordings it was made.
                Some((CaseContext::load(*scale, &self.profiles, None)?, CaseStore::open(directory)?))
            }
            None => None,
        };
        let others = other.as_ref().map(|(bench, store)| gather(experiments, bench, store));
        let scale = other.as_ref().map_or(0.0, |(bench, _)| bench.scale);
        let beside = others.as_deref().map(|gathered| OtherScale { scale, gathered });
        let sensitivity = self.constants.as_deref().map(Sensitivity::load).transpose()?;
        write_evidence(gathered, (beside, sensitivity.as_ref()), circumstances, document, self.tables.as_deref())
            .with_context(|| format!("could not write {}", document.display()))
    }

    fn carry_out(
        &self,
        bench: &CaseContext,
        cases: &[&Case],
        jobs: usize,
        store: &mut CaseStore,
    ) -> Result<CasesSummary> {
        let mut progress = ProgressOutput::of_part(self.quiet, self.part.as_ref());
        let made = made(&self.experiments);
        let effort = PerformOptions { jobs, case_max: Duration::from_secs(self.case_seconds), made };
        perform(bench, cases, &effort, store, &mut |event| match event {
            CasesEvent::Running { done, cases, packets, elapsed, left } => progress.share((done, cases), left, || {
                let rate = packets as f64 / elapsed.as_secs_f64().max(1e-3) / 1e6;
                format!("{:.0} million packets, {rate:.2} a second", packets as f64 / 1e6)
            }),
            CasesEvent::Done(record) => {
                if let CaseOutcome::Failed(reason) = &record.came {
                    progress.line(&format!("failed: {}: {reason}", record.name));
                }
            }
        })
    }

    /// As one would type it again.
    fn command(&self) -> String {
        let mut command = format!("hairpin-lab reproduce --scale {}", self.scale);
        if self.seeds > 1 {
            command.push_str(&format!(" --seeds {}", self.seeds));
        }
        if !self.only.is_empty() {
            command.push_str(&format!(" --only {}", self.only.join(",")));
        }
        command
    }
}

fn gather<'a>(experiments: &'a [ModelExperiment], bench: &CaseContext, store: &'a CaseStore) -> Vec<Gathered<'a>> {
    experiments.iter().map(|experiment| Gathered::new(experiment, bench, store)).collect()
}

/// A scale and where its results are.
pub(super) fn beside(text: &str) -> Result<(f64, PathBuf), String> {
    let (scale, directory) = text.split_once('=').ok_or("write SCALE=DIRECTORY, such as 1=target/reproduce-full")?;
    let scale = scale.parse().map_err(|_| format!("`{scale}` is no scale, such as 0.1"))?;
    Ok((scale, PathBuf::from(directory)))
}

/// This machine, today, this program; its commit if the experiments lie in a git checkout.
pub(super) fn made(experiments: &Path) -> Provenance {
    let date = humantime::format_rfc3339_seconds(std::time::SystemTime::now()).to_string();
    let mut git = Command::new("git");
    let directory = if experiments.is_dir() { experiments } else { experiments.parent().unwrap_or(experiments) };
    git.arg("-C").arg(directory).args(["rev-parse", "--short", "HEAD"]);
    let commit = git.output().ok().filter(|output| output.status.success());
    let commit = commit.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    let version = env!("CARGO_PKG_VERSION");
    Provenance {
        machine: report::machine().name,
        date: date.get(..10).unwrap_or_default().to_owned(),
        program: commit.map_or(version.to_owned(), |commit| format!("{version}, commit {commit}")),
    }
}

fn print_plan(bench: &CaseContext, cases: &[&Case]) -> Result<()> {
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

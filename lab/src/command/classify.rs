//! `hairpin-lab classify`: KTH 2020's methods on cores that share a table, in virtual time, and the page on them.

use super::print;
use super::progress::{PartOfAll, ProgressOutput, left};
use anyhow::Result;
use clap::Args;
use hairpin_lab::classification::{
    ClassificationExperiment, MARKS, PacketResults, PageParts, measure_marks, perform, read_rows, sections, write,
    write_measured, write_rows,
};
use hairpin_lab::report::machine;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Instant;

/// The experiment to simulate.
#[derive(Args, Debug)]
pub(crate) struct ClassifyArguments {
    /// The experiment file.
    #[arg(value_name = "FILE", default_value = "lab/classification.toml")]
    file: PathBuf,
    /// Profiles of devices whose cores share a table.
    #[arg(long, value_name = "DIRECTORY", default_value = "lab/profiles/sharing")]
    profiles: PathBuf,
    /// The results, a line for each run.
    #[arg(long, value_name = "FILE", default_value = "lab/results/classification.csv")]
    results: PathBuf,
    /// The page; figures go into `figures` beside it.
    #[arg(long, value_name = "FILE", default_value = "docs/evidence/classification.md")]
    document: PathBuf,
    /// Simulate nothing: write the page from the results that are there.
    #[arg(long)]
    report: bool,
    /// Measure marks beside look-ups first, on this machine, so often; their results are written beside the others.
    #[arg(long, value_name = "REPETITIONS", num_args = 0..=1, default_missing_value = "9")]
    marks: Option<u32>,
    /// Take the results of `hairpin-lab run` of the scenario from this directory first.
    #[arg(long, value_name = "DIRECTORY")]
    packets: Option<PathBuf>,
    /// The scenario of real packets.
    #[arg(long, value_name = "FILE", default_value = "lab/scenarios/kth-2020.toml")]
    scenario: PathBuf,
    /// Runs at a time; as many as the machine has cores, unless given.
    #[arg(long, value_name = "NUMBER")]
    jobs: Option<usize>,
    /// Say nothing until the end.
    #[arg(short, long)]
    quiet: bool,
    /// Whether it is one of several commands.
    #[clap(skip)]
    pub(super) part: Option<PartOfAll>,
}

impl ClassifyArguments {
    /// Simulates it all, and writes results and page.
    pub(crate) fn perform(self) -> Result<()> {
        let experiment = ClassificationExperiment::load(&self.file, &self.profiles)?;
        let directory = self.results.parent().unwrap_or(Path::new("")).to_owned();
        if let Some(packets) = &self.packets {
            PacketResults::of(&self.scenario, packets, &machine().name)?.write(&directory)?;
        }
        if let Some(repetitions) = self.marks {
            let mut output = ProgressOutput::new(self.quiet);
            let rows = measure_marks(repetitions, &mut |what| output.state(|| what.to_owned()))?;
            write_measured(&directory.join(MARKS), &rows)?;
        }
        let rows = if self.report {
            read_rows(&self.results, &experiment)?
        } else {
            let jobs = self.jobs.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
            let (output, began) = (Mutex::new(ProgressOutput::of_part(self.quiet, self.part.as_ref())), Instant::now());
            let progress = |done: usize, all: usize| {
                if let Ok(mut output) = output.lock() {
                    output.share((done, all), left(began.elapsed(), done, all), || "runs".to_owned());
                }
            };
            let rows = perform(&experiment, jobs, &progress)?;
            write_rows(&self.results, &rows)?;
            rows
        };
        let more = sections(&directory)?;
        write(&PageParts { experiment: &experiment, rows: &rows, more: &more }, &self.document)?;
        print(&format!("{}: {} runs\n{}\n", self.results.display(), rows.len(), self.document.display()))
    }
}

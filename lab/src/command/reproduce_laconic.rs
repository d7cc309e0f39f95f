//! `hairpin-lab reproduce-laconic`: Laconic's evaluation on its own cards, in virtual time.

use super::progress::{PartOfAll, ProgressOutput, about, left};
use super::reproduce::made;
use super::{print, remove_results};
use anyhow::{Context, Result};
use clap::Args;
use hairpin_lab::laconic::{
    CardBench, CardEvent, CardRecord, CardStore, CardSummary, CardsPage, LaconicCase, perform, write_page,
};
use hairpin_lab::records::StoredRecord;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

/// What is reproduced, and where it goes.
#[derive(Args, Debug)]
pub(crate) struct ReproduceLaconicArguments {
    /// The directory for results.
    #[arg(long, value_name = "DIRECTORY", default_value = "lab-results/reproduce-laconic")]
    output: PathBuf,
    /// Cases at a time; as many as the machine has cores, unless given.
    #[arg(long, value_name = "NUMBER")]
    jobs: Option<usize>,
    /// The experiment file.
    #[arg(long, value_name = "FILE", default_value = "lab/laconic/cards.toml")]
    experiment: PathBuf,
    /// Profiles of cards, and of SmartNICs in its directory `smart-nics`.
    #[arg(long, value_name = "DIRECTORY", default_value = "lab/profiles")]
    profiles: PathBuf,
    /// Also write the page of verdicts to this file, and its figures to `figures` beside it (docs/evidence/laconic-cards.md).
    #[arg(long, value_name = "FILE")]
    document: Option<PathBuf>,
    /// Only cases whose name has this in it, such as `bluefield-2, 1 port(s)`.
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Leave out the cases in which guessed numbers are others.
    #[arg(long)]
    without_guesses: bool,
    /// Begin anew: results that are there are removed.
    #[arg(long, conflicts_with = "report")]
    fresh: bool,
    /// Simulate nothing: write the page of the results in the output directory.
    #[arg(long)]
    report: bool,
    /// Say nothing until the end.
    #[arg(short, long)]
    quiet: bool,
    /// Whether it is one of several commands.
    #[clap(skip)]
    pub(super) part: Option<PartOfAll>,
}

impl ReproduceLaconicArguments {
    /// Does it all. It fails if a case did; findings that are not so are no failure.
    pub(crate) fn perform(self) -> Result<ExitCode> {
        let began = Instant::now();
        let bench = CardBench::load(&self.experiment, &self.profiles)?;
        let mut cases = bench.experiment.cases();
        if !self.without_guesses {
            cases.extend(bench.experiment.varied());
        }
        cases.retain(|case| self.only.as_ref().is_none_or(|only| case.name().contains(only)));
        if self.fresh {
            remove_results(&self.output.join(CardRecord::FILE))?;
        }
        let mut store = CardStore::open(&self.output)?;
        let done = if self.report { Ok(CardSummary::default()) } else { self.carry_out(&bench, &cases, &mut store) };
        // The results so far are shown, even if the rest could not be kept.
        let page = CardsPage::new(&bench, &store);
        if let Some(document) = &self.document {
            write_page(&page, document).with_context(|| format!("could not write {}", document.display()))?;
        }
        let done = done?;
        print(&format!(
            "{}\n{} cases carried out, {} kept from before, {} failed, in {}\n",
            page.summary(),
            done.new,
            done.kept,
            done.failed,
            about(began.elapsed())
        ))?;
        Ok(if done.failed > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }

    fn carry_out(&self, bench: &CardBench, cases: &[LaconicCase], store: &mut CardStore) -> Result<CardSummary> {
        let jobs = self.jobs.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from)).max(1);
        let made = made(&self.experiment);
        let mut progress = ProgressOutput::of_part(self.quiet, self.part.as_ref());
        perform(bench, cases, (jobs, &made), store, &mut |event| match event {
            CardEvent::Running { done, cases, new, elapsed } => {
                progress.share((done, cases), left(elapsed, new, new + cases - done), || about(elapsed));
            }
            CardEvent::Done(record) => {
                if let Err(reason) = &record.came {
                    progress.line(&format!("failed: {}: {reason}", record.name));
                }
            }
        })
    }
}

//! `hairpin-lab evidence`: the index of the evidence.

use super::print;
use anyhow::Result;
use clap::Args;
use hairpin_lab::evidence::{EvidenceSources, PAGE, write};
use std::path::PathBuf;

/// What the index is of.
#[derive(Args, Debug)]
pub(crate) struct EvidenceArguments {
    /// The repository: its experiments, profiles and pages.
    #[arg(long, value_name = "DIRECTORY", default_value = ".")]
    root: PathBuf,
    /// The results; lab/results of the repository, unless given.
    #[arg(long, value_name = "DIRECTORY")]
    results: Option<PathBuf>,
    /// The page; docs/evidence/README.md of the repository, unless given.
    #[arg(long, value_name = "FILE")]
    document: Option<PathBuf>,
}

impl EvidenceArguments {
    /// Writes the page.
    pub(crate) fn perform(self) -> Result<()> {
        let results = self.results.unwrap_or_else(|| self.root.join("lab/results"));
        let document = self.document.unwrap_or_else(|| self.root.join(PAGE));
        write(&EvidenceSources { root: &self.root, results: &results }, &document)?;
        print(&format!("{}\n", document.display()))
    }
}

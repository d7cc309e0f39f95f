//! `hairpin lab`: the testbed.

mod bed;
mod progress;
mod rate;
mod run;

use anyhow::Result;
use clap::Subcommand;
use std::process::ExitCode;

#[derive(Debug, Subcommand)]
pub(crate) enum LabCommand {
    /// Search the highest rate that a device carries with no more loss than allowed.
    ///
    /// Loads are judged by the majority of several trials (MLRsearch's way; --rfc2544 for one of 60 seconds each). The
    /// search is repeated, and the mean comes with its 95 % confidence interval.
    #[command(after_help = "Example: hairpin lab rate --table cuckoo++ --flows 1000000 --loss 0,0.005")]
    Rate(Box<rate::RateArguments>),
    /// Measure a whole experiment, from a file: tables, figures, a page.
    ///
    /// What is there already is not measured again: a run that was ended goes on. What the machine has too few cores for
    /// is left out, and said.
    #[command(
        after_help = "Example: hairpin lab run scenarios/papers003.toml\nExit status: 0 measured, 1 something failed"
    )]
    Run(Box<run::RunArguments>),
}

impl LabCommand {
    /// Does it.
    pub(crate) fn perform(self) -> Result<ExitCode> {
        match self {
            LabCommand::Rate(arguments) => arguments.perform().map(|()| ExitCode::SUCCESS),
            LabCommand::Run(arguments) => arguments.perform(),
        }
    }
}

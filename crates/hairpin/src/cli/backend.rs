//! `hairpin backend`: backends overridden at run time.

use super::print;
use super::target::InstanceTarget;
use crate::control::{BackendAction, BackendChange, ControlAnswer, ControlRequest, unexpected};
use anyhow::Result;
use clap::{Args, Subcommand};

#[derive(Debug, Subcommand)]
pub(super) enum BackendCommand {
    /// Keep the backend's connections, give it no new ones.
    #[command(after_help = "Example: hairpin backend drain web 10.0.2.11:8080")]
    Drain(BackendArgs),
    /// Give the backend new connections again.
    #[command(after_help = "Example: hairpin backend enable web 10.0.2.11:8080")]
    Enable(BackendArgs),
    /// Give the backend no new connections and end those it has.
    #[command(after_help = "Example: hairpin backend disable web 10.0.2.11:8080")]
    Disable(BackendArgs),
    /// Give the backend another weight for new connections.
    #[command(after_help = "Example: hairpin backend weight web 10.0.2.11:8080 5")]
    Weight {
        #[command(flatten)]
        which: BackendArgs,
        /// The weight, 0 to 65535; 0 gives it no new connections.
        #[arg(value_name = "WEIGHT")]
        weight: u16,
    },
    /// Remove the override: the configuration holds again.
    #[command(after_help = "Example: hairpin backend reset web 10.0.2.11:8080")]
    Reset(BackendArgs),
}

/// The backend.
#[derive(Args, Debug)]
pub(super) struct BackendArgs {
    /// The service's name.
    #[arg(value_name = "SERVICE")]
    service: String,
    /// The backend's name or address.
    #[arg(value_name = "BACKEND")]
    backend: String,
    #[command(flatten)]
    target: InstanceTarget,
}

impl BackendCommand {
    /// Applies the override and prints what has changed.
    pub(super) fn perform(self) -> Result<()> {
        let (which, action) = match self {
            BackendCommand::Drain(which) => (which, BackendAction::Drain),
            BackendCommand::Enable(which) => (which, BackendAction::Enable),
            BackendCommand::Disable(which) => (which, BackendAction::Disable),
            BackendCommand::Weight { which, weight } => (which, BackendAction::Weight(weight)),
            BackendCommand::Reset(which) => (which, BackendAction::Reset),
        };
        let change = BackendChange { service: which.service, backend: which.backend, action };
        match which.target.connect()?.request(&ControlRequest::Backend(change))? {
            ControlAnswer::Done(sentence) => print(&format!("{sentence}\n")),
            other => unexpected(other),
        }
    }
}

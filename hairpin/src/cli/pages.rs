//! What is written from the command line's own description: manual pages and shell completions.

use super::Command;
use anyhow::{Context, Result};
use clap::CommandFactory;
use std::io::Write;
use std::path::Path;

/// Prints the manual page, or writes one for each command into `directory`.
pub(super) fn manual(directory: Option<&Path>) -> Result<()> {
    match directory {
        None => {
            let mut page = Vec::new();
            // As in the pages that are written below: `help` has none.
            clap_mangen::Man::new(Command::command().disable_help_subcommand(true)).render(&mut page)?;
            std::io::stdout().lock().write_all(&page)?;
            Ok(())
        }
        Some(directory) => clap_mangen::generate_to(Command::command(), directory)
            .with_context(|| format!("cannot write manual pages into {}", directory.display())),
    }
}

/// Prints what `shell` needs.
pub(super) fn completions(shell: clap_complete::Shell) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Command::command(), "hairpin", &mut script);
    std::io::stdout().lock().write_all(&script)?;
    Ok(())
}

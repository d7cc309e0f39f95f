//! `hairpin import`.

use super::{Output, print};
use crate::import::{self, ImportArgs};
use crate::json;
use anyhow::Result;
use clap::Subcommand;

#[derive(Debug, Subcommand)]
pub(super) enum ImportCommand {
    /// Write a configuration that does what nginx's does, to standard output.
    ///
    /// `http` and `stream` are carried over, with the files that they include: servers, upstreams, locations, redirects, access rules,
    /// headers, certificates, timeouts. To standard error goes each directive that is not, or not wholly, with its file, its line and why. What
    /// would be open without such a directive (`auth_basic`) answers 403, and a location that cannot be carried over 501. nginx's file
    /// does not say which interfaces and addresses Hairpin is to have: without the options, addresses for documentation stand there. What is written
    /// passes `hairpin validate`.
    #[command(
        after_help = "Example: hairpin import nginx /etc/nginx/nginx.conf --vip 192.0.2.10 --pool 10.0.2.1 > hairpin.toml\n\
                            Exit status: 0 written, 1 the file cannot be read, or has nothing to balance"
    )]
    Nginx {
        #[command(flatten)]
        args: ImportArgs,
        /// The format of the list on standard error: text, or JSON, an object a line.
        #[arg(short, long, value_name = "FORMAT", default_value = "table")]
        output: Output,
    },
}

impl ImportCommand {
    pub(super) fn perform(self) -> Result<()> {
        let ImportCommand::Nginx { args, output } = self;
        let (text, notes) = import::nginx(&args)?;
        for note in &notes {
            match output {
                Output::Table => eprintln!("{note}"),
                Output::Json => eprint!("{}", json::line(note)?),
            }
        }
        print(&text)
    }
}

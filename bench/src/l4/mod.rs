//! `hairpin-bench l4`: packets a second through one core, beside `dpdk-testpmd` over the same source: `make bench-l4`.

mod memory;
mod subject;
mod traffic;

use anyhow::Result;

/// What to measure.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    #[command(subcommand)]
    part: Part,
}

#[derive(Debug, clap::Subcommand)]
enum Part {
    /// The worker by itself, between frames in memory: processor time per packet.
    Memory(memory::Arguments),
}

/// Measures.
///
/// # Errors
/// When something could not be measured.
pub fn run(arguments: &Arguments) -> Result<()> {
    match &arguments.part {
        Part::Memory(arguments) => memory::run(arguments),
    }
}

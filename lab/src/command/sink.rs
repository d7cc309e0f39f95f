//! `hairpin-lab sink`: a sink in a process of its own.

use super::Output;
use super::ports::PortArguments;
use anyhow::Result;
use clap::Args;
use std::time::Duration;

/// The packets to receive.
#[derive(Args, Debug)]
pub(crate) struct SinkArguments {
    #[command(flatten)]
    port: PortArguments,
    /// The generator's seed.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// The generator's cores.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    generators: u16,
    /// Flows that room is taken for.
    #[arg(long, value_name = "N", default_value_t = 1 << 20)]
    flows: u32,
    /// Destinations are backends: each flow should go to one.
    #[arg(long)]
    balanced: bool,
    /// End so long after the first packet.
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = humantime::parse_duration)]
    duration: Duration,
    /// End when nothing has come for so long after the first packet.
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = humantime::parse_duration)]
    idle: Duration,
    /// Bytes of the longest frame that comes, without its check sequence.
    #[arg(long, value_name = "BYTES", default_value_t = 1514, value_parser = clap::value_parser!(u16).range(64..=9018))]
    longest: u16,
    /// Say nothing until the end.
    #[arg(short, long)]
    quiet: bool,
    /// The output format: a table, or JSON.
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    output: Output,
}

impl SinkArguments {
    /// Receives, and says what came.
    #[cfg(feature = "dpdk")]
    pub(crate) fn perform(self) -> Result<()> {
        use super::ports::{report, start, told_to_end};
        use super::print;
        use super::progress::{ProgressOutput, running};
        use hairpin_lab::testbed::ports::{SinkSettings, sink};
        let settings = SinkSettings {
            port: self.port.settings(self.longest, true)?,
            seed: self.seed,
            generators: self.generators,
            flows: self.flows as usize,
            balanced: self.balanced,
            duration: self.duration,
            idle: self.idle,
        };
        let eal = start(&[&self.port.port])?;
        let mut progress = ProgressOutput::new(self.quiet);
        let stop = told_to_end()?;
        let collected = sink(&eal, &settings, &stop, &mut |state| running(&mut progress, &state))?;
        drop(progress);
        match self.output {
            Output::Json => print(&format!("{}\n", serde_json::json!(collected))),
            Output::Table => {
                print(&format!("{}others     {} frames\n", report(&collected.measurement), collected.foreign))
            }
        }
    }

    /// Cannot.
    #[cfg(not(feature = "dpdk"))]
    pub(crate) fn perform(self) -> Result<()> {
        Err(super::ports::without())
    }
}

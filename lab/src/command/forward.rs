//! `hairpin-lab forward`: a device under test in a process of its own.

use super::Output;
use super::ports::PortArguments;
use anyhow::Result;
use clap::Args;
use hairpin_lab::testbed::Device;

/// The device under test.
#[derive(Args, Debug)]
pub(crate) struct ForwardArguments {
    #[command(flatten)]
    port: PortArguments,
    /// Its kind: wire, forwarder or balancer.
    #[arg(long, value_name = "DEVICE", default_value = "forwarder")]
    device: Device,
    /// The balancer's connection table.
    #[arg(long, value_name = "TABLE", default_value = "cuckoo++")]
    table: String,
    /// Connections the balancer has room for.
    #[arg(long, value_name = "N", default_value_t = 1 << 21)]
    entries: u32,
    /// Backends behind the balancer.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=1024))]
    backends: u16,
    /// The seed of all random choices.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
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

impl ForwardArguments {
    /// Serves until told to end, and reports its counters.
    #[cfg(feature = "dpdk")]
    pub(crate) fn perform(self) -> Result<()> {
        use super::ports::{start, told_to_end};
        use super::print;
        use super::progress::{ProgressOutput, running};
        use hairpin_lab::testbed::Trial;
        use hairpin_lab::testbed::ports::forward;
        use hairpin_lab::testbed::rings::device_cores;
        let settings = self.port.settings(self.longest, true)?;
        let eal = start(&[&self.port.port])?;
        let trial = Trial {
            device: self.device,
            table: self.table.clone(),
            cores: self.port.cores,
            table_entries: self.entries,
            backends: self.backends,
            ..Trial::default()
        };
        let cores = device_cores(&trial, self.seed, &eal)?;
        let mut progress = ProgressOutput::new(self.quiet);
        let stop = told_to_end()?;
        let handled = forward(&eal, &settings, cores, &stop, &mut |state| running(&mut progress, &state))?;
        drop(progress);
        match self.output {
            Output::Json => print(&format!("{}\n", serde_json::json!(handled))),
            Output::Table => {
                let mut text = format!("received   {} frames\nsent       {} frames\n", handled.received, handled.sent);
                for (reason, count) in &handled.dropped {
                    text += &format!("dropped    {count} {reason}\n");
                }
                print(&text)
            }
        }
    }

    /// Cannot.
    #[cfg(not(feature = "dpdk"))]
    pub(crate) fn perform(self) -> Result<()> {
        Err(super::ports::without())
    }
}

//! `hairpin-lab generate`: packets from a port, and what comes back.

use super::Output;
use super::ports::{PortArguments, ethernet_address};
use super::source::SourceArguments;
use anyhow::Result;
use clap::Args;
use std::time::Duration;

/// The packets to generate.
#[derive(Args, Debug)]
pub(crate) struct GenerateArguments {
    #[command(flatten)]
    port: PortArguments,
    #[command(flatten)]
    source: SourceArguments,
    /// Packets come back at this port, not at the one they are sent from.
    #[arg(long, value_name = "DEVICE", conflicts_with = "no_sink")]
    back: Option<String>,
    /// Do not examine what comes back: a sink of another process does.
    #[arg(long)]
    no_sink: bool,
    /// Destinations are backends when packets come back: each flow should go to one.
    #[arg(long)]
    balanced: bool,
    /// The Ethernet address of the link's other end.
    #[arg(long, value_name = "ADDRESS", default_value = "02:00:00:00:00:02", value_parser = ethernet_address)]
    destination: [u8; 6],
    /// How long to send.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = humantime::parse_duration)]
    duration: Duration,
    /// How long to wait for the last packets.
    #[arg(long, value_name = "DURATION", default_value = "500ms", value_parser = humantime::parse_duration)]
    linger: Duration,
    /// The seed of all random choices; a sink in another process needs the same.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Say nothing until the end.
    #[arg(short, long)]
    quiet: bool,
    /// The output format: a table, or JSON.
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    output: Output,
}

impl GenerateArguments {
    /// Sends, and reports what arrived.
    #[cfg(feature = "dpdk")]
    pub(crate) fn perform(self) -> Result<()> {
        use super::ports::{report, start, told_to_end};
        use super::print;
        use super::progress::{ProgressOutput, running};
        use hairpin_lab::testbed::ports::{GenerateOptions, PortSetup, ReturnPath, generate};
        use hairpin_lab::testbed::sources::longest;
        use hairpin_lab::testbed::{Device, Trial};
        let port = self.port.settings(longest(self.source.size), false)?;
        let back = match &self.back {
            Some(device) => ReturnPath::Port(PortSetup { device: device.clone(), ..port.clone() }),
            None if self.no_sink => ReturnPath::Elsewhere,
            None => ReturnPath::Same,
        };
        let devices: Vec<&str> = [Some(self.port.port.as_str()), self.back.as_deref()].into_iter().flatten().collect();
        let eal = start(&devices)?;
        let trial = Trial {
            device: if self.balanced { Device::Balancer } else { Device::Wire },
            cores: self.port.cores,
            flows: self.source.flows,
            packet_size: self.source.size,
            rate: self.source.rate,
            duration: self.duration,
            source: self.source.source(),
            seed: self.seed,
            ..Trial::default()
        };
        let options = GenerateOptions { trial, port, back, destination: self.destination, linger: self.linger };
        let mut progress = ProgressOutput::new(self.quiet);
        let stop = told_to_end()?;
        let measured = generate(&eal, &options, &stop, &mut |state| running(&mut progress, &state))?;
        drop(progress);
        match self.output {
            Output::Json => print(&format!("{}\n", serde_json::json!(measured))),
            Output::Table => print(&report(&measured)),
        }
    }

    /// Cannot.
    #[cfg(not(feature = "dpdk"))]
    pub(crate) fn perform(self) -> Result<()> {
        Err(super::ports::without())
    }
}

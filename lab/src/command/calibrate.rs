//! `hairpin-lab calibrate`: what the work of a worker's core costs on this machine.

use super::print;
use super::progress::ProgressOutput;
use anyhow::{Context, Result};
use clap::Args;
use hairpin_lab::calibrate::{Bench, Calibrated, CalibrationOptions, InMemory, calibrate};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The work to measure.
#[derive(Args, Debug)]
pub(crate) struct CalibrateArguments {
    /// The file for the profile; to the terminal, if not given.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// The profile's name; the file's, if there is one, else this-machine.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Connection tables; the default one is measured in any case.
    #[arg(long, value_name = "TABLE,...", value_delimiter = ',')]
    tables: Vec<String>,
    /// Numbers of known flows, rising.
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=1 << 26))]
    flows: Vec<u32>,
    /// How often everything is measured.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=99))]
    repetitions: Option<u32>,
    /// How long each measurement takes, at each of three rates.
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    duration: Option<Duration>,
    /// A quick run: the default table, three numbers of flows, once.
    #[arg(long)]
    quick: bool,
    /// Between frames in memory, without rings: what there is in a build without DPDK.
    #[arg(long)]
    memory: bool,
    /// Say nothing until the end.
    #[arg(short, long)]
    quiet: bool,
}

impl CalibrateArguments {
    /// Measures, and writes the profile.
    pub(crate) fn perform(self) -> Result<()> {
        let options = self.options();
        let mut progress = ProgressOutput::new(self.quiet);
        let mut bench = bench(self.memory, options.duration)?;
        let done = calibrate(&options, &mut *bench, &mut |what| progress.state(|| what.to_owned()))?;
        drop(progress);
        self.write(&done)
    }

    fn options(&self) -> CalibrationOptions {
        let mut options = if self.quick { CalibrationOptions::quick() } else { CalibrationOptions::default() };
        if !cfg!(feature = "dpdk") {
            options.tables.retain(|table| !table.starts_with("rte-hash"));
        }
        if !self.tables.is_empty() {
            options.tables = self.tables.clone();
        }
        if !self.flows.is_empty() {
            options.flows = self.flows.clone();
        }
        options.repetitions = self.repetitions.map_or(options.repetitions, |repetitions| repetitions as usize);
        options.duration = self.duration.unwrap_or(options.duration);
        let stem = self.output.as_deref().and_then(Path::file_stem).and_then(|stem| stem.to_str());
        if let Some(name) = self.name.as_deref().or(stem) {
            options.name = name.to_owned();
        }
        options
    }

    fn write(&self, done: &Calibrated) -> Result<()> {
        let Some(file) = &self.output else { return print(&done.text()) };
        std::fs::write(file, done.text()).with_context(|| format!("could not write {}", file.display()))
    }
}

/// Rings, unless memory is asked for or DPDK is not built in.
fn bench(in_memory: bool, duration: Duration) -> Result<Box<dyn Bench>> {
    #[cfg(feature = "dpdk")]
    if !in_memory {
        let eal = hairpin_dpdk::Eal::start(hairpin_dpdk::EalOptions::default()).context("could not start DPDK")?;
        return Ok(Box::new(hairpin_lab::calibrate::rings::OverRings::new(eal, duration)));
    }
    let _ = (in_memory, duration);
    Ok(Box::new(InMemory))
}

//! `hairpin-bench calibrate`: whether the testbed in virtual time tells what the one of real packets does: `make
//! bench-calibrate`.
//!
//! In each repetition the machine's costs are measured as `hairpin-lab calibrate` does it, and real packets over rings at
//! other points (`hairpin_lab::calibrate::check`), each right after the costs that are nearest to it; at the end the very
//! same runs are simulated, each with the costs of its own repetition (a virtual machine is another one minutes later), and
//! that whose ratio is in the middle counts. What is compared is packets for each second that the device's core is busy,
//! which holds on a machine that others use, too, and however slow the generator is; what came through by the wall clock
//! stands beside.
//!
//! Beside that, two real cores stand beside two modelled ones ([`hairpin_lab::calibrate::pairs`]).

use anyhow::Result;
use std::path::PathBuf;

/// The arguments of the calibration.
#[derive(Debug, clap::Args)]
pub struct CalibrateArgs {
    /// A quick run: few points, once.
    #[arg(long)]
    quick: bool,
    /// Measurements of everything; 5, or 1 in a quick run.
    #[arg(long)]
    repetitions: Option<usize>,
    /// Only these runs: those whose name contains one of the words.
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    only: Vec<String>,
    /// Only what two cores do to each other: locks, tables, the splice.
    #[arg(long, conflicts_with = "profile")]
    pairs: bool,
    /// Check this profile instead of one that is measured.
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
    /// The directory for `calibrate.json` and the profile, `this-machine.toml`.
    #[arg(long, default_value = "target/bench")]
    directory: PathBuf,
}

/// Measures, simulates and compares.
///
/// # Errors
/// When something could not be measured or simulated; a missed bar is no failure.
#[cfg(feature = "dpdk")]
pub fn run(arguments: &CalibrateArgs) -> Result<()> {
    comparison::run(arguments)
}

/// Cannot.
///
/// # Errors
/// Always.
#[cfg(not(feature = "dpdk"))]
pub fn run(arguments: &CalibrateArgs) -> Result<()> {
    anyhow::bail!("{arguments:?}: this program was built without DPDK: make bench-calibrate")
}

#[cfg(feature = "dpdk")]
mod comparison;
#[cfg(feature = "dpdk")]
mod pairs;

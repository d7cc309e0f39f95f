//! In a build for tests (cargo feature `fake-flow`): a device without packets that answers for the rules of DPDK's ports.

use anyhow::{Result, anyhow};
use hairpin_dpdk::Port;
use hairpin_dpdk::flow::fake;

/// The variable that says what the device does wrong; without it the ports' own drivers answer.
const VARIABLE: &str = "HAIRPIN_FAKE_FLOW";

/// Lets it answer for a port, if that is wanted.
///
/// # Errors
/// The variable says something that means nothing.
pub(crate) fn stand_in(port: &Port) -> Result<()> {
    match std::env::var(VARIABLE) {
        Ok(faults) => fake::stand_in(port, &faults).map_err(|why| anyhow!("{VARIABLE}: {why}")),
        Err(_) => Ok(()),
    }
}

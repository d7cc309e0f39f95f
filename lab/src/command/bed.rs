//! The testbed of this process.

use hairpin_lab::testbed::Testbed;

/// Rings of DPDK in this process.
///
/// # Errors
/// When DPDK does not start, or this program was built without it.
#[cfg(feature = "dpdk")]
pub(super) fn start() -> anyhow::Result<Box<dyn Testbed>> {
    use anyhow::Context;
    let eal = hairpin_dpdk::Eal::start(hairpin_dpdk::EalOptions::default()).context("could not start DPDK")?;
    Ok(Box::new(hairpin_lab::testbed::rings::RingTestbed::new(eal)))
}

/// There is none.
///
/// # Errors
/// Always.
#[cfg(not(feature = "dpdk"))]
pub(super) fn start() -> anyhow::Result<Box<dyn Testbed>> {
    anyhow::bail!("this program was built without DPDK, which the testbed stands on: build it with --features dpdk")
}

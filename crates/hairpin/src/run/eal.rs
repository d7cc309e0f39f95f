//! DPDK, started once in a process, by its first user: the dpdk plane, or a table of its own.

use anyhow::{Context, Result};
use hairpin_dpdk::{Eal, EalOptions};
use std::sync::{Mutex, PoisonError};

/// Workers may be made twice (after a hand-over that failed).
static EAL: Mutex<Option<Eal>> = Mutex::new(None);

/// DPDK; `options` are those of the first caller.
///
/// # Errors
/// It does not start.
pub(crate) fn started(options: EalOptions) -> Result<Eal> {
    let mut started = EAL.lock().unwrap_or_else(PoisonError::into_inner);
    match *started {
        Some(eal) => Ok(eal),
        None => Ok(*started.insert(Eal::start(options).context("cannot start DPDK")?)),
    }
}

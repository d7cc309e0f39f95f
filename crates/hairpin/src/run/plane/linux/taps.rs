//! The workers' devices.

use super::super::super::begin::tap_names;
use crate::config::Settings;
use anyhow::{Context, Result};
use hairpin_linux::tap::Tap;
use std::os::fd::OwnedFd;

/// A device for each worker: passed on, left, or new.
pub(super) fn taps(settings: &Settings, workers: u16, mut passed: Vec<(String, OwnedFd)>) -> Result<Vec<Tap>> {
    let mut taps = Vec::new();
    for name in tap_names(settings, workers.into()) {
        let tap = match passed.iter().position(|(passed, _)| *passed == name) {
            Some(at) => Tap::adopt(passed.swap_remove(at).1, &name),
            None => Tap::create(&name, settings.linux.tap_queue),
        };
        taps.push(tap.with_context(|| format!("cannot make the device {name}"))?);
    }
    Ok(taps)
}

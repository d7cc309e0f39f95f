//! A device under test in a process of its own.

use super::super::TrialProgress;
use super::super::cores::pin;
use super::super::device::{DeviceCore, Handled, ServingCore};
use super::PortSetup;
use crate::forward::Forwarder;
use anyhow::{Context, Result, anyhow, ensure};
use hairpin_dpdk::{Eal, PortIo};
use std::sync::atomic::AtomicBool;

/// Serves a port until told to stop: what comes in goes through `cores`, one for each queue, and back out of it.
///
/// # Errors
/// A port that cannot be opened, frames that are not accounted for, or that are missing from the pool.
pub fn forward(
    eal: &Eal,
    settings: &PortSetup,
    cores: Vec<DeviceCore>,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(TrialProgress),
) -> Result<Handled> {
    ensure!(cores.len() == settings.cpus.len(), "{} cores for {} queues", cores.len(), settings.cpus.len());
    let opened = settings.open(eal, stop)?;
    let io = |number: u16| {
        let queue =
            opened.port.queue(number).with_context(|| format!("{} has no queue {number}", opened.port.name()))?;
        Ok(PortIo::new(vec![queue], opened.pool.clone()))
    };
    let io = |(number, core): (u16, &DeviceCore)| match core {
        DeviceCore::Forwarder(_) => Ok(io(number)?.in_bursts_of(Forwarder::BURST)),
        _ => io(number),
    };
    let queues: Vec<PortIo> = (0..).zip(&cores).map(io).collect::<Result<_>>()?;
    opened.wait(stop)?;
    progress(TrialProgress::Started { device: Vec::new() });
    let handled = std::thread::scope(|scope| {
        let running: Vec<_> = cores
            .into_iter()
            .zip(queues)
            .zip(&settings.cpus)
            .map(|((core, io), &cpu)| {
                scope.spawn(move || -> Result<Handled> {
                    pin(cpu)?;
                    let _registered = eal.register_thread()?;
                    let mut serving = ServingCore::returning(core, io);
                    serving.serve(stop);
                    Ok(serving.handled())
                })
            })
            .collect();
        let joined = running.into_iter().map(|thread| thread.join().map_err(|_| anyhow!("a thread has panicked"))?);
        joined.collect::<Result<Vec<Handled>>>()
    })?;
    let mut all = Handled::default();
    handled.into_iter().for_each(|one| all.add(one));
    let unexplained = all.unexplained();
    ensure!(unexplained == 0, "{unexplained} of {} frames are unaccounted for", all.received);
    opened.close()?;
    Ok(all)
}

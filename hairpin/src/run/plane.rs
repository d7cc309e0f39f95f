//! The linux plane as the process uses it: programs and maps made from the configuration, and read for the status.

use super::instance::Record;
use super::turn::Ticket;
use crate::config::{Attach, Settings, WhenAbsent};
use anyhow::{Context, Result};
use hairpin_core::config::Snapshot;
use hairpin_core::flow::Steering;
use hairpin_core::l4::connection::Volume;
use hairpin_core::time::Time;
use hairpin_core::worker::Known;
use hairpin_linux::abi;
use hairpin_linux::control::Control;
use hairpin_linux::cpu;
use hairpin_linux::device::Interface;
use hairpin_linux::engine::KernelEngine;
use hairpin_linux::programs::{self, AttachMode, Options};
use std::sync::Arc;

/// Programs and maps of this instance.
#[derive(Debug)]
pub(crate) struct Plane {
    programs: programs::Plane,
    control: Arc<Control>,
    /// Slots of the totals in use: two for each backend.
    totals: u32,
}

impl Plane {
    /// Loads and pins everything and describes the configuration to it. Nothing is attached yet.
    pub(crate) fn load(settings: &Settings, snapshot: &Snapshot, steering: Steering) -> Result<Plane> {
        let linux = &settings.linux;
        // Rules take memory from the start: none, as good as, for a family that no service is of.
        let rules_max = |ipv4: bool| {
            let used = snapshot.services.iter().any(|service| service.endpoint.address.is_ipv4() == ipv4);
            if used { settings.rules_max } else { 1 }
        };
        let options = Options {
            instance: settings.instance.clone(),
            pin_directory: linux.pin_directory.clone(),
            rules_v4_max: rules_max(true),
            rules_v6_max: rules_max(false),
            attach: match linux.attach {
                Attach::Auto => AttachMode::Auto,
                Attach::Clsact => AttachMode::Clsact,
            },
            absent_drop: linux.when_absent == WhenAbsent::Drop,
            heartbeat_timeout: linux.heartbeat_timeout,
            policer_backend_pps: linux.policer_backend,
            handover_bound: linux.handover_bound,
            ..Options::default()
        };
        let mut programs = programs::Plane::load(&options, steering)?;
        programs.configure(snapshot)?;
        let control = programs.control();
        Ok(Plane { programs, control, totals: snapshot.backends() * 2 })
    }

    /// Puts the worker program on a worker's device.
    pub(crate) fn attach_worker(&mut self, worker: usize, device: &Interface) -> Result<()> {
        let attached = self.programs.attach_worker(worker as u32, device.index);
        attached.with_context(|| format!("cannot attach to the worker device {}", device.name))
    }

    /// Puts the ingress program on an interface.
    pub(crate) fn attach(&mut self, slot: usize, interface: &Interface) -> Result<()> {
        let attached = self.programs.attach(slot as u32, interface.index, interface.mac);
        attached.with_context(|| format!("cannot attach to interface {}", interface.name))
    }

    /// Tells the programs that the process is alive.
    pub(crate) fn beat(&self) {
        self.control.beat(cpu::now());
    }

    /// The same, for a worker's thread: what serves while this one waits for its turn on a busy machine.
    pub(crate) fn beater(&self) -> impl Fn(Time) + Send + 'static {
        let control = Arc::clone(&self.control);
        move |now| control.beat(now)
    }

    /// The flow engine of a worker; each can be had once.
    pub(crate) fn engine(&self, worker: usize) -> Result<KernelEngine> {
        let number = u8::try_from(worker).context("too many workers")?;
        self.programs.engine(number).with_context(|| format!("worker {worker} has no flow engine"))
    }

    /// Where workers note which connections there are.
    pub(crate) fn known(&self) -> Known {
        Known::new(self.control.known())
    }

    /// Tells the programs which packets of a worker's are finished with.
    pub(crate) fn publisher(&self, worker: usize) -> impl Fn(Ticket) + Send + 'static {
        let control = Arc::clone(&self.control);
        move |ticket| control.publish(worker, ticket.cpu, ticket.number)
    }

    /// Sets how many packets of no known connection a service admits, per second and CPU.
    pub(crate) fn set_policer_rate(&self, service: usize, packets_per_s: u32) {
        self.control.set_client_rate(service, packets_per_s);
    }

    /// What rules have carried, by slot: a backend's number times two, plus direction.
    pub(crate) fn totals(&self) -> Result<Vec<Volume>> {
        let totals = self.programs.totals(self.totals)?;
        Ok(totals.iter().map(|total| Volume { packets: total.packets, bytes: total.bytes }).collect())
    }

    /// What became of packets that no rule carried: name, how many, whether they were dropped.
    pub(crate) fn events(&self) -> Result<Vec<(&'static str, u64, bool)>> {
        let events = self.programs.events()?;
        Ok(abi::EVENTS.iter().zip(events).map(|((name, dropped), count)| (*name, count, *dropped)).collect())
    }
}

/// Detaches and unpins everything an instance has left.
pub(crate) fn flush(record: &Record) -> Result<()> {
    programs::flush(&record.pin_directory, &record.instance)?;
    // Goes only if it is empty: other instances may have their pins in it.
    let _ = std::fs::remove_dir(&record.pin_directory);
    Ok(())
}

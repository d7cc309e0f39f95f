//! The linux plane as the process uses it: programs and maps made from the configuration, and read for the status.

use super::instance::Record;
use super::turn::Ticket;
use crate::config::{Attach, Settings, WhenAbsent};
use anyhow::{Context, Result};
use hairpin_core::config::{ServiceState, Snapshot};
use hairpin_core::flow::{FlowKey, Steering};
use hairpin_core::l4::connection::Volume;
use hairpin_core::l7::cookie::Cookies;
use hairpin_core::time::Time;
use hairpin_core::worker::Known;
use hairpin_linux::abi;
use hairpin_linux::control::Control;
use hairpin_linux::cpu;
use hairpin_linux::device::Interface;
use hairpin_linux::engine::KernelEngine;
use hairpin_linux::programs::{self, AttachMode, Options, RuleReader};
use std::collections::HashSet;
use std::sync::Arc;

/// Programs and maps of this instance.
#[derive(Debug)]
pub(crate) struct Plane {
    programs: programs::Plane,
    control: Arc<Control>,
    /// Slots of the totals in use: two for each backend.
    totals: u32,
    base: Base,
}

/// What there is to adopt.
pub(crate) enum Adoption {
    /// What an earlier process has left.
    Plane(Box<Plane>),
    /// Nothing.
    Absent,
    /// Something of another form; why.
    Incompatible(String),
}

impl Plane {
    /// Loads and pins everything. Nothing is attached yet.
    pub(crate) fn load(settings: &Settings, snapshot: &Snapshot, steering: Steering) -> Result<Plane> {
        // Rules take memory from the start, but for a family that no service is of, as long as that is so.
        let services = || snapshot.services.iter().filter(|service| service.state != ServiceState::Vacant);
        let unused = |ipv4: bool| !services().any(|service| service.endpoint.address.is_ipv4() == ipv4);
        let (rules_v4_sparse, rules_v6_sparse) = (unused(true), unused(false));
        let options = Options { rules_v4_sparse, rules_v6_sparse, ..options(settings) };
        Ok(Plane::of(programs::Plane::load(&options, steering)?))
    }

    /// Opens what an earlier process has left. Traffic goes on as before until programs are attached.
    pub(crate) fn adopt(settings: &Settings, steering: Steering) -> Result<Adoption> {
        Ok(match programs::Plane::adopt(&options(settings), steering)? {
            programs::Adopted::Plane(plane) => Adoption::Plane(Box::new(Plane::of(*plane))),
            programs::Adopted::Absent => Adoption::Absent,
            programs::Adopted::Incompatible(why) => Adoption::Incompatible(why),
        })
    }

    fn of(programs: programs::Plane) -> Plane {
        let control = programs.control();
        Plane { programs, control, totals: 0, base: Base::default() }
    }

    /// Tells the programs what they balance, now or anew.
    pub(crate) fn configure(&mut self, snapshot: &Snapshot) -> Result<()> {
        self.totals = snapshot.backends() * 2;
        self.programs.configure(snapshot)
    }

    /// Changes what may change while the programs run.
    pub(crate) fn set_options(&self, settings: &Settings) {
        self.programs.set_options(&options(settings));
    }

    /// Rules there can be: IPv4, IPv6.
    pub(crate) fn rules_max(&self) -> [u32; 2] {
        let (v4, v6) = self.programs.rules_max();
        [v4, v6]
    }

    /// Flows of all rules in force.
    pub(crate) fn rules(&self) -> Result<HashSet<FlowKey>> {
        Ok(self.programs.rules()?.into_iter().map(|rule| rule.key).collect())
    }

    /// Takes rules away; how many there were.
    pub(crate) fn remove_rules(&self, keys: &[FlowKey]) -> Result<u64> {
        self.programs.remove_rules(keys)
    }

    /// Tells rules their workers.
    pub(crate) fn assign_rules(&self, owners: &[(FlowKey, u8)]) -> Result<()> {
        self.programs.assign_rules(owners).map(drop)
    }

    /// What the programs keep for the workers of a process, as it is before any worker has begun.
    pub(crate) fn forget(&self) {
        self.control.forget_known();
    }

    /// From now on packets go to the workers of `steering`.
    pub(crate) fn steer(&mut self, steering: Steering) -> Result<()> {
        self.programs.steer(steering)
    }

    /// Detaches programs from all but these devices.
    pub(crate) fn detach_others(&mut self, devices: &[u32]) -> Result<()> {
        self.programs.detach_others(devices)
    }

    /// Lets counters begin at zero as seen from here.
    pub(crate) fn begin_counting(&mut self) -> Result<()> {
        self.base = Base::default();
        self.base = Base { totals: self.totals()?, events: self.programs.events()?.to_vec() };
        Ok(())
    }

    /// Lets counters of backends that are new under their numbers begin at zero.
    pub(crate) fn begin_backends(&mut self, numbers: &[u16]) -> Result<()> {
        let slots: Vec<u32> =
            numbers.iter().flat_map(|&number| [0, 1].map(|way| u32::from(number) * 2 + way)).collect();
        for &slot in &slots {
            if let Some(base) = self.base.totals.get_mut(slot as usize) {
                *base = Volume::default();
            }
        }
        self.programs.clear_totals(&slots)
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

    /// What SYN cookies are made with now.
    pub(crate) fn cookies(&self) -> Cookies {
        Cookies::new(self.control.cookie_keys())
    }

    /// Draws the next secret of SYN cookies if it is time.
    pub(crate) fn renew_cookies(&self) -> Result<()> {
        self.control.renew_cookie_key(cpu::now()).context("cannot draw a secret for SYN cookies").map(drop)
    }

    /// Tells the programs which packets of a worker's are finished with.
    pub(crate) fn publisher(&self, worker: usize) -> impl Fn(Ticket) + Send + 'static {
        let control = Arc::clone(&self.control);
        move |ticket| control.publish(worker, ticket.cpu, ticket.number)
    }

    /// Lets a service admit every packet.
    pub(crate) fn unlimit(&self, service: usize) {
        self.control.set_client_rate(service, UNLIMITED);
    }

    /// Sets how many packets of no known connection a service admits, per second and CPU.
    pub(crate) fn set_policer_rate(&self, service: usize, packets_per_s: u32) {
        self.control.set_client_rate(service, packets_per_s);
    }

    /// What rules have carried since counting began, by slot: a backend's number times two, plus direction.
    pub(crate) fn totals(&self) -> Result<Vec<Volume>> {
        let totals = self.programs.totals(self.totals)?;
        let base = self.base.totals.iter().copied().chain(std::iter::repeat(Volume::default()));
        let since = totals.iter().zip(base).map(|(total, base)| Volume {
            packets: total.packets.saturating_sub(base.packets),
            bytes: total.bytes.saturating_sub(base.bytes),
        });
        Ok(since.collect())
    }

    /// What became of packets that no rule carried, since counting began: name, how many, whether they were dropped.
    pub(crate) fn events(&self) -> Result<Vec<(&'static str, u64, bool)>> {
        let events = self.programs.events()?;
        let base = self.base.events.iter().copied().chain(std::iter::repeat(0));
        let named = abi::EVENTS.iter().zip(events).zip(base);
        Ok(named.map(|(((name, dropped), count), base)| (*name, count.saturating_sub(base), *dropped)).collect())
    }

    /// Something with which other threads can look at rules.
    pub(crate) fn rule_reader(&self) -> RuleReader {
        self.programs.rule_reader()
    }
}

/// What an earlier process had counted.
#[derive(Debug, Default)]
struct Base {
    totals: Vec<Volume>,
    events: Vec<u64>,
}

/// A policer's rate that holds nothing back.
const UNLIMITED: u32 = u32::MAX;

fn options(settings: &Settings) -> Options {
    let linux = &settings.linux;
    // Nobody can tell packets of connections from others if connections are not tracked.
    let is_policed = settings.connection_table.tracks_connections();
    Options {
        instance: settings.instance.clone(),
        pin_directory: linux.pin_directory.clone(),
        rules_v4_max: settings.rules_max,
        rules_v6_max: settings.rules_max,
        attach: match linux.attach {
            Attach::Auto => AttachMode::Auto,
            Attach::Clsact => AttachMode::Clsact,
        },
        absent_drop: linux.when_absent == WhenAbsent::Drop,
        heartbeat_timeout: linux.heartbeat_timeout,
        policer_backend_pps: if is_policed { linux.policer_backend } else { UNLIMITED },
        handover_bound: linux.handover_bound,
        ..Options::default()
    }
}

/// Detaches and unpins everything an instance has left.
pub(crate) fn flush(record: &Record) -> Result<()> {
    programs::flush(&record.pin_directory, &record.instance)?;
    // Goes only if it is empty: other instances may have their pins in it.
    let _ = std::fs::remove_dir(&record.pin_directory);
    Ok(())
}

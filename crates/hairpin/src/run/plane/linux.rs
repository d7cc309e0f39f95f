//! The linux plane as the process uses it: programs and maps made from the configuration, and read for the status.

mod attachment;
mod instance;
mod options;
mod remains;
mod taps;

pub(crate) use instance::{Adoption, InstancePrograms};
pub(crate) use remains::{adopt, flush};

use super::super::tap::TapDevice;
use super::super::worker_pool::{TakenOver, WorkerMemory, WorkerParameters, WorkerPool, WorkerResources};
use super::super::{SupervisorMessage, log, tell};
use super::{EngineWords, Plane, PlaneEvent, RuleQueries};
use crate::config::{Attach, SetUpChoice, Settings};
use crate::events::EventKind;
use crate::monitor::MonitorPlace;
use anyhow::{Context, Result};
use attachment::XdpWish;
use hairpin_core::config::Snapshot;
use hairpin_core::engine::{Report, ScheduleKind};
use hairpin_core::flow::{FlowKey, Steering};
use hairpin_core::keys::Secret;
use hairpin_core::l4::connection::Volume;
use hairpin_core::l7::cookie::Cookies;
use hairpin_core::time::Time;
use hairpin_linux::device::Interface;
use hairpin_linux::network::path_mtu::PathMtu;
use hairpin_linux::programs::{AttachMode, InstalledRule};
use hairpin_linux::tap::Tap;
use rustix::thread::CapabilitySet;
use std::collections::HashSet;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;
use taps::taps;

/// The linux plane: programs, and the devices they are attached to.
#[derive(Debug)]
pub(crate) struct LinuxPlane {
    programs: InstancePrograms,
    interfaces: Vec<Interface>,
    /// The workers' devices, until the workers have them.
    taps: Vec<Tap>,
    /// The devices in use: interfaces, then the workers'.
    devices: Vec<u32>,
    /// Copies of the workers' devices, to pass on.
    descriptors: Vec<OwnedFd>,
    /// From one wake of a worker under load to the next, at least.
    coalesce: Duration,
    xdp: XdpWish,
    /// Why the programs are not in XDP although they might be; empty if they are, or are not to be.
    not_in_xdp: String,
    path_mtu: PathMtu,
    /// What the log has been told last about a configuration that is not followed in all.
    warnings: Vec<String>,
}

/// The state handed over by a living process, and everything prepared before that.
#[derive(Default)]
pub(crate) struct Passed {
    /// The workers' devices.
    pub(crate) taps: Vec<(String, OwnedFd)>,
    /// Its programs and maps, opened.
    pub(crate) programs: Option<InstancePrograms>,
}

impl LinuxPlane {
    /// Makes or takes over devices and programs. `had_table`: connections were taken over.
    pub(crate) fn make(
        settings: &Settings,
        interfaces: Vec<Interface>,
        snapshot: &Snapshot,
        (steering, had_table): (Steering, bool),
        passed: Passed,
    ) -> Result<LinuxPlane> {
        // Devices before programs: frames wait in them from now on.
        let taps = taps(settings, steering.workers, passed.taps)?;
        let adopted = match passed.programs {
            Some(programs) => Some(programs),
            // Rules without the connections they belong to are of no use.
            None if had_table => adopt(settings, steering)?,
            None => None,
        };
        let mut programs = match adopted {
            Some(programs) => programs,
            None => InstancePrograms::load(settings, snapshot, steering)?,
        };
        if settings.set_up == SetUpChoice::Engine && !programs.programs.allow_set_up(steering.workers)? {
            log(
                "warning: workers set connections up, although `set_up` is \"engine\": the BPF maps that an earlier process \
                 has left have no room for that. A start after `hairpin stop --flush` makes them anew",
            );
        }
        if !programs.outlive_process() {
            log(&format!(
                "warning: {} is mounted for this process alone (`ip netns exec` gives a process its own mounts): at its \
                 end the programs and rules go too, offloaded connections break, and the host's kernel refuses clients. \
                 Mount one for all before the start (mount -t bpf bpf /sys/fs/bpf), and enter a network namespace by \
                 nsenter --net=FILE",
                programs.pin_directory().display()
            ));
        }
        let mut devices: Vec<u32> = interfaces.iter().map(|interface| interface.index).collect();
        for tap in &taps {
            devices.push(Interface::by_name(tap.name())?.index);
        }
        let copy = |tap: &Tap| tap.as_fd().try_clone_to_owned().context("cannot copy a descriptor");
        let descriptors = taps.iter().map(copy).collect::<Result<Vec<OwnedFd>>>()?;
        let coalesce = settings.linux.coalesce;
        let (xdp, not_in_xdp) = (XdpWish::of(settings, &interfaces, snapshot), String::new());
        Ok(LinuxPlane {
            programs,
            interfaces,
            taps,
            devices,
            descriptors,
            coalesce,
            xdp,
            not_in_xdp,
            path_mtu: PathMtu::default(),
            warnings: Vec::new(),
        })
    }
}

impl Plane for LinuxPlane {
    fn engine(&self) -> &'static str {
        "kernel"
    }

    fn engine_words(&self) -> EngineWords {
        let mut detail = self.programs.attachment();
        if !self.not_in_xdp.is_empty() {
            detail += &format!("; not in XDP: {}", self.not_in_xdp);
        }
        EngineWords { detail, ..EngineWords::default() }
    }

    fn rights(&self) -> CapabilitySet {
        // A reload may bring a terminated service of port 443, or the first one whose packets get outer headers, for which raw
        // sockets are opened.
        CapabilitySet::BPF
            | CapabilitySet::NET_ADMIN
            | CapabilitySet::NET_BIND_SERVICE
            | CapabilitySet::NET_RAW
            | CapabilitySet::PERFMON
    }

    fn monitor_place(&self, settings: &Settings) -> Option<MonitorPlace> {
        let mode = if settings.linux.attach == Attach::Clsact { AttachMode::Clsact } else { AttachMode::Auto };
        Some(MonitorPlace { mode, notes: self.programs.programs.monitors_path() })
    }

    fn configure_backends(&self, snapshot: &Snapshot) -> Result<()> {
        self.programs.programs.configure_backends(snapshot)
    }

    fn configure(&mut self, snapshot: &Snapshot) -> Result<()> {
        self.programs.configure(snapshot)?;
        let lacking = |what: String| {
            format!(
                "{what}: the BPF maps were made for another configuration. Connections beyond that stay with the workers. A \
                 start after `hairpin stop --flush` makes the maps anew"
            )
        };
        let mut warnings: Vec<String> = match self.programs.lacking(snapshot) {
            Ok(all) => all.into_iter().map(lacking).collect(),
            Err(error) => vec![format!("the room in the BPF maps is not known: {error:#}")],
        };
        // Traffic does not need what only health checks do.
        if let Err(error) = self.programs.configure_checks(snapshot) {
            warnings.push(format!("health checks of services with direct server return may fail: {error:#}"));
        }
        if let Err(error) = self.path_mtu.follow(snapshot) {
            warnings.push(format!(
                "Hairpin does not learn the MTUs of routers on the way to backends with an `encapsulation`: a raw socket \
                 cannot be opened ({error}). Give the process CAP_NET_RAW, or the routes to these backends an MTU (ip \
                 route change ... mtu lock 1400)"
            ));
        }
        warnings.iter().filter(|told| !self.warnings.contains(told)).for_each(|told| log(&format!("warning: {told}")));
        self.warnings = warnings;
        Ok(())
    }

    fn has_set_up(&self) -> bool {
        self.programs.programs.has_set_up()
    }

    fn unread_reports(&self) -> Result<Vec<Report>> {
        self.programs.programs.unread_reports()
    }

    fn suspend_set_up(&self) {
        self.programs.programs.suspend_set_up();
    }

    fn schedule(&self, schedules: &[(ScheduleKind, Vec<u16>)]) {
        if let Err(error) = self.programs.programs.schedule(schedules) {
            self.programs.programs.suspend_set_up();
            log(&format!("warning: workers set connections up until the next change: {error:#}"));
        }
    }

    fn set_up_begun(&self, schedule: u16) -> (u32, u32) {
        self.programs.programs.set_up_begun(schedule)
    }

    fn set_options(&self, settings: &Settings) {
        self.programs.set_options(settings);
    }

    fn prepare(&mut self) -> Result<()> {
        // Until the workers have counted them again, packets of known connections are to go to the workers' devices, not
        // to be taken for those of hosts that talk to a backend directly.
        // Workers know the backends that they choose, and an earlier process's schedules may name others.
        self.programs.programs.suspend_set_up();
        self.programs.heartbeat();
        self.programs.forget();
        self.programs.begin_counting()
    }

    fn worker_pool(
        &mut self,
        parameters: &WorkerParameters,
        memory: WorkerMemory,
        messages: &Sender<SupervisorMessage>,
    ) -> Result<(WorkerPool, TakenOver)> {
        let (mut resources, coalesce) = (Vec::new(), self.coalesce);
        for (worker, tap) in std::mem::take(&mut self.taps).into_iter().enumerate() {
            self.programs.attach_worker(worker, &Interface::by_name(tap.name())?)?;
            resources.push(WorkerResources {
                open: move || TapDevice::new(tap, coalesce),
                engine: self.programs.engine(worker)?,
                publish: self.programs.publisher(worker),
                heartbeat: self.programs.heartbeat_sender(),
                marks: false,
            });
        }
        self.renew_cookies(parameters.snapshot.keys.first())?;
        WorkerPool::make(parameters, memory, resources, (self.programs.known(), self.programs.cookies()), messages)
    }

    fn steer(&mut self, steering: Steering) -> Result<()> {
        self.programs.steer(steering)
    }

    fn open(&mut self) -> Result<()> {
        for (slot, interface) in self.interfaces.iter().enumerate() {
            self.programs.attach(slot, interface)?;
            if !interface.up {
                tell(EventKind::Link, &format!("warning: interface {} is down", interface.name));
            }
        }
        self.not_in_xdp = self.xdp.fulfil(&mut self.programs, &self.interfaces)?;
        self.programs.detach_others(&self.devices)
    }

    fn descriptors(&self) -> Option<&[OwnedFd]> {
        Some(&self.descriptors)
    }

    fn resume(&mut self, devices: &[String]) -> Result<()> {
        let taps = devices.iter().zip(&self.descriptors).map(|(name, descriptor)| {
            let copy = descriptor.try_clone().context("cannot copy a descriptor")?;
            Tap::adopt(copy, name).with_context(|| format!("cannot use the device {name}"))
        });
        self.taps = taps.collect::<Result<Vec<Tap>>>()?;
        self.programs.forget();
        Ok(())
    }

    fn rules_max(&self) -> [u32; 2] {
        self.programs.rules_max()
    }

    fn rules(&self) -> Result<HashSet<FlowKey>> {
        Ok(self.programs.rules()?.into_iter().map(|rule| rule.key).collect())
    }

    fn installed_rules(&self) -> Result<Vec<InstalledRule>> {
        self.programs.rules()
    }

    fn remove_rules(&self, keys: &[FlowKey]) -> Result<u64> {
        self.programs.remove_rules(keys)
    }

    fn assign_rules(&self, owners: &[(FlowKey, u8)]) -> Result<()> {
        self.programs.assign_rules(owners)
    }

    fn rule_reader(&self) -> Option<Arc<dyn RuleQueries>> {
        Some(Arc::new(self.programs.rule_reader()))
    }

    fn begin_backends(&mut self, numbers: &[u16]) -> Result<()> {
        self.programs.begin_backends(numbers)
    }

    fn begin_services(&mut self, numbers: &[u16]) -> Result<()> {
        self.programs.begin_services(numbers)
    }

    fn heartbeat(&self) {
        self.programs.heartbeat();
    }

    fn heartbeat_sender(&self) -> Box<dyn Fn(Time) + Send> {
        Box::new(self.programs.heartbeat_sender())
    }

    fn cookies(&self) -> Cookies {
        self.programs.cookies()
    }

    fn renew_cookies(&self, shared: Option<Secret>) -> Result<()> {
        self.programs.renew_cookies(shared)
    }

    fn unlimit(&self, service: usize) {
        self.programs.unlimit(service);
    }

    fn set_policer_rate(&self, service: usize, packets_per_s: u32) {
        self.programs.set_policer_rate(service, packets_per_s);
    }

    fn totals(&self) -> Result<Vec<Volume>> {
        self.programs.totals()
    }

    fn access_counts(&self) -> Result<Vec<u64>> {
        self.programs.access_counts()
    }

    fn events(&self) -> Result<Vec<PlaneEvent>> {
        self.programs.events()
    }
}

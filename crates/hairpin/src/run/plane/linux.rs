//! The linux plane as the process uses it: programs and maps made from the configuration, and read for the status.

mod attachment;
mod options;
mod remains;
mod taps;

pub(crate) use remains::{adopt, flush};

use super::super::tap::TapDevice;
use super::super::worker_pool::{TakenOver, WorkerMemory, WorkerParameters, WorkerPool, WorkerResources};
use super::super::{SupervisorMessage, log};
use super::{EngineWords, Plane, PlaneEvent, RuleQueries};
use crate::config::{SetUpChoice, Settings};
use anyhow::{Context, Result};
use attachment::XdpWish;
use hairpin_core::config::{ServiceState, Snapshot};
use hairpin_core::engine::{Report, ScheduleKind};
use hairpin_core::event_loop::Ticket;
use hairpin_core::flow::{FlowKey, Steering};
use hairpin_core::keys::Secret;
use hairpin_core::l4::connection::Volume;
use hairpin_core::l7::cookie::Cookies;
use hairpin_core::time::Time;
use hairpin_core::worker::Known;
use hairpin_linux::abi;
use hairpin_linux::control::Control;
use hairpin_linux::cpu;
use hairpin_linux::device::Interface;
use hairpin_linux::network::path_mtu::PathMtu;
use hairpin_linux::programs::{self, InstalledRule, ProgramOptions, RuleReader};
use hairpin_linux::tap::Tap;
use options::{UNLIMITED, options, set_up_room};
use rustix::thread::CapabilitySet;
use std::collections::HashSet;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;
use taps::taps;

/// Programs and maps of this instance.
#[derive(Debug)]
pub(crate) struct InstancePrograms {
    programs: programs::LoadedPlane,
    control: Arc<Control>,
    /// Slots of the totals in use: two for each backend.
    totals: u32,
    base: EarlierTotals,
}

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
}

/// The objects to adopt.
pub(crate) enum Adoption {
    /// The state that an earlier process has left.
    Programs(Box<InstancePrograms>),
    /// Nothing.
    Absent,
    /// An invalid form, with the reason.
    Incompatible(String),
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

    fn configure_backends(&self, snapshot: &Snapshot) -> Result<()> {
        self.programs.programs.configure_backends(snapshot)
    }

    fn configure(&mut self, snapshot: &Snapshot) -> Result<()> {
        self.programs.configure(snapshot)?;
        if let Err(error) = self.path_mtu.follow(snapshot) {
            log(&format!(
                "warning: Hairpin does not learn the MTUs of routers on the way to backends with an `encapsulation`: a raw \
                 socket cannot be opened ({error}). Give the process CAP_NET_RAW, or the routes to these backends an MTU \
                 (ip route change ... mtu lock 1400)"
            ));
        }
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
                log(&format!("warning: interface {} is down", interface.name));
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

    fn events(&self) -> Result<Vec<PlaneEvent>> {
        self.programs.events()
    }
}

impl InstancePrograms {
    /// Loads and pins everything. Nothing is attached yet.
    pub(crate) fn load(settings: &Settings, snapshot: &Snapshot, steering: Steering) -> Result<InstancePrograms> {
        // Rules take memory from the start, but for a family that no service is of, as long as that is so.
        let services = || snapshot.services.iter().filter(|service| service.state != ServiceState::Vacant);
        let unused = |ipv4: bool| !services().any(|service| service.endpoint.address.is_ipv4() == ipv4);
        let (rules_v4_sparse, rules_v6_sparse) = (unused(true), unused(false));
        let set_up = set_up_room(settings, steering.workers);
        let options = ProgramOptions { rules_v4_sparse, rules_v6_sparse, set_up, ..options(settings) };
        Ok(InstancePrograms::of(programs::LoadedPlane::load(&options, steering)?))
    }

    /// Opens what an earlier process has left. Traffic goes on as before until programs are attached.
    pub(crate) fn adopt(settings: &Settings, steering: Steering) -> Result<Adoption> {
        Ok(match programs::LoadedPlane::adopt(&options(settings), steering)? {
            programs::AdoptedPrograms::Plane(plane) => Adoption::Programs(Box::new(InstancePrograms::of(*plane))),
            programs::AdoptedPrograms::Absent => Adoption::Absent,
            programs::AdoptedPrograms::Incompatible(why) => Adoption::Incompatible(why),
        })
    }

    fn of(programs: programs::LoadedPlane) -> InstancePrograms {
        let control = programs.control();
        InstancePrograms { programs, control, totals: 0, base: EarlierTotals::default() }
    }

    /// The directory of pinned objects.
    fn pin_directory(&self) -> &Path {
        self.programs.pin_path()
    }

    /// Whether pinned objects are still there when this process has ended.
    fn outlive_process(&self) -> bool {
        programs::is_lasting(self.programs.pin_path())
    }

    /// Tells the programs what they balance, now or anew.
    fn configure(&mut self, snapshot: &Snapshot) -> Result<()> {
        self.totals = snapshot.backends() * 2;
        self.programs.configure(snapshot)?;
        self.programs.configure_checks(snapshot)
    }

    /// Changes what may change while the programs run.
    fn set_options(&self, settings: &Settings) {
        self.programs.set_options(&options(settings));
    }

    /// Rules there can be: IPv4, IPv6.
    fn rules_max(&self) -> [u32; 2] {
        let (v4, v6) = self.programs.rules_max();
        [v4, v6]
    }

    /// All rules in force.
    fn rules(&self) -> Result<Vec<InstalledRule>> {
        self.programs.rules()
    }

    /// Takes rules away; how many there were.
    fn remove_rules(&self, keys: &[FlowKey]) -> Result<u64> {
        self.programs.remove_rules(keys)
    }

    /// Tells rules their workers.
    fn assign_rules(&self, owners: &[(FlowKey, u8)]) -> Result<()> {
        self.programs.assign_rules(owners).map(drop)
    }

    /// The state that the programs keep for the workers of a process, before any worker has begun.
    fn forget(&self) {
        self.control.forget_known();
    }

    /// From now on packets go to the workers of `steering`.
    fn steer(&mut self, steering: Steering) -> Result<()> {
        self.programs.steer(steering)
    }

    /// Detaches programs from all but these devices.
    fn detach_others(&mut self, devices: &[u32]) -> Result<()> {
        self.programs.detach_others(devices)
    }

    /// Lets counters begin at zero as seen from here.
    fn begin_counting(&mut self) -> Result<()> {
        self.base = EarlierTotals::default();
        self.base = EarlierTotals { totals: self.totals()?, events: self.programs.events()?.to_vec() };
        Ok(())
    }

    /// Lets counters of backends that are new under their numbers begin at zero.
    fn begin_backends(&mut self, numbers: &[u16]) -> Result<()> {
        let slots: Vec<u32> =
            numbers.iter().flat_map(|&number| [0, 1].map(|direction| u32::from(number) * 2 + direction)).collect();
        for &slot in &slots {
            if let Some(base) = self.base.totals.get_mut(slot as usize) {
                *base = Volume::default();
            }
        }
        self.programs.clear_totals(&slots)
    }

    /// Puts the worker program on a worker's device.
    fn attach_worker(&mut self, worker: usize, device: &Interface) -> Result<()> {
        let attached = self.programs.attach_worker(worker as u32, device.index);
        attached.with_context(|| format!("cannot attach to the worker device {}", device.name))
    }

    /// Puts the ingress program on an interface.
    fn attach(&mut self, slot: usize, interface: &Interface) -> Result<()> {
        let attached = self.programs.attach(slot as u32, interface.index, interface.mac);
        attached.with_context(|| format!("cannot attach to interface {}", interface.name))
    }

    /// Tells the programs that the process is alive.
    fn heartbeat(&self) {
        self.control.heartbeat(cpu::now());
    }

    /// `heartbeat` as a function for a worker's thread, which serves while this one waits for its turn on a busy machine.
    fn heartbeat_sender(&self) -> impl Fn(Time) + Send + 'static {
        let control = Arc::clone(&self.control);
        move |now| control.heartbeat(now)
    }

    /// The flow engine of a worker; each can be had once.
    fn engine(&self, worker: usize) -> Result<hairpin_linux::engine::KernelEngine> {
        let number = u8::try_from(worker).context("too many workers")?;
        self.programs.engine(number).with_context(|| format!("worker {worker} has no flow engine"))
    }

    /// The array in which workers note which connections there are.
    fn known(&self) -> Known {
        Known::new(self.control.known())
    }

    /// The secrets that make SYN cookies now.
    fn cookies(&self) -> Cookies {
        self.control.cookies()
    }

    /// Makes the keys of SYN cookies of the secret that is shared, or draws the next one if it is time.
    fn renew_cookies(&self, shared: Option<Secret>) -> Result<()> {
        let now = cpu::now();
        match shared {
            Some(secret) => self.control.share_cookies(&secret, now, cpu::real_ahead()),
            None => drop(self.control.renew_cookie_key(now).context("cannot draw a secret for SYN cookies")?),
        }
        Ok(())
    }

    /// Tells the programs which packets of a worker's are finished with.
    fn publisher(&self, worker: usize) -> impl Fn(Ticket) + Send + 'static {
        let control = Arc::clone(&self.control);
        move |ticket| control.publish(worker, ticket.cpu, ticket.number)
    }

    /// Lets a service admit every packet.
    fn unlimit(&self, service: usize) {
        self.control.set_client_rate(service, UNLIMITED);
    }

    /// Sets how many packets of no known connection a service admits, per second and CPU.
    fn set_policer_rate(&self, service: usize, packets_per_s: u32) {
        self.control.set_client_rate(service, packets_per_s);
    }

    /// Traffic that rules have forwarded since counting began, by slot: a backend's number times two, plus direction.
    fn totals(&self) -> Result<Vec<Volume>> {
        let totals = self.programs.totals(self.totals)?;
        let base = self.base.totals.iter().copied().chain(std::iter::repeat(Volume::default()));
        let since = totals.iter().zip(base).map(|(total, base)| Volume {
            packets: total.packets.saturating_sub(base.packets),
            bytes: total.bytes.saturating_sub(base.bytes),
        });
        Ok(since.collect())
    }

    /// Fates of packets that no rule forwarded, since counting began: name, how many, whether they were dropped.
    fn events(&self) -> Result<Vec<PlaneEvent>> {
        let events = self.programs.events()?;
        let base = self.base.events.iter().copied().chain(std::iter::repeat(0));
        let named = abi::EVENTS.iter().zip(events).zip(base);
        Ok(named.map(|(((name, dropped), count), base)| (*name, count.saturating_sub(base), *dropped)).collect())
    }

    /// A handle with which other threads can query rules.
    fn rule_reader(&self) -> RuleReader {
        self.programs.rule_reader()
    }
}

/// The counters of an earlier process.
#[derive(Debug, Default)]
struct EarlierTotals {
    totals: Vec<Volume>,
    events: Vec<u64>,
}

//! Programs and maps of an instance: loaded or adopted, told what they balance, and read.

use super::options::{RULES_V4_UNUSED_MAX, UNLIMITED, options, sequences_max, set_up_room, sparse_room};
use crate::config::Settings;
use crate::run::check_device;
use crate::run::plane::PlaneEvent;
use anyhow::{Context, Result};
use hairpin_core::config::{ServiceState, Snapshot};
use hairpin_core::event_loop::Ticket;
use hairpin_core::flow::{FlowKey, Steering};
use hairpin_core::keys::Secret;
use hairpin_core::l4::connection::Volume;
use hairpin_core::l7::cookie::Cookies;
use hairpin_core::time::Time;
use hairpin_core::worker::Known;
use hairpin_linux::abi::{self, ACCESS_RULES_MAX, SERVICES_MAX};
use hairpin_linux::control::Control;
use hairpin_linux::cpu;
use hairpin_linux::device::Interface;
use hairpin_linux::programs::{self, InstalledRule, ProgramOptions, RuleReader};
use std::path::Path;
use std::sync::Arc;

/// Programs and maps of this instance.
#[derive(Debug)]
pub(crate) struct InstancePrograms {
    pub(super) programs: programs::LoadedPlane,
    control: Arc<Control>,
    /// The name of the device of health checks.
    check_device: String,
    /// The configured room of each family: for rules, and for rules that translate sequence numbers.
    room: [u32; 2],
    /// Slots of the totals in use: two for each backend.
    totals: u32,
    /// Services up to the last one that has access rules.
    judged: u32,
    base: EarlierTotals,
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

impl InstancePrograms {
    /// Loads and pins everything. Nothing is attached yet.
    pub(crate) fn load(settings: &Settings, snapshot: &Snapshot, steering: Steering) -> Result<InstancePrograms> {
        // Rules take memory from the start, but there are few, or they wait for it, in a family that no service is of.
        let services = || snapshot.services.iter().filter(|service| service.state != ServiceState::Vacant);
        let unused = |ipv4: bool| !services().any(|service| service.endpoint.address.is_ipv4() == ipv4);
        let rules_v6_sparse = unused(false);
        let room = |is_unused, room: u32| if is_unused { room } else { settings.rules_max };
        let options = ProgramOptions {
            rules_v4_max: room(unused(true), settings.rules_max.min(RULES_V4_UNUSED_MAX)),
            rules_v6_max: room(rules_v6_sparse, sparse_room(settings.rules_max)),
            rules_v6_sparse,
            sequences_max: sequences_max(settings.http_connections_max, settings.connections_max, steering.workers),
            set_up: set_up_room(settings, steering.workers),
            ..options(settings)
        };
        Ok(InstancePrograms::of(programs::LoadedPlane::load(&options, steering)?, settings, steering.workers))
    }

    /// Opens what an earlier process has left. Traffic goes on as before until programs are attached.
    pub(crate) fn adopt(settings: &Settings, steering: Steering) -> Result<Adoption> {
        Ok(match programs::LoadedPlane::adopt(&options(settings), steering)? {
            programs::AdoptedPrograms::Plane(plane) => {
                Adoption::Programs(Box::new(InstancePrograms::of(*plane, settings, steering.workers)))
            }
            programs::AdoptedPrograms::Absent => Adoption::Absent,
            programs::AdoptedPrograms::Incompatible(why) => Adoption::Incompatible(why),
        })
    }

    fn of(programs: programs::LoadedPlane, settings: &Settings, workers: u16) -> InstancePrograms {
        let (control, check_device) = (programs.control(), check_device(&settings.instance));
        let sequences = sequences_max(settings.http_connections_max, settings.connections_max, workers);
        let room = [settings.rules_max, sequences.min(settings.rules_max)];
        InstancePrograms { programs, control, check_device, room, totals: 0, judged: 0, base: EarlierTotals::default() }
    }

    /// The directory of pinned objects.
    pub(super) fn pin_directory(&self) -> &Path {
        self.programs.pin_path()
    }

    /// Whether pinned objects are still there when this process has ended.
    pub(super) fn outlive_process(&self) -> bool {
        programs::is_lasting(self.programs.pin_path())
    }

    /// Tells the programs what they balance, now or anew.
    pub(super) fn configure(&mut self, snapshot: &Snapshot) -> Result<()> {
        self.totals = snapshot.backends() * 2;
        let last = snapshot.services.iter().rposition(|service| service.access.is_some());
        self.judged = last.map_or(0, |number| number as u32 + 1);
        self.programs.configure(snapshot)
    }

    /// Has health checks of services with direct server return take the way of clients' packets.
    pub(super) fn configure_checks(&mut self, snapshot: &Snapshot) -> Result<()> {
        self.programs.configure_checks(snapshot, &self.check_device)
    }

    /// Changes what may change while the programs run.
    pub(super) fn set_options(&self, settings: &Settings) {
        self.programs.set_options(&options(settings));
    }

    /// Rules there can be: IPv4, IPv6.
    pub(super) fn rules_max(&self) -> [u32; 2] {
        let (v4, v6) = self.programs.rules_max();
        [v4, v6]
    }

    /// What there is less room for than is configured: the maps were made for another configuration.
    pub(super) fn lacking(&self, snapshot: &Snapshot) -> Result<Vec<String>> {
        let is_used = |ipv4: bool, is_spliced: bool| {
            let mut active = snapshot.services.iter().filter(|service| service.state == ServiceState::Active);
            active
                .any(|service| service.endpoint.address.is_ipv4() == ipv4 && (!is_spliced || service.kind.is_spliced()))
        };
        let ([rules_v4, rules_v6], (sequences_v4, sequences_v6)) = (self.rules_max(), self.programs.sequences_max()?);
        let [rules, sequences] = self.room;
        let all = [
            ("rules of IPv4", rules_v4, rules, is_used(true, false)),
            ("rules of IPv6", rules_v6, rules, is_used(false, false)),
            ("rules of HTTP and TLS services over IPv4", sequences_v4, sequences, is_used(true, true)),
            ("rules of HTTP and TLS services over IPv6", sequences_v6, sequences, is_used(false, true)),
        ];
        let lacking = all.into_iter().filter(|(_, room, wanted, is_used)| *is_used && room < wanted);
        Ok(lacking.map(|(what, room, wanted, _)| format!("there is room for {room} {what}, not {wanted}")).collect())
    }

    /// All rules in force.
    pub(super) fn rules(&self) -> Result<Vec<InstalledRule>> {
        self.programs.rules()
    }

    /// Takes rules away; how many there were.
    pub(super) fn remove_rules(&self, keys: &[FlowKey]) -> Result<u64> {
        self.programs.remove_rules(keys)
    }

    /// Tells rules their workers.
    pub(super) fn assign_rules(&self, owners: &[(FlowKey, u8)]) -> Result<()> {
        self.programs.assign_rules(owners).map(drop)
    }

    /// The state that the programs keep for the workers of a process, before any worker has begun.
    pub(super) fn forget(&self) {
        self.control.forget_known();
    }

    /// From now on packets go to the workers of `steering`.
    pub(super) fn steer(&mut self, steering: Steering) -> Result<()> {
        self.programs.steer(steering)
    }

    /// Detaches programs from all but these devices.
    pub(super) fn detach_others(&mut self, devices: &[u32]) -> Result<()> {
        self.programs.detach_others(devices)
    }

    /// Lets counters begin at zero as seen from here.
    pub(super) fn begin_counting(&mut self) -> Result<()> {
        self.base = EarlierTotals::default();
        let access = self.programs.access_counts(SERVICES_MAX as u32)?;
        self.base = EarlierTotals { totals: self.totals()?, access, events: self.programs.events()?.to_vec() };
        Ok(())
    }

    /// Lets counters of backends that are new under their numbers begin at zero.
    pub(super) fn begin_backends(&mut self, numbers: &[u16]) -> Result<()> {
        let slots: Vec<u32> =
            numbers.iter().flat_map(|&number| [0, 1].map(|direction| u32::from(number) * 2 + direction)).collect();
        for &slot in &slots {
            if let Some(base) = self.base.totals.get_mut(slot as usize) {
                *base = Volume::default();
            }
        }
        self.programs.clear_totals(&slots)
    }

    /// Lets counters of services that are new under their numbers begin at zero as seen from here.
    pub(super) fn begin_services(&mut self, numbers: &[u16]) -> Result<()> {
        if numbers.is_empty() {
            return Ok(());
        }
        let now = self.programs.access_counts(SERVICES_MAX as u32)?;
        for slot in numbers
            .iter()
            .flat_map(|&number| (0..ACCESS_RULES_MAX).map(move |rule| usize::from(number) * ACCESS_RULES_MAX + rule))
        {
            if let (Some(base), Some(now)) = (self.base.access.get_mut(slot), now.get(slot)) {
                *base = *now;
            }
        }
        Ok(())
    }

    /// Packets that the programs have judged by access rules, since counting began: by service and rule.
    pub(super) fn access_counts(&self) -> Result<Vec<u64>> {
        let counts = self.programs.access_counts(self.judged)?;
        let base = self.base.access.iter().copied().chain(std::iter::repeat(0));
        Ok(counts.into_iter().zip(base).map(|(count, base)| count.saturating_sub(base)).collect())
    }

    /// Puts the worker program on a worker's device.
    pub(super) fn attach_worker(&mut self, worker: usize, device: &Interface) -> Result<()> {
        let attached = self.programs.attach_worker(worker as u32, device.index);
        attached.with_context(|| format!("cannot attach to the worker device {}", device.name))
    }

    /// Puts the ingress program on an interface.
    pub(super) fn attach(&mut self, slot: usize, interface: &Interface) -> Result<()> {
        let attached = self.programs.attach(slot as u32, interface.index, interface.mac);
        attached.with_context(|| format!("cannot attach to interface {}", interface.name))
    }

    /// Tells the programs that the process is alive.
    pub(super) fn heartbeat(&self) {
        self.control.heartbeat(cpu::now());
    }

    /// `heartbeat` as a function for a worker's thread, which serves while this one waits for its turn on a busy machine.
    pub(super) fn heartbeat_sender(&self) -> impl Fn(Time) + Send + 'static {
        let control = Arc::clone(&self.control);
        move |now| control.heartbeat(now)
    }

    /// The flow engine of a worker; each can be had once.
    pub(super) fn engine(&self, worker: usize) -> Result<hairpin_linux::engine::KernelEngine> {
        let number = u8::try_from(worker).context("too many workers")?;
        self.programs.engine(number).with_context(|| format!("worker {worker} has no flow engine"))
    }

    /// The array in which workers note which connections there are.
    pub(super) fn known(&self) -> Known {
        Known::new(self.control.known())
    }

    /// The secrets that make SYN cookies now.
    pub(super) fn cookies(&self) -> Cookies {
        self.control.cookies()
    }

    /// Makes the keys of SYN cookies of the secret that is shared, or draws the next one if it is time.
    pub(super) fn renew_cookies(&self, shared: Option<Secret>) -> Result<()> {
        let now = cpu::now();
        match shared {
            Some(secret) => self.control.share_cookies(&secret, now, cpu::real_ahead()),
            None => drop(self.control.renew_cookie_key(now).context("cannot draw a secret for SYN cookies")?),
        }
        Ok(())
    }

    /// Tells the programs which packets of a worker's are finished with.
    pub(super) fn publisher(&self, worker: usize) -> impl Fn(Ticket) + Send + 'static {
        let control = Arc::clone(&self.control);
        move |ticket| control.publish(worker, ticket.cpu, ticket.number)
    }

    /// Lets a service admit every packet.
    pub(super) fn unlimit(&self, service: usize) {
        self.control.set_client_rate(service, UNLIMITED);
    }

    /// Sets how many packets of no known connection a service admits, per second and CPU.
    pub(super) fn set_policer_rate(&self, service: usize, packets_per_s: u32) {
        self.control.set_client_rate(service, packets_per_s);
    }

    /// Traffic that rules have forwarded since counting began, by slot: a backend's number times two, plus direction.
    pub(super) fn totals(&self) -> Result<Vec<Volume>> {
        let totals = self.programs.totals(self.totals)?;
        let base = self.base.totals.iter().copied().chain(std::iter::repeat(Volume::default()));
        let since = totals.iter().zip(base).map(|(total, base)| Volume {
            packets: total.packets.saturating_sub(base.packets),
            bytes: total.bytes.saturating_sub(base.bytes),
        });
        Ok(since.collect())
    }

    /// Fates of packets that no rule forwarded, since counting began: name, how many, whether they were dropped.
    pub(super) fn events(&self) -> Result<Vec<PlaneEvent>> {
        let events = self.programs.events()?;
        let base = self.base.events.iter().copied().chain(std::iter::repeat(0));
        let named = abi::EVENTS.iter().zip(events).zip(base);
        Ok(named.map(|(((name, dropped), count), base)| (*name, count.saturating_sub(base), *dropped)).collect())
    }

    /// A handle with which other threads can query rules.
    pub(super) fn rule_reader(&self) -> RuleReader {
        self.programs.rule_reader()
    }
}

/// The counters of an earlier process.
#[derive(Debug, Default)]
struct EarlierTotals {
    totals: Vec<Volume>,
    /// By service and rule.
    access: Vec<u64>,
    events: Vec<u64>,
}

//! How packets reach the workers, as the process uses it: the kernel's devices and BPF programs (`linux`), or ports of
//! DPDK's (`dpdk`). Per-packet work is not here, but in the resources of each worker
//! ([`super::worker_pool::WorkerResources`]).

#[cfg(feature = "dpdk")]
pub(super) mod dpdk;
pub(super) mod linux;

use super::SupervisorMessage;
use super::worker_pool::{TakenOver, WorkerMemory, WorkerParameters, WorkerPool};
use crate::config::{PolicyChoice, Settings};
use crate::monitor::MonitorPlace;
use crate::status::{BufferStatus, PortStatus};
use ahash::RandomState;
use anyhow::Result;
use hairpin_core::config::Snapshot;
use hairpin_core::engine::{Counters, Report, ScheduleKind};
use hairpin_core::flow::{Endpoint, FlowKey, Protocol, Steering};
use hairpin_core::keys::Secret;
use hairpin_core::l4::connection::Volume;
use hairpin_core::l7::cookie::Cookies;
use hairpin_core::link::LinkPlan;
use hairpin_core::time::Time;
use hairpin_linux::programs::{InstalledRule, RuleReader};
use rustix::thread::CapabilitySet;
use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::Sender;

/// Bounds of the dpdk plane that are this crate's. Every build lists them, also one without that plane.
pub(crate) mod limits {
    use crate::config::BACKENDS_MAX;

    /// Packets that may wait for a worker; those beyond are dropped and counted.
    pub(crate) const WAITING_MAX: u32 = 4096;
    /// Frames that may wait for a worker that sends for others.
    pub(crate) const RELAYED_MAX: u32 = 1024;
    /// Places for neighbours, of 64 bytes: for as many backends as there can be, and as many others.
    pub(crate) const NEIGHBOURS_MAX: usize = 2 * BACKENDS_MAX;
    /// Why a packet beyond [`WAITING_MAX`] is dropped.
    #[cfg(any(test, feature = "dpdk"))]
    pub(crate) const HANDOVER_FULL: &str = "handover-full";
}

/// The name of the flow engine where there is none.
pub(crate) const NO_ENGINE: &str = "none";

/// The policy's name: without an engine it is as good as `never`.
pub(crate) fn policy(plane: &dyn Plane, settings: &Settings) -> &'static str {
    if plane.engine() == NO_ENGINE { PolicyChoice::Never.name() } else { settings.policy.name() }
}

/// The fate of packets outside of the workers: name, how many, whether they were dropped.
pub(crate) type PlaneEvent = (&'static str, u64, bool);

/// The addresses of this host, its routes, and the services that tell a client's packets from a backend's.
#[derive(Debug)]
#[cfg_attr(not(feature = "dpdk"), allow(dead_code))]
pub(crate) struct ForwardingTable {
    /// Addresses and routes.
    pub(crate) plan: Arc<LinkPlan>,
    /// The addresses that clients connect to.
    pub(crate) services: HashSet<(Endpoint, Protocol), RandomState>,
}

/// The name of an engine that only steers packets to workers.
pub(crate) const MARKS: &str = "rte_flow-marks";

/// The further facts about a flow engine beside its name.
#[derive(Clone, Debug, Default)]
pub(crate) struct EngineWords {
    /// How it does it, or why there is none.
    pub(crate) detail: String,
    /// Its counters, by name.
    pub(crate) counts: Vec<(&'static str, u64)>,
    /// Kinds of connections that it cannot take, and why.
    pub(crate) software: Vec<(&'static str, String)>,
}

/// Queries an engine's rules, from any thread.
pub(crate) trait RuleQueries: Send + Sync {
    /// How many there are: IPv4, IPv6, and how many of both leave their flow to the kernel.
    fn count(&self) -> Result<[u64; 3]>;

    /// The counters of the rule for a flow; `None` if there is none.
    fn counters(&self, key: &FlowKey, now: Time) -> Result<Option<Counters>>;
}

impl RuleQueries for RuleReader {
    fn count(&self) -> Result<[u64; 3]> {
        RuleReader::count(self)
    }

    fn counters(&self, key: &FlowKey, now: Time) -> Result<Option<Counters>> {
        RuleReader::counters(self, key, now)
    }
}

/// A plane of this instance. What it says nothing about, a plane without flow engine and policer does.
pub(crate) trait Plane {
    /// The flow engine's name in the status; `none` without one.
    fn engine(&self) -> &'static str {
        NO_ENGINE
    }

    /// Further facts about it.
    fn engine_words(&self) -> EngineWords {
        EngineWords::default()
    }

    /// Rights that are needed while it serves, beside none.
    fn rights(&self) -> CapabilitySet;

    /// Learns where backends are that workers may name, before they do.
    fn configure_backends(&self, _: &Snapshot) -> Result<()> {
        Ok(())
    }

    /// Whether its engine sets connections up, or has done so for an earlier process.
    fn has_set_up(&self) -> bool {
        false
    }

    /// What its engine has reported to workers and none has read. Before workers begin.
    fn unread_reports(&self) -> Result<Vec<Report>> {
        Ok(Vec::new())
    }

    /// Has workers choose all backends until [`Plane::schedule`] is called again: before they learn of a change.
    fn suspend_set_up(&self) {}

    /// Has the engine choose backends so, by the number of each service's schedule.
    fn schedule(&self, _schedules: &[(ScheduleKind, Vec<u16>)]) {}

    /// First packets that the engine has sent on by a schedule, and those of UDP that were answered.
    fn set_up_begun(&self, _schedule: u16) -> (u32, u32) {
        (0, 0)
    }

    /// Learns what is balanced, now or anew.
    fn configure(&mut self, snapshot: &Snapshot) -> Result<()>;

    /// Where monitors attach their programs; `None`: nowhere, packets do not pass the kernel.
    fn monitor_place(&self, _settings: &Settings) -> Option<MonitorPlace> {
        None
    }

    /// Changes what may change while it runs.
    fn set_options(&self, _settings: &Settings) {}

    /// The last before rights are dropped and workers made: nothing is known of an earlier process's workers from here on,
    /// and counters begin at zero.
    fn prepare(&mut self) -> Result<()>;

    /// Makes the workers, each with its device and its engine. They wait for [`WorkerPool::begin`].
    fn worker_pool(
        &mut self,
        parameters: &WorkerParameters,
        memory: WorkerMemory,
        messages: &Sender<SupervisorMessage>,
    ) -> Result<(WorkerPool, TakenOver)>;

    /// The forwarding tables of a plane that routes packets itself, made from a snapshot that will be in force: the present
    /// one with the backends that workers may name then, which is to be in force before they do, and the one after that.
    fn forwarding_tables(&mut self, _snapshot: &Snapshot) -> Result<Option<[Arc<ForwardingTable>; 2]>> {
        Ok(None)
    }

    /// From now on packets go to the workers of `steering`.
    fn steer(&mut self, _steering: Steering) -> Result<()> {
        Ok(())
    }

    /// Lets packets in.
    fn open(&mut self) -> Result<()>;

    /// Copies of the workers' devices, to pass on to another process; `None` if they cannot be.
    fn descriptors(&self) -> Option<&[OwnedFd]> {
        None
    }

    /// After the devices were passed on in vain: as before [`Plane::worker_pool`].
    fn resume(&mut self, _devices: &[String]) -> Result<()> {
        Ok(())
    }

    /// Rules there can be: IPv4, IPv6.
    fn rules_max(&self) -> [u32; 2] {
        [0; 2]
    }

    /// Flows of all rules in force.
    fn rules(&self) -> Result<HashSet<FlowKey>> {
        Ok(HashSet::new())
    }

    /// All rules in force, if they are the kernel's.
    fn installed_rules(&self) -> Result<Vec<InstalledRule>> {
        Ok(Vec::new())
    }

    /// Takes rules away; how many there were.
    fn remove_rules(&self, _keys: &[FlowKey]) -> Result<u64> {
        Ok(0)
    }

    /// Tells rules their workers.
    fn assign_rules(&self, _owners: &[(FlowKey, u8)]) -> Result<()> {
        Ok(())
    }

    /// A handle with which other threads can query rules.
    fn rule_reader(&self) -> Option<Arc<dyn RuleQueries>> {
        None
    }

    /// Lets counters of backends that are new under their numbers begin at zero.
    fn begin_backends(&mut self, _numbers: &[u16]) -> Result<()> {
        Ok(())
    }

    /// Lets counters of services that are new under their numbers begin at zero.
    fn begin_services(&mut self, _numbers: &[u16]) -> Result<()> {
        Ok(())
    }

    /// Gives a sign of life.
    fn heartbeat(&self) {}

    /// `heartbeat` as a function for another thread.
    fn heartbeat_sender(&self) -> Box<dyn Fn(Time) + Send> {
        Box::new(|_| {})
    }

    /// The secrets that make SYN cookies now.
    fn cookies(&self) -> Cookies;

    /// Sees to the keys of SYN cookies: makes them of the secret that is shared with other balancers, or draws the next one
    /// if it is time.
    fn renew_cookies(&self, shared: Option<Secret>) -> Result<()>;

    /// Lets a service admit every packet.
    fn unlimit(&self, _service: usize) {}

    /// Sets how many packets of no known connection a service admits, per second and CPU.
    fn set_policer_rate(&self, _service: usize, _packets_per_s: u32) {}

    /// Traffic that rules have forwarded since counting began, by slot: a backend's number times two, plus direction.
    fn totals(&self) -> Result<Vec<Volume>> {
        Ok(Vec::new())
    }

    /// Packets that the engine has judged by access rules, since counting began: of each service
    /// [`hairpin_core::access::RULES_MAX`], by rule.
    fn access_counts(&self) -> Result<Vec<u64>> {
        Ok(Vec::new())
    }

    /// The fates of packets that no rule forwarded, since counting began.
    fn events(&self) -> Result<Vec<PlaneEvent>> {
        Ok(Vec::new())
    }

    /// Its packet buffers.
    fn buffers(&self) -> Option<BufferStatus> {
        None
    }

    /// The ports it drives itself.
    fn ports(&self) -> Vec<PortStatus> {
        Vec::new()
    }
}

//! What the programs need to set connections up by themselves: schedules, backends, room.

use super::LoadedPlane;
use crate::abi::{self, Bytes, EndKey, Target};
use crate::control::map;
use crate::set_up::{KernelSetUp, SharedReports};
use anyhow::{Context, Result};
use hairpin_core::balance::SCHEDULE_NONE;
use hairpin_core::config::{Forwarding, ServiceState, Snapshot};
use hairpin_core::engine::{Report, ScheduleKind, SetsUp, set_up_services};
use libbpf_rs::{MapCore, MapHandle};
use std::collections::HashSet;
use std::mem::size_of;
use std::sync::atomic::{AtomicU32, Ordering};

/// The fewest half-open connections that there is room for: the kernel gives places to its CPUs in batches.
const PENDING_MIN: u32 = 1024;

/// The sizes of the maps for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetUpRoom {
    /// Half-open connections; the least recently used give way.
    pub pending: u32,
    /// Workers that are told.
    pub workers: u16,
}

impl SetUpRoom {
    /// Elements of a map, if it is one of those for set-up. `room`: `None` where connections are not set up.
    pub(super) fn of(name: &str, room: Option<SetUpRoom>) -> Option<u32> {
        let all = match name {
            "schedules" => abi::SCHEDULES_MAX as u32,
            "targets" => abi::BACKENDS_MAX as u32,
            "reports" => room.map_or(1, |room| u32::from(room.workers.max(1))),
            "pending" => room.map_or(1, |room| room.pending.max(PENDING_MIN)),
            _ => return None,
        };
        Some(if room.is_some() { all } else { 1 })
    }
}

/// The queues of reports in their map, one for each worker.
fn queues(reports: &MapHandle) -> Result<&'static [abi::Reports]> {
    let count = reports.max_entries() as usize;
    let start = map(reports, count * size_of::<abi::Reports>())?;
    // SAFETY: that many bytes are mapped for good, at a page's start, and any value is valid for atomic integers; from here on
    // they are only used as such.
    Ok(unsafe { std::slice::from_raw_parts(start.cast::<abi::Reports>().as_ptr(), count) })
}

/// The memory shared with the programs.
pub(super) struct SetUpMemory {
    schedules: &'static [abi::Schedule],
    reports: &'static [abi::Reports],
    pending: MapHandle,
    /// Elements of `targets` that are in use.
    targets: AtomicU32,
}

impl std::fmt::Debug for SetUpMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SetUpMemory").field("workers", &self.reports.len()).finish_non_exhaustive()
    }
}

impl LoadedPlane {
    /// Has the programs set connections up, from when [`LoadedPlane::schedule`] says of which services. `false`: the maps,
    /// which another process has made, have no room for that.
    pub fn allow_set_up(&mut self, workers: u16) -> Result<bool> {
        let [schedules, reports] = [self.maps.named("schedules")?, self.maps.named("reports")?];
        let is_sized = schedules.max_entries() as usize == abi::SCHEDULES_MAX
            && self.maps.named("targets")?.max_entries() as usize == abi::BACKENDS_MAX
            && reports.max_entries() >= u32::from(workers);
        if !is_sized {
            return Ok(false);
        }
        let start = map(schedules, abi::SCHEDULES_MAX * size_of::<abi::Schedule>())?;
        // SAFETY: that many bytes are mapped for good, at a page's start, and any value is valid for atomic integers; from
        // here on they are only used as such.
        let schedules =
            unsafe { std::slice::from_raw_parts(start.cast::<abi::Schedule>().as_ptr(), abi::SCHEDULES_MAX) };
        let reports = queues(reports)?;
        let pending = MapHandle::try_from(self.maps.named("pending")?)?;
        self.set_up = Some(SetUpMemory { schedules, reports, pending, targets: AtomicU32::new(0) });
        Ok(true)
    }

    /// A worker's part of set-up, if the programs may set connections up.
    pub(super) fn set_up_of(&self, worker: u8) -> Result<Option<KernelSetUp>> {
        let Some(memory) = &self.set_up else { return Ok(None) };
        let Some(reports) = memory.reports.get(usize::from(worker)) else { return Ok(None) };
        Ok(Some(KernelSetUp::new(SharedReports(reports), MapHandle::try_from(&memory.pending)?)))
    }

    /// Takes what is in the queues of all workers, of those, too, that this process does not have. Before workers begin.
    pub fn unread_reports(&self) -> Result<Vec<Report>> {
        if !self.has_set_up() {
            return Ok(Vec::new());
        }
        let queues = match &self.set_up {
            Some(memory) => memory.reports,
            None => queues(self.maps.named("reports")?)?,
        };
        let pending = self.maps.named("pending")?;
        let mut all = Vec::new();
        for queue in queues {
            let mut queue = KernelSetUp::new(SharedReports(queue), MapHandle::try_from(pending)?);
            // The programs may go on reporting.
            for _ in 0..abi::REPORTS_MAX {
                let Some(report) = queue.next() else { break };
                all.push(report);
                queue.done();
            }
        }
        Ok(all)
    }

    /// Has workers choose the backends of all services until [`LoadedPlane::schedule`] is called again: before what workers
    /// know of backends changes.
    pub fn suspend_set_up(&self) {
        let schedules = self.set_up.iter().flat_map(|memory| memory.schedules);
        schedules.for_each(|schedule| schedule.length.store(0, Ordering::Relaxed));
    }

    /// Tells the programs which backends new connections get: `schedules` has those of each service by the number of
    /// [`set_up_services`], as [`hairpin_core::balance::Balancer::schedule`] makes them.
    pub fn schedule(&self, schedules: &[(ScheduleKind, Vec<u16>)]) -> Result<()> {
        let Some(memory) = &self.set_up else { return Ok(()) };
        let open: HashSet<u16> = schedules.iter().flat_map(|(_, backends)| backends).copied().collect();
        self.open_targets(&open)?;
        for (number, there) in memory.schedules.iter().enumerate() {
            match schedules.get(number) {
                Some((kind, backends)) => write(there, *kind, backends),
                None => there.length.store(0, Ordering::Relaxed),
            }
        }
        Ok(())
    }

    /// Tells the programs which backends take new connections of clients that begin anew.
    fn open_targets(&self, open: &HashSet<u16>) -> Result<()> {
        let map = self.maps.named("targets")?;
        for number in 0..self.set_up.as_ref().map_or(0, |memory| memory.targets.load(Ordering::Relaxed)) {
            let Some(target) = self.target(map, number)? else { continue };
            let state = if open.contains(&(number as u16)) { abi::TARGET_OPEN } else { abi::TARGET_CLOSED };
            if target.state != abi::TARGET_NONE && target.state != state {
                self.set("targets", number, &Target { state, ..target })?;
            }
        }
        Ok(())
    }

    fn target(&self, map: &MapHandle, number: u32) -> Result<Option<Target>> {
        let held = map.lookup(number.bytes(), libbpf_rs::MapFlags::ANY).context("cannot read map targets")?;
        Ok(held.and_then(|bytes| Target::from_bytes(&bytes)))
    }

    /// First packets that the programs have sent on by a schedule so far, and those of UDP that were answered.
    pub fn set_up_begun(&self, schedule: u16) -> (u32, u32) {
        let held = self.set_up.as_ref().and_then(|memory| memory.schedules.get(usize::from(schedule)));
        let order = Ordering::Relaxed;
        held.map_or((0, 0), |schedule| (schedule.begun.load(order), schedule.answered.load(order)))
    }

    /// Whether the maps have room for set-up, be it that of another process.
    pub fn has_set_up(&self) -> bool {
        self.maps.named("schedules").is_ok_and(|map| map.max_entries() as usize == abi::SCHEDULES_MAX)
    }

    /// Tells the programs where the backends of such services are, before workers learn of them.
    pub(super) fn configure_targets(&self, snapshot: &Snapshot) -> Result<()> {
        if self.set_up.is_none() {
            return Ok(());
        }
        let mut targets = vec![Target::zeroed(); (snapshot.backends() as usize).min(abi::BACKENDS_MAX)];
        for (number, schedule) in self.set_up_services(snapshot) {
            let service = &snapshot.services[number];
            for backend in &service.backends {
                let lifetime = service.timeouts.tcp_handshake.max(service.timeouts.udp_new);
                targets[usize::from(backend.number)] = Target {
                    backend: EndKey::of(&backend.endpoint, service.protocol),
                    vip: EndKey::of(&service.endpoint, service.protocol),
                    service: number as u16,
                    schedule: schedule as u8,
                    state: abi::TARGET_CLOSED,
                    lifetime: (lifetime.as_nanos() >> abi::TICK_SHIFT).min(1 << 30) as u32,
                };
            }
        }
        let map = self.maps.named("targets")?;
        for (number, target) in (0u32..).zip(&targets) {
            let held = self.target(map, number)?;
            // Whether it takes connections is said by [`LoadedPlane::schedule`].
            if held.map(|held| Target { state: held.state.min(abi::TARGET_CLOSED), ..held }) != Some(*target) {
                self.set("targets", number, target)?;
            }
        }
        if let Some(memory) = &self.set_up {
            memory.targets.store(targets.len() as u32, Ordering::Relaxed);
        }
        Ok(())
    }

    /// The services whose connections the programs set up: by number, with that of their schedule.
    pub(super) fn set_up_services(&self, snapshot: &Snapshot) -> impl Iterator<Item = (usize, u16)> + use<> {
        let all = if self.set_up.is_some() { set_up_services(snapshot) } else { Vec::new() };
        all.into_iter().enumerate().filter_map(|(number, schedule)| Some((number, schedule.ok()?)))
    }
}

/// The roles that set-up gives to ends: of the service's, and of its backends', with the numbers for each.
pub(super) fn add_roles(
    ends: &mut std::collections::HashMap<EndKey, abi::EndRoles>,
    snapshot: &Snapshot,
    services: impl Iterator<Item = (usize, u16)>,
) {
    for (number, schedule) in services {
        let service = &snapshot.services[number];
        debug_assert!(service.state == ServiceState::Active);
        if let Some(roles) = ends.get_mut(&EndKey::of(&service.endpoint, service.protocol)) {
            roles.roles |= abi::END_SET_UP;
            roles.set_up = schedule;
            if service.forwarding == Forwarding::Direct {
                // What its backends send is no service's from their own ends.
                roles.roles |= abi::END_SET_UP_DIRECT;
                continue;
            }
        }
        for backend in &service.backends {
            if let Some(roles) = ends.get_mut(&EndKey::of(&backend.endpoint, service.protocol)) {
                roles.roles |= abi::END_SET_UP_BACKEND;
                roles.set_up = backend.number;
            }
        }
    }
}

/// Writes a schedule that packets may be reading. Any mixture of the old and the new one names backends of one of the two.
fn write(there: &abi::Schedule, kind: ScheduleKind, backends: &[u16]) {
    let order = Ordering::Relaxed;
    let number = match kind {
        ScheduleKind::Flow => abi::SCHEDULE_FLOW,
        ScheduleKind::Source => abi::SCHEDULE_SOURCE,
        ScheduleKind::Turns => abi::SCHEDULE_TURNS,
    };
    let is_usable = !backends.is_empty() && backends.len() <= abi::SCHEDULE_MAX;
    let is_whole = kind == ScheduleKind::Turns || backends.len() == abi::SCHEDULE_MAX;
    if there.kind.load(order) != number || !is_usable || !is_whole {
        there.length.store(0, order);
    }
    if !is_usable || !is_whole {
        return;
    }
    there.kind.store(number, order);
    // What lies beyond the list is another one's, if it gets longer.
    let length = there.length.load(order) as usize;
    if backends.len() < length {
        there.length.store(backends.len() as u32, Ordering::Release);
    }
    for (entry, &backend) in there.backends.iter().zip(backends) {
        if entry.load(order) != backend {
            entry.store(backend, order);
        }
    }
    if backends.len() > length {
        there.backends[backends.len()..].iter().take(3).for_each(|entry| entry.store(SCHEDULE_NONE, order));
        there.length.store(backends.len() as u32, Ordering::Release);
    }
}

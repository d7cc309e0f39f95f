//! The start of a process: fresh, with the state that an earlier process has left, or with the state that a running one
//! hands over.

use super::generations::Generations;
use super::handover::Legacy;
use super::host;
use super::instance::{ForwardingSwitch, InstanceRecord};
use super::local_routes;
use super::namespace::Namespace;
use super::plane::Plane;
use super::plane::linux::{LinuxPlane, Passed};
use super::worker_pool::SPLICES_MAX;
use super::{log, tap_name, tell};
use crate::config::{Config, PlaneChoice, Settings};
use crate::events::EventKind;
use crate::registry::{Merged, Registry};
use anyhow::{Context, Result, bail};
use hairpin_core::config::Snapshot;
use hairpin_core::flow::{FlowKey, SteerBy, Steering};
use hairpin_core::l4::connection::Connection;
use hairpin_core::limit::LimitTable;
use hairpin_core::worker::Adopted;
use hairpin_linux::cpu;
use hairpin_linux::device::{self, Interface};
use hairpin_linux::shared::{self, Content, OpenedTable, SharedTable, SplicedTable, TableHeader};
use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// How a process began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Began {
    /// With nothing.
    Fresh,
    /// With what a dead process had left.
    Restart,
    /// With what a living one handed over.
    Upgrade,
}

impl Began {
    /// Its word in the status.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Began::Fresh => "fresh",
            Began::Restart => "restart",
            Began::Upgrade => "upgrade",
        }
    }

    /// Logs how much this process took over since it `started`; `orphans` is the number of rules without a connection.
    pub(super) fn tell_adoption(self, adopted: &Adopted, orphans: u64, started: Instant) {
        let told = format!(
            "{}: took over {} connections and {} of HTTP and TLS services in {:.0} ms; {orphans} rules without a connection \
             removed",
            self.name(),
            adopted.kept,
            adopted.splices.client_conns,
            started.elapsed().as_secs_f64() * 1000.0
        );
        tell(EventKind::Start, &told);
    }
}

/// Everything outside of the process, ready for the workers.
pub(crate) struct PreparedHost {
    pub(crate) began: Began,
    pub(crate) record: InstanceRecord,
    pub(crate) registry: Registry,
    pub(crate) merged: Merged,
    pub(crate) plane: Box<dyn Plane>,
    pub(crate) table: SharedTable,
    pub(crate) splices: SplicedTable,
    pub(crate) limits: LimitTable,
    pub(crate) steering: Steering,
    /// Whether the rules in force may name other workers than their connections have now.
    pub(crate) resteered: bool,
    /// Flows for which the engine holds a rule.
    pub(crate) held: HashSet<FlowKey>,
    /// The listening sockets of the process that this one takes over from.
    pub(crate) listeners: Vec<(String, OwnedFd)>,
    /// The processes that drain since earlier hand-overs.
    pub(crate) generations: Generations,
    pub(crate) legacy: Legacy,
}

/// The location of an instance's connections.
pub(crate) fn table_path(settings: &Settings, content: Content) -> PathBuf {
    shared::path(&settings.memory_directory, &settings.instance, content)
}

/// State that a process reads before it changes anything: how connections are spread, and that it could adopt them, those
/// of HTTP and TLS services unless they are given up.
pub(crate) fn inspect(config: &Config, workers: u16, gives_up_http: bool) -> Result<Steering> {
    let (socket, path) = (config.settings.socket(), table_path(&config.settings, Content::Connections));
    Registry::load(&InstanceRecord::numbers(&socket))?;
    if let OpenedTable::Incompatible(why) = SplicedTable::open(&table_path(&config.settings, Content::Splices))?
        && !gives_up_http
    {
        bail!(
            "connections of HTTP and TLS services cannot be taken over: {why}. Either keep the version that runs, or give \
             them up, and keep TCP and UDP connections: `hairpin upgrade --reset-http`"
        );
    }
    match SharedTable::open(&path)? {
        OpenedTable::Table(table) => Ok(Steering::by_hash(table.header().steering_key, workers)),
        OpenedTable::Absent => bail!("there is no connection table at {}", path.display()),
        OpenedTable::Incompatible(why) => bail!("{}", incompatible(&why)),
    }
}

pub(crate) fn incompatible(why: &str) -> String {
    format!(
        "what an earlier process has left cannot be taken over: {why}. Either go back to the version that left it, or \
         give it up, and with it the connections it holds: `hairpin run --discard`, or `hairpin stop --flush`"
    )
}

/// The state handed over by a living process, and everything prepared before that.
#[derive(Default)]
pub(crate) struct HandedInstance {
    /// Devices and programs.
    pub(crate) passed: Passed,
    /// Its listening sockets.
    pub(crate) listeners: Vec<(String, OwnedFd)>,
    /// The processes that drain, itself among them.
    pub(crate) generations: Generations,
    /// The state of that process.
    pub(crate) legacy: Legacy,
}

/// The interfaces and cores that a process begins with.
#[derive(Clone, Copy)]
pub(crate) struct WorkerPlaces<'a> {
    /// The linux plane's interfaces.
    pub(crate) interfaces: &'a [Interface],
    /// The core of each worker.
    pub(crate) cpus: &'a [usize],
}

/// Makes or takes over everything. What an earlier process has left is not harmed by a failure; what this one has made
/// is removed after it.
pub(crate) fn begin(
    config: &Config,
    machine: WorkerPlaces<'_>,
    discard: bool,
    handed: Option<HandedInstance>,
) -> Result<PreparedHost> {
    let socket = config.settings.socket();
    let mut left = InstanceRecord::read(&socket)?;
    if let Some(record) = left.take_if(|_| discard) {
        log(&format!("removing what an earlier process of instance {} has left", record.instance));
        record.flush(&socket).context("cannot remove what an earlier process has left")?;
    }
    let fresh = left.is_none();
    let base = build(config, machine, left, handed);
    if base.is_err()
        && fresh
        && let Ok(Some(record)) = InstanceRecord::read(&socket)
        && let Err(failure) = record.flush(&socket)
    {
        log(&format!("not everything could be removed: {failure:#}"));
    }
    base
}

fn build(
    config: &Config,
    machine: WorkerPlaces<'_>,
    left: Option<InstanceRecord>,
    handed: Option<HandedInstance>,
) -> Result<PreparedHost> {
    let (settings, cpus, is_left) = (&config.settings, machine.cpus, left.is_some());
    let socket = settings.socket();
    let began = match (&left, &handed) {
        (_, Some(_)) => Began::Upgrade,
        (Some(_), None) => Began::Restart,
        (None, None) => Began::Fresh,
    };
    let mut registry = Registry::load(&InstanceRecord::numbers(&socket))?;
    let path = table_path(settings, Content::Connections);
    let mut old = match SharedTable::open(&path)? {
        OpenedTable::Incompatible(why) => bail!("{}", incompatible(&why)),
        OpenedTable::Table(_) if !is_left => {
            log(&format!("{} belongs to no process that is known; it is replaced", path.display()));
            None
        }
        OpenedTable::Table(table) => Some(table),
        OpenedTable::Absent => None,
    };
    let key = match &old {
        Some(table) => table.header().steering_key,
        None => host::secret::<2>()?,
    };
    let steering = Steering::by_hash(key, cpus.len() as u16);
    let counts = connections_by_backend(settings, is_left, old.as_mut())?;
    let connections = |number: u16| counts.get(usize::from(number)).copied().unwrap_or(0);
    let merged = registry.merge(config, &connections, super::host::unix_s())?;

    // From here on the kernel is changed: what there will be is noted first, beside what there is.
    let mut record = record(settings, &merged.snapshot, cpus, left.as_ref())?;
    let routes = local_routes::needed(&merged.snapshot, &record.local_routes)?;
    record.local_routes = local_routes::union(&routes, &record.local_routes);
    record.write(&socket)?;
    registry.save(&InstanceRecord::numbers(&socket))?;
    forward(&record.forwarding)?;
    local_routes::add(&routes)?;
    let had_table = old.is_some();
    // The abilities of its ports' rules decide how packets find their worker, and so where connections lie.
    let driven = driven(settings, &merged.snapshot, steering)?;
    let steering = driven.as_ref().map_or(steering, |(_, steering)| *steering);
    let (table, resteered) = table(settings, &path, old, steering)?;
    let splices = splices(settings, is_left, &table, &steering)?;
    let limits = limits(settings, table.header(), began)?;
    let HandedInstance { passed, listeners, generations, legacy } = handed.unwrap_or_default();
    let mut plane: Box<dyn Plane> = match driven {
        Some((plane, _)) => plane,
        None => {
            let interfaces = machine.interfaces.to_vec();
            Box::new(LinuxPlane::make(settings, interfaces, &merged.snapshot, (steering, had_table), passed)?)
        }
    };
    plane.configure_backends(&merged.snapshot)?;
    plane.configure(&merged.snapshot)?;
    let held = plane.rules()?;
    Ok(PreparedHost {
        began,
        record,
        registry,
        merged,
        plane,
        table,
        splices,
        limits,
        steering,
        resteered,
        held,
        listeners,
        generations,
        legacy,
    })
}

/// The plane that drives its ports itself, if the configuration has it, and how it tells workers apart.
#[cfg(feature = "dpdk")]
fn driven(settings: &Settings, snapshot: &Snapshot, steering: Steering) -> Result<Option<(Box<dyn Plane>, Steering)>> {
    let Some(dpdk) = &settings.dpdk else { return Ok(None) };
    let plane = super::plane::dpdk::DpdkPlane::make(settings, dpdk, snapshot, steering)?;
    let steering = plane.steering();
    Ok(Some((Box::new(plane), steering)))
}

/// `None`: without DPDK, reading the configuration has refused a plane that drives its ports itself.
#[cfg(not(feature = "dpdk"))]
fn driven(_: &Settings, _: &Snapshot, _: Steering) -> Result<Option<(Box<dyn Plane>, Steering)>> {
    Ok(None)
}

/// Switches forwarding on.
pub(super) fn forward(switches: &[ForwardingSwitch]) -> Result<()> {
    for switch in switches {
        device::set_forwarding(&switch.interface, switch.family(), true)
            .with_context(|| format!("cannot switch on forwarding on {}", switch.interface))?;
    }
    Ok(())
}

/// How many connections each backend has in `table`, which is layer 4's, and in that of HTTP and TLS, by its number.
fn connections_by_backend(settings: &Settings, is_left: bool, table: Option<&mut SharedTable>) -> Result<Vec<u64>> {
    let mut counts = match SplicedTable::open(&table_path(settings, Content::Splices))? {
        OpenedTable::Table(of_http) if is_left => of_http.connections_by_backend()?,
        _ => Vec::new(),
    };
    let Some(table) = table else { return Ok(counts) };
    for_each(table, |connection| {
        let number = usize::from(connection.backend_number);
        if counts.len() <= number {
            counts.resize(number + 1, 0);
        }
        counts[number] += 1;
    })?;
    Ok(counts)
}

/// Shows every connection of a table to `visit`.
pub(super) fn for_each(table: &mut SharedTable, mut visit: impl FnMut(&Connection)) -> Result<()> {
    for view in table.views()? {
        for position in 0..view.used() as u32 {
            if let Some((_, connection)) = view.read(position) {
                visit(&connection);
            }
        }
    }
    Ok(())
}

/// The objects of the instance once everything stands; while it changes, the devices of before belong to it as well.
fn record(
    settings: &Settings,
    snapshot: &Snapshot,
    cpus: &[usize],
    left: Option<&InstanceRecord>,
) -> Result<InstanceRecord> {
    let mut record = InstanceRecord {
        instance: settings.instance.clone(),
        pin_directory: settings.linux.pin_directory.clone(),
        plane: settings.plane.name().to_string(),
        taps: tap_names(settings, cpus.len()),
        forwarding: host::forwarding_off(settings, snapshot, None)?,
        local_routes: left.map_or_else(Vec::new, |left| left.local_routes.clone()),
        table: table_path(settings, Content::Connections),
        splices: table_path(settings, Content::Splices),
        namespace: Namespace::current(),
    };
    if let Some(left) = left {
        if let Some(place) = left.namespace.and_then(Namespace::elsewhere) {
            bail!(
                "the earlier process has its devices in {place}; start there, or remove them there: `hairpin stop --flush`"
            );
        }
        if left.plane != record.plane {
            bail!(
                "the earlier process worked on plane {}, not {}; `hairpin stop --flush` removes what it has left",
                left.plane,
                record.plane
            );
        }
        if left.pin_directory != record.pin_directory {
            bail!(
                "the earlier process has pinned its objects in {}, not in {}; `hairpin stop --flush` removes them",
                left.pin_directory.display(),
                record.pin_directory.display()
            );
        }
        if !left.table.as_os_str().is_empty() && left.table != record.table {
            bail!(
                "the earlier process has its connections in {}, not in {}; `hairpin stop --flush` removes them",
                left.table.display(),
                record.table.display()
            );
        }
        let more = |name: &&String| !record.taps.contains(name);
        let surplus: Vec<String> = left.taps.iter().filter(more).cloned().collect();
        record.taps.extend(surplus);
        let more = |switch: &&ForwardingSwitch| !record.forwarding.contains(switch);
        let switched: Vec<_> = left.forwarding.iter().filter(more).cloned().collect();
        record.forwarding.extend(switched);
    }
    Ok(record)
}

/// The connection table: the old one if it has the right shape, else a new one with the old one's connections; and
/// whether they may belong to other workers now.
pub(crate) fn table(
    settings: &Settings,
    path: &Path,
    old: Option<SharedTable>,
    steering: Steering,
) -> Result<(SharedTable, bool)> {
    let header = TableHeader {
        content: Content::Connections,
        instance: settings.instance.clone(),
        workers: steering.workers,
        connections: settings.connections_max.div_ceil(u32::from(steering.workers)),
        steering_key: steering.key,
        steer_by: steering.by,
    };
    let Some(old) = old else {
        return Ok((SharedTable::create(path, &header)?, false));
    };
    let there = old.header().clone();
    if there == header {
        return Ok((old, false));
    }
    let by = |header: &TableHeader| match header.steer_by {
        SteerBy::Hash => "by address and port",
        SteerBy::Port => "by port",
    };
    log(&format!(
        "the connection table is dealt out anew: from {} workers {} to {} workers {}, from {} to {} connections each",
        there.workers,
        by(&there),
        header.workers,
        by(&header),
        there.connections,
        header.connections
    ));
    let worker_of = |connection: &Connection| hairpin_core::worker::home(connection, &steering);
    let (table, dropped) = SharedTable::rebuild(old, path, &header, worker_of)?;
    if dropped.established + dropped.others > 0 {
        log(&format!(
            "warning: {} established and {} other connections did not fit into the smaller table",
            dropped.established, dropped.others
        ));
    }
    Ok((table, (there.workers, there.steer_by) != (header.workers, header.steer_by)))
}

/// The table of HTTP and TLS connections: the old one if it has the right shape, else a new one. `is_left`: another
/// process has left something. The table of layer 4 is there already.
pub(crate) fn splices(
    settings: &Settings,
    is_left: bool,
    table: &SharedTable,
    steering: &Steering,
) -> Result<SplicedTable> {
    let path = table_path(settings, Content::Splices);
    let old = match SplicedTable::open(&path)? {
        OpenedTable::Incompatible(why) => {
            log(&format!("warning: {why}; connections of HTTP and TLS services are reset"));
            None
        }
        // Seals of connections go by the steering key: without layer 4's table, none is right.
        OpenedTable::Table(old) if is_left && old.header().steering_key == table.header().steering_key => Some(old),
        OpenedTable::Table(_) | OpenedTable::Absent => None,
    };
    let mut header = TableHeader { content: Content::Splices, ..table.header().clone() };
    let most = header.connections;
    header.connections = match (settings.http_connections_max, &old) {
        (Some(count), _) => count.div_ceil(u32::from(header.workers)).min(most),
        // The size stays as it is, even if the file system has less room now than when the table was made.
        (None, Some(old)) if old.header().workers == header.workers => old.header().connections.min(most),
        (None, _) => SplicedTable::fitting(&path, &header, table)?.min(SPLICES_MAX),
    };
    match old {
        Some(old) if *old.header() == header => Ok(old),
        Some(old) => rebuilt(old, &path, &header, table, steering),
        None => SplicedTable::create(&path, &header, table),
    }
}

/// The clients of limits. Unlike connections they can be begun anew without harm.
fn limits(settings: &Settings, beside: &TableHeader, began: Began) -> Result<LimitTable> {
    let path = table_path(settings, Content::Limits);
    let (table, adopted) = shared::limit_table(&path, (settings.limited_clients_max, beside), cpu::now())?;
    if let Err(why) = adopted {
        log(&format!("warning: {why}; limits of clients begin anew"));
    }
    if began != Began::Upgrade {
        table.forget_processes();
    }
    Ok(table)
}

/// A table of HTTP and TLS connections of another shape.
fn rebuilt(
    old: SplicedTable,
    path: &Path,
    header: &TableHeader,
    table: &SharedTable,
    steering: &Steering,
) -> Result<SplicedTable> {
    let there = old.header().clone();
    let (rebuilt, dealt) = SplicedTable::rebuild(old, path, header, table, (cpu::now(), steering))?;
    let told = if dealt.dropped + dealt.reset == 0 {
        String::new()
    } else {
        format!("; warning: {} did not fit, {} are reset for want of room", dealt.dropped, dealt.reset)
    };
    log(&format!(
        "the table of HTTP and TLS connections is dealt out anew: from {} workers to {}, from {} to {} clients' connections \
         each: {} go on{told}",
        there.workers, header.workers, there.connections, header.connections, dealt.client_conns
    ));
    Ok(rebuilt)
}

/// The workers' devices, on a plane that makes some.
pub(crate) fn tap_names(settings: &Settings, workers: usize) -> Vec<String> {
    match settings.plane {
        PlaneChoice::Linux => (0..workers).map(|worker| tap_name(&settings.instance, worker)).collect(),
        PlaneChoice::Dpdk => Vec::new(),
    }
}

/// Removes routes to the VIPs of services that are no more, and notes which are left.
pub(crate) fn remove_surplus_routes(record: &mut InstanceRecord, snapshot: &Snapshot, socket: &Path) -> Result<()> {
    let needed = local_routes::needed(snapshot, &record.local_routes)?;
    let (routes, removed) = local_routes::remove_others(&record.local_routes, &needed);
    removed?;
    record.local_routes = routes;
    record.write(socket)
}

/// Removes the devices of workers that are no more, by `remove`, and notes which are left.
pub(crate) fn remove_surplus_devices(
    record: &mut InstanceRecord,
    wanted: Vec<String>,
    socket: &Path,
    remove: impl Fn(&str) -> std::io::Result<()>,
) -> Result<()> {
    for name in record.taps.iter().filter(|name| !wanted.contains(name)) {
        remove(name).with_context(|| format!("cannot remove the device {name}"))?;
    }
    record.taps = wanted;
    record.write(socket)
}

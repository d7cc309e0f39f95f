//! Changes while it runs: how a configuration comes into force, what a file would change, backends overridden at run time, numbers
//! of removed services and backends freed.

use super::acme::OpenChallenges;
use super::begin::table_path;
use super::certificates::Certificates;
use super::host::unix_s;
use super::instance::InstanceRecord;
use super::plane::ForwardingTable;
use super::policer::ServiceRate;
use super::supervisor::Supervisor;
use super::thread::WorkerCommand;
use super::{begin, effective_weights, host, log, reading, set_up, tell};
use crate::access_log::{AccessLogSettings, ServiceRecords};
use crate::config::words::spoken;
use crate::config::{self, Config, DpdkSettings, PlaneChoice, SetUpChoice};
use crate::control::{BackendChange, Changes};
use crate::diff;
use crate::events::EventKind;
use crate::monitor::MonitorSettings;
use crate::registry::{Merged, Registry};
use anyhow::{Context, Result};
use hairpin_acme::ChallengeAnswer;
use hairpin_core::balance::Tables;
use hairpin_core::config::{ServiceState, Snapshot};
use hairpin_core::l7::config::Kind;
use hairpin_core::worker::{Update, Which};
use hairpin_linux::shared::Content;
use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

impl Supervisor {
    /// The changes that the configuration `text` would make.
    pub(super) fn diff(&self, text: &str, file: &str) -> std::result::Result<Changes, String> {
        let new = config::parse(file, text).map_err(|problems| problems.to_string())?;
        Ok(diff::changes(&self.config, &new.with_answers(&self.config.answers)))
    }

    /// Overrides a backend; a sentence that says what is different.
    pub(super) fn set_backend(&mut self, change: &BackendChange) -> std::result::Result<String, String> {
        let mut registry = self.registry.clone();
        let done = registry.set(change, &self.config).map_err(|error| format!("{error:#}"))?;
        self.apply(self.config.clone(), registry, self.termination.certificates.clone())
            .map_err(|error| format!("{error:#}"))?;
        tell(EventKind::Backend, &done);
        Ok(done)
    }

    /// Frees the numbers of removed services and backends that have no connections any more.
    pub(super) fn tidy(&mut self) {
        let counts = self.connections_by_backend();
        let connections = |number: u16| counts.get(usize::from(number)).copied().unwrap_or(0);
        if self.registry.frees_now(&connections, unix_s())
            && let Err(error) =
                self.apply(self.config.clone(), self.registry.clone(), self.termination.certificates.clone())
        {
            log(&format!("warning: what was removed stays for now: {error:#}"));
        }
        // The kernel's routes say which addresses outer headers have as their source, and may have changed.
        if let Err(error) = self.plane.configure_backends(&self.snapshot) {
            log(&format!("warning: changes of routes to backends are not in force: {error:#}"));
        }
    }

    /// Puts a configuration into force; overrides that have ended, a sentence each. Fails before anything has changed, or
    /// not at all, as far as that can be told.
    pub(super) fn apply(
        &mut self,
        config: Config,
        mut registry: Registry,
        certificates: Certificates,
    ) -> Result<Vec<String>> {
        let counts = self.connections_by_backend();
        let connections = |number: u16| counts.get(usize::from(number)).copied().unwrap_or(0);
        let merged = registry.merge(&config, &connections, unix_s())?;
        let mut snapshot = merged.snapshot.clone();
        self.challenges.apply_to(&mut snapshot);
        let snapshot = Arc::new(snapshot);
        self.forward_for(&snapshot)?;
        let applied =
            self.open_terminated(&snapshot).and_then(|()| self.put_into_force(config, registry, merged, snapshot));
        self.schedule();
        if applied.is_ok() {
            self.termination.certificates = certificates;
            self.configure_termination()?;
            let limits = self.snapshot.services.iter().flat_map(|service| &service.limits);
            self.parameters.limits.forget_limits_but(&limits.map(|limit| limit.id).collect::<Vec<_>>());
        }
        // Of the new configuration, or if that is not in force, of the old one.
        self.close_unneeded();
        applied
    }

    /// Has the host forward packets of a family that `snapshot` is the first to use, or refuses it, as at the start.
    fn forward_for(&mut self, snapshot: &Snapshot) -> Result<()> {
        let off = host::forwarding_off(&self.config.settings, snapshot, Some(&self.snapshot))?;
        if off.is_empty() {
            return Ok(());
        }
        self.record.forwarding.extend(off.iter().cloned());
        self.record.write(&self.socket)?;
        begin::forward(&off)
    }

    /// Serves certificates whose files have changed.
    pub(super) fn reread_certificates(&mut self) {
        if !self.termination.reread(&self.config) {
            return;
        }
        let tls = self.termination.certificates.backend_tls(&self.merged.numbers);
        let by_kernel = self.config.settings.plane == PlaneChoice::Linux;
        let targets = effective_weights::targets(&self.snapshot, &self.merged.settings, &tls, by_kernel);
        if let Err(error) = self.configure_termination().and_then(|()| self.health.update(targets)) {
            log(&format!("warning: {error:#}"));
        }
    }

    /// Puts the configuration into force for services whose connections end here.
    pub(super) fn configure_termination(&mut self) -> Result<()> {
        let in_force = (&self.snapshot, &self.tables);
        self.termination.configure(&self.config, &self.merged, in_force, (&self.listeners, &self.challenges))?;
        self.inspector.ask_terminated(self.termination.lister());
        Ok(())
    }

    /// Gives a CA these answers, and no others. A worker takes them over like a reload that changes nothing else.
    pub(super) fn answer_challenges(&mut self, answers: Vec<ChallengeAnswer>) -> Result<()> {
        let challenges = OpenChallenges::new(answers)?;
        if challenges.http != self.challenges.http {
            let mut snapshot = (*self.snapshot).clone();
            challenges.apply_to(&mut snapshot);
            let snapshot = Arc::new(snapshot);
            self.update_workers(&snapshot, [&[], &[]])?;
            self.parameters.snapshot = Arc::clone(&snapshot);
            self.inspector.follow(Arc::clone(&snapshot));
            self.snapshot = snapshot;
        }
        self.challenges = challenges;
        self.configure_termination()
    }

    /// Has the workers take over `snapshot`; `fresh`: numbers of backends and services that are not those of before.
    fn update_workers(&mut self, snapshot: &Arc<Snapshot>, fresh: [&[u16]; 2]) -> Result<()> {
        let mut updates = self.updates(snapshot, fresh).into_iter();
        let heartbeat = || self.plane.heartbeat();
        self.worker_pool.command(
            |_| updates.next().map_or(WorkerCommand::End(Vec::new()), |update| WorkerCommand::Update(Box::new(update))),
            heartbeat,
        )
    }

    fn put_into_force(
        &mut self,
        config: Config,
        registry: Registry,
        merged: Merged,
        snapshot: Arc<Snapshot>,
    ) -> Result<Vec<String>> {
        // Known numbers first, so that a process that starts after a crash knows them too.
        registry.save(&InstanceRecord::numbers(&self.socket))?;
        self.plane.begin_backends(&merged.fresh_backends).context("cannot clear counters")?;
        self.plane.begin_services(&merged.fresh_services).context("cannot read counters")?;
        let forwarding_tables = self.plane.forwarding_tables(&snapshot)?;
        super::former::keep(&self.socket, &merged, &self.options.file, &config.text);
        self.plane.suspend_set_up();
        self.plane.configure_backends(&snapshot)?;
        if let Some([before, _]) = &forwarding_tables {
            self.forward_by(before)?;
        }
        // Workers know what is new before packets come, and what is gone after they have ceased to come.
        self.update_workers(&snapshot, [&merged.fresh_backends, &merged.fresh_services])?;
        if let Some([_, after]) = &forwarding_tables {
            self.forward_by(after)?;
        }
        self.plane.configure(&snapshot)?;
        let notes = merged.notes.clone();
        self.settle(config, registry, merged, snapshot);
        self.renew_cookies();
        Ok(notes)
    }

    fn forward_by(&mut self, table: &Arc<ForwardingTable>) -> Result<()> {
        let command = |_| WorkerCommand::ForwardingTable(Arc::clone(table));
        self.worker_pool.command(command, || self.plane.heartbeat())
    }

    /// The access log that `config` asks for, with the rings that there are.
    fn access_log_of(&self, config: &Config) -> Option<AccessLogSettings> {
        let buffer = self.parameters.record_bytes;
        config.settings.access_log.clone().map(|log| AccessLogSettings { buffer, ..log })
    }

    /// Takes note of what is in force now.
    fn settle(&mut self, config: Config, registry: Registry, merged: Merged, snapshot: Arc<Snapshot>) {
        // A setting that needs a restart stays as it was, so that the next comparison names it again.
        let running = &self.config.settings;
        let linux = crate::config::LinuxSettings {
            attach: running.linux.attach,
            tap_queue: running.linux.tap_queue,
            coalesce: running.linux.coalesce,
            pin_directory: running.linux.pin_directory.clone(),
            forwarding: running.linux.forwarding,
            ..config.settings.linux.clone()
        };
        // The file has been judged by it.
        let probes = config.settings.dpdk.as_ref().map(|dpdk| dpdk.probes);
        let dpdk = running.dpdk.clone().map(|dpdk| DpdkSettings { probes: probes.unwrap_or(dpdk.probes), ..dpdk });
        let settings = crate::config::Settings {
            linux,
            dpdk,
            keys_file: config.settings.keys_file.clone(),
            api: config.settings.api.clone(),
            acme: config.settings.acme.clone(),
            log: config.settings.log,
            access_log: self.access_log_of(&config),
            tracing: config.settings.tracing.clone(),
            resolver: config.settings.resolver.clone(),
            monitors: config.settings.monitors.clone(),
            drain_limit: config.settings.drain_limit,
            timeouts: config.settings.timeouts,
            ..running.clone()
        };
        self.config = Config { settings, ..config };
        super::log::configure(&self.config.settings.log);
        self.parameters.configure_records(&self.config.settings, &snapshot, ServiceRecords::of(&merged.settings));
        self.plane.set_options(&self.config.settings);
        self.monitor();
        self.rates.resize(snapshot.services.len(), ServiceRate::new(self.config.settings.linux.policer_ceiling));
        let ceiling = self.config.settings.linux.policer_ceiling;
        self.rates.iter_mut().for_each(|rate| rate.set_ceiling(ceiling));
        for &number in &merged.fresh_services {
            self.rates[usize::from(number)] = ServiceRate::new(ceiling);
        }
        self.parameters.snapshot = Arc::clone(&snapshot);
        self.inspector.follow(Arc::clone(&snapshot));
        self.registry = registry;
        let tls = self.termination.certificates.backend_tls(&merged.numbers);
        let by_kernel = self.config.settings.plane == PlaneChoice::Linux;
        let targets = effective_weights::targets(&snapshot, &merged.settings, &tls, by_kernel);
        let checked: HashSet<u16> = targets.iter().map(|target| target.backend).collect();
        if let Err(error) = self.health.update(targets) {
            log(&format!("warning: health checks go on as they were: {error:#}"));
        }
        // A backend that is no longer checked counts as up.
        for backend in snapshot.services.iter().flat_map(|service| &service.backends) {
            if !checked.contains(&backend.number) {
                self.parameters.effective_weights.set(backend.number, hairpin_core::balance::SHARE_FULL);
            }
        }
        self.merged = merged;
        self.snapshot = snapshot;
        self.stand();
    }

    /// The update for each worker; everything that takes time is done here.
    fn updates(&mut self, snapshot: &Arc<Snapshot>, [backends, services]: [&[u16]; 2]) -> Vec<Update> {
        self.tables = Tables::new(snapshot, &self.tables);
        let parameters = &self.parameters;
        let ended = ended(&self.snapshot, snapshot);
        let update = |worker| {
            let (loads, steering, seed) = (&parameters.loads, &parameters.steering, parameters.seeds[3]);
            let mut update = Update::new(Arc::clone(snapshot), &self.tables, loads, steering, worker, seed);
            update.fresh = backends.to_vec();
            update.fresh_services = services.to_vec();
            update.ended.clone_from(&ended);
            update
        };
        (0..parameters.steering.workers).map(update).collect()
    }

    fn connections_by_backend(&self) -> Vec<u64> {
        let mut counts = Vec::new();
        for reading in self.worker_readings() {
            let backends = &reading.statistics.backends;
            if counts.len() < backends.len() {
                counts.resize(backends.len(), 0);
            }
            backends.iter().zip(&mut counts).for_each(|(backend, count)| *count += backend.connections_now);
        }
        counts
    }
}

/// Backends whose connections end: those of a service that speaks another protocol from now on, and of one that spliced
/// and is no more, whose requests can no longer be routed. What a service terminated are no worker's connections.
fn ended(before: &Snapshot, after: &Snapshot) -> Vec<(u16, Which)> {
    let mut ended = Vec::new();
    for (number, was) in before.services.iter().enumerate().filter(|(_, was)| was.state == ServiceState::Active) {
        let is = after.services.get(number);
        let goes_on = is.is_some_and(|is| is.kind.is_like(&was.kind));
        let forwards_on = is.is_none_or(|is| !is.kind.is_layer7()) && !was.kind.is_spliced();
        if goes_on || forwards_on || was.kind.is_terminated() {
            continue;
        }
        let mut kind = was.kind.clone();
        let groups: BTreeSet<usize> = kind.groups_mut().map(|group| usize::from(*group)).chain([number]).collect();
        let services = groups.into_iter().filter_map(|group| before.services.get(group));
        ended.extend(services.flat_map(|service| &service.backends).map(|backend| (backend.number, Which::All)));
    }
    ended
}

/// The messages at the start.
pub(super) fn summary(config: &Config, snapshot: &Snapshot, cpus: &[usize]) -> String {
    let settings = &config.settings;
    let cores: Vec<String> = cpus.iter().map(ToString::to_string).collect();
    let devices = settings.devices();
    let mut lines = vec![format!(
        "instance {} serves on {}: {} worker{} on cores {}, connection table {}, offload {}, connections in {} and {}",
        settings.instance,
        if devices.is_empty() { "no interface".to_string() } else { devices.join(", ") },
        cpus.len(),
        if cpus.len() == 1 { "" } else { "s" },
        cores.join(", "),
        settings.connection_table.name(),
        settings.policy.name(),
        table_path(settings, Content::Connections).display(),
        table_path(settings, Content::Splices).display()
    )];
    if let Some(file) = &settings.keys_file {
        lines.push(format!("  keys of cookies from {}: {}", file.display(), config::keys::said(&snapshot.keys)));
    }
    if settings.set_up == SetUpChoice::Engine {
        lines.push("  the BPF programs set connections up".to_string());
        lines.extend(set_up::exceptions(snapshot).iter().map(|said| format!("  but {said}")));
    }
    let monitor =
        |monitor: &MonitorSettings| format!("  monitor {} on {}", monitor.name, monitor.interfaces.join(", "));
    lines.extend(settings.monitors.iter().map(monitor));
    const SHOWN: usize = 16;
    let services = || snapshot.services.iter().filter(|service| service.state == ServiceState::Active);
    for service in services().take(SHOWN) {
        let backends = service.backends.len();
        let end = match service.kind {
            Kind::Group => String::new(),
            _ => format!(" on {}/{}", service.endpoint, spoken(service)),
        };
        lines.push(format!(
            "  {}{end}, {backends} backend{}, {}",
            service.name,
            if backends == 1 { "" } else { "s" },
            reading::balance(settings, service.algorithm)
        ));
    }
    if services().count() > SHOWN {
        lines.push(format!("  and {} more services", services().count() - SHOWN));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::super::listeners::terminate;
    use super::*;
    use crate::config::parse;

    const HEAD: &str = "interfaces = [\"a\"]\npool.addresses = [\"10.0.9.1\"]\n";
    const OTHER: &str = "[[service]]\nname = \"o\"\nlisten = \"192.0.2.9:1/tcp\"\nbackends = [\"10.0.0.9:1\"]\n";
    const GROUP: &str =
        "[[service.group]]\nname = \"g\"\nbackends = [\"10.0.0.2:80\"]\n[[service.route]]\ngroup = \"g\"\n";

    fn web(protocol: &str) -> String {
        let https = if protocol == "https" { "https.certificates = \"/c\"\n" } else { "" };
        format!(
            "[[service]]\nname = \"w\"\nlisten = \"192.0.2.1:80/{protocol}\"\nbackends = [\"10.0.0.1:80\"]\n{https}"
        )
    }

    /// Which backends' connections a reload from the one to the other ends, as numbers.
    fn between(before: &str, after: &str) -> Vec<u16> {
        let mut registry = Registry::default();
        let mut snapshot = |text: &str| {
            let config = parse("t", &format!("{HEAD}{OTHER}{text}")).unwrap_or_else(|problems| panic!("{problems}"));
            registry.merge(&config, &|_| 1, 0).unwrap().snapshot
        };
        let (before, after) = (snapshot(before), snapshot(after));
        ended(&before, &after).into_iter().map(|(number, _)| number).collect()
    }

    #[test]
    fn changed_service_protocol_ends_connections() {
        let http = web("http") + GROUP;
        assert_eq!(between(&http, &http), [0; 0]);
        assert_eq!(between(&web("tcp"), &web("tcp")), [0; 0]);
        assert_eq!(between(&http, &web("tls")), [1, 2]);
        assert_eq!(between(&http, &web("tcp")), [1, 2]);
        assert_eq!(between(&web("tcp"), &http), [1]);
        // Of what is removed: requests cannot be routed any more, forwarded connections go on.
        assert_eq!(between(&http, ""), [1, 2]);
        assert_eq!(between(&web("tcp"), ""), [0; 0]);
        // Sockets take over from workers, or workers from sockets, whose connections are not theirs to end.
        let https = web("https") + GROUP;
        assert_eq!(between(&http, &https), [1, 2]);
        assert_eq!(between(&web("tcp"), &https), [1]);
        assert_eq!([&http, &web("tcp"), ""].map(|after| between(&https, after)), [[0; 0]; 3]);
        // A group alone drains.
        assert_eq!(between(&http, &web("http")), [0; 0]);
    }

    #[test]
    fn service_that_becomes_terminated_ends_connections() {
        let mut registry = Registry::default();
        let mut snapshot = |protocol: &str| {
            let config = parse("t", &format!("{HEAD}{OTHER}{}", web(protocol))).unwrap();
            registry.merge(&config, &|_| 1, 0).unwrap().snapshot
        };
        let [tcp, mut https] = ["tcp", "http"].map(&mut snapshot);
        terminate(&mut https);
        let numbers = |before, after| ended(before, after).into_iter().map(|(number, _)| number).collect::<Vec<u16>>();
        assert_eq!((numbers(&tcp, &https), numbers(&https, &https)), (vec![1], vec![]));
    }
}

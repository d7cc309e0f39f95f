//! The main thread: it supervises the workers.

mod upgrade;

use super::acme::{AutomaticCertificates, OpenChallenges};
use super::api::ApiState;
use super::begin::Began;
use super::capacity;
use super::effective_weights::{self, BackupsInUse};
use super::generations::Generations;
use super::handover::Legacy;
use super::host::unix_s;
use super::inspect::{EngineView, Inspector};
use super::instance::{InstanceRecord, Lock};
use super::listeners::Listeners;
use super::names::{self, NameLookups};
use super::outliers;
use super::plane::{self, Plane};
use super::policer::{ServiceRate, WorkerLoad};
use super::reading::{self, Reading, WorkerReading};
use super::ready::{self, NotifiedReadiness};
use super::termination::Termination;
use super::thread::{ThreadShared, WorkerCommand};
use super::worker_pool::{WorkerParameters, WorkerPool};
use super::{ProcessEnd, RunOptions, SupervisorMessage, log, notify, tell};
use crate::config::{Config, PlaneChoice};
use crate::events::EventKind;
use crate::health::{Checker, Health, Outliers};
use crate::metrics;
use crate::monitor::Monitors;
use crate::registry::{Merged, Registry};
use crate::status::{AccessLogStatus, MonitorStatus, OffloadStatus, ReloadStatus, Status, TracingStatus};
use anyhow::Result;
use hairpin_core::balance::{Tables, uses_backups};
use hairpin_core::config::Snapshot;
use hairpin_core::worker::Adopted;
use hairpin_linux::cpu;
use hairpin_linux::shared::SharedTable;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

/// How often the process gives a sign of life and adapts the policer.
const HEARTBEAT: Duration = Duration::from_millis(100);
/// How many heartbeats apart readings are that rates are worked out from.
const READ_HEARTBEATS: usize = 10;
/// How many heartbeats apart the checker is told what clients' connections show.
const OBSERVE_HEARTBEATS: usize = 3;
/// How many heartbeats apart numbers of what is no more are freed.
const TIDY_HEARTBEATS: usize = 100;
/// How long the workers' newest numbers are waited for; after that, those of 100 ms ago do.
const FRESH_PATIENCE: Duration = Duration::from_millis(20);
/// How long a client that asked for an upgrade may take to hear of it.
const TELL_PATIENCE: Duration = Duration::from_secs(1);

/// The event of a process that was ended because more would have drained than may.
const DRAINING_ENDED: &str = "draining-ended";

/// The parts of a supervisor.
pub(super) struct SupervisorParts {
    pub(super) began: Began,
    pub(super) adopted: Adopted,
    pub(super) config: Config,
    pub(super) options: RunOptions,
    pub(super) api: ApiState,
    pub(super) record: InstanceRecord,
    pub(super) registry: Registry,
    pub(super) merged: Merged,
    pub(super) snapshot: Arc<Snapshot>,
    pub(super) plane: Box<dyn Plane>,
    pub(super) table: SharedTable,
    pub(super) parameters: WorkerParameters,
    pub(super) worker_pool: WorkerPool,
    pub(super) listeners: Listeners,
    pub(super) termination: Termination,
    pub(super) generations: Generations,
    pub(super) legacy: Legacy,
    pub(super) socket: PathBuf,
    pub(super) sender: Sender<SupervisorMessage>,
}

/// The main thread's state.
pub(super) struct Supervisor {
    pub(super) config: Config,
    pub(super) options: RunOptions,
    pub(super) api: ApiState,
    pub(super) registry: Registry,
    pub(super) merged: Merged,
    pub(super) snapshot: Arc<Snapshot>,
    pub(super) plane: Box<dyn Plane>,
    pub(super) parameters: WorkerParameters,
    /// Maglev tables of the services, as far as they have been made here.
    pub(super) tables: Tables,
    /// By service number: that of the schedule by which the engine chooses its backends.
    pub(super) schedules: Vec<Option<u16>>,
    pub(super) worker_pool: WorkerPool,
    /// The sockets of terminated services.
    pub(super) listeners: Listeners,
    /// There are local routes that no service needs, but connections of removed ones do.
    pub(super) routes_kept: bool,
    pub(super) termination: Termination,
    /// Processes that have handed over, and drain.
    pub(super) generations: Generations,
    /// Answers to CAs that are in force.
    pub(super) challenges: OpenChallenges,
    automatic: AutomaticCertificates,
    pub(super) lookups: NameLookups,
    pub(super) socket: PathBuf,
    pub(super) health: Checker,
    pub(super) rates: Vec<ServiceRate>,
    pub(super) reloads: ReloadStatus,
    pub(super) inspector: Inspector,
    pub(super) readiness: NotifiedReadiness,
    pub(super) outliers: Outliers,
    pub(super) backups: BackupsInUse,
    /// Draining backends whose connections have been ended.
    pub(super) ended: BTreeSet<u16>,
    pub(super) record: InstanceRecord,
    began: Began,
    adopted: Adopted,
    /// Kept mapped: the workers' connections lie in it.
    table: SharedTable,
    pub(super) sender: Sender<SupervisorMessage>,
    started: Instant,
    load: WorkerLoad,
    capacity: capacity::CapacityWatch,
    metrics: Option<metrics::MetricsServer>,
    monitors: Monitors,
    /// Readings from a second ago or a little more, and from less than a second ago.
    readings: [Option<Reading>; 2],
}

impl Supervisor {
    pub(super) fn new(parts: SupervisorParts) -> Result<Supervisor> {
        let SupervisorParts { began, adopted, config, options, record, registry, merged, snapshot, .. } = parts;
        let SupervisorParts { plane, mut table, parameters, worker_pool, listeners, termination, legacy, .. } = parts;
        let SupervisorParts { socket, sender, generations, api, .. } = parts;
        let tls = termination.certificates.backend_tls(&merged.numbers);
        let by_kernel = config.settings.plane == PlaneChoice::Linux;
        let targets = effective_weights::targets(&snapshot, &merged.settings, &tls, by_kernel);
        let teller = sender.clone();
        let on_change = move |changes: Vec<crate::health::Change>| {
            for change in &changes {
                let level = if change.to == Health::Down { "warning: " } else { "" };
                tell(EventKind::Health, &format!("{level}{change}"));
            }
            let _ = teller.send(SupervisorMessage::Health);
        };
        let health = Checker::start(targets, ready::links_down(&config.settings, &*plane), on_change)?;
        health.restore(&legacy.health);
        let inspector = Inspector::new(
            table.views()?,
            Arc::clone(&snapshot),
            EngineView::of(&*plane),
            plane::policy(&*plane, &config.settings),
            worker_pool.handles(),
        );
        inspector.ask_terminated(termination.lister());
        // The manager knows the process that this one takes over from.
        let readiness = NotifiedReadiness::new(!options.take_over);
        let rates = vec![ServiceRate::new(config.settings.linux.policer_ceiling); snapshot.services.len()];
        let mut supervisor = Supervisor {
            config,
            options,
            api,
            registry,
            merged,
            snapshot,
            plane,
            parameters,
            tables: Tables::default(),
            schedules: Vec::new(),
            worker_pool,
            listeners,
            routes_kept: false,
            termination,
            generations,
            challenges: OpenChallenges::default(),
            automatic: AutomaticCertificates::default(),
            lookups: NameLookups::default(),
            socket,
            health,
            rates,
            reloads: ReloadStatus::default(),
            inspector,
            readiness,
            outliers: Outliers::default(),
            backups: BackupsInUse::default(),
            ended: BTreeSet::new(),
            began,
            adopted,
            record,
            table,
            sender,
            started: Instant::now(),
            load: WorkerLoad::default(),
            capacity: capacity::CapacityWatch::default(),
            metrics: None,
            monitors: Monitors::default(),
            readings: [None, None],
        };
        supervisor.stand();
        supervisor.schedule();
        Ok(supervisor)
    }

    /// Begins to serve the admin address, if that is wanted.
    pub(super) fn serve_metrics(&mut self) {
        let inspector = self.inspector.clone();
        self.metrics = super::requests::serve_metrics(&self.config.settings, &self.sender, inspector, &self.socket);
    }

    /// Has certificates obtained as the configuration in force wants.
    pub(super) fn obtain_certificates(&mut self) {
        if let Err(error) = self.automatic.configure(&self.config, &self.sender) {
            log(&format!("warning: {error:#}"));
        }
    }

    /// Has monitors work as the configuration in force wants.
    pub(super) fn monitor(&mut self) {
        let settings = &self.config.settings;
        if let Some(place) = self.plane.monitor_place(settings) {
            self.monitors.configure(&settings.monitors, &place);
        }
    }

    /// Ends the workers. Everything else stays as it is; `resets`: but connections of HTTP and TLS services, which are
    /// reset.
    ///
    /// What serves terminated services goes on, until it is dropped.
    pub(super) fn stop(mut self, resets: bool) -> Termination {
        self.monitors.end();
        self.worker_pool.end(resets);
        self.table.set_clean(true);
        self.termination
    }

    /// Serves until the end.
    pub(super) fn keep(&mut self, messages: &Receiver<SupervisorMessage>, lock: &mut Lock) -> ProcessEnd {
        let mut next = Instant::now();
        for heartbeat in 0usize.. {
            self.plane.heartbeat();
            self.police();
            self.maintain(heartbeat);
            // After a long interruption (a suspended machine) heartbeats are not made up for.
            next = (next + HEARTBEAT).max(Instant::now());
            loop {
                match messages.recv_timeout(next.saturating_duration_since(Instant::now())) {
                    Ok(message) => {
                        if let Some(end) = self.hear(message, lock) {
                            return end;
                        }
                    }
                    Err(RecvTimeoutError::Timeout) => break,
                    Err(RecvTimeoutError::Disconnected) => {
                        return ProcessEnd::Failed("no thread can send to the supervisor any more".into());
                    }
                }
            }
        }
        ProcessEnd::Failed("time has run out".into())
    }

    /// The periodic work.
    fn maintain(&mut self, heartbeat: usize) {
        self.parameters.limits.tend(cpu::now());
        if self.readiness.is_starting() || heartbeat.is_multiple_of(READ_HEARTBEATS) {
            self.tell_readiness();
        }
        if heartbeat.is_multiple_of(OBSERVE_HEARTBEATS) {
            self.health.set_links(ready::links_down(&self.config.settings, &*self.plane));
            let readings = self.worker_readings();
            self.health.observe(effective_weights::observed(&readings));
            self.eject(&readings);
            self.stand();
        }
        if heartbeat.is_multiple_of(READ_HEARTBEATS) {
            notify::alive();
            // Without a reading, rates are of a longer time.
            if let Ok(reading) = self.read() {
                let peak = self.capacity.peak();
                self.capacity.query(&capacity::status(&reading, self.rules_max(), peak));
                self.readings = [self.readings[1].take(), Some(reading)];
            }
            self.end_drained();
            self.generations.read();
        }
        if heartbeat.is_multiple_of(TIDY_HEARTBEATS) {
            if self.generations.iter().next().is_none() {
                self.parameters.limits.forget_processes();
            }
            self.with_heartbeat(Supervisor::tidy);
            self.with_heartbeat(Supervisor::retry_answers);
            self.with_heartbeat(Supervisor::reread_certificates);
            self.with_heartbeat(Supervisor::serve_api_remotely);
            self.with_heartbeat(Supervisor::tidy_routes);
            self.renew_cookies();
        }
    }

    fn why_not_ready(&self) -> Vec<Option<String>> {
        let why = ready::why_not(&self.snapshot, &self.parameters.effective_weights, self.readiness.is_settling());
        why.into_iter()
            .zip(names::why_not(&self.snapshot, &self.merged))
            .map(|(why, of_names)| of_names.or(why))
            .collect()
    }

    fn tell_readiness(&mut self) {
        let shown = reading::shown(&self.snapshot).into_iter().map(|(_, service)| service);
        let services = shown.zip(self.why_not_ready()).filter(|(service, _)| !service.kind.is_group());
        let not_ready = services.filter_map(|(service, why)| Some((service.name.to_string(), why?)));
        let settled = ready::is_settled(&self.snapshot, &self.parameters.effective_weights);
        self.readiness.tell(&not_ready.collect::<Vec<_>>(), settled);
    }

    /// Gives workers the next key of SYN cookies long before its time comes. They are told whether it is new or not:
    /// another process, one that is passing on to this one, may have drawn it, and a worker may have missed it.
    pub(super) fn renew_cookies(&mut self) {
        let renewed = self.plane.renew_cookies(self.snapshot.keys.first()).and_then(|()| {
            let cookies = self.plane.cookies();
            self.worker_pool.command(|_| WorkerCommand::Cookies(cookies), || self.plane.heartbeat())
        });
        if let Err(error) = renewed {
            log(&format!("warning: {error:#}; the last keys of SYN cookies are used on"));
        }
    }

    /// Does what may take long (tables of many services, a disk that syncs) while another thread gives signs of life.
    pub(super) fn with_heartbeat<T>(&mut self, body: impl FnOnce(&mut Supervisor) -> T) -> T {
        let heartbeat = self.plane.heartbeat_sender();
        let (done, is_done) = mpsc::channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                while let Err(RecvTimeoutError::Timeout) = is_done.recv_timeout(HEARTBEAT) {
                    heartbeat(cpu::now());
                }
            });
            let result = body(self);
            drop(done);
            result
        })
    }

    fn hear(&mut self, message: SupervisorMessage, lock: &mut Lock) -> Option<ProcessEnd> {
        match message {
            SupervisorMessage::End(end) => return Some(end),
            SupervisorMessage::Status(answer) => {
                self.generations.read();
                if self.config.settings.api.is_some() {
                    // What the status says of it.
                    let _ = self.with_heartbeat(Supervisor::document);
                }
                drop(answer.send(self.status()));
            }
            SupervisorMessage::Health => self.stand(),
            SupervisorMessage::ReopenAccessLog => {
                self.parameters.access_log.reopen();
                self.monitors.reopen();
            }
            SupervisorMessage::Challenges(answers, done) => {
                match self.with_heartbeat(|supervisor| supervisor.answer_challenges(answers)) {
                    Ok(()) => drop(done.send(())),
                    Err(error) => log(&format!("warning: answers to a CA are not in force: {error:#}")),
                }
            }
            SupervisorMessage::Certificates => self.with_heartbeat(Supervisor::reread_certificates),
            SupervisorMessage::Reload(request) => self.hear_reload(request, None),
            SupervisorMessage::Resolved(answers, request) => self.hear_reload(request, Some(answers)),
            SupervisorMessage::Names(answers) => self.with_heartbeat(|supervisor| supervisor.take_answers(answers)),
            SupervisorMessage::Document(answer) => {
                drop(answer.send(self.with_heartbeat(Supervisor::document)));
            }
            SupervisorMessage::Running(answer) => drop(answer.send(self.with_heartbeat(Supervisor::running))),
            SupervisorMessage::Write { write, answer } => {
                drop(answer.send(Ok(self.with_heartbeat(|supervisor| supervisor.write(&write)))));
            }
            SupervisorMessage::UseCertificates { request, answer } => {
                drop(answer.send(Ok(self.with_heartbeat(|supervisor| supervisor.use_certificates(&request)))));
            }
            SupervisorMessage::Diff { text, file, answer } => drop(answer.send(self.diff(&text, &file))),
            SupervisorMessage::Route { query, answer } => {
                drop(answer.send(crate::explain::explain(&self.config, &query)))
            }
            SupervisorMessage::Backend { change, answer } => {
                drop(answer.send(self.with_heartbeat(|supervisor| supervisor.set_backend(&change))))
            }
            SupervisorMessage::Upgrade { how, answer, known, client } => {
                return self.hand_over(&how, answer, (&known, client), lock);
            }
        }
        None
    }

    /// Passes how the backends stand on to the workers.
    pub(super) fn stand(&mut self) {
        if effective_weights::tell(&self.health, &self.outliers, &self.parameters.effective_weights) {
            self.worker_pool.shared().for_each(ThreadShared::wake);
            self.schedule();
        }
        for change in self.backups.follow(&self.snapshot, &self.parameters.effective_weights) {
            tell(EventKind::Health, &change);
        }
    }

    fn end_drained(&mut self) {
        let registry = &self.registry;
        let ends = effective_weights::drained(
            &self.snapshot,
            |number| registry.draining_since(number),
            unix_s(),
            &mut self.ended,
        );
        self.end_connections(ends);
    }

    fn end_connections(&self, ends: Vec<(u16, hairpin_core::worker::Which)>) {
        if ends.is_empty() {
            return;
        }
        let heartbeat = || self.plane.heartbeat();
        self.termination.end(&ends);
        if let Err(error) = self.worker_pool.command(|_| WorkerCommand::End(ends.clone()), heartbeat) {
            log(&format!("warning: connections of backends could not be ended: {error:#}"));
        }
    }

    fn police(&mut self) {
        if !self.config.settings.connection_table.tracks_connections() {
            return (0..self.snapshot.services.len()).for_each(|number| self.plane.unlimit(number));
        }
        self.load.note(self.worker_pool.shared().map(ThreadShared::busy).max().unwrap_or_default());
        // Services under a flood share the floor, so that flooding more of them does not cost the workers more.
        let suspects = self.rates.iter().filter(|rate| rate.is_suspect()).count().max(1);
        let floor = (self.config.settings.linux.policer_floor / suspects as u32).max(1);
        let crowded = self.worker_pool.shared().any(ThreadShared::is_crowded);
        for number in 0..self.rates.len() {
            let (mut established, (mut speculative, mut answered)) = (0, self.begun_in_engine(number));
            for worker in self.worker_pool.shared() {
                let service = worker.service(number);
                speculative += service.speculative;
                established += service.established;
                answered += service.answered;
            }
            let worth = if self.load.is_high() { established } else { established.max(answered) };
            self.rates[number].step(speculative, worth, crowded, floor);
            self.plane.set_policer_rate(number, self.rates[number].packets_per_s());
        }
    }

    pub(super) fn read(&self) -> Result<Reading> {
        let mut https = self.termination.reading();
        https.events.insert(DRAINING_ENDED, self.generations.ended());
        Ok(Reading {
            uptime: self.started.elapsed(),
            workers: self.worker_readings(),
            https,
            totals: self.plane.totals()?,
            access: self.plane.access_counts()?,
            events: self.plane.events()?,
        })
    }

    /// What each worker has counted, and beside it the runtime of its core.
    pub(super) fn worker_readings(&self) -> Vec<WorkerReading> {
        let mut workers: Vec<_> = self.worker_pool.shared().map(ThreadShared::reading).collect();
        self.termination.add_to(&mut workers);
        workers
    }

    fn rules_max(&self) -> u64 {
        self.plane.rules_max().into_iter().max().unwrap_or(0).into()
    }

    /// Messages about the engine.
    fn tell_engine(&self, offload: &mut OffloadStatus) {
        let words = self.plane.engine_words();
        offload.engine = self.plane.engine().to_string();
        offload.engine_detail = words.detail;
        offload.engine_counts = words.counts.into_iter().map(|(name, count)| (name.to_string(), count)).collect();
        offload.engine_lacks = words.software.into_iter().map(|(kind, why)| (kind.to_string(), why)).collect();
        offload.rules_max = self.rules_max();
        offload.policy = plane::policy(&*self.plane, &self.config.settings).to_string();
    }

    /// The status now, rates since the reading before the last: those of one to two seconds.
    fn status(&self) -> std::result::Result<Status, String> {
        self.worker_pool.shared().for_each(ThreadShared::ask);
        let patient = Instant::now() + FRESH_PATIENCE;
        self.termination.refresh(FRESH_PATIENCE);
        while Instant::now() < patient && self.worker_pool.shared().any(ThreadShared::is_asked) {
            std::thread::sleep(Duration::from_micros(100));
        }
        let now = self.read().map_err(|error| format!("it cannot read its counters: {error:#}"))?;
        let before = self.readings.iter().flatten().next().unwrap_or(&now);
        let mut status = reading::status(&self.config.settings, &self.snapshot, before, &now);
        status.capacity = capacity::status(&now, self.rules_max(), self.capacity.peak());
        self.tell_engine(&mut status.offload);
        status.ports = self.plane.ports();
        status.mbufs = self.plane.buffers();
        if let Some(https) = &mut status.https {
            https.certificates = self.termination.certificates.statuses();
        }
        status.acme = self.automatic.status();
        status.resolver = self.lookups.status(&self.config);
        let (settings, records) = (&self.config.settings, self.parameters.access_log.reading());
        status.access_log = settings.access_log.as_ref().map(|log| AccessLogStatus::new(log, &records));
        let spans = self.parameters.spans.reading();
        status.tracing =
            settings.tracing.as_ref().map(|tracing| TracingStatus::new(tracing, &spans, records.records_lost));
        status.monitors = self.monitors.readings().map(|(of, reading)| MonitorStatus::new(of, &reading)).collect();
        status.api = self.api_status();
        status.reloads = self.reloads.clone();
        status.began = self.began.name().to_string();
        status.draining = self.generations.statuses();
        status.adopted_connections = self.adopted.kept;
        status.adopted_http = reading::http::adopted(&self.adopted.splices);
        let mut health = effective_weights::statuses(&self.health, &now.workers);
        let failed = effective_weights::observed(&now.workers);
        for (shown, why) in status.services.iter_mut().zip(self.why_not_ready()) {
            (shown.ready, shown.not_ready) = (why.is_none(), why.unwrap_or_default());
        }
        for ((_, service), shown) in reading::shown(&self.snapshot).into_iter().zip(&mut status.services) {
            shown.uses_backups = uses_backups(service, &self.parameters.effective_weights);
            for (backend, shown) in service.backends.iter().zip(&mut shown.backends) {
                shown.load = self.parameters.loads.now(backend.number.into());
                shown.ejection = self.outliers.of(backend.number).map(outliers::status);
                shown.overridden = self.registry.overridden(backend.number);
                let checked = self.merged.is_checked(backend.number).then(|| health.remove(&backend.number)).flatten();
                shown.health = checked.unwrap_or_else(|| {
                    let failed = failed.get(usize::from(backend.number)).map_or(0, |(_, observed)| observed.failed);
                    effective_weights::unchecked(
                        failed,
                        effective_weights::requests_failed(backend.number, &now.workers),
                    )
                });
            }
        }
        Ok(status)
    }
}

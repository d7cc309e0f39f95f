//! `hairpin run`: the process around the workers.
//!
//! Threads: one per worker (`thread`), one that serves the control socket with one more for each client, one for
//! `/metrics`, one that checks backends, one that obtains certificates if any are wanted, one that looks up
//! names of backends if there are any, one that waits for signals, and this one, the supervisor, which ten times a second
//! tells the BPF programs that the process is alive, adapts the policer, and performs what it is asked.

mod acme;
mod api;
mod begin;
mod capacity;
mod certificates;
mod change;
mod descriptors;
#[cfg(feature = "dpdk")]
mod eal;
mod effective_weights;
mod end;
mod former;
mod generations;
mod handover;
mod host;
mod index;
mod inspect;
mod instance;
mod journal;
mod listeners;
mod local_routes;
mod log;
mod moderation;
mod names;
mod namespace;
mod notify;
mod orphan;
mod outliers;
mod plane;
mod policer;
mod reading;
mod ready;
mod reconcile;
mod reload;
mod requests;
mod rivals;
mod set_up;
mod signals;
mod splice_queries;
mod supervisor;
mod tap;
mod termination;
mod thread;
mod uploads;
mod worker_pool;

/// Bounds of the process and of its planes.
pub(crate) mod limits {
    pub(crate) use super::generations::{END_PATIENCE as GENERATION_END_PATIENCE, GENERATIONS_MAX};
    pub(crate) use super::handover::PATIENCE as HANDOVER_PATIENCE;
    pub(crate) use super::inspect::{PAGE_MAX, SEARCH_MAX};
    pub(crate) use super::listeners::BACKLOG;
    pub(crate) use super::log::EARLY_MAX as EARLY_EVENTS_MAX;
    pub(crate) use super::plane::limits as dpdk;
    pub(crate) use super::splice_queries::{QUERIES_MAX, QUERY_PATIENCE};
    pub(crate) use super::thread::COMMANDS_MAX;
    pub(crate) use super::worker_pool::{COMMAND_PATIENCE, SPLICES_MAX, START_PATIENCE};
    pub(crate) use super::{CHANGE_PATIENCE, LOCK_PATIENCE, STATUS_PATIENCE};
}

pub(crate) use host::{port_range_warning, unknown_interface};
pub(crate) use orphan::start as start_orphan;
pub(crate) use rivals::rival;

use crate::access_log::{AccessLog, ServiceRecords};
use crate::api::{Applied, CertificateAnswer, CertificateRequest, Document, Refused, WriteRequest};
use crate::config::{Config, PlaneChoice, Settings};
use crate::control::{BackendChange, Changes, RouteAnswer, RouteQuery, RunningConfiguration, Upgrade};
use crate::events::EventKind;
use crate::live;
use crate::monitor;
use crate::names::Answers;
use crate::spans::Spans;
use crate::status::Status;
use acme::OpenChallenges;
use anyhow::{Context, Result, bail};
use api::ApiState;
use begin::{Began, HandedInstance, PreparedHost, WorkerPlaces};
pub(crate) use certificates::CertificateConcern;
use certificates::Certificates;
use end::ServedProcess;
use hairpin_acme::ChallengeAnswer;
use hairpin_core::balance::{EffectiveWeights, Loads};
use hairpin_core::worker::Occupancy;
use hairpin_linux::cpu;
use hairpin_linux::tap::Tap;
use handover::{Inheritance, Predecessor};
use instance::{InstanceRecord, Lock};
use listeners::Listeners;
pub(crate) use log::tell;
use log::{keep, keep_events, log};
use names::ReloadRequest;
use plane::linux::Passed;
use signal_hook::consts::SIGINT;
use signal_hook::iterator::Signals;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};
use supervisor::Supervisor;
use termination::Termination;
use tokio::sync::oneshot;
use worker_pool::{RECORD_BYTES, WorkerMemory, WorkerParameters};

/// Reads the certificates that a configuration names: those that are not valid now, or will soon not be.
///
/// # Errors
/// The first service or group whose files cannot be used, and why.
pub(crate) fn certificate_concerns(config: &Config) -> Result<Vec<CertificateConcern>> {
    Ok(Certificates::load(config)?.concerns())
}

/// How long a status may take to make.
pub(crate) const STATUS_PATIENCE: Duration = Duration::from_secs(2);
/// How long a change of the configuration may take, and a hand-over.
pub(crate) const CHANGE_PATIENCE: Duration = Duration::from_secs(60);
/// How long a process may take to release its lock.
pub(crate) const LOCK_PATIENCE: Duration = Duration::from_secs(5);

/// How to run.
#[derive(Clone, Debug, Default)]
pub struct RunOptions {
    /// The file the configuration came from, to be read again at a reload.
    pub file: PathBuf,
    /// Remove what an earlier process has left instead of adopting it.
    pub discard: bool,
    /// Take over from the process that has started this one.
    pub take_over: bool,
    /// Then without its connections of HTTP and TLS services.
    pub reset_http: bool,
}

type ReplySender<T> = Sender<std::result::Result<T, String>>;

/// A message to the supervisor.
enum SupervisorMessage {
    /// It is over.
    End(ProcessEnd),
    /// Read the configuration again: for a signal, or for a client of the control socket, which may name the file, and may give up
    /// what the API changed.
    Reload(ReloadRequest),
    /// Read the configuration again, with the first answers for names that are new in the file.
    Resolved(Arc<Answers>, ReloadRequest),
    /// The names of backends have other answers now.
    Names(Arc<Answers>),
    /// The API asks for the configuration in force.
    Document(ReplySender<Arc<Document>>),
    /// A client of the control socket asks for it.
    Running(ReplySender<RunningConfiguration>),
    /// Put a write of the API into force.
    Write { write: Box<WriteRequest>, answer: ReplySender<std::result::Result<Applied, Refused>> },
    /// Do what a client of the API asks of certificates.
    UseCertificates {
        request: Box<CertificateRequest>,
        answer: ReplySender<std::result::Result<CertificateAnswer, Refused>>,
    },
    /// A client of the control socket, or the metrics server, requests the status.
    Status(ReplySender<Status>),
    /// Asks what a configuration would change.
    Diff { text: String, file: String, answer: ReplySender<Changes> },
    /// Say what would become of a request.
    Route { query: RouteQuery, answer: ReplySender<RouteAnswer> },
    /// Change a backend at run time.
    Backend { change: BackendChange, answer: ReplySender<String> },
    /// Hand over to another process; the answer is its number. `known` is told when the client knows it; `client` waits
    /// until it is dropped.
    Upgrade { how: Upgrade, answer: ReplySender<u32>, known: Receiver<()>, client: Sender<()> },
    /// A backend's health has changed.
    Health,
    /// The file of the access log has been moved away.
    ReopenAccessLog,
    /// Give a CA these answers, and no others.
    Challenges(Vec<ChallengeAnswer>, oneshot::Sender<()>),
    /// Another certificate lies in its file.
    Certificates,
}

/// Why the process ends.
#[derive(Debug)]
enum ProcessEnd {
    /// A signal.
    Signal(i32),
    /// A client of the control socket asked for it.
    Asked { flush: bool },
    /// Another process serves now.
    HandedOver {
        pid: u32,
        /// Dropped when this process has nothing of the instance any more but connections that drain.
        client: Sender<()>,
    },
    /// A worker ended by itself, with what it said.
    Worker(usize, String),
    /// The supervisor could not go on.
    Failed(String),
}

impl ProcessEnd {
    /// Whether everything is removed. What a crashed worker leaves is like what a crashed process leaves: the kernel goes
    /// on with it.
    fn flushes(&self) -> bool {
        matches!(self, ProcessEnd::Asked { flush: true } | ProcessEnd::Signal(SIGINT))
    }
}

/// Serves `config` until the end.
///
/// # Errors
/// The start failed (everything this process has made is taken back then), a worker failed, or something could not be
/// removed at the end.
pub fn run(config: Config, options: RunOptions) -> Result<()> {
    // What the API left holds in place of the file.
    let (config, file) = api::resolve(config, &options.file)?;
    let api = ApiState::new(file);
    log::configure(&config.settings.log);
    // From here on they wait until everything stands, and then end the process in order.
    let signals = signals::listen()?;
    if !options.take_over {
        rivals::refuse(&config)?;
    }
    host::require_rights()?;
    let interfaces = host::interfaces(&config.settings)?;
    monitor::check(&config.settings.monitors)?;
    let config = names::begin(config);
    live::warn(&config, log);
    // Before anything is changed: a certificate that cannot be served is a mistake of the configuration.
    let certificates = Certificates::load(&config)?;
    certificates.warn();
    let cpus = worker_cpus(&config.settings)?;
    let socket = config.settings.socket();
    let (lock, handed, predecessor) = if options.take_over {
        let (lock, handed, predecessor) = take_over(&config, &cpus, options.reset_http)?;
        (lock, Some(handed), Some(predecessor))
    } else {
        (take_lock(&config.settings)?, None, None)
    };
    keep_events(&socket);
    let fresh = !options.take_over && (options.discard || InstanceRecord::read(&socket)?.is_none());
    let machine = WorkerPlaces { interfaces: &interfaces, cpus: &cpus };
    let base = match begin::begin(&config, machine, options.discard, handed) {
        Ok(base) => base,
        Err(error) => {
            keep(EventKind::Stop, &format!("warning: the process did not start: {error:#}"));
            if fresh {
                lock.remove();
            }
            return Err(error);
        }
    };
    let served =
        ServingProcess { config, options, api, cpus, socket, lock, predecessor, certificates }.serve(base, signals);
    if let Err(error) = &served.result {
        keep(EventKind::Stop, &format!("warning: the process did not start: {error:#}"));
    }
    served.finish(fresh)
}

/// Takes the instance's lock.
fn take_lock(settings: &Settings) -> Result<Lock> {
    match Lock::take(&settings.socket())? {
        Ok(lock) => Ok(lock),
        Err(process) => {
            let process = process.map_or_else(String::new, |process| format!(" (process {process})"));
            bail!(
                "instance {} is already running{process}; stop it with `hairpin stop`, replace it with `hairpin upgrade`, \
                 or choose another `instance`",
                settings.instance
            );
        }
    }
}

/// Prepares what takes time, then takes over from the process that has started this one.
fn take_over(config: &Config, cpus: &[usize], reset_http: bool) -> Result<(Lock, HandedInstance, Predecessor)> {
    let mut predecessor = Predecessor::find()?;
    let prepared = prepare(config, cpus, reset_http);
    let programs = prepared.inspect_err(|error| predecessor.decline(error))?;
    predecessor.say("ready")?;
    let inherited = predecessor.inherit(&config.settings.socket())?;
    let passed = Passed { taps: inherited.taps, programs: Some(programs) };
    let Inheritance { listeners, generations, legacy, .. } = inherited;
    let handed = HandedInstance { passed, listeners, generations, legacy };
    Ok((inherited.lock, handed, predecessor))
}

/// The programs of the process that is to be taken over from, if this one can do that.
fn prepare(config: &Config, cpus: &[usize], reset_http: bool) -> Result<plane::linux::InstancePrograms> {
    let steering = begin::inspect(config, cpus.len() as u16, reset_http)?;
    if config.settings.plane != PlaneChoice::Linux {
        bail!("only the linux plane can be taken over from a living process");
    }
    let programs = plane::linux::adopt(&config.settings, steering)?;
    programs.context("the old process has no objects in the kernel")
}

/// Removes what a dead process of the instance behind `socket` has left.
///
/// # Errors
/// It is alive, or something could not be removed.
pub(crate) fn flush_dead(socket: &Path) -> Result<()> {
    // The process may take a moment to release its lock after it has closed its socket.
    let deadline = Instant::now() + LOCK_PATIENCE;
    let lock = loop {
        match Lock::take(socket)? {
            Ok(lock) => break lock,
            Err(_) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(20)),
            Err(process) => {
                bail!("the instance is alive{}", process.map_or(String::new(), |p| format!(" (process {p})")))
            }
        }
    };
    if let Some(record) = InstanceRecord::read(socket)? {
        record.flush(socket).context("not everything could be removed")?;
    }
    lock.remove();
    Ok(())
}

/// The device of a worker. Instance names have 9 characters at most, so this fits the kernel's 15.
fn tap_name(instance: &str, worker: usize) -> String {
    format!("hp-{instance}-{worker}")
}

/// The device of health checks whose backends are of another family than their VIP.
fn check_device(instance: &str) -> String {
    format!("hp-{instance}-hc")
}

/// The core of each worker, in order.
fn worker_cpus(settings: &Settings) -> Result<Vec<usize>> {
    let allowed = cpu::allowed().context("cannot see which cores this process may use")?;
    let count = settings.workers.map_or(allowed.len().min(64), usize::from);
    if count > allowed.len() {
        log(&format!("{count} workers share {} cores", allowed.len()));
    }
    Ok((0..count).filter_map(|worker| allowed.get(worker % allowed.len()).copied()).collect())
}

/// A process about to serve.
struct ServingProcess {
    config: Config,
    options: RunOptions,
    api: ApiState,
    cpus: Vec<usize>,
    socket: PathBuf,
    lock: Lock,
    predecessor: Option<Predecessor>,
    certificates: Certificates,
}

impl ServingProcess {
    /// Everything between the first object and the end.
    fn serve(self, base: PreparedHost, signals: Signals) -> ServedProcess {
        let ServingProcess { config, options, api, cpus, socket, mut lock, predecessor, certificates } = self;
        let mut draining = None;
        let mut record = base.record.clone();
        let result = (|| {
            let (sender, messages) = mpsc::channel();
            let mut supervisor =
                Startup { config, options, api, cpus, socket: &socket, sender: &sender, certificates }.start(base)?;
            record = supervisor.record.clone();
            signals::pass_on(signals, sender.clone())?;
            requests::listen(&socket, &sender, supervisor.inspector.clone())?;
            supervisor.serve_metrics();
            supervisor.serve_api();
            if let Some(mut predecessor) = predecessor {
                predecessor.say("serving")?;
                predecessor.await_commitment();
                // The old process ends when it is released: by then the manager has to know the new one.
                notify::ready();
                notify::settle();
                predecessor.release();
                // Until now the old process could have gone on with them.
                supervisor.close_unneeded();
                supervisor.remove_surplus_devices();
                supervisor.bound_draining();
            }
            // Else the manager hears of it from the supervisor, when all services are ready.
            lock.sign().context("cannot sign the lock")?;
            supervisor.obtain_certificates();
            supervisor.look_names_up();
            supervisor.monitor();
            let end = supervisor.keep(&messages, &mut lock);
            // Another process serves on: to systemd `STOPPING=1` from any process would end the service.
            if !matches!(end, ProcessEnd::HandedOver { .. }) {
                notify::stopping();
            }
            let kind = if matches!(end, ProcessEnd::HandedOver { .. }) { EventKind::Upgrade } else { EventKind::Stop };
            let told = match &end {
                ProcessEnd::Signal(signal) if end.flushes() => {
                    format!("signal {signal}: stopping and removing everything")
                }
                ProcessEnd::Signal(signal) => {
                    format!("signal {signal}: stopping; offloaded connections go on, others wait for the next process")
                }
                ProcessEnd::Asked { flush } => format!("asked to stop{}", if *flush { " and flush" } else { "" }),
                ProcessEnd::HandedOver { pid, .. } => format!("process {pid} serves now"),
                ProcessEnd::Worker(number, what) => format!("warning: worker {number} ended: {what}"),
                ProcessEnd::Failed(what) => format!("warning: {what}"),
            };
            tell(kind, &told);
            record.clone_from(&supervisor.record);
            if matches!(end, ProcessEnd::Signal(_) | ProcessEnd::Asked { .. }) {
                supervisor.end_draining();
            }
            let termination = supervisor.stop(end.flushes());
            draining = matches!(end, ProcessEnd::HandedOver { .. }).then_some((termination, messages));
            Ok(end)
        })();
        ServedProcess { result, record, lock, socket, draining }
    }
}

/// The arguments of the first minute of a process.
struct Startup<'a> {
    config: Config,
    options: RunOptions,
    api: ApiState,
    cpus: Vec<usize>,
    socket: &'a Path,
    sender: &'a Sender<SupervisorMessage>,
    certificates: Certificates,
}

impl Startup<'_> {
    /// Makes the workers, brings the engine in line with them, and lets them begin.
    fn start(self, base: PreparedHost) -> Result<Supervisor> {
        let Startup { config, options, api, cpus, socket, sender, certificates } = self;
        let started = Instant::now();
        let PreparedHost {
            began,
            mut record,
            registry,
            merged,
            mut plane,
            mut table,
            mut splices,
            limits,
            steering,
            resteered,
            held,
            listeners,
            generations,
            legacy,
        } = base;
        let snapshot = Arc::new(merged.snapshot.clone());
        table.set_clean(false);
        plane.prepare()?;
        let held = Arc::new(held);
        let formers = former::load(socket);
        former::keep(socket, &merged, &options.file, &config.text);
        let parameters = WorkerParameters {
            snapshot: Arc::clone(&snapshot),
            formers,
            steering,
            resteered,
            seeds: host::secret::<4>()?,
            cpus: cpus.clone(),
            table: config.settings.connection_table,
            policy: config.settings.offload.clone(),
            loads: Loads::default(),
            effective_weights: EffectiveWeights::default(),
            occupancy: Occupancy::default(),
            limits,
            held: Arc::clone(&held),
            access_log: AccessLog::default(),
            spans: Spans::default(),
            record_bytes: config.settings.access_log.as_ref().map_or(RECORD_BYTES, |log| log.buffer),
        };
        if let Err(error) = host::take_precedence() {
            log(&format!("warning: {error:#}; workers compete with everybody else"));
        }
        let mut termination = Termination::new(&parameters, certificates);
        let mut listeners = Listeners::inherited(listeners, termination.cores());
        listeners.open_missing(&listeners::endpoints(&snapshot))?;
        // Rights are each thread's own: before the first worker's thread is made.
        host::drop_rights(plane.rights())?;
        let memory = WorkerMemory { connections: table.regions(), splices: splices.regions() };
        let (mut worker_pool, taken) = plane.worker_pool(&parameters, memory, sender)?;
        let tables = (&mut table, &*snapshot);
        let (orphans, heard) = reconcile::reconcile(&*plane, tables, &taken.splice_rules, &held, &steering, resteered)?;
        worker_pool.tell_set_up(heard);
        let adopted = taken.adopted;
        plane.heartbeat();
        plane.steer(steering)?;
        plane.open()?;
        begin::remove_surplus_routes(&mut record, &snapshot, socket)?;
        // A process that hands over still has its own, and may have to go on with them.
        if began != Began::Upgrade {
            let wanted = begin::tap_names(&config.settings, cpus.len());
            begin::remove_surplus_devices(&mut record, wanted, socket, Tap::remove)?;
        }
        parameters.configure_records(&config.settings, &snapshot, ServiceRecords::of(&merged.settings));
        worker_pool.begin();
        let tables = termination.tables(&snapshot);
        termination.configure(&config, &merged, (&snapshot, &tables), (&listeners, &OpenChallenges::default()))?;
        tell(EventKind::Start, &change::summary(&config, &snapshot, &cpus));
        if began != Began::Fresh {
            began.tell_adoption(&adopted, orphans, started);
        }
        Supervisor::new(supervisor::SupervisorParts {
            began,
            adopted,
            config,
            options,
            api,
            record,
            registry,
            merged,
            snapshot,
            plane,
            table,
            parameters,
            worker_pool,
            listeners,
            termination,
            generations,
            legacy,
            socket: socket.to_path_buf(),
            sender: sender.clone(),
        })
    }
}

//! `hairpin run`: the process around the workers.
//!
//! Threads: one per worker (`thread`), one that serves the control socket with one more for each client, one that
//! waits for signals, and this one, which ten times a second tells the BPF programs that it is alive, adapts the
//! policer, and answers what the control socket is asked.

mod host;
mod instance;
mod plane;
mod policer;
mod reading;
mod thread;
mod turn;

pub(crate) use host::port_range_warning;

use crate::config::{Config, PolicyChoice, Settings};
use crate::control::{self, Answer, Request};
use crate::status::Status;
use anyhow::{Context, Result, bail};
use hairpin_core::balance::Loads;
use hairpin_core::config::Snapshot;
use hairpin_core::engine::FlowEngine;
use hairpin_core::flow::Steering;
use hairpin_core::offload::{Always, Never, OffloadPolicy};
use hairpin_core::table::slab;
use hairpin_core::worker::{Statistics, Worker, WorkerOptions};
use hairpin_linux::cpu;
use hairpin_linux::device;
use hairpin_linux::tap::Tap;
use instance::{Lock, Record};
use plane::Plane;
use policer::{Load, Rate};
use reading::{Reading, WorkerReading};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};
use thread::Shared;

/// How often the process gives a sign of life and adapts the policer.
const BEAT: Duration = Duration::from_millis(100);
/// How many beats apart readings are that rates are worked out from.
const READ_BEATS: usize = 10;
/// How long the workers' newest numbers are waited for; after that, those of 100 ms ago do.
const FRESH_PATIENCE: Duration = Duration::from_millis(20);
/// How long a status may take to make.
const STATUS_PATIENCE: Duration = Duration::from_secs(2);
/// How long a worker may take to stop.
const WORKER_PATIENCE: Duration = Duration::from_secs(5);

/// What the main thread is told.
#[derive(Debug)]
enum Message {
    /// It is over.
    End(End),
    /// Somebody wants to know the status.
    Status(Sender<std::result::Result<Status, String>>),
}

/// Why the process ends.
#[derive(Debug)]
enum End {
    /// A signal.
    Signal(i32),
    /// A client of the control socket asked for it.
    Asked { flush: bool },
    /// A worker ended by itself, with what it said.
    Worker(usize, String),
}

/// Serves `config` until the end.
///
/// # Errors
/// The start failed (everything is taken back then), a worker failed, or something could not be removed at the end.
pub fn run(config: Config) -> Result<()> {
    let Config { settings, snapshot, warnings: _ } = config;
    // From here on they wait until everything stands, and then end the process in order.
    let signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("cannot listen for signals")?;
    host::require_rights()?;
    let interfaces = host::interfaces(&settings)?;
    let cpus = worker_cpus(&settings)?;
    let socket = settings.socket();
    let lock = match Lock::take(&socket)? {
        Ok(lock) => lock,
        Err(process) => {
            let process = process.map_or_else(String::new, |process| format!(" (process {process})"));
            bail!(
                "instance {} is already running{process}; stop it with `hairpin stop`, or choose another `instance`",
                settings.instance
            );
        }
    };
    let record = match prepare(&settings, &snapshot, &cpus, &socket) {
        Ok(record) => record,
        Err(error) => {
            lock.remove();
            return Err(error);
        }
    };
    let served = serve(&settings, &Arc::new(snapshot), &interfaces, &cpus, &record, &socket, signals);
    let flush = match &served {
        // What a crashed worker leaves is like what a crashed process leaves: the kernel goes on with it.
        Ok(End::Asked { flush: false } | End::Worker(..)) => false,
        Ok(_) | Err(_) => true,
    };
    let flushed = if flush { record.flush(&socket) } else { Ok(()) };
    match (&flushed, flush) {
        (Ok(()), true) => lock.remove(),
        _ => drop(lock),
    }
    match served? {
        End::Worker(number, what) => {
            bail!("worker {number} ended: {what}; `hairpin stop --flush` removes what is left in the kernel")
        }
        End::Signal(_) | End::Asked { .. } => flushed.context("not everything could be removed"),
    }
}

/// Clears away what an earlier process has left and notes what this one is about to make.
fn prepare(settings: &Settings, snapshot: &Snapshot, cpus: &[usize], socket: &Path) -> Result<Record> {
    flush_leftovers(socket)?;
    let record = Record {
        instance: settings.instance.clone(),
        pin_directory: settings.linux.pin_directory.clone(),
        taps: (0..cpus.len()).map(|worker| tap_name(&settings.instance, worker)).collect(),
        // Seen only now: what is left of an earlier process includes the switches it had switched on.
        forwarding: host::forwarding_off(settings, snapshot)?,
    };
    record.write(socket)?;
    Ok(record)
}

/// Removes what a dead process of the instance behind `socket` has left.
///
/// # Errors
/// It is alive, or something could not be removed.
pub(crate) fn flush_dead(socket: &Path) -> Result<()> {
    // The process may take a moment to let go of its lock after it has closed its socket.
    let deadline = Instant::now() + WORKER_PATIENCE;
    let lock = loop {
        match Lock::take(socket)? {
            Ok(lock) => break lock,
            Err(_) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(20)),
            Err(process) => {
                bail!("the instance is alive{}", process.map_or(String::new(), |p| format!(" (process {p})")))
            }
        }
    };
    if let Some(record) = Record::read(socket)? {
        record.flush(socket).context("not everything could be removed")?;
    }
    lock.remove();
    Ok(())
}

/// The lock is held, so whatever is there belongs to nobody.
fn flush_leftovers(socket: &Path) -> Result<()> {
    let Some(record) = Record::read(socket)? else { return Ok(()) };
    log(&format!("removing what an earlier process of instance {} has left", record.instance));
    record.flush(socket).context("cannot remove what an earlier process has left")
}

/// The device of a worker. Instance names have 9 characters at most, so this fits the kernel's 15.
fn tap_name(instance: &str, worker: usize) -> String {
    format!("hp-{instance}-{worker}")
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

/// Everything between making the first object and removing the last.
fn serve(
    settings: &Settings,
    snapshot: &Arc<Snapshot>,
    interfaces: &[device::Interface],
    cpus: &[usize],
    record: &Record,
    socket: &Path,
    signals: Signals,
) -> Result<End> {
    let started = Instant::now();
    let (sender, messages) = mpsc::channel();
    for switch in &record.forwarding {
        device::set_forwarding(&switch.interface, switch.family(), true)
            .with_context(|| format!("cannot switch on forwarding on {}", switch.interface))?;
    }
    let seeds = Seeds::draw()?;
    let steering = Steering { key: seeds.steering, workers: cpus.len() as u16 };
    let mut plane = Plane::load(settings, snapshot, steering)?;
    let taps = (record.taps.iter())
        .map(|name| {
            Tap::create(name, settings.linux.tap_queue).with_context(|| format!("cannot make the device {name}"))
        })
        .collect::<Result<Vec<Tap>>>()?;
    for (worker, name) in record.taps.iter().enumerate() {
        plane.attach_worker(worker, &device::Interface::by_name(name)?)?;
    }
    plane.beat();
    for (slot, interface) in interfaces.iter().enumerate() {
        plane.attach(slot, interface)?;
        if !interface.up {
            log(&format!("warning: interface {} is down", interface.name));
        }
    }
    if let Err(error) = host::take_precedence() {
        log(&format!("warning: {error:#}; workers compete with everybody else"));
    }
    host::drop_rights()?;
    watch_signals(signals, sender.clone())?;

    let options = Options { settings, snapshot, steering, seeds: &seeds, cpus };
    let workers = match settings.policy {
        PolicyChoice::Always => start_workers(&options, taps, &plane, Always, &sender)?,
        PolicyChoice::Never => start_workers(&options, taps, &plane, Never, &sender)?,
    };
    let handle = move |request| match request {
        Request::Stop { flush } => {
            let _ = sender.send(Message::End(End::Asked { flush }));
            Answer::Stopping
        }
        Request::Status => {
            let (answer, status) = mpsc::channel();
            let status = match sender.send(Message::Status(answer)) {
                Ok(()) => status.recv_timeout(STATUS_PATIENCE).unwrap_or_else(|_| Err("it is busy".to_string())),
                Err(_) => Err("it is stopping".to_string()),
            };
            status.map_or_else(Answer::Error, |status| Answer::Status(Box::new(status)))
        }
        _ => Answer::Error("not yet".to_string()),
    };
    control::serve(socket, handle)?;
    log(&summary(settings, snapshot, cpus));
    let end = Keeper::new(settings, snapshot, started, &workers).keep(&mut plane, &messages);
    log(&match &end {
        End::Signal(signal) => format!("signal {signal}: stopping"),
        End::Asked { flush } => format!("asked to stop{}", if *flush { " and flush" } else { "" }),
        End::Worker(number, what) => format!("worker {number} ended: {what}"),
    });
    stop_workers(workers);
    Ok(end)
}

/// The process's secrets, fresh for each start.
struct Seeds {
    steering: [u64; 2],
    workers: [u64; 4],
}

impl Seeds {
    fn draw() -> Result<Seeds> {
        let mut bytes = [0u8; 48];
        let drawn = rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty());
        // The kernel gives up to 256 bytes at once or fails.
        if drawn.context("cannot draw secrets")? != bytes.len() {
            bail!("cannot draw secrets: the kernel gave too few bytes");
        }
        let mut words = bytes.chunks_exact(8).map(|word| word.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte)));
        let mut word = || words.next().unwrap_or_default();
        Ok(Seeds { steering: [word(), word()], workers: [word(), word(), word(), word()] })
    }
}

/// What every worker is made from.
struct Options<'a> {
    settings: &'a Settings,
    snapshot: &'a Arc<Snapshot>,
    steering: Steering,
    seeds: &'a Seeds,
    cpus: &'a [usize],
}

/// A worker's thread and what it shares.
struct Running {
    shared: Arc<Shared>,
    thread: std::thread::JoinHandle<()>,
}

fn start_workers<P>(
    options: &Options<'_>,
    taps: Vec<Tap>,
    plane: &Plane,
    policy: P,
    messages: &Sender<Message>,
) -> Result<Vec<Running>>
where
    P: OffloadPolicy + Copy + Send + 'static,
{
    let loads = Loads::new(options.snapshot.backends());
    let count = options.cpus.len();
    let connections_max = (options.settings.connections_max as usize).div_ceil(count);
    let mut running = Vec::new();
    for (number, (tap, &cpu)) in taps.into_iter().zip(options.cpus).enumerate() {
        let first = WorkerReading {
            cpu,
            busy: Duration::ZERO,
            statistics: Statistics::new(options.snapshot, connections_max),
            device_drops: Vec::new(),
        };
        let shared = Arc::new(Shared::new(first)?);
        let engine = plane.engine(number)?;
        let made_from = WorkerOptions {
            snapshot: Arc::clone(options.snapshot),
            steering: options.steering,
            worker: number as u16,
            seeds: options.seeds.workers,
            memory: slab::boxed(connections_max),
            loads: loads.clone(),
            known: plane.known(),
            caps: engine.caps(),
            policy,
        };
        let (publish, beat) = (plane.publisher(number), plane.beater());
        let (on_thread, messages) = (Arc::clone(&shared), messages.clone());
        let body = move || {
            let body = || thread::run(&on_thread, cpu, tap, || Worker::new(made_from), engine, publish, beat);
            // The data plane has no panics reachable from input; if one is there all the same, the process ends in
            // order instead of serving on with a worker missing.
            let what = match std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)) {
                Ok(Ok(())) => return,
                Ok(Err(error)) => format!("{error:#}"),
                Err(_) => "it panicked (see above)".to_string(),
            };
            let _ = messages.send(Message::End(End::Worker(number, what)));
        };
        let thread = std::thread::Builder::new().name(format!("worker-{number}")).spawn(body);
        running.push(Running { shared, thread: thread.context("cannot start a worker's thread")? });
    }
    Ok(running)
}

fn stop_workers(workers: Vec<Running>) {
    workers.iter().for_each(|worker| worker.shared.stop());
    let deadline = Instant::now() + WORKER_PATIENCE;
    for worker in workers {
        while !worker.thread.is_finished() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        if worker.thread.is_finished() {
            let _ = worker.thread.join();
        }
    }
}

/// Starts the thread that passes signals on; those that came since `signals` was made are not lost.
fn watch_signals(mut signals: Signals, messages: Sender<Message>) -> Result<()> {
    let body = move || {
        for signal in signals.forever() {
            if messages.send(Message::End(End::Signal(signal))).is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new().name("signals".into()).spawn(body).context("cannot start a thread")?;
    Ok(())
}

/// What the main thread does while the workers work.
struct Keeper<'a> {
    settings: &'a Settings,
    snapshot: &'a Snapshot,
    started: Instant,
    workers: &'a [Running],
    rates: Vec<Rate>,
    load: Load,
    /// Of a second ago or a little more, and of less than a second ago.
    readings: [Option<Reading>; 2],
}

impl<'a> Keeper<'a> {
    fn new(settings: &'a Settings, snapshot: &'a Snapshot, started: Instant, workers: &'a [Running]) -> Keeper<'a> {
        let rate = Rate::new(settings.linux.policer_ceiling);
        let rates = vec![rate; snapshot.services.len()];
        Keeper { settings, snapshot, started, workers, rates, load: Load::default(), readings: [None, None] }
    }

    fn keep(&mut self, plane: &mut Plane, messages: &Receiver<Message>) -> End {
        let mut next = Instant::now();
        for beat in 0usize.. {
            plane.beat();
            self.police(plane);
            if beat.is_multiple_of(READ_BEATS) {
                // Without a reading, rates are of a longer time.
                if let Ok(reading) = self.read(plane) {
                    self.readings = [self.readings[1].take(), Some(reading)];
                }
            }
            // After a long interruption (a suspended machine) beats are not made up for.
            next = (next + BEAT).max(Instant::now());
            loop {
                match messages.recv_timeout(next.saturating_duration_since(Instant::now())) {
                    Ok(Message::End(end)) => return end,
                    Ok(Message::Status(answer)) => drop(answer.send(self.status(plane))),
                    Err(RecvTimeoutError::Timeout) => break,
                    Err(RecvTimeoutError::Disconnected) => return End::Asked { flush: true },
                }
            }
        }
        End::Asked { flush: true }
    }

    fn police(&mut self, plane: &mut Plane) {
        self.load.note(self.workers.iter().map(|worker| worker.shared.busy()).max().unwrap_or_default());
        // Services under a flood share the floor, so that flooding more of them does not cost the workers more.
        let suspects = self.rates.iter().filter(|rate| rate.is_suspect()).count().max(1);
        let floor = (self.settings.linux.policer_floor / suspects as u32).max(1);
        for (number, rate) in self.rates.iter_mut().enumerate() {
            let (mut speculative, mut established, mut answered) = (0, 0, 0);
            for worker in self.workers {
                let service = worker.shared.service(number);
                speculative += service.speculative;
                established += service.established;
                answered += service.answered;
            }
            let worth = if self.load.is_high() { established } else { established.max(answered) };
            rate.step(speculative, worth, floor);
            plane.set_policer_rate(number, rate.packets_per_s());
        }
    }

    fn read(&self, plane: &Plane) -> Result<Reading> {
        Ok(Reading {
            uptime: self.started.elapsed(),
            workers: self.workers.iter().map(|worker| worker.shared.reading()).collect(),
            totals: plane.totals()?,
            events: plane.events()?,
        })
    }

    /// The status now, rates since the reading before the last: those of one to two seconds.
    fn status(&self, plane: &Plane) -> std::result::Result<Status, String> {
        self.workers.iter().for_each(|worker| worker.shared.ask());
        let patient = Instant::now() + FRESH_PATIENCE;
        while Instant::now() < patient && self.workers.iter().any(|worker| worker.shared.is_asked()) {
            std::thread::sleep(Duration::from_micros(100));
        }
        let now = self.read(plane).map_err(|error| format!("it cannot read its counters: {error:#}"))?;
        let before = self.readings.iter().flatten().next().unwrap_or(&now);
        Ok(reading::status(self.settings, self.snapshot, before, &now))
    }
}

fn summary(settings: &Settings, snapshot: &Snapshot, cpus: &[usize]) -> String {
    let cores: Vec<String> = cpus.iter().map(ToString::to_string).collect();
    let mut lines = vec![format!(
        "instance {} serves on {}: {} workers on cores {}, offload {}",
        settings.instance,
        settings.interfaces.join(", "),
        cpus.len(),
        cores.join(", "),
        settings.policy.name()
    )];
    const SHOWN: usize = 16;
    for service in snapshot.services.iter().take(SHOWN) {
        let backends = service.backends.len();
        lines.push(format!(
            "  {} on {}, {backends} backend{}, {}",
            service.name,
            service.endpoint,
            if backends == 1 { "" } else { "s" },
            reading::balance(service.algorithm)
        ));
    }
    if snapshot.services.len() > SHOWN {
        lines.push(format!("  and {} more services", snapshot.services.len() - SHOWN));
    }
    lines.join("\n")
}

fn log(line: &str) {
    eprintln!("hairpin: {line}");
}

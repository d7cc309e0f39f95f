//! The workers' threads: their common start, and their end.

use super::index::{self, Index};
use super::reading::WorkerReading;
use super::reconcile::Heard;
use super::thread::{self, ThreadShared, WorkerCommand, WorkerDevice, WorkerStart, WorkerThreadParts};
use super::{ProcessEnd, SupervisorMessage};
use crate::access_log::{AccessLog, ServiceRecords};
use crate::config::Settings;
use crate::spans::Spans;
use anyhow::{Context, Result, bail};
use hairpin_core::balance::{EffectiveWeights, Loads};
use hairpin_core::config::Snapshot;
use hairpin_core::engine::FlowEngine;
use hairpin_core::event_loop::Ticket;
use hairpin_core::flow::{FlowKey, Steering};
use hairpin_core::l4::connection::Connection;
use hairpin_core::l7::cookie::Cookies;
use hairpin_core::l7::splice::SplicedMemory;
use hairpin_core::limit::LimitTable;
use hairpin_core::offload::{AnyPolicy, Choice};
use hairpin_core::table::LookupMethod;
use hairpin_core::table::slab::Slot;
use hairpin_core::time::Time;
use hairpin_core::worker::{Adopted, Known, Occupancy, Statistics, Worker, WorkerOptions};
use hairpin_linux::cpu;
use std::collections::HashSet;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

/// Clients' connections of HTTP and TLS services that a worker has at most, unless the configuration says how many; never
/// more than it may have connections.
pub(crate) const SPLICES_MAX: u32 = 65_536;

/// Bytes of the ring of records of a worker, unless the configuration says how many.
pub(crate) const RECORD_BYTES: usize = 1 << 20;
/// How long a worker may take to stop.
const STOP_PATIENCE: Duration = Duration::from_secs(5);
/// How long workers may take to make themselves: 67 million connections take half a minute.
pub(crate) const START_PATIENCE: Duration = Duration::from_secs(120);
/// How long workers may take to apply a command: one that shares its core with others may not get a turn for seconds.
pub(crate) const COMMAND_PATIENCE: Duration = Duration::from_secs(10);

/// The parameters that all workers have in common.
#[derive(Clone)]
pub(crate) struct WorkerParameters {
    /// Services, backends, pool.
    pub(crate) snapshot: Arc<Snapshot>,
    /// Snapshots of former configurations, with which exchanges may have begun.
    pub(crate) formers: Vec<Arc<Snapshot>>,
    /// How connections are spread.
    pub(crate) steering: Steering,
    /// Whether the process before spread connections in another way.
    pub(crate) resteered: bool,
    /// Secrets of hashes and draws.
    pub(crate) seeds: [u64; 4],
    /// The core of each worker.
    pub(crate) cpus: Vec<usize>,
    /// How they find a packet's connection.
    pub(crate) table: LookupMethod,
    /// Which connections go to the engine.
    pub(crate) policy: Choice,
    /// Connections of every backend.
    pub(crate) loads: Loads,
    /// Weights of every backend as they count now.
    pub(crate) effective_weights: EffectiveWeights,
    /// Rules of all workers.
    pub(crate) occupancy: Occupancy,
    /// The clients of limits.
    pub(crate) limits: LimitTable,
    /// Flows for which the engine holds a rule that an earlier process has made.
    pub(crate) held: Arc<HashSet<FlowKey>>,
    /// Where records of exchanges and connections go.
    pub(crate) access_log: AccessLog,
    /// Where spans of sampled exchanges go.
    pub(crate) spans: Spans,
    /// Bytes of the ring that leads there from each worker and runtime.
    pub(crate) record_bytes: usize,
}

impl WorkerParameters {
    /// Records go where these settings say from now on. `services`: by number.
    pub(crate) fn configure_records(
        &self,
        settings: &Settings,
        snapshot: &Arc<Snapshot>,
        services: Vec<ServiceRecords>,
    ) {
        // The queue has room before spans come.
        self.spans.configure(settings.tracing.as_ref(), &settings.instance);
        let queue = settings.tracing.as_ref().map(|_| self.spans.queue());
        self.access_log.configure(settings.access_log.as_ref(), queue, snapshot, services);
    }
}

/// A worker's thread and what it shares.
struct WorkerHandle {
    shared: Arc<ThreadShared>,
    thread: std::thread::JoinHandle<()>,
    /// Lets it begin.
    gate: Option<Sender<()>>,
}

/// All workers.
pub(crate) struct WorkerPool {
    workers: Vec<WorkerHandle>,
}

/// The memory of each worker's connections.
pub(crate) struct WorkerMemory {
    /// Each worker's region of the layer 4 connection table.
    pub(crate) connections: Vec<&'static mut [Slot<Connection>]>,
    /// Each worker's region of the table of HTTP and TLS connections.
    pub(crate) splices: Vec<SplicedMemory>,
}

/// What the workers have taken over.
#[derive(Debug, Default)]
pub(crate) struct TakenOver {
    pub(crate) adopted: Adopted,
    /// Flows of HTTP and TLS services for which a worker knows a rule, and that worker.
    pub(crate) splice_rules: Vec<(FlowKey, u16)>,
}

/// The plane's resources of one worker.
pub(crate) struct WorkerResources<O, E, F, B> {
    /// Opens its device, on the worker's own thread.
    pub(crate) open: O,
    /// Its engine.
    pub(crate) engine: E,
    /// Takes the tickets of packets that are finished with.
    pub(crate) publish: F,
    /// Gives a sign of life.
    pub(crate) heartbeat: B,
    /// Whether frames' tickets are the engine's marks.
    pub(crate) marks: bool,
}

impl WorkerPool {
    /// Makes the workers; they take over the connections that lie in their memory, and wait for [`WorkerPool::begin`].
    ///
    /// # Errors
    /// A thread or an engine could not be had, or a worker failed.
    pub(crate) fn make<I, O, E, F, B>(
        parameters: &WorkerParameters,
        memory: WorkerMemory,
        resources: Vec<WorkerResources<O, E, F, B>>,
        common: (Known, Cookies),
        messages: &Sender<SupervisorMessage>,
    ) -> Result<(WorkerPool, TakenOver)>
    where
        I: WorkerDevice,
        O: FnOnce() -> Result<I> + Send + 'static,
        E: FlowEngine + Send + 'static,
        F: Fn(Ticket) + Send + 'static,
        B: Fn(Time) + Send + 'static,
    {
        // Workers count what they adopt.
        parameters.limits.forget_workers();
        let (reports, reported) = mpsc::channel();
        let together = Arc::new(Barrier::new(parameters.cpus.len()));
        let mut worker_pool = WorkerPool { workers: Vec::new() };
        let WorkerMemory { connections: memory, splices } = memory;
        let connections = memory.iter().map(|memory| memory.len()).max().unwrap_or(0);
        let indexes = Index::of(parameters.table, memory.len(), 2 * connections, parameters.seeds);
        let regions = memory.into_iter().zip(splices).zip(indexes);
        for (number, (region, resources)) in regions.zip(resources).enumerate() {
            let rest = (reports.clone(), Arc::clone(&together));
            let handle = WorkerHandle::make(parameters, number, region, resources, common, messages, rest)?;
            worker_pool.workers.push(handle);
        }
        drop(reports);
        let mut sum = TakenOver::default();
        let deadline = Instant::now() + START_PATIENCE;
        for _ in 0..worker_pool.workers.len() {
            let patience = deadline.saturating_duration_since(Instant::now());
            let Ok(start) = reported.recv_timeout(patience) else {
                worker_pool.end(false);
                bail!("a worker did not start (see above)");
            };
            sum.adopted.add(&start.adopted);
            sum.splice_rules.extend(start.splice_rules.into_iter().map(|flow| (flow, start.worker)));
        }
        Ok((worker_pool, sum))
    }

    /// Lets all workers begin.
    pub(crate) fn begin(&mut self) {
        for gate in self.workers.iter_mut().filter_map(|handle| handle.gate.take()) {
            let _ = gate.send(());
        }
    }

    /// The shared state of each worker.
    pub(crate) fn shared(&self) -> impl Iterator<Item = &ThreadShared> {
        self.workers.iter().map(|handle| &*handle.shared)
    }

    /// The shared state of each worker, for holders that outlast the worker pool.
    pub(crate) fn handles(&self) -> Vec<Arc<ThreadShared>> {
        self.workers.iter().map(|handle| Arc::clone(&handle.shared)).collect()
    }

    /// Tells each worker what the engine has done without a process, before it begins.
    pub(crate) fn tell_set_up(&self, heard: Heard) {
        for (handle, set_up) in self.workers.iter().zip(heard.set_up) {
            if !set_up.is_empty() || !heard.reports.is_empty() {
                // It has no command yet, so it takes this one.
                let _ = handle.shared.command(WorkerCommand::SetUp(set_up, Arc::clone(&heard.reports)));
            }
        }
    }

    /// Gives a command to each worker and waits, a bounded time, until all have applied theirs. `meanwhile` is called now
    /// and then.
    ///
    /// # Errors
    /// One has too many commands waiting, or does not take any.
    pub(crate) fn command(&self, mut command: impl FnMut(usize) -> WorkerCommand, meanwhile: impl Fn()) -> Result<()> {
        for (number, shared) in self.shared().enumerate() {
            if !shared.command(command(number)) {
                bail!("worker {number} does not take commands");
            }
        }
        let deadline = Instant::now() + COMMAND_PATIENCE;
        while let Some(number) = self.shared().position(|shared| !shared.has_applied()) {
            if Instant::now() > deadline {
                bail!("worker {number} has not applied its command within {} s", COMMAND_PATIENCE.as_secs());
            }
            meanwhile();
            std::thread::sleep(Duration::from_millis(1));
        }
        self.shared().for_each(ThreadShared::clear_away);
        Ok(())
    }

    /// Ends all workers; the worker pool has none afterwards. What they hold stays where it is, for another process, but
    /// with `resets` connections of HTTP and TLS services are reset.
    pub(crate) fn end(&mut self, resets: bool) {
        // Those that wait for their beginning see that it will not come.
        self.workers.iter_mut().for_each(|handle| drop(handle.gate.take()));
        self.workers.iter().for_each(|handle| handle.shared.stop(resets));
        let deadline = Instant::now() + STOP_PATIENCE;
        for handle in self.workers.drain(..) {
            while !handle.thread.is_finished() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(1));
            }
            if handle.thread.is_finished() {
                let _ = handle.thread.join();
            }
        }
    }
}

impl WorkerHandle {
    fn make<I, O, E, F, B>(
        parameters: &WorkerParameters,
        number: usize,
        ((memory, splices), index): ((&'static mut [Slot<Connection>], SplicedMemory), Index),
        resources: WorkerResources<O, E, F, B>,
        (known, cookies): (Known, Cookies),
        messages: &Sender<SupervisorMessage>,
        (reports, together): (Sender<WorkerStart>, Arc<Barrier>),
    ) -> Result<WorkerHandle>
    where
        I: WorkerDevice,
        O: FnOnce() -> Result<I> + Send + 'static,
        E: FlowEngine + Send + 'static,
        F: Fn(Ticket) + Send + 'static,
        B: Fn(Time) + Send + 'static,
    {
        let cpu = parameters.cpus[number];
        let first = WorkerReading {
            cpu,
            busy: Duration::ZERO,
            statistics: Statistics::new(&parameters.snapshot, memory.len()),
            device_drops: Vec::new(),
            device_events: Vec::new(),
        };
        let shared = Arc::new(ThreadShared::new(first)?);
        let WorkerResources { open, engine, publish, heartbeat, marks } = resources;
        let (snapshot, steering, seeds) = (Arc::clone(&parameters.snapshot), parameters.steering, parameters.seeds);
        let (formers, resteered) = (parameters.formers.clone(), parameters.resteered);
        let (loads, effective_weights, occupancy) =
            (parameters.loads.clone(), parameters.effective_weights.clone(), parameters.occupancy.clone());
        let limits = parameters.limits.clone();
        let policy: AnyPolicy = AnyPolicy::new(parameters.policy.clone(), memory.len());
        let stateless = index::stateless(parameters.table, &steering);
        let (caps, held) = (engine.caps(), Arc::clone(&parameters.held));
        let recorder = parameters.access_log.recorder(parameters.record_bytes);
        // On its own thread, so that its memory lies where it is used.
        let make = move || {
            let worker = number as u16;
            let options = WorkerOptions {
                snapshot,
                steering,
                worker,
                seeds,
                memory: memory.into(),
                table: index.table(),
                stateless,
                loads,
                effective_weights,
                occupancy,
                known,
                caps,
                policy,
                splices,
                formers,
                cookies,
                limits,
            };
            let (mut worker, adopted) = Worker::adopt(options, cpu::now(), &|key: &FlowKey| held.contains(key));
            worker.record_to(recorder);
            if marks {
                worker.go_by_marks();
            }
            (worker, adopted)
        };
        let (gate, opened) = mpsc::channel();
        let (on_thread, messages) = (Arc::clone(&shared), messages.clone());
        let body = move || {
            let ready = |adopted, splice_rules| {
                let start = WorkerStart { worker: number as u16, adopted, splice_rules };
                reports.send(start).is_ok() && wait_for(&opened)
            };
            let parts = WorkerThreadParts { cpu, open, make, engine, resteered, together };
            report_failure(number, &messages, || thread::run(&on_thread, parts, ready, publish, heartbeat));
        };
        let thread = std::thread::Builder::new().name(format!("worker-{number}")).spawn(body);
        Ok(WorkerHandle { shared, thread: thread.context("cannot start a worker's thread")?, gate: Some(gate) })
    }
}

/// Runs a worker's thread by `run`, and tells the supervisor if it fails.
///
/// The data plane has no panics reachable from input; if one is there all the same, the process ends in order instead of
/// serving on with a worker missing.
fn report_failure(number: usize, messages: &Sender<SupervisorMessage>, run: impl FnOnce() -> Result<()>) {
    let what = match std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)) {
        Ok(Ok(())) => return,
        Ok(Err(error)) => format!("{error:#}"),
        Err(_) => "it panicked (see above)".to_string(),
    };
    let _ = messages.send(SupervisorMessage::End(ProcessEnd::Worker(number, what)));
}

/// Whether the gate is opened, rather than given up.
fn wait_for(opened: &Receiver<()>) -> bool {
    opened.recv().is_ok()
}

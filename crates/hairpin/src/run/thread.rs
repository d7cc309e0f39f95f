//! A worker's thread: pinned; it runs its event loop while there is work, and otherwise waits as its plane does.

use super::plane::ForwardingTable;
use super::reading::WorkerReading;
use super::splice_queries::{SpliceAnswer, SpliceQueries};
use anyhow::{Context, Result};
use hairpin_core::engine::{FlowEngine, Report, SetUp};
use hairpin_core::event_loop::{EventLoop, Ticket};
use hairpin_core::flow::FlowKey;
use hairpin_core::frame::FrameIo;
use hairpin_core::l7::cookie::Cookies;
use hairpin_core::offload::OffloadPolicy;
use hairpin_core::table::Table;
use hairpin_core::time::{Duration, Time};
use hairpin_core::worker::{Adopted, Retired, ServiceStatistics, Update, Which, Worker};
use hairpin_linux::cpu;
use rustix::event::{EventfdFlags, eventfd};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, Mutex, TryLockError};

/// The interval at which a worker publishes its reading.
const PUBLISH_EVERY: Duration = Duration::from_millis(100);
/// How long a worker sleeps when its device has no room for what it wants to send.
const BLOCKED_FOR: Duration = Duration::from_millis(1);
/// How long a worker that ends waits at most for packets of clients, from which it takes the sequence numbers of their
/// resets.
const PARTING: Duration = Duration::from_secs(1);
/// How long it sleeps meanwhile at most.
const PARTING_STEP: Duration = Duration::from_millis(20);

/// One in this many entries: above it half-open connections count as crowding the table, which happens only in a flood
/// or in a table too small.
const HALF_OPEN_SHARE: u64 = 5;
/// Commands that may wait for a worker at most; it applies them between iterations.
pub(crate) const COMMANDS_MAX: usize = 64;

/// A command to a worker, applied between iterations.
pub(crate) enum WorkerCommand {
    /// Apply another snapshot.
    Update(Box<Update>),
    /// End connections of backends.
    End(Vec<(u16, Which)>),
    /// Use another forwarding table, on a plane that routes packets itself.
    ForwardingTable(Arc<ForwardingTable>),
    /// Make and check SYN cookies with these secrets.
    Cookies(Cookies),
    /// Take over connections that the engine has set up, then follow reports that an earlier process has not read.
    SetUp(Vec<SetUp>, Arc<[Report]>),
}

/// The data that a worker's thread shares with the rest of the process.
pub(crate) struct ThreadShared {
    stop: AtomicBool,
    /// At the end connections of HTTP and TLS services are reset.
    resets: AtomicBool,
    /// Another thread waits for news.
    asked: AtomicBool,
    /// There are commands.
    commanded: AtomicBool,
    wake: OwnedFd,
    published: Mutex<WorkerReading>,
    commands: Mutex<VecDeque<WorkerCommand>>,
    /// Queries about its connections.
    splice_queries: SpliceQueries,
    /// Objects that the worker no longer needs, to be freed by another thread that has time.
    retired: Mutex<Vec<Retired>>,
}

impl ThreadShared {
    pub(crate) fn new(first: WorkerReading) -> Result<ThreadShared> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).context("cannot make an eventfd")?;
        Ok(ThreadShared {
            stop: AtomicBool::new(false),
            resets: AtomicBool::new(false),
            asked: AtomicBool::new(false),
            commanded: AtomicBool::new(false),
            wake,
            published: Mutex::new(first),
            commands: Mutex::default(),
            splice_queries: SpliceQueries::default(),
            retired: Mutex::default(),
        })
    }

    /// Gives the worker a command; `false` if too many wait already.
    pub(crate) fn command(&self, command: WorkerCommand) -> bool {
        let mut commands = lock(&self.commands);
        if commands.len() >= COMMANDS_MAX {
            return false;
        }
        commands.push_back(command);
        self.commanded.store(true, Ordering::Release);
        drop(commands);
        self.wake();
        true
    }

    /// Connections of HTTP and TLS services that the worker has from place `start` on, some of them. `None`: it does not
    /// answer in time, or too many ask.
    pub(crate) fn query(&self, start: u32) -> Option<SpliceAnswer> {
        self.splice_queries.ask(start, || self.wake())
    }

    /// Whether it has applied all its commands.
    pub(crate) fn has_applied(&self) -> bool {
        !self.commanded.load(Ordering::Acquire)
    }

    /// Frees what the worker has no use for any more.
    pub(crate) fn clear_away(&self) {
        let retired = std::mem::take(&mut *lock(&self.retired));
        drop(retired);
    }

    /// The worker applies its commands.
    fn apply<I, E, P, T>(&self, now: Time, event_loop: &mut EventLoop<I, E, Worker<P, T>>)
    where
        I: WorkerDevice,
        P: OffloadPolicy,
        T: Table<FlowKey>,
    {
        let worker = &mut event_loop.worker;
        let commands = std::mem::take(&mut *lock(&self.commands));
        for command in commands {
            match command {
                WorkerCommand::Update(update) => {
                    let retired = worker.reconfigure(now, *update);
                    lock(&self.retired).push(retired);
                }
                WorkerCommand::ForwardingTable(forwarding_table) => {
                    event_loop.io.set_forwarding_table(&forwarding_table)
                }
                WorkerCommand::Cookies(cookies) => worker.set_cookies(cookies),
                WorkerCommand::SetUp(set_up, reports) => {
                    set_up.iter().for_each(|set_up| worker.adopt_set_up(now, set_up));
                    reports.iter().for_each(|report| worker.take_report(now, report));
                }
                WorkerCommand::End(ends) => {
                    ends.into_iter().for_each(|(backend, which)| worker.end_backend(now, backend, which))
                }
            }
        }
        // A command that came in between is applied in the next iteration.
        self.commanded.store(!lock(&self.commands).is_empty(), Ordering::Release);
    }

    /// Ends the thread's loop. `resets`: no other process goes on with its connections of HTTP and TLS services, so their
    /// ends are told.
    pub(crate) fn stop(&self, resets: bool) {
        self.resets.store(resets, Ordering::Release);
        self.stop.store(true, Ordering::Release);
        self.wake();
    }

    /// Asks the thread to publish at once.
    pub(crate) fn ask(&self) {
        self.asked.store(true, Ordering::Release);
        self.wake();
    }

    /// Whether it has not done so yet.
    pub(crate) fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Acquire)
    }

    /// Ends its sleep, if it sleeps.
    pub(crate) fn wake(&self) {
        // It fails only if the counter is full, and then the thread is being woken already.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// The last published values of one service.
    pub(crate) fn service(&self, number: usize) -> ServiceStatistics {
        lock(&self.published).statistics.services.get(number).copied().unwrap_or_default()
    }

    /// Whether connections that a forged packet may have made take more than their share of its table.
    pub(crate) fn is_crowded(&self) -> bool {
        let published = lock(&self.published);
        let statistics = &published.statistics;
        statistics.half_open_now * HALF_OPEN_SHARE > statistics.connections_max
    }

    /// How long it has been working, as published last.
    pub(crate) fn busy(&self) -> std::time::Duration {
        lock(&self.published).busy
    }

    /// The last published values.
    pub(crate) fn reading(&self) -> WorkerReading {
        lock(&self.published).clone()
    }
}

/// A worker's access to its plane, as its thread uses it.
pub(crate) trait WorkerDevice: FrameIo {
    /// Whether waiting for frames takes processor time, so that the thread's does not say how much the worker has to do.
    const POLLED: bool;

    /// Lets time pass: what is to be done without a frame. Called once an iteration, does a bounded amount.
    fn advance(&mut self, now: Time);

    /// Waits for frames, until another thread wakes the worker by `wake`, or for so long at most. May return sooner.
    fn wait(&mut self, wake: &OwnedFd, at_most: Option<Duration>) -> Result<()>;

    /// Goes by other addresses and routes from now on.
    fn set_forwarding_table(&mut self, _forwarding_table: &Arc<ForwardingTable>) {}

    /// Adds what it has dropped so far, by reason.
    fn drops(&self, out: &mut Vec<(&'static str, u64)>);

    /// Adds what else it has counted.
    fn events(&self, _out: &mut Vec<(&'static str, u64)>) {}
}

/// The parts of a worker's thread.
pub(crate) struct WorkerThreadParts<O, E, W> {
    /// The core it runs on.
    pub(crate) cpu: usize,
    /// Opens its device, on the thread itself.
    pub(crate) open: O,
    /// Makes the worker, on the thread itself, so that its memory is near the core it runs on.
    pub(crate) make: W,
    /// Its engine.
    pub(crate) engine: E,
    /// Packets may be steered to other workers than those of the process before.
    pub(crate) resteered: bool,
    /// The barrier at which all workers wait for each other before their first frames.
    pub(crate) together: Arc<Barrier>,
}

/// A worker that is made, and has taken over what another process has left.
pub(crate) struct WorkerStart {
    /// Its number.
    pub(crate) worker: u16,
    pub(crate) adopted: Adopted,
    /// Flows of HTTP and TLS services for which it knows a rule.
    pub(crate) splice_rules: Vec<FlowKey>,
}

/// Runs a worker until it is told to stop. `ready` is called when it is made, and says whether to go on.
pub(crate) fn run<I: WorkerDevice, E: FlowEngine, P: OffloadPolicy, T: Table<FlowKey>>(
    shared: &ThreadShared,
    bench: WorkerThreadParts<impl FnOnce() -> Result<I>, E, impl FnOnce() -> (Worker<P, T>, Adopted)>,
    ready: impl FnOnce(Adopted, Vec<FlowKey>) -> bool,
    publish_ticket: impl Fn(Ticket),
    heartbeat: impl Fn(Time),
) -> Result<()> {
    let WorkerThreadParts { cpu, open, make, engine, resteered, together } = bench;
    cpu::pin(cpu).with_context(|| format!("cannot pin a worker to core {cpu}"))?;
    let io = open()?;
    let (worker, adopted) = make();
    let mut event_loop = EventLoop::new(worker, io, engine, cpu::now, cpu::time_of_day);
    if !ready(adopted, event_loop.worker.splice_rules_known().collect()) {
        return Ok(());
    }
    // Commands to the engine that adoption left come before any worker's first frames.
    event_loop.finish(cpu::now(), &publish_ticket);
    together.wait();
    // All workers' rules are in force: what arrives from now on is this worker's.
    if resteered {
        event_loop.discard_arrived(&publish_ticket);
    }
    let mut publisher = Publisher { cpu, worked: Duration::ZERO, published_at: Time::ZERO, dirty: true };
    while !shared.stop.load(Ordering::Acquire) {
        let now = cpu::now();
        if shared.commanded.load(Ordering::Acquire) {
            shared.apply(now, &mut event_loop);
            publisher.dirty = true;
        }
        let asked = shared.splice_queries.is_asked();
        if asked {
            shared.splice_queries.answer(|start, out| event_loop.worker.snapshot_splices(now, start, out));
        }
        event_loop.io.advance(now);
        let busy = event_loop.iterate(now, &publish_ticket);
        if busy {
            heartbeat(now);
            if I::POLLED {
                publisher.worked += cpu::now().since(now);
            }
        }
        publisher.dirty |= busy;
        publisher.publish_if_due(now, shared, &event_loop);
        // A thread that asks once may ask again at once; an iteration in between costs little.
        if !busy && !asked {
            event_loop.io.wait(&shared.wake, publisher.sleep_at_most(now, &event_loop))?;
        }
    }
    if shared.resets.load(Ordering::Acquire) {
        event_loop.abandon(cpu::now());
    }
    let until = cpu::now() + PARTING;
    while shared.resets.load(Ordering::Acquire) && event_loop.is_parting() && cpu::now() < until {
        let now = cpu::now();
        event_loop.io.advance(now);
        let busy = event_loop.iterate(now, &publish_ticket);
        heartbeat(now);
        if !busy {
            let most = publisher.sleep_at_most(now, &event_loop).map_or(PARTING_STEP, |most| most.min(PARTING_STEP));
            event_loop.io.wait(&shared.wake, Some(most))?;
        }
    }
    event_loop.finish(cpu::now(), &publish_ticket);
    publisher.dirty = true;
    publisher.published_at = Time::ZERO;
    publisher.publish_if_due(cpu::now(), shared, &event_loop);
    Ok(())
}

/// A lock that a panicked thread has released holds a consistent value all the same.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Tells the rest of the process what the worker has counted, now and then, and never waits for it.
struct Publisher {
    cpu: usize,
    /// How long the iterations with work took, on a plane that is polled.
    worked: Duration,
    published_at: Time,
    /// Whether there is news since.
    dirty: bool,
}

impl Publisher {
    fn publish_if_due<I: WorkerDevice, E: FlowEngine, P: OffloadPolicy, T: Table<FlowKey>>(
        &mut self,
        now: Time,
        shared: &ThreadShared,
        event_loop: &EventLoop<I, E, Worker<P, T>>,
    ) {
        let asked = shared.asked.load(Ordering::Relaxed);
        if !asked && (!self.dirty || now.since(self.published_at) < PUBLISH_EVERY) {
            return;
        }
        let mut published = match shared.published.try_lock() {
            Ok(published) => published,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        published.cpu = self.cpu;
        published.busy = if I::POLLED { self.worked } else { cpu::thread_time() };
        published.statistics.clone_from(event_loop.worker.statistics());
        published.device_drops.clear();
        event_loop.io.drops(&mut published.device_drops);
        published.device_events.clear();
        event_loop.io.events(&mut published.device_events);
        self.published_at = now;
        self.dirty = false;
        drop(published);
        shared.asked.store(false, Ordering::Release);
    }

    /// How long the thread may sleep: until the next timeout, or until its news must be told.
    fn sleep_at_most<I: WorkerDevice, E: FlowEngine, P: OffloadPolicy, T: Table<FlowKey>>(
        &self,
        now: Time,
        event_loop: &EventLoop<I, E, Worker<P, T>>,
    ) -> Option<Duration> {
        let timeout = event_loop.worker.poll_timeout(now).map(|due| due.since(now));
        let news = self.dirty.then(|| (self.published_at + PUBLISH_EVERY).since(now));
        let blocked = event_loop.is_blocked().then_some(BLOCKED_FOR);
        [timeout, news, blocked].into_iter().flatten().min()
    }
}

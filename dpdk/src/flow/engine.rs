//! The engine: a thread that has the device, and a handle for each worker.
//!
//! A worker never waits: requests and answers go through queues of which each has room for all that a worker may have
//! under way, so that neither side finds one full. Not yet run on hardware.

use super::description::Does;
use super::device::{FlowError, Outcome, RuleDevice, Synchronous, Templates};
use super::hops::Hops;
use super::machine::{Listener, Machine, Request, Told};
use super::raw;
use super::statistics::Statistics;
use super::translate::{EnginePort, Terms, standing};
use crate::eal::Eal;
use hairpin_core::engine::{
    COMPLETIONS_MAX, Completion, Completions, Counters, EngineCaps, FlowEngine, Refusal, Rule, RuleId, RuleOp, Samples,
};
use hairpin_core::flow::FlowKey;
use hairpin_core::time::Time;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

/// Requests of one worker under way at most, from being submitted until being answered.
const OPS_MAX: usize = 4096;
/// Requests of one worker begun before the next worker's turn.
const TURN: usize = 64;
/// How long the thread rests when there is nothing to do, and when the device owes answers.
const IDLE: Duration = Duration::from_millis(1);
const AWAITING: Duration = Duration::from_micros(20);
/// How long the device may take for the rules that stand before the flows'.
const SETTING_UP: Duration = Duration::from_secs(5);

/// Which of rte_flow's two ways.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Way {
    /// One rule at a time; the thread waits for each.
    #[default]
    Synchronous,
    /// By templates, in batches.
    Templates,
}

/// What an engine works with.
#[derive(Clone, Debug)]
pub struct OffloadOptions {
    /// The ports, in the order in which the plane counts them.
    pub ports: Vec<EnginePort>,
    /// Rules at most, of all workers; 2 for each connection.
    pub rules_max: u32,
    /// How many workers.
    pub workers: u16,
    /// In what terms the ports take rules: all of them alike.
    pub terms: Terms,
    /// How they are handed over.
    pub way: Way,
    /// The workers' clock.
    pub clock: fn() -> Time,
    /// DPDK, with which the thread registers; without it only the fake device works.
    pub eal: Option<Eal>,
}

/// Why an engine did not start.
#[derive(Debug)]
pub enum OffloadError {
    /// The device took no template or one of the rules that have to stand before the flows'.
    Device {
        /// What was tried.
        what: String,
        /// What it said.
        error: FlowError,
    },
    /// The device did not answer.
    Silent,
    /// The system gave no thread.
    Thread(std::io::Error),
    /// The shim was built for something else.
    Shim,
}

impl fmt::Display for OffloadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OffloadError::Device { what, error } => write!(f, "{what}: {error}"),
            OffloadError::Silent => f.write_str("the device did not answer a request to put in a rule"),
            OffloadError::Thread(error) => write!(f, "no thread for the flow engine: {error}"),
            OffloadError::Shim => f.write_str("the C shim and this library do not agree on what a rule is"),
        }
    }
}

impl std::error::Error for OffloadError {}

/// A rule's counters, as the thread last read them.
#[derive(Debug, Default)]
struct Cell {
    generation: AtomicU32,
    packets: AtomicU64,
    bytes: AtomicU64,
    /// Nanoseconds; 0: never.
    last_seen: AtomicU64,
}

#[derive(Debug)]
struct Shared {
    stop: AtomicBool,
    cells: Box<[Cell]>,
    statistics: Mutex<Statistics>,
}

/// The thread. Dropping it takes every rule out of the ports and ends it; workers' requests are then refused.
#[derive(Debug)]
pub struct Offload {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Offload {
    /// Sets the ports up and begins; one engine for each worker.
    ///
    /// # Errors
    /// [`OffloadError`]; nothing is left in the ports.
    pub fn start(options: OffloadOptions, hops: Box<dyn Hops>) -> Result<(Offload, Vec<RteFlowEngine>), OffloadError> {
        if !raw::agrees_with_the_shim() {
            return Err(OffloadError::Shim);
        }
        match options.way {
            Way::Synchronous => Offload::run(options, hops, Synchronous::default()),
            Way::Templates => {
                let ports: Vec<u16> = options.ports.iter().map(|port| port.id).collect();
                let device = Templates::open(&ports, options.rules_max, options.terms.counts.has(Does::COUNT));
                let what = "preparing the ports for templates".into();
                Offload::run(options, hops, device.map_err(|error| OffloadError::Device { what, error })?)
            }
        }
    }

    fn run<D: RuleDevice + 'static>(
        options: OffloadOptions,
        hops: Box<dyn Hops>,
        mut device: D,
    ) -> Result<(Offload, Vec<RteFlowEngine>), OffloadError> {
        let ids: Vec<u16> = options.ports.iter().map(|port| port.id).collect();
        if let Err(error) = set_up(&mut device, &options) {
            device.close(&ids);
            return Err(error);
        }
        let cells = (0..options.rules_max).map(|_| Cell::default()).collect();
        let shared = Arc::new(Shared { stop: AtomicBool::new(false), cells, statistics: Mutex::default() });
        let (mut inboxes, mut ends) = (Vec::new(), Vec::new());
        for _ in 0..options.workers {
            let (request, requests) = sync_channel(OPS_MAX);
            let (answer, answers) = sync_channel(OPS_MAX);
            inboxes.push(Inbox { requests, waiting: None, answers: answer });
            ends.push((request, answers));
        }
        let machine = Machine::new(device, options.terms, options.ports.clone(), options.rules_max, hops.generation());
        let service = Service { machine, inboxes, hops, shared: Arc::clone(&shared), clock: options.clock };
        let eal = options.eal;
        let thread = std::thread::Builder::new().name("flow engine".into()).spawn(move || {
            // Without an id of its own everything works, a little slower.
            let _registration = eal.map(|eal| eal.register_thread());
            service.run();
        });
        let thread = thread.map_err(OffloadError::Thread)?;
        let caps = caps(&options);
        let engines = ends.into_iter().map(|(requests, answers)| RteFlowEngine {
            caps,
            open: None,
            queued: Vec::with_capacity(OPS_MAX),
            under_way: 0,
            requests,
            answers,
            refused: VecDeque::new(),
            places: HashMap::with_capacity(options.rules_max as usize),
            shared: Arc::clone(&shared),
            thread: thread.thread().clone(),
        });
        let engines = engines.collect();
        Ok((Offload { shared, thread: Some(thread) }, engines))
    }

    /// What it has done.
    pub fn statistics(&self) -> Statistics {
        *self.shared.statistics.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Offload {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A panic there was reported when it happened.
            let _ = thread.join();
        }
    }
}

fn caps(options: &OffloadOptions) -> EngineCaps {
    let terms = &options.terms;
    EngineCaps {
        rules_max: options.rules_max,
        ops_in_flight_max: OPS_MAX as u32,
        rewrites_sequence: terms.numbers.has(Does::SEQUENCE),
        rewrites_sack: false,
        rewrites_window: false,
        checks_guards: false,
        counts: terms.counts != Does::NONE,
    }
}

/// Puts in the rules that stand before the flows'.
fn set_up(device: &mut impl RuleDevice, options: &OffloadOptions) -> Result<(), OffloadError> {
    let until = Instant::now() + SETTING_UP;
    for port in &options.ports {
        for rule in standing(&options.terms, port) {
            let what = || format!("putting in a rule that has to stand before the flows': {rule:?}");
            let refused = |error| OffloadError::Device { what: what(), error };
            device.create(port.id, &rule, 0).map_err(refused)?;
            device.push();
            loop {
                match device.pull() {
                    Some(Outcome::Created(..)) => break,
                    Some(_) => {
                        let error = FlowError { code: libc::EIO, kind: 0, message: String::new() };
                        return Err(OffloadError::Device { what: what(), error });
                    }
                    None if Instant::now() > until => return Err(OffloadError::Silent),
                    None => std::thread::sleep(AWAITING),
                }
            }
        }
    }
    Ok(())
}

/// The thread's end of one worker's queues.
#[derive(Debug)]
struct Inbox {
    requests: Receiver<Request>,
    /// The oldest, which has to wait.
    waiting: Option<Request>,
    answers: SyncSender<Told>,
}

/// Everything that the thread has.
struct Service<D> {
    machine: Machine<D>,
    inboxes: Vec<Inbox>,
    hops: Box<dyn Hops>,
    shared: Arc<Shared>,
    clock: fn() -> Time,
}

/// Where the machine's answers go.
struct Outboxes<'a> {
    inboxes: Vec<&'a SyncSender<Told>>,
    cells: &'a [Cell],
}

impl Listener for Outboxes<'_> {
    fn tell(&mut self, worker: u16, told: Told) {
        if let Some(answers) = self.inboxes.get(usize::from(worker)) {
            // It is never full; a worker that is gone needs no answer.
            let _ = answers.try_send(told);
        }
    }

    fn counted(&mut self, (place, generation): (u32, u32), counters: &Counters) {
        let Some(cell) = self.cells.get(place as usize) else { return };
        cell.packets.store(counters.packets, Ordering::Relaxed);
        cell.bytes.store(counters.bytes, Ordering::Relaxed);
        cell.last_seen.store(counters.last_seen.map_or(0, |seen| seen.as_nanos().max(1)), Ordering::Relaxed);
        cell.generation.store(generation, Ordering::Release);
    }
}

impl<D: RuleDevice> Service<D> {
    fn run(mut self) {
        let mut senders: Vec<SyncSender<Told>> = Vec::new();
        senders.extend(self.inboxes.iter().map(|inbox| inbox.answers.clone()));
        let shared = Arc::clone(&self.shared);
        let mut outboxes = Outboxes { inboxes: senders.iter().collect(), cells: &shared.cells };
        while !shared.stop.load(Ordering::Acquire) {
            let now = (self.clock)();
            let begun = self.begin(now, &mut outboxes);
            let answered = self.machine.settle(now, &*self.hops, &mut outboxes);
            let more = self.machine.tend(now, &*self.hops, &mut outboxes);
            self.machine.statistics.rules = self.machine.rules() as u64;
            *shared.statistics.lock().unwrap_or_else(PoisonError::into_inner) = self.machine.statistics;
            if !(begun | answered | more) {
                std::thread::park_timeout(if self.machine.device.is_waiting() { AWAITING } else { IDLE });
            }
        }
        self.machine.close();
    }

    /// Begins what workers ask for, some of each in turn.
    fn begin(&mut self, now: Time, out: &mut Outboxes<'_>) -> bool {
        let mut any = false;
        for (worker, inbox) in self.inboxes.iter_mut().enumerate() {
            for _ in 0..TURN {
                let Some(request) = inbox.waiting.take().or_else(|| inbox.requests.try_recv().ok()) else { break };
                match self.machine.request(now, worker as u16, request, &*self.hops, out) {
                    None => any = true,
                    Some(request) => {
                        inbox.waiting = Some(request);
                        break;
                    }
                }
            }
        }
        any
    }
}

/// A worker's flow engine. Rules of it are known to the thread by what they match, so no two workers may ask for the same
/// flow.
///
/// Two rules in a row that are each other's other direction are a pair: both are installed, or both are refused. Counters
/// are as they were up to half a second ago, or as long as the device takes to tell those of all rules. What a rule counts
/// between being asked for the last time and being gone is not known.
///
/// It has [`Fate::Forward`](hairpin_core::engine::Fate::Forward) rules only, since there is no kernel to leave packets to.
/// A packet that is in a worker's queue when its rule comes into force may be overtaken by its successors: a device cannot
/// be told to wait for it (invariant 7 does not hold here, up to one queue of packets at each hand-over).
#[derive(Debug)]
pub struct RteFlowEngine {
    caps: EngineCaps,
    /// The last rule asked for, which may be half a pair.
    open: Option<Rule>,
    queued: Vec<Request>,
    under_way: usize,
    requests: SyncSender<Request>,
    answers: Receiver<Told>,
    /// Answers to what the thread was not there to take.
    refused: VecDeque<Completion>,
    /// Where the counters of installed rules are.
    places: HashMap<FlowKey, (u32, u32)>,
    shared: Arc<Shared>,
    thread: Thread,
}

impl RteFlowEngine {
    /// What stood open is a rule of its own.
    fn close_pair(&mut self) {
        if let Some(rule) = self.open.take() {
            self.queued.push(Request::Install(rule));
        }
    }

    /// Answers for a thread that has ended: it has taken all rules out.
    fn refuse(&mut self, request: Request) {
        match request {
            Request::Install(rule) => self.refused.push_back(Completion::Rejected(rule.id, Refusal::Failed)),
            Request::Pair(rules) => {
                self.refused.extend(rules.map(|rule| Completion::Rejected(rule.id, Refusal::Failed)));
            }
            Request::Remove { id, .. } => self.refused.push_back(Completion::Removed(id, None)),
        }
    }

    fn counters(&self, (place, generation): (u32, u32)) -> Option<Counters> {
        let cell = self.shared.cells.get(place as usize)?;
        if cell.generation.load(Ordering::Acquire) != generation {
            return None;
        }
        let last_seen = cell.last_seen.load(Ordering::Relaxed);
        Some(Counters {
            packets: cell.packets.load(Ordering::Relaxed),
            bytes: cell.bytes.load(Ordering::Relaxed),
            last_seen: (last_seen != 0).then(|| Time::from_nanos(last_seen)),
        })
    }
}

/// Whether the second rule takes what answers the packets that the first has sent on.
fn is_pair(first: &Rule, second: &Rule) -> bool {
    first.rewrite.rewritten(&first.key).reversed() == second.key
        && second.rewrite.rewritten(&second.key).reversed() == first.key
}

impl FlowEngine for RteFlowEngine {
    fn caps(&self) -> EngineCaps {
        self.caps
    }

    fn submit(&mut self, _now: Time, op: RuleOp) -> Result<(), RuleOp> {
        match op {
            RuleOp::Install(rule) => {
                if let Some(first) = self.open
                    && is_pair(&first, &rule)
                {
                    // There was room for two when the first came.
                    self.open = None;
                    self.queued.push(Request::Pair([first, rule]));
                } else if self.under_way + 2 > OPS_MAX {
                    return Err(op);
                } else {
                    self.close_pair();
                    self.open = Some(rule);
                }
            }
            RuleOp::Remove { id, key } => {
                if self.under_way + 1 > OPS_MAX {
                    return Err(op);
                }
                self.close_pair();
                self.queued.push(Request::Remove { id, key });
            }
        }
        self.under_way += 1;
        Ok(())
    }

    fn flush(&mut self, _now: Time) {
        self.close_pair();
        if self.queued.is_empty() {
            return;
        }
        let mut queued = std::mem::take(&mut self.queued);
        for request in queued.drain(..) {
            // It is never full, so this means that the thread has ended.
            if self.requests.try_send(request).is_err() {
                self.refuse(request);
            }
        }
        self.queued = queued;
        self.thread.unpark();
    }

    fn poll(&mut self, _now: Time, out: &mut Completions) {
        while !out.is_full() {
            if let Some(completion) = self.refused.pop_front() {
                self.under_way -= 1;
                out.push(completion);
                continue;
            }
            let Ok(told) = self.answers.try_recv() else { return };
            match told.completion {
                Completion::Installed(_) => {
                    self.places.insert(told.key, told.place);
                }
                Completion::Removed(..) => {
                    self.places.remove(&told.key);
                }
                Completion::Rejected(..) => {}
            }
            self.under_way -= 1;
            out.push(told.completion);
        }
    }

    fn sample(&mut self, rules: &[(RuleId, FlowKey)], out: &mut Samples) {
        out.clear();
        for (_, key) in rules.iter().take(COMPLETIONS_MAX) {
            out.push(self.places.get(key).and_then(|place| self.counters(*place)));
        }
    }
}

//! A run: what happens, in the order of time.

use super::card::{CardHandle, SharedCard};
use super::frames::{BedFrame, BedPlane, FrameMemory};
use super::hosts::{CLIENTS_MAX, HostCounts, Hosts, POOL, SERVER_COUNT, SERVER_PORT, SERVERS, SERVICE};
use super::line::Line;
use super::profile::{Done, Work};
use super::{HttpResults, HttpTestbedOptions};
use crate::nic::Passage;
use fastrand::Rng;
use hairpin_core::balance::{EffectiveWeights, Loads};
use hairpin_core::config::{
    Algorithm, Backend, BackendState, Forwarding, Pool, Service, ServiceState, Snapshot, UnknownPacket,
};
use hairpin_core::event_loop::EventLoop;
use hairpin_core::flow::{Endpoint, Protocol, SteerBy, Steering};
use hairpin_core::frame::Frame;
use hairpin_core::l7::config::{Action, Edits, Forwarded, Http, HttpLimits, Kind, Route};
use hairpin_core::l7::cookie::Cookies;
use hairpin_core::l7::route::Conditions;
use hairpin_core::l7::splice::SplicedMemory;
use hairpin_core::offload::{AnyPolicy, Choice};
use hairpin_core::table::slab::boxed;
use hairpin_core::table::{AnyTable, Hasher};
use hairpin_core::time::{Duration, Time};
use hairpin_core::wire::{self, Parsed, Transport};
use hairpin_core::worker::{Occupancy, Worker, WorkerOptions};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

/// Bytes that may wait for the line out: cores fill it in bursts, and cards have buffers for it.
const OUT_BUFFER_BYTES: f64 = 4e6;
/// A core whose neighbour has worked so short a time ago, in nanoseconds, shares its cache with it.
const NEIGHBOUR_NS: u64 = 2000;
/// Between two reports of progress, in events.
const PROGRESS: u64 = 1 << 14;

type CoreLoop = EventLoop<BedPlane, CardHandle, Worker<AnyPolicy, AnyTable>>;

/// A core with its worker.
struct Core {
    event_loop: CoreLoop,
    /// When it is done with what it does, or looks again.
    until: u64,
    is_busy: bool,
    /// Its last work ended then.
    worked_until: u64,
    leaving: Vec<BedFrame>,
    work: [f64; Work::COUNT],
    busy_ns: f64,
    /// Packets lost in its queue.
    lost: u64,
    /// What was counted before: packets, requests, responses, requests to the engine.
    counted: [u64; 4],
}

/// The totals at a moment.
#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    hosts: HostCounts,
    core_packets: u64,
    card: [u64; 4],
    work: [f64; Work::COUNT],
    busy_ns: f64,
    memory_ns: f64,
    lines_ns: [f64; 2],
    lost: [u64; 4],
    dropped: u64,
    latencies: usize,
}

struct Bed<'a> {
    options: &'a HttpTestbedOptions,
    now: u64,
    steering: Steering,
    cores: Vec<Core>,
    card: Option<Rc<RefCell<SharedCard>>>,
    /// Frames that the card has turned round, and when they leave.
    turned: VecDeque<(u64, BedFrame)>,
    hosts: Hosts,
    line_in: Line,
    line_out: Line,
    /// When memory has moved all that it was given.
    memory_free: f64,
    memory_ns: f64,
    failures: Vec<String>,
}

/// Runs it. `progress` hears now and then how many events there were.
pub fn run(options: &HttpTestbedOptions, progress: &mut dyn FnMut(u64)) -> HttpResults {
    let mut bed = Bed::new(options);
    let begins = options.warm_up.as_nanos() as u64;
    let ends = begins + options.measured.as_nanos() as u64;
    let mut events = 0;
    let mut before = None;
    loop {
        let next = bed.next();
        if before.is_none() && next >= begins {
            before = Some(bed.totals());
        }
        if next >= ends {
            break;
        }
        bed.step(next);
        events += 1;
        if u64::is_multiple_of(events, PROGRESS) {
            progress(events);
        }
    }
    bed.results(&before.unwrap_or_default(), options.measured.as_secs_f64())
}

impl Core {
    fn new(event_loop: CoreLoop) -> Core {
        Core {
            event_loop,
            until: u64::MAX,
            is_busy: false,
            worked_until: 0,
            leaving: Vec::new(),
            work: [0.0; Work::COUNT],
            busy_ns: 0.0,
            lost: 0,
            counted: [0; 4],
        }
    }

    /// What the worker has done since this was last asked.
    fn done(&mut self) -> Done {
        let statistics = &self.event_loop.worker.statistics().http;
        let responses = statistics.responses.iter().sum();
        let counts = [self.event_loop.io.taken.0, statistics.requests, responses, self.event_loop.engine.asked()];
        let before = std::mem::replace(&mut self.counted, counts);
        let since = |at: usize| counts[at] - before[at];
        let sent = self.event_loop.io.sent.len() as u64;
        Done { received: since(0), sent, requests: since(1), responses: since(2), rule_requests: since(3) }
    }
}

impl<'a> Bed<'a> {
    fn new(options: &'a HttpTestbedOptions) -> Bed<'a> {
        let mut random = Rng::with_seed(options.seed);
        let cores = options.cores.clamp(1, options.nic.cores_max);
        let steering = Steering { by: SteerBy::Port, ..Steering::by_hash([random.u64(..), random.u64(..)], cores) };
        let card = options
            .card
            .as_ref()
            .map(|card| Rc::new(RefCell::new(SharedCard::new(card, usize::from(cores), random.fork()))));
        let memory = FrameMemory::default();
        let clients = options.clients.clamp(1, CLIENTS_MAX);
        let hosts = Hosts::new((options.hosts, options.load, options.sizes.clone()), clients, &memory, random.fork());
        let hop = options.hosts.hop_us * 1000.0;
        let gbit_s = options.nic.ports.gbit_s * f64::from(options.ports.clamp(1, options.nic.ports.count));
        let loops = event_loops(options, steering, card.as_ref(), &memory, &mut random);
        Bed {
            options,
            now: 0,
            steering,
            cores: loops.into_iter().map(Core::new).collect(),
            card,
            turned: VecDeque::new(),
            hosts,
            line_in: Line::new(gbit_s, options.hosts.buffer_bytes, 0.0),
            line_out: Line::new(gbit_s, OUT_BUFFER_BYTES, hop),
            memory_free: 0.0,
            memory_ns: 0.0,
            failures: Vec::new(),
        }
    }

    /// When something next happens.
    fn next(&self) -> u64 {
        let card = self.card.as_ref().and_then(|card| card.borrow().nic.next()).map_or(u64::MAX, Time::as_nanos);
        let turned = self.turned.front().map_or(u64::MAX, |(at, _)| *at);
        let core = self.cores.iter().map(|core| core.until).min().unwrap_or(u64::MAX);
        let next = [self.line_in.next(), self.line_out.next(), self.hosts.next(), card, turned, core];
        next.into_iter().min().unwrap_or(u64::MAX).max(self.now)
    }

    /// Does all that is due at a time.
    fn step(&mut self, now: u64) {
        self.now = now;
        for number in 0..self.cores.len() {
            if self.cores[number].until <= now {
                self.core_is_done(number);
            }
        }
        self.hear_card();
        while self.turned.front().is_some_and(|(at, _)| *at <= now)
            && let Some((_, frame)) = self.turned.pop_front()
        {
            self.line_out.send(now as f64, frame);
        }
        while let Some(frame) = self.line_out.arrived(now) {
            self.hosts.arrive(now, &frame);
        }
        self.hosts.wake(now);
        let there = now as f64 + self.options.hosts.hop_us * 1000.0;
        for frame in self.hosts.out.drain(..) {
            self.line_in.send(there, frame);
        }
        while let Some(frame) = self.line_in.arrived(now) {
            self.arrive(frame);
        }
    }

    /// The card works, and its answers wake cores.
    fn hear_card(&mut self) {
        let Some(card) = &self.card else { return };
        let mut card = card.borrow_mut();
        if card.nic.next().is_none_or(|at| at.as_nanos() > self.now) {
            return;
        }
        card.deal(Time::from_nanos(self.now));
        let soon = self.now + self.options.nic.work.poll_ns as u64;
        for (number, core) in self.cores.iter_mut().enumerate() {
            if !core.is_busy && card.has_answers(number) {
                core.until = core.until.min(soon);
            }
        }
    }

    /// A frame has come in at the ports.
    fn arrive(&mut self, mut frame: BedFrame) {
        let Ok(Parsed::Transport(at)) = wire::parse(frame.bytes()) else {
            return self.failures.push("a host has sent what is no TCP segment".into());
        };
        if let Some(card) = &self.card {
            let passage = card.borrow_mut().nic.frame(Time::from_nanos(self.now), &mut frame, &at);
            match passage {
                Passage::Forward(leaves) => return self.turned.push_back((leaves.as_nanos(), frame)),
                // The card counts it.
                Passage::Lost => return,
                Passage::Pass => return self.failures.push("the card has passed a frame to the kernel".into()),
                Passage::Miss => {}
            }
        }
        let number = self.steering_of(&at);
        let core = &mut self.cores[number];
        if core.event_loop.io.waiting.len() >= self.options.nic.ports.queue as usize {
            core.lost += 1;
            return;
        }
        core.event_loop.io.waiting.push_back(frame);
        if !core.is_busy {
            core.until = core.until.min(self.now + self.options.nic.work.poll_ns as u64);
        }
    }

    /// The core of a packet's connection.
    fn steering_of(&self, at: &Transport) -> usize {
        let is_of_client = at.key.destination == Endpoint::from(SERVICE);
        let end = if is_of_client { &at.key.source } else { &at.key.destination };
        usize::from(self.steering.worker(end))
    }

    /// A core is done with what it did, and looks for more.
    fn core_is_done(&mut self, number: usize) {
        let now = Time::from_nanos(self.now);
        let core = &mut self.cores[number];
        for frame in core.leaving.drain(..) {
            self.line_out.send(self.now as f64, frame);
        }
        let is_asked = core.event_loop.worker.poll_timeout(now).is_some_and(|due| due <= now);
        let has_answers = self.card.as_ref().is_some_and(|card| card.borrow().has_answers(number));
        if core.event_loop.io.waiting.is_empty() && !is_asked && !has_answers && !core.event_loop.is_blocked() {
            core.is_busy = false;
            core.until = core.event_loop.worker.poll_timeout(now).map_or(u64::MAX, Time::as_nanos);
            return;
        }
        let bytes_before = core.event_loop.io.taken.1;
        core.event_loop.iterate(now, |_| {});
        let done = core.done();
        let bytes = (core.event_loop.io.taken.1 - bytes_before) as f64;
        std::mem::swap(&mut core.leaving, &mut core.event_loop.io.sent);
        let (until, costs) = self.takes(number, &done, bytes);
        let core = &mut self.cores[number];
        core.is_busy = true;
        core.work.iter_mut().zip(costs).for_each(|(sum, cost)| *sum += cost);
        core.busy_ns += (until - self.now) as f64;
        (core.until, core.worked_until) = (until, until);
    }

    /// Until when an iteration lasts, and its nanoseconds by kind of work.
    fn takes(&mut self, number: usize, done: &Done, bytes: f64) -> (u64, [f64; Work::COUNT]) {
        let nic = &self.options.nic;
        let mut costs = nic.costs(done);
        let together = usize::from(nic.l2.cores);
        let first = number / together * together;
        let neighbours = self.cores.iter().enumerate().skip(first).take(together);
        let worked = |core: &Core| core.worked_until + NEIGHBOUR_NS > self.now && core.worked_until > 0;
        if neighbours.into_iter().any(|(other, core)| other != number && worked(core)) {
            costs.iter_mut().for_each(|cost| *cost *= nic.l2.factor);
        }
        let memory = &nic.memory;
        let moved = bytes * memory.passes + done.received as f64 * memory.packet_bytes;
        let takes = moved / memory.gbyte_s;
        self.memory_free = self.memory_free.max(self.now as f64) + takes;
        self.memory_ns += takes;
        let worked = self.now as f64 + costs.iter().sum::<f64>().max(nic.work.poll_ns);
        costs[Work::Memory as usize] = (self.memory_free - worked).max(0.0);
        (self.memory_free.max(worked).ceil() as u64, costs)
    }

    fn totals(&self) -> Totals {
        let card = self.card.as_ref().map(|card| card.borrow().nic.tally()).unwrap_or_default();
        let mut work = [0.0; Work::COUNT];
        for core in &self.cores {
            work.iter_mut().zip(core.work).for_each(|(sum, part)| *sum += part);
        }
        let of_cores = |of: fn(&Core) -> u64| self.cores.iter().map(of).sum::<u64>();
        Totals {
            hosts: self.hosts.counts(),
            core_packets: of_cores(|core| core.event_loop.io.taken.0),
            card: [card.forwarded, card.bytes, card.inserted, card.changing_ns],
            work,
            busy_ns: self.cores.iter().map(|core| core.busy_ns).sum(),
            memory_ns: self.memory_ns,
            lines_ns: [self.line_in.busy_ns, self.line_out.busy_ns],
            lost: [self.line_in.lost, of_cores(|core| core.lost), card.lost, self.line_out.lost],
            dropped: of_cores(|core| core.event_loop.worker.statistics().drops.iter().sum()),
            latencies: self.hosts.latencies.len(),
        }
    }

    fn results(mut self, before: &Totals, seconds: f64) -> HttpResults {
        let after = self.totals();
        let ns = seconds * 1e9;
        let mut latencies = self.hosts.latencies.split_off(before.latencies.min(self.hosts.latencies.len()));
        latencies.sort_unstable();
        let mut failures = std::mem::take(&mut self.failures);
        failures.append(&mut self.hosts.failures);
        for core in &self.cores {
            let statistics = core.event_loop.worker.statistics();
            let impossible = statistics.drops[hairpin_core::worker::Drop::Invariant as usize];
            let refused: u64 = statistics.http.refused.iter().sum();
            if impossible + refused > 0 {
                failures.push(format!("{impossible} cases that cannot happen, {refused} requests refused"));
            }
        }
        failures.truncate(8);
        let card = |at: usize| after.card[at] - before.card[at];
        let mut work = after.work;
        work.iter_mut().zip(before.work).for_each(|(work, before)| *work -= before);
        let part = |after: f64, before: f64| (after - before) / ns;
        HttpResults {
            seconds,
            body_bytes: after.hosts.bytes.wrapping_sub(before.hosts.bytes),
            responses: after.hosts.responses - before.hosts.responses,
            core_packets: after.core_packets - before.core_packets,
            engine_packets: card(0),
            engine_bytes: card(1),
            rules: card(2),
            changing: card(3) as f64 / ns,
            latencies,
            work,
            busy: part(after.busy_ns, before.busy_ns) / self.cores.len() as f64,
            memory_busy: part(after.memory_ns, before.memory_ns),
            lines_busy: [0, 1].map(|at| part(after.lines_ns[at], before.lines_ns[at])),
            lost: [0, 1, 2, 3].map(|at| after.lost[at] - before.lost[at]),
            dropped: after.dropped - before.dropped,
            repeated: after.hosts.repeated - before.hosts.repeated,
            timeouts: after.hosts.timeouts - before.hosts.timeouts,
            failures,
        }
    }
}

/// The service: all requests go to the servers in turn, and say whose they are (`X-Forwarded-For`).
fn snapshot(options: &HttpTestbedOptions) -> Snapshot {
    let backend = |number: u16| Backend {
        number,
        name: format!("server-{number}").into(),
        endpoint: super::frames::End { address: SERVERS + u32::from(number), port: SERVER_PORT }.into(),
        weight: 100,
        state: BackendState::Enabled,
        is_backup: false,
        connections_max: 0,
    };
    let route = Route {
        conditions: Conditions::default(),
        action: Action::Forward { groups: [(0, 1)].into(), replace_prefix: None },
        edits: Edits::default(),
        terms: Default::default(),
    };
    let http = Http {
        routes: [route].into(),
        forwarded: Forwarded { x_for: true, ..Forwarded::default() },
        reuse: true,
        limits: HttpLimits { idle_per_backend_max: u16::MAX, ..HttpLimits::default() },
        offload_bytes_min: Some(options.offload_bytes_min),
        timestamps: false,
        ..Http::default()
    };
    let service = Service {
        state: ServiceState::Active,
        name: "site".into(),
        endpoint: SERVICE.into(),
        protocol: Protocol::Tcp,
        kind: Kind::Http(Box::new(http)),
        forwarding: Forwarding::FullNat,
        algorithm: Algorithm::RoundRobin,
        unknown: UnknownPacket::Drop,
        backends: (0..SERVER_COUNT).map(backend).collect(),
        ..Service::vacant()
    };
    let address = Endpoint::from(super::frames::End { address: POOL, port: 0 }).address;
    let time_wait = Duration::from_secs(60);
    Snapshot::new(
        [service].into(),
        Pool { addresses: [address].into(), port_first: 1024, port_last: u16::MAX, time_wait },
    )
}

/// The cores' event loops.
fn event_loops(
    options: &HttpTestbedOptions,
    steering: Steering,
    card: Option<&Rc<RefCell<SharedCard>>>,
    memory: &FrameMemory,
    random: &mut Rng,
) -> Vec<CoreLoop> {
    let snapshot = Arc::new(snapshot(options));
    let (loads, effective_weights, occupancy) = (Loads::default(), EffectiveWeights::new(), Occupancy::default());
    let seeds = [(); 4].map(|()| random.u64(..));
    let caps = options.card.as_ref().map_or(hairpin_core::engine::EngineCaps::NONE, |card| card.caps());
    let choice = || if card.is_some() { Choice::Always } else { Choice::Never };
    let connections = (4 * options.clients / u32::from(steering.workers)).max(256);
    let event_loop = |number: u16| {
        let entries = 16;
        let worker = Worker::new(WorkerOptions {
            steering,
            worker: number,
            loads: loads.clone(),
            effective_weights: effective_weights.clone(),
            occupancy: occupancy.clone(),
            caps,
            splices: SplicedMemory::own(connections),
            cookies: Cookies::new([[seeds[0], 1], [seeds[1], 2]]),
            ..WorkerOptions::new(
                snapshot.clone(),
                boxed(entries),
                AnyTable::new(2 * entries, Hasher::new(seeds)),
                AnyPolicy::new(choice(), entries),
                seeds,
            )
        });
        let engine = CardHandle { card: card.cloned(), core: usize::from(number), refused: VecDeque::new() };
        // Virtual time stands still during an iteration: the threshold is the configuration's, so no costs are measured.
        EventLoop::new(worker, BedPlane::new(memory), engine, || Time::ZERO, || Duration::ZERO)
    };
    (0..steering.workers).map(event_loop).collect()
}

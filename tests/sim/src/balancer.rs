//! The middle as Hairpin: the engine first, then the worker behind its queue, the kernel for what is neither's.

mod killed;
mod remains;
mod set_up;

use crate::carrier::Carrier;
use crate::engine::{Engine, EngineBug, EngineOptions, PacketOutcome, SetUpOptions};
use crate::nic::{CardProfile, Nic};
use crate::port::WorkerPort;
use crate::segments::{self, transport};
use crate::trace::{Trace, TracePoint};
use fastrand::Rng;
use hairpin_core::balance::Loads;
use hairpin_core::config::Snapshot;
use hairpin_core::engine::FlowEngine;
use hairpin_core::event_loop::{EventLoop, Ticket};
use hairpin_core::flow::{Address, Endpoint, FlowKey, Protocol, Steering};
use hairpin_core::frame::{Arrival, Egress, Meta, VecFrame};
use hairpin_core::l4::answer;
use hairpin_core::l7::splice::SplicedMemory;
use hairpin_core::offload::{EngineRoom, FlowStats, OffloadPolicy, Reason, Verdict};
use hairpin_core::table::AnyTable;
use hairpin_core::table::slab::boxed;
use hairpin_core::time::{Duration, Time};
use hairpin_core::wire::tcp::{self, FIN, RST, SYN};
use hairpin_core::wire::{self, Parsed, Transport};
use hairpin_core::worker::{Known, Occupancy, Worker};
use killed::Successor;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::AtomicU8;

/// Frames that wait for the worker at most; more are dropped, as by a TAP device's ring.
const QUEUE_MAX: usize = 512;
/// Clients' connections of HTTP services there can be.
const SPLICES_MAX: u32 = 64;

/// Mistakes the middle can be told to make, so that a checker can be seen to find them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// One of the engine's.
    Engine(EngineBug),
    /// FINs from clients vanish.
    LosesFin,
    /// A byte of payload is changed, and the checksum with it.
    ChangesPayload,
    /// A frame is never given back.
    LeaksFrame,
    /// A packet in the middle of a connection goes to another backend.
    OtherBackend,
    /// Payload of a super-packet comes out in the wrong order.
    SwapsSegments,
}

/// The parameters of the middle.
#[derive(Clone, Debug)]
pub struct BalancerHostOptions {
    /// Its configuration.
    pub snapshot: Snapshot,
    /// Its engine.
    pub engine: EngineOptions,
    /// A card in place of that.
    pub card: Option<CardProfile>,
    /// How the engine sets up the connections of the first service; `None`: workers do. Not with a card.
    pub set_up: Option<SetUpOptions>,
    /// Connections go to the engine after so many packets; `None`: never.
    pub offload_after: Option<u64>,
    /// How long frames wait for others to be put together with; `None`: they are not put together.
    pub coalesce: Option<Duration>,
    /// How long an iteration of the worker's event loop takes.
    pub iteration: Duration,
    /// Whether the plane at times takes no frames, and lends none.
    pub blocks: bool,
    /// Connections it can have.
    pub capacity: usize,
    /// How long a process lasts, on average, until it is killed and another one takes over the memory that it leaves;
    /// `None`: to the end. Not with a card.
    pub process_lasts: Option<Duration>,
    /// A mistake to make.
    pub bug: Option<Bug>,
}

/// Offloads established connections after a number of packets.
#[derive(Clone, Copy, Debug)]
pub struct AfterPackets(Option<u64>);

impl OffloadPolicy for AfterPackets {
    fn name(&self) -> &'static str {
        "after-packets"
    }
    fn on_packet(&mut self, _: Time, flow: &FlowStats, room: EngineRoom) -> Verdict {
        let wanted = self.0.is_some_and(|after| flow.packets >= after);
        match (wanted, room.rules + 2 <= room.rules_max) {
            (false, _) => Verdict::Keep(Reason::Small),
            (true, false) => Verdict::Keep(Reason::Room),
            (true, true) => Verdict::Offload,
        }
    }
}

/// Hairpin in the middle of the network.
pub struct BalancerHost {
    options: BalancerHostOptions,
    /// Its worker and its engine, and the event loop that every plane has.
    pub event_loop: EventLoop<WorkerPort, Carrier, Worker<AfterPackets, AnyTable>>,
    loads: Loads,
    occupancy: Occupancy,
    /// Where the worker notes its connections for the engine; empty if the engine sets none up.
    cells: &'static [AtomicU8],
    snapshot: Arc<Snapshot>,
    steering: Steering,
    /// Draws what a process draws at its start, and when it ends.
    fates: Rng,
    /// When the process is killed.
    killed_at: Option<Time>,
    /// What is to become of the one that follows it; `None`: a process serves.
    successor: Option<Successor>,
    /// Processes that were killed.
    pub killed: u64,
    services: BTreeSet<Endpoint>,
    /// Whether numbers change on the way.
    splices: bool,
    backends: BTreeSet<Endpoint>,
    own: BTreeSet<Address>,
    /// The backend of each source, and where its last SYN went.
    chosen: BTreeMap<Endpoint, (Endpoint, Option<Endpoint>)>,
    /// Tickets of frames as they wait, for the engine's hand-over.
    arrived: Vec<VecFrame>,
    coalesce_at: Option<Time>,
    iterate_at: Option<Time>,
    /// When a worker whose engine sets connections up wakes by itself: it asks for a time from now on, each time anew.
    wakes_at: Time,
    rested: Time,
    /// The defects of its run.
    pub failures: Vec<String>,
    /// Frames dropped because the worker's queue was full.
    pub overflows: u64,
    payloads: u32,
}

impl BalancerHost {
    /// A balancer; everything it draws comes from `random`.
    pub fn new(options: BalancerHostOptions, random: &mut Rng) -> BalancerHost {
        let mut snapshot = options.snapshot.clone();
        snapshot.id = 1;
        let snapshot = Arc::new(snapshot);
        let loads = Loads::default();
        let mut engine_options = options.engine;
        if let Some(Bug::Engine(bug)) = options.bug {
            engine_options.bug = Some(bug);
        }
        let seeds = [(); 4].map(|()| random.u64(..));
        let steering = Steering::by_hash([random.u64(..), random.u64(..)], 1);
        let fates = Rng::with_seed(seeds[0]);
        let making = (&options, snapshot.clone(), steering, loads.clone());
        let mut start = killed::worker_options(making, boxed(options.capacity), SplicedMemory::own(SPLICES_MAX), seeds);
        let cells = set_up::cells(&options);
        let occupancy = Occupancy::default();
        (start.known, start.occupancy) = (Known::new(cells), occupancy.clone());
        // Of nothing, but what the next process asks for is said.
        let (worker, _) = Worker::adopt(start, Time::ZERO, &|_| false);
        let services =
            snapshot.services.iter().filter(|service| !service.kind.is_group()).map(|service| service.endpoint);
        let services: BTreeSet<_> = services.collect();
        let splices = snapshot.services.iter().any(|service| service.kind.is_spliced());
        let backends = snapshot.services.iter().flat_map(|service| service.backends.iter());
        let own = services.iter().map(|end| end.address).chain(snapshot.pool.addresses.iter().copied()).collect();
        let engine = match &options.card {
            None => {
                let mut engine = Engine::new(engine_options, random.fork());
                engine.set_up = options.set_up.map(|set_up| Box::new(set_up::part(set_up, &snapshot, cells, steering)));
                Carrier::Kernel(engine)
            }
            Some(profile) => Carrier::Card(Box::new(Nic::new(profile.clone(), random.fork()))),
        };
        let port = WorkerPort::new(options.blocks.then(|| random.fork()), options.bug == Some(Bug::LeaksFrame));
        BalancerHost {
            // Virtual time stands still during an iteration: what frames and rules cost is not measured.
            event_loop: EventLoop::new(worker, port, engine, || Time::ZERO, || Duration::ZERO),
            loads,
            occupancy,
            cells,
            backends: backends.map(|backend| backend.endpoint).collect(),
            snapshot,
            steering,
            fates,
            killed_at: None,
            successor: None,
            killed: 0,
            services,
            splices,
            own,
            chosen: BTreeMap::new(),
            arrived: Vec::new(),
            coalesce_at: None,
            iterate_at: None,
            wakes_at: Time::ZERO,
            rested: Time::ZERO,
            failures: Vec::new(),
            overflows: 0,
            payloads: 0,
            options,
        }
    }

    /// When it next has something to do.
    pub fn next(&self, now: Time) -> Option<Time> {
        if let Some(successor) = &self.successor {
            return [self.coalesce_at, Some(successor.due())].into_iter().flatten().min();
        }
        let worker = self.worker_due(now).map(|due| due.max(self.rested));
        let engine = self.event_loop.engine.next().map(|due| due.max(self.rested));
        [self.coalesce_at, self.iterate_at, self.killed_at, worker, engine].into_iter().flatten().min()
    }

    /// When the worker has something to do without frames.
    fn worker_due(&self, now: Time) -> Option<Time> {
        match self.options.set_up {
            Some(_) => Some(self.wakes_at),
            None => self.event_loop.worker.poll_timeout(now),
        }
    }

    /// Frames have come in; what leaves is added to `out`, to be routed.
    pub fn arrive(&mut self, now: Time, frame: VecFrame, world: &mut Surroundings<'_>) {
        world.trace.frame(now, TracePoint::In, &frame);
        match self.options.coalesce {
            None => self.ingress(now, frame, world),
            Some(wait) => {
                self.arrived.push(frame);
                self.coalesce_at.get_or_insert(now + wait);
            }
        }
    }

    /// Does what is due.
    pub fn wake(&mut self, now: Time, world: &mut Surroundings<'_>) {
        if self.killed_at.is_some_and(|due| due <= now) {
            self.die(now);
        }
        self.succeed(now);
        self.event_loop.engine.advance(now);
        if self.coalesce_at.is_some_and(|due| due <= now) {
            self.coalesce_at = None;
            for frame in segments::coalesce(std::mem::take(&mut self.arrived)) {
                self.ingress(now, frame, world);
            }
        }
        if self.successor.is_some() {
            return;
        }
        let due = |at: Option<Time>| at.is_some_and(|at| at <= now);
        let rested = now >= self.rested;
        let asked = due(self.worker_due(now)) || due(self.event_loop.engine.next());
        if rested && (due(self.iterate_at) || asked) {
            self.iterate(now, world);
        }
    }

    /// The decision of the BPF programs for a frame: the rule, the worker, or the kernel.
    fn ingress(&mut self, now: Time, mut frame: VecFrame, world: &mut Surroundings<'_>) {
        self.event_loop.engine.advance(now);
        let parsed = wire::parse(&frame.data);
        let Ok(Parsed::Transport(at)) = parsed else {
            // ICMP errors and broken packets are the worker's to judge; no peer here sends fragments and the like
            return self.enqueue(now, frame, world);
        };
        if self.plant(&mut frame, &at) {
            return;
        }
        let options = frame.data.get(at.l4 + tcp::HEADER..at.payload).unwrap_or_default();
        let has_edges = at.key.protocol == Protocol::Tcp && tcp::sack_edges(options).next().is_some();
        match self.event_loop.engine.packet(now, &mut frame, &at, world.mtu) {
            PacketOutcome::Forward => {
                if has_edges && self.splices && !self.event_loop.engine.caps().rewrites_sack {
                    self.failures.push(format!(
                        "SACK edges of {} went by an engine that does not translate them",
                        at.key.source
                    ));
                }
                world.trace.frame(now, TracePoint::Engine, &frame);
                self.leave(now, frame, world);
            }
            PacketOutcome::Gone => {}
            PacketOutcome::Pass => self.kernel(now, frame, world),
            PacketOutcome::Miss if self.services.contains(&at.key.destination) => self.enqueue(now, frame, world),
            PacketOutcome::Miss if self.backends.contains(&at.key.source) => self.enqueue(now, frame, world),
            PacketOutcome::Miss => self.kernel(now, frame, world),
        }
    }

    /// Makes the planted mistake, if it concerns this packet; whether it vanishes.
    fn plant(&mut self, frame: &mut VecFrame, at: &Transport) -> bool {
        let from_client = self.services.contains(&at.key.destination);
        let payload = at.end > at.payload && at.tcp_flags & (SYN | FIN | RST) == 0;
        match self.options.bug {
            Some(Bug::LosesFin) if from_client && at.tcp_flags & FIN != 0 => return true,
            Some(Bug::ChangesPayload) if payload => {
                self.payloads += 1;
                let right = frame.meta.gso_size == 0 && {
                    let field = at.checksum_offset();
                    let there = u16::from_be_bytes([frame.data[field], frame.data[field + 1]]);
                    at.transport_checksum(&frame.data) == Some(there)
                };
                if self.payloads % 16 == 1 && right {
                    frame.data[at.end - 1] ^= 1;
                    at.fill_checksum(&mut frame.data);
                }
            }
            Some(Bug::SwapsSegments) if usize::from(frame.meta.gso_size) * 2 <= at.end - at.payload => {
                let size = usize::from(frame.meta.gso_size);
                if size > 0 {
                    let (first, second) = frame.data[at.payload..].split_at_mut(size);
                    first.swap_with_slice(&mut second[..size]);
                }
            }
            _ => {}
        }
        false
    }

    fn enqueue(&mut self, now: Time, mut frame: VecFrame, world: &mut Surroundings<'_>) {
        if self.successor.is_some() {
            // It is dropped, or waits for a worker that is no more.
            return;
        }
        if self.event_loop.io.waiting.len() >= QUEUE_MAX {
            self.overflows += 1;
            return;
        }
        world.trace.frame(now, TracePoint::Worker, &frame);
        frame.meta.ticket = self.event_loop.engine.give() as u32;
        self.event_loop.io.waiting.push_back(frame);
        let soon = (now + self.options.iteration / 2).max(self.rested);
        self.iterate_at = Some(self.iterate_at.map_or(soon, |at| at.min(soon)));
    }

    /// An iteration of the worker's event loop.
    fn iterate(&mut self, now: Time, world: &mut Surroundings<'_>) {
        self.iterate_at = None;
        self.rested = now + self.options.iteration;
        let mut finished = None;
        let busy = self.event_loop.iterate(now, |ticket| finished = Some(ticket));
        if let Some(Ticket { cpu, number }) = finished {
            self.event_loop.engine.finish(u64::from(cpu) << 24 | u64::from(number));
        }
        if busy || !self.event_loop.io.waiting.is_empty() || self.event_loop.is_blocked() {
            self.iterate_at = Some(self.rested);
        }
        self.wakes_at = self.event_loop.worker.poll_timeout(now).unwrap_or(self.wakes_at);
        if self.event_loop.io.got_leftovers {
            self.failures.push("the worker left frames in the batch it was given".into());
        }
        self.check();
        self.draw_end(now);
        for frame in std::mem::take(&mut self.event_loop.io.sent) {
            self.sent(now, frame, world);
        }
    }

    /// The invariants after every iteration.
    fn check(&mut self) {
        if !self.event_loop.engine.is_idle() || !self.failures.is_empty() {
            return;
        }
        if let Some(op) = self.event_loop.worker.poll_op() {
            self.event_loop.worker.return_op(op);
        } else {
            let mut offload_state: Vec<FlowKey> = self.event_loop.worker.rules_known().collect();
            offload_state.sort();
            let held = self.event_loop.engine.keys();
            if offload_state != held {
                self.failures.push(format!("the offload state says {offload_state:?}, the engine holds {held:?}"));
            }
            self.check_counts(held.len());
        }
    }

    /// Sends the worker's frames out.
    fn sent(&mut self, now: Time, mut frame: VecFrame, world: &mut Surroundings<'_>) {
        if frame.meta.egress == Egress::Kernel {
            return self.kernel(now, frame, world);
        }
        let Some(at) = transport(&frame.data) else { return self.leave(now, frame, world) };
        let size = match usize::from(frame.meta.gso_size) {
            0 => at.end - at.l3,
            size => size + (at.payload - at.l3),
        };
        let mtu = (world.mtu)(&at.key);
        if size > mtu {
            frame.meta.arrival = Arrival::too_big(mtu as u16);
            if self.event_loop.io.waiting.len() < QUEUE_MAX {
                self.event_loop.io.waiting.push_back(frame);
                self.iterate_at = Some(self.iterate_at.map_or(self.rested, |at| at.min(self.rested)));
            }
            return;
        }
        if self.options.bug == Some(Bug::OtherBackend) {
            self.stray(&mut frame, &at);
        }
        self.leave(now, frame, world);
    }

    /// Sends every sixteenth packet to a backend to another one.
    fn stray(&mut self, frame: &mut VecFrame, at: &Transport) {
        self.payloads += 1;
        let others: Vec<&Endpoint> = self.backends.iter().filter(|end| **end != at.key.destination).collect();
        let Some(&&other) = others.first() else { return };
        let strays = self.backends.contains(&at.key.destination) && self.payloads.is_multiple_of(16);
        if strays && at.tcp_flags & SYN == 0 {
            let rewrite =
                hairpin_core::rewrite::Rewrite { source: at.key.source, destination: other, ..Default::default() };
            let checksum = frame.meta.checksum;
            rewrite.apply(&mut frame.data, at, checksum);
        }
    }

    /// A packet that is not Hairpin's: the host answers what is for itself, and routes the rest.
    fn kernel(&mut self, now: Time, mut frame: VecFrame, world: &mut Surroundings<'_>) {
        world.trace.frame(now, TracePoint::Kernel, &frame);
        frame.meta = Meta { gso_size: frame.meta.gso_size, checksum: frame.meta.checksum, ..Meta::default() };
        let Some(at) = transport(&frame.data) else { return };
        if self.own.contains(&at.key.destination.address) {
            let broken = at.transport_checksum(&frame.data).is_none_or(|right| {
                let field = at.checksum_offset();
                frame.meta.gso_size == 0 && right != u16::from_be_bytes([frame.data[field], frame.data[field + 1]])
            });
            if at.key.protocol == Protocol::Tcp && at.tcp_flags & RST == 0 && !broken && answer::reset(&mut frame, &at)
            {
                frame.meta = Meta { checksum: frame.meta.checksum, ..Meta::default() };
                self.leave(now, frame, world);
            }
            return;
        }
        // What a client sends to a backend itself is no concern of ours.
        self.depart(now, frame, world);
    }

    /// One client's end, one backend, until it begins anew: once after each SYN, which may be forged, its packets may go to
    /// where that went. (An end of the pool may lead to each backend at once.)
    fn watch(&mut self, frame: &VecFrame) {
        let Some(at) = transport(&frame.data) else { return };
        if self.own.contains(&at.key.source.address) || !self.backends.contains(&at.key.destination) {
            return;
        }
        let to = at.key.destination;
        let (before, next) = self.chosen.entry(at.key.source).or_insert((to, None));
        if at.tcp_flags & SYN != 0 {
            *next = Some(to);
        } else if *next == Some(to) {
            (*before, *next) = (to, None);
        } else if *before != to {
            self.failures.push(format!("a packet of {} went to {to}, not {before}", at.key.source));
        }
    }

    /// A frame of Hairpin's leaves.
    fn leave(&mut self, now: Time, frame: VecFrame, world: &mut Surroundings<'_>) {
        self.watch(&frame);
        self.depart(now, frame, world);
    }

    /// A frame leaves, cut up as its device does.
    fn depart(&mut self, now: Time, frame: VecFrame, world: &mut Surroundings<'_>) {
        match segments::segment(frame) {
            Ok(frames) => {
                for frame in frames {
                    world.trace.frame(now, TracePoint::Out, &frame);
                    world.out.push(frame);
                }
            }
            Err(why) => self.failures.push(why),
        }
    }
}

/// The middle's view of the world around it.
pub struct Surroundings<'a> {
    /// Frames that leave, to be routed by destination.
    pub out: &'a mut Vec<VecFrame>,
    /// Events are noted here.
    pub trace: &'a mut Trace,
    /// The MTU of the way a flow leaves by.
    pub mtu: &'a dyn Fn(&FlowKey) -> usize,
}

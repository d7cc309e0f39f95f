//! The one event loop of a worker, or of another [`FlowFunction`]: the same text on every plane, and in the simulator.
//!
//! An iteration: receive, handle, transmit, publish tickets, timeouts, hand rule requests to the engine and its answers to the
//! worker. Nothing in it waits.
//!
//! # Example
//! A worker driven by hand. A service at 192.0.2.1:80 has one backend, 10.0.0.1:8080. The plane is a pair of queues, there
//! is no engine, and the clock stands still. A client's SYN arrives, and leaves for the backend.
//!
//! ```
//! use hairpin_core::config::{Backend, BackendState, Pool, Service, ServiceState, Snapshot};
//! use hairpin_core::engine::NoEngine;
//! use hairpin_core::event_loop::EventLoop;
//! use hairpin_core::flow::Endpoint;
//! use hairpin_core::frame::{Batch, FrameIo, VecFrame};
//! use hairpin_core::offload::Never;
//! use hairpin_core::table::{AnyTable, Hasher, slab};
//! use hairpin_core::time::{Duration, Time};
//! use hairpin_core::wire::checksum::Sum;
//! use hairpin_core::wire::{self, Parsed, tcp};
//! use hairpin_core::worker::{Worker, WorkerOptions};
//! use std::collections::VecDeque;
//! use std::net::IpAddr;
//! use std::sync::Arc;
//!
//! /// A plane of two queues.
//! #[derive(Default)]
//! struct Queues {
//!     arriving: VecDeque<VecFrame>,
//!     sent: Vec<VecFrame>,
//! }
//!
//! impl FrameIo for Queues {
//!     type Frame = VecFrame;
//!     fn receive(&mut self, out: &mut Batch<VecFrame>) {
//!         let room = out.remaining_capacity().min(self.arriving.len());
//!         out.extend(self.arriving.drain(..room));
//!     }
//!     fn transmit(&mut self, batch: &mut Batch<VecFrame>) {
//!         self.sent.extend(batch.drain(..));
//!     }
//!     fn allocate(&mut self) -> Option<VecFrame> {
//!         Some(VecFrame::default())
//!     }
//! }
//!
//! // The configuration.
//! let backend = Backend {
//!     number: 0,
//!     name: "backend".into(),
//!     endpoint: Endpoint::new(IpAddr::from([10, 0, 0, 1]), 8080),
//!     weight: 1,
//!     state: BackendState::Enabled,
//!     is_backup: false,
//!     connections_max: 0,
//! };
//! let service = Service {
//!     state: ServiceState::Active,
//!     name: "web".into(),
//!     endpoint: Endpoint::new(IpAddr::from([192, 0, 2, 1]), 80),
//!     backends: [backend].into(),
//!     ..Service::vacant()
//! };
//! // No service of this one translates source addresses, so the pool has none.
//! let time_wait = Duration::from_secs(60);
//! let pool = Pool { addresses: [].into(), port_first: 1024, port_last: 65_535, time_wait };
//! let snapshot = Snapshot::new([service].into(), pool);
//!
//! // The worker: memory for 100 connections, and an index with room for both keys of each.
//! let seeds = [1, 2, 3, 4];
//! let table = AnyTable::new(200, Hasher::new(seeds));
//! let worker = Worker::new(WorkerOptions::new(Arc::new(snapshot), slab::boxed(100), table, Never, seeds));
//! let mut event_loop =
//!     EventLoop::new(worker, Queues::default(), NoEngine::default(), || Time::ZERO, || Duration::ZERO);
//!
//! // A SYN from 198.51.100.7:40000. Its checksums have to be right: a worker makes no connection for a damaged one.
//! let mut syn = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x08, 0x00];
//! syn.extend([0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0, 198, 51, 100, 7, 192, 0, 2, 1]);
//! syn.extend([0x9c, 0x40, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, tcp::SYN, 0xff, 0xff, 0, 0, 0, 0]);
//! let checksum = Sum::of(&syn[14..34]).checksum();
//! syn[24..26].copy_from_slice(&checksum.to_be_bytes());
//! let Ok(Parsed::Transport(at)) = wire::parse(&syn) else { panic!("a whole TCP packet") };
//! at.fill_checksum(&mut syn);
//! event_loop.io.arriving.push_back(VecFrame::new(&syn));
//!
//! // One iteration forwards it, the next one finds nothing to do.
//! let now = Time::from_nanos(1_000_000);
//! assert!(event_loop.iterate(now, |_| {}));
//! assert!(!event_loop.iterate(now, |_| {}));
//!
//! let [sent] = &event_loop.io.sent[..] else { panic!("one packet") };
//! let Ok(Parsed::Transport(at)) = wire::parse(&sent.data) else { panic!("a whole TCP packet") };
//! assert_eq!(at.key.source.to_string(), "198.51.100.7:40000");
//! assert_eq!(at.key.destination.to_string(), "10.0.0.1:8080");
//! assert_eq!(at.ttl, 63);
//! assert_eq!(event_loop.worker.connections().count(), 1);
//! ```

mod function;

pub use function::FlowFunction;

use crate::engine::{Completions, FlowEngine, Samples};
use crate::flow::FlowKey;
use crate::frame::{Arrival, BATCH_MAX, Batch, Frame, FrameIo};
use crate::l7::date::Date;
use crate::l7::threshold::{Frames, Meter};
use crate::offload::OffloadPolicy;
use crate::table::Table;
use crate::time::{Duration, Time};
use crate::worker::{SampledRules, Worker};
use arrayvec::ArrayVec;

/// How often a worker that ends tries to send what it still has.
const FINISH_TRIES: usize = 1000;
/// Batches of frames that are dropped at most when a worker begins.
const DISCARD_TRIES: usize = 1000;
/// How often a worker that ends tries to reset the connections that end with it, some at a time.
const ABANDON_TRIES: usize = 20_000;

/// The last ticket of one CPU whose frame the worker has finished with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// The CPU that gave it.
    pub cpu: u8,
    /// The ticket, 24 bits.
    pub number: u32,
}

impl Ticket {
    fn of<F: Frame>(frame: &F) -> Option<Ticket> {
        let meta = frame.meta();
        let received = meta.arrival == Arrival::Received;
        received.then_some(Ticket { cpu: (meta.ticket >> 24) as u8, number: meta.ticket & 0x00ff_ffff })
    }
}

/// A worker (or another function) with its plane and its engine.
pub struct EventLoop<I: FrameIo, E, W> {
    /// The worker, or another function.
    pub worker: W,
    /// Its plane.
    pub io: I,
    /// Its engine.
    pub engine: E,
    received: Batch<I::Frame>,
    to_send: Batch<I::Frame>,
    /// Tickets of the frames in hand: the last of each CPU.
    tickets: ArrayVec<Ticket, BATCH_MAX>,
    completions: Completions,
    asked: SampledRules,
    samples: Samples,
    /// Tells the time of the engine's answers, which an iteration waits for.
    clock: fn() -> Time,
    /// The cost of frames and rules.
    meter: Meter,
    /// Tells the time since 1970, of which responses of our own say the second.
    calendar: fn() -> Duration,
    /// When that is another second.
    date_due: Time,
}

impl<I: FrameIo, E: FlowEngine, W: FlowFunction> EventLoop<I, E, W> {
    /// `clock` and `calendar`: the time by which the worker goes, and the time of day, since the beginning of 1970.
    pub fn new(worker: W, io: I, engine: E, clock: fn() -> Time, calendar: fn() -> Duration) -> EventLoop<I, E, W> {
        let (mut worker, mut engine) = (worker, engine);
        if let Some(set_up) = engine.sets_up() {
            worker.set_up_by(set_up);
        }
        EventLoop {
            worker,
            io,
            engine,
            received: Batch::new(),
            to_send: Batch::new(),
            tickets: ArrayVec::new(),
            completions: Completions::new(),
            asked: ArrayVec::new(),
            samples: Samples::new(),
            clock,
            meter: Meter::default(),
            calendar,
            date_due: Time::ZERO,
        }
    }

    /// Does what there is to do, a bounded amount, and says whether there may be more at once. `publish` gets the
    /// tickets of frames that are finished with: sent or dropped.
    pub fn iterate(&mut self, now: Time, publish: impl FnMut(Ticket)) -> bool {
        if now >= self.date_due {
            self.renew_date(now);
        }
        let frames = self.frames(now, publish) | self.worker.take_set_up(now);
        if self.worker.poll_timeout(now).is_some_and(|due| due <= now) {
            self.worker.handle_timeout(now);
            // Frames that wait for room go first.
            if self.to_send.is_empty() {
                self.worker.send_due(now, &mut self.io, &mut self.to_send);
                if !self.to_send.is_empty() {
                    self.io.transmit(&mut self.to_send);
                }
            }
        }
        self.sample(now);
        // Last, so that nothing asked of the engine waits until the thread next wakes.
        frames | self.rules(now)
    }

    /// Ends in order, without taking anything new: sends what waits, if the plane takes it within a bounded number of
    /// tries, and hands the engine what it has been asked for.
    pub fn finish(&mut self, now: Time, mut publish: impl FnMut(Ticket)) {
        for _ in 0..FINISH_TRIES {
            if !self.to_send.is_empty() {
                self.io.transmit(&mut self.to_send);
            }
            if !self.rules(now) && self.to_send.is_empty() {
                break;
            }
        }
        if self.to_send.is_empty() {
            self.tickets.drain(..).for_each(&mut publish);
        }
    }

    /// Drops the frames that wait for room on their way out; returns how many.
    pub fn discard(&mut self) -> usize {
        let count = self.to_send.len();
        self.to_send.clear();
        count
    }

    /// Whether frames wait for room on their way out: the plane wakes no thread for that.
    pub fn is_blocked(&self) -> bool {
        !self.to_send.is_empty()
    }

    /// Tells the worker the time of day, once a second at most.
    fn renew_date(&mut self, now: Time) {
        let today = (self.calendar)();
        self.worker.set_date(Date::new(today.as_secs()));
        self.date_due = now + (Duration::from_secs(1) - Duration::from_nanos(u64::from(today.subsec_nanos())));
    }

    fn frames(&mut self, now: Time, mut publish: impl FnMut(Ticket)) -> bool {
        // Frames that could not be sent go first: order is kept and the transmit batch has room for what is received.
        if self.to_send.is_empty() {
            self.receive();
        }
        let busy = !self.received.is_empty();
        if busy {
            // What frames cost is for comparing with rules: without an engine no frame is touched for that, and no clock read.
            let mut frames = self.worker.wants_costs().then(Frames::default);
            if let Some(frames) = &mut frames {
                self.received.iter().for_each(|frame| frames.add(frame.bytes().len()));
            }
            self.worker.handle_batch(now, &mut self.io, &mut self.received, &mut self.to_send);
            if !self.to_send.is_empty() {
                self.io.transmit(&mut self.to_send);
            }
            if let Some(frames) = frames {
                self.meter.frames(&frames, (self.clock)().since(now));
            }
        } else if !self.to_send.is_empty() {
            self.io.transmit(&mut self.to_send);
        }
        if self.to_send.is_empty() {
            self.tickets.drain(..).for_each(&mut publish);
        }
        busy
    }

    fn receive(&mut self) {
        self.io.receive(&mut self.received);
        if !I::Frame::TICKETS {
            return;
        }
        for ticket in self.received.iter().filter_map(Ticket::of) {
            match self.tickets.iter_mut().find(|known| known.cpu == ticket.cpu) {
                Some(known) => *known = ticket,
                None => self.tickets.push(ticket),
            }
        }
    }

    /// Drops the frames that have arrived so far, a bounded number; returns how many. After a change of the number of
    /// workers they may be of another worker's connections, which this one would take for unknown. Their senders repeat
    /// them.
    pub fn discard_arrived(&mut self, mut publish: impl FnMut(Ticket)) -> usize {
        let mut discarded = 0;
        for _ in 0..DISCARD_TRIES {
            self.receive();
            if self.received.is_empty() {
                break;
            }
            discarded += self.received.len();
            self.received.clear();
            self.tickets.drain(..).for_each(&mut publish);
        }
        discarded
    }

    fn rules(&mut self, now: Time) -> bool {
        let (mut busy, mut ops, mut begun) = (false, 0, now);
        while let Some(op) = self.worker.poll_op() {
            if !busy {
                begun = now.max((self.clock)());
            }
            if let Err(op) = self.engine.submit(now, op) {
                self.worker.return_op(op);
                break;
            }
            (busy, ops) = (true, ops + 1);
        }
        if busy {
            self.engine.flush(now);
        }
        self.engine.poll(now, &mut self.completions);
        busy |= !self.completions.is_empty();
        let answered = if busy { now.max((self.clock)()) } else { now };
        for completion in self.completions.drain(..) {
            self.worker.handle_completion(answered, &completion);
        }
        if ops > 0 {
            self.meter.ops(ops, (self.clock)().since(begun));
        }
        if let Some(threshold) = self.meter.conclude() {
            self.worker.take_costs(threshold, self.meter.costs());
        }
        busy
    }

    fn sample(&mut self, now: Time) {
        self.worker.poll_samples(&mut self.asked);
        if self.asked.is_empty() {
            return;
        }
        self.samples.clear();
        self.engine.sample(&self.asked, &mut self.samples);
        self.worker.handle_samples(now, &self.asked, &self.samples);
        self.asked.clear();
    }
}

impl<I: FrameIo, E: FlowEngine, P: OffloadPolicy, T: Table<FlowKey>> EventLoop<I, E, Worker<P, T>> {
    /// Resets what cannot outlive the process: connections of HTTP and TLS services, as far as the plane takes the frames
    /// within a bounded number of tries. Some stay until their clients have said their numbers
    /// ([`EventLoop::is_parting`]).
    pub fn abandon(&mut self, now: Time) {
        for _ in 0..ABANDON_TRIES {
            if !self.to_send.is_empty() {
                self.io.transmit(&mut self.to_send);
            }
            if self.to_send.is_empty() && !self.worker.abandon_splices(now, &mut self.io, &mut self.to_send) {
                break;
            }
        }
    }

    /// Whether ends are still to say the numbers that they are reset with.
    pub fn is_parting(&self) -> bool {
        let (clients, backends, _) = self.worker.splices();
        clients + backends > 0
    }
}

#[cfg(test)]
mod tests;

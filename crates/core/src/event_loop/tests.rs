use super::*;
use crate::config::{Backend, BackendState, Pool, Service, ServiceState, Snapshot, Timeouts};
use crate::engine::{Completion, Counters, EngineCaps, RuleId, RuleOp};
use crate::flow::{Address, Endpoint};
use crate::frame::VecFrame;
use crate::offload::Always;
use crate::table::{AnyTable, Hasher, slab};
use crate::worker::WorkerOptions;
use etherparse::PacketBuilder;
use std::collections::VecDeque;
use std::sync::Arc;
use std::vec;
use std::vec::Vec;

/// One service with one backend, and short timeouts.
fn snapshot() -> Snapshot {
    let end = |(address, port): ([u8; 4], u16)| Endpoint { address: Address::from_ipv4(address), port };
    let backend = Backend {
        number: 0,
        name: "b".into(),
        endpoint: end(BACKEND),
        weight: 1,
        state: BackendState::Enabled,
        is_backup: false,
        connections_max: 0,
    };
    let timeouts = Timeouts {
        tcp_handshake: Duration::from_secs(1),
        tcp_established: Duration::from_secs(10),
        ..Timeouts::default()
    };
    let service = Service {
        state: ServiceState::Active,
        endpoint: end(VIP),
        timeouts,
        backends: [backend].into(),
        ..Service::vacant()
    };
    let time_wait = Duration::from_secs(60);
    Snapshot::new([service].into(), Pool { addresses: [].into(), port_first: 1024, port_last: 65_535, time_wait })
}

/// A plane in memory that takes so many frames before it is full.
#[derive(Default)]
struct Wire {
    arriving: VecDeque<VecFrame>,
    sent: Vec<VecFrame>,
    room: usize,
}

impl FrameIo for Wire {
    type Frame = VecFrame;
    fn receive(&mut self, out: &mut Batch<VecFrame>) {
        while !out.is_full()
            && let Some(frame) = self.arriving.pop_front()
        {
            out.push(frame);
        }
    }
    fn transmit(&mut self, batch: &mut Batch<VecFrame>) {
        let taken = batch.len().min(self.room);
        self.room -= taken;
        self.sent.extend(batch.drain(..taken));
    }
    fn allocate(&mut self) -> Option<VecFrame> {
        None
    }
}

/// An engine that answers at the next poll after a flush.
#[derive(Default)]
struct Engine {
    queued: Vec<RuleOp>,
    answers: Vec<Completion>,
    /// Everything that was flushed.
    seen: Vec<RuleOp>,
    /// Requests it takes before it must be flushed.
    room: usize,
    samples: usize,
    last_seen: Time,
}

impl FlowEngine for Engine {
    fn caps(&self) -> EngineCaps {
        EngineCaps::full(1000)
    }
    fn submit(&mut self, _: Time, op: RuleOp) -> Result<(), RuleOp> {
        if self.queued.len() >= self.room {
            return Err(op);
        }
        self.queued.push(op);
        Ok(())
    }
    fn flush(&mut self, _: Time) {
        for op in self.queued.drain(..) {
            self.seen.push(op);
            self.answers.push(match op {
                RuleOp::Install(rule) => Completion::Installed(rule.id),
                RuleOp::Remove { id, .. } => Completion::Removed(id, Some(Counters::default())),
            });
        }
    }
    fn poll(&mut self, _: Time, out: &mut Completions) {
        out.extend(self.answers.drain(..));
    }
    fn sample(&mut self, rules: &[(RuleId, FlowKey)], out: &mut Samples) {
        self.samples += rules.len();
        out.extend(rules.iter().map(|_| Some(Counters { packets: 1, bytes: 1, last_seen: Some(self.last_seen) })));
    }
}

fn event_loop(wire_room: usize, engine_room: usize) -> EventLoop<Wire, Engine, Worker<Always, AnyTable>> {
    let engine = Engine { room: engine_room, ..Engine::default() };
    let worker = Worker::new(WorkerOptions {
        caps: engine.caps(),
        ..WorkerOptions::new(
            Arc::new(snapshot()),
            slab::boxed(100),
            AnyTable::new(200, Hasher::new([1, 2, 3, 4])),
            Always,
            [1, 2, 3, 4],
        )
    });
    EventLoop::new(worker, Wire { room: wire_room, ..Wire::default() }, engine, || Time::ZERO, || Duration::ZERO)
}

/// A segment with so many bytes; flags of S, A, F.
fn segment(from: ([u8; 4], u16), to: ([u8; 4], u16), flags: &str, (cpu, number): (u32, u32)) -> VecFrame {
    let mut builder = PacketBuilder::ethernet2([1; 6], [2; 6]).ipv4(from.0, to.0, 20).tcp(from.1, to.1, 1000, 1000);
    for flag in flags.chars() {
        builder = match flag {
            'S' => builder.syn(),
            'F' => builder.fin(),
            // all sequence numbers start at 1000
            _ => builder.ack(1001),
        };
    }
    let mut bytes = Vec::new();
    builder.write(&mut bytes, &[]).unwrap();
    let mut frame = VecFrame::new(&bytes);
    frame.meta.ticket = cpu << 24 | number;
    frame
}

const CLIENT: ([u8; 4], u16) = ([198, 51, 100, 1], 4000);
const VIP: ([u8; 4], u16) = ([192, 0, 2, 1], 80);
const BACKEND: ([u8; 4], u16) = ([10, 0, 0, 1], 8080);

/// One iteration at `ms`; the tickets it published, and whether it was busy.
fn iterate(event_loop: &mut EventLoop<Wire, Engine, Worker<Always, AnyTable>>, ms: u64) -> (Vec<(u8, u32)>, bool) {
    let mut tickets = Vec::new();
    let now = Time::from_nanos(ms * 1_000_000 + 1);
    let busy = event_loop.iterate(now, |ticket| tickets.push((ticket.cpu, ticket.number)));
    (tickets, busy)
}

fn handshake(event_loop: &mut EventLoop<Wire, Engine, Worker<Always, AnyTable>>, ms: u64) {
    for (from, to, flags) in [(CLIENT, VIP, "S"), (BACKEND, CLIENT, "SA"), (CLIENT, VIP, "A")] {
        event_loop.io.arriving.push_back(segment(from, to, flags, (0, 1)));
        iterate(event_loop, ms);
    }
}

#[test]
fn last_ticket_per_cpu_is_published_after_send() {
    let mut event_loop = event_loop(100, 100);
    for ticket in [(0, 5), (3, 9), (0, 6)] {
        event_loop.io.arriving.push_back(segment(CLIENT, VIP, "S", ticket));
    }
    assert_eq!(iterate(&mut event_loop, 0), (vec![(0, 6), (3, 9)], true));
    assert_eq!(event_loop.io.sent.len(), 3);
    assert_eq!(iterate(&mut event_loop, 1), (vec![], false));
}

#[test]
fn dropped_frames_are_finished_with_too() {
    let mut event_loop = event_loop(100, 100);
    event_loop.io.arriving.push_back(segment(CLIENT, VIP, "A", (2, 0x00ab_cdef)));
    assert_eq!(iterate(&mut event_loop, 0).0, [(2, 0x00ab_cdef)]);
    assert!(event_loop.io.sent.is_empty());
}

#[test]
fn waiting_frames_stop_publishing_and_receiving() {
    let mut event_loop = event_loop(1, 100);
    event_loop.io.arriving.extend([(0, 1), (0, 2)].map(|ticket| segment(CLIENT, VIP, "S", ticket)));
    assert_eq!(iterate(&mut event_loop, 0).0, []);
    assert!(event_loop.is_blocked());
    event_loop.io.arriving.push_back(segment(CLIENT, VIP, "S", (1, 7)));
    assert_eq!(iterate(&mut event_loop, 1), (vec![], false));
    assert_eq!((event_loop.io.sent.len(), event_loop.io.arriving.len()), (1, 1));
    event_loop.io.room = 100;
    assert_eq!(iterate(&mut event_loop, 2).0, [(0, 2)]);
    assert!(!event_loop.is_blocked());
    assert_eq!(iterate(&mut event_loop, 3).0, [(1, 7)]);
    assert_eq!(event_loop.io.sent.len(), 3);
}

#[test]
fn what_came_back_too_big_has_no_ticket() {
    let mut event_loop = event_loop(100, 100);
    let mut frame = segment(CLIENT, VIP, "S", (0, 3));
    frame.meta.arrival = Arrival::too_big(1400);
    event_loop.io.arriving.push_back(frame);
    assert_eq!(iterate(&mut event_loop, 0), (vec![], true));
}

#[test]
fn established_connection_is_offloaded() {
    let mut event_loop = event_loop(100, 100);
    handshake(&mut event_loop, 0);
    assert_eq!(event_loop.engine.seen.len(), 2);
    assert_eq!(event_loop.worker.statistics().offload.installed, 2);
    assert_eq!(event_loop.worker.rules_known().count(), 2);
}

#[test]
fn a_full_engine_gets_the_rest_later_in_order() {
    let mut event_loop = event_loop(100, 1);
    handshake(&mut event_loop, 0);
    assert_eq!(event_loop.engine.seen.len(), 1);
    assert!(iterate(&mut event_loop, 1).1, "the engine took one more, so there may be more to do");
    let keys: Vec<_> =
        event_loop.engine.seen.iter().map(|op| matches!(op, RuleOp::Install(r) if r.total == 0)).collect();
    assert_eq!(keys, [true, false]);
    assert_eq!(event_loop.worker.statistics().offload.installed, 2);
}

#[test]
fn silence_of_an_offloaded_connection_is_judged_by_samples() {
    let mut event_loop = event_loop(100, 100);
    handshake(&mut event_loop, 0);
    let timeout = Duration::from_secs(10).as_millis() as u64;
    // The engine has seen a packet in the meantime: it lives on.
    event_loop.engine.last_seen = Time::from_nanos(5_000_000_000);
    for ms in (0..timeout + 1000).step_by(50) {
        iterate(&mut event_loop, ms);
    }
    assert!(event_loop.engine.samples >= 2);
    assert_eq!(event_loop.worker.statistics().connections_now, 1);
    for ms in (timeout + 1000..2 * timeout).step_by(50) {
        iterate(&mut event_loop, ms);
        // It may be a while until the thread is woken: requests to the engine are handed over in the iteration that makes them.
        assert!(event_loop.worker.poll_op().is_none());
    }
    assert_eq!(event_loop.worker.statistics().connections_now, 0);
    assert_eq!(event_loop.worker.rules_known().count(), 0);
    assert_eq!(event_loop.engine.seen.len(), 4, "two rules came and went");
}

#[test]
fn what_frames_of_bodies_cost_is_measured() {
    let mut event_loop = event_loop(1000, 100);
    event_loop.clock = || Time::from_nanos(3001);
    let default = crate::l7::threshold::BYTES_MIN_DEFAULT;
    for round in 0..100 {
        let mut frame = segment(CLIENT, VIP, "A", (0, round));
        frame.data.resize(1500, 0);
        event_loop.io.arriving.push_back(frame);
        iterate(&mut event_loop, 0);
    }
    let threshold = event_loop.worker.statistics().http.threshold;
    assert_eq!((threshold.frame_ns, threshold.frame_bytes, threshold.bytes_min), (3000, 1500, default));
}

#[test]
fn the_time_of_day_is_asked_for_once_a_second() {
    use std::sync::atomic::{AtomicU64, Ordering};
    static ASKED: AtomicU64 = AtomicU64::new(0);
    let mut event_loop = event_loop(100, 100);
    // A quarter of a second has passed when the worker begins.
    event_loop.calendar = || Duration::from_millis(784_111_777_250 + 1000 * ASKED.fetch_add(1, Ordering::Relaxed));
    for ms in 0..750 {
        iterate(&mut event_loop, ms);
    }
    assert_eq!(ASKED.load(Ordering::Relaxed), 1);
    iterate(&mut event_loop, 750);
    assert_eq!(ASKED.load(Ordering::Relaxed), 2);
}

use super::*;
use etherparse::PacketBuilder;
use hairpin_core::balance::{Loads, Standings};
use hairpin_core::engine::{Completion, Counters, EngineCaps, RuleOp};
use hairpin_core::flow::Steering;
use hairpin_core::frame::VecFrame;
use hairpin_core::offload::Always;
use hairpin_core::table::{AnyTable, Hasher, slab};
use hairpin_core::worker::{Known, Occupancy, WorkerOptions};
use std::collections::VecDeque;
use std::sync::Arc;

const FILE: &str = "interfaces = [\"eth0\"]\n[timeouts]\ntcp_handshake = \"1s\"\ntcp_established = \"10s\"\n\
    [[service]]\nlisten = \"192.0.2.1:80/tcp\"\nbackends = [\"10.0.0.1:8080\"]\n";

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
        EngineCaps {
            rules_max: 1000,
            families_apart: false,
            ops_in_flight_max: 1000,
            rewrites_sequence: true,
            rewrites_sack: true,
            rewrites_window: true,
            checks_guards: true,
            counts: true,
        }
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

fn turner(wire_room: usize, engine_room: usize) -> Turner<Wire, Engine, Always, AnyTable> {
    let snapshot = Arc::new(crate::config::parse("t", FILE).unwrap().snapshot);
    let engine = Engine { room: engine_room, ..Engine::default() };
    let worker = Worker::new(WorkerOptions {
        loads: Loads::default(),
        standings: Standings::new(),
        snapshot,
        steering: Steering::by_hash([1, 2], 1),
        worker: 0,
        seeds: [1, 2, 3, 4],
        memory: slab::boxed(100),
        table: AnyTable::new(200, Hasher::new([1, 2, 3, 4])),
        stateless: None,
        occupancy: Occupancy::default(),
        known: Known::default(),
        caps: engine.caps(),
        policy: Always,
        splices_max: 64,
        cookies: hairpin_core::l7::cookie::Cookies::new([[1, 2], [3, 4]]),
    });
    Turner::new(worker, Wire { room: wire_room, ..Wire::default() }, engine, || Time::ZERO, || Duration::ZERO)
}

/// A segment with so many bytes; flags of S, A, F.
fn segment(from: ([u8; 4], u16), to: ([u8; 4], u16), flags: &str, (cpu, number): (u32, u32)) -> VecFrame {
    let mut builder = PacketBuilder::ethernet2([1; 6], [2; 6]).ipv4(from.0, to.0, 20).tcp(from.1, to.1, 1000, 1000);
    for flag in flags.chars() {
        builder = match flag {
            'S' => builder.syn(),
            'F' => builder.fin(),
            // everybody's sequence number is 1000
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

/// One turn at `ms`; the tickets it published, and whether it was busy.
fn turn(turner: &mut Turner<Wire, Engine, Always, AnyTable>, ms: u64) -> (Vec<(u8, u32)>, bool) {
    let mut tickets = Vec::new();
    let now = Time::from_nanos(ms * 1_000_000 + 1);
    let busy = turner.turn(now, |ticket| tickets.push((ticket.cpu, ticket.number)));
    (tickets, busy)
}

fn handshake(turner: &mut Turner<Wire, Engine, Always, AnyTable>, ms: u64) {
    for (from, to, flags) in [(CLIENT, VIP, "S"), (BACKEND, CLIENT, "SA"), (CLIENT, VIP, "A")] {
        turner.io.arriving.push_back(segment(from, to, flags, (0, 1)));
        turn(turner, ms);
    }
}

#[test]
fn the_last_ticket_of_each_cpu_is_published_once_its_frame_is_sent() {
    let mut turner = turner(100, 100);
    for ticket in [(0, 5), (3, 9), (0, 6)] {
        turner.io.arriving.push_back(segment(CLIENT, VIP, "S", ticket));
    }
    assert_eq!(turn(&mut turner, 0), (vec![(0, 6), (3, 9)], true));
    assert_eq!(turner.io.sent.len(), 3);
    assert_eq!(turn(&mut turner, 1), (vec![], false));
}

#[test]
fn dropped_frames_are_finished_with_too() {
    let mut turner = turner(100, 100);
    turner.io.arriving.push_back(segment(CLIENT, VIP, "A", (2, 0x00ab_cdef)));
    assert_eq!(turn(&mut turner, 0).0, [(2, 0x00ab_cdef)]);
    assert!(turner.io.sent.is_empty());
}

#[test]
fn nothing_is_published_or_received_while_frames_wait_to_be_sent() {
    let mut turner = turner(1, 100);
    turner.io.arriving.extend([(0, 1), (0, 2)].map(|ticket| segment(CLIENT, VIP, "S", ticket)));
    assert_eq!(turn(&mut turner, 0).0, []);
    assert!(turner.is_blocked());
    turner.io.arriving.push_back(segment(CLIENT, VIP, "S", (1, 7)));
    assert_eq!(turn(&mut turner, 1), (vec![], false));
    assert_eq!((turner.io.sent.len(), turner.io.arriving.len()), (1, 1));
    turner.io.room = 100;
    assert_eq!(turn(&mut turner, 2).0, [(0, 2)]);
    assert!(!turner.is_blocked());
    assert_eq!(turn(&mut turner, 3).0, [(1, 7)]);
    assert_eq!(turner.io.sent.len(), 3);
}

#[test]
fn what_came_back_too_big_has_no_ticket() {
    let mut turner = turner(100, 100);
    let mut frame = segment(CLIENT, VIP, "S", (0, 3));
    frame.meta.arrival = Arrival::TooBig { mtu: 1400 };
    turner.io.arriving.push_back(frame);
    assert_eq!(turn(&mut turner, 0), (vec![], true));
}

#[test]
fn an_established_connection_gets_its_rules_and_their_completions() {
    let mut turner = turner(100, 100);
    handshake(&mut turner, 0);
    assert_eq!(turner.engine.seen.len(), 2);
    assert_eq!(turner.worker.statistics().offload.installed, 2);
    assert_eq!(turner.worker.ledger().count(), 2);
}

#[test]
fn a_full_engine_gets_the_rest_later_in_order() {
    let mut turner = turner(100, 1);
    handshake(&mut turner, 0);
    assert_eq!(turner.engine.seen.len(), 1);
    assert!(turn(&mut turner, 1).1, "the engine took one more, so there may be more to do");
    let keys: Vec<_> = turner.engine.seen.iter().map(|op| matches!(op, RuleOp::Install(r) if r.total == 0)).collect();
    assert_eq!(keys, [true, false]);
    assert_eq!(turner.worker.statistics().offload.installed, 2);
}

#[test]
fn silence_of_an_offloaded_connection_is_judged_by_samples() {
    let mut turner = turner(100, 100);
    handshake(&mut turner, 0);
    let timeout = Duration::from_secs(10).as_millis() as u64;
    // The engine has seen a packet in the meantime: it lives on.
    turner.engine.last_seen = Time::from_nanos(5_000_000_000);
    for ms in (0..timeout + 1000).step_by(50) {
        turn(&mut turner, ms);
    }
    assert!(turner.engine.samples >= 2);
    assert_eq!(turner.worker.statistics().connections_now, 1);
    for ms in (timeout + 1000..2 * timeout).step_by(50) {
        turn(&mut turner, ms);
        // It may be a while until the thread is woken: what is asked of the engine in a turn is handed over in it.
        assert!(turner.worker.poll_op().is_none());
    }
    assert_eq!(turner.worker.statistics().connections_now, 0);
    assert_eq!(turner.worker.ledger().count(), 0);
    assert_eq!(turner.engine.seen.len(), 4, "two rules came and went");
}

#[test]
fn what_frames_of_bodies_cost_is_measured() {
    let mut turner = turner(1000, 100);
    turner.clock = || Time::from_nanos(3001);
    let default = hairpin_core::l7::threshold::BYTES_MIN_DEFAULT;
    for round in 0..100 {
        let mut frame = segment(CLIENT, VIP, "A", (0, round));
        frame.data.resize(1500, 0);
        turner.io.arriving.push_back(frame);
        turn(&mut turner, 0);
    }
    let threshold = turner.worker.statistics().http.threshold;
    assert_eq!((threshold.frame_ns, threshold.frame_bytes, threshold.bytes_min), (3000, 1500, default));
}

#[test]
fn the_time_of_day_is_asked_for_once_a_second() {
    use std::sync::atomic::{AtomicU64, Ordering};
    static ASKED: AtomicU64 = AtomicU64::new(0);
    let mut turner = turner(100, 100);
    // A quarter of a second has passed when the worker begins.
    turner.calendar = || Duration::from_millis(784_111_777_250 + 1000 * ASKED.fetch_add(1, Ordering::Relaxed));
    for ms in 0..750 {
        turn(&mut turner, ms);
    }
    assert_eq!(ASKED.load(Ordering::Relaxed), 1);
    turn(&mut turner, 750);
    assert_eq!(ASKED.load(Ordering::Relaxed), 2);
}

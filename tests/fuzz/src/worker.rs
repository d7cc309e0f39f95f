//! A worker under frames from the network, time and a moody engine.
//!
//! The input is a list of records. A first byte below 128: so many hundred milliseconds pass, the engine answering or, if
//! it is odd, asked but silent. Otherwise a frame: two bytes of length (little endian), its bytes; bit 0 of the first byte
//! says it came back as too big, bit 1 that its checksum is partial, bit 2 that it is a super-packet.

use hairpin_core::config::{Backend, BackendState, Forwarding, Pool, Service, Snapshot, UnknownPacket};
use hairpin_core::engine::{Completion, Counters, EngineCaps, Refusal, RuleId, RuleOp};
use hairpin_core::flow::{Address, Endpoint, FlowKey, Protocol};
use hairpin_core::frame::{Arrival, Batch, Checksum, Frame, FrameIo, Meta, VecFrame};
use hairpin_core::l7::config::Kind;
use hairpin_core::offload::Always;
use hairpin_core::table::slab::boxed;
use hairpin_core::table::{AnyTable, Hasher};
use hairpin_core::time::{Duration, Time};
use hairpin_core::worker::{SampledRules, Worker, WorkerOptions};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

/// Connections the worker has room for: few, so that it gets full.
const CAPACITY: usize = 32;
/// Rules the engine has room for: fewer than that takes.
const RULES: usize = 24;

/// A frame that is missed when it is not dropped.
struct Counted {
    inner: VecFrame,
    alive: Rc<Cell<i64>>,
}

impl Counted {
    fn new(inner: VecFrame, alive: &Rc<Cell<i64>>) -> Counted {
        alive.set(alive.get() + 1);
        Counted { inner, alive: alive.clone() }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.alive.set(self.alive.get() - 1);
    }
}

impl Frame for Counted {
    fn bytes(&self) -> &[u8] {
        self.inner.bytes()
    }
    fn bytes_mut(&mut self) -> &mut [u8] {
        self.inner.bytes_mut()
    }
    fn resize(&mut self, length: usize) -> bool {
        self.inner.resize(length)
    }
    fn meta(&self) -> &Meta {
        self.inner.meta()
    }
    fn meta_mut(&mut self) -> &mut Meta {
        self.inner.meta_mut()
    }
}

struct CountedPort(Rc<Cell<i64>>);

impl FrameIo for CountedPort {
    type Frame = Counted;
    fn receive(&mut self, _: &mut Batch<Counted>) {}
    fn transmit(&mut self, _: &mut Batch<Counted>) {}
    fn allocate(&mut self) -> Option<Counted> {
        (self.0.get() < 64).then(|| Counted::new(VecFrame::default(), &self.0))
    }
}

struct WorkerScene {
    worker: Worker<Always>,
    port: CountedPort,
    now: Time,
    rules: BTreeMap<FlowKey, RuleId>,
    answers: Vec<Completion>,
}

impl WorkerScene {
    /// One service per protocol and mode, its backends shared, made once per thread: a worker that has had its day of
    /// silence is as good as new.
    fn new() -> WorkerScene {
        let end = |host: u8, port| Endpoint::new(Address::from_ipv4([10, 0, 0, host]), port);
        let service = |n: u16, protocol, forwarding, unknown| Service {
            state: Default::default(),
            name: format!("{n}").into(),
            endpoint: end(1, 80 + n),
            protocol,
            kind: Kind::Forward,
            forwarding,
            algorithm: Default::default(),
            unknown,
            timeouts: Default::default(),
            access: None,
            limits: Default::default(),
            drain_limit: Duration::ZERO,
            all_down: Default::default(),
            backends: [(n * 2, end(100, 8080)), (n * 2 + 1, end(101, 8080))]
                .map(|(number, endpoint)| Backend {
                    number,
                    name: "".into(),
                    endpoint,
                    weight: 1,
                    state: BackendState::Enabled,
                    is_backup: false,
                    connections_max: 0,
                })
                .into(),
            ..Service::vacant()
        };
        let services = [
            service(0, Protocol::Tcp, Forwarding::Nat, UnknownPacket::Reset),
            service(1, Protocol::Tcp, Forwarding::FullNat, UnknownPacket::Drop),
            service(2, Protocol::Tcp, Forwarding::Nat, UnknownPacket::PickUp),
            service(3, Protocol::Udp, Forwarding::Nat, UnknownPacket::Drop),
            service(4, Protocol::Udp, Forwarding::FullNat, UnknownPacket::Drop),
        ];
        let time_wait = Duration::from_secs(60);
        let pool = Pool { addresses: [end(50, 0).address].into(), port_first: 1024, port_last: 1031, time_wait };
        let snapshot = Arc::new(Snapshot::new(services.into(), pool));
        let table = AnyTable::new(2 * CAPACITY, Hasher::new([7, 2, 3, 4]));
        let worker = Worker::new(WorkerOptions {
            caps: EngineCaps::full(1000),
            ..WorkerOptions::new(snapshot, boxed(CAPACITY), table, Always, [1, 2, 3, 4])
        });
        let port = CountedPort(Rc::new(Cell::new(0)));
        WorkerScene { worker, port, now: Time::from_nanos(1), rules: BTreeMap::new(), answers: Vec::new() }
    }

    fn frame(&mut self, tag: u8, bytes: &[u8]) -> bool {
        let mut frame = VecFrame::new(bytes);
        if tag & 1 != 0 {
            frame.meta.arrival = Arrival::too_big(68 + u16::from(tag >> 3 & 15) * 100);
        }
        if tag & 2 != 0 {
            frame.meta.checksum = Checksum::Partial;
        }
        if tag & 4 != 0 {
            frame.meta.gso_size = 8;
        }
        let mut rx = Batch::new();
        rx.push(Counted::new(frame, &self.port.0));
        let mut tx = Batch::new();
        self.worker.handle_batch(self.now, &mut self.port, &mut rx, &mut tx);
        assert_eq!(self.port.0.get(), tx.len() as i64, "a frame is neither sent nor dropped");
        !tx.is_empty()
    }

    fn ask(&mut self) {
        while let Some(op) = self.worker.poll_op() {
            self.answers.push(match op {
                RuleOp::Install(rule) if self.rules.len() >= RULES && !self.rules.contains_key(&rule.key) => {
                    Completion::Rejected(rule.id, Refusal::Full)
                }
                RuleOp::Install(rule) => {
                    self.rules.insert(rule.key, rule.id);
                    Completion::Installed(rule.id)
                }
                RuleOp::Remove { id, key } => {
                    let gone = self.rules.remove(&key);
                    assert!(gone.is_none_or(|held| held == id), "another connection's rule was removed");
                    Completion::Removed(id, gone.map(|_| Counters::default()))
                }
            });
        }
    }

    fn settle(&mut self) {
        loop {
            self.ask();
            for answer in std::mem::take(&mut self.answers) {
                self.worker.handle_completion(self.now, &answer);
            }
            let mut asked = SampledRules::new();
            self.worker.poll_samples(&mut asked);
            let samples = asked.iter().map(|(_, key)| self.rules.get(key).map(|_| Counters::default())).collect();
            self.worker.handle_samples(self.now, &asked, &samples);
            self.worker.handle_timeout(self.now);
            let idle = self.worker.poll_timeout(self.now).is_none_or(|at| at > self.now);
            if asked.is_empty() && idle {
                self.ask();
                if self.answers.is_empty() {
                    return;
                }
            }
        }
    }

    fn rest(&mut self) {
        let end = self.now + Duration::from_secs(2 * 3600);
        while self.worker.connections().next().is_some() {
            assert!(self.now < end, "a connection outlives all timeouts");
            self.now = self.worker.poll_timeout(self.now).unwrap_or(end).max(self.now + Duration::from_millis(50));
            self.settle();
        }
        assert!(self.rules.is_empty(), "a rule outlives its connection");
        assert_eq!(self.worker.statistics().offload.rules, 0);
    }
}

/// Plays the input's records; ends with silence, after which nothing may be left. Says whether any frame was sent on.
pub fn worker(input: &[u8]) -> bool {
    thread_local!(static SCENE: RefCell<WorkerScene> = RefCell::new(WorkerScene::new()));
    SCENE.with_borrow_mut(|scene| {
        let mut rest = input;
        let mut sent = false;
        while let Some((&tag, after)) = rest.split_first() {
            rest = after;
            if tag < 128 {
                scene.now = scene.now + Duration::from_millis(u64::from(tag) * 100);
                if tag & 1 != 0 {
                    scene.ask()
                } else {
                    scene.settle()
                }
                continue;
            }
            let Some((length, after)) = rest.split_first_chunk::<2>() else { break };
            let length = usize::from(u16::from_le_bytes(*length)).min(after.len());
            let (bytes, after) = after.split_at(length);
            sent |= scene.frame(tag, bytes);
            rest = after;
        }
        scene.settle();
        assert_eq!(scene.worker.rules_known().count(), scene.rules.len(), "offload state and engine differ");
        scene.rest();
        sent
    })
}

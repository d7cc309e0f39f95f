//! A worker with a service, an engine, and packets to throw at them.

use super::super::{Drop, StatelessMethod, Update, Which, Worker, WorkerOptions};
use crate::balance::{EffectiveWeights, Loads, SHARE_FULL, Tables};
use crate::config::{BACKENDS_MAX, Backend, BackendState, Forwarding, Pool, Service, Snapshot, WhenFull};
use crate::engine::{Completion, Counters, EngineCaps, Fate, Refusal, Rule, RuleId, RuleOp, Samples};
use crate::flow::{Address, Endpoint, FlowKey, Protocol, Steering};
use crate::frame::{Batch, Egress, Frame, FrameIo, VecFrame};
use crate::keys::Secret;
use crate::l4::answer::{self, Notice};
use crate::l4::connection::Connection;
use crate::l7::config::Kind;
use crate::limit::LimitTable;
use crate::offload::{AnyPolicy, Choice};
use crate::table::slab::boxed;
use crate::table::{AnyTable, Hasher};
use crate::time::{Duration, Time};
use crate::wire::tcp::ACK;
use crate::wire::{self, Parsed, Transport};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use alloc::{format, vec};
use core::net::Ipv6Addr;

/// An engine that answers when it is asked to, and refuses what it has no room for.
#[derive(Default)]
pub(super) struct Engine {
    pub(super) rules: BTreeMap<FlowKey, (Rule, Counters)>,
    pub(super) room: usize,
    pub(super) answers: VecDeque<Completion>,
}

impl Engine {
    pub(super) fn submit(&mut self, op: RuleOp) {
        let answer = match op {
            RuleOp::Install(rule) if self.rules.len() >= self.room && !self.rules.contains_key(&rule.key) => {
                Completion::Rejected(rule.id, Refusal::Full)
            }
            RuleOp::Install(rule) => {
                self.rules.insert(rule.key, (rule, Counters::default()));
                Completion::Installed(rule.id)
            }
            RuleOp::Remove { id, key } => {
                let gone = self.rules.remove(&key);
                if let Some((rule, _)) = &gone {
                    // One that the engine has made by itself has no name.
                    let is_named = rule.id == id || rule.id == RuleId::default();
                    assert!(is_named, "a removal hit another connection's rule");
                }
                Completion::Removed(id, gone.map(|(_, counters)| counters))
            }
        };
        self.answers.push_back(answer);
    }
}

pub(super) struct NoPort;

impl FrameIo for NoPort {
    type Frame = VecFrame;
    fn receive(&mut self, _: &mut Batch<VecFrame>) {}
    fn transmit(&mut self, _: &mut Batch<VecFrame>) {}
    fn allocate(&mut self) -> Option<VecFrame> {
        Some(VecFrame::default())
    }
}

/// A packet as it left the worker.
pub(super) struct Sent {
    pub(super) source: Endpoint,
    pub(super) destination: Endpoint,
    pub(super) flags: u8,
}

pub(super) struct Outcome {
    pub(super) frames: Vec<VecFrame>,
}

impl Outcome {
    pub(super) fn sent(self) -> Sent {
        assert_eq!(self.frames.len(), 1);
        let frame = &self.frames[0];
        assert_eq!(frame.meta.egress, Egress::Route);
        let at = transport(frame);
        Sent { source: at.key.source, destination: at.key.destination, flags: at.tcp_flags }
    }
}

fn transport(frame: &VecFrame) -> Transport {
    match wire::parse(frame.bytes()) {
        Ok(Parsed::Transport(at)) => at,
        other => panic!("not a packet: {:?}", other.is_ok()),
    }
}

pub(super) struct OneWorker {
    worker: Worker<AnyPolicy>,
    pub(super) engine: Engine,
    pub(super) now: Time,
    snapshot: Arc<Snapshot>,
    loads: Loads,
    pub(super) effective_weights: EffectiveWeights,
    capacity: usize,
    /// The worker's own packets, by time.
    pub(super) told: Vec<VecFrame>,
}

impl OneWorker {
    pub(super) fn new(ipv6: bool, change: impl Fn(&mut Service)) -> OneWorker {
        OneWorker::with_capacity(ipv6, 1024, change)
    }

    pub(super) fn with_capacity(ipv6: bool, capacity: usize, change: impl Fn(&mut Service)) -> OneWorker {
        OneWorker::of(plan(ipv6, change), capacity, None)
    }

    /// Another process takes the connections over; limits know the same clients.
    pub(super) fn adopt(&mut self) {
        let options = |fixture: &OneWorker| {
            let shared = (&fixture.loads, &fixture.effective_weights);
            OneWorker::options(fixture.snapshot.clone(), fixture.capacity, None, shared)
        };
        let empty = Worker::new(options(self));
        let before = core::mem::replace(&mut self.worker, empty);
        let limits = before.limits.clone();
        limits.forget_workers();
        let (memory, splices) = before.into_memory();
        let held = self.engine_keys();
        let options = WorkerOptions { memory, splices, limits, ..options(self) };
        self.worker = Worker::adopt(options, self.now, &|key| held.contains(key)).0;
    }

    /// With a policy, and an engine of so much room.
    pub(super) fn with_policy(choice: Choice, rules_max: u32) -> OneWorker {
        let mut fixture = OneWorker::new(false, |_| {});
        let capacity = fixture.capacity;
        let options =
            OneWorker::options(fixture.snapshot.clone(), capacity, None, (&fixture.loads, &fixture.effective_weights));
        let caps = EngineCaps { rules_max, ..options.caps };
        fixture.worker = Worker::new(WorkerOptions { policy: AnyPolicy::new(choice, capacity), caps, ..options });
        fixture.engine.room = rules_max as usize;
        fixture
    }

    /// With a worker that tracks no connections. The second service's backends have a port of their own.
    pub(super) fn stateless(ipv6: bool, stateless: StatelessMethod, change: impl Fn(&mut Service)) -> OneWorker {
        let change = |service: &mut Service| {
            if service.endpoint.port == 81 {
                service.backends.iter_mut().for_each(|backend| backend.endpoint.port = 8001);
            }
            change(service);
        };
        OneWorker::of(plan(ipv6, change), 64, Some(stateless))
    }

    fn of(snapshot: Snapshot, capacity: usize, stateless: Option<StatelessMethod>) -> OneWorker {
        let snapshot = Arc::new(snapshot);
        let loads = Loads::default();
        let effective_weights = EffectiveWeights::new();
        let options = OneWorker::options(snapshot.clone(), capacity, stateless, (&loads, &effective_weights));
        let worker = Worker::new(options);
        let engine = Engine { room: 100_000, ..Engine::default() };
        let (now, told) = (Time::from_nanos(1_000_000_000), Vec::new());
        OneWorker { worker, engine, now, snapshot, loads, effective_weights, capacity, told }
    }

    fn options(
        snapshot: Arc<Snapshot>,
        capacity: usize,
        stateless: Option<StatelessMethod>,
        (loads, effective_weights): (&Loads, &EffectiveWeights),
    ) -> WorkerOptions<AnyPolicy> {
        let table = AnyTable::new(2 * capacity, Hasher::new([7, 2, 3, 4]));
        let policy = AnyPolicy::new(Choice::Always, capacity);
        WorkerOptions {
            stateless,
            loads: loads.clone(),
            effective_weights: effective_weights.clone(),
            caps: EngineCaps { judges_access: false, ..EngineCaps::full(100_000) },
            limits: LimitTable::own(1024, Secret::new([1, 2])),
            ..WorkerOptions::new(snapshot, boxed::<Connection>(capacity), table, policy, [1, 2, 3, 4])
        }
    }

    /// The policy for new connections while the table is full.
    pub(super) fn set_when_full(&mut self, when_full: WhenFull) {
        let mut snapshot = Snapshot::new(self.snapshot.services.clone(), self.snapshot.pool.clone());
        snapshot.when_full = when_full;
        self.reload(snapshot, |_| {});
    }

    pub(super) fn shrink_pool(&mut self, ports: u16) {
        let (mut services, mut pool) = (self.snapshot.services.clone(), self.snapshot.pool.clone());
        pool.port_last = pool.port_first + ports - 1;
        for service in &mut services {
            service.backends = service.backends[..1].into();
        }
        *self = OneWorker::of(Snapshot::new(services, pool), self.capacity, None);
    }

    pub(super) fn worker(&self) -> &Worker<AnyPolicy> {
        &self.worker
    }
    pub(super) fn worker_mut(&mut self) -> &mut Worker<AnyPolicy> {
        &mut self.worker
    }
    pub(super) fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }
    pub(super) fn steering(&self) -> Steering {
        Steering::by_hash([1, 2], 1)
    }
    pub(super) fn vip(&self) -> Endpoint {
        self.snapshot.services[0].endpoint
    }
    pub(super) fn second_vip(&self) -> Endpoint {
        self.snapshot.services[1].endpoint
    }
    pub(super) fn backends(&self) -> Vec<Endpoint> {
        self.snapshot.services[0].backends.iter().map(|b| b.endpoint).collect()
    }
    pub(super) fn drops(&self, reason: Drop) -> u64 {
        self.worker.statistics().drops[reason as usize]
    }
    pub(super) fn load(&self, number: u16) -> u32 {
        self.loads.now(number.into())
    }
    pub(super) fn loads(&self) -> u32 {
        (0..BACKENDS_MAX).map(|n| self.loads.now(n)).sum()
    }
    pub(super) fn only(&self) -> Connection {
        let all: Vec<_> = self.worker.connections().collect();
        assert_eq!(all.len(), 1);
        *all[0]
    }
    pub(super) fn connection(&self, client: Endpoint) -> Connection {
        *self.worker.connections().find(|c| c.client == client).unwrap()
    }
    pub(super) fn rules_known(&self) -> Vec<FlowKey> {
        let mut keys: Vec<_> = self.worker.rules_known().collect();
        keys.sort();
        keys
    }
    pub(super) fn engine_keys(&self) -> Vec<FlowKey> {
        self.engine.rules.keys().copied().collect()
    }
    pub(super) fn rule(&self, key: &FlowKey) -> Rule {
        self.engine.rules[key].0
    }

    /// The engine carries a packet of this flow.
    pub(super) fn hit(&mut self, key: &FlowKey) {
        let (rule, counters) = self.engine.rules.get_mut(key).expect("no rule");
        assert_eq!(rule.fate, Fate::Forward);
        counters.packets += 1;
        counters.bytes += 100;
        counters.last_seen = Some(self.now);
    }

    /// The worker takes over other services; `order` says what else the update is to do.
    pub(super) fn reconfigure(&mut self, services: Vec<Service>, order: impl FnOnce(&mut Update)) {
        self.reload(Snapshot::new(services.into(), self.snapshot.pool.clone()), order);
    }

    /// The worker takes over another snapshot.
    pub(super) fn reload(&mut self, snapshot: Snapshot, order: impl FnOnce(&mut Update)) {
        self.snapshot = Arc::new(snapshot);
        let tables = Tables::new(&self.snapshot, &Tables::default());
        let mut update = Update::new(self.snapshot.clone(), &tables, &self.loads, &self.steering(), 0, 4);
        order(&mut update);
        drop(self.worker.reconfigure(self.now, update));
    }

    /// Ends what a backend has.
    pub(super) fn end_backend(&mut self, number: u16, which: Which) {
        self.worker.end_backend(self.now, number, which);
    }

    /// One turn of the main loop at this instant, without answers of the engine.
    pub(super) fn turn(&mut self) {
        self.worker.handle_timeout(self.now);
        let mut tx = Batch::new();
        self.worker.handle_splices(self.now, &mut NoPort, &mut tx);
        self.told.extend(tx);
    }

    /// Says whether a backend answers.
    pub(super) fn set_up(&mut self, number: u16, up: bool) {
        self.effective_weights.set(number, if up { SHARE_FULL } else { 0 });
    }

    /// Lets time pass, with everything a main loop does.
    pub(super) fn wait(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            let next = self.worker.poll_timeout(self.now).unwrap_or(end).max(self.now + Duration::from_millis(50));
            self.now = next.min(end);
            self.turn();
            self.settle();
        }
    }

    /// Engine and worker talk until neither has anything to say.
    pub(super) fn settle(&mut self) {
        loop {
            let mut busy = false;
            while let Some(op) = self.worker.poll_op() {
                self.engine.submit(op);
                busy = true;
            }
            while let Some(answer) = self.engine.answers.pop_front() {
                self.worker.handle_completion(self.now, &answer);
                busy = true;
            }
            let mut asked = Default::default();
            self.worker.poll_samples(&mut asked);
            if !asked.is_empty() {
                let samples = self.samples(&asked);
                self.worker.handle_samples(self.now, &asked, &samples);
                busy = true;
            }
            if !busy {
                return;
            }
        }
    }

    /// Requests reach the engine; its answers wait.
    pub(super) fn flush(&mut self) {
        while let Some(op) = self.worker.poll_op() {
            self.engine.submit(op);
        }
    }

    /// The engine's next answer reaches the worker.
    pub(super) fn answer_one(&mut self) {
        if let Some(answer) = self.engine.answers.pop_front() {
            self.worker.handle_completion(self.now, &answer);
        }
    }

    fn samples(&self, asked: &[(RuleId, FlowKey)]) -> Samples {
        asked.iter().map(|(_, key)| self.engine.rules.get(key).map(|(_, counters)| *counters)).collect()
    }

    pub(super) fn batch(&mut self, frames: Vec<VecFrame>) -> Outcome {
        let mut rx: Batch<VecFrame> = frames.into_iter().collect();
        let mut tx = Batch::new();
        self.worker.handle_batch(self.now, &mut NoPort, &mut rx, &mut tx);
        assert!(rx.is_empty());
        Outcome { frames: tx.into_iter().collect() }
    }

    pub(super) fn send_frame(&mut self, frame: VecFrame) -> Outcome {
        let outcome = self.batch(vec![frame]);
        self.settle();
        outcome
    }

    pub(super) fn send(&mut self, packet: Packet) -> Outcome {
        self.send_frame(packet)
    }

    pub(super) fn client_tries(&mut self, client: Endpoint, flags: u8) -> Option<Sent> {
        let outcome = self.send(packet(client, self.vip(), Way::Tcp(flags)));
        (!outcome.frames.is_empty()).then(|| outcome.sent())
    }

    pub(super) fn client_sends(&mut self, client: Endpoint, flags: u8) -> Sent {
        self.client_tries(client, flags).expect("the packet was dropped")
    }

    /// Opens a connection and says to which backend.
    pub(super) fn open(&mut self, client: Endpoint) -> Endpoint {
        let out = self.client_sends(client, wire::tcp::SYN);
        let answer = packet(out.destination, out.source, Way::Tcp(wire::tcp::SYN | ACK));
        assert_eq!(self.send(answer).frames.len(), 1);
        self.client_sends(client, ACK);
        out.destination
    }
}

/// Three services, two of them TCP, over the same four backends' hosts.
fn plan(ipv6: bool, change: impl Fn(&mut Service)) -> Snapshot {
    let backends =
        |n: u8| -> Vec<Backend> { (0..4).map(|i| backend(u16::from(n * 4 + i), end(ipv6, 100 + i, 8000))).collect() };
    let service = |n: u8, vip: Endpoint, protocol| {
        let mut service = Service {
            state: Default::default(),
            name: format!("service-{n}").into(),
            endpoint: vip,
            protocol,
            kind: Kind::Forward,
            forwarding: Forwarding::Nat,
            outer: Default::default(),
            algorithm: Default::default(),
            hash_name: Default::default(),
            unknown: Default::default(),
            access: None,
            limits: Default::default(),
            timeouts: Default::default(),
            drain_limit: Duration::ZERO,
            all_down: Default::default(),
            faulty: Default::default(),
            is_recorded: false,
            backends: backends(n).into(),
        };
        change(&mut service);
        service
    };
    let services = vec![
        service(0, end(ipv6, 1, 80), Protocol::Tcp),
        service(1, end(ipv6, 1, 81), Protocol::Tcp),
        service(2, end(ipv6, 1, 53), Protocol::Udp),
    ];
    let pool = Pool {
        addresses: vec![end(ipv6, 50, 0).address].into(),
        port_first: 20_000,
        port_last: 20_999,
        time_wait: Duration::from_secs(60),
    };
    Snapshot::new(services.into(), pool)
}

fn backend(number: u16, endpoint: Endpoint) -> Backend {
    Backend {
        number,
        name: format!("{endpoint}").into(),
        endpoint,
        weight: 1,
        state: BackendState::Enabled,
        is_backup: false,
        connections_max: 0,
    }
}

/// An end on the fixture: VIPs are host 1, the pool host 50, backends hosts from 100, routers from 200.
pub(super) fn end(ipv6: bool, host: u8, port: u16) -> Endpoint {
    let address = if ipv6 {
        Address(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, u16::from(host)).octets())
    } else {
        Address::from_ipv4([10, 0, 0, host])
    };
    Endpoint { address, port }
}

pub(super) fn client(ipv6: bool, host: u8, port: u16) -> Endpoint {
    let mut end = end(ipv6, host, port);
    end.address.0[13] = 99;
    end
}

pub(super) type Packet = VecFrame;

pub(super) enum Way {
    /// TCP with these flags and no payload.
    Tcp(u8),
    /// TCP with ACK and so many bytes of payload.
    Data(usize),
    /// UDP with so many bytes.
    Udp(usize),
}

impl VecFrame {
    pub(super) fn key(&self) -> FlowKey {
        transport(self).key
    }
}

/// Builds a frame, checksums by the plain method.
pub(super) fn packet(from: Endpoint, to: Endpoint, way: Way) -> Packet {
    let (protocol, l4): (u8, Vec<u8>) = match way {
        Way::Tcp(flags) => (6, tcp(from.port, to.port, flags, 0)),
        Way::Data(length) => (6, tcp(from.port, to.port, ACK, length)),
        Way::Udp(length) => (17, udp(from.port, to.port, length)),
    };
    let ipv4 = from.address.is_ipv4();
    let mut data = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    data.extend(if ipv4 { [0x08, 0x00] } else { [0x86, 0xdd] });
    let mut pseudo: Vec<u8> = Vec::new();
    if ipv4 {
        pseudo.extend(from.address.ipv4_octets());
        pseudo.extend(to.address.ipv4_octets());
        data.extend([0x45, 0]);
        data.extend((20 + l4.len() as u16).to_be_bytes());
        data.extend([0, 7, 0x40, 0, 64, protocol, 0, 0]);
        data.extend(&pseudo);
        let sum = checksum(&data[14..34]);
        data[24..26].copy_from_slice(&sum.to_be_bytes());
    } else {
        pseudo.extend(from.address.0);
        pseudo.extend(to.address.0);
        data.extend([0x60, 0, 0, 0]);
        data.extend((l4.len() as u16).to_be_bytes());
        data.extend([protocol, 64]);
        data.extend(&pseudo);
    }
    pseudo.extend((l4.len() as u32).to_be_bytes());
    pseudo.extend([0, 0, 0, protocol]);
    pseudo.extend(&l4);
    let sum = checksum(&pseudo);
    let l4_at = data.len();
    data.extend(&l4);
    let field = l4_at + if protocol == 6 { 16 } else { 6 };
    data[field..field + 2].copy_from_slice(&sum.to_be_bytes());
    VecFrame::new(&data)
}

/// Everybody's sequence number is 256, and everybody acknowledges 511.
fn tcp(from: u16, to: u16, flags: u8, payload: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(from.to_be_bytes());
    bytes.extend(to.to_be_bytes());
    bytes.extend([0, 0, 1, 0, 0, 0, 2, 0, 0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
    bytes.resize(20 + payload, 0x5a);
    bytes
}

fn udp(from: u16, to: u16, payload: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(from.to_be_bytes());
    bytes.extend(to.to_be_bytes());
    bytes.extend((8 + payload as u16).to_be_bytes());
    bytes.extend([0, 0]);
    bytes.resize(8 + payload, 0x5a);
    bytes
}

fn checksum(bytes: &[u8]) -> u16 {
    let mut sum: u32 = bytes.chunks(2).map(|c| u32::from(c[0]) << 8 | u32::from(*c.get(1).unwrap_or(&0))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// The packet with another TCP header, and the right checksum for that.
pub(super) fn with_tcp(mut packet: Packet, change: impl FnOnce(&mut [u8])) -> Packet {
    let l4 = transport(&packet).l4;
    change(&mut packet.data[l4..]);
    transport(&packet).fill_checksum(&mut packet.data);
    packet
}

/// Clears DF.
pub(super) fn allow_fragments(packet: &mut Packet) {
    packet.data[14 + 6] = 0;
    refresh_header(packet);
}

/// Leaves one hop.
pub(super) fn last_hop(packet: &mut Packet) {
    if packet.data[12] == 0x08 {
        packet.data[14 + 8] = 1;
        refresh_header(packet);
    } else {
        packet.data[14 + 7] = 1;
    }
}

fn refresh_header(packet: &mut Packet) {
    packet.data[24..26].fill(0);
    let sum = checksum(&packet.data[14..34]);
    packet.data[24..26].copy_from_slice(&sum.to_be_bytes());
}

/// The ICMP error of a router or host at `from` about a packet that it could not deliver.
pub(super) fn complaint(about: &VecFrame, from: Address) -> VecFrame {
    let mut frame = about.clone();
    let at = transport(&frame);
    assert!(answer::notice(&mut frame, &at, Notice::PortUnreachable, from));
    frame
}

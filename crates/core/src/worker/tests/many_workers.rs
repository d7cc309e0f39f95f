//! Several workers, the engine they share, and a process around them that may end at any moment: memory and engine stay.

use super::super::{Adopted, Known, Occupancy, StatelessMethod, Worker, WorkerOptions, home};
use super::one_worker::{NoPort, Packet};
use crate::balance::{EffectiveWeights, Loads};
use crate::config::Snapshot;
use crate::engine::{Completion, Counters, EngineCaps, Fate, Refusal, Rule, RuleId, RuleOp, Samples};
use crate::flow::{Direction, FlowKey, Steering};
use crate::frame::{Batch, VecFrame};
use crate::l4::connection::{Connection, Flags, State};
use crate::offload::Always;
use crate::table::region::Array;
use crate::table::slab::{Slab, Slot, boxed};
use crate::table::{AnyTable, Hasher, Table};
use crate::time::{Duration, Time};
use crate::wire::tcp::{FIN, RST, SYN};
use crate::wire::{self, Parsed};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU8, Ordering};

const KNOWN_CELLS: usize = 256;
const BOTH: [Direction; 2] = [Direction::FromClient, Direction::FromBackend];

/// A rule in the engine. The name is what its process called it; the next one does not know.
pub(super) struct Held {
    name: Option<RuleId>,
    pub(super) rule: Rule,
    /// Whose it is: where SYN, FIN and RST go.
    owner: u16,
    pub(super) counters: Counters,
}

pub(super) struct ManyWorkers {
    pub(super) workers: Vec<Worker<Always>>,
    pub(super) engine: BTreeMap<FlowKey, Held>,
    pub(super) room: usize,
    answers: Vec<VecDeque<Completion>>,
    pub(super) now: Time,
    pub(super) snapshot: Arc<Snapshot>,
    pub(super) loads: Loads,
    effective_weights: EffectiveWeights,
    occupancy: Occupancy,
    /// The engine's room, as reported to workers that start from now on.
    pub(super) rules_max: u32,
    /// Of workers that start from now on.
    pub(super) stateless: Option<StatelessMethod>,
    known: &'static [AtomicU8],
    capacity: usize,
    starts: u64,
}

/// The state that a crash may change.
pub(super) struct Restart {
    pub(super) workers: u16,
    pub(super) capacity: usize,
    pub(super) snapshot: Arc<Snapshot>,
    /// How long no process is there.
    pub(super) away: Duration,
}

impl ManyWorkers {
    pub(super) fn new(snapshot: Snapshot, workers: u16, capacity: usize) -> ManyWorkers {
        let snapshot = Arc::new(snapshot);
        let mut fixture = ManyWorkers {
            workers: Vec::new(),
            engine: BTreeMap::new(),
            room: 100_000,
            answers: Vec::new(),
            now: Time::from_nanos(1_000_000_000),
            loads: Loads::new(snapshot.backends()),
            effective_weights: EffectiveWeights::new(),
            occupancy: Occupancy::default(),
            rules_max: 100_000,
            stateless: None,
            snapshot,
            known: &[],
            capacity,
            starts: 0,
        };
        fixture.start((0..workers).map(|_| boxed(capacity)).collect());
        fixture
    }

    pub(super) fn steering(&self) -> Steering {
        Steering::by_hash([1, 2], self.answers.len() as u16)
    }

    /// Starts workers on what is in memory, and does what a process does with what they find.
    fn start(&mut self, memory: Vec<Array<Slot<Connection>>>) -> Adopted {
        self.starts += 1;
        let count = memory.len();
        self.answers = vec![VecDeque::new(); count];
        self.loads = Loads::new(self.snapshot.backends());
        self.known = Box::leak((0..KNOWN_CELLS).map(|_| AtomicU8::new(0)).collect());
        self.engine.values_mut().for_each(|held| held.name = None);
        let mut sum = Adopted::default();
        for (number, memory) in memory.into_iter().enumerate() {
            let options = self.options(number as u16, memory);
            let (worker, adopted) = Worker::adopt(options, self.now, &|key| self.engine.contains_key(key));
            sum.add(&adopted);
            self.workers.push(worker);
        }
        let offload_state: BTreeMap<FlowKey, u16> = (0u16..)
            .zip(&self.workers)
            .flat_map(|(number, worker)| worker.rules_known().map(move |key| (key, number)))
            .collect();
        self.engine.retain(|key, _| offload_state.contains_key(key));
        self.engine.iter_mut().for_each(|(key, held)| held.owner = offload_state[key]);
        sum
    }

    fn options(&self, worker: u16, memory: Array<Slot<Connection>>) -> WorkerOptions<Always> {
        let table = AnyTable::new(2 * memory.len(), Hasher::new([7, 2, 3, 4]));
        WorkerOptions {
            steering: self.steering(),
            worker,
            stateless: self.stateless.clone(),
            loads: self.loads.clone(),
            effective_weights: self.effective_weights.clone(),
            occupancy: self.occupancy.clone(),
            known: Known::new(self.known),
            caps: EngineCaps::full(self.rules_max),
            cookies: crate::l7::cookie::Cookies::new([[1, 2], [3, 4]]),
            ..WorkerOptions::new(self.snapshot.clone(), memory, table, Always, [self.starts, 2, 3, 4])
        }
    }

    /// The process ends in the middle of everything: requests and answers on their way are lost. The next one adopts,
    /// and has what it must asked for before any worker gets to work.
    pub(super) fn crash(&mut self, restart: Restart) -> Adopted {
        let adopted = self.adopt(restart);
        self.settle();
        adopted
    }

    /// A crash whose next process adopts, but asks for nothing yet.
    pub(super) fn adopt(&mut self, restart: Restart) -> Adopted {
        let mut memory: Vec<_> = self.workers.drain(..).map(|worker| worker.slab.into_memory()).collect();
        self.now = self.now + restart.away;
        self.snapshot = restart.snapshot;
        if usize::from(restart.workers) != memory.len() || restart.capacity != self.capacity {
            memory = redealt(memory, Steering { workers: restart.workers, ..self.steering() }, restart.capacity);
            self.capacity = restart.capacity;
        }
        let adopted = self.start(memory);
        self.check();
        adopted
    }

    /// The next process finds the same conditions as the last.
    pub(super) fn as_before(&self) -> Restart {
        Restart {
            workers: self.answers.len() as u16,
            capacity: self.capacity,
            snapshot: self.snapshot.clone(),
            away: Duration::from_millis(300),
        }
    }

    /// A packet arrives: at the engine, if it has a rule and lets it (`engine`), else at a worker. What leaves.
    pub(super) fn packet(&mut self, packet: Packet, engine: bool) -> Vec<VecFrame> {
        let Ok(Parsed::Transport(at)) = wire::parse(&packet.data) else { return self.hand_to(0, packet) };
        let (now, steering) = (self.now, self.steering());
        if let Some(held) = self.engine.get_mut(&at.key) {
            if at.tcp_flags & (SYN | FIN | RST) != 0 || !engine {
                let owner = held.owner;
                return self.hand_to(owner, packet);
            }
            held.counters.packets += 1;
            held.counters.bytes += 100;
            held.counters.last_seen = Some(now);
            if held.rule.fate == Fate::Pass {
                return Vec::new();
            }
            let (rewrite, mut packet) = (held.rule.rewrite, packet);
            let checksum = packet.meta.checksum;
            rewrite.apply(&mut packet.data, &at, checksum);
            return vec![packet];
        }
        let services = &self.snapshot.services;
        let to_service = services.iter().any(|s| (s.endpoint, s.protocol) == (at.key.destination, at.key.protocol));
        let end = if to_service { at.key.source } else { at.key.destination };
        self.hand_to(steering.worker(&end), packet)
    }

    fn hand_to(&mut self, number: u16, packet: Packet) -> Vec<VecFrame> {
        let mut rx: Batch<VecFrame> = core::iter::once(packet).collect();
        let mut tx = Batch::new();
        self.workers[usize::from(number)].handle_batch(self.now, &mut NoPort, &mut rx, &mut tx);
        tx.into_iter().collect()
    }

    /// Requests of one worker reach the engine; its answers wait.
    pub(super) fn flush(&mut self, number: usize) {
        while let Some(op) = self.workers[number].poll_op() {
            let answer = self.carry_out(number as u16, op);
            self.answers[number].push_back(answer);
        }
    }

    fn carry_out(&mut self, owner: u16, op: RuleOp) -> Completion {
        match op {
            RuleOp::Install(rule) if self.engine.len() >= self.room && !self.engine.contains_key(&rule.key) => {
                Completion::Rejected(rule.id, Refusal::Full)
            }
            RuleOp::Install(rule) => {
                let held = Held { name: Some(rule.id), rule, owner, counters: Counters::default() };
                let before = self.engine.insert(rule.key, held);
                assert!(before.is_none(), "a rule was put over another: {:?}", rule.key);
                Completion::Installed(rule.id)
            }
            RuleOp::Remove { id, key } => {
                let gone = self.engine.remove(&key);
                if let Some(held) = &gone {
                    assert!(held.name.is_none_or(|name| name == id), "a removal hit another connection's rule");
                    assert_eq!(held.owner, owner, "a worker removed another's rule");
                }
                Completion::Removed(id, gone.map(|held| held.counters))
            }
        }
    }

    /// The engine makes a rule by itself, as when it sets up a connection: in this test, one like another that it has.
    pub(super) fn make_rule(&mut self, key: FlowKey) {
        let like = self.engine.values().next().expect("there is no rule").rule;
        let held = Held { name: None, rule: Rule { key, ..like }, owner: 0, counters: Counters::default() };
        self.engine.insert(key, held);
    }

    /// The engine's next answer reaches a worker.
    pub(super) fn answer_one(&mut self, number: usize) {
        if let Some(answer) = self.answers[number].pop_front() {
            self.workers[number].handle_completion(self.now, &answer);
        }
    }

    /// Workers and engine talk until neither has anything to say.
    pub(super) fn settle(&mut self) {
        for number in 0..self.workers.len() {
            loop {
                self.flush(number);
                let mut busy = !self.answers[number].is_empty();
                while !self.answers[number].is_empty() {
                    self.answer_one(number);
                }
                let worker = &mut self.workers[number];
                let mut asked = Default::default();
                worker.poll_samples(&mut asked);
                if !asked.is_empty() {
                    let counters = |(_, key): &(RuleId, FlowKey)| self.engine.get(key).map(|held| held.counters);
                    let samples: Samples = asked.iter().map(counters).collect();
                    worker.handle_samples(self.now, &asked, &samples);
                    busy = true;
                }
                if worker.unfinished_until(self.now) == Some(self.now) {
                    worker.handle_timeout(self.now);
                    busy = true;
                }
                if !busy {
                    break;
                }
            }
        }
    }

    /// Lets time pass, with everything a main loop does.
    pub(super) fn wait(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            let due = self.workers.iter().filter_map(|worker| worker.poll_timeout(self.now)).min();
            self.now = due.unwrap_or(end).max(self.now + Duration::from_millis(50)).min(end);
            for worker in &mut self.workers {
                worker.handle_timeout(self.now);
            }
            self.settle();
        }
    }

    pub(super) fn connections(&self) -> impl Iterator<Item = &Connection> {
        self.workers.iter().flat_map(|worker| worker.connections())
    }

    /// Connections that an adopter has to keep.
    pub(super) fn live(&self) -> Vec<Connection> {
        let live = |c: &&Connection| c.state != State::Pass && !c.flags.has(Flags::PENDING_REMOVAL);
        self.connections().filter(live).copied().collect()
    }

    /// The invariants right after adoption, and whenever the engine has answered everything.
    pub(super) fn check(&self) {
        let mut offload_state: Vec<FlowKey> = self.workers.iter().flat_map(|worker| worker.rules_known()).collect();
        offload_state.sort();
        assert_eq!(offload_state, self.engine.keys().copied().collect::<Vec<_>>(), "offload state and engine");
        let mut sources = BTreeSet::new();
        let mut loads = vec![0; self.snapshot.backends() as usize];
        let mut known = [0u32; KNOWN_CELLS];
        for (number, worker) in self.workers.iter().enumerate() {
            let mut index = 0;
            let mut ports: BTreeMap<u16, u32> = BTreeMap::new();
            for position in worker.slab.positions() {
                let connection = worker.slab.at(position);
                let pending_removal = connection.flags.has(Flags::PENDING_REMOVAL);
                assert!(
                    !pending_removal || connection.pair.held() != 0,
                    "a connection pending removal stays without a rule"
                );
                if !pending_removal {
                    let ways = if connection.state == State::Pass { &BOTH[1..] } else { connection.directions() };
                    index += ways.len();
                    for &way in ways {
                        let found = worker.find(&connection.key(way));
                        assert_eq!(found, Some((position, way)), "the index leads elsewhere");
                    }
                    assert!(worker.stamps.has(position) || worker.sampling.contains(&position));
                }
                if connection.state == State::Pass {
                    continue;
                }
                assert_eq!(usize::from(home(connection, &self.steering())), number, "a connection is not at home");
                loads[usize::from(connection.backend_number)] += u32::from(connection.flags.has(Flags::COUNTED));
                assert_eq!(connection.flags.has(Flags::COUNTED), !pending_removal && !connection.state.is_over());
                let cell = |end| self.steering().hash(end) as usize % KNOWN_CELLS;
                known[cell(&connection.client)] += 1;
                if connection.flags.has(Flags::FULL_NAT) {
                    known[cell(&connection.source)] += 1;
                    *ports.entry(connection.backend_number).or_default() += 1;
                    let pair = (connection.backend, connection.protocol, connection.source);
                    assert!(sources.insert(pair), "a port of the pool is used twice: {pair:?}");
                }
            }
            assert_eq!(Table::<FlowKey>::len(&worker.table), index, "the index holds an entry of no connection");
            self.check_ports(worker, &ports);
        }
        let counted: Vec<u32> = (0..self.snapshot.backends()).map(|number| self.loads.now(number)).collect();
        assert_eq!(counted, loads, "loads");
        let noted: Vec<u32> = self.known.iter().map(|cell| u32::from(cell.load(Ordering::Relaxed))).collect();
        assert_eq!(noted, known, "known cells");
        let own: u32 = self.workers.iter().map(|worker| worker.rules.own()).sum();
        assert_eq!(self.occupancy.rules().iter().sum::<u32>(), own, "rules of all workers");
    }

    /// The pool's ports in use are those of connections: backends that are one end share theirs.
    fn check_ports(&self, worker: &Worker<Always>, used: &BTreeMap<u16, u32>) {
        let ends = |number: u16| self.snapshot.backend(number).map(|(s, b)| (b.endpoint, s.protocol));
        for number in 0..self.snapshot.backends() as u16 {
            let Some(end) = ends(number) else { continue };
            let shared = used.iter().filter(|(other, _)| ends(**other) == Some(end)).map(|(_, count)| count);
            assert_eq!(worker.ports.in_use(u32::from(number)), shared.sum::<u32>(), "ports in use of {number}");
        }
    }

    /// A day of silence, after which nothing is left.
    pub(super) fn outlive(&mut self) {
        for _ in 0..24 {
            self.wait(Duration::from_secs(3600));
        }
        assert_eq!(self.connections().count(), 0, "{:?}", self.connections().collect::<Vec<_>>());
        assert!(self.engine.is_empty(), "rules without a connection");
        self.check();
        for worker in &self.workers {
            let statistics = worker.statistics();
            assert_eq!((statistics.connections_now, statistics.passes_now, statistics.offload.rules), (0, 0, 0));
            assert!(statistics.backends.iter().all(|backend| backend.connections_now == 0));
        }
    }
}

/// Does as the linux plane when the number of workers or connections changes.
fn redealt(memory: Vec<Array<Slot<Connection>>>, steering: Steering, capacity: usize) -> Vec<Array<Slot<Connection>>> {
    let mut slabs: Vec<Slab<Connection>> = (0..steering.workers).map(|_| Slab::new(boxed(capacity))).collect();
    for region in memory {
        let (slab, invalid) = Slab::adopt(region);
        assert_eq!(invalid, 0);
        for position in slab.positions() {
            let connection = *slab.at(position);
            slabs[usize::from(home(&connection, &steering))].insert(connection);
        }
    }
    slabs.into_iter().map(Slab::into_memory).collect()
}

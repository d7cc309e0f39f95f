//! Two ports of the fake device between clients and backends, and an engine without its thread.

use super::fake::{self, FakeOptions, FakeState, Held, PORTS};
use crate::flow::description::{Description, Does, How};
use crate::flow::device::{DeviceOutcome, DeviceRule, FlowError, RuleDevice, Synchronous, Templates};
use crate::flow::hops::{Hops, RouteHop};
use crate::flow::machine::RuleMachine;
use crate::flow::raw::RawCount;
use crate::flow::request::{AnswerSink, DeviceRuleRequest, RequestAnswer};
use crate::flow::translate::{DeviceTerms, EgressAction, EnginePort, Placed, place};
use crate::flow::{Submission, raw};
use hairpin_core::engine::{Completion, Counters, Rule, RuleId};
use hairpin_core::flow::{Address, Endpoint, FlowKey, Protocol};
use hairpin_core::rewrite::Rewrite;
use hairpin_core::time::{Duration, Time};
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The fake's ports are the process's: one test at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

pub(super) const BOTH_SUBMISSIONS: [Submission; 2] = [Submission::Synchronous, Submission::Templates];

/// Terms in which two ports of the fake without faults take rules.
pub(super) const TERMS: DeviceTerms = DeviceTerms {
    egress: EgressAction::RepresentedPort,
    how: How::NONE,
    jumps: true,
    counts: Does::COUNT,
    sequence_numbers: Does::SEQUENCE_NUMBERS,
    options: true,
    supports: [true; 4],
};

/// Terms in which one alone does.
pub(super) const ALONE: DeviceTerms = DeviceTerms { egress: EgressAction::Hairpin, ..TERMS };

/// Clients behind the first port, backends behind the second.
pub(super) fn ports() -> Vec<EnginePort> {
    let port = |id| EnginePort { id, queues: 1, mtu: 1500, rss_types: 0, takes_rules: true, hairpins: Vec::new() };
    PORTS.map(port).to_vec()
}

/// Clients and backends behind the one port, which was opened again with a hairpin queue.
pub(super) fn one_port() -> EnginePort {
    EnginePort { hairpins: vec![(0, 1)], ..ports()[0].clone() }
}

/// Next hops as the tests want them.
#[derive(Clone, Copy, Debug)]
pub(super) struct TestHops {
    pub(super) generation: u64,
    pub(super) backends_known: bool,
    /// The last byte of the backends' next hop's Ethernet address.
    pub(super) backend: u8,
    /// The port that leads to them.
    pub(super) backends_port: u16,
}

impl Hops for TestHops {
    fn hop(&self, address: &Address) -> Option<RouteHop> {
        let is_backend = match IpAddr::from(*address) {
            IpAddr::V4(v4) => v4.octets()[0] == 192,
            IpAddr::V6(v6) => v6.segments()[0] == 0xfd00,
        };
        let own = |port: u16| [2, 0, 0, 0, 1, port as u8];
        match is_backend {
            true if !self.backends_known => None,
            true => {
                let port = self.backends_port;
                Some(RouteHop { port, source: own(port), destination: [2, 0, 0, 0, 3, self.backend] })
            }
            false => Some(RouteHop { port: 0, source: own(0), destination: [2, 0, 0, 0, 2, 1] }),
        }
    }

    fn generation(&self) -> u64 {
        self.generation
    }
}

impl Default for TestHops {
    fn default() -> TestHops {
        TestHops { generation: 1, backends_known: true, backend: 1, backends_port: 1 }
    }
}

/// The answers to workers, and the counters in the last of them.
#[derive(Debug, Default)]
pub(super) struct Heard {
    pub(super) answers: Vec<(u16, Completion)>,
    pub(super) counters: HashMap<(u32, u32), Counters>,
    pub(super) places: HashMap<FlowKey, (u32, u32)>,
}

impl AnswerSink for Heard {
    fn tell(&mut self, worker: u16, told: RequestAnswer) {
        if let Completion::Installed(_) = told.completion {
            self.places.insert(told.key, told.place);
        }
        self.answers.push((worker, told.completion));
    }

    fn counted(&mut self, place: (u32, u32), counters: &Counters) {
        self.counters.insert(place, *counters);
    }
}

impl RuleDevice for Box<dyn RuleDevice> {
    fn room(&self) -> usize {
        (**self).room()
    }
    fn create(&mut self, port: u16, rule: &Description, ticket: u64) -> Result<(), FlowError> {
        (**self).create(port, rule, ticket)
    }
    fn destroy(&mut self, port: u16, flow: DeviceRule, ticket: u64) -> Result<(), FlowError> {
        (**self).destroy(port, flow, ticket)
    }
    fn is_waiting(&self) -> bool {
        (**self).is_waiting()
    }
    fn push(&mut self) {
        (**self).push();
    }
    fn pull(&mut self) -> Option<DeviceOutcome> {
        (**self).pull()
    }
    fn query(&mut self, port: u16, flow: DeviceRule, does: u32) -> Option<RawCount> {
        (**self).query(port, flow, does)
    }
    fn close(&mut self, ports: &[u16]) {
        (**self).close(ports);
    }
}

pub(super) struct EngineFixture {
    pub(super) machine: RuleMachine<Box<dyn RuleDevice>>,
    pub(super) hops: TestHops,
    pub(super) heard: Heard,
    pub(super) now: Time,
    pub(super) terms: DeviceTerms,
    _alone: MutexGuard<'static, ()>,
}

/// Takes the fake's ports for one test.
pub(super) fn alone(options: &FakeOptions) -> MutexGuard<'static, ()> {
    let alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    assert!(raw::agrees_with_the_shim());
    fake::reset(options);
    alone
}

impl EngineFixture {
    pub(super) fn new(submission: Submission, options: &FakeOptions, rules_max: u32) -> EngineFixture {
        let alone = alone(options);
        let device: Box<dyn RuleDevice> = match submission {
            Submission::Synchronous => Box::new(Synchronous::default()),
            Submission::Templates => {
                Box::new(Templates::open(&PORTS, rules_max, TERMS.counts).expect("the fake has templates"))
            }
        };
        let hops = TestHops::default();
        let machine = RuleMachine::new(device, TERMS, ports(), rules_max, hops.generation);
        let now = Time::from_nanos(1_000_000_000);
        EngineFixture { machine, hops, heard: Heard::default(), now, terms: TERMS, _alone: alone }
    }

    /// Asks on behalf of worker 0; `false` if it has to wait.
    pub(super) fn ask(&mut self, request: DeviceRuleRequest) -> bool {
        self.machine.request(self.now, 0, request, &self.hops, &mut self.heard).is_none()
    }

    pub(super) fn settle(&mut self) {
        self.machine.settle(self.now, &self.hops, &mut self.heard);
    }

    /// Settles until nothing is awaited, and lets so much time pass before.
    pub(super) fn after(&mut self, passed: Duration) -> &mut EngineFixture {
        self.now = self.now + passed;
        for _ in 0..1000 {
            self.settle();
            while self.machine.tend(self.now, &self.hops, &mut self.heard) {}
            if !self.machine.device.is_waiting() {
                return self;
            }
        }
        panic!("the device goes on for ever");
    }

    /// The answers since the last call.
    pub(super) fn told(&mut self) -> Vec<Completion> {
        std::mem::take(&mut self.heard.answers).into_iter().map(|(_, completion)| completion).collect()
    }

    pub(super) fn placed(&self, rule: &Rule) -> Placed {
        place(&self.terms, &ports(), &self.hops, rule, rule.id.0).expect("it has a place")
    }

    /// The state of a rule in the device.
    pub(super) fn holds(&self, rule: &Rule) -> Held {
        self.hit(rule, 0, 0)
    }

    /// The state in the device of a rule made with the backends' other neighbour.
    pub(super) fn holds_as_it_was(&self, rule: &Rule) -> Held {
        let hops = TestHops { backend: self.hops.backend ^ 1, ..self.hops };
        let placed = place(&self.terms, &ports(), &hops, rule, rule.id.0).expect("it has a place");
        fake::hit(PORTS[usize::from(placed.port)], &placed.description, 0, 0)
    }

    pub(super) fn hit(&self, rule: &Rule, packets: u64, bytes: u64) -> Held {
        let placed = self.placed(rule);
        fake::hit(PORTS[usize::from(placed.port)], &placed.description, packets, bytes)
    }

    /// The fake's state, which has seen nothing forbidden.
    pub(super) fn fake(&self) -> FakeState {
        let state = fake::state();
        assert_eq!(state.violations, 0, "{}", state.first_violation());
        state
    }
}

pub(super) fn address(text: &str) -> Address {
    text.parse::<IpAddr>().expect("an address").into()
}

pub(super) fn end(text: &str, port: u16) -> Endpoint {
    Endpoint { address: address(text), port }
}

/// The rules of the connection of client `number`, whose address is kept.
pub(super) fn connection(number: u16) -> [Rule; 2] {
    let client = end("10.0.0.9", 1024 + number);
    rules(Protocol::Tcp, [client, end("203.0.113.1", 80), client, end("192.168.0.7", 8080)], u64::from(number) * 2 + 2)
}

/// The rules of a connection from `ends[0]` to `ends[1]`, which goes on from `ends[2]` to `ends[3]`.
pub(super) fn rules(protocol: Protocol, ends: [Endpoint; 4], id: u64) -> [Rule; 2] {
    let key = FlowKey { source: ends[0], destination: ends[1], protocol };
    let rewrite = Rewrite { source: ends[2], destination: ends[3], ..Rewrite::default() };
    let there = Rule { id: RuleId(id), key, rewrite, ..Rule::default() };
    let back = Rule {
        id: RuleId(id + 1),
        key: rewrite.rewritten(&key).reversed(),
        rewrite: rewrite.reversed(&key),
        ..Rule::default()
    };
    [there, back]
}

pub(super) fn remove(rule: &Rule) -> DeviceRuleRequest {
    DeviceRuleRequest::Remove { id: rule.id, key: rule.key }
}

/// A clock that goes on by a tenth of a second whenever it is asked.
pub(super) fn ticking() -> u64 {
    static NOW: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
    NOW.fetch_add(100_000_000, std::sync::atomic::Ordering::Relaxed)
}

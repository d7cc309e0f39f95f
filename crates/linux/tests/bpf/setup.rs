//! Connections that the programs set up without a worker.

use crate::misses::offer;
use crate::packet::{ACK, FIN, Packet, RST, SYN, parsed, v4, v6};
use crate::rig::{BACKEND, CLIENT, KEY, REDIRECT, Rig, SHOT, VIP, XDP_DROP, XDP_PASS, in_namespace, snapshot};
use hairpin_core::balance::{Balancer, EffectiveWeights, Loads, SCHEDULE_NONE, flow_hash, source_hash};
use hairpin_core::config::{Algorithm, Backend, BackendState, Snapshot};
use hairpin_core::engine::{Begun, FlowEngine, Report, Rule, ScheduleKind, SetUp, SetsUp, set_up_services};
use hairpin_core::flow::{Address, Endpoint, FlowKey, Protocol, Steering};
use hairpin_core::frame::Checksum;
use hairpin_core::rewrite::Rewrite;
use hairpin_linux::abi::{self, Bytes, FlowV4, FlowV6, RuleV4, RuleV6};
use hairpin_linux::engine::KernelEngine;
use hairpin_linux::programs::SetUpRoom;
use libbpf_rs::{MapCore, MapFlags};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::collections::HashSet;
use std::sync::atomic::Ordering;

const TCP: u16 = 8080;

/// The rig's services, balanced by `algorithm`, the first two by two backends.
pub(crate) fn balanced(algorithm: Algorithm) -> Snapshot {
    let mut all = snapshot();
    for (number, service) in all.services.iter_mut().enumerate() {
        service.algorithm = algorithm;
        if number < 2 {
            let endpoint = Endpoint::new(Address::from_ipv4(BACKEND), 8090);
            let other = Backend { number: 10 + number as u16, endpoint, ..service.backends[0].clone() };
            service.backends = [service.backends[0].clone(), other].into();
        }
    }
    Snapshot::new(all.services, all.pool)
}

pub(crate) struct SetUpRig {
    pub(crate) rig: Rig,
    _engines: Vec<KernelEngine>,
    pub(crate) workers: Vec<Box<dyn SetsUp>>,
    pub(crate) snapshot: Snapshot,
}

pub(crate) fn schedules(snapshot: &Snapshot) -> Vec<(ScheduleKind, Vec<u16>)> {
    let of = |service: usize| {
        let service = &snapshot.services[service];
        let mut balancer = Balancer::new(service, Loads::default(), 0, 1, 7);
        balancer.refresh(&EffectiveWeights::default());
        (ScheduleKind::of(service.algorithm).unwrap(), balancer.schedule())
    };
    let services = set_up_services(snapshot);
    (0..services.len()).filter(|&service| services[service].is_ok()).map(of).collect()
}

impl SetUpRig {
    fn new(workers: u16, algorithm: Algorithm) -> SetUpRig {
        let mut rig = Rig::new(workers, |options| options.set_up = Some(SetUpRoom { pending: 2048, workers }));
        assert!(rig.plane.allow_set_up(workers).unwrap());
        SetUpRig::over(rig, workers, balanced(algorithm))
    }

    pub(crate) fn over(rig: Rig, workers: u16, snapshot: Snapshot) -> SetUpRig {
        rig.plane.configure_backends(&snapshot).unwrap();
        rig.plane.configure(&snapshot).unwrap();
        rig.plane.schedule(&schedules(&snapshot)).unwrap();
        let mut engines: Vec<_> = (0..workers).map(|worker| rig.plane.engine(worker as u8).unwrap()).collect();
        let mut workers: Vec<_> = engines.iter_mut().map(|engine| engine.sets_up().unwrap()).collect();
        workers.iter_mut().for_each(|worker| worker.grant(100));
        SetUpRig { rig, _engines: engines, workers, snapshot }
    }

    /// The fate of a packet: what left, if it was sent on, else the worker that has it; and the events.
    pub(crate) fn send(&self, packet: &Packet) -> (Result<Vec<u8>, Option<u16>>, Vec<&'static str>) {
        let frame = packet.clone().to(self.rig.left.mac).frame();
        let (run, worker, counted) = offer(&self.rig, &frame);
        let sent = run.verdict == REDIRECT && worker.is_none();
        (if sent { Ok(run.frame) } else { Err(worker) }, counted.into_keys().collect())
    }

    pub(crate) fn client(&self, key: FlowKey, flags: u8, acknowledgement: u32) -> Packet {
        Packet { flags, acknowledgement, payload: Vec::new(), ..Packet::new(key) }
    }

    /// Sends a packet that is to be sent on; the key that it leaves with.
    pub(crate) fn passes(&self, packet: &Packet) -> FlowKey {
        let (sent, events) = self.send(packet);
        let frame = sent.unwrap_or_else(|worker| panic!("{packet:?} went to worker {worker:?}: {events:?}"));
        let key = parsed(&frame).key;
        let mut expected = packet.clone().to(self.rig.left.mac).frame();
        let rewrite = Rewrite { source: key.source, destination: key.destination, ..Rewrite::default() };
        let at = parsed(&expected);
        rewrite.apply(&mut expected, &at, Checksum::Complete);
        assert_eq!(frame[12..], expected[12..], "bpf left, software right");
        key
    }

    pub(crate) fn deferred(&self, packet: &Packet) -> Vec<&'static str> {
        let (sent, events) = self.send(packet);
        assert_eq!(sent.map(|frame| parsed(&frame).key), Err(Some(self.worker(packet))), "{events:?}");
        events
    }

    fn worker(&self, packet: &Packet) -> u16 {
        let steering = Steering::by_hash(KEY, self.workers.len() as u16);
        let is_client = self.snapshot.services.iter().any(|service| service.endpoint == packet.key.destination);
        steering.worker(if is_client { &packet.key.source } else { &packet.key.destination })
    }

    /// A handshake; the backend's end.
    fn open(&self, key: FlowKey) -> Endpoint {
        let backend = self.passes(&self.client(key, SYN, 0)).destination;
        let back = FlowKey { source: backend, destination: key.source, protocol: key.protocol };
        let answered = self.passes(&self.client(back, SYN | ACK, 1001));
        assert_eq!((answered.source, answered.destination), (key.destination, key.source));
        // The SYN-ACK has the number 1000.
        assert_eq!(self.passes(&self.client(key, ACK, 1001)).destination, backend);
        backend
    }

    /// All reports that wait for a worker.
    pub(crate) fn told(&mut self, worker: usize) -> Vec<Report> {
        let queue = &mut self.workers[worker];
        std::iter::from_fn(|| {
            let report = queue.next()?;
            queue.done();
            Some(report)
        })
        .collect()
    }

    pub(crate) fn installed(&self) -> usize {
        self.rig.plane.installed().unwrap().len()
    }

    pub(crate) fn chosen(&self, key: &FlowKey) -> u16 {
        let service = self
            .snapshot
            .services
            .iter()
            .find(|service| service.endpoint == key.destination && service.protocol == key.protocol);
        let service = service.unwrap();
        let mut balancer = Balancer::new(service, Loads::default(), 0, 1, 7);
        service.backends[usize::from(balancer.choose(key).unwrap())].number
    }
}

fn tcp(port: u16) -> FlowKey {
    v4(CLIENT, port, VIP, 80, Protocol::Tcp)
}

fn udp(port: u16) -> FlowKey {
    v4(CLIENT, port, VIP, 80, Protocol::Udp)
}

fn tcp6(port: u16) -> FlowKey {
    v6("fd01::2", port, "2001:db8::10", 80, Protocol::Tcp)
}

#[test]
fn setup_handshake_makes_the_rules_that_core_would() {
    in_namespace(|| {
        let mut all = SetUpRig::new(3, Algorithm::Maglev);
        for key in [tcp(1000), tcp(1001), tcp6(1000)] {
            let backend = all.open(key);
            let worker = all.worker(&Packet::new(key));
            let number = all.chosen(&key);
            let told = all.workers[usize::from(worker)].next();
            assert_eq!(told, Some(Report::SetUp(SetUp { key, backend: number, answered: true })));
            assert_eq!(all.workers[usize::from(worker)].next(), told, "told again until it is done with");
            all.workers[usize::from(worker)].done();
            assert_eq!(all.workers[usize::from(worker)].next(), None);
            assert_eq!(all.workers[usize::from(worker)].take(&key), None);
            let back = FlowKey { source: backend, destination: key.source, protocol: key.protocol };
            let rewrites = [
                (key, Rewrite { source: key.source, destination: backend, ..Rewrite::default() }, 0),
                (back, Rewrite { source: key.destination, destination: key.source, ..Rewrite::default() }, 1),
            ];
            for (key, rewrite, direction) in rewrites {
                let total = u32::from(number) * 2 + direction;
                let rule = Rule { key, rewrite, total, at_once: true, ..Rule::default() };
                same_rule(&all.rig, &rule, worker as u8);
            }
            // And they carry the connection.
            let data = Packet { payload: vec![1; 100], ..all.client(key, ACK, 1001) };
            assert_eq!(all.passes(&data).destination, backend);
            assert_eq!(all.passes(&Packet { key: back, ..data }).source, key.destination);
        }
        assert_eq!(all.installed(), 6);
    });
}

/// The rule in force is what an engine makes of `rule`, but for what packets have changed.
pub(crate) fn same_rule(rig: &Rig, rule: &Rule, worker: u8) {
    let maps = rig.plane.maps();
    let found = |map: &str, key: &[u8]| maps.named(map).unwrap().lookup(key, MapFlags::ANY).unwrap().expect("no rule");
    let (head, wanted) = match rule.key.is_ipv4() {
        true => {
            let wanted = RuleV4::of(rule, worker);
            let there = rig.plane.rule_table().find(&FlowV4::of(&rule.key)).unwrap().expect("no rule");
            assert_eq!((there.source, there.destination), (wanted.source, wanted.destination));
            (there.head, wanted.head)
        }
        false => {
            let wanted = RuleV6::of(rule, worker);
            let there = RuleV6::from_bytes(&found("rules_v6", FlowV6::of(&rule.key).bytes())).unwrap();
            assert_eq!((there.source, there.destination), (wanted.source, wanted.destination));
            (there.head, wanted.head)
        }
    };
    let words = |head: &abi::RuleHead| {
        (head.flags, head.worker, head.source_port, head.destination_port, head.total, head.checksum_addresses)
    };
    assert_eq!(words(&head), words(&wanted), "{rule:?}");
}

#[test]
fn setup_chooses_the_backend_that_core_chooses() {
    for algorithm in [Algorithm::Maglev, Algorithm::SourceHash] {
        in_namespace(move || {
            let all = SetUpRig::new(1, algorithm);
            let mut runner = TestRunner::new(Config { failure_persistence: None, ..Config::with_cases(300) });
            let sources = (any::<[u8; 2]>(), 1u16.., any::<[u8; 4]>(), any::<bool>());
            runner
                .run(&sources, |([a, b], port, rest, ipv6)| {
                    let [c, d, e, f] = rest;
                    let client6 = format!("fd01::{:x}:{:x}", u16::from_be_bytes([c, d]), u16::from_be_bytes([e, f]));
                    let key = match ipv6 {
                        false => v4([10, 1, a, b], port, VIP, 80, Protocol::Tcp),
                        true => v6(&client6, port, "2001:db8::10", 80, Protocol::Tcp),
                    };
                    let sent = all.passes(&all.client(key, SYN, 0)).destination;
                    let number = all.chosen(&key);
                    let (_, backend) = all.snapshot.backend(number).unwrap();
                    prop_assert_eq!(sent, backend.endpoint);
                    Ok(())
                })
                .unwrap();
        });
    }
    in_namespace(|| {
        // The hash is of the whole flow, or of the client's address: every entry of the table can be met.
        let all = SetUpRig::new(1, Algorithm::Maglev);
        let numbers: std::collections::BTreeSet<_> = (1..40).map(|port| all.chosen(&tcp(port))).collect();
        assert_eq!(numbers.len(), 2);
        assert_ne!(flow_hash(&tcp(1)), flow_hash(&tcp(2)));
        assert_eq!(source_hash(&tcp(1).source.address), source_hash(&tcp(2).source.address));
    });
}

#[test]
fn setup_takes_turns_and_follows_the_schedule() {
    in_namespace(|| {
        let all = SetUpRig::new(1, Algorithm::RoundRobin);
        let ports: Vec<u16> = (0..6).map(|n| all.passes(&all.client(tcp(100 + n), SYN, 0)).destination.port).collect();
        assert_eq!(ports, [TCP, 8090, TCP, 8090, TCP, 8090]);
        // A SYN sent again goes where the first one went.
        assert_eq!(all.passes(&all.client(tcp(101), SYN, 0)).destination.port, 8090);
        let mut drained = schedules(&all.snapshot);
        drained[0].1.retain(|number| *number == 10);
        all.rig.plane.schedule(&drained).unwrap();
        assert!((0..4).all(|n| all.passes(&all.client(tcp(200 + n), SYN, 0)).destination.port == 8090));
        all.rig.plane.suspend_set_up();
        assert_eq!(all.deferred(&all.client(tcp(300), SYN, 0)), ["set-up-deferred", "to-worker"]);
    });
    in_namespace(|| {
        let all = SetUpRig::new(1, Algorithm::Maglev);
        let mut down = schedules(&all.snapshot);
        down[0].1.iter_mut().for_each(|number| *number = if *number == 0 { SCHEDULE_NONE } else { *number });
        all.rig.plane.schedule(&down).unwrap();
        let mut fates = std::collections::BTreeSet::new();
        for port in 1..60 {
            let sent = all.send(&all.client(tcp(port), SYN, 0)).0;
            assert_eq!(sent.is_ok(), all.chosen(&tcp(port)) == 10, "the worker goes on along the flow's entries");
            fates.insert(sent.is_ok());
        }
        assert_eq!(fates.len(), 2);
    });
}

#[test]
fn setup_believes_no_client_that_has_not_heard_the_backend() {
    in_namespace(|| {
        let mut all = SetUpRig::new(1, Algorithm::Maglev);
        let key = tcp(1000);
        // Nothing has begun.
        assert_eq!(all.deferred(&all.client(key, ACK, 1001)), ["to-worker"]);
        let backend = all.passes(&all.client(key, SYN, 0)).destination;
        // The backend has not answered.
        assert_eq!(all.deferred(&all.client(key, ACK, 1001)), ["set-up-deferred", "to-worker"]);
        let back = FlowKey { source: backend, destination: key.source, protocol: key.protocol };
        for (flags, payload) in [(ACK, 0), (RST | ACK, 0), (FIN | ACK, 0), (SYN | ACK, 9)] {
            all.deferred(&Packet { payload: vec![0; payload], ..all.client(back, flags, 1001) });
        }
        all.passes(&all.client(back, SYN | ACK, 1001));
        for (flags, number) in [(ACK, 1000), (ACK, 1001 + 65_536), (FIN | ACK, 1001), (RST, 1001), (RST | ACK, 1001)] {
            all.deferred(&all.client(key, flags, number));
        }
        assert_eq!(all.installed(), 0);
        let begun = all.workers[0].take(&key);
        assert_eq!(begun, Some(Begun { backend: all.chosen(&key), answered: true, proof: 1001, sent: 1 }));
        // The worker has it now.
        assert_eq!(all.deferred(&all.client(key, ACK, 1001)), ["to-worker"]);
        assert_eq!(all.deferred(&all.client(back, SYN | ACK, 1001)), ["to-worker"]);
    });
}

#[test]
fn setup_of_datagrams_after_an_answer_or_many() {
    in_namespace(|| {
        let mut all = SetUpRig::new(1, Algorithm::Maglev);
        let key = udp(2000);
        let backend = all.passes(&Packet::new(key)).destination;
        let back = FlowKey { source: backend, destination: key.source, protocol: key.protocol };
        assert_eq!(all.passes(&Packet::new(back)).source, key.destination);
        assert_eq!(all.passes(&Packet::new(back)).source, key.destination);
        assert_eq!((all.installed(), all.workers[0].next()), (0, None));
        assert_eq!(all.passes(&Packet::new(key)).destination, backend);
        assert_eq!(all.installed(), 2);
        assert_eq!(all.told(0), [Report::SetUp(SetUp { key, backend: all.chosen(&key), answered: true })]);
        let key = udp(2001);
        for sent in 1..=8 {
            assert_eq!(all.installed(), 2, "after {sent}");
            all.passes(&Packet::new(key));
        }
        assert_eq!(all.installed(), 4);
        assert_eq!(all.told(0), [Report::SetUp(SetUp { key, backend: all.chosen(&key), answered: false })]);
    });
}

#[test]
fn setup_leaves_to_the_worker_what_it_may_have() {
    in_namespace(|| {
        let all = SetUpRig::new(1, Algorithm::Maglev);
        let syn = |port| all.client(tcp(port), SYN, 0);
        // A client that the worker knows.
        let known = all.rig.plane.control().known();
        let cell = &known[Steering::by_hash(KEY, 1).hash(&tcp(1).source) as usize & (known.len() - 1)];
        cell.store(1, Ordering::Relaxed);
        assert_eq!(all.deferred(&syn(1)), ["to-worker"]);
        cell.store(0, Ordering::Relaxed);
        // A SYN with data, one whose hops are used up, a tag in band, no way back to send it on.
        assert_eq!(all.deferred(&Packet { payload: vec![1], ..syn(2) }), ["to-worker"]);
        assert_eq!(all.deferred(&Packet { ttl: 1, ..syn(2) }), ["set-up-deferred", "to-worker"]);
        assert_eq!(all.deferred(&Packet { tags: vec![[0x81, 0, 0, 7]], ..syn(2) }), ["set-up-deferred", "to-worker"]);
        // A rule of another connection between the backend and that client.
        let number = all.chosen(&tcp(3));
        let backend = all.snapshot.backend(number).unwrap().1.endpoint;
        let back = FlowKey { source: backend, destination: tcp(3).source, protocol: Protocol::Tcp };
        all.rig.put(&Rule { key: back, rewrite: Rewrite::default(), ..Rule::default() }, 0, |_| ());
        assert_eq!(all.deferred(&syn(3)), ["set-up-deferred", "to-worker"]);
        // A service in full NAT.
        assert_eq!(all.deferred(&all.client(v4(CLIENT, 4, VIP, 81, Protocol::Tcp), SYN, 0)), ["to-worker"]);
        // Without a process nothing begins, what has begun goes on.
        let key = tcp(5);
        let backend = all.passes(&syn(5)).destination;
        all.rig.stop_beating();
        assert_eq!(all.send(&syn(6)).1, ["absent-drop"]);
        let back = FlowKey { source: backend, destination: key.source, protocol: key.protocol };
        all.passes(&all.client(back, SYN | ACK, 1001));
        all.passes(&all.client(key, ACK, 1001));
        assert_eq!(all.installed(), 3);
    });
}

#[test]
fn setup_goes_on_for_a_while_without_a_process() {
    in_namespace(|| {
        let mut rig = Rig::new(1, |options| {
            options.set_up = Some(SetUpRoom { pending: 2048, workers: 1 });
            // The last sign of life counts as one at the machine's start.
            options.serve_for = std::time::Duration::from_secs(40 * 86_400);
        });
        assert!(rig.plane.allow_set_up(1).unwrap());
        let mut all = SetUpRig::over(rig, 1, balanced(Algorithm::Maglev));
        all.rig.stop_beating();
        let (there, back) = opened(&mut all, tcp(1000));
        all.passes(&all.client(there, FIN | ACK, 1001));
        all.passes(&all.client(back, FIN | ACK, 1002));
        assert_eq!(all.told(0).len(), 2);
        // So does one of a client in whose cell there is another one, or a connection of its own that is over.
        let known = all.rig.plane.control().known();
        let cell = &known[Steering::by_hash(KEY, 1).hash(&tcp(3).source) as usize & (known.len() - 1)];
        cell.store(1, Ordering::Relaxed);
        opened(&mut all, tcp(3));
        // What a worker would have to do is left undone.
        assert_eq!(all.send(&Packet { ttl: 1, ..all.client(tcp(2), SYN, 0) }).1, ["absent-drop", "set-up-deferred"]);
    });
}

#[test]
fn setup_answers_no_client_that_nothing_leads_to() {
    in_namespace(|| {
        let mut all = SetUpRig::new(1, Algorithm::Maglev);
        let forged = v4([203, 0, 113, 7], 1000, VIP, 80, Protocol::Tcp);
        let backend = all.passes(&all.client(forged, SYN, 0)).destination;
        let back = FlowKey { source: backend, destination: forged.source, protocol: forged.protocol };
        let answer = all.client(back, SYN | ACK, 1001).to(all.rig.left.mac).frame();
        let (run, worker, counted) = offer(&all.rig, &answer);
        assert_eq!((run.verdict, worker, counted.into_keys().collect::<Vec<_>>()), (SHOT, None, vec!["sent-no-route"]));
        assert!(all.workers[0].take(&forged).is_some_and(|begun| !begun.answered), "the worker has nothing of it");
    });
}

#[test]
fn setup_makes_no_half_of_a_pair() {
    in_namespace(|| {
        let mut all = SetUpRig::new(1, Algorithm::Maglev);
        for of_client in [false, true] {
            let key = tcp(10 + u16::from(of_client));
            let backend = all.passes(&all.client(key, SYN, 0)).destination;
            let back = FlowKey { source: backend, destination: key.source, protocol: key.protocol };
            all.passes(&all.client(back, SYN | ACK, 1001));
            // The worker makes a rule of its own meanwhile. (One of the client's flow would be hit: of another protocol's key.)
            if of_client {
                continue;
            }
            all.rig.put(&Rule { key: back, rewrite: Rewrite::default(), ..Rule::default() }, 0, |_| ());
            assert_eq!(all.deferred(&all.client(key, ACK, 1001)), ["set-up-deferred", "to-worker"]);
            assert_eq!(all.installed(), 1);
            assert_eq!(all.workers[0].next(), None, "nothing is told of it");
            assert!(all.workers[0].take(&key).is_some(), "the worker goes on with it");
        }
    });
}

#[test]
fn setup_ends_with_the_workers_room_or_its_queue() {
    in_namespace(|| {
        let mut all = SetUpRig::new(1, Algorithm::Maglev);
        all.workers[0].grant(2);
        let begin = |all: &SetUpRig, port| {
            let key = tcp(port);
            let backend = all.passes(&all.client(key, SYN, 0)).destination;
            let back = FlowKey { source: backend, destination: key.source, protocol: key.protocol };
            all.passes(&all.client(back, SYN | ACK, 1001));
            all.client(key, ACK, 1001)
        };
        let [first, second, third] = [1, 2, 3].map(|port| begin(&all, port));
        all.passes(&first);
        all.passes(&second);
        assert_eq!(all.deferred(&third), ["set-up-deferred", "set-up-no-room", "to-worker"]);
        let refused = all.deferred(&all.client(tcp(4), SYN, 0));
        assert_eq!(refused, ["set-up-deferred", "set-up-no-room", "to-worker"], "none begins");
        all.workers[0].grant(3);
        assert!(all.send(&third).0.is_ok(), "two wait, one fits");
        assert!(all.send(&all.client(tcp(4), SYN, 0)).0.is_err());
        all.workers[0].grant(1_000_000);
        // The queue has 4096 places.
        for port in 5..=4097 {
            all.passes(&begin(&all, port));
        }
        assert_eq!(all.deferred(&begin(&all, 5000)), ["reports-full", "set-up-deferred", "to-worker"]);
        assert_eq!(all.installed(), 2 * 4096);
        let mut told = 0;
        while all.workers[0].next().is_some() {
            all.workers[0].done();
            told += 1;
        }
        assert_eq!(told, 4096);
        all.passes(&begin(&all, 5001));
        assert!(matches!(all.told(0)[..], [Report::SetUp(SetUp { key, .. })] if key == tcp(5001)));
    });
}

#[test]
fn setup_flood_turns_over_what_is_half_open_alone() {
    in_namespace(|| {
        let all = SetUpRig::new(1, Algorithm::Maglev);
        let kept = all.open(tcp(1));
        for n in 0..6000u16 {
            let key = v4([10, 1, (n >> 8) as u8, n as u8], 9999, VIP, 80, Protocol::Tcp);
            all.passes(&all.client(key, SYN, 0));
        }
        let pending = all.rig.plane.maps().named("pending").unwrap().keys().count();
        assert!(pending <= 2048, "{pending}");
        assert_eq!(all.installed(), 2);
        assert_eq!(all.passes(&all.client(tcp(1), ACK, 1001)).destination, kept);
        // And the policer holds back what begins.
        all.rig.plane.control().set_client_rate(0, 0);
        std::thread::sleep(std::time::Duration::from_millis(5));
        let fates: Vec<_> = (0..200).map(|n| all.send(&all.client(tcp(20_000 + n), SYN, 0))).collect();
        assert!(fates.iter().any(|(_, events)| *events == ["policed-client"]));
        assert!(fates.iter().all(|(sent, events)| sent.is_ok() || *events == ["policed-client"]));
        let syn = all.client(tcp(30_000), SYN, 0).to(all.rig.left.mac).frame();
        assert_eq!(all.rig.ingress(&syn).verdict, SHOT);
    });
}

/// An open connection, whose reports have been read: its flows.
fn opened(all: &mut SetUpRig, key: FlowKey) -> (FlowKey, FlowKey) {
    let backend = all.open(key);
    let worker = usize::from(all.worker(&Packet::new(key)));
    all.told(worker);
    (key, FlowKey { source: backend, destination: key.source, protocol: key.protocol })
}

#[test]
fn reports_of_all_workers_are_taken_once() {
    in_namespace(|| {
        let mut all = SetUpRig::new(3, Algorithm::Maglev);
        let keys: Vec<FlowKey> = (1000..1020).map(tcp).collect();
        let workers: HashSet<u16> = keys.iter().map(|&key| all.worker(&Packet::new(key))).collect();
        for &key in &keys {
            opened(&mut all, key);
        }
        for &key in &keys {
            all.passes(&all.client(key, FIN | ACK, 1001));
        }
        assert_eq!(workers.len(), 3, "some of each worker");
        let reports = all.rig.plane.unread_reports().unwrap();
        assert!(reports.iter().all(|report| matches!(report, Report::Segment { flags, .. } if flags & FIN != 0)));
        assert_eq!(reports.len(), keys.len());
        assert_eq!(all.rig.plane.unread_reports().unwrap(), []);
        assert_eq!((0..3).map(|worker| all.told(worker).len()).sum::<usize>(), 0);
    });
}

#[test]
fn segments_that_end_connections_go_by_rules_and_are_told() {
    in_namespace(|| {
        let mut all = SetUpRig::new(3, Algorithm::Maglev);
        for key in [tcp(1000), tcp6(1000)] {
            let (there, back) = opened(&mut all, key);
            let worker = usize::from(all.worker(&Packet::new(key)));
            let data = Packet { payload: vec![7; 33], ..all.client(there, FIN | ACK, 1001) };
            let (sent, events) = all.send(&data);
            assert_eq!((sent.is_ok(), events), (true, vec!["followed"]));
            all.passes(&data);
            all.passes(&all.client(back, FIN | ACK, 1002));
            all.passes(&all.client(there, ACK, 1002));
            all.passes(&all.client(back, RST, 0));
            let told = |key, flags| Report::Segment { key, flags };
            let expected = [(there, FIN | ACK), (there, FIN | ACK), (back, FIN | ACK), (back, RST)]
                .map(|(key, flags)| told(key, flags));
            assert_eq!(all.told(worker), expected);
        }
    });
}

#[test]
fn segments_that_find_no_place_in_the_queue_are_the_workers() {
    in_namespace(|| {
        let mut all = SetUpRig::new(1, Algorithm::Maglev);
        let (there, back) = opened(&mut all, tcp(1000));
        let fin = all.client(there, FIN | ACK, 1001);
        // The queue is full.
        while all.send(&fin).1 == ["followed"] {}
        assert_eq!(all.deferred(&fin), ["reports-full", "rule-flags", "to-worker"]);
        assert_eq!(all.deferred(&all.client(back, RST, 0)), ["reports-full", "rule-flags", "to-worker"]);
        assert_eq!(all.told(0).len(), 4096);
        all.passes(&fin);
        // What the worker has to see anyway: hops used up; it is told once.
        assert_eq!(all.told(0).len(), 1);
        assert_eq!(all.deferred(&Packet { ttl: 1, ..fin.clone() }), ["rule-ttl", "to-worker"]);
        // A rule under hand-over, or for the kernel.
        let fresh = Rule { key: tcp(1), rewrite: Rewrite::default(), ..Rule::default() };
        all.rig.put(&fresh, 0, |_| ());
        assert_eq!(all.deferred(&all.client(tcp(1), FIN | ACK, 1)), ["rule-flags", "to-worker"]);
        assert_eq!(all.told(0), []);
        // No process: the ends go on by themselves, and the next process hears of it.
        all.rig.stop_beating();
        all.passes(&fin);
        all.passes(&all.client(back, FIN | ACK, 1));
        assert_eq!(all.told(0).len(), 2);
        assert_eq!(all.rig.xdp(&fin.clone().to(all.rig.left.mac).frame(), true).verdict, XDP_PASS);
        // A full queue does not hold it up then.
        while all.send(&fin).1 == ["followed"] {}
        all.passes(&fin);
    });
}

#[test]
fn clients_begin_anew_by_rules_while_their_backends_are_open() {
    in_namespace(|| {
        let mut all = SetUpRig::new(1, Algorithm::Maglev);
        let (there, back) = opened(&mut all, tcp(1000));
        let (syn, answer) = (all.client(there, SYN, 0), all.client(back, SYN | ACK, 1001));
        // A backend that answers nothing we know of: the client's own connection to it, perhaps.
        assert_eq!(all.deferred(&answer), ["rule-flags", "to-worker"]);
        assert_eq!(all.passes(&syn).destination, back.source);
        assert_eq!(all.passes(&answer).source, there.destination);
        let told = [(there, SYN), (back, SYN | ACK)].map(|(key, flags)| Report::Segment { key, flags });
        assert_eq!(all.told(0), told);
        // Once.
        assert_eq!(all.deferred(&answer), ["rule-flags", "to-worker"]);
        for flags in [SYN | ACK, SYN | FIN, SYN | RST] {
            assert_eq!(all.deferred(&all.client(there, flags, 0)), ["rule-flags", "to-worker"], "{flags:x}");
        }
        // Its backend is drained; all are, for a moment.
        let number = all.chosen(&there);
        let whole = schedules(&all.snapshot);
        let mut drained = whole.clone();
        drained[0].1.iter_mut().for_each(|entry| *entry = if *entry == number { SCHEDULE_NONE } else { *entry });
        all.rig.plane.schedule(&drained).unwrap();
        assert_eq!(all.deferred(&syn), ["rule-flags", "to-worker"]);
        all.rig.plane.schedule(&whole).unwrap();
        all.passes(&syn);
        all.rig.plane.suspend_set_up();
        assert_eq!(all.deferred(&syn), ["rule-flags", "to-worker"]);
        // And configured again, it takes none until the schedule says so.
        all.rig.plane.configure_backends(&all.snapshot).unwrap();
        assert_eq!(all.deferred(&syn), ["rule-flags", "to-worker"]);
        // Half a pair begins nothing.
        all.rig.plane.schedule(&whole).unwrap();
        all.passes(&syn);
        assert_eq!(all.rig.plane.remove_rules(&[back]).unwrap(), 1);
        assert_eq!(all.deferred(&syn), ["rule-flags", "to-worker"]);
    });
}

#[test]
fn setup_goes_on_where_xdp_refuses_what_is_unknown() {
    in_namespace(|| {
        let all = SetUpRig::new(1, Algorithm::Maglev);
        all.passes(&all.client(tcp(1), SYN, 0));
        all.rig.plane.control().set_client_rate(0, 0);
        let ack = |port| all.client(tcp(port), ACK, 1001).to(all.rig.left.mac).frame();
        assert_eq!(all.rig.xdp(&ack(1), true).verdict, XDP_PASS);
        // The bucket may still hold what it had.
        assert!((0..500).any(|_| all.rig.ingress(&ack(2)).verdict == SHOT));
        assert_eq!(all.rig.xdp(&ack(1), true).verdict, XDP_PASS);
        assert_eq!(all.rig.xdp(&ack(2), true).verdict, XDP_DROP);
    });
}

#[test]
fn setup_is_off_where_it_has_no_room() {
    in_namespace(|| {
        let mut rig = Rig::new(1, |_| ());
        assert!(!rig.plane.allow_set_up(1).unwrap(), "maps of one element");
        assert!(rig.plane.engine(0).unwrap().sets_up().is_none());
        let snapshot = balanced(Algorithm::Maglev);
        rig.plane.configure_backends(&snapshot).unwrap();
        rig.plane.configure(&snapshot).unwrap();
        let syn = Packet { flags: SYN, ..Packet::new(tcp(1)) }.to(rig.left.mac).frame();
        assert_eq!(offer(&rig, &syn).1, Some(0));
        assert_eq!(snapshot.services[0].backends[0].state, BackendState::Enabled);
    });
}

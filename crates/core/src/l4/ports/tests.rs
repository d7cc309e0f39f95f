//! The pool against a plain model.

use super::{Exhausted, PortPool, TICK_SHIFT};
use crate::config::{Algorithm, Backend, BackendState, Forwarding, Pool, Service, Snapshot, Timeouts, UnknownPacket};
use crate::flow::{Endpoint, Protocol, Steering};
use crate::l7::config::Kind;
use crate::time::{Duration, Time};
use core::net::IpAddr;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::vec::Vec;

const TICK: u64 = 1 << TICK_SHIFT;
const REST: u64 = 5;

fn steering(workers: u16) -> Steering {
    Steering::by_hash([0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210], workers)
}

fn pool(port_first: u16, port_last: u16) -> Pool {
    let addresses = ["192.0.2.1", "2001:db8::1", "192.0.2.2", "192.0.2.1"];
    let parse = |text: &str| text.parse::<IpAddr>().expect("an address").into();
    let time_wait = Duration::from_nanos(REST * TICK);
    Pool { addresses: addresses.map(parse).into(), port_first, port_last, time_wait }
}

fn end(text: &str, port: u16) -> Endpoint {
    Endpoint::new(text.parse::<IpAddr>().expect("an address"), port)
}

/// Backends 0 and 2 are one end.
fn backends() -> [(Endpoint, Protocol); 5] {
    [
        (end("10.0.0.1", 80), Protocol::Tcp),
        (end("10.0.0.2", 80), Protocol::Tcp),
        (end("10.0.0.1", 80), Protocol::Tcp),
        (end("10.0.0.1", 80), Protocol::Udp),
        (end("fd00::1", 80), Protocol::Tcp),
    ]
}

/// The queue a backend has to share.
const QUEUES: [usize; 5] = [0, 1, 0, 2, 3];

/// The expected state of a queue: which pairs are in use, and which were released when (and to rest?), in that order.
#[derive(Default)]
struct Model {
    all: BTreeSet<Endpoint>,
    in_use: BTreeSet<Endpoint>,
    released: Vec<(Endpoint, u64, bool)>,
}

impl Model {
    fn unused(&self) -> usize {
        self.all.len() - self.in_use.len() - self.released.len()
    }

    fn take(&mut self, now: u64, got: Result<Endpoint, Exhausted>) {
        let is_known = |end: &Endpoint| self.released.iter().any(|(released, ..)| released == end);
        let ready = |&(_, since, rest): &(Endpoint, u64, bool)| !rest || now / TICK - since / TICK > REST;
        let oldest = self.released.iter().find(|entry| ready(entry)).map(|&(_, since, _)| since / TICK);
        match got {
            Ok(end) if self.unused() > 0 => {
                assert!(self.all.contains(&end) && !self.in_use.contains(&end) && !is_known(&end), "used before");
            }
            Ok(end) => {
                let index = self.released.iter().position(|(released, ..)| *released == end).expect("not in use");
                let entry = self.released.remove(index);
                assert!(ready(&entry), "it rests");
                // Of those released in one tick, either line may come first.
                assert_eq!(Some(entry.1 / TICK), oldest, "not the one released longest ago");
                assert!(!entry.2 || now - entry.1 >= REST * TICK);
            }
            Err(Exhausted) => assert_eq!((self.unused(), oldest), (0, None), "refused with pairs left"),
        }
        self.in_use.extend(got);
    }
}

#[derive(Clone, Debug)]
enum Op {
    Take(u32),
    Release(u32, usize, bool),
    ReleaseOther(u32, u16),
    Wait(u64),
    Reload,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0..5u32).prop_map(Op::Take),
        5 => (0..5u32, any::<usize>(), any::<bool>()).prop_map(|(b, which, rest)| Op::Release(b, which, rest)),
        1 => (0..6u32, any::<u16>()).prop_map(|(backend, port)| Op::ReleaseOther(backend, port)),
        2 => (0..3 * TICK).prop_map(Op::Wait),
        1 => Just(Op::Reload),
    ]
}

fn models(worker: u16, workers: u16, pool: &Pool) -> [Model; 4] {
    [true, true, true, false].map(|is_ipv4| {
        let ports = pool.port_first..=pool.port_last;
        let ends = pool.addresses.iter().flat_map(|&address| ports.clone().map(move |port| Endpoint { address, port }));
        let ours = |end: &Endpoint| end.address.is_ipv4() == is_ipv4 && steering(workers).worker(end) == worker;
        Model { all: ends.filter(ours).collect(), ..Model::default() }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn agrees_with_a_model(
        marks in prop::collection::vec((0..5u32, any::<usize>()), 0..6),
        // Around the 52 days at which ticks wrap, too.
        start in prop_oneof![Just(0), ((1u64 << 32) - 20..1 << 32).prop_map(|tick| tick << TICK_SHIFT)],
        ops in prop::collection::vec(op(), 1..250),
    ) {
        let pool = pool(1000, 1008);
        let mut ports = PortPool::new(&pool, &steering(2), 1, &backends());
        let mut models = models(1, 2, &pool);
        for (backend, which) in marks {
            let model = &mut models[QUEUES[backend as usize]];
            if let Some(&end) = model.all.iter().nth(which.checked_rem(model.all.len()).unwrap_or(0)) {
                prop_assert_eq!(ports.mark(backend, end), model.in_use.insert(end));
            }
        }
        let mut now = start;
        for op in ops {
            match op {
                Op::Take(backend) => {
                    models[QUEUES[backend as usize]].take(now, ports.take(Time::from_nanos(now), backend));
                }
                Op::Release(backend, which, rest) => {
                    let model = &mut models[QUEUES[backend as usize]];
                    let index = which.checked_rem(model.in_use.len()).unwrap_or(0);
                    if let Some(end) = model.in_use.iter().nth(index).copied() {
                        prop_assert!(ports.release(Time::from_nanos(now), backend, end, rest));
                        prop_assert!(!ports.release(Time::from_nanos(now), backend, end, rest), "released twice");
                        prop_assert!(!ports.mark(backend, end), "marked after its release");
                        model.in_use.remove(&end);
                        model.released.push((end, now, rest));
                    }
                }
                Op::ReleaseOther(backend, port) => {
                    for other in [end("192.0.2.9", 1001), end("192.0.2.1", port), end("2001:db8::1", port)] {
                        let model = QUEUES.get(backend as usize).map(|&queue| &models[queue]);
                        let is_ours = model.is_some_and(|model| model.in_use.contains(&other));
                        prop_assert!(is_ours || !ports.release(Time::from_nanos(now), backend, other, false));
                    }
                    if backend == 5 {
                        prop_assert_eq!(ports.take(Time::from_nanos(now), backend), Err(Exhausted));
                    }
                }
                Op::Wait(pause) => now += pause,
                Op::Reload => {
                    let mut next = PortPool::new(&pool, &steering(2), 1, &backends());
                    prop_assert!(next.follow(&mut ports));
                    ports = next;
                }
            }
            for (backend, &queue) in QUEUES.iter().enumerate() {
                prop_assert_eq!(ports.in_use(backend as u32) as usize, models[queue].in_use.len());
                prop_assert_eq!(ports.capacity(backend as u32) as usize, models[queue].all.len());
            }
        }
    }
}

/// Every pair belongs to exactly one worker, and its answers come back there.
#[test]
fn workers_share_the_pool_out() {
    let pool = pool(1024, 2023);
    let now = Time::ZERO;
    let mut all = BTreeSet::new();
    for worker in 0..4 {
        let mut ports = PortPool::new(&pool, &steering(4), worker, &backends());
        let count = ports.capacity(0);
        assert!((400..600).contains(&count), "{count} of 2000 pairs for one worker of four");
        for _ in 0..count {
            let end = ports.take(now, 0).expect("a pair");
            assert_eq!(steering(4).worker(&end), worker);
            assert!(all.insert(end), "{end} given out twice");
        }
        assert_eq!(ports.take(now, 0), Err(Exhausted));
        assert_eq!(ports.take(now, 2), Err(Exhausted), "the same end under another number");
        assert!(ports.take(now, 1).is_ok() && ports.take(now, 3).is_ok(), "other ends have pairs of their own");
        assert!(!ports.take(now, 4).expect("a pair").address.is_ipv4());
    }
    assert_eq!(all.len(), 2000);
}

#[test]
fn odd_pools_are_survived() {
    for (first, last) in [(0, 0), (5, 4), (65_535, 65_535), (0, 65_535)] {
        let mut ports = PortPool::new(&pool(first, last), &steering(1), 0, &backends());
        let expected = 2 * (u32::from(last) + 1).saturating_sub(u32::from(first.max(1)));
        assert_eq!(ports.capacity(0), expected, "ports {first} to {last}");
        let taken = ports.take(Time::ZERO, 0);
        assert_eq!(taken.is_ok(), expected > 0);
        assert!(taken.is_err() || taken.is_ok_and(|end| end.port >= 1));
    }
    let none = Pool { addresses: [].into(), ..pool(1, 9) };
    assert_eq!(PortPool::new(&none, &steering(1), 0, &backends()).take(Time::ZERO, 0), Err(Exhausted));
}

/// Of a snapshot, only services that use the pool have queues; numbers go on through all services.
#[test]
fn a_snapshot_names_the_backends() {
    let service = |forwarding, protocol, ends: &[Endpoint], number_first: u16| Service {
        state: Default::default(),
        name: "service".into(),
        endpoint: end("192.0.2.100", 80),
        protocol,
        kind: Kind::Forward,
        forwarding,
        outer: Default::default(),
        algorithm: Algorithm::default(),
        hash_name: Default::default(),
        unknown: UnknownPacket::default(),
        access: None,
        limits: Default::default(),
        timeouts: Timeouts::default(),
        drain_limit: Duration::ZERO,
        all_down: Default::default(),
        faulty: Default::default(),
        is_recorded: false,
        backends: ends
            .iter()
            .zip(number_first..)
            .map(|(&endpoint, number)| Backend {
                number,
                name: "b".into(),
                endpoint,
                weight: 1,
                state: BackendState::default(),
                is_backup: false,
                connections_max: 0,
            })
            .collect(),
    };
    let (a, b) = (end("10.0.0.1", 80), end("10.0.0.2", 80));
    let services = [
        service(Forwarding::Nat, Protocol::Tcp, &[a, b], 0),
        service(Forwarding::FullNat, Protocol::Tcp, &[a, b], 2),
        service(Forwarding::FullNat, Protocol::Tcp, &[b], 4),
        service(Forwarding::FullNat, Protocol::Udp, &[b], 5),
    ];
    let snapshot = Snapshot::new(services.into(), pool(1000, 1004));
    let mut ports = PortPool::for_snapshot(&snapshot, &steering(1), 0, 0);
    let capacities: Vec<u32> = (0..7).map(|backend| ports.capacity(backend)).collect();
    assert_eq!(capacities, [0, 0, 10, 10, 10, 10, 0]);
    assert_eq!(ports.take(Time::ZERO, 0), Err(Exhausted));
    assert!(ports.take(Time::ZERO, 3).is_ok());
    assert_eq!((ports.in_use(2), ports.in_use(3), ports.in_use(4), ports.in_use(5)), (0, 1, 1, 0));
}

/// Ends that stay keep their queues, whatever number they have now; others begin anew; another pool is another matter.
#[test]
fn a_reload_keeps_what_is_in_use() {
    let old = [(end("10.0.0.1", 80), Protocol::Tcp), (end("10.0.0.2", 80), Protocol::Tcp)];
    let new = [old[1], (end("10.0.0.3", 80), Protocol::Tcp), (old[0].0, Protocol::Udp)];
    let mut before = PortPool::new(&pool(1000, 1009), &steering(1), 0, &old);
    let held = before.take(Time::ZERO, 1).expect("a pair");
    let mut other = PortPool::new(&pool(1000, 1008), &steering(1), 0, &new);
    assert!(!other.follow(&mut before));
    assert!(other.mark(0, held) != (held.port == 1009), "a pair that the new pool has not cannot be marked");
    let mut after = PortPool::new(&pool(1000, 1009), &steering(1), 0, &new);
    assert!(after.follow(&mut before));
    assert_eq!([0, 1, 2].map(|backend| after.in_use(backend)), [1, 0, 0]);
    assert!(after.release(Time::ZERO, 0, held, true));
    let left: BTreeSet<Endpoint> = std::iter::from_fn(|| after.take(Time::ZERO, 0).ok()).collect();
    assert!(left.len() == 19 && !left.contains(&held), "it rests");
}

//! Access rules in the programs.

use crate::misses::offer;
use crate::packet::{ACK, Packet, SYN, v4, v6};
use crate::rig::{BACKEND, CLIENT, KEY, REDIRECT, Rig, SHOT, VIP, XDP_DROP, XDP_PASS, in_namespace, snapshot};
use crate::setup::{SetUpRig, balanced};
use hairpin_core::access::AccessAction::{Allow, Count, Deny};
use hairpin_core::access::{AccessAction, AccessList, NETWORKS_MAX};
use hairpin_core::config::{Algorithm, Snapshot, UnknownPacket};
use hairpin_core::flow::{Address, FlowKey, Protocol, Steering};
use hairpin_core::l7::config::Network;
use hairpin_linux::abi::ACCESS_RULES_MAX;
use hairpin_linux::programs::SetUpRoom;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

type Rules = Vec<(AccessAction, Vec<Network>)>;

fn network(text: &str) -> Network {
    let (address, prefix) = text.split_once('/').unwrap();
    let (address, prefix) = (address.parse::<IpAddr>().unwrap(), prefix.parse::<u8>().unwrap());
    Network { address: address.into(), prefix: if address.is_ipv4() { 96 + prefix } else { prefix } }
}

fn rule(action: AccessAction, networks: &[&str]) -> (AccessAction, Vec<Network>) {
    (action, networks.iter().map(|text| network(text)).collect())
}

/// All of these services with these rules.
fn with_rules(mut snapshot: Snapshot, rules: &[(AccessAction, Vec<Network>)]) -> Snapshot {
    let list = Arc::new(AccessList::new(rules));
    snapshot.services.iter_mut().for_each(|service| service.access = Some(Arc::clone(&list)));
    snapshot
}

fn rig(rules: &[(AccessAction, Vec<Network>)]) -> Rig {
    let rig = Rig::new(1, |_| ());
    rig.plane.configure(&with_rules(snapshot(), rules)).unwrap();
    rig
}

/// What each of the service's first rules has counted.
fn counted(rig: &Rig, service: usize) -> [u64; 3] {
    let all = rig.plane.access_counts(snapshot().services.len() as u32).unwrap();
    std::array::from_fn(|rule| all[service * ACCESS_RULES_MAX + rule])
}

fn frame(rig: &Rig, key: FlowKey, flags: u8) -> Vec<u8> {
    Packet { flags, payload: Vec::new(), ..Packet::new(key) }.to(rig.left.mac).frame()
}

fn know(rig: &Rig, key: &FlowKey) {
    let hash = Steering::by_hash(KEY, 1).hash(&key.source) as usize;
    let known = rig.plane.control().known();
    known[hash & (known.len() - 1)].store(1, Ordering::Relaxed);
}

const OTHER: [u8; 4] = [10, 1, 9, 9];

#[test]
fn denied_first_packets_are_counted_by_service_and_rule() {
    in_namespace(|| {
        let rig = rig(&[rule(Allow, &["10.1.9.0/24", "fd01::9:0/112"]), rule(Deny, &["10.1.0.0/16", "fd01::/64"])]);
        for (service, denied, allowed) in [
            (0, v4(CLIENT, 1, VIP, 80, Protocol::Tcp), v4(OTHER, 1, VIP, 80, Protocol::Tcp)),
            (1, v4(CLIENT, 1, VIP, 80, Protocol::Udp), v4(OTHER, 1, VIP, 80, Protocol::Udp)),
            (
                2,
                v6("fd01::2", 1, "2001:db8::10", 80, Protocol::Tcp),
                v6("fd01::9:1", 1, "2001:db8::10", 80, Protocol::Tcp),
            ),
        ] {
            let (run, _, events) = offer(&rig, &frame(&rig, denied, SYN));
            assert_eq!((run.verdict, events), (SHOT, [("denied", 1)].into()), "{denied:?}");
            let (run, worker, events) = offer(&rig, &frame(&rig, allowed, SYN));
            assert_eq!((run.verdict, worker, events), (REDIRECT, Some(0), [("to-worker", 1)].into()), "{allowed:?}");
            assert_eq!(counted(&rig, service), [0, 1, 0]);
        }
        // What a backend answers begins nothing.
        let answer = v4(BACKEND, 8080, CLIENT, 1, Protocol::Tcp);
        assert_eq!(rig.ingress(&frame(&rig, answer, SYN | ACK)).verdict, REDIRECT);
    });
}

#[test]
fn known_connections_of_a_denied_client_go_on() {
    in_namespace(|| {
        let rig = rig(&[rule(Deny, &["0.0.0.0/0"])]);
        for (port, protocol) in [(1, Protocol::Tcp), (2, Protocol::Udp)] {
            let key = v4(CLIENT, port, VIP, 80, protocol);
            assert_eq!(rig.ingress(&frame(&rig, key, ACK)).verdict, SHOT);
            know(&rig, &key);
            assert_eq!(rig.ingress(&frame(&rig, key, ACK)).verdict, REDIRECT);
        }
        // A SYN would begin another one.
        assert_eq!(rig.ingress(&frame(&rig, v4(CLIENT, 1, VIP, 80, Protocol::Tcp), SYN)).verdict, SHOT);
    });
}

#[test]
fn rule_that_counts_drops_nothing_and_counts_syns_and_datagrams() {
    in_namespace(|| {
        let rig = rig(&[rule(Count, &["10.1.0.0/16"]), rule(Deny, &["10.1.9.0/24"])]);
        let [tcp, udp] = [Protocol::Tcp, Protocol::Udp].map(|protocol| v4(CLIENT, 1, VIP, 80, protocol));
        for (key, flags) in [(tcp, SYN), (tcp, ACK), (udp, 0)] {
            assert_eq!(rig.ingress(&frame(&rig, key, flags)).verdict, REDIRECT);
        }
        assert_eq!([0, 1].map(|service| counted(&rig, service)), [[1, 0, 0]; 2]);
        assert_eq!(rig.ingress(&frame(&rig, v4(OTHER, 1, VIP, 80, Protocol::Tcp), SYN)).verdict, SHOT);
        assert_eq!(counted(&rig, 0), [2, 1, 0]);
    });
}

#[test]
fn driver_drops_what_is_denied_and_tc_counts_the_rest() {
    in_namespace(|| {
        let rig = rig(&[rule(Count, &["0.0.0.0/0"]), rule(Deny, &["10.1.9.0/24"])]);
        let (passes, denied) = (v4(CLIENT, 1, VIP, 80, Protocol::Tcp), v4(OTHER, 1, VIP, 80, Protocol::Tcp));
        assert_eq!(rig.xdp(&frame(&rig, passes, SYN), true).verdict, XDP_PASS);
        assert_eq!(counted(&rig, 0), [0; 3]);
        let (run, events) = rig.counted(|| rig.xdp(&frame(&rig, denied, SYN), true));
        assert_eq!((run.verdict, events), (XDP_DROP, [("denied", 1)].into()));
        assert_eq!(counted(&rig, 0), [1, 1, 0]);
        know(&rig, &denied);
        assert_eq!(rig.xdp(&frame(&rig, denied, ACK), true).verdict, XDP_PASS);
    });
}

fn networks() -> impl Strategy<Value = Vec<Network>> {
    // 10.1.0.0/16 as [`client`] draws from, and networks around and beside it.
    let one = (any::<u16>(), 4u8..=32).prop_map(|(host, prefix)| {
        let address = u32::from_be_bytes([10, 1, 0, 0]) | u32::from(host);
        let address = address & u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
        Network { address: Address::from_ipv4(address.to_be_bytes()), prefix: 96 + prefix }
    });
    proptest::collection::vec(one, 0..12)
}

fn rules() -> impl Strategy<Value = Rules> {
    let action = prop_oneof![Just(Allow), Just(Deny), Just(Count)];
    proptest::collection::vec((action, networks()), 0..6)
}

/// Drawn rules and clients: both programs and software say the same.
#[test]
fn programs_and_software_say_the_same() {
    in_namespace(|| {
        let rig = Rig::new(1, |_| ());
        let clients = proptest::collection::vec(any::<u16>(), 1..24);
        let mut runner = TestRunner::new(Config::with_cases(200));
        let result = runner.run(&(rules(), clients), |(rules, clients)| {
            let list = AccessList::new(&rules);
            rig.heartbeat();
            rig.plane.configure(&with_rules(snapshot(), &rules)).unwrap();
            // Drawn clients, and both sides of every network's edges.
            let edges = rules.iter().flat_map(|(_, networks)| networks).flat_map(|network| {
                let first = u32::from_be_bytes(network.address.ipv4_octets());
                let last = first | u32::MAX.checked_shr(u32::from(network.prefix - 96)).unwrap_or(0);
                [first, first.wrapping_sub(1), last, last.wrapping_add(1)]
            });
            let drawn = clients.iter().map(|host| u32::from_be_bytes([10, 1, 0, 0]) | u32::from(*host));
            for client in drawn.chain(edges).map(u32::to_be_bytes) {
                let decision = list.decide(&Address::from_ipv4(client));
                let syn = frame(&rig, v4(client, 1, VIP, 80, Protocol::Tcp), SYN);
                let before = counted_all(&rig);
                let verdict = rig.ingress(&syn).verdict;
                prop_assert_eq!(verdict == SHOT, decision.denied.is_some(), "{:?}", client);
                let mut expected = before;
                for rule in [decision.denied, decision.counted].into_iter().flatten() {
                    expected[usize::from(rule)] += 1;
                }
                prop_assert_eq!(counted_all(&rig), expected);
                let in_driver = rig.xdp(&syn, true).verdict;
                prop_assert_eq!(in_driver == XDP_DROP, decision.denied.is_some(), "{:?} in a driver", client);
            }
            Ok(())
        });
        result.unwrap();
    });
}

fn counted_all(rig: &Rig) -> [u64; ACCESS_RULES_MAX] {
    rig.plane.access_counts(1).unwrap().try_into().unwrap()
}

/// While tries are exchanged, a client that all rules refuse never passes, and one that all allow always does.
#[test]
fn rules_are_exchanged_without_a_gap() {
    in_namespace(|| {
        let small = vec![rule(Allow, &["10.1.9.0/24"]), rule(Deny, &["0.0.0.0/0"])];
        let mut large = small.clone();
        large[1].1.extend((0..20_000u32).map(|number| Network {
            address: Address::from_ipv4((0x4000_0000 + number * 256).to_be_bytes()),
            prefix: 96 + 24,
        }));
        let rig = rig(&small);
        let (denied, allowed) = (v4(CLIENT, 1, VIP, 80, Protocol::Tcp), v4(OTHER, 1, VIP, 80, Protocol::Tcp));
        let (is_over, runs) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let verdicts = [denied, allowed].map(|key| rig.ingress(&frame(&rig, key, SYN)).verdict);
                    rig.heartbeat();
                    assert_eq!(verdicts, [SHOT, REDIRECT]);
                    runs.fetch_add(1, Ordering::Relaxed);
                }
            });
            for _ in 0..6 {
                for rules in [&large, &small] {
                    rig.plane.configure(&with_rules(snapshot(), rules)).unwrap();
                }
            }
            while runs.load(Ordering::Relaxed) < 100 {
                std::thread::yield_now();
            }
            is_over.store(true, Ordering::Relaxed);
        });
    });
}

#[test]
fn as_many_networks_as_there_may_be_are_found() {
    in_namespace(|| {
        let address = |number: u32| (number * 512).to_be_bytes();
        let networks = (0..NETWORKS_MAX as u32)
            .map(|number| Network { address: Address::from_ipv4(address(number)), prefix: 96 + 24 });
        let mut wanted = with_rules(snapshot(), &[(Deny, networks.collect())]);
        wanted.services[1..].iter_mut().for_each(|service| service.access = None);
        let rig = Rig::new(1, |_| ());
        let begun = Instant::now();
        rig.plane.configure(&wanted).unwrap();
        eprintln!("{NETWORKS_MAX} networks: {:?}", begun.elapsed());
        rig.heartbeat();
        for number in (0..NETWORKS_MAX as u32).step_by(997) {
            let [a, b, c, _] = address(number);
            let verdict = |client| rig.ingress(&frame(&rig, v4(client, 1, VIP, 80, Protocol::Tcp), SYN)).verdict;
            assert_eq!([verdict([a, b, c, 255]), verdict([a, b, c | 1, 0])], [SHOT, REDIRECT], "{number}");
        }
        rig.plane.configure(&snapshot()).unwrap();
        rig.heartbeat();
        assert_eq!(rig.ingress(&frame(&rig, v4([0, 0, 0, 9], 1, VIP, 80, Protocol::Tcp), SYN)).verdict, REDIRECT);
    });
}

#[test]
fn connection_set_up_by_the_programs_is_judged_when_it_begins() {
    in_namespace(|| {
        let mut plane = Rig::new(1, |options| options.set_up = Some(SetUpRoom { pending: 2048, workers: 1 }));
        assert!(plane.plane.allow_set_up(1).unwrap());
        let services = balanced(Algorithm::Maglev);
        let only_other = [rule(Deny, &["10.1.9.0/24"])];
        let rig = SetUpRig::over(plane, 1, with_rules(services.clone(), &only_other));
        let (key, denied) = (v4(CLIENT, 1, VIP, 80, Protocol::Tcp), v4(OTHER, 1, VIP, 80, Protocol::Tcp));
        assert_eq!(rig.send(&rig.client(denied, SYN, 0)), (Err(None), vec!["denied"]));
        let backend = rig.passes(&rig.client(key, SYN, 0)).destination;
        // What has begun goes on, though its client is refused from here on.
        rig.rig.plane.configure(&with_rules(services, &[rule(Deny, &["0.0.0.0/0"])])).unwrap();
        let back = FlowKey { source: backend, destination: key.source, protocol: key.protocol };
        rig.passes(&rig.client(back, SYN | ACK, 1001));
        assert_eq!(rig.passes(&rig.client(key, ACK, 1001)).destination, backend);
        assert_eq!(rig.installed(), 2);
        assert_eq!(rig.passes(&rig.client(key, ACK, 1001)).destination, backend);
        assert_eq!(rig.send(&rig.client(v4(CLIENT, 2, VIP, 80, Protocol::Tcp), SYN, 0)).1, ["denied"]);
    });
}

#[test]
fn denied_client_of_a_tls_service_gets_no_cookie() {
    in_namespace(|| {
        let rig = Rig::new(1, |_| ());
        let spliced = crate::cookie::spliced(UnknownPacket::Reset, true);
        rig.plane.configure(&with_rules(spliced, &[rule(Count, &["::/0"]), rule(Deny, &["10.1.9.0/24"])])).unwrap();
        let [allowed, denied] = [CLIENT, OTHER].map(|client| frame(&rig, v4(client, 1, VIP, 80, Protocol::Tcp), SYN));
        assert_eq!(rig.counted(|| rig.ingress(&denied).verdict), (SHOT, [("denied", 1)].into()));
        assert_eq!(rig.counted(|| rig.ingress(&allowed).verdict), (REDIRECT, [("cookie-sent", 1)].into()));
        assert_eq!(rig.xdp(&denied, true).verdict, XDP_DROP);
        // Nor an RST.
        let stray = frame(&rig, v4(OTHER, 1, VIP, 80, Protocol::Tcp), ACK);
        assert_eq!(rig.counted(|| rig.ingress(&stray).verdict), (SHOT, [("denied", 1)].into()));
        assert_eq!(counted(&rig, 0), [3, 3, 0]);
    });
}

#[test]
fn worker_judges_a_client_that_begins_anew() {
    in_namespace(|| {
        let mut plane = Rig::new(1, |options| options.set_up = Some(SetUpRoom { pending: 2048, workers: 1 }));
        assert!(plane.plane.allow_set_up(1).unwrap());
        let guarded = with_rules(balanced(Algorithm::Maglev), &[rule(Deny, &["10.1.9.0/24"])]);
        let rig = SetUpRig::over(plane, 1, guarded);
        let key = v4(CLIENT, 1, VIP, 80, Protocol::Tcp);
        let backend = rig.passes(&rig.client(key, SYN, 0)).destination;
        let back = FlowKey { source: backend, destination: key.source, protocol: key.protocol };
        rig.passes(&rig.client(back, SYN | ACK, 1001));
        rig.passes(&rig.client(key, ACK, 1001));
        assert_eq!(rig.send(&rig.client(key, SYN, 0)), (Err(Some(0)), vec!["rule-flags", "to-worker"]));
    });
}

//! Workers that track no connections: one situation at a time, and what holds of any flows.

use super::super::{Drop, StatelessMethod};
use super::many_workers::ManyWorkers;
use super::one_worker::{OneWorker, Way, client, complaint, end, last_hop, packet};
use crate::balance::Balancer;
use crate::config::{Algorithm, AllDown, BackendState, Service};
use crate::flow::{Endpoint, FlowKey, Protocol};
use crate::frame::{Arrival, Egress, Frame};
use crate::table::stateless::Stateless as Scatter;
use crate::table::{Entries, Hasher, Lookup};
use crate::time::Duration;
use crate::wire::tcp::{ACK, FIN, PSH, RST, SYN};
use crate::wire::{self, ErrorKind, Parsed};
use alloc::vec;
use alloc::vec::Vec;
use proptest::prelude::*;

fn hash() -> StatelessMethod {
    StatelessMethod::Hash(Hasher::new([5, 6, 7, 8]))
}

fn both() -> [(StatelessMethod, Algorithm); 2] {
    [(hash(), Algorithm::RoundRobin), (StatelessMethod::Maglev, Algorithm::Maglev)]
}

fn fixture(ipv6: bool, (stateless, algorithm): (StatelessMethod, Algorithm)) -> OneWorker {
    OneWorker::stateless(ipv6, stateless, |service| service.algorithm = algorithm)
}

/// Nothing is remembered, and nothing is asked of the engine.
fn remembers_nothing(fixture: &OneWorker) {
    assert_eq!(fixture.worker().connections().count(), 0);
    assert!(fixture.engine_keys().is_empty());
    assert_eq!(fixture.worker().statistics().connections_peak, 0);
}

#[test]
fn any_packet_finds_its_backend_and_the_answer_its_client() {
    for (ipv6, method) in [false, true].into_iter().flat_map(|ipv6| both().map(|method| (ipv6, method))) {
        let mut fixture = fixture(ipv6, method);
        let client = client(ipv6, 1, 40_000);
        let backend = fixture.client_sends(client, ACK | PSH).destination;
        assert!(fixture.backends().contains(&backend));
        for flags in [SYN, ACK, FIN | ACK, RST, SYN] {
            let out = fixture.client_sends(client, flags);
            assert_eq!((out.source, out.destination), (client, backend));
            let back = fixture.send(packet(backend, client, Way::Tcp(flags | ACK))).sent();
            assert_eq!((back.source, back.destination), (fixture.vip(), client));
        }
        let out = fixture.send(packet(client, end(ipv6, 1, 53), Way::Udp(100))).sent();
        let back = fixture.send(packet(out.destination, client, Way::Udp(50))).sent();
        assert_eq!((back.source, back.destination), (end(ipv6, 1, 53), client));
        let counted: u64 = fixture.worker().statistics().backends.iter().map(|b| b.software[0].packets).sum();
        assert_eq!(counted, 7);
        remembers_nothing(&fixture);
    }
}

#[test]
fn unmatched_packets_pass_to_the_kernel() {
    let mut fixture = fixture(false, (hash(), Algorithm::RoundRobin));
    let [other, backend] = [client(false, 7, 5000), fixture.backends()[0]];
    for stray in [packet(other, end(false, 1, 82), Way::Tcp(SYN)), packet(other, backend, Way::Tcp(ACK))] {
        let outcome = fixture.send(stray.clone());
        assert_eq!(outcome.frames[0].meta().egress, Egress::Kernel);
        assert_eq!(outcome.frames[0].data, stray.data, "untouched");
    }
    remembers_nothing(&fixture);
}

#[test]
fn without_a_backend_packets_are_refused() {
    for method in both() {
        let mut fixture = fixture(false, method);
        (0..12).for_each(|number| fixture.set_up(number, false));
        let client = client(false, 1, 40_000);
        assert!(fixture.client_sends(client, SYN).flags & RST != 0);
        assert!(fixture.client_sends(client, ACK).flags & RST != 0);
        let told = fixture.send(packet(client, end(false, 1, 53), Way::Udp(1))).frames.remove(0);
        assert!(matches!(wire::parse(told.bytes()), Ok(Parsed::IcmpError(e)) if e.kind == ErrorKind::Unreachable));
        assert_eq!(fixture.drops(Drop::NoBackend), 3);
        let refused: Vec<u64> = fixture.worker().statistics().services.iter().map(|s| s.refused).collect();
        assert_eq!(refused, [1, 0, 1], "what begins a connection counts");
    }
}

#[test]
fn a_service_all_of_whose_backends_are_down_may_use_all() {
    let mut fixture = OneWorker::stateless(false, hash(), |service| service.all_down = AllDown::UseAll);
    (0..12).for_each(|number| fixture.set_up(number, false));
    assert!(fixture.backends().contains(&fixture.client_sends(client(false, 1, 40_000), SYN).destination));
}

#[test]
fn stateless_draining_backend_answers_still_pass() {
    for (stateless, algorithm) in both() {
        let mut fixture = fixture(false, (stateless, algorithm));
        let client = client(false, 1, 40_000);
        let before = fixture.client_sends(client, SYN).destination;
        let mut services: Vec<Service> = fixture.snapshot().services.to_vec();
        let backends = services.iter_mut().flat_map(|service| service.backends.iter_mut());
        backends.filter(|b| b.endpoint == before).for_each(|b| b.state = BackendState::Draining);
        fixture.reconfigure(services, |_| {});
        assert_ne!(fixture.client_sends(client, ACK).destination, before);
        assert_eq!(fixture.send(packet(before, client, Way::Tcp(ACK))).sent().source, fixture.vip());
    }
}

#[test]
fn icmp_errors_reach_the_side_that_sent_the_packet() {
    for (ipv6, method) in [false, true].into_iter().flat_map(|ipv6| both().map(|method| (ipv6, method))) {
        let mut fixture = fixture(ipv6, method);
        let client = client(ipv6, 1, 40_000);
        let router = end(ipv6, 200, 0).address;
        let sent = fixture.send(packet(client, fixture.vip(), Way::Data(100))).frames.remove(0);
        let backend = sent.key().destination;
        let told = fixture.send_frame(complaint(&sent, router)).frames.remove(0);
        let Ok(Parsed::IcmpError(error)) = wire::parse(told.bytes()) else { panic!("no ICMP error") };
        assert_eq!((error.source, error.destination), (router, client.address));
        assert_eq!((error.quoted.source, error.quoted.destination), (client, fixture.vip()));
        // the backend itself complains: its address is not shown
        let told = fixture.send_frame(complaint(&sent, backend.address)).frames.remove(0);
        let Ok(Parsed::IcmpError(error)) = wire::parse(told.bytes()) else { panic!("no ICMP error") };
        assert_eq!((error.source, error.destination), (fixture.vip().address, client.address));
        // the client complains about what the backend sent
        let sent = fixture.send(packet(backend, client, Way::Data(100))).frames.remove(0);
        let told = fixture.send_frame(complaint(&sent, client.address)).frames.remove(0);
        let Ok(Parsed::IcmpError(error)) = wire::parse(told.bytes()) else { panic!("no ICMP error") };
        assert_eq!((error.source, error.destination), (client.address, backend.address));
        assert_eq!((error.quoted.source, error.quoted.destination), (backend, client));
        // an error about a packet that did not come by here
        let other = packet(end(ipv6, 201, 5), end(ipv6, 202, 6), Way::Data(10));
        assert_eq!(fixture.send_frame(complaint(&other, router)).frames[0].meta().egress, Egress::Kernel);
    }
}

#[test]
fn a_last_hop_and_a_packet_too_big_are_reported_to_who_sent_it() {
    for ipv6 in [false, true] {
        let mut fixture = fixture(ipv6, (hash(), Algorithm::RoundRobin));
        let client = client(ipv6, 1, 40_000);
        let data = packet(client, fixture.vip(), Way::Data(1400));
        let mut bounced = fixture.send(data.clone()).frames.remove(0);
        bounced.meta_mut().arrival = Arrival::too_big(1400);
        let mut tired = data.clone();
        last_hop(&mut tired);
        for (frame, quoted) in [(bounced, data.key()), (tired, data.key())] {
            let notice = fixture.send_frame(frame).frames.remove(0);
            let Ok(Parsed::IcmpError(error)) = wire::parse(notice.bytes()) else { panic!("no ICMP error") };
            assert_eq!((error.destination, error.quoted), (client.address, quoted));
        }
    }
}

#[test]
fn tracked_connections_are_given_up_with_their_rules() {
    let mut fixture = ManyWorkers::new(super::adoption::snapshot(false, |_| {}), 2, 64);
    let vip = fixture.snapshot.services[0].endpoint;
    for port in 0..8 {
        let client = client(false, 1, 1000 + port);
        let sent = fixture.packet(packet(client, vip, Way::Tcp(SYN)), true).remove(0);
        fixture.packet(packet(sent.key().destination, client, Way::Tcp(SYN | ACK)), true);
        fixture.packet(packet(client, vip, Way::Tcp(ACK)), true);
    }
    fixture.settle();
    assert_eq!(fixture.engine.len(), 16);
    fixture.stateless = Some(hash());
    let adopted = fixture.crash(fixture.as_before());
    assert_eq!((adopted.kept, adopted.without_service), (0, 8));
    assert!(fixture.engine.is_empty());
    assert!(fixture.workers.iter().all(|worker| worker.connections().count() == 0));
    assert_eq!(fixture.packet(packet(client(false, 1, 1000), vip, Way::Tcp(ACK)), true).len(), 1);
}

struct Nothing;
impl Entries<FlowKey> for Nothing {
    fn is(&self, _: u32, _: &FlowKey) -> bool {
        unreachable!("a stateless worker compares no keys")
    }
}

/// The destinations of these flows' packets.
fn destinations(fixture: &mut OneWorker, clients: &[Endpoint], flags: u8) -> Vec<Endpoint> {
    clients.iter().map(|client| fixture.client_sends(*client, flags).destination).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 64 }))]

    /// While the backends that may be chosen are the same, a connection has one backend, in every worker and process:
    /// the one that the method's own look-up names.
    #[test]
    fn a_flow_has_the_backend_that_the_method_names(
        ipv6: bool,
        is_maglev: bool,
        clients in prop::collection::vec((any::<u8>(), any::<u16>()), 1..40),
        down in prop::collection::btree_set(0u16..4, 0..3),
        flags in prop::sample::select(vec![ACK, PSH | ACK, FIN | ACK, RST, SYN]),
    ) {
        let clients: Vec<Endpoint> = clients.into_iter().map(|(host, port)| client(ipv6, host, port)).collect();
        let method = both()[usize::from(is_maglev)].clone();
        let (mut one, mut other) = (fixture(ipv6, method.clone()), fixture(ipv6, method));
        let all_up = destinations(&mut one, &clients, SYN);
        for &number in &down {
            one.set_up(number, false);
            other.set_up(number, false);
        }
        let now = destinations(&mut one, &clients, SYN);
        prop_assert_eq!(&now, &destinations(&mut one, &clients, flags));
        prop_assert_eq!(&now, &destinations(&mut other, &clients, flags));
        let backends = one.backends();
        let open: Vec<Endpoint> = (0..4).filter(|n| !down.contains(n)).map(|n| backends[usize::from(n)]).collect();
        let service = one.snapshot().services[0].clone();
        let maglev = Balancer::new(&service, Default::default(), 0, 1, 1);
        for ((client, now), before) in clients.iter().zip(&now).zip(&all_up) {
            let key = FlowKey { source: *client, destination: one.vip(), protocol: Protocol::Tcp };
            if is_maglev {
                prop_assert_eq!(backends[usize::from(maglev.pick_up(&key).unwrap())], *before);
                prop_assert!(open.contains(now) && (!open.contains(before) || now == before), "others stay");
            } else {
                let place = Scatter::new(open.len() as u32, Hasher::new([5, 6, 7, 8])).find(&key, &Nothing).unwrap();
                prop_assert_eq!(open[place as usize], *now);
            }
        }
        (0..4).for_each(|number| one.set_up(number, true));
        prop_assert_eq!(&all_up, &destinations(&mut one, &clients, flags));
        remembers_nothing(&one);
    }
}

#[test]
fn time_passes_without_anything_to_do() {
    let mut fixture = fixture(false, (hash(), Algorithm::RoundRobin));
    fixture.client_sends(client(false, 1, 40_000), SYN);
    fixture.end_backend(0, super::super::Which::All);
    fixture.wait(Duration::from_secs(10));
    assert_eq!(fixture.worker().poll_timeout(fixture.now), None);
}

//! Access rules, in software.

use super::one_worker::{OneWorker, Way, client, end, packet};
use crate::access::AccessAction::{Allow, Count, Deny};
use crate::access::{AccessAction, AccessList};
use crate::config::UnknownPacket;
use crate::flow::Endpoint;
use crate::l4::connection::State;
use crate::l7::config::Network;
use crate::wire::tcp::{ACK, FIN, PSH, RST, SYN};
use crate::worker::Drop;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

fn only(client: Endpoint) -> Vec<Network> {
    vec![Network { address: client.address, prefix: 128 }]
}

fn all() -> Vec<Network> {
    vec![Network { address: Default::default(), prefix: 0 }]
}

/// A worker all of whose services have these rules.
fn with_rules(ipv6: bool, rules: &[(AccessAction, Vec<Network>)]) -> OneWorker {
    let list = Arc::new(AccessList::new(rules));
    OneWorker::new(ipv6, |service| service.access = Some(Arc::clone(&list)))
}

fn set_rules(fixture: &mut OneWorker, rules: &[(AccessAction, Vec<Network>)]) {
    let list = Arc::new(AccessList::new(rules));
    let mut services = fixture.snapshot().services.to_vec();
    services.iter_mut().for_each(|service| service.access = Some(Arc::clone(&list)));
    fixture.reconfigure(services, |_| {});
}

/// What each rule of the service has counted.
fn counted(fixture: &OneWorker, service: usize) -> [u64; 3] {
    let counts = &fixture.worker().statistics().services[service].access;
    [counts[0], counts[1], counts[2]]
}

#[test]
fn denied_client_gets_no_connection_and_no_answer() {
    for ipv6 in [false, true] {
        let (good, bad) = (client(ipv6, 1, 40_000), client(ipv6, 2, 40_000));
        let mut fixture = with_rules(ipv6, &[(Allow, only(good)), (Deny, all())]);
        fixture.open(good);
        assert!(fixture.client_tries(bad, SYN).is_none());
        assert_eq!((fixture.drops(Drop::Denied), counted(&fixture, 0)), (1, [0, 1, 0]));
        assert_eq!(fixture.only().client, good);
    }
}

#[test]
fn datagrams_of_a_denied_client_are_dropped() {
    let (good, bad, vip) = (client(false, 1, 40_000), client(false, 2, 40_000), end(false, 1, 53));
    let mut fixture = with_rules(false, &[(Deny, only(bad))]);
    assert!(fixture.send(packet(bad, vip, Way::Udp(20))).frames.is_empty());
    assert_eq!(fixture.send(packet(good, vip, Way::Udp(20))).frames.len(), 1);
    assert_eq!((fixture.drops(Drop::Denied), fixture.only().client), (1, good));
}

#[test]
fn stray_packets_of_a_denied_client_are_dropped() {
    for unknown in [UnknownPacket::Drop, UnknownPacket::Reset, UnknownPacket::PickUp] {
        let bad = client(false, 1, 40_000);
        let list = Arc::new(AccessList::new(&[(Count, all()), (Deny, only(bad))]));
        let mut fixture = OneWorker::new(false, |service| {
            service.unknown = unknown;
            service.access = Some(Arc::clone(&list));
        });
        assert!(fixture.client_tries(bad, ACK | PSH).is_none());
        assert_eq!((fixture.drops(Drop::Denied), counted(&fixture, 0)), (1, [0, 1, 0]));
    }
}

#[test]
fn rule_that_counts_lets_connections_begin() {
    let (one, other) = (client(false, 1, 40_000), client(false, 2, 40_000));
    let mut fixture = with_rules(false, &[(Count, all()), (Deny, only(other))]);
    fixture.open(one);
    assert!(fixture.client_tries(other, SYN).is_none());
    assert_eq!(counted(&fixture, 0), [2, 1, 0], "once for each SYN");
}

#[test]
fn connection_outlives_the_rule_that_refuses_its_client() {
    let client = client(false, 1, 40_000);
    let mut fixture = OneWorker::new(false, |_| {});
    let backend = fixture.open(client);
    set_rules(&mut fixture, &[(Deny, all())]);
    assert_eq!(fixture.client_sends(client, ACK | PSH).destination, backend);
    assert_eq!(fixture.only().state, State::Established);
    // It is over, and does not begin anew between the same ends.
    fixture.client_sends(client, FIN | ACK);
    fixture.send(packet(backend, client, Way::Tcp(FIN | ACK)));
    assert!(fixture.client_tries(client, SYN).is_none());
    assert_eq!(fixture.drops(Drop::Denied), 1);
    set_rules(&mut fixture, &[(Allow, all())]);
    assert_eq!(fixture.client_sends(client, SYN).flags & RST, 0);
    assert_eq!(counted(&fixture, 0), [1, 0, 0], "counters go on by the rule's number");
}

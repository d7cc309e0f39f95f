//! Limits of clients' connections.

use super::one_worker::{OneWorker, Way, client, end, packet};
use crate::config::Service;
use crate::engine::{NotSetUp, set_up_services};
use crate::flow::Endpoint;
use crate::l4::connection::State;
use crate::limit::{Limit, LimitAction, LimitKind, Rate};
use crate::time::Duration;
use crate::wire::tcp::{ACK, FIN, RST, SYN};
use crate::worker::Drop;
use alloc::boxed::Box;

fn limit(kind: LimitKind) -> Limit {
    let (ipv4_prefix, ipv6_prefix) = (32, 64);
    Limit { id: 7, kind, ipv4_prefix, ipv6_prefix, header: None, action: LimitAction::Refuse, is_dry_run: false }
}

fn limited(ipv6: bool, limit: Limit) -> OneWorker {
    OneWorker::new(ipv6, |service: &mut Service| service.limits = Box::from([limit.clone()]))
}

/// Whether the client gets a connection, rather than RST.
fn connects(fixture: &mut OneWorker, client: Endpoint) -> bool {
    let sent = fixture.client_sends(client, SYN);
    let is_refused = sent.flags & RST != 0;
    assert!(!is_refused || sent.destination == client);
    !is_refused
}

fn close(fixture: &mut OneWorker, client: Endpoint, backend: Endpoint) {
    fixture.client_sends(client, FIN | ACK);
    fixture.send(packet(backend, client, Way::Tcp(FIN | ACK)));
}

#[test]
fn connections_at_a_time_are_refused_beyond_the_limit() {
    for ipv6 in [false, true] {
        let mut fixture = limited(ipv6, limit(LimitKind::Concurrent(2)));
        let port = |port| client(ipv6, 1, port);
        let backend = fixture.open(port(1));
        fixture.open(port(2));
        assert!(!connects(&mut fixture, port(3)));
        assert!(connects(&mut fixture, client(ipv6, 200, 3)) || ipv6, "another client");
        close(&mut fixture, port(1), backend);
        assert!(connects(&mut fixture, port(3)), "one that is over does not count");
        assert!(!connects(&mut fixture, port(4)));
        assert_eq!(fixture.drops(Drop::Limited), 2 + u64::from(ipv6));
    }
}

#[test]
fn next_process_counts_the_connections_that_it_adopts() {
    let mut fixture = limited(false, limit(LimitKind::Concurrent(3)));
    let port = |port| client(false, 1, port);
    let backend = fixture.open(port(1));
    for number in 2..4 {
        fixture.open(port(number));
    }
    for _ in 0..2 {
        fixture.adopt();
        assert_eq!(fixture.worker().connections().count(), 3);
        assert!(!connects(&mut fixture, port(9)));
    }
    close(&mut fixture, port(1), backend);
    assert_eq!(fixture.connection(port(1)).state, State::Closed);
    fixture.adopt();
    assert!(connects(&mut fixture, port(9)) && !connects(&mut fixture, port(10)));
}

#[test]
fn new_limits_by_reload_count_the_connections_there_are() {
    let mut fixture = OneWorker::new(false, |_| {});
    let port = |port| client(false, 1, port);
    let backends = [1, 2].map(|number| fixture.open(port(number)));
    for (id, next) in [(7, 10), (7, 20), (8, 30)] {
        let mut services = fixture.snapshot().services.to_vec();
        let limits: Box<[Limit]> = Box::from([Limit { id, ..limit(LimitKind::Concurrent(3)) }]);
        services.iter_mut().for_each(|service| service.limits = limits.clone());
        fixture.reconfigure(services, |_| {});
        let backend = fixture.open(port(next));
        assert!(!connects(&mut fixture, port(next + 1)), "limit {id}: two connections were there, and one has begun");
        close(&mut fixture, port(next), backend);
    }
    close(&mut fixture, port(1), backends[0]);
    for number in [40, 41] {
        fixture.open(port(number));
    }
    assert!(!connects(&mut fixture, port(42)), "one that has ended counts no more, and was counted once");
}

#[test]
fn connections_within_a_time_have_a_rate() {
    let rate = Rate::new(2, Duration::from_secs(10), 2).unwrap();
    let mut fixture = limited(false, limit(LimitKind::Connections(rate)));
    let port = |port| client(false, 1, port);
    fixture.open(port(1));
    fixture.open(port(2));
    assert!(!connects(&mut fixture, port(3)));
    fixture.wait(Duration::from_secs(5));
    assert!(connects(&mut fixture, port(3)) && !connects(&mut fixture, port(4)));
    let counts = fixture.worker().statistics().services[0].limits[0];
    assert_eq!((counts.admitted, counts.refused), (3, 2));
}

#[test]
fn connection_that_begins_anew_between_the_same_ends_counts() {
    let rate = Rate::new(2, Duration::from_secs(3600), 2).unwrap();
    let mut fixture = limited(false, limit(LimitKind::Connections(rate)));
    let one = client(false, 1, 1);
    for _ in 0..2 {
        let backend = fixture.open(one);
        close(&mut fixture, one, backend);
    }
    assert!(!connects(&mut fixture, one));
}

#[test]
fn datagrams_beyond_a_limit_are_dropped() {
    let silent = Limit { action: LimitAction::Drop, ..limit(LimitKind::Concurrent(1)) };
    let mut fixture = limited(false, silent);
    let vip = end(false, 1, 53);
    let mut ask = |port| fixture.send(packet(client(false, 1, port), vip, Way::Udp(20))).frames.len();
    assert_eq!([ask(1), ask(2), ask(1)], [1, 0, 1]);
    assert_eq!(fixture.drops(Drop::Limited), 1);
}

#[test]
fn workers_set_up_what_is_limited() {
    let fixture = limited(false, limit(LimitKind::Concurrent(1)));
    assert!(set_up_services(fixture.snapshot()).iter().all(|it| matches!(it, Err(NotSetUp::Limits | NotSetUp::Kind))));
}

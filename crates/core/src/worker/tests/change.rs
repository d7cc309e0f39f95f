//! A worker that gets another configuration while it works.

use super::one_worker::{OneWorker, Way, client, end, packet};
use crate::config::{Algorithm, BackendState, Forwarding, Service, ServiceState, Snapshot};
use crate::flow::{Direction, Endpoint};
use crate::frame::{Egress, Frame};
use crate::l4::connection::{Connection, Flags, State};
use crate::offload::OffloadState;
use crate::time::Duration;
use crate::wire::tcp::{ACK, FIN, PSH, RST, SYN};
use crate::worker::Which;
use alloc::vec::Vec;

fn services(fixture: &OneWorker) -> Vec<Service> {
    fixture.snapshot().services.to_vec()
}

/// The number of the first service's backend at `end`.
fn number(fixture: &OneWorker, end: Endpoint) -> u16 {
    fixture.snapshot().services[0].backends.iter().find(|backend| backend.endpoint == end).unwrap().number
}

fn set_state(fixture: &mut OneWorker, number: u16, state: BackendState) {
    let mut services = services(fixture);
    let backend = services.iter_mut().flat_map(|s| &mut s.backends).find(|backend| backend.number == number);
    backend.unwrap().state = state;
    fixture.reconfigure(services, |_| {});
}

#[test]
fn connections_go_on_whatever_becomes_of_their_service() {
    for state in [ServiceState::Active, ServiceState::Removed] {
        for forwarding in [Forwarding::Nat, Forwarding::FullNat] {
            let mut fixture = OneWorker::new(false, |s| s.forwarding = forwarding);
            let client = client(false, 1, 40_000);
            let backend = fixture.open(client);
            let source = fixture.only().source;
            let mut services = services(&fixture);
            services[0].state = state;
            services[0].algorithm = Algorithm::LeastConnections;
            for backend in &mut services[0].backends {
                backend.state = BackendState::Removed;
            }
            fixture.reconfigure(services, |_| {});
            assert_eq!(fixture.client_sends(client, ACK | PSH).destination, backend);
            assert_eq!(fixture.send(packet(backend, source, Way::Tcp(ACK))).sent().destination, client);
            assert_eq!(fixture.only().pair.state(), OffloadState::Offloaded);
            fixture.client_sends(client, FIN | ACK);
            fixture.send(packet(backend, source, Way::Tcp(FIN | ACK)));
            fixture.wait(Duration::from_secs(20));
            assert_eq!((fixture.worker().connections().count(), fixture.loads()), (0, 0));
        }
    }
}

#[test]
fn new_flows_to_a_removed_service_are_the_kernels() {
    let mut fixture = OneWorker::new(false, |_| {});
    let mut services = services(&fixture);
    services[0].state = ServiceState::Removed;
    services[2] = Service::vacant();
    fixture.reconfigure(services, |_| {});
    for flags in [SYN, ACK] {
        let outcome = fixture.send(packet(client(false, 1, 1), end(false, 1, 80), Way::Tcp(flags)));
        assert_eq!(outcome.frames[0].meta().egress, Egress::Kernel);
    }
    let outcome = fixture.send(packet(client(false, 1, 1), end(false, 1, 53), Way::Udp(9)));
    assert_eq!(outcome.frames[0].meta().egress, Egress::Kernel);
    assert!(fixture.worker().connections().all(|connection| connection.state == State::Pass));
}

#[test]
fn draining_backend_gets_no_new_connections() {
    let mut fixture = OneWorker::new(false, |_| {});
    let first = client(false, 1, 40_000);
    let backend = fixture.open(first);
    let draining = number(&fixture, backend);
    set_state(&mut fixture, draining, BackendState::Draining);
    for n in 2..40 {
        assert_ne!(fixture.open(client(false, n, 1)), backend);
    }
    assert_eq!(fixture.client_sends(first, ACK).destination, backend);
    fixture.client_sends(first, FIN | ACK);
    fixture.send(packet(backend, first, Way::Tcp(FIN | ACK)));
    assert_ne!(fixture.client_sends(first, SYN).destination, backend, "and the SYN is not lost");
}

#[test]
fn a_backend_that_is_down_is_not_restarted_on_either() {
    let mut fixture = OneWorker::new(false, |_| {});
    let first = client(false, 1, 40_000);
    let backend = fixture.open(first);
    let down = number(&fixture, backend);
    fixture.set_up(down, false);
    assert_eq!(fixture.client_sends(first, ACK).destination, backend, "what it has goes on");
    fixture.client_sends(first, RST);
    assert_ne!(fixture.client_sends(first, SYN).destination, backend);
    fixture.set_up(down, true);
    let again = (2..40).any(|n| fixture.open(client(false, n, 1)) == backend);
    assert!(again, "it is back");
}

#[test]
fn a_disabled_backend_loses_what_it_has_and_only_that() {
    let mut fixture = OneWorker::new(false, |_| {});
    for n in 0..200 {
        fixture.open(client(false, n, 1000));
    }
    let disabled = number(&fixture, fixture.backends()[1]);
    set_state(&mut fixture, disabled, BackendState::Disabled);
    fixture.wait(Duration::from_secs(1));
    assert_eq!(fixture.worker().statistics().ended, 50);
    let (severed, others): (Vec<&Connection>, Vec<&Connection>) =
        fixture.worker().connections().partition(|connection| connection.flags.has(Flags::SEVERED));
    assert_eq!((severed.len(), others.len()), (50, 150));
    assert!(others.iter().all(|connection| connection.backend_number != disabled));
    assert_eq!(fixture.rules_known(), fixture.engine_keys());
    // Whether they say anything or not.
    fixture.wait(Duration::from_secs(125));
    assert_eq!(fixture.worker().connections().count(), 150);
    assert_eq!(fixture.loads(), 150);
}

#[test]
fn the_scan_does_a_bounded_part_at_a_time() {
    let mut fixture = OneWorker::with_capacity(false, 4096, |s| s.backends = s.backends[..1].into());
    for n in 0..3000u16 {
        fixture.client_sends(client(false, 1, 1000 + n), SYN);
    }
    let mut last = 0;
    fixture.reconfigure(services(&fixture), |update| update.ended.push((0, Which::All)));
    let mut turns = 0;
    while let Some(due) = fixture.worker().poll_timeout(fixture.now).filter(|&due| due <= fixture.now) {
        assert!(due <= fixture.now);
        fixture.turn();
        let ended = fixture.worker().statistics().ended;
        assert!(ended - last <= 64, "{} at once", ended - last);
        last = ended;
        turns += 1;
        assert!(turns < 100);
    }
    assert_eq!((last, fixture.worker().connections().count()), (3000, 0));
}

#[test]
fn a_round_that_begins_behind_new_connections_misses_none() {
    let mut fixture = OneWorker::new(false, |s| s.backends = s.backends[..1].into());
    for n in 0..2 {
        fixture.open(client(false, n, 1));
    }
    fixture.end_backend(99, Which::All);
    fixture.turn();
    // the scan stands at position 2, which is used by the time the next begins
    fixture.end_backend(0, Which::All);
    fixture.now = fixture.now + Duration::from_millis(1);
    fixture.open(client(false, 2, 1));
    fixture.wait(Duration::from_secs(125));
    assert_eq!(fixture.only().client, client(false, 2, 1));
}

#[test]
fn what_comes_after_the_order_to_end_stays() {
    let mut fixture = OneWorker::new(false, |s| s.backends = s.backends[..1].into());
    fixture.open(client(false, 1, 1));
    fixture.end_backend(0, Which::All);
    fixture.now = fixture.now + Duration::from_millis(1);
    fixture.open(client(false, 2, 1));
    fixture.wait(Duration::from_secs(125));
    assert_eq!(fixture.only().client, client(false, 2, 1));
}

#[test]
fn what_the_engine_owes_answers_about_is_ended_later() {
    let mut fixture = OneWorker::new(false, |s| s.backends = s.backends[..1].into());
    let client = client(false, 1, 1);
    let vip = fixture.vip();
    let out = fixture.client_sends(client, SYN).destination;
    fixture.batch(alloc::vec![packet(out, client, Way::Tcp(SYN | ACK)), packet(client, vip, Way::Tcp(ACK))]);
    assert_eq!(fixture.only().pair.state(), OffloadState::Installing);
    fixture.end_backend(0, Which::All);
    fixture.turn();
    assert_eq!(fixture.worker().statistics().ended, 0);
    let due = fixture.worker().poll_timeout(fixture.now).unwrap();
    assert!(due > fixture.now, "it is not tried again at once");
    fixture.wait(Duration::from_secs(1));
    assert_eq!(fixture.worker().statistics().ended, 1);
    assert_eq!(fixture.engine_keys().len(), 0);
    fixture.wait(Duration::from_secs(125));
    assert_eq!(fixture.worker().connections().count(), 0);
}

#[test]
fn down_backend_moves_udp_and_keeps_tcp() {
    let mut fixture = OneWorker::new(false, |_| {});
    let (speaker, dns) = (client(false, 1, 40_000), end(false, 1, 53));
    let backend = fixture.send(packet(speaker, dns, Way::Udp(20))).sent().destination;
    let tcp: Vec<Endpoint> = (0..8).map(|n| fixture.open(client(false, 9, n + 1))).collect();
    let index = fixture.backends().iter().position(|end| *end == backend).unwrap() as u16;
    fixture.set_up(8 + index, false);
    fixture.set_up(index, false);
    fixture.wait(Duration::from_millis(200));
    let other = fixture.send(packet(speaker, dns, Way::Udp(20))).sent().destination;
    assert_ne!(other, backend);
    for (n, backend) in tcp.iter().enumerate() {
        assert_eq!(fixture.client_sends(client(false, 9, n as u16 + 1), ACK).destination, *backend);
    }
    assert_eq!(fixture.worker().statistics().ended, 1);
}

#[test]
fn counters_go_on_unless_their_number_is_reused() {
    let mut fixture = OneWorker::new(false, |_| {});
    for n in 0..40 {
        fixture.open(client(false, n, 1));
    }
    let before = fixture.worker().statistics().clone();
    let mut services = services(&fixture);
    let mut added = services[0].backends[0].clone();
    added.number = 12;
    added.endpoint = end(false, 110, 8000);
    let mut backends = services[0].backends.to_vec();
    backends.push(added);
    services[0].backends = backends.into();
    services.push(Service { endpoint: end(false, 2, 80), backends: [].into(), ..services[0].clone() });
    fixture.reconfigure(services, |update| {
        update.fresh.extend([3, 12, 9999]);
        update.fresh_services.extend([1, 3, 9999]);
    });
    let after = fixture.worker().statistics();
    assert_eq!((after.backends.len(), after.services.len()), (13, 4));
    assert_eq!(after.services[0].established, before.services[0].established);
    assert_eq!(after.backends[0].connections, before.backends[0].connections);
    assert_eq!((after.backends[3].connections, after.backends[3].connections_now), (0, 10));
    let chosen = (50..60).filter(|&n| fixture.open(client(false, n, 1)) == end(false, 110, 8000)).count();
    assert_eq!(chosen, 2, "the added backend has its turns");
    assert_eq!(fixture.worker().statistics().backends[12].connections, 2);
}

#[test]
fn ports_in_use_stay_so_with_the_same_pool_and_with_another() {
    for port_last in [20_999, 20_500] {
        let mut fixture = OneWorker::new(false, |s| s.forwarding = Forwarding::FullNat);
        fixture.shrink_pool(40);
        let sources: Vec<Endpoint> = (0..10)
            .map(|n| {
                fixture.open(client(false, n, 1));
                fixture.connection(client(false, n, 1)).source
            })
            .collect();
        let mut pool = fixture.snapshot().pool.clone();
        if port_last == 20_500 {
            pool.port_last += 3;
        }
        let snapshot = Snapshot::new(fixture.snapshot().services.clone(), pool.clone());
        fixture.reload(snapshot, |_| {});
        let room = usize::from(pool.port_last - pool.port_first) + 1;
        for n in 10..room as u8 {
            fixture.open(client(false, n, 1));
            let source = fixture.connection(client(false, n, 1)).source;
            assert!(!sources.contains(&source), "{source} is in use");
        }
        assert!(fixture.client_sends(client(false, 200, 1), SYN).flags & RST != 0, "there is none left");
        assert_eq!(fixture.worker().connections().count(), room);
    }
}

#[test]
fn the_round_of_an_unchanged_service_goes_on() {
    let (mut fixture, mut undisturbed) = (OneWorker::new(false, |_| {}), OneWorker::new(false, |_| {}));
    for n in 0..10 {
        assert_eq!(fixture.open(client(false, n, 1)), undisturbed.open(client(false, n, 1)));
        let mut services = services(&fixture);
        services[1].backends[0].weight += 1;
        fixture.reconfigure(services, |_| {});
    }
}

#[test]
fn shorter_timeouts_hold_from_the_next_judgment() {
    let mut fixture = OneWorker::new(false, |s| s.timeouts.udp_new = Duration::from_secs(30));
    fixture.send(packet(client(false, 1, 1), end(false, 1, 53), Way::Udp(20)));
    let mut services = services(&fixture);
    services[2].timeouts.udp_new = Duration::from_secs(60);
    fixture.reconfigure(services, |_| {});
    fixture.wait(Duration::from_secs(45));
    assert_eq!(fixture.worker().connections().count(), 1, "and longer ones as well");
    fixture.wait(Duration::from_secs(30));
    assert_eq!(fixture.worker().connections().count(), 0);
    assert_eq!(fixture.worker().statistics().backends[8].software[Direction::FromClient as usize].packets, 1);
}

//! A worker that gets another configuration while it works.

use super::stage::{Stage, Way, client, end, packet};
use crate::config::{Algorithm, BackendState, Forwarding, Service, ServiceState, Snapshot};
use crate::flow::{Direction, Endpoint};
use crate::frame::{Egress, Frame};
use crate::l4::connection::{Connection, Flags, State};
use crate::offload::OffloadState;
use crate::time::Duration;
use crate::wire::tcp::{ACK, FIN, PSH, RST, SYN};
use crate::worker::Which;
use alloc::vec::Vec;

fn services(stage: &Stage) -> Vec<Service> {
    stage.snapshot().services.to_vec()
}

/// The number of the first service's backend at `end`.
fn number(stage: &Stage, end: Endpoint) -> u16 {
    stage.snapshot().services[0].backends.iter().find(|backend| backend.endpoint == end).unwrap().number
}

fn set_state(stage: &mut Stage, number: u16, state: BackendState) {
    let mut services = services(stage);
    let backend = services.iter_mut().flat_map(|s| &mut s.backends).find(|backend| backend.number == number);
    backend.unwrap().state = state;
    stage.reconfigure(services, |_| {});
}

#[test]
fn connections_go_on_whatever_becomes_of_their_service() {
    for state in [ServiceState::Active, ServiceState::Removed] {
        for forwarding in [Forwarding::Nat, Forwarding::FullNat] {
            let mut stage = Stage::new(false, |s| s.forwarding = forwarding);
            let client = client(false, 1, 40_000);
            let backend = stage.open(client);
            let source = stage.only().source;
            let mut services = services(&stage);
            services[0].state = state;
            services[0].algorithm = Algorithm::LeastConnections;
            for backend in &mut services[0].backends {
                backend.state = BackendState::Removed;
            }
            stage.reconfigure(services, |_| {});
            assert_eq!(stage.client_sends(client, ACK | PSH).destination, backend);
            assert_eq!(stage.send(packet(backend, source, Way::Tcp(ACK))).sent().destination, client);
            assert_eq!(stage.only().pair.state(), OffloadState::Offloaded);
            stage.client_sends(client, FIN | ACK);
            stage.send(packet(backend, source, Way::Tcp(FIN | ACK)));
            stage.wait(Duration::from_secs(20));
            assert_eq!((stage.worker().connections().count(), stage.loads()), (0, 0));
        }
    }
}

#[test]
fn new_flows_to_a_removed_service_are_the_kernels() {
    let mut stage = Stage::new(false, |_| {});
    let mut services = services(&stage);
    services[0].state = ServiceState::Removed;
    services[2] = Service::vacant();
    stage.reconfigure(services, |_| {});
    for flags in [SYN, ACK] {
        let outcome = stage.send(packet(client(false, 1, 1), end(false, 1, 80), Way::Tcp(flags)));
        assert_eq!(outcome.frames[0].meta().egress, Egress::Kernel);
    }
    let outcome = stage.send(packet(client(false, 1, 1), end(false, 1, 53), Way::Udp(9)));
    assert_eq!(outcome.frames[0].meta().egress, Egress::Kernel);
    assert!(stage.worker().connections().all(|connection| connection.state == State::Pass));
}

#[test]
fn draining_backend_gets_no_new_connections() {
    let mut stage = Stage::new(false, |_| {});
    let first = client(false, 1, 40_000);
    let backend = stage.open(first);
    let draining = number(&stage, backend);
    set_state(&mut stage, draining, BackendState::Draining);
    for n in 2..40 {
        assert_ne!(stage.open(client(false, n, 1)), backend);
    }
    assert_eq!(stage.client_sends(first, ACK).destination, backend);
    stage.client_sends(first, FIN | ACK);
    stage.send(packet(backend, first, Way::Tcp(FIN | ACK)));
    assert_ne!(stage.client_sends(first, SYN).destination, backend, "and the SYN is not lost");
}

#[test]
fn a_backend_that_is_down_is_not_restarted_on_either() {
    let mut stage = Stage::new(false, |_| {});
    let first = client(false, 1, 40_000);
    let backend = stage.open(first);
    let down = number(&stage, backend);
    stage.set_up(down, false);
    assert_eq!(stage.client_sends(first, ACK).destination, backend, "what it has goes on");
    stage.client_sends(first, RST);
    assert_ne!(stage.client_sends(first, SYN).destination, backend);
    stage.set_up(down, true);
    let again = (2..40).any(|n| stage.open(client(false, n, 1)) == backend);
    assert!(again, "it is back");
}

#[test]
fn a_disabled_backend_loses_what_it_has_and_only_that() {
    let mut stage = Stage::new(false, |_| {});
    for n in 0..200 {
        stage.open(client(false, n, 1000));
    }
    let disabled = number(&stage, stage.backends()[1]);
    set_state(&mut stage, disabled, BackendState::Disabled);
    stage.wait(Duration::from_secs(1));
    assert_eq!(stage.worker().statistics().ended, 50);
    let (severed, others): (Vec<&Connection>, Vec<&Connection>) =
        stage.worker().connections().partition(|connection| connection.flags.has(Flags::SEVERED));
    assert_eq!((severed.len(), others.len()), (50, 150));
    assert!(others.iter().all(|connection| connection.backend_number != disabled));
    assert_eq!(stage.rules_known(), stage.engine_keys());
    // Whether they say anything or not.
    stage.wait(Duration::from_secs(125));
    assert_eq!(stage.worker().connections().count(), 150);
    assert_eq!(stage.loads(), 150);
}

#[test]
fn the_scan_does_a_bounded_part_at_a_time() {
    let mut stage = Stage::with_capacity(false, 4096, |s| s.backends = s.backends[..1].into());
    for n in 0..3000u16 {
        stage.client_sends(client(false, 1, 1000 + n), SYN);
    }
    let mut last = 0;
    stage.reconfigure(services(&stage), |update| update.ended.push((0, Which::All)));
    let mut turns = 0;
    while let Some(due) = stage.worker().poll_timeout(stage.now).filter(|&due| due <= stage.now) {
        assert!(due <= stage.now);
        stage.turn();
        let ended = stage.worker().statistics().ended;
        assert!(ended - last <= 64, "{} at once", ended - last);
        last = ended;
        turns += 1;
        assert!(turns < 100);
    }
    assert_eq!((last, stage.worker().connections().count()), (3000, 0));
}

#[test]
fn a_round_that_begins_behind_new_connections_misses_none() {
    let mut stage = Stage::new(false, |s| s.backends = s.backends[..1].into());
    for n in 0..2 {
        stage.open(client(false, n, 1));
    }
    stage.end_backend(99, Which::All);
    stage.turn();
    // the scan stands at position 2, which is used by the time the next begins
    stage.end_backend(0, Which::All);
    stage.now = stage.now + Duration::from_millis(1);
    stage.open(client(false, 2, 1));
    stage.wait(Duration::from_secs(125));
    assert_eq!(stage.only().client, client(false, 2, 1));
}

#[test]
fn what_comes_after_the_order_to_end_stays() {
    let mut stage = Stage::new(false, |s| s.backends = s.backends[..1].into());
    stage.open(client(false, 1, 1));
    stage.end_backend(0, Which::All);
    stage.now = stage.now + Duration::from_millis(1);
    stage.open(client(false, 2, 1));
    stage.wait(Duration::from_secs(125));
    assert_eq!(stage.only().client, client(false, 2, 1));
}

#[test]
fn what_the_engine_owes_answers_about_is_ended_later() {
    let mut stage = Stage::new(false, |s| s.backends = s.backends[..1].into());
    let client = client(false, 1, 1);
    let vip = stage.vip();
    let out = stage.client_sends(client, SYN).destination;
    stage.batch(alloc::vec![packet(out, client, Way::Tcp(SYN | ACK)), packet(client, vip, Way::Tcp(ACK))]);
    assert_eq!(stage.only().pair.state(), OffloadState::Installing);
    stage.end_backend(0, Which::All);
    stage.turn();
    assert_eq!(stage.worker().statistics().ended, 0);
    let due = stage.worker().poll_timeout(stage.now).unwrap();
    assert!(due > stage.now, "it is not tried again at once");
    stage.wait(Duration::from_secs(1));
    assert_eq!(stage.worker().statistics().ended, 1);
    assert_eq!(stage.engine_keys().len(), 0);
    stage.wait(Duration::from_secs(125));
    assert_eq!(stage.worker().connections().count(), 0);
}

#[test]
fn down_backend_moves_udp_and_keeps_tcp() {
    let mut stage = Stage::new(false, |_| {});
    let (speaker, dns) = (client(false, 1, 40_000), end(false, 1, 53));
    let backend = stage.send(packet(speaker, dns, Way::Udp(20))).sent().destination;
    let tcp: Vec<Endpoint> = (0..8).map(|n| stage.open(client(false, 9, n + 1))).collect();
    let index = stage.backends().iter().position(|end| *end == backend).unwrap() as u16;
    stage.set_up(8 + index, false);
    stage.set_up(index, false);
    stage.wait(Duration::from_millis(200));
    let other = stage.send(packet(speaker, dns, Way::Udp(20))).sent().destination;
    assert_ne!(other, backend);
    for (n, backend) in tcp.iter().enumerate() {
        assert_eq!(stage.client_sends(client(false, 9, n as u16 + 1), ACK).destination, *backend);
    }
    assert_eq!(stage.worker().statistics().ended, 1);
}

#[test]
fn counters_go_on_unless_their_number_is_reused() {
    let mut stage = Stage::new(false, |_| {});
    for n in 0..40 {
        stage.open(client(false, n, 1));
    }
    let before = stage.worker().statistics().clone();
    let mut services = services(&stage);
    let mut added = services[0].backends[0].clone();
    added.number = 12;
    added.endpoint = end(false, 110, 8000);
    let mut backends = services[0].backends.to_vec();
    backends.push(added);
    services[0].backends = backends.into();
    services.push(Service { endpoint: end(false, 2, 80), backends: [].into(), ..services[0].clone() });
    stage.reconfigure(services, |update| {
        update.fresh.extend([3, 12, 9999]);
        update.fresh_services.extend([1, 3, 9999]);
    });
    let after = stage.worker().statistics();
    assert_eq!((after.backends.len(), after.services.len()), (13, 4));
    assert_eq!(after.services[0].established, before.services[0].established);
    assert_eq!(after.backends[0].connections, before.backends[0].connections);
    assert_eq!((after.backends[3].connections, after.backends[3].connections_now), (0, 10));
    let chosen = (50..60).filter(|&n| stage.open(client(false, n, 1)) == end(false, 110, 8000)).count();
    assert_eq!(chosen, 2, "the added backend has its turns");
    assert_eq!(stage.worker().statistics().backends[12].connections, 2);
}

#[test]
fn ports_in_use_stay_so_with_the_same_pool_and_with_another() {
    for port_last in [20_999, 20_500] {
        let mut stage = Stage::new(false, |s| s.forwarding = Forwarding::FullNat);
        stage.shrink_pool(40);
        let sources: Vec<Endpoint> = (0..10)
            .map(|n| {
                stage.open(client(false, n, 1));
                stage.connection(client(false, n, 1)).source
            })
            .collect();
        let mut pool = stage.snapshot().pool.clone();
        if port_last == 20_500 {
            pool.port_last += 3;
        }
        let snapshot = Snapshot::new(stage.snapshot().services.clone(), pool.clone());
        stage.reload(snapshot, |_| {});
        let room = usize::from(pool.port_last - pool.port_first) + 1;
        for n in 10..room as u8 {
            stage.open(client(false, n, 1));
            let source = stage.connection(client(false, n, 1)).source;
            assert!(!sources.contains(&source), "{source} is in use");
        }
        assert!(stage.client_sends(client(false, 200, 1), SYN).flags & RST != 0, "there is none left");
        assert_eq!(stage.worker().connections().count(), room);
    }
}

#[test]
fn the_round_of_an_unchanged_service_goes_on() {
    let (mut stage, mut undisturbed) = (Stage::new(false, |_| {}), Stage::new(false, |_| {}));
    for n in 0..10 {
        assert_eq!(stage.open(client(false, n, 1)), undisturbed.open(client(false, n, 1)));
        let mut services = services(&stage);
        services[1].backends[0].weight += 1;
        stage.reconfigure(services, |_| {});
    }
}

#[test]
fn shorter_timeouts_hold_from_the_next_judgment() {
    let mut stage = Stage::new(false, |s| s.timeouts.udp_new = Duration::from_secs(30));
    stage.send(packet(client(false, 1, 1), end(false, 1, 53), Way::Udp(20)));
    let mut services = services(&stage);
    services[2].timeouts.udp_new = Duration::from_secs(60);
    stage.reconfigure(services, |_| {});
    stage.wait(Duration::from_secs(45));
    assert_eq!(stage.worker().connections().count(), 1, "and longer ones as well");
    stage.wait(Duration::from_secs(30));
    assert_eq!(stage.worker().connections().count(), 0);
    assert_eq!(stage.worker().statistics().backends[8].software[Direction::FromClient as usize].packets, 1);
}

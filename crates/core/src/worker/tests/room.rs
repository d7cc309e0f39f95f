//! The engine's room: shared by workers, and given back when both ends of a connection have closed.

use super::adoption::snapshot;
use super::many_workers::ManyWorkers;
use super::one_worker::{OneWorker, Way, client, packet};
use crate::flow::Endpoint;
use crate::l4::connection::State;
use crate::offload::OffloadState;
use crate::offload::{Choice, Reason};
use crate::time::Duration;
use crate::wire::tcp::{ACK, FIN, RST};
use alloc::vec::Vec;

#[test]
fn workers_that_share_an_engine_know_how_full_it_is() {
    for ipv6 in [false, true] {
        let mut fixture = ManyWorkers::new(snapshot(ipv6, |_| {}), 2, 64);
        (fixture.rules_max, fixture.room) = (8, 8);
        fixture.crash(fixture.as_before());
        let clients: Vec<Endpoint> = (1..20).map(|n| client(ipv6, n, 40_000)).collect();
        let mut ways = Vec::new();
        for &client in &clients {
            ways.push(fixture.open(client));
            fixture.settle();
            fixture.check();
        }
        assert_eq!(fixture.engine.len(), 8);
        for worker in &fixture.workers {
            let offload = worker.statistics().offload;
            assert_eq!(offload.refused_full, 0, "a worker asked for room that another worker has");
            assert!(offload.kept[Reason::Room as usize] > 0, "{offload:?}");
        }
        // One worker's connection ends, the other's next one takes its place.
        let of = |fixture: &ManyWorkers, worker, offload_state| {
            let is = |place: &usize| {
                fixture.steering().worker(&clients[*place]) == worker
                    && fixture.of(clients[*place]).pair.state() == offload_state
            };
            (0..clients.len()).find(is).expect("both workers have some")
        };
        let (gone, next) = (of(&fixture, 0, OffloadState::Offloaded), of(&fixture, 1, OffloadState::Software));
        fixture.client_sends(clients[gone], FIN | ACK);
        fixture.backend_sends(ways[gone], clients[gone], FIN | ACK);
        fixture.settle();
        assert_eq!(fixture.engine.len(), 6);
        fixture.client_sends(clients[next], ACK);
        fixture.settle();
        assert_eq!((fixture.of(clients[next]).pair.state(), fixture.engine.len()), (OffloadState::Offloaded, 8));
        // The process that comes after this one begins with what the engine really holds.
        fixture.crash(fixture.as_before());
        fixture.check();
        fixture.outlive();
    }
}

#[test]
fn closed_pair_rules_go_early_when_room_is_tight() {
    // One pair is more than an eighth of 15 rules, and not of 16.
    for (rules_max, is_tight) in [(15, true), (16, false)] {
        let mut fixture = OneWorker::with_policy(Choice::Always, rules_max);
        let client = client(false, 1, 40_000);
        let backend = fixture.open(client);
        assert_eq!(fixture.only().pair.state(), OffloadState::Offloaded);
        fixture.client_sends(client, FIN | ACK);
        assert_eq!(
            (fixture.only().pair.state(), fixture.engine_keys().len()),
            (OffloadState::Offloaded, 2),
            "one end may go on sending"
        );
        fixture.send(packet(backend, client, Way::Tcp(FIN | ACK)));
        let (offload_state, rules) = if is_tight { (OffloadState::Software, 0) } else { (OffloadState::Offloaded, 2) };
        assert_eq!((fixture.only().state, fixture.only().pair.state()), (State::Closed, offload_state));
        assert_eq!((fixture.engine_keys().len(), fixture.rules_known().len()), (rules, rules));
        // Either way the last acknowledgement reaches the backend.
        assert_eq!(fixture.client_sends(client, ACK).destination, backend);
        assert_eq!(fixture.only().pair.state(), offload_state, "what has closed is not offered again");
        fixture.wait(Duration::from_secs(20));
        assert_eq!((fixture.worker().connections().count(), fixture.engine_keys().len()), (0, 0));
        assert_eq!(fixture.worker().statistics().offload.removed, 2);
    }
}

#[test]
fn a_reset_alone_takes_no_rules_away_however_tight_room_is() {
    let mut fixture = OneWorker::with_policy(Choice::Always, 2);
    let client = client(false, 1, 40_000);
    fixture.open(client);
    fixture.client_sends(client, RST);
    assert_eq!((fixture.only().state, fixture.only().pair.state()), (State::Reset, OffloadState::Offloaded));
}

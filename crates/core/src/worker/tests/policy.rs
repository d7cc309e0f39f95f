//! The decisions of a policy, carried out: connections stay in software, go to the engine, and come back from it.

use super::one_worker::{OneWorker, Way, client, packet};
use crate::flow::{Direction, Endpoint};
use crate::offload::OffloadState;
use crate::offload::{Choice, FirstN, HeavyHitter, Reason};
use crate::time::Duration;
use crate::wire::tcp::{ACK, FIN, PSH};

const TICK: Duration = Duration::from_millis(10);

/// Packets of a connection for a while, through software or the engine, so many per tick.
fn talk(fixture: &mut OneWorker, talkers: &[(Endpoint, u32)], ticks: u32) {
    for _ in 0..ticks {
        for &(client, packets) in talkers {
            for _ in 0..packets {
                let key = packet(client, fixture.vip(), Way::Tcp(ACK | PSH)).key();
                match fixture.connection(client).pair.held() & 1 {
                    0 => drop(fixture.client_sends(client, ACK | PSH)),
                    _ => fixture.hit(&key),
                }
            }
        }
        fixture.wait(TICK);
        assert_eq!(fixture.rules_known(), fixture.engine_keys());
    }
}

fn offload_state(fixture: &OneWorker, client: Endpoint) -> OffloadState {
    fixture.connection(client).pair.state()
}

fn packets_of(fixture: &OneWorker, client: Endpoint) -> u64 {
    let connection = fixture.connection(client);
    let way = Direction::FromClient as usize;
    connection.forwarded[way].packets + connection.offloaded[way].packets
}

#[test]
fn a_heavy_hitter_goes_at_its_threshold_and_not_before() {
    let choice = Choice::HeavyHitter(HeavyHitter { packets: Some(20), ..HeavyHitter::default() });
    let mut fixture = OneWorker::with_policy(choice, 1000);
    let client = client(false, 1, 40_000);
    fixture.open(client);
    talk(&mut fixture, &[(client, 1)], 16);
    assert_eq!(offload_state(&fixture, client), OffloadState::Software);
    let offload = fixture.worker().statistics().offload;
    assert!(offload.kept[Reason::Small as usize] >= 16, "{offload:?}");
    talk(&mut fixture, &[(client, 1)], 10);
    assert_eq!(offload_state(&fixture, client), OffloadState::Offloaded);
}

#[test]
fn the_first_of_them_keep_their_places_until_they_end() {
    let mut fixture = OneWorker::with_policy(Choice::FirstN(FirstN { connections: 1 }), 1000);
    let (first, second) = (client(false, 1, 40_000), client(false, 2, 40_000));
    let backend = fixture.open(first);
    fixture.open(second);
    assert_eq!(
        (offload_state(&fixture, first), offload_state(&fixture, second)),
        (OffloadState::Offloaded, OffloadState::Software)
    );
    fixture.client_sends(first, FIN | ACK);
    fixture.send(packet(backend, first, Way::Tcp(FIN | ACK)));
    fixture.wait(Duration::from_secs(20));
    fixture.client_sends(second, ACK);
    assert_eq!(offload_state(&fixture, second), OffloadState::Offloaded);
}

#[test]
fn slow_flow_is_withdrawn_and_counts_add_up() {
    for choice in [Choice::FastestFlow { packets_per_s: 0 }, Choice::Auto] {
        // Room for four connections.
        let mut fixture = OneWorker::with_policy(choice.clone(), 8);
        let slow: [Endpoint; 4] = [1, 2, 3, 4].map(|n| client(false, n, 40_000));
        let fast: [Endpoint; 3] = [5, 6, 7].map(|n| client(false, n, 40_000));
        for one in slow {
            fixture.open(one);
        }
        talk(&mut fixture, &slow.map(|one| (one, 1)), 20);
        assert!(
            slow.iter().all(|&one| offload_state(&fixture, one) == OffloadState::Offloaded),
            "there is room for these"
        );
        let before = slow.map(|one| packets_of(&fixture, one) + pending(&fixture, one));
        for one in fast {
            fixture.open(one);
        }
        // The slow ones fall silent.
        let began = fast.map(|one| packets_of(&fixture, one));
        talk(&mut fixture, &fast.map(|one| (one, 5)), 3000);
        assert!(fast.iter().all(|&one| offload_state(&fixture, one) == OffloadState::Offloaded), "{choice:?}");
        let evicted: u64 = fixture.worker().statistics().offload.evicted.iter().sum();
        assert!(evicted >= 3, "{choice:?}: {evicted}");
        fixture.wait(Duration::from_secs(1));
        let back = slow.iter().filter(|&&one| offload_state(&fixture, one) == OffloadState::Software).count();
        assert!(back >= 3, "{choice:?}: {back}");
        assert_eq!(slow.map(|one| packets_of(&fixture, one) + pending(&fixture, one)), before, "{choice:?}");
        for (one, began) in fast.into_iter().zip(began) {
            fixture.client_sends(one, FIN | ACK);
            let there = packets_of(&fixture, one) + pending(&fixture, one);
            assert_eq!(there, began + 15_000 + 1, "{choice:?}");
        }
    }
}

/// Packets of the client that the engine has counted since it was last asked.
fn pending(fixture: &OneWorker, client: Endpoint) -> u64 {
    let key = packet(client, fixture.vip(), Way::Tcp(ACK)).key();
    let known = fixture.connection(client).offloaded[Direction::FromClient as usize].packets;
    fixture.engine.rules.get(&key).map_or(0, |(_, counters)| counters.packets - known)
}

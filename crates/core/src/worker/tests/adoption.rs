//! What another process has left is taken over: one situation at a time.

use super::house::{House, Restart};
use super::stage::{Stage, Way, client, packet};
use crate::config::{BackendState, Forwarding, Service, ServiceState, Snapshot};
use crate::flow::{Direction, Endpoint, FlowKey};
use crate::frame::VecFrame;
use crate::l4::connection::{Connection, Flags, Kept, State};
use crate::offload::{OffloadState, RulePair};
use crate::time::Duration;
use crate::wire::tcp::{ACK, FIN, PSH, SYN};
use crate::wire::{self, Parsed};
use alloc::sync::Arc;
use alloc::vec::Vec;

pub(super) fn snapshot(ipv6: bool, change: impl Fn(&mut Service)) -> Snapshot {
    Stage::with_capacity(ipv6, 1, change).snapshot().clone()
}

fn nat() -> Snapshot {
    snapshot(false, |_| {})
}

fn full_nat() -> Snapshot {
    snapshot(false, |service| service.forwarding = Forwarding::FullNat)
}

fn ends(frame: &VecFrame) -> (Endpoint, Endpoint) {
    match wire::parse(&frame.data) {
        Ok(Parsed::Transport(at)) => (at.key.source, at.key.destination),
        _ => panic!("not a packet"),
    }
}

impl House {
    fn vip(&self) -> Endpoint {
        self.snapshot.services[0].endpoint
    }

    /// A packet of the client's, by way of a worker unless the engine has it; whom the backend sees, and the backend.
    pub(super) fn client_sends(&mut self, client: Endpoint, flags: u8) -> Option<(Endpoint, Endpoint)> {
        let frames = self.packet(packet(client, self.vip(), Way::Tcp(flags)), true);
        frames.first().map(ends)
    }

    /// A packet of the backend's, by way of a worker unless the engine has it; whether it reached the client as from
    /// the VIP.
    pub(super) fn backend_sends(
        &mut self,
        (source, backend): (Endpoint, Endpoint),
        client: Endpoint,
        flags: u8,
    ) -> bool {
        let frames = self.packet(packet(backend, source, Way::Tcp(flags)), true);
        frames.first().map(ends) == Some((self.vip(), client))
    }

    /// Opens a connection; the rest is up to the engine.
    pub(super) fn open(&mut self, client: Endpoint) -> (Endpoint, Endpoint) {
        let way = self.client_sends(client, SYN).expect("no way to a backend");
        assert!(self.backend_sends(way, client, SYN | ACK));
        assert_eq!(self.client_sends(client, ACK), Some(way));
        way
    }

    pub(super) fn of(&self, client: Endpoint) -> Connection {
        *self.connections().find(|c| c.client == client && c.state != State::Pass).expect("the connection is gone")
    }
}

#[test]
fn an_offloaded_connection_does_not_notice() {
    let mut house = House::new(nat(), 2, 64);
    let client = client(false, 1, 40_000);
    let way = house.open(client);
    house.settle();
    let rules: Vec<FlowKey> = house.engine.keys().copied().collect();
    assert_eq!(rules.len(), 2);
    let before = house.of(client);
    let adopted = house.crash(house.as_before());
    assert_eq!((adopted.kept, adopted.offloaded, adopted.invalid), (1, 1, 0));
    assert_eq!(house.engine.keys().copied().collect::<Vec<_>>(), rules, "its rules were never touched");
    let after = house.of(client);
    assert_eq!((after.pair.state(), after.pair.held(), after.state), (OffloadState::Offloaded, 3, State::Established));
    assert_eq!((after.created, after.carried), (before.created, before.carried));
    assert_eq!(house.client_sends(client, ACK | PSH), Some(way));
    assert!(house.backend_sends(way, client, FIN | ACK), "FIN reaches the new worker");
    assert_eq!(house.client_sends(client, FIN | ACK), Some(way));
    house.wait(Duration::from_secs(20));
    assert_eq!(house.connections().count(), 0);
    house.outlive();
}

#[test]
fn connections_in_software_go_on_at_every_stage() {
    for full in [false, true] {
        let mut house = House::new(if full { full_nat() } else { nat() }, 1, 64);
        house.room = 0;
        let clients: Vec<Endpoint> = (1..5).map(|n| client(false, n, 40_000)).collect();
        let ways: Vec<_> = clients.iter().map(|&client| house.client_sends(client, SYN).unwrap()).collect();
        house.crash(house.as_before());
        for (&client, &way) in clients.iter().zip(&ways) {
            assert!(house.backend_sends(way, client, SYN | ACK));
        }
        house.crash(house.as_before());
        for (&client, &way) in clients.iter().zip(&ways) {
            assert_eq!(house.client_sends(client, ACK), Some(way), "the same backend, the same port");
        }
        let adopted = house.crash(house.as_before());
        assert_eq!((adopted.kept, adopted.offloaded), (4, 0));
        for (&client, &way) in clients.iter().zip(&ways) {
            assert!(house.backend_sends(way, client, ACK));
            assert_eq!(house.of(client).state, State::Established);
            assert_eq!(house.of(client).carried[1].packets, 2, "counters go on");
        }
        house.outlive();
    }
}

#[test]
fn rules_that_are_gone_are_asked_for_again_without_a_packet() {
    let mut house = House::new(nat(), 1, 64);
    let client = client(false, 1, 40_000);
    house.open(client);
    house.settle();
    house.wait(Duration::from_secs(10));
    (0..7).for_each(|_| assert!(house.client_sends(client, ACK).is_some()));
    house.wait(Duration::from_secs(3595));
    assert_eq!(house.of(client).offloaded[0].packets, 7);
    house.engine.clear();
    let adopted = house.crash(house.as_before());
    assert_eq!((adopted.kept, adopted.rules_gone), (1, 1));
    assert_eq!(house.of(client).pair.state(), OffloadState::Offloaded);
    assert_eq!(house.engine.len(), 2);
    assert_eq!(house.of(client).carried[0].packets, 2 + 7, "what was known of the lost rule's packets is kept");
    house.outlive();
}

#[test]
fn half_a_pair_is_taken_back() {
    for lost in [Direction::FromClient, Direction::FromBackend] {
        let mut house = House::new(nat(), 1, 64);
        let client = client(false, 1, 40_000);
        let way = house.open(client);
        house.settle();
        let key = house.of(client).key(lost);
        house.engine.remove(&key).unwrap();
        let adopted = house.crash(house.as_before());
        assert_eq!((adopted.rules_missing, adopted.offloaded), (1, 0));
        assert_eq!(house.of(client).pair.state(), OffloadState::Software);
        assert!(house.engine.is_empty());
        assert_eq!(house.client_sends(client, ACK), Some(way));
        house.settle();
        assert_eq!(house.of(client).pair.state(), OffloadState::Offloaded, "and the pair is offered again");
        house.outlive();
    }
}

#[test]
fn requests_and_answers_that_were_lost_do_not_matter() {
    // Cut after so many of: install reaches the engine, first answer, second answer.
    for cut in 0..4 {
        let mut house = House::new(nat(), 1, 64);
        let client = client(false, 1, 40_000);
        house.open(client);
        if cut > 0 {
            house.flush(0);
        }
        (1..cut).for_each(|_| house.answer_one(0));
        let adopted = house.crash(house.as_before());
        assert_eq!((adopted.kept, adopted.offloaded), (1, u64::from(cut > 0)), "cut {cut}");
        assert_eq!(house.of(client).pair.state(), OffloadState::Offloaded);
        house.outlive();
    }
}

#[test]
fn a_connection_pending_removal_goes_and_its_port_rests() {
    // Cut: removal queued, with the engine, answered in part.
    for cut in 0..3 {
        let mut house = House::new(full_nat(), 1, 64);
        let client = client(false, 1, 40_000);
        let way = house.open(client);
        house.settle();
        assert!(house.backend_sends(way, client, FIN | ACK));
        house.client_sends(client, FIN | ACK);
        house.now = house.now + Duration::from_secs(6);
        let (mut asked, now) = (Default::default(), house.now);
        let worker = &mut house.workers[0];
        worker.handle_timeout(now);
        worker.poll_samples(&mut asked);
        let samples = asked.iter().map(|_| None).collect();
        worker.handle_samples(now, &asked, &samples);
        assert!(house.of(client).flags.has(Flags::PENDING_REMOVAL));
        if cut > 0 {
            house.flush(0);
        }
        if cut > 1 {
            house.answer_one(0);
        }
        let adopted = house.crash(house.as_before());
        assert_eq!((adopted.kept, adopted.pending_removal), (0, 1), "cut {cut}");
        assert_eq!(house.connections().count(), 0);
        assert!(house.engine.is_empty());
        assert_eq!(house.workers[0].ports.in_use(0), 0);
        house.outlive();
    }
}

#[test]
fn adopted_connections_without_backend_end() {
    let changes: [fn(&mut Vec<Service>); 5] = [
        |services| services[0] = Service::vacant(),
        |services| services[0].endpoint.port = 8080,
        |services| services[0].backends.iter_mut().for_each(|backend| backend.endpoint.port += 1),
        |services| services[0].backends.iter_mut().for_each(|backend| backend.state = BackendState::Disabled),
        |services| services.truncate(0),
    ];
    for change in changes {
        for offloaded in [false, true] {
            let mut house = House::new(full_nat(), 1, 64);
            house.room = if offloaded { 100 } else { 0 };
            house.open(client(false, 1, 40_000));
            house.settle();
            let mut services = house.snapshot.services.to_vec();
            change(&mut services);
            let changed = Arc::new(Snapshot::new(services.into(), house.snapshot.pool.clone()));
            let adopted = house.crash(Restart { snapshot: changed, ..house.as_before() });
            assert_eq!((adopted.kept, adopted.without_service), (0, 1));
            assert!(house.engine.is_empty());
            house.outlive();
        }
    }
}

#[test]
fn connections_of_a_removed_service_go_on() {
    let mut house = House::new(nat(), 1, 64);
    let client = client(false, 1, 40_000);
    let way = house.open(client);
    let mut services = house.snapshot.services.to_vec();
    services[0].state = ServiceState::Removed;
    services[0].backends.iter_mut().for_each(|backend| backend.state = BackendState::Removed);
    let changed = Arc::new(Snapshot::new(services.into(), house.snapshot.pool.clone()));
    let adopted = house.crash(Restart { snapshot: changed, ..house.as_before() });
    assert_eq!(adopted.kept, 1);
    assert_eq!(house.client_sends(client, ACK), Some(way));
    house.outlive();
}

#[test]
fn stale_rule_of_the_same_key_is_not_adopted() {
    // The client's flow is taken over by a new connection to another backend, while the engine still has the old rules.
    let mut house = House::new(nat(), 1, 64);
    let client = client(false, 1, 40_000);
    let way = house.open(client);
    house.settle();
    let worker = &mut house.workers[0];
    let position = worker.slab.positions().next().unwrap();
    let mut next = *worker.slab.at(position);
    let now = house.now;
    assert!(worker.begin_removal(now, position));
    let another = house.snapshot.services[0].backends.iter().find(|backend| backend.endpoint != way.1).unwrap();
    (next.backend, next.backend_number) = (another.endpoint, another.number);
    next.pair = RulePair::default();
    house.workers[0].slab.insert(next).unwrap();
    let adopted = house.crash(house.as_before());
    assert_eq!((adopted.kept, adopted.pending_removal, adopted.offloaded), (1, 1, 0));
    assert_eq!(house.client_sends(client, ACK), Some((client, next.backend)));
    house.settle();
    assert_eq!(house.client_sends(client, ACK), Some((client, next.backend)), "by its own rules now");
    house.outlive();
}

#[test]
fn of_two_entries_with_one_flow_the_newer_one_stays() {
    for (newer_first, offloaded) in [(true, false), (false, false), (true, true), (false, true)] {
        let mut house = House::new(full_nat(), 1, 64);
        house.room = if offloaded { 100 } else { 0 };
        let client = client(false, 1, 40_000);
        house.open(client);
        house.settle();
        let worker = &mut house.workers[0];
        let position = worker.slab.positions().next().unwrap();
        let mut twin = *worker.slab.at(position);
        let step = Duration::from_millis(5);
        match newer_first {
            true => worker.slab.at_mut(position).created = twin.created + step,
            false => twin.created = twin.created + step,
        }
        let newest = twin.created.max(worker.slab.at(position).created);
        worker.slab.insert(twin).unwrap();
        let adopted = house.crash(house.as_before());
        assert_eq!((adopted.kept, adopted.duplicates), (1, 1));
        assert_eq!(house.of(client).created, newest);
        house.outlive();
    }
}

#[test]
fn nonsense_is_dropped_and_counted() {
    let mut house = House::new(nat(), 1, 64);
    let (one, other) = (client(false, 1, 40_000), client(false, 2, 40_000));
    let way = house.open(one);
    house.open(other);
    house.settle();
    house.workers[0].slab.at_mut(1).pair = RulePair::holding(200);
    let adopted = house.crash(house.as_before());
    assert_eq!((adopted.kept, adopted.invalid), (1, 1));
    assert_eq!(house.engine.len(), 2, "rules without a connection are gone");
    assert_eq!(house.client_sends(one, ACK), Some(way));
    house.outlive();
}

#[test]
fn half_open_connections_give_way_in_the_order_of_their_age() {
    let mut house = House::new(nat(), 1, 4);
    let clients: Vec<Endpoint> = (1..5).map(|n| client(false, n, 40_000)).collect();
    for at in [2, 0, 3, 1] {
        house.client_sends(clients[at], SYN).unwrap();
        house.now = house.now + Duration::from_millis(10);
    }
    house.crash(house.as_before());
    house.client_sends(client(false, 9, 1), SYN).unwrap();
    house.client_sends(client(false, 9, 2), SYN).unwrap();
    let left: Vec<Endpoint> = house.live().iter().map(|c| c.client).collect();
    assert!(left.contains(&clients[1]) && left.contains(&clients[3]), "the younger ones stay: {left:?}");
    house.outlive();
}

#[test]
fn connections_silent_without_a_process_get_a_grace_period() {
    let mut house = House::new(nat(), 1, 64);
    house.room = 0;
    let client = client(false, 1, 40_000);
    let way = house.open(client);
    let away = Duration::from_secs(4000);
    house.crash(Restart { away, ..house.as_before() });
    house.wait(Duration::from_millis(500));
    assert_eq!(house.client_sends(client, ACK), Some(way), "longer away than it may be silent, and still there");
    house.wait(Duration::from_secs(1000));
    assert_eq!(house.connections().count(), 1);
    house.crash(Restart { away, ..house.as_before() });
    house.wait(Duration::from_secs(2));
    assert_eq!(house.connections().count(), 0, "it has expired");
}

#[test]
fn another_number_of_workers_keeps_every_established_connection() {
    for full in [false, true] {
        for counts in [[1u16, 2, 3, 1], [4, 1, 2, 4]] {
            let mut house = House::new(if full { full_nat() } else { nat() }, counts[0], 256);
            let clients: Vec<Endpoint> = (0..60).map(|n| client(false, n, 40_000)).collect();
            let ways: Vec<_> = clients.iter().map(|&client| house.open(client)).collect();
            for (round, &workers) in counts[1..].iter().enumerate() {
                // Some with the engine and some not.
                house.settle();
                let lost: Vec<FlowKey> = house.engine.keys().copied().skip(round).step_by(5).collect();
                house.engine.retain(|key, _| !lost.contains(key));
                let adopted = house.crash(Restart { workers, ..house.as_before() });
                assert_eq!((adopted.kept, adopted.misplaced), (60, 0));
                assert!(full || adopted.missteered == 0);
                house.wait(Duration::from_secs(2));
                for (&client, &way) in clients.iter().zip(&ways) {
                    assert_eq!(house.client_sends(client, ACK), Some(way));
                    assert!(house.backend_sends(way, client, ACK));
                    let connection = house.of(client);
                    let misses = connection.flags.has(Flags::MISSTEERED);
                    assert!(
                        !misses || connection.pair.state() == OffloadState::Offloaded,
                        "only the engine can carry it"
                    );
                }
            }
            for (&client, &way) in clients.iter().zip(&ways) {
                assert!(house.backend_sends(way, client, FIN | ACK));
                assert_eq!(house.client_sends(client, FIN | ACK), Some(way));
            }
            house.wait(Duration::from_secs(20));
            assert_eq!(house.connections().count(), 0);
            house.outlive();
        }
    }
}

#[test]
fn engine_only_connection_is_offered_repeatedly() {
    let mut house = House::new(full_nat(), 1, 256);
    let clients: Vec<Endpoint> = (0..20).map(|n| client(false, n, 40_000)).collect();
    house.room = 0;
    for &client in &clients {
        house.open(client);
    }
    house.settle();
    let adopted = house.crash(Restart { workers: 4, ..house.as_before() });
    assert!(adopted.missteered > 0);
    let carried =
        |house: &House| house.connections().filter(|c| c.flags.has(Flags::MISSTEERED) && c.pair.held() == 3).count();
    assert_eq!(carried(&house), 0);
    house.room = 1000;
    house.wait(Duration::from_secs(5));
    assert_eq!(carried(&house) as u64, adopted.missteered, "without a packet");
    house.outlive();
}

#[test]
fn what_is_taken_back_goes_before_anything_new_is_asked_for() {
    // More than fit into the queue to the engine at once.
    const MANY: u16 = 2500;
    let one_backend = snapshot(false, |service| service.backends = service.backends[..1].into());
    let mut house = House::new(one_backend, 1, 4096);
    let clients: Vec<Endpoint> = (0..MANY).map(|n| client(false, (n % 250) as u8, 5000 + n / 250)).collect();
    for &client in &clients {
        house.open(client);
        house.settle();
    }
    assert_eq!(house.engine.len(), usize::from(MANY) * 2);
    // The backend has another number now, so all of these go.
    let mut services = house.snapshot.services.to_vec();
    services[0].backends.iter_mut().for_each(|backend| backend.number += 100);
    let changed = Arc::new(Snapshot::new(services.into(), house.snapshot.pool.clone()));
    let adopted = house.adopt(Restart { snapshot: changed, ..house.as_before() });
    assert_eq!(adopted.without_service, u64::from(MANY));
    house.flush(0);
    // One whose rules are still there begins anew, with the same backend.
    let key = house.engine.keys().find(|key| key.destination == house.vip()).copied().expect("nothing is left to do");
    let before = house.engine[&key].rule.rewrite.destination;
    assert_eq!(house.client_sends(key.source, SYN), Some((key.source, before)));
    assert!(house.backend_sends((key.source, before), key.source, SYN | ACK));
    house.packet(packet(key.source, house.vip(), Way::Tcp(ACK)), false);
    let begun = house.of(key.source);
    assert_eq!(
        (begun.state, begun.pair.state(), begun.kept),
        (State::Established, OffloadState::Software, Kept::QueueFull)
    );
    house.settle();
    house.check();
    house.wait(Duration::from_millis(200));
    house.packet(packet(key.source, house.vip(), Way::Tcp(ACK)), true);
    house.settle();
    assert_eq!((house.of(key.source).pair.state(), house.engine.len()), (OffloadState::Offloaded, 2));
    house.outlive();
}

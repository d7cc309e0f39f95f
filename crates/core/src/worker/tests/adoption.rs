//! Adoption of the state that another process has left: one situation at a time.

use super::many_workers::{ManyWorkers, Restart};
use super::one_worker::{OneWorker, Way, client, end, packet};
use crate::config::{BackendState, Forwarding, Service, ServiceState, Snapshot};
use crate::flow::{Direction, Endpoint, FlowKey, Protocol};
use crate::frame::VecFrame;
use crate::l4::connection::{Connection, Flags, Kept, State};
use crate::offload::{OffloadState, RulePair};
use crate::time::Duration;
use crate::wire::tcp::{ACK, FIN, PSH, SYN};
use crate::wire::{self, Parsed};
use alloc::sync::Arc;
use alloc::vec::Vec;

pub(super) fn snapshot(ipv6: bool, change: impl Fn(&mut Service)) -> Snapshot {
    OneWorker::with_capacity(ipv6, 1, change).snapshot().clone()
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

impl ManyWorkers {
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
    let mut fixture = ManyWorkers::new(nat(), 2, 64);
    let client = client(false, 1, 40_000);
    let way = fixture.open(client);
    fixture.settle();
    let rules: Vec<FlowKey> = fixture.engine.keys().copied().collect();
    assert_eq!(rules.len(), 2);
    let before = fixture.of(client);
    let adopted = fixture.crash(fixture.as_before());
    assert_eq!((adopted.kept, adopted.offloaded, adopted.invalid), (1, 1, 0));
    assert_eq!(fixture.engine.keys().copied().collect::<Vec<_>>(), rules, "its rules were never touched");
    let after = fixture.of(client);
    assert_eq!((after.pair.state(), after.pair.held(), after.state), (OffloadState::Offloaded, 3, State::Established));
    assert_eq!((after.created, after.forwarded), (before.created, before.forwarded));
    assert_eq!(fixture.client_sends(client, ACK | PSH), Some(way));
    assert!(fixture.backend_sends(way, client, FIN | ACK), "FIN reaches the new worker");
    assert_eq!(fixture.client_sends(client, FIN | ACK), Some(way));
    fixture.wait(Duration::from_secs(20));
    assert_eq!(fixture.connections().count(), 0);
    fixture.outlive();
}

#[test]
fn connections_in_software_go_on_at_every_stage() {
    for full in [false, true] {
        let mut fixture = ManyWorkers::new(if full { full_nat() } else { nat() }, 1, 64);
        fixture.room = 0;
        let clients: Vec<Endpoint> = (1..5).map(|n| client(false, n, 40_000)).collect();
        let ways: Vec<_> = clients.iter().map(|&client| fixture.client_sends(client, SYN).unwrap()).collect();
        fixture.crash(fixture.as_before());
        for (&client, &way) in clients.iter().zip(&ways) {
            assert!(fixture.backend_sends(way, client, SYN | ACK));
        }
        fixture.crash(fixture.as_before());
        for (&client, &way) in clients.iter().zip(&ways) {
            assert_eq!(fixture.client_sends(client, ACK), Some(way), "the same backend, the same port");
        }
        let adopted = fixture.crash(fixture.as_before());
        assert_eq!((adopted.kept, adopted.offloaded), (4, 0));
        for (&client, &way) in clients.iter().zip(&ways) {
            assert!(fixture.backend_sends(way, client, ACK));
            assert_eq!(fixture.of(client).state, State::Established);
            assert_eq!(fixture.of(client).forwarded[1].packets, 2, "counters go on");
        }
        fixture.outlive();
    }
}

/// A client sends its SYN again while no process is there, and the engine sets the connection up, to this backend or another.
#[test]
fn a_half_open_connection_claims_no_rule_of_the_engines() {
    for other_backend in [false, true] {
        let mut fixture = ManyWorkers::new(nat(), 1, 64);
        let (half_open, open) = (client(false, 1, 40_000), client(false, 2, 40_000));
        let (_, mut backend) = fixture.client_sends(half_open, SYN).expect("no way to a backend");
        fixture.open(open);
        fixture.settle();
        if other_backend {
            backend.address = end(false, 9, 0).address;
        }
        let (vip, protocol) = (fixture.snapshot.services[0].endpoint, Protocol::Tcp);
        fixture.make_rule(FlowKey { source: half_open, destination: vip, protocol });
        fixture.make_rule(FlowKey { source: backend, destination: half_open, protocol });
        let adopted = fixture.crash(fixture.as_before());
        assert_eq!((adopted.kept, adopted.offloaded, adopted.rules_missing), (2, 1, 0));
        assert_eq!(fixture.of(half_open).state, State::SynSent);
        assert_eq!(fixture.of(half_open).pair.state(), OffloadState::Software);
        assert_eq!(fixture.of(open).pair.state(), OffloadState::Offloaded);
    }
}

#[test]
fn rules_that_are_gone_are_asked_for_again_without_a_packet() {
    let mut fixture = ManyWorkers::new(nat(), 1, 64);
    let client = client(false, 1, 40_000);
    fixture.open(client);
    fixture.settle();
    fixture.wait(Duration::from_secs(10));
    (0..7).for_each(|_| assert!(fixture.client_sends(client, ACK).is_some()));
    fixture.wait(Duration::from_secs(3595));
    assert_eq!(fixture.of(client).offloaded[0].packets, 7);
    fixture.engine.clear();
    let adopted = fixture.crash(fixture.as_before());
    assert_eq!((adopted.kept, adopted.rules_gone), (1, 1));
    assert_eq!(fixture.of(client).pair.state(), OffloadState::Offloaded);
    assert_eq!(fixture.engine.len(), 2);
    assert_eq!(fixture.of(client).forwarded[0].packets, 2 + 7, "what was known of the lost rule's packets is kept");
    fixture.outlive();
}

#[test]
fn half_a_pair_is_taken_back() {
    for lost in [Direction::FromClient, Direction::FromBackend] {
        let mut fixture = ManyWorkers::new(nat(), 1, 64);
        let client = client(false, 1, 40_000);
        let way = fixture.open(client);
        fixture.settle();
        let key = fixture.of(client).key(lost);
        fixture.engine.remove(&key).unwrap();
        let adopted = fixture.crash(fixture.as_before());
        assert_eq!((adopted.rules_missing, adopted.offloaded), (1, 0));
        assert_eq!(fixture.of(client).pair.state(), OffloadState::Software);
        assert!(fixture.engine.is_empty());
        assert_eq!(fixture.client_sends(client, ACK), Some(way));
        fixture.settle();
        assert_eq!(fixture.of(client).pair.state(), OffloadState::Offloaded, "and the pair is offered again");
        fixture.outlive();
    }
}

#[test]
fn requests_and_answers_that_were_lost_do_not_matter() {
    // Cut after so many of: install reaches the engine, first answer, second answer.
    for cut in 0..4 {
        let mut fixture = ManyWorkers::new(nat(), 1, 64);
        let client = client(false, 1, 40_000);
        fixture.open(client);
        if cut > 0 {
            fixture.flush(0);
        }
        (1..cut).for_each(|_| fixture.answer_one(0));
        let adopted = fixture.crash(fixture.as_before());
        assert_eq!((adopted.kept, adopted.offloaded), (1, u64::from(cut > 0)), "cut {cut}");
        assert_eq!(fixture.of(client).pair.state(), OffloadState::Offloaded);
        fixture.outlive();
    }
}

#[test]
fn a_connection_pending_removal_goes_and_its_port_rests() {
    // Cut: removal queued, with the engine, answered in part.
    for cut in 0..3 {
        let mut fixture = ManyWorkers::new(full_nat(), 1, 64);
        let client = client(false, 1, 40_000);
        let way = fixture.open(client);
        fixture.settle();
        assert!(fixture.backend_sends(way, client, FIN | ACK));
        fixture.client_sends(client, FIN | ACK);
        fixture.now = fixture.now + Duration::from_secs(6);
        let (mut asked, now) = (Default::default(), fixture.now);
        let worker = &mut fixture.workers[0];
        worker.handle_timeout(now);
        worker.poll_samples(&mut asked);
        let samples = asked.iter().map(|_| None).collect();
        worker.handle_samples(now, &asked, &samples);
        assert!(fixture.of(client).flags.has(Flags::PENDING_REMOVAL));
        if cut > 0 {
            fixture.flush(0);
        }
        if cut > 1 {
            fixture.answer_one(0);
        }
        let adopted = fixture.crash(fixture.as_before());
        assert_eq!((adopted.kept, adopted.pending_removal), (0, 1), "cut {cut}");
        assert_eq!(fixture.connections().count(), 0);
        assert!(fixture.engine.is_empty());
        assert_eq!(fixture.workers[0].ports.in_use(0), 0);
        fixture.outlive();
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
            let mut fixture = ManyWorkers::new(full_nat(), 1, 64);
            fixture.room = if offloaded { 100 } else { 0 };
            fixture.open(client(false, 1, 40_000));
            fixture.settle();
            let mut services = fixture.snapshot.services.to_vec();
            change(&mut services);
            let changed = Arc::new(Snapshot::new(services.into(), fixture.snapshot.pool.clone()));
            let adopted = fixture.crash(Restart { snapshot: changed, ..fixture.as_before() });
            assert_eq!((adopted.kept, adopted.without_service), (0, 1));
            assert!(fixture.engine.is_empty());
            fixture.outlive();
        }
    }
}

#[test]
fn connections_of_a_removed_service_go_on() {
    let mut fixture = ManyWorkers::new(nat(), 1, 64);
    let client = client(false, 1, 40_000);
    let way = fixture.open(client);
    let mut services = fixture.snapshot.services.to_vec();
    services[0].state = ServiceState::Removed;
    services[0].backends.iter_mut().for_each(|backend| backend.state = BackendState::Removed);
    let changed = Arc::new(Snapshot::new(services.into(), fixture.snapshot.pool.clone()));
    let adopted = fixture.crash(Restart { snapshot: changed, ..fixture.as_before() });
    assert_eq!(adopted.kept, 1);
    assert_eq!(fixture.client_sends(client, ACK), Some(way));
    fixture.outlive();
}

#[test]
fn stale_rule_of_the_same_key_is_not_adopted() {
    // The client's flow is taken over by a new connection to another backend, while the engine still has the old rules.
    let mut fixture = ManyWorkers::new(nat(), 1, 64);
    let client = client(false, 1, 40_000);
    let way = fixture.open(client);
    fixture.settle();
    let worker = &mut fixture.workers[0];
    let position = worker.slab.positions().next().unwrap();
    let mut next = *worker.slab.at(position);
    let now = fixture.now;
    assert!(worker.begin_removal(now, position));
    let another = fixture.snapshot.services[0].backends.iter().find(|backend| backend.endpoint != way.1).unwrap();
    (next.backend, next.backend_number) = (another.endpoint, another.number);
    next.pair = RulePair::default();
    fixture.workers[0].slab.insert(next).unwrap();
    let adopted = fixture.crash(fixture.as_before());
    assert_eq!((adopted.kept, adopted.pending_removal, adopted.offloaded), (1, 1, 0));
    assert_eq!(fixture.client_sends(client, ACK), Some((client, next.backend)));
    fixture.settle();
    assert_eq!(fixture.client_sends(client, ACK), Some((client, next.backend)), "by its own rules now");
    fixture.outlive();
}

#[test]
fn of_two_entries_with_one_flow_the_newer_one_stays() {
    for (newer_first, offloaded) in [(true, false), (false, false), (true, true), (false, true)] {
        let mut fixture = ManyWorkers::new(full_nat(), 1, 64);
        fixture.room = if offloaded { 100 } else { 0 };
        let client = client(false, 1, 40_000);
        fixture.open(client);
        fixture.settle();
        let worker = &mut fixture.workers[0];
        let position = worker.slab.positions().next().unwrap();
        let mut twin = *worker.slab.at(position);
        let step = Duration::from_millis(5);
        match newer_first {
            true => worker.slab.at_mut(position).created = twin.created + step,
            false => twin.created = twin.created + step,
        }
        let newest = twin.created.max(worker.slab.at(position).created);
        worker.slab.insert(twin).unwrap();
        let adopted = fixture.crash(fixture.as_before());
        assert_eq!((adopted.kept, adopted.duplicates), (1, 1));
        assert_eq!(fixture.of(client).created, newest);
        fixture.outlive();
    }
}

#[test]
fn nonsense_is_dropped_and_counted() {
    let mut fixture = ManyWorkers::new(nat(), 1, 64);
    let (one, other) = (client(false, 1, 40_000), client(false, 2, 40_000));
    let way = fixture.open(one);
    fixture.open(other);
    fixture.settle();
    fixture.workers[0].slab.at_mut(1).pair = RulePair::impossible();
    let adopted = fixture.crash(fixture.as_before());
    assert_eq!((adopted.kept, adopted.invalid), (1, 1));
    assert_eq!(fixture.engine.len(), 2, "rules without a connection are gone");
    assert_eq!(fixture.client_sends(one, ACK), Some(way));
    fixture.outlive();
}

#[test]
fn half_open_connections_give_way_in_the_order_of_their_age() {
    let mut fixture = ManyWorkers::new(nat(), 1, 4);
    let clients: Vec<Endpoint> = (1..5).map(|n| client(false, n, 40_000)).collect();
    for at in [2, 0, 3, 1] {
        fixture.client_sends(clients[at], SYN).unwrap();
        fixture.now = fixture.now + Duration::from_millis(10);
    }
    fixture.crash(fixture.as_before());
    fixture.client_sends(client(false, 9, 1), SYN).unwrap();
    fixture.client_sends(client(false, 9, 2), SYN).unwrap();
    let left: Vec<Endpoint> = fixture.live().iter().map(|c| c.client).collect();
    assert!(left.contains(&clients[1]) && left.contains(&clients[3]), "the younger ones stay: {left:?}");
    fixture.outlive();
}

#[test]
fn connections_silent_without_a_process_get_a_grace_period() {
    let mut fixture = ManyWorkers::new(nat(), 1, 64);
    fixture.room = 0;
    let client = client(false, 1, 40_000);
    let way = fixture.open(client);
    let away = Duration::from_secs(4000);
    fixture.crash(Restart { away, ..fixture.as_before() });
    fixture.wait(Duration::from_millis(500));
    assert_eq!(fixture.client_sends(client, ACK), Some(way), "longer away than it may be silent, and still there");
    fixture.wait(Duration::from_secs(1000));
    assert_eq!(fixture.connections().count(), 1);
    fixture.crash(Restart { away, ..fixture.as_before() });
    fixture.wait(Duration::from_secs(2));
    assert_eq!(fixture.connections().count(), 0, "it has expired");
}

#[test]
fn another_number_of_workers_keeps_every_established_connection() {
    for full in [false, true] {
        for counts in [[1u16, 2, 3, 1], [4, 1, 2, 4]] {
            let mut fixture = ManyWorkers::new(if full { full_nat() } else { nat() }, counts[0], 256);
            let clients: Vec<Endpoint> = (0..60).map(|n| client(false, n, 40_000)).collect();
            let ways: Vec<_> = clients.iter().map(|&client| fixture.open(client)).collect();
            for (round, &workers) in counts[1..].iter().enumerate() {
                // Some with the engine and some not.
                fixture.settle();
                let lost: Vec<FlowKey> = fixture.engine.keys().copied().skip(round).step_by(5).collect();
                fixture.engine.retain(|key, _| !lost.contains(key));
                let adopted = fixture.crash(Restart { workers, ..fixture.as_before() });
                assert_eq!((adopted.kept, adopted.misplaced), (60, 0));
                assert!(full || adopted.missteered == 0);
                fixture.wait(Duration::from_secs(2));
                for (&client, &way) in clients.iter().zip(&ways) {
                    assert_eq!(fixture.client_sends(client, ACK), Some(way));
                    assert!(fixture.backend_sends(way, client, ACK));
                    let connection = fixture.of(client);
                    let misses = connection.flags.has(Flags::MISSTEERED);
                    assert!(
                        !misses || connection.pair.state() == OffloadState::Offloaded,
                        "only the engine can carry it"
                    );
                }
            }
            for (&client, &way) in clients.iter().zip(&ways) {
                assert!(fixture.backend_sends(way, client, FIN | ACK));
                assert_eq!(fixture.client_sends(client, FIN | ACK), Some(way));
            }
            fixture.wait(Duration::from_secs(20));
            assert_eq!(fixture.connections().count(), 0);
            fixture.outlive();
        }
    }
}

#[test]
fn engine_only_connection_is_offered_repeatedly() {
    let mut fixture = ManyWorkers::new(full_nat(), 1, 256);
    let clients: Vec<Endpoint> = (0..20).map(|n| client(false, n, 40_000)).collect();
    fixture.room = 0;
    for &client in &clients {
        fixture.open(client);
    }
    fixture.settle();
    let adopted = fixture.crash(Restart { workers: 4, ..fixture.as_before() });
    assert!(adopted.missteered > 0);
    let carried = |fixture: &ManyWorkers| {
        fixture.connections().filter(|c| c.flags.has(Flags::MISSTEERED) && c.pair.held() == 3).count()
    };
    assert_eq!(carried(&fixture), 0);
    fixture.room = 1000;
    fixture.wait(Duration::from_secs(5));
    assert_eq!(carried(&fixture) as u64, adopted.missteered, "without a packet");
    fixture.outlive();
}

#[test]
fn what_is_taken_back_goes_before_anything_new_is_asked_for() {
    // More than fit into the queue to the engine at once.
    const MANY: u16 = 2500;
    let one_backend = snapshot(false, |service| service.backends = service.backends[..1].into());
    let mut fixture = ManyWorkers::new(one_backend, 1, 4096);
    let clients: Vec<Endpoint> = (0..MANY).map(|n| client(false, (n % 250) as u8, 5000 + n / 250)).collect();
    for &client in &clients {
        fixture.open(client);
        fixture.settle();
    }
    assert_eq!(fixture.engine.len(), usize::from(MANY) * 2);
    // The backend has another number now, so all of these go.
    let mut services = fixture.snapshot.services.to_vec();
    services[0].backends.iter_mut().for_each(|backend| backend.number += 100);
    let changed = Arc::new(Snapshot::new(services.into(), fixture.snapshot.pool.clone()));
    let adopted = fixture.adopt(Restart { snapshot: changed, ..fixture.as_before() });
    assert_eq!(adopted.without_service, u64::from(MANY));
    fixture.flush(0);
    // One whose rules are still there begins anew, with the same backend.
    let key =
        fixture.engine.keys().find(|key| key.destination == fixture.vip()).copied().expect("nothing is left to do");
    let before = fixture.engine[&key].rule.rewrite.destination;
    assert_eq!(fixture.client_sends(key.source, SYN), Some((key.source, before)));
    assert!(fixture.backend_sends((key.source, before), key.source, SYN | ACK));
    fixture.packet(packet(key.source, fixture.vip(), Way::Tcp(ACK)), false);
    let begun = fixture.of(key.source);
    assert_eq!(
        (begun.state, begun.pair.state(), begun.kept),
        (State::Established, OffloadState::Software, Kept::QueueFull)
    );
    fixture.settle();
    fixture.check();
    fixture.wait(Duration::from_millis(200));
    fixture.packet(packet(key.source, fixture.vip(), Way::Tcp(ACK)), true);
    fixture.settle();
    assert_eq!((fixture.of(key.source).pair.state(), fixture.engine.len()), (OffloadState::Offloaded, 2));
    fixture.outlive();
}

//! Connections that the engine has set up, or begun.

use super::super::Drop;
use super::one_worker::{OneWorker, Way, client, complaint, end, packet};
use crate::config::{Algorithm, BackendState, Service};
use crate::engine::{Begun, Counters, Report, Rule, SetUp, SetsUp};
use crate::flow::{Direction, Endpoint, FlowKey, Protocol};
use crate::frame::{Egress, Frame};
use crate::l4::connection::{Connection, Flags, State};
use crate::offload::OffloadState;
use crate::time::Duration;
use crate::wire::tcp::{ACK, FIN, RST, SYN};
use crate::wire::{self, Parsed};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;
#[expect(clippy::disallowed_types, reason = "a test holds on to what it has given away")]
use std::sync::Mutex;

/// What it tells, what it has begun, and how much it was granted.
type Scripted = (VecDeque<Report>, BTreeMap<FlowKey, Begun>, u32);

/// An engine by script.
#[derive(Clone, Default)]
#[expect(clippy::disallowed_types, reason = "a test holds on to what it has given away")]
pub(super) struct Script(Arc<Mutex<Scripted>>);

impl SetsUp for Script {
    fn next(&mut self) -> Option<Report> {
        self.0.lock().unwrap().0.front().copied()
    }
    fn done(&mut self) {
        self.0.lock().unwrap().0.pop_front();
    }
    fn take(&mut self, key: &FlowKey) -> Option<Begun> {
        self.0.lock().unwrap().1.remove(key)
    }
    fn grant(&mut self, room: u32) {
        self.0.lock().unwrap().2 = room;
    }
}

impl Script {
    /// Tells one thing more.
    pub(super) fn tell(&self, report: Report) {
        self.0.lock().unwrap().0.push_back(report);
    }

    /// Has begun a connection.
    pub(super) fn begin(&self, key: FlowKey, begun: Begun) {
        self.0.lock().unwrap().1.insert(key, begun);
    }

    /// How many connections it may make.
    pub(super) fn granted(&self) -> u32 {
        self.0.lock().unwrap().2
    }
}

/// Services of the engine's: hashed, none of whose backends serves another.
fn alone(service: &mut Service) {
    service.algorithm = Algorithm::Maglev;
    let port = service.endpoint.port;
    service.backends.iter_mut().for_each(|backend| backend.endpoint.port = 8000 + port);
}

fn fixture(ipv6: bool, capacity: usize) -> (OneWorker, Script) {
    let (mut fixture, script) = (OneWorker::with_capacity(ipv6, capacity, alone), Script::default());
    fixture.worker_mut().set_up_by(Box::new(script.clone()));
    (fixture, script)
}

pub(super) fn key(fixture: &OneWorker, client: Endpoint) -> FlowKey {
    FlowKey { source: client, destination: fixture.vip(), protocol: Protocol::Tcp }
}

/// The engine has set up a connection of `client` to backend `number`, and tells it.
fn make(fixture: &mut OneWorker, script: &Script, client: Endpoint, number: u16) -> Endpoint {
    let key = key(fixture, client);
    let backend = fixture.snapshot().backend(number).map_or(end(key.is_ipv4(), 9, 9), |(_, backend)| backend.endpoint);
    let connection =
        Connection::new(fixture.now, Protocol::Tcp, State::Established, [client, key.destination, backend, client]);
    for direction in [Direction::FromClient, Direction::FromBackend] {
        let rule = Rule { key: connection.key(direction), rewrite: connection.rewrite(direction), ..Rule::default() };
        fixture.engine.rules.insert(rule.key, (rule, Counters::default()));
    }
    script.0.lock().unwrap().0.push_back(Report::SetUp(SetUp { key, backend: number, answered: true }));
    backend
}

pub(super) fn take(fixture: &mut OneWorker) {
    let now = fixture.now;
    fixture.worker_mut().take_set_up(now);
    fixture.settle();
}

#[test]
fn set_up_connection_is_like_any_other() {
    for ipv6 in [false, true] {
        let (mut fixture, script) = fixture(ipv6, 64);
        let client = client(ipv6, 1, 40_000);
        let backend = make(&mut fixture, &script, client, 1);
        // A packet of it that the engine leaves to the worker finds it.
        assert_eq!(fixture.client_sends(client, FIN | ACK).destination, backend);
        let connection = fixture.only();
        assert_eq!((connection.state, connection.pair.state()), (State::FinClient, OffloadState::Offloaded));
        assert!(connection.flags.has(Flags::PROVEN) && connection.flags.has(Flags::JUDGED));
        assert_eq!(fixture.rules_known(), fixture.engine_keys());
        assert_eq!((fixture.load(1), fixture.loads()), (1, 1));
        let statistics = fixture.worker().statistics();
        assert_eq!((statistics.connections_now, statistics.half_open_now, statistics.offload.set_up), (1, 0, 1));
        assert_eq!((statistics.services[0].created, statistics.services[0].established), (1, 1));
        assert_eq!((statistics.backends[1].established, statistics.offload.rules), (1, 2));
        fixture.send(packet(backend, client, Way::Tcp(FIN | ACK)));
        fixture.wait(Duration::from_secs(20));
        assert_eq!(fixture.worker().connections().count(), 0);
        assert!(fixture.engine_keys().is_empty());
        assert_eq!((fixture.loads(), fixture.worker().statistics().offload.rules), (0, 0));
    }
}

/// A segment from `source` to `destination` has gone by its rule.
fn report(script: &Script, (source, destination): (Endpoint, Endpoint), flags: u8) {
    let key = FlowKey { source, destination, protocol: Protocol::Tcp };
    script.0.lock().unwrap().0.push_back(Report::Segment { key, flags });
}

#[test]
fn connection_whose_fins_are_reported_ends() {
    let (mut fixture, script) = fixture(false, 64);
    let client = client(false, 1, 40_000);
    let backend = make(&mut fixture, &script, client, 1);
    report(&script, (client, fixture.vip()), FIN | ACK);
    take(&mut fixture);
    assert_eq!(fixture.only().state, State::FinClient);
    report(&script, (backend, client), FIN | ACK);
    // Said again.
    report(&script, (backend, client), FIN | ACK);
    take(&mut fixture);
    assert_eq!((fixture.only().state, fixture.load(1)), (State::Closed, 0));
    fixture.wait(Duration::from_secs(20));
    assert_eq!(fixture.worker().connections().count(), 0);
    assert!(fixture.engine_keys().is_empty());
    // One of a connection that is gone changes nothing.
    report(&script, (backend, client), FIN | ACK);
    take(&mut fixture);
    assert!(script.0.lock().unwrap().0.is_empty());
}

#[test]
fn connection_with_a_forged_reset_reported_goes_on() {
    let (mut fixture, script) = fixture(false, 64);
    let client = client(false, 1, 40_000);
    make(&mut fixture, &script, client, 1);
    report(&script, (client, fixture.vip()), RST);
    take(&mut fixture);
    assert_eq!(fixture.only().state, State::Reset);
    // The engine counts on, in the second half of `tcp_reset`, 5 s.
    let key = key(&fixture, client);
    fixture.wait(Duration::from_secs(4));
    let now = fixture.now;
    fixture.engine.rules.get_mut(&key).unwrap().1 = Counters { packets: 9, bytes: 900, last_seen: Some(now) };
    fixture.wait(Duration::from_secs(4));
    assert_eq!(fixture.only().state, State::Established);
    assert_eq!(fixture.worker().statistics().revived, 1);
    assert_eq!(fixture.engine_keys().len(), 2);
}

#[test]
fn connection_begun_anew_by_its_rules_is_counted() {
    let (mut fixture, script) = fixture(false, 64);
    let client = client(false, 1, 40_000);
    let backend = make(&mut fixture, &script, client, 1);
    let (there, back) = ((client, fixture.vip()), (backend, client));
    // A SYN in mid-life changes nothing.
    report(&script, there, SYN);
    take(&mut fixture);
    assert_eq!((fixture.only().state, fixture.worker().statistics().services[0].created), (State::Established, 1));
    report(&script, there, FIN | ACK);
    report(&script, back, FIN | ACK);
    report(&script, there, SYN);
    take(&mut fixture);
    assert_eq!((fixture.only().state, fixture.worker().statistics().half_open_now), (State::SynSent, 1));
    report(&script, back, SYN | ACK);
    take(&mut fixture);
    let statistics = fixture.worker().statistics();
    assert_eq!((statistics.services[0].created, statistics.services[0].established), (2, 2));
    assert_eq!((statistics.half_open_now, statistics.backends[1].established), (0, 2));
    let connection = fixture.only();
    assert_eq!((connection.state, connection.pair.state()), (State::Established, OffloadState::Offloaded));
    assert_eq!(fixture.load(1), 1);
}

#[test]
fn connection_begun_anew_and_refused_counts_as_failed() {
    let (mut fixture, script) = fixture(false, 64);
    let client = client(false, 1, 40_000);
    let backend = make(&mut fixture, &script, client, 1);
    let (there, back) = ((client, fixture.vip()), (backend, client));
    report(&script, there, RST);
    report(&script, there, SYN);
    report(&script, back, RST | ACK);
    take(&mut fixture);
    assert_eq!((fixture.only().state, fixture.worker().statistics().backends[1].failed), (State::Reset, 1));
}

#[test]
fn set_up_connection_told_twice_is_one() {
    let (mut fixture, script) = fixture(false, 64);
    let client = client(false, 1, 40_000);
    make(&mut fixture, &script, client, 1);
    take(&mut fixture);
    make(&mut fixture, &script, client, 1);
    take(&mut fixture);
    assert_eq!(fixture.only().pair.state(), OffloadState::Offloaded);
    assert_eq!(fixture.engine_keys().len(), 2);
    assert_eq!(fixture.worker().statistics().offload.set_up, 1);
}

#[test]
fn set_up_connection_of_no_backend_leaves_the_engine() {
    let (mut fixture, script) = fixture(false, 64);
    let client = client(false, 1, 40_000);
    make(&mut fixture, &script, client, 999);
    take(&mut fixture);
    assert_eq!(fixture.worker().connections().count(), 0);
    assert!(!fixture.engine_keys().contains(&key(&fixture, client)));
}

#[test]
fn set_up_connection_of_a_disabled_backend_is_ended() {
    let (mut fixture, script) = fixture(false, 64);
    let mut services = fixture.snapshot().services.to_vec();
    services[0].backends[1].state = BackendState::Disabled;
    fixture.reconfigure(services, |_| {});
    make(&mut fixture, &script, client(false, 1, 40_000), 1);
    take(&mut fixture);
    fixture.wait(Duration::from_secs(1));
    assert!(fixture.engine_keys().is_empty());
    assert!(fixture.only().flags.has(Flags::SEVERED), "its ends are told");
    assert_eq!(fixture.worker().statistics().ended, 1);
}

#[test]
fn set_up_connections_find_the_room_that_was_granted() {
    let (mut fixture, script) = fixture(false, 32);
    take(&mut fixture);
    assert_eq!(script.0.lock().unwrap().2, 30, "a sixteenth is kept");
    for n in 0..34 {
        make(&mut fixture, &script, client(false, 1, 1000 + n), 1);
    }
    take(&mut fixture);
    take(&mut fixture);
    assert_eq!(script.0.lock().unwrap().2, 0);
    assert_eq!(fixture.worker().connections().count(), 32);
    assert_eq!(fixture.engine_keys().len(), 64, "what was too much has left the engine");
    assert_eq!((fixture.drops(Drop::TableFull), fixture.worker().statistics().offload.rules), (2, 64));
}

#[test]
fn what_the_engine_has_begun_goes_on_here() {
    let (mut fixture, script) = fixture(false, 64);
    let (first, second) = (client(false, 1, 40_000), client(false, 1, 40_001));
    let begin = |fixture: &OneWorker, client, answered, proof| {
        let begun = Begun { backend: 1, answered, proof, sent: 1 };
        script.0.lock().unwrap().1.insert(key(fixture, client), begun);
    };
    let backend = fixture.snapshot().backend(1).unwrap().1.endpoint;
    // Not answered: the SYN is sent again, and the SYN-ACK proves the client as ever.
    begin(&fixture, first, false, 0);
    assert_eq!(fixture.client_sends(first, SYN).destination, backend);
    assert_eq!((fixture.connection(first).state, fixture.worker().statistics().half_open_now), (State::SynSent, 1));
    // Answered: a wrong acknowledgement opens nothing.
    begin(&fixture, second, true, 1 << 30);
    assert_eq!(fixture.client_sends(second, ACK).destination, backend);
    assert_eq!(fixture.connection(second).state, State::SynReceived);
    assert!(fixture.engine_keys().is_empty());
    // The backend's packet alone finds what has begun, too.
    let third = client(false, 1, 40_002);
    begin(&fixture, third, false, 0);
    let answer = fixture.send(packet(backend, third, Way::Tcp(SYN | ACK))).sent();
    assert_eq!((answer.source, answer.destination), (fixture.vip(), third));
    assert_eq!(fixture.client_sends(third, ACK).destination, backend);
    assert_eq!(fixture.connection(third).state, State::Established);
    assert!(script.0.lock().unwrap().1.is_empty());
}

#[test]
fn what_has_begun_beside_a_connection_does_not_double_it() {
    let (mut fixture, script) = fixture(false, 64);
    let client = client(false, 1, 40_000);
    fixture.engine.room = 0;
    let held = fixture.open(client);
    // By a forged SYN, while no process was there.
    let number = u16::from(fixture.snapshot().backend(0).unwrap().1.endpoint == held);
    let other = fixture.snapshot().backend(number).unwrap().1.endpoint;
    script.begin(key(&fixture, client), Begun { backend: number, answered: true, proof: 1, sent: 1 });
    fixture.send(packet(other, client, Way::Tcp(RST | ACK)));
    assert_eq!(fixture.only().backend, held);
    assert_eq!(fixture.client_sends(client, ACK).destination, held);
}

#[test]
fn error_about_what_the_engine_has_begun_reaches_the_client() {
    for ipv6 in [false, true] {
        let (mut fixture, script) = fixture(ipv6, 64);
        let client = client(ipv6, 1, 40_000);
        let backend = fixture.snapshot().backend(1).unwrap().1.endpoint;
        let begun = Begun { backend: 1, answered: false, proof: 0, sent: 1 };
        script.0.lock().unwrap().1.insert(key(&fixture, client), begun);
        // The SYN went to the backend by the engine; a router there complains.
        let syn = packet(client, backend, Way::Tcp(SYN));
        let router = end(ipv6, 200, 0).address;
        let told = fixture.send_frame(complaint(&syn, router)).frames.remove(0);
        let Ok(Parsed::IcmpError(error)) = wire::parse(told.bytes()) else { panic!("no ICMP error") };
        assert_eq!((error.source, error.destination), (router, client.address));
        assert_eq!((error.quoted.source, error.quoted.destination), (client, fixture.vip()));
        assert_eq!(fixture.only().state, State::SynSent);
        // One about nothing that has begun is the kernel's.
        let other = packet(Endpoint { port: 9, ..client }, backend, Way::Tcp(SYN));
        let left = fixture.send_frame(complaint(&other, router)).frames.remove(0);
        assert_eq!(left.meta().egress, Egress::Kernel);
    }
}

#[test]
fn half_open_rivals_of_a_set_up_connection_give_way() {
    let (mut fixture, script) = fixture(false, 64);
    let client = client(false, 1, 40_000);
    fixture.client_sends(client, SYN);
    let backend = make(&mut fixture, &script, client, 1);
    take(&mut fixture);
    assert_eq!((fixture.only().state, fixture.only().backend), (State::Established, backend));
    assert_eq!(fixture.engine_keys().len(), 2);
    // One that is established stays, and what was set up leaves the engine.
    let other = super::one_worker::client(false, 1, 40_001);
    fixture.engine.room = 0;
    let held = fixture.open(other);
    let number = u16::from(fixture.snapshot().backend(0).unwrap().1.endpoint == held);
    make(&mut fixture, &script, other, number);
    take(&mut fixture);
    assert_eq!(fixture.connection(other).backend, held);
    assert_eq!(fixture.engine_keys().len(), 2);
}

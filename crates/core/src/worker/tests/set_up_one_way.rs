//! Connections of direct server return that the engine has set up, or begun.

use super::super::Drop;
use super::super::states::ONE_WAY_PACKETS;
use super::IPV6;
use super::one_way::{FIRST, direct, says};
use super::one_worker::{OneWorker, client};
use super::set_up::{Script, key, take};
use crate::config::{BackendState, Forwarding, Service};
use crate::engine::{Begun, Counters, Fate, NotSetUp, Report, Rule, SetUp, set_up_services};
use crate::flow::Endpoint;
use crate::l4::connection::{Flags, State};
use crate::offload::OffloadState;
use crate::rewrite::Rewrite;
use crate::time::Duration;
use crate::wire::tcp::{ACK, FIN, RST, SYN};
use alloc::boxed::Box;

fn fixture(ipv6: bool, capacity: usize) -> (OneWorker, Script) {
    let (mut fixture, script) = (OneWorker::with_capacity(ipv6, capacity, direct), Script::default());
    fixture.worker_mut().set_up_by(Box::new(script.clone()));
    (fixture, script)
}

/// The engine tells that the client has gone on after its SYN, or, not `answered`, that it has begun anew.
fn tell(fixture: &mut OneWorker, script: &Script, client: Endpoint, (backend, answered): (u16, bool)) {
    let begun = Begun { backend, answered, proof: FIRST.wrapping_add(1), sent: 2 };
    script.tell(Report::Begun { key: key(fixture, client), begun });
    take(fixture);
}

/// The engine has made the rule, and tells it.
fn make(fixture: &mut OneWorker, script: &Script, client: Endpoint, backend: u16) {
    let key = key(fixture, client);
    let end = fixture.snapshot().backend(backend).unwrap().1.endpoint;
    let rewrite = Rewrite { source: client, destination: end, ..Rewrite::default() };
    let rule = Rule { key, rewrite, fate: Fate::Direct, ..Rule::default() };
    fixture.engine.rules.insert(key, (rule, Counters::default()));
    script.tell(Report::SetUp(SetUp { key, backend, answered: true }));
    take(fixture);
}

fn segment(fixture: &mut OneWorker, script: &Script, client: Endpoint, flags: u8) {
    script.tell(Report::Segment { key: key(fixture, client), flags });
    take(fixture);
}

#[test]
fn set_up_one_way_services_may_share_backends() {
    let fixture = OneWorker::new(false, direct);
    assert!(set_up_services(fixture.snapshot()).iter().all(Result::is_ok), "only their own ends count");
    let full = OneWorker::new(false, |service: &mut Service| service.forwarding = Forwarding::FullNat);
    assert!(set_up_services(full.snapshot()).contains(&Err(NotSetUp::Mode)));
}

#[test]
fn set_up_one_way_connection_gets_its_rule_later() {
    for ipv6 in IPV6 {
        let (mut fixture, script) = fixture(ipv6, 64);
        let client = client(ipv6, 1, 40_000);
        tell(&mut fixture, &script, client, (1, true));
        let begun = fixture.only();
        assert_eq!((begun.state, begun.pair.state()), (State::Established, OffloadState::Software));
        assert!(begun.flags.has(Flags::DIRECT) && !begun.flags.has(Flags::PROVEN));
        let statistics = fixture.worker().statistics();
        assert_eq!((statistics.services[0].created, statistics.services[0].established), (1, 1));
        assert_eq!((statistics.half_open_now, statistics.offload.set_up), (0, 0));
        make(&mut fixture, &script, client, 1);
        let connection = fixture.only();
        assert_eq!((connection.pair.state(), connection.proof), (OffloadState::Offloaded, 0));
        assert!(connection.flags.has(Flags::PROVEN));
        assert_eq!(fixture.rules_known(), [key(&fixture, client)]);
        let statistics = fixture.worker().statistics();
        assert_eq!((statistics.offload.set_up, statistics.offload.rules), (1, 1));
        assert_eq!((statistics.services[0].created, statistics.services[0].established), (1, 1));
        // Its end is told, and takes the rule away.
        segment(&mut fixture, &script, client, FIN | ACK);
        assert_eq!(fixture.only().state, State::FinClient);
        segment(&mut fixture, &script, client, RST);
        fixture.wait(Duration::from_secs(10));
        assert_eq!((fixture.engine_keys().len(), fixture.worker().connections().count()), (0, 0));
        assert_eq!((fixture.loads(), fixture.worker().statistics().offload.rules), (0, 0));
    }
}

#[test]
fn set_up_one_way_rule_alone_is_a_connection() {
    let (mut fixture, script) = fixture(false, 64);
    let client = client(false, 1, 40_000);
    make(&mut fixture, &script, client, 0);
    let connection = fixture.only();
    assert_eq!((connection.state, connection.pair.state()), (State::Established, OffloadState::Offloaded));
    assert!(connection.flags.has(Flags::PROVEN) && !connection.flags.has(Flags::CHALLENGED));
    make(&mut fixture, &script, client, 0);
    assert_eq!(fixture.worker().statistics().offload.set_up, 1, "told twice");
    // Of a backend that is disabled it ends.
    let mut services = fixture.snapshot().services.to_vec();
    services[0].backends[1].state = BackendState::Disabled;
    fixture.reconfigure(services, |_| {});
    make(&mut fixture, &script, super::one_worker::client(false, 1, 40_001), 1);
    fixture.wait(Duration::from_secs(1));
    assert_eq!((fixture.only().backend_number, fixture.engine_keys().len()), (0, 1));
}

#[test]
fn set_up_one_way_flood_gives_way() {
    let (mut fixture, script) = fixture(false, 32);
    let ours = client(false, 1, 40_000);
    tell(&mut fixture, &script, ours, (1, true));
    make(&mut fixture, &script, ours, 1);
    for port in 1..500 {
        tell(&mut fixture, &script, client(false, 2, port), (1, true));
        assert!(script.granted() > 0, "the engine goes on");
    }
    assert_eq!(fixture.worker().connections().count(), 32);
    assert_eq!(fixture.connection(ours).pair.state(), OffloadState::Offloaded);
    assert_eq!((fixture.worker().statistics().evicted, fixture.drops(Drop::TableFull)), (500 - 32, 0));
    // What has sent enough stays, and leaves the engine no room.
    for port in 1..100 {
        let client = client(false, 3, port);
        tell(&mut fixture, &script, client, (1, true));
        make(&mut fixture, &script, client, 1);
    }
    assert_eq!((script.granted(), fixture.engine_keys().len()), (0, 32));
}

#[test]
fn set_up_one_way_worker_goes_on_with_what_it_is_left() {
    let (mut fixture, script) = fixture(false, 64);
    let (told, begun, gone_on) = (client(false, 1, 40_000), client(false, 1, 40_001), client(false, 1, 40_002));
    // The worker has heard of it: the first packet that it sees goes to the same backend, and so on.
    tell(&mut fixture, &script, told, (1, true));
    for _ in 2..ONE_WAY_PACKETS {
        assert_eq!(fixture.goes_direct(says(&fixture, told, ACK, 1)), 1);
    }
    fixture.settle();
    assert_eq!(fixture.connection(told).pair.state(), OffloadState::Offloaded);
    // A SYN has begun it.
    let next = FIRST.wrapping_add(1);
    script.begin(key(&fixture, begun), Begun { backend: 1, answered: false, proof: next, sent: 1 });
    assert_eq!(fixture.goes_direct(says(&fixture, begun, ACK, 1 << 20)), 1);
    assert_eq!(fixture.state(begun), State::SynSent, "its number is far off");
    assert_eq!(fixture.goes_direct(says(&fixture, begun, ACK, 1)), 1);
    assert_eq!(fixture.state(begun), State::Established);
    // One that had gone on, and had to give way in the table.
    script.begin(key(&fixture, gone_on), Begun { backend: 0, answered: true, proof: next, sent: 5 });
    assert_eq!(fixture.goes_direct(says(&fixture, gone_on, FIN | ACK, 1)), 0);
    assert_eq!(fixture.state(gone_on), State::FinClient);
}

#[test]
fn set_up_one_way_client_begins_anew() {
    let (mut fixture, script) = fixture(false, 64);
    let client = client(false, 1, 40_000);
    tell(&mut fixture, &script, client, (1, true));
    // Forged, or of a client that has forgotten: nothing changes.
    tell(&mut fixture, &script, client, (1, false));
    assert_eq!((fixture.only().state, fixture.worker().statistics().services[0].created), (State::Established, 1));
    segment(&mut fixture, &script, client, FIN | ACK);
    tell(&mut fixture, &script, client, (1, false));
    assert_eq!((fixture.only().state, fixture.only().proof), (State::SynSent, FIRST.wrapping_add(1)));
    // What is told late of the connection before changes nothing.
    segment(&mut fixture, &script, client, RST);
    tell(&mut fixture, &script, client, (1, true));
    let statistics = fixture.worker().statistics();
    assert_eq!((statistics.services[0].created, statistics.services[0].established), (2, 2));
    // With a rule the SYN goes by that, and no packet after it comes here.
    make(&mut fixture, &script, client, 1);
    segment(&mut fixture, &script, client, SYN);
    assert_eq!(fixture.worker().statistics().services[0].created, 2, "in mid-life");
    segment(&mut fixture, &script, client, RST);
    segment(&mut fixture, &script, client, SYN);
    let connection = fixture.only();
    assert_eq!((connection.state, connection.pair.state()), (State::Established, OffloadState::Offloaded));
    assert!(connection.flags.has(Flags::PROVEN), "it has paid for its rule");
    assert_eq!(fixture.worker().statistics().services[0].created, 3);
}

#[test]
fn set_up_one_way_connection_over_yields_to_another() {
    let (mut fixture, script) = fixture(false, 64);
    let client = client(false, 1, 40_000);
    tell(&mut fixture, &script, client, (1, true));
    tell(&mut fixture, &script, client, (0, true));
    assert_eq!(fixture.only().backend_number, 1, "one that goes on stays");
    segment(&mut fixture, &script, client, FIN | ACK);
    tell(&mut fixture, &script, client, (0, true));
    assert_eq!((fixture.only().backend_number, fixture.only().state), (0, State::Established));
}

#[test]
fn set_up_one_way_forged_reset_kills_nothing() {
    let (mut fixture, script) = fixture(false, 64);
    let client = client(false, 1, 40_000);
    tell(&mut fixture, &script, client, (1, true));
    segment(&mut fixture, &script, client, RST);
    assert_eq!(fixture.only().state, State::Reset);
    // The engine sends on what follows, for a while, and then the worker does.
    fixture.wait(Duration::from_secs(3));
    assert_eq!(fixture.goes_direct(says(&fixture, client, ACK, 1)), 1);
    fixture.wait(Duration::from_secs(3));
    assert_eq!(fixture.only().state, State::Established);
}

//! Records of connections: one for each, with what rules have carried.

use super::one_worker::{OneWorker, Way, client, packet};
use crate::l4::connection::State;
use crate::record::{Ending, Message, Record, Recorder, Records, flags};
use crate::time::Duration;
use crate::wire::tcp::{ACK, FIN, RST, SYN};
use alloc::vec::Vec;

fn recorded() -> (OneWorker, Records) {
    let mut fixture = OneWorker::new(false, |service| service.is_recorded = true);
    let (recorder, records) = Recorder::new(1 << 16);
    fixture.worker_mut().record_to(recorder);
    (fixture, records)
}

fn all(records: &mut Records) -> Vec<Record> {
    let mut found = Vec::new();
    records.read(|message| match message {
        Message::Ended(record) => found.push(record),
        other => panic!("{other:?}"),
    });
    found
}

#[test]
fn connection_that_closes_has_the_counters_of_its_rules() {
    let (mut fixture, mut records) = recorded();
    let client = client(false, 1, 40_000);
    let backend = fixture.open(client);
    let number = fixture.only().backend_number;
    for _ in 0..100 {
        fixture.hit(&packet(client, fixture.vip(), Way::Tcp(ACK)).key());
    }
    fixture.wait(Duration::from_secs(3));
    fixture.client_sends(client, FIN | ACK);
    fixture.send(packet(backend, client, Way::Tcp(FIN | ACK)));
    assert_eq!(fixture.only().state, State::Closed);
    assert_eq!(all(&mut records).len(), 0, "it may go on");
    fixture.wait(Duration::from_secs(60));
    let found = all(&mut records);
    assert_eq!(found.len(), 1, "{found:?}");
    let record = found[0];
    assert_eq!((record.client, record.vip), (client, fixture.vip()));
    assert_eq!((record.backend, record.service, record.number), (number, 0, 0));
    assert_eq!((Ending::of(record.ending), record.flags), (Ending::Done, flags::ENGINE));
    // SYN, ACK and FIN of the client in software; SYN-ACK and FIN of the backend.
    assert_eq!(record.packets, [103, 2]);
    assert!(record.bytes[0] >= 103 * 40 && record.bytes[1] >= 80, "{record:?}");
    assert!((3_000..4_000).contains(&(record.took / 1_000_000)), "without the time that it was remembered: {record:?}");
}

#[test]
fn ends_of_connections_are_told_apart() {
    let (mut fixture, mut records) = recorded();
    let ends = |fixture: &mut OneWorker, records: &mut Records| {
        fixture.wait(Duration::from_secs(7200));
        all(records).iter().map(|record| (Ending::of(record.ending), record.flags)).collect::<Vec<_>>()
    };
    fixture.open(client(false, 1, 40_000));
    assert_eq!(ends(&mut fixture, &mut records), [(Ending::Timeout, 0)]);
    fixture.open(client(false, 1, 40_001));
    fixture.client_sends(client(false, 1, 40_001), RST);
    assert_eq!(ends(&mut fixture, &mut records), [(Ending::Reset, 0)]);
    // A forged SYN may be one that is never answered.
    fixture.client_sends(client(false, 1, 40_002), SYN);
    assert_eq!(ends(&mut fixture, &mut records), []);
    fixture.open(client(false, 1, 40_003));
    let number = fixture.only().backend_number;
    fixture.end_backend(number, crate::worker::Which::All);
    assert_eq!(ends(&mut fixture, &mut records), [(Ending::Removed, 0)]);
}

#[test]
fn connections_of_the_same_ends_have_one_each() {
    let (mut fixture, mut records) = recorded();
    let client = client(false, 1, 40_000);
    for round in 0..2 {
        let backend = fixture.open(client);
        fixture.client_sends(client, FIN | ACK);
        fixture.send(packet(backend, client, Way::Tcp(FIN | ACK)));
        fixture.wait(Duration::from_secs(1));
        assert_eq!(all(&mut records).len(), round, "the one before, once it begins anew");
    }
    fixture.wait(Duration::from_secs(60));
    assert_eq!(all(&mut records).len(), 1);
}

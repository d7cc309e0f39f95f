//! TCP connections of a backend that is taken away: both ends are told.

use super::super::Which;
use super::one_worker::{OneWorker, Packet, Sent, Way, client, packet, with_tcp};
use crate::config::Forwarding;
use crate::flow::Endpoint;
use crate::frame::Frame;
use crate::l4::connection::Flags;
use crate::time::Duration;
use crate::wire::tcp::{ACK, FIN, PSH, RST, SYN};
use alloc::vec::Vec;

/// The sequence number in a frame with these ends.
fn number(frame: &Packet) -> u32 {
    let at = if frame.key().is_ipv4() { 14 + 20 } else { 14 + 40 };
    u32::from_be_bytes(frame.bytes()[at + 4..at + 8].try_into().unwrap())
}

fn flags(frame: &Packet) -> u8 {
    let at = if frame.key().is_ipv4() { 14 + 20 } else { 14 + 40 };
    frame.bytes()[at + 13]
}

/// An end's packet, which acknowledges `number`.
fn acknowledges(from: Endpoint, to: Endpoint, number: u32) -> Packet {
    with_tcp(packet(from, to, Way::Tcp(ACK | PSH)), |tcp| tcp[8..12].copy_from_slice(&number.to_be_bytes()))
}

/// The worker's questions to an end since the last call.
fn questions(fixture: &mut OneWorker, of: Endpoint) -> Vec<u32> {
    let (its, others) = core::mem::take(&mut fixture.told).into_iter().partition(|frame| frame.key().destination == of);
    fixture.told = others;
    let its: Vec<Packet> = its;
    assert!(its.iter().all(|frame| flags(frame) == ACK));
    its.iter().map(number).collect()
}

/// A connection whose backend is taken away: the client, its VIP, the backend, and whom that sees.
fn severed(fixture: &mut OneWorker, number: u8) -> [Endpoint; 4] {
    let client = client(!fixture.vip().address.is_ipv4(), number, 40_000);
    fixture.open(client);
    let connection = fixture.connection(client);
    assert_eq!(fixture.engine_keys().len(), 2, "the engine carries it");
    fixture.end_backend(connection.backend_number, Which::All);
    [client, connection.vip, connection.backend, connection.source]
}

#[test]
fn both_ends_are_asked_and_reset_with_their_numbers() {
    for (ipv6, forwarding) in [(false, Forwarding::Nat), (true, Forwarding::Nat), (false, Forwarding::FullNat)] {
        let mut fixture = OneWorker::new(ipv6, |service| service.forwarding = forwarding);
        let [client, vip, backend, source] = severed(&mut fixture, 1);
        fixture.wait(Duration::from_millis(150));
        assert_eq!(fixture.engine_keys().len(), 0);
        for (end, other, number) in [(client, vip, 0x1234_5678), (backend, source, 0xffff_fff0)] {
            let [first, second] = questions(&mut fixture, end)[..] else { panic!("{end} was not asked") };
            assert_eq!(second.wrapping_sub(first), 1 << 31, "one of them is outside any window");
            let answer = fixture.send(acknowledges(end, other, number));
            let [reset] = &answer.frames[..] else { panic!("no reset") };
            assert_eq!((reset.key().source, reset.key().destination), (other, end));
            assert_eq!((flags(reset), number), (RST, self::number(reset)));
        }
        // Asked again, either says that it has no connection any more.
        fixture.wait(Duration::from_millis(300));
        for (end, other) in [(client, vip), (backend, source)] {
            assert_eq!(questions(&mut fixture, end).len(), 2);
            assert!(fixture.send(packet(end, other, Way::Tcp(RST))).frames.is_empty());
        }
        assert_eq!(fixture.worker().connections().count(), 0);
        assert_eq!(fixture.loads(), 0);
    }
}

#[test]
fn an_end_that_speaks_late_is_reset_all_the_same() {
    let mut fixture = OneWorker::new(false, |_| {});
    let [client, vip, backend, source] = severed(&mut fixture, 1);
    fixture.wait(Duration::from_secs(60));
    assert_eq!(questions(&mut fixture, client).len(), 10, "asked five times and no more");
    for (end, other) in [(client, vip), (backend, source)] {
        let answer = fixture.send(acknowledges(end, other, 77));
        assert_eq!((flags(&answer.frames[0]), number(&answer.frames[0])), (RST, 77));
    }
    fixture.wait(Duration::from_secs(61));
    assert_eq!(fixture.worker().connections().count(), 0, "it is not remembered for ever");
}

#[test]
fn a_client_that_has_no_connection_any_more_may_begin_another() {
    let mut fixture = OneWorker::new(false, |_| {});
    let [client, vip, backend, _] = severed(&mut fixture, 1);
    let number = fixture.connection(client).backend_number;
    fixture.set_up(number, false);
    fixture.wait(Duration::from_millis(150));
    let Sent { destination, flags, .. } = fixture.send(packet(client, vip, Way::Tcp(SYN))).sent();
    assert!(destination != backend && flags == SYN, "{destination}");
    assert!(!fixture.only().flags.has(Flags::SEVERED));
}

#[test]
fn what_is_half_open_or_over_is_told_nothing() {
    let mut fixture = OneWorker::new(false, |service| service.backends = service.backends[..1].into());
    let (half_open, over) = (client(false, 1, 40_000), client(false, 2, 40_000));
    fixture.client_sends(half_open, SYN);
    let backend = fixture.open(over);
    fixture.client_sends(over, ACK | FIN);
    fixture.send(packet(backend, over, Way::Tcp(ACK | FIN)));
    fixture.end_backend(0, Which::All);
    fixture.wait(Duration::from_secs(5));
    assert_eq!((fixture.worker().connections().count(), fixture.told.len()), (0, 0));
}

#[test]
fn questions_are_bounded_in_rate() {
    let mut fixture =
        OneWorker::with_capacity(false, 16_384, |service| service.backends = service.backends[..1].into());
    for port in 0..12_000 {
        fixture.open(client(false, 1, 1000 + port));
    }
    fixture.end_backend(0, Which::All);
    let turns = |fixture: &mut OneWorker| {
        fixture.now = fixture.now + Duration::from_millis(150);
        for _ in 0..500 {
            fixture.turn();
            fixture.settle();
        }
    };
    turns(&mut fixture);
    turns(&mut fixture);
    assert!(fixture.told.len() <= 4 * 11_500, "each is asked by four packets: {}", fixture.told.len());
    assert!(fixture.worker().connections().any(|connection| connection.proof == 0));
    (0..60).for_each(|_| turns(&mut fixture));
    assert!(fixture.worker().connections().all(|connection| connection.proof > 0), "all are asked in the end");
}

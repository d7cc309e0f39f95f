//! TCP connections of a backend that is taken away: both ends are told.

use super::super::Which;
use super::stage::{Packet, Sent, Stage, Way, client, packet, with_tcp};
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

/// What the worker has asked an end since it was last looked at.
fn questions(stage: &mut Stage, of: Endpoint) -> Vec<u32> {
    let (its, others) = core::mem::take(&mut stage.told).into_iter().partition(|frame| frame.key().destination == of);
    stage.told = others;
    let its: Vec<Packet> = its;
    assert!(its.iter().all(|frame| flags(frame) == ACK));
    its.iter().map(number).collect()
}

/// A connection whose backend is taken away: the client, its VIP, the backend, and whom that sees.
fn severed(stage: &mut Stage, number: u8) -> [Endpoint; 4] {
    let client = client(!stage.vip().address.is_ipv4(), number, 40_000);
    stage.open(client);
    let connection = stage.connection(client);
    assert_eq!(stage.engine_keys().len(), 2, "the engine carries it");
    stage.end_backend(connection.backend_number, Which::All);
    [client, connection.vip, connection.backend, connection.source]
}

#[test]
fn both_ends_are_asked_and_reset_with_their_numbers() {
    for (ipv6, forwarding) in [(false, Forwarding::Nat), (true, Forwarding::Nat), (false, Forwarding::FullNat)] {
        let mut stage = Stage::new(ipv6, |service| service.forwarding = forwarding);
        let [client, vip, backend, source] = severed(&mut stage, 1);
        stage.wait(Duration::from_millis(150));
        assert_eq!(stage.engine_keys().len(), 0);
        for (end, other, number) in [(client, vip, 0x1234_5678), (backend, source, 0xffff_fff0)] {
            let [first, second] = questions(&mut stage, end)[..] else { panic!("{end} was not asked") };
            assert_eq!(second.wrapping_sub(first), 1 << 31, "one of them is outside any window");
            let answer = stage.send(acknowledges(end, other, number));
            let [reset] = &answer.frames[..] else { panic!("no reset") };
            assert_eq!((reset.key().source, reset.key().destination), (other, end));
            assert_eq!((flags(reset), number), (RST, self::number(reset)));
        }
        // Asked again, either says that it has no connection any more.
        stage.wait(Duration::from_millis(300));
        for (end, other) in [(client, vip), (backend, source)] {
            assert_eq!(questions(&mut stage, end).len(), 2);
            assert!(stage.send(packet(end, other, Way::Tcp(RST))).frames.is_empty());
        }
        assert_eq!(stage.worker().connections().count(), 0);
        assert_eq!(stage.loads(), 0);
    }
}

#[test]
fn an_end_that_speaks_late_is_reset_all_the_same() {
    let mut stage = Stage::new(false, |_| {});
    let [client, vip, backend, source] = severed(&mut stage, 1);
    stage.wait(Duration::from_secs(60));
    assert_eq!(questions(&mut stage, client).len(), 10, "asked five times and no more");
    for (end, other) in [(client, vip), (backend, source)] {
        let answer = stage.send(acknowledges(end, other, 77));
        assert_eq!((flags(&answer.frames[0]), number(&answer.frames[0])), (RST, 77));
    }
    stage.wait(Duration::from_secs(61));
    assert_eq!(stage.worker().connections().count(), 0, "it is not remembered for ever");
}

#[test]
fn a_client_that_has_no_connection_any_more_may_begin_another() {
    let mut stage = Stage::new(false, |_| {});
    let [client, vip, backend, _] = severed(&mut stage, 1);
    let number = stage.connection(client).backend_number;
    stage.set_up(number, false);
    stage.wait(Duration::from_millis(150));
    let Sent { destination, flags, .. } = stage.send(packet(client, vip, Way::Tcp(SYN))).sent();
    assert!(destination != backend && flags == SYN, "{destination}");
    assert!(!stage.only().flags.has(Flags::SEVERED));
}

#[test]
fn what_is_half_open_or_over_is_told_nothing() {
    let mut stage = Stage::new(false, |service| service.backends = service.backends[..1].into());
    let (half_open, over) = (client(false, 1, 40_000), client(false, 2, 40_000));
    stage.client_sends(half_open, SYN);
    let backend = stage.open(over);
    stage.client_sends(over, ACK | FIN);
    stage.send(packet(backend, over, Way::Tcp(ACK | FIN)));
    stage.end_backend(0, Which::All);
    stage.wait(Duration::from_secs(5));
    assert_eq!((stage.worker().connections().count(), stage.told.len()), (0, 0));
}

#[test]
fn questions_are_bounded_in_rate() {
    let mut stage = Stage::with_capacity(false, 16_384, |service| service.backends = service.backends[..1].into());
    for port in 0..12_000 {
        stage.open(client(false, 1, 1000 + port));
    }
    stage.end_backend(0, Which::All);
    let turns = |stage: &mut Stage| {
        stage.now = stage.now + Duration::from_millis(150);
        for _ in 0..500 {
            stage.turn();
            stage.settle();
        }
    };
    turns(&mut stage);
    turns(&mut stage);
    assert!(stage.told.len() <= 4 * 11_500, "each is asked by four packets: {}", stage.told.len());
    assert!(stage.worker().connections().any(|connection| connection.proof == 0));
    (0..60).for_each(|_| turns(&mut stage));
    assert!(stage.worker().connections().all(|connection| connection.proof > 0), "all are asked in the end");
}

//! Direct server return: only the client's packets pass, unchanged but for a hop.

use super::super::states::ONE_WAY_PACKETS;
use super::super::{Drop, Which};
use super::IPV6;
use super::many_workers::ManyWorkers;
use super::one_worker::{OneWorker, Packet, Way, allow_fragments, client, complaint, end, packet, with_tcp};
use crate::config::{Forwarding, Service, UnknownPacket};
use crate::engine::Fate;
use crate::flow::{Direction, Endpoint};
use crate::frame::{Arrival, Checksum, Egress, Frame, VecFrame};
use crate::l4::connection::State;
use crate::offload::OffloadState;
use crate::time::Duration;
use crate::wire::tcp::{ACK, FIN, PSH, RST, SYN};
use crate::wire::{self, Parsed};
use alloc::vec::Vec;

/// The client's first sequence number.
pub(super) const FIRST: u32 = u32::MAX - 2;

pub(super) fn direct(service: &mut Service) {
    service.forwarding = Forwarding::Direct;
}

/// A TCP packet with `flags` that lies `ahead` of the client's first number.
pub(super) fn says(fixture: &OneWorker, client: Endpoint, flags: u8, ahead: u32) -> Packet {
    let number = FIRST.wrapping_add(ahead).to_be_bytes();
    with_tcp(packet(client, fixture.vip(), Way::Tcp(flags)), |tcp| tcp[4..8].copy_from_slice(&number))
}

impl OneWorker {
    /// Sends a packet that must go to a backend as it is, but for a hop; the backend's number.
    pub(super) fn goes_direct(&mut self, packet: Packet) -> u16 {
        let outcome = self.send(packet.clone());
        let [frame] = &outcome.frames[..] else { panic!("{} frames", outcome.frames.len()) };
        let Egress::Direct(backend) = frame.meta.egress else { panic!("it goes by {:?}", frame.meta.egress) };
        assert_eq!(frame.data, one_hop_less(packet).data);
        backend
    }

    /// Opens a connection that gives way no longer; its backend's number.
    fn opens_direct(&mut self, client: Endpoint) -> u16 {
        let backend = self.goes_direct(says(self, client, SYN, 0));
        for _ in 1..ONE_WAY_PACKETS {
            assert_eq!(self.goes_direct(says(self, client, ACK, 1)), backend);
        }
        backend
    }

    pub(super) fn state(&self, client: Endpoint) -> State {
        self.connection(client).state
    }
}

/// The packet with one hop less, its header summed up anew.
fn one_hop_less(mut packet: Packet) -> Packet {
    if packet.data[12] == 0x08 {
        packet.data[22] -= 1;
        packet.data[24..26].fill(0);
        let sum: u32 = packet.data[14..34].chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum();
        let sum = !(((sum & 0xffff) + (sum >> 16)) as u16);
        packet.data[24..26].copy_from_slice(&sum.to_be_bytes());
    } else {
        packet.data[21] -= 1;
    }
    packet
}

#[test]
fn one_way_packets_reach_the_backend_as_they_are() {
    for ipv6 in IPV6 {
        let mut fixture = OneWorker::new(ipv6, direct);
        let (one, other) = (client(ipv6, 1, 40_000), client(ipv6, 2, 40_000));
        let backend = fixture.goes_direct(says(&fixture, one, SYN, 0));
        assert_ne!(fixture.goes_direct(says(&fixture, other, SYN, 0)), backend, "they take turns");
        assert_eq!(fixture.goes_direct(says(&fixture, one, ACK, 1)), backend);
        assert_eq!((fixture.state(one), fixture.state(other)), (State::Established, State::SynSent));
        let datagram = packet(one, end(ipv6, 1, 53), Way::Udp(100));
        assert_eq!(fixture.goes_direct(datagram.clone()), fixture.goes_direct(datagram));
    }
}

#[test]
fn one_way_connection_gets_one_rule_after_eight_packets() {
    for ipv6 in IPV6 {
        let mut fixture = OneWorker::new(ipv6, direct);
        let client = client(ipv6, 1, 40_000);
        let number = fixture.opens_direct(client);
        assert_eq!(fixture.only().pair.state(), OffloadState::Offloaded);
        let key = says(&fixture, client, ACK, 1).key();
        assert_eq!((fixture.engine_keys(), fixture.rules_known()), ([key].into(), [key].into()));
        let rule = fixture.rule(&key);
        let (_, backend) = fixture.snapshot().backend(number).unwrap();
        assert_eq!((rule.fate, rule.rewrite.destination), (Fate::Direct, backend.endpoint));
        assert_eq!(rule.total, u32::from(number) * 2);
        // Its end takes the rule away.
        fixture.goes_direct(says(&fixture, client, RST, 1));
        fixture.wait(Duration::from_secs(10));
        assert_eq!((fixture.engine_keys().len(), fixture.worker().connections().count()), (0, 0));
    }
}

#[test]
fn one_way_flood_of_handshakes_gives_way() {
    let mut fixture = OneWorker::with_capacity(false, 8, direct);
    let ours = client(false, 1, 40_000);
    fixture.opens_direct(ours);
    for port in 1..1000 {
        let forged = client(false, 2, port);
        fixture.goes_direct(says(&fixture, forged, SYN, 0));
        fixture.goes_direct(says(&fixture, forged, ACK, 1));
    }
    assert_eq!(fixture.state(ours), State::Established);
    assert_eq!(fixture.worker().statistics().evicted, 1000 - 8);
    assert_eq!(fixture.worker().statistics().half_open_now, 0, "they are not half-open to the policer");
    // A flood of SYNs displaces one of them at most.
    for port in 1..100 {
        fixture.goes_direct(says(&fixture, client(false, 3, port), SYN, 0));
    }
    let state = |state| fixture.worker().connections().filter(|connection| connection.state == state).count();
    assert_eq!((state(State::Established), state(State::SynSent)), (7, 1));
}

#[test]
fn one_way_number_out_of_place_moves_nothing() {
    let mut fixture = OneWorker::new(false, direct);
    // Nothing is offloaded: software sees every number.
    fixture.engine.room = 0;
    let client = client(false, 1, 40_000);
    fixture.goes_direct(says(&fixture, client, SYN, 0));
    for (flags, ahead) in [(ACK, 0), (ACK, 1 << 16 | 1), (RST, 1 << 21), (FIN | ACK, 1 << 21)] {
        fixture.goes_direct(says(&fixture, client, flags, ahead));
        assert_eq!(fixture.only().state, State::SynSent, "{flags:#x} at {ahead}");
    }
    fixture.goes_direct(says(&fixture, client, ACK | PSH, 1));
    for (flags, ahead) in [(RST, 1 << 21), (FIN | ACK, 1 << 31), (RST, u32::MAX - (1 << 17)), (SYN, 77)] {
        fixture.goes_direct(says(&fixture, client, flags, ahead));
        assert_eq!(fixture.only().state, State::Established, "{flags:#x} at {ahead}");
    }
    fixture.goes_direct(says(&fixture, client, FIN | ACK, 1));
    assert_eq!(fixture.only().state, State::FinClient);
}

#[test]
fn one_way_forged_reset_kills_nothing() {
    let mut fixture = OneWorker::new(false, direct);
    let client = client(false, 1, 40_000);
    let backend = fixture.opens_direct(client);
    // The rule has the flow, so software does not know the number.
    fixture.goes_direct(says(&fixture, client, RST, 1 << 30));
    assert_eq!(fixture.only().state, State::Reset);
    let key = says(&fixture, client, ACK, 1).key();
    for _ in 0..6 {
        fixture.wait(Duration::from_secs(1));
        let now = fixture.now;
        let (_, counters) = fixture.engine.rules.get_mut(&key).expect("the rule stays");
        counters.packets += 1;
        counters.last_seen = Some(now);
    }
    assert_eq!(fixture.only().state, State::Established);
    assert_eq!(fixture.worker().statistics().revived, 1);
    assert_eq!(fixture.only().backend_number, backend);
}

#[test]
fn one_way_syn_after_fin_begins_anew() {
    let mut fixture = OneWorker::new(false, direct);
    fixture.engine.room = 0;
    let client = client(false, 1, 40_000);
    let backend = fixture.opens_direct(client);
    fixture.goes_direct(says(&fixture, client, FIN | ACK, 1));
    assert_eq!(fixture.goes_direct(says(&fixture, client, SYN, 5_000_000)), backend);
    assert_eq!(fixture.only().state, State::SynSent);
    fixture.goes_direct(says(&fixture, client, ACK, 5_000_001));
    assert_eq!(fixture.only().state, State::Established);
    assert_eq!(fixture.worker().statistics().services[0].created, 2);
}

#[test]
fn one_way_silence_ends_by_what_the_client_has_said() {
    let mut fixture = OneWorker::new(false, direct);
    fixture.engine.room = 0;
    let [begun, open, closed] = [1, 2, 3].map(|host| client(false, host, 40_000));
    fixture.goes_direct(says(&fixture, begun, SYN, 0));
    fixture.opens_direct(open);
    fixture.opens_direct(closed);
    fixture.goes_direct(says(&fixture, closed, FIN | ACK, 1));
    let left = |fixture: &OneWorker| fixture.worker().connections().count();
    fixture.wait(Duration::from_secs(31));
    assert_eq!(left(&fixture), 2, "a SYN alone: tcp_handshake");
    fixture.wait(Duration::from_secs(90));
    assert_eq!(left(&fixture), 1, "after FIN: tcp_half_closed");
    fixture.wait(Duration::from_secs(3500));
    assert_eq!(left(&fixture), 0, "established: tcp_established");
    let backends = &fixture.worker().statistics().backends;
    assert!(backends.iter().all(|backend| backend.failed == 0), "a SYN says nothing of a backend");
}

#[test]
fn one_way_too_big_is_cut_up_or_reported() {
    let mut fixture = OneWorker::new(false, direct);
    let client = client(false, 1, 40_000);
    let backend = fixture.opens_direct(client);
    let comes_back = |frame: VecFrame| {
        let mut frame = one_hop_less(frame);
        frame.meta.arrival = Arrival::too_big(700);
        frame
    };
    let mut loose = packet(client, fixture.vip(), Way::Data(1300));
    allow_fragments(&mut loose);
    let pieces = fixture.send(comes_back(loose)).frames;
    assert_eq!(pieces.len(), 2);
    assert!(pieces.iter().all(|piece| piece.meta.egress == Egress::Direct(backend) && piece.data.len() <= 714));
    let strict = packet(client, fixture.vip(), Way::Data(1300));
    let answer = fixture.send(comes_back(strict.clone())).frames;
    let [answer] = &answer[..] else { panic!("no answer") };
    assert_eq!((answer.meta.egress, answer.meta.checksum), (Egress::Route, Checksum::Complete));
    let Ok(Parsed::IcmpError(error)) = wire::parse(answer.bytes()) else { panic!("no ICMP error") };
    assert_eq!(error.quoted, strict.key(), "the client recognises it");
}

#[test]
fn one_way_icmp_about_an_answer_goes_to_its_backend() {
    for ipv6 in IPV6 {
        let mut fixture = OneWorker::new(ipv6, direct);
        let client = client(ipv6, 1, 40_000);
        let backend = fixture.opens_direct(client);
        let answer = packet(fixture.vip(), client, Way::Data(1400));
        let router = end(ipv6, 200, 0).address;
        assert_eq!(fixture.goes_direct(complaint(&answer, router)), backend);
        assert_eq!(fixture.worker().statistics().icmp_errors, 1);
    }
}

#[test]
fn one_way_backends_own_packets_are_not_ours() {
    let mut fixture = OneWorker::new(false, direct);
    let client = client(false, 1, 40_000);
    fixture.opens_direct(client);
    let backend = fixture.only().backend;
    for flags in [SYN, SYN | ACK, ACK, RST] {
        let outcome = fixture.send(packet(backend, client, Way::Tcp(flags)));
        assert_eq!(outcome.frames[0].meta.egress, Egress::Kernel);
    }
    assert_eq!(fixture.worker().statistics().passes_now, 0);
    assert_eq!(fixture.only().forwarded[Direction::FromBackend as usize].packets, 0);
}

#[test]
fn one_way_connections_of_a_removed_backend_end_unsaid() {
    let mut fixture = OneWorker::new(false, |service| {
        direct(service);
        service.unknown = UnknownPacket::Reset;
    });
    let client = client(false, 1, 40_000);
    let backend = fixture.opens_direct(client);
    fixture.end_backend(backend, Which::All);
    fixture.wait(Duration::from_secs(1));
    assert_eq!((fixture.worker().connections().count(), fixture.engine_keys().len()), (0, 0));
    assert!(fixture.told.is_empty());
    let reset = fixture.send(says(&fixture, client, ACK, 1)).sent();
    assert!(reset.flags & RST != 0, "the client hears it when it next speaks");
    assert_eq!(fixture.drops(Drop::Unknown), 1);
}

#[test]
fn one_way_connections_are_adopted_with_their_rule() {
    let snapshot = super::adoption::snapshot(false, direct);
    let mut workers = ManyWorkers::new(snapshot, 2, 64);
    let vip = workers.snapshot.services[0].endpoint;
    let clients: Vec<Endpoint> = (0..20).map(|port| client(false, 1, 40_000 + port)).collect();
    let numbered = |client: Endpoint, flags: u8, number: u32| {
        with_tcp(packet(client, vip, Way::Tcp(flags)), |tcp| tcp[4..8].copy_from_slice(&number.to_be_bytes()))
    };
    let mut backends = Vec::new();
    for &client in &clients {
        let sent = workers.packet(numbered(client, SYN, 5), true);
        backends.push(sent[0].meta.egress);
        for _ in 1..ONE_WAY_PACKETS {
            workers.packet(numbered(client, ACK, 6), true);
        }
    }
    workers.settle();
    let adopted = workers.crash(workers.as_before());
    assert_eq!((adopted.kept, adopted.offloaded, adopted.rules_missing), (20, 20, 0));
    for (client, before) in clients.iter().zip(backends) {
        let fin = workers.packet(numbered(*client, FIN | ACK, 6), true);
        assert_eq!(fin[0].meta.egress, before);
    }
}

//! The worker against scripted packets, a real-enough engine, and drawn sequences of both.

mod adoption;
mod capacity;
mod change;
mod crashes;
mod drawn;
mod fast_path;
mod guess;
mod house;
mod marks;
mod passive;
mod policy;
mod realm;
mod room;
mod severed;
mod stage;
mod stateless;

use super::Drop;
use crate::config::{Forwarding, UnknownPacket, WhenFull};
use crate::flow::Direction;
use crate::frame::{Arrival, Checksum, Egress, Frame};
use crate::l4::connection::State;
use crate::offload::OffloadState;
use crate::time::Duration;
use crate::wire::tcp::{ACK, FIN, PSH, RST, SYN};
use crate::wire::{self, Parsed};
use stage::{Stage, Way, client, end, packet};

const IPV6: [bool; 2] = [false, true];

#[test]
fn nat_keeps_the_client_and_both_ways_are_translated() {
    for ipv6 in IPV6 {
        let mut stage = Stage::new(ipv6, |_| {});
        let client = client(ipv6, 1, 40_000);
        let out = stage.client_sends(client, SYN);
        assert_eq!(out.source, client);
        let backend = out.destination;
        assert!(stage.backends().contains(&backend));
        let back = stage.send(packet(backend, client, Way::Tcp(SYN | ACK))).sent();
        assert_eq!((back.source, back.destination), (stage.vip(), client));
        assert_eq!(stage.client_sends(client, ACK).destination, backend);
        assert_eq!(stage.only().state, State::Established);
    }
}

#[test]
fn established_connection_is_offloaded_as_a_pair() {
    for ipv6 in IPV6 {
        let mut stage = Stage::new(ipv6, |_| {});
        let client = client(ipv6, 1, 40_000);
        let backend = stage.open(client);
        assert_eq!(stage.only().pair.state(), OffloadState::Offloaded);
        assert_eq!(stage.rules_known(), stage.engine_keys());
        assert_eq!(stage.engine_keys().len(), 2);
        // and the rules say what software does
        let rule = stage.rule(&packet(client, stage.vip(), Way::Tcp(ACK)).key());
        assert_eq!((rule.rewrite.source, rule.rewrite.destination), (client, backend));
    }
}

#[test]
fn full_nat_takes_its_source_from_the_pool_on_this_worker() {
    for ipv6 in IPV6 {
        let mut stage = Stage::new(ipv6, |s| s.forwarding = Forwarding::FullNat);
        let client = client(ipv6, 1, 40_000);
        let out = stage.client_sends(client, SYN);
        assert!(stage.snapshot().pool.addresses.contains(&out.source.address));
        assert_eq!(stage.steering().worker(&out.source), 0);
        let back = stage.send(packet(out.destination, out.source, Way::Tcp(SYN | ACK))).sent();
        assert_eq!((back.source, back.destination), (stage.vip(), client));
    }
}

#[test]
fn a_pool_port_rests_when_the_backend_closed_first() {
    let mut stage = Stage::new(false, |s| s.forwarding = Forwarding::FullNat);
    stage.shrink_pool(4);
    for n in 0..4 {
        let client = client(false, n, 40_000);
        let backend = stage.open(client);
        let source = stage.connection(client).source;
        stage.send(packet(backend, source, Way::Tcp(FIN | ACK)));
        stage.client_sends(client, FIN | ACK);
    }
    stage.wait(Duration::from_secs(10));
    assert_eq!(stage.worker().connections().count(), 0);
    assert!(stage.client_tries(client(false, 9, 1), SYN).is_none_or(|sent| sent.flags & RST != 0));
    assert_eq!(stage.drops(Drop::PoolExhausted), 1);
    stage.wait(Duration::from_secs(60));
    stage.open(client(false, 9, 1));
}

#[test]
fn a_packet_of_no_connection_follows_the_rule() {
    let stray = packet(client(false, 1, 40_000), end(false, 1, 80), Way::Tcp(ACK | PSH));
    let mut stage = Stage::new(false, |s| s.unknown = UnknownPacket::Drop);
    assert!(stage.send(stray.clone()).frames.is_empty());
    assert_eq!(stage.drops(Drop::Unknown), 1);

    let mut stage = Stage::new(false, |s| s.unknown = UnknownPacket::Reset);
    let answer = stage.send(stray.clone()).sent();
    assert_eq!((answer.source, answer.destination), (stage.vip(), client(false, 1, 40_000)));
    assert!(answer.flags & RST != 0);

    let mut stage = Stage::new(false, |s| s.unknown = UnknownPacket::PickUp);
    let first = stage.send(stray.clone()).sent();
    assert!(stage.backends().contains(&first.destination));
    assert_eq!(stage.only().pair.state(), OffloadState::Offloaded);
    let mut other = Stage::new(false, |s| s.unknown = UnknownPacket::PickUp);
    assert_eq!(other.send(stray).sent().destination, first.destination, "every instance picks the same");
}

#[test]
fn a_forged_reset_kills_nothing() {
    let mut stage = Stage::new(false, |_| {});
    let client = client(false, 1, 40_000);
    stage.open(client);
    stage.client_sends(client, RST);
    assert_eq!(stage.only().state, State::Reset);
    assert_eq!(stage.only().pair.state(), OffloadState::Offloaded, "its packets go on in the engine");
    for _ in 0..20 {
        stage.wait(Duration::from_secs(1));
        stage.hit(&packet(client, stage.vip(), Way::Tcp(ACK)).key());
    }
    assert_eq!(stage.only().state, State::Established);
    assert_eq!(stage.worker().statistics().revived, 1);
    stage.wait(Duration::from_secs(100));
    stage.hit(&packet(client, stage.vip(), Way::Tcp(ACK)).key());
    stage.wait(Duration::from_secs(1800));
    assert_eq!(stage.only().state, State::Established, "and has its full time again");
}

#[test]
fn a_straggler_does_not_keep_a_closed_connection_for_an_hour() {
    let mut stage = Stage::new(false, |_| {});
    let client = client(false, 1, 40_000);
    stage.open(client);
    stage.client_sends(client, RST);
    stage.wait(Duration::from_secs(4));
    stage.hit(&packet(client, stage.vip(), Way::Tcp(ACK)).key());
    stage.wait(Duration::from_secs(100));
    assert_eq!(stage.only().state, State::Established, "given the time that a half-closed one gets");
    stage.wait(Duration::from_secs(60));
    assert_eq!(stage.worker().connections().count(), 0);
}

#[test]
fn a_real_reset_ends_it() {
    let mut stage = Stage::new(false, |_| {});
    let client = client(false, 1, 40_000);
    stage.open(client);
    stage.client_sends(client, RST);
    stage.wait(Duration::from_secs(20));
    assert_eq!(stage.worker().connections().count(), 0);
    assert!(stage.engine_keys().is_empty());
    assert_eq!(stage.loads(), 0);
}

#[test]
fn closing_ends_it_and_silence_is_judged_by_the_engine() {
    let mut stage = Stage::new(false, |s| s.timeouts.tcp_established = Duration::from_secs(60));
    let client = client(false, 1, 40_000);
    let backend = stage.open(client);
    for _ in 0..10 {
        stage.wait(Duration::from_secs(30));
        stage.hit(&packet(client, stage.vip(), Way::Tcp(ACK)).key());
    }
    assert_eq!(stage.only().state, State::Established, "alive by the engine's word");
    stage.client_sends(client, FIN | ACK);
    stage.send(packet(backend, client, Way::Tcp(FIN | ACK)));
    assert_eq!(stage.only().state, State::Closed);
    stage.wait(Duration::from_secs(20));
    assert_eq!(stage.worker().connections().count(), 0);
    assert!(stage.engine_keys().is_empty());
}

#[test]
fn the_same_ends_may_start_again_with_their_rules_in_force() {
    let mut stage = Stage::new(false, |_| {});
    let client = client(false, 1, 40_000);
    let backend = stage.open(client);
    stage.client_sends(client, FIN | ACK);
    stage.send(packet(backend, client, Way::Tcp(FIN | ACK)));
    assert_eq!(stage.client_sends(client, SYN).destination, backend);
    stage.send(packet(backend, client, Way::Tcp(SYN | ACK)));
    assert_eq!(stage.only().state, State::Established);
    stage.wait(Duration::from_secs(30));
    assert_eq!(stage.only().state, State::Established);
    assert_eq!(stage.worker().statistics().backends.iter().map(|b| b.connections).sum::<u64>(), 2);
}

#[test]
fn a_full_table_refuses_new_connections_and_keeps_the_old() {
    let mut stage = Stage::with_capacity(false, 8, |_| {});
    for n in 0..8 {
        stage.open(client(false, n, 1000));
    }
    assert!(stage.client_tries(client(false, 99, 1), SYN).is_none());
    assert_eq!(stage.drops(Drop::TableFull), 1);
    // Or the client is told, if it is so configured.
    stage.set_when_full(WhenFull::Reset);
    assert_eq!(stage.client_sends(client(false, 99, 1), SYN).flags, RST | ACK);
    let unreachable = stage.send(packet(client(false, 99, 1), end(false, 1, 53), Way::Udp(9)));
    assert!(matches!(wire::parse(unreachable.frames[0].bytes()), Ok(Parsed::IcmpError(_))));
    assert_eq!(stage.drops(Drop::TableFull), 3);
    for n in 0..8 {
        assert!(stage.client_tries(client(false, n, 1000), ACK | PSH).is_some());
    }
}

#[test]
fn a_flood_of_first_packets_evicts_only_itself() {
    let mut stage = Stage::with_capacity(false, 8, |_| {});
    for n in 0..4 {
        stage.open(client(false, n, 1000));
    }
    for port in 2000..2100 {
        assert!(stage.client_tries(client(false, 50, port), SYN).is_some());
    }
    assert_eq!(stage.worker().statistics().evicted, 96);
    for n in 0..4 {
        assert_eq!(stage.connection(client(false, n, 1000)).state, State::Established);
    }
    stage.open(client(false, 51, 1));
}

#[test]
fn second_client_datagram_confirms_a_udp_flow() {
    let mut stage = Stage::new(false, |_| {});
    let (client, vip) = (client(false, 1, 40_000), end(false, 1, 53));
    let backend = stage.send(packet(client, vip, Way::Udp(20))).sent().destination;
    stage.send(packet(backend, client, Way::Udp(100)));
    assert_eq!((stage.only().state, stage.only().pair.state()), (State::UdpNew, OffloadState::Software));
    stage.send(packet(client, vip, Way::Udp(20)));
    assert_eq!((stage.only().state, stage.only().pair.state()), (State::UdpEstablished, OffloadState::Offloaded));
}

#[test]
fn unanswered_datagrams_are_offloaded_after_a_while() {
    let mut stage = Stage::new(false, |_| {});
    let (client, vip) = (client(false, 1, 40_000), end(false, 1, 53));
    for _ in 0..7 {
        stage.send(packet(client, vip, Way::Udp(20)));
        assert_eq!(stage.only().pair.state(), OffloadState::Software);
    }
    stage.send(packet(client, vip, Way::Udp(20)));
    assert_eq!(stage.only().pair.state(), OffloadState::Offloaded);
}

#[test]
fn unmatched_packets_pass_to_the_kernel_and_their_rule_yields() {
    let mut stage = Stage::new(false, |_| {});
    let backend = stage.backends()[0];
    let other = client(false, 7, 5000);
    let direct = packet(backend, other, Way::Tcp(ACK | PSH));
    let outcome = stage.send(direct.clone());
    assert_eq!(outcome.frames[0].meta().egress, Egress::Kernel);
    assert_eq!(outcome.frames[0].data, direct.data, "untouched");
    assert_eq!(stage.engine_keys(), [direct.key()]);
    // the same client now connects through us until it gets that backend
    while stage.client_sends(other, SYN).destination != backend {
        stage.client_sends(other, RST);
        stage.wait(Duration::from_secs(20));
        stage.send(direct.clone());
    }
    assert!(!stage.engine_keys().contains(&direct.key()), "the Pass rule is gone before the SYN-ACK comes");
    let back = stage.send(packet(backend, other, Way::Tcp(SYN | ACK))).sent();
    assert_eq!(back.source, stage.vip());
}

#[test]
fn a_backends_own_connection_is_not_taken_for_one_that_is_over() {
    let mut stage = Stage::new(false, |_| {});
    let client = client(false, 1, 40_000);
    let backend = stage.open(client);
    stage.client_sends(client, FIN | ACK);
    stage.send(packet(backend, client, Way::Tcp(FIN | ACK)));
    // The same client end goes to the backend itself; its SYN did not come by here.
    let given = stage.send(packet(backend, client, Way::Tcp(SYN | ACK)));
    assert_eq!(given.frames[0].meta.egress, Egress::Kernel);
    assert!(stage.engine_keys().is_empty());
    let given = stage.send(packet(backend, client, Way::Tcp(ACK | PSH)));
    assert_eq!(given.frames[0].meta.egress, Egress::Kernel);
    assert_eq!(stage.only().state, State::Pass);
}

#[test]
fn an_engine_that_is_full_leaves_it_to_software() {
    let mut stage = Stage::new(false, |_| {});
    stage.engine.room = 1;
    let client = client(false, 1, 40_000);
    stage.open(client);
    assert_eq!(stage.only().pair.state(), OffloadState::Software, "half a pair is taken back");
    assert!(stage.engine_keys().is_empty());
    stage.engine.room = 2;
    stage.client_sends(client, ACK);
    assert_eq!(stage.only().pair.state(), OffloadState::Software, "not asked again at once");
    stage.wait(Duration::from_secs(2));
    stage.client_sends(client, ACK);
    assert_eq!(stage.only().pair.state(), OffloadState::Offloaded);
}

#[test]
fn packet_over_the_egress_mtu_is_reported_or_cut() {
    for ipv6 in IPV6 {
        let mut stage = Stage::new(ipv6, |_| {});
        let client = client(ipv6, 1, 40_000);
        stage.open(client);
        let data = packet(client, stage.vip(), Way::Data(1400));
        let mut bounced = stage.send(data.clone()).frames.remove(0);
        bounced.meta_mut().arrival = Arrival::TooBig { mtu: 1400 };
        let notice = stage.send_frame(bounced).frames.remove(0);
        let Ok(Parsed::IcmpError(error)) = wire::parse(notice.bytes()) else { panic!("no ICMP error") };
        assert_eq!(error.destination, client.address);
        assert_eq!(error.quoted, data.key());
    }
    let mut stage = Stage::new(false, |_| {});
    let client = client(false, 1, 40_000);
    stage.open(client);
    let mut data = packet(client, stage.vip(), Way::Data(1400));
    stage::allow_fragments(&mut data);
    let mut bounced = stage.send(data).frames.remove(0);
    bounced.meta_mut().arrival = Arrival::TooBig { mtu: 1400 };
    let pieces = stage.send_frame(bounced).frames;
    assert_eq!(pieces.len(), 2);
    assert!(pieces.iter().all(|piece| piece.data.len() <= 14 + 1400));
}

#[test]
fn a_last_hop_gets_time_exceeded() {
    for ipv6 in IPV6 {
        let mut stage = Stage::new(ipv6, |_| {});
        let client = client(ipv6, 1, 40_000);
        stage.open(client);
        let mut data = packet(client, stage.vip(), Way::Data(10));
        stage::last_hop(&mut data);
        let notice = stage.send(data.clone()).frames.remove(0);
        let Ok(Parsed::IcmpError(error)) = wire::parse(notice.bytes()) else { panic!("no ICMP error") };
        assert_eq!((error.source, error.destination), (stage.vip().address, client.address));
        assert_eq!(error.quoted, data.key());
    }
}

#[test]
fn icmp_errors_reach_the_side_that_sent_the_packet() {
    for ipv6 in IPV6 {
        for forwarding in [Forwarding::Nat, Forwarding::FullNat] {
            let mut stage = Stage::new(ipv6, |s| s.forwarding = forwarding);
            let client = client(ipv6, 1, 40_000);
            let backend = stage.open(client);
            let source = stage.only().source;
            let router = end(ipv6, 200, 0).address;
            // a router on the backends' side complains about what the client sent
            let sent = stage.send(packet(client, stage.vip(), Way::Data(100))).frames.remove(0);
            let error = stage::complaint(&sent, router);
            let told = stage.send_frame(error).frames.remove(0);
            let Ok(Parsed::IcmpError(error)) = wire::parse(told.bytes()) else { panic!("no ICMP error") };
            assert_eq!((error.source, error.destination), (router, client.address));
            assert_eq!((error.quoted.source, error.quoted.destination), (client, stage.vip()));
            // the client itself complains about what the backend sent
            let sent = stage.send(packet(backend, source, Way::Data(100))).frames.remove(0);
            let error = stage::complaint(&sent, client.address);
            let told = stage.send_frame(error).frames.remove(0);
            let Ok(Parsed::IcmpError(error)) = wire::parse(told.bytes()) else { panic!("no ICMP error") };
            assert_eq!((error.source, error.destination), (source.address, backend.address));
            assert_eq!((error.quoted.source, error.quoted.destination), (backend, source));
        }
    }
}

#[test]
fn no_backend_is_said_by_reset_and_counted() {
    let mut stage = Stage::new(false, |s| s.backends.iter_mut().for_each(|b| b.weight = 0));
    let answer = stage.client_sends(client(false, 1, 1), SYN);
    assert!(answer.flags & RST != 0);
    assert_eq!(stage.drops(Drop::NoBackend), 1);
}

#[test]
fn impossible_flags_are_counted_and_change_nothing() {
    let mut stage = Stage::new(false, |_| {});
    for flags in [0, SYN | FIN, SYN | RST, SYN | FIN | RST | ACK] {
        assert!(stage.client_tries(client(false, 1, 1), flags).is_none());
    }
    assert_eq!(stage.drops(Drop::Flags), 4);
    assert_eq!(stage.worker().connections().count(), 0);
}

#[test]
fn second_service_on_one_backend_gets_another_path() {
    // the same client end to two services that share their backends: one flow back cannot mean two connections
    let mut stage = Stage::new(false, |_| {});
    let client = client(false, 1, 40_000);
    let first = stage.open(client);
    let second = stage.send(packet(client, stage.second_vip(), Way::Tcp(SYN))).sent();
    assert_ne!(second.destination, first);
}

#[test]
fn super_packets_count_by_segment() {
    let mut stage = Stage::new(false, |_| {});
    let client = client(false, 1, 40_000);
    stage.open(client);
    let before = stage.only().carried[Direction::FromClient as usize];
    let mut data = packet(client, stage.vip(), Way::Data(4000));
    data.meta.gso_size = 1000;
    data.meta.checksum = Checksum::Partial;
    stage.send(data);
    let after = stage.only().carried[Direction::FromClient as usize];
    assert_eq!(after.packets - before.packets, 4);
    assert_eq!(after.bytes - before.bytes, 4000 + 4 * 40);
}

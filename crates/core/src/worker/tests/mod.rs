//! The worker against scripted packets, a real-enough engine, and drawn sequences of both.

mod access;
mod adoption;
mod capacity;
mod change;
mod crashes;
mod drawn;
mod fast_path;
mod guess;
mod limits;
mod many_workers;
mod marks;
mod one_way;
mod one_worker;
mod passive;
mod policy;
mod recorded;
mod room;
mod services;
mod set_up;
mod set_up_one_way;
mod severed;
mod stateless;

use super::Drop;
use crate::config::{Forwarding, UnknownPacket, WhenFull};
use crate::flow::Direction;
use crate::frame::{Arrival, Checksum, Egress, Frame};
use crate::l4::connection::{Flags, State};
use crate::offload::{Choice, OffloadState};
use crate::time::Duration;
use crate::wire::tcp::{ACK, FIN, PSH, RST, SYN};
use crate::wire::{self, Parsed};
use one_worker::{OneWorker, Way, client, end, packet};

const IPV6: [bool; 2] = [false, true];

#[test]
fn nat_keeps_the_client_and_both_ways_are_translated() {
    for ipv6 in IPV6 {
        let mut fixture = OneWorker::new(ipv6, |_| {});
        let client = client(ipv6, 1, 40_000);
        let out = fixture.client_sends(client, SYN);
        assert_eq!(out.source, client);
        let backend = out.destination;
        assert!(fixture.backends().contains(&backend));
        let back = fixture.send(packet(backend, client, Way::Tcp(SYN | ACK))).sent();
        assert_eq!((back.source, back.destination), (fixture.vip(), client));
        assert_eq!(fixture.client_sends(client, ACK).destination, backend);
        assert_eq!(fixture.only().state, State::Established);
    }
}

#[test]
fn established_connection_is_offloaded_as_a_pair() {
    for ipv6 in IPV6 {
        let mut fixture = OneWorker::new(ipv6, |_| {});
        let client = client(ipv6, 1, 40_000);
        let backend = fixture.open(client);
        assert_eq!(fixture.only().pair.state(), OffloadState::Offloaded);
        assert_eq!(fixture.rules_known(), fixture.engine_keys());
        assert_eq!(fixture.engine_keys().len(), 2);
        // and the rules say what software does
        let rule = fixture.rule(&packet(client, fixture.vip(), Way::Tcp(ACK)).key());
        assert_eq!((rule.rewrite.source, rule.rewrite.destination), (client, backend));
    }
}

#[test]
fn full_nat_takes_its_source_from_the_pool_on_this_worker() {
    for ipv6 in IPV6 {
        let mut fixture = OneWorker::new(ipv6, |s| s.forwarding = Forwarding::FullNat);
        let client = client(ipv6, 1, 40_000);
        let out = fixture.client_sends(client, SYN);
        assert!(fixture.snapshot().pool.addresses.contains(&out.source.address));
        assert_eq!(fixture.steering().worker(&out.source), 0);
        let back = fixture.send(packet(out.destination, out.source, Way::Tcp(SYN | ACK))).sent();
        assert_eq!((back.source, back.destination), (fixture.vip(), client));
    }
}

#[test]
fn a_pool_port_rests_when_the_backend_closed_first() {
    let mut fixture = OneWorker::new(false, |s| s.forwarding = Forwarding::FullNat);
    fixture.shrink_pool(4);
    for n in 0..4 {
        let client = client(false, n, 40_000);
        let backend = fixture.open(client);
        let source = fixture.connection(client).source;
        fixture.send(packet(backend, source, Way::Tcp(FIN | ACK)));
        fixture.client_sends(client, FIN | ACK);
    }
    fixture.wait(Duration::from_secs(10));
    assert_eq!(fixture.worker().connections().count(), 0);
    assert!(fixture.client_tries(client(false, 9, 1), SYN).is_none_or(|sent| sent.flags & RST != 0));
    assert_eq!(fixture.drops(Drop::PoolExhausted), 1);
    fixture.wait(Duration::from_secs(60));
    fixture.open(client(false, 9, 1));
}

#[test]
fn a_packet_of_no_connection_follows_the_rule() {
    let stray = packet(client(false, 1, 40_000), end(false, 1, 80), Way::Tcp(ACK | PSH));
    let mut fixture = OneWorker::new(false, |s| s.unknown = UnknownPacket::Drop);
    assert!(fixture.send(stray.clone()).frames.is_empty());
    assert_eq!(fixture.drops(Drop::Unknown), 1);

    let mut fixture = OneWorker::new(false, |s| s.unknown = UnknownPacket::Reset);
    let answer = fixture.send(stray.clone()).sent();
    assert_eq!((answer.source, answer.destination), (fixture.vip(), client(false, 1, 40_000)));
    assert!(answer.flags & RST != 0);

    let mut fixture = OneWorker::new(false, |s| s.unknown = UnknownPacket::PickUp);
    let first = fixture.send(stray.clone()).sent();
    assert!(fixture.backends().contains(&first.destination));
    assert_eq!(fixture.only().pair.state(), OffloadState::Offloaded);
    let mut other = OneWorker::new(false, |s| s.unknown = UnknownPacket::PickUp);
    assert_eq!(other.send(stray).sent().destination, first.destination, "every instance picks the same");
}

#[test]
fn a_forged_reset_kills_nothing() {
    let mut fixture = OneWorker::new(false, |_| {});
    let client = client(false, 1, 40_000);
    fixture.open(client);
    fixture.client_sends(client, RST);
    assert_eq!(fixture.only().state, State::Reset);
    assert_eq!(fixture.only().pair.state(), OffloadState::Offloaded, "its packets go on in the engine");
    for _ in 0..20 {
        fixture.wait(Duration::from_secs(1));
        fixture.hit(&packet(client, fixture.vip(), Way::Tcp(ACK)).key());
    }
    assert_eq!(fixture.only().state, State::Established);
    assert_eq!(fixture.worker().statistics().revived, 1);
    fixture.wait(Duration::from_secs(100));
    fixture.hit(&packet(client, fixture.vip(), Way::Tcp(ACK)).key());
    fixture.wait(Duration::from_secs(1800));
    assert_eq!(fixture.only().state, State::Established, "and has its full time again");
}

/// A SYN after it, which only a connection that is over takes for another one's.
#[test]
fn a_forged_reset_and_syn_kill_nothing() {
    // As the backend answers: it has the connection still.
    let mut fixture = OneWorker::with_policy(Choice::Never, 0);
    let client = client(false, 1, 40_000);
    let backend = fixture.open(client);
    fixture.client_sends(client, RST);
    fixture.client_sends(client, SYN);
    assert_eq!(fixture.only().state, State::SynSent);
    assert_eq!(fixture.client_sends(client, ACK).destination, backend, "its packets go where they went");
    assert!(!fixture.only().flags.has(Flags::PROVEN));
    fixture.send(packet(backend, client, Way::Tcp(ACK)));
    assert_eq!(fixture.only().state, State::Established);
    assert!(fixture.only().flags.has(Flags::PROVEN));
    fixture.client_sends(client, ACK);
    fixture.wait(Duration::from_secs(100));
    fixture.client_sends(client, ACK);
    fixture.wait(Duration::from_secs(1800));
    assert_eq!(fixture.only().state, State::Established, "and has its full time again");

    // In the engine, which has its packets.
    let mut fixture = OneWorker::new(false, |_| {});
    fixture.open(client);
    fixture.client_sends(client, RST);
    fixture.client_sends(client, SYN);
    assert_eq!(fixture.only().state, State::SynSent);
    for _ in 0..60 {
        fixture.wait(Duration::from_secs(1));
        fixture.hit(&packet(client, fixture.vip(), Way::Tcp(ACK)).key());
    }
    assert_eq!(fixture.only().state, State::Established);
    assert_eq!(fixture.worker().statistics().revived, 1);
}

/// A client that begins anew between the same ends, whose backend answers, has a connection of the usual kind.
#[test]
fn a_connection_begun_anew_is_not_revived() {
    let mut fixture = OneWorker::with_policy(Choice::Never, 0);
    let client = client(false, 1, 40_000);
    fixture.open(client);
    fixture.client_sends(client, RST);
    let backend = fixture.open(client);
    assert_eq!(fixture.only().state, State::Established);
    fixture.wait(Duration::from_secs(1800));
    assert_eq!(fixture.only().state, State::Established, "it has its full time");
    fixture.client_sends(client, RST);
    fixture.client_sends(client, SYN);
    fixture.send(packet(backend, client, Way::Tcp(RST | ACK)));
    assert_eq!(fixture.only().state, State::Reset, "refused");
    fixture.wait(Duration::from_secs(20));
    assert_eq!(fixture.worker().connections().count(), 0);
    assert_eq!(fixture.worker().statistics().revived, 0);
}

#[test]
fn a_straggler_does_not_keep_a_closed_connection_for_an_hour() {
    let mut fixture = OneWorker::new(false, |_| {});
    let client = client(false, 1, 40_000);
    fixture.open(client);
    fixture.client_sends(client, RST);
    fixture.wait(Duration::from_secs(4));
    fixture.hit(&packet(client, fixture.vip(), Way::Tcp(ACK)).key());
    fixture.wait(Duration::from_secs(100));
    assert_eq!(fixture.only().state, State::Established, "given the time that a half-closed one gets");
    fixture.wait(Duration::from_secs(60));
    assert_eq!(fixture.worker().connections().count(), 0);
}

#[test]
fn a_real_reset_ends_it() {
    let mut fixture = OneWorker::new(false, |_| {});
    let client = client(false, 1, 40_000);
    fixture.open(client);
    fixture.client_sends(client, RST);
    fixture.wait(Duration::from_secs(20));
    assert_eq!(fixture.worker().connections().count(), 0);
    assert!(fixture.engine_keys().is_empty());
    assert_eq!(fixture.loads(), 0);
}

#[test]
fn closing_ends_it_and_silence_is_judged_by_the_engine() {
    let mut fixture = OneWorker::new(false, |s| s.timeouts.tcp_established = Duration::from_secs(60));
    let client = client(false, 1, 40_000);
    let backend = fixture.open(client);
    for _ in 0..10 {
        fixture.wait(Duration::from_secs(30));
        fixture.hit(&packet(client, fixture.vip(), Way::Tcp(ACK)).key());
    }
    assert_eq!(fixture.only().state, State::Established, "alive by the engine's word");
    fixture.client_sends(client, FIN | ACK);
    fixture.send(packet(backend, client, Way::Tcp(FIN | ACK)));
    assert_eq!(fixture.only().state, State::Closed);
    fixture.wait(Duration::from_secs(20));
    assert_eq!(fixture.worker().connections().count(), 0);
    assert!(fixture.engine_keys().is_empty());
}

#[test]
fn the_same_ends_may_start_again_with_their_rules_in_force() {
    let mut fixture = OneWorker::new(false, |_| {});
    let client = client(false, 1, 40_000);
    let backend = fixture.open(client);
    fixture.client_sends(client, FIN | ACK);
    fixture.send(packet(backend, client, Way::Tcp(FIN | ACK)));
    assert_eq!(fixture.client_sends(client, SYN).destination, backend);
    fixture.send(packet(backend, client, Way::Tcp(SYN | ACK)));
    assert_eq!(fixture.only().state, State::Established);
    fixture.wait(Duration::from_secs(30));
    assert_eq!(fixture.only().state, State::Established);
    assert_eq!(fixture.worker().statistics().backends.iter().map(|b| b.connections).sum::<u64>(), 2);
}

#[test]
fn a_full_table_refuses_new_connections_and_keeps_the_old() {
    let mut fixture = OneWorker::with_capacity(false, 8, |_| {});
    for n in 0..8 {
        fixture.open(client(false, n, 1000));
    }
    assert!(fixture.client_tries(client(false, 99, 1), SYN).is_none());
    assert_eq!(fixture.drops(Drop::TableFull), 1);
    // Or the client is told, if it is so configured.
    fixture.set_when_full(WhenFull::Reset);
    assert_eq!(fixture.client_sends(client(false, 99, 1), SYN).flags, RST | ACK);
    let unreachable = fixture.send(packet(client(false, 99, 1), end(false, 1, 53), Way::Udp(9)));
    assert!(matches!(wire::parse(unreachable.frames[0].bytes()), Ok(Parsed::IcmpError(_))));
    assert_eq!(fixture.drops(Drop::TableFull), 3);
    for n in 0..8 {
        assert!(fixture.client_tries(client(false, n, 1000), ACK | PSH).is_some());
    }
}

#[test]
fn a_flood_of_first_packets_evicts_only_itself() {
    let mut fixture = OneWorker::with_capacity(false, 8, |_| {});
    for n in 0..4 {
        fixture.open(client(false, n, 1000));
    }
    for port in 2000..2100 {
        assert!(fixture.client_tries(client(false, 50, port), SYN).is_some());
    }
    assert_eq!(fixture.worker().statistics().evicted, 96);
    for n in 0..4 {
        assert_eq!(fixture.connection(client(false, n, 1000)).state, State::Established);
    }
    fixture.open(client(false, 51, 1));
}

#[test]
fn second_client_datagram_confirms_a_udp_flow() {
    let mut fixture = OneWorker::new(false, |_| {});
    let (client, vip) = (client(false, 1, 40_000), end(false, 1, 53));
    let backend = fixture.send(packet(client, vip, Way::Udp(20))).sent().destination;
    fixture.send(packet(backend, client, Way::Udp(100)));
    assert_eq!((fixture.only().state, fixture.only().pair.state()), (State::UdpNew, OffloadState::Software));
    fixture.send(packet(client, vip, Way::Udp(20)));
    assert_eq!((fixture.only().state, fixture.only().pair.state()), (State::UdpEstablished, OffloadState::Offloaded));
}

#[test]
fn unanswered_datagrams_are_offloaded_after_a_while() {
    let mut fixture = OneWorker::new(false, |_| {});
    let (client, vip) = (client(false, 1, 40_000), end(false, 1, 53));
    for _ in 0..7 {
        fixture.send(packet(client, vip, Way::Udp(20)));
        assert_eq!(fixture.only().pair.state(), OffloadState::Software);
    }
    fixture.send(packet(client, vip, Way::Udp(20)));
    assert_eq!(fixture.only().pair.state(), OffloadState::Offloaded);
}

#[test]
fn unmatched_packets_pass_to_the_kernel_and_their_rule_yields() {
    let mut fixture = OneWorker::new(false, |_| {});
    let backend = fixture.backends()[0];
    let other = client(false, 7, 5000);
    let direct = packet(backend, other, Way::Tcp(ACK | PSH));
    let outcome = fixture.send(direct.clone());
    assert_eq!(outcome.frames[0].meta().egress, Egress::Kernel);
    assert_eq!(outcome.frames[0].data, direct.data, "untouched");
    assert_eq!(fixture.engine_keys(), [direct.key()]);
    // the same client now connects through us until it gets that backend
    while fixture.client_sends(other, SYN).destination != backend {
        fixture.client_sends(other, RST);
        fixture.wait(Duration::from_secs(20));
        fixture.send(direct.clone());
    }
    assert!(!fixture.engine_keys().contains(&direct.key()), "the Pass rule is gone before the SYN-ACK comes");
    let back = fixture.send(packet(backend, other, Way::Tcp(SYN | ACK))).sent();
    assert_eq!(back.source, fixture.vip());
}

#[test]
fn a_backends_own_connection_is_not_taken_for_one_that_is_over() {
    let mut fixture = OneWorker::new(false, |_| {});
    let client = client(false, 1, 40_000);
    let backend = fixture.open(client);
    fixture.client_sends(client, FIN | ACK);
    fixture.send(packet(backend, client, Way::Tcp(FIN | ACK)));
    // The same client end goes to the backend itself; its SYN did not come by here.
    let given = fixture.send(packet(backend, client, Way::Tcp(SYN | ACK)));
    assert_eq!(given.frames[0].meta.egress, Egress::Kernel);
    assert!(fixture.engine_keys().is_empty());
    let given = fixture.send(packet(backend, client, Way::Tcp(ACK | PSH)));
    assert_eq!(given.frames[0].meta.egress, Egress::Kernel);
    assert_eq!(fixture.only().state, State::Pass);
}

#[test]
fn an_engine_that_is_full_leaves_it_to_software() {
    let mut fixture = OneWorker::new(false, |_| {});
    fixture.engine.room = 1;
    let client = client(false, 1, 40_000);
    fixture.open(client);
    assert_eq!(fixture.only().pair.state(), OffloadState::Software, "half a pair is taken back");
    assert!(fixture.engine_keys().is_empty());
    fixture.engine.room = 2;
    fixture.client_sends(client, ACK);
    assert_eq!(fixture.only().pair.state(), OffloadState::Software, "not asked again at once");
    fixture.wait(Duration::from_secs(2));
    fixture.client_sends(client, ACK);
    assert_eq!(fixture.only().pair.state(), OffloadState::Offloaded);
}

#[test]
fn packet_over_the_egress_mtu_is_reported_or_cut() {
    for ipv6 in IPV6 {
        let mut fixture = OneWorker::new(ipv6, |_| {});
        let client = client(ipv6, 1, 40_000);
        fixture.open(client);
        let data = packet(client, fixture.vip(), Way::Data(1400));
        let mut bounced = fixture.send(data.clone()).frames.remove(0);
        bounced.meta_mut().arrival = Arrival::too_big(1400);
        let notice = fixture.send_frame(bounced).frames.remove(0);
        let Ok(Parsed::IcmpError(error)) = wire::parse(notice.bytes()) else { panic!("no ICMP error") };
        assert_eq!(error.destination, client.address);
        assert_eq!(error.quoted, data.key());
    }
    let mut fixture = OneWorker::new(false, |_| {});
    let client = client(false, 1, 40_000);
    fixture.open(client);
    let mut data = packet(client, fixture.vip(), Way::Data(1400));
    one_worker::allow_fragments(&mut data);
    let mut bounced = fixture.send(data).frames.remove(0);
    bounced.meta_mut().arrival = Arrival::too_big(1400);
    let pieces = fixture.send_frame(bounced).frames;
    assert_eq!(pieces.len(), 2);
    assert!(pieces.iter().all(|piece| piece.data.len() <= 14 + 1400));
}

#[test]
fn a_last_hop_gets_time_exceeded() {
    for ipv6 in IPV6 {
        let mut fixture = OneWorker::new(ipv6, |_| {});
        let client = client(ipv6, 1, 40_000);
        fixture.open(client);
        let mut data = packet(client, fixture.vip(), Way::Data(10));
        one_worker::last_hop(&mut data);
        let notice = fixture.send(data.clone()).frames.remove(0);
        let Ok(Parsed::IcmpError(error)) = wire::parse(notice.bytes()) else { panic!("no ICMP error") };
        assert_eq!((error.source, error.destination), (fixture.vip().address, client.address));
        assert_eq!(error.quoted, data.key());
    }
}

#[test]
fn icmp_errors_reach_the_side_that_sent_the_packet() {
    for ipv6 in IPV6 {
        for forwarding in [Forwarding::Nat, Forwarding::FullNat] {
            let mut fixture = OneWorker::new(ipv6, |s| s.forwarding = forwarding);
            let client = client(ipv6, 1, 40_000);
            let backend = fixture.open(client);
            let source = fixture.only().source;
            let router = end(ipv6, 200, 0).address;
            // a router on the backends' side complains about what the client sent
            let sent = fixture.send(packet(client, fixture.vip(), Way::Data(100))).frames.remove(0);
            let error = one_worker::complaint(&sent, router);
            let told = fixture.send_frame(error).frames.remove(0);
            let Ok(Parsed::IcmpError(error)) = wire::parse(told.bytes()) else { panic!("no ICMP error") };
            assert_eq!((error.source, error.destination), (router, client.address));
            assert_eq!((error.quoted.source, error.quoted.destination), (client, fixture.vip()));
            // the client itself complains about what the backend sent
            let sent = fixture.send(packet(backend, source, Way::Data(100))).frames.remove(0);
            let error = one_worker::complaint(&sent, client.address);
            let told = fixture.send_frame(error).frames.remove(0);
            let Ok(Parsed::IcmpError(error)) = wire::parse(told.bytes()) else { panic!("no ICMP error") };
            assert_eq!((error.source, error.destination), (source.address, backend.address));
            assert_eq!((error.quoted.source, error.quoted.destination), (backend, source));
        }
    }
}

#[test]
fn no_backend_is_said_by_reset_and_counted() {
    let mut fixture = OneWorker::new(false, |s| s.backends.iter_mut().for_each(|b| b.weight = 0));
    let answer = fixture.client_sends(client(false, 1, 1), SYN);
    assert!(answer.flags & RST != 0);
    assert_eq!(fixture.drops(Drop::NoBackend), 1);
}

#[test]
fn impossible_flags_are_counted_and_change_nothing() {
    let mut fixture = OneWorker::new(false, |_| {});
    for flags in [0, SYN | FIN, SYN | RST, SYN | FIN | RST | ACK] {
        assert!(fixture.client_tries(client(false, 1, 1), flags).is_none());
    }
    assert_eq!(fixture.drops(Drop::Flags), 4);
    assert_eq!(fixture.worker().connections().count(), 0);
}

#[test]
fn second_service_on_one_backend_gets_another_path() {
    // the same client end to two services that share their backends: one flow back cannot mean two connections
    let mut fixture = OneWorker::new(false, |_| {});
    let client = client(false, 1, 40_000);
    let first = fixture.open(client);
    let second = fixture.send(packet(client, fixture.second_vip(), Way::Tcp(SYN))).sent();
    assert_ne!(second.destination, first);
}

#[test]
fn super_packets_count_by_segment() {
    let mut fixture = OneWorker::new(false, |_| {});
    let client = client(false, 1, 40_000);
    fixture.open(client);
    let before = fixture.only().forwarded[Direction::FromClient as usize];
    let mut data = packet(client, fixture.vip(), Way::Data(4000));
    data.meta.gso_size = 1000;
    data.meta.checksum = Checksum::Partial;
    fixture.send(data);
    let after = fixture.only().forwarded[Direction::FromClient as usize];
    assert_eq!(after.packets - before.packets, 4);
    assert_eq!(after.bytes - before.bytes, 4000 + 4 * 40);
}

//! Packets that no rule matches.

use crate::packet::{ACK, Packet, SYN, v4, v6};
use crate::rig::{BACKEND, CLIENT, KEY, OK, POOL, POOL_PORT, REDIRECT, Rig, Run, SHOT, VIP, command, in_namespace};
use hairpin_core::flow::{Endpoint, FlowKey, Protocol, Steering};
use hairpin_linux::programs::Absent;
use std::collections::BTreeMap;
use std::net::{TcpListener, UdpSocket};

fn client(port: u16) -> FlowKey {
    v4(CLIENT, port, VIP, 80, Protocol::Tcp)
}

/// The fate of a frame: verdict, worker, and the events counted.
pub(crate) fn offer(rig: &Rig, frame: &[u8]) -> (Run, Option<u16>, BTreeMap<&'static str, u64>) {
    let before = rig.tickets();
    let (run, counted) = rig.counted(|| rig.ingress(frame));
    let after = rig.tickets();
    (run, before.iter().zip(&after).position(|(b, a)| a > b).map(|worker| worker as u16), counted)
}

pub(crate) fn untouched(rig: &Rig, frame: &[u8]) {
    let (run, _, counted) = offer(rig, frame);
    assert_eq!((run.verdict, &run.frame[..]), (OK, frame));
    assert!(counted.is_empty(), "{counted:?}");
}

#[test]
fn what_is_not_ours_goes_on_untouched() {
    in_namespace(|| {
        let rig = Rig::new(1, |_| ());
        for key in [
            v4(CLIENT, 1, VIP, 22, Protocol::Tcp),
            v4(CLIENT, 1, [10, 1, 0, 1], 80, Protocol::Tcp),
            v4(BACKEND, 22, CLIENT, 1, Protocol::Tcp),
            v4(CLIENT, 1, BACKEND, 8080, Protocol::Tcp),
            v6("fd01::2", 1, "2001:db8::10", 80, Protocol::Udp),
        ] {
            untouched(&rig, &Packet::new(key).to(rig.left.mac).frame());
        }
        let mut arp = vec![0; 60];
        arp[..6].copy_from_slice(&rig.left.mac);
        arp[12..14].copy_from_slice(&[8, 6]);
        untouched(&rig, &arp);
    });
}

#[test]
fn both_directions_meet_on_the_worker_that_core_says() {
    in_namespace(|| {
        let rig = Rig::new(64, |_| ());
        let steering = Steering::by_hash(KEY, 64);
        let vip6 = |port| v6("fd01::abcd", port, "2001:db8::10", 80, Protocol::Tcp);
        let mut workers = std::collections::BTreeSet::new();
        for port in 1..200u16 {
            let (from_client, from_backend) = match port % 3 {
                0 => (client(port), v4(BACKEND, 8080, CLIENT, port, Protocol::Tcp)),
                1 => (vip6(port), v6("fd02::2", 8080, "fd01::abcd", port, Protocol::Tcp)),
                _ => (v4(CLIENT, port, VIP, 80, Protocol::Udp), v4(BACKEND, 8080, CLIENT, port, Protocol::Udp)),
            };
            let expected = Some(steering.worker(&from_client.source));
            workers.insert(expected);
            for key in [from_client, from_backend] {
                let frame = Packet::new(key).to(rig.left.mac).frame();
                let (run, worker, counted) = offer(&rig, &frame);
                assert_eq!((run.verdict, worker), (REDIRECT, expected), "{key:?}");
                assert_eq!(run.frame[..2], [0x0a, 0]);
                assert_eq!(run.frame[6..], frame[6..]);
                assert_eq!(counted, [("to-worker", 1)].into());
            }
        }
        assert!(workers.len() > 32, "spread over {} workers", workers.len());
    });
}

#[test]
fn tagged_frames_reach_the_worker_with_their_tags() {
    in_namespace(|| {
        let rig = Rig::new(1, |_| ());
        for tags in [vec![[0x81, 0, 0, 7]], vec![[0x88, 0xa8, 0, 7], [0x81, 0, 0, 9]]] {
            let frame = Packet { tags, ..Packet::new(client(1)).to(rig.left.mac) }.frame();
            let (run, worker, _) = offer(&rig, &frame);
            assert_eq!((run.verdict, worker), (REDIRECT, Some(0)));
            assert_eq!(run.frame[6..], frame[6..]);
        }
        let tags = vec![[0x81, 0, 0, 7]; 3];
        untouched(&rig, &Packet { tags, ..Packet::new(client(1)).to(rig.left.mac) }.frame());
    });
}

#[test]
fn a_flood_of_new_flows_is_policed_and_known_flows_are_not() {
    in_namespace(|| {
        let rig = Rig::new(1, |options| options.policer_backend_pps = 0);
        for service in 0..4 {
            rig.plane.control().set_client_rate(service, 0);
        }
        let admitted = |key: FlowKey, times: usize| {
            let frame = Packet::new(key).to(rig.left.mac).frame();
            let (verdicts, counted) =
                rig.counted(|| (0..times).filter(|_| rig.ingress(&frame).verdict == REDIRECT).count());
            (verdicts, counted)
        };
        // An empty bucket at the start: with a rate of 0 nothing ever comes in.
        assert_eq!(admitted(client(1), 100), (0, [("policed-client", 100)].into()));
        let from_backend = v4(BACKEND, 8080, CLIENT, 1, Protocol::Tcp);
        assert_eq!(admitted(from_backend, 100), (0, [("policed-backend", 100)].into()));

        let hash = Steering::by_hash(KEY, 1).hash(&client(1).source) as usize;
        let known = rig.plane.control().known();
        known[hash & (known.len() - 1)].store(1, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(admitted(client(1), 100).0, 100);
        assert_eq!(admitted(from_backend, 100).0, 100);
        assert_eq!(admitted(client(2), 100).0, 0);
        // the same SYN again and again is no acquaintance
        let syn = Packet { flags: SYN, ..Packet::new(client(1)).to(rig.left.mac) }.frame();
        assert_eq!((0..100).filter(|_| rig.ingress(&syn).verdict == REDIRECT).count(), 0);

        rig.plane.control().set_client_rate(0, 1_000_000);
        std::thread::sleep(std::time::Duration::from_millis(50));
        rig.heartbeat();
        // 50 ms at a million a second: far more than a hundred; and the services' buckets are their own.
        assert_eq!(admitted(client(2), 100).0, 100);
        assert_eq!(admitted(v4(CLIENT, 2, VIP, 80, Protocol::Udp), 100).0, 0);
    });
}

#[test]
fn when_the_process_is_away_misses_follow_the_configuration() {
    for absent in [Absent::Pass, Absent::Drop, Absent::DropAll] {
        in_namespace(move || {
            let rig = Rig::new(1, |options| options.when_absent = absent);
            rig.stop_beating();
            let drops = absent != Absent::Pass;
            let known = |key: FlowKey| {
                let cell = Steering::by_hash(KEY, 1).hash(&key.destination) as usize;
                let cells = rig.plane.control().known();
                cells[cell & (cells.len() - 1)].store(1, std::sync::atomic::Ordering::Relaxed);
            };
            let tracked = v4(BACKEND, 8080, CLIENT, 7, Protocol::Tcp);
            let direct = v4(BACKEND, 8080, CLIENT, 8, Protocol::Tcp);
            let direct6 = v6("fd02::2", 8080, "fd01::abcd", 8, Protocol::Tcp);
            known(tracked);
            for (key, dropped) in [
                (client(1), drops),
                (tracked, drops),
                (v4(BACKEND, 8080, POOL, POOL_PORT, Protocol::Tcp), drops),
                // Of no connection of ours: hosts talk to backends directly, also while Hairpin is away.
                (direct, absent == Absent::DropAll),
                (direct6, absent == Absent::DropAll),
            ] {
                let frame = Packet::new(key).to(rig.left.mac).frame();
                let (run, worker, counted) = offer(&rig, &frame);
                let (verdict, event) = if dropped { (SHOT, "absent-drop") } else { (OK, "absent-pass") };
                assert_eq!((run.verdict, run.frame, worker), (verdict, frame, None), "{key:?}");
                assert_eq!(counted, [(event, 1)].into(), "{key:?}");
            }
            untouched(&rig, &Packet::new(v4(CLIENT, 1, VIP, 22, Protocol::Tcp)).to(rig.left.mac).frame());
            rig.heartbeat();
            for key in [client(1), tracked, direct] {
                assert_eq!(offer(&rig, &Packet::new(key).to(rig.left.mac).frame()).1, Some(0), "{key:?}");
            }
        });
    }
}

#[test]
fn the_hosts_own_connections_to_a_backend_are_its_own() {
    in_namespace(|| {
        let rig = Rig::new(1, |_| ());
        command("ip", &["addr", "add", "10.3.0.1/32", "dev", "lo"]);
        let host = [10, 2, 0, 1];
        // A listener on any address, on the port a passing client happens to have.
        let _listener = TcpListener::bind("0.0.0.0:5000").unwrap();
        let any = UdpSocket::bind("0.0.0.0:5001").unwrap();
        let connected = UdpSocket::bind((std::net::Ipv4Addr::from(host), 5002)).unwrap();
        connected.connect((std::net::Ipv4Addr::from(BACKEND), 8080)).unwrap();
        let _ = any;
        for (destination, port, protocol, local) in [
            (host, 5000, Protocol::Tcp, true),
            (CLIENT, 5000, Protocol::Tcp, false),
            (POOL, 5000, Protocol::Tcp, false),
            (host, 5001, Protocol::Udp, true),
            (CLIENT, 5001, Protocol::Udp, false),
            (host, 5002, Protocol::Udp, true),
            (host, 5003, Protocol::Udp, false),
        ] {
            let key = v4(BACKEND, 8080, destination, port, protocol);
            let frame = Packet { flags: SYN, ..Packet::new(key).to(rig.left.mac) }.frame();
            let (run, worker, counted) = offer(&rig, &frame);
            let expected = if local { (OK, None, "local-socket") } else { (REDIRECT, Some(0), "to-worker") };
            assert_eq!((run.verdict, worker), (expected.0, expected.1), "{key:?}");
            assert_eq!(counted, [(expected.2, 1)].into());
        }
    });
}

/// The Ethernet and IP header of `packet`'s frame, and what is behind them replaced by `body`, of `protocol`.
pub(crate) fn packet_with(packet: &Packet, protocol: u8, body: &[u8]) -> Vec<u8> {
    let mut frame = packet.frame();
    if packet.key.is_ipv4() {
        frame.truncate(34);
        frame[16..18].copy_from_slice(&((20 + body.len()) as u16).to_be_bytes());
        frame[23] = protocol;
    } else {
        frame.truncate(54);
        frame[18..20].copy_from_slice(&(body.len() as u16).to_be_bytes());
        frame[20] = protocol;
    }
    frame.extend(body);
    frame
}

/// An ICMP error of `kind` that quotes the start of a packet of `quoted`.
pub(crate) fn icmp(rig: &Rig, kind: u8, quoted: FlowKey) -> Vec<u8> {
    let mut body = vec![kind, 4, 0, 0, 0, 0, 5, 0];
    let inner = Packet::new(quoted).frame();
    body.extend(&inner[14..14 + if quoted.is_ipv4() { 28 } else { 48 }]);
    let to = Endpoint { address: quoted.source.address, port: 0 };
    let outer = match quoted.is_ipv4() {
        true => FlowKey { destination: to, ..v4([10, 9, 9, 9], 0, VIP, 0, Protocol::Tcp) },
        false => FlowKey { destination: to, ..v6("fd09::9", 0, "::1", 0, Protocol::Tcp) },
    };
    packet_with(&Packet::new(outer).to(rig.left.mac), if quoted.is_ipv4() { 1 } else { 58 }, &body)
}

#[test]
fn icmp_error_reaches_worker_of_quoted_connection() {
    in_namespace(|| {
        let rig = Rig::new(64, |_| ());
        let steering = Steering::by_hash(KEY, 64);
        let to_client6 = v6("2001:db8::10", 80, "fd01::5", 4000, Protocol::Tcp);
        for (kind, quoted, steered_by_source) in [
            (3, v4(VIP, 80, CLIENT, 4000, Protocol::Tcp), Some(false)),
            (11, v4(VIP, 80, CLIENT, 4001, Protocol::Udp), Some(false)),
            (12, v4(CLIENT, 4002, BACKEND, 8080, Protocol::Tcp), Some(true)),
            (3, v4(POOL, 20_003, BACKEND, 8081, Protocol::Tcp), Some(true)),
            (2, to_client6, Some(false)),
            (1, v6("fd01::5", 4001, "fd02::2", 8080, Protocol::Tcp), Some(true)),
            (0, v4(VIP, 80, CLIENT, 4000, Protocol::Tcp), None),
            (5, v4(VIP, 80, CLIENT, 4000, Protocol::Tcp), None),
            (128, to_client6, None),
            (3, v4(VIP, 22, CLIENT, 4000, Protocol::Tcp), None),
            (3, v4([10, 2, 0, 1], 4000, BACKEND, 22, Protocol::Tcp), None),
        ] {
            let frame = icmp(&rig, kind, quoted);
            let Some(by_source) = steered_by_source else {
                untouched(&rig, &frame);
                continue;
            };
            let (run, worker, counted) = offer(&rig, &frame);
            let expected = steering.worker(if by_source { &quoted.source } else { &quoted.destination });
            assert_eq!((run.verdict, worker), (REDIRECT, Some(expected)), "{kind} {quoted:?}");
            assert_eq!(counted, [("to-worker", 1)].into());
            for length in if quoted.is_ipv4() { 34 } else { 54 }..frame.len() {
                rig.ingress(&frame[..length]);
            }
        }
    });
}

#[test]
fn icmp_errors_are_policed_and_the_hosts_own_are_left_to_it() {
    in_namespace(|| {
        let rig = Rig::new(1, |options| options.policer_backend_pps = 0);
        rig.plane.control().set_client_rate(0, 0);
        let (run, _, counted) = offer(&rig, &icmp(&rig, 3, v4(VIP, 80, CLIENT, 4000, Protocol::Tcp)));
        assert_eq!((run.verdict, counted), (SHOT, [("policed-client", 1)].into()));
        let (run, _, counted) = offer(&rig, &icmp(&rig, 3, v4(CLIENT, 4000, BACKEND, 8080, Protocol::Tcp)));
        assert_eq!((run.verdict, counted), (SHOT, [("policed-backend", 1)].into()));
        let socket = UdpSocket::bind("10.2.0.1:5002").unwrap();
        socket.connect("10.2.0.2:8080").unwrap();
        let (run, _, counted) = offer(&rig, &icmp(&rig, 3, v4([10, 2, 0, 1], 5002, BACKEND, 8080, Protocol::Udp)));
        assert_eq!((run.verdict, counted), (OK, [("local-socket", 1)].into()));
    });
}

#[test]
fn fragments_and_malformed_packets_to_our_addresses_are_dropped() {
    in_namespace(|| {
        let rig = Rig::new(1, |_| ());
        let fragment = |to: [u8; 4], protocol: Protocol, bits: u16| {
            let mut frame = Packet::new(v4(CLIENT, 1, to, 80, protocol)).to(rig.left.mac).frame();
            frame[20..22].copy_from_slice(&bits.to_be_bytes());
            frame
        };
        for (to, ours) in [(VIP, true), (POOL, true), (BACKEND, false), ([10, 1, 0, 1], false)] {
            for bits in [0x2000, 0x0001, 0x2010] {
                let frame = fragment(to, Protocol::Udp, bits);
                match ours {
                    true => {
                        let (run, _, counted) = offer(&rig, &frame);
                        assert_eq!((run.verdict, counted), (SHOT, [("fragment", 1)].into()));
                    }
                    false => untouched(&rig, &frame),
                }
            }
        }
        // A large ping to the VIP is the kernel's.
        let ping = packet_with(&Packet::new(client(1)).to(rig.left.mac), 1, &[8; 64]);
        untouched(&rig, &ping);
        let mut part = ping;
        part[20] = 0x20;
        untouched(&rig, &part);

        let fragment6 = packet_with(
            &Packet::new(v6("fd01::2", 1, "2001:db8::10", 80, Protocol::Tcp)).to(rig.left.mac),
            44,
            &[6, 0, 0, 1, 0, 0, 0, 1, 0, 1, 0, 80, 0, 0, 0, 0],
        );
        let (run, _, counted) = offer(&rig, &fragment6);
        assert_eq!((run.verdict, counted), (SHOT, [("fragment", 1)].into()));
    });
}

/// Cuts, wrong lengths and impossible headers: dropped and counted if they go to our addresses; nothing is ever sent
/// on.
#[test]
fn truncated_packets_are_malformed() {
    in_namespace(|| {
        let rig = Rig::new(1, |_| ());
        for key in [client(1), v6("fd01::2", 1, "2001:db8::10", 80, Protocol::Tcp)] {
            let packet = Packet { flags: ACK, tcp_options: vec![1; 8], ..Packet::new(key).to(rig.left.mac) };
            let frame = packet.frame();
            let header_end = if key.is_ipv4() { 34 } else { 54 };
            // The kernel runs no programs on less than an IP header.
            for length in header_end..frame.len() {
                let (run, _, counted) = offer(&rig, &frame[..length]);
                assert_eq!((run.verdict, counted), (SHOT, [("malformed", 1)].into()), "{length}");
            }
            let mut bad = vec![frame.clone(), frame.clone(), frame.clone()];
            bad[0][14] ^= 0x20; // version
            let offset = header_end + 12;
            bad[1][offset] = 0x40; // TCP header of 16 bytes
            bad[2][offset] = 0xf0; // of 60
            for frame in bad {
                let (run, _, counted) = offer(&rig, &frame);
                assert_eq!((run.verdict, counted), (SHOT, [("malformed", 1)].into()));
            }
        }
        // A truncated packet to another address is the kernel's to judge.
        let frame = Packet::new(v4(CLIENT, 1, [10, 1, 0, 1], 80, Protocol::Tcp)).to(rig.left.mac).frame();
        untouched(&rig, &frame[..50]);
    });
}

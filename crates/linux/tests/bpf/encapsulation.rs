//! Outer headers of what goes to backends of direct server return, and the program that takes them off.

use crate::direct::noted;
use crate::packet::{Packet, SYN, packet, parsed, v4, v6};
use crate::rig::{
    BACKEND_MAC, Buffer, CLIENT, LOOPBACK, OK, REDIRECT, Rig, SHOT, VIP, XDP_PASS, XDP_REDIRECT, XDP_TX, attach_modes,
    command, in_namespace, run, snapshot,
};
use hairpin_core::config::{Encapsulation, Forwarding, Outer, Snapshot};
use hairpin_core::engine::{Fate, Rule};
use hairpin_core::flow::{Address, Endpoint, FlowKey, Protocol};
use hairpin_core::l7::config::Network;
use hairpin_core::rewrite::{Rewrite, lower_hops};
use hairpin_core::wire::checksum::Sum;
use hairpin_linux::abi::{CHECK_ADDRESS, CHECK_MARK, CHECK_STAND_IN_V4, CHECK_STAND_IN_V6, RULE_ACTIVE, RuleHead};
use hairpin_linux::decapsulate::{Decapsulator, DecapsulatorOptions};
use hairpin_linux::device::Interface;
use hairpin_linux::programs::AttachMode;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::net::IpAddr;
use std::os::fd::AsFd;

const VIP6: &str = "2001:db8::10";
/// Backends behind a router, which is the neighbour that the rig's backends are elsewhere.
const FAR: &str = "10.3.0.2";
const FAR6: &str = "fd03::2";
/// This host's own addresses on the way there.
const OWN: &str = "10.2.0.1";
const OWN6: &str = "fd02::1";
const PORT: u16 = 6080;

fn address(text: &str) -> Address {
    Address::from(text.parse::<IpAddr>().unwrap())
}

/// How packets are wrapped, and whether in headers of the other family.
#[derive(Clone, Copy, Debug)]
struct Tunnel {
    encapsulation: Encapsulation,
    is_mixed: bool,
}

impl From<Encapsulation> for Tunnel {
    fn from(encapsulation: Encapsulation) -> Tunnel {
        Tunnel { encapsulation, is_mixed: false }
    }
}

impl Tunnel {
    /// The backend that packets of this family get.
    fn backend(self, is_ipv4: bool) -> Address {
        address(if is_ipv4 != self.is_mixed { FAR } else { FAR6 })
    }
}

/// The rig's services, with direct server return to the far backends.
fn far(tunnel: impl Into<Tunnel>, source: Option<Address>) -> Snapshot {
    let tunnel = tunnel.into();
    let mut snapshot = snapshot();
    for service in &mut snapshot.services {
        service.forwarding = Forwarding::Direct;
        service.outer = Outer { encapsulation: tunnel.encapsulation, port: PORT, source };
        for backend in &mut service.backends {
            backend.endpoint = Endpoint { address: tunnel.backend(service.endpoint.address.is_ipv4()), port: 80 };
        }
    }
    Snapshot::new(snapshot.services, snapshot.pool)
}

/// The device of health checks.
const CHECKS: &str = "hp-rig-hc";

fn far_rig(snapshot: &Snapshot) -> Rig {
    let mut rig = Rig::new(1, |_| ());
    command("ip", &["route", "add", "10.3.0.0/24", "via", "10.2.0.2"]);
    command("ip", &["route", "add", "fd03::/64", "via", "fd02::2"]);
    rig.plane.configure_backends(snapshot).unwrap();
    rig.plane.configure(snapshot).unwrap();
    rig.plane.configure_checks(snapshot, CHECKS).unwrap();
    rig
}

/// A rule for `key` to the backend that the rig has for such a packet.
fn rule(key: FlowKey, tunnel: impl Into<Tunnel>) -> Rule {
    let destination = Endpoint { address: tunnel.into().backend(key.is_ipv4()), ..key.destination };
    let rewrite = Rewrite { source: key.source, destination, ..Rewrite::default() };
    Rule { key, rewrite, fate: Fate::Direct, total: if key.is_ipv4() { 0 } else { 4 }, ..Rule::default() }
}

fn keys() -> [FlowKey; 3] {
    [
        v4(CLIENT, 40_000, VIP, 80, Protocol::Tcp),
        v6("fd01::2", 40_000, VIP6, 80, Protocol::Tcp),
        v4(CLIENT, 40_000, VIP, 80, Protocol::Udp),
    ]
}

/// The packet in `frame` with one hop less.
fn lowered(frame: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    let at = parsed(&frame);
    lower_hops(&mut frame, &at);
    frame[14..].to_vec()
}

/// What `packet` is to be wrapped in, as it leaves for the far backends: its bytes from the IP header on.
fn outer(tunnel: Tunnel, packet: &[u8], source_port: u16) -> Vec<u8> {
    let has_udp = tunnel.encapsulation == Encapsulation::Gue;
    let is_ipv4 = packet[0] >> 4 == 4;
    let (inside, class) = if is_ipv4 { (4, packet[1]) } else { (41, packet[0] << 4 | packet[1] >> 4) };
    let mut udp = Vec::new();
    if has_udp {
        udp.extend(source_port.to_be_bytes());
        udp.extend(PORT.to_be_bytes());
        udp.extend((packet.len() as u16 + 8).to_be_bytes());
        udp.extend([0, 0]);
    }
    let carried = (udp.len() + packet.len()) as u16;
    let mut header = Vec::new();
    if is_ipv4 != tunnel.is_mixed {
        header.extend([0x45, class]);
        header.extend((carried + 20).to_be_bytes());
        header.extend([0, 0, 0x40, 0, 64, if has_udp { 17 } else { inside }, 0, 0]);
        header.extend(address(OWN).ipv4_octets());
        header.extend(address(FAR).ipv4_octets());
        let sum = Sum::of(&header).checksum();
        header[10..12].copy_from_slice(&sum.to_be_bytes());
    } else {
        match is_ipv4 {
            true => header.extend([0x60 | class >> 4, class << 4, 0, 0]),
            false => header.extend(&packet[..4]),
        }
        header.extend(carried.to_be_bytes());
        header.extend([if has_udp { 17 } else { inside }, 64]);
        header.extend(address(OWN6).0);
        header.extend(address(FAR6).0);
    }
    header.extend(udp);
    header
}

/// Checks a frame that carries `packet` in outer headers. Returns the source port of GUE.
fn assert_wrapped(tunnel: impl Into<Tunnel>, frame: &[u8], packet: &[u8], what: &str) -> u16 {
    let tunnel = tunnel.into();
    let ip = if (packet[0] >> 4 == 4) != tunnel.is_mixed { 20 } else { 40 };
    let port = u16::from_be_bytes(frame[14 + ip..14 + ip + 2].try_into().unwrap());
    let expected = [&outer(tunnel, packet, port), packet].concat();
    assert_eq!(&frame[14..], expected, "{what}");
    assert_eq!(&frame[12..14], if ip == 20 { [8, 0] } else { [0x86, 0xdd] });
    if tunnel.encapsulation == Encapsulation::Gue {
        assert!(port >= 0xc000, "{what}: source port {port}");
    }
    port
}

const TUNNELS: [Tunnel; 4] = [
    Tunnel { encapsulation: Encapsulation::Ipip, is_mixed: false },
    Tunnel { encapsulation: Encapsulation::Gue, is_mixed: false },
    Tunnel { encapsulation: Encapsulation::Ipip, is_mixed: true },
    Tunnel { encapsulation: Encapsulation::Gue, is_mixed: true },
];

#[test]
fn rules_wrap_what_goes_to_backends_hops_away() {
    for tunnel in TUNNELS {
        in_namespace(move || {
            let rig = far_rig(&far(tunnel, None));
            rig.write("devices", &rig.right.index, &rig.right.index);
            for key in keys() {
                rig.put(&rule(key, tunnel), 0, |head| head.flags |= RULE_ACTIVE);
                let frame = Packet::new(key).to(rig.left.mac).frame();
                let what = format!("{tunnel:?} {key:?}");
                // The kernel fills in the MACs of the first.
                let first = rig.ingress(&frame);
                assert_eq!(first.verdict, REDIRECT, "{what}");
                let port = assert_wrapped(tunnel, &first.frame, &lowered(&frame), &what);
                for checksum_complete in [false, true] {
                    let buffer = Buffer { checksum_complete, ..Buffer::default() };
                    let Ok(second) = rig.ingress_as(&frame, buffer) else {
                        assert!(checksum_complete, "{what}");
                        continue;
                    };
                    assert_eq!(second.verdict, REDIRECT, "{what}");
                    assert_eq!(assert_wrapped(tunnel, &second.frame, &lowered(&frame), &what), port, "{what}");
                    assert_eq!((&second.frame[..6], &second.frame[6..12]), (&BACKEND_MAC[..], &rig.right.mac[..]));
                }
                let (xdp, counted) = rig.counted(|| rig.xdp(&frame, true));
                assert_eq!((xdp.verdict, counted), (XDP_REDIRECT, [("xdp-sent", 1)].into()), "{what}");
                assert_eq!(assert_wrapped(tunnel, &xdp.frame, &lowered(&frame), &what), port, "{what}");
                // Counted is what the client has sent.
                let head = rig.head(&key);
                assert_eq!(head.bytes / head.packets, frame.len() as u64 - 14, "{what}");
                // What a worker sends looks the same.
                let number = if key.is_ipv4() { 0 } else { 2 };
                let written = Packet::new(key).to([0x1a, 0, 0, number, 0, 0]).frame();
                let (sent, counted) = rig.counted(|| rig.worker(&written));
                assert_eq!((sent.verdict, counted), (REDIRECT, [("sent", 1)].into()), "{what}");
                assert_eq!(assert_wrapped(tunnel, &sent.frame, &written[14..], &what), port, "{what}");
            }
        });
    }
}

/// In force and wrapped, with a fresh next hop by the loopback device.
fn wrapped(rig: &Rig) -> impl Fn(&mut RuleHead) + use<> {
    rig.settled(LOOPBACK, 1500, true)
}

#[test]
fn xdp_and_tc_wrap_alike() {
    for tunnel in TUNNELS {
        in_namespace(move || {
            let rig = far_rig(&far(tunnel, None));
            let mut runner = TestRunner::new(Config { failure_persistence: None, ..Config::with_cases(1000) });
            let outcome = runner.run(&packet(), |packet| {
                let packet = Packet { tags: Vec::new(), extensions: Vec::new(), ..packet.to(rig.left.mac) };
                let frame = packet.frame();
                rig.put(&rule(packet.key, tunnel), 0, wrapped(&rig));
                let (xdp, tc) = (rig.xdp(&frame, true), rig.ingress(&frame));
                prop_assert_eq!((xdp.verdict, tc.verdict), (XDP_TX, REDIRECT));
                prop_assert_eq!(&xdp.frame, &tc.frame, "xdp left, tc right; before: {:?}", frame);
                let head = rig.head(&packet.key);
                prop_assert_eq!((head.packets, head.bytes), (2, 2 * (frame.len() as u64 - 14)));
                Ok(())
            });
            outcome.unwrap();
        });
    }
}

#[test]
fn gue_source_ports_differ_by_client() {
    in_namespace(|| {
        let rig = far_rig(&far(Encapsulation::Gue, None));
        let port = |client_port| {
            let key = v4(CLIENT, client_port, VIP, 80, Protocol::Tcp);
            let frame = rig.worker(&Packet::new(key).to([0x1a, 0, 0, 0, 0, 0]).frame()).frame;
            u16::from_be_bytes(frame[34..36].try_into().unwrap())
        };
        let ports: std::collections::BTreeSet<u16> = (1..=100).map(port).collect();
        assert!(ports.len() > 90, "{ports:?}");
    });
}

#[test]
fn outer_source_is_as_configured() {
    in_namespace(|| {
        let rig = far_rig(&far(Encapsulation::Ipip, Some(address("10.1.0.1"))));
        let sent = rig.worker(&Packet::new(keys()[0]).to([0x1a, 0, 0, 0, 0, 0]).frame());
        assert_eq!((sent.verdict, &sent.frame[26..30]), (REDIRECT, &[10, 1, 0, 1][..]));
    });
}

#[test]
fn without_a_source_nothing_is_wrapped() {
    in_namespace(|| {
        let mut rig = Rig::new(1, |_| ());
        // There is no route yet.
        rig.plane.configure_backends(&far(Encapsulation::Ipip, None)).unwrap();
        rig.plane.configure_checks(&far(Encapsulation::Ipip, None), CHECKS).unwrap();
        command("ip", &["route", "add", "10.3.0.0/24", "via", "10.2.0.2"]);
        let written = Packet::new(keys()[0]).to([0x1a, 0, 0, 0, 0, 0]).frame();
        let (sent, counted) = rig.counted(|| rig.worker(&written));
        assert_eq!((sent.verdict, counted), (SHOT, [("not-encapsulated", 1)].into()));
        rig.put(&rule(keys()[0], Encapsulation::Ipip), 0, |head| head.flags |= RULE_ACTIVE);
        let frame = Packet::new(keys()[0]).to(rig.left.mac).frame();
        let (sent, counted) = rig.counted(|| rig.ingress(&frame));
        assert_eq!((sent.verdict, counted), (SHOT, [("not-encapsulated", 1)].into()));
        rig.put(&rule(keys()[0], Encapsulation::Ipip), 0, wrapped(&rig));
        let xdp = rig.xdp(&frame, true);
        assert_eq!((xdp.verdict, xdp.frame), (XDP_PASS, frame));
        // It is found out anew.
        rig.plane.configure_backends(&far(Encapsulation::Ipip, None)).unwrap();
        assert_eq!(rig.worker(&written).verdict, REDIRECT);
    });
}

/// A router that has got wrapped packets gets no bare ones, not even until the next hop is looked up again.
#[test]
fn a_change_of_encapsulation_is_in_force_at_once() {
    in_namespace(|| {
        let rig = far_rig(&far(Encapsulation::Ipip, None));
        rig.write("devices", &rig.right.index, &rig.right.index);
        let key = keys()[0];
        rig.put(&rule(key, Encapsulation::Ipip), 0, |head| head.flags |= RULE_ACTIVE);
        let frame = Packet::new(key).to(rig.left.mac).frame();
        assert_wrapped(Encapsulation::Ipip, &rig.ingress(&frame).frame, &lowered(&frame), "first");
        rig.plane.configure_backends(&far(Encapsulation::Gue, None)).unwrap();
        assert_wrapped(Encapsulation::Gue, &rig.ingress(&frame).frame, &lowered(&frame), "second");
        rig.plane.configure_backends(&far(Encapsulation::None, None)).unwrap();
        assert_eq!(rig.xdp(&frame, true).verdict, XDP_PASS);
        let (run, counted) = rig.counted(|| rig.ingress(&frame));
        assert_eq!((run.verdict, run.frame[0]), (REDIRECT, 0x0a), "to the worker");
        assert_eq!(counted.get("rule-no-route"), Some(&1), "{counted:?}");
        rig.plane.configure_backends(&far(Encapsulation::Ipip, None)).unwrap();
        assert_wrapped(Encapsulation::Ipip, &rig.ingress(&frame).frame, &lowered(&frame), "again");
    });
}

/// A reload may take the encapsulation away while a backend of the other family still has connections.
#[test]
fn nothing_goes_bare_to_a_backend_of_the_other_family() {
    in_namespace(|| {
        let tunnel = TUNNELS[2];
        let rig = far_rig(&far(tunnel, None));
        let key = keys()[1];
        rig.put(&rule(key, tunnel), 0, |head| head.flags |= RULE_ACTIVE);
        let frame = Packet::new(key).to(rig.left.mac).frame();
        assert_wrapped(tunnel, &rig.ingress(&frame).frame, &lowered(&frame), "first");
        rig.plane.configure_backends(&far(Tunnel { encapsulation: Encapsulation::None, ..tunnel }, None)).unwrap();
        let (run, counted) = rig.counted(|| rig.ingress(&frame));
        assert_eq!((run.verdict, run.frame[0]), (REDIRECT, 0x0a), "to the worker");
        assert_eq!(counted.get("rule-no-route"), Some(&1), "{counted:?}");
        let (sent, counted) = rig.counted(|| rig.worker(&Packet::new(key).to([0x1a, 0, 0, 2, 0, 0]).frame()));
        assert_eq!((sent.verdict, counted), (SHOT, [("sent-no-route", 1)].into()));
    });
}

#[test]
fn outer_headers_count_towards_the_mtu() {
    for (tunnel, bytes) in TUNNELS.into_iter().zip([20, 28, 40, 48]) {
        in_namespace(move || {
            let rig = far_rig(&far(tunnel, None));
            rig.write("devices", &rig.right.index, &rig.right.index);
            let key = keys()[0];
            rig.put(&rule(key, tunnel), 0, |head| head.flags |= RULE_ACTIVE);
            let payload = 1500 - bytes - 40;
            for (payload, fits) in [(payload, true), (payload + 1, false)] {
                let sized = Packet { payload: vec![1; payload], ..Packet::new(key) };
                let frame = sized.clone().to(rig.left.mac).frame();
                let (run, counted) = rig.counted(|| rig.ingress(&frame));
                assert_eq!(run.verdict, REDIRECT);
                assert_eq!(rig.xdp(&frame, true).verdict, if fits { XDP_REDIRECT } else { XDP_PASS });
                assert_eq!(counted.contains_key("rule-mtu"), !fits, "{payload}: {counted:?}");
                let run = rig.worker(&sized.to([0x1a, 0, 0, 0, 0, 0]).frame());
                assert_eq!((run.verdict, run.frame[0] == 0x0e), (REDIRECT, !fits));
                if !fits {
                    let mtu = u16::from_be_bytes(run.frame[4..6].try_into().unwrap());
                    assert_eq!(usize::from(mtu), 1500 - bytes, "told to the worker");
                }
            }
        });
    }
}

/// Checks go the way of clients' packets: to the VIP, wrapped.
#[test]
fn checks_are_wrapped_too() {
    for tunnel in TUNNELS {
        in_namespace(move || {
            let rig = far_rig(&far(tunnel, None));
            let own = address(OWN).ipv4_octets();
            let (far, far6) = match tunnel.is_mixed {
                true => (CHECK_STAND_IN_V4.octets(), &*CHECK_STAND_IN_V6.to_string()),
                false => (address(FAR).ipv4_octets(), FAR6),
            };
            let flows = [
                (v4(own, 40_001, far, 80, Protocol::Tcp), v4(own, 40_001, VIP, 80, Protocol::Tcp)),
                (v6(OWN6, 40_001, far6, 80, Protocol::Tcp), v6(OWN6, 40_001, VIP6, 80, Protocol::Tcp)),
            ];
            for ((sent, expected), number) in flows.into_iter().zip([0, 2]) {
                let frame = Packet { flags: SYN, ..Packet::new(sent) }.frame();
                let buffer = Buffer { mark: CHECK_MARK | number, ..Buffer::default() };
                let device = if tunnel.is_mixed { Interface::by_name(CHECKS).unwrap().index } else { rig.right.index };
                let run = run(rig.plane.check_program(), &frame, device, buffer).unwrap();
                let inner = Packet { flags: SYN, ttl: 1, ..Packet::new(expected) }.frame();
                // From the device of checks it is sent elsewhere, and its answer is brought in there.
                let (verdict, to) = if tunnel.is_mixed { (REDIRECT, CHECK_ADDRESS) } else { (OK, rig.left.mac) };
                assert_eq!(run.verdict, verdict, "{tunnel:?}");
                assert_wrapped(tunnel, &run.frame, &inner[14..], "check");
                // The backend answers as the VIP, without a wrapping.
                let answer = Packet::new(expected.reversed()).to(rig.left.mac).frame();
                let run = rig.ingress(&answer);
                let wanted = Packet::new(sent.reversed()).to(to).frame();
                assert_eq!((run.verdict, run.frame), (verdict, wanted), "{tunnel:?}");
            }
        });
    }
}

/// The device of health checks is there while a backend is of another family than its VIP, with a route for each family of VIPs,
/// and an address of an interface that answers come in by.
#[test]
fn device_of_checks_comes_and_goes() {
    in_namespace(|| {
        let mixed = far(TUNNELS[2], None);
        let mut rig = far_rig(&mixed);
        let routes = || command("ip", &["route", "get", "192.0.0.8"]) + &command("ip", &["route", "get", "100::48:50"]);
        // A second time, as by a reload.
        rig.plane.configure_checks(&mixed, CHECKS).unwrap();
        let there = routes();
        assert!(there.contains(&format!("192.0.0.8 dev {CHECKS} src 10.1.0.1")), "{there}");
        assert!(there.contains(&format!("dev {CHECKS}")) && there.contains("src fd01::1"), "{there}");
        assert_eq!(Interface::by_name(CHECKS).unwrap().mac, CHECK_ADDRESS);
        // Interfaces that go take nothing with them.
        rig.plane.detach_others(&[rig.left.index, rig.right.index]).unwrap();
        assert_eq!(noted(&rig), [false, false, true, true, true]);
        rig.plane.configure_checks(&far(Encapsulation::Ipip, None), CHECKS).unwrap();
        assert!(Interface::by_name(CHECKS).is_err());
        rig.plane.configure_checks(&snapshot(), CHECKS).unwrap();
    });
}

fn network(text: &str, prefix: u8) -> Network {
    let address = address(text);
    Network { address, prefix: if address.is_ipv4() { 96 + prefix } else { prefix } }
}

/// A program that opens what the rig's rules wrap.
fn opener(rig: &Rig) -> Decapsulator {
    opener_by(rig, AttachMode::Auto)
}

fn opener_by(rig: &Rig, mode: AttachMode) -> Decapsulator {
    let options = DecapsulatorOptions {
        addresses: vec![network(FAR, 32), network(FAR6, 128)],
        senders: vec![network("10.2.0.0", 24), network("fd02::", 64)],
        vips: vec![network("192.0.2.0", 24), network(VIP6, 128)],
        port: PORT,
    };
    Decapsulator::attach(&rig.left, mode, &options).unwrap()
}

/// What a worker has written, wrapped, as it arrives at the backend, whose part `left` plays.
fn arriving(rig: &Rig, written: &[u8]) -> Vec<u8> {
    let mut frame = rig.worker(written).frame;
    frame[..6].copy_from_slice(&rig.left.mac);
    frame
}

#[test]
fn decapsulate_takes_off_what_rules_put_on() {
    for tunnel in TUNNELS {
        in_namespace(move || {
            let rig = far_rig(&far(tunnel, None));
            let opener = opener(&rig);
            let program = opener.program().unwrap();
            for key in keys() {
                let written = Packet::new(key).to([0x1a, 0, 0, if key.is_ipv4() { 0 } else { 2 }, 0, 0]).frame();
                let wrapped = arriving(&rig, &written);
                for checksum_complete in [false, true] {
                    let buffer = Buffer { checksum_complete, ..Buffer::default() };
                    let Ok(run) = run(program.as_fd(), &wrapped, rig.left.index, buffer) else {
                        assert!(checksum_complete, "{tunnel:?} {key:?}");
                        continue;
                    };
                    assert_eq!((run.verdict, &run.frame[12..]), (OK, &written[12..]), "{tunnel:?} {key:?}");
                }
            }
            let fates = opener.fates().unwrap();
            assert!(fates[0] >= 3 && fates[1..] == [0; 5], "{tunnel:?} {fates:?}");
        });
    }
}

/// Beside a balancer's program on the same interface, whose own stays.
#[test]
fn decapsulate_comes_and_goes() {
    for mode in attach_modes() {
        in_namespace(move || {
            let rig = Rig::new(1, |options| options.attach = mode);
            let filters = || command("tc", &["filter", "show", "dev", "left", "ingress"]);
            let before = filters();
            let opener = opener_by(&rig, mode);
            assert_eq!(filters().contains("pref 18513"), mode == AttachMode::Clsact);
            // One that was killed has left its own: the next one takes its place.
            std::mem::forget(opener);
            opener_by(&rig, mode).detach().unwrap();
            assert_eq!(filters(), before);
            // On an interface that nothing else is attached to, nothing stays.
            rig.plane.detach().unwrap();
            let options = DecapsulatorOptions { addresses: vec![], senders: vec![], vips: vec![], port: PORT };
            let opener = Decapsulator::attach(&rig.right, mode, &options).unwrap();
            assert_eq!(
                command("tc", &["qdisc", "show", "dev", "right"]).contains("clsact"),
                mode == AttachMode::Clsact
            );
            opener.detach().unwrap();
            assert!(!command("tc", &["qdisc", "show", "dev", "right"]).contains("clsact"));
        });
    }
}

/// The bytes at `at` replaced, with the sums of IPv4 headers at `headers` made right.
fn changed(frame: &[u8], at: usize, bytes: &[u8], headers: &[usize]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame[at..at + bytes.len()].copy_from_slice(bytes);
    for &header in headers {
        frame[header + 10..header + 12].fill(0);
        let sum = Sum::of(&frame[header..header + 20]).checksum();
        frame[header + 10..header + 12].copy_from_slice(&sum.to_be_bytes());
    }
    frame
}

#[test]
fn decapsulate_leaves_alone_what_is_not_for_it() {
    in_namespace(|| {
        let rig = far_rig(&far(Encapsulation::Gue, None));
        let opener = opener(&rig);
        let program = opener.program().unwrap();
        let wrapped = arriving(&rig, &Packet::new(keys()[0]).to([0x1a, 0, 0, 0, 0, 0]).frame());
        let (outer, udp, inner) = (14, 34, 42);
        let cases = [
            ("another port", changed(&wrapped, udp + 2, &[0, 53], &[]), None),
            ("a fragment", changed(&wrapped, outer + 6, &[0x20, 0], &[outer]), None),
            ("another host", changed(&wrapped, outer + 16, &[10, 3, 0, 3], &[outer]), None),
            ("another sender", changed(&wrapped, outer + 12, &[10, 9, 0, 1], &[outer]), Some(1)),
            ("no VIP", changed(&wrapped, inner + 16, &[10, 3, 0, 9], &[inner]), Some(2)),
            ("a header of GUE", changed(&wrapped, inner, &[0x05], &[]), Some(3)),
            ("a length beyond the end", changed(&wrapped, inner + 2, &[2, 0], &[inner]), Some(3)),
            ("cut off", wrapped[..inner + 10].to_vec(), Some(3)),
        ];
        for (what, frame, fate) in cases {
            let before = opener.fates().unwrap();
            let run = run(program.as_fd(), &frame, rig.left.index, Buffer::default()).unwrap();
            assert_eq!((run.verdict, run.frame), (OK, frame), "{what}");
            let mut expected = before;
            fate.into_iter().for_each(|fate: usize| expected[fate] += 1);
            assert_eq!(opener.fates().unwrap(), expected, "{what}");
        }
    });
}

/// RFC 6040, figure 4.
#[test]
fn decapsulate_keeps_the_mark_of_congestion() {
    in_namespace(|| {
        let rig = far_rig(&far(Encapsulation::Ipip, None));
        let opener = opener(&rig);
        let program = opener.program().unwrap();
        const NOT: u8 = 0b00;
        const ECT1: u8 = 0b01;
        const ECT0: u8 = 0b10;
        const CE: u8 = 0b11;
        let table = [
            (NOT, [Some(NOT), Some(NOT), Some(NOT), None]),
            (ECT0, [Some(ECT0), Some(ECT1), Some(ECT0), Some(CE)]),
            (ECT1, [Some(ECT1), Some(ECT1), Some(ECT1), Some(CE)]),
            (CE, [Some(CE), Some(CE), Some(CE), Some(CE)]),
        ];
        for key in [keys()[0], keys()[1]] {
            let written = Packet::new(key).to([0x1a, 0, 0, if key.is_ipv4() { 0 } else { 2 }, 0, 0]).frame();
            let wrapped = arriving(&rig, &written);
            let set = |frame: &[u8], header: usize, ecn: u8| match key.is_ipv4() {
                true => changed(frame, header + 1, &[frame[header + 1] & !3 | ecn], &[header]),
                false => changed(frame, header + 1, &[frame[header + 1] & !0x30 | ecn << 4], &[]),
            };
            let inside = if key.is_ipv4() { 34 } else { 54 };
            for (inner, row) in table {
                for (outer, expected) in [NOT, ECT1, ECT0, CE].into_iter().zip(row) {
                    let frame = set(&set(&wrapped, inside, inner), 14, outer);
                    let run = run(program.as_fd(), &frame, rig.left.index, Buffer::default()).unwrap();
                    let what = format!("{key:?}: {inner:02b} in {outer:02b}");
                    match expected {
                        Some(ecn) => {
                            assert_eq!((run.verdict, &run.frame[14..]), (OK, &set(&written, 14, ecn)[14..]), "{what}")
                        }
                        None => assert_eq!(run.verdict, SHOT, "{what}"),
                    }
                }
            }
        }
    });
}

//! Direct server return: rules, what workers send, and health checks.

use crate::packet::{Packet, SYN, packet, parsed, v4, v6};
use crate::rig::{
    BACKEND, BACKEND_MAC, Buffer, CLIENT, OK, REDIRECT, Rig, SHOT, VIP, attach_modes, command, in_namespace, run,
    snapshot,
};
use hairpin_core::config::{Forwarding, Snapshot};
use hairpin_core::engine::{Fate, Rule};
use hairpin_core::flow::{Address, Endpoint, FlowKey, Protocol};
use hairpin_core::rewrite::{Rewrite, lower_hops};
use hairpin_linux::abi::{CHECK_MARK, RULE_ACTIVE};
use hairpin_linux::programs::{AdoptedPrograms, LoadedPlane};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};

const VIP6: &str = "2001:db8::10";
const BACKEND6: &str = "fd02::2";
/// This host's own addresses on the backends' link.
const OWN: [u8; 4] = [10, 2, 0, 1];
const OWN6: &str = "fd02::1";

/// The rig's services, with direct server return.
fn direct() -> Snapshot {
    let mut snapshot = snapshot();
    snapshot.services.iter_mut().for_each(|service| service.forwarding = Forwarding::Direct);
    Snapshot::new(snapshot.services, snapshot.pool)
}

fn direct_rig() -> Rig {
    let mut rig = Rig::new(1, |_| ());
    rig.plane.configure_backends(&direct()).unwrap();
    rig.plane.configure(&direct()).unwrap();
    rig.plane.configure_checks(&direct(), "hp-rig-hc").unwrap();
    rig
}

fn rule(key: FlowKey, backend: Address) -> Rule {
    let destination = Endpoint { address: backend, ..key.destination };
    let rewrite = Rewrite { source: key.source, destination, ..Rewrite::default() };
    Rule { key, rewrite, fate: Fate::Direct, total: 4, ..Rule::default() }
}

fn backend_of(key: &FlowKey) -> Address {
    match key.is_ipv4() {
        true => Address::from_ipv4(BACKEND),
        false => v6("fd01::2", 1, BACKEND6, 1, Protocol::Tcp).destination.address,
    }
}

fn keys() -> [FlowKey; 3] {
    [
        v4(CLIENT, 40_000, VIP, 80, Protocol::Tcp),
        v6("fd01::2", 40_000, VIP6, 80, Protocol::Tcp),
        v4(CLIENT, 40_000, VIP, 80, Protocol::Udp),
    ]
}

/// The frame with one hop less, as software makes it.
fn lowered(frame: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    let at = parsed(&frame);
    lower_hops(&mut frame, &at);
    frame
}

#[test]
fn direct_rule_finds_the_backend_and_changes_one_hop() {
    in_namespace(|| {
        let rig = direct_rig();
        for key in keys() {
            rig.put(&rule(key, backend_of(&key)), 0, |head| head.flags |= RULE_ACTIVE);
            let frame = Packet::new(key).to(rig.left.mac).frame();
            // The kernel fills in the MACs of the first.
            let first = rig.ingress(&frame);
            assert_eq!((first.verdict, &first.frame[12..]), (REDIRECT, &lowered(&frame)[12..]));
            let second = rig.ingress(&frame);
            let mut expected = lowered(&frame);
            expected[..6].copy_from_slice(&BACKEND_MAC);
            expected[6..12].copy_from_slice(&rig.right.mac);
            assert_eq!((second.verdict, second.frame), (REDIRECT, expected));
            assert_eq!(rig.head(&key).packets, 2);
        }
    });
}

#[test]
fn direct_rule_leads_to_no_router() {
    in_namespace(|| {
        let rig = direct_rig();
        command("ip", &["route", "add", "10.3.0.0/24", "via", "10.2.0.2"]);
        command("ip", &["route", "add", "fd03::/64", "via", "fd02::2"]);
        for (key, far) in [(keys()[0], "10.3.0.2"), (keys()[1], "fd03::2")] {
            let far = Address::from(far.parse::<std::net::IpAddr>().unwrap());
            rig.put(&rule(key, far), 0, |head| head.flags |= RULE_ACTIVE);
            let frame = Packet::new(key).to(rig.left.mac).frame();
            let (run, counted) = rig.counted(|| rig.ingress(&frame));
            assert_eq!((run.verdict, run.frame[0], run.frame[12..] == frame[12..]), (REDIRECT, 0x0a, true));
            assert_eq!(counted.get("rule-no-route"), Some(&1), "{counted:?}");
        }
    });
}

#[test]
fn direct_rule_and_software_change_the_same_bytes() {
    in_namespace(|| {
        let rig = direct_rig();
        let probe = rig.ingress_as(&[0; 64], Buffer { checksum_complete: true, ..Buffer::default() });
        let knows_sums = probe.is_ok();
        let mut runner = TestRunner::new(Config { failure_persistence: None, ..Config::with_cases(1500) });
        let cases = (packet(), any::<bool>());
        let compare = |(packet, checksum_complete): (Packet, bool)| {
            let frame = packet.to(rig.left.mac).frame();
            let key = parsed(&frame).key;
            rig.put(&rule(key, backend_of(&key)), 0, rig.settled(1, 1500, false));
            let buffer = Buffer { checksum_complete: checksum_complete && knows_sums, ..Buffer::default() };
            let run = rig.ingress_as(&frame, buffer).map_err(|error| TestCaseError::fail(error.to_string()))?;
            prop_assert_eq!(run.verdict, REDIRECT);
            prop_assert_eq!(&run.frame[12..], &lowered(&frame)[12..]);
            Ok(())
        };
        runner.run(&cases, compare).unwrap();
    });
}

#[test]
fn direct_frames_of_workers_go_to_their_backend() {
    in_namespace(|| {
        let rig = direct_rig();
        for (key, number) in [(keys()[0], 0), (keys()[1], 2)] {
            let frame = Packet::new(key).to([0x1a, 0, 0, number, 0, 0]).frame();
            let (run, counted) = rig.counted(|| rig.worker(&frame));
            assert_eq!((run.verdict, &run.frame[12..]), (REDIRECT, &frame[12..]));
            assert_eq!(counted, [("sent", 1)].into());
        }
        // No such backend: its address is none.
        let frame = Packet::new(keys()[0]).to([0x1a, 0, 0x12, 0x34, 0, 0]).frame();
        let (run, counted) = rig.counted(|| rig.worker(&frame));
        assert_eq!((run.verdict, counted), (SHOT, [("sent-no-route", 1)].into()));
        let frame = Packet::new(keys()[0]).to([0x1a, 0, 0xff, 0xff, 0, 0]).frame();
        assert_eq!(rig.worker(&frame).verdict, SHOT);
    });
}

#[test]
fn direct_too_big_frames_come_back() {
    in_namespace(|| {
        let rig = direct_rig();
        command("ip", &["route", "add", "10.2.0.2/32", "dev", "right", "mtu", "lock", "1400"]);
        let packet = Packet::new(keys()[0]).to([0x1a, 0, 0, 0, 0, 0]);
        let frame = Packet { payload: vec![1; 1361], ..packet }.frame();
        let run = rig.worker(&frame);
        assert_eq!((run.verdict, &run.frame[..6]), (REDIRECT, &[0x0e, 0, 0, 0, 5, 120][..]));
    });
}

/// What a check sends to the backend's own address leaves to the VIP, and the answer comes back as from the backend.
#[test]
fn direct_checks_go_to_the_vip_and_back() {
    in_namespace(|| {
        let rig = direct_rig();
        let flows = |protocol| {
            [
                (v4(OWN, 40_001, BACKEND, 8080, protocol), v4(OWN, 40_001, VIP, 8080, protocol), 0),
                (v6(OWN6, 40_001, BACKEND6, 8080, protocol), v6(OWN6, 40_001, VIP6, 8080, protocol), 2),
            ]
        };
        for (sent, expected, number) in flows(Protocol::Tcp).into_iter().chain(flows(Protocol::Udp)) {
            let number = if sent.protocol == Protocol::Udp && number == 0 { 1 } else { number };
            let frame = Packet { flags: SYN, ..Packet::new(sent) }.frame();
            let marked = |mark| Buffer { mark, ..Buffer::default() };
            let check = |mark| run(rig.plane.check_program(), &frame, rig.right.index, marked(mark)).unwrap();
            let other = check(0);
            assert_eq!((other.verdict, &other.frame), (OK, &frame), "of others nothing changes");
            let wanted = Packet { flags: SYN, ttl: 1, ..Packet::new(expected) }.frame();
            let run = check(CHECK_MARK | number);
            assert_eq!((run.verdict, run.frame), (OK, wanted));
            // The backend answers as the VIP.
            let answer = Packet::new(expected.reversed()).to(rig.left.mac).frame();
            for checksum_complete in [false, true] {
                let buffer = Buffer { checksum_complete, ..Buffer::default() };
                let Ok(run) = rig.ingress_as(&answer, buffer) else {
                    assert!(checksum_complete, "the ingress program failed");
                    continue;
                };
                let wanted = Packet::new(sent.reversed()).to(rig.left.mac).frame();
                assert_eq!((run.verdict, run.frame), (OK, wanted), "{sent:?}");
            }
        }
    });
}

#[test]
fn direct_answers_of_no_check_are_left_alone() {
    in_namespace(|| {
        let rig = direct_rig();
        let frame = Packet::new(v4(OWN, 40_001, BACKEND, 8080, Protocol::Tcp)).frame();
        run(rig.plane.check_program(), &frame, rig.right.index, Buffer { mark: CHECK_MARK, ..Buffer::default() })
            .unwrap();
        let others = [
            v4(VIP, 8080, OWN, 40_002, Protocol::Tcp),
            v4(VIP, 8080, OWN, 40_001, Protocol::Udp),
            v4([192, 0, 2, 99], 8080, OWN, 40_001, Protocol::Tcp),
            v4(VIP, 80, CLIENT, 40_000, Protocol::Tcp),
        ];
        for key in others {
            let frame = Packet::new(key).to(rig.left.mac).frame();
            let run = rig.ingress(&frame);
            assert_eq!((run.verdict, run.frame), (OK, frame), "{key:?}");
        }
    });
}

/// What is noted of attachments, without the device: whether each is at an egress.
pub(crate) fn noted(rig: &Rig) -> Vec<bool> {
    let entries = std::fs::read_dir(rig.plane.pin_path().join("links")).unwrap();
    let mut egress: Vec<bool> =
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().ends_with("-egress")).collect();
    egress.sort_unstable();
    egress
}

#[test]
fn direct_check_program_comes_and_goes_with_the_services() {
    for mode in attach_modes() {
        in_namespace(move || {
            let mut rig = Rig::new(1, |options| options.attach = mode);
            assert_eq!(noted(&rig), [false; 2]);
            rig.plane.configure_checks(&direct(), "hp-rig-hc").unwrap();
            assert_eq!(noted(&rig), [false, false, true, true]);
            rig.plane.configure_checks(&snapshot(), "hp-rig-hc").unwrap();
            assert_eq!(noted(&rig), [false; 2]);
            // Another process adopts it, and a service comes again.
            rig.plane.configure_checks(&direct(), "hp-rig-hc").unwrap();
            let AdoptedPrograms::Plane(mut next) = LoadedPlane::adopt(&rig.options, rig.plane.steering()).unwrap()
            else {
                panic!("not adopted")
            };
            next.attach(0, rig.left.index, rig.left.mac).unwrap();
            next.attach(1, rig.right.index, rig.right.mac).unwrap();
            next.configure_checks(&direct(), "hp-rig-hc").unwrap();
            assert_eq!(noted(&rig), [false, false, true, true]);
            next.detach().unwrap();
            drop(rig);
            let left =
                command("tc", &["qdisc", "show"]) + &command("tc", &["filter", "show", "dev", "right", "egress"]);
            assert!(!left.contains("clsact") && !left.contains("hairpin"), "{left}");
        });
    }
}

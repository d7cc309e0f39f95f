//! Captures see packets before and after translation, whether a worker or a rule forwards them, and change nothing.

use crate::packet::{Packet, parsed, v4, v6};
use crate::rig::{BACKEND, BACKEND_MAC, CLIENT, Rig, VIP, command, in_namespace};
use crate::wire::{Link, Vnet, received};
use hairpin_core::engine::Rule;
use hairpin_core::flow::{FlowKey, Protocol};
use hairpin_core::frame::{Checksum, Frame, FrameIo};
use hairpin_core::rewrite::Rewrite;
use hairpin_linux::capture::{Capture, CaptureFilter, HOSTS_MAX, SNAP_LENGTH_MAX};
use hairpin_linux::device::Interface;
use hairpin_linux::tap::{Tap, TapIo};
use std::net::IpAddr;
use std::time::{Duration, SystemTime};

fn filter(hosts: &[[u8; 4]]) -> CaptureFilter {
    CaptureFilter { hosts: hosts.iter().map(|host| IpAddr::from(*host)).collect(), snap_length: 65_536 }
}

/// Waits for one.
fn next(capture: &mut Capture) -> (Vec<u8>, bool) {
    let captured = capture.next(Duration::from_secs(10)).unwrap().expect("nothing was captured");
    assert_eq!(captured.length_on_wire, captured.bytes.len());
    (captured.bytes.to_vec(), captured.outgoing)
}

fn ends(frame: &[u8]) -> FlowKey {
    parsed(frame).key
}

fn rewrite(key: FlowKey) -> (Rewrite, FlowKey) {
    let to = v4(CLIENT, key.source.port, BACKEND, 8080, Protocol::Tcp);
    (Rewrite { source: to.source, destination: to.destination, ..Rewrite::default() }, to)
}

#[test]
fn software_and_offloaded_packets_are_seen_before_and_after() {
    in_namespace(|| {
        let mut rig = Rig::new(1, |_| ());
        let mut io = TapIo::new(Tap::create("tap-0", 64).unwrap(), 8).unwrap();
        rig.plane.attach_worker(0, Interface::by_name("tap-0").unwrap().index).unwrap();
        let near = Link::open("left-peer");
        let far = Link::open("right-peer");
        let mut left = Capture::open("left", &filter(&[CLIENT])).unwrap();
        let mut right = Capture::open("right", &filter(&[[1, 2, 3, 4], BACKEND])).unwrap();
        let began = SystemTime::now() - Duration::from_secs(1);

        for offloaded in [false, true] {
            let key = v4(CLIENT, 40_000 + u16::from(offloaded), VIP, 80, Protocol::Tcp);
            let (rewrite, to) = rewrite(key);
            if offloaded {
                rig.put(&Rule { key, rewrite, ..Rule::default() }, 0, |head| {
                    head.flags |= hairpin_linux::abi::RULE_ACTIVE;
                });
            }
            // Another host's packet in between is not seen.
            let other = v4([10, 1, 0, 99], 40_000, [10, 1, 0, 98], 80, Protocol::Tcp);
            near.send(&Vnet::default(), &Packet::new(other).to(rig.left.mac).frame());
            let frame = Packet::new(key).to(rig.left.mac).frame();
            near.send(&Vnet::default(), &frame);
            if !offloaded {
                let mut batch = received(&mut io, 1);
                let at = parsed(batch[0].bytes());
                rewrite.apply(batch[0].bytes_mut(), &at, Checksum::Complete);
                io.transmit(&mut batch);
            }
            assert_eq!(next(&mut left), (frame, false));
            let (bytes, outgoing) = next(&mut right);
            assert!(outgoing);
            assert_eq!(ends(&bytes), to);
            let (_, arrived) = std::iter::from_fn(|| far.receive()).find(|(_, f)| f[..6] == BACKEND_MAC).unwrap();
            assert_eq!(bytes, arrived, "what is seen is what went out");
        }
        let mut left_again = Capture::open("left", &filter(&[CLIENT])).unwrap();
        near.send(&Vnet::default(), &Packet::new(v4(CLIENT, 1, VIP, 80, Protocol::Tcp)).to(rig.left.mac).frame());
        let seen = left_again.next(Duration::from_secs(10)).unwrap().unwrap();
        assert!(seen.timestamp > began && seen.timestamp < SystemTime::now() + Duration::from_secs(1));
        assert!(left_again.next(Duration::ZERO).unwrap().is_none());
        assert_eq!((left.lost(), right.lost()), (0, 0));
    });
}

#[test]
fn tags_are_put_back_and_long_packets_cut() {
    in_namespace(|| {
        let rig = Rig::new(1, |_| ());
        let near = Link::open("left-peer");
        let mut whole = Capture::open("left", &filter(&[])).unwrap();
        let short = CaptureFilter { snap_length: 60, ..filter(&[CLIENT]) };
        let mut short = Capture::open("left", &short).unwrap();
        let key = v4(CLIENT, 40_000, VIP, 80, Protocol::Tcp);
        for tags in [vec![], vec![[0x81, 0, 0x20, 7]], vec![[0x88, 0xa8, 0, 9], [0x81, 0, 0, 7]]] {
            let packet = Packet { tags, ..Packet::new(key).to(rig.left.mac) };
            let frame = Packet { payload: vec![5; 300], ..packet }.frame();
            near.send(&Vnet::default(), &frame);
            // The host's own IPv6, such as reports of multicast groups, is seen, too.
            let ipv4 = std::iter::repeat_with(|| next(&mut whole)).find(|(seen, _)| seen[12..14] != [0x86, 0xdd]);
            assert_eq!(ipv4, Some((frame.clone(), false)));
            let cut = short.next(Duration::from_secs(10)).unwrap().unwrap();
            // The kernel cuts what it has: the tag it keeps beside the packet comes on top.
            let tag = if frame.len() > 14 + 40 + 300 { 4 } else { 0 };
            assert_eq!((cut.bytes, cut.length_on_wire), (&frame[..60 + tag], frame.len()));
        }
        // IPv6, and a super-packet.
        let key = v6("fd01::2", 40_000, "2001:db8::10", 80, Protocol::Tcp);
        let packet = Packet { payload: vec![9; 60_000], ..Packet::new(key).to(rig.left.mac) };
        let header =
            Vnet { gso_type: 4, headers: 74, gso_size: 1428, flags: 1, checksum_start: 54, checksum_offset: 16 };
        near.send(&header, &packet.frame());
        let seen = std::iter::from_fn(|| Some(next(&mut whole))).find(|(bytes, _)| bytes.len() > 60_000).unwrap();
        assert_eq!(ends(&seen.0), key);
    });
}

#[test]
fn unread_packets_are_lost_and_counted() {
    in_namespace(|| {
        let _rig = Rig::new(1, |_| ());
        let near = Link::open("left-peer");
        let mut capture = Capture::open("left", &filter(&[CLIENT])).unwrap();
        let key = v4(CLIENT, 40_000, [10, 1, 0, 1], 9, Protocol::Udp);
        // To another host: the kernel sends no errors back, which the capture would count, too.
        let frame = Packet { payload: vec![0; 1000], ..Packet::new(key).to([2, 0, 0, 0, 9, 9]) }.frame();
        // 32 MiB of room are used up by packets of more than a kilobyte each.
        let sent = 40_000;
        for _ in 0..sent {
            near.send(&Vnet::default(), &frame);
        }
        let mut seen = 0;
        while let Some(captured) = capture.next(Duration::ZERO).unwrap() {
            seen += u64::from(captured.bytes == frame);
        }
        let lost = capture.lost();
        assert!(seen > 1000 && lost > 0, "{seen} seen, {lost} lost");
        assert_eq!((seen + lost, capture.lost()), (sent, lost));
    });
}

#[test]
fn what_cannot_be_captured_is_refused() {
    in_namespace(|| {
        let kind = |interface: &str, filter: &CaptureFilter| Capture::open(interface, filter).unwrap_err().kind();
        assert_eq!(kind("no-such", &filter(&[])), std::io::ErrorKind::NotFound);
        assert_eq!(kind("lo", &filter(&[CLIENT; HOSTS_MAX + 1])), std::io::ErrorKind::InvalidInput);
        Capture::open("lo", &filter(&[CLIENT; HOSTS_MAX])).unwrap();
        for snap_length in [0, SNAP_LENGTH_MAX + 1] {
            assert_eq!(kind("lo", &CaptureFilter { snap_length, ..filter(&[]) }), std::io::ErrorKind::InvalidInput);
        }
        // An interface that goes is an error, once.
        command("ip", &["link", "add", "gone", "type", "veth", "peer", "name", "gone-peer"]);
        command("ip", &["link", "set", "gone", "up"]);
        let mut capture = Capture::open("gone", &filter(&[])).unwrap();
        assert!(capture.next(Duration::ZERO).unwrap().is_none());
        command("ip", &["link", "delete", "gone"]);
        let error = capture.next(Duration::from_secs(1)).unwrap_err().to_string();
        assert!(error.contains("gone"), "{error}");
    });
}

//! Frames that workers write.

use crate::packet::{Packet, v4, v6};
use crate::rig::{BACKEND, Buffer, CLIENT, REDIRECT, Rig, SHOT, command, in_namespace};
use hairpin_core::flow::Protocol;

const ROUTE: [u8; 6] = [0x12, 0, 0, 0, 0, 1];

fn to_backend(payload: usize, protocol: Protocol) -> Packet {
    let packet = Packet::new(v4(CLIENT, 1, BACKEND, 8080, protocol)).to(ROUTE);
    Packet { payload: vec![1; payload], ..packet }
}

#[test]
fn are_routed() {
    in_namespace(|| {
        let rig = Rig::new(1, |_| ());
        let v6 = Packet::new(v6("fd01::2", 1, "fd02::2", 8080, Protocol::Udp)).to(ROUTE);
        for packet in [to_backend(100, Protocol::Tcp), v6] {
            let frame = packet.frame();
            let (run, counted) = rig.counted(|| rig.worker(&frame));
            assert_eq!((run.verdict, &run.frame[12..]), (REDIRECT, &frame[12..]));
            assert_eq!(counted, [("sent", 1)].into());
        }
        // Two tags in band: the kernel cannot fill in the neighbour's address there.
        let tags = vec![[0x88, 0xa8, 0, 7], [0x81, 0, 0, 9]];
        let run = rig.worker(&Packet { tags, ..to_backend(10, Protocol::Tcp) }.frame());
        assert_eq!(run.verdict, REDIRECT);
        assert_eq!((&run.frame[..6], &run.frame[6..12]), (&crate::rig::BACKEND_MAC[..], &rig.right.mac[..]));
    });
}

#[test]
fn come_back_when_they_are_too_big() {
    in_namespace(|| {
        let rig = Rig::new(1, |_| ());
        command("ip", &["route", "add", "10.2.0.2/32", "dev", "right", "mtu", "lock", "1400"]);
        for (protocol, most) in [(Protocol::Tcp, 1360), (Protocol::Udp, 1372)] {
            assert_eq!(rig.worker(&to_backend(most, protocol).frame()).frame[0], ROUTE[0]);
            let frame = to_backend(most + 1, protocol).frame();
            let (run, counted) = rig.counted(|| rig.worker(&frame));
            assert_eq!((run.verdict, &run.frame[6..]), (REDIRECT, &frame[6..]));
            assert_eq!(run.frame[..6], [0x0e, 0, 0, 0, 5, 120], "1400");
            assert_eq!(counted, [("sent-too-big", 1)].into());

            let of = |gso_size| Buffer { gso_size, gso_segs: 3, ..Buffer::default() };
            let frame = to_backend(3000, protocol).frame();
            assert_eq!(rig.worker_as(&frame, of(most as u32)).frame[0], ROUTE[0], "segments of that size fit");
            assert_eq!(rig.worker_as(&frame, of(most as u32 + 1)).frame[0], 0x0e);
        }
    });
}

#[test]
fn frames_without_a_route_are_dropped() {
    in_namespace(|| {
        let rig = Rig::new(1, |_| ());
        let frame = Packet::new(v4(CLIENT, 1, [172, 16, 0, 1], 1, Protocol::Tcp)).to(ROUTE).frame();
        let (run, counted) = rig.counted(|| rig.worker(&frame));
        assert_eq!((run.verdict, counted), (SHOT, [("sent-no-route", 1)].into()));
    });
}

#[test]
fn that_no_worker_wrote_are_dropped() {
    in_namespace(|| {
        let rig = Rig::new(1, |_| ());
        let good = to_backend(10, Protocol::Tcp);
        let mut frames = vec![
            good.clone().to([0x33, 0x33, 0, 0, 0, 1]).frame(),
            good.clone().to([0x0a, 0, 0, 0, 0, 0]).frame(),
            good.clone().to([0x12, 63, 0, 0, 0, 0]).frame(),
            good.clone().to([0x12, 255, 0, 0, 0, 0]).frame(),
            good.clone().to([0x16, 63, 0, 0, 0, 0]).frame(),
        ];
        let mut arp = good.frame();
        arp[13] = 6;
        frames.push(arp);
        for frame in frames {
            let (run, counted) = rig.counted(|| rig.worker(&frame));
            assert_eq!((run.verdict, counted), (SHOT, [("worker-malformed", 1)].into()), "{frame:?}");
        }
    });
}

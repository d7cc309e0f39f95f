//! Spliced services in XDP: SYNs are answered and packets refused as at tc ingress, or pass as they came.

use crate::cookie::{self, assert_answer, at_ease, client, cookies, data, offer, splice_with, spliced, stamped, syn};
use crate::packet::{ACK, FIN, Packet, RST, SYN, parsed};
use crate::rig::{KEY, LOOPBACK, REDIRECT, Rig, SHOT, XDP_DROP, XDP_PASS, XDP_REDIRECT, XDP_TX, in_namespace};
use hairpin_core::config::UnknownPacket;
use hairpin_core::flow::Steering;
use hairpin_core::l7::config::Kind;
use hairpin_core::l7::cookie::Offer;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::cell::Cell;
use std::sync::atomic::Ordering;

/// Runs the program in XDP on a frame, which passes as it came, with nothing counted.
fn assert_passes(rig: &Rig, frame: &[u8], sends_back: bool, what: &str) {
    let (run, counted) = rig.counted(|| rig.xdp(frame, sends_back));
    assert_eq!((run.verdict, &run.frame[..], counted), (XDP_PASS, frame, [].into()), "{what}");
}

#[test]
fn xdp_and_tc_answer_syns_alike() {
    in_namespace(|| {
        let rig = cookie::rig(1);
        rig.write("devices", &LOOPBACK, &LOOPBACK);
        let alike = Cell::new(0);
        let mut runner = TestRunner::new(Config { failure_persistence: None, ..Config::with_cases(2000) });
        let outcome = runner.run(&(syn(rig.left.mac), any::<bool>()), |((frame, harmed), sends_back)| {
            rig.heartbeat();
            if harmed {
                assert_passes(&rig, &frame, sends_back, "its checksum is wrong, or unfinished");
                return Ok(());
            }
            let now = at_ease();
            let (xdp, counted) = rig.counted(|| rig.xdp(&frame, sends_back));
            prop_assert_eq!(xdp.verdict, if sends_back { XDP_TX } else { XDP_REDIRECT });
            prop_assert_eq!(counted, [("cookie-sent", 1), ("xdp-sent", 1)].into());
            assert_answer(&rig, &frame, &xdp.frame, now)?;
            let tc = rig.ingress(&frame);
            prop_assert_eq!(tc.verdict, REDIRECT);
            if stamped(&xdp.frame) == stamped(&tc.frame) {
                prop_assert_eq!(&xdp.frame, &tc.frame, "xdp left, tc right; before: {:?}", frame);
                alike.set(alike.get() + 1);
            }
            Ok(())
        });
        outcome.unwrap();
        assert!(alike.get() > 500, "{} answers were compared", alike.get());
    });
}

#[test]
fn syns_that_xdp_cannot_answer_pass() {
    in_namespace(|| {
        let rig = cookie::rig(1);
        for ipv4 in [true, false] {
            let syn = Packet { flags: SYN, payload: Vec::new(), ..Packet::new(client(9, ipv4)) }.to(rig.left.mac);
            let frame = syn.frame();
            assert_passes(&rig, &frame, false, "no device that XDP may send by");
            assert_eq!(rig.xdp(&frame, true).verdict, XDP_TX);
            for flags in [SYN | FIN, SYN | RST] {
                assert_passes(&rig, &Packet { flags, ..syn.clone() }.frame(), true, "malformed");
            }
            let special = match ipv4 {
                true => Packet { ip_options: vec![1; 4], ..syn.clone() },
                false => Packet { extensions: vec![6, 0, 1, 4, 0, 0, 0, 0], ..syn.clone() },
            };
            assert_passes(&rig, &special.frame(), true, "options");
            assert_passes(&rig, &Packet { tags: vec![[0x81, 0, 0, 7]], ..syn.clone() }.frame(), true, "a tag");
            let mut partial = frame.clone();
            crate::traffic::make_partial(&mut partial);
            assert_passes(&rig, &partial, true, "an unfinished checksum");
        }
        let v4 = Packet { flags: SYN, payload: Vec::new(), ..Packet::new(client(9, true)) }.to(rig.left.mac).frame();
        let (mut impossible, mut harmed) = (v4.clone(), v4.clone());
        impossible[26..30].copy_from_slice(&[127, 0, 0, 1]);
        harmed[24] ^= 1;
        assert_passes(&rig, &impossible, true, "an impossible source");
        assert_passes(&rig, &harmed, true, "a wrong header checksum");
        rig.stop_beating();
        assert_passes(&rig, &v4, true, "no process");
    });
}

/// Packets of every kind that a client can send, each from a port of its own; and whether its connection is known.
fn packets(rig: &Rig, ipv4: bool) -> Vec<(Packet, bool)> {
    let made = |port: u16| {
        let cookie =
            cookies(rig).make(at_ease(), &client(port, ipv4), 7, &Offer { mss: 1460, scale: None, sack: true });
        data(client(port, ipv4), 7, cookie)
    };
    let bare = |packet: Packet| Packet { payload: Vec::new(), ..packet };
    let wrong = |packet: Packet| Packet { acknowledgement: packet.acknowledgement ^ 1 << 20, ..packet };
    let flagged = |packet: Packet, flags| Packet { flags, ..packet };
    type Change<'a> = Box<dyn Fn(Packet) -> Packet + 'a>;
    let changes: [Change; 11] = [
        Box::new(|packet| packet),
        Box::new(wrong),
        Box::new(bare),
        Box::new(move |packet| bare(wrong(packet))),
        Box::new(move |packet| flagged(packet, FIN | ACK)),
        Box::new(move |packet| flagged(bare(packet), FIN | ACK)),
        Box::new(move |packet| flagged(bare(wrong(packet)), FIN | ACK)),
        Box::new(move |packet| flagged(packet, RST | ACK)),
        Box::new(move |packet| flagged(bare(packet), RST)),
        Box::new(move |packet| flagged(packet, SYN | ACK)),
        Box::new(move |packet| flagged(packet, 0)),
    ];
    let known = rig.plane.control().known();
    let cell = |packet: &Packet| Steering::by_hash(KEY, 1).hash(&packet.key.source) as usize & (known.len() - 1);
    let mut packets = Vec::new();
    for (number, change) in changes.iter().enumerate() {
        for is_known in [false, true] {
            let packet = change(made(1000 + 2 * number as u16 + u16::from(is_known))).to(rig.left.mac);
            known[cell(&packet)].store(u8::from(is_known), Ordering::Relaxed);
            packets.push((packet, is_known));
        }
    }
    packets
}

#[test]
fn xdp_refuses_packets_of_clients_that_tc_refuses() {
    for (unknown, pps) in [(UnknownPacket::Drop, u32::MAX), (UnknownPacket::Reset, u32::MAX), (UnknownPacket::Reset, 0)]
    {
        in_namespace(move || {
            let rig = Rig::new(1, |_| ());
            splice_with(&rig, unknown);
            (0..4).for_each(|service| rig.plane.control().set_client_rate(service, pps));
            let mut refused = 0;
            for (packet, is_known) in packets(&rig, true).into_iter().chain(packets(&rig, false)) {
                let frame = packet.frame();
                let (xdp, xdp_counted) = rig.counted(|| rig.xdp(&frame, true));
                let (tc, tc_counted) = rig.counted(|| rig.ingress(&frame));
                assert_eq!(xdp.frame, frame, "{packet:?}");
                if tc.verdict == SHOT {
                    assert_eq!((xdp.verdict, xdp_counted), (XDP_DROP, tc_counted), "{packet:?}");
                    refused += 1;
                } else {
                    assert_eq!((xdp.verdict, xdp_counted), (XDP_PASS, [].into()), "{packet:?}");
                }
                assert!(!is_known || tc.verdict == REDIRECT, "{packet:?}");
            }
            assert!(refused >= 10, "{refused} were refused");
        });
    }
}

#[test]
fn data_with_a_cookie_of_xdp_is_admitted() {
    in_namespace(|| {
        let rig = cookie::rig(1);
        for ipv4 in [true, false] {
            let key = client(5000, ipv4);
            let syn = Packet { flags: SYN, sequence: 70, payload: Vec::new(), ..Packet::new(key) }.to(rig.left.mac);
            let now = at_ease();
            let run = rig.xdp(&syn.frame(), true);
            assert_eq!(run.verdict, XDP_TX);
            let at = parsed(&run.frame);
            assert_eq!(at.key, key.reversed());
            let cookie = u32::from_be_bytes(run.frame[at.l4 + 4..at.l4 + 8].try_into().unwrap());
            assert!(cookies(&rig).check(now, &key, 70, cookie).is_some(), "a worker accepts it");
            let first = data(key, 70, cookie).to(rig.left.mac);
            let next = Packet { sequence: first.sequence.wrapping_add(7), acknowledgement: 1, ..first.clone() };
            let [first, next] = [first, next].map(|packet| packet.frame());
            assert_eq!(rig.xdp(&next, true).verdict, XDP_DROP, "nothing came before it");
            // A driver hands both on before tc sees the first.
            assert_passes(&rig, &first, true, "the first data");
            assert_passes(&rig, &next, true, "what comes behind it");
            for frame in [first, next] {
                let (run, counted) = rig.counted(|| rig.ingress(&frame));
                assert_eq!((run.verdict, counted), (REDIRECT, [("to-worker", 1)].into()));
            }
        }
    });
}

#[test]
fn last_acknowledgement_of_a_handshake_begins_plain_connections() {
    in_namespace(|| {
        let rig = Rig::new(1, |_| ());
        let mut services = spliced(UnknownPacket::Drop, true);
        for service in &mut services.services {
            if let Kind::Tls(tls) = &mut service.kind {
                tls.is_plain = true;
            }
        }
        rig.plane.configure(&services).unwrap();
        for ipv4 in [true, false] {
            let key = client(5000, ipv4);
            let cookie = cookies(&rig).make(at_ease(), &key, 7, &Offer { mss: 1460, scale: None, sack: true });
            let bare = Packet { payload: Vec::new(), ..data(key, 7, cookie) }.to(rig.left.mac);
            let wrong = Packet { acknowledgement: bare.acknowledgement ^ 1 << 20, ..bare.clone() };
            let next = Packet { sequence: 2000, ..data(key, 7, cookie) };
            assert_eq!(offer(&rig, &wrong), (SHOT, None, vec!["cookie-bare"]));
            assert_eq!(offer(&rig, &next).2, ["cookie-invalid"]);
            assert_passes(&rig, &bare.frame(), true, "its worker begins the connection");
            assert_eq!(offer(&rig, &bare), (REDIRECT, Some(0), Vec::new()));
            assert_eq!(
                offer(&rig, &next),
                (REDIRECT, Some(0), Vec::new()),
                "what follows before the worker has counted it"
            );
        }
    });
}

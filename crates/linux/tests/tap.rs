//! TAP frames against the real kernel, in network namespaces that vanish with the test's thread. Needs root; without it
//! the tests say so and pass.

#[path = "tap/child.rs"]
mod child;
#[path = "tap/given.rs"]
mod given;
#[path = "tap/joined.rs"]
mod joined;
#[path = "tap/wire.rs"]
mod wire;

use hairpin_core::frame::{Arrival, Batch, Checksum, Egress, Frame, FrameIo};
use hairpin_linux::device::{self, Family, Interface};
use hairpin_linux::tap::{QUEUE_PACKETS_DEFAULT, Tap, TapIo};
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::process::Command;
use std::time::{Duration, Instant};
use wire::{Link, Packet, Vnet, command, in_namespace, received};

const MARK_RECEIVED: [u8; 6] = [0x0a, 3, 1, 0, 0, 42];
const TICKET: u32 = 0x0100_002a;

/// A device with a worker's end of `buffers` and the kernel's end.
fn device(buffers: usize) -> (TapIo, Link) {
    let tap = Tap::create("tap-0", QUEUE_PACKETS_DEFAULT).unwrap();
    (TapIo::new(tap, buffers).unwrap(), Link::open("tap-0"))
}

#[test]
fn a_device_is_set_up_kept_taken_over_and_removed() {
    in_namespace(|| {
        let tap = Tap::create("tap-0", 1234).unwrap();
        let found = Interface::by_name("tap-0").unwrap();
        assert!(found.up && found.ethernet && found.mtu == 65_521, "{found:?}");
        assert!(device::names().unwrap().contains(&"tap-0".to_owned()));
        let silent = std::fs::read_to_string("/proc/sys/net/ipv6/conf/tap-0/disable_ipv6");
        assert!(silent.is_err() || silent.unwrap().trim() == "1");
        let shown = command("ip", &["link", "show", "tap-0"]);
        assert!(shown.contains("NOARP") && shown.contains("noqueue") && shown.contains("qlen 1234"), "{shown}");
        assert!(!shown.contains("MULTICAST"), "{shown}");

        let taken = Tap::create("tap-0", 1234).unwrap_err().to_string();
        assert!(taken.contains("tap-0") && taken.contains("busy"), "{taken}");
        assert!(Tap::remove("tap-0").is_err(), "in use");
        drop(tap);
        assert_eq!(Interface::by_name("tap-0").unwrap().index, found.index, "it outlives its process");
        // A program that another test starts at this moment has a copy of the descriptor until it is executed.
        let start = Instant::now();
        let again = loop {
            match Tap::create("tap-0", 99) {
                Err(e) if e.kind() == ErrorKind::ResourceBusy && start.elapsed() < Duration::from_secs(10) => {}
                tap => break tap.unwrap(),
            }
        };
        assert_eq!(Interface::by_name("tap-0").unwrap().index, found.index);
        again.destroy().unwrap();
        assert!(Interface::by_name("tap-0").is_err());
        Tap::remove("tap-0").unwrap();

        command("ip", &["link", "add", "other", "type", "veth", "peer", "name", "peer"]);
        let held = Tap::create("tap-1", 99).unwrap();
        Tap::take_away("tap-1").unwrap();
        assert!(Interface::by_name("tap-1").is_err(), "a process has it all the same");
        Tap::take_away("tap-1").unwrap();
        drop(held);
        assert!(Tap::create("other", 1).is_err(), "not a TAP");
        assert!(Tap::remove("other").is_err() && Interface::by_name("other").is_ok());
    });
}

/// A program that another thread starts has a copy of every descriptor until it is executed.
#[test]
fn a_device_is_removed_while_a_child_has_its_descriptor() {
    in_namespace(|| {
        let tap = Tap::create("tap-0", QUEUE_PACKETS_DEFAULT).unwrap();
        let mut child =
            Command::new("sleep").arg("60").stdin(tap.as_fd().try_clone_to_owned().unwrap()).spawn().unwrap();
        tap.destroy().unwrap();
        let found = Interface::by_name("tap-0");
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(found.is_err(), "{found:?}");
    });
}

#[test]
fn forwarding_is_read_set_and_can_be_restored() {
    in_namespace(|| {
        command("ip", &["link", "add", "eth-a.5", "type", "veth", "peer", "name", "peer"]);
        for family in [Family::Ipv4, Family::Ipv6] {
            let before = device::forwarding("eth-a.5", family).unwrap();
            assert_eq!(device::set_forwarding("eth-a.5", family, !before).unwrap(), before);
            assert_eq!(device::forwarding("eth-a.5", family).unwrap(), !before);
            assert_eq!(device::set_forwarding("eth-a.5", family, before).unwrap(), !before);
            assert_eq!(device::forwarding("eth-a.5", family).unwrap(), before);
        }
        assert_eq!(device::forwarding("eth-b", Family::Ipv4).unwrap_err().kind(), std::io::ErrorKind::NotFound);
    });
}

#[test]
fn super_packets_pass_whole_both_ways() {
    in_namespace(|| {
        let (mut io, link) = device(8);
        let all = [
            (Packet::tcp4(60_000), 1448),
            (Packet::tcp6(60_000), 1428),
            (Packet::tcp4(65_400), 1448),
            (Packet::udp4(30_000), 1200),
            (Packet::tcp4(9_000).tagged(7), 1400),
        ];
        let all: Vec<_> = all.into_iter().filter(|(packet, _)| packet.may_be_super()).collect();
        let count = all.len() as u64;
        for (packet, segment) in all {
            let sent = packet.destined(MARK_RECEIVED);
            link.send(&sent.vnet(segment), &sent.bytes);
            let mut batch = received(&mut io, 1);
            let meta = *batch[0].meta();
            assert_eq!(batch[0].bytes(), sent.bytes);
            assert_eq!((meta.port, meta.ticket, meta.arrival), (3, TICKET, Arrival::Received));
            assert_eq!((meta.gso_size, meta.checksum), (segment, Checksum::Partial));

            batch[0].meta_mut().egress = Egress::Kernel;
            io.transmit(&mut batch);
            assert!(batch.is_empty());
            let (header, bytes) = link.receive().unwrap();
            assert_eq!(bytes[..6], [0x16, 3, 1, 0, 0, 42]);
            // The kernel takes the tag out of the bytes on arrival.
            let untagged = packet.untagged();
            assert_eq!(bytes[6..], untagged.bytes[6..]);
            assert_eq!(header, untagged.vnet(segment));
        }
        let counters = io.counters();
        assert_eq!((counters.received, counters.transmitted), (count, count));
        assert_eq!(counters.received_bytes, counters.transmitted_bytes);
        assert_eq!(io.buffers_free(), 8);
    });
}

#[test]
fn partial_checksums_and_segments_are_right_on_the_wire() {
    in_namespace(|| {
        let (mut io, link) = device(8);
        let peer = Link::wire_behind("tap-0");
        for (packet, segment) in [
            (Packet::tcp4(20_000), 1400),
            (Packet::tcp6(20_000), 1300),
            (Packet::udp4(9_000), 1200),
            (Packet::tcp4(500), 0),
            (Packet::udp4(1), 0),
        ] {
            if segment > 0 && !packet.may_be_super() {
                continue;
            }
            let sent = packet.destined(MARK_RECEIVED);
            link.send(&sent.vnet(segment), &sent.bytes);
            let mut batch = received(&mut io, 1);
            // As a worker would: another destination address, its pseudo-header difference in the partial checksum.
            let bytes = batch[0].bytes_mut();
            packet.translate(bytes);
            io.transmit(&mut batch);

            let mut payload = Vec::new();
            while payload.len() < packet.payload().len() {
                let (_, bytes) = peer.receive().expect("a segment is missing");
                let part = Packet::parse(&bytes);
                assert!(part.checksum_is_right(), "segment at {} of {}", payload.len(), packet.payload().len());
                assert!(segment == 0 || part.payload().len() <= usize::from(segment));
                payload.extend_from_slice(part.payload());
            }
            assert_eq!(payload, packet.payload());
        }
    });
}

/// A packet made by a worker, whole or from a smaller one, is segmented and checksummed like any other.
#[test]
fn frames_of_ones_own_are_right_on_the_wire() {
    in_namespace(|| {
        let (mut io, link) = device(8);
        let peer = Link::wire_behind("tap-0");
        for (packet, segment, grown) in [
            (Packet::tcp4(20_000), 1400, false),
            (Packet::tcp6(20_000), 1300, false),
            (Packet::tcp4(65_495), 1448, false),
            (Packet::tcp4(500), 0, false),
            (Packet::tcp6(500), 1300, false),
            (Packet::tcp4(9_000).tagged(7), 1400, false),
            (Packet::tcp4(30_000), 1400, true),
            (Packet::tcp6(1_000), 0, true),
        ] {
            let mut batch = if grown {
                let small = Packet::udp4(60).destined(MARK_RECEIVED);
                link.send(&Vnet::default(), &small.bytes);
                received(&mut io, 1)
            } else {
                Batch::from_iter(io.allocate())
            };
            let frame = &mut batch[0];
            assert!(frame.resize(packet.bytes.len()));
            frame.bytes_mut().copy_from_slice(&packet.bytes);
            let meta = frame.meta_mut();
            (meta.port, meta.checksum, meta.gso_size) = (3, Checksum::Partial, segment);
            io.transmit(&mut batch);
            assert_eq!(io.counters().refused, 0);

            let mut payload = Vec::new();
            while payload.len() < packet.payload().len() {
                let (_, bytes) = peer.receive().expect("a segment is missing");
                let part = Packet::parse(&bytes);
                assert!(part.checksum_is_right(), "segment at {} of {}", payload.len(), packet.payload().len());
                assert!(segment == 0 || part.payload().len() <= usize::from(segment));
                payload.extend_from_slice(part.payload());
            }
            assert_eq!(payload, packet.payload());
        }
    });
}

#[test]
fn a_frame_with_new_contents_goes_out_complete() {
    in_namespace(|| {
        let (mut io, link) = device(2);
        let packet = Packet::tcp4(30_000).destined(MARK_RECEIVED);
        link.send(&packet.vnet(1000), &packet.bytes);
        let mut batch = received(&mut io, 1);
        assert!(batch[0].resize(64));
        (batch[0].meta_mut().checksum, batch[0].meta_mut().gso_size) = (Checksum::Complete, 0);
        io.transmit(&mut batch);
        let (header, bytes) = link.receive().unwrap();
        assert_eq!((bytes.len(), header), (64, Vnet::default()));
        assert_eq!(bytes[0], 0x12);

        let mut frame = io.allocate().unwrap();
        assert!(frame.resize(60));
        frame.bytes_mut().copy_from_slice(&Packet::udp4(18).bytes);
        batch.push(frame);
        io.transmit(&mut batch);
        assert_eq!(link.receive().unwrap().0, Vnet::default());
    });
}

#[test]
fn an_empty_pool_stops_reading_and_loses_nothing() {
    in_namespace(|| {
        let (mut io, link) = device(4);
        for i in 0..10 {
            let packet = Packet::udp4(100 + i).destined(MARK_RECEIVED);
            link.send(&Vnet::default(), &packet.bytes);
        }
        let mut lengths = Vec::new();
        let mut rounds = 0;
        while lengths.len() < 10 {
            let mut batch = Batch::new();
            io.receive(&mut batch);
            assert!(batch.len() <= 4 && !batch.is_empty());
            assert!(batch.len() < 4 || io.allocate().is_none());
            lengths.extend(batch.iter().map(|frame| frame.bytes().len()));
            rounds += 1;
        }
        assert_eq!(lengths, (142..152).collect::<Vec<_>>(), "in order");
        assert!(rounds >= 3 && io.counters().no_buffer >= 2);
        assert_eq!((io.buffers_free(), io.counters().received), (4, 10));
    });
}

#[test]
fn unmatched_frames_are_dropped_and_counted() {
    in_namespace(|| {
        let (mut io, link) = device(4);
        for destination in [[0xff; 6], [0x01, 0, 0x5e, 0, 0, 1], [0x12, 3, 1, 0, 0, 42], MARK_RECEIVED] {
            link.send(&Vnet::default(), &Packet::udp4(50).destined(destination).bytes);
        }
        let batch = received(&mut io, 1);
        assert_eq!(batch.len(), 1);
        assert_eq!((io.counters().unmarked, io.counters().received), (3, 1));
        drop(batch);
        assert_eq!(io.buffers_free(), 4);
    });
}

#[test]
fn the_descriptor_is_readable_while_frames_wait() {
    in_namespace(|| {
        let (mut io, link) = device(4);
        assert!(!wire::readable(&io));
        for _ in 0..2 {
            link.send(&Vnet::default(), &Packet::udp4(50).destined(MARK_RECEIVED).bytes);
        }
        assert!(wire::readable(&io) && wire::readable(&io));
        drop(received(&mut io, 2));
        assert!(!wire::readable(&io));
    });
}

#[test]
fn what_came_back_too_big_says_so() {
    in_namespace(|| {
        let (mut io, link) = device(4);
        let packet = Packet::tcp4(1460).destined([0x0e, 9, 0, 0, 0x05, 0x78]);
        link.send(&packet.vnet(0), &packet.bytes);
        let batch = received(&mut io, 1);
        let meta = batch[0].meta();
        assert_eq!((meta.port, meta.ticket, meta.arrival), (9, 0, Arrival::too_big(1400)));
    });
}

#[test]
fn refused_frames_are_dropped_others_keep_order() {
    if !Packet::udp4(2000).may_be_super() {
        return eprintln!("skipped: needs Linux 6.2");
    }
    in_namespace(|| {
        let (mut io, link) = device(64);
        for i in 0..60 {
            let packet = Packet::udp4(2000 + i).destined(MARK_RECEIVED);
            link.send(&packet.vnet(if i % 5 == 4 { 500 } else { 0 }), &packet.bytes);
        }
        let mut batch = received(&mut io, 60);
        for (i, frame) in batch.iter_mut().enumerate() {
            match i % 5 {
                // Contradicts itself: segments of a packet that is none.
                1 => frame.meta_mut().gso_size = 100,
                // Too short for an Ethernet header.
                3 => assert!(frame.resize(13)),
                // A UDP super-packet must have a partial checksum: the kernel says EINVAL.
                4 => frame.meta_mut().checksum = Checksum::Complete,
                _ => {}
            }
        }
        io.transmit(&mut batch);
        assert!(batch.is_empty());
        assert_eq!((io.counters().refused, io.counters().transmitted), (36, 24));
        for i in (0..60).filter(|i| i % 5 == 0 || i % 5 == 2) {
            assert_eq!(link.receive().unwrap().1.len(), 42 + 2000 + i);
        }
        assert!(link.receive().is_none());
        assert_eq!(io.buffers_free(), 64);
    });
}

#[test]
fn a_device_that_is_down_is_counted_and_works_again() {
    in_namespace(|| {
        let (mut io, link) = device(8);
        let packet = Packet::udp4(100).destined(MARK_RECEIVED);
        for _ in 0..3 {
            link.send(&Vnet::default(), &packet.bytes);
        }
        let mut batch = received(&mut io, 3);
        device::set_up("tap-0", false).unwrap();
        io.transmit(&mut batch);
        assert!(batch.is_empty());
        assert_eq!((io.counters().down, io.counters().transmitted), (3, 0));
        device::set_up("tap-0", true).unwrap();
        let link = Link::open("tap-0");
        link.send(&Vnet::default(), &packet.bytes);
        let mut batch = received(&mut io, 1);
        io.transmit(&mut batch);
        assert!(link.receive().is_some());
        assert_eq!((io.counters().transmitted, io.buffers_free()), (1, 8));
    });
}

#[test]
fn a_full_ring_drops_and_the_device_counts() {
    in_namespace(|| {
        let tap = Tap::create("tap-0", 16).unwrap();
        let (mut io, link) = (TapIo::new(tap, 256).unwrap(), Link::open("tap-0"));
        let packet = Packet::udp4(100).destined(MARK_RECEIVED);
        for _ in 0..100 {
            link.try_send(&Vnet::default(), &packet.bytes);
        }
        let mut batch = Batch::new();
        io.receive(&mut batch);
        assert!(batch.len() >= 16 && batch.len() < 64, "{}", batch.len());
        assert_eq!(device::transmit_dropped("tap-0").unwrap(), 100 - batch.len() as u64);
    });
}

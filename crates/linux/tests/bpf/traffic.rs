//! Packets that really come in on one device and go out on another: what a test run cannot show, partial checksums,
//! super-packets and headers outside the linear part.

use crate::packet::{Packet, packet, parsed, v4};
use crate::rig::{BACKEND, CLIENT, NEXT_HOP, Rig, VIP, command, in_namespace};
use crate::wire::{Link, Vnet};
use hairpin_core::engine::Rule;
use hairpin_core::flow::{FlowKey, Protocol};
use hairpin_core::frame::Checksum;
use hairpin_core::rewrite::Rewrite;
use hairpin_core::wire::checksum::Sum;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

const NEEDS_CHECKSUM: u8 = 1;

struct Hairpin {
    rig: Rig,
    near: Link,
    far: Link,
}

impl Hairpin {
    fn new() -> Hairpin {
        let rig = Rig::new(1, |_| ());
        for device in ["left", "left-peer", "right", "right-peer"] {
            command("ip", &["link", "set", device, "mtu", "9000"]);
        }
        Hairpin { near: Link::open("left-peer"), far: Link::open("right-peer"), rig }
    }

    /// Out on `right` under `rewrite`.
    fn put(&self, key: FlowKey, rewrite: Rewrite) {
        self.rig.put(&Rule { key, rewrite, ..Rule::default() }, 0, self.rig.settled(self.rig.right.index, 9000, false));
    }

    /// The frames that come out; the kernel's own chatter aside.
    fn out(&self) -> Option<(Vnet, Vec<u8>)> {
        std::iter::from_fn(|| self.far.receive()).find(|(_, frame)| frame[..12] == NEXT_HOP)
    }
}

/// The pseudo-header's sum in place of the checksum.
pub(crate) fn make_partial(frame: &mut [u8]) -> Vnet {
    let at = parsed(frame);
    let (source, destination) = (at.key.source.address, at.key.destination.address);
    let length = at.end - at.l4;
    let sum = match at.key.is_ipv4() {
        true => Sum::pseudo_header(&source.ipv4_octets(), &destination.ipv4_octets(), at.key.protocol as u8, length),
        false => Sum::pseudo_header(&source.0, &destination.0, at.key.protocol as u8, length),
    };
    let field = at.checksum_offset();
    frame[field..field + 2].copy_from_slice(&sum.folded().to_be_bytes());
    Vnet {
        flags: NEEDS_CHECKSUM,
        checksum_start: at.l4 as u16,
        checksum_offset: (field - at.l4) as u16,
        ..Vnet::default()
    }
}

fn full_nat(key: FlowKey) -> Rewrite {
    let new = match key.is_ipv4() {
        true => v4([10, 3, 0, 1], 20_001, BACKEND, 8080, key.protocol),
        false => crate::packet::v6("fd03::1", 20_001, "fd02::2", 8080, key.protocol),
    };
    let tcp = u32::from(key.protocol == Protocol::Tcp);
    Rewrite {
        source: new.source,
        destination: new.destination,
        sequence_delta: tcp * 0xffff_fff0,
        acknowledgement_delta: tcp * 12_345,
        window_shift: 3,
        timestamp_delta: tcp * 0xffff_ff00,
        echo_delta: tcp * 0x1_0001,
    }
}

#[test]
fn partial_checksums_stay_partial_and_equal_cores() {
    in_namespace(|| {
        let hairpin = Hairpin::new();
        let mut runner = TestRunner::new(Config { failure_persistence: None, ..Config::with_cases(500) });
        let outcome = runner.run(&packet(), |packet| {
            // A tag in band is the receiving side's to take off: another matter.
            let packet = Packet { tags: Vec::new(), no_checksum: false, ..packet.to(hairpin.rig.left.mac) };
            let mut frame = packet.frame();
            let header = make_partial(&mut frame);
            let rewrite = full_nat(packet.key);
            hairpin.put(packet.key, rewrite);
            hairpin.near.send(&header, &frame);
            let (out_header, out) = hairpin.out().expect("nothing came out");
            let mut expected = frame.clone();
            rewrite.apply(&mut expected, &parsed(&frame), Checksum::Partial);
            expected[..12].copy_from_slice(&NEXT_HOP);
            prop_assert_eq!(out_header.flags & NEEDS_CHECKSUM, NEEDS_CHECKSUM);
            prop_assert_eq!(out_header.checksum_start, header.checksum_start);
            prop_assert_eq!(out, expected);
            Ok(())
        });
        outcome.unwrap();
    });
}

#[test]
fn super_packets_pass_whole() {
    in_namespace(|| {
        let hairpin = Hairpin::new();
        let key = v4(CLIENT, 40_000, VIP, 80, Protocol::Tcp);
        let packet = Packet { payload: vec![9; 60_000], ..Packet::new(key).to(hairpin.rig.left.mac) };
        let mut frame = packet.frame();
        let header = Vnet { gso_type: 1, headers: 54, gso_size: 1448, ..make_partial(&mut frame) };
        hairpin.put(key, full_nat(key));
        hairpin.near.send(&header, &frame);
        let (out_header, out) = hairpin.out().expect("nothing came out");
        let mut expected = frame.clone();
        full_nat(key).apply(&mut expected, &parsed(&frame), Checksum::Partial);
        assert_eq!((out.len(), &out[12..]), (frame.len(), &expected[12..]));
        assert_eq!((out_header.gso_size, out_header.gso_type & 0x7f), (1448, 1));
        let head = hairpin.rig.head(&key);
        assert_eq!((head.packets, head.bytes), (42, 60_040 + 41 * 40));
    });
}

#[test]
fn headers_outside_the_linear_part_are_pulled_in() {
    in_namespace(|| {
        let hairpin = Hairpin::new();
        let v4 = v4(CLIENT, 40_000, VIP, 80, Protocol::Tcp);
        let v6 = crate::packet::v6("fd01::2", 40_000, "2001:db8::10", 80, Protocol::Udp);
        for key in [v4, v6] {
            let options = if key.is_ipv4() { vec![1; 40] } else { Vec::new() };
            let packet = Packet { payload: vec![9; 8000], ip_options: options.clone(), ..Packet::new(key) };
            let frame = Packet { tcp_options: options, ..packet.to(hairpin.rig.left.mac) }.frame();
            for linear in [14, 20, 34, 50, 60, 74, 80, 93, 114, 130] {
                hairpin.put(key, full_nat(key));
                hairpin.near.send(&Vnet { headers: linear, ..Vnet::default() }, &frame);
                let (_, out) = hairpin.out().unwrap_or_else(|| panic!("nothing came out with {linear} bytes linear"));
                let mut expected = frame.clone();
                full_nat(key).apply(&mut expected, &parsed(&frame), Checksum::Complete);
                assert_eq!(out[12..], expected[12..], "{linear} bytes linear");
            }
        }
    });
}

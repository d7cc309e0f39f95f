//! Answers made of received frames.

use crate::packets::{Layer4, Packet, address, checksums_right, packet, transport};
use crate::parsing::{tcp, udp};
use hairpin_core::flow::Address;
use hairpin_core::frame::{Checksum, Egress, Frame, VecFrame};
use hairpin_core::l4::answer::{Notice, notice, reset};
use hairpin_core::wire::tcp::{ACK, FIN, RST, SYN};
use hairpin_core::wire::{ErrorKind, Parsed, parse};
use proptest::prelude::*;

fn assert_settled(frame: &VecFrame) {
    assert_eq!(frame.meta().checksum, Checksum::Complete);
    assert_eq!(frame.meta().gso_size, 0);
    assert_eq!(frame.meta().egress, Egress::Route);
}

/// The packet's frame, as a super-packet that passes to another stack.
fn received(packet: &Packet) -> VecFrame {
    let mut frame = packet.frame();
    frame.meta.gso_size = 1448;
    frame.meta.egress = Egress::Kernel;
    frame
}

fn notices() -> impl Strategy<Value = Notice> {
    prop_oneof![
        (68u16..).prop_map(|mtu| Notice::TooBig { mtu }),
        Just(Notice::TimeExceeded),
        Just(Notice::NoRoute),
        Just(Notice::PortUnreachable),
        Just(Notice::AdministrativelyProhibited),
    ]
}

proptest! {
    #[test]
    fn a_reset_follows_rfc_9293(packet in packet()) {
        let mut frame = received(&packet);
        let before = frame.clone();
        let at = transport(frame.bytes());
        let Layer4::Tcp { sequence, acknowledgement, flags, .. } = packet.layer4 else {
            prop_assert!(!reset(&mut frame, &at));
            prop_assert!(frame.data == before.data);
            return Ok(());
        };
        prop_assert_eq!(reset(&mut frame, &at), flags & RST == 0);
        if flags & RST != 0 {
            prop_assert!(frame.data == before.data);
            return Ok(());
        }
        let answer = transport(frame.bytes());
        prop_assert_eq!(answer.key, packet.key().reversed());
        prop_assert_eq!(answer.end, frame.bytes().len());
        prop_assert_eq!(answer.payload, answer.end);
        prop_assert!(checksums_right(frame.bytes(), answer.l3, answer.l4, answer.end, 6));
        prop_assert_eq!(&frame.bytes()[..answer.l3], &before.bytes()[..answer.l3]);
        assert_settled(&frame);
        let tcp = &frame.bytes()[answer.l4..];
        let field = |at: usize| u32::from_be_bytes(tcp[at..at + 4].try_into().unwrap());
        if flags & ACK != 0 {
            prop_assert_eq!((field(4), answer.tcp_flags), (acknowledgement, RST));
        } else {
            let phantoms = u32::from(flags & SYN != 0) + u32::from(flags & FIN != 0);
            let next = sequence.wrapping_add(packet.payload.len() as u32 + phantoms);
            prop_assert_eq!((field(4), field(8), answer.tcp_flags), (0, next, RST | ACK));
        }
    }

    #[test]
    fn a_notice_quotes_the_packet((packet, from) in packet().prop_flat_map(|packet| {
        let from = address(packet.source.address.is_ipv4());
        (Just(packet), from)
    }), told in notices()) {
        let ipv4 = packet.source.address.is_ipv4();
        let mut frame = received(&packet);
        let original = frame.data.clone();
        let at = transport(frame.bytes());
        prop_assert!(notice(&mut frame, &at, told, from));
        assert_settled(&frame);
        let bytes = frame.bytes();
        let error = match parse(bytes) {
            Ok(Parsed::IcmpError(error)) => error,
            other => panic!("{other:?}"),
        };
        prop_assert_eq!((error.source, error.destination), (from, packet.source.address));
        prop_assert_eq!(error.quoted, packet.key());
        prop_assert_eq!(error.end, bytes.len());
        let quoted = &bytes[error.quoted_l3..error.end];
        prop_assert_eq!(quoted, &original[at.l3..at.l3 + quoted.len()]);
        let limit = if ipv4 { 576 } else { 1280 };
        let overhead = if ipv4 { 28 } else { 48 };
        prop_assert_eq!(quoted.len(), (at.end - at.l3).min(limit - overhead));
        let protocol = if ipv4 { 1 } else { 58 };
        prop_assert!(checksums_right(bytes, error.l3, error.l4, error.end, protocol));
        prop_assert_eq!(&bytes[..at.l3], &original[..at.l3]);
        let (kind, code) = match (told, ipv4) {
            (Notice::TooBig { .. }, true) => (3, 4),
            (Notice::TooBig { .. }, false) => (2, 0),
            (Notice::TimeExceeded, true) => (11, 0),
            (Notice::TimeExceeded, false) => (3, 0),
            (Notice::NoRoute, true) => (3, 0),
            (Notice::NoRoute, false) => (1, 0),
            (Notice::PortUnreachable, true) => (3, 3),
            (Notice::PortUnreachable, false) => (1, 4),
            (Notice::AdministrativelyProhibited, true) => (3, 13),
            (Notice::AdministrativelyProhibited, false) => (1, 1),
        };
        prop_assert_eq!(&bytes[error.l4..error.l4 + 2], &[kind, code]);
        if let Notice::TooBig { mtu } = told {
            prop_assert_eq!(error.kind, ErrorKind::TooBig { mtu });
        }
    }
}

#[test]
fn no_notice_about_groups_or_across_families() {
    let packet = udp(true);
    let from = Address::from_ipv4([192, 0, 2, 9]);
    let mut frame = packet.frame();
    let at = transport(frame.bytes());
    let mut forged = at;
    forged.key.source.address = Address::from_ipv4([255; 4]);
    assert!(!notice(&mut frame, &forged, Notice::TimeExceeded, from));
    forged = at;
    forged.key.destination.address = Address::from_ipv4([224, 0, 0, 1]);
    assert!(!notice(&mut frame, &forged, Notice::TimeExceeded, from));
    assert!(!notice(&mut frame, &at, Notice::TimeExceeded, udp(false).source.address));
    assert!(!notice(&mut frame, &at, Notice::TimeExceeded, Address::from_ipv4([0; 4])));
    assert_eq!(frame.data, packet.bytes());
    assert!(notice(&mut frame, &at, Notice::TimeExceeded, from));
}

#[test]
fn nothing_changes_where_there_is_no_room() {
    /// A frame that cannot grow.
    struct Tight(VecFrame);
    impl Frame for Tight {
        fn bytes(&self) -> &[u8] {
            &self.0.data
        }
        fn bytes_mut(&mut self) -> &mut [u8] {
            &mut self.0.data
        }
        fn resize(&mut self, length: usize) -> bool {
            length <= self.0.data.len() && self.0.resize(length)
        }
        fn meta(&self) -> &hairpin_core::frame::Meta {
            self.0.meta()
        }
        fn meta_mut(&mut self) -> &mut hairpin_core::frame::Meta {
            self.0.meta_mut()
        }
    }
    let packet = tcp(true, SYN);
    let mut frame = Tight(packet.frame());
    let at = transport(frame.bytes());
    assert!(!notice(&mut frame, &at, Notice::TimeExceeded, packet.destination.address));
    assert_eq!(frame.0.data, packet.bytes());
    assert!(reset(&mut frame, &at), "a reset only ever shrinks a frame");
}

//! `Rewrite::apply` gives the bytes of a packet built anew with the new ends and numbers.

use crate::packets::{Item, Layer4, Packet, add_words, checksums_right, endpoint, number, packet, transport};
use crate::parsing::{tcp, udp};
use hairpin_core::flow::Endpoint;
use hairpin_core::frame::Checksum;
use hairpin_core::rewrite::Rewrite;
use hairpin_core::wire::tcp::{ACK, SYN};
use proptest::prelude::*;

/// A packet and a rewrite of its family.
fn case() -> impl Strategy<Value = (Packet, Rewrite)> {
    packet().prop_flat_map(|packet| {
        let ipv4 = packet.source.address.is_ipv4();
        let ends =
            (endpoint(ipv4), endpoint(ipv4)).prop_filter("one end", |(source, destination)| source != destination);
        let deltas = prop_oneof![Just((0, 0)), (number(), number())];
        let shift = prop_oneof![Just(0), -14i8..=14];
        let clocks = prop_oneof![Just((0, 0)), (number(), number())];
        (Just(packet), ends, deltas, shift, clocks).prop_map(
            |(packet, (source, destination), deltas, window_shift, clocks)| {
                let rewrite = Rewrite {
                    source,
                    destination,
                    sequence_delta: deltas.0,
                    acknowledgement_delta: deltas.1,
                    window_shift,
                    timestamp_delta: clocks.0,
                    echo_delta: clocks.1,
                };
                (packet, rewrite)
            },
        )
    })
}

/// The expected packet.
fn expected(packet: &Packet, rewrite: &Rewrite) -> Packet {
    let mut new = packet.clone();
    new.source = rewrite.source;
    new.destination = rewrite.destination;
    new.hops -= 1;
    if let Layer4::Tcp { sequence, acknowledgement, flags, window, options } = &mut new.layer4 {
        if *flags & SYN == 0 {
            // Wider than any shift of 16 bits needs.
            let scaled = match rewrite.window_shift {
                left @ 0.. => u64::from(*window) << left,
                right => u64::from(*window) >> -right,
            };
            *window = scaled.min(0xffff) as u16;
        }
        *sequence = sequence.wrapping_add(rewrite.sequence_delta);
        if *flags & ACK != 0 {
            *acknowledgement = acknowledgement.wrapping_add(rewrite.acknowledgement_delta);
        }
        for option in options {
            match option {
                Item::Sack(blocks) => {
                    for (left, right) in blocks {
                        *left = left.wrapping_add(rewrite.acknowledgement_delta);
                        *right = right.wrapping_add(rewrite.acknowledgement_delta);
                    }
                }
                Item::Timestamps(value, echo) => {
                    *value = value.wrapping_add(rewrite.timestamp_delta);
                    *echo = echo.wrapping_add(rewrite.echo_delta);
                }
                _ => {}
            }
        }
    }
    new
}

fn apply(packet: &Packet, rewrite: &Rewrite, bytes: &mut [u8]) {
    let at = transport(bytes);
    rewrite.apply(bytes, &at, packet.checksum);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn apply_is_building_anew((packet, rewrite) in case()) {
        let mut bytes = packet.bytes();
        apply(&packet, &rewrite, &mut bytes);
        let expected = expected(&packet, &rewrite).bytes();
        prop_assert!(bytes == expected, "got {:02x?}, expected {:02x?}", &bytes[..bytes.len().min(140)],
                     &expected[..expected.len().min(140)]);
        prop_assert_eq!(transport(&bytes).key, rewrite.rewritten(&packet.key()));
    }

    #[test]
    fn there_and_back_again((packet, mut rewrite) in case()) {
        // Bits that a shift pushes out do not come back.
        rewrite.window_shift = 0;
        let mut bytes = packet.bytes();
        apply(&packet, &rewrite, &mut bytes);
        apply(&packet, &rewrite.undone(&packet.key()), &mut bytes);
        let mut original = packet;
        original.hops = original.hops.saturating_sub(2);
        prop_assert!(bytes == original.bytes());
    }

    #[test]
    fn the_other_direction_meets_the_same_numbers((mut packet, mut rewrite) in case()) {
        rewrite.window_shift = 0;
        packet.hops |= 4;
        if let Layer4::Tcp { flags, options, .. } = &mut packet.layer4 {
            *flags = ACK;
            options.clear();
        }
        // A peer that answers the rewritten packet with its very numbers swapped is understood by the sender.
        let swap = |mut packet: Packet| {
            std::mem::swap(&mut packet.source, &mut packet.destination);
            if let Layer4::Tcp { sequence, acknowledgement, .. } = &mut packet.layer4 {
                std::mem::swap(sequence, acknowledgement);
            }
            packet
        };
        let answer = swap(expected(&packet, &rewrite));
        let mut understood = swap(packet.clone());
        understood.hops = answer.hops - 1;
        let mut bytes = answer.bytes();
        apply(&answer, &rewrite.reversed(&packet.key()), &mut bytes);
        prop_assert!(bytes == understood.bytes());
    }

    #[test]
    fn a_wrong_checksum_stays_as_wrong((mut packet, rewrite) in case(), error in 1u16..0xfffe) {
        packet.checksum = Checksum::Complete;
        prop_assume!(!matches!(packet.layer4, Layer4::Udp { without_checksum: true }));
        let mut bytes = packet.bytes();
        let at = transport(&bytes);
        let field = at.checksum_offset();
        let wrong = u16::from_be_bytes([bytes[field], bytes[field + 1]]) ^ error;
        prop_assume!(wrong != 0 && wrong != 0xffff);
        bytes[field..field + 2].copy_from_slice(&wrong.to_be_bytes());
        let excess = |bytes: &[u8]| {
            let checksum = u16::from_be_bytes([bytes[field], bytes[field + 1]]);
            let right = at.transport_checksum(bytes).unwrap();
            (u32::from(checksum) + u32::from(!right)) % 0xffff
        };
        let before = excess(&bytes);
        rewrite.apply(&mut bytes, &at, Checksum::Complete);
        prop_assert_eq!(excess(&bytes), before);
        prop_assert_ne!(before, 0);
    }

    #[test]
    fn random_options_keep_the_checksum_right(options in proptest::collection::vec(any::<u8>(), 40),
                                              sack in 0usize..30, delta in number()) {
        let mut packet = tcp(true, ACK);
        packet.layer4 = Layer4::Tcp {
            sequence: 1, acknowledgement: 2, flags: ACK, window: 3,
            options: vec![Item::Timestamps(0, 0); 4],
        };
        let mut bytes = packet.bytes();
        let at = transport(&bytes);
        bytes[at.l4 + 20..at.payload].copy_from_slice(&options);
        bytes[at.l4 + 20 + sack..at.l4 + 22 + sack].copy_from_slice(&[5, 10]);
        at.fill_checksum(&mut bytes);
        prop_assert_eq!(at.payload - at.l4, 60);
        let rewrite = Rewrite {
            source: packet.destination, destination: packet.source, acknowledgement_delta: delta,
            timestamp_delta: delta, echo_delta: !delta, ..Rewrite::default()
        };
        rewrite.apply(&mut bytes, &at, Checksum::Complete);
        prop_assert!(checksums_right(&bytes, at.l3, at.l4, at.end, 6));
    }
}

#[test]
fn a_computed_udp_zero_is_sent_as_ffff() {
    for ipv4 in [true, false] {
        // Choose the new source port so that the sum comes out as 0xffff, the checksum as 0.
        let packet = udp(ipv4);
        let mut probe = packet.clone();
        probe.source.port = 0;
        let bytes = probe.bytes();
        let at = transport(&bytes);
        let checksum = at.transport_checksum(&bytes).unwrap();
        let rewrite = Rewrite {
            source: Endpoint { port: checksum, ..packet.source },
            destination: packet.destination,
            ..Rewrite::default()
        };
        let mut bytes = packet.bytes();
        apply(&packet, &rewrite, &mut bytes);
        assert_eq!(&bytes[at.l4 + 6..at.l4 + 8], &[0xff, 0xff]);
        // Leaving it again is no trap either.
        apply(&packet, &rewrite.undone(&packet.key()), &mut bytes);
        assert_eq!(&bytes[at.l4..], &packet.bytes()[at.l4..]);
    }
}

#[test]
fn tcp_negative_zero_becomes_zero_as_in_the_kernel() {
    let mut packet = tcp(true, ACK);
    let mut probe = packet.clone();
    probe.source.port = 0;
    let bytes = probe.bytes();
    packet.source.port = transport(&bytes).transport_checksum(&bytes).unwrap();
    let mut bytes = packet.bytes();
    let at = transport(&bytes);
    let field = at.checksum_offset();
    assert_eq!(&bytes[field..field + 2], &[0, 0]);
    bytes[field..field + 2].fill(0xff);
    let same = Rewrite { source: packet.source, destination: packet.destination, ..Rewrite::default() };
    same.apply(&mut bytes, &at, Checksum::Complete);
    assert_eq!(&bytes[field..field + 2], &[0, 0]);
}

#[test]
fn windows_saturate_to_the_left_and_run_out_to_the_right() {
    let shifted = |window, window_shift| Rewrite { window_shift, ..Rewrite::default() }.shifted_window(window);
    for (window, shift, expected) in [
        (0x1234, 0, 0x1234),
        (0x1234, 3, 0x91a0),
        (0x1234, 4, 0xffff),
        (1, 14, 0x4000),
        (4, 14, 0xffff),
        (0, 14, 0),
        (0x1234, -8, 0x12),
        (0x3fff, -14, 0),
        (0xffff, -14, 3),
        // Beyond what scales can differ by: no surprise either.
        (1, i8::MAX, 0xffff),
        (0, i8::MAX, 0),
        (0xffff, i8::MIN, 0),
    ] {
        assert_eq!(shifted(window, shift), expected, "{window:#x} by {shift}");
    }
}

#[test]
fn zero_hops_stay_zero() {
    let mut packet = tcp(true, ACK);
    packet.hops = 0;
    let mut bytes = packet.bytes();
    let same = Rewrite { source: packet.source, destination: packet.destination, ..Rewrite::default() };
    apply(&packet, &same, &mut bytes);
    assert_eq!(bytes[22], 0);
    assert_eq!(add_words(0, &bytes[14..34]), 0xffff);
}

#[test]
fn a_frame_that_is_not_the_parsed_one_does_no_harm() {
    let packet = tcp(true, ACK);
    let bytes = packet.bytes();
    let at = transport(&bytes);
    let rewrite = Rewrite { source: packet.destination, destination: packet.source, ..Rewrite::default() };
    for length in 0..bytes.len() {
        let mut short = bytes[..length].to_vec();
        rewrite.apply(&mut short, &at, Checksum::Complete);
        assert_eq!(short, &bytes[..length]);
    }
}

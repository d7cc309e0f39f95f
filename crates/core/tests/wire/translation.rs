//! ICMP errors about rewritten packets, told to their senders.

use crate::packets::{Layer4, Packet, address, checksums_right, endpoint, packet, transport};
use hairpin_core::flow::{Address, Endpoint};
use hairpin_core::frame::{Checksum, Frame};
use hairpin_core::l4::answer::{Notice, notice};
use hairpin_core::l4::icmp::translate;
use hairpin_core::wire::{IcmpError, Malformed, Parsed, parse};
use proptest::prelude::*;

/// An ICMP error about `packet` from `from`, as a router far away would send it, with Ethernet padding.
fn error_about(packet: &Packet, from: Address) -> Vec<u8> {
    let mut frame = packet.frame();
    let at = transport(frame.bytes());
    assert!(notice(&mut frame, &at, Notice::TooBig { mtu: 1400 }, from));
    frame.data.extend([0xee; 7]);
    frame.data
}

fn found(bytes: &[u8]) -> IcmpError {
    match parse(bytes) {
        Ok(Parsed::IcmpError(error)) => error,
        other => panic!("{other:?}"),
    }
}

type Case = (Packet, Address, Address, Endpoint, Endpoint);

fn case() -> impl Strategy<Value = Case> {
    packet().prop_flat_map(|mut packet| {
        packet.checksum = Checksum::Complete;
        let ipv4 = packet.source.address.is_ipv4();
        (Just(packet), address(ipv4), address(ipv4), endpoint(ipv4), endpoint(ipv4))
            .prop_filter("one end", |(.., source, destination)| source != destination)
    })
}

proptest! {
    #[test]
    fn a_translated_error_is_one_about_the_translated_packet((packet, router, shown, source, destination) in case()) {
        let mut bytes = error_about(&packet, router);
        let error = found(&bytes);
        translate(&mut bytes, &error, shown, source.address, source, destination);

        let mut other = packet.clone();
        (other.source, other.destination) = (source, destination);
        let mut expected = error_about(&other, shown);
        // The error has come one hop further.
        let error = found(&expected);
        if packet.source.address.is_ipv4() {
            expected[error.l3 + 8] -= 1;
            let sum = u16::from_be_bytes([expected[error.l3 + 10], expected[error.l3 + 11]]);
            let sum = u32::from(sum) + 0x100;
            let sum = (sum + u32::from(sum >= 0xffff)) as u16;
            expected[error.l3 + 10..error.l3 + 12].copy_from_slice(&sum.to_be_bytes());
        } else {
            expected[error.l3 + 7] -= 1;
        }
        prop_assert!(bytes == expected, "got {:02x?}, expected {:02x?}", &bytes[..120.min(bytes.len())],
                     &expected[..120.min(expected.len())]);
        let protocol = if packet.source.address.is_ipv4() { 1 } else { 58 };
        prop_assert!(checksums_right(&bytes, error.l3, error.l4, error.end, protocol));
    }

    #[test]
    fn there_and_back_again((packet, router, shown, source, destination) in case()) {
        let mut bytes = error_about(&packet, router);
        let original = bytes.clone();
        let error = found(&bytes);
        translate(&mut bytes, &error, shown, source.address, source, destination);
        let error = found(&bytes);
        prop_assert_eq!((error.source, error.destination), (shown, source.address));
        prop_assert_eq!((error.quoted.source, error.quoted.destination), (source, destination));
        translate(&mut bytes, &error, router, packet.source.address, packet.source, packet.destination);
        let back = found(&bytes);
        prop_assert_eq!(back.quoted, packet.key());
        prop_assert!(bytes[back.l4..] == original[back.l4..]);
    }

    #[test]
    fn short_quotes((packet, router, shown, source, destination) in case(), quoted in 0usize..40) {
        let ipv4 = packet.source.address.is_ipv4();
        let mut bytes = error_about(&packet, router);
        let error = found(&bytes);
        // Cut behind the quoted transport's first bytes, lengths and checksums as the router would have them; what was
        // quoted behind that is now padding.
        let end = (error.quoted_l4 + quoted).min(error.end);
        let length = end - error.l3;
        if ipv4 {
            bytes[error.l3 + 2..error.l3 + 4].copy_from_slice(&(length as u16).to_be_bytes());
            bytes[error.l3 + 10..error.l3 + 12].fill(0);
            let checksum = !(crate::packets::add_words(0, &bytes[error.l3..error.l4]) as u16);
            bytes[error.l3 + 10..error.l3 + 12].copy_from_slice(&checksum.to_be_bytes());
        } else {
            bytes[error.l3 + 4..error.l3 + 6].copy_from_slice(&((length - 40) as u16).to_be_bytes());
        }
        let padding = bytes[end..].to_vec();
        bytes[error.l4 + 2..error.l4 + 4].fill(0);
        let start = if ipv4 { 0 } else {
            crate::packets::pseudo(&bytes[error.l3 + 8..error.l3 + 40], &[], 58, end - error.l4)
        };
        let checksum = !(crate::packets::add_words(start, &bytes[error.l4..end]) as u16);
        bytes[error.l4 + 2..error.l4 + 4].copy_from_slice(&checksum.to_be_bytes());
        if quoted < 8 {
            prop_assert_eq!(parse(&bytes), Err(Malformed::Quote));
            return Ok(());
        }
        let error = found(&bytes);
        translate(&mut bytes, &error, shown, source.address, source, destination);
        let protocol = if ipv4 { 1 } else { 58 };
        prop_assert!(checksums_right(&bytes, error.l3, error.l4, end, protocol));
        prop_assert!(bytes[end..] == padding);
        prop_assert_eq!(found(&bytes).quoted.source, source);
    }

    #[test]
    fn a_corrupt_error_stays_corrupt((packet, router, shown, source, destination) in case(), bit in 0usize..16) {
        let mut bytes = error_about(&packet, router);
        let error = found(&bytes);
        bytes[error.l4 + 2 + bit / 8] ^= 1 << (bit % 8);
        translate(&mut bytes, &error, shown, source.address, source, destination);
        let protocol = if packet.source.address.is_ipv4() { 1 } else { 58 };
        prop_assert!(!checksums_right(&bytes, error.l3, error.l4, error.end, protocol));
    }
}

#[test]
fn a_quoted_udp_checksum_of_zero_stays_zero() {
    let mut packet = crate::parsing::udp(true);
    packet.layer4 = Layer4::Udp { without_checksum: true };
    let mut bytes = error_about(&packet, packet.destination.address);
    let error = found(&bytes);
    let client = Endpoint { address: Address::from_ipv4([198, 51, 100, 1]), port: 9 };
    translate(&mut bytes, &error, packet.destination.address, client.address, client, packet.destination);
    assert_eq!(&bytes[error.quoted_l4 + 6..error.quoted_l4 + 8], &[0, 0]);
}

#[test]
fn refuses_impossible_quotes() {
    let packet = crate::parsing::udp(true);
    let right = error_about(&packet, packet.destination.address);
    let error = found(&right);
    let with = |at: usize, byte: u8| {
        let mut bytes = right.clone();
        bytes[at] = byte;
        parse(&bytes)
    };
    assert_eq!(with(error.quoted_l3, 0x65), Err(Malformed::Quote), "version");
    assert_eq!(with(error.quoted_l3, 0x41), Err(Malformed::Quote), "header length");
    assert_eq!(with(error.quoted_l3, 0x4f), Err(Malformed::Quote), "options that are not there");
    assert_eq!(with(error.quoted_l3 + 9, 47), Ok(Parsed::Other), "about GRE");
    assert_eq!(with(error.quoted_l3 + 7, 1), Ok(Parsed::Other), "about a later fragment");
    assert_eq!(with(error.l4, 4), Ok(Parsed::Other), "source quench");
    let packet = crate::parsing::udp(false);
    let mut bytes = error_about(&packet, packet.destination.address);
    let error = found(&bytes);
    bytes[error.quoted_l3 + 8..error.quoted_l3 + 24].copy_from_slice(&Address::from_ipv4([1; 4]).0);
    assert_eq!(parse(&bytes), Err(Malformed::Quote), "IPv4-mapped");
}

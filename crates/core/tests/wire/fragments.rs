//! IPv4 fragments: put together again they are the packet.

use crate::packets::{Packet, add_words, packet, transport};
use crate::parsing::udp;
use hairpin_core::frame::{Checksum, Frame, VecFrame};
use hairpin_core::l4::answer::fragment;
use hairpin_core::wire::{Parsed, parse};
use proptest::prelude::*;

struct Outcome {
    done: bool,
    pieces: Vec<VecFrame>,
}

fn split(packet: &Packet, mtu: u16, frames: usize) -> Outcome {
    let mut first = packet.frame();
    first.meta.ticket = 5;
    let at = transport(first.bytes());
    let mut left = frames;
    let allocate = || {
        left = left.checked_sub(1)?;
        Some(VecFrame::default())
    };
    let mut pieces = Vec::new();
    let done = fragment(&mut first, &at, mtu, allocate, |piece| pieces.push(piece));
    pieces.insert(0, first);
    Outcome { done, pieces }
}

/// RFC 791's reassembly: the data, and every piece's header checked.
fn reassemble(packet: &Packet, pieces: &[VecFrame], mtu: usize) -> Vec<u8> {
    let l3 = packet.l3();
    let mut data = Vec::new();
    for (position, piece) in pieces.iter().enumerate() {
        let bytes = piece.bytes();
        let header = &bytes[l3..l3 + usize::from(bytes[l3] & 15) * 4];
        assert!(bytes.len() - l3 <= mtu);
        assert_eq!(usize::from(u16::from_be_bytes([header[2], header[3]])), bytes.len() - l3);
        assert_eq!(add_words(0, header), 0xffff);
        assert_eq!(&header[4..6], &packet.identification.to_be_bytes());
        assert_eq!(&bytes[..l3], &packet.bytes()[..l3]);
        let place = u16::from_be_bytes([header[6], header[7]]);
        assert_eq!(usize::from(place & 0x1fff) * 8, data.len());
        assert_eq!(place & 0x2000 != 0, position + 1 < pieces.len());
        assert_eq!(parse(bytes), Ok(Parsed::Fragment));
        assert_eq!((piece.meta().checksum, piece.meta().ticket), (Checksum::Complete, 5));
        data.extend(&bytes[l3 + header.len()..]);
    }
    data
}

proptest! {
    #[test]
    fn fragments_reassemble(mut packet in packet(), mtu in 100u16..1500) {
        packet.dont_fragment = false;
        let l3 = packet.l3();
        let mut whole = packet.clone();
        whole.checksum = Checksum::Complete;
        whole.padding = 0;
        let outcome = split(&packet, mtu, 64);
        let length = whole.bytes().len() - l3;
        if !packet.source.address.is_ipv4() {
            prop_assert!(!outcome.done);
        } else if length <= usize::from(mtu) {
            prop_assert!(outcome.done && outcome.pieces.len() == 1 && outcome.pieces[0].data == packet.bytes());
        } else if outcome.done {
            let l4 = l3 + 20 + packet.ip_options.len();
            prop_assert!(reassemble(&packet, &outcome.pieces, usize::from(mtu)) == whole.bytes()[l4..]);
        } else {
            let header = 20 + packet.ip_options.len();
            let room = (usize::from(mtu) - header) & !7;
            prop_assert!((length - header).div_ceil(room) > 64 + 1, "{length} bytes into {mtu}");
            prop_assert_eq!(outcome.pieces.len(), 1);
        }
    }
}

fn large() -> Packet {
    let mut packet = udp(true);
    packet.dont_fragment = false;
    packet.payload = (0..2000u32).map(|number| number as u8).collect();
    packet
}

#[test]
fn only_copied_options_are_in_later_fragments() {
    let mut packet = large();
    // Router alert (copied), record route (not), end of list.
    packet.ip_options = vec![0x94, 4, 0, 0, 7, 3, 4, 0];
    let outcome = split(&packet, 576, 8);
    assert!(outcome.done);
    assert_eq!(outcome.pieces.len(), 4);
    let header_lengths: Vec<u8> = outcome.pieces.iter().map(|piece| (piece.data[14] & 15) * 4).collect();
    assert_eq!(header_lengths, [28, 24, 24, 24]);
    assert_eq!(&outcome.pieces[1].data[34..38], &[0x94, 4, 0, 0]);
}

#[test]
fn all_or_nothing() {
    let packet = large();
    for frames in 0..3 {
        let outcome = split(&packet, 576, frames);
        assert!(!outcome.done);
        assert_eq!(outcome.pieces.len(), 1);
        assert_eq!(outcome.pieces[0].data, packet.bytes());
    }
    assert!(split(&packet, 576, 3).done);
    assert!(!split(&packet, 27, 64).done, "no room for a byte");
    assert!(!split(&packet, 44, 1000).done, "84 fragments");
    assert!(split(&packet, 60, 1000).done, "51 fragments");
}

#[test]
fn not_what_forbids_it() {
    let mut packet = large();
    packet.dont_fragment = true;
    assert!(!split(&packet, 576, 8).done);
    packet.dont_fragment = false;
    let mut frame = packet.frame();
    frame.meta.gso_size = 1000;
    let at = transport(frame.bytes());
    assert!(!fragment(&mut frame, &at, 576, || Some(VecFrame::default()), |_| panic!("a piece")));
}

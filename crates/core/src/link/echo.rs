//! Answers to ICMP and ICMPv6 echo requests (RFC 792; RFC 4443, 4.2), made of the request's own frame.

use crate::link::header::CheckedHeader;
use crate::wire::bytes::{array_at, array_at_mut};
use crate::wire::checksum::{Difference, Sum};
use crate::wire::{icmp, ipv4, ipv6};

const V4_REQUEST: u8 = 8;
const V4_REPLY: u8 = 0;
const V6_REQUEST: u8 = 128;
const V6_REPLY: u8 = 129;
/// Hops given to an answer.
const HOPS: u8 = 64;

/// Whether the ICMP message behind `header` is an echo request.
pub(super) fn is_request(frame: &[u8], header: &CheckedHeader) -> bool {
    let kind = frame.get(..header.end).and_then(|packet| array_at::<2>(packet, header.l4));
    kind == Some([if header.source.is_ipv4() { V4_REQUEST } else { V6_REQUEST }, 0])
}

/// Whether the message's checksum is right, and the message whole.
pub(super) fn is_whole(frame: &[u8], header: &CheckedHeader) -> bool {
    let Some(message) = frame.get(header.l4..header.end).filter(|message| message.len() >= icmp::HEADER) else {
        return false;
    };
    let sum = match header.source.is_ipv4() {
        true => Sum::of(message),
        false => {
            let (source, destination) = (&header.source.0, &header.destination.0);
            Sum::of(message) + Sum::pseudo_header(source, destination, icmp::PROTOCOL_V6, message.len())
        }
    };
    sum.folded() == 0xffff
}

/// Makes the packet the answer to itself: its ends and its Ethernet addresses change places. It goes back to the host
/// that handed it over, so no neighbour has to be looked up. IPv4 options go along as they are (RFC 1122, 3.2.2.6 asks
/// for no more).
pub(super) fn answer(frame: &mut [u8], header: &CheckedHeader) {
    let ipv4 = header.source.is_ipv4();
    let Some(ethernet) = array_at_mut::<12>(frame, 0) else { return };
    ethernet.rotate_left(6);
    if let Some(kind) = array_at_mut::<4>(frame, header.l4) {
        let (request, reply) = if ipv4 { (V4_REQUEST, V4_REPLY) } else { (V6_REQUEST, V6_REPLY) };
        let mut difference = Difference::NONE;
        // the pseudo-header's addresses change places, which does not change its sum
        difference.word(u16::from_be_bytes([request, kind[1]]), u16::from_be_bytes([reply, kind[1]]));
        kind[0] = reply;
        let checksum = difference.update(u16::from_be_bytes([kind[2], kind[3]]));
        kind[2..].copy_from_slice(&checksum.to_be_bytes());
    }
    let Some(ip) = frame.get_mut(header.l3..header.l4) else { return };
    if ipv4 {
        ip[8] = HOPS;
        ip[12..ipv4::HEADER].rotate_left(4);
        ipv4::fill_checksum(ip);
    } else {
        ip[7] = HOPS;
        ip[8..ipv6::HEADER].rotate_left(16);
    }
}

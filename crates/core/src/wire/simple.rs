//! Frames whose headers the link layer has examined ([`Frame::is_examined`]): their flow is read at its known place.

use super::bytes::array_at;
use super::{Ip, Parsed, Transport, ethernet, ipv6, parse, parse_tcp, parse_udp, plain};
use crate::flow::FlowKey;
use crate::frame::Frame;

/// Offset of the IP header of a frame without tags.
const L3_SIMPLE: usize = ethernet::HEADER;

/// What [`parse`] finds in a frame that is [examined](Frame::is_examined), with hardly a check.
#[inline]
pub fn examined(frame: &[u8]) -> Option<Transport> {
    match plain::examined(frame) {
        Some((plain, ends)) => Some(plain.transport(ends.key())),
        None => examined_ipv6(frame),
    }
}

#[inline]
fn examined_ipv6(frame: &[u8]) -> Option<Transport> {
    let header = ipv6::Header(array_at(frame, L3_SIMPLE)?);
    let ip = Ip {
        l3: L3_SIMPLE,
        l4: L3_SIMPLE + ipv6::HEADER,
        end: L3_SIMPLE + ipv6::HEADER + header.payload_length(),
        source: header.source(),
        destination: header.destination(),
        ttl: header.hop_limit(),
    };
    let parsed = match header.next_header() {
        plain::TCP => parse_tcp(frame, &ip),
        _ => parse_udp(frame, &ip),
    };
    match parsed {
        Ok(Parsed::Transport(at)) => Some(at),
        _ => None,
    }
}

/// Whether the IPv6 packet that [`parse`] found is one that [`examined`] reads: without tags, without extension headers, with
/// honest flags.
#[inline(always)]
pub(crate) fn is_simple_ipv6(at: &Transport) -> bool {
    (at.l3, at.l4) == (L3_SIMPLE, L3_SIMPLE + ipv6::HEADER) && !at.has_impossible_flags()
}

/// The flow that a received frame is of, or that the ICMP error in it is about, as it was when the error's sender met it.
#[inline]
pub fn flow_of<F: Frame>(frame: &F) -> Option<FlowKey> {
    if frame.is_examined()
        && let Some(at) = examined(frame.bytes())
    {
        return Some(at.key);
    }
    match parse(frame.bytes()) {
        Ok(Parsed::Transport(at)) => Some(at.key),
        Ok(Parsed::IcmpError(error)) => Some(error.quoted.reversed()),
        _ => None,
    }
}

//! The checks of IP headers that every packet passes before any field is used: those of FastClick's
//! `CheckIPHeader` and of RFC 1812, 5.2.2, with the reasons told apart.
//!
//! [`wire::parse`](crate::wire::parse) makes the same checks and goes on to the transport header; these are for callers
//! that do not go on, and come with a check of the source that knows nothing of the network's own addresses.

use crate::flow::Address;
use crate::wire::bytes::array_at;
use crate::wire::checksum::Sum;
use crate::wire::{ipv4, ipv6};

/// The defect of an IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadHeader {
    /// The frame ends before the header does.
    Truncated,
    /// The version is not what the EtherType says.
    Version,
    /// An IPv4 header of less than 20 bytes.
    HeaderLength,
    /// The packet is longer than its frame, or shorter than its header.
    TotalLength,
    /// A wrong IPv4 header checksum.
    Checksum,
    /// It comes from an address that no host has: 0.0.0.0/8, 127.0.0.0/8, a group, limited broadcast, `::`, `::1`,
    /// IPv4-mapped. (`::` may be a source in neighbour discovery only.)
    Source,
}

/// The contents of a checked header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckedHeader {
    /// The sender.
    pub source: Address,
    /// The receiver.
    pub destination: Address,
    /// Offset of the IP header in the frame.
    pub l3: usize,
    /// Offset of what lies behind it: of an IPv6 packet, extension headers may come first.
    pub l4: usize,
    /// Offset of the packet's end; Ethernet padding may follow.
    pub end: usize,
    /// IANA number of what lies at `l4`.
    pub protocol: u8,
    /// TTL or hop limit.
    pub hops: u8,
    /// Whether it is a part of an IPv4 packet. Of an IPv6 packet, `protocol` says so.
    pub fragment: bool,
}

/// Checks the IPv4 header at `l3`.
#[inline(always)]
pub fn check_ipv4(frame: &[u8], l3: usize) -> Result<CheckedHeader, BadHeader> {
    let header = ipv4::Header(array_at(frame, l3).ok_or(BadHeader::Truncated)?);
    if header.version() != 4 {
        return Err(BadHeader::Version);
    }
    let length = header.header_length();
    if length < ipv4::HEADER {
        return Err(BadHeader::HeaderLength);
    }
    let (l4, end) = (l3 + length, l3 + header.total_length());
    let whole = frame.get(l3..l4).ok_or(BadHeader::Truncated)?;
    if end < l4 || end > frame.len() {
        return Err(BadHeader::TotalLength);
    }
    let sum = if length == ipv4::HEADER { Sum::of_header(&header.0) } else { Sum::of(whole) };
    if sum.folded() != 0xffff {
        return Err(BadHeader::Checksum);
    }
    if !ipv4::is_host(header.source()) {
        return Err(BadHeader::Source);
    }
    Ok(CheckedHeader {
        source: Address::from_ipv4(header.source()),
        destination: Address::from_ipv4(header.destination()),
        l3,
        l4,
        end,
        protocol: header.protocol(),
        hops: header.ttl(),
        fragment: header.fragment() & (ipv4::MORE_FRAGMENTS | ipv4::FRAGMENT_OFFSET) != 0,
    })
}

/// Whether [`check_ipv4`] finds nothing wrong with a header without options, as nearly all are, behind which the frame has
/// so many bytes: a quick check, which may say no where that says yes.
#[inline(always)]
pub fn is_usual_ipv4(header: &[u8; ipv4::HEADER], behind: usize) -> bool {
    let (Some(first), Some(second), Some(third)) = (array_at(header, 0), array_at(header, 8), array_at(header, 16))
    else {
        return false;
    };
    let (first, second) = (u64::from_le_bytes(first), u64::from_le_bytes(second));
    let third = u32::from_le_bytes(third);
    // A packet shorter than its header would have a very long payload.
    let payload = u32::from(((first >> 16) as u16).swap_bytes()).wrapping_sub(ipv4::HEADER as u32);
    first as u8 == 0x45
        && payload as usize <= behind
        && Sum::is_right(first, second, third)
        && ipv4::is_usual_host((second >> 32) as u8)
        // What goes to a group is not the worker's.
        && ipv4::is_usual_host(third as u8)
}

/// Checks the IPv6 header at `l3`. The source `::` passes: only who knows the protocol can tell.
#[inline(always)]
pub fn check_ipv6(frame: &[u8], l3: usize) -> Result<CheckedHeader, BadHeader> {
    let header = ipv6::Header(array_at(frame, l3).ok_or(BadHeader::Truncated)?);
    if header.version() != 6 {
        return Err(BadHeader::Version);
    }
    let l4 = l3 + ipv6::HEADER;
    let end = l4 + header.payload_length();
    if end > frame.len() {
        return Err(BadHeader::TotalLength);
    }
    let source = header.source();
    if !ipv6::is_host(&source) && source != Address([0; 16]) {
        return Err(BadHeader::Source);
    }
    let (destination, protocol, hops) = (header.destination(), header.next_header(), header.hop_limit());
    Ok(CheckedHeader { source, destination, l3, l4, end, protocol, hops, fragment: false })
}

//! The outer headers of packets to backends of direct server return that are hops away: the same bytes as the BPF programs
//! put on (`crates/linux/bpf/encapsulate.h`).

use crate::config::{Encapsulation, Outer};
use crate::flow::Address;
use crate::frame::{Checksum, Frame};
use crate::wire::bytes::array_at;
use crate::wire::{self, Parsed, ethernet, ipv4, ipv6};
use core::net::IpAddr;

/// Hops given to an outer header.
const HOPS: u8 = 64;
const UDP: u8 = 17;
const UDP_HEADER: usize = 8;
/// IPv4 and IPv6 in an IP packet (RFC 2003, RFC 2473).
const IPV4_INSIDE: u8 = 4;
const IPV6_INSIDE: u8 = 41;
/// Source ports of GUE are those that have no owner (RFC 6335, section 6).
const SOURCE_FIRST: u16 = 0xc000;
/// The longest outer header.
const LONGEST: usize = ipv6::HEADER + UDP_HEADER;

/// A backend of direct server return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectBackend {
    /// Its number: what [`Egress::Direct`](crate::frame::Egress::Direct) says.
    pub number: u16,
    /// Where it is.
    pub address: IpAddr,
    /// What packets to it are wrapped in. Without that it is a neighbour.
    pub outer: Outer,
}

/// A backend as the link layer uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DirectTarget {
    pub(super) number: u16,
    pub(super) address: Address,
    pub(super) outer: Outer,
    /// The source of outer headers; `None`: there is none of the backend's family.
    pub(super) source: Option<Address>,
}

impl DirectTarget {
    /// Bytes of its outer headers; 0: packets go there as they are.
    pub(super) fn overhead(&self) -> usize {
        self.outer.bytes(self.address.is_ipv4()).into()
    }

    /// Wraps the packet of `length` bytes whose header lies at `l3`. `false`: there is no room, no source, or it is one
    /// that the plane would have to finish or cut up inside; the frame is to be dropped then.
    pub(super) fn wrap<F: Frame>(&self, frame: &mut F, l3: usize, length: usize) -> bool {
        let overhead = self.overhead();
        let is_plain = frame.meta().gso_size == 0 && frame.meta().checksum == Checksum::Complete;
        let mut headers = [0; LONGEST];
        if !is_plain || !self.write(&mut headers, frame.bytes(), l3, length) {
            return false;
        }
        let end = l3 + length;
        if frame.bytes().len() < end || !frame.resize(end + overhead) {
            return false;
        }
        let bytes = frame.bytes_mut();
        bytes.copy_within(l3..end, l3 + overhead);
        match (bytes.get_mut(l3..l3 + overhead), headers.get(..overhead)) {
            (Some(place), Some(headers)) => place.copy_from_slice(headers),
            _ => return false,
        }
        // What is inside may be of the other family. The type is what comes before the header, behind any tags.
        let kind = if self.address.is_ipv4() { ethernet::IPV4 } else { ethernet::IPV6 };
        if let Some(place) = l3.checked_sub(2).and_then(|at| bytes.get_mut(at..l3)) {
            place.copy_from_slice(&kind.to_be_bytes());
        }
        true
    }

    /// Writes the outer headers; `false` if there are none for this packet.
    fn write(&self, headers: &mut [u8; LONGEST], frame: &[u8], l3: usize, length: usize) -> bool {
        let Some(source) = self.source else { return false };
        let Some(first) = array_at::<4>(frame, l3) else { return false };
        let is_ipv4 = first[0] >> 4 == 4;
        let inside = if is_ipv4 { IPV4_INSIDE } else { IPV6_INSIDE };
        // The TOS, or the traffic class.
        let class = if is_ipv4 { first[1] } else { first[0] << 4 | first[1] >> 4 };
        let is_gue = self.outer.encapsulation == Encapsulation::Gue;
        let (protocol, carried) = if is_gue { (UDP, UDP_HEADER + length) } else { (inside, length) };
        if carried > usize::from(u16::MAX) - ipv4::HEADER {
            return false;
        }
        let ip = if self.address.is_ipv4() {
            let (from, to) = (source.ipv4_octets(), self.address.ipv4_octets());
            headers[..ipv4::HEADER].copy_from_slice(&ipv4::header(from, to, protocol, class, HOPS, carried));
            ipv4::HEADER
        } else {
            let header = ipv6::header(&source, &self.address, protocol, HOPS, carried);
            headers[..ipv6::HEADER].copy_from_slice(&header);
            // Version, traffic class and flow label, which IPv4 has none of.
            let first = if is_ipv4 { [0x60 | class >> 4, class << 4, 0, 0] } else { first };
            headers[..4].copy_from_slice(&first);
            ipv6::HEADER
        };
        if is_gue {
            headers[ip..ip + 2].copy_from_slice(&source_port(frame).to_be_bytes());
            headers[ip + 2..ip + 4].copy_from_slice(&self.outer.port.to_be_bytes());
            headers[ip + 4..ip + 6].copy_from_slice(&(carried as u16).to_be_bytes());
            // The sum stays zero, as with other tunnels: what is inside has its own (RFC 6935).
        }
        true
    }
}

/// Tells routers one client's flow from another's. Packets without ports share one.
fn source_port(frame: &[u8]) -> u16 {
    let Ok(Parsed::Transport(at)) = wire::parse(frame) else { return SOURCE_FIRST };
    let end = &at.key.source;
    let words = end.address.0.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes));
    let mix = |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    let hash = words.chain([u64::from(end.port)]).fold(0, mix);
    SOURCE_FIRST | (hash >> 16) as u16 & !SOURCE_FIRST
}

//! Translating ICMP errors: what the network reports about a packet Hairpin has rewritten, told to its real sender.
//!
//! The source is the NAT behaviour of RFC 5508, section 4.2: addresses of the error itself, and addresses and ports of
//! the packet it quotes, become those the receiver knows.

use crate::flow::{Address, Endpoint, Protocol};
use crate::wire::bytes::{array_at_mut, u16_at};
use crate::wire::checksum::{Difference, Sum};
use crate::wire::{IcmpError, icmp, ipv4, ipv6, tcp, udp};

/// Translates the ICMP error [`parse`](crate::wire::parse) found in `frame`: it then goes from `source` to
/// `destination`, with one hop less, and quotes a packet from `quoted_source` to `quoted_destination`. All of them are
/// of its family.
///
/// Checksums are changed incrementally, so that a corrupt error stays one: the quoted IPv4 header's, the quoted
/// transport's as far as it is quoted (a quoted UDP checksum of 0 stays 0), the ICMP one with ICMPv6's pseudo-header,
/// the outer IPv4 header's. Quoted TCP numbers are left alone.
pub fn translate(
    frame: &mut [u8],
    error: &IcmpError,
    source: Address,
    destination: Address,
    quoted_source: Endpoint,
    quoted_destination: Endpoint,
) {
    let Some(packet) = frame.get_mut(..error.end) else { return };
    let before = covered(packet, error);
    translate_quote(packet, error, quoted_source, quoted_destination);
    if let Some(header) = packet.get_mut(error.l3..error.l4) {
        readdress(header, error, source, destination, true);
    }
    let after = covered(packet, error);
    if let Some(field) = array_at_mut::<2>(packet, error.l4 + icmp::CHECKSUM) {
        let checksum = Difference::between(before, after).update(u16::from_be_bytes(*field));
        *field = checksum.to_be_bytes();
    }
}

/// The bytes that the ICMP checksum covers: the message and, for ICMPv6, the addresses. Its own field is in it, before and
/// after alike.
fn covered(packet: &[u8], error: &IcmpError) -> Sum {
    let message = Sum::of(packet.get(error.l4..).unwrap_or_default());
    match error.quoted.is_ipv4() {
        true => message,
        false => message + Sum::of(packet.get(error.l3 + 8..error.l3 + ipv6::HEADER).unwrap_or_default()),
    }
}

fn readdress(
    header: &mut [u8],
    error: &IcmpError,
    source: Address,
    destination: Address,
    hop: bool,
) -> Option<Difference> {
    match error.quoted.is_ipv4() {
        true => ipv4::readdress(header, source.ipv4_octets(), destination.ipv4_octets(), hop),
        false => ipv6::readdress(header, &source, &destination, hop),
    }
}

fn translate_quote(packet: &mut [u8], error: &IcmpError, source: Endpoint, destination: Endpoint) {
    let Some(header) = packet.get_mut(error.quoted_l3..error.quoted_l4) else { return };
    let Some(mut changes) = readdress(header, error, source.address, destination.address, false) else { return };
    let Some(transport) = packet.get_mut(error.quoted_l4..) else { return };
    let Some(ports) = array_at_mut::<4>(transport, 0) else { return };
    let ([a, b], [c, d]) = (source.port.to_be_bytes(), destination.port.to_be_bytes());
    changes.words(*ports, [a, b, c, d]);
    *ports = [a, b, c, d];
    let offset = match error.quoted.protocol {
        Protocol::Tcp => tcp::CHECKSUM,
        Protocol::Udp => udp::CHECKSUM,
    };
    let Some(old) = u16_at(transport, offset) else { return };
    let new = match error.quoted.protocol {
        Protocol::Tcp => changes.update(old),
        Protocol::Udp if old == 0 => 0,
        Protocol::Udp => udp::mangled(changes.update(old)),
    };
    if let Some(field) = array_at_mut(transport, offset) {
        *field = new.to_be_bytes();
    }
}

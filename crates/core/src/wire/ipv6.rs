//! The IPv6 header and its extension headers (RFC 8200).

use super::Malformed;
use super::bytes::{array_at, array_at_mut};
use super::checksum::Difference;
use crate::flow::Address;

/// Bytes of the header.
pub const HEADER: usize = 40;
/// Extension headers accepted in a row.
pub const EXTENSION_HEADERS_MAX: usize = 8;

/// Next header: hop-by-hop options.
pub const HOP_BY_HOP: u8 = 0;
/// Next header: routing.
pub const ROUTING: u8 = 43;
/// Next header: fragment.
pub const FRAGMENT: u8 = 44;
/// Next header: destination options.
pub const DESTINATION_OPTIONS: u8 = 60;

/// A header. The accessors read; nothing has been checked.
#[derive(Clone, Copy, Debug)]
pub struct Header(pub [u8; HEADER]);

impl Header {
    /// The version; 6.
    #[inline(always)]
    pub fn version(&self) -> u8 {
        self.0[0] >> 4
    }

    /// Bytes behind the header, extension headers included.
    #[inline(always)]
    pub fn payload_length(&self) -> usize {
        usize::from(u16::from_be_bytes([self.0[4], self.0[5]]))
    }

    /// IANA number of what comes next.
    #[inline(always)]
    pub fn next_header(&self) -> u8 {
        self.0[6]
    }

    /// Hops left.
    #[inline(always)]
    pub fn hop_limit(&self) -> u8 {
        self.0[7]
    }

    /// The source address.
    #[inline(always)]
    pub fn source(&self) -> Address {
        address(&self.0, 8)
    }

    /// The destination address.
    #[inline(always)]
    pub fn destination(&self) -> Address {
        address(&self.0, 24)
    }
}

#[inline(always)]
fn address(header: &[u8; HEADER], at: usize) -> Address {
    let mut octets = [0; 16];
    octets.copy_from_slice(&header[at..at + 16]);
    Address(octets)
}

/// Whether `address` is a multicast address.
#[inline(always)]
pub fn is_group(address: &Address) -> bool {
    address.0[0] == 0xff
}

/// Whether `address` may be an end of a packet on a wire: not `::`, not `::1`, no group, and no IPv4-mapped address,
/// which would pass for IPv4 in [`Address`].
#[inline(always)]
pub fn is_host(address: &Address) -> bool {
    u128::from_be_bytes(address.0) > 1 && !is_group(address) && !address.is_ipv4()
}

/// The transport behind the extension headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Upper {
    /// The protocol of this IANA number, at this offset.
    Protocol(u8, usize),
    /// A fragment, whole ones ("atomic", RFC 6946) included.
    Fragment,
    /// A packet on its way to somewhere else: a routing header with segments left.
    Routed,
}

/// Walks the extension headers from `offset` to `end`.
#[inline(always)]
pub(crate) fn upper(packet: &[u8], first: u8, mut offset: usize, end: usize) -> Result<Upper, Malformed> {
    let mut next = first;
    for position in 0..=EXTENSION_HEADERS_MAX {
        match next {
            HOP_BY_HOP | ROUTING | DESTINATION_OPTIONS => {
                // Hop-by-hop options come first or not at all (RFC 8200, 4.1).
                if position == EXTENSION_HEADERS_MAX || (next == HOP_BY_HOP && position > 0) {
                    return Err(Malformed::ExtensionHeaders);
                }
                let header: [u8; 4] = array_at(packet, offset).ok_or(Malformed::ExtensionHeaders)?;
                let segments_left = header[3];
                if next == ROUTING && segments_left != 0 {
                    return Ok(Upper::Routed);
                }
                offset += (usize::from(header[1]) + 1) * 8;
                if offset > end {
                    return Err(Malformed::ExtensionHeaders);
                }
                next = header[0];
            }
            FRAGMENT => return Ok(Upper::Fragment),
            _ => return Ok(Upper::Protocol(next, offset)),
        }
    }
    Err(Malformed::ExtensionHeaders)
}

/// Gives the header at the start of `header` other addresses and, if `hop`, one hop less (0 stays 0). Returns what has
/// changed for the transport checksum; `None`, and nothing done, if there is no whole header.
#[inline(always)]
pub(crate) fn readdress(header: &mut [u8], source: &Address, destination: &Address, hop: bool) -> Option<Difference> {
    let header: &mut [u8; HEADER] = array_at_mut(header, 0)?;
    let old = Header(*header);
    let mut addresses = Difference::NONE;
    addresses.address(&old.source().0, &source.0);
    addresses.address(&old.destination().0, &destination.0);
    header[8..24].copy_from_slice(&source.0);
    header[24..40].copy_from_slice(&destination.0);
    if hop {
        header[7] = old.hop_limit().saturating_sub(1);
    }
    Some(addresses)
}

/// A fresh header.
pub(crate) fn header(source: &Address, destination: &Address, next: u8, hops: u8, payload: usize) -> [u8; HEADER] {
    let mut bytes = [0; HEADER];
    bytes[0] = 0x60;
    bytes[4..6].copy_from_slice(&(payload as u16).to_be_bytes());
    bytes[6] = next;
    bytes[7] = hops;
    bytes[8..24].copy_from_slice(&source.0);
    bytes[24..40].copy_from_slice(&destination.0);
    bytes
}

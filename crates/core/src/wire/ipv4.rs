//! The IPv4 header (RFC 791).

use super::bytes::array_at_mut;
use super::checksum::{Difference, Sum};

/// Bytes of a header without options.
pub const HEADER: usize = 20;
/// Bytes of a header with the most options it can have.
pub const HEADER_MAX: usize = 60;
/// Flag "don't fragment" in the 16 bits of flags and fragment offset.
pub const DONT_FRAGMENT: u16 = 0x4000;
/// Flag "more fragments" there.
pub const MORE_FRAGMENTS: u16 = 0x2000;
/// The fragment offset there, in 8-byte units.
pub const FRAGMENT_OFFSET: u16 = 0x1fff;

/// The fixed part of a header. The accessors read; nothing has been checked.
#[derive(Clone, Copy, Debug)]
pub struct Header(pub [u8; HEADER]);

impl Header {
    /// The version; 4.
    #[inline(always)]
    pub fn version(&self) -> u8 {
        self.0[0] >> 4
    }

    /// Bytes of the header with its options, 0 to 60; less than 20 is malformed.
    #[inline(always)]
    pub fn header_length(&self) -> usize {
        usize::from(self.0[0] & 0xf) * 4
    }

    /// Bytes of the packet, header included.
    #[inline(always)]
    pub fn total_length(&self) -> usize {
        usize::from(u16::from_be_bytes([self.0[2], self.0[3]]))
    }

    /// Flags and fragment offset.
    #[inline(always)]
    pub fn fragment(&self) -> u16 {
        u16::from_be_bytes([self.0[6], self.0[7]])
    }

    /// Hops left.
    #[inline(always)]
    pub fn ttl(&self) -> u8 {
        self.0[8]
    }

    /// IANA number of the protocol behind the header.
    #[inline(always)]
    pub fn protocol(&self) -> u8 {
        self.0[9]
    }

    /// The source address.
    #[inline(always)]
    pub fn source(&self) -> [u8; 4] {
        [self.0[12], self.0[13], self.0[14], self.0[15]]
    }

    /// The destination address.
    #[inline(always)]
    pub fn destination(&self) -> [u8; 4] {
        [self.0[16], self.0[17], self.0[18], self.0[19]]
    }
}

/// Whether `address` names several hosts: multicast (224.0.0.0/4) or the limited broadcast.
#[inline(always)]
pub fn is_group(address: [u8; 4]) -> bool {
    address[0] & 0xf0 == 0xe0 || address == [255; 4]
}

/// Whether `address` may be an end of a packet on a wire: not 0.0.0.0/8, not 127.0.0.0/8, no group (RFC 1122, 3.2.1.3).
#[inline(always)]
pub fn is_host(address: [u8; 4]) -> bool {
    address[0] != 0 && address[0] != 127 && !is_group(address)
}

/// [`is_host`] of all addresses that are in use today, below 224.0.0.0, by their first byte: half the work.
#[inline(always)]
pub(crate) fn is_usual_host(first: u8) -> bool {
    first.wrapping_sub(1) < 223 && first != 127
}

/// Gives the header at the start of `header` other addresses and, if `hop`, one hop less (0 stays 0); its checksum
/// keeps in step: right stays right, wrong stays wrong. Returns what has changed for the transport checksum; `None`,
/// and nothing done, if there is no whole header.
#[inline(always)]
pub(crate) fn readdress(header: &mut [u8], source: [u8; 4], destination: [u8; 4], hop: bool) -> Option<Difference> {
    let header: &mut [u8; HEADER] = array_at_mut(header, 0)?;
    let mut addresses = Difference::NONE;
    addresses.words([header[12], header[13], header[14], header[15]], source);
    addresses.words([header[16], header[17], header[18], header[19]], destination);
    header[12..16].copy_from_slice(&source);
    header[16..20].copy_from_slice(&destination);
    let mut own = addresses;
    if hop {
        let [hops, protocol] = [header[8], header[9]];
        header[8] = hops.saturating_sub(1);
        own.word(u16::from_be_bytes([hops, protocol]), u16::from_be_bytes([header[8], protocol]));
    }
    let checksum = own.update(u16::from_be_bytes([header[10], header[11]]));
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
    Some(addresses)
}

/// Writes the right checksum into `header` (the whole of it, options included); nothing if it is too short for one.
pub(crate) fn fill_checksum(header: &mut [u8]) {
    if let Some(field) = array_at_mut::<2>(header, 10) {
        *field = [0, 0];
        let checksum = Sum::of(header).checksum();
        if let Some(field) = array_at_mut::<2>(header, 10) {
            *field = checksum.to_be_bytes();
        }
    }
}

/// A fresh header without options and with DF set, whose identification is 0 because it is never fragmented (RFC 6864).
pub(crate) fn header(
    source: [u8; 4],
    destination: [u8; 4],
    protocol: u8,
    service: u8,
    hops: u8,
    payload: usize,
) -> [u8; HEADER] {
    let mut bytes = [0; HEADER];
    bytes[0] = 0x45;
    bytes[1] = service;
    bytes[2..4].copy_from_slice(&((HEADER + payload) as u16).to_be_bytes());
    bytes[6..8].copy_from_slice(&DONT_FRAGMENT.to_be_bytes());
    bytes[8] = hops;
    bytes[9] = protocol;
    bytes[12..16].copy_from_slice(&source);
    bytes[16..20].copy_from_slice(&destination);
    fill_checksum(&mut bytes);
    bytes
}

/// The options of `options` that every fragment carries (RFC 791, 3.1: the copied flag, bit 7 of the kind), padded to a
/// multiple of four bytes. What follows a malformed option is left out.
pub(crate) fn copied_options(options: &[u8]) -> ([u8; HEADER_MAX - HEADER], usize) {
    let mut out = [0; HEADER_MAX - HEADER];
    let (mut at, mut length) = (0, 0);
    while let Some(&kind) = options.get(at) {
        let size = match kind {
            0 => break,
            1 => 1,
            _ => usize::from(options.get(at + 1).copied().unwrap_or(0)),
        };
        let Some(option) = options.get(at..at + size).filter(|_| size >= 2 || kind == 1) else { break };
        if kind & 0x80 != 0
            && let Some(to) = out.get_mut(length..length + size)
        {
            to.copy_from_slice(option);
            length += size;
        }
        at += size;
    }
    (out, length.next_multiple_of(4))
}

//! Reading packets: from the bytes of a frame to where its headers are and whose flow it belongs to.
//!
//! [`parse`] takes whatever arrives - truncated, looping, forged - and never panics; every offset it returns lies
//! within the frame. It checks what Hairpin's own decisions rest on and what a router checks: lengths, versions, the
//! IPv4 header checksum, addresses that no host can have. It does not check transport checksums (the ends do) and
//! keeps no state, so it does not put fragments together.
//!
//! Invariant: an IPv6 packet with an IPv4-mapped address (`::ffff:0:0/96`) is malformed, so that [`Address`] tells the
//! families apart.
//!
//! # Example
//! A SYN from its bytes to its flow. The key is what connection tables are asked for, and the offsets are what
//! [`rewrite`](crate::rewrite) changes the packet by.
//!
//! ```
//! use hairpin_core::flow::Protocol;
//! use hairpin_core::wire::checksum::Sum;
//! use hairpin_core::wire::{self, Malformed, Parsed, tcp};
//!
//! let mut frame = Vec::new();
//! // Ethernet: two addresses, then the EtherType of IPv4.
//! frame.extend([2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x08, 0x00]);
//! // IPv4: 40 bytes in all, not to be fragmented, 64 hops left, TCP, checksum still 0.
//! frame.extend([0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0]);
//! frame.extend([198, 51, 100, 7]);
//! frame.extend([192, 0, 2, 1]);
//! // TCP: port 40,000 to port 80, sequence number 1, 20 bytes of header, SYN, a window of 65,535, checksum still 0.
//! frame.extend([0x9c, 0x40, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, tcp::SYN, 0xff, 0xff, 0, 0, 0, 0]);
//! let checksum = Sum::of(&frame[14..34]).checksum();
//! frame[24..26].copy_from_slice(&checksum.to_be_bytes());
//!
//! let Ok(Parsed::Transport(at)) = wire::parse(&frame) else { panic!("a whole TCP packet") };
//! assert_eq!(at.key.protocol, Protocol::Tcp);
//! assert_eq!(at.key.source.to_string(), "198.51.100.7:40000");
//! assert_eq!(at.key.destination.to_string(), "192.0.2.1:80");
//! assert_eq!(at.tcp_flags, tcp::SYN);
//! assert_eq!((at.l3, at.l4, at.payload, at.end), (14, 34, 54, 54));
//!
//! // The transport checksum is not looked at; it can be written.
//! at.fill_checksum(&mut frame);
//! assert_eq!(at.transport_checksum(&frame), Some(u16::from_be_bytes([frame[50], frame[51]])));
//!
//! // A packet that is cut short, and one whose header has changed on the way.
//! assert_eq!(wire::parse(&frame[..40]), Err(Malformed::Truncated));
//! frame[22] = 63;
//! assert_eq!(wire::parse(&frame), Err(Malformed::HeaderChecksum));
//! ```

pub(crate) mod bytes;
pub mod checksum;
pub mod ethernet;
pub mod icmp;
pub mod ipv4;
pub mod ipv6;
pub(crate) mod plain;
mod simple;
pub mod tcp;
pub mod udp;

pub use icmp::ErrorKind;
pub(crate) use simple::is_simple_ipv6;
pub use simple::{examined, flow_of};

use crate::flow::{Address, Endpoint, FlowKey, Protocol};
use bytes::{array_at, array_at_mut, u16_at};
use checksum::Sum;
use ipv6::Upper;

/// A whole TCP or UDP packet. Offsets are from the start of the frame: `l3 < l4 < payload <= end <=` its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transport {
    /// The packet's flow.
    pub key: FlowKey,
    /// Offset of the IP header; 14, 18 or 22.
    pub l3: usize,
    /// Offset of the TCP or UDP header.
    pub l4: usize,
    /// Offset of what the transport carries.
    pub payload: usize,
    /// Offset of the end of the IP packet; Ethernet padding may follow.
    pub end: usize,
    /// TCP's flags ([`tcp::FIN`] and so on); 0 for UDP.
    pub tcp_flags: u8,
    /// Hops left: TTL or hop limit.
    pub ttl: u8,
}

impl Transport {
    /// Whether it is a TCP segment with flags that no honest one has: SYN, FIN and RST together in any way, or none of them and
    /// no ACK.
    #[inline(always)]
    pub(crate) fn has_impossible_flags(&self) -> bool {
        self.key.protocol == Protocol::Tcp && tcp::are_impossible(self.tcp_flags)
    }

    /// Offset of the transport checksum in the frame.
    pub fn checksum_offset(&self) -> usize {
        self.l4
            + match self.key.protocol {
                Protocol::Tcp => tcp::CHECKSUM,
                Protocol::Udp => udp::CHECKSUM,
            }
    }

    /// The transport checksum as it should be: over pseudo-header, transport header and payload, its own field taken as
    /// zero. A UDP checksum of 0 comes as 0xffff (RFC 768). `None` if `frame` is not the frame that was parsed.
    pub fn transport_checksum(&self, frame: &[u8]) -> Option<u16> {
        let segment = frame.get(self.l4..self.end)?;
        let field = u16_at(frame, self.checksum_offset())?;
        let (source, destination) = match self.key.is_ipv4() {
            true => (frame.get(self.l3 + 12..self.l3 + 16)?, frame.get(self.l3 + 16..self.l3 + 20)?),
            false => (frame.get(self.l3 + 8..self.l3 + 24)?, frame.get(self.l3 + 24..self.l3 + 40)?),
        };
        let pseudo = Sum::pseudo_header(source, destination, self.key.protocol as u8, segment.len());
        let mut without_field = checksum::Difference::NONE;
        without_field.word(field, 0);
        let checksum = without_field.update((pseudo + Sum::of(segment)).checksum());
        Some(if self.key.protocol == Protocol::Udp { udp::mangled(checksum) } else { checksum })
    }

    /// Writes [`Transport::transport_checksum`] into the frame: what a device does for a frame whose checksum is
    /// [`Partial`](crate::frame::Checksum::Partial).
    pub fn fill_checksum(&self, frame: &mut [u8]) {
        if let Some(checksum) = self.transport_checksum(frame)
            && let Some(field) = array_at_mut(frame, self.checksum_offset())
        {
            *field = checksum.to_be_bytes();
        }
    }
}

/// An ICMP error about a TCP or UDP packet, which it quotes (at least to 8 bytes of its transport header). Offsets are
/// from the start of the frame: `l3 < l4 < quoted_l3 < quoted_l4 < end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcmpError {
    /// Offset of the IP header.
    pub l3: usize,
    /// Offset of the ICMP header.
    pub l4: usize,
    /// Offset of the quoted IP header.
    pub quoted_l3: usize,
    /// Offset of the quoted transport header, which may be cut off anywhere behind its eighth byte.
    pub quoted_l4: usize,
    /// Offset of the end of the IP packet; Ethernet padding may follow.
    pub end: usize,
    /// The flow of the quoted packet, as it was when the error's sender met it.
    pub quoted: FlowKey,
    /// The sender of the error.
    pub source: Address,
    /// The host to report it to.
    pub destination: Address,
    /// Hops left: TTL or hop limit.
    pub ttl: u8,
    /// The kind of error.
    pub kind: ErrorKind,
}

/// The contents of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// A whole TCP or UDP packet to one host.
    Transport(Transport),
    /// An ICMP error about a TCP or UDP packet.
    IcmpError(IcmpError),
    /// A part of an IP packet to one host (for IPv6, any with a fragment header).
    Fragment,
    /// Something else in good order: not IP, another protocol, ICMP that reports no error about TCP or UDP, multicast
    /// or limited broadcast, a routing header with segments left.
    Other,
}

/// Why a frame cannot be what it says it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Malformed {
    /// It ends before a header does, or before its IP packet does.
    Truncated,
    /// The IP version is not what the EtherType says.
    Version,
    /// The IPv4 header is shorter than 20 bytes.
    HeaderLength,
    /// The IPv4 packet is shorter than its header.
    TotalLength,
    /// The IPv4 header checksum is wrong.
    HeaderChecksum,
    /// IPv6 extension headers that run out of the packet, are more than 8, or are out of order.
    ExtensionHeaders,
    /// An address that cannot be an end of a packet on a wire (0.0.0.0/8, loopback, a group as source, IPv4-mapped), or
    /// both ends the same.
    Addresses,
    /// The TCP header is shorter than 20 bytes or longer than the packet.
    TcpOffset,
    /// The UDP length is shorter than its header or longer than the packet.
    UdpLength,
    /// An ICMP error quotes too little of a packet, or an impossible one.
    Quote,
}

impl Malformed {
    /// All the reasons, in the order of [`Malformed::index`].
    pub const ALL: [Malformed; 10] = [
        Malformed::Truncated,
        Malformed::Version,
        Malformed::HeaderLength,
        Malformed::TotalLength,
        Malformed::HeaderChecksum,
        Malformed::ExtensionHeaders,
        Malformed::Addresses,
        Malformed::TcpOffset,
        Malformed::UdpLength,
        Malformed::Quote,
    ];

    /// Its position in [`Malformed::ALL`].
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Its name in counters: lower case, words joined by hyphens.
    pub const fn name(self) -> &'static str {
        match self {
            Malformed::Truncated => "truncated",
            Malformed::Version => "ip-version",
            Malformed::HeaderLength => "ip-header-length",
            Malformed::TotalLength => "ip-total-length",
            Malformed::HeaderChecksum => "ip-header-checksum",
            Malformed::ExtensionHeaders => "ipv6-extension-headers",
            Malformed::Addresses => "addresses",
            Malformed::TcpOffset => "tcp-offset",
            Malformed::UdpLength => "udp-length",
            Malformed::Quote => "icmp-quote",
        }
    }
}

impl core::fmt::Display for Malformed {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name())
    }
}

impl core::error::Error for Malformed {}

/// Reads a frame from its Ethernet header on.
#[inline]
pub fn parse(frame: &[u8]) -> Result<Parsed, Malformed> {
    match ethernet::network_layer(frame)? {
        (ethernet::IPV4, l3) => parse_ipv4(frame, l3),
        (ethernet::IPV6, l3) => parse_ipv6(frame, l3),
        _ => Ok(Parsed::Other),
    }
}

#[inline]
fn parse_ipv4(frame: &[u8], l3: usize) -> Result<Parsed, Malformed> {
    let header = ipv4::Header(array_at(frame, l3).ok_or(Malformed::Truncated)?);
    if header.version() != 4 {
        return Err(Malformed::Version);
    }
    let header_length = header.header_length();
    if header_length < ipv4::HEADER {
        return Err(Malformed::HeaderLength);
    }
    let l4 = l3 + header_length;
    let whole = frame.get(l3..l4).ok_or(Malformed::Truncated)?;
    let end = match header.total_length() {
        // A super-packet past what the field can say (BIG TCP): it can only have come from this host's kernel.
        0 if frame.len() - l3 > usize::from(u16::MAX) => frame.len(),
        total if total < header_length => return Err(Malformed::TotalLength),
        total => l3 + total,
    };
    if end > frame.len() {
        return Err(Malformed::Truncated);
    }
    let sum = if header_length == ipv4::HEADER { Sum::of_header(&header.0) } else { Sum::of(whole) };
    if sum.folded() != 0xffff {
        return Err(Malformed::HeaderChecksum);
    }
    let (source, destination) = (header.source(), header.destination());
    let protocol = header.protocol();
    if ipv4::is_group(destination) || !matches!(protocol, 6 | 17 | icmp::PROTOCOL_V4) {
        return Ok(Parsed::Other);
    }
    if !ipv4::is_host(source) || !ipv4::is_host(destination) {
        return Err(Malformed::Addresses);
    }
    if header.fragment() & (ipv4::MORE_FRAGMENTS | ipv4::FRAGMENT_OFFSET) != 0 {
        return Ok(Parsed::Fragment);
    }
    let ip = Ip {
        l3,
        l4,
        end,
        source: Address::from_ipv4(source),
        destination: Address::from_ipv4(destination),
        ttl: header.ttl(),
    };
    match protocol {
        6 => parse_tcp(frame, &ip),
        17 => parse_udp(frame, &ip),
        _ => parse_icmp_v4(frame, &ip),
    }
}

#[inline]
fn parse_ipv6(frame: &[u8], l3: usize) -> Result<Parsed, Malformed> {
    let header = ipv6::Header(array_at(frame, l3).ok_or(Malformed::Truncated)?);
    if header.version() != 6 {
        return Err(Malformed::Version);
    }
    let body = l3 + ipv6::HEADER;
    let end = match header.payload_length() {
        // BIG TCP, with or without a jumbo payload option (RFC 2675).
        0 if frame.len() - body > usize::from(u16::MAX) => frame.len(),
        length => body + length,
    };
    if end > frame.len() {
        return Err(Malformed::Truncated);
    }
    let (source, destination) = (header.source(), header.destination());
    if ipv6::is_group(&destination) {
        return Ok(Parsed::Other);
    }
    let upper = ipv6::upper(frame, header.next_header(), body, end)?;
    if !matches!(upper, Upper::Protocol(6 | 17 | icmp::PROTOCOL_V6, _) | Upper::Fragment) {
        return Ok(Parsed::Other);
    }
    let icmp = matches!(upper, Upper::Protocol(icmp::PROTOCOL_V6, _));
    if !ipv6::is_host(&source) || !ipv6::is_host(&destination) {
        // Neighbour discovery asks from `::` (RFC 4862, 5.4.2).
        let asks = icmp && source == Address([0; 16]);
        return if asks { Ok(Parsed::Other) } else { Err(Malformed::Addresses) };
    }
    let Upper::Protocol(protocol, l4) = upper else { return Ok(Parsed::Fragment) };
    let ip = Ip { l3, l4, end, source, destination, ttl: header.hop_limit() };
    match protocol {
        6 => parse_tcp(frame, &ip),
        17 => parse_udp(frame, &ip),
        _ => parse_icmp_v6(frame, &ip),
    }
}

/// The values that the transport parsers need of the network layer.
struct Ip {
    l3: usize,
    l4: usize,
    end: usize,
    source: Address,
    destination: Address,
    ttl: u8,
}

impl Ip {
    /// The `N` bytes the transport header starts with, if they are within the packet.
    #[inline(always)]
    fn transport<const N: usize>(&self, frame: &[u8]) -> Result<[u8; N], Malformed> {
        if self.l4 + N > self.end {
            return Err(Malformed::Truncated);
        }
        array_at(frame, self.l4).ok_or(Malformed::Truncated)
    }

    #[inline(always)]
    fn packet(&self, protocol: Protocol, ports: [u8; 4], payload: usize, tcp_flags: u8) -> Result<Parsed, Malformed> {
        let key = key(self.source, self.destination, protocol, ports);
        // No host talks to the very port it talks from; such packets are made to loop ("land").
        if key.source == key.destination {
            return Err(Malformed::Addresses);
        }
        let (l3, l4, end, ttl) = (self.l3, self.l4, self.end, self.ttl);
        Ok(Parsed::Transport(Transport { key, l3, l4, payload, end, tcp_flags, ttl }))
    }
}

#[inline(always)]
fn key(source: Address, destination: Address, protocol: Protocol, ports: [u8; 4]) -> FlowKey {
    FlowKey {
        source: Endpoint { address: source, port: u16::from_be_bytes([ports[0], ports[1]]) },
        destination: Endpoint { address: destination, port: u16::from_be_bytes([ports[2], ports[3]]) },
        protocol,
    }
}

#[inline(always)]
fn parse_tcp(frame: &[u8], ip: &Ip) -> Result<Parsed, Malformed> {
    let header: [u8; tcp::HEADER] = ip.transport(frame)?;
    let length = usize::from(header[12] >> 4) * 4;
    let payload = ip.l4 + length;
    if length < tcp::HEADER || payload > ip.end {
        return Err(Malformed::TcpOffset);
    }
    ip.packet(Protocol::Tcp, [header[0], header[1], header[2], header[3]], payload, header[tcp::FLAGS])
}

#[inline(always)]
fn parse_udp(frame: &[u8], ip: &Ip) -> Result<Parsed, Malformed> {
    let header: [u8; udp::HEADER] = ip.transport(frame)?;
    let length = usize::from(u16::from_be_bytes([header[udp::LENGTH], header[udp::LENGTH + 1]]));
    if length < udp::HEADER || ip.l4 + length > ip.end {
        return Err(Malformed::UdpLength);
    }
    ip.packet(Protocol::Udp, [header[0], header[1], header[2], header[3]], ip.l4 + udp::HEADER, 0)
}

fn parse_icmp_v4(frame: &[u8], ip: &Ip) -> Result<Parsed, Malformed> {
    let Some(kind) = icmp::error_kind_v4(&ip.transport(frame)?) else { return Ok(Parsed::Other) };
    let quoted_l3 = ip.l4 + icmp::HEADER;
    let packet = frame.get(..ip.end).ok_or(Malformed::Truncated)?;
    let header = ipv4::Header(array_at(packet, quoted_l3).ok_or(Malformed::Quote)?);
    if header.version() != 4 || header.header_length() < ipv4::HEADER {
        return Err(Malformed::Quote);
    }
    if header.fragment() & ipv4::FRAGMENT_OFFSET != 0 {
        return Ok(Parsed::Other);
    }
    let ends = (Address::from_ipv4(header.source()), Address::from_ipv4(header.destination()));
    quote(packet, ip, kind, header.protocol(), quoted_l3 + header.header_length(), ends)
}

fn parse_icmp_v6(frame: &[u8], ip: &Ip) -> Result<Parsed, Malformed> {
    let Some(kind) = icmp::error_kind_v6(&ip.transport(frame)?) else { return Ok(Parsed::Other) };
    let quoted_l3 = ip.l4 + icmp::HEADER;
    let packet = frame.get(..ip.end).ok_or(Malformed::Truncated)?;
    let header = ipv6::Header(array_at(packet, quoted_l3).ok_or(Malformed::Quote)?);
    let ends = (header.source(), header.destination());
    if header.version() != 6 || ends.0.is_ipv4() || ends.1.is_ipv4() {
        return Err(Malformed::Quote);
    }
    match ipv6::upper(packet, header.next_header(), quoted_l3 + ipv6::HEADER, ip.end) {
        Ok(Upper::Protocol(protocol, quoted_l4)) => quote(packet, ip, kind, protocol, quoted_l4, ends),
        Ok(_) => Ok(Parsed::Other),
        Err(_) => Err(Malformed::Quote),
    }
}

/// The error, now that the quoted packet's transport header is found: `ends` are the quoted addresses.
fn quote(
    packet: &[u8],
    ip: &Ip,
    kind: ErrorKind,
    protocol: u8,
    quoted_l4: usize,
    ends: (Address, Address),
) -> Result<Parsed, Malformed> {
    let protocol = match protocol {
        6 => Protocol::Tcp,
        17 => Protocol::Udp,
        _ => return Ok(Parsed::Other),
    };
    // Every error quotes at least eight bytes behind the IP header (RFC 792, RFC 4443 2.4(c)).
    let [a, b, c, d, ..]: [u8; 8] = array_at(packet, quoted_l4).ok_or(Malformed::Quote)?;
    Ok(Parsed::IcmpError(IcmpError {
        l3: ip.l3,
        l4: ip.l4,
        quoted_l3: ip.l4 + icmp::HEADER,
        quoted_l4,
        end: ip.end,
        quoted: key(ends.0, ends.1, protocol, [a, b, c, d]),
        source: ip.source,
        destination: ip.destination,
        ttl: ip.ttl,
        kind,
    }))
}

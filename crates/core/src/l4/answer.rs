//! Answers made out of the very frame they answer: TCP resets, ICMP errors; and IPv4 fragmentation.
//!
//! All of them keep the frame's VLAN tags, leave its Ethernet addresses to the plane, and leave it to be routed with
//! all its checksums complete.

use crate::flow::{Address, Protocol};
use crate::frame::{BATCH_MAX, Checksum, Egress, Frame};
use crate::wire::bytes::{array_at, array_at_mut, u16_at, u32_at};
use crate::wire::checksum::Sum;
use crate::wire::{Transport, icmp, ipv4, ipv6, tcp};
use arrayvec::ArrayVec;

/// Hops given to what Hairpin sends of its own.
const HOPS: u8 = 64;
/// IPv4 service of ICMP errors: precedence "internetwork control" (RFC 1812, 4.3.2.5).
const NETWORK_CONTROL: u8 = 0xc0;
/// An ICMP error is at most this long, IP header included (RFC 1812, 4.3.2.3).
const NOTICE_V4_MAX: usize = 576;
/// An ICMPv6 error is at most this long, IP header included: the least MTU (RFC 4443, 2.4(c)).
const NOTICE_V6_MAX: usize = 1280;

/// An ICMP error to the sender of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// It is too big for its way out (IPv4: and must not be fragmented).
    TooBig {
        /// Largest IP packet the way out takes, in bytes.
        mtu: u16,
    },
    /// Its hops ran out.
    TimeExceeded,
    /// There is no route to its destination now.
    NoRoute,
    /// The port has no listener.
    PortUnreachable,
    /// It is not let through.
    AdministrativelyProhibited,
}

impl Notice {
    /// Type, code and the four bytes that depend on the type.
    fn header_v4(self) -> (u8, u8, u32) {
        match self {
            Notice::TooBig { mtu } => (icmp::V4_UNREACHABLE, icmp::V4_FRAGMENTATION_NEEDED, u32::from(mtu)),
            Notice::TimeExceeded => (icmp::V4_TIME_EXCEEDED, 0, 0),
            Notice::NoRoute => (icmp::V4_UNREACHABLE, 0, 0),
            Notice::PortUnreachable => (icmp::V4_UNREACHABLE, 3, 0),
            Notice::AdministrativelyProhibited => (icmp::V4_UNREACHABLE, 13, 0),
        }
    }

    /// Type, code and the four bytes that depend on the type, for ICMPv6.
    fn header_v6(self) -> (u8, u8, u32) {
        match self {
            Notice::TooBig { mtu } => (icmp::V6_TOO_BIG, 0, u32::from(mtu)),
            Notice::TimeExceeded => (icmp::V6_TIME_EXCEEDED, 0, 0),
            Notice::NoRoute => (icmp::V6_UNREACHABLE, 0, 0),
            Notice::PortUnreachable => (icmp::V6_UNREACHABLE, 4, 0),
            Notice::AdministrativelyProhibited => (icmp::V6_UNREACHABLE, 1, 0),
        }
    }
}

/// Turns the TCP packet in `frame` into the RST a closed port answers with (RFC 9293, 3.10.7.1): the acknowledged
/// number if there is one, otherwise 0 and an acknowledgement of all the packet says. `false`, and nothing changed, if
/// the packet is no TCP packet or a RST itself.
pub fn reset<F: Frame>(frame: &mut F, at: &Transport) -> bool {
    if at.key.protocol != Protocol::Tcp || at.tcp_flags & tcp::RST != 0 {
        return false;
    }
    let bytes = frame.bytes();
    let numbers = (u32_at(bytes, at.l4 + tcp::SEQUENCE), u32_at(bytes, at.l4 + tcp::ACKNOWLEDGEMENT));
    let (Some(sequence), Some(acknowledgement)) = numbers else { return false };
    let phantoms = u32::from(at.tcp_flags & tcp::SYN != 0) + u32::from(at.tcp_flags & tcp::FIN != 0);
    let length = (at.end.saturating_sub(at.payload) as u32).wrapping_add(phantoms);
    let (sequence, acknowledgement, flags) = match at.tcp_flags & tcp::ACK != 0 {
        true => (acknowledgement, 0, tcp::RST),
        false => (0, sequence.wrapping_add(length), tcp::RST | tcp::ACK),
    };
    let mut segment = [0; tcp::HEADER];
    segment[..2].copy_from_slice(&at.key.destination.port.to_be_bytes());
    segment[2..4].copy_from_slice(&at.key.source.port.to_be_bytes());
    segment[4..8].copy_from_slice(&sequence.to_be_bytes());
    segment[8..12].copy_from_slice(&acknowledgement.to_be_bytes());
    segment[12] = 5 << 4;
    segment[tcp::FLAGS] = flags;
    self::segment(frame, at, &mut segment)
}

/// Turns the packet in `frame` into the TCP `segment`, from its destination back to its source, and fills in the
/// segment's checksum. `false`, and nothing changed, if the frame has no room for it.
pub(crate) fn segment<F: Frame>(frame: &mut F, at: &Transport, segment: &mut [u8]) -> bool {
    let header = IpHeader::new(at.key.destination.address, at.key.source.address, segment.len());
    let (protocol, service) = (Protocol::Tcp as u8, 0);
    let checksum = (header.pseudo(protocol) + Sum::of(segment)).checksum();
    copy(segment, tcp::CHECKSUM, Some(&checksum.to_be_bytes()));
    if !frame.resize(at.l3 + header.length() + segment.len()) {
        return false;
    }
    header.write(frame.bytes_mut(), at.l3, protocol, service);
    copy(frame.bytes_mut(), at.l3 + header.length(), Some(segment));
    settle(frame);
    true
}

/// Turns the packet in `frame` into an ICMP error about it, from `from` to its source. It quotes as much of the packet
/// as RFC 1812 (576 bytes in all) or RFC 4443 (1280) allow, as it stands: the transport checksum of a
/// [`Checksum::Partial`] frame is quoted unfinished, as the kernel does, since no receiver verifies a quoted one.
///
/// `false`, and nothing changed, if `from` is of the other family, if an end of the packet or `from` is not one host's
/// address (RFC 1122, 3.2.2), or if the frame has no room for the answer. The caller limits the rate (RFC 1812,
/// 4.3.2.8).
pub fn notice<F: Frame>(frame: &mut F, at: &Transport, notice: Notice, from: Address) -> bool {
    let (source, destination) = (at.key.source.address, at.key.destination.address);
    let ipv4 = at.key.is_ipv4();
    if from.is_ipv4() != ipv4 || ![from, source, destination].iter().all(is_host) {
        return false;
    }
    let (limit, protocol, service) = match ipv4 {
        true => (NOTICE_V4_MAX, icmp::PROTOCOL_V4, NETWORK_CONTROL),
        false => (NOTICE_V6_MAX, icmp::PROTOCOL_V6, 0),
    };
    let ip_length = if ipv4 { ipv4::HEADER } else { ipv6::HEADER };
    let moved = ip_length + icmp::HEADER;
    if at.end > frame.bytes().len() || at.end <= at.l3 {
        return false;
    }
    let quoted = (at.end - at.l3).min(limit - moved);
    let length = at.l3 + moved + quoted;
    if length > frame.bytes().len() && !frame.resize(length) {
        return false;
    }
    frame.bytes_mut().copy_within(at.l3..at.l3 + quoted, at.l3 + moved);
    frame.resize(length);

    let header = IpHeader::new(from, source, icmp::HEADER + quoted);
    header.write(frame.bytes_mut(), at.l3, protocol, service);
    let l4 = at.l3 + ip_length;
    let (kind, code, rest) = if ipv4 { notice.header_v4() } else { notice.header_v6() };
    let [a, b, c, d] = rest.to_be_bytes();
    if let Some(field) = array_at_mut(frame.bytes_mut(), l4) {
        *field = [kind, code, 0, 0, a, b, c, d];
    }
    let message = Sum::of(frame.bytes().get(l4..length).unwrap_or_default());
    let sum = if ipv4 { message } else { message + header.pseudo(protocol) };
    if let Some(field) = array_at_mut(frame.bytes_mut(), l4 + icmp::CHECKSUM) {
        *field = sum.checksum().to_be_bytes();
    }
    settle(frame);
    true
}

/// Splits the IPv4 packet in `frame` into fragments of at most `mtu` bytes (RFC 791, 3.2). The first stays in `frame`;
/// the others, made in frames from `allocate`, go to `out` in order, all or none of them. A packet that fits is left as
/// it is. Transport checksums cover the whole packet, so an unfinished one is finished first.
///
/// `false`, and nothing changed but an unfinished checksum finished, if the packet may not be fragmented (IPv6, DF set,
/// a super-packet), if it would take more than [`BATCH_MAX`] frames from `allocate`, or if there is no frame for one.
///
/// The identification is the sender's. Under full NAT two clients' may collide at the backend; the transport checksum
/// then catches what is put together wrongly (RFC 6864, 5.3).
pub fn fragment<F: Frame>(
    frame: &mut F,
    at: &Transport,
    mtu: u16,
    mut allocate: impl FnMut() -> Option<F>,
    mut out: impl FnMut(F),
) -> bool {
    let Some(header) = array_at(frame.bytes(), at.l3).map(ipv4::Header) else { return false };
    let whole_header = header.header_length();
    let dont = header.fragment() & ipv4::DONT_FRAGMENT != 0;
    if !at.key.is_ipv4() || dont || frame.meta().gso_size != 0 || at.end > frame.bytes().len() {
        return false;
    }
    let mtu = usize::from(mtu);
    if at.end - at.l3 <= mtu {
        return true;
    }
    let room = |header: usize| mtu.saturating_sub(header) & !7;
    let data = at.l3 + whole_header;
    if room(whole_header) == 0 || data > at.end {
        return false;
    }
    if frame.meta().checksum == Checksum::Partial {
        at.fill_checksum(frame.bytes_mut());
    }
    frame.meta_mut().checksum = Checksum::Complete;

    // The start of every later fragment: the layers below, the header with the options that are copied.
    let (options, options_length) =
        ipv4::copied_options(frame.bytes().get(at.l3 + ipv4::HEADER..data).unwrap_or_default());
    let later = ipv4::HEADER + options_length;
    let mut fragments = ArrayVec::<F, BATCH_MAX>::new();
    let mut from = data + room(whole_header);
    while from < at.end {
        let to = at.end.min(from + room(later));
        let Some(mut fragment) = allocate() else { return false };
        if fragments.is_full() || !fragment.resize(at.l3 + later + to - from) {
            return false;
        }
        let source = frame.bytes();
        let bytes = fragment.bytes_mut();
        copy(bytes, 0, source.get(..at.l3 + ipv4::HEADER));
        copy(bytes, at.l3 + ipv4::HEADER, options.get(..options_length));
        copy(bytes, at.l3 + later, source.get(from..to));
        number(bytes, at.l3, later, from - data, to < at.end);
        *fragment.meta_mut() = *frame.meta();
        settle(&mut fragment);
        fragments.push(fragment);
        from = to;
    }
    if !frame.resize(data + room(whole_header)) {
        return false;
    }
    number(frame.bytes_mut(), at.l3, whole_header, 0, true);
    settle(frame);
    fragments.into_iter().for_each(&mut out);
    true
}

/// Makes the packet at `l3`, which reaches to the end of `bytes`, the fragment whose data starts at `offset`.
fn number(bytes: &mut [u8], l3: usize, header_length: usize, offset: usize, more: bool) {
    let total = bytes.len().saturating_sub(l3);
    let Some(header) = bytes.get_mut(l3..l3 + header_length) else { return };
    let place = (offset / 8) as u16 & ipv4::FRAGMENT_OFFSET;
    let place = if more { place | ipv4::MORE_FRAGMENTS } else { place };
    let reserved = u16_at(header, 6).unwrap_or(0) & 0x8000;
    copy(header, 0, Some(&[0x40 | (header_length / 4) as u8]));
    copy(header, 2, Some(&(total as u16).to_be_bytes()));
    copy(header, 6, Some(&(reserved | place).to_be_bytes()));
    ipv4::fill_checksum(header);
}

/// Copies `from` to `offset`, if it is there and fits.
fn copy(to: &mut [u8], offset: usize, from: Option<&[u8]>) {
    if let Some(from) = from
        && let Some(to) = to.get_mut(offset..offset + from.len())
    {
        to.copy_from_slice(from);
    }
}

fn is_host(address: &Address) -> bool {
    match address.is_ipv4() {
        true => ipv4::is_host(address.ipv4_octets()),
        false => ipv6::is_host(address),
    }
}

/// The frame holds one ordinary, finished packet to be routed.
fn settle<F: Frame>(frame: &mut F) {
    let meta = frame.meta_mut();
    meta.checksum = Checksum::Complete;
    meta.gso_size = 0;
    meta.egress = Egress::Route;
}

/// The IP header of an answer.
struct IpHeader {
    source: Address,
    destination: Address,
    payload: usize,
}

impl IpHeader {
    fn new(source: Address, destination: Address, payload: usize) -> IpHeader {
        IpHeader { source, destination, payload }
    }

    fn length(&self) -> usize {
        if self.source.is_ipv4() { ipv4::HEADER } else { ipv6::HEADER }
    }

    fn pseudo(&self, protocol: u8) -> Sum {
        match self.source.is_ipv4() {
            true => {
                let (source, destination) = (self.source.ipv4_octets(), self.destination.ipv4_octets());
                Sum::pseudo_header(&source, &destination, protocol, self.payload)
            }
            false => Sum::pseudo_header(&self.source.0, &self.destination.0, protocol, self.payload),
        }
    }

    fn write(&self, frame: &mut [u8], l3: usize, protocol: u8, service: u8) {
        if self.source.is_ipv4() {
            let (source, destination) = (self.source.ipv4_octets(), self.destination.ipv4_octets());
            let header = ipv4::header(source, destination, protocol, service, HOPS, self.payload);
            copy(frame, l3, Some(&header));
        } else {
            let header = ipv6::header(&self.source, &self.destination, protocol, HOPS, self.payload);
            copy(frame, l3, Some(&header));
        }
    }
}

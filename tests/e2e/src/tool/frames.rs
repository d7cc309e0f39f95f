//! Frames to send: built from scratch, apart from `hairpin-core` on purpose, so that tests do not check code by itself.

use std::net::{IpAddr, SocketAddr};

/// TCP flags (RFC 9293, 3.1).
pub const SYN: u8 = 0x02;
/// TCP flags.
pub const RST: u8 = 0x04;
/// TCP flags.
pub const ACK: u8 = 0x10;

const TCP: u8 = 6;
const UDP: u8 = 17;

/// The Ethernet ends of a link: from the sender's card to the receiver's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkEnds {
    /// The receiver's address.
    pub to: [u8; 6],
    /// The sender's address.
    pub from: [u8; 6],
}

/// A UDP datagram in an Ethernet frame, checksums complete. Source and destination must be of one family.
pub fn udp(link: LinkEnds, source: SocketAddr, destination: SocketAddr, payload: &[u8]) -> Vec<u8> {
    let mut segment = Vec::with_capacity(8 + payload.len());
    segment.extend(source.port().to_be_bytes());
    segment.extend(destination.port().to_be_bytes());
    segment.extend((8 + payload.len() as u16).to_be_bytes());
    segment.extend([0, 0]);
    segment.extend(payload);
    // RFC 768: a sum of zero is sent as all ones.
    let sum = match transport_checksum(source.ip(), destination.ip(), UDP, &segment) {
        0 => 0xffff,
        sum => sum,
    };
    segment[6..8].copy_from_slice(&sum.to_be_bytes());
    ip(link, source.ip(), destination.ip(), UDP, &segment)
}

/// A TCP segment in an Ethernet frame, checksums complete.
pub fn tcp(
    link: LinkEnds,
    source: SocketAddr,
    destination: SocketAddr,
    flags: u8,
    numbers: (u32, u32),
    payload: &[u8],
) -> Vec<u8> {
    let mut segment = Vec::with_capacity(20 + payload.len());
    segment.extend(source.port().to_be_bytes());
    segment.extend(destination.port().to_be_bytes());
    segment.extend(numbers.0.to_be_bytes());
    segment.extend(numbers.1.to_be_bytes());
    segment.extend([0x50, flags]);
    segment.extend(8192_u16.to_be_bytes());
    segment.extend([0; 4]);
    segment.extend(payload);
    let sum = transport_checksum(source.ip(), destination.ip(), TCP, &segment);
    segment[16..18].copy_from_slice(&sum.to_be_bytes());
    ip(link, source.ip(), destination.ip(), TCP, &segment)
}

fn ip(link: LinkEnds, source: IpAddr, destination: IpAddr, protocol: u8, segment: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(54 + segment.len());
    frame.extend(link.to);
    frame.extend(link.from);
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            frame.extend([0x08, 0x00, 0x45, 0]);
            frame.extend((20 + segment.len() as u16).to_be_bytes());
            frame.extend([0, 0, 0x40, 0, 64, protocol, 0, 0]);
            frame.extend(source.octets());
            frame.extend(destination.octets());
            let sum = finish(add(0, &frame[14..34]));
            frame[24..26].copy_from_slice(&sum.to_be_bytes());
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            frame.extend((segment.len() as u16).to_be_bytes());
            frame.extend([protocol, 64]);
            frame.extend(source.octets());
            frame.extend(destination.octets());
        }
        _ => unreachable!("both ends of a flow are of one family"),
    }
    frame.extend(segment);
    frame
}

fn transport_checksum(source: IpAddr, destination: IpAddr, protocol: u8, segment: &[u8]) -> u16 {
    let mut sum = u32::from(protocol) + segment.len() as u32;
    for address in [source, destination] {
        sum = match address {
            IpAddr::V4(v4) => add(sum, &v4.octets()),
            IpAddr::V6(v6) => add(sum, &v6.octets()),
        };
    }
    finish(add(sum, segment))
}

fn add(sum: u32, bytes: &[u8]) -> u32 {
    bytes.chunks(2).fold(sum, |sum, pair| sum + u32::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)])))
}

fn finish(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// Gives a TCP or UDP frame without VLAN tags and IPv4 options another source port and keeps its checksum right
/// (RFC 1624). Other frames, and what is too short, stay as they are or get other bytes there: they are broken anyway.
pub fn next_source_port(frame: &mut [u8]) {
    let (l4, protocol) = match frame.get(12..14) {
        Some([0x08, 0x00]) => (34, frame.get(23).copied()),
        Some([0x86, 0xdd]) => (54, frame.get(20).copied()),
        _ => return,
    };
    let checksum = l4 + if protocol == Some(17) { 6 } else { 16 };
    let word = |frame: &[u8], at: usize| frame.get(at..at + 2).map(|pair| u16::from_be_bytes([pair[0], pair[1]]));
    let (Some(old), Some(sum)) = (word(frame, l4), word(frame, checksum)) else { return };
    let new = old.wrapping_add(1);
    let total = u32::from(!sum) + u32::from(!old) + u32::from(new);
    let total = (total & 0xffff) + (total >> 16);
    let updated = !(((total & 0xffff) + (total >> 16)) as u16);
    frame[l4..l4 + 2].copy_from_slice(&new.to_be_bytes());
    frame[checksum..checksum + 2].copy_from_slice(&updated.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINK: LinkEnds = LinkEnds { to: [2, 0, 0, 0, 0, 1], from: [2, 0, 0, 0, 0, 2] };

    #[test]
    fn a_fresh_source_port_keeps_the_checksum_right() {
        for (from, to) in [("10.0.0.2:65535", "10.0.100.1:7"), ("[fd00::2]:4096", "[fd00:100::1]:80")] {
            let ends: (SocketAddr, SocketAddr) = (from.parse().unwrap(), to.parse().unwrap());
            let l4 = if ends.0.is_ipv4() { 34 } else { 54 };
            for (protocol, mut frame) in
                [(UDP, udp(LINK, ends.0, ends.1, b"odd")), (TCP, tcp(LINK, ends.0, ends.1, SYN, (1, 2), b""))]
            {
                next_source_port(&mut frame);
                let port = u16::from_be_bytes([frame[l4], frame[l4 + 1]]);
                assert_eq!(port, ends.0.port().wrapping_add(1));
                assert_eq!(transport_checksum(ends.0.ip(), ends.1.ip(), protocol, &frame[l4..]), 0);
            }
        }
        for length in 0..60 {
            next_source_port(&mut vec![8; length]);
        }
    }

    #[test]
    fn header_checksum_of_rfc_1071() {
        // The example of RFC 1071, section 3: 0001 f203 f4f5 f6f7 sums to ddf2.
        assert_eq!(!finish(add(0, &[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7])), 0xddf2);
    }

    #[test]
    fn a_frame_sums_to_zero() {
        let ends = ("10.0.0.2:1000".parse().unwrap(), "10.0.100.1:7".parse().unwrap());
        let frame = udp(LINK, ends.0, ends.1, b"odd");
        assert_eq!(finish(add(0, &frame[14..34])), 0);
        assert_eq!(transport_checksum(ends.0.ip(), ends.1.ip(), UDP, &frame[34..]), 0);
        let ends = ("[fd00::2]:1000".parse().unwrap(), "[fd00:100::1]:80".parse().unwrap());
        let frame = tcp(LINK, ends.0, ends.1, SYN, (1, 2), b"");
        assert_eq!(frame.len(), 14 + 40 + 20);
        assert_eq!(transport_checksum(ends.0.ip(), ends.1.ip(), TCP, &frame[54..]), 0);
    }
}

//! TCP super-packets are cut into segments before they are sent.
//!
//! Ports receive none, but a splice makes some: a response's head grows in its frame, or the client takes smaller
//! segments than the backend sends. They are at most as long as an mbuf, so it is a matter of two or three segments, and
//! of software: no device is asked.

use hairpin_core::flow::Protocol;
use hairpin_core::frame::{Checksum, Frame};
use hairpin_core::wire::checksum::Sum;
use hairpin_core::wire::{self, Parsed, Transport, tcp};

/// Offsets in an IPv4 header: total length, identification, header checksum.
const TOTAL_LENGTH: usize = 2;
const IDENTIFICATION: usize = 4;
const HEADER_CHECKSUM: usize = 10;
/// Offsets in an IPv6 header: payload length, and its own length.
const PAYLOAD_LENGTH: usize = 4;
const IPV6_HEADER: usize = 40;
/// The flag that the first segment alone carries (RFC 3168, 6.1.2).
const CWR: u8 = 0x80;

/// A super-packet that is to be cut.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    at: Transport,
    /// Bytes of payload of a segment, at least 1.
    size: usize,
}

impl Cut {
    /// How a frame is to be cut, if it is a super-packet. What is no TCP packet never is, nor what fits a segment.
    pub(crate) fn of<F: Frame>(frame: &F) -> Option<Cut> {
        let size = usize::from(frame.meta().gso_size);
        if size == 0 {
            return None;
        }
        let Ok(Parsed::Transport(at)) = wire::parse(frame.bytes()) else { return None };
        let cut = at.key.protocol == Protocol::Tcp && at.end - at.payload > size;
        cut.then_some(Cut { at, size })
    }

    /// How many segments it makes.
    pub(crate) fn segments(&self) -> usize {
        (self.at.end - self.at.payload).div_ceil(self.size)
    }

    /// Makes `to` the segment of this number, if it has room for it.
    pub(crate) fn write<F: Frame>(&self, frame: &F, number: usize, to: &mut F) -> bool {
        let at = &self.at;
        let from = at.payload + number * self.size;
        let end = at.end.min(from + self.size);
        let source = frame.bytes();
        if from >= end || !to.resize(at.payload + (end - from)) {
            return false;
        }
        let bytes = to.bytes_mut();
        bytes[..at.payload].copy_from_slice(&source[..at.payload]);
        bytes[at.payload..].copy_from_slice(&source[from..end]);
        let flags = &mut bytes[at.l4 + tcp::FLAGS];
        if number > 0 {
            *flags &= !CWR;
        }
        if end < at.end {
            *flags &= !(tcp::FIN | tcp::PSH);
        }
        self.settle(bytes, number);
        *to.meta_mut() = *frame.meta();
        (to.meta_mut().gso_size, to.meta_mut().checksum) = (0, Checksum::Complete);
        true
    }

    /// Takes the first segments out of the super-packet: what is left is one still, or a segment.
    pub(crate) fn take<F: Frame>(&self, frame: &mut F, segments: usize) {
        let at = &self.at;
        let from = (at.payload + segments * self.size).min(at.end);
        let bytes = frame.bytes_mut();
        bytes.copy_within(from..at.end, at.payload);
        if segments > 0 {
            bytes[at.l4 + tcp::FLAGS] &= !CWR;
        }
        frame.resize(at.payload + (at.end - from));
        self.settle(frame.bytes_mut(), segments);
        frame.meta_mut().checksum = Checksum::Complete;
    }

    /// Lengths, numbers and checksums of a packet that is a part from this segment on.
    fn settle(&self, bytes: &mut [u8], number: usize) {
        let at = Transport { end: bytes.len(), ..self.at };
        let word = |bytes: &[u8], at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        let mut put = |at: usize, value: u16| bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
        if at.key.is_ipv4() {
            put(at.l3 + TOTAL_LENGTH, (at.end - at.l3) as u16);
            let identification = word(bytes, at.l3 + IDENTIFICATION).wrapping_add(number as u16);
            bytes[at.l3 + IDENTIFICATION..][..2].copy_from_slice(&identification.to_be_bytes());
            bytes[at.l3 + HEADER_CHECKSUM..][..2].fill(0);
            let checksum = Sum::of(&bytes[at.l3..at.l4]).checksum();
            bytes[at.l3 + HEADER_CHECKSUM..][..2].copy_from_slice(&checksum.to_be_bytes());
        } else {
            put(at.l3 + PAYLOAD_LENGTH, (at.end - at.l3 - IPV6_HEADER) as u16);
        }
        let field = at.l4 + tcp::SEQUENCE..at.l4 + tcp::SEQUENCE + 4;
        let mut sequence = [0; 4];
        sequence.copy_from_slice(&bytes[field.clone()]);
        let sequence = u32::from_be_bytes(sequence).wrapping_add((number * self.size) as u32);
        bytes[field].copy_from_slice(&sequence.to_be_bytes());
        at.fill_checksum(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hairpin_core::frame::VecFrame;

    /// A TCP packet with `payload` bytes, its checksums wrong or missing, for segments of `size`.
    fn packet(ipv6: bool, payload: usize, size: u16, flags: u8) -> VecFrame {
        let mut bytes = vec![2; 12];
        let segment = 32 + payload;
        if ipv6 {
            bytes.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            bytes.extend((segment as u16).to_be_bytes());
            bytes.extend([[6, 64].as_slice(), &[0x20; 16], &[0x21; 16]].concat());
        } else {
            bytes.extend([8, 0]);
            let mut header = [0x45, 0, 0, 0, 0xff, 0xff, 0x40, 0, 64, 6, 0, 0, 10, 1, 0, 2, 10, 2, 0, 2];
            header[2..4].copy_from_slice(&((20 + segment) as u16).to_be_bytes());
            let checksum = Sum::of(&header).checksum();
            header[10..12].copy_from_slice(&checksum.to_be_bytes());
            bytes.extend(header);
        }
        bytes.extend([0, 80, 4, 0, 0xff, 0xff, 0xff, 0xfe, 0, 0, 0, 2, 8 << 4, flags, 1, 0, 0, 0, 0, 0]);
        bytes.extend([1; 12]);
        bytes.extend((0..payload).map(|i| (i % 251) as u8));
        let mut frame = VecFrame::new(&bytes);
        (frame.meta.gso_size, frame.meta.checksum, frame.meta.port) = (size, Checksum::Partial, 3);
        frame
    }

    /// A packet in good order, with checksums complete: its sequence number, flags, identification and payload.
    fn read(frame: &VecFrame, ipv6: bool) -> (u32, u8, u16, Vec<u8>) {
        let Ok(Parsed::Transport(at)) = wire::parse(&frame.data) else { panic!("no packet: {frame:?}") };
        assert_eq!((at.end, frame.meta.checksum, frame.meta.port), (frame.data.len(), Checksum::Complete, 3));
        let field = u16::from_be_bytes([frame.data[at.l4 + 16], frame.data[at.l4 + 17]]);
        assert_eq!(at.transport_checksum(&frame.data), Some(field), "the transport checksum");
        assert_eq!(frame.data[at.l4 + 20..at.payload], [1; 12], "options are every segment's");
        let sequence = u32::from_be_bytes(frame.data[at.l4 + 4..at.l4 + 8].try_into().unwrap());
        let identification = if ipv6 { 0 } else { u16::from_be_bytes([frame.data[18], frame.data[19]]) };
        (sequence, at.tcp_flags, identification, frame.data[at.payload..].to_vec())
    }

    #[test]
    fn segments_are_what_one_packet_was() {
        let all = tcp::FIN | tcp::PSH | tcp::ACK | CWR;
        for (ipv6, payload, size, count) in [(false, 3000, 1448, 3), (true, 2896, 1448, 2), (false, 100, 1, 100)] {
            let frame = packet(ipv6, payload, size, all);
            let cut = Cut::of(&frame).expect("a super-packet");
            assert_eq!(cut.segments(), count);
            let mut whole = Vec::new();
            for number in 0..count {
                let mut segment = VecFrame::default();
                assert!(cut.write(&frame, number, &mut segment));
                let (sequence, flags, identification, bytes) = read(&segment, ipv6);
                assert_eq!(sequence, 0xffff_fffe_u32.wrapping_add(whole.len() as u32));
                assert_eq!(flags & CWR != 0, number == 0);
                assert_eq!(flags & (tcp::FIN | tcp::PSH) != 0, number == count - 1);
                assert_eq!(identification, if ipv6 { 0 } else { 0xffff_u16.wrapping_add(number as u16) });
                assert_eq!(segment.meta.gso_size, 0);
                whole.extend(bytes);
            }
            assert_eq!(whole, (0..payload).map(|i| (i % 251) as u8).collect::<Vec<_>>());
            assert!(!cut.write(&frame, count, &mut VecFrame::default()), "there is no more");
        }
    }

    #[test]
    fn unsent_segments_stay_one_packet() {
        for (ipv6, taken) in [(false, 1), (true, 2), (false, 0)] {
            let mut frame = packet(ipv6, 3000, 1000, tcp::FIN | tcp::ACK | CWR);
            let cut = Cut::of(&frame).expect("a super-packet");
            cut.take(&mut frame, taken);
            let (sequence, flags, _, bytes) = read(&frame, ipv6);
            assert_eq!(sequence, 0xffff_fffe_u32.wrapping_add(1000 * taken as u32));
            assert_eq!((flags & tcp::FIN != 0, flags & CWR != 0), (true, taken == 0));
            assert_eq!(bytes, (1000 * taken..3000).map(|i| (i % 251) as u8).collect::<Vec<_>>());
            assert_eq!(Cut::of(&frame).map_or(1, |cut| cut.segments()), 3 - taken);
        }
    }

    #[test]
    fn what_fits_a_segment_is_none() {
        for (payload, size) in [(1448, 1448), (100, 1448), (3000, 0)] {
            assert!(Cut::of(&packet(false, payload, size, tcp::ACK)).is_none());
        }
    }
}

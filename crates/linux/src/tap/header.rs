//! The header in front of every frame that is read from or written to a TAP device: which checksum is still to be
//! filled in and how a super-packet is to be cut (`struct virtio_net_hdr` of `linux/virtio_net.h`; virtio 1.3, 5.1.6).

use hairpin_core::flow::Protocol;
use hairpin_core::frame::{Checksum, Meta};
use hairpin_core::wire::{self, Parsed, Transport};

/// Bytes of the header.
pub(crate) const BYTES: usize = 10;

const NEEDS_CSUM: u8 = 1;
const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
const GSO_UDP_L4: u8 = 5;
/// Beside a TCP type: the first segment alone carries CWR (RFC 3168).
const GSO_ECN: u8 = 0x80;

/// Bytes the kernel puts in a frame's linear part when nothing better is known: Ethernet, two VLAN tags, and the
/// longest IPv4 (60) and TCP (60) headers.
const HEADERS_MAX: u16 = 14 + 8 + 60 + 60;

/// The header of a TCP super-packet whose own headers are as `at` says, of segments with `size` bytes of payload; its
/// checksum is partial.
pub(super) fn of_segments(at: &Transport, size: u16) -> [u8; BYTES] {
    let mut header = [0; BYTES];
    header[0] = NEEDS_CSUM;
    header[1] = if at.key.is_ipv4() { GSO_TCPV4 } else { GSO_TCPV6 };
    let words = [at.payload as u16, size, at.l4 as u16, (at.checksum_offset() - at.l4) as u16];
    for (to, word) in header[2..].chunks_exact_mut(2).zip(words) {
        to.copy_from_slice(&word.to_ne_bytes());
    }
    header
}

/// The fields of a frame's header that [`Meta`] has no room for; goes out again with the frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OffloadHeader {
    /// Kind of super-packet, `GSO_*`; [`GSO_NONE`] if it is none.
    gso_type: u8,
    /// The start of the checksummed part, from the Ethernet header on; unknown if `checksum_offset` is 0.
    checksum_start: u16,
    /// The offset of the checksum in that part.
    checksum_offset: u16,
}

impl OffloadHeader {
    /// Reads a header that stood in front of a frame of `length` bytes and notes in `meta` what it says. `None`: it
    /// makes no sense for this frame.
    pub(crate) fn decode(header: [u8; BYTES], length: usize, meta: &mut Meta) -> Option<OffloadHeader> {
        let [flags, gso_type, rest @ ..] = header;
        let word = |i: usize| u16::from_ne_bytes([rest[2 * i], rest[2 * i + 1]]);
        let (gso_size, checksum_start, checksum_offset) = (word(1), word(2), word(3));
        let mut offload = OffloadHeader::default();
        if flags & NEEDS_CSUM != 0 {
            offload.checksum_start = checksum_start;
            offload.checksum_offset = checksum_offset;
            if !offload.checksum_fits(length) {
                return None;
            }
            meta.checksum = Checksum::Partial;
        }
        match gso_type & !GSO_ECN {
            GSO_NONE => {}
            GSO_TCPV4 | GSO_TCPV6 | GSO_UDP_L4 if gso_size != 0 => {
                offload.gso_type = gso_type;
                meta.gso_size = gso_size;
            }
            _ => return None,
        }
        Some(offload)
    }

    /// The header for `frame` as `meta` now describes it. Of TCP packets the frame's own headers say where the checksum
    /// goes and how segments are cut: a worker may have made the frame itself, made a super-packet of an ordinary one, or
    /// put another packet in the place of the one that came. Of all others that is what it said when they came, because it
    /// may be about a packet inside the packet. Segments as long as the payload are none. `None`: frame and description
    /// contradict each other - a checksum to be filled in at no known place, segments of what cannot have any.
    pub(crate) fn encode(&self, frame: &[u8], meta: &Meta) -> Option<[u8; BYTES]> {
        let mut header = [0; BYTES];
        let partial = meta.checksum == Checksum::Partial;
        let (mut offload, mut gso_size) = (*self, meta.gso_size);
        if (partial || gso_size != 0)
            && let Some((own, payload)) = OffloadHeader::of(frame)
        {
            if own.gso_type != GSO_UDP_L4 {
                // That the first segment alone carries CWR is not to be seen in a frame.
                let ecn = if self.is_tcp() { self.gso_type & GSO_ECN } else { 0 };
                offload = OffloadHeader { gso_type: own.gso_type | ecn, ..own };
                gso_size = if payload > usize::from(gso_size) { gso_size } else { 0 };
            } else if !self.checksum_fits(frame.len()) {
                offload = OffloadHeader { gso_type: self.gso_type, ..own };
            }
        }
        if partial && !offload.checksum_fits(frame.len()) || gso_size != 0 && offload.gso_type == GSO_NONE {
            return None;
        }
        let mut put = |at: usize, value: u16| header[at..at + 2].copy_from_slice(&value.to_ne_bytes());
        put(2, offload.headers(frame, partial, gso_size != 0));
        put(4, gso_size);
        if partial {
            put(6, offload.checksum_start);
            put(8, offload.checksum_offset);
            header[0] = NEEDS_CSUM;
        }
        if gso_size != 0 {
            header[1] = offload.gso_type;
        }
        Some(header)
    }

    /// The size of a super-packet's segments by the frame's own headers, and bytes of its payload.
    fn of(frame: &[u8]) -> Option<(OffloadHeader, usize)> {
        let Ok(Parsed::Transport(at)) = wire::parse(frame) else { return None };
        let gso_type = match (at.key.protocol, at.key.is_ipv4()) {
            (Protocol::Tcp, true) => GSO_TCPV4,
            (Protocol::Tcp, false) => GSO_TCPV6,
            (Protocol::Udp, _) => GSO_UDP_L4,
        };
        let checksum_start = u16::try_from(at.l4).ok()?;
        let checksum_offset = u16::try_from(at.checksum_offset() - at.l4).ok()?;
        Some((OffloadHeader { gso_type, checksum_start, checksum_offset }, at.end - at.payload))
    }

    fn is_tcp(&self) -> bool {
        matches!(self.gso_type & !GSO_ECN, GSO_TCPV4 | GSO_TCPV6)
    }

    /// Drops what does not fit a frame cut to `length` bytes.
    pub(crate) fn truncate(&mut self, length: usize) {
        if !self.checksum_fits(length) {
            *self = OffloadHeader::default();
        }
    }

    /// Whether the place of the checksum is known and lies inside a frame of `length` bytes, behind its Ethernet
    /// header.
    fn checksum_fits(&self, length: usize) -> bool {
        let end = usize::from(self.checksum_start) + usize::from(self.checksum_offset) + 2;
        self.checksum_start >= 14 && self.checksum_offset != 0 && end <= length
    }

    /// `hdr_len`: bytes the kernel makes the linear part, where BPF reads them without pulling. For super-packets it
    /// is exactly the headers, otherwise as much as headers can be.
    fn headers(&self, frame: &[u8], partial: bool, segments: bool) -> u16 {
        let most = u16::try_from(frame.len()).unwrap_or(u16::MAX).min(HEADERS_MAX);
        if !(partial && segments) {
            return most;
        }
        let transport = match self.gso_type {
            GSO_UDP_L4 => 8,
            // The data offset is in the upper four bits of byte 12, in 32-bit words.
            _ => frame.get(usize::from(self.checksum_start) + 12).map_or(20, |byte| u16::from(byte >> 4) * 4),
        };
        self.checksum_start.saturating_add(transport.max(8)).min(u16::try_from(frame.len()).unwrap_or(u16::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hairpin_core::wire::checksum::Sum;
    use proptest::prelude::*;

    fn header(flags: u8, gso_type: u8, words: [u16; 4]) -> [u8; BYTES] {
        let mut header = [0; BYTES];
        (header[0], header[1]) = (flags, gso_type);
        for (to, word) in header[2..].chunks_mut(2).zip(words) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        header
    }

    #[test]
    fn a_super_packet_goes_out_as_it_came() {
        let mut frame = vec![0; 4000];
        frame[34 + 12] = 8 << 4;
        let mut meta = Meta::default();
        let came = header(NEEDS_CSUM, GSO_TCPV4 | GSO_ECN, [66, 1448, 34, 16]);
        let offload = OffloadHeader::decode(came, frame.len(), &mut meta).unwrap();
        assert_eq!((meta.gso_size, meta.checksum), (1448, Checksum::Partial));
        assert_eq!(offload.encode(&frame, &meta), Some(came));
    }

    #[test]
    fn virtio_header_length_is_computed() {
        let mut frame = vec![0; 4000];
        frame[38 + 12] = 5 << 4;
        let mut meta = Meta::default();
        let came = header(NEEDS_CSUM, GSO_TCPV4, [256, 1400, 38, 16]);
        let offload = OffloadHeader::decode(came, frame.len(), &mut meta).unwrap();
        assert_eq!(offload.encode(&frame, &meta).unwrap()[2..4], 58u16.to_ne_bytes());
        let came = header(NEEDS_CSUM, GSO_UDP_L4, [256, 1400, 54, 6]);
        let offload = OffloadHeader::decode(came, frame.len(), &mut meta).unwrap();
        assert_eq!(offload.encode(&frame, &meta).unwrap()[2..4], 62u16.to_ne_bytes());
    }

    #[test]
    fn a_replaced_frame_loses_its_offloads() {
        let mut meta = Meta::default();
        let came = header(NEEDS_CSUM, GSO_TCPV6, [74, 1428, 54, 16]);
        let mut offload = OffloadHeader::decode(came, 9000, &mut meta).unwrap();
        (meta.checksum, meta.gso_size) = (Checksum::Complete, 0);
        assert_eq!(offload.encode(&[0; 90], &meta), Some(header(0, 0, [90, 0, 0, 0])));
        // A worker that forgets to say so sends nothing half true.
        offload.truncate(60);
        meta.checksum = Checksum::Partial;
        assert_eq!(offload.encode(&[0; 60], &meta), None);
        (meta.checksum, meta.gso_size) = (Checksum::Complete, 1428);
        assert_eq!(offload.encode(&[0; 60], &meta), None);
    }

    #[test]
    fn headers_that_make_no_sense_are_refused() {
        let refused = |header, length| OffloadHeader::decode(header, length, &mut Meta::default()).is_none();
        assert!(refused(header(NEEDS_CSUM, 0, [0, 0, 34, 16]), 51), "checksum past the end");
        assert!(refused(header(NEEDS_CSUM, 0, [0, 0, 0xffff, 0xffff]), 65_535), "checksum far past the end");
        assert!(refused(header(NEEDS_CSUM, 0, [0, 0, 6, 4]), 100), "checksum in the Ethernet header");
        assert!(refused(header(0, GSO_TCPV4, [54, 0, 0, 0]), 4000), "segments of no size");
        assert!(refused(header(0, 3, [54, 100, 0, 0]), 4000), "fragmentation offload, never asked for");
        assert!(refused(header(0, 0x45, [54, 100, 0, 0]), 4000), "a kind that is not known");
        assert!(!refused(header(2, 0, [0, 0, 0xffff, 0xffff]), 60), "DATA_VALID says nothing about offsets");
    }

    /// A TCP packet of `payload` bytes behind `tags` VLAN tags, with options of `words` words, and where its TCP header is.
    fn tcp(ipv4: bool, tags: usize, words: usize, payload: usize) -> (Vec<u8>, usize) {
        let mut frame = vec![2; 12];
        for _ in 0..tags {
            frame.extend([0x81, 0, 0, 7]);
        }
        let length = (20 + 4 * words + payload) as u16;
        if ipv4 {
            let mut ip = [0x45, 0, 0, 0, 0, 1, 0x40, 0, 64, 6, 0, 0, 10, 1, 0, 2, 10, 2, 0, 2];
            ip[2..4].copy_from_slice(&(20 + length).to_be_bytes());
            let checksum = Sum::of(&ip).checksum();
            ip[10..12].copy_from_slice(&checksum.to_be_bytes());
            frame.extend([[8, 0].as_slice(), &ip].concat());
        } else {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            frame.extend(length.to_be_bytes());
            frame.extend([[6, 64].as_slice(), &[0x20; 16], &[0x21; 16]].concat());
        }
        let start = frame.len();
        frame.extend([0, 80, 4, 0, 0, 0, 0, 1, 0, 0, 0, 2, (5 + words as u8) << 4, 0x10, 1, 0, 0, 0, 0, 0]);
        frame.extend(vec![1; 4 * words]);
        frame.extend(vec![9; payload]);
        (frame, start)
    }

    fn described(checksum: Checksum, gso_size: u16) -> Meta {
        Meta { checksum, gso_size, ..Meta::default() }
    }

    #[test]
    fn changed_frame_gets_new_virtio_header() {
        // It came as a super-packet over IPv6 with a tag, and the worker wrote another over it.
        let mut meta = Meta::default();
        let came = header(NEEDS_CSUM, GSO_TCPV6 | GSO_ECN, [78, 1428, 58, 16]);
        let offload = OffloadHeader::decode(came, 9000, &mut meta).unwrap();
        let (frame, start) = tcp(true, 0, 3, 5000);
        let out = offload.encode(&frame, &described(Checksum::Partial, 1448)).unwrap();
        let headers = start as u16 + 32;
        assert_eq!(out, header(NEEDS_CSUM, GSO_TCPV4 | GSO_ECN, [headers, 1448, start as u16, 16]));
    }

    #[test]
    fn what_fits_one_segment_is_no_super_packet() {
        for (payload, gso_size) in [(1449, 1448), (1448, 0), (1, 0), (0, 0)] {
            let (frame, start) = tcp(true, 0, 3, payload);
            let out = OffloadHeader::default().encode(&frame, &described(Checksum::Partial, 1448)).unwrap();
            assert_eq!(out[4..6], u16::to_ne_bytes(gso_size), "{payload}");
            assert_eq!((out[0], out[1]), (NEEDS_CSUM, if gso_size == 0 { GSO_NONE } else { GSO_TCPV4 }));
            assert_eq!(out[6..8], u16::to_ne_bytes(start as u16));
        }
    }

    #[test]
    fn udp_datagram_is_not_turned_into_segments() {
        let (mut frame, start) = tcp(true, 0, 0, 200);
        frame[14 + 9] = 17;
        frame[24..26].fill(0);
        let checksum = Sum::of(&frame[14..34]).checksum();
        frame[24..26].copy_from_slice(&checksum.to_be_bytes());
        frame[start + 4..start + 6].copy_from_slice(&220u16.to_be_bytes());
        assert!(matches!(wire::parse(&frame), Ok(Parsed::Transport(_))));
        let mut meta = Meta::default();
        let came = header(NEEDS_CSUM, GSO_NONE, [142, 0, 100, 16]);
        let offload = OffloadHeader::decode(came, frame.len(), &mut meta).unwrap();
        assert_eq!(offload.encode(&frame, &meta), Some(came));
        assert_eq!(OffloadHeader::default().encode(&frame, &meta).unwrap()[6..8], u16::to_ne_bytes(start as u16));
        meta.gso_size = 100;
        assert_eq!(OffloadHeader::default().encode(&frame, &meta), None, "datagrams are not ours to make many of");
    }

    proptest! {
        #[test]
        fn any_header_on_any_frame_is_refused_or_encodable(
            bytes: [u8; BYTES],
            frame in prop::collection::vec(any::<u8>(), 14..300),
            cut in 14usize..300,
        ) {
            let mut meta = Meta::default();
            if let Some(mut offload) = OffloadHeader::decode(bytes, frame.len(), &mut meta) {
                let out = offload.encode(&frame, &meta).unwrap();
                let headers = u16::from_ne_bytes([out[2], out[3]]);
                prop_assert!(usize::from(headers) <= frame.len());
                let mut again = Meta::default();
                prop_assert_eq!(OffloadHeader::decode(out, frame.len(), &mut again), Some(offload));
                prop_assert_eq!((again.gso_size, again.checksum), (meta.gso_size, meta.checksum));
                let cut = cut.min(frame.len());
                offload.truncate(cut);
                if let Some(out) = offload.encode(&frame[..cut], &meta) {
                    prop_assert!(usize::from(u16::from_ne_bytes([out[2], out[3]])) <= cut);
                }
            }
        }

        #[test]
        fn own_frames_allocate_only_headers(
            (ipv4, tags, words) in (any::<bool>(), 0usize..=2, 0usize..=10),
            (payload, gso_size) in (0usize..4000, 0u16..2000),
            (partial, padding) in (any::<bool>(), 0usize..10),
            known: [u8; BYTES],
        ) {
            let (mut frame, start) = tcp(ipv4, tags, words, payload);
            frame.extend(vec![0; padding]);
            let meta = described(if partial { Checksum::Partial } else { Checksum::Complete }, gso_size);
            // Whatever is known from another packet makes no difference, ECN aside.
            let offload = OffloadHeader::decode(known, 65_535, &mut Meta::default()).unwrap_or_default();
            let out = offload.encode(&frame, &meta).unwrap();
            let mut again = Meta::default();
            prop_assert!(OffloadHeader::decode(out, frame.len(), &mut again).is_some());
            let segments = usize::from(gso_size) < payload && gso_size != 0;
            prop_assert_eq!(again.gso_size, if segments { gso_size } else { 0 });
            prop_assert_eq!(again.checksum, meta.checksum);
            let word = |at: usize| usize::from(u16::from_ne_bytes([out[at], out[at + 1]]));
            if partial {
                prop_assert_eq!((word(6), word(8)), (start, 16));
            }
            if segments {
                prop_assert_eq!(out[1] & !GSO_ECN, if ipv4 { GSO_TCPV4 } else { GSO_TCPV6 });
            }
            if segments && partial {
                prop_assert_eq!(word(2), start + 20 + 4 * words);
            }
            prop_assert!(word(2) <= frame.len());
        }
    }
}

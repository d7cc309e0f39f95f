//! Segments that are written together arrive as if each had been written by itself.

use crate::device;
use crate::wire::{Link, Packet, Vnet, in_namespace};
use hairpin_core::frame::{Batch, Checksum, Egress, Frame, FrameIo};
use hairpin_core::wire::checksum::Sum;
use hairpin_linux::tap::{TapFrame, TapIo};

const ACK: u8 = 0x10;
const PSH: u8 = 8;

/// A segment with everything finished, as it comes by a wire: `number` counts bytes and, for its identification, packets.
fn segment(ipv6: bool, number: u32, sequence: u32, flags: u8, payload: usize) -> Vec<u8> {
    let mut bytes = if ipv6 { Packet::tcp6(payload) } else { Packet::tcp4(payload) }.bytes;
    let l4 = if ipv6 { 54 } else { 34 };
    if !ipv6 {
        bytes[18..20].copy_from_slice(&(number as u16).to_be_bytes());
        bytes[20] = 0x40;
    }
    bytes[l4 + 4..l4 + 8].copy_from_slice(&sequence.to_be_bytes());
    bytes[l4 + 13] = flags;
    for (place, byte) in bytes[l4 + 20..].iter_mut().enumerate() {
        *byte = (sequence as usize + place * 13) as u8;
    }
    finish(&mut bytes);
    bytes
}

/// Computes the checksums.
fn finish(bytes: &mut [u8]) {
    let ipv6 = bytes[12] == 0x86;
    let l4 = if ipv6 { 54 } else { 34 };
    if !ipv6 {
        bytes[24..26].fill(0);
        let sum = Sum::of(&bytes[14..34]).checksum();
        bytes[24..26].copy_from_slice(&sum.to_be_bytes());
    }
    bytes[l4 + 16..l4 + 18].fill(0);
    let (source, destination) = if ipv6 { (22..38, 38..54) } else { (26..30, 30..34) };
    let pseudo = Sum::pseudo_header(&bytes[source], &bytes[destination], 6, bytes.len() - l4);
    let sum = (pseudo + Sum::of(&bytes[l4..])).checksum();
    bytes[l4 + 16..l4 + 18].copy_from_slice(&sum.to_be_bytes());
}

/// Segments that follow one another, of these payloads, the last with PSH.
fn segments(ipv6: bool, first: u32, payloads: &[usize]) -> Vec<Vec<u8>> {
    let mut sequence = first;
    let numbered = payloads.iter().enumerate().map(|(number, &payload)| {
        let flags = if number + 1 == payloads.len() { ACK | PSH } else { ACK };
        let bytes = segment(ipv6, 65_530 + number as u32, sequence, flags, payload);
        sequence = sequence.wrapping_add(payload as u32);
        bytes
    });
    numbered.collect()
}

fn burst(io: &mut TapIo, frames: &[Vec<u8>]) -> Batch<TapFrame> {
    let filled = frames.iter().map(|bytes| {
        let mut frame = io.allocate().unwrap();
        assert!(frame.resize(bytes.len()));
        frame.bytes_mut().copy_from_slice(bytes);
        frame.meta_mut().port = 3;
        frame
    });
    filled.collect()
}

/// Sends a burst; the wire must show the same packets, and `joined` of them must have gone together.
fn goes(io: &mut TapIo, peer: &Link, frames: &[Vec<u8>], joined: u64) {
    let mut batch = burst(io, frames);
    goes_as_they_are(io, peer, &mut batch, joined);
}

fn goes_as_they_are(io: &mut TapIo, peer: &Link, batch: &mut Batch<TapFrame>, joined: u64) {
    let frames: Vec<Vec<u8>> = batch.iter().map(|frame| frame.bytes().to_vec()).collect();
    goes_as(io, peer, batch, &frames, joined);
}

/// Sends a burst; the wire must show `frames`, and `joined` of its frames must have gone together.
fn goes_as(io: &mut TapIo, peer: &Link, batch: &mut Batch<TapFrame>, frames: &[Vec<u8>], joined: u64) {
    let before = io.counters();
    let (count, bytes) = (batch.len(), batch.iter().map(|frame| frame.bytes().len()).sum::<usize>());
    io.transmit(batch);
    let after = io.counters();
    assert_eq!((batch.len(), after.transmitted - before.transmitted), (0, count as u64));
    assert_eq!(after.joined - before.joined, joined);
    assert_eq!(after.transmitted_bytes - before.transmitted_bytes, bytes as u64);
    for (place, frame) in frames.iter().enumerate() {
        let (header, bytes) = peer.receive().unwrap_or_else(|| panic!("frame {place} is missing"));
        assert_eq!(header, Vnet::default(), "nothing is left to be done to it");
        assert!(bytes[14..] == frame[14..], "frame {place} is another: {bytes:x?} {frame:x?}");
    }
}

#[test]
fn what_is_joined_is_the_same_on_the_wire() {
    in_namespace(|| {
        let (mut io, _link) = device(128);
        let peer = Link::wire_behind("tap-0");
        for ipv6 in [false, true] {
            let most = if ipv6 { 1440 } else { 1460 };
            goes(&mut io, &peer, &segments(ipv6, 1000, &[most; 2]), 2);
            goes(&mut io, &peer, &segments(ipv6, u32::MAX - 5000, &[most; 11]), 11);
            goes(&mut io, &peer, &segments(ipv6, 7, &[1000, 1000, 1]), 3);
            // 44 are as many as an IP packet takes.
            goes(&mut io, &peer, &segments(ipv6, 7, &[most; 64]), 64);
        }
    });
}

/// These segments as the kernel would hand them over: one super-packet, its checksum not filled in, or one such segment.
fn coalesced(io: &mut TapIo, segments: &[Vec<u8>]) -> TapFrame {
    let ipv6 = segments[0][12] == 0x86;
    let (l4, size) = if ipv6 { (54, segments[0].len() - 74) } else { (34, segments[0].len() - 54) };
    let mut bytes = segments[0].clone();
    segments[1..].iter().for_each(|segment| bytes.extend_from_slice(&segment[l4 + 20..]));
    bytes[l4 + 13] |= segments.last().unwrap()[l4 + 13];
    let length = (bytes.len() - if ipv6 { 54 } else { 14 }) as u16;
    let at = if ipv6 { 18 } else { 16 };
    bytes[at..at + 2].copy_from_slice(&length.to_be_bytes());
    finish(&mut bytes);
    let (source, destination) = if ipv6 { (22..38, 38..54) } else { (26..30, 30..34) };
    let pseudo = Sum::pseudo_header(&bytes[source], &bytes[destination], 6, bytes.len() - l4).folded();
    bytes[l4 + 16..l4 + 18].copy_from_slice(&pseudo.to_be_bytes());
    let mut frame = io.allocate().unwrap();
    assert!(frame.resize(bytes.len()));
    frame.bytes_mut().copy_from_slice(&bytes);
    let meta = frame.meta_mut();
    (meta.port, meta.checksum) = (3, Checksum::Partial);
    meta.gso_size = if segments.len() > 1 { size as u16 } else { 0 };
    frame
}

#[test]
fn super_packets_are_joined_as_segments_are() {
    in_namespace(|| {
        let (mut io, _link) = device(128);
        let peer = Link::wire_behind("tap-0");
        for ipv6 in [false, true] {
            let most = if ipv6 { 1440 } else { 1460 };
            let l4 = if ipv6 { 54 } else { 34 };
            // A response that a server writes in several parts: the segments of each; whether they coalesce.
            let cases: [(&[usize], &[usize], bool); 6] = [
                (&[most; 12], &[11, 1], true),
                (&[most, most, most, most, 100], &[2, 3], true),
                (&[most, most, most, most, 100], &[1, 1, 2, 1], true),
                (&[most, most, 100, most], &[3, 1], false),
                (&[most, 500, 500], &[1, 2], false),
                (&[most; 88], &[44, 44], false),
            ];
            for (payloads, parts, joins) in cases {
                let mut expected = segments(ipv6, 1000, payloads);
                let mut rest = &expected[..];
                let mut batch: Batch<TapFrame> = Batch::new();
                for &part in parts {
                    let (these, others) = rest.split_at(part);
                    batch.push(coalesced(&mut io, these));
                    rest = others;
                    if joins {
                        // Each part ends with PSH, which moves to the last.
                        let frame = batch.last_mut().unwrap().bytes_mut();
                        frame[l4 + 13] |= PSH;
                    }
                }
                expected.last_mut().unwrap()[l4 + 13] = ACK | PSH;
                finish(expected.last_mut().unwrap());
                let joined = if joins { parts.len() as u64 } else { 0 };
                println!("{payloads:?} in {parts:?}");
                goes_as(&mut io, &peer, &mut batch, &expected, joined);
            }
            // Finished ones and others, in any order.
            for finished in 0..2 {
                let expected = segments(ipv6, 1000, &[most; 2]);
                let mut batch = burst(&mut io, &expected);
                batch[1 - finished] = coalesced(&mut io, &expected[1 - finished..][..1]);
                goes_as(&mut io, &peer, &mut batch, &expected, 2);
            }
        }
    });
}

#[test]
fn what_asks_not_to_wait_asks_so_for_all() {
    in_namespace(|| {
        let (mut io, _link) = device(64);
        let peer = Link::wire_behind("tap-0");
        for ipv6 in [false, true] {
            let l4 = if ipv6 { 54 } else { 34 };
            let mut expected = segments(ipv6, 1000, &[1200; 3]);
            let mut sent = expected.clone();
            for (frame, flags) in sent.iter_mut().zip([ACK | PSH, ACK, ACK]) {
                frame[l4 + 13] = flags;
                finish(frame);
            }
            expected[2][l4 + 13] = ACK | PSH;
            finish(&mut expected[2]);
            let mut batch = burst(&mut io, &sent);
            goes_as(&mut io, &peer, &mut batch, &expected, 3);
        }
    });
}

#[test]
fn several_flows_and_what_is_between_them_keep_their_order() {
    in_namespace(|| {
        let (mut io, _link) = device(128);
        let peer = Link::wire_behind("tap-0");
        let four = segments(false, 1, &[1400; 4]);
        let six = segments(true, 1, &[1400; 4]);
        let short = segment(false, 1, 9, ACK, 0);
        let all = [&four[..], std::slice::from_ref(&short), &six, std::slice::from_ref(&short), &four[..1], &six[..1]]
            .concat();
        goes(&mut io, &peer, &all, 8);
        // A short one ends what is joined; what follows begins anew.
        let then = [segments(false, 1, &[1400, 700]), segments(false, 2101, &[1400, 1400])].concat();
        goes(&mut io, &peer, &then, 4);
    });
}

#[test]
fn what_would_be_another_when_cut_again_goes_alone() {
    in_namespace(|| {
        let (mut io, _link) = device(64);
        let peer = Link::wire_behind("tap-0");
        for ipv6 in [false, true] {
            let l4 = if ipv6 { 54 } else { 34 };
            let pair = || segments(ipv6, 1000, &[1200; 2]);
            let mut odd: Vec<(&str, Vec<Vec<u8>>)> = vec![
                ("longer behind shorter", segments(ipv6, 1, &[1000, 1200])),
                ("out of order", pair().into_iter().rev().collect()),
                ("a gap", vec![pair()[0].clone(), segment(ipv6, 65_531, 2201, ACK, 1200)]),
                ("no payload", vec![segment(ipv6, 1, 1, ACK, 0), segment(ipv6, 2, 1, ACK, 0)]),
            ];
            let mut changed = |why, at: usize, value: u8, which: usize| {
                let mut frames = pair();
                frames[which][at] = value;
                finish(&mut frames[which]);
                odd.push((why, frames));
            };
            changed("FIN on the first", l4 + 13, ACK | 1, 0);
            changed("URG", l4 + 13, ACK | 0x20, 1);
            changed("SYN", l4 + 13, ACK | 2, 0);
            changed("CWR", l4 + 13, ACK | 0x80, 0);
            changed("another acknowledgement", l4 + 11, 9, 1);
            changed("another window", l4 + 15, 9, 1);
            changed("another urgent pointer", l4 + 19, 9, 1);
            changed("another port", l4 + 1, 9, 1);
            changed("other traffic class", 15, 0x20, 1);
            changed("another TTL", if ipv6 { 21 } else { 22 }, 9, 1);
            if !ipv6 {
                changed("another identification", 19, 9, 1);
                changed("may be fragmented", 20, 0, 0);
                changed("another fragments flag", 20, 0x60, 1);
            }
            for (why, frames) in odd {
                println!("{why}, {}", if ipv6 { "IPv6" } else { "IPv4" });
                goes(&mut io, &peer, &frames, 0);
            }
            for which in 0..2 {
                let mut broken = pair();
                broken[which][l4 + 100] ^= 1;
                goes(&mut io, &peer, &broken, 0);
            }
            let mut broken = pair();
            broken[1][if ipv6 { l4 + 17 } else { 25 }] ^= 1;
            goes(&mut io, &peer, &broken, 0);
            // Another way out.
            let mut elsewhere = burst(&mut io, &pair());
            elsewhere[1].meta_mut().port = 4;
            goes_as_they_are(&mut io, &peer, &mut elsewhere, 0);
            let mut elsewhere = burst(&mut io, &pair());
            elsewhere[1].meta_mut().egress = Egress::Direct(1);
            goes_as_they_are(&mut io, &peer, &mut elsewhere, 0);
            let mut to_kernel = burst(&mut io, &pair());
            to_kernel.iter_mut().for_each(|frame| frame.meta_mut().egress = Egress::Kernel);
            goes_as_they_are(&mut io, &peer, &mut to_kernel, 0);
        }
    });
}

//! Segments that follow one another go to the kernel as one super-packet, as generic receive offload (GRO) would have
//! made one of them.
//!
//! A write runs the kernel's receive path, BPF, the way out and the interrupt that wakes the other side, all once. Where
//! cards do not coalesce, a worker has a burst of segments instead of one super-packet; joined they cost all of that
//! once. Only what can be cut into the same segments again is joined: same headers, sequence numbers and
//! identifications that follow, checksums that are right (the kernel computes new ones, and a broken segment must not
//! be mended).

use super::{header, mark};
use hairpin_core::flow::Protocol;
use hairpin_core::frame::{Egress, Frame};
use hairpin_core::wire::checksum::Sum;
use hairpin_core::wire::{self, Parsed, Transport, tcp};

/// Bytes of headers at most: Ethernet without tags, IPv6, TCP with options.
pub(super) const HEADERS_MAX: usize = ETHERNET + IPV6 + 60;
/// Bytes of an IPv4 packet at most, and less than of an IPv6 one.
const PACKET_MAX: usize = 65_535;

const ETHERNET: usize = 14;
const IPV4: usize = 20;
const IPV6: usize = 40;
/// The flag of an IPv4 header that says not to fragment, alone.
const DONT_FRAGMENT: u16 = 0x4000;
/// What ends a super-packet: only its last segment has these.
const LAST: u8 = tcp::PSH | tcp::FIN;

/// The first frames of a burst, of which one super-packet is to be made.
#[derive(Clone, Debug)]
pub(super) struct Train {
    /// How many they are, at least two.
    pub(super) frames: usize,
    /// Flags of the last.
    flags: u8,
    /// Bytes of payload of every one but the last, which may have less.
    size: usize,
    /// Bytes of payload of all.
    payload: usize,
}

impl Train {
    /// The first of `frames` that can go together; `None`: the first goes alone.
    pub(super) fn ahead<F: Frame>(frames: &[F]) -> Option<Train> {
        let [one, two, ..] = frames else { return None };
        // Nearly all that is alone is told by this: too short to have a payload, or another flow's (of IPv6: another host's).
        let ends = 26..38;
        if one.bytes().len() <= HEADERS_MAX || one.bytes().get(ends.clone()) != two.bytes().get(ends) {
            return None;
        }
        let first = joinable(one)?;
        let size = first.end - first.payload;
        let mut train = Train { frames: 1, flags: first.tcp_flags, size, payload: size };
        let mut before = (one, first);
        for frame in &frames[1..] {
            if train.flags & LAST != 0 || !train.payload.is_multiple_of(size) {
                break;
            }
            let Some(at) = joinable(frame) else { break };
            let payload = at.end - at.payload;
            if payload > size || first.payload - first.l3 + train.payload + payload > PACKET_MAX {
                break;
            }
            let next = (frame, at);
            if !follows(before, next) || !is_right(next) || train.frames == 1 && !is_right(before) {
                break;
            }
            train = Train { frames: train.frames + 1, flags: at.tcp_flags, payload: train.payload + payload, ..train };
            before = next;
        }
        (train.frames > 1).then_some(train)
    }

    /// Writes the super-packet's headers, the device's and behind it those of the first frame as they are to be. Returns how
    /// many bytes the latter are, in every frame.
    pub(super) fn write_headers<F: Frame>(
        &self,
        first: &F,
        to: &mut [u8; header::BYTES + HEADERS_MAX],
    ) -> Option<usize> {
        let Ok(Parsed::Transport(at)) = wire::parse(first.bytes()) else { return None };
        let (device, own) = to.split_first_chunk_mut::<{ header::BYTES }>()?;
        let own = own.get_mut(..at.payload)?;
        own.copy_from_slice(first.bytes().get(..at.payload)?);
        *own.first_chunk_mut()? = mark::encode(first.meta());
        own[at.l4 + 13] |= self.flags;
        let segment = at.payload - at.l4 + self.payload;
        let ip = &mut own[at.l3..at.l4];
        let pseudo = if at.key.is_ipv4() {
            ip[2..4].copy_from_slice(&((IPV4 + segment) as u16).to_be_bytes());
            ip[10..12].fill(0);
            let checksum = Sum::of(ip).checksum();
            ip[10..12].copy_from_slice(&checksum.to_be_bytes());
            Sum::pseudo_header(&ip[12..16], &ip[16..20], Protocol::Tcp as u8, segment)
        } else {
            ip[4..6].copy_from_slice(&(segment as u16).to_be_bytes());
            Sum::pseudo_header(&ip[8..24], &ip[24..40], Protocol::Tcp as u8, segment)
        };
        own[at.checksum_offset()..][..2].copy_from_slice(&pseudo.folded().to_be_bytes());
        *device = header::of_segments(&at, self.size as u16);
        Some(at.payload)
    }

    /// Where a frame's payload stands, whose headers are `headers` bytes long: all of this train have the same.
    pub(super) fn payload_of<'a, F: Frame>(&self, frame: &'a F, (place, headers): (usize, usize)) -> &'a [u8] {
        let rest = self.payload - place * self.size;
        frame.bytes().get(headers..headers + rest.min(self.size)).unwrap_or_default()
    }
}

/// Where everything stands in a frame that could be one of several: an ordinary TCP segment that may not be fragmented,
/// with a payload and nothing unusual about it.
fn joinable<F: Frame>(frame: &F) -> Option<Transport> {
    if !frame.is_ordinary() || frame.meta().egress != Egress::Route {
        return None;
    }
    let Ok(Parsed::Transport(at)) = wire::parse(frame.bytes()) else { return None };
    let ip = if at.key.is_ipv4() { IPV4 } else { IPV6 };
    let plain = at.key.protocol == Protocol::Tcp && at.l3 == ETHERNET && at.l4 == ETHERNET + ip;
    let whole = ip == IPV6 || word(frame.bytes(), at.l3 + 6) == DONT_FRAGMENT;
    (plain && whole && at.tcp_flags & !LAST == tcp::ACK && at.end > at.payload).then_some(at)
}

/// Whether one is the next segment behind another, and says the same otherwise.
fn follows<F: Frame>((one, at): (&F, Transport), (other, next): (&F, Transport)) -> bool {
    if (at.key, at.l4, at.payload) != (next.key, next.l4, next.payload) || one.meta().port != other.meta().port {
        return false;
    }
    let (a, b) = (one.bytes(), other.bytes());
    let same = |from: usize, to: usize| a[from..to] == b[from..to];
    let l3 = at.l3;
    let ip = if at.key.is_ipv4() {
        // All but length, identification and checksum.
        let identification = word(a, l3 + 4).wrapping_add(1);
        same(l3, l3 + 2) && identification == word(b, l3 + 4) && same(l3 + 6, l3 + 10) && same(l3 + 12, l3 + 20)
    } else {
        same(l3, l3 + 4) && same(l3 + 6, l3 + IPV6)
    };
    // All but sequence number, flags and checksum.
    let l4 = at.l4;
    let sequence = |frame: &[u8]| u32::from_be_bytes([frame[l4 + 4], frame[l4 + 5], frame[l4 + 6], frame[l4 + 7]]);
    ip && same(l4 + 8, l4 + 13)
        && same(l4 + 14, l4 + 16)
        && same(l4 + 18, at.payload)
        && sequence(a).wrapping_add((at.end - at.payload) as u32) == sequence(b)
}

/// Whether a frame's checksums are right.
fn is_right<F: Frame>((frame, at): (&F, Transport)) -> bool {
    let bytes = frame.bytes();
    let header = !at.key.is_ipv4() || Sum::of(&bytes[at.l3..at.l4]).folded() == 0xffff;
    header && at.transport_checksum(bytes) == Some(word(bytes, at.checksum_offset()))
}

fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

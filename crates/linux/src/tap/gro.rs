//! Segments that follow one another go to the kernel as one super-packet, as generic receive offload (GRO) would have
//! made one of them.
//!
//! A write runs the kernel's receive path, BPF, the transmit path and the interrupt that wakes the other side, all once.
//! If cards do not coalesce, a worker has a burst of segments instead of one super-packet; where they do, it has several
//! super-packets of what was written in several parts (a server that corks sends whole segments first, and then the rest).
//! Joined they cost all of that once. Only what can be cut into the same segments again is joined: same headers, sequence
//! numbers and identifications that follow, checksums that are right or still to be filled in (the kernel computes new
//! ones, and a broken segment must not be mended). PSH alone moves, to the last: it asks the receiver not to wait for more,
//! and that holds for all of them.

use super::{header, mark};
use hairpin_core::flow::Protocol;
use hairpin_core::frame::{Arrival, Checksum, Egress, Frame};
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
/// TCP flags that only the last segment of a super-packet has.
const LAST: u8 = tcp::PSH | tcp::FIN;

/// The first frames of a burst, to be joined to one super-packet.
#[derive(Clone, Debug)]
pub(super) struct Train {
    /// How many they are, at least two.
    pub(super) frames: usize,
    /// Flags of all.
    flags: u8,
    /// Bytes of payload of every segment but the last, which may have less.
    size: usize,
    /// Bytes of payload of all.
    payload: usize,
}

impl Train {
    /// The first of `frames` that can go together; `None`: the first goes alone.
    pub(super) fn ahead<F: Frame>(frames: &[F]) -> Option<Train> {
        let [one, two, ..] = frames else { return None };
        // Nearly all that is alone is told by this: too short to have a payload, or another flow's (of IPv6: another
        // host's).
        let ends = 26..38;
        if one.bytes().len() <= HEADERS_MAX || one.bytes().get(ends.clone()) != two.bytes().get(ends) {
            return None;
        }
        let first = Car::of(one)?;
        let (size, headers) = (first.size, first.at.payload - first.at.l3);
        let mut train = Train { frames: 1, flags: first.at.tcp_flags, size, payload: first.payload() };
        let mut before = first;
        for frame in &frames[1..] {
            if train.flags & tcp::FIN != 0 || !train.payload.is_multiple_of(size) {
                break;
            }
            let Some(next) = Car::of(frame) else { break };
            let payload = next.payload();
            let fits = next.size == size || next.size == payload && payload < size;
            if !fits || headers + train.payload + payload > PACKET_MAX {
                break;
            }
            if !next.follows(&before) || !next.is_right() || train.frames == 1 && !before.is_right() {
                break;
            }
            let (frames, flags) = (train.frames + 1, train.flags | next.at.tcp_flags);
            train = Train { frames, flags, payload: train.payload + payload, ..train };
            before = next;
        }
        (train.frames > 1).then_some(train)
    }

    /// Writes the super-packet's headers, the device's and behind it those of the first frame as they are to be. Returns
    /// how many bytes the latter are, in every frame.
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
}

/// The payload of a frame of a train, whose headers are `headers` bytes long, as those of all of them.
pub(super) fn payload_of<F: Frame>(frame: &F, headers: usize) -> &[u8] {
    let bytes = frame.bytes();
    let is_ipv4 = bytes.get(ETHERNET).is_some_and(|byte| byte >> 4 == 4);
    let length = if is_ipv4 { length_at(bytes, ETHERNET + 2) } else { IPV6 + length_at(bytes, ETHERNET + 4) };
    bytes.get(headers..ETHERNET + length).unwrap_or_default()
}

/// A frame that could be one of several: ordinary TCP that may not be fragmented, with a payload and nothing unusual about
/// it. It may be a super-packet itself.
struct Car<'a, F> {
    frame: &'a F,
    /// Offsets in the frame.
    at: Transport,
    /// Bytes of payload of each of its segments but the last.
    size: usize,
}

impl<'a, F: Frame> Car<'a, F> {
    fn of(frame: &'a F) -> Option<Car<'a, F>> {
        let meta = frame.meta();
        let finished = meta.checksum == Checksum::Partial || meta.gso_size == 0;
        if !finished || meta.arrival != Arrival::Received || meta.egress == Egress::Kernel {
            return None;
        }
        let Ok(Parsed::Transport(at)) = wire::parse(frame.bytes()) else { return None };
        let ip = if at.key.is_ipv4() { IPV4 } else { IPV6 };
        let plain = at.key.protocol == Protocol::Tcp && at.l3 == ETHERNET && at.l4 == ETHERNET + ip;
        let whole = ip == IPV6 || word(frame.bytes(), at.l3 + 6) == DONT_FRAGMENT;
        let fits = plain && whole && at.tcp_flags & !LAST == tcp::ACK && at.end > at.payload;
        let (payload, size) = (at.end - at.payload, usize::from(meta.gso_size));
        let size = if size == 0 { payload } else { size.min(payload) };
        fits.then_some(Car { frame, at, size })
    }

    fn payload(&self) -> usize {
        self.at.end - self.at.payload
    }

    /// Whether it begins where `before` ends, and says the same otherwise.
    fn follows(&self, before: &Car<'_, F>) -> bool {
        let (at, next) = (&before.at, &self.at);
        let ways = [before.frame, self.frame].map(|frame| (frame.meta().port, frame.meta().egress));
        if (at.key, at.l4, at.payload) != (next.key, next.l4, next.payload) || ways[0] != ways[1] {
            return false;
        }
        let (a, b) = (before.frame.bytes(), self.frame.bytes());
        let same = |from: usize, to: usize| a[from..to] == b[from..to];
        let l3 = at.l3;
        let ip = if at.key.is_ipv4() {
            // All but length, identification and checksum.
            let segments = before.payload().div_ceil(before.size) as u16;
            let identification = word(a, l3 + 4).wrapping_add(segments);
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
            && sequence(a).wrapping_add(before.payload() as u32) == sequence(b)
    }

    /// Whether its checksums are right, as far as they are there.
    fn is_right(&self) -> bool {
        let (at, bytes) = (&self.at, self.frame.bytes());
        let header = !at.key.is_ipv4() || Sum::of(&bytes[at.l3..at.l4]).folded() == 0xffff;
        let is_partial = self.frame.meta().checksum == Checksum::Partial;
        header && (is_partial || at.transport_checksum(bytes) == Some(word(bytes, at.checksum_offset())))
    }
}

/// The length that stands at a place of a header; 0 if it is too short for that.
fn length_at(bytes: &[u8], at: usize) -> usize {
    bytes.get(at..at + 2).map_or(0, |two| usize::from(u16::from_be_bytes([two[0], two[1]])))
}

fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

//! TCP segments: those that come, as far as a splice looks at them, and those that Hairpin itself sends.

use super::timestamps::Timestamps;
use crate::flow::{Endpoint, FlowKey, Protocol};
use crate::frame::{Checksum, Egress, Frame};
use crate::wire::bytes::{array_at, u16_at, u32_at};
use crate::wire::checksum::{Difference, Sum};
use crate::wire::tcp::{self, FIN, SYN};
use crate::wire::{Transport, ethernet, ipv4, ipv6};

/// TCP option: window scale (RFC 7323).
const OPTION_SCALE: u8 = 3;
/// TCP option: SACK permitted (RFC 2018).
const OPTION_SACK_PERMITTED: u8 = 4;
/// Hops given to what Hairpin sends of its own.
const HOPS: u8 = 64;
/// Offset of the window in a TCP header.
const WINDOW: usize = 14;

/// What a splice looks at.
#[derive(Clone, Copy, Debug)]
pub(in crate::l7::splice) struct Segment {
    pub(in crate::l7::splice) sequence: u32,
    pub(in crate::l7::splice) acknowledgement: u32,
    pub(in crate::l7::splice) flags: u8,
    /// As it stands in the header.
    pub(in crate::l7::splice) window: u16,
    /// Bytes of payload.
    pub(in crate::l7::splice) payload: u32,
    pub(in crate::l7::splice) timestamps: Option<Timestamps>,
}

impl Segment {
    /// Of the TCP packet found `at` in a frame.
    #[inline]
    pub(in crate::l7::splice) fn of(bytes: &[u8], at: &Transport) -> Segment {
        Segment {
            sequence: u32_at(bytes, at.l4 + tcp::SEQUENCE).unwrap_or_default(),
            acknowledgement: u32_at(bytes, at.l4 + tcp::ACKNOWLEDGEMENT).unwrap_or_default(),
            flags: at.tcp_flags,
            window: u16_at(bytes, at.l4 + WINDOW).unwrap_or_default(),
            payload: (at.end - at.payload) as u32,
            timestamps: bytes.get(at.l4 + tcp::HEADER..at.payload).and_then(Timestamps::of),
        }
    }

    pub(in crate::l7::splice) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// One past its last byte of payload.
    pub(in crate::l7::splice) fn payload_end(&self) -> u32 {
        self.sequence.wrapping_add(self.payload)
    }
}

/// What a SYN or SYN-ACK says of its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::l7::splice) struct Abilities {
    pub(in crate::l7::splice) mss: u16,
    /// `None`: it does not scale.
    pub(in crate::l7::splice) scale: Option<u8>,
    pub(in crate::l7::splice) sack: bool,
    /// `None`: it has no timestamps.
    pub(in crate::l7::splice) timestamps: Option<Timestamps>,
}

impl Abilities {
    /// Read from the options of the packet found `at` in a frame.
    pub(in crate::l7::splice) fn of(bytes: &[u8], at: &Transport) -> Abilities {
        let options = bytes.get(at.l4 + tcp::HEADER..at.payload).unwrap_or_default();
        // RFC 9293, 3.7.1; RFC 8200, 8.3.
        let mss = if at.key.is_ipv4() { 536 } else { 1220 };
        let mut abilities = Abilities { mss, scale: None, sack: false, timestamps: Timestamps::of(options) };
        for option in tcp::Options::new(options) {
            match (option.kind, option.length) {
                (tcp::OPTION_MSS, 2) => abilities.mss = u16_at(options, option.offset).unwrap_or(mss).max(64),
                (OPTION_SCALE, 1) => abilities.scale = options.get(option.offset).map(|&scale| scale.min(14)),
                (OPTION_SACK_PERMITTED, 0) => abilities.sack = true,
                _ => {}
            }
        }
        abilities
    }
}

/// A segment that Hairpin sends of its own.
#[derive(Clone, Copy, Debug)]
pub(in crate::l7::splice) struct Own {
    pub(in crate::l7::splice) source: Endpoint,
    pub(in crate::l7::splice) destination: Endpoint,
    pub(in crate::l7::splice) sequence: u32,
    pub(in crate::l7::splice) acknowledgement: u32,
    pub(in crate::l7::splice) flags: u8,
    /// As it will stand in the header.
    pub(in crate::l7::splice) window: u16,
    /// The interface it is routed from.
    pub(in crate::l7::splice) port: u16,
    /// The receiver's maximum segment size: more payload makes it a super-packet.
    pub(in crate::l7::splice) mss: u16,
    /// With SYN: what we say we can, but for timestamps.
    pub(in crate::l7::splice) abilities: Option<Abilities>,
    /// `None`: it has none.
    pub(in crate::l7::splice) timestamps: Option<Timestamps>,
}

impl Own {
    /// Bytes in front of its payload.
    pub(in crate::l7::splice) fn headers(&self) -> usize {
        let network = if self.source.address.is_ipv4() { ipv4::HEADER } else { ipv6::HEADER };
        ethernet::HEADER + network + tcp::HEADER + self.options()
    }

    /// Bytes of its options.
    fn options(&self) -> usize {
        let abilities = if self.abilities.is_some() { 12 } else { 0 };
        abilities + if self.timestamps.is_some() { tcp::TIMESTAMPS } else { 0 }
    }

    /// Payload of a segment of it at most, in bytes.
    pub(in crate::l7::splice) fn payload_max(&self) -> u16 {
        self.mss.saturating_sub(self.options() as u16).max(1)
    }

    /// Writes it, with this payload in up to two parts, into a lent frame. `false` if the frame has no room.
    pub(in crate::l7::splice) fn write<F: Frame>(&self, frame: &mut F, payload: [&[u8]; 2]) -> bool {
        let is_ipv4 = self.source.address.is_ipv4();
        let l3 = ethernet::HEADER;
        let l4 = l3 + if is_ipv4 { ipv4::HEADER } else { ipv6::HEADER };
        let options = self.options();
        let start = l4 + tcp::HEADER + options;
        let length = payload[0].len() + payload[1].len();
        if !frame.resize(start + length) {
            return false;
        }
        let bytes = frame.bytes_mut();
        let (headers, body) = bytes.split_at_mut(start);
        body[..payload[0].len()].copy_from_slice(payload[0]);
        body[payload[0].len()..].copy_from_slice(payload[1]);
        headers.fill(0);
        let kind: u16 = if is_ipv4 { 0x0800 } else { 0x86dd };
        headers[12..14].copy_from_slice(&kind.to_be_bytes());
        let segment = tcp::HEADER + options + length;
        let pseudo = write_network(&mut headers[l3..l4], &self.source, &self.destination, segment);
        self.write_header(&mut headers[l4..], pseudo.folded());
        let meta = frame.meta_mut();
        meta.port = self.port;
        meta.egress = Egress::Route;
        meta.checksum = Checksum::Partial;
        meta.gso_size = if length > usize::from(self.payload_max()) { self.payload_max() } else { 0 };
        true
    }

    fn write_header(&self, header: &mut [u8], pseudo: u16) {
        let length = header.len() as u8;
        header[..2].copy_from_slice(&self.source.port.to_be_bytes());
        header[2..4].copy_from_slice(&self.destination.port.to_be_bytes());
        header[4..8].copy_from_slice(&self.sequence.to_be_bytes());
        header[8..12].copy_from_slice(&self.acknowledgement.to_be_bytes());
        header[12] = (length / 4) << 4;
        header[tcp::FLAGS] = self.flags;
        header[WINDOW..WINDOW + 2].copy_from_slice(&self.window.to_be_bytes());
        header[tcp::CHECKSUM..tcp::CHECKSUM + 2].copy_from_slice(&pseudo.to_be_bytes());
        let (first, last) = header[tcp::HEADER..].split_at_mut(if self.abilities.is_some() { 12 } else { 0 });
        if let Some(abilities) = self.abilities {
            let [high, low] = abilities.mss.to_be_bytes();
            let sack = if abilities.sack { [OPTION_SACK_PERMITTED, 2] } else { [1, 1] };
            let scale = abilities.scale.map_or([1, 1, 1], |scale| [OPTION_SCALE, 3, scale]);
            let options = [tcp::OPTION_MSS, 4, high, low, sack[0], sack[1], 1, 1, 1, scale[0], scale[1], scale[2]];
            first.copy_from_slice(&options);
        }
        if let Some(timestamps) = self.timestamps {
            last.copy_from_slice(&timestamps.option());
        }
    }
}

/// Writes an IP header in front of a TCP segment of so many bytes; returns the sum of its pseudo-header.
fn write_network(header: &mut [u8], source: &Endpoint, destination: &Endpoint, segment: usize) -> Sum {
    let protocol = Protocol::Tcp as u8;
    if source.address.is_ipv4() {
        let (from, to) = (source.address.ipv4_octets(), destination.address.ipv4_octets());
        header[0] = 0x45;
        header[2..4].copy_from_slice(&((ipv4::HEADER + segment) as u16).to_be_bytes());
        header[6] = 0x40; // not to be fragmented
        header[8] = HOPS;
        header[9] = protocol;
        header[12..16].copy_from_slice(&from);
        header[16..20].copy_from_slice(&to);
        let checksum = Sum::of(header).checksum();
        header[10..12].copy_from_slice(&checksum.to_be_bytes());
        Sum::pseudo_header(&from, &to, protocol, segment)
    } else {
        header[0] = 0x60;
        header[4..6].copy_from_slice(&(segment as u16).to_be_bytes());
        header[6] = protocol;
        header[7] = HOPS;
        header[8..24].copy_from_slice(&source.address.0);
        header[24..40].copy_from_slice(&destination.address.0);
        Sum::pseudo_header(&source.address.0, &destination.address.0, protocol, segment)
    }
}

/// Changes the header of a segment that goes on: acknowledgement number, window, flags, and its options by `options`,
/// which says whether it has changed them. The checksum stays in step.
pub(in crate::l7::splice) fn amend<F: Frame>(
    frame: &mut F,
    at: &Transport,
    (acknowledgement, window, flags): (u32, u16, u8),
    options: impl FnOnce(&mut [u8]) -> bool,
) {
    let is_complete = frame.meta().checksum == Checksum::Complete;
    let Some(header) = frame.bytes_mut().get_mut(at.l4..at.payload) else { return };
    if header.len() < tcp::HEADER {
        return;
    }
    let mut changes = Difference::NONE;
    let old: [u8; 4] = array_at(header, 8).unwrap_or_default();
    let new = acknowledgement.to_be_bytes();
    changes.words(old, new);
    header[8..12].copy_from_slice(&new);
    let old: [u8; 4] = array_at(header, 12).unwrap_or_default();
    header[tcp::FLAGS] = flags;
    header[WINDOW..WINDOW + 2].copy_from_slice(&window.to_be_bytes());
    changes.words(old, array_at(header, 12).unwrap_or_default());
    if header.len() > tcp::HEADER {
        let before = Sum::of(&header[tcp::HEADER..]);
        if options(&mut header[tcp::HEADER..]) {
            changes += Difference::between(before, Sum::of(&header[tcp::HEADER..]));
        }
    }
    if is_complete {
        let checksum = u16_at(header, tcp::CHECKSUM).unwrap_or_default();
        header[tcp::CHECKSUM..tcp::CHECKSUM + 2].copy_from_slice(&changes.update(checksum).to_be_bytes());
    }
}

/// Whether a frame can be `length` bytes long.
pub(in crate::l7::splice) fn has_room<F: Frame>(frame: &mut F, length: usize) -> bool {
    let now = frame.bytes().len();
    length <= now || frame.resize(length) && frame.resize(now)
}

/// Makes the payload of a segment another: its first `cut` bytes go, `put` comes in their place, and what is beyond
/// `end` (bytes of the old payload) goes too. Lengths and checksum follow: the checksum is left to the last device.
/// Returns where things are now; `None`, and the frame is of no use any more, if it has no room.
pub(in crate::l7::splice) fn replace_payload<F: Frame>(
    frame: &mut F,
    at: &Transport,
    (cut, end): (usize, usize),
    put: &[u8],
) -> Option<Transport> {
    let kept = end.checked_sub(cut)?;
    let from = at.payload + cut;
    if put.len() > cut && !frame.resize(at.payload + put.len() + kept) {
        return None;
    }
    let bytes = frame.bytes_mut();
    if from + kept > bytes.len() || at.payload + put.len() + kept > bytes.len() {
        return None;
    }
    if put.len() != cut {
        bytes.copy_within(from..from + kept, at.payload + put.len());
    }
    bytes[at.payload..at.payload + put.len()].copy_from_slice(put);
    let at = Transport { end: at.payload + put.len() + kept, ..*at };
    if !frame.resize(at.end) {
        return None;
    }
    settle(frame, &at);
    Some(at)
}

/// Lengths and checksum of a TCP packet whose payload has changed.
pub(in crate::l7::splice) fn settle<F: Frame>(frame: &mut F, at: &Transport) {
    let bytes = frame.bytes_mut();
    let segment = at.end - at.l4;
    let pseudo = if at.key.is_ipv4() {
        let header = &mut bytes[at.l3..at.l4];
        header[2..4].copy_from_slice(&((at.end - at.l3) as u16).to_be_bytes());
        header[10..12].fill(0);
        let checksum = Sum::of(header).checksum();
        header[10..12].copy_from_slice(&checksum.to_be_bytes());
        Sum::pseudo_header(&header[12..16], &header[16..20], Protocol::Tcp as u8, segment)
    } else {
        let length = (at.end - at.l3 - ipv6::HEADER) as u16;
        bytes[at.l3 + 4..at.l3 + 6].copy_from_slice(&length.to_be_bytes());
        let header = &bytes[at.l3..at.l3 + ipv6::HEADER];
        Sum::pseudo_header(&header[8..24], &header[24..40], Protocol::Tcp as u8, segment)
    };
    let field = at.l4 + tcp::CHECKSUM;
    bytes[field..field + 2].copy_from_slice(&pseudo.folded().to_be_bytes());
    frame.meta_mut().checksum = Checksum::Partial;
}

/// Makes a segment one of super-packets whose pieces carry `size` bytes each.
pub(in crate::l7::splice) fn resegment<F: Frame>(frame: &mut F, at: &Transport, size: u16) -> bool {
    if size == 0 || at.end > frame.bytes().len() {
        return false;
    }
    if frame.meta().checksum == Checksum::Complete {
        settle(frame, at);
    }
    frame.meta_mut().gso_size = size;
    true
}

/// Numbers a segment takes: its payload, SYN and FIN.
pub(in crate::l7::splice) fn phantoms(flags: u8) -> u32 {
    u32::from(flags & SYN != 0) + u32::from(flags & FIN != 0)
}

/// The key of what `from` sends to `to`.
pub(in crate::l7::splice) fn flow(from: Endpoint, to: Endpoint) -> FlowKey {
    FlowKey { source: from, destination: to, protocol: Protocol::Tcp }
}

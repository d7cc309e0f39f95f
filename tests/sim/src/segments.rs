//! Super-packets, as the kernel makes them (GRO) and takes them apart (GSO).

use hairpin_core::flow::{Endpoint, FlowKey, Protocol};
use hairpin_core::frame::{Checksum, VecFrame};
use hairpin_core::wire::checksum::Sum;
use hairpin_core::wire::tcp::{ACK, ACKNOWLEDGEMENT, FIN, FLAGS, HEADER as TCP_HEADER, PSH, SEQUENCE};
use hairpin_core::wire::{self, Parsed, Transport};

/// Bytes of an IP packet at most.
const PACKET_MAX: usize = 65_535;

/// The TCP or UDP packet in a frame, if there is one.
pub fn transport(frame: &[u8]) -> Option<Transport> {
    match wire::parse(frame) {
        Ok(Parsed::Transport(at)) => Some(at),
        _ => None,
    }
}

/// A TCP segment between these ends, with these flags, numbers and bytes, and no options.
pub fn tcp_segment(ends: [Endpoint; 2], flags: u8, [sequence, acknowledgement]: [u32; 2], payload: &[u8]) -> VecFrame {
    let [from, to] = ends.map(|end| end.address);
    let length = TCP_HEADER + payload.len();
    let mut data = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    if from.is_ipv4() {
        let [high, low] = (length as u16 + 20).to_be_bytes();
        data.extend([0x08, 0x00, 0x45, 0, high, low, 0, 0, 0x40, 0, 64, Protocol::Tcp as u8, 0, 0]);
        data.extend(from.ipv4_octets());
        data.extend(to.ipv4_octets());
        let checksum = Sum::of(&data[14..]).checksum();
        data[24..26].copy_from_slice(&checksum.to_be_bytes());
    } else {
        let [high, low] = (length as u16).to_be_bytes();
        data.extend([0x86, 0xdd, 0x60, 0, 0, 0, high, low, Protocol::Tcp as u8, 64]);
        data.extend(from.0);
        data.extend(to.0);
    }
    ends.iter().for_each(|end| data.extend(end.port.to_be_bytes()));
    data.extend(sequence.to_be_bytes());
    data.extend(acknowledgement.to_be_bytes());
    data.extend([(TCP_HEADER as u8 / 4) << 4, flags, 0xff, 0xff, 0, 0, 0, 0]);
    data.extend(payload);
    if let Some(at) = transport(&data) {
        at.fill_checksum(&mut data);
    }
    VecFrame::new(&data)
}

/// The TCP sequence number of a packet.
pub fn sequence(frame: &[u8], at: &Transport) -> u32 {
    number(frame, at.l4 + SEQUENCE)
}

/// The TCP acknowledgement number of a packet.
pub fn acknowledgement(frame: &[u8], at: &Transport) -> u32 {
    number(frame, at.l4 + ACKNOWLEDGEMENT)
}

fn number(frame: &[u8], offset: usize) -> u32 {
    u32::from_be_bytes([frame[offset], frame[offset + 1], frame[offset + 2], frame[offset + 3]])
}

/// The pseudo-header's sum, as it lies in a frame whose checksum is partial.
fn pseudo_sum(frame: &[u8], at: &Transport) -> u16 {
    let (source, destination) = match at.key.is_ipv4() {
        true => (&frame[at.l3 + 12..at.l3 + 16], &frame[at.l3 + 16..at.l3 + 20]),
        false => (&frame[at.l3 + 8..at.l3 + 24], &frame[at.l3 + 24..at.l3 + 40]),
    };
    Sum::pseudo_header(source, destination, at.key.protocol as u8, at.end - at.l4).folded()
}

/// Makes the IP header say how long the packet is.
fn set_length(frame: &mut [u8], at: &Transport) {
    let end = frame.len();
    if at.key.is_ipv4() {
        let total = (end - at.l3) as u16;
        frame[at.l3 + 2..at.l3 + 4].copy_from_slice(&total.to_be_bytes());
        frame[at.l3 + 10..at.l3 + 12].fill(0);
        let checksum = Sum::of(&frame[at.l3..at.l4]).checksum();
        frame[at.l3 + 10..at.l3 + 12].copy_from_slice(&checksum.to_be_bytes());
    } else {
        let length = (end - at.l3 - 40) as u16;
        frame[at.l3 + 4..at.l3 + 6].copy_from_slice(&length.to_be_bytes());
    }
}

/// The remaining room of a coalesced frame.
struct OpenSegment {
    key: FlowKey,
    next: u32,
    size: usize,
    whole: bool,
}

/// Puts consecutive segments of a flow together, as Linux does: same acknowledgement, window and options, all of one size
/// but the last, right checksums. Frames of a flow stay in order.
pub fn coalesce(frames: Vec<VecFrame>) -> Vec<VecFrame> {
    let mut out: Vec<(VecFrame, Option<OpenSegment>)> = Vec::new();
    for frame in frames {
        let Some(at) = mergeable(&frame) else {
            // nothing behind it may be put in front of it
            let key = transport(&frame.data).map(|at| at.key);
            for (_, open) in &mut out {
                if open.as_ref().is_some_and(|open| key.is_none_or(|key| key == open.key)) {
                    *open = None;
                }
            }
            out.push((frame, None));
            continue;
        };
        let last = out.iter_mut().rev().find(|(_, open)| open.as_ref().is_some_and(|open| open.key == at.key));
        if let Some((whole, open)) = last {
            if append(whole, open, &frame, &at) {
                continue;
            }
            *open = None;
        }
        let size = at.end - at.payload;
        let open = OpenSegment {
            key: at.key,
            next: sequence(&frame.data, &at).wrapping_add(size as u32),
            size,
            whole: at.tcp_flags & (PSH | FIN) != 0,
        };
        out.push((frame, Some(open)));
    }
    out.into_iter().map(|(frame, _)| frame).collect()
}

fn mergeable(frame: &VecFrame) -> Option<Transport> {
    let at = transport(&frame.data)?;
    let tcp = at.key.protocol == Protocol::Tcp && at.tcp_flags & !(PSH | FIN) == ACK;
    let plain = at.end == frame.data.len() && at.payload < at.end && frame.meta.gso_size == 0;
    let field = at.checksum_offset();
    let right = at.transport_checksum(&frame.data)? == u16::from_be_bytes([frame.data[field], frame.data[field + 1]]);
    (tcp && plain && right).then_some(at)
}

fn append(whole: &mut VecFrame, open: &mut Option<OpenSegment>, frame: &VecFrame, at: &Transport) -> bool {
    let Some(state) = open else { return false };
    let Some(first) = transport(&whole.data) else { return false };
    let size = at.end - at.payload;
    let headers = |data: &[u8], at: &Transport| {
        let tcp = &data[at.l4..at.payload];
        let ip = if at.key.is_ipv4() { [data[at.l3 + 1], data[at.l3 + 8]] } else { [data[at.l3 + 1], data[at.l3 + 7]] };
        (tcp[8..12].to_vec(), tcp[14..16].to_vec(), tcp[20..].to_vec(), ip)
    };
    let fits = !state.whole
        && size <= state.size
        && sequence(&frame.data, at) == state.next
        && headers(&whole.data, &first) == headers(&frame.data, at)
        && whole.data.len() - first.l3 + size <= PACKET_MAX;
    if !fits {
        return false;
    }
    whole.data.extend_from_slice(&frame.data[at.payload..at.end]);
    whole.data[first.l4 + FLAGS] |= at.tcp_flags & (PSH | FIN);
    set_length(&mut whole.data, &first);
    whole.meta.gso_size = state.size as u16;
    whole.meta.checksum = Checksum::Partial;
    let end = Transport { end: whole.data.len(), ..first };
    let sum = pseudo_sum(&whole.data, &end);
    let field = first.checksum_offset();
    whole.data[field..field + 2].copy_from_slice(&sum.to_be_bytes());
    state.next = state.next.wrapping_add(size as u32);
    state.whole = size < state.size || at.tcp_flags & (PSH | FIN) != 0;
    true
}

/// The frames that leave the device for `frame`: its segments, checksums filled in. An error says what is wrong with it.
pub fn segment(frame: VecFrame) -> Result<Vec<VecFrame>, String> {
    if frame.meta.checksum == Checksum::Complete && frame.meta.gso_size == 0 {
        return Ok(vec![frame]);
    }
    let Some(at) = transport(&frame.data) else { return Err("a super-packet that is no packet".into()) };
    if frame.meta.checksum != Checksum::Partial {
        return Err("a super-packet whose checksum is not partial".into());
    }
    let field = at.checksum_offset();
    let sum = u16::from_be_bytes([frame.data[field], frame.data[field + 1]]);
    // 0 and 0xffff are one number
    if sum % 0xffff != pseudo_sum(&frame.data, &at) % 0xffff {
        return Err(format!("a partial checksum of {sum:#06x}, not {:#06x}", pseudo_sum(&frame.data, &at)));
    }
    let payload = at.end - at.payload;
    let size = match usize::from(frame.meta.gso_size) {
        0 => payload.max(1),
        size => size,
    };
    let pieces = payload.div_ceil(size).max(1);
    Ok((0..pieces).map(|number| piece(&frame, &at, number, size, pieces)).collect())
}

fn piece(frame: &VecFrame, at: &Transport, number: usize, size: usize, pieces: usize) -> VecFrame {
    let from = at.payload + number * size;
    let mut data = frame.data[..at.payload].to_vec();
    data.extend_from_slice(&frame.data[from..(from + size).min(at.end)]);
    if at.key.protocol == Protocol::Tcp {
        let sequence = sequence(&frame.data, at).wrapping_add((number * size) as u32);
        data[at.l4 + SEQUENCE..at.l4 + SEQUENCE + 4].copy_from_slice(&sequence.to_be_bytes());
        if number + 1 < pieces {
            data[at.l4 + FLAGS] &= !(PSH | FIN);
        }
    }
    set_length(&mut data, at);
    let mut frame = VecFrame::new(&data);
    let at = Transport { end: data.len(), ..*at };
    at.fill_checksum(&mut frame.data);
    frame
}

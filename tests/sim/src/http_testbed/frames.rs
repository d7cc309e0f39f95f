//! Frames between hosts and workers. Only what hosts and workers read is ever written: headers, and the heads of messages. Bodies are
//! whatever lay in the memory before, and transport checksums are left to the "last device" ([`Checksum::Partial`]).

use hairpin_core::flow::{Address, Endpoint};
use hairpin_core::frame::{Batch, Checksum, Frame, FrameIo, Meta};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

/// Bytes of a frame's memory: an Ethernet frame, in an odd number of cache lines, so that heads do not all meet in the same
/// place of a cache.
const ROOM: usize = 25 * 64;
/// The offsets of the headers.
const L3: usize = 14;
const L4: usize = 34;
/// Bytes of headers without options, of IP and TCP.
const HEADERS: usize = 40;
/// Frames in an iteration at most.
const BURST: usize = 32;

/// Payload of a full segment, in bytes.
pub(super) const MSS: u32 = 1460;
/// The scale of windows that all hosts use: Hairpin's own, so that a card that shifts no windows may carry bodies.
pub(super) const SCALE: u8 = 7;

/// Frames' memory that is not in use.
#[derive(Clone, Default)]
pub(super) struct FrameMemory(Rc<RefCell<Vec<Box<[u8]>>>>);

impl FrameMemory {
    fn frame(&self, length: usize) -> BedFrame {
        let data = self.0.borrow_mut().pop().unwrap_or_else(|| vec![0; ROOM].into());
        BedFrame { data, length: length.min(ROOM) as u16, meta: Meta::default(), memory: self.clone() }
    }
}

/// A frame; its memory goes back to where it is from.
pub(super) struct BedFrame {
    data: Box<[u8]>,
    length: u16,
    meta: Meta,
    memory: FrameMemory,
}

impl Drop for BedFrame {
    fn drop(&mut self) {
        self.memory.0.borrow_mut().push(std::mem::take(&mut self.data));
    }
}

impl Frame for BedFrame {
    const TICKETS: bool = false;

    #[inline]
    fn bytes(&self) -> &[u8] {
        &self.data[..usize::from(self.length)]
    }
    #[inline]
    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.data[..usize::from(self.length)]
    }
    fn resize(&mut self, length: usize) -> bool {
        let fits = length <= self.data.len();
        if fits {
            self.length = length as u16;
        }
        fits
    }
    #[inline]
    fn meta(&self) -> &Meta {
        &self.meta
    }
    #[inline]
    fn meta_mut(&mut self) -> &mut Meta {
        &mut self.meta
    }
}

/// An end: IPv4 address and port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct End {
    pub(super) address: u32,
    pub(super) port: u16,
}

impl From<End> for Endpoint {
    fn from(end: End) -> Endpoint {
        Endpoint { address: Address::from_ipv4(end.address.to_be_bytes()), port: end.port }
    }
}

/// A TCP segment, as hosts see it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Segment<'a> {
    pub(super) source: End,
    pub(super) destination: End,
    pub(super) sequence: u32,
    pub(super) acknowledgement: u32,
    pub(super) flags: u8,
    /// As it stands in the header.
    pub(super) window: u16,
    pub(super) options: &'a [u8],
    /// The payload as far as anything is written there, and its length.
    pub(super) written: &'a [u8],
    pub(super) payload: u32,
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|word| word.try_into().ok()).map_or(0, u32::from_be_bytes)
}

fn half(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).and_then(|half| half.try_into().ok()).map_or(0, u16::from_be_bytes)
}

/// A sum of 16-bit words in 16 bits.
fn folded(sum: u32) -> u16 {
    let once = (sum & 0xffff) + (sum >> 16);
    ((once & 0xffff) + (once >> 16)) as u16
}

impl<'a> Segment<'a> {
    /// Reads a frame that a worker or a card has sent. `None`: it is no TCP over IPv4.
    pub(super) fn read(frame: &'a BedFrame) -> Option<Segment<'a>> {
        let bytes = frame.bytes();
        let is_tcp = half(bytes, 12) == 0x0800 && bytes.get(L3) == Some(&0x45) && bytes.get(L3 + 9) == Some(&6);
        let payload = L4 + usize::from(bytes.get(L4 + 12)? >> 4) * 4;
        let end = L3 + usize::from(half(bytes, L3 + 2));
        if !is_tcp || payload < L4 + 20 || end < payload {
            return None;
        }
        Some(Segment {
            source: End { address: word(bytes, L3 + 12), port: half(bytes, L4) },
            destination: End { address: word(bytes, L3 + 16), port: half(bytes, L4 + 2) },
            sequence: word(bytes, L4 + 4),
            acknowledgement: word(bytes, L4 + 8),
            flags: bytes[L4 + 13],
            window: half(bytes, L4 + 14),
            options: bytes.get(L4 + 20..payload)?,
            written: bytes.get(payload..end)?,
            payload: (end - payload) as u32,
        })
    }

    /// Writes it into a frame.
    pub(super) fn frame(&self, memory: &FrameMemory) -> BedFrame {
        let payload = L4 + 20 + self.options.len();
        let length = payload + self.payload as usize;
        let mut frame = memory.frame(length);
        let total = (length - L3) as u16;
        let halves = |address: u32| (address >> 16) + (address & 0xffff);
        let ends = halves(self.source.address) + halves(self.destination.address);
        let bytes = frame.bytes_mut();
        bytes[..payload].fill(0);
        bytes[12..16].copy_from_slice(&[0x08, 0x00, 0x45, 0x00]);
        bytes[16..18].copy_from_slice(&total.to_be_bytes());
        // Do not fragment; 64 hops; TCP.
        (bytes[20], bytes[22], bytes[23]) = (0x40, 64, 6);
        let sum = 0x4500 + u32::from(total) + 0x4000 + 0x4006 + ends;
        bytes[24..26].copy_from_slice(&(!folded(sum)).to_be_bytes());
        bytes[26..30].copy_from_slice(&self.source.address.to_be_bytes());
        bytes[30..34].copy_from_slice(&self.destination.address.to_be_bytes());
        bytes[34..36].copy_from_slice(&self.source.port.to_be_bytes());
        bytes[36..38].copy_from_slice(&self.destination.port.to_be_bytes());
        bytes[38..42].copy_from_slice(&self.sequence.to_be_bytes());
        bytes[42..46].copy_from_slice(&self.acknowledgement.to_be_bytes());
        (bytes[46], bytes[47]) = ((((payload - L4) / 4) << 4) as u8, self.flags);
        bytes[48..50].copy_from_slice(&self.window.to_be_bytes());
        let partial = folded(ends + 6 + (length - L4) as u32).to_be_bytes();
        bytes[50..52].copy_from_slice(&partial);
        bytes[L4 + 20..payload].copy_from_slice(self.options);
        let written = self.written.len().min(length - payload);
        bytes[payload..payload + written].copy_from_slice(&self.written[..written]);
        frame.meta.checksum = Checksum::Partial;
        frame
    }
}

/// Bytes of a frame on the wire: preamble, checksum and gap, and no less than Ethernet's least.
pub(super) fn on_wire(frame: &BedFrame) -> f64 {
    f64::from(frame.length.max(60)) + 24.0
}

/// Bytes on the wire for each byte of body in full segments.
pub fn wire_factor() -> f64 {
    let body = f64::from(MSS);
    (body + (L3 + HEADERS) as f64 + 24.0) / body
}

/// A worker's plane.
#[derive(Default)]
pub(super) struct BedPlane {
    pub(super) waiting: VecDeque<BedFrame>,
    pub(super) sent: Vec<BedFrame>,
    /// Frames and bytes that the worker has taken.
    pub(super) taken: (u64, u64),
    memory: FrameMemory,
}

impl BedPlane {
    pub(super) fn new(memory: &FrameMemory) -> BedPlane {
        BedPlane { memory: memory.clone(), ..BedPlane::default() }
    }
}

impl FrameIo for BedPlane {
    type Frame = BedFrame;

    fn receive(&mut self, out: &mut Batch<BedFrame>) {
        let room = out.remaining_capacity().min(BURST).min(self.waiting.len());
        for frame in self.waiting.drain(..room) {
            self.taken = (self.taken.0 + 1, self.taken.1 + u64::from(frame.length));
            out.push(frame);
        }
    }

    fn transmit(&mut self, batch: &mut Batch<BedFrame>) {
        self.sent.extend(batch.drain(..));
    }

    fn allocate(&mut self) -> Option<BedFrame> {
        Some(self.memory.frame(0))
    }

    fn room(&self) -> usize {
        ROOM
    }
}

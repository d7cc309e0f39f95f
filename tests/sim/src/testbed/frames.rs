//! Packets on their way through the device, and the frames that a worker sees of them.
//!
//! Frames are as long as the packet, but only their heads are ever written: what they carry is zeros, and transport
//! checksums are left to the "last device" ([`Checksum::Partial`]).

use hairpin_core::flow::{Address, Direction, Endpoint, FlowKey, Protocol};
use hairpin_core::frame::{Batch, Checksum, Frame, FrameIo, Meta};
use hairpin_core::wire::tcp::{ACK, FIN, SYN};
use std::cell::RefCell;
use std::rc::Rc;

use super::FlowPart;

/// The service's address and port.
pub(super) const SERVICE: u32 = 0xc000_0201;
pub(super) const SERVICE_PORT: u16 = 80;
/// The first backend's address (RFC 2544), the next one's is one higher; their port.
pub(super) const BACKENDS: u32 = 0xc612_0001;
pub(super) const BACKEND_PORT: u16 = 8080;
/// No backend.
pub(super) const NOWHERE: u16 = u16::MAX;

/// The shortest and the longest frame.
pub(super) const LENGTH: std::ops::RangeInclusive<u16> = 60..=9216;
/// Bytes of a frame's memory: an odd number of cache lines, so that heads do not all meet in the same place of a cache.
const ROOM: usize = 145 * 64;
/// The offsets of the headers.
const L3: usize = 14;
const L4: usize = 34;
const HEAD: usize = 54;

/// A client's first sequence number, and a backend's.
const FROM_CLIENT: u32 = 1000;
const FROM_BACKEND: u32 = 5000;

/// A packet on its way.
#[derive(Clone, Copy, Debug)]
pub(super) struct ModelPacket {
    /// When it was offered.
    pub(super) offered: u64,
    /// Of which flow.
    pub(super) flow: u32,
    /// The client's end.
    pub(super) client: u32,
    pub(super) port: u16,
    /// Bytes of the frame.
    pub(super) length: u16,
    /// The backend that sends it, or that it has reached.
    pub(super) backend: u16,
    /// The core it goes to.
    pub(super) core: u8,
    pub(super) direction: Direction,
    pub(super) part: FlowPart,
    pub(super) protocol: Protocol,
    /// The card has told the core of which flow it is.
    pub(super) marked: bool,
}

/// An IPv4 end.
pub(super) fn end(address: u32, port: u16) -> Endpoint {
    Endpoint { address: Address::from_ipv4(address.to_be_bytes()), port }
}

impl ModelPacket {
    /// Its addresses and ports as it arrives.
    fn ends(&self) -> [(u32, u16); 2] {
        match self.direction {
            Direction::FromClient => [(self.client, self.port), (SERVICE, SERVICE_PORT)],
            Direction::FromBackend => [(BACKENDS + u32::from(self.backend), BACKEND_PORT), (self.client, self.port)],
        }
    }

    /// Its flow as it arrives.
    pub(super) fn key(&self) -> FlowKey {
        let [source, destination] = self.ends().map(|(address, port)| end(address, port));
        FlowKey { source, destination, protocol: self.protocol }
    }

    /// Whether a rule may match it: SYN and FIN go to software.
    pub(super) fn may_match(&self) -> bool {
        self.protocol == Protocol::Udp || self.part == FlowPart::Middle
    }

    /// Its flags, and its sequence and acknowledgement numbers.
    fn numbers(&self) -> (u8, u32, u32) {
        match (self.direction, self.part) {
            (Direction::FromClient, FlowPart::First) => (SYN, FROM_CLIENT, 0),
            (Direction::FromClient, FlowPart::Middle) => (ACK, FROM_CLIENT + 1, FROM_BACKEND + 1),
            (Direction::FromClient, FlowPart::Last) => (FIN | ACK, FROM_CLIENT + 1, FROM_BACKEND + 1),
            (Direction::FromBackend, FlowPart::First) => (SYN | ACK, FROM_BACKEND, FROM_CLIENT + 1),
            (Direction::FromBackend, FlowPart::Middle) => (ACK, FROM_BACKEND + 1, FROM_CLIENT + 1),
            (Direction::FromBackend, FlowPart::Last) => (FIN | ACK, FROM_BACKEND + 1, FROM_CLIENT + 1),
        }
    }

    /// Writes its head.
    fn write(&self, head: &mut [u8; HEAD]) {
        let [(source, source_port), (destination, destination_port)] = self.ends();
        let total = self.length - L3 as u16;
        let halves = |address: u32| (address >> 16) + (address & 0xffff);
        let ends = halves(source) + halves(destination);
        let (ttl, protocol) = (64u8, self.protocol as u8);
        *head = [0; HEAD];
        head[12..16].copy_from_slice(&[0x08, 0x00, 0x45, 0x00]);
        head[16..18].copy_from_slice(&total.to_be_bytes());
        head[20] = 0x40; // do not fragment
        (head[22], head[23]) = (ttl, protocol);
        let sum = 0x4500 + u32::from(total) + 0x4000 + u32::from(u16::from_be_bytes([ttl, protocol])) + ends;
        head[24..26].copy_from_slice(&(!folded(sum)).to_be_bytes());
        head[26..30].copy_from_slice(&source.to_be_bytes());
        head[30..34].copy_from_slice(&destination.to_be_bytes());
        head[34..36].copy_from_slice(&source_port.to_be_bytes());
        head[36..38].copy_from_slice(&destination_port.to_be_bytes());
        let payload = self.length - L4 as u16;
        let partial = folded(ends + u32::from(protocol) + u32::from(payload)).to_be_bytes();
        match self.protocol {
            Protocol::Tcp => {
                let (flags, sequence, acknowledgement) = self.numbers();
                head[38..42].copy_from_slice(&sequence.to_be_bytes());
                head[42..46].copy_from_slice(&acknowledgement.to_be_bytes());
                head[46..50].copy_from_slice(&[0x50, flags, 0xff, 0xff]);
                head[50..52].copy_from_slice(&partial);
            }
            Protocol::Udp => {
                head[38..40].copy_from_slice(&payload.to_be_bytes());
                head[40..42].copy_from_slice(&partial);
            }
        }
    }

    /// The backend that a frame, made of this packet by the worker, has to do with; [`NOWHERE`]: the frame is something
    /// else.
    pub(super) fn destination_of(&self, frame: &[u8]) -> u16 {
        let word =
            |at: usize| frame.get(at..at + 4).and_then(|word| word.try_into().ok()).map_or(0, u32::from_be_bytes);
        match self.direction {
            Direction::FromClient if word(26) == self.client => {
                u16::try_from(word(30).wrapping_sub(BACKENDS)).unwrap_or(NOWHERE)
            }
            Direction::FromBackend if word(26) == SERVICE && word(30) == self.client => self.backend,
            _ => NOWHERE,
        }
    }
}

/// A sum of 16-bit words in 16 bits.
fn folded(sum: u32) -> u16 {
    let once = (sum & 0xffff) + (sum >> 16);
    ((once & 0xffff) + (once >> 16)) as u16
}

/// Frames' memory that is not in use.
type FrameMemory = Rc<RefCell<Vec<Box<[u8]>>>>;

/// A frame; its memory goes back to where it is from.
pub(super) struct Sheet {
    data: Box<[u8]>,
    length: u16,
    meta: Meta,
    store: FrameMemory,
}

impl std::ops::Drop for Sheet {
    fn drop(&mut self) {
        self.store.borrow_mut().push(std::mem::take(&mut self.data));
    }
}

impl Frame for Sheet {
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

/// The origin of workers' frames.
pub(super) struct ModelPlane {
    store: FrameMemory,
}

impl ModelPlane {
    pub(super) fn new() -> ModelPlane {
        ModelPlane { store: FrameMemory::default() }
    }

    /// A packet as a frame with a number.
    pub(super) fn frame(&mut self, packet: &ModelPacket, ticket: u32) -> Sheet {
        let data = self.store.borrow_mut().pop();
        let mut data = data.unwrap_or_else(|| vec![0; ROOM].into());
        if let Some(head) = data.first_chunk_mut() {
            packet.write(head);
        }
        let meta = Meta { ticket, checksum: Checksum::Partial, ..Meta::default() };
        Sheet { data, length: packet.length, meta, store: self.store.clone() }
    }
}

/// Frames come and go elsewhere; the worker is lent none for what it would say by itself.
impl FrameIo for ModelPlane {
    type Frame = Sheet;
    fn receive(&mut self, _: &mut Batch<Sheet>) {}
    fn transmit(&mut self, _: &mut Batch<Sheet>) {}
    fn allocate(&mut self) -> Option<Sheet> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hairpin_core::wire::{Parsed, parse};

    #[test]
    fn frames_are_what_packets_say() {
        let mut plane = ModelPlane::new();
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            for direction in [Direction::FromClient, Direction::FromBackend] {
                for (part, length) in [(FlowPart::First, 60), (FlowPart::Middle, 1514), (FlowPart::Last, 9216)] {
                    let packet = ModelPacket {
                        offered: 0,
                        flow: 0,
                        client: 0x0a12_3456,
                        port: 4321,
                        length,
                        backend: 3,
                        core: 0,
                        direction,
                        part,
                        protocol,
                        marked: false,
                    };
                    let frame = plane.frame(&packet, 7);
                    let Ok(Parsed::Transport(at)) = parse(frame.bytes()) else { panic!("{packet:?}") };
                    assert_eq!((at.key, at.end), (packet.key(), usize::from(length)));
                    if protocol == Protocol::Tcp {
                        assert_eq!(at.tcp_flags, packet.numbers().0);
                    }
                    // The checksum that a device fills in: the complement of the sum of everything, the partial sum included.
                    let words = frame.bytes()[L4..].chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1]));
                    let filled = match !folded(words.sum()) {
                        0 if protocol == Protocol::Udp => 0xffff,
                        sum => sum,
                    };
                    assert_eq!(at.transport_checksum(frame.bytes()), Some(filled), "{packet:?}");
                }
            }
        }
    }
}

//! A tiny network: stations with ports, wires between them, time.

use crate::flow::Address;
use crate::frame::{Batch, Frame, FrameIo, VecFrame};
use crate::link::{Link, LinkDrop, LinkOptions, LinkPlan, Neighbour, Neighbours, PortAddresses};
use crate::time::{Duration, Time};
use crate::wire::checksum::Sum;
use crate::wire::{ipv4, ipv6};
use alloc::collections::VecDeque;
use alloc::rc::Rc;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::net::IpAddr;

pub(super) fn ip(address: &str) -> IpAddr {
    address.parse().unwrap()
}

pub(super) fn at(address: &str) -> Address {
    ip(address).into()
}

pub(super) fn mac(number: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, number]
}

/// Ports in memory: what arrives and what has been sent, by port.
#[derive(Clone, Default)]
pub(super) struct Wire {
    pub(super) arriving: Rc<RefCell<VecDeque<VecFrame>>>,
    pub(super) sent: Rc<RefCell<Vec<VecFrame>>>,
    /// Frames it still takes.
    pub(super) room: Rc<Cell<usize>>,
    /// Frames it still lends.
    pub(super) frames: Rc<Cell<usize>>,
}

impl FrameIo for Wire {
    type Frame = VecFrame;
    fn receive(&mut self, out: &mut Batch<VecFrame>) {
        while !out.is_full()
            && let Some(frame) = self.arriving.borrow_mut().pop_front()
        {
            out.push(frame);
        }
    }
    fn transmit(&mut self, batch: &mut Batch<VecFrame>) {
        let count = batch.len().min(self.room.get());
        self.room.set(self.room.get() - count);
        self.sent.borrow_mut().extend(batch.drain(..count));
    }
    fn allocate(&mut self) -> Option<VecFrame> {
        let left = self.frames.get().checked_sub(1)?;
        self.frames.set(left);
        Some(VecFrame::default())
    }
}

/// A link layer, its wire and its clock.
pub(super) struct Station {
    pub(super) link: Link<Wire>,
    pub(super) wire: Wire,
    pub(super) neighbours: Arc<Neighbours>,
    pub(super) now: Time,
}

pub(super) fn port(number: u8, networks: &[(&str, u8)], gateways: &[&str]) -> PortAddresses {
    PortAddresses {
        mac: mac(number),
        mtu: 1500,
        networks: networks.iter().map(|(address, prefix)| (ip(address), *prefix)).collect(),
        gateways: gateways.iter().map(|address| ip(address)).collect(),
    }
}

impl Station {
    /// One that has announced itself already and has nothing to do.
    pub(super) fn new(options: &LinkOptions) -> Station {
        Station::settled(options, 256)
    }

    /// [`Station::new`] with a table of so many places.
    pub(super) fn settled(options: &LinkOptions, capacity: usize) -> Station {
        let mut station = Station::with_places(options, capacity);
        station.neighbours.takes_announcement();
        station.iterate();
        station.wire.sent.borrow_mut().clear();
        station
    }

    pub(super) fn fresh(options: &LinkOptions) -> Station {
        Station::with_places(options, 256)
    }

    pub(super) fn with_places(options: &LinkOptions, capacity: usize) -> Station {
        let plan = Arc::new(LinkPlan::new(options).unwrap());
        Station::beside(plan, Arc::new(Neighbours::new(capacity, [1, 2, 3, 4])))
    }

    /// Another worker of the same ports.
    pub(super) fn beside(plan: Arc<LinkPlan>, neighbours: Arc<Neighbours>) -> Station {
        let wire = Wire::default();
        wire.room.set(usize::MAX);
        wire.frames.set(usize::MAX);
        let link = Link::new(plan, neighbours.clone(), wire.clone());
        Station { link, wire, neighbours, now: Time::from_nanos(1_000_000_000_000) }
    }

    pub(super) fn iterate(&mut self) {
        self.link.advance(self.now);
        self.check();
    }

    /// Lets time pass in steps in which everything that is due gets done.
    pub(super) fn wait(&mut self, time: Duration) {
        let end = self.now + time;
        let step = Duration::from_millis(if time < Duration::from_secs(60) { 25 } else { 250 });
        while self.now < end {
            self.now = (self.now + step).min(end);
            self.iterate();
        }
    }

    /// The frames that came in on the wire, as the worker gets them.
    pub(super) fn receive(&mut self) -> Vec<VecFrame> {
        let mut batch = Batch::new();
        self.link.receive(&mut batch);
        self.check();
        batch.into_iter().collect()
    }

    /// Lets one frame arrive at `port`; what came in, as the worker gets it.
    pub(super) fn arrives(&mut self, port: u16, bytes: &[u8]) -> Vec<VecFrame> {
        let mut frame = VecFrame::new(bytes);
        frame.meta.port = port;
        self.wire.arriving.borrow_mut().push_back(frame);
        self.receive()
    }

    /// Has the worker send; what the wire did not take comes back.
    pub(super) fn send(&mut self, frames: &[VecFrame]) -> Vec<VecFrame> {
        let mut batch: Batch<VecFrame> = frames.iter().cloned().collect();
        self.link.transmit(&mut batch);
        self.check();
        batch.into_iter().collect()
    }

    /// The frames sent since the last call.
    pub(super) fn sent(&self) -> Vec<VecFrame> {
        core::mem::take(&mut *self.wire.sent.borrow_mut())
    }

    pub(super) fn dropped(&self, reason: LinkDrop) -> u64 {
        self.link.statistics().dropped(reason)
    }

    pub(super) fn neighbour(&self, address: &str) -> Option<Neighbour> {
        self.neighbours.entries().find(|neighbour| neighbour.address == ip(address))
    }

    /// No frame has been lost.
    pub(super) fn check(&self) {
        assert_eq!(self.link.statistics().balance(), self.link.waiting() as u64, "{:?}", self.link.statistics());
    }
}

/// Carries what one station sent by `from` to the other's port `to`.
pub(super) fn transfer(a: &mut Station, from: u16, b: &mut Station, to: u16) -> usize {
    let sent = a.sent();
    let mut carried = 0;
    for mut frame in sent {
        if frame.meta.port == from {
            frame.meta = Default::default();
            frame.meta.port = to;
            b.wire.arriving.borrow_mut().push_back(frame);
            carried += 1;
        }
    }
    carried
}

/// A UDP datagram of `length` bytes of IP packet between two addresses, as a worker makes it.
pub(super) fn datagram(from: &str, to: &str, length: usize) -> VecFrame {
    let (source, destination) = (at(from), at(to));
    let mut bytes = Vec::from([0xee; 12]);
    let header_length = if source.is_ipv4() { ipv4::HEADER } else { ipv6::HEADER };
    let payload = length - header_length;
    if source.is_ipv4() {
        bytes.extend([8, 0]);
        bytes.extend(ipv4::header(source.ipv4_octets(), destination.ipv4_octets(), 17, 0, 64, payload));
    } else {
        bytes.extend([0x86, 0xdd]);
        bytes.extend(ipv6::header(&source, &destination, 17, 64, payload));
    }
    let udp = bytes.len();
    bytes.extend([0x10, 0, 0, 53]);
    bytes.extend((payload as u16).to_be_bytes());
    bytes.resize(udp + payload, 0);
    let (a, b) = match source.is_ipv4() {
        true => (source.ipv4_octets().to_vec(), destination.ipv4_octets().to_vec()),
        false => (source.0.to_vec(), destination.0.to_vec()),
    };
    let checksum = (Sum::pseudo_header(&a, &b, 17, payload) + Sum::of(&bytes[udp..])).checksum();
    bytes[udp + 6..udp + 8].copy_from_slice(&checksum.to_be_bytes());
    VecFrame::new(&bytes)
}

/// The frame with a VLAN tag.
pub(super) fn tagged(frame: &VecFrame, number: u16) -> VecFrame {
    let mut tagged = frame.clone();
    let [high, low] = number.to_be_bytes();
    tagged.data.splice(12..12, [0x81, 0, high, low]);
    tagged
}

/// The Ethernet addresses of a frame: to, from.
pub(super) fn ends(frame: &VecFrame) -> ([u8; 6], [u8; 6]) {
    (frame.bytes()[..6].try_into().unwrap(), frame.bytes()[6..12].try_into().unwrap())
}

//! Target of `link`: frames that come in, frames that a worker sends, and time.
//!
//! An input is a list of records. A first byte of 128 or more: a frame, whose length follows in two bytes, little-endian;
//! bit 0 names its port, bit 1 says that the worker sends it, bit 2 then that it is for the backend named by the next two. Less: so many tenths of a second pass.

use hairpin_core::config::{Encapsulation, Outer};
use hairpin_core::frame::{Batch, Egress, Frame, FrameIo, VecFrame};
use hairpin_core::link::{DirectBackend, HELD_MAX, Link, LinkOptions, LinkPlan, Neighbours, PortAddresses};
use hairpin_core::time::{Duration, Time};
use hairpin_core::wire::{self, Parsed};
use std::net::IpAddr;
use std::sync::Arc;

/// The Ethernet address of a port; the last byte is its number and one.
pub const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

/// Frames in, frames out.
#[derive(Default)]
struct FuzzWire {
    arriving: Option<VecFrame>,
    sent: Vec<VecFrame>,
}

impl FrameIo for FuzzWire {
    type Frame = VecFrame;
    fn receive(&mut self, out: &mut Batch<VecFrame>) {
        out.extend(self.arriving.take());
    }
    fn transmit(&mut self, batch: &mut Batch<VecFrame>) {
        self.sent.extend(batch.drain(..));
    }
    fn allocate(&mut self) -> Option<VecFrame> {
        Some(VecFrame::default())
    }
}

fn plan() -> LinkPlan {
    let ip = |address: &str| -> IpAddr { address.parse().expect("an address") };
    let port = |number, networks: &[(&str, u8)], gateways: &[&str]| PortAddresses {
        mac: [MAC[0], 0, 0, 0, 0, number],
        mtu: 1500,
        networks: networks.iter().map(|(address, prefix)| (ip(address), *prefix)).collect(),
        gateways: gateways.iter().map(|address| ip(address)).collect(),
    };
    let direct = |number, address, encapsulation| {
        let outer = Outer { encapsulation, port: 6080, source: None };
        DirectBackend { number, address: ip(address), outer }
    };
    let options = LinkOptions {
        ports: vec![
            port(1, &[("10.0.0.1", 24), ("2001:db8::1", 64)], &["10.0.0.254", "fe80::254"]),
            port(2, &[("10.1.0.1", 24)], &[]),
        ],
        local: vec![ip("10.0.0.80"), ip("2001:db8::80")],
        direct: vec![
            direct(0, "10.0.0.9", Encapsulation::None),
            direct(1, "10.9.0.9", Encapsulation::Gue),
            direct(2, "2001:db8::9", Encapsulation::Ipip),
        ],
        ..LinkOptions::default()
    };
    LinkPlan::new(&options).expect("a plan")
}

/// No frame is lost, no more wait than may, and what goes out says whose it is.
pub fn link(mut input: &[u8]) -> bool {
    let neighbours = Arc::new(Neighbours::new(64, [1, 2, 3, 4]));
    let mut link = Link::new(Arc::new(plan()), neighbours, FuzzWire::default());
    let mut now = Time::from_nanos(1_000_000_000_000);
    link.advance(now);
    let started = *link.statistics();
    while let Some((&tag, rest)) = input.split_first() {
        input = rest;
        if tag < 128 {
            now = now + Duration::from_millis(100 * u64::from(tag));
        } else {
            let Some((length, rest)) = input.split_first_chunk::<2>() else { break };
            let length = usize::from(u16::from_le_bytes(*length)).min(rest.len());
            let (bytes, rest) = rest.split_at(length);
            input = rest;
            let mut frame = VecFrame::new(bytes);
            frame.meta.port = u16::from(tag & 1);
            if tag & 6 == 6 {
                frame.meta.egress = Egress::Direct(u16::from(tag >> 3 & 3));
            }
            let mut batch = Batch::new();
            if tag & 2 == 0 {
                link.io_mut().arriving = Some(frame);
                link.receive(&mut batch);
                for frame in batch.iter().filter(|frame| frame.is_examined()) {
                    let parsed = wire::parse(frame.bytes());
                    assert_eq!(parsed.ok(), wire::examined(frame.bytes()).map(Parsed::Transport));
                }
            } else {
                batch.push(frame);
            }
            // what the worker gets it sends on as it is
            link.transmit(&mut batch);
            assert!(batch.is_empty());
        }
        link.advance(now);
        assert_eq!(link.statistics().balance(), link.waiting() as u64, "{:?}", link.statistics());
        assert!(link.waiting() <= HELD_MAX + 2 * 64);
    }
    for frame in std::mem::take(&mut link.io_mut().sent) {
        let number = frame.meta().port as u8 + 1;
        assert_eq!(frame.bytes()[6..12], [MAC[0], 0, 0, 0, 0, number]);
    }
    let statistics = link.statistics();
    let known = link.statistics().absorbed > 0;
    known || statistics.answered + statistics.echoed > 0 || statistics.taken > started.taken
}

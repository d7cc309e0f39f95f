//! A made trace with its own times: whole connections, both directions, SYN and FIN.

use crate::trace::capture::frame_length;
use crate::trace::{Bounds, Generator, TraceModel};
use hairpin_core::flow::{Direction, FlowKey, Protocol};
use hairpin_core::time::Time;
use hairpin_core::wire::tcp::{FIN, RST, SYN};
use hairpin_sim::testbed::{FlowPart, ModelTraffic, OfferedPacket};

use super::key;

/// A trace whose times are stretched so that it has so many packets a second on average: bursts stay bursts.
pub struct GeneratedMix {
    generator: Generator,
    /// By which times are multiplied.
    stretch: f64,
    end: u64,
    flows: u32,
    /// The protocol of each connection that has begun.
    protocols: Vec<Protocol>,
    /// UDP's connections that have had a packet of either direction.
    began: Vec<[bool; 2]>,
}

impl GeneratedMix {
    /// `packets_per_s` for `seconds`. All packets are made once before, to find out when the last one comes.
    pub fn new(model: &TraceModel, packets_per_s: f64, seconds: f64, seed: u64) -> GeneratedMix {
        let bounds = Bounds::packets((packets_per_s * seconds).round().max(1.0) as u64);
        let mut first = Generator::new(model, bounds, seed);
        let mut protocols = Vec::new();
        let mut last = 1;
        for packet in first.by_ref() {
            last = packet.at.max(1);
            if packet.connection as usize >= protocols.len() {
                protocols.resize(packet.connection as usize + 1, packet.protocol);
            }
            protocols[packet.connection as usize] = packet.protocol;
        }
        let end = seconds * 1e9;
        GeneratedMix {
            generator: Generator::new(model, bounds, seed),
            stretch: end / last as f64,
            end: end as u64,
            flows: first.connections().max(1),
            began: vec![[false; 2]; protocols.len()],
            protocols,
        }
    }
}

impl ModelTraffic for GeneratedMix {
    #[inline]
    fn next(&mut self) -> Option<OfferedPacket> {
        let packet = self.generator.next()?;
        let at = (packet.at as f64 * self.stretch) as u64;
        if at >= self.end {
            return None;
        }
        let direction = if packet.from_client { Direction::FromClient } else { Direction::FromBackend };
        let part = match packet.protocol {
            Protocol::Tcp if packet.flags & SYN != 0 => FlowPart::First,
            // A reset ends a connection as a FIN does: the testbed has no packet of its own for it.
            Protocol::Tcp if packet.flags & (FIN | RST) != 0 => FlowPart::Last,
            Protocol::Tcp => FlowPart::Middle,
            Protocol::Udp => {
                let began = self.began.get_mut(packet.connection as usize)?;
                let began = &mut began[usize::from(packet.from_client)];
                if std::mem::replace(began, true) { FlowPart::Middle } else { FlowPart::First }
            }
        };
        let length = frame_length(&packet);
        Some(OfferedPacket { at: Time::from_nanos(at), flow: packet.connection, length, direction, part })
    }

    fn key(&self, flow: u32) -> FlowKey {
        key(flow, self.protocols.get(flow as usize).copied().unwrap_or(Protocol::Tcp))
    }

    fn flows(&self) -> u32 {
        self.flows
    }
}

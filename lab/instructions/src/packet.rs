//! Packets of the ends that the worker stands between, and what those read in the worker's.

use hairpin_core::flow::{Endpoint, FlowKey, Protocol};
use hairpin_core::wire::checksum::Sum;
use hairpin_core::wire::tcp::{ALIGNED_TIMESTAMPS, FIN, SYN, timestamps};
use hairpin_core::wire::{self, Parsed};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// IPv4 or IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

impl Family {
    /// The end of host `host` of network `network`.
    pub(crate) fn end(self, network: u8, host: u16, port: u16) -> Endpoint {
        let [high, low] = host.to_be_bytes();
        let address: IpAddr = match self {
            Family::V4 => Ipv4Addr::new(10, network, high, low).into(),
            Family::V6 => Ipv6Addr::new(0xfd00, u16::from(network), 0, 0, 0, 0, 0, host).into(),
        };
        Endpoint::new(address, port)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Family::V4 => "IPv4",
            Family::V6 => "IPv6",
        }
    }
}

/// The fields that an end writes into a TCP header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TcpFields {
    pub(crate) flags: u8,
    pub(crate) sequence: u32,
    pub(crate) acknowledgement: u32,
    /// Value and echo of timestamps (RFC 7323), if it has any.
    pub(crate) timestamps: Option<[u32; 2]>,
}

/// TCP options of a SYN: MSS of 1460, SACK permitted, window scale of 7 (RFC 9293, RFC 2018, RFC 7323).
const SYN_OPTIONS: [u8; 12] = [2, 4, 0x05, 0xb4, 4, 2, 1, 1, 1, 3, 3, 7];

/// A TCP segment; one with SYN has the usual options.
pub(crate) fn tcp(from: Endpoint, to: Endpoint, numbers: TcpFields, payload: &[u8]) -> Vec<u8> {
    let mut options = if numbers.flags & SYN != 0 { SYN_OPTIONS.to_vec() } else { Vec::new() };
    if let Some([value, echo]) = numbers.timestamps {
        options.extend(ALIGNED_TIMESTAMPS);
        options.extend([value.to_be_bytes(), echo.to_be_bytes()].concat());
    }
    let mut header = Vec::new();
    header.extend(from.port.to_be_bytes());
    header.extend(to.port.to_be_bytes());
    header.extend(numbers.sequence.to_be_bytes());
    header.extend(numbers.acknowledgement.to_be_bytes());
    header.extend([(((20 + options.len()) / 4) << 4) as u8, numbers.flags, 0xff, 0xff, 0, 0, 0, 0]);
    header.extend(options);
    packet(from, to, Protocol::Tcp, &[&header, payload].concat())
}

/// A datagram.
pub(crate) fn udp(from: Endpoint, to: Endpoint, payload: &[u8]) -> Vec<u8> {
    let mut header = Vec::new();
    header.extend(from.port.to_be_bytes());
    header.extend(to.port.to_be_bytes());
    header.extend((8 + payload.len() as u16).to_be_bytes());
    header.extend([0, 0]);
    packet(from, to, Protocol::Udp, &[&header, payload].concat())
}

fn packet(from: Endpoint, to: Endpoint, protocol: Protocol, transport: &[u8]) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    if from.address.is_ipv4() {
        frame.extend([0x08, 0x00, 0x45, 0]);
        frame.extend((20 + transport.len() as u16).to_be_bytes());
        frame.extend([0, 0, 0x40, 0, 64, protocol as u8, 0, 0]);
        frame.extend(from.address.ipv4_octets());
        frame.extend(to.address.ipv4_octets());
        let checksum = Sum::of(&frame[14..34]).checksum();
        frame[24..26].copy_from_slice(&checksum.to_be_bytes());
    } else {
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        frame.extend((transport.len() as u16).to_be_bytes());
        frame.extend([protocol as u8, 64]);
        frame.extend(from.address.0);
        frame.extend(to.address.0);
    }
    frame.extend(transport);
    let at = parsed(&frame);
    at.fill_checksum(&mut frame);
    frame
}

fn parsed(frame: &[u8]) -> wire::Transport {
    match wire::parse(frame) {
        Ok(Parsed::Transport(at)) => at,
        other => panic!("not a TCP or UDP packet but {other:?}"),
    }
}

/// The fields that an end reads from a packet of the worker.
#[derive(Clone, Debug)]
pub(crate) struct ReadPacket {
    pub(crate) key: FlowKey,
    /// Of TCP; 0 for UDP.
    pub(crate) flags: u8,
    sequence: u32,
    /// The value of its timestamps.
    pub(crate) timestamp: Option<u32>,
    pub(crate) payload: Vec<u8>,
}

impl ReadPacket {
    /// # Panics
    /// When the worker has sent something else than a TCP or UDP packet.
    pub(crate) fn of(frame: &[u8]) -> ReadPacket {
        let at = parsed(frame);
        let number = |offset: usize| u32::from_be_bytes(frame[offset..offset + 4].try_into().unwrap_or_default());
        let options = (at.l4 + 20).min(at.payload);
        let timestamp = timestamps(&frame[options..at.payload]).next().map(|value| number(options + value));
        let (sequence, payload) = (number(at.l4 + 4), frame[at.payload..at.end].to_vec());
        ReadPacket { key: at.key, flags: at.tcp_flags, sequence, timestamp, payload }
    }

    /// The number to acknowledge with.
    pub(crate) fn next(&self) -> u32 {
        let phantom = u32::from(self.flags & SYN != 0) + u32::from(self.flags & FIN != 0);
        self.sequence.wrapping_add(self.payload.len() as u32 + phantom)
    }
}

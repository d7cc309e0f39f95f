//! Packets to run the programs on, and strategies that make them up.

use hairpin_core::flow::{Address, Endpoint, FlowKey, Protocol};
use hairpin_core::wire::checksum::Sum;
use hairpin_core::wire::{Parsed, Transport, parse};
use proptest::collection::vec;
use proptest::prelude::*;

pub(crate) const FIN: u8 = 1;
pub(crate) const SYN: u8 = 2;
pub(crate) const RST: u8 = 4;
pub(crate) const ACK: u8 = 16;

/// A packet, field by field.
#[derive(Clone, Debug)]
pub(crate) struct Packet {
    pub(crate) ethernet: [u8; 12],
    pub(crate) tags: Vec<[u8; 4]>,
    pub(crate) key: FlowKey,
    pub(crate) ttl: u8,
    pub(crate) ip_options: Vec<u8>,
    pub(crate) extensions: Vec<u8>,
    pub(crate) flags: u8,
    pub(crate) sequence: u32,
    pub(crate) acknowledgement: u32,
    pub(crate) window: u16,
    pub(crate) tcp_options: Vec<u8>,
    pub(crate) payload: Vec<u8>,
    pub(crate) no_checksum: bool,
}

impl Packet {
    pub(crate) fn new(key: FlowKey) -> Packet {
        Packet {
            ethernet: [0; 12],
            tags: Vec::new(),
            key,
            ttl: 64,
            ip_options: Vec::new(),
            extensions: Vec::new(),
            flags: ACK,
            sequence: 1000,
            acknowledgement: 2000,
            window: 0x2000,
            tcp_options: Vec::new(),
            payload: b"payload".to_vec(),
            no_checksum: false,
        }
    }

    pub(crate) fn to(mut self, destination: [u8; 6]) -> Packet {
        self.ethernet[..6].copy_from_slice(&destination);
        self
    }

    /// The frame, its checksums right.
    pub(crate) fn frame(&self) -> Vec<u8> {
        let mut frame = self.ethernet.to_vec();
        for [a, b, c, d] in &self.tags {
            frame.extend([*a, *b, *c, *d]);
        }
        let transport = self.transport();
        let (source, destination) = (&self.key.source.address, &self.key.destination.address);
        let protocol = self.key.protocol as u8;
        if self.key.is_ipv4() {
            frame.extend([0x08, 0x00]);
            let length = 20 + self.ip_options.len();
            let mut header = vec![0x40 | (length / 4) as u8, 0x10];
            header.extend(((length + transport.len()) as u16).to_be_bytes());
            header.extend([0x12, 0x34, 0x40, 0x00, self.ttl, protocol, 0, 0]);
            header.extend(source.ipv4_octets());
            header.extend(destination.ipv4_octets());
            header.extend(&self.ip_options);
            let checksum = Sum::of(&header).checksum();
            header[10..12].copy_from_slice(&checksum.to_be_bytes());
            frame.extend(header);
        } else {
            frame.extend([0x86, 0xdd, 0x60, 0x12, 0x34, 0x56]);
            frame.extend(((self.extensions.len() + transport.len()) as u16).to_be_bytes());
            // The extensions are of one kind, destination options; each says what is next.
            frame.extend([if self.extensions.is_empty() { protocol } else { 60 }, self.ttl]);
            frame.extend(source.0);
            frame.extend(destination.0);
            frame.extend(&self.extensions);
        }
        frame.extend(transport);
        if let Ok(Parsed::Transport(at)) = parse(&frame)
            && !(self.no_checksum && self.key.protocol == Protocol::Udp)
        {
            at.fill_checksum(&mut frame);
        }
        frame
    }

    fn transport(&self) -> Vec<u8> {
        let mut bytes = self.key.source.port.to_be_bytes().to_vec();
        bytes.extend(self.key.destination.port.to_be_bytes());
        match self.key.protocol {
            Protocol::Udp => {
                bytes.extend(((8 + self.payload.len()) as u16).to_be_bytes());
                bytes.extend([0, 0]);
            }
            Protocol::Tcp => {
                bytes.extend(self.sequence.to_be_bytes());
                bytes.extend(self.acknowledgement.to_be_bytes());
                bytes.extend([((20 + self.tcp_options.len()) / 4) as u8 * 16, self.flags]);
                bytes.extend(self.window.to_be_bytes());
                bytes.extend([0; 4]);
                bytes.extend(&self.tcp_options);
            }
        }
        bytes.extend(&self.payload);
        bytes
    }
}

/// The positions of a frame's headers, as core finds them; panics if it is no packet.
pub(crate) fn parsed(frame: &[u8]) -> Transport {
    match parse(frame) {
        Ok(Parsed::Transport(at)) => at,
        other => panic!("core does not take this for a packet: {other:?}"),
    }
}

pub(crate) fn v4(source: [u8; 4], source_port: u16, destination: [u8; 4], port: u16, protocol: Protocol) -> FlowKey {
    FlowKey {
        source: Endpoint { address: Address::from_ipv4(source), port: source_port },
        destination: Endpoint { address: Address::from_ipv4(destination), port },
        protocol,
    }
}

pub(crate) fn v6(source: &str, source_port: u16, destination: &str, port: u16, protocol: Protocol) -> FlowKey {
    let address = |text: &str| Address(text.parse::<std::net::Ipv6Addr>().unwrap().octets());
    FlowKey {
        source: Endpoint { address: address(source), port: source_port },
        destination: Endpoint { address: address(destination), port },
        protocol,
    }
}

/// Unicast addresses, some of them with the bits that make checksums wrap.
fn address(ipv6: bool) -> BoxedStrategy<Address> {
    if ipv6 {
        let whole = |rest: [u8; 14]| {
            let mut bytes = [0x20; 16];
            bytes[2..].copy_from_slice(&rest);
            Address(bytes)
        };
        prop_oneof![any::<[u8; 14]>(), Just([0xff; 14]), Just([0; 14])].prop_map(whole).boxed()
    } else {
        (1u8..=223, prop_oneof![any::<[u8; 3]>(), Just([0xff, 0xff, 0xfe]), Just([0, 0, 1])])
            .prop_filter("loopback", |(first, _)| *first != 127)
            .prop_map(|(a, [b, c, d])| Address::from_ipv4([a, b, c, d]))
            .boxed()
    }
}

fn endpoint(ipv6: bool) -> impl Strategy<Value = Endpoint> {
    let port = prop_oneof![any::<u16>(), Just(0xffff), Just(1)];
    (address(ipv6), port).prop_map(|(address, port)| Endpoint { address, port })
}

/// Two ends of one family: the source's and the destination's.
pub(crate) fn ends(ipv6: bool) -> impl Strategy<Value = (Endpoint, Endpoint)> {
    (endpoint(ipv6), endpoint(ipv6)).prop_filter("one address", |(a, b)| a.address != b.address)
}

/// TCP options: padding, timestamps, SACK blocks at any alignment, broken ones, or anything at all.
fn tcp_options() -> impl Strategy<Value = Vec<u8>> {
    let option = prop_oneof![
        3 => Just(vec![1]),
        1 => Just(vec![2, 4, 5, 0xb4]),
        1 => any::<[u8; 8]>().prop_map(|stamps| [&[8, 10], &stamps[..]].concat()),
        5 => vec(prop_oneof![any::<[u8; 8]>(), Just([0xff; 8])], 1..=4)
            .prop_map(|blocks| [&[5, 2 + 8 * blocks.len() as u8], &blocks.concat()[..]].concat()),
        1 => (any::<u8>(), 0u8..12).prop_map(|(kind, length)| vec![kind, length, 7, 7]),
        1 => Just(vec![0]),
    ];
    let list = vec(option, 0..5).prop_map(|options| options.concat());
    let aligned =
        (any::<[u8; 8]>(), list.clone()).prop_map(|(stamps, rest)| [&[1, 1, 8, 10], &stamps[..], &rest[..]].concat());
    prop_oneof![4 => list, 3 => aligned, 1 => vec(any::<u8>(), 0..=40)].prop_map(|mut options: Vec<u8>| {
        options.truncate(40);
        options.resize(options.len().next_multiple_of(4), 1);
        options
    })
}

/// VLAN tags in band, at most two.
fn tags() -> impl Strategy<Value = Vec<[u8; 4]>> {
    let kind = prop_oneof![Just([0x81, 0x00]), Just([0x88, 0xa8])];
    vec((kind, any::<[u8; 2]>()).prop_map(|([a, b], [c, d])| [a, b, c, d]), 0..=2)
}

/// Any packet with a right checksum, or none where that is allowed.
pub(crate) fn packet() -> impl Strategy<Value = Packet> {
    let numbers = prop_oneof![any::<u32>(), Just(u32::MAX), Just(0)];
    let head = (any::<bool>(), any::<bool>(), tags(), 2u8..=255);
    let window = prop_oneof![any::<u16>(), Just(0), Just(0xffff), (0u32..16).prop_map(|bit| 1 << bit)];
    let tcp = (any::<bool>(), numbers.clone(), numbers, window, tcp_options());
    let body = (vec(any::<u8>(), 0..64), any::<bool>(), 0usize..=10, 0usize..=8);
    (head, tcp, body).prop_flat_map(|((ipv6, is_tcp, tags, ttl), tcp, body)| {
        ends(ipv6).prop_map(move |(source, destination)| {
            let protocol = if is_tcp { Protocol::Tcp } else { Protocol::Udp };
            let (ack, sequence, acknowledgement, window, tcp_options) = tcp.clone();
            let (payload, no_checksum, ip_options, extensions) = body.clone();
            let next = |last: bool| if last { protocol as u8 } else { 60 };
            let extension = |i| [next(i + 1 == extensions), 0, 1, 4, 0, 0, 0, 0];
            Packet {
                tags: tags.clone(),
                ttl,
                ip_options: vec![1; ip_options * 4],
                extensions: (0..extensions).flat_map(extension).collect(),
                flags: 8 | if ack { ACK } else { 0 },
                sequence,
                acknowledgement,
                window,
                tcp_options,
                payload,
                no_checksum,
                ..Packet::new(FlowKey { source, destination, protocol })
            }
        })
    })
}

//! Packets built from scratch, with a checksum written down independently of `core`.

use hairpin_core::flow::{Address, Endpoint, FlowKey, Protocol};
use hairpin_core::frame::{Checksum, VecFrame};
use hairpin_core::wire::tcp::{ACK, FIN, PSH, RST, SYN};
use hairpin_core::wire::{Parsed, Transport, parse};
use proptest::collection::vec;
use proptest::prelude::*;

/// A TCP option.
#[derive(Clone, Debug)]
pub(crate) enum Item {
    Nop,
    Mss(u16),
    Timestamps(u32, u32),
    Sack(Vec<(u32, u32)>),
}

/// The transport header.
#[derive(Clone, Debug)]
pub(crate) enum Layer4 {
    Tcp { sequence: u32, acknowledgement: u32, flags: u8, window: u16, options: Vec<Item> },
    Udp { without_checksum: bool },
}

/// A packet to be.
#[derive(Clone, Debug)]
pub(crate) struct Packet {
    pub(crate) tags: Vec<u16>,
    pub(crate) source: Endpoint,
    pub(crate) destination: Endpoint,
    pub(crate) hops: u8,
    pub(crate) identification: u16,
    pub(crate) dont_fragment: bool,
    /// IPv4 options; a multiple of four bytes.
    pub(crate) ip_options: Vec<u8>,
    /// IPv6 extension headers: kind and 8-byte units behind the first 8 bytes.
    pub(crate) extensions: Vec<(u8, u8)>,
    pub(crate) layer4: Layer4,
    pub(crate) payload: Vec<u8>,
    pub(crate) checksum: Checksum,
    pub(crate) padding: usize,
}

/// RFC 1071, section 4.1, on top of `start`.
pub(crate) fn add_words(start: u32, bytes: &[u8]) -> u32 {
    bytes.chunks(2).fold(start, |sum, pair| {
        let sum = sum + (u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
        (sum & 0xffff) + (sum >> 16)
    })
}

pub(crate) fn octets(address: &Address) -> Vec<u8> {
    if address.is_ipv4() { address.ipv4_octets().to_vec() } else { address.0.to_vec() }
}

pub(crate) fn pseudo(source: &[u8], destination: &[u8], protocol: u8, length: usize) -> u32 {
    let sum = add_words(add_words(0, source), destination);
    add_words(sum, &(u32::from(protocol) + length as u32).to_be_bytes())
}

impl Packet {
    pub(crate) fn protocol(&self) -> Protocol {
        match self.layer4 {
            Layer4::Tcp { .. } => Protocol::Tcp,
            Layer4::Udp { .. } => Protocol::Udp,
        }
    }

    pub(crate) fn key(&self) -> FlowKey {
        FlowKey { source: self.source, destination: self.destination, protocol: self.protocol() }
    }

    /// Offset of the IP header.
    pub(crate) fn l3(&self) -> usize {
        14 + 4 * self.tags.len()
    }

    fn segment(&self) -> Vec<u8> {
        let mut out = [self.source.port.to_be_bytes(), self.destination.port.to_be_bytes()].concat();
        let field = match &self.layer4 {
            Layer4::Tcp { sequence, acknowledgement, flags, window, options } => {
                let options = encode(options);
                out.extend(sequence.to_be_bytes());
                out.extend(acknowledgement.to_be_bytes());
                out.extend([(5 + options.len() as u8 / 4) << 4, *flags]);
                out.extend(window.to_be_bytes());
                out.extend([0; 4]);
                out.extend(options);
                16
            }
            Layer4::Udp { .. } => {
                out.extend(((8 + self.payload.len()) as u16).to_be_bytes());
                out.extend([0, 0]);
                6
            }
        };
        out.extend(&self.payload);
        let length = out.len();
        let (source, destination) = (octets(&self.source.address), octets(&self.destination.address));
        let pseudo = pseudo(&source, &destination, self.protocol() as u8, length);
        let checksum = match (self.checksum, &self.layer4) {
            (_, Layer4::Udp { without_checksum: true }) => 0,
            (Checksum::Partial, _) => pseudo as u16,
            (Checksum::Complete, layer4) => match (!(add_words(pseudo, &out) as u16), layer4) {
                (0, Layer4::Udp { .. }) => 0xffff,
                (checksum, _) => checksum,
            },
        };
        out[field..field + 2].copy_from_slice(&checksum.to_be_bytes());
        out
    }

    /// The packet's bytes from the Ethernet header on.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut out = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
        for (position, tag) in self.tags.iter().enumerate() {
            out.extend(tag.to_be_bytes());
            out.extend([0x20, position as u8 + 1]);
        }
        let segment = self.segment();
        let (source, destination) = (octets(&self.source.address), octets(&self.destination.address));
        if self.source.address.is_ipv4() {
            let length = 20 + self.ip_options.len();
            let mut header = vec![0x40 | (length / 4) as u8, 0x10];
            header.extend(((length + segment.len()) as u16).to_be_bytes());
            header.extend(self.identification.to_be_bytes());
            header.extend([if self.dont_fragment { 0x40 } else { 0 }, 0, self.hops, self.protocol() as u8, 0, 0]);
            header.extend([source, destination, self.ip_options.clone()].concat());
            let checksum = !(add_words(0, &header) as u16);
            header[10..12].copy_from_slice(&checksum.to_be_bytes());
            out.extend(0x0800u16.to_be_bytes());
            out.extend(header);
        } else {
            let mut extensions = Vec::new();
            for (position, (_, units)) in self.extensions.iter().enumerate() {
                let next = self.extensions.get(position + 1).map_or(self.protocol() as u8, |(kind, _)| *kind);
                // PadN over the whole; in a routing header these are type 1, no segments left.
                extensions.extend([next, *units, 1, 0]);
                extensions.extend(vec![0; 4 + 8 * usize::from(*units)]);
            }
            let first = self.extensions.first().map_or(self.protocol() as u8, |(kind, _)| *kind);
            out.extend(0x86ddu16.to_be_bytes());
            out.extend([0x61, 0x23, 0x45, 0x67]);
            out.extend(((extensions.len() + segment.len()) as u16).to_be_bytes());
            out.extend([first, self.hops]);
            out.extend([source, destination, extensions].concat());
        }
        out.extend(segment);
        out.extend(vec![0xee; self.padding]);
        out
    }

    /// The packet as a plane hands it over.
    pub(crate) fn frame(&self) -> VecFrame {
        let mut frame = VecFrame::new(&self.bytes());
        frame.meta.checksum = self.checksum;
        frame
    }
}

/// The options, padded.
pub(crate) fn encode(options: &[Item]) -> Vec<u8> {
    let mut out = Vec::new();
    for item in options {
        let bytes = match item {
            Item::Nop => vec![1],
            Item::Mss(size) => [vec![2, 4], size.to_be_bytes().to_vec()].concat(),
            Item::Timestamps(value, echo) => {
                [vec![8, 10], value.to_be_bytes().to_vec(), echo.to_be_bytes().to_vec()].concat()
            }
            Item::Sack(blocks) => {
                let edges = blocks.iter().flat_map(|(left, right)| [left.to_be_bytes(), right.to_be_bytes()].concat());
                [vec![5, 2 + 8 * blocks.len() as u8], edges.collect()].concat()
            }
        };
        if out.len() + bytes.len() <= 40 {
            out.extend(bytes);
        }
    }
    out.resize(out.len().next_multiple_of(4), 0);
    out
}

/// The result of `parse` for a frame that must hold a transport packet.
pub(crate) fn transport(frame: &[u8]) -> Transport {
    match parse(frame) {
        Ok(Parsed::Transport(at)) => at,
        other => panic!("no transport packet: {other:?}"),
    }
}

/// Whether the IP header checksum and the transport or ICMP checksum are right; a UDP checksum of 0 is.
pub(crate) fn checksums_right(frame: &[u8], l3: usize, l4: usize, end: usize, protocol: u8) -> bool {
    let ipv4 = frame[l3] >> 4 == 4;
    if ipv4 && add_words(0, &frame[l3..l3 + usize::from(frame[l3] & 15) * 4]) != 0xffff {
        return false;
    }
    if protocol == 17 && frame[l4 + 6..l4 + 8] == [0, 0] {
        return true;
    }
    let addresses = if ipv4 { &frame[l3 + 12..l3 + 20] } else { &frame[l3 + 8..l3 + 40] };
    let start = match protocol {
        1 => 0,
        _ => pseudo(addresses, &[], protocol, end - l4),
    };
    add_words(start, &frame[l4..end]) == 0xffff
}

/// A host's address.
pub(crate) fn address(ipv4: bool) -> BoxedStrategy<Address> {
    if ipv4 {
        let octets = prop_oneof![(1u8..127), (128u8..224)];
        (octets, any::<[u8; 3]>()).prop_map(|(a, [b, c, d])| Address::from_ipv4([a, b, c, d])).boxed()
    } else {
        (0x20u8..0x40, any::<[u8; 15]>())
            .prop_map(|(first, rest)| {
                let mut octets = [first; 16];
                octets[1..].copy_from_slice(&rest);
                Address(octets)
            })
            .boxed()
    }
}

pub(crate) fn endpoint(ipv4: bool) -> impl Strategy<Value = Endpoint> {
    (address(ipv4), any::<u16>()).prop_map(|(address, port)| Endpoint { address, port })
}

/// A sequence number, often about to wrap.
pub(crate) fn number() -> impl Strategy<Value = u32> {
    prop_oneof![any::<u32>(), (0u32..4).prop_map(|back| u32::MAX - back), 0u32..4]
}

/// A window: any, none, full, or a power of two, where shifts saturate or run out.
fn window() -> impl Strategy<Value = u16> {
    prop_oneof![any::<u16>(), Just(0), Just(u16::MAX), (0u32..16).prop_map(|bit| 1 << bit)]
}

fn item() -> impl Strategy<Value = Item> {
    prop_oneof![
        2 => Just(Item::Nop),
        1 => any::<u16>().prop_map(Item::Mss),
        1 => any::<(u32, u32)>().prop_map(|(value, echo)| Item::Timestamps(value, echo)),
        2 => vec((number(), number()), 1..=4).prop_map(Item::Sack),
    ]
}

fn layer4() -> impl Strategy<Value = Layer4> {
    let flags =
        prop_oneof![Just(ACK), Just(ACK | PSH), Just(SYN), Just(SYN | ACK), Just(FIN | ACK), Just(RST), Just(0)];
    prop_oneof![
        3 => (number(), number(), flags, window(), vec(item(), 0..6))
            .prop_map(|(sequence, acknowledgement, flags, window, options)| {
                Layer4::Tcp { sequence, acknowledgement, flags, window, options }
            }),
        2 => proptest::bool::weighted(0.2).prop_map(|without_checksum| Layer4::Udp { without_checksum }),
    ]
}

/// Any packet Hairpin takes.
pub(crate) fn packet() -> impl Strategy<Value = Packet> {
    any::<bool>().prop_flat_map(|ipv4| {
        let tags = vec(prop_oneof![Just(0x8100u16), Just(0x88a8)], 0..=2);
        let options = vec(prop_oneof![Just([1u8; 4]), Just([0x94, 4, 0, 0]), Just([7, 3, 4, 0])], 0..=3);
        let extensions = (any::<bool>(), vec((prop_oneof![Just(43u8), Just(60)], 0u8..3), 0..=7));
        let checksum = prop_oneof![3 => Just(Checksum::Complete), 1 => Just(Checksum::Partial)];
        let ends =
            (endpoint(ipv4), endpoint(ipv4)).prop_filter("one end", |(source, destination)| source != destination);
        (
            tags,
            ends,
            (2u8.., any::<u16>(), any::<bool>()),
            options,
            extensions,
            layer4(),
            payload(),
            checksum,
            0usize..20,
        )
            .prop_map(
                |(
                    tags,
                    (source, destination),
                    ip,
                    options,
                    (hop_by_hop, mut extensions),
                    layer4,
                    payload,
                    checksum,
                    padding,
                )| {
                    if hop_by_hop {
                        extensions.insert(0, (0, 1));
                    }
                    // A frame without a checksum has none to be finished.
                    let without = matches!(layer4, Layer4::Udp { without_checksum: true });
                    let checksum = if without { Checksum::Complete } else { checksum };
                    Packet {
                        tags,
                        source,
                        destination,
                        hops: ip.0,
                        identification: ip.1,
                        dont_fragment: ip.2,
                        ip_options: options.concat(),
                        extensions,
                        layer4,
                        payload,
                        checksum,
                        padding,
                    }
                },
            )
    })
}

fn payload() -> impl Strategy<Value = Vec<u8>> {
    let long = (0usize..65_000, any::<u8>()).prop_map(|(length, byte)| vec![byte; length]);
    prop_oneof![4 => vec(any::<u8>(), 0..64), 1 => long]
}

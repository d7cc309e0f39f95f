//! The sources, checked packet by packet.

use super::flows::FlowLane;
use super::recording::{self, Recording};
use super::replay::{ReplayOptions, ReplaySource};
use super::sizes::FlowSizes;
use super::stamp::{self, Stamp};
use super::synthetic::{Synthetic, SyntheticOptions};
use super::template::LinkAddresses;
use super::{Numbering, TrafficSource};
use crate::testbed::{Arrivals, FrameSize, Masks, TransportProtocol};
use hairpin_core::flow::{FlowKey, Protocol};
use hairpin_core::frame::{Batch, Frame, VecFrame};
use hairpin_core::wire::tcp::{ACK, FIN, PSH, SYN};
use hairpin_core::wire::{Parsed, parse};
use pcap_file::DataLink;
use pcap_file::pcap::{PcapPacket, PcapWriter};
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketBlock;
use pcap_file::pcapng::blocks::interface_description::{InterfaceDescriptionBlock, InterfaceDescriptionOption};
use pcap_file::pcapng::blocks::section_header::SectionHeaderBlock;
use pcap_file::pcapng::blocks::simple_packet::SimplePacketBlock;
use pcap_file::pcapng::{Block, PcapNgBlock, PcapNgWriter};
use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

const SESSION: u64 = 5;

/// The verdict on a packet.
struct Seen {
    key: FlowKey,
    flags: u8,
    payload: usize,
    length: usize,
    stamp: Option<Stamp>,
}

/// The next `count` packets of `source`, fewer if it has no more, each checked.
fn packets(source: &mut impl TrafficSource, count: usize, now: u64, introductions: bool) -> Vec<Seen> {
    let mut seen = Vec::new();
    while seen.len() < count {
        let mut frames: Batch<VecFrame> = (0..32.min(count - seen.len())).map(|_| VecFrame::default()).collect();
        let filled = match introductions {
            true => source.introduce(now, &mut frames),
            false => source.fill(now, &mut frames),
        };
        if filled.packets == 0 {
            break;
        }
        assert_eq!(filled.bytes, frames[..filled.packets].iter().map(|frame| frame.bytes().len()).sum::<usize>());
        seen.extend(frames[..filled.packets].iter().map(|frame| look(frame.bytes())));
    }
    seen
}

fn look(frame: &[u8]) -> Seen {
    let Ok(Parsed::Transport(at)) = parse(frame) else { panic!("{:?}", parse(frame)) };
    let field = at.checksum_offset();
    let there = u16::from_be_bytes([frame[field], frame[field + 1]]);
    let right = at.transport_checksum(frame).unwrap();
    assert!(there == right || there % 0xffff == right % 0xffff, "{there:x} {right:x}");
    assert_eq!(at.end, frame.len());
    let stamp = Stamp::of(&stamp::read(frame, &at).unwrap(), SESSION);
    Seen { key: at.key, flags: at.tcp_flags, payload: at.end - at.payload, length: frame.len(), stamp }
}

/// Every flow id has one 5-tuple, every 5-tuple one flow id; how many there are.
fn flows(seen: &[Seen]) -> usize {
    let mut ids = BTreeMap::new();
    for packet in seen {
        let id = packet.stamp.unwrap().flow;
        assert_eq!(*ids.entry(id).or_insert(packet.key), packet.key);
    }
    assert_eq!(ids.values().collect::<BTreeSet<_>>().len(), ids.len());
    ids.len()
}

fn synthetic(transport: TransportProtocol, arrivals: Arrivals, flows: u32) -> SyntheticOptions {
    let link = LinkAddresses::default();
    let length = FrameSize::Fixed(64);
    SyntheticOptions { transport, ipv6: false, arrivals, sizes: None, length, flows, known: false, link }
}

fn source(options: SyntheticOptions) -> Synthetic {
    Synthetic::new(options, FlowLane::only(), Numbering::new(SESSION, 0), 0, 1).unwrap()
}

#[test]
fn fixed_flows_all_take_their_turn() {
    for ipv6 in [false, true] {
        let mut source = source(SyntheticOptions { ipv6, ..synthetic(TransportProtocol::Tcp, Arrivals::Fixed, 1000) });
        let seen = packets(&mut source, 3000, 7, false);
        assert_eq!(flows(&seen[..1000]), 1000);
        assert_eq!(flows(&seen), 1000);
        assert!(seen[..1000].iter().all(|packet| packet.flags == SYN));
        assert!(seen[1000..].iter().all(|packet| packet.flags & SYN == 0));
        let sequences: Vec<u64> = seen.iter().map(|packet| packet.stamp.unwrap().sequence).collect();
        assert!(sequences.iter().enumerate().all(|(number, &sequence)| sequence == number as u64));
        assert!(seen.iter().all(|packet| packet.length == if ipv6 { 82 } else { 64 }));
        assert_eq!(source.made(), 3000);
    }
}

#[test]
fn introductions_establish_every_flow_and_are_not_counted() {
    for (transport, times) in [(TransportProtocol::Tcp, 1), (TransportProtocol::Udp, 8)] {
        let mut source = source(SyntheticOptions { known: true, ..synthetic(transport, Arrivals::Fixed, 100) });
        let seen = packets(&mut source, usize::MAX, 7, true);
        assert_eq!(seen.len(), 100 * times);
        assert!(seen.iter().filter(|packet| packet.stamp.is_some()).count() < 3);
        assert_eq!(seen.iter().map(|packet| packet.key).collect::<BTreeSet<_>>().len(), 100);
        assert_eq!(source.made(), 0);
        assert!(packets(&mut source, 100, 7, false).iter().all(|packet| packet.flags & SYN == 0));
    }
}

#[test]
fn flows_that_end_are_followed_by_new_ones() {
    let sizes = FlowSizes::parse("1000,0\n5000,1\n").unwrap();
    let options = SyntheticOptions {
        sizes: Some(sizes),
        length: FrameSize::Natural,
        ..synthetic(TransportProtocol::Tcp, Arrivals::Closed, 10)
    };
    let seen = packets(&mut source(options), 20_000, 7, false);
    let mut by_flow: BTreeMap<u32, Vec<&Seen>> = BTreeMap::new();
    for packet in &seen {
        by_flow.entry(packet.stamp.unwrap().flow).or_default().push(packet);
    }
    assert!(by_flow.len() > 3000);
    let (mut open, mut most) = (0i32, 0);
    for packet in &seen {
        open += i32::from(packet.flags & SYN != 0) - i32::from(packet.flags & FIN != 0);
        most = most.max(open);
    }
    assert_eq!(most, 10);
    let mut bytes = Vec::new();
    for flow in by_flow.values().filter(|flow| flow.last().unwrap().flags & FIN != 0) {
        assert_eq!(flow[0].flags, SYN);
        assert!(flow[1..].iter().all(|packet| packet.flags & SYN == 0));
        assert!(flow[..flow.len() - 1].iter().all(|packet| packet.flags & FIN == 0));
        assert!(flow.iter().all(|packet| packet.key == flow[0].key && packet.length <= 1514));
        bytes.push(flow[1..flow.len() - 1].iter().map(|packet| packet.payload).sum::<usize>());
    }
    assert!(bytes.iter().all(|bytes| (1000..=5000).contains(bytes)));
    // Log-linear from 1,000 to 5,000: the mean is 4,000 / ln 5.
    let mean = bytes.iter().sum::<usize>() as f64 / bytes.len() as f64;
    assert!((mean - 2485.0).abs() < 80.0, "{mean}");
}

#[test]
fn without_sizes_every_packet_is_a_new_flow() {
    let seen = packets(&mut source(synthetic(TransportProtocol::Udp, Arrivals::Closed, 4)), 1000, 7, false);
    assert_eq!(flows(&seen), 1000);
}

/// TCP has SYN and FIN beside it; the packet is as long as frames are to be.
#[test]
fn without_sizes_a_flow_has_one_packet() {
    for (transport, packets_each) in [(TransportProtocol::Tcp, 3), (TransportProtocol::Udp, 1)] {
        for (ipv6, length, bytes) in
            [(false, FrameSize::Fixed(64), 64), (true, FrameSize::Fixed(100), 100), (false, FrameSize::Natural, 1514)]
        {
            let options = SyntheticOptions { ipv6, length, ..synthetic(transport, Arrivals::Closed, 4) };
            let seen = packets(&mut source(options), 4 * packets_each * 100, 7, false);
            assert_eq!(flows(&seen), 400);
            let mut by_flow: BTreeMap<u32, Vec<(u8, usize)>> = BTreeMap::new();
            for packet in &seen {
                by_flow.entry(packet.stamp.unwrap().flow).or_default().push((packet.flags, packet.length));
            }
            for flow in by_flow.values() {
                let flags: Vec<u8> = flow.iter().map(|(flags, _)| *flags).collect();
                let (data, expected) = match transport {
                    TransportProtocol::Udp => (flow[0], vec![0]),
                    TransportProtocol::Tcp => (flow[1], vec![SYN, ACK | PSH, ACK | PSH | FIN]),
                };
                assert_eq!((flags, data.1), (expected, bytes));
            }
        }
    }
}

#[test]
fn a_poisson_process_begins_as_many_flows_as_it_says() {
    let options = synthetic(TransportProtocol::Udp, Arrivals::Poisson(100_000.0), 1000);
    let mut source = source(options);
    let mut begun = Vec::new();
    let mut gaps = 0;
    for now in (0..=1_000_000_000u64).step_by(100_000) {
        let here = packets(&mut source, 1000, now, false).len();
        gaps += usize::from(here == 0);
        begun.push(here);
    }
    let all = begun.iter().sum::<usize>() as f64;
    // Four standard deviations of a Poisson number.
    assert!((all - 100_000.0).abs() < 4.0 * 100_000f64.sqrt(), "{all}");
    let mean = all / begun.len() as f64;
    let variance = begun.iter().map(|&here| (here as f64 - mean).powi(2)).sum::<f64>() / begun.len() as f64;
    assert!((variance / mean - 1.0).abs() < 0.1, "{variance} {mean}");
    assert!(gaps > 0 || mean > 5.0);
}

#[test]
fn more_flows_than_may_be_open_are_not_begun() {
    let sizes = Some(FlowSizes::parse("1e9,0\n1e9,1").unwrap());
    let mut source =
        source(SyntheticOptions { sizes, ..synthetic(TransportProtocol::Udp, Arrivals::Poisson(1e6), 10) });
    packets(&mut source, 100, 0, false);
    let seen = packets(&mut source, 100, 1_000_000, false);
    assert_eq!(flows(&seen), 10);
    assert!(source.refused()[0].1 > 500, "{:?}", source.refused());
}

/// A frame of a client's, with a hundred bytes of payload.
fn client_frame(number: u8, tcp: bool) -> Vec<u8> {
    let (transport, protocol) = if tcp { (20, 6) } else { (8, 17) };
    let total = 20 + transport + 100u16;
    let mut frame = vec![0; 14 + usize::from(total)];
    frame[12] = 8;
    frame[14] = 0x45;
    frame[16..18].copy_from_slice(&total.to_be_bytes());
    frame[22] = 9;
    frame[23] = protocol;
    frame[26..34].copy_from_slice(&[172, 16, 5, number, 93, 184, 216, 34]);
    frame[34..38].copy_from_slice(&[200, number, 1, 187]);
    match tcp {
        true => frame[46..48].copy_from_slice(&[0x50, SYN]),
        false => frame[38..40].copy_from_slice(&108u16.to_be_bytes()),
    }
    let payload = 14 + 20 + usize::from(transport);
    frame[payload..].fill(0xab);
    let sum = hairpin_core::wire::checksum::Sum::of(&frame[14..34]).checksum();
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame
}

/// A capture file with UDP and TCP packets of `flows` clients, and some that are neither.
fn recorded(name: &str, flows: u8) -> PathBuf {
    let path = std::env::temp_dir().join(format!("hairpin-lab-{}-{name}.pcap", std::process::id()));
    let mut writer = PcapWriter::new(std::fs::File::create(&path).unwrap()).unwrap();
    let mut write = |frame: &[u8], length| {
        writer.write_packet(&PcapPacket::new(Duration::ZERO, length, frame)).unwrap();
    };
    for number in 0..flows {
        for tcp in [false, true] {
            let mut frame = client_frame(number, tcp);
            let length = frame.len() as u32;
            // As if recorded with a short snapshot length, every other one.
            frame.truncate(if number % 2 == 0 { frame.len() } else { 80 });
            write(&frame, length);
        }
        write(&[0xff; 60], 60);
    }
    path
}

fn replay(path: &Path, options: ReplayOptions, payload: bool) -> ReplaySource {
    let recording = Recording::read(path, payload).unwrap();
    ReplaySource::new(&recording, &options, FlowLane::only(), Numbering::new(SESSION, 0), 0).unwrap()
}

fn options(masks: Option<Masks>, flows: u32, length: FrameSize) -> ReplayOptions {
    ReplayOptions { masks, flows, length, link: LinkAddresses::default() }
}

#[test]
fn recording_is_replayed_with_requested_flows() {
    let path = recorded("flows", 20);
    for flows_wanted in [2u32, 7, 40, 1000] {
        let mut source = replay(&path, options(None, flows_wanted, FrameSize::Fixed(64)), false);
        let seen = packets(&mut source, 40 * 2000, 7, false);
        assert_eq!(flows(&seen), flows_wanted as usize);
        assert!(seen.iter().all(|packet| packet.length == 64 && packet.flags & SYN == 0));
        assert_eq!(seen.iter().filter(|packet| packet.key.protocol == Protocol::Tcp).count(), seen.len() / 2);
    }
    std::fs::remove_file(path).unwrap();
}

#[test]
fn masks_set_the_number_of_flows() {
    let path = recorded("masks", 32);
    for (source, port, wanted) in [(0x3, 0, 4), (0x1f, 0, 32), (0xff, 0x3, 1024), (0, 0, 1)] {
        let masks = Masks { source: Ipv4Addr::from(source), source_port: port, ..Masks::default() };
        let mut source = replay(&path, options(Some(masks), 1, FrameSize::Natural), false);
        let seen = packets(&mut source, 64 * 1100, 7, false);
        // As many of each protocol.
        assert_eq!(flows(&seen), 2 * wanted);
        assert!(seen.iter().all(|packet| packet.length == 14 + 20 + 100 + if packet.flags == 0 { 8 } else { 20 }));
        // In the first round the recorded address is combined with the mask by AND.
        if source_mask_is_whole(source_bits(&masks)) {
            for (number, packet) in seen[..64].iter().enumerate() {
                let address = u32::from_be_bytes(packet.key.source.address.ipv4_octets());
                assert_eq!(address & 0xff, (number as u32 / 2) & u32::from(masks.source));
            }
        }
    }
    std::fs::remove_file(path).unwrap();
}

fn source_bits(masks: &Masks) -> u32 {
    u32::from(masks.source)
}

fn source_mask_is_whole(mask: u32) -> bool {
    mask == 0x1f || mask == 0x3
}

#[test]
fn a_payload_is_kept_if_asked_for() {
    let path = recorded("payload", 2);
    for (payload, byte) in [(true, 0xab), (false, 0)] {
        let mut source = replay(&path, options(None, 4, FrameSize::Natural), payload);
        let mut frames: Batch<VecFrame> = (0..2).map(|_| VecFrame::default()).collect();
        source.fill(0, &mut frames);
        assert!(frames[0].bytes()[14 + 28 + stamp::BYTES..].iter().all(|&there| there == byte));
        assert!(frames[1].bytes()[14 + 40 + stamp::TCP_PAYLOAD..].iter().all(|&there| there == byte));
    }
    std::fs::remove_file(path).unwrap();
}

#[test]
fn real_captures_are_played() {
    let Some(traces) = std::env::var_os("HAIRPIN_TRACES") else {
        return eprintln!("skipped: HAIRPIN_TRACES names no directory of recordings");
    };
    for file in std::fs::read_dir(traces).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "pcap") {
            let recording = Recording::read(&path, true).unwrap();
            assert!(recording.packets.len() > 100, "{}: {:?}", path.display(), recording.skipped);
            let mut source = replay(&path, options(None, 500, FrameSize::Natural), true);
            let seen = packets(&mut source, 5000, 3, false);
            assert!(flows(&seen) <= 500 && seen.iter().all(|packet| packet.length <= 1514));
        }
    }
}

/// The contents of [`recorded_ng`]: one of each kind of block that holds a packet, of interfaces whose clocks and links differ.
fn blocks_ng() -> Vec<Block<'static>> {
    let interface = |linktype, resolution: Option<u8>| {
        let options = resolution.map(InterfaceDescriptionOption::IfTsResol).into_iter().collect();
        InterfaceDescriptionBlock { linktype, snaplen: 0, options }.into_block()
    };
    // The crate's timestamps are whatever stands in the file: ticks of the interface's clock.
    let packet = |interface_id, ticks, frame: Vec<u8>| {
        let original_len = frame.len() as u32;
        let (timestamp, data) = (Duration::from_nanos(ticks), frame.into());
        EnhancedPacketBlock { interface_id, timestamp, original_len, data, options: Vec::new() }.into_block()
    };
    let simple =
        |frame: Vec<u8>| SimplePacketBlock { original_len: frame.len() as u32, data: frame.into() }.into_block();
    let cut = EnhancedPacketBlock {
        interface_id: 0,
        timestamp: Duration::ZERO,
        original_len: client_frame(4, false).len() as u32,
        data: client_frame(4, false)[..61].to_vec().into(),
        options: Vec::new(),
    };
    vec![
        simple(client_frame(9, false)),
        interface(DataLink::ETHERNET, None),
        packet(0, 1_700_000_000_123_456, client_frame(0, false)),
        interface(DataLink::RAW, Some(9)),
        interface(DataLink::ETHERNET, Some(0x80 | 10)),
        packet(1, 1_700_000_000_123_456_789, client_frame(1, true)[14..].to_vec()),
        packet(2, 5 * 1024 + 512, client_frame(2, true)),
        packet(0, 0, vec![0xff; 60]),
        simple(client_frame(3, true)),
        cut.into_block(),
        // In another section interfaces are counted anew.
        SectionHeaderBlock::default().into_block(),
        interface(DataLink::ETHERNET, Some(3)),
        packet(0, 7_250, client_frame(5, false)),
    ]
}

/// A pcapng file of [`blocks_ng`].
fn recorded_ng(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("hairpin-lab-{}-{name}.pcapng", std::process::id()));
    let mut writer = PcapNgWriter::new(std::fs::File::create(&path).unwrap()).unwrap();
    blocks_ng().iter().for_each(|block| {
        writer.write_block(block).unwrap();
    });
    path
}

#[test]
fn a_pcapng_file_is_read_whatever_its_interfaces_are() {
    let path = recorded_ng("read");
    let mut seen = Vec::new();
    let skipped = recording::frames(&path, &mut |time, frame, at| {
        assert_eq!((at.end - at.payload, frame[at.end - 1]), (100, if frame[29] == 4 { 0 } else { 0xab }));
        seen.push((frame[29], at.key.protocol == Protocol::Tcp, time));
        None
    });
    let expected = [
        (0, false, Duration::new(1_700_000_000, 123_456_000)),
        (1, true, Duration::new(1_700_000_000, 123_456_789)),
        (2, true, Duration::from_millis(5500)),
        (3, true, Duration::ZERO),
        (4, false, Duration::ZERO),
        (5, false, Duration::from_millis(7250)),
    ];
    assert_eq!(seen, expected);
    let reasons = BTreeMap::from([("neither TCP nor UDP", 1), ("of an interface the file does not describe", 1)]);
    assert_eq!(skipped.unwrap(), reasons);
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_pcapng_file_is_played() {
    let path = recorded_ng("played");
    let mut source = replay(&path, options(None, 100, FrameSize::Natural), true);
    let seen = packets(&mut source, 6000, 7, false);
    assert_eq!(flows(&seen), 100);
    assert_eq!(seen.iter().filter(|packet| packet.key.protocol == Protocol::Tcp).count(), 3000);
    // A file cut off in its last block is played up to there.
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, &whole[..whole.len() - 10]).unwrap();
    let recording = Recording::read(&path, false).unwrap();
    assert_eq!((recording.packets.len(), recording.skipped["unreadable, and what follows"]), (5, 1));
    std::fs::remove_file(path).unwrap();
}

#[test]
fn what_is_no_capture_is_refused() {
    let path = std::env::temp_dir().join(format!("hairpin-lab-{}-no.pcap", std::process::id()));
    for bytes in [&b""[..], b"abcd", b"\x0a\x0d\x0d\x0a\x1c", &[0; 100]] {
        std::fs::write(&path, bytes).unwrap();
        assert!(Recording::read(&path, false).is_err());
    }
    std::fs::remove_file(path).unwrap();
}

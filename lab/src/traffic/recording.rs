//! Capture files, read into memory: the TCP and UDP packets in them.

use super::template::{IPV6_PREFIX, PacketEnds};
use crate::trace::TraceModel;
use anyhow::{Context, Result, bail, ensure};
use hairpin_core::flow::{Address, Protocol};
use hairpin_core::wire::{Parsed, Transport, ethernet, parse};
use pcap_file::DataLink;
use pcap_file::pcap::PcapReader;
use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionOption;
use pcap_file::pcapng::{Block, PcapNgReader};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::Path;
use std::time::Duration;

/// Packets of a file at most; what comes later is left out, and counted.
pub const PACKETS_MAX: usize = 1 << 23;
/// Bytes of payload kept at most, likewise.
pub const BYTES_MAX: usize = 1 << 30;
/// The seed of a trace that is made instead of read.
const TRACE_SEED: u64 = 1;
/// The first bytes of a pcapng file (its section header block's type).
const PCAPNG: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];

/// A recorded packet.
#[derive(Clone, Copy, Debug)]
pub struct Recorded {
    /// TCP or UDP.
    pub protocol: Protocol,
    /// Its ends; of IPv6 addresses the last four bytes.
    pub ends: PacketEnds,
    /// Bytes of the frame it would have been: Ethernet, IP without options, TCP without options.
    pub length: u16,
    /// The place of its payload in the recording's bytes.
    pub payload: (usize, u16),
}

impl Recorded {
    /// A packet without its payload.
    pub(crate) fn of(at: &Transport) -> Recorded {
        let transport = if at.key.protocol == Protocol::Tcp { 20 } else { 8 };
        let headers = ethernet::HEADER + if at.key.is_ipv4() { 20 } else { 40 } + transport;
        let last = |address: &Address| u32::from_be_bytes(address.ipv4_octets());
        let ends = PacketEnds {
            source: last(&at.key.source.address),
            destination: last(&at.key.destination.address),
            source_port: at.key.source.port,
            destination_port: at.key.destination.port,
        };
        let length = (headers + at.end - at.payload).min(usize::from(u16::MAX)) as u16;
        Recorded { protocol: at.key.protocol, ends, length, payload: (0, 0) }
    }
}

/// A capture file in memory.
#[derive(Clone, Debug, Default)]
pub struct Recording {
    /// Its packets, in order, all of one family: that of most of them.
    pub packets: Vec<Recorded>,
    /// Whether they are IPv6.
    pub ipv6: bool,
    /// Their payloads.
    pub bytes: Vec<u8>,
    /// The packets left out, by reason.
    pub skipped: BTreeMap<&'static str, u64>,
}

/// Called with each TCP or UDP packet of a file: with its time (since the epoch, as a rule), its frame, and the
/// place of its headers. Returns why it is skipped, if it is.
type Each<'a> = dyn FnMut(Duration, &[u8], &Transport) -> Option<&'static str> + 'a;

/// A file while it is read.
struct FileReading<'a> {
    each: &'a mut Each<'a>,
    skipped: BTreeMap<&'static str, u64>,
}

/// Shows `each` the TCP and UDP packets of a pcap or pcapng file of Ethernet frames or IP packets, in order; how many
/// packets were skipped, by reason.
///
/// # Errors
/// It cannot be read, or is neither.
pub fn frames<'a>(path: &Path, each: &'a mut Each<'a>) -> Result<BTreeMap<&'static str, u64>> {
    let name = path.display();
    let mut file = BufReader::new(File::open(path).with_context(|| format!("cannot open {name}"))?);
    let mut magic = [0; 4];
    file.read_exact(&mut magic).with_context(|| format!("cannot read {name}"))?;
    file.seek(SeekFrom::Start(0)).with_context(|| format!("cannot read {name}"))?;
    let mut reading = FileReading { each, skipped: BTreeMap::new() };
    let read = if magic == PCAPNG { reading.pcapng(file) } else { reading.pcap(file) };
    read.with_context(|| format!("cannot read {name} as a capture file"))?;
    Ok(reading.skipped)
}

impl Recording {
    /// Reads a pcap or pcapng file of Ethernet frames or IP packets; of a file that ends in `.toml`, which is a model of a
    /// [trace](crate::trace), the packets are made, without payloads.
    ///
    /// # Errors
    /// It cannot be read, is neither, or has no TCP or UDP packet.
    pub fn read(path: &Path, payload: bool) -> Result<Recording> {
        if path.extension().is_some_and(|ending| ending == "toml") {
            return Ok(crate::trace::capture::recording(&TraceModel::read(path)?, TRACE_SEED));
        }
        let name = path.display();
        let mut kept = KeptPackets::default();
        let mut skipped = frames(path, &mut |_, frame, at| kept.keep(frame, at, payload))?;
        let KeptPackets { packets: [v4, v6], bytes } = kept;
        let ipv6 = v6.len() > v4.len();
        let (packets, others) = if ipv6 { (v6, v4) } else { (v4, v6) };
        if !others.is_empty() {
            skipped.insert("of the other family", others.len() as u64);
        }
        ensure!(!packets.is_empty(), "{name} has no TCP or UDP packet");
        Ok(Recording { packets, ipv6, bytes, skipped })
    }
}

impl FileReading<'_> {
    fn pcap(&mut self, file: BufReader<File>) -> Result<()> {
        let mut reader = PcapReader::new(file)?;
        let link = reader.header().datalink;
        while let Some(packet) = reader.next_packet() {
            match packet {
                Ok(packet) => self.packet(packet.timestamp, &packet.data, packet.orig_len, link)?,
                // A capture that was cut off has its last packet cut off.
                Err(_) => {
                    self.skip("unreadable, and what follows");
                    break;
                }
            }
        }
        Ok(())
    }

    fn pcapng(&mut self, file: BufReader<File>) -> Result<()> {
        let mut reader = PcapNgReader::new(file)?;
        let mut links = Vec::new();
        while let Some(block) = reader.next_block() {
            let Ok(block) = block else {
                self.skip("unreadable, and what follows");
                break;
            };
            let (ticks, data, length, interface) = match block {
                Block::SectionHeader(_) => {
                    links.clear();
                    continue;
                }
                Block::InterfaceDescription(interface) => {
                    links.push((interface.linktype, resolution(&interface.options)));
                    continue;
                }
                Block::EnhancedPacket(packet) => {
                    // The reader takes whatever they are for nanoseconds.
                    (packet.timestamp.as_nanos() as u64, packet.data, packet.original_len, packet.interface_id as usize)
                }
                // It has no time.
                Block::SimplePacket(packet) => (0, packet.data, packet.original_len, 0),
                _ => continue,
            };
            match links.get(interface) {
                Some(&(link, per_second)) => self.packet(time(ticks, per_second), &data, length, link)?,
                None => self.skip("of an interface the file does not describe"),
            }
        }
        Ok(())
    }

    fn packet(&mut self, time: Duration, data: &[u8], length: u32, link: DataLink) -> Result<()> {
        let mut frame: Vec<u8> = Vec::with_capacity(data.len() + ethernet::HEADER);
        match (link, data.first().map(|byte| byte >> 4)) {
            (DataLink::ETHERNET, _) => {}
            (DataLink::RAW | DataLink::IPV4 | DataLink::IPV6, Some(version)) => {
                let ethertype = if version == 6 { ethernet::IPV6 } else { ethernet::IPV4 };
                frame.extend_from_slice(&[0; 12]);
                frame.extend_from_slice(&ethertype.to_be_bytes());
            }
            (DataLink::RAW | DataLink::IPV4 | DataLink::IPV6, None) => {
                self.skip("empty");
                return Ok(());
            }
            (other, _) => bail!("it holds neither Ethernet frames nor IP packets but {other:?}"),
        }
        let before = frame.len();
        frame.extend_from_slice(data);
        // The bytes cut off when it was recorded are zeros.
        frame.resize(before + (length.min(65_600) as usize).max(data.len()), 0);
        match parse(&frame) {
            Ok(Parsed::Transport(at)) => {
                if let Some(reason) = (self.each)(time, &frame, &at) {
                    self.skip(reason);
                }
            }
            Ok(Parsed::Fragment) => self.skip("fragments"),
            Ok(_) => self.skip("neither TCP nor UDP"),
            Err(_) => self.skip("malformed"),
        }
        Ok(())
    }

    fn skip(&mut self, reason: &'static str) {
        *self.skipped.entry(reason).or_default() += 1;
    }
}

/// Ticks of an interface's clock in a second: microseconds, if its description says nothing.
fn resolution(options: &[InterfaceDescriptionOption<'_>]) -> u64 {
    let told = options.iter().find_map(|option| match option {
        InterfaceDescriptionOption::IfTsResol(told) => Some(*told),
        _ => None,
    });
    // A power of ten, or with the highest bit of two.
    let told = told.unwrap_or(6);
    let base: u64 = if told & 0x80 == 0 { 10 } else { 2 };
    base.saturating_pow(u32::from(told & 0x7f))
}

fn time(ticks: u64, per_second: u64) -> Duration {
    let part = u128::from(ticks % per_second) * 1_000_000_000 / u128::from(per_second);
    Duration::new(ticks / per_second, part as u32)
}

/// The packets that a recording keeps.
#[derive(Default)]
struct KeptPackets {
    packets: [Vec<Recorded>; 2],
    bytes: Vec<u8>,
}

impl KeptPackets {
    fn keep(&mut self, frame: &[u8], at: &Transport, payload: bool) -> Option<&'static str> {
        let ipv6 = !at.key.is_ipv4();
        let kept: &[u8] = if payload { &frame[at.payload..at.end] } else { &[] };
        let all: usize = self.packets.iter().map(Vec::len).sum();
        if all >= PACKETS_MAX || self.bytes.len() + kept.len() > BYTES_MAX {
            return Some("beyond what is loaded");
        }
        let start = self.bytes.len();
        self.bytes.extend_from_slice(kept);
        let payload = (start, kept.len().min(usize::from(u16::MAX)) as u16);
        self.packets[usize::from(ipv6)].push(Recorded { payload, ..Recorded::of(at) });
        None
    }
}

const _: () = assert!(IPV6_PREFIX.len() == 12, "what is kept of an IPv6 address is its last four bytes");

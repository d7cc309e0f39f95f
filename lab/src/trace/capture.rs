//! Packets of a trace as a pcap file, and as a recording that is replayed.

use super::connection::TracePacket;
use super::generator::{Bounds, Generator};
use super::model::TraceModel;
use crate::traffic::recording::{PACKETS_MAX, Recorded, Recording};
use crate::traffic::template::LinkAddresses;
use anyhow::{Context, Result};
use hairpin_core::flow::Protocol;
use hairpin_core::wire::checksum::Sum;
use hairpin_core::wire::{ethernet, ipv4, tcp, udp};
use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};
use pcap_file::{DataLink, TsResolution};
use std::borrow::Cow;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::Duration;

/// Bytes of a packet in a file at most, as its header says. There are fewer: payloads are zeros, and left out.
const SNAP_LENGTH: u32 = 65_535;
/// Bytes of the shortest frame.
const FRAME_MIN: usize = 60;
const TTL: u8 = 64;
/// TCP's window in packets.
const WINDOW: [u8; 2] = [0xff, 0xff];

/// Bytes of the headers before the payload.
fn headers(protocol: Protocol) -> usize {
    let transport = if protocol == Protocol::Tcp { tcp::HEADER } else { udp::HEADER };
    ethernet::HEADER + ipv4::HEADER + transport
}

/// Bytes of a packet's frame.
pub fn frame_length(packet: &TracePacket) -> u16 {
    (headers(packet.protocol) + usize::from(packet.payload)).max(FRAME_MIN) as u16
}

/// The frame up to its payload. Checksums are those of a payload of zeros.
fn head(packet: &TracePacket, link: &LinkAddresses, out: &mut Vec<u8>) {
    out.clear();
    let is_tcp = packet.protocol == Protocol::Tcp;
    let length = (headers(packet.protocol) - ethernet::HEADER + usize::from(packet.payload)) as u16;
    let (to, from) = if packet.from_client { (link.destination, link.source) } else { (link.source, link.destination) };
    out.extend_from_slice(&to);
    out.extend_from_slice(&from);
    out.extend_from_slice(&ethernet::IPV4.to_be_bytes());
    let [a, b] = length.to_be_bytes();
    let [c, d] = ipv4::DONT_FRAGMENT.to_be_bytes();
    out.extend_from_slice(&[0x45, 0, a, b, 0, 0, c, d, TTL, packet.protocol as u8, 0, 0]);
    out.extend_from_slice(&packet.ends.source.to_be_bytes());
    out.extend_from_slice(&packet.ends.destination.to_be_bytes());
    let l3 = ethernet::HEADER;
    let sum = Sum::of(&out[l3..]).checksum();
    out[l3 + 10..l3 + 12].copy_from_slice(&sum.to_be_bytes());
    let l4 = out.len();
    out.extend_from_slice(&packet.ends.source_port.to_be_bytes());
    out.extend_from_slice(&packet.ends.destination_port.to_be_bytes());
    let segment = length - ipv4::HEADER as u16;
    if is_tcp {
        out.extend_from_slice(&packet.numbers.0.to_be_bytes());
        out.extend_from_slice(&packet.numbers.1.to_be_bytes());
        out.extend_from_slice(&[5 << 4, packet.flags, WINDOW[0], WINDOW[1], 0, 0, 0, 0]);
    } else {
        out.extend_from_slice(&segment.to_be_bytes());
        out.extend_from_slice(&[0, 0]);
    }
    let [a, b] = segment.to_be_bytes();
    let pseudo = Sum::of(&out[l3 + 12..l3 + 20]) + Sum::of(&[0, packet.protocol as u8, a, b]);
    let sum = (Sum::of(&out[l4..]) + pseudo).checksum();
    let (at, sum) = if is_tcp { (tcp::CHECKSUM, sum) } else { (udp::CHECKSUM, udp::mangled(sum)) };
    out[l4 + at..l4 + at + 2].copy_from_slice(&sum.to_be_bytes());
}

/// A pcap file that is written.
pub struct CaptureFile {
    writer: PcapWriter<BufWriter<File>>,
    head: Vec<u8>,
    link: LinkAddresses,
    /// Packets in it.
    pub packets: u64,
}

impl CaptureFile {
    /// Begins a file: nanoseconds, Ethernet, headers only.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn create(path: &Path) -> Result<CaptureFile> {
        let named = || format!("could not write {}", path.display());
        let file = BufWriter::with_capacity(1 << 20, File::create(path).with_context(named)?);
        let header = PcapHeader {
            snaplen: SNAP_LENGTH,
            datalink: DataLink::ETHERNET,
            ts_resolution: TsResolution::NanoSecond,
            // The same bytes on every machine.
            endianness: pcap_file::Endianness::Little,
            ..PcapHeader::default()
        };
        let writer = PcapWriter::with_header(file, header).with_context(named)?;
        Ok(CaptureFile { writer, head: Vec::new(), link: LinkAddresses::default(), packets: 0 })
    }

    /// Appends a packet.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&mut self, packet: &TracePacket) -> Result<()> {
        head(packet, &self.link, &mut self.head);
        let length = self.head.len() + usize::from(packet.payload);
        let written = PcapPacket {
            timestamp: Duration::from_nanos(packet.at),
            orig_len: length as u32,
            data: Cow::Borrowed(&self.head),
        };
        self.writer.write_packet(&written).context("could not write the capture file")?;
        self.packets += 1;
        Ok(())
    }

    /// Ends the file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn finish(self) -> Result<()> {
        self.writer.into_writer().flush().context("could not write the capture file")
    }
}

/// A trace as if it had been recorded: as many packets as a recording has at most.
pub fn recording(model: &TraceModel, seed: u64) -> Recording {
    let bounds = Bounds { packets: PACKETS_MAX as u64, ..Bounds::connections(model.connections) };
    let packets = Generator::new(model, bounds, seed).map(|packet| Recorded {
        protocol: packet.protocol,
        ends: packet.ends,
        length: frame_length(&packet),
        payload: (0, 0),
    });
    Recording { packets: packets.collect(), ..Recording::default() }
}

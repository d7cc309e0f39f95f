//! A pcapng file (draft-ietf-opsawg-pcapng): a section, an interface block for each interface, packets, and at the end
//! what was lost.

use super::source::SeenPacket;
use anyhow::Result;
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{InterfaceDescriptionBlock, InterfaceDescriptionOption};
use pcap_file::pcapng::blocks::interface_statistics::{InterfaceStatisticsBlock, InterfaceStatisticsOption};
use pcap_file::pcapng::blocks::section_header::{SectionHeaderBlock, SectionHeaderOption};
use pcap_file::pcapng::{Block, PcapNgBlock};
use pcap_file::{DataLink, Endianness, PcapError};
use std::borrow::Cow;
use std::io::{BufWriter, Write};
use std::time::Duration;

/// Timestamps are in units of 10^-9 s, which the writer takes for granted and the interfaces must say.
const NANOSECONDS: u8 = 9;
/// `epb_flags`: the direction of a packet.
const INBOUND: u32 = 1;
const OUTBOUND: u32 = 2;

/// A file in the making.
pub(super) struct CaptureFile<W: Write> {
    writer: PcapNgWriter<BufWriter<W>>,
    snap_length: usize,
    packets: u64,
}

impl<W: Write> CaptureFile<W> {
    /// Writes everything that comes before the packets.
    ///
    /// # Errors
    /// `out` does not take it; true of all that writes.
    pub(super) fn begin(out: W, interfaces: &[String], snap_length: u32, comment: &str) -> Result<CaptureFile<W>> {
        let section = SectionHeaderBlock {
            // The blocks of the end have a time in two halves, the upper first, which the crate writes as one number: right
            // only in this order of bytes. Readers take either.
            endianness: Endianness::Big,
            options: vec![
                SectionHeaderOption::UserApplication(concat!("hairpin ", env!("CARGO_PKG_VERSION")).into()),
                SectionHeaderOption::Comment(comment.to_string().into()),
            ],
            ..SectionHeaderBlock::default()
        };
        let writer = PcapNgWriter::with_section_header(BufWriter::new(out), section).map_err(plain)?;
        let mut file = CaptureFile { writer, snap_length: snap_length as usize, packets: 0 };
        for interface in interfaces {
            let block = InterfaceDescriptionBlock {
                linktype: DataLink::ETHERNET,
                snaplen: snap_length,
                options: vec![
                    InterfaceDescriptionOption::IfName(interface.into()),
                    InterfaceDescriptionOption::IfTsResol(NANOSECONDS),
                ],
            };
            file.write(&block.into_block())?;
        }
        file.flush()?;
        Ok(file)
    }

    /// Writes a packet.
    pub(super) fn packet(&mut self, seen: &SeenPacket) -> Result<()> {
        let block = EnhancedPacketBlock {
            interface_id: seen.interface,
            timestamp: seen.timestamp,
            original_len: seen.length_on_wire,
            data: Cow::Borrowed(&seen.bytes[..seen.bytes.len().min(self.snap_length)]),
            options: vec![EnhancedPacketOption::Flags(if seen.outgoing { OUTBOUND } else { INBOUND })],
        };
        self.write(&block.into_block())?;
        self.packets += 1;
        Ok(())
    }

    /// Packets written so far.
    pub(super) fn packets(&self) -> u64 {
        self.packets
    }

    /// Lets readers see what there is.
    pub(super) fn flush(&mut self) -> Result<()> {
        Ok(self.writer.get_mut().flush()?)
    }

    /// Writes what each interface has lost, at `now` since 1970.
    pub(super) fn end(&mut self, lost: &[u64], now: Duration) -> Result<()> {
        for (interface, lost) in lost.iter().enumerate() {
            let block = InterfaceStatisticsBlock {
                interface_id: interface as u32,
                timestamp: now.as_nanos() as u64,
                options: vec![InterfaceStatisticsOption::IsbOsDrop(*lost)],
            };
            self.write(&block.into_block())?;
        }
        self.flush()
    }

    fn write(&mut self, block: &Block<'_>) -> Result<()> {
        self.writer.write_block(block).map(drop).map_err(plain)
    }
}

/// The error of the file itself, which callers may match.
fn plain(error: PcapError) -> anyhow::Error {
    match error {
        PcapError::IoError(error) => error.into(),
        other => other.into(),
    }
}

//! Reads what `hairpin capture` writes: pcapng (draft-ietf-opsawg-pcapng), as much of it as tests need, apart from the
//! crate that writes it.

use anyhow::{Context, Result, bail, ensure};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const ENHANCED_PACKET: u32 = 6;
const BYTE_ORDER: u32 = 0x1a2b_3c4d;

/// A captured TCP or UDP packet.
#[derive(Clone, Copy, Debug)]
pub struct CapturedPacket {
    /// Number of the interface in the file.
    pub interface: u32,
    /// The source address.
    pub source: SocketAddr,
    /// The destination address.
    pub destination: SocketAddr,
    /// TCP flags; 0 for UDP.
    pub flags: u8,
    /// Bytes of the IP packet, as long as it was on the wire.
    pub ip_bytes: u32,
}

/// The TCP and UDP packets of a file.
///
/// # Errors
/// The file is not pcapng, or ends in the middle of a block other than its last.
pub fn read(file: &Path) -> Result<Vec<CapturedPacket>> {
    let bytes = std::fs::read(file).with_context(|| format!("could not read {}", file.display()))?;
    packets(&bytes)
}

fn packets(mut bytes: &[u8]) -> Result<Vec<CapturedPacket>> {
    ensure!(little(bytes, 0) == Some(SECTION_HEADER), "not pcapng");
    // The writer of the file chose the order of bytes.
    let word: ReadWord = match little(bytes, 8) {
        Some(BYTE_ORDER) => little,
        Some(order) if order.swap_bytes() == BYTE_ORDER => big,
        order => bail!("no order of bytes: {order:?}"),
    };
    let mut packets = Vec::new();
    while let (Some(kind), Some(length)) = (word(bytes, 0), word(bytes, 4)) {
        let length = length as usize;
        if length < 12 || !length.is_multiple_of(4) || length > bytes.len() {
            bail!("a block of {length} bytes, {} before the end of the file", bytes.len());
        }
        let (block, rest) = bytes.split_at(length);
        ensure!(word(block, length - 4) == Some(length as u32), "a block's two lengths differ");
        if kind == ENHANCED_PACKET {
            packets.extend(enhanced(block, word));
        }
        bytes = rest;
    }
    Ok(packets)
}

/// Reads 32 bits at a place.
type ReadWord = fn(&[u8], usize) -> Option<u32>;

fn little(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
}

fn big(bytes: &[u8], at: usize) -> Option<u32> {
    little(bytes, at).map(u32::swap_bytes)
}

fn enhanced(block: &[u8], word: ReadWord) -> Option<CapturedPacket> {
    let (captured, original) = (word(block, 20)? as usize, word(block, 24)?);
    ethernet(word(block, 8)?, original, block.get(28..28 + captured)?)
}

fn ethernet(interface: u32, original: u32, frame: &[u8]) -> Option<CapturedPacket> {
    let ip = frame.get(14..)?;
    let (source, destination, protocol, l4): (IpAddr, IpAddr, u8, &[u8]) = match frame.get(12..14)? {
        [0x08, 0x00] => {
            let header = usize::from(ip.first()? & 0xf) * 4;
            let address = |at: usize| Some(Ipv4Addr::from(<[u8; 4]>::try_from(ip.get(at..at + 4)?).ok()?).into());
            (address(12)?, address(16)?, *ip.get(9)?, ip.get(header..)?)
        }
        [0x86, 0xdd] => {
            let address = |at: usize| Some(Ipv6Addr::from(<[u8; 16]>::try_from(ip.get(at..at + 16)?).ok()?).into());
            (address(8)?, address(24)?, *ip.get(6)?, ip.get(40..)?)
        }
        _ => return None,
    };
    let port = |at: usize| Some(u16::from_be_bytes([*l4.get(at)?, *l4.get(at + 1)?]));
    let flags = match protocol {
        6 => *l4.get(13)?,
        17 => 0,
        _ => return None,
    };
    Some(CapturedPacket {
        interface,
        source: SocketAddr::new(source, port(0)?),
        destination: SocketAddr::new(destination, port(2)?),
        flags,
        ip_bytes: original.saturating_sub(14),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tool::frames::{self, LinkEnds, SYN};

    type Bytes = fn(u32) -> [u8; 4];

    fn block(kind: u32, body: &[u8], bytes: Bytes) -> Vec<u8> {
        let padded = body.len().next_multiple_of(4);
        let length = (12 + padded) as u32;
        let mut block = [bytes(kind), bytes(length)].concat();
        block.extend(body);
        block.resize(8 + padded, 0);
        block.extend(bytes(length));
        block
    }

    #[test]
    fn packets_of_a_file_in_either_order() {
        let link = LinkEnds { to: [2; 6], from: [4; 6] };
        let (from, to) = ("10.0.0.2:1000".parse().unwrap(), "10.0.100.1:80".parse().unwrap());
        let frame = frames::tcp(link, from, to, SYN, (1, 2), b"x");
        for bytes in [u32::to_le_bytes as Bytes, u32::to_be_bytes] {
            let head = [&bytes(BYTE_ORDER)[..], &[1, 0, 0, 0], &[0xff; 8]].concat();
            let mut file = block(SECTION_HEADER, &head, bytes);
            file.extend(block(1, &[1, 0, 0, 0, 0, 0, 0, 0], bytes));
            let words = [0_u32, 0, 0, frame.len() as u32, 1014].map(bytes).concat();
            file.extend(block(ENHANCED_PACKET, &[words, frame.clone()].concat(), bytes));
            let read = packets(&file).unwrap();
            assert_eq!(read.len(), 1);
            assert_eq!((read[0].source, read[0].destination, read[0].flags, read[0].ip_bytes), (from, to, SYN, 1000));
            assert!(packets(&file[..file.len() - 4]).is_err());
        }
        assert!(packets(b"nothing at all").is_err());
        assert!(packets(&[]).is_err());
    }
}

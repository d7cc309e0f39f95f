//! The packets: small ones of as many flows as wanted, one after the other in random order, always the same.

use anyhow::{Context, Result};
use fastrand::Rng;
use hairpin_core::flow::{Address, Endpoint, Protocol};
use hairpin_core::wire::tcp::{ACK, SYN};
use hairpin_core::wire::{self, Parsed};
use std::io::{BufWriter, Write};
use std::net::Ipv4Addr;
use std::path::Path;

/// Bytes of a frame without its checksum: the smallest that Ethernet has.
pub(super) const FRAME: usize = 60;
/// Client ports of one address.
const PORTS: usize = 32_768;
/// Client ports begin here.
const PORT_FIRST: u16 = 1024;

/// A frame's bytes.
pub(super) type FrameBytes = [u8; FRAME];

/// The kind of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sort {
    /// Datagrams.
    Udp,
    /// TCP segments of connections that are established (as far as can be told from the packet): ACK, six bytes.
    Tcp,
    /// The first packet of TCP connections.
    Syn,
}

impl Sort {
    pub(super) const ALL: [Sort; 3] = [Sort::Udp, Sort::Tcp, Sort::Syn];

    pub(super) fn name(self) -> &'static str {
        match self {
            Sort::Udp => "udp",
            Sort::Tcp => "tcp",
            Sort::Syn => "syn",
        }
    }

    pub(super) fn protocol(self) -> Protocol {
        match self {
            Sort::Udp => Protocol::Udp,
            Sort::Tcp | Sort::Syn => Protocol::Tcp,
        }
    }
}

/// The address that clients send to.
pub(super) fn service() -> Endpoint {
    Endpoint { address: Address::from_ipv4([10, 0, 0, 1]), port: 80 }
}

/// The end of client `number`, which every client has for itself.
fn client(number: usize) -> Endpoint {
    let address = u32::from(Ipv4Addr::new(11, 0, 0, 1)) + (number / PORTS) as u32;
    Endpoint { address: Address::from_ipv4(address.to_be_bytes()), port: PORT_FIRST + (number % PORTS) as u16 }
}

/// One packet of each of the flows `first` to `first + flows`, in random order, the same each time.
pub(super) fn packets(sort: Sort, first: usize, flows: usize) -> Vec<FrameBytes> {
    let mut numbers: Vec<u32> = (first as u32..(first + flows) as u32).collect();
    Rng::with_seed(flows as u64).shuffle(&mut numbers);
    numbers.into_iter().map(|number| packet(sort, client(number as usize))).collect()
}

/// A packet from `source` to the service, its checksums right.
fn packet(sort: Sort, source: Endpoint) -> FrameBytes {
    let (destination, mut frame) = (service(), [0; FRAME]);
    frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0]);
    let ip = &mut frame[14..34];
    ip[0] = 0x45;
    ip[2..4].copy_from_slice(&((FRAME - 14) as u16).to_be_bytes());
    ip[6] = 0x40;
    (ip[8], ip[9]) = (64, sort.protocol() as u8);
    ip[12..16].copy_from_slice(&source.address.ipv4_octets());
    ip[16..20].copy_from_slice(&destination.address.ipv4_octets());
    let checksum = wire::checksum::Sum::of(ip).checksum();
    ip[10..12].copy_from_slice(&checksum.to_be_bytes());
    let transport = &mut frame[34..];
    transport[..2].copy_from_slice(&source.port.to_be_bytes());
    transport[2..4].copy_from_slice(&destination.port.to_be_bytes());
    match sort {
        Sort::Udp => transport[4..6].copy_from_slice(&((FRAME - 34) as u16).to_be_bytes()),
        Sort::Tcp | Sort::Syn => {
            transport[4..8].copy_from_slice(&u32::from(source.port).to_be_bytes());
            transport[12] = 5 << 4;
            transport[13] = if sort == Sort::Syn { SYN } else { ACK };
            transport[14..16].copy_from_slice(&8192u16.to_be_bytes());
        }
    }
    if let Ok(Parsed::Transport(at)) = wire::parse(&frame) {
        at.fill_checksum(&mut frame);
    }
    frame
}

/// Writes frames, so many times over, as a pcap file of microseconds, all at time 0.
#[cfg_attr(not(feature = "dpdk"), expect(dead_code, reason = "only DPDK reads such files"))]
pub(super) fn write_pcap(path: &Path, frames: &[FrameBytes], times: usize) -> Result<()> {
    let write = || -> std::io::Result<()> {
        let mut file = BufWriter::with_capacity(1 << 20, std::fs::File::create(path)?);
        file.write_all(&0xa1b2_c3d4_u32.to_le_bytes())?;
        file.write_all(&[2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0])?;
        file.write_all(&65_535u32.to_le_bytes())?;
        file.write_all(&1u32.to_le_bytes())?;
        for frame in (0..times).flat_map(|_| frames) {
            file.write_all(&[0; 8])?;
            file.write_all(&(FRAME as u32).to_le_bytes())?;
            file.write_all(&(FRAME as u32).to_le_bytes())?;
            file.write_all(frame)?;
        }
        file.flush()
    };
    write().with_context(|| format!("could not write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_flow_has_one_packet_and_its_checksums_are_right() {
        for sort in Sort::ALL {
            let frames = packets(sort, 7, 70_000);
            let mut keys = BTreeSet::new();
            for frame in &frames {
                let Ok(Parsed::Transport(at)) = wire::parse(frame) else { panic!("not a packet") };
                assert_eq!(at.key.protocol, sort.protocol());
                assert_eq!((at.key.destination, at.end), (service(), FRAME));
                let field = at.checksum_offset();
                let stands = u16::from_be_bytes([frame[field], frame[field + 1]]);
                assert_eq!(at.transport_checksum(frame), Some(stands));
                keys.insert(at.key);
            }
            assert_eq!(keys.len(), 70_000);
            assert!(keys.contains(&{
                let Ok(Parsed::Transport(at)) = wire::parse(&packet(sort, client(7))) else { panic!() };
                at.key
            }));
        }
    }
}

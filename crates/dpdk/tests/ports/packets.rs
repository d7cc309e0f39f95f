//! Packets to send.

use hairpin_core::wire::checksum::Sum;
use hairpin_core::wire::{self, Parsed};

/// The ends of all packets: 10.9.0.1 port 1000, 10.9.0.2 port 2000.
pub(crate) const MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 9, 1], [2, 0, 0, 0, 9, 2]];

/// A datagram from the second end to the first. Its checksum is right.
pub(crate) fn udp(payload: &[u8]) -> Vec<u8> {
    let mut transport = [[7, 208, 3, 232].as_slice(), &((8 + payload.len()) as u16).to_be_bytes(), &[0, 0]].concat();
    transport.extend(payload);
    finished(17, &transport)
}

/// A TCP segment the same way, with the number 1.
pub(crate) fn tcp(payload: &[u8]) -> Vec<u8> {
    let header = [7, 208, 3, 232, 0, 0, 0, 1, 0, 0, 0, 2, 5 << 4, 0x18, 1, 0, 0, 0, 0, 0];
    finished(6, &[header.as_slice(), payload].concat())
}

fn finished(protocol: u8, transport: &[u8]) -> Vec<u8> {
    let mut header = [0x45, 0, 0, 0, 0, 1, 0x40, 0, 64, protocol, 0, 0, 10, 9, 0, 2, 10, 9, 0, 1];
    header[2..4].copy_from_slice(&((20 + transport.len()) as u16).to_be_bytes());
    let checksum = Sum::of(&header).checksum();
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
    let mut frame = [&MACS[0], &MACS[1], [8, 0].as_slice(), &header, transport].concat();
    let Ok(Parsed::Transport(at)) = wire::parse(&frame) else { panic!("no packet") };
    at.fill_checksum(&mut frame);
    frame
}

/// Puts the pseudo-header's sum in the place of the checksum, as what is left to the last device has it.
pub(crate) fn unfinished(mut frame: Vec<u8>) -> Vec<u8> {
    let Ok(Parsed::Transport(at)) = wire::parse(&frame) else { panic!("no packet") };
    let (source, destination) = (&frame[at.l3 + 12..at.l3 + 16], &frame[at.l3 + 16..at.l3 + 20]);
    let sum = Sum::pseudo_header(source, destination, at.key.protocol as u8, at.end - at.l4).folded();
    let field = at.checksum_offset();
    frame[field..field + 2].copy_from_slice(&sum.to_be_bytes());
    frame
}

/// Whether the transport checksum is right.
pub(crate) fn is_right(frame: &[u8]) -> bool {
    let Ok(Parsed::Transport(at)) = wire::parse(frame) else { panic!("no packet") };
    let field = at.checksum_offset();
    at.transport_checksum(frame) == Some(u16::from_be_bytes([frame[field], frame[field + 1]]))
}

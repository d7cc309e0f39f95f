//! ARP over Ethernet for IPv4 (RFC 826), with RFC 5227's announcements.

use crate::wire::bytes::array_at;

/// EtherType of ARP.
pub(super) const ETHERTYPE: u16 = 0x0806;
/// Bytes of a packet.
pub(super) const LENGTH: usize = 28;
/// The least an Ethernet frame has without its checksum: what is shorter is padded with zeros.
pub(super) const FRAME_MIN: usize = 60;
/// Ethernet, IPv4, 6 and 4 bytes of address.
const KIND: [u8; 6] = [0, 1, 8, 0, 6, 4];

/// The operation of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum ArpOperation {
    /// Asks for the owner of the target address.
    Request = 1,
    /// Announces the owner of the sender address.
    Reply = 2,
}

/// A packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ArpPacket {
    pub(super) operation: ArpOperation,
    pub(super) sender_mac: [u8; 6],
    pub(super) sender: [u8; 4],
    /// In a request: nothing.
    pub(super) target_mac: [u8; 6],
    pub(super) target: [u8; 4],
}

impl ArpPacket {
    /// Reads the packet at `at`; `None` if it is no request or reply of Ethernet and IPv4, or cut off.
    pub(super) fn read(frame: &[u8], at: usize) -> Option<ArpPacket> {
        let bytes: [u8; LENGTH] = array_at(frame, at)?;
        let operation = match (bytes.first_chunk::<6>()?, bytes[6], bytes[7]) {
            (&KIND, 0, 1) => ArpOperation::Request,
            (&KIND, 0, 2) => ArpOperation::Reply,
            _ => return None,
        };
        Some(ArpPacket {
            operation,
            sender_mac: array_at(&bytes, 8)?,
            sender: array_at(&bytes, 14)?,
            target_mac: array_at(&bytes, 18)?,
            target: array_at(&bytes, 24)?,
        })
    }

    /// The packet's bytes.
    pub(super) fn bytes(&self) -> [u8; LENGTH] {
        let mut bytes = [0; LENGTH];
        bytes[..6].copy_from_slice(&KIND);
        bytes[7] = self.operation as u8;
        bytes[8..14].copy_from_slice(&self.sender_mac);
        bytes[14..18].copy_from_slice(&self.sender);
        bytes[18..24].copy_from_slice(&self.target_mac);
        bytes[24..28].copy_from_slice(&self.target);
        bytes
    }
}

//! Neighbour discovery's solicitations and advertisements (RFC 4861, sections 4.3, 4.4 and 7.1).
//!
//! Router discovery, redirects and address configuration are not here: addresses and gateways are configured.
//! Multicast listener reports (RFC 3810) are not sent either: switches that look into them must pass on 33:33:ff:...,
//! which they do where no host on a port asks for anything else, and always on ports of routers.

use crate::flow::Address;
use crate::link::header::CheckedHeader;
use crate::wire::bytes::array_at;
use crate::wire::checksum::Sum;
use crate::wire::{icmp, ipv6};

/// ICMPv6 type: neighbour solicitation.
pub(super) const SOLICITATION: u8 = 135;
/// ICMPv6 type: neighbour advertisement.
pub(super) const ADVERTISEMENT: u8 = 136;
/// The hop limit of messages to a neighbour: no host beyond a router can have sent it.
const HOPS: u8 = 255;
/// Bytes of a message before its options.
const MESSAGE: usize = 24;
/// Option: the sender's link-layer address.
const SOURCE_ADDRESS: u8 = 1;
/// Option: the target's link-layer address.
const TARGET_ADDRESS: u8 = 2;
/// Flag: the sender passes packets on.
const ROUTER: u8 = 0x80;
/// Flag: it answers a solicitation.
const SOLICITED: u8 = 0x40;
/// Flag: what is known must give way.
const OVERRIDE: u8 = 0x20;

/// Bytes of an IPv6 packet that [`DiscoveryPacket::bytes`] makes.
pub(super) const LENGTH: usize = ipv6::HEADER + MESSAGE + 8;

/// A message and what its IP header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DiscoveryPacket {
    pub(super) source: Address,
    pub(super) destination: Address,
    pub(super) message: NeighbourMessage,
}

/// A message. An absent link-layer address stays absent: the frame's own is not believed instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NeighbourMessage {
    Solicitation { target: Address, mac: Option<[u8; 6]> },
    Advertisement { target: Address, mac: Option<[u8; 6]>, solicited: bool, overrides: bool },
}

/// The group that the owner of `address` listens to (RFC 4291, 2.7.1).
pub(super) fn solicited_node(address: &Address) -> Address {
    let mut group = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0, 0, 0];
    group[13..].copy_from_slice(&address.0[13..]);
    Address(group)
}

/// All nodes of a link.
pub(super) const ALL_NODES: Address = Address([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);

/// The Ethernet address of a group (RFC 2464, 7).
pub(super) fn group_mac(group: &Address) -> [u8; 6] {
    [0x33, 0x33, group.0[12], group.0[13], group.0[14], group.0[15]]
}

impl DiscoveryPacket {
    /// Reads the message behind `header`; `None` if anything is not as RFC 4861 (7.1.1 and 7.1.2) wants it.
    pub(super) fn read(frame: &[u8], header: &CheckedHeader) -> Option<DiscoveryPacket> {
        let bytes = frame.get(header.l4..header.end)?;
        let (source, destination) = (header.source, header.destination);
        let pseudo = Sum::pseudo_header(&source.0, &destination.0, icmp::PROTOCOL_V6, bytes.len());
        let fixed: [u8; MESSAGE] = array_at(bytes, 0)?;
        let target = Address(array_at(&fixed, 8)?);
        let valid = header.hops == HOPS && (pseudo + Sum::of(bytes)).folded() == 0xffff && fixed[1] == 0;
        if !valid || !ipv6::is_host(&target) {
            return None;
        }
        let options = bytes.get(MESSAGE..)?;
        let message = match fixed[0] {
            SOLICITATION => {
                let mac = option(options, SOURCE_ADDRESS)?;
                // a host without an address asks the group, and must not be stored
                let unspecified = source == Address([0; 16]);
                if unspecified && (mac.is_some() || destination != solicited_node(&target)) {
                    return None;
                }
                NeighbourMessage::Solicitation { target, mac }
            }
            ADVERTISEMENT => {
                let mac = option(options, TARGET_ADDRESS)?;
                let (solicited, overrides) = (fixed[4] & SOLICITED != 0, fixed[4] & OVERRIDE != 0);
                if solicited && ipv6::is_group(&destination) || source == Address([0; 16]) {
                    return None;
                }
                NeighbourMessage::Advertisement { target, mac, solicited, overrides }
            }
            _ => return None,
        };
        Some(DiscoveryPacket { source, destination, message })
    }

    /// The IPv6 packet's bytes. A message without link-layer address still has the option, of zeros: all that Hairpin
    /// sends have one.
    pub(super) fn bytes(&self) -> [u8; LENGTH] {
        let mut bytes = [0; LENGTH];
        let (header, message) = bytes.split_at_mut(ipv6::HEADER);
        let hops = HOPS;
        let length = MESSAGE + 8;
        header.copy_from_slice(&ipv6::header(&self.source, &self.destination, icmp::PROTOCOL_V6, hops, length));
        let (target, mac) = match self.message {
            NeighbourMessage::Solicitation { target, mac } => {
                message[0] = SOLICITATION;
                message[MESSAGE] = SOURCE_ADDRESS;
                (target, mac)
            }
            NeighbourMessage::Advertisement { target, mac, solicited, overrides } => {
                message[0] = ADVERTISEMENT;
                message[4] = ROUTER | if solicited { SOLICITED } else { 0 } | if overrides { OVERRIDE } else { 0 };
                message[MESSAGE] = TARGET_ADDRESS;
                (target, mac)
            }
        };
        message[8..MESSAGE].copy_from_slice(&target.0);
        message[MESSAGE + 1] = 1;
        message[MESSAGE + 2..].copy_from_slice(&mac.unwrap_or_default());
        let pseudo = Sum::pseudo_header(&self.source.0, &self.destination.0, icmp::PROTOCOL_V6, length);
        let checksum = (pseudo + Sum::of(message)).checksum();
        message[icmp::CHECKSUM..icmp::CHECKSUM + 2].copy_from_slice(&checksum.to_be_bytes());
        bytes
    }
}

/// The link-layer address in the option of `kind`, the last one if there are several; `None` if options are malformed: of
/// length zero, cut off, or of another length than Ethernet's. There are no more than the packet has room for.
fn option(mut options: &[u8], kind: u8) -> Option<Option<[u8; 6]>> {
    let mut found = None;
    while !options.is_empty() {
        let length = usize::from(*options.get(1)?) * 8;
        let (option, rest) = options.split_at_checked(length).filter(|_| length > 0)?;
        if option[0] == kind {
            found = Some(array_at(option, 2).filter(|_| length == 8)?);
        }
        options = rest;
    }
    Some(found)
}

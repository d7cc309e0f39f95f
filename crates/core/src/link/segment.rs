//! One layer-2 network: a port, and the VLAN tags of the frames there. A neighbour learnt in one network is not used in
//! another.

use crate::wire::Malformed;
use crate::wire::bytes::u16_at;
use crate::wire::ethernet::{self, SERVICE_VLAN, VLAN, VLAN_TAG};
use core::fmt;

/// A tag is there.
const PRESENT: u64 = 0x8000;
/// It is a service tag (802.1ad).
const SERVICE: u64 = 0x4000;
/// The network's number; priority and drop eligibility are the frame's own affair.
const NUMBER: u16 = 0x0fff;

/// A port and up to two VLAN tags. Frames keep their tags on their way through a worker, so a frame that came in with a
/// tag leaves with it, and the neighbour it goes to is asked for under the same tag.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkSegment(u64);

impl LinkSegment {
    /// The network that untagged frames of `port` are in.
    pub const fn untagged(port: u16) -> LinkSegment {
        LinkSegment(port as u64)
    }

    /// The port.
    pub const fn port(self) -> u16 {
        self.0 as u16
    }

    /// The same tags at another port: where a frame goes that leaves by it.
    #[inline(always)]
    pub(super) const fn at(self, port: u16) -> LinkSegment {
        LinkSegment(self.0 & !0xffff | port as u64)
    }

    /// The tags, outermost first: EtherType and VLAN number.
    pub fn tags(self) -> impl Iterator<Item = (u16, u16)> {
        [self.0 >> 16, self.0 >> 32].into_iter().filter(|tag| tag & PRESENT != 0).map(|tag| {
            let kind = if tag & SERVICE != 0 { SERVICE_VLAN } else { VLAN };
            (kind, tag as u16 & NUMBER)
        })
    }

    /// The segment of a frame of `port`, its EtherType and the offset of its payload. A third tag comes back as the EtherType.
    #[inline(always)]
    pub(super) fn of(frame: &[u8], port: u16) -> Result<(LinkSegment, u16, usize), Malformed> {
        let (ethertype, offset) = ethernet::network_layer(frame)?;
        let mut packed = u64::from(port);
        for (position, at) in (ethernet::HEADER..offset).step_by(VLAN_TAG).enumerate() {
            let kind = u16_at(frame, at - 2).ok_or(Malformed::Truncated)?;
            let number = u64::from(u16_at(frame, at).ok_or(Malformed::Truncated)? & NUMBER);
            let tag = number | PRESENT | if kind == SERVICE_VLAN { SERVICE } else { 0 };
            packed |= tag << (16 + 16 * position);
        }
        Ok((LinkSegment(packed), ethertype, offset))
    }

    /// Bytes of a frame of this network before what it carries.
    pub(super) fn header_length(self) -> usize {
        ethernet::HEADER + VLAN_TAG * self.tags().count()
    }

    /// Writes addresses, tags and `ethertype` to the start of `frame`, as far as it reaches.
    pub(super) fn write(self, frame: &mut [u8], to: [u8; 6], from: [u8; 6], ethertype: u16) {
        let mut header = [0; ethernet::HEADER + 2 * VLAN_TAG];
        header[..6].copy_from_slice(&to);
        header[6..12].copy_from_slice(&from);
        let mut at = 12;
        for (kind, number) in self.tags() {
            header[at..at + 2].copy_from_slice(&kind.to_be_bytes());
            header[at + 2..at + 4].copy_from_slice(&number.to_be_bytes());
            at += VLAN_TAG;
        }
        header[at..at + 2].copy_from_slice(&ethertype.to_be_bytes());
        if let Some(start) = frame.get_mut(..at + 2) {
            start.copy_from_slice(&header[..at + 2]);
        }
    }

    /// As one number, and back: for tables.
    pub(super) const fn packed(self) -> u64 {
        self.0
    }

    pub(super) const fn unpacked(packed: u64) -> LinkSegment {
        LinkSegment(packed)
    }
}

impl fmt::Display for LinkSegment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.port())?;
        self.tags().try_for_each(|(_, number)| write!(f, ".{number}"))
    }
}

impl fmt::Debug for LinkSegment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

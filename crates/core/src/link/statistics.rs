//! The counters of a link layer, which only its worker writes.

use super::header::BadHeader;
use crate::wire::Malformed;

/// Why a frame was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Drop {
    /// It came in on a port that is not configured.
    Port,
    /// It is for another Ethernet address (a port that listens to all of them), or claims to come from a group.
    OtherHost,
    /// The frame ends before a header does.
    Truncated,
    /// Neither IP nor ARP.
    EtherType,
    /// The IP version is not what the EtherType says.
    Version,
    /// The IPv4 header is shorter than 20 bytes.
    HeaderLength,
    /// The packet is longer than its frame, or shorter than its header.
    TotalLength,
    /// The IPv4 header checksum is wrong.
    HeaderChecksum,
    /// From an address that no host has, or that is one of ours, or a network's broadcast address.
    Source,
    /// Multicast or broadcast that nothing here listens to.
    Group,
    /// ARP for Ethernet and IPv4 it is not, or cut off.
    ArpMalformed,
    /// ARP that asks for another host.
    ArpOther,
    /// Neighbour discovery that breaks RFC 4861's rules: hop limit, checksum, options.
    DiscoveryMalformed,
    /// Neighbour discovery that asks for another host.
    DiscoveryOther,
    /// ICMP for one of our addresses that is no echo request, error, nor neighbour discovery.
    Icmp,
    /// A fragment of an ICMP packet for one of our addresses.
    IcmpFragment,
    /// An echo request that is cut off or has a wrong checksum.
    EchoMalformed,
    /// More echo requests than are answered.
    EchoLimit,
    /// The worker does not know it, and there is no other stack to take it.
    NotOurs,
    /// The worker's frame is no IP packet.
    NotIp,
    /// No route to its destination, or the next hop is no host's address or one of ours.
    NoRoute,
    /// Its next hop does not answer.
    Unreachable,
    /// More wait for their next hop than may: this was the oldest.
    HoldFull,
    /// Waited for its next hop too long.
    HoldExpired,
    /// No room for another neighbour.
    NeighboursFull,
    /// More new neighbours than are asked for in a second.
    AskLimit,
    /// Another worker kept the table of neighbours for too long.
    Contended,
    /// Too big for the egress MTU, and too many such wait to be told to the worker.
    TooBig,
    /// The frame has no room for our answer.
    NoRoom,
    /// Too many frames of our own wait to be sent.
    Backlog,
}

impl Drop {
    /// All of them, in order.
    pub const ALL: [Drop; 30] = [
        Drop::Port,
        Drop::OtherHost,
        Drop::Truncated,
        Drop::EtherType,
        Drop::Version,
        Drop::HeaderLength,
        Drop::TotalLength,
        Drop::HeaderChecksum,
        Drop::Source,
        Drop::Group,
        Drop::ArpMalformed,
        Drop::ArpOther,
        Drop::DiscoveryMalformed,
        Drop::DiscoveryOther,
        Drop::Icmp,
        Drop::IcmpFragment,
        Drop::EchoMalformed,
        Drop::EchoLimit,
        Drop::NotOurs,
        Drop::NotIp,
        Drop::NoRoute,
        Drop::Unreachable,
        Drop::HoldFull,
        Drop::HoldExpired,
        Drop::NeighboursFull,
        Drop::AskLimit,
        Drop::Contended,
        Drop::TooBig,
        Drop::NoRoom,
        Drop::Backlog,
    ];

    /// Its name in status: lower case, words joined by hyphens.
    pub const fn name(self) -> &'static str {
        match self {
            Drop::Port => "port",
            Drop::OtherHost => "other-host",
            Drop::Truncated => "truncated",
            Drop::EtherType => "ethertype",
            Drop::Version => "ip-version",
            Drop::HeaderLength => "ip-header-length",
            Drop::TotalLength => "ip-total-length",
            Drop::HeaderChecksum => "ip-header-checksum",
            Drop::Source => "ip-source",
            Drop::Group => "group",
            Drop::ArpMalformed => "arp-malformed",
            Drop::ArpOther => "arp-other",
            Drop::DiscoveryMalformed => "nd-malformed",
            Drop::DiscoveryOther => "nd-other",
            Drop::Icmp => "icmp",
            Drop::IcmpFragment => "icmp-fragment",
            Drop::EchoMalformed => "echo-malformed",
            Drop::EchoLimit => "echo-limit",
            Drop::NotOurs => "not-ours",
            Drop::NotIp => "not-ip",
            Drop::NoRoute => "no-route",
            Drop::Unreachable => "unreachable",
            Drop::HoldFull => "hold-full",
            Drop::HoldExpired => "hold-expired",
            Drop::NeighboursFull => "neighbours-full",
            Drop::AskLimit => "ask-limit",
            Drop::Contended => "contended",
            Drop::TooBig => "too-big",
            Drop::NoRoom => "no-room",
            Drop::Backlog => "backlog",
        }
    }
}

impl From<BadHeader> for Drop {
    fn from(bad: BadHeader) -> Drop {
        match bad {
            BadHeader::Truncated => Drop::Truncated,
            BadHeader::Version => Drop::Version,
            BadHeader::HeaderLength => Drop::HeaderLength,
            BadHeader::TotalLength => Drop::TotalLength,
            BadHeader::Checksum => Drop::HeaderChecksum,
            BadHeader::Source => Drop::Source,
        }
    }
}

impl From<Malformed> for Drop {
    fn from(_: Malformed) -> Drop {
        Drop::Truncated
    }
}

/// What came and went. Every frame is in these: see [`Statistics::balance`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Frames that came from the plane.
    pub received: u64,
    /// Frames handed to the worker: received ones, and its own that were too big for the egress MTU.
    pub delivered: u64,
    /// Frames taken from the worker.
    pub taken: u64,
    /// Frames made here: requests, announcements.
    pub made: u64,
    /// Frames that the plane took.
    pub sent: u64,
    /// ARP and neighbour discovery by which another host answered or announced; they end here.
    pub absorbed: u64,
    /// Frames handed to the worker because they are too big for the egress MTU.
    pub too_big: u64,
    /// Requests for us by ARP or neighbour discovery that were answered.
    pub answered: u64,
    /// Echo requests that were answered.
    pub echoed: u64,
    /// Requests made for neighbours.
    pub asked: u64,
    /// Announcements made.
    pub announced: u64,
    /// Times a frame could not be had for a request or an announcement; it is made later.
    pub no_frame: u64,
    /// Times another host claimed an address of ours (RFC 5227, 2.4).
    pub conflicts: u64,
    /// Frames dropped, by [`Drop`].
    pub drops: [u64; Drop::ALL.len()],
}

impl Statistics {
    /// Frames that came minus frames that went: as many as wait now ([`super::Link::waiting`]), always.
    pub fn balance(&self) -> u64 {
        let came = self.received + self.taken + self.made;
        let went = self.delivered + self.sent + self.absorbed + self.drops.iter().sum::<u64>();
        came.wrapping_sub(went)
    }

    /// Frames dropped for this reason.
    pub fn dropped(&self, reason: Drop) -> u64 {
        self.drops[reason as usize]
    }
}

//! The counters of a link layer, which only its worker writes.

use super::header::BadHeader;
use crate::wire::Malformed;

/// Why a frame was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum LinkDrop {
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
    /// To a backend that is hops away, and cannot be wrapped: it has no room, no source address, or is to be cut up or
    /// summed up by a device.
    NotWrapped,
    /// The frame has no room for our answer.
    NoRoom,
    /// Too many frames of our own wait to be sent.
    Backlog,
}

impl LinkDrop {
    /// All of them, in order.
    pub const ALL: [LinkDrop; 31] = [
        LinkDrop::Port,
        LinkDrop::OtherHost,
        LinkDrop::Truncated,
        LinkDrop::EtherType,
        LinkDrop::Version,
        LinkDrop::HeaderLength,
        LinkDrop::TotalLength,
        LinkDrop::HeaderChecksum,
        LinkDrop::Source,
        LinkDrop::Group,
        LinkDrop::ArpMalformed,
        LinkDrop::ArpOther,
        LinkDrop::DiscoveryMalformed,
        LinkDrop::DiscoveryOther,
        LinkDrop::Icmp,
        LinkDrop::IcmpFragment,
        LinkDrop::EchoMalformed,
        LinkDrop::EchoLimit,
        LinkDrop::NotOurs,
        LinkDrop::NotIp,
        LinkDrop::NoRoute,
        LinkDrop::Unreachable,
        LinkDrop::HoldFull,
        LinkDrop::HoldExpired,
        LinkDrop::NeighboursFull,
        LinkDrop::AskLimit,
        LinkDrop::Contended,
        LinkDrop::TooBig,
        LinkDrop::NotWrapped,
        LinkDrop::NoRoom,
        LinkDrop::Backlog,
    ];

    /// Its name in status: lower case, words joined by hyphens.
    pub const fn name(self) -> &'static str {
        match self {
            LinkDrop::Port => "port",
            LinkDrop::OtherHost => "other-host",
            LinkDrop::Truncated => "truncated",
            LinkDrop::EtherType => "ethertype",
            LinkDrop::Version => "ip-version",
            LinkDrop::HeaderLength => "ip-header-length",
            LinkDrop::TotalLength => "ip-total-length",
            LinkDrop::HeaderChecksum => "ip-header-checksum",
            LinkDrop::Source => "ip-source",
            LinkDrop::Group => "group",
            LinkDrop::ArpMalformed => "arp-malformed",
            LinkDrop::ArpOther => "arp-other",
            LinkDrop::DiscoveryMalformed => "nd-malformed",
            LinkDrop::DiscoveryOther => "nd-other",
            LinkDrop::Icmp => "icmp",
            LinkDrop::IcmpFragment => "icmp-fragment",
            LinkDrop::EchoMalformed => "echo-malformed",
            LinkDrop::EchoLimit => "echo-limit",
            LinkDrop::NotOurs => "not-ours",
            LinkDrop::NotIp => "not-ip",
            LinkDrop::NoRoute => "no-route",
            LinkDrop::Unreachable => "unreachable",
            LinkDrop::HoldFull => "hold-full",
            LinkDrop::HoldExpired => "hold-expired",
            LinkDrop::NeighboursFull => "neighbours-full",
            LinkDrop::AskLimit => "ask-limit",
            LinkDrop::Contended => "contended",
            LinkDrop::TooBig => "too-big",
            LinkDrop::NotWrapped => "not-encapsulated",
            LinkDrop::NoRoom => "no-room",
            LinkDrop::Backlog => "backlog",
        }
    }
}

impl From<BadHeader> for LinkDrop {
    fn from(bad: BadHeader) -> LinkDrop {
        match bad {
            BadHeader::Truncated => LinkDrop::Truncated,
            BadHeader::Version => LinkDrop::Version,
            BadHeader::HeaderLength => LinkDrop::HeaderLength,
            BadHeader::TotalLength => LinkDrop::TotalLength,
            BadHeader::Checksum => LinkDrop::HeaderChecksum,
            BadHeader::Source => LinkDrop::Source,
        }
    }
}

impl From<Malformed> for LinkDrop {
    fn from(_: Malformed) -> LinkDrop {
        LinkDrop::Truncated
    }
}

/// Counters of frames. Every frame is in one of these: see see [`LinkStatistics::balance`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkStatistics {
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
    /// Frames dropped, by [`LinkDrop`].
    pub drops: [u64; LinkDrop::ALL.len()],
}

impl LinkStatistics {
    /// Frames that came minus frames that went: as many as wait now ([`super::Link::waiting`]), always.
    pub fn balance(&self) -> u64 {
        let came = self.received + self.taken + self.made;
        let went = self.delivered + self.sent + self.absorbed + self.drops.iter().sum::<u64>();
        came.wrapping_sub(went)
    }

    /// Frames dropped for this reason.
    pub fn dropped(&self, reason: LinkDrop) -> u64 {
        self.drops[reason as usize]
    }
}

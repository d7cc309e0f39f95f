//! Frames that come in: checked, answered, or passed on to the worker.

use super::arp::{self, ArpOperation};
use super::discovery::{self, NeighbourMessage};
use super::header::{self, CheckedHeader};
use super::neighbours::Claim;
use super::plan::{LinkPlan, LinkPort};
use super::segment::LinkSegment;
use super::{DEFEND_INTERVAL, Link, LinkDrop, Positions, echo, is_returned};
use crate::flow::Address;
use crate::frame::{Batch, Checksum, Frame, FrameIo, Meta};
use crate::wire::{self, Parsed, ethernet, icmp, ipv4, ipv6, plain};

/// The fate of a frame.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum InwardFate {
    /// The worker gets it.
    Worker,
    /// It has become our answer.
    Answer,
    /// It has told what it had to.
    Absorbed,
    /// Nothing.
    Drop(LinkDrop),
}

/// How a frame looks at first sight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// What nearly all are, in order up to its transport header, and [`wire::examined`] reads it.
    Examined,
    /// What nearly all are, in order up to its IP header.
    Usual,
    /// Something else, or out of order.
    Unusual,
}

/// Looks at a frame. What nearly all are is a whole TCP or UDP packet of IPv4 without options or of IPv6, for this port's
/// Ethernet address, without tags, from an address that another host may have.
#[inline(always)]
pub(super) fn look<F: Frame>(plan: &LinkPlan, frame: &F) -> Look {
    let bytes = frame.bytes();
    let Some(port) = plan.ports.get(usize::from(frame.meta().port)) else { return Look::Unusual };
    let Some(start) = bytes.first_chunk::<{ ethernet::HEADER + ipv4::HEADER }>() else { return Look::Unusual };
    let Some(ends) = start.first_chunk() else { return Look::Unusual };
    // to us, and not from a group: the lowest bit of the seventh byte
    if u64::from_le_bytes(*ends) & 0x0001_ffff_ffff_ffff != port.mac_word {
        return Look::Unusual;
    }
    match u16::from_be_bytes([start[12], start[13]]) {
        ethernet::IPV4 => {
            if plan.is_no_source_v4([start[26], start[27], start[28], start[29]]) {
                Look::Unusual
            } else if plain::honest(bytes).is_some() {
                Look::Examined
            } else {
                usual(is_usual_ipv4(start, bytes.len() - start.len()))
            }
        }
        ethernet::IPV6 => match wire::parse(bytes) {
            Ok(Parsed::Transport(at)) if wire::is_simple_ipv6(&at) && !plan.is_no_source(&at.key.source.address) => {
                Look::Examined
            }
            _ => usual(
                header::check_ipv6(bytes, ethernet::HEADER)
                    .is_ok_and(|header| matches!(header.protocol, 6 | 17) && !plan.is_no_source(&header.source)),
            ),
        },
        _ => Look::Unusual,
    }
}

fn usual(yes: bool) -> Look {
    if yes { Look::Usual } else { Look::Unusual }
}

fn is_usual_ipv4(start: &[u8; ethernet::HEADER + ipv4::HEADER], behind: usize) -> bool {
    start.last_chunk().is_some_and(|header: &[u8; ipv4::HEADER]| {
        header::is_usual_ipv4(header, behind) && matches!(header[9], plain::TCP | plain::UDP)
    })
}

impl<I: FrameIo> Link<I> {
    /// Looks at the frames from `first` on and leaves those in `batch` that are for the worker.
    pub(super) fn inward(&mut self, batch: &mut Batch<I::Frame>, first: usize) {
        let mut unusual: Positions = 0;
        for (position, frame) in batch.iter_mut().enumerate().skip(first) {
            let look = look(&self.plan, frame);
            frame.set_examined(look == Look::Examined);
            unusual |= Positions::from(look == Look::Unusual) << position;
        }
        if unusual != 0 {
            self.sort(batch, first, unusual);
        }
        self.statistics.delivered += (batch.len() - first) as u64;
    }

    /// Takes those of the frames from `first` on out of `batch` that are not for the worker; only `unusual` ones may be.
    #[inline(never)]
    fn sort(&mut self, batch: &mut Batch<I::Frame>, first: usize, unusual: Positions) {
        let frames: Batch<I::Frame> = batch.drain(first..).collect();
        for (position, mut frame) in (first..).zip(frames) {
            if unusual >> position & 1 == 0 {
                batch.push(frame);
                continue;
            }
            let number = frame.meta().port;
            match self.unusual(&mut frame, number) {
                InwardFate::Worker => batch.push(frame),
                InwardFate::Answer => self.depart(frame),
                InwardFate::Absorbed => self.statistics.absorbed += 1,
                InwardFate::Drop(reason) => self.drop_frame(reason),
            }
        }
    }

    /// The fate of any frame.
    pub(super) fn unusual(&mut self, frame: &mut I::Frame, number: u16) -> InwardFate {
        if is_returned(frame) {
            return InwardFate::Worker;
        }
        let bytes = frame.bytes();
        let Some(port) = self.plan.ports.get(usize::from(number)) else { return InwardFate::Drop(LinkDrop::Port) };
        let Some(start) = bytes.first_chunk::<{ ethernet::HEADER }>() else {
            return InwardFate::Drop(LinkDrop::Truncated);
        };
        let (group, for_us) = (start[0] & 1 != 0, start[..6] == port.mac);
        if !group && !for_us || start[6] & 1 != 0 {
            return InwardFate::Drop(LinkDrop::OtherHost);
        }
        let (segment, ethertype, l3) = match LinkSegment::of(bytes, number) {
            Ok(found) => found,
            Err(malformed) => return InwardFate::Drop(malformed.into()),
        };
        let checked = match ethertype {
            arp::ETHERTYPE => return self.arp(frame, segment, l3, for_us),
            ethernet::IPV4 => header::check_ipv4(bytes, l3),
            ethernet::IPV6 => header::check_ipv6(bytes, l3),
            _ => return InwardFate::Drop(LinkDrop::EtherType),
        };
        match checked {
            Err(bad) => InwardFate::Drop(bad.into()),
            Ok(header) if self.plan.is_no_source(&header.source) => self.own_source(frame, &header),
            Ok(header) if header.source.is_ipv4() => self.ipv4(frame, &header, for_us),
            Ok(header) => self.ipv6(frame, &header, segment, for_us),
        }
    }

    /// A packet that says to come from us.
    fn own_source(&mut self, frame: &I::Frame, header: &CheckedHeader) -> InwardFate {
        let sender = frame.bytes().get(6..12).and_then(|mac| mac.try_into().ok());
        let is_own = sender.is_none_or(|mac| self.plan.is_own_mac(&mac));
        // an advertisement of our address is mostly sent from it
        let discovers = header.protocol == icmp::PROTOCOL_V6 && header.hops == 255;
        if discovers && !is_own && self.plan.is_local(&header.source) {
            self.conflict();
        }
        InwardFate::Drop(LinkDrop::Source)
    }

    fn ipv4(&mut self, frame: &mut I::Frame, header: &CheckedHeader, for_us: bool) -> InwardFate {
        if !for_us || ipv4::is_group(header.destination.ipv4_octets()) || self.plan.is_broadcast(&header.destination) {
            return InwardFate::Drop(LinkDrop::Group);
        }
        if header.protocol != icmp::PROTOCOL_V4 || !self.plan.is_local(&header.destination) {
            return InwardFate::Worker;
        }
        if header.fragment { InwardFate::Drop(LinkDrop::IcmpFragment) } else { self.icmp(frame, header) }
    }

    fn ipv6(&mut self, frame: &mut I::Frame, header: &CheckedHeader, segment: LinkSegment, for_us: bool) -> InwardFate {
        let kind = frame.bytes().get(header.l4).copied().filter(|_| header.protocol == icmp::PROTOCOL_V6);
        if matches!(kind, Some(discovery::SOLICITATION | discovery::ADVERTISEMENT)) {
            return self.discovery(frame, header, segment, for_us);
        }
        if !for_us || ipv6::is_group(&header.destination) {
            return InwardFate::Drop(LinkDrop::Group);
        }
        if header.source == Address([0; 16]) {
            return InwardFate::Drop(LinkDrop::Source);
        }
        if !self.plan.is_local(&header.destination) {
            return InwardFate::Worker;
        }
        match header.protocol {
            icmp::PROTOCOL_V6 => self.icmp(frame, header),
            // the worker counts fragments of everything else
            ipv6::FRAGMENT if frame.bytes().get(header.l4) == Some(&icmp::PROTOCOL_V6) => {
                InwardFate::Drop(LinkDrop::IcmpFragment)
            }
            _ => InwardFate::Worker,
        }
    }

    /// An ICMP message for an address of ours: an echo request is answered, errors are the worker's.
    fn icmp(&mut self, frame: &mut I::Frame, header: &CheckedHeader) -> InwardFate {
        if !echo::is_request(frame.bytes(), header) {
            let is_error = match (header.source.is_ipv4(), frame.bytes().get(header.l4)) {
                (true, Some(kind)) => {
                    matches!(*kind, icmp::V4_UNREACHABLE | icmp::V4_TIME_EXCEEDED | icmp::V4_PARAMETER_PROBLEM)
                }
                (false, Some(kind)) => *kind < 128,
                (_, None) => false,
            };
            return if is_error { InwardFate::Worker } else { InwardFate::Drop(LinkDrop::Icmp) };
        }
        if !echo::is_whole(frame.bytes(), header) {
            return InwardFate::Drop(LinkDrop::EchoMalformed);
        }
        if !self.echoes.admits(self.now) {
            return InwardFate::Drop(LinkDrop::EchoLimit);
        }
        echo::answer(frame.bytes_mut(), header);
        frame.resize(header.end);
        settle(frame);
        self.statistics.echoed += 1;
        InwardFate::Answer
    }

    fn arp(&mut self, frame: &mut I::Frame, segment: LinkSegment, l3: usize, for_us: bool) -> InwardFate {
        let Some(packet) = arp::ArpPacket::read(frame.bytes(), l3) else {
            return InwardFate::Drop(LinkDrop::ArpMalformed);
        };
        let Some(port) = self.plan.ports.get(usize::from(segment.port())) else {
            return InwardFate::Drop(LinkDrop::Port);
        };
        let (sender, target) = (Address::from_ipv4(packet.sender), Address::from_ipv4(packet.target));
        let mac = port.mac;
        let answers = self.plan.answering(&target) >> segment.port() & 1 != 0;
        let probes = packet.sender == [0; 4];
        if self.plan.is_own_mac(&packet.sender_mac) {
            // our own, come back from a switch or from our other port
            return InwardFate::Drop(LinkDrop::ArpOther);
        }
        if packet.sender_mac[0] & 1 != 0 || packet.sender_mac == [0; 6] || !probes && !ipv4::is_host(packet.sender) {
            return InwardFate::Drop(LinkDrop::ArpMalformed);
        }
        if self.plan.is_local(&sender) {
            self.conflict();
            return InwardFate::Absorbed;
        }
        if !probes {
            let claim = Claim {
                address: sender,
                segment,
                mac: Some(packet.sender_mac),
                solicited: packet.operation == ArpOperation::Reply && for_us,
                overrides: true,
                learn: answers && packet.operation == ArpOperation::Request && self.learns(port, &sender),
            };
            let learn = self.neighbours.hear(self.now, &claim);
            if packet.operation == ArpOperation::Reply {
                return if learn || answers { InwardFate::Absorbed } else { InwardFate::Drop(LinkDrop::ArpOther) };
            }
        }
        if packet.operation != ArpOperation::Request || !answers {
            return InwardFate::Drop(LinkDrop::ArpOther);
        }
        let reply = arp::ArpPacket {
            operation: ArpOperation::Reply,
            sender_mac: mac,
            sender: packet.target,
            target_mac: packet.sender_mac,
            target: packet.sender,
        };
        let length = (l3 + arp::LENGTH).max(arp::FRAME_MIN);
        let written = write(frame, segment, length, (packet.sender_mac, mac, arp::ETHERTYPE), &reply.bytes());
        self.answered(written)
    }

    fn discovery(
        &mut self,
        frame: &mut I::Frame,
        header: &CheckedHeader,
        segment: LinkSegment,
        for_us: bool,
    ) -> InwardFate {
        let Some(packet) = discovery::DiscoveryPacket::read(frame.bytes(), header) else {
            return InwardFate::Drop(LinkDrop::DiscoveryMalformed);
        };
        let Some(port) = self.plan.ports.get(usize::from(segment.port())) else {
            return InwardFate::Drop(LinkDrop::Port);
        };
        let own = port.mac;
        match packet.message {
            NeighbourMessage::Advertisement { target, mac, solicited, overrides } => {
                if self.plan.is_local(&target) {
                    if mac.is_none_or(|mac| !self.plan.is_own_mac(&mac)) {
                        self.conflict();
                    }
                    return InwardFate::Absorbed;
                }
                let mac = mac.filter(|mac| mac[0] & 1 == 0 && *mac != [0; 6]);
                let solicited = solicited && for_us;
                let claim = Claim { address: target, segment, mac, solicited, overrides, learn: false };
                self.neighbours.hear(self.now, &claim);
                InwardFate::Absorbed
            }
            NeighbourMessage::Solicitation { target, mac } => {
                if self.plan.answering(&target) >> segment.port() & 1 == 0 {
                    return InwardFate::Drop(LinkDrop::DiscoveryOther);
                }
                let unspecified = packet.source == Address([0; 16]);
                let mac = mac.filter(|mac| mac[0] & 1 == 0 && *mac != [0; 6]);
                if let Some(mac) = mac {
                    let learn = self.learns(port, &packet.source);
                    let (address, mac) = (packet.source, Some(mac));
                    let claim = Claim { address, segment, mac, solicited: false, overrides: true, learn };
                    self.neighbours.hear(self.now, &claim);
                }
                let sender: Option<[u8; 6]> = frame.bytes().get(6..12).and_then(|mac| mac.try_into().ok());
                let to = match (unspecified, mac.or(sender)) {
                    (false, Some(mac)) => (packet.source, mac),
                    _ => (discovery::ALL_NODES, discovery::group_mac(&discovery::ALL_NODES)),
                };
                let message = NeighbourMessage::Advertisement {
                    target,
                    mac: Some(own),
                    solicited: !unspecified,
                    overrides: true,
                };
                let answer = discovery::DiscoveryPacket { source: target, destination: to.0, message };
                let length = segment.header_length() + discovery::LENGTH;
                let written = write(frame, segment, length, (to.1, own, ethernet::IPV6), &answer.bytes());
                self.answered(written)
            }
        }
    }

    /// Whether a host that asked for us from `address` may be remembered.
    fn learns(&self, port: &LinkPort, address: &Address) -> bool {
        port.is_near(address) && !self.plan.is_no_source(address)
    }

    fn answered(&mut self, written: bool) -> InwardFate {
        if !written {
            return InwardFate::Drop(LinkDrop::NoRoom);
        }
        self.statistics.answered += 1;
        InwardFate::Answer
    }

    /// Another host says to have one of our addresses.
    fn conflict(&mut self) {
        self.statistics.conflicts += 1;
        if self.now >= self.defended {
            self.defended = self.now + DEFEND_INTERVAL;
            if self.announcing.rounds == 0 {
                self.announce();
                self.announcing.rounds = 1;
            }
        }
    }
}

/// Makes `frame` one of these Ethernet addresses (to, from), EtherType and content, padded with zeros to `length`.
/// `false`, and nothing changed, if it has no room.
pub(super) fn write<F: Frame>(
    frame: &mut F,
    segment: LinkSegment,
    length: usize,
    (to, from, ethertype): ([u8; 6], [u8; 6], u16),
    content: &[u8],
) -> bool {
    if !frame.resize(length) {
        return false;
    }
    let bytes = frame.bytes_mut();
    segment.write(bytes, to, from, ethertype);
    let start = segment.header_length();
    if let Some((there, padding)) = bytes.get_mut(start..).and_then(|rest| rest.split_at_mut_checked(content.len())) {
        there.copy_from_slice(content);
        padding.fill(0);
    }
    settle(frame);
    frame.meta_mut().port = segment.port();
    true
}

/// The frame holds one ordinary, finished packet.
fn settle<F: Frame>(frame: &mut F) {
    let meta = frame.meta_mut();
    *meta = Meta { port: meta.port, ticket: meta.ticket, checksum: Checksum::Complete, ..Meta::default() };
}

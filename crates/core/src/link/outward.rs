//! Frames that go out: routed, addressed, held, or handed back as too big; and frames that the link layer makes itself.

use super::arp::{self, ArpOperation};
use super::discovery::{self, NeighbourMessage};
use super::held::HeldFrame;
use super::inward::write;
use super::neighbours::{Ask, NeedOutcome, NeighbourFound};
use super::plan::{LinkPlan, LinkPort, asked_at, is_link_local};
use super::routes::NextHop;
use super::segment::LinkSegment;
use super::{ANNOUNCED_AT_ONCE, ANNOUNCEMENT_INTERVAL, Link, LinkDrop, Positions, REMEMBERED};
use crate::flow::Address;
use crate::frame::{Arrival, Batch, Egress, Frame, FrameIo};
use crate::time::Time;
use crate::wire::bytes::{array_at, array_at_mut};
use crate::wire::{self, Parsed, ethernet, ipv4, ipv6};
use alloc::sync::Arc;

/// A cached next hop, with all that a frame to it needs; the default matches no neighbour. (A cache line.)
#[derive(Clone, Copy, Default)]
#[repr(align(64))]
pub(super) struct CachedHop {
    address: Address,
    segment: LinkSegment,
    /// The table's version when it was read.
    version: u64,
    /// Until when it may be used without asking again.
    until: Time,
    /// Ethernet addresses: to, from.
    ends: [u8; 12],
    /// The MTU of the port.
    mtu: u16,
}

/// The fate of a frame.
enum OutwardFate {
    /// It is ready to be sent.
    Sent,
    /// It waits for this next hop.
    Held(Address, LinkSegment),
    /// It goes back to the worker.
    TooBig(u16),
    /// Nothing.
    Drop(LinkDrop),
}

/// The destination of a packet, from its IP header.
struct OutwardPacket {
    destination: Address,
    /// Bytes of it.
    length: usize,
    l3: usize,
    /// The network it is in until it is routed.
    segment: LinkSegment,
}

impl OutwardPacket {
    #[inline(always)]
    fn read(frame: &[u8], port: u16) -> Option<OutwardPacket> {
        let (segment, ethertype, l3) = LinkSegment::of(frame, port).ok()?;
        let (destination, length) = match ethertype {
            ethernet::IPV4 => {
                let header = ipv4::Header(array_at(frame, l3)?);
                (Address::from_ipv4(header.destination()), header.total_length())
            }
            ethernet::IPV6 => {
                let header = ipv6::Header(array_at(frame, l3)?);
                (header.destination(), ipv6::HEADER + header.payload_length())
            }
            _ => return None,
        };
        Some(OutwardPacket { destination, length, l3, segment })
    }
}

impl<I: FrameIo> Link<I> {
    /// Leaves those frames in `batch` that are ready to be sent.
    pub(super) fn outward(&mut self, batch: &mut Batch<I::Frame>) {
        let version = self.neighbours.version();
        let mut others: Positions = 0;
        for (position, frame) in batch.iter_mut().enumerate() {
            others |= Positions::from(!self.goes(version, frame)) << position;
        }
        if others != 0 {
            self.sort_out(batch, others);
        }
    }

    /// Addresses a frame whose egress port and next hop are cached. Otherwise returns `false` and changes nothing.
    #[inline(always)]
    fn goes(&self, version: u64, frame: &mut I::Frame) -> bool {
        let bytes = frame.bytes();
        let Some(start) = bytes.first_chunk::<{ ethernet::HEADER + ipv4::HEADER }>() else { return false };
        let egress = frame.meta().egress;
        let (known, length) = match [start[12], start[13]] {
            [0x08, 0x00] => {
                let destination = [start[30], start[31], start[32], start[33]];
                (self.by_heart_v4(destination), usize::from(u16::from_be_bytes([start[16], start[17]])))
            }
            [0x86, 0xdd] => {
                let Some(destination) = array_at(bytes, 38).map(Address) else { return false };
                let payload = usize::from(u16::from_be_bytes([start[18], start[19]]));
                (self.by_heart(&destination), ipv6::HEADER + payload)
            }
            _ => return false,
        };
        let known = match egress {
            Egress::Route => known,
            Egress::Direct(number) => self.neighbour_by_heart(number),
            Egress::Kernel => None,
        };
        let Some(known) = known.filter(|known| known.version == version && self.now < known.until) else {
            return false;
        };
        let whole = (ethernet::HEADER + length).max(arp::FRAME_MIN);
        if length > usize::from(known.mtu) || bytes.len() > whole {
            return false;
        }
        if let Some(ends) = frame.bytes_mut().first_chunk_mut() {
            *ends = known.ends;
        }
        frame.meta_mut().port = known.segment.port();
        true
    }

    /// The cached next hop of this destination; it may have changed since.
    #[inline(always)]
    fn by_heart_v4(&self, destination: [u8; 4]) -> Option<&CachedHop> {
        match self.plan.routes.find_few(destination) {
            Some((at, route)) if route.has_gateway => self.remembered.get(REMEMBERED + at),
            Some((_, route)) => self.remembered_of(&Address::from_ipv4(destination), route.port),
            None => self.by_heart(&Address::from_ipv4(destination)),
        }
    }

    fn by_heart(&self, destination: &Address) -> Option<&CachedHop> {
        match self.plan.routes.find(destination) {
            [hop] if !is_link_local(destination) => {
                self.remembered_of(hop.gateway.as_ref().unwrap_or(destination), hop.port)
            }
            _ => None,
        }
    }

    /// The cached entry of a backend of direct server return that is a neighbour.
    fn neighbour_by_heart(&self, number: u16) -> Option<&CachedHop> {
        let backend = self.plan.direct(number).filter(|backend| backend.overhead() == 0)?;
        match self.plan.routes.find(&backend.address) {
            [hop] if hop.gateway.is_none() => self.remembered_of(&backend.address, hop.port),
            _ => None,
        }
    }

    #[inline(always)]
    fn remembered_of(&self, next: &Address, port: u16) -> Option<&CachedHop> {
        let segment = LinkSegment::untagged(port);
        let known = &self.remembered[place(next, segment)];
        (known.segment == segment && known.address == *next).then_some(known)
    }

    /// Finds the routes of the frames that are not ready yet (`others`), and removes those that cannot leave.
    #[inline(never)]
    fn sort_out(&mut self, batch: &mut Batch<I::Frame>, others: Positions) {
        // counted up once a batch: the plan is shared with other workers
        let plan = Arc::clone(&self.plan);
        let frames = core::mem::take(batch);
        for (position, mut frame) in frames.into_iter().enumerate() {
            let fate = match others >> position & 1 {
                0 => OutwardFate::Sent,
                _ => match wrap(&plan, &mut frame) {
                    Some(fate) => fate,
                    None => self.leaves(&plan, &mut frame),
                },
            };
            self.statistics.taken += u64::from(!matches!(fate, OutwardFate::Sent));
            match fate {
                OutwardFate::Sent => batch.push(frame),
                OutwardFate::Held(next, segment) => {
                    if let Some(_oldest) = self.hold.keep(self.now, next, segment, frame) {
                        self.drop_frame(LinkDrop::HoldFull);
                    }
                }
                OutwardFate::TooBig(mtu) => self.return_too_big(frame, mtu),
                OutwardFate::Drop(reason) => self.drop_frame(reason),
            }
        }
    }

    fn return_too_big(&mut self, mut frame: I::Frame, mtu: u16) {
        frame.meta_mut().arrival = Arrival::too_big(mtu);
        if self.too_big.try_push(frame).is_err() {
            self.drop_frame(LinkDrop::TooBig);
        }
    }

    /// Finds a frame's route and addresses it.
    fn leaves(&mut self, plan: &LinkPlan, frame: &mut I::Frame) -> OutwardFate {
        let egress = frame.meta().egress;
        if egress == Egress::Kernel {
            return OutwardFate::Drop(LinkDrop::NotOurs);
        }
        let Some(packet) = OutwardPacket::read(frame.bytes(), frame.meta().port) else {
            return OutwardFate::Drop(LinkDrop::NotIp);
        };
        let (to, is_direct) = match egress {
            Egress::Direct(number) => match plan.direct(number) {
                Some(backend) => (backend.address, true),
                None => return OutwardFate::Drop(LinkDrop::NoRoute),
            },
            Egress::Route | Egress::Kernel => (packet.destination, false),
        };
        let here;
        let hops = match is_link_local(&to) {
            false => plan.routes.find(&to),
            true => {
                here = [NextHop::on_link(packet.segment.port())];
                &here
            }
        };
        let mut fate = OutwardFate::Drop(LinkDrop::NoRoute);
        for hop in hops.iter().filter(|hop| !is_direct || hop.gateway.is_none()) {
            let Some(port) = plan.ports.get(usize::from(hop.port)) else { continue };
            if packet.length > usize::from(port.mtu) && exceeds(frame, port.mtu) {
                return OutwardFate::TooBig(port.mtu);
            }
            let next = hop.gateway.unwrap_or(to);
            let segment = packet.segment.at(hop.port);
            match self.look_up(&next, segment) {
                Ok(mac) => {
                    address(frame, &packet, (mac, port.mac));
                    frame.meta_mut().port = hop.port;
                    return OutwardFate::Sent;
                }
                // another gateway may do
                Err(dropped @ OutwardFate::Drop(LinkDrop::Unreachable)) => fate = dropped,
                Err(other) => return other,
            }
        }
        fate
    }

    /// The Ethernet address of a next hop, or what becomes of a frame to there.
    fn look_up(&mut self, next: &Address, segment: LinkSegment) -> Result<[u8; 6], OutwardFate> {
        // before the entry, so that a change in between is noticed
        let version = self.neighbours.version();
        match self.neighbours.find(next, segment) {
            NeighbourFound::At { mac, until } if self.now < until => {
                if let Some(port) = self.plan.ports.get(usize::from(segment.port())) {
                    let mut ends = [0; 12];
                    ends[..6].copy_from_slice(&mac);
                    ends[6..].copy_from_slice(&port.mac);
                    let known = CachedHop { address: *next, segment, version, until, ends, mtu: port.mtu };
                    self.remembered[place(next, segment)] = known;
                    if segment == LinkSegment::untagged(segment.port()) {
                        for at in self.plan.routes.few_by(next, segment.port()) {
                            self.remembered[REMEMBERED + at] = known;
                        }
                    }
                }
                Ok(mac)
            }
            NeighbourFound::At { mac, .. } => {
                // usable while it is asked after; if that cannot be now, the next frame tries again
                if let NeedOutcome::Ask(ask) = self.neighbours.need(self.now, next, segment) {
                    self.ask(&ask);
                }
                Ok(mac)
            }
            NeighbourFound::Asked => Err(OutwardFate::Held(*next, segment)),
            NeighbourFound::Failed => Err(OutwardFate::Drop(LinkDrop::Unreachable)),
            NeighbourFound::Busy => Err(OutwardFate::Drop(LinkDrop::Contended)),
            NeighbourFound::Unknown => Err(self.new_next_hop(next, segment)),
        }
    }

    /// Asks for a neighbour that has not been asked for.
    fn new_next_hop(&mut self, next: &Address, segment: LinkSegment) -> OutwardFate {
        let is_host = match next.is_ipv4() {
            true => ipv4::is_host(next.ipv4_octets()) && !self.plan.is_broadcast(next),
            false => ipv6::is_host(next),
        };
        if !is_host || self.plan.is_local(next) {
            return OutwardFate::Drop(LinkDrop::NoRoute);
        }
        if !self.asks.admits(self.now) {
            return OutwardFate::Drop(LinkDrop::AskLimit);
        }
        match self.neighbours.need(self.now, next, segment) {
            NeedOutcome::Ask(ask) => {
                self.ask(&ask);
                OutwardFate::Held(*next, segment)
            }
            NeedOutcome::Known => OutwardFate::Held(*next, segment),
            NeedOutcome::Full => OutwardFate::Drop(LinkDrop::NeighboursFull),
            NeedOutcome::Busy => OutwardFate::Drop(LinkDrop::Contended),
        }
    }

    /// Sends the frames whose next hop is known by now, and drops those whose is known not to answer.
    pub(super) fn release(&mut self) {
        if self.hold.is_empty() {
            return;
        }
        let version = self.neighbours.version();
        let oldest_stays = self.hold.oldest_until().is_some_and(|until| self.now < until);
        if version == self.hold_version && oldest_stays {
            return;
        }
        let now = self.now;
        let Link { hold, neighbours, plan, departing, statistics, .. } = &mut *self;
        let mut left = false;
        hold.sift(|HeldFrame { next, segment, until, mut frame }| {
            let reason = match neighbours.find(&next, segment) {
                NeighbourFound::At { mac, .. } if !departing.is_full() => {
                    let port = plan.ports.get(usize::from(segment.port()));
                    let packet = OutwardPacket::read(frame.bytes(), segment.port());
                    if let (Some(port), Some(packet)) = (port, packet) {
                        address(&mut frame, &packet, (mac, port.mac));
                        frame.meta_mut().port = segment.port();
                        departing.push(frame);
                        return None;
                    }
                    LinkDrop::NoRoute
                }
                NeighbourFound::At { .. } | NeighbourFound::Busy | NeighbourFound::Asked if now < until => {
                    left = true;
                    return Some(HeldFrame { next, segment, until, frame });
                }
                NeighbourFound::Failed | NeighbourFound::Unknown => LinkDrop::Unreachable,
                NeighbourFound::At { .. } | NeighbourFound::Busy | NeighbourFound::Asked => LinkDrop::HoldExpired,
            };
            statistics.drops[reason as usize] += 1;
            None
        });
        // those that found no room are tried again although nothing has changed
        self.hold_version = if left && self.departing.is_full() { version.wrapping_sub(1) } else { version };
    }

    /// Sends a request for a neighbour.
    pub(super) fn ask(&mut self, ask: &Ask) {
        let plan = Arc::clone(&self.plan);
        let Some(port) = plan.ports.get(usize::from(ask.segment.port())) else { return };
        let source = port.asks_as(&ask.address);
        let made = if ask.address.is_ipv4() {
            let packet = arp::ArpPacket {
                operation: ArpOperation::Request,
                sender_mac: port.mac,
                sender: source.ipv4_octets(),
                target_mac: [0; 6],
                target: ask.address.ipv4_octets(),
            };
            self.send_arp(port, ask.segment, ask.mac.unwrap_or([0xff; 6]), &packet)
        } else {
            let (group, group_mac) = asked_at(&ask.address);
            let destination = if ask.mac.is_some() { ask.address } else { group };
            let message = NeighbourMessage::Solicitation { target: ask.address, mac: Some(port.mac) };
            let packet = discovery::DiscoveryPacket { source, destination, message };
            self.send_discovery(port, ask.segment, ask.mac.unwrap_or(group_mac), &packet)
        };
        self.statistics.asked += u64::from(made);
    }

    /// Announces the next few of our addresses.
    pub(super) fn announce_some(&mut self) {
        let plan = Arc::clone(&self.plan);
        for _ in 0..ANNOUNCED_AT_ONCE {
            let Some((own, ports)) = plan.own(self.announcing.address) else {
                self.announcing.rounds -= 1;
                (self.announcing.address, self.announcing.port) = (0, 0);
                self.announcing.due = self.now + ANNOUNCEMENT_INTERVAL;
                return;
            };
            let number = self.announcing.port;
            let Some(port) = plan.ports.get(usize::from(number)) else {
                self.announcing.address += 1;
                self.announcing.port = 0;
                continue;
            };
            if ports >> number & 1 != 0 {
                if !self.announce_one(port, number, &own) {
                    // no frame to be had: tried again in the next iteration
                    return;
                }
                self.statistics.announced += 1;
            }
            self.announcing.port += 1;
        }
    }

    fn announce_one(&mut self, port: &LinkPort, number: u16, own: &Address) -> bool {
        let segment = LinkSegment::untagged(number);
        if own.is_ipv4() {
            let octets = own.ipv4_octets();
            let (operation, target_mac) = (ArpOperation::Request, [0; 6]);
            let packet = arp::ArpPacket { operation, sender_mac: port.mac, sender: octets, target_mac, target: octets };
            return self.send_arp(port, segment, [0xff; 6], &packet);
        }
        let message =
            NeighbourMessage::Advertisement { target: *own, mac: Some(port.mac), solicited: false, overrides: true };
        let packet = discovery::DiscoveryPacket { source: *own, destination: discovery::ALL_NODES, message };
        self.send_discovery(port, segment, discovery::group_mac(&discovery::ALL_NODES), &packet)
    }

    fn send_arp(&mut self, port: &LinkPort, segment: LinkSegment, to: [u8; 6], packet: &arp::ArpPacket) -> bool {
        let length = (segment.header_length() + arp::LENGTH).max(arp::FRAME_MIN);
        self.make(segment, length, (to, port.mac, arp::ETHERTYPE), &packet.bytes())
    }

    fn send_discovery(
        &mut self,
        port: &LinkPort,
        segment: LinkSegment,
        to: [u8; 6],
        packet: &discovery::DiscoveryPacket,
    ) -> bool {
        let length = segment.header_length() + discovery::LENGTH;
        self.make(segment, length, (to, port.mac, ethernet::IPV6), &packet.bytes())
    }

    /// Makes a frame and has it sent. `false`: there is none to be had.
    fn make(&mut self, segment: LinkSegment, length: usize, ethernet: ([u8; 6], [u8; 6], u16), content: &[u8]) -> bool {
        let made = self.io.allocate().and_then(|mut frame| {
            let fits = write(&mut frame, segment, length, ethernet, content);
            fits.then_some(frame)
        });
        let Some(frame) = made else {
            self.statistics.no_frame += 1;
            return false;
        };
        self.statistics.made += 1;
        self.depart(frame);
        true
    }
}

/// Puts the outer headers on a packet to a backend that is hops away: from here on it is one to that backend. Its fate, if
/// it does not go on.
fn wrap<F: Frame>(plan: &LinkPlan, frame: &mut F) -> Option<OutwardFate> {
    let Egress::Direct(number) = frame.meta().egress else { return None };
    let backend = plan.direct(number).filter(|backend| backend.overhead() > 0)?;
    let Some(packet) = OutwardPacket::read(frame.bytes(), frame.meta().port) else {
        return Some(OutwardFate::Drop(LinkDrop::NotIp));
    };
    let mtu = plan.mtu_to(&backend.address).saturating_sub(backend.overhead());
    if mtu == 0 {
        return Some(OutwardFate::Drop(LinkDrop::NoRoute));
    }
    if packet.length > mtu {
        return Some(OutwardFate::TooBig(mtu as u16));
    }
    if !backend.wrap(frame, packet.l3, packet.length) {
        return Some(OutwardFate::Drop(LinkDrop::NotWrapped));
    }
    frame.meta_mut().egress = Egress::Route;
    None
}

/// The cache position of a next hop.
#[inline(always)]
fn place(next: &Address, segment: LinkSegment) -> usize {
    let low = u64::from_le_bytes([0, 0, next.0[10], next.0[11], next.0[12], next.0[13], next.0[14], next.0[15]]);
    let hash = (low ^ segment.packed()).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (hash >> 57) as usize % REMEMBERED
}

/// Whether a packet longer than `mtu` is too big: of a super-packet, whether its segments are.
#[cold]
fn exceeds<F: Frame>(frame: &F, mtu: u16) -> bool {
    match (frame.meta().gso_size, wire::parse(frame.bytes())) {
        (size @ 1.., Ok(Parsed::Transport(at))) => {
            at.payload - at.l3 + usize::from(size).min(at.end - at.payload) > usize::from(mtu)
        }
        _ => true,
    }
}

/// Writes the Ethernet addresses (to, from), and cuts off what lies behind the packet and is no padding.
#[inline(always)]
fn address<F: Frame>(frame: &mut F, packet: &OutwardPacket, (to, from): ([u8; 6], [u8; 6])) {
    if let Some(addresses) = array_at_mut::<12>(frame.bytes_mut(), 0) {
        addresses[..6].copy_from_slice(&to);
        addresses[6..].copy_from_slice(&from);
    }
    let length = (packet.l3 + packet.length).max(arp::FRAME_MIN);
    if frame.bytes().len() > length {
        frame.resize(length);
    }
}

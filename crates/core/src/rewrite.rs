//! The changes that a rule makes to a packet, and doing them in software.

use crate::flow::{Direction, Endpoint, FlowKey, Protocol};
use crate::frame::Checksum;
use crate::wire::bytes::{array_at, array_at_mut, u32_at};
use crate::wire::checksum::{Difference, FewWords, Sum};
use crate::wire::{Transport, ipv4, ipv6, plain, tcp, udp};

/// New ends of a flow, and what is added to its TCP sequence numbers (wrapping).
///
/// A frame under a rewrite becomes identical bytes above layer 2 here, in BPF (`crates/linux/bpf/rewrite.h`) and
/// in the modelled NIC (invariant 4). TTL or hop limit is always lowered by one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rewrite {
    /// The new source.
    pub source: Endpoint,
    /// The new destination.
    pub destination: Endpoint,
    /// Added to the sequence number.
    pub sequence_delta: u32,
    /// Added to the acknowledgement number and to both edges of every SACK block; the acknowledgement number is left
    /// alone when ACK is not set.
    pub acknowledgement_delta: u32,
    /// The shift of the window field, -14 to 14: to the left (at most 65535) if positive, else to the right. For two
    /// ends that have agreed on different window scales with us (RFC 7323, 2). A SYN's is left alone: it has no scale.
    pub window_shift: i8,
    /// Added to the sender's value in a TCP timestamps option (RFC 7323, 3.2), where there is one.
    pub timestamp_delta: u32,
    /// Added to the echo in a timestamps option.
    pub echo_delta: u32,
}

impl Rewrite {
    /// Rewrites the packet [`parse`](crate::wire::parse) found `at` in `frame`; the new addresses are of its family.
    ///
    /// Checksums are changed incrementally, as the kernel does (`bpf_l4_csum_replace`, see [`crate::wire::checksum`]):
    /// right stays right and wrong stays wrong, and a changed one is never 0xffff but for UDP, where 0 is sent as
    /// 0xffff. A UDP checksum of 0 ("none") stays 0. Of a [`Checksum::Partial`] frame's only the addresses' part is
    /// changed: ports, numbers and payload are the device's to sum up.
    ///
    /// A TTL or hop limit of 0 stays 0; what arrives with 1 or 0 is not to be forwarded. SACK options are read as the
    /// kernel reads them: options behind an impossible one, and SACK options not of whole blocks, are left alone.
    #[inline]
    pub fn apply(&self, frame: &mut [u8], at: &Transport, checksum: Checksum) {
        let Some(packet) = frame.get_mut(at.l3..at.end) else { return };
        let Some((network, transport)) = packet.split_at_mut_checked(at.l4.saturating_sub(at.l3)) else { return };
        let (source, destination) = (&self.source.address, &self.destination.address);
        let addresses = match at.key.is_ipv4() {
            true => ipv4::readdress(network, source.ipv4_octets(), destination.ipv4_octets(), true),
            false => ipv6::readdress(network, source, destination, true),
        };
        let Some(addresses) = addresses else { return };
        match at.key.protocol {
            Protocol::Udp => self.apply_udp(transport, addresses, checksum),
            Protocol::Tcp => self.apply_tcp(transport, addresses, checksum, at.payload.saturating_sub(at.l4)),
        }
    }

    /// [`Rewrite::apply`] of a rewrite that only changes the ends, for a [plain](plain::PlainPacket) packet.
    #[inline(always)]
    pub(crate) fn readdress_plain(
        head: &mut plain::PlainHead,
        ends: [&Endpoint; 2],
        protocol: Protocol,
        checksum: Checksum,
    ) {
        let [source, destination] = ends.map(|end| end.address.ipv4_octets());
        let (network, transport) = head.split_at_mut(plain::L4);
        let header = &mut network[plain::L3..];
        let Some(addresses) = ipv4::readdress(header, source, destination, true) else { return };
        let mut ports = Difference::NONE;
        if let Some(field) = array_at_mut::<4>(transport, 0) {
            let ([a, b], [c, d]) = (ends[0].port.to_be_bytes(), ends[1].port.to_be_bytes());
            ports.words(*field, [a, b, c, d]);
            *field = [a, b, c, d];
        }
        keep_in_step(head, protocol, |old| updated(old, checksum, addresses, ports));
    }

    /// [`Rewrite::readdress_plain`] of one end only: where a client's packet goes to, or where an answer comes from.
    /// One hop less is left of at least one.
    #[inline(always)]
    pub(crate) fn readdress_plain_end(
        head: &mut plain::PlainHead,
        direction: Direction,
        (address, port): ([u8; 4], u16),
        protocol: Protocol,
        checksum: Checksum,
    ) {
        let Some([hops, ends]) = plain::words(head) else { return };
        let (old, old_port) = match direction {
            Direction::FromClient => (ends as u32, (ends >> 48) as u16),
            Direction::FromBackend => ((hops >> 32) as u32, (ends >> 32) as u16),
        };
        let (turned, turned_port) = (old ^ u32::from_le_bytes(address), old_port ^ port.swap_bytes());
        let (turned, turned_port) = (u64::from(turned), u64::from(turned_port));
        let (hops, ends) = match direction {
            Direction::FromClient => (hops, ends ^ turned ^ turned_port << 48),
            Direction::FromBackend => (hops ^ turned << 32, ends ^ turned_port << 32),
        };
        let addresses = FewWords::words(old.to_le_bytes(), address);
        let sum = (hops >> 16) as u16;
        let new_sum = addresses.update_header(sum.swap_bytes()).swap_bytes();
        let hops = hops.wrapping_sub(1) ^ u64::from(sum ^ new_sum) << 16;
        for (at, word) in [(plain::HOPS, hops), (plain::HOPS + 8, ends)] {
            if let Some(field) = array_at_mut(head, at) {
                *field = word.to_le_bytes();
            }
        }
        let ports = FewWords::word(old_port.swap_bytes(), port);
        keep_in_step(head, protocol, |old| match checksum {
            Checksum::Complete => (addresses + ports).update(old),
            Checksum::Partial => addresses.update_partial(old),
        });
    }

    #[inline(always)]
    fn apply_udp(&self, datagram: &mut [u8], addresses: Difference, checksum: Checksum) {
        let Some(header) = array_at_mut::<{ udp::HEADER }>(datagram, 0) else { return };
        let ports = self.change_ports(&mut header[..4]);
        let old = u16::from_be_bytes([header[udp::CHECKSUM], header[udp::CHECKSUM + 1]]);
        if old != 0 {
            let new = udp::mangled(updated(old, checksum, addresses, ports));
            header[udp::CHECKSUM..].copy_from_slice(&new.to_be_bytes());
        }
    }

    #[inline(always)]
    fn apply_tcp(&self, segment: &mut [u8], addresses: Difference, checksum: Checksum, header_length: usize) {
        let Some(header) = array_at_mut::<{ tcp::HEADER }>(segment, 0) else { return };
        let mut changes = self.change_ports(&mut header[..4]);
        let acknowledges = header[tcp::FLAGS] & tcp::ACK != 0;
        changes += add(&mut header[tcp::SEQUENCE..], self.sequence_delta);
        if acknowledges {
            changes += add(&mut header[tcp::ACKNOWLEDGEMENT..], self.acknowledgement_delta);
        }
        if (self.acknowledgement_delta != 0 || self.changes_timestamps())
            && let Some(options) = segment.get_mut(tcp::HEADER..header_length)
        {
            changes += self.translate_options(options);
        }
        if self.window_shift != 0
            && let Some(header) = array_at_mut::<{ tcp::HEADER }>(segment, 0)
            && header[tcp::FLAGS] & tcp::SYN == 0
            && let Some(window) = array_at_mut::<2>(header, tcp::WINDOW)
        {
            let old = u16::from_be_bytes(*window);
            let new = self.shifted_window(old);
            changes.word(old, new);
            *window = new.to_be_bytes();
        }
        if let Some(field) = array_at_mut::<2>(segment, tcp::CHECKSUM) {
            *field = updated(u16::from_be_bytes(*field), checksum, addresses, changes).to_be_bytes();
        }
    }

    #[inline(always)]
    fn change_ports(&self, ports: &mut [u8]) -> Difference {
        let mut changes = Difference::NONE;
        if let Some(field) = array_at_mut::<4>(ports, 0) {
            let ([a, b], [c, d]) = (self.source.port.to_be_bytes(), self.destination.port.to_be_bytes());
            changes.words(*field, [a, b, c, d]);
            *field = [a, b, c, d];
        }
        changes
    }

    /// The result of shifting `window`: to the left at most 65535, so never more than is there; to the right the rest is
    /// cut off, so that a window may come out as 0, which the sender probes.
    pub fn shifted_window(&self, window: u16) -> u16 {
        let by = u32::from(self.window_shift.unsigned_abs()).min(u16::BITS);
        let window = u32::from(window);
        if self.window_shift < 0 { (window >> by) as u16 } else { (window << by).min(u32::from(u16::MAX)) as u16 }
    }

    /// Whether timestamps become others.
    pub fn changes_timestamps(&self) -> bool {
        self.timestamp_delta != 0 || self.echo_delta != 0
    }

    /// Adds the acknowledgement delta to every SACK edge, and their deltas to timestamps. They may lie at odd offsets, so the
    /// difference is taken of the options as a whole.
    fn translate_options(&self, options: &mut [u8]) -> Difference {
        const OPTIONS_MAX: usize = 40;
        let mut copy = [0; OPTIONS_MAX];
        let Some(original) = copy.get_mut(..options.len()) else { return Difference::NONE };
        original.copy_from_slice(options);
        let mut add = |at: usize, delta: u32| {
            if let (Some(old), Some(field)) = (u32_at(original, at), array_at_mut::<4>(options, at)) {
                *field = old.wrapping_add(delta).to_be_bytes();
            }
        };
        tcp::sack_edges(original).for_each(|edge| add(edge, self.acknowledgement_delta));
        for value in tcp::timestamps(original) {
            add(value, self.timestamp_delta);
            add(value + 4, self.echo_delta);
        }
        Difference::between(Sum::of(original), Sum::of(options))
    }

    /// The rewrite of the other direction of the connection whose packets in this direction arrive with `key`: it takes
    /// packets of [`Rewrite::rewritten`]`(key).reversed()` to `key.reversed()`.
    pub fn reversed(&self, key: &FlowKey) -> Rewrite {
        Rewrite {
            source: key.destination,
            destination: key.source,
            sequence_delta: self.acknowledgement_delta.wrapping_neg(),
            acknowledgement_delta: self.sequence_delta.wrapping_neg(),
            window_shift: -self.window_shift,
            timestamp_delta: self.echo_delta.wrapping_neg(),
            echo_delta: self.timestamp_delta.wrapping_neg(),
        }
    }

    /// The rewrite that takes packets that arrived with `key` and were rewritten back to what they were, hops aside: for a
    /// packet that comes back to the worker as too big, so that the error quotes what its sender sent.
    pub fn undone(&self, key: &FlowKey) -> Rewrite {
        Rewrite {
            source: key.source,
            destination: key.destination,
            sequence_delta: self.sequence_delta.wrapping_neg(),
            acknowledgement_delta: self.acknowledgement_delta.wrapping_neg(),
            window_shift: -self.window_shift,
            timestamp_delta: self.timestamp_delta.wrapping_neg(),
            echo_delta: self.echo_delta.wrapping_neg(),
        }
    }

    /// The flow that packets of `key` belong to once rewritten.
    pub fn rewritten(&self, key: &FlowKey) -> FlowKey {
        FlowKey { source: self.source, destination: self.destination, protocol: key.protocol }
    }
}

/// Takes one hop from the packet [`parse`](crate::wire::parse) found `at` in `frame`, as [`Rewrite::apply`] does, and
/// changes nothing else.
pub fn lower_hops(frame: &mut [u8], at: &Transport) {
    let Some(network) = frame.get_mut(at.l3..at.l4) else { return };
    let (source, destination) = (&at.key.source.address, &at.key.destination.address);
    match at.key.is_ipv4() {
        true => ipv4::readdress(network, source.ipv4_octets(), destination.ipv4_octets(), true),
        false => ipv6::readdress(network, source, destination, true),
    };
}

/// The transport checksum after `addresses` (of the pseudo-header) and `changes` (of the transport header).
#[inline(always)]
fn updated(old: u16, checksum: Checksum, addresses: Difference, changes: Difference) -> u16 {
    match checksum {
        Checksum::Complete => {
            let mut all = addresses;
            all += changes;
            all.update(old)
        }
        Checksum::Partial => addresses.update_partial(old),
    }
}

/// Has the transport checksum of a plain packet follow a change, which makes another of it.
#[inline(always)]
fn keep_in_step(head: &mut plain::PlainHead, protocol: Protocol, change: impl FnOnce(u16) -> u16) {
    let at = plain::L4 + if protocol == Protocol::Udp { udp::CHECKSUM } else { tcp::CHECKSUM };
    let Some(field) = array_at_mut::<2>(head, at) else { return };
    let old = u16::from_be_bytes(*field);
    let new = match (protocol, old) {
        (Protocol::Udp, 0) => return,
        (Protocol::Udp, _) => udp::mangled(change(old)),
        (Protocol::Tcp, _) => change(old),
    };
    *field = new.to_be_bytes();
}

/// Adds `delta`, wrapping, to the number at the start of `field`. The new number is what is summed up, not the delta,
/// so that a wrap past 2^32 is nothing special.
#[inline(always)]
fn add(field: &mut [u8], delta: u32) -> Difference {
    let mut changes = Difference::NONE;
    if let (Some(old), Some(field)) = (array_at::<4>(field, 0), array_at_mut::<4>(field, 0)) {
        *field = u32::from_be_bytes(old).wrapping_add(delta).to_be_bytes();
        changes.words(old, *field);
    }
    changes
}

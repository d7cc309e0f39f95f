//! IPFIX messages (RFC 7011). A record is one direction of a flow; a collector joins both by their ends.
//!
//! The elements are IANA's. They have none for round trips and resent packets: lines of JSON have these.

use super::flows::FlowRecord;
use super::settings::{MonitorField, MonitorSettings};
use hairpin_linux::monitor::{FlowEnds, FlowHalf};
use std::net::IpAddr;

/// Bytes of a message at most: with the headers of UDP and IPv6 it passes every link (RFC 8200, section 5: 1280 bytes).
pub(crate) const MESSAGE_BYTES_MAX: usize = 1280 - 40 - 8;
const VERSION: u16 = 10;
const HEADER_BYTES: usize = 16;
const SET_HEADER_BYTES: usize = 4;
/// The number of a set of templates.
const TEMPLATE_SET: u16 = 2;
/// The number of the first template.
const TEMPLATE_FIRST: u16 = 256;

const ICMP: u8 = 1;
const ICMPV6: u8 = 58;

/// An information element, as IANA numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(super) enum Element {
    OctetDeltaCount = 1,
    PacketDeltaCount = 2,
    ProtocolIdentifier = 4,
    TcpControlBits = 6,
    SourceTransportPort = 7,
    SourceIpv4Address = 8,
    IngressInterface = 10,
    DestinationTransportPort = 11,
    DestinationIpv4Address = 12,
    EgressInterface = 14,
    SourceIpv6Address = 27,
    DestinationIpv6Address = 28,
    IcmpTypeCodeIpv4 = 32,
    FlowDirection = 61,
    FlowEndReason = 136,
    IcmpTypeCodeIpv6 = 139,
    FlowStartMilliseconds = 152,
    FlowEndMilliseconds = 153,
}

impl Element {
    /// Bytes of its value here: the whole length of its type, but for `tcpControlBits` always.
    fn bytes(self) -> u16 {
        match self {
            Element::ProtocolIdentifier | Element::FlowDirection | Element::FlowEndReason => 1,
            Element::TcpControlBits
            | Element::SourceTransportPort
            | Element::DestinationTransportPort
            | Element::IcmpTypeCodeIpv4
            | Element::IcmpTypeCodeIpv6 => 2,
            Element::SourceIpv4Address
            | Element::DestinationIpv4Address
            | Element::IngressInterface
            | Element::EgressInterface => 4,
            Element::OctetDeltaCount
            | Element::PacketDeltaCount
            | Element::FlowStartMilliseconds
            | Element::FlowEndMilliseconds => 8,
            Element::SourceIpv6Address | Element::DestinationIpv6Address => 16,
        }
    }
}

/// One direction of a flow.
struct Direction<'a> {
    ends: &'a FlowEnds,
    half: &'a FlowHalf,
    is_out: bool,
    reason: u8,
}

impl Direction<'_> {
    fn is_icmp(&self) -> bool {
        matches!(self.ends.protocol, ICMP | ICMPV6)
    }

    /// The number of its template, from [`TEMPLATE_FIRST`] on.
    fn template(&self) -> usize {
        usize::from(!self.ends.far().is_ipv4()) + 2 * usize::from(self.is_icmp())
    }

    /// Appends the element's value. `epoch`: when the kernel's clock began, in nanoseconds since 1970.
    fn put(&self, element: Element, epoch: u64, out: &mut Vec<u8>) {
        let (ends, is_out) = (self.ends, self.is_out);
        let far = (ends.far(), ends.far_port());
        let near = (ends.near(), ends.near_port());
        let (source, destination) = if is_out { (near, far) } else { (far, near) };
        let milliseconds = |at: u64| (epoch.saturating_add(at) / 1_000_000).to_be_bytes();
        let interface = |is_here: bool| if is_here { ends.ifindex } else { 0 }.to_be_bytes();
        match element {
            Element::OctetDeltaCount => out.extend(self.half.bytes.to_be_bytes()),
            Element::PacketDeltaCount => out.extend(self.half.packets.to_be_bytes()),
            Element::ProtocolIdentifier => out.push(ends.protocol),
            Element::TcpControlBits => out.extend(u16::from(self.half.tcp_flags()).to_be_bytes()),
            Element::SourceTransportPort => out.extend(source.1.to_be_bytes()),
            Element::DestinationTransportPort => out.extend(destination.1.to_be_bytes()),
            Element::IngressInterface => out.extend(interface(!is_out)),
            Element::EgressInterface => out.extend(interface(is_out)),
            Element::SourceIpv4Address | Element::SourceIpv6Address => put_address(source.0.into(), out),
            Element::DestinationIpv4Address | Element::DestinationIpv6Address => put_address(destination.0.into(), out),
            Element::IcmpTypeCodeIpv4 | Element::IcmpTypeCodeIpv6 => out.extend(ends.near_port().to_be_bytes()),
            Element::FlowDirection => out.push(u8::from(is_out)),
            Element::FlowEndReason => out.push(self.reason),
            Element::FlowStartMilliseconds => out.extend(milliseconds(self.half.first)),
            Element::FlowEndMilliseconds => out.extend(milliseconds(self.half.last)),
        }
    }
}

fn put_address(address: IpAddr, out: &mut Vec<u8>) {
    match address {
        IpAddr::V4(address) => out.extend(address.octets()),
        IpAddr::V6(address) => out.extend(address.octets()),
    }
}

/// The elements of each template: of IPv4 and IPv6, then of ICMP and ICMPv6.
fn templates(has_flags: bool) -> [Vec<Element>; 4] {
    let template = |ends: [Element; 2], rest: &[Element]| {
        let mut all = ends.to_vec();
        all.extend_from_slice(rest);
        all.extend([
            Element::ProtocolIdentifier,
            Element::FlowDirection,
            Element::FlowEndReason,
            Element::IngressInterface,
            Element::EgressInterface,
            Element::PacketDeltaCount,
            Element::OctetDeltaCount,
            Element::FlowStartMilliseconds,
            Element::FlowEndMilliseconds,
        ]);
        all.extend(has_flags.then_some(Element::TcpControlBits));
        all
    };
    let v4 = [Element::SourceIpv4Address, Element::DestinationIpv4Address];
    let v6 = [Element::SourceIpv6Address, Element::DestinationIpv6Address];
    let ports = &[Element::SourceTransportPort, Element::DestinationTransportPort][..];
    [
        template(v4, ports),
        template(v6, ports),
        template(v4, &[Element::IcmpTypeCodeIpv4]),
        template(v6, &[Element::IcmpTypeCodeIpv6]),
    ]
}

/// A message and the records in it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) bytes: Vec<u8>,
    pub(super) records: u64,
}

/// Makes messages of records.
#[derive(Debug)]
pub(super) struct Encoder {
    domain: u32,
    templates: [Vec<Element>; 4],
    /// Records in all messages so far.
    sequence: u32,
    /// The message that is being filled: its sets.
    sets: Vec<u8>,
    /// Records in it.
    records: u32,
    /// Where its last set begins, and of what template that is.
    open: Option<(usize, usize)>,
    /// Full messages.
    full: Vec<Message>,
    /// The next message begins with the templates.
    is_new: bool,
}

impl Encoder {
    pub(super) fn new(settings: &MonitorSettings) -> Encoder {
        Encoder {
            domain: settings.observation_domain,
            templates: templates(settings.has(MonitorField::Flags)),
            sequence: 0,
            sets: Vec::new(),
            records: 0,
            open: None,
            full: Vec::new(),
            is_new: true,
        }
    }

    /// Has the next message begin with the templates: now and then over UDP (RFC 7011, 8.1), at the beginning of a connection over
    /// TCP, where records are also counted anew.
    pub(super) fn repeat_templates(&mut self, is_new_session: bool) {
        self.is_new = true;
        if is_new_session {
            self.sequence = 0;
        }
    }

    /// Adds both directions of a flow, as far as something has passed. `epoch`: when the kernel's clock began; both times in
    /// nanoseconds since 1970.
    pub(super) fn add(&mut self, record: &FlowRecord, epoch: u64, now: u64) {
        for (half, is_out) in [(&record.count.inward, false), (&record.count.outward, true)] {
            if half.packets > 0 {
                let direction = Direction { ends: &record.ends, half, is_out, reason: record.reason as u8 };
                self.add_direction(&direction, epoch, now);
            }
        }
    }

    fn add_direction(&mut self, direction: &Direction<'_>, epoch: u64, now: u64) {
        let number = direction.template();
        let template = &self.templates[number];
        let bytes: usize = template.iter().map(|element| usize::from(element.bytes())).sum();
        if HEADER_BYTES + self.sets.len() + SET_HEADER_BYTES + bytes > MESSAGE_BYTES_MAX {
            self.close(now);
        }
        if std::mem::take(&mut self.is_new) {
            self.close(now);
            self.put_templates();
        }
        if self.open.is_none_or(|(_, open)| open != number) {
            self.end_set();
            self.open = Some((self.sets.len(), number));
            self.sets.extend((TEMPLATE_FIRST + number as u16).to_be_bytes());
            self.sets.extend([0, 0]);
        }
        for element in &self.templates[number] {
            direction.put(*element, epoch, &mut self.sets);
        }
        self.records += 1;
    }

    fn put_templates(&mut self) {
        let start = self.sets.len();
        self.sets.extend(TEMPLATE_SET.to_be_bytes());
        self.sets.extend([0, 0]);
        for (number, template) in (TEMPLATE_FIRST..).zip(&self.templates) {
            self.sets.extend(number.to_be_bytes());
            self.sets.extend((template.len() as u16).to_be_bytes());
            for element in template {
                self.sets.extend((*element as u16).to_be_bytes());
                self.sets.extend(element.bytes().to_be_bytes());
            }
        }
        self.write_length(start);
    }

    /// The length of the set that begins at `start` and goes to the end.
    fn write_length(&mut self, start: usize) {
        let length = (self.sets.len() - start) as u16;
        self.sets[start + 2..start + 4].copy_from_slice(&length.to_be_bytes());
    }

    fn end_set(&mut self) {
        if let Some((start, _)) = self.open.take() {
            self.write_length(start);
        }
    }

    /// Ends the message that is being filled, if there is anything in it.
    fn close(&mut self, now: u64) {
        self.end_set();
        if self.sets.is_empty() {
            return;
        }
        let mut bytes = VERSION.to_be_bytes().to_vec();
        bytes.extend(((HEADER_BYTES + self.sets.len()) as u16).to_be_bytes());
        bytes.extend(((now / 1_000_000_000) as u32).to_be_bytes());
        bytes.extend(self.sequence.to_be_bytes());
        bytes.extend(self.domain.to_be_bytes());
        bytes.append(&mut self.sets);
        self.full.push(Message { bytes, records: self.records.into() });
        self.sequence = self.sequence.wrapping_add(self.records);
        self.records = 0;
    }

    /// All messages that there are, with every record that was added.
    pub(super) fn take(&mut self, now: u64) -> Vec<Message> {
        self.close(now);
        std::mem::take(&mut self.full)
    }
}

//! From a rule as the core has it to one of a port's: pure.
//!
//! A packet of a rule's flow comes in by the port that leads to the flow's source; a plane whose routes there and back are
//! by different ports gets nothing out of its rules, and loses nothing: the packets go to software.

use super::description::{Description, Does, Family, How, Match, octets};
use super::hops::{Hops, RouteHop};
use hairpin_core::engine::{Fate, Refusal, Rule};
use hairpin_core::flow::{FlowKey, Protocol};
use std::fmt;

/// The group of the flows' rules where the device has more than one.
pub(crate) const FLOWS_GROUP: u32 = 1;
/// Marks are 24 bits wide on most devices, and 0 is no mark.
const MARK_MAX: u32 = (1 << 24) - 1;

/// How packets that match leave the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EgressAction {
    /// By a hairpin queue: a receive queue that is tied to a transmit queue.
    Hairpin,
    /// Through the embedded switch, by REPRESENTED_PORT.
    RepresentedPort,
    /// Through the embedded switch, by PORT_ID.
    PortId,
    /// Not at all: they go to the worker, with a mark that says whose they are
    /// ([`Meta::ticket`](hairpin_core::frame::Meta::ticket), 1 and up).
    Mark,
}

impl EgressAction {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            EgressAction::Hairpin => "hairpin queue",
            EgressAction::RepresentedPort => "represented port",
            EgressAction::PortId => "port id",
            EgressAction::Mark => "mark only",
        }
    }

    pub(crate) fn does(self) -> Does {
        match self {
            EgressAction::Hairpin => Does::QUEUE,
            EgressAction::RepresentedPort => Does::REPRESENTED_PORT,
            EgressAction::PortId => Does::PORT_ID,
            EgressAction::Mark => Does::MARK,
        }
    }

    pub(crate) fn how(self) -> How {
        match self {
            EgressAction::Hairpin | EgressAction::Mark => How::NONE,
            EgressAction::RepresentedPort | EgressAction::PortId => How::TRANSFER,
        }
    }
}

/// In what terms a device takes rules, as probing has found ([`Findings`](super::Findings)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceTerms {
    /// How packets leave.
    pub egress: EgressAction,
    /// How changes are said: [`How::MODIFY`], [`How::SIGNED`].
    pub how: How,
    /// Whether the flows' rules have a group of their own, reached by JUMP.
    pub jumps: bool,
    /// [`Does::COUNT`], [`Does::AGE`] or nothing of it.
    pub counts: Does,
    /// The supported part of [`Does::SEQUENCE_NUMBERS`].
    pub sequence_numbers: Does,
    /// Whether TCP headers with options can be kept out, without which no acknowledgement number may be changed.
    pub options: bool,
    /// Which flows: IPv4 TCP, IPv4 UDP, IPv6 TCP, IPv6 UDP.
    pub supports: [bool; 4],
}

impl DeviceTerms {
    /// Whether rules for flows of this kind may be had.
    pub fn supports(&self, ipv4: bool, protocol: Protocol) -> bool {
        self.supports[usize::from(!ipv4) * 2 + usize::from(protocol == Protocol::Udp)]
    }

    /// Whether rules may join two TCP connections. They change both numbers, and acknowledgement numbers only where there
    /// can be no SACK blocks.
    pub fn joins(&self) -> bool {
        self.sequence_numbers.has(Does::SEQUENCE_NUMBERS) && self.options
    }
}

impl fmt::Display for DeviceTerms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.egress == EgressAction::Mark {
            return f.write_str("marks packets for the worker; nothing is offloaded");
        }
        let counters = match self.counts {
            Does::COUNT => "COUNT",
            Does::AGE => "AGE",
            _ => "no",
        };
        write!(
            f,
            "packets leave by {}; changes by {}; {}; counters: {counters}; {}",
            self.egress.name(),
            if self.how.has(How::MODIFY) { "MODIFY_FIELD" } else { "SET" },
            if self.jumps { "flows in a group of their own" } else { "flows in the first group" },
            if self.sequence_numbers.has(Does::SEQUENCE_NUMBERS) {
                "translates TCP sequence numbers"
            } else {
                "does not translate TCP sequence numbers"
            },
        )
    }
}

/// A port that rules are put into.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnginePort {
    /// DPDK's number of it ([`Port::id`](crate::Port::id)).
    pub id: u16,
    /// The workers' queues, from 0 on.
    pub queues: u16,
    /// Bytes of IP packet that it takes.
    pub mtu: u16,
    /// The fields its RSS hashes, as DPDK numbers them; 0: what its driver likes.
    pub rss_types: u64,
    /// Whether rules are put into it: where not, flows that come in there stay in software.
    pub takes_rules: bool,
    /// Its hairpin queues: the port, as the plane counts them, that each leads out of, and its number.
    pub hairpins: Vec<(u16, u16)>,
}

impl EnginePort {
    /// The port that the plane counts as `number`, as it is. Its hairpin queues lead back out of it, so a plane of several
    /// ports has none ([`Probed::of`](super::Probed::of)): those between two would have to be tied before either starts.
    pub fn of(number: u16, port: &crate::port::Port) -> EnginePort {
        let hairpins = if port.hairpins() > 0 { vec![(number, port.queues())] } else { Vec::new() };
        EnginePort { id: port.id(), queues: port.queues(), mtu: port.mtu(), rss_types: 0, takes_rules: true, hairpins }
    }
}

/// A rule of a port's, and the ports by which its packets come and go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Placed {
    /// The port that it is put into, as the plane counts them.
    pub(crate) port: u16,
    /// The destination of its packets; `None` for a mark.
    pub(crate) out: Option<RouteHop>,
    /// The rule to put there.
    pub(crate) description: Description,
}

/// The rule of a port that does what `rule` says; `context` is what ageing will call it.
pub(crate) fn place(
    terms: &DeviceTerms,
    ports: &[EnginePort],
    hops: &dyn Hops,
    rule: &Rule,
    context: u64,
) -> Result<Placed, Refusal> {
    // There is no kernel to leave a packet to, and no neighbour is known by a backend's address.
    if rule.fate != Fate::Forward || !terms.supports(rule.key.is_ipv4(), rule.key.protocol) {
        return Err(Refusal::Unsupported);
    }
    let back = hops.hop(&rule.key.source.address).ok_or(Refusal::Failed)?;
    let port = ports.get(usize::from(back.port)).ok_or(Refusal::Failed)?;
    if !port.takes_rules {
        return Err(Refusal::Unsupported);
    }
    if terms.egress == EgressAction::Mark {
        let description = marking(terms, port, rule, context)?;
        return Ok(Placed { port: back.port, out: None, description });
    }
    let out = hops.hop(&rule.rewrite.destination.address).ok_or(Refusal::Failed)?;
    let exit = ports.get(usize::from(out.port)).ok_or(Refusal::Failed)?;
    // A packet over the egress MTU would have to go to software, but no device looks at that.
    if exit.mtu < port.mtu {
        return Err(Refusal::Unsupported);
    }
    let mut description = matching(terms, &rule.key, context);
    if rule.key.protocol == Protocol::Tcp {
        description.matches = description.matches | Match::NO_CONTROL;
    }
    description.matches = description.matches | Match::WHOLE;
    description.how = description.how | terms.how;
    description.does = changes(rule) | terms.counts | terms.egress.does();
    description.source_mac = out.source;
    description.destination_mac = out.destination;
    description.new_source = octets(&rule.rewrite.source.address);
    description.new_destination = octets(&rule.rewrite.destination.address);
    description.new_source_port = rule.rewrite.source.port;
    description.new_destination_port = rule.rewrite.destination.port;
    number(terms, rule, &mut description)?;
    match terms.egress {
        EgressAction::Hairpin => {
            let queue = port.hairpins.iter().find(|(leads_to, _)| *leads_to == out.port);
            description.queue = queue.ok_or(Refusal::Unsupported)?.1;
        }
        EgressAction::RepresentedPort | EgressAction::PortId => description.port = exit.id,
        EgressAction::Mark => {}
    }
    Ok(Placed { port: back.port, out: Some(out), description })
}

/// A rule that matches the flow, in the flows' group, and does nothing yet.
pub(crate) fn matching(terms: &DeviceTerms, key: &FlowKey, context: u64) -> Description {
    let mut description = Description {
        context,
        group: if terms.jumps { FLOWS_GROUP } else { 0 },
        // Below what keeps last hops out, and above what takes the rest.
        priority: if terms.jumps { 0 } else { 1 },
        how: terms.egress.how(),
        age_seconds: AGE_SECONDS,
        family: if key.is_ipv4() { Family::V4 } else { Family::V6 },
        protocol: key.protocol as u8,
        ..Description::default()
    };
    description.match_flow(&key.source, &key.destination);
    description
}

/// Aged rules are not asked for: it only has to be a time.
const AGE_SECONDS: u32 = 10;

/// The addresses of a packet that the rule changes: the fewer actions, the more rules fit.
fn changes(rule: &Rule) -> Does {
    let ((from, to), rewrite) = ((rule.key.source, rule.key.destination), &rule.rewrite);
    let each = [
        (from.address != rewrite.source.address, Does::SOURCE),
        (to.address != rewrite.destination.address, Does::DESTINATION),
        (from.port != rewrite.source.port, Does::SOURCE_PORT),
        (to.port != rewrite.destination.port, Does::DESTINATION_PORT),
    ];
    let changed = each.into_iter().filter(|(changes, _)| *changes);
    changed.fold(Does::SOURCE_MAC | Does::DESTINATION_MAC | Does::TTL, |all, (_, what)| all | what)
}

/// Adds what the rule does to TCP's numbers.
fn number(terms: &DeviceTerms, rule: &Rule, description: &mut Description) -> Result<(), Refusal> {
    // Ranges of numbers and windows are beyond every device.
    if rule.guard.is_some() || rule.rewrite.window_shift != 0 || rule.rewrite.changes_timestamps() {
        return Err(Refusal::Unsupported);
    }
    let mut sequence_numbers = Does::NONE;
    if rule.key.protocol == Protocol::Tcp && rule.rewrite.sequence_delta != 0 {
        sequence_numbers = sequence_numbers | Does::SEQUENCE;
    }
    if rule.key.protocol == Protocol::Tcp && rule.rewrite.acknowledgement_delta != 0 {
        sequence_numbers = sequence_numbers | Does::ACKNOWLEDGEMENT;
        // SACK blocks would have to be translated too.
        if !terms.options {
            return Err(Refusal::Unsupported);
        }
        description.matches = description.matches | Match::ACK | Match::NO_OPTIONS;
    }
    if !terms.sequence_numbers.has(sequence_numbers) {
        return Err(Refusal::Unsupported);
    }
    description.does = description.does | sequence_numbers;
    description.sequence_delta = rule.rewrite.sequence_delta;
    description.acknowledgement_delta = rule.rewrite.acknowledgement_delta;
    Ok(())
}

/// Classification only, as KTH 2020's FlowIPManagerHW: every packet of the flow goes on to the worker.
fn marking(terms: &DeviceTerms, port: &EnginePort, rule: &Rule, context: u64) -> Result<Description, Refusal> {
    let mut description = matching(terms, &rule.key, context);
    description.mark = mark(rule.id.0).ok_or(Refusal::Unsupported)?;
    description.does = Does::MARK | terms.counts;
    to_software(port, &mut description);
    Ok(description)
}

/// The mark of a rule: one more than the lower half of its id, which is where its connection is and the direction; `None`
/// for one beyond 24 bits.
pub fn mark(id: u64) -> Option<u32> {
    (id as u32).checked_add(1).filter(|mark| *mark <= MARK_MAX)
}

/// Sends on to the workers, as the port spreads flows.
pub(crate) fn to_software(port: &EnginePort, description: &mut Description) {
    description.queue = 0;
    if description.how.has(How::TRANSFER) {
        description.does = description.does | Does::PORT_REPRESENTOR;
        description.port = port.id;
    } else if port.queues > 1 {
        description.does = description.does | Does::RSS;
        (description.queue, description.rss_types) = (port.queues, port.rss_types);
    } else {
        description.does = description.does | Does::QUEUE;
    }
}

/// The rules of a port that stand before flows', in the order in which they go in: last hops to software, what the flows'
/// group does not know to software, flows of the supported kinds to that group.
pub(crate) fn standing(terms: &DeviceTerms, port: &EnginePort) -> Vec<Description> {
    let mut rules = Vec::new();
    if terms.egress != EgressAction::Mark {
        for (family, protocols) in [(Family::V4, 0), (Family::V6, 2)] {
            if terms.supports[protocols] || terms.supports[protocols + 1] {
                let mut rule = Description { family, matches: Match::LAST_HOP, ..base(terms) };
                to_software(port, &mut rule);
                rules.push(rule);
            }
        }
    }
    if terms.jumps {
        let mut rest = Description { group: FLOWS_GROUP, priority: REST, ..base(terms) };
        to_software(port, &mut rest);
        rules.push(rest);
        for (at, (family, protocol)) in KINDS.into_iter().enumerate() {
            if terms.supports[at] {
                let (priority, does, jump) = (1, Does::JUMP, FLOWS_GROUP);
                rules.push(Description { family, protocol: protocol as u8, priority, does, jump, ..base(terms) });
            }
        }
    }
    rules
}

/// The kinds of flows, in the order of [`DeviceTerms::supports`].
pub(crate) const KINDS: [(Family, Protocol); 4] = [
    (Family::V4, Protocol::Tcp),
    (Family::V4, Protocol::Udp),
    (Family::V6, Protocol::Tcp),
    (Family::V6, Protocol::Udp),
];

/// After all flows: what brings packets to their worker.
pub(super) const STEERING: u32 = 2;
/// After everything.
const REST: u32 = 3;

fn base(terms: &DeviceTerms) -> Description {
    Description { how: terms.egress.how(), ..Description::default() }
}

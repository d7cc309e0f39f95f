//! The subjects of trials of a port's rules.

use super::description::{Does, Family, How};
use super::translate::EgressAction;
use hairpin_core::flow::Protocol;
use std::fmt;

/// The subject of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeSubject {
    /// To match a flow's addresses and ports.
    Flow(Family, Protocol),
    /// To leave SYN, FIN and RST out.
    NoControl,
    /// To leave fragments out.
    Whole,
    /// To match a TTL of 0 or 1.
    LastHop,
    /// To leave TCP headers with options out.
    NoOptions,
    /// A second group of rules.
    Jump,
    /// An action by which packets leave.
    EgressAction(EgressAction),
    /// To change something, by an action of its own or by MODIFY_FIELD.
    Change(Does, How),
    /// To count packets.
    Count,
    /// To know when a rule was last hit.
    Age,
    /// A mark for the worker.
    Mark,
    /// Rules by template.
    Templates,
    /// All that a flow's rule asks for, together.
    Together(Family, Protocol),
    /// All rules that stand before the flows'.
    Standing,
    /// To bring what clients send to the queue that some bits of their port name.
    Steer(Family),
}

/// Whether there is an engine without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Necessity {
    /// None.
    Yes,
    /// None unless there is another of its kind.
    OneOf,
    /// There is one that is slower or forwards less.
    No,
}

impl ProbeSubject {
    /// Whether there is an engine without it.
    pub fn needed(self) -> Necessity {
        match self {
            ProbeSubject::NoControl | ProbeSubject::Whole | ProbeSubject::LastHop | ProbeSubject::Standing => {
                Necessity::Yes
            }
            ProbeSubject::EgressAction(_)
            | ProbeSubject::Count
            | ProbeSubject::Age
            | ProbeSubject::Change(Does::SOURCE_MAC, _) => Necessity::OneOf,
            ProbeSubject::Change(what, _) if Does::REWRITE.has(what) => Necessity::OneOf,
            ProbeSubject::Flow(..) | ProbeSubject::Together(..) => Necessity::OneOf,
            _ => Necessity::No,
        }
    }

    /// The consequence of its absence.
    pub fn without(self) -> &'static str {
        match self {
            ProbeSubject::Flow(..) | ProbeSubject::Together(..) => "such connections stay in software",
            ProbeSubject::NoControl => {
                "software would not see connections begin and end: no TCP connection is offloaded"
            }
            ProbeSubject::Whole => "first fragments would be rewritten and the rest not: no connection is offloaded",
            ProbeSubject::LastHop => "packets would be forwarded for ever: no connection is offloaded",
            ProbeSubject::NoOptions => {
                "no rule may change acknowledgement numbers, as SACK blocks would be wrong: bodies of HTTP stay in software"
            }
            ProbeSubject::Jump => "rules are in the first group, which is slow and small",
            ProbeSubject::EgressAction(_) => "packets cannot leave this way",
            ProbeSubject::Change(what, _) if Does::SEQUENCE_NUMBERS.has(what) => "bodies of HTTP stay in software",
            ProbeSubject::Change(..) => "addresses cannot be translated this way",
            ProbeSubject::Count => "rules do not count packets; AGE must tell when they were last hit",
            ProbeSubject::Age => "COUNT must tell when rules were last hit",
            ProbeSubject::Mark => "packets cannot be classified for the worker either",
            ProbeSubject::Templates => "rules are put in one at a time",
            ProbeSubject::Standing => "nothing is offloaded",
            ProbeSubject::Steer(_) => "workers hand over to each other what comes to the wrong one",
        }
    }
}

pub(super) fn kind(family: Family, protocol: Protocol) -> &'static str {
    match (family, protocol) {
        (Family::V6, Protocol::Tcp) => "TCP over IPv6",
        (Family::V6, Protocol::Udp) => "UDP over IPv6",
        (_, Protocol::Tcp) => "TCP over IPv4",
        (_, Protocol::Udp) => "UDP over IPv4",
    }
}

impl fmt::Display for ProbeSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let change = |what| match what {
            Does::SOURCE_MAC => "source Ethernet address",
            Does::DESTINATION_MAC => "destination Ethernet address",
            Does::SOURCE => "source address",
            Does::DESTINATION => "destination address",
            Does::SOURCE_PORT => "source port",
            Does::DESTINATION_PORT => "destination port",
            Does::TTL => "TTL",
            Does::SEQUENCE => "sequence number",
            Does::ACKNOWLEDGEMENT => "acknowledgement number",
            _ => "field",
        };
        match self {
            ProbeSubject::Flow(family, protocol) => write!(f, "match flows: {}", kind(*family, *protocol)),
            ProbeSubject::NoControl => f.write_str("match TCP without SYN, FIN, RST"),
            ProbeSubject::Whole => f.write_str("match no fragments"),
            ProbeSubject::LastHop => f.write_str("match a TTL of 0 or 1"),
            ProbeSubject::NoOptions => f.write_str("match TCP without options"),
            ProbeSubject::Jump => f.write_str("groups of rules (JUMP)"),
            ProbeSubject::EgressAction(egress) => write!(f, "send out: {}", egress.name()),
            ProbeSubject::Change(what, how) if how.has(How::MODIFY) => write!(f, "MODIFY_FIELD: {}", change(*what)),
            ProbeSubject::Change(what, _) => write!(f, "set: {}", change(*what)),
            ProbeSubject::Count => f.write_str("count (COUNT)"),
            ProbeSubject::Age => f.write_str("age (AGE)"),
            ProbeSubject::Mark => f.write_str("mark (MARK)"),
            ProbeSubject::Templates => f.write_str("templates"),
            ProbeSubject::Together(family, protocol) => write!(f, "a whole rule: {}", kind(*family, *protocol)),
            ProbeSubject::Standing => f.write_str("rules before the flows'"),
            ProbeSubject::Steer(Family::V6) => f.write_str("bring packets to workers by bits of a port: IPv6"),
            ProbeSubject::Steer(_) => f.write_str("bring packets to workers by bits of a port: IPv4"),
        }
    }
}

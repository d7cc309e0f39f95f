//! What a port is asked about its rules.

use super::description::{Does, Family, How};
use super::translate::EgressAction;
use hairpin_core::flow::Protocol;
use std::fmt;

/// What is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
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
pub enum Needed {
    /// None.
    Yes,
    /// None unless there is another of its kind.
    OneOf,
    /// There is one that is slower or forwards less.
    No,
}

impl Subject {
    /// Whether there is an engine without it.
    pub fn needed(self) -> Needed {
        match self {
            Subject::NoControl | Subject::Whole | Subject::LastHop | Subject::Standing => Needed::Yes,
            Subject::EgressAction(_) | Subject::Count | Subject::Age | Subject::Change(Does::SOURCE_MAC, _) => {
                Needed::OneOf
            }
            Subject::Change(what, _) if Does::REWRITE.has(what) => Needed::OneOf,
            Subject::Flow(..) | Subject::Together(..) => Needed::OneOf,
            _ => Needed::No,
        }
    }

    /// What follows from its absence.
    pub fn without(self) -> &'static str {
        match self {
            Subject::Flow(..) | Subject::Together(..) => "such connections stay in software",
            Subject::NoControl => "software would not see connections begin and end: no TCP connection is offloaded",
            Subject::Whole => "first fragments would be rewritten and the rest not: no connection is offloaded",
            Subject::LastHop => "packets would be forwarded for ever: no connection is offloaded",
            Subject::NoOptions => {
                "no rule may change acknowledgement numbers, as SACK blocks would be wrong: bodies of HTTP stay in software"
            }
            Subject::Jump => "rules are in the first group, which is slow and small",
            Subject::EgressAction(_) => "packets cannot leave this way",
            Subject::Change(what, _) if Does::SEQUENCE_NUMBERS.has(what) => "bodies of HTTP stay in software",
            Subject::Change(..) => "addresses cannot be translated this way",
            Subject::Count => "rules do not count packets; AGE must tell when they were last hit",
            Subject::Age => "COUNT must tell when rules were last hit",
            Subject::Mark => "packets cannot be classified for the worker either",
            Subject::Templates => "rules are put in one at a time",
            Subject::Standing => "nothing is offloaded",
            Subject::Steer(_) => "workers hand over to each other what comes to the wrong one",
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

impl fmt::Display for Subject {
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
            Subject::Flow(family, protocol) => write!(f, "match flows: {}", kind(*family, *protocol)),
            Subject::NoControl => f.write_str("match TCP without SYN, FIN, RST"),
            Subject::Whole => f.write_str("match no fragments"),
            Subject::LastHop => f.write_str("match a TTL of 0 or 1"),
            Subject::NoOptions => f.write_str("match TCP without options"),
            Subject::Jump => f.write_str("groups of rules (JUMP)"),
            Subject::EgressAction(egress) => write!(f, "send out: {}", egress.name()),
            Subject::Change(what, how) if how.has(How::MODIFY) => write!(f, "MODIFY_FIELD: {}", change(*what)),
            Subject::Change(what, _) => write!(f, "set: {}", change(*what)),
            Subject::Count => f.write_str("count (COUNT)"),
            Subject::Age => f.write_str("age (AGE)"),
            Subject::Mark => f.write_str("mark (MARK)"),
            Subject::Templates => f.write_str("templates"),
            Subject::Together(family, protocol) => write!(f, "a whole rule: {}", kind(*family, *protocol)),
            Subject::Standing => f.write_str("rules before the flows'"),
            Subject::Steer(Family::V6) => f.write_str("bring packets to workers by bits of a port: IPv6"),
            Subject::Steer(_) => f.write_str("bring packets to workers by bits of a port: IPv4"),
        }
    }
}

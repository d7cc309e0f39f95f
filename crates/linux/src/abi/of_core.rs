//! The core's flows, ends and rules in these layouts.

use super::sequence_change::changes_sequence;
use super::{
    Bytes, EndKey, FlowV4, FlowV6, RULE_ACTIVE, RULE_DIRECT, RULE_PASS, RULE_SEQUENCE, RuleHead, RuleV4, RuleV6,
};
use crate::cpu;
use hairpin_core::engine::{Fate, Rule};
use hairpin_core::flow::{Address, Endpoint, FlowKey, Protocol};
use hairpin_core::rewrite::Rewrite;

impl FlowV4 {
    /// The key of an IPv4 flow.
    pub fn of(key: &FlowKey) -> FlowV4 {
        FlowV4 {
            source: key.source.address.ipv4_octets(),
            destination: key.destination.address.ipv4_octets(),
            source_port: key.source.port.to_be_bytes(),
            destination_port: key.destination.port.to_be_bytes(),
            protocol: key.protocol as u8,
            zero: [0; 3],
        }
    }

    /// The flow; `None` if the protocol is none of ours.
    pub fn flow(&self) -> Option<FlowKey> {
        let end = |address, port| Endpoint { address: Address::from_ipv4(address), port: u16::from_be_bytes(port) };
        Some(FlowKey {
            source: end(self.source, self.source_port),
            destination: end(self.destination, self.destination_port),
            protocol: protocol(self.protocol)?,
        })
    }
}

impl FlowV6 {
    /// The key of an IPv6 flow.
    pub fn of(key: &FlowKey) -> FlowV6 {
        FlowV6 {
            source: key.source.address.0,
            destination: key.destination.address.0,
            source_port: key.source.port.to_be_bytes(),
            destination_port: key.destination.port.to_be_bytes(),
            protocol: key.protocol as u8,
            zero: [0; 3],
        }
    }

    /// The flow; `None` if the protocol is none of ours.
    pub fn flow(&self) -> Option<FlowKey> {
        let end = |address, port| Endpoint { address: Address(address), port: u16::from_be_bytes(port) };
        Some(FlowKey {
            source: end(self.source, self.source_port),
            destination: end(self.destination, self.destination_port),
            protocol: protocol(self.protocol)?,
        })
    }
}

fn protocol(number: u8) -> Option<Protocol> {
    [Protocol::Tcp, Protocol::Udp].into_iter().find(|&protocol| protocol as u8 == number)
}

impl EndKey {
    /// An end of `protocol`.
    pub fn of(endpoint: &Endpoint, protocol: Protocol) -> EndKey {
        EndKey { address: endpoint.address.0, port: endpoint.port.to_be_bytes(), protocol: protocol as u8, zero: 0 }
    }
}

impl RuleHead {
    /// A rule that no packet has used yet.
    pub fn of(rule: &Rule, worker: u8) -> RuleHead {
        let mut flags = 0;
        if rule.fate == Fate::Pass {
            flags |= RULE_PASS;
        }
        if rule.fate == Fate::Direct {
            flags |= RULE_DIRECT;
        }
        if changes_sequence(rule) {
            flags |= RULE_SEQUENCE;
        }
        // Then the route is looked up by the first packet, or soon: packets read a coarser clock, a little behind this one.
        let mut until = 0;
        if rule.at_once {
            flags |= RULE_ACTIVE;
            until = (cpu::now().as_nanos() >> 20) as u32;
        }
        RuleHead {
            flags,
            until,
            worker,
            source_port: rule.rewrite.source.port.to_be_bytes(),
            destination_port: rule.rewrite.destination.port.to_be_bytes(),
            total: rule.total as u16,
            checksum_addresses: checksum_addresses(&rule.key, &rule.rewrite),
            ..RuleHead::zeroed()
        }
    }
}

impl RuleV4 {
    /// A rule that no packet has used yet.
    pub fn of(rule: &Rule, worker: u8) -> RuleV4 {
        RuleV4 {
            head: RuleHead::of(rule, worker),
            source: rule.rewrite.source.address.ipv4_octets(),
            destination: rule.rewrite.destination.address.ipv4_octets(),
        }
    }
}

impl RuleV6 {
    /// A rule that no packet has used yet.
    pub fn of(rule: &Rule, worker: u8) -> RuleV6 {
        RuleV6 {
            head: RuleHead::of(rule, worker),
            source: rule.rewrite.source.address.0,
            destination: rule.rewrite.destination.address.0,
        }
    }
}

/// The difference that the new addresses make to a one's complement sum of 16-bit words as they lie in memory (RFC 1071,
/// 2(B)): the sum of the old ones' complements and the new ones. 0xffff, not 0, for nothing, so that a sum it is added
/// to is not 0 either.
fn checksum_addresses(key: &FlowKey, rewrite: &Rewrite) -> u16 {
    fn sum(address: &Address, invert: u16) -> u64 {
        // IPv4's mapping prefix is the same in old and new: what it adds is 0xffff a word, that is, nothing.
        address.0.as_chunks::<2>().0.iter().map(|word| u64::from(u16::from_ne_bytes(*word) ^ invert)).sum()
    }
    let mut total = sum(&key.source.address, 0xffff) + sum(&key.destination.address, 0xffff);
    total += sum(&rewrite.source.address, 0) + sum(&rewrite.destination.address, 0);
    while total > 0xffff {
        total = (total & 0xffff) + (total >> 16);
    }
    if total == 0 { 0xffff } else { total as u16 }
}

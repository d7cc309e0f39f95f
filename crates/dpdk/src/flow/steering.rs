//! Rules that bring both directions of a connection to one worker's queue, in the ports before there is any traffic
//! (Laconic has one for each port number). **Not yet run on hardware.**
//!
//! Workers are told apart by some bits of the client's port, or the pool's under full NAT
//! ([`SteerBy::Port`](hairpin_core::flow::SteerBy::Port)): a card can match those where packets come from and where they go
//! to, and what it does with them is known without knowing its hash. Nothing depends on these rules. A worker that
//! takes a packet works out whose it is, so a rule that is refused, or does less than it says, only leaves the work to
//! software.

use super::description::{Description, Does, Family, How, Match, octets};
use super::device::{self, DeviceRule, FlowError};
use super::engine::OffloadThread;
use super::shared::Flushes;
use super::translate::{DeviceTerms, FLOWS_GROUP, STEERING};
use hairpin_core::flow::{Address, Endpoint, Protocol, Steering};
use std::collections::{BTreeSet, HashSet};

/// Packets whose port at one end names their service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SteeredStream {
    /// To what clients connect to: the port that they come from.
    ToService(Endpoint),
    /// From a backend, the client's address kept: the port that they go to.
    FromBackend(Endpoint),
    /// To an address of the pool: the port that they go to.
    ToPool(Address),
}

/// One port's rules for `streams`: for each of them one for each class of ports. Its queues are the workers', in their
/// order. `beside`: in what terms an engine has its rules in the same port; those are asked first.
pub fn steering_rules(
    streams: &BTreeSet<(SteeredStream, Protocol)>,
    steering: &Steering,
    beside: Option<&DeviceTerms>,
) -> Vec<Description> {
    let of_stream = |(stream, protocol): &(SteeredStream, Protocol)| {
        let rule = of_stream(*stream, *protocol, steering.port_mask(), beside);
        let is_source = matches!(stream, SteeredStream::ToService(_));
        steering.port_classes().map(move |(bits, queue)| match is_source {
            true => Description { source_port: bits, queue, ..rule },
            false => Description { destination_port: bits, queue, ..rule },
        })
    };
    streams.iter().flat_map(of_stream).collect()
}

/// The common parts of the rules for a stream.
fn of_stream(stream: SteeredStream, protocol: Protocol, bits: u16, beside: Option<&DeviceTerms>) -> Description {
    let (address, matches) = match stream {
        SteeredStream::ToService(end) => (end.address, Match::FLOW.without(Match::SOURCE)),
        SteeredStream::FromBackend(end) => (end.address, Match::FLOW.without(Match::DESTINATION)),
        SteeredStream::ToPool(address) => (address, Match::DESTINATION | Match::DESTINATION_PORT),
    };
    // Rules of the embedded switch come before those of what comes in, and are none of our business.
    let beside = beside.filter(|terms| !terms.egress.how().has(How::TRANSFER));
    let jumps = beside.is_some_and(|terms| terms.jumps && terms.supports(address.is_ipv4(), protocol));
    let rule = Description {
        group: if jumps { FLOWS_GROUP } else { 0 },
        // Some drivers know no other than the first.
        priority: if beside.is_some() { STEERING } else { 0 },
        matches,
        does: Does::QUEUE,
        family: if address.is_ipv4() { Family::V4 } else { Family::V6 },
        protocol: protocol as u8,
        ..Description::default()
    };
    match stream {
        SteeredStream::ToService(end) => {
            Description { destination: octets(&address), destination_port: end.port, source_port_bits: bits, ..rule }
        }
        SteeredStream::FromBackend(end) => {
            Description { source: octets(&address), source_port: end.port, destination_port_bits: bits, ..rule }
        }
        SteeredStream::ToPool(_) => Description { destination: octets(&address), destination_port_bits: bits, ..rule },
    }
}

/// A port that took a rule no more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SteeringRefused {
    /// DPDK's number of it.
    pub port: u16,
    /// The driver's message.
    pub error: FlowError,
}

/// Such rules in ports. Dropping it takes them out.
#[derive(Debug, Default)]
pub struct SteeringRules {
    held: Vec<HeldStream>,
    flushes: Flushes,
    /// The flushes up to which `held` is right.
    flushed: u64,
}

#[derive(Debug)]
struct HeldStream {
    port: u16,
    rule: Description,
    flow: DeviceRule,
}

impl SteeringRules {
    /// None yet. `beside`: the engine that has rules in the same ports.
    pub fn new(beside: Option<&OffloadThread>) -> SteeringRules {
        let flushes = beside.map(OffloadThread::flushes).unwrap_or_default();
        let flushed = *flushes.lock();
        SteeringRules { held: Vec::new(), flushes, flushed }
    }

    /// How many are in the ports.
    pub fn count(&self) -> usize {
        self.those(|_| true)
    }

    /// How many are in a port, by DPDK's number.
    pub fn count_of(&self, port: u16) -> usize {
        self.those(|held| held.port == port)
    }

    fn those(&self, wanted: impl Fn(&HeldStream) -> bool) -> usize {
        if *self.flushes.lock() == self.flushed { self.held.iter().filter(|held| wanted(held)).count() } else { 0 }
    }

    /// Brings what is in the ports in line with `wanted`, pairs of DPDK's number of a port and a rule, each once: new rules
    /// go in before old ones go out, and where there is not room for both, after. What a port does not remove stays, and is
    /// tried again with the next call.
    ///
    /// # Errors
    /// [`SteeringRefused`], at the first rule that was refused twice; the rules before it are in force.
    pub fn replace(&mut self, wanted: &[(u16, Description)]) -> Result<(), SteeringRefused> {
        let flushes = self.flushes.clone();
        let flushed = flushes.lock();
        if *flushed != self.flushed {
            self.held.clear();
            self.flushed = *flushed;
        }
        let first = self.put_in(wanted);
        let still: HashSet<&(u16, Description)> = wanted.iter().collect();
        let mut kept = Vec::with_capacity(self.held.len());
        for held in self.held.drain(..) {
            if still.contains(&(held.port, held.rule)) || device::destroy(held.port, held.flow).is_err() {
                kept.push(held);
            }
        }
        self.held = kept;
        first.or_else(|_| self.put_in(wanted))
    }

    /// Puts in what is not in yet, until one is refused.
    fn put_in(&mut self, wanted: &[(u16, Description)]) -> Result<(), SteeringRefused> {
        let there: HashSet<(u16, Description)> = self.held.iter().map(|held| (held.port, held.rule)).collect();
        for (port, rule) in wanted.iter().filter(|one| !there.contains(one)) {
            let flow = device::create(*port, rule).map_err(|error| SteeringRefused { port: *port, error })?;
            self.held.push(HeldStream { port: *port, rule: *rule, flow });
        }
        Ok(())
    }
}

impl Drop for SteeringRules {
    fn drop(&mut self) {
        // Nothing is wanted, so nothing can be refused.
        let _ = self.replace(&[]);
    }
}

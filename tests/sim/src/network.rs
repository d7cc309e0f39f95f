//! Hosts, their links to a middle, and time.

use crate::balancer::{BalancerHost, Surroundings};
use crate::host::Host;
use crate::link::{Faults, WireDirection};
use crate::trace::{Trace, TracePoint};
use fastrand::Rng;
use hairpin_core::flow::{Address, FlowKey};
use hairpin_core::frame::VecFrame;
use hairpin_core::time::{Duration, Time};
use hairpin_core::wire::{self, Parsed};
use std::collections::BTreeMap;

/// The node between the hosts.
pub enum Middle {
    /// A router without any opinion.
    Router,
    /// Hairpin.
    Balancer(Box<BalancerHost>),
}

/// The destination of a frame on a link.
#[derive(Clone, Copy)]
enum Toward {
    Middle,
    Host(usize),
}

/// Hosts around a middle, in virtual time.
pub struct VirtualNetwork {
    /// Now.
    pub now: Time,
    /// The hosts.
    pub hosts: Vec<Host>,
    /// The node between them.
    pub middle: Middle,
    /// The events so far.
    pub trace: Trace,
    /// Each host's links: to the middle, and back.
    links: Vec<[WireDirection; 2]>,
    flying: BTreeMap<(Time, u64), (Toward, VecFrame)>,
    sent: u64,
    random: Rng,
    /// Events so far.
    pub events: u64,
}

impl VirtualNetwork {
    /// A network without hosts.
    pub fn new(middle: Middle, trace: Trace, random: Rng) -> VirtualNetwork {
        VirtualNetwork {
            now: Time::from_nanos(1_000_000_000),
            hosts: Vec::new(),
            middle,
            trace,
            links: Vec::new(),
            flying: BTreeMap::new(),
            sent: 0,
            random,
            events: 0,
        }
    }

    /// Adds a host whose link has these faults, each way its own.
    pub fn attach(&mut self, host: Host, faults: [Faults; 2]) {
        self.hosts.push(host);
        self.links.push(faults.map(WireDirection::new));
    }

    /// A frame that no host has sent comes to the middle then.
    pub fn forge(&mut self, at: Time, frame: VecFrame) {
        self.fly(Toward::Middle, vec![(at, frame)]);
    }

    /// Runs until all hosts are done, or `until`. Whether they are.
    pub fn run(&mut self, until: Time) -> bool {
        while !self.hosts.iter().all(Host::is_done) {
            if !self.step(until) {
                return false;
            }
        }
        true
    }

    /// Runs on until the middle has forgotten everything, or `until`. What it has not.
    pub fn drain(&mut self, until: Time) -> Vec<String> {
        loop {
            let remains = match &self.middle {
                Middle::Balancer(balancer) => balancer.remains(),
                Middle::Router => Vec::new(),
            };
            if remains.is_empty() && self.flying.is_empty() || !self.step(until) {
                return remains;
            }
        }
    }

    /// The next event, unless it is later than `until`.
    fn step(&mut self, until: Time) -> bool {
        let flight = self.flying.keys().next().map(|(at, _)| *at);
        let hosts = self.hosts.iter().filter_map(|host| host.next).min();
        let middle = match &self.middle {
            Middle::Balancer(balancer) => balancer.next(self.now),
            Middle::Router => None,
        };
        let Some(next) = [flight, hosts, middle].into_iter().flatten().min() else {
            self.now = until;
            return false;
        };
        if next > until {
            self.now = until;
            return false;
        }
        self.now = self.now.max(next);
        self.events += 1;
        if flight == Some(next) {
            if let Some((_, (toward, frame))) = self.flying.pop_first() {
                self.deliver(toward, frame);
            }
        } else if middle == Some(next) {
            self.with_balancer(|balancer, now, around| balancer.wake(now, around));
        } else {
            for index in 0..self.hosts.len() {
                if self.hosts[index].next.is_some_and(|due| due <= self.now) {
                    self.wake(index);
                }
            }
        }
        true
    }

    fn deliver(&mut self, toward: Toward, frame: VecFrame) {
        match (toward, &self.middle) {
            (Toward::Host(index), _) => {
                self.hosts[index].arrive(&frame);
                self.wake(index);
            }
            (Toward::Middle, Middle::Router) => {
                self.trace.frame(self.now, TracePoint::In, &frame);
                self.route(frame);
            }
            (Toward::Middle, Middle::Balancer(_)) => {
                self.with_balancer(|balancer, now, around| balancer.arrive(now, frame, around));
            }
        }
    }

    fn with_balancer(&mut self, f: impl FnOnce(&mut BalancerHost, Time, &mut Surroundings<'_>)) {
        let Middle::Balancer(balancer) = &mut self.middle else { return };
        let mut out = Vec::new();
        let (hosts, links) = (&self.hosts, &self.links);
        let mtu = |key: &FlowKey| {
            let to = hosts.iter().position(|host| host.address == key.destination.address);
            to.map_or(1500, |index| links[index][1].faults.mtu)
        };
        f(balancer, self.now, &mut Surroundings { out: &mut out, trace: &mut self.trace, mtu: &mtu });
        for frame in out {
            self.route(frame);
        }
    }

    fn wake(&mut self, index: usize) {
        let mut out = Vec::new();
        self.hosts[index].wake(self.now, &mut out);
        for frame in out {
            let [up, _] = &mut self.links[index];
            let arrivals = up.transmit(self.now, frame, &mut self.random);
            self.fly(Toward::Middle, arrivals);
        }
    }

    fn route(&mut self, frame: VecFrame) {
        let Some(to) = destination(&frame) else { return };
        let Some(index) = self.hosts.iter().position(|host| host.address == to) else { return };
        let [_, down] = &mut self.links[index];
        let arrivals = down.transmit(self.now, frame, &mut self.random);
        self.fly(Toward::Host(index), arrivals);
    }

    fn fly(&mut self, toward: Toward, arrivals: Vec<(Time, VecFrame)>) {
        for (at, frame) in arrivals {
            self.sent += 1;
            self.flying.insert((at.max(self.now + Duration::from_nanos(1)), self.sent), (toward, frame));
        }
    }
}

fn destination(frame: &VecFrame) -> Option<Address> {
    match wire::parse(&frame.data) {
        Ok(Parsed::Transport(at)) => Some(at.key.destination.address),
        Ok(Parsed::IcmpError(error)) => Some(error.destination),
        _ => None,
    }
}

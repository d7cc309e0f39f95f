//! How packets find the worker of their connection: by rules of the ports, where every worker has a queue and the devices
//! take such rules, else by hand-over alone ([`super::spread`]). **The rules have not yet been run on hardware.**
//!
//! The field that tells workers apart is chosen once, by trying the rules, before the connection table is opened:
//! connections lie with their workers. Rules that are refused later leave their packets to the hand-over, which looks at
//! every packet anyway.

use super::offload::PortEngine;
use crate::run::log;
use hairpin_core::config::{Forwarding, ServiceState, Snapshot};
use hairpin_core::flow::{Protocol, STEERING_RULES_MAX, SteerBy, Steering};
use hairpin_dpdk::Port;
use hairpin_dpdk::flow::{Description, SteeredStream, SteeringRules, steering_rules};
use std::collections::BTreeSet;

/// See the module's documentation.
pub(super) struct Steer {
    steering: Steering,
    /// Workers with a queue of every port.
    queues: u16,
    streams: BTreeSet<(SteeredStream, Protocol)>,
    /// Rules that there should be, by port.
    wanted: Vec<usize>,
    rules: SteeringRules,
    /// Why there are none, or not all.
    why_not: Option<String>,
}

impl Steer {
    /// Tries whether the ports take rules for what `snapshot` has, and takes them out again. Without `port_rules` they are
    /// not asked.
    pub(super) fn probe(
        port_rules: bool,
        (by_hash, queues): (Steering, u16),
        ports: &[Port],
        snapshot: &Snapshot,
        engine: &PortEngine,
    ) -> Steer {
        let by_port = Steering { by: SteerBy::Port, ..by_hash };
        let rules = SteeringRules::default();
        let streams = streams(snapshot);
        let mut steer = Steer { steering: by_port, queues, streams, wanted: Vec::new(), rules, why_not: None };
        let why_not = match by_hash.workers {
            0 | 1 => Some("there is one worker".to_string()),
            _ if !port_rules => Some("`port_rules` in [dpdk] is false".to_string()),
            workers if queues < workers => Some("some workers have no queue".to_string()),
            _ => steer.put_in(ports, engine).err(),
        };
        steer.take_out();
        if let Some(why_not) = why_not {
            steer.steering = by_hash;
            steer.why_not = Some(why_not);
        }
        steer
    }

    /// By what workers are told apart.
    pub(super) fn steering(&self) -> Steering {
        self.steering
    }

    /// Takes all rules out, while the ports' engine begins anew.
    pub(super) fn take_out(&mut self) {
        self.rules = SteeringRules::default();
    }

    /// Uses another set of services from now on.
    pub(super) fn set_snapshot(&mut self, snapshot: &Snapshot) {
        self.streams = streams(snapshot);
    }

    /// Brings the ports' rules in line with the services, and says so if that does not succeed.
    pub(super) fn install(&mut self, ports: &[Port], engine: &PortEngine) {
        if self.steering.by != SteerBy::Port {
            return;
        }
        if self.wanted.is_empty() || self.rules.count() == 0 {
            self.rules = SteeringRules::new(engine.offload());
        }
        let before = self.why_not.take();
        self.why_not = self.put_in(ports, engine).err();
        if self.why_not != before
            && let Some(why_not) = &self.why_not
        {
            let (count, wanted) = (self.rules.count(), self.wanted.iter().sum::<usize>());
            log(&format!(
                "warning: {count} of {wanted} rules that bring packets to their worker are in the ports, workers hand the \
                 rest over: {why_not}"
            ));
        }
    }

    fn put_in(&mut self, ports: &[Port], engine: &PortEngine) -> Result<(), String> {
        let mut wanted: Vec<(u16, Description)> = Vec::new();
        self.wanted.clear();
        for (number, port) in ports.iter().enumerate() {
            let rules = steering_rules(&self.streams, &self.steering, engine.terms_of(number));
            self.wanted.push(rules.len());
            wanted.extend(rules.into_iter().take(STEERING_RULES_MAX).map(|rule| (port.id(), rule)));
        }
        self.rules.replace(&wanted).map_err(|refused| {
            let device = ports.iter().find(|port| port.id() == refused.port).map(Port::driver).unwrap_or_default();
            format!("a port ({device}) refused one: {}", refused.error)
        })?;
        match self.wanted.iter().max() {
            Some(most) if *most > STEERING_RULES_MAX => {
                Err(format!("a port would need {most}, and has {STEERING_RULES_MAX} at most"))
            }
            _ => Ok(()),
        }
    }

    /// The number of rules that a port has, and the number that it should have and has not.
    pub(super) fn of_port(&self, number: usize, port: &Port) -> (u64, u64) {
        if self.steering.by != SteerBy::Port {
            return (0, 0);
        }
        let (there, wanted) = (self.rules.count_of(port.id()), self.wanted.get(number).copied().unwrap_or_default());
        (there as u64, wanted.saturating_sub(there) as u64)
    }

    /// Describes it.
    pub(super) fn words(&self) -> String {
        let workers = self.steering.workers;
        let why_not = self.why_not.as_deref().unwrap_or_default();
        match self.steering.by {
            _ if workers <= 1 => "one worker".to_string(),
            SteerBy::Hash => format!(
                "{workers} workers hand over to each other, {} of them with queues (no rules of the ports do it: {why_not})",
                self.queues
            ),
            SteerBy::Port => {
                let (count, wanted) = (self.rules.count(), self.wanted.iter().sum::<usize>());
                let colon = if why_not.is_empty() { "" } else { ": " };
                format!(
                    "{workers} workers, told apart by bits of the client's port; {count} of {wanted} rules of the ports \
                     bring packets to them, and they hand over the rest{colon}{why_not} (not yet run on hardware)"
                )
            }
        }
    }
}

/// The streams of packets from clients and from backends.
fn streams(snapshot: &Snapshot) -> BTreeSet<(SteeredStream, Protocol)> {
    let mut streams = BTreeSet::new();
    for service in snapshot.services.iter().filter(|service| service.state != ServiceState::Vacant) {
        let protocol = service.protocol;
        if !service.kind.is_group() {
            streams.insert((SteeredStream::ToService(service.endpoint), protocol));
        }
        if service.forwarding == Forwarding::FullNat {
            streams.extend(snapshot.pool.addresses.iter().map(|address| (SteeredStream::ToPool(*address), protocol)));
        } else {
            let backends = service.backends.iter();
            streams.extend(backends.map(|backend| (SteeredStream::FromBackend(backend.endpoint), protocol)));
        }
    }
    streams
}

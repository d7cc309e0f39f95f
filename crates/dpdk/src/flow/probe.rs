//! The abilities of a port's device, found by trying: first each thing that a rule may ask for by itself, so that there is a
//! reason for what is missing, then whole rules of what is left, in order of preference.
//!
//! That a device says it would take a rule proves little ([`ProbeDepth::Validate`]); that it took one and let it go, more
//! ([`ProbeDepth::Create`]); that packets come out right, only packets do. Not yet run on a device that takes any.

use super::description::{Description, Does, Family, How, Match};
use super::device::{self, FlowError};
use super::raw::{self, RawError};
use super::steering::{SteeredStream, steering_rules};
use super::subject::{ProbeSubject, kind};
use super::translate::{DeviceTerms, EgressAction, EnginePort, KINDS, matching, standing, to_software};
use hairpin_core::flow::{Endpoint, FlowKey, Protocol, SteerBy, Steering};
use std::collections::BTreeSet;
use std::net::{Ipv4Addr, Ipv6Addr};

/// How a rule is tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProbeDepth {
    /// The device is asked whether it would take it.
    #[default]
    Validate,
    /// It is put in and taken out again. It matches addresses that no host has (RFC 5737, RFC 3849) or, for a moment,
    /// all packets: not on a port that is in use.
    Create,
}

/// Something tried.
#[derive(Clone, Debug, PartialEq)]
pub struct Attempt {
    /// What.
    pub subject: ProbeSubject,
    /// In which rule; `None` where it takes none to find out.
    pub rule: Option<Description>,
    /// The result.
    pub outcome: Result<(), FlowError>,
}

/// The findings about a port.
#[derive(Clone, Debug, PartialEq)]
pub struct Findings {
    /// Everything tried, in that order.
    pub attempts: Vec<Attempt>,
    /// The terms of the best engine that there is; `None`: none at all.
    pub terms: Option<DeviceTerms>,
    /// Whether it may be had by templates.
    pub templates: bool,
    /// Hairpin queues that the device may have.
    pub hairpin_queues: u16,
    /// Whether packets have to get to other ports, too.
    pub has_others: bool,
}

impl Findings {
    /// Whether something may be had.
    pub fn has(&self, subject: ProbeSubject) -> bool {
        self.attempts.iter().any(|attempt| attempt.subject == subject && attempt.outcome.is_ok())
    }

    /// The missing abilities.
    pub fn missing(&self) -> impl Iterator<Item = &Attempt> {
        self.attempts.iter().filter(|attempt| attempt.outcome.is_err())
    }

    /// How packets would get to other ports, if there were any, as far as one port alone can tell.
    pub fn between_ports(&self) -> Option<EgressAction> {
        BETWEEN_PORTS.into_iter().find(|egress| self.has(ProbeSubject::EgressAction(*egress)))
    }

    /// Whether the driver has no rules at all: everything was answered with `ENOSYS`.
    pub fn has_no_rules(&self) -> bool {
        let mut tried = self.attempts.iter().filter(|attempt| attempt.rule.is_some());
        tried.all(|attempt| attempt.outcome.as_ref().is_err_and(|error| error.code == libc::ENOSYS))
    }

    /// For each kind of service, why its connections stay in software; `None` if they do not.
    pub fn services(&self) -> Vec<(&'static str, Option<String>)> {
        let mut services = Vec::new();
        for (at, (family, protocol)) in KINDS.into_iter().enumerate() {
            let forwarded = self.terms.is_some_and(|terms| terms.supports[at] && terms.egress != EgressAction::Mark);
            services.push((kind(family, protocol), (!forwarded).then(|| self.why_not(family, protocol))));
        }
        services.push(("bodies of large HTTP responses", self.why_no_bodies()));
        let why = "no device checks ranges of TCP sequence numbers, translates SACK blocks or shifts windows";
        services.push(("HTTP otherwise, TLS", Some(why.into())));
        services
    }

    /// Why what backends send of large responses stays in software; `None` if it does not. The worker asks for such a rule
    /// only while all that it could meet is translated right without a check of ranges, and takes it back before that ends.
    fn why_no_bodies(&self) -> Option<String> {
        let tcp = |terms: &DeviceTerms| [true, false].into_iter().any(|ipv4| terms.supports(ipv4, Protocol::Tcp));
        let Some(terms) = self.terms.filter(|terms| terms.egress != EgressAction::Mark && tcp(terms)) else {
            return Some(self.why_not(Family::V4, Protocol::Tcp));
        };
        let how = terms.how;
        let subjects = [
            ProbeSubject::Change(Does::SEQUENCE, how),
            ProbeSubject::Change(Does::ACKNOWLEDGEMENT, how),
            ProbeSubject::NoOptions,
        ];
        match subjects.into_iter().find_map(|subject| self.refusal(subject)) {
            Some(why) => Some(why),
            None => (!terms.joins()).then(|| NOT_TOGETHER.into()),
        }
    }

    /// The refused attempts, each with its message.
    fn refusal(&self, subject: ProbeSubject) -> Option<String> {
        let refused = |attempt: &Attempt| match &attempt.outcome {
            Err(error) if attempt.subject == subject => Some(format!("{subject}: {error}")),
            _ => None,
        };
        self.attempts.iter().find_map(refused)
    }

    /// The first thing missing without which no such connection is offloaded.
    fn why_not(&self, family: Family, protocol: Protocol) -> String {
        if self.has_no_rules() {
            return "the driver has no rules (rte_flow)".into();
        }
        let refused = |subject| self.refusal(subject);
        let tcp = (protocol == Protocol::Tcp).then_some(ProbeSubject::NoControl);
        // Hairpin queues do not lead to other ports anyway: what the switch said is the reason.
        let egress_actions = if self.has_others { &BETWEEN_PORTS[..] } else { &EGRESS_ACTIONS };
        let egress_actions: Vec<_> = egress_actions.iter().copied().map(ProbeSubject::EgressAction).collect();
        let one_of = |subjects: &[ProbeSubject]| match subjects.iter().any(|subject| self.has(*subject)) {
            true => None,
            false => subjects.first().and_then(|subject| refused(*subject)),
        };
        refused(ProbeSubject::Flow(family, protocol))
            .or_else(|| tcp.and_then(refused))
            .or_else(|| refused(ProbeSubject::Whole))
            .or_else(|| refused(ProbeSubject::LastHop))
            .or_else(|| one_of(&egress_actions))
            .or_else(|| one_of(&[ProbeSubject::Count, ProbeSubject::Age]))
            .or_else(|| refused(ProbeSubject::Standing))
            .or_else(|| refused(ProbeSubject::Together(family, protocol)))
            .unwrap_or_else(|| NOT_TOGETHER.into())
    }
}

/// The reason where each thing was taken by itself.
const NOT_TOGETHER: &str = "its parts are there, but not together";

/// Finds out what a port's device can do. The port is open and started; where the plane has `others` (open, by DPDK's
/// numbers), packets have to get to one of them.
pub fn probe(port: &EnginePort, others: &[u16], depth: ProbeDepth) -> Findings {
    let mut prober = Prober { port, others, depth, attempts: Vec::new() };
    let hairpin_queues = device::hairpin_queues(port.id).0;
    prober.survey(hairpin_queues);
    let templates = prober.templates();
    let terms = prober.choose();
    Findings { attempts: prober.attempts, terms, templates, hairpin_queues, has_others: !others.is_empty() }
}

struct Prober<'a> {
    port: &'a EnginePort,
    others: &'a [u16],
    depth: ProbeDepth,
    attempts: Vec<Attempt>,
}

/// Changes, in the order in which they are told.
const CHANGES: [Does; 9] = [
    Does::SOURCE_MAC,
    Does::DESTINATION_MAC,
    Does::SOURCE,
    Does::DESTINATION,
    Does::SOURCE_PORT,
    Does::DESTINATION_PORT,
    Does::TTL,
    Does::SEQUENCE,
    Does::ACKNOWLEDGEMENT,
];
const EGRESS_ACTIONS: [EgressAction; 3] = [EgressAction::Hairpin, EgressAction::RepresentedPort, EgressAction::PortId];
/// Those that may lead to another port.
const BETWEEN_PORTS: [EgressAction; 2] = [EgressAction::RepresentedPort, EgressAction::PortId];
const STYLES: [How; 2] = [How::NONE, How::MODIFY];

/// A flow between addresses that no host has.
fn example_flow(family: Family, protocol: Protocol) -> FlowKey {
    let (source, destination) = match family {
        Family::V6 => (
            Endpoint::new(std::net::IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)), 40000),
            Endpoint::new(std::net::IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2)), 80),
        ),
        _ => (
            Endpoint::new(std::net::IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 40000),
            Endpoint::new(std::net::IpAddr::V4(Ipv4Addr::new(198, 51, 100, 1)), 80),
        ),
    };
    FlowKey { source, destination, protocol }
}

impl Prober<'_> {
    fn attempt(&self, rule: &Description) -> Result<(), FlowError> {
        match self.depth {
            ProbeDepth::Validate => device::validate(self.port.id, rule),
            ProbeDepth::Create => {
                device::create(self.port.id, rule).and_then(|flow| device::destroy(self.port.id, flow))
            }
        }
    }

    fn try_rule(&mut self, subject: ProbeSubject, rule: Description) -> bool {
        let outcome = self.attempt(&rule);
        let worked = outcome.is_ok();
        self.attempts.push(Attempt { subject, rule: Some(rule), outcome });
        worked
    }

    /// A rule in the first group for a flow between addresses that no host has, to software.
    fn plain(&self, family: Family, protocol: Protocol) -> Description {
        let key = example_flow(family, protocol);
        let mut rule = Description { family, protocol: protocol as u8, ..Description::default() };
        rule.match_flow(&key.source, &key.destination);
        to_software(self.port, &mut rule);
        rule
    }

    /// Each thing by itself.
    fn survey(&mut self, hairpin_queues: u16) {
        for (family, protocol) in KINDS {
            self.try_rule(ProbeSubject::Flow(family, protocol), self.plain(family, protocol));
        }
        let plain = self.plain(Family::V4, Protocol::Tcp);
        let matching = |more| Description { matches: plain.matches | more, ..plain };
        self.try_rule(ProbeSubject::NoControl, matching(Match::NO_CONTROL));
        self.try_rule(ProbeSubject::Whole, matching(Match::WHOLE));
        self.try_rule(ProbeSubject::NoOptions, matching(Match::ACK | Match::NO_OPTIONS));
        let last_hop = Description { matches: Match::LAST_HOP, protocol: 0, ..plain };
        self.try_rule(ProbeSubject::LastHop, last_hop);
        let jump = Description { family: Family::V4, protocol: 6, does: Does::JUMP, jump: 1, ..Description::default() };
        self.try_rule(ProbeSubject::Jump, jump);
        for egress in EGRESS_ACTIONS {
            let rule = Description { does: egress.does(), how: egress.how(), ..plain };
            self.try_egress(egress, rule, hairpin_queues);
        }
        for how in STYLES {
            for what in CHANGES {
                let matches = if what == Does::ACKNOWLEDGEMENT { plain.matches | Match::ACK } else { plain.matches };
                let (does, sequence_delta) = (plain.does | what, 1);
                let rule = Description { matches, does, how, sequence_delta, acknowledgement_delta: 1, ..plain };
                self.try_rule(ProbeSubject::Change(what, how), rule);
            }
        }
        let doing = |more| Description { does: plain.does | more, age_seconds: 10, mark: 1, ..plain };
        self.try_rule(ProbeSubject::Count, doing(Does::COUNT));
        self.try_rule(ProbeSubject::Age, doing(Does::AGE));
        self.try_rule(ProbeSubject::Mark, doing(Does::MARK));
        for family in [Family::V4, Family::V6] {
            let FlowKey { destination, protocol, .. } = example_flow(family, Protocol::Tcp);
            let stream = BTreeSet::from([(SteeredStream::ToService(destination), protocol)]);
            let steering = Steering { by: SteerBy::Port, ..Steering::by_hash([0; 2], 2) };
            // The rule of the first worker's queue, which every port has.
            if let Some(rule) = steering_rules(&stream, &steering, None).first() {
                self.try_rule(ProbeSubject::Steer(family), *rule);
            }
        }
    }

    /// An egress action to each of the other ports or, where there is none, back out of this one.
    fn try_egress(&mut self, egress: EgressAction, rule: Description, hairpin_queues: u16) {
        if let Some(message) = self.no_hairpin(hairpin_queues).filter(|_| egress == EgressAction::Hairpin) {
            let outcome = Err(FlowError { code: libc::ENOTSUP, kind: 0, message: message.into() });
            self.attempts.push(Attempt { subject: ProbeSubject::EgressAction(egress), rule: None, outcome });
            return;
        }
        let exits = if self.others.is_empty() { std::slice::from_ref(&self.port.id) } else { self.others };
        for exit in exits {
            self.try_rule(ProbeSubject::EgressAction(egress), self.leaving(rule, *exit));
        }
    }

    /// Why hairpin queues do not serve as egress; `None` if they do.
    fn no_hairpin(&self, hairpin_queues: u16) -> Option<&'static str> {
        match (hairpin_queues, self.port.hairpins.is_empty()) {
            _ if !self.others.is_empty() => Some("they lead back out of their own port, and there are others"),
            (0, true) => Some("the device has no hairpin queues"),
            (_, true) => Some("the port has got none, though its driver says that there are some"),
            (_, false) => None,
        }
    }

    /// Fills in where a rule's packets go: out of a port, or by the first hairpin queue.
    fn leaving(&self, mut rule: Description, exit: u16) -> Description {
        rule.port = exit;
        rule.queue = self.port.hairpins.first().map_or(0, |(_, queue)| *queue);
        rule
    }

    /// A port that packets were found to get to in this way.
    fn exit(&self, egress: EgressAction) -> u16 {
        let taken =
            |attempt: &&Attempt| attempt.subject == ProbeSubject::EgressAction(egress) && attempt.outcome.is_ok();
        let rule = self.attempts.iter().find(taken).and_then(|attempt| attempt.rule);
        rule.map_or(self.port.id, |rule| rule.port)
    }

    fn templates(&mut self) -> bool {
        let (mut queues, mut size, mut error) = (0, 0, RawError::EMPTY);
        // SAFETY: writes what it was given.
        let code =
            unsafe { raw::hairpin_flow_queue_info(self.port.id, &raw mut queues, &raw mut size, &raw mut error) };
        let message = || String::from_utf8_lossy(&error.message).trim_end_matches('\0').to_owned();
        let outcome = match (code, queues) {
            (0, 0) => Err(FlowError { code: libc::ENOTSUP, kind: 0, message: "no queues for rules".into() }),
            (0, _) => Ok(()),
            _ => Err(FlowError { code: error.code, kind: error.kind, message: message() }),
        };
        let there = outcome.is_ok();
        self.attempts.push(Attempt { subject: ProbeSubject::Templates, rule: None, outcome });
        there
    }

    fn has(&self, subject: ProbeSubject) -> bool {
        self.attempts.iter().any(|attempt| attempt.subject == subject && attempt.outcome.is_ok())
    }

    /// The best terms whose complete rules are taken.
    fn choose(&mut self) -> Option<DeviceTerms> {
        let counts = match (self.has(ProbeSubject::Count), self.has(ProbeSubject::Age)) {
            (true, _) => Does::COUNT,
            (false, true) => Does::AGE,
            (false, false) => Does::NONE,
        };
        let whole = [ProbeSubject::NoControl, ProbeSubject::Whole, ProbeSubject::LastHop];
        let possible = counts != Does::NONE && whole.into_iter().all(|subject| self.has(subject));
        for egress in EGRESS_ACTIONS.into_iter().filter(|_| possible) {
            for how in STYLES {
                let changes = CHANGES.into_iter().filter(|what| Does::REWRITE.has(*what));
                let able = changes.clone().all(|what| self.has(ProbeSubject::Change(what, how)));
                if !able || !self.has(ProbeSubject::EgressAction(egress)) {
                    continue;
                }
                let terms = self.terms(egress, how, counts);
                if let Some(terms) = self.whole_rules(terms) {
                    return Some(terms);
                }
            }
        }
        let terms = DeviceTerms { counts: Does::NONE, ..self.terms(EgressAction::Mark, How::NONE, counts) };
        if self.has(ProbeSubject::Mark) { self.whole_rules(terms) } else { None }
    }

    fn terms(&self, egress: EgressAction, how: How, counts: Does) -> DeviceTerms {
        let mut sequence_numbers = Does::NONE;
        for what in [Does::SEQUENCE, Does::ACKNOWLEDGEMENT] {
            if self.has(ProbeSubject::Change(what, how)) {
                sequence_numbers = sequence_numbers | what;
            }
        }
        let (jumps, options) = (self.has(ProbeSubject::Jump), self.has(ProbeSubject::NoOptions));
        let supports = KINDS.map(|(family, protocol)| self.has(ProbeSubject::Flow(family, protocol)));
        DeviceTerms { egress, how, jumps, counts, sequence_numbers, options, supports }
    }

    /// Tries whole rules in these terms, and takes out of them the kinds of flows that are refused after all.
    fn whole_rules(&mut self, mut terms: DeviceTerms) -> Option<DeviceTerms> {
        for (at, (family, protocol)) in KINDS.into_iter().enumerate() {
            if !terms.supports[at] {
                continue;
            }
            let mut rule = matching(&terms, &example_flow(family, protocol), 0);
            if terms.egress == EgressAction::Mark {
                (rule.does, rule.mark) = (Does::MARK, 1);
                to_software(self.port, &mut rule);
            } else {
                rule.matches = rule.matches | Match::WHOLE;
                if protocol == Protocol::Tcp {
                    rule.matches = rule.matches | Match::NO_CONTROL;
                }
                rule.how = rule.how | terms.how;
                rule.does = Does::REWRITE | terms.counts | terms.egress.does();
                rule = self.leaving(rule, self.exit(terms.egress));
            }
            terms.supports[at] = self.try_rule(ProbeSubject::Together(family, protocol), rule);
        }
        if !terms.supports.contains(&true) {
            return None;
        }
        let before = standing(&terms, self.port);
        let stand = before.into_iter().all(|rule| self.try_rule(ProbeSubject::Standing, rule));
        stand.then_some(terms)
    }
}

//! The engine's life cycle of rules, without thread and clock: requests and a device's answers in, completions out.
//!
//! Invariants: a key has at most one rule in the device; an id is answered once for each request, and not before the
//! device has confirmed; a rule that software was told is gone is gone; a pair is in force as a whole or not reported. What
//! cannot be done now (the device's queue is full, the rule is busy) keeps its worker's later requests waiting behind it,
//! in order; the other workers' go on.
//!
//! A rule may be held without being in the device: while its neighbour is unknown, or after the device has lost it. That
//! is always right, since software may meet any packet at any time (invariant 1); it is put in again every second.

use super::device::{DeviceOutcome, DeviceRule, RuleDevice};
use super::hops::Hops;
use super::records::{RuleRecord, RuleRecords, RuleState, Then};
use super::request::{AnswerSink, DeviceRuleRequest, RequestAnswer, answer};
use super::statistics::EngineStatistics;
use super::translate::{DeviceTerms, EnginePort, Placed, place};
use hairpin_core::engine::{Completion, Refusal, Rule, RuleId};
use hairpin_core::flow::FlowKey;
use hairpin_core::time::{Duration, Time};
use std::collections::VecDeque;

/// How long before something that the device refused, or that was not known, is tried again.
pub(super) const RETRY: Duration = Duration::from_secs(1);
/// Rules whose counters are read, or that are checked for other reasons, in one iteration.
const SCAN_MAX: u32 = 256;
/// How often all rules are asked what they have counted, at most.
const ROUND: Duration = Duration::from_millis(500);

/// Everything about the rules of one set of ports.
#[derive(Debug)]
pub(super) struct RuleMachine<D> {
    pub(super) device: D,
    pub(super) statistics: EngineStatistics,
    terms: DeviceTerms,
    ports: Vec<EnginePort>,
    records: RuleRecords,
    /// Rules to be tried again, oldest first: all wait equally long.
    waiting: VecDeque<(Time, u32)>,
    /// The hops' generation that all rules are known to agree with, and how far the scan of them has come.
    generation: u64,
    scan: Option<(u64, u32)>,
    /// How far the round of counters has come, and when the next begins.
    cursor: Option<u32>,
    next_round: Time,
}

impl<D: RuleDevice> RuleMachine<D> {
    pub(super) fn new(
        device: D,
        terms: DeviceTerms,
        ports: Vec<EnginePort>,
        rules_max: u32,
        generation: u64,
    ) -> RuleMachine<D> {
        RuleMachine {
            device,
            statistics: EngineStatistics::default(),
            terms,
            ports,
            records: RuleRecords::new(rules_max),
            waiting: VecDeque::new(),
            generation,
            scan: None,
            cursor: None,
            next_round: Time::ZERO,
        }
    }

    /// Begins what a worker asks for; what has to wait comes back, and is to be brought again before that worker's others.
    #[must_use]
    pub(super) fn request(
        &mut self,
        now: Time,
        worker: u16,
        request: DeviceRuleRequest,
        hops: &dyn Hops,
        out: &mut impl AnswerSink,
    ) -> Option<DeviceRuleRequest> {
        // A pair is two requests to the device at most.
        if self.device.room() < 2 || request.keys().any(|key| self.is_busy(&key)) {
            return Some(request);
        }
        match request {
            DeviceRuleRequest::Install(rule) => self.install(now, worker, &rule, hops, out),
            DeviceRuleRequest::Pair([first, second]) => {
                let known = [first, second].iter().any(|rule| self.records.find(&rule.key).is_some());
                if known || first.key == second.key {
                    // A change of what is there: each for itself.
                    self.install(now, worker, &first, hops, out);
                    if self.is_busy(&second.key) {
                        return Some(DeviceRuleRequest::Install(second));
                    }
                    self.install(now, worker, &second, hops, out);
                } else {
                    self.install_pair(now, worker, [&first, &second], hops, out);
                }
            }
            DeviceRuleRequest::Remove { id, key } => match self.records.find(&key) {
                Some(place) => self.take_out(now, place, Then::Gone(id.0), out),
                None => answer(out, worker, Completion::Removed(id, None), key),
            },
        }
        None
    }

    fn is_busy(&self, key: &FlowKey) -> bool {
        self.records.find(key).is_some_and(|place| self.records.at(place).is_busy())
    }

    fn place(&self, rule: &Rule, hops: &dyn Hops) -> Result<Placed, Refusal> {
        place(&self.terms, &self.ports, hops, rule, rule.id.0)
    }

    fn install(&mut self, now: Time, worker: u16, rule: &Rule, hops: &dyn Hops, out: &mut impl AnswerSink) {
        let refused = |refusal, out: &mut _| answer(out, worker, Completion::Rejected(rule.id, refusal), rule.key);
        let placed = match self.place(rule, hops) {
            Ok(placed) => placed,
            Err(refusal) => return refused(refusal, out),
        };
        if let Some(place) = self.records.find(&rule.key) {
            let record = self.records.at_mut(place);
            if matches!(record.state, RuleState::Lost) {
                return refused(Refusal::Failed, out);
            }
            record.previous = Some(std::mem::replace(&mut record.rule, *rule));
            record.owner = worker;
            return match record.state {
                RuleState::Present(_) | RuleState::Stuck(..) => self.take_out(now, place, Then::Replaced, out),
                _ => self.replace(now, place, hops, out),
            };
        }
        let Some(place) = self.records.add(rule, worker) else { return refused(Refusal::Full, out) };
        if let Err(refusal) = self.put_in(place, &placed) {
            self.records.remove(place);
            refused(refusal, out);
        }
    }

    fn install_pair(&mut self, now: Time, worker: u16, rules: [&Rule; 2], hops: &dyn Hops, out: &mut impl AnswerSink) {
        let placed = match (self.place(rules[0], hops), self.place(rules[1], hops)) {
            (Ok(first), Ok(second)) if self.records.free_places() >= 2 => Ok([first, second]),
            (Ok(_), Ok(_)) => Err(Refusal::Full),
            (Err(refusal), _) | (_, Err(refusal)) => Err(refusal),
        };
        let reject = |refusal, out: &mut _| {
            for rule in rules {
                answer(out, worker, Completion::Rejected(rule.id, refusal), rule.key);
            }
        };
        let placed = match placed {
            Ok(placed) => placed,
            Err(refusal) => return reject(refusal, out),
        };
        let (Some(first), Some(second)) = (self.records.add(rules[0], worker), self.records.add(rules[1], worker))
        else {
            return reject(Refusal::Full, out);
        };
        if let Err(refusal) = self.put_in(first, &placed[0]) {
            self.records.remove(first);
            self.records.remove(second);
            return reject(refusal, out);
        }
        self.records.at_mut(first).mate = Some(second);
        self.records.at_mut(second).mate = Some(first);
        if let Err(refusal) = self.put_in(second, &placed[1]) {
            self.not_created(now, second, refusal, out);
        }
    }

    /// Begins to put a rule in.
    fn put_in(&mut self, place: u32, placed: &Placed) -> Result<(), Refusal> {
        let port = self.ports.get(usize::from(placed.port)).map_or(0, |port| port.id);
        self.device.create(port, &placed.description, u64::from(place)).map_err(|error| {
            self.statistics.refused += 1;
            error.refusal()
        })?;
        let record = self.records.at_mut(place);
        (record.port, record.device_port, record.out) = (placed.port, port, placed.out);
        (record.state, record.stale) = (RuleState::Coming, false);
        Ok(())
    }

    /// Begins to take a rule out, or does it at once if it is not in the device.
    fn take_out(&mut self, now: Time, place: u32, then: Then, out: &mut impl AnswerSink) {
        match self.records.at(place).state {
            RuleState::Present(flow) | RuleState::Stuck(flow, ..) => {
                self.count(now, place, flow, out);
                let record = self.records.at_mut(place);
                match self.device.destroy(record.device_port, flow, u64::from(place)) {
                    Ok(()) => record.state = RuleState::Going(then),
                    Err(_) => {
                        self.statistics.stuck += 1;
                        record.state = RuleState::Stuck(flow, then, now + RETRY);
                        self.wait(now, place);
                    }
                }
            }
            RuleState::Absent(_) => self.destroyed_as(place, then, out),
            RuleState::Free | RuleState::Coming | RuleState::Going(_) | RuleState::Lost => {}
        }
    }

    fn wait(&mut self, now: Time, place: u32) {
        let record = self.records.at_mut(place);
        if !std::mem::replace(&mut record.waits, true) {
            self.waiting.push_back((now + RETRY, place));
        }
    }

    /// Hands over what was begun, and takes the device's answers: `true` if there were any.
    pub(super) fn settle(&mut self, now: Time, hops: &dyn Hops, out: &mut impl AnswerSink) -> bool {
        self.device.push();
        let mut any = false;
        while let Some(outcome) = self.device.pull() {
            any = true;
            match outcome {
                DeviceOutcome::Created(ticket, flow) => self.created(now, ticket as u32, flow, out),
                DeviceOutcome::NotCreated(ticket, refusal) => {
                    self.statistics.refused += 1;
                    let place = ticket as u32;
                    let record = self.records.at(place);
                    match record.fresh && record.previous.is_none() {
                        true => self.not_created(now, place, refusal, out),
                        false => self.not_placed(now, place, refusal, out),
                    }
                }
                DeviceOutcome::Destroyed(ticket) => self.destroyed(now, ticket as u32, hops, out),
                DeviceOutcome::Lost(ticket) => {
                    self.statistics.lost += 1;
                    self.lose(ticket as u32, out);
                }
            }
        }
        any
    }

    fn created(&mut self, now: Time, place: u32, flow: DeviceRule, out: &mut impl AnswerSink) {
        self.statistics.created += 1;
        let record = self.records.at_mut(place);
        record.state = RuleState::Present(flow);
        record.previous = None;
        if let Some(refusal) = record.condemned.take() {
            return self.take_out(now, place, Then::Rejected(refusal), out);
        }
        let Some(mate) = record.mate else { return self.installed(now, place, out) };
        if matches!(self.records.at(mate).state, RuleState::Present(_)) {
            for half in [place.min(mate), place.max(mate)] {
                self.records.at_mut(half).mate = None;
                self.installed(now, half, out);
            }
        }
    }

    /// Tells that a rule is in, unless that was told already.
    fn installed(&mut self, now: Time, place: u32, out: &mut impl AnswerSink) {
        let record = self.records.at_mut(place);
        if std::mem::replace(&mut record.fresh, false) {
            let (id, key, owner) = (record.rule.id, record.rule.key, record.owner);
            let place = (place, record.generation);
            out.counted(place, &record.counters());
            out.tell(owner, RequestAnswer { completion: Completion::Installed(id), key, place });
        }
        if self.records.at(place).stale {
            self.take_out(now, place, Then::Placed, out);
        }
    }

    /// A new rule was refused, and with it the other one of its pair.
    fn not_created(&mut self, now: Time, place: u32, refusal: Refusal, out: &mut impl AnswerSink) {
        let record = *self.records.at(place);
        self.records.remove(place);
        answer(out, record.owner, Completion::Rejected(record.rule.id, refusal), record.rule.key);
        let Some(mate) = record.mate else { return };
        let other = self.records.at_mut(mate);
        other.mate = None;
        match other.state {
            RuleState::Coming => other.condemned = Some(refusal),
            _ => self.take_out(now, mate, Then::Rejected(refusal), out),
        }
    }

    /// A rule that software knows of was not taken: the one before it is in force again, or it waits.
    fn not_placed(&mut self, now: Time, place: u32, refusal: Refusal, out: &mut impl AnswerSink) {
        let record = self.records.at_mut(place);
        record.fresh = false;
        if let Some(previous) = record.previous.take() {
            let (id, key, owner) = (record.rule.id, record.rule.key, record.owner);
            record.rule = previous;
            answer(out, owner, Completion::Rejected(id, refusal), key);
        }
        self.records.at_mut(place).state = RuleState::Absent(now + RETRY);
        self.wait(now, place);
    }

    /// A rule may or may not be there; the one that was to take its place is not.
    fn lose(&mut self, place: u32, out: &mut impl AnswerSink) {
        let record = self.records.at_mut(place);
        record.state = RuleState::Lost;
        if let Some(previous) = record.previous.take() {
            let new = std::mem::replace(&mut record.rule, previous);
            answer(out, record.owner, Completion::Rejected(new.id, Refusal::Failed), new.key);
        }
    }

    fn destroyed(&mut self, now: Time, place: u32, hops: &dyn Hops, out: &mut impl AnswerSink) {
        self.statistics.destroyed += 1;
        let record = self.records.at_mut(place);
        record.packets_before += std::mem::take(&mut record.packets);
        record.bytes_before += std::mem::take(&mut record.bytes);
        match record.state {
            RuleState::Going(Then::Replaced) => self.replace(now, place, hops, out),
            RuleState::Going(Then::Placed) => self.put_back(now, place, hops, out),
            RuleState::Going(then) => self.destroyed_as(place, then, out),
            _ => {}
        }
    }

    /// The steps after a rule has left the device for good.
    fn destroyed_as(&mut self, place: u32, then: Then, out: &mut impl AnswerSink) {
        let record = *self.records.at(place);
        let completion = match then {
            Then::Rejected(refusal) => Completion::Rejected(record.rule.id, refusal),
            Then::Gone(id) => Completion::Removed(RuleId(id), Some(record.counters())),
            Then::Replaced | Then::Placed => return,
        };
        self.records.remove(place);
        answer(out, record.owner, completion, record.rule.key);
    }

    /// Puts the new rule of a key in, the old one being out.
    fn replace(&mut self, now: Time, place: u32, hops: &dyn Hops, out: &mut impl AnswerSink) {
        let rule = self.records.at(place).rule;
        let placed = self.place(&rule, hops);
        match placed.and_then(|placed| self.put_in(place, &placed)) {
            // Told when it is in, as a new one.
            Ok(()) => self.records.at_mut(place).fresh = true,
            Err(refusal) => {
                self.not_placed(now, place, refusal, out);
                self.put_back(now, place, hops, out);
            }
        }
    }

    /// Puts a rule in again that software believes in force.
    fn put_back(&mut self, now: Time, place: u32, hops: &dyn Hops, out: &mut impl AnswerSink) {
        let rule = self.records.at(place).rule;
        let placed = self.place(&rule, hops);
        if let Err(refusal) = placed.and_then(|placed| self.put_in(place, &placed)) {
            self.not_placed(now, place, refusal, out);
        }
    }

    /// The periodic work, bounded at each call: rules tried again, rules whose routes have changed installed again,
    /// counters read. `true` if there is more to do now.
    pub(super) fn tend(&mut self, now: Time, hops: &dyn Hops, out: &mut impl AnswerSink) -> bool {
        self.try_again(now, hops, out);
        self.follow_hops(now, hops, out) | self.read_counters(now, out)
    }

    fn try_again(&mut self, now: Time, hops: &dyn Hops, out: &mut impl AnswerSink) {
        for _ in 0..SCAN_MAX {
            match self.waiting.front() {
                Some((due, _)) if *due <= now && self.device.room() > 0 => {}
                _ => return,
            }
            let Some((_, place)) = self.waiting.pop_front() else { return };
            let record = self.records.at_mut(place);
            record.waits = false;
            match record.state {
                RuleState::Absent(due) if due <= now => self.put_back(now, place, hops, out),
                RuleState::Stuck(_, then, due) if due <= now => self.take_out(now, place, then, out),
                // Waited anew since: a place stands in the queue once.
                RuleState::Absent(_) | RuleState::Stuck(..) => self.wait(now, place),
                _ => {}
            }
        }
    }

    /// After a change of routes or neighbours, puts rules in anew whose packets would go elsewhere now.
    fn follow_hops(&mut self, now: Time, hops: &dyn Hops, out: &mut impl AnswerSink) -> bool {
        let generation = hops.generation();
        if self.scan.is_none() && generation != self.generation {
            self.scan = Some((generation, 0));
        }
        let Some((begun, from)) = self.scan else { return false };
        let to = from.saturating_add(SCAN_MAX).min(self.records.places());
        for place in from..to {
            if self.device.room() == 0 {
                self.scan = Some((begun, place));
                return true;
            }
            let record = *self.records.at(place);
            match record.state {
                RuleState::Present(_) if !record.is_busy() => {}
                // Placed before the change, perhaps: put in anew as soon as it is in.
                RuleState::Coming | RuleState::Present(_) => {
                    self.records.at_mut(place).stale = true;
                    continue;
                }
                _ => continue,
            }
            match self.place(&record.rule, hops) {
                Ok(placed) if (placed.port, placed.out) == (record.port, record.out) => {}
                _ => self.take_out(now, place, Then::Placed, out),
            }
        }
        self.scan = (to < self.records.places()).then_some((begun, to));
        if self.scan.is_none() {
            self.generation = begun;
        }
        true
    }

    fn read_counters(&mut self, now: Time, out: &mut impl AnswerSink) -> bool {
        if self.terms.counts.0 == 0 || self.records.rules() == 0 {
            return false;
        }
        let from = match self.cursor {
            Some(from) => from,
            None if now >= self.next_round => {
                self.next_round = now + ROUND;
                0
            }
            None => return false,
        };
        let to = from.saturating_add(SCAN_MAX).min(self.records.places());
        for place in from..to {
            if let RuleState::Present(flow) = self.records.at(place).state {
                self.count(now, place, flow, out);
            }
        }
        self.cursor = (to < self.records.places()).then_some(to);
        self.cursor.is_some()
    }

    /// Asks the device what a rule in force has done.
    fn count(&mut self, now: Time, place: u32, flow: DeviceRule, out: &mut impl AnswerSink) {
        let record = self.records.at_mut(place);
        let Some(count) = self.device.query(record.device_port, flow, self.terms.counts.0) else { return };
        if count.counted != 0 && count.packets != record.packets {
            let more = |now: u64, before: u64| now.saturating_sub(before);
            out.forwarded(record.rule.total, more(count.packets, record.packets), more(count.bytes, record.bytes));
            (record.packets, record.bytes) = (count.packets, count.bytes);
            // It was hit since it was last asked: at the latest now.
            record.last_seen = Some(now);
        }
        if count.aged != 0 && count.counted == 0 {
            let idle = Duration::from_secs(u64::from(count.idle_seconds));
            record.last_seen = Some(Time::from_nanos(now.as_nanos().saturating_sub(idle.as_nanos() as u64)));
        }
        out.counted((place, record.generation), &record.counters());
    }

    /// Whether rules may still be as an earlier answer of the hops' was.
    #[cfg(all(test, feature = "fake-flow"))]
    pub(super) fn is_following(&self, hops: &dyn Hops) -> bool {
        self.scan.is_some() || self.generation != hops.generation()
    }

    /// Rules held, in force or not.
    pub(super) fn rules(&self) -> usize {
        self.records.rules()
    }

    /// Takes everything out of the device; no worker is told.
    pub(super) fn close(&mut self) {
        let ports: Vec<u16> = self.ports.iter().filter(|port| port.takes_rules).map(|port| port.id).collect();
        self.device.close(&ports);
    }

    /// Knows nothing of a flow's rule any more: the device has been closed.
    pub(super) fn forget(&mut self, key: &FlowKey) {
        if let Some(place) = self.records.find(key) {
            self.records.remove(place);
        }
    }

    /// Answers every request that has been begun and not answered: the device has been closed, no rule is left in it.
    pub(super) fn give_up(&mut self, out: &mut impl AnswerSink) {
        for place in 0..self.records.places() {
            let record = *self.records.at(place);
            let gone = match record.state {
                RuleState::Going(Then::Gone(id)) | RuleState::Stuck(_, Then::Gone(id), _) => Some(id),
                _ => None,
            };
            let (id, key) = (record.rule.id, record.rule.key);
            if let Some(id) = gone {
                answer(out, record.owner, Completion::Removed(RuleId(id), Some(record.counters())), key);
            } else if (record.fresh && !record.is_free()) || record.previous.is_some() {
                answer(out, record.owner, Completion::Rejected(id, Refusal::Failed), key);
            }
            // The worker still holds a rule that was reported as in force, and asks for its removal some time.
            *self.records.at_mut(place) = RuleRecord { generation: record.generation, ..RuleRecord::default() };
        }
    }
}

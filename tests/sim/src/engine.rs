//! A flow engine in virtual time: rules come into force late, are removed late, may be refused, and are applied to frames
//! in the order in which they arrive, beside whatever the worker still has in hand. It may set connections up itself.

mod set_up;

pub use set_up::{SetUpOptions, SetUpPart, SetUpTally};

use crate::segments::{acknowledgement, sequence};
use fastrand::Rng;
use hairpin_core::engine::{
    Completion, Completions, Counters, EngineCaps, Fate, FlowEngine, Guard, Refusal, Report, Rule, RuleId, RuleOp,
    Samples, SetsUp,
};
use hairpin_core::flow::{FlowKey, Protocol};
use hairpin_core::frame::{Frame, VecFrame};
use hairpin_core::time::{Duration, Time};
use hairpin_core::wire::Transport;
use hairpin_core::wire::tcp::{FIN, RST, SYN};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// How long an unfinished hand-over holds a rule back at most.
const HAND_OVER_BOUND: Duration = Duration::from_millis(100);

/// The parameters of a modelled engine.
#[derive(Clone, Copy, Debug)]
pub struct EngineOptions {
    /// The capabilities that it reports.
    pub caps: EngineCaps,
    /// From a request until it is in force, at most; at least a fiftieth of that.
    pub latency: Duration,
    /// Of a million installations, so many are refused.
    pub refused: u32,
    /// Whether a fresh rule waits until the worker has finished with the flow's packets.
    pub fence: bool,
    /// A mistake to make, so that a checker can be seen to find it.
    pub bug: Option<EngineBug>,
}

/// Mistakes an engine can be told to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineBug {
    /// Guards are not checked.
    IgnoresGuards,
    /// Sequence numbers come out one too high.
    OffByOne,
    /// Every sixteenth packet of a rule is carried away.
    Loses,
    /// Removals are confirmed and not made.
    KeepsRules,
    /// Packets leave for the port beside the right one.
    WrongPort,
    /// Every fourth connection that it sets up is not reported.
    ForgetsReports,
}

/// The outcome for a packet.
pub enum PacketOutcome {
    /// A rule has rewritten it: forward it.
    Forward,
    /// It belongs to the kernel.
    Pass,
    /// No rule takes it.
    Miss,
    /// It is dropped: by the policer, or by a planted bug.
    Gone,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Gate {
    Fresh,
    Fenced(u64, Time),
    Active,
}

struct Installed {
    rule: Rule,
    /// The rule that it took the place of.
    before: Option<RuleId>,
    counters: Counters,
    gate: Gate,
    /// A SYN-ACK may go by it: the client has begun anew.
    opens: bool,
}

impl Installed {
    fn new(rule: Rule) -> Installed {
        Installed { rule, before: None, counters: Counters::default(), gate: Gate::Fresh, opens: false }
    }

    fn is_named(&self, id: RuleId) -> bool {
        // A worker gives rules that it has not asked for names of its own.
        self.rule.id == set_up::OWN || self.rule.id == id || self.before == Some(id)
    }
}

struct PendingRequest {
    op: RuleOp,
    at: Time,
}

/// A flow engine in virtual time. Requests for one flow keep their order; others may overtake each other.
pub struct Engine {
    /// Its parameters.
    pub options: EngineOptions,
    rules: BTreeMap<FlowKey, Installed>,
    queued: VecDeque<RuleOp>,
    asked: Vec<PendingRequest>,
    answers: VecDeque<(Time, Completion)>,
    /// The last ticket given to a frame on its way to the worker.
    pub given: u64,
    /// The last ticket the worker has finished with.
    pub finished: u64,
    /// Packets forwarded, super-packets counted once.
    pub carried: u64,
    /// Packets that a guard kept for software.
    pub guarded: u64,
    /// Its part that sets connections up, if it does.
    pub set_up: Option<Box<SetUpPart>>,
    random: Rng,
}

impl Engine {
    /// An engine without rules.
    pub fn new(options: EngineOptions, random: Rng) -> Engine {
        Engine {
            options,
            rules: BTreeMap::new(),
            queued: VecDeque::new(),
            asked: Vec::new(),
            answers: VecDeque::new(),
            given: 0,
            finished: 0,
            carried: 0,
            guarded: 0,
            set_up: None,
            random,
        }
    }

    /// The keys it has rules for, sorted.
    pub fn keys(&self) -> Vec<FlowKey> {
        self.rules.keys().copied().collect()
    }

    /// The process that asked is killed: of what it has asked for last some is done, and no answer comes.
    pub fn lose_process(&mut self, now: Time) {
        if let Some(part) = &mut self.set_up {
            part.dies(now);
        }
        self.queued.clear();
        for asked in std::mem::take(&mut self.asked) {
            if self.random.bool() {
                self.apply(asked.op);
            }
        }
        self.answers.clear();
        // No frame is inside a worker any more.
        self.finished = self.given;
    }

    /// Takes these rules away.
    pub fn take_away(&mut self, gone: &BTreeSet<FlowKey>) {
        self.rules.retain(|key, _| !gone.contains(key));
    }

    /// Another process serves, which has found so many pairs that no worker had heard of: what is reported besides.
    pub fn serve(&mut self, found: u64) -> Vec<Report> {
        self.set_up.as_mut().map(|part| part.serve(found)).unwrap_or_default()
    }

    /// Whether nothing is under way.
    pub fn is_idle(&self) -> bool {
        let is_told = !self.set_up.as_deref().is_some_and(SetUpPart::has_reports);
        is_told && self.queued.is_empty() && self.asked.is_empty() && self.answers.is_empty()
    }

    /// When it next has something to do, or an answer for the worker.
    pub fn next(&self) -> Option<Time> {
        self.asked.iter().map(|asked| asked.at).chain(self.answers.iter().map(|(at, _)| *at)).min()
    }

    /// Brings into force what is due.
    pub fn advance(&mut self, now: Time) {
        // in the order in which they were asked for: what concerns one flow keeps its order
        let mut waiting: Vec<FlowKey> = Vec::new();
        let mut index = 0;
        while index < self.asked.len() {
            let key = key(&self.asked[index].op);
            if self.asked[index].at > now || waiting.contains(&key) {
                waiting.push(key);
                index += 1;
                continue;
            }
            let PendingRequest { op, at } = self.asked.remove(index);
            let answer = self.apply(op);
            let late = self.random.u64(..self.options.latency.as_nanos().max(1) as u64);
            self.answers.push_back((at.max(now) + Duration::from_nanos(late), answer));
        }
    }

    fn apply(&mut self, op: RuleOp) -> Completion {
        let unlucky = self.random.u32(..1_000_000) < self.options.refused;
        match op {
            RuleOp::Install(rule) if !self.can(&rule) => Completion::Rejected(rule.id, Refusal::Unsupported),
            RuleOp::Install(rule) if unlucky => {
                Completion::Rejected(rule.id, if self.random.bool() { Refusal::Failed } else { Refusal::Full })
            }
            RuleOp::Install(rule)
                if self.rules.len() >= self.options.caps.rules_max as usize && !self.rules.contains_key(&rule.key) =>
            {
                Completion::Rejected(rule.id, Refusal::Full)
            }
            RuleOp::Install(rule) => {
                let gate = if self.options.fence && !rule.at_once { Gate::Fresh } else { Gate::Active };
                let replaced = self.rules.get(&rule.key);
                let counters = replaced.map(|there| there.counters).unwrap_or_default();
                let before = replaced.map(|there| there.rule.id);
                self.rules.insert(rule.key, Installed { before, counters, gate, ..Installed::new(rule) });
                Completion::Installed(rule.id)
            }
            RuleOp::Remove { id, key } if self.rules.get(&key).is_some_and(|there| there.is_named(id)) => {
                let counters = self.rules[&key].counters;
                if self.options.bug != Some(EngineBug::KeepsRules) {
                    self.rules.remove(&key);
                }
                Completion::Removed(id, Some(counters))
            }
            RuleOp::Remove { id, .. } => Completion::Removed(id, None),
        }
    }

    /// Whether it can do what a rule asks.
    fn can(&self, rule: &Rule) -> bool {
        let (caps, rewrite) = (&self.options.caps, &rule.rewrite);
        let numbers = rewrite.sequence_delta != 0 || rewrite.acknowledgement_delta != 0;
        (caps.rewrites_sequence || !numbers)
            && (caps.rewrites_window || rewrite.window_shift == 0)
            && (caps.rewrites_timestamps || !rewrite.changes_timestamps())
            && (caps.checks_guards || rule.guard.is_none())
    }

    /// A packet arrives. If it goes to the worker, `fence` is the ticket it would get.
    pub fn packet(
        &mut self,
        now: Time,
        frame: &mut VecFrame,
        at: &Transport,
        mtu: impl Fn(&FlowKey) -> usize,
    ) -> PacketOutcome {
        match self.rules.contains_key(&at.key) {
            true => self.hit(now, frame, at, &mtu),
            false => self.meet(now, frame, at, &mtu),
        }
    }

    /// A packet that a rule matches, if it is still there.
    fn hit(
        &mut self,
        now: Time,
        frame: &mut VecFrame,
        at: &Transport,
        mtu: &dyn Fn(&FlowKey) -> usize,
    ) -> PacketOutcome {
        let (given, finished, bug) = (self.given, self.finished, self.options.bug);
        let is_absent = self.set_up.as_ref().is_some_and(|part| part.is_absent(now));
        let Some(there) = self.rules.get_mut(&at.key) else { return PacketOutcome::Miss };
        let ends = at.key.protocol == Protocol::Tcp && at.tcp_flags & (SYN | FIN | RST) != 0;
        let is_followed = ends && self.set_up.as_ref().is_some_and(|part| part.follows(there, at.tcp_flags));
        // Without a process rules forward what is the worker's else.
        if ends && !is_followed && !is_absent || at.ttl <= 1 {
            return PacketOutcome::Miss;
        }
        if there.rule.fate == Fate::Pass {
            there.counters.last_seen = Some(now);
            return PacketOutcome::Pass;
        }
        let size = match usize::from(frame.meta.gso_size) {
            0 => at.end - at.l3,
            size => size + (at.payload - at.l3),
        };
        if size > mtu(&there.rule.rewrite.rewritten(&at.key)) {
            return PacketOutcome::Miss;
        }
        if let Some(guard) = there.rule.guard
            && bug != Some(EngineBug::IgnoresGuards)
            && !admits(&guard, &frame.data, at)
        {
            self.guarded += 1;
            return PacketOutcome::Miss;
        }
        let passes = match there.gate {
            Gate::Active => true,
            Gate::Fresh => finished == given,
            Gate::Fenced(ticket, until) => finished >= ticket || now >= until,
        };
        if !passes {
            let until = match there.gate {
                Gate::Fenced(_, until) => until,
                _ => now + HAND_OVER_BOUND,
            };
            there.gate = Gate::Fenced(given + 1, until);
            return PacketOutcome::Miss;
        }
        there.gate = Gate::Active;
        if is_followed && !self.report_segment(&at.key, at.tcp_flags) && !is_absent {
            return PacketOutcome::Miss;
        }
        let Some(there) = self.rules.get_mut(&at.key) else { return PacketOutcome::Miss };
        let payload = at.end - at.payload;
        let segments = match usize::from(frame.meta.gso_size) {
            0 => 1,
            size => payload.div_ceil(size).max(1),
        };
        there.counters.packets += segments as u64;
        there.counters.bytes += (at.end - at.l3 + (segments - 1) * (at.payload - at.l3)) as u64;
        there.counters.last_seen = Some(now);
        let mut rewrite = there.rule.rewrite;
        match bug {
            Some(EngineBug::OffByOne) => rewrite.sequence_delta = rewrite.sequence_delta.wrapping_add(1),
            Some(EngineBug::WrongPort) => rewrite.destination.port ^= 1,
            Some(EngineBug::Loses) if there.counters.packets.is_multiple_of(16) => return PacketOutcome::Gone,
            _ => {}
        }
        self.carried += 1;
        let checksum = frame.meta.checksum;
        rewrite.apply(frame.bytes_mut(), at, checksum);
        PacketOutcome::Forward
    }
}

impl FlowEngine for Engine {
    fn caps(&self) -> EngineCaps {
        self.options.caps
    }

    fn submit(&mut self, _: Time, op: RuleOp) -> Result<(), RuleOp> {
        let under_way = self.queued.len() + self.asked.len() + self.answers.len();
        if under_way >= self.options.caps.ops_in_flight_max as usize {
            return Err(op);
        }
        self.queued.push_back(op);
        Ok(())
    }

    fn flush(&mut self, now: Time) {
        let latency = self.options.latency.as_nanos() as u64;
        for op in self.queued.drain(..) {
            let late = self.random.u64(latency / 50..=latency.max(1));
            self.asked.push(PendingRequest { op, at: now + Duration::from_nanos(late) });
        }
    }

    fn poll(&mut self, now: Time, out: &mut Completions) {
        self.advance(now);
        let mut later = VecDeque::new();
        while let Some((at, answer)) = self.answers.pop_front() {
            if at > now || out.is_full() {
                later.push_back((at, answer));
            } else {
                out.push(answer);
            }
        }
        self.answers = later;
    }

    fn sample(&mut self, rules: &[(RuleId, FlowKey)], out: &mut Samples) {
        for (id, key) in rules {
            let there = self.rules.get(key).filter(|there| there.is_named(*id));
            out.push(there.map(|there| there.counters));
        }
    }

    fn sets_up(&mut self) -> Option<Box<dyn SetsUp>> {
        self.set_up.as_deref().map(SetUpPart::worker_end)
    }
}

fn key(op: &RuleOp) -> FlowKey {
    match op {
        RuleOp::Install(rule) => rule.key,
        RuleOp::Remove { key, .. } => *key,
    }
}

/// Whether a guard lets a TCP packet pass; said here anew, from what [`Guard`] promises, so that a mistake made once is
/// seen.
fn admits(guard: &Guard, frame: &[u8], at: &Transport) -> bool {
    let acknowledged = acknowledgement(frame, at).wrapping_sub(guard.acknowledgement);
    let from = sequence(frame, at).wrapping_sub(guard.sequence);
    let payload = (at.end - at.payload) as u32;
    let inside = if payload > 0 {
        from < guard.sequence_length && payload <= guard.sequence_length - from
    } else {
        from == u32::MAX || from <= guard.sequence_length
    };
    acknowledged <= guard.acknowledgement_length && inside
}

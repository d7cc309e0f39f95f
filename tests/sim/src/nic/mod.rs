//! A card with match-action rules in virtual time (KTH 2022, Laconic): rules come and go at the speed of its firmware, in
//! batches, are confirmed late and out of order, refused when it is full; packets that match are turned round at its own
//! speed, which suffers while rules change.
//!
//! Everything follows from a [`CardProfile`], a seed and the times that it is told: virtual ones here, real ones in the
//! lab, where it stands in front of a device's port. Unlike the kernel's engine a card knows nothing of packets that are
//! still inside the worker: what it takes over may overtake those.

mod profile;
mod rules;

pub use profile::{
    ByBatch, CardAbilities, CardProfile, Counting, ForwardingProfile, ProfileError, RuleTables, Updates,
};
pub use rules::Hint;

use fastrand::Rng;
use hairpin_core::engine::{Completion, Completions, EngineCaps, Fate, FlowEngine, Refusal, RuleId, RuleOp, Samples};
use hairpin_core::flow::{Endpoint, FlowKey, Protocol};
use hairpin_core::frame::Frame;
use hairpin_core::time::{Duration, Time};
use hairpin_core::wire::Transport;
use hairpin_core::wire::tcp::{FIN, RST, SYN};
use profile::each_ns;
use rules::CardRules;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// Bytes of a packet on the wire beyond the frame: preamble, checksum, gap.
const WIRE: usize = 24;

/// The outcome for a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passage {
    /// A rule has rewritten it; it leaves then.
    Forward(Time),
    /// It is not Hairpin's.
    Pass,
    /// No rule takes it: it is the worker's.
    Miss,
    /// The card was too slow, and its buffer full.
    Lost,
}

/// The totals of a card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CardTally {
    /// Packets turned round.
    pub forwarded: u64,
    /// Bytes of those, from the Ethernet header on.
    pub bytes: u64,
    /// Packets lost in its buffer.
    pub lost: u64,
    /// Packets that a guard kept for software.
    pub guarded: u64,
    /// Rules put in.
    pub inserted: u64,
    /// Rules taken out.
    pub deleted: u64,
    /// Insertions refused because it was full.
    pub full: u64,
    /// Insertions that failed.
    pub failed: u64,
    /// The most rules it had at a time.
    pub rules_peak: u32,
    /// Nanoseconds in which rules changed.
    pub changing_ns: u64,
}

/// A confirmation on its way: when, in which order it was made, and what it says.
struct PendingConfirmation(Time, u64, Completion);

impl PartialEq for PendingConfirmation {
    fn eq(&self, other: &PendingConfirmation) -> bool {
        (self.0, self.1) == (other.0, other.1)
    }
}

impl Eq for PendingConfirmation {}

impl PartialOrd for PendingConfirmation {
    fn partial_cmp(&self, other: &PendingConfirmation) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for PendingConfirmation {
    fn cmp(&self, other: &PendingConfirmation) -> std::cmp::Ordering {
        (self.0, self.1).cmp(&(other.0, other.1))
    }
}

/// The card.
pub struct Nic {
    profile: CardProfile,
    rules: CardRules,
    /// Asked for, not handed over.
    queued: VecDeque<RuleOp>,
    /// Handed over.
    waiting: VecDeque<RuleOp>,
    /// The batch at hand: when each change takes effect.
    changing: VecDeque<(Time, RuleOp)>,
    /// When the firmware last had nothing left to do, or will.
    idle_from: Time,
    answers: BinaryHeap<Reverse<PendingConfirmation>>,
    answered: u64,
    /// When what waits to be turned round has left.
    free_from: Time,
    tally: CardTally,
    random: Rng,
}

impl Nic {
    /// A card without rules.
    pub fn new(profile: CardProfile, random: Rng) -> Nic {
        Nic {
            rules: CardRules::new(profile.tables, profile.counters),
            profile,
            queued: VecDeque::new(),
            waiting: VecDeque::new(),
            changing: VecDeque::new(),
            idle_from: Time::ZERO,
            answers: BinaryHeap::new(),
            answered: 0,
            free_from: Time::ZERO,
            tally: CardTally::default(),
            random,
        }
    }

    /// Makes room for as many rules as it takes, but no more than `rules`, and for all requests that may wait, so that it
    /// does not stop for memory later: for a caller that drives it by a real clock.
    pub fn reserve(&mut self, rules: usize) {
        self.rules.reserve(rules.min(self.profile.tables.rules_max as usize));
        let waiting = self.profile.updates.waiting_max as usize;
        [&mut self.queued, &mut self.waiting].into_iter().for_each(|queue| queue.reserve(waiting));
        self.changing.reserve(waiting);
        self.answers.reserve(waiting);
    }

    /// Its parameters.
    pub fn profile(&self) -> &CardProfile {
        &self.profile
    }

    /// Its totals.
    pub fn tally(&self) -> CardTally {
        CardTally { rules_peak: self.rules.peak(), ..self.tally }
    }

    /// Rules in force.
    pub fn rules(&self) -> usize {
        self.rules.len()
    }

    /// Their flows, sorted.
    pub fn keys(&self) -> Vec<FlowKey> {
        self.rules.keys()
    }

    /// Whether there is a rule for a flow.
    pub fn holds(&self, key: &FlowKey) -> bool {
        self.rules.holds(key)
    }

    /// Brings into the cache what packets of these flows will need, and gives each a hint for [`Nic::forward`]: as many as the
    /// shorter slice has. Nothing changes.
    pub fn warm(&self, keys: &[FlowKey], hints: &mut [Hint]) {
        self.rules.warm(keys, hints);
    }

    /// A hint that says nothing.
    pub fn no_hint(&self) -> Hint {
        self.rules.no_hint()
    }

    /// The flow that a rule makes of this one, if there is one.
    pub fn leads_to(&self, key: &FlowKey) -> Option<FlowKey> {
        self.rules.rule(key).filter(|rule| rule.fate == Fate::Forward).map(|rule| rule.rewrite.rewritten(key))
    }

    /// Whether nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.under_way() == 0
    }

    /// When it next has something to do, or an answer.
    pub fn next(&self) -> Option<Time> {
        let change = self.changing.front().map(|(at, _)| *at);
        let batch = (!self.waiting.is_empty() && change.is_none()).then_some(self.idle_from);
        [change, batch, self.answers.peek().map(|Reverse(answer)| answer.0)].into_iter().flatten().min()
    }

    /// Whether it takes no more requests now.
    pub fn is_full(&self) -> bool {
        self.under_way() >= self.profile.updates.waiting_max as usize
    }

    fn under_way(&self) -> usize {
        self.queued.len() + self.waiting.len() + self.changing.len() + self.answers.len()
    }

    /// Lets its firmware work until `now`.
    #[inline]
    pub fn advance(&mut self, now: Time) {
        self.rules.tell(now);
        if !self.changing.is_empty() || !self.waiting.is_empty() {
            self.work(now);
        }
    }

    /// There is something to do.
    fn work(&mut self, now: Time) {
        loop {
            while self.changing.front().is_some_and(|(at, _)| *at <= now)
                && let Some((at, op)) = self.changing.pop_front()
            {
                self.change(at, op);
            }
            if !self.changing.is_empty() || self.waiting.is_empty() || self.idle_from > now {
                return;
            }
            self.begin(self.idle_from);
        }
    }

    /// Begins with a batch of what waits.
    fn begin(&mut self, now: Time) {
        let size = self.waiting.len().min(self.profile.updates.batch_max as usize);
        let inserts = self.waiting.iter().take(size).filter(|op| matches!(op, RuleOp::Install(_))).count();
        let insert_ns = each_ns(&self.profile.updates.insert_us, inserts);
        let delete_ns = each_ns(&self.profile.updates.delete_us, size - inserts);
        let (mut at, mut fresh) = (now, 0);
        for op in self.waiting.drain(..size) {
            let (plain, in_first) = match &op {
                RuleOp::Install(_) => {
                    fresh += 1;
                    (insert_ns, self.rules.goes_first(fresh - 1))
                }
                RuleOp::Remove { key, .. } => (delete_ns, self.rules.is_first(key)),
            };
            let takes = if in_first { (plain as f64 * self.profile.tables.first_factor) as u64 } else { plain };
            at = at + Duration::from_nanos(takes);
            self.changing.push_back((at, op));
        }
        self.tally.changing_ns += at.since(now).as_nanos() as u64;
        self.idle_from = at;
    }

    /// Makes a change, and answers it.
    fn change(&mut self, at: Time, op: RuleOp) {
        let answer = match op {
            RuleOp::Install(rule) if !self.can(&rule) => Completion::Rejected(rule.id, Refusal::Unsupported),
            RuleOp::Install(rule) if self.random.u32(..1_000_000) < self.profile.updates.failing_ppm => {
                self.tally.failed += 1;
                Completion::Rejected(rule.id, Refusal::Failed)
            }
            RuleOp::Install(rule) => match self.rules.insert(rule) {
                true => {
                    self.tally.inserted += 1;
                    Completion::Installed(rule.id)
                }
                false => {
                    self.tally.full += 1;
                    Completion::Rejected(rule.id, Refusal::Full)
                }
            },
            RuleOp::Remove { id, key } => {
                let counters = self.rules.remove(id, &key);
                self.tally.deleted += u64::from(counters.is_some());
                Completion::Removed(id, counters)
            }
        };
        let (least, most) = self.profile.updates.confirmed_us;
        let late = (least + (most - least) * self.random.f64()) * 1000.0;
        self.answered += 1;
        self.answers.push(Reverse(PendingConfirmation(at + Duration::from_nanos(late as u64), self.answered, answer)));
    }

    /// Whether it can do what a rule asks.
    fn can(&self, rule: &hairpin_core::engine::Rule) -> bool {
        let (abilities, rewrite) = (&self.profile.abilities, &rule.rewrite);
        let numbers = rewrite.sequence_delta != 0 || rewrite.acknowledgement_delta != 0;
        (abilities.rewrites_sequence || !numbers)
            && (abilities.rewrites_window || rewrite.window_shift == 0)
            && (abilities.rewrites_timestamps || !rewrite.changes_timestamps())
            && (abilities.checks_guards || rule.guard.is_none())
    }

    /// A packet arrives, of so many bytes from the Ethernet header on: what becomes of it, without its bytes. (SYN, FIN and
    /// RST never match; the caller ensures that.)
    pub fn packet(&mut self, now: Time, key: &FlowKey, length: usize) -> Passage {
        self.forward(now, key, length, self.no_hint()).0
    }

    /// [`Nic::packet`], and where a rule has sent the packet. The hint only makes it faster.
    pub fn forward(&mut self, now: Time, key: &FlowKey, length: usize, hint: Hint) -> (Passage, Option<Endpoint>) {
        self.advance(now);
        let Nic { rules, profile, changing, free_from, tally, .. } = self;
        let Some(met) = rules.met(key, hint) else { return (Passage::Miss, None) };
        if met.passes() {
            met.counters.last_seen = Some(now);
            return (Passage::Pass, None);
        }
        let Some(leaves) = departure(&profile.forwarding, free_from, !changing.is_empty(), now, length) else {
            tally.lost += 1;
            return (Passage::Lost, None);
        };
        met.counters.packets += 1;
        met.counters.bytes += length.saturating_sub(14) as u64;
        met.counters.last_seen = Some(now);
        tally.forwarded += 1;
        tally.bytes += length as u64;
        (Passage::Forward(leaves), Some(met.destination))
    }

    /// [`Nic::packet`] for a frame, which a rule rewrites.
    pub fn frame<F: Frame>(&mut self, now: Time, frame: &mut F, at: &Transport) -> Passage {
        self.advance(now);
        let controls = at.key.protocol == Protocol::Tcp && at.tcp_flags & (SYN | FIN | RST) != 0;
        let Some(rule) = self.rules.rule(&at.key).filter(|_| !controls && at.ttl > 1) else { return Passage::Miss };
        if rule.guard.is_some_and(|guard| !guard.admits_packet(frame.bytes(), at)) {
            self.tally.guarded += 1;
            return Passage::Miss;
        }
        let passage = self.packet(now, &at.key, frame.bytes().len());
        if matches!(passage, Passage::Forward(_)) {
            let checksum = frame.meta().checksum;
            rule.rewrite.apply(frame.bytes_mut(), at, checksum);
        }
        passage
    }

    /// The rule that a packet meets, of a card that only marks packets: it leaves them as they are, and to software.
    pub fn marking(&mut self, now: Time, at: &Transport) -> Option<RuleId> {
        self.advance(now);
        let controls = at.key.protocol == Protocol::Tcp && at.tcp_flags & (SYN | FIN | RST) != 0;
        self.rules.rule(&at.key).filter(|_| !controls).map(|rule| rule.id)
    }
}

/// When a packet leaves that is to be turned round; `None`: it finds the buffer full.
fn departure(
    forwarding: &ForwardingProfile,
    free_from: &mut Time,
    is_changing: bool,
    now: Time,
    length: usize,
) -> Option<Time> {
    let on_wire_ns = (length + WIRE) as f64 * 8.0 / forwarding.gbit_s;
    let speed = if is_changing { forwarding.while_changing } else { 1.0 };
    let takes = (on_wire_ns.max(1000.0 / forwarding.mpps) / speed).ceil().max(1.0) as u64;
    let begins = (*free_from).max(now);
    if begins.since(now).as_nanos() as u64 / takes >= u64::from(forwarding.waiting_max) {
        return None;
    }
    *free_from = begins + Duration::from_nanos(takes);
    Some(*free_from + Duration::from_nanos((forwarding.latency_us * 1000.0) as u64))
}

impl FlowEngine for Nic {
    fn caps(&self) -> EngineCaps {
        self.profile.caps()
    }

    fn submit(&mut self, _: Time, op: RuleOp) -> Result<(), RuleOp> {
        if self.is_full() {
            return Err(op);
        }
        self.queued.push_back(op);
        Ok(())
    }

    fn flush(&mut self, now: Time) {
        self.advance(now);
        if self.waiting.is_empty() && self.changing.is_empty() {
            self.idle_from = self.idle_from.max(now);
        }
        self.waiting.append(&mut self.queued);
        self.advance(now);
    }

    fn poll(&mut self, now: Time, out: &mut Completions) {
        self.advance(now);
        while !out.is_full() && self.answers.peek().is_some_and(|Reverse(answer)| answer.0 <= now) {
            if let Some(Reverse(PendingConfirmation(_, _, completion))) = self.answers.pop() {
                out.push(completion);
            }
        }
    }

    fn sample(&mut self, rules: &[(RuleId, FlowKey)], out: &mut Samples) {
        for (id, key) in rules {
            out.push(self.rules.sample(*id, key));
        }
    }
}

#[cfg(test)]
mod tests;

//! One card for all cores: each has a [`CardHandle`] of it, and hears of its own rules only.

use super::core::ModelCore;
use crate::nic::{CardProfile, Nic};
use fastrand::Rng;
use hairpin_core::engine::{Completion, Completions, EngineCaps, FlowEngine, RuleId, RuleOp, Samples};
use hairpin_core::flow::FlowKey;
use hairpin_core::time::Time;

/// The place of a core's number in the name of a rule; a worker's own part is below and above (see
/// [`ENTRIES_EACH_MAX`](super::ENTRIES_EACH_MAX)).
const CORE_SHIFT: u32 = 27;
const CORE_BITS: u64 = 0b1_1111 << CORE_SHIFT;

/// A packet that the card has turned round, and when it leaves.
pub(super) struct Turned<P> {
    pub(super) at: u64,
    pub(super) packet: P,
}

/// The card.
pub(super) struct Card {
    pub(super) nic: Nic,
    completions: Box<Completions>,
}

impl Card {
    pub(super) fn new(profile: &CardProfile, scale: f64, random: Rng) -> Card {
        Card { nic: Nic::new(profile.scaled(scale), random), completions: Box::default() }
    }

    pub(super) fn caps(&self) -> EngineCaps {
        self.nic.caps()
    }

    /// One core's way to it.
    pub(super) fn handle(&mut self, core: usize) -> CardHandle<'_> {
        CardHandle { card: self, core: core as u64 }
    }

    /// Deals its answers to the cores.
    pub(super) fn deal(&mut self, now: Time, cores: &mut [ModelCore]) {
        loop {
            self.nic.poll(now, &mut self.completions);
            if self.completions.is_empty() {
                return;
            }
            for completion in self.completions.drain(..) {
                let (core, completion) = addressed(completion);
                if let Some(core) = cores.get_mut(core) {
                    core.inbox.push_back(completion);
                }
            }
        }
    }
}

/// The core that an answer is for, and the request's number there.
fn addressed(completion: Completion) -> (usize, Completion) {
    let core = |id: RuleId| ((id.0 & CORE_BITS) >> CORE_SHIFT) as usize;
    let own = |id: RuleId| RuleId(id.0 & !CORE_BITS);
    match completion {
        Completion::Installed(id) => (core(id), Completion::Installed(own(id))),
        Completion::Rejected(id, why) => (core(id), Completion::Rejected(own(id), why)),
        Completion::Removed(id, counters) => (core(id), Completion::Removed(own(id), counters)),
    }
}

/// A core's way to the card. Completions come through [`Card::deal`].
pub(super) struct CardHandle<'a> {
    card: &'a mut Card,
    core: u64,
}

impl CardHandle<'_> {
    /// Whether the card takes no more requests now.
    pub(super) fn is_full(&self) -> bool {
        self.card.nic.is_full()
    }

    fn name(&self, id: RuleId) -> RuleId {
        RuleId(id.0 | self.core << CORE_SHIFT)
    }

    fn own(&self, op: RuleOp) -> RuleOp {
        match op {
            RuleOp::Install(mut rule) => {
                rule.id.0 &= !CORE_BITS;
                RuleOp::Install(rule)
            }
            RuleOp::Remove { id, key } => RuleOp::Remove { id: RuleId(id.0 & !CORE_BITS), key },
        }
    }
}

impl FlowEngine for CardHandle<'_> {
    fn caps(&self) -> EngineCaps {
        self.card.caps()
    }

    fn submit(&mut self, now: Time, op: RuleOp) -> Result<(), RuleOp> {
        let op = match op {
            RuleOp::Install(mut rule) => {
                rule.id = self.name(rule.id);
                RuleOp::Install(rule)
            }
            RuleOp::Remove { id, key } => RuleOp::Remove { id: self.name(id), key },
        };
        self.card.nic.submit(now, op).map_err(|op| self.own(op))
    }

    fn flush(&mut self, now: Time) {
        self.card.nic.flush(now);
    }

    fn poll(&mut self, _: Time, _: &mut Completions) {}

    fn sample(&mut self, rules: &[(RuleId, FlowKey)], out: &mut Samples) {
        for (id, key) in rules {
            self.card.nic.sample(&[(self.name(*id), *key)], out);
        }
    }
}

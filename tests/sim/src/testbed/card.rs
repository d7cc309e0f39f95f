//! One card for all cores: each has a [`CardHandle`] of it, and hears of its own rules only.

use super::core::{ModelCore, TestbedWorker};
use super::{CardAction, CardOffload};
use crate::nic::Nic;
use fastrand::Rng;
use hairpin_core::engine::{Completion, Completions, EngineCaps, FlowEngine, RuleId, RuleOp, Samples};
use hairpin_core::flow::FlowKey;
use hairpin_core::time::Time;
use hairpin_core::worker::SampledRules;

/// The place of a core's number in the name of a rule; a worker's own part is below and above (see
/// [`ENTRIES_EACH_MAX`](super::ENTRIES_EACH_MAX)).
const CORE_SHIFT: u32 = 27;
const CORE_BITS: u64 = 0b1_1111 << CORE_SHIFT;

/// A packet that the card has turned round or marked, and when it leaves the card.
pub(super) struct Turned<P> {
    pub(super) at: u64,
    pub(super) packet: P,
}

/// The card.
pub(super) struct Card {
    pub(super) nic: Nic,
    /// What it does with packets that match, and whether workers wait for its rules.
    pub(super) action: CardAction,
    pub(super) waits: bool,
    /// Nanoseconds of a packet that it turns round beyond those in its queue.
    pub(super) latency: u64,
    completions: Box<Completions>,
}

impl Card {
    pub(super) fn new(offload: &CardOffload, scale: f64, random: Rng) -> Card {
        let profile = offload.card.scaled(scale);
        let latency = (profile.forwarding.latency_us * 1000.0) as u64;
        let &CardOffload { action, waits, .. } = offload;
        Card { nic: Nic::new(profile, random), action, waits, latency, completions: Box::default() }
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

    /// Reads the counters that a worker asks for.
    pub(super) fn sample_for(&mut self, worker: &mut TestbedWorker, now: Time) {
        let mut asked = SampledRules::new();
        worker.poll_samples(&mut asked);
        if !asked.is_empty() {
            let mut samples = Samples::new();
            self.sample(&asked, &mut samples);
            worker.handle_samples(now, &asked, &samples);
        }
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

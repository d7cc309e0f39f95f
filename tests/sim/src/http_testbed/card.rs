//! The card that all cores share, and each core's way to it.

use crate::nic::{CardProfile, Nic};
use fastrand::Rng;
use hairpin_core::engine::{Completion, Completions, EngineCaps, FlowEngine, Refusal, RuleId, RuleOp, Samples};
use hairpin_core::flow::FlowKey;
use hairpin_core::time::Time;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

/// The place of a core's number in the name of a rule: positions of connections are below, generations above.
const CORE_SHIFT: u32 = 27;
const CORE_BITS: u64 = 0b1_1111 << CORE_SHIFT;

/// The card, and the answers that wait for each core.
pub(super) struct SharedCard {
    pub(super) nic: Nic,
    inboxes: Vec<VecDeque<Completion>>,
    /// Requests of each core so far.
    asked: Vec<u64>,
    completions: Box<Completions>,
}

impl SharedCard {
    pub(super) fn new(profile: &CardProfile, cores: usize, random: Rng) -> SharedCard {
        SharedCard {
            nic: Nic::new(profile.clone(), random),
            inboxes: (0..cores).map(|_| VecDeque::new()).collect(),
            asked: vec![0; cores],
            completions: Box::default(),
        }
    }

    /// Deals answers that are there to their cores.
    pub(super) fn deal(&mut self, now: Time) {
        loop {
            self.nic.poll(now, &mut self.completions);
            if self.completions.is_empty() {
                return;
            }
            for completion in self.completions.drain(..) {
                let (core, completion) = addressed(completion);
                if let Some(inbox) = self.inboxes.get_mut(core) {
                    inbox.push_back(completion);
                }
            }
        }
    }

    /// Whether there are answers for a core.
    pub(super) fn has_answers(&self, core: usize) -> bool {
        self.inboxes.get(core).is_some_and(|inbox| !inbox.is_empty())
    }
}

/// The core that an answer is for, and the request's name there.
fn addressed(completion: Completion) -> (usize, Completion) {
    let core = |id: RuleId| ((id.0 & CORE_BITS) >> CORE_SHIFT) as usize;
    let own = |id: RuleId| RuleId(id.0 & !CORE_BITS);
    match completion {
        Completion::Installed(id) => (core(id), Completion::Installed(own(id))),
        Completion::Rejected(id, why) => (core(id), Completion::Rejected(own(id), why)),
        Completion::Removed(id, counters) => (core(id), Completion::Removed(own(id), counters)),
    }
}

/// A core's way to the card, if there is one.
pub(super) struct CardHandle {
    pub(super) card: Option<Rc<RefCell<SharedCard>>>,
    pub(super) core: usize,
    /// Refusals of what was asked of no card.
    pub(super) refused: VecDeque<Completion>,
}

impl CardHandle {
    /// Requests of this core so far.
    pub(super) fn asked(&self) -> u64 {
        self.card.as_ref().map_or(0, |card| card.borrow().asked[self.core])
    }

    fn renamed(&self, op: RuleOp, name: impl Fn(u64) -> u64) -> RuleOp {
        match op {
            RuleOp::Install(mut rule) => {
                rule.id.0 = name(rule.id.0);
                RuleOp::Install(rule)
            }
            RuleOp::Remove { id, key } => RuleOp::Remove { id: RuleId(name(id.0)), key },
        }
    }
}

impl FlowEngine for CardHandle {
    fn caps(&self) -> EngineCaps {
        self.card.as_ref().map_or(EngineCaps::NONE, |card| card.borrow().nic.caps())
    }

    fn submit(&mut self, now: Time, op: RuleOp) -> Result<(), RuleOp> {
        let mark = (self.core as u64) << CORE_SHIFT;
        let op = self.renamed(op, |id| id | mark);
        let Some(card) = &self.card else {
            self.refused.push_back(match self.renamed(op, |id| id & !CORE_BITS) {
                RuleOp::Install(rule) => Completion::Rejected(rule.id, Refusal::Unsupported),
                RuleOp::Remove { id, .. } => Completion::Removed(id, None),
            });
            return Ok(());
        };
        let mut card = card.borrow_mut();
        card.nic.submit(now, op).map_err(|op| self.renamed(op, |id| id & !CORE_BITS))?;
        card.asked[self.core] += 1;
        Ok(())
    }

    fn flush(&mut self, now: Time) {
        if let Some(card) = &self.card {
            card.borrow_mut().nic.flush(now);
        }
    }

    fn poll(&mut self, _: Time, out: &mut Completions) {
        let mut card = self.card.as_ref().map(|card| card.borrow_mut());
        let answers = card.as_mut().map_or(&mut self.refused, |card| &mut card.inboxes[self.core]);
        let room = out.remaining_capacity().min(answers.len());
        out.extend(answers.drain(..room));
    }

    fn sample(&mut self, rules: &[(RuleId, FlowKey)], out: &mut Samples) {
        let mark = (self.core as u64) << CORE_SHIFT;
        match &self.card {
            None => out.extend(rules.iter().map(|_| None)),
            Some(card) => {
                let named = rules.iter().map(|(id, key)| (RuleId(id.0 | mark), *key));
                let mut card = card.borrow_mut();
                named.for_each(|rule| card.nic.sample(&[rule], out));
            }
        }
    }
}

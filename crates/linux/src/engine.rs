//! The flow engine in the kernel: rules are elements of BPF maps.
//!
//! Requests are queued and performed by [`FlowEngine::flush`] in few system calls: by BPF programs that put each rule in
//! (`rules_put`; one that is there is changed, its counters go on) or read its last counters and delete it (`rules_take`),
//! some hundred at a time. Both take microseconds, so the answers are there right after.

mod batch;

use crate::abi::{FlowV4, FlowV6, RULE_OPS_MAX, RuleCounters, RuleV4, RuleV6, TICK_SHIFT};
use crate::control::{Control, QuerySlot};
use crate::cpu;
use crate::programs::Queries;
use crate::query::{RuleKey, query};
use crate::set_up::KernelSetUp;
use anyhow::{Context, Result};
use arrayvec::ArrayVec;
use batch::FamilyRules;
use hairpin_core::engine::{
    COMPLETIONS_MAX, Completion, Completions, Counters, EngineCaps, FlowEngine, OPS_MAX, RuleId, RuleOp, Samples,
    SetsUp,
};
use hairpin_core::flow::FlowKey;
use hairpin_core::time::Time;
use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

/// A worker's access to the kernel's rules. Workers share the maps; each asks for its own rules only.
#[derive(Debug)]
pub struct KernelEngine {
    queued: Vec<RuleOp>,
    answers: VecDeque<Completion>,
    v4: FamilyRules<FlowV4, RuleV4>,
    v6: FamilyRules<FlowV6, RuleV6>,
    queries: Arc<Queries>,
    slot: QuerySlot,
    worker: u8,
    rules_max: u32,
    /// Its part of set-up, until the worker has it.
    set_up: Option<KernelSetUp>,
    /// Keys of the batches under construction, while they hold both installs and removals.
    touched: HashSet<FlowKey>,
}

impl KernelEngine {
    pub(crate) fn new(
        worker: u8,
        (control, set_up): (&Arc<Control>, Option<KernelSetUp>),
        queries: &Arc<Queries>,
        (v4_max, v6_max): (u32, u32),
    ) -> Result<KernelEngine> {
        let slot = control.query_slot(usize::from(worker));
        let slot =
            slot.with_context(|| format!("worker {worker} has an engine already, or there is no such worker"))?;
        Ok(KernelEngine {
            queued: Vec::with_capacity(OPS_MAX),
            answers: VecDeque::with_capacity(OPS_MAX),
            v4: FamilyRules::new(OPS_MAX),
            v6: FamilyRules::new(OPS_MAX),
            queries: Arc::clone(queries),
            slot,
            worker,
            rules_max: v4_max.max(v6_max),
            set_up,
            touched: HashSet::with_capacity(OPS_MAX),
        })
    }

    /// Performs what the batches hold.
    fn execute(&mut self, now: Time) {
        let (queries, slot) = (&self.queries, &mut self.slot);
        self.v4.installs.execute(queries, slot, &mut self.answers);
        self.v6.installs.execute(queries, slot, &mut self.answers);
        self.v4.remove(queries, slot, &mut self.answers, |counters| answer(counters, now));
        self.v6.remove(queries, slot, &mut self.answers, |counters| answer(counters, now));
        self.touched.clear();
    }

    fn sample_family<K: RuleKey>(
        queries: &Queries,
        slot: &mut QuerySlot,
        asked: &[(usize, K)],
        mut found: impl FnMut(usize, RuleCounters),
    ) {
        for chunk in asked.chunks(RULE_OPS_MAX) {
            let keys: ArrayVec<K, RULE_OPS_MAX> = chunk.iter().map(|(_, key)| *key).collect();
            if query(&queries.sample, slot, &keys, 0).is_ok() {
                for (at, (position, _)) in chunk.iter().enumerate() {
                    found(*position, slot.counters(at));
                }
            }
        }
    }
}

/// When it was that rules' clock showed `tick`. A tick is 32 bits of a longer time: it is the last such tick before
/// now.
pub(crate) fn time_of(tick: u32, now: Time) -> Time {
    let now_ticks = now.as_nanos() >> TICK_SHIFT;
    // A packet may have hit after the worker has read its clock.
    let age = (now_ticks as u32).wrapping_sub(tick) as i32;
    Time::from_nanos(now_ticks.saturating_sub(u64::from(age.max(0).unsigned_abs())) << TICK_SHIFT)
}

/// Counters as the worker knows them.
fn answer(counters: RuleCounters, now: Time) -> Option<Counters> {
    (counters.found != 0).then_some(Counters {
        packets: counters.packets,
        bytes: counters.bytes,
        last_seen: (counters.last_seen != 0).then(|| time_of(counters.last_seen, now)),
    })
}

impl FlowEngine for KernelEngine {
    fn caps(&self) -> EngineCaps {
        EngineCaps {
            rules_max: self.rules_max,
            families_apart: true,
            ops_in_flight_max: OPS_MAX as u32,
            rewrites_sequence: true,
            rewrites_sack: true,
            rewrites_window: true,
            rewrites_timestamps: true,
            checks_guards: true,
            counts: true,
            judges_access: true,
        }
    }

    fn submit(&mut self, _now: Time, op: RuleOp) -> Result<(), RuleOp> {
        if self.queued.len() + self.answers.len() >= OPS_MAX {
            return Err(op);
        }
        self.queued.push(op);
        Ok(())
    }

    fn flush(&mut self, now: Time) {
        if self.queued.is_empty() {
            return;
        }
        let mut queued = std::mem::take(&mut self.queued);
        let installs = queued.iter().filter(|op| matches!(op, RuleOp::Install(_))).count();
        let mixed = installs != 0 && installs != queued.len();
        for op in queued.drain(..) {
            let key = match &op {
                RuleOp::Install(rule) => rule.key,
                RuleOp::Remove { key, .. } => *key,
            };
            // Installs are performed before removals; requests for one flow, in the order they were made.
            if mixed && !self.touched.insert(key) {
                self.execute(now);
                self.touched.insert(key);
            }
            match (op, key.is_ipv4()) {
                (RuleOp::Install(rule), true) => {
                    self.v4.installs.add(&rule, FlowV4::of(&key), RuleV4::of(&rule, self.worker), &mut self.answers);
                }
                (RuleOp::Install(rule), false) => {
                    self.v6.installs.add(&rule, FlowV6::of(&key), RuleV6::of(&rule, self.worker), &mut self.answers);
                }
                (RuleOp::Remove { id, .. }, true) => self.v4.removals.add(id, FlowV4::of(&key)),
                (RuleOp::Remove { id, .. }, false) => self.v6.removals.add(id, FlowV6::of(&key)),
            }
        }
        self.execute(now);
        self.queued = queued;
    }

    fn poll(&mut self, _now: Time, out: &mut Completions) {
        while !out.is_full() {
            let Some(answer) = self.answers.pop_front() else { return };
            out.push(answer);
        }
    }

    fn sample(&mut self, rules: &[(RuleId, FlowKey)], out: &mut Samples) {
        out.clear();
        let now = cpu::now();
        let mut v4: ArrayVec<(usize, FlowV4), COMPLETIONS_MAX> = ArrayVec::new();
        let mut v6: ArrayVec<(usize, FlowV6), COMPLETIONS_MAX> = ArrayVec::new();
        for (position, (_, key)) in rules.iter().take(COMPLETIONS_MAX).enumerate() {
            out.push(None);
            match key.is_ipv4() {
                true => v4.push((position, FlowV4::of(key))),
                false => v6.push((position, FlowV6::of(key))),
            }
        }
        let mut found = |position: usize, counters| out[position] = answer(counters, now);
        Self::sample_family(&self.queries, &mut self.slot, &v4, &mut found);
        Self::sample_family(&self.queries, &mut self.slot, &v6, &mut found);
    }

    fn sets_up(&mut self) -> Option<Box<dyn SetsUp>> {
        self.set_up.take().map(|set_up| Box::new(set_up) as Box<dyn SetsUp>)
    }
}

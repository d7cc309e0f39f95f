//! A worker's flow engine: the ports', or none, which takes no rule.

use hairpin_core::engine::{Completion, Completions, EngineCaps, FlowEngine, Refusal, RuleId, RuleOp, Samples};
use hairpin_core::flow::FlowKey;
use hairpin_core::time::Time;
use hairpin_dpdk::flow::RteFlowEngine;
use std::collections::VecDeque;

/// Requests whose answers may be outstanding at most.
const WAITING_MAX: usize = 4096;

/// An engine without room. Workers ask it only for rules that no policy decides (to pass flows of no connection), and
/// are refused.
#[derive(Debug, Default)]
pub(super) struct NoEngine {
    answers: VecDeque<Completion>,
}

impl FlowEngine for NoEngine {
    fn caps(&self) -> EngineCaps {
        EngineCaps::NONE
    }

    fn submit(&mut self, _: Time, op: RuleOp) -> Result<(), RuleOp> {
        if self.answers.len() >= WAITING_MAX {
            return Err(op);
        }
        self.answers.push_back(match op {
            RuleOp::Install(rule) => Completion::Rejected(rule.id, Refusal::Unsupported),
            RuleOp::Remove { id, .. } => Completion::Removed(id, None),
        });
        Ok(())
    }

    fn flush(&mut self, _: Time) {}

    fn poll(&mut self, _: Time, out: &mut Completions) {
        let room = out.remaining_capacity().min(self.answers.len());
        out.extend(self.answers.drain(..room));
    }

    fn sample(&mut self, rules: &[(RuleId, FlowKey)], out: &mut Samples) {
        out.extend(rules.iter().map(|_| None));
    }
}

/// What a worker has.
#[derive(Debug)]
pub(super) enum WorkerEngine {
    /// Nothing.
    None(NoEngine),
    /// A handle to the thread that has the ports' rules.
    Rules(Box<RteFlowEngine>),
}

impl Default for WorkerEngine {
    fn default() -> WorkerEngine {
        WorkerEngine::None(NoEngine::default())
    }
}

impl FlowEngine for WorkerEngine {
    fn caps(&self) -> EngineCaps {
        match self {
            WorkerEngine::None(engine) => engine.caps(),
            WorkerEngine::Rules(engine) => engine.caps(),
        }
    }

    fn submit(&mut self, now: Time, op: RuleOp) -> Result<(), RuleOp> {
        match self {
            WorkerEngine::None(engine) => engine.submit(now, op),
            WorkerEngine::Rules(engine) => engine.submit(now, op),
        }
    }

    fn flush(&mut self, now: Time) {
        match self {
            WorkerEngine::None(engine) => engine.flush(now),
            WorkerEngine::Rules(engine) => engine.flush(now),
        }
    }

    fn poll(&mut self, now: Time, out: &mut Completions) {
        match self {
            WorkerEngine::None(engine) => engine.poll(now, out),
            WorkerEngine::Rules(engine) => engine.poll(now, out),
        }
    }

    fn sample(&mut self, rules: &[(RuleId, FlowKey)], out: &mut Samples) {
        match self {
            WorkerEngine::None(engine) => engine.sample(rules, out),
            WorkerEngine::Rules(engine) => engine.sample(rules, out),
        }
    }
}

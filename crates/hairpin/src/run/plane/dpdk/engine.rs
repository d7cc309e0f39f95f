//! A worker's flow engine: the ports', or none, which takes no rule.

use hairpin_core::engine::{Completions, EngineCaps, FlowEngine, NoEngine, RuleId, RuleOp, Samples};
use hairpin_core::flow::FlowKey;
use hairpin_core::time::Time;
use hairpin_dpdk::flow::RteFlowEngine;

/// The engine handle of a worker.
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

//! A worker's handle of the engine.

use super::request::{DeviceRuleRequest, RequestAnswer};
use super::service::refusals;
use super::shared::SharedRules;
use hairpin_core::engine::{
    COMPLETIONS_MAX, Completion, Completions, EngineCaps, FlowEngine, OPS_MAX, Rule, RuleId, RuleOp, Samples,
};
use hairpin_core::flow::FlowKey;
use hairpin_core::time::Time;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender};
use std::thread::Thread;

/// A worker's flow engine. Rules of it are known to the thread by what they match, so no two workers may ask for the same
/// flow.
///
/// Two rules in a row that are each other's other direction are a pair: both are installed, or both are refused. Counters
/// are as they were up to half a second ago, or as long as the device takes to tell those of all rules. What a rule counts
/// between being asked for the last time and being gone is not known.
///
/// It has [`Fate::Forward`](hairpin_core::engine::Fate::Forward) rules only, since there is no kernel to leave packets to.
/// A packet that is in a worker's queue when its rule comes into force may be overtaken by its successors: a device cannot
/// be told to wait for it (invariant 7 does not hold here, up to one queue of packets at each hand-over).
#[derive(Debug)]
pub struct RteFlowEngine {
    caps: EngineCaps,
    /// The last rule asked for, which may be half a pair.
    open: Option<Rule>,
    queued: Vec<DeviceRuleRequest>,
    in_flight: usize,
    requests: SyncSender<DeviceRuleRequest>,
    answers: Receiver<RequestAnswer>,
    /// Answers to what the thread was not there to take.
    refused: VecDeque<Completion>,
    /// The places of installed rules' counters.
    places: HashMap<FlowKey, (u32, u32)>,
    shared: Arc<SharedRules>,
    thread: Thread,
}

impl RteFlowEngine {
    pub(super) fn new(
        caps: EngineCaps,
        (requests, answers): (SyncSender<DeviceRuleRequest>, Receiver<RequestAnswer>),
        (shared, thread): (Arc<SharedRules>, Thread),
        rules_max: u32,
    ) -> RteFlowEngine {
        RteFlowEngine {
            caps,
            open: None,
            queued: Vec::with_capacity(OPS_MAX),
            in_flight: 0,
            requests,
            answers,
            refused: VecDeque::new(),
            places: HashMap::with_capacity(rules_max as usize),
            shared,
            thread,
        }
    }

    /// A request that was pending is for a rule of its own.
    fn close_pair(&mut self) {
        if let Some(rule) = self.open.take() {
            self.queued.push(DeviceRuleRequest::Install(rule));
        }
    }

    /// Answers for a thread that has ended: it has taken all rules out.
    fn refuse(&mut self, request: DeviceRuleRequest) {
        refusals(&request, |told| self.refused.push_back(told.completion));
    }
}

/// Whether the second rule takes what answers the packets that the first has sent on.
fn is_pair(first: &Rule, second: &Rule) -> bool {
    first.rewrite.rewritten(&first.key).reversed() == second.key
        && second.rewrite.rewritten(&second.key).reversed() == first.key
}

impl FlowEngine for RteFlowEngine {
    fn caps(&self) -> EngineCaps {
        self.caps
    }

    fn submit(&mut self, _now: Time, op: RuleOp) -> Result<(), RuleOp> {
        match op {
            RuleOp::Install(rule) => {
                if let Some(first) = self.open
                    && is_pair(&first, &rule)
                {
                    // There was room for two when the first came.
                    self.open = None;
                    self.queued.push(DeviceRuleRequest::Pair([first, rule]));
                } else if self.in_flight + 2 > OPS_MAX {
                    return Err(op);
                } else {
                    self.close_pair();
                    self.open = Some(rule);
                }
            }
            RuleOp::Remove { id, key } => {
                if self.in_flight + 1 > OPS_MAX {
                    return Err(op);
                }
                self.close_pair();
                self.queued.push(DeviceRuleRequest::Remove { id, key });
            }
        }
        self.in_flight += 1;
        Ok(())
    }

    fn flush(&mut self, _now: Time) {
        self.close_pair();
        if self.queued.is_empty() {
            return;
        }
        let mut queued = std::mem::take(&mut self.queued);
        for request in queued.drain(..) {
            // It is never full, so this means that the thread has ended.
            if self.requests.try_send(request).is_err() {
                self.refuse(request);
            }
        }
        self.queued = queued;
        self.thread.unpark();
    }

    fn poll(&mut self, _now: Time, out: &mut Completions) {
        while !out.is_full() {
            if let Some(completion) = self.refused.pop_front() {
                self.in_flight -= 1;
                out.push(completion);
                continue;
            }
            let Ok(told) = self.answers.try_recv() else { return };
            match told.completion {
                Completion::Installed(_) => {
                    self.places.insert(told.key, told.place);
                }
                Completion::Removed(..) => {
                    self.places.remove(&told.key);
                }
                Completion::Rejected(..) => {}
            }
            self.in_flight -= 1;
            out.push(told.completion);
        }
    }

    fn sample(&mut self, rules: &[(RuleId, FlowKey)], out: &mut Samples) {
        out.clear();
        for (_, key) in rules.iter().take(COMPLETIONS_MAX) {
            out.push(self.places.get(key).and_then(|place| self.shared.counters(*place)));
        }
    }
}

//! The requests of workers to the ports' rules, and the answers.

use hairpin_core::engine::{Completion, Counters, Rule, RuleId};
use hairpin_core::flow::FlowKey;

/// A request of a worker.
#[derive(Clone, Copy, Debug)]
pub(super) enum DeviceRuleRequest {
    /// One rule.
    Install(Rule),
    /// Both rules of a connection: both or none.
    Pair([Rule; 2]),
    /// Its removal.
    Remove { id: RuleId, key: FlowKey },
}

impl DeviceRuleRequest {
    pub(super) fn keys(&self) -> impl Iterator<Item = FlowKey> {
        let (first, second) = match self {
            DeviceRuleRequest::Install(rule) => (rule.key, None),
            DeviceRuleRequest::Pair([first, second]) => (first.key, Some(second.key)),
            DeviceRuleRequest::Remove { key, .. } => (*key, None),
        };
        std::iter::once(first).chain(second)
    }
}

/// The answer to a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestAnswer {
    pub(super) completion: Completion,
    /// The rule's.
    pub(super) key: FlowKey,
    /// The place of an installed rule's counters, and the generation of the rule at that place.
    pub(super) place: (u32, u32),
}

/// The receiver of answers.
pub(super) trait AnswerSink {
    /// Tells a worker. There is always room: no worker has more requests unanswered than its queue of answers takes.
    fn tell(&mut self, worker: u16, told: RequestAnswer);
    /// A rule's counters, for callers that sample.
    fn counted(&mut self, place: (u32, u32), counters: &Counters);
    /// A rule of a slot ([`Rule::total`]) has forwarded so much since the last report.
    fn forwarded(&mut self, _total: u32, _packets: u64, _bytes: u64) {}
}

pub(super) fn answer(out: &mut impl AnswerSink, worker: u16, completion: Completion, key: FlowKey) {
    out.tell(worker, RequestAnswer { completion, key, place: (0, 0) });
}

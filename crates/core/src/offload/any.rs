//! Any of the policies, chosen while the program runs.

use super::{
    Always, Auto, Costs, DecisionTree, EngineRoom, FastestFlow, FirstN, FlowStats, HeavyHitter, Never, OffloadPolicy,
    Tree, Verdict,
};
use crate::time::{Duration, Time};
use alloc::sync::Arc;

/// Which policy, and its numbers.
#[derive(Clone, Debug, PartialEq)]
pub enum Choice {
    /// [`Always`]
    Always,
    /// [`Never`]
    Never,
    /// [`FirstN`]
    FirstN(FirstN),
    /// [`HeavyHitter`]
    HeavyHitter(HeavyHitter),
    /// [`FastestFlow`]
    FastestFlow {
        /// The least rate, in packets per second.
        packets_per_s: u32,
    },
    /// [`DecisionTree`], all workers by this one.
    DecisionTree(Arc<Tree>),
    /// [`Auto`]
    Auto,
}

/// One of them, or another that the data plane does not know.
pub enum AnyPolicy<O = Never> {
    /// [`Always`]
    Always(Always),
    /// [`Never`]
    Never(Never),
    /// [`FirstN`]
    FirstN(FirstN),
    /// [`HeavyHitter`]
    HeavyHitter(HeavyHitter),
    /// [`FastestFlow`]
    FastestFlow(FastestFlow),
    /// [`DecisionTree`]
    DecisionTree(DecisionTree),
    /// [`Auto`]
    Auto(Auto),
    /// None of them; none of [`Choice`] leads here.
    Other(O),
}

impl<O> AnyPolicy<O> {
    /// The policy for a worker of so many connections at most. `fastest-flow` and `auto` keep 32 bytes for
    /// each, `decision-tree` 64.
    pub fn new(choice: Choice, capacity: usize) -> AnyPolicy<O> {
        match choice {
            Choice::Always => AnyPolicy::Always(Always),
            Choice::Never => AnyPolicy::Never(Never),
            Choice::FirstN(policy) => AnyPolicy::FirstN(policy),
            Choice::HeavyHitter(policy) => AnyPolicy::HeavyHitter(policy),
            Choice::FastestFlow { packets_per_s } => AnyPolicy::FastestFlow(FastestFlow::new(packets_per_s, capacity)),
            Choice::DecisionTree(tree) => AnyPolicy::DecisionTree(DecisionTree::new(tree, capacity)),
            Choice::Auto => AnyPolicy::Auto(Auto::new(capacity)),
        }
    }
}

macro_rules! each {
    ($self:ident, $policy:ident => $what:expr) => {
        match $self {
            AnyPolicy::Always($policy) => $what,
            AnyPolicy::Never($policy) => $what,
            AnyPolicy::FirstN($policy) => $what,
            AnyPolicy::HeavyHitter($policy) => $what,
            AnyPolicy::FastestFlow($policy) => $what,
            AnyPolicy::DecisionTree($policy) => $what,
            AnyPolicy::Auto($policy) => $what,
            AnyPolicy::Other($policy) => $what,
        }
    };
}

impl<O: OffloadPolicy> OffloadPolicy for AnyPolicy<O> {
    fn name(&self) -> &'static str {
        each!(self, policy => policy.name())
    }
    #[inline]
    fn on_packet(&mut self, now: Time, flow: &FlowStats, room: EngineRoom) -> Verdict {
        each!(self, policy => policy.on_packet(now, flow, room))
    }
    fn on_sample(&mut self, now: Time, flow: &FlowStats, room: EngineRoom) -> Verdict {
        each!(self, policy => policy.on_sample(now, flow, room))
    }
    fn on_end(&mut self, now: Time, flow: &FlowStats) {
        each!(self, policy => policy.on_end(now, flow))
    }
    fn on_installed(&mut self, now: Time, delay: Duration) {
        each!(self, policy => policy.on_installed(now, delay))
    }
    fn on_refused(&mut self, now: Time) {
        each!(self, policy => policy.on_refused(now))
    }
    fn set_costs(&mut self, costs: Costs) {
        each!(self, policy => policy.set_costs(costs))
    }
    fn samples_within(&self) -> Option<Duration> {
        each!(self, policy => policy.samples_within())
    }
    fn offloads(&self) -> bool {
        each!(self, policy => policy.offloads())
    }
}

//! Policies compared: what each saves beside `never`, and whether `auto` is what it should be.
//!
//! How near `auto` comes to the best is judged beside an upper bound that no policy can be above
//! ([`bound`](hairpin_sim::testbed::bound)): of packets saved net of requests for rules. The yardstick is a greedy plan that
//! knows every packet beforehand. It is no bound, but it can be carried out.

use super::file::CasePlace;
use super::finding::SeenRun;
use super::outcome::Outcome;
use crate::statistics::Summary;

/// `auto` may save less than another policy by this many percent of `never`'s processor time: what a seed makes of it.
pub const BEST_WITHIN: f64 = 0.1;
/// It is near the bound if it saves so much of it, but for [`NET_WITHIN`].
pub const OF_BOUND: f64 = 0.9;
/// In percent of the packets offered.
pub const NET_WITHIN: f64 = 0.1;
/// It has to be near in so many of the scenarios.
pub const NEAR_SHARE: f64 = 0.75;
/// Its p99 may be above `never`'s by this part: twice the error of a percentile.
pub const P99_WITHIN: f64 = 0.01;
/// Its loss may be above `never`'s by this part of all packets.
pub const LOSS_WITHIN: f64 = 1e-5;

/// Everything at one place but for the policy.
pub struct Scenario<'a> {
    /// Where: all axes but the policies'.
    pub place: CasePlace,
    /// Each policy's name and what came, in the file's order. The last run of each.
    pub policies: Vec<(&'a str, SeenRun<'a>)>,
    /// The upper bound.
    pub bound: Option<SeenRun<'a>>,
}

impl<'a> Scenario<'a> {
    /// All of them, of policies along `axis`, with the bounds there are.
    pub fn all(seen: Vec<SeenRun<'a>>, bounds: Vec<SeenRun<'a>>, axis: &str) -> Vec<Scenario<'a>> {
        let mut scenarios: Vec<Scenario<'a>> = Vec::new();
        let place_of =
            |seen: &SeenRun<'a>| -> CasePlace { seen.place.iter().filter(|(name, _)| name != axis).cloned().collect() };
        for seen in seen {
            let Some((_, policy)) = seen.place.iter().find(|(name, _)| name == axis) else { continue };
            let place = place_of(&seen);
            let at = match scenarios.iter().position(|scenario| scenario.place == place) {
                Some(at) => at,
                None => {
                    scenarios.push(Scenario { place, policies: Vec::new(), bound: None });
                    scenarios.len() - 1
                }
            };
            let policies = &mut scenarios[at].policies;
            match policies.iter_mut().find(|(other, _)| other == policy) {
                Some((_, before)) => *before = seen,
                None => policies.push((policy.as_str(), seen)),
            }
        }
        for bound in bounds {
            let place = place_of(&bound);
            if let Some(scenario) = scenarios.iter_mut().find(|scenario| scenario.place == place) {
                scenario.bound = Some(bound);
            }
        }
        scenarios
    }

    /// Its place, for people.
    pub fn name(&self) -> String {
        self.place.iter().map(|(axis, value)| format!("{axis} {value}")).collect::<Vec<_>>().join(", ")
    }

    /// The runs with this policy.
    pub fn of(&self, policy: &str) -> Option<&SeenRun<'a>> {
        self.policies.iter().find(|(name, _)| *name == policy).map(|(_, seen)| seen)
    }

    /// A quantity of a policy and of another run, over the seeds that both have.
    fn beside(&self, policy: &str, other: &SeenRun<'a>, of: impl Fn(&Outcome, &Outcome) -> f64) -> Option<Summary> {
        let pairs = self.of(policy)?.beside(other).map(|(policy, other)| of(policy, other));
        Summary::of(&pairs.collect::<Vec<_>>())
    }

    /// The part of `never`'s processor time for each packet received that a policy saves, in percent.
    pub fn saved(&self, policy: &str) -> Option<Summary> {
        self.beside(policy, self.of("never")?, |with, never| 100.0 * (1.0 - with.cpu_ns / never.cpu_ns))
    }

    /// Packets that a policy saves net of its requests, in percent of those offered.
    pub fn net(&self, policy: &str) -> Option<Summary> {
        let net = |with: &Outcome, bound: &Outcome| bound.bound.map(|bound| 100.0 * with.net_saved(bound.rule_packets));
        self.beside(policy, self.bound.as_ref()?, |with, bound| net(with, bound).unwrap_or(f64::NAN))
    }

    /// Of the bound: the share of packets saved, net of requests for rules, in percent.
    pub fn net_bound(&self) -> Option<Summary> {
        self.bound.as_ref()?.summary(|outcome| outcome.bound.map_or(f64::NAN, |bound| 100.0 * bound.saved))
    }

    /// The policy, but for the yardstick and `auto`, that saves most, and what.
    pub fn best(&self) -> Option<(&'a str, f64)> {
        let others = self.policies.iter().filter(|(name, _)| *name != "auto" && *name != "yardstick");
        let saved = others.filter_map(|(name, _)| Some((*name, self.saved(name)?.mean)));
        saved.max_by(|a, b| a.1.total_cmp(&b.1))
    }
}

/// Whether `auto` keeps what is promised of it, over all scenarios in which it and what it is compared with came.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PromiseKept {
    /// Scenarios in which it could be compared with all others, and those in which another saves more: which one, how much.
    pub best_of: usize,
    /// See `best_of`.
    pub not_best: Vec<String>,
    /// Scenarios with an upper bound, and those in which it is not near it.
    pub bound_of: usize,
    /// See `bound_of`.
    pub not_near: Vec<String>,
    /// Policies that save more than the bound: then it is none.
    pub above: Vec<String>,
    /// Scenarios beside `never`, and those in which p99 or loss are worse.
    pub never_of: usize,
    /// See `never_of`.
    pub worse: Vec<String>,
}

impl PromiseKept {
    /// By these scenarios.
    pub fn of(scenarios: &[Scenario<'_>]) -> PromiseKept {
        let mut kept = PromiseKept::default();
        for scenario in scenarios {
            let name = scenario.name();
            kept.look_for_above(scenario, &name);
            let Some(auto) = scenario.saved("auto") else { continue };
            if let Some((best, saved)) = scenario.best() {
                kept.best_of += 1;
                if auto.mean < saved - BEST_WITHIN {
                    kept.not_best.push(format!("{name}: auto {:.1} %, {best} {saved:.1} %", auto.mean));
                }
            }
            if let (Some(auto), Some(bound)) = (scenario.net("auto"), scenario.net_bound()) {
                kept.bound_of += 1;
                if auto.mean < OF_BOUND * bound.mean - NET_WITHIN {
                    kept.not_near.push(format!("{name}: auto {:.1} %, bound {:.1} %", auto.mean, bound.mean));
                }
            }
            kept.compare_with_never(scenario, &name);
        }
        kept
    }

    fn look_for_above(&mut self, scenario: &Scenario<'_>, name: &str) {
        let Some(bound) = &scenario.bound else { return };
        for (policy, seen) in &scenario.policies {
            for (with, bound) in seen.beside(bound) {
                let Some(bound) = bound.bound else { continue };
                let saved = with.net_saved(bound.rule_packets);
                if saved > bound.saved {
                    let (saved, bound) = (100.0 * saved, 100.0 * bound.saved);
                    self.above.push(format!("{name}: {policy} {saved:.3} %, bound {bound:.3} %"));
                }
            }
        }
    }

    fn compare_with_never(&mut self, scenario: &Scenario<'_>, name: &str) {
        let Some(never) = scenario.of("never") else { return };
        let part = |with: f64, without: f64| if without > 0.0 { with / without } else { 1.0 };
        let p99 = scenario.beside("auto", never, |auto, never| part(auto.latency_p99, never.latency_p99));
        let loss = scenario.beside("auto", never, |auto, never| auto.loss - never.loss);
        let mean = |policy: &str, of: fn(&Outcome) -> f64| {
            scenario.of(policy).and_then(|seen| seen.summary(of)).map_or(0.0, |all| all.mean)
        };
        self.never_of += usize::from(p99.is_some());
        if p99.is_some_and(|part| part.mean > 1.0 + P99_WITHIN) {
            let [with, without] = ["auto", "never"].map(|policy| mean(policy, |outcome| outcome.latency_p99 / 1e3));
            self.worse.push(format!("{name}: p99 {with:.2} us, never {without:.2} us"));
        }
        if loss.is_some_and(|more| more.mean > LOSS_WITHIN) {
            let [with, without] = ["auto", "never"].map(|policy| mean(policy, |outcome| outcome.loss * 100.0));
            self.worse.push(format!("{name}: loss {with:.4} %, never {without:.4} %"));
        }
    }

    /// The part of scenarios in which it is near the bound.
    pub fn near_share(&self) -> f64 {
        (self.bound_of - self.not_near.len()) as f64 / self.bound_of.max(1) as f64
    }
}

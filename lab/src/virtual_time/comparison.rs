//! Policies compared: what each saves beside `never`, and whether `auto` is what it should be.
//!
//! The yardstick is a greedy plan that knows every packet beforehand. It is no upper bound: it plans by a simple model of the
//! card, and a policy may save more than it does.

use super::file::CasePlace;
use super::finding::SeenRun;
use super::outcome::Outcome;

/// `auto` may save less than another policy by this many percent of `never`'s processor time: what a seed makes of it.
pub const BEST_WITHIN: f64 = 0.1;
/// It is near the yardstick if it saves so much of what that saves, but for [`BEST_WITHIN`].
pub const OF_YARDSTICK: f64 = 0.9;
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
    pub policies: Vec<(&'a str, &'a Outcome)>,
}

impl<'a> Scenario<'a> {
    /// All of them, of policies along `axis`.
    pub fn all(seen: &[SeenRun<'a>], axis: &str) -> Vec<Scenario<'a>> {
        let mut scenarios: Vec<Scenario<'a>> = Vec::new();
        for seen in seen {
            let Some((_, policy)) = seen.place.iter().find(|(name, _)| name == axis) else { continue };
            let place: CasePlace = seen.place.iter().filter(|(name, _)| name != axis).cloned().collect();
            let at = match scenarios.iter().position(|scenario| scenario.place == place) {
                Some(at) => at,
                None => {
                    scenarios.push(Scenario { place, policies: Vec::new() });
                    scenarios.len() - 1
                }
            };
            let policies = &mut scenarios[at].policies;
            match policies.iter_mut().find(|(other, _)| other == policy) {
                Some((_, outcome)) => *outcome = seen.outcome,
                None => policies.push((policy.as_str(), seen.outcome)),
            }
        }
        scenarios
    }

    /// Its place, for people.
    pub fn name(&self) -> String {
        self.place.iter().map(|(axis, value)| format!("{axis} {value}")).collect::<Vec<_>>().join(", ")
    }

    /// The outcome with this policy.
    pub fn outcome(&self, policy: &str) -> Option<&'a Outcome> {
        self.policies.iter().find(|(name, _)| *name == policy).map(|(_, outcome)| *outcome)
    }

    /// The part of `never`'s processor time for each packet received that a policy saves, in percent.
    pub fn saved(&self, policy: &str) -> Option<f64> {
        let (never, with) = (self.outcome("never")?.cpu_ns, self.outcome(policy)?.cpu_ns);
        (never > 0.0).then(|| 100.0 * (1.0 - with / never))
    }

    /// The policy, but for the yardstick and `auto`, that saves most, and what.
    pub fn best(&self) -> Option<(&'a str, f64)> {
        let others = self.policies.iter().filter(|(name, _)| *name != "auto" && *name != "yardstick");
        let saved = others.filter_map(|(name, _)| Some((*name, self.saved(name)?)));
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
    /// Scenarios with a greedy yardstick, and those in which it is not near it.
    pub yardstick_of: usize,
    /// See `yardstick_of`.
    pub not_near: Vec<String>,
    /// Scenarios in which `auto` saves more than the yardstick.
    pub beyond: Vec<String>,
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
            let Some(auto) = scenario.saved("auto") else { continue };
            if let Some((best, saved)) = scenario.best() {
                kept.best_of += 1;
                if auto < saved - BEST_WITHIN {
                    kept.not_best.push(format!("{name}: auto {auto:.1} %, {best} {saved:.1} %"));
                }
            }
            if let Some(yardstick) = scenario.saved("yardstick") {
                kept.yardstick_of += 1;
                if auto < OF_YARDSTICK * yardstick - BEST_WITHIN {
                    kept.not_near.push(format!("{name}: auto {auto:.1} %, yardstick {yardstick:.1} %"));
                }
                if auto > yardstick + BEST_WITHIN {
                    kept.beyond.push(format!("{name}: auto {auto:.1} %, yardstick {yardstick:.1} %"));
                }
            }
            if let (Some(auto), Some(never)) = (scenario.outcome("auto"), scenario.outcome("never")) {
                kept.never_of += 1;
                if auto.latency_p99 > never.latency_p99 * (1.0 + P99_WITHIN) {
                    let (with, without) = (auto.latency_p99 / 1e3, never.latency_p99 / 1e3);
                    kept.worse.push(format!("{name}: p99 {with:.2} us, never {without:.2} us"));
                }
                if auto.loss > never.loss + LOSS_WITHIN {
                    let (with, without) = (auto.loss * 100.0, never.loss * 100.0);
                    kept.worse.push(format!("{name}: loss {with:.4} %, never {without:.4} %"));
                }
            }
        }
        kept
    }

    /// The part of scenarios in which it is near the yardstick.
    pub fn near_share(&self) -> f64 {
        (self.yardstick_of - self.not_near.len()) as f64 / self.yardstick_of.max(1) as f64
    }
}

//! A finding, and the rule that says whether it is so here. Nothing is decided by hand.
//!
//! ```toml
//! [[finding]]
//! id = "kth2022-naive-best-in-run-2"   # of docs/evidence/findings.toml, which has the statement and its source;
//!                                      # or `text` and `source` for one that is not listed
//! metric = "throughput"
//! more = { run = ["2"] }
//! than = { run = ["1"] }
//! where = { device = ["naive"] }
//! ```
//!
//! Each case at `more` is compared with each at `than` that stands at the same place but for the axes these two (and `any`)
//! name. It holds for a pair as `rule` says; the finding is agreed with if it holds for `share` of all pairs at least, in
//! part if for half of them, else not.

use super::file::CasePlace;
use super::outcome::{Outcome, OutcomeMetric, metric};
use crate::statistics::Summary;
use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use std::collections::BTreeMap;

/// Values by axis, any of which will do.
pub type Where = BTreeMap<String, Vec<String>>;

/// When a pair agrees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AgreementRule {
    /// The first is above the second times `1 + by`, by more than `beyond`.
    #[default]
    More,
    /// The first is not below the second times `1 - by`, or by no more than `beyond`.
    NoLess,
    /// They differ by no more than `by` of the larger one, and `beyond`.
    Alike,
    /// The distance between them becomes smaller along the axis `along`, from its first to its last value.
    Narrows,
    /// The first alone is at most `beyond`.
    AtMost,
}

/// A finding.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct CaseFinding {
    /// Its id in `docs/evidence/findings.toml`; empty if it is not listed there.
    #[serde(default)]
    pub id: String,
    /// In words: the list's, if it is listed.
    #[serde(default)]
    pub text: String,
    /// Its source: the list's, if it is listed.
    #[serde(default)]
    pub source: String,
    /// The compared metric, by name.
    pub metric: String,
    /// How.
    #[serde(default)]
    pub rule: AgreementRule,
    /// The first of a pair.
    pub more: Where,
    /// The second.
    #[serde(default)]
    pub than: Where,
    /// The place of both.
    #[serde(default, rename = "where")]
    pub at: Where,
    /// Axes on which they need not stand at the same place.
    #[serde(default)]
    pub any: Vec<String>,
    /// For [`AgreementRule::Narrows`]: the axis.
    #[serde(default)]
    pub along: String,
    /// See [`AgreementRule`].
    #[serde(default)]
    pub by: f64,
    /// See [`AgreementRule`]; in the metric's unit.
    #[serde(default)]
    pub beyond: f64,
    /// The part of pairs for which it has to hold.
    #[serde(default = "nine_of_ten")]
    pub share: f64,
    /// Why it is so here, if it is.
    #[serde(default)]
    pub why: String,
    /// Why it is not, if it is not, or in part only.
    #[serde(default)]
    pub why_not: String,
}

fn nine_of_ten() -> f64 {
    0.9
}

/// The verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaseVerdict {
    /// It is so.
    Agrees,
    /// For half of the pairs at least.
    InPart,
    /// It is not.
    Disagrees,
    /// There was nothing to compare.
    NotMeasured,
}

impl CaseVerdict {
    /// In words.
    pub fn text(self) -> &'static str {
        match self {
            CaseVerdict::Agrees => "agrees",
            CaseVerdict::InPart => "in part",
            CaseVerdict::Disagrees => "**does not agree**",
            CaseVerdict::NotMeasured => "not measured",
        }
    }
}

/// A verdict, and what it rests on.
#[derive(Clone, Debug, PartialEq)]
pub struct Judgement {
    /// Whether it is so.
    pub verdict: CaseVerdict,
    /// Our figures, for people.
    pub figures: String,
    /// The pairs for which it does not hold, some of them.
    pub exceptions: Vec<String>,
}

/// A run of a case, as findings see it.
#[derive(Clone, Copy, Debug)]
pub struct SeenRun<'a> {
    /// Its place.
    pub place: &'a CasePlace,
    /// 1 or 2.
    pub run: u8,
    /// The outcome.
    pub outcome: &'a Outcome,
}

impl<'a> SeenRun<'a> {
    /// Its value on an axis.
    pub fn on(&self, axis: &str) -> Option<&'a str> {
        if axis == "run" {
            return Some(if self.run == 1 { "1" } else { "2" });
        }
        self.place.iter().find(|(name, _)| name == axis).map(|(_, value)| value.as_str())
    }

    fn is_at(&self, at: &Where) -> bool {
        at.iter().all(|(axis, values)| self.on(axis).is_some_and(|here| values.iter().any(|value| value == here)))
    }
}

/// Pairs named that do not agree.
const EXCEPTIONS_MAX: usize = 6;

impl CaseFinding {
    /// Whether it says something that can be judged.
    ///
    /// # Errors
    /// Its defect.
    pub fn check(&self) -> Result<()> {
        ensure!(metric(&self.metric).is_some(), "there is no metric `{}`", self.metric);
        ensure!((0.0..=1.0).contains(&self.share), "share is a part, 0 to 1");
        ensure!(self.by >= 0.0 && self.beyond >= 0.0, "by and beyond are not negative");
        ensure!((self.rule == AgreementRule::Narrows) != self.along.is_empty(), "`along` goes with the rule `narrows`");
        ensure!((self.rule == AgreementRule::AtMost) == self.than.is_empty(), "all rules but `at-most` need `than`");
        Ok(())
    }

    /// Takes text and source from the list.
    ///
    /// # Errors
    /// The list has no such finding, or there is no text.
    pub(super) fn look_up(&mut self) -> Result<()> {
        if self.id.is_empty() {
            ensure!(!self.text.is_empty(), "a finding needs an `id` of docs/evidence/findings.toml, or a `text`");
            return Ok(());
        }
        ensure!(self.text.is_empty() && self.source.is_empty(), "finding {}: text and source are the list's", self.id);
        let listed = crate::findings::find(&self.id);
        let listed = listed.with_context(|| format!("docs/evidence/findings.toml has no finding {}", self.id))?;
        self.text.clone_from(&listed.statement);
        self.source = listed.source();
        Ok(())
    }

    /// All axes and values it names.
    pub(super) fn places(&self) -> impl Iterator<Item = (&String, &Vec<String>)> {
        self.more.iter().chain(&self.than).chain(&self.at)
    }

    /// Judges it by all runs of its experiment; `axes` are the experiment's.
    pub fn judge(&self, seen: &[SeenRun<'_>], axes: &[(String, Vec<String>)]) -> Judgement {
        let not_measured =
            || Judgement { verdict: CaseVerdict::NotMeasured, figures: String::new(), exceptions: Vec::new() };
        let Some(metric) = metric(&self.metric) else { return not_measured() };
        let of = |seen: &SeenRun<'_>| (metric.of)(seen.outcome);
        let first: Vec<&SeenRun<'_>> =
            seen.iter().filter(|seen| seen.is_at(&self.at) && seen.is_at(&self.more)).collect();
        let mut pairs: Vec<CasePair> = Vec::new();
        if self.rule == AgreementRule::AtMost {
            for one in first {
                let holds = of(one) <= self.beyond;
                pairs.push(CasePair { holds, values: (of(one), self.beyond), place: named(one) });
            }
            return self.summed(metric, &pairs);
        }
        let second: Vec<&SeenRun<'_>> =
            seen.iter().filter(|seen| seen.is_at(&self.at) && seen.is_at(&self.than)).collect();
        let is_free = |axis: &str| {
            self.more.contains_key(axis) || self.than.contains_key(axis) || self.any.iter().any(|free| free == axis)
        };
        let names = axes.iter().map(|(name, _)| name.as_str()).chain(["run"]);
        let bound: Vec<&str> = names.filter(|axis| !is_free(axis)).collect();
        for one in &first {
            for two in second.iter().filter(|two| bound.iter().all(|axis| one.on(axis) == two.on(axis))) {
                let (one_is, two_is) = (of(one), of(two));
                pairs.push(CasePair { holds: self.holds(one_is, two_is), values: (one_is, two_is), place: named(one) });
            }
        }
        if self.rule == AgreementRule::Narrows {
            pairs = self.narrowed(&first, &second, &bound, axes, of);
        }
        self.summed(metric, &pairs)
    }

    fn holds(&self, one: f64, two: f64) -> bool {
        match self.rule {
            AgreementRule::More => one > two * (1.0 + self.by) + self.beyond,
            AgreementRule::NoLess => one >= two * (1.0 - self.by) - self.beyond,
            AgreementRule::Alike => (one - two).abs() <= self.by * one.max(two) + self.beyond,
            AgreementRule::AtMost | AgreementRule::Narrows => false,
        }
    }

    /// For each place but for the axis along which it narrows: the distances at both ends.
    fn narrowed(
        &self,
        first: &[&SeenRun<'_>],
        second: &[&SeenRun<'_>],
        bound: &[&str],
        axes: &[(String, Vec<String>)],
        of: impl Fn(&SeenRun<'_>) -> f64,
    ) -> Vec<CasePair> {
        let Some((_, values)) = axes.iter().find(|(name, _)| *name == self.along) else { return Vec::new() };
        let (Some(begin), Some(end)) = (values.first(), values.last()) else { return Vec::new() };
        let rest: Vec<&str> = bound.iter().copied().filter(|axis| *axis != self.along).collect();
        let same = |a: &SeenRun<'_>, b: &SeenRun<'_>| rest.iter().all(|axis| a.on(axis) == b.on(axis));
        let distance = |like: &SeenRun<'_>, value: &str| {
            let find = |list: &[&SeenRun<'_>]| {
                list.iter().find(|seen| same(seen, like) && seen.on(&self.along) == Some(value)).map(|seen| of(seen))
            };
            Some((find(first)? - find(second)?).abs())
        };
        let begins = first.iter().filter(|seen| seen.on(&self.along) == Some(begin));
        let pair = |seen: &&&SeenRun<'_>| {
            let (wide, narrow) = (distance(seen, begin)?, distance(seen, end)?);
            let holds = narrow < wide * (1.0 - self.by) - self.beyond;
            Some(CasePair { holds, values: (wide, narrow), place: named(seen) })
        };
        begins.filter_map(|seen| pair(&seen)).collect()
    }

    fn summed(&self, metric: &OutcomeMetric, pairs: &[CasePair]) -> Judgement {
        let (firsts, seconds): (Vec<f64>, Vec<f64>) = pairs.iter().map(|pair| pair.values).unzip();
        let (Some(one), Some(two)) = (Summary::of(&firsts), Summary::of(&seconds)) else {
            let figures = "nothing to compare".to_owned();
            return Judgement { verdict: CaseVerdict::NotMeasured, figures, exceptions: Vec::new() };
        };
        let held = pairs.iter().filter(|pair| pair.holds).count();
        let share = held as f64 / pairs.len() as f64;
        let verdict = match share {
            share if share >= self.share => CaseVerdict::Agrees,
            share if share >= 0.5 => CaseVerdict::InPart,
            _ => CaseVerdict::Disagrees,
        };
        let said = |value: f64| metric.said(value);
        let range = |all: &Summary| format!("{} ({} to {})", said(all.median), said(all.least), said(all.most));
        let versus = match self.rule {
            AgreementRule::Narrows => format!("distance {}, then {}", range(&one), range(&two)),
            AgreementRule::AtMost => format!("{}, at most {} allowed", range(&one), said(self.beyond)),
            _ => format!("{} against {}", range(&one), range(&two)),
        };
        let what = if self.rule == AgreementRule::AtMost { "cases" } else { "pairs" };
        let figures = format!("{held} of {} {what}; {}: {versus}", pairs.len(), metric.text);
        let wrong = pairs.iter().filter(|pair| !pair.holds);
        let exceptions = wrong
            .take(EXCEPTIONS_MAX)
            .map(|pair| format!("{} ({} and {})", pair.place, said(pair.values.0), said(pair.values.1)))
            .collect();
        Judgement { verdict, figures, exceptions }
    }
}

struct CasePair {
    holds: bool,
    values: (f64, f64),
    place: String,
}

/// A place for people.
fn named(seen: &SeenRun<'_>) -> String {
    let place = seen.place.iter().map(|(axis, value)| format!("{axis} {value}"));
    place.chain([format!("run {}", seen.run)]).collect::<Vec<_>>().join(", ")
}

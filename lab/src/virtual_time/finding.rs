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
//! name, seed by seed, since cases of the same seed have the same packets. It holds for a pair as `rule` says, on the mean over
//! seeds; the finding is agreed with if it holds for `share` of all pairs at least, in part if for half of them, else not. A
//! pair is open if the 95 % interval over seeds (Student's) of how far it holds, or does not, has 0 in it. A verdict is open if
//! the open pairs could turn it.

use super::file::{CasePlace, StandIns};
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
    /// Of a claim that holds at so many of all places: at all of them, at half of them at least, or at fewer.
    pub fn of_places(held: usize, all: usize) -> CaseVerdict {
        match held {
            _ if all == 0 => CaseVerdict::NotMeasured,
            _ if held == all => CaseVerdict::Agrees,
            _ if 2 * held >= all => CaseVerdict::InPart,
            _ => CaseVerdict::Disagrees,
        }
    }

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
    /// Whether another verdict is within the intervals.
    pub is_open: bool,
    /// Our figures, for people.
    pub figures: String,
    /// The pairs for which it does not hold, some of them.
    pub exceptions: Vec<String>,
}

impl Judgement {
    fn not_measured(figures: &str) -> Judgement {
        let (figures, exceptions) = (figures.to_owned(), Vec::new());
        Judgement { verdict: CaseVerdict::NotMeasured, is_open: false, figures, exceptions }
    }

    /// The verdict in words, and whether it is open.
    pub fn said(&self) -> String {
        format!("{}{}", self.verdict.text(), if self.is_open { ", open" } else { "" })
    }
}

/// A run at a place, as findings see it.
#[derive(Clone, Debug)]
pub struct SeenRun<'a> {
    /// Its place.
    pub place: &'a CasePlace,
    /// 1 or 2.
    pub run: u8,
    /// The outcome with each seed, the first seed first; there is one at least.
    pub outcomes: Vec<(u64, &'a Outcome)>,
}

impl<'a> SeenRun<'a> {
    /// Its value on an axis.
    pub fn on(&self, axis: &str) -> Option<&'a str> {
        if axis == "run" {
            return Some(if self.run == 1 { "1" } else { "2" });
        }
        self.place.iter().find(|(name, _)| name == axis).map(|(_, value)| value.as_str())
    }

    /// The outcome with the first seed.
    pub fn first(&self) -> Option<&'a Outcome> {
        self.outcomes.first().map(|(_, outcome)| *outcome)
    }

    /// Of all seeds; `None` if there is none.
    pub fn summary(&self, of: impl Fn(&Outcome) -> f64) -> Option<Summary> {
        Summary::of(&self.outcomes.iter().map(|(_, outcome)| of(outcome)).collect::<Vec<_>>())
    }

    /// The outcomes of those seeds that both have.
    pub fn beside<'b>(&'b self, other: &'b SeenRun<'a>) -> impl Iterator<Item = (&'a Outcome, &'a Outcome)> + 'b {
        let in_other = |seed: u64| other.outcomes.iter().find(|(of, _)| *of == seed).map(|(_, outcome)| *outcome);
        self.outcomes.iter().filter_map(move |(seed, outcome)| Some((*outcome, in_other(*seed)?)))
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

    /// The finding about what stands in for the values that it names; `None` if it names none of them.
    pub fn instead(&self, by: &StandIns) -> Option<CaseFinding> {
        let is_stand_in = |value: &String| by.values.values().any(|stands_in| stands_in == value);
        if self.places().any(|(axis, values)| *axis == by.axis && values.iter().any(is_stand_in)) {
            // It is about the stand-ins already.
            return None;
        }
        let mut other = self.clone();
        let mut is_other = false;
        for place in [&mut other.more, &mut other.than, &mut other.at] {
            for value in place.get_mut(&by.axis).into_iter().flatten() {
                if let Some(stands_in) = by.values.get(value) {
                    value.clone_from(stands_in);
                    is_other = true;
                }
            }
        }
        is_other.then_some(other)
    }

    /// Judges it by all runs of its experiment; `axes` are the experiment's.
    pub fn judge(&self, seen: &[SeenRun<'_>], axes: &[(String, Vec<String>)]) -> Judgement {
        let Some(metric) = metric(&self.metric) else { return Judgement::not_measured("") };
        let of = metric.of;
        let first: Vec<&SeenRun<'_>> =
            seen.iter().filter(|seen| seen.is_at(&self.at) && seen.is_at(&self.more)).collect();
        let mut pairs: Vec<CasePair> = Vec::new();
        if self.rule == AgreementRule::AtMost {
            for one in first {
                let values = one.outcomes.iter().map(|(_, outcome)| (of(outcome), self.beyond));
                pairs.extend(self.pair(values.collect(), one));
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
        if self.rule == AgreementRule::Narrows {
            pairs = self.narrowed(&first, &second, &bound, axes, of);
            return self.summed(metric, &pairs);
        }
        for one in &first {
            for two in second.iter().filter(|two| bound.iter().all(|axis| one.on(axis) == two.on(axis))) {
                let values = one.beside(two).map(|(one, two)| (of(one), of(two)));
                pairs.extend(self.pair(values.collect(), one));
            }
        }
        self.summed(metric, &pairs)
    }

    /// By how much it holds for two values; it does not hold below 0, and by some rules not at 0.
    fn margin(&self, one: f64, two: f64) -> f64 {
        match self.rule {
            AgreementRule::More => one - two * (1.0 + self.by) - self.beyond,
            AgreementRule::NoLess => one - two * (1.0 - self.by) + self.beyond,
            AgreementRule::Alike => self.by * one.max(two) + self.beyond - (one - two).abs(),
            AgreementRule::AtMost => two - one,
            AgreementRule::Narrows => one * (1.0 - self.by) - self.beyond - two,
        }
    }

    /// The values of both with each seed; `None` if there is no seed that both have.
    fn pair(&self, values: Vec<(f64, f64)>, place: &SeenRun<'_>) -> Option<CasePair> {
        let margins: Vec<f64> = values.iter().map(|(one, two)| self.margin(*one, *two)).collect();
        let (ones, twos): (Vec<f64>, Vec<f64>) = values.into_iter().unzip();
        let (one, two, margin) = (Summary::of(&ones)?, Summary::of(&twos)?, Summary::of(&margins)?);
        let is_strict = matches!(self.rule, AgreementRule::More | AgreementRule::Narrows);
        let holds = if is_strict { margin.mean > 0.0 } else { margin.mean >= 0.0 };
        let is_open = margin.half_width.is_some_and(|half| half > 0.0 && margin.mean.abs() <= half);
        Some(CasePair { holds, is_open, one, two, place: named(place) })
    }

    /// For each place but for the axis along which it narrows: the distances at both ends.
    fn narrowed<'a>(
        &self,
        first: &[&SeenRun<'a>],
        second: &[&SeenRun<'a>],
        bound: &[&str],
        axes: &[(String, Vec<String>)],
        of: impl Fn(&Outcome) -> f64,
    ) -> Vec<CasePair> {
        let Some((_, values)) = axes.iter().find(|(name, _)| *name == self.along) else { return Vec::new() };
        let (Some(begin), Some(end)) = (values.first(), values.last()) else { return Vec::new() };
        let rest: Vec<&str> = bound.iter().copied().filter(|axis| *axis != self.along).collect();
        let same = |a: &SeenRun<'_>, b: &SeenRun<'_>| rest.iter().all(|axis| a.on(axis) == b.on(axis));
        let distances = |like: &SeenRun<'_>, value: &str| -> Option<Vec<f64>> {
            let is_it = |seen: &&&SeenRun<'a>| same(seen, like) && seen.on(&self.along) == Some(value);
            let (one, two) = (first.iter().find(is_it)?, second.iter().find(is_it)?);
            Some(one.beside(two).map(|(one, two)| (of(one) - of(two)).abs()).collect())
        };
        let begins = first.iter().filter(|seen| seen.on(&self.along) == Some(begin));
        let pair = |seen: &&&SeenRun<'_>| {
            let (wide, narrow) = (distances(seen, begin)?, distances(seen, end)?);
            self.pair(wide.into_iter().zip(narrow).collect(), seen)
        };
        begins.filter_map(|seen| pair(&seen)).collect()
    }

    /// The verdict if it holds for so many pairs.
    fn verdict(&self, held: usize, pairs: usize) -> CaseVerdict {
        match held as f64 / pairs.max(1) as f64 {
            share if share >= self.share => CaseVerdict::Agrees,
            share if share >= 0.5 => CaseVerdict::InPart,
            _ => CaseVerdict::Disagrees,
        }
    }

    fn summed(&self, metric: &OutcomeMetric, pairs: &[CasePair]) -> Judgement {
        let range = |of: fn(&CasePair) -> &Summary| -> Option<String> {
            let all = Summary::of(&pairs.iter().map(|pair| of(pair).mean).collect::<Vec<_>>())?;
            let widths: Vec<f64> = pairs.iter().filter_map(|pair| of(pair).half_width).collect();
            let width = Summary::of(&widths).map_or(String::new(), |all| format!(" ±{}", metric.said(all.median)));
            let said = |value: f64| metric.said(value);
            Some(format!("{}{width} ({} to {})", said(all.median), said(all.least), said(all.most)))
        };
        let (Some(one), Some(two)) = (range(|pair| &pair.one), range(|pair| &pair.two)) else {
            return Judgement::not_measured("nothing to compare");
        };
        let count = |is: fn(&CasePair) -> bool| pairs.iter().filter(|pair| is(pair)).count();
        let held = count(|pair| pair.holds);
        let open = count(|pair| pair.is_open);
        let verdict = self.verdict(held, pairs.len());
        let least = self.verdict(count(|pair| pair.holds && !pair.is_open), pairs.len());
        let most = self.verdict(count(|pair| pair.holds || pair.is_open), pairs.len());
        let versus = match self.rule {
            AgreementRule::Narrows => format!("distance {one}, then {two}"),
            AgreementRule::AtMost => format!("{one}, at most {} allowed", metric.said(self.beyond)),
            _ => format!("{one} against {two}"),
        };
        let what = if self.rule == AgreementRule::AtMost { "cases" } else { "pairs" };
        let left_open = if open > 0 { format!(", {open} open") } else { String::new() };
        let figures = format!("{held} of {} {what}{left_open}; {}: {versus}", pairs.len(), metric.text);
        let wrong = pairs.iter().filter(|pair| !pair.holds);
        let exceptions = wrong
            .take(EXCEPTIONS_MAX)
            .map(|pair| format!("{} ({} and {})", pair.place, metric.said(pair.one.mean), metric.said(pair.two.mean)))
            .collect();
        Judgement { verdict, is_open: least != verdict || most != verdict, figures, exceptions }
    }
}

/// Two places that are compared, over all seeds.
struct CasePair {
    holds: bool,
    is_open: bool,
    one: Summary,
    two: Summary,
    place: String,
}

/// A place for people.
fn named(seen: &SeenRun<'_>) -> String {
    let place = seen.place.iter().map(|(axis, value)| format!("{axis} {value}"));
    place.chain([format!("run {}", seen.run)]).collect::<Vec<_>>().join(", ")
}

//! A finding, and the rule that says whether it is so here. Nothing is decided by hand.
//!
//! ```toml
//! [[finding]]
//! id = "laconic-150-gbit"       # of docs/evidence/findings.toml, which has the statement and its source
//! metric = "goodput"
//! at = { nic = ["bluefield-2"], ports = ["2"], cores = ["7"], size = ["16 MB"], offload = ["1 MB"] }
//! over = { cores = ["1"] }      # optional: divided by what is so at the same place but for these axes
//! rule = "at-least"             # or at-most, near
//! value = 150
//! by = 0.05                     # how far it may be off, as a part of the value
//! ```
//!
//! The rule is asked of each place and each seed; the finding is agreed with if it holds for `share` of them at least, in part
//! if for half, else not.

use super::case::{CardBench, LaconicCase, bytes};
use super::outcome::{CardOutcome, metric};
use crate::statistics::Summary;
use crate::virtual_time::finding::CaseVerdict;
use anyhow::{Context, Result, ensure};
use hairpin_sim::http_testbed::wire_factor;
use serde::Deserialize;
use std::collections::BTreeMap;

/// Values by axis, any of which will do.
pub type Place = BTreeMap<String, Vec<String>>;

/// The paper's table 1, nginx on one x86 core: size of responses, Gbit/s.
pub const NGINX: [(&str, f64); 2] = [("1 KB", 0.31), ("1 MB", 10.84)];

/// When a value agrees with the paper's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CardRule {
    /// It is not below the value, less `by` of it.
    AtLeast,
    /// It is not above the value and `by` of it.
    AtMost,
    /// It is no further from the value than `by` of it.
    Near,
}

/// A finding.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CardFinding {
    /// Its id in `docs/evidence/findings.toml`.
    pub id: String,
    /// The list's statement.
    #[serde(skip)]
    pub text: String,
    /// The list's source.
    #[serde(skip)]
    pub source: String,
    /// Which part of the statement this is about, if it has several.
    #[serde(default)]
    pub part: String,
    /// Whether it is judged with other values of what was guessed, too.
    #[serde(default)]
    pub main: bool,
    /// The metric, by name.
    pub metric: String,
    /// Where.
    pub at: Place,
    /// Divided by what is so there.
    #[serde(default)]
    pub over: Place,
    /// Divided by this.
    #[serde(default)]
    pub over_value: Option<f64>,
    /// Divided by what nginx on one x86 core has, from table 1: see [`nginx_latency`].
    #[serde(default)]
    pub over_nginx: bool,
    /// Divided by what is so at `over` times the cores, or by what the ports carry, if that is less.
    #[serde(default)]
    pub linear: bool,
    /// The rule.
    pub rule: CardRule,
    /// The paper's value.
    pub value: f64,
    /// See [`CardRule`].
    #[serde(default)]
    pub by: f64,
    /// The part of places and seeds for which it has to hold.
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

/// A verdict, and what it rests on.
#[derive(Clone, Debug, PartialEq)]
pub struct CardJudgement {
    /// Whether it is so.
    pub verdict: CaseVerdict,
    /// Our values, each place with its mean over seeds, the smallest and the largest.
    pub values: Vec<(String, Summary)>,
    /// What was busiest at the last of those places.
    pub limit: String,
}

/// A case and what came of it.
#[derive(Clone, Copy, Debug)]
pub struct SeenCase<'a> {
    /// The case.
    pub case: &'a LaconicCase,
    /// What came.
    pub outcome: &'a CardOutcome,
}

/// The mean latency of nginx on one x86 core at half load, in microseconds, from table 1: a core that shares its time among
/// requests takes twice as long for each at half load as alone (M/G/1, processor sharing), and alone as long as the
/// goodput says. `None`: the paper does not say what it is for this size.
pub fn nginx_latency(size: &str) -> Option<f64> {
    let (_, gbit_s) = NGINX.iter().find(|(known, _)| *known == size)?;
    Some(2.0 * f64::from(bytes(size).ok()?) * 8.0 / gbit_s / 1e3)
}

impl CardFinding {
    /// Whether it says something that can be judged.
    pub(super) fn check(&self) -> Result<()> {
        ensure!(metric(&self.metric).is_some(), "there is no metric `{}`", self.metric);
        ensure!((0.0..=1.0).contains(&self.share) && self.by >= 0.0, "share is a part, and by is not negative");
        let divisors = [!self.over.is_empty(), self.over_value.is_some(), self.over_nginx];
        ensure!(divisors.iter().filter(|one| **one).count() <= 1, "it is divided by one thing only");
        ensure!(!self.linear || !self.over.is_empty(), "`linear` goes with `over`");
        Ok(())
    }

    /// Takes text and source from the list.
    pub(super) fn look_up(&mut self) -> Result<()> {
        let listed = crate::findings::find(&self.id);
        let listed = listed.with_context(|| format!("docs/evidence/findings.toml has no finding {}", self.id))?;
        self.text.clone_from(&listed.statement);
        self.source = listed.source();
        Ok(())
    }

    /// Whether it is about a latency, which only some cases measure.
    pub(super) fn is_of_latency(&self) -> bool {
        matches!(self.metric.as_str(), "latency" | "p99")
    }

    /// Whether a case is needed to judge it: one at its places, or one that those are divided by.
    pub(super) fn needs(&self, case: &LaconicCase) -> bool {
        let mut moved = self.at.clone();
        moved.extend(self.over.clone());
        case.is_at(&self.at) || !self.over.is_empty() && case.is_at(&moved)
    }

    /// Judges it by what came of cases.
    pub fn judge(&self, seen: &[SeenCase<'_>], bench: &CardBench) -> CardJudgement {
        let mut places: Vec<(String, Vec<f64>)> = Vec::new();
        let (mut held, mut count, mut limit) = (0, 0, String::new());
        for one in seen.iter().filter(|one| one.case.is_at(&self.at)) {
            let Some(value) = self.value_of(one, seen, bench) else { continue };
            count += 1;
            held += usize::from(self.holds(value));
            limit = one.outcome.limit();
            let place = self.place_name(one.case);
            match places.iter_mut().find(|(other, _)| *other == place) {
                Some((_, values)) => values.push(value),
                None => places.push((place, vec![value])),
            }
        }
        let share = held as f64 / count.max(1) as f64;
        let verdict = match count {
            0 => CaseVerdict::NotMeasured,
            _ if share >= self.share => CaseVerdict::Agrees,
            _ if share >= 0.5 => CaseVerdict::InPart,
            _ => CaseVerdict::Disagrees,
        };
        let values = places.into_iter().filter_map(|(place, values)| Some((place, Summary::of(&values)?))).collect();
        CardJudgement { verdict, values, limit }
    }

    fn holds(&self, value: f64) -> bool {
        match self.rule {
            CardRule::AtLeast => value >= self.value * (1.0 - self.by),
            CardRule::AtMost => value <= self.value * (1.0 + self.by),
            CardRule::Near => (value - self.value).abs() <= self.value * self.by,
        }
    }

    fn value_of(&self, one: &SeenCase<'_>, seen: &[SeenCase<'_>], bench: &CardBench) -> Option<f64> {
        let of = metric(&self.metric)?.of;
        let value = of(one.outcome);
        if value <= 0.0 {
            return None;
        }
        if self.over_nginx {
            return nginx_latency(&one.case.size).map(|nginx| value / nginx);
        }
        if let Some(divisor) = self.over_value {
            return Some(value / divisor);
        }
        if self.over.is_empty() {
            return Some(value);
        }
        let axes = ["nic", "ports", "cores", "size", "offload"];
        let is_other = |other: &&SeenCase<'_>| {
            let alike =
                axes.iter().all(|axis| self.over.contains_key(*axis) || other.case.on(axis) == one.case.on(axis));
            alike
                && other.case.is_at(&self.over)
                && other.case.seed == one.case.seed
                && other.case.vary == one.case.vary
        };
        let other = of(seen.iter().find(is_other)?.outcome);
        let divisor = if self.linear { self.expected(one.case, other, bench) } else { other };
        (divisor > 0.0).then(|| value / divisor)
    }

    /// So many times one core, or what the ports carry.
    fn expected(&self, case: &LaconicCase, one_core: f64, bench: &CardBench) -> f64 {
        let ports = bench.nic(&case.nic).map_or(f64::INFINITY, |nic| nic.ports.gbit_s * f64::from(case.ports));
        (one_core * f64::from(case.cores)).min(ports / wire_factor())
    }

    /// What tells a place from the others of the finding.
    fn place_name(&self, case: &LaconicCase) -> String {
        let axes = ["size", "cores", "offload", "nic", "ports"];
        let several = axes.iter().filter(|axis| self.at.get(**axis).is_some_and(|values| values.len() > 1));
        let named = several.map(|axis| match (*axis, case.on(axis).unwrap_or_default()) {
            ("cores", cores) => format!("{cores} cores"),
            (_, value) => value,
        });
        named.collect::<Vec<_>>().join(", ")
    }
}

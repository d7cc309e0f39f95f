//! The verdicts that there are, by what checks a finding.

use crate::classification::{ClassificationExperiment, ClassificationFinding, PacketResults, VerdictRow, read_rows};
use crate::findings::{Listed, all};
use crate::laconic::document::wanted;
use crate::laconic::finding::{CardFinding, CardJudgement};
use crate::laconic::{CardBench, CardStore, CardsPage};
use crate::measured::{self, FigureResults, MeasuredFinding};
use crate::records::kept_lines;
use crate::virtual_time::document::judgements;
use crate::virtual_time::finding::CaseVerdict;
use crate::virtual_time::{CaseContext, CaseStore, Gathered, ModelExperiment};
use anyhow::Result;
use std::path::{Path, PathBuf};

/// Part of KTH 2022's scale and seeds of the page; the whole scale stands beside.
const TENTH: (&str, f64, u32) = ("reproduction", 0.1, 5);
const WHOLE: (&str, f64, u32) = ("reproduction-full", 1.0, 1);
const TRACES: (&str, f64, u32) = ("traces", 0.1, 1);

/// The reason of what is not measured.
const NO_RESULTS: &str = "no results in `lab/results`";

/// Where everything is.
#[derive(Clone, Copy, Debug)]
pub struct EvidenceSources<'a> {
    /// The repository.
    pub root: &'a Path,
    /// Its results: `lab/results`, or another directory like it.
    pub results: &'a Path,
}

/// A verdict on a finding, by one of its checks.
#[derive(Clone, Debug, PartialEq)]
pub struct Check {
    /// The finding.
    pub id: String,
    /// What checks it, as in the list.
    pub by: String,
    /// Which part of the finding; empty: all of it.
    pub part: String,
    /// The verdict; `None`: no rule decides.
    pub verdict: Option<CaseVerdict>,
    /// The verdict in words, with that at another scale.
    pub said: String,
    /// Why, in a line.
    pub why: String,
}

impl Check {
    /// A check that has no results.
    pub(super) fn not_measured(id: &str, by: &str) -> Check {
        Check {
            id: id.to_owned(),
            by: by.to_owned(),
            part: String::new(),
            verdict: Some(CaseVerdict::NotMeasured),
            said: CaseVerdict::NotMeasured.text().to_owned(),
            why: NO_RESULTS.to_owned(),
        }
    }
}

/// The first sentence of a reason, or what stands in for it.
fn in_a_line(reason: &str, otherwise: &str) -> String {
    let words = reason.split_whitespace().collect::<Vec<_>>().join(" ");
    let first = words.split_inclusive(". ").next().unwrap_or_default().trim_end().trim_end_matches('.');
    if first.is_empty() { otherwise.to_owned() } else { first.to_owned() }
}

impl EvidenceSources<'_> {
    fn lab(&self, path: &str) -> PathBuf {
        self.root.join("lab").join(path)
    }

    /// Every verdict that there is, in no particular order.
    ///
    /// # Errors
    /// Experiments or results cannot be read.
    pub fn checks(&self) -> Result<Vec<Check>> {
        let mut checks = self.of_model("experiments", TENTH)?;
        for whole in self.of_model("experiments", WHOLE)? {
            let is_same = |check: &&mut Check| check.id == whole.id && check.by == whole.by;
            match checks.iter_mut().find(is_same) {
                Some(check) if check.said != whole.said => {
                    check.said = format!("{}; at full scale {}", check.said, whole.said);
                }
                _ => {}
            }
        }
        let traces = self.of_model("experiments/traces", TRACES)?;
        checks.extend(traces);
        checks.extend(self.of_cards()?);
        checks.extend(self.of_methods()?);
        checks.extend(self.of_packets()?);
        checks.extend(self.of_figures("laconic", "l7-figures", measured::judge_laconic)?);
        checks.extend(self.of_figures("middleboxes", "middlebox-figures", measured::judge_middleboxes)?);
        Ok(checks)
    }

    /// KTH 2022's findings in virtual time.
    fn of_model(&self, experiments: &str, (name, scale, seeds): (&str, f64, u32)) -> Result<Vec<Check>> {
        let Some(lines) = kept_lines(&self.results.join(format!("{name}.jsonl.gz")))? else { return Ok(Vec::new()) };
        let store = CaseStore::of(&lines);
        let bench = CaseContext::load(scale, &self.lab("profiles"), None)?;
        let mut checks = Vec::new();
        for experiment in ModelExperiment::load_all(&self.lab(experiments))? {
            let experiment = experiment.repeated(seeds);
            let gathered = Gathered::new(&experiment, &bench, &store);
            for (finding, judgement, why) in judgements(&gathered).into_iter().filter(|(one, ..)| !one.id.is_empty()) {
                let reason = if judgement.verdict == CaseVerdict::Agrees { why.so } else { why.not_so };
                checks.push(Check {
                    id: finding.id.clone(),
                    by: experiment.name.clone(),
                    part: String::new(),
                    verdict: Some(judgement.verdict),
                    said: judgement.said(),
                    why: in_a_line(reason, &judgement.figures),
                });
            }
        }
        Ok(checks)
    }

    /// Laconic's findings on modelled cards.
    fn of_cards(&self) -> Result<Vec<Check>> {
        let Some(lines) = kept_lines(&self.results.join("laconic-cards.jsonl.gz"))? else { return Ok(Vec::new()) };
        let bench = CardBench::load(&self.lab("laconic/cards.toml"), &self.lab("profiles"))?;
        let store = CardStore::of(&lines);
        let page = CardsPage::new(&bench, &store);
        let check = |(finding, judgement): (&CardFinding, CardJudgement)| {
            let reason = if judgement.verdict == CaseVerdict::Agrees { &finding.why } else { &finding.why_not };
            let values: Vec<f64> = judgement.values.iter().map(|(_, summary)| summary.mean).collect();
            let least = values.iter().copied().reduce(f64::min).unwrap_or(0.0);
            let most = values.iter().copied().reduce(f64::max).unwrap_or(0.0);
            let ours = format!("{least:.2} to {most:.2}, the rule wants {}", wanted(finding));
            Check {
                id: finding.id.clone(),
                by: "laconic-cards".to_owned(),
                part: finding.part.clone(),
                verdict: Some(judgement.verdict),
                said: judgement.verdict.text().to_owned(),
                why: if judgement.values.is_empty() { NO_RESULTS.to_owned() } else { in_a_line(reason, &ours) },
            }
        };
        Ok(page.judgements().into_iter().map(check).collect())
    }

    /// KTH 2020's findings on modelled cores.
    fn of_methods(&self) -> Result<Vec<Check>> {
        let path = self.results.join("classification.csv");
        if !path.exists() {
            return Ok(Vec::new());
        }
        let experiment =
            ClassificationExperiment::load(&self.lab("classification.toml"), &self.lab("profiles/sharing"))?;
        let rows = read_rows(&path, &experiment)?;
        let check = |finding: &ClassificationFinding| {
            let came = experiment.judge(finding, &rows, 1.0);
            let reason = if came.verdict == CaseVerdict::Agrees { &finding.why } else { &finding.why_not };
            let held = came.claims.iter().filter(|claim| claim.holds).count();
            Check {
                id: finding.id.clone(),
                by: "classification".to_owned(),
                part: String::new(),
                verdict: Some(came.verdict),
                said: came.verdict.text().to_owned(),
                why: in_a_line(reason, &format!("{held} of {} comparisons", came.claims.len())),
            }
        };
        Ok(experiment.finding.iter().map(check).collect())
    }

    /// KTH 2020's findings on real packets.
    fn of_packets(&self) -> Result<Vec<Check>> {
        let kept = PacketResults::read(self.results)?;
        let listed =
            |text: &str| all().iter().find(|listed| text == format!("{} ({})", listed.statement, listed.source()));
        let check = |row: &VerdictRow| {
            let of = |verdict: &CaseVerdict| row.verdict == verdict.text();
            let verdicts = [CaseVerdict::Agrees, CaseVerdict::Disagrees, CaseVerdict::NotMeasured];
            Some(Check {
                id: listed(&row.text)?.id.clone(),
                by: "kth-2020".to_owned(),
                part: String::new(),
                verdict: verdicts.into_iter().find(of),
                said: row.verdict.clone(),
                why: row.figures.clone(),
            })
        };
        Ok(kept.verdicts.iter().filter_map(check).collect())
    }

    /// Findings on real packets that `hairpin-bench` has measured.
    fn of_figures(
        &self,
        directory: &str,
        by: &str,
        judge: fn(&FigureResults) -> Vec<MeasuredFinding>,
    ) -> Result<Vec<Check>> {
        let Some((results, context)) = measured::kept(&self.results.join(directory))? else { return Ok(Vec::new()) };
        let day = context.date.split(' ').next().unwrap_or_default().to_owned();
        let check = |finding: MeasuredFinding| Check {
            said: finding.verdict().to_owned(),
            verdict: finding.held.map(|(held, all)| CaseVerdict::of_places(held, all)),
            id: finding.id.to_owned(),
            by: by.to_owned(),
            part: String::new(),
            why: format!("{} ({day})", finding.why),
        };
        Ok(judge(&results).into_iter().map(check).collect())
    }
}

/// The page and the command of a check.
pub(super) fn place(by: &str) -> (&'static str, String) {
    match by {
        "classification" => ("classification.md", "make classification".to_owned()),
        "laconic-cards" => ("laconic-cards.md", "make reproduce-laconic".to_owned()),
        "l7-figures" => ("laconic.md", "make bench-laconic".to_owned()),
        "middlebox-figures" => ("middleboxes.md", "make middleboxes-keep".to_owned()),
        "traces" => ("traces.md", "make traces".to_owned()),
        "kth-2020" => ("classification.md", "make bench-classification".to_owned()),
        "kth-2022" => ("", "hairpin-lab run lab/scenarios/kth-2022.toml".to_owned()),
        name => ("reproduction.md", format!("hairpin-lab reproduce --scale 0.1 --seeds 5 --only {name}")),
    }
}

/// How a check checks, in words.
pub(super) fn kind(by: &str) -> &'static str {
    match by {
        "classification" => "modelled cores",
        "laconic-cards" => "modelled cards",
        "l7-figures" | "middlebox-figures" | "kth-2020" | "kth-2022" => "real packets",
        _ => "virtual time",
    }
}

/// All checks of a finding, in the list's order; those without results are not measured.
pub(super) fn of_finding(listed: &Listed, checks: &[Check]) -> Vec<Check> {
    let of = |by: &String| {
        let found: Vec<Check> =
            checks.iter().filter(|check| check.id == listed.id && check.by == *by).cloned().collect();
        if found.is_empty() { vec![Check::not_measured(&listed.id, by)] } else { found }
    };
    listed.by.iter().flat_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reason_is_cut_after_its_first_sentence() {
        assert_eq!(in_a_line("One is 1.5\ntimes two. Three.", "x"), "One is 1.5 times two");
        assert_eq!(in_a_line("One.", "x"), "One");
        assert_eq!(in_a_line(" \n", "x"), "x");
    }
}

//! Verdicts for each value of an axis: whether a finding depends on it.

use super::finding::CaseVerdict;
use super::results::Gathered;

/// An experiment's findings, judged for each value of an axis by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueVerdicts {
    /// The axis' values.
    pub values: Vec<String>,
    /// For each finding: its statement, and the verdict for each value, in words.
    pub rows: Vec<Vec<String>>,
}

impl ValueVerdicts {
    /// The verdicts of an experiment; `None`: it has no such axis, or no result.
    pub fn of(gathered: &Gathered<'_>, axis: &str) -> Option<ValueVerdicts> {
        let axes = &gathered.experiment.axes;
        let (_, values) = axes.iter().find(|(name, _)| name == axis)?;
        let seen = gathered.seen();
        if seen.is_empty() {
            return None;
        }
        let rows = gathered.experiment.findings.iter().map(|finding| {
            let verdicts = values.iter().map(|value| {
                let there: Vec<_> = seen.iter().filter(|seen| seen.on(axis) == Some(value)).cloned().collect();
                finding.judge(&there, axes).verdict.text().to_owned()
            });
            std::iter::once(finding.text.clone()).chain(verdicts).collect()
        });
        Some(ValueVerdicts { values: values.clone(), rows: rows.collect() })
    }

    /// How many findings have one verdict everywhere, and which have not, in sentences.
    pub fn sentences(&self) -> Vec<String> {
        let is_same = |row: &&Vec<String>| row.iter().skip(1).all(|verdict| Some(verdict) == row.get(1));
        let same = self.rows.iter().filter(is_same).count();
        let turned = self.rows.iter().filter(|row| {
            let has = |verdict: CaseVerdict| row.iter().skip(1).any(|text| text == verdict.text());
            has(CaseVerdict::Agrees) && has(CaseVerdict::Disagrees)
        });
        let turned: Vec<&str> = turned.filter_map(|row| row.first()).map(String::as_str).collect();
        let mut sentences = vec![format!("{same} of {} verdicts are the same for every trace.", self.rows.len())];
        if turned.is_empty() {
            sentences.push("No finding holds for one trace and fails for another.".to_owned());
        } else {
            sentences.push(format!("Findings that hold for one trace and fail for another: {}.", turned.join("; ")));
        }
        sentences
    }
}

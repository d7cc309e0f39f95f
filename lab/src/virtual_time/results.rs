//! All that came, by experiment.

use super::case::CaseContext;
use super::file::{Case, CasePlace, ModelExperiment};
use super::finding::SeenRun;
use super::outcome::Outcome;
use super::store::{CaseOutcome, CaseRecord, CaseStore};
use std::collections::HashMap;

/// An experiment and what came of its cases.
pub struct Gathered<'a> {
    /// The experiment.
    pub experiment: &'a ModelExperiment,
    /// Each case and its record, if there is one.
    pub cases: Vec<(&'a Case, Option<&'a CaseRecord>)>,
}

impl<'a> Gathered<'a> {
    /// The results of an experiment in a store, at the bench's scale and with its profiles.
    pub fn new(experiment: &'a ModelExperiment, bench: &CaseContext, store: &'a CaseStore) -> Gathered<'a> {
        let find =
            |case: &'a Case| (case, store.find(&case.name(), &bench.fingerprint(case), bench.recordings_of(case)));
        Gathered { experiment, cases: experiment.cases.iter().map(find).collect() }
    }

    /// Each run at each place that came, with all of its seeds.
    pub fn seen(&self) -> Vec<SeenRun<'a>> {
        self.runs(|outcome| outcome.bound.is_none())
    }

    /// The upper bounds that came, likewise.
    pub fn bounds(&self) -> Vec<SeenRun<'a>> {
        self.runs(|outcome| outcome.bound.is_some())
    }

    fn runs(&self, is_asked_for: impl Fn(&Outcome) -> bool) -> Vec<SeenRun<'a>> {
        let mut seen: Vec<SeenRun<'a>> = Vec::new();
        let mut found: HashMap<(&CasePlace, u8), usize> = HashMap::new();
        for (case, record) in &self.cases {
            let Some(CaseRecord { came: CaseOutcome::Runs(runs), .. }) = record else { continue };
            for (outcome, run) in runs.iter().zip(1..).filter(|(outcome, _)| is_asked_for(outcome)) {
                let index = *found.entry((&case.place, run)).or_insert_with(|| {
                    seen.push(SeenRun { place: &case.place, run, outcomes: Vec::new() });
                    seen.len() - 1
                });
                seen[index].outcomes.push((case.settings.seed, outcome));
            }
        }
        seen
    }

    /// The fewest and the most seeds that came of a place.
    pub fn seeds(&self) -> (usize, usize) {
        let counts = || self.runs(|_| true).into_iter().map(|seen| seen.outcomes.len());
        (counts().min().unwrap_or(0), counts().max().unwrap_or(0))
    }

    /// Each case that did not come, and why; of repetitions those that failed.
    pub fn failures(&self) -> Vec<(String, String)> {
        let failure = |(case, record): &(&Case, Option<&CaseRecord>)| match record.map(|record| &record.came) {
            Some(CaseOutcome::Runs(_)) => None,
            Some(CaseOutcome::Failed(reason)) => Some((case.name(), reason.clone())),
            None if case.repetition > 0 => None,
            None => Some((case.name(), "not performed".to_owned())),
        };
        self.cases.iter().filter_map(failure).collect()
    }

    /// Packets simulated, and seconds of processor time they took; of records that do not say it, all the time.
    pub fn effort(&self) -> (u64, f64) {
        let records = || self.cases.iter().filter_map(|(_, record)| *record);
        let outcomes = |record: &'a CaseRecord| match &record.came {
            CaseOutcome::Runs(runs) => runs.as_slice(),
            CaseOutcome::Failed(_) => &[],
        };
        let packets = records().flat_map(outcomes).map(|outcome| outcome.simulated).sum();
        (packets, records().map(|record| record.worked.unwrap_or(record.took)).sum())
    }
}

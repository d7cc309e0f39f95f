//! All that came, by experiment.

use super::case::CaseContext;
use super::file::{Case, ModelExperiment};
use super::finding::SeenRun;
use super::store::{CaseOutcome, CaseRecord, CaseStore};

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

    /// Each run of each case that came.
    pub fn seen(&self) -> Vec<SeenRun<'a>> {
        let mut seen = Vec::new();
        for (case, record) in &self.cases {
            let Some(CaseRecord { came: CaseOutcome::Runs(runs), .. }) = record else { continue };
            let numbered = runs.iter().zip(1..);
            seen.extend(numbered.map(|(outcome, run)| SeenRun { place: &case.place, run, outcome }));
        }
        seen
    }

    /// Each case that did not come, and why.
    pub fn failures(&self) -> Vec<(String, String)> {
        let failure = |(case, record): &(&Case, Option<&CaseRecord>)| match record.map(|record| &record.came) {
            Some(CaseOutcome::Runs(_)) => None,
            Some(CaseOutcome::Failed(reason)) => Some((case.name(), reason.clone())),
            None => Some((case.name(), "not performed".to_owned())),
        };
        self.cases.iter().filter_map(failure).collect()
    }

    /// Packets simulated, and seconds of processor time they took; of records that do not say it, all the time.
    pub fn effort(&self) -> (u64, f64) {
        let records = || self.cases.iter().filter_map(|(_, record)| *record);
        let packets = self.seen().iter().map(|seen| seen.outcome.simulated).sum();
        (packets, records().map(|record| record.worked.unwrap_or(record.took)).sum())
    }
}

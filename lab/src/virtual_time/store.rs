//! What is kept of a case.

use super::outcome::Outcome;
use crate::records::{Provenance, RecordStore, StoredRecord};
use serde::{Deserialize, Serialize};

/// The outcome of a case.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CaseRecord {
    /// The case's name.
    pub name: String,
    /// All that it depends on but for the recordings: its settings, the scale, the profiles' numbers.
    pub fingerprint: String,
    /// Seconds of this machine's time, from its beginning to its end.
    pub took: f64,
    /// Seconds of processor time in these: others may be busy beside it. `None` in records of an earlier program.
    #[serde(default)]
    pub worked: Option<f64>,
    /// The machine and date of the simulation. `None` in records of an earlier program.
    #[serde(default)]
    pub made: Option<Provenance>,
    /// The recordings that were at hand, if there were any.
    #[serde(default)]
    pub recordings: Option<Recordings>,
    /// Each run, or why there is none.
    pub came: CaseOutcome,
}

/// Recordings that cases replay, as far as results depend on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recordings {
    /// Recordings.
    pub units: usize,
    /// Packets of all of them.
    pub packets: u64,
    /// Flows of all of them, of one direction each.
    pub flows: u64,
}

/// The outcome.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CaseOutcome {
    /// Each run.
    Runs(Vec<Outcome>),
    /// Why there is none.
    Failed(String),
}

impl StoredRecord for CaseRecord {
    const FILE: &'static str = "cases.jsonl";

    fn name(&self) -> &str {
        &self.name
    }

    fn fingerprint(&self) -> &str {
        &self.fingerprint
    }
}

/// All records there are.
pub type CaseStore = RecordStore<CaseRecord>;

impl CaseStore {
    /// The outcome of the case of this name, if it was the same case with the same recordings: the last one counts. Without
    /// recordings at hand any will do, so that a page can be written where there are none.
    pub fn find(&self, name: &str, fingerprint: &str, recordings: Option<Recordings>) -> Option<&CaseRecord> {
        self.of_case(name, fingerprint).find(|record| recordings.is_none() || record.recordings == recordings)
    }
}

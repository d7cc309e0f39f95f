//! What is kept of a case.

use super::outcome::CardOutcome;
use crate::records::{Provenance, RecordStore, StoredRecord};
use serde::{Deserialize, Serialize};

/// The outcome of a case.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CardRecord {
    /// The case's name.
    pub name: String,
    /// All that it depends on: see [`super::CardBench::fingerprint`].
    pub fingerprint: String,
    /// Seconds of processor time.
    pub worked: f64,
    /// The machine and date.
    pub made: Provenance,
    /// What came, or why nothing did.
    pub came: Result<CardOutcome, String>,
}

impl StoredRecord for CardRecord {
    const FILE: &'static str = "laconic.jsonl";

    fn name(&self) -> &str {
        &self.name
    }

    fn fingerprint(&self) -> &str {
        &self.fingerprint
    }
}

/// All records there are.
pub type CardStore = RecordStore<CardRecord>;

impl CardStore {
    /// The last record of a case, if it was the same case.
    pub fn find(&self, name: &str, fingerprint: &str) -> Option<&CardRecord> {
        self.of_case(name, fingerprint).next()
    }
}

//! The results so far, on disk: a line of JSON for each case, as those of `hairpin-lab reproduce`.

use super::outcome::CardOutcome;
pub use crate::virtual_time::Provenance;
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;

/// The file's name.
pub const FILE: &str = "laconic.jsonl";

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

/// All records there are.
pub struct CardStore {
    file: Option<File>,
    records: Vec<CardRecord>,
}

impl CardStore {
    /// Opens the store of a directory, which is made if it is not there. A line that was cut off is skipped.
    ///
    /// # Errors
    /// It cannot be read or written.
    pub fn open(directory: &Path) -> Result<CardStore> {
        std::fs::create_dir_all(directory).with_context(|| format!("could not make {}", directory.display()))?;
        let path = directory.join(FILE);
        let named = || format!("results in {}", path.display());
        let text = match std::fs::read(&path) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error).with_context(named),
        };
        let mut file = OpenOptions::new().create(true).append(true).open(&path).with_context(named)?;
        if !text.is_empty() && !text.ends_with('\n') {
            file.write_all(b"\n").with_context(named)?;
        }
        Ok(CardStore { file: Some(file), ..CardStore::of(&text) })
    }

    /// The records in a text, that are kept nowhere.
    pub fn of(text: &str) -> CardStore {
        let records = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        CardStore { file: None, records }
    }

    /// The last record of a case, if it was the same case.
    pub fn find(&self, name: &str, fingerprint: &str) -> Option<&CardRecord> {
        self.records.iter().rev().find(|record| record.name == name && record.fingerprint == fingerprint)
    }

    /// Adds one.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn add(&mut self, record: CardRecord) -> Result<()> {
        if let Some(file) = &mut self.file {
            let mut line = serde_json::to_string(&record).context("a record")?;
            line.push('\n');
            file.write_all(line.as_bytes()).context("could not write a result")?;
        }
        self.records.push(record);
        Ok(())
    }
}

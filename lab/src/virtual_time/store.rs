//! What has come so far, on disk: a line of JSON for each case, written as soon as it is there.

use super::outcome::Outcome;
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;

/// The file's name.
pub const FILE: &str = "cases.jsonl";

/// What came of a case.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The case's name.
    pub name: String,
    /// All that it depends on: its settings, the scale, the profiles' texts.
    pub fingerprint: String,
    /// Seconds of this machine's time, from its beginning to its end.
    pub took: f64,
    /// Seconds of processor time in these: others may be busy beside it. `None` in records of an earlier program.
    #[serde(default)]
    pub worked: Option<f64>,
    /// Each run, or why there is none.
    pub came: Came,
}

/// What came.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Came {
    /// Each run.
    Runs(Vec<Outcome>),
    /// Why there is none.
    Failed(String),
}

/// All records there are.
pub struct Store {
    file: File,
    records: Vec<Record>,
}

impl Store {
    /// Opens the store of a directory, which is made if it is not there. A line that was cut off, as a killed run leaves
    /// one, is skipped.
    ///
    /// # Errors
    /// It cannot be read or written.
    pub fn open(directory: &Path) -> Result<Store> {
        std::fs::create_dir_all(directory).with_context(|| format!("could not make {}", directory.display()))?;
        let path = directory.join(FILE);
        let named = || format!("results in {}", path.display());
        let text = match std::fs::read(&path) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error).with_context(named),
        };
        let records: Vec<Record> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let mut file = OpenOptions::new().create(true).append(true).open(&path).with_context(named)?;
        if !text.is_empty() && !text.ends_with('\n') {
            file.write_all(b"\n").with_context(named)?;
        }
        Ok(Store { file, records })
    }

    /// What came of the case of this name, if it was the same case: the last one counts.
    pub fn find(&self, name: &str, fingerprint: &str) -> Option<&Record> {
        self.records.iter().rev().find(|record| record.name == name && record.fingerprint == fingerprint)
    }

    /// Adds one.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn add(&mut self, record: Record) -> Result<()> {
        let mut line = serde_json::to_string(&record).context("a record")?;
        line.push('\n');
        self.file.write_all(line.as_bytes()).context("could not write a result")?;
        self.records.push(record);
        Ok(())
    }
}

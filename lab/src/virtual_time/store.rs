//! The results so far, on disk: a line of JSON for each case, written as soon as it is there.

use super::outcome::Outcome;
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;

/// The file's name.
pub const FILE: &str = "cases.jsonl";

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

/// The machine and date of a simulation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Provenance {
    /// Processor, cores and kernel, in a line.
    pub machine: String,
    /// The day, as 2026-11-23.
    pub date: String,
    /// The program's version, and its commit where that is known.
    pub program: String,
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

/// All records there are.
pub struct CaseStore {
    file: File,
    records: Vec<CaseRecord>,
}

impl CaseStore {
    /// Opens the store of a directory, which is made if it is not there. A line that was cut off, as a killed run leaves
    /// one, is skipped.
    ///
    /// # Errors
    /// It cannot be read or written.
    pub fn open(directory: &Path) -> Result<CaseStore> {
        std::fs::create_dir_all(directory).with_context(|| format!("could not make {}", directory.display()))?;
        let path = directory.join(FILE);
        let named = || format!("results in {}", path.display());
        let text = match std::fs::read(&path) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error).with_context(named),
        };
        let records: Vec<CaseRecord> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let mut file = OpenOptions::new().create(true).append(true).open(&path).with_context(named)?;
        if !text.is_empty() && !text.ends_with('\n') {
            file.write_all(b"\n").with_context(named)?;
        }
        Ok(CaseStore { file, records })
    }

    /// The outcome of the case of this name, if it was the same case with the same recordings: the last one counts. Without
    /// recordings at hand any will do, so that a page can be written where there are none.
    pub fn find(&self, name: &str, fingerprint: &str, recordings: Option<Recordings>) -> Option<&CaseRecord> {
        let is_of = |record: &&CaseRecord| recordings.is_none() || record.recordings == recordings;
        let mut of_case = self.records.iter().rev().filter(|record| record.name == name);
        of_case.find(|record| record.fingerprint == fingerprint && is_of(record))
    }

    /// Adds one.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn add(&mut self, record: CaseRecord) -> Result<()> {
        let mut line = serde_json::to_string(&record).context("a record")?;
        line.push('\n');
        self.file.write_all(line.as_bytes()).context("could not write a result")?;
        self.records.push(record);
        Ok(())
    }
}

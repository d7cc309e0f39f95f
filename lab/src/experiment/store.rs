//! Results on disk: one line of JSON for each, written when it is there, so that a run that was killed goes on.
//!
//! The first line says of which machine they are. A line that was not finished is the last one and is cut off. What was
//! begun and never ended is remembered as well: what ends the whole program each time is not tried for ever.

use super::plan::{CellKind, MatrixCell};
use crate::rate::SearchOutcome;
use crate::testbed::{Measurement, TimeProfile};
use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;

/// The file's name in the directory of results.
pub const FILE: &str = "results.jsonl";
/// The form of the lines.
const FORMAT: u32 = 1;
/// How often something is begun before it counts as ending the program.
const BEGUN_MAX: u32 = 3;

/// The outcome.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum RecordOutcome {
    /// A measurement.
    Measured(Box<Measurement>),
    /// A search.
    Searched(SearchOutcome),
    /// A profile.
    Profiled(TimeProfile),
    /// Nothing, and why.
    Failed(String),
}

/// A result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResultRecord {
    /// [`Task::key`](super::Task::key).
    pub key: String,
    /// The cell that was measured.
    pub cell: MatrixCell,
    /// The cell.
    pub kind: CellKind,
    /// For which time, from 0.
    pub repetition: u32,
    /// When it ended, in seconds since 1970.
    pub at: u64,
    /// How long it took, in seconds, with all that is around the packets.
    pub took: f64,
    /// The outcome.
    pub came: RecordOutcome,
}

/// A line of the file.
#[derive(Debug, Serialize, Deserialize)]
enum StoreLine {
    Of { format: u32, machine: String },
    Begun { key: String },
    Ended(Box<ResultRecord>),
}

/// The results of a directory.
#[derive(Debug)]
pub struct ResultStore {
    file: File,
    records: Vec<ResultRecord>,
    by_key: BTreeMap<String, usize>,
    begun: BTreeMap<String, u32>,
}

impl ResultStore {
    /// Opens the results in `directory`, or begins them.
    ///
    /// # Errors
    /// When they are of another machine or form, or cannot be read or written.
    pub fn open(directory: &Path, machine: &str) -> Result<ResultStore> {
        let path = directory.join(FILE);
        let named = || format!("{}", path.display());
        std::fs::create_dir_all(directory).with_context(|| format!("could not make {}", directory.display()))?;
        let mut options = OpenOptions::new();
        let mut file = options.read(true).write(true).create(true).truncate(false).open(&path).with_context(named)?;
        let mut text = String::new();
        file.read_to_string(&mut text).with_context(named)?;
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        file.set_len(whole as u64).with_context(named)?;
        file.seek(SeekFrom::End(0)).with_context(named)?;
        let mut store = ResultStore { file, records: Vec::new(), by_key: BTreeMap::new(), begun: BTreeMap::new() };
        for (number, line) in text[..whole].lines().enumerate() {
            let line = serde_json::from_str(line);
            let line = line.with_context(|| format!("{}:{}: not a result", path.display(), number + 1))?;
            store.take(line, number, machine).with_context(named)?;
        }
        if whole == 0 {
            store.write(&StoreLine::Of { format: FORMAT, machine: machine.to_owned() })?;
        }
        Ok(store)
    }

    fn take(&mut self, line: StoreLine, number: usize, machine: &str) -> Result<()> {
        match line {
            StoreLine::Of { format, machine: of } => {
                ensure!(format == FORMAT, "results of form {format}; this program has form {FORMAT}");
                ensure!(of == machine, "results of another machine ({of}); this is {machine}");
            }
            _ if number == 0 => bail!("not results of an experiment"),
            StoreLine::Begun { key } => *self.begun.entry(key).or_default() += 1,
            StoreLine::Ended(record) => self.keep(*record),
        }
        Ok(())
    }

    fn keep(&mut self, record: ResultRecord) {
        self.begun.remove(&record.key);
        match self.by_key.get(&record.key) {
            Some(index) => self.records[*index] = record,
            None => {
                self.by_key.insert(record.key.clone(), self.records.len());
                self.records.push(record);
            }
        }
    }

    /// All results, each once.
    pub fn records(&self) -> &[ResultRecord] {
        &self.records
    }

    /// The result under a key.
    pub fn of(&self, key: &str) -> Option<&ResultRecord> {
        self.by_key.get(key).map(|index| &self.records[*index])
    }

    /// Whether nothing is left to do about a key. What has failed is tried again.
    pub fn is_done(&self, key: &str) -> bool {
        self.of(key).is_some_and(|record| !matches!(record.came, RecordOutcome::Failed(_)))
    }

    /// Whether this was begun so often, and has never ended, that it must be what ends the program.
    pub fn ends_the_program(&self, key: &str) -> bool {
        self.begun.get(key).is_some_and(|times| *times >= BEGUN_MAX)
    }

    /// Says that something is begun.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn begin(&mut self, key: &str) -> Result<()> {
        *self.begun.entry(key.to_owned()).or_default() += 1;
        self.write(&StoreLine::Begun { key: key.to_owned() })
    }

    /// Adds a result.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn add(&mut self, record: ResultRecord) -> Result<()> {
        self.write(&StoreLine::Ended(Box::new(record.clone())))?;
        self.keep(record);
        Ok(())
    }

    fn write(&mut self, line: &StoreLine) -> Result<()> {
        let mut text = serde_json::to_string(line).context("a result")?;
        text.push('\n');
        // In one go: a line is there as a whole, or it is the last one and has no end.
        self.file.write_all(text.as_bytes()).context("could not write results")
    }
}

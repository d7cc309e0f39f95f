//! The results of cases, on disk: a line of JSON for each, written as soon as it is there, so that a run that was killed goes on.
//! Kept results are the same lines, compressed: `lab/results/*.jsonl.gz`.

use anyhow::{Context, Result};
use flate2::{Compression, GzBuilder, read::MultiGzDecoder};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::path::Path;

/// Bytes of a file of kept results at most, when it is not compressed.
const KEPT_BYTES_MAX: u64 = 1 << 30;

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

/// What a store keeps of a case.
pub trait StoredRecord: Serialize + DeserializeOwned {
    /// The file's name in a directory of results.
    const FILE: &'static str;

    /// The case's name.
    fn name(&self) -> &str;

    /// All that the outcome depends on.
    fn fingerprint(&self) -> &str;
}

/// All records there are.
pub struct RecordStore<R> {
    /// `None`: what is added is kept nowhere.
    file: Option<File>,
    records: Vec<R>,
}

impl<R: StoredRecord> RecordStore<R> {
    /// Opens the store of a directory, which is made if it is not there. A line that was cut off, as a killed run leaves
    /// one, is skipped.
    ///
    /// # Errors
    /// It cannot be read or written.
    pub fn open(directory: &Path) -> Result<RecordStore<R>> {
        std::fs::create_dir_all(directory).with_context(|| format!("could not make {}", directory.display()))?;
        let path = directory.join(R::FILE);
        let named = || format!("results in {}", path.display());
        let text = match std::fs::read(&path) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error).with_context(named),
        };
        let mut file = OpenOptions::new().create(true).append(true).open(&path).with_context(named)?;
        if !text.is_empty() && !text.ends_with('\n') {
            file.write_all(b"\n").with_context(named)?;
        }
        Ok(RecordStore { file: Some(file), ..RecordStore::of(&text) })
    }

    /// The records in a text. What is added is kept nowhere.
    pub fn of(text: &str) -> RecordStore<R> {
        let records = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        RecordStore { file: None, records }
    }

    /// The records of a case of this name, if it was the same case, the last one first.
    pub fn of_case<'a>(&'a self, name: &str, fingerprint: &str) -> impl Iterator<Item = &'a R> {
        let is_it = move |record: &&R| record.name() == name && record.fingerprint() == fingerprint;
        self.records.iter().rev().filter(is_it)
    }

    /// Adds one.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn add(&mut self, record: R) -> Result<()> {
        if let Some(file) = &mut self.file {
            let mut line = serde_json::to_string(&record).context("a record")?;
            line.push('\n');
            file.write_all(line.as_bytes()).context("could not write a result")?;
        }
        self.records.push(record);
        Ok(())
    }
}

/// The lines of kept results, decompressed; `None`: there is no such file.
///
/// # Errors
/// It cannot be read, or is larger than 1 GiB.
pub fn kept_lines(path: &Path) -> Result<Option<String>> {
    let named = || format!("kept results in {}", path.display());
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(named),
    };
    let mut text = String::new();
    let mut lines = MultiGzDecoder::new(file).take(KEPT_BYTES_MAX + 1);
    let length = lines.read_to_string(&mut text).with_context(named)?;
    anyhow::ensure!(length as u64 <= KEPT_BYTES_MAX, "{}: more than {KEPT_BYTES_MAX} bytes", named());
    Ok(Some(text))
}

/// Keeps lines, compressed, in a file that holds no time and no name: the same lines are the same bytes.
///
/// # Errors
/// It cannot be written.
pub fn keep_lines(path: &Path, lines: &str) -> Result<()> {
    let mut compressed = GzBuilder::new().write(Vec::new(), Compression::best());
    compressed.write_all(lines.as_bytes()).context("compression")?;
    crate::report::replace(path, &compressed.finish().context("compression")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct TestRecord {
        name: String,
        fingerprint: String,
        came: u32,
    }

    impl StoredRecord for TestRecord {
        const FILE: &'static str = "test.jsonl";

        fn name(&self) -> &str {
            &self.name
        }

        fn fingerprint(&self) -> &str {
            &self.fingerprint
        }
    }

    fn record(name: &str, came: u32) -> TestRecord {
        TestRecord { name: name.to_owned(), fingerprint: "1".to_owned(), came }
    }

    #[test]
    fn killed_run_leaves_all_but_the_last_line() {
        let directory = std::env::temp_dir().join(format!("hairpin-records-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        let mut store = RecordStore::open(&directory).unwrap();
        store.add(record("a", 1)).unwrap();
        store.add(record("a", 2)).unwrap();
        drop(store);
        let path = directory.join(TestRecord::FILE);
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, format!("{text}{{\"name\":\"c\",\"finger")).unwrap();
        let mut store: RecordStore<TestRecord> = RecordStore::open(&directory).unwrap();
        store.add(record("d", 3)).unwrap();
        let store: RecordStore<TestRecord> = RecordStore::open(&directory).unwrap();
        let came = |name, fingerprint| store.of_case(name, fingerprint).map(|record| record.came).collect::<Vec<_>>();
        assert_eq!(came("a", "1"), [2, 1], "the last one first");
        assert_eq!((came("a", "2"), came("c", "1")), (vec![], vec![]), "another case, and none");
        assert_eq!(came("d", "1"), [3], "what was written after the line cut off");
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn kept_lines_are_read_back() {
        let path = std::env::temp_dir().join(format!("hairpin-kept-{}.jsonl.gz", std::process::id()));
        assert_eq!(kept_lines(&path).unwrap(), None);
        keep_lines(&path, "{}\n[]\n").unwrap();
        let first = std::fs::read(&path).unwrap();
        assert_eq!(kept_lines(&path).unwrap().as_deref(), Some("{}\n[]\n"));
        keep_lines(&path, "{}\n[]\n").unwrap();
        assert_eq!(first, std::fs::read(&path).unwrap());
        std::fs::write(&path, "no such thing").unwrap();
        assert!(kept_lines(&path).is_err());
        std::fs::remove_file(&path).unwrap();
    }
}

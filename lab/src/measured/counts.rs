//! Instructions that callgrind has counted: `make bench-instructions`.

use super::{FigureResults, INSTRUCTIONS, ResultPlace, SOFTWARE, VALUES};
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// The case of the worker that carries responses of so many bytes over kept connections.
fn kept_requests(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("HTTP {bytes} B IPv4 kept"),
        _ => format!("HTTP {} KB IPv4 kept", bytes >> 10),
    }
}

/// The counts that are kept: lab/bench/instructions.json.
const KEPT: &str = include_str!("../../bench/instructions.json");

/// Counts of a commit's worker, with the tools: instructions of a packet, a connection or a request, by case. Counts of two
/// compilers do not compare.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct InstructionCounts {
    /// The commit.
    pub commit: String,
    /// The compiler's version.
    pub rustc: String,
    /// Valgrind's version.
    pub valgrind: String,
    /// By case: `HTTP 1 KB IPv4 kept`, `nat IPv4 TCP established`, ...
    pub counts: BTreeMap<String, f64>,
}

impl InstructionCounts {
    /// Those that are kept.
    ///
    /// # Errors
    /// The file is no such file.
    pub fn kept() -> Result<InstructionCounts> {
        serde_json::from_str(KEPT).context("lab/bench/instructions.json")
    }

    /// Those of a file.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn read(path: &Path) -> Result<InstructionCounts> {
        let named = || format!("could not read {}", path.display());
        serde_json::from_slice(&std::fs::read(path).with_context(named)?).with_context(named)
    }

    /// Writes them to a file.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self).context("counts")? + "\n";
        std::fs::write(path, text).with_context(|| format!("could not write {}", path.display()))
    }

    /// The count of a case.
    pub fn of(&self, case: &str) -> Option<f64> {
        self.counts.get(case).copied()
    }

    /// Which worker was counted, with what.
    pub fn origin(&self) -> String {
        format!("commit {}, {}, {}", self.commit, self.rustc, self.valgrind)
    }
}

/// Instructions for a response, by series: of Hairpin's worker, and of processes beside it as KAIST 2018's page counts them.
#[derive(Clone, Debug, Default)]
pub struct ResponseCounts {
    /// The worker's.
    pub worker: InstructionCounts,
    processes: FigureResults,
}

impl ResponseCounts {
    /// The kept ones; `middleboxes` is the directory of that page's results, which may not be there.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn kept(middleboxes: &Path) -> Result<ResponseCounts> {
        let values = middleboxes.join(VALUES);
        let processes = if values.exists() { FigureResults::read_csv(&values)? } else { FigureResults::default() };
        ResponseCounts::of_processes(processes)
    }

    /// The kept ones of the worker, and these of processes beside it.
    ///
    /// # Errors
    /// The worker's cannot be read.
    pub fn of_processes(processes: FigureResults) -> Result<ResponseCounts> {
        Ok(ResponseCounts { worker: InstructionCounts::kept()?, processes })
    }

    /// Instructions for a response of so many bytes; `None`: they were not counted.
    pub fn of(&self, series: &str, bytes: u64) -> Option<f64> {
        if series == SOFTWARE {
            return self.worker.of(&kept_requests(bytes));
        }
        let place = ResultPlace { part: INSTRUCTIONS, setting: "", series, x: bytes };
        self.processes.median(place, "instructions_per_response")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_have_the_counts_that_they_name() {
        let kept = InstructionCounts::kept().unwrap();
        for case in [&kept_requests(1 << 10), "nat IPv4 TCP established", "nat IPv4 UDP established"] {
            assert!(kept.of(case).is_some_and(|count| count > 0.0), "{case}");
        }
    }
}

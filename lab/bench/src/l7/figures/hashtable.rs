//! The hash tables of Laconic, figure 11, beside ours: `hairpin-bench tables` in a process of its own.

use super::results::{Place, Results};
use anyhow::{Context, Result};
use hairpin_e2e::command;
use serde::Deserialize;
use std::path::Path;
use std::process::Command;

/// The part's name.
pub(super) const PART: &str = "hashtable";
/// The size that is measured.
const ENTRIES: &str = "1M";
/// What the figure of Laconic shows: insertions and look-ups. Names as in `tables.csv`.
pub(super) const CASES: [(&str, &str); 2] = [("hits", "look-ups (hits)"), ("inserts", "insertions")];

/// Who takes part, if this program has them.
fn methods() -> String {
    let mut methods = vec!["concurrent", "per-core/cuckoo++"];
    if cfg!(feature = "dpdk") {
        methods.extend(["rte-hash/lock-free", "rte-hash/multi-writer+rw-concurrency"]);
    }
    if cfg!(feature = "libcuckoo") {
        methods.push("libcuckoo");
    }
    methods.join(",")
}

/// A line of `tables.csv`.
#[derive(Debug, Deserialize)]
struct Line {
    series: String,
    method: String,
    case: String,
    threads: u64,
    repetition: usize,
    value: f64,
}

/// Measures, and takes over what figures show.
pub(super) fn measure(results: &mut Results, repetitions: usize, directory: &Path) -> Result<()> {
    let mut tables = Command::new(std::env::current_exe()?);
    tables.args(["tables", "--quick", "--entries", ENTRIES, "--repetitions", &repetitions.to_string()]);
    tables.args(["--only", &methods()]).arg("--out").arg(directory);
    command::output(&mut tables)?;
    let path = directory.join("tables/tables.csv");
    let mut reader = csv::Reader::from_path(&path).with_context(|| format!("could not read {}", path.display()))?;
    for line in reader.deserialize() {
        let line: Line = line.with_context(|| format!("in {}", path.display()))?;
        let Some((_, shown)) = CASES.iter().find(|(name, _)| *name == line.case) else { continue };
        if line.series == "size" {
            let place = Place { part: PART, setting: shown, series: &line.method, x: line.threads };
            results.add(place, line.repetition, &[("per_s", line.value)]);
        }
    }
    Ok(())
}

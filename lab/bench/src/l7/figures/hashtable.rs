//! The hash tables of Laconic, figure 11, beside ours: `hairpin-bench tables` in a process of its own.

pub(super) use super::results::HASHTABLE as PART;
use super::results::{FigureResults, ResultPlace};
use anyhow::{Context, Result, ensure};
use hairpin_e2e::command;
use serde::Deserialize;
use std::path::Path;
use std::process::Command;

/// The size that is measured.
const ENTRIES: &str = "1M";
/// The operations in Laconic's figure: insertions and look-ups. Names as in `tables.csv`.
pub(super) const CASES: [(&str, &str); 2] = [("hits", "look-ups (hits)"), ("inserts", "insertions")];

/// DPDK's tables that threads share: with lock-free readers, and with a lock.
pub(super) const RTE_HASH: [&str; 2] = ["rte-hash/lock-free", "rte-hash/multi-writer+rw-concurrency"];
/// Methods that the figure shows.
pub(super) const METHODS: [&str; 5] = ["per-core/cuckoo++", "concurrent", RTE_HASH[0], RTE_HASH[1], "libcuckoo"];

/// Methods of [`METHODS`] that this program does not have, for want of a library.
fn missing() -> impl Iterator<Item = &'static str> {
    let is_missing = |method: &&str| match *method {
        "libcuckoo" => !cfg!(feature = "libcuckoo"),
        method => method.starts_with("rte-hash") && !cfg!(feature = "dpdk"),
    };
    METHODS.into_iter().filter(is_missing)
}

/// A line of `tables.csv`.
#[derive(Debug, Deserialize)]
struct CsvLine {
    series: String,
    method: String,
    case: String,
    threads: u64,
    repetition: usize,
    value: f64,
}

/// Measures, and takes over what figures show.
///
/// # Errors
/// When it cannot be measured, or this program lacks a method that the figure shows; the others are measured all the same.
pub(super) fn measure(results: &mut FigureResults, repetitions: usize, directory: &Path) -> Result<()> {
    let lacks: Vec<&str> = missing().collect();
    let methods: Vec<&str> = METHODS.into_iter().filter(|method| !lacks.contains(method)).collect();
    let mut tables = Command::new(std::env::current_exe()?);
    tables.args(["tables", "--quick", "--entries", ENTRIES, "--repetitions", &repetitions.to_string()]);
    tables.args(["--only", &methods.join(",")]).arg("--out").arg(directory);
    command::output(&mut tables)?;
    let path = directory.join("tables/tables.csv");
    let mut reader = csv::Reader::from_path(&path).with_context(|| format!("could not read {}", path.display()))?;
    for line in reader.deserialize() {
        let line: CsvLine = line.with_context(|| format!("in {}", path.display()))?;
        let Some((_, shown)) = CASES.iter().find(|(name, _)| *name == line.case) else { continue };
        if line.series == "size" {
            let place = ResultPlace { part: PART, setting: shown, series: &line.method, x: line.threads };
            results.add(place, line.repetition, &[("per_s", line.value)]);
        }
    }
    ensure!(
        lacks.is_empty(),
        "this program has no {}; build it with --features dpdk,libcuckoo, as `make bench-laconic` does",
        lacks.join(", ")
    );
    Ok(())
}

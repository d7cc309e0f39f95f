//! Reports made of results: tables as CSV, figures as SVG and PNG, and one page that holds them all.
//!
//! In the directory of results: `results.csv` (a row for each measurement: the columns of KTH 2022, table 3.2, and more),
//! `time.csv` (the same over time), `latency.csv` (cumulative distributions), `summary.csv` (means with confidence
//! intervals), `search.csv`, `profile.csv`, `skipped.csv`, `figures/`, `index.html`. All are written anew each time from
//! [`PlanResults`].

mod machine;
pub(crate) mod page;
mod tables;

pub use machine::{Machine, machine};

use crate::experiment::PlanResults;
use crate::figure::{Raster, figures};
use anyhow::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};

/// The files written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrittenReport {
    /// The page.
    pub page: PathBuf,
    /// Figures.
    pub figures: usize,
}

/// Writes tables only.
///
/// # Errors
/// When a file cannot be written.
pub fn write_tables(results: &PlanResults<'_>, directory: &Path) -> Result<()> {
    for (name, table) in tables::all(results)? {
        replace(&directory.join(name), &table)?;
    }
    Ok(())
}

/// Writes tables, figures and the page.
///
/// # Errors
/// When a figure cannot be drawn or a file cannot be written.
pub fn write(results: &PlanResults<'_>, machine: &Machine, directory: &Path) -> Result<WrittenReport> {
    write_tables(results, directory)?;
    let (figures, more) = figures(results)?;
    let raster = Raster::new();
    let into = directory.join("figures");
    // Figures of another state of the file are not left beside those of this one.
    if into.exists() {
        fs::remove_dir_all(&into).with_context(|| format!("could not clear {}", into.display()))?;
    }
    fs::create_dir_all(&into).with_context(|| format!("could not make {}", into.display()))?;
    for figure in &figures {
        replace(&into.join(format!("{}.svg", figure.name)), figure.svg.as_bytes())?;
        replace(&into.join(format!("{}.png", figure.name)), &raster.png(&figure.svg)?)?;
    }
    let page = directory.join("index.html");
    replace(&page, page::page(results, machine, &figures, more, raster.has_fonts()).as_bytes())?;
    Ok(WrittenReport { page, figures: figures.len() })
}

/// Writes a file whole or not at all.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let named = || format!("could not write {}", path.display());
    fs::write(&beside, bytes).with_context(named)?;
    fs::rename(&beside, path).with_context(named)
}

#[cfg(test)]
mod tests;

//! Everything is written: tables, figures, the page of a run, the page in docs/evidence.

use super::document::{DocumentParts, OtherScale, document};
use super::drawing::figures;
use super::page::page;
use super::results::Gathered;
use super::sensitivity::Sensitivity;
use super::tables;
use crate::figure::{Figure, Raster};
use crate::report::replace;
use anyhow::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};

/// Under what circumstances the results came.
#[derive(Clone, Debug, Default)]
pub struct Circumstances {
    /// The scale.
    pub scale: f64,
    /// How it was asked for.
    pub command: String,
    /// Of this run, for people: machine, time, cases kept. Empty if nothing was simulated.
    pub run: String,
}

/// The files written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrittenPages {
    /// The page.
    pub page: PathBuf,
    /// Figures.
    pub figures: usize,
}

/// Writes `index.html`, and for each experiment a directory with `cases.csv`, `time.csv`, `figures/`.
/// A figure that cannot be drawn is left out, and named on the page.
///
/// # Errors
/// A file cannot be written.
pub fn write(gathered: &[Gathered<'_>], circumstances: &Circumstances, directory: &Path) -> Result<WrittenPages> {
    let raster = Raster::new();
    let mut drawn = Vec::new();
    let mut notes = Vec::new();
    for one in gathered {
        let name = &one.experiment.name;
        let into = directory.join(name);
        let figures_into = into.join("figures");
        // Figures of another state of the file are not left beside those of this one.
        if figures_into.exists() {
            fs::remove_dir_all(&figures_into).with_context(|| format!("could not clear {}", figures_into.display()))?;
        }
        make(&figures_into)?;
        replace(&into.join("cases.csv"), &tables::cases(one)?)?;
        replace(&into.join("time.csv"), &tables::over_time(one)?)?;
        let (figures, more) = figures(one, false).unwrap_or_else(|error| {
            notes.push(format!("{name}: figures could not be drawn: {error:#}"));
            (Vec::new(), 0)
        });
        if more > 0 {
            notes.push(format!("{name}: {more} more figures are left out"));
        }
        for figure in &figures {
            write_figure(figure, &raster, &figures_into, &mut notes)?;
        }
        drawn.push(figures);
    }
    if !raster.has_fonts() {
        notes.push("This machine has no fonts: the PNG files have no text (the SVG files do).".to_owned());
    }
    let path = directory.join("index.html");
    replace(&path, page(gathered, &drawn, circumstances, &notes).as_bytes())?;
    Ok(WrittenPages { page: path, figures: drawn.iter().map(Vec::len).sum() })
}

fn make(directory: &Path) -> Result<()> {
    fs::create_dir_all(directory).with_context(|| format!("could not make {}", directory.display()))
}

fn write_figure(figure: &Figure, raster: &Raster, into: &Path, notes: &mut Vec<String>) -> Result<()> {
    replace(&into.join(format!("{}.svg", figure.name)), figure.svg.as_bytes())?;
    match raster.png(&figure.svg) {
        Ok(png) => replace(&into.join(format!("{}.png", figure.name)), &png),
        Err(error) => {
            notes.push(format!("{}: no PNG: {error:#}", figure.name));
            Ok(())
        }
    }
}

/// Writes the page in docs/evidence, beside another scale and with what verdicts hang on if these are there, with its figures (`figures/` beside it), and tables of all runs into `tables`, if given.
///
/// # Errors
/// A figure cannot be drawn, or a file cannot be written.
pub fn write_evidence(
    gathered: &[Gathered<'_>],
    (beside, sensitivity): (Option<OtherScale<'_>>, Option<&Sensitivity>),
    circumstances: &Circumstances,
    file: &Path,
    tables: Option<&Path>,
) -> Result<()> {
    let stem = file.file_stem().context("the page needs a file name")?.to_string_lossy().into_owned();
    let into = file.parent().unwrap_or(Path::new("")).join("figures");
    make(&into)?;
    let prefix = format!("{stem}-");
    for one in gathered {
        forget(&into, &format!("{prefix}{}-", one.experiment.name))?;
    }
    let drawn: Vec<Vec<Figure>> =
        gathered.iter().map(|one| Ok(figures(one, true)?.0)).collect::<Result<_>>().context("figures of the page")?;
    for figure in drawn.iter().flatten() {
        replace(&into.join(format!("{prefix}{}.svg", figure.name)), figure.svg.as_bytes())?;
    }
    if let Some(directory) = tables {
        make(directory)?;
        for one in gathered {
            if let Some(table) = tables::page(one)? {
                replace(&directory.join(format!("{}.csv", one.experiment.name)), &table)?;
            }
        }
        replace(&directory.join("findings.csv"), &tables::findings(gathered)?)?;
    }
    let tables = tables.map(|directory| directory.display().to_string()).unwrap_or_default();
    let figures = &drawn;
    let parts =
        DocumentParts { gathered, beside, sensitivity, circumstances, figures, prefix: &prefix, tables: &tables };
    replace(file, document(&parts).as_bytes())
}

/// Removes the drawings whose names begin so: those of an earlier state of the page.
fn forget(directory: &Path, prefix: &str) -> Result<()> {
    let named = || format!("could not clear {}", directory.display());
    for entry in fs::read_dir(directory).with_context(named)? {
        let entry = entry.with_context(named)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with(prefix) && name.ends_with(".svg") {
            fs::remove_file(entry.path()).with_context(named)?;
        }
    }
    Ok(())
}

//! Everything is written: tables, figures, the page, the document.

use super::document::document;
use super::drawing::figures;
use super::page::page;
use super::results::Gathered;
use super::tables;
use crate::figure::{Figure, Raster};
use crate::report::replace;
use anyhow::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Under what circumstances the results came.
#[derive(Clone, Debug, Default)]
pub struct Circumstances {
    /// The scale.
    pub scale: f64,
    /// The machine, in a line.
    pub machine: String,
    /// Cases at a time.
    pub jobs: usize,
    /// How long this run took; what was kept from before is not in it.
    pub elapsed: Duration,
    /// Cases kept from before.
    pub kept: usize,
    /// The recordings that were played: how many, their packets, their flows.
    pub recordings: Option<(usize, u64, u64)>,
    /// How it was asked for.
    pub command: String,
}

/// What has been written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// The page.
    pub page: PathBuf,
    /// The document.
    pub document: PathBuf,
    /// Figures.
    pub figures: usize,
}

/// Writes `index.html`, `reproduction.md`, and for each experiment a directory with `cases.csv`, `time.csv`, `figures/`.
/// What cannot be drawn is left out, and named on the page.
///
/// # Errors
/// A file cannot be written.
pub fn write(gathered: &[Gathered<'_>], circumstances: &Circumstances, directory: &Path) -> Result<Written> {
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
        fs::create_dir_all(&figures_into).with_context(|| format!("could not make {}", figures_into.display()))?;
        replace(&into.join("cases.csv"), &tables::cases(one)?)?;
        replace(&into.join("time.csv"), &tables::over_time(one)?)?;
        let (figures, more) = figures(one).unwrap_or_else(|error| {
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
    let (page_path, document_path) = (directory.join("index.html"), directory.join("reproduction.md"));
    replace(&page_path, page(gathered, &drawn, circumstances, &notes).as_bytes())?;
    replace(&document_path, document(gathered, circumstances).as_bytes())?;
    Ok(Written { page: page_path, document: document_path, figures: drawn.iter().map(Vec::len).sum() })
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

//! The index of the evidence, docs/evidence/README.md: each finding of the papers with its verdicts, why, page and command, and each
//! figure of their evaluations with its drawing. `hairpin-lab evidence` writes it.
//!
//! Findings and figures are those of docs/evidence/findings.toml. Verdicts follow from the results in lab/results by the rules that the
//! pages follow, too; none is set by hand. What has no results is not measured.
//!
//! | module | what it is |
//! |---|---|
//! | `checks` | verdicts, by what checks a finding |
//! | `index` | the page |

mod checks;
mod index;
#[cfg(test)]
mod tests;

pub use checks::{Check, EvidenceSources};
pub use index::document;

use anyhow::{Context, Result};
use std::path::Path;

/// The page, in the repository.
pub const PAGE: &str = "docs/evidence/README.md";

/// Writes the index of a repository's evidence to a file.
///
/// # Errors
/// Results cannot be read, or the file cannot be written.
pub fn write(sources: &EvidenceSources<'_>, file: &Path) -> Result<()> {
    let text = document(sources)?;
    crate::report::replace(file, text.as_bytes()).with_context(|| format!("could not write {}", file.display()))
}

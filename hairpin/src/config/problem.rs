//! What is wrong with a configuration file: where, what, and what would be right.

use std::cell::RefCell;
use std::fmt;
use std::ops::Range;
use std::path::Path;

/// Whether a problem keeps the file from being used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// The file cannot be used.
    Error,
    /// It can, but it probably does not mean what was meant.
    Warning,
}

/// One problem of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Whether it keeps the file from being used.
    pub severity: Severity,
    /// The file as it was named.
    pub file: String,
    /// Line, from 1; 0 when the whole file is meant.
    pub line: usize,
    /// Column in characters, from 1; 0 when the whole file is meant.
    pub column: usize,
    /// What is wrong.
    pub what: String,
    /// What would be right; may be empty.
    pub remedy: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file)?;
        if self.line > 0 {
            write!(f, ":{}:{}", self.line, self.column)?;
        }
        let severity = match self.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        };
        write!(f, ": {severity}: {}", self.what)?;
        if !self.remedy.is_empty() {
            write!(f, "; {}", self.remedy)?;
        }
        Ok(())
    }
}

/// All that is wrong with a file; at least one error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problems(pub Vec<Problem>);

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            problem.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}

impl Problems {
    /// A file that cannot be read at all.
    pub(super) fn unreadable(path: &Path, error: &std::io::Error) -> Problems {
        let remedy = match error.kind() {
            std::io::ErrorKind::NotFound => "name the configuration with -c FILE (`hairpin config` prints every field)",
            std::io::ErrorKind::InvalidData => "it must be UTF-8 text",
            _ => "it must be a readable file",
        };
        Problems(vec![Problem {
            severity: Severity::Error,
            file: path.display().to_string(),
            line: 0,
            column: 0,
            what: format!("cannot read the configuration: {error}"),
            remedy: remedy.to_string(),
        }])
    }
}

/// Collects the problems of one text.
#[derive(Debug)]
pub(super) struct Sink<'a> {
    file: &'a str,
    text: &'a str,
    found: RefCell<Vec<(usize, Problem)>>,
}

impl<'a> Sink<'a> {
    pub(super) fn new(file: &'a str, text: &'a str) -> Sink<'a> {
        Sink { file, text, found: RefCell::new(Vec::new()) }
    }

    pub(super) fn error(&self, at: &Range<usize>, what: impl Into<String>, remedy: impl Into<String>) {
        self.add(Severity::Error, at, what.into(), remedy.into());
    }

    pub(super) fn warning(&self, at: &Range<usize>, what: impl Into<String>, remedy: impl Into<String>) {
        self.add(Severity::Warning, at, what.into(), remedy.into());
    }

    /// The line of a byte offset, from 1.
    pub(super) fn line(&self, offset: usize) -> usize {
        let before = self.text.get(..offset).unwrap_or(self.text);
        before.bytes().filter(|byte| *byte == b'\n').count() + 1
    }

    fn add(&self, severity: Severity, at: &Range<usize>, what: String, remedy: String) {
        let before = self.text.get(..at.start).unwrap_or(self.text);
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let column = before[line_start..].chars().count() + 1;
        let file = self.file.to_string();
        let problem = Problem { severity, file, line: self.line(at.start), column, what, remedy };
        self.found.borrow_mut().push((at.start, problem));
    }

    /// The problems in the order of the file.
    pub(super) fn into_problems(self) -> Vec<Problem> {
        let mut found = self.found.into_inner();
        found.sort_by_key(|(offset, _)| *offset);
        found.into_iter().map(|(_, problem)| problem).collect()
    }
}

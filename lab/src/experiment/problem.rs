//! What is wrong with an experiment file: where, what, and what would be right.

use std::cell::RefCell;
use std::fmt;
use std::ops::Range;

/// One mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The file as it was named.
    pub file: String,
    /// Line, from 1; 0 when the whole file is meant.
    pub line: usize,
    /// What is wrong.
    pub what: String,
    /// What would be right; may be empty.
    pub remedy: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file)?;
        if self.line > 0 {
            write!(f, ":{}", self.line)?;
        }
        write!(f, ": {}", self.what)?;
        if !self.remedy.is_empty() {
            write!(f, "; {}", self.remedy)?;
        }
        Ok(())
    }
}

/// All mistakes of a file, in its order; at least one.
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

/// Collects the mistakes of one text.
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
        let before = self.text.get(..at.start).unwrap_or(self.text);
        let line = before.bytes().filter(|byte| *byte == b'\n').count() + 1;
        let problem = Problem { file: self.file.to_owned(), line, what: what.into(), remedy: remedy.into() };
        self.found.borrow_mut().push((at.start, problem));
    }

    /// The mistakes in the order of the file.
    pub(super) fn into_problems(self) -> Vec<Problem> {
        let mut found = self.found.into_inner();
        found.sort_by_key(|(offset, _)| *offset);
        found.into_iter().map(|(_, problem)| problem).collect()
    }
}

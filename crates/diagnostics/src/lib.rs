//! Reading TOML that people write (the configuration, experiments), and what is wrong with it: where, what, and what would
//! be right. Every mistake is told, in the order of the text.

#![forbid(unsafe_code)]

use std::cell::RefCell;
use std::fmt;
use std::ops::Range;
use std::path::Path;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

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
    /// The problem.
    pub what: String,
    /// The remedy; may be empty.
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
    /// A file that cannot be read at all: what happened, and what would be right.
    pub fn unreadable(path: &Path, what: String, remedy: &str) -> Problems {
        let (file, remedy) = (path.display().to_string(), remedy.to_owned());
        Problems(vec![Problem { severity: Severity::Error, file, line: 0, column: 0, what, remedy }])
    }
}

/// Begins the line in a text behind which another file's text follows; the rest of the line is that file's path. To TOML it is a
/// comment.
pub const FILE_MARK: &str = "#:file ";

/// Where something stands in a text of several files, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineName {
    /// The file; empty: the first one.
    pub file: String,
    /// Its line, from 1.
    pub line: usize,
}

impl fmt::Display for LineName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.file.as_str() {
            "" => write!(f, "{}", self.line),
            file => write!(f, "{} of {file}", self.line),
        }
    }
}

/// The parts of a text of several files: the path of each, empty for the first, and its bytes.
pub fn parts(text: &str) -> Vec<(&str, Range<usize>)> {
    let mut parts = vec![("", 0..text.len())];
    let mut offset = 0;
    for line in text.split_inclusive('\n') {
        if let Some(path) = line.strip_prefix(FILE_MARK) {
            if let Some((_, part)) = parts.last_mut() {
                part.end = offset;
            }
            parts.push((path.trim_end_matches(['\n', '\r']), offset + line.len()..text.len()));
        }
        offset += line.len();
    }
    parts
}

/// Collects the problems of one text, which may be that of several files ([`FILE_MARK`]).
#[derive(Debug)]
pub struct Sink<'a> {
    file: &'a str,
    text: &'a str,
    found: RefCell<Vec<(usize, Problem)>>,
    /// The first bytes of lines with errors in their syntax, of a text that is read in spite of them.
    broken_lines: RefCell<Vec<usize>>,
}

impl<'a> Sink<'a> {
    /// Makes a report for this text; `file` names it in messages.
    pub fn new(file: &'a str, text: &'a str) -> Sink<'a> {
        Sink { file, text, found: RefCell::new(Vec::new()), broken_lines: RefCell::default() }
    }

    /// Reports what is wrong at these bytes, and what would be right (may be empty).
    pub fn error(&self, at: &Range<usize>, what: impl Into<String>, remedy: impl Into<String>) {
        self.add(Severity::Error, at, what.into(), remedy.into());
    }

    /// Reports what is only doubtful at these bytes, and what would be right (may be empty).
    pub fn warning(&self, at: &Range<usize>, what: impl Into<String>, remedy: impl Into<String>) {
        self.add(Severity::Warning, at, what.into(), remedy.into());
    }

    /// The text as a document, if it is one. A broken one would read as one with fields missing, which would only hide
    /// the cause.
    pub fn document(&self) -> Option<Spanned<DeTable<'a>>> {
        let (document, errors) = DeTable::parse_recoverable(self.text);
        for error in &errors {
            self.error(&error.span().unwrap_or(0..0), error.message(), "");
        }
        errors.is_empty().then_some(document)
    }

    /// The text as a document, also if some of it is none: then only as much is reported as cannot come from what is not
    /// read. `None` if the line of a table's name is none, because what follows would be read as part of another table.
    pub fn document_in_parts(&self) -> Option<Spanned<DeTable<'a>>> {
        let (document, errors) = DeTable::parse_recoverable(self.text);
        let at = |error: &toml::de::Error| error.span().unwrap_or(0..0);
        // A list that is not closed goes on to the end of the text, and no line from the next one on is a value of it.
        let unclosed = errors.iter().any(|error| error.message().starts_with("unclosed array"));
        let of_list = errors.iter().filter(|error| unclosed && error.message().contains("array elements"));
        let goes_on = of_list.map(|error| at(error).start).min();
        if let Some(start) = goes_on {
            self.error(&(start..start), "the list before this is not closed, or lacks a comma", "end it with `]`");
        }
        for error in errors.iter().filter(|error| goes_on.is_none_or(|start| at(error).start < start)) {
            self.error(&at(error), error.message(), "");
        }
        if unclosed || errors.iter().any(|error| self.text[self.line_of(at(error).start)].starts_with('[')) {
            return None;
        }
        *self.broken_lines.borrow_mut() =
            self.found.borrow().iter().map(|(offset, _)| self.line_of(*offset).start).collect();
        Some(document)
    }

    /// Whether the text is read in spite of errors in its syntax: what is absent may stand where they are.
    pub fn is_in_parts(&self) -> bool {
        !self.broken_lines.borrow().is_empty()
    }

    /// The bytes of the line that has this offset, without white space at its ends.
    fn line_of(&self, offset: usize) -> Range<usize> {
        let offset = offset.min(self.text.len());
        let start = self.text[..offset].rfind('\n').map_or(0, |newline| newline + 1);
        let end = self.text[start..].find('\n').map_or(self.text.len(), |newline| start + newline);
        let line = &self.text[start..end];
        let start = start + (line.len() - line.trim_start().len());
        start..end
    }

    /// The text of these bytes.
    pub fn source(&self, at: &Range<usize>) -> &'a str {
        self.text.get(at.clone()).unwrap_or_default()
    }

    /// Whether a problem there may come from what is not read: what is said of a whole table, and on lines that are wrong
    /// themselves.
    fn is_doubtful(&self, at: &Range<usize>) -> bool {
        let line = self.line_of(at.start);
        let is_of_table = at.start <= line.start && (at.start == 0 || self.text[line.clone()].starts_with('['));
        is_of_table || self.broken_lines.borrow().contains(&line.start)
    }

    /// The file and the line of a byte offset.
    pub fn line(&self, offset: usize) -> LineName {
        let offset = offset.min(self.text.len());
        let before = self.text.get(..offset).unwrap_or(self.text);
        // The marks before it: what stands on a mark's own line belongs to the file before.
        let (file, part) = parts(before).pop().unwrap_or(("", 0..0));
        let part = &before[part];
        LineName { file: file.to_owned(), line: part.bytes().filter(|byte| *byte == b'\n').count() + 1 }
    }

    fn add(&self, severity: Severity, at: &Range<usize>, what: String, remedy: String) {
        if self.is_in_parts() && self.is_doubtful(at) {
            return;
        }
        let before = self.text.get(..at.start).unwrap_or(self.text);
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let column = before[line_start..].chars().count() + 1;
        let LineName { file, line } = self.line(at.start);
        let file = if file.is_empty() { self.file.to_string() } else { file };
        let problem = Problem { severity, file, line, column, what, remedy };
        self.found.borrow_mut().push((at.start, problem));
    }

    /// The problems in the order of the file.
    pub fn into_problems(self) -> Vec<Problem> {
        let mut found = self.found.into_inner();
        found.sort_by_key(|(offset, _)| *offset);
        found.into_iter().map(|(_, problem)| problem).collect()
    }
}

/// A value and where it stands.
#[derive(Clone, Debug)]
pub struct At<T> {
    /// The value.
    pub value: T,
    /// Its bytes in the text.
    pub span: Range<usize>,
}

/// The text of a file of at most `bytes_max` bytes.
///
/// # Errors
/// It cannot be read, or is larger.
pub fn text_of(path: &Path, bytes_max: u64) -> std::io::Result<String> {
    let bytes = std::fs::metadata(path)?.len();
    if bytes > bytes_max {
        return Err(std::io::Error::other(format!("it has {bytes} bytes, more than {bytes_max}")));
    }
    std::fs::read_to_string(path)
}

/// The advice when `text` is none of `words`: the nearest word, and all of them.
pub fn one_of(text: &str, words: &[&str]) -> String {
    let list = words.iter().map(|word| format!("\"{word}\"")).collect::<Vec<_>>().join(", ");
    match nearest(text, words) {
        Some(word) => format!("did you mean \"{word}\"? (one of {list})"),
        None => format!("use one of {list}"),
    }
}

/// The member of `names` nearest to `name`, if one is near enough to be meant.
pub fn nearest<'n>(name: &str, names: &[&'n str]) -> Option<&'n str> {
    let score = |candidate: &&str| strsim::damerau_levenshtein(&name.to_lowercase(), candidate);
    let best = names.iter().min_by_key(|candidate| score(candidate))?;
    (score(best) <= (name.chars().count() / 3).max(1)).then_some(*best)
}

/// A value in words, as far as it helps to find it.
pub fn described(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => format!("the text \"{text}\""),
        DeValue::Integer(number) => format!("the number {number}"),
        DeValue::Float(number) => format!("the number {number}"),
        DeValue::Boolean(value) => format!("{value}"),
        DeValue::Datetime(_) => "a date".to_owned(),
        DeValue::Array(_) => "a list".to_owned(),
        DeValue::Table(_) => "a table".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_name_the_file_and_its_line() {
        let text = "a = 1\nb = 2\n#:file conf.d/one.toml\nc = 3\n\nd = 4\n#:file two.toml\ne = 5";
        let sink = Sink::new("main.toml", text);
        for word in ["a =", "b =", "c =", "d =", "e ="] {
            let start = text.find(word).unwrap();
            sink.error(&(start..start + 1), word, "");
        }
        let problems = sink.into_problems();
        let places: Vec<_> = problems.iter().map(|problem| (problem.file.as_str(), problem.line)).collect();
        let one = "conf.d/one.toml";
        assert_eq!(places, [("main.toml", 1), ("main.toml", 2), (one, 1), (one, 3), ("two.toml", 1)]);
        let sink = Sink::new("main.toml", text);
        let named = |word: &str| sink.line(text.find(word).unwrap()).to_string();
        assert_eq!((named("b ="), named("d =")), ("2".to_owned(), "3 of conf.d/one.toml".to_owned()));
    }
}

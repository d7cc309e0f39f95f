//! Paths that requests ask for.

use super::normal::{Odd, PathReading, PathScratch, normalise};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use regex_automata::Input;
use regex_automata::dfa::{Automaton, StartKind, dense};
use regex_automata::nfa::thompson;
use regex_automata::util::syntax;

/// Bytes of a regular expression's text.
pub const REGEX_BYTES_MAX: usize = 1024;
/// Bytes of the automaton that is made of a regular expression, and of what making it takes.
pub const AUTOMATON_BYTES_MAX: usize = 1 << 20;

/// A path or paths that a request may ask for, compared with the normalised path, byte by byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathPattern {
    /// This one.
    Exact(Box<[u8]>),
    /// All that begin with these bytes. As in nginx, `/api` is also a prefix of `/apist`; `/api/` is not one of `/api`.
    Prefix(Box<[u8]>),
    /// All in which this is found.
    Regex(Regex),
}

impl PathPattern {
    /// The path `text`.
    ///
    /// # Errors
    /// `text` could not be the path of any request.
    pub fn exact(text: &str) -> Result<PathPattern, &'static str> {
        usual(text).map(PathPattern::Exact)
    }

    /// All paths that begin with `text`.
    ///
    /// # Errors
    /// `text` could not be how any request's path begins.
    pub fn prefix(text: &str) -> Result<PathPattern, &'static str> {
        usual(text).map(PathPattern::Prefix)
    }

    /// All paths in which the expression `text` is found: anywhere, unless it is anchored with `^` or `$`. The syntax
    /// is that of Rust's `regex` without Unicode: `\d`, `\w` and `(?i)` mean ASCII.
    ///
    /// # Errors
    /// `text` is not an expression, or one whose automaton would be larger than [`AUTOMATON_BYTES_MAX`].
    pub fn regex(text: &str) -> Result<PathPattern, &'static str> {
        Regex::new(text).map(PathPattern::Regex)
    }

    /// Whether the normalised `path` is meant.
    pub fn matches(&self, path: &[u8]) -> bool {
        match self {
            PathPattern::Exact(exact) => path == &**exact,
            PathPattern::Prefix(prefix) => path.starts_with(prefix),
            PathPattern::Regex(regex) => regex.is_match(path),
        }
    }

    /// Whether parameters (`;x`) are written in it.
    pub fn names_parameters(&self) -> bool {
        let text = match self {
            PathPattern::Exact(text) | PathPattern::Prefix(text) => text,
            PathPattern::Regex(regex) => regex.as_str().as_bytes(),
        };
        text.contains(&b';')
    }
}

/// `text` as requests' paths are compared, or as the beginning of one.
fn usual(text: &str) -> Result<Box<[u8]>, &'static str> {
    if !text.starts_with('/') {
        return Err("a path begins with '/'");
    }
    if !text.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'?' | b'#' | b'\\')) {
        return Err("a path is written as in a request: visible ASCII, anything else as %XX, no '?', '#' or '\\'");
    }
    if text[1..].split('/').rev().skip(1).any(str::is_empty) || text.split('/').any(|part| matches!(part, "." | "..")) {
        return Err("a path is compared without '//', '/./' and '/../'");
    }
    match normalise(text.as_bytes(), PathReading::WRITTEN, &mut PathScratch::new()) {
        Ok(path) => Ok(path.into()),
        Err(Odd::TooLong) => Err("a path has at most 8192 characters"),
        Err(Odd::Ambiguous) => Err("a path has '%' before two hexadecimal digits only, and no '%00' or hidden '..'"),
    }
}

/// A regular expression, made into an automaton when the configuration is read: a match takes one step a byte and
/// allocates nothing.
#[derive(Clone)]
pub struct Regex {
    text: Box<str>,
    automaton: Arc<dense::DFA<Vec<u32>>>,
}

impl Regex {
    /// The expression `text`; see [`PathPattern::regex`].
    ///
    /// # Errors
    /// Its defect.
    pub fn new(text: &str) -> Result<Regex, &'static str> {
        if text.is_empty() || text.len() > REGEX_BYTES_MAX {
            return Err("a regular expression has 1 to 1024 bytes");
        }
        syntax::parse_with(text, &dialect()).map_err(|_| "not a regular expression")?;
        let automaton = dense::Builder::new()
            .configure(
                dense::Config::new()
                    .start_kind(StartKind::Unanchored)
                    .dfa_size_limit(Some(AUTOMATON_BYTES_MAX))
                    .determinize_size_limit(Some(AUTOMATON_BYTES_MAX)),
            )
            .thompson(thompson::Config::new().utf8(false).nfa_size_limit(Some(AUTOMATON_BYTES_MAX)))
            .syntax(dialect())
            .build(text)
            .map_err(|_| "this regular expression would need an automaton of more than 1 MiB; a simpler one")?;
        Ok(Regex { text: text.into(), automaton: Arc::new(automaton) })
    }

    /// Whether it is found in `path`.
    pub fn is_match(&self, path: &[u8]) -> bool {
        // An automaton without quit bytes (those come with Unicode word boundaries) cannot fail.
        matches!(self.automaton.try_search_fwd(&Input::new(path).earliest(true)), Ok(Some(_)))
    }

    /// Its text.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

fn dialect() -> syntax::Config {
    syntax::Config::new().unicode(false).utf8(false)
}

impl core::fmt::Debug for Regex {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.text.fmt(f)
    }
}

impl PartialEq for Regex {
    fn eq(&self, other: &Regex) -> bool {
        self.text == other.text
    }
}

impl Eq for Regex {}

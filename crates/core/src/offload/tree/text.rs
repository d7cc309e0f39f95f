//! A model as text, such as
//!
//! ```text
//! # what begins with # is for people
//! decision-tree 1
//! more 10
//! if backend-bytes-4 <= 1380
//!   short probability=0.08 expected=2.5 flows=212
//! else
//!   long probability=0.83 expected=311.4 flows=96
//! ```
//!
//! A first line with the format's number; how many more packets a long connection has; the tree, its sides two spaces
//! further in than their `if`, so that what it looks like is what it is.

use super::model::{DEPTH_MAX, Feature, Leaf, NODES_MAX, Node, Tree, Unsound};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

/// Bytes of a model's text at most.
pub const TEXT_MAX: usize = 1 << 20;
const FIRST_LINE: &str = "decision-tree 1";

/// The error in a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeTextError {
    /// The line, from 1.
    pub line: usize,
    /// The problem there, and the correct form.
    pub what: String,
}

impl fmt::Display for TreeTextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.what)
    }
}

impl core::error::Error for TreeTextError {}

/// Lines that are not for people only, and what was made of them.
struct TreeReading<'a> {
    lines: core::iter::Peekable<Lines<'a>>,
    /// Lines of the text.
    count: usize,
    nodes: Vec<Node>,
    /// The line of each node.
    of_nodes: Vec<usize>,
}

type Lines<'a> = alloc::vec::IntoIter<(usize, &'a str)>;

impl Tree {
    /// Reads a model.
    ///
    /// # Errors
    /// It is none, or one that is not sound: where, and what would be right.
    pub fn parse(text: &str) -> Result<Tree, TreeTextError> {
        if text.len() > TEXT_MAX {
            return Err(TreeTextError { line: 1, what: format!("a text of {} bytes: {TEXT_MAX} at most", text.len()) });
        }
        let all = text.lines().enumerate().map(|(number, line)| (number + 1, line.trim_end()));
        let told: Vec<_> = all.filter(|(_, line)| !line.is_empty() && !line.trim_start().starts_with('#')).collect();
        let lines = told.into_iter().peekable();
        let mut reading =
            TreeReading { lines, count: text.lines().count().max(1), nodes: Vec::new(), of_nodes: Vec::new() };
        let (line, first) = reading.next(FIRST_LINE)?;
        if first != FIRST_LINE {
            return Err(TreeTextError {
                line,
                what: format!("\"{}\": a model begins with `{FIRST_LINE}`", short(first)),
            });
        }
        let (line, more) = reading.next("more NUMBER")?;
        let Some(more) =
            more.strip_prefix("more ").and_then(|number| number.parse::<u32>().ok()).filter(|more| *more > 0)
        else {
            return Err(TreeTextError { line, what: format!("\"{}\": write `more NUMBER`, 1 or more", short(more)) });
        };
        reading.subtree(0)?;
        if let Some((line, what)) = reading.lines.next() {
            return Err(TreeTextError { line, what: format!("\"{}\": the tree is complete before this", short(what)) });
        }
        let TreeReading { nodes, of_nodes, count, .. } = reading;
        Tree::new(nodes, more).map_err(|Unsound { node, what }| TreeTextError {
            line: of_nodes.get(node).copied().unwrap_or(count),
            what,
        })
    }
}

impl<'a> TreeReading<'a> {
    fn next(&mut self, expected: &str) -> Result<(usize, &'a str), TreeTextError> {
        let end = || TreeTextError { line: self.count, what: format!("it ends where `{expected}` is missing") };
        self.lines.next().ok_or_else(end)
    }

    /// The next line, which has to be so far in; the rest of it.
    fn next_in(&mut self, depth: usize, expected: &str) -> Result<(usize, &'a str), TreeTextError> {
        let (line, text) = self.next(expected)?;
        let rest = text.trim_start_matches(' ');
        let (found, right) = (text.len() - rest.len(), 2 * depth);
        if found != right {
            let what = format!("\"{}\" is {found} spaces in, not {right}, where `{expected}` belongs", short(rest));
            return Err(TreeTextError { line, what });
        }
        Ok((line, rest))
    }

    fn subtree(&mut self, depth: usize) -> Result<(), TreeTextError> {
        let (line, text) = self.next_in(depth, "if FEATURE <= NUMBER")?;
        let index = self.nodes.len();
        if index >= NODES_MAX {
            return Err(TreeTextError { line, what: format!("more than {NODES_MAX} nodes") });
        }
        let Some(condition) = text.strip_prefix("if ") else {
            self.nodes.push(Node::Leaf(leaf(text).map_err(|what| TreeTextError { line, what })?));
            self.of_nodes.push(line);
            return Ok(());
        };
        if depth >= DEPTH_MAX {
            return Err(TreeTextError { line, what: format!("more than {DEPTH_MAX} splits deep") });
        }
        let (feature, most) = split(condition).map_err(|what| TreeTextError { line, what })?;
        self.nodes.push(Node::Split { feature, most, above: 0 });
        self.of_nodes.push(line);
        self.subtree(depth + 1)?;
        let (line, text) = self.next_in(depth, "else")?;
        if text != "else" {
            return Err(TreeTextError { line, what: format!("\"{}\": `else` is missing", short(text)) });
        }
        let other = self.nodes.len();
        if let Some(Node::Split { above, .. }) = self.nodes.get_mut(index) {
            *above = u8::try_from(other).unwrap_or(u8::MAX);
        }
        self.subtree(depth + 1)
    }
}

/// Reads `FEATURE <= NUMBER`.
fn split(text: &str) -> Result<(Feature, u32), String> {
    let Some((name, most)) = text.split_once(" <= ") else {
        return Err(format!("\"if {}\": write `if FEATURE <= NUMBER`", short(text)));
    };
    let Some(feature) = Feature::from_name(name) else {
        let known = "udp, port, length-1 to length-8, gap-2 to gap-8, and likewise backend, bytes, backend-packets, \
                     backend-bytes, elapsed";
        return Err(format!("there is no feature \"{}\"; there are {known}", short(name)));
    };
    let wrong = || format!("\"{}\" is no whole number from 0 to {}", short(most), u32::MAX);
    most.parse().map(|most| (feature, most)).map_err(|_| wrong())
}

/// Reads `long probability=P expected=E flows=F`, or `short` likewise.
fn leaf(text: &str) -> Result<Leaf, String> {
    let form = "`long probability=P expected=PACKETS flows=NUMBER`, or `short` likewise";
    let mut words = text.split(' ');
    let is_long = match words.next() {
        Some("long") => true,
        Some("short") => false,
        _ => return Err(format!("\"{}\": write `if FEATURE <= NUMBER`, or {form}", short(text))),
    };
    let mut value = |name: &str| {
        let word = words.next().and_then(|word| word.strip_prefix(name)).and_then(|word| word.strip_prefix('='));
        word.ok_or_else(|| format!("\"{}\": `{name}` is missing; write {form}", short(text)))
    };
    let (probability, expected, flows) = (value("probability")?, value("expected")?, value("flows")?);
    if words.next().is_some() {
        return Err(format!("\"{}\": too many words; write {form}", short(text)));
    }
    let wrong = |word: &str| format!("\"{}\" is no number; write {form}", short(word));
    Ok(Leaf {
        is_long,
        probability: probability.parse().map_err(|_| wrong(probability))?,
        expected: expected.parse().map_err(|_| wrong(expected))?,
        flows: flows.parse().map_err(|_| wrong(flows))?,
    })
}

/// A text's beginning, for a message.
fn short(text: &str) -> &str {
    text.char_indices().nth(40).map_or(text, |(end, _)| &text[..end])
}

/// The text that [`Tree::parse`] reads as this tree, without comments.
impl fmt::Display for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{FIRST_LINE}\nmore {}", self.more())?;
        // The lines where an `else` is due, and their indentation; the nearest last.
        let mut due: Vec<(usize, usize)> = Vec::new();
        let mut depth = 0;
        for (index, node) in self.nodes().iter().enumerate() {
            if let Some((_, of)) = due.pop_if(|(at, _)| *at == index) {
                writeln!(f, "{:1$}else", "", 2 * of)?;
                depth = of + 1;
            }
            write!(f, "{:1$}", "", 2 * depth)?;
            match node {
                Node::Split { feature, most, above } => {
                    writeln!(f, "if {feature} <= {most}")?;
                    due.push((usize::from(*above), depth));
                    depth += 1;
                }
                Node::Leaf(Leaf { is_long, probability, expected, flows }) => {
                    let label = if *is_long { "long" } else { "short" };
                    writeln!(f, "{label} probability={probability} expected={expected} flows={flows}")?;
                }
            }
        }
        Ok(())
    }
}

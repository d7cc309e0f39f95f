//! The answers of an instance, for people: tables with units.

mod acme;
mod changes;
mod connections;
mod http;
mod https;
mod offload;
mod ports;
mod route;
mod status;
mod units;

pub use changes::changes;
pub use connections::{Listing, explanation};
pub use offload::offload;
pub use route::routes;
pub use status::status;
pub(crate) use units::{brief, number, percent, scaled, span};

use crate::status::Status;
use comfy_table::{Cell, CellAlignment, ColumnConstraint, Table, presets};

/// A table without borders: words to the left, numbers to the right.
fn aligned(words: &[&str], numbers: &[&str]) -> Table {
    let mut table = bare();
    table.set_header(words.iter().map(Cell::new).chain(numbers.iter().map(right)));
    table
}

fn add(table: &mut Table, words: &[&str], numbers: &[String]) {
    table.add_row(words.iter().map(Cell::new).chain(numbers.iter().map(right)));
}

fn bare() -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table
}

fn right(text: impl ToString) -> Cell {
    Cell::new(text).set_alignment(CellAlignment::Right)
}

/// The table, without as many of the columns `spared`, from the first one on, as it takes to fit.
fn fitted(mut table: Table, width: Option<usize>, spared: &[usize]) -> Table {
    let is_too_wide = |table: &Table| {
        // The first space of each line goes.
        let lines = table.lines().map(|line| line.trim_end().chars().count().saturating_sub(1));
        width.is_some_and(|width| lines.max().is_some_and(|widest| widest > width))
    };
    for column in spared {
        if !is_too_wide(&table) {
            break;
        }
        if let Some(column) = table.column_mut(*column) {
            column.set_constraint(ColumnConstraint::Hidden);
        }
    }
    table
}

/// With what goes beyond `width` on further lines, begun anew between words where there are some.
fn wrapped(text: &str, width: usize) -> String {
    const INDENT: &str = "    ";
    let width = width.max(2 * INDENT.len());
    let mut out = String::new();
    for mut line in text.lines() {
        let mut room = width;
        while let Some((end, beyond)) = line.char_indices().nth(room) {
            let cut =
                line[..end + beyond.len_utf8()].rfind(' ').filter(|at| !line[..*at].trim().is_empty()).unwrap_or(end);
            out.push_str(line[..cut].trim_end());
            out.push('\n');
            out.push_str(INDENT);
            line = line[cut..].trim_start();
            room = width - INDENT.len();
        }
        out.push_str(line);
        out.push('\n');
    }
    out
}

/// Without the spaces that a table has at its sides.
fn trimmed(text: &str) -> String {
    let line = |line: &str| format!("{}\n", line.strip_prefix(' ').unwrap_or(line).trim_end());
    text.lines().map(line).collect()
}

/// Every line with its words one space apart: what tests compare.
#[cfg(test)]
fn squeezed(text: &str) -> Vec<String> {
    text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

/// Services and groups that are not ready, each in a line.
fn not_ready(status: &Status) -> Option<String> {
    let services = status.services.iter().filter(|service| !service.not_ready.is_empty());
    let lines: Vec<String> =
        services.map(|service| format!("NOT READY: service {}: {}", service.name, service.not_ready)).collect();
    (!lines.is_empty()).then(|| lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::wrapped;

    #[test]
    fn lines_end_between_words_if_they_can() {
        let wrap = |text: &str| wrapped(text, 12);
        assert_eq!(wrap("a short one\n\nx"), "a short one\n\nx\n");
        assert_eq!(wrap("one two three four five"), "one two\n    three\n    four\n    five\n");
        assert_eq!(wrap("exactlytwelv"), "exactlytwelv\n");
        assert_eq!(wrap("exactlytwelve12"), "exactlytwelv\n    e12\n");
        assert_eq!(wrap("äöüäöüäöüäöüä"), "äöüäöüäöüäöü\n    ä\n");
    }
}

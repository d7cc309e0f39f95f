//! The answers of an instance, for people: tables with units.

mod acme;
mod changes;
mod connections;
mod http;
mod https;
mod monitor;
mod offload;
mod ports;
mod resolver;
mod route;
mod status;
mod units;

pub use changes::changes;
pub use connections::{Listing, explanation};
pub use monitor::monitors;
pub use offload::offload;
pub use route::routes;
pub use status::status;
pub(crate) use units::{brief, number, percent, scaled, span};

use crate::status::Status;
use comfy_table::{Cell, CellAlignment, ColumnConstraint, ContentArrangement, Table, presets};
use unicode_truncate::UnicodeTruncateStr;
use unicode_width::UnicodeWidthStr;

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

/// The table, without as many of the columns `spared`, from the first one on, as it takes to fit. If that is not enough, text
/// goes on below in its own column.
fn fitted(mut table: Table, width: Option<usize>, spared: &[usize]) -> Table {
    let Some(width) = width else { return table };
    let is_too_wide = |table: &Table| {
        // The first space of each line goes.
        let lines = table.lines().map(|line| line.trim_end().width().saturating_sub(1));
        lines.max().is_some_and(|widest| widest > width)
    };
    for column in spared {
        if !is_too_wide(&table) {
            return table;
        }
        if let Some(column) = table.column_mut(*column) {
            column.set_constraint(ColumnConstraint::Hidden);
        }
    }
    if is_too_wide(&table) {
        table.set_content_arrangement(ContentArrangement::Dynamic);
        table.set_width(u16::try_from(width + 1).unwrap_or(u16::MAX));
    }
    table
}

/// With what goes beyond `width` on further lines, begun anew between words where there are some.
pub(crate) fn wrapped(text: &str, width: usize) -> String {
    const INDENT: &str = "    ";
    let width = width.max(2 * INDENT.len());
    let mut out = String::new();
    for mut line in text.lines() {
        let mut room = width;
        while line.width() > room {
            let (head, _) = line.unicode_truncate(room);
            let beyond = line[head.len()..].chars().next().map_or(0, char::len_utf8);
            let is_within = |at: &usize| !line[..*at].trim().is_empty();
            let cut = line[..head.len() + beyond].rfind(' ').filter(is_within).unwrap_or(head.len());
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

/// The text, wrapped where there is a width.
pub(crate) fn within(text: String, width: Option<usize>) -> String {
    match width {
        Some(width) => wrapped(&text, width),
        None => text,
    }
}

/// The text in at most `width` columns of a terminal, with an ellipsis for what does not fit. What would move the cursor is
/// replaced.
pub(crate) fn cut(text: &str, width: usize) -> String {
    let shown: String = text.chars().map(|letter| if letter.is_control() { '\u{fffd}' } else { letter }).collect();
    match width {
        _ if shown.width() <= width => shown,
        0 => String::new(),
        _ => format!("{}…", shown.unicode_truncate(width - 1).0),
    }
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
    use super::{cut, fitted, wrapped};
    use comfy_table::Table;
    use unicode_width::UnicodeWidthStr;

    #[test]
    fn lines_end_between_words_if_they_can() {
        let wrap = |text: &str| wrapped(text, 12);
        assert_eq!(wrap("a short one\n\nx"), "a short one\n\nx\n");
        assert_eq!(wrap("one two three four five"), "one two\n    three\n    four\n    five\n");
        assert_eq!(wrap("exactlytwelv"), "exactlytwelv\n");
        assert_eq!(wrap("exactlytwelve12"), "exactlytwelv\n    e12\n");
        assert_eq!(wrap("äöüäöüäöüäöüä"), "äöüäöüäöüäöü\n    ä\n");
    }

    #[test]
    fn text_is_cut_by_the_columns_it_takes() {
        assert_eq!(["", "a", "ab"].map(|text| cut(text, 2)), ["", "a", "ab"]);
        assert_eq!(cut("abc", 2), "a…");
        assert_eq!([0, 1].map(|width| cut("abc", width)), ["", "…"]);
        // A wide character takes two columns, and is not cut in half.
        assert_eq!([4, 5, 6].map(|width| cut("日本語", width)), ["日…", "日本…", "日本語"]);
        assert_eq!(cut("a\u{1b}[2J\n", 9), "a\u{fffd}[2J\u{fffd}");
        assert_eq!(wrapped("日本語日本語", 8), "日本語日\n    本語\n");
    }

    #[test]
    fn a_table_that_spares_no_column_wraps_in_its_cells() {
        let table = || {
            let mut table: Table = super::aligned(&["NAME", "WHY"], &["COUNT"]);
            super::add(&mut table, &["web", "a reason of several words that is long"], &["12".to_string()]);
            table
        };
        assert_eq!(fitted(table(), None, &[1]).to_string(), table().to_string());
        let text = fitted(table(), Some(30), &[]).to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines.len() > 2 && lines.iter().all(|line| line.trim_end().width() <= 31), "{text}");
        assert!(text.contains("12") && !text.contains("long 12"), "{text}");
    }
}

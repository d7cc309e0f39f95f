//! What an instance tells, for people: tables with units.

mod changes;
mod connections;
mod http;
mod offload;
mod ports;
mod status;
mod units;

pub use changes::changes;
pub use connections::{Listing, explanation};
pub use offload::offload;
pub use status::status;
pub(crate) use units::{brief, number, percent, scaled, span};

use comfy_table::{Cell, CellAlignment, Table, presets};

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

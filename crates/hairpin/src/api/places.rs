//! Where the parts of a configuration stand in its text: mistakes are found in the text, and told as paths.

use super::resource::Step;
use hairpin_diagnostics::Problem;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Where each field and each entry of a list begins, in the order of the text.
pub(super) struct Places<'t> {
    text: &'t str,
    found: Vec<(usize, Vec<Step>)>,
}

impl<'t> Places<'t> {
    pub(super) fn of(text: &'t str) -> Places<'t> {
        let (document, _) = DeTable::parse_recoverable(text);
        let mut found = Vec::new();
        of_table(document.get_ref(), &mut Vec::new(), &mut found);
        // Of those that begin at the same place, the inner one is behind.
        found.sort_by_key(|(start, _)| *start);
        Places { text, found }
    }

    /// The innermost part that a problem is about; nothing: all of it.
    pub(super) fn at(&self, problem: &Problem) -> &[Step] {
        // What is said of a file as a whole is said of its beginning.
        if problem.line == 0 || (problem.line, problem.column) == (1, 1) {
            return &[];
        }
        let lines = self.text.split_inclusive('\n');
        let before: usize = lines.clone().take(problem.line - 1).map(str::len).sum();
        let line = lines.clone().nth(problem.line - 1).unwrap_or_default();
        let column: usize = line.chars().take(problem.column.saturating_sub(1)).map(char::len_utf8).sum();
        let behind = self.found.partition_point(|(start, _)| *start <= before + column);
        behind.checked_sub(1).map_or(&[], |index| &self.found[index].1)
    }
}

fn of_table(table: &DeTable<'_>, path: &mut Vec<Step>, found: &mut Vec<(usize, Vec<Step>)>) {
    for (name, value) in table {
        path.push(Step::Field(name.get_ref().to_string()));
        found.push((name.span().start, path.clone()));
        of_value(value, path, found);
        path.pop();
    }
}

fn of_value(value: &Spanned<DeValue<'_>>, path: &mut Vec<Step>, found: &mut Vec<(usize, Vec<Step>)>) {
    match value.get_ref() {
        DeValue::Table(table) => of_table(table, path, found),
        DeValue::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                path.push(Step::Entry(index));
                found.push((item.span().start, path.clone()));
                of_value(item, path, found);
                path.pop();
            }
        }
        _ => {}
    }
}

//! What standard output is: a terminal, how wide, and what it may be sent.
//!
//! Output that is no terminal is never wrapped, cut or coloured. A terminal that calls itself `dumb` (an editor's, a log's) gets
//! neither colours nor movements of the cursor. `NO_COLOR`, with any text in it, turns colours off (no-color.org); bold, dim and
//! reversed text stays, as it is no colour.

use std::ffi::OsStr;
use std::io::IsTerminal;

/// Columns on a line of the terminal: `COLUMNS`, else what the terminal says. `None`: output may be of any width.
pub(crate) fn width() -> Option<usize> {
    if !std::io::stdout().is_terminal() {
        return None;
    }
    let real = ratatui::crossterm::terminal::size().ok().map(|(columns, _)| usize::from(columns));
    chosen(std::env::var("COLUMNS").ok().as_deref(), real)
}

/// Whether the cursor can be moved about.
pub(crate) fn can_move() -> bool {
    std::io::stdout().is_terminal() && !is_dumb(std::env::var_os("TERM").as_deref())
}

/// Whether colours are wanted there.
pub(crate) fn has_colour() -> bool {
    can_move() && !is_set(std::env::var_os("NO_COLOR").as_deref())
}

/// A width that is none, or that no line fits in, is taken for a terminal that does not know its own.
fn chosen(variable: Option<&str>, real: Option<usize>) -> Option<usize> {
    let variable = variable.and_then(|text| text.parse().ok());
    variable.filter(|width| *width > 0).or(real.filter(|width| *width > 0))
}

fn is_dumb(term: Option<&OsStr>) -> bool {
    term.is_some_and(|term| term == "dumb")
}

fn is_set(variable: Option<&OsStr>) -> bool {
    variable.is_some_and(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_width_is_that_of_the_variable_or_the_terminal() {
        assert_eq!(chosen(None, Some(80)), Some(80));
        assert_eq!(chosen(Some("132"), Some(80)), Some(132));
        for unusable in ["", "0", "-1", "wide"] {
            assert_eq!(chosen(Some(unusable), Some(80)), Some(80), "{unusable}");
        }
        assert_eq!([chosen(None, Some(0)), chosen(None, None)], [None, None]);
    }

    #[test]
    fn any_text_in_no_color_counts_and_none_does_not() {
        let set = |text: Option<&str>| is_set(text.map(OsStr::new));
        assert_eq!([None, Some(""), Some("0"), Some("1")].map(set), [false, false, true, true]);
        let dumb = |text: Option<&str>| is_dumb(text.map(OsStr::new));
        assert_eq!([None, Some("xterm"), Some("dumb")].map(dumb), [false, false, true]);
    }
}

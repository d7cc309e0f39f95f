//! What keys do.

use super::model::{Model, Scroll};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// The keys, and what each does.
pub(super) const KEYS: [(&str, &str); 11] = [
    ("up, down, k, j", "one line up or down"),
    ("Page Up, Page Down", "one page up or down"),
    ("Home, End, g, G", "the first line, the last one"),
    ("Enter", "the service in detail"),
    ("Esc", "back: from the detail, from these keys, from the filter"),
    ("s, S", "sort by the next column, by the one before"),
    ("r", "turn the order round"),
    ("/", "filter by name or address: Enter keeps it, Esc drops it"),
    ("p", "pause: figures stay, the history goes on"),
    ("?", "these keys"),
    ("q, Ctrl-C", "end"),
];

/// Characters of a filter at most.
const FILTER_MAX: usize = 64;

impl Model {
    /// Handles a key. Whether it is over.
    pub(super) fn key(&mut self, key: KeyEvent) -> bool {
        match key.code {
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return true,
            code if self.typing => self.type_filter(code),
            KeyCode::Char('q') => return true,
            _ if self.help => self.help = false,
            KeyCode::Char('?') => self.help = true,
            KeyCode::Char('p') => self.paused = !self.paused,
            code if self.detail.is_some() => self.detail_key(code),
            code => self.table_key(code),
        }
        false
    }

    fn type_filter(&mut self, code: KeyCode) {
        match code {
            KeyCode::Char(letter) if self.filter.chars().count() < FILTER_MAX => self.filter.push(letter),
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Enter => self.typing = false,
            KeyCode::Esc => {
                self.filter.clear();
                self.typing = false;
            }
            _ => {}
        }
    }

    fn detail_key(&mut self, code: KeyCode) {
        match code {
            KeyCode::Esc | KeyCode::Backspace | KeyCode::Left => {
                self.detail = None;
                self.carriers = None;
            }
            _ => {
                if let Some(first) = moved(code, self.detail_scroll.first, self.detail_scroll) {
                    self.detail_scroll.to(first);
                }
            }
        }
    }

    fn table_key(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => {
                self.detail = self.selected_service();
                self.detail_scroll = Scroll::default();
            }
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Char('/') => self.typing = true,
            KeyCode::Char('s' | '>') => self.order = self.order.next(false, self.has_http()),
            KeyCode::Char('S' | '<') => self.order = self.order.next(true, self.has_http()),
            KeyCode::Char('r') => self.reversed = !self.reversed,
            _ => {
                let rows = self.rows();
                let (cursor, lines) = (self.cursor(&rows), rows.len());
                if let Some(position) = moved(code, cursor, Scroll { lines, ..self.scroll }) {
                    self.select(position);
                }
            }
        }
    }
}

/// Where a key leads from line `at`; `None`: it is none that moves.
fn moved(code: KeyCode, at: usize, scroll: Scroll) -> Option<usize> {
    let page = scroll.room.max(1);
    Some(match code {
        KeyCode::Up | KeyCode::Char('k') => at.saturating_sub(1),
        KeyCode::Down | KeyCode::Char('j') => at + 1,
        KeyCode::PageUp => at.saturating_sub(page),
        KeyCode::PageDown | KeyCode::Char(' ') => at + page,
        KeyCode::Home | KeyCode::Char('g') => 0,
        KeyCode::End | KeyCode::Char('G') => scroll.lines.saturating_sub(1),
        _ => return None,
    })
}

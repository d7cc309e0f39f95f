//! The table of services and backends: as wide as what stands in it, and without the columns that matter least where the
//! screen is narrower than that.

use super::model::TopRow;
use crate::render::{number, scaled};
use crate::status::{BackendStatus, ServiceStatus, Traffic};
use ratatui::layout::{Alignment, Constraint};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Cell, Row as TableRow, Table};
use std::ops::Range;

const HEADER: [&str; 8] = ["NAME", "ADDRESS", "STATE", "HEALTH", "CONNS", "NEW/s", "SOFTWARE", "OFFLOADED"];
const NAME: usize = 0;
const STATE: usize = 2;
const HEALTH: usize = 3;
/// The first column of numbers.
const NUMBERS: usize = 4;
/// Columns that a narrow screen goes without, the first one first. Without [`HEALTH`] the state says what is down.
const SPARED: [usize; 6] = [1, HEALTH, 6, 5, 7, STATE];
/// Between two columns.
const GAP: usize = 1;

/// The table of the rows `shown`, among all `rows`, in `width` columns of characters. Widths follow from all rows, so that
/// nothing moves while they scroll by.
pub(super) fn table(rows: &[TopRow<'_>], shown: Range<usize>, width: usize) -> Table<'static> {
    let texts: Vec<[String; HEADER.len()]> = rows.iter().map(texts).collect();
    let mut widths = HEADER.map(|title| title.chars().count());
    for row in &texts {
        for (width, text) in widths.iter_mut().zip(row) {
            *width = (*width).max(text.chars().count());
        }
    }
    let columns = fitting(&widths, width);
    let has_health = columns.contains(&HEALTH);
    let row = |at: usize| {
        let cells = columns.iter().map(|&column| match column {
            STATE if !has_health => Cell::new(with_health(&rows[at], &texts[at][STATE])),
            _ => cell(column, &texts[at][column]),
        });
        TableRow::new(cells.collect::<Vec<_>>()).style(style(&rows[at]))
    };
    let constraint = |&column: &usize| match column {
        NAME => Constraint::Fill(1),
        STATE if !has_health => Constraint::Length(state_width(rows, &texts) as u16),
        _ => Constraint::Length(widths[column] as u16),
    };
    let header = columns.iter().map(|&column| cell(column, HEADER[column]));
    let header = TableRow::new(header.collect::<Vec<_>>()).style(Style::new().add_modifier(Modifier::BOLD));
    Table::new(shown.map(row), columns.iter().map(constraint)).column_spacing(GAP as u16).header(header)
}

/// The columns that there is room for, in order.
fn fitting(widths: &[usize; HEADER.len()], width: usize) -> Vec<usize> {
    let mut columns: Vec<usize> = (0..HEADER.len()).collect();
    for spared in SPARED {
        let all: usize = columns.iter().map(|&column| widths[column] + GAP).sum();
        if all <= width + GAP {
            break;
        }
        columns.retain(|&column| column != spared);
    }
    columns
}

fn cell(column: usize, text: &str) -> Cell<'static> {
    match column {
        NUMBERS.. => Cell::new(Line::from(text.to_string()).alignment(Alignment::Right)),
        _ => Cell::new(text.to_string()),
    }
}

/// The contents of each column.
fn texts(row: &TopRow<'_>) -> [String; HEADER.len()] {
    let bits = |traffic: &Traffic| scaled(traffic.bits_per_s) + "bit/s";
    match row {
        TopRow::Service(service) => {
            let removed = if service.state == "removed" { "removed" } else { "" };
            let listen = if service.group_of.is_some() { "group" } else { &service.listen };
            let ServiceStatus { connections, connections_per_s, software, offloaded, .. } = service;
            let numbers = [number(*connections as f64), number(*connections_per_s), bits(software), bits(offloaded)];
            join([service.name.clone(), listen.to_string(), removed.into(), String::new()], numbers)
        }
        TopRow::Backend(backend) => {
            let hand = if backend.overridden { "*" } else { "" };
            let health = match &*backend.health.state {
                "" | "unchecked" => String::new(),
                state if backend.health.reason.is_empty() => state.to_string(),
                state => format!("{state}: {}", backend.health.reason),
            };
            let BackendStatus { connections, connections_per_s, software, offloaded, .. } = backend;
            let numbers = [number(*connections as f64), number(*connections_per_s), bits(software), bits(offloaded)];
            let words = [format!("  {}", backend.name), backend.address.clone(), format!("{}{hand}", backend.state)];
            let [name, address, state] = words;
            join([name, address, state, health], numbers)
        }
    }
}

fn join([a, b, c, d]: [String; 4], [e, f, g, h]: [String; 4]) -> [String; HEADER.len()] {
    [a, b, c, d, e, f, g, h]
}

/// The state of a row where nothing else tells of its health.
fn with_health(row: &TopRow<'_>, state: &str) -> String {
    match row {
        TopRow::Backend(backend) if backend.health.state == "down" => "down".to_string(),
        _ => state.to_string(),
    }
}

fn state_width(rows: &[TopRow<'_>], texts: &[[String; HEADER.len()]]) -> usize {
    let states = rows.iter().zip(texts).map(|(row, texts)| with_health(row, &texts[STATE]).chars().count());
    states.max().unwrap_or(0).max(HEADER[STATE].len())
}

fn style(row: &TopRow<'_>) -> Style {
    match row {
        TopRow::Service(_) => Style::new().add_modifier(Modifier::BOLD),
        TopRow::Backend(backend) => match (&*backend.health.state, &*backend.state) {
            ("down", _) => Style::new().fg(Color::Red),
            (_, "enabled") => Style::new(),
            _ => Style::new().add_modifier(Modifier::DIM),
        },
    }
}

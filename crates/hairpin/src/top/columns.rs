//! The table of services and backends, as lines: as wide as what stands in it, and without the columns that matter least where
//! there is less room than that.

use super::interval::{ResponseRates, ServiceInterval};
use super::model::TopRow;
use super::order::SortOrder;
use crate::render::{brief, cut, number, scaled};
use crate::status::Traffic;
use ratatui::style::{Color, Modifier, Style};
use unicode_width::UnicodeWidthStr;

/// A column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Column {
    Name,
    Address,
    Weight,
    State,
    Health,
    Connections,
    New,
    Requests,
    Errors,
    P50,
    P99,
    Software,
    Offloaded,
}

use Column::{Address, Connections, Errors, Health, Name, New, Offloaded, P50, P99, Requests, Software, State, Weight};

/// Those of the table of services, in order.
pub(super) const SERVICES: [Column; 12] =
    [Name, Address, State, Health, Connections, New, Requests, Errors, P50, P99, Software, Offloaded];
/// Those of the backends of a service that is shown in detail.
pub(super) const BACKENDS: [Column; 10] =
    [Name, Address, Weight, State, Connections, New, Requests, Errors, Software, Offloaded];

/// Columns that a narrow screen goes without, the first one first. Without [`Health`] the state says what is down.
const SPARED: [Column; 12] =
    [Address, Health, Software, New, Offloaded, P50, Errors, Weight, P99, Requests, State, Connections];
/// Characters of a name for which other columns give way.
const NAME_WANTED: usize = 24;
/// Characters of the reason for a backend's health; the detail has all of it.
const HEALTH_MAX: usize = 32;

impl Column {
    fn title(self) -> &'static str {
        match self {
            Name => "NAME",
            Address => "ADDRESS",
            Weight => "WEIGHT",
            State => "STATE",
            Health => "HEALTH",
            Connections => "CONNS",
            New => "NEW/s",
            Requests => "REQ/s",
            Errors => "5xx/s",
            P50 => "P50",
            P99 => "P99",
            Software => "SOFTWARE",
            Offloaded => "OFFLOADED",
        }
    }

    /// Whether numbers stand in it, to the right.
    fn is_number(self) -> bool {
        !matches!(self, Name | Address | State | Health)
    }

    /// Whether only HTTP services have it.
    fn is_http(self) -> bool {
        matches!(self, Requests | Errors | P50 | P99)
    }

    fn is_sorted_by(self, order: SortOrder) -> bool {
        let column = match order {
            SortOrder::Configuration => return false,
            SortOrder::Name => Name,
            SortOrder::State => State,
            SortOrder::Connections => Connections,
            SortOrder::New => New,
            SortOrder::Requests => Requests,
            SortOrder::Errors => Errors,
            SortOrder::P50 => P50,
            SortOrder::P99 => P99,
            SortOrder::Software => Software,
            SortOrder::Offloaded => Offloaded,
        };
        self == column
    }

    /// What stands there of a row.
    fn text(self, row: &TopRow<'_>, has_health: bool) -> String {
        let rate = |rate: Option<f64>| rate.map_or_else(String::new, number);
        let latency = |of: fn(&crate::control::LatencyView) -> f64| {
            let in_all = row.interval().and_then(ServiceInterval::in_all);
            in_all.as_ref().map_or_else(String::new, |times| brief(of(times)))
        };
        let bits = |traffic: &Traffic| scaled(traffic.bits_per_s) + "bit/s";
        match self {
            Name => name(row),
            Address => address(row),
            State => state(row, has_health),
            Health => health(row),
            Weight => weight(row),
            Connections => number(row.connections() as f64),
            New => number(row.connections_per_s()),
            Requests => rate(row.requests_per_s()),
            Errors => rate(row.responses().map(ResponseRates::errors)),
            P50 => latency(|times| times.p50),
            P99 => latency(|times| times.p99),
            Software => bits(row.software()),
            Offloaded => bits(row.offloaded()),
        }
    }
}

fn name(row: &TopRow<'_>) -> String {
    match row {
        TopRow::Service(service, _) => service.name.clone(),
        TopRow::Backend(_, backend, _) => format!("  {}", backend.name),
    }
}

fn address(row: &TopRow<'_>) -> String {
    match row {
        TopRow::Service(service, _) if service.group_of.is_some() => "group".to_string(),
        TopRow::Service(service, _) => service.listen.clone(),
        TopRow::Backend(_, backend, _) => backend.address.clone(),
    }
}

fn weight(row: &TopRow<'_>) -> String {
    match row {
        TopRow::Service(..) => String::new(),
        TopRow::Backend(_, backend, _) => backend.weight.to_string(),
    }
}

/// The state of a row; where nothing else tells of its health, what is down.
fn state(row: &TopRow<'_>, has_health: bool) -> String {
    match row {
        TopRow::Service(service, _) if service.state == "removed" => "removed".to_string(),
        TopRow::Service(..) => String::new(),
        TopRow::Backend(_, backend, _) if !has_health && backend.health.state == "down" => "down".to_string(),
        TopRow::Backend(_, backend, _) => format!("{}{}", backend.state, if backend.overridden { "*" } else { "" }),
    }
}

fn health(row: &TopRow<'_>) -> String {
    let TopRow::Backend(_, backend, _) = row else { return String::new() };
    match (&*backend.health.state, &*backend.health.reason) {
        ("" | "unchecked", _) => String::new(),
        (state, "") => state.to_string(),
        (state, reason) => cut(&format!("{state}: {reason}"), HEALTH_MAX),
    }
}

/// A table as lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Lines {
    /// The titles. That of the column that rows are sorted by has a mark.
    pub(super) header: String,
    /// A line for each row.
    pub(super) rows: Vec<String>,
}

/// The table of `rows` with the columns of `all` for which `width` has room; `None`: with all of them, and nothing is cut. Those
/// of HTTP are there if `has_http`. Widths follow from all rows, so that nothing moves while they scroll by.
pub(super) fn table(
    rows: &[TopRow<'_>],
    all: &[Column],
    has_http: bool,
    (order, reversed): (SortOrder, bool),
    width: Option<usize>,
) -> Lines {
    let title = |column: Column| match (column.is_sorted_by(order), (order == SortOrder::Name) ^ reversed) {
        (false, _) => column.title().to_string(),
        (true, false) => format!("{}▼", column.title()),
        (true, true) => format!("{}▲", column.title()),
    };
    let mut columns: Vec<TextColumn> = Vec::new();
    for &column in all.iter().filter(|column| has_http || !column.is_http()) {
        let texts = rows.iter().map(|row| column.text(row, true)).collect();
        columns.push(TextColumn::new(column, title(column), texts, column.is_sorted_by(order)));
    }
    fit(&mut columns, width);
    if !columns.iter().any(|column| column.column == Health)
        && let Some(state) = columns.iter_mut().find(|column| column.column == State)
    {
        let texts = rows.iter().map(|row| State.text(row, false)).collect();
        *state = TextColumn::new(State, title(State), texts, false);
    }
    stretch(&mut columns, width);
    let line = |cells: Vec<&str>| {
        let cells = columns.iter().zip(cells).map(|(column, cell)| column.padded(cell));
        cells.collect::<Vec<_>>().join(" ").trim_end().to_string()
    };
    Lines {
        header: line(columns.iter().map(|column| &*column.title).collect()),
        rows: (0..rows.len()).map(|at| line(columns.iter().map(|column| &*column.texts[at]).collect())).collect(),
    }
}

/// A column with what stands in it.
struct TextColumn {
    column: Column,
    title: String,
    texts: Vec<String>,
    /// As wide as the widest text.
    width: usize,
    is_sorted_by: bool,
}

impl TextColumn {
    fn new(column: Column, title: String, texts: Vec<String>, is_sorted_by: bool) -> TextColumn {
        let width = texts.iter().map(|text| text.width()).max().unwrap_or(0).max(title.width());
        TextColumn { column, title, texts, width, is_sorted_by }
    }

    /// A text in the column's width.
    fn padded(&self, text: &str) -> String {
        let text = cut(text, self.width);
        let space = " ".repeat(self.width - text.width());
        if self.column.is_number() { space + &text } else { text + &space }
    }
}

/// Leaves out columns until the others fit. The one that rows are sorted by goes last.
fn fit(columns: &mut Vec<TextColumn>, width: Option<usize>) {
    let Some(width) = width else { return };
    let sorted = columns.iter().find(|column| column.is_sorted_by).map(|column| column.column);
    let spared = SPARED.into_iter().filter(|column| Some(*column) != sorted).chain(sorted);
    for spared in spared.filter(|spared| *spared != Name) {
        let wanted = |column: &TextColumn| match column.column {
            Name => column.width.min(NAME_WANTED),
            _ => column.width,
        };
        let all: usize = columns.iter().map(|column| wanted(column) + 1).sum();
        if all <= width + 1 {
            return;
        }
        columns.retain(|column| column.column != spared);
    }
}

/// Gives names what room is left.
fn stretch(columns: &mut [TextColumn], width: Option<usize>) {
    let Some(width) = width else { return };
    let others: usize = columns.iter().filter(|column| column.column != Name).map(|column| column.width + 1).sum();
    if let Some(name) = columns.iter_mut().find(|column| column.column == Name) {
        name.width = width.saturating_sub(others);
    }
}

/// How a row stands out.
pub(super) fn style(row: &TopRow<'_>) -> Style {
    match row {
        TopRow::Service(..) => Style::new().add_modifier(Modifier::BOLD),
        TopRow::Backend(_, backend, _) => match (&*backend.health.state, &*backend.state) {
            ("down", _) => Style::new().fg(Color::Red),
            (_, "enabled") => Style::new(),
            _ => Style::new().add_modifier(Modifier::DIM),
        },
    }
}

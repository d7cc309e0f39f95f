//! Results: lines as they come, a table at the end, a JSON file per benchmark.

use super::samples::RepeatedValues;
use anyhow::{Context, Result};
use comfy_table::presets::UTF8_BORDERS_ONLY;
use comfy_table::{CellAlignment, Table};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;

/// One comparison: ours, what stands beside it, and the bar.
#[derive(Clone, Debug, Serialize)]
pub struct ReportRow {
    /// The measured quantity.
    pub case: String,
    /// In what.
    pub unit: &'static str,
    /// Our median.
    pub ours: f64,
    /// Half the range of ours, as a share of the median.
    pub spread: f64,
    /// The others' medians.
    pub beside: BTreeMap<String, f64>,
    /// Which of them, or what value, the ratio is against.
    pub against: String,
    /// That value.
    pub limit: f64,
    /// Ours divided by the limit; of rounds that were compared one by one, the median of their ratios.
    pub ratio: f64,
    /// The bound of the ratio.
    pub bar: Bar,
    /// Whether it is.
    pub held: bool,
}

/// A bound of a ratio.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bar {
    /// That or more.
    AtLeast(f64),
    /// That or less.
    AtMost(f64),
    /// At most that far from 1.
    Within(f64),
}

impl Bar {
    /// Whether `ratio` keeps it; NaN never does.
    pub fn holds(self, ratio: f64) -> bool {
        match self {
            Bar::AtLeast(bar) => ratio >= bar,
            Bar::AtMost(bar) => ratio <= bar,
            Bar::Within(bar) => (ratio - 1.0).abs() <= bar,
        }
    }

    fn text(self) -> String {
        match self {
            Bar::AtLeast(bar) => format!(">= {bar}"),
            Bar::AtMost(bar) => format!("<= {bar}"),
            Bar::Within(bar) => format!("1 +- {bar}"),
        }
    }
}

impl ReportRow {
    /// Ours against one of those beside it.
    pub fn new(
        case: impl Into<String>,
        unit: &'static str,
        ours: &RepeatedValues,
        beside: &BTreeMap<String, f64>,
        against: &str,
        bar: Bar,
    ) -> ReportRow {
        let limit = beside.get(against).copied().unwrap_or(f64::NAN);
        let beside = beside.clone();
        ReportRow { beside, ..ReportRow::against_value(case, unit, ours, against, limit, bar) }
    }

    /// Ours against one of those beside it, round by round: where the machine is now fast and now slow, and a round's
    /// measurements follow each other closely, their ratio says more than that of two medians.
    pub fn alternating(
        case: impl Into<String>,
        unit: &'static str,
        ours: &RepeatedValues,
        (against, others): (&str, &RepeatedValues),
        mut beside: BTreeMap<String, f64>,
        bar: Bar,
    ) -> ReportRow {
        beside.insert(against.to_owned(), others.median());
        let ratio = ours.beside(others).median();
        ReportRow { ratio, held: bar.holds(ratio), ..ReportRow::new(case, unit, ours, &beside, against, bar) }
    }

    /// Ours against a fixed value.
    pub fn against_value(
        case: impl Into<String>,
        unit: &'static str,
        ours: &RepeatedValues,
        against: &str,
        limit: f64,
        bar: Bar,
    ) -> ReportRow {
        let ratio = ours.median() / limit;
        ReportRow {
            case: case.into(),
            unit,
            ours: ours.median(),
            spread: ours.spread(),
            beside: BTreeMap::new(),
            against: against.to_owned(),
            limit,
            ratio,
            bar,
            held: bar.holds(ratio),
        }
    }
}

/// A number with three or so digits and a metric prefix.
pub fn metric(value: f64) -> String {
    let (value, prefix) = match value.abs() {
        v if v >= 1e9 => (value / 1e9, " G"),
        v if v >= 1e6 => (value / 1e6, " M"),
        v if v >= 1e4 => (value / 1e3, " k"),
        _ => (value, " "),
    };
    let digits = if value.abs() >= 100.0 { 0 } else { 2 };
    format!("{value:.digits$}{prefix}")
}

/// The rows as people read them.
pub fn table(rows: &[ReportRow]) -> String {
    let mut table = Table::new();
    table.load_style(UTF8_BORDERS_ONLY);
    table.set_header(["case", "Hairpin", "±", "beside it", "against", "ratio", "bar", ""]);
    for row in rows {
        let beside = row.beside.iter().map(|(name, value)| format!("{name} {}", metric(*value)));
        table.add_row([
            row.case.clone(),
            format!("{}{}", metric(row.ours), row.unit),
            format!("{:.0} %", row.spread * 100.0),
            beside.collect::<Vec<_>>().join(", "),
            row.against.clone(),
            format!("{:.2}", row.ratio),
            row.bar.text(),
            (if row.held { "held" } else { "MISSED" }).to_owned(),
        ]);
    }
    for column in [1, 2, 5] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.to_string()
}

/// Writes the rows, or other results, of a benchmark to `directory/name.json`.
pub fn write<T: Serialize + ?Sized>(directory: &Path, name: &str, rows: &T) -> Result<()> {
    std::fs::create_dir_all(directory).with_context(|| format!("could not make {}", directory.display()))?;
    let path = directory.join(format!("{name}.json"));
    std::fs::write(&path, serde_json::to_string_pretty(rows)? + "\n")
        .with_context(|| format!("could not write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars() {
        assert!(Bar::AtLeast(0.9).holds(0.9) && !Bar::AtLeast(0.9).holds(0.89));
        assert!(Bar::AtMost(2.0).holds(2.0) && !Bar::AtMost(2.0).holds(2.01));
        assert!(Bar::Within(0.15).holds(1.1) && Bar::Within(0.15).holds(0.9) && !Bar::Within(0.15).holds(0.5));
        assert!(!Bar::Within(0.15).holds(2.0) && !Bar::Within(0.15).holds(f64::NAN));
        assert!(!Bar::AtLeast(0.0).holds(f64::NAN) && !Bar::AtMost(9.0).holds(f64::NAN));
    }

    #[test]
    fn numbers() {
        assert_eq!(metric(21_600_000_000.0), "21.60 G");
        assert_eq!(metric(46_000.0), "46.00 k");
        assert_eq!(metric(123.4), "123 ");
        assert_eq!(metric(0.5), "0.50 ");
    }

    #[test]
    fn a_missing_peer_misses_the_bar() {
        let mut ours = RepeatedValues::default();
        ours.push(1.0);
        let row = ReportRow::new("x", "bit/s", &ours, &BTreeMap::new(), "routed", Bar::AtLeast(0.1));
        assert!(!row.held);
    }
}

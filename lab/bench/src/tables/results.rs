//! The measured values, and how they read.

use super::case::TablesCase;
use super::measure::ThreadsRate;
use super::subject::TableSize;
use crate::suite::samples::RepeatedValues;
use anyhow::{Context, Result};
use comfy_table::presets::UTF8_BORDERS_ONLY;
use comfy_table::{CellAlignment, Table};
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

/// The subject of a figure: one method, of some size, in one repetition.
#[derive(Clone, Debug)]
pub(super) struct FigureKey {
    pub method: String,
    /// Slots that tables of this size have, a power of two.
    pub slots: usize,
    /// Entries in it.
    pub entries: usize,
    pub threads: usize,
    pub repetition: usize,
    /// Whether they belong to the series by load factor.
    pub by_load: bool,
    pub rates: BTreeMap<TablesCase, ThreadsRate>,
}

impl FigureKey {
    /// Figures to come.
    pub(super) fn of(method: &str, size: &TableSize, threads: usize, repetition: usize) -> FigureKey {
        let &TableSize { slots, entries, brim } = size;
        let (method, rates) = (method.to_owned(), BTreeMap::new());
        FigureKey { method, slots, entries, threads, repetition, by_load: brim, rates }
    }
}

impl fmt::Display for FigureKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FigureKey { method, slots, entries, threads, .. } = self;
        let (slots, load) = (size_name(*slots), *entries as f64 / *slots as f64 * 100.0);
        write!(f, "{slots} slots {load:.0} % full, {threads} thread(s): {method}")
    }
}

/// Bytes per stored entry, or the load factor at the first refusal.
#[derive(Clone, Debug)]
pub(super) struct Fact {
    pub method: String,
    pub what: &'static str,
    pub unit: &'static str,
    pub slots: usize,
    pub entries: usize,
    pub value: f64,
}

/// All there is.
#[derive(Default)]
pub(super) struct TableResults {
    pub figures: Vec<FigureKey>,
    pub facts: Vec<Fact>,
    /// The cases that could not be measured, with the reason.
    pub failures: Vec<String>,
}

/// The name of [`Fact`]s.
pub(super) const BYTES: &str = "bytes per stored entry";
/// The name of [`Fact`]s.
pub(super) const REFUSAL: &str = "load factor at first refusal";

impl TableResults {
    /// Keeps what a round gave, and says so; whether it gave anything.
    pub(super) fn record(&mut self, of: &FigureKey, round: Result<BTreeMap<TablesCase, ThreadsRate>>) -> bool {
        match round {
            Ok(rates) => {
                let shown = rates.iter().map(|(case, rate)| format!("{} {:.1} M", case.name(), rate.per_second / 1e6));
                eprintln!("  {of}: {} per second", shown.collect::<Vec<_>>().join(", "));
                self.figures.push(FigureKey { rates, ..of.clone() });
                true
            }
            Err(error) => {
                eprintln!("  {of}: FAILED: {error:#}");
                self.failures.push(format!("{of}: {error:#}"));
                false
            }
        }
    }

    /// The rates of one method in one case, by repetition; apart from the series by load factor.
    pub(super) fn samples(
        &self,
        method: &str,
        case: TablesCase,
        slots: usize,
        threads: usize,
    ) -> Option<RepeatedValues> {
        self.select(case, |of| !of.by_load && (&*of.method, of.slots, of.threads) == (method, slots, threads))
    }

    /// The rates of one method in one case with that many entries, in the series by load factor.
    pub(super) fn at_load(&self, method: &str, case: TablesCase, entries: usize) -> Option<RepeatedValues> {
        self.select(case, |of| of.by_load && (&*of.method, of.entries) == (method, entries))
    }

    fn select(&self, case: TablesCase, wanted: impl Fn(&FigureKey) -> bool) -> Option<RepeatedValues> {
        let figures = self.figures.iter().filter(|of| wanted(of));
        let samples: Vec<f64> = figures.filter_map(|of| Some(of.rates.get(&case)?.per_second)).collect();
        (!samples.is_empty()).then(|| RepeatedValues::from(samples))
    }

    /// A fact.
    pub(super) fn fact(&self, method: &str, what: &str, slots: usize) -> Option<f64> {
        let fact = self.facts.iter().find(|fact| (&*fact.method, fact.what, fact.slots) == (method, what, slots));
        fact.map(|fact| fact.value)
    }

    /// How far each method can be filled.
    pub(super) fn refusals(&self) -> String {
        let mut table = Table::new();
        table.load_style(UTF8_BORDERS_ONLY);
        table.set_header(["", REFUSAL]);
        for fact in self.facts.iter().filter(|fact| fact.what == REFUSAL) {
            table.add_row([fact.method.clone(), format!("{:.1} %", fact.value * 100.0)]);
        }
        table.to_string()
    }

    /// The methods that have figures, in order of appearance.
    pub(super) fn methods(&self) -> Vec<&str> {
        let mut methods: Vec<&str> = Vec::new();
        for figure in &self.figures {
            if !methods.contains(&&*figure.method) {
                methods.push(&figure.method);
            }
        }
        methods
    }

    /// The medians of one size and number of threads, with the range in brackets, millions per second: lookups, then
    /// changes.
    pub(super) fn tables(&self, slots: usize, threads: usize) -> String {
        let (lookups, changes): (Vec<TablesCase>, Vec<TablesCase>) =
            TablesCase::ALL.into_iter().partition(|case| case.is_lookup());
        [self.table(slots, threads, &lookups), self.table(slots, threads, &changes)].join("\n")
    }

    fn table(&self, slots: usize, threads: usize, cases: &[TablesCase]) -> String {
        let methods = self.methods();
        let measured =
            |case: &TablesCase| methods.iter().any(|method| self.samples(method, *case, slots, threads).is_some());
        let cases: Vec<TablesCase> = cases.iter().copied().filter(measured).collect();
        let mut table = Table::new();
        table.load_style(UTF8_BORDERS_ONLY);
        let titles = cases.iter().map(|case| format!("{}\nM {}", case.name(), case.unit()));
        table.set_header([String::new()].into_iter().chain(titles).chain(["memory\nbyte/entry".to_owned()]));
        for method in methods {
            let cells: Vec<String> = cases
                .iter()
                .map(|case| self.samples(method, *case, slots, threads).map_or_else(String::new, millions))
                .collect();
            if cells.iter().all(String::is_empty) {
                continue;
            }
            let bytes = self.fact(method, BYTES, slots).map_or_else(String::new, |bytes| format!("{bytes:.1}"));
            table.add_row([method.to_owned()].into_iter().chain(cells).chain([bytes]));
        }
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        table.to_string()
    }

    /// The share of figures during which every thread ran for at least 97 percent of the time.
    pub(super) fn undisturbed(&self) -> f64 {
        let rates: Vec<&ThreadsRate> = self.figures.iter().flat_map(|of| of.rates.values()).collect();
        rates.iter().filter(|rate| rate.running >= 0.97).count() as f64 / rates.len().max(1) as f64
    }

    /// Writes everything there is: a line for each method, case and repetition.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub(super) fn write_csv(&self, path: &Path, machine: &str, pages: &str) -> Result<()> {
        let mut csv = csv::Writer::from_path(path).with_context(|| format!("could not write {}", path.display()))?;
        csv.write_record([
            "series",
            "method",
            "case",
            "slots",
            "entries",
            "load_factor",
            "threads",
            "repetition",
            "value",
            "unit",
            "running",
            "pages",
            "machine",
        ])?;
        for of in &self.figures {
            for (case, rate) in &of.rates {
                csv.write_record([
                    if of.by_load { "load factor" } else { "size" },
                    &*of.method,
                    case.name(),
                    &of.slots.to_string(),
                    &of.entries.to_string(),
                    &format!("{:.3}", of.entries as f64 / of.slots as f64),
                    &of.threads.to_string(),
                    &of.repetition.to_string(),
                    &format!("{:.0}", rate.per_second),
                    case.unit(),
                    &format!("{:.3}", rate.running),
                    pages,
                    machine,
                ])?;
            }
        }
        for fact in &self.facts {
            csv.write_record([
                "fact",
                &*fact.method,
                fact.what,
                &fact.slots.to_string(),
                &fact.entries.to_string(),
                &format!("{:.3}", fact.entries as f64 / fact.slots as f64),
                "1",
                "0",
                &format!("{:.4}", fact.value),
                fact.unit,
                "",
                pages,
                machine,
            ])?;
        }
        csv.flush().with_context(|| format!("could not write {}", path.display()))
    }
}

/// A median with its range, in millions.
fn millions(samples: RepeatedValues) -> String {
    let (low, high) = samples.range();
    format!("{:.1} ({:.1}..{:.1})", samples.median() / 1e6, low / 1e6, high / 1e6)
}

/// A number of slots, a power of two: in Ki or Mi.
pub(super) fn size_name(slots: usize) -> String {
    if slots >= 1 << 20 { format!("{} Mi", slots >> 20) } else { format!("{} Ki", slots >> 10) }
}

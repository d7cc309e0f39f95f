//! The bars for the tables, from one run's figures.

use super::case::TablesCase;
use super::methods::{COPIES, ONE_LINE, TWO_LINES, default_name};
use super::results::{BYTES, TableResults};
use super::soak::Soaked;
use crate::suite::report::{Bar, ReportRow};
use crate::suite::samples::RepeatedValues;
use hairpin_tables::OwnMethod;
use std::collections::BTreeMap;

/// The peer.
const PEER: &str = "rte-hash/lock-free";
/// The value beside a bar.
const BESIDE: [&str; 5] = [PEER, "per-core/rte-hash", "libcuckoo", "dashmap", "per-core/hashbrown"];
/// Ours that threads share.
const SHARED: &str = "concurrent";
const LARGE: usize = 1 << 23;
const SMALL: usize = 1 << 20;
/// Bytes a stored entry may take.
const BYTES_MAX: f64 = 40.0;

/// Which of ours.
#[derive(Clone, Copy, PartialEq)]
enum Ours {
    /// The default of workers.
    Default,
    /// The one that threads share.
    Shared,
    /// The one that has keys and values itself.
    Inline,
}

impl Ours {
    fn name(self) -> String {
        match self {
            Ours::Default => default_name(),
            Ours::Shared => SHARED.to_owned(),
            Ours::Inline => format!("per-core/{}", OwnMethod::Inline),
        }
    }
}

/// One bar of a rate against the peer.
struct PeerBar {
    case: TablesCase,
    slots: usize,
    threads: usize,
    ours: Ours,
    bar: f64,
}

const fn private(case: TablesCase, slots: usize, bar: f64) -> PeerBar {
    PeerBar { case, slots, threads: 1, ours: Ours::Default, bar }
}

const fn inline(case: TablesCase, slots: usize, bar: f64) -> PeerBar {
    PeerBar { case, slots, threads: 1, ours: Ours::Inline, bar }
}

const fn beside(case: TablesCase, bar: f64) -> PeerBar {
    PeerBar { case, slots: LARGE, threads: 2, ours: Ours::Shared, bar }
}

const RATES: [PeerBar; 12] = [
    private(TablesCase::Hits, LARGE, 1.6),
    private(TablesCase::Misses, LARGE, 2.0),
    private(TablesCase::Hits, SMALL, 1.4),
    private(TablesCase::Inserts, LARGE, 2.0),
    private(TablesCase::Deletes, LARGE, 2.0),
    inline(TablesCase::Hits, LARGE, 1.6),
    inline(TablesCase::Misses, LARGE, 2.0),
    inline(TablesCase::Hits, SMALL, 1.4),
    inline(TablesCase::Inserts, LARGE, 2.0),
    inline(TablesCase::Deletes, LARGE, 2.0),
    beside(TablesCase::ReadersBesideWriter, 1.3),
    beside(TablesCase::WriterBesideReaders, 1.5),
];

impl PeerBar {
    fn title(&self) -> String {
        let slots = super::size_name(self.slots);
        let ours = self.ours.name();
        format!("{ours}, {} of {slots} slots, {} thread(s)", self.case.name(), self.threads)
    }

    /// `None` if either was not measured.
    fn row(&self, results: &TableResults) -> Option<ReportRow> {
        let ours = self.ours.name();
        let of = |method: &str| results.samples(method, self.case, self.slots, self.threads);
        let mut beside = BTreeMap::new();
        for method in BESIDE {
            if let Some(samples) = of(method) {
                beside.insert(method.to_owned(), samples.median());
            }
        }
        beside.contains_key(PEER).then_some(())?;
        // The bytes that a lookup has to read; there are no misses of that.
        let limit = match self.case {
            TablesCase::Hits => Some(TWO_LINES),
            TablesCase::Misses => Some(ONE_LINE),
            _ => None,
        };
        if let Some((limit, samples)) =
            limit.and_then(|limit| Some((limit, results.samples(limit, TablesCase::Hits, self.slots, self.threads)?)))
        {
            beside.insert(limit.to_owned(), samples.median());
        }
        let bar = Bar::AtLeast(self.bar);
        Some(ReportRow::new(self.title(), self.case.unit(), &of(&ours)?, &beside, PEER, bar))
    }
}

/// How two readers scale, beside two that each have a table as large.
const SCALING: &str = "two readers of one table, as a multiple of one, beside one table each";
/// Beside two among whose tables the entries are divided: each is half as large, and so faster.
const SCALING_HALVES: &str = "the same, beside half a table each";

/// How two readers of the shared table scale, against two that share nothing; each pair was measured in one round. What
/// memory allows stands beside it: two threads that read the same arrays, and none that writes.
fn scaling(results: &TableResults, title: &str, against: &str) -> Option<ReportRow> {
    let of = |method: &str| {
        let (one, two) = (
            results.samples(method, TablesCase::Hits, LARGE, 1)?,
            results.samples(method, TablesCase::Hits, LARGE, 2)?,
        );
        Some(RepeatedValues::from(
            two.values().iter().zip(one.values()).map(|(two, one)| two / one).collect::<Vec<_>>(),
        ))
    };
    let shared = of(SHARED)?;
    let mut beside = BTreeMap::from([(against.to_owned(), of(against)?.median())]);
    beside.extend(of(TWO_LINES).map(|limit| (TWO_LINES.to_owned(), limit.median())));
    Some(ReportRow::new(title, "x", &shared, &beside, against, Bar::AtLeast(0.95)))
}

/// Bytes per stored entry.
fn bytes(results: &TableResults, ours: Ours) -> Option<ReportRow> {
    let slots = LARGE;
    let bytes = results.fact(&ours.name(), BYTES, slots)?;
    let of = |method: &str| Some((method.to_owned(), results.fact(method, BYTES, slots)?));
    let beside = BESIDE.into_iter().filter_map(of);
    let samples = RepeatedValues::from(vec![bytes]);
    let row = ReportRow::against_value(bytes_title(ours), "byte", &samples, "40", BYTES_MAX, Bar::AtMost(1.0));
    Some(ReportRow { beside: beside.collect(), ..row })
}

/// The tables whose memory has a bar.
const SMALL_ONES: [Ours; 2] = [Ours::Default, Ours::Inline];

fn bytes_title(ours: Ours) -> String {
    format!("{}, bytes per stored entry of 16 + 8", ours.name())
}

fn soak_title(method: &str) -> String {
    format!("{method}, random operations answered as by a plain map")
}

/// Every bar for which there are figures.
pub(super) fn rows(results: &TableResults, soaked: &[Soaked]) -> Vec<ReportRow> {
    let mut rows: Vec<ReportRow> = RATES.iter().filter_map(|against| against.row(results)).collect();
    rows.extend(scaling(results, SCALING, COPIES));
    rows.extend(scaling(results, SCALING_HALVES, &default_name()));
    rows.extend(SMALL_ONES.into_iter().filter_map(|ours| bytes(results, ours)));
    for Soaked { method, operations, wrong, .. } in soaked {
        let (right, all) = ((operations - wrong) as f64, *operations as f64);
        let right = RepeatedValues::from(vec![right]);
        rows.push(ReportRow::against_value(soak_title(method), "operations", &right, "all", all, Bar::AtLeast(1.0)));
    }
    rows
}

/// The bars for which there are none.
pub(super) fn missing(rows: &[ReportRow]) -> Vec<String> {
    let titles = RATES
        .iter()
        .map(PeerBar::title)
        .chain([SCALING, SCALING_HALVES].map(str::to_owned))
        .chain(SMALL_ONES.map(bytes_title));
    titles.filter(|title| !rows.iter().any(|row| row.case == *title)).collect()
}

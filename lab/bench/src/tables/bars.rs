//! What the tables have to reach, from one run's figures.

use super::case::Case;
use super::methods::{COPIES, ONE_LINE, TWO_LINES, default_name};
use super::results::{BYTES, Results};
use super::soak::Soaked;
use crate::suite::report::{Bar, Row};
use crate::suite::samples::Samples;
use hairpin_tables::OwnMethod;
use std::collections::BTreeMap;

/// The peer.
const PEER: &str = "rte-hash/lock-free";
/// What else stands beside a bar.
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
struct Against {
    case: Case,
    slots: usize,
    threads: usize,
    ours: Ours,
    bar: f64,
}

const fn private(case: Case, slots: usize, bar: f64) -> Against {
    Against { case, slots, threads: 1, ours: Ours::Default, bar }
}

const fn inline(case: Case, slots: usize, bar: f64) -> Against {
    Against { case, slots, threads: 1, ours: Ours::Inline, bar }
}

const fn beside(case: Case, bar: f64) -> Against {
    Against { case, slots: LARGE, threads: 2, ours: Ours::Shared, bar }
}

const RATES: [Against; 12] = [
    private(Case::Hits, LARGE, 1.6),
    private(Case::Misses, LARGE, 2.0),
    private(Case::Hits, SMALL, 1.4),
    private(Case::Inserts, LARGE, 2.0),
    private(Case::Deletes, LARGE, 2.0),
    inline(Case::Hits, LARGE, 1.6),
    inline(Case::Misses, LARGE, 2.0),
    inline(Case::Hits, SMALL, 1.4),
    inline(Case::Inserts, LARGE, 2.0),
    inline(Case::Deletes, LARGE, 2.0),
    beside(Case::ReadersBesideWriter, 1.3),
    beside(Case::WriterBesideReaders, 1.5),
];

impl Against {
    fn title(&self) -> String {
        let slots = super::size_name(self.slots);
        let ours = self.ours.name();
        format!("{ours}, {} of {slots} slots, {} thread(s)", self.case.name(), self.threads)
    }

    /// `None` if either was not measured.
    fn row(&self, results: &Results) -> Option<Row> {
        let ours = self.ours.name();
        let of = |method: &str| results.samples(method, self.case, self.slots, self.threads);
        let mut beside = BTreeMap::new();
        for method in BESIDE {
            if let Some(samples) = of(method) {
                beside.insert(method.to_owned(), samples.median());
            }
        }
        beside.contains_key(PEER).then_some(())?;
        // What a lookup has to read; there are no misses of that.
        let limit = match self.case {
            Case::Hits => Some(TWO_LINES),
            Case::Misses => Some(ONE_LINE),
            _ => None,
        };
        if let Some((limit, samples)) =
            limit.and_then(|limit| Some((limit, results.samples(limit, Case::Hits, self.slots, self.threads)?)))
        {
            beside.insert(limit.to_owned(), samples.median());
        }
        let bar = Bar::AtLeast(self.bar);
        Some(Row::new(self.title(), self.case.unit(), &of(&ours)?, &beside, PEER, bar))
    }
}

/// How two readers scale, beside two that each have a table as large.
const SCALING: &str = "two readers of one table, as a multiple of one, beside one table each";
/// Beside two among whose tables the entries are divided: each is half as large, and so faster.
const SCALING_HALVES: &str = "the same, beside half a table each";

/// How two readers of the shared table scale, against two that share nothing; each pair was measured in one round. What
/// memory allows stands beside it: two threads that read the same arrays, and none that writes.
fn scaling(results: &Results, title: &str, against: &str) -> Option<Row> {
    let of = |method: &str| {
        let (one, two) =
            (results.samples(method, Case::Hits, LARGE, 1)?, results.samples(method, Case::Hits, LARGE, 2)?);
        Some(Samples::from(two.values().iter().zip(one.values()).map(|(two, one)| two / one).collect::<Vec<_>>()))
    };
    let shared = of(SHARED)?;
    let mut beside = BTreeMap::from([(against.to_owned(), of(against)?.median())]);
    beside.extend(of(TWO_LINES).map(|limit| (TWO_LINES.to_owned(), limit.median())));
    Some(Row::new(title, "x", &shared, &beside, against, Bar::AtLeast(0.95)))
}

/// Bytes per stored entry.
fn bytes(results: &Results, ours: Ours) -> Option<Row> {
    let slots = LARGE;
    let bytes = results.fact(&ours.name(), BYTES, slots)?;
    let of = |method: &str| Some((method.to_owned(), results.fact(method, BYTES, slots)?));
    let beside = BESIDE.into_iter().filter_map(of);
    let samples = Samples::from(vec![bytes]);
    let row = Row::against_value(bytes_title(ours), "byte", &samples, "40", BYTES_MAX, Bar::AtMost(1.0));
    Some(Row { beside: beside.collect(), ..row })
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
pub(super) fn rows(results: &Results, soaked: &[Soaked]) -> Vec<Row> {
    let mut rows: Vec<Row> = RATES.iter().filter_map(|against| against.row(results)).collect();
    rows.extend(scaling(results, SCALING, COPIES));
    rows.extend(scaling(results, SCALING_HALVES, &default_name()));
    rows.extend(SMALL_ONES.into_iter().filter_map(|ours| bytes(results, ours)));
    for Soaked { method, operations, wrong, .. } in soaked {
        let (right, all) = ((operations - wrong) as f64, *operations as f64);
        let right = Samples::from(vec![right]);
        rows.push(Row::against_value(soak_title(method), "operations", &right, "all", all, Bar::AtLeast(1.0)));
    }
    rows
}

/// The bars for which there are none.
pub(super) fn missing(rows: &[Row]) -> Vec<String> {
    let titles = RATES
        .iter()
        .map(Against::title)
        .chain([SCALING, SCALING_HALVES].map(str::to_owned))
        .chain(SMALL_ONES.map(bytes_title));
    titles.filter(|title| !rows.iter().any(|row| row.case == *title)).collect()
}

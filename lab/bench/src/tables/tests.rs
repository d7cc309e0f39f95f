//! All methods answer as they should, and one that does not is caught.

use super::case::TablesCase;
use super::keys::{self, BenchKey, KeyShare};
use super::measure::{self, ThreadsRate};
use super::methods;
use super::results::TableResults;
use super::subject::{Hands, LookupSum, TableSharing, TableSize, TableSubject};
use super::*;
use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;

const WINDOW: MeasureWindow = MeasureWindow { settle: Duration::from_millis(2), timed: Duration::from_millis(2) };
const SIZE: TableSize = TableSize { slots: 1 << 14, entries: (1 << 14) * 8 / 10, brim: false };

/// One or two threads, as there are processors.
fn threads(processors: &[usize]) -> Vec<usize> {
    (1..=processors.len().min(2)).collect()
}

fn rounds(
    subject: &dyn TableSubject,
    shares: &[Vec<KeyShare<'_>>],
    processors: &[usize],
) -> Result<Vec<BTreeMap<TablesCase, ThreadsRate>>> {
    measure::fill(subject, shares, processors)?;
    let twice = shares.iter().chain(shares).enumerate();
    twice.map(|(repetition, shares)| measure::round(subject, shares, WINDOW, repetition, processors)).collect()
}

#[test]
fn every_method_answers_as_it_should() {
    let processors = measure::processors().unwrap();
    let threads = threads(&processors);
    let population = keys::population(SIZE.entries, 1);
    let shares: Vec<_> = threads.iter().map(|&threads| keys::shares(&population, threads, 1)).collect();
    for method in methods::candidates(&[], false).unwrap() {
        let subject = match method.make(&SIZE, &threads) {
            Ok(subject) => subject,
            Err(error) => {
                println!("{}: {error:#}", method.name);
                continue;
            }
        };
        let rates =
            rounds(&*subject, &shares, &processors).unwrap_or_else(|error| panic!("{}: {error:#}", method.name));
        for (rates, shares) in rates.iter().zip(shares.iter().chain(&shares)) {
            assert!(rates.values().all(|rate| rate.per_second > 1.0), "{}: {rates:?}", method.name);
            let sharing = subject.sharing();
            assert_eq!(rates.contains_key(&TablesCase::Inserts), sharing.writers(shares.len()), "{}", method.name);
            let beside = shares.len() > 1 && sharing.beside_writer();
            assert_eq!(rates.contains_key(&TablesCase::WriterBesideReaders), beside, "{}", method.name);
        }
        assert!(sharing_is_told(&*subject, &method));
    }
}

/// As the series by load factor begins.
#[test]
fn every_method_can_be_made_empty() {
    let size = TableSize { slots: 1 << 14, entries: 0, brim: true };
    for method in methods::candidates(&[], false).unwrap() {
        let Ok(subject) = method.make(&size, &[1]) else { continue };
        let hands = subject.hands(1, 0);
        let found =
            hands.unwrap_or_else(|error| panic!("{}: {error:#}", method.name)).find_bursts(&[[7; 16]; 40]).count;
        assert!(found == 0 || subject.sharing() == TableSharing::Fixed, "{}", method.name);
    }
}

/// Private tables are divided; of all but those that keep nothing, memory is known.
fn sharing_is_told(subject: &dyn TableSubject, method: &Candidate) -> bool {
    let fixed = subject.sharing() == TableSharing::Fixed;
    let bytes = subject.bytes() as f64 / SIZE.entries as f64;
    (subject.sharing() == TableSharing::Private) == method.name.starts_with("per-core/") && (fixed || bytes > 24.0)
}

/// A map that makes mistakes.
struct Faulty {
    map: Mutex<HashMap<BenchKey, u64>>,
    mistake: Mistake,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Mistake {
    None,
    LosesOnInsert,
    WrongValue,
    KeepsDeleted,
    RefusesToDelete,
}

impl TableSubject for Faulty {
    fn sharing(&self) -> TableSharing {
        TableSharing::Any
    }

    fn hands(&self, _: usize, _: usize) -> Result<Box<dyn Hands + '_>> {
        Ok(Box::new(FaultyHands(self)))
    }

    fn bytes(&self) -> usize {
        0
    }

    fn slots(&self) -> Option<usize> {
        None
    }
}

struct FaultyHands<'a>(&'a Faulty);

impl FaultyHands<'_> {
    /// One key in 64 is treated badly.
    fn errs(&self, mistake: Mistake, key: &BenchKey) -> bool {
        self.0.mistake == mistake && key[15].is_multiple_of(64)
    }
}

impl Hands for FaultyHands<'_> {
    fn find_each(&mut self, keys: &[BenchKey]) -> LookupSum {
        let map = self.0.map.lock().unwrap();
        let mut found = LookupSum::default();
        keys.iter().for_each(|key| {
            let wrong = u64::from(self.errs(Mistake::WrongValue, key));
            found.add(map.get(key).map(|value| value + wrong));
        });
        found
    }

    fn find_bursts(&mut self, keys: &[BenchKey]) -> LookupSum {
        self.find_each(keys)
    }

    fn insert(&mut self, keys: &[BenchKey]) -> usize {
        let mut map = self.0.map.lock().unwrap();
        keys.iter().filter(|key| !self.errs(Mistake::LosesOnInsert, key)).for_each(|key| {
            map.insert(*key, u64::from(keys::value(key)));
        });
        keys.len()
    }

    fn remove(&mut self, keys: &[BenchKey]) -> usize {
        let mut map = self.0.map.lock().unwrap();
        let left = keys.iter().filter(|key| !self.errs(Mistake::RefusesToDelete, key));
        left.filter(|key| {
            map.contains_key(*key) && (self.errs(Mistake::KeepsDeleted, key) || map.remove(*key).is_some())
        })
        .count()
    }
}

#[test]
fn mistakes_are_errors() {
    let processors = measure::processors().unwrap();
    let threads = threads(&processors);
    let population = keys::population(SIZE.entries, 2);
    let shares: Vec<_> = threads.iter().map(|&threads| keys::shares(&population, threads, 2)).collect();
    let run = |mistake| {
        let map = Mutex::new(HashMap::new());
        let faulty = Faulty { map, mistake };
        rounds(&faulty, &shares, &processors)
    };
    run(Mistake::None).unwrap();
    for mistake in [Mistake::LosesOnInsert, Mistake::WrongValue, Mistake::KeepsDeleted, Mistake::RefusesToDelete] {
        assert!(run(mistake).is_err(), "{mistake:?} was not noticed");
    }
}

#[test]
fn failures_are_kept_and_figures_found_again() {
    let mut results = TableResults::default();
    let of = FigureKey::of("x", &SIZE, 1, 0);
    let rate = ThreadsRate { per_second: 5.0, running: 1.0 };
    assert!(results.record(&of, Ok(BTreeMap::from([(TablesCase::Hits, rate)]))));
    assert!(!results.record(&of, Err(anyhow::anyhow!("lost"))));
    assert_eq!(results.failures.len(), 1);
    assert_eq!(results.samples("x", TablesCase::Hits, SIZE.slots, 1).unwrap().median(), 5.0);
    assert!(results.samples("x", TablesCase::Misses, SIZE.slots, 1).is_none());
    assert!(results.samples("x", TablesCase::Hits, SIZE.slots, 2).is_none());
    assert!(results.tables(SIZE.slots, 1).contains("hits"));
}

#[test]
fn sizes_are_powers_of_two() {
    let sizes = ["100k", "1M", "2m", "8M", "4096"].map(|text| slots(text).unwrap());
    assert_eq!(sizes, [1 << 17, 1 << 20, 1 << 21, 1 << 23, 4096]);
    for text in ["", "k", "-1", "1G", "4095", "1001M", "99999999999999999999", "1k k"] {
        assert!(slots(text).is_err(), "{text}");
    }
}

#[test]
fn methods_are_found_by_name() {
    let name = methods::default_name();
    let short = name.strip_prefix("per-core/").unwrap().to_owned();
    for asked in [name.clone(), short] {
        let found = methods::candidates(&[asked], false).unwrap();
        assert_eq!(found.iter().map(|method| &*method.name).collect::<Vec<_>>(), [&*name]);
    }
    assert!(methods::candidates(&["no-such".to_owned()], false).is_err());
}

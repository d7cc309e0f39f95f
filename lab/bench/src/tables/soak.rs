//! No key is ever lost: random operations on our own tables, each answer compared with what a plain map says.
//!
//! The published Cuckoo++ refuses to delete about one in 6,000 keys that are there. Here a deletion that is refused, a
//! key that is not found or found under another value, and an entry that is still found after it was deleted all count.

use super::keys::BenchKey;
use super::own::hasher;
use fastrand::Rng;
use hairpin_core::table::concurrent::Concurrent;
use hairpin_core::table::{AnyTable, Entries, LookupMethod, Table};
use hairpin_tables::{OwnMethod, OwnTable};
use std::sync::Arc;

/// Entries the tables are made for.
const CAPACITY: usize = 100_000;
/// The table is about as full as this share of its capacity.
const FULL: f64 = 0.97;
/// Keys of a lookup burst.
const BURST: usize = 32;

/// How a table fared.
#[derive(Clone, Debug)]
pub(super) struct Soaked {
    /// The method.
    pub method: &'static str,
    /// Operations, single keys.
    pub operations: usize,
    /// Answers that were wrong.
    pub wrong: usize,
    /// Insertions that found no room, which is no mistake beyond the capacity; else they are wrong.
    pub refused: usize,
}

/// Keys by number; the number is the value.
struct Numbered(Vec<BenchKey>);

impl Entries<BenchKey> for Numbered {
    fn is(&self, value: u32, key: &BenchKey) -> bool {
        self.0.get(value as usize) == Some(key)
    }
}

/// So many operations on the default table, on the one that threads share, and on the one that keeps keys.
pub(super) fn run(operations: usize) -> Vec<Soaked> {
    let shared = Arc::new(Concurrent::new(CAPACITY, hasher()));
    let soaked = vec![
        one(AnyTable::new(CAPACITY, hasher()), LookupMethod::DEFAULT.name(), operations),
        one(shared, "concurrent", operations),
        one(OwnTable::of(OwnMethod::Inline, CAPACITY, hasher()), OwnMethod::Inline.name(), operations),
    ];
    for Soaked { method, operations, wrong, refused } in &soaked {
        println!(
            "{method}: {operations} random operations, {wrong} wrong answers, {refused} insertions beyond capacity refused"
        );
    }
    soaked
}

fn one(mut table: impl Table<BenchKey>, method: &'static str, operations: usize) -> Soaked {
    let seed = fastrand::u64(..);
    let mut rng = Rng::with_seed(seed);
    // Half of all keys are there when insertions and deletions, each of a key at random, balance.
    let universe = (2.0 * FULL * CAPACITY as f64) as usize;
    let entries = Numbered((0..universe).map(|_| rng.u128(..).to_le_bytes()).collect());
    // The plain map: keys have numbers, so it is an array.
    let mut there = vec![false; universe];
    let mut soaked = Soaked { method, operations: 0, wrong: 0, refused: 0 };
    while soaked.operations < operations {
        let number = rng.usize(..universe);
        let key = &entries.0[number];
        let expected = there[number].then_some(number as u32);
        match rng.u8(..8) {
            0 => {
                let numbers: [usize; BURST] = std::array::from_fn(|_| rng.usize(..universe));
                let mut found = [None; BURST];
                table.find_burst(&numbers.map(|number| entries.0[number]), &entries, &mut found);
                let right = numbers.map(|number| there[number].then_some(number as u32));
                soaked.wrong += found.iter().zip(&right).filter(|(found, right)| found != right).count();
                soaked.operations += BURST;
            }
            1 | 2 => {
                soaked.wrong += usize::from(table.find(key, &entries) != expected);
                soaked.operations += 1;
            }
            _ if there[number] => {
                soaked.wrong += usize::from(!table.remove(key, number as u32));
                there[number] = false;
                soaked.operations += 1;
            }
            _ => {
                let beyond = table.len() >= table.capacity();
                match table.insert(key, number as u32) {
                    Ok(()) => there[number] = true,
                    Err(_) if beyond => soaked.refused += 1,
                    Err(_) => soaked.wrong += 1,
                }
                soaked.operations += 1;
            }
        }
    }
    if soaked.wrong > 0 {
        eprintln!("  {method}: wrong answers under seed {seed}");
    }
    soaked
}

#[cfg(test)]
mod tests {
    use super::*;
    use hairpin_core::table::{Full, Lookup};

    #[test]
    fn ours_lose_nothing() {
        for Soaked { method, operations, wrong, .. } in run(1_000_000) {
            assert!(operations >= 1_000_000);
            assert_eq!(wrong, 0, "{method}");
        }
    }

    /// Refuses one deletion in 6,000, as the published Cuckoo++ does.
    struct Published(AnyTable, Rng);

    impl Lookup<BenchKey> for Published {
        fn find<E: Entries<BenchKey>>(&self, key: &BenchKey, entries: &E) -> Option<u32> {
            self.0.find(key, entries)
        }
    }

    impl Table<BenchKey> for Published {
        fn name(&self) -> &'static str {
            "published"
        }

        fn capacity(&self) -> usize {
            Table::<BenchKey>::capacity(&self.0)
        }

        fn len(&self) -> usize {
            Table::<BenchKey>::len(&self.0)
        }

        fn bytes(&self) -> usize {
            0
        }

        fn insert(&mut self, key: &BenchKey, value: u32) -> Result<(), Full> {
            self.0.insert(key, value)
        }

        fn remove(&mut self, key: &BenchKey, value: u32) -> bool {
            self.1.u32(..6_000) != 0 && self.0.remove(key, value)
        }

        fn replace(&mut self, _: &BenchKey, _: u32, _: u32) -> bool {
            false
        }

        fn scan(&self, _: u32, _: &mut dyn FnMut(u32)) -> Option<u32> {
            None
        }
    }

    #[test]
    fn the_published_defect_is_seen() {
        let table = Published(AnyTable::new(CAPACITY, hasher()), Rng::with_seed(1));
        // About ten deletions are refused, and what is left over is found later.
        assert!(one(table, "published", 1_000_000).wrong > 2);
    }
}

//! The suite finds what it is for: tables with one fault each.

use crate::model::{ModelTest, Op, Subject};
use crate::scripts;
use hairpin_core::table::{Entries, Full, Hash, Hasher, Lookup, Table};
use hairpin_tables::two_choice::TwoChoice;
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};
use std::panic::{AssertUnwindSafe, catch_unwind};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    /// Now and then an insertion takes place, but says it did not.
    RefusesAndKeeps,
    /// The 20th entry of a full bucket is forgotten.
    InsertsNothing,
    /// An entry whose value has certain bits cannot be removed (the published Cuckoo++ refuses one in 6,000).
    RefusesToRemove,
    /// A burst's last key is not searched for.
    BurstTooShort,
    /// A burst's answers beyond the keys are overwritten.
    BurstTooLong,
    /// Replacing leaves the old value.
    ReplacesNothing,
    /// A walk meets the first entry of each step twice.
    MeetsTwice,
    /// A walk ends a step too early.
    EndsEarly,
    /// Values below 8 are taken on trust.
    DoesNotAsk,
    /// A burst of removals says that all were there.
    CountsWrong,
}

struct Faulty {
    table: TwoChoice,
    fault: Fault,
    count: u32,
}

impl Lookup<Hash> for Faulty {
    fn find<E: Entries<Hash>>(&self, key: &Hash, entries: &E) -> Option<u32> {
        if self.fault == Fault::DoesNotAsk {
            return self.table.find(key, &Trusting(entries));
        }
        self.table.find(key, entries)
    }

    fn find_burst<E: Entries<Hash>>(&self, keys: &[Hash], entries: &E, out: &mut [Option<u32>]) {
        self.table.find_burst(keys, entries, out);
        match self.fault {
            Fault::BurstTooShort if keys.len() > 32 && out.len() >= keys.len() => out[keys.len() - 1] = None,
            Fault::BurstTooLong if out.len() > keys.len() => out[keys.len()] = None,
            _ => {}
        }
    }
}

struct Trusting<'a, E>(&'a E);

impl<E: Entries<Hash>> Entries<Hash> for Trusting<'_, E> {
    fn is(&self, value: u32, key: &Hash) -> bool {
        value < 8 || self.0.is(value, key)
    }
}

impl Table<Hash> for Faulty {
    fn name(&self) -> &'static str {
        "faulty"
    }

    fn capacity(&self) -> usize {
        Table::<Hash>::capacity(&self.table)
    }

    fn len(&self) -> usize {
        Table::<Hash>::len(&self.table)
    }

    fn bytes(&self) -> usize {
        Table::<Hash>::bytes(&self.table)
    }

    fn insert(&mut self, key: &Hash, value: u32) -> Result<(), Full> {
        self.count += 1;
        match self.fault {
            Fault::InsertsNothing if self.count.is_multiple_of(20) => Ok(()),
            Fault::RefusesAndKeeps if self.count.is_multiple_of(20) => self.table.insert(key, value).and(Err(Full)),
            _ => self.table.insert(key, value),
        }
    }

    fn remove(&mut self, key: &Hash, value: u32) -> bool {
        let refuses = self.fault == Fault::RefusesToRemove && value & 7 == 5;
        !refuses && self.table.remove(key, value)
    }

    fn remove_burst(&mut self, keys: &[Hash], values: &[u32]) -> usize {
        let there = self.table.remove_burst(keys, values);
        if self.fault == Fault::CountsWrong { keys.len() } else { there }
    }

    fn replace(&mut self, key: &Hash, old: u32, new: u32) -> bool {
        if self.fault == Fault::ReplacesNothing {
            let there = self.table.remove(key, old);
            return there && self.table.insert(key, old).is_ok();
        }
        self.table.replace(key, old, new)
    }

    fn scan(&self, from: u32, visit: &mut dyn FnMut(u32)) -> Option<u32> {
        let mut first = None;
        let next = Table::<Hash>::scan(&self.table, from, &mut |value| {
            first.get_or_insert(value);
            visit(value);
        });
        match self.fault {
            Fault::MeetsTwice => first.into_iter().for_each(visit),
            Fault::EndsEarly => return next.filter(|&next| next < 3),
            _ => {}
        }
        next
    }
}

impl Subject<Hash> for Faulty {}

/// Whether the suite, asked as often as it is for real tables, complains.
fn complains(fault: Fault) -> bool {
    let config =
        ProptestConfig { cases: 150, failure_persistence: None, max_shrink_iters: 0, ..ProptestConfig::default() };
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let input = (20usize..80, scripts::hashes(), scripts::ops());
    let run = |capacity, keys, ops: Vec<(usize, Op)>| {
        let table = TwoChoice::new(capacity, Hasher::new([1, 2, 3, 4]));
        let mut model_test = ModelTest::new(vec![Faulty { table, fault, count: 0 }], keys, u32::MAX, true);
        for (view, op) in &ops {
            model_test.apply(*view, op);
        }
        model_test.check();
    };
    let done = TestRunner::new_with_rng(config, rng).run(&input, |(capacity, keys, ops)| {
        // Caught here, so that it is not printed once more by the runner.
        let quiet = catch_unwind(AssertUnwindSafe(|| run(capacity, keys, ops)));
        quiet.map_err(|_| TestCaseError::fail("the suite complains"))
    });
    done.is_err()
}

#[test]
#[cfg_attr(miri, ignore = "slow")]
fn the_suite_finds_planted_faults() {
    assert!(!complains(Fault::None), "the suite complains about a table without fault");
    // Panics are what is looked for here: they need not be printed.
    let printing = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| ()));
    let faults = [
        Fault::RefusesAndKeeps,
        Fault::InsertsNothing,
        Fault::RefusesToRemove,
        Fault::BurstTooShort,
        Fault::BurstTooLong,
        Fault::ReplacesNothing,
        Fault::MeetsTwice,
        Fault::EndsEarly,
        Fault::DoesNotAsk,
        Fault::CountsWrong,
    ];
    let missed: Vec<Fault> = faults.into_iter().filter(|&fault| !complains(fault)).collect();
    std::panic::set_hook(printing);
    assert!(missed.is_empty(), "the suite misses {missed:?}");
}

//! Workers that share a table: each sees its own, whatever the others do.

use crate::model::ModelTest;
use crate::random::Random;
use hairpin_core::table::{Entries, Full, Hash, Hasher, Lookup, SharedIndex, Table};
use hairpin_tables::global_lock::GlobalLock;
use hairpin_tables::two_choice::TwoChoice;
use hairpin_tables::{OwnMethod, OwnTable};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// One worker's slab, which must not be asked about what it never held.
struct Worker {
    number: u32,
    held: Vec<Option<Hash>>,
}

impl Entries<Hash> for Worker {
    fn is(&self, value: u32, key: &Hash) -> bool {
        match self.held.get(value as usize) {
            Some(held) => *held == Some(*key),
            None => panic!("worker {} is asked about {value}, of {}", self.number, self.held.len()),
        }
    }
}

fn shared() -> impl Iterator<Item = OwnMethod> {
    OwnMethod::ALL.iter().copied().filter(|method| method.is_shared())
}

/// Three workers hold the same key; a fourth does not, and none is shown or asked about another's.
#[test]
fn a_key_may_belong_to_another_thread() {
    for method in shared() {
        let mut tables = OwnTable::for_workers(method, 4, 10, Hasher::new([1, 2, 3, 4]));
        let key = Hash(0x1234_5678_9abc_def0);
        let mut workers: Vec<Worker> = (0..4).map(|number| Worker { number, held: vec![None; 8] }).collect();
        for number in [2, 0, 1] {
            workers[number].held[5 + number] = Some(key);
            assert_eq!(tables[number].insert(&key, 5 + number as u32), Ok(()));
        }
        for (number, wanted) in [Some(5), Some(6), Some(7), None].into_iter().enumerate() {
            assert_eq!(tables[number].find(&key, &workers[number]), wanted, "{method}");
            let mut out = [Some(99); 40];
            tables[number].find_burst(&[key; 40], &workers[number], &mut out);
            assert_eq!(out, [wanted; 40], "{method}");
            let mut met = Vec::new();
            let mut from = Some(0);
            while let Some(at) = from {
                from = Table::<Hash>::scan(&tables[number], at, &mut |value| met.push(value));
            }
            assert_eq!(met, Vec::from_iter(wanted), "{method}");
            assert_eq!(Table::<Hash>::len(&tables[number]), usize::from(wanted.is_some()));
        }
        // Entries of another view cannot be taken away or changed.
        assert!(!tables[3].remove(&key, 5) && !tables[3].replace(&key, 6, 1) && !tables[0].remove(&key, 6));
        assert_eq!(tables[0].remove_burst(&[key; 3], &[6, 5, 5]), 1);
        workers[0].held[5] = None;
        assert_eq!(tables[0].find(&key, &workers[0]), None);
        assert_eq!(tables[1].find(&key, &workers[1]), Some(6), "{method}");
    }
}

/// A value beyond a view's range would be another's: it is refused.
#[test]
fn values_beyond_a_views_range_are_refused() {
    for method in shared() {
        let mut tables = OwnTable::for_workers(method, 4, 100, Hasher::new([1, 2, 3, 4]));
        let last = (1 << 30) - 1;
        assert_eq!(tables[3].insert(&Hash(1), last), Ok(()));
        assert_eq!(tables[0].insert(&Hash(1), last + 1), Err(Full));
        assert_eq!(tables[0].insert_burst(&[Hash(1), Hash(2), Hash(3)], &[0, last + 1, 2]), 1);
        assert_eq!(tables[0].insert_burst(&[Hash(2); 40], &[u32::MAX; 40]), 0);
        assert!(!tables[3].replace(&Hash(1), last, last + 1));
        assert!(!tables[0].replace(&Hash(1), u32::MAX, 7));
        assert_eq!(tables[0].remove_burst(&[Hash(1), Hash(1)], &[u32::MAX, 0]), 1);
        assert_eq!(Table::<Hash>::len(&tables[0]), 0);
        assert!(tables[3].remove(&Hash(1), last));
    }
}

/// Four threads with the same keys, each against a map of its own. `HAIRPIN_TABLE_OPERATIONS` asks for more.
#[test]
fn threads_do_not_disturb_each_other() {
    let asked = std::env::var("HAIRPIN_TABLE_OPERATIONS").ok().and_then(|count| count.parse().ok());
    let operations = asked.unwrap_or(if cfg!(miri) { 10 } else { 10_000 });
    for method in shared() {
        let tables = OwnTable::for_workers(method, 4, if cfg!(miri) { 20 } else { 400 }, Hasher::new([1, 2, 3, 4]));
        let keys: Vec<[u8; 16]> =
            (0..if cfg!(miri) { 10 } else { 300 }).scan(Random(7), |random, _| Some(random.key())).collect();
        let work = |(table, number)| {
            let mut model_test = ModelTest::new(vec![table], keys.clone(), (1 << 30) - 1, false);
            move || {
                let mut random = Random(number);
                for _ in 0..operations {
                    model_test.apply(0, &random.op());
                }
                model_test
            }
        };
        let threads: Vec<_> = tables.into_iter().zip(1..).map(|table| thread::spawn(work(table))).collect();
        for thread in threads {
            let mut model_test = thread.join().expect("no thread panics");
            model_test.check();
            assert_eq!(model_test.refused(), 0, "{method}");
        }
    }
}

/// The lock is held while a thread uses the table, and given back also by a thread that panics.
#[test]
fn the_global_lock_locks() {
    let table = GlobalLock::new(TwoChoice::new(10, Hasher::new([1, 2, 3, 4])));
    assert_eq!(SharedIndex::<Hash>::insert(&table, &Hash(1), 1), Ok(()));
    let is_free = AtomicBool::new(false);
    thread::scope(|threads| {
        table.with(|inside| {
            threads.spawn(|| {
                assert!(SharedIndex::<Hash>::remove(&table, &Hash(1), 1));
                assert!(is_free.load(Ordering::Relaxed), "removed while another held the lock");
            });
            while table.contended() == 0 {
                thread::yield_now();
            }
            is_free.store(true, Ordering::Relaxed);
            assert_eq!(Table::<Hash>::len(inside), 1);
        });
    });
    assert_eq!((SharedIndex::<Hash>::len(&table), table.contended()), (0, 1));

    let panics = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        table.with(|_| std::panic::resume_unwind(Box::new(())))
    }));
    assert!(panics.is_err());
    assert!(SharedIndex::<Hash>::is_empty(&table), "the lock is free again");
}

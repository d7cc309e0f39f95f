//! The concurrent table under every order that the memory model allows, on small instances:
//!
//! ```sh
//! RUSTFLAGS="--cfg loom" cargo test -p hairpin-core --release --test concurrent_loom
//! ```
//!
//! Some of the models are bounded in how often a thread may be suspended where it could go on ([`bounded`] says how
//! often); the others are complete. That the checker sees what it should is shown by bugs that are planted and have to be
//! found.
#![cfg(loom)]
#![allow(unsafe_code)]

use hairpin_core::table::concurrent::quiescence::Quiescence;
use hairpin_core::table::concurrent::{Concurrent, Planted};
use hairpin_core::table::{Entries, Hash, Hasher, Lookup, Shared};
use loom::cell::UnsafeCell;
use loom::thread;
use std::sync::Arc;

/// Value `i` leads to the entry of key `i`.
struct Keys(Vec<Hash>);

impl Entries<Hash> for Keys {
    fn is(&self, value: u32, key: &Hash) -> bool {
        self.0.get(value as usize) == Some(key)
    }
}

/// Runs a model; no thread is suspended more than `preemptions` times where it could go on.
fn bounded(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 100_000;
    builder.check(model);
}

/// Runs a model completely.
fn complete(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = None;
    builder.max_branches = 100_000;
    builder.check(model);
}

/// A table of two pairs of buckets at most, empty.
fn table(capacity: usize) -> Concurrent {
    Concurrent::new(capacity, Hasher::new([1, 2, 3, 4]))
}

/// The `i`-th key with the buckets 0 and 1, of different tags and counters of the filter.
fn key(table: &Concurrent, i: u64) -> Hash {
    let hashes = (0..).map(|n: u64| Hash(n * 3301 % 0x8000));
    hashes.filter(|hash| table.buckets_of(hash) == (0, 1)).nth(i as usize).unwrap()
}

/// One key in a table, both shared.
fn one(planted: Planted) -> (Arc<Concurrent>, Arc<Keys>, Hash) {
    let mut table = table(1);
    table.plant(planted);
    let keys = Keys(vec![key(&table, 0), key(&table, 1), key(&table, 2)]);
    let sought = keys.0[0];
    table.insert(&sought, 0).unwrap();
    (Arc::new(table), Arc::new(keys), sought)
}

/// Two look for a key that one moves away and back again.
fn sought_while_it_moves(planted: Planted, readers: usize, moves: usize) {
    let (table, keys, sought) = one(planted);
    let readers: Vec<_> = (0..readers)
        .map(|_| {
            let (table, keys) = (Arc::clone(&table), Arc::clone(&keys));
            thread::spawn(move || assert_eq!(table.find(&sought, &*keys), Some(0), "missed"))
        })
        .collect();
    for _ in 0..moves {
        assert!(table.move_over(&sought, 0));
    }
    readers.into_iter().for_each(|reader| reader.join().unwrap());
    assert_eq!(table.find(&sought, &*keys), Some(0));
    let mut table = Arc::into_inner(table).unwrap();
    assert_eq!(table.check(), Ok(()));
}

#[test]
fn one_reader_one_that_moves_away() {
    complete(|| sought_while_it_moves(Planted::Nothing, 1, 1));
}

#[test]
fn one_reader_one_that_moves_there_and_back() {
    complete(|| sought_while_it_moves(Planted::Nothing, 1, 2));
}

#[test]
fn two_readers_one_that_moves_there_and_back() {
    bounded(3, || sought_while_it_moves(Planted::Nothing, 2, 2));
}

#[test]
#[should_panic(expected = "missed")]
fn clearing_before_copying_is_found() {
    bounded(2, || sought_while_it_moves(Planted::ClearedFirst, 1, 1));
}

#[test]
#[should_panic(expected = "missed")]
fn believing_every_miss_is_found() {
    bounded(2, || sought_while_it_moves(Planted::MissesUnchecked, 1, 2));
}

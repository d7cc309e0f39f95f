//! The concurrent table under every order that the memory model allows, on small instances:
//!
//! ```sh
//! RUSTFLAGS="--cfg loom" cargo test -p hairpin-core --release --test concurrent_loom
//! ```
//!
//! It takes less than a minute. Some of the models are bounded in how often a thread may be suspended where it could go
//! on ([`bounded`] says how often); the others are complete. That the checker sees what it should is shown by bugs that
//! are planted and have to be found.
#![cfg(loom)]
#![allow(unsafe_code)]

use hairpin_core::table::concurrent::quiescence::Quiescence;
use hairpin_core::table::concurrent::{Concurrent, Planted};
use hairpin_core::table::{Entries, Hash, Hasher, Lookup, SharedIndex};
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

/// An empty table: two buckets for up to 15 entries, four for more.
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

/// An insertion that has to displace the sought key: all 16 slots of its two buckets are taken, and it is the only
/// entry that has somewhere else to go.
fn sought_while_an_insertion_displaces_it(planted: Planted) {
    let mut table = table(17);
    table.plant(planted);
    let table = Arc::new(table);
    let all = || (0..100_000).map(|n: u64| Hash(n % 0x4000 << 50 | n * 3301 % 0x8000));
    let with = |pair: (u32, u32)| all().filter(|hash| table.buckets_of(hash) == pair).collect::<Vec<Hash>>();
    // One with the buckets 2 and 1, at home in 2, sent away to 1; then 0 and 1 are filled up.
    let mut keys = vec![with((2, 1))[0]];
    keys.extend(&with((0, 1))[..16]);
    let keys = Arc::new(Keys(keys));
    table.insert(&keys.0[0], 0).unwrap();
    assert!(table.move_over(&keys.0[0], 0));
    for i in 1..16 {
        table.insert(&keys.0[i], i as u32).unwrap();
    }
    let reader = {
        let (table, keys) = (Arc::clone(&table), Arc::clone(&keys));
        thread::spawn(move || {
            assert_eq!(table.find(&keys.0[0], &*keys), Some(0), "missed");
        })
    };
    table.insert(&keys.0[16], 16).unwrap();
    reader.join().unwrap();
    for i in 0..17 {
        assert_eq!(table.find(&keys.0[i], &*keys), Some(i as u32));
    }
    assert_eq!(Arc::into_inner(table).unwrap().check(), Ok(()));
}

#[test]
fn one_reader_one_insertion_that_displaces() {
    bounded(4, || sought_while_an_insertion_displaces_it(Planted::Nothing));
}

#[test]
#[should_panic(expected = "missed")]
fn believing_every_miss_during_an_insertion_is_found() {
    bounded(2, || sought_while_an_insertion_displaces_it(Planted::MissesUnchecked));
}

/// Two insert different keys with the same two buckets; both are there afterwards, in a sound table.
#[test]
fn two_writers_on_one_pair() {
    complete(|| {
        let (table, keys, _) = one(Planted::Nothing);
        let other = {
            let (table, keys) = (Arc::clone(&table), Arc::clone(&keys));
            thread::spawn(move || table.insert(&keys.0[1], 1).unwrap())
        };
        table.insert(&keys.0[2], 2).unwrap();
        other.join().unwrap();
        for i in 0..3 {
            assert_eq!(table.find(&keys.0[i], &*keys), Some(i as u32));
        }
        assert_eq!(Arc::into_inner(table).unwrap().check(), Ok(()));
    });
}

/// One removes an entry that another one is moving; the removal succeeds, and the entry does not come back.
#[test]
fn one_that_removes_one_that_moves() {
    complete(|| {
        let (table, keys, sought) = one(Planted::Nothing);
        table.insert(&keys.0[1], 1).unwrap();
        let mover = {
            let (table, keys) = (Arc::clone(&table), Arc::clone(&keys));
            thread::spawn(move || {
                table.move_over(&sought, 0);
                table.move_over(&keys.0[1], 1);
            })
        };
        assert!(table.remove(&sought, 0), "it is there and cannot be removed");
        assert_eq!(table.find(&sought, &*keys), None);
        assert!(!table.remove(&sought, 0), "removed twice");
        mover.join().unwrap();
        assert_eq!(table.find(&sought, &*keys), None);
        assert_eq!(table.find(&keys.0[1], &*keys), Some(1));
        assert_eq!(Arc::into_inner(table).unwrap().check(), Ok(()));
    });
}

/// Two try to remove the same entry: one of them does.
#[test]
fn two_that_remove() {
    complete(|| {
        let (table, _, sought) = one(Planted::Nothing);
        let other = {
            let table = Arc::clone(&table);
            thread::spawn(move || table.remove(&sought, 0))
        };
        let first = table.remove(&sought, 0);
        assert!(first ^ other.join().unwrap(), "both or neither");
        assert_eq!(Arc::into_inner(table).unwrap().check(), Ok(()));
    });
}

/// Entries in memory that the checker tracks.
struct Cells(Vec<UnsafeCell<Hash>>);

// SAFETY: what is shared here is what the checker watches.
unsafe impl Sync for Cells {}
// SAFETY: as above.
unsafe impl Send for Cells {}

impl Entries<Hash> for Cells {
    fn is(&self, value: u32, key: &Hash) -> bool {
        // SAFETY: the checker ends the run if a thread writes meanwhile.
        self.0[value as usize].with(|cell| unsafe { *cell == *key })
    }
}

/// One looks for a key, twice, quiescent in between; one removes it, and reuses its entry, for another key, once it
/// may. If `patient`, only then; else at once.
fn removed_and_reused(patient: bool) {
    let table = Arc::new(table(1));
    let (old, new) = (key(&table, 0), key(&table, 1));
    let cells = Arc::new(Cells(vec![UnsafeCell::new(old)]));
    let quiescence = Arc::new(Quiescence::new(1));
    table.insert(&old, 0).unwrap();
    let reader = {
        let (table, cells, quiescence) = (Arc::clone(&table), Arc::clone(&cells), Arc::clone(&quiescence));
        thread::spawn(move || {
            let mut reader = quiescence.register().unwrap();
            let first = table.find(&old, &*cells);
            reader.quiescent();
            let second = table.find(&old, &*cells);
            assert!(first.is_some() || second.is_none(), "a removed entry came back");
        })
    };
    assert!(table.remove(&old, 0));
    let grace = quiescence.begin();
    if !patient || quiescence.has_passed(grace) {
        // SAFETY: the checker ends the run if a thread reads meanwhile.
        cells.0[0].with_mut(|cell| unsafe { *cell = new });
        table.insert(&new, 0).unwrap();
        assert_eq!(table.find(&new, &*cells), Some(0));
    }
    reader.join().unwrap();
    assert!(quiescence.has_passed(grace), "there is no reader any more");
    assert_eq!(table.find(&old, &*cells), None);
}

#[test]
fn nothing_is_reused_under_a_reader() {
    complete(|| removed_and_reused(true));
}

#[test]
#[should_panic]
fn reusing_at_once_is_found() {
    bounded(2, || removed_and_reused(false));
}

/// A reader that comes online again sees what was removed while it was offline.
#[test]
fn offline_and_online_again() {
    complete(|| {
        let table = Arc::new(table(1));
        let (old, new) = (key(&table, 0), key(&table, 1));
        let cells = Arc::new(Cells(vec![UnsafeCell::new(old)]));
        let quiescence = Arc::new(Quiescence::new(1));
        table.insert(&old, 0).unwrap();
        let mut reader = quiescence.register().unwrap();
        reader.offline();
        let looks = {
            let (table, cells) = (Arc::clone(&table), Arc::clone(&cells));
            thread::spawn(move || {
                reader.online();
                table.find(&old, &*cells);
                reader.offline();
            })
        };
        assert!(table.remove(&old, 0));
        if quiescence.has_passed(quiescence.begin()) {
            // SAFETY: the checker ends the run if a thread reads meanwhile.
            cells.0[0].with_mut(|cell| unsafe { *cell = new });
        }
        looks.join().unwrap();
    });
}

/// A stamp is not lost to a displacement, and stamping harms no entry.
fn stamped_while_it_moves(moves: usize) {
    let (table, keys, sought) = one(Planted::Nothing);
    let mover = {
        let table = Arc::clone(&table);
        thread::spawn(move || (0..moves).for_each(|_| assert!(table.move_over(&sought, 0))))
    };
    let mut out = [None];
    table.find_burst_stamped(&[sought], &*keys, 7, &mut out);
    assert_eq!(out, [Some(0)], "missed");
    mover.join().unwrap();
    assert!(table.remove_stamped(&sought, 0, 7), "the stamp is lost");
    assert_eq!(Arc::into_inner(table).unwrap().check(), Ok(()));
}

#[test]
fn one_that_stamps_one_that_moves() {
    complete(|| stamped_while_it_moves(1));
}

/// To the same slot: who stamps may have stored into it while it was free.
#[test]
fn one_that_stamps_one_that_moves_there_and_back() {
    bounded(3, || stamped_while_it_moves(2));
}

/// A stamp that comes too late does not bring a removed entry back, nor touch the value of the one that came instead.
#[test]
fn one_that_stamps_one_that_removes() {
    bounded(3, || {
        let (table, keys, sought) = one(Planted::Nothing);
        let stamper = {
            let (table, keys) = (Arc::clone(&table), Arc::clone(&keys));
            thread::spawn(move || {
                let mut out = [None];
                table.find_burst_stamped(&[sought], &*keys, 7, &mut out);
            })
        };
        assert!(table.remove(&sought, 0));
        table.insert(&keys.0[1], 1).unwrap();
        stamper.join().unwrap();
        assert_eq!(table.find(&sought, &*keys), None);
        assert_eq!(table.find(&keys.0[1], &*keys), Some(1));
        assert_eq!(Arc::into_inner(table).unwrap().check(), Ok(()));
    });
}

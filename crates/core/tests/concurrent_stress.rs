//! The concurrent table under real threads: two that only look for keys that are always there, one of them stamping,
//! one that ages, and two that let entries come and go at more than 90 percent load, so that what is sought keeps
//! moving.
//!
//! The entries behind the values are plain memory, reused after a grace period: so the thread sanitizer (`scripts/sanitize`)
//! sees every entry that is published too early or reused too early. `HAIRPIN_TABLE_OPERATIONS` sets how many
//! operations each of the two that change the table makes.
#![cfg(not(loom))]
#![allow(unsafe_code)]

use hairpin_core::table::concurrent::Concurrent;
use hairpin_core::table::concurrent::quiescence::{Grace, Quiescence, QuiescenceReader};
use hairpin_core::table::{Entries, Hash, Hasher, Key, Lookup, SharedIndex};
use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Entries the table is made for; it is kept full of that, which is more than 90 percent of its slots. So few, so that
/// readers often meet entries that are moving: with either of the bugs that are planted for the model checker
/// (`crates/core/tests/concurrent_loom.rs`), this test fails within a second or two. With ten times as many it did not.
const CAPACITY: usize = if cfg!(miri) { 60 } else { 600 };
/// Keys that are always there.
const STABLE: u32 = CAPACITY as u32 / 3;
/// Keys of each of those who change the table, and how many of them are there at a time.
const OWN: u32 = CAPACITY as u32;
const OWN_THERE: usize = CAPACITY / 3 - CAPACITY / 100;
const CHANGERS: u32 = 2;
/// Positions of each changer: for what is there, and for what waits to be reused.
const SPARE: usize = 300;

/// A key: sixteen bytes made of a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Name([u64; 2]);

impl Name {
    fn new(number: u32) -> Name {
        Name([u64::from(number), u64::from(number).wrapping_mul(0x9E37_79B9_7F4A_7C15)])
    }
}

impl Key for Name {
    fn hash(&self, hasher: &Hasher) -> Hash {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.0[0].to_le_bytes());
        bytes[8..].copy_from_slice(&self.0[1].to_le_bytes());
        bytes.hash(hasher)
    }
}

/// Plain memory that threads share under the protocol this test is about.
struct Cells(Vec<UnsafeCell<Name>>);

// SAFETY: a cell is written only by the changer that has its position, before it is inserted anywhere, or after a grace
// period since its removal, and read only between. If the table or the grace periods are wrong, this is not so; to see
// that is what the test is for.
unsafe impl Sync for Cells {}

impl Cells {
    /// # Safety
    /// No thread reads the cell.
    unsafe fn write(&self, position: u32, name: Name) {
        // SAFETY: as the caller promises.
        unsafe { *self.0[position as usize].get() = name }
    }
}

impl Entries<Name> for Cells {
    fn is(&self, value: u32, key: &Name) -> bool {
        // SAFETY: the table said that the value is there, and this thread has not been quiescent since.
        unsafe { *self.0[value as usize].get() == *key }
    }
}

struct Stress {
    table: Concurrent,
    cells: Cells,
    quiescence: Arc<Quiescence>,
    changing: AtomicUsize,
    aged: AtomicUsize,
    inserted: AtomicUsize,
    is_over: AtomicBool,
}

fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[expect(clippy::disallowed_methods, reason = "not the data plane, but how long its test runs")]
fn operations() -> usize {
    let default = if cfg!(miri) { 60 } else { 500_000 };
    std::env::var("HAIRPIN_TABLE_OPERATIONS").ok().and_then(|count| count.parse().ok()).unwrap_or(default)
}

/// The state of one changer.
struct Changer<'a> {
    stress: &'a Stress,
    reader: QuiescenceReader,
    seed: u64,
    /// Its keys by number, and where they are.
    keys: std::ops::Range<u32>,
    there: Vec<(u32, u32)>,
    free: Vec<u32>,
    retired: VecDeque<(u32, Grace)>,
}

impl Changer<'_> {
    fn reclaim(&mut self) {
        while let Some(&(position, grace)) = self.retired.front() {
            self.reader.quiescent();
            if !self.stress.quiescence.has_passed(grace) {
                break;
            }
            self.free.push(position);
            self.retired.pop_front();
        }
    }

    fn insert(&mut self) {
        let number = self.keys.start + (splitmix(&mut self.seed) % u64::from(OWN)) as u32;
        let name = Name::new(number);
        let Stress { table, cells, .. } = self.stress;
        let is_there = self.there.iter().any(|&(there, _)| there == number);
        if is_there {
            return;
        }
        assert_eq!(table.find(&name, cells), None, "{number} came back");
        let Some(position) = self.free.pop() else { return };
        // SAFETY: the position was free: no thread has it, or all have been quiescent since it was removed.
        unsafe { cells.write(position, name) };
        match table.insert(&name, position) {
            Ok(()) => {
                self.there.push((number, position));
                self.stress.inserted.fetch_add(1, Ordering::Relaxed);
            }
            Err(_) => self.free.push(position),
        }
    }

    /// Takes a key away, puts it elsewhere, or has its entry replaced by another one.
    fn remove_or_replace(&mut self) {
        let Stress { table, cells, quiescence, .. } = self.stress;
        let at = (splitmix(&mut self.seed) % self.there.len() as u64) as usize;
        let (number, position) = self.there[at];
        let name = Name::new(number);
        assert_eq!(table.find(&name, cells), Some(position), "{number} is lost");
        let replacement = if splitmix(&mut self.seed).is_multiple_of(8) { self.free.pop() } else { None };
        if let Some(new) = replacement {
            // SAFETY: as in `insert`.
            unsafe { cells.write(new, name) };
            assert!(table.replace(&name, position, new), "{number} cannot be replaced");
            self.there[at].1 = new;
            assert_eq!(table.find(&name, cells), Some(new));
        } else {
            assert!(table.remove(&name, position), "{number} is there and cannot be removed");
            assert_eq!(table.find(&name, cells), None, "{number} was removed and is there");
            self.there.swap_remove(at);
        }
        self.retired.push_back((position, quiescence.begin()));
    }

    fn run(&mut self, operations: usize) {
        for _ in 0..operations {
            if self.there.len() < OWN_THERE {
                self.insert();
            } else {
                self.remove_or_replace();
            }
            self.reader.quiescent();
            self.reclaim();
            if self.free.is_empty() {
                std::thread::yield_now();
            }
        }
    }
}

/// Looks for keys that are always there, in bursts and one by one.
fn read(stress: &Stress, seed: u64) {
    let mut reader = stress.quiescence.register().unwrap();
    let mut seed = seed;
    let mut out = [None; 40];
    while !stress.is_over.load(Ordering::Relaxed) {
        let numbers: Vec<u32> = (0..40).map(|_| (splitmix(&mut seed) % u64::from(STABLE)) as u32).collect();
        let keys: Vec<Name> = numbers.iter().map(|&number| Name::new(number)).collect();
        stress.table.find_burst(&keys, &stress.cells, &mut out);
        for (&number, found) in numbers.iter().zip(out) {
            assert_eq!(found, Some(number), "missed in a burst");
        }
        assert_eq!(stress.table.find(&keys[0], &stress.cells), Some(numbers[0]), "missed");
        reader.quiescent();
        if splitmix(&mut seed).is_multiple_of(64) {
            reader.offline();
            std::thread::yield_now();
            reader.online();
        }
    }
}

/// Stamps all keys that are always there, and then removes all entries it knows that have older stamps: none of those
/// is one of them. There are ten others, which it puts back.
fn age(stress: &Stress) {
    let mut reader = stress.quiescence.register().unwrap();
    let keys: Vec<Name> = (0..STABLE).map(Name::new).collect();
    let mut out = vec![None; keys.len()];
    let mut stamp = 1u8;
    while !stress.is_over.load(Ordering::Relaxed) || stamp < 3 {
        stress.table.find_burst_stamped(&keys, &stress.cells, stamp, &mut out);
        assert!(out.iter().zip(0..).all(|(found, number)| *found == Some(number)), "missed while stamping");
        reader.quiescent();
        let mut from = Some(0);
        while let Some(at) = from {
            from = stress.table.scan_stamped(at, &mut |value, old| {
                if value < STABLE && old != stamp {
                    // It is just being moved.
                    let is_removed = stress.table.remove_stamped(&Name::new(value), value, old);
                    assert!(!is_removed, "{value} was stamped {stamp} and was removed as {old}");
                }
                if (STABLE..STABLE + 10).contains(&value) && old != stamp {
                    age_one(stress, value, old, stamp);
                }
            });
            reader.quiescent();
        }
        stamp = if stamp == u8::MAX { 1 } else { stamp + 1 };
    }
}

/// Ten entries belong to the ager: removes one that is old and inserts it again.
fn age_one(stress: &Stress, value: u32, old: u8, stamp: u8) {
    let name = Name::new(value);
    if !stress.table.remove_stamped(&name, value, old) {
        // It is just being moved, and its stamp is newer than it seemed.
        assert_eq!(stress.table.find(&name, &stress.cells), Some(value), "the ager's own entry is there");
        return;
    }
    assert!(!stress.table.remove(&name, value), "removed twice");
    while stress.table.insert_stamped(&name, value, stamp).is_err() {
        std::thread::yield_now();
    }
    stress.aged.fetch_add(1, Ordering::Relaxed);
}

#[test]
fn nothing_is_missed_lost_or_resurrected() {
    let operations = operations();
    let per_changer = OWN_THERE + SPARE;
    let first_own = STABLE + 10;
    let stress = Stress {
        table: Concurrent::new(CAPACITY, Hasher::new([5, 6, 7, 8])),
        cells: Cells((0..first_own + CHANGERS * per_changer as u32).map(|n| UnsafeCell::new(Name::new(n))).collect()),
        quiescence: Arc::new(Quiescence::new(8)),
        changing: AtomicUsize::new(CHANGERS as usize),
        aged: AtomicUsize::new(0),
        inserted: AtomicUsize::new(0),
        is_over: AtomicBool::new(false),
    };
    for number in 0..first_own {
        stress.table.insert(&Name::new(number), number).unwrap();
    }
    let changer = |which: u32| {
        let first = first_own + which * per_changer as u32;
        Changer {
            stress: &stress,
            reader: stress.quiescence.register().unwrap(),
            seed: u64::from(which) + 100,
            keys: first_own + which * OWN..first_own + (which + 1) * OWN,
            there: Vec::new(),
            free: (first..first + per_changer as u32).collect(),
            retired: VecDeque::new(),
        }
    };
    let there: Vec<usize> = std::thread::scope(|scope| {
        scope.spawn(|| read(&stress, 1));
        scope.spawn(|| read(&stress, 2));
        scope.spawn(|| age(&stress));
        let changers: Vec<_> = (0..CHANGERS)
            .map(|which| {
                let mut changer = changer(which);
                let stress = &stress;
                scope.spawn(move || {
                    // However this ends, the others must end as well.
                    struct Last<'a>(&'a Stress);
                    impl Drop for Last<'_> {
                        fn drop(&mut self) {
                            if self.0.changing.fetch_sub(1, Ordering::Relaxed) == 1 || std::thread::panicking() {
                                self.0.is_over.store(true, Ordering::Relaxed);
                            }
                        }
                    }
                    let _last = Last(stress);
                    changer.run(operations);
                    changer.there.len()
                })
            })
            .collect();
        changers.into_iter().map(|changer| changer.join().unwrap()).collect()
    });
    let Stress { mut table, aged, inserted, .. } = stress;
    assert_eq!(table.check(), Ok(()));
    assert_eq!(SharedIndex::<Name>::len(&table), first_own as usize + there.iter().sum::<usize>());
    assert!(cfg!(miri) || aged.into_inner() > 0, "nothing was aged");
    assert!(inserted.into_inner() > operations / 10, "they mostly waited for positions");
}

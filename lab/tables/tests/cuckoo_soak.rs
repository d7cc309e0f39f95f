//! A long run of random operations on a nearly full table against a plain map: no key is ever lost, none that was
//! removed is found, and no key that is there is refused deletion.
//!
//! `HAIRPIN_TABLE_OPERATIONS` says how many operations, 3,000,000 if it is not set.
// The plain map is the standard one, and how long a test runs is no part of the configuration.
#![allow(clippy::disallowed_types, clippy::disallowed_methods)]

use hairpin_core::table::cuckoo::{CuckooPlusPlus, LOAD_PERCENT};
use hairpin_core::table::{Entries, Hasher, Table};
use hairpin_tables::inline::{self, Inline};
use hairpin_tables::store::Store;
use std::collections::HashMap;

type Bytes = [u8; 16];

/// Entries a table is made for.
const CAPACITY: usize = 150_000;
/// Keys handled by one operation on a burst.
const BURST: usize = 32;

fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// How often each thing was done, in keys.
#[derive(Debug, Default)]
struct Counts {
    inserted: u64,
    refused: u64,
    removed: u64,
    replaced: u64,
    found: u64,
    absent: u64,
}

impl Counts {
    fn sum(&self) -> u64 {
        self.inserted + self.refused + self.removed + self.replaced + self.found + self.absent
    }
}

/// The table, what its values lead to, and the plain map.
struct Soak<T> {
    table: T,
    store: Store<Bytes, u64>,
    model: HashMap<Bytes, u32>,
    /// The keys of the map, to draw from.
    keys: Vec<Bytes>,
    seed: u64,
    counts: Counts,
}

impl<T: Table<Bytes>> Soak<T> {
    /// For a table of `full` slots.
    fn new(table: T, full: usize) -> Soak<T> {
        Soak {
            table,
            store: Store::new(full),
            model: HashMap::new(),
            keys: Vec::new(),
            seed: 1,
            counts: Counts::default(),
        }
    }

    fn random(&mut self, below: usize) -> usize {
        (splitmix(&mut self.seed) >> 32) as usize % below
    }

    /// A key that was never there: each is drawn once, of 2^64.
    fn fresh_key(&mut self) -> Bytes {
        (u128::from(splitmix(&mut self.seed)) | 0xfeed << 64).to_le_bytes()
    }

    fn keep(&mut self, key: Bytes, position: u32) {
        assert_eq!(self.model.insert(key, position), None, "a key was drawn twice");
        self.keys.push(key);
        self.counts.inserted += 1;
    }

    fn insert(&mut self) {
        let key = self.fresh_key();
        let position = self.store.insert(key, self.seed).expect("the store is larger than the table");
        match self.table.insert(&key, position) {
            Ok(()) => self.keep(key, position),
            Err(_) => {
                self.store.remove(position);
                self.counts.refused += 1;
            }
        }
    }

    fn insert_burst(&mut self) {
        let keys: [Bytes; BURST] = std::array::from_fn(|_| self.fresh_key());
        let values = keys.map(|key| self.store.insert(key, 0).expect("the store is larger than the table"));
        let count = self.table.insert_burst(&keys, &values);
        for (key, position) in keys.into_iter().zip(values).take(count) {
            self.keep(key, position);
        }
        for &position in values.iter().skip(count).rev() {
            self.store.remove(position);
            self.counts.refused += 1;
        }
    }

    /// Takes `count` keys out of the map.
    fn draw(&mut self, count: usize) -> (Vec<Bytes>, Vec<u32>) {
        let draw_one = |_| {
            let which = self.random(self.keys.len());
            let key = self.keys.swap_remove(which);
            (key, self.model.remove(&key).expect("a key is in the map"))
        };
        (0..count).map(draw_one).unzip()
    }

    fn remove(&mut self, burst: bool) {
        let (keys, values) = self.draw(if burst { BURST } else { 1 });
        if burst {
            assert_eq!(self.table.remove_burst(&keys, &values), BURST, "keys that are there are refused deletion");
        } else {
            assert!(self.table.remove(&keys[0], values[0]), "a key that is there is refused deletion");
            assert!(!self.table.remove(&keys[0], values[0]), "a key is removed twice");
        }
        let mut out = vec![Some(0); keys.len()];
        self.table.find_burst(&keys, &self.store, &mut out);
        assert!(out.iter().all(Option::is_none), "a key that was removed is found");
        values.iter().for_each(|&position| self.store.remove(position));
        self.counts.removed += keys.len() as u64;
    }

    fn replace(&mut self) {
        let (keys, values) = self.draw(1);
        let (key, old) = (keys[0], values[0]);
        let new = self.store.insert(key, 0).expect("the store is larger than the table");
        assert!(self.table.replace(&key, old, new), "a key that is there is refused replacement");
        self.store.remove(old);
        self.model.insert(key, new);
        self.keys.push(key);
        self.counts.replaced += 1;
    }

    fn find(&mut self) {
        let which = self.random(self.keys.len());
        let key = self.keys[which];
        let absent = self.fresh_key();
        assert_eq!(self.table.find(&key, &self.store), Some(self.model[&key]), "a key is lost");
        assert_eq!(self.table.find(&absent, &self.store), None, "a key is found that never was there");
        self.counts.found += 1;
        self.counts.absent += 1;
    }

    fn find_burst(&mut self) {
        let keys: [Bytes; BURST] = std::array::from_fn(|i| match i % 8 {
            0 => self.fresh_key(),
            _ => {
                let which = self.random(self.keys.len());
                self.keys[which]
            }
        });
        let mut out = [None; BURST];
        self.table.find_burst(&keys, &self.store, &mut out);
        for (key, found) in keys.iter().zip(out) {
            assert_eq!(found, self.model.get(key).copied(), "a key of a burst is lost, or one too many is found");
        }
        self.counts.found += 28;
        self.counts.absent += 4;
    }

    /// One operation; which ones are more likely depends on whether the table is to become fuller.
    fn step(&mut self, grows: bool) {
        match (self.random(16), grows) {
            (0..6, true) | (0..3, false) => self.insert(),
            (6, true) | (3, false) => self.insert_burst(),
            (7 | 8, true) | (4..7, false) => self.remove(false),
            (7 | 8, false) => self.remove(true),
            (9 | 10, _) => self.replace(),
            (11..14, _) => self.find(),
            _ => self.find_burst(),
        }
    }

    /// Every key of the map is found, no other.
    fn check(&self) {
        assert_eq!(self.table.len(), self.model.len());
        for (key, &position) in &self.model {
            assert_eq!(self.table.find(key, &self.store), Some(position), "a key is lost");
            assert!(self.store.is(position, key));
        }
        let (mut met, mut at) = (0, Some(0));
        while let Some(from) = at {
            at = self.table.scan(from, &mut |_| met += 1);
        }
        assert_eq!(met, self.model.len(), "a walk meets another number of entries");
    }
}

/// Lets the table, of `full` slots, swing between 80 and a little over 95 percent of them for `operations`; calls `check`
/// now and then.
fn soak<T: Table<Bytes>>(table: T, full: usize, operations: u64, check: impl Fn(&T)) {
    let mut soak = Soak::new(table, full);
    let mut grows = true;
    let mut next_check = operations / 8;
    while soak.keys.len() < full * 80 / 100 {
        soak.insert();
    }
    soak.counts = Counts::default();
    while soak.counts.sum() < operations {
        soak.step(grows);
        match soak.keys.len() * 100 / full {
            ..80 => grows = true,
            95.. => grows = false,
            _ => {}
        }
        if soak.counts.sum() >= next_check {
            next_check += operations / 8;
            soak.check();
            check(&soak.table);
        }
    }
    soak.check();
    check(&soak.table);
    assert_eq!(soak.counts.refused, 0, "a key was refused");
    println!("{}: {} operations, {:?}", soak.table.name(), soak.counts.sum(), soak.counts);
}

fn operations() -> u64 {
    let count = std::env::var("HAIRPIN_TABLE_OPERATIONS").ok();
    count.map_or(3_000_000, |count| count.parse().expect("HAIRPIN_TABLE_OPERATIONS is a number"))
}

/// Between 80 and 95 percent of all slots are taken.
#[test]
#[cfg_attr(miri, ignore = "slow")]
fn cuckoo_loses_nothing() {
    let table = CuckooPlusPlus::new(CAPACITY, Hasher::new([1, 2, 3, 4]));
    let full = Table::<Bytes>::capacity(&table) * 100 / LOAD_PERCENT;
    soak(table, full, operations(), |table| assert_eq!(table.check(), Ok(())));
}

/// As [`cuckoo_loses_nothing`], for the table that keeps the keys itself.
#[test]
#[cfg_attr(miri, ignore = "slow")]
fn inline_loses_nothing() {
    let table = Inline::<Bytes, u32>::new(CAPACITY, Hasher::new([1, 2, 3, 4]));
    let full = Table::<Bytes>::capacity(&table) * 100 / inline::LOAD_PERCENT;
    soak(table, full, operations(), |table| assert_eq!(table.check(), Ok(())));
}

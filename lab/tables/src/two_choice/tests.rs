//! The table against a plain list, and how far it fills.

use super::{LOAD_PERCENT, SLOTS, TwoChoice};
use core::cell::RefCell;
use hairpin_core::table::{Entries, Full, Hash, Hasher, Lookup, Table};
use proptest::prelude::*;
use std::vec;
use std::vec::Vec;

#[derive(Clone, Debug)]
enum Op {
    Insert(u64),
    Remove(usize),
    RemoveAbsent(u64, u32),
    Find(u64),
    Burst(Vec<u64>),
}

/// Entries that a closure compares.
struct Is<F>(F);

impl<F: Fn(u32) -> bool> Entries<Hash> for Is<F> {
    fn is(&self, value: u32, _: &Hash) -> bool {
        (self.0)(value)
    }
}

/// The youngest entry of a hash is meant.
struct Model<'a>(&'a [(u64, u32)]);

impl Entries<Hash> for Model<'_> {
    fn is(&self, value: u32, key: &Hash) -> bool {
        self.0.iter().rev().find(|(hash, _)| *hash == key.0).map(|&(_, value)| value) == Some(value)
    }
}

fn hasher() -> Hasher {
    Hasher::new([1, 2, 3, 4])
}

/// Few different hashes, among them the extremes and such that differ in the tag or in one bucket only.
fn hash() -> impl Strategy<Value = u64> {
    let part = prop_oneof![Just(0u32), Just(1), Just(u32::MAX), Just(0x8000_0000), Just(0x8000_0001), any::<u32>()];
    (part.clone(), part).prop_map(|(low, high)| u64::from(low) | u64::from(high) << 32)
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => hash().prop_map(Op::Insert),
        2 => any::<usize>().prop_map(Op::Remove),
        1 => (hash(), any::<u32>()).prop_map(|(hash, value)| Op::RemoveAbsent(hash, value)),
        2 => hash().prop_map(Op::Find),
        1 => prop::collection::vec(hash(), 0..80).prop_map(Op::Burst),
    ]
}

/// The table and what it should hold: (hash, value), all values different.
struct Pair {
    table: TwoChoice,
    model: Vec<(u64, u32)>,
    next: u32,
}

impl Pair {
    fn insert(&mut self, hash: u64) {
        let place = self.table.place(Hash(hash));
        let in_bucket = |bucket: usize| {
            let places = self.model.iter().map(|&(hash, _)| self.table.place(Hash(hash)));
            places.filter(|other| [other.left, other.right].contains(&bucket)).count()
        };
        let neighbours = in_bucket(place.left) + in_bucket(place.right);
        let value = self.next;
        self.next += 1;
        match self.table.insert(&Hash(hash), value) {
            Ok(()) => self.model.push((hash, value)),
            Err(Full) => assert!(neighbours >= 2 * SLOTS, "refused beside {neighbours} that could stand there"),
        }
    }

    fn find(&self, hash: u64) {
        let asked = RefCell::new(Vec::new());
        let ask = |value| {
            asked.borrow_mut().push(value);
            false
        };
        assert_eq!(self.table.find(&Hash(hash), &Is(ask)), None);
        let mut asked = asked.into_inner();
        asked.sort_unstable();
        let asked_before = asked.len();
        asked.dedup();
        assert_eq!(asked.len(), asked_before, "asked twice about one entry");
        for &(other, value) in &self.model {
            let is_asked = asked.contains(&value);
            assert!(other != hash || is_asked, "value {value} of hash {hash:#x} is not found");
            if is_asked {
                assert_eq!(self.table.place(Hash(other)).tag, self.table.place(Hash(hash)).tag);
                assert_eq!(self.table.find(&Hash(hash), &Is(|v| v == value)), Some(value));
            }
        }
        assert!(asked.iter().all(|value| self.model.iter().any(|(_, v)| v == value)), "asked about a ghost");
    }

    fn burst(&self, hashes: &[u64]) {
        let hashes: Vec<Hash> = hashes.iter().map(|&hash| Hash(hash)).collect();
        let wanted = |i: usize| self.model.iter().rev().find(|(hash, _)| *hash == hashes[i].0).map(|&(_, value)| value);
        let mut out = vec![Some(u32::MAX); hashes.len()];
        self.table.find_burst(&hashes, &Model(&self.model), &mut out);
        for (i, found) in out.into_iter().enumerate() {
            assert_eq!(found, wanted(i));
        }
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Insert(hash) => self.insert(hash),
            Op::Remove(_) if self.model.is_empty() => {}
            Op::Remove(which) => {
                let (hash, value) = self.model.swap_remove(which % self.model.len());
                assert!(self.table.remove(&Hash(hash), value));
                assert!(!self.table.remove(&Hash(hash), value), "removed twice");
            }
            Op::RemoveAbsent(hash, value) => {
                let value = value | 1 << 31; // beyond any value handed out
                assert!(!self.table.remove(&Hash(hash), value));
            }
            Op::Find(hash) => self.find(hash),
            Op::Burst(hashes) => self.burst(&hashes),
        }
        assert_eq!(Table::<Hash>::len(&self.table), self.model.len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 400,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    #[cfg_attr(miri, ignore = "slow")]
    fn agrees_with_a_list(capacity in 1usize..60, ops in prop::collection::vec(op(), 1..300)) {
        let mut pair = Pair { table: TwoChoice::new(capacity, hasher()), model: Vec::new(), next: 0 };
        for op in ops {
            pair.apply(op);
        }
        let hashes: Vec<u64> = pair.model.iter().map(|&(hash, _)| hash).collect();
        for hash in hashes {
            pair.find(hash);
        }
    }
}

fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

fn fills(capacity: usize, seed: &mut u64) {
    let mut table = TwoChoice::new(capacity, hasher());
    assert!(Table::<Hash>::bytes(&table) >= capacity * 64 * 100 / (SLOTS * LOAD_PERCENT));
    for value in 0..capacity {
        assert_eq!(table.insert(&Hash(splitmix(seed)), value as u32), Ok(()), "{value} of {capacity}");
    }
    assert_eq!((Table::<Hash>::len(&table), Table::<Hash>::capacity(&table)), (capacity, capacity));
}

#[test]
fn fills_to_its_capacity() {
    let mut seed = 1;
    let limit = if cfg!(miri) { 15 } else { 3000 };
    for capacity in 1..limit {
        fills(capacity, &mut seed);
    }
}

#[test]
#[cfg_attr(miri, ignore = "slow")]
fn fills_to_its_capacity_when_large() {
    let mut seed = 2;
    for capacity in [100_000, 1_000_000, 1 << 24] {
        fills(capacity, &mut seed);
    }
}

/// At capacity, with entries coming and going, nothing is refused and nothing is lost.
#[test]
#[cfg_attr(miri, ignore = "slow")]
fn stays_usable_in_churn() {
    const CAPACITY: usize = 20_000;
    let mut seed = 3;
    let mut table = TwoChoice::new(CAPACITY, hasher());
    let mut hashes: Vec<Hash> = (0..CAPACITY).map(|_| Hash(splitmix(&mut seed))).collect();
    for (value, &hash) in hashes.iter().enumerate() {
        assert_eq!(table.insert(&hash, value as u32), Ok(()));
    }
    for _ in 0..100 * CAPACITY {
        let value = splitmix(&mut seed) as usize % CAPACITY;
        assert!(table.remove(&hashes[value], value as u32));
        hashes[value] = Hash(splitmix(&mut seed));
        assert_eq!(table.insert(&hashes[value], value as u32), Ok(()));
    }
    for (value, &hash) in hashes.iter().enumerate() {
        assert_eq!(table.find(&hash, &Is(|v| v as usize == value)), Some(value as u32));
    }
}

/// One hash for all: the worst attack with a known secret. The attacker loses all but 20 entries.
#[test]
fn equal_hashes_are_refused_cleanly() {
    let mut table = TwoChoice::new(1000, hasher());
    for value in 0..2 * SLOTS as u32 {
        assert_eq!(table.insert(&Hash(u64::MAX), value), Ok(()));
    }
    assert_eq!(table.insert(&Hash(u64::MAX), 99), Err(Full));
    assert_eq!(table.insert(&Hash(0), 100), Ok(()));
    for value in 0..2 * SLOTS as u32 {
        assert_eq!(table.find(&Hash(u64::MAX), &Is(|v| v == value)), Some(value));
    }
    assert_eq!(Table::<Hash>::len(&table), 2 * SLOTS + 1);
}

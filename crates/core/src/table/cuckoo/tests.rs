//! The table against a plain list with its invariants checked after every operation, how far it fills, and what hashes
//! chosen by an enemy can do.

use super::bucket::{LISTED, SLOTS, SecondaryFilter, SlotSet, matching_words, print};
use super::{Bucket, CuckooPlusPlus, MOVED_MAX};
use crate::table::{Entries, Full, Hash, Hasher, Lookup, Table};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::vec;
use std::vec::Vec;

fn table(capacity: usize) -> CuckooPlusPlus {
    CuckooPlusPlus::new(capacity, Hasher::new([1, 2, 3, 4]))
}

fn len(table: &CuckooPlusPlus) -> usize {
    Table::<Hash>::len(table)
}

fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Entries that a closure compares.
struct Is<F>(F);

impl<F: Fn(u32, &Hash) -> bool> Entries<Hash> for Is<F> {
    fn is(&self, value: u32, key: &Hash) -> bool {
        (self.0)(value, key)
    }
}

#[derive(Clone, Debug)]
enum Op {
    Insert(u64, u8),
    InsertBurst(Vec<u64>),
    Remove(usize),
    RemoveBurst(Vec<usize>),
    RemoveAbsent(u64, u32),
    Replace(usize),
    Restamp(usize, u8),
    Find(u64),
    Burst(Vec<u64>),
    BurstStamped(Vec<u64>, u8),
}

/// Few different hashes, among them the extremes and such that differ in the tag or in the bucket only.
fn hash() -> impl Strategy<Value = u64> {
    let high = prop_oneof![Just(0u32), Just(1), Just(u32::MAX), Just(0x8000_0000), any::<u32>()];
    let low = prop_oneof![Just(0u32), Just(1), Just(0xffff), Just(0x1234), 0x1200u32..0x1300, any::<u32>()];
    (low, high).prop_map(|(low, high)| u64::from(low) | u64::from(high) << 32)
}

fn op() -> impl Strategy<Value = Op> {
    let hashes = || prop::collection::vec(hash(), 0..80);
    prop_oneof![
        8 => (hash(), any::<u8>()).prop_map(|(hash, stamp)| Op::Insert(hash, stamp)),
        1 => hashes().prop_map(Op::InsertBurst),
        4 => any::<usize>().prop_map(Op::Remove),
        1 => prop::collection::vec(any::<usize>(), 0..40).prop_map(Op::RemoveBurst),
        1 => (hash(), any::<u32>()).prop_map(|(hash, value)| Op::RemoveAbsent(hash, value)),
        1 => any::<usize>().prop_map(Op::Replace),
        1 => (any::<usize>(), any::<u8>()).prop_map(|(which, stamp)| Op::Restamp(which, stamp)),
        2 => hash().prop_map(Op::Find),
        1 => hashes().prop_map(Op::Burst),
        1 => (hashes(), any::<u8>()).prop_map(|(hashes, stamp)| Op::BurstStamped(hashes, stamp)),
    ]
}

/// The table and what it should hold: by value, hash and stamp.
struct Pair {
    table: CuckooPlusPlus,
    model: BTreeMap<u32, (u64, u8)>,
    next: u32,
}

impl Pair {
    fn nth(&self, which: usize) -> Option<(u32, u64)> {
        let which = which.checked_rem(self.model.len())?;
        self.model.iter().nth(which).map(|(&value, &(hash, _))| (value, hash))
    }

    /// The oldest entry of a hash is the one that is meant.
    fn wanted(&self, hash: u64) -> Option<u32> {
        self.model.iter().find(|(_, (other, _))| *other == hash).map(|(&value, _)| value)
    }

    fn is(&self) -> Is<impl Fn(u32, &Hash) -> bool> {
        Is(|value, key: &Hash| self.wanted(key.0) == Some(value))
    }

    fn insert(&mut self, hash: u64, stamp: u8) {
        let value = self.next;
        self.next += 1;
        let place = self.table.place(Hash(hash));
        let buckets = [place.primary, self.table.secondary(place)];
        match self.table.insert_stamped(&Hash(hash), value, stamp) {
            Ok(()) => assert_eq!(self.model.insert(value, (hash, stamp)), None),
            // (Tables here are too small for a filter to run out of room.)
            Err(Full) => assert!(buckets.map(|at| self.table.bucket(at).free()).iter().all(|free| free.is_empty())),
        }
    }

    fn insert_burst(&mut self, hashes: &[u64]) {
        let hashes: Vec<Hash> = hashes.iter().map(|&hash| Hash(hash)).collect();
        let values: Vec<u32> = (self.next..).take(hashes.len()).collect();
        let count = self.table.insert_burst(&hashes, &values);
        self.next += hashes.len() as u32;
        self.model.extend(values.iter().zip(&hashes).take(count).map(|(&value, hash)| (value, (hash.0, 0))));
        if let Some(refused) = hashes.get(count) {
            assert_eq!(self.table.insert(refused, u32::MAX), Err(Full), "refused in a burst but not alone");
        }
    }

    fn remove_burst(&mut self, which: &[usize]) {
        let entries: Vec<(u32, u64)> = which.iter().filter_map(|&which| self.nth(which)).collect();
        let hashes: Vec<Hash> = entries.iter().map(|&(_, hash)| Hash(hash)).collect();
        let values: Vec<u32> = entries.iter().map(|&(value, _)| value).collect();
        let removed = self.table.remove_burst(&hashes, &values);
        let removed_here = values.iter().filter(|value| self.model.remove(value).is_some()).count();
        assert_eq!(removed, removed_here);
    }

    fn burst(&mut self, hashes: &[u64], stamp: Option<u8>) {
        let keys: Vec<Hash> = hashes.iter().map(|&hash| Hash(hash)).collect();
        let wanted: Vec<Option<u32>> = hashes.iter().map(|&hash| self.wanted(hash)).collect();
        let mut out = vec![Some(u32::MAX); keys.len()];
        let firsts: BTreeMap<u64, u32> = self.model.iter().rev().map(|(&value, &(hash, _))| (hash, value)).collect();
        let is = Is(|value, key: &Hash| firsts.get(&key.0) == Some(&value));
        match stamp {
            Some(stamp) => {
                self.table.find_burst_stamped(&keys, &is, stamp, &mut out);
                for value in wanted.iter().flatten() {
                    self.model.entry(*value).and_modify(|entry| entry.1 = stamp);
                }
            }
            None => self.table.find_burst(&keys, &is, &mut out),
        }
        assert_eq!(out, wanted);
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Insert(hash, stamp) => self.insert(hash, stamp),
            Op::InsertBurst(hashes) => self.insert_burst(&hashes),
            Op::Remove(which) => {
                let Some((value, hash)) = self.nth(which) else { return };
                assert!(self.table.remove(&Hash(hash), value));
                assert!(!self.table.remove(&Hash(hash), value), "removed twice");
                self.model.remove(&value);
            }
            Op::RemoveBurst(which) => self.remove_burst(&which),
            Op::RemoveAbsent(hash, value) => {
                let value = value | 1 << 31; // beyond any value handed out
                assert!(!self.table.remove(&Hash(hash), value) && !self.table.replace(&Hash(hash), value, 0));
            }
            Op::Replace(which) => {
                let Some((value, hash)) = self.nth(which) else { return };
                assert!(self.table.replace(&Hash(hash), value, self.next));
                let entry = self.model.remove(&value).expect("it was there");
                self.model.insert(self.next, entry);
                self.next += 1;
            }
            Op::Restamp(which, stamp) => {
                let Some((value, hash)) = self.nth(which) else { return };
                assert!(self.table.restamp(&Hash(hash), value, stamp));
                self.model.entry(value).and_modify(|entry| entry.1 = stamp);
            }
            Op::Find(hash) => assert_eq!(self.table.find(&Hash(hash), &self.is()), self.wanted(hash)),
            Op::Burst(hashes) => self.burst(&hashes, None),
            Op::BurstStamped(hashes, stamp) => self.burst(&hashes, Some(stamp)),
        }
    }

    /// The table holds what it should, in order.
    fn check(&self) {
        assert_eq!(self.table.check_against(|value| Hash(self.model[&value].0)), Ok(()));
        let (mut found, mut at) = (Vec::new(), Some(0));
        while let Some(from) = at {
            at = self.table.scan_stamped(from, &mut |value, stamp| found.push((value, stamp)));
        }
        found.sort_unstable();
        assert!(found.iter().copied().eq(self.model.iter().map(|(&value, &(_, stamp))| (value, stamp))));
        assert_eq!(len(&self.table), self.model.len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    #[cfg_attr(miri, ignore = "slow")]
    fn agrees_with_a_list(capacity in 1usize..100, ops in prop::collection::vec(op(), 1..200)) {
        let mut pair = Pair { table: table(capacity), model: BTreeMap::new(), next: 0 };
        for op in ops {
            pair.apply(op);
            pair.check();
        }
        let hashes: Vec<u64> = pair.model.values().map(|&(hash, _)| hash).collect();
        pair.burst(&hashes, None);
    }

    #[test]
    #[cfg_attr(miri, ignore = "slow")]
    fn both_ways_of_comparing_agree(
        tags in prop::array::uniform8(prop_oneof![Just(0u16), Just(1), Just(0x8000), Just(0xffff), any::<u16>()]),
        tag in prop_oneof![Just(0u16), Just(1), Just(0x8000), Just(0x7fff), Just(0xffff), any::<u16>()],
    ) {
        let plain = |tag| (0..SLOTS).filter(|&slot| tags[slot] == tag).fold(0, |set, slot| set | 1 << slot);
        for tag in tags.into_iter().chain([tag]) {
            assert_eq!(matching_words(&tags, tag), SlotSet::of(plain(tag)));
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            assert_eq!(super::bucket::matching_sse2(&tags, tag), SlotSet::of(plain(tag)));
        }
    }

    /// The filter against a list of prints: it is never wrong in saying no, and right in saying yes when all are listed.
    #[test]
    #[cfg_attr(miri, ignore = "slow")]
    fn filter_agrees_with_a_list(ops in prop::collection::vec((any::<bool>(), 1u8..20, any::<usize>()), 1..200)) {
        let (mut filter, mut prints) = (Bucket::EMPTY.filter, Vec::<u8>::new());
        for (is_added, print, which) in ops {
            if is_added && filter.has_room() {
                filter.add(print);
                prints.push(print);
            } else if !prints.is_empty() {
                filter.remove(prints.swap_remove(which % prints.len()));
            }
            assert_eq!(filter.listed().count() + usize::from(filter.unlisted()), prints.len());
            for print in 0..=u8::MAX {
                let may = print != 0 && filter.may_have_moved(print);
                assert!(may || !prints.contains(&print), "print {print} of {prints:?} is denied");
                assert!(!may || prints.contains(&print) || filter.unlisted() != 0, "print {print} is claimed");
            }
        }
    }
}

/// A filter is full when seven prints are listed and 255 are not, and empty again when they are gone.
#[test]
fn filter_has_a_bound() {
    let mut filter: SecondaryFilter = Bucket::EMPTY.filter;
    for i in 0..MOVED_MAX {
        assert!(filter.has_room(), "after {i}");
        filter.add((i % 255) as u8 + 1);
    }
    assert!(!filter.has_room() && filter.listed().count() == LISTED);
    for i in 0..MOVED_MAX {
        filter.remove((i % 255) as u8 + 1);
        assert!(filter.has_room());
    }
    assert!(filter == Bucket::EMPTY.filter);
}

/// Each bucket leads to the other and back, and they are never one.
#[test]
fn the_other_bucket_leads_back() {
    for capacity in [1, 16, 30, 1000, 20_000] {
        let table = table(capacity);
        let count = table.buckets.len() as u32;
        let step = if cfg!(miri) { 9973 } else { 7 };
        for tag in (1..=u16::MAX).step_by(step).chain([u16::MAX]) {
            for bucket in [0, 1, count / 2, count - 2, count - 1] {
                let other = table.other(bucket, tag);
                assert!(other < count && other != bucket, "{bucket} of {count}, tag {tag}");
                assert_eq!(table.other(other, tag), bucket);
            }
        }
    }
}

/// Fills a table with random hashes until it refuses one, and gives the share of its slots then taken.
fn load(capacity: usize, seed: &mut u64) -> f64 {
    let mut table = table(capacity);
    for value in 0.. {
        if table.insert(&Hash(splitmix(seed)), value).is_err() {
            break;
        }
    }
    assert_eq!(table.check(), Ok(()));
    assert!(len(&table) >= capacity, "{} of {capacity} found room", len(&table));
    len(&table) as f64 / table.slots() as f64
}

#[test]
#[cfg_attr(miri, ignore = "slow")]
fn is_filled_to_95_percent_and_to_its_capacity() {
    let mut seed = 1;
    for capacity in (1..2000).chain([10_000, 100_000, 1_000_000]) {
        let load = load(capacity, &mut seed);
        // Small ones by their capacity only: they have room to spare (`PAIRS_FEW`), since chance is coarse in them.
        assert!(load >= 0.95 || capacity < 1000, "a table for {capacity} is full at {load:.3}");
    }
}

/// A test short enough for Miri: the way of comparing that is not for x86-64 serves a whole table, in bursts.
#[test]
fn lives_a_short_life() {
    let mut pair = Pair { table: table(40), model: BTreeMap::new(), next: 0 };
    let mut seed = 11;
    let mut hashes = |count: usize| -> Vec<u64> { (0..count).map(|_| splitmix(&mut seed)).collect() };
    let first = hashes(40);
    pair.apply(Op::InsertBurst(first.clone()));
    for round in 0..5 {
        pair.apply(Op::RemoveBurst((0..12).map(|i| i * 7 + round).collect()));
        pair.apply(Op::InsertBurst(hashes(10)));
        pair.apply(Op::BurstStamped(first.clone(), round as u8));
        pair.check();
    }
    pair.apply(Op::Burst(hashes(40)));
}

/// No slot is made that the capacity does not ask for.
#[test]
#[cfg_attr(miri, ignore = "slow")]
fn slots_are_what_capacity_asks_for() {
    for slots in [1 << 10, 1 << 16, 1 << 20] {
        assert_eq!(table(slots * 95 / 100).slots(), slots);
    }
}

/// At capacity, with entries coming and going, nothing is refused, nothing is lost, and the filters stay right.
#[test]
#[cfg_attr(miri, ignore = "slow")]
fn stays_usable_in_churn() {
    const CAPACITY: usize = 20_000;
    let mut seed = 3;
    let mut table = table(CAPACITY);
    let mut hashes: Vec<u64> = (0..CAPACITY).map(|_| splitmix(&mut seed)).collect();
    for (value, &hash) in (0..).zip(&hashes) {
        assert_eq!(table.insert(&Hash(hash), value), Ok(()));
    }
    for step in 0..400_000 {
        let at = splitmix(&mut seed) as usize % CAPACITY;
        assert!(table.remove(&Hash(hashes[at]), at as u32));
        hashes[at] = splitmix(&mut seed);
        assert_eq!(table.insert(&Hash(hashes[at]), at as u32), Ok(()), "step {step}");
    }
    assert_eq!(table.check_against(|value| Hash(hashes[value as usize])), Ok(()));
    let is = Is(|value, key: &Hash| hashes[value as usize] == key.0);
    for (value, &hash) in (0..).zip(&hashes) {
        assert_eq!(table.find(&Hash(hash), &is), Some(value));
    }
}

/// Sixteen entries of one hash find room, the next is refused and nothing changes.
#[test]
fn equal_hashes_are_refused_cleanly() {
    for capacity in [1, 100, 1000] {
        let mut table = table(capacity);
        let hash = Hash(0x1234_5678_9abc_def0);
        for value in 0..2 * SLOTS as u32 {
            assert_eq!(table.insert(&hash, value), Ok(()));
        }
        for value in 16..20 {
            assert_eq!(table.insert(&hash, value), Err(Full));
            assert_eq!((table.check_against(|_| hash), len(&table)), (Ok(()), 16));
        }
        for value in (0..16).rev() {
            assert_eq!(table.find(&hash, &Is(|v, _: &Hash| v == value)), Some(value));
            assert!(table.remove(&hash, value));
            assert_eq!(table.check_against(|_| hash), Ok(()));
        }
    }
}

/// Hashes that all have one first bucket find room as long as its filter can count them.
#[test]
#[cfg_attr(miri, ignore = "slow")]
fn one_first_bucket_for_all_is_bounded() {
    let mut table = table(10_000);
    let hash = |value: u32| Hash((7 << 32) + u64::from(value + 1) * 37);
    let mut count = 0;
    while table.insert(&hash(count), count).is_ok() {
        count += 1;
        assert_eq!(table.check_against(hash), Ok(()));
    }
    assert_eq!(count as usize, SLOTS + MOVED_MAX);
    assert_eq!((table.check_against(hash), len(&table)), (Ok(()), count as usize));
    // Entries of other buckets still come in, and such of this one when others of it go.
    let foreign = Hash(0x8000_0000_0000_0001);
    assert_eq!(table.insert(&foreign, u32::MAX), Ok(()));
    assert!(table.remove(&foreign, u32::MAX));
    let mut seed = 5;
    let mut values: Vec<u32> = (0..count).collect();
    while !values.is_empty() {
        let value = values.swap_remove(splitmix(&mut seed) as usize % values.len());
        assert!(table.remove(&hash(value), value), "{value} is refused deletion");
        assert_eq!(table.check_against(hash), Ok(()));
        let found = values.iter().all(|&value| table.find(&hash(value), &Is(|v, _: &Hash| v == value)) == Some(value));
        assert!(found, "one is lost after {value} is gone");
    }
    assert!(table.buckets.iter().all(|bucket| bucket.filter == Bucket::EMPTY.filter));
}

/// Most entries stand in their first bucket, and few absent keys send a lookup to the second one, also after churn.
/// (Without sending guests home, a quarter moves away and 5 percent of absent keys are sent on.)
#[test]
#[cfg_attr(miri, ignore = "slow")]
fn filters_do_not_fill_with_time() {
    const CAPACITY: usize = 60_000;
    let mut table = table(CAPACITY);
    let (mut seed, used) = (9, table.slots() * 8 / 10);
    let mut hashes: Vec<u64> = (0..used).map(|_| splitmix(&mut seed)).collect();
    for (value, &hash) in (0..).zip(&hashes) {
        assert_eq!(table.insert(&Hash(hash), value), Ok(()));
    }
    let wrong = |table: &CuckooPlusPlus, seed: &mut u64| {
        let places = (0..100_000).map(|_| table.place(Hash(splitmix(seed))));
        places.filter(|place| table.bucket(place.primary).filter.may_have_moved(print(place.tag))).count()
    };
    let before = wrong(&table, &mut seed);
    for _ in 0..20 * used {
        let at = splitmix(&mut seed) as usize % used;
        assert!(table.remove(&Hash(hashes[at]), at as u32));
        hashes[at] = splitmix(&mut seed);
        assert_eq!(table.insert(&Hash(hashes[at]), at as u32), Ok(()));
    }
    let after = wrong(&table, &mut seed);
    assert!(before < 1000 && after < 3000, "of 100,000 absent keys {before} were sent on, after churn {after}");
    let moved: usize = table.buckets.iter().map(|bucket| bucket.guests().count()).sum();
    assert!(moved < used * 18 / 100, "{moved} of {used} entries have moved");
}
